"""How far apart two models are on rows under change, measured by the code of the gate.

A row that a model refuses is found by halving the batch. Refused by both it says nothing; refused by
one alone it is a difference of another kind, and is kept apart.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

import numpy as np

from likewise.compare.call import Side, answers, joined
from likewise.compare.differences import is_numeric, row_any, rows_of, same_labels
from likewise.compare.metrics.worst_rows import at_worst, severities
from likewise.compare.observe import Prepared, paired, rows_beyond
from likewise.contracts.comparison import Mismatch, Pair
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Kind
from likewise.data.rows import rows_at
from likewise.errors import LikewiseError

CALLS_TO_ISOLATE = 64
"""Calls of one model spent on finding the rows of one batch that it refuses."""

BARELY = 1.0 + sys.float_info.epsilon
"""The severity of a changed label where nothing tells how sure the reference was: just beyond."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What each row of a batch showed. Severity is zero where a row was not answered by both.

    `refused` is 0 for a row that both answered, 1 if only the reference refused it, 2 if only the
    candidate, 3 if both, 4 where finding out would have taken too many calls. `apart` is the absolute
    difference that the severity is of, NaN where no output holds numbers.
    """

    severity: Array
    beyond: Array
    refused: Array
    apart: Array

    def take(self, positions: Array) -> Measured:
        """Some of the rows."""
        return Measured(
            self.severity[positions], self.beyond[positions], self.refused[positions], self.apart[positions]
        )


ANSWERED, REFERENCE_ALONE, CANDIDATE_ALONE, BOTH, NOT_TOLD = range(5)


@dataclass(slots=True)
class Meter:
    """What the models were asked so far."""

    calls: dict[str, int] = field(default_factory=lambda: {"reference": 0, "candidate": 0})
    rows: dict[str, int] = field(default_factory=lambda: {"reference": 0, "candidate": 0})
    seconds: float = 0.0

    @property
    def most_calls(self) -> int:
        return max(self.calls.values())

    def count(self, side: str, rows: int, seconds: float) -> None:
        self.calls[side] += 1
        self.rows[side] += rows
        self.seconds += seconds


def measure(prepared: Prepared, batch: Batch, meter: Meter, *, size: int | None = None) -> Measured:
    """Ask both models, and compare."""
    ours, theirs = (_answered(side, batch, meter, size) for side in (prepared.reference, prepared.candidate))
    refused = _refused(ours, theirs)
    severity, beyond, apart = np.zeros(len(batch)), np.zeros(len(batch), dtype=bool), np.full(len(batch), np.nan)
    good = np.flatnonzero(refused == ANSWERED)
    if len(good):
        asked = batch if len(good) == len(batch) else rows_at(batch, good)
        reference, candidate = _rows(ours, good), _rows(theirs, good)
        severity[good], beyond[good], apart[good] = compared(prepared, asked, reference, candidate)
    return Measured(severity, beyond, refused, apart)


def compared(prepared: Prepared, batch: Batch, reference: Tensors, candidate: Tensors) -> tuple[Array, Array, Array]:
    """The severity of each row, whether it is beyond the tolerance, and how far its numbers are apart there."""
    severity, beyond = np.zeros(len(batch)), np.zeros(len(batch), dtype=bool)
    apart, decided = np.full(len(batch), np.nan), np.full(len(batch), -1.0)
    for spec in prepared.pairing.pairs:
        pair = paired(spec, batch, reference, candidate, prepared.tolerance, nan_equal=prepared.nan_equal)
        if isinstance(pair, Mismatch):
            # One row of another shape makes all of a call so: the whole call is what differs.
            everywhere = np.full(len(batch), np.inf)
            return everywhere, np.ones(len(batch), dtype=bool), everywhere
        own = severity_of(pair)
        severity = np.maximum(severity, own)
        beyond |= rows_beyond(pair)
        if _holds_numbers(pair):
            worse = np.flatnonzero((own > decided) & ~_nothing(pair))
            apart[worse], decided[worse] = at_worst(pair, worse)[1], own[worse]
    return severity, beyond, apart


def severity_of(pair: Pair) -> Array:
    """How far each row is apart in units of what is tolerated, so that labels and numbers can be ranked together."""
    if not pair.reference.size:
        return np.zeros(len(pair.reference))
    if _holds_numbers(pair):
        return severities(pair)
    differs = row_any(rows_of(~same_labels(pair.reference, pair.candidate)))
    if pair.margin is None or pair.noise is None:
        return np.where(differs, BARELY, 0.0)
    margin = np.asarray(pair.margin, dtype=np.float64).reshape(len(differs))
    with np.errstate(over="ignore"):
        sure = np.minimum(margin / np.maximum(pair.noise, sys.float_info.min), sys.float_info.max)
    return np.where(differs, np.where(np.isnan(sure), BARELY, sure), 0.0)


def _nothing(pair: Pair) -> Array:
    """The rows that are NaN through and through on both sides: they agree, and nothing was measured on them."""
    ours, theirs = rows_of(np.isnan(pair.reference)), rows_of(np.isnan(pair.candidate))
    return np.asarray((ours & theirs).all(axis=1))


def _holds_numbers(pair: Pair) -> bool:
    numeric = is_numeric(pair.reference) and is_numeric(pair.candidate)
    return numeric and pair.spec.kind is not Kind.LABEL and bool(pair.reference.size)


@dataclass(frozen=True, slots=True, eq=False)
class _Answers:
    tensors: Tensors | None
    answered: Array
    told: Array


def _answered(side: Side, batch: Batch, meter: Meter, size: int | None) -> _Answers:
    """The answers to the rows that a model does not refuse, and which those are."""
    parts: list[Tensors] = []
    answered, told = np.zeros(len(batch), dtype=bool), np.ones(len(batch), dtype=bool)
    waiting, calls = [(0, len(batch))], 0
    while waiting:
        start, stop = waiting.pop(0)
        if calls >= CALLS_TO_ISOLATE:
            told[start:stop] = False
            continue
        part = batch if stop - start == len(batch) else batch.slice(start, stop)
        began = time.perf_counter()
        try:
            found, _ = answers(side, part, size)
        except LikewiseError:
            found = None
        calls += 1
        meter.count(side.name, len(part), time.perf_counter() - began)
        if found is not None:
            parts.append(found)
            answered[start:stop] = True
        elif stop - start > 1:
            middle = (start + stop) // 2
            # In the order of the rows: answers are joined as they come.
            waiting[:0] = [(start, middle), (middle, stop)]
    return _Answers(joined(side, parts) if parts else None, answered, told)


def _refused(ours: _Answers, theirs: _Answers) -> Array:
    refused = np.select(
        [ours.answered & theirs.answered, theirs.answered, ours.answered],
        [ANSWERED, REFERENCE_ALONE, CANDIDATE_ALONE],
        default=BOTH,
    )
    unknown = ~(ours.told & theirs.told)
    return np.where(unknown & ~(ours.answered & theirs.answered), NOT_TOLD, refused)


def _rows(found: _Answers, positions: Array) -> Tensors:
    assert found.tensors is not None
    if found.answered.all() and len(positions) == len(found.answered):
        return found.tensors
    places = np.cumsum(found.answered) - 1
    return {name: array[places[positions]] for name, array in found.tensors.items()}
