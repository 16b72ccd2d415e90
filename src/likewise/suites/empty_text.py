"""Empty text, which is not the same as missing text."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.suiting import one_by_one, picked, varied


class EmptyText:
    """A form that was sent with a field left empty."""

    name = "empty-text"
    title = "Empty text, in each column of text"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), one_by_one(seen, text=[""]))


EXTENSION = EmptyText()
