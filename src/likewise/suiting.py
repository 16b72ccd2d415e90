"""What edge suites are made with: real rows to begin from, and rows changed under a name that says how."""

from __future__ import annotations

from collections.abc import Mapping

from likewise.batching import rows_at
from likewise.columns import with_columns
from likewise.contracts.data import Array, Batch, RowIds
from likewise.contracts.suites import Seen

COLUMNS = 64
"""Columns that a suite goes through one by one; of more it takes a sample."""


def picked(seen: Seen, rows: int) -> Batch:
    """Some of the first rows, the same ones for the same seed."""
    import numpy as np

    count = min(rows, len(seen.batch))
    chosen = np.random.default_rng(seen.seed).choice(len(seen.batch), size=count, replace=False)
    return rows_at(seen.batch, np.sort(chosen))


def columns_shown(seen: Seen) -> list[str]:
    """The columns a suite goes through: all, or a sample in their own order."""
    import numpy as np

    if len(seen.columns) <= COLUMNS:
        return list(seen.columns)
    chosen = np.random.default_rng(seen.seed).choice(len(seen.columns), size=COLUMNS, replace=False)
    return [seen.columns[place] for place in sorted(chosen)]


def changed(base: Batch, values: Mapping[str, Array], what: str) -> Batch:
    """The rows with other values in some columns; each is named after its row and what was done to it."""
    import numpy as np

    names = np.array([f"row {base.rows.name(place)}, {what}" for place in range(len(base))], dtype=object)
    return Batch(RowIds(base.rows.numbers, names), with_columns(base.inputs, values), base.stacked)


def missing_in(base: Batch, name: str) -> Array:
    """A column of gaps: NaN for numbers, None for text."""
    import numpy as np

    array = base.inputs[name]
    if array.dtype.kind in "OUST":
        return np.full(array.shape, None, dtype=object)
    return np.full(array.shape, np.nan, dtype=array.dtype if array.dtype.kind == "f" else np.float64)
