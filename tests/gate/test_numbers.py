"""Differences of numbers: NaN never hides, nothing wraps, nothing is rounded away before it is compared."""

from __future__ import annotations

import numpy as np
import pytest

import data_only
import likewise
from planting import codes, expect, measures, planted, rows, worst

COUNT = 60
VALUES = np.linspace(1.0, 2.0, COUNT)


def check(reference, candidate, **options):
    """Both models answer with one array called `value`."""
    return data_only.check(planted(value=reference), planted(value=candidate), rows(COUNT), **options)


def with_value(value, at=17, of=VALUES):
    changed = of.copy()
    changed[at] = value
    return changed


@pytest.mark.parametrize("preset", ["float32", "strict", "standard", "quantized", "exact"])
@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_one_nan_on_one_side_fails_under_every_preset(side, preset):
    broken = with_value(np.nan)
    pair = (broken, VALUES) if side == "reference" else (VALUES, broken)
    report = expect(check(*pair, preset=preset), "FAIL", "value.nonfinite_mismatch is 1", "1 of 60 rows")
    assert worst(report, "value")[0]["row"] == 17


def test_nan_in_the_same_place_agrees_and_is_reported():
    report = expect(check(with_value(np.nan), with_value(np.nan)), "PASS", "1 value is NaN on both sides")
    assert measures(report, "value")["nan_both"] == 1


def test_nan_in_the_same_place_fails_when_nan_is_not_equal():
    report = check(with_value(np.nan), with_value(np.nan), nan_equal=False)
    expect(report, "FAIL", "1 value is NaN on both sides", "1 of 60 rows is beyond tolerance")
    assert next(f.output for f in report.verdict.findings if f.code == "nan-both") == "value"
    assert report.comparison.rows_beyond == measures(report, "value")["rows_beyond"] == 1
    assert report.verdict.confidence.violations == 1


def test_a_row_that_is_both_nan_and_off_is_counted_once():
    reference = np.stack([with_value(np.nan), VALUES], axis=1)
    candidate = np.stack([with_value(np.nan), VALUES + np.where(np.arange(COUNT) < 18, 0.5, 0.0)], axis=1)
    for nan_equal in (True, False):
        report = expect(check(reference, candidate, nan_equal=nan_equal), "FAIL")
        assert report.comparison.rows_beyond == measures(report, "value")["rows_beyond"] == 18


def test_nan_in_other_places_fails():
    report = check(with_value(np.nan, at=3), with_value(np.nan, at=4))
    expect(report, "FAIL", "value.nonfinite_mismatch is 2")


@pytest.mark.parametrize("preset", ["float32", "strict", "standard", "exact"])
@pytest.mark.parametrize("value", [np.nan, np.inf], ids=["NaN", "infinity"])
def test_models_that_answer_nothing_finite_are_never_a_pass(value, preset):
    nothing = np.full(COUNT, value)
    expect(check(nothing, nothing, preset=preset), "INCONCLUSIVE", "'value'", "none of its values is finite")


def test_one_output_of_nan_alone_is_not_covered_by_another_that_agrees():
    nothing = np.full(COUNT, np.nan)
    model = planted(value=VALUES, other=nothing)
    expect(data_only.check(model, model, rows(COUNT)), "INCONCLUSIVE", "'other'", "none of its values is finite")


def test_infinity_on_one_side_fails():
    expect(check(VALUES, with_value(np.inf)), "FAIL", "value.nonfinite_mismatch is 1")


def test_infinity_of_the_same_sign_agrees():
    expect(check(with_value(-np.inf), with_value(-np.inf)), "PASS")


def test_infinity_of_the_other_sign_fails():
    report = expect(check(with_value(np.inf), with_value(-np.inf)), "FAIL", "value.nonfinite_mismatch is 1")
    assert worst(report, "value")[0]["row"] == 17


def test_a_candidate_that_always_answers_the_same_fails_and_is_called_constant():
    report = check(VALUES, np.full(COUNT, VALUES.mean()))
    expect(report, "FAIL", "the candidate gives the same 'value' for every one of 60 rows of varied data")


def test_a_constant_candidate_within_tolerance_does_not_pass():
    nearly = 1 + 1e-6 * VALUES
    report = expect(check(nearly, np.ones(COUNT)), "INCONCLUSIVE", "the candidate gives the same 'value'")
    assert "constant-output" in codes(report, "warning")


def test_both_constant_is_a_finding():
    report = expect(check(np.ones(COUNT), np.ones(COUNT)), "PASS", "both models give the same 'value'")
    assert "constant-output" in codes(report, "warning")


def test_constant_answers_to_constant_data_tell_nothing():
    model = planted(value=np.ones(1))
    report = expect(data_only.check(model, model, {"X": np.zeros(50)}), "PASS")
    assert "constant-output" not in codes(report)


def test_unsigned_bytes_do_not_wrap():
    reference = np.full(COUNT, 200, dtype=np.uint8)
    reference[0] = 199
    report = check(reference, np.full(COUNT, 10, dtype=np.uint8))
    expect(report, "FAIL", "value.mismatch_rate is 1")
    assert measures(report, "value")["max_abs_diff"] == 190.0
    # 59 differences of 190 and one of 189.
    assert measures(report, "value")["mean_abs_diff"] == pytest.approx((59 * 190 + 189) / 60)


def test_bytes_below_zero_do_not_wrap_either():
    report = check(np.full(COUNT, -128, dtype=np.int8), np.full(COUNT, 127, dtype=np.int8))
    assert measures(expect(report, "FAIL"), "value")["max_abs_diff"] == 255.0


def test_large_integers_that_differ_by_one_are_told_apart():
    large = 2**53 + np.arange(COUNT, dtype=np.int64)
    report = check(large, with_value(large[17] + 1, of=large), preset="exact")
    expect(report, "FAIL", "value.max_abs_diff is 1")
    assert worst(report, "value")[0]["row"] == 17
    expect(check(large, large.copy(), preset="exact"), "PASS")


def test_large_unsigned_and_signed_integers_are_compared_exactly():
    signed = np.full(COUNT, 2**63 - 1, dtype=np.int64)
    unsigned = np.full(COUNT, 2**63, dtype=np.uint64)
    report = check(signed, unsigned, abs_tol=0.5)
    assert measures(expect(report, "FAIL", "value.max_abs_diff is 1"), "value")["max_abs_diff"] == 1.0


def test_integer_labels_beyond_2_to_the_53_are_compared_exactly():
    large = 2**53 + np.arange(COUNT, dtype=np.int64)
    report = data_only.check(
        planted(label=large), planted(label=with_value(large[17] + 1, of=large)), rows(COUNT), batch_sizes=()
    )
    expect(report, "FAIL", "label.material_flips is 1")


def test_a_wider_type_alone_is_no_difference_of_values():
    narrow = VALUES.astype(np.float32)
    expect(check(narrow, narrow.astype(np.float64), abs_tol=0, limits={"max_ulp_diff": 0}), "PASS")
    report = check(narrow, narrow.astype(np.float64), preset="exact")
    expect(report, "FAIL", "value.dtype_mismatch is 1")
    assert "above" not in report.verdict.headline.replace("value.dtype_mismatch is 1, above", "")


def test_numbers_are_not_paired_with_text_unless_asked_and_then_fail():
    text = VALUES.astype(str).astype(object)
    expect(check(VALUES, text), "INCONCLUSIVE", "'value' (label)", "'value' (value)", "--pair")
    report = check(VALUES, text, pair={"value": "value"})
    expect(report, "FAIL", "'value'", "float64 in the reference", "text in the candidate")


def test_complex_numbers_are_not_cut_to_their_real_part():
    report = check(VALUES, VALUES + 1j)
    expect(report, "FAIL", "'value'", "complex128 in the candidate")


def test_a_difference_too_large_for_a_double_is_judged_as_it_is():
    ours, theirs = np.array([1.7e308, 1.0, 2.0]), np.array([-1.7e308, 1.0, 2.0])
    report = data_only.check(planted(value=ours), planted(value=theirs), rows(3), rel_tol=1.5)
    expect(report, "FAIL", "1 of 3 rows differs")
    assert measures(report, "value")["max_rel_diff"] == 2.0
    twice = data_only.check(planted(value=ours), planted(value=theirs), rows(3), rel_tol=2.0)
    expect(twice, "PASS")
    # The stored facts tell that it is too large, not how large it is.
    assert likewise.judge(twice, rel_tol=0.5).outcome == "FAIL"
    assert likewise.judge(twice, rel_tol=1.5).outcome == "INCONCLUSIVE"
    assert likewise.judge(report, rel_tol=2.5).outcome == "INCONCLUSIVE"
    assert likewise.judge(report, rel_tol=4.0).outcome == "PASS"


def test_minus_zero_is_not_zero_under_exact_alone():
    zero, minus = with_value(0.0), with_value(-0.0)
    expect(check(zero, minus, preset="exact"), "FAIL", "value.max_ulp_diff is 1")
    expect(check(zero, minus, preset="strict"), "PASS")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_unit_of_last_place_fails_under_exact_alone(dtype):
    values = VALUES.astype(dtype)
    moved = with_value(np.nextafter(values[17], dtype(9)), of=values)
    expect(check(values, moved, preset="exact"), "FAIL", "value.max_ulp_diff is 1")
    assert check(values, moved, preset="strict").passed


def test_exact_stays_exact_when_its_own_tolerance_is_said_aloud():
    expect(check(with_value(0.0), with_value(-0.0), preset="exact", abs_tol=0.0), "FAIL", "value.max_ulp_diff is 1")


def test_relative_tolerance_near_zero_leaves_the_absolute_part_standing():
    tiny = np.full(COUNT, 1e-9)
    # |c - r| = 9.9e-5 <= 1e-4 + 1e-3 * 1e-9: close, though 99,000 times as large.
    expect(check(tiny, with_value(1e-9 + 9.9e-5, of=tiny)), "PASS")
    # 1.1e-4 is not.
    report = expect(check(tiny, with_value(1e-9 + 1.1e-4, of=tiny)), "FAIL", "value.mismatch_rate")
    # The relative error divides by at least a millionth: 1.1e-4 / 1e-6.
    assert measures(report, "value")["max_rel_diff"] == pytest.approx(110, rel=1e-3)


def test_relative_tolerance_is_measured_by_the_reference():
    reference, candidate = np.full(COUNT, 1000.0), np.full(COUNT, 2000.0)
    # 1000 <= 0.6 * |reference| is false; by the candidate it would be true.
    expect(check(reference, candidate, abs_tol=0.0, rel_tol=0.6), "FAIL", "value.mismatch_rate is 1")
    expect(check(candidate, reference, abs_tol=0.0, rel_tol=0.6), "PASS")


def test_a_difference_exactly_at_the_tolerance_passes_and_the_next_number_fails():
    zero = np.zeros(COUNT)
    expect(check(zero, with_value(0.25, of=zero), abs_tol=0.25), "PASS")
    beyond = with_value(np.nextafter(0.25, 1), of=zero)
    expect(check(zero, beyond, abs_tol=0.25), "FAIL", "value.max_abs_diff")


def test_the_mean_limit_catches_what_the_largest_difference_does_not():
    report = check(VALUES, VALUES + 0.008, preset="strict")
    expect(report, "FAIL", "value.mean_abs_diff is 0.008, above its limit of 0.005")
    assert report.mean_abs_diff == pytest.approx(0.008)


def test_an_overflow_in_the_type_of_the_candidate_is_no_large_number():
    # One side overflows in its own type: infinity, not a large number.
    half = np.full(COUNT, 60_000.0).astype(np.float16)
    with np.errstate(over="ignore"):
        overflown = (half.astype(np.float32) * 2).astype(np.float16)
    expect(check(half, overflown), "FAIL", "value.nonfinite_mismatch is 60")
