"""What differs between the trees of the reference and those of the candidate, node by node."""

from __future__ import annotations

from dataclasses import dataclass

from likewise.cases import ENOUGH, Case
from likewise.contracts.data import Array
from likewise.structure.trees import reading
from likewise.structure.trees.aligning import NOBODY, Alignment, aligned, partings
from likewise.structure.trees.ensemble import LEAF, Ensemble, Gap
from likewise.structure.trees.leafing import Leafage, compared
from likewise.structure.trees.reading import Reading

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
        import numpy as np

        key = "where failing rows part"
        if key not in case.memory:
            case.memory[key] = self.partings(np.flatnonzero(case.required.failing))
        found: tuple[Array, Array] | None = case.memory[key]
        return found

    def partings(self, rows: Array) -> tuple[Array, Array] | None:
        """Where these rows of the sample take different paths: rows and pairs; None where it cannot be told."""
        ours, theirs = self.reference, self.candidate
        if ours.rows is None or theirs.rows is None:
            return None
        found, pairs = partings(self.alignment, ours.ensemble, theirs.ensemble, ours.rows[rows], theirs.rows[rows])
        return rows[found], pairs


def survey(case: Case) -> Survey | None:
    """Compare the trees of both sides; once a case. None where one of them has none that can be read."""
    key = "trees compared"
    if key not in case.memory:
        case.memory[key] = _survey(case)
    found: Survey | None = case.memory[key]
    return found


def plausible(case: Case) -> bool:
    """A first look: trees in the candidate's graph, and a reference that could have some."""
    graph = case.graph("candidate")
    if graph is None or not reading.has_trees(case, "candidate"):
        return False
    return reading.has_trees(case, "reference")


def _survey(case: Case) -> Survey | None:
    candidate = reading.read(case, "candidate")
    reference = None if candidate is None else reading.read(case, "reference")
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
