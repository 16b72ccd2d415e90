"""The same ONNX graph in wider numbers: quantised integers as floats, floats as doubles.

Operators on integers become operators on floats between DequantizeLinear and QuantizeLinear. All quantised graphs come
to one form this way: where numbers become integers stands a QuantizeLinear (or DynamicQuantizeLinear), and everything
else is arithmetic on floats.

Of floats, stored numbers keep their values; only the arithmetic changes. An operator that has no kernel for the wider
type stays as it is between two casts, and so does any node one wants to leave narrow: what that one node loses is then
all that is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.values import dataclass
from likewise.models.onnx import edits, external_data
from likewise.models.onnx.open import plain_session

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto


UNARY = {
    "QLinearSigmoid": "Sigmoid",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearAveragePool": "AveragePool",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearSoftmax": "Softmax",
    "QLinearReduceMean": "ReduceMean",
}
BIAS = "__bias"
"""How the names of biases end that were integers before."""

STORED = "__stored"
"""How the names of narrow numbers in files end that are widened before they are used."""

BINARY = {
    "QLinearAdd": "Add",
    "QLinearMul": "Mul",
    "QLinearMatMul": "MatMul",
    "QLinearConv": "Conv",
    "QGemm": "Gemm",
}

Writer = Callable[["NodeProto", "GraphProto", dict[str, Array]], Iterator["NodeProto"]]


def written_out(proto: ModelProto) -> ModelProto:
    """The graph with operators on integers as operators on floats; those that are not known stay."""
    copy = edits.copied(proto)
    del copy.graph.value_info[:]
    nodes: list[NodeProto] = []
    stored = edits.constants(copy.graph)
    for node in copy.graph.node:
        writer = WRITERS.get(node.op_type)
        nodes.extend([node] if writer is None else writer(node, copy.graph, stored))
    edits.replace_nodes(copy.graph, nodes)
    if not any(entry.domain == "" for entry in copy.opset_import):
        copy.opset_import.add().version = 17
    return copy


def _dequantize(node: NodeProto, data: str, scale: str, zero: str, part: str, axis: int | None = None) -> NodeProto:
    made = edits.make_node(
        "DequantizeLinear",
        [name for name in (data, scale, zero) if name],
        [f"{node.output[0]}__{part}"],
        name=f"{node.name}__{part}",
    )
    if axis is not None:
        edits.set_attribute(made, "axis", axis)
    return made


def _requantised(node: NodeProto, plain: NodeProto, scale: str, zero: str) -> Iterator[NodeProto]:
    """The float operator, and the integers that the integer one gave; where it gave floats, these."""
    if not scale:
        plain.output[0] = node.output[0]
    yield plain
    if scale:
        inputs = [name for name in (plain.output[0], scale, zero) if name]
        yield edits.make_node("QuantizeLinear", inputs, [node.output[0]], name=f"{node.name}__quantize")


def _biased(node: NodeProto, product: NodeProto, bias: str) -> Iterator[NodeProto]:
    """A product, with the bias added to it where there is one."""
    if not bias:
        product.output[0] = node.output[0]
    yield product
    if bias:
        yield edits.make_node("Add", [product.output[0], bias], [node.output[0]], name=f"{node.name}__add")


def _plain(node: NodeProto, operator: str, inputs: list[str], *, leave: tuple[str, ...] = ()) -> NodeProto:
    """The float operator in the place of an integer one, under its name."""
    made = edits.make_node(operator, inputs, [f"{node.output[0]}__float"], name=node.name)
    made.attribute.extend(entry for entry in node.attribute if entry.name not in leave)
    made.metadata_props.extend(node.metadata_props)
    return made


def _given(node: NodeProto, index: int) -> str:
    return node.input[index] if index < len(node.input) else ""


def _per_channel(stored: dict[str, Array], scale: str, axis: int) -> int | None:
    return axis if scale in stored and stored[scale].size > 1 else None


def _binary(node: NodeProto, graph: GraphProto, stored: dict[str, Array]) -> Iterator[NodeProto]:
    a, a_scale, a_zero, b, b_scale, b_zero = (_given(node, index) for index in range(6))
    places = (6, 7, 8) if node.op_type == "QGemm" else (8, 6, 7)
    bias, y_scale, y_zero = (_given(node, place) for place in places)
    if node.op_type == "QGemm":
        channel = 0 if edits.attribute(node, "transB", 0) else 1
    else:
        channel = 0 if node.op_type == "QLinearConv" or b not in stored else max(stored[b].ndim - 1, 0)
    first = _dequantize(node, a, a_scale, a_zero, "a")
    second = _dequantize(node, b, b_scale, b_zero, "b", _per_channel(stored, b_scale, channel))
    yield from (first, second)
    inputs = [first.output[0], second.output[0]]
    if bias:
        inputs.append(_bias(node, graph, stored, bias, a_scale, b_scale))
    yield from _requantised(node, _plain(node, BINARY[node.op_type], inputs), y_scale, y_zero)


def _bias(node: NodeProto, graph: GraphProto, stored: dict[str, Array], bias: str, a_scale: str, b_scale: str) -> str:
    """A bias in integers counts in products of both scales."""
    if not {bias, a_scale, b_scale} <= stored.keys():
        return ""
    values = stored[bias].astype(np.float64) * stored[a_scale].astype(np.float64) * stored[b_scale].astype(np.float64)
    edits.set_constant(graph, f"{node.output[0]}{BIAS}", values.astype(np.float32))
    return f"{node.output[0]}{BIAS}"


def _unary(node: NodeProto, _: GraphProto, __: dict[str, Array]) -> Iterator[NodeProto]:
    first = _dequantize(node, _given(node, 0), _given(node, 1), _given(node, 2), "x")
    yield first
    plain = _plain(node, UNARY[node.op_type], [first.output[0]], leave=("opset", "channels_last"))
    yield from _requantised(node, plain, _given(node, 3), _given(node, 4))


def _concat(node: NodeProto, _: GraphProto, __: dict[str, Array]) -> Iterator[NodeProto]:
    floats = []
    for number, index in enumerate(range(2, len(node.input), 3)):
        data, scale, zero = (_given(node, index + offset) for offset in range(3))
        part = _dequantize(node, data, scale, zero, f"x{number}")
        floats.append(part.output[0])
        yield part
    yield from _requantised(node, _plain(node, "Concat", floats), node.input[0], node.input[1])


def _dynamic_matmul(node: NodeProto, _: GraphProto, stored: dict[str, Array]) -> Iterator[NodeProto]:
    """The activations are quantised and multiplied in one operator: written out they are quantised before."""
    a, b, b_scale, b_zero, bias = (_given(node, index) for index in range(5))
    out = node.output[0]
    yield edits.make_node(
        "DynamicQuantizeLinear", [a], [f"{out}__q", f"{out}__scale", f"{out}__zero"], name=f"{node.name}__quantize"
    )
    first = _dequantize(node, f"{out}__q", f"{out}__scale", f"{out}__zero", "a")
    last = max(stored[b].ndim - 1, 0) if b in stored else 1
    second = _dequantize(node, b, b_scale, b_zero, "b", _per_channel(stored, b_scale, last))
    yield from (first, second)
    yield from _biased(node, _plain(node, "MatMul", [first.output[0], second.output[0]]), bias)


def _few_bits(node: NodeProto, graph: GraphProto, stored: dict[str, Array]) -> Iterator[NodeProto]:
    """Weights packed into a few bits, block by block."""
    found = packed_weights(node, stored)
    if found is None:
        yield node
        return
    name = f"{node.output[0]}__weights"
    edits.set_constant(graph, name, found[0].astype("float32"))
    product = _plain(node, "MatMul", [node.input[0], name], leave=tuple(entry.name for entry in node.attribute))
    yield from _biased(node, product, _given(node, 5))


def packed_weights(node: NodeProto, stored: dict[str, Array]) -> tuple[Array, Array] | None:
    """What a MatMulNBits multiplies with, and half the distance of the values it can hold; None if not known."""
    packed, scales, zeros = (stored.get(_given(node, place)) for place in (1, 2, 3))
    width, size, bits = (edits.attribute(node, name) for name in ("N", "K", "bits"))
    block = edits.attribute(node, "block_size")
    if packed is None or scales is None or bits not in (2, 4, 8) or (_given(node, 3) and zeros is None):
        return None
    if zeros is not None and zeros.dtype != np.uint8:
        return None
    blocks = -(-size // block)
    numbers = _unpacked(packed.reshape(width, blocks, -1), bits)[..., :block].astype(np.float64)
    zero = (
        np.full((width, blocks, 1), float(1 << (bits - 1)))
        if zeros is None
        else _unpacked(zeros.reshape(width, -1), bits)[:, :blocks, None].astype(np.float64)
    )
    steps = scales.reshape(width, blocks, 1).astype(np.float64)
    weights = (numbers - zero) * steps
    half = np.broadcast_to(steps / 2, weights.shape)
    return tuple(np.ascontiguousarray(each.reshape(width, -1)[:, :size].T) for each in (weights, half))  # type: ignore[return-value]


def _unpacked(packed: Array, bits: int) -> Array:
    """Small integers from the bytes they are packed in, the lowest bits first."""
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], -1)


def _lstm(node: NodeProto, graph: GraphProto, stored: dict[str, Array]) -> Iterator[NodeProto]:
    made = _plain(node, "LSTM", list(node.input[:8]))
    for index, scale, zero in ((1, 8, 9), (2, 10, 11)):
        weights, factor, offset = (stored.get(_given(node, place)) for place in (index, scale, zero))
        if weights is None or factor is None or offset is None:
            yield node
            return
        shape = (weights.shape[0], 1, -1)
        floats = (weights.astype(np.float64) - offset.reshape(shape)) * factor.reshape(shape)
        name = f"{node.output[0]}__weights{index}"
        edits.set_constant(graph, name, np.ascontiguousarray(np.swapaxes(floats, 1, 2)).astype(np.float32))
        made.input[index] = name
    del made.output[:]
    made.output.extend(node.output)
    yield made


WRITERS: Mapping[str, Writer] = {
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(UNARY, _unary),
    "QLinearConcat": _concat,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "MatMulNBits": _few_bits,
    "DynamicQuantizeLSTM": _lstm,
}

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
    copy = edits.copied(proto)
    graph = copy.graph
    del graph.value_info[:]
    stored = {tensor.name for tensor in graph.initializer}
    given = [value for value in graph.input if value.name not in stored and plan.concerns(value.name)]
    nodes = list(_widen_stored(graph, plan))
    renamed: dict[str, str] = {}
    for value in graph.input:
        if value.name in stored or plan.inputs:
            _retype(value, plan)
    if not plan.inputs:
        for value in given:
            renamed[value.name] = f"{value.name}__wide"
            nodes.append(edits.make_node("Cast", [value.name], [renamed[value.name]], to=plan.to))
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


def _widen_stored(graph: GraphProto, plan: Widening) -> Iterator[NodeProto]:
    """Put stored numbers into the wider type; the nodes that do it for those that are left in files."""
    given = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if tensor.data_type not in plan.kinds:
            continue
        if external_data.elsewhere(tensor) and tensor.name not in given:
            wide, tensor.name = tensor.name, f"{tensor.name}{STORED}"
            yield edits.make_node("Cast", [tensor.name], [wide], name=f"{wide}__widened", to=plan.to)
        else:
            tensor.CopyFrom(_wider(tensor, plan))


def _wider(tensor: TensorProto, plan: Widening) -> TensorProto:
    from onnx import helper

    array = external_data.array(tensor).astype(helper.tensor_dtype_to_np_dtype(plan.to))
    return external_data.tensor_of(array, tensor.name)


def stored(proto: ModelProto) -> list[tuple[str, Array, Any]]:
    """The stored numbers of a graph that may be a wider one: name, values as they are stored, type as they are used."""
    from onnx import helper

    found = edits.constants(proto.graph)
    cast = {node.input[0]: node for node in proto.graph.node if node.op_type == "Cast" and node.input[0] in found}
    return [
        (cast[name].output[0], array, helper.tensor_dtype_to_np_dtype(edits.attribute(cast[name], "to")))
        if name in cast and name.endswith(STORED)
        else (name, array, array.dtype)
        for name, array in found.items()
    ]


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
    copy = type(node).FromString(node.SerializeToString())
    down: dict[str, str] = {}
    for name in dict.fromkeys(name for name in edits.reads(node) if plan.concerns(name)):
        down[name] = f"{name}__for__{node.name}"
        yield edits.make_node("Cast", [renamed.get(name, name)], [down[name]], to=plan.types[name])
    for index, name in enumerate(copy.input):
        copy.input[index] = down.get(name, name)
    for inner in edits.subgraphs(copy):
        edits.replace_reads(inner, down)
    up = [(index, name) for index, name in enumerate(node.output) if name and plan.concerns(name)]
    for index, name in up:
        copy.output[index] = f"{name}__narrow"
    yield copy
    for _, name in up:
        yield edits.make_node("Cast", [f"{name}__narrow"], [name], to=plan.to)
