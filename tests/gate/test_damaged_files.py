"""A damaged file of any format, as model and as data, is an INCONCLUSIVE report and never somebody else's exception."""

from __future__ import annotations

import pickle
import warnings

import joblib
import numpy as np
import onnx
import pandas as pd
import pytest

import data_only
import likewise
from planting import FLOAT, identity, said

ROWS = 60
FLIPS = 6
"""Files with one flipped bit, and with twenty, that are tried of each format."""

CRASHING = ("json", "ubj", "txt", "cbm")
"""Formats whose libraries take the process with them when a bit is wrong: the command line survives that, see the
tests of the supervisor."""


@pytest.fixture(scope="module")
def frame():
    return pd.DataFrame(np.random.default_rng(0).normal(size=(ROWS, 3)), columns=list("abc"))


@pytest.fixture(scope="module")
def stored(frame, tmp_path_factory):
    """One file of every format, made when it is first asked for."""
    import catboost
    import lightgbm
    import pyarrow as pa
    import skops.io
    import torch
    import xgboost
    from sklearn.linear_model import LinearRegression
    from torch import nn

    folder = tmp_path_factory.mktemp("whole")
    target = frame.sum(axis=1)
    fitted = LinearRegression().fit(frame, target)
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).eval()
    (folder / "net.py").write_text(
        "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))\n"
    )

    def scripted(path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # such files are still deployed
            torch.jit.script(network).save(path)

    def captured(path):
        free = ({0: torch.export.Dim("batch")},)
        torch.export.save(torch.export.export(network, (torch.zeros(4, 3),), dynamic_shapes=free), path)

    def boosted(path):
        xgboost.XGBRegressor(n_estimators=5).fit(frame, target).save_model(path)

    def lightened(path):
        model = lightgbm.LGBMRegressor(n_estimators=5, min_child_samples=2, verbose=-1).fit(frame, target)
        model.booster_.save_model(path)

    def streamed(path):
        table = pa.Table.from_pandas(frame)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)

    cat = {"iterations": 5, "verbose": False, "allow_writing_files": False}
    made = {
        "m.joblib": lambda path: joblib.dump(fitted, path),
        "packed.joblib.gz": lambda path: joblib.dump(fitted, path, compress=3),
        "m.pkl": lambda path: path.write_bytes(pickle.dumps(fitted)),
        "m.skops": lambda path: skops.io.dump(fitted, path),
        "m.onnx": lambda path: onnx.save(identity(FLOAT, name="x", shape=(None, 3)), path),
        "x.json": boosted,
        "x.ubj": boosted,
        "l.txt": lightened,
        "c.cbm": lambda path: catboost.CatBoostRegressor(**cat).fit(frame, target).save_model(str(path)),
        "weights.pt": lambda path: torch.save(network.state_dict(), path),
        "scripted.pt": scripted,
        "program.pt2": captured,
        "golden.parquet": lambda path: likewise.record(fitted, frame, path),
        "rows.parquet": frame.to_parquet,
        "rows.csv": lambda path: frame.to_csv(path, index=False),
        "rows.csv.gz": lambda path: frame.to_csv(path, index=False),
        "rows.feather": frame.to_feather,
        "rows.arrow": streamed,
        "rows.jsonl": lambda path: frame.to_json(path, orient="records", lines=True),
        "rows.npy": lambda path: np.save(path, frame.to_numpy()),
        "rows.npz": lambda path: np.savez(path, X=frame.to_numpy()),
        "packed.npz": lambda path: np.savez_compressed(path, X=frame.to_numpy()),
    }

    def find(name):
        path = folder / name
        if not path.exists():
            made[name](path)
        return path

    return find


MODELS = (
    *("m.joblib", "packed.joblib.gz", "m.pkl", "m.skops", "m.onnx", "x.json", "x.ubj", "l.txt", "c.cbm"),
    *("weights.pt", "scripted.pt", "program.pt2", "golden.parquet"),
)
DATA = (
    *("rows.parquet", "rows.csv", "rows.csv.gz", "rows.feather", "rows.arrow", "rows.jsonl"),
    *("rows.npy", "rows.npz", "packed.npz"),
)
DAMAGES = {
    "half": lambda whole: whole[: len(whole) // 2],
    "empty": lambda whole: b"",
    "zeros": lambda whole: bytes(len(whole)),
    "head": lambda whole: bytes(16) + whole[16:],
    "random": lambda whole: np.random.default_rng(1).bytes(len(whole)),
    "pointer": lambda whole: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
}
STILL_READ = {("rows.csv", "head"), ("rows.csv", "half"), ("rows.jsonl", "half"), ("rows.csv", "pointer")}
"""Text that is cut between two rows, or whose header is another, is a table all the same."""


def zero(rows):
    return np.zeros(len(rows))


def ask(path, frame, folder):
    if path.name in DATA:
        return data_only.check(zero, zero, path, batch_sizes=())
    options = {"reference_options": {"factory": f"{folder / 'net.py'}:build"}} if path.name == "weights.pt" else {}
    return data_only.check(path, zero, frame, batch_sizes=(), **options)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*MODELS, *DATA])
def test_what_is_not_whole_is_inconclusive(stored, frame, tmp_path, name, damage):
    whole = stored(name)
    path = tmp_path / name
    path.write_bytes(DAMAGES[damage](whole.read_bytes()))
    report = ask(path, frame, whole.parent)
    if (name, damage) not in STILL_READ:
        assert report.outcome == "INCONCLUSIVE", said(report)
        assert path.name in said(report)
        assert report.verdict.findings[0].remedy


@pytest.mark.filterwarnings("ignore")  # what libraries think of such files
@pytest.mark.parametrize("name", [name for name in (*MODELS, *DATA) if not name.endswith(CRASHING)])
def test_a_flipped_bit_raises_nothing(stored, frame, tmp_path, name):
    whole = stored(name).read_bytes()
    for seed in range(FLIPS):
        random = np.random.default_rng(seed)
        for count in (1, 20):
            content = bytearray(whole)
            for place in random.integers(0, len(content), count):
                content[place] ^= 1 << int(random.integers(8))
            path = tmp_path / name
            path.write_bytes(content)
            report = ask(path, frame, stored(name).parent)
            assert report.outcome in ("PASS", "FAIL", "INCONCLUSIVE")


@pytest.mark.parametrize("form", ["live", "stored"])
@pytest.mark.parametrize("lost", ["coef_", "classes_", "intercept_", "C"])
def test_an_estimator_that_lost_an_attribute_is_inconclusive(frame, tmp_path, form, lost):
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression().fit(frame, frame["a"] > 0)
    delattr(model, lost)
    if form == "stored":
        joblib.dump(model, tmp_path / "model.joblib")
        model = tmp_path / "model.joblib"
    report = data_only.check(model, zero, frame)
    assert report.outcome == "INCONCLUSIVE", said(report)
    assert lost in said(report)


def test_a_forest_without_trees_is_inconclusive(frame):
    from sklearn.ensemble import RandomForestRegressor

    model = RandomForestRegressor(n_estimators=3).fit(frame, frame["a"])
    del model.estimators_
    assert data_only.check(model, zero, frame).outcome == "INCONCLUSIVE"


def test_a_source_that_raises_is_inconclusive(frame):
    source = likewise.registry.open_source(frame)

    class Broken(type(source)):
        def batches(self, size):
            yield next(super().batches(10))
            raise KeyError("the rest")

    broken = Broken(source.location, frame, stop=ROWS)
    report = data_only.check(zero, zero, broken)
    assert report.outcome == "INCONCLUSIVE", said(report)
    assert "KeyError: 'the rest'" in said(report)
