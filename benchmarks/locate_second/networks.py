"""Faults in the networks of the second set: in the module before its export, in the file, or before an optimiser."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from locate_faults.bases import answers, export
from locate_faults.corpus import WORDS, Built, Edit, Truth, beyond, nodes_of, run, truth_of
from locate_faults.edits import attribute, both, insert, leave_out, replace, rewire, swap_inputs, swap_outputs, weight

from locate_second import bases

Weights = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Fault:
    """One slip: `file` edits the export, `module` the network before it; `then` is what was done to the file later."""

    name: str
    base: str
    word: str
    file: Edit | None = None
    module: Callable[[Any], None] | None = None
    paths: tuple[str, ...] = ()
    then: str = ""
    against: str = "torch"
    training: bool = False
    also: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def row(index: int, change: Weights = lambda w: -w) -> Weights:
    """One row of a weight."""

    def edit(value: np.ndarray) -> np.ndarray:
        value[index] = change(value[index])
        return value

    return edit


def entry(index: int, value: float) -> Weights:
    """One number of a weight."""

    def edit(weights: np.ndarray) -> np.ndarray:
        weights.flat[index] = value
        return weights

    return edit


def rolled(axis: int) -> Weights:
    return lambda w: np.roll(w, 1, axis)


def fresh(path: str) -> Callable[[Any], None]:
    """The weights of one layer are those of another training."""

    def change(net: Any) -> None:
        import torch

        part = net.get_submodule(path)
        torch.manual_seed(99)
        with torch.no_grad():
            for value in part.parameters():
                value.add_(torch.randn_like(value) * value.std(correction=0).clamp(min=0.1))

    return change


def put(path: str, name: str, value: Any) -> Callable[[Any], None]:
    def change(net: Any) -> None:
        setattr(net.get_submodule(path), name, value)

    return change


def live(path: str) -> Callable[[Any], None]:
    """One part is left in training mode."""

    def change(net: Any) -> None:
        net.get_submodule(path).train()

    return change


F32 = np.float32
FAULTS = [
    # convolutions with batch norm, a gate, group norm
    Fault(
        "bn-epsilon",
        "efficient/dynamo",
        "step differs",
        module=put("depth_bn", "eps", 0.05),
        paths=("depth_bn", "depth"),
        also=("stale-weights", "operator-attribute"),
    ),
    Fault(
        "gate-left-out", "efficient/legacy", "part left out", leave_out("Mul@/gate/Mul_1", 0), also=("wrong-wiring",)
    ),
    Fault(
        "pool-counts-padding",
        "efficient/dynamo",
        "attribute changed",
        attribute("AveragePool", 0, "count_include_pad", 1),
    ),
    Fault(
        "groups-of-norm", "efficient/legacy", "attribute changed", attribute("InstanceNormalization", 0, "epsilon", 0.1)
    ),
    Fault("hard-for-soft", "efficient/dynamo", "operator replaced", replace("Sigmoid", 1, "HardSigmoid")),
    Fault(
        "softmax-axis-bare",
        "efficient/dynamo",
        "attribute changed",
        replace("Softmax", 0, "Softmax", axis=0),
        then="bare",
        also=("batch-dependence",),
    ),
    Fault(
        "depth-channels-rolled", "efficient/dynamo", "weight edited", weight("Conv", 1, 1, rolled(0)), then="extended"
    ),
    Fault(
        "norm-in-training",
        "efficient/legacy",
        "training mode",
        module=live("stem.1"),
        paths=("stem.1", "stem.0"),
        training=True,
        also=("batch-dependence",),
    ),
    # bottlenecks
    Fault(
        "dilation-lost",
        "residual/dynamo",
        "attribute changed",
        both(attribute("Conv", 5, "dilations", [1, 1]), attribute("Conv", 5, "pads", [1, 1, 1, 1])),
    ),
    Fault(
        "stale-expand",
        "residual/legacy",
        "weights stale",
        module=fresh("blocks.2.expand"),
        paths=("blocks.2.expand", "blocks.2.bn3"),
    ),
    Fault("slope-of-prelu", "residual/legacy", "weight edited", weight("PRelu", 1, 1, row(3, lambda w: w + 2))),
    Fault("skip-from-before", "residual/dynamo", "wiring", rewire("Add", 3, 1, ("PRelu", 1))),
    Fault("relu-left-out", "residual/legacy", "activation left out", leave_out("Relu", 4), then="basic"),
    Fault("heads-swapped-sign", "residual/dynamo", "weight edited", weight("Gemm", 1, 1, row(0)), then="bare"),
    Fault(
        "short-pool-max",
        "residual/legacy",
        "operator replaced",
        replace("AveragePool", 0, "MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
    ),
    Fault("one-bit", "residual/legacy", "weight edited", weight("Conv", 6, 1, entry(17, 8.0))),
    # encoder and decoder
    Fault(
        "corners-aligned",
        "segmenter/dynamo",
        "attribute changed",
        attribute("Resize", 0, "coordinate_transformation_mode", "align_corners"),
    ),
    Fault("resize-nearest", "segmenter/legacy", "attribute changed", attribute("Resize", 0, "mode", "nearest")),
    Fault("pad-constant", "segmenter/dynamo", "attribute changed", attribute("Pad", 0, "mode", "constant")),
    Fault("skip-order", "segmenter/legacy", "wiring", swap_inputs("Concat@/Concat_1", 0)),
    Fault(
        "transposed-weight",
        "segmenter/dynamo",
        "weight edited",
        weight("ConvTranspose", 0, 1, lambda w: w.swapaxes(2, 3)),
    ),
    Fault(
        "instance-epsilon",
        "segmenter/dynamo",
        "attribute changed",
        attribute("InstanceNormalization", 1, "epsilon", 0.2),
        then="bare",
    ),
    Fault(
        "softmax-without-log",
        "segmenter/legacy",
        "link left out",
        replace("LogSoftmax", 0, "Softmax", axis=1),
        also=("operator-semantics",),
    ),
    Fault(
        "leaky-slope", "segmenter/dynamo", "attribute changed", attribute("LeakyRelu", 1, "alpha", 0.01), against="onnx"
    ),
    # sound
    Fault(
        "clamp-floor",
        "speech/dynamo",
        "constant edited",
        weight("Clip", 0, 1, lambda w: w * 0 + F32(1e-5)),
        also=("operator-semantics",),
    ),
    Fault("reset-gate", "speech/legacy", "attribute changed", attribute("GRU", 0, "linear_before_reset", 0)),
    Fault("directions-swapped", "speech/legacy", "weight edited", weight("GRU", 0, 1, lambda w: w[::-1])),
    Fault(
        "gates-permuted",
        "speech/dynamo",
        "weight edited",
        weight("GRU", 0, 2, lambda w: np.concatenate([w[:, 9:18], w[:, :9], w[:, 18:]], 1)),
    ),
    Fault(
        "gelu-tanh",
        "speech/dynamo",
        "approximated",
        attribute("Gelu", 0, "approximate", "tanh"),
        options={"abs_tol": 1e-5, "rel_tol": 0.0},
    ),
    Fault("bank-row", "speech/legacy", "weight edited", weight("Conv", 0, 1, row(4, lambda w: w * 0))),
    # series
    Fault("spread-biased", "forecaster/legacy", "constant edited", weight("Sub@/Sub_1", 0, 1, lambda w: w * 0)),
    Fault("state-zero", "forecaster/dynamo", "part left out", leave_out("Tanh", 0), also=("link-function",)),
    Fault(
        "recurrent-transposed",
        "forecaster/dynamo",
        "weight edited",
        weight("LSTM", 1, 2, lambda w: w.reshape(1, 4, 10, 10).swapaxes(2, 3).reshape(1, 40, 10)),
    ),
    Fault(
        "forget-bias",
        "forecaster/legacy",
        "weight edited",
        weight("LSTM", 0, 3, lambda b: b + (np.arange(b.size) // 10 == 2) * F32(1.0)),
    ),
    Fault("states-exchanged", "forecaster/legacy", "wiring", swap_inputs("LSTM", 0, 5, 6)),
    Fault(
        "last-step",
        "forecaster/dynamo",
        "constant edited",
        weight("Gather", 0, 1, lambda i: i * 0),
        also=("wrong-wiring", "operator-semantics"),
    ),
    Fault(
        "stale-second-optimised",
        "forecaster/legacy",
        "weights stale",
        module=fresh("second"),
        paths=("second",),
        then="extended",
    ),
    # a transformer encoder
    Fault(
        "mask-inverted",
        "reader/dynamo",
        "part left out",
        leave_out("Not", 1),
        also=("wrong-wiring", "operator-semantics"),
    ),
    Fault("attention-axis", "reader/dynamo", "attribute changed", attribute("Softmax", 2, "axis", -2)),
    Fault("scale-of-heads", "reader/dynamo", "constant edited", weight("Div", 1, 1, lambda w: w * 2)),
    Fault(
        "norm-epsilon",
        "reader/dynamo",
        "attribute changed",
        attribute("LayerNormalization", 3, "epsilon", 0.3),
        then="bare",
    ),
    Fault("keys-for-values", "reader/legacy", "wiring", lambda m: keys_for_values(m)),
    Fault(
        "gelu-exact",
        "reader/dynamo",
        "attribute changed",
        attribute("Gelu", 2, "approximate", "none"),
        also=("approximation",),
        options={"abs_tol": 1e-6, "rel_tol": 1e-5},
    ),
    Fault("row-of-embedding", "reader/legacy", "weight edited", weight("Gather@/words/Gather", 0, 0, row(17))),
    Fault("places-shifted", "reader/dynamo", "weight edited", weight("Add", 0, 1, rolled(0))),
    Fault(
        "qkv-stale",
        "reader/legacy",
        "weights stale",
        module=fresh("layers.3.attention.qkv"),
        paths=("layers.3.attention.qkv",),
        then="extended",
    ),
    Fault(
        "product-dropped",
        "reader/dynamo",
        "part left out",
        leave_out("Add", 11, 1),
        also=("wrong-wiring", "traced-branch"),
        then="basic",
    ),
    Fault("gelu-without-cube", "reader/legacy", "part left out", leave_out("Mul@/Mul_1", 0), also=("wrong-wiring",)),
    Fault(
        "tanh-twice",
        "reader/dynamo",
        "operator replaced",
        insert("Tanh", 0, "Tanh", "again"),
        also=("link-function", "model-part-dropped"),
    ),
    # messages
    Fault(
        "messages-overwrite",
        "molecules/dynamo",
        "attribute changed",
        attribute("ScatterElements", 0, "reduction", "none"),
    ),
    Fault(
        "max-to-sum",
        "molecules/dynamo",
        "attribute changed",
        attribute("ScatterElements", 1, "reduction", "add"),
        then="bare",
    ),
    Fault("ends-swapped", "molecules/dynamo", "wiring", swap_inputs("Concat", 1)),
    Fault("update-gate", "molecules/legacy", "wiring", swap_inputs("Sub@/update/Sub", 0)),
    Fault("bond-weight", "molecules/legacy", "weight edited", weight("MatMul@/message/MatMul", 0, 1, row(13))),
    Fault("softplus-relu", "molecules/dynamo", "operator replaced", replace("Sigmoid", 0, "HardSigmoid")),
    # bags of ids
    Fault(
        "bag-sum",
        "clicks/dynamo",
        "part left out",
        leave_out("Div", 0),
        also=("aggregation", "wrong-wiring", "operator-semantics"),
    ),
    Fault(
        "padding-counted",
        "clicks/legacy",
        "operator replaced",
        replace("Greater", 0, "GreaterOrEqual"),
        also=("weight-corruption",),
    ),
    Fault(
        "pairs-index",
        "clicks/legacy",
        "constant edited",
        weight("Gather", 3, 1, lambda i: i[[0, 2, 1]]),
        also=("wrong-wiring",),
    ),
    Fault(
        "log-not-log1p",
        "clicks/dynamo",
        "part left out",
        leave_out("Add", 1),
        also=("wrong-wiring", "operator-semantics"),
    ),
    Fault("sigmoid-twice", "clicks/legacy", "link left out", insert("Sigmoid", 0, "Sigmoid", "again")),
    Fault("ids-swapped", "clicks/dynamo", "wiring", swap_inputs("Concat", 1, 2, 3)),
    Fault(
        "hidden-column",
        "clicks/dynamo",
        "weight edited",
        weight("Gemm", 1, 1, lambda w: w * np.where(np.arange(31) == 30, F32(-1), F32(1))),
        then="extended",
    ),
    # a detector head
    Fault(
        "anchors-swapped",
        "boxes/legacy",
        "weight edited",
        weight("Mul@/Mul_2", 0, 1, lambda a: a[::-1]),
        also=("wrong-wiring",),
    ),
    Fault("stride-of-far", "boxes/dynamo", "constant edited", weight("Mul", 9, 1, lambda w: w * F32(0.5))),
    Fault("grid-transposed", "boxes/dynamo", "weight edited", weight("Add", 0, 1, lambda g: g.swapaxes(-3, -2))),
    Fault(
        "scores-not-multiplied",
        "boxes/dynamo",
        "part left out",
        leave_out("Mul", 5, 1),
        also=("wrong-wiring", "operator-semantics"),
    ),
    Fault(
        "outputs-swapped",
        "towers/dynamo",
        "outputs swapped",
        swap_outputs(1, 2),
        paths=("output.1", "output.2", "out1", "out2"),
    ),
    Fault("clip-of-size", "boxes/dynamo", "constant edited", weight("Clip", 1, 2, lambda w: w * 0 + F32(0.1))),
    # two towers
    Fault(
        "norm-left-out",
        "towers/dynamo",
        "part left out",
        leave_out("Div", 1),
        also=("wrong-wiring", "operator-semantics"),
    ),
    Fault("temperature", "towers/dynamo", "constant edited", weight("Mul", 2, 1, lambda w: w * F32(1.1))),
    Fault("relu6-clipped", "towers/legacy", "constant edited", weight("Clip", 0, 2, lambda w: w * 0 + F32(0.4))),
    # larger pictures
    Fault("linear-for-cubic", "larger/dynamo", "attribute changed", attribute("Resize", 0, "mode", "linear")),
    Fault("cubic-coefficient", "larger/legacy", "attribute changed", attribute("Resize", 0, "cubic_coeff_a", -0.5)),
    Fault("edge-padding", "larger/dynamo", "attribute changed", attribute("Pad", 0, "mode", "reflect"), then="bare"),
    Fault("scale-of-body", "larger/dynamo", "weight edited", weight("Mul", 1, 0, row(2, lambda w: w * 3))),
    # experts
    Fault("smallest-experts", "experts/dynamo", "attribute changed", attribute("TopK", 0, "largest", 0)),
    Fault("running-sum-exclusive", "experts/dynamo", "attribute changed", attribute("CumSum", 0, "exclusive", 1)),
    Fault(
        "expert-stale",
        "experts/legacy",
        "weight edited",
        weight("Einsum", 0, 1, row(2, lambda w: w[::-1])),
        also=("stale-weights",),
    ),
    Fault("celu-alpha", "experts/legacy", "attribute changed", attribute("Celu", 0, "alpha", 1.0)),
]


def keys_for_values(model: onnx.ModelProto) -> None:
    """The third part of a split takes the second's place."""
    part = next(n for n in model.graph.node if n.name == "/layers.2/attention/Squeeze_2")
    other = next(n for n in model.graph.node if n.name == "/layers.2/attention/Squeeze_1")
    part.input[0] = other.input[0]


CLEAN = [
    ("efficient/dynamo", "extended"),
    ("residual/legacy", "basic"),
    ("segmenter/dynamo", "bare"),
    ("speech/legacy", ""),
    ("forecaster/dynamo", "extended"),
    ("reader/dynamo", "extended"),
    ("molecules/dynamo", ""),
    ("clicks/legacy", "basic"),
    ("boxes/legacy", "extended"),
    ("towers/dynamo", "bare"),
    ("larger/legacy", ""),
    ("experts/dynamo", "basic"),
]


def makers(
    store: bases.Store, faults: Sequence[Fault] = FAULTS, sound: Sequence[tuple[str, str]] = CLEAN
) -> Iterator[tuple[str, Callable[[Path], Built]]]:
    for fault in faults:
        yield f"{store.label}-{fault.name}", partial(plant, fault, store)
    for base, then in sound:
        name = f"{store.label}-clean-{base.split('/')[0]}"
        yield name, partial(clean, name, base, then, store)


def plant(fault: Fault, store: bases.Store, place: Path) -> Built:
    """The pair and its truth."""
    name, exporter = fault.base.split("/")
    sound, path, rows = store.sound(fault.base), place / "candidate.onnx", store.data(name)
    truth = Truth(paths=set(fault.paths))
    if fault.module is not None:
        net = copy.deepcopy(store.module(name))
        fault.module(net)
        model = export(net, rows, exporter, path, training=fault.training)
        for part in fault.paths:
            here = nodes_of(model, part)
            truth = Truth(truth.nodes | here.nodes, truth.tensors | here.tensors, truth.paths | here.paths)
    else:
        assert fault.file is not None
        model = onnx.load(str(sound))
        del model.graph.value_info[:]
        fault.file(model)
        onnx.save(model, str(path))
        truth = truth_of(onnx.load(str(sound)), model)
        truth.paths |= set(fault.paths)
    if fault.then:
        path.rename(place / "before.onnx")
        later = bases.optimised(place / "before.onnx", path, fault.then)
        truth.nodes |= {n.name for n in later.graph.node if set(n.output) & truth.tensors}
    assert truth.nodes | truth.tensors, f"{fault.name}: nothing differs"
    if fault.against == "torch":
        expected, reference = answers(store.module(name), rows), str(store.weights(name))
    else:
        expected, reference = run(sound, rows), str(sound)
    options = dict(fault.options)
    failing = beyond(expected, run(path, rows), options.get("abs_tol", 1e-4), options.get("rel_tol", 1e-3))
    assert failing, f"{fault.name}: no row is beyond the tolerance"
    if fault.against == "torch":
        options |= store.against_torch(name)
    return Built(
        f"{store.label}-{fault.name}", f"{store.label}: networks", reference, str(path), str(store.rows(name)),
        fault.word, (*WORDS[fault.word], *fault.also), tuple(sorted(truth.nodes)), tuple(sorted(truth.tensors)),
        tuple(sorted(truth.paths)), options, f"{fault.name}, {name} by {exporter} {fault.then}".strip(),
    )  # fmt: skip


def clean(name: str, base: str, then: str, store: bases.Store, place: Path) -> Built:
    """A sound export, optimised or not, against its module."""
    net = base.split("/")[0]
    path = place / "candidate.onnx"
    if then:
        bases.optimised(store.sound(base), path, then)
    else:
        path.write_bytes(store.sound(base).read_bytes())
    assert not beyond(answers(store.module(net), store.data(net)), run(path, store.data(net)))
    rows = str(store.rows(net))
    return Built(name, "clean", str(store.weights(net)), str(path), rows, options=store.against_torch(net))
