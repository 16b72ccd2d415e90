"""One tracer tells which input's column a column inside a graph comes from, and what has become of it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from likewise.models.onnx.guess import Graph, Trace

ML = "ai.onnx.ml"


def traced(nodes, inputs, **constants):
    """The layouts of a graph with these nodes; inputs by their width, None for a tensor."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in inputs]
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    return Graph(helper.make_graph(nodes, "g", values, [], stored), inputs)


def places(graph, name):
    return [None if trace is None else (trace.input, trace.column) for trace in graph.layouts[name]]


def test_columns_are_followed_past_scaling_choosing_and_joining():
    graph = traced(
        [
            helper.make_node("Scaler", ["x"], ["s"], domain=ML, offset=[1.0, 2.0, 3.0], scale=[2.0, 2.0, 4.0]),
            helper.make_node("ArrayFeatureExtractor", ["s", "chosen"], ["c"], domain=ML),
            helper.make_node("OneHotEncoder", ["word"], ["hot"], domain=ML, cats_strings=["a", "b"]),
            helper.make_node("Concat", ["hot", "c"], ["all"], axis=1),
            helper.make_node("Div", ["all", "ten"], ["small"]),
        ],
        {"x": 3, "word": 1},
        chosen=np.array([2, 0]),
        ten=np.array([10.0], dtype=np.float32),
    )
    assert places(graph, "small") == [None, None, ("x", 2), ("x", 0)]
    last = graph.layouts["small"][2]
    assert last.back((7.0 - 3.0) * 4.0 / 10.0) == pytest.approx(7.0)
    assert not last.direct
    assert Trace("x", 0).direct


def test_behind_an_unknown_part_only_the_columns_before_it_have_their_places():
    graph = traced(
        [
            helper.make_node("Identity", ["x"], ["same"]),
            helper.make_node("MatMul", ["x", "weights"], ["mixed"]),
            helper.make_node("Concat", ["same", "mixed"], ["part"], axis=1),
            helper.make_node("Concat", ["part", "y"], ["more"], axis=1),
            helper.make_node("Sub", ["part", "five"], ["moved"]),
            helper.make_node("Gather", ["part", "first"], ["known"], axis=1),
            helper.make_node("Gather", ["part", "last"], ["unknown"], axis=1),
        ],
        {"x": 2, "y": 1},
        weights=np.ones((2, 3), dtype=np.float32),
        five=np.arange(5, dtype=np.float32),
        first=np.array([1]),
        last=np.array([-1]),
    )
    assert places(graph, "part") == [("x", 0), ("x", 1)]
    assert places(graph, "more") == [("x", 0), ("x", 1)], "where y stands is not known"
    assert [trace.shift for trace in graph.layouts["moved"]] == [0.0, -1.0]
    assert places(graph, "known") == [("x", 1)]
    assert "unknown" not in graph.layouts


def test_a_table_that_is_reshaped_keeps_its_columns_only_if_it_keeps_its_width():
    graph = traced(
        [
            helper.make_node("Reshape", ["x", "same"], ["kept"]),
            helper.make_node("Reshape", ["x", "one"], ["mixed"]),
            helper.make_node("Mul", ["x", "zero"], ["nothing"]),
        ],
        {"x": 3},
        same=np.array([-1, 3]),
        one=np.array([-1, 1]),
        zero=np.array(0.0, dtype=np.float32),
    )
    assert places(graph, "kept") == [("x", 0), ("x", 1), ("x", 2)]
    assert places(graph, "mixed") == [None]
    assert [trace.factor for trace in graph.layouts["nothing"]] == [0.0, 0.0, 0.0]


def test_a_tensor_without_columns_is_followed_as_a_whole():
    graph = traced(
        [
            helper.make_node("Sub", ["image", "mean"], ["centred"]),
            helper.make_node("Mul", ["half", "centred"], ["out"]),
        ],
        {"image": None},
        mean=np.array([1.0, 2.0, 3.0], dtype=np.float32).reshape(1, 3, 1, 1),
        half=np.array(0.5, dtype=np.float32),
    )
    (trace,) = graph.layouts["out"]
    assert trace.column is None
    assert np.asarray(trace.back(0.0)).ravel().tolist() == [1.0, 2.0, 3.0]
