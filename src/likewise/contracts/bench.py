"""How fast two models are, side by side: raw samples first, then what they say.

Why the samples are kept round by round: a noisy machine is slow for a while, not for one call. The
two models take turns within a round, so what hits one hits the other, and the interval of the ratio
comes from drawing whole rounds again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from likewise.contracts.comparison import Json


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of each model, in the order they were taken; nanoseconds of every call."""

    order: tuple[str, str]
    reference: tuple[int, ...]
    candidate: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds a call, and rows a second over all timed calls. `p99` is None below 100 calls."""

    calls: int
    p50: float
    p90: float
    p99: float | None
    rows_per_second: float


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """Both models at one batch size.

    `ratio` is the reference's median over the candidate's: 2 means that the candidate is twice as
    fast. The interval is None where too few rounds fitted the budget.
    """

    batch_size: int
    reference: Latency
    candidate: Latency
    ratio: float
    interval: tuple[float, float] | None
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one model takes besides time.

    `first_load` is in seconds and includes importing its framework, `load` is the median of opening
    it again. Memory is the growth of its own process, in bytes: by opening it, and at the peak of
    the calls beyond that; None where it was not measured.
    """

    name: str
    framework: str
    file_bytes: int | None
    first_load: float
    load: float
    memory_loaded: int | None
    memory_peak: int | None
    details: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Latency, throughput, load time, memory and size of two models, and how they were measured."""

    reference: Footprint
    candidate: Footprint
    timings: tuple[BatchTiming, ...]
    data: str
    settings: Mapping[str, Json]
    machine: Mapping[str, Json]
    notes: tuple[str, ...]
    schema_version: int = 1
