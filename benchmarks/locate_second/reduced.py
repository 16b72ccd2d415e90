"""Quantised and half-precision files of the second set's networks, each with one bad number or an overflow."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from locate_faults.bases import export
from locate_faults.corpus import WORDS, Built, Edit, Truth, beyond, run, truth_of
from locate_faults.edits import weight
from locate_faults.reduced import around, dynamic, one_side, stripped, taken_by

from locate_second import bases

Rows = dict[str, np.ndarray]


class Batches:
    """Rows for calibration."""

    def __init__(self, rows: Rows) -> None:
        self.batches = iter([{k: v[i : i + 10] for k, v in rows.items()} for i in range(0, bases.ROWS, 10)])

    def get_next(self) -> Rows | None:
        return next(self.batches, None)


def static(source: Path, into: Path, rows: Rows, kind: str) -> onnx.ModelProto:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    form = QuantFormat.QOperator if kind == "qoperator" else QuantFormat.QDQ
    quantize_static(
        str(source), str(into), Batches(rows), quant_format=form, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8, per_channel=kind == "qdq", reduce_range=True,
    )  # fmt: skip
    return onnx.load(str(into))


def pair(
    name: str, kind: str, net: str, word: str, reference: Path, sound: list[np.ndarray], truth: Truth, place: Path,
    store: bases.Store, also: tuple[str, ...] = (),
) -> Built:  # fmt: skip
    """Under a tolerance of twice what the sound file costs."""
    rows = dict(store.data(net))
    expected, candidate = run(reference, rows), place / "candidate.onnx"
    cost = max(float(np.abs(a - b).max()) for a, b in zip(expected, sound, strict=True))
    tolerance = float(f"{max(2 * cost, 1e-3):.1g}")
    np.savez(place / "rows.npz", **rows)
    paths, options = (str(reference), str(candidate), str(place / "rows.npz")), {"abs_tol": tolerance, "rel_tol": 0.0}
    failing = beyond(expected, run(candidate, rows), tolerance, 0.0)
    if not word:
        assert not failing
        return Built(name, "clean", *paths, options=options)
    assert failing, f"{name}: nothing beyond {tolerance}"
    return Built(
        name, f"{store.label}: reduced", *paths, word, (*WORDS[word], *also), tuple(sorted(truth.nodes)),
        tuple(sorted(truth.tensors)), tuple(sorted(truth.paths)), options, f"{name}, {net}, {kind}",
    )  # fmt: skip


def integers(
    name: str, kind: str, base: str, edit: Edit | None, also: tuple[str, ...], store: bases.Store, place: Path
) -> Built:
    net = base.split("/")[0]
    reference, path = stripped(store.sound(base), place / "reference.onnx"), place / "candidate.onnx"
    rows = dict(store.data(net))
    sound = dynamic(reference, path) if kind == "dynamic" else static(reference, path, rows, kind)
    answers, truth = run(path, rows), Truth()
    if edit is not None:
        faulty = copy.deepcopy(sound)
        edit(faulty)
        onnx.save(faulty, str(path))
        truth = around(faulty, truth_of(sound, faulty))
    return pair(name, kind, net, "quantisation" if edit else "", reference, answers, truth, place, store, also)


def half(name: str, base: str, loud: Callable[[Any], None] | None, told: str, store: bases.Store, place: Path) -> Built:
    """A whole file in half precision; one layer of the network may be too loud for it."""
    import torch
    from onnxruntime.transformers.float16 import convert_float_to_float16

    net, exporter = base.split("/")
    path = place / "candidate.onnx"
    stripped(store.sound(base), place / "quiet.onnx")
    onnx.save(convert_float_to_float16(onnx.load(str(place / "quiet.onnx")), keep_io_types=True), str(path))
    rows = dict(store.data(net))
    cost = run(path, rows)
    if loud is None:
        return pair(name, "fp16", net, "", place / "quiet.onnx", cost, Truth(), place, store)
    other = copy.deepcopy(store.module(net))
    with torch.no_grad():
        loud(other)
    export(other, store.data(net), exporter, place / "float.onnx")
    reference = stripped(place / "float.onnx", place / "reference.onnx")
    model = convert_float_to_float16(onnx.load(str(reference)), keep_io_types=True)
    onnx.save(model, str(path))
    nodes = {n.name for n in model.graph.node if told in n.name}
    tensors = {o for n in model.graph.node if n.name in nodes for o in (*n.output, *n.input)}
    near = {n.name for n in model.graph.node if tensors & set(n.output)}
    expected = run(reference, rows)
    quiet = [e + (c - q) for e, c, q in zip(expected, cost, run(place / "quiet.onnx", rows), strict=True)]
    truth = Truth(nodes | near, tensors, {told.strip("/").replace("/", ".")})
    return pair(name, "fp16", net, "half overflow", reference, quiet, truth, place, store, ("integer-overflow",))


def louder(path: str, factor: float, back: str) -> Callable[[Any], None]:
    """A layer whose values leave half precision's range, and the next one brings them back."""

    def change(net: Any) -> None:
        net.get_submodule(path).weight.mul_(factor)
        net.get_submodule(path).bias.mul_(factor)
        net.get_submodule(back).weight.div_(factor)

    return change


Case = tuple[str, str, str, Edit | None, tuple[str, ...]]
CASES: list[Case] = [
    ("range-too-narrow", "qdq", "residual/legacy", taken_by("Conv", 7, 0, lambda s: s * 0.2), ()),
    ("zero-point-shifted", "qdq", "residual/legacy", one_side("Conv", 4, 0, lambda z: z + 30), ()),
    (
        "weight-scale-of-channel",
        "qdq",
        "residual/dynamo",
        taken_by("Conv", 8, 1, lambda s: s * np.where(np.arange(len(s)) == 2, 3, 1)),
        ("weight-corruption",),
    ),
    ("scale-too-coarse", "qdq", "segmenter/dynamo", taken_by("Conv", 3, 0, lambda s: s * 40), ()),
    ("head-range", "qdq", "boxes/legacy", taken_by("Conv", 2, 0, lambda s: s * 0.1), ()),
    (
        "dynamic-row",
        "dynamic",
        "reader/legacy",
        weight("MatMulInteger", 5, 1, lambda w: np.roll(w, 3, 1)),
        ("weight-corruption",),
    ),
    ("clean-qdq", "qdq", "segmenter/dynamo", None, ()),
    ("clean-dynamic", "dynamic", "speech/legacy", None, ()),
]


Loud = tuple[str, str, Callable[[Any], None] | None, str]
HALVES: list[Loud] = [
    ("half-loud", "residual/legacy", louder("entry", 1e5, "blocks.0.reduce"), "/entry/"),
    ("clean-half", "boxes/dynamo", None, ""),
]


def makers(
    store: bases.Store, cases: Sequence[Case] = CASES, halves: Sequence[Loud] = HALVES
) -> Iterator[tuple[str, Callable[[Path], Built]]]:
    for name, kind, base, edit, also in cases:
        yield f"{store.label}-{name}", partial(integers, f"{store.label}-{name}", kind, base, edit, also, store)
    for name, base, loud, told in halves:
        yield f"{store.label}-{name}", partial(half, f"{store.label}-{name}", base, loud, told, store)
