"""Faults inside the graphs of If, Loop and Scan, in files written by hand: the reference is the sound file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from locate_faults.corpus import WORDS, Built, Edit, beyond, run, truth_of
from locate_faults.edits import attribute, freeze, leave_out, replace, rewire, swap_inputs, weight

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node, info = helper.make_node, helper.make_tensor_value_info


def held(rng: np.random.Generator, name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array((rng.normal(size=shape) * 0.6).astype(np.float32), name)


def refiner() -> onnx.ModelProto:
    """An estimate refined five times in a Loop, then scaled by the branch that the number of features asks for."""
    rng = np.random.default_rng(3)
    body = helper.make_graph(
        [
            node("MatMul", ["h_in", "step_w"], ["moved"], name="step_matmul"),
            node("Add", ["moved", "encoded"], ["driven"], name="step_add"),
            node("Tanh", ["driven"], ["bent"], name="step_tanh"),
            node("Mul", ["bent", "rate"], ["kept"], name="step_rate"),
            node("Add", ["h_in", "kept"], ["h_out"], name="step_residual"),
            node("Identity", ["go_in"], ["go_out"], name="step_go"),
        ],
        "refine",
        [info("i", I64, []), info("go_in", BOOL, []), info("h_in", F32, ["n", 8])],
        [info("go_out", BOOL, []), info("h_out", F32, ["n", 8])],
    )
    wide = helper.make_graph(
        [
            node("Gemm", ["refined", "wide_w", "wide_b"], ["wide_gemm_out"], name="wide_gemm"),
            node("LeakyRelu", ["wide_gemm_out"], ["wide_out"], name="wide_leaky", alpha=0.2),
        ],
        "wide", [], [info("wide_out", F32, ["n", 6])], [held(rng, "wide_w", 8, 6), held(rng, "wide_b", 6)],
    )  # fmt: skip
    narrow = helper.make_graph(
        [node("MatMul", ["refined", "narrow_w"], ["narrow_out"], name="narrow_matmul")],
        "narrow", [], [info("narrow_out", F32, ["n", 6])], [held(rng, "narrow_w", 8, 6)],
    )  # fmt: skip
    nodes = [
        node("Gemm", ["x", "enc_w", "enc_b"], ["encoded"], name="encode"),
        node("Relu", ["encoded"], ["first"], name="encode_relu"),
        node("Loop", ["trips", "go", "first"], ["refined"], name="refine_loop", body=body),
        node("Shape", ["x"], ["size"], name="size_of"),
        node("Gather", ["size", "one"], ["features"], name="features_of"),
        node("Greater", ["features", "limit"], ["is_wide"], name="is_wide_test"),
        node("If", ["is_wide"], ["branch"], name="choose", then_branch=wide, else_branch=narrow),
        node("Softmax", ["branch"], ["answer"], name="link", axis=-1),
    ]
    extra = [
        held(rng, "enc_w", 10, 8), held(rng, "enc_b", 8), held(rng, "step_w", 8, 8),
        numpy_helper.from_array(np.float32(0.5), "rate"), numpy_helper.from_array(np.int64(5), "trips"),
        numpy_helper.from_array(np.ones((), bool), "go"), numpy_helper.from_array(np.int64(1), "one"),
        numpy_helper.from_array(np.int64(6), "limit"),
    ]  # fmt: skip
    return model(nodes, [info("x", F32, ["n", 10])], [info("answer", F32, ["n", 6])], extra)


def scanner() -> onnx.ModelProto:
    """A cell of one's own in a Scan over time, with a gate."""
    rng = np.random.default_rng(4)
    body = helper.make_graph(
        [
            node("Gemm", ["s_in", "u", "cell_b"], ["from_state"], name="cell_state"),
            node("MatMul", ["x_t", "w"], ["from_input"], name="cell_input"),
            node("Add", ["from_state", "from_input"], ["raw"], name="cell_sum"),
            node("Sigmoid", ["raw"], ["gate"], name="cell_gate"),
            node("Tanh", ["from_input"], ["news"], name="cell_news"),
            node("Sub", ["news", "s_in"], ["change"], name="cell_change"),
            node("Mul", ["gate", "change"], ["moved"], name="cell_move"),
            node("Add", ["s_in", "moved"], ["s_out"], name="cell_next"),
            node("Identity", ["s_out"], ["y_t"], name="cell_emit"),
        ],
        "cell",
        [info("s_in", F32, ["n", 7]), info("x_t", F32, ["n", 4])],
        [info("s_out", F32, ["n", 7]), info("y_t", F32, ["n", 7])],
    )
    nodes = [
        node("Transpose", ["series"], ["by_time"], name="to_time", perm=[1, 0, 2]),
        node("Gather", ["by_time", "zero"], ["start"], name="first_step"),
        node("MatMul", ["start", "start_w"], ["s0"], name="start_state"),
        node("Scan", ["s0", "by_time"], ["last", "all"], name="scan_time", body=body, num_scan_inputs=1),
        node("ReduceMax", ["all"], ["peak"], name="peak_of", axes=[0], keepdims=0),
        node("Concat", ["last", "peak"], ["both"], name="join", axis=1),
        node("Gemm", ["both", "head_w", "head_b"], ["answer"], name="head"),
    ]
    extra = [
        held(rng, "u", 7, 7), held(rng, "cell_b", 7), held(rng, "w", 4, 7), held(rng, "start_w", 4, 7),
        held(rng, "head_w", 14, 2), held(rng, "head_b", 2), numpy_helper.from_array(np.int64(0), "zero"),
    ]  # fmt: skip
    return model(nodes, [info("series", F32, ["n", 6, 4])], [info("answer", F32, ["n", 2])], extra)


def model(nodes: list, inputs: list, outputs: list, extra: list) -> onnx.ModelProto:
    made = helper.make_model(
        helper.make_graph(nodes, "hand", inputs, outputs, extra),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    onnx.checker.check_model(made)
    return made


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, tuple[int, ...]]]] = {
    "refiner": (refiner, {"x": (10,)}),
    "scanner": (scanner, {"series": (6, 4)}),
}
FAULTS: list[tuple[str, str, str, Edit, tuple[str, ...]]] = [
    ("loop-weight", "refiner", "weight edited", weight("MatMul", 0, 1, lambda w: w.T), ()),
    ("loop-tanh", "refiner", "operator replaced", replace("Tanh", 0, "Softsign"), ()),
    (
        "loop-trips",
        "refiner",
        "constant edited",
        weight("Loop", 0, 0, lambda w: w - 1),
        ("model-part-dropped", "traced-branch"),
    ),
    ("loop-rate", "refiner", "constant edited", weight("Mul@step_rate", 0, 1, lambda w: w * 0 + 0.45), ()),
    ("loop-residual", "refiner", "wiring", rewire("Add@step_residual", 0, 0, ("Add@step_add", 0)), ()),
    ("if-slope", "refiner", "attribute changed", attribute("LeakyRelu", 0, "alpha", 0.01), ()),
    (
        "if-frozen",
        "refiner",
        "frozen by trace",
        freeze("Greater", 0, np.zeros((), bool)),
        ("wrong-wiring", "operator-semantics"),
    ),
    ("if-bias", "refiner", "part left out", weight("Gemm@wide", 0, 2, np.zeros_like), ("weight-corruption",)),
    ("if-no-activation", "refiner", "activation left out", leave_out("LeakyRelu", 0), ()),
    ("scan-reverse", "scanner", "attribute changed", attribute("Scan", 0, "scan_input_directions", [1]), ()),
    ("scan-gate", "scanner", "approximated", replace("Sigmoid", 0, "HardSigmoid"), ()),
    ("scan-change", "scanner", "wiring", swap_inputs("Sub", 0), ("operator-semantics",)),
    ("scan-peak", "scanner", "operator replaced", replace("ReduceMax", 0, "ReduceMin"), ("aggregation",)),
    ("scan-cell-bias", "scanner", "weights stale", weight("Gemm@cell", 0, 2, lambda w: w + 0.01), ()),
]


def makers(store: object) -> Iterator[tuple[str, Callable[[Path], Built]]]:
    for name, base, word, edit, also in FAULTS:
        yield name, partial(plant, name, base, word, edit, also)
    for base in MODELS:
        yield f"clean-{base}", partial(plant, f"clean-{base}", base, "", None, ())


def plant(name: str, base: str, word: str, edit: Edit | None, also: tuple[str, ...], place: Path) -> Built:
    make, shapes = MODELS[base]
    rng = np.random.default_rng(5)
    rows = {key: rng.normal(size=(128, *shape)).astype(np.float32) for key, shape in shapes.items()}
    np.savez(place / "rows.npz", **rows)
    sound, faulty = make(), make()
    onnx.save(sound, str(place / "reference.onnx"))
    paths = str(place / "reference.onnx"), str(place / "candidate.onnx"), str(place / "rows.npz")
    if edit is None:  # the same computation, written otherwise: what an optimiser leaves
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = paths[1]
        ort.InferenceSession(paths[0], options, providers=["CPUExecutionProvider"])
        assert not beyond(run(paths[0], rows), run(paths[1], rows))
        return Built(name, "clean", *paths)
    edit(faulty)
    onnx.save(faulty, paths[1])
    truth = truth_of(sound, faulty)
    assert truth.nodes, name
    assert beyond(run(paths[0], rows), run(paths[1], rows)), name
    return Built(
        name, "control flow", *paths, word, (*WORDS[word], *also), tuple(truth.nodes), tuple(truth.tensors), (), {},
        f"{word} inside {base}, reference onnx",
    )  # fmt: skip
