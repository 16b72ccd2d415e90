"""The right numbers in another shape or under another name: transposed, flattened, in part, before pooling, renamed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations, product

import numpy as np

from likewise.compare.align import align
from likewise.compare.differences import is_numeric
from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Mismatch, Pair, PairSpec
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Kind
from likewise.contracts.report import Place
from likewise.contracts.verdict import counted
from likewise.errors import LikewiseError
from likewise.explain import answers
from likewise.explain.case import UNNAMED, Case, Explained, Fix, Remedy, probe
from likewise.explain.experiment import FEW, Effect, Trial
from likewise.explain.features import fed_sides
from likewise.models.onnx import edits, rewrites

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

POOLINGS: tuple[tuple[str, Callable[..., Array]], ...] = (
    ("last step", partial(np.take, indices=-1)),
    ("first step", partial(np.take, indices=0)),
    ("mean", np.mean),
    ("sum", np.sum),
    ("largest", np.max),
)
"""What becomes of an axis at the end of a model."""

LAYOUT = "Export the output in the reference's layout"


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What may have been done to an output: `way` brings the answers of one side into the form of the other's.

    `by_row`: it does the same to the candidate's answer to each row, and could be done so for good.
    """

    cause: str
    what: str
    remedy: Remedy | str
    way: Callable[[Array], Array]
    side: str = "candidate"
    by_row: bool = True


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
    yield from _rearranged(ours, theirs)
    if ours.ndim == 2 and ours.shape == theirs.shape and case.required.complete and len(ours) <= ONE_CALL:
        what = "columns written as rows: transposed, then reshaped"
        remedy = f"{LAYOUT}: transpose instead of reshape"
        yield Arrangement("output-layout", what, remedy, _columns_as_rows, by_row=False)
    if ours.shape != theirs.shape:
        # A column of probabilities is a class, not a step.
        if spec.kind is not Kind.PROBABILITY or ours.ndim > 2:
            yield from _pooled(ours, theirs)
        yield from _columns(spec, ours, theirs)


def _rearranged(ours: Array, theirs: Array) -> Iterator[Arrangement]:
    """The same number of values a row."""
    if ours.size != theirs.size or theirs.ndim > MOST_AXES or len(theirs) != len(ours):
        return
    if ours.shape != theirs.shape:
        what = f"shape {_text(theirs)} instead of {_text(ours)}"
        remedy = Remedy(LAYOUT, done=f"Bring it into the reference's shape: output.reshape{_code(ours)}")
        yield Arrangement("output-layout", what, remedy, partial(_axes_moved, ours, None))
    for axes in _turns(theirs.ndim):
        what = f"axes transposed, {_text(theirs)}"
        same = theirs.transpose(axes).shape == ours.shape
        code = f"output.transpose{axes}" + ("" if same else f".reshape{_code(ours)}")
        remedy = Remedy(LAYOUT, done=f"Bring it into the reference's layout: {code}")
        yield Arrangement("output-layout", what, remedy, partial(_axes_moved, ours, axes))
    for axes in _turns(ours.ndim) if ours.ndim > 2 else ():
        # The numbers were written in one order of axes and are read in another.
        what = f"reshaped without transposing to {_text(ours)}"
        remedy = Remedy(f"{LAYOUT}: transpose before the reshape")
        yield Arrangement("output-layout", what, remedy, partial(_read_anew, ours, axes))


def _axes_moved(wanted: Array, axes: tuple[int, ...] | None, given: Array) -> Array:
    """Rows with their axes in another order, in the shape that is wanted."""
    moved = given if axes is None else given.transpose(axes)
    return np.ascontiguousarray(moved.reshape(len(given), *wanted.shape[1:]))


def _read_anew(wanted: Array, axes: tuple[int, ...], given: Array) -> Array:
    """Rows that were written in one order of axes, read in it."""
    written = given.reshape(len(given), *(wanted.shape[axis] for axis in axes[1:]))
    return np.ascontiguousarray(written.transpose(np.argsort(axes)))


def _columns_as_rows(given: Array) -> Array:
    """All rows of a call, whose columns were written one after the other."""
    return np.ascontiguousarray(given.reshape(given.shape[1], len(given)).T)


def _turns(rank: int) -> Iterator[tuple[int, ...]]:
    """Every other order of the axes that keeps the rows where they are."""
    yield from ((0, *axes) for axes in list(permutations(range(1, rank)))[1:])


def _pooled(ours: Array, theirs: Array) -> Iterator[Arrangement]:
    """One side gives all steps of an axis, the other one of them or their mean."""
    for side, given, wanted in (("candidate", theirs, ours), ("reference", ours, theirs)):
        axes = [axis for axis in range(1, given.ndim) if given.shape[:axis] + given.shape[axis + 1 :] == wanted.shape]
        for axis, (name, pool) in product(axes, POOLINGS):
            step = f"the {name} over axis {axis}"
            what, remedy = f"before {step} is taken", f"Export the model with its last step: {step}"
            if side == "reference":
                what, remedy = f"{step} instead of all of it", f"Export the output before {step} is taken"
            yield Arrangement("wrong-intermediate", what, remedy, partial(pool, axis=axis), side, by_row=False)


def _columns(spec: PairSpec, ours: Array, theirs: Array) -> Iterator[Arrangement]:
    """Fewer or more columns: which of the reference's are there."""
    if ours.ndim > 2 or theirs.ndim > 2:
        return
    mine, other = ours.reshape(len(ours), -1), theirs.reshape(len(theirs), -1)
    wide, given = mine.shape[1], other.shape[1]
    if given == 1 < wide and theirs.dtype.kind in "iu":
        what, remedy = "the label instead of the scores", "Export the scores, not the label picked from them"
        yield Arrangement("output-kind", what, remedy, partial(_winner, theirs), "reference", by_row=False)
    held = _held(other, mine) if given < wide else _held(mine, other)
    if held is None or given == wide:
        return
    if given > wide:
        more = counted(given - wide, "columns")
        what, remedy = f"{more} more than the reference", f"Leave out the {more} that the reference does not have"
        yield Arrangement("output-layout", what, remedy, partial(_held_columns, ours, held))
        return
    names = [str(name) for name in spec.classes or range(wide)]
    missing = [name for column, name in enumerate(names) if column not in held]
    cause, what = "model-part-dropped", f"without {', '.join(missing[:6])}"
    if given == 1:
        cause, what = "output-kind", f"only column {names[held[0]]} of {wide}"
    way = partial(_held_columns, theirs, held)
    yield Arrangement(cause, what, f"Export all {wide} columns", way, "reference", by_row=False)


def _winner(wanted: Array, given: Array) -> Array:
    winner: Array = given.reshape(len(given), -1).argmax(axis=1)
    return winner.reshape(len(given), *wanted.shape[1:])


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
    if way.side == "candidate":
        made = way.way(sample.candidate[spec.candidate])
        return Trial.whole(case).effect(candidate={**sample.candidate, spec.candidate: made})
    made = way.way(sample.reference[spec.reference])
    if answers.distinct(made) < 2:
        return None
    # The reference is changed into something of another kind: it is compared as the numbers it is.
    plain = PairSpec(spec.reference, spec.candidate, Kind.VALUE, spec.matched_by)
    specs = [plain if one is spec else one for one in case.specs]
    changed = {**sample.reference, spec.reference: made}
    return Effect(case.agreeing(sample.batch, changed, sample.candidate, specs), sample.failing)


def _explained(case: Case, spec: PairSpec, way: Arrangement, effect: Effect, ours: Array, theirs: Array) -> Explained:
    nodes = rewrites.rearranged(way.way, theirs.shape[1:]) if way.by_row else None
    return effect.explained(
        way.cause,
        _place(spec.name, spec.reference, spec.candidate, way.what),
        f"the reference gives {spec.name} of shape {_text(ours)}, the candidate {_text(theirs)}; with the {way.side}'s "
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
def unpaired(case: Case) -> Iterator[Explained]:
    """Run both models on a few rows as they are, and see which output of the one is which of the other."""
    if case.sample is not None and case.sample.failing.any():
        return  # rows that differ say more than outputs that are missing
    batch = next(iter(case.plan.source.batches(FEW)), None)
    given = None if batch is None or not len(batch) or not batch.stacked else _raw(case, batch)
    if batch is None or given is None:
        return
    look = _misshapen if "row-count" in _codes(case) else _renamed
    found = next(look(case, batch, *given), None) or next(_classes(case), None)
    if found is not None:
        yield found


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
                # Nothing was done to an output that is the same in both: its rows lie elsewhere, if it has any.
                if what and _same(case, batch, right, made):
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
    missing = [name for name in ours if name not in paired_ours]
    extra = [name for name in theirs if name not in {spec.candidate for spec in case.specs}]
    found = list(_matches(case, batch, ours, theirs, missing, extra))
    # A reference that does not name its outputs says which is which by their order.
    wrong = [
        (lost, name, how)
        for lost, name, how in found
        if how or not UNNAMED.fullmatch(lost) or list(ours).index(lost) != list(theirs).index(name)
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
            f"Export the model with all its outputs, or leave it out: --ignore {shlex.quote(dropped[0])}",
        )
    elif added and not dropped and case.specs and "extra-output" in _codes(case):
        yield Explained(
            "output-mapping",
            Place(", ".join(added), ("an output that the reference does not have",), outputs=tuple(added)),
            f"the outputs that have a counterpart agree; {', '.join(map(repr, added))} has none",
            f"Take it out of the export, or leave it out: --ignore {shlex.quote(added[0])}",
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
        remedy = (
            f"Give it the reference's shape in the export, and say which it is: --pair {shlex.quote(f'{name}={lost}')}"
        )
        return _turned(batch, lost, name, how, (theirs[name], ours[lost]), remedy)
    held = ", ".join(f"{lost!r} is given as {name!r}" for lost, name, _ in wrong)
    pairs = " ".join(f"--pair {shlex.quote(f'{name}={lost}')}" for lost, name, _ in wrong)
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


def _turned(batch: Batch, output: str, given: str, what: str, sides: tuple[Array, Array], remedy: str) -> Explained:
    return Explained(
        "output-layout",
        _place(output, output, given, what),
        f"on the first {len(batch)} rows the candidate's {given!r} has shape {sides[0].shape}, the reference's "
        f"{output!r} {sides[1].shape}; with that taken back ({what}) they agree",
        remedy,
        simplicity=2,
    )


@probe("output-mapping", when=answers.complete)
def output_names(case: Case) -> Explained | None:
    """Read outputs of the candidate that carry what belongs to another one under each other's names, and compare."""
    pairs = answers.pairs(case)
    taken: dict[int, int] = {}
    for mine in answers.failing(case):
        others = (at for at in range(len(pairs)) if at != mine and _holds(pairs[mine], pairs[at]))
        if (other := next(others, None)) is not None:
            taken[mine] = other
    changed = {mine: pairs[other].candidate.reshape(pairs[mine].candidate.shape) for mine, other in taken.items()}
    effect = answers.convincing(case, changed) if changed else None
    if effect is None:
        return None
    swapped = all(taken.get(other) == mine for mine, other in taken.items())
    held = [(pairs[mine].spec.name, pairs[other].spec.candidate) for mine, other in taken.items()]
    proto = case.graph()
    names = {pairs[other].spec.candidate: pairs[mine].spec.candidate for mine, other in taken.items()}
    told = "outputs renamed: " + ", ".join(f"{old!r} is called {new!r}" for old, new in names.items())
    return effect.explained(
        "output-mapping",
        Place(
            ", ".join(given if UNNAMED.fullmatch(name) else name for name, given in held),
            ("swapped" if swapped else "; ".join(f"{name} is given as {given}" for name, given in held),),
            outputs=tuple(given for _, given in held),
        ),
        "; ".join(f"the candidate gives the reference's {name!r} as {given!r}" for name, given in held)
        + f": read that way it agrees on {effect.told}",
        "Name the outputs of the export in the order the model gives them (output_names=[...])",
        fixes=(Fix(told, lambda: edits.renamed(proto, names)),) if swapped and proto is not None else (),
    )


def _holds(wanted: Pair, other: Pair) -> bool:
    """Does the candidate's answer of another pair agree with what this one should be?"""
    if (wanted.spec.kind is Kind.LABEL) != (other.spec.kind is Kind.LABEL):
        return False
    if wanted.reference.size != other.candidate.size or answers.distinct(wanted.reference) < 2:
        return False
    if is_numeric(wanted.reference) != is_numeric(other.candidate):
        return False
    read = replace(wanted, candidate=other.candidate.reshape(wanted.candidate.shape))
    return bool((~rows_beyond(read)).mean() >= answers.FOLLOWING)


EXTENSIONS = (output_shapes, unpaired, output_names)
