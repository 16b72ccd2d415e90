"""The same text in capitals, in small letters and with both exchanged."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.suiting import picked, respelled, varied


class LetterCase:
    """Oslo, OSLO and oslo: one category to a person, three to an encoder."""

    name = "letter-case"
    title = "Text in another case, in each column of text"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), respelled(seen, lambda text: (text.upper(), text.lower(), text.swapcase())))


EXTENSION = LetterCase()
