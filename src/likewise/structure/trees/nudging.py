"""The smallest change of what the candidate's trees are given that makes every split decide as the reference's does."""

from __future__ import annotations

from dataclasses import dataclass

from likewise.contracts.data import Array
from likewise.structure.trees.survey import Survey, boundary
from likewise.structure.trees.walking import as_compared

ROUNDING = 1e-5
"""How far apart a value may be on both sides, relative to the size of its column, to be one value rounded."""


@dataclass(frozen=True, slots=True, eq=False)
class Nudged:
    """What the trees would be given, which values were moved, and how much of each column's spread rounding took."""

    rows: Array
    moved: Array
    lost: dict[int, float]


def nudged(survey: Survey, pairs: Array) -> Nudged | None:
    """Move values across thresholds that they only passed by rounding. `pairs` are splits that ask the same.

    None where what the trees are given is not known.
    """
    import numpy as np

    ours, theirs = survey.reference, survey.candidate
    if ours.rows is None or theirs.rows is None:
        return None
    node, other = survey.alignment.reference[pairs], survey.alignment.candidate[pairs]
    seen, given = ours.ensemble.feature[node], theirs.ensemble.feature[other]
    limit, held = boundary(ours.ensemble, node), boundary(theirs.ensemble, other)
    rows = theirs.rows.copy()
    moved = np.zeros(rows.shape, dtype=bool)
    lost: dict[int, float] = {}
    for one, two in np.unique(np.stack([seen, given], axis=1), axis=0).tolist():
        here = (seen == one) & (given == two)
        value = as_compared(ours.ensemble, ours.rows[:, one])
        value_there = as_compared(theirs.ensemble, theirs.rows[:, two])
        change = _change(value, value_there)
        wanted = _wanted(limit[here], held[here], value, value_there, theirs.ensemble.dtype)
        ours_only = np.isfinite(wanted) & (change <= ROUNDING)
        rows[ours_only, two] = wanted[ours_only]
        moved[ours_only, two] = True
        lost[two] = _lost(value, value_there)
    return Nudged(rows, moved, lost)


def _change(value: Array, value_there: Array) -> Array:
    """How much further than its size a value is from the other side's."""
    import numpy as np

    finite = np.isfinite(value)
    typical = float(np.median(np.abs(value[finite]))) if finite.any() else 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        size = np.maximum(np.maximum(np.abs(value), typical), 1e-30)
        change = np.abs(value - value_there) / size
    return np.where(np.isnan(change), np.inf, change)


def _lost(value: Array, value_there: Array) -> float:
    """The largest difference of a column on both sides, in units of its spread."""
    import numpy as np

    both = np.isfinite(value) & np.isfinite(value_there)
    if not both.any():
        return 0.0
    spread = float(np.std(value[both]))
    largest = float(np.abs(value[both] - value_there[both]).max())
    return largest / spread if spread > 0 else 0.0


def _wanted(limit: Array, held: Array, value: Array, value_there: Array, dtype: str) -> Array:
    """The nearest value that falls between the same thresholds as the reference's; NaN where none is needed."""
    import numpy as np

    order = np.lexsort((held, limit))
    limit, held = limit[order], np.maximum.accumulate(held[order])
    rank, rank_there = np.searchsorted(limit, value), np.searchsorted(held, value_there)
    count = len(held)
    upper = np.where(rank < count, held[np.minimum(rank, count - 1)], np.inf)
    with np.errstate(over="ignore"):
        below = held[np.maximum(rank - 1, 0)].astype(dtype)
        following = np.nextafter(below, np.array(np.inf, dtype=dtype)).astype(np.float64)
    lower = np.where(rank > 0, following, -np.inf)
    wanted = np.clip(value_there, lower, np.maximum(upper, lower))
    possible = (lower <= upper) & (rank != rank_there) & np.isfinite(value) & np.isfinite(value_there)
    return np.where(possible, wanted, np.nan)
