"""Values of one column, drawn at random from what is known about them, and the clues by which models tell it.

A column says what its values look like, and the same seed draws the same rows whatever part of them is asked for. What
it says comes from what models say about the values of their inputs. Precedence, most telling first: the role that a
name gives (a mask, positions), the categories of an encoder, the size of an embedding, a vocabulary, the thresholds of
trees, the constants of a scaling, bounds, the value an imputer fills in, the form of the input (an image), and last its
type. Of two clues of one kind the reference's counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from math import prod
from typing import Any, TypeAlias

import numpy as np

from likewise.contracts.comparison import GeneratedColumn
from likewise.contracts.data import Array
from likewise.contracts.values import dataclass
from likewise.data.columns import numpy_dtype

Random: TypeAlias = np.random.Generator

BLOCK_CELLS = 1 << 18
"""Cells drawn at a time: rows are drawn in blocks of their own, so that any part can be drawn without the rest."""

BLOCK_ROWS = 1 << 8
SHOWN = 4
"""Categories that are named when a column is described."""

REACH = 3.0
"""Deviations from the mean beyond which nothing is drawn."""


def _numbers(*, whole: bool) -> str:
    return "whole numbers" if whole else "numbers"


@dataclass(frozen=True, slots=True)
class Normal:
    """Numbers around a mean, within three deviations of it."""

    mean: float = 0.0
    deviation: float = 1.0

    @property
    def text(self) -> str:
        return f"normal, {self.mean:.4g} ± {self.deviation:.4g}"

    def draw(self, random: Random, shape: tuple[int, ...]) -> Array:
        return self.mean + self.deviation * random.standard_normal(shape).clip(-REACH, REACH)


@dataclass(frozen=True, slots=True)
class Between:
    """Numbers spread evenly; `whole` ones include both ends."""

    low: float
    high: float
    whole: bool = False

    @property
    def text(self) -> str:
        return f"{_numbers(whole=self.whole)} from {self.low:.6g} to {self.high:.6g}"

    def draw(self, random: Random, shape: tuple[int, ...]) -> Array:
        if self.whole:
            return random.integers(int(self.low), int(self.high), size=shape, endpoint=True)
        return random.uniform(self.low, self.high, size=shape)


@dataclass(frozen=True, slots=True)
class Cells:
    """Numbers between the cuts of a model, each gap as likely as the next, and beyond the outermost."""

    cuts: tuple[float, ...]
    low: float
    high: float
    whole: bool = False

    @property
    def text(self) -> str:
        return f"{_numbers(whole=self.whole)} from {self.low:.4g} to {self.high:.4g}, cut at {len(self.cuts):,} places"

    def draw(self, random: Random, shape: tuple[int, ...]) -> Array:
        edges = np.array([self.low, *self.cuts, self.high])
        cell = random.integers(0, len(edges) - 1, size=shape)
        drawn: Array = edges[cell] + random.random(shape) * (edges[cell + 1] - edges[cell])
        return np.rint(drawn) if self.whole else drawn


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of the values a model knows; None is a missing one."""

    values: tuple[Any, ...]

    @property
    def text(self) -> str:
        shown = ", ".join("missing" if value is None else repr(value) for value in self.values[:SHOWN])
        more = f" and {len(self.values) - SHOWN:,} more" if len(self.values) > SHOWN else ""
        return f"one of {shown}{more}"

    def draw(self, random: Random, shape: tuple[int, ...]) -> Array:
        chosen = random.integers(0, len(self.values), size=shape)
        known: Array = np.empty(len(self.values), dtype=object)
        known[:] = self.values
        return known[chosen]


@dataclass(frozen=True, slots=True)
class Words:
    """Short texts made of the words a model knows."""

    vocabulary: tuple[str, ...]
    most: int = 8

    @property
    def text(self) -> str:
        return f"texts of up to {self.most} of {len(self.vocabulary):,} words"

    def draw(self, random: Random, shape: tuple[int, ...]) -> Array:
        drawn: Array = np.empty(shape, dtype=object)
        for place in np.ndindex(*shape):
            chosen = random.integers(0, len(self.vocabulary), size=int(random.integers(1, self.most + 1)))
            drawn[place] = " ".join(self.vocabulary[index] for index in chosen)
        return drawn


@dataclass(frozen=True, slots=True)
class Padded:
    """Ones, then zeros: a mask of what is padding along the last axis; the first place is never masked."""

    @property
    def text(self) -> str:
        return "ones, with a padded tail of random length"

    def draw(self, random: Random, shape: tuple[int, ...]) -> Array:
        length = shape[-1] if len(shape) > 1 else 1
        kept = random.integers(1, length, size=(*shape[:1], *(1 for _ in shape[1:])), endpoint=True)
        return np.broadcast_to(np.arange(length) < kept, shape).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Places:
    """Numbers that count up along the last axis."""

    @property
    def text(self) -> str:
        return "0, 1, 2 … along the last axis"

    def draw(self, random: Random, shape: tuple[int, ...]) -> Array:
        return np.broadcast_to(np.arange(shape[-1] if len(shape) > 1 else 1), shape).astype(np.int64)


@dataclass(frozen=True, slots=True)
class WithGaps:
    """Values of which some are missing."""

    values: Normal | Between | Cells | OneOf | Words
    share: float = 0.05

    @property
    def text(self) -> str:
        return f"{self.values.text}; {100 * self.share:g}% missing"

    def draw(self, random: Random, shape: tuple[int, ...]) -> Array:
        drawn = self.values.draw(random, shape)
        missing = random.random(shape) < self.share
        if drawn.dtype.kind == "O":
            drawn[missing] = None
            return drawn
        return np.where(missing, np.nan, drawn)


Values: TypeAlias = Normal | Between | Cells | OneOf | Words | Padded | Places | WithGaps


@dataclass(frozen=True, slots=True)
class Part:
    """What the values of a column look like and why; `known` where the model says so and it is no mere guess."""

    values: Values
    why: str
    known: bool = True


@dataclass(frozen=True, slots=True)
class Column:
    """One input. `shape` is that of one row; several parts lie side by side along its last axis."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def cells(self) -> int:
        """Values a row."""
        return prod(self.shape)

    @property
    def described(self) -> tuple[GeneratedColumn, ...]:
        """One line a part, for the report."""
        if len(self.parts) > 1:
            return tuple(_described(f"{self.name}[{index}]", part) for index, part in enumerate(self.parts))
        shape = f", {' × '.join(map(str, self.shape))} a row" if self.cells > 1 else ""
        return (_described(self.name, self.parts[0], shape),)

    def rows(self, seed: int, start: int, stop: int, *, held: dict[int, Array] | None = None) -> Array:
        """The rows from `start` to `stop`, the same ones whatever else is asked for.

        `held` keeps what was drawn last, for a caller that goes on from there.
        """
        # How many rows are drawn together depends on the size of a row alone.
        size = max(1, min(BLOCK_ROWS, BLOCK_CELLS // max(self.cells, 1)))
        blocks = range(start // size, max(start // size + 1, -(-stop // size)))
        known = held or {}
        drawn = [known[block] if block in known else self._block(seed, block, size) for block in blocks]
        if held is not None:
            held.clear()
            held[blocks[-1]] = drawn[-1]
        together = drawn[0] if len(drawn) == 1 else np.concatenate(drawn)
        begun = blocks[0] * size
        return together[start - begun : stop - begun]

    def _block(self, seed: int, block: int, size: int) -> Array:
        named = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "little")
        random = np.random.default_rng([seed & 0xFFFFFFFFFFFFFFFF, named, block])
        if len(self.parts) == 1:
            return typed(self.parts[0].values.draw(random, (size, *self.shape)), self.dtype)
        shape = (size, *self.shape[:-1])
        drawn = [typed(part.values.draw(random, shape), self.dtype) for part in self.parts]
        return np.stack(drawn, axis=-1)


def typed(drawn: Array, dtype: str) -> Array:
    """Values in the type of their column; a category of a number column may stand among objects."""
    if dtype in ("object", "string"):
        return drawn.astype(object)
    if drawn.dtype.kind == "O":
        drawn = np.array([np.nan if value is None else value for value in drawn.ravel()]).reshape(drawn.shape)
    target: Any = numpy_dtype(dtype)
    if target.kind in "iu" and drawn.dtype.kind == "f":
        drawn = np.rint(drawn)
    return drawn.astype(target)


def _described(name: str, part: Part, shape: str = "") -> GeneratedColumn:
    return GeneratedColumn(name, part.values.text + shape, part.why, part.known)


MOST_CUTS = 4_096
"""Thresholds of one feature that are kept; of more, as many spread evenly."""

NEAREST_CUTS = 1e-5
"""Thresholds nearer than this share of their range are taken for one."""

VOCABULARY = ("alpha", "beta", "gamma", "delta", "one two", "")
MISSING_SHARE = 0.05

Place: TypeAlias = tuple[str, int | None]
"""An input, and which of its columns; None where a clue speaks of all its values."""


class About(IntEnum):
    """What a clue is about, in the order in which clues count."""

    ROLE = 0
    CATEGORIES = 1
    IDS = 2
    WORDS = 3
    THRESHOLDS = 4
    SCALE = 5
    RANGE = 6
    FILL = 7
    FORM = 8
    GAPS = 9


@dataclass(frozen=True, slots=True)
class Clue:
    """One thing a model says. `told` depends on what it is about; `why` names who says so.

    Categories and words: the values. Ids: how many there are. Thresholds: the cuts. Scale: mean and deviation.
    Range: both ends. Fill: the value. Role and form: what to draw. Gaps: nothing, missing values are handled.
    `sure` is false where the model does not say so itself.
    """

    about: About
    told: tuple[Any, ...]
    why: str
    sure: bool = True


SPREAD = frozenset({About.SCALE, About.RANGE})
"""Two ways of saying how far values go; one model's word is enough."""


@dataclass(slots=True)
class Clues:
    """Clues by the place they speak of.

    `shapes` has what a model without declared shapes lets be concluded, `lone` the inputs of a single column.
    """

    found: dict[Place, list[Clue]] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    lone: frozenset[str] = frozenset()

    def add(self, place: Place, about: About, told: Iterable[Any], why: str, *, sure: bool = True) -> None:
        """Note a clue; figures that are not finite say nothing."""
        clue = Clue(about, tuple(told), why, sure)
        numbers = [value for value in clue.told if isinstance(value, float)]
        if about in (About.SCALE, About.RANGE, About.FILL) and any(value - value != 0 for value in numbers):
            return
        self.found.setdefault(place, []).append(clue)

    def of(self, name: str, index: int | None = None) -> list[Clue]:
        """What is said of one column, then what is said of the whole input."""
        own = self.found.get((name, index), []) if index is not None else []
        return [*own, *self.found.get((name, None), [])]

    @property
    def sequence(self) -> tuple[int, ...] | None:
        """The concluded shape of an input that is looked up in an embedding; None if there is none."""
        ids = {name for (name, _), found in self.found.items() if any(clue.about is About.IDS for clue in found)}
        return next((shape for name, shape in self.shapes.items() if name in ids), None)

    def columns(self, name: str) -> int:
        """One more than the last column of an input that anything is said of."""
        return max((index + 1 for (found, index) in self.found if found == name and index is not None), default=0)


def part_of(clues: Sequence[Clue], *, dtype: str) -> Part:
    """What to draw; the first clue of the highest precedence decides, gaps are added where they are handled."""
    ranked = sorted((clue for clue in clues if clue.about is not About.GAPS), key=lambda clue: clue.about)
    part = _decided(ranked, dtype) or _unknown(dtype)
    gaps = next((clue for clue in clues if clue.about is About.GAPS), None)
    if gaps is None or not isinstance(part.values, Normal | Between | Cells | OneOf | Words):
        return part
    if isinstance(part.values, OneOf) and None in part.values.values:
        return part
    return Part(WithGaps(part.values, MISSING_SHARE), f"{part.why}; {gaps.why}", part.known)


def _decided(ranked: Sequence[Clue], dtype: str) -> Part | None:
    if not ranked:
        return None
    first = ranked[0]
    same = [clue for clue in ranked if clue.about is first.about]
    values: Values
    if first.about is About.CATEGORIES:
        common = [value for value in first.told if all(value in clue.told for clue in same)]
        values = OneOf(tuple(common or first.told))
    elif first.about is About.IDS:
        smallest = min(same, key=lambda clue: clue.told[0])
        return Part(Between(0, max(0, smallest.told[0] - 1), whole=True), smallest.why)
    elif first.about is About.WORDS:
        values = Words(tuple(first.told))
    elif first.about is About.THRESHOLDS:
        return _between_cuts(same, next((clue for clue in ranked if clue.about is About.SCALE), None))
    elif first.about is About.SCALE:
        values = Normal(float(first.told[0]), abs(float(first.told[1])) or 1.0)
        bounds = next((clue for clue in ranked if clue.about is About.RANGE), None)
        if bounds is not None:
            return _inside(values, bounds, first, dtype)
    elif first.about is About.RANGE:
        low, high = float(first.told[0]), float(first.told[1])
        values = Between(low, high if high > low else low + 1.0, whole=_whole(dtype))
    elif first.about is About.FILL:
        values = _around(first.told[0])
    else:
        values = first.told[0]
    return Part(values, first.why, first.sure)


def _between_cuts(clues: Sequence[Clue], scale: Clue | None) -> Part:
    cuts = np.unique(np.array([cut for clue in clues for cut in clue.told], dtype=np.float64))
    cuts = cuts[np.isfinite(cuts)]
    if len(cuts) > MOST_CUTS:
        cuts = cuts[np.linspace(0, len(cuts) - 1, MOST_CUTS).astype(int)]
    spread = float(cuts[-1] - cuts[0]) or abs(float(cuts[0])) or 1.0
    # Thresholds that differ by rounding alone: between them only rows that fail in float32 by chance would be drawn.
    apart = np.maximum(NEAREST_CUTS * spread, NEAREST_CUTS * np.abs(cuts))
    cuts = cuts[np.concatenate([[True], np.diff(cuts) > apart[1:]])]
    low, high = float(cuts[0]) - 0.1 * spread, float(cuts[-1]) + 0.1 * spread
    if scale is not None:
        mean, deviation = float(scale.told[0]), abs(float(scale.told[1]))
        low, high = min(low, mean - 3 * deviation), max(high, mean + 3 * deviation)
    # Trees split whole numbers halfway between two of them, or at one of them.
    halves = 2.0 * cuts
    whole = len(cuts) >= 3 and bool(np.all(halves == np.rint(halves)))
    if whole:
        low, high = float(np.floor(low)), float(np.ceil(high))
    return Part(Cells(tuple(cuts.tolist()), low, high, whole=whole), clues[0].why)


def _inside(values: Normal, bounds: Clue, scale: Clue, dtype: str) -> Part:
    """A spread that is cut off: evenly over what both allow."""
    low = max(float(bounds.told[0]), values.mean - 3 * values.deviation)
    high = min(float(bounds.told[1]), values.mean + 3 * values.deviation)
    if low >= high:
        return Part(values, scale.why)
    return Part(Between(low, high, whole=_whole(dtype)), f"{scale.why}; {bounds.why}")


def _around(value: Any) -> Values:
    if isinstance(value, str):
        return OneOf((value, *(word for word in VOCABULARY[:3] if word != value)))
    return Normal(float(value), abs(float(value)) / 2 or 1.0)


def _unknown(dtype: str) -> Part:
    if dtype in ("string", "object"):
        return Part(OneOf(VOCABULARY), "nothing is known about it: a small vocabulary", known=False)
    if dtype == "bool":
        return Part(Between(0, 1, whole=True), "its type has two values")
    if _whole(dtype):
        return Part(Between(0, 9, whole=True), "nothing is known about it: 0 to 9", known=False)
    return Part(Normal(), "nothing is known about it: a standard normal", known=False)


def _whole(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))


def nodes_by_feature(features: Array) -> dict[int, Array]:
    """The nodes of trees that ask for each feature; a leaf has a feature below zero."""
    order = np.argsort(features, kind="stable")
    asked, starts = np.unique(features[order], return_index=True)
    parts = np.split(order, starts[1:])
    return {int(feature): nodes for feature, nodes in zip(asked, parts, strict=True) if feature >= 0}


def merged(clues: Sequence[Clues], names: Sequence[Mapping[str, str]]) -> Clues:
    """The clues of several models under the names of the data's columns; of two alike the first model's count.

    Missing values are drawn only where the first model that says anything takes them: the others have to follow.
    """
    together = Clues()
    for one, renamed in zip(clues, names, strict=True):
        decides = not together.found
        for (name, index), found in one.found.items():
            if name not in renamed:
                continue
            known = together.found.setdefault((renamed[name], None if name in one.lone else index), [])
            taken = {clue.about for clue in known}
            taken |= SPREAD if taken & SPREAD else set()
            allowed = [clue for clue in found if decides or clue.about is not About.GAPS]
            known.extend(clue for clue in allowed if clue.about not in taken)
        for name, shape in one.shapes.items():
            together.shapes.setdefault(renamed.get(name, name), shape)
    return together
