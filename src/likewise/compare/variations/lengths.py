"""Both models on rows of other lengths and sizes: what was traced at one length may hold at that length only.

The rows are those of the data, cut or repeated along an axis that the models leave open (`axes.py`). Where a mask is
among the inputs, the rows are also padded with positions that it takes out again: each model is compared with its own
answers to the rows as they are, and the candidate with the reference.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from likewise.compare.call import Side, answers
from likewise.compare.engines import Head
from likewise.compare.observe import CANDIDATE, REFERENCE, Prepared, finish_beside, observe
from likewise.compare.variations.axes import Axis, at_length, axes_of, called, empty_axes, fixed_places, named_axis
from likewise.compare.variations.batches import drift, own_output, rows_moved
from likewise.compare.variations.refusals import REFUSED, Tried, only_recorded, try_rows
from likewise.contracts.comparison import Incident, Mismatch, Plan, SuiteFacts, Untried
from likewise.contracts.data import Array, Batch
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import figure
from likewise.errors import LikewiseError, one_line

EXTRA = 3
"""Positions that are added at the end of each row."""

KIND = "shape"

Answered: TypeAlias = tuple[dict[str, Array], dict[str, Array]]
"""One model's answers to rows as they are and to the same rows padded, where padding must not touch them."""

ROWS = 8
BYTES = 16 * 2**20
"""A length is tried on at most so many rows, of at most so many bytes; one row is always tried if it was asked for."""

FEW, LARGE = 2, 2**18
"""Of a model that takes long it is tried on so many rows, and on one row of more bytes."""

MOST_BYTES = 2**30
"""A row of more bytes is not made, also if its length was asked for."""

AXES = 4
"""Axes that are tried without being asked for; of more, those behind are listed as not covered."""


@dataclass(frozen=True, slots=True)
class Mask:
    """An input that says which positions count; `inverted`: it marks those that do not."""

    column: str
    inverted: bool

    def real(self, batch: Batch) -> Array:
        """Which positions count, a row each."""
        marked: Array = batch.inputs[self.column] != 0
        return ~marked if self.inverted else marked


def mask_of(axis: Axis, batch: Batch) -> Mask | None:
    """The mask among the inputs that share an axis; its name tells what it marks, unless the data denies it."""
    for column, place in axis.places:
        array = batch.inputs[column]
        if "mask" not in column.lower() or place != 1 or array.ndim != 2 or array.dtype.kind not in "biuf":
            continue
        if not ((array == 0) | (array == 1)).all():
            continue
        named = Mask(column, inverted="pad" in column.lower())
        other = replace(named, inverted=not named.inverted)
        return other if not named.real(batch).any() else named
    return None


def with_real_positions(batch: Batch, mask: Mask) -> Batch:
    """The rows that have at least one position that counts: a model need not answer the others."""
    return batch.at(np.flatnonzero(mask.real(batch).any(axis=1)))


def padded(batch: Batch, axis: Axis, mask: Mask) -> Batch:
    """The rows with more positions at the end, masked and filled as the data fills them."""
    real = mask.real(batch)
    arrays = dict(batch.inputs)
    for column, place in axis.places:
        array = arrays[column]
        value = int(mask.inverted) if column == mask.column else _filling(array, place, real)
        widths = [(0, EXTRA if number == place else 0) for number in range(array.ndim)]
        arrays[column] = np.pad(array, widths, constant_values=np.asarray(value, dtype=array.dtype))
    return called(batch, arrays, f"{EXTRA} positions of padding")


def try_padding(plan: Plan, prepared: Prepared, batch: Batch, axis: Axis) -> tuple[SuiteFacts, ...]:
    """Both models on padded rows; nothing where no mask is among the inputs."""
    mask = mask_of(axis, batch)
    if mask is None:
        return ()
    told = (KIND, f"padding of {mask.column}", f"The same rows with {EXTRA} more positions that {mask.column} masks")
    batch = with_real_positions(batch, mask)
    if not len(batch):
        return (SuiteFacts(*told, plan.nothing, not_covered=f"{mask.column} leaves no position of any row"),)
    ours = _asked(prepared.reference, batch, axis, mask)
    if not isinstance(ours, LikewiseError) and _moved(prepared, batch, ours, REFERENCE):
        # The name of a mask does not always tell what it marks; what the reference ignores does.
        other = replace(mask, inverted=not mask.inverted)
        again = _asked(prepared.reference, batch, axis, other) if other.real(batch).any(axis=1).all() else ours
        if not isinstance(again, LikewiseError) and not _moved(prepared, batch, again, REFERENCE):
            mask, ours = other, again
    theirs = _asked(prepared.candidate, batch, axis, mask)
    if isinstance(ours, LikewiseError) or isinstance(theirs, LikewiseError):
        return (_refused(told, plan, len(batch), ours, theirs),)
    still = _moved(prepared, batch, ours, REFERENCE)
    moved = _moved(prepared, batch, theirs, CANDIDATE)
    partial = observe(prepared, padded(batch, axis, mask), ours[1], theirs[1])
    when = "when rows are padded with masked positions, beyond tolerance; the reference's stays"
    differing = {
        Mismatch("padding", f"{name!r} of the candidate moves by up to {figure(by)} {when}", name)
        for name, by in moved.items()
        if name not in still
    }
    comparison = finish_beside(prepared, replace(partial, mismatches=partial.mismatches | differing), plan)
    found = SuiteFacts(*told, comparison, blocks=True)
    return (found, _reference_moves(plan, mask, still)) if still else (found,)


def _reference_moves(plan: Plan, mask: Mask, still: dict[str, float]) -> SuiteFacts:
    name, by = max(still.items(), key=lambda entry: entry[1])
    reason = (
        f"{name!r} of the reference itself moves by up to {figure(by)} when rows are padded with masked positions: "
        "its answers depend on how far a batch is padded, and so may the candidate's"
    )
    title = "Answers stay when rows are padded"
    return SuiteFacts(KIND, f"padding of {mask.column} in the reference", title, plan.nothing, not_covered=reason)


def _refused(
    told: tuple[str, str, str], plan: Plan, rows: int, ours: Answered | LikewiseError, theirs: Answered | LikewiseError
) -> SuiteFacts:
    if not isinstance(theirs, LikewiseError):
        assert isinstance(ours, LikewiseError)
        alone = f"the reference refuses rows that are padded: {ours.message}"
        return SuiteFacts(*told, plan.nothing, not_covered=alone)
    if isinstance(ours, LikewiseError):
        return SuiteFacts(*told, plan.nothing, refused=rows)
    mismatch = Mismatch(REFUSED, f"only the candidate refuses rows that are padded: {theirs.message}")
    return SuiteFacts(*told, replace(plan.nothing, mismatches=(mismatch,)), blocks=True)


def _asked(side: Side, batch: Batch, axis: Axis, mask: Mask) -> Answered | LikewiseError:
    try:
        before, after = answers(side, batch)[0], answers(side, padded(batch, axis, mask))[0]
    except LikewiseError as error:
        return error
    for name in before.keys() & after.keys():
        before[name], after[name] = _untouched(before[name], after[name], mask.real(batch))
    return before, after


def _untouched(before: Array, after: Array, real: Array) -> tuple[Array, Array]:
    """Both answers where padding must not touch them: real positions along every axis that grew with the rows."""
    if before.ndim != after.ndim:
        return before, after
    length = real.shape[1]
    for axis in range(1, before.ndim):
        if before.shape[axis] == length and after.shape[axis] == length + EXTRA:
            after = np.take(after, np.arange(length), axis=axis)
            counts = real.reshape([len(real), *(length if place == axis else 1 for place in range(1, before.ndim))])
            empty = np.zeros((), dtype=before.dtype)
            before, after = np.where(counts, before, empty), np.where(counts, after, empty.astype(after.dtype))
    return before, after


def _moved(prepared: Prepared, batch: Batch, found: Answered, side: str) -> dict[str, float]:
    """Outputs that are beyond tolerance of what they were without padding, and by how much."""
    moved: dict[str, float] = {}
    for spec in prepared.pairing.pairs:
        own = own_output(spec, side)
        if rows_moved(own, batch, *found, prepared.tolerance):
            moved[spec.name] = drift(own, *found)
    return moved


def _filling(array: Array, place: int, real: Array) -> object:
    """What the data has at positions that do not count, if that is one value; else zero."""
    blank = np.moveaxis(array, place, 1)[~real] if array.shape[place] == real.shape[1] else array[:0]
    values = np.unique(blank) if blank.size and array.dtype.kind in "biuf" else blank.reshape(-1)[:0]
    return values[0] if len(values) == 1 else 0


def require_known(plan: Plan, prepared: Prepared) -> None:
    """Refuse names of axes that mean nothing before anything is compared."""
    first = prepared.first
    if first.stacked:
        for name in plan.shapes or ():
            named_axis(name, _known(prepared, first), first)


def applies(plan: Plan, prepared: Prepared, head: Head | None) -> bool:
    """Is there anything to try, or to tell, that was not asked for?"""
    if plan.shapes is not None or head is None or _impossible(plan):
        return False
    return bool(_free(prepared, head.batch) or empty_axes(prepared.candidate.feed, head.batch))


def run(
    plan: Plan, prepared: Prepared, head: Head | None, *, room: int | None = None
) -> tuple[tuple[SuiteFacts, ...], tuple[Untried, ...]]:
    """Every length that was asked for; or, where nothing was said, some around those of the data. All of them block.

    A file that leaves an axis open says that it may be of any length. Lengths that the reference refuses are no
    length of the two: that is told, and keeps a verdict from passing only where they were asked for. With `room` for
    so many rows only, one length each way that both models take is tried, on a few rows, and others while there is
    room; the second result names those that were left out.
    """
    if plan.shapes is None:
        return _unasked(plan, prepared, head, room) if applies(plan, prepared, head) and head is not None else ((), ())
    reason = "the data is one test case, whose tensors have no rows to change" if head is None else _impossible(plan)
    if reason or head is None:
        told = ("Rows at other lengths", plan.nothing, True, 0, reason)
        return tuple(SuiteFacts(KIND, name, *told) for name in plan.shapes), ()
    known = _known(prepared, head.batch)
    found: list[SuiteFacts] = []
    for name, lengths in plan.shapes.items():
        axis = replace(named_axis(name, known, head.batch), name=name)
        found.extend(_at(plan, prepared, head.batch, axis, length, asked=True) for length in dict.fromkeys(lengths))
        found.extend(_padding(plan, prepared, head.batch, axis))
    return tuple(found), ()


def _unasked(
    plan: Plan, prepared: Prepared, head: Head, room: int | None
) -> tuple[tuple[SuiteFacts, ...], tuple[Untried, ...]]:
    found: list[SuiteFacts] = []
    left: list[str] = []
    free = _free(prepared, head.batch)
    for axis in free[:AXES]:
        lengths, answered = lengths_beside(axis, head.batch), set()
        if room is not None:
            # The nearest, which most models take, come first.
            lengths = tuple(sorted(lengths, key=lambda length: abs(length - axis.length)))
        for length in lengths:
            name, longer = f"{axis.name}={length}", length > axis.length
            rows = _rows_asked(axis, head.batch, length, short=room is not None)
            if room is not None and room < rows and longer in answered:
                left.append(name)
            elif told := _not_captured(prepared, axis, length):
                found.append(SuiteFacts(KIND, name, _title(axis, length), plan.nothing, not_covered=told))
            else:
                found.append(_at(plan, prepared, head.batch, axis, length, asked=False, short=room is not None))
                if found[-1].comparison.rows or found[-1].comparison.mismatches:
                    answered.add(longer)
                room = None if room is None else room - rows
        found.extend(_padding(plan, prepared, head.batch, axis, short=room is not None))
    for axis in free[AXES:]:
        told = f"{AXES} axes are tried unless others are asked for: --shapes {shlex.quote(f'{axis.name}=N')}"
        found.append(
            SuiteFacts(KIND, axis.name, f"Rows of other lengths along {axis.told}", plan.nothing, not_covered=told)
        )
    for name in empty_axes(prepared.candidate.feed, head.batch):
        told = f"the data has length 0 along {name}, and so nothing to repeat: give rows that have some too"
        found.append(SuiteFacts(KIND, name, f"Rows of other lengths along {name}", plan.nothing, not_covered=told))
    return tuple(found), (Untried(KIND, tuple(left)),) if left else ()


def _not_captured(prepared: Prepared, axis: Axis, length: int) -> str:
    """Words for a length that the candidate's file does not claim to hold at; an exporter may have lost the names."""
    ranges = prepared.candidate.runner.details.get("captured_for", {})
    own = [ranges[name] for name in (axis.name, *axis.aliases) if name in ranges]
    for least, most in own or ranges.values():
        if length < least or (most is not None and length > most):
            taken = f"lengths of {least} or more" if most is None else f"lengths of {least} to {most}"
            taken = f"length {least} alone" if least == most else taken
            return f"the file was captured for {taken}; ask for others with --shapes"
    return ""


def lengths_beside(axis: Axis, batch: Batch) -> tuple[int, ...]:
    """Lengths to try beside that of the data: one, a little less, a little more, twice as much if a row stays small."""
    wanted = (1, axis.length - 1, axis.length + 1, 2 * axis.length)
    sized = {length: _row_bytes(axis, batch, length) for length in wanted}
    return tuple(n for n in dict.fromkeys(wanted) if n > 0 and n != axis.length and sized[n] <= BYTES)


def every(prepared: Prepared, batch: Batch) -> int:
    """Rows that would be asked of either model at all lengths, in rows of the data; a padded row is asked twice."""
    rows = 0
    for axis in _free(prepared, batch)[:AXES]:
        padded = [axis.length] * 2 if mask_of(axis, batch) else []
        rows += sum(_rows_asked(axis, batch, length) for length in (*lengths_beside(axis, batch), *padded))
    return rows


def _rows_asked(axis: Axis, batch: Batch, length: int, *, short: bool = False) -> int:
    """What a length costs, in rows of the data."""
    rows = _count(batch, _row_bytes(axis, batch, length), short=short)
    return -(-rows * length // axis.length)


def _at(
    plan: Plan, prepared: Prepared, batch: Batch, axis: Axis, length: int, *, asked: bool, short: bool = False
) -> SuiteFacts:
    told = (KIND, f"{axis.name}={length}", _title(axis, length))
    size = _row_bytes(axis, batch, length)
    if size > MOST_BYTES:
        too_many = f"a row would take {size:,} bytes, too many to generate"
        return SuiteFacts(*told, plan.nothing, blocks=True, not_covered=too_many)
    # Which of the two is asked is known only when one of them answers.
    plan.tell(f"trying {axis.name}={length}", batch=batch)
    try:
        rows = at_length(_some(batch, size, short=short), axis, length)
        mask = mask_of(axis, batch)
        if mask is not None:
            rows = with_real_positions(rows, mask)
        tried = try_rows(plan, prepared, [rows] if len(rows) else [])
    except Exception as error:  # noqa: BLE001 - the data was compared: a length that breaks takes only itself along
        return _broken(told, plan, error)
    if not len(rows):
        return SuiteFacts(*told, tried.comparison, asked, not_covered="a mask leaves no position of any row")
    return _without_reference(told, tried, asked=asked)


def _without_reference(told: tuple[str, str, str], tried: Tried, *, asked: bool) -> SuiteFacts:
    """What was found at a length, but for what the reference itself refuses: it says nothing about the candidate."""
    alone = tried.alone.get(REFERENCE)
    comparison = tried.comparison
    if alone is not None:
        comparison = replace(comparison, mismatches=tuple(m for m in comparison.mismatches if m != alone))
    differs = comparison.rows_beyond or comparison.mismatches or comparison.incidents
    reason = "" if alone is None else alone.message
    if not reason and asked and tried.refused:
        reason = f"both models refuse {tried.refused:,} of {tried.refused + comparison.rows:,} rows"
    if differs or not reason or (comparison.rows and not asked):
        return SuiteFacts(*told, comparison, blocks=True, refused=tried.refused)
    return SuiteFacts(*told, comparison, asked, tried.refused, not_covered=reason)


def _padding(
    plan: Plan, prepared: Prepared, batch: Batch, axis: Axis, *, short: bool = False
) -> tuple[SuiteFacts, ...]:
    plan.tell(f"trying padding along {axis.name}", batch=batch)
    rows = _some(batch, _row_bytes(axis, batch, axis.length), short=short)
    try:
        return try_padding(plan, prepared, rows, axis)
    except Exception as error:  # noqa: BLE001 - as above
        return (_broken((KIND, f"padding of {axis.name}", "The same rows, padded"), plan, error),)


def _broken(told: tuple[str, str, str], plan: Plan, error: Exception) -> SuiteFacts:
    incident = Incident("shape", f"{told[1]} broke: {one_line(error)}", "Please report it; --shapes none skips it")
    return SuiteFacts(*told, replace(plan.nothing, incidents=(incident,)), blocks=True)


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
    return side and f"the {side} has only recorded answers, and none for rows of another length"


def _row_bytes(axis: Axis, batch: Batch, length: int) -> int:
    """What a row takes at a length."""
    columns = {column for column, _ in axis.places}
    factor = length / max(axis.length, 1)
    sizes = {name: array.nbytes / max(len(batch), 1) for name, array in batch.inputs.items()}
    return max(1, int(sum(size * (factor if name in columns else 1) for name, size in sizes.items())))


def _some(batch: Batch, row_bytes: int, *, short: bool) -> Batch:
    """A few rows from all over the first ones, as many as are allowed."""
    count = _count(batch, row_bytes, short=short)
    return batch.at(np.arange(count) * len(batch) // count)


def _count(batch: Batch, row_bytes: int, *, short: bool) -> int:
    few = FEW if row_bytes <= LARGE else 1
    return max(1, min(few if short else ROWS, len(batch), BYTES // row_bytes))
