"""Outputs that could not be put side by side: transposed, renamed, missing, one too many."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np

from likewise.compare import feed as feeding
from likewise.compare.call import Side
from likewise.compare.differences import is_numeric
from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Pair, PairSpec, Tolerance
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Kind
from likewise.errors import LikewiseError
from likewise.explain import answers
from likewise.explain.case import Case, Explained

CODES = frozenset({"row-count", "missing-output", "extra-output", "nothing-paired", "classes"})
ROWS = 11
"""Rows looked at: a number that is unlikely to be a number of columns as well."""

UNNAMED = re.compile(r"output(\.\d+)?")
"""What an output is called that has no name."""

MOST_AXES = 5
ALIKE = 0.9


class Unpaired:
    """Run both models on a few rows as they are, and see which output of the one is which of the other."""

    causes = ("output-layout", "output-mapping", "model-part-dropped", "label-mapping", "aggregation")
    needs_answers = False

    def plausible(self, case: Case) -> bool:
        return len(case.runners) == 2 and bool(_codes(case) & CODES)

    def test(self, case: Case) -> Sequence[Explained]:
        if case.sample is not None and case.sample.failing.any():
            return []  # rows that differ say more than outputs that are missing
        batch = next(iter(case.plan.source.batches(ROWS)), None)
        if batch is None or not len(batch) or not batch.stacked:
            return []
        ours, theirs = _raw(case, "reference", batch), _raw(case, "candidate", batch)
        if ours is None or theirs is None:
            return []
        if "row-count" in _codes(case):
            return list(_misshapen(case, batch, ours, theirs))
        found = list(_renamed(case, batch, ours, theirs))
        return found or list(_classes(case))


def _codes(case: Case) -> set[str]:
    """What kept the outputs apart."""
    found = {mismatch.code for mismatch in case.comparison.mismatches}
    return found | {incident.code for incident in case.comparison.incidents}


def _raw(case: Case, side: str, batch: Batch) -> Tensors | None:
    """What a model gives, whatever its shape; None if it cannot be fed or does not answer."""
    runner = case.runners[side]
    known: Side | None = getattr(case, side)
    case.require_time()
    try:
        if known is not None:
            feed = known.feed
        else:
            order = None
            if side == "candidate" and case.runners["reference"].signature.table:
                order = feeding.plan(
                    batch, case.runners["reference"].signature, side="reference", mapping=case.plan.feed
                ).columns
            feed = feeding.plan(batch, runner.signature, side=side, order=order, mapping=case.plan.feed)
        return runner.run(feed(batch)[0])
    except LikewiseError:
        return None


def _misshapen(case: Case, batch: Batch, ours: Tensors, theirs: Tensors) -> Iterator[Explained]:
    """An output without a row for each row."""
    for name, array in theirs.items():
        if array.ndim and len(array) == len(batch):
            continue
        for other, right in ours.items():
            for cause, what, remedy, made in _laid_out(array, right):
                if _same(case, batch, right, made):
                    yield _explained(cause, other, name, what, f"{array.shape}", f"{right.shape}", remedy)
                    return


def _laid_out(array: Array, right: Array) -> Iterator[tuple[str, str, str, Array]]:
    """An array in the shape of another, in every way that gives it."""
    if array.size == right.size and array.ndim <= MOST_AXES:
        for axes in permutations(range(array.ndim)):
            turned = array.transpose(axes)
            if axes != tuple(range(array.ndim)) and turned.shape == right.shape:
                yield "output-layout", "transposed", f"Transpose it: output.transpose{axes}", turned
        if array.shape != right.shape:
            remedy = f"Give it the reference's shape: output.reshape({', '.join(['-1', *map(str, right.shape[1:])])})"
            yield "output-layout", "the batch axis is not the first, or was lost", remedy, array.reshape(right.shape)
            if right.ndim == 2:
                turned = array.reshape(right.shape[1], -1).T
                yield "output-layout", "transposed and flattened", "Transpose it before it is flattened", turned
    if right.dtype.kind == "f" and array.dtype.kind == "f":
        for way, combined in (("mean", right.mean(axis=0)), ("sum", right.sum(axis=0)), ("largest", right.max(axis=0))):
            if array.size == combined.size:
                repeated = np.broadcast_to(combined, right.shape)
                given = np.broadcast_to(array.reshape(combined.shape), right.shape)
                close = np.allclose(repeated, given, rtol=1e-3, atol=1e-4)
                if close and answers.distinct(right) > 1:
                    what = f"{way} over all rows"
                    yield "aggregation", what, f"Take the {way} over the batch out of the export", right


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
        yield _misnamed(wrong, theirs, ours)
        return
    views = {spec.name for spec in case.runners["reference"].signature.outputs or () if spec.view}
    dropped = [name for name in missing if name not in views and name not in {lost for lost, _, _ in found}]
    added = [name for name in extra if name not in {name for _, name, _ in found}]
    if dropped and not added and "missing-output" in _codes(case):
        yield Explained(
            "model-part-dropped",
            f"{', '.join(dropped)} (output missing)",
            f"the reference gives {', '.join(map(repr, ours))}, the candidate only {', '.join(map(repr, theirs))}; "
            "none of its outputs holds what is missing",
            f"Export the model with all its outputs, or leave it out: --ignore {dropped[0]}",
            share=1.0,
            simplicity=3,
        )
    elif added and not dropped and case.specs and "extra-output" in _codes(case):
        same = [name for name in theirs if name not in added and _equal(theirs[name], theirs[added[0]])]
        copy = f"; it is a copy of {same[0]!r}" if same else ""
        yield Explained(
            "output-mapping",
            f"{', '.join(added)} (an output that the reference does not have)",
            f"the outputs that have a counterpart agree; {', '.join(map(repr, added))} has none{copy}",
            f"Take it out of the export, or leave it out: --ignore {added[0]}",
            share=1.0,
            simplicity=4,
        )


def _matches(
    case: Case, batch: Batch, ours: Tensors, theirs: Tensors, missing: Sequence[str], extra: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Which output of the candidate holds what belongs to a missing one, and how it has to be turned."""
    taken: set[str] = set()
    for lost in missing:
        for name in extra:
            ways = _alike(theirs[name], ours[lost]) if name not in taken else ()
            how = next((how for how, made in ways if _same(case, batch, ours[lost], made)), None)
            if how is not None:
                taken.add(name)
                yield lost, name, how
                break


def _misnamed(wrong: Sequence[tuple[str, str, str]], theirs: Tensors, ours: Tensors) -> Explained:
    lost, name, how = next((entry for entry in wrong if entry[2]), wrong[0])
    if how:
        remedy = f"Give it the reference's shape in the export, and say which it is: --pair {name}={lost}"
        return _explained("output-layout", lost, name, how, str(theirs[name].shape), str(ours[lost].shape), remedy)
    held = ", ".join(f"{lost!r} is given as {name!r}" for lost, name, _ in wrong)
    pairs = " ".join(f"--pair {name}={lost}" for lost, name, _ in wrong)
    return Explained(
        "output-mapping",
        f"{', '.join(lost for lost, _, _ in wrong)} ({held})",
        f"on the first {ROWS} rows the candidate gives what the reference gives under another name: {held}",
        f"Name the outputs of the export as the reference does, or say which is which: {pairs}",
        share=1.0,
        simplicity=2,
    )


def _alike(array: Array, right: Array) -> Iterator[tuple[str, Array]]:
    if array.shape == right.shape:
        yield "", array
    elif array.size == right.size:
        for axes in permutations(range(array.ndim)):
            turned = array.transpose(axes)
            if turned.shape == right.shape and array.ndim <= MOST_AXES:
                yield f"axes transposed, {array.shape} instead of {right.shape}", turned
        yield f"shape {array.shape} instead of {right.shape}", array.reshape(right.shape)


def _classes(case: Case) -> Iterator[Explained]:
    """Classes of other names, where no label was given that could show it."""
    for mismatch in case.comparison.mismatches:
        facts = next((output.pair for output in case.comparison.outputs if output.name == mismatch.output), None)
        if mismatch.code == "classes" and facts is not None and facts.classes:
            yield Explained(
                "label-mapping",
                f"{mismatch.output} (other class names)",
                f"{mismatch.message}; the columns themselves agree in this order",
                f"Export with the model's own classes: {list(facts.classes)[:12]}",
                share=1.0,
                simplicity=2,
            )
            return


def _same(case: Case, batch: Batch, right: Array, made: Array) -> bool:
    """Do two outputs agree on nearly all of the rows, and do the rows differ from one another?"""
    if right.shape != made.shape or is_numeric(right) != is_numeric(made) or answers.distinct(right) < 2:
        return False
    tolerance = Tolerance(
        max(case.tolerance.absolute, answers.ROUNDING.absolute), max(case.tolerance.relative, answers.ROUNDING.relative)
    )
    kind = Kind.VALUE if right.dtype.kind == "f" else Kind.LABEL
    pair = Pair(PairSpec("", "", kind, ""), batch, right, made, tolerance)
    return bool((~rows_beyond(pair)).mean() >= ALIKE)


def _equal(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool((one == other).all())


def _explained(cause: str, output: str, given: str, what: str, shape: str, wanted: str, remedy: str) -> Explained:
    place = f"output {given!r}: " if given != output else ""
    return Explained(
        cause,
        f"{output} ({place}{what})",
        f"on the first {ROWS} rows the candidate's {given!r} has shape {shape}, the reference's {output!r} {wanted}; "
        f"with that taken back ({what}) they agree",
        remedy,
        share=1.0,
        simplicity=2,
    )


EXTENSION = Unpaired()
