"""The steps of a fitted scikit-learn model: what each is given and gives, and the model with some of them changed.

Steps are watched in a copy of the model whose containers are copied and whose steps have another `transform`; the
model itself does the running, so whatever its containers do (select columns, stack sparse parts, keep DataFrames)
happens as always, and the model of the user is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeAlias

from likewise.contracts.data import Array

Change: TypeAlias = Callable[[Any, Any], Any]
"""What a step gives instead, from what it was given and what it gave."""

HELD = ("best_estimator_", "regressor_", "estimator", "estimator_", "final_estimator_")
LISTED = ("estimators_", "calibrated_classifiers_")
"""Where estimators that hold others keep the fitted ones."""

TEXT = ("CountVectorizer", "TfidfVectorizer", "HashingVectorizer")


@dataclass(frozen=True, slots=True)
class Step:
    """A transformer inside a model; `path` is how scikit-learn's `set_params` names it.

    `joins` marks a ColumnTransformer or FeatureUnion, which puts the outputs of its branches side by side.
    `upstream` are the paths of the steps its input has been through.
    """

    path: str
    estimator: Any
    joins: bool = False
    upstream: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.rpartition("__")[2]

    @property
    def reads_text(self) -> bool:
        return any(kind.__name__ in TEXT for kind in type(self.estimator).__mro__)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a step was given and what it gave, as it came and as arrays of numbers where they are numbers."""

    given: Any
    gave: Any

    @property
    def input(self) -> Array | None:
        return numbers(self.given)

    @property
    def output(self) -> Array | None:
        return numbers(self.gave)


def with_changes(model: Any, changes: Mapping[str, Change]) -> Any:
    """A copy of the model in which the steps at these paths give something else."""
    return _mapped(model, "", (), lambda step: changes.get(step.path), last=True)


def passing(given: Any, gave: Any) -> Any:
    """A step that gives what it was given."""
    values = numbers(given)
    return given if values is None else in_form_of(gave, values)


def numbers(table: Any) -> Array | None:
    """A table of any form as an array of float64 with a row each; None if it does not hold numbers."""
    import numpy as np

    if hasattr(table, "toarray"):
        table = table.toarray()
    try:
        array = np.asarray(table.to_numpy() if hasattr(table, "to_numpy") else table)
        array = array.astype(np.float64)
    except (TypeError, ValueError):
        return None
    return array.reshape(len(array), -1) if array.ndim else None


def in_form_of(table: Any, values: Array) -> Any:
    """Numbers in the form of a table: sparse, a DataFrame of the same columns, or an array."""
    if hasattr(table, "tocsr"):
        from scipy import sparse

        return sparse.csr_matrix(values)
    if hasattr(table, "columns") and hasattr(table, "iloc"):
        import pandas as pd

        names = table.columns if values.shape[1] == len(table.columns) else None
        return pd.DataFrame(values, columns=names, index=table.index)
    return values


def _mapped(
    model: Any, path: str, upstream: tuple[str, ...], visit: Callable[[Step], Change | None], *, last: bool
) -> Any:
    """A copy of the model in which every step that `visit` has a change for is changed; inner steps come first."""
    if hasattr(model, "steps") and isinstance(model.steps, list):
        made, before = copy(model), upstream
        made.steps = []
        for index, (name, part) in enumerate(model.steps):
            inner = _at(path, name)
            final = last and index == len(model.steps) - 1
            made.steps.append((name, _mapped(part, inner, before, visit, last=final)))
            before = (*before, *_paths(part, inner, last=final))
        return made
    branches = next((name for name in ("transformers_", "transformer_list") if hasattr(model, name)), None)
    if branches is not None:
        made, inside = copy(model), list(upstream)
        parts = []
        for name, part, *rest in getattr(model, branches):
            parts.append((name, _mapped(part, _at(path, name), upstream, visit, last=False), *rest))
            inside.extend(_paths(part, _at(path, name), last=False))
        setattr(made, branches, parts)
        if hasattr(made, "n_jobs"):
            # Steps that are watched have to run here.
            made.n_jobs = None
        return _changed(made, visit(Step(path or _root(model), model, joins=True, upstream=tuple(inside))))
    if _is_step(model, last=last):
        change = visit(Step(path or _root(model), model, upstream=upstream))
        return model if change is None else _changed(copy(model), change)
    return _with_parts(model, path, upstream, visit)


def _with_parts(model: Any, path: str, upstream: tuple[str, ...], visit: Callable[[Step], Change | None]) -> Any:
    """A model around others: a search, a calibration, a vote, a stack."""
    held = vars(model) if hasattr(model, "__dict__") else {}
    singles = [name for name in HELD if hasattr(held.get(name), "fit")]
    lists = [name for name in LISTED if isinstance(held.get(name), list) and _has_estimators(held[name])]
    if not singles and not lists:
        return model
    made = copy(model)
    for name in singles:
        inner = path if name == "best_estimator_" else _at(path, name.rstrip("_"))
        setattr(made, name, _mapped(held[name], inner, upstream, visit, last=True))
    for name in lists:
        parts = [
            _mapped(part, _at(path, f"{name.rstrip('_')}[{index}]"), upstream, visit, last=True)
            for index, part in enumerate(held[name])
        ]
        setattr(made, name, parts)
    return made


def _has_estimators(parts: list[Any]) -> bool:
    # A forest's trees hold no steps, and there are many of them.
    return 0 < len(parts) <= 32 and any(hasattr(part, "estimator") or hasattr(part, "steps") for part in parts)


def _is_step(model: Any, *, last: bool) -> bool:
    if isinstance(model, str) or model is None or not hasattr(model, "transform"):
        return False
    if type(model).__name__ == "FunctionTransformer" and getattr(model, "func", None) is None:
        return False
    return not (last and hasattr(model, "predict"))


def _paths(model: Any, path: str, *, last: bool) -> Iterator[str]:
    found: list[str] = []

    def note(step: Step) -> None:
        found.append(step.path)

    _mapped(model, path, (), note, last=last)
    return iter(found)


def _changed(model: Any, change: Change | None) -> Any:
    if change is None:
        return model
    # The method as it is bound here, with the changed inner steps; an attribute of the copy goes before it.
    own, vary = model.transform, change

    def transform(given: Any, *args: Any, **options: Any) -> Any:
        return vary(given, own(given, *args, **options))

    model.transform = transform
    return model


def _at(path: str, name: str) -> str:
    return f"{path}__{name}" if path else str(name)


def _root(model: Any) -> str:
    return type(model).__name__.lower()
