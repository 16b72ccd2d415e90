"""Smaller numbers for the same model: what was asked for, what was done, what it cost and what it gained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from likewise.contracts.benching import BatchTiming
from likewise.contracts.measuring import Json
from likewise.contracts.reporting import Report

DYNAMIC, STATIC, FP16 = "dynamic", "static", "fp16"
MODES = (DYNAMIC, STATIC, FP16)
CALIBRATIONS = ("minmax", "entropy", "percentile")
FORMATS = ("qdq", "qoperator")
WEIGHTS = ("int8", "uint8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is to be quantised.

    `reduce_range` None: chosen by what this processor's kernels do. `op_types` replaces our choice of
    nodes by all nodes of these types. `force` takes a model that is quantised already, `allow_noop`
    one on which nothing would change.
    """

    mode: str = DYNAMIC
    calibration: str = "minmax"
    calibration_rows: int = 512
    per_channel: bool = False
    format: str = "qdq"
    weights: str = "int8"
    reduce_range: bool | None = None
    exclude: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    force: bool = False
    allow_noop: bool = False


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
