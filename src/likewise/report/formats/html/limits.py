"""Limits beside measures: over all rows, under every setting and in every suite."""

from __future__ import annotations

from collections.abc import Mapping

from likewise.contracts.comparison import OutputFacts, SuiteFacts
from likewise.contracts.report import Report
from likewise.contracts.verdict import AT_LEAST, Check, Outcome, SuiteVerdict
from likewise.contracts.words import figure
from likewise.report.formats.html.cells import Cell, Column, Table, columns, count, outcome_cell, rows, words
from likewise.report.words import most_telling

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
        note=f"{left:,} more are in the JSON report." if left > 0 and len(checks) == CHECKS_SHOWN else "",
        id="limits-table",
        stacks=True,
    )


def _limit(check: Check) -> tuple[Cell, ...]:
    where = f" at batch size {check.batch_size}" if check.batch_size is not None else ""
    sign = "≥" if check.measure in AT_LEAST else "≤"
    return (
        words(check.output),
        words(check.measure + where),
        count(check.value),
        Cell(f"{sign} {figure(check.bound)}", check.bound),
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
                    measured(here.get(measure), verdicts.get((name, measure)))
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
        note=f"{len(found) - SUITES_SHOWN} more are in the JSON report." if len(found) > SUITES_SHOWN else "",
        stacks=True,
    )


def _suites(report: Report) -> list[tuple[SuiteFacts, SuiteVerdict]]:
    return list(zip(report.comparison.suites, report.verdict.suites, strict=True))


def _verdict(facts: SuiteFacts, verdict: SuiteVerdict) -> Cell:
    return Cell("not covered", tone="quiet", mark="–") if facts.not_covered else outcome_cell(verdict.outcome)


def measured(value: float | None, outcome: Outcome | None) -> Cell:
    """A figure with the mark of its verdict, if it has one."""
    if value is None:
        return Cell("–", tone="quiet")
    return count(value) if outcome is None else outcome_cell(outcome, figure(value))


def _telling(at: list[Mapping[str, float]], limited: set[str]) -> list[str]:
    """Measures with a limit, and those that are always worth a look where they were measured."""
    known = {name for here in at for name in here}
    return [name for name in (*MATRIX_MEASURES, *sorted(limited - {*MATRIX_MEASURES})) if name in known]
