"""One line on standard error that says how far a run is; silent where nobody is watching."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any


class ProgressLine:
    """Redraws itself in place; leaves nothing behind."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown and sys.stderr.isatty()
        self._began: float | None = None
        self._drawn = 0.0
        self._latest: Mapping[str, Any] = {}

    def update(self, message: Mapping[str, Any]) -> None:
        self._latest = message
        if message["done"] and self._began is None:
            self._began = time.monotonic()
            self._first_done = message["done"]
        self.tick()

    def tick(self) -> None:
        now = time.monotonic()
        if self._shown and self._latest and now - self._drawn > 0.1:
            self._drawn = now
            sys.stderr.write("\r\x1b[2K" + self.text(now)[:79])
            sys.stderr.flush()

    def text(self, now: float) -> str:
        """`comparing  45%  450,000 of 1,000,000 rows  120,000 rows/s  0:05 left`"""
        message = self._latest
        done, total = message["done"], message["total"]
        parts = [message["phase"]]
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

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
