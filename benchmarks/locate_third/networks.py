"""Faults in the networks of the third set: one edit of a file, or of the module before its export."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from locate_faults.corpus import Built
from locate_faults.edits import attribute, leave_out, replace, rewire, swap_inputs, weight
from locate_second.bases import Nets, Store, normal, padded, whole
from locate_second.networks import Fault, entry, fresh, put, rolled, row
from locate_second.networks import makers as planted

from locate_third import nets

NETS: Nets = {
    "listener": (nets.Listener, lambda r: {"words": padded(r, 40, 8), "speaker": normal(r, 6)}),
    "painter": (nets.Painter, lambda r: {"picture": normal(r, 3, 13, 13)}),
    "writer": (nets.Writer, lambda r: {"ids": whole(r, 0, 50, 9)}),
    "shop": (
        nets.Shop,
        lambda r: {
            "basket": padded(r, 30, 6, 0),
            "liked": whole(r, 0, 30, 4),
            "photo": normal(r, 1, 15, 15),
            "prices": r.gamma(1.5, 2.5, (80, 5)).astype(np.float32),
        },
    ),
    "ear": (nets.Ear, lambda r: {"sound": normal(r, 2, 18)}),
}
FACTORY = inspect.getsourcefile(nets) or ""


def store(folder: Path) -> Store:
    return Store(folder, "third", NETS, FACTORY)


FAULTS = [
    # a recurrent network with attention
    Fault("reset-order", "listener/dynamo", "attribute changed", attribute("GRU", 0, "linear_before_reset", 0)),
    Fault("one-direction-weights", "listener/legacy", "weight edited", weight("GRU", 0, 1, lambda w: w[::-1])),
    Fault("mask-too-soft", "listener/dynamo", "constant edited", weight("Where", 0, 1, lambda v: v * 0 - 1.0)),
    Fault(
        "attention-over-keys",
        "listener/legacy",
        "attribute changed",
        attribute("Softmax", 0, "axis", 0),
        also=("batch-dependence",),
    ),
    Fault("query-left-out", "listener/legacy", "part left out", leave_out("Add@/Add", 0), also=("wrong-wiring",)),
    Fault("tanh-for-sigmoid", "listener/legacy", "operator replaced", replace("Sigmoid", 0, "Tanh")),
    Fault("gate-halves-swapped", "listener/legacy", "wiring", swap_inputs("Sub", 0)),
    Fault(
        "keys-retrained",
        "listener/dynamo",
        "weight edited",
        module=fresh("keys"),
        paths=("keys",),
        also=("stale-weights",),
    ),
    # a U-shaped network
    Fault("kernel-turned", "painter/dynamo", "weight edited", weight("ConvTranspose", 0, 1, lambda w: w[:, :, ::-1])),
    Fault("edge-for-reflect", "painter/dynamo", "attribute changed", attribute("Pad", 1, "mode", "edge")),
    Fault("pad-constant", "painter/legacy", "attribute changed", attribute("Pad", 2, "mode", "constant")),
    Fault(
        "pooled-without-pads",
        "painter/dynamo",
        "attribute changed",
        attribute("AveragePool", 0, "count_include_pad", 0),
    ),
    Fault("leak", "painter/legacy", "attribute changed", attribute("LeakyRelu", 0, "alpha", 0.01)),
    Fault("channels-joined-backwards", "painter/dynamo", "wiring", swap_inputs("Concat", -1)),
    Fault("group-norm-scale", "painter/legacy", "weight edited", weight("Mul@/down/norm", 0, 1, lambda w: w[::-1])),
    Fault(
        "group-norm-epsilon",
        "painter/legacy",
        "attribute changed",
        attribute("InstanceNormalization", 1, "epsilon", 0.05),
    ),
    Fault(
        "gelu-by-tanh",
        "painter/dynamo",
        "approximated",
        attribute("Gelu", 0, "approximate", "tanh"),
        options={"abs_tol": 1e-6, "rel_tol": 1e-5},
    ),
    # a decoder
    Fault(
        "mask-of-the-past",
        "writer/legacy",
        "constant edited",
        weight("Where", 0, 0, lambda m: m.T),
        also=("wrong-wiring", "traced-branch"),
    ),
    Fault(
        "mask-one-off",
        "writer/dynamo",
        "constant edited",
        weight("Where", 1, 0, lambda m: np.triu(m, 2)),
        also=("traced-branch",),
    ),
    Fault("rotation-sign", "writer/legacy", "operator replaced", replace("Sub", 0, "Add"), also=("wrong-wiring",)),
    Fault("sine-table", "writer/dynamo", "weight edited", weight("Mul", 4, 1, rolled(1)), also=("operator-attribute",)),
    Fault("rms-epsilon", "writer/legacy", "constant edited", weight("Add@/blocks.1/Add", 0, 1, lambda e: e * 0 + 0.5)),
    Fault("norm-epsilon", "writer/dynamo", "attribute changed", attribute("LayerNormalization", 0, "epsilon", 0.3)),
    Fault(
        "gate-not-applied",
        "writer/legacy",
        "part left out",
        leave_out("Mul@/blocks.0/Mul_11", 0),
        also=("wrong-wiring",),
    ),
    Fault(
        "skips-one-block",
        "writer/legacy",
        "wiring",
        rewire("Add@/blocks.1/Add_4", 0, 0, ("Add@/blocks.0/Add_4", 0)),
        also=("wrong-wiring", "model-part-dropped"),
    ),
    Fault("score-scale", "writer/dynamo", "constant edited", weight("Mul", 6, 1, lambda s: s * 1.3)),
    # bags and several inputs
    Fault("bag-of-sums", "shop/legacy", "part left out", leave_out("Div@/Div", 0), also=("operator-semantics",)),
    Fault("empty-bags", "shop/dynamo", "constant edited", weight("Clip", 0, 1, lambda v: v * 0 + 2.0)),
    Fault("prices-cut-off", "shop/legacy", "constant edited", weight("Clip", 1, 2, lambda v: v * 0 + 3.0)),
    Fault(
        "like-mean-for-largest",
        "shop/dynamo",
        "operator replaced",
        replace("ReduceMax", 0, "ReduceMean"),
        also=("aggregation",),
    ),
    Fault("norm-of-one", "shop/legacy", "operator replaced", replace("ReduceL2", 0, "ReduceL1")),
    Fault("towers-crossed", "shop/dynamo", "wiring", swap_inputs("Concat@node_cat", 0, 2, 3)),
    Fault("mish-changed", "shop/legacy", "operator replaced", replace("Tanh", 0, "Sigmoid")),
    # sound
    Fault("memory-clipped", "ear/dynamo", "attribute changed", attribute("LSTM", 0, "clip", 0.4)),
    Fault("filter-negated", "ear/legacy", "weight edited", weight("Conv", 3, 1, row(2))),
    Fault("one-number", "ear/dynamo", "weight edited", weight("Conv", 1, 1, entry(5, 2.0))),
    Fault(
        "corners-not-aligned",
        "ear/legacy",
        "attribute changed",
        attribute("Resize", 0, "coordinate_transformation_mode", "half_pixel"),
    ),
    Fault("nearest-for-linear", "ear/legacy", "attribute changed", attribute("Resize", 0, "mode", "nearest")),
    Fault("cumulated-from-the-end", "ear/legacy", "attribute changed", attribute("CumSum", 0, "reverse", 1)),
    Fault("cumulated-exclusive", "ear/dynamo", "attribute changed", attribute("CumSum", 0, "exclusive", 1)),
    Fault(
        "batch-norm-variance",
        "ear/legacy",
        "weight edited",
        module=put("norm", "eps", 0.4),
        paths=("norm",),
        also=("operator-attribute", "stale-weights", "preprocessing-differs"),
    ),
    Fault(
        "memory-gates",
        "ear/dynamo",
        "weight edited",
        weight("LSTM", 0, 2, lambda w: np.concatenate([w[:, 10:20], w[:, :10], w[:, 20:]], 1)),
    ),
    Fault("steps-not-smooth", "ear/dynamo", "operator replaced", replace("Softplus", 0, "Relu")),
]

CLEAN = [
    ("listener/dynamo", ""), ("painter/legacy", "extended"), ("writer/dynamo", "extended"), ("shop/legacy", "basic"),
    ("ear/dynamo", "bare"),
]  # fmt: skip


def makers(known: Store) -> Iterator[tuple[str, Callable[[Path], Built]]]:
    yield from planted(known, FAULTS, CLEAN)
