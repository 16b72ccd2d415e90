"""Closeness, derived again element by element with Python's own arithmetic."""

import math
import struct
import sys
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from making_pairs import FLOATS, WHOLES, make_pair, numeric_pairs, text
from test_summing import nearest_double, rounded_to_53_bits

from likewise.compare import differences
from likewise.compare.differences import row_distances
from likewise.compare.metrics.closeness import EXTENSION, RELATIVE_FLOOR, rows_beyond
from likewise.compare.metrics.worst_rows import EXTENSION as WORST
from likewise.contracts.comparison import Tolerance
from likewise.contracts.models import Kind

EXACT = Tolerance(0.0, 0.0)
CODES = {2: ("<e", "<H"), 4: ("<f", "<I"), 8: ("<d", "<Q")}


def place(value, size):
    """The position of a float among all floats of its size; -0.0 comes just before 0.0."""
    code, unsigned = CODES[size]
    try:
        (bits,) = struct.unpack(unsigned, struct.pack(code, value))
    except OverflowError:
        (bits,) = struct.unpack(unsigned, struct.pack(code, math.copysign(math.inf, value)))
    sign = 1 << (size * 8 - 1)
    return -1 - (bits - sign) if bits & sign else bits


def decimal_ratio(value):
    return Decimal(value.numerator) / Decimal(value.denominator)


def derived(pair):
    """Every measurement, by loops."""
    tolerance = pair.tolerance
    whole = pair.reference.dtype.kind != "f" and pair.candidate.dtype.kind != "f"
    size = min((side.dtype.itemsize for side in (pair.reference, pair.candidate) if side.dtype.kind == "f"), default=0)
    finite, nan_both, broken, beyond_rows, outside, ulps = [], 0, 0, 0, 0, 0
    for row_r, row_c in zip(pair.reference, pair.candidate, strict=True):
        beyond = False
        for exact_r, exact_c in zip(np.ravel(row_r).tolist(), np.ravel(row_c).tolist(), strict=True):
            r, c = float(exact_r), float(exact_c)
            if math.isnan(r) and math.isnan(c):
                nan_both += 1
                beyond |= not pair.nan_equal
            elif math.isfinite(r) and math.isfinite(c):
                # A difference that is too large for a double is worked out in halves.
                scale = 1 if abs(c - r) < math.inf else 2
                d = scale * Fraction(float((Fraction(exact_c) - Fraction(exact_r)) / scale))
                ulps = max(ulps, int(abs(d)) if whole else abs(place(r, size) - place(c, size)))
                finite.append((r, c, d))
                allowed = tolerance.absolute / scale + tolerance.relative * (abs(r) / scale)
                if not float(abs(d) / scale) <= allowed:
                    outside += 1
                    beyond = True
            elif r != c:
                broken += 1
                beyond = True
        beyond_rows += beyond
    values = pair.reference.size
    if not values:
        return {}
    figures = {
        "mismatch_rate": (outside + broken) / values,
        "mismatches": outside + broken,
        "rows_beyond": beyond_rows,
        "nonfinite_mismatch": broken,
        "nan_both": nan_both,
        "nan_share": nan_both / pair.reference.size,
    }
    if not finite:
        return figures

    def squares(first, second):
        return sum((rounded_to_53_bits(Fraction(e[first]) * Fraction(e[second])) for e in finite), Fraction(0))

    rr, cc, rc, dd = squares(0, 0), squares(1, 1), squares(0, 1), squares(2, 2)
    figures |= {
        "max_abs_diff": nearest_double(min(max(abs(d) for _, _, d in finite), Fraction(sys.float_info.max))),
        "mean_abs_diff": nearest_double(sum(abs(d) for _, _, d in finite) / len(finite)),
        "mean_diff": nearest_double(sum(d for _, _, d in finite) / len(finite)),
        "max_rel_diff": max(nearest_double(abs(d) / Fraction(max(abs(r), RELATIVE_FLOOR))) for r, _, d in finite),
        "max_ulp_diff": float(ulps),
    }
    with localcontext() as context:
        context.prec = 60
        if rr and cc:
            cosine = decimal_ratio(rc) / (decimal_ratio(rr) * decimal_ratio(cc)).sqrt()
            figures["cosine"] = pytest.approx(float(cosine), rel=1e-15, abs=1e-300)
        elif rr or cc:
            figures["cosine"] = 0.0
        if dd and rr:
            figures["sqnr_db"] = pytest.approx(float(10 * decimal_ratio(rr / dd).log10()), rel=1e-14, abs=1e-14)
        else:
            figures["sqnr_db"] = -math.inf if dd else math.inf
    return figures


@settings(max_examples=150, deadline=None)
@given(numeric_pairs(most_rows=6))
def test_every_figure_is_what_a_loop_finds(pair):
    assert dict(EXTENSION.observe(pair).measurements()) == derived(pair)
    assert np.count_nonzero(rows_beyond(pair)) == derived(pair).get("rows_beyond", 0)


@settings(max_examples=60, deadline=None)
@given(numeric_pairs(most_rows=6, dtypes=("f8",)))
def test_figures_of_doubles(pair):
    assert dict(EXTENSION.observe(pair).measurements()) == derived(pair)


@settings(max_examples=60, deadline=None)
@given(numeric_pairs(most_rows=6, dtypes=("i8", "u8")))
def test_figures_of_large_whole_numbers(pair):
    assert dict(EXTENSION.observe(pair).measurements()) == derived(pair)


def figures(reference, candidate, tolerance=EXACT):
    return EXTENSION.observe(make_pair(reference, candidate, tolerance=tolerance)).measurements()


def test_unsigned_bytes_do_not_wrap():
    found = figures(np.array([0], "u1"), np.array([255], "u1"))
    assert found["max_abs_diff"] == found["mean_diff"] == found["max_ulp_diff"] == 255


def test_booleans_are_numbers():
    assert figures(np.array([True, False]), np.array([1.0, 1.0]))["mean_diff"] == 0.5


@pytest.mark.parametrize("dtypes", [("i8", "i8"), ("u8", "u8"), ("i8", "u8"), ("u8", "i8")])
def test_integers_beyond_doubles_are_compared_exactly(dtypes):
    found = figures(np.array([2**53, 2**62], dtypes[0]), np.array([2**53 + 1, 2**62], dtypes[1]))
    assert found["max_abs_diff"] == 1.0
    assert found["mismatches"] == 1


def test_the_ends_of_the_integers():
    least, most = np.array([-(2**63)]), np.array([2**63 - 1])
    assert figures(least, most)["mean_diff"] == 2.0**64
    assert figures(most, least)["mean_diff"] == -(2.0**64)
    assert figures(least, np.array([2**64 - 1], "u8"))["max_abs_diff"] == float(2**64 - 1 + 2**63)
    assert figures(least, least)["max_abs_diff"] == 0.0


def test_signed_zeros_are_one_step_apart_and_otherwise_equal():
    found = figures([0.0], [-0.0])
    assert found["max_ulp_diff"] == 1
    assert found["mismatches"] == found["max_abs_diff"] == 0


def test_steps_are_counted_in_the_coarser_type():
    one = np.array([1.0])
    assert figures(one, np.nextafter(np.float32(1), np.float32(2))[None])["max_ulp_diff"] == 1
    assert figures(one, np.array([1 + 2**-10], "f2"))["max_ulp_diff"] == 1
    assert figures(one + 2**-40, one.astype("f4"))["max_ulp_diff"] == 0
    assert figures([-1.7976931348623157e308], [1.7976931348623157e308])["max_ulp_diff"] == float(
        2 * 0x7FEFFFFFFFFFFFFF + 1
    )


def test_subnormals_count():
    found = figures([5e-324, 0.0], [1e-323, 0.0])
    assert found["max_abs_diff"] == 5e-324
    assert found["cosine"] == 1.0
    assert found["sqnr_db"] == 0.0


def test_non_finite_answers():
    nan, inf = math.nan, math.inf
    pair = make_pair([nan, inf, -inf, nan, 1.0, inf, inf, 2.0], [nan, inf, -inf, 1.0, nan, -inf, 3.0, 2.0])
    summary = EXTENSION.observe(pair)
    found = summary.measurements()
    assert found["nan_both"] == summary.details()["nan_both"] == 1
    assert found["nonfinite_mismatch"] == found["mismatches"] == found["rows_beyond"] == 4
    assert found["mismatch_rate"] == 0.5
    assert found["max_abs_diff"] == 0.0
    assert summary.details()["values"] == 8
    assert summary.details()["finite"] == 1
    assert rows_beyond(pair).tolist() == [False, False, False, True, True, True, True, False]


def test_differences_that_were_not_measured_are_absent():
    assert set(figures([math.nan], [math.nan])) == {
        "mismatch_rate",
        "mismatches",
        "rows_beyond",
        "nonfinite_mismatch",
        "nan_both",
        "nan_share",
    }
    assert figures(np.zeros((0, 3)), np.zeros((0, 3))) == {}
    assert figures(np.zeros((3, 0)), np.zeros((3, 0))) == {}


def test_directions():
    assert "cosine" not in figures([0.0, 0.0], [0.0, 0.0])
    assert figures([0.0, 0.0], [0.0, 1.0])["cosine"] == 0.0
    assert figures([1.0, 2.0], [-1.0, -2.0])["cosine"] == -1.0
    assert figures([1e200, 1e-200], [1e200, 1e-200])["cosine"] == 1.0
    assert figures([3.0, 4.0], [3.0, 4.0])["sqnr_db"] == math.inf
    assert figures([10.0], [11.0])["sqnr_db"] == 20.0
    assert figures([1.0], [1e160])["sqnr_db"] == pytest.approx(-3200.0, rel=1e-14)


def test_a_difference_too_large_for_a_double_is_told_as_the_largest_and_judged_as_it_is():
    found = figures([1.7e308, 1.0, 2.0], [-1.7e308, 1.0, 2.0], tolerance=Tolerance(0.0, 1.5))
    assert found["max_abs_diff"] == 1.7976931348623157e308
    assert found["max_rel_diff"] == 2.0
    assert found["mean_abs_diff"] == pytest.approx(1.7e308 / 3 * 2, rel=1e-15)
    assert found["mismatches"] == found["rows_beyond"] == 1
    assert figures([1.7e308], [-1.7e308], tolerance=Tolerance(0.0, 2.0))["mismatches"] == 0
    # What is allowed is too large for a double as well.
    assert figures([0.9e308], [-1.79e308], tolerance=Tolerance(0.0, 2.5))["mismatches"] == 1
    assert figures([0.9e308], [-1.79e308], tolerance=Tolerance(0.0, 3.0))["mismatches"] == 0


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_whole_numbers_beside_floats_are_subtracted_before_anything_is_rounded(dtype):
    large = np.array([2**53 + 1, -8769504594271552125, 2**63 - 1])
    floats = large.astype(dtype)
    apart = [abs(int(theirs) - int(ours)) for ours, theirs in zip(large, floats, strict=True)]
    assert figures(large, floats)["max_abs_diff"] == float(max(apart))
    assert figures(floats, large)["max_abs_diff"] == float(max(apart))
    assert figures(large, floats, tolerance=EXACT)["mismatches"] == 3


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLES, object])
def test_constant_answers_are_noticed(dtype):
    same, varied = np.array([1, 1, 1]).astype(dtype), np.array([1, 0, 1]).astype(dtype)
    if dtype is object:
        same, varied = same.astype(float), varied.astype(float)
    details = EXTENSION.observe(make_pair(varied, same)).details()
    assert (details["constant_reference"], details["constant_candidate"]) == (False, True)


def test_constant_nan_and_signed_zeros_are_constant():
    details = EXTENSION.observe(make_pair([math.nan, -math.nan], [0.0, -0.0])).details()
    assert (details["constant_reference"], details["constant_candidate"]) == (True, True)


def test_applies_to_numbers_that_are_no_labels():
    spec = make_pair([1.0], [1.0]).spec
    assert EXTENSION.applies_to(spec, numeric=True)
    assert not EXTENSION.applies_to(spec, numeric=False)
    assert not EXTENSION.applies_to(make_pair([1], [1], Kind.LABEL).spec, numeric=True)


def test_rows_of_text_are_beyond_where_they_differ():
    pair = make_pair(np.array([["a", "b"], ["a", "b"]]), np.array([["a", "b"], ["a", "c"]]))
    assert rows_beyond(pair).tolist() == [False, True]
    assert rows_beyond(make_pair(np.array(["1", "b"]), np.array([1.0, 2.0]))).tolist() == [True, True]
    ours, theirs = (text([np.array([1, np.nan]), np.array([3, last])]) for last in (4, 5))
    assert rows_beyond(make_pair(ours, theirs)).tolist() == [False, True], "cells that are arrays of their own"


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
def test_a_row_that_is_worked_on_in_pieces_is_one_row(dtype, monkeypatch):
    """Very wide rows, as of images and of vocabularies, are cut; here rows of 11, of which 4 are looked at at once."""
    monkeypatch.setattr(differences, "_BLOCK", 4)
    rng = np.random.default_rng(0)
    reference = (rng.standard_normal((5, 11)) * 100).astype(dtype)
    candidate = reference.copy()
    candidate[1, [2, 10]], candidate[3, 5] = candidate[1, [2, 10]] + 7, candidate[3, 5] + 90
    if dtype != "i8":
        reference[4, 3] = candidate[4, 3] = math.nan
        candidate[4, 9] = math.inf
    pair = make_pair(reference, candidate, nan_equal=dtype != "f8")
    assert dict(EXTENSION.observe(pair).measurements()) == derived(pair)
    apart = np.abs(candidate.astype("f8") - reference.astype("f8"))
    expected = np.where(np.isnan(apart), 0, apart).max(axis=1)
    assert row_distances(pair).tolist() == expected.tolist()
    beyond = [1, 3] if dtype == "i8" else [1, 3, 4]
    assert np.flatnonzero(rows_beyond(pair)).tolist() == beyond
    kept = [(row["number"], tuple(row["index"])) for row in WORST.observe(pair).details()["rows"]]
    with np.errstate(invalid="ignore"):
        severity = np.where(np.isnan(apart), 0, apart / (1e-4 + 1e-3 * np.abs(reference.astype("f8"))))
    places = {row: (int(severity[row].argmax()),) for row in beyond}
    assert dict(kept) == places
    assert [row for row, _ in kept] == sorted(beyond, key=lambda row: -severity[row].max())
