"""Two ensembles laid side by side: which tree and node is which, where they differ, where rows part ways.

The second can be had with something of the first put in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import SequenceMatcher

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.values import dataclass
from likewise.data.columns import numpy_dtype
from likewise.models.trees.ensemble import (
    CELLS,
    DEEPEST,
    LEAF,
    Ensemble,
    as_compared,
    boundary,
    gaps_left,
    goes_left,
    thresholds_in,
)

NOBODY = -1

RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""What rounding may change of a leaf's value, of itself and of the largest value."""


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """Nodes of both ensembles that stand in the same place of the same tree.

    `matched` has, for each tree of the reference, the tree of the candidate that stands for it, or -1.
    Pair k is the nodes `reference[k]` and `candidate[k]`; `left[k]` and `right[k]` are the pairs below
    it, -1 where at least one of both is a leaf. The first pairs are the roots, one a matched tree.
    """

    matched: Array
    reference: Array
    candidate: Array
    left: Array
    right: Array

    @property
    def roots(self) -> Array:
        return np.arange(int((self.matched != NOBODY).sum()))


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
    for name in ("float16", "bfloat16"):
        with np.errstate(over="ignore"):
            rounded = wanted.astype(np.float32).astype(numpy_dtype(name)).astype(np.float64)
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


ROUNDING = 2.0**-22
"""Two thresholds closer than this, relative to their size, are one threshold rounded."""

RETRAINED = 0.5
"""If more than this share of the splits ask something else, the trees come from another training."""


@dataclass(frozen=True, slots=True, eq=False)
class Differences:
    """The trees of both sides laid side by side, and a mask over the pairs of nodes for each way to differ.

    `column`: another column is asked. `kind`: categories here, a threshold there. `members`: other
    categories. `mode`: the threshold itself goes the other way. `moved`: another threshold. `gap`: missing
    values go the other way. `torn`: a leaf here, a split there.
    """

    ours: Ensemble
    theirs: Ensemble
    alignment: Alignment
    split: Array
    column: Array
    kind: Array
    members: Array
    mode: Array
    moved: Array
    gap: Array
    torn: Array
    leafage: Leafage

    @property
    def missing_trees(self) -> int:
        """Trees of the reference that the candidate does not have."""
        return int((self.alignment.matched == NOBODY).sum())

    @property
    def extra_trees(self) -> Array:
        """Trees of the candidate that the reference does not use."""
        return np.setdiff1d(np.arange(self.theirs.trees), self.alignment.matched)

    @property
    def categories(self) -> Array:
        """Pairs that ask for other categories."""
        other: Array = self.kind | self.members
        return other

    @property
    def order(self) -> dict[int, int]:
        """For each column of the reference the one that the candidate asks instead, if it is always the same one.

        In all trees; or in those that ask for other columns at all, if these have exchanged their places there.
        """
        if not self.column.any():
            return {}
        if found := self._order_of(self.split):
            return found
        tree = self.ours.tree[self.alignment.reference]
        found = self._order_of(self.split & np.isin(tree, tree[self.column]))
        moved = {column: other for column, other in found.items() if column != other}
        return found if set(moved) == set(moved.values()) else {}

    def _order_of(self, pairs: Array) -> dict[int, int]:
        ours = self.ours.column[self.alignment.reference[pairs]]
        both = np.unique(np.stack([ours, self.theirs.column[self.alignment.candidate[pairs]]]), axis=1).T.tolist()
        found = dict(both)
        return found if len(found) == len(both) == len(set(found.values())) else {}

    @property
    def inner(self) -> int:
        """Pairs of which at least one is a split."""
        return int((self.split | self.torn).sum())

    @property
    def retrained(self) -> bool:
        """Do so many splits ask something else that this is another training, which no two end in the same leaves?"""
        if not (self.column.any() or self.torn.any() or self.leafage.differs.any()):
            return False
        other = self.moved | self.torn
        if not self.order:
            other = other | (self.column & ~self.kind)
        return self.inner > 0 and int(other.sum()) > RETRAINED * self.inner

    def leaf_values(self) -> tuple[Array, Array]:
        """The values of all paired leaves: what the candidate holds, and what it should."""
        laid, leafage = self.alignment, self.leafage
        held = self.theirs.values()[laid.candidate[leafage.pairs]]
        meant = self.ours.values()[laid.reference[leafage.pairs]] @ leafage.outputs * leafage.scale
        return held, meant


def differences(ours: Ensemble, theirs: Ensemble) -> Differences:
    laid = aligned(ours, theirs)
    node, other = laid.reference, laid.candidate
    ours_split, theirs_split = ours.feature[node] != LEAF, theirs.feature[other] != LEAF
    split = ours_split & theirs_split
    grouped, theirs_grouped = ours.group[node] >= 0, theirs.group[other] >= 0
    numeric = split & ~grouped & ~theirs_grouped & (boundary(ours, node) != boundary(theirs, other))
    near = _near(ours.threshold[node], theirs.threshold[other])
    return Differences(
        ours,
        theirs,
        laid,
        split=split,
        column=split & (ours.column[node] != theirs.column[other]),
        kind=split & (grouped != theirs_grouped),
        members=_other_members(ours, theirs, laid, split & grouped & theirs_grouped),
        mode=numeric & near & (ours.strict[node] != theirs.strict[other]),
        moved=numeric & ~near,
        gap=split & (gaps_left(ours, node) != gaps_left(theirs, other)),
        torn=ours_split != theirs_split,
        leafage=compared(ours, theirs, laid),
    )


def _near(one: Array, two: Array) -> Array:
    """Which thresholds differ by no more than rounding."""
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.maximum(np.abs(one), np.abs(two))
        near: Array = (one == two) | (np.abs(one - two) <= ROUNDING * size) | (size < 1e-30)
    return near


def _other_members(ours: Ensemble, theirs: Ensemble, laid: Alignment, both: Array) -> Array:
    found = np.zeros(len(both), dtype=bool)
    for pair in np.flatnonzero(both).tolist():
        one = ours.groups[ours.group[laid.reference[pair]]]
        two = theirs.groups[theirs.group[laid.candidate[pair]]]
        found[pair] = not np.array_equal(one.astype(np.float32), two.astype(np.float32))
    return found


def with_splits(found: Differences, pairs: Array) -> Ensemble:
    """The candidate's trees, asking what the reference asks in these pairs."""
    ours, theirs = found.ours, found.theirs
    node, other = found.alignment.reference[pairs], found.alignment.candidate[pairs]
    column, threshold, strict = theirs.column.copy(), theirs.threshold.copy(), theirs.strict.copy()
    gap, group = theirs.gap.copy(), theirs.group.copy()
    column[other], gap[other] = ours.column[node], ours.gap[node]
    threshold[other], strict[other] = thresholds_in(ours, node, theirs.dtype)
    group[other] = np.where(ours.group[node] >= 0, ours.group[node] + len(theirs.groups), -1)
    groups = (*theirs.groups, *ours.groups)
    return replace(theirs, column=column, threshold=threshold, strict=strict, gap=gap, group=group, groups=groups)


def with_gaps(found: Differences, pairs: Array) -> Ensemble:
    """The candidate's trees, sending missing values where the reference does in these pairs."""
    gap = found.theirs.gap.copy()
    gap[found.alignment.candidate[pairs]] = found.ours.gap[found.alignment.reference[pairs]]
    return replace(found.theirs, gap=gap)


def with_leaves(found: Differences, pairs: Array) -> Ensemble:
    """The candidate's trees with the reference's values in these leaves."""
    theirs, leafage = found.theirs, found.leafage
    nodes = found.alignment.candidate[pairs]
    wanted = np.zeros((len(theirs.feature), theirs.outputs))
    wanted[nodes] = found.ours.values()[found.alignment.reference[pairs]] @ leafage.outputs * leafage.scale
    kept = ~np.isin(theirs.leaf_node, nodes)
    used = np.unique(theirs.leaf_output)
    node = np.repeat(np.unique(nodes), len(used))
    output = np.tile(used, len(np.unique(nodes)))
    given = wanted[node, output]
    # A class that a leaf had nothing for stays without an entry: its presence alone can change the meaning.
    had = np.isin(node * theirs.outputs + output, theirs.leaf_node * theirs.outputs + theirs.leaf_output)
    stays = (given != 0) | had
    return replace(
        theirs,
        leaf_node=np.concatenate([theirs.leaf_node[kept], node[stays]]),
        leaf_output=np.concatenate([theirs.leaf_output[kept], output[stays]]),
        leaf_value=np.concatenate([theirs.leaf_value[kept], given[stays]]),
    )


def with_outputs(found: Differences) -> Ensemble:
    """The candidate's trees, each adding to the output that the reference's does."""
    theirs, pairs = found.theirs, found.leafage.pairs
    meant = np.full(len(theirs.feature), -1)
    values = found.ours.values()[found.alignment.reference[pairs]]
    meant[found.alignment.candidate[pairs]] = np.abs(values).argmax(axis=1)
    wanted = meant[theirs.leaf_node]
    return replace(theirs, leaf_output=np.where(wanted >= 0, wanted, theirs.leaf_output))


def with_trees(found: Differences, *, scale: float | None = None) -> Ensemble | None:
    """The reference's trees as the candidate would hold them; None where its leaves are of another kind."""
    ours, theirs, leafage = found.ours, found.theirs, found.leafage
    if not leafage.told:
        return None
    matched = found.alignment.matched
    weights = leafage.outputs * (leafage.scale if scale is None else scale)
    leaf, output = np.nonzero(np.abs(weights[ours.leaf_output]) > 0)
    threshold, strict = thresholds_in(ours, np.arange(len(ours.feature)), theirs.dtype)
    return replace(
        ours,
        threshold=threshold,
        strict=strict,
        node_numbers=np.full(len(ours.feature), len(ours.feature)),
        place=np.where(matched >= 0, theirs.place[np.maximum(matched, 0)], theirs.place[-1]),
        leaf_node=ours.leaf_node[leaf],
        leaf_output=output,
        leaf_value=ours.leaf_value[leaf] * weights[ours.leaf_output[leaf], output],
        outputs=theirs.outputs,
        dtype=theirs.dtype,
    )


def without_trees(found: Differences, trees: Array) -> Ensemble:
    """The candidate's trees but for some of them."""
    theirs = found.theirs
    kept = np.setdiff1d(np.arange(theirs.trees), trees)
    return replace(theirs, roots=theirs.roots[kept], tree_numbers=theirs.tree_numbers[kept], place=theirs.place[kept])
