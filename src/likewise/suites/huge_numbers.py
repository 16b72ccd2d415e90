"""The largest numbers there are: those of float32, and those of the column's own type."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.suiting import FLOAT, TENSOR, at, features, picked, varied

SINGLE = 3.4028234663852886e38


class HugeNumbers:
    """What does not fit becomes infinite on its way to a model that takes a narrower type."""

    name = "huge-numbers"
    title = "The largest numbers of float32 and of the column's type, in each column of numbers"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        import numpy as np

        fields = features(seen, FLOAT, TENSOR)
        own = {field: float(np.finfo(seen.batch.inputs[field.column].dtype).max) for field in fields}
        variants = [
            variant
            for sign in (1, -1)
            for wide in (True, False)
            for field, largest in own.items()
            if (largest > SINGLE or not wide)
            for variant in at(seen, field, sign * (largest if wide else min(SINGLE, largest)))
        ]
        yield from varied(picked(seen), variants)


EXTENSION = HugeNumbers()
