"""A graph that is right only for inputs as long as the example it was traced with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from likewise.cases import Case, Explained, pairs_of
from likewise.columns import ArrayColumns
from likewise.comparing import rows_beyond
from likewise.contracts.data import Array, Batch
from likewise.contracts.measuring import Mismatch
from likewise.structure import graph_edits, trials

LONGEST = 512
ROWS = 32
MOST = 12


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis beside the rows whose length the file leaves open: of which columns, and how long it is in the data."""

    name: str
    places: tuple[tuple[str, int], ...]
    length: int


class Lengths:
    """Give both models inputs of other lengths, and see at which they agree."""

    causes = ("shape-specialization",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return isinstance(case.required.batch.inputs, ArrayColumns) and bool(self._axes(case))

    def test(self, case: Case) -> Sequence[Explained]:
        positions = trials.few_rows(case, ROWS)
        batch = trials.picked(case, positions)
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
                        f"{', '.join(map(str, sorted(wrong)))} they do not, among them the {axis.length} of this data",
                        "Do not make Python numbers of shapes in forward (int(x.shape[1]), len(x)); export again, or "
                        f"deploy it for length {right[0]} only",
                        share=1.0,
                        simplicity=1,
                    )
                ]
        return []

    def _axes(self, case: Case) -> list[Axis]:
        """The open axes of the candidate's inputs; those that share a name are one."""
        routes = case.side("candidate").feed.routes or ()
        named: dict[str, list[tuple[str, int]]] = {}
        batch = case.required.batch
        for route in routes:
            if route.stacked or route.split is not None or route.input.shape is None or not batch.stacked:
                continue
            for axis, dim in enumerate(route.input.shape[1:], start=1):
                if not isinstance(dim, int) and batch.inputs[route.columns[0]].ndim > axis:
                    named.setdefault(dim or f"{route.input.name}:{axis}", []).append((route.columns[0], axis))
        found = []
        for name, places in named.items():
            lengths = {batch.inputs[column].shape[axis] for column, axis in places}
            if len(lengths) == 1:
                found.append(Axis(name, tuple(places), lengths.pop()))
        return found

    def _agree(self, case: Case, batch: Batch, axis: Axis, length: int) -> bool | None:
        """Do both models agree at this length? None if one of them refuses."""
        changed = replace(batch, inputs=ArrayColumns(_cut(batch.inputs, axis, length)))
        ours, theirs = case.ask("reference", changed), case.ask("candidate", changed)
        if ours is None or theirs is None:
            return None
        pairs = pairs_of(case.specs, changed, ours, theirs, case.tolerance)
        return not any(isinstance(pair, Mismatch) or rows_beyond(pair).any() for pair in pairs)


def _cut(inputs: Mapping[str, Array], axis: Axis, length: int) -> dict[str, Array]:
    """The inputs cut to a length along an axis; what is too short is repeated."""
    import numpy as np

    places = dict(axis.places)
    return {
        name: np.take(array, np.arange(length) % array.shape[places[name]], axis=places[name])
        if name in places
        else array
        for name, array in inputs.items()
    }


def _lengths(case: Case, axis: Axis) -> list[int]:
    """The length of the data, numbers that stand in the graph, and some beside them."""
    proto = case.graph()
    written: set[int] = set()
    for array in () if proto is None else graph_edits.constants(proto.graph).values():
        if array.dtype.kind in "if" and 0 < array.size <= 8:
            written.update(int(v) for v in array.reshape(-1) if 0 < v <= LONGEST and float(v).is_integer())
        written.update(size for size in array.shape if 1 < size <= LONGEST)
    beside = [axis.length, axis.length - 1, axis.length + 1, max(axis.length // 2, 1)]
    return list(dict.fromkeys([*(size for size in beside if size > 0), *sorted(written)]))[:MOST]


EXTENSION = Lengths()
