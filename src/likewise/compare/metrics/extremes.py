"""Between which numbers the answers of either side lie.

Whatever leaves 0 and 1 is no probability; and where the reference hardly moves, a tolerance may be so wide
that any answer is within it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from likewise.compare.differences import rows_of
from likewise.contracts.comparison import Json, Pair, PairSpec
from likewise.contracts.data import Array
from likewise.contracts.models import Kind

MOST_COLUMNS = 1_024
"""Columns that are told apart; wider answers are taken together."""

Bounds = tuple[bytes, bytes]
"""The smallest and the largest finite answer of each column, as float64; an empty column has inf and -inf."""


@dataclass(frozen=True, slots=True)
class Extremes:
    """The bounds of either side, column by column; None before the first answer."""

    reference: Bounds | None = None
    candidate: Bounds | None = None

    def merge(self, other: Extremes, /) -> Extremes:
        return Extremes(_merged(self.reference, other.reference), _merged(self.candidate, other.candidate))

    def measurements(self) -> Mapping[str, float]:
        return {}

    def details(self) -> Mapping[str, Json]:
        """`widest` are the bounds of the reference in the column where they are furthest apart."""
        return {
            "reference": _overall(self.reference),
            "candidate": _overall(self.candidate),
            "widest": _widest(self.reference),
        }


class ExtremesMetric:
    """The bounds of numbers."""

    name = "extremes"

    def applies_to(self, spec: PairSpec, *, numeric: bool) -> bool:
        return numeric and spec.kind is not Kind.LABEL

    def empty(self) -> Extremes:
        return Extremes()

    def observe(self, pair: Pair) -> Extremes:
        return Extremes(_bounds(pair.reference), _bounds(pair.candidate))


def _bounds(array: Array) -> Bounds | None:
    if not array.size:
        return None
    columns = rows_of(array) if array.size // len(array) <= MOST_COLUMNS else array.reshape(-1, 1)
    low, high = columns.min(axis=0).astype(np.float64), columns.max(axis=0).astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        finite = np.isfinite(columns)
        low = np.where(finite, columns, np.inf).min(axis=0).astype(np.float64)
        high = np.where(finite, columns, -np.inf).max(axis=0).astype(np.float64)
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


EXTENSION = ExtremesMetric()
