"""A link between what a model computes and what it answers is missing, doubled, or another one.

Each link is named so that a sentence can say which one it is. Those of a row (softmax, a norm) work along the last
axis, the others element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.explain import answers, features
from likewise.explain.answers import Reading, best, sigmoid
from likewise.explain.case import Case, Explained, Remedy, probe
from likewise.explain.experiment import HEALED, Change, Claim, shown
from likewise.models.onnx import edits, rewrites
from likewise.models.onnx.edits import Nodes, Writer

TRANSFORMS = (b"NONE", b"LOGISTIC", b"SOFTMAX", b"SOFTMAX_ZERO", b"PROBIT")
"""What the classical operators of ONNX may do to their scores."""

OF_SCORES = ("sigmoid", "softmax", "sigmoid, normalised", "exp", "tanh", "softplus")
"""Links that may stand in for a model's own."""

EXCHANGED = ("exp", "sigmoid", "exp(x) - 1", "power of 10", "power of 2", "tanh", "softplus")
"""Links that are taken for one another; of others, which keep no sign, one would undo what another did."""

SAME = 1e-4
"""How far scores may be apart from one offset, in units of their size."""

MOST_NODES = 2
"""Nodes with a link of their own beyond which none of them is the last."""

Function = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Link:
    """A function, its code for a user, and what undoes it, None where nothing does. `rows`: needs several columns."""

    name: str
    code: str
    apply: Function
    inverse: Function | None = None
    rows: bool = False


def logit(values: Array) -> Array:
    from scipy.special import logit as logit_of

    made: Array = logit_of(values)
    return made


def softmax(values: Array) -> Array:
    shifted = values - values.max(axis=-1, keepdims=True)
    powers = np.exp(shifted)
    made: Array = powers / powers.sum(axis=-1, keepdims=True)
    return made


def log_softmax(values: Array) -> Array:
    return np.asarray(np.log(softmax(values)))


def probabilities_before_softmax(values: Array) -> Array:
    """What the softmax was taken of, if that was probabilities: the only logs that add up to one."""
    logs = np.log(values)
    made: Array = logs + (1.0 - logs.sum(axis=-1, keepdims=True)) / values.shape[-1]
    return made


def normalized(values: Array) -> Array:
    """Each row divided by its sum."""
    made: Array = values / values.sum(axis=-1, keepdims=True)
    return made


LINKS = (
    # A softmax would turn log-probabilities into probabilities as well: the exact one comes first.
    Link("exp", "np.exp(output)", np.exp, np.log),
    Link("sigmoid", "scipy.special.expit(output)", sigmoid, logit),
    Link("softmax", "scipy.special.softmax(output, axis=-1)", softmax, probabilities_before_softmax, rows=True),
    Link("log-softmax", "scipy.special.log_softmax(output, axis=-1)", log_softmax, None, rows=True),
    Link("exp(x) - 1", "np.expm1(output)", np.expm1, np.log1p),
    Link("square", "np.square(output)", np.square, np.sqrt),
    Link(
        "signed square",
        "np.sign(output) * output**2",
        lambda values: np.asarray(np.sign(values) * values**2),
        lambda values: np.asarray(np.sign(values) * np.sqrt(np.abs(values))),
    ),
    Link("reciprocal", "1 / output", np.reciprocal, np.reciprocal),
    Link("power of 10", "10.0**output", lambda values: np.asarray(np.power(10.0, values)), np.log10),
    Link("power of 2", "np.exp2(output)", np.exp2, np.log2),
    Link("tanh", "np.tanh(output)", np.tanh, np.arctanh),
    Link("softplus", "np.logaddexp(0, output)", lambda values: np.asarray(np.logaddexp(0.0, values)), None),
    Link(
        "sigmoid, normalised",
        "(p := scipy.special.expit(output)) / p.sum(axis=-1, keepdims=True)",
        lambda values: normalized(sigmoid(values)),
        None,
        rows=True,
    ),
)
"""Links of the models we know: of classifiers, of counts and positive targets, of ranks, of transformed targets."""


def of_one_column(link: Link, values: Array) -> Iterator[tuple[str, Callable[[], Array], Nodes | None]]:
    """Two classes of which only one column was made to be read: the other follows from it."""
    if values.ndim != 2 or values.shape[1] != 2 or link.rows:
        return

    def of_column(column: int) -> Array:
        made = link.apply(values[:, column])
        return np.stack([1.0 - made, made] if column else [made, 1.0 - made], axis=1)

    written = rewrites.LINKS.get(link.name)
    nodes = [None if written is None else rewrites.of_column(written, column) for column in (0, 1)]
    yield f"{link.name} of the second column", lambda: of_column(1), nodes[1]
    yield f"{link.name} of the first column", lambda: of_column(0), nodes[0]


@probe("link-function", when=lambda case: answers.complete(case) and bool(answers.failing_numbers(case)))
def links(case: Case) -> Sequence[Explained]:
    """Apply or undo a link on the candidate's answers, or do to the reference's what was done to them, and compare."""
    found = best(case, _links)
    # One link can make up for another fault by chance: it is sure where the answers show a link as well.
    in_graph = next(shown(case, _in_graph(case, sure=found is not None)), None)
    return [entry for entry in (in_graph, found) if entry is not None]


def _links(case: Case, pair: Pair, rows: Array) -> Iterator[Reading]:
    """Every link worth a trial, the likely ones first."""
    ours, theirs = pair.reference.astype(np.float64), pair.candidate.astype(np.float64)
    yield from _put_right(pair, theirs)
    yield from _moved_as_well(ours, theirs)
    yield from _exchanged(theirs)
    yield from _made_alike(ours)
    yield from _target_transform(case, theirs)
    yield from _other_link(case, pair, ours, rows)
    if theirs.ndim == 2 and theirs.shape[1] > 1:
        yield Reading(
            "link-function",
            "rows not normalised",
            "with each row divided by its sum",
            Remedy(done="Normalise the rows: output / output.sum(axis=1, keepdims=True)"),
            "candidate",
            partial(normalized, theirs),
            nodes=rewrites.LINKS["normalised"],
            # A sum instead of a mean, or percent, is what it looks like where all rows have the same sum.
            simplicity=4,
        )


def _of_shape(values: Array) -> Iterator[Link]:
    """The links that such answers can have."""
    several = values.ndim >= 2 and values.shape[-1] > 1
    yield from (link for link in LINKS if several or not link.rows)


def _put_right(pair: Pair, theirs: Array) -> Iterator[Reading]:
    """A link that the candidate lacks, or has once too often."""
    reading = partial(Reading, "link-function", side="candidate")
    for link in _of_shape(theirs):
        missing, remedy = f"{link.name} missing", f"Export with the {link.name} at the end"
        done = f"Apply the {link.name} to the candidate's output: {link.code}"
        yield reading(
            missing,
            f"with the {link.name} applied to the candidate's answers",
            Remedy(remedy, done=done),
            made=partial(link.apply, theirs),
            nodes=rewrites.LINKS.get(link.name),
        )
        for which, made, nodes in of_one_column(link, theirs):
            yield reading(missing, f"with the {which} taken of the candidate's answers", remedy, made=made, nodes=nodes)
        if link.inverse is not None:
            twice = pair.spec.kind is Kind.PROBABILITY and link.name in ("sigmoid", "softmax")
            what = f"{link.name} applied {'twice' if twice else 'although the reference has none'}"
            yield reading(
                "square root missing" if link.name == "square" else what,
                f"with the {link.name} taken back from the candidate's answers",
                f"Take the {'second ' if twice else ''}{link.name} out of the export",
                made=partial(link.inverse, theirs),
                nodes=rewrites.INVERSES.get(link.name),
            )


def _moved_as_well(ours: Array, theirs: Array) -> Iterator[Reading]:
    """A link left out together with what it does to the base score: scores that all are off by the same amount."""
    for link in LINKS:
        if link.rows or link.inverse is None:
            continue
        with np.errstate(all="ignore"):
            apart = link.inverse(ours) - theirs
        offset = float(np.median(apart)) if np.isfinite(apart).all() and apart.size > 1 else 0.0
        if abs(offset) > SAME and np.ptp(apart) <= SAME * max(1.0, float(np.abs(theirs).max())):
            yield Reading(
                "link-function",
                f"{link.name} missing, also of the base score",
                f"with {offset:+.6g} and then the {link.name} applied to the candidate's answers",
                f"Export with the {link.name} at the end and the base score before it, or put both right in the output",
                "candidate",
                partial(link.apply, theirs + offset),
                simplicity=3,
                nodes=partial(_shifted, offset=offset, link=rewrites.LINKS[link.name]),
            )


def _shifted(write: Writer, x: str, *, offset: float, link: Nodes) -> str:
    return link(write, write("Add", x, offset))


def _exchanged(theirs: Array) -> Iterator[Reading]:
    """Another link of the same scores: taken back, and the right one applied."""
    for given, wanted in permutations((link for link in LINKS if link.name in EXCHANGED), 2):
        if given.inverse is not None:
            yield Reading(
                "link-function",
                f"{given.name} instead of {wanted.name}",
                f"with the {given.name} taken back from the candidate's answers and the {wanted.name} applied",
                f"Export with the {wanted.name} at the end, not with the {given.name}",
                "candidate",
                partial(_composed, given.inverse, wanted.apply, theirs),
                simplicity=3,
                nodes=partial(_composed_nodes, rewrites.INVERSES[given.name], rewrites.LINKS[wanted.name]),
            )


def _composed(inner: Function, outer: Function, values: Array) -> Array:
    return outer(inner(values))


def _composed_nodes(inner: Nodes, outer: Nodes, write: Writer, x: str) -> str:
    return outer(write, inner(write, x))


def _made_alike(ours: Array) -> Iterator[Reading]:
    """A link that cannot be undone, or not exactly: the reference's answers are put through it instead."""
    for link in _of_shape(ours):
        what = f"{link.name} applied although the reference has none"
        remedy = f"Take the {link.name} out of the export"
        done = f"with the {link.name} applied to the reference's answers too"
        yield Reading("link-function", what, done, remedy, "reference", partial(link.apply, ours))
        for which, made, _ in of_one_column(link, ours):
            done = f"with the {which} taken of the reference's answers too"
            yield Reading("link-function", what, done, remedy, "reference", made)


def _target_transform(case: Case, theirs: Array) -> Iterator[Reading]:
    """A regressor that learnt a transformed target: its transformation may not have been taken back."""
    transformer: Any = getattr(features.innermost(case), "transformer_", None)
    if case.framework("reference") != "sklearn" or not hasattr(transformer, "inverse_transform"):
        return
    try:
        table = np.asarray(transformer.inverse_transform(theirs.reshape(len(theirs), -1)), dtype=np.float64)
    except Exception:  # noqa: BLE001 - a user's own function may refuse anything
        return
    name = type(transformer).__name__
    yield Reading(
        "link-function",
        f"inverse of {name} missing",
        f"with the target's {name} taken back",
        "Export the TransformedTargetRegressor as a whole, or apply transformer_.inverse_transform",
        "candidate",
        lambda: table.reshape(theirs.shape),
    )


def _other_link(case: Case, pair: Pair, ours: Array, rows: Array) -> Iterator[Reading]:
    """Another link on the same scores."""
    kinds = {spec.name: spec.kind for spec in case.runners["reference"].signature.outputs or ()}
    for name, values in answers.other_views(case, pair, ours, rows):
        if kinds.get(name) is not Kind.SCORE:
            continue
        for link in LINKS:
            if link.name in OF_SCORES:
                yield Reading(
                    "link-function",
                    f"{link.name} of the scores instead of the model's own link",
                    f"with the {link.name} of the reference's {name} in the place of its own {pair.spec.name}",
                    "Export the model's own link from scores to probabilities",
                    "reference",
                    partial(link.apply, values),
                )


def _in_graph(case: Case, *, sure: bool) -> Iterator[Claim]:
    """An attribute of the candidate's graph that says which link to apply."""
    proto = case.editable()
    if proto is None:
        return
    nodes = [n.name for n in proto.graph.node if edits.attribute(n, "post_transform") is not None]
    concerned = [answers.pairs(case)[position] for position in answers.failing_numbers(case)]
    for name in nodes if len(nodes) <= MOST_NODES else ():
        for transform in TRANSFORMS:
            copy = edits.copied(proto)
            node = next(node for node in copy.graph.node if node.name == name)
            was = edits.attribute(node, "post_transform")
            if was == transform:
                continue
            edits.set_attribute(node, "post_transform", transform)
            what = f"post_transform {was.decode()} instead of {transform.decode()}, {node.op_type} '{name}'"
            yield Claim(
                "link-function",
                answers.culprit(concerned, what, nodes=(name,)),
                f"with post_transform={transform.decode()} in node '{name}' the candidate agrees on {HEALED}",
                Remedy(done=edits.setting(node, "post_transform", transform.decode())),
                (Change(target=copy),),
                simplicity=1 if sure else 3,
            )


EXTENSION = links
