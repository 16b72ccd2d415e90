"""Faults in networks of images: convolutions, residual blocks, a U-Net, a detector, a mobile net, a transformer."""

from __future__ import annotations

from typing import Any

import numpy as np

from locate_faults.corpus import Fault
from locate_faults.dense import older
from locate_faults.edits import attribute, both, leave_out, replace, rewire, swap_inputs, weight


def in_training(name: str) -> Any:
    """One module left in training mode when the rest was put into eval mode."""

    def change(net: Any) -> None:
        net.get_submodule(name).train()

    return change


def one_channel(w: np.ndarray) -> np.ndarray:
    w[2] = w[2] * -1
    return w


FAULTS = [
    Fault("cnn-bn-eps", "cnn/kept", "attribute changed", attribute("BatchNormalization", 0, "epsilon", 1e-5)),
    Fault(
        "cnn-bn-scale-bias",
        "cnn/kept",
        "wiring",
        swap_inputs("BatchNormalization", 1, 1, 2),
        against="onnx",
        also=("weight-corruption",),
    ),
    Fault(
        "cnn-bn-training",
        "cnn/kept",
        "training mode",
        module=in_training("bn1"),
        training=True,
        paths=("bn1",),
        also=("operator-attribute", "batch-dependence"),
    ),
    Fault(
        "cnn-relu6-limit", "cnn/dynamo", "constant edited", weight("Clip", 0, 2, lambda w: w * 0 + 3), against="onnx"
    ),
    Fault(
        "cnn-pool-kind",
        "cnn/dynamo",
        "operator replaced",
        replace("MaxPool", 0, "AveragePool", kernel_shape=[2, 2], strides=[2, 2]),
    ),
    Fault("cnn-elu-alpha", "cnn/legacy", "attribute changed", attribute("Elu", 0, "alpha", 1.0)),
    Fault("cnn-group-order", "cnn/dynamo", "weight edited", weight("Conv", 2, 1, lambda w: np.roll(w, 6, 0))),
    Fault("cnn-same-padding", "cnn/legacy", "attribute changed", attribute("Conv", 1, "pads", [0, 0, 2, 2])),
    Fault(
        "cnn-no-bias",
        "cnn/dynamo",
        "part left out",
        weight("Conv", 0, 2, np.zeros_like),
        against="onnx",
        also=("weight-corruption",),
    ),
    Fault(
        "cnn-global-max",
        "cnn/legacy",
        "operator replaced",
        replace("GlobalAveragePool", 0, "GlobalMaxPool"),
        also=("aggregation",),
    ),
    Fault("resnet-skip-from-stem", "resnet/dynamo", "wiring", rewire("Add", 1, 1, ("Relu", 0))),
    Fault("resnet-relu-left-out", "resnet/legacy", "activation left out", leave_out("Relu", 6)),
    Fault(
        "resnet-bn-variance",
        "resnet/kept",
        "weights stale",
        weight("BatchNormalization", 3, 4, lambda w: w * 1.5),
        against="onnx",
    ),
    Fault("resnet-skip-left-out", "resnet/dynamo", "part left out", leave_out("Add", 2), also=("wrong-wiring",)),
    Fault("resnet-flipped", "resnet/legacy", "weight edited", weight("Conv", -1, 1, lambda w: w[..., ::-1, ::-1])),
    Fault(
        "resnet-gemm-alpha", "resnet/dynamo", "attribute changed", attribute("Gemm", 0, "alpha", 0.9), against="onnx"
    ),
    Fault("resnet-bn-eps", "resnet/kept", "attribute changed", attribute("BatchNormalization", -1, "epsilon", 0.1)),
    Fault(
        "resnet-fold-sign",
        "resnet/dynamo",
        "optimiser",
        weight("Conv", 4, 2, np.negative),
        against="onnx",
        also=("weight-corruption",),
    ),
    Fault(
        "resnet-stale-block",
        "resnet/legacy",
        "weights stale",
        module=older("stage2.1.conv_a", amount=0.02),
        paths=("stage2.1.conv_a", "stage2.1.bn_a"),
    ),
    Fault("unet-nearest", "unet/dynamo", "attribute changed", attribute("Resize", 0, "mode", "nearest")),
    Fault(
        "unet-align-corners",
        "unet/legacy",
        "attribute changed",
        attribute("Resize", 0, "coordinate_transformation_mode", "align_corners"),
    ),
    Fault(
        "unet-asymmetric",
        "unet/dynamo",
        "attribute changed",
        attribute("Resize", 0, "coordinate_transformation_mode", "asymmetric"),
        against="onnx",
    ),
    Fault("unet-skip-order", "unet/dynamo", "wiring", swap_inputs("Concat", 1)),
    Fault(
        "unet-pool-kind",
        "unet/legacy",
        "operator replaced",
        replace("AveragePool", 0, "MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
        against="onnx",
    ),
    Fault("unet-group-eps", "unet/legacy", "attribute changed", attribute("InstanceNormalization", 0, "epsilon", 5e-2)),
    Fault("unet-up-kernel", "unet/dynamo", "weight edited", weight("ConvTranspose", 0, 1, lambda w: w.swapaxes(2, 3))),
    Fault(
        "unet-dilation",
        "unet/dynamo",
        "attribute changed",
        both(attribute("Conv", 2, "dilations", [1, 1]), attribute("Conv", 2, "pads", [1, 1, 1, 1])),
        against="onnx",
    ),
    Fault(
        "unet-link",
        "unet/legacy",
        "link left out",
        leave_out("Sigmoid", -1),
        also=("wrong-intermediate", "output-kind"),
    ),
    Fault("unet-silu-as-relu", "unet/dynamo", "operator replaced", replace("Sigmoid", 2, "HardSigmoid")),
    Fault("detector-clamp", "detector/dynamo", "constant edited", weight("Clip", 0, 2, lambda w: w * 0 + 0.2)),
    Fault(
        "detector-offset",
        "detector/legacy",
        "constant edited",
        weight("Sub", 0, 1, np.zeros_like),
        against="onnx",
        also=("model-part-dropped",),
    ),
    Fault(
        "detector-grid",
        "detector/dynamo",
        "constant edited",
        weight("Add", 0, 1, lambda w: w[..., ::-1]),
        also=("stale-weights",),
    ),
    Fault("detector-slope", "detector/legacy", "attribute changed", attribute("LeakyRelu", 1, "alpha", 0.01)),
    Fault("detector-corners", "detector/dynamo", "wiring", rewire("Concat", 0, 1, ("Sub", 1))),
    Fault("detector-no-exp", "detector/legacy", "activation left out", leave_out("Exp", 0)),
    Fault(
        "detector-mean-score",
        "detector/dynamo",
        "operator replaced",
        replace("ReduceMax", 0, "ReduceMean"),
        against="onnx",
        also=("aggregation",),
    ),
    Fault("mobile-activation", "mobile/dynamo", "activation left out", leave_out("HardSwish", 1)),
    Fault("mobile-hard-sigmoid", "mobile/dynamo", "attribute changed", attribute("HardSigmoid", 0, "alpha", 0.2)),
    Fault(
        "mobile-depth-order", "mobile/legacy", "weight edited", weight("Conv", 2, 1, lambda w: w[::-1]), against="onnx"
    ),
    Fault(
        "mobile-pool",
        "mobile/legacy",
        "operator replaced",
        replace("ReduceMax", 0, "ReduceMean"),
        also=("aggregation",),
    ),
    Fault(
        "mobile-skip", "mobile/dynamo", "part left out", leave_out("Add", 0, 1), against="onnx", also=("wrong-wiring",)
    ),
    Fault("mobile-sign", "mobile/dynamo", "weight edited", weight("Conv", 1, 1, one_channel)),
    Fault("vit-softmax-axis", "vit/dynamo", "attribute changed", attribute("Softmax", 0, "axis", -2)),
    Fault("vit-scale", "vit/dynamo", "constant edited", weight("Mul", 0, 1, np.ones_like)),
    Fault("vit-norm-eps", "vit/legacy", "attribute changed", attribute("LayerNormalization", 1, "epsilon", 5e-2)),
    Fault("vit-token-order", "vit/dynamo", "wiring", swap_inputs("Concat@node_cat", 0)),
    Fault("vit-places", "vit/dynamo", "weights stale", weight("Add", 0, 1, lambda w: w * 0.9), against="onnx"),
    Fault(
        "vit-out-bias",
        "vit/legacy",
        "part left out",
        weight("Gemm", 0, 2, np.zeros_like),
        also=("weight-corruption",),
        against="onnx",
    ),
]
