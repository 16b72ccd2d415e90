"""Samples that have no rows: what is said of one has to hold for the others."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import data_only

RNG = np.random.default_rng(5)
WEIGHTS = {name: RNG.normal(size=(6, 3)).astype(np.float32) for name in ("first", "second")}


def decided(then: str, otherwise: str) -> onnx.ModelProto:
    """One of two products, by the mean of the input."""

    def branch(weight: str) -> onnx.GraphProto:
        given = helper.make_tensor_value_info(f"{weight}_out", TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node("MatMul", ["x", weight], [f"{weight}_out"])], weight, [], [given])

    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], name="mean", keepdims=0),
        helper.make_node("Greater", ["mean", "zero"], ["above"], name="above"),
        helper.make_node(
            "If", ["above"], ["y"], name="decide", then_branch=branch(then), else_branch=branch(otherwise)
        ),
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in {**WEIGHTS, "zero": np.float32(0)}.items()]
    graph = helper.make_graph(
        nodes,
        "decided",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def stored(folder, samples):
    """A file of samples, each with arrays of its own."""
    named = {f"{name}/{at:04}": array for name, arrays in samples.items() for at, array in enumerate(arrays)}
    np.savez(folder / "samples.npz", **named)
    return folder / "samples.npz"


def test_a_change_that_heals_the_first_sample_only_is_no_cause(tmp_path):
    """Both ways of a branch are exchanged: to turn the condition of one sample heals that one and no other."""
    samples = stored(tmp_path, {"x": RNG.normal(size=(16, 4, 6)).astype(np.float32)})
    pair = decided("first", "second"), decided("second", "first")
    report = data_only.explain(*pair, samples, batch_axis="none", explain_budget=60)
    assert report.outcome == "FAIL"
    assert report.diagnoses[0].nodes[0] == "decide", report.diagnoses


class Graph(nn.Module):
    """Neighbours added up twice; the faulty one adds to where edges begin, the second time."""

    def __init__(self, turned: bool = False) -> None:
        super().__init__()
        self.turned = turned
        self.one, self.two = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x, edges):
        x = torch.relu(self.one(self.gathered(x, edges)))
        return self.two(self.gathered(x, edges.flip(0) if self.turned else edges))

    def gathered(self, x, edges):
        index = edges[1].unsqueeze(1).expand(-1, x.shape[1])
        return x + torch.zeros_like(x).scatter_add(0, index, x[edges[0]])


@pytest.fixture(scope="module")
def turned(tmp_path_factory):
    torch.manual_seed(0)
    sound, faulty = Graph().eval(), Graph(turned=True).eval()
    faulty.load_state_dict(sound.state_dict())
    sizes = [(7, 12), (9, 15), (6, 10), (8, 20)]
    samples = {
        "x": [RNG.normal(size=(count, 5)).astype(np.float32) for count, _ in sizes],
        "edges": [RNG.integers(0, count, (2, edges)) for count, edges in sizes],
    }
    folder = tmp_path_factory.mktemp("graph")
    first = tuple(torch.from_numpy(arrays[0]) for arrays in samples.values())
    named = {"input_names": list(samples), "output_names": ["y"]}
    free = {"x": {0: "nodes"}, "edges": {1: "edges"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        torch.onnx.export(faulty, first, folder / "faulty.onnx", dynamo=False, dynamic_axes=free, **named)
    return sound, folder / "faulty.onnx", stored(folder, samples)


def test_a_module_whose_inputs_have_no_rows_is_looked_into(turned):
    sound, path, samples = turned
    report = data_only.explain(sound, path, samples, batch_axis="none", explain_budget=60)
    assert report.outcome == "FAIL"
    assert report.diagnoses, report.explanation
    best = report.diagnoses[0]
    assert best.explained_share == 1.0
    operators = {node.name: node.op_type for node in onnx.load(path).graph.node}
    named = [operators[name] for name in best.nodes]
    assert named, best.culprit
    assert not set(named) & {"Gemm", "MatMul"}, "the layers are as they were"


class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x):
        if bool(x.mean() > 0):
            return torch.tanh(self.one(x))
        return torch.relu(self.two(x))


def test_a_way_that_was_taken_when_the_graph_was_recorded(tmp_path):
    module, above = Decides().eval(), torch.ones(3, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the recorder's own
        torch.onnx.export(module, (above,), tmp_path / "one.onnx", dynamo=False, input_names=["x"])
        torch.jit.script(module).save(tmp_path / "module.pt")
    samples = stored(tmp_path, {"x": RNG.normal(size=(12, 3, 6)).astype(np.float32)})
    options = {"batch_axis": "none", "explain_budget": 60}
    report = data_only.explain(tmp_path / "module.pt", tmp_path / "one.onnx", samples, **options)
    assert report.diagnoses[0].cause == "traced-branch", report.diagnoses


def first_of_a_sequence(plus):
    nodes = [helper.make_node("SequenceAt", ["s", "zero"], ["a"]), helper.make_node("Add", ["a", "k"], ["y"])]
    constants = {"zero": np.array(0), "k": np.float32(plus)}
    graph = helper.make_graph(
        nodes,
        "first",
        [helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_sequences_that_are_answered_otherwise_fail(tmp_path):
    (tmp_path / "test_data_set_0").mkdir()
    given = numpy_helper.from_list([np.arange(3, dtype=np.float32)], "s")
    (tmp_path / "test_data_set_0" / "input_0.pb").write_bytes(given.SerializeToString())
    onnx.save(first_of_a_sequence(0), tmp_path / "model.onnx")
    report = data_only.explain(first_of_a_sequence(0), first_of_a_sequence(1), tmp_path, explain_budget=5)
    assert report.outcome == "FAIL"
    assert not any("broke" in text for text in report.explanation.not_tested), report.explanation
