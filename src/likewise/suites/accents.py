"""Letters beyond ASCII: accents in one piece and in two, other scripts, signs outside the first plane."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.suiting import picked, respelled, varied

OTHERS = ("Zürich", "日本", "Ελλάδα", "ß", "🙂")


class Accents:
    """The same letter may be one sign or two; text is bytes to one runtime and signs to another."""

    name = "accents"
    title = "Text with accents (composed and decomposed) and in other scripts, in each column of text"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), respelled(seen, _accented))


def _accented(text: str) -> tuple[str, ...]:
    accented = unicodedata.normalize("NFD", text)
    if accented == text:
        accented = f"{text[:1] or 'e'}\u0301{text[1:]}"
    return unicodedata.normalize("NFC", accented), accented, *OTHERS


EXTENSION = Accents()
