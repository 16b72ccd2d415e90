"""The sound networks of the second set: weights, rows and files by both exporters, as they are or optimised."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import torch
from locate_faults.bases import export
from torch import nn

from locate_second import nets

Rows = Mapping[str, np.ndarray]
ROWS = 80
FACTORY = inspect.getsourcefile(nets) or ""


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=(ROWS, *shape)).astype(np.float32)


def whole(rng: np.random.Generator, low: int, top: int, *shape: int) -> np.ndarray:
    return rng.integers(low, top, size=(ROWS, *shape))


def padded(rng: np.random.Generator, top: int, length: int, least: int = 2) -> np.ndarray:
    """Ids with zeros behind them, of many lengths."""
    ids = whole(rng, 1, top, length)
    return np.where(np.arange(length) < rng.integers(least, length + 1, ROWS)[:, None], ids, 0)


Nets = Mapping[str, tuple[type[nn.Module], Callable[[np.random.Generator], dict[str, np.ndarray]]]]
"""Classes of networks, and how their rows are drawn."""

NETS: Nets = {
    "efficient": (nets.Efficient, lambda r: {"image": normal(r, 3, 20, 20)}),
    "residual": (nets.Residual, lambda r: {"image": normal(r, 1, 14, 14)}),
    "segmenter": (nets.Segmenter, lambda r: {"scan": normal(r, 2, 16, 16)}),
    "speech": (nets.Speech, lambda r: {"wave": normal(r, 120)}),
    "forecaster": (nets.Forecaster, lambda r: {"series": normal(r, 10, 3), "site": normal(r, 4)}),
    "reader": (nets.Reader, lambda r: {"tokens": padded(r, 60, 14)}),
    "molecules": (
        nets.Molecules,
        lambda r: {
            "kinds": whole(r, 0, 8, 7),
            "bonds": normal(r, 11, 3),
            "source": whole(r, 0, 7, 11),
            "target": whole(r, 0, 7, 11),
        },
    ),
    "clicks": (
        nets.Clicks,
        lambda r: {
            "tags": padded(r, 25, 5, 0),
            "ad": whole(r, 0, 40),
            "hour": whole(r, 0, 24),
            "price": r.gamma(2.0, 3.0, (ROWS, 4)).astype(np.float32),
        },
    ),
    "boxes": (nets.Boxes, lambda r: {"frame": normal(r, 3, 32, 32)}),
    "towers": (nets.Towers, lambda r: {"picture": normal(r, 1, 16, 16), "caption": whole(r, 0, 30, 6)}),
    "larger": (nets.Larger, lambda r: {"small": normal(r, 1, 10, 10)}),
    "experts": (nets.Experts, lambda r: {"events": normal(r, 6, 10)}),
}


def trained(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A network as after some training: nothing is zero or one by accident."""
    torch.manual_seed(seed)
    net = make().eval()
    with torch.no_grad():
        for value in net.parameters():
            value.add_(torch.randn_like(value) * (0.2 if value.dim() < 2 else 0.15))
        for part in net.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.running_mean.normal_(0.2, 0.3)
                part.running_var.uniform_(0.1, 1.4)
            if isinstance(part, nn.Embedding) and part.padding_idx is not None:
                part.weight[part.padding_idx] = 0
    return net


def optimised(path: Path, into: Path, how: str) -> onnx.ModelProto:
    """A file without what its exporter wrote about it: saved by ONNX Runtime (`basic`, `extended`), or bare."""
    import onnxruntime as ort

    if how == "bare":
        model = onnx.load(str(path))
        del model.graph.value_info[:]
        for number, node in enumerate(model.graph.node):
            del node.metadata_props[:]
            node.name = f"{node.op_type}_{number}"
            node.doc_string = ""
        onnx.save(model, str(into))
        return model
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{how.upper()}")
    options.optimized_model_filepath = str(into)
    options.log_severity_level = 4
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return onnx.load(str(into))


class Store:
    """References and sound exports of the networks of a set, made once. `factory` is the file of their classes."""

    def __init__(self, folder: Path, label: str = "second", nets: Nets = NETS, factory: str = FACTORY) -> None:
        self.folder, self.label, self.nets, self.factory = folder / label, label, nets, factory
        self.folder.mkdir(parents=True, exist_ok=True)

    @cache  # noqa: B019 - a store lives as long as the run
    def module(self, name: str) -> nn.Module:
        return trained(self.nets[name][0], 7 + len(name))

    @cache  # noqa: B019
    def data(self, name: str) -> Rows:
        return self.nets[name][1](np.random.default_rng(100 + len(name)))

    def against_torch(self, name: str) -> dict[str, dict[str, str]]:
        """The options of a check against the module itself."""
        return {"reference_options": {"factory": f"{self.factory}:{self.nets[name][0].__name__}"}}

    def weights(self, name: str) -> Path:
        path = self.folder / f"{name}.pt"
        if not path.exists():
            torch.save(self.module(name).state_dict(), path)
        return path

    def rows(self, name: str) -> Path:
        path = self.folder / f"{name}.npz"
        if not path.exists():
            np.savez(path, **self.data(name))
        return path

    def sound(self, base: str) -> Path:
        """`net/exporter`: dynamo, legacy, or kept (the older exporter with batch norm left as it is)."""
        name, exporter = base.split("/")
        path = self.folder / f"{name}.{exporter}.onnx"
        if not path.exists():
            export(copy.deepcopy(self.module(name)), self.data(name), exporter, path)
        return path
