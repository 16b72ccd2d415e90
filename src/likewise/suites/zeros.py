"""Zero and negative zero."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.suiting import one_by_one, picked, varied


class Zeros:
    """Divisions, logarithms and signs meet zero; a comparison of bits tells -0.0 from it."""

    name = "zeros"
    title = "0 and -0.0, in each column of numbers"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), one_by_one(seen, float=[0.0, -0.0], tensor=[0.0, -0.0], integer=[0]))


EXTENSION = Zeros()
