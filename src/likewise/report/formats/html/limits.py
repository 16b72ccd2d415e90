"""Limits beside measures, over all rows, batches, settings and suites; and what was compared, where and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from likewise.contracts.comparison import BatchSizeFacts, OutputFacts, SuiteFacts
from likewise.contracts.report import Artefact, BenchResult, Latency, Report
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Check, Outcome, SuiteVerdict
from likewise.contracts.words import figure
from likewise.report.formats.html.cells import (
    Cell,
    Column,
    Table,
    columns,
    count,
    left_out,
    outcome_cell,
    rows,
    shown,
    words,
)
from likewise.report.words import between, bound_text, duration, faster, most_telling, sentence, size

MEASURES = (
    "max_abs_diff",
    "mismatch_rate",
    "label_flips",
    "material_flips",
    "batch_drift",
    "position_drift",
    "reference_drift",
)
COLUMNS_SHOWN = 24
CHECKS_SHOWN = 400
SUITES_SHOWN = 200
MATRIX_MEASURES = ("max_abs_diff", "mismatch_rate", "label_flips", "material_flips", "batch_drift")
SETTING = "setting"


def limits(report: Report) -> Table | None:
    """Every limit with what was measured against it, what failed first."""
    checks = most_telling(report.verdict.checks, CHECKS_SHOWN)
    if not checks:
        return None
    left = len([c for c in report.verdict.checks if c.batch_size is None or c.outcome is not Outcome.PASS]) - len(
        checks
    )
    return Table(
        "Limits and what was measured",
        columns("Output", "Measure", "#Measured", "Limit", "Verdict"),
        rows(_limit(check) for check in checks),
        sortable=len(checks) > 1,
        note=left_out(left) if len(checks) == CHECKS_SHOWN else "",
        id="limits-table",
        stacks=True,
    )


def _limit(check: Check) -> tuple[Cell, ...]:
    where = f" at batch size {check.batch_size}" if check.batch_size is not None else ""
    return (
        words(check.output),
        words(check.measure + where),
        count(check.value),
        Cell(bound_text(check), check.bound),
        outcome_cell(check.outcome),
    )


def measures(output: OutputFacts) -> Table | None:
    """Everything that was measured on one output, limited or not."""
    if not output.measures:
        return None
    return Table(
        f"All measures of {output.name}",
        columns("Measure", "#Value"),
        rows((words(name), count(value)) for name, value in output.measures.items()),
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """What was measured in one kind of batch, or on all rows, and what became of the limits there."""

    name: Cell
    rows: int
    measures: Mapping[tuple[str, str], float]
    outcomes: Mapping[tuple[str, str], Outcome]
    facts: BatchSizeFacts | None = None


def batches(report: Report) -> Table | None:
    """Every batch size of the sweep, and rows in other places of a batch; a column of zeros is only named."""
    swept = (*report.comparison.batch_sizes, *report.comparison.batch_orders)
    if not swept:
        return None
    places = [_everything(report), *(_place(report, facts) for facts in swept)]
    known = _columns(report, places)
    telling = [key for key in known if any(place.measures.get(key) or key in _failed(place) for place in places)]
    kept = telling[:COLUMNS_SHOWN]
    zero = [_heading(key) for key in known if key not in telling]
    left = len(telling) - len(kept)
    troubles = any(_troubles(facts) for facts in swept)
    notes = (
        f"0 everywhere: {', '.join(zero)}." if zero else "",
        left_out(left, " measures"),
        *dict.fromkeys(text for facts in swept for text in _troubles(facts)),
    )
    return Table(
        "The candidate at several batch sizes" + (" and orders" if report.comparison.batch_orders else ""),
        (
            *columns("Batch", "#Rows"),
            *(Column(_heading(key), numeric=True) for key in kept),
            *columns(*(["Trouble"] if troubles else [])),
        ),
        tuple(
            (
                place.name,
                count(place.rows),
                *(_measured(place.measures.get(key), place.outcomes.get(key)) for key in kept),
                *([_trouble(place.facts)] if troubles else []),
            )
            for place in places
        ),
        sortable=True,
        note=" ".join(filter(None, notes)),
    )


def _everything(report: Report) -> _Place:
    measures = {(o.name, name): value for o in report.comparison.outputs for name, value in o.measures.items()}
    return _Place(Cell("all rows", 0), report.samples, measures, _outcomes(report, None))


def _place(report: Report, facts: BatchSizeFacts) -> _Place:
    name = Cell(f"{facts.size:,}" + (f", {facts.order}" if facts.order else ""), facts.size)
    measures = {(output.name, name): value for output in facts.outputs for name, value in output.measures.items()}
    # Limits are judged at sizes; an order has the size of one of them, but not its rows.
    outcomes = {} if facts.order else _outcomes(report, facts.size)
    return _Place(name, facts.rows, measures, outcomes, facts)


def _outcomes(report: Report, size: int | None) -> dict[tuple[str, str], Outcome]:
    return {(c.output, c.measure): c.outcome for c in report.verdict.checks if c.batch_size == size}


def _columns(report: Report, places: list[_Place]) -> list[tuple[str, str]]:
    """Measures that are always worth a look, and others whose limit is not kept somewhere."""
    failed = {key for place in places for key in _failed(place)}
    found = {key for place in places[1:] for key in place.measures}
    names = (*MEASURES, *sorted({name for _, name in failed} - {*MEASURES}))
    keys = ((output.name, name) for output in report.comparison.outputs for name in names)
    return [key for key in keys if key in found and (key[1] in MEASURES or key in failed)]


def _failed(place: _Place) -> set[tuple[str, str]]:
    return {key for key, outcome in place.outcomes.items() if outcome is not Outcome.PASS}


def _heading(key: tuple[str, str]) -> str:
    return ": ".join(key)


def _trouble(facts: BatchSizeFacts | None) -> Cell:
    if facts is None:
        return Cell("–", tone="quiet")
    if facts.mismatches or facts.incidents:
        return outcome_cell(Outcome.FAIL if facts.mismatches else Outcome.INCONCLUSIVE, "candidate: see below")
    return Cell("reference: see below", tone="unsure", mark="!") if facts.reference else Cell("none")


def _troubles(facts: BatchSizeFacts) -> list[str]:
    """What went wrong in words; that the reference refuses a batch is no fault of the candidate."""
    where = f"batch {facts.size:,}" + (f", {facts.order}" if facts.order else "")
    return [
        *(sentence(f"the candidate at {where}: {found.message}") for found in facts.mismatches),
        *(sentence(f"the candidate {found.message}") for found in facts.incidents),
        *(sentence(f"the reference at {where}: {found.message}") for found in facts.reference),
    ]


def settings(report: Report) -> Table | None:
    """The candidate under other runtime settings, one column each."""
    found = [both for both in _suites(report) if both[0].kind == SETTING][:24]
    if not found:
        return None
    body: list[tuple[Cell, ...]] = [
        (Cell("verdict"), *(_verdict(facts, verdict) for facts, verdict in found)),
        (Cell("blocks"), *(Cell("yes" if facts.blocks else "no") for facts, _ in found)),
        (Cell("rows compared"), *(count(verdict.rows) for _, verdict in found)),
    ]
    for name in dict.fromkeys(output.name for facts, _ in found for output in facts.comparison.outputs):
        at = [{o.name: o.measures for o in facts.comparison.outputs}.get(name, {}) for facts, _ in found]
        judged = [{(c.output, c.measure): c.outcome for c in verdict.checks} for _, verdict in found]
        limited = {measure for verdicts in judged for place, measure in verdicts if place == name}
        body += [
            (
                Cell(f"{name}: {measure}"),
                *(
                    _measured(here.get(measure), verdicts.get((name, measure)))
                    for here, verdicts in zip(at, judged, strict=True)
                ),
            )
            for measure in _telling(at, limited)
        ]
    return Table(
        "The candidate under several runtime settings",
        (Column("Measure"), *(Column(facts.title or facts.name, numeric=True) for facts, _ in found)),
        tuple(body),
        note=" ".join(f"{facts.title}: {facts.not_covered}." for facts, _ in found if facts.not_covered),
    )


def suites(report: Report) -> Table | None:
    """Inputs made to find trouble and other shapes: each with its own verdict."""
    found = [both for both in _suites(report) if both[0].kind != SETTING]
    if not found:
        return None
    return Table(
        "Suites: the same two models on other inputs",
        columns("Suite", "Kind", "Verdict", "Blocks", "#Rows", "#Refused by both", "What it shows"),
        rows(
            (
                words(facts.title or facts.name),
                words(facts.kind),
                _verdict(facts, verdict),
                Cell("yes" if facts.blocks else "no"),
                count(verdict.rows),
                count(verdict.refused),
                words(facts.not_covered or verdict.headline),
            )
            for facts, verdict in found[:SUITES_SHOWN]
        ),
        sortable=True,
        note=left_out(len(found) - SUITES_SHOWN),
        stacks=True,
    )


def _suites(report: Report) -> list[tuple[SuiteFacts, SuiteVerdict]]:
    return list(zip(report.comparison.suites, report.verdict.suites, strict=True))


def _verdict(facts: SuiteFacts, verdict: SuiteVerdict) -> Cell:
    return Cell("not covered", tone="quiet", mark="–") if facts.not_covered else outcome_cell(verdict.outcome)


def _measured(value: float | None, outcome: Outcome | None) -> Cell:
    """A figure with the mark of its verdict, if it has one."""
    if value is None:
        return Cell("–", tone="quiet")
    return count(value) if outcome is None else outcome_cell(outcome, figure(value))


def _telling(at: list[Mapping[str, float]], limited: set[str]) -> list[str]:
    """Measures with a limit, and those that are always worth a look where they were measured."""
    known = {name for here in at for name in here}
    return [name for name in (*MATRIX_MEASURES, *sorted(limited - {*MATRIX_MEASURES})) if name in known]


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
        "one model on both sides intended": policy.allow_same,
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
