"""Numbers that mean something else than they claim: another class, sign or unit, scores, decisions, cut ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.explain import answers, links
from likewise.explain.answers import Change, best
from likewise.explain.case import Case, Explained

SEVERAL = 4
"""Answers that are the same smallest or largest value, before it is taken for a limit."""


class OutputKinds:
    """Read the candidate's answers as something else, or make that of the reference's, and compare."""

    causes = ("output-kind", "model-part-dropped", "link-function")
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return answers.complete(case) and bool(answers.failing_numbers(case))

    def test(self, case: Case) -> Sequence[Explained]:
        found = best(case, _changes)
        return [] if found is None else [found]


def _changes(case: Case, pair: Pair, rows: Array) -> Iterator[Change]:
    ours, theirs = pair.reference.astype(np.float64), pair.candidate.astype(np.float64)
    yield from _read_otherwise(pair, theirs)
    if theirs.ndim == 2 and theirs.shape[1] > 1:
        yield from _of_a_row(ours, theirs)
    yield from _limits(case, pair, ours, theirs)
    yield from _whole_numbers(ours)
    yield from _other_answers(case, pair, ours, rows)


def _read_otherwise(pair: Pair, theirs: Array) -> Iterator[Change]:
    name = pair.spec.candidate
    ways: list[tuple[str, str, str, Callable[[], Array]]] = [
        ("negated", "with the sign turned", f"Negate it: -{name}", partial(np.negative, theirs)),
        ("in percent", "divided by 100", f"Divide by 100: {name} / 100", lambda: theirs / 100.0),
        ("a fraction, not percent", "multiplied by 100", f"Multiply by 100: {name} * 100", lambda: theirs * 100.0),
    ]
    if theirs.size == len(theirs) and pair.candidate.dtype.kind == "f":
        done = "read as the probability of the other class"
        remedy = f"Take the column of the positive class, or 1 - {name}"
        ways.insert(0, ("probability of the other class", done, remedy, lambda: 1.0 - theirs))
    for what, done, remedy, made in ways:
        yield Change("output-kind", what, done, remedy, "candidate", made, simplicity=3)


def _of_a_row(ours: Array, theirs: Array) -> Iterator[Change]:
    yield Change(
        "output-kind",
        "only the winning class, as 0 and 1",
        "with the reference's probabilities reduced to their winner",
        "Export the probabilities, not the decision",
        "reference",
        lambda: (ours == ours.max(axis=1, keepdims=True)).astype(np.float64),
    )
    yield Change(
        "model-part-dropped",
        "scaling to unit length missing",
        "with each row scaled to unit length",
        "Export the model with its last normalisation",
        "candidate",
        partial(links.unit_length, theirs),
    )
    yield Change(
        "link-function",
        "scaled to unit length although the reference is not",
        "with the reference's rows scaled to unit length too",
        "Take the normalisation out of the export",
        "reference",
        partial(links.unit_length, ours),
    )


def _limits(case: Case, pair: Pair, ours: Array, theirs: Array) -> Iterator[Change]:
    """Answers that stop at a smallest or largest value on one side only."""
    whole = next(other for other in answers.pairs(case) if other.spec is pair.spec)
    low, high = _ends(whole.reference)
    if (low, high) != (-np.inf, np.inf):
        remedy = f"Export the model with its last clip, or apply it: {pair.spec.candidate}.clip({low:g}, {high:g})"
        what, done = f"limits {low:g} to {high:g} missing", f"kept between {low:g} and {high:g}"
        yield Change("model-part-dropped", what, done, remedy, "candidate", partial(theirs.clip, low, high))
    low, high = _ends(whole.candidate)
    if (low, high) != (-np.inf, np.inf):
        what = f"kept between {low:g} and {high:g} although the reference is not"
        done = f"with the reference's answers kept between {low:g} and {high:g} too"
        remedy = "Take the last clip out of the export"
        clipped = partial(ours.clip, low, high)
        # Answers that stop somewhere are also what a value that is always taken for the same looks like.
        yield Change("link-function", what, done, remedy, "reference", clipped, simplicity=4)


def _ends(values: Array) -> tuple[float, float]:
    """The smallest and the largest value, where several answers stop there; else none."""
    if not values.size or values.dtype.kind != "f" or not np.isfinite(values).all():
        return -np.inf, np.inf
    low, high = float(values.min()), float(values.max())
    if low == high:
        return -np.inf, np.inf
    stops = [int((values == end).sum()) >= SEVERAL for end in (low, high)]
    return low if stops[0] else -np.inf, high if stops[1] else np.inf


def _whole_numbers(ours: Array) -> Iterator[Change]:
    for what, done, way in (
        ("rounded to whole numbers", "with the reference's answers rounded too", np.rint),
        ("cut to whole numbers", "with the fractions of the reference's answers cut off too", np.trunc),
    ):
        remedy = "Export the output as a float"
        yield Change("output-kind", what, done, remedy, "reference", partial(way, ours))


def _other_answers(case: Case, pair: Pair, ours: Array, rows: Array) -> Iterator[Change]:
    """Another answer of the same model: scores for probabilities, distances for scores."""
    for name, view in answers.views(case).items():
        if name == pair.spec.reference:
            continue
        for values in answers.in_shape_of(view[rows], ours):
            yield Change(
                "output-kind",
                f"{name} of the model",
                f"compared with the reference's {name}",
                f"Export the {pair.spec.kind}, or compare like with like: --pair {pair.spec.candidate}={name}",
                "reference",
                partial(np.asarray, values),
                simplicity=3,
            )


EXTENSION = OutputKinds()
