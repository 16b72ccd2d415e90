"""An ensemble of trees in flat arrays, whatever framework it comes from.

Every split is put in one of two forms: a number goes left if it is at most (or below) a threshold,
a category goes left if it is in a set. Where a framework asks the opposite question the children are
exchanged, so that two ensembles that decide alike look alike. Rows are walked through such trees: which
child a value chooses, and the leaf where a row ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.values import dataclass

LEAF = -1
"""The feature of a node that is a leaf."""

DEEPEST = 2_000
"""Steps after which a walk is given up: a file may be broken, and its nodes may lead in a circle."""

CELLS = 2_000_000
"""Rows times trees that are walked at a time."""

NO_MORE_THAN_ZERO = 1e-35
"""What LightGBM takes for zero."""


class Gap(IntEnum):
    """Where a missing value goes: to a child, or wherever zero goes."""

    LEFT = 0
    RIGHT = 1
    LIKE_ZERO = 2


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """One tree; children and root are positions in its own arrays.

    `groups` has the categories of a split by its node. `leaves` has, for each value of a leaf, its
    node, the output it adds to, and the number. `strict`: below the threshold, not at it.
    """

    number: int
    feature: Array
    threshold: Array
    left: Array
    right: Array
    leaves: tuple[Array, Array, Array]
    gap: Array | None = None
    strict: Array | bool = False
    zero_is_gap: Array | None = None
    groups: Mapping[int, Array] = field(default_factory=dict)
    node_numbers: Array | None = None
    place: int = 0
    linear: Sequence[int] = ()
    root: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Ensemble:
    """Trees side by side: a node is a position in flat arrays, whatever its tree.

    `feature` is a column of what the trees are given, `column` the same in the numbering that both
    models share. `dtype` is the type in which values are compared. `whole`: a category is what is left
    of a value when its fraction is cut off. `average`: the trees are averaged, not added up. `place`
    tells, for each tree, which of several nodes of a graph (or members of an ensemble) holds it.
    """

    roots: Array
    tree: Array
    feature: Array
    column: Array
    threshold: Array
    strict: Array
    left: Array
    right: Array
    gap: Array
    zero_is_gap: Array
    group: Array
    groups: tuple[Array, ...]
    node_numbers: Array
    tree_numbers: Array
    place: Array
    leaf_node: Array
    leaf_output: Array
    leaf_value: Array
    linear: Array
    base: Array
    outputs: int
    dtype: str
    whole: bool = False
    average: bool = False
    stored: int = 0

    @property
    def trees(self) -> int:
        return len(self.roots)

    @property
    def is_leaf(self) -> Array:
        leaf: Array = self.feature == LEAF
        return leaf

    def name(self, node: int) -> str:
        """Where a node stands, as its model numbers it."""
        tree = int(self.tree[node])
        kind = "leaf" if self.feature[node] == LEAF else "node"
        return f"tree {int(self.tree_numbers[tree])}, {kind} {int(self.node_numbers[node])}"

    def values(self) -> Array:
        """What each node adds to each output; zero where it is no leaf."""
        found = np.zeros((len(self.feature), self.outputs))
        np.add.at(found, (self.leaf_node, self.leaf_output), self.leaf_value)
        return found

    @property
    def comparable(self) -> bool:
        """Are the values of the leaves few enough to lay side by side?"""
        return self.outputs * len(self.feature) <= 10_000_000


def ensemble_of(
    trees: Sequence[Tree],
    *,
    outputs: int,
    dtype: str,
    base: Array | Sequence[float] = (),
    whole: bool = False,
    average: bool = False,
    stored: int = 0,
) -> Ensemble:
    """Put trees side by side. `stored` is how many the model holds, where it does not use all of them."""
    sizes = [len(tree.feature) for tree in trees]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64) if trees else np.zeros(0, np.int64)
    groups: list[Array] = []
    group = [np.full(size, -1, dtype=np.int64) for size in sizes]
    for index, tree in enumerate(trees):
        for node, members in tree.groups.items():
            group[index][node] = len(groups)
            groups.append(np.unique(np.asarray(members, dtype=np.float64)))

    def joined(parts: Sequence[Array], dtype: type) -> Array:
        return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)

    def shifted(parts: Sequence[Array]) -> Array:
        return joined([np.asarray(part, np.int64) + start for part, start in zip(parts, starts, strict=True)], np.int64)

    def filled(parts: Sequence[Array | None], default: float) -> list[Array]:
        found = zip(parts, sizes, strict=True)
        return [np.full(size, default) if part is None else np.asarray(part) for part, size in found]

    feature = joined([tree.feature for tree in trees], np.int64)
    leaf = feature < 0
    itself = np.arange(len(feature))
    return Ensemble(
        roots=starts + np.array([tree.root for tree in trees], dtype=np.int64),
        tree=np.repeat(np.arange(len(trees)), sizes),
        feature=np.where(leaf, LEAF, feature),
        column=np.where(leaf, LEAF, feature),
        threshold=joined([tree.threshold for tree in trees], np.float64),
        strict=joined([np.broadcast_to(tree.strict, size) for tree, size in zip(trees, sizes, strict=True)], np.bool_),
        left=np.where(leaf, itself, shifted([tree.left for tree in trees])),
        right=np.where(leaf, itself, shifted([tree.right for tree in trees])),
        gap=joined(filled([tree.gap for tree in trees], Gap.RIGHT), np.int8),
        zero_is_gap=joined(filled([tree.zero_is_gap for tree in trees], 0), np.bool_),
        group=joined(group, np.int64),
        groups=tuple(groups),
        node_numbers=joined(
            [np.arange(len(tree.feature)) if tree.node_numbers is None else tree.node_numbers for tree in trees],
            np.int64,
        ),
        tree_numbers=np.array([tree.number for tree in trees], dtype=np.int64),
        place=np.array([tree.place for tree in trees], dtype=np.int64),
        leaf_node=shifted([tree.leaves[0] for tree in trees]),
        leaf_output=joined([tree.leaves[1] for tree in trees], np.int64),
        leaf_value=joined([tree.leaves[2] for tree in trees], np.float64),
        linear=shifted([np.asarray(tree.linear, dtype=np.int64) for tree in trees]),
        base=np.asarray(base, dtype=np.float64).reshape(-1),
        outputs=outputs,
        dtype=dtype,
        whole=whole,
        average=average,
        stored=stored or len(trees),
    )


def joined(parts: Sequence[tuple[Ensemble, Array | None]]) -> Ensemble | None:
    """The trees of several models, one place each; `columns` are those a model sees. None if they compare in
    different types."""
    ensembles = [ensemble for ensemble, _ in parts]
    if len({(entry.dtype, entry.whole) for entry in ensembles}) != 1:
        return None
    sizes = [(len(entry.feature), entry.trees, len(entry.groups)) for entry in ensembles]
    nodes, trees, groups = (np.cumsum([0, *counts]).tolist() for counts in zip(*sizes, strict=True))
    shifts = {"roots": nodes, "tree": trees, "left": nodes, "right": nodes, "leaf_node": nodes, "linear": nodes}
    as_they_are = ("threshold", "strict", "gap", "zero_is_gap", "node_numbers", "leaf_output", "leaf_value")
    together: dict[str, Any] = {
        name: np.concatenate([getattr(entry, name) for entry in ensembles]) for name in as_they_are
    } | {
        name: np.concatenate([getattr(entry, name) + start for entry, start in zip(ensembles, starts, strict=False)])
        for name, starts in shifts.items()
    }
    feature = np.concatenate(
        [e.feature if columns is None else np.where(e.feature < 0, LEAF, columns[e.feature]) for e, columns in parts]
    )
    grouped = [np.where(entry.group < 0, -1, entry.group + by) for entry, by in zip(ensembles, groups, strict=False)]
    first, alone = ensembles[0], len(ensembles) == 1
    return replace(
        first,
        **together,
        feature=feature,
        column=feature,
        group=np.concatenate(grouped),
        groups=tuple(group for entry in ensembles for group in entry.groups),
        tree_numbers=np.arange(trees[-1]),
        place=np.repeat(np.arange(len(ensembles)), [entry.trees for entry in ensembles]),
        base=first.base if alone else np.zeros(0),
        outputs=max(entry.outputs for entry in ensembles),
        average=first.average and alone,
        stored=sum(entry.stored for entry in ensembles),
    )


def folded(ensemble: Ensemble) -> Ensemble:
    """ "Is it 3? Else, is it 5? …" with the same child for every yes becomes "is it one of 3, 5 …?"."""
    if not ensemble.groups:
        return ensemble
    gap, right = ensemble.gap.copy(), ensemble.right.copy()
    groups: list[Array] = list(ensemble.groups)
    values = _Leaves(ensemble)
    # Children mostly stand after their parents: from the end, a chain is folded before what leads to it.
    for _ in range(2):
        changed = False
        for node in np.flatnonzero(ensemble.group >= 0)[::-1].tolist():
            for _ in range(len(right)):  # no chain is longer, unless its nodes lead in a circle
                other = int(right[node])
                follows = (
                    other != node
                    and ensemble.group[other] >= 0
                    and ensemble.feature[other] == ensemble.feature[node]
                    and values.same(int(ensemble.left[node]), int(ensemble.left[other]))
                )
                if not follows:
                    break
                groups[ensemble.group[node]] = np.union1d(groups[ensemble.group[node]], groups[ensemble.group[other]])
                gap[node] = gap[node] if gap[node] == Gap.LEFT else gap[other]
                right[node] = right[other]
                changed = True
        if not changed:
            break
    return replace(ensemble, gap=gap, right=right, groups=tuple(groups))


class _Leaves:
    """Are two nodes the same, or leaves with the same values, as an exporter that copies them writes?"""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._order = np.argsort(ensemble.leaf_node, kind="stable")
        self._nodes = ensemble.leaf_node[self._order]

    def _values(self, node: int) -> list[tuple[int, float]]:
        start, stop = np.searchsorted(self._nodes, [node, node + 1])
        own = self._order[start:stop]
        outputs, values = self._ensemble.leaf_output[own].tolist(), self._ensemble.leaf_value[own].tolist()
        return sorted(zip(outputs, values, strict=True))

    def same(self, one: int, other: int, depth: int = 0) -> bool:
        if one == other:
            return True
        held = self._ensemble
        if held.feature[one] != held.feature[other] or depth > 12:
            return False
        if held.feature[one] == LEAF:
            return self._values(one) == self._values(other)
        if held.group[one] >= 0 or held.group[other] >= 0 or held.threshold[one] != held.threshold[other]:
            return False
        sides = (held.left, held.right)
        return all(self.same(int(side[one]), int(side[other]), depth + 1) for side in sides)


def goes_left(ensemble: Ensemble, nodes: Array, values: Array) -> Array:
    """Does a value that reaches a node go left? One value a node."""
    gap = ensemble.gap[nodes]
    missing = np.isnan(values)
    values = np.where(missing & (gap == Gap.LIKE_ZERO), 0.0, values)
    missing &= gap != Gap.LIKE_ZERO
    missing |= ensemble.zero_is_gap[nodes] & (np.abs(values) <= NO_MORE_THAN_ZERO)
    threshold = ensemble.threshold[nodes]
    left = np.where(ensemble.strict[nodes], values < threshold, values <= threshold)
    group = ensemble.group[nodes]
    if (grouped := group >= 0).any():
        left[grouped] = _in_group(ensemble, group[grouped], values[grouped])
    return np.where(missing, gap == Gap.LEFT, left)


def leaves(ensemble: Ensemble, rows: Array) -> Array:
    """The leaf each row reaches in each tree."""
    found = np.empty((len(rows), ensemble.trees), dtype=np.int64)
    step = max(1, CELLS // max(ensemble.trees, 1))
    for start in range(0, len(rows), step):
        found[start : start + step] = _leaves(ensemble, as_compared(ensemble, rows[start : start + step]))
    return found


def as_compared(ensemble: Ensemble, rows: Array) -> Array:
    """Values in the type in which the trees compare them, held as float64."""
    with np.errstate(over="ignore"):
        return rows.astype(ensemble.dtype).astype(np.float64)


def _leaves(ensemble: Ensemble, rows: Array) -> Array:
    at = np.broadcast_to(ensemble.roots, (len(rows), ensemble.trees)).copy()
    row = np.broadcast_to(np.arange(len(rows))[:, None], at.shape)
    for _ in range(DEEPEST):
        going = ensemble.feature[at] >= 0
        if not going.any():
            break
        nodes = at[going]
        left = goes_left(ensemble, nodes, rows[row[going], ensemble.feature[nodes]])
        at[going] = np.where(left, ensemble.left[nodes], ensemble.right[nodes])
    return at


def _in_group(ensemble: Ensemble, group: Array, values: Array) -> Array:
    known, members = _members(ensemble)
    if ensemble.whole:
        values = np.where(values < 0, -1.0, np.trunc(values))
    place = np.minimum(np.searchsorted(known, values), max(len(known) - 1, 0))
    if not len(known):
        return np.zeros(len(values), dtype=bool)
    return np.asarray(members[group, place] & (known[place] == values))


@lru_cache(maxsize=8)
def _members(ensemble: Ensemble) -> tuple[Array, Array]:
    """All category values, and a row a group that says which of them it holds."""
    known = np.unique(np.concatenate(ensemble.groups)) if ensemble.groups else np.zeros(0)
    members = np.zeros((len(ensemble.groups), len(known)), dtype=bool)
    for index, group in enumerate(ensemble.groups):
        members[index, np.searchsorted(known, group)] = True
    return known, members


def boundary(ensemble: Ensemble, nodes: Array) -> Array:
    """The largest value that goes left, of those that the type in which trees compare can hold."""
    kind = np.dtype(ensemble.dtype)
    threshold = ensemble.threshold[nodes]
    with np.errstate(over="ignore"):
        cast = threshold.astype(kind)
        lower = np.nextafter(cast, np.array(-np.inf, dtype=kind)).astype(np.float64)
    held = cast.astype(np.float64)
    above = (held > threshold) | (ensemble.strict[nodes] & (held == threshold))
    return np.where(above, lower, held)


def gaps_left(ensemble: Ensemble, nodes: Array) -> Array:
    """Does a missing value go left?"""
    gap, threshold = ensemble.gap[nodes], ensemble.threshold[nodes]
    zero = np.where(ensemble.strict[nodes], threshold > 0, threshold >= 0)
    return np.where(gap == Gap.LIKE_ZERO, zero, gap == Gap.LEFT)


def thresholds_in(ensemble: Ensemble, nodes: Array, dtype: str) -> tuple[Array, Array]:
    """The thresholds for trees that compare in another type, and which of them are to be strict.

    Values that were compared in float64 and will be rounded meet a threshold rounded like them; values
    that always were float32 meet the last float32 that goes left.
    """
    never = np.zeros(len(nodes), dtype=bool)
    if ensemble.dtype == dtype:
        return boundary(ensemble, nodes), never
    if ensemble.dtype == "float32":  # in float64 a value goes left up to where rounding would take it to the next float
        last = boundary(ensemble, nodes)
        with np.errstate(over="ignore"):
            following = np.nextafter(last.astype(np.float32), np.float32(np.inf)).astype(np.float64)
        return np.where(np.isfinite(last), (last + following) / 2, last), never
    with np.errstate(over="ignore"):
        return ensemble.threshold[nodes].astype(dtype).astype(np.float64), ensemble.strict[nodes]
