"""What differs between the trees of the reference and those of the candidate, node by node.

The smallest change of what the candidate's trees are given that makes every split decide as the reference's does.

The candidate's trees with something of the reference's put in, and what its graph then answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from likewise.contracts.data import Array
from likewise.explain import tree_reading
from likewise.explain.case import Case
from likewise.explain.experiment import ENOUGH, Change, Effect, Trial
from likewise.explain.tree_reading import Reading
from likewise.models.onnx.tree_edits import UnwritableError, with_input, written
from likewise.models.trees.align import NOBODY, Alignment, Leafage, aligned, compared, partings
from likewise.models.trees.ensemble import LEAF, Ensemble, Gap
from likewise.models.trees.walk import as_compared

ROUNDING = 2.0**-22
"""Two thresholds closer than this, relative to their size, are one threshold rounded."""


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """Both sides' trees, laid side by side, and a mask over the pairs of nodes for each way to differ.

    `column`: another column is asked. `kind`: categories here, a threshold there. `members`: other
    categories. `mode`: the threshold itself goes the other way. `moved`: another threshold. `rounded`:
    the same but for rounding. `gap`: missing values go the other way. `zero`: zero is missing to the
    reference, and goes another way. `torn`: a leaf here, a split there.
    """

    reference: Reading
    candidate: Reading
    alignment: Alignment
    split: Array
    column: Array
    kind: Array
    members: Array
    mode: Array
    moved: Array
    rounded: Array
    gap: Array
    zero: Array
    torn: Array
    leafage: Leafage

    @property
    def missing_trees(self) -> int:
        """Trees of the reference that the candidate does not have."""
        return int((self.alignment.matched == NOBODY).sum())

    @property
    def extra_trees(self) -> Array:
        """Trees of the candidate that the reference does not use."""
        import numpy as np

        return np.setdiff1d(np.arange(self.candidate.ensemble.trees), self.alignment.matched)

    @property
    def other_splits(self) -> Array:
        """Pairs that ask something else, rounding and missing values aside."""
        other: Array = self.column | self.kind | self.members | self.moved | self.torn
        return other

    @property
    def order(self) -> dict[int, int]:
        """For each column of the reference the one that the candidate asks instead, if it is always the same one."""
        import numpy as np

        if not self.column.any():
            return {}
        ours = self.reference.ensemble.column[self.alignment.reference[self.split]]
        theirs = self.candidate.ensemble.column[self.alignment.candidate[self.split]]
        both = np.unique(np.stack([ours, theirs]), axis=1).T.tolist()
        found = dict(both)
        return found if len(found) == len(both) == len(set(found.values())) else {}

    @property
    def retrained(self) -> bool:
        """Do so many splits ask something else that this is another training?"""
        inner = int((self.split | self.torn).sum())
        other = self.moved | self.torn
        if not self.order:
            other = other | (self.column & ~self.kind)
        return inner > 0 and int(other.sum()) > 0.5 * inner

    def name(self, pair: int) -> str:
        """A pair as `income (tree 3, node 7)`."""
        ours, theirs = self.alignment.reference[pair], self.alignment.candidate[pair]
        column = int(self.reference.ensemble.column[ours])
        place = self.candidate.ensemble.name(int(theirs))
        return f"{self.reference.name(column)} ({place})" if column >= 0 else place

    def worst(self, case: Case, pairs: Array) -> tuple[int, int]:
        """Of these pairs the one where most failing rows take another path, and how many do."""
        import numpy as np

        parted = self.failing_partings(case)
        if parted is not None and (here := np.isin(parted[1], pairs)).any():
            found, counts = np.unique(parted[1][here], return_counts=True)
            best = int(np.argmax(counts))
            return int(found[best]), int(counts[best])
        return int(pairs[0]), 0

    def concerns(self, case: Case, pairs: Array) -> bool:
        """Do enough failing rows take another path at these pairs for them to explain the failure?"""
        import numpy as np

        if not len(pairs):
            return False
        parted = self.failing_partings(case)
        if parted is None:
            return True
        rows = np.unique(parted[0][np.isin(parted[1], pairs)])
        return len(rows) >= ENOUGH * int(case.required.failing.sum())

    def failing_partings(self, case: Case) -> tuple[Array, Array] | None:
        """Where the failing rows take different paths; found once a case."""
        return case.once(_failing_partings)

    def partings(self, rows: Array) -> tuple[Array, Array] | None:
        """Where these rows of the sample take different paths: rows and pairs; None where it cannot be told."""
        ours, theirs = self.reference, self.candidate
        if ours.rows is None or theirs.rows is None:
            return None
        found, pairs = partings(self.alignment, ours.ensemble, theirs.ensemble, ours.rows[rows], theirs.rows[rows])
        return rows[found], pairs


def survey(case: Case) -> Survey | None:
    """Compare the trees of both sides; once a case. None where one of them has none that can be read."""
    return case.once(_survey)


def _failing_partings(case: Case) -> tuple[Array, Array] | None:
    import numpy as np

    found = survey(case)
    return None if found is None else found.partings(np.flatnonzero(case.required.failing))


def plausible(case: Case) -> bool:
    """A first look: trees in the candidate's graph, and a reference that could have some."""
    graph = case.graph("candidate")
    if graph is None or not tree_reading.has_trees(case, "candidate"):
        return False
    return tree_reading.has_trees(case, "reference")


def _survey(case: Case) -> Survey | None:
    candidate = tree_reading.read(case, "candidate")
    reference = None if candidate is None else tree_reading.read(case, "reference")
    if reference is None or candidate is None:
        return None
    ours, theirs = reference.ensemble, candidate.ensemble
    laid = aligned(ours, theirs)
    node, other = laid.reference, laid.candidate
    ours_split, theirs_split = ours.feature[node] != LEAF, theirs.feature[other] != LEAF
    split = ours_split & theirs_split
    grouped, theirs_grouped = ours.group[node] >= 0, theirs.group[other] >= 0
    numeric = split & ~grouped & ~theirs_grouped
    column = split & (ours.column[node] != theirs.column[other])
    same, near, turned = _thresholds(ours, theirs, node, other)
    return Survey(
        reference,
        candidate,
        laid,
        split=split,
        column=column,
        kind=split & (grouped != theirs_grouped),
        members=_other_members(ours, theirs, laid, split & grouped & theirs_grouped),
        mode=numeric & ~same & near & turned,
        moved=numeric & ~same & ~near,
        rounded=numeric & ~same & near & ~turned,
        gap=split & (_gap_left(ours, node) != _gap_left(theirs, other)),
        zero=numeric & ours.zero_is_gap[node] & ((theirs.threshold[other] >= 0) != _gap_left(ours, node)),
        torn=ours_split != theirs_split,
        leafage=compared(ours, theirs, laid),
    )


def boundary(ensemble: Ensemble, nodes: Array, dtype: str | None = None) -> Array:
    """The largest value that goes left, of those that the type in which trees compare can hold."""
    import numpy as np

    kind = np.dtype(dtype or ensemble.dtype)
    threshold = ensemble.threshold[nodes]
    with np.errstate(over="ignore"):
        cast = threshold.astype(kind)
        lower = np.nextafter(cast, np.array(-np.inf, dtype=kind)).astype(np.float64)
    held = cast.astype(np.float64)
    above = (held > threshold) | (ensemble.strict[nodes] & (held == threshold))
    return np.where(above, lower, held)


def expressed(ensemble: Ensemble, nodes: Array, dtype: str) -> tuple[Array, Array]:
    """The thresholds for trees that compare in another type, and which of them are to be strict.

    Values that were compared in float64 and will be rounded meet a threshold rounded like them; values
    that always were float32 meet the last float32 that goes left.
    """
    import numpy as np

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


def _thresholds(ours: Ensemble, theirs: Ensemble, node: Array, other: Array) -> tuple[Array, Array, Array]:
    """Which pairs decide alike, which differ by no more than rounding, and which turn the threshold itself round."""
    import numpy as np

    same = boundary(ours, node) == boundary(theirs, other)
    one, two = ours.threshold[node], theirs.threshold[other]
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.maximum(np.abs(one), np.abs(two))
        near = (one == two) | (np.abs(one - two) <= ROUNDING * size) | (size < 1e-30)
    return same, near, ours.strict[node] != theirs.strict[other]


def _gap_left(ensemble: Ensemble, nodes: Array) -> Array:
    """Does a missing value go left?"""
    import numpy as np

    gap, threshold = ensemble.gap[nodes], ensemble.threshold[nodes]
    zero = np.where(ensemble.strict[nodes], threshold > 0, threshold >= 0)
    return np.where(gap == Gap.LIKE_ZERO, zero, gap == Gap.LEFT)


def _other_members(ours: Ensemble, theirs: Ensemble, laid: Alignment, both: Array) -> Array:
    import numpy as np

    found = np.zeros(laid.count, dtype=bool)
    for pair in np.flatnonzero(both).tolist():
        one = ours.groups[ours.group[laid.reference[pair]]]
        two = theirs.groups[theirs.group[laid.candidate[pair]]]
        found[pair] = not np.array_equal(one.astype(np.float32), two.astype(np.float32))
    return found


ROUNDING_NUDGING = 1e-5
"""How far apart a value may be on both sides, relative to the size of its column, to be one value rounded."""


@dataclass(frozen=True, slots=True, eq=False)
class Nudged:
    """What the trees would be given, which values were moved, and how much of each column's spread rounding took."""

    rows: Array
    moved: Array
    lost: dict[int, float]


def nudged(survey: Survey, pairs: Array) -> Nudged | None:
    """Move values across thresholds that they only passed by rounding. `pairs` are splits that ask the same.

    None where what the trees are given is not known.
    """
    import numpy as np

    ours, theirs = survey.reference, survey.candidate
    if ours.rows is None or theirs.rows is None:
        return None
    node, other = survey.alignment.reference[pairs], survey.alignment.candidate[pairs]
    seen, given = ours.ensemble.feature[node], theirs.ensemble.feature[other]
    limit, held = boundary(ours.ensemble, node), boundary(theirs.ensemble, other)
    rows = theirs.rows.copy()
    moved = np.zeros(rows.shape, dtype=bool)
    lost: dict[int, float] = {}
    for one, two in np.unique(np.stack([seen, given], axis=1), axis=0).tolist():
        here = (seen == one) & (given == two)
        value = as_compared(ours.ensemble, ours.rows[:, one])
        value_there = as_compared(theirs.ensemble, theirs.rows[:, two])
        change = _change(value, value_there)
        wanted = _wanted(limit[here], held[here], value, value_there, theirs.ensemble.dtype)
        ours_only = np.isfinite(wanted) & (change <= ROUNDING_NUDGING)
        rows[ours_only, two] = wanted[ours_only]
        moved[ours_only, two] = True
        lost[two] = _lost(value, value_there)
    return Nudged(rows, moved, lost)


def _change(value: Array, value_there: Array) -> Array:
    """How much further than its size a value is from the other side's."""
    import numpy as np

    finite = np.isfinite(value)
    typical = float(np.median(np.abs(value[finite]))) if finite.any() else 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        size = np.maximum(np.maximum(np.abs(value), typical), 1e-30)
        change = np.abs(value - value_there) / size
    return np.where(np.isnan(change), np.inf, change)


def _lost(value: Array, value_there: Array) -> float:
    """The largest difference of a column on both sides, in units of its spread."""
    import numpy as np

    both = np.isfinite(value) & np.isfinite(value_there)
    if not both.any():
        return 0.0
    spread = float(np.std(value[both]))
    largest = float(np.abs(value[both] - value_there[both]).max())
    return largest / spread if spread > 0 else 0.0


def _wanted(limit: Array, held: Array, value: Array, value_there: Array, dtype: str) -> Array:
    """The nearest value that falls between the same thresholds as the reference's; NaN where none is needed."""
    import numpy as np

    order = np.lexsort((held, limit))
    limit, held = limit[order], np.maximum.accumulate(held[order])
    rank, rank_there = np.searchsorted(limit, value), np.searchsorted(held, value_there)
    count = len(held)
    upper = np.where(rank < count, held[np.minimum(rank, count - 1)], np.inf)
    with np.errstate(over="ignore"):
        below = held[np.maximum(rank - 1, 0)].astype(dtype)
        following = np.nextafter(below, np.array(np.inf, dtype=dtype)).astype(np.float64)
    lower = np.where(rank > 0, following, -np.inf)
    wanted = np.clip(value_there, lower, np.maximum(upper, lower))
    possible = (lower <= upper) & (rank != rank_there) & np.isfinite(value) & np.isfinite(value_there)
    return np.where(possible, wanted, np.nan)


def effect_of(case: Case, survey: Survey, ensemble: Ensemble) -> Effect | None:
    """What is left of the difference with these trees in the candidate's graph; None if it does not run."""
    assert survey.candidate.graph is not None
    try:
        proto = written(case.graph("candidate"), survey.candidate.graph, ensemble)
    except UnwritableError:
        return None
    return effect_of_graph(case, proto)


def effect_of_input(case: Case, survey: Survey, rows: Array) -> Effect | None:
    """What is left of the difference when the candidate's trees are given these values."""
    assert survey.candidate.graph is not None
    return effect_of_graph(case, with_input(case.graph("candidate"), survey.candidate.graph, rows))


def effect_of_graph(case: Case, proto: Any) -> Effect | None:
    return Trial.whole(case).run(Change(target=proto))


def with_splits(survey: Survey, pairs: Array) -> Ensemble:
    """The candidate's trees, asking what the reference asks in these pairs."""
    import numpy as np

    ours, theirs = survey.reference.ensemble, survey.candidate.ensemble
    node, other = survey.alignment.reference[pairs], survey.alignment.candidate[pairs]
    column, threshold, strict = theirs.column.copy(), theirs.threshold.copy(), theirs.strict.copy()
    gap, group = theirs.gap.copy(), theirs.group.copy()
    column[other] = ours.column[node]
    threshold[other], strict[other] = expressed(ours, node, theirs.dtype)
    gap[other] = np.where(ours.gap[node] == Gap.LIKE_ZERO, Gap.LIKE_ZERO, ours.gap[node])
    group[other] = np.where(ours.group[node] >= 0, ours.group[node] + len(theirs.groups), -1)
    return replace(
        theirs,
        column=column,
        threshold=threshold,
        strict=strict,
        gap=gap,
        group=group,
        groups=(*theirs.groups, *ours.groups),
    )


def with_gaps(survey: Survey, pairs: Array) -> Ensemble:
    """The candidate's trees, sending missing values where the reference does in these pairs."""
    theirs = survey.candidate.ensemble
    gap = theirs.gap.copy()
    gap[survey.alignment.candidate[pairs]] = survey.reference.ensemble.gap[survey.alignment.reference[pairs]]
    return replace(theirs, gap=gap)


def with_leaves(survey: Survey, pairs: Array, *, scale: float | None = None) -> Ensemble:
    """The candidate's trees with the reference's values in these leaves."""
    import numpy as np

    theirs, leafage = survey.candidate.ensemble, survey.leafage
    factor = leafage.scale if scale is None else scale
    nodes = survey.alignment.candidate[pairs]
    wanted = np.zeros((len(theirs.feature), theirs.outputs))
    values = survey.reference.ensemble.values()[survey.alignment.reference[pairs]] @ leafage.outputs * factor
    wanted[nodes] = values
    kept = ~np.isin(theirs.leaf_node, nodes)
    output = np.flatnonzero(_outputs_used(theirs))
    node = np.repeat(np.unique(nodes), len(output))
    column = np.tile(output, len(np.unique(nodes)))
    given = wanted[node, column]
    # A class that a leaf had nothing for stays without an entry: its presence alone can change the meaning.
    stays = (given != 0) | _had_entry(theirs, node, column)
    return replace(
        theirs,
        leaf_node=np.concatenate([theirs.leaf_node[kept], node[stays]]),
        leaf_output=np.concatenate([theirs.leaf_output[kept], column[stays]]),
        leaf_value=np.concatenate([theirs.leaf_value[kept], given[stays]]),
    )


def with_outputs(survey: Survey) -> Ensemble:
    """The candidate's trees, each adding to the output that the reference's does."""
    import numpy as np

    ours, theirs, pairs = survey.reference.ensemble, survey.candidate.ensemble, survey.leafage.pairs
    meant = np.full(len(theirs.feature), -1)
    meant[survey.alignment.candidate[pairs]] = np.abs(ours.values()[survey.alignment.reference[pairs]]).argmax(axis=1)
    wanted = meant[theirs.leaf_node]
    return replace(theirs, leaf_output=np.where(wanted >= 0, wanted, theirs.leaf_output))


def reordered(ensemble: Ensemble, order: tuple[int, ...]) -> Ensemble:
    """The trees with the values of output k added to output `order[k]`."""
    import numpy as np

    return replace(ensemble, leaf_output=np.array(order)[ensemble.leaf_output])


def scaled(ensemble: Ensemble, factor: float) -> Ensemble:
    return replace(ensemble, leaf_value=ensemble.leaf_value * factor)


def with_trees(survey: Survey, *, scale: float | None = None) -> Ensemble | None:
    """The reference's trees as the candidate would hold them; None where its leaves are of another kind."""
    import numpy as np

    ours, theirs, leafage = survey.reference.ensemble, survey.candidate.ensemble, survey.leafage
    if not leafage.told:
        return None
    factor = leafage.scale if scale is None else scale
    matched = survey.alignment.matched
    place = np.where(matched >= 0, theirs.place[np.maximum(matched, 0)], theirs.place[-1])
    weights = leafage.outputs * factor
    node, output = np.nonzero(np.abs(weights[ours.leaf_output]) > 0)
    threshold, strict = expressed(ours, np.arange(len(ours.feature)), theirs.dtype)
    return replace(
        ours,
        threshold=threshold,
        strict=strict,
        node_numbers=np.full(len(ours.feature), len(ours.feature)),
        place=place,
        leaf_node=ours.leaf_node[node],
        leaf_output=output,
        leaf_value=ours.leaf_value[node] * weights[ours.leaf_output[node], output],
        outputs=theirs.outputs,
        dtype=theirs.dtype,
    )


def without_trees(survey: Survey, trees: Array) -> Ensemble:
    """The candidate's trees but for some of them."""
    import numpy as np

    theirs = survey.candidate.ensemble
    kept = np.setdiff1d(np.arange(theirs.trees), trees)
    return replace(theirs, roots=theirs.roots[kept], tree_numbers=theirs.tree_numbers[kept], place=theirs.place[kept])


def _outputs_used(ensemble: Ensemble) -> Array:
    import numpy as np

    return np.bincount(ensemble.leaf_output, minlength=ensemble.outputs) > 0


def _had_entry(ensemble: Ensemble, node: Array, output: Array) -> Array:
    import numpy as np

    width = ensemble.outputs
    return np.isin(node * width + output, ensemble.leaf_node * width + ensemble.leaf_output)
