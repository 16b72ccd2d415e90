"""Data that cannot be read in full is refused, by the name of the file and of the column."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from likewise.data import formats
from likewise.errors import DataError
from likewise.registry import open_source

FRAME = pd.DataFrame({"age": range(1000), "city": ["Rome"] * 1000})


def refusal(target, *words):
    """The error of reading everything; it must hold these words and a next step."""
    with pytest.raises(DataError) as caught:
        for _ in open_source(target).batches(100):
            pass
    for word in words:
        assert re.search(word, caught.value.message), f"{word!r} not in: {caught.value}"
    assert caught.value.remedy
    assert not caught.value.message.endswith(".")
    return caught.value


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(formats, "BLOCK_BYTES", 200)


@pytest.mark.parametrize("name", ["val.parquet", "val.csv", "val.arrow", "val.jsonl", "val.npz", "val.npy"])
def test_missing_file(tmp_path, name):
    (tmp_path / f"my_{name}").write_text("x")
    refusal(tmp_path / name, f"no file .*{name}", f"did you mean 'my_{name}'")


def test_missing_folder_and_remote_file(tmp_path):
    refusal(tmp_path / "nowhere" / "val.csv", "nowhere")
    assert "s3://" in refusal("ftp://server/val.parquet", "ftp://server").remedy


def test_glob_without_match(tmp_path):
    refusal(str(tmp_path / "*.parquet"), r"no file matches .*\*\.parquet")


def test_a_name_with_brackets_is_a_name_if_it_exists(tmp_path):
    FRAME.to_csv(tmp_path / "val[1].csv", index=False)
    assert sum(map(len, open_source(str(tmp_path / "val[1].csv")).batches(100))) == 1000


@pytest.mark.parametrize(
    "name", ["a.parquet", "a.csv", "a.csv.gz", "a.arrow", "a.feather", "a.jsonl", "a.npz", "a.npy"]
)
def test_empty_file(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    refusal(tmp_path / name, name)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather", "a.csv.gz", "a.npz", "a.npy", "a.jsonl.gz"])
def test_noise_is_not_data(tmp_path, name):
    (tmp_path / name).write_bytes(np.random.default_rng(0).bytes(5000))
    refusal(tmp_path / name, name)


def test_truncated_parquet(tmp_path):
    FRAME.to_parquet(tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content[: len(content) // 2])
    refusal(tmp_path / "a.parquet", "a.parquet cannot be read")


def test_corrupt_page_in_parquet(tmp_path):
    FRAME.to_parquet(tmp_path / "a.parquet", row_group_size=200)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[len(content) // 3 : len(content) // 3 + 400] = b"\xff" * 400
    (tmp_path / "a.parquet").write_bytes(content)
    refusal(tmp_path / "a.parquet", "a.parquet cannot be read")


def test_parquet_with_fewer_rows_than_promised(tmp_path, monkeypatch):
    FRAME.to_parquet(tmp_path / "a.parquet", row_group_size=500)
    original = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile,
        "iter_batches",
        lambda self, *args, **options: (batch.slice(1) for batch in original(self, *args, **options)),
    )
    refusal(tmp_path / "a.parquet", "a.parquet promises 500 rows in row group 0 and delivers 499")


def arrow_bytes(open_writer):
    table = pa.Table.from_pandas(FRAME)
    sink = pa.BufferOutputStream()
    with open_writer(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("cut", [8, 4, 100, 5000])
@pytest.mark.parametrize("open_writer", [pa.ipc.new_file, pa.ipc.new_stream], ids=["file", "stream"])
def test_truncated_arrow(tmp_path, open_writer, cut):
    (tmp_path / "a.arrow").write_bytes(arrow_bytes(open_writer)[:-cut])
    refusal(tmp_path / "a.arrow", "a.arrow")


@pytest.mark.parametrize("open_writer", [pa.ipc.new_file, pa.ipc.new_stream], ids=["file", "stream"])
def test_arrow_texts_that_lie_outside_the_file(tmp_path, open_writer):
    whole, offsets = arrow_bytes(open_writer), np.arange(50, 53) * len("Rome")
    assert offsets.tobytes() in whole
    (tmp_path / "a.arrow").write_bytes(whole.replace(offsets.tobytes(), (offsets + np.array([0, 2**40, 0])).tobytes()))
    refusal(tmp_path / "a.arrow", "a.arrow cannot be read")


def test_arrow_codes_without_a_category(tmp_path):
    table = pa.table({"city": pa.array(["Rome", "Oslo", "Rome"]).dictionary_encode()})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    whole, codes = (tmp_path / "a.arrow").read_bytes(), np.array([0, 1, 0], dtype=np.int32)
    assert codes.tobytes() in whole
    (tmp_path / "a.arrow").write_bytes(whole.replace(codes.tobytes(), (codes * 2**20).tobytes()))
    refusal(tmp_path / "a.arrow", "a.arrow cannot be read")


def test_feather_version_1(tmp_path):
    (tmp_path / "a.feather").write_bytes(b"FEA1" + b"\x00" * 50)
    refusal(tmp_path / "a.feather", "a.feather is Feather version 1")


@pytest.mark.parametrize("cut", [4, 12, 500])
@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz"])
def test_truncated_gzip(tmp_path, name, cut):
    text = FRAME.to_csv(index=False) if "csv" in name else FRAME.to_json(orient="records", lines=True)
    (tmp_path / name).write_bytes(gzip.compress(text.encode())[:-cut])
    refusal(tmp_path / name, f"{name} cannot be read")


def test_csv_row_with_too_many_fields(tmp_path, small_blocks):
    (tmp_path / "a.csv").write_text("age,city\n" + "1,Rome\n" * 500 + "2,Rome,Italy\n" + "1,Rome\n" * 500)
    refusal(tmp_path / "a.csv", "a.csv: row 500 .*3 fields where the header has 2: '2,Rome,Italy'")


@pytest.mark.parametrize(("name", "sign"), [("a.csv", ";"), ("a.csv", "\t"), ("a.csv", "|"), ("a.tsv", ",")])
def test_csv_with_another_delimiter(tmp_path, name, sign):
    """Decimal commas would be told as a row with too many fields, whole numbers as columns that are missing."""
    for row in ("1,5", "1"):
        (tmp_path / name).write_text(f"age{sign}city\n{row}{sign}Rome\n")
        error = refusal(tmp_path / name, f"{name} seems to have {re.escape(repr(sign))} between its columns")
        assert f"sep={sign!r}" in error.remedy


def test_csv_row_with_too_few_fields(tmp_path):
    (tmp_path / "a.csv").write_text("age,city\n1,Rome\n2")
    refusal(tmp_path / "a.csv", "a.csv: row 1 .*1 fields where the header has 2")


@pytest.mark.parametrize("late", ["1.5", "old"])
def test_csv_column_that_changes_type(tmp_path, small_blocks, late):
    (tmp_path / "a.csv").write_text("city,age\n" + "Rome,1\n" * 200 + f"Rome,{late}\n")
    error = refusal(tmp_path / "a.csv", "a.csv", "'age'", "int64", late)
    assert "to_parquet" in error.remedy


def test_csv_types_hold_for_the_following_files(tmp_path):
    (tmp_path / "0.csv").write_text("age,city\n1,Rome\n")
    (tmp_path / "1.csv").write_text("city,age\nOslo,old\n")
    refusal(tmp_path, "1.csv", "'age'", "int64", "old")


def test_csv_with_an_open_quotation_mark(tmp_path):
    (tmp_path / "a.csv").write_text('age,city\n1,"Rome\n2,Oslo\n3,Bonn\n')
    refusal(tmp_path / "a.csv", "a.csv has a quotation mark that is never closed")


def test_csv_with_inches_and_newlines_is_read(tmp_path):
    (tmp_path / "a.csv").write_text('a,pipe\n1,5" wide\n2,"two\nlines, ""quoted"""\n')
    (batch,) = open_source(tmp_path / "a.csv").batches(10)
    assert batch.inputs["pipe"].tolist() == ['5" wide', 'two\nlines, "quoted"']


def test_csv_that_is_not_utf8(tmp_path):
    (tmp_path / "a.csv").write_bytes("age,city\n1,Zürich\n".encode("latin-1"))
    refusal(tmp_path / "a.csv", "a.csv is not UTF-8", "'city'")
    (tmp_path / "b.csv").write_bytes("age,größe\n1,2\n".encode("latin-1"))
    refusal(tmp_path / "b.csv", "b.csv has a header that cannot be read")


def test_csv_of_empty_lines(tmp_path):
    (tmp_path / "a.csv").write_text("\n\n")
    refusal(tmp_path / "a.csv", "a.csv has no header")


def test_half_written_json_line(tmp_path, small_blocks):
    (tmp_path / "a.jsonl").write_text('{"age": 1, "city": "Rome"}\n' * 30 + '{"age": 2, "ci')
    refusal(tmp_path / "a.jsonl", "a.jsonl, line 31 is not JSON", '"ci')


def test_json_lines_that_are_no_objects(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n[1]\n')
    refusal(tmp_path / "a.jsonl", "line 2 is not an object")
    (tmp_path / "b.jsonl").write_text("\n\n")
    refusal(tmp_path / "b.jsonl", "b.jsonl holds no lines")


@pytest.mark.parametrize("late", ["1.5", '"old"', "true"])
def test_json_field_that_changes_type(tmp_path, small_blocks, late):
    (tmp_path / "a.jsonl").write_text('{"age": null}\n{"age": 1}\n' * 30 + f'{{"age": {late}}}\n')
    refusal(tmp_path / "a.jsonl", "a.jsonl", "'age'", "int64", "line 61", re.escape(late))


def test_json_field_that_changes_type_among_the_first_lines(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"age": null}\n{"age": 1}\n{"age": "old"}\n')
    refusal(tmp_path / "a.jsonl", "a.jsonl", "'age'", "line 3", "old")


def test_json_field_that_comes_late(tmp_path, small_blocks):
    (tmp_path / "a.jsonl").write_text('{"age": 1}\n' * 30 + '{"age": 1, "height": 3}\n')
    refusal(tmp_path / "a.jsonl", "line 31 brings a field 'height'")


@pytest.mark.parametrize(
    ("before", "opening", "closing"),
    [
        ("", "[", "]"),
        ("", '{"y":', "}"),
        ("", "[\n", "]\n"),
        ('{"x": null}\n' * 50, "[", "]"),
        ("", '["\\"]]]]", ', "]"),
        ("\n \n", '["]]", ', "]"),
    ],
    ids=["lists", "objects", "over many lines", "after other rows", "beside text with brackets", "after blank lines"],
)
def test_json_nested_without_end(tmp_path, before, opening, closing):
    text = before + '{"x": ' + opening * 100_000 + "1" + closing * 100_000 + "}\n"
    (tmp_path / "a.jsonl").write_text(text)
    refusal(tmp_path / "a.jsonl", "a.jsonl, lines from 1 on: more than 100 lists or objects within each other")


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_json_with_many_lists_and_brackets_in_text_is_read(tmp_path, ending):
    row = {"image": [[1, 2]] * 300, "note": "[{" * 200 + '"\\', "deep": [[[[[1]]]]]}
    (tmp_path / "a.jsonl").write_text((json.dumps(row) + ending) * 3 + ending + json.dumps(row), newline="")
    assert sum(map(len, open_source(tmp_path / "a.jsonl").batches(100))) == 4


@pytest.mark.parametrize("pattern", ["**/*.csv", "part/*.csv", "part", "**/*.npz", "part/*.npz"])
def test_a_file_counts_once_whatever_leads_to_it(tmp_path, pattern):
    kind = pattern if pattern == "part" else pattern[-3:]
    (tmp_path / "part").mkdir()
    if kind == "npz":
        np.savez(tmp_path / "part" / "b.npz", x=np.arange(1000))
    else:
        FRAME.to_csv(tmp_path / "part" / "b.csv", index=False)
    suffix = "csv" if kind == "part" else kind
    (tmp_path / "part" / "again").symlink_to(".." if kind != "part" else "b.csv")
    (tmp_path / "part" / f"a.{suffix}").symlink_to(f"b.{suffix}")
    source = open_source(str(tmp_path / pattern))
    assert sum(map(len, source.batches(100))) == (1 if kind == "npz" else 1000)


def test_folder_of_mixed_formats(tmp_path):
    FRAME.to_csv(tmp_path / "a.csv")
    FRAME.to_parquet(tmp_path / "b.parquet")
    refusal(tmp_path, "2 formats", "csv, parquet", "a.csv, b.parquet")


def test_folder_called_like_a_table_without_files(tmp_path):
    (tmp_path / "a.parquet").mkdir()
    refusal(tmp_path / "a.parquet", "a.parquet holds no table files")


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (FRAME.rename(columns={"city": "town"}), "lacks 'city'.*also has 'town'"),
        (FRAME.astype({"age": float}), "'age' is int64, then double"),
    ],
)
def test_files_of_different_schemas(tmp_path, other, word):
    FRAME.to_parquet(tmp_path / "0.parquet")
    other.to_parquet(tmp_path / "1.parquet")
    refusal(tmp_path, "0.parquet and .*1.parquet", word)


def test_csv_files_of_different_columns(tmp_path):
    (tmp_path / "0.csv").write_text("age,city\n1,Rome\n")
    (tmp_path / "1.csv").write_text("age,town\n1,Rome\n")
    refusal(tmp_path, "1.csv lacks 'city'.*also has 'town'")


def test_duplicate_columns(tmp_path):
    (tmp_path / "a.csv").write_text("age,city,age\n1,Rome,2\n")
    refusal(tmp_path / "a.csv", "a.csv has more than one column called 'age'")
    pq.write_table(pa.table([[1], [2]], names=["x", "x"]), tmp_path / "a.parquet")
    refusal(tmp_path / "a.parquet", "a.parquet has more than one column called 'x'")
    refusal(pd.DataFrame([[1, 2]], columns=[1, "1"]), "DataFrame has more than one column called '1'")
    refusal(pa.table([[1], [2]], names=["x", "x"]), "Table has more than one column called 'x'")


def test_lazy_frame_is_asked_to_be_collected():
    assert "collect" in refusal(pl.LazyFrame({"a": [1]}), "LazyFrame").remedy


def test_sparse_rows_are_asked_for_in_full():
    for rows in (sparse.csr_matrix(np.eye(3)), sparse.coo_array(np.eye(3))):
        assert "toarray" in refusal(rows, f"{type(rows).__name__} is sparse").remedy


def test_arrays_that_are_none(tmp_path):
    np.savez(tmp_path / "none.npz")
    refusal(tmp_path / "none.npz", "no arrays")
    refusal({"x": [[1], [2, 3]]}, "'x' is not an array")
    refusal({"x": np.ma.masked_array([1.0, 2.0], mask=[True, False])}, "'x' is masked")
    refusal({"x": np.zeros(2, dtype=[("a", "f4")])}, "'x' is structured")


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_arrays_of_objects_are_not_unpickled(tmp_path, name):
    objects = np.array([{"a": 1}, None], dtype=object)
    np.save(tmp_path / name, objects) if name == "a.npy" else np.savez(tmp_path / name, X=objects)
    refusal(tmp_path / name, f"{name}: array 'X' holds Python objects")


def test_truncated_arrays(tmp_path):
    for name, save in (("a.npy", np.save), ("a.npz", np.savez_compressed)):
        save(tmp_path / name, np.random.default_rng(0).random((100, 10)))
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(DataError, match=name):
            [dict(batch.inputs) for batch in open_source(tmp_path / name).batches(10)]


def test_what_nobody_reads():
    refusal(object(), "object")
    refusal("model.onnx", "model.onnx")
    refusal([1, 2], "list")


@pytest.mark.parametrize(("shape", "kind"), [((10**12, 0), "<f4"), ((10**12,), "|S0")])
def test_rows_without_values_have_an_end(tmp_path, shape, kind):
    """They take no room in a file: whoever counted them one by one would never be done."""
    with open(tmp_path / "rows.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    with pytest.raises(DataError, match="1,000,000,000,000 rows and no value in any of them"):
        open_source(str(tmp_path / "rows.npy"))


def test_a_header_is_not_looked_for_without_an_end(tmp_path):
    """Empty lines can be packed a thousand to the byte."""
    with gzip.open(tmp_path / "rows.csv.gz", "wb") as file:
        file.write(b"\n" * (formats.HEADER_LINES + 1) + b"a,b\n1,2\n")
    with pytest.raises(DataError, match="no header, only empty lines"):
        open_source(str(tmp_path / "rows.csv.gz"))


def test_folders_that_name_a_column_twice(tmp_path):
    """The last one counted, and others take the first."""
    folder = tmp_path / "rows" / "b=1" / "b=2"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1.0]}), folder / "p.parquet")
    with pytest.raises(DataError, match="name a column twice"):
        open_source(tmp_path / "rows")
