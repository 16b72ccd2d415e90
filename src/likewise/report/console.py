"""Text for a terminal: names from models and data are text, never markup and never a command to the terminal.

The supervisor imports it: nothing here needs the types of a report.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeAlias
from unicodedata import combining, east_asian_width

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


CONTROLS = (
    *(*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)),
    *(0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF, *range(0xD800, 0xE000)),
)
"""Commands to a terminal, marks that reorder text, and halves of characters; line ends and tabs are none of these."""


MARKED = dict.fromkeys(CONTROLS, "\ufffd")
"""What is shown in their place."""

ORDERS = re.compile(r"(?m)^([^\S\n]*):(?=:)|##(?=\w*\[)")
"""How lines begin, or what stands in them, that the logs of CI systems obey: `::set-output`, `##vso[task]`."""

STYLES = r"(\x1b\[[0-9;]*m)"

CODES = {"bold": 1, "dim": 2, "italic": 3, "reverse": 7, "red": 31, "green": 32, "yellow": 33}
"""How a terminal is told to show text so."""


class Line:
    """Text to be wrapped, in pieces that may have a style each: `bold red`; all of it may be set in."""

    def __init__(self, *pieces: str | tuple[str, str], style: str = "", indent: int = 0) -> None:
        self.pieces = [(piece, style) if isinstance(piece, str) else piece for piece in pieces]
        self.indent = indent

    def wrapped(self, width: int, *, colour: bool) -> str:
        """As many lines as it takes, each with its end."""
        pieces = [(printable(text).expandtabs(), style) for text, style in self.pieces]
        whole = "".join(text for text, _ in pieces)
        lines, start = [], 0
        for end in _breaks(whole, max(1, width - self.indent)):
            shown, at, stop = "", 0, start + len(whole[start:end].rstrip())
            for text, style in pieces:
                part = text[max(0, start - at) : max(0, stop - at)]
                at += len(text)
                codes = ";".join(map(str, sorted(CODES[word] for word in style.split())))
                shown += f"\x1b[{codes}m{part}\x1b[0m" if colour and codes and part else part
            lines.append(" " * self.indent + shown)
            start = end
        return "\n".join(lines) + "\n"


Part: TypeAlias = "str | Line | tuple[Line, ...] | RenderableType"
"""What stands below each other: text, or what rich draws, which is imported only for that."""


def _breaks(text: str, width: int) -> Iterator[int]:
    """Where the lines of a text end: between words, and within one that is longer than a line."""
    used = 0
    for found in re.finditer(r"\n|[^\S\n]*[^\s]+[^\S\n]*|[^\S\n]+", text):
        word, start = found[0], found.start()
        if word == "\n":
            yield found.end()
            used = 0
            continue
        length = _cells(word.rstrip())
        if used and used + length > width:
            yield start
            used = 0
        while length > width:
            most = next(size for size in range(1, len(word) + 1) if _cells(word[: size + 1]) > width)
            length -= _cells(word[:most])
            start, word = start + most, word[most:]
            if word:
                yield start
        used += _cells(word)
    yield len(text)


def _cells(text: str) -> int:
    """How wide a terminal shows a text: some characters take two places, marks on others none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def drawn(parts: Iterable[Part], *, width: int = 80, colour: bool = False) -> str:
    """The parts below each other, without blanks at the ends of lines."""
    shown = ""
    for part in parts:
        lines = (Line(part),) if isinstance(part, str) else (part,) if isinstance(part, Line) else part
        if isinstance(lines, tuple):
            shown += "".join(line.wrapped(width, colour=colour) for line in lines)
        else:
            shown += _by_rich(lines, width=width, colour=colour)
    return _no_orders("\n".join(line.rstrip() for line in shown.split("\n")).rstrip("\n") + "\n")


def _by_rich(part: RenderableType, *, width: int, colour: bool) -> str:
    from rich.console import Console
    from rich.segment import Segment, Segments

    file = StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=colour,
        no_color=not colour,
        color_system="standard" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    console.print(Segments([Segment(printable(text), style) for text, style, _ in console.render(part)]), end="")
    return file.getvalue()


def plain() -> bool:
    """Does the environment ask for text alone: no colour, and no line that is drawn again?"""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def plain_table(*headings: str) -> Table:
    """A table without lines; a heading that begins with # is of a column of numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        numeric = heading.startswith("#")
        table.add_column(Text(heading[numeric:]), justify="right" if numeric else "left", overflow="fold")
    return table


def printable(text: str) -> str:
    """Text that moves no cursor, changes no colour and turns no direction of reading: what would is shown as a mark.

    Nor is it an order to a CI system that reads along.
    """
    return _no_orders(text.translate(MARKED))


def _no_orders(text: str) -> str:
    return ORDERS.sub(lambda found: f"{found[0]} ", text)


def styled(text: str) -> str:
    """The same for text that was drawn elsewhere: its colours stay, and nothing else that a terminal obeys."""
    parts = re.split(STYLES, text)
    return _no_orders("".join(part if place % 2 else part.translate(MARKED) for place, part in enumerate(parts)))


def quoted(text: str) -> str:
    """JSON with the same values, in which a terminal and a CI log find nothing to obey: that is spelt out."""
    spelt = text.translate({control: f"\\u{control:04x}" for control in CONTROLS})
    return ORDERS.sub(lambda found: found[0].replace("#", "\\u0023"), spelt)


class Pace:
    """Follows the messages of a run and says where it stands."""

    def __init__(self) -> None:
        self._latest: Mapping[str, Any] = {}
        self._began: float | None = None
        self._first_done = 0

    def update(self, message: Mapping[str, Any]) -> None:
        """Take note of a message: `phase`, `done` and `total`."""
        self._latest = message
        if message["done"] and self._began is None:
            self._began, self._first_done = time.monotonic(), message["done"]

    def text(self, now: float) -> str:
        """`comparing  45%  450,000 of 1,000,000 rows  120,000 rows/s  0:05 left`"""
        if not self._latest:
            return ""
        done, total = self._latest["done"], self._latest["total"]
        parts = [self._latest["phase"]]
        if total:
            parts.append(f"{100 * done / total:3.0f}%")
        if done:
            parts.append(f"{done:,} of {total:,} rows" if total else f"{done:,} rows")
        if self._began is not None and done > self._first_done and now > self._began:
            rate = (done - self._first_done) / (now - self._began)
            parts.append(f"{rate:,.0f} rows/s")
            if total:
                left = max(0, int((total - done) / rate))
                parts.append(f"{left // 60}:{left % 60:02d} left")
        return "  ".join(parts)
