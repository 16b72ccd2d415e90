"""What each kind of data means: missing values, dates, indexes, texts, test cases."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys

import numpy as np
import onnx
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from onnx import numpy_helper

from likewise.contracts.data import Provenance
from likewise.data.formats import Parquet
from likewise.data.readers.onnx_testdata import recorded_outputs
from likewise.errors import DataError
from likewise.registry import extensions, open_source


def only(target, size=1000):
    (batch,) = open_source(target).batches(size)
    return batch


def test_readers_claim_by_name_alone_and_import_nothing_heavy():
    program = (
        "import sys; from likewise.registry import extensions\n"
        "for reader in extensions('data.readers'):\n"
        "    for target in ('val.parquet', 'val/*.csv', 'x.npz', 'nothing', 3): reader.claims(target)\n"
        "print([name for name in ('numpy', 'pandas', 'pyarrow', 'polars', 'onnx') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]", answer.stdout


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("val.parquet", "tables"),
        ("VAL.CSV", "tables"),
        ("val/*.jsonl", "tables"),
        ("val.csv.gz", "tables"),
        ("val.npz", "arrays"),
        (np.zeros(3), "arrays"),
        ({"a": [1]}, "arrays"),
        (["a", None], "arrays"),
        (pd.DataFrame({"a": [1]}), "frames"),
        (pd.Series([1]), "frames"),
        (pl.DataFrame({"a": [1]}), "frames"),
        (pl.LazyFrame({"a": [1]}), "frames"),
        (pa.table({"a": [1]}), "frames"),
        ("model.onnx", None),
        ("package.module:function", None),
        ([1, 2], None),
        (7, None),
    ],
)
def test_one_reader_claims(target, name):
    assert [reader.name for reader in extensions("data.readers") if reader.claims(target)] == ([name] if name else [])


CSV = """id,when,city,count,ratio,flag,word
1,2024-01-01,Rome,1,0.1,True,NA
2,2024-01-02 10:00:00,,,inf,,"null"
3,12:30:00,"",3,NaN,False,"a ""b"", c
d"
"""


def test_csv_is_read_as_pandas_reads_it(tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    expected = pd.read_csv(io.StringIO(CSV))
    inputs = only(tmp_path / "a.csv").inputs
    # Among booleans, Arrow says None where pandas.read_csv says NaN.
    pd.testing.assert_frame_equal(inputs.frame().replace({"flag": {None: np.nan}}), expected)
    assert inputs["city"].tolist() == ["Rome", None, None]
    assert inputs["when"].tolist() == ["2024-01-01", "2024-01-02 10:00:00", "12:30:00"]
    assert inputs["word"].tolist() == [None, None, 'a "b", c\nd']
    np.testing.assert_array_equal(inputs["count"], [1, np.nan, 3])
    np.testing.assert_array_equal(inputs["flag"], [1, np.nan, 0])


@pytest.mark.parametrize("kind", ["2024-01-01", "10:30", "2024-01-01T10:00:00Z", "2024-01-01 10:00:00.123456"])
def test_dates_in_text_formats_stay_text(tmp_path, kind):
    (tmp_path / "a.csv").write_text(f"when\n{kind}\n{kind}\n")
    (tmp_path / "a.jsonl").write_text(f'{{"when": "{kind}", "all": ["{kind}"]}}\n')
    assert only(tmp_path / "a.csv").inputs["when"].tolist() == [kind, kind]
    assert only(tmp_path / "a.jsonl").inputs["when"].tolist() == [kind]
    assert only(tmp_path / "a.jsonl").inputs["all"].tolist() == [[kind]]


def test_csv_details(tmp_path):
    (tmp_path / "index.csv").write_text(pd.DataFrame({"a": [5, 6]}).to_csv())
    assert list(only(tmp_path / "index.csv").inputs) == ["Unnamed: 0", "a"]
    (tmp_path / "bom.csv").write_bytes(b"\xef\xbb\xbf\n\r\na,b\r\n" + b"\r\n" * 5000 + b"1,2\r\n\r\n3,4")
    assert only(tmp_path / "bom.csv").inputs["a"].tolist() == [1, 3]
    long = "x" * 3_000_000
    (tmp_path / "long.csv").write_text(f"a,b\n1,{long}\n2,{long}\n")
    assert [len(text) for text in only(tmp_path / "long.csv").inputs["b"]] == [3_000_000] * 2


def test_jsonl_fields_may_be_left_out(tmp_path):
    (tmp_path / "a.jsonl").write_text('\n{"a": 1, "v": [1, 2]}\n{}\n{"a": 3, "v": [3, 4]}')
    inputs = only(tmp_path / "a.jsonl").inputs
    np.testing.assert_array_equal(inputs["a"], [1, np.nan, 3])
    assert inputs["v"][1] is None


@pytest.mark.parametrize("name", [None, "id"])
def test_pandas_index_is_not_an_input(tmp_path, name):
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "t": ["a", None, "c"]}, index=pd.Index([5, 7, 9], name=name))
    frame.to_parquet(tmp_path / "a.parquet")
    inputs = only(tmp_path / "a.parquet").inputs
    assert list(inputs) == ["x", "t"]
    pd.testing.assert_frame_equal(inputs.frame(), frame)
    pd.testing.assert_frame_equal(inputs.select(["t"]).frame(), frame[["t"]])
    pd.testing.assert_frame_equal(inputs.slice(1, 3).frame(), frame[1:3])
    stored = name or "__index_level_0__"
    assert inputs[stored].tolist() == [5, 7, 9]
    assert inputs.select([stored, "x"]).frame().columns.tolist() == [stored, "x"]


def test_number_labels_come_back_from_parquet(tmp_path):
    frame = pd.DataFrame({0: [1, 2], 1: [3, 4]})
    frame.to_parquet(tmp_path / "a.parquet")
    inputs = only(tmp_path / "a.parquet").inputs
    assert list(inputs) == ["0", "1"]
    assert inputs["1"].tolist() == [3, 4]
    pd.testing.assert_frame_equal(inputs.frame(), frame)


def test_stray_index_of_another_writer(tmp_path):
    pl.DataFrame({"x": [1], "__index_level_0__": [4]}).write_parquet(tmp_path / "a.parquet")
    inputs = only(tmp_path / "a.parquet").inputs
    assert list(inputs) == ["x"]
    assert inputs.frame().columns.tolist() == ["x"]


def test_parquet_as_pandas_wrote_it(tmp_path):
    frame = pd.DataFrame(
        {
            "cat": pd.Categorical(["b", None, "a"], categories=["b", "a", "z"]),
            "int": pd.array([1, None, 3], dtype="Int64"),
            "when": pd.to_datetime(["2024-01-01", None, "2024-01-03"]),
            "text": ["a", None, ""],
        }
    )
    frame.to_parquet(tmp_path / "a.parquet")
    inputs = only(tmp_path / "a.parquet").inputs
    pd.testing.assert_frame_equal(inputs.frame(), pd.read_parquet(tmp_path / "a.parquet"))
    assert inputs["cat"].tolist() == ["b", None, "a"]
    assert inputs["text"].tolist() == ["a", None, ""]
    np.testing.assert_array_equal(inputs["int"], [1, np.nan, 3])
    assert np.isnat(inputs["when"]).tolist() == [False, True, False]


def test_a_lone_array_is_called_x(tmp_path):
    array = np.arange(12.0).reshape(4, 3)
    np.save(tmp_path / "a.npy", array)
    for target in (array, tmp_path / "a.npy"):
        batches = list(open_source(target).batches(3))
        assert [batch.inputs["X"].tolist() for batch in batches] == [array[:3].tolist(), array[3:].tolist()]
    view = next(open_source(array).batches(3)).inputs["X"]
    assert np.shares_memory(view, array)
    assert open_source(array).location == "ndarray"


def test_array_file_is_mapped_not_read(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 3)))
    assert isinstance(next(open_source(tmp_path / "a.npy").batches(3)).inputs["X"].base.base, np.memmap)


def test_npz_loads_an_array_when_asked(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.arange(3))
    source = open_source(tmp_path / "a.npz")
    loaded = []
    original = np.lib.format.read_array
    monkeypatch.setattr(
        np.lib.format, "read_array", lambda *args, **options: (loaded.append(1), original(*args, **options))[1]
    )
    batches = list(source.batches(1))
    assert not loaded
    assert [batch.inputs["y"].tolist() for batch in batches] == [[0], [1], [2]]
    assert len(loaded) == 1


def test_text_arrays_are_objects():
    assert only({"a": np.array(["x", "yy"])}).inputs["a"].dtype == object
    assert only({"a": np.array([b"x", "ä".encode()])}).inputs["a"].tolist() == ["x", "ä"]
    kept = np.array(["x", np.nan, None], dtype=object)
    assert all(ours is theirs for ours, theirs in zip(only({"a": kept}).inputs["a"], kept, strict=True))
    texts = only(["a", None, "c"]).inputs["X"]
    assert texts.tolist() == ["a", None, "c"]
    assert (texts.dtype, texts.ndim) == (object, 1)


def test_a_list_of_rows_is_a_table_and_a_list_of_arrays_is_samples():
    rows = [{"a": 1, "b": "x", "c": None}, {"a": 2, "b": "y", "c": np.float32(3.5)}]
    batch = only(rows)
    assert batch.stacked
    assert [list(batch.inputs[name]) for name in "ab"] == [[1, 2], ["x", "y"]]
    np.testing.assert_array_equal(batch.inputs["c"], [np.nan, 3.5])
    assert [b.stacked for b in open_source([{"a": np.zeros(2)}, {"a": np.zeros(3)}]).batches(9)] == [False, False]


def test_a_loader_is_gone_through_once():
    from torch.utils.data import DataLoader, IterableDataset, TensorDataset

    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    shuffled = open_source(DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True))
    first, again = (next(shuffled.batches(6)) for _ in range(2))
    assert list(first.inputs) == ["0", "1"]
    np.testing.assert_array_equal(first.inputs["0"], x.numpy()[first.inputs["1"]])
    np.testing.assert_array_equal(first.inputs["0"], again.inputs["0"])
    lone, named = DataLoader(TensorDataset(x), batch_size=4), DataLoader([{"a": r, "t": "w"} for r in x], batch_size=4)
    np.testing.assert_array_equal(only(lone).inputs["X"], x)
    np.testing.assert_array_equal(only(named).inputs["a"], x)
    assert list(only(named).inputs["t"]) == ["w"] * 6
    ragged = DataLoader([torch.zeros(2), torch.zeros(3)], batch_size=1)
    assert [b.inputs["X"].shape for b in open_source(ragged).batches(9)] == [(1, 2), (1, 3)]

    class Endless(IterableDataset):
        def __iter__(self):
            while True:
                yield x[0]

    for loader, told in ((DataLoader(Endless()), "never end"), (DataLoader([]), "gives nothing")):
        with pytest.raises(DataError, match=told):
            open_source(loader)


def test_tensors_inside_dicts():
    class Tensor:
        def detach(self):
            return self

        def cpu(self):
            return np.arange(3)

    assert only({"a": Tensor(), 5: [1, 2, 3]}).inputs["a"].tolist() == [0, 1, 2]


def test_series_is_a_column():
    assert only(pd.Series([1, 2], name="age")).inputs["age"].tolist() == [1, 2]
    assert only(pd.Series(["a", None])).inputs["X"].tolist() == ["a", None]
    assert only(pl.Series("age", [1, 2])).inputs["age"].tolist() == [1, 2]


def test_frames_stay_what_they_are():
    frame = pd.DataFrame({0: [1, 2, 3], "c": pd.Categorical(["a", "b", "a"])}, index=[7, 8, 9])
    source = open_source(frame)
    assert source.location == "DataFrame"
    first, second = source.batches(2)
    assert list(first.inputs) == ["0", "c"]
    pd.testing.assert_frame_equal(second.inputs.frame(), frame[2:])
    pd.testing.assert_frame_equal(first.inputs.select(["c", "0"]).frame(), frame[["c", 0]][:2])
    assert first.inputs.row(1) == {"0": 2, "c": "b"}
    assert only(pa.record_batch({"a": [1]})).inputs["a"].tolist() == [1]


def save_case(folder, inputs=(), outputs=()):
    folder.mkdir(parents=True)
    for role, tensors in (("input", inputs), ("output", outputs)):
        for number, proto in enumerate(tensors):
            (folder / f"{role}_{number}.pb").write_bytes(proto.SerializeToString())


@pytest.fixture
def cases(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    for number in (0, 2, 10):
        save_case(
            tmp_path / f"test_data_set_{number}",
            [
                numpy_helper.from_array(np.full((number, 2), number, np.float32), "image"),
                numpy_helper.from_array(np.array(number), ""),
                numpy_helper.from_array(np.array(["a", "ü"], dtype=object), "text"),
            ],
            [numpy_helper.from_array(np.array([number]), ""), numpy_helper.from_array(np.array([1.5]), "score")],
        )
    return tmp_path


def test_test_cases_are_rows(cases):
    source = pickle.loads(pickle.dumps(open_source(cases)))
    assert (source.rows, source.provenance) == (3, Provenance.RECORDED)
    batches = list(source.batches(100))
    assert [batch.rows.name(0) for batch in batches] == ["test_data_set_0", "test_data_set_2", "test_data_set_10"]
    assert [batch.rows.numbers.tolist() for batch in batches] == [[0], [1], [2]]
    assert not any(batch.stacked for batch in batches)
    inputs = batches[1].inputs
    assert list(inputs) == ["image", "input_1", "text"]
    assert inputs["image"].shape == (2, 2)
    assert inputs["input_1"].tolist() == 2
    assert inputs["text"].tolist() == ["a", "ü"]
    assert inputs.row(0) == {"image": [[2.0, 2.0], [2.0, 2.0]], "input_1": 2, "text": ["a", "ü"]}
    assert list(inputs.select(["text"])) == ["text"]
    shards = source.shards(2)
    numbers = [batch.rows.numbers.tolist() for shard in shards for batch in shard.batches(1)]
    assert (len(shards), numbers) == (2, [[0], [1], [2]])


def test_one_test_case(cases):
    batch = only(cases / "test_data_set_2")
    assert batch.rows.name(0) == "test_data_set_2"
    assert len(open_source(cases).fingerprint) == 64


def test_recorded_outputs(cases):
    answers = recorded_outputs(str(cases))
    assert [list(answer) for answer in answers] == [["output_0", "score"]] * 3
    assert [answer["output_0"].tolist() for answer in answers] == [[0], [2], [10]]


def test_test_cases_with_tables_beside_them_are_test_cases(cases):
    (cases / "table.csv").write_text("a\n1\n")
    assert [reader.name for reader in extensions("data.readers") if reader.claims(cases)] == ["onnx_testdata"]


@pytest.mark.parametrize(
    ("proto", "word"),
    [
        (onnx.TensorProto(dims=[3], data_type=1, raw_data=b"\x00" * 5), "holds no tensor"),
        (onnx.TensorProto(dims=[3], data_type=1, data_location=1), "another file"),
        (onnx.TensorProto(), "holds no tensor"),
    ],
)
def test_what_is_no_tensor(tmp_path, proto, word):
    save_case(tmp_path / "test_data_set_0", [proto])
    with pytest.raises(DataError, match=rf"input_0\.pb.*{word}"):
        list(open_source(tmp_path).batches(1))


def within(*tensors, depth=0):
    """A sequence of tensors, or one of sequences."""
    sequence = onnx.SequenceProto(name="s", elem_type=1, tensor_values=tensors)
    for _ in range(depth):
        sequence = onnx.SequenceProto(name="s", elem_type=3, sequence_values=[sequence])
    return sequence


ELSEWHERE = onnx.TensorProto(name="t", dims=[6], data_type=2, data_location=1)
ELSEWHERE.external_data.add(key="location", value="private.txt")
TWICE = onnx.TensorProto(name="t", dims=[1], data_type=1, raw_data=bytes(4), float_data=[1.0])
PLAIN = onnx.TensorProto(name="t", dims=[1], data_type=1, float_data=[1.0])
HIDDEN = onnx.TensorProto(dims=[6], data_type=2, raw_data=bytes(6), external_data=ELSEWHERE.external_data)
SPARSE = onnx.SequenceProto(name="s", elem_type=2)
SPARSE.sparse_tensor_values.add().indices.CopyFrom(ELSEWHERE)


CASES = {
    "a tensor": TWICE,
    "a tensor that names a file": HIDDEN,
    "a sequence": within(ELSEWHERE),
    "the second of a sequence": within(PLAIN, ELSEWHERE),
    "values twice in a sequence": within(PLAIN, TWICE),
    "a sequence of sequences": within(ELSEWHERE, depth=3),
    "a sparse tensor": SPARSE,
    "an optional tensor": onnx.OptionalProto(name="o", elem_type=1, tensor_value=ELSEWHERE),
    "an optional sequence": onnx.OptionalProto(name="o", elem_type=3, sequence_value=within(ELSEWHERE)),
}


@pytest.mark.parametrize("name", CASES)
def test_values_of_a_test_case_are_in_its_file_and_once(tmp_path, monkeypatch, name):
    """onnx looks for the file from where the command runs: bytes of any file there were a row."""
    (tmp_path / "private.txt").write_text("secret")
    monkeypatch.chdir(tmp_path)
    if not name.startswith(("a tensor", "the second")):  # else the file alone tells what it is
        told = onnx.helper.make_optional_type_proto if "optional" in name else onnx.helper.make_sequence_type_proto
        kind = told(onnx.helper.make_tensor_type_proto(1, [1]))
        value = onnx.helper.make_value_info("o", kind)
        onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "g", [value], [value])), "model.onnx")
    save_case(tmp_path / "test_data_set_0", [CASES[name]])
    with pytest.raises(DataError, match=r"input_0\.pb.*(another file|values twice)"):
        list(open_source(tmp_path).batches(1))


def test_a_list_of_lists_is_an_array_of_numbers():
    (batch,) = open_source([[1, 2.5], [3, 4.5], [5, 6.5]]).batches(8)
    assert batch.inputs["X"].tolist() == [[1, 2.5], [3, 4.5], [5, 6.5]]
    for rows in ([[1, "a"], [2, "b"]], [[1, 2], [3]], [[1, None]]):
        with pytest.raises(DataError):
            open_source(rows)


def test_a_sequence_is_a_list_of_arrays(tmp_path):
    proto = numpy_helper.from_list([np.zeros(3, np.float32), np.ones(2, np.float32)], name="seq")
    save_case(tmp_path / "test_data_set_0", [proto])
    (sample,) = open_source(tmp_path).batches(1)
    assert [array.tolist() for array in sample.inputs["seq"]] == [[0, 0, 0], [1, 1]]


def test_arrays_that_share_no_rows_are_one_sample(tmp_path):
    for arrays in ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, {"x": np.zeros(3), "rate": np.array(0.5)}, {}):
        (sample,) = open_source(arrays).batches(8)
        assert not sample.stacked
        assert {name: array.shape for name, array in sample.inputs.items()} == {n: a.shape for n, a in arrays.items()}


def test_incomplete_test_cases(tmp_path):
    tensor = numpy_helper.from_array(np.zeros(1), "same")
    save_case(tmp_path / "twice" / "test_data_set_0", [tensor, tensor])
    with pytest.raises(DataError, match="second tensor called 'same'"):
        list(open_source(tmp_path / "twice").batches(1))
    (tmp_path / "twice" / "test_data_set_0" / "input_0.pb").unlink()
    with pytest.raises(DataError, match=r"input_1\.pb and no input_0\.pb"):
        open_source(tmp_path / "twice")
    save_case(tmp_path / "none" / "test_data_set_0")
    with pytest.raises(DataError, match=r"test_data_set_0 holds no input_0\.pb"):
        open_source(tmp_path / "none")


def test_what_was_only_looked_at_is_not_decoded_again(tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": np.arange(1000.0)}), path, row_group_size=300)
    read, times = Parquet.read, []
    monkeypatch.setattr(Parquet, "read", lambda self, *asked: times.append(asked) or read(self, *asked))
    source = open_source(path)
    assert [len(next(source.batches(size))) for size in (1, 32)] == [1, 32]
    assert [len(batch) for batch in source.batches(256)] == [256, 256, 256, 232]
    assert len(times) == 1
    next(source.batches(1))
    for other in (source, pickle.loads(pickle.dumps(source))):
        numbers = np.concatenate([batch.rows.numbers for batch in other.batches(7)])
        assert np.array_equal(numbers, np.arange(1000))
