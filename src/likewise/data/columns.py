"""The forms in which named inputs travel: plain arrays, Arrow tables, live DataFrames.

Each converts a column only when a model asks for it, and hands a framework that takes DataFrames
the frame a user would have read. One rule gives the arrays of all of them (`arrow.py`), so the same rows are the same
arrays whatever they were read from.
"""

from __future__ import annotations

import copy
import datetime
import re
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from likewise.contracts.data import Array, Columns
from likewise.data.arrow import arrow_to_array, series_to_arrow, without_foreign, without_views
from likewise.data.noted import believed, index_columns
from likewise.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


def require_unique(holder: str, names: Sequence[str], *, remedy: str) -> None:
    """Refuse a table in which one name stands for several columns."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise DataError(f"{holder} has more than one column called {', '.join(map(repr, twice))}", remedy=remedy)


def numpy_dtype(name: str) -> Any:
    """The type of that name, with those that only machine learning has, such as bfloat16."""
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def _series_to_array(series: Any) -> Array:
    """A column of a live DataFrame (a narwhals Series) as numpy, by the rules of `arrow_to_array`."""
    import numpy as np

    native = series.to_native()
    if _is_numeric(getattr(native, "dtype", None)):
        return np.asarray(native.to_numpy())
    arrow = series_to_arrow(series)
    if arrow is not None:
        return arrow_to_array(arrow)
    objects = np.empty(len(series), dtype=object)
    objects[:] = [None if isinstance(value, float) and value != value else value for value in series.to_list()]
    return objects


def own_array(array: Array) -> Array:
    """The same values in memory of their own, down to the lists and arrays that an object array holds."""
    import numpy as np

    found = array.copy()
    writable = (list, dict, set, bytearray, np.ndarray)
    if found.dtype.kind == "O" and any(issubclass(kind, writable) for kind in set(map(type, found.flat))):
        for place, value in np.ndenumerate(found):
            found[place] = copy.deepcopy(value)
    return found


LARGEST_VALUE_SHOWN = 16
"""Elements of a tensor, and bytes of a binary value, that are kept when a row is shown."""


def _has_plain_values(value: Any) -> bool:
    """Do the elements of an array, or does a number of numpy, become plain by themselves? Long doubles do not."""
    dtype: Any = getattr(value, "dtype", None)
    return getattr(dtype, "kind", "O") in ("b", "i", "u", "f") and bool(dtype.itemsize <= 8)


def plain(value: Any) -> Any:
    """A cell as a plain Python value that JSON can hold; a large one is described."""
    if isinstance(value, type):
        return value.__name__  # a class has the attributes of its arrays, but no values
    if value is None or isinstance(value, bool | int | float | str):
        # A numpy float64 is a float and a numpy str_ is a str, but neither is plain.
        return getattr(value, "item", lambda: value)()
    if getattr(value, "ndim", 0) > 0 and hasattr(value, "tolist"):
        small = value.size <= LARGEST_VALUE_SHOWN
        head = (value if small else value.ravel()[:LARGEST_VALUE_SHOWN]).tolist()
        if not _has_plain_values(value):
            head = [plain(element) for element in head]
        return head if small else {"shape": list(value.shape), "head": head}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        head = [plain(entry) for entry in value[:LARGEST_VALUE_SHOWN]]
        return head if len(value) <= LARGEST_VALUE_SHOWN else {"shape": [len(value)], "head": head}
    if isinstance(value, bytes):
        text = value[:LARGEST_VALUE_SHOWN].hex()
        return text if len(value) <= LARGEST_VALUE_SHOWN else {"bytes": len(value), "head": text}
    if str(value) in ("NaT", "<NA>"):
        return None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if _has_plain_values(value):
        return value.item()
    return str(value)


class ArrayColumns(Columns):
    """Arrays by name, rows along axis 0. An array is looked up when asked for, so a mapping may load it then."""

    def __init__(
        self, arrays: Mapping[str, Array], *, names: Sequence[str] | None = None, window: slice | None = None
    ) -> None:
        self._arrays = arrays
        # A dictionary, because each of very many names is looked up: a tuple would be gone through for each.
        self._names = dict.fromkeys(arrays if names is None else names)
        self._window = window

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        array = self._arrays[name]
        return array if self._window is None else array[self._window]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def slice(self, start: int, stop: int) -> Columns:
        before = 0 if self._window is None else self._window.start
        last = None if self._window is None else self._window.stop
        end = before + stop if last is None else min(before + stop, last)
        return ArrayColumns(self._arrays, names=tuple(self._names), window=slice(before + start, end))

    def select(self, names: Sequence[str]) -> Columns:
        return ArrayColumns(self._arrays, names=_known(names, self), window=self._window)

    def take(self, positions: Array) -> Columns:
        return ArrayColumns({name: array[positions] for name, array in self.items()})

    def copy(self) -> Columns:
        return type(self)({name: own_array(array) for name, array in self.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        # What travels to another process is the rows of this window, and no more.
        return type(self), (dict(self),)

    def frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame({n: a if a.ndim == 1 else list(a) for n, a in self.items()})

    def row(self, position: int) -> dict[str, Any]:
        return {name: plain(array[position]) for name, array in self.items()}


class CaseColumns(ArrayColumns):
    """The tensors of one test case, which have no common row axis: there is one row, and it is all of them."""

    def slice(self, start: int, stop: int) -> Columns:
        if (start, stop) != (0, 1):
            raise ValueError("a test case can only be run whole")
        return self

    def select(self, names: Sequence[str]) -> Columns:
        return CaseColumns(self._arrays, names=_known(names, self))

    def frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame({name: [array] for name, array in self.items()})

    def row(self, position: int) -> dict[str, Any]:
        return {name: plain(array) for name, array in self.items()}


class _LazyColumns(Columns):
    """Columns that become arrays when asked for, once, also across selections of the same rows.

    Two threads that ask at the same time may both convert; they get equal arrays.
    """

    def __init__(self, names: Sequence[str], cache: dict[str, Array] | None) -> None:
        self._names = tuple(names)
        # A set: with many columns, a look through their names for each would take longer than all else.
        self._reachable = frozenset(self._names)
        self._cache: dict[str, Array] = {} if cache is None else cache

    @abstractmethod
    def _convert(self, name: str) -> Array: ...

    def __getitem__(self, name: str) -> Array:
        if name not in self._reachable:
            raise KeyError(name)
        array = self._cache.get(name)
        if array is None:
            array = self._cache[name] = self._convert(name)
        return array

    def __contains__(self, name: object) -> bool:
        # A mapping would look the column up, and so convert it.
        return name in self._reachable

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


NUMBERS = {kind + bits: kind + bits for kind in ("int", "uint") for bits in ("8", "16", "32", "64")}
NUMBERS |= {"float": "float32", "double": "float64"}
"""Arrow's types of numbers, and what numpy calls them."""

COUNTED = {"kind": "range", "name": None, "start": 0, "step": 1}
"""How pandas notes that rows are counted from zero."""


class ArrowColumns(_LazyColumns):
    """Columns of an Arrow table.

    What pandas wrote as the index of a DataFrame is not an input, as it is no column to a pandas
    user: it is not listed, and `frame()` has it as the index again. It can be asked for by name.
    """

    def __init__(
        self, table: pa.Table, cache: dict[str, Array] | None = None, *, names: Sequence[str] | None = None
    ) -> None:
        if names is None:
            index = index_columns(table.schema)
            names = [name for name in table.column_names if name not in index and not _STRAY_INDEX.fullmatch(name)]
            table = table.select([*names, *index])
        super().__init__(names, cache)
        self._table = without_foreign(table)
        self._reachable = frozenset(table.column_names)

    @property
    def table(self) -> pa.Table:
        """The rows as Arrow holds them, with what pandas wrote as the index."""
        return self._table

    def _convert(self, name: str) -> Array:
        return arrow_to_array(self._table.column(name))

    def slice(self, start: int, stop: int) -> Columns:
        return ArrowColumns(self._table.slice(start, stop - start), names=self._names)

    def select(self, names: Sequence[str]) -> Columns:
        names = _known(names, self)
        index = [name for name in self._table.column_names if name not in self._names and name not in names]
        return ArrowColumns(self._table.select([*names, *index]), self._cache, names=names)

    def take(self, positions: Array) -> Columns:
        import numpy as np
        import pyarrow as pa

        schema = self._table.schema
        older = [without_views(column) for column in self._table.columns]
        fields = [schema.field(i).with_type(column.type) for i, column in enumerate(older)]
        table = pa.Table.from_arrays(older, schema=pa.schema(fields, metadata=schema.metadata))
        # Arrow imports pandas to look at an array that somebody else made.
        numbers = np.ascontiguousarray(positions, dtype=np.int64)
        places = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
        return ArrowColumns(table.take(places), names=self._names)

    def copy(self) -> Columns:
        # Arrow's memory cannot be written to; only what was converted from it can.
        return ArrowColumns(self._table, names=self._names)

    def __reduce__(self) -> tuple[Any, ...]:
        import pyarrow as pa

        # Arrow's own stream holds the rows of a slice only; its pickle would take the whole table along.
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._table.schema) as writer:
            writer.write_table(self._table)
        return _arrow_columns, (sink.getvalue(), self._names)

    def frame(self) -> Any:
        # As pandas reads it: columns that Arrow hands over without a copy could not be written to.
        schema = self._table.schema
        return self._table.replace_schema_metadata(believed(schema, frozenset(self._names))).to_pandas()

    def are_plain_numbers(self) -> bool:
        """Would pandas hold every column as just these numbers, under the same name, and count the rows from zero?"""
        schema = self._table.schema
        gaps = [field for field in schema if str(field.type) != "double" and self._table.column(field.name).null_count]
        if gaps or any(str(field.type) not in NUMBERS for field in schema):
            return False
        # pandas notes in a file what the table was: other types, rows and names are such again.
        noted = schema.pandas_metadata or {}
        return (
            all(index == {**COUNTED, "stop": index["stop"]} for index in noted.get("index_columns", ()))
            and all(entry["pandas_type"] == "unicode" for entry in noted.get("column_indexes", ()))
            and all(
                NUMBERS[str(schema.field(entry["field_name"]).type)] == entry["numpy_type"]
                for entry in noted.get("columns", ())
                if entry["field_name"] in schema.names
            )
        )

    def row(self, position: int) -> dict[str, Any]:
        return {name: plain(self._table.column(name)[position].as_py()) for name in self._names}


def _arrow_columns(stream: pa.Buffer, names: tuple[str, ...]) -> ArrowColumns:
    import pyarrow as pa

    return ArrowColumns(pa.ipc.open_stream(stream).read_all(), names=names)


class FrameColumns(_LazyColumns):
    """Columns of a live DataFrame, pandas or polars, kept as they are for models that take frames.

    A column is called `str()` of its label; the frame keeps the label. Rows and numbers of pandas are asked of pandas
    itself: edge cases take a few rows hundreds of times, and the way around took longer than the models.
    """

    def __init__(
        self, frame: Any, cache: dict[str, Array] | None = None, *, names: Sequence[str] | None = None
    ) -> None:
        self._pandas = _is_pandas(frame)
        self._native = frame if self._pandas else _native(frame)
        super().__init__([str(label) for label in self._native.columns] if names is None else names, cache)
        # Of two columns of one name the first, as a look through the names would find it, for each in no time.
        self._places = {name: place for place, name in reversed([*enumerate(self._names)])}

    @property
    def _frame(self) -> Any:
        import narwhals as nw

        return nw.from_native(self._native, eager_only=True)

    def _column(self, name: str) -> Any:
        """One column as the frame's library has it; narwhals would look through all their names for each."""
        if self._pandas:
            return self._native.iloc[:, self._places[name]]
        if hasattr(self._native, "get_column"):
            return self._native.get_column(name)
        return self._frame[:, self._places[name]].to_native()

    def _series(self, name: str) -> Any:
        import narwhals as nw

        return nw.from_native(self._column(name), series_only=True)

    def _convert(self, name: str) -> Array:
        if self._pandas and _is_numeric((column := self._column(name)).dtype):
            return cast("Array", column.to_numpy())
        return _series_to_array(self._series(name))

    def slice(self, start: int, stop: int) -> Columns:
        rows = self._native.iloc[start:stop] if self._pandas else self._frame[start:stop]
        return FrameColumns(rows, self._converted(slice(start, stop)), names=self._names)

    def select(self, names: Sequence[str]) -> Columns:
        positions = [self._places[name] for name in _known(names, self)]
        if self._pandas:
            return FrameColumns(self._native.iloc[:, positions], self._cache)
        return FrameColumns(self._frame[:, positions], self._cache)

    def take(self, positions: Array) -> Columns:
        rows = self._native.take(positions) if self._pandas else self._frame[positions.tolist()]
        return FrameColumns(rows, self._converted(positions), names=self._names)

    def _converted(self, rows: Any) -> dict[str, Array]:
        """Numbers that were asked for before, of some of the rows: to ask a wide frame again takes long."""
        # A copy, as another thread may be converting columns.
        return {name: array[rows] for name, array in self._cache.copy().items() if array.dtype.kind in "biuf"}

    def copy(self) -> Columns:
        frame = self._native.copy() if self._pandas else self._frame.clone().to_native()
        if self._pandas:
            for place, dtype in enumerate(frame.dtypes):
                if getattr(dtype, "kind", None) == "O" and str(dtype) == "object":
                    # As a Series: of an array of objects pandas would make text, and None would become NaN.
                    column = frame.iloc[:, place]
                    cells = own_array(column.to_numpy())
                    frame.isetitem(place, type(column)(cells, index=frame.index, dtype=object))
        return FrameColumns(frame, names=self._names)

    def arrow(self, name: str) -> pa.Array | None:
        """A column that numpy cannot hold as it is, as Arrow has it; None for others."""
        series = self._series(name)
        kind = getattr(getattr(series.to_native(), "dtype", None), "kind", "O")
        return series_to_arrow(series) if kind not in "biufc" or series.null_count() else None

    def frame(self) -> Any:
        return self._native

    def row(self, position: int) -> dict[str, Any]:
        if self._pandas:
            kinds = zip(self._names, self._native.dtypes, strict=True)
            numbers = [name for name, kind in kinds if _is_numeric(kind) and kind.kind in "biuf"]
            known = {name: plain(self[name][position]) for name in numbers}
            return {n: known[n] if n in known else _cell(self._series(n)[position : position + 1]) for n in self._names}
        cells = self._frame[position : position + 1].iter_columns()
        return {name: _cell(cell) for name, cell in zip(self._names, cells, strict=True)}


def _is_pandas(frame: Any) -> bool:
    """Is it a DataFrame of pandas? What is not imported, nobody has one of."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(frame, pandas.DataFrame)


def _native(frame: Any) -> Any:
    import narwhals as nw

    return nw.to_native(frame, pass_through=True)


def _is_numeric(dtype: Any) -> bool:
    """Does numpy hold a column of that type as it is: numbers, truth values and times without a zone?"""
    import numpy as np

    return isinstance(dtype, np.dtype) and dtype.kind in "biufcmM"


def _cell(series: Any) -> Any:
    """The only value of a Series; the NaN that pandas puts in text is a missing value."""
    value = plain(series.to_list()[0])
    return None if value != value and not series.dtype.is_numeric() else value


_STRAY_INDEX = re.compile(r"__index_level_\d+__")
"""An index that pandas wrote and another tool copied without saying so."""


def _known(names: Sequence[str], columns: Columns) -> tuple[str, ...]:
    for name in names:
        if name not in columns:
            raise KeyError(name)
    return tuple(names)
