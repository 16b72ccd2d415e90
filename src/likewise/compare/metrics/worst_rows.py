"""The rows where the two sides differ most, with their inputs and both answers."""

from __future__ import annotations

import heapq
import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from likewise.compare.differences import (
    Differences,
    PairMetric,
    blocks_of,
    differences,
    is_numeric,
    largest_of_rows,
    row_any,
    rows_of,
    same_labels,
)
from likewise.contracts.comparison import Json, Pair
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.contracts.values import dataclass
from likewise.data.columns import plain

KEPT = 10
LARGEST_ROW_SHOWN = 16


@dataclass(frozen=True, slots=True)
class WorstRow:
    """One row. `shown` is JSON text: unlike the values in it, text is immutable, and equal where a value is NaN."""

    severity: float
    distance: float
    number: int
    shown: str


@dataclass(frozen=True, slots=True)
class WorstRows:
    """The few worst rows, worst first."""

    rows: tuple[WorstRow, ...] = ()

    def merge(self, other: WorstRows, /) -> WorstRows:
        return WorstRows(tuple(heapq.nsmallest(KEPT, (*self.rows, *other.rows), key=_rank)))

    def measurements(self) -> Mapping[str, float]:
        return {}

    def details(self) -> Mapping[str, Json]:
        return {"rows": [json.loads(row.shown) for row in self.rows]}


def _worst_rows(pair: Pair) -> WorstRows:
    """Rows by how far they are beyond the tolerance.

    The severity of numbers is |difference| / (absolute + relative * |reference|), so that 1 is just
    within; it is infinite where one side alone is not finite. Under a tolerance of exactly zero it
    is |difference| itself. The severity of a changed label is the reference's margin, infinite where
    that is unknown; a changed label is kept even if the margin is zero.
    """
    if not pair.reference.size:
        return WorstRows()
    if pair.spec.kind is Kind.LABEL or not (is_numeric(pair.reference) and is_numeric(pair.candidate)):
        return _worst_flips(pair)
    return _worst_numbers(pair)


def severities(pair: Pair) -> Array:
    """How far each row of numbers is beyond the tolerance, at the worst of its elements."""
    return largest_of_rows(pair, _severities, np.float64)


def at_worst(pair: Pair, positions: Array) -> tuple[list[int], list[float]]:
    """Which element of each of these rows of numbers is the worst one, and how far it is apart."""
    found = _at_worst(differences(pair.reference[positions], pair.candidate[positions], pair.tolerance))
    return [place for _, place, _ in found], [distance for _, _, distance in found]


def _at_worst(blocks: Iterable[Differences]) -> list[tuple[float, int, float]]:
    """Of every row the severity, the element that has it, and how far that is apart."""
    rows: list[tuple[float, int, float]] = []
    for found in blocks:
        severity, distances = _severities(found), found.by_row(found.distances, broken=math.inf)
        for row, place in enumerate(severity.argmax(axis=1).tolist()):
            here = float(severity[row, place]), place + found.start, float(distances[row, place])
            if not found.start:
                rows.append(here)
            elif here[0] > rows[-1][0]:
                rows[-1] = here
    return rows


def _rank(row: WorstRow) -> tuple[float, float, int]:
    return -row.severity, -row.distance, row.number


def _worst_numbers(pair: Pair) -> WorstRows:
    if len(pair.reference) <= KEPT:
        found, positions = _at_worst(blocks_of(pair)), np.arange(len(pair.reference))
    else:
        # Which element of a row is the worst one is asked only of rows that may be kept.
        severity = severities(pair)
        positions = _contenders(severity, severity > 0)
        found = _at_worst(differences(pair.reference[positions], pair.candidate[positions], pair.tolerance))
    numbers = pair.batch.rows.numbers[positions].tolist()
    entries = zip(found, numbers, positions.tolist(), strict=True)
    differing = [entry for entry in entries if entry[0][0] > 0]
    kept = heapq.nsmallest(KEPT, differing, key=lambda entry: (-entry[0][0], -entry[0][2], entry[1]))
    return WorstRows(
        tuple(
            _row(pair, severity_of_row, apart, position, place, measured=True)
            for (severity_of_row, place, apart), _, position in kept
        )
    )


def _worst_flips(pair: Pair) -> WorstRows:
    differs = rows_of(~same_labels(pair.reference, pair.candidate))
    severity = np.full(len(differs), math.inf)
    if pair.margin is not None:
        margin = np.asarray(pair.margin, dtype=np.float64).reshape(len(differs))
        severity = np.where(np.isnan(margin), math.inf, margin)
    positions = _contenders(severity, row_any(differs))
    order = np.lexsort((pair.batch.rows.numbers[positions], -severity[positions]))
    return WorstRows(
        tuple(
            _row(pair, float(severity[position]), 0.0, int(position), int(differs[position].argmax()), measured=False)
            for position in positions[order][:KEPT]
        )
    )


def _contenders(severity: Array, differs: Array) -> Array:
    """Positions of the rows that may be among the worst: all that are as bad as the last one kept."""
    positions = np.flatnonzero(differs)
    if len(positions) <= KEPT:
        return positions
    least = np.partition(severity[positions], -KEPT)[-KEPT]
    return np.asarray(positions[severity[positions] >= least])


def _severities(found: Differences) -> Array:
    distances = found.distances
    if found.tolerance.absolute or found.tolerance.relative:
        # Where nothing is allowed the smallest normal double stands in; infinity is for non-finite answers.
        distances = np.minimum(found.over_allowed(sys.float_info.min), sys.float_info.max)
    return found.by_row(distances, broken=math.inf)


def _row(pair: Pair, severity: float, distance: float, position: int, place: int, *, measured: bool) -> WorstRow:
    reference, candidate = pair.reference[position], pair.candidate[position]
    index = tuple(int(along) for along in np.unravel_index(place, np.shape(reference)))
    number = int(pair.batch.rows.numbers[position])
    shown: dict[str, Any] = {"row": pair.batch.rows.name(position), "number": number, "severity": severity}
    if measured:
        shown["abs_diff"] = distance if math.isfinite(distance) else _nonfinite_distance(reference, candidate, index)
    shown["index"] = list(index)
    if pair.spec.classes is not None and len(index) == 1 and index[0] < len(pair.spec.classes):
        shown["label"] = pair.spec.classes[index[0]]
    shown["reference"] = _answer(reference, index)
    shown["candidate"] = _answer(candidate, index)
    shown["inputs"] = pair.batch.inputs.row(position)
    return WorstRow(severity, distance, number, json.dumps(shown, default=plain))


def _nonfinite_distance(reference: Any, candidate: Any, index: tuple[int, ...]) -> float:
    return abs(float(np.asarray(candidate)[index]) - float(np.asarray(reference)[index]))


def _answer(answer: Any, index: tuple[int, ...]) -> Any:
    """The whole answer, or of a large one its shape, its head and the element in question."""
    if np.size(answer) <= LARGEST_ROW_SHOWN:
        return plain(answer)
    return {**plain(answer), "worst": plain(answer[index])}


EXTENSION = PairMetric("worst_rows", WorstRows, _worst_rows, frozenset(Kind), numbers=False)
