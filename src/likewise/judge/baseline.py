"""A gate held against an accepted run: what its settings name is read, compared, and never ignored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from likewise.contracts.diff import Diff, Direction
from likewise.contracts.report import Report
from likewise.contracts.verdict import Finding, Outcome, Severity
from likewise.judge.diff import ALLOW, diff

BASELINE = "baseline"
"""The code of what a gate finds when it is held against an accepted run."""

SHA256 = "baseline_sha256"


def named(report: Report, **stated: Any) -> Report:
    """The report with another baseline, or another `max_worse`, in its settings."""
    settings = {
        name: value for name, value in report.origin.settings.items() if name != SHA256 or "baseline" not in stated
    }
    return replace(report, origin=replace(report.origin, settings={**settings, **stated}))


def held(report: Report, accepted: Report, sha256: str) -> Report:
    """The report, also judged against the accepted run, whose file has this hash."""
    settings = report.origin.settings
    if settings.get(SHA256, sha256) != sha256:
        return undecided(report, f"{settings['baseline']} is not the file that this run was held against before")
    max_worse = float(settings.get("max_worse", ALLOW))
    return against(accepted, named(report, **{SHA256: sha256, "max_worse": max_worse}), max_worse=max_worse)


def alone(report: Report) -> bool:
    """Does nothing but the baseline keep this report from passing?"""
    if "baseline" not in report.origin.settings:
        return False
    decisive = [f for f in report.verdict.findings if f.severity in (Severity.FAILURE, Severity.INCONCLUSIVE)]
    return bool(decisive) and all(finding.code == BASELINE for finding in decisive)


def undecided(report: Report, told: str) -> Report:
    """The report where the accepted run that its settings name cannot be used."""
    remedy = "Give the JSON report of an accepted run: --baseline FILE"
    return _with_findings(report, [Finding(BASELINE, Severity.INCONCLUSIVE, f"baseline: {told}", remedy=remedy)])


def against(baseline: Report, report: Report, *, max_worse: float) -> Report:
    """A report that was also held against an accepted run: what is worse than there fails."""
    if report.outcome is Outcome.INCONCLUSIVE:
        return report
    found = diff(baseline, report, allow=max_worse)
    return _with_findings(report, _findings(found, baseline))


def _with_findings(report: Report, findings: Sequence[Finding]) -> Report:
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
