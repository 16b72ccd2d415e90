"""Along the slope of the difference itself: each number is moved a little, and then all of them where it grew."""

from __future__ import annotations

import numpy as np

from likewise.contracts.data import Array
from likewise.tasks.stress.search import Search
from likewise.tasks.stress.space import Rows

LENGTHS = 2.0 ** -np.arange(0.0, 12.0)
"""Steps along the slope, in units of the range of the steepest number."""


MOST_STARTS = 8
"""Rows whose slopes are measured in one call."""


class Slopes:
    """Measures the slope at some of the worst rows, then goes up it."""

    name = "slopes"

    def applies(self, search: Search) -> bool:
        return len(search.space.numbers()) > 0

    def turn(self, search: Search) -> None:
        space, random = search.space, search.random
        able = search.memory.setdefault("numbers", space.numbers())
        if len(able) > search.count // 2:
            able = np.sort(random.choice(able, search.count // 2, replace=False))
        # As many of the worst rows at once as a turn has room for.
        several = max(1, min(search.count // len(able), MOST_STARTS))
        chosen = np.minimum(random.exponential(4.0, several).astype(int), len(search.elites) - 1)
        parents, before = search.elites.rows.take(chosen), search.elites.severity[chosen]
        span, tiny = space.spans(able), 10.0 ** random.uniform(-5, -1, several)
        there = space.as_numbers(parents, able)
        known = np.isfinite(there)
        sign = np.where(random.random(there.shape) < 0.5, -1.0, 1.0) * known
        steps = np.concatenate([np.diag(sign[n] * tiny[n] * span) for n in range(several)])
        starts = np.repeat(np.where(known, there, np.nan), len(able), axis=0)
        found = search.measure(_moved(search, parents, np.repeat(np.arange(several), len(able)), able, starts + steps))
        with np.errstate(invalid="ignore"):
            slope = sign * (found.severity.reshape(several, -1) - before[:, None]) / tiny[:, None]
        slope[~np.isfinite(slope) | (found.refused.reshape(several, -1) != 0)] = 0.0
        rising = np.flatnonzero(slope.any(axis=1))
        if not len(rising):
            return
        ways = [_along(slope[n]) for n in rising.tolist()]
        at = np.repeat(rising, [len(way) for way in ways])
        search.measure(_moved(search, parents, at, able, there[at] + np.concatenate(ways) * span))


def _along(slope: Array) -> Array:
    """Points up the slope: by its size, by its direction alone, and by its few steepest numbers."""
    steep = slope / np.abs(slope).max()
    order = np.argsort(-np.abs(slope), kind="stable")
    few = [np.where(np.isin(np.arange(len(slope)), order[:kept]), np.sign(slope), 0.0) for kept in (1, 2, 4, 8)]
    ways = [steep, np.sign(slope), *few[: max(1, min(4, len(slope)))]]
    return np.concatenate([way * length for way in ways for length in LENGTHS]).reshape(-1, len(slope))


def _moved(search: Search, parents: Rows, which: Array, variables: Array, values: Array) -> Rows:
    """Rows of some parents with other numbers; what is not finite stays as it is."""
    at, column = np.nonzero(np.isfinite(values))
    return search.space.assigned(parents.take(which), at, variables[column], values[at, column])


EXTENSION = Slopes()
