"""Both answers to one output in one shape, without broadcasting; and how sure the reference is of a label.

A changed label is noise only where that was measured: the reference's two best classes are closer than the tolerance
lets both move, and the candidate's own scores no longer put the reference's class first. Where the candidate gives no
scores, or scores that say what the reference's say, nothing explains the label, and it is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from likewise.compare.differences import is_numeric, row_any, rows_of, same_labels
from likewise.contracts.comparison import Mismatch, PairSpec, Tolerance
from likewise.contracts.data import Array, Tensors
from likewise.contracts.models import Kind, Label

ADDS_UP = 1e-3
"""How far rounding, also that of halves, may carry the sum of two columns of which one follows from the other."""

ROUNDINGS = 2
"""Last places by which scores may lead and still tie: a label is picked before they are rounded to what is shown."""


def align(
    spec: PairSpec, reference: Array, candidate: Array, *, stacked: bool = True
) -> tuple[Array, Array] | Mismatch:
    """Both answers in one shape, without broadcasting; or why they cannot be."""
    if "c" in (reference.dtype.kind, candidate.dtype.kind):
        reference, candidate = _as_reals(reference, candidate), _as_reals(candidate, reference)
    if reference.dtype.kind == candidate.dtype.kind and reference.dtype.kind in "Mm":
        try:
            reference, candidate = _in_one_unit(reference, candidate)
        except TypeError:  # years and days: nobody knows how many of these are one of those
            return _another_type(spec, reference, candidate)
    if spec.columns is not None:
        candidate = candidate[:, list(spec.columns)]
    if spec.expand is not None and reference.size == len(reference):
        one = reference.reshape(-1).astype(np.float64)
        reference = np.stack([-one if spec.expand == "negate" else 1.0 - one, one], axis=1)
    if spec.other_follows and not _follows(spec.kind, reference):
        return _another_shape(spec, reference, candidate, stacked=stacked)
    if spec.reference_column is not None and reference.ndim == 2:
        reference = reference[:, spec.reference_column]
    if reference.shape != candidate.shape and reference.size == candidate.size == len(reference):
        reference, candidate = reference.reshape(-1), candidate.reshape(-1)
    if reference.shape != candidate.shape:
        return _another_shape(spec, reference, candidate, stacked=stacked)
    if is_numeric(reference) != is_numeric(candidate):
        reference, candidate = _filled(reference, candidate), _filled(candidate, reference)
    if spec.kind is not Kind.LABEL and is_numeric(reference) != is_numeric(candidate):
        return _another_type(spec, reference, candidate)
    return reference, candidate


def _filled(array: Array, other: Array) -> Array:
    """Numbers as they stand beside numbers with gaps: of floats NaN is the gap, whole numbers are named one by one."""
    objects = array if array.dtype.kind == "O" else other
    kinds = set(map(type, objects.ravel().tolist())) if objects.dtype.kind == "O" else {str}
    if not all(issubclass(kind, int | float | np.number | type(None)) for kind in kinds):
        return array
    floating = "f" in (array.dtype.kind, other.dtype.kind) and not any(issubclass(kind, int) for kind in kinds)
    return array.astype(np.float64 if floating else object)


def _as_reals(array: Array, other: Array) -> Array:
    """Complex numbers as real and imaginary parts along a last axis, as ONNX writes them, if the others are so too."""
    written = other.dtype.kind == "c" or other.shape == (*array.shape, 2)
    return np.stack([array.real, array.imag], axis=-1) if array.dtype.kind == "c" and written else array


def _in_one_unit(reference: Array, candidate: Array) -> tuple[Array, Array]:
    """Days and nanoseconds are times alike, unless one cannot be written in the other's unit: numpy would wrap it."""
    unit = np.promote_types(reference.dtype, candidate.dtype)
    wide = reference.astype(unit), candidate.astype(unit)
    kept = (
        np.array_equal(now.astype(was.dtype), was, equal_nan=True)
        for now, was in zip(wide, (reference, candidate), strict=True)
    )
    return wide if all(kept) else (reference, candidate)


def _another_type(spec: PairSpec, reference: Array, candidate: Array) -> Mismatch:
    types = f"{type_of(reference)} in the reference and {type_of(candidate)} in the candidate"
    return Mismatch("type", f"output {spec.name!r} is {types}", spec.name)


def _another_shape(spec: PairSpec, reference: Array, candidate: Array, *, stacked: bool) -> Mismatch:
    return Mismatch(
        "shape",
        f"output {spec.name!r} has shape {_row_shape(reference, stacked=stacked)} in the reference "
        f"and {_row_shape(candidate, stacked=stacked)} in the candidate",
        spec.name,
    )


def _follows(kind: Kind, columns: Array) -> bool:
    """Does each of two columns follow from the other: probabilities that add up to one, scores that add up to zero?"""
    if columns.ndim != 2 or columns.shape[1] != 2 or not is_numeric(columns):
        return False
    columns = columns[np.isfinite(columns).all(axis=1)].astype(np.float64)
    room = ADDS_UP * np.maximum(1.0, np.abs(columns).max(axis=1))
    return bool((np.abs(columns.sum(axis=1) - (kind is Kind.PROBABILITY)) <= room).all())


def type_of(array: Array) -> str:
    return "text" if array.dtype.kind in "OUST" else str(array.dtype)


def _row_shape(array: Array, *, stacked: bool) -> str:
    shape = ["n"] * stacked + [str(extent) for extent in array.shape[1:]]
    return "(" + ", ".join(shape) + ("," if len(shape) == 1 else "") + ")"


def margins(scores: Array, kind: Kind, tolerance: Tolerance) -> tuple[Array, Array]:
    """How far the best class is ahead of the next, and how much of that both scores may move."""
    best = np.partition(_by_class(scores, kind), -2, axis=1)[:, -2:]
    # What is infinite has no noise of its own: it would excuse any flip.
    # Nor has what is too large for a double, which is why it ends at the largest one.
    with np.errstate(over="ignore"):
        size = np.minimum(np.where(np.isfinite(best), np.abs(best), 0.0).sum(axis=1), sys.float_info.max)
        noise = np.minimum(2.0 * tolerance.absolute + tolerance.relative * size, sys.float_info.max)
    with np.errstate(invalid="ignore", over="ignore"):
        ahead = np.where(best[:, 1] == best[:, 0], 0.0, best[:, 1] - best[:, 0])
    return ahead, noise


def margin_of(
    spec: PairSpec, labels: tuple[Array, Array], reference: Tensors, candidate: Tensors, tolerance: Tolerance
) -> tuple[Array | None, Array | None]:
    """How sure the reference is of each label, NaN where no scores explain that it changed; and what may be noise."""
    if spec.margin_from is None or spec.margin_kind is None or spec.margin_from not in reference:
        return None, None
    laid = []
    for scores in spec.scores:
        if scores.reference not in reference or scores.candidate not in candidate:
            return None, None
        both = align(scores, reference[scores.reference], candidate[scores.candidate])
        if isinstance(both, Mismatch):
            return None, None
        laid.append((scores, *both))
    flipped = np.flatnonzero(row_any(rows_of(~same_labels(*labels))))
    margin, noise = margins(reference[spec.margin_from], spec.margin_kind, tolerance)
    if not laid or not len(flipped):
        return (margin, noise) if laid else (None, None)
    known = _explained(
        [(scores, ours[flipped], theirs[flipped]) for scores, ours, theirs in laid],
        (labels[0][flipped], labels[1][flipped]),
    )
    margin[flipped[~known]] = np.nan
    return margin, noise


def _explained(scores: Sequence[tuple[PairSpec, Array, Array]], labels: tuple[Array, Array]) -> Array:
    """Where the candidate's own scores may pick another class than the reference's, and pick its labels.

    Of three or more classes whose columns nobody names, no label can be said to be the one that was picked.
    `scores` are pairs of the same rows in one form, either all classes or one class each.
    """
    spec = scores[0][0]
    if len(scores) > 1:
        scores = sorted(scores, key=lambda entry: entry[0].reference_column or 0)
        ours = np.stack([own.reshape(-1) for _, own, _ in scores], axis=1)
        theirs = np.stack([other.reshape(-1) for _, _, other in scores], axis=1)
    else:
        _, ours, theirs = scores[0]
    types = [array.dtype for array in (ours, theirs) if array.dtype.kind == "f"]
    rounding = max((float(np.finfo(dtype).eps) for dtype in types), default=0.0)
    ours, theirs = _by_class(ours, spec.kind), _by_class(theirs, spec.kind)
    rows = np.arange(len(ours))
    first = ours.argmax(axis=1)
    others = theirs.copy()
    others[rows, first] = -np.inf
    ahead, rival = theirs[rows, first], others.max(axis=1)
    slack = ROUNDINGS * rounding * (np.abs(ahead) + np.abs(rival))
    lost = ahead - rival <= slack
    was, became = (side.reshape(-1) for side in labels)
    if spec.classes is not None and len(spec.classes) == theirs.shape[1]:
        names: Sequence[Label] = spec.classes
        named = np.ones(len(rows), dtype=np.bool_)
    else:  # nobody names them: the columns are numbered where the reference's label is the place of its best one
        names = range(theirs.shape[1])
        named = was == first if is_numeric(was) else np.zeros(len(rows), dtype=np.bool_)
    places = {label: place for place, label in enumerate(names)}
    chosen = np.array([places.get(label, -1) for label in became.tolist()], dtype=np.int64)
    picked = (chosen >= 0) & (theirs.max(axis=1) - theirs[rows, chosen] <= slack)
    other_of_two = theirs.shape[1] == 2
    return np.asarray(lost & np.where(named, picked, other_of_two))


def _by_class(scores: Array, kind: Kind) -> Array:
    """One column a class, the best class the largest."""
    scores = rows_of(scores.astype(np.float64))
    if scores.shape[1] == 1:
        other = 1.0 - scores if kind is Kind.PROBABILITY else -scores
        scores = np.concatenate([other, scores], axis=1)
    return -scores if kind is Kind.DISTANCE else scores
