"""A batch of one row, as a service is asked."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.suiting import named, picked

ROWS = 3


class SingleRow:
    """Axes of length one are squeezed, and statistics over one row are none."""

    name = "single-row"
    title = "One row at a time"
    about_batches = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        import numpy as np

        base = picked(seen, ROWS)
        for place in range(len(base)):
            yield named(base, np.array([place]), ["alone"])


EXTENSION = SingleRow()
