"""Suites that aim at the thresholds of trees, those of the first of both models whose trees can be read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from likewise.compare.variations.edge.rows import FLOAT, INTEGER, all_features, kind, values_of
from likewise.contracts.comparison import Seen, Suite
from likewise.contracts.data import Batch
from likewise.contracts.values import dataclass
from likewise.data.cells import Edit, Field, edited, holds, named
from likewise.models.remote import look
from likewise.models.trees import thinkable

if TYPE_CHECKING:
    from likewise.models.trees.read import Cut

MOST = 96
"""Thresholds that are aimed at, those next to the roots first."""

NEAR = 1e-3
"""A scaled threshold so near a whole number is left to the suite on rounding."""

_FOUND: WeakKeyDictionary[Seen, tuple[Cut, ...]] = WeakKeyDictionary()
"""Trees are dear to read, and two suites ask for the same thresholds."""


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """One value for one feature of one of the first rows."""

    row: int
    field: Field
    value: float
    what: str


def _aimed(around: Callable[[Seen, Cut], Iterator[_Cell]], seen: Seen) -> Iterator[Batch]:
    """A row for every value around a threshold: a row as it was, with that one value in it."""
    if seen not in _FOUND:
        _FOUND[seen] = _cuts(seen)
    cells = [cell for cut in _FOUND[seen] for cell in around(seen, cut)]
    if cells:
        yield _placed(seen, cells)


def _cuts(seen: Seen) -> tuple[Cut, ...]:
    """Thresholds on numbers of the data; the reference's, or the candidate's where the reference cannot be read."""
    known = {(field.column, field.index) for field in all_features(seen) if kind(seen, field) in (FLOAT, INTEGER)}
    for side, runner in seen.runners.items():
        if not look(runner, thinkable):
            continue
        from likewise.models.trees.read import cuts

        found = look(runner, partial(cuts, fed=seen.fed.get(side, {}), most=MOST, seed=seen.seed))
        if usable := tuple(cut for cut in found if (cut.column, cut.index) in known):
            return usable
    return ()


def _rounded(seen: Seen, cut: Cut) -> Iterator[_Cell]:
    """A model that takes or scales in float32 cannot tell these values apart: what it answers there is a coin's.

    The values are on the threshold and one float64 to either side; where the column is scaled on its way
    to the trees, those that are scaled to it.
    """
    field = _field_at(cut)
    if seen.batch.inputs[field.column].dtype != np.float64 or _holds_whole(seen, field):
        return
    row = _nearest_row(seen, cut)
    for value, where in (
        (np.nextafter(cut.value, -np.inf), "one float64 below"),
        (cut.value, "on"),
        (np.nextafter(cut.value, np.inf), "one float64 above"),
    ):
        yield _Cell(row, field, float(value), f"{field.name} = {float(value)!r}, {where} the threshold of {cut.where}")


def _exact(seen: Seen, cut: Cut) -> Iterator[_Cell]:
    """Values on a threshold and next to it, where ≤ and < part.

    The values are float32 numbers, which every runtime holds exactly: rounding is no excuse here. Of a column
    of whole numbers, also a scaled one, they are the whole numbers on both sides.
    """
    field = _field_at(cut)
    whole = _holds_whole(seen, field)
    if not cut.direct and (not whole or abs(cut.value - round(cut.value)) < NEAR):
        return
    row = _nearest_row(seen, cut)
    for number, where in _whole(cut.value) if whole else _single(cut.value):
        value = float(number) if kind(seen, field) == FLOAT else number
        if holds(seen.batch.inputs[field.column].dtype, value):
            yield _Cell(row, field, value, f"{field.name} = {value!r}, {where} the threshold of {cut.where}")


def _whole(threshold: float) -> Iterator[tuple[int, str]]:
    below = math.floor(threshold)
    if below == threshold:
        yield below, "on"
        yield below - 1, "below"
    else:
        yield below, "below"
    yield below + 1, "above"


def _single(threshold: float) -> Iterator[tuple[float, str]]:
    with np.errstate(over="ignore"):
        nearest = np.float32(threshold)
    if not np.isfinite(nearest):
        return
    lower, upper = (float(np.nextafter(nearest, np.float32(end))) for end in (-np.inf, np.inf))
    # As a float64: numpy would round the threshold to compare it with a float32.
    exact = float(nearest)
    if exact == threshold:
        yield exact, "on"
    yield lower if exact >= threshold else exact, "below"
    yield upper if exact <= threshold else exact, "above"


def _field_at(cut: Cut) -> Field:
    """The feature that a threshold asks about."""
    return Field(cut.column, cut.index, cut.column if cut.index is None else f"{cut.column}[{cut.index}]", 0)


def _holds_whole(seen: Seen, field: Field) -> bool:
    """Does a feature hold whole numbers only, whatever its type? With gaps a table keeps them as float64."""
    observed = values_of(seen, field)
    return bool(np.all(observed == np.rint(observed)))


def _nearest_row(seen: Seen, cut: Cut) -> int:
    """The first row whose own value is nearest to the threshold."""
    distance = np.abs(_field_at(cut).of(seen.batch.inputs).astype(np.float64) - cut.value)
    return 0 if np.isnan(distance).all() else int(np.nanargmin(distance))


def _placed(seen: Seen, cells: Sequence[_Cell]) -> Batch:
    batch = named(seen.batch, np.array([cell.row for cell in cells]), [cell.what for cell in cells])
    changes = []
    for field in dict.fromkeys(cell.field for cell in cells):
        values = field.of(batch.inputs).copy()
        here = np.array([cell.field == field for cell in cells])
        values[here] = [cell.value for cell in cells if cell.field == field]
        changes.append(Edit(field, here, values))
    return edited(batch, changes)


EXTENSIONS = (
    Suite(
        "rounded-thresholds",
        "Values one float64 away from a tree's threshold, or scaled to it, which float32 cannot tell apart",
        partial(_aimed, _rounded),
    ),
    Suite(
        "tree-thresholds",
        "Values on a tree's threshold, and the float32 numbers next to it on either side",
        partial(_aimed, _exact),
    ),
)
