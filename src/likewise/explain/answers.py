"""The answers of both models, output by output, and the comparison again with some of them changed.

A hypothesis about outputs changes answers, not models: it puts a link, an order or a rule right and asks
how many of the failing rows agree then. A change has to do more than an answer that is the same for every
row would do, or it has shown nothing.

Changes of answers that are tried one after the other: on a few rows first, on all rows if that looks right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from likewise.compare.differences import is_numeric, rows_of, same_labels
from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Pair, Tolerance
from likewise.contracts.data import Array, Tensors
from likewise.contracts.models import Kind, Label
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import ENOUGH, HARMLESS, Effect, Trial

ROUNDING = Tolerance(1e-6, 1e-5)
"""A link applied here and one applied by the model differ by rounding, which a bit-equal policy would not forgive."""

LEFT_OF_NULL = 0.2
"""Of the failing rows that a constant answer leaves failing, at most so many may be left by a change that explains."""

FOLLOWING = 0.98
"""Labels follow from scores if a rule gives this share of them."""

WIDEST = 1_024
"""Columns beyond which no order of them is searched for."""

Changed = Mapping[int, Array]
"""Other answers by the position of their pair."""


def pairs(case: Case) -> tuple[Pair, ...]:
    """The compared outputs of the sample, in a tolerance that forgives at least rounding."""
    return case.once(_forgiving)


def _forgiving(case: Case) -> tuple[Pair, ...]:
    found = []
    for pair in case.required.pairs:
        absolute = max(pair.tolerance.absolute, ROUNDING.absolute)
        relative = max(pair.tolerance.relative, ROUNDING.relative)
        found.append(replace(pair, tolerance=Tolerance(absolute, relative)))
    return tuple(found)


def failing(case: Case) -> list[int]:
    """The positions of the pairs on which rows fail by more than rounding."""
    return [position for position, beyond in enumerate(_beyond(case)) if beyond.any()]


def failing_numbers(case: Case) -> list[int]:
    """The failing pairs that hold numbers other than labels."""
    return [position for position in failing(case) if is_number(pairs(case)[position])]


def failing_labels(case: Case) -> list[int]:
    return [position for position in failing(case) if pairs(case)[position].spec.kind is Kind.LABEL]


def is_number(pair: Pair) -> bool:
    return pair.spec.kind is not Kind.LABEL and is_numeric(pair.reference) and is_numeric(pair.candidate)


def complete(case: Case) -> bool:
    """Could every pair of outputs be put side by side, and do they differ by more than rounding?"""
    if len(pairs(case)) != len(case.specs):
        return False
    return not measured(case).share >= 0.5


def measured(case: Case, candidate: Changed | None = None, reference: Changed | None = None) -> Effect:
    """Compare again with the answers of some pairs replaced."""
    sample = case.required
    beyond = np.zeros(len(sample), dtype=bool)
    if len(pairs(case)) != len(case.specs):
        return Effect(beyond, sample.failing)
    theirs, ours = candidate or {}, reference or {}
    for position, pair in enumerate(pairs(case)):
        if position in theirs or position in ours:
            changed = replace(
                pair,
                reference=ours.get(position, pair.reference),
                candidate=theirs.get(position, pair.candidate),
            )
            beyond |= rows_beyond(changed)
        else:
            beyond |= _beyond(case)[position]
    return Effect(~beyond, sample.failing)


def convincing(case: Case, candidate: Changed | None = None, reference: Changed | None = None) -> Effect | None:
    """The effect of a change that explains, labels that follow from changed scores included; else None."""
    theirs, ours = dict(candidate or {}), dict(reference or {})
    followed = following_labels(case, {*theirs, *ours})
    effect = measured(case, {**followed, **theirs}, ours)
    if not effect.explains:
        return None
    if not _varies(case, {*theirs, *ours}):
        # Of one answer a constant says all there is; several numbers in it that fall into place say more.
        return effect if any(pairs(case)[position].reference[:1].size > 1 for position in (*theirs, *ours)) else None
    nothing = measured(
        case,
        {**followed, **{position: _constant(pairs(case)[position].reference) for position in theirs}},
        {position: _constant(pairs(case)[position].candidate) for position in ours},
    )
    if nothing.damage > HARMLESS:
        return effect
    return effect if 1 - effect.share <= LEFT_OF_NULL * (1 - nothing.share) and nothing.share < 1 else None


def tried(case: Case, target: Any) -> Effect | None:
    """The effect of another graph in the candidate's place if it explains: asked about a few rows first, then all."""
    positions = Trial.few(case).positions
    if len(positions) < len(case.required) / 2:
        told = case.ask_changed("candidate", target=target, batch=case.rows(positions))
        if told is None or not Trial(case, positions).effect(candidate=told).explains:
            return None
    answered = case.ask_changed("candidate", target=target)
    effect = None if answered is None else Trial.whole(case).effect(candidate=answered)
    return effect if effect is not None and effect.explains else None


def following_labels(case: Case, positions: set[int]) -> dict[int, Array]:
    """Failing labels as they would be if the scores they are picked from were right.

    Only where the candidate's labels are what some rule makes of its own scores at these positions; then
    right scores give right labels, and the labels are no failure of their own.
    """
    found: dict[int, Array] = {}
    for label in failing_labels(case):
        if label in positions:
            continue
        pair = pairs(case)[label]
        for position in positions:
            scores = pairs(case)[position]
            if not is_number(scores):
                continue
            classes = classes_of(pair, scores)
            # A candidate may number its classes instead of naming them.
            for known in (classes, tuple(range(len(classes)))):
                made = best_rule(pair.candidate, scores.candidate, known)
                if made is not None:
                    labels = pair.candidate.astype(object)
                    labels[made] = pair.reference.astype(object)[made]
                    found[label] = labels
                    break
    return found


def best_rule(labels: Array, scores: Array, classes: Sequence[Label]) -> Array | None:
    """Which labels the rule that fits best gives; None if no rule gives nearly all."""
    best: Array | None = None
    for _, made in rules(scores, classes, labels.shape):
        same = same_labels(made, labels)
        if best is None or same.sum() > best.sum():
            best = same
    return best if best is not None and best.size and best.mean() >= FOLLOWING else None


def rules(scores: Array, classes: Sequence[Label], shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """The labels that the usual rules make of scores, each with what it is called."""
    scores = scores.astype(np.float64)
    named = np.empty(len(classes), dtype=object)
    named[:] = list(classes)
    if scores.ndim == 2 and scores.shape[1] == 1 and len(shape) == 1:
        scores = scores[:, 0]
    if scores.ndim == 2 and len(shape) == 1 and scores.shape[1] == len(named) > 1:
        safe = np.nan_to_num(scores, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        yield "the highest score wins", named[safe.argmax(axis=1)]
        yield "the lowest score wins", named[safe.argmin(axis=1)]
        if len(named) == 2:
            yield "the second score above 0.5", named[(scores[:, 1] > 0.5).astype(int)]
            yield "the second score above 0", named[(scores[:, 1] > 0).astype(int)]
    elif scores.shape == shape and len(named) == 2:
        for cut in (0.5, 0.0):
            yield f"the score above {cut:g}", named[(scores > cut).astype(int)]
            yield f"the score below {cut:g}", named[(scores < cut).astype(int)]


def classes_of(label: Pair, scores: Pair | None = None) -> tuple[Label, ...]:
    """The classes in the order of the columns of scores: as declared, or counted from 0 where nothing is declared."""
    if label.spec.classes:
        return label.spec.classes
    if scores is not None and scores.spec.classes:
        return scores.spec.classes
    width = scores.reference.shape[1] if scores is not None and scores.reference.ndim == 2 else 2
    # A row of labels has one column a label, each of them yes or no.
    return tuple(range(2 if label.reference.ndim == 2 and label.reference.shape[1] > 1 else max(width, 2)))


def views(case: Case) -> Tensors:
    """All that the reference answers to the sample, also what is compared with nothing."""
    return case.once(_views)


def _views(case: Case) -> Tensors:
    told = case.ask(replace(case.side("reference"), outputs=None))
    return {**case.required.reference, **(told or {})}


def as_columns(scores: Array, kind: Kind | None) -> Array:
    """Scores with a column a class: one score of two classes becomes two."""
    scores = scores.astype(np.float64).reshape(len(scores), -1)
    if scores.shape[1] > 1:
        return scores
    other = 1.0 - scores if kind is Kind.PROBABILITY else -scores
    return np.concatenate([other, scores], axis=1)


def in_shape_of(scores: Array, wanted: Array) -> Iterator[Array]:
    """Scores as another output may give them: a score of two classes as two columns, or one of two."""
    if scores.dtype.kind != "f" or len(scores) != len(wanted) or scores.ndim > 2:
        return
    scores = scores.astype(np.float64)
    if scores.shape == wanted.shape:
        yield scores
    elif scores.size == len(scores) and wanted.ndim == 2 and wanted.shape[1] == 2:
        second = scores.ravel()
        for first in (-second, 1.0 - second, np.zeros_like(second)):
            yield np.stack([first, second], axis=1)
    elif scores.ndim == 2 and scores.shape[1] == 2 and wanted.size == len(wanted):
        yield scores[:, 1].reshape(wanted.shape)
        yield scores[:, 0].reshape(wanted.shape)


def column_order(reference: Array, candidate: Array, tolerance: Tolerance) -> tuple[int, ...] | None:
    """The columns of the candidate in the order that fits the reference; None if that is the order they have."""
    from scipy.optimize import linear_sum_assignment

    if reference.ndim != 2 or reference.shape != candidate.shape or not 2 <= reference.shape[1] <= WIDEST:
        return None
    width = reference.shape[1]
    count = int(max(8, min(256, 4_000_000 / width**2)))
    rows = np.unique(np.linspace(0, len(reference) - 1, count).astype(int))
    ours, theirs = reference[rows].astype(np.float64), candidate[rows].astype(np.float64)
    if not _same_numbers(ours, theirs, tolerance):
        return None
    with np.errstate(all="ignore"):
        apart = np.abs(ours[:, :, None] - theirs[:, None, :])
        allowed = tolerance.absolute + tolerance.relative * np.abs(ours)[:, :, None]
        same = (apart <= allowed) | (np.isnan(ours)[:, :, None] & np.isnan(theirs)[:, None, :])
        capped = np.nan_to_num(apart / (1.0 + apart), nan=1.0, posinf=1.0)
    # Rows that agree decide; how far the others are apart only breaks ties.
    cost = (~same).mean(axis=0) + 1e-3 * capped.mean(axis=0)
    _, order = linear_sum_assignment(cost)
    return None if (order == np.arange(width)).all() else tuple(order.tolist())


def _same_numbers(ours: Array, theirs: Array, tolerance: Tolerance) -> bool:
    """Do many rows hold the same numbers in whatever order? Much cheaper to see than the order."""
    ours, theirs = np.sort(ours, axis=1), np.sort(theirs, axis=1)
    with np.errstate(all="ignore"):
        apart = np.abs(ours - theirs)
        near = apart <= 2 * (tolerance.absolute + tolerance.relative * np.abs(ours))
    return bool((near | (np.isnan(ours) & np.isnan(theirs))).all(axis=1).mean() >= ENOUGH)


def told(effect: Effect) -> str:
    """How many of the failing rows agree after a change, in words."""
    covered, count = int(effect.covered.sum()), int(effect.failing.sum())
    if covered == count:
        return "the failing row" if count == 1 else f"all {count:,} failing rows"
    return f"{covered:,} of {count:,} failing rows"


def culprit(pairs_concerned: Sequence[Pair], detail: str) -> str:
    """Outputs by the reference's names; in parentheses what the candidate calls them and what is wrong with them."""
    ours = ", ".join(dict.fromkeys(pair.spec.name for pair in pairs_concerned))
    others = [pair.spec.candidate for pair in pairs_concerned if pair.spec.candidate != pair.spec.reference]
    place = f"output {', '.join(map(repr, others))}: " if others else ""
    return f"{ours} ({place}{detail})"


def names(pairs_concerned: Sequence[Pair]) -> str:
    return ", ".join(dict.fromkeys(pair.spec.name for pair in pairs_concerned))


def distinct(array: Array, limit: int = 50) -> int:
    """How many different rows there are, counted up to a limit."""
    seen: set[bytes | str] = set()
    for row in rows_of(array):
        seen.add(repr(row.tolist()) if row.dtype.kind == "O" else row.tobytes())
        if len(seen) >= limit:
            break
    return len(seen)


def agreeing(pair: Pair, candidate: Array) -> Array:
    """The rows on which a pair agrees with these answers in the place of the candidate's."""
    return ~rows_beyond(replace(pair, candidate=candidate))


def _beyond(case: Case) -> list[Array]:
    return case.once(_beyond_by_pair)


def _beyond_by_pair(case: Case) -> list[Array]:
    return [rows_beyond(pair) for pair in pairs(case)]


def _varies(case: Case, positions: set[int]) -> bool:
    return any(distinct(pairs(case)[position].reference, limit=2) > 1 for position in positions)


def _constant(array: Array) -> Array:
    """The same typical answer for every row."""
    if array.dtype.kind == "f":
        with np.errstate(all="ignore"):
            finite = np.where(np.isfinite(array), array, 0)
            typical: Any = np.median(finite, axis=0)
    else:
        values = [repr(row) for row in array.tolist()]
        counts: dict[str, int] = {}
        for value in values:
            counts[value] = counts.get(value, 0) + 1
        typical = array[values.index(max(counts, key=lambda value: counts[value]))]
    constant = np.empty_like(array)
    constant[:] = typical
    return constant


FEW_ROWS, FEW_NUMBERS = 128, 100_000
PROMISING = 0.5
"""A change is tried on all rows if this share of some failing rows agree after it."""


@dataclass(frozen=True, slots=True)
class Change:
    """What may be wrong with an output, and the answers of one side as they would be then.

    On the candidate's side `made` puts its answers right; on the reference's side it does to the
    reference's what was done to the candidate's.
    """

    cause: str
    what: str
    done: str
    remedy: str
    side: str
    made: Callable[[], Array]
    simplicity: int = 2


Maker = Callable[[Case, Pair, Array], Iterable[Change]]
"""Lists the changes of a pair that holds some rows of the sample, and which rows these are."""


def best(case: Case, changes: Maker) -> Explained | None:
    """The change that explains most; one change for all failing outputs if there is one, else for one of them."""
    positions = failing_numbers(case)
    tried = {position: _promising(case, position, changes) for position in positions}
    found: tuple[Effect, dict[int, Change]] | None = None
    for first in tried[positions[0]]:
        same = {
            position: change
            for position in positions[1:]
            for change in tried[position]
            if (change.cause, change.what) == (first.cause, first.what)
        }
        found = _better(case, found, {positions[0]: first, **same})
        if found is not None and found[0].share == 1:
            break
    if found is None and len(positions) > 1:
        for position in positions:
            for change in tried[position]:
                found = _better(case, found, {position: change})
    return None if found is None else _explained(case, *found)


def _better(
    case: Case, found: tuple[Effect, dict[int, Change]] | None, chosen: dict[int, Change]
) -> tuple[Effect, dict[int, Change]] | None:
    with np.errstate(all="ignore"):
        made = {position: change.made() for position, change in chosen.items()}
    effect = convincing(
        case,
        {position: array for position, array in made.items() if chosen[position].side == "candidate"},
        {position: array for position, array in made.items() if chosen[position].side == "reference"},
    )
    if effect is None or (found is not None and found[0].share >= effect.share):
        return found
    return effect, chosen


def _promising(case: Case, position: int, changes: Maker) -> list[Change]:
    """The changes that put enough of a few failing rows right, for all rows."""
    pair = pairs(case)[position]
    count = max(8, min(FEW_ROWS, FEW_NUMBERS // max(pair.reference[:1].size, 1)))
    rows = Trial.few(case, count).positions
    small = replace(pair, reference=pair.reference[rows], candidate=pair.candidate[rows], margin=None, noise=None)
    failing = rows_beyond(small)
    if not failing.any():
        rows = np.flatnonzero(rows_beyond(pair))[:count]
        small = replace(small, reference=pair.reference[rows], candidate=pair.candidate[rows])
        failing = np.ones(len(rows), dtype=bool)
    likely = set()
    with np.errstate(all="ignore"):
        for change in changes(case, small, rows):
            array = change.made()
            if array.shape != small.candidate.shape or (change.side == "reference" and not np.isfinite(array).all()):
                continue
            changed = replace(small, candidate=array)
            if change.side == "reference":
                changed = replace(small, reference=array)
            if (~rows_beyond(changed))[failing].mean() >= PROMISING:
                likely.add(change.done)
        everywhere = np.arange(len(pair.reference))
        return [change for change in changes(case, pair, everywhere) if change.done in likely]


def _explained(case: Case, effect: Effect, chosen: dict[int, Change]) -> Explained:
    change = next(iter(chosen.values()))
    concerned: Sequence[Pair] = [pairs(case)[position] for position in chosen]
    return Explained(
        change.cause,
        culprit(concerned, change.what),
        f"{change.done}, the candidate's {names(concerned)} and the reference's agree on {told(effect)}",
        change.remedy,
        covered=effect.covered,
        simplicity=change.simplicity,
    )
