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

ROWS = {"x": sg.rows()}


class _Calibration:
    def __init__(self):
        self._batches = iter([{"x": ROWS["x"][start : start + 50]} for start in range(0, 200, 50)])

    def get_next(self):
        return next(self._batches, None)


@cache
def quantized(how, *, reduce_range=True):
    """The network quantised by ONNX Runtime's own tools."""
    import tempfile
    from pathlib import Path

    from onnxruntime.quantization import QuantFormat, quantize_dynamic, quantize_static

    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        source, target = Path(folder) / "float.onnx", Path(folder) / "integer.onnx"
        onnx.save(sg.exported_network(), source)
        if how == "dynamic":
            quantize_dynamic(source, target, reduce_range=reduce_range)
        else:
            form = QuantFormat.QDQ if how == "qdq" else QuantFormat.QOperator
            quantize_static(source, target, _Calibration(), quant_format=form, reduce_range=reduce_range)
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
