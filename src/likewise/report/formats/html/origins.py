"""Where everything comes from, and how fast it is: models, data, versions, machine, settings, bench."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from likewise.contracts.report import Artefact, BenchResult, Latency, Report
from likewise.report.formats.html.cells import Cell, Table, columns, count, rows, shown, words
from likewise.report.words import between, duration, faster, size


def artefacts(report: Report) -> Table:
    """Both models and the data, so that the very same ones can be found again."""
    origin = report.origin
    named = (("Reference", origin.reference), ("Candidate", origin.candidate), ("Data", origin.data))
    return Table(
        "Models and data",
        columns("", "Name", "Kind", "#Size", "SHA-256"),
        rows((Cell(role), *_artefact(artefact)) for role, artefact in named),
        stacks=True,
    )


def _artefact(artefact: Artefact) -> tuple[Cell, ...]:
    weight = "–" if artefact.bytes is None else size(artefact.bytes)
    return words(artefact.name), words(artefact.kind), Cell(weight), Cell(artefact.sha256 or "–", tone="code")


def provenance(report: Report) -> tuple[Table, ...]:
    """Everything that may differ between two runs with equal answers."""
    origin, policy = report.origin, report.policy
    details = {
        "reference": origin.reference.details or {},
        "candidate": origin.candidate.details or {},
        "data": origin.data.details or {},
    }
    judged = {
        "preset": policy.preset,
        "absolute tolerance": policy.tolerance.absolute,
        "relative tolerance": policy.tolerance.relative,
        "NaN equals NaN": policy.nan_equal,
        "confidence": policy.confidence,
        "largest failure rate": policy.max_failure_rate,
        "fixed batch intended": policy.fixed_batch,
    }
    found = [
        _pairs("Policy", judged),
        _pairs("Versions", origin.versions),
        _pairs("Machine", origin.machine),
        _pairs("Settings", origin.settings),
        _pairs("Run", {"created": origin.created, **origin.run}),
        *(_pairs(f"Details of the {side}", entries) for side, entries in details.items()),
    ]
    return tuple(table for table in found if table.rows)


def _pairs(caption: str, entries: Mapping[str, Any]) -> Table:
    return Table(caption, columns("", "Value"), rows((words(name), words(value)) for name, value in entries.items()))


def bench(result: BenchResult) -> tuple[Table, ...]:
    """Speed at every batch size, and what either model takes besides time."""
    both = result.reference, result.candidate
    speed = Table(
        "Latency and throughput, the two models in turns",
        columns("#Batch size", "Model", "#p50", "#p90", "#p99", "#Rows a second", "The candidate is"),
        rows(
            (Cell(f"{timing.batch_size:,}", timing.batch_size), Cell(side), *_latency(latency), Cell(told))
            for timing in result.timings
            for side, latency, told in (
                ("reference", timing.reference, ""),
                ("candidate", timing.candidate, faster(timing) + between(timing)),
            )
        ),
        note="In brackets the interval of the ratio of medians.",
    )
    footprint = Table(
        "Size, load time and memory",
        columns("", "#Reference", "#Candidate"),
        rows(
            (Cell(name), *(Cell(text) for text in texts))
            for name, texts in (
                ("file", [size(model.file_bytes) for model in both]),
                ("first load, with imports", [duration(model.first_load) for model in both]),
                ("load again", [duration(model.load) for model in both]),
                ("memory, loaded", [size(model.memory_loaded) for model in both]),
                ("memory, at peak", [size(model.memory_peak) for model in both]),
            )
        ),
    )
    return speed, footprint


def _latency(latency: Latency) -> tuple[Cell, ...]:
    times = latency.p50, latency.p90, latency.p99
    told = (Cell("–", tone="quiet") if ms is None else Cell(duration(ms / 1e3), ms) for ms in times)
    return *told, count(round(latency.rows_per_second))


def bench_notes(result: BenchResult) -> tuple[str, ...]:
    """How it was measured, on what, and what to know about it."""
    measured = f"Measured on {result.data}, {shown(result.machine)}"
    return (measured, *result.notes)
