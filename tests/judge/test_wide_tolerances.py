"""A tolerance that covers everything the reference says cannot be passed: any model would."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from skl2onnx import to_onnx
from sklearn.linear_model import LinearRegression

import data_only
import likewise
from planting import planted


@pytest.fixture(scope="module")
def tiny():
    """A model of something measured in metres that moves by micrometres; its export; and one of its opposite."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(400, 3)).astype(np.float32)
    model = LinearRegression().fit(rows, rows @ [1e-5, -4e-6, 2e-6])
    opposite = LinearRegression().fit(rows, -(rows @ [1e-5, -4e-6, 2e-6]))
    return model, to_onnx(model, rows[:1]), to_onnx(opposite, rows[:1]), rows


def test_answers_smaller_than_the_tolerance_are_not_compared_by_it(tiny):
    model, faithful, opposite, rows = tiny
    constant = lambda batch: np.zeros(len(batch))  # noqa: E731
    for candidate in (opposite, constant):
        report = data_only.check(model, candidate, rows)
        assert report.outcome == "INCONCLUSIVE"
        assert "a model that always answers the same would be within tolerance" in report.verdict.headline
    report = data_only.check(model, faithful, rows)
    assert report.passed, "it follows the reference to a part of its spread"
    assert "wide-tolerance" in {finding.code for finding in report.verdict.findings}


def test_with_the_tolerance_of_the_remedy_the_two_are_told_apart(tiny):
    model, faithful, opposite, rows = tiny
    remedy = data_only.check(model, opposite, rows).verdict.findings[0].remedy
    tolerance = float(remedy.split("--abs-tol ")[1].split()[0])
    assert data_only.check(model, faithful, rows, abs_tol=tolerance, rel_tol=0).outcome == "PASS"
    assert data_only.check(model, opposite, rows, abs_tol=tolerance, rel_tol=0).outcome == "FAIL"


def test_who_chooses_such_a_tolerance_is_warned(tiny):
    model, faithful, _, rows = tiny
    report = data_only.check(model, faithful, rows, abs_tol=1e-4)
    assert report.passed
    assert "wide-tolerance" in {finding.code for finding in report.verdict.findings}


def test_a_relative_tolerance_is_wide_where_answers_are_far_from_zero():
    rows = pd.DataFrame({"x": np.linspace(0, 1, 50)})
    year = lambda frame: 2000.0 + frame["x"].to_numpy()  # noqa: E731
    other = lambda frame: 2000.4 + 0.0 * frame["x"].to_numpy()  # noqa: E731
    report = data_only.check(year, other, rows)
    assert report.outcome == "INCONCLUSIVE"
    assert likewise.judge(report, abs_tol=0.01, rel_tol=0).outcome == "FAIL"
    assert data_only.check(year, year, rows).passed


@pytest.mark.parametrize("beside", [False, True], ids=["an output", "a column"])
@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (-0.9e-4, 0.9e-4, "INCONCLUSIVE"),  # nearly twice the tolerance: zero is close to all of it
        (-1.1e-4, 1.1e-4, "FAIL"),
        (1000.0, 1001.9, "INCONCLUSIVE"),  # 1.0001 below, 1.002 above
        (1000.0, 1002.1, "FAIL"),
    ],
)
def test_the_middle_of_all_answers_is_no_model(low, high, outcome, beside):
    answers = np.linspace(low, high, 40)
    middle = np.full(40, (low + high) / 2)
    if beside:
        large = np.linspace(-1e6, 1e6, 40)
        answers, middle = (np.stack([large, column], axis=1) for column in (answers, middle))
    report = data_only.check(planted(value=answers), planted(value=middle), {"X": np.arange(40) * 1.0})
    assert report.outcome == outcome


def test_answers_that_move_more_than_the_tolerance_are_compared(tiny):
    _, _, _, rows = tiny
    frame = pd.DataFrame({"x": rows[:, 0]})
    model = lambda table: table["x"].to_numpy() / 100  # noqa: E731
    assert data_only.check(model, model, frame).passed


@pytest.mark.parametrize(("count", "outcome"), [(9, "PASS"), (10, "INCONCLUSIVE")])
def test_ten_rows_that_lie_close_together_do_so_for_a_reason(count, outcome):
    answers = np.linspace(1, 6, count) * 1e-6
    report = data_only.check(planted(value=answers), planted(value=1.5 * answers), {"X": np.arange(count) * 1.0})
    assert report.outcome == outcome
    assert "wide-tolerance" in {finding.code for finding in report.verdict.findings}


def test_rows_that_are_few_or_all_alike_are_no_reason():
    model = lambda table: table["x"].to_numpy()  # noqa: E731
    few = data_only.check(model, model, pd.DataFrame({"x": [1e-6, 2e-6, 3e-6]}))
    assert few.passed
    assert "wide-tolerance" in {finding.code for finding in few.verdict.findings}
    alike = data_only.check(model, model, pd.DataFrame({"x": np.full(50, 3.0)}))
    assert alike.passed


def test_a_report_prints_as_its_verdict(tiny):
    model, faithful, _, rows = tiny
    report = data_only.check(model, faithful, rows, abs_tol=1e-8, rel_tol=0)
    assert repr(report) == f"<Report PASS: {report.verdict.headline}>"


@pytest.fixture(scope="module")
def targets():
    """A large target beside a small one, and what a candidate that lost the small one says."""
    rng = np.random.default_rng(8)
    rows = rng.normal(size=(300, 3)).astype(np.float32)
    both = np.stack([rows @ [300, 200, 100], rows @ [1e-5, -4e-6, 2e-6]], axis=1)
    return LinearRegression().fit(rows, both), rows


def test_a_small_target_beside_a_large_one_is_not_passed_by_the_tolerance_of_the_large_one(targets):
    model, rows = targets
    lost = lambda X: {"value": model.predict(X) * [1, 0]}  # noqa: E731
    report = data_only.check(model, lost, rows)
    assert report.outcome == "INCONCLUSIVE"
    assert "the reference's column 1 of 'value' goes from" in report.verdict.headline
    faithful = data_only.check(model, to_onnx(model, rows[:1]), rows)
    assert faithful.passed, "it follows the reference in every column"
    assert "wide-tolerance" in {f.code for f in faithful.verdict.findings if f.severity == "note"}
    assert data_only.check(model, lost, rows, abs_tol=1e-4, rel_tol=1e-3).passed, "who chooses is warned"


def test_rows_that_are_sorted_do_not_switch_it_off(tiny):
    model, _, opposite, rows = tiny
    many = np.concatenate([np.repeat(rows[:1], 200, axis=0), rows])
    report = data_only.check(model, opposite, many)
    assert report.outcome == "INCONCLUSIVE"
    assert report.comparison.varied


def test_rare_classes_are_no_targets():
    rng = np.random.default_rng(4)
    sure = rng.dirichlet([100, 80, 60, 1e-3], size=300)
    rows = {"X": np.arange(300.0)}
    right = lambda X: {"probabilities": sure[X.astype(int)]}  # noqa: E731
    coarse = lambda X: {"probabilities": np.round(sure[X.astype(int)], 2)}  # noqa: E731
    assert data_only.check(right, coarse, rows, preset="quantized").passed
