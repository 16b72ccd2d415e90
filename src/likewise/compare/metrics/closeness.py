"""How far apart numbers are: largest, mean, relative, in units of last place, as a whole.

Sums are exact and everything else is a count or a maximum, so the figures have the same bits
however the rows were cut.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np

from likewise.compare.differences import (
    Constancy,
    Differences,
    PairMetric,
    blocks_of,
    integer_rounding,
    is_numeric,
    largest_of_rows,
    row_any,
    rows_of,
    same_labels,
)
from likewise.compare.sums import Adder, ExactSum, above_and_below, merged, ratio
from likewise.contracts.comparison import Json, Pair
from likewise.contracts.data import Array
from likewise.contracts.values import dataclass

RELATIVE_FLOOR = 1e-6
"""`max_rel_diff` divides by at least this much: below it a relative error tells of rounding, not of the model."""

_SUBNORMAL = -1022
_MAGNITUDES = 2048


@dataclass(frozen=True, slots=True)
class Sums:
    """Exact totals over finite elements: differences of either sign, and products with themselves and each other."""

    above: ExactSum = field(default_factory=ExactSum)
    below: ExactSum = field(default_factory=ExactSum)
    reference_squared: ExactSum = field(default_factory=ExactSum)
    candidate_squared: ExactSum = field(default_factory=ExactSum)
    product: ExactSum = field(default_factory=ExactSum)
    difference_squared: ExactSum = field(default_factory=ExactSum)

    def merge(self, other: Sums, /) -> Sums:
        return merged(self, other)

    def cosine(self) -> float | None:
        """The cosine of the angle between all answers of either side; None when both are zero throughout."""
        lengths = self.reference_squared.units * self.candidate_squared.units
        if lengths:
            return max(-1.0, min(1.0, ratio(self.product.units, math.isqrt(lengths))))
        return 0.0 if self.reference_squared.units or self.candidate_squared.units else None

    def sqnr_db(self) -> float:
        """Signal to noise: the reference's energy over the energy of the difference, in decibels."""
        signal, noise = self.reference_squared.units, self.difference_squared.units
        if not noise:
            return math.inf
        if not signal:
            return -math.inf
        quotient = ratio(signal, noise)
        # Beyond the normal doubles the quotient has lost digits that the logarithms keep.
        if sys.float_info.min <= quotient < math.inf:
            return 10 * math.log10(quotient)
        return 10 * (math.log10(signal) - math.log10(noise))


Magnitude = tuple[int | None, int, float]
"""The exponent of the reference (None: it is zero), how many elements have it, their largest difference."""


@dataclass(frozen=True, slots=True)
class Closeness:
    """What is known about the differences of one pair of numeric outputs."""

    rows: int = 0
    values: int = 0
    finite: int = 0
    nan_both: int = 0
    nonfinite_mismatch: int = 0
    mismatches: int = 0
    rows_beyond: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: int = 0
    sums: Sums = field(default_factory=Sums)
    magnitudes: tuple[Magnitude, ...] = ()
    reference: Constancy = field(default_factory=Constancy)
    candidate: Constancy = field(default_factory=Constancy)
    integer_rounding: float | None = None

    def merge(self, other: Closeness, /) -> Closeness:
        known = [found for found in (self.integer_rounding, other.integer_rounding) if found is not None]
        return merged(
            self,
            other,
            max_abs=max(self.max_abs, other.max_abs),
            max_rel=max(self.max_rel, other.max_rel),
            max_ulp=max(self.max_ulp, other.max_ulp),
            magnitudes=_merge_magnitudes(self.magnitudes, other.magnitudes),
            integer_rounding=max(known, default=None),
        )

    def measurements(self) -> Mapping[str, float]:
        if not self.values:
            return {}
        counts = {
            "mismatch_rate": self.mismatches / self.values,
            "mismatches": float(self.mismatches),
            "rows_beyond": float(self.rows_beyond),
            "nonfinite_mismatch": float(self.nonfinite_mismatch),
            "nan_both": float(self.nan_both),
            "nan_share": self.nan_both / self.values,
        }
        if not self.finite:
            return counts
        cosine = self.sums.cosine()
        return {
            "max_abs_diff": self.max_abs,
            "mean_abs_diff": self.sums.above.merge(self.sums.below).mean(self.finite),
            "mean_diff": self.sums.above.minus(self.sums.below).mean(self.finite),
            "max_rel_diff": self.max_rel,
            "max_ulp_diff": float(self.max_ulp),
            "sqnr_db": self.sums.sqnr_db(),
            **({} if cosine is None else {"cosine": cosine}),
            **counts,
        }

    def details(self) -> Mapping[str, Json]:
        return {
            "rows": self.rows,
            "values": self.values,
            "finite": self.finite,
            "nan_both": self.nan_both,
            "relative_floor": RELATIVE_FLOOR,
            "integer_rounding": self.integer_rounding,
            "magnitudes": [
                {"exponent": exponent, "count": count, "max_abs_diff": largest}
                for exponent, count, largest in self.magnitudes
            ],
            "constant_reference": self.reference.constant,
            "constant_candidate": self.candidate.constant,
        }


def _closeness(pair: Pair) -> Closeness:
    tracker = _Tracker()
    for found in blocks_of(pair):
        tracker.add(found)
    summary = tracker.closeness(Constancy.of(pair.reference), Constancy.of(pair.candidate))
    wrong = summary.mismatches or (summary.nan_both and not pair.nan_equal)
    return replace(
        summary,
        rows=len(pair.reference),
        rows_beyond=int(np.count_nonzero(rows_beyond(pair))) if wrong else 0,
        integer_rounding=integer_rounding(pair.reference, pair.candidate),
    )


def rows_beyond(pair: Pair) -> Array:
    """Which rows hold an element that the tolerance does not cover, or NaN on both sides where that does not agree."""
    if not (is_numeric(pair.reference) and is_numeric(pair.candidate)):
        return row_any(rows_of(~same_labels(pair.reference, pair.candidate)))
    return largest_of_rows(pair, lambda found: found.by_row(found.beyond, broken=True, nan=not pair.nan_equal), bool)


class _Tracker:
    """Follows one pair block by block; what it found is turned into a summary once, at the end."""

    def __init__(self) -> None:
        self._values = self._finite = self._nan_both = self._broken = self._outside = self._max_ulp = 0
        self._max_abs = self._max_rel = 0.0
        self._difference, self._distance, self._difference_squared = Adder(), Adder(), Adder()
        self._reference, self._candidate, self._product = Adder(), Adder(), Adder()
        self._short = False
        self._counts = np.zeros(_MAGNITUDES, dtype=np.int64)
        self._largest = np.zeros(_MAGNITUDES)

    def add(self, found: Differences) -> None:
        self._values += found.values
        self._finite += found.difference.size
        self._nan_both += found.nan_both
        self._broken += 0 if found.broken is None else int(np.count_nonzero(found.broken))
        self._outside += int(np.count_nonzero(found.beyond))
        if found.difference.size:
            self._add_finite(found)

    def _add_finite(self, found: Differences) -> None:
        distances, sizes = found.distances, found.sizes
        self._max_abs = max(self._max_abs, float(distances.max()))
        self._max_rel = max(self._max_rel, float(found.over_sizes(RELATIVE_FLOOR).max()))
        self._max_ulp = max(self._max_ulp, found.largest_ulp())
        for part, times in found.parts():
            for _ in range(times):
                self._difference.add(part)
                self._distance.add(np.abs(part))
        self._reference.add_products(found.reference, found.reference, short=found.short)
        self._candidate.add_products(found.candidate, found.candidate, short=found.short)
        self._product.add_products(found.reference, found.candidate, short=found.short)
        self._short = found.short
        for part, times in () if found.short else found.parts():
            for _ in range(times**2):
                self._difference_squared.add_products(part, part)
        bits = sizes.view(np.int64)
        # 0 is zero, 1 is subnormal, every further key is one power of two.
        keys = (bits >> 52) + (bits != 0)
        self._counts += np.bincount(keys, minlength=_MAGNITUDES)
        np.maximum.at(self._largest, keys, distances)

    def closeness(self, reference: Constancy, candidate: Constancy) -> Closeness:
        above, below = above_and_below(self._difference.total(), self._distance.total())
        adders = (self._reference, self._candidate, self._product, self._difference_squared)
        reference_squared, candidate_squared, product, difference_squared = (adder.total() for adder in adders)
        if self._short:
            # Products of float32 are exact, and then so is this.
            units = reference_squared.units + candidate_squared.units - 2 * product.units
            difference_squared = ExactSum(units)
        used = np.flatnonzero(self._counts)
        magnitudes = zip(used.tolist(), self._counts[used].tolist(), self._largest[used].tolist(), strict=True)
        return Closeness(
            values=self._values,
            finite=self._finite,
            nan_both=self._nan_both,
            nonfinite_mismatch=self._broken,
            mismatches=self._outside + self._broken,
            max_abs=self._max_abs,
            max_rel=self._max_rel,
            max_ulp=self._max_ulp,
            sums=Sums(above, below, reference_squared, candidate_squared, product, difference_squared),
            magnitudes=tuple((key + _SUBNORMAL - 1 if key else None, *rest) for key, *rest in magnitudes),
            reference=reference,
            candidate=candidate,
        )


def _merge_magnitudes(some: tuple[Magnitude, ...], others: tuple[Magnitude, ...]) -> tuple[Magnitude, ...]:
    if not some or not others:
        return some or others
    together = {exponent: (count, largest) for exponent, count, largest in some}
    for exponent, count, largest in others:
        before, largest_before = together.get(exponent, (0, 0.0))
        together[exponent] = (before + count, max(largest_before, largest))
    ordered = sorted(together, key=lambda exponent: -math.inf if exponent is None else exponent)
    return tuple((exponent, *together[exponent]) for exponent in ordered)


EXTENSION = PairMetric("closeness", Closeness, _closeness)
