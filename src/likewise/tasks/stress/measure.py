"""How far two models are apart on rows under change, measured by the code of the gate.

A row that a model refuses is found by halving the batch. Refused by both it says nothing; refused by
one alone it is a difference of another kind, and is kept apart.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
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
from likewise.tasks.stress.space import Rows, together

CALLS_TO_ISOLATE = 64
"""Calls of one model spent on finding the rows of one batch that it refuses."""

BARELY = 1.0 + sys.float_info.epsilon
"""The severity of a changed label where nothing tells how sure the reference was: just beyond."""

ANSWERED, REFERENCE_ALONE, CANDIDATE_ALONE, BOTH, NOT_TOLD = range(5)
"""Who refused a row. The last: finding out would have taken too many calls."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Rows and what each showed, all figures of a row from one and the same call.

    Severity is the difference in units of the tolerance, zero where a row was not answered by both. `apart` is the
    absolute difference that the severity is of, NaN where no output holds numbers.
    """

    rows: Rows
    severity: Array
    beyond: Array
    apart: Array
    refused: Array

    def __len__(self) -> int:
        return len(self.severity)

    @property
    def worst(self) -> float:
        """The severity of the first row."""
        return float(self.severity[0]) if len(self.severity) else 0.0

    def take(self, positions: Array | list[int]) -> Found:
        """Some of the rows."""
        at = np.asarray(positions, dtype=np.int64)
        return Found(self.rows.take(at), self.severity[at], self.beyond[at], self.apart[at], self.refused[at])

    def ranked(self) -> Found:
        """All rows that were answered, the worst first; ties as they are."""
        answered = np.flatnonzero(self.refused == ANSWERED)
        return self.take(answered[np.argsort(-self.severity[answered], kind="stable")])


def gathered(parts: Sequence[Found]) -> Found:
    """Several after each other."""
    names = ("severity", "beyond", "apart", "refused")
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in names]
    return Found(together([part.rows for part in parts]), *columns)


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


def measure(prepared: Prepared, rows: Rows, batch: Batch, meter: Meter, *, size: int | None = None) -> Found:
    """Ask both models about rows, which `batch` holds in their form, and compare."""
    ours, theirs = (_answered(side, batch, meter, size) for side in (prepared.reference, prepared.candidate))
    refused = np.select(
        [ours.answered & theirs.answered, ~(ours.told & theirs.told), theirs.answered, ours.answered],
        [ANSWERED, NOT_TOLD, REFERENCE_ALONE, CANDIDATE_ALONE],
        default=BOTH,
    )
    severity, beyond, apart = np.zeros(len(batch)), np.zeros(len(batch), dtype=bool), np.full(len(batch), np.nan)
    good = np.flatnonzero(refused == ANSWERED)
    if len(good):
        asked = batch if len(good) == len(batch) else rows_at(batch, good)
        severity[good], beyond[good], apart[good] = compared(prepared, asked, ours.at(good), theirs.at(good))
    return Found(rows, severity, beyond, apart, refused)


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
        own = _severity(pair)
        severity = np.maximum(severity, own)
        beyond |= rows_beyond(pair)
        if _holds_numbers(pair):
            # Rows that are NaN through and through on both sides agree, and nothing was measured on them.
            nothing = (rows_of(np.isnan(pair.reference)) & rows_of(np.isnan(pair.candidate))).all(axis=1)
            worse = np.flatnonzero((own > decided) & ~nothing)
            apart[worse], decided[worse] = at_worst(pair, worse)[1], own[worse]
    return severity, beyond, apart


def _severity(pair: Pair) -> Array:
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


def _holds_numbers(pair: Pair) -> bool:
    numeric = is_numeric(pair.reference) and is_numeric(pair.candidate)
    return numeric and pair.spec.kind is not Kind.LABEL and bool(pair.reference.size)


@dataclass(frozen=True, slots=True, eq=False)
class _Answers:
    """The answers to the rows that a model does not refuse. `told`: it is known whether it refuses a row."""

    tensors: Tensors
    answered: Array
    told: Array

    def at(self, positions: Array) -> Tensors:
        """The answers to some rows, all of them answered."""
        if len(positions) == len(self.answered):
            return self.tensors
        places = (np.cumsum(self.answered) - 1)[positions]
        return {name: array[places] for name, array in self.tensors.items()}


def _answered(side: Side, batch: Batch, meter: Meter, size: int | None) -> _Answers:
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
            parts.append(answers(side, part, size)[0])
            answered[start:stop] = True
        except LikewiseError:
            if stop - start > 1:
                middle = (start + stop) // 2
                # In the order of the rows: answers are joined as they come.
                waiting[:0] = [(start, middle), (middle, stop)]
        calls += 1
        meter.count(side.name, len(part), time.perf_counter() - began)
    return _Answers(joined(side, parts) if parts else {}, answered, told)
