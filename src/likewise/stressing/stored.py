"""A result as JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from likewise.contracts.stressing import StressResult
from likewise.reports.json import strict

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def to_json(result: StressResult) -> str:
    """Strict JSON: a figure that is not finite is the text "NaN", "Infinity" or "-Infinity"."""
    return json.dumps(strict(asdict(result)), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def result_from(plain: Mapping[str, Any]) -> StressResult:
    """The result that plain values describe."""
    return _adapter().validate_python(plain)


@cache
def _adapter() -> TypeAdapter[StressResult]:
    from pydantic import TypeAdapter

    return TypeAdapter(StressResult)
