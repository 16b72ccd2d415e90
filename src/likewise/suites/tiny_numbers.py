"""Numbers so small that some hardware and some runtimes take them for zero."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.suiting import one_by_one, picked, varied

VALUES = [2.0**-149, -(2.0**-130), 2.0**-1074, -(2.0**-1050)]
"""Two of float32, which has no smaller ones, and two of float64."""


class TinyNumbers:
    """Subnormal numbers of float32 and float64."""

    name = "tiny-numbers"
    title = "Subnormal numbers, in each column of numbers"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), one_by_one(seen, float=VALUES, tensor=VALUES))


EXTENSION = TinyNumbers()
