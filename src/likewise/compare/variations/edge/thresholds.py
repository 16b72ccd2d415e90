"""The thresholds that a suite may aim at: those of the first of both models whose trees can be read.

Values so near a tree's threshold that rounding to float32 decides where they go.

Values on the thresholds of trees, and the next ones on either side: ≤ and < part there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from likewise.compare.variations.made_rows import (
    FLOAT,
    INTEGER,
    Cell,
    all_features,
    holds,
    holds_whole,
    kind,
    nearest_row,
    placed,
)
from likewise.contracts.comparison import Seen
from likewise.contracts.data import Batch
from likewise.data.cells import Field
from likewise.models.trees.cuts import Cut, cuts

MOST = 96
"""Thresholds that are aimed at, those next to the roots first."""


def cuts_seen(seen: Seen) -> tuple[Cut, ...]:
    """Thresholds on numbers of the data; the reference's, or the candidate's where the reference cannot be read."""
    if "cuts" not in seen.memory:
        seen.memory["cuts"] = _cuts(seen)
    found: tuple[Cut, ...] = seen.memory["cuts"]
    return found


def _cuts(seen: Seen) -> tuple[Cut, ...]:
    known = {(field.column, field.index) for field in all_features(seen) if kind(seen, field) in (FLOAT, INTEGER)}
    for side, runner in seen.runners.items():
        found = cuts(runner.native, seen.fed.get(side, {}), most=MOST, seed=seen.seed)
        if usable := tuple(cut for cut in found if (cut.column, cut.index) in known):
            return usable
    return ()


def field_at(cut: Cut) -> Field:
    """The feature that a threshold asks about."""
    name = cut.column if cut.index is None else f"{cut.column}[{cut.index}]"
    return Field(cut.column, cut.index, name, 0)


class RoundedThresholds:
    """A model that takes or scales in float32 cannot tell these values apart: what it answers there is a coin's.

    The values are on the threshold and one float64 to either side; where the column is scaled on its way
    to the trees, those that are scaled to it.
    """

    name = "rounded-thresholds"
    title = "Values one float64 away from a tree's threshold, or scaled to it, which float32 cannot tell apart"

    def batches(self, seen: Seen) -> Iterator[Batch]:
        cells = [cell for cut in cuts_seen(seen) for cell in _around(seen, cut)]
        if cells:
            yield placed(seen, cells)


def _around(seen: Seen, cut: Cut) -> Iterator[Cell]:
    import numpy as np

    field = field_at(cut)
    wide = kind(seen, field) == FLOAT and seen.batch.inputs[field.column].dtype == np.float64
    if not wide or holds_whole(seen, field):
        return
    row = nearest_row(seen, field, cut.value)
    for value, where in (
        (np.nextafter(cut.value, -np.inf), "one float64 below"),
        (cut.value, "on"),
        (np.nextafter(cut.value, np.inf), "one float64 above"),
    ):
        yield Cell(row, field, float(value), f"{field.name} = {float(value)!r}, {where} the threshold of {cut.where}")


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
        cells = [cell for cut in cuts_seen(seen) for cell in _around_tree_thresholds(seen, cut)]
        if cells:
            yield placed(seen, cells)


def _around_tree_thresholds(seen: Seen, cut: Cut) -> Iterator[Cell]:
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


EXTENSIONS = (
    RoundedThresholds(),
    TreeThresholds(),
)
