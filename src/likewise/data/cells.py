"""The features of the data, one by one: the same rows with other values in some of them, or in a declared type.

A feature is a column of a table or a column of a two-dimensional array. A table keeps its form and
the types of its columns: an experiment that turned None into NaN, or a category into text, would
change more than the one thing it is about. A cast counts what does not survive it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from likewise.contracts.data import Array, Batch, Columns, RowIds
from likewise.contracts.values import dataclass
from likewise.data.columns import ArrayColumns, ArrowColumns, FrameColumns, numpy_dtype
from likewise.errors import FeedingError

WIDEST = 512
"""Columns of an array that are features; what is wider is a signal, a text or an image."""

MISSING = object()
"""Put in the place of a value: nothing, in whatever form the column has it."""


@dataclass(frozen=True, slots=True)
class Field:
    """One feature: a column of the data, or one column (`index`) of an array.

    `name` is what a person calls it, `place` its number among the features.
    """

    column: str
    index: int | None
    name: str
    place: int

    def of(self, columns: Columns) -> Array:
        """The values of the feature, one a row."""
        array = columns[self.column]
        return array if self.index is None else array[:, self.index]


@dataclass(frozen=True, slots=True)
class Edit:
    """Other values for the cells of one feature: `values` is one for all marked rows, or an array with one a row."""

    field: Field
    marked: Array
    values: Any


def missing_in(array: Array) -> Array:
    """Which values are missing: NaN, None or no time."""
    if array.dtype.kind == "f":
        return np.isnan(array)
    if array.dtype.kind in "mM":
        return np.isnat(array)
    if array.dtype.kind != "O":
        return np.zeros(len(array), dtype=bool)
    return np.array([_is_missing(value) for value in array.tolist()], dtype=bool)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value) or str(value) in ("NaT", "<NA>")


def names_of(fields: Sequence[Field]) -> str:
    """Features for a person, in the order of the data."""
    return listed([field.name for field in sorted(fields, key=lambda field: field.place)])


def listed(names: Sequence[str], limit: int = 6) -> str:
    """Names for a person: a few of them, and how many more there are."""
    shown = ", ".join(names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def with_columns(columns: Columns, changed: Mapping[str, Array]) -> Columns:
    """The same rows with other values in some columns; a table stays a table, in the same order."""
    if isinstance(columns, ArrayColumns):
        arrays = {name: changed.get(name, array) for name, array in columns.items()}
        return type(columns)(arrays)
    import narwhals as nw

    frame = nw.from_native(columns.frame(), eager_only=True)
    native = frame.to_native()
    if hasattr(native, "assign"):
        names = [name for name in columns if name in changed]
        labels = {str(label): label for label in native.columns}
        native = native.copy()
        for name in names:
            # One array a cell, which pandas would take for a table.
            native[labels[name]] = list(changed[name]) if changed[name].ndim > 1 else changed[name]
        return FrameColumns(native)
    series = [nw.new_series(name, values, backend=frame.implementation) for name, values in changed.items()]
    return FrameColumns(frame.with_columns(*series))


def edited(batch: Batch, changes: Sequence[Edit]) -> Batch:
    """The same rows with other values in some cells; untouched cells stay what they are, to the type."""
    inputs = batch.inputs
    frame = None if isinstance(inputs, ArrayColumns) else inputs.frame()
    if frame is None or not hasattr(frame, "assign"):
        return replace(batch, inputs=with_columns(inputs, _changed_arrays(inputs, changes)))
    labels = {str(label): label for label in frame.columns}
    frame = frame.copy()
    for name, array in _changed_arrays(inputs, [c for c in changes if c.field.index is not None]).items():
        frame[labels[name]] = list(array)
    for change in [c for c in changes if c.field.index is None]:
        label = labels[change.field.column]
        # As a Series: of an array of objects pandas would make text, and None would become NaN.
        frame[label] = _changed_series(frame[label], change).set_axis(frame.index)
    return replace(batch, inputs=FrameColumns(frame))


def _changed_series(series: Any, change: Edit) -> Any:
    """A column of a DataFrame with other values in some rows, in its own type where that holds them."""
    import pandas as pd

    series = series.reset_index(drop=True)
    many = isinstance(change.values, np.ndarray)
    values = change.values[change.marked] if many else change.values
    if many and values.ndim > 1:
        # One array a cell, which pandas would take for a table.
        cells = np.empty(len(values), dtype=object)
        for place, cell in enumerate(values):
            cells[place] = cell
        values = cells
    if values is MISSING:
        values = None if series.dtype == object else np.nan  # which pandas writes as its types have it
    marked = np.flatnonzero(change.marked)
    if isinstance(series.dtype, pd.CategoricalDtype):
        fresh = [v for v in (set(values.tolist()) if many else {values}) if not _is_missing(v)]
        series = series.cat.add_categories([v for v in fresh if v not in set(series.cat.categories)])
    try:
        series = series.copy()
        series.iloc[marked] = values
    except (TypeError, ValueError, OverflowError):
        numeric = series.dtype.kind in "biu" and np.asarray(values).dtype.kind in "biuf"
        series = series.astype("float64" if numeric else object)
        series.iloc[marked] = values
    return series


def _changed_arrays(inputs: Columns, changes: Sequence[Edit]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for change in changes:
        name = change.field.column
        array = arrays[name] if name in arrays else inputs[name].copy()
        values = change.values[change.marked] if isinstance(change.values, np.ndarray) else change.values
        if values is MISSING:
            values = None if array.dtype.kind == "O" else np.nan
        array = array.astype(_holding(array, values), copy=False)
        index = () if change.field.index is None else (change.field.index,)
        array[(change.marked, *index)] = values
        arrays[name] = array
    return arrays


def _holding(array: Array, values: Any) -> Any:
    """The type that holds the array and the new values."""
    kind = np.asarray(values).dtype
    if array.dtype.kind == "O" or kind.kind not in "biuf" or array.dtype.kind not in "biuf":
        return array.dtype if array.dtype.kind in "mM" and kind.kind == array.dtype.kind else np.dtype(object)
    # A value written in float64 fits a narrower column as it is, as far as that can hold it.
    if array.dtype.kind == "f":
        return array.dtype
    return np.result_type(array.dtype, kind)


def transplanted(batch: Batch, donors: Mapping[Field, Array]) -> Batch:
    """The same rows, with the values of some features taken from other rows: for each row the position of its donor."""
    inputs = batch.inputs
    frame = None if isinstance(inputs, ArrayColumns) else inputs.frame()
    if frame is None or not hasattr(frame, "assign") or any(field.index is not None for field in donors):
        return replace(batch, inputs=with_columns(inputs, _transplanted_arrays(inputs, donors)))
    labels = {str(label): label for label in frame.columns}
    frame = frame.reset_index(drop=True)
    for field, positions in donors.items():
        label = labels[field.column]
        frame[label] = frame[label].take(positions).reset_index(drop=True)
    return replace(batch, inputs=FrameColumns(frame))


def _transplanted_arrays(inputs: Columns, donors: Mapping[Field, Array]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for field, positions in donors.items():
        array = arrays[field.column] if field.column in arrays else inputs[field.column].copy()
        taken = field.of(inputs)[positions]
        if field.index is None:
            array = taken
        else:
            array[:, field.index] = taken
        arrays[field.column] = array
    return arrays


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """Other values in some features of the same rows: one for all rows, or an array with one a row."""

    what: str
    values: Mapping[Field, Any]


def varied(base: Batch, variants: Iterable[Variant]) -> Iterator[Batch]:
    """The base rows once for every variant, in as few batches as keep every other value what it is.

    A value that a column cannot hold (a gap among whole numbers) widens that column as a table would be
    widened, in a batch of its own, so that no other row is changed by it.
    """
    together: dict[tuple[str, ...], list[Variant]] = {}
    for variant in variants:
        gaps = {field.column for field, value in variant.values.items() if value is MISSING}
        widened = tuple(sorted(name for name in gaps if base.inputs[name].dtype.kind in "biu")) if gaps else ()
        together.setdefault(widened, []).append(variant)
    for group in together.values():
        yield _varied(base, group)


def _varied(base: Batch, variants: Sequence[Variant]) -> Batch:
    rows, count = len(base), len(base) * len(variants)
    batch = named(base, np.arange(count) % rows, [variant.what for variant in variants for _ in range(rows)])
    changes: list[Edit] = []
    wanted: dict[Field, list[tuple[int, Any]]] = {}
    for place, variant in enumerate(variants):
        for field, value in variant.values.items():
            wanted.setdefault(field, []).append((place, value))
    for field, places in wanted.items():
        values = field.of(batch.inputs)
        values = values.astype(object) if values.dtype.kind in "OUST" else values.copy()
        given, missing = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        for place, value in places:
            here = slice(place * rows, (place + 1) * rows)
            if value is MISSING:
                missing[here] = True
            else:
                if values.dtype.kind in "iu" and not np.ndim(value) and not holds(values.dtype, value):
                    # Of rows without a gap, a column of whole numbers with gaps is one without.
                    values = values.astype(_holding(values, value))
                values[here], given[here] = value, True
        if given.any():
            changes.append(Edit(field, given, values))
        if missing.any():
            changes.append(Edit(field, missing, MISSING))
    return edited(batch, changes)


def named(base: Batch, positions: Array, what: Sequence[str]) -> Batch:
    """Rows of a batch, each named after its row and what is special about it."""
    batch = base.at(positions)
    told = [f"row {batch.rows.name(place)}, {text}" for place, text in enumerate(what)]
    return Batch(RowIds(batch.rows.numbers, np.array(told, dtype=object)), batch.inputs)


def holds(dtype: Any, value: float) -> bool:
    """Is the number still the same in this type?"""
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return bool(math.isfinite(value) and value == int(value) and bounds.min <= value <= bounds.max)
    with np.errstate(all="ignore"):
        kept = float(dtype.type(value))
    return kept == value or kept != kept


def reading_of(columns: Columns, name: str) -> str:
    """How the cells of a column are read as an array, where they are something else in the table; else nothing."""
    if isinstance(columns, ArrowColumns):
        column: Any = columns.table.column(name)
    elif isinstance(columns, FrameColumns):
        column = columns.arrow(name)
    else:
        return ""
    kind = None if column is None else column.type
    if kind is None:
        return ""
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return "decimals as float64"
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return "times with a zone as UTC"
    if pa.types.is_dictionary(kind):
        return "categories as the values they stand for"
    if (pa.types.is_integer(kind) or pa.types.is_boolean(kind)) and column.null_count:
        return "whole numbers with gaps as float64, gaps as NaN"
    return ""


@dataclass(frozen=True, slots=True)
class Loss:
    """What a cast changed: how many values, and the largest relative change among them."""

    source: str
    changed: int
    largest: float
    note: str = ""


def cast(array: Array, dtype: str, *, column: str, side: str) -> tuple[Array, Loss | None]:
    """The values in another type. Loss is None when the type is the same and nothing was touched."""
    kind = array.dtype.kind
    if dtype == "string":
        return _to_text(array)
    if dtype == "object":
        return array.astype(object), None
    if str(array.dtype) == dtype:
        return array, None
    if kind in "Mm":
        return _from_time(array, dtype, column=column, side=side)
    if kind not in "biuf":
        numbers, missing = _numbers_in_objects(array, dtype, column=column, side=side)
        result, loss = _between_numbers(numbers, dtype, column=column, side=side)
        note = "objects read as numbers" + (", missing ones as NaN" if missing else "")
        return result, Loss(str(array.dtype), loss.changed if loss else 0, loss.largest if loss else 0.0, note)
    return _between_numbers(array, dtype, column=column, side=side)


def _between_numbers(array: Array, dtype: str, *, column: str, side: str) -> tuple[Array, Loss | None]:
    target: Any = numpy_dtype(dtype)
    if str(array.dtype) == dtype:
        return array, None
    if array.dtype.kind == "f" and target.kind in "biu":
        missing = int(np.count_nonzero(~np.isfinite(array)))
        if missing:
            raise _uncastable(column, side, dtype, f"{missing:,} of its values are missing or infinite")
    with np.errstate(all="ignore"):
        result = array.astype(target)
        # NaN is what it was, and unlike itself.
        changed = int(np.count_nonzero(result.astype(array.dtype) != array)) - int(np.count_nonzero(array != array))
        return result, Loss(str(array.dtype), changed, _largest_change(array, result) if changed else 0.0)


def _largest_change(before: Array, after: Array) -> float:
    before = before.astype(np.float64, copy=False)
    shares = np.abs(after.astype(np.float64, copy=False) - before)
    shares /= np.maximum(np.abs(before), np.finfo(np.float64).tiny)
    # What is not finite is so before and after, or infinite after: NaN is no share.
    return float(np.fmax.reduce(shares, axis=None))


def _to_text(array: Array) -> tuple[Array, Loss | None]:
    """Text as it is; a missing value becomes the empty string, as ONNX has no other word for it."""
    if array.dtype.kind in "Mm":
        text = (
            np.datetime_as_string(array).astype(object) if array.dtype.kind == "M" else array.astype(str).astype(object)
        )
        missing = np.isnat(array)
        note = "times written as ISO 8601 text"
    elif array.dtype.kind in "biuf":
        text = array.astype(str).astype(object)
        missing = np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)
        note = "numbers written as text"
    else:
        values = array.ravel().tolist()
        if set(map(type, values)) <= {str}:
            return array, None
        absent = [value is None or value != value for value in values]
        text = np.array([str(value) for value in values], dtype=object).reshape(array.shape)
        missing = np.array(absent, dtype=bool).reshape(array.shape)
        note = "" if set(map(type, values)) <= {str, float, type(None)} else "values written as text"
    count = int(np.count_nonzero(missing))
    if count:
        text = text.copy()
        text[missing] = ""
        note = "; ".join(filter(None, [note, "missing values fed as empty text"]))
    return text, Loss(str(array.dtype), count, 0.0, note)


def _from_time(array: Array, dtype: str, *, column: str, side: str) -> tuple[Array, Loss | None]:
    missing = np.isnat(array)
    unit = np.datetime_data(array.dtype)[0]
    numbers = array.astype(np.int64)
    if np.dtype(dtype).kind != "f" and missing.any():
        raise _uncastable(column, side, dtype, f"{int(missing.sum()):,} of its times are missing")
    result, loss = _between_numbers(numbers, dtype, column=column, side=side)
    if missing.any():
        result = result.copy()
        result[missing] = np.nan
    changed, largest = (loss.changed, loss.largest) if loss else (0, 0.0)
    return result, Loss(str(array.dtype), changed, largest, f"times fed as {unit} since 1970")


def _numbers_in_objects(array: Array, dtype: str, *, column: str, side: str) -> tuple[Array, bool]:
    """Numbers held as Python objects, and whether some are None, for missing; text is refused."""
    text = next((value for value in array.flat if isinstance(value, str | bytes)), None)
    if text is not None:
        raise _uncastable(column, side, dtype, f"it holds text, such as {text!r}")
    wide = next((value for value in array.flat if isinstance(value, complex | np.complexfloating)), None)
    if wide is not None:  # of which a float is the real part only
        raise _uncastable(column, side, dtype, f"it holds complex numbers, such as {wide}")
    try:
        values = [np.nan if value is None else float(value) for value in array.flat]
    except (TypeError, ValueError) as error:
        raise _uncastable(column, side, dtype, f"it holds {type(array.flat[0]).__name__} objects") from error
    missing = any(value is None for value in array.flat)
    return np.array(values, dtype=np.float64).reshape(array.shape), missing


def _uncastable(column: str, side: str, dtype: str, reason: str) -> FeedingError:
    return FeedingError(
        f"column {column!r} cannot be fed to the {side}, which takes {dtype}: {reason}",
        remedy="Export the model with the type of the column, or give data the model takes",
        side=side,
    )
