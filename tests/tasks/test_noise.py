"""The noise of a model is what its answers really move by, and a proposed tolerance covers it with the margin."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import data_only
import likewise
from likewise.contracts.data import Array
from likewise.contracts.results import NoiseResult
from likewise.contracts.verdict import Outcome, Severity
from likewise.errors import DataError, LikewiseError, UsageError
from likewise.report import tables
from likewise.report.formats.json import read
from likewise.tasks.noise import movements
from planting import here

ROWS = 200


@pytest.fixture(scope="module")
def numbers() -> Array:
    return np.random.default_rng(0).normal(size=(ROWS, 8))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 3)).eval()


@pytest.fixture(scope="module")
def graph(network):
    """The network as an exporter writes it."""
    names = {"0.weight": "w0", "0.bias": "b0", "2.weight": "w2", "2.bias": "b2"}
    weights = [numpy_helper.from_array(t.numpy(), names[name]) for name, t in network.state_dict().items()]
    nodes = [
        helper.make_node("Gemm", ["x", "w0", "b0"], ["h"], transB=1),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("Gemm", ["t", "w2", "b2"], ["output"], transB=1),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
    made = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["n", 3])
    return helper.make_model(
        helper.make_graph(nodes, "g", [given], [made], weights),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )


def in_double(network, x):
    """The same network written out in numpy's doubles."""
    weights = {name: tensor.numpy().astype(np.float64) for name, tensor in network.state_dict().items()}
    hidden = np.tanh(x @ weights["0.weight"].T + weights["0.bias"])
    return hidden @ weights["2.weight"].T + weights["2.bias"]


def source(result, name):
    return next(found for found in result.sources if found.name == name)


def only(result, name):
    (output,) = source(result, name).outputs
    return output


def test_float32_against_float64_of_a_network(network, numbers):
    given = numbers.astype(np.float32)
    result = likewise.noise(network, {"x": given})
    with torch.inference_mode():
        narrow = network(torch.from_numpy(given)).numpy().astype(np.float64)
    apart = np.abs(narrow - in_double(network, given.astype(np.float64)))
    found = only(result, "precision")
    assert (result.framework, result.rows, found.values) == ("torch", ROWS, ROWS * 3)
    assert found.max_abs == pytest.approx(apart.max(), rel=1e-3)
    assert found.p99_abs == pytest.approx(np.sort(apart.ravel())[int(np.ceil(0.99 * (apart.size - 1)))], rel=1e-3)
    assert found.max_rel == pytest.approx((apart / np.maximum(np.abs(narrow), 1e-6)).max(), rel=1e-3)
    assert only(result, "repeat").max_abs == 0
    assert source(result, "optimization").not_measured == "only ONNX Runtime has levels of graph optimisation"
    assert source(result, "float32 inputs").not_measured == "float32 holds every number of the data"
    assert torch.all(result.abs_tol + result.rel_tol * torch.from_numpy(np.abs(narrow)) >= 10 * torch.from_numpy(apart))


def test_float32_against_float64_of_a_graph(network, graph, numbers):
    given = numbers.astype(np.float32)
    result = likewise.noise(graph, {"x": given})
    runs = data_only.check(lambda x: {"output": in_double(network, x.astype(np.float64))}, graph, {"x": given})
    assert only(result, "precision").max_abs == pytest.approx(runs.max_abs_diff, rel=1e-3)
    assert {found.name for found in result.sources if not found.not_measured} == {
        "repeat",
        "batch size",
        "threads",
        "optimization",
        "precision",
    }


def test_a_check_with_the_proposed_options_passes_and_one_far_below_does_not(network, graph, numbers):
    data = {"x": numbers.astype(np.float32)}
    proposed = likewise.noise(network, data)
    assert data_only.check(network, graph, data, abs_tol=proposed.abs_tol, rel_tol=proposed.rel_tol).passed
    assert not data_only.check(network, graph, data, abs_tol=proposed.abs_tol / 1e4, rel_tol=0.0).passed


def test_an_optimisation_that_changes_the_answer_is_seen():
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["padded"]),
        helper.make_node("MaxPool", ["padded"], ["output"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 6, 6])],
            [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["n", 1, 4, 4])],
            [numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1]), "pads")],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    x = -np.abs(np.random.default_rng(0).normal(size=(50, 1, 6, 6))).astype(np.float32)

    def pooled(border):
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=border)
        return padded.reshape(50, 1, 4, 2, 4, 2).max(axis=(3, 5))

    result = likewise.noise(proto, {"x": x})
    assert only(result, "optimization").max_abs == pytest.approx(np.abs(pooled(0) - pooled(-np.inf)).max())
    assert result.dominated_by == "optimization"
    assert (result.abs_tol, result.rel_tol, result.options, result.limits) == (None, None, "", ())
    assert any("move by" in why for why in result.refused)


def test_answers_that_move_with_the_batch_and_from_call_to_call(numbers):
    calls = []

    def batched(x):
        return x[:, 0] + 1e-5 * len(x)

    def restless(x):
        calls.append(len(x))
        return x[:, 0] + 1e-4 * (len(calls) % 2)

    result = likewise.noise(batched, {"x": numbers})
    assert only(result, "batch size").max_abs == pytest.approx(1e-5 * (ROWS - 1))
    assert only(result, "repeat").max_abs == 0
    assert result.dominated_by == "batch size"
    repeated = likewise.noise(restless, {"x": numbers})
    assert only(repeated, "repeat").max_abs == pytest.approx(1e-4)
    assert any("not the same from call to call" in note for note in repeated.notes)


def test_nothing_is_proposed_that_a_wrong_model_would_pass(network, graph, tmp_path):
    """Dynamic quantisation scales by the largest value of the call, so that an outlier moves all the other answers."""
    from onnxruntime.quantization import quantize_dynamic

    random = np.random.default_rng(1)
    x = random.normal(size=(ROWS, 8)).astype(np.float32)
    x[ROWS // 2] *= 100
    quantized = tmp_path / "int8.onnx"
    onnx.save(graph, tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", quantized)
    result = likewise.noise(str(quantized), {"x": x})
    moved = only(result, "batch size").max_abs
    assert likewise.noise(graph, {"x": x}).refused == ()
    assert (result.abs_tol, result.rel_tol, result.options, result.limits) == (None, None, "", ())
    (why,) = result.refused
    assert f"move by {moved:.2g}; 10 times that, rounded up, is" in why
    shown = tables.noise_table(result)
    assert "No tolerance can be proposed" in shown
    assert "--abs-tol" not in shown
    np.savez(tmp_path / "rows.npz", x=x)
    for flags, printed in ((["--quiet"], ""), (["--json"], "{")):
        done = here("noise", "int8.onnx", "--data", "rows.npz", *flags, folder=tmp_path)
        assert (done.returncode, done.stdout[:1]) == (3, printed), done.stderr


@pytest.mark.parametrize(("moved", "proposed"), [(0.004, True), (0.02, False)])
def test_how_far_probabilities_may_move(numbers, moved, proposed):
    """They spread from 0 to 1: ten times 0.02 is a fifth of that."""

    def restless(x):
        share = 1 / (1 + np.exp(-x[:, :1]))
        return {"probabilities": np.hstack([share, 1 - share]) + moved * (len(x) % 2)}

    result = likewise.noise(restless, {"x": numbers})
    assert bool(result.options) == proposed
    assert bool(result.refused) != proposed


def test_labels_that_change_by_themselves_are_refused(numbers):
    calls = []

    def restless(x):
        calls.append(len(x))
        return np.where(x[:, 0] > 0.5 * (len(calls) % 2), "yes", "no")

    (why,) = likewise.noise(restless, {"x": numbers}).refused
    share = np.mean((numbers[:, 0] > 0) & (numbers[:, 0] <= 0.5))
    assert share > 0.1
    assert int(why.partition("%")[0]) >= int(100 * share)
    assert why.endswith("change by themselves")


def test_outputs_that_one_tolerance_does_not_suit_get_a_limit_each(numbers):
    """The noise of the large output is 1, which is all that the small one can say."""

    def restless(x):
        return {"large": 1e4 * x[:, 0] + len(x) % 2, "small": np.tanh(x[:, 1])}

    result = likewise.noise(restless, {"x": numbers})
    assert (result.abs_tol, result.rel_tol, result.refused) == (None, None, ())
    limits = {limit.output: limit.max_abs_diff for limit in result.limits}
    assert limits["large"] == 10
    assert limits["small"] < 1e-5
    assert result.options.startswith("--limit ")
    assert result.options in " ".join(tables.noise_table(result, width=200).split())
    # Outputs are called what somebody else called them, and the options are put into a command.
    named = replace(result, limits=tuple(replace(limit, output="y --trust * $(touch ran)") for limit in result.limits))
    assert all(word.startswith("y --trust * $(touch ran).max") for word in shlex.split(named.options)[1::2])
    assert shlex.split(named.options)[::2] == ["--limit"] * len(named.limits)


def test_inputs_rounded_to_float32(numbers):
    rounded = numbers.astype(np.float32).astype(np.float64)
    result = likewise.noise(lambda x: 100 * x[:, 0], {"x": numbers})
    assert only(result, "float32 inputs").max_abs == pytest.approx(100 * np.abs(rounded - numbers)[:, 0].max())
    assert source(result, "precision").not_measured == "python computes in the precision it has"


def test_a_threshold_that_is_crossed_is_no_noise(numbers):
    value = numbers[7, 0]
    between = (value + float(np.float32(value))) / 2
    assert value != float(np.float32(value))

    def stepping(x):
        return np.where(x[:, 0] > between, 1.0, 0.0) + 1e-9 * x[:, 1]

    result = likewise.noise(stepping, {"x": numbers})
    found = only(result, "float32 inputs")
    assert found.jumps
    assert found.max_abs == pytest.approx(1.0)
    assert result.abs_tol < 1e-5
    assert any("threshold" in note for note in result.notes)


def test_a_pipeline_on_a_table(numbers):
    frame = pd.DataFrame(numbers[:, :3], columns=["a", "b", "c"])
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(frame, numbers[:, 0] > 0)
    result = likewise.noise(model, frame)
    moved = {output.output: output for output in source(result, "float32 inputs").outputs}
    rounded = frame.astype(np.float32).astype(np.float64)
    apart = np.abs(model.predict_proba(rounded) - model.predict_proba(frame))
    assert moved["probabilities"].max_abs == pytest.approx(apart.max())
    assert moved["label"].max_abs is None
    assert moved["label"].changed == 0
    given = {output.output: output for output in source(result, "precision").outputs}
    narrow = np.abs(model.predict_proba(frame.astype(np.float32)) - model.predict_proba(frame))
    assert given["probabilities"].max_abs == pytest.approx(narrow.max())


def test_threads_are_as_before(network, numbers):
    before = torch.get_num_threads()
    likewise.noise(network, {"x": numbers.astype(np.float32)}, samples=40)
    assert torch.get_num_threads() == before


def test_labels_alone_need_no_tolerance(numbers):
    result = likewise.noise(lambda x: np.where(x[:, 0] > 0, "yes", "no"), {"x": numbers})
    assert (result.abs_tol, result.rel_tol, result.options, result.limits) == (None, None, "", ())
    assert "no tolerance to propose" in tables.noise_table(result)


def test_trees_that_the_runtime_computes_in_float32_only(numbers):
    model = RandomForestClassifier(3, max_depth=3, random_state=0).fit(numbers, numbers[:, 0] > 0)
    from skl2onnx import to_onnx

    proto = to_onnx(model, numbers[:1].astype(np.float32), options={"zipmap": False})
    result = likewise.noise(proto, {"X": numbers})
    assert "in float32 only" in source(result, "precision").not_measured
    assert source(result, "float32 inputs").not_measured == "it takes float32 already"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, 0.0), (1e-7, 1e-7), (1.1e-7, 2e-7), (2.1e-7, 5e-7), (5.1e-7, 1e-6), (9.9, 10.0), (3.0, 5.0)],
)
def test_rounding_up(value, expected):
    assert movements.round_up(value) == expected


@pytest.mark.parametrize("margin", [1.0, 10.0, 33.0])
def test_a_proposal_covers_every_movement(margin):
    generator = np.random.default_rng(3)
    sizes = 10 ** generator.uniform(-6, 3, size=500)
    distances = 1e-7 * sizes * generator.random(500) + 1e-9 * generator.random(500)
    before = {"y": sizes, "z": 1e-3 * sizes}
    after = {"y": sizes + distances, "z": 1e-3 * (sizes + distances)}
    found = {"threads": movements.movements(before, after, labels=frozenset())}
    tolerance, most = movements.propose(found, margin=margin)
    assert most == "threads"
    for name in before:
        moved = margin * np.abs(after[name] - before[name])
        assert (moved <= tolerance.absolute + tolerance.relative * before[name]).all()
    limits = {limit.output: limit.max_abs_diff for limit in movements.limits(found, margin=margin)}
    assert all(limits[name] >= margin * np.abs(after[name] - before[name]).max() for name in before)


def test_noise_that_is_no_rounding_is_allowed_as_it_is():
    before = {"p": np.linspace(0.1, 1.0, 100)}
    after = {"p": before["p"] + 0.01 * np.cos(np.arange(100))}
    tolerance, _ = movements.propose({"batch size": movements.movements(before, after, labels=frozenset())}, margin=10)
    assert (tolerance.absolute, tolerance.relative) == (0.1, 0.0)


def test_values_that_cease_to_be_finite_are_told():
    before, after = {"y": np.array([1.0, 2.0, np.nan])}, {"y": np.array([1.0, np.inf, np.nan])}
    (noise,) = movements.described(movements.movements(before, after, labels=frozenset()))
    assert (noise.values, noise.nonfinite, noise.max_abs) == (3, 1, 0.0)


def test_what_makes_no_sense_is_refused(network, numbers, tmp_path):
    with pytest.raises(UsageError, match="margin"):
        likewise.noise(network, {"x": numbers}, margin=0.5)
    with pytest.raises(DataError, match="no rows"):
        likewise.noise(network, {"x": numbers[:0]})
    np.savez(tmp_path / "rows.npz", x=numbers)
    likewise.record(lambda x: x[:, 0], str(tmp_path / "rows.npz"), tmp_path / "golden.parquet")
    with pytest.raises(UsageError, match="recorded answers"):
        likewise.noise(str(tmp_path / "golden.parquet"), {"x": numbers})

    def refusing(x):
        raise ValueError("not today")

    with pytest.raises(LikewiseError, match="not today"):
        likewise.noise(refusing, {"x": numbers})


def test_the_command(example_folder, tmp_path):
    done = here("noise", "model.onnx", "--data", "test.parquet", "--samples", "300", "--json", folder=example_folder)
    assert done.returncode == 0, done.stderr
    result = read(NoiseResult, json.loads(done.stdout))
    assert (result.framework, result.rows, result.margin) == ("onnx", 300, 10.0)
    shown = tables.noise_table(result)
    assert result.options in shown
    assert all(found.name in shown for found in result.sources)
    here("noise", "nowhere.onnx", "--data", example_folder / "test.parquet", folder=tmp_path).expect(3)


@pytest.mark.parametrize("options", [{"abs_tol": 1e-12}, {"preset": "exact"}])
def test_a_tolerance_below_the_noise_floor_is_told(network, numbers, options):
    """Both are the same network; its own answers move by 1e-8 between batch sizes."""
    data = {"x": numbers.astype(np.float32)}
    report = data_only.check(network, network, data, **options)
    drift = report.comparison.outputs[0].measures["batch_drift"]
    assert 1e-12 < drift < 1e-5
    found = [finding for finding in report.verdict.findings if finding.code == "below-noise-floor"]
    assert {finding.severity for finding in found} == {Severity.WARNING}
    assert "candidate's own answers move between batch sizes" in found[0].message
    assert f"{drift:.3g}" in found[0].message
    assert "likewise noise" in found[0].remedy


def test_above_the_noise_floor_nothing_is_told(network, numbers):
    report = data_only.check(network, network, {"x": numbers.astype(np.float32)})
    assert report.outcome is Outcome.PASS
    assert not [finding for finding in report.verdict.findings if finding.code == "below-noise-floor"]


def test_a_model_that_depends_on_its_batch_is_not_called_noisy(numbers):
    report = data_only.check(
        lambda x: x[:, 0], lambda x: x[:, 0] + (0.1 if len(x) == 1 else 0.0), {"x": numbers}, abs_tol=1e-6
    )
    assert report.outcome is Outcome.FAIL
    assert not [finding for finding in report.verdict.findings if finding.code == "below-noise-floor"]
