"""The tools of experiments on inputs: one thing is changed and nothing else, not even a type."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likewise.contracts.data import Batch, RowIds
from likewise.data.cells import MISSING, Edit, Field, edited, missing_in, transplanted
from likewise.data.columns import ArrayColumns, ArrowColumns, FrameColumns
from likewise.explain.experiment import smallest
from likewise.explain.features import association, separates

FRAME = pd.DataFrame(
    {
        "number": [1.5, np.nan, 3.5],
        "count": [1, 2, 3],
        "text": ["x", None, "y"],
        "mixed": pd.Series(["x", np.nan, None], dtype=object),
        "kind": pd.Categorical(["u", "v", None]),
        "nullable": pd.array([1, None, 3], dtype="Int64"),
    }
)
FIRST = np.array([True, False, False])


def batch(columns):
    return Batch(RowIds(np.arange(3)), columns)


def field(name, index=None):
    return Field(name, index, name, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("number", 7.0), ("count", 7), ("text", "z"), ("mixed", "z"), ("kind", "v"), ("nullable", 7)],
)
def test_a_changed_cell_leaves_the_others_and_the_type_as_they_are(name, value):
    after = edited(batch(FrameColumns(FRAME)), [Edit(field(name), FIRST, value)]).inputs.frame()
    assert after[name].iloc[0] == value
    assert after.dtypes.equals(FRAME.dtypes)
    pd.testing.assert_frame_equal(after.iloc[1:], FRAME.iloc[1:])
    assert after["mixed"].iloc[2] is None
    assert FRAME[name].iloc[0] != value


@pytest.mark.parametrize("name", list(FRAME))
def test_a_value_can_be_taken_away_from_every_kind_of_column(name):
    after = edited(batch(FrameColumns(FRAME)), [Edit(field(name), FIRST, MISSING)])
    assert missing_in(after.inputs[name])[0]


@pytest.mark.parametrize("make", [lambda f: FrameColumns(pl.from_pandas(f)), ArrowColumns, ArrayColumns])
def test_every_form_of_table_can_be_changed(make):
    import pyarrow as pa

    frame = FRAME[["number", "count", "text"]]
    forms = {ArrowColumns: pa.Table.from_pandas(frame), ArrayColumns: {n: frame[n].to_numpy() for n in frame}}
    columns = make(forms.get(make, frame))
    after = edited(batch(columns), [Edit(field("number"), FIRST, 9.0), Edit(field("count"), FIRST, 0.5)]).inputs
    assert list(after) == list(frame)
    assert after["number"].tolist()[0] == 9.0
    assert after["count"].tolist() == [0.5, 2, 3]
    assert columns["number"].tolist()[0] == 1.5


def test_values_are_transplanted_from_other_rows_with_their_type():
    after = transplanted(batch(FrameColumns(FRAME)), {field("kind"): np.array([1, 1, 0])}).inputs.frame()
    assert after["kind"].tolist() == ["v", "v", "u"]
    assert after["kind"].dtype == FRAME["kind"].dtype


def test_a_transplanted_none_stays_none():
    after = transplanted(batch(FrameColumns(FRAME)), {field("mixed"): np.array([2, 1, 0])}).inputs.frame()
    assert after["mixed"].dtype == object
    assert after["mixed"].iloc[0] is None


def test_one_column_of_an_array_is_changed_and_transplanted():
    data = batch(ArrayColumns({"X": np.arange(6.0).reshape(3, 2)}))
    assert edited(data, [Edit(field("X", 1), FIRST, -1.0)]).inputs["X"].tolist() == [[0, -1], [2, 3], [4, 5]]
    after = transplanted(data, {field("X", 0): np.array([2, 1, 0])}).inputs["X"]
    assert after.tolist() == [[4, 1], [2, 3], [0, 5]]


@given(
    st.integers(1, 90).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=4)))
)
def test_the_smallest_set_is_found_whatever_it_is(drawn):
    count, needed = drawn
    assert set(smallest(range(count), lambda some: needed <= set(some))) == needed


def test_rows_that_fail_together_are_told_from_chance():
    failing = np.arange(100) < 10
    assert separates(failing, failing)
    assert not separates(np.arange(100) < 50, failing)
    assert not separates(np.arange(100) < 5, np.arange(100) < 5)
    assert association(failing, failing) > 100
    assert association(np.arange(100) % 2 == 0, failing) == pytest.approx(1, abs=0.3)
