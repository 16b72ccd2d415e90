"""JUnit XML: a test case for every limit and every suite, so that any CI shows which one broke.

A suite that does not agree and does not block is skipped, with what it found: it must not fail the job.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

from likewise.contracts.judging import Check, Outcome, Severity, SuiteVerdict
from likewise.contracts.reporting import Report
from likewise.policies import AT_LEAST

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML file may hold."""


class JunitRenderer:
    """The layout that Jenkins, GitLab and others read: failures for FAIL, errors for INCONCLUSIVE."""

    format = "junit"

    def render(self, report: Report, **options: Any) -> str:
        name = f"{report.origin.reference.name} → {report.origin.candidate.name}"
        root = ET.Element("testsuites", name="likewise")
        checks = report.verdict.checks
        sizes = sorted({check.batch_size for check in checks if check.batch_size is not None})
        suites = [_suite(report, name, [check for check in checks if check.batch_size is None], whole=True)]
        for size in sizes:
            at = [check for check in checks if check.batch_size == size]
            suites.append(_suite(report, f"{name} at batch size {size}", at, whole=False))
        for kind in dict.fromkeys(suite.kind for suite in report.verdict.suites):
            found = [suite for suite in report.verdict.suites if suite.kind == kind]
            suites.append(_of_kind(report, f"{name}, {kind} suites", found))
        root.extend(suites)
        for total in ("tests", "failures", "errors"):
            root.set(total, str(sum(int(suite.get(total, "0")) for suite in suites)))
        ET.indent(root)
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(report: Report, name: str, checks: list[Check], *, whole: bool) -> ET.Element:
    seconds = report.origin.run.get("seconds", {}).get("total", 0.0) if whole else 0.0
    suite = ET.Element("testsuite", name=_text(name), time=f"{seconds:.3f}", timestamp=report.origin.created[:19])
    for check in checks:
        suite.append(_case(report, name, check))
    if whole:
        suite.append(_verdict(report, name))
        ET.SubElement(suite, "system-out").text = _text(_told(report))
    return _counted(suite)


def _of_kind(report: Report, name: str, found: list[SuiteVerdict]) -> ET.Element:
    """The suites of one kind, a case for each."""
    suite = ET.Element("testsuite", name=_text(name), time="0.000", timestamp=report.origin.created[:19])
    for verdict in found:
        case = ET.SubElement(suite, "testcase", classname=_text(name), name=_text(verdict.name), time="0")
        if verdict.outcome is Outcome.PASS:
            continue
        tag = ("failure" if verdict.outcome is Outcome.FAIL else "error") if verdict.blocks else "skipped"
        message = _text(f"{verdict.outcome}: {verdict.headline}")
        entry = ET.SubElement(case, tag, message=message, type=f"{verdict.kind}-suite")
        entry.text = _text("\n".join([verdict.title, *(finding.message for finding in verdict.findings)]))
    return _counted(suite)


def _counted(suite: ET.Element) -> ET.Element:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    return suite


def _case(report: Report, suite: str, check: Check) -> ET.Element:
    sign = "≥" if check.measure in AT_LEAST else "≤"
    case = ET.Element("testcase", classname=_text(suite), name=_text(f"{check.output}.{check.measure}"), time="0")
    found = "nothing was measured" if check.value is None else f"{check.value:.6g}"
    if check.outcome is Outcome.FAIL:
        ET.SubElement(case, "failure", message=_text(f"{found}, not {sign} {check.bound:.6g}"), type="limit")
    elif check.outcome is Outcome.INCONCLUSIVE:
        ET.SubElement(case, "error", message=_text(f"{found}; the limit is {sign} {check.bound:.6g}"), type="limit")
    return case


def _verdict(report: Report, suite: str) -> ET.Element:
    """The outcome itself: it may fail where no limit does, as when an output is missing."""
    case = ET.Element("testcase", classname=_text(suite), name="verdict", time="0")
    if report.passed:
        return case
    tag = "failure" if report.outcome is Outcome.FAIL else "error"
    entry = ET.SubElement(case, tag, message=_text(report.verdict.headline), type=str(report.outcome))
    entry.text = _text(_told(report))
    return case


def _told(report: Report) -> str:
    lines = [f"{report.outcome}: {report.verdict.headline}"]
    for diagnosis in report.diagnoses:
        lines += [f"{diagnosis.cause}, {diagnosis.culprit}: {diagnosis.evidence}", f"→ {diagnosis.remedy}"]
    serious = (Severity.FAILURE, Severity.INCONCLUSIVE, Severity.WARNING)
    findings = [finding for finding in report.verdict.findings if finding.severity in serious]
    return "\n".join([*lines, *(f"{finding.message}. {finding.remedy}".rstrip() for finding in findings)])


def _text(value: str) -> str:
    return NOT_XML.sub("�", value)


EXTENSION = JunitRenderer()
