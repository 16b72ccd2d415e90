"""What may be changed in a row, and to what: the values that the data could hold.

Every value that a move may change is a *variable*: a column of a table, an element of a tensor. Numbers
stay within the range observed, in the type of the data, whole where all were whole; anything else is
one of the values observed. Missing is a value where it was observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.values import dataclass

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

    def known(self, element: int) -> Array:
        """The distinct values of an element, in order; missing is none of them."""
        values = np.unique(self.values[:, element])
        return values[~np.isnan(values)] if values.dtype.kind == "f" else values

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
            if len(known := self.known(element)):
                values[here] = known[np.clip(np.searchsorted(known, values[here]), 0, len(known) - 1)]
        return values


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows under change: the real row each began as, and its cells, one line a row."""

    base: Array
    cells: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.base)

    def take(self, positions: Array | list[int]) -> Rows:
        return Rows(self.base[positions], {name: cells[positions] for name, cells in self.cells.items()})

    def or_else(self, others: Rows, mask: Array) -> Rows:
        """These rows where the mask says so, the others elsewhere."""
        cells = {name: np.where(mask[:, None], cells, others.cells[name]) for name, cells in self.cells.items()}
        return Rows(np.where(mask, self.base, others.base), cells)


Draw: TypeAlias = Callable[[Column, Array, Array, Array], Array]
"""New values of one column: from the column, the elements, what is there now, and which requests these are."""


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """All variables of the rows; `owner` and `element` say where each lies."""

    columns: tuple[Column, ...]
    owner: Array
    element: Array

    @property
    def variables(self) -> int:
        return len(self.owner)

    @property
    def row_bytes(self) -> int:
        return sum(column.width * column.values.dtype.itemsize for column in self.columns)

    def column(self, variable: int) -> tuple[Column, int]:
        """The column that a variable lies in, and its element there."""
        return self.columns[int(self.owner[variable])], int(self.element[variable])

    def name(self, variable: int) -> str:
        """What a person calls a variable: `age`, or `X[3]`, or `image[0,12,7]`."""
        column, element = self.column(variable)
        if not column.shape:
            return column.name
        index = np.unravel_index(element, column.shape)
        return f"{column.name}[{','.join(str(int(along)) for along in index)}]"

    def real(self, positions: Array) -> Rows:
        """Real rows, as they are."""
        return Rows(np.asarray(positions), {c.name: c.values[positions] for c in self.columns})

    def numbers(self) -> Array:
        """The variables that are numbers and take more than one value."""
        return self.where(lambda c: c.is_number & ~c.listed & (c.high > c.low))

    def free(self) -> Array:
        """The variables that can be changed at all."""
        return self.where(
            lambda c: (
                (c.high > c.low) | (c.gaps & ~np.isnan(c.values.astype(np.float64)).all(axis=0))
                if c.is_number and c.values.dtype.kind != "b"
                else c.values.min(axis=0) < c.values.max(axis=0)
            )
        )

    def where(self, holds: Callable[[Column], Array]) -> Array:
        """The variables of which something holds, told for each element of a column."""
        return np.flatnonzero(np.concatenate([np.zeros(0, bool), *map(holds, self.columns)]))

    def rewritten(self, rows: Rows, at: Array, variables: Array, draw: Draw) -> Rows:
        """The rows with new values: request i changes variable `variables[i]` of row `at[i]`."""
        cells = dict(rows.cells)
        for column, elements, here in self._by_column(variables):
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
        for column, elements, here in self._by_column(variables):
            cells[column.name] = cells[column.name].copy()
            cells[column.name][at[here], elements] = column.values[donors[here], elements]
        return Rows(rows.base, cells)

    def spans(self, variables: Array) -> Array:
        """The ranges of variables that are numbers."""
        found = np.empty(len(variables))
        for column, elements, here in self._by_column(variables):
            found[here] = column.high[elements].astype(np.float64) - column.low[elements].astype(np.float64)
        return found

    def as_numbers(self, rows: Rows, variables: Array) -> Array:
        """The values of variables that are numbers, one line a row, as float64."""
        found = np.empty((len(rows), len(variables)))
        for column, elements, here in self._by_column(variables):
            found[:, here] = rows.cells[column.name][:, elements]
        return found

    def differs(self, rows: Rows, others: Rows) -> Array:
        """Which variables of each row differ from the row at the same place, or from the only one."""
        parts = [np.zeros((len(others), 0), bool)]
        for one, other in ((rows.cells[column.name], others.cells[column.name]) for column in self.columns):
            unlike = one != other
            parts.append(unlike & ~(np.isnan(one) & np.isnan(other)) if one.dtype.kind == "f" else unlike)
        return np.concatenate(parts, axis=1)

    def _by_column(self, variables: Array) -> Iterator[tuple[Column, Array, Array]]:
        """Each column with the elements that are meant, and where these stand among the variables."""
        owners = self.owner[variables]
        for number in np.unique(owners).tolist():
            here = np.flatnonzero(owners == number)
            yield self.columns[number], self.element[variables[here]], here


def space_of(columns: Sequence[Column]) -> Space:
    """The variables of some columns."""
    widths = [column.width for column in columns]
    element = np.concatenate([np.zeros(0, np.int64), *map(np.arange, widths)])
    return Space(tuple(columns), np.repeat(np.arange(len(columns)), widths), element)


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
    truth, floating = values.dtype.kind == "b", values.dtype.kind == "f"
    finite = np.isfinite(looked_at) if floating else np.ones(looked_at.shape, bool)
    gaps = np.isnan(looked_at).any(axis=0) if floating else np.zeros(looked_at.shape[1], bool)
    low, high = _ends(looked_at, finite)
    whole = ~(floating & (finite & (looked_at != np.round(looked_at))).any(axis=0))
    listed = np.full(len(low), truth)
    if not truth and len(low) <= MOST_LISTED:
        listed = whole & np.array([len(np.unique(looked_at[finite[:, e], e])) <= FEW for e in range(len(low))])
    if widen and not truth:
        low, high = _widened(low, high, whole & ~listed, ~listed, widen, values.dtype)
    bounds = [np.broadcast_to(entry, width) for entry in (low, high, whole, gaps, listed)]
    return Column(name, values, tuple(array.shape[1:]), *bounds)


def choice_column(name: str, codes: Array, places: Array) -> Column:
    """A column whose values can only be exchanged for one another."""
    no = np.zeros(1, bool)
    return Column(
        name, codes.reshape(-1, 1), (), np.zeros(1, np.int64), np.array([len(places) - 1]), ~no, no, no, places
    )


def _ends(values: Array, finite: Array) -> tuple[Array, Array]:
    """The smallest and the largest number of each element; zero where there is none."""
    if values.dtype.kind != "f":
        return values.min(axis=0), values.max(axis=0)
    low, high = np.where(finite, values, np.inf).min(axis=0), np.where(finite, values, -np.inf).max(axis=0)
    some = finite.any(axis=0)
    return np.where(some, low, 0).astype(values.dtype), np.where(some, high, 0).astype(values.dtype)


def _widened(low: Array, high: Array, whole: Array, able: Array, share: float, dtype: np.dtype) -> tuple[Array, Array]:
    reach = (high.astype(np.float64) - low.astype(np.float64)) * share
    reach = np.where(able, np.where(whole, np.floor(reach), reach), 0.0)
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    wider = [
        _as_type(np.clip(end.astype(np.float64) + by, limits.min, limits.max), dtype)
        for end, by in ((low, -reach), (high, reach))
    ]
    return np.where(able, wider[0], low), np.where(able, wider[1], high)


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
