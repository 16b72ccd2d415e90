"""Quantised and half-precision files of the third set's networks, each with one bad number or one loud layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from locate_faults.corpus import Built
from locate_faults.edits import weight
from locate_faults.reduced import one_side, taken_by
from locate_second.bases import Store
from locate_second.reduced import Case, Loud, louder
from locate_second.reduced import makers as planted

WEIGHTS = ("weight-corruption",)

CASES: list[Case] = [
    ("int8-range-of-middle", "qdq", "painter/legacy", taken_by("Conv", 4, 0, lambda s: s * 0.2), ()),
    ("int8-read-shifted", "qdq", "shop/dynamo", one_side("Conv", 1, 0, lambda z: z + 25), ()),
    (
        "int8-scale-of-channel",
        "qdq",
        "painter/dynamo",
        taken_by("Conv", 5, 1, lambda s: s * np.where(np.arange(len(s)) == 1, 8, 1)),
        WEIGHTS,
    ),
    ("int8-prices-coarse", "qdq", "shop/legacy", taken_by("Gemm", 0, 0, lambda s: s * 40), ()),
    ("int8-scale-doubled", "qdq", "ear/legacy", taken_by("Conv", 3, 1, lambda s: s * 2), WEIGHTS),
    ("int8-head-cut-off", "qdq", "ear/dynamo", taken_by("Gemm", -1, 0, lambda s: s * 0.1), ()),
    (
        "int8-integers-rolled",
        "qoperator",
        "shop/legacy",
        weight("QLinearConv", 1, 3, lambda w: np.roll(w, 1, 0)),
        WEIGHTS,
    ),
    ("int8-operator-zero", "qoperator", "painter/legacy", weight("QLinearConv", 3, 2, lambda z: z + 20), ()),
    ("int8-dynamic-row", "dynamic", "writer/legacy", weight("MatMulInteger", 3, 1, lambda w: w[:, ::-1]), WEIGHTS),
    ("int8-dynamic-scale", "dynamic", "listener/legacy", weight("Mul@scales_mul", 1, 1, lambda s: s * 4), WEIGHTS),
    (
        "int8-dynamic-memory",
        "dynamic",
        "ear/legacy",
        weight("DynamicQuantizeLSTM", 0, 10, lambda s: s * 1.6),
        WEIGHTS,
    ),
    ("clean-int8", "qdq", "painter/legacy", None, ()),
    ("clean-int8-dynamic", "dynamic", "writer/legacy", None, ()),
]

HALVES: list[Loud] = [
    ("half-gate-loud", "writer/legacy", louder("blocks.0.value", 2e5, "blocks.0.down"), "/blocks.0/"),
    ("half-price-loud", "shop/dynamo", louder("price.2", 1e6, "wide"), "linear_1"),
    ("clean-half", "shop/dynamo", None, ""),
]


def makers(store: Store) -> Iterator[tuple[str, Callable[[Path], Built]]]:
    yield from planted(store, CASES, HALVES)
