"""Columns of Arrow tables and live DataFrames as numpy arrays, by one rule for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array

if TYPE_CHECKING:
    import pyarrow as pa


def series_to_array(series: Any) -> Array:
    """A column of a live DataFrame (a narwhals Series) as numpy, by the rules of `arrow_to_array`."""
    import numpy as np

    native = series.to_native()
    dtype = getattr(native, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "biufcmM":
        return np.asarray(native.to_numpy())
    arrow = series_to_arrow(series)
    if arrow is not None:
        return arrow_to_array(arrow)
    objects = np.empty(len(series), dtype=object)
    objects[:] = [None if isinstance(value, float) and value != value else value for value in series.to_list()]
    return objects


def series_to_arrow(series: Any) -> pa.Array | None:
    """A column of a live DataFrame (a narwhals Series) as Arrow, or None for Python objects Arrow has no type for."""
    import pyarrow as pa

    if str(series.to_native().dtype) == "Object":
        # What polars hands to Arrow for its Object type are the addresses of the objects.
        return None
    try:
        return series.to_arrow()
    except (pa.ArrowException, TypeError, ValueError):
        return None


def arrow_to_array(column: pa.ChunkedArray | pa.Array) -> Array:
    """An Arrow column as numpy.

    Text and binary are objects with None where missing; dictionaries are decoded. A null among
    numbers or booleans is NaN in float64, in times NaT; a column without a type, which holds
    nothing but nulls, is NaN too. Times with a zone are UTC, decimals are float64. Lists of one
    length are a further axis, others an object array of arrays.
    """
    import numpy as np
    import pyarrow as pa

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        array = arrow_to_array(_storage(column))
        return array.reshape(len(column), *kind.shape) if isinstance(kind, pa.FixedShapeTensorType) else array
    if pa.types.is_dictionary(kind):
        # Not by to_numpy(): on a chunked dictionary it puts a value in the place of a null.
        return arrow_to_array(decoded(column))
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists_to_array(column)
    if pa.types.is_boolean(kind) and column.null_count:
        column = column.cast(pa.int8()).cast(pa.float64())
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    array = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    return np.asarray(array)


def decoded(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
    """The values that a dictionary column stands for."""
    import pyarrow as pa

    values = [without_views(chunk.dictionary).take(chunk.indices) for chunk in _chunks(column)]
    return pa.chunked_array(values, type=_without_views(column.type.value_type))


def without_views(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """The same text in the older layout: Arrow cannot take rows of string views, which polars writes."""
    wanted = _without_views(column.type)
    return column if wanted == column.type else column.cast(wanted)


def _without_views(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        value = _without_views(kind.value_type)
        return kind if value == kind.value_type else pa.large_list(value)
    return kind


def _lists_to_array(column: pa.ChunkedArray | pa.Array) -> Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    fixed = getattr(column.type, "list_size", 0)
    if None not in lengths and len(lengths) <= 1:
        values = pa.chunked_array([chunk.flatten() for chunk in _chunks(column)], type=column.type.value_type)
        flat = arrow_to_array(values)
        return flat.reshape(len(column), lengths[0] if lengths else fixed, *flat.shape[1:])
    ragged = np.empty(len(column), dtype=object)
    for position, entry in enumerate(column):
        ragged[position] = arrow_to_array(entry.values) if entry.is_valid else None
    return ragged


def _chunks(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    return list(column.chunks) if hasattr(column, "chunks") else [column]


def _storage(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
    import pyarrow as pa

    return pa.chunked_array([chunk.storage for chunk in _chunks(column)], type=column.type.storage_type)
