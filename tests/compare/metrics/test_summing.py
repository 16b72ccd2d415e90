"""Exact sums and fixed histograms, against fractions and sorted arrays."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from making_pairs import make_pair

from likewise.compare.metrics import closeness
from likewise.compare.sums import Adder, LogHistogram, above_and_below
from likewise.judge.findings import flips_above, mismatch_bounds

FINITE = st.floats(allow_nan=False, allow_infinity=False)
EXTREME = st.sampled_from([5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, -1.7976931348623157e308])
NUMBERS = st.lists(FINITE | EXTREME, max_size=40)


def added(values):
    adder = Adder()
    adder.add(values)
    return adder.total()


def products_added(left, right):
    adder = Adder()
    adder.add_products(left, right)
    return adder.total()


def nearest_double(value: Fraction) -> float:
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def rounded_to_53_bits(value: Fraction) -> Fraction:
    if not value:
        return value
    scale = Fraction(2) ** (53 - (abs(value.numerator).bit_length() - value.denominator.bit_length()))
    while abs(value * scale) >= 2**53:
        scale /= 2
    while abs(value * scale) < 2**52:
        scale *= 2
    return round(value * scale) / scale


@given(NUMBERS)
@example([1.7976931348623157e308] * 3 + [5e-324, -1.7976931348623157e308])
@example([-0.0, 0.0])
def test_a_sum_is_exact(numbers):
    exact = sum(map(Fraction, numbers), Fraction(0))
    assert Fraction(added(np.array(numbers)).units, 2**2304) == exact
    assert added(np.array(numbers)).mean(1) == nearest_double(exact)


@given(NUMBERS)
def test_positive_and_negative_parts_are_told_apart(numbers):
    values = np.array(numbers)
    above, below = above_and_below(added(values), added(np.abs(values)))
    assert Fraction(above.units, 2**2304) == sum((Fraction(x) for x in numbers if x > 0), Fraction(0))
    assert Fraction(below.units, 2**2304) == -sum((Fraction(x) for x in numbers if x < 0), Fraction(0))


@given(st.lists(st.tuples(FINITE | EXTREME, FINITE | EXTREME), max_size=20))
def test_products_are_rounded_once_and_never_overflow(pairs):
    exact = sum((rounded_to_53_bits(Fraction(x) * Fraction(y)) for x, y in pairs), Fraction(0))
    left, right = np.array([x for x, _ in pairs]), np.array([y for _, y in pairs])
    assert Fraction(products_added(left, right).units, 2**2304) == exact


@given(NUMBERS, NUMBERS)
def test_merging_sums_is_summing_everything(some, others):
    merged = added(np.array(some)).merge(added(np.array(others)))
    assert merged == added(np.array([*others, *some]))


SINGLE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(SINGLE, SINGLE), max_size=20))
def test_products_of_float32_are_not_rounded(pairs):
    adder = Adder()
    adder.add_products(np.array([x for x, _ in pairs]), np.array([y for _, y in pairs]), short=True)
    assert Fraction(adder.total().units, 2**2304) == sum((Fraction(x) * Fraction(y) for x, y in pairs), Fraction(0))


def test_a_long_sum_is_exact_where_a_plain_sum_is_not():
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal(100_003) * 10.0 ** rng.integers(-30, 30, 100_003)
    assert added(numbers).mean(1) == math.fsum(numbers)
    assert added(numbers[::-1]).units == added(numbers).units


def test_millions_of_full_mantissas_add_up_without_rounding():
    number, adder = math.nextafter(2.0, 0.0), Adder()
    block = np.full(2**14 - 1, number)
    for _ in range(1_100):
        adder.add(block)
    assert Fraction(adder.total().units, 2**2304) == Fraction(number) * (2**14 - 1) * 1_100


def test_sums_beyond_the_range_of_a_double():
    huge = np.full(20_000, 1.7e308)
    assert added(huge).mean(1) == math.inf
    assert added(-huge).mean(1) == -math.inf
    assert added(huge).mean(20_000) == 1.7e308


NOT_NEGATIVE = st.floats(min_value=0, allow_nan=False) | st.sampled_from([0.0, 5e-324, math.inf])


@given(st.lists(NOT_NEGATIVE, min_size=1, max_size=50), st.sampled_from([0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0]))
def test_a_quantile_is_never_too_small_and_at_most_a_bucket_too_large(numbers, share):
    exact = sorted(numbers)[max(1, math.ceil(share * len(numbers))) - 1]
    found = LogHistogram.of(np.array(numbers)).quantile(share)
    assert exact <= found <= max(numbers)
    assert found <= exact * (1 + 2**-7) or found - exact <= 2.0**-1028


@given(st.lists(NOT_NEGATIVE, max_size=50), NOT_NEGATIVE)
def test_counts_above_a_threshold_are_bracketed(numbers, threshold):
    histogram = LogHistogram.of(np.array(numbers))
    truth = sum(number > threshold for number in numbers)
    least, most = flips_above({"unknown": 0, "spans": histogram.spans(finest=True)}, threshold)
    assert least <= truth <= most
    least, most = flips_above({"unknown": 2, "spans": histogram.spans()}, threshold)
    assert least <= truth + 2 <= most
    assert sum(count for _, _, count in histogram.quarter_decades()) == histogram.count == len(numbers)


@given(st.lists(NOT_NEGATIVE, max_size=30), st.lists(NOT_NEGATIVE, max_size=30))
def test_merging_histograms_is_counting_everything(some, others):
    merged = LogHistogram.of(np.array(some)).merge(LogHistogram.of(np.array(others)))
    assert merged == LogHistogram.of(np.array([*others, *some])) == LogHistogram.of(np.array(others), np.array(some))
    assert pickle.loads(pickle.dumps(merged)) == merged


def test_zero_has_a_bucket_of_its_own():
    histogram = LogHistogram.of(np.array([0.0, -0.0, 5e-324]))
    assert histogram.spans(finest=True)[0] == [0.0, 0.0, 2]
    assert histogram.quantile(0.5) == 0.0
    assert flips_above({"unknown": 0, "spans": histogram.spans(finest=True)}, 0.0) == (1, 1)


def test_stored_spans_may_have_been_written_as_text():
    assert flips_above({"unknown": 0, "spans": [["1.5", "Infinity", 3]]}, 1.0) == (3, 3)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(FINITE | EXTREME, st.floats(0, 1e3)), max_size=10),
    st.sampled_from([0.0, 1e-4, 1.0]),
    st.sampled_from([0.0, 1e-3, 0.5]),
)
def test_stored_magnitudes_bracket_the_judgement_under_another_tolerance(elements, absolute, relative):
    reference = np.array([size for size, _ in elements])
    candidate = reference + np.array([apart for _, apart in elements])
    if not np.isfinite(candidate).all():
        return
    magnitudes = closeness.EXTENSION.observe(make_pair(reference, candidate)).details()["magnitudes"]
    beyond = any(abs(c - r) > absolute + relative * abs(r) for r, c in zip(reference, candidate, strict=True))
    certain, possible = mismatch_bounds(magnitudes, absolute, relative)
    assert certain <= beyond <= possible


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"exponent": None, "count": 1, "max_abs_diff": 1e-5}, (False, False)),
        ({"exponent": None, "count": 1, "max_abs_diff": 2e-4}, (True, True)),
        ({"exponent": 1, "count": 1, "max_abs_diff": 1.05e-3}, (False, False)),
        ({"exponent": 1, "count": 1, "max_abs_diff": 1.5e-3}, (False, True)),
        ({"exponent": 1, "count": 1, "max_abs_diff": 2.2e-3}, (True, True)),
        ({"exponent": 1024, "count": 1, "max_abs_diff": 1.0}, (False, False)),
        ({"exponent": -1022, "count": 1, "max_abs_diff": "Infinity"}, (True, True)),
    ],
)
def test_mismatch_bounds(entry, expected):
    assert mismatch_bounds([entry], 1e-4, 1e-3) == expected


def test_a_subnormal_reference_may_be_as_small_as_it_gets():
    entry = {"exponent": -1022, "count": 1, "max_abs_diff": 5e-324}
    assert mismatch_bounds([entry], 0.0, 1e-3) == (False, True)
