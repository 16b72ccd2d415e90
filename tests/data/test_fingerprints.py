"""A fingerprint is of the content: the same for the same rows, another for any change."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import time

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from likewise.data import files
from likewise.registry import open_source

CELLS = {
    "int": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(max_size=5)),
    "view": (pa.string_view(), st.text(max_size=20)),
    "category": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from("abc")),
    "list": (pa.list_(pa.int32()), st.lists(st.integers(0, 9), max_size=3)),
    "when": (pa.timestamp("us"), st.datetimes(dt.datetime(1990, 1, 1), dt.datetime(2030, 1, 1))),
}


@pytest.mark.parametrize("kind", CELLS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_arrow_content(kind, data):
    arrow_type, cells = CELLS[kind]
    values = data.draw(st.lists(st.none() | cells, min_size=1, max_size=20))
    padding = data.draw(st.lists(st.none() | cells, max_size=9))
    whole = pa.table({"c": pa.array(padding + values + padding, arrow_type)})
    expected = files.hash_table(pa.table({"c": pa.array(values, arrow_type)}))
    sliced = whole.slice(len(padding), len(values))
    assert files.hash_table(sliced) == expected
    cut = data.draw(st.integers(0, len(values)))
    assert files.hash_table(pa.concat_tables([sliced.slice(0, cut), sliced.slice(cut)])) == expected
    other = data.draw(st.lists(st.none() | cells, min_size=1, max_size=20))
    same = pa.array(other, arrow_type).equals(pa.array(values, arrow_type))
    same = same or repr(pa.array(other, arrow_type).to_pylist()) == repr(pa.array(values, arrow_type).to_pylist())
    if other != values and not same:
        assert files.hash_table(pa.table({"c": pa.array(other, arrow_type)})) != expected


def of(target):
    return open_source(target).fingerprint


FRAME = pd.DataFrame(
    {
        "i": range(10),
        "t": list("abcdefghij"),
        "m": pd.Series([1, "a"] * 5, dtype=object),
        "c": pd.Categorical(["x", "y"] * 5),
    }
)


def changed(column, value, row=4):
    other = FRAME.copy()
    other.loc[row, column] = value
    return other


@pytest.mark.parametrize(
    "other",
    [
        changed("i", 99),
        changed("t", "z"),
        changed("m", "b"),
        changed("c", "y"),
        changed("t", None),
        FRAME[::-1],
        FRAME[:9],
        FRAME[["t", "i", "m", "c"]],
        FRAME.rename(columns={"i": "j"}),
        FRAME.astype({"i": "int32"}),
        FRAME.assign(c=FRAME["c"].cat.reorder_categories(["y", "x"])),
    ],
)
def test_a_changed_frame_has_another_fingerprint(other):
    assert of(other) != of(FRAME)


def test_the_same_frame_has_the_same_fingerprint():
    assert of(FRAME.copy()) == of(FRAME)
    assert of(FRAME[2:7]) == of(FRAME[2:7].reset_index(drop=True).copy())
    frame = pl.DataFrame({"a": [1, None, 3], "t": ["x", "y", None]})
    assert of(frame[1:]) == of(pl.DataFrame({"a": [None, 3], "t": ["y", None]}))
    assert of(pl.DataFrame({"a": [1.0, None]})) != of(pl.DataFrame({"a": [1.0, float("nan")]}))
    assert of(FRAME) == open_source(FRAME).shards(3)[1].fingerprint


def test_arrays():
    array = np.arange(12.0).reshape(3, 4)
    assert of({"a": array}) == of({"a": np.asfortranarray(array)})
    assert of({"a": array[:, ::2]}) == of({"a": array[:, ::2].copy()})
    prints = {
        of({"a": array}),
        of({"b": array}),
        of({"a": array.astype("f4")}),
        of({"a": array.reshape(3, 2, 2)}),
        of({"a": array + (array == 5)}),
        of({"a": np.array(["a", "b", None], object)}),
        of({"a": np.array(["a", "b", "c"])}),
    }
    assert len(prints) == 7


def test_a_file_is_read_once_and_again_when_it_has_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SETTLED", 0)
    path = tmp_path / "weights.bin"
    path.write_bytes(b"one")
    os.utime(path, ns=(10**18, 10**18))
    read = files._hash_of.cache_info().misses
    assert files.hash_file(str(path)) == files.hash_file(str(path)) == hashlib.sha256(b"one").hexdigest()
    assert files._hash_of.cache_info().misses == read + 1


@pytest.mark.skipif(os.name != "posix", reason="there, a file has no time of its last change")
def test_a_file_whose_time_was_set_back_is_read_again(tmp_path, monkeypatch):
    """Archives are unpacked with the times they were made with, and weights are of one size, whatever they are."""
    monkeypatch.setattr(files, "SETTLED", 0)
    path = tmp_path / "weights.bin"
    for content in (b"one", b"two"):
        path.write_bytes(content)
        os.utime(path, ns=(10**18, 10**18))
        time.sleep(0.02)
        assert files.hash_file(str(path)) == hashlib.sha256(content).hexdigest()


def test_a_file_that_was_written_just_now_is_always_read(tmp_path):
    path, now = tmp_path / "weights.bin", time.time_ns()
    for content in (b"one", b"two", b"six"):
        path.write_bytes(content)
        os.utime(path, ns=(now, now))
        assert files.hash_file(str(path)) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("files", [1, 2])
def test_what_the_names_of_folders_say_is_content(tmp_path, files):
    table, part = tmp_path / "table", tmp_path / "table" / "region=1"
    part.mkdir(parents=True)
    for number in range(files):
        FRAME[["i", "t"]].to_parquet(part / f"{number}.parquet")
    found = {"1": of(table)}
    for now, then in (("2", "1"), ("x", "2"), ("01", "x")):
        (table / f"region={then}").rename(table / f"region={now}")
        found[now] = of(table)
    assert len({*found.values()}) == len(found), found
    (table / "region=01").rename(table / "area=01")
    assert of(table) not in found.values()
    # The same rows from another place are the same data.
    table.rename(tmp_path / "moved")
    (tmp_path / "moved" / "area=01").rename(tmp_path / "moved" / "region=1")
    assert of(tmp_path / "moved") == found["1"]
