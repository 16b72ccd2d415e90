"""The graph around a culprit: the error that a node adds is told apart from the error that it is given."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from piped import ask_only, exported, fitted, people
from rewriting import copied, with_attribute
from skl2onnx import to_onnx
from sklearn.ensemble import RandomForestClassifier
from small_graphs import exported_network, graph, network, node, rows
from torch import nn

import data_only
from likewise.contracts.report import Place
from likewise.explain import counterparts, facts
from likewise.explain.case import Case
from likewise.explain.counterparts import error
from likewise.explain.locate import around, nodes_at
from likewise.models.onnx import edits
from likewise.models.onnx.inside import Opened

NOISE = 1e-6
"""What single precision adds at most in graphs as small as these."""


def view(reference, candidate, data, **options):
    """The graph of an explanation, and its nodes of the candidate by name."""
    report = data_only.explain(reference, candidate, data, explain_budget=60, batch_sizes=(), **options)
    assert not report.passed
    assert report.explanation is not None
    found = report.explanation.graph
    assert found is not None, report.explanation.not_tested
    assert not any("graph around" in line for line in report.explanation.not_tested), report.explanation.not_tested
    return found, {entry.name: entry for entry in found.nodes if entry.side == "candidate"}


def culprits(found):
    return [entry.name for entry in found.nodes if entry.culprit]


def with_weight(proto, name, change):
    """A copy of a graph with one constant changed."""
    changed = copied(proto)
    for tensor in changed.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), name))
    return changed


def one_entry_more(values):
    values[3, 4] += 1
    return values


def largest_part(reference, candidate):
    """The largest difference as a part of the largest value, entry by entry."""
    pairs = list(zip(reference.ravel().tolist(), candidate.ravel().tolist(), strict=True))
    return max(abs(a - b) for a, b in pairs) / max(max(abs(a), abs(b)) for a, b in pairs)


@pytest.fixture
def no_hypotheses(monkeypatch):
    """What is measured has to do without a diagnosis."""
    ask_only(monkeypatch, "none")


@pytest.fixture(scope="module")
def expected():
    """What the two graphs with one changed weight have inside, computed by hand on the rows that are looked at."""
    weights = {name: tensor.numpy().astype(np.float64) for name, tensor in network().state_dict().items()}
    x = rows().astype(np.float64)
    relu = np.maximum(x @ weights["fc1.weight"].T + weights["fc1.bias"], 0)
    right = relu @ weights["fc2.weight"].T + weights["fc2.bias"]
    wrong = relu @ one_entry_more(weights["fc2.weight"].copy()).T + weights["fc2.bias"]
    heads = [np.maximum(side, 0) @ weights["head.weight"].T for side in (right, wrong)]
    failing = (np.abs(heads[0] - heads[1]) > 1e-4 + 1e-3 * np.abs(heads[0] + weights["head.bias"])).any(axis=1)
    chosen = np.flatnonzero(failing)[:32]
    return {
        "introduced": largest_part(right[chosen], wrong[chosen]),
        "inherited": largest_part(np.maximum(right, 0)[chosen], np.maximum(wrong, 0)[chosen]),
    }


@pytest.mark.parametrize("asked", ["by the diagnosis", "by its error"])
def test_a_changed_weight_shows_at_its_node_and_is_inherited_downstream(asked, expected, monkeypatch):
    ask_only(monkeypatch, "weights" if asked == "by the diagnosis" else "none")
    wrong = with_weight(exported_network(), "fc2.weight", one_entry_more)
    found, nodes = view(exported_network(), wrong, {"x": rows()})
    assert culprits(found) == ["node_linear_1"]
    assert nodes["node_linear_1"].introduced == pytest.approx(expected["introduced"], rel=1e-4)
    assert nodes["node_linear_1"].inherited < NOISE
    others = [entry for name, entry in nodes.items() if name != "node_linear_1"]
    assert all(entry.introduced < NOISE for entry in others)
    assert {name: entry.inherited > 0.01 for name, entry in nodes.items()} == {
        "node_linear": False,
        "node_relu": False,
        "node_linear_1": False,
        "node_relu_1": True,
        "node_output": True,
    }
    assert nodes["node_output"].inherited == pytest.approx(expected["inherited"], rel=1e-4)


def test_both_graphs_are_drawn_with_their_tensors(no_hypotheses):
    wrong = with_weight(exported_network(), "fc2.weight", one_entry_more)
    found, nodes = view(exported_network(), wrong, {"x": rows()})
    chain = [("linear", "relu"), ("relu", "linear_1"), ("linear_1", "relu_1"), ("relu_1", "output")]
    assert {(edge.source, edge.target, edge.tensor) for edge in found.edges} == {
        (f"{side}:node_{source}", f"{side}:node_{target}", source)
        for side in ("candidate", "reference")
        for source, target in chain
    }
    assert {entry.operator for entry in found.nodes} == {"Gemm", "Relu"}, "constants are not nodes"
    assert "linear_1: float32[1, 32]" in nodes["node_linear_1"].detail
    assert "transB=1" in nodes["node_linear_1"].detail
    assert found.note.startswith("all 5 nodes of the candidate; errors on 32 failing rows")


def test_tensors_with_other_names_are_matched_by_structure(no_hypotheses, expected):
    wrong = with_weight(exported_network(), "fc2.weight", one_entry_more)
    for index, entry in enumerate(wrong.graph.node[:-1]):
        edits.replace_reads(wrong.graph, {entry.output[0]: f"t{index}"})
        entry.output[0] = f"t{index}"
        entry.name = ""
    found, nodes = view(exported_network(), wrong, {"x": rows()})
    assert culprits(found) == ["t2"]
    assert nodes["t2"].introduced == pytest.approx(expected["introduced"], rel=1e-4)


@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_a_graph_that_takes_one_batch_size_only_is_given_so_many_rows(side, no_hypotheses):
    graphs = {
        "reference": exported_network(),
        "candidate": with_weight(exported_network(), "fc2.weight", one_entry_more),
    }
    for value in (*graphs[side].graph.input, *graphs[side].graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4
    found, nodes = view(graphs["reference"], graphs["candidate"], {"x": rows()})
    assert culprits(found) == ["node_linear_1"]
    assert nodes["node_linear_1"].introduced > 0.1


def test_where_the_optimiser_is_at_fault_its_own_graph_is_shown(monkeypatch):
    # No optimiser is known to be wrong on every machine: this one is taken to be.
    monkeypatch.setattr(counterparts, "_differs_as_written", lambda *_: False)
    ask_only(monkeypatch, "weights")
    wrong = with_weight(exported_network(), "fc2.weight", one_entry_more)
    found, nodes = view(exported_network(), wrong, {"x": rows()})
    assert "as ONNX Runtime rewrites the graph" in found.note
    assert [entry.operator for entry in nodes.values()] == ["FusedGemm", "FusedGemm", "Gemm"]
    (name,) = culprits(found)
    assert "relu_1: float32" in nodes[name].detail, "the named node is gone, and this one does its work"
    assert [entry.introduced > NOISE for entry in nodes.values()] == [False, True, False]


class Calibration(CalibrationDataReader):
    def __init__(self):
        self.left = [{"x": rows(seed=5)}]

    def get_next(self):
        return self.left.pop() if self.left else None


def test_every_layer_of_a_quantised_network_adds_its_own_error(tmp_path, monkeypatch):
    ask_only(monkeypatch, "quantization")
    onnx.save(exported_network(), tmp_path / "float.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_static(
            tmp_path / "float.onnx",
            tmp_path / "int8.onnx",
            Calibration(),
            quant_format=QuantFormat.QDQ,
            reduce_range=True,  # no processor overflows with seven bits
        )
    _, nodes = view(exported_network(), tmp_path / "int8.onnx", {"x": rows()}, preset="float32")
    layers = [entry for entry in nodes.values() if entry.operator == "Gemm"]
    assert len(layers) == 3
    assert all(1e-4 < entry.introduced < 0.05 for entry in layers), layers
    # What the quantiser writes for the input, by hand: the nearest of its steps.
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "int8.onnx").graph.initializer}
    scale, zero = float(stored["x_scale"]), float(stored["x_zero_point"])
    x = rows()[:32].astype(np.float64)
    written = (np.clip(np.round(x / scale) + zero, -128, 127) - zero) * scale
    assert nodes["x_QuantizeLinear"].introduced == pytest.approx(largest_part(x, written), rel=0.2)
    assert nodes["node_output"].inherited > nodes["node_linear"].inherited


def test_an_edited_scaler_is_the_culprit_beside_its_step(monkeypatch):
    ask_only(monkeypatch, "fitted_statistics")
    model, (frame, _) = fitted(), people()
    wrong = with_attribute(exported(model, frame), "Scaler", "offset", lambda held: [held[0] + 20, *held[1:]])
    found, nodes = view(model, wrong, frame)
    (name,) = culprits(found)
    culprit = nodes[name]
    assert culprit.operator == "Scaler"
    assert "beside 'prep__num__scaler' of the reference" in culprit.detail
    assert culprit.introduced > 0.1
    assert culprit.inherited < NOISE
    after = next(entry for entry in nodes.values() if entry.operator == "LinearClassifier")
    assert after.introduced < NOISE
    assert after.inherited > 0.1
    steps = {entry.name: entry.operator for entry in found.nodes if entry.side == "reference"}
    assert steps == {
        "prep__num__imputer": "SimpleImputer",
        "prep__num__scaler": "StandardScaler",
        "prep__cat": "OneHotEncoder",
        "prep": "ColumnTransformer",
        "clf": "LogisticRegression",
    }
    links = {(edge.source, edge.target) for edge in found.edges if edge.source.startswith("reference:")}
    assert links == {
        ("reference:prep__num__imputer", "reference:prep__num__scaler"),
        ("reference:prep__num__scaler", "reference:prep"),
        ("reference:prep__cat", "reference:prep"),
        ("reference:prep", "reference:clf"),
    }


@pytest.mark.parametrize("zipmap", [False, True], ids=["arrays", "dictionaries"])
@pytest.mark.parametrize("asked", ["weights", "none"], ids=["diagnosed", "measured"])
def test_of_a_forest_the_ensemble_is_the_culprit(zipmap, asked, monkeypatch):
    ask_only(monkeypatch, asked)
    data = rows(400, 6)
    forest = RandomForestClassifier(8, max_depth=4, random_state=0).fit(data, data[:, 0] + data[:, 1] > 0)
    right = to_onnx(forest, data[:1], options={"zipmap": zipmap}, target_opset={"": 18, "ai.onnx.ml": 3})
    wrong = with_attribute(right, "TreeEnsembleClassifier", "nodes_values", lambda held: [held[0] + 0.7, *held[1:]])
    found, nodes = view(forest, wrong, data)
    (name,) = culprits(found)
    assert nodes[name].operator == "TreeEnsembleClassifier"
    assert nodes[name].introduced > 0.01
    assert nodes[name].inherited == 0
    assert len(nodes[name].detail) <= 300, "there are hundreds of thresholds"
    assert [entry.operator for entry in found.nodes if entry.side == "reference"] == ["RandomForestClassifier"]


class Leaky(nn.Module):
    """An activation with a setting, between two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(8, 16), nn.LeakyReLU(0.1), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(self.act(self.first(x)))


@pytest.fixture(scope="module")
def leaky(tmp_path_factory):
    torch.manual_seed(0)
    module, path = Leaky().eval(), tmp_path_factory.mktemp("leaky") / "leaky.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.zeros(4, 8),),
            str(path),
            dynamo=False,  # many times quicker
            input_names=["x"],
            output_names=["output"],
            dynamic_axes={"x": {0: "n"}, "output": {0: "n"}},
        )
    return module, onnx.load(path)


def test_an_edited_attribute_shows_at_its_node_beside_its_module(leaky, no_hypotheses):
    module, right = leaky
    found, nodes = view(module, with_attribute(right, "LeakyRelu", "alpha", lambda _: 0.5), rows())
    (name,) = culprits(found)
    with torch.no_grad():
        before = module.first(torch.from_numpy(rows()[:32])).numpy().astype(np.float64)
    sides = [np.where(before < 0, slope * before, before) for slope in (0.1, 0.5)]
    assert nodes[name].operator == "LeakyRelu"
    assert nodes[name].introduced == pytest.approx(largest_part(*sides), rel=1e-4)
    assert nodes[name].inherited < NOISE
    assert "beside 'act' of the reference" in nodes[name].detail
    assert "alpha=0.5" in nodes[name].detail
    assert [(entry.name, entry.operator) for entry in found.nodes if entry.side == "reference"] == [
        ("first", "Linear"),
        ("act", "LeakyReLU"),
        ("last", "Linear"),
    ]


def test_a_function_as_the_reference_leaves_only_the_answers_to_compare(no_hypotheses):
    def answers(x):
        with torch.no_grad():
            return network()(torch.from_numpy(np.ascontiguousarray(x))).numpy()

    wrong = with_weight(exported_network(), "fc2.weight", one_entry_more)
    found, nodes = view(answers, wrong, rows())
    assert culprits(found) == [], "all nodes could only be measured as one"
    assert [name for name, entry in nodes.items() if entry.introduced is not None] == ["node_output"]
    assert "measured together with 4 nodes" in nodes["node_output"].detail


def test_a_graph_that_cannot_be_opened_up_is_told(monkeypatch, no_hypotheses):
    monkeypatch.setattr(Case, "largest_copy", 10)
    wrong = with_weight(exported_network(), "fc2.weight", one_entry_more)
    report = data_only.explain(exported_network(), wrong, {"x": rows()}, batch_sizes=())
    assert report.outcome == "FAIL"
    assert report.explanation.graph is None
    told = [line for line in report.explanation.not_tested if line.startswith("the graph around the culprit")]
    assert told == ["the graph around the culprit: the graph of the candidate is too large to be opened up"]


def test_without_time_the_graph_is_drawn_without_errors(monkeypatch):
    def take_all_the_time(case):
        case.deadline = 0.0
        return ()

    ask_only(monkeypatch, "weights")
    monkeypatch.setattr(facts, "slices", take_all_the_time)
    wrong = with_weight(exported_network(), "fc2.weight", one_entry_more)
    report = data_only.explain(exported_network(), wrong, {"x": rows()}, batch_sizes=())
    found = report.explanation.graph
    assert culprits(found) == ["node_linear_1"], "the diagnosis names it"
    assert all(entry.introduced is None for entry in found.nodes)
    assert (
        "the graph around the culprit, its errors: the time for explaining is used up" in report.explanation.not_tested
    )


def test_no_graph_of_a_candidate_that_has_none(no_hypotheses):
    report = data_only.explain(network(), lambda x: np.zeros((len(x), 3), np.float32), rows(), batch_sizes=())
    assert report.explanation.graph is None
    assert not any("graph around" in line for line in report.explanation.not_tested)


def test_of_a_long_graph_only_what_surrounds_the_culprit_is_shown(no_hypotheses):
    random, layers, place = np.random.default_rng(0), 150, 70
    constants = {f"w{i}": (np.eye(8) + random.normal(size=(8, 8)) * 0.02).astype(np.float32) for i in range(layers)}
    nodes, current = [], "x"
    for index in range(layers):
        nodes += [node("MatMul", f"{current} w{index}", f"m{index}"), node("Tanh", f"m{index}", f"t{index}")]
        current = f"t{index}"
    right = graph(nodes, constants, inputs={"x": (8,)}, output=(current, ["n", 8]))
    wrong = with_weight(right, f"w{place}", lambda held: held * np.float32(1.5))
    found, mine = view(right, wrong, {"x": rows()})
    assert culprits(found) == [f"node_m{place}"]
    near = [f"m{place - 1}", f"t{place - 1}", f"m{place}", f"t{place}", f"m{place + 1}"]
    assert list(mine) == [f"node_{name}" for name in near]
    assert [entry.name for entry in found.nodes if entry.side == "reference"] == list(mine)
    assert mine[f"node_m{place}"].introduced == pytest.approx(1 / 3, rel=1e-4)
    assert found.note.startswith("5 of 300 nodes of the candidate")


def test_a_node_with_many_readers_leaves_room_for_what_it_reads():
    edges = [("source", "wide"), ("before", "source"), *(("wide", f"reader {i}") for i in range(100))]
    nodes = ["before", "source", "wide", *(f"reader {i}" for i in range(100))]
    shown = around(nodes, edges, ["wide"])
    assert len(shown) == 40
    assert shown[:3] == ["before", "source", "wide"]


def test_an_error_is_a_part_of_the_largest_value():
    assert error(np.array([4.0, -2.0]), np.array([4.0, -1.0])) == 0.25
    assert error(np.array([0.0]), np.array([3.0])) == 1.0
    assert error(np.array([np.nan, 1.0]), np.array([np.nan, 1.0])) == 0.0
    assert error(np.array([np.inf, 1.0]), np.array([1.0, 1.0])) == 1.0
    assert error(np.array([1e308]), np.array([-1e308])) == 2.0
    assert error(np.array(["a", "b"]), np.array(["a", "c"])) == 0.5
    assert error(np.zeros(3), np.zeros(4)) is None


@pytest.mark.parametrize(
    ("place", "named"),
    [
        (Place("anything", nodes=("node_linear_1",), tensors=("relu",)), ["node_linear_1"]),
        (Place("anything", tensors=("relu",)), ["node_relu"]),
        (Place("anything", tensors=("fc2.weight",)), ["node_linear_1"]),
        (Place("anything", path="head"), ["/head/Gemm"]),
        (Place("anything", path="step"), ["node_linear"]),
        (Place("anything", outputs=("answer",)), ["/head/Gemm"]),
        (Place("node_linear_1", ("node 'node_linear_1'",)), []),
        (Place("anything", nodes=("node_linear_1",), side="reference"), []),
    ],
)
def test_the_nodes_of_a_place_are_read_from_what_it_knows_and_not_from_its_words(place, named):
    proto = edits.editable(exported_network())
    proto.graph.node[-1].name = "/head/Gemm"
    graph = Opened.of(proto, {})
    index = {graph.node(position).name: position for position in graph.computing}
    found = nodes_at(place, graph, {"step": (index["node_linear"],)}, {"answer": (index["/head/Gemm"],)})
    assert [graph.node(position).name for position in found] == named
