"""A gate held against an accepted run: what its settings name is read, compared, and never ignored."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from likewise.contracts.report import Report
from likewise.contracts.verdict import Finding, Severity
from likewise.errors import DataError
from likewise.report.formats.json import loads

SHA256 = "baseline_sha256"


def named(report: Report, **stated: Any) -> Report:
    """The report with another baseline, or another `max_worse`, in its settings."""
    settings = {
        name: value for name, value in report.origin.settings.items() if name != SHA256 or "baseline" not in stated
    }
    return replace(report, origin=replace(report.origin, settings={**settings, **stated}))


def held(report: Report) -> Report:
    """The report, also judged against the accepted run that its settings name, if they name one."""
    settings = report.origin.settings
    path = settings.get("baseline")
    if path is None:
        return report
    from likewise.judge.diff import ALLOW, against

    max_worse = float(settings.get("max_worse", ALLOW))
    try:
        content = Path(path).read_bytes()
        baseline = loads(content, name=str(path))
    except (OSError, DataError) as error:
        told = error.message if isinstance(error, DataError) else f"{path} cannot be read: {error.strerror}"
        return _undecided(report, told)
    sha256 = hashlib.sha256(content).hexdigest()
    if settings.get(SHA256, sha256) != sha256:
        return _undecided(report, f"{path} is not the file that this run was held against before")
    return against(baseline, named(report, **{SHA256: sha256, "max_worse": max_worse}), max_worse=max_worse)


def alone(report: Report) -> bool:
    """Does nothing but the baseline keep this report from passing?"""
    if "baseline" not in report.origin.settings:
        return False
    from likewise.judge.diff import BASELINE

    decisive = [f for f in report.verdict.findings if f.severity in (Severity.FAILURE, Severity.INCONCLUSIVE)]
    return bool(decisive) and all(finding.code == BASELINE for finding in decisive)


def _undecided(report: Report, told: str) -> Report:
    from likewise.judge.diff import BASELINE, with_findings

    remedy = "Give the JSON report of an accepted run: --baseline FILE"
    return with_findings(report, [Finding(BASELINE, Severity.INCONCLUSIVE, f"baseline: {told}", remedy=remedy)])
