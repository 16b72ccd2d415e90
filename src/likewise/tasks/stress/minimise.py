"""The worst input with the fewest changes: values are put back as long as the difference stays.

Where many values changed, groups of them are put back first. All attempts of a round are one call.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from likewise.contracts.data import Array
from likewise.tasks.stress.search import Ranked, Search, SpentError, of_call
from likewise.tasks.stress.space import Rows

STAYS = 0.9
"""The part of the difference that must be left."""

GROUPS, MOST_GROUPS = 48, 256
"""Groups of values that are put back in one call, first and where none of them can be."""


def minimised(search: Search, row: Ranked) -> Ranked:
    """The row nearest to a real one that is still nearly as bad, and no less bad than every real one if it was."""
    severity = row.worst
    best = replace(row, rows=_rebased(search, row.rows))
    needed = severity if math.isinf(severity) else max(STAYS * severity, min(severity, search.start.worst))
    try:
        groups = GROUPS
        while len(changed := changes(search, best.rows)):
            parts = np.array_split(changed, min(groups, len(changed)))
            found = _put_back(search, best, parts, needed)
            if found is not None:
                best = found
            elif len(parts) == len(changed) or groups >= MOST_GROUPS:
                break
            else:
                groups = min(4 * groups, MOST_GROUPS)
    except SpentError:
        pass
    return best


def changes(search: Search, row: Rows) -> Array:
    """The variables in which a row differs from the real row it began as."""
    return np.flatnonzero(search.space.differs(row, search.space.real(row.base))[0])


def _put_back(search: Search, best: Ranked, parts: list[Array], needed: float) -> Ranked | None:
    """The best attempt of a round: each group alone, then as many together as go; None if none goes."""
    tried = _without(search, best.rows, parts)
    found = search.measure(tried)
    good = _good(found.severity, found.beyond, best, needed)
    order = np.flatnonzero(good)[np.argsort(-found.severity[good], kind="stable")]
    if not len(order):
        return None
    single = of_call(tried, found).take(order[:1])
    if len(order) == 1:
        return single
    prefixes = [
        np.concatenate([parts[place] for place in order[: length + 1].tolist()]) for length in range(len(order))
    ]
    tried = _without(search, best.rows, prefixes)
    found = search.measure(tried)
    held = np.flatnonzero(_good(found.severity, found.beyond, best, needed))
    if not len(held):
        return single
    return of_call(tried, found).take(held[-1:])


def _good(severity: Array, beyond: Array, best: Ranked, needed: float) -> Array:
    """A row that was beyond the tolerance has to stay beyond it."""
    good: Array = (severity >= needed) & (beyond | ~best.beyond[0])
    return good


def _without(search: Search, row: Rows, parts: list[Array]) -> Rows:
    """One row an attempt, with one group of values put back."""
    rows = row.take(np.zeros(len(parts), dtype=np.int64))
    at = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    variables = np.concatenate(parts)
    return search.space.copied(rows, at, variables, rows.base[at])


def _rebased(search: Search, row: Rows) -> Rows:
    """The same row, told as a change of the real row that it shares most values with."""
    space = search.space
    unlike = np.zeros(len(search.pool), dtype=np.int64)
    for column in space.columns:
        cells, values = row.cells[column.name], column.values
        differs = values != cells
        if values.dtype.kind == "f":
            differs &= ~(np.isnan(values) & np.isnan(cells))
        unlike += differs.sum(axis=1)
    nearest = int(np.argmin(unlike))
    return row if unlike[nearest] >= unlike[int(row.base[0])] else Rows(np.array([nearest]), row.cells)
