"""Which column of the data reaches which input of a model, and what is lost on the way: no model is run here."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from likewise.compare import call
from likewise.compare import feed as feeding
from likewise.compare.call import Side, answers, rows_text, settled, timed
from likewise.compare.feed import plan, require_inputs
from likewise.contracts.data import Batch, RowIds
from likewise.contracts.models import InputSpec, Signature
from likewise.data.columns import ArrayColumns, FrameColumns
from likewise.errors import DataError, FeedingError, LikewiseError, UsageError
from likewise.models.remote import Apart
from likewise.registry import open_source

COUNT = 3
ONE = np.arange(COUNT, dtype=np.float64)


def batch(stacked=True, **columns):
    return Batch(RowIds(np.arange(COUNT)), ArrayColumns(columns), stacked)


def takes(*inputs, **facts):
    return Signature(tuple(InputSpec(one) if isinstance(one, str) else one for one in inputs), None, **facts)


def wide(columns, dtype=np.float64):
    return np.arange(COUNT * columns, dtype=dtype).reshape(COUNT, columns)


def planned(rows, signature, **options):
    return plan(rows, signature, side="candidate", **options)


def routes(feed):
    return [(route.input.name, route.columns, route.stacked, route.split) for route in feed.routes]


@pytest.mark.parametrize(
    ("rows", "signature", "options", "expected", "notes"),
    [
        (batch(a=ONE, b=ONE), takes("b", "a"), {}, [("b", ("b",), False, None), ("a", ("a",), False, None)], ()),
        (
            batch(a=ONE, b=ONE),
            takes("x", "b"),
            {"mapping": {"x": "a"}},
            [("x", ("a",), False, None), ("b", ("b",), False, None)],
            (),
        ),
        # As exporters spell names
        (
            batch(**{"sepal length (cm)": ONE, "b": ONE}),
            takes("sepal_length__cm_", "b"),
            {},
            [("sepal_length__cm_", ("sepal length (cm)",), False, None), ("b", ("b",), False, None)],
            ("candidate: input 'sepal_length__cm_' is fed from column 'sepal length (cm)'",),
        ),
        (
            batch(**{"a b": ONE, "c": ONE}),
            takes("a_b", "c", table=True, underscored=True),
            {},
            [("a_b", ("a b",), False, None), ("c", ("c",), False, None)],
            ("candidate: input 'a_b' is fed from column 'a b'",),
        ),
        (
            batch(**{"a b": ONE, "c": ONE, "d": ONE}),
            takes("a_b", "c", "d"),
            {},
            [("a_b", ("a b",), False, None), ("c", ("c",), False, None), ("d", ("d",), False, None)],
            ("candidate: input 'a_b' is fed from column 'a b'",),
        ),
        # Optional ones are left to their default, but not all of them
        (
            batch(z=ONE),
            takes(InputSpec("k", optional=True), InputSpec("m", optional=True)),
            {},
            [("k", ("z",), False, None)],
            ("candidate: input 'k' is fed from 'z', the only column of the data",),
        ),
        (batch(a=ONE), takes("a", InputSpec("k", optional=True)), {}, [("a", ("a",), False, None)], ()),
        (
            batch(a=ONE, k=ONE),
            takes("a", InputSpec("k", optional=True)),
            {},
            [("a", ("a",), False, None), ("k", ("k",), False, None)],
            (),
        ),
        # Arrays without names
        (
            batch(arr_1=ONE, arr_0=ONE),
            takes("x", "y"),
            {},
            [("x", ("arr_0",), False, None), ("y", ("arr_1",), False, None)],
            ("candidate: arrays without names are taken in order as 'x', 'y'",),
        ),
        (
            batch(arr_0=wide(2), arr_1=ONE),
            takes("x"),
            {},
            [("x", ("arr_0",), False, None)],
            ("candidate: arrays without names are taken in order as 'x'; 'arr_1' is left out",),
        ),
        (
            batch(arr_0=wide(2), arr_1=ONE, arr_2=ONE),
            takes("x"),
            {},
            [("x", ("arr_0",), False, None)],
            ("candidate: arrays without names are taken in order as 'x'; 'arr_1', 'arr_2' are left out",),
        ),
        (
            batch(arr_0=wide(2)),
            takes(InputSpec("x", shape=(None, 2))),
            {},
            [("x", ("arr_0",), False, None)],
            ("candidate: input 'x' is fed from 'arr_0', the only column of the data",),
        ),
        (
            batch(arr_0=ONE, arr_1=ONE),
            takes(InputSpec("x", shape=(None, 2))),
            {},
            [("x", ("arr_0", "arr_1"), True, None)],
            ("candidate: input 'x' is 2 columns side by side, in the data's order: 'arr_0', 'arr_1'",),
        ),
        # One array for several inputs
        (
            batch(arr_0=wide(2)),
            takes("a", "b"),
            {},
            [("a", ("arr_0",), False, 0), ("b", ("arr_0",), False, 1)],
            ("candidate: the columns of 'arr_0' are taken by position as 'a', 'b'",),
        ),
        (
            batch(X=wide(2)),
            takes("a", "b"),
            {},
            [("a", ("X",), False, 0), ("b", ("X",), False, 1)],
            ("candidate: the columns of 'X' are taken by position as 'a', 'b'",),
        ),
        (
            batch(X=wide(2)),
            takes("a", "b"),
            {"order": ["b", "a"]},
            [("a", ("X",), False, 1), ("b", ("X",), False, 0)],
            ("candidate: the columns of 'X' are taken by position as 'b', 'a'",),
        ),
        (
            batch(X=wide(2)),
            takes("a", "b"),
            {"order": ["b", "c"]},
            [("a", ("X",), False, 0), ("b", ("X",), False, 1)],
            ("candidate: the columns of 'X' are taken by position as 'a', 'b'",),
        ),
        # One input for several columns
        (
            batch(a=ONE, b=ONE),
            takes(InputSpec("x", "float32", (None, 2))),
            {},
            [("x", ("a", "b"), True, None)],
            ("candidate: input 'x' is 2 columns side by side, in the data's order: 'a', 'b'",),
        ),
        (
            batch(a=ONE, b=ONE, c=ONE),
            takes(InputSpec("x", "float32", (None, 2))),
            {"order": ["b", "a"]},
            [("x", ("b", "a"), True, None)],
            ("candidate: input 'x' is 2 columns side by side, in the reference's order: 'b', 'a'",),
        ),
        (
            batch(a=ONE, b=ONE),
            takes(InputSpec("x", stackable=True)),
            {},
            [("x", ("a", "b"), True, None)],
            ("candidate: input 'x' is 2 columns side by side, in the data's order: 'a', 'b'",),
        ),
        # The only column
        (
            batch(a=wide(2)),
            takes(InputSpec("x", "float32", (None, 2))),
            {},
            [("x", ("a",), False, None)],
            ("candidate: input 'x' is fed from 'a', the only column of the data",),
        ),
        (
            batch(a=ONE),
            takes(InputSpec("x", "float32", (None,))),
            {},
            [("x", ("a",), False, None)],
            ("candidate: input 'x' is fed from 'a', the only column of the data",),
        ),
        (
            batch(a=ONE),
            takes(InputSpec("x", "float32", (None, 1))),
            {},
            [("x", ("a",), True, None)],
            ("candidate: input 'x' is 1 columns side by side, in the data's order: 'a'",),
        ),
        # Another rank than the data's, another order than the table's
        (
            batch(a=ONE, b=wide(1)),
            takes(InputSpec("a", shape=(None, 1)), InputSpec("b", shape=(None,))),
            {},
            [("a", ("a",), False, None), ("b", ("b",), False, None)],
            (
                "candidate: 'a' is fed as (n, 1), as the inputs declare",
                "candidate: 'b' is fed as (n,), as the inputs declare",
            ),
        ),
        (
            batch(a=ONE, b=ONE),
            takes("b", "a", table=True),
            {},
            [("b", ("b",), False, None), ("a", ("a",), False, None)],
            ("candidate: columns are taken by name, in the model's order and not in the data's",),
        ),
        (
            batch(a=ONE, c=ONE, b=ONE),
            takes("a", "b", table=True),
            {},
            [("a", ("a",), False, None), ("b", ("b",), False, None)],
            (),
        ),
    ],
)
def test_every_input_gets_its_column(rows, signature, options, expected, notes):
    feed = planned(rows, signature, **options)
    assert routes(feed) == expected
    assert feed.notes == notes


def test_a_model_that_declares_nothing_gets_everything():
    feed = planned(batch(a=ONE, b=ONE), Signature(None, None))
    assert (feed.routes, feed.columns) == (None, None)
    assert planned(batch(a=ONE, b=ONE), takes("b")).columns == ("b",)
    stacked = planned(batch(a=ONE, b=ONE), takes(InputSpec("x", shape=(None, 2))))
    assert stacked.columns == ("a", "b")


def test_which_of_several_arrays_is_the_input_can_be_said():
    rows = batch(x=wide(4), y=ONE)
    with pytest.raises(FeedingError, match="takes one array, the data has 2 columns: 'x', 'y'") as refused:
        planned(rows, takes(InputSpec("input", stackable=True)))
    assert refused.value.remedy.endswith("--feed input=x")
    assert routes(planned(rows, takes(InputSpec("input")), mapping={"input": "x"})) == [("input", ("x",), False, None)]


@pytest.mark.parametrize(
    ("rows", "signature", "options", "message"),
    [
        (
            batch(age=ONE, b=ONE),
            takes("agee", "b", table=True),
            {},
            "the candidate takes 'agee', which the data does not have; did you mean 'age'?",
        ),
        (
            batch(a=ONE, b=ONE),
            takes(InputSpec("x", "float32", (None,))),
            {},
            "the candidate takes one column, and the data has 2: 'a', 'b'",
        ),
        (
            batch(a=ONE, b=ONE),
            takes(InputSpec("x")),
            {},
            "the candidate takes one column, and the data has 2: 'a', 'b'",
        ),
        (
            batch(a=ONE, b=ONE),
            takes(InputSpec("x", "float32", (None, 3))),
            {},
            "input 'x' of the candidate takes (n, 3), the data has 2 columns: 'a', 'b'",
        ),
        (
            batch(a=ONE, b=ONE, c=ONE),
            takes(InputSpec("x", "float32", (None, 3))),
            {"order": ["b", "a"]},
            "input 'x' of the candidate takes (n, 3), the reference takes 2 columns: 'b', 'a'",
        ),
        (
            batch(a=ONE, b=ONE),
            takes(InputSpec("x", "float32", (None, 3, 2))),
            {},
            "input 'x' of the candidate takes (n, 3, 2), the data has 2 columns: 'a', 'b'",
        ),
        (
            batch(a=wide(2), b=ONE),
            takes(InputSpec("x", "float32", (None, 2))),
            {},
            "input 'x' of the candidate takes (n, 2), the data has 2 columns: 'a', 'b'",
        ),
        (batch(X=wide(3)), takes("a", "b"), {}, "the candidate takes 'a', 'b', which the data does not have"),
        (batch(X=ONE), takes("a", "b"), {}, "the candidate takes 'a', 'b', which the data does not have"),
        # Two columns that would be spelt alike
        (
            batch(**{"a b": ONE, "a-b": ONE}),
            takes("a_b", "c"),
            {},
            "the candidate takes 'a_b', 'c', which the data does not have; did you mean 'a b'?",
        ),
        # Two inputs that are spelt alike
        (
            batch(**{"a b": ONE, "c": ONE}),
            takes("a_b", "a-b", "c"),
            {},
            "the candidate takes 'a_b', 'a-b', which the data does not have; did you mean 'a b'?",
        ),
        (batch(a=ONE), takes("x"), {"mapping": {"x": "aa"}}, "there is no column 'aa' to feed 'x' from"),
    ],
)
def test_an_input_that_cannot_be_fed_is_refused(rows, signature, options, message):
    with pytest.raises(LikewiseError) as refused:
        planned(rows, signature, **options)
    assert message in str(refused.value)


def test_an_input_to_feed_that_no_model_has_is_a_usage_error():
    require_inputs({"x": "a"}, takes("y"), takes("x"))
    with pytest.raises(UsageError, match=r"there is no input 'xx' to feed from 'a'"):
        require_inputs({"xx": "a"}, takes("x"))
    with pytest.raises(UsageError) as refused:
        require_inputs({"x": "a"}, Signature(None, None))
    assert refused.value.remedy == "Inputs: none is declared, rows are fed as they are"


def test_what_a_table_holds_otherwise_is_told():
    gaps, words = pd.array([1, None, 3], "Int64"), ["u", "v", "u"]
    frame = pd.DataFrame({"a": gaps, "b": pd.Categorical(words), "c": words, "d": gaps})
    rows = next(iter(open_source(frame).batches(COUNT)))
    assert planned(rows, takes("a", "b", "c", "d")).notes == (
        "candidate: 'a', 'd' are read as arrays: whole numbers with gaps as float64, gaps as NaN",
        "candidate: 'b' is read as arrays: categories as the values they stand for",
    )
    coded = takes(InputSpec("b", coded=True), InputSpec("c", coded=True), table=True)
    assert planned(rows, coded).notes == ("candidate: values of 'c' are coded by the model's own list of categories",)


# What reaches the model


def fed(rows, signature, **options):
    given, casts = planned(rows, signature, **options)(rows)
    return given.inputs, casts


def test_columns_are_laid_side_by_side_in_the_declared_type():
    rows = batch(a=ONE + 0.1, b=np.arange(COUNT))
    inputs, casts = fed(rows, takes(InputSpec("x", "float32", (None, 2))))
    assert inputs["x"].dtype == np.float32
    assert np.array_equal(inputs["x"], np.stack([ONE + 0.1, np.arange(COUNT)], axis=1).astype(np.float32))
    (first,) = [loss for loss in casts if loss.changed]
    assert (first.side, first.input, first.column, first.values) == ("candidate", "x", "a", COUNT)
    assert (first.source_dtype, first.target_dtype, first.changed) == ("float64", "float32", COUNT)
    assert 0 < first.largest_relative_change < 1e-7
    undeclared, _ = fed(rows, takes(InputSpec("x", shape=(None, 2))))
    assert undeclared["x"].dtype == np.float64
    words, _ = fed(batch(a=ONE, b=np.array(["u", "v", "w"])), takes(InputSpec("x", shape=(None, 2))))
    assert words["x"].tolist() == [[0.0, "u"], [1.0, "v"], [2.0, "w"]]


def test_one_column_of_an_array_is_taken_for_each_input():
    inputs, casts = fed(batch(X=wide(2) + 0.1), takes(InputSpec("a", "float32"), InputSpec("b")), order=["b", "a"])
    assert np.array_equal(inputs["a"], (wide(2)[:, 1] + 0.1).astype(np.float32))
    assert np.array_equal(inputs["b"], wide(2)[:, 0] + 0.1)
    assert [loss.column for loss in casts if loss.changed] == ["X[1]"]


def test_whole_numbers_stay_what_they_are_where_the_type_is_meant_for_fractions():
    rows = batch(a=np.arange(COUNT), b=ONE)
    inputs, _ = fed(rows, takes(InputSpec("a", "float32", floating=True), InputSpec("b", "float32", floating=True)))
    assert (inputs["a"].dtype, inputs["b"].dtype) == (np.int64, np.float32)
    guessed = takes(InputSpec("a", "float32", guessed=True), InputSpec("b", "float64", guessed=True), InputSpec("b"))
    assert planned(rows, guessed).guesses(rows) == ("a",)


@pytest.mark.parametrize(
    ("array", "shape", "expected"),
    [
        (ONE, (None, 1), (COUNT, 1)),
        (wide(1), (None,), (COUNT,)),
        (wide(2), (None, 2), (COUNT, 2)),
        (wide(2), (None, "k"), (COUNT, 2)),
        (wide(2), (None, 3), None),
        (wide(2), (None,), None),
        (ONE, (None, 1, 1), None),
        (ONE, (None, 2), None),
    ],
)
def test_a_column_has_the_shape_that_its_input_declares(array, shape, expected):
    rows, signature = batch(x=array), takes(InputSpec("x", shape=shape))
    if expected is None:
        with pytest.raises(FeedingError, match="input 'x' of the candidate takes shape"):
            fed(rows, signature)
        return
    assert fed(rows, signature)[0]["x"].shape == expected
    whole = batch(stacked=False, x=array)
    assert fed(whole, signature)[0]["x"].shape == array.shape, "a test case is fed as it is"


@pytest.mark.parametrize(
    "signature", [Signature(None, None), takes("x"), takes("x", table=True), takes(InputSpec("x", "float64"))]
)
def test_each_model_has_memory_of_its_own(signature):
    rows = batch(x=ONE.copy())
    inputs, _ = fed(rows, signature)
    inputs["x"][:] = 9.0
    assert np.array_equal(rows.inputs["x"], ONE)


def test_a_sequence_of_a_test_case_is_fed_as_it_is():
    sequence = [ONE, ONE[:2]]
    assert fed(batch(stacked=False, x=sequence), takes("x"))[0]["x"] is sequence


def test_rows_are_named_from_the_first_to_the_last():
    names = [f"r{number}" for number in range(COUNT)]
    rows = Batch(RowIds(np.arange(COUNT), np.array(names, dtype=object)), ArrayColumns({"x": ONE}))
    told = [rows_text(rows.slice(0, count)) for count in range(COUNT + 1)]
    assert told == ["no rows", "row r0", "rows r0 to r1", "rows r0 to r2"]


class Refusing:
    """A model that answers rows in some types only, and beside them one number for all of them."""

    signature = takes(*(InputSpec(name, "float32", guessed=True) for name in "xy"))

    def __init__(self, **types):
        self.types = types

    def run(self, rows, outputs=None):
        for name, dtype in self.types.items():
            if str(rows.inputs[name].dtype) != dtype:
                raise TypeError(name)
        return {"sum": rows.inputs["x"] + rows.inputs["y"], "loss": np.array(0.5)}


@pytest.mark.parametrize(
    ("types", "as_it_is"),
    [({}, {"x", "y"}), ({"x": "float32"}, {"y"}), ({"y": "float32"}, {"x"}), ({"x": "int8"}, set())],
)
def test_what_a_model_takes_is_not_cast_although_it_answers_not_row_by_row(types, as_it_is):
    rows, model = batch(x=ONE, y=ONE), Refusing(**types)
    side = Side("candidate", "it", model, planned(rows, model.signature))
    assert settled(side, rows)[0].feed.as_it_is == as_it_is


def test_a_table_stays_a_table_and_a_lone_array_becomes_its_columns():
    frame = pd.DataFrame({"b": ["x", None, "y"], "a": pd.Categorical(["u", "v", "u"]), "spare": ONE})
    rows = Batch(RowIds(np.arange(COUNT)), FrameColumns(frame))
    inputs, casts = fed(rows, takes("a", "b", table=True))
    pd.testing.assert_frame_equal(inputs.frame(), frame[["a", "b"]])
    assert not casts
    inputs, _ = fed(batch(x=wide(2)), takes("a", "b", table=True))
    pd.testing.assert_frame_equal(inputs.frame(), pd.DataFrame(wide(2), columns=["a", "b"]))


class Reusing:
    """A model that answers with a part of its memory, which its next call writes to."""

    signature = takes("x")

    def __init__(self):
        self.memory = np.zeros(8)

    def run(self, rows, outputs=None):
        self.memory[: len(rows)] = rows.inputs["x"] * 2
        return {"twice": self.memory[: len(rows)]}


def test_answers_stay_what_they_were_when_the_model_is_called_again():
    rows, model = batch(x=ONE), Reusing()
    side = Side("candidate", "it", model, planned(rows, model.signature))
    assert answers(side, rows, 1)[0]["twice"].tolist() == [0.0, 2.0, 4.0]


def test_no_rows_are_one_call_with_no_rows():
    rows, model = batch(x=ONE), Reusing()
    side = Side("candidate", "it", model, planned(rows, model.signature))
    assert answers(side, rows.slice(0, 0))[0]["twice"].shape == (0,)


class Torn(dict):
    """Columns that are there and cannot be read."""

    def __getitem__(self, name):
        raise OSError("the disk is gone")


def test_rows_that_cannot_be_read_are_named():
    rows, model = batch(x=ONE), Reusing()
    side = Side("candidate", "it", model, planned(rows, model.signature))
    torn = Batch(rows.rows, ArrayColumns(Torn(x=ONE)))
    with pytest.raises(DataError, match="rows 0 to 2 cannot be read") as failure:
        answers(side, torn)
    assert failure.value.side == "candidate"


class Far(Apart):
    """A model in another process, whose processor is not ours."""

    def __init__(self):
        self.run, self.signature = Reusing().run, Reusing.signature


@pytest.mark.parametrize(("model", "seconds"), [(Reusing(), 0.5), (Far(), 4.0)])
def test_a_busy_machine_is_not_counted_unless_another_process_does_the_work(model, seconds, monkeypatch):
    clocks = {"perf_counter": iter([1.0, 5.0]).__next__, "process_time": iter([2.0, 2.5]).__next__}
    rows = batch(x=ONE)
    side = Side("candidate", "it", model, planned(rows, Reusing.signature))
    monkeypatch.setattr(call, "time", SimpleNamespace(**clocks))
    assert timed(side, rows)[2] == seconds


def test_what_cells_hold_is_each_models_own_too():
    cells = np.empty(COUNT, dtype=object)
    cells[:] = [[1], [2], [3]]
    inputs, _ = fed(batch(x=cells), takes(InputSpec("x", "object")))
    inputs["x"][0].append(9)
    assert cells.tolist() == [[1], [2], [3]]


# The small questions


@pytest.mark.parametrize(
    ("array", "shape", "told"),
    [
        (ONE, (None, 1), "(n, 1)"),
        (ONE, (None, 3), "(n, 1)"),
        (ONE, (None,), None),
        (ONE, (None, 1, 1), None),
        (ONE, None, None),
        (wide(1), (None,), "(n,)"),
        (wide(2), (None,), None),
        (wide(1), (None, 1), None),
        (wide(1), None, None),
        (wide(1)[:, :, None], (None,), None),
    ],
)
def test_a_column_is_fed_in_the_rank_that_its_input_declares(array, shape, told):
    assert feeding._other_rank(array, InputSpec("x", shape=shape)) == told


def test_shapes_types_and_names_in_words():
    assert feeding._shape_text((None,)) == "(n,)"
    assert feeding._shape_text((None, 3, "k")) == "(n, 3, k)"
    assert feeding._listed(map(str, range(12))).endswith("'10', '11'")
    assert feeding._listed(map(str, range(13))).endswith("'11' and 1 more")
    assert feeding._common_dtype([np.zeros(1, "i4"), np.zeros(1, "f4")]) == "float64"
    assert feeding._common_dtype([np.zeros(1, "i4"), np.zeros(1, "U1")]) == "object"
    assert feeding._spelled("_sepal length (cm)") == "sepal_length__cm_"
    assert feeding._underscored("sepal length (cm)") == "sepal_length_(cm)"


@pytest.mark.parametrize(
    ("names", "numbered"),
    [(["arr_0", "arr_1"], True), (["0", "1"], True), (["input_0"], True), (["arr_0", "x"], False), (["x0"], False)],
)
def test_names_that_name_nothing(names, numbered):
    assert feeding._numbered(names) is numbered


@pytest.mark.parametrize(
    ("columns", "inputs", "expected"),
    [
        ({"0": ONE, "1": ONE}, 2, True),
        ({"0": ONE}, 1, False),
        ({"0": wide(2), "1": ONE}, 1, True),  # the second may be targets
        ({"0": ONE, "1": ONE}, 1, False),
        ({"0": wide(2)}, 2, False),
    ],
)
def test_an_array_for_each_input_and_perhaps_targets(columns, inputs, expected):
    specs = [InputSpec(str(number)) for number in range(inputs)]
    assert feeding._are_inputs(batch(**columns), specs) is expected


def test_inputs_that_may_be_left_out():
    needed, spare, asked = InputSpec("a"), InputSpec("b", optional=True), InputSpec("c", optional=True)
    named = {"a": "a", "b": "b", "c": "x"}
    assert feeding._without_absent((needed, spare, asked), named, ["a"]) == (needed, asked)
    assert feeding._without_absent((needed, spare), named, ["a", "b"]) == (needed, spare)
    assert feeding._without_absent((spare, InputSpec("d", optional=True)), {"b": "b", "d": "d"}, []) == (spare,)


def test_the_type_that_an_input_is_cast_to():
    feed = feeding.Feed("candidate", None, as_it_is=frozenset({"kept"}))
    whole, fractions = np.zeros(1, "i4"), np.zeros(1, "f8")
    floating = InputSpec("x", "float32", floating=True)
    assert feed._target(InputSpec("x", "float32"), [whole]) == "float32"
    assert feed._target(floating, [whole, np.zeros(1, bool)]) is None
    assert feed._target(floating, [whole, fractions]) == "float32"
    assert feed._target(InputSpec("kept", "float32"), [fractions]) is None
    assert feed._target(InputSpec("x"), [fractions]) is None


def test_inputs_whose_type_nobody_declares():
    specs = (
        InputSpec("a", "float64", guessed=True),
        InputSpec("b", "float32", guessed=True),
        InputSpec("c", "float32"),
        InputSpec("d", guessed=True),
    )
    rows = batch(a=ONE, b=ONE, c=ONE, d=ONE)
    feed = planned(rows, takes(*specs))
    assert feed.guesses(rows) == ("b",)
    assert feed.columns == ("a", "b", "c", "d")
    assert feeding.Feed("candidate", None).guesses(rows) == ()
    assert feeding.Feed("candidate", None).columns is None
