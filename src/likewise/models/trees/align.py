"""Two ensembles laid side by side: which tree and node is which, where rows part ways, how the leaves compare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from likewise.contracts.data import Array
from likewise.models.trees.ensemble import CELLS, DEEPEST, LEAF, Ensemble, as_compared, goes_left

NOBODY = -1

RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""What rounding may change of a leaf's value, of itself and of the largest value."""


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """Nodes of both ensembles that stand in the same place of the same tree.

    `matched` has, for each tree of the reference, the tree of the candidate that stands for it, or -1.
    Pair k is the nodes `reference[k]` and `candidate[k]`; `left[k]` and `right[k]` are the pairs below
    it, -1 where at least one of both is a leaf. `roots` are the first pairs, one a matched tree.
    """

    matched: Array
    reference: Array
    candidate: Array
    left: Array
    right: Array
    roots: Array

    @property
    def count(self) -> int:
        return len(self.reference)


def aligned(reference: Ensemble, candidate: Ensemble) -> Alignment:
    """Match the trees, then walk both from the roots."""
    matched = _matched(reference, candidate)
    own = np.flatnonzero(matched >= 0)
    level = (reference.roots[own], candidate.roots[matched[own]])
    parts, lefts, rights = [level], [], []
    start = 0
    limit = 2 * (len(reference.feature) + len(candidate.feature))
    while len(level[0]):
        ours, theirs = level
        both = (reference.feature[ours] != LEAF) & (candidate.feature[theirs] != LEAF)
        size, below = len(ours), int(both.sum())
        left, right = np.full(size, NOBODY), np.full(size, NOBODY)
        left[both] = start + size + np.arange(below)
        right[both] = start + size + below + np.arange(below)
        lefts.append(left)
        rights.append(right)
        ours, theirs = ours[both], theirs[both]
        level = (
            np.concatenate([reference.left[ours], reference.right[ours]]),
            np.concatenate([candidate.left[theirs], candidate.right[theirs]]),
        )
        start += size
        if start + len(level[0]) > limit:  # nodes that lead in a circle
            lefts[-1][:], rights[-1][:] = NOBODY, NOBODY
            break
        parts.append(level)
    return Alignment(
        matched,
        np.concatenate([part[0] for part in parts])[:start],
        np.concatenate([part[1] for part in parts])[:start],
        np.concatenate(lefts) if lefts else np.zeros(0, np.int64),
        np.concatenate(rights) if rights else np.zeros(0, np.int64),
        np.arange(len(own)),
    )


def partings(
    alignment: Alignment, reference: Ensemble, candidate: Ensemble, seen: Array, given: Array
) -> tuple[Array, Array]:
    """Where rows take different paths: row and pair, the first of each row in each tree.

    `seen` is what the reference's trees are given, `given` what the candidate's are.
    """
    rows_found: list[Array] = []
    pairs_found: list[Array] = []
    step = max(1, CELLS // max(len(alignment.roots), 1))
    for start in range(0, len(seen), step):
        ours = as_compared(reference, seen[start : start + step])
        theirs = as_compared(candidate, given[start : start + step])
        row = np.repeat(np.arange(len(ours)), len(alignment.roots))
        pair = np.tile(alignment.roots, len(ours))
        for _ in range(DEEPEST):
            going = alignment.left[pair] != NOBODY
            row, pair = row[going], pair[going]
            if not len(pair):
                break
            node, other = alignment.reference[pair], alignment.candidate[pair]
            left = goes_left(reference, node, ours[row, reference.feature[node]])
            parted = left != goes_left(candidate, other, theirs[row, candidate.feature[other]])
            rows_found.append(row[parted] + start)
            pairs_found.append(pair[parted])
            left, row, pair = left[~parted], row[~parted], pair[~parted]
            pair = np.where(left, alignment.left[pair], alignment.right[pair])
    if not rows_found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(rows_found), np.concatenate(pairs_found)


def _matched(reference: Ensemble, candidate: Ensemble) -> Array:
    """Trees in order where they are alike, else by what they ask."""
    count, other = reference.trees, candidate.trees
    ours, theirs = _portraits(reference), _portraits(candidate)
    common = min(count, other)
    alike = sum(one == two for one, two in zip(ours, theirs, strict=False))
    matched = np.full(count, NOBODY)
    if alike >= (0.5 if count == other else 0.9) * common:
        matched[:common] = np.arange(common)
        return matched
    if sorted(columns for columns, _ in ours) == sorted(columns for columns, _ in theirs):
        places: dict[bytes, list[int]] = {}
        for index, (columns, _) in enumerate(theirs):
            places.setdefault(columns, []).append(index)
        return np.array([places[columns].pop(0) for columns, _ in ours])
    before = (0, 0)
    for block in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        gap = (block.a - before[0], block.b - before[1])
        if gap[0] == gap[1]:  # as many on both sides between two that are alike: changed, not missing
            matched[before[0] : block.a] = np.arange(before[1], block.b)
        matched[block.a : block.a + block.size] = np.arange(block.b, block.b + block.size)
        before = (block.a + block.size, block.b + block.size)
    if 2 * int((matched >= 0).sum()) < common:  # strangers: any order is as good as another
        matched[:] = NOBODY
        matched[:common] = np.arange(common)
    return matched


def _portraits(ensemble: Ensemble) -> list[tuple[bytes, bytes]]:
    """Each tree by the columns it asks for and, roughly, the thresholds, from the root down."""
    found = []
    rough = np.where(ensemble.group >= 0, 0.0, ensemble.threshold)
    with np.errstate(over="ignore"):
        rough = np.round(rough.astype(np.float32), 4) + np.float32(0)
    for root in ensemble.roots.tolist():
        level = np.array([root])
        columns, thresholds = [], []
        for _ in range(6):
            split = level[ensemble.feature[level] != LEAF]
            columns.append(ensemble.column[level])
            thresholds.append(rough[split])
            if not len(split):
                break
            level = np.stack([ensemble.left[split], ensemble.right[split]], axis=1).ravel()
        found.append((np.concatenate(columns).tobytes(), np.concatenate(thresholds).tobytes()))
    return found


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
    wanted = wanted * scale
    largest = float(np.abs(wanted).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        near = np.abs(found - wanted) <= RELATIVE * np.abs(wanted) + ABSOLUTE * largest
    return np.asarray(near.all(axis=1))


def _scales(wanted: Array, found: Array) -> Iterator[float]:
    """One, and the factor that most values agree on."""
    yield 1.0
    known = (np.abs(wanted) > 1e-6 * np.abs(wanted).max(initial=0.0)) & np.isfinite(found) & (found != 0)
    if known.any():
        factor = float(np.median(found[known] / wanted[known]))
        if np.isfinite(factor) and factor != 0 and abs(factor - 1) > 1e-4:
            yield factor


def _matrices(ours: int, theirs: int) -> Iterator[Array]:
    """The ways in which exporters lay out the outputs of a leaf."""
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
