"""One number changed: another row's value, one between, an end of the range, the next float, a landmark."""

from __future__ import annotations

import numpy as np

from likewise.contracts.data import Array
from likewise.tasks.stress.search import Search
from likewise.tasks.stress.space import Column

POWERS = 2.0 ** np.array([0, 7, 8, 11, 15, 16, 24, 31, 32, 53])
LANDMARKS = np.concatenate([[0.0, -1.0, 0.5, 65504.0], POWERS, POWERS - 1, POWERS + 1])
"""Where types end, or stop to hold every whole number."""

SMALLEST_STEP = 8.0
"""Local steps go from the whole range down to so many powers of ten less."""


class Numbers:
    """Changes one number a row."""

    name = "numbers"

    def applies(self, search: Search) -> bool:
        return len(search.space.numbers()) > 0

    def turn(self, search: Search) -> None:
        space, random = search.space, search.random
        able = search.memory.setdefault("numbers", space.numbers())
        rows = search.parents(search.count)
        variables = able[random.integers(0, len(able), len(rows))]

        def draw(column: Column, elements: Array, now: Array, here: Array) -> Array:
            return fresh(column, elements, now, random)

        search.measure(space.rewritten(rows, np.arange(len(rows)), variables, draw))


def fresh(column: Column, elements: Array, now: Array, random: np.random.Generator) -> Array:
    """New numbers, each by a tactic of its own."""
    other = column.observed(elements, random)
    if column.values.dtype.kind == "b":
        return ~now
    count = len(elements)
    value, target = now.astype(np.float64), other.astype(np.float64)
    low, high = column.low[elements].astype(np.float64), column.high[elements].astype(np.float64)
    span = np.where(high > low, high - low, 1.0)
    value = np.where(np.isfinite(value), value, target)
    value = np.where(np.isfinite(value), value, low)
    tactic = random.integers(0, 8, count)
    step = span * 10.0 ** -random.uniform(0, SMALLEST_STEP, count) * random.standard_normal(count)
    mark = LANDMARKS[random.integers(0, len(LANDMARKS), count)]
    within = (mark >= low) & (mark <= high)
    found: Array = np.select(
        [tactic == number for number in range(1, 7)],
        [
            value + (target - value) * random.random(count),
            np.where(random.random(count) < 0.5, low, high),
            value + np.where(column.whole[elements], np.sign(step) * np.maximum(np.abs(step), 1.0), step),
            value + _last_digits(value, random),
            np.where(within, mark, value + _last_digits(value, random)),
            np.where(column.gaps[elements], np.nan, low + span * random.random(count)),
        ],
        default=target,
    )
    return found


def _last_digits(value: Array, random: np.random.Generator) -> Array:
    """A few units in the last place, of a double or of a float."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = np.spacing(np.abs(value).astype(np.float32)).astype(np.float64)
        unit = np.where(random.random(len(value)) < 0.5, np.spacing(np.abs(value)), np.nan_to_num(single, posinf=0.0))
    steps = random.integers(1, 4, len(value)) * np.where(random.random(len(value)) < 0.5, -1, 1)
    return unit * steps


EXTENSION = Numbers()
