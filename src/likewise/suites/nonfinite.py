"""Infinity and NaN."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.suiting import one_by_one, picked, varied

VALUES = [float("inf"), float("-inf"), float("nan")]


class Nonfinite:
    """A division upstream that nobody watched. Some models refuse, others answer anything."""

    name = "nonfinite"
    title = "Infinity, minus infinity and NaN, in each column of numbers"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), one_by_one(seen, float=VALUES, tensor=VALUES))


EXTENSION = Nonfinite()
