"""The moments of rows: dates, text and numbers as microseconds since 1970, in UTC."""

from __future__ import annotations

import datetime
import math
from typing import Any

from likewise.contracts.data import Array

UNTIMED = -(2**63)
"""In the place of a moment that is missing or cannot be read; what numpy calls NaT."""

SECONDS = ((1e11, 1e6), (1e14, 1e3), (1e17, 1.0), (math.inf, 1e-3))
"""Below which number an epoch counts seconds, milliseconds, microseconds, nanoseconds, and what makes microseconds of
it: each is read so between the years 1973 and 5138."""

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICROSECOND = datetime.timedelta(microseconds=1)


def moments(values: Array) -> Array:
    """Microseconds since 1970 for every value; text without a zone is taken for UTC."""
    import numpy as np

    if values.dtype.kind == "M":
        return values.astype("datetime64[us]").astype(np.int64)
    return np.array([moment(value) for value in values.tolist()], dtype=np.int64)


def moment(value: Any) -> int:
    """One of them; `UNTIMED` where it is none."""
    try:
        if isinstance(value, str):
            value = float(value) if _is_number(value) else datetime.datetime.fromisoformat(value.strip())
        if isinstance(value, datetime.datetime):
            zoned = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
            return (zoned - EPOCH) // MICROSECOND
        if isinstance(value, datetime.date):
            return moment(datetime.datetime(value.year, value.month, value.day))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return round(value * next(factor for most, factor in SECONDS if abs(value) < most))
    except (ValueError, OverflowError, StopIteration):
        pass
    return UNTIMED


def _is_number(text: str) -> bool:
    """An epoch written as text: `20261103` is a date, and too small for one."""
    return text.strip().replace(".", "", 1).isdecimal() and len(text.strip().partition(".")[0]) > 8


def told(microseconds: int) -> str:
    """A moment as people and programs read it."""
    return (EPOCH + int(microseconds) * MICROSECOND).isoformat(sep="T").replace("+00:00", "Z")
