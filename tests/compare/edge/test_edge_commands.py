"""`--edge fail|report|off` through the command line, the configuration, and a report judged again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import joblib
import numpy as np
import pytest
from edge_pairs import table

import data_only
import likewise
from likewise import report as report_files
from likewise.compare.variations import edge
from likewise.contracts.verdict import Outcome
from likewise.tasks import check as verify
from likewise.tasks import settings as config
from planting import command, here

CRASHING = """
import os
import numpy as np

def steady(rows):
    return rows * 2

def fragile(rows):
    if np.isnan(rows).any():
        os._exit(9)
    return rows * 2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, linear):
    """A model whose export answers infinity where the model refuses it; and one that dies on NaN."""
    folder = tmp_path_factory.mktemp("edge")
    model, proto = linear
    joblib.dump(model, folder / "model.joblib")
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    table().to_parquet(folder / "rows.parquet", index=False)
    (folder / "models.py").write_text(CRASHING)
    np.savez(folder / "rows.npz", x=np.linspace(0.1, 0.9, 50))
    return folder


def run(folder, *words, start=here):
    done = start(*words, folder=folder)
    return done.returncode, done.stdout + done.stderr


def test_report_deploys_and_says_what_differs(folder):
    words = ["model.joblib", "model.onnx", "--data", "rows.parquet", "--report", "report.json"]
    code, shown = run(folder, "check", *words)
    assert code == 0, shown
    assert "Edge cases: 15 of 16 suites agree" in shown
    assert "nonfinite: only the reference refuses such values, as usual" in " ".join(shown.split())
    assert shown.count("nonfinite") == 1
    stored = json.loads((folder / "report.json").read_text())
    assert stored["passed"] is True
    kinds = {suite["verdict"]["name"]: suite["verdict"]["outcome"] for suite in stored["suites"]}
    assert kinds["nonfinite"] == "FAIL"
    assert kinds["missing-values"] == "PASS"


def test_infinities_that_only_the_reference_refuses_block_where_they_are_asked_for(folder):
    words = ["model.joblib", "model.onnx", "--data", "rows.parquet", "--report", "failed.json", "--no-explain"]
    code, shown = run(folder, "check", *words, "--edge", "fail")
    assert code == 0, shown
    assert "nonfinite: only the reference refuses such values, as usual" in " ".join(shown.split())
    stored = {
        suite["verdict"]["name"]: suite["verdict"]
        for suite in json.loads((folder / "failed.json").read_text())["suites"]
    }
    assert (stored["nonfinite"]["outcome"], stored["nonfinite"]["usual"], stored["nonfinite"]["blocks"]) == (
        "FAIL",
        True,
        False,
    )
    code, shown = run(folder, "check", *words, "--edge", "strict")
    assert code == 1, shown
    assert "Nonfinite: the reference refuses" in shown
    assert "not blocking" not in shown


def refusing(unwanted):
    """A model of one column that refuses a call with such values, as most estimators do."""

    def answer(x):
        if unwanted(x).any():
            raise ValueError("no such values please")
        return x * 2

    return answer


def plain(x):
    return x * 2


def wrong_at_nan(x):
    return np.where(np.isnan(x), 1.0, x * 2)


NOT_FINITE, ZEROS = refusing(lambda x: ~np.isfinite(x)), refusing(lambda x: x == 0)


@pytest.mark.parametrize(
    ("reference", "candidate", "outcome", "blocking"),
    [
        (NOT_FINITE, plain, Outcome.PASS, set()),
        (plain, NOT_FINITE, Outcome.FAIL, {"missing-values", "nonfinite"}),
        (refusing(np.isinf), wrong_at_nan, Outcome.FAIL, {"missing-values", "nonfinite"}),
        (refusing(np.isinf), plain, Outcome.PASS, set()),
        (ZEROS, plain, Outcome.FAIL, {"zeros"}),
    ],
    ids=["reference refuses", "candidate refuses", "both answer NaN apart", "both answer NaN alike", "ordinary values"],
)
def test_only_refusals_of_no_ordinary_numbers_do_not_block(reference, candidate, outcome, blocking):
    rows = {"x": np.linspace(0.1, 0.9, 60)}
    report = data_only.check(reference, candidate, rows, edge="fail")
    assert report.outcome is outcome, report.verdict.headline
    assert {suite.name for suite in report.verdict.suites if suite.outcome is Outcome.FAIL and suite.blocks} == blocking
    strict = data_only.check(reference, candidate, rows, edge="strict")
    assert strict.outcome is Outcome.FAIL


def test_a_suite_that_is_known_to_differ_can_be_left_out(folder):
    words = ["model.joblib", "model.onnx", "--data", "rows.parquet", "--report", "skipped.json", "--edge", "fail"]
    code, shown = run(folder, "check", *words, "--skip-suite", "nonfinite")
    assert code == 0, shown
    names = [suite["verdict"]["name"] for suite in json.loads((folder / "skipped.json").read_text())["suites"]]
    assert "nonfinite" not in names
    assert len(names) == 15


def test_a_suite_that_there_is_not_cannot_be_left_out(folder):
    code, shown = run(
        folder, "check", "model.joblib", "model.onnx", "--data", "rows.parquet", "--skip-suite", "nonfinit"
    )
    assert code == 2
    assert "did you mean 'nonfinite'?" in shown


def test_a_model_that_dies_on_an_edge_case_keeps_its_verdict(folder):
    words = ["models.py:steady", "models.py:fragile", "--data", "rows.npz", "--report", "crash.json"]
    code, shown = run(folder, "check", *words, start=command)
    assert code == 0, shown
    told = "cut short: the worker exited with code 9 while trying the edge suite 'missing-values'"
    assert told in " ".join(shown.split())
    assert report_files.load(folder / "crash.json").passed


def test_where_edge_cases_block_a_death_is_inconclusive(folder):
    words = ["models.py:steady", "models.py:fragile", "--data", "rows.npz", "--report", "lost.json"]
    code, shown = run(folder, "check", *words, "--edge", "fail", start=command)
    assert code == 3, shown
    assert "exited with code 9" in shown


@pytest.fixture(scope="module")
def judged(folder):
    """A report with a suite that fails by a little: the candidate clips, and the suite goes past the range."""
    x = np.linspace(0.0, 1.0, 60)
    report = data_only.check(
        lambda rows: rows, lambda rows: np.clip(rows, -0.2, 1.2), {"x": x}, abs_tol=0.5, edge="fail"
    )
    path = folder / "clipped.json"
    report_files.save(report, path)
    return path


def test_a_stored_report_is_judged_again_with_its_suites(judged):
    stored = report_files.load(judged)
    failing = {suite.name for suite in stored.verdict.suites if suite.outcome is Outcome.FAIL}
    assert "beyond-range" in failing
    assert stored.outcome is Outcome.FAIL
    wider = likewise.judge(stored, abs_tol=20.0)
    past = next(suite for suite in wider.verdict.suites if suite.name == "beyond-range")
    assert past.outcome is Outcome.PASS
    narrower = likewise.judge(stored, abs_tol=0.001)
    assert {suite.name for suite in narrower.verdict.suites if suite.outcome is Outcome.FAIL} >= failing
    assert narrower.outcome is Outcome.FAIL


def test_limits_that_speak_of_rows_as_they_come_do_not_speak_of_suites(judged):
    again = likewise.judge(report_files.load(judged), limits={"mean_abs_diff": 1e-12, "rank_agreement": 0.5})
    for suite in again.verdict.suites:
        assert all(check.measure not in ("mean_abs_diff", "rank_agreement") for check in suite.checks)


def test_a_gate_of_the_configuration_can_block(folder, monkeypatch):
    (folder / "likewise.toml").write_text(
        '[gates.main]\nreference = "model.joblib"\ncandidate = "model.onnx"\ndata = "rows.parquet"\n'
        'edge = "strict"\nexplain = false\n'
    )
    (settings,) = config.load_gates(folder / "likewise.toml").values()
    assert settings.edge == "strict"
    monkeypatch.chdir(folder)
    assert verify.investigate(settings)[0].outcome is Outcome.FAIL


def test_another_word_makes_no_sense(folder):
    with pytest.raises(likewise.LikewiseError, match="--edge is 'sometimes'"):
        data_only.check(np.abs, np.abs, {"x": np.ones(3)}, edge="sometimes")


def test_recorded_answers_have_none_to_rows_that_were_not_recorded(folder, linear):
    path = folder / "golden.parquet"
    likewise.record(linear[0], table(), path)
    report = data_only.check(str(path), linear[1], table(), edge="report")
    assert report.passed
    (only,) = report.verdict.suites
    assert only.outcome is Outcome.INCONCLUSIVE
    assert "only recorded answers" in only.headline
    assert not data_only.check(str(path), linear[1], table(), edge="fail").passed


def test_the_example_of_the_guide_is_what_it_shows(example_folder):
    """A thousand rows agree, and one income, on the wrong side of a threshold after scaling, does not."""
    data = str(example_folder / "test.parquet")
    models = [str(example_folder / name) for name in ("booster.joblib", "booster.onnx")]
    report = data_only.check(*models, data, samples=1000, edge="report")
    assert report.passed
    differing = {suite.name: suite.headline for suite in report.verdict.suites if suite.outcome is Outcome.FAIL}
    assert set(differing) == {"huge-numbers", "nonfinite", "rounded-thresholds", "tree-thresholds"}
    assert "income = 59993, below the threshold of tree 17, node 1" in differing["tree-thresholds"]


def test_eight_bits_differ_only_outside_what_they_were_made_for(example_folder):
    """Rows of a suite do not spoil each other, though the candidate scales all rows of a call together."""
    models = [str(example_folder / name) for name in ("model.onnx", "model.int8.onnx")]
    report = data_only.check(*models, str(example_folder / "test.parquet"), preset="quantized", edge="report")
    assert report.passed
    differing = {suite.name for suite in report.verdict.suites if suite.outcome is Outcome.FAIL}
    assert differing <= {"beyond-range", "huge-numbers", "large-integers", "nonfinite"}


def test_every_suite_is_in_the_guide():
    page = (Path(__file__).parents[3] / "docs" / "guide" / "edge-cases.md").read_text()
    cells = re.findall(r"^- (`[a-z-]+`(?:, `[a-z-]+`)*):", page, re.M)
    assert set(re.findall("[a-z-]+", " ".join(cells))) == {suite.name for suite in edge.suites()}


def test_the_same_rows_are_made_wherever_the_reference_runs(folder, trees):
    """A command on more than one core opens the reference in a process of its own; its trees are read all the same."""
    model, proto, rows = trees
    joblib.dump(model, folder / "forest.joblib")
    (folder / "forest.onnx").write_bytes(proto.SerializeToString())
    np.savez(folder / "forest.npz", x=rows.astype(np.float64))
    words = ["forest.joblib", "forest.onnx", "--data", "forest.npz", "--report", "forest.json", "--no-explain"]
    run(folder, "check", *words, "--edge", "fail")
    ours = data_only.check(folder / "forest.joblib", folder / "forest.onnx", folder / "forest.npz", edge="fail")
    told = {suite.name: (suite.rows, suite.headline) for suite in ours.verdict.suites}
    stored = report_files.load(folder / "forest.json")
    assert {suite.name: (suite.rows, suite.headline) for suite in stored.verdict.suites} == told
    assert told["rounded-thresholds"][0] > 100
