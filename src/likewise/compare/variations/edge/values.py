"""Suites that put other values into real rows. Most are a row of one table: what is planted, in columns that hold what.

A value is planted in each column alone, as far as the type of the column can hold it. Two suites aim at the thresholds
of trees, those of the first of both models whose trees can be read.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from likewise.compare.variations.edge import (
    FLOAT,
    IDS,
    INTEGER,
    OTHER,
    TENSOR,
    TEXT,
    all_features,
    features,
    kind,
    picked,
    values_of,
)
from likewise.contracts.comparison import Seen, Suite
from likewise.contracts.data import Array, Batch
from likewise.contracts.values import dataclass
from likewise.data.cells import MISSING, Edit, Field, Variant, edited, holds, named, varied
from likewise.models.remote import look
from likewise.models.trees import thinkable

if TYPE_CHECKING:
    from likewise.models.trees.read import Cut

Planted: TypeAlias = Sequence[Any] | Callable[[Any], Sequence[Any]]
"""Values for a kind of column, or what gives them for its type; None is left out."""

SINGLE = 3.4028234663852886e38
"""The largest number of float32."""

SUBNORMAL = (2.0**-149, -(2.0**-130), 2.0**-1074, -(2.0**-1050))
"""Two of float32, which has no smaller ones, and two of float64."""

NONFINITE = (float("inf"), float("-inf"), float("nan"))

WHOLE = (2**24 + 1, 2**31 - 1, 2**53 + 1, 2**63 - 1)
"""Beyond 2²⁴ float32 skips whole numbers, beyond 2⁵³ float64 does: ids, timestamps, amounts in cents."""

SCRIPTS = ("Zürich", "日本", "Ελλάδα", "ß", "🙂")

LITTLE, FAR = 0.01, 10.0
"""How far past the range, in units of what it spans."""

MOST = 96
"""Thresholds that are aimed at, those next to the roots first."""

NEAR = 1e-3
"""A scaled threshold so near a whole number is left to the suite on rounding."""

_FOUND: WeakKeyDictionary[Seen, tuple[Cut, ...]] = WeakKeyDictionary()
"""Trees are dear to read, and two suites ask for the same thresholds."""


def _planting(name: str, title: str, *, outside: bool = False, **values: Planted) -> Suite:
    """The same values in every column of a kind: `float=(0.0,)`."""
    return Suite(
        name, title, lambda seen: varied(picked(seen), _planted(seen, values)), by_column=True, outside=outside
    )


def _spelling(name: str, title: str, ways: Callable[[str], Iterable[str]]) -> Suite:
    """A text that was observed, spelled in other ways, in every column of text."""
    return Suite(name, title, lambda seen: varied(picked(seen), _respelled(seen, ways)), by_column=True)


def _planted(seen: Seen, values: dict[str, Planted]) -> Iterator[Variant]:
    given = []
    for field in features(seen, *values):
        held, dtype = kind(seen, field), seen.batch.inputs[field.column].dtype
        planted = values[held]
        given.append((field, held, dtype, planted(dtype) if callable(planted) else planted))
    # Value by value, so that rows that are refused for the same reason stand together.
    for place in range(max((len(planted) for *_, planted in given), default=0)):
        for field, held, dtype, planted in given:
            if place < len(planted) and planted[place] is not None and (held == TEXT or holds(dtype, planted[place])):
                yield from _at(seen, field, held, planted[place])


def _at(seen: Seen, field: Field, held: str, value: Any) -> Iterator[Variant]:
    """One value in one feature; in a tensor everywhere, and at one place."""
    if held != TENSOR:
        yield Variant(f"{field.name} = {value!r}", {field: value})
        return
    base = picked(seen).inputs[field.column]
    middle = tuple(size // 2 for size in base.shape[1:])
    one = base.copy()
    one[(slice(None), *middle)] = value
    yield Variant(f"{field.name} = {value!r} everywhere", {field: np.full_like(base, value)})
    yield Variant(f"{field.name}[{', '.join(map(str, middle))}] = {value!r}", {field: one})


def _respelled(seen: Seen, ways: Callable[[str], Iterable[str]]) -> Iterator[Variant]:
    for field in features(seen, TEXT):
        observed = str(values_of(seen, field)[0])
        for text in dict.fromkeys(ways(observed)):
            if text != observed:
                yield Variant(f"{field.name} = {text!r}", {field: text})


def _accented(text: str) -> tuple[str, ...]:
    """The same letter as one sign and as two: text is bytes to one runtime and signs to another."""
    accented = unicodedata.normalize("NFD", text)
    if accented == text:
        accented = f"{text[:1] or 'e'}\u0301{text[1:]}"
    return unicodedata.normalize("NFC", accented), accented, *SCRIPTS


def _largest(dtype: Any) -> tuple[float | None, ...]:
    """What does not fit becomes infinite on its way to a model that takes a narrower type."""
    own = float(np.finfo(dtype).max)
    wide, narrow = own if own > SINGLE else None, min(SINGLE, own)
    return wide, narrow, wide and -wide, -narrow


def _missing(seen: Seen) -> Iterator[Batch]:
    """Every column goes missing once; a column that cannot hold a gap is widened as a table would be."""
    # Masks and other tensors of booleans have no gaps.
    fields = [
        field
        for field in features(seen, FLOAT, INTEGER, TEXT, TENSOR, OTHER)
        if kind(seen, field) != OTHER or seen.batch.inputs[field.column].ndim == 1
    ]
    variants = [Variant(f"{field.name} missing", {field: MISSING}) for field in fields]
    if len(fields) > 1 and not features(seen, IDS):
        variants.append(Variant("all missing", dict.fromkeys(fields, MISSING)))
    return varied(picked(seen), variants)


def _masks(seen: Seen) -> Iterator[Batch]:
    """A row of padding only: an attention over nothing divides by nothing."""
    base = picked(seen)
    variants = []
    for place, name in enumerate(seen.columns):
        array = base.inputs[name]
        if "mask" not in name.lower() or array.dtype.kind not in "biuf" or array.ndim < 2:
            continue
        field = Field(name, None, name, place)
        for what, value in (("all on", 1), ("all off", 0)):
            variants.append(Variant(f"{name} {what}", {field: np.full_like(array, value)}))
    return varied(base, variants)


def _beyond(seen: Seen) -> Iterator[Batch]:
    """Where calibration ends, tables end and ids run out. Ids of an embedding go past the last on purpose."""
    base = picked(seen)
    observed = {field: values_of(seen, field) for field in features(seen, FLOAT, INTEGER, TENSOR, IDS)}
    variants = [
        variant for field, array in observed.items() if array.size for variant in _past(seen, field, base, array)
    ]
    return varied(base, variants)


def _past(seen: Seen, field: Field, base: Batch, observed: Array) -> Iterator[Variant]:
    low, high = observed.min().item(), observed.max().item()
    held = kind(seen, field)
    if held == IDS:
        yield from _other_ids(field, base, (high + 1, low - 1))
        return
    span = (high - low) or abs(high) or 1
    for side, edge, sign in (("above", high, 1), ("below", low, -1)):
        for share in (LITTLE, FAR):
            step = sign * share * span
            if held == TENSOR:
                moved = (base.inputs[field.column] + step).astype(observed.dtype)
                yield Variant(f"{field.name} moved by {step:g}, {side} the range seen", {field: moved})
                continue
            if isinstance(edge, int):
                value: float = edge + sign * max(1, round(share * span))
            else:
                value = float(observed.dtype.type(edge + step))
            if holds(observed.dtype, value):
                yield Variant(f"{field.name} = {value!r}, {side} the range seen", {field: value})


def _other_ids(field: Field, base: Batch, values: Iterable[int]) -> Iterator[Variant]:
    """The first id of each row exchanged for one that was not seen."""
    for value in values:
        ids = base.inputs[field.column].copy()
        if holds(ids.dtype, value):
            ids.reshape(len(ids), -1)[:, 0] = value
            yield Variant(f"first of {field.name} = {value}, past the ids seen", {field: ids})


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
    _spelling(
        "accents", "Text with accents (composed and decomposed) and in other scripts, in each column of text", _accented
    ),
    _spelling(
        "blanks",
        "Text with blanks around it, in each column of text",
        lambda text: (f" {text}", f"{text} ", f"\t{text}\n", f"\u00a0{text}", " "),
    ),
    _spelling(
        "letter-case",
        "Text in another case, in each column of text",
        lambda text: (text.upper(), text.lower(), text.swapcase()),
    ),
    _planting("empty-text", "Empty text, in each column of text", text=("",)),
    _planting("unseen-categories", "A text that was never seen, in each column of text", text=("never seen before",)),
    # A comparison of bits tells -0.0 from 0.
    _planting("zeros", "0 and -0.0, in each column of numbers", float=(0.0, -0.0), tensor=(0.0, -0.0), integer=(0,)),
    _planting("tiny-numbers", "Subnormal numbers, in each column of numbers", float=SUBNORMAL, tensor=SUBNORMAL),
    _planting(
        "huge-numbers",
        "The largest numbers of float32 and of the column's type, in each column of numbers",
        float=_largest,
        tensor=_largest,
        outside=True,
    ),
    _planting(
        "large-integers",
        "Whole numbers above 2²⁴ and 2⁵³, in each column of whole numbers that can hold them",
        integer=(*WHOLE, *(-value for value in WHOLE)),
    ),
    _planting(
        "nonfinite",
        "Infinity, minus infinity and NaN, in each column of numbers",
        float=NONFINITE,
        tensor=NONFINITE,
        outside=True,
    ),
    Suite(
        "missing-values",
        "A value is missing, in each column alone and in all at once",
        _missing,
        by_column=True,
        outside=True,
    ),
    Suite("masks", "Masks all on and all off", _masks),
    Suite(
        "beyond-range",
        "Numbers past the range of the first rows, by a little and by ten times its span, in each column",
        _beyond,
        by_column=True,
    ),
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
