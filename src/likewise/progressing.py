"""How far a run is, in one line."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any


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
