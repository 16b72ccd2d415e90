"""Totals, tallies and quantiles that do not depend on the order in which numbers arrive.

A float sum depends on its order; here every number is split into integers first, so partial
results of any batches merge to the same bits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.values import dataclass

BLOCK = 2**14
"""Elements worked on at a time: temporaries stay in the cache and off the page-fault path."""

SCALE = 2304
"""A sum counts units of 2**-SCALE, fine enough for the product of the two smallest doubles."""

_SAFE_SMALL = 2.0**-960
_SAFE_LARGE = 2.0**960


Found = TypeVar("Found")


def merged(one: Found, other: Found, **given: Any) -> Found:
    """Two summaries of one kind as one, field by field: counts add up, sets unite, summaries in them merge.

    What is `given` is taken as it is.
    """
    for name in one.__dataclass_fields__:  # type: ignore[attr-defined]
        if name in given:
            continue
        ours, theirs = getattr(one, name), getattr(other, name)
        if hasattr(ours, "merge"):
            given[name] = ours.merge(theirs)
        else:
            given[name] = ours | theirs if isinstance(ours, frozenset) else ours + theirs
    return type(one)(**given)


def unpacked(types: str, *stored: bytes) -> tuple[Array, ...]:
    """Arrays that are kept as bytes, which are immutable and can be compared: `q` is int64, `d` float64."""
    return tuple(np.frombuffer(part, dtype=kind) for part, kind in zip(stored, types, strict=True))


@dataclass(frozen=True, slots=True)
class ExactSum:
    """A sum of doubles without rounding, as a whole number of units of 2**-2304."""

    units: int = 0

    def merge(self, other: ExactSum, /) -> ExactSum:
        return ExactSum(self.units + other.units)

    def minus(self, other: ExactSum) -> ExactSum:
        return ExactSum(self.units - other.units)

    def mean(self, count: int) -> float:
        """The double nearest to the sum divided by `count`, or infinity where no double is that large."""
        return ratio(self.units, count << SCALE)


def ratio(numerator: int, denominator: int) -> float:
    """The double nearest to a quotient of whole numbers."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if (numerator < 0) == (denominator < 0) else -math.inf


class Adder:
    """Adds up arrays, block after block, into an exact sum.

    Of every value the part that is a multiple of one power of two is taken off, coarse enough for the sum of a block of
    such parts to be a double; then of what is left, until nothing is. No addition or subtraction of floats ever rounds.
    """

    __slots__ = ("_units",)

    def __init__(self) -> None:
        self._units = 0

    def add(self, values: Array) -> None:
        """Add finite float64 values."""
        flat = np.ascontiguousarray(values, dtype=np.float64).ravel()
        for start in range(0, flat.size, BLOCK):
            self._units += _units_of(flat[start : start + BLOCK])

    def add_products(self, left: Array, right: Array, *, short: bool = False) -> None:
        """Add the products of finite float64 values, each rounded to 53 bits, at any exponent.

        `short`: both sides were float32 or less, of which no product is rounded or out of range.
        """
        with np.errstate(all="ignore"):
            products = left * right
        if short or not left.size:
            self.add(products)
            return
        sizes = np.abs(products)
        if sizes.min() >= _SAFE_SMALL and sizes.max() < math.inf:
            self.add(products)
            return
        unsafe = ~((sizes >= _SAFE_SMALL) & (sizes < math.inf)) & (left != 0) & (right != 0)
        if not unsafe.any():
            self.add(products)
            return
        self.add(products[~unsafe])
        self._add_extreme_products(left[unsafe], right[unsafe])

    def total(self) -> ExactSum:
        return ExactSum(self._units)

    def _add_extreme_products(self, left: Array, right: Array) -> None:
        """Products beyond the range of a double: mantissas are multiplied, exponents added apart."""
        left, left_exponents = np.frexp(left)
        right, right_exponents = np.frexp(right)
        exponents = left_exponents.astype(np.int64) + right_exponents
        groups = exponents >> 8
        products = np.ldexp(left * right, exponents & 255)
        least = int(groups.min())
        for group in (least + np.flatnonzero(np.bincount(groups - least))).tolist():
            shift, units = group * 256, _units_of(products[groups == group])
            self._units += units << shift if shift >= 0 else units >> -shift


def _units_of(block: Array) -> int:
    """What the values of a block add up to."""
    largest = float(max(block.max(), -block.min())) if block.size else 0.0
    if largest >= _SAFE_LARGE:
        # Adding a few of them would overflow: they are scaled down first, which is exact.
        huge = np.abs(block) >= _SAFE_LARGE
        return _units_of(block[~huge]) + (_units_of(block[huge] * 2.0**-200) << 200)
    units, grown, left = 0, block.size.bit_length() + 1, block
    while largest:
        # Added to this power of two, values are rounded to multiples of less than 2**-52 of it, and even if all are as
        # large as the largest, their sum stays below it.
        power = math.ldexp(1.0, math.frexp(largest)[1] + grown)
        coarse = left + power
        coarse -= power
        numerator, denominator = float(coarse.sum()).as_integer_ratio()
        units += numerator << (SCALE + 1 - denominator.bit_length())
        left = np.subtract(left, coarse, out=coarse)
        # Differences of float32 have few digits.
        largest = float(max(left.max(), -left.min()))
    return units


def above_and_below(total: ExactSum, sizes: ExactSum) -> tuple[ExactSum, ExactSum]:
    """What positive and what negative values add up to, as magnitudes: given the sum of all, and of their sizes."""
    return ExactSum((sizes.units + total.units) >> 1), ExactSum((sizes.units - total.units) >> 1)


_BUCKET_BITS = 45
BUCKET_ERROR = 2.0**-7
"""A quantile from a histogram is too large by at most this share of itself, and never too small."""


@dataclass(frozen=True, slots=True)
class LogHistogram:
    """How often non-negative numbers occur, in fixed buckets of less than 0.8% width.

    A bucket holds the doubles whose bit pattern is in (k-1, k] * 2**45, so its upper edge is itself
    a member and zero has a bucket of its own. Buckets and counts are int64 arrays kept as bytes,
    because bytes are immutable and can be compared.
    """

    buckets: bytes = b""
    counts: bytes = b""
    maximum: float = 0.0

    @staticmethod
    def of(*blocks: Array) -> LogHistogram:
        """Count float64 values that are not negative and not NaN."""
        found = Window.of([np.ascontiguousarray(block, dtype=np.float64).ravel() for block in blocks if block.size])
        counts = np.zeros(found.width, dtype=np.int64)
        for places in found.places:
            counts += np.bincount(places, minlength=found.width)
        used = np.flatnonzero(counts)
        return LogHistogram(found.buckets(used).tobytes(), counts[used].tobytes(), found.largest)

    def merge(self, other: LogHistogram, /) -> LogHistogram:
        if not self.buckets or not other.buckets:
            return self if self.buckets else other
        keys, amounts = (np.concatenate(both) for both in zip(self._arrays(), other._arrays(), strict=True))
        order = np.argsort(keys, kind="stable")
        keys, amounts = keys[order], amounts[order]
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        buckets, counts = keys[starts], np.add.reduceat(amounts, starts)
        return LogHistogram(buckets.tobytes(), counts.tobytes(), max(self.maximum, other.maximum))

    @property
    def count(self) -> int:
        return int(self._arrays()[1].sum())

    def quantile(self, share: float) -> float:
        """A number that at least this share of the values do not exceed, at most 0.8% above the smallest such."""
        buckets, counts = self._arrays()
        reached = np.cumsum(counts)
        rank = max(1, math.ceil(share * int(reached[-1])))
        edge = upper_edge(int(buckets[np.searchsorted(reached, rank)]))
        return min(edge, self.maximum)

    def spans(self, *, finest: bool = False) -> list[list[float]]:
        """Occupied buckets as [above, up to, count]: 16 to a power of two, or as fine as they were counted."""
        buckets, counts = self._arrays()
        merging = 0 if finest else 3
        groups = -(-buckets >> merging)
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        ends = np.stack([np.maximum(groups[starts] - 1, 0), groups[starts]], axis=1) << merging
        edges = (ends << _BUCKET_BITS).view(np.float64).tolist()
        amounts = np.add.reduceat(counts, starts).tolist() if len(starts) else []
        return [[*between, amount] for between, amount in zip(edges, amounts, strict=True)]

    def quarter_decades(self) -> list[list[float]]:
        """The histogram to draw: [above, up to, count] with four bars to a power of ten."""
        amounts: dict[int | None, int] = {}
        for _, edge, amount in self.spans(finest=True):
            quarter = math.ceil(4 * math.log10(min(edge, sys.float_info.max))) if edge > 0 else None
            amounts[quarter] = amounts.get(quarter, 0) + int(amount)
        return [
            [0.0, 0.0, amount] if quarter is None else [_power(quarter - 1), _power(quarter), amount]
            for quarter, amount in amounts.items()
        ]

    def _arrays(self) -> tuple[Array, ...]:
        return unpacked("qq", self.buckets, self.counts)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The buckets of some values, laid next to each other: `places` has those of every array, zero in place 0.

    Zero is far from every other bucket: apart from it, few are between the smallest and the largest.
    """

    places: Iterable[Array]
    lowest: int
    width: int
    largest: float

    @staticmethod
    def of(blocks: Sequence[Array]) -> Window:
        """Of float64 values that are not negative and not NaN; no array may be empty."""
        ends = np.array([(_smallest(block), block.max()) for block in blocks]).reshape(-1, 2)
        largest = float(ends[:, 1].max(initial=0.0))
        lowest, highest = buckets_of(np.array([min(ends[:, 0].min(initial=largest), largest), largest])).tolist()
        places = (np.maximum(buckets_of(block) - (lowest - 1), 0) for block in blocks)
        return Window(places, lowest, highest - lowest + 2, largest)

    def buckets(self, places: Array) -> Array:
        """The buckets of some places."""
        return np.where(places, places + (self.lowest - 1), 0)


def _smallest(block: Array) -> float:
    """The smallest value above zero; infinite where there is none."""
    least = float(block.min())
    if least:
        return least
    # Numbers from zero on are in the order of their bits; of those of zero, one less is the most there is.
    before = int((block.view(np.uint64) - np.uint64(1)).min())
    return float(np.uint64(before + 1).view(np.float64)) if before < 2**64 - 1 else math.inf


def buckets_of(values: Array) -> Array:
    """The bucket of each float64 value; none may be negative or NaN. Larger values are in later buckets, zero in 0."""
    keys: Array = (values.view(np.int64) + (2**_BUCKET_BITS - 1)) >> _BUCKET_BITS
    return keys


def upper_edge(bucket: int) -> float:
    """The largest number in a bucket."""
    return float(np.int64(bucket << _BUCKET_BITS).view(np.float64))


def _power(quarter: int) -> float:
    try:
        return float(10.0 ** (quarter / 4))
    except OverflowError:
        return math.inf
