"""Between which numbers answers lie, found again by Python's own min and max."""

import math

import numpy as np
from hypothesis import given, settings
from making_pairs import make_pair, numeric_pairs

from likewise.compare.metrics.distribution import EXTREMES
from likewise.contracts.comparison import PairSpec
from likewise.contracts.models import Kind


def derived(values):
    finite = [float(value) for value in values if math.isfinite(value)]
    return [min(finite), max(finite)] if finite else None


def derived_widest(array):
    columns = np.asarray(array).reshape(len(array), -1).T.tolist() if len(array) else []
    found = [bounds for bounds in map(derived, columns) if bounds is not None]
    return max(found, key=lambda bounds: bounds[1] - bounds[0]) if found else None


@settings(max_examples=80, deadline=None)
@given(pair=numeric_pairs())
def test_bounds_are_those_of_the_finite_answers(pair):
    found = EXTREMES.observe(pair).details()
    assert found["reference"] == derived(np.ravel(pair.reference).tolist())
    assert found["candidate"] == derived(np.ravel(pair.candidate).tolist())
    assert found["widest"] == derived_widest(pair.reference)


def test_only_numbers_are_looked_at():
    assert EXTREMES.applies_to(PairSpec("p", "p", Kind.PROBABILITY, "name"), numeric=True)
    assert EXTREMES.applies_to(PairSpec("p", "p", Kind.SCORE, "name"), numeric=True)
    assert not EXTREMES.applies_to(PairSpec("p", "p", Kind.LABEL, "name"), numeric=True)
    assert EXTREMES.empty().details() == {
        "reference": None,
        "candidate": None,
        "widest": None,
        "columns": {"count": 0, "narrowest": []},
    }


def test_what_is_not_finite_is_left_out():
    found = EXTREMES.observe(make_pair([0.2, math.nan, 0.4], [math.inf, -math.inf, math.nan], Kind.PROBABILITY))
    assert found.details() == {
        "reference": [0.2, 0.4],
        "candidate": None,
        "widest": [0.2, 0.4],
        "columns": {"count": 1, "narrowest": []},
    }


def test_the_widest_column_is_told_apart_from_the_others():
    answers = [[0.9, 5.0], [0.1, 5.1]]
    assert EXTREMES.observe(make_pair(answers, answers, Kind.VALUE)).details()["widest"] == [0.1, 0.9]


def test_answers_of_other_widths_are_taken_together():
    narrow = EXTREMES.observe(make_pair([[1.0, 2.0]], [[1.0, 2.0]], Kind.VALUE))
    wide = EXTREMES.observe(make_pair([[0.0, 5.0, 3.0]], [[0.0, 5.0, 3.0]], Kind.VALUE))
    assert narrow.merge(wide) == wide.merge(narrow)
    assert narrow.merge(wide).details()["widest"] == [0.0, 5.0]


def test_columns_are_told_apart_unless_there_are_very_many():
    for width, count in ((1_024, 1_024), (1_025, 1)):
        answers = np.arange(2.0 * width).reshape(2, width)
        found = EXTREMES.observe(make_pair(answers, answers)).details()
        assert found["columns"]["count"] == count
        assert found["widest"] == ([0.0, float(width)] if count > 1 else [0.0, 2.0 * width - 1])


def test_the_narrowest_columns_are_those_that_the_candidate_does_not_follow():
    """Spreads of 10, 1, 0 and 2; the candidate is off by nothing, by 1, by 3 and by 0.5, a quarter of what moves."""
    reference = np.array([[0.0, 0.0, 5.0, 0.0], [10.0, 1.0, 5.0, 2.0]])
    candidate = reference + np.array([[0.0, 1.0, 3.0, 0.5], [0.0, 0.0, 0.0, 0.0]])
    assert EXTREMES.observe(make_pair(reference, candidate)).details()["columns"] == {
        "count": 4,
        "narrowest": [[1, 0.0, 1.0, 1.0], [3, 0.0, 2.0, 0.5], [0, 0.0, 10.0, 0.0]],
    }
    wide = np.array([[0.0, 0.0], [1.0, 3.0]])
    found = EXTREMES.observe(make_pair(wide, wide + np.array([[0.25, 0.76], [0.0, 0.0]]))).details()
    assert [entry[0] for entry in found["columns"]["narrowest"]] == [1, 0], "a quarter is followed, more is not"


def test_a_report_has_a_few_of_many_columns():
    answers = np.stack([np.zeros(40), np.arange(40.0, 0.0, -1.0)])
    found = EXTREMES.observe(make_pair(answers, answers)).details()["columns"]
    assert found["count"] == 40
    assert found["narrowest"] == [[39 - place, 0.0, place + 1.0, 0.0] for place in range(32)]


def test_answers_without_a_finite_number_lie_nowhere():
    nothing = np.array([math.nan, math.inf, -math.inf])
    assert EXTREMES.observe(make_pair(nothing, nothing)).details()["widest"] is None
