"""The one kernel of all experiments: change one thing, ask again, see which failing rows agree then.

A `Change` is what is edited of one side: the cells it is asked about, its graph or weights, its settings. `run`
tries changes on a few rows first and then on all of them, by the gate's own comparison; everything that is
opened is closed again. A change explains a failure only if most of the difference goes with it. Edits of answers, which
could be made to fit anything, also have to beat an answer that is the same for every row (`answers.convincing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from likewise.compare.align import align
from likewise.compare.call import Side
from likewise.compare.feed import Feed
from likewise.contracts.comparison import Mismatch
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.report import Place
from likewise.data.cells import Edit, Field, edited, missing_in, transplanted
from likewise.data.columns import ArrayColumns
from likewise.explain.case import Case, Explained, Fix, Remedy, made_once

Thing = TypeVar("Thing")
Fixes = tuple[Fix, ...]

ENOUGH = 0.5
"""A change explains a failure if this share of the failing rows agree after it."""

HARMLESS = 0.02
"""... and if no larger share of the other rows stops agreeing."""

FEW = 64
"""Rows that a change is tried on first, and that a slow way of running a model is asked about."""

SOME = 256
"""Failing rows, and as many others, that a search asks about, which asks many times."""

NEARER = 0.5
"""A change takes a difference away if no more than this part of it is left, in the mean over failing rows."""

AS_MUCH = 0.95
"""Fewer changes do as much as all of them if so much of what those heal is healed."""

PATIENCE = 0.3
"""The part of the time left that one search may take: a known cause must not be lost over its culprit."""

MOST_IDLE = 8
"""Things that do it together of which each is asked whether it does anything."""

MOST_ALONE = 64
"""Suspects that are tried alone before they are tried together."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change did: which rows agree after it.

    `share` is the part of the failing rows that agree now, `damage` the part of the others that no longer do.
    """

    agrees: Array
    failing: Array

    @property
    def covered(self) -> Array:
        return np.asarray(self.failing & self.agrees)

    @property
    def share(self) -> float:
        return float(self.covered.sum() / max(int(self.failing.sum()), 1))

    @property
    def damage(self) -> float:
        others = ~self.failing
        return float((others & ~self.agrees).sum() / max(int(others.sum()), 1))

    @property
    def explains(self) -> bool:
        return self.share >= ENOUGH and self.damage <= HARMLESS

    @property
    def promising(self) -> bool:
        """Seen on a few rows: is it worth asking about all of them?"""
        return self.share >= ENOUGH / 2 and self.damage <= 10 * HARMLESS

    @property
    def told(self) -> str:
        """How many of the failing rows agree after a change, in words."""
        covered, count = int(self.covered.sum()), int(self.failing.sum())
        every = {1: "the failing row", 2: "both failing rows"}.get(count, f"all {count:,} failing rows")
        return every if covered >= count else f"{covered:,} of {count:,} failing rows"

    @property
    def agreeing(self) -> str:  # as a sentence: `all 4 failing rows agree`
        return f"{self.told} agree{'s' if int(self.covered.sum()) == 1 else ''}"

    def explained(
        self, cause: str, place: Place, evidence: str, remedy: Remedy | str, *, simplicity: int = 2, fixes: Fixes = ()
    ) -> Explained:
        """What a change of the whole sample showed; `fixes` do for every row what it did for these."""
        return Explained(cause, place, evidence, remedy, covered=self.covered, simplicity=simplicity, fixes=fixes)


@dataclass(frozen=True, slots=True)
class Change:
    """One thing edited of one side.

    `target` stands in the model's place (a graph, an estimator, a module), `options` are other settings of what runs
    it, `cells` other values in some cells of what it is asked, `fed` what is done to inputs as the model takes them,
    `size` the rows of one call. `opened` is the side where it is open in another form already. `whole`: it answers to
    the sample as it is and to no other rows, as values of these rows are written into it.
    """

    side: str = "candidate"
    target: Any = None
    options: Mapping[str, Any] | None = None
    cells: Sequence[Edit] = ()
    fed: Mapping[str, Callable[[Array], Array]] | None = None
    size: int | None = None
    opened: Side | None = None
    whole: bool = False

    def fixes(self, told: str) -> Fixes:
        """The change as a remedy to be carried out, where it is to the graph or settings of the candidate for good."""
        bound = self.whole or self.cells or self.fed is not None or self.size is not None
        if self.side != "candidate" or bound or (self.target is None) == (not self.options):
            return ()
        options = {name: str(value) for name, value in (self.options or {}).items()}
        return (Fix(told, lambda: self.target, options, proven=True),)


HEALED = "{failing rows healed}"
"""Stands in an evidence for the failing rows that agree after the changes."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What is shown if changes heal the failing rows; `lasting` is for all rows, where these are for some only."""

    cause: str
    place: Place
    evidence: str
    remedy: Remedy | str
    changes: tuple[Change, ...]
    simplicity: int = 1
    lasting: Fixes = ()

    def explained(self, effect: Effect) -> Explained:
        evidence = self.evidence.replace(f"{HEALED} agree", effect.agreeing).replace(HEALED, effect.told)
        alone = self.changes[0] if len(self.changes) == 1 else None
        fixes = self.lasting or (() if alone is None else alone.fixes(f"{self.place} put right in the graph"))
        return effect.explained(self.cause, self.place, evidence, self.remedy, simplicity=self.simplicity, fixes=fixes)


class Trial:
    """Some rows of the sample, with the answers both models gave to them."""

    def __init__(self, case: Case, positions: Array) -> None:
        self.case = case
        self.positions = positions

    @staticmethod
    def few(case: Case, count: int = FEW) -> Trial:
        """A few failing rows and some others, at least as many failing ones as not."""
        failing, others = np.flatnonzero(case.required.failing), np.flatnonzero(~case.required.failing)
        chosen = _spread(failing, max(count - len(others), count // 2, 1))
        return Trial(case, np.sort(np.concatenate([chosen, _spread(others, count - len(chosen))])))

    @staticmethod
    def some(case: Case, failing: int = SOME, agreeing: int = SOME) -> Trial:
        """A few hundred rows, spread over the sample: what a search asks about."""
        marked = case.required.failing
        chosen = [_spread(np.flatnonzero(marked), failing), _spread(np.flatnonzero(~marked), agreeing)]
        return Trial(case, np.sort(np.concatenate(chosen)))

    @staticmethod
    def whole(case: Case) -> Trial:
        """All rows of the sample."""
        return Trial(case, np.arange(len(case.required)))

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def batch(self) -> Batch:
        return self.case.rows(self.positions)

    @cached_property
    def reference(self) -> Tensors:
        return self.of(self.case.required.reference)

    @cached_property
    def candidate(self) -> Tensors:
        return self.of(self.case.required.candidate)

    @cached_property
    def failing(self) -> Array:
        failing: Array = self.case.required.failing[self.positions]
        return failing

    def of(self, answers: Tensors) -> Tensors:
        """Answers to the whole sample, for these rows; to what has no rows, all of them."""
        if not self.case.required.batch.stacked:
            return answers
        return {name: array[self.positions] for name, array in answers.items()}

    def mask(self, marked: Array) -> Array:
        """A mask over the sample from one over these rows."""
        mask = np.zeros(len(self.case.required), dtype=bool)
        mask[self.positions[marked]] = True
        return mask

    def values(self, field: Field) -> Array:
        return field.of(self.batch.inputs)

    def ask(self, change: Change) -> Tensors | None:
        """What the changed side answers to these rows; None if it does not load or refuses them."""
        batch = edited(self.batch, change.cells) if change.cells else self.batch
        with _opened(self.case, change) as side:
            if side is not None and change.fed is not None:
                taken = dict(side.feed(batch)[0].inputs)
                taken |= {name: made(taken[name]) for name, made in change.fed.items()}
                batch, side = Batch(batch.rows, ArrayColumns(taken)), replace(side, feed=Feed(change.side, None))
            return None if side is None else self.case.ask(side, batch, size=change.size)

    def effect(self, *, reference: Tensors | None = None, candidate: Tensors | None = None) -> Effect:
        """Compare these rows again, with the answers of one side or of both replaced."""
        agrees = self.case.agreeing(
            self.batch,
            self.reference if reference is None else reference,
            self.candidate if candidate is None else candidate,
        )
        return Effect(agrees, self.failing)

    def run(self, *changes: Change) -> Effect | None:
        """The effect of changes on these rows alone; None if a changed model does not answer."""
        answers = {change.side: self.ask(change) for change in changes}
        return None if any(given is None for given in answers.values()) else self.effect(**answers)

    def gap(self, *, reference: Tensors | None = None, candidate: Tensors | None = None) -> float:
        """How far the numbers of both sides are apart on failing rows, in the mean."""
        ours = {**self.reference, **(reference or {})}
        theirs = {**self.candidate, **(candidate or {})}
        total = 0.0
        for spec in self.case.specs:
            if spec.reference not in ours or spec.candidate not in theirs:
                continue
            aligned = align(spec, ours[spec.reference], theirs[spec.candidate])
            if isinstance(aligned, Mismatch) or any(side.dtype.kind != "f" for side in aligned):
                continue
            with np.errstate(invalid="ignore"):
                apart = np.abs(aligned[0].astype(np.float64) - aligned[1])[self.failing]
            total += float(apart[np.isfinite(apart)].mean()) if np.isfinite(apart).any() else 0.0
        return total

    def nearer(
        self, *, reference: Tensors | None = None, candidate: Tensors | None = None, left: float = NEARER
    ) -> bool:
        """Is most of the difference gone? Rows just beyond the tolerance come inside by chance, whatever moves them."""
        before, after = self.gap(), self.gap(reference=reference, candidate=candidate)
        # A change that leaves the numbers as they are is about labels, which are not nearer or further.
        return not before or after == before or after <= left * before

    def moved(self, one: Tensors, other: Tensors) -> float:
        """How far two answers of the candidate are apart on failing rows; infinitely, where only one is finite."""
        total = 0.0
        for name in {spec.candidate for spec in self.case.specs}:
            mine, yours = one.get(name), other.get(name)
            if mine is None or yours is None or mine.shape != yours.shape:
                continue
            if mine.dtype.kind != "f":
                total += float(np.mean((mine != yours)[self.failing])) if self.failing.any() else 0.0
                continue
            mine, yours = mine.astype(np.float64)[self.failing], yours.astype(np.float64)[self.failing]
            both = np.isfinite(mine) & np.isfinite(yours)
            if (np.isfinite(mine) != np.isfinite(yours)).any():
                return float("inf")
            total += float(np.abs(mine - yours)[both].mean()) if both.any() else 0.0
        return total

    def ordinary(self, suspects: Mapping[Field, Array]) -> Effect | None:
        """The effect of ordinary values, on both sides, in the place of suspicious ones (a mask for each field)."""
        donors = {field: self.donors(field, mask) for field, mask in suspects.items()}
        if any(positions is None for positions in donors.values()):
            return None
        batch = transplanted(self.batch, {field: found for field, found in donors.items() if found is not None})
        ours = self.case.ask("reference", batch)
        theirs = None if ours is None else self.case.ask("candidate", batch)
        return None if ours is None or theirs is None else self.effect(reference=ours, candidate=theirs)

    def donors(self, field: Field, marked: Array) -> Array | None:
        """For each row the row whose value it is to have: its own or, where marked, that of an agreeing one."""
        plain = ~marked & ~missing_in(self.values(field))
        free = np.flatnonzero(plain & ~self.failing)
        if not len(free):
            # Where every row fails, a value that is not under suspicion has to do.
            free = np.flatnonzero(plain)
        if not len(free):
            return None
        positions = np.arange(len(self))
        positions[marked] = free[np.random.default_rng(0).integers(0, len(free), int(marked.sum()))]
        return positions


def run(case: Case, *changes: Change, left: float = NEARER) -> Effect | None:
    """What changes do to the comparison; None if a changed model does not answer, or comes no nearer.

    A few rows are asked first: most changes lead nowhere, and models may be slow. `left` is the part of the
    difference that may be left.
    """
    few, whole = Trial.few(case), Trial.whole(case)
    with ExitStack() as stack:
        # Opened once, however often it is asked.
        sides = [stack.enter_context(_opened(case, change)) for change in changes]
        if None in sides:
            return None
        known = [replace(change, opened=side) for change, side in zip(changes, sides, strict=True)]
        if len(few) < len(whole) / 2 and not any(change.whole for change in changes):
            first = few.run(*known)
            if first is None or not first.promising:
                return None
        answers = {change.side: whole.ask(change) for change in known}
        if any(given is None for given in answers.values()) or not whole.nearer(**answers, left=left):
            return None
        effect = whole.effect(**answers)
        bound = any(change.whole or change.cells for change in changes)
        if effect.explains and not bound and not case.heals_others({c.side: c.opened for c in known if c.opened}):
            return None
        plain = all(c.side == "candidate" and not c.whole and c.size is None for c in changes)
        if effect.explains and plain and case.by_company:
            # One that answers by the rows of a call is healed only if each row agrees alone, too.
            alone = few.run(*(replace(change, size=1) for change in known))
            return effect if alone is not None and alone.promising else None
    return effect


@contextmanager
def _opened(case: Case, change: Change) -> Iterator[Side | None]:
    """The changed side, open until the block ends; None if it does not load."""
    if change.opened is not None or (change.target is None and change.options is None):
        yield change.opened or case.side(change.side)
        return
    with case.opened(change.side, target=change.target, options=change.options) as side:
        yield side


def shown(case: Case, claims: Iterable[Claim]) -> Iterator[Explained]:
    """The claims that their experiments bear out."""
    for claim in claims:
        effect = run(case, *claim.changes)
        if effect is not None and effect.explains:
            yield claim.explained(effect)


@made_once
def unoptimised(case: Case) -> Effect | None:
    """The effect of switching the runtime's optimiser off, which several probes ask for."""
    return run(case, Change(options={"optimization": "disable"}))


def rows_apart(case: Case, side: str, one: Tensors, other: Tensors, *, floor: float = 0.0) -> Array:
    """The rows that a side has answered differently beyond the tolerance; `floor` of the largest value may be noise."""
    apart = np.zeros(len(next(iter(one.values()))), dtype=bool)
    for name in {spec.reference if side == "reference" else spec.candidate for spec in case.specs}:
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


def answers_vary(case: Case, side: str) -> bool:
    """Does a side answer a few rows differently when it is asked once more, or not at all?"""
    batch = Trial.few(case).batch
    one, other = case.ask(side, batch), case.ask(side, batch)
    return one is None or other is None or bool(rows_apart(case, side, one, other).any())


def telling(case: Case, things: Sequence[Thing], change: Callable[[Thing], Change]) -> list[Thing]:
    """Those of a few things that move the answers at all, each changed alone; all of them where none does."""
    few, few_enough = Trial.few(case), 1 < len(things) <= MOST_IDLE
    given = [few.ask(change(thing)) if few_enough else None for thing in things]
    moving = [t for t, gave in zip(things, given, strict=True) if gave is None or few.moved(few.candidate, gave)]
    return moving or list(things)


def searching(case: Case, things: Iterable[Thing], *, patience: float = PATIENCE) -> Iterator[Thing]:
    """One thing after the other, as long as a search may take."""
    enough = case.seconds_left() * (1 - patience)
    for thing in things:
        if not case.lasts(enough):
            return
        yield thing


def smallest(
    things: Sequence[Thing], does: Callable[[Sequence[Thing]], bool], *, alone: int = MOST_ALONE
) -> tuple[Thing, ...]:
    """The fewest of the things that still do it; all of them together are known to do it.

    Each of the first ones is tried `alone`, in the order given; then as many as can be are left out.
    """
    if len(things) == 1:
        return tuple(things)
    for thing in things[:alone]:
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


def fewest(
    case: Case,
    things: Sequence[Thing],
    does: Callable[[Trial, Sequence[Thing]], Effect | None],
    *,
    enough: float = ENOUGH,
) -> tuple[tuple[Thing, ...], Effect] | None:
    """The fewest things that, changed, explain as much as all of them do, and the effect on all rows; else None."""
    trial = Trial.some(case)
    together = does(trial, things) if things else None
    if together is None or not together.explains or together.share < enough:
        return None
    bar = AS_MUCH * together.share

    def as_much(some: Sequence[Thing]) -> bool:
        effect = does(trial, some)
        return effect is not None and effect.share >= bar

    few = smallest(things, as_much)
    whole = does(Trial.whole(case), few)
    return (few, whole) if whole is not None and whole.explains and whole.share >= enough else None


def first(
    case: Case,
    things: Iterable[Thing],
    does: Callable[[Trial, Thing], Effect | None],
    *,
    enough: float = ENOUGH,
    trial: Trial | None = None,
) -> tuple[Thing, Effect] | None:
    """The first thing that, changed, explains: on some rows, and then on all. None if none does in time."""
    for thing in searching(case, things):
        for rows in (trial or Trial.some(case), Trial.whole(case)):
            effect = does(rows, thing)
            if effect is None or not effect.explains or effect.share < enough:
                break
        else:
            assert effect is not None
            return thing, effect
    return None


def _spread(positions: Array, count: int) -> Array:
    """At most so many of the positions, evenly spread."""
    if len(positions) <= count:
        return positions
    return positions[np.linspace(0, len(positions) - 1, max(count, 0)).astype(np.int64)]
