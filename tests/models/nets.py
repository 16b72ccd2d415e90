"""Small PyTorch modules of the kinds people deploy, with rows to ask them, and their exports."""

from __future__ import annotations

import warnings
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
import torch
from torch import nn

from likewise.contracts.data import Batch, RowIds
from likewise.contracts.models import ExportRequest, Model, Signature
from likewise.data.columns import ArrayColumns
from likewise.models.torch.export import EXTENSION as EXPORTER
from likewise.registry import adapter

ROWS = 64


def batch(**arrays):
    rows = len(next(iter(arrays.values())))
    return Batch(RowIds(np.arange(rows)), ArrayColumns(arrays))


def opened(target, **options):
    return adapter("torch").open(Model("torch", target, options))


def answers(target, options=None, **arrays):
    with opened(target, **(options or {})) as runner:
        return runner.run(batch(**arrays))


def export(module, arrays, **options):
    return EXPORTER.export(ExportRequest(module, Signature(None, None), batch(**arrays), **options))


def export_plainly(module, *tensors, **options):
    """What a user's script does, without likewise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's advice to its own developers
        return torch.onnx.export(module, tensors, dynamo=True, verbose=False, **options).model_proto


def by_hand(module, proto, arrays):
    """The largest difference, found by a script of one's own."""
    with torch.no_grad():
        answer = module(*(torch.from_numpy(array) for array in arrays.values()))
    ours = [value.numpy().astype(np.float64) for value in flat(answer)]
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    theirs = [value.astype(np.float64) for value in session.run(None, dict(arrays))]
    assert len(ours) == len(theirs)
    return max(float(np.abs(one - other).max()) for one, other in zip(ours, theirs, strict=True))


def flat(answer):
    if isinstance(answer, torch.Tensor):
        return [answer]
    entries = answer.values() if isinstance(answer, dict) else answer
    return [value for entry in entries for value in flat(entry)]


class Perceptron(nn.Module):
    def __init__(self, activation=nn.ReLU):
        super().__init__()
        self.first = nn.Linear(4, 16)
        self.activation = activation()
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        return self.last(self.drop(self.activation(self.first(x))))


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)
        self.head = nn.Linear(4, 2)

    def forward(self, pixels):
        return self.head(torch.relu(self.norm(self.conv(pixels))).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        return self.layer(x)


class Shop(nn.Module):
    """Whole numbers that are looked up beside numbers that are reckoned with, and a mask one may leave out."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(10, 4)
        self.last = nn.Linear(7, 2)

    def forward(self, items, x, *, mask=None):
        looked_up = self.items(items)
        if mask is not None:
            looked_up = looked_up * mask[..., None]
        return self.last(torch.cat([looked_up.mean(1), x], 1))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        logits = self.last(hidden)
        return {
            "logits": logits,
            "probabilities": logits.softmax(1),
            "label": logits.argmax(1),
            "hidden": (hidden, hidden * 2),
        }


Named = namedtuple("Named", ["score", "extra"])


@dataclass
class Answer:
    value: torch.Tensor
    parts: list
    nothing: None = None


class Output(OrderedDict):
    """Like the outputs of Hugging Face models."""


class Nested(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, x):
        return {
            "tensor": lambda: x,
            "tuple": lambda: (x, (x + 1, None)),
            "dataclass": lambda: Answer(x, [x + 1, x + 2]),
            "namedtuple": lambda: Named(x, {"more": x + 1}),
            "output": lambda: Output(logits=x, hidden=(x + 1, x + 2)),
            "scalar": lambda: {"value": x, "temperature": 0.5},
            "twice": lambda: {"a": {"b": x}, "a.b": x},
            "nothing": lambda: (None,),
            "text": lambda: {"value": "x"},
        }[self.form]()


def rng():
    return np.random.default_rng(7)


def normal(*shape, dtype=np.float32):
    return rng().normal(size=shape).astype(dtype)


ZOO = {
    "perceptron": lambda: (Perceptron(), {"x": normal(ROWS, 4)}),
    "image": lambda: (Image(), {"pixels": normal(ROWS, 3, 6, 6)}),
    "lstm": lambda: (nn.LSTM(3, 5, batch_first=True), {"input": normal(ROWS, 6, 3)}),
    "attention": lambda: (Attention(), {"x": normal(ROWS, 5, 8)}),
    "shop": lambda: (Shop(), {"items": rng().integers(0, 10, (ROWS, 5)), "x": normal(ROWS, 3)}),
    "classifier": lambda: (Classifier(), {"x": normal(ROWS, 4)}),
    "double": lambda: (Perceptron().double(), {"x": normal(ROWS, 4, dtype=np.float64)}),
}
