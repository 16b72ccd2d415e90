"""Two runs of a gate → what got worse and what got better. No files, no models.

Less is worse too: an output, a measure, a batch size, a suite or a value of a column that is no longer there,
fewer rows anywhere, a limit that was loosened. Two runs that do not answer the same question are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from likewise.contracts.diff import Change, Diff, Direction
from likewise.contracts.report import Report
from likewise.contracts.verdict import Finding, Outcome, Severity
from likewise.judge.diff import coverage, folding, measures, terms

ALLOW = 10.0
"""Percent by which a measure may get worse, unless somebody says otherwise."""

BASELINE = "baseline"
"""The code of what a gate finds when it is held against an accepted run."""


def diff(
    old: Report, new: Report, *, allow: float = ALLOW, other_data: bool = False, names: Sequence[str] = ("old", "new")
) -> Diff:
    """What changed from one run to the next. `allow` is in percent; `other_data`: other rows are intended."""
    changes = tuple(_changes(old, new, allow, other_data=other_data))
    doubts = tuple(coverage.doubts(old, new, other_data=other_data))
    told = tuple(line for direction in Direction for line in folding.told(changes, direction))
    worse = [line for line in told if line.change.direction is Direction.WORSE]
    unknown = [line for line in told if line.change.direction is Direction.UNKNOWN]
    if doubts:
        outcome, headline = Outcome.INCONCLUSIVE, doubts[0]
    elif worse:
        more = f"; {len(worse) - 1} more got worse" if len(worse) > 1 else ""
        outcome, headline = Outcome.FAIL, worse[0].headline + more
    elif unknown:
        outcome, headline = Outcome.INCONCLUSIVE, unknown[0].message
    else:
        outcome, headline = Outcome.PASS, "nothing got worse"
    elsewhere = not other_data and coverage.other_rows(old, new)
    remedy = "Say --other-data if other rows are intended" if elsewhere else ""
    return Diff(outcome, headline, names[0], names[1], allow, changes, doubts, remedy, told)


def against(baseline: Report, report: Report, *, max_worse: float) -> Report:
    """A report that was also held against an accepted run: what is worse than there fails."""
    if report.outcome is Outcome.INCONCLUSIVE:
        return report
    found = diff(baseline, report, allow=max_worse)
    return with_findings(report, _findings(found, baseline))


def with_findings(report: Report, findings: Sequence[Finding]) -> Report:
    """The report with more findings, and with the outcome they leave it."""
    verdict = report.verdict
    severities = [finding.severity for finding in findings]
    outcome = verdict.outcome
    if outcome is Outcome.PASS and Severity.FAILURE in severities:
        outcome = Outcome.FAIL
    elif outcome is Outcome.PASS and Severity.INCONCLUSIVE in severities:
        outcome = Outcome.INCONCLUSIVE
    decisive = Severity.FAILURE if outcome is Outcome.FAIL else Severity.INCONCLUSIVE
    headline = verdict.headline
    if outcome is not verdict.outcome:
        headline = next(finding.message for finding in findings if finding.severity is decisive)
    together = sorted((*verdict.findings, *findings), key=lambda finding: list(Severity).index(finding.severity))
    return replace(report, verdict=replace(verdict, outcome=outcome, headline=headline, findings=tuple(together)))


def _changes(old: Report, new: Report, allow: float, *, other_data: bool) -> Iterator[Change]:
    yield coverage.outcome(old, new)
    yield from coverage.outputs(old, new)
    # What was agreed comes before what was measured: figures mean little under other terms.
    yield from terms.limits(old, new)
    yield from terms.policy(old, new)
    yield from coverage.rows(old, new, allow)
    yield from measures.changes(old, new, allow)
    yield from coverage.batch_sizes(old, new, allow)
    yield from coverage.suites(old, new, allow)
    yield from coverage.strata(old, new, allow, other_data=other_data)
    yield from coverage.findings(old, new)
    yield from coverage.artefacts(old, new)


def _findings(found: Diff, baseline: Report) -> list[Finding]:
    remedy = "If that is intended, accept this run as the new baseline"
    if found.doubts:
        return [Finding(BASELINE, Severity.INCONCLUSIVE, f"baseline: {doubt}", remedy=remedy) for doubt in found.doubts]
    findings, name = [], "baseline"
    if baseline.outcome is Outcome.FAIL:
        name = "baseline, a FAIL itself"
        warning = "baseline: the accepted run is a FAIL itself"
        findings.append(Finding(BASELINE, Severity.WARNING, warning, remedy="Accept a run that passes"))
    severities = {Direction.WORSE: Severity.FAILURE, Direction.UNKNOWN: Severity.INCONCLUSIVE}
    for told in found.lines(*severities):
        change = told.change
        # The outcome and the findings of this run are in its own verdict already.
        if change.subject in ("outcome", "finding"):
            continue
        severity = severities[change.direction] if change.blocks else Severity.WARNING
        findings.append(Finding(BASELINE, severity, f"{name}: {told.message}", change.output, remedy))
        remedy, name = "", "baseline"
    return findings
