"""Batches in which a column does not vary: what is computed over a batch meets a spread of zero.

Rows that come twice, and a batch of nothing but one row.

A batch of one row, as a service is asked.
"""

from __future__ import annotations

from collections.abc import Iterator

from likewise.compare.variations.made_rows import (
    FLOAT,
    IDS,
    INTEGER,
    TENSOR,
    TEXT,
    Variant,
    features,
    named,
    picked,
    varied,
)
from likewise.contracts.comparison import Seen
from likewise.contracts.data import Batch
from likewise.data.cells import Field

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


class DuplicatedRows:
    """A retried request, a join that went wrong: equal rows must get equal answers."""

    name = "duplicated-rows"
    title = "Batches in which rows come twice, and one of the same row again and again"
    about_batches = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        import numpy as np

        base = picked(seen, ROWS)
        yield named(base, np.repeat(np.arange(len(base)), 2), ["twice"] * (2 * len(base)))
        yield named(base, np.zeros(ROWS, dtype=np.int64), [f"{ROWS} times"] * ROWS)


ROWS_SINGLE_ROW = 3


class SingleRow:
    """Axes of length one are squeezed, and statistics over one row are none."""

    name = "single-row"
    title = "One row at a time"
    about_batches = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        import numpy as np

        base = picked(seen, ROWS_SINGLE_ROW)
        for place in range(len(base)):
            yield named(base, np.array([place]), ["alone"])


EXTENSIONS = (
    ConstantColumns(),
    DuplicatedRows(),
    SingleRow(),
)
