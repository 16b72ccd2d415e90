"""A column cannot be given to a model in the type or the shape that it declares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from likewise.contracts.data import Array, Batch
from likewise.contracts.models import InputSpec, Shape
from likewise.data.cells import missing_in
from likewise.data.columns import ArrayColumns, with_columns
from likewise.data.rows import rows_at
from likewise.explain.case import Case, Explained
from likewise.explain.unfed import ROWS, agreement, columns_taken, first_rows, unfed_sides


class UncastableColumns:
    """Leave out the rows that do not fit, read text as numbers, turn axes round: do both models then agree?"""

    causes = ("missing-value-handling", "input-type", "input-layout")
    needs_answers = False

    def plausible(self, case: Case) -> bool:
        return (
            case.sample is None
            and len(case.runners) == 2
            and any(incident.code == "feeding" for incident in case.comparison.incidents)
        )

    def test(self, case: Case) -> Sequence[Explained]:
        batch = first_rows(case, MOST_ROWS)
        if batch is None:
            return []
        for side in unfed_sides(case, batch):
            found = _typed(case, batch, side) or _shaped(case, batch, side)
            if found is not None:
                return [found]
        return []


MOST_ROWS = 65_536
"""A single missing value far down in the data is enough to be refused."""


def _typed(case: Case, batch: Batch, side: str) -> Explained | None:
    """A column that cannot be cast to the type a model declares: text, or missing values for an integer."""
    for spec, column in _routes(case, batch, side):
        array = batch.inputs[column]
        if spec.dtype is None or array.ndim != 1:
            continue
        if spec.dtype.startswith(("int", "uint", "bool")) and array.dtype.kind in "fO":
            found = _missing_as_integer(case, batch, side, spec, column, array)
            if found is not None:
                return found
        if spec.dtype not in ("string", "object") and array.dtype.kind == "O":
            texts = [value for value in array.tolist() if isinstance(value, str)]
            if texts:
                return _text_as_number(case, batch, side, spec, column, texts[0])
    return None


def _routes(case: Case, batch: Batch, side: str) -> list[tuple[InputSpec, str]]:
    """Which column becomes which input, as far as it can be told from names."""
    signature = case.runners[side].signature
    specs = signature.inputs or ()
    if len(specs) == 1 and specs[0].name not in batch.inputs and not signature.table:
        order = columns_taken(case, batch, "reference") or list(batch.inputs)
        return [(specs[0], column) for column in order]
    named = [(spec, case.plan.feed.get(spec.name, spec.name)) for spec in specs]
    return [(spec, column) for spec, column in named if column in batch.inputs]


def _missing_as_integer(
    case: Case, batch: Batch, side: str, spec: InputSpec, column: str, array: Array
) -> Explained | None:
    gone = missing_in(array)
    if array.dtype.kind == "f":
        gone = gone | ~np.isfinite(array)
    if not gone.any() or any(isinstance(value, str) for value in array[~gone].tolist()[:1000]):
        return None
    kept = np.flatnonzero(~gone)[:ROWS]
    share = None
    if len(kept):
        share = agreement(case, rows_at(batch, kept))
    also = "" if share is None else f"; without these rows both models answer, and agree on {share:.0%} of the rest"
    return Explained(
        "missing-value-handling",
        column,
        f"{column} is missing in {int(gone.sum()):,} of {len(array):,} rows, and the {side} takes it as {spec.dtype}, "
        f"which has no missing values{also}",
        f"Export with {column} as a float input, or impute it before both models",
        simplicity=1,
    )


def _text_as_number(case: Case, batch: Batch, side: str, spec: InputSpec, column: str, example: str) -> Explained:
    parsed = _parsed(batch.inputs[column])
    share = None
    if parsed is not None:
        numbers = Batch(batch.rows, with_columns(batch.inputs, {column: parsed}))
        share = agreement(case, numbers.slice(0, ROWS))
    also = "" if share is None else f"; read as numbers, both models answer, and agree on {share:.0%} of the rows"
    return Explained(
        "input-type",
        column,
        f"{column} holds text in the data, such as {example!r}, and the {side} takes it as {spec.dtype}{also}",
        f"Store {column} as numbers"
        if parsed is not None
        else f"Export with {column} as a text input, encoder included",
        simplicity=1,
    )


def _parsed(array: Array) -> Array | None:
    """Text that spells numbers, as numbers; None if any does not."""
    try:
        return np.array([np.nan if value is None else float(value) for value in array.tolist()])
    except (TypeError, ValueError):
        return None


def _shaped(case: Case, batch: Batch, side: str) -> Explained | None:
    """A tensor whose axes are in another order than the input declares."""
    for spec in case.runners[side].signature.inputs or ():
        column = case.plan.feed.get(spec.name, spec.name)
        column = column if column in batch.inputs else next(iter(batch.inputs)) if len(batch.inputs) == 1 else ""
        if not column or spec.shape is None or batch.inputs[column].ndim != len(spec.shape) or len(spec.shape) < 3:
            continue
        array = batch.inputs[column]
        orders = [(0, *axes) for axes in permutations(range(1, array.ndim))]
        fitting = [order for order in orders[1:] if _fits([array.shape[axis] for axis in order], spec.shape)]
        if not fitting or _fits(array.shape, spec.shape):
            continue
        shares = {order: _agreement_turned(case, batch, side, spec, order) for order in fitting}
        best = max(fitting, key=lambda order: shares[order] or 0.0)
        share = shares[best]
        proof = "" if share is None else f"; turned round, both models agree on {share:.0%} of the rows"
        turned = ", ".join(map(str, best))
        return Explained(
            "input-layout",
            f"{spec.name} (its axes are {turned} of the data)",
            f"the {side} takes {spec.name} as {_shape(spec.shape)}, the data has {_shape((None, *array.shape[1:]))}, "
            f"the same axes in another order{proof}",
            f"Turn the data round before it is fed: array.transpose({turned})",
            simplicity=1,
        )
    return None


def _agreement_turned(case: Case, batch: Batch, side: str, spec: InputSpec, order: tuple[int, ...]) -> float | None:
    """Do both models agree if this one gets the tensor turned round? Told where each has one input, of its own name."""
    others = case.runners["reference" if side == "candidate" else "candidate"].signature.inputs or ()
    if len(batch.inputs) != 1 or len(others) != 1 or others[0].name == spec.name:
        return None
    (array,) = batch.inputs.values()
    arrays = {others[0].name: array, spec.name: np.ascontiguousarray(array.transpose(order))}
    return agreement(case, Batch(batch.rows, ArrayColumns(arrays)).slice(0, ROWS))


def _fits(sizes: Sequence[int], shape: Shape) -> bool:
    pairs = zip(sizes[1:], shape[1:], strict=True)
    return all(not isinstance(want, int) or want == have for have, want in pairs)


def _shape(shape: Shape) -> str:
    return "(" + ", ".join("n" if dim is None else str(dim) for dim in shape) + ")"


EXTENSION = UncastableColumns()
