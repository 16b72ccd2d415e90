"""Integers instead of floats: which activation or weight costs what, and what is the processor's doing."""

from __future__ import annotations

import contextlib
import io
import logging
from functools import cache

import numpy as np
import onnx
import pytest
import small_graphs as sg
from onnx import numpy_helper

import data_only
import likewise
from likewise.explain.probes.quantization import Quantized
from likewise.models.onnx.quantized import miscounted

ROWS = {"x": sg.rows()}


class _Calibration:
    def __init__(self, rows):
        self._batches = iter([{"x": rows[start : start + 50]} for start in range(0, len(rows), 50)])

    def get_next(self):
        return next(self._batches, None)


@cache
def quantized(how, *, reduce_range=True):
    return quantized_graph(sg.exported_network(), how, ROWS["x"][:200], reduce_range=reduce_range)


def quantized_graph(proto, how, rows, *, reduce_range=True):
    """A network quantised by ONNX Runtime's own tools."""
    import tempfile
    from pathlib import Path

    from onnxruntime.quantization import QuantFormat, quantize_dynamic, quantize_static

    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        source, target = Path(folder) / "float.onnx", Path(folder) / "integer.onnx"
        onnx.save(proto, source)
        if how == "dynamic":
            quantize_dynamic(source, target, reduce_range=reduce_range)
        else:
            form = QuantFormat.QDQ if how == "qdq" else QuantFormat.QOperator
            quantize_static(source, target, _Calibration(rows), quant_format=form, reduce_range=reduce_range)
        logging.disable(logging.NOTSET)
        return onnx.load(target)


def with_scale(proto, name, factor):
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    tensor = next(tensor for tensor in changed.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array((numpy_helper.to_array(tensor) * factor).astype(np.float32), name))
    return changed


@pytest.mark.parametrize("how", ["dynamic", "qdq", "qoperator"])
def test_a_quantised_network_held_to_the_limits_of_a_faithful_export(how):
    best = sg.explained(sg.network(), quantized(how), ROWS)
    assert (best.cause, best.culprit) == ("quantization", "model")
    assert best.explained_share == 1


@pytest.mark.parametrize(
    ("how", "scale", "factor", "culprit"),
    [
        ("qdq", "relu_scale", 0.2, "'relu'"),
        ("qdq", "head.weight_scale", 1.5, "head.weight"),
        ("qoperator", "x_scale", 0.2, "'x'"),
        ("qoperator", "head.weight_scale", 1.5, "head.weight"),
    ],
)
def test_a_wrong_scale_is_found(how, scale, factor, culprit):
    best = sg.explained(sg.network(), with_scale(quantized(how), scale, factor), ROWS, preset="quantized")
    # The weights of a graph in this form can be compared as well: there the scale makes other weights of them.
    assert best.cause in ("quantization", "weight-corruption")
    assert culprit in best.culprit


def edited(proto, edit):
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    edit({tensor.name: tensor for tensor in changed.graph.initializer}, changed.graph)
    return changed


def read_shifted(stored, graph):
    """Only who reads the integers takes another one for zero."""
    node = next(
        node for node in graph.node if node.op_type == "DequantizeLinear" and node.input[0].startswith("relu_Q")
    )
    zero = numpy_helper.to_array(stored[node.input[2]])
    graph.initializer.append(numpy_helper.from_array(np.asarray(zero + 40, zero.dtype), "shifted"))
    node.input[2] = "shifted"


def rolled(name):
    def edit(stored, graph):
        values = numpy_helper.to_array(stored[name])
        stored[name].CopyFrom(numpy_helper.from_array(np.roll(values, 1, -1), name))

    return edit


@pytest.mark.parametrize(
    ("how", "edit", "cause", "culprit", "told"),
    [
        ("qdq", read_shifted, "quantization", "'relu'", "'relu' is written with scale"),
        ("qoperator", rolled("fc2.weight_quantized"), "weight-corruption", "fc2.weight", "are not roundings of"),
    ],
)
def test_what_is_wrong_at_a_place_is_told(how, edit, cause, culprit, told):
    best = sg.explained(sg.network(), edited(quantized(how), edit), ROWS, preset="quantized")
    assert best.cause == cause
    assert culprit in best.culprit
    assert told in best.evidence
    assert "in floats, all " in best.evidence


def test_values_that_are_cut_off_are_counted():
    narrow = with_scale(quantized("qdq"), "relu_scale", 0.2)
    best = sg.explained(sg.network(), narrow, ROWS, preset="quantized")
    scale = next(tensor for tensor in narrow.graph.initializer if tensor.name == "relu_scale")
    assert "of the values of 'relu' are cut off" in best.evidence
    assert f"and its scale {255 * float(numpy_helper.to_array(scale)):.4g}" in best.evidence


def test_weights_that_are_taken_for_others_do_not_hide_what_is_cut_off(monkeypatch):
    """Of layers of one shape, folded by an exporter, the reference's may not be told apart."""

    def exchanged(graph, arrays):
        graph.restored = {name: weight.values[::-1].copy() for name, weight in graph.weights.items()}

    monkeypatch.setattr(Quantized, "restore", exchanged)
    best = sg.explained(sg.network(), with_scale(quantized("qdq"), "relu_scale", 0.2), ROWS, preset="quantized")
    assert best.cause == "quantization"
    assert "of the values of 'relu' are cut off" in best.evidence


def test_a_bias_in_other_steps_than_its_operator_counts_in_is_seen():
    """Kernels on integers take the step of a bias to be the product of the two others."""
    sound, wrong = quantized("qdq"), with_scale(quantized("qdq"), "relu_scale", 0.2)
    assert miscounted(sound) == []
    assert [node.name for node in miscounted(wrong)] == ["node_linear_1"]


def test_a_table_that_is_looked_up_as_integers_is_a_weight():
    table = np.random.default_rng(3).integers(-100, 100, (12, 4)).astype(np.int8)
    nodes = [
        sg.node("Gather", "table x", "rows"),
        sg.node("DequantizeLinear", "rows scale zero", "output"),
    ]
    constants = {"table": table, "scale": np.float32(0.02), "zero": np.int8(0)}
    kinds = (sg.INT64, sg.FLOAT)
    candidate = sg.graph(nodes, constants, inputs={"x": ()}, output=("output", ["n", 4]), kinds=kinds)
    right = sg.graph(
        [sg.node("Gather", "table x", "output")], {"table": np.roll(table, 1, 0) * np.float32(0.02)},
        inputs={"x": ()}, output=("output", ["n", 4]), kinds=kinds,
    )  # fmt: skip
    best = sg.explained(right, candidate, {"x": np.random.default_rng(5).integers(0, 12, 60)})
    assert best.cause in ("weight-corruption", "quantization")
    assert "table" in best.culprit


def test_the_scale_of_an_lstm_is_found(tmp_path):
    from onnxruntime.quantization import quantize_dynamic

    rng = np.random.default_rng(4)
    constants = {"W": rng.normal(size=(1, 24, 5)), "R": rng.normal(size=(1, 24, 6)), "shape": np.array([0, -1])}
    constants = {name: a if name == "shape" else (a * 0.4).astype(np.float32) for name, a in constants.items()}
    nodes = [
        sg.node("Transpose", "x", "steps", perm=[1, 0, 2]),
        sg.node("LSTM", "steps W R", "states last", hidden_size=6),
        sg.node("Transpose", "last", "turned", perm=[1, 0, 2]),
        sg.node("Reshape", "turned shape", "output"),
    ]
    reference = sg.graph(nodes, constants, inputs={"x": (7, 5)}, output=("output", ["n", 6]))
    onnx.save(reference, tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "integer.onnx")
    candidate = with_scale(onnx.load(tmp_path / "integer.onnx"), "R_scale", 1.5)
    rows = {"x": rng.normal(size=(80, 7, 5)).astype(np.float32)}
    best = sg.explained(reference, candidate, rows, preset="quantized")
    assert best.culprit.startswith("R ")
    assert "is 1.5 times the reference's: its scale is wrong" in best.evidence


def test_a_good_quantisation_passes_under_its_own_limits():
    assert data_only.explain(sg.network(), quantized("qdq"), ROWS, preset="quantized").diagnoses == ()


def test_it_works_with_recorded_answers_alone(tmp_path):
    likewise.record(sg.network(), ROWS, tmp_path / "golden.parquet")
    best = sg.explained(str(tmp_path / "golden.parquet"), quantized("qdq"), ROWS)
    assert best.cause == "quantization"


def test_weights_packed_into_four_bits():
    """Weights only, eight to a block: what MatMulNBits multiplies with."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(32, 16)).astype(np.float32)
    blocks = weights.T.reshape(16, 1, 32)
    scales = np.abs(blocks).max(-1, keepdims=True) / 7
    numbers = (np.round(blocks / scales) + 8).clip(0, 15).astype(np.uint8)
    packed = (numbers[..., 0::2] | (numbers[..., 1::2] << 4)).astype(np.uint8)
    constants = {"packed": packed, "scales": scales.reshape(-1).astype(np.float32)}
    attributes = {"K": 32, "N": 16, "bits": 4, "block_size": 32, "domain": "com.microsoft"}
    candidate = sg.graph(
        [sg.node("MatMulNBits", "x packed scales", "output", **attributes)],
        constants,
        inputs={"x": (32,)},
        output=("output", ["n", 16]),
    )
    reference = sg.graph(
        [sg.node("MatMul", "x w", "output")], {"w": weights}, inputs={"x": (32,)}, output=("output", ["n", 16])
    )
    best = sg.explained(reference, candidate, {"x": sg.rows(width=32)})
    assert best.cause == "quantization"


def convolving(end):
    """Convolutions with a Relu or a Clip behind, which quantisers leave out, and `end` nodes behind them."""
    draw = np.random.default_rng(5)
    sizes = {"w1": (6, 3, 3, 3), "w2": (6, 6, 3, 3), "w3": (6, 6, 3, 3), "w4": (6, 6)}
    stored = {name: (draw.normal(size=size) / np.sqrt(size[1])).astype(np.float32) for name, size in sizes.items()}
    stored |= {name: np.array(value, np.float32) for name, value in {"low": 0, "high": 6, "large": 50}.items()}
    nodes = []
    for number, activation in enumerate(("Relu", "Clip", "HardSwish"), 1):
        before = "x" if number == 1 else f"a{number - 1}"
        nodes.append(onnx.helper.make_node("Conv", [before, f"w{number}"], [f"c{number}"], f"conv{number}"))
        limits = ["low", "high"] if activation == "Clip" else []
        nodes.append(onnx.helper.make_node(activation, [f"c{number}", *limits], [f"a{number}"], f"act{number}"))
    nodes += [
        onnx.helper.make_node("GlobalAveragePool", ["a3"], ["pooled"], "pool"),
        onnx.helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        onnx.helper.make_node("MatMul", ["flat", "w4"], ["scores"], "head"),
        *end,
    ]
    given = onnx.helper.make_tensor_value_info("x", 1, ["n", 3, 10, 10])
    made = onnx.helper.make_tensor_value_info(nodes[-1].output[0], 1, ["n", None])
    arrays = [numpy_helper.from_array(values, name) for name, values in stored.items()]
    graph = onnx.helper.make_graph(nodes, "convolving", [given], [made], arrays)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)


def pictures():
    return np.random.default_rng(6).normal(size=(60, 3, 10, 10)).astype(np.float32)


@pytest.mark.parametrize("how", ["qdq", "qoperator"])
def test_ranges_of_other_rows_are_told_although_no_input_was_negative_there(how):
    plain = convolving([])
    tame = quantized_graph(plain, how, np.abs(pictures()) * np.float32(0.1))
    best = sg.explained(plain, tame, {"x": pictures()}, preset="quantized")
    assert (best.cause, best.explained_share) == ("quantization", 1)
    assert "calibrated on tamer rows" in best.evidence
    assert "--calibrate" in best.remedy


def test_channels_that_become_zero_beside_large_ones_are_told():
    large = onnx.helper.make_node("Mul", ["scores", "large"], ["boxes"], "boxes")
    small = onnx.helper.make_node("Sigmoid", ["scores"], ["shares"], "shares")
    both = onnx.helper.make_node("Concat", ["boxes", "shares"], ["y"], "both", axis=1)
    plain = convolving([large, small, both])
    best = sg.explained(plain, quantized_graph(plain, "qdq", pictures()), {"x": pictures()})
    assert best.cause == "quantization"
    assert "of 12 channels become zero" in best.evidence
    assert "--exclude both" in best.remedy
