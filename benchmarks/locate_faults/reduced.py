"""Faults of quantisation and half precision: one node with a bad scale, a range, a zero point, an overflow.

The reference is the sound float network. The tolerance is a little above what sound quantisation of the same network
costs, so that the sound file passes and only the planted fault is beyond it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from locate_faults import bases
from locate_faults.corpus import WORDS, Built, Edit, Truth, beyond, run, truth_of
from locate_faults.edits import both, insert, node_at, weight

Rows = dict[str, np.ndarray]


class Reader:
    """Rows for calibration, eight at a time."""

    def __init__(self, rows: Rows) -> None:
        self.batches = iter([{k: v[i : i + 8] for k, v in rows.items()} for i in range(0, 96, 8)])

    def get_next(self) -> Rows | None:
        return next(self.batches, None)


def stripped(path: Path, into: Path) -> Path:
    model = onnx.load(str(path))
    del model.graph.value_info[:]
    onnx.save(model, str(into))
    return into


def static(float_file: Path, into: Path, rows: Rows, *, operator: bool = False, **options: Any) -> onnx.ModelProto:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    quantize_static(
        str(float_file), str(into), Reader(rows),
        quant_format=QuantFormat.QOperator if operator else QuantFormat.QDQ,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
        **{"per_channel": not operator, "reduce_range": True, **options},
    )  # fmt: skip
    return onnx.load(str(into))


def dynamic(float_file: Path, into: Path, **options: Any) -> onnx.ModelProto:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(str(float_file), str(into), weight_type=QuantType.QInt8, reduce_range=True, **options)
    return onnx.load(str(into))


def loud(name: str, change: Callable[[Any], None], exporter: str, into: Path) -> None:
    """A network with uncommon weights, as a sound float file."""
    import torch

    net = copy.deepcopy(bases.module(name))
    with torch.no_grad():
        change(net)
    bases.export(net, bases.data(name), exporter, into)


def finish(
    name: str, family: str, net: str, word: str, reference: Path, sound: list[np.ndarray], truth: Truth, place: Path,
    also: tuple[str, ...] = (), tolerance: float | None = None, store: bases.Store | None = None, floor: float = 1e-3,
) -> Built:  # fmt: skip
    """The pair with a tolerance of twice what the sound file costs; refused where the fault does not exceed it."""
    rows = dict(bases.data(net))
    expected = run(reference, rows)
    if tolerance is None:
        cost = max(float(np.abs(a - b).max()) for a, b in zip(expected, sound, strict=True))
        tolerance = float(f"{max(2 * cost, floor):.1g}")
    answers = run(place / "candidate.onnx", rows)
    failing = beyond(expected, answers, tolerance, 0.0)
    np.savez(place / "rows.npz", **rows)
    options = {"abs_tol": tolerance, "rel_tol": 0.0}
    paths = str(reference), str(place / "candidate.onnx"), str(place / "rows.npz")
    if not word:
        assert not failing, name
        return Built(name, "clean", *paths, options=options)
    assert truth.nodes, name
    assert failing, f"{name}: {failing} beyond {tolerance}"
    return Built(
        name, family, *paths, word, (*WORDS[word], *also), tuple(sorted(truth.nodes)), tuple(sorted(truth.tensors)),
        tuple(sorted(truth.paths)), options, f"{word}, {net}, {family}, reference float onnx",
    )  # fmt: skip


def around(model: onnx.ModelProto, truth: Truth) -> Truth:
    """A bad scale is the place of the pair of Q and DQ, of the float tensor it stands for and of who takes it."""
    named = set(truth.nodes)
    tensors = set(truth.tensors)
    for _ in range(2):
        for node in model.graph.node:
            if node.op_type in ("QuantizeLinear", "DequantizeLinear") and (
                tensors & {node.output[0]} or (node.name in named) or tensors & {node.input[0]}
            ):
                named.add(node.name)
                tensors |= {node.output[0], node.input[0]}
    for node in model.graph.node:
        if tensors & (set(node.input) | set(node.output)):
            named.add(node.name)
    plain = {t.replace("_QuantizeLinear_Output", "").replace("_QuantizeLinear_Input", "") for t in tensors}
    plain |= {t.replace("_DequantizeLinear_Output", "").replace("_DequantizeLinear_Input", "") for t in plain}
    plain |= {t.replace("_quantized", "").replace("_scale", "").replace("_zero_point", "") for t in plain}
    return Truth(named, tensors | plain, truth.paths)


def edited(
    name: str,
    kind: str,
    base: str,
    word: str,
    edit: Edit | None,
    also: tuple[str, ...],
    store: bases.Store,
    place: Path,
) -> Built:
    """A soundly quantised file with one slip."""
    net = base.split("/")[0]
    reference = stripped(store.sound(base), place / "reference.onnx")
    rows = dict(bases.data(net))
    path = place / "candidate.onnx"
    if kind == "dynamic":
        sound = dynamic(reference, path)
    else:
        sound = static(reference, path, rows, operator=kind == "qoperator")
    answers = run(path, rows)
    truth = Truth()
    if edit is not None:
        faulty = copy.deepcopy(sound)
        edit(faulty)
        onnx.save(faulty, str(path))
        truth = around(faulty, truth_of(sound, faulty))
    return finish(name, f"int8 {kind}", net, word, reference, answers, truth, place, also)


def taken_by(
    operator: str, position: int, slot: int, change: Callable[[np.ndarray], np.ndarray], part: int = 1
) -> Edit:
    """The scale (1) or zero point (2) of what a node takes, changed in both Q and DQ."""

    def edit(model: onnx.ModelProto) -> None:
        _, node = node_at(model, operator, position)
        maker = next(n for n in model.graph.node if node.input[slot] in n.output)
        held = next(t for t in model.graph.initializer if t.name == maker.input[part])
        value = onnx.numpy_helper.to_array(held)
        held.CopyFrom(onnx.numpy_helper.from_array(np.asarray(change(value.copy()), value.dtype), held.name))

    return edit


def one_side(
    operator: str, position: int, slot: int, change: Callable[[np.ndarray], np.ndarray], part: int = 2
) -> Edit:
    """Only DQ has another scale or zero point than Q."""

    def edit(model: onnx.ModelProto) -> None:
        _, node = node_at(model, operator, position)
        maker = next(n for n in model.graph.node if node.input[slot] in n.output)
        weight("DequantizeLinear@" + maker.name, 0, part, change)(model)

    return edit


EDITED: list[tuple[str, str, str, str, Edit | None, tuple[str, ...]]] = [
    ("qdq-clipped-range", "qdq", "cnn/legacy", "quantisation", taken_by("Conv", 2, 0, lambda s: s * 0.15), ()),
    (
        "qdq-weight-scale",
        "qdq",
        "cnn/legacy",
        "quantisation",
        taken_by("Conv", 1, 1, lambda s: s * 1.3),
        ("weight-corruption",),
    ),
    ("qdq-zero-point", "qdq", "cnn/legacy", "quantisation", one_side("Conv", 1, 0, lambda z: z + 25), ()),
    ("qdq-coarse-scale", "qdq", "resnet/legacy", "quantisation", taken_by("Conv", 4, 0, lambda s: s * 30), ()),
    ("qdq-one-side", "qdq", "resnet/legacy", "quantisation", one_side("Conv", 6, 0, lambda s: s * 1.5, 1), ()),
    ("qdq-head-range", "qdq", "mlp/legacy", "quantisation", taken_by("Gemm", 2, 0, lambda s: s * 0.1), ()),
    ("clean-qdq-cnn", "qdq", "cnn/legacy", "", None, ()),
    ("clean-qdq-resnet", "qdq", "resnet/legacy", "", None, ()),
    ("qop-output-scale", "qoperator", "cnn/legacy", "quantisation", weight("QLinearConv", 0, 6, lambda s: s * 0.3), ()),
    ("qop-input-zero", "qoperator", "cnn/legacy", "quantisation", weight("QLinearConv", 1, 2, lambda z: z + 12), ()),
    (
        "qop-weights",
        "qoperator",
        "cnn/legacy",
        "weight edited",
        weight("QLinearConv", 2, 3, lambda w: np.roll(w, 1, 0)),
        ("quantization",),
    ),
    (
        "qop-weight-scale",
        "qoperator",
        "resnet/legacy",
        "quantisation",
        weight("QLinearConv", 5, 4, lambda s: s * 1.6),
        ("weight-corruption",),
    ),
    ("clean-qop-cnn", "qoperator", "cnn/legacy", "", None, ()),
    (
        "dynamic-weight-scale",
        "dynamic",
        "encoder/legacy",
        "quantisation",
        weight("Mul@layers.1/up", 0, 1, lambda s: s * 1.3),
        ("weight-corruption",),
    ),
    (
        "dynamic-weights",
        "dynamic",
        "encoder/legacy",
        "weight edited",
        weight("MatMulInteger@layers.2/down", 0, 1, lambda w: w[:, ::-1]),
        ("quantization",),
    ),
    (
        "dynamic-zero-point",
        "dynamic",
        "gnn/legacy",
        "quantisation",
        weight("MatMulInteger", 2, 3, lambda z: z + 9),
        ("weight-corruption",),
    ),
    ("clean-dynamic-encoder", "dynamic", "encoder/legacy", "", None, ()),
]


def uneven(store: bases.Store, place: Path) -> Built:
    """One convolution has channels of very different size, and is quantised by tensor instead of by channel."""
    spread = np.logspace(-3.0, 0.0, 24).astype(np.float32)

    def change(net: Any) -> None:
        import torch

        size = torch.from_numpy(spread)
        net.conv2.weight.mul_(size[:, None, None, None])
        net.bn2.running_mean.mul_(size)
        net.bn2.running_var.mul_(size**2)
        net.bn2.eps = 1e-12

    loud("cnn", change, "kept", place / "float.onnx")
    reference = stripped(place / "float.onnx", place / "reference.onnx")
    rows = dict(bases.data("cnn"))
    path = place / "candidate.onnx"
    alone = {
        "nodes_to_quantize": ["/conv2/Conv"],
        "extra_options": {"OpTypesToExcludeOutputQuantization": ["Conv"]},
    }
    static(reference, path, rows, **alone)
    answers = run(path, rows)
    faulty = static(reference, path, rows, per_channel=False, **alone)
    names = {"/conv2/Conv", "conv2.weight"}
    truth = Truth(set(names), set(names), {"conv2"})
    for node in faulty.graph.node:
        if any(i.startswith("conv2.weight") for i in node.input):
            truth.nodes.add(node.name)
            truth.tensors |= set(node.output)
    truth.tensors |= {i.name for i in faulty.graph.initializer if i.name.startswith("conv2.weight")}
    return finish("qdq-by-tensor", "int8 qdq", "cnn", "quantisation", reference, answers, truth, place)


def tame(store: bases.Store, place: Path) -> Built:
    """One node alone is quantised, with a range from tame rows."""
    reference = stripped(store.sound("resnet/legacy"), place / "reference.onnx")
    rows = dict(bases.data("resnet"))
    chosen = "/stage2/stage2.0/conv_b/Conv"
    path = place / "candidate.onnx"
    static(reference, path, rows, nodes_to_quantize=[chosen])
    answers = run(path, rows)
    faulty = static(reference, path, {k: v * 0.1 for k, v in rows.items()}, nodes_to_quantize=[chosen])
    truth = around(faulty, Truth({chosen}, set(), {"stage2.0.conv_b"}))
    _, node = node_at(faulty, f"Conv@{chosen}", 0)
    truth.tensors |= set(node.input) | set(node.output)
    truth.nodes |= {n.name for n in faulty.graph.node if n.op_type.endswith("Linear")}
    return finish("qdq-tame-rows", "int8 qdq", "resnet", "quantisation", reference, answers, truth, place)


def outlier(store: bases.Store, place: Path) -> Built:
    """One weight of one layer is fifty times the others: dynamic quantisation by tensor loses the rest."""

    def change(net: Any) -> None:
        net.layers[1].up.weight[3, 4] = 40.0

    loud("encoder", change, "legacy", place / "float.onnx")
    reference = stripped(place / "float.onnx", place / "reference.onnx")
    path = place / "candidate.onnx"
    dynamic(reference, path, nodes_to_exclude=["/layers.1/up/MatMul"])
    answers = run(path, dict(bases.data("encoder")))
    faulty = dynamic(reference, path)
    nodes = {n.name for n in faulty.graph.node if "/layers.1/up/MatMul" in n.name}
    tensors = {o for n in faulty.graph.node if n.name in nodes for o in (*n.input, *n.output)}
    truth = Truth(nodes | {"/layers.1/up/MatMul"}, tensors | {"/layers.1/up/MatMul_output_0"}, {"layers.1.up"})
    return finish("dynamic-outlier", "int8 dynamic", "encoder", "quantisation", reference, answers, truth, place)


def half(
    name: str, base: str, operator: str, position: int, tolerance: float, store: bases.Store, place: Path
) -> Built:
    """The output of one node goes through half precision, as mixed precision leaves it."""
    net = base.split("/")[0]
    reference = stripped(store.sound(base), place / "reference.onnx")
    sound = onnx.load(str(reference))
    faulty = copy.deepcopy(sound)
    _, node = node_at(faulty, operator, position)
    both(
        insert(operator, position, "Cast", f"{node.name}_to_half", to=TensorProto.FLOAT16),
        insert(f"Cast@{node.name}_to_half", 0, "Cast", f"{node.name}_to_float", to=TensorProto.FLOAT),
    )(faulty)
    onnx.save(faulty, str(place / "candidate.onnx"))
    truth = truth_of(sound, faulty)
    truth.nodes.add(node.name)
    truth.tensors |= set(node.output)
    return finish(
        name, "fp16", net, "half precision", reference, [], truth, place, ("nonfinite", "float32-compute"), tolerance
    )


def overflow(store: bases.Store, place: Path) -> Built:
    """The squares of a root mean square norm overflow in half precision."""

    def change(net: Any) -> None:
        net.tokens.weight.mul_(100)

    loud("decoder", change, "legacy", place / "float.onnx")
    reference = stripped(place / "float.onnx", place / "reference.onnx")
    sound = onnx.load(str(reference))
    faulty = copy.deepcopy(sound)
    _, node = node_at(faulty, "Pow", 2)
    both(
        insert("Pow", 2, "Cast", "square_to_half", to=TensorProto.FLOAT16),
        insert("Cast@square_to_half", 0, "Cast", "square_to_float", to=TensorProto.FLOAT),
    )(faulty)
    onnx.save(faulty, str(place / "candidate.onnx"))
    truth = truth_of(sound, faulty)
    truth.nodes.add(node.name)
    truth.tensors |= set(node.output)
    return finish("half-overflow", "fp16", "decoder", "half overflow", reference, [], truth, place, (), 0.5)


def converted(name: str, net: str, tolerance: float, store: bases.Store, place: Path) -> Built:
    """A whole file in half precision, under a tolerance that allows it."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    reference = stripped(store.sound(net), place / "reference.onnx")
    made = convert_float_to_float16(onnx.load(str(reference)), keep_io_types=True)
    onnx.save(made, str(place / "candidate.onnx"))
    return finish(name, "fp16", net.split("/")[0], "", reference, [], Truth(), place, (), tolerance)


def makers(store: bases.Store) -> Iterator[tuple[str, Callable[[Path], Built]]]:
    for name, kind, base, word, edit, also in EDITED:
        yield name, partial(edited, name, kind, base, word, edit, also, store)
    yield "qdq-by-tensor", partial(uneven, store)
    yield "qdq-tame-rows", partial(tame, store)
    yield "dynamic-outlier", partial(outlier, store)
    yield "half-pow", partial(half, "half-pow", "decoder/legacy", "Pow", 1, 3e-4, store)
    yield "half-logits", partial(half, "half-logits", "encoder/legacy", "Add@layers.2/Add_1", 0, 1e-5, store)
    yield "half-boxes", partial(half, "half-boxes", "detector/dynamo", "Mul", 1, 1e-3, store)
    yield "half-conv", partial(half, "half-conv", "resnet/dynamo", "Conv", 3, 2e-5, store)
    yield "half-overflow", partial(overflow, store)
    yield "half-messages", partial(half, "half-messages", "gnn/dynamo", "ScatterElements", 0, 1e-4, store)
    yield "half-price", partial(half, "half-price", "fusion/dynamo", "Gemm", 1, 1e-5, store)
    yield "clean-half-mlp", partial(converted, "clean-half-mlp", "mlp/dynamo", 1e-2, store)
