"""Every format of a report says the same as the report, and holds whatever a model or a table is called."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest

import data_only
import likewise
from likewise.contracts.verdict import Check, Outcome
from likewise.registry import extensions
from likewise.report import render
from planting import here

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
        "pass": data_only.check(right, right, table),
        "fail": data_only.check(right, wrong, table, limits={"cosine": 0.5}),
        "inconclusive": data_only.check(right, broken, table),
    }


@pytest.mark.parametrize("name", [renderer.format for renderer in extensions("report.formats")])
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
    names = {check: f"{check.output}.{check.measure}" for check in report.verdict.checks}
    sizes = sorted({check.batch_size for check in names} - {None})
    for check in names:
        if check.batch_size is not None:
            names[check] += f" at batch sizes {sizes[0]}–{sizes[-1]}"
    suites = [suite.name for suite in report.verdict.suites]
    assert sorted(named) == sorted([*set(names.values()), "verdict", *suites])
    failed = {case.get("name") for case in cases if case.find("failure") is not None}
    assert failed == (
        {name for check, name in names.items() if check.outcome == "FAIL"} | {"verdict"} if which == "fail" else set()
    )
    assert (root.find(".//error") is not None) == (which == "inconclusive")
    for tag in ("failures", "errors", "tests"):
        assert int(root.get(tag)) == sum(int(suite.get(tag)) for suite in root)
    assert int(root.get("tests")) == len(cases)


@pytest.mark.parametrize(
    ("measure", "values", "outcomes", "told"),
    [
        ("max_abs_diff", [0.5, 0.9, 0.01], "FAIL FAIL PASS", ("failure", "0.9, not ≤ 0.1, at batch size 2", [1, 2])),
        ("cosine", [-0.5, 0.9, -0.7], "FAIL PASS FAIL", ("failure", "-0.7, not ≥ 0.1, at batch size 128", [1, 128])),
        ("max_abs_diff", [0.5, math.nan, 9], "FAIL FAIL FAIL",
         ("failure", "nan, not ≤ 0.1, at batch size 2", [1, 2, 128])),
        ("material_flips", [5, None, 0], "FAIL INCONCLUSIVE PASS",
         ("failure", "5, not ≤ 0.1, at batch size 1", [1, 2])),
        ("material_flips", [0, None, 0], "PASS INCONCLUSIVE PASS",
         ("error", "nothing was measured; the limit is ≤ 0.1, at batch size 2", [2])),
        ("max_abs_diff", [0, 0, 0], "PASS PASS PASS", None),
    ],
)  # fmt: skip
def test_junit_has_one_case_for_all_batch_sizes_that_tells_the_worst(reports, measure, values, outcomes, told):
    checks = tuple(
        Check("value", measure, value, 0.1, Outcome(outcome), size)
        for value, outcome, size in zip(values, outcomes.split(), (1, 2, 128), strict=True)
    )
    report = replace(reports["fail"], verdict=replace(reports["fail"].verdict, checks=checks, suites=()))
    _, swept = ET.fromstring(render(report, "junit").encode())
    (case,) = swept
    assert case.get("name") == f"value.{measure} at batch sizes 1–128"
    assert [(entry.tag, entry.get("message")) for entry in case] == ([told[:2]] if told else [])
    named = [int(line.split(":")[0].removeprefix("batch size ")) for entry in case for line in entry.text.splitlines()]
    assert named == (told[2] if told else [])


def test_markdown_rounds_the_worst_rows_as_the_terminal_does():
    table = pd.DataFrame({"third": [1 / 3] * 4, "word": ["x"] * 4})
    text = render(data_only.check(right, wrong, table), "markdown").replace("\\", "")
    assert "| 0 | 0.333333 | 1.33333 | third=0.333333, word='x' |" in text


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


def test_github_gets_a_summary_and_an_annotation(example_folder, tmp_path, monkeypatch):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    command = ["check", "model.joblib", "model.int8.onnx", "--data", "test.parquet", "--samples", "200", "--no-explain"]
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    files = ["--report", tmp_path / "report.json", "--junit", tmp_path / "junit.xml", "--json"]
    done = here(*command, *files, folder=example_folder)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["outcome"] == "FAIL"
    assert done.stderr.startswith("::error title=likewise FAIL::")
    assert summary.read_text().startswith("before\n## ❌ FAIL: model.joblib")
    assert ET.parse(tmp_path / "junit.xml").getroot().tag == "testsuites"


def test_a_finished_run_is_rendered_again(reports, tmp_path):
    from likewise.report import save

    save(reports["fail"], tmp_path / "report.json")
    shown = here("report", "report.json", "--markdown", "-", folder=tmp_path).expect(0).stdout
    assert shown == render(likewise.load(tmp_path / "report.json"), "markdown")
    told = here("report", "report.json", folder=tmp_path).expect(0).stdout
    assert told.startswith(" FAIL ")
    quiet = here("report", "report.json", "-q", folder=tmp_path).expect(1).stdout
    assert quiet == render(reports["fail"], "terminal", quiet=True)
    assert len(quiet) < len(told)


def test_a_run_that_is_judged_again_is_written_in_every_format(reports, tmp_path):
    from likewise.report import save

    save(reports["fail"], tmp_path / "report.json")

    def judge(*words):
        return here("judge", "report.json", "--abs-tol", "2", *words, folder=tmp_path)

    formats = ("html", "markdown", "junit", "sarif")
    done = judge("-q", "-o", "judged.json", *(word for name in formats for word in (f"--{name}", f"judged.{name}")))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(" PASS ")
    judged = likewise.load(tmp_path / "judged.json")
    for name in formats:
        assert (tmp_path / f"judged.{name}").read_text() == render(judged, name)
    assert judge("--markdown", "-").stdout == render(judged, "markdown")
    for words in (["--json", "--markdown", "-"], ["--html", "report.json"], ["--html", "a", "--junit", "a"]):
        assert judge(*words).returncode == 2
