"""Large weights stay in their files: graphs are read, copied, changed and run without a copy of them."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import data_only
from likewise.contracts.models import Model
from likewise.errors import ModelError
from likewise.models.onnx import describe, edits, grafts, inside, widen
from likewise.models.onnx.open import OrtSession

WIDTH, LAYERS = 160, 4
ROWS = np.random.default_rng(1).standard_normal((8, WIDTH)).astype(np.float32)


def network(change=None):
    draw, nodes, stored = np.random.default_rng(0), [], []
    for layer in range(LAYERS):
        weight = (draw.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32)
        if change is not None:
            change(layer, weight)
        bias = draw.standard_normal(WIDTH).astype(np.float32)
        stored += [numpy_helper.from_array(weight, f"layers.{layer}.weight")]
        stored += [numpy_helper.from_array(bias, f"layers.{layer}.bias")]
        given = f"layers.{layer - 1}.out" if layer else "x"
        nodes.append(helper.make_node("Gemm", [given, stored[-2].name, stored[-1].name], [f"sum{layer}"], transB=1))
        nodes.append(helper.make_node("Tanh", [f"sum{layer}"], [f"layers.{layer}.out"]))
    shape = ["N", WIDTH]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, shape)],
        stored,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def doubled(layer, weight):
    weight *= 2 if layer == 2 else 1


def by_hand(model):
    """What the network answers, in double."""
    held = {tensor.name: numpy_helper.to_array(tensor).astype(np.float64) for tensor in model.graph.initializer}
    values = ROWS.astype(np.float64)
    for layer in range(LAYERS):
        values = np.tanh(values @ held[f"layers.{layer}.weight"].T + held[f"layers.{layer}.bias"])
    return values


def saved(folder, model, *, beside):
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=beside, location="weights.bin", size_threshold=0)
    return path


@pytest.fixture(params=["beside the file", "in the file", "in the file again"])
def path(request, tmp_path, monkeypatch):
    monkeypatch.setattr(describe, "LARGE_FILE", 2**16)
    place = saved(tmp_path / "model", network(), beside=request.param != "in the file")
    if request.param == "in the file again":
        # Every tensor then says behind its values that they are in no other file.
        onnx.save(onnx.load(place), place)
    return place


def answered(target, **options):
    return OrtSession(Model("onnx", target, options)).run({"x": ROWS})[0]


def test_a_graph_is_read_without_its_large_weights_and_none_is_lost(path):
    found = describe.read(path)
    assert found.ByteSize() < 10_000
    assert describe.size(found) >= LAYERS * WIDTH * WIDTH * 4
    wanted, whole = onnx.load(path), describe.whole(found)
    for tensor in (*wanted.graph.initializer, *whole.graph.initializer):
        tensor.ClearField("data_location")
    assert whole == wanted
    arrays = edits.constants(found.graph)
    for tensor in network().graph.initializer:
        np.testing.assert_array_equal(arrays[tensor.name], numpy_helper.to_array(tensor))


def test_the_runtime_answers_to_the_bit_as_it_does_to_the_file(path):
    np.testing.assert_array_equal(answered(describe.read(path)), answered(path))


def test_a_weight_put_in_from_another_file_is_not_copied(path, tmp_path):
    other = saved(tmp_path / "other", network(doubled), beside=True)
    held = edits.constants(describe.read(other).graph)["layers.2.weight"]
    graph = describe.read(path)
    constant = next(entry for entry in inside.constants(graph) if entry.tensor == "layers.2.weight")
    changed = inside.with_values(graph, [(constant, held)])
    assert changed.ByteSize() < 10_000
    np.testing.assert_allclose(answered(changed), by_hand(network(doubled)), atol=1e-4)


def test_part_of_a_mapped_weight_is_not_taken_for_the_whole(path):
    graph = edits.editable(describe.read(path))
    held = edits.constants(graph.graph)["layers.1.weight"]
    edits.set_constant(graph.graph, "layers.1.weight", held[::-1].T)
    np.testing.assert_array_equal(edits.constants(graph.graph)["layers.1.weight"], np.array(held)[::-1].T)


def test_wider_numbers_do_not_ask_for_a_copy_of_the_weights(path):
    graph = edits.editable(describe.read(path))
    wide, _ = widen.runnable(graph, widen.Widening(edits.tensor_types(graph)))
    assert wide.ByteSize() < 20_000
    np.testing.assert_allclose(answered(wide), by_hand(onnx.load(path)), atol=1e-12)
    held = {name: (array, dtype) for name, array, dtype in widen.stored(wide)}
    assert held["layers.2.weight"][1] == np.float64
    edits.set_constant(wide.graph, "layers.2.weight", 2 * held["layers.2.weight"][0].astype(np.float64))
    np.testing.assert_allclose(answered(wide), by_hand(network(doubled)), atol=1e-12)


def test_what_the_runtime_makes_of_a_graph_keeps_its_weights_where_they_are(path):
    made = inside.rewritten(Model("onnx", path), edits.editable(describe.read(path)))
    assert "FusedGemm" in {node.op_type for node in made.graph.node}
    assert made.ByteSize() < 10_000
    np.testing.assert_array_equal(answered(made, optimization="disable"), answered(path))


def test_a_file_of_weights_that_ends_early_is_refused(tmp_path):
    path = saved(tmp_path / "model", network(), beside=True)
    weights = path.parent / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ModelError, match=r"ends before tensor 'layers\.3\.bias' does"):
        describe.read(path)


def test_a_damaged_row_of_a_large_model_is_named_without_a_copy_of_it(path, tmp_path, monkeypatch):
    def flipped(layer, weight):
        weight[17] *= -1 if layer == 2 else 1

    candidate = saved(tmp_path / "candidate", network(flipped), beside=(path.parent / "weights.bin").exists())
    handed_over = []

    def watched(proto, before=describe.serialised):
        handed_over.append(before(proto))
        return handed_over[-1]

    monkeypatch.setattr(describe, "serialised", watched)
    report = data_only.explain(str(path), str(candidate), {"x": ROWS})
    assert not report.comparison.same_bytes
    assert report.diagnoses[0].cause == "weight-corruption"
    assert report.diagnoses[0].culprit == "layers.2.weight (row 17)"
    assert report.diagnoses[0].explained_share == 1.0
    assert handed_over
    assert max(len(content) for content, _ in handed_over) < WIDTH * WIDTH * 4


def test_nodes_are_held_against_one_another_in_blocks_that_are_given_back(path, tmp_path, monkeypatch):
    def damaged(layer, weight):
        weight[40:44, 7] += 1.0 if layer == 2 else 0.0

    candidate = saved(tmp_path / "candidate", network(damaged), beside=(path.parent / "weights.bin").exists())
    graphs = [inside.Opened.of(describe.read(one), {}) for one in (candidate, path)]
    given_back = []
    monkeypatch.setattr(inside, "BLOCK", 1_000)
    monkeypatch.setattr(describe, "release", given_back.append)
    (found,) = grafts.differing(graphs[0], 4, graphs[1], 4, {"layers.1.out": ("layers.1.out",)})
    weight = numpy_helper.to_array(network().graph.initializer[4])
    was, entries = float(weight[40, 7]), weight.size
    assert found.told == f"'layers.2.weight'[40, 7] is {was + 1:.6g} instead of {was:.6g} and 3 more of {entries:,}"
    assert len(given_back) >= 2 * entries // 1_000
    assert not any(True for _ in grafts.differing(graphs[0], 2, graphs[1], 2, {"layers.0.out": ("layers.0.out",)}))


def test_weights_beside_a_file_are_part_of_the_model(tmp_path):
    one = saved(tmp_path / "one", network(), beside=True)
    copy = saved(tmp_path / "copy", network(), beside=True)
    report = data_only.check(str(one), str(copy), {"x": ROWS})
    weights = (tmp_path / "copy" / "weights.bin").read_bytes()
    assert report.comparison.same_bytes
    assert report.origin.candidate.details["external_data"] == {"weights.bin": hashlib.sha256(weights).hexdigest()}
    assert describe.file_bytes(copy) == copy.stat().st_size + len(weights)
