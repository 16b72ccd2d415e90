"""Places of the largest values, where several are equally large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.explain import experiment, trace
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import ENOUGH, Trial
from likewise.models.onnx import edits

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


RANKING = {"TopK": 1, "ArgMax": 0, "ArgMin": 0}
"""Operators that give places, and which of their outputs holds them."""


class RankedTies:
    """Look up both models' places in the values that were ranked: equal values are equally right."""

    causes = ("tie-breaking",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        proto = case.graph()
        return proto is not None and any(node.op_type in RANKING for node in proto.graph.node)

    def test(self, case: Case) -> Sequence[Explained]:
        import numpy as np

        proto = case.editable()
        positions = Trial.few(case, experiment.SOME).positions
        failing = case.required.failing[positions]
        for node, ranked, places in () if proto is None else self._seen(case, proto, positions):
            covered = failing.copy()
            for pair in case.failing_pairs():
                equal = _equally_right(pair, node, ranked, places, positions)
                covered &= np.zeros(len(positions), dtype=bool) if equal is None else equal
            if covered.sum() >= ENOUGH * failing.sum():
                output = case.failing_pairs()[0].spec.name
                return [
                    Explained(
                        "tie-breaking",
                        f"{output} ({edits.place(node)})",
                        f"on {int(covered.sum())} of {int(failing.sum())} failing rows both models point at equal "
                        f"values: {node.op_type} ranks them in another order than the reference",
                        "Compare the values instead of their places, or break ties before (add a small multiple of the "
                        "index)",
                        covered=Trial(case, positions).mask(covered),
                        share=float(covered.sum() / failing.sum()),
                        simplicity=1,
                    )
                ]
        return []

    def _seen(self, case: Case, proto: ModelProto, positions: Array) -> Iterator[tuple[NodeProto, Array, Array]]:
        """Each ranking node with the values it ranks and the places it gives."""
        for node in proto.graph.node:
            if node.op_type in RANKING and len(node.output) > RANKING[node.op_type]:
                names = [node.input[0], node.output[RANKING[node.op_type]]]
                seen = trace.seen_inside(case, "candidate", proto, names, positions)
                fed = case.fed("candidate", case.rows(positions))
                ranked = fed.get(names[0]) if seen is None or names[0] not in seen else seen[names[0]]
                if seen is not None and ranked is not None and names[1] in seen:
                    yield node, ranked, seen[names[1]]


def _equally_right(pair: Pair, node: NodeProto, ranked: Array, places: Array, positions: Array) -> Array | None:
    """The rows on which the reference's places hold the same values; None where the output is no places."""
    import numpy as np

    theirs, ours = pair.candidate[positions], pair.reference[positions]
    axis = edits.attribute(node, "axis", -1 if node.op_type == "TopK" else 0) % ranked.ndim
    if not axis or theirs.size != places.size or theirs.dtype.kind not in "iuf":
        return None
    wide = ranked.shape[axis]
    mine = places if places.ndim == ranked.ndim else np.expand_dims(places, axis)
    yours = ours.reshape(mine.shape).astype(np.float64)
    same = np.array_equal(theirs.reshape(mine.shape).astype(np.float64), mine.astype(np.float64))
    if (
        not same
        or not np.isfinite(yours).all()
        or (yours != np.round(yours)).any()
        or yours.min() < 0
        or yours.max() >= wide
    ):
        return None
    equal = np.take_along_axis(ranked, mine.astype(np.int64), axis) == np.take_along_axis(
        ranked, yours.astype(np.int64), axis
    )
    rows: Array = equal.reshape(len(positions), -1).all(axis=1)
    return rows


EXTENSION = RankedTies()
