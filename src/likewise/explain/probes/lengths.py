"""A graph that is right only for inputs as long as the example it was traced with."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.compare.observe import rows_beyond
from likewise.compare.variations.axes import Axis, at_length, axes_of
from likewise.contracts.comparison import Mismatch
from likewise.contracts.data import Batch
from likewise.contracts.verdict import Outcome
from likewise.data.columns import ArrayColumns
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Trial
from likewise.models.onnx import edits

LONGEST = 512
ROWS = 32
MOST = 12


class Lengths:
    """Give both models inputs of other lengths, and see at which they agree."""

    causes = ("shape-specialization",)
    needs_answers = False

    def plausible(self, case: Case) -> bool:
        if case.sample is None or case.candidate is None or not isinstance(case.sample.batch.inputs, ArrayColumns):
            return False
        return bool(case.sample.failing.any() or _other_lengths_fail(case)) and bool(self._axes(case))

    def test(self, case: Case) -> Sequence[Explained]:
        positions = Trial.few(case, ROWS).positions
        batch = case.rows(positions)
        for axis in self._axes(case):
            agreed = {length: self._agree(case, batch, axis, length) for length in _lengths(case, axis)}
            right = [length for length, agrees in agreed.items() if agrees is True]
            wrong = [length for length, agrees in agreed.items() if agrees is False]
            if len(right) == 1 and len(wrong) >= 2:
                name = axis.places[0][0]
                return [
                    Explained(
                        "shape-specialization",
                        f"{name} (axis {axis.places[0][1]}, right only at length {right[0]})",
                        f"with inputs of length {right[0]} both models agree; at lengths "
                        f"{', '.join(map(str, sorted(wrong)))} they do not"
                        + (f", among them the {axis.length} of this data" if axis.length in wrong else ""),
                        "Do not make Python numbers of shapes in forward (int(x.shape[1]), len(x)); export again, or "
                        f"deploy it for length {right[0]} only",
                        share=1.0,
                        simplicity=1,
                    )
                ]
        return []

    def _axes(self, case: Case) -> tuple[Axis, ...]:
        return axes_of(case.side("candidate").feed, case.required.batch)

    def _agree(self, case: Case, batch: Batch, axis: Axis, length: int) -> bool | None:
        """Do both models agree at this length? A candidate that refuses it does not; None if the reference does."""
        changed = at_length(batch, axis, length)
        ours, theirs = case.ask("reference", changed), case.ask("candidate", changed)
        if ours is None:
            return None
        if theirs is None:
            return False
        pairs = case.pairs(changed, ours, theirs)
        return not any(isinstance(pair, Mismatch) or rows_beyond(pair).any() for pair in pairs)


def _other_lengths_fail(case: Case) -> bool:
    return any(s.kind == "shape" and s.blocks and s.outcome is Outcome.FAIL for s in case.verdict.suites)


def _lengths(case: Case, axis: Axis) -> list[int]:
    """The length of the data, numbers that stand in the graph, and some beside them."""
    proto = case.graph()
    written: set[int] = set()
    for array in () if proto is None else edits.constants(proto.graph).values():
        if array.dtype.kind in "if" and 0 < array.size <= 8:
            written.update(int(v) for v in array.reshape(-1) if 0 < v <= LONGEST and float(v).is_integer())
        written.update(size for size in array.shape if 1 < size <= LONGEST)
    beside = [axis.length, axis.length - 1, axis.length + 1, max(axis.length // 2, 1)]
    return list(dict.fromkeys([*(size for size in beside if size > 0), *sorted(written)]))[:MOST]


EXTENSION = Lengths()
