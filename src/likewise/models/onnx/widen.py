"""The same ONNX graph computed in a wider floating-point type.

Stored numbers keep their values; only the arithmetic changes. An operator that has no kernel for the
wider type stays as it is between two casts, and so does any node one wants to leave narrow: what that
one node loses is then all that is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.models.onnx import edits
from likewise.models.onnx.open import plain_session

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto


HALF, SINGLE, DOUBLE, BRAIN = 10, 1, 11, 16
"""Numbers of ONNX for float16, float32, float64 and bfloat16."""

SINGLE_ONLY = frozenset(
    {
        "Scaler",
        "Normalizer",
        "LinearRegressor",
        "LinearClassifier",
        "SVMRegressor",
        "SVMClassifier",
        "TreeEnsembleRegressor",
        "TreeEnsembleClassifier",
        "FeatureVectorizer",
        "Imputer",
        "Binarizer",
        "OneHotEncoder",
        "ZipMap",
        "LabelEncoder",
        "DictVectorizer",
        "TfIdfVectorizer",
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
    }
)
"""Operators whose outputs are float32 by their definition."""

TYPED = ("to", "dtype")
"""Attributes that name an element type."""

ATTEMPTS = 24
_REFUSED = (
    re.compile(r"Could not find an implementation for (\w+)\("),
    re.compile(r"of operator \((\w+)\) in node"),
    re.compile(r"of Optype \((\w+)\)"),
    re.compile(r"of node \(([^)]*)\) does not match"),
    re.compile(r"\(node_def\)? ?'?([\w/]+)'?"),
)


@dataclass(frozen=True, slots=True)
class Widening:
    """From which types to which, in a graph whose tensor types are known.

    `narrow_ops` and `narrow_nodes` stay as they are. `inputs`: the inputs of the model are widened too;
    otherwise they are given as before, with what the narrow type leaves of them.
    """

    types: Mapping[str, int]
    kinds: frozenset[int] = frozenset({SINGLE, HALF, BRAIN})
    to: int = DOUBLE
    narrow_ops: frozenset[str] = SINGLE_ONLY
    narrow_nodes: frozenset[str] = frozenset()
    inputs: bool = False
    outputs: frozenset[str] = field(default_factory=frozenset)

    def concerns(self, name: str) -> bool:
        return self.types.get(name) in self.kinds


def widened(proto: ModelProto, plan: Widening) -> ModelProto:
    """The graph in the wider type. `proto` has unique node names and no functions of its own."""
    from onnx import helper

    copy = edits.copied(proto)
    graph = copy.graph
    del graph.value_info[:]
    stored = {tensor.name for tensor in graph.initializer}
    given = [value for value in graph.input if value.name not in stored and plan.concerns(value.name)]
    _widen_stored(graph, plan)
    nodes: list[NodeProto] = []
    renamed: dict[str, str] = {}
    for value in graph.input:
        if value.name in stored or plan.inputs:
            _retype(value, plan)
    if not plan.inputs:
        for value in given:
            renamed[value.name] = f"{value.name}__wide"
            nodes.append(helper.make_node("Cast", [value.name], [renamed[value.name]], to=plan.to))
        edits.replace_reads(graph, renamed)
    for node in graph.node:
        if node.op_type in plan.narrow_ops or node.name in plan.narrow_nodes:
            original = next(other for other in proto.graph.node if other.name == node.name)
            nodes.extend(_narrow(original, plan, renamed))
        else:
            _widen_node(node, plan)
            nodes.append(node)
    edits.replace_nodes(graph, nodes)
    for value in graph.output:
        _retype(value, plan)
    return copy


def runnable(proto: ModelProto, plan: Widening) -> tuple[ModelProto, Widening] | None:
    """The wider graph with as few operators left narrow as the runtime asks for; None if it takes none."""
    narrow = set(plan.narrow_ops)
    for _ in range(ATTEMPTS):
        tried = replace(plan, narrow_ops=frozenset(narrow))
        try:
            wide = widened(proto, tried)
            plain_session(wide)
        except Exception as error:  # noqa: BLE001 - the runtime raises many types, and says in words what it lacks
            more = set(_refused_operators(str(error), proto)) - narrow
            if not more:
                return None
            narrow |= more
            continue
        return wide, tried
    return None


def computing_nodes(proto: ModelProto, plan: Widening) -> list[NodeProto]:
    """The nodes that compute in one of the narrow types: moving and converting values aside."""
    moving = {
        "Cast", "CastLike", "Constant", "ConstantOfShape", "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze",
        "Flatten", "Concat", "Split", "Slice", "Gather", "GatherND", "GatherElements", "Expand", "Tile", "Shape",
        "ArrayFeatureExtractor", "ZipMap", "Pad", "Where", "Max", "Min", "Relu", "MaxPool", "ArgMax", "ArgMin",
    }  # fmt: skip
    return [
        node
        for node in proto.graph.node
        if node.op_type not in moving and any(plan.concerns(name) for name in node.output)
    ]


def _refused_operators(message: str, proto: ModelProto) -> Iterator[str]:
    types = {node.op_type for node in edits.all_nodes(proto.graph)}
    named = {node.name: node.op_type for node in edits.all_nodes(proto.graph)}
    for pattern in _REFUSED:
        for found in pattern.findall(message):
            if found in types:
                yield found
            elif found in named:
                yield named[found]


def _widen_stored(graph: GraphProto, plan: Widening) -> None:
    for tensor in graph.initializer:
        if tensor.data_type in plan.kinds:
            tensor.CopyFrom(_wider(tensor, plan))


def _wider(tensor: TensorProto, plan: Widening) -> TensorProto:
    from onnx import helper, numpy_helper

    array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(plan.to))
    return numpy_helper.from_array(array, tensor.name)


def _retype(value: Any, plan: Widening) -> None:
    if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type in plan.kinds:
        value.type.tensor_type.elem_type = plan.to
    if value.type.HasField("sequence_type"):
        element = value.type.sequence_type.elem_type
        if element.HasField("tensor_type") and element.tensor_type.elem_type in plan.kinds:
            element.tensor_type.elem_type = plan.to


def _widen_node(node: NodeProto, plan: Widening) -> None:
    from onnx import helper, numpy_helper

    dtype = helper.tensor_dtype_to_np_dtype(plan.to)
    for attribute in node.attribute:
        if attribute.name in TYPED and attribute.i in plan.kinds:
            attribute.i = plan.to
        if attribute.HasField("t") and attribute.t.data_type in plan.kinds:
            attribute.t.CopyFrom(_wider(attribute.t, plan))
    if SINGLE in plan.kinds:
        if node.op_type == "Constant":
            for name in ("value_float", "value_floats"):
                if (number := edits.attribute(node, name)) is not None:
                    edits.set_attribute(node, name, None)
                    edits.set_attribute(node, "value", numpy_helper.from_array(np.array(number, dtype=dtype)))
        if node.op_type == "ConstantOfShape" and not node.attribute:
            edits.set_attribute(node, "value", numpy_helper.from_array(np.zeros(1, dtype=dtype)))
        if node.op_type in ("RandomNormal", "RandomUniform") and edits.attribute(node, "dtype") is None:
            edits.set_attribute(node, "dtype", plan.to)
    for inner in edits.subgraphs(node):
        _widen_stored(inner, plan)
        del inner.value_info[:]
        for value in (*inner.input, *inner.output):
            _retype(value, plan)
        for each in inner.node:
            _widen_node(each, plan)


def _narrow(node: NodeProto, plan: Widening, renamed: Mapping[str, str]) -> Iterator[NodeProto]:
    """A node as it was, its inputs cast down to what they were and its outputs up again."""
    from onnx import helper

    copy = type(node).FromString(node.SerializeToString())
    down: dict[str, str] = {}
    for name in dict.fromkeys(name for name in edits.reads(node) if plan.concerns(name)):
        down[name] = f"{name}__for__{node.name}"
        yield helper.make_node("Cast", [renamed.get(name, name)], [down[name]], to=plan.types[name])
    for index, name in enumerate(copy.input):
        copy.input[index] = down.get(name, name)
    for inner in edits.subgraphs(copy):
        edits.replace_reads(inner, down)
    up = [(index, name) for index, name in enumerate(node.output) if name and plan.concerns(name)]
    for index, name in up:
        copy.output[index] = f"{name}__narrow"
    yield copy
    for _, name in up:
        yield helper.make_node("Cast", [f"{name}__narrow"], [name], to=plan.to)
