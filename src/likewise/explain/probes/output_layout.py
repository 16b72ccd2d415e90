"""The right numbers in another shape or under another name: transposed, flattened, in part, before pooling, renamed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations

import numpy as np

from likewise.compare.align import align
from likewise.compare.differences import is_numeric
from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Mismatch, Pair, PairSpec
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Kind
from likewise.contracts.report import Place
from likewise.errors import LikewiseError
from likewise.explain import answers
from likewise.explain.case import Case, Explained, Remedy, probe
from likewise.explain.experiment import FEW, Effect, Trial
from likewise.explain.features import fed_sides
from likewise.models.onnx import interface

EXACT = 0.995
"""Numbers that are all there are nearly all the same."""

MOST_AXES = 5
MOST_ELEMENTS = 20_000_000
"""Larger answers are not turned round in every way."""

ONE_CALL = 4_096
"""Rows that are asked about in one call."""

HELD_ROWS = 256
"""Rows by which a column is recognised."""

ALIKE = 0.9
"""Two outputs are the same if so many of a few rows agree."""

CODES = frozenset({"row-count", "missing-output", "extra-output", "nothing-paired", "classes"})
"""What keeps outputs from being put side by side."""

UNNAMED = re.compile(r"output(\.\d+)?")
"""What an output is called that has no name."""

POOLINGS: tuple[tuple[str, Callable[[Array, int], Array]], ...] = (
    ("last step", lambda array, axis: array.take(-1, axis=axis)),
    ("first step", lambda array, axis: array.take(0, axis=axis)),
    ("mean", lambda array, axis: np.asarray(array.mean(axis=axis))),
    ("sum", lambda array, axis: np.asarray(array.sum(axis=axis))),
    ("largest", lambda array, axis: np.asarray(array.max(axis=axis))),
)
"""What becomes of an axis at the end of a model."""

LAYOUT = "Export the output in the reference's layout"


@dataclass(frozen=True, slots=True)
class Arrangement:
    """One side's answers in the other's shape; `way` is what was done to the candidate's, for any rows."""

    cause: str
    what: str
    remedy: Remedy | str
    candidate: Array | None = None
    reference: Array | None = None
    way: Callable[[Array], Array] | None = None


@probe(
    "output-layout",
    "output-kind",
    "wrong-intermediate",
    "model-part-dropped",
    when=lambda case: case.required.batch.stacked and bool(_concerned(case)),
)
def output_shapes(case: Case) -> Explained | None:
    """Bring the candidate's answers into the reference's shape in every way that gives it, and compare."""
    for spec in _concerned(case):
        ours, theirs = case.required.reference[spec.reference], case.required.candidate[spec.candidate]
        if max(ours.size, theirs.size) > MOST_ELEMENTS or not is_numeric(ours) or not is_numeric(theirs):
            continue
        for way in _arrangements(case, spec, ours, theirs):
            effect = _effect(case, spec, way)
            if effect is not None and effect.explains:
                return _explained(case, spec, way, effect, ours, theirs)
    return None


def _concerned(case: Case) -> list[PairSpec]:
    """Outputs of another shape, and those of rank 2 and more that differ."""
    found = []
    failing = [pair.spec for pair in case.failing_pairs()]
    for spec in case.specs:
        ours, theirs = case.required.reference.get(spec.reference), case.required.candidate.get(spec.candidate)
        if ours is None or theirs is None:
            continue
        apart = isinstance(align(spec, ours, theirs), Mismatch)
        if apart or (ours.ndim >= 2 and any(spec is one for one in failing)):
            found.append(spec)
    return found


def _arrangements(case: Case, spec: PairSpec, ours: Array, theirs: Array) -> Iterator[Arrangement]:
    yield from _rearranged(case, ours, theirs)
    if ours.shape != theirs.shape:
        # A column of probabilities is a class, not a step.
        if spec.kind is not Kind.PROBABILITY or ours.ndim > 2:
            yield from _pooled(ours, theirs)
        yield from _columns(spec, ours, theirs)


def _rearranged(case: Case, ours: Array, theirs: Array) -> Iterator[Arrangement]:
    """The same number of values a row."""
    count = len(ours)
    if ours.size != theirs.size or theirs.ndim > MOST_AXES or len(theirs) != count:
        return
    if ours.shape != theirs.shape:
        what = f"shape {_text(theirs)} instead of {_text(ours)}"
        remedy = Remedy(LAYOUT, done=f"Bring it into the reference's shape: output.reshape{_code(ours)}")
        yield Arrangement(
            "output-layout", what, remedy, theirs.reshape(ours.shape), way=partial(_axes_moved, ours, None)
        )
    for axes in _turns(theirs.ndim):
        turned = theirs.transpose(axes)
        what = f"axes transposed, {_text(theirs)}"
        code = f"output.transpose{axes}" + ("" if turned.shape == ours.shape else f".reshape{_code(ours)}")
        remedy = Remedy(LAYOUT, done=f"Bring it into the reference's layout: {code}")
        way = partial(_axes_moved, ours, axes)
        yield Arrangement("output-layout", what, remedy, _like(turned.reshape(ours.shape)), way=way)
    for axes in _turns(ours.ndim):
        if ours.ndim > 2:
            # The numbers were written in one order of axes and are read in another.
            way = partial(_read_anew, ours, axes)
            what = f"reshaped without transposing to {_text(ours)}"
            yield Arrangement("output-layout", what, f"{LAYOUT}: transpose before the reshape", way(theirs), way=way)
    if ours.ndim == 2 and theirs.shape == ours.shape and case.required.complete and count <= ONE_CALL:
        mixed = theirs.reshape(ours.shape[1], count).T
        what = "columns written as rows: transposed, then reshaped"
        yield Arrangement("output-layout", what, f"{LAYOUT}: transpose instead of reshape", _like(mixed))


def _axes_moved(wanted: Array, axes: tuple[int, ...] | None, given: Array) -> Array:
    """Rows with their axes in another order, in the shape that is wanted."""
    return _like((given if axes is None else given.transpose(axes)).reshape(len(given), *wanted.shape[1:]))


def _read_anew(wanted: Array, axes: tuple[int, ...], given: Array) -> Array:
    """Rows that were written in one order of axes, read in it."""
    return _like(given.reshape(len(given), *(wanted.shape[axis] for axis in axes[1:])).transpose(np.argsort(axes)))


def _turns(rank: int) -> Iterator[tuple[int, ...]]:
    """Every other order of the axes that keeps the rows where they are."""
    yield from ((0, *axes) for axes in list(permutations(range(1, rank)))[1:])


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
    wide, given = mine.shape[1], other.shape[1]
    if given == 1 < wide and theirs.dtype.kind in "iu":
        what, remedy = "the label instead of the scores", "Export the scores, not the label picked from them"
        yield Arrangement("output-kind", what, remedy, reference=mine.argmax(axis=1).reshape(theirs.shape))
    held = _held(other, mine) if given < wide else _held(mine, other)
    if held is None or given == wide:
        return
    if given > wide:
        what = f"{given - wide} columns more than the reference"
        remedy = f"Leave out the {given - wide} columns that the reference does not have"
        way = partial(_held_columns, ours, held)
        yield Arrangement("output-layout", what, remedy, way(theirs), way=way)
        return
    names = [str(name) for name in spec.classes or range(wide)]
    missing = [name for column, name in enumerate(names) if column not in held]
    cause, what = "model-part-dropped", f"without {', '.join(missing[:6])}"
    if given == 1:
        cause, what = "output-kind", f"only column {names[held[0]]} of {wide}"
    yield Arrangement(cause, what, f"Export all {wide} columns", reference=mine[:, held].reshape(theirs.shape))


def _held_columns(wanted: Array, held: list[int], given: Array) -> Array:
    return given.reshape(len(given), -1)[:, held].reshape(len(given), *wanted.shape[1:])


def _held(part: Array, whole: Array) -> list[int] | None:
    """For each column of the part the column of the whole that is nearest; None if two have the same."""
    rows = np.unique(np.linspace(0, len(part) - 1, HELD_ROWS).astype(int))
    if part.shape[1] * whole.shape[1] * len(rows) > MOST_ELEMENTS or not len(rows):
        return None
    with np.errstate(all="ignore"):
        apart = np.abs(part[rows][:, :, None].astype(np.float64) - whole[rows][:, None, :].astype(np.float64))
        nearest = np.nan_to_num(apart, nan=np.inf).mean(axis=0).argmin(axis=1).tolist()
    return nearest if len(set(nearest)) == len(nearest) else None


def _effect(case: Case, spec: PairSpec, way: Arrangement) -> Effect | None:
    sample = case.required
    if way.candidate is not None:
        return Trial.whole(case).effect(candidate={**sample.candidate, spec.candidate: way.candidate})
    if way.reference is None or answers.distinct(way.reference) < 2:
        return None
    # The reference is changed into something of another kind: it is compared as the numbers it is.
    plain = PairSpec(spec.reference, spec.candidate, Kind.VALUE, spec.matched_by)
    specs = [plain if one is spec else one for one in case.specs]
    changed = {**sample.reference, spec.reference: way.reference}
    return Effect(case.agreeing(sample.batch, changed, sample.candidate, specs), sample.failing)


def _explained(case: Case, spec: PairSpec, way: Arrangement, effect: Effect, ours: Array, theirs: Array) -> Explained:
    side = "candidate's" if way.candidate is not None else "reference's"
    nodes = None if way.way is None else interface.rearranged(way.way, theirs.shape[1:])
    return effect.explained(
        way.cause,
        _place(spec.name, spec.reference, spec.candidate, way.what),
        f"the reference gives {spec.name} of shape {_text(ours)}, the candidate {_text(theirs)}; with the {side} "
        f"brought into the other's form ({way.what}) they agree on {effect.told}",
        way.remedy,
        # Numbers that are all there, in another arrangement, are no other numbers.
        simplicity=1 if way.cause == "output-layout" and effect.share >= EXACT else 2,
        fixes=answers.behind(case, {spec.candidate: nodes}, "brought into the reference's layout"),
    )


def _place(name: str, reference: str, candidate: str, what: str) -> Place:
    given = f"output {candidate!r}: " if candidate != reference else ""
    return Place(name, (f"{given}{what}",), outputs=(candidate,))


def _text(array: Array) -> str:
    return "(" + ", ".join(["n", *map(str, array.shape[1:])]) + ("," if array.ndim == 1 else "") + ")"


def _code(array: Array) -> str:
    return "(" + ", ".join(["-1", *map(str, array.shape[1:])]) + ")"


@probe(
    "output-layout",
    "output-mapping",
    "model-part-dropped",
    "label-mapping",
    when=lambda case: len(case.runners) == 2 and bool(_codes(case) & CODES),
    needs_answers=False,
)
def unpaired(case: Case) -> Sequence[Explained]:
    """Run both models on a few rows as they are, and see which output of the one is which of the other."""
    if case.sample is not None and case.sample.failing.any():
        return []  # rows that differ say more than outputs that are missing
    batch = next(iter(case.plan.source.batches(FEW)), None)
    if batch is None or not len(batch) or not batch.stacked:
        return []
    given = _raw(case, batch)
    if given is None:
        return []
    ours, theirs = given
    if "row-count" in _codes(case):
        return list(_misshapen(case, batch, ours, theirs))[:1]
    return list(_renamed(case, batch, ours, theirs)) or list(_classes(case))[:1]


def _codes(case: Case) -> set[str]:
    """What kept the outputs apart."""
    found = {mismatch.code for mismatch in case.comparison.mismatches}
    return found | {incident.code for incident in case.comparison.incidents}


def _raw(case: Case, batch: Batch) -> tuple[Tensors, Tensors] | None:
    """What both models give, whatever its shape; None if one cannot be fed or does not answer."""
    case.require_time()
    known = case.reference is not None and case.candidate is not None
    sides = (case.side("reference"), case.side("candidate")) if known else fed_sides(case, batch)
    if sides is None:
        return None
    reference, candidate = sides
    try:
        return reference.runner.run(reference.feed(batch)[0]), candidate.runner.run(candidate.feed(batch)[0])
    except LikewiseError:
        return None


def _misshapen(case: Case, batch: Batch, ours: Tensors, theirs: Tensors) -> Iterator[Explained]:
    """An output without a row for each row."""
    for name, array in theirs.items():
        if array.ndim and len(array) == len(batch):
            continue
        for other, right in ours.items():
            for what, remedy, made in _laid_out(array, right):
                if _same(case, batch, right, made):
                    yield _turned(batch, other, name, what, (array, right), remedy)


def _laid_out(array: Array, right: Array) -> Iterator[tuple[str, str, Array]]:
    """An array in the shape of another, in every way that gives it: what was done to it, and what to do about it."""
    if array.shape == right.shape:
        yield "", "", array
    elif array.size == right.size and array.ndim <= MOST_AXES:
        for axes in permutations(range(array.ndim)):
            turned = array.transpose(axes)
            if turned.shape == right.shape:
                yield "transposed", f"Transpose it: output.transpose{axes}", turned
        what = "another shape" if len(array) == len(right) else "the batch axis is not the first, or was lost"
        yield what, f"Give it the reference's shape: output.reshape{_code(right)}", array.reshape(right.shape)
        if right.ndim == 2:
            turned = array.reshape(right.shape[1], -1).T
            yield "transposed and flattened", "Transpose it before it is flattened", turned


def _renamed(case: Case, batch: Batch, ours: Tensors, theirs: Tensors) -> Iterator[Explained]:
    """Outputs without a counterpart: one that has another name, one that is missing, one too many."""
    paired_ours = {spec.reference for spec in case.specs} | {spec.margin_from for spec in case.specs}
    paired_theirs = {spec.candidate for spec in case.specs}
    missing = [name for name in ours if name not in paired_ours]
    extra = [name for name in theirs if name not in paired_theirs]
    found = list(_matches(case, batch, ours, theirs, missing, extra))
    positions = list(ours), list(theirs)
    # A reference that does not name its outputs says which is which by their order.
    wrong = [
        (lost, name, how)
        for lost, name, how in found
        if how or not UNNAMED.fullmatch(lost) or positions[0].index(lost) != positions[1].index(name)
    ]
    if wrong:
        yield _misnamed(batch, wrong, theirs, ours)
        return
    views = {spec.name for spec in case.runners["reference"].signature.outputs or () if spec.view}
    dropped = [name for name in missing if name not in views and name not in {lost for lost, _, _ in found}]
    added = [name for name in extra if name not in {name for _, name, _ in found}]
    if dropped and not added and "missing-output" in _codes(case):
        yield Explained(
            "model-part-dropped",
            Place(", ".join(dropped), ("output missing",)),
            f"the reference gives {', '.join(map(repr, ours))}, the candidate only {', '.join(map(repr, theirs))}; "
            "none of its outputs holds what is missing",
            f"Export the model with all its outputs, or leave it out: --ignore {dropped[0]}",
        )
    elif added and not dropped and case.specs and "extra-output" in _codes(case):
        same = [name for name in theirs if name not in added and _equal(theirs[name], theirs[added[0]])]
        copy = f"; it is a copy of {same[0]!r}" if same else ""
        yield Explained(
            "output-mapping",
            Place(", ".join(added), ("an output that the reference does not have",), outputs=tuple(added)),
            f"the outputs that have a counterpart agree; {', '.join(map(repr, added))} has none{copy}",
            f"Take it out of the export, or leave it out: --ignore {added[0]}",
            simplicity=4,
        )


def _matches(
    case: Case, batch: Batch, ours: Tensors, theirs: Tensors, missing: Sequence[str], extra: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Which output of the candidate holds what belongs to a missing one, and how it has to be turned."""
    taken: set[str] = set()
    for lost in missing:
        for name in extra:
            ways = _laid_out(theirs[name], ours[lost]) if name not in taken else ()
            how = next((how for how, _, made in ways if _same(case, batch, ours[lost], made)), None)
            if how is not None:
                taken.add(name)
                yield lost, name, how
                break


def _misnamed(batch: Batch, wrong: Sequence[tuple[str, str, str]], theirs: Tensors, ours: Tensors) -> Explained:
    lost, name, how = next((entry for entry in wrong if entry[2]), wrong[0])
    if how:
        remedy = f"Give it the reference's shape in the export, and say which it is: --pair {name}={lost}"
        return _turned(batch, lost, name, how, (theirs[name], ours[lost]), remedy)
    held = ", ".join(f"{lost!r} is given as {name!r}" for lost, name, _ in wrong)
    pairs = " ".join(f"--pair {name}={lost}" for lost, name, _ in wrong)
    return Explained(
        "output-mapping",
        Place(", ".join(lost for lost, _, _ in wrong), (held,), outputs=tuple(name for _, name, _ in wrong)),
        f"on the first {len(batch)} rows the candidate gives what the reference gives under another name: {held}",
        f"Name the outputs of the export as the reference does, or say which is which: {pairs}",
        simplicity=2,
    )


def _classes(case: Case) -> Iterator[Explained]:
    """Classes of other names, where no label was given that could show it."""
    for mismatch in case.comparison.mismatches:
        facts = next((output.pair for output in case.comparison.outputs if output.name == mismatch.output), None)
        if mismatch.code == "classes" and facts is not None and facts.classes:
            yield Explained(
                "label-mapping",
                Place(str(mismatch.output), ("other class names",)),
                f"{mismatch.message}; the columns themselves agree in this order",
                f"Export with the model's own classes: {list(facts.classes)[:12]}",
                simplicity=2,
            )


def _same(case: Case, batch: Batch, right: Array, made: Array) -> bool:
    """Do two outputs agree on nearly all of the rows, and do the rows differ from one another?"""
    if right.shape != made.shape or is_numeric(right) != is_numeric(made) or answers.distinct(right) < 2:
        return False
    kind = Kind.VALUE if right.dtype.kind == "f" else Kind.LABEL
    tolerance = answers.forgiving(case.tolerance)
    pair = Pair(PairSpec("", "", kind, ""), batch, right, made, tolerance, nan_equal=case.plan.nan_equal)
    return bool((~rows_beyond(pair)).mean() >= ALIKE)


def _equal(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool((one == other).all())


def _turned(batch: Batch, output: str, given: str, what: str, sides: tuple[Array, Array], remedy: str) -> Explained:
    return Explained(
        "output-layout",
        _place(output, output, given, what),
        f"on the first {len(batch)} rows the candidate's {given!r} has shape {sides[0].shape}, the reference's "
        f"{output!r} {sides[1].shape}; with that taken back ({what}) they agree",
        remedy,
        simplicity=2,
    )


EXTENSIONS = (output_shapes, unpaired)
