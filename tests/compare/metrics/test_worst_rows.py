"""The worst rows, found again by sorting all of them."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from making_pairs import label_pairs, make_pair, numeric_pairs, text

from likewise.compare.metrics.worst_rows import EXTENSION, KEPT, at_worst, severities
from likewise.contracts.comparison import Tolerance
from likewise.contracts.models import Kind


def severity(r, c, exact, tolerance):
    if math.isfinite(r) and math.isfinite(c):
        distance = min(abs(exact), 1.7976931348623157e308)
        if tolerance == Tolerance(0.0, 0.0):
            return distance, distance
        scale, apart = (1, distance) if abs(exact) < math.inf else (2, abs(c / 2 - r / 2))
        allowed = max(tolerance.absolute / scale + tolerance.relative * (abs(r) / scale), 2.2250738585072014e-308)
        return min(apart / allowed, 1.7976931348623157e308), distance
    return (0.0, 0.0) if r == c or (math.isnan(r) and math.isnan(c)) else (math.inf, math.inf)


@settings(max_examples=120, deadline=None)
@given(numeric_pairs(most_rows=14))
def test_the_rows_are_what_sorting_finds(pair):
    expected = []
    for position, number in enumerate(pair.batch.rows.numbers.tolist()):
        row_r, row_c = np.ravel(pair.reference[position]).tolist(), np.ravel(pair.candidate[position]).tolist()
        found = []
        for r, c in zip(row_r, row_c, strict=True):
            beyond_doubles = isinstance(r, float) and isinstance(c, float)
            exact = c - r if beyond_doubles or not math.isfinite(c - r) else float(Fraction(c) - Fraction(r))
            found.append(severity(float(r), float(c), exact, pair.tolerance))
        if found and max(found)[0] > 0:
            place = max(range(len(found)), key=lambda index: (found[index][0], -index))
            expected.append((-found[place][0], -found[place][1], number, place))
    shown = EXTENSION.observe(pair).details()["rows"]
    shape = pair.reference.shape[1:]
    assert [(-row["severity"], row["number"], tuple(row["index"])) for row in shown] == [
        (worst, number, tuple(np.unravel_index(place, shape))) for worst, _, number, place in sorted(expected)[:KEPT]
    ]


@settings(max_examples=60, deadline=None)
@given(label_pairs(most_rows=14))
def test_only_flipped_rows_are_kept(pair):
    shown = EXTENSION.observe(pair).details()["rows"]
    positions = {number: position for position, number in enumerate(pair.batch.rows.numbers.tolist())}
    severities = []
    for row in shown:
        position = positions[row["number"]]
        margin = math.inf if pair.margin is None else float(pair.margin[position])
        assert row["severity"] == (math.inf if math.isnan(margin) else margin)
        severities.append((-row["severity"], row["number"]))
    assert severities == sorted(severities)


def test_an_entry_says_all_there_is_to_say():
    pair = make_pair(
        [[0.25, 0.75], [0.5, 0.5]],
        [[0.25, 0.75], [0.75, 0.25]],
        Kind.PROBABILITY,
        tolerance=Tolerance(0.125, 0.0),
        numbers=[7, 9],
        names=["first", "second"],
        classes=("no", "yes"),
    )
    assert EXTENSION.observe(pair).details()["rows"] == [
        {
            "row": "second",
            "number": 9,
            "severity": 2.0,
            "abs_diff": 0.25,
            "index": [0],
            "label": "no",
            "reference": [0.5, 0.5],
            "candidate": [0.75, 0.25],
            "inputs": {"x": 4.5, "city": "c9"},
        }
    ]


def test_a_large_row_is_described():
    reference = np.zeros((1, 5, 5))
    candidate = reference.copy()
    candidate[0, 3, 2] = 1.0
    (row,) = EXTENSION.observe(make_pair(reference, candidate)).details()["rows"]
    assert row["index"] == [3, 2]
    assert row["candidate"] == {"shape": [5, 5], "head": [0.0] * 16, "worst": 1.0}


@pytest.mark.parametrize(("reference", "candidate"), [(math.nan, 1.0), (1.0, math.nan), (math.inf, -math.inf)])
def test_a_non_finite_answer_is_the_worst(reference, candidate):
    rows = EXTENSION.observe(make_pair([0.0, reference], [1e308, candidate])).details()["rows"]
    assert [row["number"] for row in rows] == [1, 0]
    assert rows[0]["severity"] == math.inf
    apart = rows[0]["abs_diff"]
    assert math.isnan(apart) if math.isnan(reference) or math.isnan(candidate) else apart == math.inf


def test_only_rows_that_may_be_kept_are_read():
    rng = np.random.default_rng(0)
    pair = make_pair(np.zeros(5000), rng.random(5000))
    read = []
    inputs = pair.batch.inputs
    original = type(inputs).row
    try:
        type(inputs).row = lambda self, position: read.append(position) or original(self, position)
        EXTENSION.observe(pair)
    finally:
        type(inputs).row = original
    assert len(read) == KEPT


def test_ties_break_by_row_number():
    rows = EXTENSION.observe(make_pair(np.zeros(30), np.ones(30), numbers=np.arange(30)[::-1])).details()["rows"]
    assert [row["number"] for row in rows] == list(range(KEPT))


def test_labels_show_both_answers():
    (row,) = EXTENSION.observe(make_pair(text(["a", "b"]), text(["a", "c"]), Kind.LABEL, margin=[0.1, 0.0])).details()[
        "rows"
    ]
    assert (row["reference"], row["candidate"], row["severity"], row["index"]) == ("b", "c", 0.0, [])
    assert "abs_diff" not in row


def test_the_worst_element_of_some_rows_is_the_one_furthest_beyond_what_is_allowed():
    """A tenth of the reference is allowed: 9 is nine times that of 10, and 1.5 fifteen times that of 1."""
    pair = make_pair(
        [[10.0, 1.0], [8.0, 8.0], [4.0, 2.0]], [[1.0, 2.5], [8.0, 8.0], [4.0, 1.0]], tolerance=Tolerance(0.0, 0.1)
    )
    assert at_worst(pair, np.array([2, 0])) == ([1, 1], [1.0, 1.5])
    assert severities(pair).tolist() == pytest.approx([15.0, 0.0, 5.0])


def test_a_column_that_has_no_name_is_told_without():
    (row,) = EXTENSION.observe(make_pair([[0.5, 0.5]], [[0.5, 0.75]], Kind.PROBABILITY, classes=("no",))).details()[
        "rows"
    ]
    assert row["index"] == [1]
    assert "label" not in row


def test_of_equal_elements_of_a_very_wide_row_the_first_is_told():
    reference = np.zeros((2, 40_000))
    candidate = reference.copy()
    candidate[0, [5, 39_999]] = 1.0
    candidate[1, [7, 39_999]] = 1.0, 2.0
    rows = EXTENSION.observe(make_pair(reference, candidate)).details()["rows"]
    assert [(row["number"], row["index"]) for row in rows] == [(1, [39_999]), (0, [5])]


def test_ten_rows_are_kept_of_more():
    found = EXTENSION.observe(make_pair(np.zeros(12), np.arange(1.0, 13.0)))
    assert len(found.details()["rows"]) == 10
