"""Where a quantised graph rounds: activations that become integers, weights that are stored as such.

Read of a graph in one form for all quantisers (`dequantize.written_out`), as it is stored where weights are packed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.values import dataclass
from likewise.models.onnx import edits
from likewise.models.onnx.open import unpacked

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

Stored = Mapping[str, Array]

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


MISCOUNTED = 0.01
"""The part by which the scale of a bias may be off: it is stored rounded."""

PRODUCTS = ("MatMulInteger", "ConvInteger", "MatMulIntegerToFloat")


SUFFIXES = ("_quantized", "_DequantizeLinear_Output", "_quant")
"""What quantisers hang behind the names of tensors and nodes."""


def name_before(name: str) -> str:
    """What a tensor or node was called before it was quantised."""
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


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


def miscounted(proto: ModelProto) -> list[NodeProto]:
    """The operators whose bias counts in other steps than the products of their scales, as kernels take it to."""
    stored = edits.constants(proto.graph)
    scales = {
        node.output[0]: stored[node.input[1]].astype(np.float64)
        for node in proto.graph.node
        if node.op_type == "DequantizeLinear" and node.input[1] in stored
    }
    found = []
    for node in proto.graph.node:
        if node.op_type in ("Conv", "Gemm") and len(node.input) > 2 and set(node.input[:3]) <= scales.keys():
            given, weight, bias = (scales[name] for name in node.input[:3])
            if not np.allclose(bias, given * weight, rtol=MISCOUNTED, atol=0.0):
                found.append(node)
    return found


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


@dataclass(frozen=True, slots=True)
class Grid:
    """The floats that integers stand for at one node: their distance, and the integer that is zero."""

    node: NodeProto
    scale: Array
    zero: Array

    @property
    def told(self) -> str:
        return f"scale {float(self.scale.ravel()[0]):.4g} and zero point {int(self.zero.ravel()[0])}"

    def same(self, other: Grid) -> bool:
        return np.array_equal(self.scale, other.scale) and np.array_equal(
            self.zero.astype(np.int64), other.zero.astype(np.int64)
        )

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest number."""
        kind = np.iinfo(self.zero.dtype)
        low, high = (kind.min - self.zero.astype(np.float64)), (kind.max - self.zero.astype(np.float64))
        return float((low * self.scale).min()), float((high * self.scale).max())


def grids(proto: ModelProto, site: Site) -> tuple[list[Grid], list[Grid]]:
    """How an activation is written as integers, and how these are read; of scales that are stored, one for all."""
    stored, made = edits.constants(proto.graph), (list[Grid](), list[Grid]())
    for node in proto.graph.node:
        writes = node.op_type == "QuantizeLinear" and node.name in site.nodes
        if not writes and not (node.op_type == "DequantizeLinear" and node.input[0] in site.integers):
            continue
        scale, zero = map(stored.get, edits.inputs_at(node, 1, 2))
        if scale is None or (zero is None and len(node.input) > 2) or scale.size != 1:
            continue
        zero = np.zeros((), dtype=np.uint8) if zero is None else zero
        if zero.dtype.kind in "iu":
            made[not writes].append(Grid(node, scale, zero))
    return made


def scale_of(proto: ModelProto, site: Site) -> str | None:
    """The stored scale by which an activation is written as integers."""
    found = (node for node in proto.graph.node if node.name in site.nodes and node.op_type == "QuantizeLinear")
    return next((node.input[1] for node in found), None)


def reader_of(proto: ModelProto, node: NodeProto) -> NodeProto | None:
    """The first node that computes with what a DequantizeLinear gives."""
    return next((other for other in proto.graph.node if node.output[0] in other.input), None)


def packed_weights(node: NodeProto, stored: Stored) -> tuple[Array, Array] | None:
    """What a MatMulNBits multiplies with, and half the distance of the values it can hold; None if not known."""
    packed, scales, zeros = map(stored.get, edits.inputs_at(node, 1, 2, 3))
    width, size, bits = (edits.attribute(node, name) for name in ("N", "K", "bits"))
    block = edits.attribute(node, "block_size")
    if packed is None or scales is None or bits not in (2, 4, 8) or (zeros is None and any(edits.inputs_at(node, 3))):
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


def limits(node: NodeProto, stored: Stored) -> tuple[float, float] | None:
    """The least and the largest number that integers can stand for; None if not known, or not the same for all."""
    scale = stored.get(node.input[1])
    zero = stored.get(node.input[2]) if len(node.input) > 2 else np.array(0, dtype=np.uint8)
    if scale is None or zero is None or scale.size != 1 or zero.dtype.kind not in "iu":
        return None
    return Grid(node, scale.astype(np.float64), zero).ends
