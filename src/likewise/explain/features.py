"""The features of a case's data: the types in which each side takes them, and what the reference knows of them.

It also tells what the reference's own answer is made of: members, base scores, the innermost estimator. Where the
data does not reach a model, columns are changed until both answer, to prove the reason.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unicodedata import combining, normalize

import numpy as np

from likewise.compare import feed as feeding
from likewise.compare.call import Side
from likewise.contracts.data import Array, Batch
from likewise.contracts.report import Place
from likewise.contracts.values import dataclass
from likewise.data.cells import WIDEST, Field, names_of
from likewise.data.columns import ArrayColumns, FrameColumns
from likewise.errors import LikewiseError
from likewise.explain.case import Case, made_once
from likewise.models.sklearn.walk import followed, steps_before
from likewise.models.sklearn.walk import innermost as last_estimator


@dataclass(frozen=True, slots=True)
class Seat:
    """A fitted step that a feature reaches with its own column still its own: which step, and which of its columns."""

    path: str
    step: Any
    position: int


@dataclass(frozen=True, slots=True)
class Known:
    """The categories of a feature: those it was fitted with, those of them that are rare to it, and who knows them."""

    values: frozenset[Any]
    rare: frozenset[Any]
    whose: str


def fields_of(case: Case) -> tuple[Field, ...]:
    """The features that either model takes, in the order of the data."""
    batch = case.required.batch
    if not batch.stacked:
        return ()
    taken = [case.side(side).feed.columns for side in ("reference", "candidate")]
    used = [name for name in batch.inputs if any(columns is None or name in columns for columns in taken)]
    found: list[Field] = []
    for name in used:
        array = batch.inputs[name]
        if array.ndim == 1:
            found.append(Field(name, None, name, len(found)))
        elif array.ndim == 2 and array.shape[1] <= WIDEST:
            names = _names_by_position(case, name, array.shape[1])
            found.extend(Field(name, index, names[index], len(found) + index) for index in range(array.shape[1]))
    return tuple(found)


def _names_by_position(case: Case, column: str, width: int) -> list[str]:
    """What the columns of an array are called: by a model that names its inputs, else by their position."""
    for side in ("reference", "candidate"):
        routes = case.side(side).feed.routes or ()
        named = {route.split: route.input.name for route in routes if route.split is not None}
        if len(named) == width:
            return [named[index] for index in range(width)]
    return [f"{column}[{index}]" for index in range(width)]


def unaccented(text: str) -> str:
    """A text without the accents of its letters."""
    return "".join(letter for letter in normalize("NFKD", text) if not combining(letter))


def place_of(fields: Sequence[Field]) -> Place:
    """Features as the place of a cause."""
    return Place(names_of(fields), columns=tuple(field.name for field in fields))


def declared_types(case: Case, side: str, fields: Sequence[Field]) -> dict[Field, str]:
    """The type in which a model takes each feature, where it declares one and the feeding obeys it."""
    found: dict[Field, str] = {}
    inputs = case.required.batch.inputs
    for route in case.side(side).feed.routes or ():
        for field in fields:
            if field.column not in route.columns or route.split not in (None, field.index):
                continue
            whole = route.input.floating and inputs[field.column].dtype.kind in "biu"
            as_it_is = whole or route.input.name in case.side(side).feed.as_it_is
            if route.input.dtype is not None and not as_it_is:
                found[field] = route.input.dtype
    return found


TREES = re.compile(r"Tree|Forest|Boost|LGBM|XGB")
"""What the names of estimators made of trees have in them."""


def seats(case: Case, field: Field) -> tuple[Seat, ...]:
    """The steps that see a feature, in order, until one mixes it with others or makes several columns of it."""
    if case.framework("reference") != "sklearn" or case.native("reference") is None:
        return ()
    return tuple(_seats_by_name(case).get(field.name, ()))


FEWEST_SEPARATED = 8
"""Rows from which on it is no chance that all of them have something in common that others do not have."""


@made_once
def _seats_by_name(case: Case) -> dict[str, list[Seat]]:
    found: dict[str, list[Seat]] = {}
    for path, step, names in followed(case.native("reference"), _columns(case)):
        for position, name in enumerate(names):
            found.setdefault(name, []).append(Seat(path, step, position))
    return found


def _columns(case: Case) -> list[str]:
    """The features in the order in which the reference takes them."""
    fields = fields_of(case)
    feed = case.side("reference").feed
    if feed.routes is None:
        return [field.name for field in fields]
    by_column: dict[str, list[Field]] = {}
    for field in fields:
        by_column.setdefault(field.column, []).append(field)
    found: list[str] = []
    for route in feed.routes:
        for column in route.columns:
            chosen = by_column.get(column, ())
            found.extend(f.name for f in chosen if route.split in (None, f.index))
    return found


def imputed(case: Case, field: Field) -> float | str | None:
    """The value that an imputer of the reference was fitted to put in the place of a missing one."""
    for seat in seats(case, field):
        statistics = getattr(seat.step, "statistics_", None)
        if statistics is not None and len(statistics) > seat.position:
            value = statistics[seat.position]
            return value if isinstance(value, str) else float(value)
    return None


def known_categories(case: Case, field: Field) -> Known | None:
    """The categories that an encoder of the reference was fitted with for a feature; None if none reads it."""
    for seat in seats(case, field):
        categories = getattr(seat.step, "categories_", None)
        if not isinstance(categories, list) or len(categories) <= seat.position:
            continue
        rare = getattr(seat.step, "infrequent_categories_", None) or [None] * len(categories)
        of_this = rare[seat.position]
        return Known(
            frozenset(categories[seat.position].tolist()),
            frozenset(() if of_this is None else of_this.tolist()),
            f"{type(seat.step).__name__} (step {seat.path!r})" if seat.path else type(seat.step).__name__,
        )
    return None


def graph_words(case: Case) -> frozenset[str]:
    """Every text that the candidate's graph knows: the categories of its encoders, the keys of its look-ups."""
    graph = case.graph()
    if graph is None:
        return frozenset()
    from onnx import TensorProto

    words: set[bytes] = set()
    for node in graph.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("cats_strings", "keys_strings", "classlabels_strings", "string_vocabulary"):
                words.update(attribute.strings)
            if attribute.HasField("t") and attribute.t.data_type == TensorProto.STRING:
                words.update(attribute.t.string_data)
    for tensor in graph.graph.initializer:
        if tensor.data_type == TensorProto.STRING:
            words.update(tensor.string_data)
    return frozenset(word.decode("utf-8", "replace") for word in words)


def innermost(case: Case) -> Any:
    """The object that gives the reference's answer in the end; None where there is none to look at."""
    model = case.native("reference")
    return last_estimator(model) if model is not None and case.framework("reference") == "sklearn" else model


def input_of_last_step(case: Case, batch: Batch) -> Any:
    """Rows as the last step of a reference of scikit-learn takes them."""
    side = case.side("reference")
    fed, _ = side.feed(batch)
    signature = side.runner.signature
    plain = signature.inputs is not None and not signature.table
    data = fed.inputs["X"] if plain else fed.inputs.frame()
    last = innermost(case)
    for _, step in steps_before(case.native("reference"))[0]:
        # A selector with a model inside may be the last step itself.
        if step is last:
            break
        data = step.transform(data)
    return data


def decided_by_trees(case: Case) -> bool:
    """Is the last estimator of the reference a tree, or many of them?"""
    if case.framework("reference") in ("xgboost", "lightgbm", "catboost"):
        return True
    return case.framework("reference") == "sklearn" and TREES.search(type(innermost(case)).__name__) is not None


def constant_terms(case: Case) -> Iterator[tuple[str, Array]]:
    """What is added to every answer before the link, with what its owner calls it."""
    model = innermost(case)
    if model is None:
        return
    package = type(model).__module__.partition(".")[0]
    readers = {"sklearn": _of_estimator, "xgboost": _of_xgboost, "catboost": _of_catboost}
    if package in readers:
        yield from readers[package](model)
    elif "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module):
        biases = [(name, value) for name, value in model.named_parameters() if name.endswith("bias")]
        for name, value in biases[-1:]:
            yield name, _flat(value.detach().cpu().numpy())


def _flat(numbers: Any) -> Array:
    return np.asarray(numbers, dtype=np.float64).ravel()


def _of_estimator(model: Any) -> Iterator[tuple[str, Array]]:
    if hasattr(model, "intercept_"):
        yield "intercept", _flat(model.intercept_)
    if hasattr(model, "intercepts_") and model.intercepts_:
        yield "intercept of the last layer", _flat(model.intercepts_[-1])
    if hasattr(model, "_baseline_prediction"):
        yield "base score", _flat(model._baseline_prediction)
    if hasattr(model, "offset_"):
        yield "offset", -_flat(model.offset_)
    first: Any = getattr(model, "init_", None)
    if hasattr(first, "constant_"):
        yield "base score", _flat(first.constant_)
    elif hasattr(first, "class_prior_"):
        prior = _flat(first.class_prior_)
        with np.errstate(divide="ignore"):
            yield "base score", np.log(prior / (1 - prior))[1:] if len(prior) == 2 else np.log(prior)


def _of_xgboost(model: Any) -> Iterator[tuple[str, Array]]:
    booster = model.get_booster() if hasattr(model, "get_booster") else model
    learner = json.loads(booster.save_config())["learner"]
    text = learner["learner_model_param"].get("base_score", "")
    scores = np.array([float(part) for part in text.strip("[]").split(",") if part])
    objective = learner.get("objective", {}).get("name", "")
    with np.errstate(all="ignore"):
        if objective in ("binary:logistic", "reg:logistic", "binary:logitraw"):
            yield "base score", np.log(scores / (1 - scores))
        elif objective in ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox"):
            yield "base score", np.log(scores)
    yield "base score", scores


def _of_catboost(model: Any) -> Iterator[tuple[str, Array]]:
    _, bias = model.get_scale_and_bias()
    yield "base score", _flat(bias)


ROWS = 512
"""Rows on which both models are asked whether they agree."""


def first_rows(case: Case, count: int = ROWS) -> Batch | None:
    """The first rows of the data, if they have a row axis."""
    try:
        batch = next(iter(case.plan.source.batches(count)), None)
    except LikewiseError:
        return None
    return batch if batch is not None and len(batch) and batch.stacked else None


def agreement(case: Case, batch: Batch) -> float | None:
    """The share of the rows on which both models agree; None if one of them still cannot be asked."""
    case.require_time()
    try:
        found = case.compared(case.plan, case.runners["candidate"], batch)
    except LikewiseError:
        return None
    return None if found is None else float(found[1].mean())


def with_added(batch: Batch, added: Mapping[str, str]) -> Batch:
    """The rows with copies of some columns under further names."""
    inputs = batch.inputs
    frame = None if isinstance(inputs, ArrayColumns) else inputs.frame()
    if frame is None or not hasattr(frame, "assign"):
        return replace(batch, inputs=ArrayColumns({**inputs, **{name: inputs[old] for name, old in added.items()}}))
    labels = {str(label): label for label in frame.columns}
    return replace(
        batch, inputs=FrameColumns(frame.assign(**{name: frame[labels[old]] for name, old in added.items()}))
    )


def fed_sides(case: Case, batch: Batch) -> tuple[Side, Side] | None:
    """Both models ready to be fed these rows, where the comparison did not come so far; None if one cannot be."""
    reference, candidate = case.runners["reference"], case.runners["candidate"]
    try:
        ours = feeding.plan(batch, reference.signature, side="reference", mapping=case.plan.feed)
        order = ours.columns if reference.signature.table else None
        theirs = feeding.plan(batch, candidate.signature, side="candidate", order=order, mapping=case.plan.feed)
    except LikewiseError:
        return None
    return (
        Side("reference", case.plan.reference.name, reference, ours),
        Side("candidate", case.plan.candidate.name, candidate, theirs),
    )


def unfed_sides(case: Case, batch: Batch) -> list[str]:
    """The models that cannot be fed these rows."""
    order = columns_taken(case, batch, "reference") if case.runners["reference"].signature.table else None
    found = []
    for side in ("reference", "candidate"):
        signature = case.runners[side].signature
        try:
            feeding.plan(batch, signature, side=side, order=order, mapping=case.plan.feed)(batch)
        except LikewiseError:
            found.append(side)
    return found


def columns_taken(case: Case, batch: Batch, side: str) -> list[str] | None:
    """The columns that a model takes of these rows, in its order; None if it takes what it gets, or cannot be fed."""
    try:
        planned = feeding.plan(batch, case.runners[side].signature, side=side, mapping=case.plan.feed)
    except LikewiseError:
        return None
    return None if planned.columns is None else list(planned.columns)


def association(marked: Array, failing: Array) -> float:
    """How much more often marked rows fail than others: the smoothed ratio of the two rates."""
    with_mark = (float((marked & failing).sum()) + 0.1) / (float(marked.sum()) + 0.2)
    without = (float((~marked & failing).sum()) + 0.1) / (float((~marked).sum()) + 0.2)
    return with_mark / without


def separates(marked: Array, failing: Array) -> bool:
    """Do nearly all of the marked rows fail, and nearly no others? All there is to go by if a model cannot be asked."""
    both = int((marked & failing).sum())
    return (
        both >= max(FEWEST_SEPARATED, 0.9 * int(failing.sum()))
        and both >= 0.8 * int(marked.sum())
        and int((failing & ~marked).sum()) <= 0.01 * int((~marked).sum())
    )
