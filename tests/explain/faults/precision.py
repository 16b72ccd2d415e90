"""Digits: half precision, integers, float32 where the model has float64, overflow, approximations."""

from __future__ import annotations

import numpy as np
import onnx
import pandas as pd
from onnx import TensorProto, helper, numpy_helper

from faults import models, nets
from faults.editing import Step, copied, followed_inside, node_of, with_constants, without
from faults.models import converted, folder, measurements, once, recovery, single
from faults.quiet import quietly
from faults.registry import fault

WHOLE = ["model"]
LAYERS = ["first", "middle", "last", "first.weight", "middle.weight", "last.weight", "Gemm", "MatMul"]


def halved(proto):
    """Weights and computation in float16, inputs and outputs as before."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with quietly():
        return convert_float_to_float16(proto, keep_io_types=True)


def quantized(proto, **options):
    """What `quantize_dynamic` of ONNX Runtime makes of a model."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    source, target = folder() / "float.onnx", folder() / "int8.onnx"
    stripped = copied(proto)
    del stripped.graph.value_info[:]
    onnx.save(stripped, source)
    with quietly():
        quantize_dynamic(source, target, weight_type=QuantType.QUInt8, **options)
    return onnx.load(target)


@once
def wide():
    """A network whose activations run to some hundreds."""
    import torch
    from torch import nn

    torch.manual_seed(3)
    first, last = nn.Linear(6, 32), nn.Linear(32, 2)
    nn.init.normal_(first.weight, std=12.0)
    return nn.Sequential(first, nn.ReLU(), last).eval()


@fault("precision-reduction", culprit=[*WHOLE, *LAYERS])
def half_precision():
    """A network was converted to float16."""
    return nets.perceptron(), halved(nets.perceptron_onnx()), nets.vectors()


@fault(
    "precision-reduction",
    culprit=[*WHOLE, "conv", "second", "head", "conv.weight", "second.weight", "head.weight", "Conv"],
)
def weights_of_eight_bits_of_mantissa():
    """The weights of a convolutional network went through bfloat16 and are stored as float32 again."""
    import ml_dtypes

    names = ("conv.weight", "conv.bias", "second.weight", "second.bias", "head.weight", "head.bias")
    proto = with_constants(
        nets.image_onnx(), {name: lambda old: old.astype(ml_dtypes.bfloat16).astype(np.float32) for name in names}
    )
    return nets.image(), proto, nets.pictures()


@fault("precision-reduction", culprit=["middle.weight", "middle"])
def one_layer_in_half_precision():
    """The weights of one layer went through bfloat16."""
    import ml_dtypes

    def lose(old):
        return old.astype(ml_dtypes.bfloat16).astype(np.float32)

    proto = with_constants(nets.perceptron_onnx(), {"middle.weight": lose})
    return nets.perceptron(), proto, nets.vectors()


@fault("nonfinite", "precision-reduction", culprit=["output", "Cast", "relu"])
def half_precision_overflows():
    """Activations beyond 65,504 become infinite in float16."""
    data = {"x": (nets.vectors()["x"] * 900).astype(np.float32)}
    proto = nets.traced(wide(), data["x"])
    return wide(), _cast_behind(proto, node_of(proto, "Relu").output[0], TensorProto.FLOAT16), data


@fault("quantization", culprit=[*WHOLE, *LAYERS])
def dynamic_integers():
    """A network was quantised to INT8 on the fly and is held to the limits of a faithful export."""
    return nets.perceptron(), quantized(nets.perceptron_onnx()), nets.vectors()


@fault("quantization", culprit=[*WHOLE, "coefficient", "coefficient1", "coefficient2", "MatMul", "network"])
def dynamic_integers_in_sklearn():
    """The same with a network of scikit-learn."""
    return models.sk_network(), quantized(models.sk_network_onnx()), measurements()


@fault("quantization", culprit=["middle.weight", "middle", "MatMul", "Gemm"], preset="quantized")
def too_coarse_integers():
    """One layer has weights of two bits; even the limits for INT8 are exceeded."""

    def coarse(old):
        step = np.abs(old).max() / 1.5
        return np.round(old / step) * step

    proto = with_constants(nets.perceptron_onnx(), {"middle.weight": coarse})
    return nets.perceptron(), _quantised_constant(proto, "middle.weight"), nets.vectors()


@fault("quantization", culprit=["relu", "first", "x", "QuantizeLinear", "DequantizeLinear", *WHOLE], preset="quantized")
def calibrated_too_narrowly():
    """The range of an activation was calibrated on tame rows, and is cut off on others."""
    hidden = node_of(nets.perceptron_onnx(), "Relu").output[0]
    return nets.perceptron(), _quantised_behind(nets.perceptron_onnx(), hidden, scale=0.5 / 255), nets.vectors()


@fault(
    "float32-compute",
    culprit=["distances", "scores", "KMeans", "Gemm", "MatMul", "ReduceSumSquare", *WHOLE],
    natural="skl2onnx computes distances as x^2 - 2xy + y^2, in float32",
)
def distances_far_from_the_origin():
    """Whole numbers around a million; float32 holds them, but not the difference of their squares."""
    from sklearn.cluster import KMeans

    frame = (1_000_000 + 100 * pd.DataFrame(models.standard(measurements()), columns=models.FEATURES)).round()
    model = KMeans(3, n_init=1, random_state=0).fit(frame)
    return model, converted(model, frame), frame


@fault(
    "float32-compute",
    culprit=["value", "variable", "LinearRegressor", "LinearRegression", "coefficients", *WHOLE],
    natural="large terms that cancel, in float32",
)
def terms_that_cancel():
    """Coefficients in the thousands on values that float32 holds exactly."""
    from sklearn.linear_model import LinearRegression

    frame = pd.DataFrame(single(1_000 + 0.001 * models.standard(measurements())), columns=models.FEATURES)
    model = LinearRegression().fit(frame, recovery(measurements()))
    return model, converted(model, frame), frame


@fault(
    "float32-compute",
    culprit=["value", "variable", "GPmean", "GaussianProcessRegressor", "MatMul", "alpha", "kernel", *WHOLE],
    natural="https://github.com/onnx/sklearn-onnx/issues/969",
)
def smooth_gaussian_process():
    """The weights of a smooth Gaussian process are huge and cancel."""
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF

    frame = pd.DataFrame(single(models.standard(measurements())), columns=models.FEATURES)
    model = GaussianProcessRegressor(RBF(3.0), alpha=1e-9, optimizer=None)
    model.fit(frame.iloc[:100], recovery(measurements())[:100])
    return model, converted(model, frame, types=[("X", FloatTensorType([None, None]))]), frame


@fault(
    "nonfinite",
    "float32-compute",
    culprit=["value", "variable", "Exp", *WHOLE],
    natural="exp of more than 88 is infinite in float32",
)
def exponent_overflows():
    """A Poisson regression on rows far outside: finite in float64 only."""
    from sklearn.linear_model import PoissonRegressor

    frame = pd.DataFrame(single(models.standard(measurements())), columns=models.FEATURES)
    model = PoissonRegressor(alpha=0.0).fit(frame, np.exp(np.asarray(frame["dose"])))
    data = frame.copy()
    data.loc[data.index[::20], "dose"] = 95.0
    return model, converted(model, frame), data


@fault("nonfinite", "operator-semantics", culprit=["probabilities", "Exp", "Softmax", "Div"])
def softmax_without_a_maximum():
    """The softmax is written out without taking the maximum away, and overflows on large logits."""
    proto = without(nets.perceptron_onnx(), "Softmax")
    graph = proto.graph
    for node in graph.node:
        node.output[:] = ["n0" if name == "probabilities" else name for name in node.output]
    graph.initializer.append(numpy_helper.from_array(np.array([1]), "c0"))
    graph.node.extend(
        [
            helper.make_node("Exp", ["n0"], ["n1"]),
            helper.make_node("ReduceSum", ["n1", "c0"], ["n2"], keepdims=1),
            helper.make_node("Div", ["n1", "n2"], ["probabilities"]),
        ]
    )
    rows = nets.vectors()["x"].copy()
    rows[::9] *= 300
    return nets.perceptron(), proto, {"x": rows}


@fault("nonfinite", "model-part-dropped", culprit=["output", "log", "clip", "clamp"])
def logarithm_of_nothing():
    """The model keeps its input away from zero before the logarithm, the export does not."""
    import torch
    from torch import nn

    class Surprise(nn.Module):
        def forward(self, x):
            return torch.log(torch.clamp(torch.relu(x), min=1e-6))

    proto = without(nets.traced(Surprise().eval(), nets.vectors()["x"]), "Clip")
    return Surprise().eval(), proto, nets.vectors()


@fault("approximation", "operator-semantics", "operator-attribute", culprit=["gelu", "Gelu", "Tanh", "activation"])
def fast_gelu():
    """The export has the approximation of an activation by tanh."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    layers = nn.Linear(6, 32), nn.Linear(32, 4)
    exact = nn.Sequential(layers[0], nn.GELU(), layers[1]).eval()
    fast = nn.Sequential(layers[0], nn.GELU(approximate="tanh"), layers[1]).eval()
    data = {"input": (nets.vectors()["x"] * 2).astype(np.float32)}
    return exact, nets.exported(fast, data["input"]), data


def _cast_behind(proto, tensor, kind):
    """A tensor that is rounded to a narrower type and back."""
    return followed_inside(proto, tensor, Step("Cast", to=kind), Step("Cast", to=TensorProto.FLOAT))


def _quantised_behind(proto, tensor, scale):
    """A tensor that goes through eight bits."""
    constants = np.float32(scale), np.uint8(0)
    return followed_inside(proto, tensor, Step("QuantizeLinear", *constants), Step("DequantizeLinear", *constants))


def _quantised_constant(proto, name):
    """An initializer stored as INT8 with a scale."""
    copy = copied(proto)
    graph = copy.graph
    tensor = next(tensor for tensor in graph.initializer if tensor.name == name)
    values = numpy_helper.to_array(tensor)
    scale = np.float32(np.unique(np.abs(values))[1])
    whole = np.round(values / scale).astype(np.int8)
    graph.initializer.remove(tensor)
    constants = {f"{name}_quantized": whole, f"{name}_scale": scale, f"{name}_zero_point": np.int8(0)}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(array), key) for key, array in constants.items())
    node = helper.make_node("DequantizeLinear", list(constants), [name], name=f"{name}_DequantizeLinear")
    graph.node.insert(0, node)
    return copy
