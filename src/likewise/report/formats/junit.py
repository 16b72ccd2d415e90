"""JUnit XML: a test case for every limit and every suite, so that any CI shows which one broke.

A limit on all rows has one case, and one more for all other batch sizes at which it was judged.
A suite that does not agree and does not block is skipped, with what it found: it must not fail the job.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

from likewise.contracts.report import Report
from likewise.contracts.verdict import AT_LEAST, Check, Outcome, SuiteVerdict, at_sizes
from likewise.report.console import printable
from likewise.report.words import remedy_of, remedy_told, sign, titled, told_by_cause

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML file may hold."""


class JunitRenderer:
    """The layout that Jenkins, GitLab and others read: failures for FAIL, errors for INCONCLUSIVE."""

    format = "junit"

    def render(self, report: Report, **options: Any) -> str:
        return document(suites(report, titled(report)))

    def render_gates(self, reports: Mapping[str, Report]) -> str:
        return document([suite for name, report in reports.items() for suite in suites(report, titled(report, name))])


def document(found: list[ET.Element]) -> str:
    """The file that holds these suites."""
    root = ET.Element("testsuites", name="likewise")
    root.extend(found)
    for total in ("tests", "failures", "errors"):
        root.set(total, str(sum(int(suite.get(total, "0")) for suite in found)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def suites(report: Report, name: str) -> list[ET.Element]:
    """What a report holds: the limits on all rows, those at other batch sizes, and every kind of suite."""
    checks = report.verdict.checks
    all_of_them = [_whole(report, name, [check for check in checks if check.batch_size is None])]
    swept = [check for check in checks if check.batch_size is not None]
    if swept:
        all_of_them.append(_at_other_sizes(report, f"{name} at other batch sizes", swept))
    for kind in dict.fromkeys(suite.kind for suite in report.verdict.suites):
        found = [suite for suite in report.verdict.suites if suite.kind == kind]
        all_of_them.append(_of_kind(report, f"{name}, {kind} suites", found))
    return all_of_them


def _suite(report: Report, name: str, *, seconds: float = 0.0) -> ET.Element:
    return ET.Element("testsuite", name=_text(name), time=f"{seconds:.3f}", timestamp=_text(report.origin.created[:19]))


def _whole(report: Report, name: str, checks: list[Check]) -> ET.Element:
    """The limits on all rows, a case for each, and the verdict."""
    suite = _suite(report, name, seconds=report.origin.run.get("seconds", {}).get("total", 0.0))
    for check in checks:
        suite.append(_case(name, check))
    suite.append(_verdict(report, name))
    ET.SubElement(suite, "system-out").text = _text(_told(report))
    return _counted(suite)


def _at_other_sizes(report: Report, name: str, checks: list[Check]) -> ET.Element:
    """The limits at other batch sizes: a case for each, whose entry tells the first worst size and all that broke."""
    suite = _suite(report, name)
    tried = sorted({check.batch_size for check in checks if check.batch_size is not None})
    groups: dict[tuple[str, str, float], list[Check]] = {}
    for check in checks:
        groups.setdefault((check.output, check.measure, check.bound), []).append(check)
    for group in groups.values():
        where = at_sizes(sorted({check.batch_size for check in group if check.batch_size is not None}), tried)
        worst = _worst(group)
        case = _case(name, worst, where=where)
        for entry in case:
            broken = [check for check in group if check.outcome is not Outcome.PASS]
            entry.set("message", f"{entry.get('message')}, at batch size {worst.batch_size}")
            entry.text = _text("\n".join(f"batch size {check.batch_size}: {_value(check)}" for check in broken))
        suite.append(case)
    return _counted(suite)


def _worst(checks: list[Check]) -> Check:
    """What failed comes before what could not be judged; NaN is worse than any number."""

    def order(check: Check) -> tuple[int, bool, float]:
        value = 0.0 if check.value is None else check.value
        badness = -value if check.measure in AT_LEAST else value
        rank = (Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.FAIL).index(check.outcome)
        return (rank, True, 0.0) if math.isnan(badness) else (rank, False, badness)

    return max(checks, key=order)


def _of_kind(report: Report, name: str, found: list[SuiteVerdict]) -> ET.Element:
    """The suites of one kind, a case for each."""
    suite = _suite(report, name)
    for verdict in found:
        case = ET.SubElement(suite, "testcase", classname=_text(name), name=_text(verdict.name), time="0")
        if verdict.outcome is Outcome.PASS:
            continue
        tag = ("failure" if verdict.outcome is Outcome.FAIL else "error") if verdict.blocks else "skipped"
        message = _text(f"{verdict.outcome}: {verdict.headline}")
        entry = ET.SubElement(case, tag, message=message, type=_text(f"{verdict.kind}-suite"))
        entry.text = _text("\n".join([verdict.title, *(finding.message for finding in verdict.findings)]))
    return _counted(suite)


def _counted(suite: ET.Element) -> ET.Element:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    return suite


def _case(suite: str, check: Check, *, where: str = "") -> ET.Element:
    bound = f"{sign(check)} {check.bound:.6g}"
    name = f"{check.output}.{check.measure} {where}".rstrip()
    case = ET.Element("testcase", classname=_text(suite), name=_text(name), time="0")
    found = _value(check)
    if check.outcome is Outcome.FAIL:
        ET.SubElement(case, "failure", message=_text(f"{found}, not {bound}"), type="limit")
    elif check.outcome is Outcome.INCONCLUSIVE:
        ET.SubElement(case, "error", message=_text(f"{found}; the limit is {bound}"), type="limit")
    return case


def _value(check: Check) -> str:
    return "nothing was measured" if check.value is None else f"{check.value:.6g}"


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
        lines += [f"{diagnosis.cause}, {diagnosis.culprit}: {diagnosis.evidence}", f"→ {remedy_told(diagnosis)}"]
    if (remedy := remedy_of(report)) and not told_by_cause(report):
        lines.append(f"→ {remedy}")
    others = (finding for finding in report.verdict.findings if finding.message != report.headline)
    return "\n".join([*lines, *(f"{finding.message}. {finding.remedy}".rstrip() for finding in others)])


def _text(value: str) -> str:
    value = printable(value)
    return NOT_XML.sub("�", value)


EXTENSION = JunitRenderer()
