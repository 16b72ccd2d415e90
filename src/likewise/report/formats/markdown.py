"""The report for a pull request or a job summary: short on top, details folded away."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from likewise.contracts.report import Report
from likewise.contracts.verdict import Check, Outcome, Severity, figure
from likewise.report.console import printable
from likewise.report.words import (
    answer_text,
    batches_told,
    beside_the_limits,
    bound_text,
    cut,
    gates_told,
    generated_told,
    most_telling,
    origin_told,
    remedy_of,
    remedy_told,
    rows_told,
    says_more,
    sentence,
    share_told,
    strata_told,
    suites_told,
    titled,
    told_by_cause,
    unexplained_told,
    worst,
    worst_beyond,
)

MARKS = {Outcome.PASS: "✅", Outcome.FAIL: "❌", Outcome.INCONCLUSIVE: "⚠️"}
ROWS_SHOWN = 5
CHECKS_SHOWN = 30
ENTRIES_SHOWN = 12


class MarkdownRenderer:
    """GitHub's Markdown; every name from a model or the data is text, never markup."""

    format = "markdown"

    def render(self, report: Report, **options: Any) -> str:
        return "\n".join(_lines(report)) + "\n"

    def render_gates(self, reports: Mapping[str, Report]) -> str:
        outcomes = {name: report.outcome for name, report in reports.items()}
        lines = [f"# {MARKS[worst(outcomes.values())]} {text(sentence(gates_told(outcomes)), limit=400)}", ""]
        lines += ["| | gate | verdict | |", "|---|---|---|---|"]
        for name, report in reports.items():
            cells = (text(name), report.outcome, text(sentence(report.headline), limit=400))
            lines.append(f"| {MARKS[report.outcome]} | {' | '.join(cells)} |")
        return "\n".join([*lines, "", *(self.render(report) for report in reports.values())])


def _lines(report: Report) -> Iterator[str]:
    origin, verdict = report.origin, report.verdict
    yield f"## {MARKS[report.outcome]} {report.outcome}: {text(titled(report), limit=500)}"
    yield ""
    yield text(sentence(verdict.headline))
    if (remedy := remedy_of(report)) and not told_by_cause(report):
        yield f"→ {text(sentence(remedy), limit=400)}"
    yield from _why(report)
    yield from _checks(verdict.checks)
    yield from _worst(report)
    told = beside_the_limits(verdict)
    if told:
        yield ""
    for finding in told:
        mark = f"{MARKS[Outcome.FAIL]} " if finding.severity is Severity.FAILURE else ""
        yield f"- {mark}{text(sentence(finding.message), limit=400)} {text(sentence(finding.remedy))}".rstrip()
    yield ""
    swept = batches_told(report.comparison)
    yield f"{text(rows_told(report))}{swept}."
    if verdict.confidence is not None:
        yield text(sentence(verdict.confidence.statement))
    for line in (*origin_told(origin), *strata_told(report.comparison.strata), *suites_told(verdict.suites)):
        yield text(sentence(line))
    for line in generated_told(report.comparison.generated, CHECKS_SHOWN):
        yield f"- {text(sentence(line))}"
    yield from _origin(report)


def _why(report: Report) -> Iterator[str]:
    found = report.explanation
    if found is None or report.passed:
        return
    yield ""
    if not report.diagnoses:
        yield f"**Why:** {unexplained_told(found)}"
    for place, diagnosis in enumerate(report.diagnoses):
        told = f"{text(diagnosis.cause)}, {text(diagnosis.culprit)}{share_told(diagnosis, report)}"
        yield f"**{'Also' if place else 'Why'}:** {told}"
        if says_more(diagnosis, report.headline):
            yield f"  - {text(sentence(diagnosis.evidence), limit=600)}"
        if diagnosis.remedy:
            yield f"  - → {text(sentence(remedy_told(diagnosis)), limit=400)}"
    yield from (f"  - {text(entry.predicate)}" for entry in found.slices)


def _checks(checks: tuple[Check, ...]) -> Iterator[str]:
    if not checks:
        return
    yield ""
    yield "| | output | measure | value | limit |"
    yield "|---|---|---|---:|---|"
    for check in most_telling(checks, CHECKS_SHOWN):
        where = f" @ batch {check.batch_size}" if check.batch_size is not None else ""
        yield (
            f"| {MARKS[check.outcome]} | {text(check.output)} | {text(check.measure)}{where} "
            f"| {figure(check.value)} | {bound_text(check)} |"
        )


def _worst(report: Report) -> Iterator[str]:
    if report.passed:
        return
    for output in report.comparison.outputs:
        rows = worst_beyond(output)[:ROWS_SHOWN]
        if not rows:
            continue
        yield ""
        yield f"<details><summary>Worst rows of {text(output.name)}</summary>"
        yield ""
        yield "| row | reference | candidate | inputs |"
        yield "|---|---|---|---|"
        for row in rows:
            inputs = ", ".join(f"{name}={answer_text(value)}" for name, value in list(row["inputs"].items())[:12])
            answers = [text(answer_text(row[side], most=ENTRIES_SHOWN)) for side in ("reference", "candidate")]
            cells = [text(row["row"]), *answers, text(inputs, limit=400)]
            yield f"| {' | '.join(cells)} |"
        yield ""
        yield "</details>"


def _origin(report: Report) -> Iterator[str]:
    origin = report.origin
    yield ""
    yield "<details><summary>Where this comes from</summary>"
    yield ""
    for name in ("reference", "candidate", "data"):
        artefact = getattr(origin, name)
        digest = artefact.sha256 or ""
        digest = f"`{digest}`" if re.fullmatch("[0-9a-f]+", digest) else text(digest)
        yield f"- {name}: {text(artefact.name)}" + (f", SHA-256 {digest}" if digest else "")
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
    yield f"- {text(versions, limit=600)}"
    if told := origin.run.get("confinement"):
        yield f"- confinement of the models: {text(str(told))}"
    yield f"- {text(origin.created)}"
    yield ""
    yield "</details>"


def text(value: object, *, limit: int = 200) -> str:
    """Any value as plain text: no character of it is read as Markdown or HTML."""
    plain = f"{value:.6g}" if isinstance(value, float) else str(value)
    plain = printable(" ".join(plain.split()))
    plain = cut(plain, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # An @ would notify people, a bare address would become a link.
    plain = plain.replace("@", "@&#8203;").replace("://", ":&#8203;//")
    return re.sub(r"([\\`*_{}\[\]()#|~!])", r"\\\1", plain)


EXTENSION = MarkdownRenderer()
