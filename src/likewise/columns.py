"""The forms in which named inputs travel: plain arrays, Arrow tables, live DataFrames.

Each converts a column only when a model asks for it, and hands a framework that takes DataFrames
the frame a user would have read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array, Columns

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST_VALUE_SHOWN = 16
"""Elements of a tensor that are kept when a row is shown; a larger one is described."""


def plain(value: Any) -> Any:
    """A cell as a plain Python value that JSON can hold."""
    if hasattr(value, "tolist") and getattr(value, "ndim", 0) > 0:
        if value.size <= LARGEST_VALUE_SHOWN:
            return [plain(element) for element in value.tolist()]
        return {"shape": list(value.shape), "head": [plain(e) for e in value.ravel()[:LARGEST_VALUE_SHOWN].tolist()]}
    if hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return str(value)


class ArrayColumns(Columns):
    """Arrays by name, rows along axis 0."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def slice(self, start: int, stop: int) -> Columns:
        return ArrayColumns({name: array[start:stop] for name, array in self._arrays.items()})

    def select(self, names: Sequence[str]) -> Columns:
        return ArrayColumns({name: self._arrays[name] for name in names})

    def frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame({n: a if a.ndim == 1 else list(a) for n, a in self._arrays.items()})

    def row(self, position: int) -> dict[str, Any]:
        return {name: plain(array[position]) for name, array in self._arrays.items()}


class _LazyColumns(Columns):
    """Columns that become arrays when asked for, once, also across selections of the same rows."""

    def __init__(self, names: Sequence[str], convert: Callable[[str], Array], cache: dict[str, Array] | None) -> None:
        self._names = tuple(names)
        self._convert = convert
        self._cache: dict[str, Array] = {} if cache is None else cache

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._cache:
            self._cache[name] = self._convert(name)
        return self._cache[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class ArrowColumns(_LazyColumns):
    """Columns of an Arrow table."""

    def __init__(self, table: pa.Table, cache: dict[str, Array] | None = None) -> None:
        super().__init__(table.column_names, lambda name: arrow_to_array(table.column(name)), cache)
        self._table = table

    def slice(self, start: int, stop: int) -> Columns:
        return ArrowColumns(self._table.slice(start, stop - start))

    def select(self, names: Sequence[str]) -> Columns:
        return ArrowColumns(self._table.select(list(names)), self._cache)

    def frame(self) -> Any:
        return self._table.to_pandas(split_blocks=True)

    def row(self, position: int) -> dict[str, Any]:
        return {name: plain(value) for name, value in self._table.slice(position, 1).to_pylist()[0].items()}


class FrameColumns(_LazyColumns):
    """Columns of a live DataFrame, pandas or polars, kept as they are for models that take frames."""

    def __init__(self, frame: Any, cache: dict[str, Array] | None = None) -> None:
        import narwhals as nw

        self._frame = nw.from_native(frame, eager_only=True)
        super().__init__(self._frame.columns, self._to_array, cache)

    def _to_array(self, name: str) -> Array:
        import numpy as np

        series = self._frame.get_column(name)
        if series.dtype.is_numeric() and not series.has_nulls():
            return np.asarray(series.to_numpy())
        return arrow_to_array(series.to_arrow())

    def slice(self, start: int, stop: int) -> Columns:
        return FrameColumns(self._frame[start:stop].to_native())

    def select(self, names: Sequence[str]) -> Columns:
        return FrameColumns(self._frame.select(list(names)).to_native(), self._cache)

    def frame(self) -> Any:
        return self._frame.to_native()

    def row(self, position: int) -> dict[str, Any]:
        cells = self._frame[position : position + 1].to_dict(as_series=False)
        return {name: plain(values[0]) for name, values in cells.items()}


def arrow_to_array(column: pa.ChunkedArray | pa.Array) -> Array:
    """An Arrow column as numpy: text as objects with None, dictionaries decoded, nulls in numbers as NaN."""
    import numpy as np
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return arrow_to_array(column.cast(kind.value_type))
    if pa.types.is_fixed_size_list(kind) and not column.null_count:
        flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        return np.asarray(flat.flatten().to_numpy(zero_copy_only=False)).reshape(len(column), kind.list_size)
    if pa.types.is_boolean(kind) and column.null_count:
        column = column.cast(pa.int8()).cast(pa.float64())
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    array = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    if array.dtype.kind == "U":
        array = array.astype(object)
    return np.asarray(array)
