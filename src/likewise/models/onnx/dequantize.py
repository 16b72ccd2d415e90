"""Where a graph rounds numbers to integers, and the same graph without doing so in some of these places.

Also where the kernels for integers do something else than the graph says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.values import dataclass
from likewise.models.onnx import edits, widen

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto


INTEGERS = (2, 3, 4, 5, 21, 22)
"""Numbers of ONNX for the types of 8, 16 and 4 bits that quantised tensors have."""


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
        stays = node.op_type not in ("DequantizeLinear", "MatMulInteger", "ConvInteger", "MatMulIntegerToFloat")
        read = set(node.input if node.op_type == "Concat" else node.input[:1])
        if stays and found & read:
            found.update(node.output)
    return found


def _reader(proto: ModelProto, tensors: set[str]) -> NodeProto | None:
    floats = {
        name
        for node in proto.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in tensors
        for name in node.output
    }
    return next((node for node in proto.graph.node if (tensors | floats).intersection(node.input) - {""}
                 and node.op_type not in ("DequantizeLinear", "QuantizeLinear")), None)  # fmt: skip


def biases(proto: ModelProto, sites: Collection[Site], weights: Collection[str]) -> set[str]:
    """The stored biases of the operators behind some activations and weights, counted in the scales of both."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    tensors = {name for site in sites for name in site.integers}
    floats = {
        name
        for node in proto.graph.node
        if node.op_type == "DequantizeLinear" and (node.input[0] in tensors or node.name in weights)
        for name in node.output
    }
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
        if node.op_type == "MatMulNBits" and (both := widen.packed_weights(node, stored)) is not None:
            found.append(Weight(node.input[1], *both, np.ones((1, 1)), node.name))
    return found


def _along(values: Array, ndim: int, axis: int) -> Array:
    shape = [1] * ndim
    if values.size > 1:
        shape[axis] = values.size
    return values.reshape(shape)


def _scale_behind(graph: GraphProto, node: NodeProto, stored: dict[str, Array]) -> Array | None:
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
            nodes.extend(_bypassed(node, copy.graph, stored, bounded))
        elif node.op_type == "DequantizeLinear" and node.input[0] in floats:
            nodes.append(edits.make_node("Identity", [node.input[0]], [node.output[0]], name=node.name))
        elif node.op_type in ("MatMulInteger", "ConvInteger") and floats.intersection(node.input[:2]):
            nodes.extend(_float_product(node, floats))
        elif node.op_type == "MatMulIntegerToFloat" and floats.intersection(node.input[:2]):
            nodes.extend(_float_product_scaled(node, floats))
        else:
            if floats.intersection(node.input) and node.op_type not in ("Cast", "QuantizeLinear"):
                floats.update(node.output)
            nodes.append(node)
    edits.replace_nodes(copy.graph, nodes)
    return copy


def _bypassed(node: NodeProto, graph: GraphProto, stored: dict[str, Array], bounded: str) -> Iterator[NodeProto]:
    source, target = node.input[0], node.output[0]
    if node.op_type == "DynamicQuantizeLinear":
        yield edits.make_node("Identity", [source], [target], name=node.name)
        edits.set_constant(graph, node.output[1], np.array(1.0, dtype=np.float32))
        edits.set_constant(graph, node.output[2], np.array(0, dtype=np.uint8))
        return
    scale = stored.get(node.input[1])
    zero = stored.get(node.input[2]) if len(node.input) > 2 else np.array(0, dtype=np.uint8)
    known = (
        scale is not None
        and zero is not None
        and scale.size == 1
        and zero.dtype.name in ("uint8", "int8", "uint16", "int16")
    )
    if known and bounded != "none":
        assert scale is not None
        assert zero is not None
        limits = np.iinfo(zero.dtype)
        low = (limits.min - float(zero.reshape(-1)[0])) * float(scale.reshape(-1)[0])
        high = (limits.max - float(zero.reshape(-1)[0])) * float(scale.reshape(-1)[0])
        if bounded == "relu" and low == 0:
            yield edits.make_node("Relu", [source], [target], name=node.name)
            return
        if bounded == "clip":
            edits.set_constant(graph, f"{target}__low", np.array(low, dtype=np.float32))
            edits.set_constant(graph, f"{target}__high", np.array(high, dtype=np.float32))
            yield edits.make_node("Clip", [source, f"{target}__low", f"{target}__high"], [target], name=node.name)
            return
    yield edits.make_node("Identity", [source], [target], name=node.name)


def _operand(node: NodeProto, index: int, zero: int, floats: set[str]) -> tuple[list[NodeProto], str]:
    """An operand of an integer product as a float: what was bypassed is one, the rest is counted from its zero."""
    name = node.input[index]
    if name in floats:
        return [], name
    made = [edits.make_node("Cast", [name], [f"{node.output[0]}__operand{index}"], to=1)]
    result = made[0].output[0]
    if len(node.input) > zero and node.input[zero]:
        made.append(edits.make_node("Cast", [node.input[zero]], [f"{result}_zero"], to=1))
        made.append(edits.make_node("Sub", [result, f"{result}_zero"], [f"{result}_counted"]))
        result = f"{result}_counted"
    return made, result


def _float_product(node: NodeProto, floats: set[str], weights: str = "") -> Iterator[NodeProto]:
    """The product of an integer operator in floats, with other weights where they are named."""
    before, first = _operand(node, 0, 2, floats)
    more, second = ([], weights) if weights else _operand(node, 1, 3, floats)
    yield from (*before, *more)
    operator = "MatMul" if node.op_type == "MatMulInteger" else "Conv"
    made = edits.make_node(operator, [first, second], [node.output[0]], name=node.name)
    made.attribute.extend(node.attribute)
    yield made


def _float_product_scaled(node: NodeProto, floats: set[str]) -> Iterator[NodeProto]:
    """MatMulIntegerToFloat: A, B, their scales, their zeros, bias."""
    before, first = _operand(node, 0, 4, floats)
    more, second = _operand(node, 1, 5, floats)
    out = node.output[0]
    yield from (*before, *more)
    yield edits.make_node("MatMul", [first, second], [f"{out}__product"], name=node.name)
    yield edits.make_node("Mul", [node.input[2], node.input[3]], [f"{out}__scale"])
    bias = node.input[6] if len(node.input) > 6 else ""
    yield edits.make_node("Mul", [f"{out}__product", f"{out}__scale"], [f"{out}__scaled" if bias else out])
    if bias:
        yield edits.make_node("Add", [f"{out}__scaled", bias], [out])


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
        nodes.extend(_float_product(node, set(), name))
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


def _scales(node: NodeProto, stored: dict[str, Array]) -> tuple[int, ...]:
    """The shape of the scales of a DequantizeLinear, which its zeros share."""
    scale = stored.get(node.input[1]) if node.op_type == "DequantizeLinear" else None
    return () if scale is None else tuple(scale.shape)
