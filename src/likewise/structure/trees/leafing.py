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
    to those of the other: binary classifiers keep one output or both. `order` is set where the outputs
    stand in another order: for each of the candidate's the one of the reference that it holds.
    `misplaced`: the values are the same, but some trees add theirs to another output. `rounded` names the
    narrower type that nearly all values were rounded to. None of it says anything where `told` is false.
    """

    pairs: Array
    differs: Array
    scale: float
    outputs: Array
    order: tuple[int, ...] = ()
    misplaced: bool = False
    rounded: str = ""
    told: bool = True

    @property
    def share(self) -> float:
        return float(self.differs.mean()) if len(self.differs) else 0.0

    @property
    def in_place(self) -> bool:
        """Can the values be compared one by one?"""
        return self.told and not self.order and not self.misplaced


def compared(ours: Ensemble, theirs: Ensemble, laid: Alignment) -> Leafage:
    """Find the measure and the layout in which most leaves agree, and the leaves that do not."""
    import numpy as np

    both = (ours.feature[laid.reference] == LEAF) & (theirs.feature[laid.candidate] == LEAF)
    pairs = np.flatnonzero(both)
    matrices = list(_matrices(ours.outputs, theirs.outputs))
    known = ours.comparable and theirs.comparable and len(ours.leaf_value) and len(theirs.leaf_value)
    if not known or not matrices or not len(pairs):
        return Leafage(pairs, np.zeros(len(pairs), dtype=bool), 1.0, np.zeros((0, 0)), told=False)
    held = ours.values()[laid.reference[pairs]]
    found = theirs.values()[laid.candidate[pairs]]
    ways = [
        (_equal(held @ matrix, found, scale), scale, matrix)
        for matrix in matrices
        for scale in _scales(held @ matrix, found)
    ]
    equal, scale, matrix = max(ways, key=lambda way: (float(way[0].mean()), way[1] == 1.0))
    if not equal.all() and (rounded := _rounded(held @ matrices[0], found)):
        return Leafage(pairs, ~ways[0][0], 1.0, matrices[0], rounded=rounded)
    agreed = float(equal.mean())
    if agreed < 0.5 and scale != 1.0:  # a factor that few leaves agree on says nothing
        equal, scale, matrix = ways[0]
    if agreed < 0.5 and (order := _order(held, found)):
        return Leafage(pairs, ~equal, 1.0, matrix, order=order)
    return Leafage(pairs, ~equal, scale, matrix, misplaced=_misplaced(held, found, equal))


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


def _rounded(wanted: Array, found: Array) -> str:
    """The narrower type that the values of nearly all leaves were rounded to; empty if to none."""
    import numpy as np

    with np.errstate(over="ignore"):
        half = wanted.astype(np.float16).astype(np.float64)
        bits = wanted.astype(np.float32).view(np.uint32)
    brain = ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    for name, rounded in (("float16", half), ("bfloat16", brain)):
        if (np.abs(found - rounded) <= 1e-6 * np.abs(rounded) + 1e-12).all(axis=1).mean() > 0.95:
            return name
    return ""


def _order(held: Array, found: Array) -> tuple[int, ...]:
    """Which output of the reference each of the candidate's is, if they are the same but for their order."""
    import numpy as np

    count = held.shape[1]
    if held.shape != found.shape or not 1 < count <= 64:
        return ()
    order = np.array([np.abs(held - found[:, [output]]).mean(axis=0).argmin() for output in range(count)])
    if (order == np.arange(count)).all() or len(set(order.tolist())) < count:
        return ()
    return tuple(order.tolist()) if float(_equal(held[:, order], found, 1.0).mean()) > 0.9 else ()


def _misplaced(held: Array, found: Array, equal: Array) -> bool:
    """Does every leaf hold the same one number, but some for another output?"""
    single = ((held != 0).sum(axis=1) <= 1).all() and ((found != 0).sum(axis=1) <= 1).all()
    if not single or max(held.shape[1], found.shape[1]) < 2:
        return False
    same = _equal(held.sum(axis=1, keepdims=True), found.sum(axis=1, keepdims=True), 1.0)
    return bool(same.mean() > 0.99 and (same & ~equal).mean() > 0.02)
