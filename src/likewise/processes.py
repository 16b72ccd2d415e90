"""What our processes owe each other."""

from __future__ import annotations

import contextlib
import signal
import sys


def die_with_parent() -> None:
    """Ask the system to end us with our parent, for the moment when no thread of ours can run."""
    if sys.platform == "linux":
        import ctypes

        set_death_signal = 1
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
