"""How two arrays of answers differ, element by element: the rules every metric shares.

Differences are taken in float64, whole numbers are widened first and compared exactly, NaN agrees
with NaN, infinity with infinity of the same sign, and text with nothing but the same text.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, reduce
from typing import Any, Generic, TypeVar

import numpy as np

from likewise.contracts.comparison import Pair, PairSpec, Summary, Tolerance
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.contracts.values import dataclass

LARGEST = float(np.finfo(np.float64).max)
_SMALLEST = float(np.finfo(np.float64).smallest_subnormal)
_EXACT = 2**53
_EXACTLY = Tolerance(0.0, 0.0)
_BLOCK = 2**14

Found = TypeVar("Found", bound=Summary)

SHARED = 2**19
"""Elements of a pair whose differences are kept for whoever asks next; of more they are worked out again."""


@dataclass(frozen=True, slots=True)
class PairMetric(Generic[Found]):
    """A metric: what it says of no rows, and what of a pair; of numbers that are no labels unless it says so."""

    name: str
    empty: Callable[[], Found]
    observe: Callable[[Pair], Found]
    kinds: frozenset[Kind] = frozenset(Kind) - {Kind.LABEL}
    numbers: bool = True

    def applies_to(self, spec: PairSpec, *, numeric: bool) -> bool:
        return (numeric or not self.numbers) and spec.kind in self.kinds


def rows_of(array: Array) -> Array:
    """The array as a table: one line a row, whatever the shape of a row."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


def row_any(marks: Array) -> Array:
    """Which rows of a two-dimensional array of booleans hold a mark."""
    return row_max(marks) if marks.shape[1] else np.zeros(len(marks), dtype=bool)


def row_max(values: Array) -> Array:
    """The largest value of each row; column by column where rows are short, which is many times faster."""
    if values.shape[1] > 16:
        return np.asarray(values.max(axis=1))
    largest: Array = reduce(np.maximum, values.T)
    return largest


def is_numeric(array: Array) -> bool:
    """Whether the array holds numbers or booleans, not text or objects."""
    return array.dtype.kind in "biuf"


@dataclass(frozen=True)
class Differences:
    """Some consecutive rows of a pair; what several metrics ask for is worked out once.

    The arrays are flat and hold only elements that are finite on both sides; `finite` says which
    those are, `broken` which are non-finite on one side only or of opposite sign, and `nan` which are
    NaN on both. All are None when every element is finite. `precision` is the coarser float type of
    the two sides, if any; `short`: both are float32 or less. Of rows that are very wide it is a piece of one, which
    begins at the element `start` of it. `overflown` says which differences are too large for a double, None where none
    is: they are told as the largest double, and compared and added up in halves.
    """

    rows: int
    width: int
    reference: Array
    candidate: Array
    difference: Array
    precision: np.dtype[Any] | None
    finite: Array | None = None
    broken: Array | None = None
    nan: Array | None = None
    tolerance: Tolerance = _EXACTLY
    short: bool = False
    start: int = 0
    overflown: Array | None = None

    @cached_property
    def distances(self) -> Array:
        return np.abs(self.difference)

    @cached_property
    def sizes(self) -> Array:
        """How large the reference is."""
        return np.abs(self.reference)

    @cached_property
    def allowed(self) -> Array:
        """How far apart the tolerance lets each element be."""
        with np.errstate(over="ignore"):
            allowed: Array = self.tolerance.absolute + self.tolerance.relative * self.sizes
        return allowed

    @cached_property
    def beyond(self) -> Array:
        """Which finite elements the tolerance does not cover."""
        beyond: Array = ~(self.distances <= self.allowed)
        if self.overflown is not None:
            beyond[self.overflown] = ~(np.abs(self.halves) <= self._half_allowed)
        return beyond

    @cached_property
    def halves(self) -> Array:
        """Half of each difference that is too large for a double."""
        halves: Array = self.candidate[self.overflown] / 2 - self.reference[self.overflown] / 2
        return halves

    def parts(self) -> list[tuple[Array, int]]:
        """The differences to be added up, and how many times."""
        if self.overflown is None:
            return [(self.difference, 1)]
        return [(self.difference[~self.overflown], 1), (self.halves, 2)]

    @property
    def _half_allowed(self) -> Array:
        with np.errstate(over="ignore"):
            allowed: Array = self.tolerance.absolute / 2 + self.tolerance.relative * (self.sizes[self.overflown] / 2)
        return allowed

    def over_sizes(self, floor: float) -> Array:
        """Distances by the size of the reference, which counts as at least so much."""
        with np.errstate(over="ignore"):
            shares: Array = self.distances / np.maximum(self.sizes, floor)
            if self.overflown is not None:
                shares[self.overflown] = np.abs(self.halves) / (self.sizes[self.overflown] / 2)  # far above any floor
        return shares

    def over_allowed(self, floor: float) -> Array:
        """Distances by what the tolerance allows, which counts as at least so much."""
        with np.errstate(over="ignore"):
            shares: Array = self.distances / np.maximum(self.allowed, floor)
            if self.overflown is not None:
                shares[self.overflown] = np.abs(self.halves) / np.maximum(self._half_allowed, floor)
        return shares

    @property
    def values(self) -> int:
        return self.rows * self.width

    @property
    def nan_both(self) -> int:
        return 0 if self.nan is None else int(np.count_nonzero(self.nan))

    def by_row(self, of_finite: Array, *, broken: Any, nan: Any = 0) -> Array:
        """Values of the finite elements back in their rows; zero where both sides are the same infinity."""
        if self.finite is None or self.broken is None or self.nan is None:
            rows: Array = of_finite.reshape(self.rows, self.width)
            return rows
        full = np.zeros(self.values, dtype=of_finite.dtype)
        full[self.finite] = of_finite
        full[self.broken] = broken
        full[self.nan] = nan
        return full.reshape(self.rows, self.width)

    def largest_ulp(self) -> int:
        """The most doubles (or floats, or halves) that lie between two answers; -0.0 and 0.0 are one apart."""
        if self.precision is None:
            return int(self.distances.max())
        reference, candidate = _ordered(self.reference, self.precision), _ordered(self.candidate, self.precision)
        unsigned = np.dtype(f"u{self.precision.itemsize}")
        upper, lower = np.maximum(reference, candidate), np.minimum(reference, candidate)
        return int((upper.view(unsigned) - lower.view(unsigned)).max())


def integer_rounding(reference: Array, candidate: Array) -> float | None:
    """Zero where one side at least holds whole numbers; None where both hold fractions.

    Whole numbers are equal or not, in whatever type the other side gives them: rounded to a float32, the number of an
    item is that of another one.
    """
    if not (is_numeric(reference) and is_numeric(candidate)) or reference.dtype.kind == candidate.dtype.kind == "f":
        return None
    return 0.0


def asked_of(tolerance: Tolerance, reference: Array, candidate: Array) -> Tolerance:
    """What a tolerance asks of these answers."""
    rounding = integer_rounding(reference, candidate) if tolerance.exact_integers else None
    return tolerance if rounding is None else Tolerance(0.0, rounding)


def blocks_of(pair: Pair) -> Iterable[Differences]:
    """The differences of a pair of numbers, some rows at a time, walked once for all who ask."""
    if pair.walked or pair.reference.size > SHARED:
        return pair.walked or differences(pair.reference, pair.candidate, pair.tolerance)
    pair.walked.extend(differences(pair.reference, pair.candidate, pair.tolerance))
    return pair.walked


def row_distances(pair: Pair) -> Array:
    """The largest difference of each row; infinite where one side alone is not finite."""
    return largest_of_rows(pair, lambda block: block.by_row(block.distances, broken=math.inf), np.float64)


def largest_of_rows(pair: Pair, values: Callable[[Differences], Array], dtype: Any) -> Array:
    """The largest of each row of what is asked of a block, over all pieces of a row."""
    found: list[Array] = [np.empty(0, dtype)]
    for block in blocks_of(pair):
        largest = row_max(values(block)) if block.width else np.zeros(block.rows, dtype)
        if block.start:
            found[-1] = np.maximum(found[-1], largest)
        else:
            found.append(largest)
    return np.concatenate(found)


def differences(reference: Array, candidate: Array, tolerance: Tolerance = _EXACTLY) -> Iterator[Differences]:
    """Walk two numeric arrays of equal shape, some rows at a time; of very wide rows a piece of one."""
    width = math.prod(reference.shape[1:])
    step = max(1, _BLOCK // max(1, width))
    for first in range(0, len(reference), step):
        own, other = reference[first : first + step], candidate[first : first + step]
        if width < 2 * _BLOCK:
            yield _differences(len(own), own, other, tolerance)
            continue
        own, other = own.ravel(), other.ravel()
        for start in range(0, width, _BLOCK):
            piece = slice(start, start + _BLOCK)
            yield _differences(1, own[piece], other[piece], tolerance, start)


def _differences(rows: int, reference: Array, candidate: Array, tolerance: Tolerance, start: int = 0) -> Differences:
    width, precision = reference.size // max(1, rows), _precision(reference.dtype, candidate.dtype)
    short = all(array.dtype.kind == "f" and array.dtype.itemsize <= 4 for array in (reference, candidate))
    own, other = _widened(reference), _widened(candidate)
    with np.errstate(over="ignore", invalid="ignore"):
        difference = other - own
    _correct_large(difference, reference.ravel(), candidate.ravel(), own, other)
    if precision is None:
        return Differences(rows, width, own, other, difference, precision, tolerance=tolerance, start=start)
    fits = np.isfinite(difference)
    if fits.all():
        return Differences(rows, width, own, other, difference, precision, None, None, None, tolerance, short, start)
    finite = np.isfinite(own) & np.isfinite(other)
    nan = np.isnan(own) & np.isnan(other)
    broken = ~(finite | nan | (own == other))
    # The difference of two finite numbers may be too large for a double; what is told of it is the largest one.
    overflown = np.isinf(difference[finite])
    difference = np.clip(difference[finite], -LARGEST, LARGEST)
    ours, theirs, far = own[finite], other[finite], overflown if overflown.any() else None
    return Differences(
        rows, width, ours, theirs, difference, precision, finite, broken, nan, tolerance, short, start, far
    )


def _widened(array: Array) -> Array:
    return np.ascontiguousarray(array, dtype=np.float64).ravel()


def is_longer(array: Array) -> bool:
    """Is it a float with more digits than a double (`numpy.longdouble`)?"""
    return array.dtype.kind == "f" and bool(array.dtype.itemsize > 8)


def _precision(*dtypes: np.dtype[Any]) -> np.dtype[Any] | None:
    floats = [np.dtype(f"f{min(dtype.itemsize, 8)}") for dtype in dtypes if dtype.kind == "f"]
    return min(floats, key=lambda dtype: dtype.itemsize, default=None)


def _correct_large(difference: Array, reference: Array, candidate: Array, own: Array, other: Array) -> None:
    """Work out again what doubles do not tell: differences of numbers that no double holds."""
    if is_longer(reference) or is_longer(candidate):
        apart = candidate.astype(np.longdouble) - reference.astype(np.longdouble)
        known = np.isfinite(apart)
        told = np.clip(apart[known], -LARGEST, LARGEST).astype(np.float64)
        lost = (told == 0) & (apart[known] != 0)
        difference[known] = np.where(lost, _SMALLEST, told)
        return
    wide = [array for array in (reference, candidate) if array.dtype.kind in "iu" and array.dtype.itemsize == 8]
    if not wide:
        return
    large = ((np.abs(own) >= _EXACT) | (np.abs(other) >= _EXACT)) & np.isfinite(difference)
    if large.any():
        difference[large] = _large_difference(reference[large], candidate[large])


def _large_difference(reference: Array, candidate: Array) -> Array:
    if reference.dtype.kind == candidate.dtype.kind:
        # Two integers of one signedness are less than 2**64 apart: subtraction modulo 2**64 is exact.
        apart = candidate.astype(np.uint64) - reference.astype(np.uint64)
        back = reference.astype(np.uint64) - candidate.astype(np.uint64)
        signed: Array = np.where(candidate >= reference, apart.astype(np.float64), -back.astype(np.float64))
        return signed
    from fractions import Fraction

    pairs = zip(reference.tolist(), candidate.tolist(), strict=True)
    return np.array([float(Fraction(theirs) - Fraction(ours)) for ours, theirs in pairs], dtype=np.float64)


def _ordered(values: Array, precision: np.dtype[Any]) -> Array:
    """Integers in the order of the numbers, neighbours one apart."""
    with np.errstate(over="ignore"):
        bits = values.astype(precision, copy=False).view(np.dtype(f"i{precision.itemsize}"))
    width = precision.itemsize * 8
    ordered: Array = bits ^ ((bits >> (width - 1)) & bits.dtype.type(2 ** (width - 1) - 1))
    return ordered


def same_labels(reference: Array, candidate: Array) -> Array:
    """Where two labels are the same: equal numbers of any type, equal text, or missing on both sides."""
    if is_numeric(reference) and is_numeric(candidate):
        return _same_numbers(reference, candidate)
    if reference.dtype.kind == candidate.dtype.kind == "U":
        return np.asarray(reference == candidate)
    reference, candidate = reference.astype(object), candidate.astype(object)
    try:
        same = np.asarray(reference == candidate, dtype=bool)
    except ValueError:  # cells that hold arrays of their own
        return np.asarray(np.frompyfunc(_same_cells, 2, 1)(reference, candidate), dtype=bool)
    doubtful = ~same
    ours, theirs = reference[doubtful], candidate[doubtful]
    # Only NaN differs from itself.
    same[doubtful] = np.asarray(ours != ours, dtype=bool) & np.asarray(theirs != theirs, dtype=bool)
    return same


def _same_cells(one: Any, other: Any) -> bool:
    ours, theirs = np.asarray(one), np.asarray(other)
    return bool(np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == theirs.dtype.kind == "f"))


def _same_numbers(reference: Array, candidate: Array) -> Array:
    same = np.asarray(reference == candidate)
    kinds = reference.dtype.kind, candidate.dtype.kind
    if kinds == ("f", "f"):
        return same | (np.isnan(reference) & np.isnan(candidate))
    if "f" in kinds and max(reference.dtype.itemsize, candidate.dtype.itemsize) == 8:
        # numpy rounds the integer to a double before it compares; Python does not.
        doubtful = same & (np.abs(reference.astype(np.float64)) >= _EXACT)
        if doubtful.any():
            pairs = zip(reference[doubtful].tolist(), candidate[doubtful].tolist(), strict=True)
            same[doubtful] = [ours == theirs for ours, theirs in pairs]
    return same


@dataclass(frozen=True, slots=True)
class Constancy:
    """Whether every row so far had the same answer: a digest of that answer, or the fact that answers vary."""

    answer: str = ""
    varied: bool = False

    @staticmethod
    def of(array: Array) -> Constancy:
        if not len(array):
            return Constancy()
        # Most outputs vary, and then the last row tells.
        if len(array) > 1 and not (_repeats(array[[0, -1]]) and _repeats(array)):
            return Constancy(varied=True)
        return Constancy(_digest(array[:1]))

    def merge(self, other: Constancy, /) -> Constancy:
        if not self.answer and not self.varied:
            return other
        if self == other or (not other.answer and not other.varied):
            return self
        return Constancy(varied=True)

    @property
    def constant(self) -> bool:
        return bool(self.answer)


def _digest(row: Array) -> str:
    """Rows that `same_labels` calls the same have the same digest. `row` is a slice: an element would lose its type."""
    if row.dtype.kind == "f":
        content = np.where(np.isnan(row), row.dtype.type(np.nan), row + row.dtype.type(0)).tobytes()
    elif is_numeric(row):
        content = row.tobytes()
    else:
        content = repr([_canonical(value) for value in row.ravel().tolist()]).encode()
    return hashlib.sha256(content).hexdigest()[:32]


def _canonical(value: Any) -> Any:
    if isinstance(value, int | float) and math.isfinite(value) and value == int(value):
        return int(value)
    return value


def _repeats(array: Array) -> bool:
    return bool(same_labels(array, np.broadcast_to(array[:1], array.shape)).all())
