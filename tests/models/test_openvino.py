"""A second runtime is one file: OpenVINO answers like the model it was converted from, or is caught."""

from __future__ import annotations

import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import openvino as ov
import pytest
from test_onnx_pairs import WEIGHTS, X, bfloat16, by_hand, columns_first, network, quantized, said

import data_only
import likewise
from likewise.contracts.data import Batch, RowIds
from likewise.contracts.models import Kind, Model
from likewise.data.columns import ArrayColumns
from likewise.errors import MissingExtraError, ModelError, UsageError
from likewise.registry import adapter, describe_model
from likewise.report.formats.json import digest_of
from likewise.report.formats.statement import StatementRenderer
from planting import here

FLOAT = {"threads": 1, "precision": "f32"}
"""Processors that have bfloat16 compute in that, unless OpenVINO is told otherwise."""

ON_REQUEST = {"framework": "openvino", **FLOAT}


def stored(folder, proto, name="model"):
    """The graph as OpenVINO keeps it: an .xml beside a .bin."""
    path = folder / f"{name}.xml"
    ov.save_model(ov.Core().read_model(proto.SerializeToString(), b""), path, compress_to_fp16=False)
    return path


def opened(target, **options):
    return adapter("openvino").open(Model("openvino", target, options))


def test_its_own_files_agree_with_onnx_runtime_and_with_figures_by_hand(tmp_path):
    path = stored(tmp_path, network())
    report = data_only.check(network(), path, X, candidate_options=FLOAT)
    assert report.passed, said(report)
    assert report.origin.candidate.kind == "openvino"
    assert {o.name: o.pair.kind for o in report.comparison.outputs} == {
        "logits": Kind.SCORE,
        "probabilities": Kind.PROBABILITY,
    }
    expected = by_hand()
    with opened(path, **FLOAT) as runner:
        found = runner.run(Batch(RowIds(np.arange(len(X))), ArrayColumns({"x": X})))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)


@pytest.mark.parametrize("form", ["path", "bytes", "proto"])
def test_an_onnx_file_is_run_by_openvino_on_request(tmp_path, form):
    proto = network()
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    target = {"path": tmp_path / "m.onnx", "bytes": proto.SerializeToString(), "proto": proto}[form]
    report = data_only.check(proto, target, X, candidate_options=ON_REQUEST)
    assert report.passed, said(report)
    assert report.origin.candidate.details["device"] == "CPU"


@pytest.mark.parametrize(
    "fault", [{"weights": {**WEIGHTS, "b1": WEIGHTS["b1"] + 0.05}}, {"swapped": True}, {"axis": 0}]
)
def test_a_planted_fault_fails(tmp_path, fault):
    report = data_only.check(network(), stored(tmp_path, network(**fault)), X, candidate_options=FLOAT)
    assert report.outcome == "FAIL"


def test_quantised_graphs_are_run(tmp_path):
    path = quantized(tmp_path)
    options = {"candidate_options": ON_REQUEST, "preset": "quantized", "ignore": ("logits",)}
    report = data_only.check(network(), path, X, **options)
    assert report.passed, said(report)


def test_bfloat16_is_fed():
    report = data_only.check(bfloat16(), bfloat16(), X, candidate_options=ON_REQUEST)
    assert report.passed, said(report)


@pytest.mark.parametrize("axis", [1, "1", {"x": 1, "y": 1, "s": 1}])
def test_rows_may_lie_along_another_axis(tmp_path, axis):
    path = stored(tmp_path, columns_first())
    with opened(path, batch_axis=axis, **FLOAT) as runner:
        assert runner.signature.inputs[0].shape == (None, 6)
        found = runner.run(Batch(RowIds(np.arange(len(X))), ArrayColumns({"x": X})))
    np.testing.assert_array_equal(found["y"], 2 * X)
    np.testing.assert_allclose(found["s"], X.sum(axis=1, keepdims=True), atol=1e-5)
    report = data_only.check(columns_first(), path, X, batch_axis=axis, candidate_options=FLOAT)
    assert report.passed, said(report)
    assert report.samples == len(X)
    own = {"candidate_options": {**FLOAT, "batch_axis": 0}}
    assert not data_only.check(columns_first(), path, X, batch_axis=axis, **own).passed


def test_an_onnx_file_that_calls_an_axis_the_batch_is_understood():
    report = data_only.check(columns_first("batch"), columns_first("batch"), X, candidate_options=ON_REQUEST)
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


def weighed(folder):
    """A graph with its weights beside it, in OpenVINO's own format and in ONNX's."""
    onnx.save(network(), folder / "m.onnx", save_as_external_data=True, location="m.weights", size_threshold=0)
    np.savez(folder / "rows.npz", x=X)
    return {"model.xml": stored(folder, network()).with_suffix(".bin"), "m.onnx": folder / "m.weights"}


@pytest.mark.parametrize("name", ["model.xml", "m.onnx"])
def test_a_report_belongs_to_the_weights_beside_the_graph(tmp_path, name):
    weights = weighed(tmp_path)[name]
    ref, path, rows = tmp_path / "ref.onnx", tmp_path / name, tmp_path / "rows.npz"
    onnx.save(network(), ref)
    made = tmp_path / "report.json"
    report = data_only.check(ref, path, rows, candidate_options=ON_REQUEST, report=made)
    assert report.passed, said(report)
    told = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert report.origin.candidate.details["external_data"] == {weights.name: told}
    stated = json.loads(StatementRenderer().render(report))
    assert told in {entry["digest"]["sha256"] for entry in stated["subject"]}
    assert likewise.verify(made, candidate=path).holds is True
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    found = likewise.verify(made, candidate=path)
    assert found.holds is False
    assert any("is not what the candidate of the report had its weights in" in point.told for point in found.points)


def test_a_report_that_names_no_weights_does_not_tell_whose_they_are(tmp_path):
    """One of an older likewise: the graph is the same, and that says nothing about the numbers in it."""
    weighed(tmp_path)
    path, made = tmp_path / "model.xml", tmp_path / "report.json"
    data_only.check(network(), path, X, candidate_options=FLOAT, report=made)
    old = json.loads(made.read_text())
    del old["provenance"]["candidate"]["details"]["external_data"]
    old["provenance"]["digest"] = ""
    made.write_text(json.dumps(old | {"provenance": old["provenance"] | {"digest": digest_of(old)}}))
    points = {point.about: point for point in likewise.verify(made, candidate=path).points}
    assert points["report"].holds
    assert points["candidate"].holds is None, points["candidate"].told


def test_the_weights_beside_a_graph_are_not_replaced_by_a_report(tmp_path):
    weights = weighed(tmp_path)["model.xml"]
    before = weights.read_bytes()
    told = here(
        "check", "m.onnx", "model.xml", "--data", "rows.npz", "--report", "model.bin", "--force", folder=tmp_path
    )
    told.expect(2, "it is the candidate of this run")
    assert weights.read_bytes() == before


def test_two_batches_asked_at_once_have_their_own_answers(tmp_path):
    rows = [np.full((512, X.shape[1]), value, np.float32) for value in (-1.0, 0.25, 1.0, 3.0)]
    batches = [Batch(RowIds(np.arange(512)), ArrayColumns({"x": values})) for values in rows]
    with opened(stored(tmp_path, network()), **FLOAT) as runner:
        alone = [runner.run(batch)["logits"] for batch in batches]
        with ThreadPoolExecutor(4) as threads:
            together = list(threads.map(lambda n: (n % 4, runner.run(batches[n % 4])["logits"]), range(400)))
    for which, found in together:
        np.testing.assert_array_equal(found, alone[which])
