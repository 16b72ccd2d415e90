"""Times and sizes as users write them."""

from __future__ import annotations

import re

from likewise.errors import UsageError

LEAST_MEMORY = 64 * 2**20
"""Bytes: with less, nothing could be looked into."""


def seconds_or_times(said: str | float | None) -> tuple[float, float]:
    """What may be spent beside the data: so many seconds, or so many times what the data took, if that is more."""
    if said is None:
        return 2.0, 1.0
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)([smhx]?)", str(said).strip())
    if found is None:
        remedy = "Give a time such as 10s, or a multiple of what the data take such as 2x"
        raise UsageError(f"--beside-budget is {said!r}", remedy=remedy)
    number, unit = float(found[1]), found[2]
    return (0.0, number) if unit == "x" else (number * {"": 1, "s": 1, "m": 60, "h": 3600}[unit], 0.0)


def bytes_of(said: str | int) -> int:
    """What the search for causes may hold: `2GB`, `512 MiB` or a number of bytes, thousands counted as 1,024."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+) ?([kmgt]?)i?b?", str(said).strip().lower())
    size = 0.0 if found is None else float(found[1]) * 1024.0 ** " kmgt".index(found[2] or " ")
    if not LEAST_MEMORY <= size < 2**63:
        raise UsageError(f"--memory is {said!r}", remedy="Give a size such as 2GB, at least 64MB")
    return int(size)
