"""What differs between two ensembles node by node, and the second with something of the first put in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from likewise.contracts.data import Array
from likewise.models.trees.align import NOBODY, Alignment, Leafage, aligned, compared
from likewise.models.trees.ensemble import LEAF, Ensemble, Gap

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
        """For each column of the reference the one that the candidate asks instead, if it is always the same one."""
        if not self.column.any():
            return {}
        ours = self.ours.column[self.alignment.reference[self.split]]
        theirs = self.theirs.column[self.alignment.candidate[self.split]]
        both = np.unique(np.stack([ours, theirs]), axis=1).T.tolist()
        found = dict(both)
        return found if len(found) == len(both) == len(set(found.values())) else {}

    @property
    def inner(self) -> int:
        """Pairs of which at least one is a split."""
        return int((self.split | self.torn).sum())

    @property
    def retrained(self) -> bool:
        """Do so many splits ask something else that this is another training?"""
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
        gap=split & (_gap_left(ours, node) != _gap_left(theirs, other)),
        torn=ours_split != theirs_split,
        leafage=compared(ours, theirs, laid),
    )


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


def _near(one: Array, two: Array) -> Array:
    """Which thresholds differ by no more than rounding."""
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.maximum(np.abs(one), np.abs(two))
        near: Array = (one == two) | (np.abs(one - two) <= ROUNDING * size) | (size < 1e-30)
    return near


def _gap_left(ensemble: Ensemble, nodes: Array) -> Array:
    """Does a missing value go left?"""
    gap, threshold = ensemble.gap[nodes], ensemble.threshold[nodes]
    zero = np.where(ensemble.strict[nodes], threshold > 0, threshold >= 0)
    return np.where(gap == Gap.LIKE_ZERO, zero, gap == Gap.LEFT)


def _other_members(ours: Ensemble, theirs: Ensemble, laid: Alignment, both: Array) -> Array:
    found = np.zeros(laid.count, dtype=bool)
    for pair in np.flatnonzero(both).tolist():
        one = ours.groups[ours.group[laid.reference[pair]]]
        two = theirs.groups[theirs.group[laid.candidate[pair]]]
        found[pair] = not np.array_equal(one.astype(np.float32), two.astype(np.float32))
    return found


def _expressed(ensemble: Ensemble, nodes: Array, dtype: str) -> tuple[Array, Array]:
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


def with_splits(found: Differences, pairs: Array) -> Ensemble:
    """The candidate's trees, asking what the reference asks in these pairs."""
    ours, theirs = found.ours, found.theirs
    node, other = found.alignment.reference[pairs], found.alignment.candidate[pairs]
    column, threshold, strict = theirs.column.copy(), theirs.threshold.copy(), theirs.strict.copy()
    gap, group = theirs.gap.copy(), theirs.group.copy()
    column[other], gap[other] = ours.column[node], ours.gap[node]
    threshold[other], strict[other] = _expressed(ours, node, theirs.dtype)
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
    threshold, strict = _expressed(ours, np.arange(len(ours.feature)), theirs.dtype)
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
