"""The rows found as a file of the data's own schema, which `check --data` takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from likewise.columns import ArrowColumns
from likewise.contracts.data import Array, Batch
from likewise.errors import DataError, UsageError
from likewise.recording import replacing

TABLE, ARRAYS = ".parquet", ".npz"


def suffix(*, table: bool) -> str:
    """What the file of such rows is called at its end."""
    return TABLE if table else ARRAYS


def require_name(path: str, *, table: bool) -> None:
    """A usage error for a file that could not hold the rows."""
    wanted = suffix(table=table)
    if not path.lower().endswith(wanted):
        kind = "tables are written as Parquet" if table else "arrays are written as .npz"
        raise UsageError(f"--output is {path}: {kind}", remedy=f"Name a file that ends in {wanted}")


def write(path: str, batch: Batch) -> None:
    """Write rows so that a crash leaves either the old file or the new one."""
    with replacing(Path(path)) as temporary:
        if isinstance(batch.inputs, ArrowColumns):
            import pyarrow.parquet as pq

            pq.write_table(batch.inputs.table, temporary)
            return
        arrays = {name: _plain(name, array) for name, array in batch.inputs.items()}
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]


def _plain(name: str, array: Array) -> Array:
    """An array that is stored without pickling: text as text."""
    if array.dtype.kind != "O":
        return array
    if not all(isinstance(value, str) for value in array.flat):
        raise DataError(
            f"array {name!r} holds objects that are no text, which an .npz file cannot hold",
            remedy="Give the data as a table: a DataFrame or a Parquet file",
        )
    return array.astype(str)
