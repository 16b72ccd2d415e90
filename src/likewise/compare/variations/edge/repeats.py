"""Suites about a batch as a whole: a column that does not vary in it, rows that come twice, a row alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from likewise.compare.variations.edge.rows import FLOAT, IDS, INTEGER, TENSOR, TEXT, features, picked
from likewise.contracts.comparison import Seen, Suite
from likewise.contracts.data import Batch
from likewise.data.cells import Variant, named, varied

ROWS = 8
SINGLE = 3
"""Rows that are asked one at a time."""

ALONE = 2
"""Columns that are held constant one at a time, each in a call of its own."""


def _constant(seen: Seen) -> Iterator[Batch]:
    """One customer, one shop, one sensor: what is computed over the batch meets a spread of zero."""
    base = picked(seen, ROWS)
    if len(base) < 2:
        return
    numbers, texts = features(seen, FLOAT, INTEGER, TENSOR, IDS), features(seen, TEXT)
    every = [*numbers, *texts]
    chosen = np.random.default_rng(seen.seed).choice(len(every), size=min(ALONE, len(every)), replace=False)
    groups = [(every[place].name, [every[place]]) for place in sorted(chosen.tolist())]
    groups += [(what, group) for what, group in (("all numbers", numbers), ("all texts", texts)) if len(group) > 1]
    for what, group in groups:
        first = {field: np.repeat(field.of(base.inputs)[:1], len(base), axis=0) for field in group}
        yield from varied(base, [Variant(f"{what} constant", first)])


def _duplicated(seen: Seen) -> Iterator[Batch]:
    """A retried request, a join that went wrong: equal rows must get equal answers."""
    base = picked(seen, ROWS)
    yield named(base, np.repeat(np.arange(len(base)), 2), ["twice"] * (2 * len(base)))
    yield named(base, np.zeros(ROWS, dtype=np.int64), [f"{ROWS} times"] * ROWS)


def _single(seen: Seen) -> Iterator[Batch]:
    """As a service is asked: axes of length one are squeezed, and statistics over one row are none."""
    base = picked(seen, SINGLE)
    for place in range(len(base)):
        yield named(base, np.array([place]), ["alone"])


EXTENSIONS = (
    Suite(
        "constant-columns",
        f"Batches with one value in all rows: in up to {ALONE} columns alone, in all numbers, in all texts",
        _constant,
        about_batches=True,
    ),
    Suite(
        "duplicated-rows",
        "Batches in which rows come twice, and one of the same row again and again",
        _duplicated,
        about_batches=True,
    ),
    Suite("single-row", "One row at a time", _single, about_batches=True),
)
