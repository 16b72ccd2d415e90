"""What edge suites are made with: real rows to begin from, the features of the data, and rows changed by name.

Rows are changed in the form of the data: a table keeps its form and the types of its columns. A value
that a column cannot hold (a gap among whole numbers) widens that column as a table would be widened,
in a batch of its own, so that no other row is changed by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from likewise.contracts.comparison import Seen
from likewise.contracts.data import Array, Batch, RowIds
from likewise.data.cells import MISSING, WIDEST, Change, Field, changed
from likewise.data.rows import rows_at

COLUMNS = 64
"""Features that a suite goes through one by one; of more it takes a sample."""

BASE = 2
"""Real rows that every change is made to."""

HEAVY = 2**18
"""Bytes of a row above which changes are made to one row only."""

FLOAT, INTEGER, TEXT, TENSOR, IDS, OTHER = "float", "integer", "text", "tensor", "ids", "other"
"""What a feature holds: numbers, whole numbers, text; tensors of numbers; tensors of whole numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """Other values in some features of the base rows: one for all rows, or an array with one a row."""

    what: str
    values: Mapping[Field, Any]


def picked(seen: Seen, rows: int = BASE) -> Batch:
    """Some of the first rows, the same ones for the same seed; fewer where rows are large."""
    import numpy as np

    count = min(rows, len(seen.batch))
    width = sum(seen.batch.inputs[name].nbytes for name in seen.columns) // max(len(seen.batch), 1)
    if width > HEAVY:
        count = min(count, 1)
    chosen = np.random.default_rng(seen.seed).choice(len(seen.batch), size=count, replace=False)
    return rows_at(seen.batch, np.sort(chosen))


def features(seen: Seen, *kinds: str) -> list[Field]:
    """The features of these kinds that a suite goes through: all, or a sample in their own order."""
    import numpy as np

    found = all_features(seen)
    if len(found) > COLUMNS:
        chosen = np.random.default_rng(seen.seed).choice(len(found), size=COLUMNS, replace=False)
        found = [found[place] for place in sorted(chosen.tolist())]
    return [field for field in found if kind(seen, field) in kinds]


def all_features(seen: Seen) -> list[Field]:
    """Every feature: a column, each position of a narrow array, or a tensor as a whole."""
    found: list[Field] = []
    for name in seen.columns:
        array = seen.batch.inputs[name]
        if array.ndim == 2 and array.dtype.kind == "f" and array.shape[1] <= WIDEST:
            found += [Field(name, index, f"{name}[{index}]", len(found) + index) for index in range(array.shape[1])]
        else:
            found.append(Field(name, None, name, len(found)))
    return found


def kind(seen: Seen, field: Field) -> str:
    """What a feature holds."""
    array = seen.batch.inputs[field.column]
    if array.ndim > 1 and field.index is None:
        return {"f": TENSOR, "i": IDS, "u": IDS}.get(array.dtype.kind, OTHER)
    if array.dtype.kind in "OUST":
        texts = [value for value in array.tolist() if isinstance(value, str)]
        others = [value for value in array.tolist() if value is not None and not isinstance(value, str)]
        return TEXT if texts and all(value != value for value in others) else OTHER
    return {"f": FLOAT, "i": INTEGER, "u": INTEGER}.get(array.dtype.kind, OTHER)


def values_of(seen: Seen, field: Field) -> Array:
    """What was observed of a feature, without gaps."""
    import numpy as np

    values = field.of(seen.batch.inputs)
    if values.dtype.kind == "f":
        return values[np.isfinite(values)]
    if values.dtype.kind == "O":
        return np.array([value for value in values.tolist() if isinstance(value, str)], dtype=object)
    return values


def holds_whole(seen: Seen, field: Field) -> bool:
    """Does a feature hold whole numbers only, whatever its type? With gaps a table keeps them as float64."""
    import numpy as np

    observed = values_of(seen, field)
    return kind(seen, field) == INTEGER or (kind(seen, field) == FLOAT and bool(np.all(observed == np.rint(observed))))


def one_by_one(seen: Seen, **values: Sequence[Any]) -> list[Variant]:
    """Each of these values in each feature of a kind, such as `float=[0.0]`, as far as its type can hold them."""
    fields = features(seen, *values)
    found: list[Variant] = []
    # Value by value, so that rows that are refused for the same reason stand together.
    for place in range(max(map(len, values.values()))):
        for field in fields:
            for value in values[kind(seen, field)][place : place + 1]:
                found += at(seen, field, value)
    return found


def at(seen: Seen, field: Field, value: Any) -> list[Variant]:
    """One value in one feature; in a tensor everywhere, and at one place. Nothing where the type does not hold it."""
    import numpy as np

    dtype = seen.batch.inputs[field.column].dtype
    if kind(seen, field) == TEXT:
        return [Variant(f"{field.name} = {value!r}", {field: value})]
    if not holds(dtype, value):
        return []
    if kind(seen, field) != TENSOR:
        return [Variant(f"{field.name} = {value!r}", {field: value})]
    base = picked(seen).inputs[field.column]
    middle = tuple(size // 2 for size in base.shape[1:])
    one = base.copy()
    one[(slice(None), *middle)] = value
    place = ", ".join(map(str, middle))
    return [
        Variant(f"{field.name} = {value!r} everywhere", {field: np.full_like(base, value)}),
        Variant(f"{field.name}[{place}] = {value!r}", {field: one}),
    ]


def respelled(seen: Seen, ways: Callable[[str], Iterable[str]]) -> list[Variant]:
    """A text that was observed, spelled in other ways, in each feature of text."""
    found: list[Variant] = []
    for field in features(seen, TEXT):
        observed = str(values_of(seen, field)[0])
        for text in dict.fromkeys(ways(observed)):
            if text != observed:
                found.append(Variant(f"{field.name} = {text!r}", {field: text}))
    return found


def holds(dtype: Any, value: float) -> bool:
    """Is the number still the same in this type?"""
    import numpy as np

    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return bool(value == int(value) and bounds.min <= value <= bounds.max)
    with np.errstate(all="ignore"):
        kept = float(dtype.type(value))
    return kept == value or kept != kept


def varied(base: Batch, variants: Iterable[Variant]) -> Iterator[Batch]:
    """The base rows once for every variant, in as few batches as keep every other value what it is."""
    together: dict[tuple[str, ...], list[Variant]] = {}
    for variant in variants:
        together.setdefault(_widened(base, variant), []).append(variant)
    for group in together.values():
        yield _varied(base, group)


def named(base: Batch, positions: Array, what: Sequence[str]) -> Batch:
    """Rows of a batch, each named after its row and what is special about it."""
    import numpy as np

    batch = rows_at(base, positions)
    told = [f"row {batch.rows.name(place)}, {text}" for place, text in enumerate(what)]
    return Batch(RowIds(batch.rows.numbers, np.array(told, dtype=object)), batch.inputs)


def _widened(base: Batch, variant: Variant) -> tuple[str, ...]:
    """The columns whose type does not hold what they are given."""
    missing = [field.column for field, value in variant.values.items() if value is MISSING]
    return tuple(sorted({name for name in missing if base.inputs[name].dtype.kind in "biu"}))


def _varied(base: Batch, variants: Sequence[Variant]) -> Batch:
    import numpy as np

    rows = len(base)
    positions = np.tile(np.arange(rows), len(variants))
    batch = named(base, positions, [variant.what for variant in variants for _ in range(rows)])
    changes: list[Change] = []
    for field in dict.fromkeys(field for variant in variants for field in variant.values):
        values, given, missing = _laid_out(base, field, variants)
        if given.any():
            changes.append(Change(field, given, values))
        if missing.any():
            changes.append(Change(field, missing, MISSING))
    return changed(batch, changes)


def _laid_out(base: Batch, field: Field, variants: Sequence[Variant]) -> tuple[Array, Array, Array]:
    """The values of one feature in all rows, which rows have one, and which go missing."""
    import numpy as np

    rows = len(base)
    array = base.inputs[field.column] if field.index is None else base.inputs[field.column][:, field.index]
    text = array.dtype.kind in "OUST"
    values = np.tile(array.astype(object) if text else array, (len(variants), *(1 for _ in array.shape[1:])))
    given, missing = np.zeros(len(values), dtype=bool), np.zeros(len(values), dtype=bool)
    for place, variant in enumerate(variants):
        if field not in variant.values:
            continue
        value, here = variant.values[field], slice(place * rows, (place + 1) * rows)
        if value is MISSING:
            missing[here] = True
        else:
            values[here], given[here] = value, True
    return values, given, missing


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One value for one feature of one of the first rows."""

    row: int
    field: Field
    value: Any
    what: str


def placed(seen: Seen, cells: Sequence[Cell]) -> Batch:
    """A row for every cell: the row as it was, with that one value in it."""
    import numpy as np

    batch = named(seen.batch, np.array([cell.row for cell in cells]), [cell.what for cell in cells])
    changes = []
    for field in dict.fromkeys(cell.field for cell in cells):
        values = field.of(batch.inputs).copy()
        here = np.array([cell.field == field for cell in cells])
        values[here] = [cell.value for cell in cells if cell.field == field]
        changes.append(Change(field, here, values))
    return changed(batch, changes)


def nearest_row(seen: Seen, field: Field, value: float) -> int:
    """The first row whose own value is nearest to this one."""
    import numpy as np

    distance = np.abs(field.of(seen.batch.inputs).astype(np.float64) - value)
    return 0 if np.isnan(distance).all() else int(np.nanargmin(distance))
