"""A link between scores and answers that is missing, doubled or another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.explain import answers, links, parts
from likewise.explain.answers import Change, best
from likewise.explain.case import Case, Explained
from likewise.models.onnx import edits

TRANSFORMS = (b"NONE", b"LOGISTIC", b"SOFTMAX", b"SOFTMAX_ZERO", b"PROBIT")
"""What the classical operators of ONNX may do to their scores."""

OF_SCORES = ("sigmoid", "softmax", "sigmoid, normalised", "exp", "tanh", "softplus")
"""Links that may stand in for a model's own."""

SAME = 1e-4
"""How far scores may be apart from one offset, in units of their size."""

MOST_NODES = 2
"""Nodes with a link of their own beyond which none of them is the last."""


class Links:
    """Apply or undo a link on the candidate's answers, or do to the reference's what was done to them, and compare."""

    causes = ("link-function",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return answers.complete(case) and bool(answers.failing_numbers(case))

    def test(self, case: Case) -> Sequence[Explained]:
        found = best(case, _changes)
        # One link can make up for another fault by chance: it is sure where the answers show a link as well.
        return [*_in_graph(case, sure=found is not None), *([] if found is None else [found])]


def _changes(case: Case, pair: Pair, rows: Array) -> Iterator[Change]:
    """Every change worth a trial, the likely ones first."""
    ours, theirs = pair.reference.astype(np.float64), pair.candidate.astype(np.float64)
    yield from _put_right(pair, theirs)
    yield from _moved_as_well(ours, theirs)
    yield from _made_alike(ours)
    yield from _target_transform(case, theirs)
    yield from _other_link(case, pair, ours, rows)
    if theirs.ndim == 2 and theirs.shape[1] > 1:
        name = pair.spec.candidate
        yield Change(
            "link-function",
            "rows not normalised",
            "with each row divided by its sum",
            f"Normalise the rows: {name} / {name}.sum(axis=1, keepdims=True)",
            "candidate",
            partial(links.normalized, theirs),
            # A sum instead of a mean, or percent, is what it looks like where all rows have the same sum.
            simplicity=4,
        )


def _put_right(pair: Pair, theirs: Array) -> Iterator[Change]:
    """A link that the candidate lacks, or has once too often."""
    for link in links.LINKS:
        if link.rows and (theirs.ndim < 2 or theirs.shape[-1] < 2):
            continue
        missing = f"{link.name} missing"
        remedy = f"Export with the {link.name} at the end, or apply it to the candidate's output"
        done = f"with the {link.name} applied to the candidate's answers"
        yield Change("link-function", missing, done, remedy, "candidate", partial(link.apply, theirs))
        for which, made in links.of_one_column(link, theirs):
            done = f"with the {which} taken of the candidate's answers"
            yield Change("link-function", missing, done, remedy, "candidate", made)
        if link.inverse is not None:
            twice = pair.spec.kind is Kind.PROBABILITY and link.name in ("sigmoid", "softmax")
            what = f"{link.name} applied {'twice' if twice else 'although the reference has none'}"
            what = "square root missing" if link.name == "square" else what
            done = f"with the {link.name} taken back from the candidate's answers"
            remedy = f"Take the {'second ' if twice else ''}{link.name} out of the export"
            yield Change("link-function", what, done, remedy, "candidate", partial(link.inverse, theirs))


def _moved_as_well(ours: Array, theirs: Array) -> Iterator[Change]:
    """A link left out together with what it does to the base score: scores that all are off by the same amount."""
    for link in links.LINKS:
        if link.rows or link.inverse is None:
            continue
        with np.errstate(all="ignore"):
            apart = link.inverse(ours) - theirs
        offset = float(np.median(apart)) if np.isfinite(apart).all() and apart.size > 1 else 0.0
        if not abs(offset) > SAME or np.ptp(apart) > SAME * max(1.0, float(np.abs(theirs).max())):
            continue
        yield Change(
            "link-function",
            f"{link.name} missing, also of the base score",
            f"with {offset:+.6g} and then the {link.name} applied to the candidate's answers",
            f"Export with the {link.name} at the end and the base score before it, or put both right in the output",
            "candidate",
            partial(link.apply, theirs + offset),
            simplicity=3,
        )


def _made_alike(ours: Array) -> Iterator[Change]:
    """A link that cannot be undone, or not exactly: the reference's answers are put through it instead."""
    for link in links.LINKS:
        if link.rows and (ours.ndim < 2 or ours.shape[-1] < 2):
            continue
        what = f"{link.name} applied although the reference has none"
        remedy = f"Take the {link.name} out of the export"
        done = f"with the {link.name} applied to the reference's answers too"
        yield Change("link-function", what, done, remedy, "reference", partial(link.apply, ours))
        for which, made in links.of_one_column(link, ours):
            done = f"with the {which} taken of the reference's answers too"
            yield Change("link-function", what, done, remedy, "reference", made)


def _target_transform(case: Case, theirs: Array) -> Iterator[Change]:
    """A regressor that learnt a transformed target: its transformation may not have been taken back."""
    transformer: Any = getattr(parts.innermost(case), "transformer_", None)
    if case.framework("reference") != "sklearn" or not hasattr(transformer, "inverse_transform"):
        return
    try:
        table = np.asarray(transformer.inverse_transform(theirs.reshape(len(theirs), -1)), dtype=np.float64)
    except Exception:  # noqa: BLE001 - a user's own function may refuse anything
        return
    name = type(transformer).__name__
    yield Change(
        "link-function",
        f"inverse of {name} missing",
        f"with the target's {name} taken back",
        "Export the TransformedTargetRegressor as a whole, or apply transformer_.inverse_transform",
        "candidate",
        lambda: table.reshape(theirs.shape),
    )


def _other_link(case: Case, pair: Pair, ours: Array, rows: Array) -> Iterator[Change]:
    """Another link on the same scores."""
    kinds = {spec.name: spec.kind for spec in case.runners["reference"].signature.outputs or ()}
    for name, scores in answers.views(case).items():
        if name == pair.spec.reference or kinds.get(name) is not Kind.SCORE:
            continue
        for values in answers.in_shape_of(scores[rows], ours):
            for link in links.LINKS:
                if link.name in OF_SCORES:
                    yield Change(
                        "link-function",
                        f"{link.name} of the scores instead of the model's own link",
                        f"with the {link.name} of the reference's {name} in the place of its own {pair.spec.name}",
                        "Export the model's own link from scores to probabilities",
                        "reference",
                        partial(link.apply, values),
                    )


def _in_graph(case: Case, *, sure: bool) -> Iterator[Explained]:
    """An attribute of the candidate's graph that says which link to apply."""
    proto = edits.editable(case.graph())
    if proto is None:
        return
    nodes = [n.name for n in proto.graph.node if edits.attribute(n, "post_transform") is not None]
    for name in nodes if len(nodes) <= MOST_NODES else ():
        for transform in TRANSFORMS:
            copy = edits.copied(proto)
            node = next(node for node in copy.graph.node if node.name == name)
            was = edits.attribute(node, "post_transform")
            if was == transform:
                continue
            edits.set_attribute(node, "post_transform", transform)
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
                simplicity=1 if sure else 3,
            )
            return


EXTENSION = Links()
