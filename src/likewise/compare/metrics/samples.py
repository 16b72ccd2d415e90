"""Answers to a sample of rows: whether the candidate puts them in the reference's order, and points to draw.

The sample are the rows whose numbers have the smallest hashes, so that it is the same however the rows were cut: all
pairs of all rows would be too many to order. The rows that differ most are not looked for: `worst_rows` has them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from likewise.compare.differences import PairMetric
from likewise.compare.sums import unpacked
from likewise.contracts.comparison import Json, Pair
from likewise.contracts.data import Array, RowIds
from likewise.contracts.models import Kind
from likewise.contracts.values import dataclass
from likewise.data.selection import hashed, smallest

SAMPLE = 512
"""Rows whose order is compared: 130,816 pairs."""

MOST_COLUMNS = 64
"""Wider rows are not scores to sort by, and a sample of them would not be small."""

_KINDS = frozenset({Kind.SCORE, Kind.PROBABILITY, Kind.VALUE, Kind.DISTANCE})
_UNRANKABLE = -1


@dataclass(frozen=True, slots=True)
class Ranking:
    """A sample of rows with both sides' answers, ordered by the hash of the row number.

    The arrays (int64 row numbers, float64 answers) are kept as bytes, which are immutable and can
    be compared even where an answer is NaN. `columns` is -1 once rows are too wide or differ in width.
    """

    seen: int = 0
    columns: int = 0
    rows: bytes = b""
    reference: bytes = b""
    candidate: bytes = b""

    def merge(self, other: Ranking, /) -> Ranking:
        if not self.seen or not other.seen:
            return self if self.seen else other
        seen = self.seen + other.seen
        if self.columns != other.columns or self.columns == _UNRANKABLE:
            return Ranking(seen, _UNRANKABLE)
        own, others = self._arrays(), other._arrays()
        rows, reference, candidate = (np.concatenate(both) for both in zip(own, others, strict=True))
        return _sampled(seen, rows, reference, candidate)

    def measurements(self) -> Mapping[str, float]:
        shares = [share for share in _agreement(self) if share is not None]
        return {"rank_agreement": min(shares)} if shares else {}

    def details(self) -> Mapping[str, Json]:
        if self.columns == _UNRANKABLE:
            return {
                "sampled_rows": 0,
                "skipped": f"rows have more than {MOST_COLUMNS} columns, or a varying number of them",
            }
        return {"sampled_rows": len(self._arrays()[0]), "rank_agreement_by_column": [*_agreement(self)]}

    def _arrays(self) -> tuple[Array, Array, Array]:
        rows, reference, candidate = unpacked("qdd", self.rows, self.reference, self.candidate)
        shape = (len(rows), max(self.columns, 0))
        return rows, reference.reshape(shape), candidate.reshape(shape)


@lru_cache(maxsize=1)
def _agreement(ranking: Ranking) -> tuple[float | None, ...]:
    """Column by column; kept for whoever asks next, as the measure and its details come from the same."""
    _, reference, candidate = ranking._arrays()
    return tuple(_same_order(reference[:, column], candidate[:, column]) for column in range(ranking.columns))


def _ranking(pair: Pair) -> Ranking:
    count, width = len(pair.reference), math.prod(pair.reference.shape[1:])
    if not count:
        return Ranking()
    if width > MOST_COLUMNS:
        return Ranking(count, _UNRANKABLE)
    rows = np.asarray(pair.batch.rows.numbers).astype(np.int64)
    return _sampled(count, rows, pair.reference.reshape(count, width), pair.candidate.reshape(count, width))


def _sampled(seen: int, rows: Array, reference: Array, candidate: Array) -> Ranking:
    chosen = smallest(hashed(rows), SAMPLE)
    return Ranking(
        seen,
        reference.shape[1],
        rows[chosen].tobytes(),
        reference[chosen].astype(np.float64).tobytes(),
        candidate[chosen].astype(np.float64).tobytes(),
    )


def _same_order(reference: Array, candidate: Array) -> float | None:
    """The share of pairs with different references that the candidate orders alike; its ties count half.

    A NaN of the reference is in no such pair; a NaN of the candidate orders none of its pairs right.
    """
    known = ~np.isnan(reference)
    reference, candidate = reference[known], candidate[known]
    equal = np.unique(reference, return_counts=True)[1]
    pairs = (len(reference) ** 2 - int(np.sum(equal**2))) // 2
    if not pairs:
        return None
    answered = ~np.isnan(candidate)
    # Places in the order compare several times faster than the numbers.
    ours, theirs = (_places(side[answered]) for side in (reference, candidate))
    ordered = ours[:, None] < ours
    alike = int(np.count_nonzero(ordered & (theirs[:, None] < theirs)))
    tied = int(np.count_nonzero(ordered & (theirs[:, None] == theirs)))
    return (2 * alike + tied) / (2 * pairs)


def _places(values: Array) -> Array:
    """Where each value stands among the others, equal ones at the same place."""
    return np.unique(values, return_inverse=True)[1].astype(np.int16)


POINTS = 1_000
_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class Scatter:
    """Some rows in the order of the hashes of their numbers; of each one element with both answers.

    The arrays (int64 row numbers and places in a row, float64 answers) are kept as bytes, which are
    immutable and can be compared even where an answer is NaN. `names` is empty unless rows have names.
    """

    seen: int = 0
    numbers: bytes = b""
    places: bytes = b""
    reference: bytes = b""
    candidate: bytes = b""
    names: tuple[int | str, ...] = ()

    def merge(self, other: Scatter, /) -> Scatter:
        if not self.seen or not other.seen:
            return self if self.seen else other
        columns = [np.concatenate(both) for both in zip(self._arrays(), other._arrays(), strict=True)]
        chosen = smallest(hashed(columns[0]), POINTS)
        numbers, places, reference, candidate = (column[chosen].tobytes() for column in columns)
        names: tuple[int | str, ...] = ()
        if self.names or other.names:
            both = (*self._named(), *other._named())
            names = tuple(both[position] for position in chosen.tolist())
        return Scatter(self.seen + other.seen, numbers, places, reference, candidate, names)

    def measurements(self) -> Mapping[str, float]:
        return {}

    def details(self) -> Mapping[str, Json]:
        _, places, reference, candidate = self._arrays()
        return {
            "rows_seen": self.seen,
            "row": list(self._named()),
            "element": places.tolist() if places.any() else [],
            "reference": reference.tolist(),
            "candidate": candidate.tolist(),
        }

    def _named(self) -> tuple[int | str, ...]:
        return self.names or tuple(self._arrays()[0].tolist())

    def _arrays(self) -> tuple[Array, ...]:
        return unpacked("qqdd", self.numbers, self.places, self.reference, self.candidate)


def _scatter(pair: Pair) -> Scatter:
    """Points of a scatter plot; of a wide row one element, which the hash picks too."""
    count, width = len(pair.reference), math.prod(pair.reference.shape[1:])
    if not count or not width:
        return Scatter()
    numbers = np.asarray(pair.batch.rows.numbers).astype(np.int64)
    hashes = hashed(numbers)
    chosen = smallest(hashes, POINTS)
    # The upper bits decide which rows are kept, so the lower ones are still free to pick the element.
    places = (hashes[chosen] % np.uint64(width)).astype(np.int64)
    at = (chosen, places)
    return Scatter(
        count,
        numbers[chosen].tobytes(),
        places.tobytes(),
        pair.reference.reshape(count, width)[at].astype(np.float64).tobytes(),
        pair.candidate.reshape(count, width)[at].astype(np.float64).tobytes(),
        _names(pair.batch.rows, chosen),
    )


def _names(rows: RowIds, chosen: Array) -> tuple[int | str, ...]:
    if rows.names is None:
        return ()
    named = (rows.name(position) for position in chosen.tolist())
    return tuple(name[:_LONGEST_NAME] if isinstance(name, str) else name for name in named)


RANKING = PairMetric("ranking", Ranking, _ranking, _KINDS)
SCATTER = PairMetric("scatter", Scatter, _scatter)
EXTENSIONS = (RANKING, SCATTER)
