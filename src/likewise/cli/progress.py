"""One line on standard error that says how far a run is; silent where nobody is watching."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from likewise.progressing import Pace


class ProgressLine:
    """Redraws itself in place; leaves nothing behind."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown and sys.stderr.isatty()
        self._pace = Pace()
        self._drawn = 0.0

    def update(self, message: Mapping[str, Any]) -> None:
        self._pace.update(message)
        self.tick()

    def tick(self) -> None:
        now = time.monotonic()
        if self._shown and now - self._drawn > 0.1 and (text := self._pace.text(now)):
            self._drawn = now
            sys.stderr.write("\r\x1b[2K" + text[:79])
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
