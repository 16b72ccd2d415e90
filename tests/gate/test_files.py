"""A file that is missing, broken, something else or meant for other data never gives a pass."""

from __future__ import annotations

import json
import os
import struct
import warnings
import zlib
from types import SimpleNamespace

import joblib
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import data_only
import likewise
from likewise.cli.commands.fleet import _stored
from planting import FLOAT, codes, expect, identity


def png():
    """A picture of one pixel, as a real file."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0\0\0\0")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


BROKEN = {
    "picture.onnx": lambda whole: png(),
    "half.onnx": lambda whole: whole[: len(whole) // 2],
    "most.onnx": lambda whole: whole[:-7],
    "empty.onnx": lambda whole: b"",
    "zeros.onnx": lambda whole: bytes(len(whole)),
    "text.onnx": lambda whole: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
}


@pytest.mark.parametrize("side", ["reference", "candidate"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_onnx_file_is_inconclusive_and_named(models, tmp_path, name, side):
    path = tmp_path / name
    with open(models.onnx.classifier, "rb") as file:
        path.write_bytes(BROKEN[name](file.read()))
    pair = (path, models.onnx.classifier) if side == "reference" else (models.joblib.classifier, path)
    report = data_only.check(*pair, models.data)
    expect(report, "INCONCLUSIVE", f"the {side} cannot be opened", name)
    assert report.comparison.incidents[0].side == side


@pytest.mark.parametrize("kept", [0, 0.5, 0.99])
def test_a_half_written_joblib_file_is_inconclusive_and_named(models, tmp_path, kept):
    with open(models.joblib.classifier, "rb") as file:
        whole = file.read()
    path = tmp_path / "half.joblib"
    path.write_bytes(whole[: int(kept * len(whole))])
    report = data_only.check(path, models.onnx.classifier, models.data)
    expect(report, "INCONCLUSIVE", "the reference cannot be opened", "half.joblib")


def test_a_joblib_file_that_is_something_else_is_inconclusive(models, tmp_path):
    path = tmp_path / "table.joblib"
    joblib.dump({"model": models.fitted.classifier}, path)
    report = data_only.check(path, models.onnx.classifier, models.data)
    expect(report, "INCONCLUSIVE", "table.joblib", "the keys 'model'", "Save the estimator itself")


def test_a_model_that_was_never_fitted_is_inconclusive(models, tmp_path):
    from sklearn.linear_model import LogisticRegression

    path = tmp_path / "raw.joblib"
    joblib.dump(LogisticRegression(), path)
    expect(data_only.check(path, models.onnx.classifier, models.data), "INCONCLUSIVE", "raw.joblib", "not fitted")


@pytest.mark.parametrize("name", ["missing.onnx", "missing.joblib", "missing.parquet", "missing.py:predict"])
def test_a_missing_model_is_inconclusive_and_named(models, tmp_path, name):
    report = data_only.check(models.joblib.classifier, str(tmp_path / name), models.data)
    expect(report, "INCONCLUSIVE", "candidate", "there is no file", name.split(":")[0])


@pytest.mark.parametrize("name", ["folder.onnx", "folder.joblib", "folder.parquet"])
def test_a_folder_instead_of_a_model_is_inconclusive(models, tmp_path, name):
    (tmp_path / name).mkdir()
    report = data_only.check(models.joblib.classifier, tmp_path / name, models.data)
    expect(report, "INCONCLUSIVE", "candidate", name)


@pytest.mark.parametrize("name", ["loop.onnx", "loop.joblib", "loop.parquet"])
def test_a_model_that_cannot_be_read_is_inconclusive_and_named(models, tmp_path, name):
    # A link to itself cannot be read by anybody, not even by root.
    (tmp_path / name).symlink_to(tmp_path / name)
    report = data_only.check(tmp_path / name, models.onnx.classifier, models.data)
    expect(report, "INCONCLUSIVE", "the reference cannot be opened", name)


@pytest.mark.parametrize("name", ["loop.csv", "loop.parquet", "loop.npz"])
def test_data_that_cannot_be_read_is_inconclusive_and_named(models, tmp_path, name):
    (tmp_path / name).symlink_to(tmp_path / name)
    report = data_only.check(models.joblib.classifier, models.onnx.classifier, tmp_path / name)
    expect(report, "INCONCLUSIVE", name)


def test_a_model_of_an_unknown_kind_is_inconclusive(models, tmp_path):
    path = tmp_path / "model.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n")
    report = data_only.check(models.joblib.classifier, path, models.data)
    expect(report, "INCONCLUSIVE", "no framework recognises", "model.h5", ".onnx")


def test_data_of_an_unknown_kind_is_inconclusive(models, tmp_path):
    path = tmp_path / "data.xlsx"
    path.write_bytes(b"PK")
    report = data_only.check(models.joblib.classifier, models.onnx.classifier, path)
    expect(report, "INCONCLUSIVE", "data.xlsx", ".parquet")


def test_a_provider_that_is_not_there_is_never_replaced_by_another(models):
    options = {"candidate_options": {"providers": "TensorRT"}}
    report = data_only.check(models.joblib.classifier, models.onnx.classifier, models.data, **options)
    expect(
        report, "INCONCLUSIVE", "the candidate cannot be opened", "TensorRTExecutionProvider", "CPUExecutionProvider"
    )
    named = {"candidate_options": {"providers": "CPU"}}
    report = data_only.check(models.joblib.classifier, models.onnx.classifier, models.data, **named)
    expect(report, "PASS")
    assert report.origin.candidate.details["providers"] == ["CPUExecutionProvider"]


def test_a_graph_with_an_operator_nobody_knows_is_inconclusive(models):
    import onnx

    model = onnx.load_from_string(identity(FLOAT))
    model.graph.node[0].op_type = "Improve"
    report = data_only.check(lambda frame: {"value": frame}, model.SerializeToString(), {"x": np.zeros(5)})
    expect(report, "INCONCLUSIVE", "the candidate cannot be opened", "Improve")


def test_a_graph_whose_weights_are_missing_is_inconclusive(tmp_path):
    import onnx

    weights = np.ones((300, 300), np.float32)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["value"])
    shape = [None, 300]
    made = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("x", FLOAT, shape)],
        [onnx.helper.make_tensor_value_info("value", FLOAT, shape)],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = onnx.helper.make_model(made, ir_version=9, opset_imports=[onnx.helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "big.onnx", save_as_external_data=True, location="big.weights", size_threshold=0)
    data = {"x": np.random.default_rng(0).normal(size=(20, 300)).astype(np.float32)}
    expect(data_only.check(lambda x: {"value": x @ weights}, tmp_path / "big.onnx", data), "PASS")
    (tmp_path / "big.weights").unlink()
    report = data_only.check(lambda x: {"value": x @ weights}, tmp_path / "big.onnx", data)
    expect(report, "INCONCLUSIVE", "big.onnx", "'w'", "'big.weights'", "does not exist")


# Recorded answers.


@pytest.fixture(scope="module")
def golden(models, tmp_path_factory):
    path = tmp_path_factory.mktemp("golden") / "golden.parquet"
    assert likewise.record(models.joblib.classifier, models.data, path) == 300
    return path


@pytest.fixture(scope="module")
def keyed_golden(models, tmp_path_factory):
    path = tmp_path_factory.mktemp("golden") / "keyed.parquet"
    assert likewise.record(models.joblib.classifier, models.keyed, path, id="key") == 300
    return path


def test_recorded_answers_stand_in_for_the_model(models, golden):
    report = data_only.check(golden, models.onnx.classifier, models.data)
    expect(report, "PASS", "300 rows agree")
    assert report.origin.reference.kind == "recorded"


def test_recorded_answers_catch_another_candidate(models, golden):
    report = data_only.check(golden, models.onnx.network, models.data)
    expect(report, "FAIL", "probabilities.mismatch_rate")


def test_answers_recorded_for_other_data_are_inconclusive(models, golden, tmp_path):
    other = tmp_path / "other.parquet"
    models.shuffled[::-1].reset_index(drop=True).to_parquet(other)
    report = data_only.check(golden, models.onnx.classifier, other)
    expect(report, "INCONCLUSIVE", "the reference were recorded for other data", "other.parquet", "--id COLUMN")


def test_answers_recorded_for_other_data_are_inconclusive_even_if_they_agree(models, golden, tmp_path):
    # The same rows in another file: nobody can tell that from a row number.
    other = tmp_path / "copy.csv"
    models.shuffled.to_csv(other, index=False)
    report = data_only.check(golden, models.onnx.classifier, other)
    expect(report, "INCONCLUSIVE", "recorded for other data", "copy.csv")


def test_recorded_answers_that_lack_a_row_are_inconclusive_and_the_row_is_named(models, golden, tmp_path):
    short = tmp_path / "short.parquet"
    table = pq.read_table(golden)
    pq.write_table(table.filter([number != 123 for number in range(300)]), short)
    report = data_only.check(short, models.onnx.classifier, models.data)
    expect(report, "INCONCLUSIVE", "the reference", "no answer is recorded for row 123")


def test_recorded_answers_by_id_find_their_rows_in_any_order(models, keyed_golden, tmp_path):
    turned = tmp_path / "turned.parquet"
    pd.read_parquet(models.keyed)[::-1].to_parquet(turned, index=False)
    report = data_only.check(keyed_golden, models.onnx.classifier, turned, id="key")
    expect(report, "PASS", "300 rows agree")


def test_recorded_answers_by_id_name_the_row_they_lack(models, keyed_golden, tmp_path):
    other = tmp_path / "other.parquet"
    frame = pd.read_parquet(models.keyed)
    frame.loc[77, "key"] = "newcomer"
    frame.to_parquet(other, index=False)
    report = data_only.check(keyed_golden, models.onnx.classifier, other, id="key")
    expect(report, "INCONCLUSIVE", "the reference", "no answer is recorded for row newcomer")


def test_answers_recorded_by_id_are_not_looked_up_by_row_number(models, tmp_path):
    # Ids that look like row numbers, in another order.
    data = tmp_path / "numbered.parquet"
    models.shuffled.assign(key=np.arange(300)[::-1]).to_parquet(data)
    path = tmp_path / "golden.parquet"
    likewise.record(models.joblib.classifier, data, path, id="key")
    expect(data_only.check(path, models.onnx.classifier, data, id="key"), "PASS")
    expect(data_only.check(path, models.onnx.classifier, data), "INCONCLUSIVE", "--id")


@pytest.fixture(scope="module")
def scaled(models):
    """The keyed rows and the same rows scaled, with a pipeline and a model that lacks its scaler."""
    rows = pd.read_parquet(models.keyed)
    columns = list(models.table)
    pipeline = make_pipeline(StandardScaler(), LinearRegression()).fit(rows[columns], rows[columns].sum(axis=1) ** 2)
    changed = rows.copy()
    changed[columns] = pipeline[0].transform(rows[columns])
    return SimpleNamespace(rows=rows, changed=changed, columns=columns, pipeline=pipeline, model=pipeline[1])


@pytest.mark.parametrize("form", ["table", "function", "arrays"])
def test_answers_recorded_by_id_for_other_values_are_inconclusive(scaled, tmp_path, form):
    """Recorded on raw rows, checked on scaled ones: a candidate without the scaler would agree."""

    def data(frame):
        return {"key": frame["key"].to_numpy(), "X": frame[scaled.columns].to_numpy()} if form == "arrays" else frame

    def whole(rows):
        return scaled.pipeline.predict(rows[scaled.columns])

    def without(rows):
        values = rows if form == "arrays" else rows[scaled.columns].to_numpy()
        return scaled.model.predict(values)

    reference = {"table": scaled.pipeline, "function": whole, "arrays": scaled.pipeline.predict}[form]
    path = tmp_path / "golden.parquet"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of columns without names
        likewise.record(reference, data(scaled.rows), path, id="key")
        expect(data_only.check(path, reference, data(scaled.rows), id="key"), "PASS", "300 rows agree")
        report = data_only.check(path, without, data(scaled.changed), id="key")
    expect(report, "INCONCLUSIVE", "recorded for other values", "and 31 more of 32 rows", "likewise record")


def test_the_same_values_from_another_kind_of_file_are_the_same(models, keyed_golden, tmp_path):
    frame = pd.read_parquet(models.keyed)
    for path, write in (
        (tmp_path / "rows.csv", lambda path: frame.assign(more=1.0).to_csv(path, index=False)),
        (tmp_path / "rows.feather", frame.to_feather),
        (tmp_path / "rows.jsonl", lambda path: path.write_text("\n".join(map(json.dumps, frame.to_dict("records"))))),
    ):
        write(path)
        report = data_only.check(keyed_golden, models.onnx.classifier, path, id="key")
        expect(report, "PASS", "300 rows agree")
        assert not codes(report, "warning")
    expect(data_only.check(keyed_golden, models.onnx.classifier, frame, id="key"), "PASS")


def test_text_and_gaps_among_the_values_are_compared_too(tmp_path):
    frame = pd.DataFrame(
        {
            "key": [f"k{number}" for number in range(60)],
            "word": ["red", None, "blue"] * 20,
            "size": [1.0, np.nan, 3.0] * 20,
            "whole": pd.array([1, None, 2] * 20, dtype="Int64"),
            "flag": [True, False] * 30,
        }
    )

    def answer(rows):
        return np.arange(len(rows)) * 0.0

    path = tmp_path / "golden.parquet"
    likewise.record(answer, frame, path, id="key")
    expect(data_only.check(path, answer, frame.sample(frac=1, random_state=0), id="key"), "PASS")
    for column, value in (("word", "green"), ("word", None), ("size", 2.0), ("whole", 7), ("flag", True)):
        other = frame.copy()
        other.loc[5, column] = value
        changed = not other.loc[[5], [column]].equals(frame.loc[[5], [column]])
        report = data_only.check(path, answer, other, id="key")
        expect(report, "INCONCLUSIVE" if changed else "PASS", *(["in row k5 of 32 rows"] if changed else []))


def test_answers_recorded_by_id_without_their_inputs_are_still_read_and_that_is_told(models, keyed_golden, tmp_path):
    old = tmp_path / "old.parquet"
    table = pq.read_table(keyed_golden)
    about = json.loads(table.schema.metadata[b"likewise.recorded"])
    about.pop("fingerprinted")
    bare = table.drop_columns(["inputs"])
    pq.write_table(bare.replace_schema_metadata({b"likewise.recorded": json.dumps(about).encode()}), old)
    report = data_only.check(old, models.onnx.classifier, models.keyed, id="key")
    expect(report, "PASS", "300 rows agree", "could not be compared", "recorded without")
    assert "runner-warning" in codes(report, "warning")


def test_a_table_of_data_is_not_taken_for_recorded_answers(models):
    report = data_only.check(models.data, models.onnx.classifier, models.data)
    expect(report, "INCONCLUSIVE", "the reference cannot be opened", "not recorded answers", "likewise record")


def test_a_broken_report_cannot_be_judged(tmp_path):
    from likewise.errors import DataError

    path = tmp_path / "report.json"
    path.write_text('{"samples": 10, "passed": tr')
    with pytest.raises(DataError, match=r"report\.json is not JSON"):
        likewise.load(path)
    path.write_text('{"samples": 10, "passed": true}')
    with pytest.raises(DataError, match="is not a parity report"):
        likewise.load(path)


@pytest.fixture(scope="module")
def pipes(tmp_path_factory):
    """A pipe that nobody writes to under every name that is read, and folders that hold one."""
    folder = tmp_path_factory.mktemp("pipes")
    for name in ("m.onnx", "m.joblib", "m.pt", "m.txt", "m.jsonl", "d.csv", "d.parquet", "d.npz", "d.csv.gz", "r.json"):
        os.mkfifo(folder / name)
    for name in ("tables/a.csv", "arrays/a.npz", "case/input_0.pb"):
        (folder / name).parent.mkdir()
        os.mkfifo(folder / name)
    (folder / "linked.csv").symlink_to(folder / "d.csv")
    return folder


def same(x):
    return x


def also(x):
    return x + 0.0


NO_FILES = ("d.csv", "linked.csv", "d.parquet", "d.npz", "d.csv.gz", "m.jsonl", "d.*", "tables", "arrays", "case")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have no names here")
class TestAPipeIsNoFile:
    """Whoever opened one would wait for ever: these tests would."""

    @pytest.mark.parametrize("name", NO_FILES)
    def test_as_data(self, pipes, name):
        expect(data_only.check(same, also, pipes / name), "INCONCLUSIVE", "is a pipe")

    @pytest.mark.parametrize("name", ["m.onnx", "m.joblib", "m.pt", "m.txt", "m.jsonl", "d.parquet"])
    def test_as_a_model(self, pipes, name):
        expect(data_only.check(same, pipes / name, {"x": np.arange(4.0)}), "INCONCLUSIVE", "is a pipe")

    def test_as_anything_else(self, pipes):
        for read in (likewise.load, likewise.verify, likewise.inspect):
            with pytest.raises(likewise.LikewiseError, match="is a pipe"):
                read(pipes / "r.json")
        with pytest.raises(likewise.LikewiseError, match="onnx is a pipe"):
            likewise.quantize(pipes / "m.onnx", pipes / "q.onnx")
        expect(data_only.check(same, also, "/dev/zero"), "INCONCLUSIVE", "/dev/zero is a device")
        with pytest.raises(likewise.LikewiseError, match="is a pipe"), _stored(str(pipes / "r.json"), ["gate"]):
            pass

    def test_a_report_is_not_waited_with_for_a_reader(self, pipes):
        with pytest.warns(UserWarning, match="the report was not written to"):
            data_only.check(same, also, {"x": np.arange(4.0)}, report=str(pipes / "r.json"))
