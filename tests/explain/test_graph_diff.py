"""Two graphs that are laid out alike: what differs is read off the files, and one experiment proves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

import likewise
from likewise.explain import graph_diff, splice
from likewise.models.onnx import edits
from likewise.models.onnx.inside import Opened
from likewise.models.onnx.open import plain_session

RNG = np.random.default_rng(3)
WEIGHTS = {
    "w1": RNG.normal(size=(6, 16)).astype(np.float32),
    "b1": RNG.normal(size=16).astype(np.float32),
    "w2": RNG.normal(size=(16, 16)).astype(np.float32),
    "w3": RNG.normal(size=(16, 3)).astype(np.float32),
    "scale": np.float32(0.5),
}
ROWS = {"x": RNG.normal(size=(24, 6)).astype(np.float32)}


def model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], name="gemm"),
        helper.make_node("LeakyRelu", ["h"], ["a"], name="act", alpha=0.1),
        helper.make_node("MatMul", ["a", "w2"], ["m"], name="inner"),
        helper.make_node("Tanh", ["m"], ["t"], name="tanh"),
        helper.make_node("Mul", ["t", "scale"], ["s"], name="scaled"),
        helper.make_node("Sub", ["a", "s"], ["d"], name="minus"),
        helper.make_node("MatMul", ["d", "w3"], ["e"], name="head"),
        helper.make_node("Softsign", ["e"], ["y"], name="bounded"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["n", 6])],
        [helper.make_tensor_value_info("y", 1, ["n", 3])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in WEIGHTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def node(proto: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(entry for entry in proto.graph.node if entry.name == name)


def slope(proto: onnx.ModelProto) -> None:
    node(proto, "act").attribute[0].f = 0.3


def operator(proto: onnx.ModelProto) -> None:
    node(proto, "tanh").op_type = "Sigmoid"


def idle(proto: onnx.ModelProto) -> None:
    node(proto, "tanh").op_type = "Identity"


def crossed(proto: onnx.ModelProto) -> None:
    names = list(node(proto, "minus").input)[::-1]
    node(proto, "minus").input[:] = names


def rewired(proto: onnx.ModelProto) -> None:
    node(proto, "minus").input[0] = "t"


def constant(proto: onnx.ModelProto) -> None:
    edits.set_constant(proto.graph, "scale", np.float32(0.75))


def weight(proto: onnx.ModelProto) -> None:
    changed = WEIGHTS["w2"].copy()
    changed[3] = 0
    edits.set_constant(proto.graph, "w2", changed)


def removed(proto: onnx.ModelProto) -> None:
    """Two nodes read what is gone."""
    edits.replace_reads(proto.graph, {"a": "h"})
    proto.graph.node.remove(node(proto, "act"))


def one_more(proto: onnx.ModelProto) -> None:
    edits.replace_reads(proto.graph, {"t": "again"})
    proto.graph.node.insert(4, helper.make_node("Softsign", ["t"], ["again"], name="extra"))


def end(proto: onnx.ModelProto) -> None:
    """The last node is gone, and what is read from the one before is the output."""
    proto.graph.node.remove(node(proto, "bounded"))
    node(proto, "head").output[0] = "y"


def without_rows_of_its_own(proto: onnx.ModelProto) -> None:
    """A constant in the place of what is computed."""
    shape = helper.make_node("Shape", ["m"], ["shape"], name="shape")
    filled = helper.make_node("ConstantOfShape", ["shape"], ["t"], name="filled")
    place = list(proto.graph.node).index(node(proto, "tanh"))
    del proto.graph.node[place]
    proto.graph.node.insert(place, filled)
    proto.graph.node.insert(place, shape)


def in_two(proto: onnx.ModelProto) -> None:
    """Written with other nodes, wrongly."""
    edits.replace_reads(proto.graph, {"t": "written"})
    proto.graph.node.remove(node(proto, "tanh"))
    proto.graph.node.insert(3, helper.make_node("Sigmoid", ["m"], ["half"], name="sigmoid"))
    proto.graph.node.insert(4, helper.make_node("Mul", ["half", "half"], ["written"], name="squared"))


FAULTS: dict[str, tuple[Callable[[onnx.ModelProto], None], str, str]] = {
    "attribute": (slope, "operator-attribute", "act"),
    "operator": (operator, "operator-semantics", "tanh"),
    "idle": (idle, "model-part-dropped", "tanh"),
    "crossed": (crossed, "wrong-wiring", "minus"),
    "rewired": (rewired, "wrong-wiring", "minus"),
    "constant": (constant, "weight-corruption", "scaled"),
    "weight": (weight, "weight-corruption", "inner"),
    "removed": (removed, "model-part-dropped", "inner"),
    "one more": (one_more, "operator-semantics", "extra"),
    "end": (end, "model-part-dropped", "head"),
    "filled": (without_rows_of_its_own, "model-part-dropped", "filled"),
    "in two": (in_two, "operator-semantics", "squared"),
}


def renamed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with every name another, as optimisers and converters leave it."""
    outer = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    names: dict[str, str] = {}
    for number, entry in enumerate(proto.graph.node):
        names |= {name: f"v{number}" for name in entry.output if name not in outer}
        entry.name = f"n{number}"
    for number, tensor in enumerate(proto.graph.initializer):
        names[tensor.name] = f"p{number}"
        tensor.name = names[tensor.name]
    for entry in proto.graph.node:
        entry.input[:] = [names.get(name, name) for name in entry.input]
        entry.output[:] = [names.get(name, name) for name in entry.output]
    return proto


@pytest.mark.parametrize("names", ["the same names", "other names"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_differs_is_read_off_the_files(
    fault: str, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, cause, culprit = FAULTS[fault]
    proto = model()
    onnx.save(proto, tmp_path / "sound.onnx")
    plant(proto)
    place = [entry.name for entry in proto.graph.node].index(culprit)
    if names == "other names":
        renamed(proto)
    onnx.save(proto, tmp_path / "wrong.onnx")
    # No tensor is looked into to find the place.
    monkeypatch.setattr(splice, "culprits", lambda case: None)
    report = likewise.check(tmp_path / "sound.onnx", tmp_path / "wrong.onnx", ROWS, edge="off", batch_sizes=())
    found = report.diagnoses[0]
    assert (found.cause, found.explained_share) == (cause, 1.0) or (fault, found.cause) == (
        "constant",
        "operator-attribute",
    )
    assert proto.graph.node[place].name in found.nodes


def places(one: onnx.ModelProto, other: onnx.ModelProto) -> graph_diff.Diff | None:
    both = [edits.editable(proto) for proto in (other, one)]
    opened = [Opened.of(proto, edits.tensor_types(proto)) for proto in both if proto is not None]
    return graph_diff.diffed(opened[0], opened[1], [("y", "y")])


def test_equal_graphs_differ_nowhere() -> None:
    for other in (model(), renamed(model())):
        found = places(model(), other)
        assert found is not None
        assert (found.places, found.whole) == ((), True)


def test_two_places_are_two() -> None:
    other = model()
    slope(other)
    crossed(other)
    found = places(model(), other)
    assert found is not None
    assert [place.how for place in found.places] == ["replaced", "replaced"]


def test_another_graph_is_not_laid_beside() -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["y"], name="only")]
    values = [[helper.make_tensor_value_info(name, 1, ["n", 6])] for name in "xy"]
    other = helper.make_model(helper.make_graph(nodes, "g", *values), opset_imports=[helper.make_opsetid("", 18)])
    assert places(model(), other) is None


def test_as_few_as_are_enough_are_named(tmp_path: Path) -> None:
    """What differs without harm is no culprit: the slope of what is never negative."""
    proto = model()
    place = list(proto.graph.node).index(node(proto, "minus"))
    proto.graph.node.insert(place, helper.make_node("LeakyRelu", ["p"], ["q"], name="harmless", alpha=0.1))
    proto.graph.node.insert(place, helper.make_node("Abs", ["s"], ["p"], name="positive"))
    node(proto, "minus").input[1] = "q"
    onnx.save(proto, tmp_path / "sound.onnx")
    node(proto, "harmless").attribute[0].f = 0.7
    slope(proto)
    onnx.save(proto, tmp_path / "wrong.onnx")
    report = likewise.check(tmp_path / "sound.onnx", tmp_path / "wrong.onnx", ROWS, edge="off", batch_sizes=())
    assert (report.diagnoses[0].cause, report.diagnoses[0].nodes) == ("operator-attribute", ("act",))


def convolutions(count: int) -> onnx.ModelProto:
    """Convolutions with a batch norm each, and a constant of its own behind every one."""
    nodes, stored = [], {}
    before = "x"
    for number in range(count):
        names = [f"{name}{number}" for name in ("w", "gamma", "beta", "mean", "var", "three")]
        stored[names[0]] = RNG.normal(size=(4, 4, 3)).astype(np.float32) / 3
        stored |= {name: RNG.uniform(0.5, 1.5, size=4).astype(np.float32) for name in names[1:5]}
        stored[names[5]] = np.float32([0.3])
        nodes += [
            helper.make_node("Conv", [before, names[0]], [f"c{number}"], name=f"conv{number}", pads=[1, 1]),
            helper.make_node("BatchNormalization", [f"c{number}", *names[1:5]], [f"n{number}"], name=f"norm{number}"),
            helper.make_node("Add", [f"n{number}", names[5]], [f"a{number}"], name=f"add{number}"),
            helper.make_node("Tanh", [f"a{number}"], [f"t{number}"], name=f"tanh{number}"),
        ]
        before = f"t{number}"
    nodes.append(helper.make_node("Identity", [before], ["y"], name="last"))
    values = [[helper.make_tensor_value_info(name, 1, ["n", 4, 8])] for name in "xy"]
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", *values, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def optimised(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Batch norms folded into the convolutions, every name another."""
    plain_session(proto, optimization="basic", saved=str(path))
    return renamed(onnx.load(path))


SIGNALS = {"x": RNG.normal(size=(12, 4, 8)).astype(np.float32)}


def test_a_file_that_was_optimised_is_read_like_the_reference_then_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splice, "culprits", lambda case: None)
    sound = convolutions(14)
    onnx.save(sound, tmp_path / "sound.onnx")
    wrong = optimised(sound, tmp_path / "optimised.onnx")
    assert not any(entry.op_type == "BatchNormalization" for entry in wrong.graph.node)
    culprit = [entry for entry in wrong.graph.node if entry.op_type == "Tanh"][5]
    culprit.op_type = "Sigmoid"
    onnx.save(wrong, tmp_path / "wrong.onnx")
    report = likewise.check(tmp_path / "sound.onnx", tmp_path / "wrong.onnx", SIGNALS, edge="off", batch_sizes=())
    assert (report.diagnoses[0].cause, report.diagnoses[0].nodes) == ("operator-semantics", (culprit.name,))


def test_a_constant_that_many_nodes_share_is_one_place() -> None:
    other = convolutions(14)
    for entry in other.graph.node:
        if entry.op_type == "Add":
            entry.input[1] = "shared"
    one = onnx.ModelProto.FromString(other.SerializeToString())
    one.graph.initializer.append(numpy_helper.from_array(np.float32([0.3]), "shared"))
    other.graph.initializer.append(numpy_helper.from_array(np.float32([0.4]), "shared"))
    found = places(one, other)
    assert found is not None
    assert [len(group) for group in found.groups] == [14]


def test_nodes_in_another_order_are_told_by_what_they_read() -> None:
    """Neither name nor order tells of the way that is written first in one file and last in the other."""

    def ways(*, turned: bool, slope: float) -> onnx.ModelProto:
        nodes = []
        for way in "ba" if turned else "ab":
            nodes += [
                helper.make_node("Mul", ["x", f"scale_{way}"], [f"m_{way}"]),
                helper.make_node("Tanh" if way == "a" else "Sigmoid", [f"m_{way}"], [f"t_{way}"]),
                helper.make_node("LeakyRelu", [f"t_{way}"], [f"l_{way}"], alpha=slope if way == "b" else 0.1),
            ]
        nodes.append(helper.make_node("Sub", ["l_a", "l_b"], ["y"]))
        values = [[helper.make_tensor_value_info(name, 1, ["n", 6])] for name in "xy"]
        stored = [
            numpy_helper.from_array(np.float32(number), name) for number, name in ((2, "scale_a"), (3, "scale_b"))
        ]
        made = helper.make_model(helper.make_graph(nodes, "g", *values, stored), ir_version=9)
        return renamed(made) if turned else made

    found = places(ways(turned=False, slope=0.1), ways(turned=True, slope=0.1))
    assert found is not None
    assert (found.places, found.whole) == ((), True)


def test_a_fault_in_one_of_two_files_quantised_alike(tmp_path: Path) -> None:
    """It is no matter of quantisation."""
    quantize_dynamic(model(), tmp_path / "sound.onnx")
    proto = onnx.load(tmp_path / "sound.onnx")
    operator(proto)
    onnx.save(proto, tmp_path / "wrong.onnx")
    report = likewise.check(tmp_path / "sound.onnx", tmp_path / "wrong.onnx", ROWS, edge="off", batch_sizes=())
    assert (report.diagnoses[0].cause, report.diagnoses[0].nodes) == ("operator-semantics", ("tanh",))


def test_nodes_that_share_nothing_but_their_operator_are_not_laid_beside_one_another() -> None:
    """Zeros in the place of what the reference computes from ones, of another shape."""

    def started(value: float, source: str, *more: onnx.NodeProto) -> onnx.ModelProto:
        proto, start = model(), more[-1].output[0] if more else "fill"
        filled = helper.make_node("ConstantOfShape", ["shape"], ["fill"])
        filled.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.float32([value]))))
        shape = helper.make_node("Shape", [source], ["shape"])
        added = helper.make_node("Add", ["h", start], ["sum"])
        for one in (added, *reversed(more), filled, shape):
            proto.graph.node.insert(1, one)
        node(proto, "act").input[0] = "sum"
        return proto

    other = renamed(started(0.0, "h"))
    found = places(started(1.0, "x", helper.make_node("MatMul", ["fill", "w1"], ["start"])), other)
    assert found is not None
    assert [place.how for place in found.places] == ["replaced"]


def test_a_reduction_that_only_does_what_another_node_should_is_not_the_cause(tmp_path: Path) -> None:
    """The largest of rows decides about all of them; their sum would be above the wrong threshold, too."""

    def branching(threshold: float) -> onnx.ModelProto:
        nodes = [
            helper.make_node("ReduceMax", ["x"], ["most"], name="largest", keepdims=0),
            helper.make_node("Greater", ["most", "t"], ["loud"], name="above"),
            helper.make_node("Where", ["loud", "half", "whole"], ["factor"], name="choice"),
            helper.make_node("Mul", ["x", "factor"], ["y"], name="scaled"),
        ]
        values = [[helper.make_tensor_value_info(name, 1, ["n", 6])] for name in "xy"]
        held = {"t": np.float32(threshold), "half": np.float32(0.5), "whole": np.float32(1)}
        stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()]
        graph = helper.make_graph(nodes, "g", *values, stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    for name, threshold in (("sound", 1.0), ("wrong", 9.0)):
        onnx.save(branching(threshold), tmp_path / f"{name}.onnx")
    rows = {"x": np.abs(ROWS["x"]) + 1}
    report = likewise.check(tmp_path / "sound.onnx", tmp_path / "wrong.onnx", rows, edge="off", batch_sizes=())
    assert report.diagnoses[0].nodes == ("above",)


def test_one_tensor_that_stands_for_two_is_told_apart_by_its_readers(tmp_path: Path) -> None:
    """Zeros for two things that the reference computes."""

    def added(nodes: Sequence[onnx.NodeProto], first: str, second: str) -> onnx.ModelProto:
        proto = model()
        for reader, source, term in (("tanh", "m", second), ("act", "h", first)):
            node(proto, reader).input[0] = f"{source} added"
            place = list(proto.graph.node).index(node(proto, reader))
            proto.graph.node.insert(place, helper.make_node("Add", [source, term], [f"{source} added"], name=source))
        for one in reversed(nodes):
            proto.graph.node.insert(1, one)
        return proto

    computed = [
        helper.make_node("MatMul", ["x", "w1"], ["start"], name="start"),
        helper.make_node("Sigmoid", ["h"], ["gate"], name="gate"),
    ]
    zeros = [
        helper.make_node("Shape", ["h"], ["shape"], name="shape"),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"], name="zeros"),
    ]
    onnx.save(added(computed, "start", "gate"), tmp_path / "sound.onnx")
    onnx.save(added(zeros, "zeros", "zeros"), tmp_path / "wrong.onnx")
    report = likewise.check(tmp_path / "sound.onnx", tmp_path / "wrong.onnx", ROWS, edge="off", batch_sizes=())
    found = report.diagnoses[0]
    assert (found.cause, found.explained_share) == ("model-part-dropped", 1.0)
    assert "zeros" in found.nodes


@pytest.mark.parametrize(("axis", "named"), [(1, "soft"), (2, "")])
def test_a_node_that_means_something_else_in_another_opset(axis: int, named: str, tmp_path: Path) -> None:
    """Before opset 13 a softmax over axis 1 of three is one over all that follows; over the last it is the same."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"], name="soft", axis=axis),
        helper.make_node("Mul", ["p", "k"], ["y"], name="scaled"),
    ]
    values = [[helper.make_tensor_value_info(name, 1, ["n", 3, 4])] for name in "xy"]
    for opset in (11, 13):
        graph = helper.make_graph(nodes, "g", *values, [numpy_helper.from_array(np.float32(8), "k")])
        onnx.save(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8),
            tmp_path / f"{opset}.onnx",
        )
    rows = {"x": RNG.normal(size=(24, 3, 4)).astype(np.float32)}
    report = likewise.check(tmp_path / "11.onnx", tmp_path / "13.onnx", rows, edge="off", batch_sizes=())
    assert [(found.cause, found.nodes) for found in report.diagnoses] == (
        [("operator-semantics", (named,))] if named else []
    )
    assert report.passed != bool(named)


def branches(order: Sequence[int], *, slope: float, nudge: float, prefix: str) -> onnx.ModelProto:
    """Four branches side by side, written in some order; weights nudged as rounding does."""
    draw = np.random.default_rng(8)
    stored = {number: draw.normal(size=(6, 5)).astype(np.float32) for number in range(4)}
    nodes = []
    for number in order:
        names = [f"{prefix}{name}{number}" for name in "wma"]
        nodes.append(helper.make_node("MatMul", ["x", names[0]], [names[1]], name=names[1]))
        alpha = slope if number == 2 else 0.1
        nodes.append(helper.make_node("LeakyRelu", [names[1]], [names[2]], name=names[2], alpha=alpha))
    nodes.append(helper.make_node("Sum", [f"{prefix}a{number}" for number in range(4)], ["y"], name=f"{prefix}sum"))
    given, made = (helper.make_tensor_value_info(name, 1, ["n", size]) for name, size in (("x", 6), ("y", 5)))
    arrays = {f"{prefix}w{n}": array + np.float32(nudge) * np.abs(array).max() for n, array in stored.items()}
    constants = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", [given], [made], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_branches_in_another_order_with_weights_rounded_otherwise_are_known_by_them(tmp_path: Path) -> None:
    sound = branches([0, 1, 2, 3], slope=0.1, nudge=0.0, prefix="")
    wrong = branches([3, 1, 0, 2], slope=0.4, nudge=1e-7, prefix="other_")
    diff = places(sound, wrong)
    assert diff is not None
    assert [[diff.laid.candidate.node(i).name for i in spot.nodes] for spot in diff.places] == [["other_a2"]]
    onnx.save(sound, tmp_path / "sound.onnx")
    onnx.save(wrong, tmp_path / "wrong.onnx")
    report = likewise.check(tmp_path / "sound.onnx", tmp_path / "wrong.onnx", ROWS, edge="off", batch_sizes=())
    assert (report.diagnoses[0].cause, report.diagnoses[0].nodes) == ("operator-attribute", ("other_a2",))
