"""What an ONNX file says about itself: inputs, outputs and what they mean, classes, operators."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.contracts.models import InputSpec, Kind, Label, OutputSpec, Shape
from likewise.errors import ModelError, one_line
from likewise.models.arrays import kind_of
from likewise.models.onnx import external_data

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto


QUANTIZED = re.compile(
    r"^(QLinear|QAttention|QGemm|MatMulNBits|QMoE|DynamicQuantize|Quantize|Dequantize)|Integer|^QEmbed"
)
"""Operators that only a quantised model has."""

SHAPE_ONLY = {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "ZipMap", "Normalizer"}
"""Operators that pass values on: what an output means is decided before them."""

PLAIN = {"string", "bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))}
PLAIN |= {"float16", "float32", "float64", "complex64", "complex128"}
"""Elements that need no package but numpy, as numpy calls them."""

CLASSIFIERS = {"LinearClassifier", "TreeEnsembleClassifier", "SVMClassifier"}
DECIDERS = {"ArgMax", "ArgMin", "ArrayFeatureExtractor", "LabelEncoder", "Binarizer"} | CLASSIFIERS


def read(target: object) -> ModelProto:
    """The graph of a path, bytes or a ModelProto; large weights are left in their files."""
    from google.protobuf.message import DecodeError

    proto: ModelProto
    if isinstance(target, external_data.messages().ModelProto):
        proto = target
        return proto
    name = "the bytes" if isinstance(target, bytes) else str(target)
    try:
        if isinstance(target, bytes):
            proto = external_data.parsed(target)
        else:
            assert isinstance(target, str | PathLike)
            proto = external_data.read(Path(target))
    except FileNotFoundError as error:
        raise ModelError(f"there is no file {target}", remedy="Check the path, or export the model first") from error
    except (DecodeError, OSError, ValueError) as error:
        raise ModelError(f"{name} cannot be read as ONNX: {one_line(error)}", remedy="Export it again") from error
    if not proto.ir_version or not proto.graph.output:
        raise ModelError(f"{name} holds no ONNX graph: empty or half written", remedy="Export it again")
    if not isinstance(target, bytes):
        path = Path(str(target))
        _refuse_escaping_data(proto, path)
        external_data.settle(proto, _tensors(proto.graph), path.parent)
    return proto


def file_bytes(path: Path) -> int:
    """The size of a file and of the weights that are stored beside it."""
    return sum(file.stat().st_size for file in (path, *(path.parent / name for name in external_data.beside(path))))


def _refuse_escaping_data(proto: ModelProto, path: Path) -> None:
    """External weights may not lie outside the model's folder."""
    folder = path.resolve().parent
    for tensor in _tensors(proto.graph):
        for entry in tensor.external_data:
            if entry.key != "location":
                continue
            place = (folder / entry.value).resolve()
            if Path(entry.value).is_absolute() or not place.is_relative_to(folder):
                raise ModelError(
                    f"{path} keeps tensor {tensor.name!r} in {entry.value!r}, outside its own folder",
                    remedy="Save the model again with its weights beside it",
                )
            if not place.is_file():
                raise ModelError(
                    f"{path} keeps tensor {tensor.name!r} in {entry.value!r}, which does not exist",
                    remedy="Copy the weights file next to the model",
                )


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
    operators = Counter(node.op_type for node in _nodes(proto.graph))
    return {
        "operators": dict(sorted(operators.items(), key=lambda entry: (-entry[1], entry[0]))),
        "nodes": operators.total(),
        "quantized_nodes": sum(count for name, count in operators.items() if QUANTIZED.search(name)),
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
        makers = {node.op_type for node in _upstream(name, producers, limit=6)}
        return Kind.LABEL if makers & DECIDERS else Kind.VALUE
    node = producers.get(name)
    while node is not None and node.op_type in SHAPE_ONLY:
        if node.op_type == "ZipMap":
            return Kind.PROBABILITY
        node = producers.get(node.input[0])
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
            constants.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    for node in _upstream(name, producers, limit=40):
        for attribute in node.attribute:
            if attribute.name.startswith("classlabels"):
                if attribute.ints:
                    return tuple(int(entry) for entry in attribute.ints)
                if attribute.strings:
                    return tuple(entry.decode() for entry in attribute.strings)
        if node.op_type == "ArrayFeatureExtractor" and node.input[0] in constants:
            values = external_data.array(constants[node.input[0]]).ravel().tolist()
            return tuple(entry.decode() if isinstance(entry, bytes) else entry for entry in values)
    return None


def _upstream(name: str, producers: Mapping[str, NodeProto], *, limit: int) -> Iterator[NodeProto]:
    """The nodes an output comes from, nearest first."""
    queue = deque([name])
    seen: set[int] = set()
    while queue and len(seen) < limit:
        node = producers.get(queue.popleft())
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        queue.extend(node.input)


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
        shape = tuple(
            dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None)
            for dim in kind.tensor_type.shape.dim
        )
    return _dtype(kind.tensor_type.elem_type), shape


def _dtype(element: int) -> str | None:
    """What numpy calls an element, with the types that only machine learning has where the package of these is."""
    try:
        name = str(external_data.messages().TensorProto.DataType.Name(element)).lower()
        if (plain := {"float": "float32", "double": "float64"}.get(name, name)) in PLAIN:
            return plain
        from onnx import helper

        return str(helper.tensor_dtype_to_np_dtype(element))
    except (KeyError, TypeError, ValueError):
        return None


def _tensors(graph: GraphProto) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
