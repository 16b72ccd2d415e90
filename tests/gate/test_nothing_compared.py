"""Agreement that tells nothing is said to be so: NaN on both sides, one model on both sides, no values at all."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from skl2onnx import to_onnx
from sklearn.linear_model import LinearRegression

import data_only
import likewise
from planting import codes, expect, measures, planted, rows

COUNT = 1_000
NAMES = np.array(["blue", "green", "red"], dtype=object)


def test_answers_that_are_mostly_nan_are_told_loudly_and_can_be_limited():
    values = np.full(COUNT, np.nan)
    values[:6] = [1, 2, 3, 4, 5, 6]
    model = planted(value=values)
    report = data_only.check(model, planted(value=values.copy()), rows(COUNT))
    expect(report, "PASS", "99.4% of 'value' is NaN on both sides")
    assert "nan-both" in codes(report, "warning")
    assert "NaN" in report.verdict.headline
    assert measures(report, "value")["nan_share"] == 0.994
    expect(data_only.check(model, model, rows(COUNT), limits={"nan_share": 0.5}), "FAIL", "value.nan_share is 0.994")
    few = planted(value=np.where(np.arange(COUNT) % 100, 1.5, np.nan))
    report = data_only.check(few, few, rows(COUNT), limits={"nan_share": 0.05})
    expect(report, "PASS")
    assert "nan-both" in codes(report, "note")
    assert "NaN" not in report.verdict.headline


@pytest.fixture
def files(tmp_path):
    table = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    model = LinearRegression().fit(table, table @ [1, 2, 3])
    path = tmp_path / "model.onnx"
    path.write_bytes(to_onnx(model, table[:1]).SerializeToString())
    return model, path, table


QUICK = {"explain": False, "edge": "off", "shapes": {}}


def test_one_model_on_both_sides_is_not_passed_by_accident(files):
    model, path, table = files
    for both in (model, path, str(path)):
        expect(likewise.check(both, both, table, **QUICK), "INCONCLUSIVE", "one and the same model", "--allow-same")
        expect(likewise.check(both, both, table, **QUICK, allow_same=True), "PASS")
    linked = path.with_name("link.onnx")
    linked.symlink_to(path)
    expect(likewise.check(path, linked, table, **QUICK), "INCONCLUSIVE", "one and the same model")
    report = likewise.check(path, path, table, edge="off", shapes={})
    assert report.explanation is None, "there is nothing to explain"
    expect(likewise.judge(report, allow_same=True), "PASS")


def test_one_file_under_other_options_or_settings_is_a_question_like_any_other(files):
    _, path, table = files
    report = likewise.check(path, path, table, **QUICK, candidate_options={"optimization": "disable"})
    expect(report, "PASS")
    assert "same-model" not in codes(report)
    report = likewise.check(path, path, table, **QUICK, matrix={"optimization": ("disable", "all")})
    expect(report, "PASS")


def test_a_copy_of_the_reference_is_told(files):
    model, path, table = files
    copy = path.with_name("candidate.onnx")
    shutil.copy(path, copy)
    report = likewise.check(path, copy, table, **QUICK)
    expect(report, "PASS", "hold the same bytes")
    assert "same-model" in codes(report, "warning")
    assert "same-model" not in codes(likewise.check(model, copy, table, **QUICK))


@pytest.mark.parametrize("options", [{"abs_tol": 0.01}, {"rel_tol": 0.1}, {"mean_tol": 0.1}, {"preset": "standard"}])
def test_a_tolerance_asks_nothing_of_labels_and_text_and_they_are_judged_by_what_fits_them(options):
    for answers in ({"label": np.arange(60) % 3}, {"text": NAMES[np.arange(60) % 3]}):
        (name, right), *_ = answers.items()
        wrong = right.copy()
        wrong[7] = right[8]
        expect(data_only.check(planted(**answers), planted(**answers), rows(60), **options), "PASS")
        report = data_only.check(planted(**answers), planted(**{name: wrong}), rows(60), **options)
        expect(report, "FAIL", f"{name}.material_flips is 1")


def test_a_limit_by_name_that_nothing_is_measured_against_stays_inconclusive():
    model = planted(label=np.arange(60) % 3)
    report = data_only.check(model, model, rows(60), limits={"max_abs_diff": 0.1})
    expect(report, "INCONCLUSIVE", "nothing was measured against the limit on max_abs_diff")


def test_outputs_without_values_are_compared_by_shape_and_type():
    empty, value = np.zeros((60, 0), dtype=np.float32), np.arange(60.0)
    model = planted(boxes=empty, value=value)
    expect(data_only.check(model, model, rows(60), abs_tol=0.01), "PASS", "'boxes' holds no values")
    alone = data_only.check(planted(boxes=empty), planted(boxes=empty), rows(60))
    expect(alone, "INCONCLUSIVE", "no output holds a value for any row")
    other = planted(boxes=np.zeros((60, 0, 4), dtype=np.float32))
    expect(data_only.check(planted(boxes=empty), other, rows(60)), "FAIL", "shape")


MISSING = {
    "None": np.full(COUNT, None, dtype=object),
    "no time": np.full(COUNT, np.datetime64("NaT")),
    "no nanosecond": np.full(COUNT, np.datetime64("NaT"), dtype="M8[ns]"),
}


@pytest.mark.parametrize("name", MISSING)
def test_labels_that_are_missing_on_both_sides_tell_nothing(name):
    values = MISSING[name]
    report = data_only.check(planted(label=values), planted(label=values.copy()), rows(COUNT))
    expect(report, "INCONCLUSIVE", "'label' was not judged: all of it is missing on both sides")
    one = values.astype(object)
    one[3] = "blue"
    expect(data_only.check(planted(label=one), planted(label=one.copy()), rows(COUNT)), "PASS")


def test_a_label_that_is_spelt_like_none_is_a_label():
    spelt = np.full(COUNT, "NaT", dtype=object)
    expect(data_only.check(planted(label=spelt), planted(label=spelt.copy()), rows(COUNT)), "PASS")
