"""The same table gives the same rows, under the same ids, whatever it is stored in and however it is cut."""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from likewise.contracts.data import Provenance
from likewise.data import formats
from likewise.data.readers import tables as table_source
from likewise.registry import open_source

ROWS = 61
NUMBERS = [7 * i - 100 for i in range(ROWS)]
VALUES = [float("nan") if i % 10 == 3 else i / 7 for i in range(ROWS)]
TEXTS = [f"text, {i} 'ä'" if i % 2 else "plain" for i in range(ROWS)]
FLAGS = [i % 3 == 0 for i in range(ROWS)]
TABLE = {"n": NUMBERS, "x": VALUES, "t": TEXTS, "b": FLAGS}
FRAME = pd.DataFrame(TABLE)


def parquet(folder: Path):
    FRAME.to_parquet(folder / "a.parquet", index=False)
    return folder / "a.parquet"


def row_groups(folder: Path):
    FRAME.to_parquet(folder / "a.pq", index=False, row_group_size=13)
    return str(folder / "a.pq")


def parquet_folder(folder: Path):
    part = folder / "val.parquet"
    part.mkdir()
    for name, start, stop in (("part-0", 0, 20), ("part-1", 20, 20), ("part-2", 20, 61)):
        FRAME[start:stop].to_parquet(part / f"{name}.parquet", index=False, row_group_size=7)
    (part / "_SUCCESS").write_text("")
    (part / ".part-0.parquet").write_text("no parquet")
    (part / "README.md").write_text("about")
    return part


def csv(folder: Path):
    FRAME.to_csv(folder / "a.csv", index=False)
    return folder / "a.csv"


def csv_gz(folder: Path):
    (folder / "a.csv.gz").write_bytes(gzip.compress(FRAME.to_csv(index=False).encode()))
    return folder / "a.csv.gz"


def tsv(folder: Path):
    FRAME.to_csv(folder / "a.TSV", index=False, sep="\t")
    return folder / "a.TSV"


def csv_glob(folder: Path):
    for i, part in enumerate((FRAME[:5], FRAME[5:5], FRAME[5:40], FRAME[40:])):
        part.to_csv(folder / f"part-{i}.csv", index=False)
    return str(folder / "*.csv")


def arrow_file(folder: Path):
    table = pa.Table.from_pandas(FRAME)
    with pa.ipc.new_file(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=17)
    return folder / "a.arrow"


def arrow_stream(folder: Path):
    table = pa.Table.from_pandas(FRAME)
    with pa.ipc.new_stream(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=17)
    return folder / "a.arrow"


def feather(folder: Path):
    pl.DataFrame(TABLE, strict=False).write_ipc(folder / "a.feather", compression="lz4")
    return folder / "a.feather"


def json_lines(start: int, stop: int) -> str:
    # Not by pandas: its to_json() keeps 10 decimals.
    rows = ({name: column[i] for name, column in TABLE.items()} for i in range(start, stop))
    return "".join(json.dumps(row, ensure_ascii=False).replace("NaN", "null") + "\n" for row in rows)


def jsonl(folder: Path):
    (folder / "a.jsonl").write_text(json_lines(0, ROWS))
    return folder / "a.jsonl"


def jsonl_folder(folder: Path):
    part = folder / "val"
    part.mkdir()
    (part / "0.ndjson").write_text(json_lines(0, 30))
    (part / "1.ndjson").write_text(json_lines(30, ROWS))
    return str(part)


def npz(folder: Path):
    np.savez(folder / "a.npz", n=NUMBERS, x=VALUES, t=np.array(TEXTS), b=FLAGS)
    return folder / "a.npz"


def structured_npy(folder: Path):
    rows = list(zip(NUMBERS, VALUES, TEXTS, FLAGS, strict=True))
    np.save(folder / "a.npy", np.array(rows, dtype=[("n", "i8"), ("x", "f8"), ("t", "U20"), ("b", "?")]))
    return folder / "a.npy"


def dict_of_arrays(folder: Path):
    return {"n": np.array(NUMBERS), "x": pd.Series(VALUES), "t": TEXTS, "b": np.array(FLAGS)}


def pandas_frame(folder: Path):
    return FRAME.set_index(pd.Index(range(500, 500 + ROWS)))


def polars_frame(folder: Path):
    return pl.DataFrame(TABLE, strict=False)


def arrow_table(folder: Path):
    return pa.table(TABLE)


FILES = [parquet, row_groups, csv, csv_gz, tsv, arrow_file, arrow_stream, feather, jsonl, npz, structured_npy]
SEVERAL_FILES = [parquet_folder, csv_glob, jsonl_folder]
LIVE = [dict_of_arrays, pandas_frame, polars_frame, arrow_table]
STREAMED = (csv, csv_gz, tsv, csv_glob, arrow_stream, jsonl, jsonl_folder)


@pytest.fixture(params=FILES + SEVERAL_FILES + LIVE, ids=lambda make: make.__name__)
def make(request):
    return request.param


@pytest.fixture
def source(make, tmp_path, monkeypatch):
    # Small blocks, so that a small table has many.
    monkeypatch.setattr(formats, "BLOCK_BYTES", 700)
    monkeypatch.setattr(table_source, "TURN", 8)
    return open_source(make(tmp_path))


def collect(batches):
    """Row numbers, and cells by column, of all batches."""
    batches = list(batches)
    numbers = [number for batch in batches for number in batch.rows.numbers.tolist()]
    return numbers, {name: [cell for b in batches for cell in b.inputs[name].tolist()] for name in batches[0].inputs}


def assert_is_table(cells):
    assert list(cells) == list(TABLE)
    for name, expected in TABLE.items():
        np.testing.assert_array_equal(cells[name], expected)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_every_row_once_in_order_with_its_number(source, size):
    numbers, cells = collect(source.batches(size))
    assert numbers == list(range(ROWS))
    assert_is_table(cells)


@pytest.mark.parametrize("size", [1, 9, 60])
def test_batches_are_of_one_size_except_the_last(source, size):
    lengths = [len(batch) for batch in source.batches(size)]
    assert lengths == [size] * (ROWS // size) + ([ROWS % size] if ROWS % size else [])


def test_types_of_arrays(source):
    batch = next(source.batches(5))
    assert batch.rows.numbers.dtype == np.int64
    assert [batch.inputs[name].dtype.kind for name in TABLE] == ["i", "f", "O", "b"]
    assert batch.stacked
    assert batch.rows.names is None


def test_can_be_read_again(source):
    first, second = source.batches(7), source.batches(7)
    next(first)
    assert collect(second)[0] == list(range(ROWS))
    assert collect(source.batches(7))[0] == list(range(ROWS))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shards_together_are_the_whole(source, count):
    shards = source.shards(count)
    assert 1 <= len(shards) <= count
    parts = [batch for shard in shards for batch in shard.batches(4)]
    numbers, cells = collect(parts)
    assert sorted(numbers) == list(range(ROWS))
    order = np.argsort(numbers)
    assert_is_table({name: [column[i] for i in order] for name, column in cells.items()})
    if shards[0].rows is not None:
        assert sum(shard.rows for shard in shards) == ROWS
    for shard in shards:
        lengths = [len(batch) for batch in shard.batches(4)]
        assert all(length == 4 for length in lengths[:-1])


def test_shards_of_known_length_are_balanced(source):
    if source.rows is not None:
        assert {shard.rows for shard in source.shards(4)} == {15, 16}
        assert [shard.rows for shard in source.shards(100)] == [1] * ROWS


def test_rows_are_known_where_the_format_says(source, make):
    assert source.rows == (None if make in STREAMED else ROWS)


def test_frame_is_the_table(source):
    frame = (
        pl.from_arrow(pa.table(TABLE)) if hasattr(source, "frame") and isinstance(source.frame, pl.DataFrame) else None
    )
    got = next(source.batches(ROWS)).inputs.frame()
    if frame is not None:
        assert got.equals(frame)
    else:
        pd.testing.assert_frame_equal(got.reset_index(drop=True), FRAME, check_dtype=False)


def test_row_is_plain(source):
    row = next(source.batches(10)).inputs.row(3)
    missing = row.pop("x")
    assert missing is None or np.isnan(missing)
    assert row == {"n": -79, "t": "text, 3 'ä'", "b": True}
    assert [type(value) for value in row.values()] == [int, str, bool]


def test_provenance_is_real(source):
    assert source.provenance is Provenance.REAL


@pytest.mark.parametrize("make", FILES + SEVERAL_FILES, ids=lambda make: make.__name__, indirect=True)
def test_file_sources_travel_to_other_processes(source):
    travelled = pickle.loads(pickle.dumps(source.shards(2)[0]))
    assert collect(travelled.batches(5)) is not None
    assert travelled.fingerprint == source.fingerprint
    whole = pickle.loads(pickle.dumps(source))
    numbers, cells = collect(whole.batches(50))
    assert numbers == list(range(ROWS))
    assert_is_table(cells)


@pytest.mark.parametrize("make", FILES, ids=lambda make: make.__name__, indirect=True)
def test_fingerprint_of_a_file_is_its_sha256(source, tmp_path):
    (file,) = tmp_path.iterdir()
    assert source.fingerprint == hashlib.sha256(file.read_bytes()).hexdigest()
    assert source.location == str(file)


def test_fingerprint_of_several_files_is_what_sha256sum_gives(tmp_path):
    target = csv_glob(tmp_path)
    listing = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(tmp_path.iterdir())
    )
    assert open_source(target).fingerprint == hashlib.sha256(listing.encode()).hexdigest()
    assert open_source(target).location == target


@pytest.mark.parametrize("make", LIVE, ids=lambda make: make.__name__, indirect=True)
def test_fingerprint_of_live_data_is_of_its_content(source, make, tmp_path):
    assert open_source(make(tmp_path)).fingerprint == source.fingerprint
    assert len(source.fingerprint) == 64


def test_columns_in_another_order_are_put_in_the_order_of_the_first_file(tmp_path):
    FRAME[:10].to_parquet(tmp_path / "0.parquet")
    FRAME[10:][["b", "t", "x", "n"]].to_parquet(tmp_path / "1.parquet")
    _, cells = collect(open_source(tmp_path).batches(8))
    assert_is_table(cells)


def test_parquet_shards_skip_row_groups(tmp_path, monkeypatch):
    source = open_source(row_groups(tmp_path))
    read = []
    original = pq.ParquetFile.iter_batches

    def spy(self, *args, row_groups, **options):
        read.extend(row_groups)
        return original(self, *args, row_groups=row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    assert len(list(source.shards(3)[2].batches(100))) == 1
    assert read == [3, 4]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "arrow"])
def test_no_rows_is_a_source_of_no_rows(tmp_path, suffix):
    path = tmp_path / f"none.{suffix}"
    empty = FRAME[:0]
    if suffix == "parquet":
        empty.to_parquet(path)
    elif suffix == "csv":
        path.write_text("n,x,t,b")
    else:
        pyarrow.feather.write_feather(empty, path)
    source = open_source(path)
    assert source.rows in (0, None)
    assert list(source.batches(10)) == []
    assert [list(shard.batches(10)) for shard in source.shards(3)] == [[]] * len(source.shards(3))
