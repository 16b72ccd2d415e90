"""Rows that come twice, and a batch of nothing but one row."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.suiting import named, picked

ROWS = 8


class DuplicatedRows:
    """A retried request, a join that went wrong: equal rows must get equal answers."""

    name = "duplicated-rows"
    title = "Batches in which rows come twice, and one of the same row again and again"
    about_batches = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        import numpy as np

        base = picked(seen, ROWS)
        yield named(base, np.repeat(np.arange(len(base)), 2), ["twice"] * (2 * len(base)))
        yield named(base, np.zeros(ROWS, dtype=np.int64), [f"{ROWS} times"] * ROWS)


EXTENSION = DuplicatedRows()
