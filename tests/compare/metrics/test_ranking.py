"""The order of rows, counted again pair by pair."""

import math
import time
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from making_pairs import make_pair, numeric_pairs

from likewise.compare.metrics.samples import RANKING, SAMPLE
from likewise.contracts.models import Kind


def loops(reference, candidate):
    shares = []
    for column in range(reference.shape[1]):
        right = pairs = 0.0
        for one, other in combinations(range(len(reference)), 2):
            r, s = float(reference[one, column]), float(reference[other, column])
            c, d = float(candidate[one, column]), float(candidate[other, column])
            if r < s or r > s:
                pairs += 1
                right += 1 if (c < d) == (r < s) and (c < d or c > d) else 0.5 if c == d else 0
        if pairs:
            shares.append(right / pairs)
    return {"rank_agreement": min(shares)} if shares else {}


@settings(max_examples=80, deadline=None)
@given(numeric_pairs())
def test_agreement_is_what_a_loop_finds(pair):
    rows, width = len(pair.reference), math.prod(pair.reference.shape[1:])
    expected = loops(pair.reference.reshape(rows, width), pair.candidate.reshape(rows, width))
    assert dict(RANKING.observe(pair).measurements()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("candidate", "share"),
    [([1, 2, 3], 1.0), ([3, 2, 1], 0.0), ([1, 1, 1], 0.5), ([1, 3, 2], 2 / 3), ([math.nan] * 3, 0)],
)
def test_known_orders(candidate, share):
    found = RANKING.observe(make_pair([0.1, 0.2, 0.3], candidate, Kind.SCORE)).measurements()
    assert found == {"rank_agreement": share}


def test_equal_references_say_nothing_about_order():
    assert RANKING.observe(make_pair([1.0, 1.0], [1.0, 2.0])).measurements() == {}


def test_the_worst_column_counts():
    summary = RANKING.observe(make_pair([[1.0, 1.0], [2.0, 2.0]], [[1.0, 2.0], [2.0, 1.0]]))
    assert summary.measurements() == {"rank_agreement": 0.0}
    assert summary.details()["rank_agreement_by_column"] == [1.0, 0.0]


def test_wide_rows_are_not_ranked():
    summary = RANKING.observe(make_pair(np.eye(65), np.eye(65)))
    assert summary.measurements() == {}
    assert "64 columns" in summary.details()["skipped"]


def test_rows_of_several_widths_are_not_ranked_nor_are_wide_ones_of_several_batches():
    two, three, wide = (RANKING.observe(make_pair(np.eye(width), np.eye(width))) for width in (2, 3, 65))
    for together in (two.merge(three), wide.merge(wide), two.merge(wide), wide.merge(two)):
        assert together.measurements() == {}
        assert "64 columns, or a varying number of them" in together.details()["skipped"]


def test_a_sample_stands_for_many_rows_and_is_quick_to_judge():
    rng = np.random.default_rng(0)
    reference = rng.random((20_000, 64))
    candidate = np.where(rng.random((20_000, 1)) < 0.5, reference, rng.random((20_000, 64)))
    summary = RANKING.observe(make_pair(reference, candidate, Kind.PROBABILITY))
    assert summary.details()["sampled_rows"] == SAMPLE
    start = time.process_time()
    found = summary.measurements()["rank_agreement"]
    assert time.process_time() - start < 1.0
    assert found == pytest.approx(0.625, abs=0.1)


def test_applies_to_numbers_people_sort_by():
    def applies(kind, *, numeric=True):
        return RANKING.applies_to(make_pair([1.0], [1.0], kind).spec, numeric=numeric)

    assert all(applies(kind) for kind in (Kind.SCORE, Kind.PROBABILITY, Kind.VALUE, Kind.DISTANCE))
    assert not applies(Kind.EMBEDDING)
    assert not applies(Kind.LABEL)
    assert not applies(Kind.VALUE, numeric=False)
