"""Graphs of a few nodes, and small networks of PyTorch with the graph an exporter would write for them."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import data_only

FLOAT, HALF, DOUBLE, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT64


def node(operator, inputs, output, **attributes):
    return helper.make_node(operator, inputs.split(), output.split(), name=f"node_{output.split()[0]}", **attributes)


def graph(nodes, constants=None, *, inputs, output, kinds=(FLOAT, FLOAT), opset=18):
    """A graph with these nodes; `inputs` gives the widths by name, `output` is (name, shape)."""
    given = [helper.make_tensor_value_info(name, kinds[0], ["n", *shape]) for name, shape in inputs.items()]
    made = [helper.make_tensor_value_info(output[0], kinds[1], output[1])]
    stored = [numpy_helper.from_array(np.asarray(values), name) for name, values in (constants or {}).items()]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(helper.make_graph(nodes, "g", given, made, stored), opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(proto)
    return proto


class Network(nn.Module):
    """Two hidden layers."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.head = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 3)

    def forward(self, x):
        return self.head(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


@cache
def network():
    torch.manual_seed(0)
    return Network().eval()


def exported_network():
    """The network as an exporter writes it: a Gemm a layer, under the names of the parameters."""
    weights = {name: tensor.numpy() for name, tensor in network().state_dict().items()}
    nodes = [
        node("Gemm", "x fc1.weight fc1.bias", "linear", transB=1),
        node("Relu", "linear", "relu"),
        node("Gemm", "relu fc2.weight fc2.bias", "linear_1", transB=1),
        node("Relu", "linear_1", "relu_1"),
        node("Gemm", "relu_1 head.weight head.bias", "output", transB=1),
    ]
    return graph(nodes, weights, inputs={"x": (8,)}, output=("output", ["n", 3]))


def rows(count=200, width=8, *, seed=0):
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


class Function(nn.Module):
    """A function as a reference."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def explained(reference, candidate, data, **options):
    """The best diagnosis of a comparison that does not pass."""
    report = data_only.explain(reference, candidate, data, explain_budget=60, **options)
    assert not report.passed
    assert report.diagnoses, report.explanation
    return report.diagnoses[0]
