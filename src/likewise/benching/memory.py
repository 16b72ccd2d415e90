"""The memory of this process, as the system counts it; None where the system does not say."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def current() -> int | None:
    """Resident bytes now; where only a peak is known, that."""
    found = _status("VmRSS")
    return _largest_ever() if found is None else found


def growth(before: int | None) -> int | None:
    """Bytes beyond an earlier figure."""
    now = current()
    return None if now is None or before is None else max(0, now - before)


def forget_peak() -> None:
    """Let the peak start anew, where Linux allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def peak_growth(before: int | None) -> int | None:
    """Bytes between an earlier figure and the highest since the peak was forgotten."""
    peak = _status("VmHWM")
    peak = _largest_ever() if peak is None else peak
    return None if peak is None or before is None else max(0, peak - before)


def _status(field: str) -> int | None:
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.M)
    return None if found is None else int(found[1]) * 1024


def _largest_ever() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
