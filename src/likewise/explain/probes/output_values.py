"""Numbers that are not what they claim: a link missing or doubled, another class, sign or unit, always the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from likewise.compare.differences import Constancy, is_numeric
from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.explain import answers, features
from likewise.explain.answers import Reading, best
from likewise.explain.case import Case, Explained, Remedy, probe, rows_agreeing
from likewise.explain.experiment import ENOUGH, HEALED, Change, Claim, shown
from likewise.models.onnx import edits, interface
from likewise.models.onnx.edits import Writer
from likewise.models.onnx.interface import Nodes

TRANSFORMS = (b"NONE", b"LOGISTIC", b"SOFTMAX", b"SOFTMAX_ZERO", b"PROBIT")
"""What the classical operators of ONNX may do to their scores."""

OF_SCORES = ("sigmoid", "softmax", "sigmoid, normalised", "exp", "tanh", "softplus")
"""Links that may stand in for a model's own."""

SAME = 1e-4
"""How far scores may be apart from one offset, in units of their size."""

MOST_NODES = 2
"""Nodes with a link of their own beyond which none of them is the last."""

SEVERAL = 4
"""Answers that are the same smallest or largest value, before it is taken for a limit."""

FEWEST_ROWS = 5
"""Rows that one answer to all of them means something for."""

MANY = 50
"""Different answers up to which they are counted."""


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
            partial(answers.normalized, theirs),
            nodes=interface.LINKS["normalised"],
            # A sum instead of a mean, or percent, is what it looks like where all rows have the same sum.
            simplicity=4,
        )


def _of_shape(values: Array) -> Iterator[answers.Link]:
    """The links that such answers can have."""
    several = values.ndim >= 2 and values.shape[-1] > 1
    yield from (link for link in answers.LINKS if several or not link.rows)


def _put_right(pair: Pair, theirs: Array) -> Iterator[Reading]:
    """A link that the candidate lacks, or has once too often."""
    for link in _of_shape(theirs):
        missing = f"{link.name} missing"
        remedy = Remedy(
            f"Export with the {link.name} at the end",
            done=f"Apply the {link.name} to the candidate's output: {link.code}",
        )
        done = f"with the {link.name} applied to the candidate's answers"
        nodes = interface.LINKS.get(link.name)
        yield Reading("link-function", missing, done, remedy, "candidate", partial(link.apply, theirs), nodes=nodes)
        remedy = Remedy(f"Export with the {link.name} at the end")
        for which, made, nodes in answers.of_one_column(link, theirs):
            done = f"with the {which} taken of the candidate's answers"
            yield Reading("link-function", missing, done, remedy, "candidate", made, nodes=nodes)
        if link.inverse is not None:
            twice = pair.spec.kind is Kind.PROBABILITY and link.name in ("sigmoid", "softmax")
            what = f"{link.name} applied {'twice' if twice else 'although the reference has none'}"
            what = "square root missing" if link.name == "square" else what
            done = f"with the {link.name} taken back from the candidate's answers"
            remedy = Remedy(f"Take the {'second ' if twice else ''}{link.name} out of the export")
            nodes = interface.INVERSES.get(link.name)
            yield Reading("link-function", what, done, remedy, "candidate", partial(link.inverse, theirs), nodes=nodes)


def _moved_as_well(ours: Array, theirs: Array) -> Iterator[Reading]:
    """A link left out together with what it does to the base score: scores that all are off by the same amount."""
    for link in answers.LINKS:
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
                nodes=partial(_shifted, offset=offset, link=interface.LINKS[link.name]),
            )


def _shifted(write: Writer, x: str, *, offset: float, link: Nodes) -> str:
    return link(write, write("Add", x, offset))


def _made_alike(ours: Array) -> Iterator[Reading]:
    """A link that cannot be undone, or not exactly: the reference's answers are put through it instead."""
    for link in _of_shape(ours):
        what = f"{link.name} applied although the reference has none"
        remedy = f"Take the {link.name} out of the export"
        done = f"with the {link.name} applied to the reference's answers too"
        yield Reading("link-function", what, done, remedy, "reference", partial(link.apply, ours))
        for which, made, _ in answers.of_one_column(link, ours):
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
    for name, values in _other_views(case, pair, ours, rows):
        if kinds.get(name) is not Kind.SCORE:
            continue
        for link in answers.LINKS:
            if link.name in OF_SCORES:
                yield Reading(
                    "link-function",
                    f"{link.name} of the scores instead of the model's own link",
                    f"with the {link.name} of the reference's {name} in the place of its own {pair.spec.name}",
                    "Export the model's own link from scores to probabilities",
                    "reference",
                    partial(link.apply, values),
                )


def _other_views(case: Case, pair: Pair, ours: Array, rows: Array) -> Iterator[tuple[str, Array]]:
    """What else the reference answers, in every way that has the shape of this output."""
    for name, view in answers.views(case).items():
        if name != pair.spec.reference:
            for values in answers.in_shape_of(view[rows], ours):
                yield name, values


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


@probe(
    "output-kind",
    "model-part-dropped",
    "link-function",
    when=lambda case: answers.complete(case) and bool(answers.failing_numbers(case)),
)
def output_kinds(case: Case) -> Explained | None:
    """Read the candidate's answers as something else, or make that of the reference's, and compare."""
    return best(case, _kinds)


def _kinds(case: Case, pair: Pair, rows: Array) -> Iterator[Reading]:
    ours, theirs = pair.reference.astype(np.float64), pair.candidate.astype(np.float64)
    yield from _read_otherwise(pair, theirs)
    if theirs.ndim == 2 and theirs.shape[1] > 1:
        yield from _of_a_row(ours, theirs)
    yield from _limits(case, pair, ours, theirs)
    for what, done, way in (
        ("rounded to whole numbers", "with the reference's answers rounded too", np.rint),
        ("cut to whole numbers", "with the fractions of the reference's answers cut off too", np.trunc),
    ):
        yield Reading("output-kind", what, done, "Export the output as a float", "reference", partial(way, ours))
    # Another answer of the same model: scores for probabilities, distances for scores.
    for name, values in _other_views(case, pair, ours, rows):
        yield Reading(
            "output-kind",
            f"{name} of the model",
            f"compared with the reference's {name}",
            f"Export the {pair.spec.kind}, or compare like with like: --pair {pair.spec.candidate}={name}",
            "reference",
            partial(np.asarray, values),
            simplicity=3,
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
        nodes, made = interface.rearranged(way, theirs.shape[1:]), partial(way, theirs)
        yield Reading("output-kind", what, done, Remedy(done=remedy), "candidate", made, simplicity=3, nodes=nodes)


def _of_a_row(ours: Array, theirs: Array) -> Iterator[Reading]:
    yield Reading(
        "output-kind",
        "only the winning class, as 0 and 1",
        "with the reference's probabilities reduced to their winner",
        "Export the probabilities, not the decision",
        "reference",
        lambda: (ours == ours.max(axis=1, keepdims=True)).astype(np.float64),
    )
    yield Reading(
        "model-part-dropped",
        "scaling to unit length missing",
        "with each row scaled to unit length",
        "Export the model with its last normalisation",
        "candidate",
        partial(answers.unit_length, theirs),
        nodes=interface.LINKS["unit length"],
    )
    yield Reading(
        "link-function",
        "scaled to unit length although the reference is not",
        "with the reference's rows scaled to unit length too",
        "Take the normalisation out of the export",
        "reference",
        partial(answers.unit_length, ours),
    )


def _limits(case: Case, pair: Pair, ours: Array, theirs: Array) -> Iterator[Reading]:
    """Answers that stop at a smallest or largest value on one side only."""
    whole = next(other for other in answers.pairs(case) if other.spec is pair.spec)
    low, high = _ends(whole.reference)
    if (low, high) != (-np.inf, np.inf):
        code = f"output.clip({', '.join('None' if math.isinf(end) else repr(end) for end in (low, high))})"
        remedy = Remedy("Export the model with its last clip", done=f"Apply the last clip: {code}")
        what, done = f"limits {low:g} to {high:g} missing", f"kept between {low:g} and {high:g}"
        made, nodes = partial(theirs.clip, low, high), partial(_clipped, low=low, high=high)
        yield Reading("model-part-dropped", what, done, remedy, "candidate", made, nodes=nodes)
    low, high = _ends(whole.candidate)
    if (low, high) != (-np.inf, np.inf):
        what = f"kept between {low:g} and {high:g} although the reference is not"
        done = f"with the reference's answers kept between {low:g} and {high:g} too"
        remedy = Remedy("Take the last clip out of the export")
        clipped = partial(ours.clip, low, high)
        # Answers that stop somewhere are also what a value that is always taken for the same looks like.
        yield Reading("link-function", what, done, remedy, "reference", clipped, simplicity=4)


def _clipped(write: Writer, x: str, *, low: float, high: float) -> str:
    x = x if math.isinf(low) else write("Max", x, low)
    return x if math.isinf(high) else write("Min", x, high)


def _ends(values: Array) -> tuple[float, float]:
    """The smallest and the largest value, where several answers stop there; else none."""
    if not values.size or values.dtype.kind != "f" or not np.isfinite(values).all():
        return -np.inf, np.inf
    low, high = float(values.min()), float(values.max())
    if low == high:
        return -np.inf, np.inf
    stops = [int((values == end).sum()) >= SEVERAL for end in (low, high)]
    return low if stops[0] else -np.inf, high if stops[1] else np.inf


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


EXTENSIONS = (links, output_kinds, constant_outputs)
