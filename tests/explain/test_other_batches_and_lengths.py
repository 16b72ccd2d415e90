"""What is right on the data and wrong in another order or at another length is explained too."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import data_only

ROWS = np.random.default_rng(2).normal(size=(60, 6, 3)).astype(np.float32)


def graph(nodes, shape, **constants):
    """An ONNX file from `x` to `value`."""
    made = helper.make_graph(
        [helper.make_node(kind, taken, given, **more) for kind, taken, given, more in nodes],
        "planted",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("value", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()


def test_rows_that_are_sorted_within_a_batch_are_named():
    # Sorted by the first value of each row, as packed sequences are by length, and not put back.
    table = ROWS[:, 0]
    candidate = graph(
        [
            ("Gather", ["x", "first"], ["key"], {"axis": 1}),
            ("Shape", ["key"], ["count"], {}),
            ("TopK", ["key", "count"], ["_", "order"], {"largest": 0}),
            ("Gather", ["x", "order"], ["value"], {}),
        ],
        ["rows", 3],
        first=np.array(0),
    )
    report = data_only.check(lambda x: {"value": x}, candidate, {"x": table[np.argsort(table[:, 0])]}, explain=True)
    assert report.outcome == "FAIL"
    best = report.diagnoses[0]
    assert (best.cause, best.culprit) == ("batch-dependence", "the place of a row in its batch")


def test_a_length_written_into_the_graph_is_named_where_another_was_asked_for():
    # The sum over a sequence, divided by the length there was when it was traced.
    nodes = [("ReduceSum", ["x", "axes"], ["sum"], {"keepdims": 0}), ("Div", ["sum", "six"], ["value"], {})]
    constants = {"axes": np.array([1]), "six": np.array(6, dtype=np.float32)}
    candidate = graph(nodes, ["rows", "seq", 3], **constants)
    report = data_only.check(lambda x: {"value": x.mean(1)}, candidate, {"x": ROWS}, shapes={"seq": (9,)}, explain=True)
    assert report.outcome == "FAIL"
    best = report.diagnoses[0]
    assert best.cause == "shape-specialization"
    assert "right only at length 6" in best.culprit
    assert data_only.check(lambda x: {"value": x.mean(1)}, candidate, {"x": ROWS}, shapes={"seq": (6,)}).passed


def test_a_length_is_found_that_nothing_in_the_graph_names():
    """As of a loop that was unrolled for the four steps of its example."""
    nodes, constants = [], {"axis": np.array([1])}
    for step in range(4):
        constants[f"at{step}"] = np.array(step)
        nodes.append(("Gather", ["x", f"at{step}"], [f"part{step}"], {"axis": 1}))
    nodes.append(("Sum", [f"part{step}" for step in range(4)], ["value"], {}))
    candidate = graph(nodes, ["rows", "seq", 3], **constants)
    report = data_only.check(lambda x: {"value": x.sum(1)}, candidate, {"x": ROWS}, explain=True)
    best = report.diagnoses[0]
    assert best.cause == "shape-specialization"
    assert "right only at length 4" in best.culprit


def test_that_all_is_right_at_a_single_step_is_no_length():
    """The first step in the place of the last one: of one step they are the same."""
    candidate = graph([("Gather", ["x", "at"], ["value"], {"axis": 1})], ["rows", "seq", 3], at=np.array(0))
    report = data_only.check(lambda x: {"value": x[:, -1]}, candidate, {"x": ROWS}, explain=True)
    assert report.outcome == "FAIL"
    assert "shape-specialization" not in {found.cause for found in report.diagnoses}
