"""Each model gets its own copy of what it is asked: what one writes into it reaches neither the other nor the data."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import StandardScaler

import data_only
from likewise.compare.engines import local
from planting import expect

ROWS = 400


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(50, 9, ROWS), "b": rng.normal(-3, 2, ROWS), "c": rng.normal(0, 1, ROWS)})


@pytest.fixture(scope="module")
def fitted(table):
    scaler = StandardScaler().fit(table[["a", "b"]])
    scaled = table.assign(**dict(zip("ab", scaler.transform(table[["a", "b"]]).T, strict=True)))
    return scaler, LinearRegression().fit(scaled, table.to_numpy() @ [0.1, 2.0, -1.0])


@pytest.fixture
def in_place(fitted):
    """A pipeline as people write it by hand: the frame it is given is scaled where it lies."""
    scaler, model = fitted

    def predict(frame):
        frame[["a", "b"]] = scaler.transform(frame[["a", "b"]])
        return model.predict(frame)

    return predict


@pytest.fixture
def without_the_scaler(fitted):
    return lambda frame: fitted[1].predict(frame)


@pytest.fixture
def right(fitted):
    scaler, model = fitted
    return lambda frame: model.predict(
        frame.assign(**dict(zip("ab", scaler.transform(frame[["a", "b"]]).T, strict=True)))
    )


def stored(table, kind, tmp_path):
    if kind == "frame":
        return table.copy()
    path = tmp_path / f"rows.{kind}"
    {"parquet": table.to_parquet, "csv": table.to_csv, "feather": table.to_feather}[kind](path)
    return path


@pytest.mark.parametrize("kind", ["frame", "parquet", "feather", "csv"])
def test_a_candidate_without_the_step_fails_although_the_reference_scales_in_place(
    table, in_place, without_the_scaler, kind, tmp_path
):
    data = stored(table, kind, tmp_path)
    expect(data_only.check(in_place, without_the_scaler, data, drop=("Unnamed: 0",) if kind == "csv" else ()), "FAIL")


@pytest.mark.parametrize("rows_a_chunk", [64, 4096])
def test_a_right_candidate_passes_on_every_chunk(table, in_place, right, rows_a_chunk, monkeypatch):
    monkeypatch.setattr(local, "CHUNK_ROWS", rows_a_chunk)
    data = table.copy()
    expect(data_only.check(in_place, right, data), "PASS")
    expect(data_only.check(right, in_place, data), "PASS")
    pd.testing.assert_frame_equal(data, table)


def test_both_in_place_pass_at_every_batch_size_and_on_edge_cases(table, in_place):
    data = table.copy()
    report = data_only.check(in_place, in_place, data, edge="report", batch_sizes=(1, 7))
    expect(report, "PASS")
    pd.testing.assert_frame_equal(data, table)


@pytest.mark.parametrize("kind", ["array", "dict"])
def test_what_is_written_into_arrays_reaches_nobody(table, kind):
    data = table.to_numpy() if kind == "array" else {"a": table["a"].to_numpy(), "b": table["b"].to_numpy()}

    def total(rows):
        return rows.sum(axis=1) if kind == "array" else rows["a"] + rows["b"]

    def doubled(rows):
        for part in [rows] if kind == "array" else rows.values():
            part *= 2
        return total(rows)

    expect(data_only.check(doubled, total, data), "FAIL")
    expect(data_only.check(doubled, lambda rows: 2 * total(rows), data), "PASS")


@pytest.mark.parametrize("kind", [list, np.array])
@pytest.mark.parametrize("holder", ["frame", "dict"])
def test_what_is_written_into_the_cells_of_a_column_reaches_nobody(holder, kind):
    rng = np.random.default_rng(1)
    items = [kind(rng.normal(size=length).tolist()) for length in rng.integers(1, 6, 50)]
    column = np.empty(50, dtype=object)
    column[:] = items
    data = pd.DataFrame({"items": column}) if holder == "frame" else {"items": column, "n": np.arange(50.0)}

    def total(rows):
        return np.array([sum(items) for items in rows["items"]])

    def emptied(rows):
        answer = total(rows)
        for items in rows["items"]:
            items[0] = 1e9
        return answer

    expect(data_only.check(emptied, total, data), "PASS")


def test_a_copy_keeps_the_types_and_the_index_of_a_frame():
    columns = {
        "text": pd.Series(["a", None, "b"], dtype=object),
        "str": pd.Series(["a", None, "b"], dtype="str"),
        "mixed": pd.Series([1, "x", None], dtype=object),
        "kind": pd.Categorical(["u", "v", "u"]),
        "whole": pd.array([1, None, 3], dtype="Int64"),
        "flag": [True, False, True],
        "when": pd.to_datetime(["2020-01-01", None, "2021-01-01"]),
        "cells": [[1], [2], [3]],
    }
    data = pd.DataFrame(columns).set_axis([7, 7, 9])
    seen = []

    def look(frame):
        seen.append(frame)
        return np.arange(len(frame))

    data_only.check(look, look, data, batch_sizes=())
    pd.testing.assert_frame_equal(seen[0], data)
    assert seen[0]["text"].iloc[1] is None


def test_a_polars_frame_is_copied_too():
    polars = pytest.importorskip("polars")
    data = polars.DataFrame({"a": np.arange(50.0), "b": np.ones(50)})

    def grown(frame):
        frame.replace_column(0, (frame["a"] * 3).alias("a"))
        return frame["a"].to_numpy()

    expect(data_only.check(grown, lambda frame: frame["a"].to_numpy(), data), "FAIL")
    expect(data_only.check(grown, lambda frame: 3 * frame["a"].to_numpy(), data), "PASS")


def test_a_frame_of_a_file_can_be_written_into(tmp_path):
    """As one that pandas has read can: a model may clip its columns where they lie."""
    path = tmp_path / "rows.parquet"
    pd.DataFrame({"a": np.arange(50.0)}).to_parquet(path)

    def clipped(frame):
        values = frame["a"].to_numpy(copy=False)
        frame.loc[frame["a"] > 10, "a"] = 10.0
        assert values is not None
        return frame["a"].to_numpy()

    expect(data_only.check(clipped, lambda frame: frame["a"].clip(upper=10).to_numpy(), path), "PASS")


def test_a_masked_answer_is_no_number():
    data = {"a": np.arange(1.0, 51.0)}

    def masked(rows):
        return np.ma.masked_greater(rows, 40.0)

    expect(data_only.check(lambda rows: rows, masked, data), "FAIL", "nonfinite_mismatch")
    expect(data_only.check(masked, masked, data), "PASS", "10 values are NaN on both sides")


def test_a_masked_whole_number_is_refused():
    data = {"a": np.arange(50)}
    report = data_only.check(lambda rows: rows, lambda rows: np.ma.masked_greater(rows, 40), data)
    expect(report, "INCONCLUSIVE", "9 of 50 answers of 'output' are masked")


@pytest.mark.parametrize("holder", ["array", "dict", "structured"])
def test_masked_data_are_refused(holder):
    masked = np.ma.masked_greater(np.arange(50.0), 40.0)
    data = {"array": masked.reshape(-1, 1), "dict": {"a": masked}}.get(holder)
    if data is None:
        data = np.ma.array(np.zeros(50, dtype=[("a", float)]), mask=[(i > 40,) for i in range(50)])
    expect(data_only.check(lambda rows: rows, lambda rows: rows, data), "INCONCLUSIVE", "masked")


def test_a_buffer_that_a_function_fills_again_in_every_call_is_read_in_time():
    buffer = np.zeros(1)

    def reused(rows):
        buffer.resize(len(rows), refcheck=False)
        buffer[:] = rows * 2
        return buffer

    data = {"a": np.random.default_rng(2).normal(size=500)}
    expect(data_only.check(lambda rows: rows * 2, reused, data, batch_size=50), "PASS")
