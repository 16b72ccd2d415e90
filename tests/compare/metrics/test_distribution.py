"""Quantiles of the difference, against the sorted differences."""

import math

import numpy as np
from hypothesis import given, settings
from making_pairs import make_pair, numeric_pairs

from likewise.compare.metrics.distribution import DISTRIBUTION, QUANTILES


@settings(max_examples=80, deadline=None)
@given(numeric_pairs(dtypes=("f4", "f8")))
def test_quantiles_are_at_most_a_bucket_too_large(pair):
    reference, candidate = pair.reference.astype(float).ravel(), pair.candidate.astype(float).ravel()
    finite = np.isfinite(reference) & np.isfinite(candidate)
    with np.errstate(over="ignore"):
        apart = np.sort(np.minimum(np.abs(candidate[finite] - reference[finite]), np.finfo(float).max))
    found = DISTRIBUTION.observe(pair).measurements()
    assert set(found) == (set(QUANTILES) if apart.size else set())
    for name, share in QUANTILES.items() if apart.size else ():
        exact = float(apart[math.ceil(share * apart.size) - 1])
        assert exact <= found[name] <= max(exact * (1 + 2**-7), 2.0**-1028)


def test_quantiles_of_known_differences():
    summary = DISTRIBUTION.observe(make_pair(np.zeros(1000), np.arange(1000) / 1000))
    found = summary.measurements()
    assert 0.499 <= found["p50_abs_diff"] <= 0.499 * 1.008
    assert 0.989 <= found["p99_abs_diff"] <= 0.989 * 1.008
    assert 0.998 <= found["p99_9_abs_diff"] <= 0.999
    details = summary.details()
    assert details["values"] == 1000
    assert details["histogram"][0] == [0.0, 0.0, 1]
    assert sum(count for _, _, count in details["histogram"]) == 1000
    assert details["quantile_error"] == 2**-7


def test_equal_answers_have_zero_quantiles():
    assert set(DISTRIBUTION.observe(make_pair([1.0, 2.0], [1.0, 2.0])).measurements().values()) == {0.0}
