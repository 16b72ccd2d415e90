"""Which columns of the data what a step gives depends on, found by changing one column after the other."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.cases import Case
from likewise.contracts.data import Array, Batch
from likewise.structure.alike import differing
from likewise.structure.fields import Change, Field, changed, fields_of, transplanted
from likewise.structure.interventions import Trial
from likewise.structure.steps import Step, seen

ROWS = 24
MOST_COLUMNS = 80


def columns_behind(case: Case, step: Step, *, text: bool = False, suspects: Sequence[str] = ()) -> dict[Field, Array]:
    """For each column of the data that matters to a step, a mask of the columns of its output that it changes.

    Every row is given the value of another one. Where there are very many columns, only the suspects are tried.
    """
    import numpy as np

    fields = [field for field in fields_of(case) if not text or _holds_text(field.of(case.required.batch.inputs))]
    if len(fields) > MOST_COLUMNS:
        fields = [field for field in fields if field.name in suspects]
    if len(fields) > MOST_COLUMNS:
        return {}
    trial = Trial.of(case, ROWS, ROWS)
    record = seen(case, trial.batch).get(step.path)
    before = None if record is None else record.output
    found: dict[Field, Array] = {}
    if before is None:
        return found
    for field in fields:
        other = _with_other_values(trial, field)
        again = None if other is None else seen(case, other).get(step.path)
        after = None if again is None else again.output
        if after is not None and after.shape == before.shape:
            moved: Array = np.asarray(differing(after, before).any(axis=0))
            if moved.any():
                found[field] = moved
        elif after is not None:
            found[field] = np.ones(before.shape[1], dtype=bool)
    return found


def _with_other_values(trial: Trial, field: Field) -> Batch | None:
    """The rows with the values of others in one column; a row that is alone with another number, or no text."""
    import numpy as np

    values = trial.values(field)
    if len(values) > 1:
        order = np.argsort(np.array([str(value) for value in values.tolist()]), kind="stable")
        donors = np.empty(len(values), dtype=np.int64)
        donors[order] = np.roll(order, len(values) // 2)
        return transplanted(trial.batch, {field: donors})
    numeric = values.dtype.kind in "iuf"
    other = np.nan_to_num(values.astype(np.float64)) + 1.0 if numeric else ""
    return changed(trial.batch, [Change(field, np.ones(len(values), dtype=bool), other)])


def _holds_text(values: Array) -> bool:
    return values.dtype.kind in "OUT" and any(isinstance(value, str) for value in values[:200].tolist())
