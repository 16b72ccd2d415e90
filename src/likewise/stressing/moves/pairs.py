"""Notable values of two columns together that no real row has: ends of ranges, rare categories, missing, zero.

Most faults that single columns do not show need two conditions. Pairs are gone through one after the
other, so that each is tried once before any is tried twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from likewise.contracts.data import Array
from likewise.stressing.searching import Search
from likewise.stressing.space import Column, Space

MOST_POINTS = 700
"""Notable values that are paired; of more, some are drawn."""

MOST_VALUES = 96
"""Values of one category that are paired: the rarest."""


PAIRS_A_ROW = 3
"""Pairs that one row may hold, if they are of different columns."""


@dataclass(slots=True)
class _Tour:
    """Notable values, the pairs of them in the order in which they are tried, and how far that is."""

    variables: Array
    values: Array
    order: Array
    place: int = 0


class Pairs:
    """Gives two columns notable values, and others too where a row has room."""

    name = "pairs"

    def applies(self, search: Search) -> bool:
        return len(search.space.free()) > 1

    def turn(self, search: Search) -> None:
        if "pairs" not in search.memory:
            search.memory["pairs"] = _tour(search)
        tour: _Tour = search.memory["pairs"]
        if tour.place >= len(tour.order):
            search.random.shuffle(tour.order)
            tour.place = 0
        at, points = _packed(tour, search.count)
        if not len(at):
            return
        rows = search.parents(int(at[-1]) + 1)
        search.measure(search.space.assigned(rows, at, tour.variables[points], tour.values[points]))


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
    together = (held.astype(np.float32) @ held.T.astype(np.float32)) > 0
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
        column = space.columns[int(space.owner[variable])]
        found = _notable(column, int(space.element[variable]))
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
    held = np.zeros((len(variables), min(space.rows, 4_096)), dtype=bool)
    for place, (variable, value) in enumerate(zip(variables.tolist(), values.tolist(), strict=True)):
        column = space.columns[int(space.owner[variable])]
        present = column.values[: held.shape[1], int(space.element[variable])]
        held[place] = _missing(present) if value != value else present == value
    return held


EXTENSION = Pairs()
