"""The graph is right, and what runs it is not; or the graph acts as in training, or throws dice."""

from __future__ import annotations

import numpy as np
import pytest
import small_graphs as sg
import torch
from torch import nn

import data_only
from likewise.models.onnx import edits, rewrites


def test_the_pass_of_the_optimiser_is_named():
    """ONNX Runtime merges a Pad into MaxPool, which pads with minus infinity instead of zero."""
    nodes = [
        sg.node("Pad", "x pads", "padded"),
        sg.node("MaxPool", "padded", "pooled", kernel_shape=[2, 2], strides=[2, 2]),
        sg.node("Flatten", "pooled", "output"),
    ]
    pads = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    candidate = sg.graph(nodes, pads, inputs={"x": (3, 6, 6)}, output=("output", ["n", 48]))
    data = {"x": -np.abs(np.random.default_rng(0).normal(size=(64, 3, 6, 6))).astype(np.float32)}

    def reference(x):
        return nn.functional.max_pool2d(nn.functional.pad(x, (1, 1, 1, 1)), 2).flatten(1)

    best = sg.explained(sg.Function(reference), candidate, data)
    assert (best.cause, best.culprit) == ("runtime-optimization", "Pad_Fusion")
    assert "disabled_optimizers=Pad_Fusion" in best.remedy


def test_noise_in_the_candidate():
    nodes = [
        sg.node("Identity", "x", "same"),
        sg.node("RandomNormalLike", "same", "noise", scale=0.1),
        sg.node("Add", "same noise", "output"),
    ]
    candidate = sg.graph(nodes, inputs={"x": (8,)}, output=("output", ["n", 8]))
    best = sg.explained(nn.Identity(), candidate, {"input": sg.rows()}, feed={"x": "input"})
    assert (best.cause, best.culprit) == ("nondeterminism", "candidate (RandomNormalLike (node 'node_noise'))")


def test_noise_in_the_reference():
    candidate = sg.graph([sg.node("Identity", "x", "output")], inputs={"x": (8,)}, output=("output", ["n", 8]))
    best = sg.explained(sg.Function(lambda x: x + torch.randn_like(x)), candidate, {"x": sg.rows()})
    assert (best.cause, best.culprit) == ("nondeterminism", "reference")


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.line, self.norm = nn.Linear(8, 4), nn.BatchNorm1d(4)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        return self.norm(self.line(x))


def normalised(*nodes):
    module = Normalised().eval()
    constants = {name: tensor.numpy() for name, tensor in module.state_dict().items() if tensor.ndim}
    constants |= {"epsilon": np.float32(1e-5), "rows": np.array([0])}
    line = sg.node("Gemm", "x line.weight line.bias", "h", transB=1)
    return module, sg.graph([line, *nodes], constants, inputs={"x": (8,)}, output=("output", ["n", 4]))


def test_batch_norm_in_training_mode():
    inputs = "h norm.weight norm.bias norm.running_mean norm.running_var"
    module, candidate = normalised(sg.node("BatchNormalization", inputs, "output mean_out var_out", training_mode=1))
    best = sg.explained(module, candidate, {"x": sg.rows()})
    assert (best.cause, best.culprit) == ("training-mode", "BatchNormalization (node 'node_output')")


def test_one_batch_norm_of_two_in_training_mode():
    """The example that an exporter ran has moved its statistics: at rest the candidate would be wrong as well."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4)).eval()
    for norm in (module[1], module[2]):
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    stored = {f"m{name}": value.numpy() for name, value in module.state_dict().items() if "num" not in name}
    stored["m1.running_mean"] = stored["m1.running_mean"] + 0.3
    inputs = [f"m{place}.{name}" for place in (1, 2) for name in ("weight", "bias", "running_mean", "running_var")]
    nodes = [
        sg.node("Gemm", "x m0.weight m0.bias", "h", transB=1),
        sg.node("BatchNormalization", " ".join(["h", *inputs[:4]]), "g mean_out var_out", training_mode=1),
        sg.node("BatchNormalization", " ".join(["g", *inputs[4:]]), "output"),
    ]
    candidate = sg.graph(nodes, stored, inputs={"x": (8,)}, output=("output", ["n", 4]))
    best = sg.explained(module, candidate, {"input": sg.rows()}, feed={"x": "input"})
    assert best.cause == "training-mode"
    assert best.culprit == "1"


def test_batch_norm_written_out_as_in_training():
    module, candidate = normalised(
        sg.node("ReduceMean", "h rows", "mean"),
        sg.node("Sub", "h mean", "centred"),
        sg.node("Mul", "centred centred", "square"),
        sg.node("ReduceMean", "square rows", "variance"),
        sg.node("Add", "variance epsilon", "more"),
        sg.node("Sqrt", "more", "deviation"),
        sg.node("Div", "centred deviation", "standard"),
        sg.node("Mul", "standard norm.weight", "scaled"),
        sg.node("Add", "scaled norm.bias", "output"),
    )
    best = sg.explained(module, candidate, {"x": sg.rows()})
    assert (best.cause, best.culprit) == ("training-mode", "norm")


def test_batch_norm_in_inference_passes():
    inputs = "h norm.weight norm.bias norm.running_mean norm.running_var"
    module, candidate = normalised(sg.node("BatchNormalization", inputs, "output"))
    assert data_only.explain(module, candidate, {"x": sg.rows()}).diagnoses == ()


@pytest.mark.parametrize(
    ("operator", "attributes", "reference", "cause", "told"),
    [
        ("Gelu", {"approximate": "tanh"}, nn.functional.gelu, "approximation", "approximate=none"),
        ("HardSwish", {}, nn.functional.silu, "approximation", "sigmoid"),
        ("Round", {}, lambda x: torch.floor(x + 0.5), "operator-semantics", "halves rounded up"),
        ("Softmax", {"axis": 0}, lambda x: torch.softmax(x, -1), "operator-attribute", "axis=-1"),
    ],
)
def test_operators_that_frameworks_do_not_agree_about(operator, attributes, reference, cause, told):
    node = sg.node(operator, "x", "output", **attributes)
    candidate = sg.graph([node], inputs={"x": (8,)}, output=("output", ["n", 8]), opset=20)
    rows = np.round(sg.rows() * 4) / 2
    best = sg.explained(sg.Function(reference), candidate, {"x": rows})
    assert best.cause == cause
    assert "node_output" in best.culprit
    assert told in best.evidence


def test_only_whole_numbers_may_have_been_meant_to_be_divided_with_a_floor():
    """Of floats, a floor also takes away differences of rounding: both sides end at the same whole number."""
    plain, sizes = {"three": np.float32([3])}, {"inputs": {"x": (8,)}, "output": ("output", ["n", 8])}
    candidate = sg.graph([sg.node("Div", "x three", "output")], plain, **sizes)
    told = [found.told for found in rewrites.alternatives(candidate, edits.tensor_types(candidate))]
    assert told == []
    casts = sg.node("Cast", "x", "whole", to=7), sg.node("Cast", "third", "output", to=1)
    whole = [casts[0], sg.node("Div", "whole three", "third"), casts[1]]
    candidate = sg.graph(whole, {"three": np.array([3])}, **sizes)
    rows = np.round(sg.rows() * 9)
    best = sg.explained(sg.Function(lambda x: torch.div(x, 3, rounding_mode="floor")), candidate, {"x": rows})
    assert best.cause == "operator-semantics"
    assert "a quotient rounded down" in best.evidence


def test_equal_values_are_ranked_in_any_order():
    nodes = [
        sg.node("TopK", "x three", "values places", axis=1),
        sg.node("Cast", "places", "output", to=sg.FLOAT),
    ]
    candidate = sg.graph(nodes, {"three": np.array([3])}, inputs={"x": (8,)}, output=("output", ["n", 3]))
    rows = np.round(sg.rows())

    def reference(x):
        return x.flip(1).sort(dim=1, descending=True, stable=True).indices[:, :3].mul(-1).add(7).float()

    best = sg.explained(sg.Function(reference), candidate, {"x": rows})
    assert best.cause == "tie-breaking"
    assert "TopK" in best.culprit
