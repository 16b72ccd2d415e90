"""Values of one column, drawn at random from what is known about them.

Nothing here knows a model: a column says what its values look like, and the same seed draws the same rows
whatever part of them is asked for.
"""

from __future__ import annotations

import hashlib
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
