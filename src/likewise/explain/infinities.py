"""Where NaN and infinity begin: the first node that gives them although it is given finite numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array
from likewise.explain import trace
from likewise.explain.case import Case
from likewise.models.onnx import edits

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


@dataclass(frozen=True, slots=True)
class Origin:
    """A node that gives NaN or Inf although it is given finite numbers; `constant` where a stored one is not finite.

    `broken` are the names of all nodes that give such numbers.
    """

    node: NodeProto
    how: str
    constant: str | None = None
    index: tuple[int, ...] = ()
    broken: tuple[str, ...] = ()


def origin(case: Case, side: str, proto: ModelProto, rows: Array) -> Origin | None:
    """Where the NaN or Inf of these rows comes from; None if every node that has them was given them."""
    positions = rows[: trace.ROWS_SEEN]
    types = case.tensor_types(side)
    names = [name for node in proto.graph.node for name in node.output if types.get(name) in trace.FLOATS]
    inputs = [value.name for value in proto.graph.input if types.get(value.name) in trace.FLOATS]
    seen = trace.seen_inside(case, side, proto, names, positions)
    if seen is None:
        return None
    fed = case.fed(side, case.rows(positions))
    stored = edits.constants(proto.graph)
    known: dict[str, Array] = {**stored, **seen, **{name: fed[name] for name in inputs if name in fed}}
    giving = [node for node in proto.graph.node if any(_broken(known.get(name)) for name in node.output)]
    names = [node.name for node in giving]
    for node in giving:
        if node.op_type == "Constant":
            continue
        broken = [name for name in node.input if name and _broken(known.get(name))]
        if not broken:
            return Origin(node, _how(node, known), broken=tuple(names))
        if all(name in stored and _broken(stored[name]) for name in broken) and _unwanted(stored[broken[0]]):
            return Origin(node, "a stored number", broken[0], _first(stored[broken[0]]), tuple(names))
    return None


def _broken(array: Array | None) -> bool:
    if array is None or array.dtype.kind not in "fV" or not array.size:
        return False
    with np.errstate(invalid="ignore"):
        return not bool(np.isfinite(array.astype(np.float64)).all())


def _unwanted(array: Array) -> bool:
    """Minus infinity is what masks are made of; NaN and plus infinity are not."""
    wide = array.astype(np.float64)
    return bool(np.isnan(wide).any() or np.isposinf(wide).any())


def _first(array: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(~np.isfinite(array.astype(np.float64)))[0])


def _how(node: NodeProto, known: Mapping[str, Array]) -> str:
    """What happens in the node, from the numbers it is given."""
    given = [known[name].astype(np.float64) for name in node.input if name in known and known[name].dtype.kind == "f"]
    # Only floats were looked at: the first output of a classifier is its label.
    out = next(known[name] for name in node.output if _broken(known.get(name)))
    sort = "NaN" if bool(np.isnan(out.astype(np.float64)).any()) else "Inf"
    first = given[0] if given and given[0].size else None
    if first is None:
        return sort
    if node.op_type == "Log":
        return "the logarithm of 0" if first.min() == 0 else f"the logarithm of {first.min():.4g}"
    if node.op_type == "Sqrt":
        return f"the square root of {first.min():.4g}"
    if node.op_type in ("Div", "Reciprocal") and given[-1].size and (given[-1] == 0).any():
        return "a division by 0"
    if node.op_type in ("Exp", "Softmax", "LogSoftmax", "ReduceLogSumExp"):
        return f"exp of {first.max():.4g}, beyond what {out.dtype} holds"
    return f"a result beyond what {out.dtype} holds ({np.finfo(out.dtype).max:.4g})" if sort == "Inf" else sort
