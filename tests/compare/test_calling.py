"""How an open model is asked: in calls of which size, with one answer a row, and what is said where it gives others."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from likewise.compare.call import (
    BesideRowsError,
    Side,
    SingleAnswerError,
    answered,
    answers,
    columns_used,
    incident,
    joined,
    merged_casts,
    open_side,
    recorded,
    settled,
)
from likewise.compare.feed import plan
from likewise.contracts.comparison import Cast, Incident
from likewise.contracts.data import Batch, RowIds
from likewise.contracts.models import InputSpec, Model, Signature
from likewise.data.columns import ArrayColumns
from likewise.errors import DataError, LikewiseError, ModelError, RowCountError

X = np.array([1.0, 2.0, 4.0])


def rows(count=3, stacked=True):
    return Batch(RowIds(np.arange(count)), ArrayColumns({"x": X[:count]}), stacked)


class Told:
    """A model that answers as it is told, and remembers what it was asked."""

    def __init__(self, answer, batch=None, **facts):
        self.signature = Signature((InputSpec("x", **facts),), None, batch=batch)
        self.answer, self.asked, self.outputs = answer, [], []

    def run(self, batch, outputs=None):
        self.asked.append(batch.inputs["x"].tolist())
        self.outputs.append(outputs)
        return self.answer(batch.inputs["x"])


def side(answer, name="candidate", batch=None, first=None, facts=None, **given):
    runner = Told(answer, batch, **(facts or {}))
    return Side(name, "net.onnx", runner, plan(first or rows(), runner.signature, side=name), **given)


def twice(x):
    return {"y": 2 * x}


def refused(error, *given, **options):
    with pytest.raises(error) as failure:
        answers(*given, **options)
    return failure.value


# Calls


@pytest.mark.parametrize(
    ("count", "size", "batch", "asked"),
    [
        (3, None, None, [[1, 2, 4]]),
        (3, 3, None, [[1, 2, 4]]),
        (3, 4, None, [[1, 2, 4]]),
        (3, 2, None, [[1, 2], [4]]),
        (3, 1, None, [[1], [2], [4]]),
        (1, 1, None, [[1]]),
        (1, None, None, [[1]]),
        (0, None, None, [[]]),
        (0, 2, None, [[]]),
        (3, None, 2, [[1, 2], [4, 4]]),  # the last row again, where a model takes nothing but two
        (3, 1, 2, [[1, 2], [4, 4]]),
        (2, 1, 2, [[1, 2]]),
        (1, None, 4, [[1, 1, 1, 1]]),
    ],
)
def test_rows_are_asked_about_in_calls_of_a_size(count, size, batch, asked):
    model = side(twice, batch=batch)
    found, casts = answers(model, rows(count), size)
    assert model.runner.asked == asked
    assert found["y"].tolist() == (2 * X[:count]).tolist()
    assert casts == ()


def test_a_model_is_asked_for_what_is_read():
    model = side(twice, outputs=frozenset({"y"}))
    answers(model, rows())
    assert model.runner.outputs == [frozenset({"y"})]


def test_a_sample_is_asked_about_whole_and_is_one_row():
    first = rows(stacked=False)
    model = side(lambda x: {"y": 2 * x, "loss": np.array(0.5)}, first=first)
    found, _ = answers(model, first, 1)
    assert model.runner.asked == [[1, 2, 4]]
    assert {name: array.tolist() for name, array in found.items()} == {"y": [[2.0, 4.0, 8.0]], "loss": [0.5]}


def test_what_was_lost_on_the_way_is_handed_on():
    model = side(twice, facts={"dtype": "float32"})
    _, (lost,) = answers(model, rows())
    assert (lost.side, lost.input, lost.column, lost.source_dtype, lost.target_dtype, lost.values, lost.changed) == (
        *("candidate", "x", "x", "float64", "float32"),
        *(3, 0),
    )


# One answer a row


REMEDY = (
    "Every output needs one answer per row along its first axis; leave it out with --ignore y, or "
    "use --batch-axis y:none, or none where every call is one sample"
)


@pytest.mark.parametrize(
    ("answer", "got"),
    [
        (np.zeros(2), "answered 2 in output 'y', of shape (2,)"),
        (np.zeros((4, 3)), "answered 4 in output 'y', of shape (4, 3)"),
        (np.zeros((1_200, 3)), "answered 1,200 in output 'y', of shape (1200, 3)"),
    ],
)
def test_more_or_fewer_answers_than_rows_are_refused(answer, got):
    error = refused(RowCountError, side(lambda x: {"y": answer}), rows())
    assert error.message == f"the candidate (net.onnx) was given 3 rows and {got}"
    assert (error.remedy, error.side, error.code) == (REMEDY, "candidate", "row-count")


@pytest.mark.parametrize(("name", "code"), [("reference", "single-answer"), ("candidate", "row-count")])
def test_one_number_for_all_rows_is_no_answer(name, code):
    error = refused(RowCountError, side(lambda x: {"y": np.array(0.5)}, name), rows())
    assert error.message == (
        f"the {name} (net.onnx) was given 3 rows and answered a single number in output 'y', of shape ()"
    )
    assert (error.code, isinstance(error, SingleAnswerError)) == (code, name == "reference")
    assert not isinstance(error, BesideRowsError)


def test_the_first_of_several_single_numbers_is_named():
    error = refused(RowCountError, side(lambda x: {"z": np.array(0.5), "y": np.array(1.5)}), rows())
    assert "in output 'y'" in error.message


def test_one_number_beside_answers_for_rows_stands_for_its_call():
    def answer(x):
        return {"y": 2 * x, "loss": np.array(x.sum()), "also": np.array(0.5)}

    model = side(answer)
    error = refused(BesideRowsError, model, rows())
    assert error.outputs == {"loss", "also"}
    assert "answered a single number in output 'also'" in error.message
    known, found = answered(model, rows(), 2)
    assert known.rowless == {"loss", "also"}
    assert {name: array.tolist() for name, array in found.items()} == {
        "y": [2.0, 4.0, 8.0],
        "loss": [3.0, 3.0, 4.0],
        "also": [0.5, 0.5, 0.5],
    }
    unknown, found = answered(side(twice), rows(), 2)
    assert (unknown.rowless, found["y"].tolist()) == (frozenset(), [2.0, 4.0, 8.0])
    # Of those that were single numbers on the first rows, the others are told.
    some = side(answer, rowless=frozenset({"also"}))
    assert "in output 'loss'" in refused(BesideRowsError, some, rows()).message


def test_what_was_one_number_must_stay_one():
    model = side(lambda x: {"y": 2 * x, "loss": np.zeros(3)}, rowless=frozenset({"loss"}))
    assert "in output 'loss', of shape (3,)" in refused(RowCountError, model, rows()).message


@pytest.mark.parametrize("left_out", [np.array(0.5), np.zeros(7), np.array([{}, []], dtype=object), np.zeros((3, 2))])
def test_an_output_that_is_left_out_needs_no_rows(left_out):
    model = side(lambda x: {"y": 2 * x, "other": left_out}, ignored=frozenset({"other"}))
    found, _ = answers(model, rows())
    assert found["y"].tolist() == [2.0, 4.0, 8.0]
    assert found["other"].shape == ((3, 2) if left_out.shape == (3, 2) else (3, 0))


# What a model raises


def raising(error):
    def answer(x):
        raise error

    return answer


@pytest.mark.parametrize("name", ["reference", "candidate"])
def test_an_error_of_a_model_names_the_model_and_the_rows(name):
    error = refused(ModelError, side(raising(ValueError("no such thing")), name), rows())
    assert error.message.startswith(f"the {name} (net.onnx) failed on rows 0 to 2: it raised an error: ")
    assert error.message.endswith("no such thing")
    assert error.side == name
    assert error.remedy == "Look at the rows, and at the model by itself"


@pytest.mark.parametrize(
    ("name", "given", "remedy"),
    [
        ("reference", "", "Both models have to answer every row: mend or leave out those it refuses"),
        (
            "candidate",
            "",
            "Both models have to answer every row: mend or leave out those it refuses, or if it answers none, "
            "make it another way or serve the reference itself",
        ),
        ("reference", "Wake it", "Wake it"),
        ("twin", "", ""),
    ],
)
def test_an_error_of_ours_is_told_once_with_a_way_out(name, given, remedy):
    known = ModelError("net.onnx did not answer: it sleeps", remedy=given)
    error = refused(ModelError, side(raising(known), name), rows(1))
    assert error.message == f"the {name} (net.onnx) failed on row 0: it sleeps"
    assert (error.remedy, error.side) == (remedy, name)


def test_a_model_that_ends_the_process_is_told():
    error = refused(ModelError, side(raising(SystemExit(3))), rows(2))
    assert error.message == "the candidate (net.onnx) tried to end the process on rows 0 to 1: sys.exit(3)"
    assert error.side == "candidate"


class Thing:
    """Equal to itself only."""


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([Thing(), Thing(), Thing()], "Thing"),
        ([[1], [2], [3]], "list"),
        ([None, {}, None], "dict"),
        (["a", None, 1], None),
        ([None, None, None], None),
    ],
)
def test_what_cannot_be_compared_as_a_value_is_no_answer(values, kind):
    array = np.empty(3, dtype=object)
    array[:] = values
    model = side(lambda x: {"y": array})
    if kind is None:
        assert answers(model, rows())[0]["y"].tolist() == values
        return
    error = refused(ModelError, model, rows())
    assert error.message.endswith(f"output 'y' holds objects of type {kind}, which cannot be compared as values")
    assert error.remedy.startswith("Leave it out with --ignore y, or answer with numbers or text")


def test_a_lone_object_and_text_without_a_letter_are_no_answers():
    alone = np.empty((), dtype=object)
    alone[()] = "text"
    assert "holds objects of type str" in refused(ModelError, side(lambda x: {"y": alone}), rows()).message
    assert "without a byte" in refused(ModelError, side(lambda x: {"y": np.zeros(3, "V0")}), rows()).message


def test_what_a_model_keeps_is_copied_and_what_is_ours_is_not():
    own, memory = np.arange(3.0), np.arange(6.0)
    found, _ = answers(side(lambda x: {"own": own, "part": memory[:3]}), rows())
    assert found["own"] is own
    assert not np.may_share_memory(found["part"], memory)


def test_a_size_that_no_memory_holds_is_refused():
    error = refused(ModelError, side(twice, batch=2**62), rows())
    assert error.message == (
        f"the candidate (net.onnx) takes {2**62:,} rows in every call, for which there is no memory"
    )
    assert (error.side, error.remedy) == ("candidate", "Export it for another batch size, or for any")


# Several calls


def test_answers_of_several_calls_are_one_if_they_are_of_one_kind():
    model = side(twice)
    one = {"y": np.zeros((2, 3)), "z": np.zeros(2)}
    assert joined(model, [one]) == one
    found = joined(model, [one, {"y": np.ones((1, 3)), "z": np.ones(1)}])
    assert [(name, array.shape, array.sum()) for name, array in found.items()] == [("y", (3, 3), 3), ("z", (3,), 1)]
    with pytest.raises(ModelError, match="different outputs from call to call") as failure:
        joined(model, [one, {"y": one["y"]}])
    assert (failure.value.message.split(" gives")[0], failure.value.side) == ("the candidate (net.onnx)", "candidate")
    with pytest.raises(ModelError) as failure:
        joined(model, [one, {"y": np.zeros((2, 4)), "z": np.zeros(2)}])
    assert failure.value.message == (
        "output 'y' of the candidate (net.onnx) has a different shape from call to call: ['(3,)', '(4,)']"
    )
    assert "give each as a sample of its own" in failure.value.remedy
    assert failure.value.side == "candidate"


def cast(column, source="float64", values=10, changed=1, largest=0.5, note=""):
    return Cast("candidate", "x", column, source, "float32", values, changed, largest, note)


def test_casts_of_many_batches_are_one_a_column_and_type():
    found = merged_casts(
        [
            *(cast("b"), cast("a", note="m"), cast("b", values=5, changed=2, largest=0.75), cast("a", "int64")),
            *(cast("b", values=1, changed=0, largest=0.0, note="gaps"), cast("a", largest=0.25, note="b")),
        ]
    )
    assert found == (
        cast("a", values=20, changed=2, largest=0.5, note="m"),
        cast("a", "int64"),
        cast("b", values=16, changed=3, largest=0.75, note="gaps"),
    )


def test_columns_that_no_model_takes():
    available = dict.fromkeys("dcba", X)
    some, others, all_of_them = (SimpleNamespace(columns=columns) for columns in (("a",), ("c", "a"), None))
    assert columns_used([some], available) == ("d", "c", "b")
    assert columns_used([some, others], available) == ("d", "b")
    assert columns_used([some, all_of_them, others], available) == ()


# A model by itself


def test_an_incident_has_the_code_of_its_error_or_another():
    error = DataError("it is torn", remedy="Mend it", side="reference")
    assert incident(error) == Incident("data", "it is torn", "Mend it", "reference")
    assert incident(error, "other") == Incident("other", "it is torn", "Mend it", "reference")


def test_one_model_alone_is_opened_and_fed():
    model = Model("python", lambda x: {"y": 2 * x})
    with open_side("reference", model, rows(), {}) as opened:
        assert (opened.name, opened.model) == ("reference", model.name)
        assert answers(opened, rows())[0]["y"].tolist() == [2.0, 4.0, 8.0]
    with (
        pytest.raises(LikewiseError, match="no input 'nothing' to feed"),
        open_side("it", model, rows(), {"nothing": "x"}),
    ):
        pass


@pytest.mark.parametrize(("framework", "other"), [("recorded", "python"), ("python", "recorded")])
def test_recorded_answers_are_known_by_side(framework, other):
    asked = SimpleNamespace(reference=Model(framework, "a"), candidate=Model(other, "b"))
    assert recorded(asked, "reference") is (framework == "recorded")
    assert recorded(asked, "candidate") is (other == "recorded")


def typed(dtype):
    def answer(x):
        if str(x.dtype) != dtype:
            raise TypeError(dtype)
        return {"y": x}

    return answer


@pytest.mark.parametrize(
    ("dtype", "as_it_is", "found", "calls"),
    [("float64", {"x"}, True, 1), ("float32", set(), False, 1), ("int8", set(), False, 1)],
)
def test_the_type_of_a_lone_input_is_settled_in_one_call(dtype, as_it_is, found, calls):
    """What it refuses, it is asked about again in the declared type, by who needs the answers."""
    model = side(typed(dtype), facts={"dtype": "float32", "guessed": True})
    settled_side, given = settled(model, rows(), 3)
    assert settled_side.feed.as_it_is == as_it_is
    assert (given is not None) is found
    assert len(model.runner.asked) == calls


def test_a_type_that_is_declared_is_not_in_question():
    model = side(twice, facts={"dtype": "float32"})
    assert settled(model, rows()) == (model, None)
    assert not model.runner.asked
