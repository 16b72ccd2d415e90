"""Several columns at once: crossed with real rows and with one another, and moved along their differences."""

from __future__ import annotations

import numpy as np

from likewise.contracts.data import Array
from likewise.stressing.searching import Search
from likewise.stressing.space import Column, Rows, together

MOST = 4_096
"""Variables up to which each is exchanged by itself; beyond, whole blocks are another move's business."""


class Mixing:
    """Exchanges several values a row at the same time."""

    name = "mixing"

    def applies(self, search: Search) -> bool:
        return 1 < search.space.variables <= MOST

    def turn(self, search: Search) -> None:
        count = search.count
        rows = search.parents(count)
        third = count // 3
        crossed = _crossed(search, rows.take(np.arange(third)), _real(search, third))
        married = _crossed(search, rows.take(np.arange(third, 2 * third)), _elites(search, third))
        moved = _moved(search, rows.take(np.arange(2 * third, count)))
        search.measure(together([crossed, married, moved]))


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


def _moved(search: Search, rows: Rows) -> Rows:
    """Numbers moved along the difference of two other rows, as differential evolution does."""
    space, random = search.space, search.random
    numbers = search.memory.setdefault("numbers", space.numbers())
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


EXTENSION = Mixing()
