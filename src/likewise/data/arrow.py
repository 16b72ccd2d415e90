"""Arrow columns as numpy arrays, by one rule: the same rows are the same arrays whatever they were read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array
from likewise.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

KNOWN = ("arrow.", "pandas.")
"""How extension types are called that Arrow and pandas themselves define."""

FEW_TEXTS = 4_096
"""Texts that are made one by one: what makes equal ones once takes longer to import than so many to be made."""


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


def without_foreign(table: pa.Table) -> pa.Table:
    """The table with what it stores in the place of types that other packages define: their code would read it."""
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        if isinstance(field.type, pa.BaseExtensionType) and not field.type.extension_name.startswith(KNOWN):
            column = table.column(place)
            stored = pa.chunked_array([chunk.storage for chunk in column.chunks], type=field.type.storage_type)
            table = table.set_column(place, field.with_type(field.type.storage_type).remove_metadata(), stored)
        elif _holds_foreign(field.type):
            raise DataError(
                f"column {field.name!r} holds values of a type that another package defines ({field.type})",
                remedy="Write it with types of Arrow's own",
            )
    return table


def _holds_foreign(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return not kind.extension_name.startswith(KNOWN) or _holds_foreign(kind.storage_type)
    inner = [kind.value_type] if pa.types.is_dictionary(kind) else [kind.field(i).type for i in range(kind.num_fields)]
    return any(map(_holds_foreign, inner))


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
        stored = pa.chunked_array([chunk.storage for chunk in _chunks(column)], type=kind.storage_type)
        array = arrow_to_array(stored)
        if not isinstance(kind, pa.FixedShapeTensorType):
            return array
        if kind.permutation not in (None, sorted(kind.permutation or ())):
            # Readers do not agree on the order that is meant.
            raise DataError(
                f"a column holds tensors whose axes are stored in another order than they have ({kind})",
                remedy="Write them as they lie in memory, without a permutation",
            )
        return array.reshape(len(column), *kind.shape)
    if pa.types.is_dictionary(kind):
        # Not by to_numpy(): on a chunked dictionary it puts a value in the place of a null.
        return arrow_to_array(decoded(column))
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists_to_array(column)
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    parts = [_without_pandas(chunk) for chunk in _chunks(column)]
    if parts and all(part is not None for part in parts):
        return np.concatenate(parts) if len(parts) > 1 else np.asarray(parts[0])
    array = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    return np.asarray(array)


def _without_pandas(chunk: pa.Array) -> Any:
    """Numbers and text as numpy, or None for what only Arrow can convert: that imports pandas, which takes longer than
    a small check, and is no faster where texts are repeated."""
    import numpy as np
    import pyarrow as pa

    kind, gaps = chunk.type, ~_bits(chunk, 0) if chunk.null_count else None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if len(chunk) <= FEW_TEXTS:
            return np.array(chunk.to_pylist(), dtype=object)
        encoded = chunk.dictionary_encode()
        known = np.array([*encoded.dictionary.to_pylist(), None], dtype=object)
        places = _values(encoded.indices, np.dtype(np.int32))
        return known[places if gaps is None else np.where(gaps, len(known) - 1, places)]
    if pa.types.is_boolean(kind):
        values = _bits(chunk, 1)
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        values = _values(chunk, np.dtype(kind.to_pandas_dtype()))
    else:
        return None
    if gaps is not None:
        values = values.astype(values.dtype if values.dtype.kind == "f" else np.float64)
        values[gaps] = np.nan
    return values


def _values(chunk: pa.Array, dtype: Any) -> Array:
    """The memory of a column of numbers; what it holds in gaps means nothing."""
    import numpy as np

    return np.frombuffer(chunk.buffers()[1] or b"", dtype)[chunk.offset : chunk.offset + len(chunk)]


def _bits(chunk: pa.Array, buffer: int) -> Array:
    """A truth value for each row, from memory that has a bit for each."""
    import numpy as np

    bits = np.frombuffer(chunk.buffers()[buffer] or b"", np.uint8)
    return np.unpackbits(bits, bitorder="little", count=chunk.offset + len(chunk))[chunk.offset :].view(bool)


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
