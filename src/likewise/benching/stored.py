"""A result as JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from likewise.contracts.benching import BatchTiming, BenchResult
from likewise.errors import DataError, one_line
from likewise.showing import between, faster

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA_VERSION = 1


def to_json(result: BenchResult) -> str:
    """Every figure and every raw sample."""
    return json.dumps(asdict(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def result_from(plain: Mapping[str, Any]) -> BenchResult:
    """The result that plain values describe."""
    return _adapter().validate_python(plain)


def loads(text: str | bytes, *, name: str = "the file") -> BenchResult:
    """The result that `likewise bench -o` wrote; anything else is an error that says what is wrong with it."""
    from pydantic import ValidationError

    remedy = "Give what `likewise bench REFERENCE CANDIDATE --data FILE -o BENCH.json` writes"
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or "timings" not in found:
            raise DataError(f"{name} is not the result of a bench: it has no timings", remedy=remedy)
        result = result_from(found)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise DataError(f"{name} is not the result of a bench: {place}: {first['msg']}", remedy=remedy) from error
    except ValueError as error:
        raise DataError(f"{name} is not JSON: {one_line(error)}", remedy=remedy) from error
    if result.schema_version != SCHEMA_VERSION:
        raise DataError(f"{name} has schema version {result.schema_version}, this likewise reads {SCHEMA_VERSION}")
    return result


def summary_line(timing: BatchTiming) -> str:
    """`1.8× faster at batch 256 (1.7–1.9)`"""
    return f"{faster(timing)} at batch {timing.batch_size:,}{between(timing)}"


@cache
def _adapter() -> TypeAdapter[BenchResult]:
    from pydantic import TypeAdapter

    return TypeAdapter(BenchResult)
