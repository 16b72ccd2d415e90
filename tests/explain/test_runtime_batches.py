"""Answers that depend on how many rows are asked about, on their neighbours, or on the length of a sequence."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import small_graphs as sg
import torch
from torch import nn

import data_only

WEIGHTS = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
PRODUCT = sg.node("MatMul", "x w", "product")


def times(x):
    return x @ torch.tensor(WEIGHTS)


def candidate(*nodes, **constants):
    return sg.graph([PRODUCT, *nodes], {"w": WEIGHTS, **constants}, inputs={"x": (8,)}, output=("output", ["n", 3]))


def explained(proto, **options):
    return sg.explained(sg.Function(times), proto, {"x": sg.rows() + 1}, **{"batch_sizes": None, **options})


def test_a_mean_over_the_rows_of_a_call():
    best = explained(
        candidate(
            sg.node("ReduceMean", "product rows", "mean"), sg.node("Sub", "product mean", "output"), rows=np.array([0])
        )
    )
    assert best.cause == "batch-dependence"
    assert "ReduceMean" in best.culprit


def test_a_row_that_depends_on_the_first_of_its_call():
    best = explained(
        candidate(
            sg.node("Gather", "product zero", "first", axis=0),
            sg.node("Sub", "product first", "apart"),
            sg.node("Add", "apart product", "output"),
            zero=np.array([0]),
        )
    )
    assert best.cause == "batch-dependence"


def test_an_answer_that_counts_the_rows():
    best = explained(
        candidate(
            sg.node("Shape", "x", "shape"),
            sg.node("Gather", "shape zero", "count"),
            sg.node("Cast", "count", "number", to=sg.FLOAT),
            sg.node("Mul", "product number", "output"),
            zero=np.array(0),
        )
    )
    assert best.cause == "shape-specialization"
    assert "batch size 1" in best.culprit


@pytest.mark.parametrize("size", [1, 4])
def test_a_batch_size_written_into_the_graph(size):
    best = explained(candidate(sg.node("Reshape", "product shape", "output"), shape=np.array([size, 3])))
    assert best.cause == "fixed-batch"
    assert best.culprit == f"batch size {size} (Reshape (node 'node_output'))"


def test_a_batch_size_that_is_declared():
    proto = sg.graph(
        [sg.node("MatMul", "x w", "output")], {"w": WEIGHTS}, inputs={"x": (8,)}, output=("output", [4, 3])
    )
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    best = explained(proto)
    assert (best.cause, best.culprit) == ("fixed-batch", "batch size 4")
    assert data_only.check(sg.Function(times), proto, {"x": sg.rows()}, fixed_batch=True).passed


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


@pytest.mark.parametrize("length", [8, 16])
def test_a_length_written_into_the_graph(length):
    nodes = [sg.node("ReduceSum", "x axis", "total", keepdims=0), sg.node("Div", "total length", "output")]
    constants = {"axis": np.array([1]), "length": np.float32(length)}
    proto = sg.graph(nodes, constants, inputs={"x": ("steps", 3)}, output=("output", ["n", 3]))
    data = {"x": np.random.default_rng(0).normal(size=(64, 12, 3)).astype(np.float32)}
    best = sg.explained(Mean(), proto, data)
    assert best.cause == "shape-specialization"
    assert f"length {length}" in best.culprit


def test_a_model_that_takes_any_batch_passes():
    proto = sg.graph(
        [sg.node("MatMul", "x w", "output")], {"w": WEIGHTS}, inputs={"x": (8,)}, output=("output", ["n", 3])
    )
    assert data_only.explain(sg.Function(times), proto, {"x": sg.rows()}, batch_sizes=None).diagnoses == ()


def test_integers_scaled_by_the_rows_of_a_call():
    """Dynamic INT8 answers a row by the range of all rows that it is asked about with."""
    nodes = [
        sg.node("DynamicQuantizeLinear", "x", "q scale zero"),
        sg.node("MatMulInteger", "q w zero", "sums"),
        sg.node("Cast", "sums", "numbers", to=sg.FLOAT),
        sg.node("Mul", "numbers scale", "output"),
    ]
    weights = np.random.default_rng(1).integers(0, 100, size=(8, 3)).astype(np.uint8)
    proto = sg.graph(nodes, {"w": weights}, inputs={"x": (8,)}, output=("output", ["n", 3]))
    rows = sg.rows()
    # What it answers to all rows at once: at another size it answers otherwise, and nothing that stays can be like it.
    (whole,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": rows})
    place = {row.tobytes(): number for number, row in enumerate(rows)}
    steady = sg.Function(lambda x: torch.from_numpy(whole[[place[row.tobytes()] for row in x.numpy()]]))
    best = sg.explained(steady, proto, {"x": rows}, batch_sizes=None)
    assert best.cause == "batch-dependence"
    assert "DynamicQuantizeLinear" in best.culprit
