"""Text for a terminal: names from models and data are text, never markup and never a command to the terminal.

The supervisor imports it: nothing here needs the types of a report.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""Commands to a terminal, marks that reorder text, and halves of characters; line ends and tabs are none of these."""


def drawn(parts: Iterable[RenderableType], *, width: int = 80, colour: bool = False) -> str:
    """The parts below each other, without blanks at the ends of lines."""
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
    for part in parts:
        whole = console.render(console.render_str(part) if isinstance(part, str) else part)
        console.print(Segments([Segment(printable(text), style) for text, style, _ in whole]), end="")
    return "\n".join(line.rstrip() for line in file.getvalue().split("\n")).rstrip("\n") + "\n"


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
    """Text that moves no cursor, changes no colour and turns no direction of reading: what would is shown as a mark."""
    return CONTROLS.sub("\ufffd", text)


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
