"""Which columns of the data what a step gives depends on, found by changing one column after the other."""

from __future__ import annotations

from likewise.cases import Case
from likewise.contracts.data import Array
from likewise.structure.alike import differing
from likewise.structure.fields import Field, fields_of, transplanted
from likewise.structure.interventions import Trial
from likewise.structure.steps import Step, seen

ROWS = 24
MOST_COLUMNS = 80


def columns_behind(case: Case, step: Step, *, text: bool = False) -> dict[Field, Array]:
    """For each column of the data that matters to a step, a mask of the columns of its output that it changes.

    Every row is given the value of the next one. Nothing is known of data with very many columns.
    """
    import numpy as np

    fields = [field for field in fields_of(case) if not text or _holds_text(field.of(case.required.batch.inputs))]
    if len(fields) > MOST_COLUMNS:
        return {}
    trial = Trial.of(case, ROWS, ROWS)
    if len(trial) < 2:
        trial = Trial.whole(case)
    record = seen(case, trial.batch).get(step.path)
    before = None if record is None else record.output
    found: dict[Field, Array] = {}
    if before is None:
        return found
    for field in fields:
        donors = _other_values(trial.values(field))
        again = seen(case, transplanted(trial.batch, {field: donors})).get(step.path)
        after = None if again is None else again.output
        if after is not None and after.shape == before.shape:
            moved = differing(after, before).any(axis=0)
            if moved.any():
                found[field] = moved
        elif after is not None:
            found[field] = np.ones(before.shape[1], dtype=bool)
    return found


def _other_values(values: Array) -> Array:
    """For each row the position of a row with another value, where there is one near."""
    import numpy as np

    order = np.argsort(np.array([str(value) for value in values.tolist()]), kind="stable")
    shift = max(1, len(values) // 2)
    donors = np.empty(len(values), dtype=np.int64)
    donors[order] = np.roll(order, shift)
    return donors


def _holds_text(values: Array) -> bool:
    return values.dtype.kind in "OUT" and any(isinstance(value, str) for value in values[:200].tolist())
