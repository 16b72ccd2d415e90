"""The sound networks: weights, data, and their exports by both of torch's exporters, made once."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from locate_faults import nets

Rows = Mapping[str, np.ndarray]
ROWS = 96


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=(ROWS, *shape)).astype(np.float32)


def whole(rng: np.random.Generator, top: int, *shape: int) -> np.ndarray:
    return rng.integers(0, top, size=(ROWS, *shape))


def masked(rng: np.random.Generator) -> dict[str, np.ndarray]:
    length = rng.integers(3, 17, ROWS)
    mask = (np.arange(16) < length[:, None]).astype(np.int64)
    return {"ids": whole(rng, 50, 16), "mask": mask}


NETS: Mapping[str, tuple[type[nn.Module], Callable[[np.random.Generator], dict[str, np.ndarray]]]] = {
    "mlp": (nets.Mlp, lambda r: {"x": normal(r, 12)}),
    "cnn": (nets.Cnn, lambda r: {"image": normal(r, 3, 16, 16)}),
    "resnet": (nets.ResNet, lambda r: {"image": normal(r, 3, 12, 12)}),
    "unet": (nets.UNet, lambda r: {"image": normal(r, 2, 16, 16)}),
    "lstm": (nets.LstmTagger, lambda r: {"series": normal(r, 9, 6)}),
    "gru": (nets.GruForecast, lambda r: {"series": normal(r, 8, 5), "static": normal(r, 3)}),
    "encoder": (nets.Encoder, masked),
    "decoder": (nets.Decoder, lambda r: {"ids": whole(r, 40, 12)}),
    "gnn": (
        nets.Gnn,
        lambda r: {"nodes": normal(r, 9, 5), "source": whole(r, 9, 14), "target": whole(r, 9, 14)},
    ),
    "recommender": (
        nets.Recommender,
        lambda r: {"user": whole(r, 30), "item": whole(r, 40), "shops": whole(r, 20, 3), "dense": normal(r, 6)},
    ),
    "detector": (nets.Detector, lambda r: {"image": normal(r, 3, 20, 20)}),
    "fusion": (
        nets.Fusion,
        lambda r: {"image": normal(r, 1, 8, 8), "row": normal(r, 7), "text": whole(r, 25, 5)},
    ),
    "mobile": (nets.Mobile, lambda r: {"image": normal(r, 3, 16, 16)}),
    "tcn": (nets.Tcn, lambda r: {"signal": normal(r, 4, 20)}),
    "vit": (nets.Vit, lambda r: {"image": normal(r, 3, 12, 12)}),
}
FACTORY = inspect.getsourcefile(nets) or ""


@cache
def module(name: str) -> nn.Module:
    """A network with weights as after training: no zero biases, statistics of batch norm away from 0 and 1."""
    torch.manual_seed(sum(map(ord, name)))
    net = NETS[name][0]().eval()
    with torch.no_grad():
        for key, value in net.named_parameters():
            if value.dim() <= 1:
                value.add_(torch.randn_like(value) * 0.25)
            elif "cls" in key or "places" in key:
                value.add_(torch.randn_like(value) * 0.4)
            else:
                value.mul_(1.5)
        for part in net.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.running_mean.normal_(0, 0.3)
                part.running_var.uniform_(0.02, 1.5)
    return net


@cache
def data(name: str) -> Rows:
    return NETS[name][1](np.random.default_rng(len(name)))


def answers(net: nn.Module, rows: Rows) -> list[np.ndarray]:
    """The answers of a module, by plain torch."""
    with torch.no_grad():
        out = net(**{k: torch.from_numpy(v) for k, v in rows.items()})
    return [t.numpy() for t in (out if isinstance(out, tuple) else (out,))]


def export(net: nn.Module, rows: Rows, exporter: str, path: Path, *, training: bool = False) -> onnx.ModelProto:
    """A file by one of torch's exporters, with a free batch axis."""
    few = tuple(torch.from_numpy(v[:4]) for v in rows.values())
    count = len(answers(copy.deepcopy(net).eval(), {k: v[:2] for k, v in rows.items()}))
    outputs = [f"out{i}" for i in range(count)] if count > 1 else ["answer"]
    settings: dict[str, Any] = {"input_names": list(rows), "output_names": outputs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            shapes = {k: {0: torch.export.Dim("batch")} for k in rows}
            torch.onnx.export(
                net, few, str(path), dynamo=True, dynamic_shapes=shapes, external_data=False, verbose=False, **settings
            )
        else:
            axes = {k: {0: "batch"} for k in [*rows, *outputs]}
            mode = torch.onnx.TrainingMode.PRESERVE if exporter == "kept" or training else torch.onnx.TrainingMode.EVAL
            torch.onnx.export(
                net, few, str(path), dynamo=False, dynamic_axes=axes, training=mode, opset_version=17,
                do_constant_folding=exporter == "legacy" and not training, **settings,
            )  # fmt: skip
    return onnx.load(str(path))


class Store:
    """The folder of the corpus: references and sound exports are made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "sound").mkdir(parents=True, exist_ok=True)

    def weights(self, name: str) -> Path:
        path = self.folder / "sound" / f"{name}.pt"
        if not path.exists():
            torch.save(module(name).state_dict(), path)
        return path

    def rows(self, name: str) -> Path:
        path = self.folder / "sound" / f"{name}.npz"
        if not path.exists():
            np.savez(path, **data(name))
        return path

    def sound(self, base: str) -> Path:
        """`net/exporter` as a file: dynamo, legacy, or kept (the older exporter with batch norm left as it is)."""
        name, exporter = base.split("/")
        path = self.folder / "sound" / f"{name}.{exporter}.onnx"
        if not path.exists():
            export(copy.deepcopy(module(name)), data(name), exporter, path)
        return path
