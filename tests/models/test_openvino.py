"""A second runtime is one file: OpenVINO answers like the model it was converted from, or is caught."""

from __future__ import annotations

import sys

import numpy as np
import openvino as ov
import pytest
from test_onnx_pairs import WEIGHTS, X, bfloat16, by_hand, columns_first, network, quantized, said

import data_only
from likewise.contracts.data import Batch, RowIds
from likewise.contracts.models import Kind, Model
from likewise.data.columns import ArrayColumns
from likewise.errors import MissingExtraError, ModelError, UsageError
from likewise.registry import adapter, describe_model

ONE_THREAD = {"framework": "openvino", "threads": "1"}


def stored(folder, proto, name="model"):
    """The graph as OpenVINO keeps it: an .xml beside a .bin."""
    path = folder / f"{name}.xml"
    ov.save_model(ov.Core().read_model(proto.SerializeToString(), b""), path, compress_to_fp16=False)
    return path


def opened(target, **options):
    return adapter("openvino").open(Model("openvino", target, options))


def test_its_own_files_agree_with_onnx_runtime_and_with_figures_by_hand(tmp_path):
    path = stored(tmp_path, network())
    report = data_only.check(network(), path, X, candidate_options={"threads": 1})
    assert report.passed, said(report)
    assert report.origin.candidate.kind == "openvino"
    assert {o.name: o.pair.kind for o in report.comparison.outputs} == {
        "logits": Kind.SCORE,
        "probabilities": Kind.PROBABILITY,
    }
    expected = by_hand()
    with opened(path, threads=1) as runner:
        found = runner.run(Batch(RowIds(np.arange(len(X))), ArrayColumns({"x": X})))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)


@pytest.mark.parametrize("form", ["path", "bytes", "proto"])
def test_an_onnx_file_is_run_by_openvino_on_request(tmp_path, form):
    proto = network()
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    target = {"path": tmp_path / "m.onnx", "bytes": proto.SerializeToString(), "proto": proto}[form]
    report = data_only.check(proto, target, X, candidate_options=ONE_THREAD)
    assert report.passed, said(report)
    assert report.origin.candidate.details["device"] == "CPU"


@pytest.mark.parametrize(
    "fault", [{"weights": {**WEIGHTS, "b1": WEIGHTS["b1"] + 0.05}}, {"swapped": True}, {"axis": 0}]
)
def test_a_planted_fault_fails(tmp_path, fault):
    report = data_only.check(network(), stored(tmp_path, network(**fault)), X, candidate_options={"threads": 1})
    assert report.outcome == "FAIL"


def test_quantised_graphs_are_run(tmp_path):
    path = quantized(tmp_path)
    options = {"candidate_options": ONE_THREAD, "preset": "quantized", "ignore": ("logits",)}
    report = data_only.check(network(), path, X, **options)
    assert report.passed, said(report)


def test_bfloat16_is_fed():
    report = data_only.check(bfloat16(), bfloat16(), X, candidate_options=ONE_THREAD)
    assert report.passed, said(report)


@pytest.mark.parametrize("axis", [1, "1", {"x": 1, "y": 1, "s": 1}])
def test_rows_may_lie_along_another_axis(tmp_path, axis):
    path = stored(tmp_path, columns_first())
    with opened(path, batch_axis=axis, threads=1) as runner:
        assert runner.signature.inputs[0].shape == (None, 6)
        found = runner.run(Batch(RowIds(np.arange(len(X))), ArrayColumns({"x": X})))
    np.testing.assert_array_equal(found["y"], 2 * X)
    np.testing.assert_allclose(found["s"], X.sum(axis=1, keepdims=True), atol=1e-5)
    report = data_only.check(columns_first(), path, X, batch_axis=axis, candidate_options={"threads": 1})
    assert report.passed, said(report)
    assert report.samples == len(X)
    own = {"candidate_options": {"threads": 1, "batch_axis": 0}}
    assert not data_only.check(columns_first(), path, X, batch_axis=axis, **own).passed


def test_an_onnx_file_that_calls_an_axis_the_batch_is_understood():
    report = data_only.check(columns_first("batch"), columns_first("batch"), X, candidate_options=ONE_THREAD)
    assert report.passed, said(report)


def test_an_xml_is_claimed_only_beside_its_weights(tmp_path):
    path = stored(tmp_path, network())
    assert describe_model(str(path)).framework == "openvino"
    path.with_suffix(".bin").unlink()
    with pytest.raises(ModelError, match="no framework recognises"):
        describe_model(str(path))


@pytest.mark.parametrize("content", [b"", b"<net/>", b"\x89PNG\r\n\x1a\n", b"not a model"])
def test_a_file_of_another_kind_is_one_line(tmp_path, content):
    path = tmp_path / "model.xml"
    path.write_bytes(content)
    path.with_suffix(".bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"model\.xml") as caught, opened(path):
        pass
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_and_an_unknown_option_are_said():
    with pytest.raises(ModelError, match=r"there is no file gone\.xml"), opened("gone.xml"):
        pass
    with pytest.raises(UsageError, match="did you mean 'device'"), opened("gone.xml", devise="CPU"):
        pass
    with pytest.raises(ModelError, match=r"Known frameworks: .*openvino"):
        describe_model("m.onnx", {"framework": "openvno"})


def test_without_openvino_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'likewise\[openvino\]'"), opened("m.xml"):
        pass
