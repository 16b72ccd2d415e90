"""Letters beyond ASCII: accents in one piece and in two, other scripts, signs outside the first plane.

Blanks before and after a text, as other systems leave them.

Empty text, which is not the same as missing text.

The same text in capitals, in small letters and with both exchanged.

Unseen categories: a text that no row of the data holds, in each column of text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from likewise.compare.variations.made_rows import one_by_one, picked, respelled, varied
from likewise.contracts.comparison import Seen
from likewise.contracts.data import Batch

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


class Blanks:
    """Fields of fixed width, copied cells, a byte that is no ordinary space."""

    name = "blanks"
    title = "Text with blanks around it, in each column of text"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), respelled(seen, _with_blanks))


def _with_blanks(text: str) -> tuple[str, ...]:
    return f" {text}", f"{text} ", f"\t{text}\n", f"\u00a0{text}", " "


class EmptyText:
    """A form that was sent with a field left empty."""

    name = "empty-text"
    title = "Empty text, in each column of text"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), one_by_one(seen, text=[""]))


class LetterCase:
    """Oslo, OSLO and oslo: one category to a person, three to an encoder."""

    name = "letter-case"
    title = "Text in another case, in each column of text"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), respelled(seen, lambda text: (text.upper(), text.lower(), text.swapcase())))


UNSEEN = "never seen before"


class UnseenCategories:
    """A new city opens, a new product is listed: the model has no category for it."""

    name = "unseen-categories"
    title = "A text that was never seen, in each column of text"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), one_by_one(seen, text=[UNSEEN]))


EXTENSIONS = (
    Accents(),
    Blanks(),
    EmptyText(),
    LetterCase(),
    UnseenCategories(),
)
