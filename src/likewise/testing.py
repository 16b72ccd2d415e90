"""For tests of your own: inputs that a model takes, as hypothesis strategies or as rows from a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from likewise.compare.variations.generated import Planned, planned_for
from likewise.contracts.data import Array
from likewise.contracts.models import Model, Signature
from likewise.data.columns import ArrayColumns, numpy_dtype
from likewise.data.random_values import (
    Between,
    Cells,
    Column,
    Normal,
    OneOf,
    Padded,
    Places,
    Values,
    WithGaps,
    Words,
    typed,
)
from likewise.errors import UsageError, extra
from likewise.registry import describe_model

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


__all__ = ["inputs_for", "rows_for"]

SIDE = "model"
DRAWN_ONE_BY_ONE = 64
"""Values of a row that are drawn, and shrunk, each by itself."""

SPOTS = 8
INSIDE = (0.5, 0.25, 0.75)
"""Where between two thresholds a value lies: never at one, where rounding alone decides."""


def inputs_for(
    model: Any,
    *,
    rows: int | tuple[int, int] = (1, 8),
    trusted: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> SearchStrategy[Any]:
    """A hypothesis strategy of inputs in the form the model takes; what is found shrinks to few and simple rows.

    A model of columns gets a DataFrame, one of tensors a dict of arrays, an estimator that was fitted without
    names an array. `rows` is how many: a number, or the least and the most. The model is opened when the first
    example is drawn. `trusted` and `options` are those of `likewise.check`.
    """
    least, most = _least_and_most(rows)
    with extra("testing", needed_for="inputs_for"):
        from hypothesis import strategies as st
    described = describe_model(model, {**(options or {}), "trusted": tuple(trusted)})
    return st.deferred(lambda: _strategy(described, least, most))


def rows_for(
    model: Any,
    *,
    rows: int = 100,
    seed: int = 0,
    trusted: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Rows in the form the model takes, the same ones for the same seed; those of a check with `generated` data."""
    _least_and_most(rows)
    planned = planned_for({SIDE: describe_model(model, {**(options or {}), "trusted": tuple(trusted)})})
    batch = next(planned.source(asked=rows, seed=seed).batches(rows))
    return _formed({column.name: batch.inputs[column.name] for column in planned.columns}, planned)


def _least_and_most(rows: Any) -> tuple[int, int]:
    bounds = (rows, rows) if isinstance(rows, int) else rows
    numbers = isinstance(bounds, tuple) and len(bounds) == 2 and all(isinstance(n, int) for n in bounds)
    if not (numbers and 0 < bounds[0] <= bounds[1]):
        raise UsageError(f"rows is {rows!r}", remedy="Give a number above zero, or the least and the most")
    return bounds


def _strategy(model: Model, least: int, most: int) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    planned = planned_for({SIDE: model})
    row = st.tuples(*(_row(column) for column in planned.columns))
    return st.lists(row, min_size=least, max_size=most).map(lambda found: _together(found, planned))


def _together(rows: Sequence[tuple[Any, ...]], planned: Planned) -> Any:
    import numpy as np

    arrays: dict[str, Array] = {}
    for place, column in enumerate(planned.columns):
        large = column.cells > DRAWN_ONE_BY_ONE
        cells: Array = np.empty((len(rows), *column.shape), dtype=rows[0][place].dtype if large else object)
        for index, row in enumerate(rows):
            cells[index] = row[place]
        arrays[column.name] = cells if large else typed(cells, column.dtype)
    return _formed(arrays, planned)


def _formed(arrays: dict[str, Array], planned: Planned) -> Any:
    """The arrays as the model's own framework takes them."""
    signature: Signature = planned.signatures[SIDE]
    if signature.table:
        return ArrayColumns(arrays).frame()
    declared = {spec.name: spec for spec in signature.inputs or ()}
    for name, array in arrays.items():
        if array.ndim == 1 and len(declared[name].shape or ()) == 2:
            arrays[name] = array.reshape(-1, 1)
    lone = declared.get("X")
    # An estimator without names declares one array, of no type, under the name that scikit-learn gives it.
    return arrays["X"] if lone is not None and len(declared) == 1 and lone.dtype is None else arrays


def _row(column: Column) -> SearchStrategy[Any]:
    """The values of one row: a cell, or an array."""
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as of_numpy

    first = column.parts[0].values
    if len(column.parts) > 1:
        row = st.tuples(*(_cell(part.values, column.dtype) for part in column.parts))
        return row.map(lambda found: typed(_objects(found), column.dtype))
    if isinstance(first, Padded | Places):
        return _whole_row(first, column.shape, column.dtype)
    cell = _cell(first, column.dtype)
    if not column.shape:
        return cell
    if column.cells <= DRAWN_ONE_BY_ONE:
        return of_numpy.arrays(object, column.shape, elements=cell, fill=st.nothing())
    return _large_row(column, cell)


def _objects(values: Sequence[Any]) -> Array:
    import numpy as np

    array: Array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _large_row(column: Column, cell: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """An array too large to be drawn value by value: one value everywhere but in a few places, or noise."""
    import numpy as np
    from hypothesis import strategies as st

    def spotted(found: tuple[Any, dict[int, Any]]) -> Array:
        values = typed(_objects([found[0], *found[1].values()]), column.dtype)
        drawn: Array = np.full(column.cells, values[0], dtype=values.dtype)
        drawn[list(found[1])] = values[1:]
        return drawn.reshape(column.shape)

    spots = st.dictionaries(st.integers(0, column.cells - 1), cell, max_size=SPOTS)
    noise = st.integers(0, 1 << 16).map(lambda row: column.rows(0, row, row + 1)[0])
    return st.one_of(st.tuples(cell, spots).map(spotted), noise)


def _whole_row(values: Padded | Places, shape: tuple[int, ...], dtype: str) -> SearchStrategy[Any]:
    """A row whose places depend on each other."""
    import numpy as np
    from hypothesis import strategies as st

    length = shape[-1] if shape else 1
    if isinstance(values, Places):
        return st.just(np.broadcast_to(np.arange(length), shape).astype(numpy_dtype(dtype)))
    kept = st.integers(1, length)
    return kept.map(lambda count: np.broadcast_to(np.arange(length) < count, shape).astype(numpy_dtype(dtype)))


def _cell(values: Values, dtype: str) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    if isinstance(values, WithGaps):
        # A value shrinks to simpler ones before it is left out.
        left_out = st.sampled_from((False, False, False, True))
        drawn = st.tuples(_cell(values.values, dtype), left_out)
        return drawn.map(lambda found: None if found[1] else found[0])
    if isinstance(values, OneOf):
        return st.sampled_from(values.values)
    if isinstance(values, Words):
        return st.lists(st.sampled_from(values.vocabulary), min_size=1, max_size=values.most).map(" ".join)
    if isinstance(values, Cells):
        return _between_cuts(values)
    if isinstance(values, Normal):
        return _floats(values.mean - 3 * values.deviation, values.mean + 3 * values.deviation, dtype)
    if isinstance(values, Between) and not values.whole and not dtype.startswith(("int", "uint", "bool")):
        return _floats(values.low, values.high, dtype)
    assert isinstance(values, Between)
    return st.integers(int(values.low), int(values.high))


def _between_cuts(values: Cells) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    edges = (values.low, *values.cuts, values.high)

    def inside(found: tuple[int, float]) -> float:
        low, high = edges[found[0]], edges[found[0] + 1]
        drawn = low + found[1] * (high - low)
        return float(round(drawn)) if values.whole else drawn

    return st.tuples(st.integers(0, len(edges) - 2), st.sampled_from(INSIDE)).map(inside)


def _floats(low: float, high: float, dtype: str) -> SearchStrategy[float]:
    """Numbers of the column's own precision, without those that are lost to it."""
    import numpy as np
    from hypothesis import strategies as st

    narrow = dtype in ("float32", "float16", "bfloat16")
    if narrow:
        low, high = float(np.float32(low)), float(np.float32(high))
    return st.floats(low, high, width=32 if narrow else 64, allow_subnormal=False)
