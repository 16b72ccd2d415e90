"""Quantised graphs: the same in floats, where they round numbers to integers, and without doing so in some places.

Operators on integers become operators on floats between DequantizeLinear and QuantizeLinear. All quantised graphs come
to one form this way: where numbers become integers stands a QuantizeLinear (or DynamicQuantizeLinear), and everything
else is arithmetic on floats. Also where the kernels for integers do something else than the graph says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.values import dataclass
from likewise.models.onnx import edits
from likewise.models.onnx.edits import Writer
from likewise.models.onnx.open import unpacked

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto


BINARY = ("QLinearAdd", "QLinearMul", "QLinearMatMul", "QLinearConv", "QGemm")
UNARY = (
    "QLinearSigmoid", "QLinearLeakyRelu", "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearSoftmax",
    "QLinearReduceMean",
)  # fmt: skip
"""Operators on integers that are called after those on floats."""

BIAS = "__bias"
"""How the names of biases end that were integers before."""

Stored = Mapping[str, Array]

Form = Callable[[Writer, "NodeProto", Stored], bool]
"""Writes a node on integers as nodes on floats; False where that is not known."""


def written_out(proto: ModelProto) -> ModelProto:
    """The graph with operators on integers as operators on floats; those that are not known stay."""
    copy = edits.copied(proto)
    del copy.graph.value_info[:]
    nodes: list[NodeProto] = []
    stored = edits.constants(copy.graph)
    for node in copy.graph.node:
        write, form = Writer(copy.graph, node), FORMS.get(node.op_type)
        nodes.extend(write.nodes if form is not None and form(write, node, stored) else [node])
    edits.replace_nodes(copy.graph, nodes)
    if not any(entry.domain == "" for entry in copy.opset_import):
        copy.opset_import.add().version = 17
    return copy


def _given(node: NodeProto, *places: int) -> list[str]:
    """The inputs at some places; those that are not there have no name."""
    return [node.input[place] if place < len(node.input) else "" for place in places]


def _in_floats(write: Writer, given: Sequence[str], stored: Stored, axis: int | None = None) -> str:
    """What integers stand for, by the names of theirs, of the scale and of the zero; several scales lie on `axis`."""
    per_channel = axis is not None and given[1] in stored and stored[given[1]].size > 1
    return write("DequantizeLinear", *filter(None, given), **({"axis": axis} if per_channel else {}))


def _plain(write: Writer, node: NodeProto, operator: str, inputs: Iterable[str], *, leave: Sequence[str] = ()) -> str:
    """The float operator in the place of an integer one, under its name."""
    result = write(operator, *inputs)
    made = write.nodes[-1]
    made.name = node.name
    made.attribute.extend(entry for entry in node.attribute if entry.name not in leave)
    made.metadata_props.extend(node.metadata_props)
    return result


def _behind(write: Writer, node: NodeProto, operator: str, result: str, *more: str) -> bool:
    """Another operator behind the last where it has something to work with; what comes out is what the node gave."""
    if more[0]:
        write(operator, result, *filter(None, more))
    write.nodes[-1].output[0] = node.output[0]
    return True


def _binary(write: Writer, node: NodeProto, stored: Stored) -> bool:
    gemm = node.op_type == "QGemm"
    a, a_scale, a_zero, b, b_scale, b_zero = _given(node, *range(6))
    bias, y_scale, y_zero = _given(node, *((6, 7, 8) if gemm else (8, 6, 7)))
    channel = _last_axis(stored, b)
    if gemm:
        channel = 0 if edits.attribute(node, "transB", 0) else 1
    elif node.op_type == "QLinearConv":
        channel = 0
    inputs = [
        _in_floats(write, (a, a_scale, a_zero), stored),
        _in_floats(write, (b, b_scale, b_zero), stored, channel),
    ]
    if bias:
        known = {bias, a_scale, b_scale} <= stored.keys()
        inputs.append(f"{node.output[0]}{BIAS}" if known else "")
        if known:
            # A bias in integers counts in products of both scales.
            values, one, other = (stored[name].astype(np.float64) for name in (bias, a_scale, b_scale))
            write.store(inputs[-1], (values * one * other).astype(np.float32))
    return _behind(write, node, "QuantizeLinear", _plain(write, node, _float_name(node), inputs), y_scale, y_zero)


def _float_name(node: NodeProto) -> str:
    return str(node.op_type.removeprefix("QLinear").removeprefix("Q"))


def _last_axis(stored: Stored, name: str) -> int:
    return max(stored[name].ndim - 1, 0) if name in stored else 0


def _unary(write: Writer, node: NodeProto, stored: Stored) -> bool:
    x = _in_floats(write, _given(node, 0, 1, 2), stored)
    plain = _plain(write, node, _float_name(node), [x], leave=("opset", "channels_last"))
    return _behind(write, node, "QuantizeLinear", plain, *_given(node, 3, 4))


def _concat(write: Writer, node: NodeProto, stored: Stored) -> bool:
    starts = range(2, len(node.input), 3)
    floats = [_in_floats(write, _given(node, start, start + 1, start + 2), stored) for start in starts]
    return _behind(write, node, "QuantizeLinear", _plain(write, node, "Concat", floats), *node.input[:2])


def _dynamic_matmul(write: Writer, node: NodeProto, stored: Stored) -> bool:
    """The activations are quantised and multiplied in one operator: written out they are quantised before."""
    a, b, b_scale, b_zero, bias = _given(node, *range(5))
    quantised = write("DynamicQuantizeLinear", a)
    write.nodes[-1].output.extend([f"{quantised}_scale", f"{quantised}_zero"])
    first = _in_floats(write, list(write.nodes[-1].output), stored)
    last = _last_axis(stored, b) if b in stored else 1
    second = _in_floats(write, (b, b_scale, b_zero), stored, last)
    return _behind(write, node, "Add", _plain(write, node, "MatMul", [first, second]), bias)


def _few_bits(write: Writer, node: NodeProto, stored: Stored) -> bool:
    """Weights packed into a few bits, block by block."""
    found = packed_weights(node, stored)
    if found is None:
        return False
    inputs = [node.input[0], write.number(found[0])]
    product = _plain(write, node, "MatMul", inputs, leave=[entry.name for entry in node.attribute])
    return _behind(write, node, "Add", product, *_given(node, 5))


def packed_weights(node: NodeProto, stored: Stored) -> tuple[Array, Array] | None:
    """What a MatMulNBits multiplies with, and half the distance of the values it can hold; None if not known."""
    packed, scales, zeros = map(stored.get, _given(node, 1, 2, 3))
    width, size, bits = (edits.attribute(node, name) for name in ("N", "K", "bits"))
    block = edits.attribute(node, "block_size")
    if packed is None or scales is None or bits not in (2, 4, 8) or (zeros is None and any(_given(node, 3))):
        return None
    if zeros is not None and zeros.dtype != np.uint8:
        return None
    blocks = -(-size // block)
    numbers = unpacked(packed.reshape(width, blocks, -1), bits)[..., :block].astype(np.float64)
    zero = (
        np.full((width, blocks, 1), float(1 << (bits - 1)))
        if zeros is None
        else unpacked(zeros.reshape(width, -1), bits)[:, :blocks, None].astype(np.float64)
    )
    steps = scales.reshape(width, blocks, 1).astype(np.float64)
    weights = (numbers - zero) * steps
    half = np.broadcast_to(steps / 2, weights.shape)
    return tuple(np.ascontiguousarray(each.reshape(width, -1)[:, :size].T) for each in (weights, half))  # type: ignore[return-value]


def _lstm(write: Writer, node: NodeProto, stored: Stored) -> bool:
    inputs = list(node.input[:8])
    for index, scale, zero in ((1, 8, 9), (2, 10, 11)):
        weights, factor, offset = map(stored.get, _given(node, index, scale, zero))
        if weights is None or factor is None or offset is None:
            return False
        shape = (weights.shape[0], 1, -1)
        floats = (weights.astype(np.float64) - offset.reshape(shape)) * factor.reshape(shape)
        inputs[index] = write.number(np.ascontiguousarray(np.swapaxes(floats, 1, 2)))
    _plain(write, node, "LSTM", inputs)
    del write.nodes[-1].output[:]
    write.nodes[-1].output.extend(node.output)
    return True


FORMS: Mapping[str, Form] = {
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(UNARY, _unary),
    "QLinearConcat": _concat,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "MatMulNBits": _few_bits,
    "DynamicQuantizeLSTM": _lstm,
}

WEIGHT_PLACES = {
    "DequantizeLinear": (0, 2),
    "MatMulInteger": (1, 3),
    "ConvInteger": (1, 3),
    "DynamicQuantizeMatMul": (1, 3),
    "MatMulIntegerToFloat": (1, 5),
    "QLinearMatMul": (3, 5),
    "QLinearConv": (3, 5),
    "QGemm": (3, 5),
}
"""Where the weights and their zeros stand among the inputs."""


PRODUCTS = ("MatMulInteger", "ConvInteger", "MatMulIntegerToFloat")


@dataclass(frozen=True, slots=True)
class Site:
    """One place where numbers become integers: an activation that is quantised.

    `tensor` is the float that is quantised, `nodes` are the quantising nodes, `integers` what they give,
    moved about or not; `reader` is the first operator on floats behind.
    """

    tensor: str
    nodes: frozenset[str]
    integers: frozenset[str]
    reader: NodeProto | None


@dataclass(frozen=True, slots=True)
class Weight:
    """A stored integer weight: what it stands for, and half the distance of the values it can hold."""

    tensor: str
    values: Array
    half_step: Array
    divisor: Array
    node: str


def activations(proto: ModelProto) -> list[Site]:
    """The activations that are quantised, those that meet in one integer tensor together."""
    groups: list[tuple[set[str], set[str], list[str]]] = []
    for node in proto.graph.node:
        if node.op_type not in ("QuantizeLinear", "DynamicQuantizeLinear") or not node.output[0]:
            continue
        tensors = _integers_behind(proto, node.output[0])
        merged = ({node.name}, tensors, [node.input[0]])
        for other in [group for group in groups if group[1] & tensors]:
            groups.remove(other)
            merged = (merged[0] | other[0], merged[1] | other[1], other[2] + merged[2])
        groups.append(merged)
    stored = set(edits.constants(proto.graph))
    found = []
    for nodes, tensors, names in groups:
        if names[0] not in stored:
            found.append(Site(names[0], frozenset(nodes), frozenset(tensors), _reader(proto, tensors)))
    return found


def _integers_behind(proto: ModelProto, tensor: str) -> set[str]:
    """The integer tensors that hold what one holds, moved about or not."""
    found = {tensor}
    for node in proto.graph.node:
        stays = node.op_type not in ("DequantizeLinear", *PRODUCTS)
        read = set(node.input if node.op_type == "Concat" else node.input[:1])
        if stays and found & read:
            found.update(node.output)
    return found


def _restored(proto: ModelProto, tensors: Collection[str], nodes: Collection[str] = ()) -> set[str]:
    """The floats that integers are turned into again, by their tensors or by the nodes that do it."""
    return {
        name
        for node in proto.graph.node
        if node.op_type == "DequantizeLinear" and (node.input[0] in tensors or node.name in nodes)
        for name in node.output
    }


def _reader(proto: ModelProto, tensors: set[str]) -> NodeProto | None:
    held = (tensors | _restored(proto, tensors)) - {""}
    computing = (node for node in proto.graph.node if node.op_type not in ("DequantizeLinear", "QuantizeLinear"))
    return next((node for node in computing if held.intersection(node.input)), None)


def biases(proto: ModelProto, sites: Collection[Site], weights: Collection[str]) -> set[str]:
    """The stored biases of the operators behind some activations and weights, counted in the scales of both."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    floats = _restored(proto, {name for site in sites for name in site.integers}, weights)
    return {
        node.input[2]
        for node in proto.graph.node
        if node.op_type in ("Conv", "Gemm") and floats.intersection(node.input[:2]) and node.input[2:3]
        if node.input[2] in stored
    }


def weights(proto: ModelProto) -> list[Weight]:
    """The weights stored as integers, with what they stand for."""
    stored = edits.constants(proto.graph)
    found = []
    for node in proto.graph.node:
        data, zero = WEIGHT_PLACES.get(node.op_type, (0, 0))
        if node.op_type not in ("DequantizeLinear", "MatMulInteger", "ConvInteger") or node.input[data] not in stored:
            continue
        numbers = stored[node.input[data]].astype(np.float64)
        restored = node.op_type == "DequantizeLinear"
        if restored:
            unknown = not numbers.ndim or edits.attribute(node, "block_size", 0)
            scale = None if unknown else stored.get(node.input[1])
            axis = edits.attribute(node, "axis", 1)
        else:
            scale = _scale_behind(proto.graph, node, stored)
            axis = 0 if node.op_type == "ConvInteger" else numbers.ndim - 1
        if scale is None:
            continue
        step = _along(scale.astype(np.float64), numbers.ndim, axis)
        offset = stored.get(node.input[zero]) if len(node.input) > zero else None
        if offset is not None:
            numbers = numbers - _along(offset.astype(np.float64), numbers.ndim, axis)
        divisor = np.ones((1,) * numbers.ndim) if restored else step
        found.append(Weight(node.input[data], numbers * step, step / 2, divisor, node.name))
    return found


def packed(proto: ModelProto) -> list[Weight]:
    """The weights that are packed into a few bits, of a graph as it is stored."""
    stored = edits.constants(proto.graph)
    found = []
    for node in proto.graph.node:
        if node.op_type == "MatMulNBits" and (both := packed_weights(node, stored)) is not None:
            found.append(Weight(node.input[1], *both, np.ones((1, 1)), node.name))
    return found


def _along(values: Array, ndim: int, axis: int) -> Array:
    shape = [1] * ndim
    if values.size > 1:
        shape[axis] = values.size
    return values.reshape(shape)


def _scale_behind(graph: GraphProto, node: NodeProto, stored: Stored) -> Array | None:
    """The stored scale of the weights, found where it is multiplied with that of the activations."""
    scales = [other.output[1] for other in graph.node if other.op_type == "DynamicQuantizeLinear"
              and other.output[0] == node.input[0]]  # fmt: skip
    for other in graph.node:
        if other.op_type == "Mul" and scales and scales[0] in other.input:
            constant = [name for name in other.input if name in stored]
            if constant and _meets(graph, node.output[0], other.output[0]):
                return stored[constant[0]]
    return None


def _meets(graph: GraphProto, product: str, scale: str) -> bool:
    """Is this product multiplied with this scale, before anything else happens to it?"""
    cast = {name for node in graph.node if node.op_type == "Cast" and node.input[0] == product for name in node.output}
    return any(node.op_type == "Mul" and scale in node.input and cast.intersection(node.input) for node in graph.node)


def without(proto: ModelProto, sites: Collection[Site], *, bounded: str = "relu") -> ModelProto:
    """The graph without the quantisation of some activations.

    Quantisers drop a Relu where the integers cannot be negative, so it has to stand in their place:
    `relu` puts it there, `clip` also keeps the upper bound, `none` does neither.
    """
    copy = edits.copied(proto)
    del copy.graph.value_info[:]
    stored = edits.constants(copy.graph)
    bypassed = {name for site in sites for name in site.nodes}
    floats: set[str] = set()
    nodes: list[NodeProto] = []
    for node in copy.graph.node:
        if node.name in bypassed:
            floats.add(node.output[0])
            nodes.append(_bypassed(node, copy.graph, stored, bounded))
        elif node.op_type == "DequantizeLinear" and node.input[0] in floats:
            nodes.append(edits.make_node("Identity", [node.input[0]], [node.output[0]], name=node.name))
        elif node.op_type in PRODUCTS and floats.intersection(node.input[:2]):
            nodes.extend(_float_product(Writer(copy.graph, node), node, floats))
        else:
            if floats.intersection(node.input) and node.op_type not in ("Cast", "QuantizeLinear"):
                floats.update(node.output)
            nodes.append(node)
    edits.replace_nodes(copy.graph, nodes)
    return copy


def _bypassed(node: NodeProto, graph: GraphProto, stored: Stored, bounded: str) -> NodeProto:
    operator, inputs, target = "Identity", [node.input[0]], node.output[0]
    if node.op_type == "DynamicQuantizeLinear":
        edits.set_constant(graph, node.output[1], np.array(1.0, dtype=np.float32))
        edits.set_constant(graph, node.output[2], np.array(0, dtype=np.uint8))
    elif bounded != "none" and (limits := _limits(node, stored)) is not None:
        if bounded == "clip":
            operator, inputs = "Clip", [*inputs, f"{target}__low", f"{target}__high"]
            for name, limit in zip(inputs[1:], limits, strict=True):
                edits.set_constant(graph, name, np.array(limit, dtype=np.float32))
        elif limits[0] == 0:
            operator = "Relu"
    return edits.make_node(operator, inputs, [target], name=node.name)


def _limits(node: NodeProto, stored: Stored) -> tuple[float, float] | None:
    """The least and the largest number that integers can stand for; None if not known, or not the same for all."""
    scale = stored.get(node.input[1])
    zero = stored.get(node.input[2]) if len(node.input) > 2 else np.array(0, dtype=np.uint8)
    if scale is None or zero is None or scale.size != 1:
        return None
    if zero.dtype.name not in ("uint8", "int8", "uint16", "int16"):
        return None
    kind, step, middle = np.iinfo(zero.dtype), float(scale.reshape(-1)[0]), float(zero.reshape(-1)[0])
    return (kind.min - middle) * step, (kind.max - middle) * step


def _operand(write: Writer, node: NodeProto, index: int, zero: int, floats: Collection[str]) -> str:
    """An operand of an integer product as a float: what was bypassed is one, the rest is counted from its zero."""
    name = node.input[index]
    if name in floats:
        return str(name)
    result = write("Cast", name, to=1)
    [offset] = _given(node, zero)
    return write("Sub", result, write("Cast", offset, to=1)) if offset else result


def _float_product(write: Writer, node: NodeProto, floats: Collection[str], weights: str = "") -> list[NodeProto]:
    """The product of an integer operator in floats, with other weights where they are named."""
    scaled = node.op_type == "MatMulIntegerToFloat"  # A, B, their scales, their zeros, bias
    zeros = (4, 5) if scaled else (2, 3)
    first = _operand(write, node, 0, zeros[0], floats)
    second = weights or _operand(write, node, 1, zeros[1], floats)
    product = write("Conv" if node.op_type == "ConvInteger" else "MatMul", first, second)
    if not scaled:
        write.nodes[-1].attribute.extend(node.attribute)
        return write.written()
    result = write("Mul", product, write("Mul", node.input[2], node.input[3]))
    [bias] = _given(node, 6)
    if bias:
        write("Add", result, bias)
    return write.written()


def with_weights(proto: ModelProto, changed: dict[str, Array]) -> ModelProto:
    """The graph with floats in the place of integer weights; keys are the names of the nodes that read them."""
    copy = edits.copied(proto)
    del copy.graph.value_info[:]
    nodes: list[NodeProto] = []
    known = {weight.node: weight for weight in weights(proto)}
    for node in copy.graph.node:
        if node.name not in changed:
            nodes.append(node)
            continue
        values, name = changed[node.name], f"{node.output[0]}__restored"
        if node.op_type == "MatMul":
            edits.set_constant(copy.graph, node.input[1], values.astype(np.float32))
            nodes.append(node)
            continue
        if node.op_type == "DequantizeLinear":
            edits.set_constant(copy.graph, name, values.astype(np.float32))
            nodes.append(edits.make_node("Identity", [name], [node.output[0]], name=node.name))
            continue
        edits.set_constant(copy.graph, name, (values / known[node.name].divisor).astype(np.float32))
        nodes.extend(_float_product(Writer(copy.graph, node), node, (), name))
    edits.replace_nodes(copy.graph, nodes)
    return copy


def unsigned(proto: ModelProto) -> ModelProto | None:
    """The same numbers with unsigned 8-bit weights, counted from 128; None if none are signed.

    Nothing changes but the instructions: products of unsigned with signed bytes saturate on some processors.
    """
    copy = edits.copied(proto)
    stored = edits.constants(copy.graph)
    changed = False
    for node in copy.graph.node:
        data, zero = WEIGHT_PLACES.get(node.op_type, (0, 0))
        if not zero or len(node.input) <= data or node.input[data] not in stored:
            continue
        values = stored[node.input[data]]
        if values.dtype != np.int8 or values.ndim < 2:
            continue
        given = node.input[zero] if len(node.input) > zero else ""
        before = stored.get(given) if given else np.zeros(_scales(node, stored), dtype=np.int8)
        if before is None:
            continue
        while len(node.input) <= zero:
            node.input.append("")
        for index, array in ((data, values), (zero, before)):
            name = f"{node.output[0]}__unsigned{index}"
            edits.set_constant(copy.graph, name, (array.astype(np.int16) + 128).astype(np.uint8))
            node.input[index] = name
        changed = True
    return copy if changed else None


def _scales(node: NodeProto, stored: Stored) -> tuple[int, ...]:
    """The shape of the scales of a DequantizeLinear, which its zeros share."""
    scale = stored.get(node.input[1]) if node.op_type == "DequantizeLinear" else None
    return () if scale is None else tuple(scale.shape)
