"""Between which numbers probabilities lie, found again by Python's own min and max."""

import math

import numpy as np
from hypothesis import given, settings
from making_pairs import make_pair, numeric_pairs

from likewise.contracts.measuring import PairSpec
from likewise.contracts.models import Kind
from likewise.metrics.extremes import EXTENSION


def derived(array):
    finite = [float(value) for value in np.ravel(array).tolist() if math.isfinite(value)]
    return [min(finite), max(finite)] if finite else None


@settings(max_examples=80, deadline=None)
@given(pair=numeric_pairs())
def test_bounds_are_those_of_the_finite_answers(pair):
    found = EXTENSION.observe(pair).details()
    assert found == {"reference": derived(pair.reference), "candidate": derived(pair.candidate)}


def test_only_probabilities_are_looked_at():
    assert EXTENSION.applies_to(PairSpec("p", "p", Kind.PROBABILITY, "name"), numeric=True)
    assert not EXTENSION.applies_to(PairSpec("p", "p", Kind.SCORE, "name"), numeric=True)
    assert EXTENSION.empty().details() == {"reference": None, "candidate": None}


def test_what_is_not_finite_is_left_out():
    found = EXTENSION.observe(make_pair([0.2, math.nan, 0.4], [math.inf, -math.inf, math.nan], Kind.PROBABILITY))
    assert found.details() == {"reference": [0.2, 0.4], "candidate": None}
