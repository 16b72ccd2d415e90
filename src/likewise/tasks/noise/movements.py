"""How far answers to the same rows are apart, and the tolerance that covers it with a margin. Pure.

Whether noise is small against what a model tells apart: a tolerance that is not would let any model pass. Pure.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from likewise.compare.differences import differences, is_numeric, same_labels
from likewise.compare.metrics.closeness import RELATIVE_FLOOR
from likewise.contracts.comparison import Tolerance
from likewise.contracts.data import Array, Tensors
from likewise.contracts.models import Kind
from likewise.errors import ModelError
from likewise.report.noise import OutputLimit, OutputNoise

SPACING = float(np.finfo(np.float32).eps)
"""No tolerance is proposed below the spacing of float32, in which most deployed models answer."""

LARGE = 0.1
"""The relative part of a tolerance comes from answers of at least this part of the largest; near zero it explodes."""

ROUNDING = 1e-3
"""Movements of a larger part of the answers are no rounding, which follows their size: they are allowed as they are."""

FAR = 1e-3
RARE = 1e3
"""A movement is a jump if it is above this part of the largest answer, and so many times what half of the values do."""


@dataclass(frozen=True, slots=True)
class Movement:
    """The movements of one output: how far each finite number went, and how large it was before.

    `jumps`: in some of the answers a few values went far, and the rest hardly at all.
    """

    output: str
    values: int = 0
    changed: int = 0
    nonfinite: int = 0
    numeric: bool = True
    distances: Array | None = None
    sizes: Array | None = None
    jumps: bool = False

    def merge(self, other: Movement) -> Movement:
        return replace(
            self,
            values=self.values + other.values,
            changed=self.changed + other.changed,
            nonfinite=self.nonfinite + other.nonfinite,
            distances=_together(self.distances, other.distances),
            sizes=_together(self.sizes, other.sizes),
            jumps=self.jumps or other.jumps,
        )

    @property
    def largest(self) -> float:
        """The largest answer."""
        return 0.0 if self.sizes is None or not self.sizes.size else float(self.sizes.max())

    @property
    def furthest(self) -> float:
        """The largest movement."""
        return 0.0 if self.distances is None or not self.distances.size else float(self.distances.max())


def movements(before: Tensors, after: Tensors, *, labels: frozenset[str]) -> list[Movement]:
    """How far every output went between two answers to the same rows."""
    if before.keys() != after.keys():
        raise ModelError(f"it gives other outputs: {', '.join(after)} instead of {', '.join(before)}")
    return [_movement(name, before[name], after[name], label=name in labels) for name in before]


def merged(found: Iterable[Movement]) -> list[Movement]:
    """The movements of several answers, one entry an output."""
    totals: dict[str, Movement] = {}
    for movement in found:
        before = totals.get(movement.output)
        totals[movement.output] = movement if before is None else before.merge(movement)
    return list(totals.values())


def described(movement: Movement) -> OutputNoise:
    """A movement in figures."""
    noise = OutputNoise(
        movement.output,
        movement.values,
        movement.changed / max(movement.values, 1),
        nonfinite=movement.nonfinite,
        jumps=movement.jumps,
    )
    if movement.distances is None or movement.sizes is None or not movement.distances.size:
        return noise
    relative = movement.distances / np.maximum(movement.sizes, RELATIVE_FLOOR)
    return replace(
        noise,
        max_abs=movement.furthest,
        p99_abs=_p99(movement.distances),
        max_rel=float(relative.max()),
        p99_rel=_p99(relative),
    )


def propose(found: Mapping[str, Sequence[Movement]], *, margin: float) -> tuple[Tolerance | None, str | None]:
    """The tolerance that covers `margin` times every movement that is no jump, and the source that takes most of it."""
    noise = {name: _noise(entries) for name, entries in found.items()}
    every = [movement for entries in noise.values() for movement in entries]
    scales = [scale for scale in _scales(found).values() if scale]
    if not scales:
        return None, None
    relative = round_up(margin * max([SPACING, *(_relative(movement) for movement in every)]))
    relative = relative if relative <= ROUNDING else 0.0
    left = [_left(movement, relative, margin) for movement in every]
    tolerance = Tolerance(round_up(max([margin * SPACING * min(scales), *left])), relative)
    taken = {
        name: max((_share(movement, tolerance) for movement in entries), default=0.0) for name, entries in noise.items()
    }
    most = max(taken, key=lambda name: taken[name], default=None)
    return tolerance, most if most is not None and taken[most] else None


def limits(found: Mapping[str, Sequence[Movement]], *, margin: float) -> tuple[OutputLimit, ...]:
    """What every output asks for on its own."""
    proposed = []
    for output, scale in _scales(found).items():
        if scale:
            proposed.append(OutputLimit(output, scale, round_up(margin * noise_of(found, output))))
    return tuple(proposed)


def noise_of(found: Mapping[str, Sequence[Movement]], output: str) -> float:
    """The furthest that an output of numbers moves without a jump, and at least the spacing of float32."""
    moved = [m.furthest for entries in found.values() for m in _noise(entries) if m.output == output]
    return max([SPACING * _scales(found).get(output, 0.0), *moved])


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


def _scales(found: Mapping[str, Sequence[Movement]]) -> dict[str, float]:
    """The largest answer of every output that holds numbers."""
    scales: dict[str, float] = {}
    for movement in (movement for entries in found.values() for movement in entries):
        if movement.numeric:
            scales[movement.output] = max(scales.get(movement.output, 0.0), movement.largest)
    return scales


def _relative(movement: Movement) -> float:
    if movement.distances is None or movement.sizes is None or not movement.largest:
        return 0.0
    large = movement.sizes >= LARGE * movement.largest
    return float((movement.distances[large] / movement.sizes[large]).max())


def _left(movement: Movement, relative: float, margin: float) -> float:
    """What the relative part of the tolerance leaves to the absolute one."""
    if movement.distances is None or movement.sizes is None or not movement.distances.size:
        return 0.0
    with np.errstate(over="ignore"):
        return float((margin * movement.distances - relative * movement.sizes).max())


def _share(movement: Movement, tolerance: Tolerance) -> float:
    if movement.distances is None or movement.sizes is None or not movement.distances.size:
        return 0.0
    return float((movement.distances / (tolerance.absolute + tolerance.relative * movement.sizes)).max())


def _movement(name: str, before: Array, after: Array, *, label: bool) -> Movement:
    if before.shape != after.shape:
        raise ModelError(f"{name!r} has the shape {list(after.shape)} instead of {list(before.shape)}")
    if label or not (is_numeric(before) and is_numeric(after)):
        changed = int(np.count_nonzero(~same_labels(before, after)))
        return Movement(name, before.size, changed, numeric=False)
    blocks = list(differences(before, after)) if before.size else []
    distances = [np.abs(block.difference) for block in blocks]
    broken = sum(0 if block.broken is None else int(np.count_nonzero(block.broken)) for block in blocks)
    moved = sum(int(np.count_nonzero(part)) for part in distances)
    found = Movement(
        name,
        before.size,
        moved + broken,
        broken,
        distances=np.concatenate([np.zeros(0), *distances]),
        sizes=np.concatenate([np.zeros(0), *(np.abs(block.reference) for block in blocks)]),
    )
    return replace(found, jumps=_jumps(found))


def _jumps(movement: Movement) -> bool:
    if movement.distances is None or not movement.distances.size:
        return False
    usual = float(np.median(movement.distances))
    return movement.furthest > FAR * movement.largest and movement.furthest > RARE * usual


def _together(one: Array | None, other: Array | None) -> Array | None:
    return one if other is None else other if one is None else np.concatenate([one, other])


def _p99(values: Array) -> float:
    return float(np.quantile(values, 0.99, method="higher"))


SHARE = 0.1
"""A tolerance may be this part of the range of an output's answers at most, and of labels so many may change."""

PROBABILITY = 0.1
"""A tolerance for probabilities may be this large at most, however far they spread."""


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


def refused(found: Mapping[str, Sequence[Movement]], answered: Sequence[Spread], *, margin: float) -> tuple[str, ...]:
    """Why no tolerance can be proposed, one reason an output; empty where one can."""
    reasons = []
    for spread in answered:
        moved = noise_of(found, spread.output)
        needed = round_up(margin * moved)
        if needed > spread.most and (spread.range or _moves(found, spread.output)):
            part = f"{needed / spread.range:.0%} of their range" if spread.range else "and they are all the same"
            reasons.append(
                f"the answers of {spread.output} themselves move by {moved:.2g}; "
                f"{margin:g} times that, rounded up, is {needed:g}, {part}"
            )
    changed: dict[str, float] = {}
    for movement in (movement for entries in found.values() for movement in entries if not movement.numeric):
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
        f"the answers of {spread.output} are all the same: nothing tells whether a tolerance is small against them"
        for spread in answered
        if not spread.range
    ]


def _moves(found: Mapping[str, Sequence[Movement]], output: str) -> bool:
    return any(movement.furthest for entries in found.values() for movement in entries if movement.output == output)
