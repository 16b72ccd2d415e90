"""Vectors, images and sequences: blocks of another row, shifts, other brightness and contrast, noise."""

from __future__ import annotations

import numpy as np

from likewise.contracts.data import Array
from likewise.tasks.stress.search import Search
from likewise.tasks.stress.space import Column, Rows

SMALLEST = 8
"""Elements from which a cell is a tensor and not a handful of columns."""


class Tensors:
    """Changes regions of the cells of one column."""

    name = "tensors"

    def applies(self, search: Search) -> bool:
        return bool(_able(search))

    def turn(self, search: Search) -> None:
        rows, random = search.parents(search.count), search.random
        cells = dict(rows.cells)
        columns = _able(search)
        owners = random.integers(0, len(columns), len(rows))
        for number, column in enumerate(columns):
            here = np.flatnonzero(owners == number)
            if not len(here):
                continue
            array = cells[column.name].copy()
            for position in here.tolist():
                array[position] = _changed(column, array[position], random)
            cells[column.name] = array
        search.measure(Rows(rows.base, cells))


def _able(search: Search) -> list[Column]:
    return [column for column in search.space.columns if column.is_number and column.width >= SMALLEST]


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


EXTENSION = Tensors()
