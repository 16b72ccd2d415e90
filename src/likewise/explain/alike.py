"""When a tensor of a graph holds what a step gave: equal but for single precision, row by row and column by column."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.contracts.data import Array

RELATIVE, OF_LARGEST = 2e-5, 2e-6
"""What single precision may cost: a part of the value itself, and of the largest value of its column."""


def differing(values: Array, expected: Array) -> Array:
    """Which entries are not the same but for single precision; missing values are equal to each other."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(expected)
        largest = np.where(np.isfinite(size), size, 0.0).max(axis=0, initial=0.0)
        close = np.abs(values - expected) <= RELATIVE * size + OF_LARGEST * largest + 1e-9
    same: Array = close | (values == expected) | (np.isnan(values) & np.isnan(expected))
    return ~same


def same_as_one(table: Array, known: Sequence[Array]) -> bool:
    """Is a table the same as one of others, but for single precision?"""
    return any(table.shape == other.shape and not differing(table, other).any() for other in known)


def likeness(values: Array, expected: Array) -> float:
    """How much a tensor looks like what a step gave: the share of rows that are equal, and how well columns go along.

    A counterpart with other parameters is equal nowhere, but its columns rise and fall with those of the step.
    """
    import numpy as np

    equal = float((~differing(values, expected).any(axis=1)).mean())
    ours = np.nan_to_num(expected, posinf=0.0, neginf=0.0)
    theirs = np.nan_to_num(values, posinf=0.0, neginf=0.0)
    ours, theirs = ours - ours.mean(axis=0), theirs - theirs.mean(axis=0)
    norm = np.sqrt((ours**2).sum(axis=0) * (theirs**2).sum(axis=0))
    along = np.abs((ours * theirs).sum(axis=0)) / np.where(norm > 0, norm, 1.0)
    return equal + float(along.mean())


def order_of(values: Array, expected: Array) -> tuple[int, ...] | None:
    """The order in which the columns of one array are those of the other; None if they are others, or in order."""
    used: set[int] = set()
    order: list[int] = []
    for column in range(expected.shape[1]):
        free = [k for k in range(values.shape[1]) if k not in used]
        alike = [k for k in free if not differing(values[:, [k]], expected[:, [column]]).any()]
        if not alike:
            return None
        best = column if column in alike else alike[0]
        used.add(best)
        order.append(best)
    return None if order == sorted(order) else tuple(order)


def kept_columns(values: Array, expected: Array) -> tuple[int, ...] | None:
    """Which columns of what a step gave a narrower tensor holds, in order; None if it holds others."""
    kept: list[int] = []
    start = 0
    for column in range(values.shape[1]):
        found = next(
            (k for k in range(start, expected.shape[1]) if not differing(values[:, [column]], expected[:, [k]]).any()),
            None,
        )
        if found is None:
            return None
        kept.append(found)
        start = found + 1
    return tuple(kept)
