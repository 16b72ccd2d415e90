"""Both models on rows of other lengths and sizes: what was traced at one length may hold at that length only.

The rows are those of the data, cut or repeated along an axis that the models leave open. Where a mask is among
the inputs, they are also padded with positions that it takes out again.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from likewise.compare.observe import Prepared
from likewise.compare.session import Head
from likewise.compare.variations.axes import Axis, at_length, axes_of, fixed_places, named_axis
from likewise.compare.variations.padding import KIND, mask_of, try_padding, with_real_positions
from likewise.compare.variations.refusals import only_recorded, try_rows
from likewise.contracts.comparison import Incident, Plan, SuiteFacts
from likewise.contracts.data import Batch
from likewise.data.rows import rows_at
from likewise.errors import one_line

ROWS = 8
BYTES = 16 * 2**20
"""A length is tried on at most so many rows, of at most so many bytes; one row is always tried if it was asked for."""

MOST_BYTES = 2**30
"""A row of more bytes is not made, also if its length was asked for."""

AXES = 4
SECONDS = 20.0
"""What was not asked for: at most so many axes, and no new length after so many seconds."""


def require_known(plan: Plan, prepared: Prepared) -> None:
    """Refuse names of axes that mean nothing before anything is compared."""
    first = prepared.first
    if first.stacked:
        for name in plan.shapes or ():
            named_axis(name, _known(prepared, first), first)


def applies(plan: Plan, prepared: Prepared, head: Head | None) -> bool:
    """Is there anything to try that was not asked for?"""
    return plan.shapes is None and head is not None and not _impossible(plan) and bool(_free(prepared, head.batch))


def run(plan: Plan, prepared: Prepared, head: Head | None) -> tuple[SuiteFacts, ...]:
    """Every length that was asked for, which blocks; or, where nothing was said, some around those of the data."""
    if plan.shapes is None:
        return _unasked(plan, prepared, head) if applies(plan, prepared, head) and head is not None else ()
    reason = "the data is one test case, whose tensors have no rows to change" if head is None else _impossible(plan)
    if reason or head is None:
        told = ("Rows at other lengths", plan.nothing)
        return tuple(SuiteFacts(KIND, name, *told, blocks=True, not_covered=reason) for name in plan.shapes)
    known = _known(prepared, head.batch)
    found: list[SuiteFacts] = []
    for name, lengths in plan.shapes.items():
        axis = replace(named_axis(name, known, head.batch), name=name)
        found.extend(_at(plan, prepared, head.batch, axis, length, blocks=True) for length in dict.fromkeys(lengths))
        found.extend(_padding(plan, prepared, head.batch, axis, blocks=True))
    return tuple(found)


def _unasked(plan: Plan, prepared: Prepared, head: Head) -> tuple[SuiteFacts, ...]:
    until = time.monotonic() + SECONDS
    found: list[SuiteFacts] = []
    for axis in _free(prepared, head.batch)[:AXES]:
        for length in lengths_beside(axis, head.batch):
            if time.monotonic() > until:
                late = f"there was no time left after {SECONDS:g} seconds; ask for it with --shapes"
                found.append(
                    SuiteFacts(KIND, f"{axis.name}={length}", _title(axis, length), plan.nothing, not_covered=late)
                )
            else:
                found.append(_at(plan, prepared, head.batch, axis, length, blocks=False))
        if time.monotonic() <= until:
            found.extend(_padding(plan, prepared, head.batch, axis, blocks=False))
    return tuple(found)


def lengths_beside(axis: Axis, batch: Batch) -> tuple[int, ...]:
    """Lengths to try beside that of the data: one, a little less, a little more, twice as much if a row stays small."""
    wanted = (1, axis.length - 1, axis.length + 1, 2 * axis.length)
    sized = {length: _row_bytes(axis, batch, length) for length in wanted}
    return tuple(n for n in dict.fromkeys(wanted) if n > 0 and n != axis.length and sized[n] <= BYTES)


def _at(plan: Plan, prepared: Prepared, batch: Batch, axis: Axis, length: int, *, blocks: bool) -> SuiteFacts:
    told = (KIND, f"{axis.name}={length}", _title(axis, length))
    size = _row_bytes(axis, batch, length)
    if size > MOST_BYTES:
        too_many = f"a row would take {size:,} bytes, too many to make up"
        return SuiteFacts(*told, plan.nothing, blocks, not_covered=too_many)
    # Which of the two is asked is known only when one of them answers.
    plan.tell(f"trying {axis.name}={length}", batch=batch)
    try:
        rows = at_length(_some(batch, size), axis, length)
        mask = mask_of(axis, batch)
        if mask is not None:
            rows = with_real_positions(rows, mask)
        tried = try_rows(plan, prepared, [rows] if len(rows) else [])
    except Exception as error:  # noqa: BLE001 - the data was compared: a length that breaks takes only itself along
        return _broken(told, plan, error, blocks=blocks)
    if not len(rows):
        return SuiteFacts(*told, tried.comparison, blocks, not_covered="a mask leaves no position of any row")
    return SuiteFacts(*told, tried.comparison, blocks, tried.refused)


def _padding(plan: Plan, prepared: Prepared, batch: Batch, axis: Axis, *, blocks: bool) -> tuple[SuiteFacts, ...]:
    plan.tell(f"trying padding along {axis.name}", batch=batch)
    rows = _some(batch, _row_bytes(axis, batch, axis.length))
    try:
        return try_padding(plan, prepared, rows, axis, blocks=blocks)
    except Exception as error:  # noqa: BLE001 - as above
        return (_broken((KIND, f"padding of {axis.name}", "The same rows, padded"), plan, error, blocks=blocks),)


def _broken(told: tuple[str, str, str], plan: Plan, error: Exception, *, blocks: bool) -> SuiteFacts:
    incident = Incident("shape", f"{told[1]} broke: {one_line(error)}", "Tell us; --shapes none skips it")
    return SuiteFacts(*told, replace(plan.nothing, incidents=(incident,)), blocks)


def _title(axis: Axis, length: int) -> str:
    how = "cut" if length < axis.length else "repeated"
    return f"Rows of the data {how} to {length} along {axis.told}, where they have {axis.length}"


def _known(prepared: Prepared, batch: Batch) -> tuple[Axis, ...]:
    """Every axis that either model leaves open; the candidate's names go first."""
    theirs, ours = axes_of(prepared.candidate.feed, batch), axes_of(prepared.reference.feed, batch)
    return (*theirs, *(axis for axis in ours if axis.name not in {other.name for other in theirs}))


def _free(prepared: Prepared, batch: Batch) -> list[Axis]:
    """The axes that the candidate leaves open and the reference does not fix: tables have a fixed width."""
    fixed = fixed_places(prepared.reference.feed, batch)
    if prepared.reference.runner.signature.table:
        return []
    return [axis for axis in axes_of(prepared.candidate.feed, batch) if not fixed.intersection(axis.places)]


def _impossible(plan: Plan) -> str:
    side = only_recorded(plan)
    return side and f"of the {side} there are only recorded answers, and none to rows of another length"


def _row_bytes(axis: Axis, batch: Batch, length: int) -> int:
    """What a row takes at a length."""
    columns = {column for column, _ in axis.places}
    factor = length / max(axis.length, 1)
    sizes = {name: array.nbytes / max(len(batch), 1) for name, array in batch.inputs.items()}
    return max(1, int(sum(size * (factor if name in columns else 1) for name, size in sizes.items())))


def _some(batch: Batch, row_bytes: int) -> Batch:
    """A few rows from all over the first ones, as many as are allowed."""
    count = max(1, min(ROWS, len(batch), BYTES // row_bytes))
    return rows_at(batch, np.arange(count) * len(batch) // count)
