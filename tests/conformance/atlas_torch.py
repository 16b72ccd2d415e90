"""Layers and small networks of torch, beside what `torch.onnx.export(dynamo=True)` makes of them."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from conformance.atlas_oracle import Case, Pair, runtime

ROWS = 12

Inputs = Mapping[str, Any]


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def whole(most: int, *shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, most, size=shape).astype(np.int64)


def flags(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(shape) > 0.4


class Applied(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Any], *inner: nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, nn.ModuleList(inner)

    def forward(self, x: Tensor) -> Any:
        for module in self.inner:
            x = module(x)
        return self.function(x)


class Applied2(nn.Module):
    """A function of two inputs as a module."""

    def __init__(self, function: Callable[..., Any], *inner: nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, nn.ModuleList(inner)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(*self.inner, x, y)


@dataclass
class Scores:
    logits: Tensor
    hidden: Tensor


torch.export.register_dataclass(Scores)


class Named(NamedTuple):
    mean: Tensor
    spread: Tensor


class Heads(nn.Module):
    """One body, two heads, given back in the asked form."""

    def __init__(self, form: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.body, self.one, self.two, self.form = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3), form

    def forward(self, x: Tensor) -> Any:
        hidden = torch.relu(self.body(x))
        return self.form(self.one(hidden), self.two(hidden))


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.cells = kind(4, 5, batch_first=True, **options)

    def forward(self, x: Tensor) -> Any:
        return self.cells(x)


class WithState(nn.Module):
    """A step of a recurrent network: the state comes in and goes out."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.cell(x, state)
        return self.head(state), state


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self.attention(x, x, x)
        return found


class Masked(nn.Module):
    """A sequence with padding, told by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        weights = mask.unsqueeze(-1).float()
        mean = (self.embedding(tokens) * weights).sum(1) / weights.sum(1).clamp(min=1)
        found: Tensor = self.head(mean)
        return found


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        _warm(self.two, torch.randn(8, 3, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.two(self.one(x)))


class Tower(nn.Module):
    """A user's and an item's embedding, and their product."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(30, 4), nn.Embedding(40, 4)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.users(user) * self.items(item)).sum(-1)


class Auto(nn.Module):
    """An autoencoder that gives back what it saw, what it made, and how far they are apart."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(6, 2), nn.Linear(2, 6)

    def forward(self, x: Tensor) -> dict[str, Any]:
        code = torch.tanh(self.down(x))
        made = self.up(code)
        return {"code": code, "made": made, "errors": (made - x).pow(2).mean(-1)}


def _warm(module: nn.Module, rows: Tensor) -> nn.Module:
    """Batch statistics that are not those of a fresh module."""
    module.train()
    with torch.no_grad():
        for _ in range(3):
            module(rows * 2 + 1)
    return module


def _one(module: Callable[[], nn.Module], *shape: int, free: Mapping[int, str] | None = None) -> Any:
    return module, {"x": numbers(*shape)}, {"x": {0: "batch", **(free or {})}}


ENTRIES: dict[str, Callable[[], Any]] = {
    # layers of numbers
    "Linear": lambda: _one(lambda: nn.Linear(6, 3), ROWS, 6),
    "Linear without bias": lambda: _one(lambda: nn.Linear(6, 3, bias=False), ROWS, 6),
    "Linear, one output": lambda: _one(lambda: nn.Linear(6, 1), ROWS, 6),
    "Linear, squeezed": lambda: _one(lambda: Applied(lambda x: x.squeeze(-1), nn.Linear(6, 1)), ROWS, 6),
    "Bilinear": lambda: (lambda: Applied2(lambda layer, x, y: layer(x, y), nn.Bilinear(4, 5, 3)),
                         {"x": numbers(ROWS, 4), "y": numbers(ROWS, 5, seed=1)},
                         {"x": {0: "batch"}, "y": {0: "batch"}}),
    "Identity": lambda: _one(nn.Identity, ROWS, 6),
    "Flatten": lambda: _one(nn.Flatten, ROWS, 3, 4),
    "Unflatten": lambda: _one(lambda: nn.Unflatten(1, (2, 3)), ROWS, 6),
    **{name: partial(_one, getattr(nn, name), ROWS, 6) for name in (
        "ReLU", "ReLU6", "LeakyReLU", "PReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Sigmoid", "Tanh",
        "Softplus", "Softsign", "Hardswish", "Hardsigmoid", "Hardtanh", "LogSigmoid", "Tanhshrink", "Dropout")},
    "GELU, tanh": lambda: _one(lambda: nn.GELU("tanh"), ROWS, 6),
    "Softmax": lambda: _one(lambda: nn.Softmax(-1), ROWS, 6),
    "LogSoftmax": lambda: _one(lambda: nn.LogSoftmax(-1), ROWS, 6),
    "Softmax over the batch": lambda: _one(lambda: Applied(lambda x: torch.softmax(x, 0), nn.Linear(6, 3)), ROWS, 6),
    "GLU": lambda: _one(lambda: nn.GLU(-1), ROWS, 6),
    # convolutions, pooling, norms
    "Conv1d": lambda: _one(lambda: nn.Conv1d(3, 4, 3), ROWS, 3, 16),
    "Conv1d, free length": lambda: _one(lambda: nn.Conv1d(3, 4, 3), ROWS, 3, 16, free={2: "length"}),
    "Conv2d": lambda: _one(lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), ROWS, 3, 8, 8),
    "Conv2d, dilated groups": lambda: _one(lambda: nn.Conv2d(4, 4, 3, dilation=2, groups=2), ROWS, 4, 9, 9),
    "Conv3d": lambda: _one(lambda: nn.Conv3d(2, 3, 3), ROWS, 2, 5, 6, 6),
    "ConvTranspose1d": lambda: _one(lambda: nn.ConvTranspose1d(3, 4, 3, stride=2), ROWS, 3, 8),
    "ConvTranspose2d": lambda: _one(lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), ROWS, 3, 6, 6),
    "MaxPool1d": lambda: _one(lambda: nn.MaxPool1d(2), ROWS, 3, 9),
    "MaxPool2d": lambda: _one(lambda: nn.MaxPool2d(2), ROWS, 3, 8, 8),
    "MaxPool2d, rounded up": lambda: _one(lambda: nn.MaxPool2d(2, ceil_mode=True), ROWS, 3, 7, 7),
    "MaxPool2d with places": lambda: _one(lambda: nn.MaxPool2d(2, return_indices=True), ROWS, 3, 8, 8),
    "AvgPool2d": lambda: _one(lambda: nn.AvgPool2d(2), ROWS, 3, 8, 8),
    "AvgPool2d, rounded up": lambda: _one(lambda: nn.AvgPool2d(2, ceil_mode=True), ROWS, 3, 7, 7),
    "AvgPool2d, padding not counted": lambda: _one(
        lambda: nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), ROWS, 3, 8, 8),
    "LPPool2d": lambda: _one(lambda: Applied(lambda x: x, nn.ReLU(), nn.LPPool2d(2, 2)), ROWS, 3, 8, 8),
    "AdaptiveAvgPool2d": lambda: _one(lambda: nn.AdaptiveAvgPool2d(2), ROWS, 3, 8, 8),
    "AdaptiveMaxPool2d": lambda: _one(lambda: nn.AdaptiveMaxPool2d(2), ROWS, 3, 8, 8),
    "BatchNorm1d": lambda: _one(lambda: _warm(nn.BatchNorm1d(6), torch.randn(20, 6)), ROWS, 6),
    "BatchNorm2d": lambda: _one(lambda: _warm(nn.BatchNorm2d(3), torch.randn(8, 3, 8, 8)), ROWS, 3, 8, 8),
    "BatchNorm1d without statistics": lambda: _one(lambda: nn.BatchNorm1d(6, track_running_stats=False), ROWS, 6),
    "LayerNorm": lambda: _one(lambda: nn.LayerNorm(6), ROWS, 6),
    "RMSNorm": lambda: _one(lambda: nn.RMSNorm(6), ROWS, 6),
    "GroupNorm": lambda: _one(lambda: nn.GroupNorm(2, 4), ROWS, 4, 5),
    "InstanceNorm2d": lambda: _one(lambda: nn.InstanceNorm2d(3), ROWS, 3, 8, 8),
    "LocalResponseNorm": lambda: _one(lambda: nn.LocalResponseNorm(2), ROWS, 3, 8, 8),
    "Upsample, nearest": lambda: _one(lambda: nn.Upsample(scale_factor=2), ROWS, 3, 4, 4),
    "Upsample, bilinear": lambda: _one(lambda: nn.Upsample(scale_factor=2, mode="bilinear"), ROWS, 3, 4, 4),
    "Upsample, bicubic": lambda: _one(lambda: nn.Upsample(scale_factor=2, mode="bicubic"), ROWS, 3, 4, 4),
    "PixelShuffle": lambda: _one(lambda: nn.PixelShuffle(2), ROWS, 8, 3, 3),
    "ReflectionPad2d": lambda: _one(lambda: nn.ReflectionPad2d(1), ROWS, 3, 4, 4),
    "CircularPad2d": lambda: _one(lambda: nn.CircularPad2d(1), ROWS, 3, 4, 4),
    "Residual block": lambda: _one(Residual, ROWS, 3, 8, 8),
    "Small image classifier": lambda: _one(lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)), ROWS, 1, 8, 8),
    # recurrent networks, attention
    "RNN": lambda: _one(lambda: Recurrent(nn.RNN), ROWS, 7, 4),
    "LSTM": lambda: _one(lambda: Recurrent(nn.LSTM), ROWS, 7, 4),
    "GRU": lambda: _one(lambda: Recurrent(nn.GRU), ROWS, 7, 4),
    "LSTM, two directions": lambda: _one(lambda: Recurrent(nn.LSTM, bidirectional=True), ROWS, 7, 4),
    "GRU, two layers": lambda: _one(lambda: Recurrent(nn.GRU, num_layers=2), ROWS, 7, 4),
    "LSTM, last step": lambda: _one(lambda: Applied(lambda found: found[0][:, -1], Recurrent(nn.LSTM)), ROWS, 7, 4),
    "GRUCell with state": lambda: (WithState, {"x": numbers(ROWS, 4), "state": numbers(ROWS, 5, seed=1)},
                                   {"x": {0: "batch"}, "state": {0: "batch"}}),
    "MultiheadAttention": lambda: _one(Attention, ROWS, 5, 8),
    "scaled_dot_product_attention": lambda: _one(
        lambda: Applied(lambda x: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)), ROWS, 2, 5, 4),
    "TransformerEncoderLayer": lambda: _one(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), ROWS, 5, 8),
    "Self-attention, free length": lambda: _one(
        lambda: Applied(lambda x: torch.softmax(x @ x.transpose(1, 2), -1) @ x, nn.Linear(8, 8)), ROWS, 5, 8,
        free={1: "length"}),
    # whole numbers, flags, several inputs
    "Embedding": lambda: (lambda: nn.Embedding(20, 4), {"input": whole(20, ROWS, 5)}, {"input": {0: "batch"}}),
    "Embedding, free length": lambda: (lambda: nn.Embedding(20, 4), {"input": whole(20, ROWS, 5)},
                                       {"input": {0: "batch", 1: "length"}}),
    "EmbeddingBag": lambda: (lambda: nn.EmbeddingBag(20, 4), {"input": whole(20, ROWS, 5)}, {"input": {0: "batch"}}),
    "Masked mean of embeddings": lambda: (Masked, {"tokens": whole(20, ROWS, 5), "mask": flags(ROWS, 5)},
                                          {"tokens": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "length"}}),
    "Two towers": lambda: (Tower, {"user": whole(30, ROWS), "item": whole(40, ROWS, seed=1)},
                           {"user": {0: "batch"}, "item": {0: "batch"}}),
    "One-hot": lambda: (lambda: Applied(lambda x: nn.functional.one_hot(x, 7)), {"x": whole(7, ROWS)},
                        {"x": {0: "batch"}}),
    "Logical and": lambda: (lambda: Applied2(lambda x, y: x & y), {"x": flags(ROWS, 3), "y": flags(ROWS, 3, seed=1)},
                            {"x": {0: "batch"}, "y": {0: "batch"}}),
    "Whole numbers added": lambda: (lambda: Applied2(lambda x, y: x * 2 + y),
                                    {"x": whole(9, ROWS, 3), "y": whole(9, ROWS, 3, seed=1)},
                                    {"x": {0: "batch"}, "y": {0: "batch"}}),
    "where": lambda: (lambda: Applied2(lambda x, y: torch.where(x, y, -y)),
                      {"x": flags(ROWS, 3), "y": numbers(ROWS, 3)}, {"x": {0: "batch"}, "y": {0: "batch"}}),
    "float64 in, float64 out": lambda: (lambda: Applied(lambda x: x.cumsum(-1) / 3),
                                        {"x": numbers(ROWS, 6).astype(np.float64)}, {"x": {0: "batch"}}),
    "argmax": lambda: _one(lambda: Applied(lambda x: x.argmax(-1), nn.Linear(6, 4)), ROWS, 6),
    "topk": lambda: _one(lambda: Applied(lambda x: x.topk(3)), ROWS, 6),
    "sort": lambda: _one(lambda: Applied(lambda x: x.sort(-1)), ROWS, 6),
    "greater than nought": lambda: _one(lambda: Applied(lambda x: x > 0), ROWS, 6),
    "CosineSimilarity": lambda: (lambda: Applied2(lambda layer, x, y: layer(x, y), nn.CosineSimilarity(-1)),
                                 {"x": numbers(ROWS, 6), "y": numbers(ROWS, 6, seed=1)},
                                 {"x": {0: "batch"}, "y": {0: "batch"}}),
    "cdist": lambda: _one(lambda: Applied(lambda x: torch.cdist(x, x)), ROWS, 4, 3),
    # the form of the answers
    "Heads as a tuple": lambda: _one(lambda: Heads(lambda one, two: (one, two)), ROWS, 6),
    "Heads as a list": lambda: _one(lambda: Heads(lambda one, two: [one, two]), ROWS, 6),
    "Heads as a dict": lambda: _one(lambda: Heads(lambda one, two: {"class": one, "box": two}), ROWS, 6),
    "Heads, nested": lambda: _one(lambda: Heads(lambda one, two: {"a": one, "b": (two, one + two)}), ROWS, 6),
    "Heads as a NamedTuple": lambda: _one(lambda: Heads(Named), ROWS, 6),
    "Heads as a dataclass": lambda: _one(lambda: Heads(Scores), ROWS, 6),
    "Heads, one of them None": lambda: _one(lambda: Heads(lambda one, two: (one, None)), ROWS, 6),
    "Autoencoder": lambda: _one(Auto, ROWS, 6),
    # one answer for all rows
    "MSELoss": lambda: _loss(nn.MSELoss, numbers(ROWS, 3, seed=1)),
    "L1Loss": lambda: _loss(nn.L1Loss, numbers(ROWS, 3, seed=1)),
    "SmoothL1Loss": lambda: _loss(nn.SmoothL1Loss, numbers(ROWS, 3, seed=1)),
    "CrossEntropyLoss": lambda: _loss(nn.CrossEntropyLoss, whole(3, ROWS)),
    "CrossEntropyLoss, a row each": lambda: _loss(lambda: nn.CrossEntropyLoss(reduction="none"), whole(3, ROWS)),
    "BCEWithLogitsLoss": lambda: _loss(nn.BCEWithLogitsLoss, flags(ROWS, 3).astype(np.float32)),
    "KLDivLoss": lambda: _loss(lambda: nn.KLDivLoss(reduction="batchmean"),
                               np.full((ROWS, 3), 1 / 3, dtype=np.float32)),
    "Sum of everything": lambda: _one(lambda: Applied(lambda x: x.sum()), ROWS, 6),
    "Mean over the batch": lambda: _one(lambda: Applied(lambda x: x.mean(0)), ROWS, 6),
    "nonzero": lambda: _one(lambda: Applied(lambda x: torch.nonzero(x > 0)), ROWS, 6),
    "Complex numbers (rfft)": lambda: _one(lambda: Applied(lambda x: torch.view_as_real(torch.fft.rfft(x))), ROWS, 8),
}  # fmt: skip


OPTIONS: dict[str, Mapping[str, Any]] = {
    "Mean over the batch": {"batch_axis": "none"},
    "nonzero": {"batch_axis": "none"},
}
"""Answers of some length that is not the number of rows: the user has to say that they are no rows."""


def _loss(kind: Callable[[], nn.Module], target: Any) -> Any:
    free = {"x": {0: "batch"}, "y": {0: "batch"}}
    return lambda: Applied2(lambda layer, x, y: layer(x, y), kind()), {"x": numbers(ROWS, 3), "y": target}, free


def cases() -> tuple[Case, ...]:
    return tuple(Case(name, _maker(entry, OPTIONS.get(name, {}))) for name, entry in ENTRIES.items())


def _maker(entry: Callable[[], Any], options: Mapping[str, Any]) -> Callable[[], Pair]:
    def make() -> Pair:
        torch.manual_seed(0)
        module, inputs, free = entry()
        return replace(pair(module().eval(), inputs, free), options=options)

    return make


def pair(module: nn.Module, inputs: Inputs, free: Mapping[str, Mapping[int, str]]) -> Pair:
    model = export(module, inputs, free)
    session = runtime(model)
    names = [entry.name for entry in session.get_inputs()]

    def ask_reference(question: Inputs) -> list[Any]:
        with torch.no_grad():
            found = module(*(torch.from_numpy(np.array(value)) for value in question.values()))
        return _flat(found)

    def ask_candidate(question: Inputs) -> list[Any]:
        return list(session.run(None, {name: value for name, value in question.items() if name in names}))

    few = {name: value[:1] for name, value in inputs.items()}
    some = {name: value[:7] for name, value in inputs.items()}
    questions = [dict(inputs), few, some]
    if any("length" in axes.values() for axes in free.values()):
        axis = {name: next(at for at, what in axes.items() if what == "length") for name, axes in free.items()}
        questions += [{name: np.repeat(value, 2, axis[name]) for name, value in inputs.items()}]
    return Pair(module, model, dict(inputs), tuple(questions), ask_reference, ask_candidate)


def export(module: nn.Module, inputs: Inputs, free: Mapping[str, Mapping[int, str]]) -> Any:
    arguments = tuple(torch.from_numpy(np.array(value)) for value in inputs.values())
    logging.getLogger("torch.onnx").setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module, arguments, dynamo=True, verbose=False, input_names=list(inputs),
            dynamic_shapes=tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in free.values()),
        )  # fmt: skip
    assert program is not None
    return program.model_proto


def _flat(found: Any) -> list[Any]:
    """The tensors of an answer in the order in which they are written down."""
    if found is None:
        return []
    if isinstance(found, Tensor):
        return [found.numpy()]
    if is_dataclass(found) and not isinstance(found, type):
        return [leaf for entry in fields(found) for leaf in _flat(getattr(found, entry.name))]
    values = found.values() if isinstance(found, Mapping) else found
    return [leaf for value in values for leaf in _flat(value)]
