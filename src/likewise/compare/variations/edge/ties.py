"""Rows between classes: where the two best scores lie closest, and between rows of different labels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from likewise.compare.observe import margins
from likewise.compare.variations.edge.rows import FLOAT, TENSOR, features
from likewise.contracts.comparison import PairSpec, Seen, Suite, Tolerance
from likewise.contracts.data import Array, Batch
from likewise.contracts.models import Kind
from likewise.data.cells import Variant, named, varied
from likewise.data.rows import rows_at

ROWS = 16
PART = 0.4631
"""How much of the other row. Not a half: the middle of two values is where trees have their thresholds."""

NOTHING = Tolerance(0.0, 0.0)


def _tied(seen: Seen) -> Iterator[Batch]:
    """Who wins a tie is a rule of its own, and each runtime has one."""
    labelled = next((spec for spec in seen.pairs if spec.kind is Kind.LABEL), None)
    margin = _margin(seen, labelled)
    if margin is not None:
        closest = np.argsort(margin, kind="stable")[:ROWS]
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
    pairs = [(one, other) for one, other in pairwise(order.tolist()) if flat[one] != flat[other]][:ROWS]
    fields = features(seen, FLOAT, TENSOR)
    if not pairs or not fields:
        return
    ones, others = (np.array(side) for side in zip(*pairs, strict=True))
    base = rows_at(seen.batch, ones)
    between = {field: _mixed(field.of(seen.batch.inputs), ones, others) for field in fields}
    yield from varied(base, [Variant("part way to a row of another label", between)])


def _mixed(values: Array, ones: Array, others: Array) -> Array:
    mixed: Array = (1 - PART) * values[ones] + PART * values[others]
    return mixed.astype(values.dtype)


EXTENSION = Suite(
    "tied-scores", "Rows with the smallest margin between two classes, and rows between two labels", _tied
)
