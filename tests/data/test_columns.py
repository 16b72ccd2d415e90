"""A column is the same array whatever it was read from."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from array import array
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from likewise.data.arrow import arrow_to_array
from likewise.data.columns import (
    ArrayColumns,
    ArrowColumns,
    CaseColumns,
    FrameColumns,
    numpy_dtype,
    own_array,
    plain,
    require_unique,
)
from likewise.data.readers import concatenate
from likewise.errors import DataError

NAN = float("nan")
TIMES = [dt.datetime(2024, 1, 1, 12), None]
NOWHERE = {"timezone": "dateutil//nowhere/zone"}
ROME = [dt.datetime(2024, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=1))), None]


def categories(*values):
    return pa.array(values).dictionary_encode()


@pytest.mark.parametrize(
    ("column", "dtype", "expected"),
    [
        (pa.array([1, 2]), "int64", [1, 2]),
        (pa.array([1, None]), "float64", [1, NAN]),
        (pa.array([1, None], pa.uint8()), "float64", [1, NAN]),
        (pa.array([1.5, None], pa.float32()), "float32", [1.5, NAN]),
        (pa.array([True, False]), "bool", [True, False]),
        (pa.array([True, None]), "float64", [1, NAN]),
        (pa.array([None, None]), "float64", [NAN, NAN]),
        (pa.array(["a", None]), "object", ["a", None]),
        (pa.array(["a", None], pa.large_string()), "object", ["a", None]),
        (pa.array(["a", None], pa.string_view()), "object", ["a", None]),
        (pa.array([b"a", None]), "object", [b"a", None]),
        (categories("a", None, "b"), "object", ["a", None, "b"]),
        (categories(3, None, 3), "float64", [3, NAN, 3]),
        (
            pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), pa.array(["a"], pa.string_view())),
            "object",
            ["a", None],
        ),
        (pa.array([Decimal("1.25"), None]), "float64", [1.25, NAN]),
        (pa.array([dt.date(2024, 1, 1), None]), "datetime64[D]", np.array(["2024-01-01", "NaT"], "M8[D]")),
        (pa.array(TIMES), "datetime64[us]", np.array(["2024-01-01T12", "NaT"], "M8[us]")),
        (pa.array(TIMES, pa.timestamp("ns")), "datetime64[ns]", np.array(["2024-01-01T12", "NaT"], "M8[ns]")),
        (pa.array(ROME, pa.timestamp("us", "Europe/Rome")), "datetime64[us]", np.array(["2024-01-01T11", "NaT"], "M8")),
        (pa.array([dt.timedelta(seconds=1), None]), "timedelta64[us]", np.array([10**6, "NaT"], "m8[us]")),
        (pa.array([[1, 2], [3, 4]]), "int64", [[1, 2], [3, 4]]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)), "float32", [[1, 2], [3, 4]]),
        (pa.array([[1, None], [3, 4]]), "float64", [[1, NAN], [3, 4]]),
        (pa.array([[[1], [2]], [[3], [4]]]), "int64", [[[1], [2]], [[3], [4]]]),
        (pa.array([["a", None], ["b", "c"]]), "object", [["a", None], ["b", "c"]]),
        (pa.array([[1, 2], [3, 4], [5, 6]]).slice(1), "int64", [[3, 4], [5, 6]]),
        (pa.array([], pa.list_(pa.float32(), 2)), "float32", np.empty((0, 2))),
        (pa.array([], pa.string()), "object", []),
        (
            pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(2, 2, 3)),
            "float64",
            np.arange(12.0).reshape(2, 2, 3),
        ),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
def test_arrow_types(column, dtype, expected):
    for form in (column, pa.chunked_array([column]), pa.chunked_array([column[:1], column[1:]])):
        array = arrow_to_array(form)
        assert str(array.dtype) == dtype
        np.testing.assert_array_equal(array, np.asarray(expected, dtype=array.dtype))


def test_ragged_lists_are_arrays_in_an_object_array():
    array = arrow_to_array(pa.array([[1, 2], None, [3], []]))
    assert (array.dtype, array.shape) == (object, (4,))
    assert [None if cell is None else cell.tolist() for cell in array] == [[1, 2], None, [3], []]


FRAMES = {
    "pandas": pd.DataFrame(
        {
            "Int64": pd.array([1, None], dtype="Int64"),
            "boolean": pd.array([True, None], dtype="boolean"),
            "string": pd.array(["a", None], dtype="string"),
            "str": ["a", np.nan],
            "object": pd.Series(["a", np.nan], dtype=object),
            "category": pd.Categorical(["a", None]),
            "float": [1.5, np.nan],
            "when": pd.to_datetime(["2024-01-01 12:00", None]),
            "zone": pd.to_datetime(["2024-01-01 12:00", None]).tz_localize("Europe/Rome"),
            "step": pd.to_timedelta(["1s", None]),
            "money": [Decimal("1.25"), None],
            "mixed": pd.Series([1, "a"], dtype=object),
            "none": pd.Series([None, None], dtype=object),
            "vector": [np.array([1, 2]), np.array([3, 4])],
        }
    ),
    "polars": pl.DataFrame(
        {
            "Int64": [1, None],
            "boolean": [True, None],
            "string": ["a", None],
            "category": pl.Series(["a", None], dtype=pl.Categorical),
            "enum": pl.Series(["a", None], dtype=pl.Enum(["b", "a"])),
            "float": [1.5, None],
            "when": TIMES,
            "zone": pl.Series([dt.datetime(2024, 1, 1, 11), None]).dt.replace_time_zone("UTC"),
            "step": [dt.timedelta(seconds=1), None],
            "money": [Decimal("1.25"), None],
            "mixed": pl.Series([1, "a"], dtype=pl.Object),
            "none": [None, None],
            "vector": pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int64, 2)),
        }
    ),
}
EXPECTED = {
    "Int64": np.array([1, NAN]),
    "boolean": np.array([1, NAN]),
    **{name: np.array(["a", None], object) for name in ("string", "str", "object", "category", "enum")},
    "float": np.array([1.5, NAN]),
    "when": np.array(["2024-01-01T12", "NaT"], "M8[us]"),
    "zone": np.array(["2024-01-01T11", "NaT"], "M8[us]"),
    "step": np.array([10**6, "NaT"], "m8[us]"),
    "money": np.array([1.25, NAN]),
    "mixed": np.array([1, "a"], object),
    "none": np.array([NAN, NAN]),
    "vector": np.array([[1, 2], [3, 4]]),
}


@pytest.mark.parametrize("library", FRAMES)
def test_frame_types(library):
    frame = FRAMES[library]
    columns = FrameColumns(frame)
    for name in frame.columns:
        array = columns[name]
        assert array.dtype.kind == EXPECTED[name].dtype.kind, name
        np.testing.assert_array_equal(array, EXPECTED[name], err_msg=name)
    assert columns.frame() is frame
    json.dumps([columns.row(0), columns.row(1)])
    row = columns.row(0)
    assert (row["when"], row["money"], row["category"]) == ("2024-01-01T12:00:00", "1.25", "a")
    assert columns.row(1)["when"] is None


def forms():
    table = {"a": [1, 2, 3, 4], "t": ["x", None, "y", "x"]}
    return {
        "arrays": ArrayColumns({"a": np.array(table["a"]), "t": np.array(table["t"], object)}),
        "arrow": ArrowColumns(pa.table(table)),
        "pandas": FrameColumns(pd.DataFrame(table)),
        "polars": FrameColumns(pl.DataFrame(table)),
    }


@pytest.mark.parametrize("form", forms())
def test_slices_selections_and_gathering(form):
    columns = forms()[form]
    assert columns.slice(1, 3).slice(1, 2)["a"].tolist() == [3]
    assert columns.slice(1, 3).slice(0, 9)["a"].tolist() == [2, 3]
    assert list(columns.select(["t", "a"])) == ["t", "a"]
    assert columns.select(["t"]).slice(1, 3)["t"].tolist() == [None, "y"]
    assert columns["a"].tolist() == [1, 2, 3, 4]
    with pytest.raises(KeyError):
        columns.select(["t"])["a"]
    with pytest.raises(KeyError):
        columns.select(["b"])
    assert "a" in columns
    assert "b" not in columns
    assert columns.take(np.array([3, 0]))["a"].tolist() == [4, 1]
    joined = concatenate([columns.slice(0, 1), columns.slice(2, 4)])
    assert joined["t"].tolist() == ["x", "y", "x"]
    assert list(joined.frame()["a"]) == [1, 3, 4]
    assert type(joined) is type(columns)
    assert columns.row(1) == {"a": 2, "t": None}
    assert pickle.loads(pickle.dumps(columns))["a"].tolist() == [1, 2, 3, 4]
    assert len(columns) == 2


@pytest.mark.parametrize("form", ["arrow", "pandas", "polars"])
def test_a_column_is_converted_once_and_only_if_it_is_read(form, monkeypatch):
    columns = forms()[form]
    with monkeypatch.context() as watched:
        watched.setattr(type(columns), "_convert", lambda columns, name: pytest.fail(f"{name} was converted"))
        assert list(columns.select(["t", "a"]).frame().columns) == ["t", "a"]
        assert "t" in columns
    chosen = columns.select(["t"])
    assert chosen["t"] is columns["t"]
    assert columns.select(["t", "a"])["t"] is columns["t"]


def test_two_threads_may_read_one_batch():
    columns = ArrowColumns(pa.table({f"c{i}": [str(i)] * 100 for i in range(50)}))
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda i: columns[f"c{i % 50}"].tolist(), range(400)))
    assert all(cells == [str(i % 50)] * 100 for i, cells in enumerate(read))


def test_numbers_are_not_copied():
    column = pa.array(np.arange(10.0))
    table = ArrowColumns(pa.table({"a": column}))
    assert np.shares_memory(table["a"], column.to_numpy())
    frame = pd.DataFrame({"a": np.arange(10.0)})
    assert np.shares_memory(FrameColumns(frame)["a"], frame["a"].to_numpy())


def test_a_test_case_is_one_row():
    case = CaseColumns({"a": np.zeros((2, 3)), "b": np.array(1)})
    assert case.slice(0, 1) is case
    with pytest.raises(ValueError, match="whole"):
        case.slice(0, 2)
    assert case.row(0)["b"] == 1
    assert type(case.select(["b"])) is CaseColumns
    assert list(case.select(["b"])) == ["b"]
    assert case.frame()["a"][0].shape == (2, 3)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int8(3), 3),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (None, None),
        (np.datetime64("2024-01-01T12:00:00.000000001", "ns"), "2024-01-01T12:00:00.000000001"),
        (np.datetime64("NaT"), None),
        (pd.NaT, None),
        (pd.NA, None),
        (pd.Timestamp("2024-01-01", tz="UTC"), "2024-01-01T00:00:00+00:00"),
        (dt.date(2024, 1, 1), "2024-01-01"),
        (dt.time(12, 30), "12:30:00"),
        (Decimal("1.10"), "1.10"),
        (b"\x00\xff", "00ff"),
        (bytes(100), {"bytes": 100, "head": "00" * 16}),
        (bytes(16), "00" * 16),
        (np.arange(3), [0, 1, 2]),
        (np.arange(16), list(range(16))),
        (np.arange(17), {"shape": [17], "head": list(range(16))}),
        (np.array([np.datetime64("NaT"), None], dtype=object), [None, None]),
        (array("i", [1]), "array('i', [1])"),
        (list(range(16)), list(range(16))),
        (tuple(range(17)), {"shape": [17], "head": list(range(16))}),
        (np.zeros((10, 10)), {"shape": [10, 10], "head": [0.0] * 16}),
        (list(range(100)), {"shape": [100], "head": list(range(16))}),
        ({1: np.int64(2)}, {"1": 2}),
        ((1, None), [1, None]),
        (1 + 2j, "(1+2j)"),
        (np.int64, "int64"),
    ],
)
def test_plain_values(value, expected):
    shown = plain(value)
    assert shown == expected
    assert type(shown) is type(expected)
    json.dumps(shown)


def test_the_names_of_a_frame_are_not_looked_through_for_every_column():
    """With 200,000 columns that would be 20,000,000,000 looks."""

    class Names(tuple):
        __slots__ = ()

        def index(self, *_):
            raise AssertionError("looked through")

    columns = FrameColumns(pd.DataFrame({"a": [1.0], "b": [2.0], "c": ["x"]}))
    columns._names = Names(columns._names)
    assert [columns[name].tolist() for name in columns] == [[1.0], [2.0], ["x"]]
    assert list(columns.select(["c", "a"])) == ["c", "a"]
    assert columns.arrow("c").to_pylist() == ["x"]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_a_column_is_taken_without_a_look_at_all_others(make, monkeypatch):
    """narwhals goes through the names of a whole frame whenever it is given one: with 5,000 columns for minutes."""
    columns = FrameColumns(make({"a": [1.0, 2.0], "c": ["x", None]}))
    monkeypatch.setattr(FrameColumns, "_frame", property(lambda _: pytest.fail("the whole frame was looked at")))
    assert [columns[name].tolist() for name in columns] == [[1.0, 2.0], ["x", None]]
    assert columns.arrow("c").to_pylist() == ["x", None]


def test_a_row_of_pandas_is_told_without_a_look_at_all_columns(monkeypatch):
    cells = {
        "n": [1, 2],
        "f": [0.5, NAN],
        "b": [True, False],
        "t": ["x", None],
        "d": pd.to_datetime(["2024-01-01", None]),
    }
    columns = FrameColumns(pd.DataFrame(cells))
    monkeypatch.setattr(FrameColumns, "_frame", property(lambda _: pytest.fail("the whole frame was looked at")))
    assert columns.row(0) == {"n": 1, "f": 0.5, "b": True, "t": "x", "d": "2024-01-01T00:00:00"}
    second = columns.row(1)
    assert second.pop("f") != 0
    assert second == {"n": 2, "b": False, "t": None, "d": None}
    assert [type(value) for value in columns.row(0).values()] == [int, float, bool, str, str]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_numbers_that_were_converted_are_not_converted_again_for_some_of_the_rows(make, monkeypatch):
    columns = FrameColumns(make({"a": [1.0, 2.0, 3.0], "t": ["x", "y", "z"]}))
    assert columns["a"].tolist() == [1.0, 2.0, 3.0]
    monkeypatch.setattr(FrameColumns, "_convert", lambda _, name: pytest.fail(f"{name} was converted again"))
    assert columns.slice(1, 3)["a"].tolist() == [2.0, 3.0]
    assert columns.take(np.array([2, 0]))["a"].tolist() == [3.0, 1.0]
    assert columns.slice(1, 3).take(np.array([1]))["a"].tolist() == [3.0]


def test_a_name_stands_for_one_column():
    require_unique("it", ["a", "b"], remedy="Rename one")
    with pytest.raises(DataError, match="it has more than one column called 'a', 'c'"):
        require_unique("it", ["c", "a", "b", "a", "c"], remedy="Rename one")


def test_types_are_known_by_their_names():
    assert numpy_dtype("float32") == np.float32
    assert numpy_dtype("bfloat16").itemsize == 2


def test_objects_that_no_table_has_stay_as_they_are():
    """Nothing but a missing number among them is something else: it is missing."""
    held = object()
    cells = FrameColumns(pd.DataFrame({"a": pd.Series([held, float("nan"), 1.5, "x"], dtype=object)}))["a"]
    assert cells.tolist() == [held, None, 1.5, "x"]


@pytest.mark.parametrize(
    "make", [lambda cells: FrameColumns(pd.DataFrame({"a": cells})), lambda cells: ArrayColumns({"a": cells})]
)
def test_a_copy_shares_nothing_that_can_be_written_to(make):
    inner = [1, 2]
    cells = np.empty(2, dtype=object)
    cells[:] = [inner, "x"]
    columns = make(cells)
    copied = columns.copy()
    copied.frame()["a"][0].append(3)
    assert inner == [1, 2]
    assert copied.frame()["a"].tolist() == [[1, 2, 3], "x"]


def test_arrays_as_a_frame_have_a_column_each():
    frame = ArrayColumns({"a": np.array([1, 2], np.int8), "x": np.array([[1, 2], [3, 4]])}).frame()
    assert frame["a"].dtype == np.int8
    assert [cell.tolist() for cell in frame["x"]] == [[1, 2], [3, 4]]
    objects = ArrayColumns({"a": np.array([1, None], dtype=object)}).frame()
    assert objects["a"].tolist() == [1, None], "no number becomes another to make room for a gap"


def test_what_pandas_wrote_as_the_index_is_a_column_for_who_asks():
    frame = pd.DataFrame(
        {"a": [1, 2], "b": [3, 4]}, index=pd.MultiIndex.from_tuples([(7, "u"), (8, "v")], names=["i", "j"])
    )
    columns = ArrowColumns(pa.Table.from_pandas(frame))
    assert list(columns) == ["a", "b"]
    assert columns["i"].tolist() == [7, 8]
    assert columns.frame().index.names == ["i", "j"]
    asked = columns.select(["i", "b"]).frame()
    assert asked.to_dict("list") == {"i": [7, 8], "b": [3, 4]}
    assert asked.index.name == "j"
    without = ArrowColumns(pa.Table.from_pandas(frame).select(["a", "j"]))
    assert list(without) == ["a"]
    assert without["j"].tolist() == ["u", "v"]


def test_rows_of_a_table_travel_without_the_rest():
    table = ArrowColumns(pa.table({"a": np.arange(100_000)}))
    few = pickle.dumps(table.slice(5, 7))
    assert len(few) < 5_000
    assert pickle.loads(few)["a"].tolist() == [5, 6]
    arrays = ArrayColumns({"a": np.arange(100_000)}).slice(5, 7)
    assert len(pickle.dumps(arrays)) < 5_000
    assert pickle.loads(pickle.dumps(arrays))["a"].tolist() == [5, 6]


def test_numbers_with_gaps_are_arrow_and_others_are_not():
    frame = pd.DataFrame({"a": pd.array([1, None], "Int64"), "b": [1.5, 2.5], "c": ["x", None]})
    columns = FrameColumns(frame)
    assert columns.arrow("a").to_pylist() == [1, None]
    assert columns.arrow("b") is None
    assert columns.row(1) == {"a": None, "b": 2.5, "c": None}
    assert np.isnan(FrameColumns(pd.DataFrame({"a": [float("nan")]})).row(0)["a"])


SMALL = {"a": np.array([1, -2], "int8"), "b": [0.5, -0.0]}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (pd.DataFrame(SMALL), True),
        (pa.table(SMALL), True),
        (pa.table({"a": [1.0, None]}), True),  # as NaN, which is what pandas makes of it
        (pa.Table.from_pandas(pd.DataFrame(SMALL)).select(["a"]), True),
        (pa.table({"a": [1, None]}), False),
        (pa.table({"a": [1, 2], "b": pa.array([1.0, None], pa.float32())}), False),
        (pa.table({"a": [1, 2], "b": ["x", "y"]}), False),
        (pd.DataFrame({"a": pd.array([1, 2], dtype="Int64")}), False),
        (pd.DataFrame(np.ones((2, 2))), False),
        (pd.DataFrame(SMALL, index=pd.RangeIndex(1, 3)), False),
        (pd.DataFrame(SMALL, index=pd.RangeIndex(0, 4, 2)), False),
        (pd.DataFrame(SMALL, index=pd.RangeIndex(2, name="row")), False),
        (pd.DataFrame(SMALL, index=["x", "y"]), False),
    ],
)
def test_columns_that_pandas_holds_as_just_these_numbers(table, expected):
    table = table if isinstance(table, pa.Table) else pa.Table.from_pandas(table)
    assert ArrowColumns(table).are_plain_numbers() is expected


def test_of_two_columns_of_one_name_the_first_is_asked():
    columns = FrameColumns(pd.DataFrame([[1.0, 2.0, 3.0]], columns=["a", "b", "a"]))
    assert columns["a"].tolist() == [1.0]
    assert columns.select(["b", "a"]).frame().to_numpy().tolist() == [[2.0, 1.0]]
    assert FrameColumns(pd.DataFrame({0: [1], "1": [2]}))["0"].tolist() == [1]


def test_a_window_of_a_window_stays_within_it():
    columns = ArrayColumns({"a": np.arange(10), "b": np.arange(10) * 2})
    window = columns.slice(2, 6)
    assert window["a"].tolist() == [2, 3, 4, 5]
    assert window.slice(1, 3)["a"].tolist() == [3, 4]
    assert window.slice(1, 9)["b"].tolist() == [6, 8, 10]
    assert window.slice(4, 5)["a"].tolist() == []
    assert window.select(["b"])["b"].tolist() == [4, 6, 8, 10]
    assert window.take(np.array([3, 0]))["a"].tolist() == [5, 2]
    assert (list(window), len(window), "a" in window, "c" in window) == (["a", "b"], 2, True, False)
    assert columns.slice(8, 20)["a"].tolist() == [8, 9]


def test_only_what_can_be_written_to_is_copied_from_cells():
    inner, held = [1], object()
    cells = np.empty(2, dtype=object)
    cells[:] = [held, "x"]
    assert own_array(cells)[0] is held
    cells[1] = inner
    copied = own_array(cells)
    assert copied[1] == inner
    assert copied[1] is not inner
    numbers = np.arange(3)
    assert own_array(numbers).tolist() == [0, 1, 2]
    assert own_array(numbers) is not numbers
    for writable in ({"a": 1}, {1}, bytearray(b"a"), np.arange(2)):
        cells[0] = writable
        assert own_array(cells)[0] is not writable


@pytest.mark.parametrize(
    ("noted", "column"),
    [
        ({"numpy_type": "halffloat[pyarrow]"}, [1000.01, 1000.2]),
        ({"numpy_type": "Float32"}, [1000.01, 1000.2]),
        ({"numpy_type": "Int64"}, [1000.01, 1000.2]),
        ({"numpy_type": "datetime64[ns, dateutil//nowhere/zone]"}, [1000.01, 1000.2]),
        ({"name": "b"}, [1000.01, 1000.2]),
        (
            {"pandas_type": "datetimetz", "metadata": {"timezone": "dateutil//nowhere/zone"}},
            [dt.datetime(2026, 1, 1)] * 2,
        ),
    ],
)
def test_a_note_of_pandas_that_disagrees_with_arrow_is_not_believed(noted, column):
    """What rows are is what their file holds, whatever else is said of it."""
    entry = {"name": "a", "field_name": "a", "pandas_type": "object", "numpy_type": "object", "metadata": None}
    other = {**entry, "name": "a" if "name" in noted else "b", "field_name": "b"}
    note = {"index_columns": [], "columns": [{**entry, **noted}, other], "column_indexes": []}
    plain = pa.table({"a": column, "b": [1, 2]})
    frame = ArrowColumns(plain.replace_schema_metadata({b"pandas": json.dumps(note).encode()})).frame()
    pd.testing.assert_frame_equal(frame, plain.to_pandas())


def test_names_of_columns_are_no_times_of_a_zone_that_a_note_names():
    label = {"name": None, "pandas_type": "datetimetz", "numpy_type": "datetime64[ns]", "metadata": NOWHERE}
    note = {"index_columns": [], "columns": [], "column_indexes": [label]}
    table = pa.table({"2026-01-01": [1.0]}).replace_schema_metadata({b"pandas": json.dumps(note).encode()})
    assert [*ArrowColumns(table).frame()] == ["2026-01-01"]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"i": [1, None], "u": [None, 2]}).astype({"i": "Int64", "u": "UInt8"}),
        pd.DataFrame({"f": [0.5, None], "d": [None, 0.1], "b": [True, None]}).astype(
            {"f": "Float32", "d": "Float64", "b": "boolean"}
        ),
        pd.DataFrame({"s": ["x", None], "t": ["y", None]}).astype({"s": "string[python]", "t": "category"}),
        pd.DataFrame({"z": pd.to_datetime(["2026-01-01", None]).tz_localize("Europe/Berlin")}),
        pd.DataFrame({"p": pd.period_range("2026-01", periods=2, freq="M"), "i": pd.interval_range(0, 2)}),
        pd.DataFrame({"a": pd.array([1, None], "int32[pyarrow]"), "t": pd.array(["x", "y"], "string[pyarrow]")}),
        pd.DataFrame({0: [1.0, 2.0], 1: [3, 4]}, index=pd.Index(["r", "s"], name="row")),
        pd.DataFrame({"x": [1.0, 2.0]}, index=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["k", None])),
        pd.DataFrame({("a", 1): [1.0], ("b", 2): [2.0]}),
        pd.DataFrame({"x": [1.0, 2.0]}, index=[5, 7]),
        pd.DataFrame({"x": [1.0, 2.0]}).iloc[1:],
        pd.DataFrame([[1.0, 2]], columns=pd.to_datetime(["2026-01-01", "2026-01-02"])),
    ],
    ids=lambda frame: " ".join(map(str, frame.dtypes)),
)
def test_a_frame_that_pandas_wrote_comes_back_as_pandas_reads_it(frame, tmp_path):
    frame.to_parquet(tmp_path / "rows.parquet")
    mine = ArrowColumns(pq.read_table(tmp_path / "rows.parquet")).frame()
    pd.testing.assert_frame_equal(mine, pd.read_parquet(tmp_path / "rows.parquet"))
