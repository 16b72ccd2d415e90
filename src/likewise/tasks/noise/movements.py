"""How far answers to the same rows are apart, and the tolerance that covers it with a margin. Pure.

A tolerance that is not small against what a model tells apart would let any model pass, so that none is proposed then.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeAlias

import numpy as np

from likewise.compare.differences import differences, is_numeric, same_labels
from likewise.compare.metrics.closeness import RELATIVE_FLOOR
from likewise.contracts.comparison import Tolerance
from likewise.contracts.data import Array, Tensors
from likewise.contracts.models import Kind
from likewise.contracts.results import OutputLimit, OutputNoise
from likewise.contracts.values import dataclass
from likewise.errors import ModelError

SPACING = float(np.finfo(np.float32).eps)
"""No tolerance is proposed below the spacing of float32, in which most deployed models answer."""

LARGE = 0.1
"""The relative part of a tolerance comes from answers of at least this part of the largest; near zero it explodes."""

ROUNDING = 1e-3
"""Movements of a larger part of the answers are no rounding, which follows their size: they are allowed as they are."""

FAR = 1e-3
RARE = 1e3
"""A movement is a jump if it is above this part of the largest answer, and so many times what half of the values do."""

SHARE = 0.1
"""A tolerance may be this part of the range of an output's answers at most, and of labels so many may change."""

PROBABILITY = 0.1
"""A tolerance for probabilities may be this large at most, however far they spread."""

NONE = np.zeros(0)


@dataclass(frozen=True, slots=True)
class Movement:
    """The movements of one output: how far each finite number went, and how large it was before.

    `jumps`: in some of the answers a few values went far, and the rest hardly at all.
    """

    output: str
    values: int
    changed: int
    nonfinite: int = 0
    numeric: bool = True
    distances: Array = field(default_factory=lambda: NONE)
    sizes: Array = field(default_factory=lambda: NONE)
    jumps: bool = False

    @property
    def largest(self) -> float:
        """The largest answer."""
        return float(self.sizes.max(initial=0.0))

    @property
    def furthest(self) -> float:
        """The largest movement."""
        return float(self.distances.max(initial=0.0))


Found: TypeAlias = Mapping[str, Sequence[Movement]]
"""What moved, by the reason why."""


def movements(before: Tensors, after: Tensors, *, labels: frozenset[str]) -> list[Movement]:
    """How far every output went between two answers to the same rows."""
    if before.keys() != after.keys():
        raise ModelError(f"it gives other outputs: {', '.join(after)} instead of {', '.join(before)}")
    return [_movement(name, before[name], after[name], label=name in labels) for name in before]


def _movement(name: str, before: Array, after: Array, *, label: bool) -> Movement:
    if before.shape != after.shape:
        raise ModelError(f"{name!r} has the shape {list(after.shape)} instead of {list(before.shape)}")
    if label or not (is_numeric(before) and is_numeric(after)):
        return Movement(name, before.size, int(np.count_nonzero(~same_labels(before, after))), numeric=False)
    blocks = list(differences(before, after)) if before.size else []
    distances = np.concatenate([NONE, *(np.abs(block.difference) for block in blocks)])
    sizes = np.concatenate([NONE, *(np.abs(block.reference) for block in blocks)])
    broken = sum(0 if block.broken is None else int(np.count_nonzero(block.broken)) for block in blocks)
    changed = int(np.count_nonzero(distances)) + broken
    moved = Movement(name, before.size, changed, broken, distances=distances, sizes=sizes)
    far = moved.furthest > FAR * moved.largest
    return replace(moved, jumps=far and moved.furthest > RARE * float(np.median(distances)))


def described(found: Iterable[Movement]) -> tuple[OutputNoise, ...]:
    """The movements of several answers in figures, one entry an output."""
    outputs: dict[str, list[Movement]] = {}
    for movement in found:
        outputs.setdefault(movement.output, []).append(movement)
    return tuple(_described(output, entries) for output, entries in outputs.items())


def _described(output: str, found: Sequence[Movement]) -> OutputNoise:
    values = sum(movement.values for movement in found)
    noise = OutputNoise(
        output,
        values,
        sum(movement.changed for movement in found) / max(values, 1),
        nonfinite=sum(movement.nonfinite for movement in found),
        jumps=any(movement.jumps for movement in found),
    )
    distances = np.concatenate([movement.distances for movement in found])
    if not distances.size:
        return noise
    relative = distances / np.maximum(np.concatenate([movement.sizes for movement in found]), RELATIVE_FLOOR)
    return replace(
        noise,
        max_abs=float(distances.max()),
        p99_abs=_p99(distances),
        max_rel=float(relative.max()),
        p99_rel=_p99(relative),
    )


def _p99(values: Array) -> float:
    return float(np.quantile(values, 0.99, method="higher"))


def propose(found: Found, *, margin: float) -> tuple[Tolerance | None, str | None]:
    """The tolerance that covers `margin` times every movement that is no jump, and the source that takes most of it."""
    noise = {name: _noise(entries) for name, entries in found.items()}
    every = [movement for entries in noise.values() for movement in entries]
    scales = [scale for scale in _scales(found).values() if scale]
    if not scales:
        return None, None
    relative = round_up(margin * max([SPACING, *map(_relative, every)]))
    relative = relative if relative <= ROUNDING else 0.0
    with np.errstate(over="ignore"):
        left = [float((margin * moved.distances - relative * moved.sizes).max(initial=0.0)) for moved in every]
    tolerance = Tolerance(round_up(max([margin * SPACING * min(scales), *left])), relative)
    taken = {
        name: max((_taken(movement, tolerance) for movement in entries), default=0.0) for name, entries in noise.items()
    }
    most = max(taken, key=lambda name: taken[name], default=None)
    return tolerance, most if most is not None and taken[most] else None


def limits(found: Found, *, margin: float) -> tuple[OutputLimit, ...]:
    """What every output asks for on its own."""
    return tuple(
        OutputLimit(output, scale, round_up(margin * _furthest(found, output)))
        for output, scale in _scales(found).items()
        if scale
    )


def round_up(value: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    if not value > 0:
        return 0.0
    if not math.isfinite(value):
        return sys.float_info.max
    power = math.floor(math.log10(value))
    steps = (float(f"{digit}e{exponent}") for exponent in (power - 1, power, power + 1) for digit in (1, 2, 5))
    return next(step for step in steps if step >= value)


def _noise(entries: Iterable[Movement]) -> list[Movement]:
    return [movement for movement in entries if movement.numeric and not movement.jumps]


def _scales(found: Found) -> dict[str, float]:
    """The largest answer of every output that holds numbers."""
    scales: dict[str, float] = {}
    for movement in (movement for entries in found.values() for movement in entries if movement.numeric):
        scales[movement.output] = max(scales.get(movement.output, 0.0), movement.largest)
    return scales


def _furthest(found: Found, output: str) -> float:
    """The furthest that an output of numbers moves without a jump, and at least the spacing of float32."""
    moved = [m.furthest for entries in found.values() for m in _noise(entries) if m.output == output]
    return max([SPACING * _scales(found).get(output, 0.0), *moved])


def _relative(movement: Movement) -> float:
    large = (movement.sizes >= LARGE * movement.largest) & (movement.sizes > 0)
    return float((movement.distances[large] / movement.sizes[large]).max(initial=0.0))


def _taken(movement: Movement, tolerance: Tolerance) -> float:
    """The part of a tolerance that a movement takes."""
    allowed = tolerance.absolute + tolerance.relative * movement.sizes
    return float((movement.distances / allowed).max(initial=0.0))


@dataclass(frozen=True, slots=True)
class Spread:
    """What the answers of one output of numbers range over, and the largest of them."""

    output: str
    kind: Kind
    range: float
    largest: float

    @property
    def most(self) -> float:
        """The largest tolerance that still tells answers apart."""
        allowed = SHARE * self.range
        return min(allowed, PROBABILITY) if self.kind is Kind.PROBABILITY else allowed


def spreads(given: Tensors, kinds: Mapping[str, Kind]) -> tuple[Spread, ...]:
    """How far the answers spread, for each output that holds finite numbers."""
    found = []
    for name, array in given.items():
        kind = kinds.get(name, Kind.VALUE)
        if kind is Kind.LABEL or not is_numeric(array):
            continue
        values = np.asarray(array, dtype=np.float64)
        values = values[np.isfinite(values)]
        if values.size:
            found.append(Spread(name, kind, float(np.ptp(values)), float(np.abs(values).max())))
    return tuple(found)


def refused(found: Found, answered: Sequence[Spread], *, margin: float) -> tuple[str, ...]:
    """Why no tolerance can be proposed, one reason an output; empty where one can."""
    every = [movement for entries in found.values() for movement in entries]
    reasons = []
    for spread in answered:
        moved = _furthest(found, spread.output)
        needed = round_up(margin * moved)
        moves = any(movement.furthest for movement in every if movement.output == spread.output)
        if needed > spread.most and (spread.range or moves):
            part = f"{needed / spread.range:.0%} of their range" if spread.range else "and they are all the same"
            reasons.append(
                f"the answers of {spread.output} themselves move by {moved:.2g}; "
                f"{margin:g} times that, rounded up, is {needed:g}, {part}"
            )
    changed: dict[str, float] = {}
    for movement in (movement for movement in every if not movement.numeric):
        share = movement.changed / max(movement.values, 1)
        changed[movement.output] = max(changed.get(movement.output, 0.0), share)
    reasons += [f"{share:.0%} of {output} change by themselves" for output, share in changed.items() if share > SHARE]
    return tuple(reasons)


def suits_all(tolerance: Tolerance, answered: Sequence[Spread]) -> bool:
    """Is one tolerance small against the answers of every output?"""
    return all(
        tolerance.absolute + tolerance.relative * spread.largest <= spread.most for spread in answered if spread.range
    )


def unknown(answered: Sequence[Spread]) -> list[str]:
    """Outputs that tell nothing about what is small."""
    return [
        f"the answers of {spread.output} are all the same: nothing shows whether a tolerance is small against them"
        for spread in answered
        if not spread.range
    ]
