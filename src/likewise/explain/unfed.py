"""Cases without answers: the data does not reach a model. Made comparable by changing the data, to prove the reason.

A reason is proven when the changed data feeds both models and they agree on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from likewise.compare import feed as feeding
from likewise.compare.call import answers
from likewise.compare.observe import prepare, rows_beyond
from likewise.contracts.comparison import Incident, Mismatch
from likewise.contracts.data import Batch, Columns, Provenance, Source
from likewise.data.columns import ArrayColumns, FrameColumns
from likewise.errors import LikewiseError
from likewise.explain.case import Case

ROWS = 512


@dataclass(frozen=True, slots=True)
class Some:
    """Rows in memory, as a source."""

    batch: Batch
    location: str = "some rows"
    fingerprint: str = ""
    provenance: Provenance = Provenance.REAL

    @property
    def rows(self) -> int:
        return len(self.batch)

    def batches(self, size: int) -> Iterator[Batch]:
        for start in range(0, len(self.batch), size):
            yield self.batch.slice(start, start + size)

    def shards(self, count: int) -> Sequence[Source]:
        return [self]


def first_rows(case: Case, count: int = ROWS) -> Batch | None:
    """The first rows of the data, if they have a row axis."""
    try:
        batch = next(iter(case.plan.source.batches(count)), None)
    except LikewiseError:
        return None
    return batch if batch is not None and len(batch) and batch.stacked else None


def agreement(case: Case, batch: Batch, feed: Mapping[str, str] | None = None) -> float | None:
    """The share of the rows on which both models agree; None if one of them still cannot be asked."""
    case.require_time()
    plan = replace(case.plan, source=Some(batch), progress=None, feed={**case.plan.feed, **(feed or {})})
    try:
        prepared = prepare(plan, case.runners["reference"], case.runners["candidate"])
        if isinstance(prepared, Incident):
            return None
        ours, _ = answers(prepared.reference, batch)
        theirs, _ = answers(prepared.candidate, batch)
    except LikewiseError:
        return None
    beyond = np.zeros(len(batch), dtype=bool)
    for pair in case.pairs(batch, ours, theirs, prepared.pairing.pairs):
        beyond |= True if isinstance(pair, Mismatch) else rows_beyond(pair)
    return float(1 - beyond.mean())


def with_added(batch: Batch, added: Mapping[str, str]) -> Batch:
    """The rows with copies of some columns under further names."""
    inputs = batch.inputs
    if isinstance(inputs, ArrayColumns):
        arrays = {**inputs, **{name: inputs[column] for name, column in added.items()}}
        return replace(batch, inputs=ArrayColumns(arrays))
    frame = inputs.frame()
    if not hasattr(frame, "assign"):
        return replace(batch, inputs=ArrayColumns({**inputs, **{n: inputs[c] for n, c in added.items()}}))
    labels = {str(label): label for label in frame.columns}
    frame = frame.copy()
    for name, column in added.items():
        frame[name] = frame[labels[column]]
    return replace(batch, inputs=FrameColumns(frame))


def without(batch: Batch, columns: Sequence[str]) -> Batch:
    """The rows without some columns."""
    inputs: Columns = batch.inputs.select([name for name in batch.inputs if name not in columns])
    return replace(batch, inputs=inputs)


def unfed_sides(case: Case, batch: Batch) -> list[str]:
    """The models that cannot be fed these rows."""
    order = columns_taken(case, batch, "reference") if case.runners["reference"].signature.table else None
    found = []
    for side in ("reference", "candidate"):
        signature = case.runners[side].signature
        try:
            feeding.plan(batch, signature, side=side, order=order, mapping=case.plan.feed)(batch)
        except LikewiseError:
            found.append(side)
    return found


def columns_taken(case: Case, batch: Batch, side: str) -> list[str] | None:
    """The columns that a model takes of these rows, in its order; None if it takes what it gets, or cannot be fed."""
    try:
        planned = feeding.plan(batch, case.runners[side].signature, side=side, mapping=case.plan.feed)
    except LikewiseError:
        return None
    return None if planned.columns is None else list(planned.columns)
