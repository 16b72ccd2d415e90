"""Where the kernels for integers do something else than the graph says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from likewise.contracts.data import Array
from likewise.structure import graph_edits

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

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


def unsigned(proto: ModelProto) -> ModelProto | None:
    """The same numbers with unsigned 8-bit weights, counted from 128; None if none are signed.

    Nothing changes but the instructions: products of unsigned with signed bytes saturate on some processors.
    """
    import numpy as np

    copy = graph_edits.copied(proto)
    stored = graph_edits.constants(copy.graph)
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
            graph_edits.set_constant(copy.graph, name, (array.astype(np.int16) + 128).astype(np.uint8))
            node.input[index] = name
        changed = True
    return copy if changed else None


def _scales(node: NodeProto, stored: dict[str, Array]) -> tuple[int, ...]:
    """The shape of the scales of a DequantizeLinear, which its zeros share."""
    scale = stored.get(node.input[1]) if node.op_type == "DequantizeLinear" else None
    return () if scale is None else tuple(scale.shape)


@dataclass(frozen=True, slots=True)
class Miscounted:
    """An operator whose integer bias is counted in other scales than those of its activations and weights."""

    node: NodeProto
    tensor: str
    factor: float


def miscounted(proto: ModelProto) -> list[Miscounted]:
    """The operators whose scales contradict each other; fused kernels add the bias as if they did not."""
    import numpy as np

    stored = graph_edits.constants(proto.graph)
    makers = {node.output[0]: node for node in proto.graph.node if node.op_type == "DequantizeLinear"}
    found = []
    for node in proto.graph.node:
        if node.op_type not in ("Conv", "Gemm") or len(node.input) < 3 or not all(n in makers for n in node.input[:3]):
            continue
        scales = [stored.get(makers[name].input[1]) for name in node.input[:3]]
        if any(scale is None for scale in scales):
            continue
        activation, weight, bias = (np.asarray(scale, dtype=np.float64).reshape(-1) for scale in scales)
        ratio = (activation * weight / bias).reshape(-1)
        if (np.abs(ratio - 1) > 0.01).any():
            quantised = makers[node.input[0]].input[0]
            source = next((n.input[0] for n in proto.graph.node if quantised in n.output), quantised)
            found.append(Miscounted(node, source, float(np.median(ratio))))
    return found
