"""Which outputs belong together, from what two models declare: no model is run here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from likewise.compare import pair as pairing
from likewise.compare.pair import observed, pair
from likewise.contracts.models import Kind, OutputSpec, Signature
from likewise.errors import PairingError

LABEL, PROBABILITY, SCORE, VALUE = Kind.LABEL, Kind.PROBABILITY, Kind.SCORE, Kind.VALUE
DISTANCE, EMBEDDING = Kind.DISTANCE, Kind.EMBEDDING


def spec(name, kind=VALUE, width=None, dtype="float32", **facts):
    """An output of one number a row, or of so many columns, or of rows of this shape."""
    shape = () if width is None else width if isinstance(width, tuple) else (width,)
    return OutputSpec(name, kind, dtype, (None, *shape), **facts)


def label(name="label", dtype="int64", **facts):
    return spec(name, LABEL, dtype=dtype, **facts)


def probabilities(name="probabilities", classes=(0, 1), width=2, **facts):
    return spec(name, PROBABILITY, width, classes=classes, **facts)


def how(found):
    return {(pair.reference, pair.candidate): pair.matched_by for pair in found.pairs}


@pytest.mark.parametrize(
    ("reference", "candidate", "expected"),
    [
        ([spec("a")], [spec("z")], {("a", "z"): "kind"}),
        ([spec("a"), spec("b")], [spec("b"), spec("a")], {("a", "a"): "kind and name", ("b", "b"): "kind and name"}),
        (
            [spec("First.One"), spec("second")],
            [spec("first_one"), spec("SECOND")],
            {("First.One", "first_one"): "kind and similar name", ("second", "SECOND"): "kind and similar name"},
        ),
        (
            [spec("a", width=3), spec("b", width=5)],
            [spec("y", width=5), spec("z", width=3)],
            {("a", "z"): "kind and shape", ("b", "y"): "kind and shape"},
        ),
        (
            [spec("a", width=(3, 4)), spec("b", width=5)],
            [spec("y", width=5), spec("z", width=(3, 4))],
            {("a", "z"): "kind and shape", ("b", "y"): "kind and shape"},
        ),
        # A column is a vector, and one of two classes tells the other
        (
            [spec("a"), spec("b", width=3)],
            [spec("y", width=3), spec("z", width=1)],
            {("a", "z"): "kind and shape", ("b", "y"): "kind and shape"},
        ),
        (
            [probabilities("a", None, 2), spec("b", DISTANCE, 3)],
            [spec("y", width=3), spec("z", width=1)],
            {("a", "z"): "shape", ("b", "y"): "shape"},
        ),
        (
            [probabilities("a", None, 1), spec("b", DISTANCE, 3)],
            [spec("y", width=3), spec("z", width=2)],
            {("a", "z"): "shape", ("b", "y"): "shape"},
        ),
        # Of an undeclared kind: the name, then the shape
        (
            [spec("a", DISTANCE, 3), spec("b", EMBEDDING, 3)],
            [spec("b", width=3), spec("a", width=3)],
            {("a", "a"): "name", ("b", "b"): "name"},
        ),
        (
            [spec("a", DISTANCE, 3), spec("b", EMBEDDING, 5)],
            [spec("y", width=5), spec("z", width=3)],
            {("a", "z"): "shape", ("b", "y"): "shape"},
        ),
        # Of several views the one that is preferred
        (
            [spec("d", DISTANCE, 3, view=True), probabilities("p", None, 3, view=True), spec("s", SCORE, 3, view=True)],
            [spec("z", width=3)],
            {("p", "z"): "shape"},
        ),
        (
            [spec("d", DISTANCE, 3, view=True), spec("s", SCORE, 3, view=True)],
            [spec("z", width=3)],
            {("s", "z"): "shape"},
        ),
        # A label as a float goes by its name alone
        (
            [label("y"), spec("v", width=4)],
            [spec("y"), spec("v", width=4)],
            {("v", "v"): "kind and name", ("y", "y"): "name"},
        ),
        # What nobody named goes by its place
        (
            [spec("a", width=3), spec("b", width=3)],
            [spec("output_0", width=3), spec("output_1", width=3)],
            {("a", "output_0"): "position", ("b", "output_1"): "position"},
        ),
        (
            [spec("a", width=3), spec("b", width=3)],
            [spec("y", width=3, unnamed=True), spec("z", width=3, unnamed=True)],
            {("a", "y"): "position", ("b", "z"): "position"},
        ),
        (
            [spec("0", width=3), spec("1", width=3)],
            [spec("y", width=3), spec("z", width=3)],
            {("0", "y"): "position", ("1", "z"): "position"},
        ),
        # Complex numbers are pairs of real ones
        (
            [spec("a", DISTANCE, 3, "complex64"), spec("b", DISTANCE, 3)],
            [spec("y", width=(3, 2)), spec("z", width=3)],
            {("a", "y"): "shape", ("b", "z"): "shape"},
        ),
    ],
)
def test_outputs_belong_together(reference, candidate, expected):
    found = pair(reference, candidate)
    assert how(found) == expected
    assert not found.mismatches
    assert not found.incidents


@pytest.mark.parametrize(
    ("reference", "candidate", "mismatches", "incidents"),
    [
        # Two of one shape under other names: nothing tells which is which
        (
            [spec("a", width=3), spec("b", width=3)],
            [spec("y1x", width=3), spec("z1x", width=3)],
            ["extra-output", "extra-output"],
            ["nothing-paired"],
        ),
        ([spec("a"), spec("b", width=3)], [spec("a")], [], ["missing-output"]),
        # One column of two that are no classes
        (
            [spec("a", DISTANCE, 2), spec("b", EMBEDDING, 3)],
            [spec("y", width=3), spec("z", width=1)],
            ["extra-output"],
            ["missing-output"],
        ),
        # What is of one name is taken, however alike others are
        ([spec("a"), spec("A")], [spec("a"), spec("b", width=3)], ["extra-output"], ["missing-output"]),
        (
            [spec("a", DISTANCE, 3), spec("b", EMBEDDING, 5)],
            [spec("b", width=3), spec("c", width=5)],
            ["extra-output"],
            ["missing-output"],
        ),
        ([spec("a")], [spec("a"), spec("b", width=3)], ["extra-output"], []),
        ([spec("a", dtype="string")], [spec("z", PROBABILITY)], ["extra-output"], ["nothing-paired"]),
        ([label("y", "string")], [spec("y")], ["extra-output"], ["nothing-paired"]),
        # By position only where there is as much on both sides
        (
            [spec("a", width=3), spec("b", width=3), spec("c", width=3)],
            [spec("output_0", width=3), spec("output_1", width=3)],
            ["extra-output", "extra-output"],
            ["nothing-paired"],
        ),
        # and each fits
        (
            [spec("a", width=3), spec("b", width=3), spec("c", width=4), spec("d", width=4)],
            [spec("out0", width=3), spec("out1", width=4), spec("out2", width=3), spec("out3", width=4)],
            ["extra-output"] * 4,
            ["nothing-paired"],
        ),
    ],
)
def test_what_cannot_be_paired_is_left_over(reference, candidate, mismatches, incidents):
    found = pair(reference, candidate)
    assert [mismatch.code for mismatch in found.mismatches] == mismatches
    assert [incident.code for incident in found.incidents] == incidents


def test_what_is_left_over_is_told():
    found = pair([spec("a"), spec("b", width=3)], [spec("a"), spec("c", width=(4, 5), dtype=None)])
    assert [mismatch.message for mismatch in found.mismatches] == [
        "output 'c' of the candidate (value of unknown type (n, 4, 5)) has no counterpart in the reference, "
        "which gives 'a' (value), 'b' (value)"
    ]
    (missing,) = found.incidents
    assert missing.message == (
        "output 'b' of the reference (value float32 (n, 3)) has no counterpart in the candidate, "
        "which gives 'a' (value), 'c' (value)"
    )
    assert missing.remedy == "Use --pair candidate_output=b, or leave it out with --ignore b"


def test_views_that_the_candidate_does_not_give_are_not_missing():
    reference = [label(view=True), probabilities(view=True), spec("decision", SCORE, 2, view=True)]
    found = pair(reference, [label()])
    assert found.not_compared == ("probabilities", "decision")
    assert not found.incidents
    assert pair([], []).not_compared == ()


def test_what_the_user_says_comes_first():
    reference, candidate = [spec("a"), spec("b")], [spec("a"), spec("b")]
    found = pair(reference, candidate, overrides={"a": "b", "b": "a"})
    assert how(found) == {("a", "b"): "the user", ("b", "a"): "the user"}
    ignored = pair(reference, candidate, ignore=["b"])
    assert how(ignored) == {("a", "a"): "kind"}
    assert not ignored.mismatches + ignored.incidents
    with pytest.raises(PairingError, match=r"there is no output 'c' of the candidate"):
        pair(reference, candidate, overrides={"c": "a"})
    with pytest.raises(PairingError, match=r"there is no output 'c' of the reference"):
        pair(reference, candidate, overrides={"a": "c"})
    with pytest.raises(PairingError, match=r"there is no output 'lable' to be ignored; did you mean 'label'"):
        pair([label()], [label()], ignore=["lable"])
    with pytest.raises(PairingError, match="'a' is to be paired with 'b', and one of them to be ignored"):
        pair(reference, candidate, overrides={"a": "b"}, ignore=["b"])


def test_whole_numbers_are_labels_before_all_else_that_they_may_be():
    views = [spec("probabilities", PROBABILITY, view=True), label(view=True)]
    for reference in (views, views[::-1]):
        assert how(pair(reference, [spec("out", dtype="int64")])) == {("label", "out"): "shape"}
        assert how(pair(reference, [spec("out", dtype="float32")])) == {("probabilities", "out"): "shape"}


@pytest.mark.parametrize("width", [(2, 3), ("k",)])
def test_a_row_that_is_a_tensor_or_of_any_width_has_no_classes_to_be_compared_by(width):
    (found,) = pair([probabilities(width=width)], [probabilities(classes=None, width=width)]).pairs
    assert found.notes == ()


def test_another_order_of_outputs_is_told_once():
    reference = [spec("a"), spec("b"), spec("c")]
    told = [note for found in pair(reference, reference[::-1]).pairs for note in found.notes]
    assert told == ["the candidate gives its outputs in another order: 'c', 'b', 'a'"]
    assert not any(found.notes for found in pair(reference, reference).pairs)


# Columns and classes


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (probabilities(), probabilities(), {}),
        (probabilities(), probabilities(classes=(1, 0)), {"columns": (1, 0)}),
        (probabilities(classes=("a", "b")), probabilities(classes=("b", "a")), {"columns": (1, 0)}),
        (
            probabilities(classes=(0, 1, 2), width=3),
            probabilities(classes=(2, 0, 1), width=3),
            {"columns": (1, 2, 0)},
        ),
        (probabilities(classes=("a", "b")), probabilities(), {}),
        (probabilities(), probabilities(classes=None), {}),
        (probabilities(), probabilities(classes=None, width=None), {"reference_column": 1, "other_follows": True}),
        (
            probabilities(classes=None),
            probabilities(classes=None, width=1),
            {"reference_column": 1, "other_follows": True},
        ),
        (probabilities(width=1), probabilities(), {"expand": "complement"}),
        (spec("s", SCORE, 1, classes=(0, 1)), spec("s", SCORE, 2, classes=(0, 1)), {"expand": "negate"}),
        (spec("s", SCORE, 2), spec("s", SCORE, 1), {}),
        # Neither of two distances follows from the other, nor do two of three classes tell the third.
        (spec("s", DISTANCE, 2, classes=(0, 1)), spec("s", DISTANCE, 1), {}),
        (probabilities(classes=None), probabilities(classes=(0, 1, 2), width=1), {}),
    ],
)
def test_columns_go_by_their_class(ours, theirs, expected):
    (found,) = pair([ours], [theirs]).pairs
    facts = {name: getattr(found, name) for name in ("columns", "reference_column", "expand")}
    facts["other_follows"] = found.other_follows or None
    assert {name: value for name, value in facts.items() if value is not None} == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "notes"),
    [
        (probabilities(), probabilities(), ()),
        (
            probabilities(),
            probabilities(classes=(1, 0)),
            ("the candidate's class columns are in another order: [1, 0]",),
        ),
        (
            probabilities(classes=("a", "b")),
            probabilities(),
            ("the candidate numbers its classes; its columns are taken as ['a', 'b']",),
        ),
        (
            probabilities(),
            probabilities(classes=None),
            ("the candidate does not name its classes; columns are compared in order",),
        ),
        (
            probabilities(classes=None),
            probabilities(),
            ("the reference does not name its classes; columns are compared in order",),
        ),
        (probabilities(width=1), probabilities(classes=None, width=1), ()),
        (probabilities(width=1), probabilities(classes=(1, 0), width=1), ()),
        (label("y"), spec("y"), ("its kind differs: label in the reference, value in the candidate",)),
        (
            probabilities("y"),
            spec("y", width=2),
            ("the candidate does not name its classes; columns are compared in order",),
        ),
    ],
)
def test_what_was_decided_about_columns_is_told(ours, theirs, notes):
    (found,) = pair([ours], [theirs]).pairs
    assert found.notes == notes


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (probabilities(classes=("a", "b")), probabilities(classes=("a", "c"))),
        (probabilities(classes=(0, 1, 2), width=3), probabilities(classes=(0, 1, 3), width=3)),
        (probabilities(classes=(0, 1, 2), width=3), probabilities(classes=(0, 1, 2, 3), width=4)),
    ],
)
def test_other_classes_are_a_mismatch(ours, theirs):
    (mismatch,) = pair([ours], [theirs]).mismatches
    assert mismatch.code == "classes"
    assert mismatch.message == (
        f"the classes of 'probabilities' differ: reference {list(ours.classes)}, candidate {list(theirs.classes)}"
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (probabilities(classes=(0, 1, 2), width=3), probabilities(classes=None, width=4)),
        (probabilities(classes=None, width=4), probabilities(classes=(0, 1, 2), width=3)),
        (probabilities(classes=(0, 1, 2), width=3), probabilities(classes=(0, 1, 2), width=4)),
    ],
)
def test_another_number_of_columns_alone_tells_nothing_about_classes(ours, theirs):
    assert not pair([ours], [theirs]).mismatches, "the shapes are compared when the answers are"


def test_what_is_given_beside_an_output_for_each_class_is_left_over():
    beside = [spec("vector", width=7), spec("text", dtype="string")]
    found = pair([probabilities(classes=("a", "b"))], [spec("p_a"), spec("p_b"), *beside])
    assert {one.candidate for one in found.pairs} == {"p_a", "p_b"}
    assert [mismatch.output for mismatch in found.mismatches] == ["vector", "text"]


@pytest.mark.parametrize(("columns", "expand"), [(3, None), (1, "complement")])
def test_an_output_for_each_class_is_found_by_its_name(columns, expand):
    classes = ("1", "i-1", "b") if columns == 3 else (False, True)
    names = ("p_1", "p_i-1", "p_b") if columns == 3 else ("p0", "p1")
    ours = probabilities(classes=classes, width=columns)
    found = pair([ours], [spec(name, width=1) for name in reversed(names)])
    by_column = sorted(found.pairs, key=lambda one: one.reference_column)
    facts = [(one.candidate, one.reference_column, one.expand) for one in by_column]
    assert facts == [(name, place, expand) for place, name in enumerate(names)]
    assert {one.matched_by for one in found.pairs} == {"the class in its name"}
    assert not found.mismatches + found.incidents
    unclear = pair([ours], [spec(name, width=1) for name in (*names[1:], "other")])
    assert unclear.mismatches


@pytest.mark.parametrize(
    ("ours", "theirs", "kind"),
    [
        (label("y"), spec("y", dtype="int64"), LABEL),
        (label("y"), spec("y", dtype="float32"), VALUE),
        (label("y", "float64"), spec("y", dtype="int64"), VALUE),
        (spec("y", DISTANCE), spec("y"), DISTANCE),
        (spec("y"), spec("y", DISTANCE), DISTANCE),
        (spec("y", SCORE), spec("y", DISTANCE), SCORE),
    ],
)
def test_the_kind_of_a_pair(ours, theirs, kind):
    (found,) = pair([ours], [theirs]).pairs
    assert found.kind is kind


# Margins of labels


def margin(reference, candidate=None):
    found = next(one for one in pair(reference, candidate or reference).pairs if one.kind is LABEL)
    return found.margin_from, found.margin_kind, [score.reference for score in found.scores]


def test_a_label_is_judged_by_what_it_was_picked_from():
    scores = spec("decision", SCORE, 3, classes=(0, 1, 2))
    shares = probabilities(classes=(0, 1, 2), width=3)
    assert margin([label(), shares]) == ("probabilities", PROBABILITY, ["probabilities"])
    assert margin([label(), scores, shares]) == ("probabilities", PROBABILITY, ["probabilities"])
    decided = label(decided_by="decision")
    assert margin([decided, scores, shares]) == ("decision", SCORE, ["decision"])
    # What the candidate does not give cannot explain another label; how sure the reference was is known all the same.
    views = [replace(one, view=True) for one in (decided, scores, shares)]
    assert margin(views, [label(), shares]) == ("decision", SCORE, ["probabilities"])
    assert margin(views, [label()]) == (None, None, [])


@pytest.mark.parametrize(
    "other",
    [
        spec("decision", SCORE, 3),  # may be one a pair of classes
        spec("value", VALUE, 3),
        spec("map", PROBABILITY, (3, 4), classes=(0, 1, 2)),
    ],
)
def test_what_tells_nothing_about_a_label(other):
    assert margin([label(), other]) == (None, None, [])


def test_a_single_score_tells_about_a_label():
    assert margin([label(), spec("decision", SCORE)]) == ("decision", SCORE, ["decision"])
    assert margin([label(), spec("far", DISTANCE, 3)]) == ("far", DISTANCE, ["far"])
    several = spec("label", LABEL, 3, "int64")
    assert margin([several, probabilities()]) == (None, None, [])


# What a model really gave


def test_what_was_given_corrects_what_was_declared():
    declared = Signature(None, (spec("p", PROBABILITY, 7, "float64", classes=(0, 1)),), row_axes={"h": 1})
    answers = {
        "p": np.zeros((4, 2), np.float32),
        "h": np.zeros((4, 3, 5)),
        "label": np.array(["a", "b", "a", "b"]),
        "word": np.array(["a", "b", "a", "b"], dtype=object),
    }
    found = {one.name: one for one in observed(declared, answers)}
    assert found["p"] == spec("p", PROBABILITY, 2, "float32", classes=(0, 1))
    assert (found["h"].shape, found["h"].row_axis, found["h"].dtype) == ((None, 3, 5), 1, "float64")
    assert (found["label"].kind, found["label"].dtype) == (LABEL, "string")
    assert found["word"].dtype == "string"
    assert list(found) == list(answers)


def test_a_column_stands_for_a_vector_where_it_is_a_view():
    def stands(ours, theirs):
        return pair([ours], [theirs]).pairs[0].column_for_vector

    assert stands(spec("y", view=True), spec("y", width=1))
    assert not stands(spec("y"), spec("y", width=1))
    assert not stands(spec("y", view=True), spec("y"))
    assert not stands(spec("y", width=1, view=True), spec("y", width=1))
    assert not stands(spec("y", view=True), spec("y", width=1, row_axis=1))
    assert stands(spec("y", view=True), spec("y", width=1, row_axis=0))


def test_the_reference_is_asked_for_what_is_compared_and_for_margins():
    scores = spec("decision", SCORE, 2, classes=(0, 1), view=True)
    views = [label(view=True, decided_by="decision"), probabilities(view=True), scores]
    assert pair(views, [label(), probabilities()]).reference_outputs == {"label", "probabilities", "decision"}
    assert pair(views, [probabilities()]).reference_outputs == {"probabilities"}


# The small questions


def shaped(*shape, kind=VALUE, dtype="float32", name="y"):
    return OutputSpec(name, kind, dtype, shape)


@pytest.mark.parametrize(
    ("shape", "columns"),
    [((None,), 1), ((None, 1), 1), ((None, 3), 3), ((None, "k"), None), ((None, None), None), ((None, 3, 2), None)],
)
def test_how_many_columns_a_row_has(shape, columns):
    assert pairing._columns_of(shaped(*shape)) == columns
    assert pairing._columns_of(OutputSpec("y", VALUE)) == 1


@pytest.mark.parametrize(
    ("ours", "theirs", "fits"),
    [
        (shaped(None), shaped(None), True),
        (shaped(None), shaped(None, 1), True),
        (shaped(None, 2), shaped(None, 3), False),
        (shaped(None, 2), shaped(None, 2), True),
        (shaped(None), shaped(None, 2), False),
        (shaped(None, kind=Kind.PROBABILITY), shaped(None, 2), True),
        (shaped(None), shaped(None, 2, kind=Kind.SCORE), True),
        (shaped(None, 2, kind=Kind.SCORE), shaped(None), True),
        (shaped(None, kind=Kind.SCORE), shaped(None, 3), False),
        (shaped(None, kind=Kind.DISTANCE), shaped(None, 2), False),
        (shaped(None, 3, dtype="complex64"), shaped(None, 3, 2), True),
        (shaped(None, 3, dtype="complex64"), shaped(None, 3), False),
        (shaped(None, 3, dtype="complex64"), shaped(None, 3, dtype="complex128"), True),
    ],
)
def test_two_outputs_may_be_the_same_going_by_the_shape_of_a_row(ours, theirs, fits):
    assert pairing._fits(ours, theirs) is fits
    assert pairing._fits(theirs, ours) is fits


@pytest.mark.parametrize(
    ("ours", "theirs", "comparable"),
    [
        (shaped(None), shaped(None, dtype="int64"), True),
        (shaped(None), shaped(None, dtype="string"), False),
        (shaped(None, dtype="string"), shaped(None), False),
        (shaped(None, kind=Kind.LABEL, dtype="int64"), shaped(None, dtype="int64"), True),
        (shaped(None, kind=Kind.LABEL, dtype="string"), shaped(None, dtype="int64"), True),
        (shaped(None, kind=Kind.LABEL, dtype="int64"), shaped(None), False),
        (shaped(None, dtype="bfloat16"), shaped(None, kind=Kind.LABEL, dtype="int64"), False),
        (shaped(None, kind=Kind.LABEL, dtype=None), shaped(None, dtype="int64"), False),
    ],
)
def test_two_outputs_can_be_compared(ours, theirs, comparable):
    assert pairing._comparable(ours, theirs) is comparable


@pytest.mark.parametrize(
    ("kind", "dtype", "place"),
    [
        (Kind.PROBABILITY, "float32", 0),
        (Kind.SCORE, "float32", 1),
        (Kind.DISTANCE, "float32", 2),
        (Kind.VALUE, "float32", 3),
        (Kind.EMBEDDING, "float32", 4),
        (Kind.LABEL, "float32", 5),
        (Kind.LABEL, "int64", -1),
        (Kind.PROBABILITY, "int64", 0),
    ],
)
def test_what_a_number_is_taken_for_before_all_else(kind, dtype, place):
    assert pairing._preference(shaped(None, kind=kind), shaped(None, dtype=dtype)) == place


def test_names_that_differ_in_letters_nobody_hears():
    assert pairing._similar_name(shaped(None, name="Class_Prob"), shaped(None, name="classprob"))
    assert not pairing._similar_name(shaped(None, name="class_prob"), shaped(None, name="class_probs"))


def test_outputs_in_words():
    assert pairing._text(shaped(None, 3, kind=Kind.SCORE)) == "score float32 (n, 3)"
    assert pairing._text(OutputSpec("y", VALUE)) == "value of unknown type (?)"
    assert pairing._listed([shaped(None), shaped(None), shaped(None, name="z", kind=Kind.LABEL)]) == (
        "'y' (value), 'z' (label)"
    )
    assert pairing._listed([]) == "nothing"


@pytest.mark.parametrize(
    ("classes", "names", "chosen"),
    [
        (("a", "b"), ["p_b", "p_a"], ["p_a", "p_b"]),
        ((1, -1), ["p1", "p-1"], ["p1", "p-1"]),
        ((True, False), ["p0", "p1"], ["p1", "p0"]),
        (("a", "b"), ["p_a", "q_a"], []),
        (("a", "b"), ["p_a"], []),
    ],
)
def test_the_output_of_each_class(classes, names, chosen):
    assert [spec.name for spec in pairing._named_after(classes, [shaped(None, name=name) for name in names])] == chosen
