"""What a part of a graph that differs is called: by where it stands and what it does, not by its operators."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import small_graphs as sg
from onnx import TensorProto, helper, numpy_helper
from sklearn.ensemble import IsolationForest

import data_only

RNG = np.random.default_rng(7)
PICTURES = {"x": RNG.normal(size=(60, 3, 6, 6)).astype(np.float32)}
CONSTANTS = {
    "w1": RNG.normal(size=(4, 3, 3, 3)).astype(np.float32),
    "w2": RNG.normal(size=(3, 4, 3, 3)).astype(np.float32),
    "scale": RNG.normal(size=4).astype(np.float32) + 2,
    "shift": RNG.normal(size=4).astype(np.float32),
    "mean": RNG.normal(size=4).astype(np.float32),
    "var": np.full(4, 2.0, np.float32),
    "seven": np.float32(7),
    "one": np.int64(1),
    "half": np.float32(0.5),
    "rows": np.array([0]),
    "places": np.array([2, 3]),
    "tiny": np.float32(1e-5),
    "column": np.array([1, 4, 1, 1]),
}
SAME = {"pads": [1, 1, 1, 1]}


def network(start=(), norm=None, middle=(), end=(), output="maps", kind=sg.FLOAT):
    """Two convolutions with a normalisation between them; parts may stand before, in between and behind."""
    given = start[-1].output[0] if start else "x"
    norm = norm or [sg.node("BatchNormalization", "first scale shift mean var", "normed")]
    inner = middle[-1].output[0] if middle else "normed"
    nodes = [
        *start,
        sg.node("Conv", f"{given} w1", "first", **SAME),
        *norm,
        *middle,
        sg.node("Relu", inner, "relu"),
        sg.node("Conv", "relu w2", "maps", **SAME),
        *end,
    ]
    read = {name for node in nodes for name in node.input}
    held = {name: values for name, values in CONSTANTS.items() if name in read}
    shape = ["n"] if kind == sg.INT64 else ["n", 3, 6, 6]
    return sg.graph(nodes, held, inputs={"x": (3, 6, 6)}, output=(output, shape), kinds=(sg.FLOAT, kind))


LABELLED = [sg.node("ReduceMean", "maps places", "pooled", keepdims=0), sg.node("ArgMax", "pooled", "label", axis=1)]
BY_THE_BATCH = [
    sg.node("ReduceMean", "first across", "centre"),
    sg.node("Sub", "first centre", "apart"),
    sg.node("Mul", "apart apart", "squared"),
    sg.node("ReduceMean", "squared across", "spread"),
    sg.node("Add", "spread tiny", "more"),
    sg.node("Sqrt", "more", "root"),
    sg.node("Div", "apart root", "even"),
    sg.node("Reshape", "scale column", "scaling"),
    sg.node("Reshape", "shift column", "shifting"),
    sg.node("Mul", "even scaling", "scaled"),
    sg.node("Add", "scaled shifting", "normed"),
]
THROWN = [sg.node("RandomUniformLike", "normed", "dice", seed=1.0)]
DROPPED = [
    *THROWN,
    sg.node("Greater", "dice half", "kept"),
    sg.node("Cast", "kept", "mask", to=sg.FLOAT),
    sg.node("Mul", "normed mask", "left"),
]
CONSTANTS["across"] = np.array([0, 2, 3])


@pytest.mark.parametrize(
    ("reference", "candidate", "cause", "told"),
    [
        ({}, {"start": [sg.node("Transpose", "x", "turned", perm=[0, 1, 3, 2])]}, "input-layout", "node_turned"),
        ({"start": [sg.node("Div", "x seven", "small")]}, {}, "input-layout", "Div"),
        (
            {},
            {"end": [sg.node("Transpose", "maps", "turned", perm=[0, 1, 3, 2])], "output": "turned"},
            "output-layout",
            "maps",
        ),
        (
            {"end": LABELLED, "output": "label", "kind": sg.INT64},
            {"end": [*LABELLED, sg.node("Add", "label one", "next")], "output": "next", "kind": sg.INT64},
            "label-mapping",
            "",
        ),
        ({}, {"norm": BY_THE_BATCH}, "training-mode batch-dependence", "node_spread"),
        ({}, {"middle": DROPPED}, "training-mode", "RandomUniformLike"),
        ({}, {"middle": [*THROWN, sg.node("Add", "normed dice", "noisy")]}, "nondeterminism", "RandomUniformLike"),
        (
            {"middle": [sg.node("ReduceMean", "normed places", "mid"), sg.node("Sub", "normed mid", "centred")]},
            {
                "middle": [
                    sg.node("ReduceSum", "normed places", "sum"),
                    sg.node("Div", "sum seven", "mid"),
                    sg.node("Sub", "normed mid", "centred"),
                ]
            },
            "shape-specialization",
            "node_mid",
        ),
    ],
)
def test_a_part_is_called_by_what_it_is_for(reference, candidate, cause, told):
    best = sg.explained(network(**reference), network(**candidate), PICTURES)
    assert best.cause in cause.split(), best
    assert told in f"{best.culprit} {best.nodes} {best.tensors}"


def padded(pads, *before):
    nodes = [*before, sg.node("Pad", f"x {pads}", "wide"), sg.node("Conv", "wide w1", "maps")]
    held = {
        "w1": CONSTANTS["w1"],
        "even": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "odd": np.array([0, 0, 2, 2, 0, 0, 0, 0]),
        "two": np.int64(2),
        "none": np.array([0]),
        "sixth": np.int64(6),
        "four": np.array([0, 0]),
        "last": np.int64(3),
    }
    read = {name for node in nodes for name in node.input}
    return sg.graph(
        nodes,
        {name: values for name, values in held.items() if name in read},
        inputs={"x": (3, 6, 6)},
        output=("maps", ["n", 4, 6, 6]),
    )


SIXTH = [
    sg.node("Shape", "x", "shape"),
    sg.node("Gather", "shape last", "length"),
    sg.node("Div", "length sixth", "unit"),
]


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ([sg.node("Mul", "even two", "twice"), sg.node("Div", "twice two", "pads")], "operator-attribute"),
        ([*SIXTH, sg.node("Mul", "even unit", "pads")], "shape-specialization"),
    ],
)
def test_what_a_constant_stands_for_tells_whether_something_was_frozen(before, cause):
    """Worked out of constants it is a setting; out of lengths, a length that was frozen."""
    best = sg.explained(padded("pads", *before), padded("odd"), PICTURES)
    assert best.cause == cause, best
    assert best.nodes == ("node_wide",)


def decided(then, otherwise):
    branches = {
        name: helper.make_graph(
            [sg.node(operator, "x", f"{name}_out")], name, [], [helper.make_empty_tensor_value_info(f"{name}_out")]
        )
        for name, operator in (("then_branch", then), ("else_branch", otherwise))
    }
    nodes = [
        sg.node("ReduceMean", "x", "mean", keepdims=0),
        sg.node("Greater", "mean limit", "above"),
        helper.make_node("If", ["above"], ["y"], name="decide", **branches),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 6])]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 6])]
    held = [numpy_helper.from_array(np.float32(0), "limit")]
    graph = helper.make_graph(nodes, "decided", given, made, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_branches_that_are_exchanged_are_wired_wrongly(tmp_path):
    for number in range(16):
        np.savez(tmp_path / f"s{number:02}.npz", x=RNG.normal(size=(4, 6)).astype(np.float32))
    report = data_only.explain(decided("Tanh", "Relu"), decided("Relu", "Tanh"), tmp_path, explain_budget=60)
    best = report.diagnoses[0]
    assert (best.cause, best.nodes) == ("wrong-wiring", ("decide",))
    assert "branches are exchanged" in best.evidence


def centred(length):
    """Each sample less its mean: of all its places, or of as many as the example had."""
    nodes = [sg.node("MatMul", "x w", "h"), sg.node("ReduceSum", "h first", "sum", keepdims=1)]
    held = {
        "w": RNG.normal(size=(3, 2)).astype(np.float32) * 0 + 0.5,
        "first": np.array([0]),
        "length": np.float32(length or 1),
    }
    if length is None:
        nodes = [nodes[0], sg.node("ReduceMean", "h first", "mid", keepdims=1)]
    else:
        nodes.append(sg.node("Div", "sum length", "mid"))
    nodes.append(sg.node("Sub", "h mid", "y"))
    return sg.graph(nodes, held, inputs={"x": (3,)}, output=("y", ["n", 2]))


class Centred:
    """The same in Python, of which there is no graph to lay beside the candidate's."""

    def __call__(self, x):
        h = x @ np.full((3, 2), 0.5, np.float32)
        return {"y": h - h.sum(0, keepdims=True) / len(h)}


def test_the_length_of_an_example_is_found_where_every_sample_has_its_own(tmp_path):
    for number in range(12):
        np.savez(tmp_path / f"s{number:02}.npz", x=RNG.normal(size=(4 + number, 3)).astype(np.float32) + 1)
    report = data_only.explain(Centred(), centred(7), tmp_path, explain_budget=60, batch_axis="none")
    assert report.outcome == "FAIL"
    best = report.diagnoses[0]
    assert (best.cause, best.nodes) == ("shape-specialization", ("node_mid",)), best
    assert "7 in Div" in best.evidence


def test_an_overflow_is_found_that_goes_under_before_the_end():
    """What is divided by an infinite root is zero: the answers are finite."""
    from onnxruntime.transformers import float16

    nodes = [
        sg.node("Gemm", "x fc1 b1", "h"),
        sg.node("Mul", "h loud", "amplified"),
        sg.node("Mul", "amplified amplified", "squared"),
        sg.node("ReduceMean", "squared places", "mean"),
        sg.node("Sqrt", "mean", "root"),
        sg.node("Div", "amplified root", "normed"),
        sg.node("Gemm", "normed fc2 b2", "y"),
    ]
    held = {
        "fc1": RNG.normal(size=(8, 16)).astype(np.float32),
        "b1": np.zeros(16, np.float32),
        "loud": np.float32(60),
        "places": np.array([1]),
        "fc2": RNG.normal(size=(16, 3)).astype(np.float32),
        "b2": np.zeros(3, np.float32),
    }
    reference = sg.graph(nodes, held, inputs={"x": (8,)}, output=("y", ["n", 3]))
    # Kept in float, as sums usually are: the squares are stored in half before they are added up.
    candidate = float16.convert_float_to_float16(reference, keep_io_types=True, op_block_list=["ReduceMean", "Sqrt"])
    best = sg.explained(reference, candidate, {"x": sg.rows()}, abs_tol=0.05, rel_tol=0)
    assert best.cause == "precision-reduction"
    # Where half is what the processor computes in, the squares are; elsewhere they are never stored, and their mean is.
    assert {"node_squared", "mean_cast_to_fp16_node"}.intersection(best.nodes)


def test_an_offset_that_became_zero_is_a_part_that_was_left_out():
    from skl2onnx import to_onnx

    rows = RNG.normal(size=(200, 4)).astype(np.float32)
    model = IsolationForest(n_estimators=8, random_state=0).fit(rows)
    candidate = to_onnx(model, rows[:1], target_opset={"": 17, "ai.onnx.ml": 3})
    for tensor in candidate.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.size == 1 and np.isclose(np.abs(values).item(), abs(model.offset_)):
            tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(values), tensor.name))
    onnx.checker.check_model(candidate)
    best = sg.explained(model, candidate, {"X": rows})
    assert best.cause == "model-part-dropped"
    assert "offset_" in best.culprit
