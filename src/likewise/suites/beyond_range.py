"""Each column pushed past what was observed: a little, and by ten times its span."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from likewise.contracts.data import Array, Batch
from likewise.contracts.suites import Seen
from likewise.structure.fields import Field
from likewise.suiting import FLOAT, IDS, INTEGER, TENSOR, Variant, features, holds, kind, picked, values_of, varied

LITTLE, FAR = 0.01, 10.0
"""How far past the range, in units of what it spans."""


class BeyondRange:
    """Where calibration ends, tables end and ids run out. Ids of an embedding go past the last on purpose."""

    name = "beyond-range"
    title = "Numbers past the range of the first rows, by a little and by ten times its span, in each column"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        base = picked(seen)
        variants = []
        for field in features(seen, FLOAT, INTEGER, TENSOR, IDS):
            observed = values_of(seen, field)
            if observed.size:
                variants += list(_past(seen, field, base, observed))
        yield from varied(base, variants)


def _past(seen: Seen, field: Field, base: Batch, observed: Array) -> Iterator[Variant]:
    low, high = observed.min().item(), observed.max().item()
    if kind(seen, field) == IDS:
        yield from _other_ids(field, base, (high + 1, low - 1))
        return
    span = (high - low) or abs(high) or 1
    for side, edge, sign in (("above", high, 1), ("below", low, -1)):
        for share in (LITTLE, FAR):
            if kind(seen, field) == TENSOR:
                moved = (base.inputs[field.column] + sign * share * span).astype(observed.dtype)
                yield Variant(f"{field.name} moved by {sign * share * span:g}, {side} the range seen", {field: moved})
                continue
            value = edge + sign * (max(1, round(share * span)) if isinstance(edge, int) else share * span)
            value = value if isinstance(edge, int) else float(observed.dtype.type(value))
            if holds(observed.dtype, value):
                yield Variant(f"{field.name} = {value!r}, {side} the range seen", {field: value})


def _other_ids(field: Field, base: Batch, values: Iterable[int]) -> Iterator[Variant]:
    """The first id of each row exchanged for one that was not seen."""
    for value in values:
        ids = base.inputs[field.column].copy()
        if holds(ids.dtype, value):
            ids.reshape(len(ids), -1)[:, 0] = value
            yield Variant(f"first of {field.name} = {value}, past the ids seen", {field: ids})


EXTENSION = BeyondRange()
