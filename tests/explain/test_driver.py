"""Explaining reads a verdict and never changes it, keeps to its budget, and survives its own experiments."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings

import numpy as np
import onnx
import pandas as pd
import pytest
from skl2onnx import to_onnx
from sklearn.linear_model import LinearRegression

import data_only
import likewise
from likewise.errors import UsageError
from likewise.tasks.check import investigate, settings_of

CRASHES = """
import os

calls = 0

def right(frame):
    return frame["x"].to_numpy()

def wrong(frame):
    global calls
    calls += 1
    if calls > 6:  # the first rows, all rows, one row alone three times, the first rows again
        os._exit(9)
    return frame["x"].to_numpy() + 1.0
"""


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(3)
    return pd.DataFrame(random.normal(size=(400, 3)), columns=["a", "b", "c"])


@pytest.fixture(scope="module")
def model(rows):
    return LinearRegression().fit(rows, rows @ [1.0, -2.0, 0.5] + 3.0)


@pytest.fixture(scope="module")
def negated(rows, model):
    """The faithful export with a Neg behind it."""
    proto = to_onnx(model, rows[:1].astype(np.float32).to_numpy())
    name = proto.graph.output[0].name
    proto.graph.node.append(onnx.helper.make_node("Neg", [name], ["negated"]))
    proto.graph.output[0].name = "negated"
    return proto


def test_the_verdict_is_the_same_with_and_without(rows, model, negated):
    plain = data_only.check(model, negated, rows)
    explained = data_only.check(model, negated, rows, explain=True)
    assert plain.verdict == explained.verdict
    assert plain.comparison == explained.comparison
    assert not plain.diagnoses
    assert plain.explanation is None
    assert explained.diagnoses


def test_a_pass_has_nothing_to_explain(rows, model):
    report = data_only.explain(model, to_onnx(model, rows[:1].astype(np.float32).to_numpy()), rows)
    assert report.passed
    assert report.diagnoses == ()
    assert report.explanation is None


def test_what_there_was_no_time_for_is_said(rows, model, negated):
    began = time.monotonic()
    report = data_only.check(model, negated, rows, explain=True, explain_budget=1e-6)
    assert report.outcome == "FAIL"
    assert report.explanation is not None
    assert report.explanation.not_tested
    assert report.diagnoses == ()
    assert time.monotonic() - began < 20, "one call of a small model is no matter of seconds"


def test_a_finding_is_on_the_screen_while_others_are_looked_for(rows, model, negated):
    told: list[str] = []
    settings = settings_of(model, negated, rows, edge="off", batch_sizes=())
    report, _ = investigate(settings, progress=lambda found: told.append(found.phase))
    first = next(place for place, phase in enumerate(told) if phase.startswith("explaining: "))
    assert told[first].endswith("?"), "nothing is found before it is looked for"
    best = report.diagnoses[0]
    assert f"explaining: {best.cause}, {best.culprit}" in told[first:]


def test_a_network_is_asked_no_more_rows_at_once_than_in_the_run():
    images = np.random.default_rng(0).random((24, 3, 120, 120), dtype=np.float32)
    asked: list[int] = []

    def answer(x, more=0.0):
        asked.append(len(x))
        return x.mean(axis=(1, 2, 3)) + more

    report = data_only.explain(answer, lambda x: answer(x, 1.0), {"x": images}, causes=("feature-order",))
    assert report.explanation is not None
    assert report.explanation.rows == len(images)
    assert max(asked) == 8, "a call of a network has a megabyte, and eight rows at least"


def test_recorded_answers_are_enough_for_what_is_seen_from_outside(rows, model, negated, tmp_path):
    rows.to_parquet(tmp_path / "rows.parquet")
    likewise.record(model, tmp_path / "rows.parquet", tmp_path / "golden.parquet")
    report = data_only.explain(tmp_path / "golden.parquet", negated, tmp_path / "rows.parquet")
    assert report.outcome == "FAIL"
    assert report.diagnoses[0].cause == "output-kind"
    assert report.explanation is not None
    assert any("trees, weights or steps" in text for text in report.explanation.not_tested), (
        "what was not tried is said"
    )
    assert report.diagnoses[0].explained_share == 1.0


def test_a_crash_while_explaining_leaves_the_verdict(tmp_path):
    (tmp_path / "models.py").write_text(CRASHES)
    pd.DataFrame({"x": np.arange(50.0)}).to_parquet(tmp_path / "rows.parquet")
    command = ["check", "models.py:right", "models.py:wrong", "--data", "rows.parquet", "--batch-sizes", "none"]
    done = subprocess.run(
        [sys.executable, "-m", "likewise", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((tmp_path / "parity_report.json").read_text())
    assert report["outcome"] == "FAIL"
    assert report["max_abs_diff"] == 1.0
    assert "cut short" in report["explanation"]["not_tested"][0]
    assert "exited with code 9" in report["explanation"]["not_tested"][0]


def test_a_hypothesis_that_fails_is_said_and_takes_nothing_along(rows, model, negated, monkeypatch):
    from likewise.explain import driver

    class Broken:
        causes = ("tokenizer",)
        needs_answers = True
        slow = False

        def plausible(self, case):
            return True

        def test(self, case):
            raise ZeroDivisionError("planted")

    found = driver.extensions("explain.probes")
    monkeypatch.setattr(driver, "extensions", lambda kind: (Broken(), *found))
    report = likewise.explain(model, negated, rows, edge="off")
    assert report.diagnoses
    assert report.explanation is not None
    assert any("tokenizer: the experiment itself failed" in text for text in report.explanation.not_tested)


@pytest.mark.parametrize("patience", [0.0, 0.5])
def test_a_search_that_was_cut_short_did_not_try_its_cause(rows, model, negated, monkeypatch, patience):
    from likewise.explain import driver
    from likewise.explain.case import probe
    from likewise.explain.experiment import searching

    def look(case):
        list(searching(case, [1, 2], patience=patience))
        return ()

    monkeypatch.setattr(driver, "extensions", lambda kind: (probe("tokenizer")(look),))
    found = data_only.explain(model, negated, rows).explanation
    assert ("tokenizer" in found.excluded) is (patience > 0)
    assert any(text.startswith("tokenizer: the time") for text in found.not_tested) is (patience == 0)


@pytest.fixture
def told(rows, model, negated, monkeypatch):
    """The causes that are told if probes have found these: a cause, the failing rows it covers, how simple it is."""
    from likewise.contracts.report import Place
    from likewise.explain import driver
    from likewise.explain.case import Explained, probe

    def tell(*entries):
        def look(case):
            place = np.flatnonzero(case.required.failing)
            for cause, covered, simplicity in entries:
                mask = np.zeros(len(case.required), dtype=bool)
                mask[place[covered]] = True
                yield Explained(cause, Place(cause), "", "", covered=mask, simplicity=simplicity)

        found = probe(*{cause for cause, _, _ in entries})(look)
        monkeypatch.setattr(driver, "extensions", lambda kind: (found,))
        report = data_only.explain(model, negated, rows)
        assert report.explanation is not None
        assert report.explanation.failing_rows == len(rows) == 400
        return [diagnosis.cause for diagnosis in report.diagnoses]

    return tell


def test_another_cause_of_the_same_rows_is_not_told(told):
    every, first, last = slice(None), slice(200), slice(200, None)
    assert told(("tokenizer", every, 3), ("aggregation", every, 2)) == ["aggregation"]
    assert told(("tokenizer", first, 2), ("aggregation", last, 3)) == ["tokenizer", "aggregation"]
    few, more = slice(192, 208), slice(191, 209)
    assert told(("tokenizer", first, 2), ("aggregation", few, 1)) == ["tokenizer"], "8 of 400 may be at the limit"
    assert told(("tokenizer", first, 2), ("aggregation", more, 1)) == ["tokenizer", "aggregation"]


def test_a_few_rows_at_the_limit_do_not_decide_which_cause_is_the_best(told):
    every = slice(None)
    assert told(("tokenizer", every, 3), ("aggregation", slice(392), 1)) == ["aggregation"]
    assert told(("tokenizer", every, 3), ("aggregation", slice(387), 1)) == ["tokenizer"]


def test_no_more_than_five_causes_are_told(told):
    causes = ("tokenizer", "aggregation", "row-order", "label-rule", "tree-count", "nonfinite")
    parts = [(cause, slice(60 * place, 60 * place + 60), 1) for place, cause in enumerate(causes)]
    assert len(told(*parts[:5])) == len(told(*parts)) == 5


def test_what_models_warn_of_in_experiments_reaches_nobody(rows, model, negated, monkeypatch):
    """Not even where warnings are errors, as in these tests: an experiment must not end for one."""
    from likewise.explain import driver

    class Warns:
        causes = ("tokenizer",)
        needs_answers = True
        slow = False

        def plausible(self, case):
            return True

        def test(self, case):
            warnings.warn("X does not have valid feature names", UserWarning, stacklevel=1)
            return ()

    monkeypatch.setattr(driver, "extensions", lambda kind: (Warns(),))
    report = data_only.explain(model, negated, rows)
    assert report.explanation is not None
    assert report.explanation.excluded == ("tokenizer",)
    assert not report.explanation.not_tested


def always_nan(rows):
    return np.full(len(rows), np.nan)


def sometimes_nan(rows):
    """NaN where the first column is negative, whatever else the rows hold."""
    values = np.asarray(rows)
    return np.where(values[:, 0] < 0, np.nan, values @ np.arange(1.0, values.shape[1] + 1))


@pytest.mark.parametrize("function", [always_nan, sometimes_nan])
def test_a_model_beside_itself_has_no_fault_where_nan_may_not_equal_nan(function):
    rows = {"x": np.random.default_rng(0).normal(size=(60, 4))}
    report = data_only.explain(function, lambda x: function(x), rows, nan_equal=False, explain_budget=30)
    assert report.outcome == "FAIL"
    assert report.diagnoses == ()
    # Silence means something only where the experiments saw the same rows fail as the gate did.
    assert report.explanation.failing_rows == np.isnan(function(rows["x"])).sum() > 0


def test_only_the_causes_that_are_asked_for_are_looked_for(model, negated, rows):
    everything = data_only.explain(model, negated, rows)
    assert everything.diagnoses[0].cause == "output-kind"
    told = data_only.explain(model, negated, rows, causes=["output-kind"])
    assert told.diagnoses[0] == everything.diagnoses[0]
    other = data_only.explain(model, negated, rows, causes=["nondeterminism"])
    assert other.diagnoses == ()
    assert other.explanation.not_tested[0] == "anything but nondeterminism: it was not asked for"
    assert set(other.explanation.excluded) < set(everything.explanation.excluded)


def test_a_cause_that_there_is_not_is_a_usage_error(model, negated, rows):
    with pytest.raises(UsageError, match="there is no cause 'tokeniser'; did you mean 'tokenizer'"):
        data_only.explain(model, negated, rows, causes=["tokeniser"])


@pytest.mark.parametrize("where", ["_open", "_investigate", "_tolerance"])
def test_an_explanation_that_breaks_leaves_the_verdict(monkeypatch, where):
    from likewise.explain import driver

    def broken(*_, **__):
        raise AttributeError("planted")

    monkeypatch.setattr(driver, where, broken)
    rows = np.arange(20.0).reshape(10, 2)
    report = likewise.check(lambda X: X.sum(axis=1), lambda X: -X.sum(axis=1) - 1, rows, edge="off")
    assert report.outcome == "FAIL"
    assert report.explanation is not None
    assert "the explanation broke, AttributeError: planted" in report.explanation.not_tested[0]
