"""The answers of both models, output by output, and the comparison again with some of them read otherwise.

A probe of outputs changes answers, not models: it puts a link, an order or a rule right and sees how many of the
failing rows agree then, by the comparison that all experiments use. What it did has to do more than an answer that is
the same for every row would do, or it has shown nothing. Readings that are tried one after the other are tried on a
few rows first, and on all rows if that looks right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.compare.differences import is_numeric, rows_of, same_labels
from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Pair, Tolerance
from likewise.contracts.data import Array, Tensors
from likewise.contracts.models import Kind, Label
from likewise.contracts.report import Place
from likewise.explain.case import Case, Explained, Fix, Remedy, made_once, rows_agreeing
from likewise.explain.experiment import ENOUGH, HARMLESS, Effect, Trial
from likewise.models.onnx import edits
from likewise.models.onnx.edits import Nodes

if TYPE_CHECKING:
    from onnx import ModelProto

MOST_DECIMALS = 7

ROUNDING = Tolerance(1e-6, 1e-5)
"""A link applied here and one applied by the model differ by rounding, which a bit-equal policy would not forgive."""

LEFT_OF_NULL = 0.2
"""Of the failing rows that a constant answer leaves failing, at most so many may be left by a change that explains."""

FOLLOWING = 0.98
"""Labels follow from scores if a rule gives this share of them."""

FEW_ROWS, FEW_NUMBERS = 128, 100_000
"""Rows that readings are tried on first; fewer where a row holds many numbers."""

PROMISING = 0.5
"""A reading is tried on all rows if this share of some failing rows agree with it."""

HIGHEST = "the highest score wins"
"""The usual rule from scores to labels."""

Changed = Mapping[int, Array]
"""Other answers by the position of their pair."""


def forgiving(tolerance: Tolerance) -> Tolerance:
    """A tolerance that forgives at least rounding."""
    absolute, relative = max(tolerance.absolute, ROUNDING.absolute), max(tolerance.relative, ROUNDING.relative)
    return Tolerance(absolute, relative, tolerance.exact_integers)


@made_once
def pairs(case: Case) -> tuple[Pair, ...]:
    """The compared outputs of the sample, in a tolerance that forgives at least rounding."""
    return tuple(replace(pair, tolerance=forgiving(pair.tolerance)) for pair in case.required.pairs)


@made_once
def _agreeing(case: Case) -> list[Array]:
    return [~rows_beyond(pair) for pair in pairs(case)]


def failing(case: Case) -> list[int]:
    """The positions of the pairs on which rows fail by more than rounding."""
    return [position for position, agrees in enumerate(_agreeing(case)) if not agrees.all()]


def failing_numbers(case: Case) -> list[int]:
    """The failing pairs that hold numbers other than labels."""
    return [position for position in failing(case) if is_number(pairs(case)[position])]


def failing_labels(case: Case) -> list[int]:
    return [position for position in failing(case) if pairs(case)[position].spec.kind is Kind.LABEL]


def is_number(pair: Pair) -> bool:
    return pair.spec.kind is not Kind.LABEL and is_numeric(pair.reference) and is_numeric(pair.candidate)


def complete(case: Case) -> bool:
    """Could every pair of outputs be put side by side, and do they differ by more than rounding?"""
    return len(pairs(case)) == len(case.specs) and measured(case).share < ENOUGH


def measured(case: Case, candidate: Changed | None = None, reference: Changed | None = None) -> Effect:
    """Compare again with the answers of some pairs replaced."""
    theirs, ours = candidate or {}, reference or {}
    known, changed = _agreeing(case), []
    agrees = np.full(len(case.required), len(known) == len(case.specs))
    for position, pair in enumerate(pairs(case)):
        if position in theirs or position in ours:
            mine, yours = ours.get(position, pair.reference), theirs.get(position, pair.candidate)
            changed.append(replace(pair, reference=mine, candidate=yours))
        else:
            agrees &= known[position]
    return Effect(agrees & rows_agreeing(changed, len(agrees)), case.required.failing)


def decimals(values: Array) -> int:
    """How many decimals all numbers are written with; a float32 has no more than the most."""
    written = values.astype(np.float64)[np.isfinite(values)]
    return next((n for n in range(MOST_DECIMALS) if np.array_equal(np.round(written, n), written)), MOST_DECIMALS)


def convincing(case: Case, candidate: Changed | None = None, reference: Changed | None = None) -> Effect | None:
    """The effect of a change that explains, labels that follow from changed scores included; else None."""
    theirs, ours = dict(candidate or {}), dict(reference or {})
    followed = following_labels(case, {*theirs, *ours})
    effect = measured(case, {**followed, **theirs}, ours)
    if not effect.explains:
        return None
    if not any(distinct(pairs(case)[position].reference, limit=2) > 1 for position in (*theirs, *ours)):
        # Of one answer a constant says all there is; several numbers in it that fall into place say more.
        return effect if any(pairs(case)[position].reference[:1].size > 1 for position in (*theirs, *ours)) else None
    nothing = measured(
        case,
        {**followed, **{position: _constant(pairs(case)[position].reference) for position in theirs}},
        {position: _constant(pairs(case)[position].candidate) for position in ours},
    )
    if nothing.damage > HARMLESS:
        return effect
    return effect if 1 - effect.share <= LEFT_OF_NULL * (1 - nothing.share) and nothing.share < 1 else None


def following_labels(case: Case, positions: set[int]) -> dict[int, Array]:
    """Failing labels as they would be if the scores they are picked from were right.

    Only where the candidate's labels are what some rule makes of its own scores at these positions; then
    right scores give right labels, and the labels are no failure of their own.
    """
    found: dict[int, Array] = {}
    for label in failing_labels(case):
        if label in positions:
            continue
        pair = pairs(case)[label]
        for position in positions:
            scores = pairs(case)[position]
            if not is_number(scores):
                continue
            classes = classes_of(pair, scores)
            # A candidate may number its classes instead of naming them.
            for known in (classes, tuple(range(len(classes)))):
                made = best_rule(pair.candidate, scores.candidate, known)
                if made is not None:
                    labels = pair.candidate.astype(object)
                    labels[made] = pair.reference.astype(object)[made]
                    found[label] = labels
                    break
    return found


def best_rule(labels: Array, scores: Array, classes: Sequence[Label]) -> Array | None:
    """Which labels the rule that fits best gives; None if no rule gives nearly all."""
    best: Array | None = None
    for _, made in rules(scores, classes, labels.shape):
        same = same_labels(made, labels)
        if best is None or same.sum() > best.sum():
            best = same
    return best if best is not None and best.size and best.mean() >= FOLLOWING else None


def rules(scores: Array, classes: Sequence[Label], shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """The labels that the usual rules make of scores, each with what it is called."""
    scores = scores.astype(np.float64)
    named = np.empty(len(classes), dtype=object)
    named[:] = list(classes)
    if scores.ndim == 2 and scores.shape[1] == 1 and len(shape) == 1:
        scores = scores[:, 0]
    if scores.ndim == 2 and len(shape) == 1 and scores.shape[1] == len(named) > 1:
        safe = np.nan_to_num(scores, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        yield HIGHEST, named[safe.argmax(axis=1)]
        yield "the lowest score wins", named[safe.argmin(axis=1)]
        if len(named) == 2:
            yield "the second score above 0.5", named[(scores[:, 1] > 0.5).astype(int)]
            yield "the second score above 0", named[(scores[:, 1] > 0).astype(int)]
    elif scores.shape == shape and len(named) == 2:
        for cut in (0.5, 0.0):
            yield f"the score above {cut:g}", named[(scores > cut).astype(int)]
            yield f"the score below {cut:g}", named[(scores < cut).astype(int)]


def classes_of(label: Pair, scores: Pair | None = None) -> tuple[Label, ...]:
    """The classes in the order of the columns of scores: as declared, or counted from 0 where nothing is declared."""
    if label.spec.classes:
        return label.spec.classes
    if scores is not None and scores.spec.classes:
        return scores.spec.classes
    width = scores.reference.shape[1] if scores is not None and scores.reference.ndim == 2 else 2
    # A row of labels has one column a label, each of them yes or no.
    return tuple(range(2 if label.reference.ndim == 2 and label.reference.shape[1] > 1 else max(width, 2)))


@made_once
def views(case: Case) -> Tensors:
    """All that the reference answers to the sample, also what is compared with nothing."""
    told = case.ask(replace(case.side("reference"), outputs=None))
    return {**case.required.reference, **(told or {})}


def as_columns(scores: Array, kind: Kind | None) -> Array:
    """Scores with a column a class: one score of two classes becomes two."""
    scores = scores.astype(np.float64).reshape(len(scores), -1)
    if scores.shape[1] > 1:
        return scores
    other = 1.0 - scores if kind is Kind.PROBABILITY else -scores
    return np.concatenate([other, scores], axis=1)


def in_shape_of(scores: Array, wanted: Array) -> Iterator[Array]:
    """Scores as another output may give them: a score of two classes as two columns, or one of two."""
    if scores.dtype.kind != "f" or len(scores) != len(wanted) or scores.ndim > 2:
        return
    scores = scores.astype(np.float64)
    if scores.shape == wanted.shape:
        yield scores
    elif scores.size == len(scores) and wanted.ndim == 2 and wanted.shape[1] == 2:
        second = scores.ravel()
        for first in (-second, 1.0 - second, np.zeros_like(second)):
            yield np.stack([first, second], axis=1)
    elif scores.ndim == 2 and scores.shape[1] == 2 and wanted.size == len(wanted):
        yield scores[:, 1].reshape(wanted.shape)
        yield scores[:, 0].reshape(wanted.shape)


def other_views(case: Case, pair: Pair, ours: Array, rows: Array) -> Iterator[tuple[str, Array]]:
    """What else the reference answers, in every way that has the shape of this output."""
    for name, view in views(case).items():
        if name != pair.spec.reference:
            for values in in_shape_of(view[rows], ours):
                yield name, values


def sigmoid(values: Array) -> Array:
    from scipy.special import expit

    made: Array = expit(values)
    return made


def culprit(concerned: Sequence[Pair], detail: str, *, nodes: tuple[str, ...] = ()) -> Place:
    """Outputs by the reference's names; beside them what the candidate calls them and what is wrong with them."""
    others = [pair.spec.candidate for pair in concerned if pair.spec.candidate != pair.spec.reference]
    given = f"output {', '.join(map(repr, others))}: " if others else ""
    outputs = tuple(dict.fromkeys(pair.spec.candidate for pair in concerned))
    return Place(names(concerned), (f"{given}{detail}",), outputs=outputs, nodes=nodes)


def on_arrays(case: Case, concerned: Sequence[Pair], remedy: Remedy | str) -> Remedy | str:
    """A remedy by a line of code for an array, which cannot be run on an output of one dictionary a row."""
    graph = case.graph()
    listed = {} if graph is None else {out.name for out in graph.graph.output if out.type.HasField("sequence_type")}
    if isinstance(remedy, str) or not any(pair.spec.candidate in listed for pair in concerned):
        return remedy
    return replace(remedy, done="", suggestion=remedy.suggestion or remedy.done)


def names(concerned: Sequence[Pair]) -> str:
    return ", ".join(dict.fromkeys(pair.spec.name for pair in concerned))


def distinct(array: Array, limit: int = 50) -> int:
    """How many different rows there are, counted up to a limit."""
    seen: set[bytes | str] = set()
    for row in rows_of(array):
        seen.add(repr(row.tolist()) if row.dtype.kind == "O" else row.tobytes())
        if len(seen) >= limit:
            break
    return len(seen)


def _constant(array: Array) -> Array:
    """The same typical answer for every row."""
    if array.dtype.kind == "f":
        with np.errstate(all="ignore"):
            finite = np.where(np.isfinite(array), array, 0)
            typical: Any = np.median(finite, axis=0)
    else:
        values = [repr(row) for row in array.tolist()]
        typical = array[values.index(Counter(values).most_common(1)[0][0])]
    constant = np.empty_like(array)
    constant[:] = typical
    return constant


@dataclass(frozen=True, slots=True)
class Reading:
    """What may be wrong with an output, and the answers of one side as they would be then.

    On the candidate's side `made` puts its answers right, and `nodes` behind its output do the same; on the
    reference's side it does to the reference's what was done to the candidate's.
    """

    cause: str
    what: str
    done: str
    remedy: Remedy | str
    side: str
    made: Callable[[], Array]
    simplicity: int = 2
    nodes: Nodes | None = None


Readings = Callable[[Case, Pair, Array], Iterable[Reading]]
"""Lists the readings of a pair that holds some rows of the sample, and which rows these are."""


def best(case: Case, readings: Readings) -> Explained | None:
    """The reading that explains most; the same for all failing outputs if there is one, else for one of them."""
    positions = failing_numbers(case)
    likely = {position: _promising(case, position, readings) for position in positions}
    together = [
        {
            positions[0]: one,
            **{
                position: other
                for position in positions[1:]
                for other in likely[position]
                if (other.cause, other.what) == (one.cause, one.what)
            },
        }
        for one in likely[positions[0]]
    ]
    alone = [{position: one} for position in positions for one in likely[position]] if len(positions) > 1 else []
    for ways in (together, alone):
        found: tuple[Effect, dict[int, Reading]] | None = None
        for chosen in ways:
            effect = _tried(case, chosen)
            if effect is not None and (found is None or effect.share > found[0].share):
                found = effect, chosen
            if found is not None and found[0].share == 1:
                break
        if found is not None:
            return _explained(case, *found)
    return None


def _tried(case: Case, chosen: Mapping[int, Reading]) -> Effect | None:
    with np.errstate(all="ignore"):
        made = {
            side: {position: reading.made() for position, reading in chosen.items() if reading.side == side}
            for side in ("candidate", "reference")
        }
    return convincing(case, **made)


def _promising(case: Case, position: int, readings: Readings) -> list[Reading]:
    """The readings that put enough of a few failing rows right, for all rows."""
    pair = pairs(case)[position]
    count = max(8, min(FEW_ROWS, FEW_NUMBERS // max(pair.reference[:1].size, 1)))
    rows = Trial.few(case, count).positions
    failing = ~_agreeing(case)[position][rows]
    if not failing.any():
        rows = np.flatnonzero(~_agreeing(case)[position])[:count]
        failing = np.ones(len(rows), dtype=bool)
    small = replace(pair, reference=pair.reference[rows], candidate=pair.candidate[rows], margin=None, noise=None)
    likely = set()
    with np.errstate(all="ignore"):
        for reading in readings(case, small, rows):
            array = reading.made()
            if array.shape != small.candidate.shape or (reading.side == "reference" and not np.isfinite(array).all()):
                continue
            mine, yours = (array, small.candidate) if reading.side == "reference" else (small.reference, array)
            if (~rows_beyond(replace(small, reference=mine, candidate=yours)))[failing].mean() >= PROMISING:
                likely.add(reading.done)
        return [reading for reading in readings(case, pair, np.arange(len(pair.reference))) if reading.done in likely]


def _explained(case: Case, effect: Effect, chosen: Mapping[int, Reading]) -> Explained:
    reading = next(iter(chosen.values()))
    concerned = [pairs(case)[position] for position in chosen]
    return Explained(
        reading.cause,
        culprit(concerned, reading.what),
        f"{reading.done}, the candidate's {names(concerned)} and the reference's agree on {effect.told}",
        on_arrays(case, concerned, reading.remedy),
        covered=effect.covered,
        simplicity=reading.simplicity,
        fixes=behind(case, {pairs(case)[at].spec.candidate: one.nodes for at, one in chosen.items()}, reading.done),
    )


def behind(case: Case, nodes: Mapping[str, Nodes | None], done: str, *, dtype: Any = None) -> tuple[Fix, ...]:
    """What was done to outputs of the candidate, as nodes behind them; nothing where one of them has none."""
    proto = case.graph()
    known = {output: made for output, made in nodes.items() if made is not None}
    if proto is None or len(known) < len(nodes) or not known:
        return ()

    def make() -> ModelProto | None:
        changed: ModelProto | None = proto
        for output, made in known.items():
            changed = None if changed is None else edits.behind(changed, output, made, dtype=dtype)
        return changed

    outputs = ", ".join(repr(output) for output in known)
    return (Fix(f"nodes put behind {outputs}: {done}", make),)
