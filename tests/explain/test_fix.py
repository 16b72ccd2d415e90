"""`likewise fix`: what it writes passes a check of its own, what it cannot repair it does not write.

Every planted fault is undone in the graph; what the repaired file answers is held against numpy or the reference
itself, in plain ONNX Runtime. `make remedies` does it for all faults.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache

import joblib
import numpy as np
import onnx
import onnxruntime
import pytest
from faults import FAULTS
from faults.quiet import quietly
from onnx import TensorProto, helper
from sklearn.linear_model import LogisticRegression

import data_only
import likewise
from likewise.models.onnx import edits, rewrites
from planting import command, here

OF_CORPUS = {
    "outputs/softmax_missing_in_a_network": "nodes put behind 'probabilities'",
    "inputs/red_and_blue": "nodes put in front of 'pixels'",
    "weights/weights_transposed": "middle.weight put back from the reference",
}
"""One fault of each kind of remedy, and what is done about it."""


def fixed(reference, candidate, data, output, **options):
    return likewise.fix(reference, candidate, data, output, speed=False, **{**data_only.OPTIONS, **options})


def answers(file, **inputs):
    return onnxruntime.InferenceSession(str(file)).run(None, inputs)


@pytest.mark.parametrize("name", OF_CORPUS)
def test_a_fault_is_repaired_and_the_file_passes_a_check_of_its_own(name, tmp_path):
    fault = FAULTS[name]()
    with quietly():
        found = fixed(fault.reference, fault.candidate, fault.data, tmp_path / "fixed.onnx", **fault.options)
        assert found, [step.headline for step in found.tried]
        assert OF_CORPUS[name] in found.done[-1].told
        again = data_only.check(fault.reference, str(tmp_path / "fixed.onnx"), fault.data, **fault.options)
    assert (found.before.outcome.name, again.passed) == ("FAIL", True)


@cache
def classifier():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(300, 4)).astype(np.float32)
    return LogisticRegression().fit(inputs, (inputs @ [1.0, 0.5, -1.0, 0.2] > 0).astype(int)), inputs


def test_the_command_writes_a_copy_that_answers_like_the_reference_and_touches_nothing_else(tmp_path):
    model, inputs = classifier()
    joblib.dump(model, tmp_path / "model.joblib")
    np.save(tmp_path / "rows.npy", inputs)
    data_only.export(model, inputs, tmp_path / "good.onnx", check=False)
    proto = onnx.load(tmp_path / "good.onnx")
    for attribute in (entry for node in proto.graph.node for entry in node.attribute):
        if attribute.name == "coefficients":
            attribute.floats[1] = -attribute.floats[1]
    onnx.save(proto, tmp_path / "bad.onnx")
    before = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()}
    told = ["fix", "model.joblib", "bad.onnx", "--data", "rows.npy", "--edge", "off", "--no-speed", "-o"]
    done = command(*told, "fixed.onnx", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["before"]["outcome"], found["report"]["outcome"]) == ("FAIL", "PASS")
    assert found["done"][0]["cause"] == "weight-corruption"
    _, probabilities = answers(tmp_path / "fixed.onnx", X=inputs)
    np.testing.assert_allclose(probabilities, model.predict_proba(inputs), atol=1e-5)
    assert {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in before} == before
    stamps = {entry.key: entry.value for entry in onnx.load(tmp_path / "fixed.onnx").metadata_props}
    assert stamps["likewise.fixed_from"] == before["bad.onnx"]
    for taken in ("bad.onnx", "model.joblib"):
        assert here(*told, taken, folder=tmp_path).returncode == 2
    assert here("fix", "model.joblib", "absent.onnx", *told[3:], "other.onnx", folder=tmp_path).returncode == 2
    passes = here("fix", "model.joblib", "good.onnx", *told[3:], "other.onnx", folder=tmp_path)
    assert passes.returncode == 0
    assert "passes as it is" in passes.stdout
    assert not (tmp_path / "other.onnx").exists()


def linear(weights):
    weights = np.asarray(weights, dtype=np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", len(weights)])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", weights.shape[1]])
    graph = helper.make_graph(nodes, "g", [given], [made], [onnx.numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_what_cannot_be_repaired_is_not_written(tmp_path):
    """Answers that have nothing to do with the candidate's: there is nothing to put right."""
    rows = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)

    def noise(batch):
        return np.sin(1e4 * np.asarray(batch)[:, :2]).astype(np.float32)

    found = fixed(noise, linear(np.ones((3, 2))), rows, tmp_path / "fixed.onnx")
    assert not found
    assert (found.before.outcome.name, found.output) == ("FAIL", None)
    assert not list(tmp_path.iterdir())
    with pytest.raises(likewise.LikewiseError, match="only ONNX files are repaired"):
        fixed(linear(np.ones((3, 2))), noise, rows, tmp_path / "fixed.onnx")


def test_a_setting_of_the_session_is_told_and_no_file_is_written(tmp_path):
    fault = FAULTS["runtime/padding_merged_into_pooling"]()
    with quietly():
        found = fixed(fault.reference, fault.candidate, fault.data, tmp_path / "fixed.onnx", **fault.options)
    assert not found
    assert dict(found.settings) == {"disabled_optimizers": "Pad_Fusion"}
    assert not list(tmp_path.iterdir())


def test_two_causes_are_repaired_one_after_the_other(tmp_path):
    """A service that keeps one output above zero and the other below one, and a file that does neither."""
    nodes = [helper.make_node("Split", ["x"], ["low", "high"], axis=1, num_outputs=2)]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 1]) for name in ("low", "high")]
    graph = helper.make_graph(nodes, "g", given, made)
    bare = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    rows = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)

    def kept(batch):
        rows = np.asarray(batch)
        return {"low": rows[:, :1].clip(0, None), "high": rows[:, 1:].clip(None, 1)}

    found = fixed(kept, bare, rows, tmp_path / "fixed.onnx")
    assert found, [(step.told, step.headline) for step in found.tried]
    assert [step.cause for step in found.done] == ["model-part-dropped"] * 2
    low, high = answers(tmp_path / "fixed.onnx", x=rows)
    np.testing.assert_allclose(low[:, 0], np.maximum(rows[:, 0], 0))
    np.testing.assert_allclose(high[:, 0], np.minimum(rows[:, 1], 1))


def test_a_node_is_put_back_as_it_is_in_the_graph_of_the_reference(tmp_path):
    """Padding on one side of a picture instead of both, which no diagnosis names."""

    def padded(pads):
        weights = np.random.default_rng(1).normal(size=(2, 1, 3, 3)).astype(np.float32)
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=pads),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["p"]),
            helper.make_node("Flatten", ["p"], ["y"]),
        ]
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 6, 6])
        made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])
        graph = helper.make_graph(nodes, "g", [given], [made], [onnx.numpy_helper.from_array(weights, "w")])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    rows = {"x": np.random.default_rng(0).normal(size=(40, 1, 6, 6)).astype(np.float32)}
    good = padded([1, 1, 1, 1])
    found = fixed(good, padded([0, 2, 0, 2]), rows, tmp_path / "fixed.onnx")
    assert found, [(step.told, step.headline) for step in found.tried]
    onnx.save(good, tmp_path / "good.onnx")
    both = (answers(tmp_path / name, **rows)[0] for name in ("fixed.onnx", "good.onnx"))
    np.testing.assert_array_equal(*both)


def test_a_batch_of_one_size_is_left_free(tmp_path):
    """A file that was traced with four rows, which it also brings into shape."""

    def flat(rows):
        shape = onnx.numpy_helper.from_array(np.array([rows, 6], np.int64), "shape")
        weights = onnx.numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(6, 2), "w")
        nodes = [helper.make_node("Reshape", ["x", "shape"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])]
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n" if rows < 0 else rows, 2, 3])
        made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n" if rows < 0 else rows, 2])
        graph = helper.make_graph(nodes, "g", [given], [made], [shape, weights])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    rows = {"x": np.random.default_rng(0).normal(size=(30, 2, 3)).astype(np.float32)}
    found = fixed(flat(-1), flat(4), rows, tmp_path / "fixed.onnx")
    assert found, [(step.told, step.headline) for step in found.tried]
    assert found.before.outcome.name == "INCONCLUSIVE"
    assert found.done[0].told == "the batch axis left free, which was 4"
    expected = rows["x"].reshape(30, 6) @ np.arange(12, dtype=np.float32).reshape(6, 2)
    np.testing.assert_allclose(answers(tmp_path / "fixed.onnx", **rows)[0], expected, rtol=1e-5, atol=1e-5)


def test_a_quantised_file_is_quantised_again_before_anything_is_kept_in_float(tmp_path):
    """One column of a weight is sixty times as large as the others: with one scale for all, these are lost."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(8, 6)).astype(np.float32)
    weights[:, 0] *= 60
    rows = {"x": rng.normal(size=(256, 8)).astype(np.float32)}
    onnx.save(linear(weights), tmp_path / "float.onnx")
    made = data_only.quantize(tmp_path / "float.onnx", tmp_path / "int.onnx", data=rows, speed=False)
    largest, mean = made.report.max_abs_diff, made.report.mean_abs_diff
    both = str(tmp_path / "float.onnx"), str(tmp_path / "int.onnx")
    found = fixed(*both, rows, tmp_path / "fixed.onnx", abs_tol=2 * largest, mean_tol=mean / 2)
    assert found, [(step.told, step.headline) for step in found.tried]
    assert "a scale for every channel" in found.done[0].told
    assert found.bytes_after < 1.5 * found.bytes_before
    given = answers(tmp_path / "fixed.onnx", **rows)[0]
    assert np.abs(given - rows["x"] @ weights).mean() <= mean / 2
    strict = fixed(*both, rows, tmp_path / "strict.onnx", abs_tol=2 * largest, mean_tol=mean / 500)
    assert "kept in float" in strict.done[0].told
    given = answers(tmp_path / "strict.onnx", **rows)[0]
    assert np.abs(given - rows["x"] @ weights).mean() <= mean / 500


@pytest.mark.parametrize(
    "way",
    [
        lambda x: x[:, ::-1],
        lambda x: x.transpose(0, 2, 1),
        lambda x: x.transpose(0, 2, 1).reshape(x.shape),
        lambda x: x * np.array([1.0, 2.0, 3.0])[:, None] - 0.5,
        lambda x: x[:, [2, 0]],
    ],
)
def test_what_moves_scales_and_shifts_is_written_as_nodes(way, tmp_path):
    proto = helper.make_model(
        helper.make_graph(
            [helper.make_node("Identity", ["x"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3, 4])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    nodes = rewrites.rearranged(way, (3, 4))
    rows = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32)
    onnx.save(edits.behind(proto, "y", nodes), tmp_path / "behind.onnx")
    np.testing.assert_allclose(answers(tmp_path / "behind.onnx", x=rows)[0], way(rows), rtol=1e-6)


def test_what_does_more_is_not():
    assert rewrites.rearranged(np.exp, (3,)) is None
    assert rewrites.rearranged(lambda x: x - x.mean(axis=1, keepdims=True), (3,)) is None
