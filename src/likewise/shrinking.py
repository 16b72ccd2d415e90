"""Quantise, then see what it gained and what it cost: size, speed, and the verdict of a check."""

from __future__ import annotations

from dataclasses import fields
from os import PathLike
from typing import Any

from likewise import benching, quantizing, verify
from likewise.benching.stored import summary_line
from likewise.config import Settings
from likewise.contracts.benching import BatchTiming
from likewise.contracts.quantizing import Quantization, Quantized, Recipe
from likewise.contracts.reporting import Report
from likewise.errors import LikewiseError, UsageError, nearest
from likewise.showing import size

SPEED_BATCH = 256
SPEED_SECONDS = 3.0
SELECTION = {"drop": "drop", "seed": "seed", "id": "row_id", "feed": "feed", "batch_axis": "batch_axis"}
"""Settings of a check that calibration and timing follow too, under their names there."""


def quantize(
    model: str | PathLike[str],
    output: str | PathLike[str],
    *,
    data: Any = None,
    calibrate: Any = None,
    check: bool = True,
    speed: bool = True,
    **options: Any,
) -> Quantization:
    """Write a quantised copy of an ONNX file and, where there is data, check it against the original.

    `data` are the rows to check on; a static quantisation calibrates on some of them, or on
    `calibrate`. Other options are those of the command line with underscores: `mode` (`dynamic`,
    `static`, `fp16`), `per_channel`, `calibration`, `format`, `weights`, `reduce_range`, `exclude`,
    `op_types`, `force`, `allow_noop`, and all of `check`. `speed` asks for a timing of both files
    too. The result is true when the verdict is PASS.
    """
    recipe, settings = split(options)
    rows = data if calibrate is None else calibrate
    quantized = quantizing.quantize(model, output, recipe, data=rows, **selection(settings))
    if data is None or not check:
        return Quantization(quantized)
    settings.setdefault("preset", quantizing.default_preset(recipe.mode))
    report = verify.check(str(model), str(output), data, **settings)
    return Quantization(quantized, report, _timing(model, output, data, settings) if speed else None)


def _timing(
    model: str | PathLike[str], output: str | PathLike[str], data: Any, settings: dict[str, Any]
) -> BatchTiming | None:
    chosen = selection(settings)
    try:
        return benching.bench(
            str(model), str(output), data, batch_sizes=(SPEED_BATCH,), budget=SPEED_SECONDS, **chosen
        ).timings[0]
    except LikewiseError:
        # The report says why a model could not be run; there is no speed to tell.
        return None


def split(options: dict[str, Any]) -> tuple[Recipe, dict[str, Any]]:
    """What concerns quantising, and what concerns the check."""
    recipe_names = [entry.name for entry in fields(Recipe)]
    settings_names = [entry.name for entry in fields(Settings)]
    known = [*recipe_names, *settings_names]
    for name in options:
        if name not in known:
            raise UsageError(f"quantize() has no option {name!r}{nearest(name, known)}")
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    recipe = Recipe(**{name: value for name, value in plain.items() if name in recipe_names})
    return recipe, {name: value for name, value in plain.items() if name not in recipe_names}


def selection(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a check that choose columns, as calibration and timing take them."""
    return {SELECTION[name]: value for name, value in settings.items() if name in SELECTION}


def summary(quantized: Quantized, report: Report | None = None, timing: BatchTiming | None = None) -> str:
    """`2.1 MB → 0.6 MB (3.5× smaller), 1.8× faster at batch 256 (1.7–1.9), largest difference 0.012`"""
    before, after = quantized.bytes_before, quantized.bytes_after
    ratio = f"{before / after:.2g}× smaller" if after < before else f"{after / before:.2g}× larger"
    parts = [f"{size(before)} → {size(after)} ({ratio})"]
    if timing is not None:
        parts.append(summary_line(timing))
    if report is not None and report.max_abs_diff is not None:
        parts.append(f"largest difference {report.max_abs_diff:.3g}")
    return ", ".join(parts)
