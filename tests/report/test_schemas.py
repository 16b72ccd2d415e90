"""What likewise writes for other tools is valid by the schemas that were published for them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import numpy as np
import pandas as pd
import pytest
import xmlschema
from making_reports import hostile

import data_only
import likewise
from likewise.contracts.comparison import Mismatch, Stratum, SuiteFacts
from likewise.contracts.report import Diagnosis, Explanation
from likewise.contracts.verdict import Outcome
from likewise.judge import verdict
from likewise.report import render, save

SCHEMAS = Path(__file__).parent / "schemas"
HOSTILE = '"><script>alert(1)</script> ]]> <!-- & \x00\x01\x1f\ufffe \ud800 [a](b) {0} %s\n\t\u202e'


def answers(shift, names=("value",)):
    def model(rows):
        first = rows.iloc[:, 0].to_numpy()
        return {name: first + shift * place for place, name in enumerate(names, start=1)}

    return model


def broken(rows):
    raise ValueError(HOSTILE)


broken.__name__ = HOSTILE


def with_hostile_names(report):
    """Every name that a model, a table or a person may choose, made as unpleasant as can be."""
    artefact = replace(report.origin.candidate, name=f"folder/{HOSTILE}.onnx")
    outputs = tuple(replace(output, name=f"{output.name}{HOSTILE}") for output in report.comparison.outputs)
    comparison = replace(
        report.comparison,
        outputs=outputs,
        notes=(HOSTILE,),
        mismatches=(Mismatch("extra-output", HOSTILE, HOSTILE),),
        strata=(Stratum(HOSTILE, HOSTILE, 10, 2, {"value": 1.0}),),
    )
    return replace(
        report,
        comparison=comparison,
        verdict=verdict.judge(comparison, report.policy),
        origin=replace(report.origin, candidate=artefact),
        diagnoses=(Diagnosis("link-function", HOSTILE, 1.0, HOSTILE, HOSTILE),),
        explanation=Explanation(failing_rows=2, shape=(HOSTILE,)),
    )


def with_suites(report, *, blocks):
    """Three suites: one that agrees, one that does not, one that could not be tried."""
    failing = data_only.check(answers(0.0), answers(1.0), TABLE, batch_sizes=())
    facts = (
        SuiteFacts("edge", "fine", "Rows that agree", report.comparison, blocks=blocks),
        SuiteFacts("edge", HOSTILE, HOSTILE, failing.comparison, blocks=blocks),
        SuiteFacts("shape", "sizes", "Other sizes", replace(failing.comparison, rows=0), blocks, 0, "no such axis"),
    )
    comparison = replace(report.comparison, suites=facts)
    return replace(report, comparison=comparison, verdict=verdict.judge(comparison, report.policy))


TABLE = pd.DataFrame({"a": np.arange(40.0), "word": ["x"] * 40})


@pytest.fixture(scope="module")
def reports():
    plain = {"explain": False, "edge": "off"}
    passed = data_only.check(answers(0.0), answers(0.0), TABLE, **plain)
    failed = data_only.check(answers(0.0), answers(1.0), TABLE, limits={"cosine": 0.5}, **plain)
    return {
        "pass": passed,
        "fail": failed,
        "inconclusive": data_only.check(answers(0.0), broken, TABLE, **plain),
        "several outputs": data_only.check(
            answers(0.0, ("one", "two", "three")), answers(1e-3, ("one", "two", "three")), TABLE, **plain
        ),
        "hostile": with_hostile_names(failed),
        "suites": with_suites(passed, blocks=False),
        "blocking suites": with_suites(passed, blocks=True),
    }


NAMES = ("pass", "fail", "inconclusive", "several outputs", "hostile", "suites", "blocking suites")


@pytest.fixture(scope="module")
def sarif_schema():
    schema = json.loads((SCHEMAS / "sarif-2.1.0-rtm.4.json").read_text())
    jsonschema.Draft4Validator.check_schema(schema)
    return jsonschema.Draft4Validator(schema, format_checker=jsonschema.FormatChecker())


@pytest.fixture(scope="module")
def junit_schema():
    return xmlschema.XMLSchema(SCHEMAS / "junit-10.xsd")


def test_the_reports_are_what_they_are_called(reports):
    outcomes = {name: str(report.outcome) for name, report in reports.items()}
    assert outcomes == {
        "pass": "PASS",
        "fail": "FAIL",
        "inconclusive": "INCONCLUSIVE",
        "several outputs": "FAIL",
        "hostile": "FAIL",
        "suites": "PASS",
        "blocking suites": "FAIL",
    }


@pytest.mark.parametrize("name", NAMES)
def test_sarif_is_valid(reports, sarif_schema, name):
    document = json.loads(render(reports[name], "sarif").encode())
    assert [error.message for error in sarif_schema.iter_errors(document)] == []
    assert document["runs"][0]["results"] or name == "pass"


def test_the_schema_of_sarif_does_refuse(reports, sarif_schema):
    document = json.loads(render(reports["fail"], "sarif"))
    document["runs"][0]["results"][0]["level"] = "fatal"
    assert list(sarif_schema.iter_errors(document))


@pytest.mark.parametrize("name", NAMES)
def test_junit_is_valid(reports, junit_schema, name, tmp_path):
    file = tmp_path / "junit.xml"
    file.write_bytes(render(reports[name], "junit").encode())
    junit_schema.validate(file)
    root = ET.parse(file).getroot()
    assert (root.find(".//failure") is not None) == (reports[name].outcome is Outcome.FAIL)
    assert (root.find(".//error") is not None) == (name in ("inconclusive", "blocking suites"))


def test_the_schema_of_junit_does_refuse(reports, junit_schema):
    root = ET.fromstring(render(reports["fail"], "junit"))
    del root[0].attrib["tests"]
    assert not junit_schema.is_valid(root)


@pytest.mark.parametrize("format", ["junit", "sarif", "markdown"])
def test_no_text_of_a_forged_report_gives_orders(reports, format, tmp_path):
    evil = "a\x1b]0;x\x07\x9b2J\u202e\u2066 `![b](http://c)` <script>"
    text = render(hostile(reports["blocking suites"], evil), format)
    shown = ET.fromstring(text) if format == "junit" else json.loads(text) if format == "sarif" else text
    words = [*_texts(shown)]
    assert any("]0;x" in word for word in words)
    assert not [word for word in words if re.search("[\x1b\x07\x9b\u202e\u2066]", word)]
    assert format != "markdown" or not re.search(r"(?<!\\\\)!\[|<script>", text)


def _texts(shown):
    """Every text of a document, whatever it is made of."""
    if isinstance(shown, ET.Element):
        for entry in shown.iter():
            yield from (entry.text or "", *entry.attrib.values())
    elif isinstance(shown, dict | list):
        for entry in shown.values() if isinstance(shown, dict) else shown:
            yield from _texts(entry)
    else:
        yield str(shown)


@pytest.mark.parametrize("name", NAMES)
def test_our_own_json_is_valid_and_can_be_written(reports, name, tmp_path):
    from likewise.report.formats.json import schema

    save(reports[name], tmp_path / "report.json")
    document = json.loads((tmp_path / "report.json").read_bytes())
    jsonschema.Draft202012Validator(schema()).validate(document)
    assert likewise.load(tmp_path / "report.json").outcome is reports[name].outcome


def test_a_suite_that_does_not_block_does_not_fail_junit(reports):
    root = ET.fromstring(render(reports["suites"], "junit"))
    assert (root.get("failures"), root.get("errors")) == ("0", "0")
    edge, shape = (suite for suite in root if suite.get("name").endswith(" suites"))
    assert [[entry.tag for entry in case] for case in edge] == [[], ["skipped"]]
    assert edge.get("skipped") == "1"
    assert edge[1][0].get("message") == f"FAIL: {reports['suites'].verdict.suites[1].headline}"
    assert shape[0][0].get("message") == "INCONCLUSIVE: no such axis"


def test_a_suite_that_blocks_fails_junit(reports):
    root = ET.fromstring(render(reports["blocking suites"], "junit"))
    edge, shape = (suite for suite in root if suite.get("name").endswith(" suites"))
    assert [[entry.tag for entry in case] for case in edge] == [[], ["failure"]]
    assert [[entry.tag for entry in case] for case in shape] == [["error"]]


@pytest.mark.parametrize("format", ["terminal", "markdown"])
def test_suites_and_strata_are_told_in_a_line(reports, format):
    told = " ".join(render(reports["suites"], format, full=True).split())
    if format == "markdown":
        assert "1 of 2 edge suites agrees (80 rows)." in told.replace("\\", "")
        assert "None of 1 shape suite agrees." in told.replace("\\", "")
    for suite in reports["suites"].verdict.suites[1:]:
        assert suite.headline.casefold() in told.replace("\\", "").casefold()
    strata = (Stratum("country", "DE", 30, 0), Stratum("country", "FR", 10, 3, {"value": 1.0}))
    comparison = replace(reports["fail"].comparison, strata=strata)
    told = " ".join(render(replace(reports["fail"], comparison=comparison), format).split())
    assert "By country: 1 of 2 values have rows beyond tolerance, 'FR' most: 3 of 10 rows; the rarest, 'FR'" in told
