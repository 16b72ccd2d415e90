"""How differences and answers are spread: quantiles of the differences, where they are, and between which numbers.

Quantiles come from a fixed histogram and are at most 0.8% too large. Deciles can be told only at the end, so a fixed
histogram of the reference is kept; every bucket has a count, a count beyond tolerance and the largest difference,
which merge exactly. Extremes tell what is no probability because it leaves 0 and 1; and where the reference hardly
moves, that a tolerance may be so wide that any answer is within it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from likewise.compare.differences import PairMetric, blocks_of, rows_of
from likewise.compare.sums import BUCKET_ERROR, LogHistogram, Window, unpacked, upper_edge
from likewise.contracts.comparison import Json, Pair
from likewise.contracts.data import Array
from likewise.contracts.values import dataclass

QUANTILES = {
    "p50_abs_diff": 0.5,
    "p90_abs_diff": 0.9,
    "p95_abs_diff": 0.95,
    "p99_abs_diff": 0.99,
    "p99_9_abs_diff": 0.999,
}


@dataclass(frozen=True, slots=True)
class Distribution:
    """The absolute differences of all finite elements, counted by size."""

    histogram: LogHistogram = field(default_factory=LogHistogram)

    def merge(self, other: Distribution, /) -> Distribution:
        return Distribution(self.histogram.merge(other.histogram))

    def measurements(self) -> Mapping[str, float]:
        if not self.histogram.count:
            return {}
        return {name: self.histogram.quantile(share) for name, share in QUANTILES.items()}

    def details(self) -> Mapping[str, Json]:
        return {
            "values": self.histogram.count,
            "histogram": self.histogram.quarter_decades(),
            "quantile_error": BUCKET_ERROR,
        }


def _distribution(pair: Pair) -> Distribution:
    return Distribution(LogHistogram.of(*(found.distances for found in blocks_of(pair))))


GROUPS = 10


@dataclass(frozen=True, slots=True)
class Deciles:
    """Buckets of the reference in ascending order of their keys, as bytes: immutable, and can be compared.

    A key is twice the bucket of |reference|, plus one where the reference is negative (int64). Beside it stand
    the values in it, those beyond tolerance (int64) and the largest absolute difference (float64).
    """

    keys: bytes = b""
    counts: bytes = b""
    beyond: bytes = b""
    largest: bytes = b""
    lowest: float = 0.0
    highest: float = 0.0

    def merge(self, other: Deciles, /) -> Deciles:
        if not self.keys or not other.keys:
            return self if self.keys else other
        columns = zip(self._arrays(), other._arrays(), strict=True)
        keys, counts, beyond, largest = (np.concatenate(column) for column in columns)
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
        return Deciles(
            keys[order][starts].tobytes(),
            np.add.reduceat(counts[order], starts).tobytes(),
            np.add.reduceat(beyond[order], starts).tobytes(),
            np.maximum.reduceat(largest[order], starts).tobytes(),
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
        )

    def measurements(self) -> Mapping[str, float]:
        return {}

    def details(self) -> Mapping[str, Json]:
        return {"groups": self._groups(), "edge_error": BUCKET_ERROR}

    def _groups(self) -> list[dict[str, Json]]:
        """Up to ten ranges with about as many values each; fewer where many values are equal or nearly so."""
        if not self.keys:
            return []
        keys, counts, beyond, largest = self._arrays()
        order = np.argsort(np.where(keys & 1, -(keys >> 1), keys >> 1))
        counts, before = counts[order], np.cumsum(counts[order]) - counts[order]
        # A bucket is not cut: it belongs where its middle value does.
        groups = (2 * before + counts) * GROUPS // (2 * int(counts.sum()))
        firsts = np.flatnonzero(np.diff(groups, prepend=-1))
        lasts = np.append(firsts[1:], len(groups)) - 1
        totals = zip(
            keys[order][firsts].tolist(),
            keys[order][lasts].tolist(),
            np.add.reduceat(counts, firsts).tolist(),
            np.add.reduceat(beyond[order], firsts).tolist(),
            np.maximum.reduceat(largest[order], firsts).tolist(),
            strict=True,
        )
        return [
            {
                "from": max(_edges(first)[0], self.lowest),
                "to": min(_edges(last)[1], self.highest),
                "values": values,
                "beyond": outside,
                "max_abs_diff": apart,
            }
            for first, last, values, outside, apart in totals
        ]

    def _arrays(self) -> tuple[Array, ...]:
        return unpacked("qqqd", self.keys, self.counts, self.beyond, self.largest)


def _deciles(pair: Pair) -> Deciles:
    blocks = [found for found in blocks_of(pair) if found.difference.size]
    if not blocks:
        return Deciles()
    window = Window.of([found.sizes for found in blocks])
    width = 2 * window.width
    counts, beyond, largest = np.zeros(width, dtype=np.int64), np.zeros(width, dtype=np.int64), np.zeros(width)
    for found, places in zip(blocks, window.places, strict=True):
        # Minus zero and zero are one reference, so the sign is asked of the number and not of its bits.
        keys = (places << 1) | (found.reference < 0)
        counts += np.bincount(keys, minlength=width)
        np.maximum.at(largest, keys, found.distances)
        if found.beyond.any():
            beyond += np.bincount(keys[found.beyond], minlength=width)
    used = np.flatnonzero(counts)
    return Deciles(
        ((window.buckets(used >> 1) << 1) | (used & 1)).tobytes(),
        counts[used].tobytes(),
        beyond[used].tobytes(),
        largest[used].tobytes(),
        min(float(found.reference.min()) for found in blocks) + 0.0,
        max(float(found.reference.max()) for found in blocks) + 0.0,
    )


def _edges(key: int) -> tuple[float, float]:
    """The smallest and the largest reference that a bucket may hold."""
    bucket = key >> 1
    near, far = upper_edge(max(bucket - 1, 0)), upper_edge(bucket)
    return (-far, -near) if key & 1 else (near, far)


MOST_COLUMNS = 1_024
"""Columns that are told apart; wider answers are taken together."""

ALIKE = 0.25
"""A candidate that stays within this part of what the reference moves by follows it, whatever the tolerance."""

Bounds = tuple[bytes, bytes]
"""The smallest and the largest finite answer of each column, as float64; an empty column has inf and -inf."""


COLUMNS_KEPT = 32
"""Columns that stand in a report: those that differ by most of what they move by, the narrowest first."""


@dataclass(frozen=True, slots=True)
class Extremes:
    """The bounds of either side, column by column, and of the absolute difference; None before the first answer."""

    reference: Bounds | None = None
    candidate: Bounds | None = None
    apart: Bounds | None = None

    def merge(self, other: Extremes, /) -> Extremes:
        return Extremes(
            _merged(self.reference, other.reference),
            _merged(self.candidate, other.candidate),
            _merged(self.apart, other.apart),
        )

    def measurements(self) -> Mapping[str, float]:
        return {}

    def details(self) -> Mapping[str, Json]:
        """`widest` are the bounds of the reference in the column where they are furthest apart."""
        return {
            "reference": _overall(self.reference),
            "candidate": _overall(self.candidate),
            "widest": _widest(self.reference),
            "columns": _narrowest(self.reference, self.apart),
        }


def _extremes(pair: Pair) -> Extremes:
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(pair.candidate.astype(np.float64) - pair.reference.astype(np.float64))
    return Extremes(_bounds(pair.reference), _bounds(pair.candidate), _bounds(apart))


def _bounds(array: Array) -> Bounds | None:
    if not array.size:
        return None
    # A column is a line here, which is many times faster where rows are short.
    columns = (
        np.ascontiguousarray(rows_of(array).T) if array.size // len(array) <= MOST_COLUMNS else array.reshape(1, -1)
    )
    low, high = columns.min(axis=1).astype(np.float64), columns.max(axis=1).astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        finite = np.isfinite(columns)
        low = np.where(finite, columns, np.inf).min(axis=1).astype(np.float64)
        high = np.where(finite, columns, -np.inf).max(axis=1).astype(np.float64)
    # Minus zero and zero are equal, and which of them is found depends on the order of the rows.
    return (low + 0.0).tobytes(), (high + 0.0).tobytes()


def _merged(some: Bounds | None, others: Bounds | None) -> Bounds | None:
    if some is None or others is None:
        return some or others
    (low, high), (other_low, other_high) = _arrays(some), _arrays(others)
    if len(low) != len(other_low):
        # Answers whose width changes from case to case have no columns to be told apart.
        low, high, other_low, other_high = low.min(), high.max(), other_low.min(), other_high.max()
    return np.minimum(low, other_low).tobytes(), np.maximum(high, other_high).tobytes()


def _arrays(bounds: Bounds) -> tuple[Any, Any]:
    return np.frombuffer(bounds[0]), np.frombuffer(bounds[1])


def _overall(bounds: Bounds | None) -> list[float] | None:
    if bounds is None:
        return None
    low, high = _arrays(bounds)
    found = [float(low.min()), float(high.max())]
    return found if found[0] <= found[1] else None


def _widest(bounds: Bounds | None) -> list[float] | None:
    if bounds is None:
        return None
    low, high = _arrays(bounds)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(low <= high, high - low, -1.0)
    place = int(apart.argmax())
    return [float(low[place]), float(high[place])] if apart[place] >= 0 else None


def _narrowest(bounds: Bounds | None, apart: Bounds | None) -> dict[str, Json]:
    """How many columns there are, and those of which a tolerance is most likely to cover everything."""
    if bounds is None or apart is None:
        return {"count": 0, "narrowest": []}
    (low, high), largest = _arrays(bounds), _arrays(apart)[1]
    with np.errstate(invalid="ignore", over="ignore"):
        spread = np.where((low < high) & (largest >= 0), high - low, np.inf)
        share = np.nan_to_num(np.where(np.isfinite(spread), largest / spread, 0.0), posinf=0.0, neginf=0.0)
    # A column that follows the reference needs no second look, whatever the tolerance.
    order = np.lexsort((np.arange(len(spread)), spread, share <= ALIKE))
    chosen = [int(place) for place in order[:COLUMNS_KEPT] if np.isfinite(spread[place])]
    found = [[place, float(low[place]), float(high[place]), float(largest[place])] for place in chosen]
    return {"count": len(spread), "narrowest": found}


DISTRIBUTION = PairMetric("distribution", Distribution, _distribution)
DECILES = PairMetric("deciles", Deciles, _deciles)
EXTREMES = PairMetric("extremes", Extremes, _extremes)
EXTENSIONS = (DISTRIBUTION, DECILES, EXTREMES)
