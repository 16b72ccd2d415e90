"""Recorded traffic: what production answered is compared, row by row, with what the model says."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import likewise
from likewise.contracts.models import Elsewhere
from planting import here

QUICK = {"batch_sizes": (), "edge": "off", "explain": False}
MODEL = "def model(rows):\n    return rows['size'].to_numpy() * 2 + (rows['colour'] == 'red').to_numpy()\n"
TABLE = pd.DataFrame({"size": np.linspace(0, 1, 12), "colour": ["red", "blue", None] * 4})


def model(rows):
    return rows["size"].to_numpy() * 2 + (rows["colour"] == "red").to_numpy()


def lines(path, entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def split(rows):
    data = [[None if value is None or value != value else value for value in row] for row in rows.to_numpy().tolist()]
    return {"dataframe_split": {"columns": list(rows), "data": data}}


def captured(table, answers, form=split, size=3):
    """One line a request, of so many rows, with the answers to them."""
    for start in range(0, len(table), size):
        found = {"predictions": list(answers[start : start + size])}
        time = f"2024-05-01T10:{start:02}:00Z"
        yield {"request": form(table[start : start + size]), "response": found, "time": time}


def records(rows):
    whole = split(rows)["dataframe_split"]
    return {"dataframe_records": [dict(zip(whole["columns"], row, strict=True)) for row in whole["data"]]}


@pytest.mark.parametrize("form", [split, records])
def test_traffic_of_the_model_itself_passes_and_an_old_version_is_found_by_its_time(tmp_path, form):
    answers = model(TABLE)
    log = lines(tmp_path / "log.jsonl", captured(TABLE, answers, form))
    report = likewise.check(model, log, log, **QUICK)
    assert report.passed, report.headline
    assert report.origin.data.kind == "recorded"
    stale = np.where(np.arange(12) < 9, answers, answers + 0.5)
    report = likewise.check(model, lines(log, captured(TABLE, stale, form)), log, **QUICK)
    assert report.outcome == "FAIL"
    worst = report.comparison.outputs[0].details["worst_rows"]["rows"]
    assert {row["row"] for row in worst} == {f"2024-05-01T10:09:00Z row {row}" for row in range(3)}


def tensor(name, kind, array):
    return {"name": name, "datatype": kind, "shape": list(array.shape), "data": array.ravel().tolist()}


def test_events_of_a_logger_are_put_together_and_what_was_not_answered_is_left_out(tmp_path):
    rows = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    kind = "org.kubeflow.serving.inference"
    asked = [
        {"id": str(n), "type": f"{kind}.request", "data": {"inputs": [tensor("x", "FP32", rows[n : n + 2])]}}
        for n in (0, 2, 4)
    ]
    answered = [
        {
            "id": str(n),
            "type": f"{kind}.response",
            "data": {"outputs": [tensor("y", "FP32", rows[n : n + 2].sum(axis=1))]},
        }
        for n in (4, 0)
    ]
    log = lines(tmp_path / "log.jsonl", [asked[0], asked[1], asked[2], *answered])
    report = likewise.check(lambda x: {"y": x.sum(axis=1)}, log, log, preset="exact", **QUICK)
    assert report.passed, report.headline
    assert report.comparison.rows == 4
    assert report.comparison.warnings == ("the candidate: 1 request had no answer: left out",)


def test_what_does_not_fit_together_is_told(tmp_path):
    answers = model(TABLE)
    short = list(captured(TABLE, answers))
    short[2]["response"]["predictions"].pop()
    report = likewise.check(model, log := lines(tmp_path / "log.jsonl", short), log, **QUICK)
    assert report.outcome == "FAIL"
    assert "line 3: it was asked about 3 rows and answers 2" in report.headline
    log = lines(tmp_path / "log.jsonl", captured(TABLE, answers))
    other = lines(tmp_path / "other.jsonl", captured(TABLE[::-1], answers))
    assert likewise.check(model, log, other, **QUICK).comparison.incidents[0].code == "other-data"
    log.write_text(log.read_text() + "{half")
    assert "line 5 is not JSON" in likewise.check(model, log, log, **QUICK).headline


def test_a_table_holds_rows_and_answers(tmp_path):
    for name in ("log.csv", "log.parquet"):
        log = tmp_path / name
        table = TABLE.assign(score=model(TABLE))
        table.to_csv(log, index=False) if name == "log.csv" else table.to_parquet(log)
        report = likewise.check(model, Elsewhere(log, {"answers": "score"}), log, drop=["score"], **QUICK)
        assert report.passed, report.headline
        report = likewise.check(model, log, log, **QUICK)
        assert "answers=" in report.comparison.incidents[0].remedy


def test_a_command_needs_no_data_beside_traffic(tmp_path):
    lines(tmp_path / "log.jsonl", captured(TABLE, model(TABLE)))
    (tmp_path / "own.py").write_text(MODEL)
    here("check", "own.py:model", "log.jsonl", "--quiet", folder=tmp_path).expect(0)


@pytest.mark.parametrize("classes", [[0, 1], [False, True], ["no", "yes"], [3, 7, 9]])
def test_answers_that_are_labels_are_compared_with_labels(tmp_path, classes):
    """MLflow answers with a list of labels, whole numbers or booleans, and says nothing of what they are."""
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["a", "b"])
    wanted = np.array(classes)[np.digitize(rows["a"], [-0.5, 0.5][: len(classes) - 1])]
    estimator = LogisticRegression().fit(rows, wanted)
    log = lines(tmp_path / "log.jsonl", captured(rows, estimator.predict(rows).tolist(), size=6))
    report = likewise.check(estimator, log, log, **QUICK)
    assert report.passed, report.headline
    assert [output.pair.reference for output in report.comparison.outputs] == ["label"]
    changed = estimator.predict(rows).tolist()[::-1]
    assert likewise.check(estimator, lines(log, captured(rows, changed, size=6)), log, **QUICK).outcome == "FAIL"


def sums(x):
    return {"y": x.sum(axis=1, keepdims=True) * np.ones((1, 3), np.float32)}


ASKED = np.arange(8, dtype=np.float32).reshape(2, 4)
SAID = sums(ASKED)["y"]


def exchange(asked=None, said=None, kind="FP32", **more):
    """A line of traffic, with the values of either tensor as they are written."""
    request, response = tensor("x", "FP32", ASKED), tensor("y", kind, SAID)
    request["data"] = ASKED.ravel().tolist() if asked is None else asked
    response["data"] = SAID.ravel().tolist() if said is None else said
    return {"request": {"inputs": [request]}, "response": {"outputs": [response]}, **more}


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (exchange(asked=ASKED.reshape(4, 2).tolist()), r"lists are of shape \[4, 2\], and it says \[2, 4\]"),
        (exchange(asked=[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0, 6.0, 7.0]]), "of different lengths"),
        (exchange(said=SAID.reshape(3, 2).tolist()), r"of shape \[2, 3\] has its values in lists of shape \[3, 2\]"),
        (exchange(said=[["a"] * 2] * 3, kind="BYTES"), r"has its values in lists of shape \[3, 2\]"),
        ({**exchange(), "response": '{"outputs": [], "outputs": []}'}, "twice"),
        ({**exchange(), "request": '{"inputs": [], "inputs": []}'}, "twice"),
        (exchange(status="fine"), "a status that is no number: 'fine'"),
        (exchange(status=True), "a status that is no number: True"),
        (exchange(status=[200]), "a status that is no number"),
    ],
)
def test_traffic_that_says_two_things_is_refused(tmp_path, entry, told):
    log = lines(tmp_path / "log.jsonl", [exchange(), entry])
    report = likewise.check(sums, log, log, **QUICK)
    assert report.outcome in ("INCONCLUSIVE", "FAIL")
    assert re.search(told, " ".join([report.headline, *(incident.message for incident in report.comparison.incidents)]))


@pytest.mark.parametrize("status", [200, "200", 201, "299", None])
def test_answers_count_whose_status_says_so(tmp_path, status):
    """A status as text, or another one of success, left the answer out: what was wrong in it passed."""
    wrong = exchange(said=(SAID * 9).ravel().tolist(), status=status)
    log = lines(tmp_path / "log.jsonl", [exchange(asked=ASKED.tolist(), said=SAID.tolist()), wrong])
    assert likewise.check(sums, log, log, **QUICK).outcome == "FAIL"
    log = lines(tmp_path / "log.jsonl", [exchange(), {**wrong, "status": "503"}])
    assert likewise.check(sums, log, log, **QUICK).passed
