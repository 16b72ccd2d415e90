"""Both answers in one shape, and when a changed label is excused by scores: small arrays, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from likewise.compare import align as laying
from likewise.compare.align import align, margin_of, margins
from likewise.compare.differences import same_labels
from likewise.compare.observe import paired
from likewise.contracts.comparison import Form, Mismatch, PairSpec, Tolerance
from likewise.contracts.data import Batch, RowIds
from likewise.contracts.models import Kind
from likewise.data.columns import ArrayColumns


def spec(kind=Kind.VALUE, **facts):
    return PairSpec("out", "out", kind, "name", **facts)


def objects(*values):
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


HALVES = np.array([[0.25, 0.75], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("pair", "reference", "candidate", "expected"),
    [
        (spec(), np.array([1.0, 2.0]), np.array([[1.0], [2.0]]), ([1.0, 2.0], [1.0, 2.0])),
        (spec(), np.array([[1.0], [2.0]]), np.array([1.0, 2.0]), ([1.0, 2.0], [1.0, 2.0])),
        (spec(columns=(1, 0)), HALVES, HALVES, (HALVES.tolist(), [[0.75, 0.25], [0.5, 0.5]])),
        (
            spec(Kind.SCORE, expand="negate"),
            np.array([2, -3]),
            np.zeros((2, 2)),
            ([[-2.0, 2.0], [3.0, -3.0]], [[0.0, 0.0]] * 2),
        ),
        (
            spec(Kind.PROBABILITY, expand="complement"),
            np.array([[0.25], [1.0]]),
            HALVES,
            ([[0.75, 0.25], [0.0, 1.0]], HALVES.tolist()),
        ),
        # What has both columns already is not expanded.
        (spec(Kind.SCORE, expand="negate"), HALVES, HALVES, (HALVES.tolist(), HALVES.tolist())),
        (
            spec(Kind.PROBABILITY, reference_column=1, other_follows=True),
            HALVES,
            np.array([0.75, 0.5]),
            ([0.75, 0.5], [0.75, 0.5]),
        ),
        (
            spec(Kind.SCORE, reference_column=1, other_follows=True),
            np.array([[-3.0, 3.0], [1e4, -1e4 + 9], [0.0, 0.0]]),  # nine of ten thousand is rounding
            np.array([3.0, -1e4, 0.0]),
            ([3.0, -1e4 + 9, 0.0], [3.0, -1e4, 0.0]),
        ),
        # What is not finite says nothing about whether columns add up.
        (
            spec(Kind.PROBABILITY, reference_column=1, other_follows=True),
            np.array([[0.25, 0.75], [5.0, np.inf], [np.nan, 0.5]]),
            np.array([0.75, 0.5, 0.5]),
            ([0.75, np.inf, 0.5], [0.75, 0.5, 0.5]),
        ),
        (
            spec(),
            np.array([1 + 2j, 3j]),
            np.array([[1.0, 2.0], [0.5, 3.0]]),
            ([[1.0, 2.0], [0.0, 3.0]], [[1.0, 2.0], [0.5, 3.0]]),
        ),
        (spec(), np.array([1 + 2j]), np.array([3 + 4j]), ([[1.0, 2.0]], [[3.0, 4.0]])),
        (spec(), np.array([[3.0, 4.0]]), np.array([1 + 2j]), ([[3.0, 4.0]], [[1.0, 2.0]])),
        # Beside numbers with gaps, whole numbers are named one by one, and NaN is the gap of floats.
        (spec(), np.array([1, 2]), objects(1, None), ([1, 2], [1, None])),
        (spec(), objects(1.5, None), np.array([1.5, 2.0]), ([1.5, None], [1.5, 2.0])),
        (spec(Kind.LABEL), np.array([1, 2]), objects("a", "b"), ([1, 2], ["a", "b"])),
    ],
)
def test_answers_are_laid_beside_each_other(pair, reference, candidate, expected):
    laid = align(pair, reference, candidate)
    assert not isinstance(laid, Mismatch), laid
    assert tuple([None if entry != entry else entry for entry in side.tolist()] for side in laid) == tuple(expected)


def test_gaps_among_floats_are_numbers_and_among_whole_numbers_objects():
    laid = align(spec(), np.array([1.5, 2.0]), objects(1.5, None))
    assert [side.dtype for side in laid] == [np.float64, np.float64]
    for reference, candidate in ((np.array([1, 2]), objects(1, None)), (np.array([1.5, 2.0]), objects(1, None))):
        laid = align(spec(), reference, candidate)
        assert [side.dtype for side in laid] == [object, object]


@pytest.mark.parametrize(
    ("pair", "reference", "candidate", "options", "words"),
    [
        (spec(), np.zeros((2, 3)), np.zeros((2, 2)), {}, "(n, 3) in the reference and (n, 2) in the candidate"),
        (spec(), np.zeros(2), np.zeros((2, 2)), {}, "(n,) in the reference and (n, 2) in the candidate"),
        (
            spec(),
            np.zeros((1, 3)),
            np.zeros((1, 2, 2)),
            {"stacked": False},
            "(3,) in the reference and (2, 2) in the candidate",
        ),
        # Two columns that stopped adding up are two things, and one column stands for one of them only.
        *(
            (
                spec(kind, reference_column=1, other_follows=True),
                np.array(columns),
                np.array([0.75, 0.5]),
                {},
                "(n, 2) in the reference and (n,) in the candidate",
            )
            for kind, columns in (
                (Kind.PROBABILITY, [[0.25, 0.75], [0.5, 0.5015]]),
                (Kind.SCORE, [[0.25, 0.75], [0.5, -0.5]]),
                (Kind.SCORE, [[-0.75, 0.75], [1e3, -1e3 + 2]]),
            )
        ),
        (
            spec(Kind.PROBABILITY, reference_column=1, other_follows=True),
            np.full((2, 3), 1 / 3),
            np.array([0.75, 0.5]),
            {},
            "(n, 3) in the reference and (n,) in the candidate",
        ),
    ],
)
def test_answers_of_another_shape_are_never_spread(pair, reference, candidate, options, words):
    found = align(pair, reference, candidate, **options)
    assert (found.code, found.output) == ("shape", "out")
    assert found.message == f"output 'out' has shape {words}"


def test_text_beside_numbers_is_another_type_unless_it_is_a_label():
    found = align(spec(), np.array([1.0, 2.0]), objects("1", "2"))
    assert (found.code, found.output) == ("type", "out")
    assert found.message == "output 'out' is float64 in the reference and text in the candidate"
    assert not isinstance(align(spec(Kind.LABEL), np.array([1.0, 2.0]), objects("1", "2")), Mismatch)


# How sure a label is


@pytest.mark.parametrize(
    ("scores", "kind", "ahead", "noise"),
    [
        ([[0.25, 0.5, 0.125]], Kind.PROBABILITY, 0.25, 0.2 + 0.01 * 0.75),
        ([[0.25]], Kind.PROBABILITY, 0.5, 0.2 + 0.01 * 1.0),  # beside 0.75
        ([[-3.0]], Kind.SCORE, 6.0, 0.2 + 0.01 * 6.0),  # beside 3
        ([[4.0, 1.0, 2.0]], Kind.DISTANCE, 1.0, 0.2 + 0.01 * 3.0),  # the nearest is the best
    ],
)
def test_how_far_the_best_class_is_ahead(scores, kind, ahead, noise):
    found = margins(np.array(scores), kind, Tolerance(0.1, 0.01))
    assert [side.tolist() for side in found] == [pytest.approx([ahead]), pytest.approx([noise])]


SCORES = PairSpec("p", "q", Kind.PROBABILITY, "name")
NAMED = PairSpec("p", "q", Kind.PROBABILITY, "name", classes=("a", "b", "c"))


def labelled(labels, ours, theirs, scores=SCORES, **facts):
    """The margins of labels whose scores are these on either side."""
    pair = PairSpec(
        "label", "label", Kind.LABEL, "name", margin_from="p", margin_kind=scores.kind, scores=(scores,), **facts
    )
    labels = tuple(np.array(side, dtype=object if isinstance(side[0], str) else None) for side in labels)
    margin, noise = margin_of(pair, labels, {"p": np.array(ours)}, {"q": np.array(theirs)}, Tolerance(0.1, 0.0))
    assert (margin is None) == (noise is None)
    return None if margin is None else [None if entry != entry else round(entry, 6) for entry in margin.tolist()]


OURS = [[0.4, 0.35, 0.25]] * 3
"""The first class is ahead by 0.05."""


@pytest.mark.parametrize(
    ("labels", "theirs", "scores", "expected"),
    [
        # The same label needs no excuse.
        ((["a", "a", "a"], ["a", "a", "a"]), OURS, NAMED, [0.05, 0.05, 0.05]),
        # The second is best by now, and is picked; the third is picked, and is not best; "d" is no class.
        ((["a", "a", "a"], ["b", "c", "d"]), [[0.35, 0.4, 0.25]] * 3, NAMED, [0.05, None, None]),
        ((["a", "a", "a"], ["c", "d", "b"]), [[0.25, 0.35, 0.4]] * 3, NAMED, [0.05, None, None]),
        # The scores say what the reference's say.
        ((["a", "a", "a"], ["a", "b", "a"]), OURS, NAMED, [0.05, None, 0.05]),
        # The columns have other names than the labels have places.
        (
            (["a", "a", "a"], ["b", "b", "b"]),
            [[0.35, 0.4, 0.25], [0.4, 0.35, 0.25], [0.3, 0.3, 0.4]],
            NAMED,
            [0.05, None, None],
        ),
        # Nobody names the columns: they are places where the reference's label is the place of its best one.
        (([0, 0, 1], [1, 2, 2]), [[0.35, 0.4, 0.25]] * 3, SCORES, [0.05, None, None]),
        # Text without a column of that name says nothing, nor do two names for three columns.
        ((["a", "a", "a"], ["b", "a", "a"]), [[0.35, 0.4, 0.25]] * 3, SCORES, [None, 0.05, 0.05]),
        (
            (["a", "a", "a"], ["b", "a", "a"]),
            [[0.35, 0.4, 0.25]] * 3,
            PairSpec("p", "q", Kind.PROBABILITY, "name", classes=("a", "b")),
            [None, 0.05, 0.05],
        ),
    ],
)
def test_another_label_is_excused_by_scores_that_pick_it(labels, theirs, scores, expected):
    assert labelled(labels, OURS, theirs, scores) == expected


def test_the_first_class_may_be_the_one_that_is_picked():
    ours, theirs = [[0.35, 0.4, 0.25]], [[0.4, 0.35, 0.25]]
    assert labelled((["b"], ["a"]), ours, theirs, NAMED) == [0.05]
    assert labelled(([1], [0]), ours, theirs) == [0.05]
    assert labelled((["b"], ["d"]), ours, [[0.25, 0.35, 0.4]], NAMED) == [None], (
        "the last is no place of an unknown one"
    )


def test_of_two_classes_the_other_one_is_picked_whatever_it_is_called():
    ours, theirs = [[0.55, 0.45]] * 2, [[0.45, 0.55], [0.55, 0.45]]
    assert labelled((["no", "no"], ["yes", "yes"]), ours, theirs) == [0.1, None]
    one = PairSpec("p", "q", Kind.SCORE, "name")
    assert labelled((["no", "yes"], ["yes", "no"]), [-0.25, 0.5], [0.125, 0.5], one) == [0.5, None]
    # Of clusters, the nearest.
    near = PairSpec("p", "q", Kind.DISTANCE, "name")
    assert labelled(([0, 0], [1, 1]), [[1.0, 2.0, 3.0]] * 2, [[2.0, 1.5, 3.0], [1.0, 2.0, 3.0]], near) == [1.0, None]


def test_scores_tie_where_their_last_places_alone_tell_them_apart():
    """A label is picked before scores are rounded to what is shown: two last places of the coarser type are a tie."""
    step = float(np.finfo(np.float32).eps)
    ours, tied = [[0.5, 0.4]], np.array([[0.5 + 1.5 * step, 0.5]], np.float32)
    assert labelled((["no"], ["yes"]), ours, tied) == [0.1]
    assert labelled((["no"], ["yes"]), ours, np.array([[0.5 + 2.5 * step, 0.5]], np.float32)) == [None]
    assert labelled((["no"], ["yes"]), ours, np.array([[0.5 + step, 0.5]]).astype(np.float64)) == [None]
    whole = PairSpec("p", "q", Kind.SCORE, "name", classes=(0, 1))
    assert labelled(([0], [1]), [[5, 4]], [[5, 5]], whole) == [1.0]
    assert labelled(([0], [1]), [[5, 4]], [[5, 4]], whole) == [None]


def test_classes_that_come_one_by_one_are_put_in_their_order():
    by_class = tuple(
        PairSpec("p", f"q{place}", Kind.PROBABILITY, "name", classes=("a", "b", "c"), reference_column=place)
        for place in (2, 1, 0)
    )
    pair = PairSpec(
        "label", "label", Kind.LABEL, "name", margin_from="p", margin_kind=Kind.PROBABILITY, scores=by_class
    )
    ours, theirs = np.array(OURS[:2]), np.array([[0.35, 0.4, 0.25]] * 2)
    candidate = {f"q{place}": theirs[:, place] for place in range(3)}
    labels = (objects("a", "a"), objects("b", "c"))
    margin, noise = margin_of(pair, labels, {"p": ours}, candidate, Tolerance(0.1, 0.0))
    assert margin[0] == pytest.approx(0.05)
    assert np.isnan(margin[1])
    assert noise.tolist() == pytest.approx([0.2, 0.2])
    del candidate["q1"]
    assert margin_of(pair, labels, {"p": ours}, candidate, Tolerance(0.1, 0.0)) == (None, None)


@pytest.mark.parametrize("labels", [(["a", "a"], ["a", "a"]), (["a", "a"], ["b", "a"])])
def test_where_no_scores_were_compared_nothing_is_said(labels):
    labels = tuple(objects(*side) for side in labels)
    ours, pair = {"p": np.array(OURS[:2])}, spec(Kind.LABEL, margin_from="p", margin_kind=Kind.PROBABILITY)
    tolerance = Tolerance(0.1, 0.0)
    assert margin_of(pair, labels, ours, {}, tolerance) == (None, None)
    assert margin_of(spec(Kind.LABEL), labels, ours, {}, tolerance) == (None, None)
    compared = spec(Kind.LABEL, margin_from="p", margin_kind=Kind.PROBABILITY, scores=(SCORES,))
    assert margin_of(compared, labels, {}, {"q": ours["p"]}, tolerance) == (None, None)
    assert margin_of(compared, labels, ours, {}, tolerance) == (None, None)
    assert margin_of(compared, labels, ours, {"q": np.zeros((2, 5))}, tolerance) == (None, None)
    elsewhere = spec(Kind.LABEL, margin_from="decision", margin_kind=Kind.SCORE, scores=(SCORES,))
    assert margin_of(elsewhere, labels, ours, {"q": ours["p"]}, tolerance) == (None, None)


@pytest.mark.parametrize(
    ("stacked", "per_call", "form"),
    [
        (True, False, Form("float64", 3, 0, rows=True)),
        (True, True, Form("float64", 2, None, rows=False)),
        (False, False, Form("float64", 2, None, rows=False)),
    ],
)
def test_the_form_of_answers_has_an_axis_of_rows_only_where_there_are_rows(stacked, per_call, form):
    rows = Batch(RowIds(np.arange(1)), ArrayColumns({"x": np.zeros(1)}), stacked)
    ours, theirs = {"out": np.zeros((1, 2, 3))}, {"out": np.zeros((1, 2, 3), np.float32)}
    found = paired(spec(per_call=per_call, row_axes=(0, 0)), rows, ours, theirs, Tolerance(0.1, 0.0))
    assert found.forms == (form, Form("float32", form.rank, form.row_axis, form.rows))


# The small questions


@pytest.mark.parametrize(
    ("kind", "columns", "follows"),
    [
        (Kind.PROBABILITY, [[0.25, 0.75]], True),
        (Kind.PROBABILITY, [[0.25, 0.75 + 2**-10]], True),  # a thousandth is rounding
        (Kind.PROBABILITY, [[0.25, 0.75 - 2**-10]], True),
        (Kind.PROBABILITY, [[0.25, 0.75 + 2**-9]], False),
        (Kind.PROBABILITY, [[0.25, 0.75], [0.25, 0.5]], False),
        (Kind.PROBABILITY, [[0.25, 0.75], [np.nan, 0.5], [np.inf, 0.5]], True),
        (Kind.PROBABILITY, [[0.5, -0.5]], False),
        (Kind.SCORE, [[0.5, -0.5]], True),
        (Kind.SCORE, [[0.25, 0.75]], False),
        (Kind.SCORE, [[2048.0, -2046.0]], True),  # a thousandth of the larger one
        (Kind.SCORE, [[-2046.0, 2048.0]], True),
        (Kind.SCORE, [[2048.0, -2045.0]], False),
        (Kind.SCORE, [[0.0, 0.0, 0.0]], False),
        (Kind.SCORE, [0.0, 0.0], False),
        (Kind.SCORE, [["a", "b"]], False),
    ],
)
def test_one_of_two_columns_follows_from_the_other(kind, columns, follows):
    assert laying._follows(kind, np.array(columns)) is follows


def test_types_and_shapes_in_words():
    assert [laying.type_of(np.zeros(1, dtype)) for dtype in ("O", "U1", "S1", "f4", "?")] == [
        *("text", "text", "text"),
        *("float32", "bool"),
    ]
    for shape, stacked, whole in (((5,), "(n,)", "()"), ((5, 3), "(n, 3)", "(3,)"), ((5, 3, 2), "(n, 3, 2)", "(3, 2)")):
        assert laying._row_shape(np.zeros(shape), stacked=True) == stacked
        assert laying._row_shape(np.zeros(shape), stacked=False) == whole


def test_one_column_a_class_and_the_best_the_largest():
    one = np.array([0.25, 0.75])
    assert laying._by_class(one, Kind.PROBABILITY).tolist() == [[0.75, 0.25], [0.25, 0.75]]
    assert laying._by_class(one, Kind.SCORE).tolist() == [[-0.25, 0.25], [-0.75, 0.75]]
    assert laying._by_class(one[:, None], Kind.SCORE).tolist() == [[-0.25, 0.25], [-0.75, 0.75]]
    assert laying._by_class(np.array([[1.0, 2.0, 3.0]]), Kind.DISTANCE).tolist() == [[-1.0, -2.0, -3.0]]
    assert laying._by_class(np.array([[1, 2]]), Kind.SCORE).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("reference", "candidate", "same"),
    [
        (np.array(["2024-01-01", "NaT"], "M8[D]"), np.array(["2024-01-01T00", "NaT"], "M8[ns]"), [True, True]),
        (np.array(["2024-01-01"], "M8[ns]"), np.array(["2024-01-01T00:00:01"], "M8[s]"), [False]),
        (np.array([60, 90], "m8[s]"), np.array([1, 1], "m8[m]"), [True, False]),
        # What nanoseconds cannot hold is not what it would wrap to.
        (np.array(["9999-12-31"], "M8[D]"), np.array(["9999-12-31"], "M8[D]").astype("M8[ns]"), [False]),
    ],
)
def test_times_are_the_same_in_whatever_unit(reference, candidate, same):
    found = align(spec(), reference, candidate)
    assert same_labels(*found).tolist() == same


def test_complex_numbers_are_two_real_ones_if_the_others_are():
    twisted = np.array([1 + 2j, 3 - 4j])
    assert laying._as_reals(twisted, twisted).tolist() == [[1.0, 2.0], [3.0, -4.0]]
    assert laying._as_reals(twisted, np.zeros((2, 2))).tolist() == [[1.0, 2.0], [3.0, -4.0]]
    assert laying._as_reals(twisted, np.zeros(2)) is twisted
    plain = np.zeros((2, 2))
    assert laying._as_reals(plain, twisted) is plain


@pytest.mark.parametrize(
    ("array", "other", "dtype"),
    [
        (objects(1.5, None), np.zeros(2), "float64"),
        (np.zeros(2, "f4"), objects(1.5, None), "float64"),
        (objects(1, None), np.zeros(2), "object"),  # a whole number is named
        (objects(1, None), np.zeros(2, int), "object"),
        (np.zeros(2, int), objects(1.5, None), "object"),
        (objects("a", None), np.zeros(2), "object"),
        (np.zeros(2), objects("a", None), "float64"),
        (np.zeros(2), np.array(["a", "b"]), "float64"),
    ],
)
def test_numbers_beside_numbers_with_gaps(array, other, dtype):
    assert laying._filled(array, other).dtype == dtype


def test_infinite_scores_add_no_noise_and_ties_no_lead():
    ahead, noise = laying.margins(
        np.array([[4.0, 1.0, 2.0], [np.inf, 8.0, 0.0], [np.inf, np.inf, 0.0], [3.0, 3.0, 1.0]]),
        Kind.SCORE,
        Tolerance(0.5, 0.25),
    )
    assert ahead.tolist() == [2.0, np.inf, 0.0, 0.0]
    assert noise.tolist() == [1 + 0.25 * 6, 1 + 0.25 * 8, 1.0, 1 + 0.25 * 6]
