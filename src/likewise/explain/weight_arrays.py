"""When two arrays of weights are the same but for what storing them costs, and in what way they differ if not.

A fitted array is looked for in every form in which an exporter may write it: turned, flattened, negated, inverted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.data.columns import numpy_dtype
from likewise.models.arrays import BUFFER, GRAPH, NETWORK, Parameter
from likewise.models.onnx.inside import Constant, blocks, equal

RELATIVE = 2e-6
"""Single precision, and an operation or two in it on the way into a file."""

HALF, BRAIN = 1.5 * 2.0**-11, 1.5 * 2.0**-8
"""What half precision and bfloat16 leave of a number."""

HALF_RANGE, HALF_FLOOR, CLIPPED = 65_504.0, 6e-8, 1e4
"""The largest and the smallest half, and where a converter to halves clips."""

GLANCE = 2**18
"""Values that are enough to tell which type an array went through."""

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
        return np.asarray(values.astype(object) != expected.astype(object))
    if equal(values, expected):
        return np.broadcast_to(np.False_, values.shape)
    held, wanted = values.reshape(-1), expected.reshape(-1)
    sizes = (np.abs(wanted[part].astype(np.float64)) for part in blocks(wanted))
    largest = max((float(np.max(size, where=np.isfinite(size), initial=0.0)) for size in sizes), default=0.0)
    kept = max(storage_of(values, expected), storage or (0.0, 0.0))
    slack = max(1e-10 * largest, folded * largest, 1.02 * rounding)
    different: Array = np.zeros(values.shape, dtype=bool)
    for part in blocks(held, wanted):
        if not np.array_equal(held[part], wanted[part]):
            mine, yours = held[part].astype(np.float64), wanted[part].astype(np.float64)
            different.reshape(-1)[part] = _apart(mine, yours, kept, folded, slack)
    return different


def _apart(held: Array, wanted: Array, storage: tuple[float, float], folded: float, slack: float) -> Array:
    (relative, floor), size = storage, np.abs(wanted)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(held - wanted) <= max(relative, folded) * size + max(floor, slack)
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
    if name == "float16" or _went_through(values, expected, "float16"):
        return HALF, HALF_FLOOR
    if name == "bfloat16" or _went_through(values, expected, "bfloat16"):
        return BRAIN, 0.0
    return RELATIVE, 0.0


def _went_through(values: Array, expected: Array, narrower: str) -> bool:
    """Do these values fit into a narrower type although what they should be does not?"""
    if values.dtype != np.float32 or values.size < FEWEST:
        return False
    some = slice(None, None, max(1, values.size // GLANCE))
    values, wanted = values.reshape(-1)[some], expected.reshape(-1)[some].astype(np.float32)
    with np.errstate(over="ignore"):
        held, meant = (side.astype(numpy_dtype(narrower)).astype(np.float32) for side in (values, wanted))
    return bool((held == values).mean() > 0.9 and (meant == wanted).mean() < 0.5)


RECURRENT = {"LSTM", "GRU", "RNN"}

BLOCKS = (3, 4)
"""In how many gates the weights of recurrent cells are divided, and those of attention in queries, keys and values."""


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
        # What is left of an array is no new training of it.
        part = values.size < expected.size and np.isin(values, expected.astype(values.dtype)).all()
        return Pattern(f"{values.size} entries instead of {expected.size}", regular=bool(part))
    where = np.flatnonzero(different.ravel())
    first = tuple(int(position) for position in where[:3])
    held, wanted = values.ravel(), expected.ravel()
    if is_text(values) or is_text(expected):
        return _pattern_of_text(held, wanted, first, len(where))
    if not np.isfinite(held[where].astype(np.float64)).all() and np.isfinite(wanted.astype(np.float64)).all():
        lost = where[~np.isfinite(held[where].astype(np.float64))]
        text = f"{_count(len(lost), held.size)} not a finite number"
        return Pattern(text, regular=True, entries=tuple(map(int, lost[:3])), few=len(lost) < held.size)
    if not held.any():
        return Pattern("all zero", regular=True, entries=first, zero=True)
    told = int(np.count_nonzero((held != 0) | (wanted != 0)))
    few = len(where) <= max(1, told // 2) and held.size > 1
    if (relation := _whole(values, expected, held, wanted, where, few=few)) is not None:
        return Pattern(relation, regular=True, entries=first, few=few)
    if few or held.size == 1:
        return Pattern(_few(values, held, wanted, where), regular=few, entries=first, few=few)
    return Pattern("other values throughout", regular=False, entries=first)


def _pattern_of_text(held: Array, wanted: Array, first: tuple[int, ...], count: int) -> Pattern:
    if sorted(held) == sorted(wanted):
        return Pattern("the same entries in another order", regular=True, entries=first)
    return Pattern(f"{count} of {wanted.size} entries differ", regular=count < wanted.size, entries=first)


def _whole(values: Array, expected: Array, held: Array, wanted: Array, where: Array, *, few: bool) -> str | None:
    """A relation that holds for every differing entry: a factor, an offset, another order."""
    if len(where) < 2:
        return None
    mine, yours = held[where].astype(np.float64), wanted[where].astype(np.float64)
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
    square = values.ndim == 2 and values.shape[0] == values.shape[1]
    if square and not unequal(values[0], expected[:, 0]).any() and not unequal(values, expected.T).any():
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
    if (blocks := _moved_blocks(values, expected)) is not None:
        return f"its {len(blocks)} blocks in the order {', '.join(map(str, blocks))}"
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


def _moved_blocks(values: Array, expected: Array) -> list[int] | None:
    """The order of a few blocks of equal size, such as the gates of a cell, if that is all that differs."""
    # A recurrent layer has its directions first.
    axis = min(values.ndim - 1, 1) if values.shape[:1] in ((1,), (2,)) else 0
    for count in BLOCKS if values.ndim else ():
        if values.shape[axis] % count or values.shape[axis] < 2 * count:
            continue
        held, wanted = (np.split(side, count, axis) for side in (values, expected))
        order = [next((n for n, other in enumerate(wanted) if not unequal(one, other).any()), -1) for one in held]
        if sorted(order) == list(range(count)):
            return order
    return None


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


SCALED = {
    **{(name, "Sub"): "as it is" for name in ("mean_", "center_")},
    **{(name, "Add"): "negated" for name in ("mean_", "center_")},
    ("scale_", "Div"): "as it is",
    ("scale_", "Mul"): "inverse",
    **{(name, "Scaler.offset"): "as it is" for name in ("mean_", "center_")},
    ("scale_", "Scaler.scale"): "inverse",
}
"""How scalers' arrays have to stand before which operator."""


MOST_PARTS = 2_000
"""Rows or columns of an array that is looked at piece by piece."""


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A parameter as an exporter may write it: its entries in order, in whatever shape.

    `way` says what was done to it, `origin` which of its entries are here where the way does not tell.
    """

    parameter: Parameter
    array: Array
    way: str = "derived"
    origin: Array | None = None

    @property
    def plain(self) -> bool:
        return self.way in ("as it is", "turned")

    def suits(self, constant: Constant) -> bool:
        """Is it the way round, the sign or the inverse that the node takes? Unknown operators take anything."""
        parameter, shape, mine = self.parameter, self.parameter.values.shape, constant.values.shape
        if constant.operator in RECURRENT and parameter.kind == NETWORK:
            return False  # its gates come in another order there
        square = len(shape) == 2 and shape[0] == shape[1]
        if parameter.outputs_first is not None and square and constant.operator in ("MatMul", "Gemm"):
            return (self.way == "turned") == (parameter.outputs_first != constant.turned)
        if len(shape) == 2 and min(shape) > 1 and not square and mine in (shape, shape[::-1]):
            return (self.way == "turned") is bool(mine != shape)
        operator = f"{constant.operator}.{constant.place}" if isinstance(constant.place, str) else constant.operator
        wanted = SCALED.get((parameter.attribute, operator))
        return wanted is None or parameter.kind == "MinMaxScaler" or self.way == wanted

    def fitted_to(self, constant: Constant) -> Array:
        """The values in the shape and the type in which the node takes them."""
        same = self.array.shape == constant.values.shape
        values = self.array if same else self.array.ravel().reshape(constant.values.shape)
        return values.astype(constant.values.dtype, copy=False) if is_float(constant.values) else values

    def place(self, entry: int) -> int:
        """Which entry of the parameter stands here."""
        if self.origin is not None:
            return int(self.origin[entry])
        if self.way == "turned":
            row, column = np.unravel_index(entry, self.array.shape)
            return int(column * self.array.shape[0] + row)
        return int(entry % self.parameter.values.size)


def forms(parameter: Parameter) -> Iterator[Form]:
    """The ways in which an exporter writes an array."""
    values = parameter.values
    yield Form(parameter, values, "as it is")
    if is_text(values):
        return
    if values.ndim == 2 and min(values.shape) > 1:
        yield Form(parameter, values.T, "turned")
    if parameter.kind in (NETWORK, BUFFER, GRAPH) or parameter.rounding:
        return
    flat = values.ravel().astype(np.float64)
    if len(values) == 1 or values.ndim == 1:
        yield Form(parameter, np.concatenate([-flat, flat]), "for both classes")
    yield Form(parameter, -flat, "negated")
    if flat.all():
        yield Form(parameter, 1 / flat, "inverse")


def derived(parameter: Parameter) -> Iterator[Form]:
    """What converters compute from an array: only for a name, as too much can be computed from too many arrays."""
    if is_text(parameter.values) or parameter.kind in (NETWORK, BUFFER, GRAPH) or parameter.rounding:
        return
    flat = parameter.values.ravel().astype(np.float64)
    yield Form(parameter, np.stack([-flat, flat], axis=1), origin=np.repeat(np.arange(flat.size), 2))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for changed in (-2 * flat, flat**2, np.sqrt(flat), 1 / np.sqrt(flat), np.log(flat)):
            if np.isfinite(changed).all():
                yield Form(parameter, changed)


def parts(parameter: Parameter) -> Iterator[Form]:
    """The pieces of an array that some converters write apart: one a column or row, or without the outer edges."""
    values = parameter.values
    if values.ndim == 2 and max(values.shape) <= MOST_PARTS:
        places = np.arange(values.size).reshape(values.shape)
        for lines, index in ((values, places), (values.T, places.T)):
            for number in range(len(lines)):
                line, place = lines[number, :], index[number, :]
                yield Form(parameter, line, origin=place)
                if not is_text(values):
                    yield Form(parameter, -line[::-1], origin=place[::-1])
    elif values.ndim == 1 and values.size > 3:
        places = np.arange(values.size)
        for cut in (slice(1, -1), slice(1, None), slice(None, -1)):
            yield Form(parameter, values[cut], origin=places[cut])


@dataclass(frozen=True, eq=False)
class Match:
    """A constant and what it should hold.

    `form` tells what was done to the parameter, `storage` what the type that all constants of the graph went
    through leaves of a number.
    """

    constant: Constant
    expected: Array
    parameter: Parameter | None = None
    form: Form | None = None
    storage: tuple[float, float] | None = None

    @cached_property
    def different(self) -> Array:
        rounding = 0.0 if self.parameter is None else self.parameter.rounding
        return unequal(
            self.constant.values,
            self.expected,
            rounding=self.constant.rounding,
            folded=rounding,
            storage=self.storage,
        )

    def index(self, entry: int) -> tuple[int, ...]:
        """Where an entry of the constant stands in the parameter, or in the constant itself."""
        if self.parameter is None or self.form is None:
            return tuple(int(part) for part in np.unravel_index(entry, self.expected.shape or (1,)))
        shape = self.parameter.values.shape
        return tuple(int(part) for part in np.unravel_index(self.form.place(entry), shape))


def match_of(form: Form, constant: Constant) -> Match:
    return Match(constant, form.fitted_to(constant), form.parameter, form)


TELLING, TURNS, SAME_MARK = 16, (1.0, 0.7, 0.31, 2.2), 5e-3
"""Numbers that an array is known by beside its neighbours; how it is looked at, and how near two views are."""

LOOKED_AT = 65_536
"""Of a large array, so many numbers are enough to know it by."""


class Marks:
    """What arrays are known by: the same mark for those that are equal but for rounding, or for a few entries.

    Exporters fold a batch norm in their own ways, and a damaged weight still stands where it stood.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, ...], list[Array]] = defaultdict(list)

    def of(self, values: Array) -> Hashable:
        if values.size < TELLING or values.dtype.kind != "f":
            return hash(np.ascontiguousarray(values.astype(np.float32)).tobytes())
        # Masks hold the largest float there is, or none.
        flat = np.nan_to_num(
            values.reshape(-1)[:: max(1, values.size // LOOKED_AT)].astype(np.float64), posinf=1, neginf=-1
        )
        # Directions that differ from each other and are cheap to make.
        steps = np.arange(flat.size)
        size = float(np.linalg.norm(flat))
        mark = np.array([np.log(size or 1.0), *(float(flat @ np.cos(steps * turn)) / (size or 1.0) for turn in TURNS)])
        known = self._seen[values.shape]
        for number, other in enumerate(known):
            if np.abs(mark - other).max() <= SAME_MARK:
                return values.shape, number
        known.append(mark)
        return values.shape, len(known) - 1
