"""The ninth attempt: what a worker says that was taken over, patterns and links that keep a command busy or lead to
tokens, and files in which two readers see two things. Each was a success before."""

from __future__ import annotations

import bz2
import glob
import gzip
import json
import lzma
import os
import pickle
import zipfile
import zlib
from pathlib import Path

import joblib
import numpy as np
import pyarrow as pa
import pytest
import skops.io
from click.testing import CliRunner
from sklearn.linear_model import LinearRegression

from likewise.cli import fleet as many
from likewise.cli import gates, likewise
from likewise.cli.commands import init
from likewise.contracts.verdict import Outcome
from likewise.data import files
from likewise.data.patterns import matching
from likewise.errors import DataError, LikewiseError, ModelError, UsageError
from likewise.models import pickles
from likewise.models.sklearn.open import _load_skops
from likewise.registry import open_source
from likewise.tasks import check, fleet
from likewise.tasks.harmless import require_harmless
from likewise.tasks.isolation import rooms, supervisor
from likewise.tasks.settings import Settings

HALF = "\ud800"
"""Half of a character, which no file can hold."""

GATE = Settings(reference="a.onnx", candidate="b.onnx", data="rows.csv", explain=False)
X = np.arange(20.0).reshape(10, 2)


def answer(text, outcome="PASS", **more):
    return {"headline": "h", "json": text, "shown": "s", "files": {}, "outcome": outcome, **more}


@pytest.mark.parametrize(
    "text", [HALF, "{}", "null", "[" * 100_000, '{"outcome": "FAIL"}', '{"outcome": "PASS", "outcome": "PASS"}']
)
def test_an_answer_that_is_no_report_or_tells_another_verdict_is_none(text):
    with pytest.raises(supervisor.CrashError, match="not a report"):
        gates.answered(answer(text), [])


def test_a_page_that_cannot_be_written_is_none():
    with pytest.raises(supervisor.CrashError, match="not a report"):
        gates.answered(answer('{"outcome": "PASS"}', files={"p.html": HALF}), [("html", "p.html")])


def test_one_gate_whose_report_cannot_be_read_does_not_end_a_fleet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = many.Fleet({"evil": GATE}, Path("reports"), {}, retried=(), jobs=1)
    ran._end("evil", gates.Carried(Outcome.PASS, "h", '{"outcome": "PASS"}', "s"), kept=False)
    assert ran.ended["evil"].outcome is Outcome.INCONCLUSIVE
    assert json.loads((tmp_path / "reports" / "evil.json").read_text())["outcome"] == "INCONCLUSIVE"
    assert ran.conclude(as_json=False) == 3


@pytest.mark.parametrize("text", ["{}", "null", HALF, "[" * 100_000])
def test_a_worker_that_dies_after_a_verdict_that_is_none_leaves_a_report(text):
    error = supervisor.CrashError("it died")
    error.judged = (text, "explaining")
    assert check.without_worker(GATE, error, {}).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("found", [None, [], 5, {"json": 5}])
def test_an_answer_of_another_kind_is_no_report_in_python(found):
    with pytest.raises(supervisor.CrashError, match="not a report"):
        supervisor.told_in(found, "json")


WORDS = {
    "stress": ["a.onnx", "b.onnx", "--data", "r.npz", "-o", "s.npz"],
    "bench": ["a.onnx", "b.onnx", "--data", "r.npz"],
    "noise": ["a.onnx", "--data", "r.npz"],
    "inspect": ["a.onnx", "--json"],
    "export": ["a.joblib", "--data", "r.npz", "-o", "e.onnx"],
    "record": ["a.onnx", "--data", "r.npz", "-o", "g.parquet"],
    "verify": ["report.json"],
}


@pytest.mark.parametrize("found", [None, "\x1b[31m", {"outcome": [], "points": [{}]}])
@pytest.mark.parametrize("name", WORDS)
def test_an_answer_of_another_kind_is_told_by_every_command(tmp_path, monkeypatch, name, found):
    monkeypatch.chdir(tmp_path)
    for way in ("watched", "supervise"):
        monkeypatch.setattr(supervisor, way, lambda *_, **__: found)
    result = CliRunner().invoke(likewise, [name, *WORDS[name]])
    told = result.output if name == "stress" else str(result.exception)
    assert "the worker's answer is not" in told.lower()
    assert isinstance(result.exception, SystemExit if name == "stress" else supervisor.CrashError)


def made(tmp_path, *names):
    room = tmp_path / "room"
    room.mkdir()
    for name in names:
        (room / name).write_text("theirs")
        (tmp_path / name).write_text("mine")
    return room


@pytest.mark.parametrize("job", ["record", "stress"])
def test_a_worker_replaces_no_file_beside_the_one_that_was_asked_for(tmp_path, job):
    beside = ("out.features.json", "out.metadata.json", "out.parquet.data")
    room = made(tmp_path, *beside, "out.parquet")
    rooms._put_in_place(job, room, tmp_path / "out.parquet")
    assert [(tmp_path / name).read_text() for name in (*beside, "out.parquet")] == ["mine", "mine", "mine", "theirs"]


def test_weights_that_belong_to_another_model_are_not_replaced(tmp_path):
    room = made(tmp_path, "out.onnx", "out.onnx.data")
    with pytest.raises(DataError, match="is not replaced"):
        rooms._put_in_place("fix", room, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_text() == (tmp_path / "out.onnx.data").read_text() == "mine"
    (tmp_path / "out.onnx").write_text("its weights are in out.onnx.data")
    rooms._put_in_place("fix", room, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").read_text() == "theirs"


def test_a_file_that_was_asked_for_and_is_not_there_is_told(tmp_path):
    with pytest.raises(DataError, match="is not written"):
        rooms._put_in_place("record", made(tmp_path), tmp_path / "out.parquet")


@pytest.mark.parametrize("pattern", ["d/**/*.csv", f"d/{'*/' * 30}*.csv", f"d/{'**/' * 9}*.csv", f"d/{'**/e/' * 8}x"])
def test_links_in_a_circle_and_many_stars_end(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    Path("d", *"e" * 40).mkdir(parents=True)
    for name in ("l1", "l2", "l3"):
        Path("d", name).symlink_to(".")
    assert [*matching(pattern)] == []


@pytest.mark.parametrize(
    "pattern", ["*.csv", "d/**/*.csv", "**/*.csv", "d/*/x.csv", "d/[ab]/*", "d/.h/*.csv", "d/../d/?/x.csv", "d/**/b/*"]
)
def test_a_pattern_matches_what_glob_matches(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    for folder in ("d/a", "d/b/c/b", "d/.h", "e"):
        Path(folder).mkdir(parents=True)
        Path(folder, "x.csv").touch()
        Path(folder, ".y.csv").touch()
    Path("top.csv").touch()
    for absolute in ("", f"{tmp_path}/"):
        assert sorted(matching(absolute + pattern)) == sorted(glob.glob(absolute + pattern, recursive=True))


@pytest.fixture
def repository(tmp_path, monkeypatch):
    (tmp_path / ".git" / "hooks").mkdir(parents=True)
    (tmp_path / ".git" / "config").write_text("[http]\nextraheader = a token\n")
    (tmp_path / "rows.csv").symlink_to(".git/config")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "said",
    [
        {"data": "rows.csv"},
        {"data": "*.csv"},
        {"data": "r.csv", "report": ".git/hooks/pre-commit"},
        {"data": "r.csv", "formats": {"html": ".GIT/info/attributes"}},
    ],
)
def test_a_configuration_reads_and_writes_nothing_where_versions_are_kept(repository, said):
    gate = Settings(reference="a.onnx", candidate="b.onnx", **said)
    with pytest.raises(UsageError, match=r"outside its (repository|folder)"):
        require_harmless({"g": gate}, trusted=False)
    (repository / "rows.csv").unlink()
    require_harmless({"g": Settings(reference="a.onnx", candidate="b.onnx", data=".", report="r.json")}, trusted=False)


def test_a_fleet_does_not_follow_links_to_where_versions_are_kept(repository):
    (repository / "b.onnx").touch()
    (repository / "a.joblib").touch()
    with pytest.raises(UsageError, match="keeps its versions"):
        fleet.find(Path())


@pytest.mark.parametrize("link", ["likewise.toml", ".github"])
def test_init_follows_no_link(tmp_path, monkeypatch, link):
    (tmp_path / "here").mkdir()
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    os.symlink(tmp_path / "away" / ("new" if "." in link[1:] else ""), link)
    with pytest.raises(UsageError, match="written elsewhere"):
        init.init.callback(force=True, github=False, gitlab=False, pre_commit=False)
    assert not [*(tmp_path / "away").iterdir()]


def test_a_name_that_is_too_long_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gate = Settings(reference="a.onnx", candidate="b.onnx", data="r.csv", report=f"{'g' * 300}.json")
    gate.require_own_files()
    with pytest.raises(UsageError, match="cannot be written"):
        files.require_writable([gate.report])


def test_a_folder_with_a_line_end_in_its_name_is_told_in_one_line():
    ended = many.Ended(Outcome.FAIL, "it differs", "", 1, False, [])
    assert "\n" not in many._line(1, 2, "x\n[2/2] PASS  other: 10 rows agree", ended)


def archive(path, *parts, comment=b""):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in parts:
            file.writestr(name, content)
        file.comment = comment
    return path.read_bytes()


@pytest.fixture
def rows(tmp_path):
    np.save(tmp_path / "x.npy", X)
    return (tmp_path / "x.npy").read_bytes()


def test_arrays_in_an_archive_with_another_one_in_it_are_refused(tmp_path, rows):
    path = tmp_path / "rows.npz"
    one = archive(path, ("x.npy", rows))
    open_source(str(path))
    np.savez_compressed(path, x=X, y=X)
    open_source(str(path))
    gap = one.replace(b"PK\x01\x02", b"PK\x03\x04 and more PK\x01\x02", 1)
    commented = archive(path, ("x.npy", rows), comment=one)
    for content in (one + one, commented, gap, b"PK\x03\x04" + one, one + b"more"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read"):
            open_source(str(path))


def test_a_skops_file_behind_another_is_refused(tmp_path):
    path = tmp_path / "model.skops"
    skops.io.dump(LinearRegression().fit(X, X[:, 0]), path)
    _load_skops(str(path), ())
    content = path.read_bytes()
    for forged in (content * 2, content + b"more"):
        path.write_bytes(forged)
        with pytest.raises(ModelError, match="belong to none of its parts"):
            _load_skops(str(path), ())


@pytest.mark.parametrize("packed", [bytes, zlib.compress, gzip.compress, bz2.compress, lzma.compress])
def test_a_pickle_with_something_behind_it_is_refused(tmp_path, packed):
    path, model = tmp_path / "model.pkl", LinearRegression().fit(X, X[:, 0])
    for content in (pickle.dumps(model), pickle.dumps(model) * 2):
        path.write_bytes(packed(content))
        if content == pickle.dumps(model):
            pickles.read(path)
    with pytest.raises(ModelError, match="something follows the model"):
        pickles.read(path)
    for compress in (0, 3, ("gzip", 3), ("bz2", 3), ("xz", 3), ("lzma", 3)):
        joblib.dump(model, path, compress=compress)
        pickles.read(path)
        path.write_bytes(path.read_bytes() + b"more")
        with pytest.raises(ModelError, match="something follows the model"):
            pickles.read(path)


@pytest.mark.parametrize(
    "text",
    [
        '{"x": 1}\n{"x": 2}{"x": 3}\n',
        '{"x": 1}\r{"x": 2}\r',
        '{"x":\n1}\n{"x": 2}{"x": 3}\n{"x": 4}{"x": 5}\n',
        '{"x": 1}\n\n{"x": 2} {"x": 3}\n',
    ],
)
def test_a_line_of_json_is_one_row(tmp_path, text):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(text.encode())
    with pytest.raises(DataError, match=r"not JSON|not as many"):
        list(open_source(str(path)).batches(10))
    path.write_bytes(b'\xef\xbb\xbf{"x": 1}\r\n\n {"x": 2} \n{"x": 3}')
    assert sum(map(len, open_source(str(path)).batches(10))) == 3


def stored(path, table):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def test_an_arrow_stream_behind_another_is_refused(tmp_path):
    path = tmp_path / "rows.arrow"
    stored(path, pa.table({"x": [1.0, 2.0]}))
    assert sum(map(len, open_source(str(path)).batches(10))) == 2
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(DataError, match="behind the end of its stream"):
        list(open_source(str(path)).batches(10))


def test_a_column_that_arrow_cannot_take_rows_of_is_told(tmp_path):
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([1.0]))
    either = pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1.0, 2.0])])
    for column in (runs, either, pa.StructArray.from_arrays([either], ["inside"])):
        stored(tmp_path / "rows.arrow", pa.table({"x": column}))
        with pytest.raises(LikewiseError, match="which no model takes"):
            open_source(str(tmp_path / "rows.arrow"))
