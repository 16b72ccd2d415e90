"""Unseen categories: a text that no row of the data holds, in each column of text."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.suiting import one_by_one, picked, varied

UNSEEN = "never seen before"


class UnseenCategories:
    """A new city opens, a new product is listed: the model has no category for it."""

    name = "unseen-categories"
    title = "A text that was never seen, in each column of text"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), one_by_one(seen, text=[UNSEEN]))


EXTENSION = UnseenCategories()
