"""Cases without answers: the data does not reach a model, and is changed until both answer, to prove the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from likewise.compare import feed as feeding
from likewise.compare.call import answers
from likewise.compare.observe import prepare
from likewise.contracts.comparison import Incident
from likewise.contracts.data import Batch, Provenance, Source
from likewise.data.columns import ArrayColumns, FrameColumns
from likewise.errors import LikewiseError
from likewise.explain.case import Case

ROWS = 512
"""Rows on which both models are asked whether they agree."""


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


def agreement(case: Case, batch: Batch) -> float | None:
    """The share of the rows on which both models agree; None if one of them still cannot be asked."""
    case.require_time()
    plan = replace(case.plan, source=Some(batch), progress=None)
    try:
        prepared = prepare(plan, case.runners["reference"], case.runners["candidate"])
        if isinstance(prepared, Incident):
            return None
        ours, _ = answers(prepared.reference, batch)
        theirs, _ = answers(prepared.candidate, batch)
    except LikewiseError:
        return None
    return float(case.agreeing(batch, ours, theirs, prepared.pairing.pairs).mean())


def with_added(batch: Batch, added: Mapping[str, str]) -> Batch:
    """The rows with copies of some columns under further names."""
    inputs = batch.inputs
    frame = None if isinstance(inputs, ArrayColumns) else inputs.frame()
    if frame is None or not hasattr(frame, "assign"):
        return replace(batch, inputs=ArrayColumns({**inputs, **{name: inputs[old] for name, old in added.items()}}))
    labels = {str(label): label for label in frame.columns}
    return replace(
        batch, inputs=FrameColumns(frame.assign(**{name: frame[labels[old]] for name, old in added.items()}))
    )


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
