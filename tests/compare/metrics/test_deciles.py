"""Differences by the reference's value, counted again by sorting all values."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from making_pairs import FLOATS, make_pair, numeric_pairs

from likewise.compare.metrics.distribution import DECILES
from likewise.contracts.comparison import Tolerance


def groups(reference, candidate, **given):
    return DECILES.observe(make_pair(reference, candidate, **given)).details()["groups"]


@settings(max_examples=80, deadline=None)
@given(numeric_pairs(dtypes=FLOATS))
def test_every_finite_value_is_counted_once_in_the_group_that_holds_it(pair):
    found = DECILES.observe(pair).details()["groups"]
    flat = zip(np.ravel(pair.reference).tolist(), np.ravel(pair.candidate).tolist(), strict=True)
    finite = [(r, c) for r, c in flat if math.isfinite(r) and math.isfinite(c)]
    assert len(found) <= 10
    assert sum(group["values"] for group in found) == len(finite)
    tolerance, largest = pair.tolerance, 1.7976931348623157e308
    # In quarters, which are exact of numbers so large, no difference is too large for a double.
    scales = [1 if abs(c - r) < math.inf else 4 for r, c in finite]
    beyond = [
        not abs(c / scale - r / scale) <= tolerance.absolute / scale + tolerance.relative * (abs(r) / scale)
        for scale, (r, c) in zip(scales, finite, strict=True)
    ]
    assert sum(group["beyond"] for group in found) == sum(beyond)
    for group in found:
        within = [min(abs(c - r), largest) for r, c in finite if group["from"] <= r <= group["to"]]
        assert group["max_abs_diff"] <= max(within)
    if finite:
        assert found[0]["from"] == min(r for r, _ in finite)
        assert found[-1]["to"] == max(r for r, _ in finite)
        assert max(group["max_abs_diff"] for group in found) == max(min(abs(c - r), largest) for r, c in finite)
    edges = [edge for group in found for edge in (group["from"], group["to"])]
    assert edges == sorted(edges)


def test_spread_values_fall_into_tenths():
    rng = np.random.default_rng(0)
    reference = rng.normal(size=50_000)
    found = groups(reference, reference)
    assert len(found) == 10
    for group, exact in zip(found[:-1], np.quantile(reference, np.arange(0.1, 0.95, 0.1)), strict=True):
        assert group["values"] == pytest.approx(5_000, rel=0.05)
        assert group["to"] == pytest.approx(exact, rel=0.02, abs=0.01)


def test_a_planted_fault_is_where_it_was_planted():
    reference = np.linspace(-1, 1, 20_001)
    candidate = np.where(reference > 0.85, reference + 0.25, reference)
    found = groups(reference, candidate, tolerance=Tolerance(1e-4, 0))
    assert [group["beyond"] > 0 for group in found] == [False] * 9 + [True]
    assert found[-1]["beyond"] == int((reference > 0.85).sum())
    assert found[-1]["max_abs_diff"] == pytest.approx(0.25)


def test_many_equal_values_make_fewer_groups():
    assert groups([0.0, -0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]) == [
        {"from": 0.0, "to": 0.0, "values": 4, "beyond": 1, "max_abs_diff": 1.0}
    ]
    assert groups([math.nan, math.inf], [math.nan, math.inf]) == []


def test_zeros_of_several_batches_are_all_counted():
    some, others = (DECILES.observe(make_pair([0.0, 0.0], [0.0, apart])) for apart in (0.5, 0.25))
    (found,) = some.merge(others).details()["groups"]
    assert (found["values"], found["beyond"], found["max_abs_diff"]) == (4, 2, 0.5)
