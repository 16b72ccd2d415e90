"""Answers that are the reference's times a number, or plus one: sums for means, a constant term left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.explain import answers, links, parts
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Effect

FEWEST_ROWS = 8
"""Two numbers are fitted: fewer rows would fit anything."""

SAME = 1e-3
"""How close, relatively, a fitted number has to be to a known one."""

NEARLY_ALL = 0.9
"""A relation that holds for a model holds for its rows."""


@dataclass(frozen=True, slots=True)
class Space:
    """Answers as the model adds them up, before its link: columns of both sides, and the way back."""

    name: str
    reference: Array
    candidate: Array
    back: Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Relation:
    """candidate = factor * reference + offset, with an offset a column."""

    factor: float
    offset: Array


class Scales:
    """Find factor and offset between the two sides, take them back, and compare."""

    causes = ("aggregation", "model-part-dropped", "link-function")
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return answers.complete(case) and len(answers.failing_numbers(case)) == 1 and len(case.required) >= FEWEST_ROWS

    def test(self, case: Case) -> Sequence[Explained]:
        position = answers.failing_numbers(case)[0]
        pair = answers.pairs(case)[position]
        found: list[Explained] = []
        for space in _spaces(pair):
            fitted = _fitted(space, pair)
            if fitted is None:
                continue
            for relation, cause, what, why, remedy, simplicity in _meanings(case, pair, space, fitted):
                with np.errstate(all="ignore"):
                    made = space.back((space.candidate - relation.offset) / relation.factor)
                effect = answers.convincing(case, {position: made})
                if effect is not None and effect.share >= NEARLY_ALL:
                    found.append(_explained(pair, space, relation, effect, cause, what, why, remedy, simplicity))
                    break
        return found


def _explained(
    pair: Pair,
    space: Space,
    relation: Relation,
    effect: Effect,
    cause: str,
    what: str,
    why: str,
    remedy: str,
    simplicity: int,
) -> Explained:
    shown = ", ".join(f"{value:.6g}" for value in relation.offset[:6])
    whose = f"the {space.name} of " if space.name != "value" else ""
    factor = f"{relation.factor:.6g} times the reference's" if relation.factor != 1 else "the reference's"
    offset = f" plus {shown}" if np.any(np.abs(relation.offset) > 0) else ""
    return Explained(
        cause,
        what,
        f"{whose}the candidate's {pair.spec.name} is {factor}{offset} on every row{why}; with that taken back it "
        f"agrees on {answers.told(effect)}",
        remedy,
        covered=effect.covered,
        simplicity=simplicity,
    )


def _spaces(pair: Pair) -> Iterator[Space]:
    ours, theirs = pair.reference.astype(np.float64), pair.candidate.astype(np.float64)
    shape = theirs.shape
    if ours.ndim > 2 or not ours.size:
        return
    within = bool(np.nanmin(ours) >= 0 and np.nanmax(ours) <= 1)
    probable = within and pair.spec.kind in (Kind.PROBABILITY, Kind.VALUE)
    two = ours.ndim == 2 and ours.shape[1] == 2 and probable
    one = ours.size == len(ours)

    def both(array: Array) -> Array:
        positive = array.reshape(-1)
        return np.stack([1.0 - positive, positive], axis=1) if two else positive.reshape(shape)

    table, other = ours.reshape(len(ours), -1), theirs.reshape(len(theirs), -1)
    if two:
        yield Space("value", table[:, 1:], other[:, 1:], both)
    yield Space("value", table, other, lambda array: array.reshape(shape))
    with np.errstate(all="ignore"):
        bounded = bool(np.nanmin(theirs) >= 0 and np.nanmax(theirs) <= 1)
        if probable and bounded and (one or two):
            yield Space(
                "log-odds",
                links.logit(table[:, -1:]),
                links.logit(other[:, -1:]),
                lambda array: both(links.sigmoid(array)),
            )
        elif probable and bounded and np.allclose(table.sum(axis=1), 1, atol=1e-3):
            logs, others = np.log(table), np.log(other)
            yield Space(
                "log-probabilities",
                logs - logs.mean(axis=1, keepdims=True),
                others - others.mean(axis=1, keepdims=True),
                lambda array: links.softmax(array).reshape(shape),
            )
        elif np.nanmin(ours) > 0 and np.nanmin(theirs) > 0:
            yield Space("logarithm", np.log(table), np.log(other), lambda array: np.exp(array).reshape(shape))


def _fitted(space: Space, pair: Pair) -> Relation | None:
    """The factor and offsets that most rows suggest; rows at the ends of a link say little, and are left out."""
    ours, theirs = space.reference, space.candidate
    usable: Array = np.isfinite(np.concatenate([ours, theirs], axis=1)).all(axis=1)
    if space.name.startswith("log-"):
        usable = usable & (np.abs(np.concatenate([ours, theirs], axis=1)) < 8).all(axis=1)
    ours, theirs = ours[usable], theirs[usable]
    if len(ours) < FEWEST_ROWS:
        return None
    half = len(ours) // 2
    slopes: list[Array] = []
    for column in range(ours.shape[1]):
        order = np.argsort(ours[:, column], kind="stable")
        low, high = order[:half], order[-half:]
        run = ours[high, column] - ours[low, column]
        wide = run > 1e-9 * max(1.0, float(np.abs(ours[:, column]).max()))
        slopes.append((theirs[high, column] - theirs[low, column])[wide] / run[wide])
    together = np.concatenate(slopes)
    if len(together) < FEWEST_ROWS // 2:
        return None
    factor = float(np.median(together))
    if not np.isfinite(factor) or factor == 0:
        return None
    factor = 1.0 if abs(factor - 1) < SAME else factor
    return _with_offset(space, factor, usable)


def _with_offset(space: Space, factor: float, usable: Array | None = None) -> Relation:
    with np.errstate(all="ignore"):
        rest = space.candidate - factor * space.reference
    rest = rest if usable is None else rest[usable]
    finite = np.where(np.isfinite(rest), rest, np.nan)
    offset = np.nanmedian(finite, axis=0)
    scale = max(float(np.nanmedian(np.abs(space.reference))), 1e-12)
    return Relation(factor, np.where(np.abs(offset) < 1e-6 * scale, 0.0, offset))


def _meanings(
    case: Case, pair: Pair, space: Space, relation: Relation
) -> Iterator[tuple[Relation, str, str, str, str, int]]:
    """What a relation can come from, the surest first."""
    if relation.factor == 1.0:
        yield from _constant_terms(case, pair, space, relation)
        return
    export = "Export the model with its own way of combining its members"
    for count in sorted(parts.member_counts(case)):
        for factor, what in ((float(count), "summed instead of averaged"), (1.0 / count, "averaged instead of summed")):
            if abs(relation.factor / factor - 1) < SAME:
                exact = _with_offset(space, factor)
                yield (
                    exact,
                    "aggregation",
                    answers.culprit([pair], f"{count} members {what}"),
                    f", {_times(count, factor)}",
                    export,
                    2,
                )
    for rate in parts.learning_rates(case):
        for factor, what in ((rate, "applied twice"), (1.0 / rate, "left out")):
            if abs(relation.factor / factor - 1) < SAME:
                exact = _with_offset(space, factor)
                yield exact, "aggregation", answers.culprit([pair], f"learning rate {rate:g} {what}"), "", export, 2
    if space.name == "log-odds":
        yield from _sigmoid_factors(case, pair, space, relation)


def _sigmoid_factors(
    case: Case, pair: Pair, space: Space, relation: Relation
) -> Iterator[tuple[Relation, str, str, str, str, int]]:
    """A score that is multiplied before its sigmoid, on one side only."""
    remedy = "Export the model's own link from scores to probabilities"
    for known in parts.link_factors(case):
        for factor, what in ((1.0 / known, "left out"), (known, "applied twice")):
            if abs(relation.factor / factor - 1) < SAME:
                culprit = answers.culprit([pair], f"factor {known:g} of the sigmoid {what}")
                yield _with_offset(space, factor), "link-function", culprit, "", remedy, 2
    if not relation.offset.any() and relation.factor > 0:
        culprit = answers.culprit([pair], f"scores times {relation.factor:.4g} before the sigmoid")
        yield relation, "link-function", culprit, "", remedy, 4


def _times(count: int, factor: float) -> str:
    return (
        f"and the model has {count} members"
        if factor > 1
        else f"one part in {count}, and the model has {count} members"
    )


def _constant_terms(
    case: Case, pair: Pair, space: Space, relation: Relation
) -> Iterator[tuple[Relation, str, str, str, str, int]]:
    probabilities = pair.spec.kind is Kind.PROBABILITY and space.name == "value"
    if not relation.offset.any() or probabilities:
        return
    for name, term in parts.constant_terms(case):
        wanted = term - term.mean() if space.name == "log-probabilities" else term
        if len(wanted) != len(relation.offset) or not np.abs(wanted).max() > 0:
            continue
        room = SAME * float(np.abs(wanted).max()) + pair.tolerance.absolute
        for sign, what in ((-1.0, "left out"), (1.0, "added twice")):
            if np.abs(relation.offset - sign * wanted).max() <= room:
                culprit = f"{name} ({what}, {pair.spec.name})"
                why = f", and the reference's {name} is {', '.join(f'{value:.6g}' for value in term[:6])}"
                remedy = f"Export the model with its {name}, once"
                yield Relation(1.0, sign * wanted), "model-part-dropped", culprit, why, remedy, 2
                return
    if parts.has_base_score(case):
        culprit, remedy = f"base score ({pair.spec.name})", "Export the model with its base score"
        yield relation, "model-part-dropped", culprit, "", remedy, 4
    elif case.native("reference") is None:
        yield (
            relation,
            "model-part-dropped",
            f"constant term ({pair.spec.name})",
            "",
            "Export the model with its intercept",
            5,
        )


EXTENSION = Scales()
