"""A result as JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from likewise.contracts.benching import BatchTiming, BenchResult

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def to_json(result: BenchResult) -> str:
    """Every figure and every raw sample."""
    return json.dumps(asdict(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def result_from(plain: Mapping[str, Any]) -> BenchResult:
    """The result that plain values describe."""
    return _adapter().validate_python(plain)


def summary_line(timing: BatchTiming) -> str:
    """`1.8× faster at batch 256 (1.7–1.9)`"""
    return f"{faster(timing)} at batch {timing.batch_size:,}{between(timing)}"


def faster(timing: BatchTiming) -> str:
    """How the candidate compares with the reference, in words; equal where the interval holds 1."""
    if timing.interval is not None and timing.interval[0] <= 1 <= timing.interval[1]:
        return "as fast"
    return f"{_times(timing.ratio)}× faster" if timing.ratio >= 1 else f"{_times(1 / timing.ratio)}× slower"


def between(timing: BatchTiming) -> str:
    """The interval of what `faster` says, in the same direction."""
    if timing.interval is None:
        return ""
    low, high = timing.interval
    if timing.ratio < 1 and not low <= 1 <= high:
        low, high = 1 / high, 1 / low
    return f" ({_times(low)}–{_times(high)})"


def _times(value: float) -> str:
    """Two digits after the point below ten; as many as are worth telling above."""
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


@cache
def _adapter() -> TypeAdapter[BenchResult]:
    from pydantic import TypeAdapter

    return TypeAdapter(BenchResult)
