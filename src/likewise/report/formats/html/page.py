"""A report as what a page shows, section by section; a section without anything to say is not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from likewise.contracts.report import Explanation, Report
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Finding, Severity
from likewise.contracts.words import figure
from likewise.report.formats.html import charts as drawing
from likewise.report.formats.html import findings, limits
from likewise.report.formats.html.cells import TONES, Table, share, shown
from likewise.report.words import MARKS, batches_told, beside_the_limits, remedy_of, remedy_told, sentence, titled

SEVERITIES = {
    Severity.FAILURE: ("✗", "bad", "Failure"),
    Severity.INCONCLUSIVE: ("?", "unsure", "Inconclusive"),
    Severity.WARNING: ("!", "unsure", "Warning"),
    Severity.NOTE: ("·", "quiet", "Note"),
}
FINDINGS_SHOWN = 100
WORST_OUTPUTS = 12


@dataclass(frozen=True, slots=True)
class Told:
    """A finding in words."""

    mark: str
    tone: str
    kind: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Cause:
    """A diagnosis in words."""

    cause: str
    culprit: str
    share: str
    percent: float
    evidence: str
    remedy: str
    rows: str


def context(report: Report) -> dict[str, Any]:
    """Everything the template needs."""
    facts, found = report.comparison, report.explanation
    told = beside_the_limits(report.verdict)
    tables = {
        "limits": _present(limits.limits(report)),
        "flips": _present(*(findings.flips(output) for output in facts.outputs)),
        "generated": _present(findings.generated(report)),
        "batches": _present(limits.batches(report), limits.settings(report)),
        "suites": _present(limits.suites(report)),
        "worst": _worst(report),
        "slices": _present(findings.slices(report), findings.strata(report)),
        "graph": _present(drawing.graph_table(found.graph if found is not None else None, facts.tolerance)),
        "bench": () if report.bench is None else limits.bench(report.bench),
        "origin": (limits.artefacts(report), *_present(findings.casts(report)), *limits.provenance(report)),
    }
    return {
        "report": report,
        "title": f"{report.outcome}: {titled(report)}",
        "outcome": str(report.outcome),
        "mark": MARKS[report.outcome],
        "tone": TONES[report.outcome],
        "headline": sentence(report.verdict.headline),
        "remedy": "" if report.diagnoses else sentence(remedy_of(report)),
        "made_up": _made_up(report),
        "reach": _reach(report),
        "figures": _figures(report),
        "findings": tuple(map(_told, told[:FINDINGS_SHOWN])),
        "findings_left": max(0, len(told) - FINDINGS_SHOWN),
        "charts": drawing.charts(report),
        "charts_left": _charts_left(report),
        "measures": _present(*(limits.measures(output) for output in facts.outputs[:WORST_OUTPUTS])),
        "causes": tuple(_causes(report)),
        "explanation": found,
        "graph_heading": _graph_heading(found),
        "graph_note": sentence(found.graph.note) if found is not None and found.graph is not None else "",
        "bench_notes": () if report.bench is None else tuple(map(sentence, limits.bench_notes(report.bench))),
        "tables": tables,
        "notes": tuple(sentence(text) for text in (*facts.notes, *facts.warnings, *facts.lineage)),
        "not_compared": tuple(sentence(text) for text in facts.not_compared),
        "warnings": tuple(sentence(text) for text in report.origin.warnings),
    }


def data(report: Report, charts: tuple[drawing.Charts, ...]) -> Mapping[str, Any]:
    """Everything the scripts need."""
    view = report.explanation.graph if report.explanation is not None else None
    return {"outputs": [entry.data for entry in charts], "graph": drawing.graph_data(view, report.comparison.tolerance)}


def _present(*tables: Table | None) -> tuple[Table, ...]:
    return tuple(table for table in tables if table is not None)


def _worst(report: Report) -> tuple[Table, ...]:
    unusual = report.explanation.unusual if report.explanation is not None else ()
    shown_outputs, tolerance = report.comparison.outputs[:WORST_OUTPUTS], report.comparison.tolerance
    worst = _present(*(findings.worst_rows(output, unusual, tolerance) for output in shown_outputs))
    return (*worst, *_present(findings.unusual_values(report)))


def _charts_left(report: Report) -> int:
    return max(0, len(drawing.numeric_outputs(report)) - drawing.OUTPUTS_DRAWN)


def _made_up(report: Report) -> str:
    """That no row is real, and how much of them is a guess; empty where rows are real."""
    made = report.comparison.generated
    blind = len([column for column in made if not column.known])
    guess = f" About {blind:,} of {len(made):,} columns neither model says anything." if blind else ""
    return f"No row of this run is real, and nothing is claimed about rows that are.{guess}" if made else ""


def _reach(report: Report) -> tuple[str, ...]:
    """How far the verdict reaches: rows, batch sizes, settings, confidence."""
    facts = report.comparison
    expected = facts.expected_rows
    rows = f"{facts.rows:,}" if expected in (None, facts.rows) else f"{facts.rows:,} of {expected:,}"
    data = report.origin.data
    told = [f"{rows} {facts.unit} of {data.name} were compared{batches_told(facts)}"]
    covered = [suite for suite in facts.suites if not suite.not_covered]
    for kind, name in (
        ("setting", "runtime settings"),
        ("edge", "suites of edge cases"),
        ("shape", "suites of shapes"),
    ):
        amount = len([suite for suite in covered if suite.kind == kind])
        if amount:
            told.append(f"{amount} {name} were tried")
    if report.verdict.confidence is not None:
        told.append(report.verdict.confidence.statement)
    return tuple(map(sentence, told))


def _figures(report: Report) -> tuple[tuple[str, str], ...]:
    tolerance = report.policy.tolerance
    allowed = f"{tolerance.absolute:g}" + (f" + {tolerance.relative:g}·|r|" if tolerance.relative else "")
    # Where nothing was compared a zero would look like agreement.
    beyond = f"{report.comparison.rows_beyond:,}" if report.samples else "not measured"
    found = [("Rows compared", f"{report.samples:,}"), ("Rows beyond tolerance", beyond)]
    if report.max_abs_diff is not None:
        found += [
            ("Largest difference", figure(report.max_abs_diff)),
            ("Mean difference", figure(report.mean_abs_diff)),
        ]
    flipped = [
        output.measures["label_flips"] for output in report.comparison.outputs if "label_flips" in output.measures
    ]
    if flipped:
        found.append(("Labels changed", figure(max(flipped))))
    return (*found, ("Allowed difference", allowed))


def _told(finding: Finding) -> Told:
    mark, tone, kind = SEVERITIES[finding.severity]
    return Told(mark, tone, kind, sentence(finding.message), sentence(finding.remedy))


def _causes(report: Report) -> list[Cause]:
    failing = report.explanation.failing_rows if report.explanation is not None else 0
    return [
        Cause(
            entry.cause,
            entry.culprit,
            f"explains {share(entry.explained_share)} of the failing rows" if failing else "",
            max(0.0, min(1.0, entry.explained_share)) * 100 if failing else 0.0,
            sentence(entry.evidence),
            sentence(remedy_told(entry)),
            ", ".join(shown(row) for row in entry.rows[:20]) + (" …" if len(entry.rows) > 20 else ""),
        )
        for entry in report.diagnoses
    ]


def _graph_heading(found: Explanation | None) -> str:
    nodes = found.graph.nodes if found is not None and found.graph is not None else ()
    culprit = any(node.culprit for node in nodes)
    return "The graph around the culprit" if culprit else "The graph, by the error each node introduces"
