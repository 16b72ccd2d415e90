"""What the fitted steps of a scikit-learn reference know about a feature: fill values, categories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from likewise.cases import Case
from likewise.structure.fields import Field, fields_of


@dataclass(frozen=True, slots=True)
class Seat:
    """A fitted step that a feature reaches with its own column still its own: which step, and which of its columns."""

    path: str
    step: Any
    position: int


def seats(case: Case, field: Field) -> tuple[Seat, ...]:
    """The steps that see a feature, in order, until one mixes it with others or makes several columns of it."""
    if case.framework("reference") != "sklearn" or case.native("reference") is None:
        return ()
    memory = case.memory.setdefault("seats", {})
    if not memory:
        columns = _columns(case)
        for path, step, names in followed(case.native("reference"), columns, ""):
            for position, name in enumerate(names):
                memory.setdefault(name, []).append(Seat(path, step, position))
        memory.setdefault("", [])
    return tuple(memory.get(field.name, ()))


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


def followed(model: Any, columns: Sequence[str], path: str) -> Iterator[tuple[str, Any, list[str]]]:
    """Every step with the features that reach it, each as a column of its own."""
    from sklearn.pipeline import Pipeline

    names = list(columns)
    if hasattr(model, "best_estimator_"):
        yield from followed(model.best_estimator_, names, path)
    elif isinstance(model, Pipeline):
        for name, step in model.steps:
            if step in (None, "passthrough"):
                continue
            yield from followed(step, names, f"{path}__{name}" if path else name)
            if not _one_to_one(step, len(names)):
                return
    elif hasattr(model, "transformers_"):
        for name, step, chosen in model.transformers_:
            if not isinstance(step, str):
                yield from followed(step, _chosen(chosen, names), f"{path}__{name}" if path else name)
    elif hasattr(model, "transformer_list"):
        for name, step in model.transformer_list:
            if not isinstance(step, str):
                yield from followed(step, names, f"{path}__{name}" if path else name)
    else:
        yield path, model, names


def _one_to_one(step: Any, width: int) -> bool:
    """Does a step hand on as many columns as it gets, each made from one?"""
    kind = type(step).__name__
    if kind == "SimpleImputer":
        kept = getattr(step, "statistics_", ())
        return len(kept) == width and not step.add_indicator and not any(value != value for value in kept)
    return kind in (
        "FunctionTransformer",
        "MaxAbsScaler",
        "MinMaxScaler",
        "OrdinalEncoder",
        "PowerTransformer",
        "QuantileTransformer",
        "RobustScaler",
        "StandardScaler",
    )


def _chosen(selector: Any, columns: Sequence[str]) -> list[str]:
    """The features that an entry of a fitted ColumnTransformer names: by name, position, mask or slice."""
    import numpy as np

    if isinstance(selector, str):
        return [selector]
    if isinstance(selector, slice) and isinstance(selector.start or selector.stop, str):
        start = columns.index(selector.start) if selector.start is not None else 0
        stop = columns.index(selector.stop) + 1 if selector.stop is not None else len(columns)
        return list(columns[start:stop])
    if not isinstance(selector, slice):
        selector = np.atleast_1d(np.asarray(selector))
        if selector.dtype.kind in "OUT":
            return [str(name) for name in selector]
        if not len(selector):
            return []
    return [str(name) for name in np.array(columns, dtype=object)[selector]]


def imputed(case: Case, field: Field) -> float | str | None:
    """The value that an imputer of the reference was fitted to put in the place of a missing one."""
    for seat in seats(case, field):
        statistics = getattr(seat.step, "statistics_", None)
        if statistics is not None and len(statistics) > seat.position:
            value = statistics[seat.position]
            return value if isinstance(value, str) else float(value)
    return None


@dataclass(frozen=True, slots=True)
class Known:
    """The categories of a feature: those it was fitted with, those of them that are rare to it, and who knows them."""

    values: frozenset[Any]
    rare: frozenset[Any]
    whose: str


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
