"""What the columns that trees see are called in the user's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from likewise.cases import Case

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

ONE_TO_ONE = frozenset(
    {"Identity", "Cast", "Scaler", "Imputer", "Sub", "Add", "Mul", "Div", "Clip", "Where", "Sqrt", "Log", "Abs"}
)
"""Operators that keep a column a column."""


def names_after(steps: Sequence[tuple[str, Any]], columns: tuple[str, ...]) -> tuple[str, ...]:
    """The names of what the steps give: the data's own where a step keeps a column a column."""
    names = list(columns)
    for path, step in steps:
        names = _told(step, names) or [f"{path}[{index}]" for index in range(_width(step))]
    return tuple(_original(name, columns) for name in names)


def _told(step: Any, names: list[str]) -> list[str]:
    """What a step calls its outputs, given its inputs' names; nothing if it does not say."""
    import numpy as np

    for given in (np.array(names, dtype=object), None):
        try:
            return [str(name) for name in step.get_feature_names_out(given)]
        except (AttributeError, TypeError, ValueError):
            continue
    return []


def _width(step: Any) -> int:
    for name in ("n_components_", "n_components", "n_features_in_"):
        found = getattr(step, name, None)
        if isinstance(found, int):
            return found
    return 0


def _original(name: str, columns: Sequence[str]) -> str:
    """A name without the branches it went through, where that is a column of the data."""
    rest = name
    while rest not in columns and "__" in rest:
        rest = rest.partition("__")[2]
    return rest if rest in columns else name


def names_in_graph(case: Case, side: str, proto: ModelProto, tensor: str) -> tuple[str, ...]:
    """The names of a tensor's columns, followed back to the inputs of the graph."""
    found: Any = getattr(case, side)
    fed: dict[str, tuple[str, ...]] = {}
    for route in found.feed.routes or () if found is not None else ():
        names = route.columns
        array = case.required.batch.inputs[names[0]] if case.sample is not None else None
        if len(names) == 1 and array is not None and array.ndim == 2 and array.shape[1] > 1:
            fed[route.input.name] = tuple(f"{names[0]}[{index}]" for index in range(array.shape[1]))
        else:
            fed[route.input.name] = names
    makers = {name: node for node in proto.graph.node for name in node.output}
    return tuple(_followed(tensor, makers, fed, 0))


def _followed(
    tensor: str, makers: Mapping[str, NodeProto], fed: Mapping[str, tuple[str, ...]], depth: int
) -> tuple[str, ...]:
    if tensor in fed:
        return fed[tensor]
    node = makers.get(tensor)
    if node is None or depth > 40:
        return ()
    if node.op_type in ("Concat", "FeatureVectorizer"):
        parts = [_followed(given, makers, fed, depth + 1) for given in node.input]
        return tuple(name for part in parts for name in part) if all(parts) else ()
    if node.op_type in ONE_TO_ONE:
        parts = [_followed(given, makers, fed, depth + 1) for given in node.input]
        known = [part for part in parts if part]
        return known[0] if len(known) == 1 else ()
    return ()
