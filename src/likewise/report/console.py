"""Text for a terminal: names from models and data are text, never markup and never a command to the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING

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
