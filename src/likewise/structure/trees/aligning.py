"""Two ensembles laid side by side: which tree is which, which node is which, and where rows part ways."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher

from likewise.contracts.data import Array
from likewise.structure.trees.ensemble import LEAF, Ensemble
from likewise.structure.trees.walking import CELLS, DEEPEST, as_compared, goes_left

NOBODY = -1


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
    import numpy as np

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
    import numpy as np

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
    import numpy as np

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
    import numpy as np

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
