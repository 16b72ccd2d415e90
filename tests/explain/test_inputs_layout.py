"""Pictures in another layout, channel order, scale or normalisation."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from broken_inputs import before, explained
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import data_only

MEAN, DEVIATION = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)


class Net(nn.Module):
    """A small network for pictures, that may take mean and deviation out first."""

    def __init__(self, normalise=False):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
        self.normalise = normalise
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.3]).reshape(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.2, 0.3, 0.25]).reshape(1, 3, 1, 1))

    def forward(self, image):
        return self.body((image - self.mean) / self.std if self.normalise else image)


def graph_of(net):
    """The body of the network as an ONNX graph."""
    conv, _, _, linear = net.body
    weights = {"w": conv.weight, "b": conv.bias, "v": linear.weight, "c": linear.bias}
    nodes = [
        helper.make_node("Conv", ["image", "w", "b"], ["convolved"]),
        helper.make_node("Relu", ["convolved"], ["positive"]),
        helper.make_node("Flatten", ["positive"], ["flat"]),
        helper.make_node("Gemm", ["flat", "v", "c"], ["output"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [None, 3, 8, 8])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [None, 5])],
        [numpy_helper.from_array(value.detach().numpy(), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def pictures():
    return {"image": np.random.default_rng(0).random((60, 3, 8, 8), dtype=np.float32)}


CHANGES = {
    "BGR instead of RGB": [("Gather", ["order"], {"axis": 1})],
    "times 255": [("Div", ["scale"], {})],
    "divided by 255": [("Mul", ["scale"], {})],
    "height and width exchanged": [("Transpose", [], {"perm": [0, 1, 3, 2]})],
    "channels last (NHWC) instead of first": [
        ("Transpose", [], {"perm": [0, 2, 3, 1]}),
        ("Reshape", ["shape"], {}),
    ],
    "put back": [("Sub", ["mean"], {}), ("Div", ["deviation"], {})],
    "channels in reverse (BGR instead of RGB), and 0 to 255": [
        ("Div", ["scale"], {}),
        ("Gather", ["order"], {"axis": 1}),
    ],
}


@pytest.mark.parametrize("told", CHANGES)
def test_the_form_of_a_picture_is_told(net, pictures, told):
    candidate = before(
        graph_of(net),
        "image",
        *CHANGES[told],
        order=np.array([2, 1, 0]),
        scale=np.float32(255),
        shape=np.array([-1, 3, 8, 8]),
        mean=MEAN.reshape(1, 3, 1, 1),
        deviation=DEVIATION.reshape(1, 3, 1, 1),
    )
    assert told in explained(net, candidate, pictures, "input-layout", "image").culprit


def test_a_normalisation_of_the_reference_that_the_export_lacks_is_told(pictures):
    torch.manual_seed(0)
    reference = Net(normalise=True).eval()
    # The buffers of the module say it.
    found = data_only.explain(reference, graph_of(reference), pictures).diagnoses[0]
    assert (found.cause, found.culprit) == ("preprocessing-dropped", "mean, std (input 'image')")


def test_the_same_form_passes(net, pictures):
    report = data_only.explain(net, graph_of(net), pictures)
    assert report.passed
    assert report.diagnoses == ()


def test_a_form_that_suits_the_rows_of_others_as_well_is_not_told(net):
    """Small pictures, and an answer that hardly follows them: divided by 255 they all give what black gives."""
    rng = np.random.default_rng(0)
    pictures = {"image": rng.normal(0, 0.05, (60, 3, 8, 8)).astype(np.float32)}
    louder = graph_of(net)
    louder.graph.node[-1].output[0] = "clean"
    more = rng.normal(size=(3 * 8 * 8, 5)).astype(np.float32)
    louder.graph.initializer.append(numpy_helper.from_array(more, "more"))
    louder.graph.node.extend(
        [
            helper.make_node("Flatten", ["image"], ["pixels"]),
            helper.make_node("MatMul", ["pixels", "more"], ["loud"]),
            helper.make_node("Add", ["clean", "loud"], ["output"]),
        ]
    )
    report = data_only.explain(net, louder, pictures, abs_tol=0.12)
    assert not report.passed
    assert all(found.cause != "input-layout" for found in report.diagnoses)


def test_another_network_is_not_a_matter_of_form(net, pictures):
    torch.manual_seed(1)
    report = data_only.explain(net, graph_of(Net()), pictures, explain_budget=30)
    assert report.outcome == "FAIL"
    assert "input-layout" not in {found.cause for found in report.diagnoses}


def test_a_declared_shape_with_the_axes_in_another_order_is_told(net):
    candidate = before(graph_of(net), "image", ("Transpose", [], {"perm": [0, 3, 1, 2]}))
    shape = candidate.graph.input[0].type.tensor_type.shape
    shape.dim[1].dim_value, shape.dim[2].dim_value, shape.dim[3].dim_value = 8, 8, 3
    onnx.checker.check_model(candidate)
    data = {"image": np.random.default_rng(0).random((20, 3, 8, 8), dtype=np.float32)}
    told = explained(net, candidate, data, "input-layout", "image")
    assert told.remedy.endswith("array.transpose(0, 2, 3, 1)")
