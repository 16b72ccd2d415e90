"""Categories exchanged for others that were observed, rare ones as often as common ones; missing where it was."""

from __future__ import annotations

import numpy as np

from likewise.contracts.data import Array
from likewise.stressing.searching import Search
from likewise.stressing.space import Column, Space


class Categories:
    """Exchanges one category a row, or all of them."""

    name = "categories"

    def applies(self, search: Search) -> bool:
        return len(_able(search.space)) > 0

    def turn(self, search: Search) -> None:
        space, random = search.space, search.random
        able = search.memory.setdefault("categories", _able(space))
        rows = search.parents(search.count)
        chosen = np.zeros((len(rows), len(able)), dtype=bool)
        chosen[np.arange(len(rows)), random.integers(0, len(able), len(rows))] = True
        # Every third row exchanges many at once: what goes wrong in one combination is seen in no single column.
        chosen[::3] |= random.random(chosen[::3].shape) < 0.7
        at, which = np.nonzero(chosen)

        def draw(column: Column, elements: Array, now: Array, here: Array) -> Array:
            return _other(column, elements, random)

        search.measure(space.rewritten(rows, at, able[which], draw))


def _able(space: Space) -> Array:
    """Variables that take one of a few values, or that may be missing."""
    found = [
        np.full(1, len(column.places) > 1) if column.places is not None else (column.listed | column.gaps)
        for column in space.columns
    ]
    marked = np.flatnonzero(np.concatenate(found)) if found else np.zeros(0, np.int64)
    return np.intersect1d(marked, space.free())


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


EXTENSION = Categories()
