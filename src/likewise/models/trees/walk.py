"""Rows on their way through trees: which child a value chooses, and the leaf where a row ends."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from likewise.contracts.data import Array
from likewise.models.trees.ensemble import Ensemble, Gap

if TYPE_CHECKING:
    from collections.abc import Iterator


DEEPEST = 2_000
"""Steps after which a walk is given up: a file may be broken, and its nodes may lead in a circle."""

CELLS = 2_000_000
"""Rows times trees that are walked at a time."""

NO_MORE_THAN_ZERO = 1e-35
"""What LightGBM takes for zero."""


def goes_left(ensemble: Ensemble, nodes: Array, values: Array) -> Array:
    """Does a value that reaches a node go left? One value a node."""
    import numpy as np

    gap = ensemble.gap[nodes]
    missing = np.isnan(values)
    values = np.where(missing & (gap == Gap.LIKE_ZERO), 0.0, values)
    missing &= gap != Gap.LIKE_ZERO
    missing |= ensemble.zero_is_gap[nodes] & (np.abs(values) <= NO_MORE_THAN_ZERO)
    threshold = ensemble.threshold[nodes]
    left = np.where(ensemble.strict[nodes], values < threshold, values <= threshold)
    group = ensemble.group[nodes]
    if (grouped := group >= 0).any():
        left[grouped] = _in_group(ensemble, group[grouped], values[grouped])
    return np.where(missing, gap == Gap.LEFT, left)


def leaves(ensemble: Ensemble, rows: Array) -> Array:
    """The leaf each row reaches in each tree."""
    import numpy as np

    found = np.empty((len(rows), ensemble.trees), dtype=np.int64)
    for part in _parts(len(rows), ensemble.trees):
        found[part] = _leaves(ensemble, as_compared(ensemble, rows[part]))
    return found


def as_compared(ensemble: Ensemble, rows: Array) -> Array:
    """Values in the type in which the trees compare them, held as float64."""
    import numpy as np

    with np.errstate(over="ignore"):
        return rows.astype(ensemble.dtype).astype(np.float64)


def _leaves(ensemble: Ensemble, rows: Array) -> Array:
    import numpy as np

    at = np.broadcast_to(ensemble.roots, (len(rows), ensemble.trees)).copy()
    row = np.broadcast_to(np.arange(len(rows))[:, None], at.shape)
    for _ in range(DEEPEST):
        going = ensemble.feature[at] >= 0
        if not going.any():
            break
        nodes = at[going]
        left = goes_left(ensemble, nodes, rows[row[going], ensemble.feature[nodes]])
        at[going] = np.where(left, ensemble.left[nodes], ensemble.right[nodes])
    return at


def _parts(rows: int, trees: int) -> Iterator[slice]:
    step = max(1, CELLS // max(trees, 1))
    for start in range(0, rows, step):
        yield slice(start, start + step)


def _in_group(ensemble: Ensemble, group: Array, values: Array) -> Array:
    import numpy as np

    known, members = _members(ensemble)
    if ensemble.whole:
        values = np.where(values < 0, -1.0, np.trunc(values))
    place = np.minimum(np.searchsorted(known, values), max(len(known) - 1, 0))
    if not len(known):
        return np.zeros(len(values), dtype=bool)
    return np.asarray(members[group, place] & (known[place] == values))


@lru_cache(maxsize=8)
def _members(ensemble: Ensemble) -> tuple[Array, Array]:
    """All category values, and a row a group that says which of them it holds."""
    import numpy as np

    known = np.unique(np.concatenate(ensemble.groups)) if ensemble.groups else np.zeros(0)
    members = np.zeros((len(ensemble.groups), len(known)), dtype=bool)
    for index, group in enumerate(ensemble.groups):
        members[index, np.searchsorted(known, group)] = True
    return known, members
