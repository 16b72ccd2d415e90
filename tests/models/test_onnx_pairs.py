"""ONNX against ONNX: before and after an optimiser, a converter or a quantiser, and under another runtime."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, version_converter

import data_only
from likewise.contracts.data import Batch, RowIds
from likewise.contracts.models import Model
from likewise.data.columns import ArrayColumns
from likewise.errors import ModelError, UsageError
from likewise.registry import adapter
from planting import here

RNG = np.random.default_rng(5)
X = RNG.normal(size=(120, 6)).astype(np.float32)
WEIGHTS = {
    "w1": RNG.normal(size=(6, 16)).astype(np.float32),
    "b1": RNG.normal(size=16).astype(np.float32),
    "w2": (RNG.normal(size=(16, 3)) / 4).astype(np.float32),
}


def network(*, opset=18, weights=WEIGHTS, axis=1, swapped=False, outputs=("logits", "probabilities"), dtype=None):
    """A small classifier; the options plant faults."""
    dtype = dtype or TensorProto.FLOAT
    last, first = outputs[0], ["h", "c"]
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["a"]),
        helper.make_node("Relu", ["a"], ["h"]),
        helper.make_node("Sub", first[::-1] if swapped else first, ["d"]),
        helper.make_node("MatMul", ["d", "w2"], [last]),
    ]
    if len(outputs) > 1:
        nodes.append(helper.make_node("Softmax", [last], [outputs[1]], axis=axis))
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, ["n", 6])],
        [helper.make_tensor_value_info(name, dtype, ["n", 3]) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in {**weights, "c": np.float32([0.5])}.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def columns_first(axis="n"):
    """A model of (feature, batch): it doubles what it is given, and adds each row up."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["y"]),
        helper.make_node("ReduceSum", ["x", "zero"], ["s"], keepdims=1),
    ]
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, axis])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, axis]) for name, size in (("y", 6), ("s", 1))],
        [numpy_helper.from_array(np.int64([0]), "zero")],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def half():
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constants too small for half precision are the converter's news
        return convert_float_to_float16(network())


def quantized(tmp_path):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    onnx.save(network(), tmp_path / "float.onnx")
    # Unsigned weights: without VNNI the products of signed ones may saturate.
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "int8.onnx", weight_type=QuantType.QUInt8)
    return tmp_path / "int8.onnx"


def said(report):
    return " | ".join(f"{f.code}: {f.message}. {f.remedy}" for f in report.verdict.findings)


def by_hand(x=X):
    """The network in float64, without any library for networks."""
    hidden = np.maximum(x.astype(np.float64) @ WEIGHTS["w1"] + WEIGHTS["b1"], 0) - 0.5
    logits = hidden @ WEIGHTS["w2"].astype(np.float64)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return {"logits": logits, "probabilities": powers / powers.sum(1, keepdims=True)}


@pytest.mark.parametrize("options", [{}, {"optimization": "disable"}, {"runtime": "reference"}])
def test_every_runtime_agrees_with_figures_by_hand(options):
    expected = by_hand()
    report = data_only.check(
        lambda array: {name: values[: len(array)] for name, values in expected.items()},
        network(),
        X,
        candidate_options=options,
        batch_sizes=(),
    )
    assert report.passed, said(report)


def test_a_graph_passes_with_and_without_optimisation():
    report = data_only.check(
        network(),
        network(),
        X,
        reference_options={"optimization": "disable"},
        candidate_options={"optimization": "all"},
    )
    assert report.passed, said(report)
    assert report.origin.reference.details["optimization"] == "disable"


def test_the_reference_evaluator_is_an_independent_oracle(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(network(), path, save_as_external_data=True, location="m.bin", size_threshold=0)
    report = data_only.check(path, path, X, reference_options={"runtime": "reference"})
    assert report.passed, said(report)
    assert report.origin.reference.details["runtime"] == "reference"
    assert "onnxruntime" in report.origin.candidate.details


@pytest.mark.parametrize(
    "fault",
    [
        {"weights": {**WEIGHTS, "w2": WEIGHTS["w2"] * np.float32(1.02)}},
        {"swapped": True},
        {"axis": 0},
    ],
    ids=["changed weight", "swapped inputs of Sub", "wrong axis of Softmax"],
)
@pytest.mark.parametrize("runtime", ["onnxruntime", "reference"])
def test_a_planted_fault_fails_under_every_runtime(fault, runtime):
    report = data_only.check(network(), network(**fault), X, reference_options={"runtime": runtime})
    assert report.outcome == "FAIL", said(report)


def test_a_missing_output_does_not_pass():
    report = data_only.check(network(), network(outputs=("logits",)), X)
    assert report.outcome == "INCONCLUSIVE"
    assert "output 'probabilities' of the reference" in said(report)
    assert data_only.check(network(), network(outputs=("logits",)), X, ignore=("probabilities",)).passed


def test_an_output_too_many_fails():
    assert data_only.check(network(outputs=("logits",)), network(), X).outcome == "FAIL"


def test_renamed_outputs_are_matched_by_meaning_and_it_says_how():
    report = data_only.check(network(), network(outputs=("output_0", "output_1")), X)
    assert report.passed, said(report)
    found = {o.pair.reference: (o.pair.candidate, o.pair.matched_by) for o in report.comparison.outputs}
    assert found == {"probabilities": ("output_1", "kind"), "logits": ("output_0", "shape")}


def test_renamed_outputs_that_cannot_be_told_apart_are_asked_about():
    twins = [
        helper.make_graph(
            [helper.make_node("Identity", ["x"], [one]), helper.make_node("Neg", ["x"], [other])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 6]) for name in (one, other)],
        )
        for one, other in (("left", "right"), ("first", "second"))
    ]
    models = [helper.make_model(g, opset_imports=[helper.make_opsetid("", 18)], ir_version=8) for g in twins]
    assert data_only.check(*models, X).outcome == "INCONCLUSIVE"
    assert data_only.check(*models, X, pair={"first": "left", "second": "right"}).passed
    assert data_only.check(*models, X, pair={"first": "right", "second": "left"}).outcome == "FAIL"


def test_an_older_opset_converted_to_a_newer_passes():
    old = network(opset=13)
    new = version_converter.convert_version(old, 18)
    report = data_only.check(old, new, X)
    assert report.passed, said(report)
    opsets = (report.origin.reference.details["opsets"], report.origin.candidate.details["opsets"])
    assert opsets == ({"ai.onnx": 13}, {"ai.onnx": 18})


def test_half_precision_is_judged_by_the_limits_it_deserves():
    converted = half()
    assert converted.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    report = data_only.check(network(), converted, X)
    assert report.outcome == "FAIL"
    assert {cast.target_dtype for cast in report.comparison.casts} == {"float16"}
    assert data_only.check(network(), converted, X, abs_tol=0.02, rel_tol=0.02).passed
    # Against the oracle in half precision, the same graph differs by its own rounding only.
    assert data_only.check(converted, converted, X, abs_tol=0.02, reference_options={"runtime": "reference"}).passed


def test_int8_needs_its_own_preset(tmp_path):
    path = quantized(tmp_path)
    report = data_only.check(network(), path, X)
    assert report.outcome == "FAIL"
    assert "--preset quantized" in said(report)
    probabilities = data_only.check(network(), path, X, preset="quantized", ignore=("logits",))
    assert probabilities.passed, said(probabilities)


def bfloat16(*, factor=2.0):
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "factor"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["y"], to=TensorProto.BFLOAT16),
    ]
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, ["n", 6])],
        [numpy_helper.from_array(np.float32(factor), "factor")],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("runtime", ["onnxruntime", "reference"])
def test_bfloat16_goes_in_and_comes_out(runtime):
    import ml_dtypes

    expected = (X.astype(ml_dtypes.bfloat16).astype(np.float32) * 2).astype(ml_dtypes.bfloat16).astype(np.float32)
    options = {"candidate_options": {"runtime": runtime}, "preset": "exact", "batch_sizes": ()}
    report = data_only.check(lambda array: expected[: len(array)], bfloat16(), X, **options)
    assert report.passed, said(report)
    (cast,) = report.comparison.casts
    assert (cast.target_dtype, cast.changed) == ("bfloat16", int((X.astype(ml_dtypes.bfloat16) != X).sum()))
    assert data_only.check(lambda a: expected[: len(a)], bfloat16(factor=2.1), X, **options).outcome == "FAIL"


def test_no_rows_of_bfloat16_are_no_rows():
    empty = Batch(RowIds(np.arange(0)), ArrayColumns({"x": X[:0].astype("bfloat16")}))
    with adapter("onnx").open(Model("onnx", bfloat16())) as runner:
        assert runner.run(empty)["y"].shape == (0, 6)


def test_an_unknown_runtime_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"'tensorrt'.*onnxruntime, reference"):
        adapter("onnx").open(Model("onnx", network(), {"runtime": "tensorrt"})).__enter__()
    with pytest.raises(UsageError, match=r"'threads' with runtime reference"):
        adapter("onnx").open(Model("onnx", network(), {"runtime": "reference", "threads": 1})).__enter__()


def test_an_operator_the_oracle_does_not_know_is_one_line():
    node = helper.make_node("Mystery", ["x"], ["y"], domain="com.example")
    made = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.example", 1)]
    proto = helper.make_model(made, opset_imports=opsets, ir_version=8)
    with pytest.raises(ModelError, match="reference evaluator cannot load"):
        adapter("onnx").open(Model("onnx", proto, {"runtime": "reference"})).__enter__()


def test_an_axis_called_n_behind_an_unnamed_one_holds_no_rows():
    node = helper.make_node("Relu", ["x"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["s0", "N", 3]) for name in ("x", "y")]
    made = helper.make_graph([node], "g", values[:1], values[1:])
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    data = RNG.normal(size=(40, 7, 3)).astype(np.float32)
    assert data_only.check(lambda array: np.maximum(array, 0), proto, {"x": data}, preset="exact").passed


@pytest.mark.parametrize("name", ["batch", "batch_size", "N"])
def test_an_axis_called_batch_holds_the_rows_wherever_it_is(name):
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)
    made = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["time", name, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, name, 3])],
        [numpy_helper.from_array(np.array([0]), "axes")],
    )
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    data = RNG.normal(size=(40, 7, 3)).astype(np.float32)
    report = data_only.check(lambda array: array.sum(1, keepdims=True), proto, {"x": data})
    assert report.passed, said(report)
    assert {size.size for size in report.comparison.batch_sizes} >= {1, 2, 3, 4, 7, 8, 9, 31, 32}


# Rows along another axis


@pytest.mark.parametrize("runtime", ["onnxruntime", "reference"])
def test_the_axis_of_the_rows_is_said_once_for_both_models(runtime):
    wrong = network(outputs=("y",))
    options = {"candidate_options": {"runtime": runtime}}
    report = data_only.check(columns_first(), columns_first(), X, batch_axis=1, **options)
    assert report.passed, said(report)
    assert report.samples == len(X)
    assert not data_only.check(columns_first(), wrong, X, batch_axis={"x": 1}, ignore=("s",), **options).passed


def test_every_command_takes_the_axis(tmp_path):
    onnx.save(columns_first(), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", X)
    model, golden = str(tmp_path / "m.onnx"), str(tmp_path / "golden.parquet")
    data, report = ["--data", str(tmp_path / "x.npy")], ["--report", str(tmp_path / "report.json"), *data_only.FLAGS]

    def run(*words, axis="1"):
        done = here(*words, "--batch-axis", axis, folder=tmp_path)
        return done.stdout + done.stderr

    assert "PASS" in run("check", model, model, "--allow-same", *data, *report)
    assert "x  float32 (n, 6)" in run("inspect", model)
    assert "120 rows" in run("record", model, *data, "-o", golden)
    assert "PASS" in run("check", golden, model, *data, *report, axis="x:1,y:1,s:1")
    assert "rows/s" in run("bench", model, model, *data, "--budget", "0.2s", "--batch-sizes", "4", "--quiet")
    assert "batch_axis is 'second'" in run("check", model, model, "--allow-same", *data, *report, axis="second")
    (tmp_path / "likewise.toml").write_text(
        f"[gates.one]\nreference = {model!r}\ncandidate = {model!r}\ndata = {data[1]!r}\nbatch_axis = {{x = 1}}\n"
        'allow_same = true\nedge = "off"\n'
    )
    here("check", "--config", tmp_path / "likewise.toml", folder=tmp_path).expect(0)
