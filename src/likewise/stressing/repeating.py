"""The command that measures the file again, with every option of the search that matters to it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from likewise.config import Settings
from likewise.contracts.stressing import StressResult

PLAIN = ("preset", "abs_tol", "rel_tol", "mean_tol", "batch_size")
NAMED = {
    "limits": "limit",
    "feed": "feed",
    "pair": "pair",
    "reference_options": "reference-option",
    "candidate_options": "candidate-option",
}
LISTED = {"ignore": "ignore", "trusted": "trust"}
"""Options by how they are written. What selects rows and columns is done with: the file has what is left."""


def command(settings: Settings, result: StressResult) -> str:
    """What to type to see the rows of the file judged as they were."""
    words = ["likewise", "check", result.reference, result.candidate, "--data", str(result.file), *_options(settings)]
    return shlex.join(words)


def _options(settings: Settings) -> Iterator[str]:
    for name in PLAIN:
        if (value := getattr(settings, name)) is not None:
            yield from (f"--{name.replace('_', '-')}", str(value))
    if not settings.nan_equal:
        yield from ("--nan-equal", "false")
    for name, option in NAMED.items():
        for key, value in getattr(settings, name).items():
            yield from (f"--{option}", f"{key}={_text(value)}")
    for name, option in LISTED.items():
        for value in getattr(settings, name):
            yield from (f"--{option}", value)
    axis = settings.batch_axis
    if axis is not None:
        yield from ("--batch-axis", _axes(axis) if isinstance(axis, Mapping) else str(axis))


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _axes(axes: Mapping[str, int]) -> str:
    return ",".join(f"{name}:{axis}" for name, axis in axes.items())
