"""Text for a terminal: names from models and data are text, never markup and never a command to the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

HARMLESS = {"\n", "\t"}


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


def printable(text: str) -> str:
    """Text that moves no cursor and changes no colour: what would is shown as a mark."""
    if text.isprintable():
        return text
    return "".join(c if c in HARMLESS or not unicodedata.category(c).startswith("C") else "�" for c in text)
