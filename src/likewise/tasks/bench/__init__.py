"""Latency, throughput, load time, memory and size of two models, side by side.

The timed part is one call of the model on rows that are already in its own form: reading, casting
and building frames are not in it.
"""

from __future__ import annotations

import os
import platform
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from likewise.compare import feed as feeding
from likewise.compare import pair
from likewise.contracts.comparison import Progress
from likewise.contracts.data import Batch, Source
from likewise.contracts.models import BatchAxis, Model, Signature
from likewise.contracts.results import BatchTiming, BenchResult, Footprint, Latency, Round
from likewise.contracts.values import dataclass
from likewise.data import selection as selecting
from likewise.data.readers import first_rows
from likewise.errors import DataError, LikewiseError, ModelError, PairingError, UsageError
from likewise.models.remote import cores
from likewise.registry import adapter, describe_model, open_source
from likewise.report import provenance
from likewise.tasks.bench.subject import Opened, Station, Subject, open_station

__all__ = ["bench"]

BATCH_SIZES = (1, 16, 256)
KEPT = ("threads", "inter_threads", "optimization", "providers", "onnxruntime", "sklearn", "nodes", "quantized_nodes")
"""What is kept of a model's own details: how it is run."""

QUICK: Mapping[str, Any] = {"batch_sizes": (256,), "budget": 3.0}
SELECTION = ("drop", "seed", "id", "feed", "batch_axis")
"""How a file that was just written is timed beside the one it was made from, and what of a check that follows."""

NOT_TIMED = "reading, casting and building frames are not timed: each call gets rows in the model's own form"


def bench(
    reference: Any,
    candidate: Any,
    data: Any,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    budget: float = 20.0,
    seed: int = 0,
    reference_options: Mapping[str, Any] | None = None,
    candidate_options: Mapping[str, Any] | None = None,
    trusted: Sequence[str] = (),
    batch_axis: BatchAxis | None = None,
    feed: Mapping[str, str] | None = None,
    progress: Callable[[Progress], None] | None = None,
    **selection: Any,
) -> BenchResult:
    """Time both models on the same rows, in turns, for about `budget` seconds.

    Models and data are given as to `check`. Each model runs in a process of its own; a live object
    that cannot be sent to one is timed here, without figures for memory. `drop`, `samples`, `id`
    and so on select columns and rows.
    """
    sizes = _sensible(batch_sizes, budget)
    models: dict[str, Model] = {}
    for side, target, options in zip(
        SIDES, (reference, candidate), (reference_options, candidate_options), strict=True
    ):
        chosen = {**(options or {}), "trusted": tuple(trusted)}
        models[side] = describe_model(target, chosen, batch_axis=batch_axis, side=side)
        if adapter(models[side].framework).answers_only:
            told = f"the {side} ({models[side].name}) holds recorded answers, which have no speed"
            raise UsageError(told, remedy="Give the model")
    source = selecting.select(open_source(data), **selection)
    before = load()
    with ExitStack() as stack:
        stations: dict[str, Station] = {}
        opened: dict[str, Opened] = {}
        for side in SIDES:
            _tell(progress, f"loading the {side}", side)
            stations[side], opened[side] = open_station(side, models[side])
            stack.callback(stations[side].close)
        notes = [NOT_TIMED]
        notes += [
            f"the {side} is a live object that stays in this process; its memory was not measured"
            for side in SIDES
            if not stations[side].alone
        ]
        batch, sizes, left = _rows(source, sizes, [opened[side].signature for side in SIDES])
        notes += [*left, *_feed(batch, sizes, stations, opened, feed), *_same_questions(stations)]
        for station in stations.values():
            station.ask(Subject.watch_memory)
        measured = measure(
            stations,
            sizes,
            budget=budget,
            seed=seed,
            on_progress=lambda spent: _tell(progress, f"measuring, {spent:.0f} of about {budget:.0f} s"),
        )
        notes += [f"batch size {size:,} was left out: it would not fit the time budget" for size in measured.left_out]
        footprints = {side: _footprint(models[side], opened[side], stations[side]) for side in SIDES}
    return BenchResult(
        reference=footprints["reference"],
        candidate=footprints["candidate"],
        timings=tuple(timed(size, rounds, seed=seed) for size, rounds in measured.rounds.items()),
        data=source.location,
        settings={
            "batch_sizes": list(sizes),
            "budget": budget,
            "seed": seed,
            "confidence": CONFIDENCE,
            "resamples": RESAMPLES,
        },
        machine=machine(load_before=before),
        notes=(*notes, *doubts(before)),
    )


def quick(before: Any, after: Any, data: Any, **shared: Any) -> BatchTiming | None:
    """How much faster one file is than another, in seconds; None where one cannot be run, of which a report tells."""
    try:
        return bench(before, after, data, **QUICK, **shared).timings[0]
    except LikewiseError:
        return None


def _sensible(batch_sizes: Sequence[int], budget: float) -> tuple[int, ...]:
    if not batch_sizes or any(size < 1 for size in batch_sizes):
        raise UsageError("--batch-sizes holds no size above zero", remedy="Give sizes such as 1,16,256")
    if not budget > 0:
        raise UsageError(f"--budget is {budget:g}", remedy="Give seconds above zero, such as 20s")
    return tuple(sorted(set(batch_sizes)))


def _rows(
    source: Source, sizes: tuple[int, ...], signatures: Sequence[Signature]
) -> tuple[Batch, tuple[int, ...], list[str]]:
    """Rows for the largest batch, and the sizes that both models take and the data has rows for."""
    fixed = sorted({signature.batch for signature in signatures if signature.batch is not None})
    if len(fixed) > 1:
        raise ModelError(
            f"the models take batches of {fixed[0]} and of {fixed[1]} rows only", remedy="Export both alike"
        )
    notes = [f"batch size {fixed[0]} only: a model takes no other"] if fixed else []
    sizes = tuple(fixed) or sizes
    batch = first_rows(source, max(sizes))
    if not batch.stacked:
        return batch, (1,), ["one whole test case per call: its tensors have no common row axis"]
    if fixed and len(batch) < fixed[0]:
        raise DataError(
            f"a model takes batches of {fixed[0]} rows only, and {source.location} has {len(batch)}",
            remedy="Give more rows",
        )
    fitting = tuple(sorted({min(size, len(batch)) for size in sizes}))
    if fitting != sizes:
        notes.append(f"{source.location} has {len(batch):,} rows, so batches go up to that")
    return batch, fitting, notes


def _feed(
    batch: Batch,
    sizes: tuple[int, ...],
    stations: Mapping[str, Station],
    opened: Mapping[str, Opened],
    mapping: Mapping[str, str] | None,
) -> list[str]:
    """Hand each model its rows, in its own form; what was decided on the way."""
    order: Sequence[str] | None = None
    notes: list[str] = []
    feeding.require_inputs(mapping or {}, *(opened[side].signature for side in SIDES))
    for side in SIDES:
        signature = opened[side].signature
        route = feeding.plan(batch, signature, side=side, order=order, mapping=mapping)
        notes += route.notes
        stations[side].ask(Subject.take, route(batch)[0], sizes)
        order = route.columns if side == "reference" and signature.table else order
    return notes


def _same_questions(stations: Mapping[str, Station]) -> list[str]:
    """Ask the reference only for what the candidate also answers, as `check` does."""
    seen = {side: pair.observed(*stations[side].ask(Subject.answer)) for side in SIDES}
    try:
        wanted = pair.pair(seen["reference"], seen["candidate"]).reference_outputs
    except PairingError:
        wanted = frozenset()
    if not wanted:
        return ["the outputs cannot be paired, so each model computes all of its own"]
    stations["reference"].ask(Subject.ask_for, wanted)
    skipped = [spec.name for spec in seen["reference"] if spec.name not in wanted]
    return [f"the reference is not asked for {', '.join(skipped)}: the candidate has no such output"] if skipped else []


def _footprint(model: Model, opened: Opened, station: Station) -> Footprint:
    loaded = opened.memory if station.alone else None
    peak = station.ask(Subject.peak_memory)
    return Footprint(
        name=model.name,
        framework=model.framework,
        file_bytes=_file_bytes(model),
        first_load=opened.nanoseconds / 1e9,
        load=median(station.ask(Subject.reopen)) / 1e9,
        memory_loaded=loaded,
        memory_peak=None if loaded is None or peak is None else loaded + peak,
        details={key: opened.details[key] for key in KEPT if key in opened.details},
    )


def _file_bytes(model: Model) -> int | None:
    """The file, with ONNX weights stored beside it."""
    target = model.target
    if isinstance(target, bytes):
        return len(target)
    if not isinstance(target, str | PathLike) or not Path(target).is_file():
        return None
    if model.framework == "onnx":
        from likewise.models.onnx.describe import file_bytes

        return file_bytes(Path(target))
    return Path(target).stat().st_size


def _tell(progress: Callable[[Progress], None] | None, phase: str, side: str | None = None) -> None:
    if progress is not None:
        progress(Progress(phase, side))


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


def timed(size: int, rounds: Sequence[Round], *, seed: int) -> BatchTiming:
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
