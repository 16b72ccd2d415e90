"""Which lines of likewise a file comes to: those that led to new ones are worth damaging further."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import likewise

HOUSE = str(Path(likewise.__file__).parent)


class Lines:
    """The lines that files came to so far."""

    def __init__(self) -> None:
        self.known: set[tuple[str, int]] = set()

    def __len__(self) -> int:
        return len(self.known)

    def add(self, lines: Iterable[Iterable[Any]]) -> bool:
        """Is there a new one among these?"""
        before = len(self.known)
        self.known.update((path, number) for path, number in lines)
        return len(self.known) > before

    @contextlib.contextmanager
    def watched(self) -> Iterator[set[tuple[str, int]]]:
        """The new lines that are run meanwhile, in all threads. Functions that hold none cost next to nothing."""
        new: set[tuple[str, int]] = set()
        open_ended: dict[CodeType, bool] = {}

        def trace(frame: FrameType, event: str, _: object) -> Any:
            code = frame.f_code
            if code not in open_ended:
                mine = code.co_filename.startswith(HOUSE)
                open_ended[code] = mine and any((code.co_filename, line) not in self.known for line in lines_of(code))
            if not open_ended[code]:
                return None
            place = (code.co_filename, frame.f_lineno)
            if place not in self.known:
                new.add(place)
            return trace

        before = sys.gettrace()
        threading.settrace(trace)
        sys.settrace(trace)
        try:
            yield new
        finally:
            sys.settrace(before)
            threading.settrace(before)  # type: ignore[arg-type]


def lines_of(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line}
