"""A quantised file: what was done to it, what it gained, and the verdict on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from likewise.contracts.comparison import Json
from likewise.contracts.report import BatchTiming, Report
from likewise.report.bench import summary_line
from likewise.report.words import size


@dataclass(frozen=True, slots=True)
class Quantized:
    """A file that was written, and what was decided on the way to it.

    `changed` counts the integer-quantised nodes, or the half-precision tensors, that were added;
    `choices` are sentences.
    """

    source: str
    output: str
    mode: str
    sha256: str
    bytes_before: int
    bytes_after: int
    operators_before: Mapping[str, int]
    operators_after: Mapping[str, int]
    changed: int
    settings: Mapping[str, Json]
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Quantization:
    """A quantised file with the verdict on it; its truth value is that verdict, false where it was not checked."""

    quantized: Quantized
    report: Report | None = None
    timing: BatchTiming | None = None

    def __bool__(self) -> bool:
        return self.report is not None and self.report.passed


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
