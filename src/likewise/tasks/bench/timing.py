"""The rounds of a measurement, what their samples say, and the machine they were taken on.

Both models take turns at every batch size, in random order, until the time is used up. From the raw samples come
percentiles, throughput, and the ratio of medians with its interval.
"""

from __future__ import annotations

import os
import platform
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from likewise.contracts.report import BatchTiming, Latency, Round
from likewise.models.remote import cores
from likewise.report import provenance
from likewise.tasks.bench.subject import Station, Subject

SIDES = ("reference", "candidate")

ROUNDS, LEAST_ROUNDS, MOST_ROUNDS = 30, 3, 60
"""Rounds the time is divided into, and how few and how many there may be."""

MOST_CALLS = 100
"""Calls a turn: enough for the percentiles, and the raw samples stay small."""

CONFIDENCE = 0.95
RESAMPLES = 2_000
LEAST_CALLS_FOR_P99 = 100


@dataclass(frozen=True, slots=True)
class Measured:
    """The rounds of every batch size, and the sizes that would have taken too long."""

    rounds: Mapping[int, tuple[Round, ...]]
    left_out: tuple[int, ...]


def measure(
    stations: Mapping[str, Station],
    sizes: Sequence[int],
    *,
    budget: float,
    seed: int,
    on_progress: Callable[[float], None] | None = None,
) -> Measured:
    """Let both models take turns, at every size in every round, for about `budget` seconds."""
    began = time.monotonic()
    chooser = random.Random(seed)
    paces: dict[int, dict[str, int]] = {}
    left_out: list[int] = []
    for size in sorted(sizes):
        # A larger batch takes longer; what not even the smaller one has time for is not tried.
        if left_out:
            left_out.append(size)
            continue
        paces[size] = {side: stations[side].ask(Subject.warm_up, size) for side in SIDES}
        if LEAST_ROUNDS * sum(paces[size].values()) > budget * 1e9 and len(paces) > 1:
            del paces[size]
            left_out.append(size)
    turn = budget * 1e9 / (ROUNDS * len(paces) * len(SIDES))
    calls = {
        size: {side: int(min(max(turn / pace, 1), MOST_CALLS)) for side, pace in of_sides.items()}
        for size, of_sides in paces.items()
    }
    rounds: dict[int, list[Round]] = {size: [] for size in paces}
    for number in range(MOST_ROUNDS):
        spent = time.monotonic() - began
        if number >= LEAST_ROUNDS and spent >= budget:
            break
        if on_progress is not None:
            on_progress(spent)
        for size in chooser.sample(sorted(paces), len(paces)):
            first, second = chooser.sample(SIDES, 2)
            times = {side: tuple(stations[side].ask(Subject.turn, size, calls[size][side])) for side in (first, second)}
            rounds[size].append(Round((first, second), times["reference"], times["candidate"]))
    return Measured({size: tuple(taken) for size, taken in rounds.items()}, tuple(left_out))


def timing(size: int, rounds: Sequence[Round], *, seed: int) -> BatchTiming:
    """Everything the rounds at one batch size say."""
    reference = [entry.reference for entry in rounds]
    candidate = [entry.candidate for entry in rounds]
    return BatchTiming(
        batch_size=size,
        reference=_latency(reference, size),
        candidate=_latency(candidate, size),
        ratio=float(np.median(np.concatenate(reference)) / np.median(np.concatenate(candidate))),
        interval=interval(reference, candidate, seed=seed),
        rounds=tuple(rounds),
    )


def _latency(turns: Sequence[Sequence[int]], size: int) -> Latency:
    """Percentiles of all calls in milliseconds; throughput is all rows over all timed time."""
    calls = np.concatenate([np.asarray(turn, dtype=np.float64) for turn in turns])
    p50, p90, p99 = (float(value) for value in np.percentile(calls, [50, 90, 99]) / 1e6)
    return Latency(
        calls=len(calls),
        p50=p50,
        p90=p90,
        p99=p99 if len(calls) >= LEAST_CALLS_FOR_P99 else None,
        rows_per_second=float(size * len(calls) / (calls.sum() / 1e9)),
    )


def interval(
    reference: Sequence[Sequence[int]], candidate: Sequence[Sequence[int]], *, seed: int
) -> tuple[float, float] | None:
    """The bootstrap interval of the ratio of medians.

    Whole rounds are drawn again, both models' turns together: calls within a turn share the state of
    the machine and are not independent of each other. Every turn of a model has the same number of calls.
    """
    if len(reference) < LEAST_ROUNDS:
        return None
    ours, theirs = np.array(reference, dtype=np.float64), np.array(candidate, dtype=np.float64)
    random = np.random.default_rng(seed)
    ratios = np.empty(RESAMPLES)
    for index in range(RESAMPLES):
        drawn = random.integers(0, len(ours), size=len(ours))
        ratios[index] = np.median(ours[drawn]) / np.median(theirs[drawn])
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return float(low), float(high)


THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
LIBRARIES = ("likewise", "numpy", "onnxruntime", "scikit-learn", "torch", "xgboost", "lightgbm", "catboost")


def load() -> float | None:
    """How many processes wanted to run in the last minute."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


def machine(*, load_before: float | None) -> dict[str, Any]:
    """What a reader needs to judge the figures."""
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "model": _processor(),
        "cores": cores(),
        "load_average": {"before": load_before, "after": load()},
        "environment": {name: os.environ[name] for name in THREADS if name in os.environ},
        "python": sys.version.split()[0],
        "versions": provenance.versions(LIBRARIES),
    }


def doubts(load_before: float | None) -> tuple[str, ...]:
    """What makes the figures less certain."""
    if load_before is None or load_before < 0.5 * cores():
        return ()
    return (
        f"the machine was busy (load {load_before:g} on {cores()} cores): trust the ratios, not the absolute times",
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, platform.processor())
    except OSError:
        return platform.processor()
