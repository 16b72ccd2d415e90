"""The report as one page that needs nothing else: no network, no server, no other file.

Every table is in the page as it is written; scripts only draw charts and the graph, sort tables and
switch the theme. Whatever comes from a model or from data is escaped by the template or stands as
JSON in a block of data, and a policy in the page forbids it to load anything or to run other scripts.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.contracts.report import Explanation, Report
from likewise.contracts.results import BenchResult, Latency
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Finding, Outcome, Severity, figure
from likewise.report.console import printable
from likewise.report.formats.html import charts as drawing
from likewise.report.formats.html import tables
from likewise.report.formats.html.cells import TONES, Cell, Table, count, outcome_cell, share, shown, table, words
from likewise.report.words import (
    MARKS,
    batches_told,
    beside_the_limits,
    between,
    duration,
    faster,
    footprints,
    gates_counted,
    remedy_of,
    remedy_told,
    repair_told,
    rows_explained,
    sentence,
    size,
    titled,
    told_by_cause,
    worst,
)

if TYPE_CHECKING:
    from jinja2 import Environment, Template


FOLDER = Path(__file__).parent
STYLES = ("vendor/uplot.min.css", "assets/style.css")
EARLY_SCRIPTS = ("assets/theme.js",)
"""Run before anything is shown, so that a chosen theme does not flash."""

SCRIPTS = (
    "vendor/uplot.min.js",
    "vendor/dagre.min.js",
    "assets/text.js",
    "assets/scatter.js",
    "assets/bars.js",
    "assets/table.js",
    "assets/graph.js",
    "assets/start.js",
)


class HtmlRenderer:
    """A page for people; every name from a model or the data is text, never markup."""

    format = "html"

    def render(self, report: Report, **options: Any) -> str:
        page = _context(report)
        text = template("page.html").render(
            **page,
            data=drawing.embedded(_data(report, page["charts"])),
            style=_joined(STYLES),
            early=_joined(EARLY_SCRIPTS),
            script=_joined(SCRIPTS),
            policy=_policy(EARLY_SCRIPTS, SCRIPTS),
        )
        return text.rstrip() + "\n"


@dataclass(frozen=True, slots=True)
class Entry:
    """A gate in an index of many: what came of it, and the page that tells more."""

    name: str
    outcome: Outcome
    headline: str
    page: str
    note: str = ""


def index(entries: Sequence[Entry]) -> str:
    """A page that names every gate and links its own, those that do not pass first."""
    outcomes = {entry.name: entry.outcome for entry in entries}
    outcome = worst(outcomes.values())
    ordered = sorted(entries, key=lambda entry: entry.outcome is Outcome.PASS)
    gates = table(
        "Gates",
        ("Gate", "Verdict", "What it says", ""),
        (
            (Cell(e.name, link=e.page), outcome_cell(e.outcome), words(sentence(e.headline)), words(e.note or " "))
            for e in ordered
        ),
        stacks=True,
    )
    text = template("index.html").render(
        outcome=str(outcome),
        mark=MARKS[outcome],
        tone=TONES[outcome],
        headline=sentence(gates_counted(outcomes)),
        gates=gates,
        style=_joined(STYLES),
        policy=_policy(),
    )
    return text.rstrip() + "\n"


def template(name: str) -> Template:
    """One of our pages, ready to be filled in."""
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # What is marked as safe is ours; all other text comes from models and data.
        finalize=lambda value: printable(value) if type(value) is str else value,
        # They are ours and stay as they are.
        auto_reload=False,
    )


@cache
def _joined(names: tuple[str, ...]) -> str:
    return "\n".join((FOLDER / name).read_text(encoding="utf-8").strip() for name in names)


@cache
def _policy(*scripts: tuple[str, ...]) -> str:
    """Nothing is loaded, and only these scripts and the styles of this package run, by their hashes."""
    allowed = " ".join(_hash(_joined(names)) for names in scripts) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_hash(_joined(STYLES))}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


SEVERITIES = {
    Severity.FAILURE: ("✗", "bad", "Failure"),
    Severity.INCONCLUSIVE: ("?", "unsure", "Inconclusive"),
    Severity.WARNING: ("!", "unsure", "Warning"),
    Severity.NOTE: ("·", "quiet", "Note"),
}
FINDINGS_SHOWN = 100
WORST_OUTPUTS = 12


def _context(report: Report) -> dict[str, Any]:
    """Everything the template needs."""
    facts, found = report.comparison, report.explanation
    told = beside_the_limits(report.verdict)
    shown_tables = {
        "limits": _present(tables.limits(report)),
        "flips": _present(*map(tables.flips, facts.outputs)),
        "generated": _present(tables.generated(report)),
        "batches": _present(tables.batches(report), tables.settings(report)),
        "suites": _present(tables.suites(report)),
        "worst": _worst(report),
        "slices": _present(tables.slices(report), tables.strata(report), tables.timeline(report)),
        "graph": _present(drawing.graph_table(found.graph if found is not None else None, facts.tolerance)),
        "bench": () if report.bench is None else _present(*_bench(report.bench)),
        "origin": _present(_artefacts(report), tables.casts(report), *_provenance(report)),
    }
    return {
        "report": report,
        "title": f"{report.outcome}: {titled(report)}",
        "outcome": str(report.outcome),
        "mark": MARKS[report.outcome],
        "tone": TONES[report.outcome],
        "headline": sentence(report.verdict.headline),
        "remedy": "" if told_by_cause(report) else sentence(remedy_of(report)),
        "made_up": _made_up(report),
        "reach": _reach(report),
        "figures": _figures(report),
        "findings": tuple(map(_told, told[:FINDINGS_SHOWN])),
        "findings_left": max(0, len(told) - FINDINGS_SHOWN),
        "charts": drawing.charts(report),
        "charts_left": _charts_left(report),
        "measures": _present(*map(tables.measures, facts.outputs[:WORST_OUTPUTS])),
        "causes": _causes(report),
        "explanation": found,
        "graph_heading": _graph_heading(found),
        "graph_note": sentence(found.graph.note) if found is not None and found.graph is not None else "",
        "bench_notes": () if report.bench is None else tuple(map(sentence, _bench_notes(report.bench))),
        "tables": shown_tables,
        "notes": tuple(sentence(text) for text in (*facts.notes, *facts.warnings, *facts.lineage)),
        "not_compared": tuple(sentence(text) for text in facts.not_compared),
        "warnings": tuple(sentence(text) for text in report.origin.warnings),
    }


def _data(report: Report, charts: tuple[drawing.Charts, ...]) -> Mapping[str, Any]:
    """Everything the scripts need."""
    view = report.explanation.graph if report.explanation is not None else None
    return {"outputs": [entry.data for entry in charts], "graph": drawing.graph_data(view, report.comparison.tolerance)}


def _present(*found: Table | None) -> tuple[Table, ...]:
    return tuple(entry for entry in found if entry is not None)


def _worst(report: Report) -> tuple[Table, ...]:
    unusual = report.explanation.unusual if report.explanation is not None else ()
    shown_outputs, tolerance = report.comparison.outputs[:WORST_OUTPUTS], report.comparison.tolerance
    worst = _present(*(tables.worst_rows(output, unusual, tolerance) for output in shown_outputs))
    return (*worst, *_present(tables.unusual_values(report)))


def _charts_left(report: Report) -> int:
    return max(0, len(drawing.numeric_outputs(report)) - drawing.OUTPUTS_DRAWN)


def _made_up(report: Report) -> str:
    """That no row is real, and how much of them is a guess; empty where rows are real."""
    made = report.comparison.generated
    blind = len([column for column in made if not column.known])
    guess = f" Neither model says anything about {blind:,} of {len(made):,} columns." if blind else ""
    return f"No row of this run is real, and nothing is claimed about rows that are.{guess}" if made else ""


def _reach(report: Report) -> tuple[str, ...]:
    """How far the verdict reaches: rows, batch sizes, settings, confidence."""
    facts = report.comparison
    expected = facts.expected_rows
    rows = f"{facts.rows:,}" if expected in (None, facts.rows) else f"{facts.rows:,} of {expected:,}"
    data = report.origin.data
    told = [f"compared: {rows} {facts.unit} of {data.name}{batches_told(facts)}"]
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


def _told(finding: Finding) -> dict[str, str]:
    """A finding in words."""
    mark, tone, kind = SEVERITIES[finding.severity]
    told = {"message": sentence(finding.message), "remedy": sentence(finding.remedy)}
    return {"mark": mark, "tone": tone, "kind": kind, **told}


def _causes(report: Report) -> list[dict[str, Any]]:
    """The diagnoses in words."""
    failing = report.explanation.failing_rows if report.explanation is not None else 0
    return [
        {
            "cause": entry.cause,
            "culprit": entry.culprit,
            "share": f"explains {share(entry.explained_share)} of {rows_explained(report)}" if failing else "",
            "percent": max(0.0, min(1.0, entry.explained_share)) * 100,
            "evidence": sentence(entry.evidence),
            "remedy": sentence(remedy_told(entry)),
            "command": "" if place else repair_told(report),
            "rows": ", ".join(shown(row) for row in entry.rows[:20]) + (" …" if len(entry.rows) > 20 else ""),
        }
        for place, entry in enumerate(report.diagnoses)
    ]


def _graph_heading(found: Explanation | None) -> str:
    nodes = found.graph.nodes if found is not None and found.graph is not None else ()
    culprit = any(node.culprit for node in nodes)
    return "The graph around the culprit" if culprit else "The graph, by the error each node introduces"


def _artefacts(report: Report) -> Table | None:
    """Both models and the data, so that the very same ones can be found again."""
    origin = report.origin
    return table(
        "Models and data",
        ("", "Name", "Kind", "#Size", "SHA-256"),
        (
            (
                Cell(role),
                words(found.name),
                words(found.kind),
                Cell("–" if found.bytes is None else size(found.bytes)),
                Cell(found.sha256 or "–", tone="code"),
            )
            for role, found in (("Reference", origin.reference), ("Candidate", origin.candidate), ("Data", origin.data))
        ),
        stacks=True,
    )


def _provenance(report: Report) -> Iterator[Table | None]:
    """Everything that may differ between two runs with equal answers."""
    origin, policy = report.origin, report.policy
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
    found: dict[str, Mapping[str, Any]] = {
        "Policy": judged,
        "Versions": origin.versions,
        "Machine": origin.machine,
        "Settings": origin.settings,
        "Run": {"created": origin.created, **origin.run},
        "Details of the reference": origin.reference.details or {},
        "Details of the candidate": origin.candidate.details or {},
        "Details of the data": origin.data.details or {},
    }
    for caption, entries in found.items():
        yield table(caption, ("", "Value"), ((words(name), words(value)) for name, value in entries.items()))


def _bench(result: BenchResult) -> Iterator[Table | None]:
    """Speed at every batch size, and what either model takes besides time."""
    yield table(
        "Latency and throughput, the two models in turns",
        ("#Batch size", "Model", "#p50", "#p90", "#p99", "#Rows a second", "The candidate is"),
        (
            (Cell(f"{timing.batch_size:,}", timing.batch_size), Cell(side), *_latency(latency), Cell(told))
            for timing in result.timings
            for side, latency, told in (
                ("reference", timing.reference, ""),
                ("candidate", timing.candidate, faster(timing) + between(timing)),
            )
        ),
        note="In brackets the interval of the ratio of medians.",
    )
    lines = (map(Cell, texts) for texts in footprints(result))
    yield table("Size, load time and memory", ("", "#Reference", "#Candidate"), lines)


def _latency(latency: Latency) -> tuple[Cell, ...]:
    times = latency.p50, latency.p90, latency.p99
    told = (Cell("–", tone="quiet") if ms is None else Cell(duration(ms / 1e3), ms) for ms in times)
    return *told, count(round(latency.rows_per_second))


def _bench_notes(result: BenchResult) -> tuple[str, ...]:
    """How it was measured, on what, and what to know about it."""
    measured = f"Measured on {result.data}, {shown(result.machine)}"
    return (measured, *result.notes)


EXTENSION = HtmlRenderer()
