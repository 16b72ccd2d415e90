"""Several columns at once: categories exchanged, rows crossed, numbers and tensors moved together."""

from __future__ import annotations

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.values import dataclass
from likewise.tasks.stress.moves import Move, Search, Turn
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
        found = search.measure(_placed(search, parents, np.repeat(np.arange(several), len(able)), able, starts + steps))
        with np.errstate(invalid="ignore"):
            slope = sign * (found.severity.reshape(several, -1) - before[:, None]) / tiny[:, None]
        slope[~np.isfinite(slope) | (found.refused.reshape(several, -1) != 0)] = 0.0
        rising = np.flatnonzero(slope.any(axis=1))
        if not len(rising):
            return
        ways = [_along(slope[n]) for n in rising.tolist()]
        at = np.repeat(rising, [len(way) for way in ways])
        search.measure(_placed(search, parents, at, able, there[at] + np.concatenate(ways) * span))

    return turn if len(numbers) else None


def _along(slope: Array) -> Array:
    """Points up the slope: by its size, by its direction alone, and by its few steepest numbers."""
    steep = slope / np.abs(slope).max()
    order = np.argsort(-np.abs(slope), kind="stable")
    few = [np.where(np.isin(np.arange(len(slope)), order[:kept]), np.sign(slope), 0.0) for kept in (1, 2, 4, 8)]
    ways = [steep, np.sign(slope), *few[: max(1, min(4, len(slope)))]]
    return np.concatenate([way * length for way in ways for length in LENGTHS]).reshape(-1, len(slope))


def _placed(search: Search, parents: Rows, which: Array, variables: Array, values: Array) -> Rows:
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


EXTENSIONS = (
    Move("categories", _categories),
    Move("pairs", _pairs),
    Move("mixing", _mixing),
    Move("numbers", _numbers),
    Move("slopes", _slopes),
    Move("tensors", _tensors),
)
