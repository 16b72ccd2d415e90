"""Latency, throughput, load time, memory and size of two models, side by side.

The timed part is one call of the model on rows that are already in its own form: reading, casting
and building frames are not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Any

from likewise.compare import feed as feeding
from likewise.compare import pair
from likewise.contracts.comparison import Progress
from likewise.contracts.data import Batch, Source
from likewise.contracts.models import BatchAxis, Model, Signature
from likewise.contracts.report import BenchResult, Footprint
from likewise.data import selection as selecting
from likewise.data.rows import first_rows
from likewise.errors import DataError, ModelError, PairingError, UsageError
from likewise.registry import adapter, describe_model, open_source
from likewise.tasks.bench import timing
from likewise.tasks.bench.subject import Opened, Station, Subject, open_station
from likewise.tasks.bench.timing import SIDES

__all__ = ["bench"]

BATCH_SIZES = (1, 16, 256)
KEPT = ("threads", "inter_threads", "optimization", "providers", "onnxruntime", "sklearn", "nodes", "quantized_nodes")
"""What is kept of a model's own details: how it is run."""

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
    that cannot be sent to one is timed here, without figures for memory. `drop`, `samples`, `row_id`
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
    before = timing.load()
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
        measured = timing.measure(
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
        timings=tuple(timing.timing(size, rounds, seed=seed) for size, rounds in measured.rounds.items()),
        data=source.location,
        settings={
            "batch_sizes": list(sizes),
            "budget": budget,
            "seed": seed,
            "confidence": timing.CONFIDENCE,
            "resamples": timing.RESAMPLES,
        },
        machine=timing.machine(load_before=before),
        notes=(*notes, *timing.doubts(before)),
    )


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
        return batch, (1,), ["one whole test case a call: its tensors have no common row axis"]
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
        from likewise.models.onnx.describe import file_bytes, read

        return file_bytes(read(target), Path(target))
    return Path(target).stat().st_size


def _tell(progress: Callable[[Progress], None] | None, phase: str, side: str | None = None) -> None:
    if progress is not None:
        progress(Progress(phase, side))
