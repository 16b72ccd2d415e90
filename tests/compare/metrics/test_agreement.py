"""Labels, compared again by Python's own equality."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from making_pairs import label_pairs, make_pair, text

from likewise.compare.metrics.agreement import AGREEMENT, MOST_DISTINCT, TOP_CLASS, Forms, rows_beyond
from likewise.contracts.comparison import Form, Tolerance
from likewise.contracts.models import Kind
from likewise.judge.findings import flips_above


def agree(ours, theirs):
    return ours == theirs or (ours != ours and theirs != theirs)


def observed(reference, candidate, **given):
    return AGREEMENT.observe(make_pair(reference, candidate, Kind.LABEL, **given))


@settings(max_examples=120, deadline=None)
@given(label_pairs())
def test_every_figure_is_what_a_loop_finds(pair):
    flips = material = 0
    columns = np.zeros(math.prod(pair.reference.shape[1:]), dtype=int)
    for row, (ours, theirs) in enumerate(zip(pair.reference, pair.candidate, strict=True)):
        ours, theirs = np.ravel(ours).tolist(), np.ravel(theirs).tolist()
        differing = [not agree(a, b) for a, b in zip(ours, theirs, strict=True)]
        columns += differing
        flips += any(differing)
        material += any(differing) and (pair.margin is None or not pair.margin[row] <= pair.noise[row])
    summary = AGREEMENT.observe(pair)
    rows = len(pair.reference)
    expected = {"label_flips": flips, "flip_rate": flips / rows, "material_flips": material} if rows else {}
    assert dict(summary.measurements()) == expected
    assert np.count_nonzero(rows_beyond(pair)) == material
    if rows and columns.size > 1:
        assert summary.details()["flips_by_column"] == columns.tolist()
    assert sum(entry["count"] for entry in summary.details()["confusion"]) == columns.sum()


@pytest.mark.parametrize(
    ("reference", "candidate", "flips"),
    [
        (np.array([True, False]), np.array([1, 0]), 0),
        (np.array([True, False]), np.array([0, 1], "u1"), 2),
        (np.array([1, 2]), np.array([1.0, 2.5]), 1),
        (np.array([1, 2]), np.array(["1", "2"]), 2),
        (np.array([1, 2]), text(["1", 2]), 1),
        (np.array(["a", "bb"]), text(["a", "bb"]), 0),
        (text(["a", None]), text(["a", None]), 0),
        (text(["a", None]), text(["a", ""]), 1),
        (np.array([math.nan, 1.0]), np.array([math.nan, math.nan]), 1),
        (np.array([math.nan]), text([float("nan")]), 0),
        (np.array([2**53 + 1]), np.array([2.0**53]), 1),
        (np.array([2**63 - 1]), np.array([2.0**63]), 1),
        (np.array([-1]), np.array([2**64 - 1], "u8"), 1),
        (np.array([-0.0]), np.array([0]), 0),
    ],
)
def test_what_is_the_same_label(reference, candidate, flips):
    assert observed(reference, candidate).measurements()["label_flips"] == flips
    assert observed(candidate, reference).measurements()["label_flips"] == flips


def test_a_row_of_many_labels_flips_once():
    summary = observed([[1, 0, 1], [0, 0, 0]], [[0, 1, 1], [0, 0, 0]])
    assert summary.measurements() == {"label_flips": 1.0, "flip_rate": 0.5, "material_flips": 1.0}
    assert summary.details()["flips_by_column"] == [1, 1, 0]


def test_flips_within_noise_are_not_material():
    margin, noise = [0.05, 0.5, math.nan, 0.9], [0.1, 0.1, 0.1, 0.1]
    summary = observed([0, 0, 0, 0], [1, 1, 1, 0], margin=margin, noise=noise)
    assert summary.measurements()["material_flips"] == 2
    margins = summary.details()["margins"]
    assert margins["unknown"] == 1
    assert flips_above(margins, 0.1) == (2, 2)
    assert flips_above(margins, 0.9) == (1, 1)
    assert flips_above(margins, 0.01) == (3, 3)


def test_flips_without_margins_are_material():
    summary = observed([0, 1], [1, 1])
    assert summary.measurements()["material_flips"] == 1
    assert flips_above(summary.details()["margins"], 5.0) == (1, 1)


def test_confusion_lists_the_most_frequent_first_and_ties_by_label():
    details = observed(text(["b", "a", "a", "c"]), text(["x", "x", "x", "c"])).details()
    assert details["confusion"] == [
        {"reference": "a", "candidate": "x", "count": 2},
        {"reference": "b", "candidate": "x", "count": 1},
    ]
    assert details["candidate_labels"] == [{"label": "x", "count": 3}, {"label": "c", "count": 1}]


def test_too_many_different_labels_leave_only_totals():
    labels = np.arange(MOST_DISTINCT + 1)
    assert len(labels) == 2_501
    details = observed(labels, labels + 1).details()
    assert details["confusion"] is None
    assert details["reference_labels"] is None
    half = len(labels) // 2
    merged = observed(labels[:half], labels[:half] + 1).merge(observed(labels[half:], labels[half:] + 1))
    assert merged == observed(labels, labels + 1)


def test_long_text_is_shortened_and_still_told_apart():
    details = observed(text(["x" * 5000]), text(["x" * 4999 + "y"])).details()
    (entry,) = details["confusion"]
    assert entry["reference"] != entry["candidate"]
    assert len(entry["reference"]) < 200


def test_text_against_numbers_is_told():
    assert observed(text(["a", None]), np.array([1, 2])).details()["types_differ"]
    assert not observed(text(["a", None]), np.array(["a", "b"])).details()["types_differ"]
    assert not observed(np.array([True]), np.array([1.0])).details()["types_differ"]


def test_constant_labels_are_noticed():
    details = observed(text(["a", "b", "a"]), np.array(["a", "a", "a"])).details()
    assert (details["constant_reference"], details["constant_candidate"]) == (False, True)


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 0, 2], [2, 1, 0]])
def test_equal_labels_of_different_types_are_one_answer_in_any_order(order):
    labels = text([[True, 1, 1.0][place] for place in order])
    whole = observed(labels, labels)
    parts = [observed(labels[place : place + 1], labels[place : place + 1]) for place in range(3)]
    assert parts[0].merge(parts[1]).merge(parts[2]) == whole
    assert whole.details()["constant_candidate"]


def test_applies_to_labels_and_to_all_text():
    label, value = make_pair([1], [1], Kind.LABEL).spec, make_pair([1], [1]).spec
    assert AGREEMENT.applies_to(label, numeric=True)
    assert AGREEMENT.applies_to(value, numeric=False)
    assert not AGREEMENT.applies_to(value, numeric=True)


def test_there_is_one_zero():
    zeros, negative = (observed(np.full(2, zero), np.ones(2)) for zero in (0.0, -0.0))
    assert zeros.merge(negative).details()["constant_reference"], "also from batch to batch"
    (entry,) = observed(np.array([-0.0]), np.array([1.0])).details()["confusion"]
    assert math.copysign(1.0, entry["reference"]) == 1.0


def test_other_numbers_among_text_are_another_answer():
    """Batch by batch: each holds one label, and it is not the same."""
    one, other = (observed(text([label, label]), text(["a", "a"])) for label in (1, 2))
    assert one.merge(one).details()["constant_reference"]
    assert not one.merge(other).details()["constant_reference"]


def test_two_columns_of_labels_are_counted_apart_and_one_is_not():
    two = observed(np.array([[1, 2], [3, 4], [5, 6]]), np.array([[1, 0], [3, 0], [0, 6]]))
    assert two.details()["flips_by_column"] == [1, 2]
    assert not observed(np.array([[1], [3]]), np.array([[1], [0]])).details().get("flips_by_column")


def test_a_column_for_a_vector_is_no_other_rank_also_beside_a_batch_without_rows():
    forms = [frozenset({Form("float64", rank, None, rows=True)}) for rank in (1, 2)]
    found = Forms(*forms, column_for_vector=True)
    for together in (Forms().merge(found), found.merge(Forms()), found):
        assert together.measurements()["rank_mismatch"] == 0
    assert Forms(*forms).measurements()["rank_mismatch"] == 1


# The best class, of scores worked out by hand: 0.01 may be the noise of one of them, 0.02 of two.


def best(reference, candidate, kind=Kind.SCORE):
    return TOP_CLASS.observe(make_pair(reference, candidate, kind, tolerance=Tolerance(0.01, 0.0)))


def test_another_best_class_is_material_if_it_was_ahead_by_more_than_noise():
    ours = np.array([[0.6, 0.4], [0.3, 0.7], [0.5, 0.51]])
    found = best(ours, np.array([[0.7, 0.3], [0.6, 0.4], [0.51, 0.5]]))
    assert found.measurements() == {"top1_flips": 2.0, "top1_flip_rate": 2 / 3, "top1_material_flips": 1.0}
    facts = found.details()
    assert (facts["rows"], facts["classes"]) == (3, 2)
    assert sum(count for *_, count in facts["margins"]["spans"]) == 2, "a row without a flip has no margin to keep"
    assert flips_above(facts["margins"], 0.0) == (2, 2)
    assert flips_above(facts["margins"], 0.1) == (1, 1)
    assert flips_above(facts["margins"], 0.5) == (0, 0)


def test_the_five_best_are_compared_as_a_set_and_a_tie_for_the_last_place_is_no_difference():
    ours = np.array([[6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [6.0, 5.0, 4.0, 3.0, 2.0, 2.0], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]])
    theirs = ours[:, [0, 1, 2, 3, 5, 4]].copy()
    theirs[2] = [2.0, 3.0, 4.0, 5.0, 6.0, 1.0]
    found = best(ours, theirs)
    assert found.measurements() == {
        "top1_flips": 1.0,
        "top1_flip_rate": 1 / 3,
        "top1_material_flips": 1.0,
        "top5_flips": 1.0,
    }
    assert found.merge(found).measurements()["top5_flips"] == 2.0
    assert found.merge(TOP_CLASS.empty()).measurements() == found.measurements()
    assert "top5_flips" not in best(ours[:, :5], theirs[:, :5]).measurements(), "five of five are all of them"


def test_of_scores_a_step_a_row_changes_with_any_of_its_steps_and_the_largest_margin_counts():
    ours = np.array([[[0.6, 0.4], [0.9, 0.1], [0.2, 0.8]], [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]])
    theirs = ours.copy()
    theirs[0, :2] = ours[0, :2, ::-1]
    found = best(ours, theirs)
    assert found.measurements() == {"top1_flips": 1.0, "top1_flip_rate": 0.5, "top1_material_flips": 1.0}
    assert flips_above(found.details()["margins"], 0.75) == (1, 1), "0.8 and not 0.2"
    assert best(ours, theirs, Kind.VALUE).measurements() == {}, "other numbers on three axes have no classes"


def test_what_has_a_best_class():
    floats, wholes = np.array([[1.0, 2.0]]), np.array([[2, 1]])
    assert best(floats, wholes, Kind.VALUE).measurements()["top1_flips"] == 1.0
    assert best(wholes, floats, Kind.VALUE).measurements()["top1_flips"] == 1.0
    for nothing in (wholes[:, ::-1], floats[:, :1], floats[:, 0], np.empty((0, 2)), np.empty((2, 0))):
        found = best(nothing, nothing if nothing.dtype.kind == "f" else wholes)
        assert (found.measurements(), found.details()) == ({}, {})


def test_nan_is_never_the_best_and_infinity_is_far_ahead():
    ours = np.array([[np.nan, 1.0], [np.inf, 1.0], [np.nan, np.nan]])
    found = best(ours, np.array([[5.0, 1.0], [1.0, np.inf], [np.nan, np.nan]]))
    assert found.measurements()["top1_flips"] == found.measurements()["top1_material_flips"] == 2.0
    assert flips_above(found.details()["margins"], 1e300) == (2, 2)


def test_up_to_sixty_four_columns_of_labels_are_counted_apart():
    sixty_four, more = (observed(np.zeros((2, width), int), np.ones((2, width), int)) for width in (64, 65))
    assert sixty_four.details()["flips_by_column"] == [2] * 64
    assert more.details()["flips_by_column"] is None
