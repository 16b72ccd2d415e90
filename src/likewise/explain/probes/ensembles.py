"""Members of an ensemble that are put together another way: averaged, summed, voted, without their weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.explain import answers, parts
from likewise.explain.case import Case, Explained
from likewise.models.onnx import edits

WAYS = (b"SUM", b"AVERAGE", b"MIN", b"MAX")
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
MOST_NODES = 3
MOST_MEMBERS = 2_000

Combined = Mapping[str, Array]
"""What a way of combining gives: `probabilities`, `label` (positions of classes) or `value`."""


class Ensembles:
    """Combine the members another way, in the candidate's graph or from the reference's members, and compare."""

    causes = ("aggregation", "model-part-dropped")
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return answers.complete(case)

    def test(self, case: Case) -> Sequence[Explained]:
        found = next(_in_graph(case), None) or next(_from_members(case), None)
        return [] if found is None else [found]


def _in_graph(case: Case) -> Iterator[Explained]:
    """An operator or attribute of the candidate that says how parts are combined."""
    proto = edits.editable(case.graph())
    if proto is None:
        return
    for node in proto.graph.node:
        for was, now, changed in _other_ways(proto, node):
            effect = answers.tried(case, changed)
            if effect is not None:
                concerned = [answers.pairs(case)[position] for position in answers.failing(case)]
                yield Explained(
                    "aggregation",
                    answers.culprit(concerned, f"{was} instead of {now}, {node.op_type} '{node.name}'"),
                    f"with {now} in the place of {was} in node '{node.name}' the candidate agrees on "
                    f"{answers.told(effect)}",
                    f"Export with {now} in that node",
                    covered=effect.covered,
                    simplicity=1,
                )
                return


def _other_ways(proto: Any, node: Any) -> Iterator[tuple[str, str, Any]]:
    alike = [other for other in proto.graph.node if other.op_type == node.op_type]
    if len(alike) > MOST_NODES:
        return
    if node.op_type in ("TreeEnsembleRegressor", "TreeEnsemble"):
        by_number = node.op_type == "TreeEnsemble"
        default = 1 if by_number else b"SUM"
        was = edits.attribute(node, "aggregate_function", default)
        for number, way in zip((1, 0, 2, 3), WAYS, strict=True):
            value = number if by_number else way
            if value != was:
                names = dict(zip((1, 0, 2, 3), WAYS, strict=True))
                before = names.get(was, b"?") if by_number else was
                yield before.decode(), way.decode(), _changed(proto, node, attribute=value)
    if node.op_type in REDUCTIONS:
        for kind in REDUCTIONS:
            if kind != node.op_type:
                yield node.op_type, kind, _changed(proto, node, operator=kind)


def _changed(proto: Any, node: Any, *, attribute: Any = None, operator: str | None = None) -> Any:
    copy = edits.copied(proto)
    same = next(other for other in copy.graph.node if other.name == node.name)
    if operator is not None:
        same.op_type = operator
    else:
        edits.set_attribute(same, "aggregate_function", attribute)
    return copy


def _from_members(case: Case) -> Iterator[Explained]:
    """The reference's own members, asked one by one and combined in other ways."""
    model = parts.innermost(case)
    members = _members(model)
    if not members or case.framework("reference") != "sklearn":
        return
    case.require_time()
    data = _data_of_last_step(case)
    for cause, what, combined in _ways(model, members, data):
        changed = {}
        for position in answers.failing(case):
            pair = answers.pairs(case)[position]
            made = _as_answer(combined, pair.spec.kind, pair.spec.classes, pair.reference.shape)
            if made is not None:
                changed[position] = made
        effect = answers.convincing(case, reference=changed) if changed else None
        if effect is None:
            continue
        concerned = [answers.pairs(case)[position] for position in changed]
        yield Explained(
            cause,
            answers.culprit(concerned, what),
            f"with the {len(members)} members of the reference put together that way ({what}), it agrees with the "
            f"candidate on {answers.told(effect)}",
            f"Export the {type(model).__name__} with its own way of combining its members",
            covered=effect.covered,
            simplicity=1,
        )
        return


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


def _data_of_last_step(case: Case) -> Any:
    """The sample as the last step of the reference takes it."""
    side = case.side("reference")
    fed, _ = side.feed(case.required.batch)
    signature = side.runner.signature
    plain = signature.inputs is not None and not signature.table
    data = fed.inputs["X"] if plain else fed.inputs.frame()
    model = case.native("reference")
    while True:
        if hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        elif hasattr(model, "steps"):
            for _, step in model.steps[:-1]:
                data = data if step in (None, "passthrough") else step.transform(data)
            model = model.steps[-1][1]
        else:
            return data


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


EXTENSION = Ensembles()
