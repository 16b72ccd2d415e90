"""Numbers that a type does not hold: NaN and Inf on one side, integers that wrap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.explain import experiment, infinities, trace
from likewise.explain.case import DOUBLE, Case, Explained, Fix, Remedy, probe
from likewise.explain.experiment import Change, Effect
from likewise.models.onnx import widen

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


UINT8, INT8, UINT16, INT16, INT32, INT64, UINT32 = 2, 3, 4, 5, 6, 7, 12
"""Numbers of ONNX for types of integers."""

NARROW = frozenset({UINT8, INT8, UINT16, INT16, INT32, UINT32})
WIDER = (
    (widen.SINGLE, frozenset({widen.HALF, widen.BRAIN})),
    (widen.DOUBLE, frozenset({widen.SINGLE})),
)
"""Types of floats, and those that each is the next wider one of."""

ROWS_SEEN = 256
"""Rows whose integers are looked at inside the graph."""


@probe(
    "nonfinite",
    "weight-corruption",
    when=lambda case: any(
        _broken_rows(pair, side).any() for pair in case.failing_pairs() for side in ("candidate", "reference")
    ),
)
def nonfinite(case: Case) -> Sequence[Explained]:
    """Follow the first NaN or Inf to the node that makes it of finite numbers."""
    found = []
    for side in ("candidate", "reference"):
        usable = ~_unusable(case, side)
        rows = {pair.spec.name: _broken_rows(pair, side) & usable for pair in case.failing_pairs()}
        if any(mask.any() for mask in rows.values()) and (explained := _not_finite(case, side, rows)) is not None:
            found.append(explained)
    return found


@probe("integer-overflow", when=lambda case: case.graph() is not None and not case.comparison.quantized_nodes)
def integer_overflow(case: Case) -> Explained | None:
    """Compute the same graph with 64-bit integers, and look for the values that did not fit before."""
    proto, types = case.editable(), case.tensor_types()
    made = {name for node in (() if proto is None else proto.graph.node) for name in node.output}
    narrow = [name for name, kind in types.items() if kind in NARROW and name in made]
    if proto is None or not narrow:
        return None
    found = widen.runnable(proto, widen.Widening(types, NARROW, INT64, narrow_ops=frozenset()))
    effect = None if found is None else experiment.run(case, Change(target=found[0]))
    if found is None or effect is None or not effect.explains:
        return None
    wrapping = _wrapping(case, proto, found[0], narrow, effect.covered)
    if wrapping is None:
        return None
    node, largest, kind = wrapping
    return effect.explained(
        "integer-overflow",
        trace.place_of(node),
        f"its results reach {largest:,}, beyond {kind}, and wrap; with 64-bit integers the candidate agrees "
        f"with the reference on {effect.told}",
        "Convert to int64 (or a float) before this node, and export again",
        simplicity=1,
        fixes=Change(target=found[0]).fixes("integers computed in 64 bits"),
    )


def _not_finite(case: Case, side: str, rows: dict[str, Array]) -> Explained | None:
    """Where the NaN or Inf of a side comes from, from its rows by output."""
    anywhere = np.logical_or.reduce(list(rows.values())) & case.required.failing
    output = max(rows, key=lambda name: int(rows[name].sum()))
    other = "reference" if side == "candidate" else "candidate"
    healed = Effect(anywhere, case.required.failing)
    told = f"the {side} answers NaN or Inf in '{output}' on {healed.told}, the {other} a number"
    proto = case.editable(side)
    origin = None if proto is None else infinities.origin(case, side, proto, np.flatnonzero(anywhere))
    if proto is None or origin is None:
        place = Place(output if side == "candidate" else f"{output} of the reference", side=side, outputs=(output,))
        remedy = f"Look at what the {side} does with these rows before it is compared"
        return healed.explained("nonfinite", place, told, remedy, simplicity=4)
    if origin.constant is not None:
        index = f"index {', '.join(map(str, origin.index))}"
        place = Place(f"'{origin.constant}'", (index,), side, tensors=(origin.constant,))
        told += f"; it comes from the number stored at {place}, which is not finite"
        return healed.explained(
            "weight-corruption", place, told, Remedy(again="Export it again from the trained model")
        )
    wider, target = _finite_in(case, proto) if side == "candidate" else (None, None)
    if wider == widen.SINGLE:
        # Half precision overflows at 65,504: that is the reduction of the precision, told as such elsewhere.
        return None
    node = trace.place_of(origin.node, side=side)
    told += f"; {node} is the first to make it of finite numbers: {origin.how}"
    return healed.explained(
        "nonfinite",
        Place(output, (f"{origin.how}: {node}",), side, nodes=node.nodes, tensors=node.tensors, outputs=(output,)),
        told if target is None else f"{told}; computed in double it does not happen",
        Remedy("Bound the value before this node as the reference does (torch.clamp)", again=DOUBLE if target else ""),
        fixes=() if target is None else (Fix("computed in double", lambda: target),),
    )


def _finite_in(case: Case, proto: ModelProto) -> tuple[int | None, ModelProto | None]:
    """The type of floats in which the candidate answers numbers where it does not now, and the graph in that type."""
    types = case.tensor_types()
    for wider, narrow in WIDER:
        found = widen.runnable(proto, widen.Widening(types, narrow, wider)) if narrow & set(types.values()) else None
        answers = None if found is None else case.ask_changed("candidate", target=found[0])
        if found is None or answers is None:
            continue
        broken = [(answers[pair.spec.candidate], _broken_rows(pair, "candidate")) for pair in case.failing_pairs()]
        if all(_finite(given[rows]).all() for given, rows in broken):
            return wider, found[0]
    return None, None


def _broken_rows(pair: Pair, side: str) -> Array:
    """The rows where this side has NaN or Inf and the other a number."""
    mine, theirs = (pair.candidate, pair.reference) if side == "candidate" else (pair.reference, pair.candidate)
    if mine.dtype.kind != "f":
        return np.zeros(len(mine), dtype=bool)
    broken = ~_finite(mine).reshape(len(mine), -1)
    if theirs.dtype.kind == "f":
        broken &= _finite(theirs).reshape(len(theirs), -1)
    return np.asarray(broken.any(axis=1))


def _finite(array: Array) -> Array:
    finite: Array = np.isfinite(array.astype(np.float64)) if array.dtype.kind == "f" else np.ones(array.shape, bool)
    return finite


def _unusable(case: Case, side: str) -> Array:
    """The rows that are given NaN or Inf: what a model does with those is another matter."""
    mask = np.zeros(len(case.required), dtype=bool)
    if not case.required.batch.stacked:
        return mask
    for array in case.fed(side).values():
        if array.dtype.kind == "f":
            mask |= ~_finite(array).reshape(len(array), -1).all(axis=1)
        elif array.dtype.kind == "O" and array.ndim == 1:
            mask |= np.array([value is None or value != value for value in array], dtype=bool)
    return mask


def _wrapping(
    case: Case, proto: ModelProto, wide: ModelProto, narrow: Sequence[str], rows: Array
) -> tuple[NodeProto, int, str] | None:
    """The first node whose result does not fit, the result furthest from zero, and the type."""
    from onnx import helper

    types = case.tensor_types()
    widened = {**types, **dict.fromkeys(narrow, INT64)}
    seen = trace.seen_inside(case, "candidate", wide, narrow, np.flatnonzero(rows)[:ROWS_SEEN], types=widened)
    for node in proto.graph.node:
        for name in node.output:
            values = None if seen is None else seen.get(name)
            if values is None or not values.size:
                continue
            dtype = helper.tensor_dtype_to_np_dtype(types[name])
            limits = np.iinfo(dtype)
            if values.min() < limits.min or values.max() > limits.max:
                largest = values.max() if values.max() > limits.max else values.min()
                return node, int(largest), str(dtype)
    return None


EXTENSIONS = (nonfinite, integer_overflow)
