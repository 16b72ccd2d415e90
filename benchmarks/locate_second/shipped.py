"""Faults in networks that ship in wheels (magika, nudenet, basic-pitch, rapidocr-onnxruntime), where these are found.

The wheels need not be importable, only on the path: `pip install --no-deps --target FOLDER …` and PYTHONPATH=FOLDER.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from locate_faults.corpus import WORDS, Built, Edit, beyond, run, truth_of
from locate_faults.edits import attribute, leave_out, replace, swap_inputs, weight

from locate_second.bases import optimised

F32 = np.float32


@dataclass(frozen=True)
class Network:
    """A file inside a package, and rows of its kind."""

    package: str
    file: str
    rows: Callable[[np.random.Generator], dict[str, np.ndarray]]

    def path(self) -> Path | None:
        spec = importlib.util.find_spec(self.package)
        places = [Path(p) / self.file for p in (spec.submodule_search_locations or [])] if spec else []
        return next((p for p in places if p.exists()), None)


def picture(rng: np.random.Generator, rows: int, high: int, wide: int) -> np.ndarray:
    """Smooth patches in place of noise: what these networks answer to."""
    coarse = rng.random((rows, 3, high // 8, wide // 8)).astype(F32)
    return np.kron(coarse, np.ones((8, 8), F32)) * 2 - 1


def page(rng: np.random.Generator, rows: int, high: int, wide: int) -> np.ndarray:
    """Lines of dark strokes on white."""
    sheet = np.ones((rows, 3, high, wide), F32)
    for one in sheet:
        for top in range(8, high - 16, 24):
            for left in range(6, wide - 12, 7):
                one[:, top : top + 12, left : left + int(rng.integers(1, 5))] = -1
    return sheet


NETWORKS = {
    "magika": Network(
        "magika",
        "models/standard_v3_3/model.onnx",
        lambda r: {"bytes": r.integers(0, 257, (24, 2048)).astype(np.int32)},
    ),
    "nudenet": Network("nudenet", "320n.onnx", lambda r: {"images": picture(r, 6, 160, 160) * 0.5 + 0.5}),
    "pitch": Network(
        "basic_pitch",
        "saved_models/icassp_2022/nmp.onnx",
        lambda r: {"serving_default_input_2:0": r.normal(0, 0.1, (4, 43844, 1)).astype(F32)},
    ),
    "ocr-found": Network(
        "rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", lambda r: {"x": page(r, 6, 96, 96)}
    ),
    "ocr-read": Network(
        "rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", lambda r: {"x": picture(r, 6, 48, 160)}
    ),
    "ocr-turned": Network(
        "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", lambda r: {"x": picture(r, 12, 48, 192)}
    ),
}


def row(index: int) -> Callable[[np.ndarray], np.ndarray]:
    def edit(value: np.ndarray) -> np.ndarray:
        value[index] = -value[index]
        return value

    return edit


FAULTS: list[tuple[str, str, str, Edit, str, tuple[str, ...]]] = [
    ("channel-negated", "nudenet", "weight edited", weight("Conv", 20, 1, row(5)), "", ()),
    ("upsample-linear", "nudenet", "attribute changed", attribute("Resize", 1, "mode", "linear"), "", ()),
    ("pool-smaller", "nudenet", "attribute changed", lambda m: smaller(m), "bare", ()),
    ("box-weights", "nudenet", "wiring", swap_inputs("Sub", 0), "", ()),
    ("silu-left-out", "nudenet", "part left out", leave_out("Mul", 30), "extended", ("wrong-wiring", "link-function")),
    ("floor-of-log", "magika", "attribute changed", replace("Tanh", 0, "Softsign"), "", ("approximation",)),
    ("kernel-permuted", "magika", "weight edited", weight("Conv", 0, 1, lambda w: w[:, ::-1]), "", ()),
    ("slope-of-gate", "ocr-found", "attribute changed", attribute("HardSigmoid", 4, "alpha", 0.25), "", ()),
    ("resize-linear", "ocr-found", "attribute changed", attribute("Resize", 2, "mode", "linear"), "", ()),
    (
        "norm-epsilon",
        "ocr-turned",
        "attribute changed",
        attribute("BatchNormalization", 20, "epsilon", 0.5),
        "",
        ("weight-corruption",),
    ),
    (
        "head-permuted",
        "ocr-read",
        "weight edited",
        weight("MatMul", 12, 1, lambda w: np.roll(w, 1, 1)),
        "",
        ("label-order", "output-mapping"),
    ),
    ("softmax-axis", "ocr-read", "attribute changed", attribute("Softmax", 0, "axis", 2), "", ()),
    ("pitch-kernel", "pitch", "weight edited", weight("Conv", 30, 1, lambda w: w[..., ::-1]), "", ()),
]


def smaller(model: onnx.ModelProto) -> None:
    attribute("MaxPool", 1, "kernel_shape", [3, 3])(model)
    attribute("MaxPool", 1, "pads", [1, 1, 1, 1])(model)


def makers(store: Any) -> Iterator[tuple[str, Callable[[Path], Built]]]:
    for name, network, word, edit, then, also in FAULTS:
        if NETWORKS[network].path():
            yield (
                f"second-{network}-{name}",
                partial(plant, f"second-{network}-{name}", network, word, edit, then, also),
            )
    for network in ("nudenet", "ocr-found", "magika"):
        if NETWORKS[network].path():
            yield f"second-clean-{network}", partial(clean, network)


def plant(name: str, network: str, word: str, edit: Edit, then: str, also: tuple[str, ...], place: Path) -> Built:
    """The shipped file against a copy with one slip."""
    shipped, path, rows = saved(network, place)
    sound, faulty = onnx.load(str(shipped)), onnx.load(str(shipped))
    del faulty.graph.value_info[:]
    edit(faulty)
    onnx.save(faulty, str(path))
    truth = truth_of(sound, faulty)
    if then:
        path.rename(place / "before.onnx")
        later = optimised(place / "before.onnx", path, then)
        truth.nodes |= {n.name for n in later.graph.node if set(n.output) & truth.tensors}
    assert beyond(run(shipped, rows), run(path, rows)), f"{name}: no row is beyond the tolerance"
    return Built(
        name, "second: shipped", str(shipped), str(path), str(place / "rows.npz"), word, (*WORDS[word], *also),
        tuple(sorted(truth.nodes)), tuple(sorted(truth.tensors)), tuple(sorted(truth.paths)), {},
        f"{name} {then}".strip(),
    )  # fmt: skip


def clean(network: str, place: Path) -> Built:
    """The shipped file against itself as ONNX Runtime saves it."""
    shipped, path, rows = saved(network, place)
    optimised(shipped, path, "extended")
    assert not beyond(run(shipped, rows), run(path, rows))
    return Built(f"second-clean-{network}", "clean", str(shipped), str(path), str(place / "rows.npz"))


def saved(network: str, place: Path) -> tuple[Path, Path, dict[str, np.ndarray]]:
    shipped = NETWORKS[network].path()
    assert shipped is not None
    rows = NETWORKS[network].rows(np.random.default_rng(31))
    np.savez(place / "rows.npz", **rows)
    return shipped, place / "candidate.onnx", rows
