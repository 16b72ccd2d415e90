"""What may be changed in a row, and to what: the values that the data could hold.

Every value that a move may change is a *variable*: a column of a table, an element of a tensor. Numbers
stay within the range observed, in the type of the data, whole where all were whole; anything else is
one of the values observed. Missing is a value where it was observed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from likewise.contracts.data import Array

FEW = 16
"""Whole numbers with at most so many distinct values may be codes: only observed ones are used."""

MOST_LISTED = 4_096
"""Elements of a tensor whose distinct values are counted one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One column: its values in the real rows, one line a row, and what bounds them, element by element.

    `shape` is that of one cell. `places` is set where the column is no number: then `values` are codes,
    and `places` names for each code a real row that holds the value.
    """

    name: str
    values: Array
    shape: tuple[int, ...]
    low: Array
    high: Array
    whole: Array
    gaps: Array
    listed: Array
    places: Array | None = None

    @property
    def width(self) -> int:
        return int(self.values.shape[1])

    @property
    def is_number(self) -> bool:
        return self.places is None

    def observed(self, elements: Array, random: np.random.Generator) -> Array:
        """Values of real rows; of a choice, each distinct value is as likely as any other."""
        if self.places is not None:
            return random.integers(0, len(self.places), len(elements))
        drawn: Array = self.values[random.integers(0, len(self.values), len(elements)), elements]
        return drawn

    def conform(self, values: Array, elements: Array) -> Array:
        """The nearest values that the data could hold."""
        if self.places is not None:
            return values
        dtype = self.values.dtype
        if dtype.kind == "b":
            return values.astype(bool)
        with np.errstate(invalid="ignore", over="ignore"):
            bounded = np.clip(values, self.low[elements], self.high[elements])
            if bounded.dtype.kind == "f":
                bounded = np.where(self.whole[elements], np.round(bounded), bounded)
            # A type change may round past a bound.
            result = np.clip(_as_type(bounded, dtype), self.low[elements], self.high[elements]).astype(dtype)
        if self.listed[elements].any():
            result = self._nearest(result, elements)
        if dtype.kind == "f":
            result = np.where(np.isnan(values) & self.gaps[elements], dtype.type(np.nan), result)
            # What may not be missing and has no number to be is left at its lower bound.
            result = np.where(np.isnan(result) & ~self.gaps[elements], self.low[elements], result)
        return result.astype(dtype, copy=False)

    def _nearest(self, values: Array, elements: Array) -> Array:
        values = values.copy()
        for element in np.unique(elements[self.listed[elements]]).tolist():
            here = np.flatnonzero(elements == element)
            known = np.unique(self.values[:, element])
            known = known[~np.isnan(known)] if known.dtype.kind == "f" else known
            if len(known):
                values[here] = known[np.clip(np.searchsorted(known, values[here]), 0, len(known) - 1)]
        return values


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows under change: the real row each began as, and its cells, one line a row."""

    base: Array
    cells: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.base)

    def take(self, positions: Array) -> Rows:
        return Rows(self.base[positions], {name: cells[positions] for name, cells in self.cells.items()})


Draw: TypeAlias = Callable[[Column, Array, Array, Array], Array]
"""New values of one column: from the column, the elements, what is there now, and which requests these are."""


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """All variables of the rows; `owner` and `element` say where each lies."""

    columns: tuple[Column, ...]
    rows: int
    owner: Array
    element: Array
    positions: Mapping[str, int] = field(default_factory=dict)

    @property
    def variables(self) -> int:
        return len(self.owner)

    @property
    def cells(self) -> int:
        """Bytes of one row."""
        return sum(column.width * column.values.dtype.itemsize for column in self.columns)

    def name(self, variable: int) -> str:
        """What a person calls a variable: `age`, or `X[3]`, or `image[0,12,7]`."""
        column = self.columns[int(self.owner[variable])]
        if not column.shape:
            return column.name
        index = np.unravel_index(int(self.element[variable]), column.shape)
        return f"{column.name}[{','.join(str(int(along)) for along in index)}]"

    def may_miss(self, variable: int) -> bool:
        """Is this a number that is missing in some real row?"""
        return bool(self.columns[int(self.owner[variable])].gaps[int(self.element[variable])])

    def real(self, positions: Array) -> Rows:
        """Real rows, as they are."""
        return Rows(np.asarray(positions), {c.name: c.values[positions] for c in self.columns})

    def numbers(self) -> Array:
        """The variables that are numbers and take more than one value."""
        free = [c.is_number & ~c.listed & (c.high > c.low) for c in self.columns]
        return np.flatnonzero(np.concatenate(free)) if free else np.zeros(0, np.int64)

    def free(self) -> Array:
        """The variables that can be changed at all."""
        able = [
            (c.high > c.low) | (c.gaps & ~np.isnan(c.values.astype(np.float64)).all(axis=0))
            if c.is_number and c.values.dtype.kind != "b"
            else c.values.min(axis=0) < c.values.max(axis=0)
            for c in self.columns
        ]
        return np.flatnonzero(np.concatenate(able)) if able else np.zeros(0, np.int64)

    def rewritten(self, rows: Rows, at: Array, variables: Array, draw: Draw) -> Rows:
        """The rows with new values: request i changes variable `variables[i]` of row `at[i]`."""
        cells = dict(rows.cells)
        owners = self.owner[variables]
        for number in np.unique(owners).tolist():
            here = np.flatnonzero(owners == number)
            column, elements = self.columns[number], self.element[variables[here]]
            array = cells[column.name].copy()
            now = array[at[here], elements]
            array[at[here], elements] = column.conform(draw(column, elements, now, here), elements)
            cells[column.name] = array
        return Rows(rows.base, cells)

    def assigned(self, rows: Rows, at: Array, variables: Array, values: Array) -> Rows:
        """The rows with these values: numbers as float64, choices as codes."""
        return self.rewritten(rows, at, variables, lambda column, elements, now, here: values[here])

    def copied(self, rows: Rows, at: Array, variables: Array, donors: Array) -> Rows:
        """The rows with values of real rows, as they are: request i takes that of real row `donors[i]`."""
        cells = dict(rows.cells)
        owners = self.owner[variables]
        for number in np.unique(owners).tolist():
            here = np.flatnonzero(owners == number)
            column, elements = self.columns[number], self.element[variables[here]]
            array = cells[column.name].copy()
            array[at[here], elements] = column.values[donors[here], elements]
            cells[column.name] = array
        return Rows(rows.base, cells)

    def spans(self, variables: Array) -> Array:
        """The ranges of variables that are numbers."""
        found = np.empty(len(variables))
        owners = self.owner[variables]
        for number in np.unique(owners).tolist():
            here = np.flatnonzero(owners == number)
            column, elements = self.columns[number], self.element[variables[here]]
            found[here] = column.high[elements].astype(np.float64) - column.low[elements].astype(np.float64)
        return found

    def differs(self, rows: Rows, others: Rows) -> Array:
        """Which variables of each row differ from the row at the same place."""
        parts = []
        for column in self.columns:
            one, other = rows.cells[column.name], others.cells[column.name]
            unlike = one != other
            if one.dtype.kind == "f":
                unlike &= ~(np.isnan(one) & np.isnan(other))
            parts.append(unlike)
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(rows), 0), bool)

    def as_numbers(self, rows: Rows, variables: Array) -> Array:
        """The values of variables that are numbers, one line a row, as float64."""
        found = np.empty((len(rows), len(variables)))
        owners = self.owner[variables]
        for number in np.unique(owners).tolist():
            here = np.flatnonzero(owners == number)
            found[:, here] = rows.cells[self.columns[number].name][:, self.element[variables[here]]]
        return found


def space_of(columns: Sequence[Column], rows: int) -> Space:
    """The variables of some columns."""
    widths = [column.width for column in columns]
    owner = np.repeat(np.arange(len(columns)), widths)
    element = np.concatenate([np.arange(width) for width in widths]) if widths else np.zeros(0, np.int64)
    space = Space(tuple(columns), rows, owner, element)
    if space.variables > MOST_LISTED:
        return space
    names = {space.name(variable): variable for variable in range(space.variables)}
    return Space(tuple(columns), rows, owner, element, names)


def together(parts: Sequence[Rows]) -> Rows:
    """Rows after each other."""
    if len(parts) == 1:
        return parts[0]
    cells = {name: np.concatenate([part.cells[name] for part in parts]) for name in parts[0].cells}
    return Rows(np.concatenate([part.base for part in parts]), cells)


def number_column(name: str, array: Array, *, widen: float = 0.0) -> Column:
    """A column of numbers. Elements of a vector have ranges of their own; those of an image share one."""
    values = array.reshape(len(array), -1)
    width = values.shape[1]
    shared = array.ndim > 2
    looked_at = values.reshape(-1, 1) if shared else values
    floating = values.dtype.kind == "f"
    finite = np.isfinite(looked_at) if floating else np.ones(looked_at.shape, bool)
    kept = looked_at if not floating else np.where(finite, looked_at, np.nan)
    gaps = np.isnan(looked_at).any(axis=0) if floating else np.zeros(looked_at.shape[1], bool)
    low, high = _ends(kept, finite)
    whole = ~(floating & (finite & (looked_at != np.round(looked_at))).any(axis=0))
    listed = np.zeros(len(low), bool)
    if values.dtype.kind == "b":
        listed[:] = True
    elif len(low) <= MOST_LISTED:
        listed = whole & np.array([len(np.unique(kept[finite[:, e], e])) <= FEW for e in range(len(low))])
    if widen and values.dtype.kind != "b":
        low, high = _widened(low, high, whole & ~listed, ~listed, widen, values.dtype)
    bounds = [np.broadcast_to(entry, width) for entry in (low, high, whole, gaps, listed)]
    return Column(name, values, tuple(array.shape[1:]), *bounds)


def choice_column(name: str, codes: Array, places: Array) -> Column:
    """A column whose values can only be exchanged for one another."""
    no = np.zeros(1, bool)
    return Column(
        name, codes.reshape(-1, 1), (), np.zeros(1, np.int64), np.array([len(places) - 1]), ~no, no, no, places
    )


def _ends(kept: Array, finite: Array) -> tuple[Array, Array]:
    if kept.dtype.kind != "f":
        return kept.min(axis=0), kept.max(axis=0)
    low = np.where(finite, kept, np.inf).min(axis=0)
    high = np.where(finite, kept, -np.inf).max(axis=0)
    none = ~finite.any(axis=0)
    return np.where(none, 0, low).astype(kept.dtype), np.where(none, 0, high).astype(kept.dtype)


def _widened(low: Array, high: Array, whole: Array, able: Array, share: float, dtype: np.dtype) -> tuple[Array, Array]:
    reach = (high.astype(np.float64) - low.astype(np.float64)) * share
    reach = np.where(able, np.where(whole, np.floor(reach), reach), 0.0)
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    wide = [
        np.clip(end.astype(np.float64) + sign * reach, limits.min, limits.max) for end, sign in ((low, -1), (high, 1))
    ]
    return np.where(able, _as_type(wide[0], dtype), low), np.where(able, _as_type(wide[1], dtype), high)


def _as_type(values: Array, dtype: np.dtype) -> Array:
    """Numbers in another type; doubles that an integer type cannot hold become its ends."""
    if dtype.kind not in "iu" or values.dtype.kind != "f":
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    inside = np.nan_to_num(values, nan=0.0)
    result = np.where(inside >= float(limits.max), 0, np.where(inside <= float(limits.min), 0, inside)).astype(dtype)
    result[inside >= float(limits.max)] = limits.max
    result[inside <= float(limits.min)] = limits.min
    return result
