"""Small PyTorch modules and their exports, each made once a session."""

from __future__ import annotations

import io

import numpy as np
import onnx
import torch
from torch import nn

from faults.models import once
from faults.quiet import quietly

ROWS = 128


def exported(module, *arrays, dynamic=True, **options):
    """What `torch.onnx.export(dynamo=True)` writes, with any number of rows."""
    rows = torch.export.Dim("rows")
    with quietly():
        return torch.onnx.export(
            module.eval(),
            tuple(torch.from_numpy(array[:4]) for array in arrays),
            dynamo=True,
            verbose=False,
            dynamic_shapes=tuple({0: rows} for _ in arrays) if dynamic else None,
            **options,
        ).model_proto


def traced(module, array, *, names=("x", "output"), axes=None, **options):
    """What the older exporter writes."""
    file = io.BytesIO()
    with quietly():
        torch.onnx.export(
            module,
            (torch.from_numpy(array),),
            file,
            dynamo=False,
            input_names=[names[0]],
            output_names=[names[1]],
            dynamic_axes=axes or {names[0]: {0: "rows"}, names[1]: {0: "rows"}},
            **options,
        )
    return onnx.load_from_string(file.getvalue())


class Perceptron(nn.Module):
    """Three layers and probabilities; the middle one is square."""

    def __init__(self, seed=0, inputs=6):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.middle, self.last = nn.Linear(inputs, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        for layer in (self.first, self.middle, self.last):
            nn.init.normal_(layer.weight, std=0.5)
            nn.init.normal_(layer.bias, std=0.5)

    def logits(self, x):
        return self.last(torch.relu(self.middle(torch.relu(self.first(x)))))

    def forward(self, x):
        return {"probabilities": self.logits(x).softmax(1)}


class Image(nn.Module):
    """Pixels of 0 to 255, normalised inside."""

    def __init__(self, seed=0, normalised=True):
        super().__init__()
        torch.manual_seed(seed)
        self.normalised = normalised
        self.conv, self.second, self.head = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3), nn.Linear(6, 4)
        self.register_buffer("mean", torch.tensor([120.0, 110.0, 90.0]).reshape(3, 1, 1))
        self.register_buffer("spread", torch.tensor([60.0, 55.0, 50.0]).reshape(3, 1, 1))

    def forward(self, pixels):
        x = (pixels - self.mean) / self.spread if self.normalised else pixels
        return self.head(torch.relu(self.second(torch.relu(self.conv(x)))).mean((2, 3)))


class Twins(nn.Module):
    """Two heads of equal shape."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.price, self.risk = nn.Linear(6, 16), nn.Linear(16, 2), nn.Linear(16, 2)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        return {"price": self.price(hidden), "risk": self.risk(hidden)}


@once
def vectors(rows=ROWS, width=6, seed=0):
    return {"x": np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)}


@once
def pictures(rows=48):
    draw = np.random.default_rng(2)
    low, high = draw.integers(0, 120, (rows, 3, 1, 1)), draw.integers(130, 256, (rows, 3, 1, 1))
    slope = np.linspace(0, 1, 10).reshape(1, 1, 1, 10) ** np.array([1, 2, 3]).reshape(1, 3, 1, 1)
    return {
        "pixels": np.clip(low + slope * (high - low) + draw.normal(0, 9, (rows, 3, 10, 10)), 0, 255)
        .round()
        .astype(np.float32)
    }


@once
def perceptron(seed=0):
    return Perceptron(seed).eval()


@once
def perceptron_onnx(seed=0):
    return exported(perceptron(seed), vectors()["x"], output_names=["probabilities"])


@once
def image():
    return Image().eval()


@once
def image_onnx():
    return exported(image(), pictures()["pixels"])


@once
def twins():
    return Twins().eval()


@once
def twins_onnx():
    return exported(twins(), vectors()["x"], output_names=["price", "risk"])
