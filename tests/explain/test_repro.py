"""`--repro FOLDER`: a script that shows the difference with ONNX Runtime and numpy alone, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import onnx
import pytest
from faults import FAULTS
from faults.quiet import quietly
from onnx import TensorProto, helper
from small_graphs import graph, node

import data_only
from likewise.report.formats.markdown import text
from likewise.tasks import repro
from likewise.tasks.check import investigate, settings_of
from planting import command, here


def written(reference, candidate, data, folder, **options):
    """The folder, as a check of these would write it."""
    with quietly():
        found = investigate(
            settings_of(reference, candidate, data, **{**data_only.OPTIONS, **options, "explain": True})
        )
    for name, content in repro.files(*found).items():
        (folder / name).write_bytes(content)
    return folder


def shown(folder):
    """What the script prints as the largest difference, run where likewise cannot be imported."""
    block = "import sys; sys.modules['likewise'] = None; import runpy; runpy.run_path(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", block, str(folder / "repro.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = re.search(r"(?:largest difference|values that differ) (\S+)", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


OF_CORPUS = {
    "weights/weights_transposed": ["Gemm"],
    "runtime/padding_merged_into_pooling": ["Pad", "MaxPool"],
    "trees/leaf_changed": ["TreeEnsembleRegressor"],
}
"""Faults inside a graph, and the operators of the piece that shows each."""


@pytest.mark.parametrize("name", OF_CORPUS)
def test_a_fault_inside_the_graph_is_shown_by_the_nodes_that_it_takes(name, tmp_path):
    fault = FAULTS[name]()
    folder = written(fault.reference, fault.candidate, fault.data, tmp_path, **fault.options)
    operators = [one.op_type for one in onnx.load(folder / "model.onnx").graph.node]
    assert [operator for operator in operators if operator != "Constant"] == OF_CORPUS[name]
    assert shown(folder) > 1e-3
    told = (folder / "issue.md").read_text()
    assert "| expected | got |" in told
    assert OF_CORPUS[name][0] in told


def test_another_shape_is_shown_as_such(tmp_path):
    """Padding on two sides instead of four gives a picture of another shape inside the graph."""

    def padded(pads):
        nodes = [node("Conv", "x w", "c", pads=pads), node("GlobalAveragePool", "c", "y")]
        return graph(nodes, {"w": weights}, inputs={"x": (1, 6, 6)}, output=("y", ["n", 2, 1, 1]))

    rng = np.random.default_rng(0)
    weights, rows = rng.normal(size=(2, 1, 3, 3)).astype(np.float32), rng.normal(size=(40, 1, 6, 6)).astype(np.float32)
    folder = written(padded([1, 1, 1, 1]), padded([0, 2, 0, 2]), {"x": rows}, tmp_path)
    assert [one.op_type for one in onnx.load(folder / "model.onnx").graph.node] == ["Conv"]
    done = subprocess.run([sys.executable, str(folder / "repro.py")], capture_output=True, text=True)
    assert "shape expected (3, 2, 6, 6) got (3, 2, 4, 8)" in done.stdout, done.stdout + done.stderr


def scaled(name, factor):
    nodes = [
        helper.make_node("Mul", ["x", "by"], ["half"], name=name),
        helper.make_node("Add", ["half", "half"], ["y"]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])
    stored = [onnx.numpy_helper.from_array(np.array([factor, factor], np.float32), "by")]
    made = helper.make_graph(nodes, "g", [given], [made], stored)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_where_nothing_is_located_the_candidate_itself_is_shown(tmp_path):
    """Answers that have nothing to do with the candidate's: the worst rows, and what the reference says to them."""
    rows = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)

    def noise(batch):
        return np.sin(1e4 * np.asarray(batch)).astype(np.float32)

    folder = written(noise, scaled("mul", 0.5), rows, tmp_path)
    held = np.load(folder / "inputs.npz")
    assert len(held["in0"]) == repro.ROWS
    np.testing.assert_array_equal(held["out0"], noise(held["in0"]))
    worst = np.abs(noise(rows) - rows).max()
    assert shown(folder) == pytest.approx(worst)


def test_the_command_writes_the_folder_again_and_names_are_text(tmp_path):
    name = "<b>![x](http://evil)</b>"
    onnx.save(scaled("mul", 0.5), tmp_path / "good.onnx")
    onnx.save(scaled(name, 0.75), tmp_path / "bad.onnx")
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(32, 2)).astype(np.float32))
    told = ["check", "good.onnx", "bad.onnx", "--data", "rows.npy", "--edge", "off", "-q", "--repro"]
    for ran in (command, here):
        done = ran(*told, "piece", folder=tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "piece shows the difference" in done.stderr
    assert {path.name for path in (tmp_path / "piece").iterdir()} == set(repro.FILES)
    # x times 0.75 instead of 0.5.
    held = np.load(tmp_path / "piece" / "inputs.npz")
    assert shown(tmp_path / "piece") == pytest.approx(0.25 * np.abs(held["in0"]).max(), rel=1e-5)
    page = (tmp_path / "piece" / "issue.md").read_text()
    assert name not in page
    assert text(name) in page
    (tmp_path / "piece" / "repro.py").write_text("mine")
    assert here(*told, "piece", folder=tmp_path).returncode == 2
    assert here("check", "good.onnx", "good.onnx", "--allow-same", *told[3:], "none", folder=tmp_path).returncode == 0
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_folder_that_cannot_be_written_costs_no_verdict(tmp_path):
    onnx.save(scaled("mul", 0.5), tmp_path / "good.onnx")
    onnx.save(scaled("mul", 0.75), tmp_path / "bad.onnx")
    np.save(tmp_path / "rows.npy", np.ones((4, 2), np.float32))
    (tmp_path / "piece").mkdir()
    os.mkfifo(tmp_path / "piece" / "inputs.npz")
    told = ["check", "good.onnx", "bad.onnx", "--data", "rows.npy", "--edge", "off", "-q", "--repro", "piece"]
    here(*told, folder=tmp_path).expect(1, "piece is not written: ", "FAIL")
    assert (tmp_path / "parity_report.json").exists()
