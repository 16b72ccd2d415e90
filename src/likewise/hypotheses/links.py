"""A link between scores and answers that is missing, doubled or another one; answers of another kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from likewise.cases import Case, Effect, Explained
from likewise.contracts.data import Array
from likewise.contracts.measuring import Pair
from likewise.contracts.models import Kind
from likewise.structure import answers, graph_edits, links

TRANSFORMS = (b"NONE", b"LOGISTIC", b"SOFTMAX", b"SOFTMAX_ZERO", b"PROBIT")
"""What the classical operators of ONNX may do to their scores."""

SEVERAL = 4
"""Answers that are the same smallest or largest value, before it is taken for a limit."""

MOST_NODES = 2
"""Nodes with a link of their own beyond which none of them is the last."""


@dataclass(frozen=True, slots=True)
class Change:
    """The answers of one pair as they would be: the candidate's put right, or the reference's made wrong alike."""

    cause: str
    what: str
    done: str
    remedy: str
    candidate: Array | None = None
    reference: Array | None = None
    simplicity: int = 2


class Links:
    """Apply or undo a link on the candidate's answers, or do to the reference's what was done to them, and compare."""

    causes = ("link-function", "output-kind", "model-part-dropped")
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return answers.complete(case) and bool(answers.failing_numbers(case))

    def test(self, case: Case) -> Sequence[Explained]:
        found = list(_in_graph(case))
        positions = answers.failing_numbers(case)
        # One cause for all: what puts the first failing output right has to be what puts the others right.
        best: tuple[Effect, dict[int, Change]] | None = None
        for first in _changes(case, answers.pairs(case)[positions[0]]):
            chosen = {positions[0]: first}
            for other in positions[1:]:
                same = [
                    c
                    for c in _changes(case, answers.pairs(case)[other])
                    if (c.cause, c.what) == (first.cause, first.what)
                ]
                chosen |= {other: same[0]} if same else {}
            effect = answers.convincing(
                case,
                {position: change.candidate for position, change in chosen.items() if change.candidate is not None},
                {position: change.reference for position, change in chosen.items() if change.reference is not None},
            )
            if effect is not None and (best is None or effect.share > best[0].share):
                best = effect, chosen
                if effect.share == 1:
                    break
        if best is None and len(positions) > 1:
            best = _each_alone(case, positions)
        if best is not None:
            found.append(_explained(case, *best))
        return found


def _each_alone(case: Case, positions: Sequence[int]) -> tuple[Effect, dict[int, Change]] | None:
    """One output of several that has a link of its own wrong."""
    for position in positions:
        for change in _changes(case, answers.pairs(case)[position]):
            theirs = {} if change.candidate is None else {position: change.candidate}
            ours = {} if change.reference is None else {position: change.reference}
            effect = answers.convincing(case, theirs, ours)
            if effect is not None:
                return effect, {position: change}
    return None


def _explained(case: Case, effect: Effect, chosen: dict[int, Change]) -> Explained:
    change = next(iter(chosen.values()))
    concerned = [answers.pairs(case)[position] for position in chosen]
    outputs = answers.names(concerned)
    return Explained(
        change.cause,
        answers.culprit(concerned, change.what),
        f"{change.done}, the candidate's {outputs} and the reference's agree on {answers.told(effect)}",
        change.remedy,
        covered=effect.covered,
        simplicity=change.simplicity,
    )


def _changes(case: Case, pair: Pair) -> Iterator[Change]:
    """Every change worth a trial, the likely ones first."""
    ours, theirs = pair.reference.astype(np.float64), pair.candidate.astype(np.float64)
    with np.errstate(all="ignore"):
        yield from _put_right(pair, theirs)
        yield from _made_alike(ours)
        yield from _kinds(pair, ours, theirs)
        yield from _target_transform(case, pair, theirs)
        yield from _other_link(case, pair, ours)


def _put_right(pair: Pair, theirs: Array) -> Iterator[Change]:
    """A link that the candidate lacks, or has once too often."""
    for link in links.LINKS:
        if link.rows and (theirs.ndim < 2 or theirs.shape[-1] < 2):
            continue
        missing = f"{link.name} missing"
        done = f"with the {link.name} applied to the candidate's answers"
        remedy = f"Export with the {link.name} at the end, or apply it to the candidate's output"
        yield Change("link-function", missing, done, remedy, candidate=link.apply(theirs))
        for which, made in links.second_alone(link, theirs):
            done = f"with the {which} taken of the candidate's answers"
            yield Change("link-function", missing, done, remedy, candidate=made)
        if link.inverse is not None:
            twice = pair.spec.kind is Kind.PROBABILITY and link.name in ("sigmoid", "softmax")
            what = f"{link.name} applied {'twice' if twice else 'although the reference has none'}"
            what = "square root missing" if link.name == "square" else what
            done = f"with the {link.name} taken back from the candidate's answers"
            remedy = f"Take the {'second ' if twice else ''}{link.name} out of the export"
            yield Change("link-function", what, done, remedy, candidate=link.inverse(theirs))


def _made_alike(ours: Array) -> Iterator[Change]:
    """A link that cannot be undone, or not exactly: the reference's answers are put through it instead."""
    for link in links.LINKS:
        if link.rows and (ours.ndim < 2 or ours.shape[-1] < 2):
            continue
        made = link.apply(ours)
        if np.isfinite(made).all():
            what = f"{link.name} applied although the reference has none"
            done = f"with the {link.name} applied to the reference's answers too"
            yield Change("link-function", what, done, f"Take the {link.name} out of the export", reference=made)
        for which, alone in links.second_alone(link, ours):
            if np.isfinite(alone).all():
                done = f"with the {which} taken of the reference's answers too"
                what = f"{link.name} applied although the reference has none"
                yield Change("link-function", what, done, f"Take the {link.name} out of the export", reference=alone)


def _kinds(pair: Pair, ours: Array, theirs: Array) -> Iterator[Change]:
    """Numbers that mean something else: the other class, another sign, another unit, only the winner."""
    name = pair.spec.candidate

    def other(what: str, done: str, remedy: str, made: Array) -> Change:
        return Change("output-kind", what, done, remedy, candidate=made, simplicity=3)

    one_column = theirs.size == len(theirs)
    if one_column and pair.spec.kind in (Kind.PROBABILITY, Kind.VALUE, Kind.SCORE):
        yield other(
            "probability of the other class",
            "read as the probability of the other class",
            f"Take the column of the positive class, or 1 - {name}",
            1.0 - theirs,
        )
    yield other("negated", "with the sign turned", f"Negate it: -{name}", -theirs)
    yield other("in percent", "divided by 100", f"Divide by 100: {name} / 100", theirs / 100.0)
    yield other("a fraction, not percent", "multiplied by 100", f"Multiply by 100: {name} * 100", theirs * 100.0)
    if theirs.ndim == 2 and theirs.shape[1] > 1:
        winner = (ours == ours.max(axis=1, keepdims=True)).astype(np.float64)
        yield Change(
            "output-kind",
            "only the winning class, as 0 and 1",
            "with the reference's probabilities reduced to their winner",
            "Export the probabilities, not the decision",
            reference=winner,
        )
        yield Change(
            "link-function",
            "rows not normalised",
            "with each row divided by its sum",
            f"Normalise the rows: {name} / {name}.sum(axis=1, keepdims=True)",
            candidate=links.normalized(theirs),
            simplicity=3,
        )
        yield Change(
            "model-part-dropped",
            "scaling to unit length missing",
            "with each row scaled to unit length",
            "Export the model with its last normalisation",
            candidate=links.unit_length(theirs),
        )
        yield Change(
            "link-function",
            "scaled to unit length although the reference is not",
            "with the reference's rows scaled to unit length too",
            "Take the normalisation out of the export",
            reference=links.unit_length(ours),
        )
    yield from _limits(name, ours, theirs)
    if pair.candidate.size:
        yield Change(
            "output-kind",
            "rounded to whole numbers",
            "with the reference's answers rounded too",
            "Export the output as a float",
            reference=np.rint(ours),
        )
        yield Change(
            "output-kind",
            "cut to whole numbers",
            "with the fractions of the reference's answers cut off too",
            "Export the output as a float",
            reference=np.trunc(ours),
        )


def _limits(name: str, ours: Array, theirs: Array) -> Iterator[Change]:
    """Answers that stop at a smallest or largest value on one side only."""
    low, high = _ends(ours)
    if (low, high) != (-np.inf, np.inf):
        yield Change(
            "model-part-dropped",
            f"limits {low:g} to {high:g} missing",
            f"kept between {low:g} and {high:g}",
            f"Export the model with its last clip, or apply it: {name}.clip({low:g}, {high:g})",
            candidate=theirs.clip(low, high),
        )
    low, high = _ends(theirs)
    if (low, high) != (-np.inf, np.inf):
        yield Change(
            "link-function",
            f"kept between {low:g} and {high:g} although the reference is not",
            f"with the reference's answers kept between {low:g} and {high:g} too",
            "Take the last clip out of the export",
            reference=ours.clip(low, high),
        )


def _ends(values: Array) -> tuple[float, float]:
    """The smallest and the largest value, where several answers stop there; else none."""
    if not values.size or not np.isfinite(values).all():
        return -np.inf, np.inf
    low, high = float(values.min()), float(values.max())
    if low == high:
        return -np.inf, np.inf
    stops = [int((values == end).sum()) >= SEVERAL for end in (low, high)]
    return low if stops[0] else -np.inf, high if stops[1] else np.inf


def _target_transform(case: Case, pair: Pair, theirs: Array) -> Iterator[Change]:
    """A regressor that learnt a transformed target: its transformation may not have been taken back."""
    model = case.native("reference")
    if model is None or case.framework("reference") != "sklearn":
        return
    from likewise.estimators.views import innermost

    last = innermost(model)
    transformer = getattr(last, "transformer_", None)
    if transformer is None or not hasattr(transformer, "inverse_transform"):
        return
    table = theirs.reshape(len(theirs), -1)
    try:
        made = np.asarray(transformer.inverse_transform(table), dtype=np.float64).reshape(theirs.shape)
    except Exception:  # noqa: BLE001 - a user's own function may refuse anything
        return
    yield Change(
        "link-function",
        f"inverse of {type(transformer).__name__} missing",
        f"with the target's {type(transformer).__name__} taken back",
        "Export the TransformedTargetRegressor as a whole, or apply transformer_.inverse_transform",
        candidate=made,
    )


def _other_link(case: Case, pair: Pair, ours: Array) -> Iterator[Change]:
    """Another link on the same scores, or the scores themselves."""
    kinds = {spec.name: spec.kind for spec in case.runners["reference"].signature.outputs or ()}
    for name, scores in answers.views(case).items():
        if name == pair.spec.reference or scores.dtype.kind != "f" or len(scores) != len(ours) or scores.ndim > 2:
            continue
        shapes = [scores] if scores.shape == ours.shape else []
        if scores.size == len(scores) and ours.ndim == 2 and ours.shape[1] == 2:
            shapes = [
                np.stack([sign, scores.ravel()], axis=1)
                for sign in (-scores.ravel(), 1 - scores.ravel(), 0 * scores.ravel())
            ]
        if scores.ndim == 2 and scores.shape[1] == 2 and ours.size == len(ours):
            shapes = [scores[:, 1].reshape(ours.shape), scores[:, 0].reshape(ours.shape)]
        kind = kinds.get(name)
        for values in shapes:
            values = values.astype(np.float64)
            yield Change(
                "output-kind",
                f"{name} of the model",
                f"compared with the reference's {name}",
                f"Export the {pair.spec.kind}, or compare like with like: --pair {pair.spec.candidate}={name}",
                reference=values,
                simplicity=3,
            )
            if kind is not Kind.SCORE:
                continue
            for link in links.LINKS:
                if link.name in ("sigmoid", "softmax", "sigmoid, normalised", "exp", "tanh", "softplus"):
                    yield Change(
                        "link-function",
                        f"{link.name} of the scores instead of the model's own link",
                        f"with the {link.name} of the reference's {name} in the place of its own {pair.spec.name}",
                        "Export the model's own link from scores to probabilities",
                        reference=link.apply(values),
                    )


def _in_graph(case: Case) -> Iterator[Explained]:
    """An attribute of the candidate's graph that says which link to apply."""
    proto = graph_edits.editable(case.graph())
    if proto is None:
        return
    nodes = [n.name for n in proto.graph.node if graph_edits.attribute(n, "post_transform") is not None]
    for name in nodes if len(nodes) <= MOST_NODES else ():
        for transform in TRANSFORMS:
            copy = graph_edits.copied(proto)
            node = next(node for node in copy.graph.node if node.name == name)
            was = graph_edits.attribute(node, "post_transform")
            if was == transform:
                continue
            graph_edits.set_attribute(node, "post_transform", transform)
            effect = answers.tried(case, copy)
            if effect is None:
                continue
            concerned = [answers.pairs(case)[position] for position in answers.failing_numbers(case)]
            what = f"post_transform {was.decode()} instead of {transform.decode()}, {node.op_type} '{name}'"
            yield Explained(
                "link-function",
                answers.culprit(concerned, what),
                f"with post_transform={transform.decode()} in node '{name}' the candidate agrees on "
                f"{answers.told(effect)}",
                f"Export with post_transform={transform.decode()}",
                covered=effect.covered,
                simplicity=1,
            )
            return


EXTENSION = Links()
