"""Values on the thresholds of trees, and the next ones on either side: ≤ and < part there."""

from __future__ import annotations

import math
from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.structure.trees.cuts import Cut
from likewise.suiting import FLOAT, Cell, holds, holds_whole, kind, nearest_row, placed
from likewise.tree_cuts import cuts_seen, field_at

NEAR = 1e-3
"""A scaled threshold so near a whole number is left to the suite on rounding."""


class TreeThresholds:
    """Read from the model, where it is made of trees that see a column as it is.

    The values are float32 numbers, which every runtime holds exactly: rounding is no excuse here. Of a column
    of whole numbers, also a scaled one, they are the whole numbers on both sides.
    """

    name = "tree-thresholds"
    title = "Values on a tree's threshold, and the float32 numbers next to it on either side"

    def batches(self, seen: Seen) -> Iterator[Batch]:
        cells = [cell for cut in cuts_seen(seen) for cell in _around(seen, cut)]
        if cells:
            yield placed(seen, cells)


def _around(seen: Seen, cut: Cut) -> Iterator[Cell]:
    field = field_at(cut)
    whole = holds_whole(seen, field)
    if not whole and not cut.direct:
        return
    if whole and not cut.direct and abs(cut.value - round(cut.value)) < NEAR:
        return
    row = nearest_row(seen, field, cut.value)
    for number, where in _whole(cut.value) if whole else _single(cut.value):
        value = float(number) if kind(seen, field) == FLOAT else number
        if holds(seen.batch.inputs[field.column].dtype, value):
            yield Cell(row, field, value, f"{field.name} = {value!r}, {where} {cut.where}")


def _whole(threshold: float) -> Iterator[tuple[int, str]]:
    below = math.floor(threshold)
    if below == threshold:
        yield below, "on the threshold of"
        yield below - 1, "below the threshold of"
    else:
        yield below, "below the threshold of"
    yield below + 1, "above the threshold of"


def _single(threshold: float) -> Iterator[tuple[float, str]]:
    import numpy as np

    with np.errstate(over="ignore"):
        nearest = np.float32(threshold)
    if not np.isfinite(nearest):
        return
    lower, upper = (float(np.nextafter(nearest, np.float32(end))) for end in (-np.inf, np.inf))
    # As a float64: numpy would round the threshold to compare it with a float32.
    exact = float(nearest)
    if exact == threshold:
        yield exact, "on the threshold of"
    yield lower if exact >= threshold else exact, "below the threshold of"
    yield upper if exact <= threshold else exact, "above the threshold of"


EXTENSION = TreeThresholds()
