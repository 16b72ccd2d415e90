"""Faults in networks of sequences and graphs: recurrent layers, transformers, causal convolutions, messages."""

from __future__ import annotations

import numpy as np

from locate_faults.corpus import Fault
from locate_faults.dense import exchanged, older
from locate_faults.edits import attribute, freeze, leave_out, replace, rewire, swap_inputs, swap_outputs, weight


def gates(order: tuple[int, ...]) -> object:
    """The gates of a recurrent layer in another order."""

    def change(w: np.ndarray) -> np.ndarray:
        parts = np.split(w, len(order), axis=1)
        return np.concatenate([parts[i] for i in order], axis=1)

    return change


def half(w: np.ndarray) -> np.ndarray:
    w[:, w.shape[1] // 2 :] = 0
    return w


def no_start(model: object) -> None:
    from locate_faults.edits import node_at

    _, node = node_at(model, "GRU", 0)
    node.input[5] = ""


FAULTS = [
    Fault("lstm-directions", "lstm/legacy", "weight edited", weight("LSTM", 0, 2, lambda w: w[::-1])),
    Fault("lstm-reverse", "lstm/legacy", "attribute changed", attribute("LSTM", 1, "direction", "reverse")),
    Fault("lstm-gate-order", "lstm/legacy", "weight edited", weight("LSTM", 1, 1, gates((0, 1, 3, 2))), against="onnx"),
    Fault("lstm-softmax-axis", "lstm/dynamo", "attribute changed", attribute("Softmax", 0, "axis", 2)),
    Fault(
        "lstm-recurrent-bias", "lstm/dynamo", "weight edited", weight("LSTM", 1, 3, half), also=("model-part-dropped",)
    ),
    Fault("lstm-cell-state", "lstm/legacy", "wiring", rewire("Gather", 2, 0, ("LSTM", 1), out=2)),
    Fault("lstm-tanh", "lstm/dynamo", "activation left out", leave_out("Tanh", 0), against="onnx"),
    Fault("lstm-score-stale", "lstm/legacy", "weights stale", module=older("second", amount=0.03), paths=("second",)),
    Fault("gru-reset", "gru/legacy", "attribute changed", attribute("GRU", 0, "linear_before_reset", 0)),
    Fault("gru-no-start", "gru/legacy", "part left out", no_start, against="onnx", also=("wrong-wiring",)),
    Fault(
        "gru-no-floor", "gru/legacy", "part left out", leave_out("Add", 0), against="onnx", also=("wrong-intermediate",)
    ),
    Fault(
        "gru-first-step",
        "gru/dynamo",
        "constant edited",
        weight("Gather", 0, 1, np.zeros_like),
        also=("wrong-wiring", "operator-semantics"),
    ),
    Fault("gru-hard-gate", "gru/dynamo", "approximated", replace("Sigmoid", 0, "HardSigmoid")),
    Fault("gru-heads", "gru/dynamo", "outputs swapped", swap_outputs(), paths=("out0", "out1", "output.0", "output.1")),
    Fault("gru-hidden-order", "gru/legacy", "weight edited", weight("GRU", 0, 2, gates((1, 0, 2)))),
    Fault(
        "encoder-mask-inverted", "encoder/dynamo", "wiring", swap_inputs("Where", 1, 1, 2), also=("operator-semantics",)
    ),
    Fault(
        "encoder-no-mask", "encoder/legacy", "part left out", leave_out("Where@layers.2", 0, 2), also=("wrong-wiring",)
    ),
    Fault(
        "encoder-weak-mask",
        "encoder/dynamo",
        "constant edited",
        weight("Where", 0, 1, lambda w: w * 0 - 1),
        against="onnx",
    ),
    Fault(
        "encoder-norm-eps", "encoder/dynamo", "attribute changed", attribute("LayerNormalization", 3, "epsilon", 1e-2)
    ),
    Fault(
        "encoder-gelu-tanh",
        "encoder/dynamo",
        "approximated",
        attribute("Gelu", 1, "approximate", "tanh"),
        against="onnx",
        options={"abs_tol": 1e-5, "rel_tol": 1e-4},
    ),
    Fault(
        "encoder-query-key",
        "encoder/dynamo",
        "weight edited",
        module=exchanged("layers.1.attn.query", "layers.1.attn.key"),
        paths=("layers.1.attn.query", "layers.1.attn.key"),
        also=("wrong-wiring",),
    ),
    Fault("encoder-positions", "encoder/dynamo", "weight edited", weight("Add", 0, 1, lambda w: np.roll(w, 1, -2))),
    Fault(
        "encoder-residual",
        "encoder/legacy",
        "wiring",
        rewire("Add@/layers.2/Add_1", 0, 0, ("Add@/layers.1/Add_1", 0)),
        against="onnx",
    ),
    Fault("encoder-temperature", "encoder/dynamo", "constant edited", weight("Div", 0, 1, lambda w: w * 1.3)),
    Fault(
        "encoder-value-transposed",
        "encoder/legacy",
        "weight edited",
        weight("MatMul@layers.0/attn/value", 0, 1, lambda w: w.T),
    ),
    Fault(
        "encoder-frozen-length",
        "encoder/dynamo",
        "frozen by trace",
        freeze("ReduceSum", 1, np.full((1, 1), 16, np.float32)),
        also=("aggregation", "wrong-wiring"),
    ),
    Fault("encoder-stale-norm", "encoder/dynamo", "weights stale", module=older("norm"), paths=("norm",)),
    Fault(
        "encoder-value-from-input",
        "encoder/legacy",
        "wiring",
        rewire("MatMul@layers.1/attn/value", 0, 0, ("Add@/layers.0/Add_1", 0)),
    ),
    Fault("decoder-rms-eps", "decoder/dynamo", "constant edited", weight("Add", 15, 1, lambda w: w * 300)),
    Fault(
        "decoder-mask-transposed",
        "decoder/dynamo",
        "constant edited",
        weight("Where", 1, 0, lambda w: w.T),
        against="onnx",
    ),
    Fault(
        "decoder-no-silu",
        "decoder/dynamo",
        "activation left out",
        rewire("Mul", 5, 0, ("MatMul", 6)),
        also=("wrong-wiring",),
    ),
    Fault(
        "decoder-gate-up",
        "decoder/legacy",
        "weight edited",
        module=exchanged("layers.0.gate", "layers.0.up"),
        paths=("layers.0.gate", "layers.0.up"),
        also=("wrong-wiring",),
    ),
    Fault(
        "decoder-untied", "decoder/dynamo", "weights stale", weight("MatMul", -1, 1, lambda w: w * 0.97), against="onnx"
    ),
    Fault(
        "decoder-waves",
        "decoder/dynamo",
        "constant edited",
        weight("Add", 0, 1, lambda w: np.roll(w, 8, -1)),
        also=("stale-weights",),
    ),
    Fault(
        "decoder-bf16-weights",
        "decoder/legacy",
        "weight edited",
        weight("MatMul@layers.1/down", 0, 1, lambda w: (w.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)),
        also=("precision-reduction",),
    ),
    Fault("gnn-scatter-last", "gnn/dynamo", "attribute changed", attribute("ScatterElements", 0, "reduction", "none")),
    Fault("gnn-edges-reversed", "gnn/dynamo", "wiring", rewire("GatherElements", 0, 1, ("Expand", 2))),
    Fault(
        "gnn-scatter-max",
        "gnn/legacy",
        "attribute changed",
        attribute("ScatterElements", 1, "reduction", "mul"),
        against="onnx",
    ),
    Fault(
        "gnn-mean-pool",
        "gnn/dynamo",
        "operator replaced",
        replace("ReduceSum", 0, "ReduceMean"),
        against="onnx",
        also=("aggregation",),
    ),
    Fault("gnn-pool-order", "gnn/legacy", "wiring", swap_inputs("Concat", 0)),
    Fault("gnn-no-relu", "gnn/dynamo", "activation left out", leave_out("Relu", 1)),
    Fault(
        "gnn-own-stale",
        "gnn/legacy",
        "weights stale",
        weight("MatMul", 3, 1, lambda w: w + 0.02 * np.sin(np.arange(w.size)).reshape(w.shape)),
    ),
    Fault("tcn-not-causal", "tcn/dynamo", "attribute changed", attribute("Conv", 1, "pads", [2, 2])),
    Fault(
        "tcn-prelu-shared",
        "tcn/legacy",
        "weight edited",
        weight("PRelu", 0, 1, lambda w: w * 0 + w.mean()),
        against="onnx",
    ),
    Fault("tcn-cumsum-reverse", "tcn/dynamo", "attribute changed", attribute("CumSum", 0, "reverse", 1)),
    Fault("tcn-norm-eps", "tcn/legacy", "attribute changed", attribute("InstanceNormalization", 0, "epsilon", 1e-2)),
]
