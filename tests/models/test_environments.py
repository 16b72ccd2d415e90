"""A model that another Python opens: the same rows get there and the same answers back; what goes wrong is named."""

from __future__ import annotations

import ast
import datetime
import io
import math
import os
import subprocess
import sys
import venv
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import likewise
from likewise.contracts.models import Elsewhere
from likewise.data.columns import ArrowColumns
from likewise.errors import UsageError
from likewise.models import confinement
from likewise.models.environments import make, place, wire
from likewise.registry import describe_model, open_model
from likewise.tasks.harmless import require_harmless
from likewise.tasks.settings import load_gates
from planting import command

QUICK = {"batch_sizes": (), "edge": "off", "explain": False}
FAST = ("--quiet", "--batch-sizes", "none", "--edge", "off", "--no-explain")
SHELL = ("sh", "-c")
FUNCTIONS = """
import os, sys, time
import numpy as np

def double(rows):
    return np.asarray(rows["x"]) * 2.0

def noisy(rows):
    print("noise on standard output")
    os.write(1, b"\\x93likewise, or nearly so\\n")
    return double(rows)

def off(rows):
    return double(rows) + 0.5

def dies(rows):
    sys.stderr.write("something broke in here\\n")
    os._exit(3)

def hangs(rows):
    time.sleep(600)

def escapes(rows):
    import socket, subprocess
    tries = (lambda: open({secret!r}).read(), lambda: open({secret!r}, "w"), lambda: socket.socket(),
             lambda: subprocess.run(["/bin/true"]))
    for attempt in tries:
        try:
            attempt()
        except OSError:
            continue
        raise RuntimeError("it got out")
    return double(rows)
"""


@pytest.fixture(scope="session")
def other_python(made_once):
    """A Python of its own that has what models need, and no likewise."""

    def fill(folder):
        venv.create(folder / "env", with_pip=False, symlinks=True)
        home = next((folder / "env" / "lib").glob("python*")) / "site-packages"
        ours = Path(np.__file__).parents[1]
        for entry in ours.iterdir():
            if "likewise" not in entry.name and not (home / entry.name).exists():
                (home / entry.name).symlink_to(entry)
        return folder

    python = made_once("other_python", fill) / "env" / "bin" / "python"
    done = subprocess.run([python, "-c", "import likewise"], capture_output=True, check=False)
    assert b"No module named 'likewise'" in done.stderr
    return str(python)


@pytest.fixture
def functions(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "secret").mkdir()
    secret = tmp_path / "secret" / "file"
    secret.write_text("x")
    file = tmp_path / "elsewhere" / "functions.py"
    file.write_text(FUNCTIONS.format(secret=str(secret)))
    return file


ROWS = pd.DataFrame({"x": np.arange(20.0)})


@pytest.mark.parametrize("said", [{"command": {"/bin/sh": 1}}, {"with": {"evil": 1}}, {"python": True}, {"with": 5}])
def test_a_place_is_told_by_text_or_a_list_of_it(said):
    with pytest.raises(UsageError, match=next(iter(said))):
        place.Place.of(said)


def test_what_is_sent_is_one_program_for_an_old_python():
    tree = ast.parse(place.program(), feature_version=(3, 8))
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not any(name.startswith("likewise") for name in imported)


def travelled(value):
    buffers: list = []
    pipe = io.BytesIO()
    wire.send(pipe, wire.pack(value, buffers), buffers)
    message, arrived = wire.receive(io.BytesIO(b"noise " + wire.MARK[:5] + pipe.getvalue()))
    return wire.unpack(message, arrived)


def test_tables_travel_with_their_exact_types():
    table = pd.DataFrame(
        {
            "int8": np.array([1, -2, 3], "int8"),
            "uint64": np.array([2**64 - 1, 0, 1], "uint64"),
            "float32": np.array([np.nan, np.inf, -0.0], "float32"),
            "flag": [True, False, True],
            "text": ["ä", None, ""],
            "string": pd.array(["a", None, "b"], dtype="string"),
            "mixed": pd.Series(["a", 1, None], dtype=object),
            "gaps": pd.Series(["a", float("nan"), None], dtype=object),
            "nullable": pd.array([1, None, 2**60], dtype="Int64"),
            "maybe": pd.array([True, None, False], dtype="boolean"),
            "category": pd.Categorical(["low", None, "high"], ["low", "mid", "high"], ordered=True),
            "numbers": pd.Categorical([3, 1, 3]),
            "time": pd.to_datetime(["2024-03-31 01:30", None, "1999-12-31 00:00"]).as_unit("us"),
            "zoned": pd.to_datetime(["2024-03-31 01:30", None, "1999-12-31 00:00"]).tz_localize("Europe/Berlin"),
            "span": pd.to_timedelta([1, None, 3], unit="s"),
            "clock": pd.Series([datetime.time(1, 2, 3), None, datetime.time(4, 5)], dtype=object),
            "words": pd.Categorical(pd.Series(["a", "b", "a"], dtype=object)),
            7: [[1, 2], np.array([1.5]), {"a": None}],
        }
    ).set_index(pd.Index([5, 3, 9], name="key"))
    found = travelled(table)
    plain = [name for name in table.columns if name != 7]
    pd.testing.assert_frame_equal(found[plain], table[plain], check_exact=True)
    assert list(found.columns) == list(table.columns)
    assert found[7].tolist()[0] == [1, 2]
    assert found["gaps"].iloc[2] is None
    assert math.isnan(found["gaps"].iloc[1])
    with pytest.raises(TypeError, match="interval"):
        travelled(pd.DataFrame({"x": pd.interval_range(0, 3)}))


NUMBERS = {"a": np.array([1, -2, 3], "int8"), "b": np.array([2**64 - 1, 0, 1], "uint64"), "c": [np.nan, 1.5, -0.0]}


@pytest.mark.parametrize(
    ("table", "plain"),
    {
        "numbers": (pd.DataFrame(NUMBERS), True),
        "without notes of pandas": (pa.table(NUMBERS), True),
        "a selection": (pa.Table.from_pandas(pd.DataFrame(NUMBERS)).slice(1, 1), True),
        "no rows": (pd.DataFrame(NUMBERS).iloc[:0], True),
        "rows counted from five": (pd.DataFrame(NUMBERS, index=pd.RangeIndex(5, 8)), False),
        "rows with names": (pd.DataFrame(NUMBERS, index=pd.Index(["x", "y", "z"])), False),
        "columns that are numbers": (pd.DataFrame(np.ones((2, 3))), False),
        "gaps": (pa.table({"a": pa.array([1.0, None], pa.float32())}), False),
        "a type of pandas' own": (pd.DataFrame({"a": pd.array([1, 2], dtype="Int64")}), False),
        "flags": (pd.DataFrame({"a": [True, False]}), False),
        "text": (pd.DataFrame({"a": ["x", "y"]}), False),
    }.values(),
)
def test_columns_of_a_file_arrive_as_pandas_would_read_them(table, plain):
    table = table if isinstance(table, pa.Table) else pa.Table.from_pandas(table)
    columns = ArrowColumns(table)
    assert columns.are_plain_numbers() is plain
    sent = wire.Numbers(dict(columns)) if plain else columns.frame()
    pd.testing.assert_frame_equal(travelled(sent), table.to_pandas(), check_exact=True, check_index_type="exact")


@pytest.mark.parametrize("storage", ["python", "pyarrow"])
def test_text_travels_whatever_it_is_kept_in(storage):
    values = ["b", None, "", "b", "ä" * 300, None]
    for missing in (pd.NA, float("nan")):
        text = pd.Series(values, dtype=pd.StringDtype(storage, na_value=missing))
        for column in (text, text[:0], text[:1], text[1:2]):
            found = travelled(column.reset_index(drop=True).to_frame("x"))["x"]
            assert found.isna().tolist() == column.isna().tolist()
            assert found.dropna().tolist() == column.dropna().tolist()
            assert found.dtype.na_value is missing or found.dtype.na_value != found.dtype.na_value


def test_plain_text_of_an_older_pandas_is_text_in_a_newer_one(monkeypatch):
    """As that pandas would read it from the same file: a type of its own, on which code may depend."""
    table = pd.DataFrame({"text": pd.Series(["a", None, "ä"], dtype=object), "mixed": pd.Series([1, "a"] * 2)[:3]})
    buffers: list = []
    monkeypatch.setattr(wire, "_has_text_type", lambda: False)
    packed = wire.pack(table, buffers)
    assert wire.unpack(packed, buffers)["text"].tolist() == ["a", None, "ä"]
    monkeypatch.undo()
    with pytest.warns(UserWarning, match="of type str in pandas"):
        found = wire.unpack(packed, buffers)
    assert found["text"].dtype == "str"
    assert found["text"].isna().tolist() == [False, True, False]
    assert found["mixed"].dtype == object


def test_noise_that_never_ends_is_no_message(monkeypatch):
    monkeypatch.setattr(wire, "MOST_NOISE", 1_000)
    with pytest.raises(ValueError, match="of something else, such as"):
        wire.receive(io.BytesIO(b"y\n" * 1_000))


def test_an_estimator_answers_alike_with_other_versions_told(other_python, tmp_path):
    rows = pd.DataFrame({"colour": ["red", "blue", "green"] * 20, "size": np.linspace(-1, 1, 60)})
    labels = np.where((rows["size"] > 0) & (rows["colour"] == "red"), "yes", "no")
    made = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()).fit(rows, labels)
    joblib.dump(made, tmp_path / "model.joblib")
    far = likewise.elsewhere(tmp_path / "model.joblib", python=other_python)
    report = likewise.check(far, tmp_path / "model.joblib", rows, trusted=["*"], preset="exact", **QUICK)
    assert report.passed, report.headline
    details = report.origin.reference.details
    assert details["python"] == sys.version.split()[0]
    assert details["opened_by"] == other_python
    assert {"scikit-learn", "numpy", "pandas"} <= set(details["packages"])
    assert report.origin.settings["reference_options"] == {"python": other_python}
    assert not report.comparison.same_model
    assert {output.name for output in report.comparison.outputs} == {"label", "probabilities", "scores"}


def test_a_pickle_runs_elsewhere_only_where_that_was_said(tmp_path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    (tmp_path / "model.joblib").write_bytes(__import__("pickle").dumps(Harm()))
    far = likewise.elsewhere(tmp_path / "model.joblib", python=sys.executable)
    for trusted in ((), ("mypackage.*",)):
        report = likewise.check(far, far, ROWS, trusted=trusted, **QUICK)
        assert report.outcome == "INCONCLUSIVE"
        assert report.comparison.incidents[0].code == "untrusted-model"
    assert not (tmp_path / "harm").exists()


def test_a_graph_is_run_by_the_other_runtime(other_python, tmp_path):
    from skl2onnx import to_onnx

    rows = np.linspace(-1, 1, 80).astype("float32").reshape(40, 2)
    fitted = LogisticRegression().fit(rows, rows[:, 0] > 0)
    (tmp_path / "model.onnx").write_bytes(to_onnx(fitted, rows[:1]).SerializeToString())
    far = likewise.elsewhere(tmp_path / "model.onnx", python=other_python)
    report = likewise.check(tmp_path / "model.onnx", far, rows, preset="exact", **QUICK)
    assert report.passed, report.headline
    assert "onnxruntime" in report.origin.candidate.details["packages"]


def test_boosters_answer_alike(tmp_path):
    import lightgbm
    import xgboost

    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=["a", "b", "c d"])
    label = (rows["a"] > 0).astype(int)
    xgboost.XGBClassifier(n_estimators=3).fit(rows, label).save_model(tmp_path / "x.json")
    lightgbm.LGBMRegressor(n_estimators=3, min_child_samples=2, verbose=-1).fit(rows, label).booster_.save_model(
        tmp_path / "l.txt"
    )
    for name in ("x.json", "l.txt"):
        far = likewise.elsewhere(tmp_path / name, python=sys.executable)
        report = likewise.check(tmp_path / name, far, rows, preset="exact", **QUICK)
        assert report.passed, report.headline


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore:The tensor attributes:UserWarning")
@pytest.mark.filterwarnings("ignore:Converting a tensor:Warning")  # in C, where an error is none
def test_networks_answer_alike_and_programs_need_trust(tmp_path):
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 3), torch.nn.GRU(3, 2, batch_first=True)

        def forward(self, x, scale):
            inner = torch.relu(self.first(x)) * scale
            return {"y": inner, "state": self.last(inner.unsqueeze(1))[1]}

    net, given = Net().eval(), (torch.randn(20, 4), torch.rand(20, 1))
    torch.jit.trace(net, given, strict=False).save(tmp_path / "net.pt")
    size = {0: torch.export.Dim("rows", min=2, max=64)}
    captured = torch.export.export(net, given[:1], {"scale": given[1]}, dynamic_shapes={"x": size, "scale": size})
    torch.export.save(captured, tmp_path / "net.pt2")
    rows = {"x": given[0].numpy(), "scale": given[1].numpy()}
    for name in ("net.pt", "net.pt2"):
        far = likewise.elsewhere(tmp_path / name, python=sys.executable)
        report = likewise.check(tmp_path / name, far, rows, preset="exact", trusted=["*"], **QUICK)
        assert report.passed, report.headline
        assert {output.name for output in report.comparison.outputs} == {"y", "state"}
        assert "torch" in report.origin.candidate.details["packages"]
        report = likewise.check(far, far, rows, **QUICK)
        assert report.comparison.incidents[0].code == "untrusted-model"
    lone = {name: array[:1] for name, array in rows.items()}
    report = likewise.check(tmp_path / "net.pt", far, lone, trusted=["*"], **QUICK)
    assert "captured for 2 to 64 rows" in report.headline
    torch.save(net.state_dict(), tmp_path / "net.pt")
    far = likewise.elsewhere(tmp_path / "net.pt", python=sys.executable)
    assert "weights without the model" in likewise.check(far, far, rows, trusted=["*"], **QUICK).headline


def test_files_of_catboost_and_openvino_answer_alike(tmp_path):
    import catboost
    import openvino
    from openvino import opset13 as ops

    table = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["a", "b"])
    table["c"] = np.where(table["b"] > 0.5, "u", "v")
    label = np.array(["p", "q", "r"])[(table["a"] > 0).astype(int) + (table["b"] > 0)]
    model = catboost.CatBoostClassifier(iterations=3, verbose=0, cat_features=["c"], allow_writing_files=False)
    model.fit(table, label).save_model(tmp_path / "model.cbm")
    given = ops.parameter([-1, 2], np.float32, name="x")
    weights = np.array([[1.0, -2.0, 0.5], [0.25, 1.0, 3.0]], np.float32)
    graph = openvino.Model([ops.softmax(ops.matmul(given, ops.constant(weights), False, False), 1)], [given], "net")
    graph.inputs[0].set_names({"x"})
    openvino.save_model(graph, tmp_path / "net.xml", compress_to_fp16=False)
    rows = {"x": table[["a", "b"]].to_numpy(np.float32)}
    for path, data in ((tmp_path / "model.cbm", table), (tmp_path / "net.xml", rows)):
        far = likewise.elsewhere(path, python=sys.executable)
        report = likewise.check(path, far, data, preset="exact", **QUICK)
        assert report.passed, report.headline


def test_a_difference_fails_and_noise_does_not(functions):
    here = f"{functions}:double"
    banner = [*SHELL, 'head -c 20000 /dev/zero; echo Pulling; exec "$0" "$@"', sys.executable]
    assert likewise.check(here, likewise.elsewhere(here, command=banner), ROWS, **QUICK).passed
    noisy = likewise.elsewhere(f"{functions}:noisy", python=sys.executable)
    assert likewise.check(here, noisy, ROWS, **QUICK).passed
    off = likewise.elsewhere(f"{functions}:off", python=sys.executable)
    assert likewise.check(here, off, ROWS, **QUICK).outcome == "FAIL"


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (
            {"python": sys.executable, "function": "dies"},
            "other-python",
            "ended with code 3; its last output: something",
        ),
        ({"python": "/nowhere/python"}, "other-python", "there is no Python at /nowhere/python"),
        ({"command": "echo hello"}, "other-python", "ended with code 0"),
        ({"command": [sys.executable, "-S", "-I", "-"]}, "missing-package", "has no module 'numpy'"),
        ({"python": sys.executable, "function": "missing"}, "model", "no attribute 'missing'"),
        # Stand-ins for `docker run` without -i, for a container out of memory, and for a machine with an old Python.
        ({"command": [*SHELL, 'exec "$0" "$@" </dev/null', sys.executable]}, "other-python", "docker run needs -i"),
        ({"command": [*SHELL, "exit 137"]}, "other-python", "ended with code 137, as when memory runs out"),
        (
            {"command": [sys.executable, "-c", "import sys;sys.version_info=(3,7,1);exec(sys.argv[2])"]},
            "other-python",
            "is too old: 3.8 or later is needed",
        ),
    ],
)
def test_what_goes_wrong_elsewhere_is_named(functions, options, code, told):
    name = options.pop("function", "double")
    far = Elsewhere(f"{functions}:{name}", options)
    report = likewise.check(f"{functions}:double", far, ROWS, **QUICK)
    assert report.outcome == "INCONCLUSIVE"
    (incident,) = report.comparison.incidents
    assert incident.code == code
    assert told in incident.message
    assert incident.side == "candidate"


def test_a_place_that_cannot_be_reached_is_not_blamed_on_the_model(functions):
    far = Elsewhere(f"{functions}:double", {"command": [*SHELL, "exit 255"]})
    report = likewise.check(f"{functions}:double", far, ROWS, **{**QUICK, "explain": True})
    assert report.outcome == "INCONCLUSIVE"
    assert not report.diagnoses


@pytest.mark.skipif(confinement._abi() < 6, reason="this system has no Landlock of version 6 or later")
def test_behind_walls_the_other_python_is_too_and_a_command_is_not(functions):
    ROWS.to_csv(functions.parent / "rows.csv", index=False)
    models = ("functions.py:double", "functions.py:escapes", "--data", "rows.csv")
    places = ("--reference-command", f"{sys.executable} -", "--candidate-python", sys.executable)
    done = command("check", *models, *places, *FAST, folder=functions.parent)
    done.expect(0, "it ran outside the walls that confine models here")
    details = {side: done.report["provenance"][side]["details"] for side in ("reference", "candidate")}
    assert details["candidate"]["confinement"].endswith("no network, no other programs")
    assert details["reference"]["confinement"] == "none: it was started as it is"


def test_a_python_that_hangs_is_ended_and_named(functions):
    ROWS.to_csv(functions.parent / "rows.csv", index=False)
    models = ("functions.py:hangs", "functions.py:double", "--data", "rows.csv", "--timeout", "4s")
    done = command("check", *models, "--reference-python", sys.executable, *FAST, folder=functions.parent)
    done.expect(3, "no answer within 4 seconds", "reference (functions.py:hangs)")


def test_a_configuration_says_where_a_model_is_opened_and_needs_trust_for_it(tmp_path):
    (tmp_path / "likewise.toml").write_text(
        'data = "rows.csv"\n[gates.upgrade]\ncandidate = "model.onnx"\n'
        'reference = {model = "model.onnx", with = ["onnxruntime==1.16.3"], threads = 1}\n'
    )
    gates = load_gates(tmp_path / "likewise.toml")
    assert gates["upgrade"].reference == "model.onnx"
    assert gates["upgrade"].reference_options == {"with": ["onnxruntime==1.16.3"], "threads": 1}
    with pytest.raises(UsageError, match="names code to run"):
        require_harmless(gates, trusted=True)


def test_requirements_are_read_as_people_write_them():
    assert make.requirements("scikit-learn==1.2.2, numpy>=1.20,<2") == ("scikit-learn==1.2.2", "numpy>=1.20,<2")
    with pytest.raises(UsageError, match="names no package"):
        make.requirements("--index-url=elsewhere")
    with pytest.raises(UsageError, match="both a command"):
        place.Place.of({"command": "docker run image python", "python": "python3"})


def test_an_environment_is_made_once_and_kept(tmp_path, monkeypatch):
    """By a uv that only notes what it is asked: what it would install is not for a test to fetch."""
    tool = tmp_path / "bin" / "uv"
    tool.parent.mkdir()
    tool.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n'
        'case "$*" in *broken*) echo "error: no such version"; exit 1;; esac\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("LIKEWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(make, "_version", lambda python: "3.11.7")
    (tmp_path / "cache").mkdir()
    for _ in range(2):
        with pytest.raises(make.EnvironmentFailedError, match="no such version"):
            make.python_with(["broken==1"], sys.executable)
    told: list[str] = []
    monkeypatch.setattr(make.shutil, "rmtree", lambda folder, **_: Path(folder).mkdir(parents=True, exist_ok=True))
    first = make.python_with(["package==1", "numpy<2"], sys.executable, tell=told.append)
    assert make.python_with(["package==1", "numpy<2"], sys.executable, tell=told.append) == first
    assert len(told) == 1
    asked = (tmp_path / "asked").read_text().splitlines()
    assert sum("pip install" in line and "package==1" in line for line in asked) == 1
    assert "numpy<2 package==1 pandas" in asked[-1]


def test_a_framework_that_says_no_place_is_a_usage_error():
    model = describe_model("a.onnx", {"framework": "environments"})
    with pytest.raises(UsageError, match="nothing says which Python"), open_model(model):
        pass
