"""The time that a search for causes has had: on a machine that others keep busy, what the processor gave it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

BUSY = 4.0
"""How many times its budget a search may take by the wall. A CI machine that runs four jobs at a time is usual; and
somebody waits for the answer."""


@dataclass(slots=True)
class Clock:
    """Seconds since it was made, less those in which the machine did something else.

    `elsewhere`: a model answers in a place whose processor we do not see, so that waiting for it counts in full.
    """

    elsewhere: bool = False
    _had: float = 0.0
    _wall: float = field(default_factory=time.monotonic)
    _busy: float = field(default_factory=time.process_time)

    def now(self) -> float:
        wall, busy = time.monotonic(), time.process_time()
        passed, spent = wall - self._wall, busy - self._busy
        self._had += passed if self.elsewhere else max(min(passed, spent), passed / BUSY)
        self._wall, self._busy = wall, busy
        return self._had
