"""Values so near a tree's threshold that rounding to float32 decides where they go."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.structure.trees.cuts import Cut
from likewise.suiting import FLOAT, Cell, holds_whole, kind, nearest_row, placed
from likewise.tree_cuts import cuts_seen, field_at


class RoundedThresholds:
    """A model that takes or scales in float32 cannot tell these values apart: what it answers there is a coin's.

    The values are on the threshold and one float64 to either side; where the column is scaled on its way
    to the trees, those that are scaled to it.
    """

    name = "rounded-thresholds"
    title = "Values one float64 away from a tree's threshold, or scaled to it, which float32 cannot tell apart"

    def batches(self, seen: Seen) -> Iterator[Batch]:
        cells = [cell for cut in cuts_seen(seen) for cell in _around(seen, cut)]
        if cells:
            yield placed(seen, cells)


def _around(seen: Seen, cut: Cut) -> Iterator[Cell]:
    import numpy as np

    field = field_at(cut)
    wide = kind(seen, field) == FLOAT and seen.batch.inputs[field.column].dtype == np.float64
    if not wide or holds_whole(seen, field):
        return
    row = nearest_row(seen, field, cut.value)
    for value, where in (
        (np.nextafter(cut.value, -np.inf), "one float64 below"),
        (cut.value, "on"),
        (np.nextafter(cut.value, np.inf), "one float64 above"),
    ):
        yield Cell(row, field, float(value), f"{field.name} = {float(value)!r}, {where} the threshold of {cut.where}")


EXTENSION = RoundedThresholds()
