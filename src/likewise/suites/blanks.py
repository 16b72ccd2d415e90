"""Blanks before and after a text, as other systems leave them."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.suiting import picked, respelled, varied


class Blanks:
    """Fields of fixed width, copied cells, a byte that is no ordinary space."""

    name = "blanks"
    title = "Text with blanks around it, in each column of text"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        yield from varied(picked(seen), respelled(seen, _with_blanks))


def _with_blanks(text: str) -> tuple[str, ...]:
    return f" {text}", f"{text} ", f"\t{text}\n", f"\u00a0{text}", " "


EXTENSION = Blanks()
