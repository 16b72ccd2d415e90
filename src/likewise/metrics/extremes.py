"""Between which numbers the probabilities of either side lie: whatever leaves 0 and 1 is something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.measuring import Json, Pair, PairSpec
from likewise.contracts.models import Kind

Bounds = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Extremes:
    """The smallest and the largest finite answer of either side; None before the first."""

    reference: Bounds | None = None
    candidate: Bounds | None = None

    def merge(self, other: Extremes, /) -> Extremes:
        return Extremes(_merged(self.reference, other.reference), _merged(self.candidate, other.candidate))

    def measurements(self) -> Mapping[str, float]:
        return {}

    def details(self) -> Mapping[str, Json]:
        return {"reference": _listed(self.reference), "candidate": _listed(self.candidate)}


class ExtremesMetric:
    """The bounds of probabilities."""

    name = "extremes"

    def applies_to(self, spec: PairSpec, *, numeric: bool) -> bool:
        return numeric and spec.kind is Kind.PROBABILITY

    def empty(self) -> Extremes:
        return Extremes()

    def observe(self, pair: Pair) -> Extremes:
        return Extremes(_bounds(pair.reference), _bounds(pair.candidate))


def _bounds(array: Array) -> Bounds | None:
    if not array.size:
        return None
    low, high = float(array.min()), float(array.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        return _bounds(array[np.isfinite(array)])
    # Minus zero and zero are equal, and which of them is found depends on the order of the rows.
    return low + 0.0, high + 0.0


def _merged(some: Bounds | None, others: Bounds | None) -> Bounds | None:
    if some is None or others is None:
        return some or others
    return min(some[0], others[0]), max(some[1], others[1])


def _listed(bounds: Bounds | None) -> list[float] | None:
    return None if bounds is None else list(bounds)


EXTENSION = ExtremesMetric()
