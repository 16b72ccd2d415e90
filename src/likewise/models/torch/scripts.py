"""Looks through a TorchScript archive before it is loaded, which runs parts of it, and at its graph afterwards.

Its source calls nothing but torch's mathematics. Its pickles say what torch believes without a look: how many numbers
lie in a record, and of which class the object in an attribute is, whose parts are then found by their places.
"""

from __future__ import annotations

import ast
import io
import pickle
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

FORBIDDEN = re.compile(
    r"from_file|save|rpc_\w+|_reshape_alias|_nested_view_from_\w+|_sparse_\w+_unsafe|_coo_tensor\w*_unsafe"
    r"|_?sparse_(?:coo|csr|csc|bsr|bsc|compressed)_tensor\w*|_convert_indices_from_\w+|_?segment_reduce\w*"
)
"""Operators that read or write files, call other machines, or point into memory without a look at its size."""

PARTS = re.compile(r"_?indices|_values|(?:crow|ccol|row|col)_indices|_coalesced_")
"""Operators that hand out the memory in which a sparse tensor notes its places: what is written there, torch believes.
Values, attributes and keys of a model are called so too."""

NAMESPACES = {"aten", "prim", "prims", "quantized", "_quantized", "mkldnn", "mkldnn_prepacked", "onednn", "torchvision"}
CLASSES = re.compile(r"torch\.classes\.(?!(?:quantized|rnn|xnnpack)\b)\w+(?:\.\w+)?")
"""Compiled classes beside those that hold the weights of quantised layers; some open files and sockets."""

OWN = re.compile(r"__torch__(?:\.\w+)+")
"""How a class of the archive is named in its source and its pickles."""

OPEN = ("code", "data", "extra", ".data", "models")
"""Folders of an archive in which records are called after classes, weights and what users add."""

CASTS = ("unchecked_cast", "uninitialized")
"""What says of a value that it is of another type, which nothing holds against it where that is a class."""


def require_exact(names: Iterable[str]) -> None:
    """A `ValueError` for a record that torch finds by its name and others do not, as it looks for no case of letters.

    Below a folder that it asks for, classes and files may be called as they like; `extra` is what users add.
    """
    for name in names:
        first, _, rest = name.partition("/")
        _, dot, suffix = name.rpartition(".")
        folder = first != first.lower() or "\\" in name or posixpath.normpath(name) != name.rstrip("/")
        if folder or (dot and first != "extra" and "/" not in suffix and suffix != suffix.lower()):
            raise ValueError(f"a record called {name!r}, which torch takes for {name.lower()!r}")
        # The files of modules are found by the names of classes, those of weights by numbers.
        if first not in OPEN and rest != rest.lower():
            raise ValueError(f"a record called {name!r}, which torch takes for {name.lower()!r}")


def forbidden(operator: str) -> bool:
    """Has an operator of this name no place in a model?"""
    return (FORBIDDEN.fullmatch(operator) or PARTS.fullmatch(operator)) is not None


def suspicious(path: str) -> set[str]:
    """What in an archive has no place in a model; a `ValueError` or the like where it cannot be told."""
    import torch

    with open(path, "rb") as start:
        if start.read(4) != b"PK\x03\x04":  # torch looks at the first bytes, zip at the last
            raise ValueError("something before the archive")
    reader = torch._C.PyTorchFileReader(path)  # the loader's own: two readers may see two archives in one file
    if "model.json" in (records := reader.get_all_records()):
        raise ValueError("it is of a form whose source may lie anywhere in it")
    require_exact(records)
    found: set[str] = set()
    classes: dict[str, dict[str, str]] = {}
    for name in records:
        if name.startswith("code/") and not name.endswith(".debug_pkl"):
            tree = ast.parse(reader.get_record(name).decode())
            found.update(_called(tree))
            for own, attributes in _declared(tree):
                if classes.setdefault(f"{name[5:-3].replace('/', '.')}.{own}", attributes) is not attributes:
                    raise ValueError(f"it has two classes {own}")
    for name in records:
        if name.endswith(".pkl") and not name.startswith("code/"):
            content = reader.get_record(name)
            # The two parts of a name stand in two lines.
            found.update(CLASSES.findall(content.decode("latin1").replace("\n", ".")))
            _Look(content, reader, name.removesuffix(".pkl"), classes).load()
    return found


def _called(tree: ast.Module) -> Iterator[str]:
    """The operators and classes in a piece of source that have no place in a model.

    Any value can be written before any operator (`x.save(…)`), so the names alone are looked at.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="ops"), attr=space) if space not in NAMESPACES:
                yield f"operators of {space}"
            case ast.Attribute():
                yield from CLASSES.findall(ast.unparse(node))
            case (
                ast.Call(func=ast.Attribute(attr=asked))
                | ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(asked))])
            ) if PARTS.fullmatch(asked):
                yield f"aten::{asked}"
            case ast.Call(func=ast.Name(id=cast), args=[kind, *_]) if cast in CASTS:
                yield from (f"{cast} to {own}" for own in OWN.findall(ast.unparse(kind)))
        for name in (getattr(node, "attr", None), getattr(node, "id", None), getattr(node, "value", None)):
            if isinstance(name, str) and FORBIDDEN.fullmatch(name):
                yield f"aten::{name}"


def _declared(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """The classes in a piece of source, and the types of their attributes; none for those that set their own state."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        attributes: dict[str, str] = {}
        for part in node.body:
            match part:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=kind):
                    attributes[name] = ast.unparse(kind)
                # Names that are no names of Python's: those of the parts of a Sequential are numbers.
                case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=str(name)))], value=kind):
                    attributes[name] = ast.unparse(kind)
        sets_itself = any(isinstance(part, ast.FunctionDef) and part.name == "__setstate__" for part in node.body)
        yield node.name, {} if sets_itself else attributes


TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_qtensor")
BUILT = ("collections.OrderedDict", "builtins.complex")
"""What is built in a pickle beside the archive's own objects, and what torch names itself."""


class _Look(pickle.Unpickler):
    """Makes nothing of a pickle but notes of what torch would make, and raises for what torch would believe."""

    def __init__(self, content: bytes, reader: Any, folder: str, classes: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__(io.BytesIO(content))
        self._reader, self._folder, self._classes = reader, folder, classes

    def find_class(self, module: str, name: str) -> Any:
        import torch

        own = f"{module}.{name}"
        if own in TENSORS:
            return _Tensor
        if module == "torch" and name.endswith("Storage"):
            return getattr(torch, name)._dtype.itemsize
        if not (own.startswith(("__torch__.", "torch.jit._pickle.")) or module == "torch" or own in BUILT):
            raise ValueError(f"{own}, which cannot be checked")
        return type("Own", (_Object,), {"own": own, "declared": self._classes.get(own, {})})

    def persistent_load(self, told: Any) -> int:
        """How many numbers a record holds; as torch, which takes what is told for it, would be told."""
        _, size, key, _, count = told
        known = self._reader.get_record_size(f"{self._folder}/{key}") if count else 0
        # Of the inputs that a module was traced with torch keeps the shapes alone, and nobody looks at more.
        if count < 0 or not (size * count == known or (self._folder == "traced_inputs" and not known)):
            raise ValueError(f"a tensor of {count} numbers in a record of another size")
        return int(count)


class _Object:
    """Stands for an object of the archive, or for what builds a list or a type in it."""

    own = ""
    declared: Mapping[str, str] = {}

    def __init__(self, *arguments: object) -> None:
        self.held: object = arguments

    def __setstate__(self, state: Any) -> None:
        self.held = state
        if self.own.startswith("__torch__.torch.classes."):
            return  # compiled, and asks each of what it is given for its class
        parts = state.items() if isinstance(state, dict) else [("", state)]
        for name, value in parts:
            # Torch finds the parts of an object by the class that is declared, whatever class it is of.
            if wrong := {found.own for found in _objects(value)} - set(OWN.findall(self.declared.get(name, ""))):
                raise ValueError(f"a {min(wrong)} where {self.own}.{name} is something else")


class _Tensor(_Object):
    """A part of a record, by where it begins and by its sizes and steps."""

    def __init__(self, count: int, offset: int, sizes: Sequence[int], strides: Sequence[int], *more: object) -> None:
        last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if min((offset, *sizes, *strides)) < 0 or (0 not in sizes and last >= count):
            raise ValueError("a tensor that reaches beyond its record")
        super().__init__()
        self.sizes = tuple(sizes)
        match more:
            # A scale and a zero for each channel, which torch does not count.
            case ((_, _Tensor() as scales, _Tensor() as zeros, int(axis)), *_) if not (
                0 <= axis < len(sizes) and scales.sizes == zeros.sizes == (sizes[axis],)
            ):
                raise ValueError("a quantised tensor with other scales than channels")


def _objects(value: Any) -> Iterator[_Object]:
    """The objects of the archive's own classes in a value, without what these hold."""
    waiting, seen = [value], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _Object) and value.own.startswith("__torch__."):
            yield value
        elif isinstance(value, _Object):
            waiting.append(value.held)
        elif isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            waiting += value


def operators(module: Any) -> Iterator[str]:
    """What has no place in a model of a graph as it was loaded, with everything it calls written out."""
    import torch

    for method in module._c._method_names():
        graph = module._c._get_method(method).graph.copy()
        torch._C._jit_pass_inline(graph)
        waiting = [graph]
        while waiting:
            for node in waiting.pop().nodes():
                waiting.extend(node.blocks())
                space, _, name = node.kind().partition("::")
                if space not in NAMESPACES or forbidden(name):
                    yield node.kind()
