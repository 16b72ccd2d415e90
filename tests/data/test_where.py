"""Rows chosen by a condition, and tables whose folders say what a column holds."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import likewise
from likewise.data.filters import DEEPEST, Where
from likewise.data.readers.tables import filtered
from likewise.errors import DataError, UsageError
from likewise.registry import open_source

FRAME = pd.DataFrame(
    {
        "x": [1.0, 2.0, np.nan, 4.0, 5.0, 6.0],
        "country": ["NL", "BE", "NL", None, "it's", "NL"],
        "age": pd.array([10, 20, 30, 40, None, 60], dtype="Int64"),
        "new": [True, False, True, False, True, False],
        "a name": [0, 1, 2, 3, 4, 5],
    }
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("where") / "rows.parquet"
    pq.write_table(pa.Table.from_pandas(FRAME, preserve_index=False), path, row_group_size=2)
    return path


def chosen(path, text, size=4):
    batches = list(filtered(open_source(str(path)), text).batches(size))
    return [int(number) for batch in batches for number in batch.rows.numbers]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("country = 'NL'", [0, 2, 5]),
        ("country != 'NL'", [1, 4]),
        ("country = 'it''s'", [4]),
        ("country is null", [3]),
        ("NOT country IS NULL and age >= 20", [1, 2, 5]),
        ("age in (10, 60) or x = 5", [0, 4, 5]),
        ("age not in (10, 60)", [1, 2, 3]),
        ("not (age > 20)", [0, 1]),
        ('"a name" < 2 or `a name` == 5', [0, 1, 5]),
        ("new = true and x <> 1.0", [4]),
        ("x > 1.5e0 and x < 4.5", [1, 3]),
        ("age = -1", []),
    ],
)
def test_the_rows_are_those_that_sql_would_give(stored, text, rows):
    # In SQL a row does not count if what is compared is missing.
    assert chosen(stored, text) == rows
    assert chosen(stored, text, size=1) == rows
    shards = filtered(open_source(str(stored)), text).shards(3)
    assert sorted(int(n) for shard in shards for batch in shard.batches(2) for n in batch.rows.numbers) == rows


@pytest.mark.parametrize(
    "text",
    [
        *("", "country", "country =", "= 'NL'", "country = NL", "country = 'NL' age = 2", "country like 'N%'"),
        *("(country = 'NL'", "country in ()", "age = 'NL'", "county = 'NL'", "age + 1 = 2", "__import__('os')"),
        *("country = 'NL'; drop", "country is not", "(" * (DEEPEST + 1) + "age = 1" + ")" * (DEEPEST + 1)),
    ],
)
def test_what_is_no_condition_is_a_usage_error(stored, text):
    with pytest.raises(UsageError):
        chosen(stored, text)


def test_a_near_name_is_offered(stored):
    with pytest.raises(UsageError, match="country"):
        chosen(stored, "county = 'NL'")


def test_row_groups_that_cannot_hold_such_a_row_are_not_read(tmp_path, monkeypatch):
    path = tmp_path / "sorted.parquet"
    pq.write_table(pa.table({"x": np.arange(1000.0), "wide": ["text"] * 1000}), path, row_group_size=100)
    read = []
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", _noting(read))
    assert chosen(path, "x >= 350 and x < 402") == list(range(350, 402))
    assert [given["row_groups"] for given in read if given["columns"] != ["x"]] == [[3], [4]]


def test_what_a_file_notes_of_its_values_is_not_believed(tmp_path):
    """A row group whose least and largest values are not those of its rows: others read the rows."""
    path, large = tmp_path / "notes.parquet", np.int64(987_654_321)
    values = np.r_[np.full(50, 500), np.full(50, large)]
    pq.write_table(pa.table({"k": values}), path, row_group_size=50, use_dictionary=False, compression="none")
    content = path.read_bytes()
    foot = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    assert large.tobytes() in content[foot:]
    path.write_bytes(content[:foot] + content[foot:].replace(large.tobytes(), np.int64(3).tobytes()))
    assert pq.read_metadata(path).row_group(1).column(0).statistics.max == 3
    assert chosen(path, "k > 100") == list(range(100))


@pytest.mark.parametrize(
    ("text", "rows"), [("x != 1.0", [1, 2, 3, 4, 5]), ("not (x > 5)", [0, 1, 4]), ("x > 6", [3, 5])]
)
def test_nan_is_told_by_no_bounds(tmp_path, text, rows):
    path = tmp_path / "nan.parquet"
    pq.write_table(pa.table({"x": pa.array([1.0, np.nan, 6, 7, np.nan, 8.0])}), path, row_group_size=2)
    assert chosen(path, text) == rows


@pytest.fixture
def partitioned(tmp_path):
    """Two levels of folders, one of them with numbers and a missing value."""
    for country, year, x in (("NL", "2024", 1.0), ("NL", "__HIVE_DEFAULT_PARTITION__", 2.0), ("B%20E", "2025", 3.0)):
        folder = tmp_path / "table" / f"country={country}" / f"year={year}"
        folder.mkdir(parents=True)
        pd.DataFrame({"x": [x, x + 0.5]}).to_parquet(folder / "part.parquet")
    return tmp_path / "table"


def test_folders_say_what_a_column_holds(partitioned, monkeypatch):
    import pyarrow.dataset as ds

    source = open_source(str(partitioned))
    table = pa.concat_tables([batch.inputs.table for batch in source.batches(4)])
    theirs = ds.dataset(partitioned, partitioning="hive").to_table().to_pandas()
    order = [source.paths.index(str(path)) for path in ds.dataset(partitioned, partitioning="hive").files]
    ours = table.to_pandas()
    theirs = pd.concat([theirs.iloc[2 * order.index(n) : 2 * order.index(n) + 2] for n in range(3)], ignore_index=True)
    pd.testing.assert_frame_equal(ours, theirs[ours.columns], check_dtype=False)
    opened = []
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", _noting(opened))
    assert len(chosen(partitioned, "country = 'B E' and year >= 2025")) == 2
    assert len(opened) == 1


def _noting(opened):
    iterate = pq.ParquetFile.iter_batches

    def noting(self, *given, **named):
        opened.append(named)
        return iterate(self, *given, **named)

    return noting


def test_folders_that_disagree_are_refused(partitioned):
    pd.DataFrame({"x": [1.0]}).to_parquet(partitioned / "country=NL" / "lone.parquet")
    with pytest.raises(DataError, match="same columns"):
        open_source(str(partitioned))
    os.remove(partitioned / "country=NL" / "lone.parquet")
    pd.DataFrame({"x": [1.0], "year": [1]}).to_parquet(partitioned / "country=NL" / "year=2024" / "part.parquet")
    with pytest.raises(DataError, match="not parts of one table"):
        open_source(str(partitioned))


def test_a_gate_says_which_rows_it_is_about(stored):
    def doubled(frame):
        return {"value": frame["x"].to_numpy() * 2}

    def wrong_for_belgium(frame):
        return {"value": frame["x"].to_numpy() * np.where(frame["country"] == "BE", 3, 2)}

    quick = {"edge": "off", "batch_sizes": (), "explain": False}
    assert not likewise.check(doubled, wrong_for_belgium, str(stored), **quick).passed
    report = likewise.check(doubled, wrong_for_belgium, str(stored), where="country = 'NL'", **quick)
    assert (report.passed, report.samples) == (True, 3)
    assert report.origin.data.name.endswith("where country = 'NL'")
    nothing = likewise.check(doubled, wrong_for_belgium, str(stored), where="country = 'XX'", **quick)
    assert nothing.outcome == "INCONCLUSIVE"
    with pytest.raises(UsageError, match="tables"):
        likewise.check(doubled, wrong_for_belgium, {"x": np.zeros(3)}, where="x = 1", **quick)


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("a in (" + "1," * 30_000 + "1)", "more than 8,000 words"),
        ("a = 1" + " and a = 1" * 100_000, "more than 8,000 words"),
        ("a > " + "9" * 5000, "a whole number that no column holds: 9"),
        (f"a > {2**64}", "a whole number that no column holds"),
        (f"a < {-(2**63) - 1}", "a whole number that no column holds"),
    ],
    ids=["list", "chain", "digits", "large", "small"],
)
def test_a_condition_that_pyarrow_would_fall_over_is_a_usage_error(condition, told):
    """A list of values ended its stack, and the process with it."""
    with pytest.raises(UsageError, match=told):
        Where(condition).require(pa.schema([("a", pa.uint64())]))


def test_whole_numbers_that_a_column_may_hold_are_compared_with():
    table = pa.table({"a": pa.array([1, 2**63, 2**64 - 1], pa.uint64()), "b": pa.array([-(2**63), 0, 1])})
    assert table.filter(Where(f"a = {2**64 - 1}").expression).num_rows == 1
    assert table.filter(Where(f"b = {-(2**63)}").expression).num_rows == 1
    many = Where("b in (" + ", ".join(map(str, range(3_900))) + ")")
    assert table.filter(many.expression).num_rows == 2
