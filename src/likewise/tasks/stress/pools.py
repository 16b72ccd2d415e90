"""The real rows that a search starts from, taken apart into variables and put together again.

What the models are given while searching has the form that the written file will have when it is read:
an Arrow table of the data's own schema, or arrays. `check --data` takes the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array, Batch, Columns, RowIds, Source
from likewise.contracts.values import dataclass
from likewise.data.arrow import arrow_to_array
from likewise.data.columns import ArrayColumns, ArrowColumns, FrameColumns
from likewise.data.files import replacing, written_at
from likewise.data.rows import joined
from likewise.errors import DataError, UsageError, one_line
from likewise.registry import open_source
from likewise.tasks.stress.space import Column, Rows, Space, choice_column, number_column, space_of

if TYPE_CHECKING:
    import pyarrow as pa


MOST_ROWS = 20_000
MOST_BYTES = 1 << 26
"""Real rows that are held to start from: at most so many, and of wide rows fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Real rows. `complete`: every row of the data is among them."""

    rows: RowIds
    inputs: Columns
    complete: bool

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def source(self) -> Source:
        """The same rows as something that can be read again."""
        if isinstance(self.inputs, ArrowColumns):
            return open_source(self.inputs.table)
        return open_source(dict(self.inputs))

    @property
    def is_table(self) -> bool:
        return isinstance(self.inputs, ArrowColumns)


def read(source: Source) -> Pool:
    """The first rows of the data, as many as are worth holding."""
    parts: list[Batch] = []
    rows = size = 0
    complete = True
    for batch in source.batches(1_024):
        if not batch.stacked:
            raise DataError(
                f"{source.location} holds test cases whose tensors have no common row axis",
                remedy="Give rows: a table, or arrays with rows along their first axis",
            )
        if rows >= MOST_ROWS or size >= MOST_BYTES:
            complete = False
            break
        inputs = _stored(batch.inputs, source.location)
        parts.append(Batch(batch.rows, inputs))
        rows += len(batch)
        size += _bytes(inputs)
    if not rows:
        raise DataError(f"{source.location} holds no rows", remedy="Give data to start the search from")
    together = joined(parts)
    # Taken once as a whole: text views and dictionaries in chunks become forms that can be put together again.
    return Pool(together.rows, together.inputs.take(np.arange(rows)), complete)


def _stored(inputs: Columns, location: str) -> Columns:
    """A live frame in the form that a file of it has."""
    if not isinstance(inputs, FrameColumns):
        return inputs
    import narwhals as nw
    import pyarrow as pa

    try:
        return ArrowColumns(nw.from_native(inputs.frame(), eager_only=True).to_arrow())
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(
            f"the columns of {location} have types that no file can hold: {one_line(error)}",
            remedy="Give columns of numbers, text, categories or times",
        ) from error


def _bytes(inputs: Columns) -> int:
    if isinstance(inputs, ArrowColumns):
        return int(inputs.table.nbytes)
    return sum(array.nbytes for array in inputs.values())


def space_for(pool: Pool, names: Sequence[str], *, widen: float) -> Space:
    """The variables of the columns that the models take."""
    make = _arrow_column if pool.is_table else _array_column
    return space_of([make(pool.inputs, name, widen) for name in names])


def batch_of(pool: Pool, space: Space, rows: Rows) -> Batch:
    """Rows under change as the models are given them."""
    known = {column.name: column for column in space.columns}
    inputs: Columns
    if isinstance(pool.inputs, ArrowColumns):
        import pyarrow as pa

        table = pool.inputs.table
        arrays = [
            _to_arrow(known[name], rows.cells[name], stored) if name in known else stored.take(pa.array(rows.base))
            for name, stored in zip(table.column_names, table.columns, strict=True)
        ]
        inputs = ArrowColumns(pa.Table.from_arrays(arrays, schema=table.schema), names=tuple(pool.inputs))
    else:
        inputs = ArrayColumns(
            {
                name: _to_array(known[name], rows.cells[name], array) if name in known else array[rows.base]
                for name, array in pool.inputs.items()
            }
        )
    return Batch(RowIds(np.arange(len(rows), dtype=np.int64)), inputs)


def kept(pool: Pool, positions: Array) -> Pool:
    """Some of the rows."""
    if len(positions) == len(pool):
        return pool
    return Pool(pool.rows.at(positions), pool.inputs.take(positions), pool.complete)


def _to_array(column: Column, cells: Array, stored: Array) -> Array:
    if column.places is not None:
        return stored[column.places[cells[:, 0]]]
    return cells.reshape(len(cells), *column.shape)


def _array_column(inputs: Columns, name: str, widen: float) -> Column:
    array = inputs[name]
    if array.dtype.kind in "biuf" and array.size:
        return number_column(name, array, widen=widen)
    return choice_column(name, *_codes([repr(value) for value in array.tolist()]))


def _arrow_column(inputs: Columns, name: str, widen: float) -> Column:
    assert isinstance(inputs, ArrowColumns)
    stored = inputs.table.column(name)
    if _is_number(stored.type):
        array = arrow_to_array(stored)
        if array.dtype.kind in "biuf" and array.size:
            column = number_column(name, array, widen=widen)
            if _returns(column, array, stored):
                return column
    return choice_column(name, *_codes([repr(value) for value in stored.to_pylist()]))


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _is_number(kind.value_type)
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _returns(column: Column, array: Array, stored: pa.ChunkedArray) -> bool:
    """Do the values come back as they were when they are stored again? Only then may they be taken apart."""
    import pyarrow as pa

    try:
        again = _to_arrow(column, column.values, stored)
    except (pa.ArrowException, TypeError, ValueError):
        return False
    back = arrow_to_array(again)
    same = back.dtype == array.dtype and np.array_equal(back, array, equal_nan=array.dtype.kind == "f")
    return bool(same and again.null_count == stored.null_count)


def _codes(keys: Sequence[str]) -> tuple[Array, Array]:
    """A number for each distinct value, and a row that holds it."""
    _, places, codes = np.unique(np.array(keys, dtype=object).astype(str), return_index=True, return_inverse=True)
    return codes.reshape(-1), places


def _to_arrow(column: Column, cells: Array, stored: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    import pyarrow as pa

    if column.places is not None:
        return stored.take(pa.array(column.places[cells[:, 0]]))
    flat = np.ascontiguousarray(cells).reshape(-1)
    # Where the data has nulls, a missing number is one; elsewhere it is NaN.
    mask = np.isnan(flat) if flat.dtype.kind == "f" and stored.null_count else None
    if not column.shape:
        return pa.array(flat, mask=mask).cast(stored.type)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), cells.shape[1]).cast(stored.type)


def require_name(path: str, *, table: bool) -> None:
    """A usage error for a file that could not hold the rows."""
    wanted = ".parquet" if table else ".npz"
    if not path.lower().endswith(wanted):
        kind = "tables are written as Parquet" if table else "arrays are written as .npz"
        raise UsageError(f"--output is {path}: {kind}", remedy=f"Name a file that ends in {wanted}")


def write(path: str, batch: Batch) -> str:
    """Write rows so that a crash leaves either the old file or the new one; where they are now."""
    with replacing(Path(path)) as temporary:
        if isinstance(batch.inputs, ArrowColumns):
            import pyarrow.parquet as pq

            pq.write_table(batch.inputs.table, temporary)
        else:
            arrays = {name: _plain(name, array) for name, array in batch.inputs.items()}
            with temporary.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
    return str(written_at(Path(path)))


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
