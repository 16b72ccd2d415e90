"""Small answers whose figures are worked out by hand: both sides of every line that a metric draws."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from making_pairs import make_pair, text

from likewise.compare import differences as differing
from likewise.compare.differences import (
    Constancy,
    PairMetric,
    asked_of,
    blocks_of,
    differences,
    integer_rounding,
    is_numeric,
    row_any,
    row_distances,
    row_max,
    rows_of,
    same_labels,
)
from likewise.compare.metrics import agreement, closeness, distribution, samples, worst_rows
from likewise.compare.metrics.agreement import AGREEMENT, TOP_CLASS, Tally
from likewise.compare.metrics.distribution import DECILES, DISTRIBUTION, EXTREMES, Deciles
from likewise.compare.metrics.samples import RANKING, SCATTER, Ranking
from likewise.compare.sums import (
    BUCKET_ERROR,
    SCALE,
    Adder,
    ExactSum,
    LogHistogram,
    Window,
    buckets_of,
    merged,
    ratio,
    unpacked,
    upper_edge,
)
from likewise.contracts.comparison import Form, Pair, PairSpec, Tolerance
from likewise.contracts.models import Kind

EXACTLY = Tolerance(0.0, 0.0)
LARGEST = sys.float_info.max


# Sums


def test_a_quotient_of_whole_numbers():
    assert ratio(3, 4) == 0.75
    assert ratio(10**400, 1) == ratio(-(10**400), -1) == math.inf
    assert ratio(-(10**400), 1) == ratio(10**400, -1) == -math.inf


def test_a_unit_of_a_sum():
    assert SCALE == 2304
    one = Adder()
    one.add(np.array([1.0]))
    assert one.total() == ExactSum(2**2304)
    least = Adder()
    least.add_products(np.array([5e-324]), np.array([5e-324]))
    assert least.total() == ExactSum(2 ** (2304 - 2 * 1074))
    assert ExactSum(5).minus(ExactSum(3)) == ExactSum(2)
    assert ExactSum(5).merge(ExactSum(3)) == ExactSum(8)


@pytest.mark.parametrize("size", [2.0**-961, 2.0**-960, 2.0**-480, 1.0, 2.0**480, 2.0**600, 2.0**1000])
def test_products_are_exact_at_any_size(size):
    adder = Adder()
    adder.add_products(np.array([3 * size, 0.0, 1.0]), np.array([5 * size, size, 7.0]))
    assert adder.total() == ExactSum(15 * 2 ** (2 * round(math.log2(size)) + SCALE) + 7 * 2**SCALE)


def test_products_of_short_numbers_are_added_as_they_are():
    adder = Adder()
    adder.add_products(np.array([3.0, 0.0]), np.array([5.0, 1.0]), short=True)
    adder.add_products(np.array([]), np.array([]))
    assert adder.total() == ExactSum(15 * 2**SCALE)


def test_two_summaries_become_one_field_by_field():
    one = agreement.Forms(frozenset({Form("a", 1)}), frozenset(), True)
    other = agreement.Forms(frozenset({Form("b", 1)}), frozenset({Form("c", 1)}), False)
    found = merged(one, other, column_for_vector=False)
    assert found == agreement.Forms(frozenset({Form("a", 1), Form("b", 1)}), frozenset({Form("c", 1)}), False)
    assert merged(ExactSum(1), ExactSum(2)) == ExactSum(3)


def test_bytes_are_arrays_again():
    whole, fractions = unpacked("qd", np.array([1, 2]).tobytes(), np.array([0.5]).tobytes())
    assert (whole.dtype, whole.tolist(), fractions.dtype, fractions.tolist()) == (np.int64, [1, 2], np.float64, [0.5])


# Histograms


def test_buckets_are_a_128th_of_a_power_of_two_wide():
    """From 1 to 2 there are 128 of them, and each holds its upper edge."""
    assert BUCKET_ERROR == 1 / 128
    first = int(buckets_of(np.array([1.0]))[0])
    assert upper_edge(first) == 1.0
    assert upper_edge(first + 1) == 1 + 1 / 128
    assert upper_edge(first + 128) == 2.0
    assert buckets_of(np.array([1.0 + 1e-15, 1 + 1 / 128, 1 + 1.01 / 128, 0.0, 5e-324])).tolist() == [
        *(first + 1, first + 1, first + 2),
        *(0, 1),
    ]


def test_spans_are_a_sixteenth_of_a_power_of_two_wide():
    histogram = LogHistogram.of(np.array([1.0, 1.001, 1.06, 1.07, 0.0]))
    assert histogram.spans() == [[0.0, 0.0, 1], [1 - 1 / 32, 1.0, 1], [1.0, 1 + 1 / 16, 2], [1 + 1 / 16, 1 + 1 / 8, 1]]
    assert histogram.spans(finest=True)[:2] == [[0.0, 0.0, 1], [1 - 1 / 256, 1.0, 1]]
    assert LogHistogram().spans() == []
    assert histogram.count == 5


def test_a_quarter_of_a_decade():
    found = LogHistogram.of(np.array([0.0, 1.0, 9.9, 10.0, 11.0, LARGEST])).quarter_decades()
    edges = [10**-0.25, 1.0, 10**0.75, 10.0, 10**1.25]
    assert found[0] == [0.0, 0.0, 1]
    assert found[1] == [pytest.approx(edges[0]), 1.0, 1]
    assert [amount for _, _, amount in found[2:-1]] == [2, 1]
    assert [found[2][0], found[2][1]] == pytest.approx([edges[2], edges[3]])
    assert [found[3][0], found[3][1]] == pytest.approx([edges[3], edges[4]])
    assert found[-1][1:] == [math.inf, 1]


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.25, 1.0), (0.26, 2.0), (0.5, 2.0), (0.75, 4.0), (1.0, 7.0)]
)
def test_a_quantile_of_four(share, expected):
    histogram = LogHistogram.of(np.array([4.0, 1.0]), np.array([7.0, 2.0]))
    assert histogram.quantile(share) == expected
    assert histogram.maximum == 7.0


def test_a_window_is_as_wide_as_it_needs_to_be():
    first = int(buckets_of(np.array([1.0]))[0])
    found = Window.of([np.array([1.0, 0.0]), np.array([2.0])])
    assert (found.lowest, found.width, found.largest) == (first, 130, 2.0)
    assert [places.tolist() for places in found.places] == [[1, 0], [129]]
    assert found.buckets(np.array([0, 1, 129])).tolist() == [0, first, first + 128]
    zeros = Window.of([np.zeros(2)])
    assert (zeros.lowest, zeros.width, zeros.largest, [places.tolist() for places in zeros.places]) == (
        *(0, 2, 0.0),
        [[1, 1]],
    )
    assert LogHistogram.of(np.zeros(2)).spans(finest=True) == [[0.0, 0.0, 2]]
    assert LogHistogram.of() == LogHistogram()
    assert LogHistogram.of(np.array([])) == LogHistogram()


def test_histograms_add_up():
    one, other = LogHistogram.of(np.array([1.0, 2.0])), LogHistogram.of(np.array([2.0, 4.0]))
    assert one.merge(other) == LogHistogram.of(np.array([1.0, 2.0, 2.0, 4.0]))
    assert one.merge(other).maximum == other.merge(one).maximum == 4.0
    assert one.merge(LogHistogram()) is one
    assert LogHistogram().merge(one) is one


# Differences


def test_rows_are_lines():
    cube = np.arange(24).reshape(2, 3, 4)
    assert rows_of(cube).shape == (2, 12)
    assert rows_of(np.arange(3)).shape == (3, 1)
    assert rows_of(np.zeros((0, 3, 4))).shape == (0, 12)
    assert row_any(np.zeros((3, 0), bool)).tolist() == [False] * 3
    for width in (1, 15, 16, 17, 18):
        values = np.arange(3 * width).reshape(3, width)
        assert row_max(values).tolist() == [width - 1, 2 * width - 1, 3 * width - 1]


@pytest.mark.parametrize(
    ("dtype", "numeric"),
    [("?", True), ("i1", True), ("u8", True), ("f2", True), ("c8", False), ("O", False), ("U1", False)],
)
def test_what_is_a_number(dtype, numeric):
    assert is_numeric(np.zeros(1, dtype)) is numeric


@pytest.mark.parametrize(
    ("ours", "theirs", "rounding"),
    [
        ("f4", "f8", None),
        ("i4", "f8", 0.0),
        ("f8", "i4", 0.0),
        ("i4", "u1", 0.0),
        ("i4", "U1", None),
        ("O", "i4", None),
    ],
)
def test_whole_numbers_are_not_rounded(ours, theirs, rounding):
    reference, candidate = np.zeros(1, ours), np.zeros(1, theirs)
    assert integer_rounding(reference, candidate) == rounding
    tight, plain = Tolerance(0.5, 0.25, exact_integers=True), Tolerance(0.5, 0.25)
    assert asked_of(plain, reference, candidate) is plain
    asked = asked_of(tight, reference, candidate)
    assert (asked.absolute, asked.relative) == ((0.5, 0.25) if rounding is None else (0.0, 0.0))


def test_differences_of_whole_numbers_that_no_double_holds():
    for dtype in (np.int64, np.uint64):
        reference, candidate = np.array([2**53, 2**53 + 1, 2**62, 5], dtype), np.array([2**53 + 1, 2**53, 7, 4], dtype)
        (found,) = differences(reference, candidate)
        assert found.difference.tolist() == [1.0, -1.0, float(7 - 2**62), -1.0]
    mixed = differences(np.array([2**53 + 1], np.int64), np.array([2**53], np.uint64))
    assert next(mixed).difference.tolist() == [-1.0]
    beside = differences(np.array([2**53 + 1], np.int64), np.array([2.0**53]))
    assert next(beside).difference.tolist() == [-1.0]


def test_blocks_of_rows_and_pieces_of_a_row(monkeypatch):
    monkeypatch.setattr(differing, "_BLOCK", 4)

    def cut(*shape):
        return [(found.rows, found.width, found.start) for found in differences(np.zeros(shape), np.zeros(shape))]

    assert cut(5) == [(4, 1, 0), (1, 1, 0)]
    assert cut(5, 2) == [(2, 2, 0), (2, 2, 0), (1, 2, 0)]
    assert cut(2, 7) == [(1, 7, 0), (1, 7, 0)]
    assert cut(2, 8) == [(1, 4, 0), (1, 4, 4)] * 2
    assert cut(1, 9) == [(1, 4, 0), (1, 4, 4), (1, 1, 8)]
    assert cut(3, 0) == [(3, 0, 0)]
    wide = make_pair(np.zeros((2, 9)), np.array([[0, 0, 3, 0, 0, 0, 0, 2, 0], [0, 0, 0, 0, 0, 0, 0, 0, 1.0]]))
    assert row_distances(wide).tolist() == [3.0, 1.0]
    assert row_distances(make_pair(np.zeros((3, 0)), np.zeros((3, 0)))).tolist() == [0.0] * 3


def test_a_block_is_worked_out_once_unless_there_is_much_of_it(monkeypatch):
    pair = make_pair(np.zeros(4), np.ones(4))
    assert blocks_of(pair) is blocks_of(pair) is pair.walked
    assert len(pair.walked) == 1
    for extra in (0, 1):
        many = make_pair(np.zeros((1, 2**19 + extra)), np.zeros((1, 2**19 + extra)))
        assert isinstance(blocks_of(many), list) is not bool(extra), "half a million elements are kept"
    monkeypatch.setattr(differing, "SHARED", 4)
    assert blocks_of(make_pair(np.zeros(4), np.ones(4))).__class__ is list
    monkeypatch.setattr(differing, "SHARED", 3)
    large = make_pair(np.zeros(4), np.ones(4))
    assert len(list(blocks_of(large))) == 1
    assert not large.walked


def one(reference, candidate, tolerance=EXACTLY):
    (found,) = differences(np.asarray(reference), np.asarray(candidate), tolerance)
    return found


def test_what_is_finite_broken_and_nan():
    found = one([1.0, np.nan, np.inf, np.inf, -np.inf, 1.0], [3.0, np.nan, np.inf, -np.inf, 1.0, np.nan])
    assert found.finite.tolist() == [True] + [False] * 5
    assert found.nan.tolist() == [False, True] + [False] * 4
    assert found.broken.tolist() == [False, False, False, True, True, True]
    assert (found.nan_both, found.values, found.difference.tolist()) == (1, 6, [2.0])
    assert found.by_row(found.distances, broken=9.0, nan=7.0).ravel().tolist() == [2.0, 7.0, 0.0, 9.0, 9.0, 9.0]
    assert found.by_row(found.distances, broken=9.0).ravel().tolist() == [2.0, 0.0, 0.0, 9.0, 9.0, 9.0]
    plain = one([1.0, 2.0], [3.0, 2.0])
    assert (plain.finite, plain.broken, plain.nan, plain.nan_both) == (None, None, None, 0)


def test_what_a_tolerance_allows():
    found = one([10.0, -10.0, 0.0], [11.5, -11.75, 0.5], Tolerance(0.5, 0.1))
    assert found.allowed.tolist() == [1.5, 1.5, 0.5]
    assert found.beyond.tolist() == [False, True, False]
    assert found.over_allowed(0.1).tolist() == [1.0, 1.75 / 1.5, 1.0]
    assert found.over_allowed(3.0).tolist() == [0.5, 1.75 / 3, 0.5 / 3]
    assert found.over_sizes(0.25).tolist() == [0.15, 0.175, 2.0]
    assert found.parts()[0][0].tolist() == [1.5, -1.75, 0.5]


def test_differences_beyond_the_largest_double_are_taken_in_halves():
    found = one([-LARGEST, 1.0, LARGEST], [LARGEST, 2.0, LARGEST], Tolerance(0.0, 1.0))
    assert found.difference.tolist() == [LARGEST, 1.0, 0.0]
    assert found.overflown.tolist() == [True, False, False]
    assert found.halves.tolist() == [LARGEST]
    assert [(part.tolist(), times) for part, times in found.parts()] == [([1.0, 0.0], 1), ([LARGEST], 2)]
    assert found.beyond.tolist() == [True, False, False], "twice the reference is not allowed"
    assert found.over_sizes(1e-6).tolist() == [2.0, 1.0, 0.0]
    assert found.over_allowed(1e-6).tolist() == [2.0, 1.0, 0.0]
    wide = one([-LARGEST], [LARGEST], Tolerance(0.0, 2.0))
    assert wide.beyond.tolist() == [False]
    half = one([-LARGEST], [LARGEST], Tolerance(LARGEST, 0.5))
    assert half.beyond.tolist() == [True]
    assert half.over_allowed(1e-6).tolist() == pytest.approx([4 / 3])


@pytest.mark.parametrize(
    ("ours", "theirs", "steps"),
    [
        (np.float64([1.0]), np.float64([1.0 + 2**-52]), 1),
        (np.float32([1.0]), np.float64([1.0 + 2**-22]), 2),
        (np.float16([1.0]), np.float32([1.0 + 2**-9]), 2),
        (np.float32([0.0]), np.float32([-0.0]), 1),
        (np.float32([-1e-45]), np.float32([1e-45]), 3),
        (np.int32([3]), np.int32([7]), 4),
        (np.int32([3]), np.float32([3 + 2**-22]), 1),
    ],
)
def test_steps_between_two_numbers(ours, theirs, steps):
    assert one(ours, theirs).largest_ulp() == steps
    assert one(theirs, ours).largest_ulp() == steps


@pytest.mark.parametrize(
    ("ours", "theirs", "short"),
    [("f4", "f4", True), ("f2", "f4", True), ("f8", "f4", False), ("f4", "f8", False), ("i2", "f4", False)],
)
def test_what_is_short(ours, theirs, short):
    assert one(np.ones(2, ours), np.zeros(2, theirs)).short is short


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (np.array([1, 2]), np.array([1.0, 2.5]), [True, False]),
        (np.array([1.0, np.nan]), np.array([np.nan, np.nan]), [False, True]),
        (np.array([2**53 + 1]), np.array([2.0**53]), [False]),
        (np.array([2**53]), np.array([2.0**53]), [True]),
        (np.array(["a", "b"]), np.array(["a", "c"]), [True, False]),
        (text(["a", None, 1]), text(["a", None, True]), [True, True, True]),
        (text([np.nan, np.nan, "a"]), text([np.nan, 1.0, np.nan]), [True, False, False]),
        (text([np.array([1.0, np.nan]), np.array([1])]), text([np.array([1.0, np.nan]), np.array([2])]), [True, False]),
        (text([np.array(["a"]), np.array([1.0])]), text([np.array(["a"]), np.array(["a"])]), [True, False]),
    ],
)
def test_the_same_label(ours, theirs, same):
    assert same_labels(ours, theirs).tolist() == same


def test_one_answer_to_everything():
    assert Constancy.of(np.zeros(0)) == Constancy()
    one_row = Constancy.of(np.ones((1, 2)))
    assert one_row.constant
    assert one_row == Constancy.of(np.ones((3, 2)))
    assert len(one_row.answer) == 32
    assert Constancy.of(np.array([1.0, 2.0])) == Constancy.of(np.array([1.0, 2.0, 1.0])) == Constancy(varied=True)
    assert one_row.merge(Constancy()) == Constancy().merge(one_row) == one_row.merge(one_row) == one_row
    assert one_row.merge(Constancy.of(np.zeros((1, 2)))) == Constancy(varied=True)
    assert one_row.merge(Constancy(varied=True)) == Constancy(varied=True).merge(one_row) == Constancy(varied=True)
    assert Constancy(varied=True).merge(Constancy()) == Constancy(varied=True)
    assert not Constancy(varied=True).constant
    assert Constancy.of(np.array([-0.0])) == Constancy.of(np.array([0.0]))
    assert Constancy.of(np.array([0.0])) != Constancy.of(np.array([1e-20])), "to the last digit"
    assert Constancy.of(text([1, 1.0, True])).constant
    assert Constancy.of(text([1.5])) != Constancy.of(text([1]))
    assert Constancy.of(text([math.inf])).constant


def test_what_a_metric_applies_to():
    usual = PairMetric("it", ExactSum, lambda pair: ExactSum())
    text_too = PairMetric("it", ExactSum, lambda pair: ExactSum(), frozenset({Kind.LABEL}), numbers=False)
    value, label = PairSpec("y", "y", Kind.VALUE, "name"), PairSpec("y", "y", Kind.LABEL, "name")
    assert usual.applies_to(value, numeric=True)
    assert not usual.applies_to(value, numeric=False)
    assert not usual.applies_to(label, numeric=True)
    assert text_too.applies_to(label, numeric=False)
    assert text_too.applies_to(label, numeric=True)
    assert not text_too.applies_to(value, numeric=True)


# Samples


def test_up_to_sixty_four_columns_are_ranked():
    for width, columns in ((64, 64), (65, -1)):
        found = RANKING.observe(make_pair(np.zeros((2, width)), np.zeros((2, width))))
        assert (found.seen, found.columns) == (2, columns)
    assert found.details() == {
        "sampled_rows": 0,
        "skipped": "rows have more than 64 columns, or a varying number of them",
    }
    assert RANKING.observe(make_pair(np.zeros((0, 2)), np.zeros((0, 2)))) == Ranking()
    both = RANKING.observe(make_pair(np.zeros((2, 2)), np.zeros((2, 2))))
    three = RANKING.observe(make_pair(np.zeros((3, 3)), np.zeros((3, 3))))
    assert both.merge(three) == three.merge(both) == Ranking(5, -1)
    assert found.merge(found) == Ranking(4, -1)
    assert both.merge(Ranking()) is Ranking().merge(both) is both


@pytest.mark.parametrize(
    ("reference", "candidate", "share"),
    [
        ([1, 2, 3], [1, 2, 3], 1.0),
        ([1, 2, 3], [3, 2, 1], 0.0),
        ([1, 2, 3], [1, 1, 1], 0.5),
        ([1, 2, 3], [1, 3, 2], 2 / 3),
        ([1, 1, 2], [5, 4, 6], 1.0),
        ([1, 1, 2], [5, 7, 6], 0.5),
        ([1, 2, np.nan], [1, 2, 0], 1.0),
        ([1, 2, 3], [1, np.nan, 3], 1 / 3),
        ([1, 1, 1], [1, 2, 3], None),
        ([1], [1], None),
    ],
)
def test_pairs_in_the_order_of_the_reference(reference, candidate, share):
    pair = make_pair(np.array(reference, float)[:, None], np.array(candidate, float)[:, None])
    found = RANKING.observe(pair)
    assert found.details() == {"sampled_rows": len(reference), "rank_agreement_by_column": [share]}
    assert found.measurements() == ({} if share is None else {"rank_agreement": share})


def test_a_sample_is_512_rows_and_a_thousand_points():
    many = make_pair(np.arange(1_100.0), np.arange(1_100.0))
    assert RANKING.observe(many).details()["sampled_rows"] == 512
    assert len(SCATTER.observe(many).details()["row"]) == 1_000
    assert SCATTER.observe(many).details()["rows_seen"] == 1_100
    assert SCATTER.observe(many).details()["element"] == []
    some = make_pair(np.arange(600.0), np.arange(600.0), numbers=np.arange(600))
    others = make_pair(np.arange(600.0), np.arange(600.0), numbers=np.arange(600, 1200))
    together = SCATTER.observe(some).merge(SCATTER.observe(others))
    assert (together.details()["rows_seen"], len(together.details()["row"])) == (1_200, 1_000)
    ranked = RANKING.observe(some).merge(RANKING.observe(others))
    assert (ranked.seen, ranked.details()["sampled_rows"]) == (1_200, 512)


def test_points_have_names_of_bounded_length():
    names = np.array(["a" * 120, "b" * 121, "c"], dtype=object)
    pair = make_pair(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0]), names=names)
    found = SCATTER.observe(pair)
    assert sorted(found.details()["row"]) == ["a" * 120, "b" * 120, "c"]
    places = {name: place for place, name in enumerate(found.details()["row"])}
    assert (found.details()["reference"][places["c"]], found.details()["candidate"][places["c"]]) == (3.0, 4.0)
    unnamed = SCATTER.observe(make_pair(np.array([5.0]), np.array([6.0]), numbers=[9]))
    for together in (found.merge(unnamed), unnamed.merge(found)):
        places = {name: place for place, name in enumerate(together.details()["row"])}
        assert sorted(map(str, places)) == ["9", "a" * 120, "b" * 120, "c"]
        assert together.details()["reference"][places[9]] == 5.0
        assert together.details()["candidate"][places["c"]] == 4.0
    assert SCATTER.observe(make_pair(np.zeros((2, 0)), np.zeros((2, 0)))) == samples.Scatter()
    assert SCATTER.observe(make_pair(np.zeros((0, 2)), np.zeros((0, 2)))) == samples.Scatter()
    assert found.merge(samples.Scatter()) is samples.Scatter().merge(found) is found


# The worst rows


def shown(pair):
    return worst_rows.EXTENSION.observe(pair).details()["rows"]


def test_up_to_sixteen_answers_of_a_row_are_shown():
    for width, whole in ((16, True), (17, False)):
        (row,) = shown(make_pair(np.zeros((1, width)), np.ones((1, width))))
        assert row["reference"] == ([0.0] * 16 if whole else {"shape": [17], "head": [0.0] * 16, "worst": 0.0})


@pytest.mark.parametrize("count", [9, 10, 11, 12])
def test_up_to_ten_rows_are_kept(count):
    rows = shown(make_pair(np.zeros(count), np.arange(1.0, count + 1)))
    assert [row["number"] for row in rows] == list(range(count - 1, max(count - 11, -1), -1))
    flips = shown(make_pair(np.zeros(count, int), np.ones(count, int), Kind.LABEL, margin=np.arange(count)))
    assert [row["number"] for row in flips] == list(range(count - 1, max(count - 11, -1), -1))
    assert [row["severity"] for row in flips] == [float(row["number"]) for row in flips]


def test_rows_that_agree_are_not_shown():
    assert shown(make_pair(np.zeros(12), np.zeros(12))) == []
    assert shown(make_pair(np.zeros(3), np.zeros(3))) == []
    assert [row["number"] for row in shown(make_pair(np.zeros(12), np.r_[np.zeros(11), 1.0]))] == [11]
    assert shown(make_pair(np.zeros((2, 0)), np.zeros((2, 0)))) == []


def test_as_severe_rows_stand_by_how_far_they_are_apart_and_then_by_their_numbers():
    """Under a tenth of the reference, 1 beside 10 is as severe as 2 beside 20."""
    pair = make_pair([10.0, 20.0, 10.0], [11.0, 22.0, 11.0], tolerance=Tolerance(0.0, 0.1), numbers=[7, 9, 3])
    assert [(row["number"], row["severity"], row["abs_diff"]) for row in shown(pair)] == [
        (9, 1.0, 2.0),
        (3, 1.0, 1.0),
        (7, 1.0, 1.0),
    ]
    many = make_pair(np.zeros(15), np.ones(15), tolerance=EXACTLY, numbers=np.arange(15)[::-1])
    merged_rows = worst_rows.EXTENSION.observe(many).merge(
        worst_rows.EXTENSION.observe(make_pair([0.0], [1.0], tolerance=EXACTLY, numbers=[99]))
    )
    assert [row.number for row in merged_rows.rows] == list(range(10))
    labels = make_pair(np.zeros(15, int), np.ones(15, int), Kind.LABEL, numbers=np.arange(15)[::-1])
    assert [row["number"] for row in shown(labels)] == list(range(10))
    assert shown(labels)[0]["severity"] == math.inf


def test_severity_comes_before_distance_in_several_batches_too():
    tenth = Tolerance(0.0, 0.1)
    parts = [
        worst_rows.EXTENSION.observe(make_pair([reference], [candidate], tolerance=tenth, numbers=[number]))
        for reference, candidate, number in ((10.0, 1.0, 1), (1.0, 2.5, 2), (20.0, 2.0, 3))
    ]
    for together in (parts[0].merge(parts[1]).merge(parts[2]), parts[2].merge(parts[0]).merge(parts[1])):
        assert [(row.number, row.severity, row.distance) for row in together.rows] == [
            (2, 15.0, 1.5),
            (3, 9.0, 18.0),
            (1, 9.0, 9.0),
        ]


def test_what_is_allowed_nowhere_is_as_severe_as_a_number_can_be():
    (row,) = shown(make_pair([0.0], [8.0], tolerance=Tolerance(0.0, 0.1)))
    assert row["severity"] == LARGEST
    (row,) = shown(make_pair([0.0], [sys.float_info.min], tolerance=Tolerance(0.0, 0.1)))
    assert row["severity"] == 1.0
    (row,) = shown(make_pair([0.0], [0.5], tolerance=EXACTLY))
    assert row["severity"] == 0.5


def test_a_column_has_the_name_of_its_class():
    scores = make_pair([[0.5, 0.5]], [[0.5, 0.75]], Kind.PROBABILITY, classes=("no", "yes"))
    assert shown(scores)[0]["label"] == "yes"
    steps = make_pair(np.zeros((1, 2, 2)), np.ones((1, 2, 2)), Kind.PROBABILITY, classes=("no", "yes"))
    assert "label" not in shown(steps)[0]
    (row,) = shown(make_pair(np.array([[1, 2]]), np.array([[1, 3]]), Kind.LABEL, margin=[math.nan]))
    assert (row["index"], row["severity"], row["reference"], row["candidate"]) == ([1], math.inf, [1, 2], [1, 3])


# How answers are spread


def test_quantiles_are_of_the_shares_in_their_names():
    pair = make_pair(np.zeros(1_000), np.arange(1_000.0))
    found = DISTRIBUTION.observe(pair)
    edge = {"p50_abs_diff": 499, "p90_abs_diff": 899, "p95_abs_diff": 949, "p99_abs_diff": 989, "p99_9_abs_diff": 998}
    assert found.measurements() == {
        name: min(upper_edge(int(buckets_of(np.array([float(v)]))[0])), 999.0) for name, v in edge.items()
    }
    assert found.details()["values"] == 1_000
    assert found.details()["quantile_error"] == 1 / 128
    assert distribution.Distribution().measurements() == {}


def test_ten_groups_of_as_many_values():
    reference = np.arange(-10.0, 10.0)
    candidate = reference + np.where(reference == 9, 1.0, 0.0)
    groups = DECILES.observe(make_pair(reference, candidate, tolerance=Tolerance(0.5, 0.0))).details()["groups"]
    assert [group["values"] for group in groups] == [2] * 10
    assert [group["beyond"] for group in groups] == [0] * 9 + [1]
    assert [group["max_abs_diff"] for group in groups] == [0.0] * 9 + [1.0]
    assert (groups[0]["from"], groups[-1]["to"]) == (-10.0, 9.0)
    assert Deciles().details() == {"groups": [], "edge_error": 1 / 128}
    (only,) = DECILES.observe(make_pair([3.0, 3.0], [3.0, 4.0])).details()["groups"]
    assert only == {"from": 3.0, "to": 3.0, "values": 2, "beyond": 1, "max_abs_diff": 1.0}
    (negative,) = DECILES.observe(make_pair([-3.0], [-3.0])).details()["groups"]
    assert (negative["from"], negative["to"]) == (-3.0, -3.0)
    nothing = DECILES.observe(make_pair([np.nan], [np.nan]))
    assert nothing == Deciles()
    few = DECILES.observe(make_pair([3.0], [3.0]))
    assert few.merge(nothing) is nothing.merge(few) is few


def test_groups_of_several_batches_are_those_of_all_rows():
    reference, candidate = np.array([1.0, -2.0, 0.0, 8.0]), np.array([1.5, -2.0, 0.25, 8.0])
    parts = [DECILES.observe(make_pair(reference[cut], candidate[cut])) for cut in (slice(0, 2), slice(2, 4))]
    whole = DECILES.observe(make_pair(reference, candidate))
    assert parts[0].merge(parts[1]) == parts[1].merge(parts[0]) == whole
    again = whole.merge(whole).details()["groups"]
    assert [group["values"] for group in again] == [2, 2, 2, 2]
    assert [group["max_abs_diff"] for group in again] == [0.0, 0.25, 0.5, 0.0]


@pytest.mark.parametrize(("width", "count"), [(1_024, 1_024), (1_025, 1)])
def test_so_many_columns_are_told_apart(width, count):
    rows = np.zeros((2, width))
    rows[1] = 1.0
    assert EXTREMES.observe(make_pair(rows, rows)).details()["columns"]["count"] == count


def test_columns_that_are_told():
    """Of the columns that the candidate follows to a quarter the narrowest, after those that it does not follow."""
    rows = np.zeros((2, 40))
    rows[1] = np.arange(40)  # the first does not move
    other = rows.copy()
    other[1, 39] += 39 / 4
    other[1, 38] += 38 / 4 + 0.01
    found = EXTREMES.observe(make_pair(rows, other)).details()
    assert found["columns"]["count"] == 40
    told = found["columns"]["narrowest"]
    assert len(told) == 32
    assert told[0] == [38, 0.0, 38.0, pytest.approx(9.51)]
    assert [entry[0] for entry in told[1:]] == list(range(1, 32))
    assert found["widest"] == [0.0, 39.0]
    assert (found["reference"], found["candidate"]) == ([0.0, 39.0], [0.0, 48.75])
    nothing = EXTREMES.observe(make_pair(np.zeros((0, 2)), np.zeros((0, 2)))).details()
    assert nothing == {"reference": None, "candidate": None, "widest": None, "columns": {"count": 0, "narrowest": []}}


# How close numbers are


def close(reference, candidate, tolerance=EXACTLY, **given):
    return closeness.EXTENSION.observe(make_pair(reference, candidate, tolerance=tolerance, **given))


def test_figures_of_three_numbers():
    found = close([3.0, 4.0, 0.0], [3.0, 2.0, 1.0], Tolerance(1.0, 0.0)).measurements()
    assert found["max_abs_diff"] == 2.0
    assert found["mean_abs_diff"] == 1.0
    assert found["mean_diff"] == pytest.approx(-1 / 3)
    assert found["max_rel_diff"] == 1e6  # of zero, by the floor
    assert found["sqnr_db"] == pytest.approx(10 * math.log10(25 / 5))
    assert found["cosine"] == pytest.approx(17 / math.sqrt(25 * 14))
    assert (found["mismatches"], found["mismatch_rate"], found["rows_beyond"]) == (1.0, pytest.approx(1 / 3), 1.0)
    assert (found["nonfinite_mismatch"], found["nan_both"], found["nan_share"]) == (0.0, 0.0, 0.0)


def test_figures_of_nothing_and_of_zeros():
    zeros = close([0.0], [0.0]).measurements()
    assert zeros["sqnr_db"] == math.inf
    assert "cosine" not in zeros
    assert close([0.0], [1.0]).measurements()["cosine"] == close([1.0], [0.0]).measurements()["cosine"] == 0.0
    assert close([0.0], [1.0]).measurements()["sqnr_db"] == -math.inf
    assert close([], []).measurements() == {}
    assert close([1.0], [-1.0]).measurements()["cosine"] == -1.0
    # A product that is rounded up is more than the lengths allow.
    for sign in (1.0, -1.0):
        assert close([148867706415198.0], [sign * 446603119245594.0]).measurements()["cosine"] == sign


def test_signal_and_noise_beyond_the_doubles():
    bits = 20 * math.log10(2)
    assert close([2.0**1000], [2.0**1000 * (1 + 2**-50)]).measurements()["sqnr_db"] == pytest.approx(50 * bits)
    assert close([1e200, 0.0], [1e200, 1e-200]).measurements()["sqnr_db"] == pytest.approx(8_000)
    assert close([1e-200], [1e200]).measurements()["sqnr_db"] == pytest.approx(-8_000)


def test_magnitudes_are_powers_of_two_of_the_reference():
    found = close([0.0, 1.0, 1.5, 2.0, 5e-324], [0.5, 1.25, 1.5, 2.0, 5e-324])
    assert found.details()["magnitudes"] == [
        {"exponent": None, "count": 1, "max_abs_diff": 0.5},
        {"exponent": -1022, "count": 1, "max_abs_diff": 0.0},
        {"exponent": 1, "count": 2, "max_abs_diff": 0.25},
        {"exponent": 2, "count": 1, "max_abs_diff": 0.0},
    ]
    both = found.merge(close([0.0, 1.0, 4.0], [0.25, 1.5, 4.0]))
    assert [(e["exponent"], e["count"], e["max_abs_diff"]) for e in both.details()["magnitudes"]] == [
        (None, 2, 0.5),
        (-1022, 1, 0.0),
        (1, 3, 0.5),
        (2, 1, 0.0),
        (3, 1, 0.0),
    ]
    assert found.details()["relative_floor"] == 1e-6


def test_batches_add_up_to_the_larger_figures():
    one_part, other = close([1.0], [1.5]), close([4.0], [4.25])
    together = one_part.merge(other)
    assert together == other.merge(one_part)
    assert (together.max_abs, together.max_rel, together.max_ulp) == (0.5, 0.5, one_part.max_ulp)
    assert one_part.integer_rounding is None
    assert close([1], [1]).integer_rounding == 0.0
    assert close([1], [1]).merge(one_part).integer_rounding == one_part.merge(close([1], [1])).integer_rounding == 0.0


def test_rows_beyond_are_those_that_hold_one_element_beyond_or_nan():
    reference = np.array([[1.0, np.nan], [1.0, 2.0], [1.0, 2.0]])
    candidate = np.array([[1.0, np.nan], [1.0, 3.0], [1.0, 2.0]])
    for nan_equal, expected in ((True, [False, True, False]), (False, [True, True, False])):
        pair = make_pair(reference, candidate, tolerance=EXACTLY, nan_equal=nan_equal)
        assert closeness.rows_beyond(pair).tolist() == expected
        assert closeness.EXTENSION.observe(pair).rows_beyond == sum(expected)
    equal = make_pair(reference[:1], candidate[:1], nan_equal=False)
    assert closeness.EXTENSION.observe(equal).rows_beyond == 1
    words = make_pair(text(["a", "b"]), text(["a", "c"]))
    assert closeness.rows_beyond(words).tolist() == [False, True]


# Labels


@pytest.mark.parametrize(("count", "kept"), [(2_500, True), (2_501, False)])
def test_so_many_different_labels_are_counted(count, kept):
    tally = Tally.of(((number,), 1) for number in range(count))
    assert (tally.counts is not None) is kept
    half = Tally.of(((number,), 1) for number in range(count // 2))
    rest = Tally.of(((number,), 1) for number in range(count // 2, count))
    assert (half.merge(rest).counts is not None) is kept
    assert half.merge(Tally(None)).counts is Tally(None).merge(half).counts is None
    assert Tally(None).shown("label") is None


def test_labels_are_told_by_how_often_they_occur():
    found = Tally.of(
        [(("b",), 2), (("a",), 1), (("b",), 3), ((None,), 4), ((True,), 1), ((math.nan,), 1), ((-0.0,), 1)]
    )
    listed = found.shown("label")
    assert listed[:2] == [{"label": "b", "count": 5}, {"label": None, "count": 4}]
    assert {repr(entry["label"]) for entry in listed[2:]} == {"'a'", "True", "nan", "0.0"}
    many = Tally.of(((number,), 1) for number in range(60))
    assert len(many.shown("label")) == 50
    ties = Tally.of([(("b",), 1), (("a",), 1)])
    assert [entry["label"] for entry in ties.shown("label")] == ["a", "b"]
    assert [entry["label"] for entry in Tally.of([(("c",), 1)]).merge(ties).shown("label")] == ["a", "b", "c"]
    doubled = found.merge(found).shown("label")
    assert doubled[0] == {"label": "b", "count": 10}


@pytest.mark.parametrize(("length", "short"), [(120, True), (121, False)])
def test_a_label_of_bounded_length(length, short):
    (entry,) = Tally.of([(("x" * length,), 1)]).shown("label")
    assert (entry["label"] == "x" * length) is short
    if not short:
        assert entry["label"].startswith("x" * 120 + "… (121 characters, ")
        assert len(entry["label"]) == len("x" * 120 + "… (121 characters, ") + 9


def test_labels_of_a_row_are_counted_by_column_if_there_are_several():
    def columns(width):
        ours = np.zeros((2, width), int)
        theirs = ours.copy()
        theirs[0, 0] = 1
        return AGREEMENT.observe(make_pair(ours, theirs, Kind.LABEL)).details()["flips_by_column"]

    assert columns(1) is None
    assert columns(2) == [1, 0]
    assert columns(64) == [1] + [0] * 63
    assert columns(65) is None


@pytest.mark.parametrize(
    ("some", "others", "together"),
    [
        (None, (1,), None),
        ((1,), None, None),
        ((), (1, 2), (1, 2)),
        ((1, 2), (), (1, 2)),
        ((1, 2), (3, 4), (4, 6)),
        ((1, 2), (3,), None),
    ],
)
def test_flips_by_column_of_several_batches(some, others, together):
    assert agreement._merge_columns(some, others) == together


def test_flips_beyond_noise_and_of_unknown_margin():
    pair = make_pair([0, 0, 0, 0], [1, 1, 1, 0], Kind.LABEL, margin=[0.5, 0.25, math.nan, 0.1], noise=[0.25] * 4)
    found = AGREEMENT.observe(pair)
    assert (found.rows, found.flips, found.material, found.unknown_margins) == (4, 3, 2, 1)
    assert found.margins.count == 2
    assert found.measurements() == {"label_flips": 3.0, "flip_rate": 0.75, "material_flips": 2.0}
    assert agreement.rows_beyond(pair).tolist() == [True, False, True, False]
    unsure = make_pair([0, 0], [1, 0], Kind.LABEL, margin=[0.0, 0.0])
    assert agreement.rows_beyond(unsure).tolist() == [True, False]
    assert found.details()["confusion"] == [{"reference": 0, "candidate": 1, "count": 3}]
    assert found.details()["reference_labels"] == [{"label": 0, "count": 4}]
    assert found.details()["candidate_labels"] == [{"label": 1, "count": 3}, {"label": 0, "count": 1}]


def test_types_of_labels():
    def types(ours, theirs):
        details = AGREEMENT.observe(make_pair(ours, theirs, Kind.LABEL)).details()
        return details["reference_types"], details["candidate_types"], details["types_differ"]

    assert types([1, 2], text(["1", "2"])) == (["number"], ["text"], True)
    assert types(text([1, 2.5]), [1, 2]) == (["number"], ["number"], False)
    assert types(text([1, "a"]), text(["a", None])) == (["number", "text"], ["text"], True)
    assert types(text([None, None]), [1, 2]) == ([], ["number"], False)
    assert types([1, 2], text([None, None])) == (["number"], [], False)


def test_labels_that_python_takes_for_one_key_are_counted_apart():
    def counted(*labels):
        found = AGREEMENT.observe(make_pair(text(labels), text(labels), Kind.LABEL)).details()["reference_labels"]
        return sorted((repr(entry["label"]), entry["count"]) for entry in found)

    assert counted(1, True, 1) == [("1", 2), ("True", 1)]
    assert counted(1, 1.0, True) == [("1", 1), ("1.0", 1), ("True", 1)]
    assert counted("a", None, "a") == [("'a'", 2), ("None", 1)]


@pytest.mark.parametrize(
    ("shape", "kind", "dtype", "rows"),
    [
        ((2, 2), Kind.VALUE, float, 2),
        ((2, 1), Kind.VALUE, float, 0),
        ((2,), Kind.VALUE, float, 0),
        ((2, 3, 2), Kind.SCORE, float, 2),
        ((2, 3, 2), Kind.PROBABILITY, float, 2),
        ((2, 3, 2), Kind.VALUE, float, 0),
        ((2, 2, 3, 2), Kind.SCORE, float, 0),
        ((2, 2), Kind.SCORE, int, 0),
        ((0, 2), Kind.SCORE, float, 0),
    ],
)
def test_what_has_a_best_class(shape, kind, dtype, rows):
    found = TOP_CLASS.observe(make_pair(np.zeros(shape, dtype), np.zeros(shape, dtype), kind))
    assert (found.rows, found.classes) == (rows, shape[-1] if rows else 0)
    assert found.details() == (
        {"rows": rows, "classes": shape[-1], "margins": {"unknown": 0, "spans": []}} if rows else {}
    )


@pytest.mark.parametrize(("classes", "known"), [(5, False), (6, True)])
def test_the_five_best_of_more_than_five(classes, known):
    ours = np.arange(float(classes))[None]
    found = TOP_CLASS.observe(make_pair(ours, -ours, Kind.SCORE, tolerance=Tolerance(0.5, 0.0)))
    assert ("top5_flips" in found.measurements()) is known
    assert found.measurements()["top1_flips"] == 1.0
    assert found.measurements()["top1_material_flips"] == 0.0, "a lead of one is what both may move by"
    if known:
        assert found.measurements()["top5_flips"] == 1.0
        assert found.merge(found).best == 2
        few = TOP_CLASS.observe(make_pair(ours[:, :5], ours[:, :5], Kind.SCORE))
        assert found.merge(few).best == few.merge(found).best == 1
        assert found.merge(few).classes == few.merge(found).classes == 6


def test_whichever_of_two_that_tie_for_the_fifth_place_is_among_the_best():
    ours = np.array([[6.0, 5.0, 4.0, 3.0, 1.0, 1.0]] * 2)
    theirs = np.array([[6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [6.0, 5.0, 4.0, 3.0, 1.0, 2.0]])
    assert TOP_CLASS.observe(make_pair(ours, theirs, Kind.SCORE)).best == 0
    assert TOP_CLASS.observe(make_pair(theirs[:1], theirs[1:], Kind.SCORE)).best == 1
    assert TOP_CLASS.observe(make_pair(theirs, theirs[::-1], Kind.SCORE)).best == 2
    # Of three rows of two steps each, those in which any step has another.
    steps = np.array([theirs[[0, 0]], theirs[[0, 0]], theirs[[0, 0]]])
    moved = np.array([theirs[[0, 1]], theirs[[0, 0]], theirs[[1, 1]]])
    assert TOP_CLASS.observe(make_pair(steps, moved, Kind.SCORE)).best == 2


def forms(ours, theirs, column_for_vector=False):
    spec = PairSpec("y", "y", Kind.VALUE, "name", column_for_vector=column_for_vector)
    plain = make_pair(np.zeros(1), np.zeros(1))
    return agreement.FORM.observe(
        Pair(spec, plain.batch, plain.reference, plain.candidate, EXACTLY, forms=(ours, theirs))
    )


def test_forms_differ_by_type_rank_and_layout():
    usual = Form("float32", 1)
    same = {"dtype_mismatch": 0.0, "rank_mismatch": 0.0, "layout_mismatch": 0.0}
    assert forms(usual, usual).measurements() == same
    assert forms(usual, Form("float64", 1)).measurements() == {**same, "dtype_mismatch": 1.0}
    assert forms(usual, Form("float32", 2)).measurements() == {**same, "rank_mismatch": 1.0}
    assert forms(usual, Form("float32", 2), True).measurements() == same
    assert forms(Form("f", 2, 0), Form("f", 2, 1)).measurements() == {**same, "layout_mismatch": 1.0}
    assert forms(Form("f", 2, 0), Form("f", 2)).measurements() == same, "who does not tell does not differ"
    assert agreement.Forms().measurements() == {}
    both = forms(usual, usual, True).merge(forms(usual, Form("float64", 1)))
    assert both.details() == {
        "reference": ["float32 (n,)"],
        "candidate": ["float32 (n,)", "float64 (n,)"],
        "column_for_vector": True,
    }
