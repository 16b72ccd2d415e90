"""Parts put together another way: members voted, summed, without their weights; a constant term or trees left out.

Told from the candidate's graph, from the reference's own members, or from an offset between both sides' answers that
is the same on every row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.contracts.report import Place
from likewise.explain import answers, features
from likewise.explain.case import Case, Explained, Remedy, probe
from likewise.explain.experiment import HEALED, Change, Claim, shown
from likewise.explain.trees import Survey, has_trees, survey
from likewise.models.onnx import edits, interface
from likewise.models.onnx.interface import Nodes
from likewise.models.trees.read import cut_to

if TYPE_CHECKING:
    from onnx import NodeProto

AGGREGATES = {"SUM": 1, "AVERAGE": 0, "MIN": 2, "MAX": 3}
"""How trees are put together, by name in the older operators and by number in the newer one."""

REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
MOST_NODES = 3
"""Nodes of one operator beyond which it is no place where members are put together."""

MOST_MEMBERS = 2_000

FEWEST_ROWS = 8
"""Fewer rows would fit anything."""

SAME = 1e-3
"""How close, relatively, a fitted number has to be to a known one."""

NEARLY_ALL = 0.9
"""A relation that holds for a model holds for its rows."""

STEEP = 8.0
"""Scores before a link beyond which the link hardly moves: what is fitted there is rounding."""

Combined = Mapping[str, Array]
"""What a way of combining gives: `probabilities`, `label` (positions of classes) or `value`."""


@probe("aggregation", "model-part-dropped", when=answers.complete)
def ensembles(case: Case) -> Iterator[Explained]:
    """Combine the members another way, in the candidate's graph or from the reference's members, and compare."""
    yield from islice(chain(shown(case, _in_graph(case)), _from_members(case)), 1)


def _in_graph(case: Case) -> Iterator[Claim]:
    """An operator or attribute of the candidate that says how parts are combined."""
    proto = case.editable()
    if proto is None:
        return
    concerned = [answers.pairs(case)[position] for position in answers.failing(case)]
    counts = Counter(node.op_type for node in proto.graph.node)
    for index, node in enumerate(proto.graph.node):
        for was, now, other in _other_ways(node) if counts[node.op_type] <= MOST_NODES else ():
            copy = edits.copied(proto)
            copy.graph.node[index].CopyFrom(other)
            yield Claim(
                "aggregation",
                answers.culprit(concerned, f"{was} instead of {now}, {node.op_type} '{node.name}'", nodes=(node.name,)),
                f"with {now} in the place of {was} in node '{node.name}' the candidate agrees on {HEALED}",
                f"Export with {now} in that node"
                if was in REDUCTIONS
                else Remedy(done=edits.setting(node, "aggregate_function", now)),
                (Change(target=copy),),
            )


def _other_ways(node: NodeProto) -> Iterator[tuple[str, str, NodeProto]]:
    """What a node does with its parts, what it could do instead, and the node that does that."""
    if node.op_type in ("TreeEnsembleRegressor", "TreeEnsemble"):
        values: Mapping[str, Any] = AGGREGATES
        if node.op_type == "TreeEnsembleRegressor":
            values = {name: name.encode() for name in AGGREGATES}
        was = edits.attribute(node, "aggregate_function", values["SUM"])
        before = next((name for name, value in values.items() if value == was), "?")
        for name, value in values.items():
            if value != was:
                other = type(node).FromString(node.SerializeToString())
                edits.set_attribute(other, "aggregate_function", value)
                yield before, name, other
    for kind in REDUCTIONS if node.op_type in REDUCTIONS else ():
        if kind != node.op_type:
            other = type(node).FromString(node.SerializeToString())
            other.op_type = kind
            yield node.op_type, kind, other


def _from_members(case: Case) -> Iterator[Explained]:
    """The reference's own members, asked one by one and combined in other ways."""
    model = features.innermost(case)
    members = _members(model)
    if not members or case.framework("reference") != "sklearn":
        return
    case.require_time()
    for cause, what, combined in _ways(model, members, features.input_of_last_step(case, case.required.batch)):
        changed = {}
        for position in answers.failing(case):
            pair = answers.pairs(case)[position]
            made = _as_answer(combined, pair.spec.kind, pair.spec.classes, pair.reference.shape)
            if made is not None:
                changed[position] = made
        effect = answers.convincing(case, reference=changed) if changed else None
        if effect is not None:
            yield effect.explained(
                cause,
                answers.culprit([answers.pairs(case)[position] for position in changed], what),
                f"with the {len(members)} members of the reference put together that way ({what}), it agrees with the "
                f"candidate on {effect.told}",
                f"Export the {type(model).__name__} with its own way of combining its members",
                simplicity=1,
            )


def _members(model: Any) -> list[Any]:
    """Estimators that each answer the whole question."""
    kind = type(model)
    if not kind.__module__.startswith("sklearn.") or "Boost" in kind.__name__ or "Stacking" in kind.__name__:
        return []
    if hasattr(model, "calibrated_classifiers_"):
        return list(model.calibrated_classifiers_)
    members = getattr(model, "estimators_", None)
    averaging = ("Forest", "ExtraTrees", "Bagging", "Voting")
    if not isinstance(members, list) or not any(word in kind.__name__ for word in averaging):
        return []
    return members if 2 <= len(members) <= MOST_MEMBERS else []


def _ways(model: Any, members: list[Any], data: Any) -> Iterator[tuple[str, str, Combined]]:
    """Other ways to put members together, and what each gives."""
    table = np.asarray(data) if "Forest" in type(model).__name__ or "ExtraTrees" in type(model).__name__ else data
    columns = getattr(model, "estimators_features_", None)
    weights = _weights(model, len(members))

    def asked(member: Any, index: int, method: str) -> Array:
        chosen = np.asarray(data)[:, columns[index]] if columns is not None else table
        return np.asarray(getattr(member, method)(chosen))

    classes = getattr(model, "classes_", None)
    if classes is None:
        values = np.stack([asked(member, index, "predict") for index, member in enumerate(members)])
        yield "aggregation", "members not weighted", {"value": values.mean(axis=0)}
        yield "aggregation", "weighted members", {"value": np.average(values, axis=0, weights=weights)}
        for way, of in (("sum", np.sum), ("median", np.median), ("largest", np.max), ("smallest", np.min)):
            yield "aggregation", f"{way} of the members", {"value": np.asarray(of(values, axis=0))}
        return
    if not isinstance(classes, np.ndarray):
        return
    if all(hasattr(member, "predict_proba") for member in members):
        shares = np.stack([asked(member, index, "predict_proba") for index, member in enumerate(members)])
        if shares.ndim != 3 or shares.shape[2] != len(classes):
            return
        votes = np.eye(len(classes))[shares.argmax(axis=2)]
        yield "aggregation", "members vote", _decided(votes.mean(axis=0))
        yield "aggregation", "members vote with their weights", _decided(np.average(votes, axis=0, weights=weights))
        yield "aggregation", "members not weighted", _decided(shares.mean(axis=0))
        yield "aggregation", "weighted members", _decided(np.average(shares, axis=0, weights=weights))
        yield "aggregation", "sum of the members", _decided(shares.sum(axis=0))
        with np.errstate(all="ignore"):
            logs = np.exp(np.log(shares).mean(axis=0))
        yield "aggregation", "geometric mean of the members", _decided(logs / logs.sum(axis=1, keepdims=True))
        yield "aggregation", "median of the members", _decided(np.median(shares, axis=0))
        yield "aggregation", "largest of the members", _decided(shares.max(axis=0))
    inner = [getattr(member, "estimator", None) for member in members]
    if hasattr(model, "calibrated_classifiers_") and all(hasattr(one, "predict_proba") for one in inner):
        plain = np.stack([np.asarray(one.predict_proba(data)) for one in inner if one is not None])
        yield "model-part-dropped", "calibration left out", _decided(plain.mean(axis=0))


def _weights(model: Any, count: int) -> Array | None:
    weights = getattr(model, "_weights_not_none", None)
    return np.asarray(weights, dtype=np.float64) if weights is not None and len(weights) == count else None


def _decided(shares: Array) -> Combined:
    return {"probabilities": shares, "label": shares.argmax(axis=1)}


def _as_answer(combined: Combined, kind: Kind, classes: Any, shape: tuple[int, ...]) -> Array | None:
    """What was combined, in the form of an output; None if it says nothing about it."""
    if kind is Kind.LABEL and "label" in combined and classes:
        named = np.empty(len(classes), dtype=object)
        named[:] = list(classes)
        made: Array = named[combined["label"]]
    elif kind is Kind.PROBABILITY and "probabilities" in combined:
        made = combined["probabilities"]
        made = made[:, 1] if made.shape != shape and made.shape[1] == 2 else made
    elif kind is not Kind.LABEL and "value" in combined:
        made = combined["value"]
    else:
        return None
    return made.reshape(shape) if made.size == int(np.prod(shape)) else None


@dataclass(frozen=True, slots=True)
class Space:
    """Answers as the model adds them up, before its link: columns of both sides, and the way back.

    `without` takes an offset back behind the candidate's output.
    """

    name: str
    reference: Array
    candidate: Array
    back: Callable[[Array], Array]
    without: Callable[[Array], Nodes | None]
    linked: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """candidate = reference + offset, a number a column; and what that comes from."""

    offset: Array
    place: Place
    why: str
    remedy: str
    simplicity: int = 2


@probe(
    "model-part-dropped",
    when=lambda case: (
        answers.complete(case) and len(answers.failing_numbers(case)) == 1 and len(case.required) >= FEWEST_ROWS
    ),
)
def constant_terms(case: Case) -> Iterator[Explained]:
    """Find an offset between the two sides that is the same on every row, take it back, and compare."""
    position = answers.failing_numbers(case)[0]
    pair = answers.pairs(case)[position]
    for space in _spaces(pair):
        term = _term(case, pair, space)
        with np.errstate(all="ignore"):
            made = None if term is None else space.back(space.candidate - term.offset)
        effect = None if made is None else answers.convincing(case, {position: made})
        if term is None or effect is None or effect.share < NEARLY_ALL:
            continue
        whose = f"the {space.name} of " if space.name != "value" else ""
        yield effect.explained(
            "model-part-dropped",
            term.place,
            f"{whose}the candidate's {pair.spec.name} is the reference's plus {_numbers(term.offset)} on every row"
            f"{term.why}; with that taken back it agrees on {effect.told}",
            term.remedy,
            simplicity=term.simplicity,
            fixes=answers.behind(case, {pair.spec.candidate: space.without(term.offset)}, "the offset taken back"),
        )


def _numbers(values: Array) -> str:
    return ", ".join(f"{value:.6g}" for value in values[:6])


def _spaces(pair: Pair) -> Iterator[Space]:
    ours, theirs = pair.reference.astype(np.float64), pair.candidate.astype(np.float64)
    shape = theirs.shape
    if ours.ndim > 2 or not ours.size:
        return

    def within(array: Array) -> bool:
        return bool(np.nanmin(array) >= 0 and np.nanmax(array) <= 1)

    probable = within(ours) and pair.spec.kind in (Kind.PROBABILITY, Kind.VALUE)
    two = ours.ndim == 2 and ours.shape[1] == 2 and probable

    def both(array: Array) -> Array:
        positive = array.reshape(-1)
        return np.stack([1.0 - positive, positive], axis=1) if two else positive.reshape(shape)

    table, other = ours.reshape(len(ours), -1), theirs.reshape(len(theirs), -1)
    wide = (1, *shape[1:])
    yield Space(
        "value",
        table,
        other,
        lambda array: array.reshape(shape),
        lambda offset: interface.rearranged(lambda x: x - offset.reshape(wide), shape[1:]),
    )
    with np.errstate(all="ignore"):
        if probable and within(theirs) and (two or ours.size == len(ours)):
            odds, others = answers.logit(table[:, -1:]), answers.logit(other[:, -1:])
            yield Space(
                "log-odds",
                odds,
                others,
                lambda array: both(answers.sigmoid(array)),
                lambda offset: interface.with_odds(-float(offset[0]), column=1 if two else None),
                linked=True,
            )
        elif probable and within(theirs) and np.allclose(table.sum(axis=1), 1, atol=1e-3):
            logs, others = (np.log(side) for side in (table, other))
            logs, others = (side - side.mean(axis=1, keepdims=True) for side in (logs, others))
            yield Space(
                "log-probabilities",
                logs,
                others,
                lambda array: answers.softmax(array).reshape(shape),
                lambda offset: (
                    lambda write, x: write("Softmax", write("Sub", write("Log", x), offset.reshape(wide)), axis=-1)
                ),
                linked=True,
            )
        elif np.nanmin(ours) > 0 and np.nanmin(theirs) > 0:
            yield Space(
                "logarithm",
                np.log(table),
                np.log(other),
                lambda array: np.exp(array).reshape(shape),
                lambda offset: interface.rearranged(lambda x: x * np.exp(-offset).reshape(wide), shape[1:]),
            )


def _offset(space: Space) -> Array:
    """What most rows of the candidate have beside the reference's, a number a column; 0 where it is rounding."""
    both = np.concatenate([space.reference, space.candidate], axis=1)
    usable = np.isfinite(both).all(axis=1)
    if space.linked:
        # Rows at the ends of a link say little.
        usable &= (np.abs(both) < STEEP).all(axis=1)
    if usable.sum() < FEWEST_ROWS:
        return np.zeros(space.reference.shape[1])
    offset = np.median((space.candidate - space.reference)[usable], axis=0)
    scale = max(float(np.nanmedian(np.abs(space.reference))), 1e-12)
    return np.where(np.abs(offset) < 1e-6 * scale, 0.0, offset)


def _term(case: Case, pair: Pair, space: Space) -> Term | None:
    """What an offset comes from: a term that the reference is known to have, or may have."""
    offset = _offset(space)
    if not offset.any() or (pair.spec.kind is Kind.PROBABILITY and space.name == "value"):
        return None

    def dropped(name: str, *how: str) -> Place:
        return Place(name, (*how, pair.spec.name), outputs=(pair.spec.candidate,))

    for name, known in features.constant_terms(case):
        wanted = known - known.mean() if space.name == "log-probabilities" else known
        if len(wanted) != len(offset) or not np.abs(wanted).max() > 0:
            continue
        room = SAME * float(np.abs(wanted).max()) + pair.tolerance.absolute
        for sign, what in ((-1.0, "left out"), (1.0, "added twice")):
            if np.abs(offset - sign * wanted).max() <= room:
                why = f", and the reference's {name} is {_numbers(known)}"
                return Term(sign * wanted, dropped(name, what), why, f"Export the model with its {name}, once")
    if features.has_base_score(case):
        return Term(offset, dropped("base score"), "", "Export the model with its base score", 4)
    if case.native("reference") is None:
        return Term(offset, dropped("constant term"), "", "Export the model with its intercept", 5)
    return None


@probe(
    "tree-count",
    "stale-weights",
    when=lambda case: (
        "onnx" not in (case.framework("reference"), case.framework("candidate"))
        and all(has_trees(case, side) for side in ("reference", "candidate"))
    ),
)
def tree_models(case: Case) -> Iterator[Explained]:
    """Where the candidate is no graph: cut the one that uses more trees to as many as the other uses."""
    found = survey(case)
    if found is None:
        return
    if found.differ.retrained:
        evidence = f"the trees of both come from different trainings: {found.other_splits}"
        remedy = "Compare the model with the file that was saved from it; record which training a file comes from"
        yield Explained("stale-weights", Place("model"), evidence, remedy, simplicity=1)
    else:
        yield from shown(case, _shorter(case, found))


def _shorter(case: Case, found: Survey) -> Iterator[Claim]:
    counts: Mapping[str, int] = {"reference": found.differ.ours.trees, "candidate": found.differ.theirs.trees}
    longer = max(counts, key=lambda side: counts[side])
    fewer, more = min(counts.values()), counts[longer]
    cut = cut_to(case.native(longer), fewer) if fewer < more else None
    if cut is None:
        return
    yield Claim(
        "tree-count",
        Place(f"{fewer} of {more} trees", side=longer),
        f"the reference uses {counts['reference']} trees and the candidate {counts['candidate']}; with the {longer} "
        f"cut to {fewer}, {HEALED} agree",
        "Save the model with the trees that predict uses: booster[:best_iteration + 1] (XGBoost), "
        "save_model(num_iteration=best_iteration) (LightGBM)",
        (Change(longer, target=cut),),
    )


EXTENSIONS = (ensembles, constant_terms, tree_models)
