"""Whether noise is small against what a model tells apart: a tolerance that is not would let any model pass. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from likewise.contracts.data import Tensors
from likewise.contracts.measuring import Tolerance
from likewise.contracts.models import Kind
from likewise.differing import is_numeric
from likewise.noising.movements import Movement, noise_of, round_up

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
