"""Inputs and outputs without an axis of rows: every call is one sample."""

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import likewise
from likewise import Outcome

ROWS = np.random.default_rng(5)


def check(reference, candidate, data, **options):
    return likewise.check(reference, candidate, data, **{"explain": False, "edge": "off", **options})


def codes(report):
    return {finding.code for finding in report.verdict.findings}


class Both(NamedTuple):
    first: object
    second: object


@dataclass
class Record:
    first: object
    second: object


class Loss(torch.nn.Module):
    def forward(self, x, y):
        return ((x - y) ** 2).mean()


class Messages(torch.nn.Module):
    """One step of message passing: nodes and edges are of different counts."""

    def __init__(self, scale=1.0):
        super().__init__()
        torch.manual_seed(3)
        self.linear, self.scale = torch.nn.Linear(4, 2), scale

    def forward(self, nodes, edges):
        hidden = self.linear(nodes) * self.scale
        return torch.zeros_like(hidden).index_add(0, edges[1], hidden[edges[0]])


class Voice(torch.nn.Module):
    """Audio with rows first, a state with rows along axis 1, and a sample rate with none."""

    def __init__(self, rate=16_000.0):
        super().__init__()
        torch.manual_seed(4)
        self.cells, self.rate = torch.nn.GRU(3, 4, batch_first=True), rate

    def forward(self, x, state, rate):
        return self.cells(x * (rate / self.rate), state)


def export(module, inputs, dynamic, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), inputs, path, dynamo=True, dynamic_shapes=dynamic, verbose=False)
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three exported networks."""
    folder = tmp_path_factory.mktemp("samples")
    axis = torch.export.Dim
    pair = (torch.randn(5, 3), torch.randn(5, 3))
    graph = (torch.randn(7, 4), torch.randint(0, 7, (2, 12)))
    voice = (torch.randn(6, 9, 3), torch.randn(1, 6, 4), torch.tensor(8000))
    rows = axis("b")
    return {
        "loss": export(Loss(), pair, {"x": {0: rows}, "y": {0: rows}}, folder / "loss.onnx"),
        "graph": export(Messages(), graph, {"nodes": {0: axis("n")}, "edges": {1: axis("e")}}, folder / "graph.onnx"),
        "voice": export(
            Voice(), voice, {"x": {0: rows}, "state": {1: rows}, "rate": None}, folder / "voice.onnx"
        ),
    }  # fmt: skip


@pytest.fixture
def edges():
    """A graph of other counts than the one that was traced."""
    return {
        "nodes": ROWS.normal(size=(9, 4)).astype(np.float32),
        "edges": ROWS.integers(0, 9, (2, 15)),
    }


@pytest.mark.parametrize("said", [None, "none"])
def test_a_loss_is_compared(files, said):
    data = {name: ROWS.normal(size=(8, 3)).astype(np.float32) for name in ("x", "y")}
    report = check(Loss(), files["loss"], data, batch_axis=said)
    assert report.passed
    assert report.verdict.headline.startswith("1 sample agrees")
    wrong = check(lambda data: np.mean(np.abs(data["x"] - data["y"])), files["loss"], data, batch_axis=said)
    assert wrong.outcome is Outcome.FAIL


def test_arrays_that_share_no_rows_are_one_sample_and_it_is_said(files, edges, tmp_path):
    np.savez(tmp_path / "graph.npz", **edges)
    report = check(Messages(), files["graph"], str(tmp_path / "graph.npz"))
    assert report.passed
    assert report.comparison.unit == "samples"
    assert any("every call is one sample, as nodes (9, 4), edges (2, 15)" in note for note in report.comparison.notes)
    assert check(Messages(scale=1.01), files["graph"], str(tmp_path / "graph.npz")).outcome is Outcome.FAIL


def test_a_folder_of_files_is_many_samples_of_any_size(files, tmp_path):
    for count in (3, 6, 4):
        nodes, links = ROWS.normal(size=(count, 4)).astype(np.float32), ROWS.integers(0, count, (2, count + 2))
        np.savez(tmp_path / f"{count}.npz", nodes=nodes, edges=links)
    for data in (str(tmp_path), str(tmp_path / "*.npz")):
        report = check(Messages(), files["graph"], data)
        assert report.passed
        assert report.comparison.rows == 3
        assert "3 samples agree" in report.headline
        assert "samples like these" in report.verdict.confidence.statement
    # A fault that only shows in one of them is found there.
    broken = check(lambda data: answer(**data) + (len(data["nodes"]) == 6), files["graph"], str(tmp_path))
    assert broken.outcome is Outcome.FAIL
    assert [row["row"] for row in broken.comparison.outputs[0].worst_rows][:1] == ["6.npz"]


def answer(nodes, edges):
    """Message passing by a plain loop."""
    module = Messages()
    weight, bias = module.linear.weight.detach().numpy(), module.linear.bias.detach().numpy()
    hidden, found = nodes @ weight.T + bias, np.zeros((len(nodes), 2), np.float32)
    for source, target in edges.T:
        found[target] += hidden[source]
    return found


def test_a_folder_of_single_arrays_is_many_samples_too(tmp_path):
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.full((number + 2, 2), float(number)))
    report = likewise.check(lambda X: X.sum(), lambda X: X.sum() + (X[0, 0] == 2), str(tmp_path), explain=False)
    assert report.verdict.headline.startswith("1 of 3 samples differs")


def test_members_of_one_file_and_lists_of_dicts_are_samples(files, tmp_path):
    calls = [
        {"nodes": ROWS.normal(size=(n, 4)).astype(np.float32), "edges": ROWS.integers(0, n, (2, 5))} for n in (2, 7)
    ]
    members = {f"{name}/{number:04}": array for number, call in enumerate(calls) for name, array in call.items()}
    np.savez(tmp_path / "all.npz", **members)
    for data in (calls, str(tmp_path / "all.npz")):
        report = check(Messages(), files["graph"], data)
        assert report.passed
        assert report.comparison.rows == 2


def test_every_tensor_may_have_its_rows_elsewhere_or_nowhere(files):
    data = {
        "x": ROWS.normal(size=(6, 9, 3)).astype(np.float32),
        "state": ROWS.normal(size=(1, 6, 4)).astype(np.float32),
        "rate": np.array(8000),
    }
    report = check(Voice(), files["voice"], data, batch_axis="x:0,state:1,rate:none")
    assert report.passed
    assert (report.comparison.rows, report.comparison.unit) == (6, "rows")
    assert check(Voice(15_000.0), files["voice"], data, batch_axis="x:0,state:1,rate:none").outcome is Outcome.FAIL
    # Without a word about them they are one sample.
    whole = check(Voice(), files["voice"], data)
    assert whole.passed
    assert whole.comparison.unit == "samples"


def test_counts_that_depend_on_values_are_compared():
    graph = helper.make_graph(
        [helper.make_node("Greater", ["x", "zero"], ["m"]), helper.make_node("NonZero", ["m"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", 3])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [2, "k"])],
        [numpy_helper.from_array(np.float32(0), "zero")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = {"x": ROWS.normal(size=(6, 3)).astype(np.float32)}
    assert check(lambda x: np.stack(np.nonzero(x > 0)), model, data, batch_axis="none").passed
    fewer = check(lambda x: np.stack(np.nonzero(x > 0.5)), model, data, batch_axis="none")
    assert fewer.outcome is Outcome.FAIL
    assert "shape (2, " in fewer.verdict.headline


def test_a_sequence_that_is_cut_elsewhere_differs():
    def model(*lengths):
        graph = helper.make_graph(
            [helper.make_node("SplitToSequence", ["x", "cuts"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
            [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.array(lengths), "cuts")],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    data = {"x": ROWS.normal(size=2001).astype(np.float32)}
    assert check(model(1000, 1001), model(1000, 1001), data, batch_axis="none").passed
    # By a tolerance for numbers 1,000 and 1,001 would be one length, and the values end to end are the same.
    assert check(model(1000, 1001), model(1001, 1000), data, batch_axis="none").outcome is Outcome.FAIL


@pytest.mark.parametrize("data", ["generated", {}])
def test_a_model_without_inputs_is_one_sample(data):
    def model(values):
        node = helper.make_node("Constant", [], ["y"], value=numpy_helper.from_array(np.array(values, np.float32)))
        graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    assert check(model([1, 2]), model([1, 2]), data).passed
    assert check(model([1, 2]), model([1, 3]), data).outcome is Outcome.FAIL


def test_a_value_said_to_have_no_rows_must_be_one_value(files):
    data = {"x": ROWS.normal(size=(6, 3)).astype(np.float32), "y": ROWS.normal(size=(6, 3)).astype(np.float32)}
    report = check(files["loss"], files["loss"], data, batch_axis="x:0,y:none")
    assert report.outcome is Outcome.INCONCLUSIVE


def test_a_table_has_rows_whatever_is_said():
    report = check(len, len, pd.DataFrame({"x": [1.0, 2.0]}), batch_axis="none")
    assert report.outcome is Outcome.INCONCLUSIVE
    assert "is a table, which has rows" in report.verdict.headline


def test_complex_numbers_are_compared_with_how_onnx_writes_them():
    graph = helper.make_graph(
        [helper.make_node("DFT", ["x", "", "axis"], ["y"], onesided=1)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 8, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 5, 2])],
        [numpy_helper.from_array(np.array(1), "axis")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    data = {"x": ROWS.normal(size=(12, 8, 1)).astype(np.float32)}
    assert check(lambda x: np.fft.rfft(x[..., 0]), model, data).passed
    assert check(lambda x: np.conj(np.fft.rfft(x[..., 0])), model, data).outcome is Outcome.FAIL


def test_outputs_that_nobody_names_are_paired_in_order_and_it_is_said(tmp_path):
    class Heads(torch.nn.Module):
        def __init__(self, *, swapped=False):
            super().__init__()
            torch.manual_seed(6)
            self.a, self.b, self.swapped = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3), swapped

        def forward(self, x):
            return (self.b(x), self.a(x)) if self.swapped else (self.a(x), self.b(x))

    rows, free = torch.randn(20, 4), {"x": {0: torch.export.Dim("b")}}
    right = export(Heads(), (rows,), free, tmp_path / "right.onnx")
    swapped = export(Heads(swapped=True), (rows,), free, tmp_path / "swapped.onnx")
    reference, data = Heads().eval(), {"x": rows.numpy()}
    report = check(reference, right, data)
    assert report.passed
    assert "paired-by-position" in codes(report)
    wrong = check(reference, swapped, data, explain=True, causes=("output-mapping",))
    assert wrong.outcome is Outcome.FAIL
    assert wrong.diagnoses[0].cause == "output-mapping"
    assert "swapped" in wrong.diagnoses[0].culprit


def test_names_of_the_exporter_are_no_names(tmp_path):
    class Heads(torch.nn.Module):
        def __init__(self, *, swapped=False):
            super().__init__()
            torch.manual_seed(6)
            self.a, self.b, self.swapped = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3), swapped

        def forward(self, x):
            one, two = (self.b(x), self.a(x)) if self.swapped else (self.a(x), self.b(x))
            return {"class": one, "box": two}

    rows, free = torch.randn(20, 4), {"x": {0: torch.export.Dim("b")}}
    right = onnx.load(export(Heads(), (rows,), free, tmp_path / "right.onnx"))
    assert [output.name for output in right.graph.output] == ["linear", "linear_1"]
    reference, data = Heads().eval(), {"x": rows.numpy()}
    report = check(reference, right, data)
    assert report.passed
    assert "paired-by-position" in codes(report)
    swapped = onnx.load(export(Heads(swapped=True), (rows,), free, tmp_path / "swapped.onnx"))
    assert check(reference, swapped, data).outcome is Outcome.FAIL
    # A person who calls them something else may mean something else.
    for output, name in zip(right.graph.output, ("mask", "depth"), strict=True):
        for node in right.graph.node:
            node.output[:] = [name if value == output.name else value for value in node.output]
        output.name = name
    assert check(reference, right, data).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (lambda x: Both(x[:, 0], x[:, 1]), {"first", "second"}),
        (lambda x: Record(x[:, 0], x[:, 1]), {"first", "second"}),
        (lambda x: {"first": x[:, 0], "second": x[:, 1]}, {"first", "second"}),
        (lambda x: (x[:, 0], x[:, 1]), {"output_0", "output_1"}),
        (lambda x: [x[:, 0], x[:, 1]], {"output_0", "output_1"}),
        (lambda x: [float(value) for value in x[:, 0]], {"output"}),
    ],
)
def test_what_a_function_returns_gives_the_names(answer, names):
    report = check(answer, answer, {"x": ROWS.normal(size=(40, 3))})
    assert {output.name for output in report.comparison.outputs} == names
    assert report.comparison.rows == 40


def test_narrow_types_are_widened_on_both_sides():
    for kind in (TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.INT4):
        graph = helper.make_graph(
            [helper.make_node("Cast", ["x"], ["n"], to=kind), helper.make_node("Identity", ["n"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 3])],
            [helper.make_tensor_value_info("y", kind, ["b", 3])],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        values = np.array([[1.0, -2.0, 3.0], [4.0, -5.0, 6.0], [0.0, 7.0, -8.0]], np.float32)
        # Whole numbers up to 8 are the same in all of these types.
        assert check(lambda x: x, model, {"x": values}).passed, kind
        assert check(lambda x: x + (x == 7), model, {"x": values}).outcome is Outcome.FAIL, kind
