"""SARIF 2.1.0, for code-scanning views: what broke, at the user's source where it is known, else at the candidate."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from likewise.contracts.report import Diagnosis, Report
from likewise.contracts.verdict import Finding, Severity
from likewise.report.console import printable
from likewise.report.words import remedy_told, strata_told, suites_told

LEVELS = {
    Severity.FAILURE: "error",
    Severity.INCONCLUSIVE: "error",
    Severity.WARNING: "warning",
    Severity.NOTE: "note",
}


class SarifRenderer:
    """One run, one result for every finding and every diagnosis."""

    format = "sarif"

    def render(self, report: Report, **options: Any) -> str:
        return _document([_run(report)])

    def render_gates(self, reports: Mapping[str, Report]) -> str:
        return _document([_run(report, gate) for gate, report in reports.items()])


def _document(runs: list[dict[str, Any]]) -> str:
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    document = {"$schema": schema, "version": "2.1.0", "runs": runs}
    return json.dumps(_printable(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _printable(value: Any) -> Any:
    """The same with every text in it as a text that a terminal and a reader take for one."""
    if isinstance(value, dict):
        return {name: _printable(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(entry) for entry in value]
    return printable(value) if isinstance(value, str) else value


def _run(report: Report, gate: str | None = None) -> dict[str, Any]:
    place = [{"physicalLocation": {"artifactLocation": {"uri": _uri(report.origin.candidate.name)}}}]
    results = [_of_finding(finding) for finding in report.verdict.findings]
    results += [_of_diagnosis(diagnosis) for diagnosis in report.diagnoses]
    # A failed verdict is a result of its own: no finding may be left to carry it.
    if not report.passed:
        results.insert(0, _result("verdict", "error", f"{report.outcome}: {report.headline}"))
    rules = sorted({result["ruleId"] for result in results})
    name = gate or report.origin.settings.get("gate")
    # Of runs that one tool uploads for one commit, code-scanning views keep the last of each category.
    named = {"automationDetails": {"id": f"likewise/{name}/"}} if name else {}
    return {
        "tool": {
            "driver": {
                "name": "likewise",
                "version": report.origin.versions.get("likewise", "0"),
                "rules": [{"id": rule, "name": _name(rule)} for rule in rules],
            }
        },
        **named,
        "invocations": [{"executionSuccessful": True, "endTimeUtc": _utc(report.origin.created)}],
        "results": [{"locations": place, **result} for result in results],
        "properties": {
            "outcome": str(report.outcome),
            "samples": report.samples,
            "strata": strata_told(report.comparison.strata),
            "suites": suites_told(report.verdict.suites),
        },
    }


def _of_finding(finding: Finding) -> dict[str, Any]:
    return _result(finding.code, LEVELS[finding.severity], f"{finding.message}. {finding.remedy}".strip())


def _of_diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    words = f"{diagnosis.cause}, {diagnosis.culprit}: {diagnosis.evidence}. {remedy_told(diagnosis)}".strip()
    result = _result(f"cause/{diagnosis.cause}", "error", words)
    path, _, line = diagnosis.source.rpartition(":")
    if path and line.isdigit():
        where = {"artifactLocation": {"uri": _uri(_from_here(path))}, "region": {"startLine": int(line)}}
        result["locations"] = [{"physicalLocation": where}]
    return result


def _from_here(path: str) -> str:
    """A source file as code-scanning views look for it: from the folder in which the run is made."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def _result(rule: str, level: str, message: str) -> dict[str, Any]:
    # Code-scanning views read [text](n) as a link: brackets are escaped as the standard says.
    return {"ruleId": rule, "level": level, "message": {"text": re.sub(r"([\\\[\]])", r"\\\1", message)}}


def _name(rule: str) -> str:
    return "".join(part.capitalize() for part in re.split(r"[^0-9A-Za-z]+", rule))


def _uri(name: str) -> str:
    """The candidate as a relative address; what is no path is still a name."""
    return quote(PurePath(name).as_posix().lstrip("/"), errors="replace") or "model"


def _utc(created: str) -> str:
    return created.replace("+00:00", "Z")


EXTENSION = SarifRenderer()
