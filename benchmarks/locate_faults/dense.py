"""Faults in dense networks: a normalised MLP, a recommender of embeddings, and a network of three inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from locate_faults.corpus import Fault
from locate_faults.edits import attribute, both, leave_out, replace, rewire, swap_inputs, weight


def older(*names: str, amount: float = 0.05) -> Any:
    """Weights of an earlier checkpoint in the named modules."""

    def change(net: Any) -> None:
        import torch

        torch.manual_seed(7)
        with torch.no_grad():
            for name in names:
                for value in net.get_submodule(name).parameters():
                    value.add_(torch.randn_like(value) * amount)

    return change


def exchanged(first: str, second: str) -> Any:
    """Two modules carry each other's weights."""

    def change(net: Any) -> None:
        one, two = net.get_submodule(first), net.get_submodule(second)
        a, b = dict(one.state_dict()), dict(two.state_dict())
        a = {k: v.clone() for k, v in a.items()}
        one.load_state_dict({k: v.clone() for k, v in b.items()})
        two.load_state_dict(a)

    return change


def first_rows_swapped(w: np.ndarray) -> np.ndarray:
    w[[0, 1]] = w[[1, 0]]
    return w


FAULTS = [
    Fault(
        "mlp-gelu-tanh",
        "mlp/dynamo",
        "approximated",
        attribute("Gelu", 0, "approximate", "tanh"),
        options={"abs_tol": 1e-5, "rel_tol": 1e-4},
    ),
    Fault(
        "mlp-layernorm-eps",
        "mlp/legacy",
        "attribute changed",
        attribute("LayerNormalization", 0, "epsilon", 1e-2),
        against="onnx",
    ),
    Fault("mlp-leaky-slope", "mlp/dynamo", "attribute changed", attribute("LeakyRelu", 0, "alpha", 0.01)),
    Fault(
        "mlp-head-rows",
        "mlp/dynamo",
        "weight edited",
        weight("Gemm", -1, 1, first_rows_swapped),
        against="onnx",
        also=("label-order", "output-mapping"),
    ),
    Fault("mlp-tanh-left-out", "mlp/legacy", "activation left out", leave_out("Tanh", 0)),
    Fault("mlp-skip-too-late", "mlp/dynamo", "wiring", rewire("Add", 0, 0, ("Gemm", 1))),
    Fault(
        "mlp-softmax-axis",
        "mlp/dynamo",
        "attribute changed",
        attribute("Softmax", 0, "axis", 0),
        also=("batch-dependence", "link-function"),
    ),
    Fault(
        "mlp-transposed",
        "mlp/legacy",
        "weight edited",
        attribute("Gemm", 1, "transB", 0),
        against="onnx",
        also=("operator-attribute",),
    ),
    Fault("mlp-stale-entry", "mlp/dynamo", "weights stale", module=older("entry"), paths=("entry",)),
    Fault("mlp-logits", "mlp/legacy", "link left out", leave_out("Softmax", 0), also=("wrong-intermediate",)),
    Fault(
        "mlp-dead-unit",
        "mlp/dynamo",
        "weight edited",
        weight("Gemm", 2, 1, lambda w: w * (np.arange(16) != 5)[:, None]),
    ),
    Fault(
        "mlp-erf-scale",
        "mlp/legacy",
        "constant edited",
        weight("Div", 0, 1, lambda w: w * 1.1),
        also=("approximation", "operator-semantics"),
    ),
    Fault(
        "recommender-item-shift",
        "recommender/dynamo",
        "weight edited",
        weight("Gather", 1, 0, lambda w: np.roll(w, 1, 0)),
        also=("stale-weights", "label-mapping"),
    ),
    Fault("recommender-hard-sigmoid", "recommender/legacy", "approximated", replace("Sigmoid", 0, "HardSigmoid")),
    Fault(
        "recommender-pairs",
        "recommender/dynamo",
        "constant edited",
        weight("GatherND", 1, 1, lambda w: w[::-1]),
        against="onnx",
        also=("wrong-wiring", "operator-semantics"),
    ),
    Fault(
        "recommender-link",
        "recommender/legacy",
        "link left out",
        leave_out("Sigmoid", 1),
        also=("wrong-intermediate", "output-kind"),
    ),
    Fault(
        "recommender-mean",
        "recommender/dynamo",
        "operator replaced",
        replace("ReduceSum", 0, "ReduceMean"),
        also=("aggregation",),
    ),
    Fault("recommender-wrong-ids", "recommender/legacy", "wiring", rewire("Gather", 1, 1, "user"), against="onnx"),
    Fault(
        "recommender-dense-bias",
        "recommender/dynamo",
        "part left out",
        weight("Gemm", 1, 2, np.zeros_like),
        also=("weight-corruption",),
    ),
    Fault("recommender-stack-order", "recommender/legacy", "wiring", swap_inputs("Concat", 0, 0, 3)),
    Fault(
        "fusion-beta",
        "fusion/dynamo",
        "constant edited",
        both(weight("Mul", 0, 1, np.ones_like), weight("Div", 0, 1, np.ones_like)),
        also=("operator-semantics",),
    ),
    Fault(
        "fusion-sign",
        "fusion/dynamo",
        "activation left out",
        leave_out("Sign", 0),
        against="onnx",
        also=("wrong-wiring",),
    ),
    Fault("fusion-bn-eps", "fusion/dynamo", "attribute changed", attribute("BatchNormalization", 0, "epsilon", 0.1)),
    Fault("fusion-clip", "fusion/dynamo", "constant edited", weight("Clip", 0, 2, lambda w: w * 0 + 0.4)),
    Fault(
        "fusion-softmax",
        "fusion/dynamo",
        "operator replaced",
        replace("LogSoftmax", 0, "Softmax"),
        against="onnx",
        also=("link-function", "output-kind"),
    ),
    Fault("fusion-concat", "fusion/dynamo", "wiring", rewire("Concat@cat_1", 0, 0, ("Add", 0))),
    Fault(
        "fusion-stale-risk", "fusion/dynamo", "weights stale", module=older("risk.2"), paths=("risk.2",), against="onnx"
    ),
]
