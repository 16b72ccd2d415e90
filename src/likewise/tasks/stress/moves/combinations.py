"""Several columns at once: categories exchanged, notable values paired, rows crossed with one another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from likewise.contracts.data import Array
from likewise.tasks.stress.search import Move, Search, Turn
from likewise.tasks.stress.space import Column, Rows, Space, together

MOST_POINTS = 700
"""Notable values that are paired; of more, some are drawn."""

MOST_VALUES = 96
"""Values of one category that are paired: the rarest."""

PAIRS_A_ROW = 3
"""Pairs that one row may hold, if they are of different columns."""

MOST_MIXED = 4_096
"""Variables up to which each is exchanged by itself; beyond, whole blocks are another move's business."""

ROWS_LOOKED_AT = 4_096
"""Real rows in which pairs of values are looked for."""


def _categories(search: Search) -> Turn | None:
    """One category of a row, or all of them, exchanged for others that were observed, rare ones as often as common."""
    space, random = search.space, search.random
    few = space.where(lambda c: c.listed | c.gaps if c.places is None else np.full(1, len(c.places) > 1))
    able = np.intersect1d(few, space.free())

    def turn() -> None:
        rows = search.parents(search.count)
        chosen = np.zeros((len(rows), len(able)), dtype=bool)
        chosen[np.arange(len(rows)), random.integers(0, len(able), len(rows))] = True
        # Every third row exchanges many at once: what goes wrong in one combination is seen in no single column.
        chosen[::3] |= random.random(chosen[::3].shape) < 0.7
        at, which = np.nonzero(chosen)

        def draw(column: Column, elements: Array, now: Array, here: Array) -> Array:
            return _other(column, elements, random)

        search.measure(space.rewritten(rows, at, able[which], draw))

    return turn if len(able) else None


def _other(column: Column, elements: Array, random: np.random.Generator) -> Array:
    found = column.observed(elements, random)
    if column.places is not None:
        return found
    for element in np.unique(elements[column.listed[elements]]).tolist():
        here = np.flatnonzero(elements == element)
        known = np.unique(column.values[:, element])
        found[here] = known[random.integers(0, len(known), len(here))]
    missing = column.gaps[elements] & (random.random(len(elements)) < 0.5)
    return np.where(missing, np.nan, found) if missing.any() else found


@dataclass(slots=True)
class _Tour:
    """Notable values, the pairs of them in the order in which they are tried, and how far that is."""

    variables: Array
    values: Array
    order: Array
    place: int = 0


def _pairs(search: Search) -> Turn | None:
    """Notable values of two columns that no real row has together: ends of ranges, rare categories, missing, zero.

    Most faults that single columns do not show need two conditions. Pairs are gone through one after the
    other, so that each is tried once before any is tried twice.
    """
    tour: _Tour | None = None

    def turn() -> None:
        nonlocal tour
        tour = tour or _tour(search)
        if tour.place >= len(tour.order):
            search.random.shuffle(tour.order)
            tour.place = 0
        at, points = _packed(tour, search.count)
        if len(at):
            rows = search.parents(int(at[-1]) + 1)
            search.measure(search.space.assigned(rows, at, tour.variables[points], tour.values[points]))

    return turn if len(search.space.free()) > 1 else None


def _packed(tour: _Tour, count: int) -> tuple[Array, Array]:
    """The next pairs, a few of different columns to a row: which row, and which point."""
    at: list[int] = []
    points: list[int] = []
    for row in range(count):
        used: set[int] = set()
        while tour.place < len(tour.order) and len(used) < 2 * PAIRS_A_ROW:
            pair = tour.order[tour.place].tolist()
            owners = set(tour.variables[pair].tolist())
            if used & owners:
                break
            used |= owners
            at += [row, row]
            points += pair
            tour.place += 1
    return np.array(at, dtype=np.int64), np.array(points, dtype=np.int64)


def _tour(search: Search) -> _Tour:
    """All pairs of points of different variables that no real row holds, in random order."""
    variables, values = _points(search.space, search.random)
    held = _held(search.space, variables, values)
    one, other = np.triu_indices(len(variables), 1)
    together = (held @ held.T) > 0
    new = (variables[one] != variables[other]) & ~together[one, other]
    order = np.stack([one[new], other[new]], axis=1)
    search.random.shuffle(order)
    return _Tour(variables, values, order)


def _points(space: Space, random: np.random.Generator) -> tuple[Array, Array]:
    """Variables and their notable values."""
    variables: list[int] = []
    values: list[float] = []
    free = space.free()
    if len(free) > MOST_POINTS // 3:
        free = np.sort(random.choice(free, MOST_POINTS // 3, replace=False))
    for variable in free.tolist():
        found = _notable(*space.column(variable))
        variables += [variable] * len(found)
        values += found
    chosen = np.arange(len(variables))
    if len(chosen) > MOST_POINTS:
        chosen = np.sort(random.choice(chosen, MOST_POINTS, replace=False))
    return np.array(variables, dtype=np.int64)[chosen], np.array(values, dtype=np.float64)[chosen]


def _notable(column: Column, element: int) -> list[float]:
    present = column.values[:, element]
    if column.places is not None or column.listed[element] or present.dtype.kind == "b":
        known, counts = np.unique(present[~_missing(present)], return_counts=True)
        found = known[np.argsort(counts, kind="stable")][:MOST_VALUES].astype(np.float64).tolist()
    else:
        low, high = float(column.low[element]), float(column.high[element])
        found = [low, high]
        if low < 0 < high:
            found.append(0.0)
        finite = present[np.isfinite(present.astype(np.float64))].astype(np.float64)
        found += [float(value) for value in np.quantile(finite, [0.01, 0.5, 0.99])]
        if column.whole[element]:
            found = [float(np.round(value)) for value in found]
        found = list(dict.fromkeys(found))
    return [*found, float("nan")] if column.gaps[element] else found


def _missing(values: Array) -> Array:
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)


def _held(space: Space, variables: Array, values: Array) -> Array:
    """Which real rows hold which point, one line a point."""
    held = []
    for variable, value in zip(variables.tolist(), values.tolist(), strict=True):
        column, element = space.column(variable)
        present = column.values[:ROWS_LOOKED_AT, element]
        held.append(_missing(present) if value != value else present == value)
    return np.array(held, dtype=np.float32)


def _mixing(search: Search) -> Turn | None:
    """Several values of a row crossed with real rows and with the worst, or moved along the differences of two."""
    numbers = search.space.numbers()

    def turn() -> None:
        count = search.count
        rows = search.parents(count)
        third = count // 3
        crossed = _crossed(search, rows.take(np.arange(third)), _real(search, third))
        married = _crossed(search, rows.take(np.arange(third, 2 * third)), _elites(search, third))
        moved = _moved(search, rows.take(np.arange(2 * third, count)), numbers)
        search.measure(together([crossed, married, moved]))

    return turn if 1 < search.space.variables <= MOST_MIXED else None


def _real(search: Search, count: int) -> Rows:
    return search.space.real(search.random.integers(0, len(search.pool), count))


def _elites(search: Search, count: int) -> Rows:
    return search.elites.rows.take(search.random.integers(0, len(search.elites), count))


def _crossed(search: Search, rows: Rows, others: Rows) -> Rows:
    """Each row with some values of another: two, a few, or half of them."""
    space, random = search.space, search.random
    share = np.clip(2.0 ** random.uniform(0.5, np.log2(space.variables), len(rows)) / space.variables, 0, 0.9)
    taken = random.random((len(rows), space.variables)) < share[:, None]
    cells, start = {}, 0
    for column in space.columns:
        mask = taken[:, start : start + column.width]
        cells[column.name] = np.where(mask, others.cells[column.name], rows.cells[column.name])
        start += column.width
    return Rows(rows.base, cells)


def _moved(search: Search, rows: Rows, numbers: Array) -> Rows:
    """Numbers moved along the difference of two other rows, as differential evolution does."""
    space, random = search.space, search.random
    if not len(numbers):
        return _crossed(search, rows, _real(search, len(rows)))
    one, other = _elites(search, len(rows)), _real(search, len(rows))
    chosen = random.random((len(rows), len(numbers))) < random.uniform(0.1, 0.9, (len(rows), 1))
    chosen[np.arange(len(rows)), random.integers(0, len(numbers), len(rows))] = True
    at, which = np.nonzero(chosen)
    factor = random.choice([-1.0, -0.5, -0.1, 0.1, 0.5, 1.0, 1.5], len(rows))[at]

    def draw(column: Column, elements: Array, now: Array, here: Array) -> Array:
        apart = one.cells[column.name][at[here], elements].astype(np.float64)
        apart = apart - other.cells[column.name][at[here], elements]
        found: Array = now + factor[here] * np.where(np.isfinite(apart), apart, 0.0)
        return found

    return space.rewritten(rows, at, numbers[which], draw)


EXTENSIONS = (Move("categories", _categories), Move("pairs", _pairs), Move("mixing", _mixing))
