"""Batches in which a column does not vary: what is computed over a batch meets a spread of zero."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.structure.fields import Field
from likewise.suiting import FLOAT, IDS, INTEGER, TENSOR, TEXT, Variant, features, picked, varied

ROWS = 8
ALONE = 2
"""Columns that are held constant one at a time, each in a call of its own."""


class ConstantColumns:
    """One customer, one shop, one sensor: a whole batch from the same place."""

    name = "constant-columns"
    title = f"Batches with one value in all rows: in up to {ALONE} columns alone, in all numbers, in all texts"
    about_batches = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        import numpy as np

        base = picked(seen, ROWS)
        if len(base) < 2:
            return
        numbers, texts = features(seen, FLOAT, INTEGER, TENSOR, IDS), features(seen, TEXT)
        every = [*numbers, *texts]
        chosen = np.random.default_rng(seen.seed).choice(len(every), size=min(ALONE, len(every)), replace=False)
        groups = [(every[place].name, [every[place]]) for place in sorted(chosen.tolist())]
        groups += [(what, group) for what, group in (("all numbers", numbers), ("all texts", texts)) if len(group) > 1]
        for what, group in groups:
            yield from varied(base, [Variant(f"{what} constant", {field: _first(base, field) for field in group})])


def _first(base: Batch, field: Field) -> object:
    """The first row's value in every row."""
    import numpy as np

    values = field.of(base.inputs)
    return np.repeat(values[:1], len(base), axis=0)


EXTENSION = ConstantColumns()
