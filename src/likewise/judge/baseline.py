"""A gate held against an accepted run: what its settings name is read, compared, and never ignored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from likewise.contracts.report import Report
from likewise.contracts.verdict import Finding, Severity
from likewise.judge.diff import ALLOW, BASELINE, against, with_findings

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
    return with_findings(report, [Finding(BASELINE, Severity.INCONCLUSIVE, f"baseline: {told}", remedy=remedy)])
