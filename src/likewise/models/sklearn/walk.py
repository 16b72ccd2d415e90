"""The parts of a composed estimator: where each stands, and which of them sees a column first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_NAMED = ("steps", "transformers_", "transformer_list")
_HELD = ("best_estimator_", "estimator_", "final_estimator_", "estimator", "regressor_", "transformer_")
_LISTED = ("named_estimators_", "estimators_", "calibrated_classifiers_")


def walk(model: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every estimator inside a fitted one, outermost first, with its path: `columns.numbers.scaler`."""
    yield path, model
    for name, part in _parts(model):
        if hasattr(part, "get_params") or hasattr(part, "estimator"):
            yield from walk(part, f"{path}.{name}" if path else str(name))


def _parts(model: Any) -> Iterator[tuple[str, Any]]:
    for attribute in _NAMED:
        yield from ((str(entry[0]), entry[1]) for entry in getattr(model, attribute, ()))
    for attribute in _HELD:
        if attribute in vars(model):
            yield attribute.rstrip("_"), getattr(model, attribute)
    for attribute in _LISTED:
        held = vars(model).get(attribute, ())
        yield from held.items() if hasattr(held, "items") else _numbered(attribute, held)


def _numbered(attribute: str, held: Any) -> Iterator[tuple[str, Any]]:
    for index, part in enumerate(held):
        # Boosted trees keep arrays of trees, which are no steps a person would name.
        if hasattr(part, "get_params") or hasattr(part, "estimator"):
            yield f"{attribute.rstrip('_')}[{index}]", part


def takes_columns_apart(model: Any) -> bool:
    """Does a ColumnTransformer see the data first?"""
    from sklearn.compose import ColumnTransformer

    return isinstance(outermost(model), ColumnTransformer)


def first_to_see(model: Any, columns: Sequence[str]) -> dict[str, list[Any]]:
    """For each column the steps that are handed it as it comes, without another step before them."""
    seen: dict[str, list[Any]] = {name: [] for name in columns}
    _follow(model, list(columns), seen)
    return seen


def _follow(model: Any, columns: list[str], seen: dict[str, list[Any]]) -> None:
    first = outermost(model)
    if hasattr(first, "transformers_"):
        for _, step, chosen in first.transformers_:
            if not isinstance(step, str):
                _follow(step, _chosen(chosen, columns), seen)
    elif hasattr(first, "transformer_list"):
        for _, step in first.transformer_list:
            _follow(step, columns, seen)
    else:
        for name in columns:
            seen[name].append(first)


def _chosen(selector: Any, columns: list[str]) -> list[str]:
    """The columns that an entry of a fitted ColumnTransformer names: by name, position, mask or slice."""
    import numpy as np

    if isinstance(selector, str):
        return [selector]
    if isinstance(selector, slice) and isinstance(selector.start or selector.stop, str):
        start = columns.index(selector.start) if selector.start is not None else 0
        stop = columns.index(selector.stop) + 1 if selector.stop is not None else len(columns)
        return columns[start:stop]
    if not isinstance(selector, slice):
        selector = np.atleast_1d(np.asarray(selector))
        if selector.dtype.kind in "OUT":
            return [str(name) for name in selector]
        if not len(selector):
            return []
    return [str(name) for name in np.array(columns, dtype=object)[selector]]


def innermost(model: Any) -> Any:
    """The estimator that gives the answer in the end: the last step, the best of a search."""
    while True:
        if hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        elif _is(model, "sklearn.frozen") and hasattr(model, "estimator"):
            model = model.estimator
        elif steps_of(model) and model.steps[-1][1] not in (None, "passthrough"):
            model = model.steps[-1][1]
        else:
            return model


def outermost(model: Any) -> Any:
    """The estimator that sees the data first."""
    while True:
        if hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        elif steps := [step for _, step in steps_of(model) if step not in (None, "passthrough")]:
            model = steps[0]
        else:
            return model


def steps_of(model: Any) -> list[tuple[str, Any]]:
    """The steps of a Pipeline; nothing else has any."""
    from sklearn.pipeline import Pipeline

    return list(model.steps) if isinstance(model, Pipeline) else []


def _is(model: Any, module: str, name: str | None = None) -> bool:
    kind = type(model)
    return kind.__module__.startswith(module) and name in (None, kind.__name__)


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
