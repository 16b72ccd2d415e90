"""A PyTorch module out of a file, without running code from the file.

torch.export.load unpickles, evaluates expressions, generates Python source out of names and loads
compiled libraries: a .pt2 is a program. It is looked at before it is opened. A file of `torch.export.save`
needs none of that beyond operators of torch, plain names and arithmetic on sizes, so anything else is refused.
TorchScript is a program too, and parts of it run while it is loaded: its source is looked at first, then its graph.
"""

from __future__ import annotations

import ast
import copy
import json
import os
import pickle
import pickletools
import posixpath
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from likewise.contracts.models import Model
from likewise.errors import LikewiseError, ModelError, UntrustedModelError, one_line
from likewise.models import pickles, quietly
from likewise.models.python import load as load_named
from likewise.models.torch import scripts

NAME = re.compile(r"[\w.\-/ ]*")
"""What a name in the file may look like: it may end up in generated source, where nothing of this can call anything."""

OPERATORS = re.compile(
    r"torch\.ops\.(aten|prims|prim|quantized|quantized_decomposed|onnx|torchvision)"
    r"\.((?!__)\w+|__i?(and|or|xor|lshift|rshift)__)(\.(?!__)\w+)?"
    r"|torch\.ops\.higher_order\.(cond|while_loop|map_impl|scan|associative_scan|flex_attention|out_dtype|strict_mode"
    r"|invoke_subgraph|hints_wrapper|with_effects|wrap_with_autocast|wrap_with_set_grad_enabled|auto_functionalized(_v2)?)"
    r"|_operator\.(getitem|add|mul|sub|truediv|floordiv|mod|pow|neg|abs|ge|le|gt|lt|eq|ne|and_|or_|not_|lshift|rshift)"
    r"|math\.\w+|torch\.sym_\w+|torch\._sym_\w+"
)
"""What a graph may call. Others of the higher order run compiled code, or fill in any text (`print`)."""

FACTORIES = {"builtins", "collections"}
ENUM = "__enum__"
"""Modules of what makes missing values of a dict, and the mark of an enum: torch imports what a file names there."""

FREE_TEXT = {"metadata", "as_string", "as_strings", "torch_version"}
TAKEN = ("inputs", "value")
"""Entries that are only ever text: stack traces, constants of operators. Not what the program itself takes: of such a
text torch writes source that holds its inputs against it."""

SIZES = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.Compare,
    ast.cmpop, ast.Subscript, ast.Constant, ast.Name, ast.Load, ast.Call, ast.keyword, ast.Attribute, ast.List,
    ast.Tuple,
)  # fmt: skip
"""What arithmetic on sizes is written with."""

METHODS = {"size", "stride", "storage_offset", "item", "shape", "ndim", "dim"}
FUNCTION = re.compile(
    "Symbol|Integer|Rational|Float|Add|Mul|Pow|Abs|Min|Max|Mod|Eq|Ne|Equality|Unequality|Ge|Gt|Le|Lt|And|Or|Not"
    "|(?:Strict)?(?:Greater|Less)Than|Relational|Piecewise|ExprCondPair"
    "|(?:Floor|Clean|Ceil|IntTrue|FloatTrue)Div|(?:Ceil|Floor|Trunc|Round)ToInt|TruncToFloat|ToFloat|RoundDecimal"
    "|FloatPow|PowByNatural|PythonMod|ModularIndexing|Where|Identity|[LR]Shift|IsNonOverlappingAndDenseIndicator"
    r"|OpaqueUnaryFn_\w+|BitwiseFn_\w+|min|max|abs|floor|ceil|not_"
)
"""What sizes are computed with, in sympy's words and torch's. Others of sympy's take text apart, or make anything."""

SUFFIXES = (".pt", ".pth", ".pt2", ".jit", ".ts", ".torchscript")

WRAPPED_IN = ("state_dict", "model_state_dict", "model", "module", "weights", "ema")
"""Where training scripts keep the weights in a checkpoint."""


def _refuse_what_runs(path: str) -> None:
    """Raise unless the file holds nothing but a graph of torch's operators and its weights."""
    import torch

    try:
        reader = torch._C.PyTorchFileReader(path)
        records = reader.get_all_records()
        scripts.require_exact(records)
        found = {f"compiled code ({name})" for name in records if name.startswith("data/aotinductor/")}
        for name in records:
            if name.startswith("models/"):
                found.update(_suspicious(json.loads(reader.get_record(name))))
            elif name.endswith("_config.json"):
                found.update(_pickled(json.loads(reader.get_record(name))))
    except (RuntimeError, ValueError, AttributeError) as error:
        raise _not_a_program(path) from error
    if "models/model.json" not in records:
        raise _not_a_program(path)
    if found:
        raise _refusal(path, sorted(found))


def _pickled(config: Any) -> Iterator[str]:
    """Objects that are not tensors: those the loader unpickles whatever they are."""
    for entry in config.get("config", {}).values():
        place = str(entry.get("path_name"))
        if not place.startswith(("weight", "tensor")):
            yield f"a pickled object ({place})"


@contextmanager
def _only_weights() -> Iterator[None]:
    """Every pickle inside the file holds tensors, whatever the loader asks for."""
    variable = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def _refusal(path: str, found: list[str], *, module: bool = False) -> UntrustedModelError:
    """The error for a file that could run code; a pickled `module` may be trusted as other pickles are."""
    refused = pickles.refusal(path, found)
    own = (
        "save plain weights: torch.save(model.state_dict(), path), and name what builds the model: "
        "--reference-option factory=file.py:build; or name the live model as file.py:attribute, which runs your code"
    )
    remedy = f"{refused.remedy}. Or {own}" if module else f"{own[0].upper()}{own[1:]}"
    return UntrustedModelError(refused.message, remedy=remedy)


def _not_a_program(path: str) -> ModelError:
    return ModelError(
        f"{path} is not a torch.export program, or one of an older version",
        remedy="Save it again with torch.export.save(program, path)",
    )


def _suspicious(value: Any, key: str = "", free: Collection[str] = FREE_TEXT) -> Iterator[str]:
    if isinstance(value, dict):
        for name, entry in value.items():
            # The sizes that an axis may have, under names such as `2*s0`.
            yield from _suspicious(name, "expr_str" if key == "range_constraints" else "name")
            if name not in free or key in TAKEN:
                yield from _suspicious(entry, name, free)
    elif isinstance(value, list):
        for entry in value:
            yield from _suspicious(entry, key, free)
    elif isinstance(value, str) and not _harmless(value, key):
        yield f"{key} {value[:80]!r}"


def _harmless(text: str, key: str) -> bool:
    if key in ("target", "as_operator"):
        known = OPERATORS.fullmatch(text) is not None
        return known and not scripts.forbidden((text.split(".") + [""] * 4)[3])
    if key == "default_factory_module":
        return text in FACTORIES
    if key in ("expr_str", "guards_code"):
        return _arithmetic(text)
    if key in ("in_spec", "out_spec", "context"):
        return NAME.fullmatch(text) is not None or _harmless_json(text)
    return NAME.fullmatch(text) is not None and text != ENUM


def _harmless_json(text: str) -> bool:
    try:
        return not any(_suspicious(json.loads(text), "context", free=()))
    except ValueError:
        return False


def _arithmetic(text: str) -> bool:
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return False
    return "#" not in text and all(isinstance(node, SIZES) and _plain(node) for node in ast.walk(tree))


def _plain(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=value):  # bytes have quotes that would end those around them
            return NAME.fullmatch(value) is not None if isinstance(value, str) else isinstance(value, int | float)
        case ast.Attribute(attr=attribute):
            return attribute in METHODS
        case ast.Call(func=ast.Name(id=name)):
            return FUNCTION.fullmatch(name) is not None
        case ast.Call(func=function):
            return isinstance(function, ast.Attribute)
        case _:
            return True


def load(model: Model) -> tuple[Any, str]:
    """What a file holds, a module or an exported program, and what that form is called."""
    path = os.fspath(model.target)
    if not os.path.isfile(path):
        raise ModelError(f"there is no file {path}", remedy="Check the path of the model")
    factory = model.options.get("factory")
    trusted = tuple(model.options.get("trusted", ()))
    members = _members(path)
    if factory is not None:
        return _with_weights(path, factory)
    if "archive_format" in members or path.lower().endswith(".pt2"):
        return _program(path, trusted="*" in trusted), "torch.export"
    if "constants.pkl" in members:
        return _script(path, trusted="*" in trusted), "TorchScript"
    found = _tensors(path, trusted)
    if hasattr(module := _unwrapped(found), "forward"):
        return module, "pickled module"
    raise ModelError(
        f"{path} holds {_content(found)} and no module",
        remedy="Name what builds the module, a function without arguments or the class: --reference-option "
        "factory=file.py:build (--option in export)",
    )


def _members(path: str) -> set[str]:
    """The names inside an archive, without its root; nothing if it is none."""
    if not zipfile.is_zipfile(path):
        return set()
    with _readable(path) as archive:
        names = [name.partition("/")[2] for name in archive.namelist()]
        known: set[str] = set()
        for name in names:
            # As torch finds them: whatever the case of their letters.
            plain = posixpath.normpath(name.replace("\\", "/")).lower()
            if name and plain in known:
                raise _told_twice(path, f"{name!r} stands twice in it")
            known.add(plain)
        try:
            scripts.require_exact(name for name in names if name)
        except ValueError as error:
            raise _told_twice(path, str(error)) from error
        for name in archive.namelist():
            if name.endswith(("/data.pkl", "/constants.pkl")) and _behind(archive.read(name)):
                raise _told_twice(path, f"something stands behind what is pickled in {name!r}")
    return set(names)


@contextmanager
def _readable(path: str) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, RuntimeError, OSError, EOFError, ValueError) as error:
        raise _unreadable(path, error) from error


def _behind(content: bytes) -> bool:
    """Does anything stand behind the end of a pickle?"""
    try:
        return any(code.name == "STOP" and at != len(content) - 1 for code, _, at in pickletools.genops(content))
    except (ValueError, UnicodeDecodeError):
        return False  # damaged, which is told where it is read


def _told_twice(path: str, why: str) -> ModelError:
    return ModelError(
        f"{path} is no archive that everybody would read alike: {why}",
        remedy="Save it again with this version of torch",
    )


def _program(path: str, *, trusted: bool) -> Any:
    import torch
    from torch.export.pt2_archive._package import load_pt2

    if not trusted:
        _refuse_what_runs(path)
    try:
        with quietly(), _only_weights():
            # What the reader of archives refuses, torch.export.load takes for a file of an older form, which zipfile
            # reads: another archive in the same file, perhaps, at which nobody looked.
            program = torch.export.load(path) if trusted else load_pt2(path).exported_programs["model"]
    except pickle.UnpicklingError as error:
        raise _refusal(path, _refused_by(error) or ["a pickled object"]) from error
    except Exception as error:  # a damaged archive breaks in many ways
        raise ModelError(
            f"{path} cannot be loaded as a program of torch.export: {one_line(error)}",
            remedy="Save it again with torch.export.save(program, path), with this version of torch",
        ) from error
    if not (trusted or _plain_examples(program)):
        raise ModelError(
            f"{path} was captured with something other than one tensor for each input",
            remedy="Capture it with tensors only: wrap the module in one whose forward takes plain tensors",
        )
    return program


def _plain_examples(program: Any) -> bool:
    """Are the inputs that a program was captured with tensors by name? Of names within them torch writes source."""
    import torch

    by_place, by_name = program.example_inputs or ((), {})
    tensors = (*by_place, *by_name.values())
    return all(isinstance(value, torch.Tensor) for value in tensors) and all(map(str.isidentifier, by_name))


def _script(path: str, *, trusted: bool) -> Any:
    import torch

    if not trusted:
        _refuse_what_scripts(path)
    try:
        with quietly():  # torch.jit.load is deprecated; the files are still deployed
            module = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError) as error:
        raise _no_script(path, error) from error
    found = [] if trusted else sorted(set(scripts.operators(module)))
    if found:
        raise _refusal(path, found)
    return module


def _refuse_what_scripts(path: str) -> None:
    """Raise unless the source in a TorchScript archive calls nothing but torch's mathematics: loading may run it."""
    try:
        found = scripts.suspicious(path)
    except (
        RuntimeError,
        ValueError,
        TypeError,
        AttributeError,
        SyntaxError,
        RecursionError,
        pickle.UnpicklingError,
        EOFError,
    ) as error:
        raise _no_script(path, error) from error
    if found:
        raise _refusal(path, sorted(found))


def _no_script(path: str, error: Exception) -> ModelError:
    why = f"{path} cannot be loaded as TorchScript: {one_line(error)}"
    return ModelError(why, remedy="Save it again with module.save(path)")


STATE_DICT = "state dict"
"""The form of a file that holds weights alone."""


def _with_weights(path: str, factory: Any) -> tuple[Any, str]:
    """A module from the user's factory with the weights of a file, every one in its place."""
    import torch

    state = _state_dict(_tensors(path), path)
    # A copy: a factory may hand out one and the same module to both sides.
    module = copy.deepcopy(_build(factory))
    name = factory if isinstance(factory, str) else getattr(factory, "__name__", type(factory).__name__)
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"{name} made a {type(module).__name__}, not a torch.nn.Module")
    own = module.state_dict()
    if halved := [name for name in state if state[name].is_complex() and name in own and not own[name].is_complex()]:
        # torch would leave out the imaginary parts.
        raise ModelError(f"the weights of {path} do not fit what {name} builds: {halved[0]!r} is complex there alone")
    try:
        module.load_state_dict(state, strict=True)
    except (RuntimeError, KeyError) as error:
        raise ModelError(
            f"the weights of {path} do not fit what {name} builds: {one_line(error)}",
            remedy="Build the module with the very arguments it was trained with",
        ) from error
    return module, STATE_DICT


def _build(factory: Any) -> Any:
    """What a factory makes: `file.py:build`, a function, a class, or a module that is already there."""
    made = load_named(factory) if isinstance(factory, str) else factory
    if hasattr(made, "forward") and not isinstance(made, type):
        return made
    try:
        return made()
    except LikewiseError:
        raise
    except Exception as error:
        raise ModelError(
            f"the factory {factory} failed: {one_line(error)}", remedy="It has to build the module without arguments"
        ) from error


def _tensors(path: str, trusted: Sequence[str] = ()) -> Any:
    """What is in a file of torch.save, read without running anything in it that is not trusted."""
    import torch

    try:
        with quietly(), torch.serialization.safe_globals(_allowed(path, trusted)), open(path, "rb") as file:
            found = torch.load(file, map_location="cpu", weights_only="*" not in trusted)
            if not zipfile.is_zipfile(path) and file.tell() != os.path.getsize(path):
                raise _told_twice(path, "something stands behind its weights")
            return found
    except LikewiseError:
        raise
    except pickle.UnpicklingError as error:
        found = _globals(path) or _refused_by(error)
        refused = [name for name in found if not pickles.Gate(trusted).trusts(name)]
        if refused:
            raise _refusal(path, refused, module=True) from error
        if found:
            raise ModelError(
                f"{path} keeps torch from allowing {found[0]} and nothing else",
                remedy="Save it again with this version of torch, or allow everything with --trust '*'",
            ) from error
        raise _unreadable(path, error) from error
    except Exception as error:  # what is no checkpoint breaks in many ways
        raise _unreadable(path, error) from error


def _allowed(path: str, trusted: Sequence[str]) -> list[Any]:
    """The code that a file refers to and that is trusted, under the names it has there."""
    gate = pickles.Gate(trusted)
    names = [] if gate.open else [name for name in _globals(path) if gate.trusts(name)]
    try:
        found = [(gate.find(*name.rpartition(".")[::2]), name) for name in names]
    except ModelError as error:
        raise ModelError(f"{path} cannot be loaded: {error.message}", remedy=error.remedy) from error
    if gate.refused:
        raise _refusal(path, sorted(gate.refused), module=True)
    return found


def _unwrapped(found: Any) -> Any:
    """A module that a checkpoint keeps under one of the usual names; else what was found."""
    inside = [found.get(name) for name in WRAPPED_IN] if isinstance(found, Mapping) else []
    return next((entry for entry in inside if hasattr(entry, "forward")), found)


def _globals(path: str) -> list[str]:
    import torch

    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # noqa: BLE001 - the older format has no such list
        return []


def _refused_by(error: Exception) -> list[str]:
    """The name in torch's own refusal."""
    return re.findall(r"GLOBAL ([A-Za-z_][\w.]*)", str(error))[:1]


def _unreadable(path: str, error: Exception) -> ModelError:
    return ModelError(
        f"{path} holds no PyTorch model: it is damaged, or of another kind ({one_line(error, limit=160)})",
        remedy="Save it again with torch.save(model.state_dict(), path) or torch.export.save(program, path)",
    )


def _state_dict(found: Any, path: str) -> Mapping[str, Any]:
    import torch

    def is_state(value: Any) -> bool:
        return isinstance(value, Mapping) and bool(value) and all(isinstance(v, torch.Tensor) for v in value.values())

    if is_state(found):
        return dict(found)
    inside = [name for name in WRAPPED_IN if isinstance(found, Mapping) and is_state(found.get(name))]
    if len(inside) != 1:
        raise ModelError(
            f"{path} holds {_content(found)}, not the weights of one module",
            remedy="Save them by themselves: torch.save(model.state_dict(), path)",
        )
    return dict(found[inside[0]])


def _content(found: Any) -> str:
    if not isinstance(found, Mapping):
        return f"a {type(found).__name__}"
    names = ", ".join(repr(key) for key in list(found)[:6])
    return f"entries called {names}" + (f" and {len(found) - 6} more" if len(found) > 6 else "")
