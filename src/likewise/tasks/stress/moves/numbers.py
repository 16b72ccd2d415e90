"""Numbers changed: one alone, all of them along the slope of the difference, or regions of a tensor."""

from __future__ import annotations

import numpy as np

from likewise.contracts.data import Array
from likewise.tasks.stress.search import Move, Search, Turn
from likewise.tasks.stress.space import Column, Rows

POWERS = 2.0 ** np.array([0, 7, 8, 11, 15, 16, 24, 31, 32, 53])
LANDMARKS = np.concatenate([[0.0, -1.0, 0.5, 65504.0], POWERS, POWERS - 1, POWERS + 1])
"""Where types end, or stop to hold every whole number."""

SMALLEST_STEP = 8.0
"""Local steps go from the whole range down to so many powers of ten less."""

LENGTHS = 2.0 ** -np.arange(0.0, 12.0)
"""Steps along the slope, in units of the range of the steepest number."""

MOST_STARTS = 8
"""Rows whose slopes are measured in one call."""

SMALLEST_TENSOR = 8
"""Elements from which a cell is a tensor and not a handful of columns."""


def _numbers(search: Search) -> Turn | None:
    """One number of each row: another row's value, one between, an end of the range, the next float, a landmark."""
    space, random = search.space, search.random
    able = space.numbers()

    def turn() -> None:
        rows = search.parents(search.count)
        variables = able[random.integers(0, len(able), len(rows))]

        def draw(column: Column, elements: Array, now: Array, here: Array) -> Array:
            return _fresh(column, elements, now, random)

        search.measure(space.rewritten(rows, np.arange(len(rows)), variables, draw))

    return turn if len(able) else None


def _fresh(column: Column, elements: Array, now: Array, random: np.random.Generator) -> Array:
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


def _slopes(search: Search) -> Turn | None:
    """Each number of some of the worst rows is moved a little, and then all of them where the difference grew."""
    space, random = search.space, search.random
    numbers = space.numbers()

    def turn() -> None:
        able = numbers
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

    return turn if len(numbers) else None


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


def _tensors(search: Search) -> Turn | None:
    """Regions of vectors, images and sequences: of another row, shifted, brighter, noisy, saturated."""
    random = search.random
    columns = [column for column in search.space.columns if column.is_number and column.width >= SMALLEST_TENSOR]

    def turn() -> None:
        rows = search.parents(search.count)
        cells = dict(rows.cells)
        owners = random.integers(0, len(columns), len(rows))
        for number, column in enumerate(columns):
            array = cells[column.name].copy()
            for position in np.flatnonzero(owners == number).tolist():
                array[position] = _changed(column, array[position], random)
            cells[column.name] = array
        search.measure(Rows(rows.base, cells))

    return turn if columns else None


def _changed(column: Column, cell: Array, random: np.random.Generator) -> Array:
    elements = np.arange(column.width)
    tactic = int(random.integers(0, 6))
    other: Array = column.values[int(random.integers(0, len(column.values)))]
    region = _region(column.shape, random)
    if tactic == 0 or column.values.dtype.kind == "b":
        return np.where(region, other, cell)
    if tactic == 1:
        return column.conform(np.where(region, np.roll(cell, int(random.integers(1, column.width))), cell), elements)
    low, high = column.low.astype(np.float64), column.high.astype(np.float64)
    span, value = high - low, cell.astype(np.float64)
    if not np.isfinite(value).any():
        return other
    if tactic == 2:
        end = high if random.random() < 0.5 else low
        return column.conform(np.where(region, end, value), elements)
    if tactic == 3:
        middle, factor = float(value[np.isfinite(value)].mean()), 2.0 ** random.uniform(-3, 3)
        return column.conform(middle + (value - middle) * factor + span * random.normal(0, 0.2), elements)
    if tactic == 4:
        noise = random.standard_normal(column.width) * 10.0 ** random.uniform(-4, 0)
        return column.conform(np.where(region, value + span * noise, value), elements)
    # Every element at one end or the other: what saturates somewhere saturates here.
    ends = np.where(random.random(column.width) < 0.5, low, high)
    return column.conform(np.where(region, ends, value), elements)


def _region(shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """A block, as large as the cell or as small as one element, as one flat mask."""
    mask = np.zeros(shape, dtype=bool)
    window = []
    for size in shape:
        length = max(1, int(size * random.random() ** 2 + 0.5)) if random.random() < 0.8 else size
        start = int(random.integers(0, size - length + 1))
        window.append(slice(start, start + length))
    mask[tuple(window)] = True
    return mask.reshape(-1)


EXTENSIONS = (Move("numbers", _numbers), Move("slopes", _slopes), Move("tensors", _tensors))
