"""How much the rounding of the stored numbers can move the answers.

A file holds each weight up to half the distance to its neighbours in the type it is stored in. Moved at
random within that distance, the weights stand for others that would have been stored as the same file: a
difference that is no larger than what this does to the answers is the rounding's.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from likewise.cases import Case, pairs_of
from likewise.comparing import rows_beyond
from likewise.contracts.data import Array, Tensors
from likewise.contracts.measuring import Mismatch, Pair
from likewise.structure import graph_edits

if TYPE_CHECKING:
    from onnx import ModelProto

DRAWS = 8
LARGER = 3.0
"""A difference up to so many times the largest movement seen in a few draws is put down to the rounding."""

SHORT = 14
"""A number with so few significant bits is meant as it stands: 2, 0.5, 1e-1 is not."""


def half_steps(proto: ModelProto) -> dict[str, Array]:
    """For every stored array of floats, how far each of its values may be from what it stands for."""
    import numpy as np

    found = {}
    for name, array in graph_edits.constants(proto.graph).items():
        if array.dtype.name in ("float32", "float16", "bfloat16") and array.size:
            with np.errstate(invalid="ignore", over="ignore"):
                wide = array.astype(np.float64)
                step = np.abs(np.spacing(array).astype(np.float64)) / 2
            bits = {"float32": 24, "float16": 11, "bfloat16": 8}[array.dtype.name]
            known = ~np.isfinite(wide) | (_significant_bits(wide) <= min(SHORT, bits // 2))
            found[name] = np.where(known, 0.0, step)
    return found


def jittered(proto: ModelProto, steps: Mapping[str, Array], seed: int) -> ModelProto:
    """The graph with its stored numbers moved at random within their rounding."""
    import numpy as np

    generator = np.random.default_rng(seed)
    copy = graph_edits.copied(proto)
    for name, array in graph_edits.constants(copy.graph).items():
        if name in steps:
            moved = array.astype(np.float64) + generator.uniform(-1, 1, array.shape) * steps[name]
            graph_edits.set_constant(copy.graph, name, moved.astype(array.dtype))
    for node in copy.graph.node:
        if node.domain == "ai.onnx.ml":
            for attribute in node.attribute:
                if attribute.floats and not attribute.name.startswith(("nodes_", "class", "target")):
                    values = np.array(attribute.floats, dtype=np.float32)
                    towards = np.where(generator.random(len(values)) < 0.5, -np.inf, np.inf).astype(np.float32)
                    kept = (_significant_bits(values) <= SHORT) | (generator.random(len(values)) < 0.5)
                    del attribute.floats[:]
                    attribute.floats.extend(np.where(kept, values, np.nextafter(values, towards)).tolist())
    return copy


def rows_within(case: Case, centre: Tensors, draws: Sequence[Tensors]) -> Array:
    """The rows on which the reference is no further from the answers than the draws are."""
    import numpy as np

    sample = case.required
    inside = np.ones(len(sample), dtype=bool)
    around = [pairs_of(case.specs, sample.batch, sample.reference, draw, case.tolerance) for draw in draws]
    for index, pair in enumerate(pairs_of(case.specs, sample.batch, sample.reference, centre, case.tolerance)):
        others = [found for pairs in around if not isinstance(found := pairs[index], Mismatch)]
        if isinstance(pair, Mismatch) or not others:
            return np.zeros(len(sample), dtype=bool)
        agrees = ~rows_beyond(pair)
        if pair.reference.dtype.kind == "f" and pair.candidate.dtype.kind == "f":
            drawn = np.stack([pair.candidate, *(other.candidate for other in others)]).astype(np.float64)
            agrees |= _close(pair, drawn).reshape(len(sample), -1).all(axis=1)
        else:
            agrees |= np.any([~rows_beyond(other) for other in others], axis=0)
        inside &= agrees
    return inside


def _close(pair: Pair, drawn: Array) -> Array:
    """Which of the reference's numbers lie among those drawn, the first of which is the middle."""
    import numpy as np

    finite = np.isfinite(drawn)
    known = np.where(finite, drawn, np.nan)
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        middle = np.where(finite[0], drawn[0], np.nanmedian(known, axis=0))
        gap = np.abs(middle - pair.reference)
        moved = np.nanmax(np.abs(known - middle), axis=0)
        allowed = pair.tolerance.absolute + pair.tolerance.relative * np.abs(pair.reference)
    # What is a number in one draw and none in the next is not determined by the stored numbers at all.
    undetermined = finite.any(axis=0) & ~finite.all(axis=0)
    close: Array = (gap <= LARGER * moved) | (gap <= allowed) | undetermined
    return close


def _significant_bits(array: Array) -> Array:
    """How many bits it takes to write each number down, leading and trailing zeros aside."""
    import numpy as np

    fraction, _ = np.frexp(np.abs(array.astype(np.float64)))
    whole = np.where(np.isfinite(fraction), fraction * 2.0**53, 0.0).astype(np.int64)
    lowest = whole & -whole
    zeros = np.where(whole == 0, 53, np.log2(np.maximum(lowest, 1)).astype(np.int64))
    bits: Array = 53 - zeros
    return bits
