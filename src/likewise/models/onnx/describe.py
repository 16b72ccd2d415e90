"""What an ONNX file holds and says about itself: inputs, outputs and what they mean, classes, operators, weights.

Large weights are left where they are stored, in files beside it (external data) or in the file itself. Each of them
names the file and the place in it as external data does, by an absolute path: they are mapped where their values are
wanted, and the runtime maps them itself. A copy of such a graph costs nothing, however large the model is.
"""

from __future__ import annotations

import mmap
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array
from likewise.contracts.models import InputSpec, Kind, Label, OutputSpec, Shape
from likewise.errors import ModelError, one_line, require_file
from likewise.models.arrays import kind_of
from likewise.models.onnx.walk import (
    all_nodes,
    every_tensor,
    name_of_one_format,
    require_one_meaning,
    subgraphs,
    upstream,
)

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto


QUANTIZED = (
    *("QLinear", "QAttention", "QGemm", "QMoE", "QEmbed", "MatMulNBits"),
    *("DynamicQuantize", "Quantize", "Dequantize"),
)
"""How operators begin that only a quantised model has; `Integer` stands anywhere in the names of others."""

SHAPE_ONLY = {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "ZipMap", "Normalizer"}
"""Operators that pass values on: what an output means is decided before them."""

PLAIN = {"string", "bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))}
PLAIN |= {"float16", "float32", "float64", "complex64", "complex128"}
"""Elements that need no package but numpy, as numpy calls them."""

CLASSIFIERS = {"LinearClassifier", "TreeEnsembleClassifier", "SVMClassifier"}
DECIDERS = {"ArgMax", "ArgMin", "ArrayFeatureExtractor", "LabelEncoder", "Binarizer"} | CLASSIFIERS


LARGE_FILE = 2**24
"""Bytes of a file from which on its large tensors are left in it."""

LARGE = 2**16
"""Bytes of a tensor from which on it is left in its file: shapes, axes and scales are always at hand."""

EXTERNAL_DATA = "external_data"
"""Where an open model lists the files beside its own that hold its weights."""

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
"""The numbers that the ONNX format gives these fields, each within the one before."""


@cache
def messages() -> Any:
    """The messages of the ONNX format, without the rest of the package `onnx`: that takes longer to import than a small
    model takes to be asked about hundreds of rows. Who imports it later gets the same messages."""
    name = "onnx.onnx_ml_pb2"
    home = find_spec("onnx")
    file = os.path.join(next(iter(home.submodule_search_locations or ()), "") if home else "", "onnx_ml_pb2.py")
    found = spec_from_file_location(name, file) if os.path.isfile(file) else None
    if "onnx" in sys.modules or found is None or found.loader is None:
        import onnx

        return onnx
    # Not among the modules: protobuf has one class for a message, however often its module is run.
    messages = module_from_spec(found)
    found.loader.exec_module(messages)
    return messages


def read(target: object) -> ModelProto:
    """The graph of a path, bytes or a ModelProto; large weights are left in their files."""
    from google.protobuf.message import DecodeError

    proto: ModelProto
    if isinstance(target, messages().ModelProto):
        proto = target
        require_one_meaning(proto, "the graph")
        return proto
    name = name_of_one_format(target)
    try:
        proto = messages().ModelProto.FromString(target) if isinstance(target, bytes) else _stored(Path(name))
    except FileNotFoundError as error:
        raise ModelError(f"there is no file {target}", remedy="Check the path, or export the model first") from error
    except (DecodeError, OSError, ValueError) as error:
        raise ModelError(f"{name} cannot be read as ONNX: {one_line(error)}", remedy="Export it again") from error
    if not proto.ir_version or not proto.graph.output:
        raise ModelError(f"{name} holds no ONNX graph: empty or half written", remedy="Export it again")
    require_one_meaning(proto, name)
    if not isinstance(target, bytes):
        _refuse_escaping_data(proto, Path(name))
        settle(proto, _tensors(proto.graph), Path(name).parent)
    return proto


def copied(proto: ModelProto) -> ModelProto:
    copy = type(proto)()
    copy.CopyFrom(proto)
    return copy


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))
        for inner in subgraphs(node):
            yield from _tensors(inner)


def file_bytes(path: Path) -> int:
    """The size of a file and of the weights that are stored beside it."""
    return sum(file.stat().st_size for file in (path, *(path.parent / name for name in beside(path))))


def inputs(proto: ModelProto) -> tuple[InputSpec, ...]:
    """The inputs a caller must give; a constant that may be overridden is not one."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    found = [value for value in proto.graph.input if value.name not in constants]
    return tuple(InputSpec(value.name, *_dtype_and_shape(value)) for value in found)


def outputs(proto: ModelProto) -> tuple[OutputSpec, ...]:
    """The outputs with their meaning: from the operators that make them, then from their names."""
    producers = {name: node for node in proto.graph.node for name in node.output}
    specs = []
    for value in proto.graph.output:
        dtype, shape = _dtype_and_shape(value)
        kind = _kind(value.name, dtype, producers)
        classes = None
        one_answer_a_row = shape is None or len(shape) <= (1 if kind is Kind.LABEL else 2) or shape[-1] == 1
        if kind in (Kind.LABEL, Kind.PROBABILITY, Kind.SCORE) and one_answer_a_row:
            classes = _classes(value.name, producers, proto.graph)
        if kind is not Kind.LABEL and classes and shape and shape[-1] not in (None, 1, len(classes)):
            classes = None
        # torch calls a node after the value it makes; a name that a person gave is that of the value alone.
        made = value.name in producers and producers[value.name].name == f"node_{value.name}"
        specs.append(OutputSpec(value.name, kind, dtype, shape, classes, unnamed=made))
    return tuple(_with_classes_of_label(spec, specs) for spec in specs)


def _with_classes_of_label(spec: OutputSpec, specs: list[OutputSpec]) -> OutputSpec:
    """Columns that the graph does not name are in the order of the classes its label is picked from."""
    named = [other.classes for other in specs if other.kind is Kind.LABEL and other.classes]
    shape = spec.shape or ()
    scored = spec.kind in (Kind.PROBABILITY, Kind.SCORE) and spec.classes is None and len(shape) == 2
    if not scored or len(named) != 1 or shape[-1] != len(named[0]):
        return spec
    return replace(spec, classes=named[0])


RANGES = "pkg.torch.export.ExportedProgram.range_constraints"
"""Where torch's exporter writes for which lengths it captured a graph."""


def details(proto: ModelProto) -> dict[str, Any]:
    """Facts for the record and for `likewise inspect`."""
    operators = Counter(node.op_type for node in all_nodes(proto.graph))
    return {
        "operators": dict(sorted(operators.items(), key=lambda entry: (-entry[1], entry[0]))),
        "nodes": operators.total(),
        "quantized_nodes": sum(n for name, n in operators.items() if name.startswith(QUANTIZED) or "Integer" in name),
        "initializers": len(proto.graph.initializer),
        "parameters": sum(prod(tensor.dims) for tensor in proto.graph.initializer),
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import},
        "ir_version": proto.ir_version,
        "producer": f"{proto.producer_name} {proto.producer_version}".strip(),
        "metadata": {entry.key: entry.value[:500] for entry in proto.metadata_props[:50]},
        **({"captured_for": ranges} if (ranges := _captured_for(proto)) else {}),
    }


def _captured_for(proto: ModelProto) -> dict[str, list[int | None]]:
    """The least and the most that torch captured each free axis for, by symbol; no end is None."""
    told = next((entry.value for entry in proto.graph.metadata_props if entry.key == RANGES), "")
    found = re.findall(r"(\w+): VR\[(\d+), (\w+)\]", told)
    return {name: [int(least), int(most) if most.isdigit() else None] for name, least, most in found}


def _kind(name: str, dtype: str | None, producers: Mapping[str, NodeProto]) -> Kind:
    if (named := kind_of(name, dtype)) is not None:
        return named
    if dtype is not None and dtype.startswith(("int", "uint", "bool")):
        makers = {node.op_type for node in upstream(name, producers, limit=6)}
        return Kind.LABEL if makers & DECIDERS else Kind.VALUE
    node = producers.get(name)
    while node is not None and node.op_type in SHAPE_ONLY:
        if node.op_type == "ZipMap":
            return Kind.PROBABILITY
        node = producers.get(next(iter(node.input), ""))
    if node is not None and node.op_type in ("Softmax", "Sigmoid"):
        return Kind.PROBABILITY
    if node is not None and node.op_type in CLASSIFIERS:
        transform = next((a.s for a in node.attribute if a.name == "post_transform"), b"NONE")
        return Kind.SCORE if transform == b"NONE" else Kind.PROBABILITY
    return Kind.VALUE


def _classes(name: str, producers: Mapping[str, NodeProto], graph: GraphProto) -> tuple[Label, ...] | None:
    """The class labels nearest upstream of an output: what its columns or values stand for."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            constants.update((name, a.t) for name in node.output for a in node.attribute if a.name == "value")
    for node in upstream(name, producers, limit=40):
        for attribute in node.attribute:
            if attribute.name.startswith("classlabels"):
                if attribute.ints:
                    return tuple(int(entry) for entry in attribute.ints)
                if attribute.strings:
                    return tuple(entry.decode() for entry in attribute.strings)
        if node.op_type == "ArrayFeatureExtractor" and (held := constants.get(next(iter(node.input), ""))):
            values = array(held).ravel().tolist()
            return tuple(entry.decode() if isinstance(entry, bytes) else entry for entry in values)
    return None


def _dtype_and_shape(value: ValueInfoProto) -> tuple[str | None, Shape | None]:
    kind = value.type
    if kind.HasField("sequence_type"):
        kind = kind.sequence_type.elem_type
        if kind.HasField("map_type"):
            return "float32", None
        return (_dtype(kind.tensor_type.elem_type), None) if kind.HasField("tensor_type") else (None, None)
    if not kind.HasField("tensor_type"):
        return None, None
    shape: Shape | None = None
    if kind.tensor_type.HasField("shape"):
        # A size below zero is how PaddlePaddle writes one that is left open, as the runtime reads it too.
        shape = tuple(
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else (dim.dim_param or None)
            for dim in kind.tensor_type.shape.dim
        )
    return _dtype(kind.tensor_type.elem_type), shape


def _dtype(element: int) -> str | None:
    """What numpy calls an element, with the types that only machine learning has where the package of these is."""
    try:
        name = str(messages().TensorProto.DataType.Name(element)).lower()
        if (plain := {"float": "float32", "double": "float64"}.get(name, name)) in PLAIN:
            return plain
        from onnx import helper

        return str(helper.tensor_dtype_to_np_dtype(element))
    except (KeyError, TypeError, ValueError):
        return None


def _stored(path: Path) -> ModelProto:
    """A graph as it is stored; if the file is large, with its large tensors left in it."""
    require_file(path, ModelError)
    proto: ModelProto
    if path.stat().st_size >= LARGE_FILE:
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                parts = _without_data(content, 0, len(content), [GRAPH, INITIALIZER, RAW_DATA], path)
                proto = messages().ModelProto.FromString(b"".join(parts))
                return proto
        except (ValueError, IndexError):
            pass  # not the format: let protobuf say what is wrong with it
    proto = messages().ModelProto.FromString(path.read_bytes())
    return proto


def _locations(tensors: Iterable[TensorProto]) -> Iterator[tuple[TensorProto, Any]]:
    """Where tensors say that their values are, in entries that may be changed."""
    for tensor in tensors:
        yield from ((tensor, entry) for entry in tensor.external_data if entry.key == "location")


def _refuse_escaping_data(proto: ModelProto, path: Path) -> None:
    """External weights may not lie outside the model's folder."""
    folder = path.resolve().parent
    for tensor, entry in _locations(every_tensor(proto)):
        place = (folder / entry.value).resolve()
        kept = f"{path} keeps tensor {tensor.name!r} in {entry.value!r}"
        if Path(entry.value).is_absolute() or not place.is_relative_to(folder):
            remedy = "Save the model again with its weights beside it"
            raise ModelError(f"{kept}, outside its own folder", remedy=remedy)
        if not place.is_file():
            raise ModelError(f"{kept}, which does not exist", remedy="Copy the weights file next to the model")


def beside(path: Path) -> list[str]:
    """The files that hold tensors of a graph, by their names from its folder on; the graph's own is not among them."""
    places = {str(entry.value) for _, entry in _locations(every_tensor(_stored(path)))}
    return sorted(name for name in places if not path.samefile(path.parent / name))


def _without_data(content: mmap.mmap, at: int, end: int, fields: list[int], path: Path) -> Iterator[bytes]:
    """A message of the ONNX format in pieces, with a note in the place of what is large on this path of fields.

    The note comes last, as the last word counts: a tensor may say behind its values that they are in no other file.
    """
    note = b""
    while at < end:
        begin = at
        key, at = _number(content, at)
        size = {0: 0, 1: 8, 5: 4}.get(key & 7, -1)
        if key & 7 == 0:
            _, at = _number(content, at)
        elif key & 7 == 2:
            size, at = _number(content, at)
        if size < 0 or at + size > end:
            raise ValueError("not a protobuf message")
        last = key == fields[0] << 3 | 2 and len(fields) == 1
        note = b"" if last else note
        if key != fields[0] << 3 | 2 or size < LARGE:
            yield content[begin : at + size]
        elif len(fields) > 1:
            inner = b"".join(_without_data(content, at, at + size, fields[1:], path))
            yield _written(key) + _written(len(inner)) + inner
        else:
            note = _located(Path(path.name), at, size).SerializeToString()
        at += size
    yield note


def _number(content: mmap.mmap, at: int) -> tuple[int, int]:
    """A whole number as protobuf writes it, and where the next thing stands."""
    found = shift = 0
    while True:
        byte = content[at]
        found |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return found, at


def _written(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes((*parts, number))


def _located(path: Path, offset: int, size: int) -> TensorProto:
    """A tensor that only says where its values are."""
    tensor: TensorProto = messages().TensorProto(data_location=messages().TensorProto.EXTERNAL)
    for key, value in {"location": path, "offset": offset, "length": size}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def settle(proto: ModelProto, tensors: Iterable[TensorProto], folder: Path) -> None:
    """Name the files of large initializers by absolute paths, and read all other tensors, which come after them."""
    for number, tensor in enumerate(tensors):
        if not elsewhere(tensor):
            continue
        for _, entry in _locations([tensor]):
            entry.value = os.path.join(os.path.abspath(folder), entry.value)
        if number >= len(proto.graph.initializer) or _spread(tensor) < LARGE:
            take_in(tensor)


def take_in(tensor: TensorProto) -> None:
    """Put the values of a tensor that are stored elsewhere into it."""
    if not elsewhere(tensor):
        return
    path, offset, size = _place(tensor)
    try:
        with path.open("rb") as file:
            file.seek(offset)
            tensor.raw_data = file.read(size)
    except Exception as error:
        raise _unreadable(path, error) from error
    if len(tensor.raw_data) != size:
        raise ModelError(f"{path} ends before tensor {tensor.name!r} does", remedy="Export or copy it again")
    del tensor.external_data[:]
    tensor.ClearField("data_location")


def whole(proto: ModelProto) -> ModelProto:
    """A copy of a graph that holds all its weights itself."""
    copy = copied(proto)
    for tensor in copy.graph.initializer:
        take_in(tensor)
    return copy


def array(tensor: TensorProto) -> Array:
    """The values of a tensor; those that are left in a file are mapped, not read."""
    import numpy as np
    from onnx import helper, numpy_helper

    if not elsewhere(tensor):
        return numpy_helper.to_array(tensor)
    path, offset, _ = _place(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    try:
        return np.memmap(path, dtype, "r", offset, tuple(tensor.dims))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def tensor_of(values: Array, name: str) -> TensorProto:
    """A tensor with these values; those of a whole tensor that is left in a file stay there."""
    import numpy as np
    from onnx import helper, numpy_helper

    if not _mapped_whole(values):
        return numpy_helper.from_array(np.asarray(values), name)
    mapped: Any = values
    tensor = _located(Path(mapped.filename), mapped.offset, values.nbytes)
    tensor.name, tensor.data_type = name, helper.np_dtype_to_tensor_dtype(values.dtype)
    tensor.dims.extend(values.shape)
    return tensor


def release(values: Array) -> None:
    """Give back the memory that a mapped tensor has been read into; it can be read again."""
    import numpy as np

    held: Any = values
    while isinstance(held, np.ndarray) and not _mapped_whole(held):
        held = held.base
    if _mapped_whole(held) and hasattr(mmap, "MADV_DONTNEED"):
        held.base.madvise(mmap.MADV_DONTNEED)


def serialised(proto: ModelProto) -> tuple[bytes, str]:
    """A graph as ONNX Runtime takes it, and the folder from which on its tensors in files are named; empty if none."""
    copy = copied(proto) if any(map(elsewhere, proto.graph.initializer)) else proto
    places = [entry for _, entry in _locations(filter(elsewhere, copy.graph.initializer))]
    if not places or not all(os.path.isabs(entry.value) for entry in places):
        return bytes(proto.SerializeToString()), ""
    folder = os.path.commonpath([os.path.dirname(entry.value) for entry in places])
    for entry in places:
        entry.value = os.path.relpath(entry.value, folder)
    return bytes(copy.SerializeToString()), folder


def size(proto: ModelProto) -> int:
    """The bytes of a graph and of the tensors that are left in files."""
    return int(proto.ByteSize()) + sum(_spread(tensor) for tensor in proto.graph.initializer if elsewhere(tensor))


def _unreadable(path: Path, error: Exception) -> ModelError:
    return ModelError(f"the weights in {path} cannot be read: {one_line(error)}", remedy="Export it again")


def elsewhere(tensor: TensorProto) -> bool:
    """Is a tensor left in a file?"""
    return bool(tensor.data_location == tensor.EXTERNAL)


def _spread(tensor: TensorProto) -> int:
    """The bytes of a tensor as numpy has it; none if a byte holds several of its values, or if it is text."""
    import numpy as np
    from onnx import TensorProto, helper

    packed = {"INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1", "STRING", "UNDEFINED"}
    if TensorProto.DataType.Name(tensor.data_type) in packed:
        return 0
    return int(prod(tensor.dims)) * np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize


def _place(tensor: TensorProto) -> tuple[Path, int, int]:
    """The file of a tensor, where in it the values begin, and their bytes."""
    told = {entry.key: entry.value for entry in tensor.external_data}
    path, offset = Path(told["location"]), int(told.get("offset") or 0)
    return path, offset, int(told.get("length") or 0) or path.stat().st_size - offset


def _mapped_whole(values: Any) -> bool:
    """Is this one of our own: all of a tensor, mapped to be read only?"""
    import numpy as np

    holder: Any = getattr(values, "base", None)
    return isinstance(values, np.memmap) and isinstance(holder, mmap.mmap) and values.mode == "r"
