"""Every array that fitting gave a reference, with the step it belongs to and the columns it speaks of.

What the fitted steps of a scikit-learn reference know about a feature: fill values, categories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from likewise.contracts.data import Array
from likewise.models.parameters import MODEL, PREPROCESSING, Parameter

NO_WEIGHTS = {"classes_", "feature_names_in_", "n_features_in_", "n_iter_", "loss_curve_", "feature_importances_"}
"""What fitted estimators keep and no export contains as a weight; labels have hypotheses of their own."""

HELD = ("best_estimator_", "estimator_", "final_estimator_", "regressor_", "transformer_", "estimator")
HELD_INSIDE = ("_scaler", "_tfidf", "_encoder", "_raw_predict_init")
LISTED = ("estimators_", "calibrated_classifiers_", "calibrators", "named_estimators_")
UNDERSCORED = ("_fit_X", "_y", "_dual_coef_", "_intercept_", "_probA", "_probB")

OUTPUTS_FIRST = {"coef_": True, "coefs_": False, "components_": True}
"""Which way round matrices of estimators multiply."""


def parameters(model: Any, columns: Sequence[str]) -> tuple[Parameter, ...]:
    """The fitted arrays of an estimator of scikit-learn's kind; `columns` are what it is fed."""
    role = MODEL if hasattr(model, "predict") else PREPROCESSING
    return tuple(_walk(model, "", role, tuple(columns)))


def _walk(model: Any, path: str, role: str, columns: tuple[str, ...]) -> Iterator[Parameter]:
    """The arrays of an estimator and of those inside it; the names of columns go along as far as they are known."""
    if hasattr(model, "best_estimator_"):
        yield from _walk(model.best_estimator_, path, role, columns)
        return
    own = tuple(map(str, getattr(model, "feature_names_in_", columns)))
    columns = own if len(own) == getattr(model, "n_features_in_", len(own)) else ()
    if isinstance(getattr(model, "steps", None), list):
        yield from _walk_pipeline(model.steps, path, role, columns)
    elif hasattr(model, "transformers_"):
        for name, step, chosen in model.transformers_:
            if not isinstance(step, str):
                yield from _walk(step, _join(path, name), PREPROCESSING, _chosen(chosen, columns))
    elif hasattr(model, "transformer_list"):
        for name, step in model.transformer_list:
            if not isinstance(step, str):
                yield from _walk(step, _join(path, name), PREPROCESSING, columns)
    else:
        yield from _own(model, path, role, columns)
        for name, part, same in _inside(model):
            yield from _walk(part, path if name in HELD_INSIDE else _join(path, name), role, columns if same else ())


def _walk_pipeline(steps: Sequence[Any], path: str, role: str, columns: tuple[str, ...]) -> Iterator[Parameter]:
    for number, (name, step) in enumerate(steps):
        if step is None or isinstance(step, str):
            continue
        last = number == len(steps) - 1
        yield from _walk(step, _join(path, name), role if last else PREPROCESSING, columns)
        columns = () if last else _given(step, columns)


def _given(step: Any, columns: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the columns that a step gives, where it can tell."""
    try:
        return tuple(map(str, step.get_feature_names_out(list(columns) or None)))
    except Exception:  # noqa: BLE001 - steps of others may raise anything; names are for the reader only
        return ()


def _chosen(selector: Any, columns: tuple[str, ...]) -> tuple[str, ...]:
    import numpy as np

    try:
        if isinstance(selector, str):
            return (selector,)
        if isinstance(selector, slice) and isinstance(selector.start or selector.stop, str):
            return ()
        if not isinstance(selector, slice):
            selector = np.atleast_1d(np.asarray(selector))
            if selector.dtype.kind in "OUT":
                return tuple(map(str, selector))
        return tuple(map(str, np.array(columns, dtype=object)[selector]))
    except (IndexError, TypeError, ValueError):
        return ()


def _inside(model: Any) -> Iterator[tuple[str, Any, bool]]:
    """The estimators that another one holds, and whether they are given the same columns."""
    held: Mapping[str, Any] = vars(model) if hasattr(model, "__dict__") else {}
    fitted = [name for name in HELD if name in held and hasattr(held[name], "get_params")]
    if "estimator_" in fitted and "estimator" in fitted:
        fitted.remove("estimator")
    for name in fitted:
        yield name.rstrip("_"), held[name], True
    for name in HELD_INSIDE:
        if hasattr(held.get(name), "get_params"):
            yield name, held[name], False
    for name in LISTED:
        if name == "named_estimators_" or name not in held:
            continue
        parts = held[name]
        named = list(held["named_estimators_"]) if name == "estimators_" and "named_estimators_" in held else None
        for number, part in enumerate(parts if isinstance(parts, list | tuple) else ()):
            if hasattr(part, "get_params") or name.startswith("calib"):
                known = named is not None and len(named) == len(parts)
                yield named[number] if named and known else f"{name.rstrip('_')}[{number}]", part, True


def _own(model: Any, path: str, role: str, columns: tuple[str, ...]) -> Iterator[Parameter]:
    kind = type(model).__name__
    if hasattr(model, "tree_"):
        return
    for attribute, value in _fitted(model):
        for name, column, values in _arrays(attribute, value, columns):
            if column is not None:
                yield Parameter(path, name, values, role, kind, (column,) * len(values))
                continue
            axis = _axis_of_columns(name, values, len(columns))
            named = columns if axis is not None else ()
            first = OUTPUTS_FIRST.get(name.partition("[")[0])
            yield Parameter(path, name, values, role, kind, named, axis or 0, outputs_first=first)


def _fitted(model: Any) -> Iterator[tuple[str, Any]]:
    held = vars(model) if hasattr(model, "__dict__") else {}
    for name, value in held.items():
        public = name.endswith("_") and not name.startswith("_")
        beside = name == "var_" and "scale_" in held  # a scaler divides by the one and keeps the other
        if (public or name in UNDERSCORED) and name not in NO_WEIGHTS and not name.startswith("n_") and not beside:
            yield name, value


def _arrays(attribute: str, value: Any, columns: tuple[str, ...]) -> Iterator[tuple[str, str | None, Array]]:
    """The arrays of an attribute: itself, or the entries of a list, which may be one a column."""
    import numpy as np

    if isinstance(value, float | np.floating):
        yield attribute, None, np.asarray([value])
    elif attribute == "vocabulary_" and isinstance(value, Mapping):
        yield attribute, None, np.array(sorted(value, key=lambda term: value[term]), dtype=object)
    elif isinstance(value, list | tuple) or (
        isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1
    ):
        entries = [np.asarray(entry) for entry in value if isinstance(entry, np.ndarray)]
        if entries and len(entries) == len(value):
            named = len(entries) == len(columns)
            for number, entry in enumerate(entries):
                per_column = columns[number] if named and attribute in ("categories_", "bin_edges_") else None
                yield f"{attribute}[{number}]", per_column, _plain(entry)
        elif isinstance(value, np.ndarray) and value.size:
            yield attribute, None, _plain(value)
    elif isinstance(value, np.ndarray) and value.size:
        yield attribute, None, _plain(value)
    elif hasattr(value, "toarray") and value.shape[0] * value.shape[1] <= 10_000_000:
        yield attribute, None, _plain(np.asarray(value.toarray()))


def _plain(values: Array) -> Array:
    """Numbers as they are; everything else as text."""
    import numpy as np

    if values.dtype.kind in "biuf":
        return np.atleast_1d(values)
    return np.array([str(entry) for entry in values.flat], dtype=object).reshape(np.atleast_1d(values).shape)


def _axis_of_columns(attribute: str, values: Array, count: int) -> int | None:
    if not count:
        return None
    if attribute.startswith("coefs_["):
        return 0 if attribute == "coefs_[0]" and values.shape[0] == count else None
    return values.ndim - 1 if values.shape[-1] == count else None


def _join(path: str, name: str) -> str:
    return f"{path}__{name}" if path else name


@dataclass(frozen=True, slots=True)
class Seat:
    """A fitted step that a feature reaches with its own column still its own: which step, and which of its columns."""

    path: str
    step: Any
    position: int


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
                yield from followed(step, _chosen_fitted(chosen, names), f"{path}__{name}" if path else name)
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


def _chosen_fitted(selector: Any, columns: Sequence[str]) -> list[str]:
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


@dataclass(frozen=True, slots=True)
class Known:
    """The categories of a feature: those it was fitted with, those of them that are rare to it, and who knows them."""

    values: frozenset[Any]
    rare: frozenset[Any]
    whose: str
