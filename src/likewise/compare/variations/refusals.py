"""Both models on rows that they may refuse, measured apart from the data.

A row that both refuse agrees. A row that one of them refuses and the other answers is a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from likewise.compare.align import align, margins
from likewise.compare.call import Side, answers, joined, merged_casts, recorded, rows_text
from likewise.compare.differences import same_labels
from likewise.compare.observe import (
    CANDIDATE,
    JUDGED,
    REFERENCE,
    Partial,
    Prepared,
    finish_beside,
    needed_to_judge_again,
    observe,
)
from likewise.contracts.comparison import Cast, Comparison, Incident, Mismatch, OutputFacts, Plan, Tolerance
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Kind
from likewise.contracts.values import dataclass
from likewise.errors import LikewiseError, ModelError

REFUSED, TIED = "refused-by-one", "tie-rule"
OUTSIDE = "refused-outside"
"""The reference alone refuses values that are no ordinary numbers: every export of such a model answers them."""

SHOWN = 3
"""Rows refused by one side that are named."""

CALLS, CALLS_TO_DECIDE = 20, 2_048
"""Calls of a model with parts of a batch that it refuses, to find out which rows those are; where a verdict depends
on every row that was refused, as many as it takes for all rows of a suite."""

SINGLY = 64
"""Rows that are asked one by one where both refuse a part of a batch: each may do so for another row."""

SHOWING = JUDGED | {"worst_rows"}


@dataclass(frozen=True, slots=True)
class Tried:
    """What was measured on the rows that both answered, and how many both refused.

    `alone` has by side what it refuses and the other answers, which is among the mismatches too.
    """

    comparison: Comparison
    refused: int
    alone: Mapping[str, Mismatch]


@dataclass(slots=True)
class _Told:
    """What one model says to the rows of a batch.

    `refused` has the words by row. `together` are rows that were refused as part of a batch, with no calls
    left to find out which of them it was.
    """

    parts: list[tuple[Array, Tensors]] = field(default_factory=list)
    casts: list[Cast] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    together: set[int] = field(default_factory=set)
    words: str = ""

    def ask(self, side: Side, part: Batch, rows: Array, size: int | None = None) -> str | None:
        """Note what a model answers to some rows of the batch; where it refuses them, what it says."""
        try:
            tensors, casts = answers(side, part, size)
        except LikewiseError as error:
            # Without what is said around it.
            words = error.message.removeprefix(f"the {side.name} ({side.model}) failed on {rows_text(part)}: ")
            return words.partition(" did not answer: ")[2] or words
        self.parts.append((rows, tensors))
        self.casts.extend(casts)
        return None


@dataclass(slots=True)
class _Refusals:
    """The rows that one side refuses and the other answers: the first of them, what was said, and how many."""

    refusing: str
    first: str = ""
    words: str = ""
    rows: int = 0
    together: int = 0


def only_recorded(plan: Plan) -> str:
    """The side of which there are only recorded answers, and none to rows that were not recorded; else nothing."""
    return next((side for side in (REFERENCE, CANDIDATE) if recorded(plan, side)), "")


def try_rows(
    plan: Plan,
    prepared: Prepared,
    batches: Iterable[Batch],
    *,
    apart: bool = False,
    outside: bool = False,
    decides: bool = False,
) -> Tried:
    """Compare both models on these rows, whatever they do with them.

    `apart`: the rows have nothing to do with each other. A quantised model may scale all rows of a call by
    the largest value among them, so that it is asked about one at a time. `outside`: what the reference alone
    refuses is told apart, and where the verdict depends on it (`decides`) only if every such row is known.
    """
    partial, refused, asked = Partial(), 0, 0
    incidents: list[Incident] = []
    sides = (prepared.reference, prepared.candidate)
    calls = dict.fromkeys((REFERENCE, CANDIDATE), CALLS_TO_DECIDE if outside and decides else CALLS)
    one_sided = {side: _Refusals(side) for side in calls}
    for batch in batches:
        ours, theirs = (_told(side, batch, _size(side, apart=apart), calls) for side in sides)
        asked += len(batch)
        undecided = _ask_singly(sides, batch, (ours, theirs))
        if undecided:
            incidents.append(_undecided(undecided))
        refused += len(ours.refused.keys() & theirs.refused.keys())
        _note_refusals(batch, ours, theirs, one_sided)
        partial = partial.merge(_compared(prepared, batch, ours, theirs))
    alone = {side: _mismatch(found, asked) for side, found in one_sided.items() if found.rows or found.together}
    if outside and REFERENCE in alone and not (decides and one_sided[REFERENCE].together):
        alone[REFERENCE] = replace(alone[REFERENCE], code=OUTSIDE)
    comparison = finish_beside(prepared, partial.merge(Partial(mismatches=frozenset(alone.values()))), plan)
    known = frozenset(prepared.pairing.mismatches)
    comparison = replace(
        comparison,
        outputs=tuple(replace(output, details=_needed(output)) for output in comparison.outputs),
        mismatches=tuple(mismatch for mismatch in comparison.mismatches if mismatch not in known),
        incidents=(*comparison.incidents, *incidents),
        quantized_nodes=0,
    )
    return Tried(comparison, refused, alone)


def _size(side: Side, *, apart: bool) -> int | None:
    return 1 if apart and side.runner.details.get("quantized_nodes") else None


def _told(side: Side, batch: Batch, size: int | None, calls: dict[str, int]) -> _Told:
    """What a model answers; where it refuses, half by half, as far as there are calls.

    The first row that is refused is looked for first, to have something to show; then the largest parts
    are asked, to lose as few rows as possible that would be answered.
    """
    told = _Told()
    waiting = [np.arange(len(batch))]
    while waiting:
        rows = waiting.pop(max(range(len(waiting)), key=lambda at: len(waiting[at])) if told.refused else -1)
        part = batch if len(rows) == len(batch) else batch.at(rows)
        if part is not batch:
            if calls[side.name] <= 0:
                told.together.update(rows.tolist())
                continue
            calls[side.name] -= 1
        refused = told.ask(side, part, rows, size)
        if refused is not None and (len(rows) == 1 or not batch.stacked):
            told.refused.update(dict.fromkeys(rows.tolist(), refused))
        elif refused is not None:
            told.words = refused
            waiting += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
    return told


def _ask_singly(sides: Sequence[Side], batch: Batch, told: Sequence[_Told]) -> int:
    """Ask about single rows where neither side is known to answer; how many of them are left undecided."""
    ours, theirs = told
    unknown = (ours.together & (theirs.together | theirs.refused.keys())) | (theirs.together & ours.refused.keys())
    for row in sorted(unknown)[:SINGLY]:
        part = batch.at(np.array([row]))
        for side, one in zip(sides, told, strict=True):
            if row not in one.together:
                continue
            one.together.discard(row)
            refused = one.ask(side, part, np.array([row]))
            if refused is not None:
                one.refused[row] = refused
    return max(0, len(unknown) - SINGLY)


def _undecided(rows: int) -> Incident:
    return Incident(
        "refused-together",
        f"{rows:,} rows were refused by both models as parts of a batch, and not asked one by one",
        "Give data with fewer columns that both refuse",
    )


def _note_refusals(batch: Batch, ours: _Told, theirs: _Told, found: Mapping[str, _Refusals]) -> None:
    for side, one, other in ((REFERENCE, ours, theirs), (CANDIDATE, theirs, ours)):
        here, unanswered = found[side], other.refused.keys() | other.together
        alone = sorted(one.refused.keys() - unanswered)
        together = sorted(one.together - unanswered)
        for row in (*alone, *together)[:1]:
            here.first = here.first or str(batch.rows.name(row))
            here.words = here.words or one.refused.get(row, one.words)
        here.rows += len(alone)
        here.together += len(together)


def _mismatch(found: _Refusals, asked: int) -> Mismatch:
    other = CANDIDATE if found.refusing == REFERENCE else REFERENCE
    # Rows that were refused together were not asked one by one: some of them may have been answered.
    count = f"{'up to ' if found.together else ''}{found.rows + found.together:,} of {asked:,} rows"
    message = f"the {found.refusing} refuses {count} that the {other} answers, first {found.first}: {found.words}"
    return Mismatch(REFUSED, message)


def _compared(prepared: Prepared, batch: Batch, ours: _Told, theirs: _Told) -> Partial:
    """What was observed on the rows that both answered."""
    casts = (*ours.casts, *theirs.casts)
    try:
        own, reference = _joined(prepared.reference, ours)
        other, candidate = _joined(prepared.candidate, theirs)
    except ModelError as error:
        return Partial(mismatches=frozenset({Mismatch("shape", error.message)}), casts=casts)
    both = own if np.array_equal(own, other) else np.intersect1d(own, other)
    if not len(both):
        return Partial(casts=casts)
    if len(both) < len(batch):
        batch = batch.at(both)
        reference = {name: array[np.isin(own, both)] for name, array in reference.items()}
        candidate = {name: array[np.isin(other, both)] for name, array in candidate.items()}
    tied = _tied(prepared, batch, reference, candidate)
    found = observe(prepared, batch, reference, candidate, metrics=JUDGED)
    if found.rows_beyond:
        found = observe(prepared, batch, reference, candidate, metrics=SHOWING)
    return replace(found, casts=merged_casts(casts), mismatches=found.mismatches | tied)


def _joined(side: Side, told: _Told) -> tuple[Array, Tensors]:
    """The rows a model answered, in order, and its answers."""
    if not told.parts:
        return np.zeros(0, dtype=np.int64), {}
    rows = np.concatenate([rows for rows, _ in told.parts])
    tensors = joined(side, [tensors for _, tensors in told.parts])
    order = np.argsort(rows)
    return rows[order], {name: array[order] for name, array in tensors.items()}


def _tied(prepared: Prepared, batch: Batch, reference: Tensors, candidate: Tensors) -> frozenset[Mismatch]:
    """Rows on which two classes tie exactly on both sides, and each side picks another: no noise, but another rule."""
    found: set[Mismatch] = set()
    nothing = Tolerance(0.0, 0.0)
    for spec in prepared.pairing.pairs:
        scores = next((s for s in prepared.pairing.pairs if s.reference == spec.margin_from), None)
        if spec.kind is not Kind.LABEL or scores is None or spec.reference not in reference:
            continue
        if not {spec.candidate, scores.candidate} <= candidate.keys() or scores.reference not in reference:
            continue
        aligned = align(spec, reference[spec.reference], candidate[spec.candidate])
        laid = align(scores, reference[scores.reference], candidate[scores.candidate])
        if isinstance(aligned, Mismatch) or isinstance(laid, Mismatch) or laid[0].ndim != 2 or aligned[0].ndim != 1:
            continue
        both = [margins(side, scores.kind, nothing)[0] == 0 for side in laid]
        other = both[0] & both[1] & ~same_labels(*aligned)
        if other.any():
            row = int(np.flatnonzero(other)[0])
            message = (
                f"{batch.rows.name(row)}: both models give two classes the same score, and the label is "
                f"{aligned[0][row]!s} in the reference and {aligned[1][row]!s} in the candidate"
            )
            found.add(Mismatch(TIED, message, spec.name))
    return frozenset(found)


def _needed(output: OutputFacts) -> dict[str, object]:
    """What is needed to judge again and to show the worst rows."""
    rows = output.details.get("worst_rows", {}).get("rows", [])
    return {**needed_to_judge_again(output), **({"worst_rows": {"rows": rows[:SHOWN]}} if rows else {})}
