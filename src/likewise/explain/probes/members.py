"""Members of an ensemble are put together another way: in the candidate's graph, or asked of the reference's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
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
from likewise.models.onnx import edits
from likewise.models.sklearn.walk import exchanged, walk

if TYPE_CHECKING:
    from onnx import NodeProto

AGGREGATES = {"SUM": 1, "AVERAGE": 0, "MIN": 2, "MAX": 3}
"""How trees are put together, by name in the older operators and by number in the newer one."""

NETWORKS = ("torch", "onnx")
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
MOST_NODES = 3
"""Nodes of one operator beyond which it is no place where members are put together."""

MOST_MEMBERS = 2_000

AVERAGING = ("Forest", "ExtraTrees", "Bagging", "Voting")
"""What the names of estimators have in them whose members each answer the whole question."""


@probe("aggregation", "operator-semantics", when=answers.complete)
def members(case: Case) -> Iterator[Explained]:
    """Combine the members another way, in the candidate's graph or from the reference's members, and compare."""
    looks = shown(case, _combined_in_graph(case)), _by_members(case), shown(case, _of_equal_weight(case))
    yield from islice(chain.from_iterable(looks), 1)


def _combined_in_graph(case: Case) -> Iterator[Claim]:
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
                # A network has no members: its sums and means are operators like others.
                "operator-semantics"
                if case.framework("reference") in NETWORKS and was in REDUCTIONS
                else "aggregation",
                answers.culprit(concerned, f"{was} instead of {now}, {node.op_type} '{node.name}'", nodes=(node.name,)),
                f"with {now} in the place of {was} in node '{node.name}' the candidate agrees on {HEALED}",
                f"Export with {now} in that node"
                if was in REDUCTIONS
                else Remedy(done=edits.setting(node, "aggregate_function", now)),
                (Change(target=copy),),
                # Another reduction can do what is wrong elsewhere, too; of trees nothing else says how they are added.
                simplicity=2 if was in REDUCTIONS else 1,
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


def _by_members(case: Case) -> Iterator[Explained]:
    """The reference's own members, asked one by one and combined in other ways."""
    model = features.innermost(case)
    members = _members(model) if case.framework("reference") == "sklearn" else []
    if not members:
        return
    case.require_time()
    kind = type(model).__name__
    path = next((path for path, part in walk(case.native("reference")) if part is model), "")
    pairs = {position: answers.pairs(case)[position] for position in answers.failing(case)}
    for what, table in _ways(model, members, features.input_of_last_step(case, case.required.batch)):
        changed = {at: made for at, pair in pairs.items() if (made := _as_answer(table, pair)) is not None}
        effect = answers.convincing(case, reference=changed) if changed else None
        if effect is not None:
            place = answers.culprit([pairs[position] for position in changed], f"{what}, in {path or kind}")
            yield effect.explained(
                "aggregation",
                replace(place, path=path),
                f"with the {len(members)} members of the reference put together that way ({what}), it agrees with the "
                f"candidate on {effect.told}",
                f"Export the {kind} with its own way of combining its members",
                simplicity=1,
            )


def _of_equal_weight(case: Case) -> Iterator[Claim]:
    """The reference with members that all count alike, where boosting has given each a weight."""
    native = case.native("reference")
    for path, boosted in walk(native) if case.framework("reference") == "sklearn" else ():
        weights = getattr(boosted, "estimator_weights_", None)
        if weights is None or not len(weights):
            continue
        alike = copy(boosted)
        alike.estimator_weights_ = np.ones_like(weights)
        kind = type(boosted).__name__
        yield Claim(
            "aggregation",
            Place(path or kind, ("members not weighted",), path=path),
            f"with members that all count alike in {path or kind} the reference answers like the candidate: {HEALED} "
            "agree",
            f"Export the {kind} with the weights of its members (estimator_weights_)",
            (Change("reference", target=exchanged(native, boosted, alike)),),
        )


def _members(model: Any) -> list[Any]:
    """Estimators that each answer the whole question."""
    members = getattr(model, "estimators_", None)
    kind = type(model)
    if not kind.__module__.startswith("sklearn.") or not any(word in kind.__name__ for word in AVERAGING):
        return []
    return members if isinstance(members, list) and 2 <= len(members) <= MOST_MEMBERS else []


def _ways(model: Any, members: Sequence[Any], data: Any) -> Iterator[tuple[str, Array]]:
    """Other ways to put members together, and the values, or shares of classes, that each gives."""
    columns = getattr(model, "estimators_features_", None)
    table = data if "Voting" in type(model).__name__ else np.asarray(data)
    given = [table] * len(members) if columns is None else [table[:, chosen] for chosen in columns]
    classes = getattr(model, "classes_", None)
    method = "predict" if classes is None else "predict_proba"
    if not all(hasattr(member, method) for member in members):
        return
    values = np.stack([getattr(member, method)(rows) for member, rows in zip(members, given, strict=True)])
    weights = getattr(model, "_weights_not_none", None)
    if isinstance(classes, np.ndarray) and values.ndim == 3:
        votes = np.eye(len(classes))[values.argmax(axis=2)]
        yield "members vote", votes.mean(axis=0)
        yield "members vote with their weights", np.average(votes, axis=0, weights=weights)
    yield "members not weighted", values.mean(axis=0)
    yield "weighted members", np.average(values, axis=0, weights=weights)
    for way, of in (("sum", np.sum), ("median", np.median), ("largest", np.max), ("smallest", np.min)):
        yield f"{way} of the members", np.asarray(of(values, axis=0))


def _as_answer(table: Array, pair: Pair) -> Array | None:
    """What members gave together, in the form of an output; None if it says nothing about it."""
    made, shape = table, pair.reference.shape
    if pair.spec.kind is Kind.LABEL:
        if not pair.spec.classes or table.ndim != 2:
            return None
        named = np.empty(len(pair.spec.classes), dtype=object)
        named[:] = list(pair.spec.classes)
        made = named[table.argmax(axis=1)]
    elif pair.spec.kind is Kind.PROBABILITY and table.shape[1:] == (2,) and table.shape != shape:
        made = table[:, 1]
    return made.reshape(shape) if made.size == int(np.prod(shape)) else None


EXTENSIONS = (members,)
