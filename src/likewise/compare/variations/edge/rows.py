"""What edge suites are made from: real rows to begin with, and the features of the data by what they hold."""

from __future__ import annotations

import numpy as np

from likewise.contracts.comparison import Seen
from likewise.contracts.data import Array, Batch
from likewise.data.cells import WIDEST, Field
from likewise.data.rows import rows_at

COLUMNS = 64
"""Features that a suite goes through one by one; of more it takes a sample."""

BASE = 2
"""Real rows that every change is made to."""

HEAVY = 2**18
"""Bytes of a row above which changes are made to one row only."""

FLOAT, INTEGER, TEXT, TENSOR, IDS, OTHER = "float", "integer", "text", "tensor", "ids", "other"
"""What a feature holds: numbers, whole numbers, text; tensors of numbers; tensors of whole numbers."""


def picked(seen: Seen, rows: int = BASE) -> Batch:
    """Some of the first rows, the same ones for the same seed; fewer where rows are large."""
    count = min(rows, len(seen.batch))
    width = sum(seen.batch.inputs[name].nbytes for name in seen.columns) // max(len(seen.batch), 1)
    if width > HEAVY:
        count = min(count, 1)
    chosen = np.random.default_rng(seen.seed).choice(len(seen.batch), size=count, replace=False)
    return rows_at(seen.batch, np.sort(chosen))


def features(seen: Seen, *kinds: str) -> list[Field]:
    """The features of these kinds that a suite goes through: all, or a sample in their own order."""
    found = all_features(seen)
    if len(found) > COLUMNS:
        chosen = np.random.default_rng(seen.seed).choice(len(found), size=COLUMNS, replace=False)
        found = [found[place] for place in sorted(chosen.tolist())]
    return [field for field in found if kind(seen, field) in kinds]


def all_features(seen: Seen) -> list[Field]:
    """Every feature: a column, each position of a narrow array, or a tensor as a whole."""
    found: list[Field] = []
    for name in seen.columns:
        array = seen.batch.inputs[name]
        if array.ndim == 2 and array.dtype.kind == "f" and array.shape[1] <= WIDEST:
            found += [Field(name, index, f"{name}[{index}]", len(found) + index) for index in range(array.shape[1])]
        else:
            found.append(Field(name, None, name, len(found)))
    return found


def kind(seen: Seen, field: Field) -> str:
    """What a feature holds."""
    array = seen.batch.inputs[field.column]
    if array.ndim > 1 and field.index is None:
        return {"f": TENSOR, "i": IDS, "u": IDS}.get(array.dtype.kind, OTHER)
    if array.dtype.kind in "OUST":
        values = array.tolist()
        others = [value for value in values if value is not None and not isinstance(value, str)]
        text = any(isinstance(value, str) for value in values) and all(value != value for value in others)
        return TEXT if text else OTHER
    return {"f": FLOAT, "i": INTEGER, "u": INTEGER}.get(array.dtype.kind, OTHER)


def values_of(seen: Seen, field: Field) -> Array:
    """What was observed of a feature, without gaps."""
    values = field.of(seen.batch.inputs)
    if values.dtype.kind == "f":
        return values[np.isfinite(values)]
    if values.dtype.kind == "O":
        return np.array([value for value in values.tolist() if isinstance(value, str)], dtype=object)
    return values
