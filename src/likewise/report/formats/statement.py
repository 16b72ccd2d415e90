"""An in-toto statement: this candidate was tested, with this result. Signing tools take it as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from likewise.contracts.report import Artefact, Report
from likewise.contracts.verdict import Check, Outcome, Severity
from likewise.models.onnx.describe import EXTERNAL_DATA
from likewise.report.formats.json import JsonRenderer, dumps

STATEMENT = "https://in-toto.io/Statement/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
"""Both as the in-toto attestation framework publishes them."""

BLOCKING = (Severity.FAILURE, Severity.INCONCLUSIVE)
"""The framework knows no third outcome: what could not be compared in full did not pass."""


class StatementRenderer:
    """What was tested is the subject; what it was tested with is the configuration, each by its SHA-256."""

    format = "statement"

    def render(self, report: Report, **options: Any) -> str:
        return dumps(statement_of(report, _sha256(JsonRenderer().render(report))))


def statement_of(report: Report, sha256: str) -> dict[str, Any]:
    """What is stated of a report, whose file has this SHA-256."""
    origin, verdict = report.origin, report.verdict
    whole = {"name": "parity_report.json", "digest": {"sha256": sha256}}
    policy = {"name": "policy", "digest": {"sha256": policy_digest(report)}}
    tool = {"name": "likewise", "annotations": {"version": origin.versions.get("likewise", "0")}}
    asked = [*resources(origin.reference, "reference"), *resources(origin.data, "data")]
    tests = {_named(check): check.outcome for check in verdict.checks}
    tests |= {f"{suite.kind} {suite.name}": suite.outcome for suite in verdict.suites if suite.blocks}
    told = {finding.code: finding.severity for finding in verdict.findings}
    return {
        "_type": STATEMENT,
        # A live object has no bytes to speak of: then the report itself is all that can be pointed to.
        "subject": [*resources(origin.candidate, "candidate")] or [whole],
        "predicateType": TEST_RESULT,
        "predicate": {
            "result": "PASSED" if report.passed else "FAILED",
            "configuration": [*asked, policy, {**whole, "annotations": _told(report)}, tool],
            "passedTests": [name for name, outcome in tests.items() if outcome is Outcome.PASS],
            "warnedTests": [code for code, severity in told.items() if severity is Severity.WARNING],
            "failedTests": [
                *(name for name, outcome in tests.items() if outcome is not Outcome.PASS),
                *(code for code, severity in told.items() if severity in BLOCKING),
            ],
        },
    }


def _told(report: Report) -> dict[str, Any]:
    """What a reader of the statement alone should know: the verdict, and what stands beside it."""
    found = [finding.message for finding in report.verdict.findings]
    return {"outcome": report.outcome, "headline": report.headline, "findings": found}


def resources(artefact: Artefact, role: str) -> Iterator[dict[str, Any]]:
    """A model or data by the SHA-256 of its files, weights that lie beside it too."""
    beside = (artefact.details or {}).get(EXTERNAL_DATA, {})
    named = {artefact.name: artefact.sha256, **(beside if isinstance(beside, Mapping) else {})}
    for name, sha256 in named.items():
        if sha256 is not None:
            yield {"name": name, "digest": {"sha256": sha256}, "annotations": {"role": role}}


def policy_digest(report: Report) -> str:
    """The SHA-256 of what was acceptable."""
    return _sha256(dumps(report.policy))


def _named(check: Check) -> str:
    size = "" if check.batch_size is None else f" in batches of {check.batch_size}"
    return f"{check.output}.{check.measure} within {check.bound:g}{size}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


EXTENSION = StatementRenderer()
