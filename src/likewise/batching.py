"""Batches cut and put together, with the ids of their rows."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.columns import concatenate, take
from likewise.contracts.data import Array, Batch, RowIds


def rows_at(batch: Batch, positions: Array) -> Batch:
    """Some rows of a batch, in the order of the positions."""
    names = None if batch.rows.names is None else batch.rows.names[positions]
    return Batch(RowIds(batch.rows.numbers[positions], names), take(batch.inputs, positions))


def joined(parts: Sequence[Batch]) -> Batch:
    """The rows of several batches after each other."""
    import numpy as np

    if len(parts) == 1:
        return parts[0]
    numbers = np.concatenate([part.rows.numbers for part in parts])
    names = [part.rows.names for part in parts if part.rows.names is not None]
    rows = RowIds(numbers, np.concatenate(names) if names else None)
    return Batch(rows, concatenate([part.inputs for part in parts]))
