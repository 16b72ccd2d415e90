"""Weights that have lost digits, in whatever type they are stored, and those they were.

A weight that went through half precision, a coarse grid or a few decimals shows it: all its numbers are
ones that fit. That alone proves nothing; but the reference's numbers, each within the rounding, do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from likewise.cases import Case
from likewise.contracts.data import Array
from likewise.structure import graph_edits, reference_arrays

if TYPE_CHECKING:
    from onnx import ModelProto

FEWEST = 3
"""Numbers that it takes to tell a type from what they have in common."""

EXACT = 1e-3
"""How far from whole a number may be, counted in steps of a grid."""

GLANCE = 4096
"""Numbers of a large array that are looked at before all of them are."""

DECIMALS = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True, eq=False)
class RoundedWeight:
    """A stored array that has lost digits: what is left of them (`form`), and how much may be lost of each number.

    `values` are those stored; once found, the reference's, and `owner` is what that calls them.
    """

    tensor: str
    form: str
    values: Array
    within: Array
    owner: str = ""


def rounded_weights(proto: ModelProto) -> dict[str, RoundedWeight]:
    """The stored arrays that are in half precision, or in a wider type with nothing but fewer digits in them."""
    import numpy as np

    found = {}
    for name, array in graph_edits.constants(proto.graph).items():
        if array.dtype.name in ("float16", "bfloat16"):
            found[name] = RoundedWeight(name, array.dtype.name, array.astype(np.float64), _steps(array))
        elif array.dtype in (np.float32, np.float64) and _form(array.reshape(-1)[:GLANCE].astype(np.float64)):
            wide = array.astype(np.float64)
            if (form := _form(wide)) is not None:
                found[name] = RoundedWeight(name, form[0], wide, form[1])
    return found


def _form(wide: Array) -> tuple[str, Array] | None:
    """What every number of an array fits into, and how much that may have cost; the coarsest that is known."""
    import numpy as np

    from likewise.casting import numpy_dtype

    if wide.size < FEWEST or not np.isfinite(wide).all():
        return None
    # Whole numbers and small fractions fit everywhere and tell nothing.
    telling = np.count_nonzero(wide * 8 != np.round(wide * 8))
    if telling < max(FEWEST, wide.size // 4):
        return None
    if (step := _grid(wide)) is not None:
        return f"steps of {step:.4g}", np.full(wide.shape, 0.51 * step)
    with np.errstate(over="ignore"):
        for dtype in ("bfloat16", "float16"):
            narrow = wide.astype(numpy_dtype(dtype))
            if np.array_equal(narrow.astype(np.float64), wide):
                return dtype, _steps(narrow)
    return None


def _grid(wide: Array) -> float | None:
    """The step of which every number is a multiple: of a fixed-point type, or of some decimals."""
    import numpy as np

    def fits(step: float) -> bool:
        steps = wide / step
        small = np.maximum(EXACT, 2e-7 * np.abs(steps))
        return bool((np.abs(steps - np.round(steps)) <= small).all() and small.max() < 0.1)

    distinct = np.unique(np.abs(wide))
    if wide.size >= 16 and len(distinct) <= wide.size // 2 and len(distinct) > 1:
        step = float(np.diff(distinct).min())
        if step > 1e-6 * float(distinct[-1]) and fits(step):
            return step
    if wide.size < 8:
        return None
    return next((10.0**-digits for digits in DECIMALS if fits(10.0**-digits)), None)


def _steps(array: Array) -> Array:
    """The distance of the numbers of a half type from their neighbours."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        return np.maximum(np.abs(np.spacing(array).astype(np.float64)) * 0.51, 1e-7)


def counterparts(case: Case, weights: Mapping[str, RoundedWeight]) -> dict[str, RoundedWeight]:
    """The same arrays with the values that the reference has for them; those that are not found are left out."""
    arrays = reference_arrays.arrays_of(case)
    found = {}
    for name, weight in weights.items():
        match = reference_arrays.counterpart(weight.values, weight.within, arrays, alike=False)
        if match is not None:
            found[name] = RoundedWeight(name, weight.form, match[1], weight.within, match[0])
    return found


def with_arrays(proto: ModelProto, tensors: Mapping[str, RoundedWeight]) -> ModelProto:
    """The graph with these values stored instead, in the type they have there."""
    copy = graph_edits.copied(proto)
    stored = graph_edits.constants(copy.graph)
    for name, tensor in tensors.items():
        if name in stored:
            graph_edits.set_constant(copy.graph, name, tensor.values.astype(stored[name].dtype))
    return copy
