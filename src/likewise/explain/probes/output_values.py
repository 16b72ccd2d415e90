"""Numbers that are not what they claim, or not where they belong: another link, unit or kind, columns exchanged."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from likewise.compare.differences import Constancy, is_numeric
from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.data.cells import listed
from likewise.explain import answers, features
from likewise.explain.answers import Reading, best
from likewise.explain.case import Case, Explained, Remedy, probe, rows_agreeing
from likewise.explain.experiment import ENOUGH
from likewise.explain.weights import reference_parameters
from likewise.models.onnx import rewrites
from likewise.models.onnx.edits import Nodes, Writer

SAME = 1e-4
"""How far scores may be apart from one offset, in units of their size."""

EXACT = 0.995
"""Numbers that are all there are nearly all the same."""

MOST_COLUMNS = 1_024
"""Columns beyond which no order of them is searched for."""

MOST_NAMED = 12
"""Columns that are named one by one."""

SEVERAL = 4
"""Answers that are the same smallest or largest value, before it is taken for a limit."""

FEWEST_ROWS = 5
"""Rows that one answer to all of them means something for."""

MANY = 50
"""Different answers up to which they are counted."""


@probe(
    *("output-kind", "model-part-dropped", "link-function", "preprocessing-differs"),
    when=lambda case: answers.complete(case) and bool(answers.failing_numbers(case)),
)
def output_kinds(case: Case) -> Explained | None:
    """Read the candidate's answers as something else, or make that of the reference's, and compare."""
    return best(case, _kinds)


def _kinds(case: Case, pair: Pair, rows: Array) -> Iterator[Reading]:
    ours, theirs = pair.reference.astype(np.float64), pair.candidate.astype(np.float64)
    yield from _read_otherwise(pair, theirs)
    if theirs.ndim == 2 and theirs.shape[1] > 1:
        yield Reading(
            "output-kind",
            "only the winning class, as 0 and 1",
            "with the reference's probabilities reduced to their winner",
            "Export the probabilities, not the decision",
            "reference",
            lambda: (ours == ours.max(axis=1, keepdims=True)).astype(np.float64),
        )
    yield from _constant_terms(case, theirs)
    yield from _limits(case, pair, ours, theirs)
    yield from _line(case, pair, theirs)
    digits = answers.decimals(theirs)
    rounded: Any = partial(np.round, decimals=digits)
    for what, done, way in (
        ("rounded to whole numbers", "with the reference's answers rounded too", np.rint),
        ("cut to whole numbers", "with the fractions of the reference's answers cut off too", np.trunc),
        (f"rounded to {digits} decimals", "with the reference's answers rounded too", rounded),
    ):
        yield Reading("output-kind", what, done, "Export all digits of the output", "reference", partial(way, ours))
    # Another answer of the same model: scores for probabilities, distances for scores.
    for name, values in answers.other_views(case, pair, ours, rows):
        yield Reading(
            "output-kind",
            f"{name} of the model",
            f"compared with the reference's {name}",
            f"Export the {pair.spec.kind}, or compare like with like: "
            f"--pair {shlex.quote(f'{pair.spec.candidate}={name}')}",
            "reference",
            partial(np.asarray, values),
            simplicity=3,
        )


def _limits(case: Case, pair: Pair, ours: Array, theirs: Array) -> Iterator[Reading]:
    """A smallest or largest value at which the answers of one side stop, and not those of the other."""
    whole = next(other for other in answers.pairs(case) if other.spec is pair.spec)
    if (ends := _ends(whole.reference)) is not None:
        done = f"output.clip({ends[0]}, {ends[1]})"
        remedy = Remedy("Export the model with its last clip", done=f"Apply the last clip: {done}")
        made, nodes = partial(np.clip, theirs, *ends), partial(_clipped, low=ends[0], high=ends[1])
        what = f"limits {ends[0]} to {ends[1]} missing"
        yield Reading("model-part-dropped", what, f"with {done}", remedy, "candidate", made, nodes=nodes)
    if (ends := _ends(whole.candidate)) is not None:
        told = "bounded by " + " and ".join(f"{end:g}" for end in ends if end is not None)
        done = "with the reference's answers bounded as the candidate's are"
        yield Reading("output-kind", told, done, "Leave the bounds out", "reference", partial(np.clip, ours, *ends))


def _ends(array: Array) -> tuple[float | None, float | None] | None:
    """The smallest and the largest answer, each where several rows have it; None if that is neither, or all."""
    values = array.astype(np.float64)
    low, high = (
        end if (values == end).sum() >= SEVERAL else None for end in (float(values.min()), float(values.max()))
    )
    return (low, high) if low != high and np.isfinite(values).all() else None


def _clipped(write: Writer, x: str, *, low: float | None, high: float | None) -> str:
    x = x if low is None else write("Max", x, low)
    return x if high is None else write("Min", x, high)


def _line(case: Case, pair: Pair, theirs: Array) -> Iterator[Reading]:
    """One factor and one addend for all answers: the scale and the centre of a target not put back, or another unit."""
    whole = next(other for other in answers.pairs(case) if other.spec is pair.spec)
    ours, given = (side.astype(np.float64).ravel() for side in (whole.reference, whole.candidate))
    if ours.size != given.size or not np.isfinite([ours, given]).all() or len(np.unique(given)) < FEWEST_ROWS:
        return
    factor, addend = (float(number) for number in np.polyfit(given, ours, 1))
    known = {p.path: float(p.values.ravel()[0]) for p in reference_parameters(case) if p.values.size == 1}
    names = [next((n for n, value in known.items() if abs(value - x) <= SAME * abs(x)), "") for x in (factor, addend)]
    # Numbers that the model holds are not on a line by chance.
    named = all(names) and abs(known[names[0]] - 1) > SAME
    if named:
        factor, addend = (known[name] for name in names)
    elif abs(factor - 1) <= SAME:
        factor, addend = 1.0, float(np.median(ours - given))
    elif abs(addend) <= SAME * float(np.abs(ours).max()):
        factor, addend = float(np.median(ours[given != 0] / given[given != 0])), 0.0
    if pair.spec.kind is Kind.PROBABILITY and not named:
        return
    scaler = getattr(features.innermost(case), "transformer_", None)
    code = " ".join(["output", *([f"* {factor:.7g}"] * (factor != 1)), *([f"+ {addend:.7g}"] * (addend != 0))])
    if scaler is not None and not named:
        cause, what = "preprocessing-differs", f"transformer_, {type(scaler).__name__}: to be read as {code}"
    else:
        cause = "model-part-dropped" if addend else "output-kind"
        what = f"{' and '.join(names)} left out" if named else f"to be read as {code}"
    yield Reading(
        cause,
        what,
        f"multiplied by the reference's {names[0]} and with its {names[1]} added" if named else f"read as {code}",
        Remedy("Export the model with what its target was scaled by", done=f"Apply it: {code}"),
        "candidate",
        lambda: theirs * factor + addend,
        simplicity=2 if named or scaler is not None else 5,
        nodes=partial(_on_a_line, factor=factor, addend=addend),
    )


def _on_a_line(write: Writer, x: str, *, factor: float, addend: float) -> str:
    return write("Add", write("Mul", x, factor), addend)


def _constant_terms(case: Case, theirs: Array) -> Iterator[Reading]:
    """A number that the reference adds to every row, left out or added twice."""
    for name, term in features.constant_terms(case):
        if not np.isfinite(term).all() or not term.any() or term.size not in (1, theirs[0].size):
            continue
        offset = term if term.size == 1 else term.reshape(theirs.shape[1:])
        for what, done, way in (
            ("left out", "added", partial(np.add, offset)),
            ("added twice", "taken back once", partial(np.add, -offset)),
        ):
            yield Reading(
                "model-part-dropped",
                f"{name} {what}",
                f"with the reference's {name} {done}",
                f"Export the model with its {name}, once",
                "candidate",
                partial(way, theirs),
                nodes=rewrites.rearranged(way, theirs.shape[1:]),
            )


def _read_otherwise(pair: Pair, theirs: Array) -> Iterator[Reading]:
    ways: list[tuple[str, str, str, Callable[[Array], Array]]] = [
        ("negated", "with the sign turned", "Negate it: -output", np.negative),
        ("in percent", "divided by 100", "Divide by 100: output / 100", lambda output: output / 100.0),
        (
            "a fraction, not percent",
            "multiplied by 100",
            "Multiply by 100: output * 100",
            lambda output: output * 100.0,
        ),
    ]
    if theirs.size == len(theirs) and pair.candidate.dtype.kind == "f":
        done = "read as the probability of the other class"
        remedy = "Take the column of the positive class: 1 - output"
        ways.insert(0, ("probability of the other class", done, remedy, lambda output: 1.0 - output))
    for what, done, remedy, way in ways:
        nodes, made = rewrites.rearranged(way, theirs.shape[1:]), partial(way, theirs)
        yield Reading("output-kind", what, done, Remedy(done=remedy), "candidate", made, simplicity=3, nodes=nodes)


@probe("constant-output", when=lambda case: len(case.required) >= FEWEST_ROWS and case.required.batch.stacked)
def constant_outputs(case: Case) -> Explained | None:
    """Where the candidate gives one answer for all rows and the reference does not, nothing else need be asked."""
    constant = [pair for pair in case.failing_pairs() if _is_constant(pair)]
    others = [pair for pair in case.required.pairs if not any(pair is one for one in constant)]
    failing = case.required.failing
    covered = rows_agreeing(others, len(failing)) & ~rows_agreeing(constant, len(failing))
    if not constant or covered.sum() < ENOUGH * failing.sum():
        return None
    return Explained(
        "constant-output",
        answers.culprit(constant, "the same for every row"),
        "; ".join(
            f"{pair.spec.name} is {_shown(pair)} on all {len(pair.candidate):,} rows, where the reference "
            f"gives {min(count, MANY)}{' or more' if count >= MANY else ''} different answers"
            for pair in constant
            for count in [answers.distinct(pair.reference, MANY)]
        ),
        "Check that the inputs reach the exported graph: an input that is not used, or a value frozen "
        "when it was traced",
        covered=covered,
        simplicity=4,
    )


def _is_constant(pair: Pair) -> bool:
    if answers.distinct(pair.reference, limit=3) < 2 or not Constancy.of(pair.candidate).constant:
        return False
    return not is_numeric(pair.candidate) or bool(np.isfinite(pair.candidate[:1]).all())


def _shown(pair: Pair) -> str:
    values = pair.candidate[:1].ravel()[:4].tolist()
    told = ", ".join(f"{value:.6g}" if isinstance(value, float) else repr(value) for value in values)
    return told if pair.candidate[:1].size <= 4 else f"{told}, …"


@probe("label-order", "output-mapping", when=answers.complete)
def column_order(case: Case) -> Explained | None:
    """Put the candidate's columns into the order that fits the reference best, and compare again."""
    pairs = answers.pairs(case)
    orders = {at: order for at in answers.failing(case) if (order := _column_order(pairs[at])) is not None}
    changed = {at: pairs[at].candidate[:, order] for at, order in orders.items()}
    effect = answers.convincing(case, changed) if changed else None
    if effect is None:
        return None
    # Probabilities tell the most; a row of labels has the same order.
    position = min(orders, key=lambda at: pairs[at].spec.kind is Kind.LABEL)
    pair, order = pairs[position], orders[position]
    of_classes = _of_classes(case, pair)
    names = [str(name) for name in pair.spec.classes or range(len(order))]
    renamed = pair.spec.columns is not None and [pair.spec.columns[i] for i in order] == list(range(len(order)))
    given = pair.spec.columns if renamed and pair.spec.columns else order
    held = listed([names[given.index(column)] for column in range(len(order))], MOST_NAMED)
    concerned = [pairs[at] for at in orders]
    again = f"Export again with the columns in the order of the model's {'classes_' if of_classes else 'targets'}"
    alike = len(set(orders.values())) == 1 and len(order) <= MOST_NAMED and not renamed
    remedy = Remedy(again=again, done=f"Reorder the columns: output[:, {list(order)}]" if alike else "")
    return effect.explained(
        "label-order" if of_classes else "output-mapping",
        answers.culprit(concerned, f"{'classes are named' if renamed else 'columns hold'} {held}"),
        f"with the {'classes' if of_classes else 'columns'} of {answers.names(concerned)} put into the reference's "
        f"order, the candidate agrees on {effect.told}",
        answers.on_arrays(case, concerned, remedy),
        # Numbers that are all there, each in another place, are no other numbers.
        simplicity=1 if effect.share >= EXACT else 2,
        fixes=answers.behind(
            case,
            {pairs[at].spec.candidate: _columns(pairs[at], order) for at, order in orders.items()},
            "columns put into the reference's order",
        ),
    )


def _columns(pair: Pair, order: Sequence[int]) -> Nodes:
    """This order of the columns as they are compared, for the columns as the graph gives them."""
    given = pair.spec.columns or tuple(range(len(order)))
    return rewrites.columns([given[order[given.index(column)]] for column in range(len(given))])


def _column_order(pair: Pair) -> tuple[int, ...] | None:
    """The columns of the candidate in the order that fits the reference; None if that is the order they have."""
    from scipy.optimize import linear_sum_assignment

    reference, candidate, tolerance = pair.reference, pair.candidate, pair.tolerance
    if not (is_numeric(reference) and is_numeric(candidate)):
        return None
    if reference.ndim != 2 or reference.shape != candidate.shape or not 2 <= reference.shape[1] <= MOST_COLUMNS:
        return None
    width = reference.shape[1]
    count = int(max(8, min(256, 4_000_000 / width**2)))
    rows = np.unique(np.linspace(0, len(reference) - 1, count).astype(int))
    ours, theirs = reference[rows].astype(np.float64), candidate[rows].astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.abs(ours[:, :, None] - theirs[:, None, :])
        allowed = tolerance.absolute + tolerance.relative * np.abs(ours)[:, :, None]
        same = (apart <= allowed) | (np.isnan(ours)[:, :, None] & np.isnan(theirs)[:, None, :])
        capped = np.nan_to_num(apart / (1.0 + apart), nan=1.0, posinf=1.0)
    # Rows that agree decide; how far the others are apart only breaks ties.
    cost = (~same).mean(axis=0) + 1e-3 * capped.mean(axis=0)
    _, order = linear_sum_assignment(cost)
    return None if (order == np.arange(width)).all() else tuple(order.tolist())


def _of_classes(case: Case, pair: Pair) -> bool:
    """Are the columns classes, not targets of their own?"""
    if pair.spec.classes or pair.spec.kind in (Kind.PROBABILITY, Kind.SCORE, Kind.DISTANCE, Kind.LABEL):
        return True
    table = pair.reference.astype(np.float64)
    with np.errstate(all="ignore"):
        if np.nanmin(table) >= 0 and np.allclose(table.sum(axis=1), 1.0, atol=1e-3):
            return True
    labels = [other for other in answers.pairs(case) if other.spec.kind is Kind.LABEL and other.reference.ndim == 1]
    return any(
        answers.best_rule(label.reference, pair.reference, answers.classes_of(label, pair)) is not None
        for label in labels
    )


EXTENSIONS = (output_kinds, constant_outputs, column_order)
