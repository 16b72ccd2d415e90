"""Rows padded with positions that a mask takes out again: the answers must stay what they were.

Each model is compared with its own answers to the rows as they are, and the candidate with the reference, on
the outputs and positions that padding must not touch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from likewise.compare.call import Side, answers
from likewise.compare.observe import Prepared, finish_beside, observe, paired, rows_beyond
from likewise.compare.variations.axes import Axis, called
from likewise.compare.variations.batches import drift, own_output
from likewise.compare.variations.refusals import REFUSED
from likewise.contracts.comparison import Comparison, Mismatch, PairSpec, Plan, SuiteFacts
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.words import figure
from likewise.data.rows import rows_at
from likewise.errors import LikewiseError

EXTRA = 3
"""Positions that are added at the end of each row."""

KIND = "shape"


@dataclass(frozen=True, slots=True)
class Mask:
    """An input that says which positions count; `inverted`: it marks those that do not."""

    column: str
    inverted: bool

    def real(self, batch: Batch) -> Array:
        """Which positions count, a row each."""
        marked: Array = batch.inputs[self.column] != 0
        return ~marked if self.inverted else marked


@dataclass(frozen=True, slots=True)
class _Answered:
    """One model's answers to rows as they are and to the same rows padded, where padding must not touch them."""

    before: dict[str, Array]
    after: dict[str, Array]


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
    return rows_at(batch, np.flatnonzero(mask.real(batch).any(axis=1)))


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


def try_padding(plan: Plan, prepared: Prepared, batch: Batch, axis: Axis, *, blocks: bool) -> tuple[SuiteFacts, ...]:
    """Both models on padded rows; nothing where no mask is among the inputs."""
    mask = mask_of(axis, batch)
    if mask is None:
        return ()
    told = (KIND, f"padding of {mask.column}", f"The same rows with {EXTRA} more positions that {mask.column} masks")
    nothing = plan.nothing
    batch = with_real_positions(batch, mask)
    if not len(batch):
        return (SuiteFacts(*told, nothing, blocks, not_covered=f"{mask.column} leaves no position of any row"),)
    ours = _asked(prepared.reference, batch, axis, mask)
    if not isinstance(ours, LikewiseError) and _moved(prepared, batch, ours, reference=True):
        # The name of a mask does not always tell what it marks; what the reference ignores does.
        other = replace(mask, inverted=not mask.inverted)
        again = _asked(prepared.reference, batch, axis, other) if other.real(batch).any(axis=1).all() else ours
        if not isinstance(again, LikewiseError) and not _moved(prepared, batch, again, reference=True):
            mask, ours = other, again
    theirs = _asked(prepared.candidate, batch, axis, mask)
    if isinstance(ours, LikewiseError) or isinstance(theirs, LikewiseError):
        return (_refused(told, nothing, len(batch), ours, theirs, blocks=blocks),)
    still = _moved(prepared, batch, ours, reference=True)
    moved = _moved(prepared, batch, theirs, reference=False)
    partial = observe(prepared, batch, ours.after, theirs.after)
    differing = frozenset(_not_invariant(name, by) for name, by in moved.items() if name not in still)
    comparison = finish_beside(prepared, replace(partial, mismatches=partial.mismatches | differing), plan)
    found = (SuiteFacts(*told, comparison, blocks),)
    return found if not still else (*found, _reference_moves(mask, nothing, still))


def _not_invariant(name: str, by: float) -> Mismatch:
    return Mismatch(
        "padding",
        f"{name!r} of the candidate moves by up to {figure(by)} when rows are padded with masked positions, "
        "beyond tolerance; the reference's stays",
        name,
    )


def _reference_moves(mask: Mask, nothing: Comparison, still: dict[str, float]) -> SuiteFacts:
    name, by = max(still.items(), key=lambda entry: entry[1])
    reason = (
        f"{name!r} of the reference itself moves by up to {figure(by)} when rows are padded with masked positions: "
        "its answers depend on how far a batch is padded, and so may the candidate's"
    )
    title = "Answers stay when rows are padded"
    return SuiteFacts(KIND, f"reference and the padding of {mask.column}", title, nothing, not_covered=reason)


def _refused(
    told: tuple[str, str, str],
    nothing: Comparison,
    rows: int,
    ours: _Answered | LikewiseError,
    theirs: _Answered | LikewiseError,
    *,
    blocks: bool,
) -> SuiteFacts:
    if isinstance(ours, LikewiseError) and isinstance(theirs, LikewiseError):
        return SuiteFacts(*told, nothing, blocks, refused=rows)
    side, error = ("reference", ours) if isinstance(ours, LikewiseError) else ("candidate", theirs)
    assert isinstance(error, LikewiseError)
    alone = Mismatch(REFUSED, f"only the {side} refuses rows that are padded: {error.message}")
    return SuiteFacts(*told, replace(nothing, mismatches=(alone,)), blocks)


def _asked(side: Side, batch: Batch, axis: Axis, mask: Mask) -> _Answered | LikewiseError:
    try:
        before, after = answers(side, batch)[0], answers(side, padded(batch, axis, mask))[0]
    except LikewiseError as error:
        return error
    real = mask.real(batch)
    untouched = {name: _untouched(before[name], after[name], real) for name in before if name in after}
    return _Answered(
        {name: found[0] for name, found in untouched.items()}, {name: found[1] for name, found in untouched.items()}
    )


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


def _moved(prepared: Prepared, batch: Batch, found: _Answered, *, reference: bool) -> dict[str, float]:
    """Outputs that are beyond tolerance of what they were without padding, and by how much."""
    moved: dict[str, float] = {}
    for spec in prepared.pairing.pairs:
        own = own_output(spec, spec.reference if reference else spec.candidate)
        if _beyond(prepared, batch, own, found.before, found.after):
            moved[spec.name] = drift(own, found.before, found.after)
    return moved


def _beyond(prepared: Prepared, batch: Batch, own: PairSpec, before: Tensors, after: Tensors) -> bool:
    pair = paired(own, batch, before, after, prepared.tolerance)
    return isinstance(pair, Mismatch) or bool(rows_beyond(pair).any())


def _filling(array: Array, place: int, real: Array) -> object:
    """What the data has at positions that do not count, if that is one value; else zero."""
    blank = np.moveaxis(array, place, 1)[~real] if array.shape[place] == real.shape[1] else array[:0]
    values = np.unique(blank) if blank.size and array.dtype.kind in "biuf" else blank.reshape(-1)[:0]
    return values[0] if len(values) == 1 else 0
