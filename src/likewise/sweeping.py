"""The candidate at several batch sizes: a model that is right at 1 may be wrong at 128.

A bounded number of rows is run again at every size and compared twice: with the reference, and with
the candidate's own answers at the main size (`batch_drift`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from likewise.calling import RowCountError, answers
from likewise.comparing import Prepared, align, observe, outputs
from likewise.contracts.data import Batch, Tensors
from likewise.contracts.measuring import BatchSizeFacts, Incident, Json, Mismatch, OutputFacts
from likewise.contracts.models import Kind
from likewise.errors import LikewiseError

DEFAULT_SIZES = (1, 2, 4, 32, 128)
ROWS = 256
CALLS = 32
"""A sweep looks at the first `ROWS` rows, and makes at most `CALLS` calls at each size."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first rows and what both models answered to them in the main run."""

    batch: Batch
    reference: Tensors
    candidate: Tensors

    def slice(self, stop: int) -> Head:
        return Head(
            self.batch.slice(0, stop),
            {name: array[:stop] for name, array in self.reference.items()},
            {name: array[:stop] for name, array in self.candidate.items()},
        )


def sweep(prepared: Prepared, head: Head, sizes: Sequence[int]) -> tuple[BatchSizeFacts, ...]:
    """Compare the candidate at every size."""
    return tuple(_at(prepared, head, size) for size in sizes)


def with_drift(facts: Sequence[OutputFacts], sizes: Sequence[BatchSizeFacts]) -> tuple[OutputFacts, ...]:
    """The largest drift of each output over all sizes, as a measure that a limit can be set on."""
    drifts: dict[str, float] = {}
    for size in sizes:
        for output in size.outputs:
            if "batch_drift" in output.measures:
                drifts[output.name] = max(drifts.get(output.name, 0.0), output.measures["batch_drift"])
    return tuple(
        replace(fact, measures={**fact.measures, "batch_drift": drifts[fact.name]}) if fact.name in drifts else fact
        for fact in facts
    )


def _at(prepared: Prepared, head: Head, size: int) -> BatchSizeFacts:
    part = head.slice(min(len(head.batch), ROWS, size * CALLS))
    try:
        again, _ = answers(prepared.candidate, part.batch, size)
    except RowCountError as error:
        return BatchSizeFacts(size, 0, mismatches=(Mismatch(error.code, f"at batch size {size}: {error.message}"),))
    except LikewiseError as error:
        return BatchSizeFacts(
            size,
            0,
            incidents=(Incident("batch-size", f"at batch size {size} {error.message}", error.remedy, error.side),),
        )
    partial = observe(prepared, part.batch, part.reference, again)
    facts = tuple(
        replace(
            fact,
            details=_needed_to_judge_again(fact),
            measures={**fact.measures, **_drift(prepared, fact.name, part.candidate, again)},
        )
        for fact in outputs(prepared, partial)
    )
    return BatchSizeFacts(size, len(part.batch), facts, tuple(sorted(partial.mismatches, key=lambda m: m.message)))


def _needed_to_judge_again(fact: OutputFacts) -> dict[str, Json]:
    kept = {"closeness": ("values", "magnitudes"), "agreement": ("margins",)}
    return {
        metric: {name: fact.details[metric][name] for name in names}
        for metric, names in kept.items()
        if metric in fact.details
    }


def _drift(prepared: Prepared, name: str, before: Tensors, after: Tensors) -> dict[str, float]:
    """How far the candidate's answers move: the largest difference, or the share of other labels."""
    import numpy as np

    spec = next(spec for spec in prepared.pairing.pairs if spec.name == name)
    same = replace(spec, columns=None, reference_column=None, expand=None)
    aligned = align(same, before[spec.candidate], after[spec.candidate])
    if isinstance(aligned, Mismatch):
        return {"batch_drift": float("inf")}
    one, other = aligned
    if spec.kind is Kind.LABEL or one.dtype.kind not in "biuf":
        return {"batch_drift": float(np.mean(one != other)) if one.size else 0.0}
    with np.errstate(invalid="ignore"):
        moved = np.abs(other.astype(np.float64) - one.astype(np.float64))
    equal = (one == other) | (np.isnan(one.astype(np.float64)) & np.isnan(other.astype(np.float64)))
    moved = np.where(equal, 0.0, np.where(np.isfinite(moved), moved, np.inf))
    return {"batch_drift": float(moved.max(initial=0.0))}
