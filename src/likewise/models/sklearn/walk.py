"""What is nested in a fitted scikit-learn estimator: one list of it, and the walks that are made along it.

`parts` is the list. A Pipeline, a ColumnTransformer, a search, a frozen model, a vote or a stack: whoever wants to
go inside one of them asks here what it holds and in which role, and everything else follows from the role.

Steps are watched in a copy of the model whose containers are copied and whose steps have another `transform`; the
model itself does the running, so whatever its containers do (select columns, stack sparse parts, keep DataFrames)
happens as always, and the model of the user is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from enum import Enum, auto
from typing import Any, TypeAlias

from likewise.contracts.data import Array
from likewise.contracts.values import dataclass

Change: TypeAlias = Callable[[Any, Any], Any]
"""What a step gives instead, from what it was given and what it gave."""

MOST_MEMBERS = 32
"""Members whose steps are watched; more are the trees of a forest, which have none."""

TEXT = ("CountVectorizer", "TfidfVectorizer", "HashingVectorizer")


class Role(Enum):
    """What an estimator is to the one that holds it."""

    STEP = auto()
    """One of several that work one after another."""
    LAST = auto()
    """The last of them, which gives the answer."""
    BRANCH = auto()
    """One of several side by side, each given some of the columns."""
    ALIAS = auto()
    """Answers in the place of its holder: the best of a search, a frozen model."""
    HELD = auto()
    """Is given what its holder is given; what it says may be changed before it is the answer."""
    CHOSEN = auto()
    """The same behind a choice of columns that the holder makes itself."""
    MEMBER = auto()
    """One of several whose answers are put together."""
    FINAL = auto()
    """Is given the answers of the members."""
    OWN = auto()
    """Serves its holder for something else than the inputs: the target's scaler, a calibration."""


_ANSWERING = (Role.LAST, Role.ALIAS, Role.HELD, Role.CHOSEN)
"""Leads to the model that gives the answer, whatever is made of it."""

_ONE_AFTER_ANOTHER = (Role.STEP, Role.LAST, Role.ALIAS, Role.HELD)
"""Is given what its holder was given, or what the step before made of it."""

_HANDS_ON = (Role.STEP, Role.LAST, Role.ALIAS)
"""Is given the very table that its holder was given, which does not look at it."""


@dataclass(frozen=True, slots=True)
class Part:
    """An estimator inside another: what it is called, its role, and where its holder keeps it.

    A part without a name stands for its holder. `columns` selects those it is given, None where it is given all.
    """

    name: str
    estimator: Any
    role: Role
    attribute: str
    index: int | None = None
    columns: Any = None


_NESTED = {
    "steps": Role.STEP,
    "transformers_": Role.BRANCH,
    "transformer_list": Role.BRANCH,
    "best_estimator_": Role.ALIAS,
    "regressor_": Role.HELD,
    "estimator_": Role.HELD,
    "estimator": Role.HELD,
    "estimators_": Role.MEMBER,
    "calibrated_classifiers_": Role.MEMBER,
    "final_estimator_": Role.FINAL,
    "transformer_": Role.OWN,
    "calibrators": Role.OWN,
    "_scaler": Role.OWN,
    "_tfidf": Role.OWN,
    "_encoder": Role.OWN,
}
"""Where fitted estimators keep others, in the order in which they ask them."""

_NAMED = ("steps", "transformers_", "transformer_list")
_LISTED = ("estimators_", "calibrated_classifiers_", "calibrators")
_FITTED_INSTEAD = ("best_estimator_", "estimator_", "estimators_", "calibrated_classifiers_")


def parts(model: Any) -> Iterator[Part]:
    """The fitted estimators that an estimator holds directly, in the order in which they are asked."""
    # Not `getattr`: a frozen model answers with the attributes of what is inside it.
    held: Mapping[str, Any] = getattr(model, "__dict__", {})
    for attribute, role in _NESTED.items():
        if attribute not in held:
            continue
        if attribute in _NAMED:
            yield from _entries(attribute, role, _pairs(held[attribute]))
        elif attribute in _LISTED:
            yield from _members(attribute, role, held)
        elif _is_estimator(held[attribute]) and not _is_template(attribute, held):
            if attribute == "estimator_" and "support_" in held:
                role = Role.CHOSEN
            elif attribute == "estimator" and type(model).__module__.startswith("sklearn.frozen"):
                role = Role.ALIAS
            nameless = attribute == "best_estimator_" or attribute.startswith("_")
            yield Part("" if nameless else attribute.rstrip("_"), held[attribute], role, attribute)


def _is_estimator(part: Any) -> bool:
    # The members of a calibration are no estimators in name, but each holds one.
    return not isinstance(part, type) and (hasattr(part, "get_params") or hasattr(part, "estimator"))


def _entries(attribute: str, role: Role, entries: Sequence[Any]) -> Iterator[Part]:
    for index, (name, part, *rest) in enumerate(entries):
        last = role is Role.STEP and index == len(entries) - 1
        if part is not None and not isinstance(part, str):
            yield Part(str(name), part, Role.LAST if last else role, attribute, index, rest[0] if rest else None)


def _members(attribute: str, role: Role, held: Mapping[str, Any]) -> Iterator[Part]:
    found = held[attribute]
    members = found.ravel().tolist() if hasattr(found, "ravel") else found
    if not isinstance(members, list | tuple):
        return
    names: Sequence[str] = ()
    if attribute == "estimators_" and hasattr(held.get("named_estimators_"), "items"):
        names = [str(name) for name, part in held["named_estimators_"].items() if not isinstance(part, str)]
    chosen = held.get("estimators_features_")
    for index, part in enumerate(members):
        if _is_estimator(part):
            name = names[index] if len(names) == len(members) else f"{attribute}[{index}]"
            yield Part(name, part, role, attribute, index, None if chosen is None else chosen[index])


def _pairs(entries: Any) -> Sequence[Any]:
    listed = isinstance(entries, list) and all(isinstance(entry, list | tuple) and len(entry) > 1 for entry in entries)
    return entries if listed else ()


def _is_template(attribute: str, held: Mapping[str, Any]) -> bool:
    """Is this what others were cloned from, and not fitted itself?"""
    if attribute == "estimator_":
        return "estimators_" in held
    if attribute != "estimator":
        return False
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    if any(name in held for name in _FITTED_INSTEAD):
        return True
    try:
        check_is_fitted(held[attribute])
    except NotFittedError:
        return True
    except TypeError:  # not an estimator to scikit-learn, which then has nothing to say
        return False
    return False


def with_parts(model: Any, exchange: Callable[[Part], Any]) -> Any:
    """A copy of the model that holds what `exchange` makes of each part; the model itself where all stay."""
    made = model
    for part in parts(model):
        if (other := exchange(part)) is part.estimator:
            continue
        if made is model:
            made = copy(model)
        if part.index is None:
            setattr(made, part.attribute, other)
            continue
        held = getattr(made, part.attribute)
        if held is getattr(model, part.attribute):
            held = held.copy() if hasattr(held, "ravel") else list(held)
            setattr(made, part.attribute, held)
        if part.attribute in _NAMED:
            held[part.index] = (held[part.index][0], other, *held[part.index][2:])
        elif hasattr(held, "ravel"):
            held.flat[part.index] = other
        else:
            held[part.index] = other
    return made


def exchanged(model: Any, part: Any, other: Any) -> Any:
    """A copy of the model with another estimator in the place of one that it holds, or is."""
    return other if model is part else with_parts(model, lambda held: exchanged(held.estimator, part, other))


def walk(model: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every estimator inside a fitted one, outermost first, with its path: `columns.numbers.scaler`."""
    yield path, model
    for part in parts(model):
        yield from walk(part.estimator, ".".join(filter(None, (path, part.name))))


def joined(path: str, name: str) -> str:
    """A path as scikit-learn's `set_params` writes it; a part without a name adds nothing."""
    return "__".join(filter(None, (path, name)))


def _part(model: Any, *roles: Role) -> Any:
    """The first estimator inside another with one of these roles; None if there is none."""
    return next((part.estimator for part in parts(model) if part.role in roles), None)


def innermost(model: Any) -> Any:
    """The estimator that gives the answer in the end: the last step, the best of a search."""
    while (inner := _part(model, Role.ALIAS, Role.LAST)) is not None:
        model = inner
    return model


def outermost(model: Any) -> Any:
    """The estimator that sees the data first."""
    while (inner := _part(model, *_ONE_AFTER_ANOTHER)) is not None:
        model = inner
    return model


def steps_of(model: Any) -> list[tuple[str, Any]]:
    """The steps of a Pipeline, also those that pass everything on; nothing else has any."""
    return [(str(name), step) for name, step in _pairs(getattr(model, "__dict__", {}).get("steps"))]


def steps_before(model: Any) -> tuple[list[tuple[str, Any]], Any]:
    """The steps that change the inputs, and the model that sees what they leave."""
    before: list[tuple[str, Any]] = []
    while True:
        found = list(parts(model))
        before += [(part.name, part.estimator) for part in found if part.role is Role.STEP]
        inner = next((part for part in found if part.role in _ANSWERING), None)
        if inner is None:
            return before, model
        if inner.role is Role.CHOSEN:
            before.append(("selected", model))
        model = inner.estimator


def with_model(model: Any, exchange: Callable[[Any], Any]) -> Any:
    """A copy of a composition with another model in the place of the one behind all steps."""

    def inside(part: Part) -> Any:
        return with_model(part.estimator, exchange) if part.role in _ANSWERING else part.estimator

    return with_parts(model, inside) if _part(model, *_ANSWERING) is not None else exchange(model)


def takes_columns_apart(model: Any) -> bool:
    """Does a ColumnTransformer see the data first?"""
    return "transformers_" in vars(outermost(model))


def passed_over(model: Any, columns: Sequence[str]) -> frozenset[str]:
    """The columns that a model can do without: it hands its table to a ColumnTransformer, which drops them."""
    while (inner := _part(model, *_HANDS_ON)) is not None:
        model = inner
    if "transformers_" not in vars(model):
        return frozenset()
    used = (chosen(own, columns) for _, step, own in model.transformers_ if not isinstance(step, str) or step != "drop")
    return frozenset(columns).difference(*used)


def with_columns_named(model: Any) -> Any:
    """A copy of a model whose ColumnTransformer, if one sees the data first, chooses by names, not by positions."""
    if (inner := _part(model, *_HANDS_ON)) is not None:
        return with_parts(model, lambda part: with_columns_named(inner) if part.estimator is inner else part.estimator)
    names = getattr(model, "feature_names_in_", None)
    if names is None or "transformers_" not in vars(model):
        return model
    made, columns = copy(model), [str(name) for name in names]
    made.transformers_ = [
        (name, step, own if isinstance(own, str) else chosen(own, columns)) for name, step, own in model.transformers_
    ]
    return made


def first_to_see(model: Any, columns: Sequence[str]) -> dict[str, list[Any]]:
    """For each column the steps that are handed it as it comes, without another step before them."""
    seen: dict[str, list[Any]] = {name: [] for name in columns}
    first = outermost(model)
    branches = [part for part in parts(first) if part.role is Role.BRANCH]
    for part in branches:
        for name, steps in first_to_see(part.estimator, chosen(part.columns, columns)).items():
            seen[name].extend(steps)
    return seen if branches else {name: [first] for name in columns}


def chosen(selector: Any, columns: Sequence[str]) -> list[str]:
    """The columns that an entry of a fitted ColumnTransformer names: by name, position, mask or slice; None for all."""
    import numpy as np

    if selector is None:
        return list(columns)
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


def followed(model: Any, columns: Sequence[str], path: str = "") -> Iterator[tuple[str, Any, list[str]]]:
    """Every step with the columns that reach it, each as a column of its own."""
    names = list(columns)
    inside = [part for part in parts(model) if part.role in (*_ONE_AFTER_ANOTHER, Role.BRANCH)]
    if not inside:
        yield path, model, names
    for part in inside:
        yield from followed(part.estimator, chosen(part.columns, names), joined(path, part.name))
        if part.role is Role.STEP and not _one_to_one(part.estimator, len(names)):
            return


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


def visit_steps(model: Any, visit: Callable[[Step], Change | None]) -> Any:
    """A copy of the model in which every step that `visit` has a change for is changed; inner steps come first."""
    visited: list[str] = []

    def changed(model: Any, made: Any, step: Step) -> Any:
        visited.append(step.path)
        change = visit(step)
        return made if change is None else _changed(copy(model) if made is model else made, change)

    def mapped(model: Any, path: str, upstream: tuple[str, ...], *, last: bool) -> Any:
        """`last`: what it gives is the model's answer, and no step on the way to it."""
        found, before, where = list(parts(model)), len(visited), path or type(model).__name__.lower()
        roles = {part.role for part in found}
        aliased = Role.ALIAS in roles and next(parts(found[0].estimator), None) is not None
        if not aliased and not roles & {Role.STEP, Role.LAST, Role.BRANCH} and _is_step(model, last=last):
            return changed(model, model, Step(where, model, upstream=upstream))
        members = [part.estimator for part in found if part.role is Role.MEMBER]
        composed = len(members) <= MOST_MEMBERS and any(next(parts(member), None) for member in members)

        def inner(part: Part) -> Any:
            if part.role is Role.OWN or (part.role is Role.MEMBER and not composed):
                return part.estimator
            in_a_row = part.role in (Role.STEP, Role.LAST)
            given = (*upstream, *visited[before:]) if in_a_row else upstream
            ends = last if part.role is Role.LAST or aliased else part.role not in (Role.STEP, Role.BRANCH)
            return mapped(part.estimator, joined(path, part.name), given, last=ends)

        made = with_parts(model, inner)
        if Role.BRANCH not in roles:
            return made
        made = copy(model) if made is model else made
        if hasattr(made, "n_jobs"):
            # Steps that are watched have to run here.
            made.n_jobs = None
        return changed(model, made, Step(where, model, joins=True, upstream=(*upstream, *visited[before:])))

    return mapped(model, "", (), last=True)


def _is_step(model: Any, *, last: bool) -> bool:
    if not hasattr(model, "transform"):
        return False
    if type(model).__name__ == "FunctionTransformer" and getattr(model, "func", None) is None:
        return False
    return not (last and hasattr(model, "predict"))


def _changed(model: Any, change: Change) -> Any:
    # The method as it is bound here, with the changed inner steps; an attribute of the copy goes before it.
    own = model.transform

    def transform(given: Any, *args: Any, **options: Any) -> Any:
        return change(given, own(given, *args, **options))

    model.transform = transform
    return model
