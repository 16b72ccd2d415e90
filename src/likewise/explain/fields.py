"""The features of a case's data, one by one, and the types in which each side takes them."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.data.cells import WIDEST, Field
from likewise.explain.case import Case


def fields_of(case: Case) -> tuple[Field, ...]:
    """The features that either model takes, in the order of the data."""
    batch = case.required.batch
    if not batch.stacked:
        return ()
    taken = [case.side(side).feed.columns for side in ("reference", "candidate")]
    used = [name for name in batch.inputs if any(columns is None or name in columns for columns in taken)]
    found: list[Field] = []
    for name in used:
        array = batch.inputs[name]
        if array.ndim == 1:
            found.append(Field(name, None, name, len(found)))
        elif array.ndim == 2 and array.shape[1] <= WIDEST:
            names = _names_by_position(case, name, array.shape[1])
            found.extend(Field(name, index, names[index], len(found) + index) for index in range(array.shape[1]))
    return tuple(found)


def _names_by_position(case: Case, column: str, width: int) -> list[str]:
    """What the columns of an array are called: by a model that names its inputs, else by their position."""
    for side in ("reference", "candidate"):
        routes = case.side(side).feed.routes or ()
        named = {route.split: route.input.name for route in routes if route.split is not None}
        if len(named) == width:
            return [named[index] for index in range(width)]
    return [f"{column}[{index}]" for index in range(width)]


def declared_types(case: Case, side: str, fields: Sequence[Field]) -> dict[Field, str]:
    """The type in which a model takes each feature, where it declares one and the feeding obeys it."""
    found: dict[Field, str] = {}
    inputs = case.required.batch.inputs
    for route in case.side(side).feed.routes or ():
        for field in fields:
            if field.column not in route.columns or route.split not in (None, field.index):
                continue
            as_it_is = route.input.floating and inputs[field.column].dtype.kind in "biu"
            if route.input.dtype is not None and not as_it_is:
                found[field] = route.input.dtype
    return found
