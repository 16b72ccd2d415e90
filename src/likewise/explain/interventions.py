"""Experiments on the inputs: some rows of a case, asked again with other values.

A search asks often, so it works on a few hundred rows (`Trial.of`); what it finds is confirmed on
all of them (`Trial.whole`). `apart` tells which features carry a failure: the values that are under
suspicion are replaced, for both models, by values of rows on which the models agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from likewise.compare.call import Side
from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Mismatch
from likewise.contracts.data import Array, Batch, Tensors
from likewise.data.cells import Edit as Change
from likewise.data.cells import Field, missing_in, transplanted
from likewise.data.cells import edited as changed
from likewise.explain.case import Case, Effect, pairs_of

FAILING, AGREEING = 256, 256
"""Rows of each that a search asks about."""

MOST_ALONE = 64
"""Suspects that are tried alone before they are tried together."""

FEWEST_SEPARATED = 8
"""Rows from which on it is no chance that all of them have something in common that others do not have."""

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class Trial:
    """Some rows of the sample, with the answers both models gave to them."""

    case: Case
    positions: Array
    batch: Batch
    reference: Tensors
    candidate: Tensors
    failing: Array

    @staticmethod
    def of(case: Case, failing: int = FAILING, agreeing: int = AGREEING) -> Trial:
        """A few hundred rows, spread over the sample."""
        import numpy as np

        sample = case.required
        chosen = [
            _spread(np.flatnonzero(sample.failing), failing),
            _spread(np.flatnonzero(~sample.failing), agreeing),
        ]
        return Trial._at(case, np.sort(np.concatenate(chosen)))

    @staticmethod
    def whole(case: Case) -> Trial:
        """All rows of the sample."""
        import numpy as np

        return Trial._at(case, np.arange(len(case.required)))

    @staticmethod
    def _at(case: Case, positions: Array) -> Trial:
        sample = case.required
        everything = len(positions) == len(sample)
        return Trial(
            case,
            positions,
            sample.batch if everything else case.rows(positions),
            {name: array[positions] for name, array in sample.reference.items()},
            {name: array[positions] for name, array in sample.candidate.items()},
            sample.failing[positions],
        )

    def __len__(self) -> int:
        return len(self.positions)

    def values(self, field: Field) -> Array:
        return field.of(self.batch.inputs)

    def ask(self, side: str | Side, changes: Sequence[Change]) -> Tensors | None:
        """What a model answers with other values in some cells; None if it refuses them."""
        return self.case.ask(side, changed(self.batch, changes))

    def effect(self, *, reference: Tensors | None = None, candidate: Tensors | None = None) -> Effect:
        """Compare again with the answers of one side, or of both, replaced."""
        import numpy as np

        pairs = pairs_of(
            self.case.specs,
            self.batch,
            self.reference if reference is None else reference,
            self.candidate if candidate is None else candidate,
            self.case.tolerance,
        )
        beyond = np.zeros(len(self), dtype=bool)
        for pair in pairs:
            beyond |= True if isinstance(pair, Mismatch) else rows_beyond(pair)
        return Effect(~beyond, self.failing)

    def on(self, side: str | Side, changes: Sequence[Change]) -> Effect | None:
        """The effect of other values in some cells for one side only, which may be opened in another form."""
        answered = self.ask(side, changes)
        if answered is None:
            return None
        name = side if isinstance(side, str) else side.name
        return self.effect(reference=answered) if name == "reference" else self.effect(candidate=answered)

    def apart(self, suspects: Mapping[Field, Array]) -> Effect | None:
        """The effect of ordinary values, on both sides, in the place of the suspicious ones (a mask for each field)."""
        donors = {field: self.donors(field, mask) for field, mask in suspects.items()}
        if any(positions is None for positions in donors.values()):
            return None
        batch = transplanted(self.batch, {field: found for field, found in donors.items() if found is not None})
        ours = self.case.ask("reference", batch)
        theirs = None if ours is None else self.case.ask("candidate", batch)
        return None if ours is None or theirs is None else self.effect(reference=ours, candidate=theirs)

    def donors(self, field: Field, marked: Array) -> Array | None:
        """For each row the row whose value it is to have: its own or, where marked, that of an agreeing one."""
        import numpy as np

        ordinary = ~marked & ~missing_in(self.values(field))
        free = np.flatnonzero(ordinary & ~self.failing)
        if not len(free):
            # Where every row fails, a value that is not under suspicion has to do.
            free = np.flatnonzero(ordinary)
        if not len(free):
            return None
        positions = np.arange(len(self))
        count = int(marked.sum())
        positions[marked] = free[np.random.default_rng(0).integers(0, len(free), count)]
        return positions


def smallest(things: Sequence[Thing], does: Callable[[Sequence[Thing]], bool]) -> tuple[Thing, ...]:
    """The fewest of the things that still do it; all of them together are known to do it.

    Each is tried alone, in the order given; then as many as can be are left out.
    """
    if len(things) == 1:
        return tuple(things)
    for thing in things[:MOST_ALONE]:
        if does([thing]):
            return (thing,)
    kept = list(things)
    size = (len(kept) + 1) // 2
    while size:
        # From the end: those that are least under suspicion come last.
        for start in range(len(kept) - size, -size, -size):
            rest = [*kept[: max(start, 0)], *kept[max(start + size, 0) :]]
            if rest and does(rest):
                kept = rest
        size = size // 2 if size > 1 else 0
    return tuple(kept)


def patience(case: Case, share: float = 0.3) -> Callable[[], bool]:
    """Is there still time for one more of many small experiments? So that a slow model leaves some to other causes."""
    until = case.seconds_left() * (1 - share)
    return lambda: case.seconds_left() > until


def association(marked: Array, failing: Array) -> float:
    """How much more often marked rows fail than others: the smoothed ratio of the two rates."""
    with_mark = (float((marked & failing).sum()) + 0.1) / (float(marked.sum()) + 0.2)
    without = (float((~marked & failing).sum()) + 0.1) / (float((~marked).sum()) + 0.2)
    return with_mark / without


def separates(marked: Array, failing: Array) -> bool:
    """Do nearly all of the marked rows fail, and nearly no others? All there is to go by if a model cannot be asked."""
    both = int((marked & failing).sum())
    return (
        both >= FEWEST_SEPARATED
        and both >= 0.9 * int(failing.sum())
        and both >= 0.8 * int(marked.sum())
        and int((failing & ~marked).sum()) <= 0.01 * int((~marked).sum())
    )


def _spread(positions: Array, count: int) -> Array:
    """At most so many of the positions, evenly spread."""
    import numpy as np

    if len(positions) <= count:
        return positions
    return positions[np.linspace(0, len(positions) - 1, count).astype(np.int64)]
