"""Other values in the cells of the data, and what a cast leaves of them: every expected value is worked out by hand."""

from __future__ import annotations

import decimal
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from likewise.compare.variations.edge import all_features
from likewise.contracts.data import Batch, RowIds
from likewise.data.cells import (
    MISSING,
    Edit,
    Field,
    Loss,
    Variant,
    cast,
    edited,
    holds,
    listed,
    missing_in,
    names_of,
    reading_of,
    transplanted,
    varied,
    with_columns,
)
from likewise.data.columns import ArrayColumns, ArrowColumns, FrameColumns
from likewise.errors import FeedingError

NAN = float("nan")


def batch(columns, rows=3):
    return Batch(RowIds(np.arange(rows)), columns)


def field(name, index=None, place=0):
    return Field(name, index, name, place)


def marked(*rows, of=3):
    return np.isin(np.arange(of), rows)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([1.0, NAN, np.inf]), [False, True, False]),
        (np.array(["2026-01-01", "NaT"], "datetime64[s]"), [False, True]),
        (np.array([5, "NaT"], "timedelta64[s]"), [False, True]),
        (np.array([0, 1]), [False, False]),
        (np.array(["", "NaT"]), [False, False]),
        (np.array([None, NAN, pd.NaT, pd.NA], dtype=object), [True] * 4),
        (np.array([1.5, 0, "", "nan", False], dtype=object), [False] * 5),
    ],
)
def test_what_is_missing(array, expected):
    found = missing_in(array)
    assert (found.dtype, found.tolist()) == (np.bool_, expected)


def test_names_are_told_in_the_order_of_the_data_and_not_too_many():
    assert names_of([field("b", place=1), field("a", place=2), field("c", place=0)]) == "c, b, a"
    assert listed(list("abcdef")) == "a, b, c, d, e, f"
    assert listed(list("abcdefg")) == "a, b, c, d, e, f and 1 more"
    assert listed(list("abc"), limit=1) == "a and 2 more"


# Other values


def test_columns_are_exchanged_and_a_table_stays_what_it_is():
    frame = pd.DataFrame({0: [1, 2, 3], "b": ["u", "v", "w"]}, index=[7, 8, 9])
    after = with_columns(FrameColumns(frame), {"0": np.array([4.5, 5.5, 6.5])}).frame()
    assert after.to_dict("list") == {0: [4.5, 5.5, 6.5], "b": ["u", "v", "w"]}
    assert frame[0].tolist() == [1, 2, 3], "the data itself is left alone"
    narrow = with_columns(FrameColumns(frame), {"b": np.array([1, 2, 3], np.float32)}).frame()
    assert narrow["b"].dtype == np.float32
    arrays = with_columns(ArrayColumns({"a": np.arange(2), "b": np.arange(2)}), {"b": np.array([8, 9])})
    assert [(name, array.tolist()) for name, array in arrays.items()] == [("a", [0, 1]), ("b", [8, 9])]


def test_columns_of_polars_are_exchanged():
    other = with_columns(FrameColumns(pl.DataFrame({"a": [1, 2], "b": [3, 4]})), {"a": np.array([5, 6])}).frame()
    assert isinstance(other, pl.DataFrame)
    assert other.to_dict(as_series=False) == {"a": [5, 6], "b": [3, 4]}


@pytest.mark.parametrize(
    ("before", "value", "expected", "dtype"),
    [
        (np.array([1, 2, 3]), 9, [9, 2, 3], "int64"),
        (np.array([1, 2, 3]), 0.5, [0.5, 2, 3], "float64"),
        (np.array([1, 2, 3]), "x", ["x", 2, 3], "object"),
        (np.array([1, 2, 3], np.int8), np.array([300, 0, 0]), [300, 2, 3], "int64"),
        (np.array([1, 2, 3], np.int64), np.array([4, 0, 0], np.int8), [4, 2, 3], "int64"),
        (np.array([1, 2, 3], np.float32), 0.1, [float(np.float32(0.1)), 2, 3], "float32"),
        (np.array([1, 2, 3]), MISSING, [None, 2, 3], "float64"),
        (np.array(["a", "b", "c"], object), MISSING, [None, "b", "c"], "object"),
        (np.array(["a", "b", "c"], object), 5, [5, "b", "c"], "object"),
        (np.array(["a", "b", "c"]), "longer", ["longer", "b", "c"], "object"),
        (np.array([1, 2, 3], "M8[s]"), np.array([4, 5, 6], "M8[s]"), np.array([4, 2, 3], "M8[s]").tolist(), "M8[s]"),
        (np.array([1, 2, 3], "M8[s]"), 5, [5, *np.array([2, 3], "M8[s]").tolist()], "object"),
    ],
)
def test_a_cell_of_an_array_gets_a_type_that_holds_it(before, value, expected, dtype):
    kept = before.copy()
    after = edited(batch(ArrayColumns({"a": before})), [Edit(field("a"), marked(0), value)]).inputs["a"]
    assert after.dtype == dtype
    assert [None if entry != entry else entry for entry in after.tolist()] == expected
    assert np.array_equal(before, kept), "the data itself is left alone"


def test_cells_of_one_array_are_changed_one_after_another():
    rows = batch(ArrayColumns({"x": np.zeros((3, 2))}))
    changes = [Edit(field("x", 1), marked(0, 2), np.array([5.0, 6.0, 7.0])), Edit(field("x", 0), marked(1), 8.0)]
    assert edited(rows, changes).inputs["x"].tolist() == [[0.0, 5.0], [8.0, 0.0], [0.0, 7.0]]


def test_cells_of_a_frame_are_changed_whatever_its_index_and_labels():
    frame = pd.DataFrame({0: [1, 2, 3], "x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}, index=[9, 9, 4])
    changes = [Edit(field("0"), marked(2), 7), Edit(field("x", 1), marked(0), -1.0)]
    after = edited(batch(FrameColumns(frame)), changes).inputs.frame()
    assert after.index.tolist() == [9, 9, 4]
    assert after[0].tolist() == [1, 2, 7]
    assert [list(cell) for cell in after["x"]] == [[1.0, -1.0], [3.0, 4.0], [5.0, 6.0]]
    assert frame["x"].tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    whole = np.array([[9.0, 8.0], [7.0, 6.0], [5.0, 4.0]])
    others = edited(batch(FrameColumns(frame)), [Edit(field("x"), marked(0, 1), whole)]).inputs.frame()
    assert [list(cell) for cell in others["x"]] == [[9.0, 8.0], [7.0, 6.0], [5.0, 6.0]]


@pytest.mark.parametrize(
    ("column", "value", "expected", "dtype"),
    [
        ([1, 2, 3], 0.5, [0.5, 2.0, 3.0], "float64"),
        ([1, 2, 3], "x", ["x", 2, 3], "object"),
        ([True, False, True], 0.5, [0.5, 0.0, 1.0], "float64"),
        (pd.Series(["a", "b", "c"], dtype="string"), 5, [5, "b", "c"], "object"),
        (pd.Series(["a", 2, None], dtype=object), MISSING, [None, 2, None], "object"),
        (pd.array([1, 2, 3], dtype="Int64"), MISSING, [pd.NA, 2, 3], "Int64"),
        ([1.5, 2.5, 3.5], MISSING, [None, 2.5, 3.5], "float64"),
        ([True, False, True], MISSING, [None, 0.0, 1.0], "float64"),
        ([1.5, 2.5, 3.5], np.array([7.0, 8.0, 9.0]), [7.0, 2.5, 3.5], "float64"),
    ],
)
def test_a_cell_of_a_frame_keeps_the_type_where_that_holds_it(column, value, expected, dtype):
    frame = pd.DataFrame({"a": column})
    after = edited(batch(FrameColumns(frame)), [Edit(field("a"), marked(0), value)]).inputs.frame()["a"]
    assert after.dtype == dtype
    # NaN among objects is no None: a model may tell them apart.
    found = after.tolist() if dtype == "object" else after.astype(object).where(after.notna(), None).tolist()
    assert found == [None if entry is pd.NA else entry for entry in expected]


@pytest.mark.parametrize(
    "make",
    [lambda table: FrameColumns(pl.DataFrame(table)), lambda table: ArrowColumns(pa.table(table))],
    ids=["polars", "arrow"],
)
def test_cells_of_other_tables_are_changed_too(make):
    table = make({"a": [1, 2, 3], "b": ["u", "v", "w"]})
    after = edited(batch(table), [Edit(field("a"), marked(1), 9), Edit(field("b"), marked(0), "x")]).inputs
    assert (after["a"].tolist(), after["b"].tolist()) == ([1, 9, 3], ["x", "v", "w"])
    moved = transplanted(batch(table), {field("a"): np.array([2, 1, 0])}).inputs
    assert (moved["a"].tolist(), moved["b"].tolist()) == ([3, 2, 1], ["u", "v", "w"])


@pytest.mark.parametrize(
    ("values", "expected", "categories"),
    [
        (np.array(["w", "v", None], dtype=object), ["w", "v", None], ["u", "v", "w"]),
        ("w", ["w", "w", "w"], ["u", "v", "w"]),
        (MISSING, [None, None, None], ["u", "v"]),
    ],
)
def test_a_category_that_was_not_there_is_added_once(values, expected, categories):
    frame = pd.DataFrame({"a": pd.Categorical(["u", "v", "u"])})
    change = Edit(field("a"), np.ones(3, bool), values)
    after = edited(batch(FrameColumns(frame)), [change]).inputs.frame()["a"]
    assert [None if entry != entry else entry for entry in after.tolist()] == expected
    assert after.cat.categories.tolist() == categories


def test_values_of_other_rows_are_planted_in_every_form():
    frame = pd.DataFrame({0: [1, 2, 3], "b": pd.Categorical(["u", None, "w"]), "c": [1, 2, 3]}, index=[5, 5, 6])
    donors = {field("0"): np.array([2, 0, 0]), field("b"): np.array([1, 1, 2])}
    after = transplanted(batch(FrameColumns(frame)), donors).inputs.frame()
    assert after[0].tolist() == [3, 1, 1]
    assert [None if pd.isna(entry) else entry for entry in after["b"]] == [None, None, "w"]
    assert after["c"].tolist() == [1, 2, 3]
    assert after.dtypes.equals(frame.dtypes), "no column more, and each of its type"
    arrays = ArrayColumns({"a": np.array([1, 2, 3]), "x": np.arange(6).reshape(3, 2)})
    assert isinstance(transplanted(batch(arrays), {field("a"): np.array([2, 2, 0])}).inputs, ArrayColumns)
    donors = {field("a"): np.array([2, 2, 0]), field("x", 0): np.array([1, 0, 0]), field("x", 1): np.array([0, 0, 1])}
    found = transplanted(batch(arrays), donors).inputs
    assert found["a"].tolist() == [3, 3, 1]
    assert found["x"].tolist() == [[2, 1], [0, 1], [0, 3]]
    assert arrays["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    lists = FrameColumns(pd.DataFrame({"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}))
    moved = transplanted(batch(lists), {field("x", 1): np.array([1, 2, 0])}).inputs["x"]
    assert np.stack(list(moved)).tolist() == [[1.0, 4.0], [3.0, 6.0], [5.0, 2.0]]


def test_variants_are_the_rows_again_and_one_that_widens_a_column_stands_alone():
    base = batch(ArrayColumns({"a": np.array([1, 2]), "b": np.array(["u", "v"]), "c": np.array([0.5, 1.5])}), rows=2)
    variants = [
        Variant("a is 7", {field("a"): 7}),
        Variant("a is missing", {field("a"): MISSING}),
        Variant("b is long, c is missing", {field("b"): "long", field("c"): MISSING}),
        Variant("each its own c", {field("c"): np.array([8.0, 9.0])}),
    ]
    together, alone = varied(base, variants)
    assert together.inputs["a"].dtype == np.int64
    assert together.inputs["a"].tolist() == [7, 7, 1, 2, 1, 2]
    assert together.inputs["b"].tolist() == ["u", "v", "long", "long", "u", "v"]
    assert np.array_equal(together.inputs["c"], [0.5, 1.5, NAN, NAN, 8.0, 9.0], equal_nan=True)
    assert [together.rows.name(place) for place in (0, 3)] == ["row 0, a is 7", "row 1, b is long, c is missing"]
    assert together.rows.numbers.tolist() == [0, 1] * 3
    assert np.array_equal(alone.inputs["a"], [NAN, NAN], equal_nan=True)
    (wider,) = varied(base, [Variant("half", {field("a"): 0.5}), Variant("as it is", {})])
    assert wider.inputs["a"].tolist() == [0.5, 0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("dtype", "inside", "outside"),
    [
        ("int8", [-128, 127, 3.0], [-129, 128, 0.5, np.inf, NAN]),
        ("uint8", [0, 255], [-1, 256]),
        ("float16", [0.5, -2.0, NAN, np.inf], [0.1, 1e6]),
        ("float64", [0.1, 1e300], []),
    ],
)
def test_a_type_holds_a_number_or_it_does_not(dtype, inside, outside):
    assert [holds(np.dtype(dtype), value) for value in inside] == [True] * len(inside)
    assert [holds(np.dtype(dtype), value) for value in outside] == [False] * len(outside)


@pytest.mark.parametrize(("width", "features"), [(512, 512), (513, 1)])
def test_up_to_512_columns_of_an_array_are_features(width, features):
    inputs = batch(ArrayColumns({"x": np.zeros((3, width))}))
    found = all_features(SimpleNamespace(columns=("x",), batch=inputs))
    assert len(found) == features
    assert [one.of(inputs.inputs).shape for one in found[:1]] == [(3,) if features > 1 else (3, 513)]


# How a table is read, and what a cast leaves


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([decimal.Decimal("1.5")]), "decimals as float64"),
        (pa.array([0], pa.timestamp("s", "Europe/Berlin")), "times with a zone as UTC"),
        (pa.array([0], pa.timestamp("s")), ""),
        (pa.array(["u"]).dictionary_encode(), "categories as the values they stand for"),
        (pa.array([1, None]), "whole numbers with gaps as float64, gaps as NaN"),
        (pa.array([True, None]), "whole numbers with gaps as float64, gaps as NaN"),
        (pa.array([1, 2]), ""),
        (pa.array([True, False]), ""),
        (pa.array([0.5, None]), ""),
        (pa.array(["u", None]), ""),
    ],
)
def test_cells_that_are_read_as_something_else_are_told(column, words):
    assert reading_of(ArrowColumns(pa.table({"a": column})), "a") == words


def test_cells_of_polars_are_told_too():
    frame = pl.DataFrame({"a": [1, None], "b": ["u", "v"], "c": [0.5, None]})
    gaps = "whole numbers with gaps as float64, gaps as NaN"
    assert [reading_of(FrameColumns(frame), name) for name in frame.columns] == [gaps, "", ""]


def test_arrays_are_read_as_they_are():
    assert reading_of(ArrayColumns({"a": np.arange(3)}), "a") == ""
    frame = pd.DataFrame({"a": [1, 2], "b": pd.Series([object(), 1], dtype=object)})
    assert [reading_of(FrameColumns(frame), name) for name in frame] == ["", ""]


TIMES = np.array(["1970-01-01T00:00:01", "1970-01-01T00:00:02", "NaT"], "M8[s]")


def objects(*values):
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


@pytest.mark.parametrize(
    ("array", "dtype", "expected", "loss"),
    [
        (np.array([1, 2]), "int64", [1, 2], None),
        (np.array([1, 2]), "object", [1, 2], None),
        # 0.5 and 3 are floats of any width; 1e-50 becomes 0, which is all of it.
        (np.array([0.5, 3.0, NAN]), "float32", [0.5, 3.0, None], Loss("float64", 0, 0.0)),
        (np.array([[0.5, 1e-50], [NAN, 3.0]]), "float32", [[0.5, 0.0], [None, 3.0]], Loss("float64", 1, 1.0)),
        (np.array([1e300, NAN]), "float32", [np.inf, None], Loss("float64", 1, np.inf)),
        # 0.1 is a quarter of the way up to the next half precision number: 1638.4 / 2**14 is cut to 1638 / 2**14.
        (np.array([0.1]), "float16", [1638 / 2**14], Loss("float64", 1, abs(1638 / 2**14 - 0.1) / 0.1)),
        (np.array([1.5, 2.0, -0.25]), "int64", [1, 2, 0], Loss("float64", 2, 1.0)),
        (np.array([2.0, 3.0]), "int32", [2, 3], Loss("float64", 0, 0.0)),
        (np.array([2**24 + 1, 5]), "float32", [2.0**24, 5.0], Loss("int64", 1, 1 / (2**24 + 1))),
        (np.array([300, 5]), "uint8", [44, 5], Loss("int64", 1, 256 / 300)),
        (np.array([1.0, NAN, 257.0]), "bfloat16", [1.0, None, 256.0], Loss("float64", 1, 1 / 257)),
        # Times count from 1970 in their own unit.
        (TIMES, "float64", [1.0, 2.0, None], Loss("datetime64[s]", 0, 0.0, "times fed as s since 1970")),
        (TIMES[:2], "int64", [1, 2], Loss("datetime64[s]", 0, 0.0, "times fed as s since 1970")),
        (
            np.array([2**24 + 1], "m8[ms]"),
            "float32",
            [2.0**24],
            Loss("timedelta64[ms]", 1, 1 / (2**24 + 1), "times fed as ms since 1970"),
        ),
        (objects(1, 2.5), "float64", [1.0, 2.5], Loss("object", 0, 0.0, "objects read as numbers")),
        (
            objects(1, None, 1e-50),
            "float32",
            [1.0, None, 0.0],
            Loss("object", 1, 1.0, "objects read as numbers, missing ones as NaN"),
        ),
        (objects(True, 3), "int64", [1, 3], Loss("object", 0, 0.0, "objects read as numbers")),
        # Text
        (objects("u", "v"), "string", ["u", "v"], None),
        (objects("u", None, NAN), "string", ["u", "", ""], Loss("object", 2, 0.0, "missing values fed as empty text")),
        (objects("u", 5), "string", ["u", "5"], Loss("object", 0, 0.0, "values written as text")),
        (
            objects(5, None),
            "string",
            ["5", ""],
            Loss("object", 1, 0.0, "values written as text; missing values fed as empty text"),
        ),
        (np.array([1, 2]), "string", ["1", "2"], Loss("int64", 0, 0.0, "numbers written as text")),
        (
            np.array([0.5, NAN]),
            "string",
            ["0.5", ""],
            Loss("float64", 1, 0.0, "numbers written as text; missing values fed as empty text"),
        ),
        (
            TIMES[1:],
            "string",
            ["1970-01-01T00:00:02", ""],
            Loss("datetime64[s]", 1, 0.0, "times written as ISO 8601 text; missing values fed as empty text"),
        ),
        (
            np.array([5], "m8[s]"),
            "string",
            ["5 seconds"],
            Loss("timedelta64[s]", 0, 0.0, "times written as ISO 8601 text"),
        ),
    ],
)
def test_what_a_cast_gives_and_loses(array, dtype, expected, loss):
    kept = array.copy()
    found, told = cast(array, dtype, column="a", side="candidate")
    assert str(found.dtype) == ("object" if dtype == "string" else dtype)
    told_as = [None if entry != entry else entry for entry in found.astype(object).ravel().tolist()]
    assert told_as == np.array(expected, dtype=object).ravel().tolist()
    assert found.shape == array.shape
    assert told == loss
    assert array.tolist() == kept.tolist() or array.tobytes() == kept.tobytes(), "the data itself is left alone"


@pytest.mark.parametrize(
    ("array", "dtype", "reason"),
    [
        (np.array([1.0, NAN, np.inf]), "int64", "2 of its values are missing or infinite"),
        (np.array([1.0, NAN]), "bool", "1 of its values are missing or infinite"),
        (TIMES, "int64", "1 of its times are missing"),
        (objects(1, "x"), "float32", "it holds text, such as 'x'"),
        (objects(b"y", 1), "float32", "it holds text, such as b'y'"),
        (np.array([1 + 1000j], np.complex64), "float32", "it holds complex numbers, such as (1+1000j)"),
        (objects(1.0, np.complex128(2j)), "float64", "it holds complex numbers, such as 2j"),
        (objects({"a": 1}, None), "float32", "it holds dict objects"),
        (objects(1, None), "int64", "1 of its values are missing or infinite"),
    ],
)
def test_what_cannot_be_cast_is_refused(array, dtype, reason):
    with pytest.raises(FeedingError) as refused:
        cast(array, dtype, column="a", side="candidate")
    assert refused.value.message == f"column 'a' cannot be fed to the candidate, which takes {dtype}: {reason}"
    assert refused.value.side == "candidate"
