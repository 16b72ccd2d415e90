"""Every format of a report says the same as the report, and holds whatever a model or a table is called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest

import likewise
from likewise.discovery import extensions
from likewise.verify import render

HOSTILE = '"><script>alert(1)</script> | `x` *b* [link](http://a.example) @someone \x01\n# heading'


def right(rows):
    return {"value": rows.iloc[:, 0].to_numpy()}


def wrong(rows):
    return {"value": rows.iloc[:, 0].to_numpy() + 1.0}


def broken(rows):
    raise ValueError(HOSTILE)


wrong.__name__ = HOSTILE


@pytest.fixture(scope="module")
def reports():
    table = pd.DataFrame({HOSTILE: np.arange(40.0), "word": [HOSTILE] * 40})
    return {
        "pass": likewise.check(right, right, table),
        "fail": likewise.check(right, wrong, table, limits={"cosine": 0.5}, explain=False),
        "inconclusive": likewise.check(right, broken, table, explain=False),
    }


@pytest.mark.parametrize("name", [renderer.format for renderer in extensions("reports")])
@pytest.mark.parametrize("which", ["pass", "fail", "inconclusive"])
def test_every_format_renders_every_report_twice_alike(reports, which, name):
    text = render(reports[which], name)
    assert text.endswith("\n")
    assert text == render(reports[which], name)
    assert str(reports[which].outcome) in text or name == "junit"


@pytest.mark.parametrize("which", ["pass", "fail", "inconclusive"])
def test_junit_has_a_case_for_every_limit_and_fails_as_the_verdict_does(reports, which):
    report = reports[which]
    root = ET.fromstring(render(report, "junit").encode())
    cases = root.findall("./testsuite/testcase")
    named = [case.get("name") for case in cases]
    expected = [f"{check.output}.{check.measure}" for check in report.verdict.checks]
    suites = [suite.name for suite in report.verdict.suites]
    assert sorted(named) == sorted([*expected, "verdict", *suites])
    failed = {case.get("name") for case in cases if case.find("failure") is not None}
    assert failed == (
        {f"{check.output}.{check.measure}" for check in report.verdict.checks if check.outcome == "FAIL"} | {"verdict"}
        if which == "fail"
        else set()
    )
    assert (root.find(".//error") is not None) == (which == "inconclusive")
    for tag in ("failures", "errors", "tests"):
        assert int(root.get(tag)) == sum(int(suite.get(tag)) for suite in root)
    assert int(root.get("tests")) == len(cases)


@pytest.mark.parametrize("which", ["pass", "fail", "inconclusive"])
def test_sarif_has_an_error_unless_it_passed(reports, which):
    document = json.loads(render(reports[which], "sarif"))
    (run,) = document["runs"]
    assert document["version"] == "2.1.0"
    assert any(result["level"] == "error" for result in run["results"]) == (which != "pass")
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in run["results"]} <= rules
    for result in run["results"]:
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert result["message"]["text"]


@pytest.mark.parametrize("which", ["fail", "inconclusive"])
def test_no_name_becomes_markup_in_markdown(reports, which):
    text = render(reports[which], "markdown")
    assert "<script>" not in text
    assert "](http" not in text
    assert "\n# heading" not in text
    assert "@someone" not in text
    tags = {line.split(">")[0] for line in text.splitlines() if line.startswith("<")}
    assert tags <= {"<details", "</details"}


def test_github_gets_a_summary_and_an_annotation(example_folder, tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    command = ["check", "model.joblib", "model.int8.onnx", "--data", "test.parquet", "--samples", "200", "--no-explain"]
    done = subprocess.run(
        [sys.executable, "-m", "likewise", *command, "--report", str(tmp_path / "report.json"),
         "--junit", str(tmp_path / "junit.xml"), "--json"],
        cwd=example_folder,
        env={**os.environ, "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["outcome"] == "FAIL"
    assert done.stderr.startswith("::error title=likewise FAIL::")
    assert summary.read_text().startswith("before\n## ❌ FAIL: model.joblib")
    assert ET.parse(tmp_path / "junit.xml").getroot().tag == "testsuites"


def test_a_finished_run_is_rendered_again(reports, tmp_path):
    from likewise.verify import save

    save(reports["fail"], tmp_path / "report.json")
    command = [sys.executable, "-m", "likewise", "report", str(tmp_path / "report.json")]
    shown = subprocess.run([*command, "--markdown", "-"], capture_output=True, text=True, check=True).stdout
    assert shown == render(likewise.load(tmp_path / "report.json"), "markdown")
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.startswith(" FAIL ")
