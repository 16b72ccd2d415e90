"""The same rows are selected at every batch size, in any number of shards, from any kind of source."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from onnx import numpy_helper

from likewise.data import selection
from likewise.data.selection import select
from likewise.errors import DataError, UsageError
from likewise.registry import open_source

ROWS = 57
FRAME = pd.DataFrame({"key": [f"k{i:02}" for i in range(ROWS)], "x": np.arange(ROWS) / 2, "y": range(ROWS)})
KINDS = ["parquet", "csv", "pandas", "polars", "arrow", "arrays"]


@pytest.fixture(params=KINDS)
def source(request, tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "STRIDE", 16)
    if request.param == "parquet":
        FRAME.to_parquet(tmp_path / "a.parquet", row_group_size=10)
        return open_source(tmp_path / "a.parquet")
    if request.param == "csv":
        FRAME.to_csv(tmp_path / "a.csv", index=False)
        monkeypatch.setattr("likewise.data.readers.tables.TURN", 4)
        return open_source(tmp_path / "a.csv")
    live = {
        "pandas": FRAME,
        "polars": pl.DataFrame(FRAME.to_dict("list")),
        "arrow": pa.Table.from_pandas(FRAME),
        "arrays": {name: FRAME[name].to_numpy() for name in FRAME},
    }
    return open_source(live[request.param])


def read(source, size=1000):
    """Row numbers, and the cells of x, checked to be of those rows."""
    numbers = []
    for batch in source.batches(size):
        numbers += batch.rows.numbers.tolist()
        assert batch.inputs["x"].tolist() == (batch.rows.numbers / 2).tolist()
    return numbers


def test_nothing_selected_is_everything(source):
    chosen = select(source)
    assert read(chosen, 10) == list(range(ROWS))
    assert chosen.fingerprint == source.fingerprint
    assert chosen.location == source.location
    assert chosen.provenance == source.provenance
    assert chosen.rows == source.rows == chosen.expected_rows


@pytest.mark.parametrize("sample", ["first", "random"])
@pytest.mark.parametrize("samples", [1, 20, 56, 57])
def test_samples(source, sample, samples):
    chosen = select(source, samples=samples, sample=sample, seed=3)
    numbers = read(chosen)
    assert len(numbers) == samples == chosen.expected_rows
    assert numbers == sorted(set(numbers))
    if sample == "first":
        assert numbers == list(range(samples))
    for size in (1, 7, 20):
        assert read(chosen, size) == numbers
        lengths = [len(batch) for batch in chosen.batches(size)]
        assert all(length == size for length in lengths[:-1])
        assert 0 < lengths[-1] <= size
    for count in (1, 2, 3, 5):
        shards = chosen.shards(count)
        assert sorted(number for shard in shards for number in read(shard, 6)) == numbers


def test_more_samples_than_rows(source):
    for sample in ("first", "random"):
        chosen = select(source, samples=100, sample=sample)
        assert read(chosen, 9) == list(range(ROWS))
        assert chosen.expected_rows == 100
        assert chosen.rows in (None, ROWS)


def test_random_samples_depend_on_the_seed_alone(source):
    draws = {seed: read(select(source, samples=10, sample="random", seed=seed)) for seed in range(5)}
    assert len({tuple(numbers) for numbers in draws.values()}) == 5
    arrays = open_source({"x": FRAME["x"].to_numpy()})
    assert all(read(select(arrays, samples=10, sample="random", seed=seed)) == draws[seed] for seed in draws)


def test_every_row_is_drawn_as_often(monkeypatch):
    monkeypatch.setattr(selection, "STRIDE", 7)
    source = open_source({"x": np.arange(20) / 2})
    counts = np.zeros(20)
    for seed in range(600):
        counts[read(select(source, samples=5, sample="random", seed=seed))] += 1
    assert counts.sum() == 3000
    # 150 each on average, with a standard deviation of 10.6
    assert counts.min() > 150 - 4.5 * 10.6
    assert counts.max() < 150 + 4.5 * 10.6


def test_drop_and_row_id(source):
    chosen = select(source, drop=["y"], id="key", samples=30, sample="random")
    for batch in [*chosen.batches(8), *(b for shard in chosen.shards(3) for b in shard.batches(8))]:
        assert list(batch.inputs) == ["x"]
        assert [batch.rows.name(i) for i in range(len(batch))] == [f"k{n:02}" for n in batch.rows.numbers]
    by_number = next(select(source, id="y").batches(5))
    assert (by_number.rows.name(3), list(by_number.inputs)) == (3, ["key", "x"])


def test_unknown_columns(source):
    with pytest.raises(UsageError, match="no column 'Key_' to drop; did you mean 'key'"):
        list(select(source, drop=["Key_"]).batches(5))
    with pytest.raises(UsageError, match="no column 'keys' to name rows by; did you mean 'key'"):
        list(select(source, id="keys").batches(5))


@pytest.mark.parametrize(
    "options",
    [{"samples": 0}, {"samples": -1}, {"sample": "last", "samples": 1}, {"id": "key", "drop": ["key"]}],
)
def test_questions_that_make_no_sense(options):
    with pytest.raises(UsageError):
        select(open_source(FRAME), **options)


@pytest.mark.parametrize("size", [2, 10])
def test_ids_must_be_there_and_unique(size):
    def ids(*values):
        return list(select(open_source(pd.DataFrame({"id": values, "x": 0})), id="id").batches(size))

    with pytest.raises(DataError, match="row 2 of DataFrame has no id in column 'id'"):
        ids("a", "b", None)
    with pytest.raises(DataError, match=r"row 1 .*no id"):
        ids(1, None, 3)
    with pytest.raises(DataError, match=r"id 'a' in column 'id' .*the later one is row 3"):
        ids("a", "b", "c", "a")
    with pytest.raises(DataError, match=r"id 7 .*row 2"):
        ids(7, 8, 7)
    assert ids(-1, -2)[0].rows.name(0) == -1
    times = ids(*pd.to_datetime(["2024-01-01", "2024-01-02"]))
    assert str(times[0].rows.name(0)).startswith("2024-01-01T00:00:00")


def test_memory_for_ids_is_bounded(monkeypatch):
    monkeypatch.setattr(selection, "REMEMBERED_IDS", 4)
    frame = pd.DataFrame({"id": [1, 2, 3, 4, 5, 5, 6, 1], "x": 0})
    chosen = select(open_source(frame[:5]), id="id")
    assert len(list(chosen.batches(1))) == 5
    with pytest.raises(DataError, match="id 5"):
        list(select(open_source(frame), id="id").batches(8))
    with pytest.raises(DataError, match="id 1 "):
        list(select(open_source(frame.drop(index=5)), id="id").batches(1))


def test_the_index_pandas_wrote_can_name_rows(tmp_path):
    frame = FRAME.set_index("key")
    frame.to_parquet(tmp_path / "a.parquet")
    batch = next(select(open_source(tmp_path / "a.parquet"), id="key").batches(5))
    assert batch.rows.name(4) == "k04"
    assert list(batch.inputs) == ["x", "y"]
    assert "id" not in batch.inputs


def test_test_cases_are_selected_whole(tmp_path):
    for number in range(5):
        folder = tmp_path / f"test_data_set_{number}"
        folder.mkdir()
        tensor = numpy_helper.from_array(np.full((2, 3), number), "x")
        (folder / "input_0.pb").write_bytes(tensor.SerializeToString())
    source = open_source(tmp_path)
    first = list(select(source, samples=2).batches(10))
    assert [batch.rows.name(0) for batch in first] == ["test_data_set_0", "test_data_set_1"]
    drawn = list(select(source, samples=2, sample="random", seed=1).batches(10))
    assert len(drawn) == 2
    for batch in drawn:
        assert not batch.stacked
        assert batch.inputs["x"].tolist() == np.full((2, 3), batch.rows.numbers[0]).tolist()
