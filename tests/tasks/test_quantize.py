"""A quantised file is really quantised, loads, says where it comes from, and is judged by its answers."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import subprocess
import sys
import warnings

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import data_only
import likewise
from likewise.errors import LikewiseError, ModelError, UsageError
from likewise.models.onnx.quantize import reduce_range
from likewise.tasks.quantize import CALIBRATIONS, FORMATS, AlreadyQuantizedError, NothingToQuantizeError, summary
from planting import here

INTEGERS = {"MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "DynamicQuantizeMatMul", "QGemm"}


def convolutions(opset=17, rows="n"):
    """Two convolutions, pooling and a dense layer, with weights that fit their inputs."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (16, 8, 3, 3), "b2": (16,), "w3": (16, 10), "b3": (10,)}
    weights = {
        name: rng.normal(scale=1 / np.sqrt(max(np.prod(shape[1:]), 1)), size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu"),
        helper.make_node("MaxPool", ["r1"], ["m"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["m", "w2", "b2"], ["c2"], name="second", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c2"], ["g"], name="average"),
        helper.make_node("Flatten", ["g"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["scores"], name="dense"),
        helper.make_node("Softmax", ["scores"], ["probabilities"], name="softmax"),
    ]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 3, 12, 12])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [rows, 10])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    helper.set_model_props(model, {"owner": "vision team"})
    return model


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    onnx.save(convolutions(), folder / "net.onnx")
    x = np.random.default_rng(1).normal(size=(96, 3, 12, 12)).astype(np.float32)
    np.savez(folder / "images.npz", x=x)
    return folder


def answers(path, x):
    return ort.InferenceSession(str(path)).run(["probabilities"], {"x": x})[0].astype(np.float64)


def operators(path):
    return {node.op_type for node in onnx.load(path).graph.node}


def properties(path):
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


@pytest.mark.parametrize("mode", ["dynamic", "static", "fp16"])
def test_every_mode_keeps_the_answers_of_the_example(example_folder, tmp_path, mode):
    done = data_only.quantize(
        example_folder / "model.onnx",
        tmp_path / "q.onnx",
        data=str(example_folder / "test.parquet"),
        mode=mode,
        speed=False,
    )
    assert done
    assert done.report.samples == 3_000
    assert done.report.policy.preset == ("standard" if mode == "fp16" else "quantized")
    assert done.timing is None
    inputs = [(value.name, value.type) for value in ort.InferenceSession(tmp_path / "q.onnx").get_inputs()]
    assert inputs == [(v.name, v.type) for v in ort.InferenceSession(example_folder / "model.onnx").get_inputs()]


def test_the_reported_difference_is_that_of_the_two_files(images, tmp_path):
    done = data_only.quantize(images / "net.onnx", tmp_path / "q.onnx", data=str(images / "images.npz"), speed=False)
    x = np.load(images / "images.npz")["x"]
    difference = np.abs(answers(tmp_path / "q.onnx", x) - answers(images / "net.onnx", x))
    # ONNX Runtime may add in another order when it is called with other batches.
    assert done.report.max_abs_diff == pytest.approx(difference.max(), abs=1e-3)
    assert "larger" in summary(done.quantized, done.report) or "smaller" in summary(done.quantized, done.report)
    assert f"largest difference {done.report.max_abs_diff:.3g}" in summary(done.quantized, done.report)


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_static_with_each_calibration(images, tmp_path, calibration, per_channel, format):
    likewise.quantize(
        images / "net.onnx",
        tmp_path / "q.onnx",
        data=str(images / "images.npz"),
        mode="static",
        calibration=calibration,
        per_channel=per_channel,
        format=format,
        check=False,
    )
    expected = {"QuantizeLinear", "DequantizeLinear"} | ({"QLinearConv"} if format == "qoperator" else set())
    assert operators(tmp_path / "q.onnx") >= expected
    scales = [
        t for t in onnx.load(tmp_path / "q.onnx").graph.initializer if t.name.startswith("w2") and "scale" in t.name
    ]
    assert {tuple(scale.dims) for scale in scales} == {(16,) if per_channel else ()} or (
        not per_channel and {tuple(scale.dims) for scale in scales} == {(1,)}
    )
    x = np.load(images / "images.npz")["x"]
    assert np.abs(answers(tmp_path / "q.onnx", x) - answers(images / "net.onnx", x)).max() < 0.06
    # What comes after the last weights stays in float.
    assert "Softmax" in operators(tmp_path / "q.onnx")


def test_seven_bit_weights_where_asked_for_and_eight_where_not(images, tmp_path):
    for reduced, limit in ((True, 64), (False, 127)):
        done = likewise.quantize(images / "net.onnx", tmp_path / "q.onnx", reduce_range=reduced)
        stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
        weights = [
            value
            for name, value in stored.items()
            if name.startswith("w") and value.dtype == np.int8 and value.ndim > 1
        ]
        assert len(weights) == 3
        assert max(np.abs(value.astype(int)).max() for value in weights) == limit
        assert done.quantized.settings["reduce_range"] is reduced


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "reduced", "word"),
    [
        ("x86_64", "flags\t\t: sse2 avx2 fma\n", True, "no VNNI"),
        ("x86_64", "flags\t\t: avx2 avx512f avx512_vnni\n", False, "avx512_vnni"),
        ("AMD64", "flags\t\t: avx2 avx_vnni\n", False, "avx_vnni"),
        ("x86_64", "flags\t\t: avx2 amx_tile amx_int8\n", False, "amx_int8"),
        ("x86_64", "", True, "cannot be told"),
        ("aarch64", "Features\t: fp asimd asimddp\n", False, "dot-product"),
        ("arm64", "", False, "ARM"),
    ],
)
def test_the_range_of_weights_is_chosen_by_the_processor(machine, cpuinfo, reduced, word):
    found, reason = reduce_range(machine=machine, cpuinfo=cpuinfo)
    assert found is reduced
    assert word in reason
    assert ("7-bit" in reason) is reduced


def test_a_tree_ensemble_is_refused_with_the_list_of_its_operators(example_folder, tmp_path):
    for mode in ("dynamic", "static", "fp16"):
        with pytest.raises(NothingToQuantizeError) as caught:
            data_only.quantize(
                example_folder / "booster.onnx",
                tmp_path / "q.onnx",
                mode=mode,
                data=str(example_folder / "test.parquet"),
            )
        assert "no weights to quantise" in str(caught.value)
        assert "TreeEnsembleClassifier 1" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_copy_is_allowed_where_it_is_asked_for(example_folder, tmp_path):
    done = data_only.quantize(
        example_folder / "booster.onnx",
        tmp_path / "q.onnx",
        data=str(example_folder / "test.parquet"),
        allow_noop=True,
        preset="exact",
        speed=False,
    )
    assert done
    assert done.quantized.changed == 0
    assert any("copy" in choice for choice in done.quantized.choices)


def test_a_quantised_model_is_refused_unless_forced(example_folder, images, tmp_path):
    with pytest.raises(AlreadyQuantizedError, match="4 integer-quantised nodes"):
        likewise.quantize(example_folder / "model.int8.onnx", tmp_path / "q.onnx")
    likewise.quantize(images / "net.onnx", tmp_path / "half.onnx", mode="fp16")
    with pytest.raises(AlreadyQuantizedError, match="half-precision"):
        likewise.quantize(tmp_path / "half.onnx", tmp_path / "q.onnx")
    likewise.quantize(images / "net.onnx", tmp_path / "part.onnx", exclude=["dense"])
    done = likewise.quantize(tmp_path / "part.onnx", tmp_path / "q.onnx", force=True)
    assert done.quantized.changed > 0
    assert "MatMulInteger" in operators(tmp_path / "q.onnx")


def test_excluded_nodes_stay_in_float(images, tmp_path):
    likewise.quantize(images / "net.onnx", tmp_path / "q.onnx", exclude=["dense"])
    found = operators(tmp_path / "q.onnx")
    assert "ConvInteger" in found
    assert not found & {"MatMulInteger", "DynamicQuantizeMatMul"}
    likewise.quantize(images / "net.onnx", tmp_path / "q.onnx", op_types=["Conv"], mode="fp16")
    types = {t.name: t.data_type for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    assert types["w1"] == TensorProto.FLOAT16
    assert types["w3"] == TensorProto.FLOAT
    with pytest.raises(NothingToQuantizeError, match="excluded"):
        likewise.quantize(images / "net.onnx", tmp_path / "q.onnx", exclude=["first", "second", "dense"])


def test_half_precision_leaves_what_prepares_the_columns_alone(example_folder, tmp_path):
    # Incomes go up to 250,000 and half precision ends at 65,504: casting an input would make it infinite.
    done = data_only.quantize(
        example_folder / "model.onnx",
        tmp_path / "q.onnx",
        data=str(example_folder / "test.parquet"),
        mode="fp16",
        abs_tol=0.002,
        speed=False,
    )
    assert done.report.outcome == "PASS"
    graph = onnx.load(tmp_path / "q.onnx").graph
    onnx.checker.check_model(onnx.load(tmp_path / "q.onnx"), full_check=False)
    halves = [tensor.name for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT16]
    assert len(halves) >= 2
    first = {name: node for node in graph.node for name in node.input}
    assert all(first[value.name].op_type != "Cast" for value in graph.input)


def test_the_file_says_where_it_comes_from_and_keeps_what_the_input_says(images, tmp_path):
    done = likewise.quantize(images / "net.onnx", tmp_path / "q.onnx", per_channel=True)
    found = properties(tmp_path / "q.onnx")
    digest = hashlib.sha256((images / "net.onnx").read_bytes()).hexdigest()
    assert found["owner"] == "vision team"
    assert found["likewise.quantized_from"] == done.quantized.sha256 == digest
    assert found["likewise.quantization_mode"] == "dynamic"
    assert json.loads(found["likewise.quantization_settings"])["per_channel"] is True
    assert set(json.loads(found["likewise.quantization_versions"])) == {"likewise", "onnx", "onnxruntime"}
    assert done.quantized.bytes_before == (images / "net.onnx").stat().st_size
    assert done.quantized.bytes_after == (tmp_path / "q.onnx").stat().st_size


def test_notes_of_an_exporter_that_stop_the_quantiser_are_dropped(images, tmp_path):
    model = convolutions()
    model.graph.value_info.append(helper.make_tensor_value_info("c2", TensorProto.FLOAT, ["n", 99, 6, 6]))
    onnx.save(model, tmp_path / "noted.onnx")
    from onnxruntime.quantization import quantize_dynamic

    with pytest.raises(Exception, match=r"(?i)shape|dim"):
        quantize_dynamic(tmp_path / "noted.onnx", tmp_path / "q.onnx")
    assert likewise.quantize(tmp_path / "noted.onnx", tmp_path / "q.onnx").quantized.changed > 0


def test_weights_beside_the_file_are_read_and_counted(images, tmp_path):
    onnx.save(convolutions(), tmp_path / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    done = likewise.quantize(tmp_path / "net.onnx", tmp_path / "q" / "q.onnx")
    assert done.quantized.bytes_before == sum((tmp_path / name).stat().st_size for name in ("net.onnx", "net.data"))
    x = np.load(images / "images.npz")["x"]
    likewise.quantize(images / "net.onnx", tmp_path / "same.onnx")
    np.testing.assert_array_equal(answers(tmp_path / "q" / "q.onnx", x), answers(tmp_path / "same.onnx", x))


def test_what_was_there_survives_an_input_that_is_half_written(images, tmp_path):
    content = (images / "net.onnx").read_bytes()
    (tmp_path / "half.onnx").write_bytes(content[: len(content) // 2])
    (tmp_path / "q.onnx").write_bytes(b"before")
    with pytest.raises(ModelError):
        likewise.quantize(tmp_path / "half.onnx", tmp_path / "q.onnx")
    with pytest.raises(ModelError, match="there is no file"):
        likewise.quantize(tmp_path / "nowhere.onnx", tmp_path / "q.onnx")
    assert (tmp_path / "q.onnx").read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half.onnx", "q.onnx"]


def test_a_result_that_does_not_load_does_not_take_the_place_of_the_file(images, tmp_path, monkeypatch):
    from likewise.models.onnx import quantize

    def broken(model, *_, **__):
        model.graph.node.append(helper.make_node("DequantizeLinear", ["nothing"], ["more"], name="broken"))
        return model

    monkeypatch.setattr(quantize, "to_integers", broken)
    (tmp_path / "q.onnx").write_bytes(b"before")
    with pytest.raises(ModelError, match="does not load and was not kept"):
        likewise.quantize(images / "net.onnx", tmp_path / "q.onnx")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("q.onnx", b"before")]


def test_a_result_that_crashes_the_runtime_is_an_error_here(images, tmp_path, monkeypatch):
    from likewise.models.onnx import quantize

    monkeypatch.setattr(quantize, "OPEN", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(ModelError, match=r"ONNX Runtime crashed on it \(SIGSEGV\)"):
        likewise.quantize(images / "net.onnx", tmp_path / "q.onnx")
    assert not list(tmp_path.iterdir())


def test_a_transformer_exported_by_torch_in_every_mode(tmp_path):
    # Half precision without noted shapes crashed ONNX Runtime 1.31 on this one.
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(100, 32)
            self.encode = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
            self.score = torch.nn.Linear(32, 5)

        def forward(self, tokens):
            return torch.softmax(self.score(self.encode(self.embed(tokens)).mean(1)), -1)

    tokens = torch.randint(0, 100, (32, 12))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Classifier().eval()
        free = ({0: torch.export.Dim("rows", min=1)},)
        torch.onnx.export(
            model,
            (tokens,),
            tmp_path / "net.onnx",
            dynamo=True,
            dynamic_shapes=free,
            input_names=["tokens"],
            verbose=False,
        )
    np.savez(tmp_path / "tokens.npz", tokens=tokens.numpy())
    for mode in ("fp16", "dynamic", "static"):
        done = data_only.quantize(
            tmp_path / "net.onnx", tmp_path / "q.onnx", data=str(tmp_path / "tokens.npz"), mode=mode, speed=False
        )
        assert done.report.outcome == "PASS", mode
        assert done.quantized.bytes_after < done.quantized.bytes_before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "static"}, "needs rows to calibrate on"),
        ({"mode": "statik"}, "did you mean 'static'"),
        ({"calibration": "max"}, "--calibration is 'max'"),
        ({"exclude": ["frist"]}, "did you mean 'first'"),
        ({"op_types": ["Convolution"]}, "no operator 'Convolution'"),
        ({"per_chanel": True}, "did you mean 'per_channel'"),
        ({"mode": "static", "data": "images.npz", "calibration_rows": 0}, "--calibration-rows is 0"),
    ],
)
def test_a_question_that_makes_no_sense_is_a_usage_error(images, tmp_path, options, message):
    with pytest.raises(UsageError) as caught:
        data_only.quantize(images / "net.onnx", tmp_path / "q.onnx", **options)
    assert message in str(caught.value)


def test_the_model_itself_is_not_overwritten(images):
    before = (images / "net.onnx").read_bytes()
    with pytest.raises(UsageError, match="is the model itself"):
        likewise.quantize(images / "net.onnx", images / "net.onnx")
    assert (images / "net.onnx").read_bytes() == before


def test_calibration_rows_that_cannot_be_fed_are_said(images, tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros((4, 3, 5, 5), dtype=np.float32))
    with pytest.raises(LikewiseError, match="takes shape"):
        likewise.quantize(
            images / "net.onnx", tmp_path / "q.onnx", mode="static", calibrate=str(tmp_path / "other.npz")
        )


def test_the_verdict_is_a_failure_where_the_limits_say_so(images, tmp_path):
    done = data_only.quantize(
        images / "net.onnx", tmp_path / "q.onnx", data=str(images / "images.npz"), abs_tol=1e-6, speed=False
    )
    assert not done
    assert done.report.outcome == "FAIL"
    assert (tmp_path / "q.onnx").exists()


def test_a_fixed_batch_is_calibrated_whole(images, tmp_path):
    onnx.save(convolutions(rows=8), tmp_path / "fixed.onnx")
    done = data_only.quantize(
        tmp_path / "fixed.onnx",
        tmp_path / "q.onnx",
        mode="static",
        data=str(images / "images.npz"),
        fixed_batch=True,
        speed=False,
    )
    assert done.report.outcome == "PASS"


def test_rows_along_another_axis_are_calibrated_on_and_checked(images, tmp_path):
    proto = convolutions()
    proto.graph.node.insert(0, helper.make_node("Transpose", ["sideways"], ["x"], name="turn", perm=[1, 0, 2, 3]))
    value = helper.make_tensor_value_info("sideways", TensorProto.FLOAT, [3, "n", 12, 12])
    proto.graph.input[0].CopyFrom(value)
    onnx.save(proto, tmp_path / "sideways.onnx")
    done = data_only.quantize(
        tmp_path / "sideways.onnx",
        tmp_path / "q.onnx",
        mode="static",
        data=str(images / "images.npz"),
        batch_axis={"sideways": 1},
    )
    assert done.report.outcome == "PASS"
    assert done.report.samples == 96
    assert done.timing is not None


def test_nothing_is_printed_and_nothing_is_left_changed(images, tmp_path):
    script = (
        "import sys, logging, likewise\n"
        "before = (list(sys.path), list(logging.root.handlers), logging.root.manager.disable)\n"
        "for mode in ('fp16', 'dynamic', 'static', 'fp16'):\n"
        "    options = {'data': sys.argv[3], 'calibration': 'percentile', 'check': False}\n"
        "    likewise.quantize(sys.argv[1], sys.argv[2], mode=mode, **options)\n"
        "assert before == (list(sys.path), list(logging.root.handlers), logging.root.manager.disable)\n"
    )
    words = [images / "net.onnx", tmp_path / "q.onnx", images / "images.npz"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert logging.root.manager.disable == 0


def test_the_command_prints_size_speed_difference_and_choices_and_exits_with_the_verdict(images, tmp_path):
    shutil.copy(images / "net.onnx", tmp_path)
    shutil.copy(images / "images.npz", tmp_path)
    done = here("quantize", "net.onnx", "-o", "q.onnx", "--data", "images.npz", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    text = " ".join(done.stdout.split())
    assert "q.onnx: " in text
    assert " at batch 96 (" in text
    assert "largest difference" in text
    assert "-bit weights" in text
    assert "preset quantized" in text
    report = json.loads((tmp_path / "parity_report.json").read_text())
    assert report["passed"] is True
    failed = here(
        "quantize",
        "net.onnx",
        "-o",
        "q.onnx",
        "--data",
        "images.npz",
        "--abs-tol",
        "1e-6",
        "--no-speed",
        "--json",
        folder=tmp_path,
    )
    assert failed.returncode == 1
    told = json.loads(failed.stdout)
    assert told["report"]["outcome"] == "FAIL"
    assert told["quantized"]["changed"] > 0


def test_without_data_the_command_says_that_nothing_was_checked(images, tmp_path):
    done = here("quantize", images / "net.onnx", "-o", "q.onnx", folder=tmp_path)
    assert done.returncode == 0
    assert "Not checked: give --data FILE" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["q.onnx"]


def test_exit_codes_of_what_is_refused(example_folder, images, tmp_path):
    tree = here("quantize", example_folder / "booster.onnx", "-o", "q.onnx", folder=tmp_path)
    assert (tree.returncode, tree.stdout) == (3, "")
    assert "no weights to quantise" in tree.stderr
    static = here("quantize", images / "net.onnx", "-o", "q.onnx", "--mode", "static", folder=tmp_path)
    assert static.returncode == 2
    assert "needs rows to calibrate on" in static.stderr
    assert not list(tmp_path.iterdir())
