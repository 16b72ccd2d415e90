"""When two arrays of weights are the same but for what storing them costs, and in what way they differ if not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from likewise.contracts.data import Array

RELATIVE = 2e-6
"""Single precision, and an operation or two in it on the way into a file."""

HALF, BRAIN = 1.5 * 2.0**-11, 1.5 * 2.0**-8
"""What half precision and bfloat16 leave of a number."""

HALF_RANGE, HALF_FLOOR, CLIPPED = 65_504.0, 6e-8, 1e4
"""The largest and the smallest half, and where a converter to halves clips."""

FEWEST = 4
"""Fewer values do not tell which type they went through."""

MOST_LINES = 24
"""Rows that are compared with one another."""

REGULAR = 1e-3
"""Two arrays are a multiple of one another if no entry is further off than this part of itself."""


def is_text(values: Array) -> bool:
    return values.dtype.kind in "OSU"


def is_float(values: Array) -> bool:
    return bool(values.dtype.kind == "f" or values.dtype.name == "bfloat16")


def unequal(
    values: Array,
    expected: Array,
    *,
    rounding: float = 0.0,
    folded: float = 0.0,
    storage: tuple[float, float] | None = None,
) -> Array:
    """Which entries differ by more than the storage of `values` explains.

    `rounding` is half a step of a quantised constant, `folded` what folding cost as part of the largest entry,
    `storage` what the type is known to leave of a number where it is not to be told from these values alone.
    """
    if values.shape != expected.shape:
        return np.ones(expected.shape, dtype=bool)
    if is_text(values) or is_text(expected):
        different: Array = values.astype(object) != expected.astype(object)
        return different
    held, wanted = values.astype(np.float64), expected.astype(np.float64)
    size = np.abs(wanted)
    finite = size[np.isfinite(size)]
    largest = float(finite.max()) if finite.size else 0.0
    relative, floor = max(storage_of(values, expected), storage or (0.0, 0.0))
    allowed = np.maximum(relative, folded) * size + max(floor, 1e-10 * largest, folded * largest, 1.02 * rounding)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(held - wanted) <= allowed
    same = close | (held == wanted) | (np.isnan(held) & np.isnan(wanted))
    if floor:
        # A half cannot hold more: what became of it is a matter of precision, not of a damaged file.
        same |= (size > HALF_RANGE * (1 - HALF)) & (np.isinf(held) | (np.abs(held) >= HALF_RANGE * (1 - HALF)))
        same |= (size > CLIPPED) & (np.abs(held) == CLIPPED)
    result: Array = ~same
    return result


def storage_of(values: Array, expected: Array) -> tuple[float, float]:
    """What the type of a constant, or a narrower one its values went through, leaves of a number."""
    name = values.dtype.name
    if name == "float16" or _went_through(values, expected, _is_half):
        return HALF, HALF_FLOOR
    if name == "bfloat16" or _went_through(values, expected, _is_brain):
        return BRAIN, 0.0
    return RELATIVE, 0.0


def _went_through(values: Array, expected: Array, fits: Callable[[Array], Array]) -> bool:
    """Do these values fit into a narrower type although what they should be does not?"""
    if values.dtype != np.float32 or values.size < FEWEST:
        return False
    return bool(fits(values).mean() > 0.9 and fits(expected.astype(np.float32)).mean() < 0.5)


def _is_half(values: Array) -> Array:
    with np.errstate(over="ignore"):
        fitting: Array = values == values.astype(np.float16)
    return fitting


def _is_brain(values: Array) -> Array:
    fitting: Array = np.ascontiguousarray(values).view(np.uint32) & 0xFFFF == 0
    return fitting


@dataclass(frozen=True, slots=True)
class Pattern:
    """How an array differs from what it should be.

    `regular`: an accident explains it (an entry lost, a sign, a factor, an order), other than a new training.
    `entries` are the flat positions of the first differing ones, `few` whether it is worth naming them, `zero`
    whether nothing is left of the array.
    """

    text: str
    regular: bool
    entries: tuple[int, ...] = ()
    few: bool = False
    zero: bool = False


def pattern(values: Array, expected: Array, different: Array) -> Pattern:
    """In what way an array differs."""
    if values.shape != expected.shape:
        return Pattern(f"{values.size} entries instead of {expected.size}", values.size == 0)
    where = np.flatnonzero(different.ravel())
    first = tuple(int(position) for position in where[:3])
    held, wanted = values.ravel(), expected.ravel()
    if is_text(values) or is_text(expected):
        return _pattern_of_text(held, wanted, first, len(where))
    held, wanted = held.astype(np.float64), wanted.astype(np.float64)
    if not np.isfinite(held[where]).all() and np.isfinite(wanted).all():
        lost = where[~np.isfinite(held[where])]
        text = f"{_count(len(lost), held.size)} not a finite number"
        return Pattern(text, regular=True, entries=tuple(map(int, lost[:3])), few=len(lost) < held.size)
    if not held.any():
        return Pattern("all zero", regular=True, entries=first, zero=True)
    told = np.flatnonzero((held != 0) | (wanted != 0))
    few = len(where) <= max(1, len(told) // 2) and held.size > 1
    if (relation := _whole(values, expected, held, wanted, where, few=few)) is not None:
        return Pattern(relation, regular=True, entries=first, few=few)
    if few or held.size == 1:
        return Pattern(_few(values, held, wanted, where), regular=few, entries=first, few=few)
    return Pattern("other values throughout", regular=False, entries=first)


def _pattern_of_text(held: Array, wanted: Array, first: tuple[int, ...], count: int) -> Pattern:
    if sorted(held) == sorted(wanted):
        return Pattern("the same entries in another order", regular=True, entries=first)
    return Pattern(f"{count} of {wanted.size} entries are others", regular=count < wanted.size, entries=first)


def _whole(values: Array, expected: Array, held: Array, wanted: Array, where: Array, *, few: bool) -> str | None:
    """A relation that holds for every differing entry: a factor, an offset, another order."""
    if len(where) < 2:
        return None
    mine, yours = held[where], wanted[where]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = mine / yours
    part = "" if len(where) == held.size else f"{len(where)} of {held.size} entries "
    if not mine.any():
        return f"{part}zero"
    if np.isfinite(ratio).all() and np.abs(ratio / ratio[0] - 1).max() < REGULAR:
        if abs(ratio[0] + 1) < REGULAR:
            return f"{part}with the sign flipped"
        if len(where) > 2:
            return f"{part}times {ratio[0]:.4g}"
    if values.ndim == 2 and values.shape[0] == values.shape[1] and not unequal(values, expected.T).any():
        return "transposed"
    if (
        np.array_equal(np.sort(mine), np.sort(yours.astype(values.dtype).astype(np.float64)))
        or not unequal(np.sort(mine), np.sort(yours)).any()
    ):
        return _order(values, expected, where)
    shift = mine - yours
    if not few and len(where) > 2 and np.abs(shift - shift[0]).max() <= REGULAR * abs(shift[0]):
        return f"{part}plus {shift[0]:.4g}"
    return None


def _order(values: Array, expected: Array, where: Array) -> str:
    if values.ndim >= 2:
        for axis, name in ((0, "rows"), (1, "columns")):
            moved = sorted({int(index[axis]) for index in np.argwhere(unequal(values, expected))})
            if len(moved) > MOST_LINES:
                continue
            mine, yours = np.moveaxis(values, axis, 0)[moved], np.moveaxis(expected, axis, 0)[moved]
            whole = all(any(not unequal(line, other).any() for other in yours) for line in mine)
            if whole and len(moved) <= values.shape[axis]:
                told = " and ".join(map(str, moved)) if len(moved) == 2 else f"{len(moved)} of them"
                return f"{name} {told} swapped" if len(moved) == 2 else f"{name} in another order ({told})"
    return "two entries swapped" if len(where) == 2 else "the same entries in another order"


def _few(values: Array, held: Array, wanted: Array, where: Array) -> str:
    position = int(where[0])
    more = f" and {len(where) - 1} more" if len(where) > 1 else ""
    mine, yours = float(held[position]), float(wanted[position])
    how = ""
    if mine == 0:
        how = " (zeroed)"
    elif np.isclose(mine, -yours, rtol=REGULAR):
        how = " (its sign flipped)"
    elif values.dtype == np.float32 and (bit := _flipped_bit(mine, yours)) is not None:
        how = f" (bit {bit} flipped)"
    return f"{mine:.6g} instead of {yours:.6g}{how}{more}"


def _flipped_bit(mine: float, yours: float) -> int | None:
    bits: Any = np.array([mine, yours], dtype=np.float32).view(np.uint32)
    changed = int(bits[0] ^ bits[1])
    return changed.bit_length() - 1 if changed and changed & (changed - 1) == 0 else None


def _count(count: int, size: int) -> str:
    return "the only entry is" if size == 1 else f"{count} of {size} entries {'is' if count == 1 else 'are'}"
