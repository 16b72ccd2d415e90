"""What may be changed in a row, and to what: real rows, the values that the data could hold, and rows under change.

Every value that a move may change is a *variable*: a column of a table, an element of a tensor. Numbers
stay within the range observed, in the type of the data, whole where all were whole; anything else is
one of the values observed. Missing is a value where it was observed.

What the models are given while searching has the form that the written file will have when it is read:
an Arrow table of the data's own schema, or arrays. `check --data` takes the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from likewise.contracts.data import Array, Batch, Columns, RowIds, Source
from likewise.contracts.values import dataclass
from likewise.data.arrow_arrays import arrow_to_array
from likewise.data.columns import ArrayColumns, ArrowColumns, FrameColumns
from likewise.data.files import replacing, written_at
from likewise.data.readers import joined
from likewise.errors import DataError, UsageError, one_line
from likewise.registry import open_source

if TYPE_CHECKING:
    import pyarrow as pa


FEW = 16
"""Whole numbers with at most so many distinct values may be codes: only observed ones are used."""

MOST_LISTED = 4_096
"""Elements of a tensor whose distinct values are counted one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One column: its values in the real rows, one line a row, and what bounds them, element by element.

    `shape` is that of one cell. `places` is set where the column is no number: then `values` are codes,
    and `places` names for each code a real row that holds the value.
    """

    name: str
    values: Array
    shape: tuple[int, ...]
    low: Array
    high: Array
    whole: Array
    gaps: Array
    listed: Array
    places: Array | None = None

    @property
    def width(self) -> int:
        return int(self.values.shape[1])

    @property
    def is_number(self) -> bool:
        return self.places is None

    def observed(self, elements: Array, random: np.random.Generator) -> Array:
        """Values of real rows; of a choice, each distinct value is as likely as any other."""
        if self.places is not None:
            return random.integers(0, len(self.places), len(elements))
        drawn: Array = self.values[random.integers(0, len(self.values), len(elements)), elements]
        return drawn

    def known(self, element: int) -> Array:
        """The distinct values of an element, in order; missing is none of them."""
        values = np.unique(self.values[:, element])
        return values[~np.isnan(values)] if values.dtype.kind == "f" else values

    def conform(self, values: Array, elements: Array) -> Array:
        """The nearest values that the data could hold."""
        if self.places is not None:
            return values
        dtype = self.values.dtype
        if dtype.kind == "b":
            return values.astype(bool)
        with np.errstate(invalid="ignore", over="ignore"):
            bounded = np.clip(values, self.low[elements], self.high[elements])
            if bounded.dtype.kind == "f":
                bounded = np.where(self.whole[elements], np.round(bounded), bounded)
            # A type change may round past a bound.
            result = np.clip(_as_type(bounded, dtype), self.low[elements], self.high[elements]).astype(dtype)
        if self.listed[elements].any():
            result = self._nearest(result, elements)
        if dtype.kind == "f":
            result = np.where(np.isnan(values) & self.gaps[elements], dtype.type(np.nan), result)
            # What may not be missing and has no number to be is left at its lower bound.
            result = np.where(np.isnan(result) & ~self.gaps[elements], self.low[elements], result)
        return result.astype(dtype, copy=False)

    def _nearest(self, values: Array, elements: Array) -> Array:
        values = values.copy()
        for element in np.unique(elements[self.listed[elements]]).tolist():
            here = np.flatnonzero(elements == element)
            if len(known := self.known(element)):
                values[here] = known[np.clip(np.searchsorted(known, values[here]), 0, len(known) - 1)]
        return values


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows under change: the real row each began as, and its cells, one line a row."""

    base: Array
    cells: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.base)

    def take(self, positions: Array | list[int]) -> Rows:
        return Rows(self.base[positions], {name: cells[positions] for name, cells in self.cells.items()})

    def or_else(self, others: Rows, mask: Array) -> Rows:
        """These rows where the mask says so, the others elsewhere."""
        cells = {name: np.where(mask[:, None], cells, others.cells[name]) for name, cells in self.cells.items()}
        return Rows(np.where(mask, self.base, others.base), cells)


Draw: TypeAlias = Callable[[Column, Array, Array, Array], Array]
"""New values of one column: from the column, the elements, what is there now, and which requests these are."""


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """All variables of the rows; `owner` and `element` say where each lies."""

    columns: tuple[Column, ...]
    owner: Array
    element: Array

    @property
    def variables(self) -> int:
        return len(self.owner)

    @property
    def row_bytes(self) -> int:
        return sum(column.width * column.values.dtype.itemsize for column in self.columns)

    def column(self, variable: int) -> tuple[Column, int]:
        """The column that a variable lies in, and its element there."""
        return self.columns[int(self.owner[variable])], int(self.element[variable])

    def name(self, variable: int) -> str:
        """What a person calls a variable: `age`, or `X[3]`, or `image[0,12,7]`."""
        column, element = self.column(variable)
        if not column.shape:
            return column.name
        index = np.unravel_index(element, column.shape)
        return f"{column.name}[{','.join(str(int(along)) for along in index)}]"

    def real(self, positions: Array) -> Rows:
        """Real rows, as they are."""
        return Rows(np.asarray(positions), {c.name: c.values[positions] for c in self.columns})

    def numbers(self) -> Array:
        """The variables that are numbers and take more than one value."""
        return self.where(lambda c: c.is_number & ~c.listed & (c.high > c.low))

    def free(self) -> Array:
        """The variables that can be changed at all."""
        return self.where(
            lambda c: (
                (c.high > c.low) | (c.gaps & ~np.isnan(c.values.astype(np.float64)).all(axis=0))
                if c.is_number and c.values.dtype.kind != "b"
                else c.values.min(axis=0) < c.values.max(axis=0)
            )
        )

    def where(self, holds: Callable[[Column], Array]) -> Array:
        """The variables of which something holds, told for each element of a column."""
        return np.flatnonzero(np.concatenate([np.zeros(0, bool), *map(holds, self.columns)]))

    def rewritten(self, rows: Rows, at: Array, variables: Array, draw: Draw) -> Rows:
        """The rows with new values: request i changes variable `variables[i]` of row `at[i]`."""
        cells = dict(rows.cells)
        for column, elements, here in self._by_column(variables):
            array = cells[column.name].copy()
            now = array[at[here], elements]
            array[at[here], elements] = column.conform(draw(column, elements, now, here), elements)
            cells[column.name] = array
        return Rows(rows.base, cells)

    def assigned(self, rows: Rows, at: Array, variables: Array, values: Array) -> Rows:
        """The rows with these values: numbers as float64, choices as codes."""
        return self.rewritten(rows, at, variables, lambda column, elements, now, here: values[here])

    def copied(self, rows: Rows, at: Array, variables: Array, donors: Array) -> Rows:
        """The rows with values of real rows, as they are: request i takes that of real row `donors[i]`."""
        cells = dict(rows.cells)
        for column, elements, here in self._by_column(variables):
            cells[column.name] = cells[column.name].copy()
            cells[column.name][at[here], elements] = column.values[donors[here], elements]
        return Rows(rows.base, cells)

    def spans(self, variables: Array) -> Array:
        """The ranges of variables that are numbers."""
        found = np.empty(len(variables))
        for column, elements, here in self._by_column(variables):
            found[here] = column.high[elements].astype(np.float64) - column.low[elements].astype(np.float64)
        return found

    def as_numbers(self, rows: Rows, variables: Array) -> Array:
        """The values of variables that are numbers, one line a row, as float64."""
        found = np.empty((len(rows), len(variables)))
        for column, elements, here in self._by_column(variables):
            found[:, here] = rows.cells[column.name][:, elements]
        return found

    def differs(self, rows: Rows, others: Rows) -> Array:
        """Which variables of each row differ from the row at the same place, or from the only one."""
        parts = [np.zeros((len(others), 0), bool)]
        for one, other in ((rows.cells[column.name], others.cells[column.name]) for column in self.columns):
            unlike = one != other
            parts.append(unlike & ~(np.isnan(one) & np.isnan(other)) if one.dtype.kind == "f" else unlike)
        return np.concatenate(parts, axis=1)

    def _by_column(self, variables: Array) -> Iterator[tuple[Column, Array, Array]]:
        """Each column with the elements that are meant, and where these stand among the variables."""
        owners = self.owner[variables]
        for number in np.unique(owners).tolist():
            here = np.flatnonzero(owners == number)
            yield self.columns[number], self.element[variables[here]], here


def together(parts: Sequence[Rows]) -> Rows:
    """Rows after each other."""
    if len(parts) == 1:
        return parts[0]
    cells = {name: np.concatenate([part.cells[name] for part in parts]) for name in parts[0].cells}
    return Rows(np.concatenate([part.base for part in parts]), cells)


def number_column(name: str, array: Array, *, widen: float = 0.0) -> Column:
    """A column of numbers. Elements of a vector have ranges of their own; those of an image share one."""
    values = array.reshape(len(array), -1)
    width = values.shape[1]
    shared = array.ndim > 2
    looked_at = values.reshape(-1, 1) if shared else values
    truth, floating = values.dtype.kind == "b", values.dtype.kind == "f"
    finite = np.isfinite(looked_at) if floating else np.ones(looked_at.shape, bool)
    gaps = np.isnan(looked_at).any(axis=0) if floating else np.zeros(looked_at.shape[1], bool)
    low, high = _ends(looked_at, finite)
    whole = ~(floating & (finite & (looked_at != np.round(looked_at))).any(axis=0))
    listed = np.full(len(low), truth)
    if not truth and len(low) <= MOST_LISTED:
        listed = whole & np.array([len(np.unique(looked_at[finite[:, e], e])) <= FEW for e in range(len(low))])
    if widen and not truth:
        low, high = _widened(low, high, whole & ~listed, ~listed, widen, values.dtype)
    bounds = [np.broadcast_to(entry, width) for entry in (low, high, whole, gaps, listed)]
    return Column(name, values, tuple(array.shape[1:]), *bounds)


def _choice_column(name: str, codes: Array, places: Array) -> Column:
    """A column whose values can only be exchanged for one another."""
    no = np.zeros(1, bool)
    return Column(
        name, codes.reshape(-1, 1), (), np.zeros(1, np.int64), np.array([len(places) - 1]), ~no, no, no, places
    )


def _ends(values: Array, finite: Array) -> tuple[Array, Array]:
    """The smallest and the largest number of each element; zero where there is none."""
    if values.dtype.kind != "f":
        return values.min(axis=0), values.max(axis=0)
    low, high = np.where(finite, values, np.inf).min(axis=0), np.where(finite, values, -np.inf).max(axis=0)
    some = finite.any(axis=0)
    return np.where(some, low, 0).astype(values.dtype), np.where(some, high, 0).astype(values.dtype)


def _widened(low: Array, high: Array, whole: Array, able: Array, share: float, dtype: np.dtype) -> tuple[Array, Array]:
    reach = (high.astype(np.float64) - low.astype(np.float64)) * share
    reach = np.where(able, np.where(whole, np.floor(reach), reach), 0.0)
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    wider = [
        _as_type(np.clip(end.astype(np.float64) + by, limits.min, limits.max), dtype)
        for end, by in ((low, -reach), (high, reach))
    ]
    return np.where(able, wider[0], low), np.where(able, wider[1], high)


def _as_type(values: Array, dtype: np.dtype) -> Array:
    """Numbers in another type; doubles that an integer type cannot hold become its ends."""
    if dtype.kind not in "iu" or values.dtype.kind != "f":
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    inside = np.nan_to_num(values, nan=0.0)
    result = np.where(inside >= float(limits.max), 0, np.where(inside <= float(limits.min), 0, inside)).astype(dtype)
    result[inside >= float(limits.max)] = limits.max
    result[inside <= float(limits.min)] = limits.min
    return result


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

    def take(self, positions: Array) -> Pool:
        """Some of the rows."""
        return Pool(self.rows.at(positions), self.inputs.take(positions), self.complete)


def read_pool(source: Source) -> Pool:
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
    columns = [_column(pool.inputs, name, widen) for name in names]
    widths = [column.width for column in columns]
    element = np.concatenate([np.zeros(0, np.int64), *map(np.arange, widths)])
    return Space(tuple(columns), np.repeat(np.arange(len(columns)), widths), element)


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


def _to_array(column: Column, cells: Array, stored: Array) -> Array:
    if column.places is not None:
        return stored[column.places[cells[:, 0]]]
    return cells.reshape(len(cells), *column.shape)


def _column(inputs: Columns, name: str, widen: float) -> Column:
    stored = inputs.table.column(name) if isinstance(inputs, ArrowColumns) else None
    if stored is None or _is_number(stored.type):
        array = inputs[name] if stored is None else arrow_to_array(stored)
        if array.dtype.kind in "biuf" and array.size:
            column = number_column(name, array, widen=widen)
            if stored is None or _returns(column, array, stored):
                return column
    values = inputs[name].tolist() if stored is None else stored.to_pylist()
    # A number for each distinct value, and a row that holds it.
    keys = np.array([repr(value) for value in values], dtype=object).astype(str)
    _, places, codes = np.unique(keys, return_index=True, return_inverse=True)
    return _choice_column(name, codes, places)


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
