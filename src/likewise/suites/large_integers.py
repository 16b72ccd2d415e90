"""Whole numbers that float32 and float64 cannot hold: ids, timestamps, amounts in cents."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.suiting import one_by_one, picked, varied

LARGE = (2**24 + 1, 2**31 - 1, 2**53 + 1, 2**63 - 1)


class LargeIntegers:
    """Beyond 2²⁴ float32 skips whole numbers, beyond 2⁵³ float64 does."""

    name = "large-integers"
    title = "Whole numbers above 2²⁴ and 2⁵³, in each column of whole numbers that can hold them"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), one_by_one(seen, integer=[*LARGE, *(-value for value in LARGE)]))


EXTENSION = LargeIntegers()
