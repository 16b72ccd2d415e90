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
from likewise.models.onnx import edits
from likewise.models.onnx.edits import Writer
from likewise.models.onnx.quantized import (
    PRODUCTS,
    WEIGHT_PLACES,
    Site,
    Stored,
    limits,
    name_before,
    packed_weights,
    weights,
)

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
    edits.replace_nodes(copy.graph, _tables_in_floats(copy.graph, nodes, stored))
    if not any(entry.domain == "" for entry in copy.opset_import):
        copy.opset_import.add().version = 17
    return copy


def _tables_in_floats(graph: GraphProto, nodes: Sequence[NodeProto], stored: Stored) -> list[NodeProto]:
    """Tables that are looked up as integers become floats before, as all other weights do."""
    readers: dict[str, list[NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    kept: list[NodeProto] = []
    for node in nodes:
        behind = readers.get(node.output[0], []) if node.op_type == "Gather" and node.input[0] in stored else []
        alike = len({(other.op_type, *other.input[1:]) for other in behind}) == 1
        if not alike or behind[0].op_type != "DequantizeLinear" or not _one_scale(behind[0], stored):
            kept.append(node)
            continue
        write = Writer(graph, node)
        floats = write("DequantizeLinear", node.input[0], *behind[0].input[1:])
        kept += write.nodes
        node.input[0] = floats
        kept.append(node)
        for other in behind:
            other.op_type = "Identity"
            del other.input[1:]
            del other.attribute[:]
    return kept


def _one_scale(node: NodeProto, stored: Stored) -> bool:
    return node.input[1] in stored and stored[node.input[1]].size == 1


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
    a, a_scale, a_zero, b, b_scale, b_zero = edits.inputs_at(node, *range(6))
    bias, y_scale, y_zero = edits.inputs_at(node, *((6, 7, 8) if gemm else (8, 6, 7)))
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
    x = _in_floats(write, edits.inputs_at(node, 0, 1, 2), stored)
    plain = _plain(write, node, _float_name(node), [x], leave=("opset", "channels_last"))
    return _behind(write, node, "QuantizeLinear", plain, *edits.inputs_at(node, 3, 4))


def _concat(write: Writer, node: NodeProto, stored: Stored) -> bool:
    starts = range(2, len(node.input), 3)
    floats = [_in_floats(write, edits.inputs_at(node, start, start + 1, start + 2), stored) for start in starts]
    return _behind(write, node, "QuantizeLinear", _plain(write, node, "Concat", floats), *node.input[:2])


def _dynamic_matmul(write: Writer, node: NodeProto, stored: Stored) -> bool:
    """The activations are quantised and multiplied in one operator: written out they are quantised before."""
    a, b, b_scale, b_zero, bias = edits.inputs_at(node, *range(5))
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
    return _behind(write, node, "Add", product, *edits.inputs_at(node, 5))


def _lstm(write: Writer, node: NodeProto, stored: Stored) -> bool:
    """Weights of an LSTM lie transposed, with a scale for every direction, or for every column of the only one."""
    inputs = list(node.input[:8])
    for index, scale, zero in ((1, 8, 9), (2, 10, 11)):
        weights, factor, offset = map(stored.get, edits.inputs_at(node, index, scale, zero))
        if weights is None or factor is None or offset is None:
            return False
        directions = weights.shape[0]
        if factor.size not in (1, directions) and directions > 1:
            return False
        flat = [write.number(array.reshape(() if array.size == 1 else (-1,))) for array in (factor, offset)]
        floats = _in_floats(write, [node.input[index], *flat], {flat[0]: factor}, 0 if directions > 1 else 2)
        inputs[index] = write("Transpose", floats, perm=[0, 2, 1])
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


CUTTING = ("Relu", "Clip")
"""Operators that cut values off and do nothing else to them."""

Ends = tuple[float, float]
"""What an activation function cuts its values off at."""


def without(
    proto: ModelProto, sites: Collection[Site], *, bounded: str = "relu", known: Mapping[str, Ends | None] | None = None
) -> ModelProto:
    """The graph without the quantisation of some activations.

    Quantisers drop a Relu where the integers cannot be negative, so it has to stand in their place. `known` tells
    where one was; of other activations `relu` puts it there, `clip` also keeps the upper bound, `none` does neither.
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
            given = node.input[0]
            ends = known[given] if known is not None and given in known else _guessed(node, stored, bounded)
            nodes.append(_bypassed(node, copy.graph, ends))
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


def left_out(reference: ModelProto, candidate: ModelProto, sites: Iterable[Site]) -> dict[str, Ends | None]:
    """Where the reference cuts off what is an activation of a quantised graph, which leaves such a node out.

    The activation is called after what that node gives, or after what it is given.
    """
    stored = edits.constants(reference.graph)
    readers: dict[str, list[NodeProto]] = {}
    for node in reference.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    made = {node.output[0]: node for node in reference.graph.node}
    kept = {name_before(name) for node in candidate.graph.node for name in node.output if node.op_type in CUTTING}
    found: dict[str, Ends | None] = {}
    for site in sites:
        # Of an operator on integers only what it gives has a name; a pool hands integers on under another.
        named = [name for name in map(name_before, [site.tensor, *sorted(site.integers)]) if name in made]
        if not named:
            continue
        beside = [node for name in named for node in (made[name], *readers.get(name, ()))]
        gone = [node for node in beside if node.op_type in CUTTING and node.output[0] not in kept]
        found[site.tensor] = _cut_off(gone[0], stored) if gone else None
    return found


def _cut_off(node: NodeProto, stored: Stored) -> Ends:
    """Where a node cuts off values."""
    if node.op_type == "Relu":
        return 0.0, np.inf
    named = [edits.attribute(node, name) for name in ("min", "max")]
    given = [stored.get(name) for name in edits.inputs_at(node, 1, 2)]
    low, high = (
        value if value is not None else None if array is None else array.item()
        for value, array in zip(named, given, strict=True)
    )
    return -np.inf if low is None else float(low), np.inf if high is None else float(high)


def _guessed(node: NodeProto, stored: Stored, bounded: str) -> Ends | None:
    """Where a function that is gone cut values off, by what the integers can hold."""
    ends = None if bounded == "none" or node.op_type == "DynamicQuantizeLinear" else limits(node, stored)
    if ends is None or bounded == "clip":
        return ends
    return (0.0, np.inf) if ends[0] == 0 else None


def _bypassed(node: NodeProto, graph: GraphProto, ends: Ends | None) -> NodeProto:
    operator, inputs, target = "Identity", [node.input[0]], node.output[0]
    if node.op_type == "DynamicQuantizeLinear":
        edits.set_constant(graph, node.output[1], np.array(1.0, dtype=np.float32))
        edits.set_constant(graph, node.output[2], np.array(0, dtype=np.uint8))
    if ends is not None:
        operator, inputs = "Clip", [*inputs, f"{target}__low", f"{target}__high"]
        for name, limit in zip(inputs[1:], ends, strict=True):
            edits.set_constant(graph, name, np.array(limit, dtype=np.float32))
    return edits.make_node(operator, inputs, [target], name=node.name)


def _operand(write: Writer, node: NodeProto, index: int, zero: int, floats: Collection[str]) -> str:
    """An operand of an integer product as a float: what was bypassed is one, the rest is counted from its zero."""
    name = node.input[index]
    if name in floats:
        return str(name)
    result = write("Cast", name, to=1)
    [offset] = edits.inputs_at(node, zero)
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
    [bias] = edits.inputs_at(node, 6)
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
