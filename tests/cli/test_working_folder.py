"""What lies in the folder where a command runs is never imported: neither by it nor by the processes it starts."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from likewise.models import remote
from likewise.tasks.isolation import starting, supervisor

TRAP = "import pathlib\npathlib.Path({mark!r}).touch()\nraise ImportError('a trap')\n"
TRAPPED = ("numpy", "click", "onnxruntime", "joblib", "trap")
SCRIPT = "import sys\nfrom likewise.__main__ import main\nsys.exit(main())\n"
"""What an installer writes as `likewise`."""

QUICK = ("--quiet", "--batch-sizes", "none", "--edge", "off")


@pytest.fixture
def place(tmp_path):
    """A folder with two models, rows, and modules that leave a mark when they are imported."""
    shape = [None, 2]
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "a.onnx")
    onnx.save(model, tmp_path / "b.onnx")
    np.savez(tmp_path / "rows.npz", x=np.ones((4, 2), dtype=np.float32))
    trap = TRAP.format(mark=str(tmp_path / "trapped"))
    for name in TRAPPED:
        (tmp_path / f"{name}.py").write_text(trap)
    about = tmp_path / "trap-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: trap\nVersion: 1.0\n")
    groups = ("models", "readers", "metrics", "probes", "formats")
    (about / "entry_points.txt").write_text("".join(f"[likewise.{group}]\ntrap = trap:EXTENSION\n" for group in groups))
    return tmp_path


def with_a_likewise(place):
    """The folder, with one that has our name too: only a `python` that is told to look there can find it."""
    (place / "likewise").mkdir()
    (place / "likewise" / "__init__.py").write_text(TRAP.format(mark=str(place / "trapped")))
    return place


def check(place, *words, path):
    finished = subprocess.run(
        [sys.executable, *words, "check", "a.onnx", "b.onnx", "--data", "rows.npz", "--allow-same", *QUICK],
        cwd=place, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert not (place / "trapped").exists()


@pytest.mark.parametrize("path", ["", f"{os.pathsep}.{os.pathsep}relative"])
def test_a_command_imports_nothing_that_lies_where_it_runs(place, tmp_path_factory, path):
    script = tmp_path_factory.mktemp("bin") / "likewise"
    script.write_text(SCRIPT)
    # A name of our own that is nearer on an empty entry of PYTHONPATH is found before a line of ours runs.
    check(with_a_likewise(place) if not path else place, str(script), path=path)


def test_neither_does_the_module_as_a_command(place):
    check(place, "-m", "likewise", path="")


def test_a_worker_that_is_no_copy_does_not_look_there(place, monkeypatch):
    monkeypatch.chdir(with_a_likewise(place))
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    assert not starting.light()  # pytest has imported numpy
    found = supervisor.supervise({"do": "inspect", "arguments": {"model": "a.onnx"}})
    assert found["framework"] == "onnx"
    assert not (place / "trapped").exists()


def test_a_process_of_a_model_does_not_look_there(place, monkeypatch):
    monkeypatch.chdir(with_a_likewise(place))
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    process = remote.start("import likewise, numpy; print(numpy.__name__)")
    told, _ = process.communicate(timeout=60)
    assert told.split() == [b"numpy"]
    assert not (place / "trapped").exists()


def test_a_folder_that_a_user_names_is_where_modules_are_found(place, tmp_path_factory):
    """An absolute PYTHONPATH is the user's own word, and so is a module that is named as a model."""
    library = tmp_path_factory.mktemp("library")
    (library / "mine.py").write_text("import beside\n\ndef f(arrays):\n    return -arrays\n")
    (library / "beside.py").write_text("")
    (place / "own.py").write_text("def f(arrays):\n    return -arrays\n")
    for name in TRAPPED:
        (place / f"{name}.py").unlink()
    for model, path in (("mine:f", str(library)), ("own:f", "")):
        finished = subprocess.run(
            [sys.executable, "-m", "likewise", "check", model, "b.onnx", "--data", "rows.npz", *QUICK],
            cwd=place, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert finished.returncode == 0, finished.stdout + finished.stderr
    assert not (place / "trapped").exists()
