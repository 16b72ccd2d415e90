"""Axes of inputs whose length a model leaves open, and rows that are shorter or longer along one.

A graph names such an axis (`seq`), and the inputs that share the name change together; so do axes whose names nobody
chose (`s53`), where they are alike in the data. One without a name goes by its input and its place in the data, rows
first: `x:2`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from likewise.compare.feed import Feed, Route
from likewise.contracts.data import Array, Batch, RowIds
from likewise.contracts.values import dataclass
from likewise.data.columns import ArrayColumns
from likewise.errors import UsageError, nearest

MADE_UP = re.compile(r"[su]\d+|unk__\d+|.+_dynamic_axes_\d+|DynamicDimension\.\d+")
"""What exporters call axes that nobody named, each input's in its own way: no claim that ids and mask may differ."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis whose length is free. `places` are the columns of the data that have it, and where."""

    name: str
    places: tuple[tuple[str, int], ...]
    length: int
    aliases: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """The name, and where it is, as a person may write it."""
        others = [alias for alias in self.aliases if alias != self.name]
        return f"{self.name} ({', '.join(others)})" if others else self.name


def axes_of(feed: Feed, batch: Batch) -> tuple[Axis, ...]:
    """The free axes of a model's inputs besides that of the rows; those that share a name are one."""
    named: dict[str, list[tuple[Route, int]]] = {}
    alike: dict[tuple[int, int], str] = {}
    known_as: dict[str, str] = {}
    derived: set[str] = set()
    for route, axis, dim in _dims(feed, batch):
        if isinstance(dim, int):
            continue
        # Worked out from another axis, such as `2*seq` or `seq - 1`.
        if dim is not None and re.search(r"[+*/(]| - ", dim):
            derived.update(re.findall(r"[A-Za-z_]\w*", dim))
            continue
        if dim is None or MADE_UP.fullmatch(dim):
            # Inputs without names for their axes belong together where these are alike, as ids and their mask are.
            dim = dim or f"{route.input.name}:{axis}"
            place = (axis, batch.inputs[route.columns[0]].shape[axis])
            known_as.setdefault(dim, alike.setdefault(place, dim))
        named.setdefault(known_as.get(dim, dim), []).append((route, axis))
    found = []
    for name, places in named.items():
        lengths = {batch.inputs[route.columns[0]].shape[axis] for route, axis in places}
        names = [name, *(other for other, first in known_as.items() if first == name)]
        if derived.isdisjoint(names) and len(lengths) == 1 and (length := lengths.pop()):
            columns = dict.fromkeys((route.columns[0], axis) for route, axis in places)
            inputs = [f"{route.input.name}:{axis}" for route, axis in places]
            aliases = dict.fromkeys([*inputs, *(f"{column}:{axis}" for column, axis in columns), *names[1:]])
            found.append(Axis(name, tuple(columns), length, tuple(aliases)))
    return tuple(found)


def empty_axes(feed: Feed, batch: Batch) -> tuple[str, ...]:
    """The free axes along which the data holds nothing, as a decoder's past before its first token."""
    dims = [(dim, route, axis) for route, axis, dim in _dims(feed, batch) if not isinstance(dim, int)]
    empty = [entry for entry in dims if not batch.inputs[entry[1].columns[0]].shape[entry[2]]]
    return tuple(dict.fromkeys(dim or f"{route.input.name}:{axis}" for dim, route, axis in empty))


def fixed_places(feed: Feed, batch: Batch) -> frozenset[tuple[str, int]]:
    """Where a model says which length it takes."""
    return frozenset((route.columns[0], axis) for route, axis, dim in _dims(feed, batch) if isinstance(dim, int))


def named_axis(name: str, known: Sequence[Axis], batch: Batch) -> Axis:
    """The axis that a user means; a usage error that lists the known ones if there is none."""
    for axis in known:
        if name == axis.name or name in axis.aliases:
            return axis
    column, _, place = name.rpartition(":")
    if column in batch.inputs and place.isdecimal() and 0 < int(place) < batch.inputs[column].ndim:
        array = batch.inputs[column]
        return Axis(name, ((column, int(place)),), array.shape[int(place)], (name,))
    if place == "0" and column in batch.inputs:
        raise UsageError(f"--shapes {name}: axis 0 holds the rows", remedy="Use --batch-sizes for other batch sizes")
    names = [text for axis in known for text in (axis.name, *axis.aliases)]
    shown = ", ".join(axis.told for axis in known) or "none is free"
    raise UsageError(
        f"--shapes: there is no axis {name!r}{nearest(name, names)}",
        remedy=f"Axes: {shown}. An axis of the data goes by its column and place, such as x:2",
    )


def at_length(batch: Batch, axis: Axis, length: int, *, from_others: bool = False) -> Batch:
    """The rows cut to a length along an axis; what is too short is repeated, or goes on as the row before begins.

    What repeats itself ends as it begins, and hides that a model takes the one for the other.
    """
    arrays = dict(batch.inputs)
    for column, place in axis.places:
        array = arrays[column]
        taken = np.arange(length) % array.shape[place]
        arrays[column] = np.take(array, taken, axis=place)
        if from_others and length > array.shape[place]:
            further = np.take(np.roll(array, 1, axis=0), taken[array.shape[place] :], axis=place)
            arrays[column] = np.concatenate([array, further], axis=place)
    for name in _lengths(arrays, axis.length):
        arrays[name] = np.minimum(arrays[name], length).astype(arrays[name].dtype)
    return called(batch, arrays, f"{axis.name}={length}")


def called(batch: Batch, arrays: Mapping[str, Array], what: str) -> Batch:
    """The rows with other inputs, each named after its row and what was done to it."""
    names = np.array([f"row {batch.rows.name(place)}, {what}" for place in range(len(batch))], dtype=object)
    return Batch(RowIds(batch.rows.numbers, names), ArrayColumns(arrays), batch.stacked)


def _dims(feed: Feed, batch: Batch) -> Iterator[tuple[Route, int, int | str | None]]:
    """Every declared axis besides that of the rows, of the inputs that are fed from one column as it is."""
    if not batch.stacked:
        return
    for route in feed.routes or ():
        if route.stacked or route.split is not None or route.input.shape is None:
            continue
        for axis, dim in enumerate(route.input.shape[1:], start=1):
            if batch.inputs[route.columns[0]].ndim > axis:
                yield route, axis, dim


def _lengths(arrays: Mapping[str, Array], longest: int) -> list[str]:
    """Columns that say how long each row is: whole numbers, one a row, called so."""
    return [
        name
        for name, array in arrays.items()
        if re.search(r"len(s|gths?)?$", name.lower())
        and array.dtype.kind in "iu"
        and array.size == len(array)
        and array.max(initial=0) <= longest
    ]
