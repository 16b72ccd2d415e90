"""A model answers some rows and refuses others: which value of which column it does not take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from likewise.compare import feed
from likewise.compare.call import Side, answers
from likewise.contracts.data import Array, Batch
from likewise.data.cells import Field, missing_in, transplanted
from likewise.errors import LikewiseError
from likewise.explain.case import Case, Explained, Sample
from likewise.explain.fields import fields_of
from likewise.explain.fitted import known_categories
from likewise.explain.unfed import ROWS, agreement, first_rows

MOST_ROWS = 8_192

MOST_FIELDS = 200


class RefusedRows:
    """Find a row that is refused, and the column that makes it so: with the value of an answered row it is answered."""

    causes = ("unknown-category", "missing-value-handling")
    needs_answers = False

    def plausible(self, case: Case) -> bool:
        return (
            case.sample is None
            and len(case.runners) == 2
            and any(incident.code == "model" and incident.side is not None for incident in case.comparison.incidents)
        )

    def test(self, case: Case) -> Sequence[Explained]:
        batch = first_rows(case, MOST_ROWS)
        if batch is None:
            return []
        opened = _fed(case, batch)
        if opened is None:
            return []
        for side in ("reference", "candidate"):
            found = _refused_by(opened, side)
            if found is not None:
                return [found]
        return []


def _fed(case: Case, batch: Batch) -> Case | None:
    """The case with both models fed these rows, although they do not answer all of them."""
    reference, candidate = (case.runners[side].signature for side in ("reference", "candidate"))
    try:
        ours = feed.plan(batch, reference, side="reference", mapping=case.plan.feed)
        order = ours.columns if reference.table else None
        theirs = feed.plan(batch, candidate, side="candidate", order=order, mapping=case.plan.feed)
    except LikewiseError:
        return None
    sample = Sample(batch, {}, {}, (), np.zeros(len(batch), dtype=bool), complete=False)
    return replace(
        case,
        reference=Side("reference", case.plan.reference.name, case.runners["reference"], ours),
        candidate=Side("candidate", case.plan.candidate.name, case.runners["candidate"], theirs),
        sample=sample,
        known=dict(case.known),
    )


def _refused_by(case: Case, side: str) -> Explained | None:
    """The column whose value a model refuses, and what is special about that value."""
    batch = case.required.batch
    if _answers(case, side, batch):
        return None
    pair = _border(case, side)
    if pair is None:
        return None
    refused, answered = pair
    guilty = [field for field in fields_of(case)[:MOST_FIELDS] if _cured(case, side, field, refused, answered)]
    for field in guilty:
        found = _told(case, side, field, refused)
        if found is not None:
            return found
    return None


def _border(case: Case, side: str) -> tuple[int, int] | None:
    """A row that is refused, by halving, and one that is answered."""
    low, high = 0, len(case.required.batch)
    while high - low > 1:
        middle = (low + high) // 2
        if _answers(case, side, case.rows(np.arange(low, middle))):
            low = middle
        else:
            high = middle
    others = [row for row in (0, len(case.required.batch) - 1, *range(1, 40)) if row not in (low, high)]
    for row in dict.fromkeys([low - 1, low + 1, *others]):
        if 0 <= row < len(case.required.batch) and _answers(case, side, case.rows(np.array([row]))):
            return (low, row) if not _answers(case, side, case.rows(np.array([low]))) else None
    return None


def _answers(case: Case, side: str, batch: Batch) -> bool:
    case.require_time()
    try:
        answers(case.side(side), batch)
    except LikewiseError:
        return False
    return True


def _cured(case: Case, side: str, field: Field, refused: int, answered: int) -> bool:
    """Is the refused row answered with the value of the answered one in this column?"""
    two = case.rows(np.array([refused, answered]))
    return _answers(case, side, transplanted(two, {field: np.array([1, 1])}))


def _told(case: Case, side: str, field: Field, refused: int) -> Explained | None:
    """What is special about the refused value: it is missing, or not among the categories that others have."""
    values = field.of(case.required.batch.inputs)
    gone = missing_in(values)
    if gone[refused]:
        share = _agreement_without(case, gone)
        return Explained(
            "missing-value-handling",
            field.name,
            f"the {side} refuses rows in which {field.name} is missing ({int(gone.sum()):,} of {len(values):,}) and "
            f"answers them with a value of another row{share}",
            f"Impute {field.name} in the pipeline before it is exported, or before both models",
            simplicity=2,
        )
    value = values[refused]
    known = known_categories(case, field)
    if known is None and not isinstance(value, str):
        return None
    strange = _unknown(case, side, field, values, refused) if known is None else ~np.isin(values, list(known.values))
    if not strange[refused]:
        return None
    words = ", ".join(repr(word) for word in list(dict.fromkeys(values[strange & ~gone].tolist()))[:3])
    to_whom = "" if known is None else f", unknown to {known.whose},"
    return Explained(
        "unknown-category",
        field.name,
        f"the {side} refuses rows with {words} in {field.name}{to_whom} ({int((strange & ~gone).sum()):,} of "
        f"{len(values):,}) and answers them with a value of another row{_agreement_without(case, strange)}",
        f"Map unknown values of {field.name} to a known one, or fit with handle_unknown='ignore' and export that",
        simplicity=2,
    )


def _unknown(case: Case, side: str, field: Field, values: Array, refused: int) -> Array:
    """The rows with a value that is refused, each distinct one tried in the place of one that is answered."""
    strange = np.zeros(len(values), dtype=bool)
    first = {value: row for row, value in reversed(list(enumerate(values.tolist())))}
    for value, row in list(first.items())[:MOST_FIELDS]:
        if value == values[refused] or not _answers(case, side, case.rows(np.array([row]))):
            strange |= np.asarray(values == value, dtype=bool)
    return strange


def _agreement_without(case: Case, rows: Array) -> str:
    """Whether both models answer and agree once these rows are left out."""
    kept = np.flatnonzero(~rows)[:ROWS]
    share = agreement(case, case.rows(kept)) if len(kept) else None
    return "" if share is None else f"; without these rows both models agree on {share:.0%} of {len(kept):,} others"


EXTENSION = RefusedRows()
