"""Operators on quantised integers, written as operators on floats between DequantizeLinear and QuantizeLinear.

All quantised graphs come to one form this way: where numbers become integers stands a QuantizeLinear (or
DynamicQuantizeLinear), and everything else is arithmetic on floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array
from likewise.models.onnx import edits

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto


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
        writer = _writer(node)
        nodes.extend([node] if writer is None else writer(node, copy.graph, stored))
    edits.replace_nodes(copy.graph, nodes)
    if not any(entry.domain == "" for entry in copy.opset_import):
        copy.opset_import.add().version = 17
    return copy


def _writer(node: NodeProto) -> Writer | None:
    if node.op_type in BINARY:
        return _binary
    if node.op_type in UNARY:
        return _unary
    return {
        "QLinearConcat": _concat,
        "DynamicQuantizeMatMul": _dynamic_matmul,
        "MatMulNBits": _few_bits,
        "DynamicQuantizeLSTM": _lstm,
    }.get(node.op_type)


def _dequantize(node: NodeProto, data: str, scale: str, zero: str, part: str, axis: int | None = None) -> NodeProto:
    from onnx import helper

    made = helper.make_node(
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
    from onnx import helper

    if not scale:
        plain.output[0] = node.output[0]
    yield plain
    if scale:
        inputs = [name for name in (plain.output[0], scale, zero) if name]
        yield helper.make_node("QuantizeLinear", inputs, [node.output[0]], name=f"{node.name}__quantize")


def _biased(node: NodeProto, product: NodeProto, bias: str) -> Iterator[NodeProto]:
    """A product, with the bias added to it where there is one."""
    from onnx import helper

    if not bias:
        product.output[0] = node.output[0]
    yield product
    if bias:
        yield helper.make_node("Add", [product.output[0], bias], [node.output[0]], name=f"{node.name}__add")


def _plain(node: NodeProto, operator: str, inputs: list[str], *, leave: tuple[str, ...] = ()) -> NodeProto:
    """The float operator in the place of an integer one, under its name."""
    from onnx import helper

    made = helper.make_node(operator, inputs, [f"{node.output[0]}__float"], name=node.name)
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
    from onnx import helper

    a, b, b_scale, b_zero, bias = (_given(node, index) for index in range(5))
    out = node.output[0]
    yield helper.make_node(
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
