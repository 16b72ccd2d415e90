"""Suites that only put real rows together in other ways.

They are about a batch as a whole (a column that does not vary in it, rows that come twice, a row alone), and about
rows between classes: where the two best scores lie closest, and between rows of different labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from likewise.compare.align import margins
from likewise.compare.variations.batches import ALONE
from likewise.compare.variations.edge import FLOAT, IDS, INTEGER, TENSOR, TEXT, features, picked
from likewise.contracts.comparison import PairSpec, Seen, Suite, Tolerance
from likewise.contracts.data import Array, Batch
from likewise.contracts.models import Kind
from likewise.data.cells import Variant, named, varied

TOGETHER = 8
"""Rows of a batch that is about its rows together."""

CONSTANT = 2
"""Columns that are held constant one at a time, each in a call of its own."""

CLOSEST = 16
PART = 0.4631
"""How much of the other row. Not a half: the middle of two values is where trees have their thresholds."""

NOTHING = Tolerance(0.0, 0.0)


def _constant(seen: Seen) -> Iterator[Batch]:
    """One customer, one shop, one sensor: what is computed over the batch meets a spread of zero."""
    base = picked(seen, TOGETHER)
    if len(base) < 2:
        return
    numbers, texts = features(seen, FLOAT, INTEGER, TENSOR, IDS), features(seen, TEXT)
    every = [*numbers, *texts]
    chosen = np.random.default_rng(seen.seed).choice(len(every), size=min(CONSTANT, len(every)), replace=False)
    groups = [(every[place].name, [every[place]]) for place in sorted(chosen.tolist())]
    groups += [(what, group) for what, group in (("all numbers", numbers), ("all texts", texts)) if len(group) > 1]
    for what, group in groups:
        first = {field: np.repeat(field.of(base.inputs)[:1], len(base), axis=0) for field in group}
        yield from varied(base, [Variant(f"{what} constant", first)])


def _duplicated(seen: Seen) -> Iterator[Batch]:
    """A retried request, a join that went wrong: equal rows must get equal answers."""
    base = picked(seen, TOGETHER)
    yield named(base, np.repeat(np.arange(len(base)), 2), ["twice"] * (2 * len(base)))
    yield named(base, np.zeros(TOGETHER, dtype=np.int64), [f"{TOGETHER} times"] * TOGETHER)


def _single(seen: Seen) -> Iterator[Batch]:
    """As a service is asked: axes of length one are squeezed, and statistics over one row are none.

    The first rows, which were asked that way among other batches: what differs on rows of the data is no edge case.
    """
    for place in range(min(ALONE, len(seen.batch))):
        yield named(seen.batch, np.array([place]), ["alone"])


def _tied(seen: Seen) -> Iterator[Batch]:
    """Who wins a tie is a rule of its own, and each runtime has one."""
    labelled = next((spec for spec in seen.pairs if spec.kind is Kind.LABEL), None)
    margin = _margin(seen, labelled)
    if margin is not None:
        closest = np.argsort(margin, kind="stable")[:CLOSEST]
        yield named(seen.batch, closest, [f"margin {margin[place]:.3g}" for place in closest])
    if labelled is not None and labelled.reference in seen.reference:
        yield from _between(seen, seen.reference[labelled.reference])


def _margin(seen: Seen, labelled: PairSpec | None) -> Array | None:
    """How far the best class of the reference is ahead of the next, row by row."""
    for spec in seen.pairs:
        scores = seen.reference.get(spec.reference)
        decided = labelled is not None and labelled.margin_from == spec.reference
        if scores is not None and scores.ndim == 2 and (decided or spec.kind is Kind.PROBABILITY):
            return margins(scores, spec.kind, NOTHING)[0]
    return None


def _between(seen: Seen, labels: Array) -> Iterator[Batch]:
    """Rows whose numbers lie between those of two rows of different labels."""
    flat = labels.reshape(len(labels), -1)[:, 0]
    order = np.random.default_rng(seen.seed).permutation(len(flat))
    pairs = [(one, other) for one, other in pairwise(order.tolist()) if flat[one] != flat[other]][:CLOSEST]
    fields = features(seen, FLOAT, TENSOR)
    if not pairs or not fields:
        return
    ones, others = (np.array(side) for side in zip(*pairs, strict=True))
    base = seen.batch.at(ones)
    between = {field: _mixed(field.of(seen.batch.inputs), ones, others) for field in fields}
    yield from varied(base, [Variant("part way to a row of another label", between)])


def _mixed(values: Array, ones: Array, others: Array) -> Array:
    mixed: Array = (1 - PART) * values[ones] + PART * values[others]
    return mixed.astype(values.dtype)


EXTENSIONS = (
    Suite(
        "constant-columns",
        f"Batches with one value in all rows: in up to {CONSTANT} columns alone, in all numbers, in all texts",
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
    Suite("tied-scores", "Rows with the smallest margin between two classes, and rows between two labels", _tied),
)
