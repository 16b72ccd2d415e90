"""Files that do not load, and graphs that do not run: what is said about them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import small_graphs as sg
from onnx import helper, numpy_helper
from torch import nn

import data_only

WEIGHTS = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)


def product():
    return sg.graph(
        [sg.node("MatMul", "x w", "output")], {"w": WEIGHTS}, inputs={"x": (8,)}, output=("output", ["n", 8])
    )


def explained(candidate):
    return sg.explained(nn.Linear(8, 8).eval(), candidate, {"input": sg.rows()}, feed={"x": "input"})


@pytest.mark.parametrize(
    "content", [b"", b"version https://git-lfs.github.com/spec/v1", product().SerializeToString()[:90]]
)
def test_files_that_are_cut_off_or_something_else(content, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    best = explained(str(path))
    assert (best.cause, best.culprit) == ("unloadable-model", "model.onnx")
    assert "cut off or damaged" in best.evidence


@pytest.mark.parametrize("content", [None, b"1234"])
def test_weights_that_are_not_beside_the_file(content, tmp_path):
    path, weights = tmp_path / "model.onnx", tmp_path / "weights.bin"
    onnx.save(product(), path, save_as_external_data=True, location=weights.name, size_threshold=0)
    weights.unlink() if content is None else weights.write_bytes(content)
    best = explained(str(path))
    assert best.cause == "unloadable-model"
    assert best.culprit.startswith("model.onnx")
    assert "weights" in best.evidence


def _opset(proto):
    proto.opset_import[0].version = 99


def _format(proto):
    proto.ir_version = 99


def _domain(proto):
    proto.graph.node[0].domain, proto.graph.node[0].op_type = "my.ops", "Special"
    proto.opset_import.append(helper.make_opsetid("my.ops", 1))


def _types(proto):
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(WEIGHTS.astype(np.float64), "w"))


def _dangling(proto):
    proto.graph.node[0].input[1] = "nowhere"


@pytest.mark.parametrize(
    ("edit", "culprit"),
    [
        (_opset, "opset 99"),
        (_format, "IR version 99"),
        (_domain, "my.ops:Special"),
        (_types, "node 'node_output'"),
        (_dangling, "'nowhere'"),
    ],
)
def test_graphs_that_do_not_load(edit, culprit):
    candidate = product()
    edit(candidate)
    best = explained(candidate)
    assert best.cause == "unloadable-model"
    assert culprit in best.culprit


def test_a_graph_that_only_the_optimiser_breaks():
    """Loads as it stands; folding a cast to its own type leaves a node without an input."""
    nodes = [
        sg.node("Cast", "x", "middle", to=sg.FLOAT),
        sg.node("Div", "one one", "factor"),
        sg.node("Mul", "factor middle", "output"),
    ]
    candidate = sg.graph(nodes, {"one": np.float32(1)}, inputs={"x": (8,)}, output=("output", ["n", 8]))
    if data_only.check(nn.Identity(), candidate, {"input": sg.rows()}, feed={"x": "input"}).passed:
        pytest.skip("this ONNX Runtime has the optimiser right")
    best = explained(candidate)
    assert best.cause == "unloadable-model"
    assert "optimisation" in best.culprit


def test_a_graph_that_fails_when_it_runs():
    nodes = [sg.node("Gather", "table index", "output", axis=0)]
    candidate = sg.graph(
        nodes, {"table": WEIGHTS}, inputs={"index": ()}, output=("output", ["n", 8]), kinds=(sg.INT64, sg.FLOAT)
    )
    best = sg.explained(nn.Embedding(20, 8), candidate, {"input": np.arange(8, 20)}, feed={"index": "input"})
    assert best.cause == "unloadable-model"
    assert "node_output" in best.culprit


def test_a_reference_that_does_not_load(tmp_path):
    path = tmp_path / "model.joblib"
    path.write_bytes(b"nonsense")
    best = sg.explained(str(path), product(), {"x": sg.rows()})
    assert best.cause == "unloadable-model"
    assert "reference" in best.culprit


def test_a_framework_that_is_not_installed_is_no_diagnosis(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "openvino", None)
    report = data_only.explain(product(), "model.xml", {"x": sg.rows()})
    assert not report.passed
    assert [entry.cause for entry in report.diagnoses] == []


def test_a_module_whose_code_does_not_import_is_not_told_to_be_exported(tmp_path):
    (tmp_path / "nets.py").write_text("import a_module_of_nobody\n\nclass Net: ...\n")
    (tmp_path / "weights.pt").write_bytes(b"")
    options = {"reference_options": {"factory": f"{tmp_path / 'nets.py'}:Net"}}
    report = data_only.explain(str(tmp_path / "weights.pt"), product(), {"x": sg.rows()}, **options)
    (best,) = report.diagnoses
    assert best.cause == "unloadable-model"
    assert "likewise export" not in best.remedy
