"""Casting a column to a declared type, and counting what does not survive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from likewise.contracts.data import Array
from likewise.errors import FeedingError


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
        array = _numbers_in_objects(array, dtype, column=column, side=side)
    return _between_numbers(array, dtype, column=column, side=side)


def numpy_dtype(name: str) -> Any:
    """The type of that name, with those that only machine learning has, such as bfloat16."""
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def _between_numbers(array: Array, dtype: str, *, column: str, side: str) -> tuple[Array, Loss | None]:
    import numpy as np

    target: Any = numpy_dtype(dtype)
    if str(array.dtype) == dtype:
        return array, None
    if array.dtype.kind == "f" and target.kind in "biu":
        missing = int(np.count_nonzero(~np.isfinite(array)))
        if missing:
            raise _uncastable(column, side, dtype, f"{missing:,} of its values are missing or infinite")
    with np.errstate(all="ignore"):
        result = array.astype(target)
        survives = result.astype(array.dtype) == array
        if array.dtype.kind == "f":
            survives |= np.isnan(array)
        changed = array.size - int(np.count_nonzero(survives))
        largest = 0.0
        if changed:
            before = array[~survives].astype(np.float64)
            after = result[~survives].astype(np.float64)
            largest = float(np.max(np.abs(after - before) / np.maximum(np.abs(before), np.finfo(np.float64).tiny)))
    return result, Loss(str(array.dtype), changed, largest)


def _to_text(array: Array) -> tuple[Array, Loss | None]:
    """Text as it is; a missing value becomes the empty string, as ONNX has no other word for it."""
    import numpy as np

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
    import numpy as np

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


def _numbers_in_objects(array: Array, dtype: str, *, column: str, side: str) -> Array:
    """Numbers that a table holds as Python objects, with None for missing; text is refused."""
    import numpy as np

    text = next((value for value in array.flat if isinstance(value, str | bytes)), None)
    if text is not None:
        raise _uncastable(column, side, dtype, f"it holds text, such as {text!r}")
    try:
        values = [np.nan if value is None else float(value) for value in array.flat]
    except (TypeError, ValueError) as error:
        raise _uncastable(column, side, dtype, f"it holds {type(array.flat[0]).__name__} objects") from error
    return np.array(values, dtype=np.float64).reshape(array.shape)


def _uncastable(column: str, side: str, dtype: str, reason: str) -> FeedingError:
    return FeedingError(
        f"column {column!r} cannot be fed to the {side}, which takes {dtype}: {reason}",
        remedy="Export the model with the type of the column, or give data the model takes",
        side=side,
    )
