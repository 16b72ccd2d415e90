"""Category splits that an exporter wrote as a chain of equalities, read as one split again."""

from __future__ import annotations

from dataclasses import replace

from likewise.contracts.data import Array
from likewise.structure.trees.ensemble import LEAF, Ensemble, Gap


def folded(ensemble: Ensemble) -> Ensemble:
    """ "Is it 3? Else, is it 5? …" with the same child for every yes becomes "is it one of 3, 5 …?"."""
    import numpy as np

    if not ensemble.groups:
        return ensemble
    gap, right = ensemble.gap.copy(), ensemble.right.copy()
    groups: list[Array] = list(ensemble.groups)
    values = _Leaves(ensemble)
    # Children mostly stand after their parents: from the end, a chain is folded before what leads to it.
    for _ in range(2):
        changed = False
        for node in np.flatnonzero(ensemble.group >= 0)[::-1].tolist():
            while True:
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
        import numpy as np

        self._ensemble = ensemble
        self._order = np.argsort(ensemble.leaf_node, kind="stable")
        self._nodes = ensemble.leaf_node[self._order]

    def _values(self, node: int) -> list[tuple[int, float]]:
        import numpy as np

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
