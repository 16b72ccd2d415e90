"""A result as plain values, and back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from likewise.contracts.noising import NoiseResult

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def result_from(plain: Mapping[str, Any]) -> NoiseResult:
    """The result that plain values describe."""
    return _adapter().validate_python(plain)


@cache
def _adapter() -> TypeAdapter[NoiseResult]:
    from pydantic import TypeAdapter

    return TypeAdapter(NoiseResult)
