"""What is inside a fitted scikit-learn model: its steps, watched or changed, and the arrays that fitting gave it.

Steps are watched in a copy of the model whose containers are copied and whose steps have another `transform`; the
model itself does the running, so whatever its containers do (select columns, stack sparse parts, keep DataFrames)
happens as always, and the model of the user is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, TypeAlias

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.values import dataclass
from likewise.models.arrays import MODEL, PREPROCESSING, Parameter
from likewise.models.sklearn.walk import Part, Role, chosen, joined, names_given, parts, with_parts

Change: TypeAlias = Callable[[Any, Any], Any]
"""What a step gives instead, from what it was given and what it gave."""

MOST_MEMBERS = 32
"""Members whose steps are watched; more are the trees of a forest, which have none."""

TEXT = ("CountVectorizer", "TfidfVectorizer", "HashingVectorizer")

NO_WEIGHTS = {"classes_", "feature_names_in_", "n_features_in_", "n_iter_", "loss_curve_", "feature_importances_"}
"""What fitted estimators keep and no export contains as a weight; labels have hypotheses of their own."""

UNDERSCORED = ("_fit_X", "_y", "_dual_coef_", "_intercept_", "_probA", "_probB")

OUTPUTS_FIRST = {"coef_": True, "coefs_": False, "components_": True}
"""Which way round matrices of estimators multiply."""


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
    return visit_steps(model, lambda step: changes.get(step.path))


def passing(given: Any, gave: Any) -> Any:
    """A step that gives what it was given."""
    values = numbers(given)
    return given if values is None else in_form_of(gave, values)


def numbers(table: Any) -> Array | None:
    """A table of any form as an array of float64 with a row each; None if it does not hold numbers."""
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


def visit_steps(model: Any, visit: Callable[[Step], Change | None]) -> Any:
    """A copy of the model in which every step that `visit` has a change for is changed; inner steps come first."""
    return _mapped(model, "", (), visit, last=True)


def _mapped(
    model: Any, path: str, upstream: tuple[str, ...], visit: Callable[[Step], Change | None], *, last: bool
) -> Any:
    found = list(parts(model))
    roles = {part.role for part in found}
    if Role.ALIAS in roles and next(parts(found[0].estimator), None) is not None:
        return with_parts(
            model, lambda part: _mapped(part.estimator, joined(path, part.name), upstream, visit, last=last)
        )
    if roles & {Role.STEP, Role.LAST}:
        return with_parts(model, _one_after_another(path, upstream, visit, last=last))
    if Role.BRANCH in roles:
        inside = list(upstream)

        def branch(part: Part) -> Any:
            where = joined(path, part.name)
            inside.extend(_paths(part.estimator, where, last=False))
            return _mapped(part.estimator, where, upstream, visit, last=False)

        made = with_parts(model, branch)
        made = copy(model) if made is model else made
        if hasattr(made, "n_jobs"):
            # Steps that are watched have to run here.
            made.n_jobs = None
        return _changed(made, visit(Step(path or _root(model), model, joins=True, upstream=tuple(inside))))
    if _is_step(model, last=last):
        change = visit(Step(path or _root(model), model, upstream=upstream))
        return model if change is None else _changed(copy(model), change)
    several = [part.estimator for part in found if part.role is Role.MEMBER]
    composed = len(several) <= MOST_MEMBERS and any(next(parts(member), None) for member in several)

    def inner(part: Part) -> Any:
        """A model around others: a search, a calibration, a vote, a stack."""
        if part.role is Role.OWN or (part.role is Role.MEMBER and not composed):
            return part.estimator
        return _mapped(part.estimator, joined(path, part.name), upstream, visit, last=True)

    return with_parts(model, inner)


def _one_after_another(
    path: str, upstream: tuple[str, ...], visit: Callable[[Step], Change | None], *, last: bool
) -> Callable[[Part], Any]:
    before = upstream

    def step(part: Part) -> Any:
        nonlocal before
        where, final = joined(path, part.name), last and part.role is Role.LAST
        made = _mapped(part.estimator, where, before, visit, last=final)
        before = (*before, *_paths(part.estimator, where, last=final))
        return made

    return step


def _is_step(model: Any, *, last: bool) -> bool:
    if not hasattr(model, "transform"):
        return False
    if type(model).__name__ == "FunctionTransformer" and getattr(model, "func", None) is None:
        return False
    return not (last and hasattr(model, "predict"))


def _paths(model: Any, path: str, *, last: bool) -> list[str]:
    found: list[str] = []

    def note(step: Step) -> None:
        found.append(step.path)

    _mapped(model, path, (), note, last=last)
    return found


def _changed(model: Any, change: Change | None) -> Any:
    if change is None:
        return model
    # The method as it is bound here, with the changed inner steps; an attribute of the copy goes before it.
    own, vary = model.transform, change

    def transform(given: Any, *args: Any, **options: Any) -> Any:
        return vary(given, own(given, *args, **options))

    model.transform = transform
    return model


def _root(model: Any) -> str:
    return type(model).__name__.lower()


def parameters(model: Any, columns: Sequence[str]) -> tuple[Parameter, ...]:
    """The fitted arrays of an estimator of scikit-learn's kind; `columns` are what it is fed."""
    role = MODEL if hasattr(model, "predict") else PREPROCESSING
    return tuple(_walk(model, "", role, tuple(columns)))


def _walk(model: Any, path: str, role: str, columns: tuple[str, ...]) -> Iterator[Parameter]:
    """The arrays of an estimator and of those inside it; the names of columns go along as far as they are known."""
    own = tuple(map(str, getattr(model, "feature_names_in_", columns)))
    columns = own if len(own) == getattr(model, "n_features_in_", len(own)) else ()
    found = list(parts(model))
    if not any(part.role in (Role.STEP, Role.LAST, Role.BRANCH, Role.ALIAS) for part in found):
        yield from _own(model, path, role, columns)
    for part in found:
        preparing = part.role in (Role.STEP, Role.BRANCH)
        given = () if part.role in (Role.OWN, Role.FINAL) else _chosen(part.columns, columns)
        yield from _walk(part.estimator, joined(path, part.name), PREPROCESSING if preparing else role, given)
        if part.role is Role.STEP:
            columns = tuple(names_given(part.estimator, columns))


def _chosen(selector: Any, columns: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(chosen(selector, columns))
    except (IndexError, TypeError, ValueError):  # the columns are not known
        return ()


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
    if values.dtype.kind in "biuf":
        return np.atleast_1d(values)
    return np.array([str(entry) for entry in values.flat], dtype=object).reshape(np.atleast_1d(values).shape)


def _axis_of_columns(attribute: str, values: Array, count: int) -> int | None:
    if not count:
        return None
    if attribute.startswith("coefs_["):
        return 0 if attribute == "coefs_[0]" and values.shape[0] == count else None
    return values.ndim - 1 if values.shape[-1] == count else None


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
