"""Both models on rows that they may refuse, measured apart from the data.

A row that both refuse agrees. A row that one of them refuses and the other answers is a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from likewise.calling import answers
from likewise.comparing import CANDIDATE, REFERENCE, Partial, Prepared, finish, observe
from likewise.contracts.data import Array, Batch
from likewise.contracts.measuring import Cast, Comparison, Mismatch, Plan
from likewise.errors import LikewiseError

REFUSED = "refused-by-one"
SHOWN = 3
"""Rows refused by one side that are told one by one."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What was measured on the rows that both answered, and how many both refused."""

    comparison: Comparison
    refused: int


def try_rows(plan: Plan, prepared: Prepared, batches: Iterable[Batch], *, batch_size: int | None = None) -> Tried:
    """Compare both models on these rows, whatever they do with them."""
    partial, refused, one_sided = Partial(), 0, 0
    for batch in batches:
        for answered in _answered(prepared, batch, batch_size):
            if isinstance(answered, Partial):
                partial = partial.merge(answered)
            elif isinstance(answered, Mismatch):
                one_sided += 1
                if one_sided <= SHOWN:
                    partial = partial.merge(Partial(mismatches=frozenset({answered})))
            else:
                refused += answered
    if one_sided > SHOWN:
        more = Mismatch(
            REFUSED, f"{one_sided - SHOWN:,} more rows are refused by one of the models and answered by the other"
        )
        partial = partial.merge(Partial(mismatches=frozenset({more})))
    comparison = finish(prepared, partial, replace(plan, expected_rows=None))
    # What is said of the models and the data as a whole is said once, beside the data.
    return Tried(replace(comparison, notes=(), warnings=(), not_compared=(), varied=False), refused)


def _answered(prepared: Prepared, batch: Batch, size: int | None) -> Iterator[Partial | Mismatch | int]:
    """What both answered; where one refuses, half by half down to the rows it refuses."""
    ours, theirs = _ask(prepared, REFERENCE, batch, size), _ask(prepared, CANDIDATE, batch, size)
    refusals = [found for found in (ours, theirs) if isinstance(found, LikewiseError)]
    if not refusals:
        assert not isinstance(ours, LikewiseError)
        assert not isinstance(theirs, LikewiseError)
        observed = observe(prepared, batch, ours[0], theirs[0])
        yield replace(observed, casts=(*ours[1], *theirs[1]))
    elif len(batch) > 1 and batch.stacked:
        middle = len(batch) // 2
        yield from _answered(prepared, batch.slice(0, middle), size)
        yield from _answered(prepared, batch.slice(middle, len(batch)), size)
    elif len(refusals) == 2:
        yield len(batch)
    else:
        refusing, other = (REFERENCE, CANDIDATE) if isinstance(ours, LikewiseError) else (CANDIDATE, REFERENCE)
        message = f"{batch.rows.name(0)}: the {refusing} refuses it and the {other} answers: {refusals[0].message}"
        yield Mismatch(REFUSED, message)


def _ask(
    prepared: Prepared, side: str, batch: Batch, size: int | None
) -> tuple[dict[str, Array], tuple[Cast, ...]] | LikewiseError:
    try:
        return answers(prepared.reference if side == REFERENCE else prepared.candidate, batch, size)
    except LikewiseError as error:
        return error
