"""Each column pushed past what was observed: a little, and by ten times its span.

The largest numbers there are: those of float32, and those of the column's own type.

Whole numbers that float32 and float64 cannot hold: ids, timestamps, amounts in cents.

Infinity and NaN.

Numbers so small that some hardware and some runtimes take them for zero.

Zero and negative zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from likewise.compare.variations.made_rows import (
    FLOAT,
    IDS,
    INTEGER,
    TENSOR,
    Variant,
    at,
    features,
    holds,
    kind,
    one_by_one,
    picked,
    values_of,
    varied,
)
from likewise.contracts.comparison import Seen
from likewise.contracts.data import Array, Batch
from likewise.data.cells import Field

LITTLE, FAR = 0.01, 10.0
"""How far past the range, in units of what it spans."""


class BeyondRange:
    """Where calibration ends, tables end and ids run out. Ids of an embedding go past the last on purpose."""

    name = "beyond-range"
    title = "Numbers past the range of the first rows, by a little and by ten times its span, in each column"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        base = picked(seen)
        variants = []
        for field in features(seen, FLOAT, INTEGER, TENSOR, IDS):
            observed = values_of(seen, field)
            if observed.size:
                variants += list(_past(seen, field, base, observed))
        yield from varied(base, variants)


def _past(seen: Seen, field: Field, base: Batch, observed: Array) -> Iterator[Variant]:
    low, high = observed.min().item(), observed.max().item()
    if kind(seen, field) == IDS:
        yield from _other_ids(field, base, (high + 1, low - 1))
        return
    span = (high - low) or abs(high) or 1
    for side, edge, sign in (("above", high, 1), ("below", low, -1)):
        for share in (LITTLE, FAR):
            if kind(seen, field) == TENSOR:
                moved = (base.inputs[field.column] + sign * share * span).astype(observed.dtype)
                yield Variant(f"{field.name} moved by {sign * share * span:g}, {side} the range seen", {field: moved})
                continue
            value = edge + sign * (max(1, round(share * span)) if isinstance(edge, int) else share * span)
            value = value if isinstance(edge, int) else float(observed.dtype.type(value))
            if holds(observed.dtype, value):
                yield Variant(f"{field.name} = {value!r}, {side} the range seen", {field: value})


def _other_ids(field: Field, base: Batch, values: Iterable[int]) -> Iterator[Variant]:
    """The first id of each row exchanged for one that was not seen."""
    for value in values:
        ids = base.inputs[field.column].copy()
        if holds(ids.dtype, value):
            ids.reshape(len(ids), -1)[:, 0] = value
            yield Variant(f"first of {field.name} = {value}, past the ids seen", {field: ids})


SINGLE = 3.4028234663852886e38


class HugeNumbers:
    """What does not fit becomes infinite on its way to a model that takes a narrower type."""

    name = "huge-numbers"
    title = "The largest numbers of float32 and of the column's type, in each column of numbers"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        import numpy as np

        fields = features(seen, FLOAT, TENSOR)
        own = {field: float(np.finfo(seen.batch.inputs[field.column].dtype).max) for field in fields}
        variants = [
            variant
            for sign in (1, -1)
            for wide in (True, False)
            for field, largest in own.items()
            if (largest > SINGLE or not wide)
            for variant in at(seen, field, sign * (largest if wide else min(SINGLE, largest)))
        ]
        yield from varied(picked(seen), variants)


LARGE = (2**24 + 1, 2**31 - 1, 2**53 + 1, 2**63 - 1)


class LargeIntegers:
    """Beyond 2²⁴ float32 skips whole numbers, beyond 2⁵³ float64 does."""

    name = "large-integers"
    title = "Whole numbers above 2²⁴ and 2⁵³, in each column of whole numbers that can hold them"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), one_by_one(seen, integer=[*LARGE, *(-value for value in LARGE)]))


VALUES = [float("inf"), float("-inf"), float("nan")]


class Nonfinite:
    """A division upstream that nobody watched. Some models refuse, others answer anything."""

    name = "nonfinite"
    title = "Infinity, minus infinity and NaN, in each column of numbers"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), one_by_one(seen, float=VALUES, tensor=VALUES))


VALUES_TINY_NUMBERS = [2.0**-149, -(2.0**-130), 2.0**-1074, -(2.0**-1050)]
"""Two of float32, which has no smaller ones, and two of float64."""


class TinyNumbers:
    """Subnormal numbers of float32 and float64."""

    name = "tiny-numbers"
    title = "Subnormal numbers, in each column of numbers"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), one_by_one(seen, float=VALUES_TINY_NUMBERS, tensor=VALUES_TINY_NUMBERS))


class Zeros:
    """Divisions, logarithms and signs meet zero; a comparison of bits tells -0.0 from it."""

    name = "zeros"
    title = "0 and -0.0, in each column of numbers"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), one_by_one(seen, float=[0.0, -0.0], tensor=[0.0, -0.0], integer=[0]))


EXTENSIONS = (
    BeyondRange(),
    HugeNumbers(),
    LargeIntegers(),
    Nonfinite(),
    TinyNumbers(),
    Zeros(),
)
