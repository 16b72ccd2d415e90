"""Asking a changed model once: opened, asked, closed again, so that many trials leave nothing behind.

Experiments on the inputs: some rows of a case, asked again with other values.

A search asks often, so it works on a few hundred rows (`Trial.of`); what it finds is confirmed on
all of them (`Trial.whole`). `apart` tells which features carry a failure: the values that are under
suspicion are replaced, for both models, by values of rows on which the models agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from likewise.compare.call import Side
from likewise.compare.observe import align, rows_beyond
from likewise.contracts.comparison import Mismatch
from likewise.contracts.data import Array, Batch, Tensors
from likewise.data.cells import Edit as Change
from likewise.data.cells import Field, missing_in, transplanted
from likewise.data.cells import edited as changed
from likewise.explain.case import ENOUGH, HARMLESS, Case, Effect, pairs_of
from likewise.models.onnx import edits

if TYPE_CHECKING:
    from onnx import ModelProto


Thing = TypeVar("Thing")

FEW = 64
"""Rows that a slow way of running a model is asked about."""

SOME = 256
"""Rows that a search asks about, which asks many times."""

NEARER = 0.5
"""A change takes a difference away if no more than this part of it is left, in the mean over failing rows."""

PATIENCE = 0.3
"""The part of the time left that the search for a culprit may take, once the cause is known."""


def graph_of(case: Case, side: str = "candidate") -> ModelProto | None:
    """A side's graph in the form that experiments start from, made once. Not to be changed: copy it."""
    key = f"graph of the {side}, written out"
    if key not in case.memory:
        case.memory[key] = edits.editable(case.graph(side))
    found: ModelProto | None = case.memory[key]
    return found


def types_of(case: Case, side: str = "candidate") -> dict[str, int]:
    """The types of the tensors of that graph."""
    key = f"types of the {side}"
    if key not in case.memory:
        proto = graph_of(case, side)
        case.memory[key] = {} if proto is None else edits.tensor_types(proto)
    found: dict[str, int] = case.memory[key]
    return found


def answered(
    case: Case,
    side: str,
    *,
    target: Any = None,
    options: Mapping[str, Any] | None = None,
    batch: Batch | None = None,
    size: int | None = None,
) -> Tensors | None:
    """What a side's model answers with other settings or another graph; None if it does not load or run."""
    outer = case.stack
    with ExitStack() as stack:
        case.stack = stack
        try:
            opened = case.reopened(side, target=target, options=options)
            return None if opened is None else case.ask(opened, batch, size=size)
        finally:
            case.stack = outer


def effect_of(case: Case, **changed: Any) -> Effect | None:
    """What changing the candidate does to the comparison; None if it does not answer, or comes no nearer.

    A few rows are asked first: most changes lead nowhere, and models may be slow.
    """
    if len(case.required) > 2 * FEW:
        positions = few_rows(case)
        some = answered(case, "candidate", batch=picked(case, positions), **changed)
        first = None if some is None else effect_on(case, positions, candidate=some)
        if first is None or first.share < ENOUGH / 2 or first.damage > 10 * HARMLESS:
            return None
    tensors = answered(case, "candidate", **changed)
    if tensors is None or not nearer(case, candidate=tensors):
        return None
    return case.effect(candidate=tensors)


def nearer(case: Case, *, reference: Tensors | None = None, candidate: Tensors | None = None) -> bool:
    """Is most of the difference gone? Rows just beyond the tolerance come inside by chance, whatever moves them."""
    before = gap(case)
    return not before or gap(case, reference=reference, candidate=candidate) <= NEARER * before


def gap(
    case: Case,
    *,
    reference: Tensors | None = None,
    candidate: Tensors | None = None,
    positions: Array | None = None,
) -> float:
    """How far the numbers of both sides are apart on failing rows, in the mean; new answers may be to some rows."""
    import numpy as np

    sample = case.required
    failing = sample.failing if positions is None else sample.failing[positions]
    total = 0.0
    for spec in case.specs:
        ours = _of(reference, sample.reference, spec.reference, positions)
        theirs = _of(candidate, sample.candidate, spec.candidate, positions)
        if ours is None or theirs is None:
            continue
        aligned = align(spec, ours, theirs)
        if isinstance(aligned, Mismatch) or any(side.dtype.kind != "f" for side in aligned):
            continue
        with np.errstate(invalid="ignore"):
            apart = np.abs(aligned[0].astype(np.float64) - aligned[1])[failing]
        total += float(apart[np.isfinite(apart)].mean()) if np.isfinite(apart).any() else 0.0
    return total


def gap_between(case: Case, one: Tensors, other: Tensors, positions: Array) -> float:
    """How far two answers of the candidate are apart on failing rows; infinitely, where only one is finite."""
    import numpy as np

    total, failing = 0.0, case.required.failing[positions]
    for name in {spec.candidate for spec in case.specs}:
        mine, yours = one.get(name), other.get(name)
        if mine is None or yours is None or mine.shape != yours.shape:
            continue
        if mine.dtype.kind != "f":
            total += float(np.mean((mine != yours)[failing])) if failing.any() else 0.0
            continue
        mine, yours = mine.astype(np.float64)[failing], yours.astype(np.float64)[failing]
        if (np.isfinite(mine) != np.isfinite(yours)).any():
            return float("inf")
        both = np.isfinite(mine) & np.isfinite(yours)
        total += float(np.abs(mine - yours)[both].mean()) if both.any() else 0.0
    return total


def _of(given: Tensors | None, before: Tensors, name: str, positions: Array | None) -> Array | None:
    """The new answer of an output, or what was answered to these rows before."""
    if given is not None and name in given:
        return given[name]
    array = before.get(name)
    return array if array is None or positions is None else array[positions]


def searching(case: Case, things: Iterable[Thing], *, patience: float = PATIENCE) -> Iterator[Thing]:
    """One thing after the other, as long as a search may take: a known cause must not be lost over its culprit."""
    enough = case.seconds_left() * (1 - patience)
    for thing in things:
        if case.seconds_left() < enough:
            return
        yield thing


def few_rows(case: Case, count: int = FEW) -> Array:
    """Positions of some failing rows and of some others, at least as many failing ones as not."""
    import numpy as np

    failing, others = np.flatnonzero(case.required.failing), np.flatnonzero(~case.required.failing)
    chosen = _spread_over(failing, max(count - len(others), count // 2, 1))
    return np.sort(np.concatenate([chosen, _spread_over(others, count - len(chosen))]))


def _spread_over(positions: Array, count: int) -> Array:
    import numpy as np

    if len(positions) <= count:
        return positions
    return positions[np.linspace(0, len(positions) - 1, max(count, 0)).astype(np.int64)]


def picked(case: Case, positions: Array) -> Batch:
    """Some rows of the sample; a test case without a row axis can only be taken whole."""
    import numpy as np

    sample = case.required
    whole = not sample.batch.stacked or np.array_equal(positions, np.arange(len(sample)))
    return sample.batch if whole else case.rows(positions)


def effect_on(
    case: Case, positions: Array, *, reference: Tensors | None = None, candidate: Tensors | None = None
) -> Effect:
    """Compare some rows again, with new answers to these rows alone."""
    full = case.effect(
        reference=_spread(case.required.reference, reference, positions),
        candidate=_spread(case.required.candidate, candidate, positions),
    )
    return Effect(full.agrees[positions], case.required.failing[positions])


def _spread(before: Tensors, changed: Tensors | None, positions: Array) -> Tensors | None:
    """The answers to all rows, some of them replaced."""
    import numpy as np

    if changed is None:
        return None
    together: dict[str, Array] = {}
    for name, array in changed.items():
        if name not in before or before[name].shape[1:] != array.shape[1:]:
            together[name] = np.zeros((len(next(iter(before.values()))), *array.shape[1:]), dtype=array.dtype)
        else:
            together[name] = before[name].astype(np.result_type(before[name], array), copy=True)
        together[name][positions] = array
    return together


def seen_inside(
    case: Case,
    side: str,
    proto: ModelProto,
    names: Collection[str],
    types: Mapping[str, int],
    positions: Array,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Array] | None:
    """The values of tensors inside a graph, for some rows of the sample; None if it does not run.

    By default the runtime does not optimise: fusing would take away the tensors that are to be seen.
    """
    import numpy as np

    outer = case.stack
    with ExitStack() as stack:
        case.stack = stack
        try:
            settings = {"optimization": "disable"} if options is None else options
            opened = case.reopened(side, target=edits.exposed(proto, names, types), options=settings)
            if opened is None:
                return None
            if opened.fixed_batch is not None:
                positions = np.resize(positions, opened.fixed_batch)
            fed, _ = opened.feed(picked(case, positions))
            seen = case.ask_fed(opened, dict(fed.inputs))
            return None if seen is None else {name: seen[name] for name in names if name in seen}
        finally:
            case.stack = outer


def rows_apart(case: Case, side: str, one: Tensors, other: Tensors, *, floor: float = 0.0) -> Array:
    """The rows on which a side has answered differently, beyond the tolerance, in any output that is compared.

    `floor` is how much of the largest value may be noise whatever the tolerance.
    """
    import numpy as np

    apart = np.zeros(len(next(iter(one.values()))), dtype=bool)
    for name in {getattr(spec, side) for spec in case.specs}:
        if name not in one or name not in other or one[name].shape != other[name].shape:
            apart[:] = True
            continue
        mine, theirs = one[name], other[name]
        if mine.dtype.kind == "f":
            mine, theirs = mine.astype(np.float64), theirs.astype(np.float64)
            largest = float(np.max(np.abs(mine[np.isfinite(mine)]), initial=0.0))
            with np.errstate(invalid="ignore"):
                allowed = case.tolerance.absolute + case.tolerance.relative * np.abs(mine)
                close = np.abs(mine - theirs) <= np.maximum(allowed, floor * largest)
            different = ~(close | (mine == theirs) | (np.isnan(mine) & np.isnan(theirs)))
        else:
            different = mine != theirs
        apart |= np.asarray(different).reshape(len(apart), -1).any(axis=1)
    return apart


def mask_of(case: Case, positions: Array, covered: Array) -> Array:
    """A mask over the sample from one over some of its rows."""
    import numpy as np

    mask = np.zeros(len(case.required), dtype=bool)
    mask[positions[covered]] = True
    return mask


def seconds_for(case: Case, side: str, rows: int, **changed: Any) -> float | None:
    """How long a changed model would take for so many rows, from one row; None if it does not answer that."""
    import numpy as np

    began = time.monotonic()
    one = answered(case, side, batch=picked(case, np.array([0])), **changed)
    return None if one is None else (time.monotonic() - began) * rows


FAILING, AGREEING = 256, 256
"""Rows of each that a search asks about."""

MOST_ALONE = 64
"""Suspects that are tried alone before they are tried together."""

FEWEST_SEPARATED = 8
"""Rows from which on it is no chance that all of them have something in common that others do not have."""


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
            _spread_interventions(np.flatnonzero(sample.failing), failing),
            _spread_interventions(np.flatnonzero(~sample.failing), agreeing),
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


def _spread_interventions(positions: Array, count: int) -> Array:
    """At most so many of the positions, evenly spread."""
    import numpy as np

    if len(positions) <= count:
        return positions
    return positions[np.linspace(0, len(positions) - 1, count).astype(np.int64)]
