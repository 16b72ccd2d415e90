"""Networks as exporters, quantisers and runtimes leave them: nothing is edited by hand."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from locate_faults.bases import export
from locate_faults.corpus import Built

from locate_natural import nets

ROWS = 80
FACTORY = inspect.getsourcefile(nets) or ""
Rows = dict[str, np.ndarray]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, *shape)).astype(np.float32)


@dataclass(frozen=True)
class Natural:
    """What is done to a network on its way. `operators` and `paths` say where what goes wrong lies."""

    name: str
    net: type[torch.nn.Module]
    rows: Rows
    how: Callable[[torch.nn.Module, Rows, Path], None]
    causes: tuple[str, ...]
    operators: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def by(exporter: str) -> Callable[[torch.nn.Module, Rows, Path], None]:
    return lambda net, rows, path: void(export(net, rows, exporter, path))


def void(_: object) -> None:
    """Only the file counts."""


def training(exporter: str) -> Callable[[torch.nn.Module, Rows, Path], None]:
    return lambda net, rows, path: void(export(net.train(), rows, exporter, path, training=True))


def halved(net: torch.nn.Module, rows: Rows, path: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = export(net, rows, "dynamo", path)
    del model.graph.value_info[:]
    onnx.save(convert_float_to_float16(model, keep_io_types=True), str(path))


def single(net: torch.nn.Module, rows: Rows, path: Path) -> None:
    """The module in float32, as a deployment takes it."""
    export(net.float(), {name: array.astype(np.float32) for name, array in rows.items()}, "dynamo", path)


def dynamic(net: torch.nn.Module, rows: Rows, path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    model = export(net, rows, "dynamo", path)
    del model.graph.value_info[:]
    onnx.save(model, str(path))
    quantize_dynamic(str(path), str(path))


def static(net: torch.nn.Module, rows: Rows, path: Path) -> None:
    """Calibrated on the first eight rows, which are tame."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Few(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter([{name: array[i : i + 1] for name, array in rows.items()} for i in range(8)])

        def get_next(self) -> Any:
            return next(self.left, None)

    model = export(net, rows, "dynamo", path)
    del model.graph.value_info[:]
    onnx.save(model, str(path))
    quantize_static(str(path), str(path), Few(), quant_format=QuantFormat.QDQ)


def approximated(net: torch.nn.Module, rows: Rows, path: Path) -> None:
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    export(net, rows, "legacy", path)
    options = FusionOptions("bert")
    options.enable_gelu_approximation = True
    optimize_model(str(path), "bert", num_heads=2, hidden_size=16, optimization_options=options).save_model_to_file(
        str(path)
    )


def instead(other: type[torch.nn.Module], exporter: str) -> Callable[[torch.nn.Module, Rows, Path], None]:
    """Another module with the same weights."""

    def how(net: torch.nn.Module, rows: Rows, path: Path) -> None:
        made = other()
        made.load_state_dict(net.state_dict())
        export(made.eval(), rows, exporter, path)

    return how


def retrained(net: torch.nn.Module, rows: Rows, path: Path) -> None:
    """The same module of another training."""
    export(type(net)().eval(), rows, "dynamo", path)


def tame_first(*shape: int, tame: float = 1.0) -> np.ndarray:
    rows = normal(*shape)
    rows[:8] *= tame
    rows[8:] *= np.random.default_rng(1).uniform(1, 6, (ROWS - 8, *[1] * len(shape))).astype(np.float32)
    return rows


def sentences() -> np.ndarray:
    """Ids of words, and zeros behind the last."""
    rng = np.random.default_rng(6)
    ids, lengths = rng.integers(1, 50, (ROWS, 9)), rng.integers(3, 10, ROWS)
    return np.where(np.arange(9) < lengths[:, None], ids, 0)


def with_gaps(*shape: int) -> np.ndarray:
    rows = normal(*shape)
    rows[np.random.default_rng(2).random(rows.shape) < 0.06] = np.nan
    return rows


TIGHT = {"abs_tol": 1e-6, "rel_tol": 1e-5}
QUANTIZED = {"abs_tol": 0.05, "rel_tol": 0.05}

CASES = [
    Natural(
        "branch",
        nets.Branches,
        {"signal": tame_first(6, tame=0.1)},
        by("legacy"),
        ("traced-branch", "weight-corruption"),
        ("Gemm",),
        ("calm", "loud"),
    ),
    Natural(
        "batch-norm",
        nets.Normed,
        {"image": normal(2, 7, 7)},
        training("legacy"),
        ("training-mode",),
        ("BatchNormalization",),
        ("norm",),
    ),
    Natural(
        "constants-in-half",
        nets.Prices,
        {"x": normal(6)},
        halved,
        ("precision-reduction",),
        ("Mul", "Add"),
        (),
        {"abs_tol": 0.01, "rel_tol": 0.01},
    ),
    Natural(
        "outlier-per-tensor",
        nets.Outlier,
        {"x": normal(16)},
        dynamic,
        ("quantization",),
        ("MatMulInteger",),
        ("second",),
        QUANTIZED,
    ),
    Natural(
        "tame-calibration",
        nets.Ranges,
        {"wave": tame_first(2, 12)},
        static,
        ("quantization",),
        (),
        ("model",),
        QUANTIZED,
    ),
    Natural(
        "seconds-in-float",
        nets.Clock,
        {"when": np.random.default_rng(5).uniform(1.6e9, 1.8e9, ROWS)},
        single,
        ("float32-input-cast",),
        (),
        ("when",),
    ),
    Natural(
        "nan-maximum",
        nets.Largest,
        {"series": with_gaps(5)},
        by("dynamo"),
        ("operator-semantics", "missing-value-handling"),
        ("ArgMax", "ReduceMax"),
        ("series", "series[0]"),
    ),
    Natural(
        "nan-ranked",
        nets.Ranked,
        {"series": with_gaps(5)},
        by("dynamo"),
        ("operator-semantics", "missing-value-handling"),
        ("TopK",),
        ("series", "series[0]"),
    ),
    Natural(
        "gelu-approximated",
        nets.Smooth,
        {"x": normal(5, 16)},
        approximated,
        ("approximation",),
        ("FastGelu", "Gelu", "BiasGelu"),
        (),
        TIGHT,
    ),
    Natural(
        "scale-recorded",
        nets.Scaled,
        {"x": normal(5)},
        by("legacy"),
        ("traced-branch", "batch-dependence"),
        ("Div",),
        ("batch size",),
    ),
    Natural(
        "vector-of-any-length",
        nets.Sentence,
        {"ids": sentences()},
        instead(nets.SentenceOfAnyLength, "dynamo"),
        ("model-part-dropped", "link-function"),
        ("Div",),
        ("answer",),
    ),
    Natural(
        "states-at-zero",
        nets.Started,
        {"series": normal(6, 4)},
        instead(nets.StartedAtZero, "legacy"),
        ("model-part-dropped",),
        ("ConstantOfShape", "LSTM"),
        ("lstm",),
    ),
    Natural(
        "table-of-another-training", nets.Sentence, {"ids": sentences()}, retrained, ("stale-weights",), (), ("model",)
    ),
]


def makers(_: Any) -> Iterator[tuple[str, Callable[[Path], Built]]]:
    for case in CASES:
        yield f"natural-{case.name}", partial(make, case)


def make(case: Natural, place: Path) -> Built:
    """The weights, the rows and the file as it comes."""
    torch.manual_seed(len(case.name))
    net = case.net().eval()
    torch.save(net.state_dict(), place / "weights.pt")
    np.savez(place / "rows.npz", **case.rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case.how(copy.deepcopy(net), case.rows, place / "candidate.onnx")
    graph = onnx.load(str(place / "candidate.onnx")).graph
    nodes = tuple(node.name for node in graph.node if node.op_type in case.operators)
    tensors = tuple(name for node in graph.node if node.op_type in case.operators for name in node.output)
    options = {"reference_options": {"factory": f"{FACTORY}:{case.net.__name__}"}, **case.options}
    return Built(
        f"natural-{case.name}", "natural networks", str(place / "weights.pt"), str(place / "candidate.onnx"),
        str(place / "rows.npz"), "natural", case.causes, nodes, tensors, case.paths, options, case.name,
    )  # fmt: skip
