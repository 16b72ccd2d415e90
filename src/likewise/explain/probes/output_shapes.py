"""The right numbers in another shape: transposed, flattened in another order, one part of them, before pooling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from likewise.compare.differences import is_numeric
from likewise.compare.observe import align, rows_beyond
from likewise.contracts.comparison import Mismatch, PairSpec
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.explain import answers
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Effect, Trial

EXACT = 0.995
MOST_AXES = 5
MOST_ELEMENTS = 20_000_000
ONE_CALL = 4_096
"""Rows that are asked about in one call."""


POOLINGS: tuple[tuple[str, Callable[[Array, int], Array]], ...] = (
    ("last step", lambda array, axis: array.take(-1, axis=axis)),
    ("first step", lambda array, axis: array.take(0, axis=axis)),
    ("mean", lambda array, axis: np.asarray(array.mean(axis=axis))),
    ("sum", lambda array, axis: np.asarray(array.sum(axis=axis))),
    ("largest", lambda array, axis: np.asarray(array.max(axis=axis))),
)
"""What becomes of an axis at the end of a model."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """One side's answers in the other's shape."""

    cause: str
    what: str
    remedy: str
    candidate: Array | None = None
    reference: Array | None = None


class OutputShapes:
    """Bring the candidate's answers into the reference's shape in every way that gives it, and compare."""

    causes = ("output-layout", "output-kind", "wrong-intermediate", "model-part-dropped")
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return case.required.batch.stacked and bool(_concerned(case))

    def test(self, case: Case) -> Sequence[Explained]:
        for spec in _concerned(case):
            ours, theirs = case.required.reference[spec.reference], case.required.candidate[spec.candidate]
            if max(ours.size, theirs.size) > MOST_ELEMENTS or not is_numeric(ours) or not is_numeric(theirs):
                continue
            for change in _changes(case, spec, ours, theirs):
                effect = _effect(case, spec, change)
                if effect is not None and effect.explains:
                    return [_explained(spec, change, effect, ours, theirs)]
        return []


def _concerned(case: Case) -> list[PairSpec]:
    """Outputs of another shape, and those of rank 2 and more that differ."""
    found = []
    for spec in case.specs:
        if spec.reference not in case.required.reference or spec.candidate not in case.required.candidate:
            continue
        ours, theirs = case.required.reference[spec.reference], case.required.candidate[spec.candidate]
        apart = isinstance(align(spec, ours, theirs), Mismatch)
        if apart or (ours.ndim >= 2 and any(spec is pair.spec for pair in case.failing_pairs())):
            found.append(spec)
    return found


def _changes(case: Case, spec: PairSpec, ours: Array, theirs: Array) -> Iterator[Arrangement]:
    yield from _rearranged(case, ours, theirs)
    if ours.shape != theirs.shape:
        # A column of probabilities is a class, not a step.
        if spec.kind is not Kind.PROBABILITY or ours.ndim > 2:
            yield from _pooled(ours, theirs)
        yield from _columns(spec, ours, theirs)


def _rearranged(case: Case, ours: Array, theirs: Array) -> Iterator[Arrangement]:
    """The same number of values a row."""
    remedy = "Export the output in the reference's layout, or bring it there: "
    count = len(ours)
    if ours.size != theirs.size or theirs.ndim > MOST_AXES or len(theirs) != count:
        return
    if ours.shape != theirs.shape:
        what = f"shape {_text(theirs)} instead of {_text(ours)}"
        yield Arrangement("output-layout", what, f"{remedy}output.reshape{_code(ours)}", theirs.reshape(ours.shape))
    inner = range(1, theirs.ndim)
    for axes in permutations(inner):
        if axes != tuple(inner):
            made = theirs.transpose(0, *axes)
            what = f"axes transposed, {_text(theirs)}"
            yield Arrangement(
                "output-layout", what, f"{remedy}output.transpose{(0, *axes)}", _like(made.reshape(ours.shape))
            )
    if ours.ndim > 2:
        # The numbers were written in one order of axes and are read in another.
        for axes in permutations(range(1, ours.ndim)):
            if axes != tuple(range(1, ours.ndim)):
                stored = theirs.reshape(count, *(ours.shape[axis] for axis in axes))
                back = np.argsort(axes) + 1
                made = stored.transpose(0, *back.tolist())
                what = f"reshaped without transposing to {_text(ours)}"
                yield Arrangement("output-layout", what, f"{remedy}transpose before the reshape", _like(made))
    if ours.ndim == 2 and theirs.shape == ours.shape and case.required.complete and count <= ONE_CALL:
        mixed = theirs.reshape(ours.shape[1], count).T
        what = "columns written as rows: transposed, then reshaped"
        yield Arrangement("output-layout", what, f"{remedy}transpose instead of reshape", _like(mixed))


def _like(array: Array) -> Array:
    return np.ascontiguousarray(array)


def _pooled(ours: Array, theirs: Array) -> Iterator[Arrangement]:
    """One side gives all steps of an axis, the other one of them or their mean."""
    for axis in range(1, theirs.ndim):
        if theirs.shape[:axis] + theirs.shape[axis + 1 :] == ours.shape:
            for name, way in POOLINGS:
                what = f"before the {name} over axis {axis} is taken"
                remedy = f"Export the model with its last step: the {name} over axis {axis}"
                yield Arrangement("wrong-intermediate", what, remedy, way(theirs, axis))
    for axis in range(1, ours.ndim):
        if ours.shape[:axis] + ours.shape[axis + 1 :] == theirs.shape:
            for name, way in POOLINGS:
                what = f"the {name} over axis {axis} instead of all of it"
                remedy = f"Export the output before the {name} over axis {axis} is taken"
                yield Arrangement("wrong-intermediate", what, remedy, reference=way(ours, axis))


def _columns(spec: PairSpec, ours: Array, theirs: Array) -> Iterator[Arrangement]:
    """Fewer or more columns: which of the reference's are there."""
    if ours.ndim > 2 or theirs.ndim > 2:
        return
    mine, other = ours.reshape(len(ours), -1), theirs.reshape(len(theirs), -1)
    if other.shape[1] == 1 and mine.shape[1] > 1 and theirs.dtype.kind in "iu":
        remedy = "Export the scores, not the label picked from them"
        yield Arrangement(
            "output-kind",
            "the label instead of the scores",
            remedy,
            reference=mine.argmax(axis=1).reshape(theirs.shape),
        )
    names = [str(name) for name in spec.classes or range(mine.shape[1])]
    if other.shape[1] < mine.shape[1]:
        held = _held(other, mine)
        if held is None:
            return
        missing = [names[column] for column in range(mine.shape[1]) if column not in held and column < len(names)]
        made = mine[:, held].reshape(theirs.shape)
        remedy = f"Export all {mine.shape[1]} columns"
        if other.shape[1] == 1:
            yield Arrangement("output-kind", f"only column {names[held[0]]} of {mine.shape[1]}", remedy, reference=made)
        else:
            what = f"without {', '.join(missing[:6])}"
            yield Arrangement("model-part-dropped", what, remedy, reference=made)
    elif other.shape[1] > mine.shape[1]:
        held = _held(mine, other)
        if held is not None:
            extra = other.shape[1] - mine.shape[1]
            remedy = f"Leave out the {extra} columns that the reference does not have"
            what = f"{extra} columns more than the reference"
            yield Arrangement("output-layout", what, remedy, other[:, held].reshape(ours.shape))


def _held(part: Array, whole: Array) -> list[int] | None:
    """For each column of the part the column of the whole that is nearest; None if two have the same."""
    rows = np.unique(np.linspace(0, len(part) - 1, 256).astype(int))
    if part.shape[1] * whole.shape[1] * len(rows) > MOST_ELEMENTS or not len(rows):
        return None
    with np.errstate(all="ignore"):
        apart = np.abs(part[rows][:, :, None].astype(np.float64) - whole[rows][:, None, :].astype(np.float64))
        nearest = np.nan_to_num(apart, nan=np.inf).mean(axis=0).argmin(axis=1).tolist()
    return nearest if len(set(nearest)) == len(nearest) else None


def _effect(case: Case, spec: PairSpec, change: Arrangement) -> Effect | None:
    sample = case.required
    if change.candidate is not None:
        return Trial.whole(case).effect(candidate={**sample.candidate, spec.candidate: change.candidate})
    if change.reference is None or answers.distinct(change.reference) < 2:
        return None
    # The reference is changed into something of another kind: it is compared as the numbers it is.
    plain = PairSpec(spec.reference, spec.candidate, Kind.VALUE, spec.matched_by)
    specs = [plain if one is spec else one for one in case.specs]
    changed = {**sample.reference, spec.reference: change.reference}
    beyond = np.zeros(len(sample), dtype=bool)
    for pair in case.pairs(sample.batch, changed, sample.candidate, specs):
        beyond |= True if isinstance(pair, Mismatch) else rows_beyond(pair)
    return Effect(~beyond, sample.failing)


def _explained(spec: PairSpec, change: Arrangement, effect: Effect, ours: Array, theirs: Array) -> Explained:
    side = "candidate's" if change.candidate is not None else "reference's"
    place = f"output {spec.candidate!r}: " if spec.candidate != spec.reference else ""
    return Explained(
        change.cause,
        f"{spec.name} ({place}{change.what})",
        f"the reference gives {spec.name} of shape {_text(ours)}, the candidate {_text(theirs)}; with the {side} "
        f"brought into the other's form ({change.what}) they agree on {answers.told(effect)}",
        change.remedy,
        covered=effect.covered,
        # Numbers that are all there, in another arrangement, are no other numbers.
        simplicity=1 if change.cause == "output-layout" and effect.share >= EXACT else 2,
    )


def _text(array: Array) -> str:
    return "(" + ", ".join(["n", *map(str, array.shape[1:])]) + ("," if array.ndim == 1 else "") + ")"


def _code(array: Array) -> str:
    return "(" + ", ".join(["-1", *map(str, array.shape[1:])]) + ")"


EXTENSION = OutputShapes()
