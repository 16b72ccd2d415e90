"""The values of the leaves of two ensembles: equal, in another measure, or different."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from likewise.contracts.data import Array
from likewise.structure.trees.aligning import Alignment
from likewise.structure.trees.ensemble import LEAF, Ensemble

RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""What rounding may change of a leaf's value, of itself and of the largest value."""


@dataclass(frozen=True, slots=True, eq=False)
class Leafage:
    """How the leaves compare.

    `pairs` are the pairs of leaves, `differs` which of them have another value. A leaf of the candidate
    should hold `scale` times the reference's values through `outputs`, a matrix from the outputs of one
    to those of the other: binary classifiers keep one output or both. `permuted`: the outputs stand in
    another order. `misplaced`: the values are the same, but trees add theirs to another output. None of
    it says anything where `told` is false.
    """

    pairs: Array
    differs: Array
    scale: float
    outputs: Array
    permuted: bool = False
    misplaced: bool = False
    told: bool = True

    @property
    def share(self) -> float:
        return float(self.differs.mean()) if len(self.differs) else 0.0


def compared(ours: Ensemble, theirs: Ensemble, laid: Alignment) -> Leafage:
    import numpy as np

    both = (ours.feature[laid.reference] == LEAF) & (theirs.feature[laid.candidate] == LEAF)
    pairs = np.flatnonzero(both)
    unknown = Leafage(pairs, np.zeros(len(pairs), dtype=bool), 1.0, np.zeros((0, 0)), told=False)
    if not (ours.comparable and theirs.comparable and len(ours.leaf_value) and len(theirs.leaf_value) and len(pairs)):
        return unknown
    held = ours.values()[laid.reference[pairs]]
    found = theirs.values()[laid.candidate[pairs]]
    ways = [
        (_equal(held @ matrix, found, scale), scale, matrix)
        for matrix in _matrices(ours.outputs, theirs.outputs)
        for scale in _scales(held @ matrix, found)
    ]
    if not ways:
        return unknown
    equal, scale, matrix = max(ways, key=lambda way: (float(way[0].mean()), way[1] == 1.0))
    unlike = not equal.all()
    permuted = float(equal.mean()) < 0.5 and _permuted(held, found)
    misplaced = unlike and not permuted and _misplaced(held, found)
    return Leafage(pairs, ~equal, scale, matrix, permuted=permuted, misplaced=misplaced)


def _equal(wanted: Array, found: Array, scale: float) -> Array:
    import numpy as np

    wanted = wanted * scale
    largest = float(np.abs(wanted).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        near = np.abs(found - wanted) <= RELATIVE * np.abs(wanted) + ABSOLUTE * largest
    return np.asarray(near.all(axis=1))


def _scales(wanted: Array, found: Array) -> Iterator[float]:
    """One, and the factor that most values agree on."""
    import numpy as np

    yield 1.0
    known = (np.abs(wanted) > 1e-6 * np.abs(wanted).max(initial=0.0)) & np.isfinite(found) & (found != 0)
    if known.any():
        factor = float(np.median(found[known] / wanted[known]))
        if np.isfinite(factor) and factor != 0 and abs(factor - 1) > 1e-4:
            yield factor


def _matrices(ours: int, theirs: int) -> Iterator[Array]:
    """The ways in which exporters lay out the outputs of a leaf."""
    import numpy as np

    if ours == theirs:
        yield np.eye(ours)
    if ours == 1 and theirs == 2:
        yield np.array([[-1.0, 1.0]])
        yield np.array([[0.0, 1.0]])
    if ours == 2 and theirs == 1:
        yield np.array([[0.0], [1.0]])
    if ours == 2 and theirs == 2:
        yield np.array([[0.0, 0.0], [0.0, 1.0]])
    if ours != theirs and max(ours, theirs) > 2:
        yield np.eye(ours, theirs)


def _misplaced(held: Array, found: Array) -> bool:
    """Does every leaf hold the same one number, but for the output it is added to?"""
    single = ((held != 0).sum(axis=1) <= 1).all() and ((found != 0).sum(axis=1) <= 1).all()
    if not single or held.shape[1] < 2:
        return False
    same = _equal(held.sum(axis=1, keepdims=True), found.sum(axis=1, keepdims=True), 1.0)
    return bool(same.mean() > 0.99)


def _permuted(held: Array, found: Array) -> bool:
    """Are the outputs the same but for their order?"""
    import numpy as np

    if held.shape != found.shape or not 1 < held.shape[1] <= 64:
        return False
    distance = np.abs(held[:, :, None] - found[:, None, :]).mean(axis=0)
    nearest = distance.argmin(axis=0)
    order = np.arange(held.shape[1])
    if (nearest == order).all() or len(set(nearest.tolist())) < len(order):
        return False
    return float(_equal(held[:, nearest], found, 1.0).mean()) > 0.9
