"""The node at which a graph begins to differ from the reference: by grafts of the reference's part."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper

import likewise
from likewise.contracts.report import Diagnosis
from likewise.explain import splice
from likewise.models.onnx import edits

CAUSES = ("operator-attribute", "wrong-wiring", "model-part-dropped", "operator-semantics", "traced-branch")


class Block(torch.nn.Module):
    """Two ways that meet again, a normalisation, and weights of one layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(6, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.shared = torch.nn.Linear(16, 16)
        self.last = torch.nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norm(self.first(x)))
        skip = torch.tanh(self.shared(h)) + h
        return self.last(torch.cat([skip, self.shared(skip)], 1))


@pytest.fixture(scope="module")
def block() -> Block:
    return Block().eval()


@pytest.fixture(scope="module")
def sound(block: Block, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "block.onnx"
    rows = torch.zeros(2, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(block, (rows,), path, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "n"}})
    return path


ROWS = {"x": np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)}


def node(proto: onnx.ModelProto, operator: str, number: int = 0) -> onnx.NodeProto:
    return [entry for entry in proto.graph.node if entry.op_type == operator][number]


def scaled(proto: onnx.ModelProto) -> onnx.NodeProto:
    gemm = node(proto, "Gemm")
    kept = [entry for entry in gemm.attribute if entry.name != "alpha"]
    del gemm.attribute[:]
    gemm.attribute.extend([*kept, helper.make_attribute("alpha", 0.3)])
    return gemm


def skips_another_tensor(proto: onnx.ModelProto) -> onnx.NodeProto:
    add = node(proto, "Add")
    slot = next(slot for slot, name in enumerate(add.input) if name == node(proto, "Relu").output[0])
    add.input[slot] = node(proto, "LayerNormalization").output[0]
    return add


def exchanged(proto: onnx.ModelProto) -> onnx.NodeProto:
    concat = node(proto, "Concat")
    names = list(concat.input)[::-1]
    del concat.input[:]
    concat.input.extend(names)
    return concat


def without_activation(proto: onnx.ModelProto) -> onnx.NodeProto:
    """Two nodes read what the Relu gives."""
    relu = node(proto, "Relu")
    gave, given = relu.output[0], relu.input[0]
    for entry in proto.graph.node:
        for slot, name in enumerate(entry.input):
            entry.input[slot] = given if name == gave else name
    proto.graph.node.remove(relu)
    return node(proto, "Add")


def with_another_activation(proto: onnx.ModelProto) -> onnx.NodeProto:
    tanh = node(proto, "Tanh")
    tanh.op_type = "Sigmoid"
    return tanh


def with_one_more(proto: onnx.ModelProto) -> onnx.NodeProto:
    norm = node(proto, "LayerNormalization")
    gave = norm.output[0]
    norm.output[0] = "before"
    place = list(proto.graph.node).index(norm) + 1
    proto.graph.node.insert(place, helper.make_node("Softsign", ["before"], [gave], name="one_more"))
    return proto.graph.node[place]


def frozen(proto: onnx.ModelProto) -> onnx.NodeProto:
    add = node(proto, "Add")
    slot = next(slot for slot, name in enumerate(add.input) if name == node(proto, "Relu").output[0])
    proto.graph.initializer.append(numpy_helper.from_array(np.full((1, 16), 0.5, np.float32), "traced"))
    add.input[slot] = "traced"
    return add


FAULTS: dict[str, tuple[Callable[[onnx.ModelProto], onnx.NodeProto], str, str]] = {
    "an attribute": (scaled, "operator-attribute", "alpha=0.3, in the reference 1"),
    "wiring": (skips_another_tensor, "wrong-wiring", "where the reference reads"),
    "the order of inputs": (exchanged, "wrong-wiring", "in another order"),
    "a part that is missing": (without_activation, "model-part-dropped", "Relu"),
    "another operator": (with_another_activation, "operator-semantics", "Tanh"),
    "a part too much": (with_one_more, "operator-semantics", "nothing in the place"),
    "a constant from a trace": (frozen, "traced-branch", "which the reference computes"),
}


def first(reference: object, candidate: Path) -> Diagnosis:
    report = likewise.check(reference, candidate, ROWS, edge="off", batch_sizes=(), causes=CAUSES)
    assert not report.passed
    assert report.diagnoses, report.explanation
    return report.diagnoses[0]


@pytest.mark.parametrize("name", FAULTS)
def test_the_node_is_named(name: str, sound: Path, tmp_path: Path) -> None:
    plant, cause, words = FAULTS[name]
    proto = onnx.load(sound)
    culprit = plant(proto)
    onnx.save(proto, tmp_path / "wrong.onnx")
    found = first(sound, tmp_path / "wrong.onnx")
    assert found.cause == cause
    assert culprit.name in found.nodes
    assert words in found.evidence
    assert found.explained_share == 1.0


def test_a_module_is_exported_to_look_where_the_file_differs(sound: Path, tmp_path: Path) -> None:
    proto = onnx.load(sound)
    culprit = skips_another_tensor(proto)
    onnx.save(proto, tmp_path / "wrong.onnx")
    # It is opened for inference, in whatever mode it is.
    found = first(Block().train(), tmp_path / "wrong.onnx")
    assert (found.cause, found.nodes) == ("wrong-wiring", (culprit.name,))


def test_two_culprits_are_put_right_one_after_the_other(sound: Path, tmp_path: Path) -> None:
    proto = onnx.load(sound)
    one, other = scaled(proto), exchanged(proto)
    onnx.save(proto, tmp_path / "wrong.onnx")
    assert set(first(sound, tmp_path / "wrong.onnx").nodes) == {one.name, other.name}


def test_inside_of_a_branch(tmp_path: Path) -> None:
    def model(slope: float) -> onnx.ModelProto:
        def branch(name: str, operator: str, **attributes: float) -> onnx.GraphProto:
            made = helper.make_node(operator, ["h"], [name], name=name, **attributes)
            return helper.make_graph([made], name, [], [helper.make_tensor_value_info(name, 1, None)])

        nodes = [
            helper.make_node("Mul", ["x", "two"], ["h"], name="double"),
            helper.make_node("ReduceSum", ["h"], ["total"], name="sum", keepdims=0),
            helper.make_node("Greater", ["total", "low"], ["positive"], name="compare"),
            helper.make_node(
                "If",
                ["positive"],
                ["y"],
                name="choose",
                then_branch=branch("leaky", "LeakyRelu", alpha=slope),
                else_branch=branch("plain", "Relu"),
            ),
        ]
        graph = helper.make_graph(
            nodes,
            "branches",
            [helper.make_tensor_value_info("x", 1, ["n", 6])],
            [helper.make_tensor_value_info("y", 1, ["n", 6])],
            [
                numpy_helper.from_array(np.float32(2), "two"),
                numpy_helper.from_array(np.float32(-1e9), "low"),
            ],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    onnx.save(model(0.1), tmp_path / "sound.onnx")
    onnx.save(model(0.2), tmp_path / "wrong.onnx")
    found = first(tmp_path / "sound.onnx", tmp_path / "wrong.onnx")
    assert found.nodes == ("choose", "leaky")
    assert "alpha=0.2, in the reference 0.1" in found.evidence
    assert "leaky" in found.evidence


def test_a_graph_is_repaired_at_the_node(sound: Path, tmp_path: Path) -> None:
    proto = onnx.load(sound)
    without_activation(proto)
    onnx.save(proto, tmp_path / "wrong.onnx")
    options = {"edge": "off", "batch_sizes": (), "causes": CAUSES}
    fixed = likewise.fix(sound, tmp_path / "wrong.onnx", ROWS, tmp_path / "fixed.onnx", speed=False, **options)
    assert fixed
    onnx.checker.check_model(str(tmp_path / "fixed.onnx"), full_check=True)
    wanted, given = (onnxruntime.InferenceSession(path).run(None, ROWS)[0] for path in (sound, tmp_path / "fixed.onnx"))
    np.testing.assert_allclose(given, wanted, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_a_sketch_tells_one_number_of_many(dtype: type) -> None:
    values = np.random.default_rng(1).normal(scale=100, size=(3, 200_000)).astype(dtype)
    changed = values.copy()
    changed[2, 150_000] += 300
    known = splice.sketch(values)
    assert splice.apart(known, splice.sketch(values.copy())) == 0
    wanted = 300 / np.linalg.norm(values.astype(np.float64))
    assert splice.apart(known, splice.sketch(changed)) == pytest.approx(wanted, rel=0.05)
    assert splice.apart(known, splice.sketch(values.T)) == float("inf")


def test_a_sketch_of_what_is_not_finite() -> None:
    one = np.array([1.0, np.nan, np.inf], np.float32)
    assert splice.apart(splice.sketch(one), splice.sketch(one.copy())) == 0
    assert splice.apart(splice.sketch(one), splice.sketch(np.array([1.0, np.inf, np.nan], np.float32))) > 0.1
    assert splice.apart(splice.sketch(np.array(["a"])), splice.sketch(np.array(["b"]))) > 0.1


def test_inspect_tells_that_a_file_names_sources(sound: Path, tmp_path: Path) -> None:
    assert "build_paths" not in likewise.inspect(sound)["details"]
    proto = onnx.load(sound)
    trace = 'File "/home/somebody/net.py", line 7, in forward\n    h = torch.relu(x)'
    proto.graph.node[0].metadata_props.add(key="pkg.torch.onnx.stack_trace", value=trace)
    onnx.save(proto, tmp_path / "traced.onnx")
    assert "/home/somebody/net.py:7" in likewise.inspect(tmp_path / "traced.onnx")["details"]["build_paths"]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("/stem/stem.1/Conv", "stem.1"),
        ("/layers.0/act/Gelu", "layers.0.act"),
        ("/block/net/net.0/net.0.1/Conv", "block.net.0.1"),
        ("/Add", None),
        ("Conv_3", None),
    ],
)
def test_the_module_that_an_older_exporter_names(name: str, path: str | None) -> None:
    assert edits.module_of(onnx.helper.make_node("Conv", ["x"], ["y"], name=name)) == path


@pytest.mark.parametrize(
    "nothing", [-np.inf, -1e9, float(np.finfo(np.float32).min)], ids=["infinite", "large", "largest"]
)
def test_what_a_mask_leaves_is_told_apart_whatever_stands_for_nothing(nothing: float) -> None:
    """Scores of two layers under one mask are not the same, and the same scores under two masks are not either."""
    draw = np.random.default_rng(0)
    scores, others = (draw.normal(size=(2, 4, 9, 9)).astype(np.float32) for _ in range(2))
    mask = draw.random((9, 9)) < 0.3
    masked, other_layer, other_mask = (
        splice.sketch(np.where(hidden, np.float32(nothing), values))
        for values, hidden in ((scores, mask), (others, mask), (scores, ~mask))
    )
    nearly = splice.sketch(np.where(mask, np.float32(nothing), scores * np.float32(1 + 1e-6)))
    assert splice.apart(masked, nearly) < splice.CLOSE[0]
    assert splice.apart(masked, other_layer) > splice.CLOSE[-1]
    assert splice.apart(masked, other_mask) > splice.CLOSE[-1]


def test_numbers_that_are_none_are_told_from_infinite_ones() -> None:
    ones = np.ones(40, dtype=np.float32)
    holes = [np.where(np.arange(40) == 7, value, ones) for value in (np.nan, np.inf, -np.inf, 1.0)]
    marks = [splice.sketch(array) for array in holes]
    assert all(splice.apart(one, two) > splice.CLOSE[-1] for at, one in enumerate(marks) for two in marks[:at])
    empty = splice.sketch(np.zeros(40, dtype=np.float32))
    assert splice.apart(empty, empty) == 0
