"""What is acceptable is what the user said: a limit that cannot be applied is never a limit that holds."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import data_only
import likewise
from likewise.errors import UsageError
from likewise.judge.policy import make_policy
from planting import codes, expect, measures, planted, rows, said

COUNT = 60
VALUES = np.linspace(1.0, 2.0, COUNT)
NUMBERS = np.arange(COUNT) % 3


def off_by(difference, *, at=None):
    moved = VALUES.copy()
    moved[slice(None) if at is None else at] += difference
    return moved


def check(candidate, **options):
    return data_only.check(planted(value=VALUES), planted(value=candidate), rows(COUNT), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preset": "standart"}, ("'standart'", "did you mean 'standard'", "float32, strict")),
        ({"abs_tol": math.nan}, ("--abs-tol is nan",)),
        ({"abs_tol": -0.1}, ("--abs-tol is -0.1",)),
        ({"abs_tol": math.inf}, ("--abs-tol is inf",)),
        ({"rel_tol": math.nan}, ("--rel-tol is nan",)),
        ({"mean_tol": -1.0}, ("--mean-tol is -1.0",)),
        ({"limits": {"max_abs_dif": 0.1}}, ("'max_abs_dif'", "did you mean 'max_abs_diff'")),
        ({"limits": {"max_abs_diff": math.inf}}, ("max_abs_diff is inf",)),
        ({"limits": {"label_flips": -1}}, ("label_flips is -1",)),
        ({"limits": {"value.accuracy": 0.1}}, ("'accuracy'", "Measures:")),
        ({"limits": {"max_abs_diff": math.nan}}, ("max_abs_diff is nan",)),
        ({"confidence": 1.0}, ("--confidence is 1.0",)),
        ({"max_failure_rate": 0.0}, ("--max-failure-rate is 0.0",)),
        ({"samples": 0}, ("--samples is 0",)),
        ({"samples": 10**20}, ("--samples is 1000", "no data has so many rows")),
        ({"batch_size": 10**20}, ("--batch-size is 1000",)),
        ({"batch_size": -1}, ("--batch-size is -1",)),
        ({"batch_sizes": (1, 0)}, ("--batch-sizes",)),
        ({"sample": "last"}, ("'last'",)),
        ({"tolerance": 0.1}, ("'tolerance'",)),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else "-".join(map(str, value)),
)
def test_a_question_that_makes_no_sense_is_refused_before_anything_runs(options, words):
    def never(X):
        raise AssertionError("a model was run")

    with pytest.raises(UsageError) as refused:
        data_only.check(never, never, rows(COUNT), **options)
    for word in words:
        assert word in str(refused.value)


def test_a_limit_on_an_output_that_does_not_exist_is_inconclusive():
    report = check(VALUES, limits={"vlaue.max_abs_diff": 0.1})
    expect(report, "INCONCLUSIVE", "vlaue.max_abs_diff", "there is no output 'vlaue'", "did you mean 'value'")


def test_a_limit_on_a_measure_that_was_not_measured_is_inconclusive():
    model = planted(label=NUMBERS, value=VALUES)
    report = data_only.check(model, model, rows(COUNT), limits={"label.max_abs_diff": 0.1})
    expect(report, "INCONCLUSIVE", "nothing was measured against the limit on label.max_abs_diff", "label_flips")
    report = data_only.check(model, model, rows(COUNT), limits={"value.label_flips": 0})
    expect(report, "INCONCLUSIVE", "nothing was measured against the limit on value.label_flips", "max_abs_diff")


def test_a_limit_asked_for_where_nothing_is_numeric_is_inconclusive():
    model = planted(label=NUMBERS)
    report = data_only.check(model, model, rows(COUNT), limits={"max_abs_diff": 0.1})
    expect(report, "INCONCLUSIVE", "nothing was measured against the limit on max_abs_diff")


@pytest.mark.parametrize(
    ("limit", "bound"),
    [("cosine", 0.9999), ("sqnr_db", 60.0), ("rank_agreement", 0.999)],
)
def test_a_limit_of_which_more_is_better_fails_below(limit, bound):
    turned = VALUES[::-1].copy()
    report = check(turned, preset="quantized", abs_tol=5.0, mean_tol=5.0, limits={limit: bound})
    expect(report, "FAIL", f"value.{limit}", "below its limit")
    expect(check(VALUES, limits={limit: bound}), "PASS")


def test_a_limit_on_one_output_does_not_loosen_the_others():
    right, wrong = planted(a=VALUES, b=VALUES), planted(a=VALUES + 0.5, b=VALUES + 0.5)
    report = data_only.check(right, wrong, rows(COUNT), preset="standard", limits={"a.max_abs_diff": 1.0})
    expect(report, "FAIL", "b.max_abs_diff is 0.5")


def test_limits_measures_and_outcomes_stand_side_by_side():
    report = expect(check(off_by(0.02), preset="strict"), "FAIL", "value.max_abs_diff is 0.02")
    stated = {(entry.measure, entry.batch_size): entry for entry in report.verdict.checks}
    assert stated["max_abs_diff", None].bound == 0.01
    assert stated["max_abs_diff", None].value == pytest.approx(0.02)
    assert stated["max_abs_diff", None].outcome == "FAIL"
    assert stated["nonfinite_mismatch", None].outcome == "PASS"


@pytest.mark.parametrize(
    ("preset", "difference", "outcome"),
    [
        ("float32", 1e-3, "PASS"),  # 1e-4 + 1e-3 * |r| with |r| >= 1
        ("float32", 2.2e-3, "FAIL"),
        ("strict", 0.004, "PASS"),
        ("strict", 0.006, "FAIL"),  # the mean
        ("standard", 0.009, "PASS"),
        ("standard", 0.011, "FAIL"),
        ("quantized", 0.019, "PASS"),
        ("quantized", 0.021, "FAIL"),
        ("exact", 0.0, "PASS"),
        ("exact", 1e-15, "FAIL"),
    ],
)
def test_every_preset_draws_its_line_where_it_says(preset, difference, outcome):
    expect(check(off_by(difference), preset=preset), outcome)


def test_too_few_rows_for_the_failure_rate_are_inconclusive_and_the_number_needed_is_said():
    report = check(VALUES, max_failure_rate=0.001)
    # The least n with (1 - 0.001)**n <= 0.05.
    needed = next(count for count in range(1, 10_000) if 0.999**count <= 0.05)
    assert needed == 2995
    expect(report, "INCONCLUSIVE", "60 rows cannot show", "It takes 2,995 rows", "95% confidence")


@pytest.mark.parametrize(("count", "outcome"), [(2994, "INCONCLUSIVE"), (2995, "PASS")])
def test_the_number_of_rows_needed_is_enough_and_one_fewer_is_not(count, outcome):
    model = planted(value=np.arange(3000.0))
    report = data_only.check(model, model, rows(count), max_failure_rate=0.001)
    expect(report, outcome)
    bound = 1 - 0.05 ** (1 / count)
    assert report.verdict.confidence.upper_bound == pytest.approx(bound, rel=1e-9)


def test_another_confidence_needs_another_number_of_rows():
    needed = math.ceil(math.log(0.01) / math.log(0.99))
    report = check(VALUES, max_failure_rate=0.01, confidence=0.99)
    expect(report, "INCONCLUSIVE", f"It takes {needed} rows", "99% confidence")


def test_rows_beyond_tolerance_count_against_the_failure_rate():
    report = check(off_by(0.5, at=3), limits={"mismatch_rate": 0.5}, max_failure_rate=0.05)
    expect(report, "INCONCLUSIVE", "1 of 60 rows is beyond tolerance, which does not rule out 5")


def test_a_verdict_states_its_confidence():
    statement = check(VALUES).verdict.confidence.statement
    # 1 - 0.05 ** (1/60) = 4.87%, rounded up.
    assert statement == "at 95% confidence fewer than 4.9% of rows like these are beyond tolerance"


def test_a_quantised_candidate_fails_under_the_default_and_is_pointed_to_its_preset(models):
    report = data_only.check(models.joblib.network, models.onnx.int8, models.data)
    expect(report, "FAIL", "quantised nodes", "--preset quantized")
    assert report.comparison.quantized_nodes > 0
    meant = data_only.check(models.joblib.network, models.onnx.int8, models.data, preset="quantized")
    assert "--preset quantized" not in said(meant)
    assert meant.outcome == ("PASS" if meant.max_abs_diff <= 0.06 and meant.mean_abs_diff <= 0.02 else "FAIL")


def test_a_faithful_candidate_that_fails_is_not_called_quantised(models):
    report = data_only.check(models.joblib.network, models.onnx.classifier, models.data)
    assert "quantized" not in said(expect(report, "FAIL"))


# Judging again: the facts stay, the policy changes.


def stored(report, tmp_path):
    """The report as it comes back from its file."""
    from likewise.report import save

    path = tmp_path / "report.json"
    save(report, path)
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))
    return likewise.load(path)


def test_judging_again_without_a_change_changes_nothing(tmp_path):
    for options in ({}, {"preset": "strict"}, {"preset": "exact"}, {"abs_tol": 0.1}, {"nan_equal": False}):
        for candidate in (VALUES, off_by(0.5), off_by(np.nan, at=3)):
            report = stored(check(candidate, **options), tmp_path)
            again = likewise.judge(report)
            assert again.outcome == report.outcome, options
            assert again.verdict.headline == report.verdict.headline


def test_judging_labels_again_without_a_change_changes_nothing(tmp_path):
    model = planted(label=NUMBERS)
    report = expect(stored(data_only.check(model, model, rows(COUNT)), tmp_path), "PASS")
    expect(likewise.judge(report), "PASS")


def test_judging_exact_again_keeps_it_exact(tmp_path):
    zero, minus = off_by(0.0), off_by(0.0)
    zero[3], minus[3] = 0.0, -0.0
    report = data_only.check(planted(value=zero), planted(value=minus), rows(COUNT), preset="exact")
    expect(stored(expect(report, "FAIL"), tmp_path), "FAIL")
    expect(likewise.judge(stored(report, tmp_path)), "FAIL", "value.max_ulp_diff is 1")


def test_judged_again_more_tightly_it_fails(tmp_path):
    report = stored(expect(check(off_by(0.05), abs_tol=0.1), "PASS"), tmp_path)
    expect(likewise.judge(report, abs_tol=0.01), "FAIL", "value.max_abs_diff is 0.05, above its limit of 0.01")


def test_judged_again_more_widely_it_passes_and_says_so(tmp_path):
    report = stored(expect(check(off_by(0.05), abs_tol=0.01), "FAIL", "all 60 rows differ by more than 0.01"), tmp_path)
    again = expect(likewise.judge(report, abs_tol=0.1), "PASS")
    assert again.verdict.confidence.violations == 0


def test_judged_again_under_a_relative_tolerance_it_is_decided_from_the_magnitudes(tmp_path):
    report = stored(check(off_by(0.05)), tmp_path)
    # Every reference lies in [1, 2]: 0.05 is certainly within 0.06 * 1, and certainly beyond 0.01 * 2.
    expect(likewise.judge(report, abs_tol=0.0, rel_tol=0.06), "PASS")
    failed = likewise.judge(report, abs_tol=0.0, rel_tol=0.01)
    expect(failed, "FAIL", "value.mismatch_rate")
    assert all(not check.value <= check.bound for check in failed.verdict.checks if check.outcome == "FAIL")


def test_what_the_stored_facts_cannot_decide_is_inconclusive(tmp_path):
    report = stored(expect(check(off_by(0.05, at=-2), abs_tol=0.1, rel_tol=0.1), "PASS"), tmp_path)
    # Row 58 has a reference just below 2, stored as "between 1 and 2": 0.03 * 1 < 0.05 < 0.03 * 2.
    again = likewise.judge(report, abs_tol=0.0, rel_tol=0.03)
    expect(again, "INCONCLUSIVE", "value.mismatch_rate cannot be decided", "Run the check again")
    assert again.verdict.confidence is None


def test_a_rate_that_the_stored_facts_cannot_tell_is_inconclusive_not_failed(tmp_path):
    report = stored(check(off_by(0.5, at=3), abs_tol=1.0, rel_tol=1.0), tmp_path)
    again = likewise.judge(report, abs_tol=0.1, rel_tol=0.01, limits={"mismatch_rate": 0.5})
    expect(again, "INCONCLUSIVE", "value.mismatch_rate cannot be decided")


def test_an_error_at_one_batch_size_is_not_forgotten_when_judged_more_tightly(tmp_path):
    def wrong_alone(X):
        return {"value": VALUES[X.astype(int)] + (0.5 if len(X) == 1 else 0.0)}

    report = data_only.check(planted(value=VALUES), wrong_alone, rows(COUNT), abs_tol=1.0, rel_tol=1.0)
    report = stored(expect(report, "PASS"), tmp_path)
    # 0.5 is beyond 0.1 + 0.01 * 2, whatever the reference between 1 and 2.
    again = likewise.judge(report, abs_tol=0.1, rel_tol=0.01)
    expect(again, "FAIL", "value.mismatch_rate", "at batch size 1, above its limit of 0")
    # 0.5 lies between 0.3 * 1 and 0.3 * 2.
    undecided = likewise.judge(report, abs_tol=0.0, rel_tol=0.3)
    expect(undecided, "INCONCLUSIVE", "value.mismatch_rate at batch size 1 cannot be decided")


def test_an_error_at_one_batch_size_is_forgiven_when_judged_more_widely(tmp_path):
    def wrong_alone(X):
        return {"value": VALUES[X.astype(int)] + (0.5 if len(X) == 1 else 0.0)}

    report = stored(data_only.check(planted(value=VALUES), wrong_alone, rows(COUNT)), tmp_path)
    expect(report, "FAIL", "at batch size 1")
    expect(likewise.judge(report, abs_tol=1.0, rel_tol=1.0), "PASS")


def test_rows_beyond_a_new_tolerance_are_not_taken_from_the_old_one(tmp_path):
    report = stored(expect(check(off_by(0.5), abs_tol=1.0, max_failure_rate=0.1), "PASS"), tmp_path)
    again = likewise.judge(report, abs_tol=0.1, limits={"max_abs_diff": 10.0})
    expect(again, "INCONCLUSIVE", "cannot be told from the stored facts")
    assert again.verdict.confidence is None


def test_nan_on_both_sides_can_be_judged_again(tmp_path):
    gaps = off_by(np.nan, at=3)
    report = stored(data_only.check(planted(value=gaps), planted(value=gaps), rows(COUNT)), tmp_path)
    expect(report, "PASS")
    again = expect(likewise.judge(report, nan_equal=False), "FAIL", "1 value is NaN on both sides")
    assert again.verdict.confidence is None  # which rows these were is not among the facts
    strict = data_only.check(planted(value=gaps), planted(value=gaps), rows(COUNT), nan_equal=False)
    expect(strict, "FAIL", f"1 of {COUNT} rows is beyond")
    lenient = expect(likewise.judge(stored(strict, tmp_path), nan_equal=True), "PASS")
    assert lenient.verdict.confidence.violations == 0


@pytest.mark.parametrize(("measure", "bound"), [("max_abs_diff", 1.0), ("cosine", 0.5)])
def test_a_figure_that_is_not_a_number_is_beyond_every_limit(tmp_path, measure, bound):
    stored(check(VALUES), tmp_path)
    path = tmp_path / "report.json"
    document = json.loads(path.read_text())
    document["outputs"][0]["measures"][measure] = "NaN"
    path.write_text(json.dumps(document))
    report = likewise.judge(likewise.load(path), limits={measure: bound})
    expect(report, "FAIL", f"value.{measure} is nan")


def test_flips_are_judged_again_by_the_stored_margins(tmp_path):
    surely = np.full((COUNT, 2), [0.7, 0.3])
    surely[::2] = [0.3, 0.7]
    label = surely.argmax(axis=1)
    other = label.copy()
    other[5] = 1 - other[5]
    moved = surely.copy()
    moved[5] = [0.45, 0.55]
    pair = planted(label=label, probabilities=surely), planted(label=other, probabilities=moved)
    report = stored(expect(data_only.check(*pair, rows(COUNT)), "FAIL", "label.material_flips is 1"), tmp_path)
    # A margin of 0.4 may be noise when both scores may move by 0.3.
    expect(likewise.judge(report, abs_tol=0.3), "PASS")
    expect(likewise.judge(report, abs_tol=0.1), "FAIL", "label.material_flips is 1")


def test_a_run_that_was_inconclusive_stays_so_however_it_is_judged(tmp_path):
    report = stored(check(VALUES, samples=100), tmp_path)
    expect(likewise.judge(report, preset="quantized"), "INCONCLUSIVE", "100 rows were expected and 60 were compared")


def test_limits_can_be_added_when_judging_again(tmp_path):
    report = stored(check(off_by(0.05), abs_tol=0.1), tmp_path)
    expect(likewise.judge(report, limits={"value.mean_abs_diff": 0.01}), "FAIL", "value.mean_abs_diff is 0.05")
    expect(likewise.judge(report, limits={"cosine": 0.5}), "PASS")
    expect(likewise.judge(report, limits={"label_flips": 0}), "INCONCLUSIVE", "nothing was measured", "label_flips")
    with pytest.raises(UsageError, match="no measure 'mean_abs_dif'"):
        likewise.judge(report, limits={"mean_abs_dif": 0.01})


def test_figures_that_are_not_finite_survive_the_file(tmp_path):
    report = check(VALUES)
    assert measures(report, "value")["sqnr_db"] == math.inf
    assert measures(stored(report, tmp_path), "value")["sqnr_db"] == math.inf
    assert codes(stored(report, tmp_path)) == codes(report)


def test_a_relative_tolerance_of_zero_is_a_rule_for_single_values_too():
    """A limit on how far takes the place of `--abs-tol`, and not of the rule that no value fails to be close."""
    table = {"x": np.arange(4.0)}
    off = data_only.check(lambda x: x, lambda x: x + 0.5, table)
    for relative in (0.0, 1e-12):
        expect(likewise.judge(off, abs_tol=0.1, rel_tol=relative, limits={"max_abs_diff": 3.0}), "FAIL")
    expect(likewise.judge(off, abs_tol=0.1, limits={"max_abs_diff": 3.0}), "PASS")


def test_only_the_exact_preset_asks_for_the_same_bits():
    measures = {limit.measure for limit in make_policy(abs_tol=0.0, rel_tol=0.0).limits}
    assert "max_ulp_diff" not in measures, "no tolerance allows -0.0 for 0.0"
    assert "max_ulp_diff" in {limit.measure for limit in make_policy(preset="exact").limits}
