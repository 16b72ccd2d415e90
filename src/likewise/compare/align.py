"""Both answers to one output in one shape, without broadcasting; or why they cannot be."""

from __future__ import annotations

import numpy as np

from likewise.compare.differences import is_numeric
from likewise.contracts.comparison import Mismatch, PairSpec
from likewise.contracts.data import Array
from likewise.contracts.models import Kind

ADDS_UP = 1e-3
"""How far rounding, also that of halves, may carry the sum of two columns of which one follows from the other."""


def align(
    spec: PairSpec, reference: Array, candidate: Array, *, stacked: bool = True
) -> tuple[Array, Array] | Mismatch:
    """Both answers in one shape, without broadcasting; or why they cannot be."""
    if "c" in (reference.dtype.kind, candidate.dtype.kind):
        reference, candidate = _as_reals(reference, candidate), _as_reals(candidate, reference)
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
    if spec.kind is not Kind.LABEL and is_numeric(reference) != is_numeric(candidate):
        return Mismatch(
            "type",
            f"output {spec.name!r} is {type_of(reference)} in the reference and {type_of(candidate)} in the candidate",
            spec.name,
        )
    return reference, candidate


def _as_reals(array: Array, other: Array) -> Array:
    """Complex numbers as real and imaginary parts along a last axis, as ONNX writes them, if the others are so too."""
    written = other.dtype.kind == "c" or other.shape == (*array.shape, 2)
    return np.stack([array.real, array.imag], axis=-1) if array.dtype.kind == "c" and written else array


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
    room = ADDS_UP * np.maximum(1.0, np.abs(columns).max(axis=1, initial=0.0))
    return bool((np.abs(columns.sum(axis=1) - (kind is Kind.PROBABILITY)) <= room).all())


def type_of(array: Array) -> str:
    return "text" if array.dtype.kind in "OUST" else str(array.dtype)


def _row_shape(array: Array, *, stacked: bool) -> str:
    shape = ["n"] * stacked + [str(extent) for extent in array.shape[1:]]
    return "(" + ", ".join(shape) + ("," if len(shape) == 1 else "") + ")"
