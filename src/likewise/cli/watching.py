"""A job in a worker, with a line that says how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from likewise.cli.progress import ProgressLine
from likewise.cli.supervisor import supervise


def watched(job: Mapping[str, Any], *, shown: bool, debug: bool, timeout: float | None = None) -> Any:
    """The result of a job, or an error that says what happened to it; the line is gone when it ends."""
    line = ProgressLine(shown=shown)
    try:
        return supervise(job, timeout=timeout, on_progress=line.update, on_tick=line.tick, debug=debug)
    finally:
        line.clear()
