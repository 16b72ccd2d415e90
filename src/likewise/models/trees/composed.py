"""Where the trees stand in a composed estimator: what comes before them, and which models hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

from likewise.contracts.data import Array
from likewise.models.boosters import derives_from
from likewise.models.catboost import open as cat
from likewise.models.catboost import trees as catboost
from likewise.models.lightgbm import open
from likewise.models.lightgbm import trees as lightgbm
from likewise.models.sklearn import trees as sklearn
from likewise.models.trees.ensemble import Ensemble, joined
from likewise.models.xgboost import open as xgb
from likewise.models.xgboost import trees as xgboost

HELD = ("best_estimator_", "regressor_", "estimator_")
"""Where wrappers that change nothing about the inputs keep the model they fitted."""

MEMBERS = ("estimators_", "calibrated_classifiers_")


def steps_before(model: Any) -> tuple[list[tuple[str, Any]], Any]:
    """The steps that change the inputs, and the model that sees what they leave."""
    before: list[tuple[str, Any]] = []
    while True:
        steps = getattr(model, "steps", None)
        if isinstance(steps, list) and steps and isinstance(steps[-1], tuple):
            before += [(name, step) for name, step in steps[:-1] if step not in (None, "passthrough")]
            model = steps[-1][1]
            continue
        if "estimator_" in getattr(model, "__dict__", {}) and hasattr(model, "support_"):
            before.append(("selected", model))  # chooses columns, then asks a model about them
            model = model.estimator_
            continue
        wrapped = next((name for name in HELD if name in getattr(model, "__dict__", {})), None)
        if wrapped is None or "estimators_" in vars(model):
            if type(model).__module__.startswith("sklearn.frozen"):
                model = model.estimator
                continue
            return before, model
        model = getattr(model, wrapped)


def trees_of(model: Any) -> Ensemble | None:
    """The trees of a model that sees its inputs as they are; None if there are none, or not in a known form."""
    if (read := _reader(model)) is not None:
        return read(model)
    if (found := sklearn.read(model)) is not None:
        return found
    parts = []
    for member, columns in _members(model):
        before, inner = steps_before(member)
        held = None if before else trees_of(inner)
        if before and _anything_with_trees(inner):
            return None  # what its trees are given is not known
        if held is not None:
            parts.append((held, columns))
    return joined(parts) if parts else None


def _anything_with_trees(model: Any) -> bool:
    return trees_of(model) is not None


def _reader(model: Any) -> Callable[[Any], Ensemble | None] | None:
    if derives_from(model, "lightgbm", open.WRAPPERS):
        return lambda wrapper: lightgbm.read(wrapper.booster_)
    if derives_from(model, "lightgbm", open.BOOSTERS):
        return lightgbm.read
    if derives_from(model, "xgboost", xgb.WRAPPERS):
        return _of_xgboost_wrapper
    if derives_from(model, "xgboost", xgb.BOOSTERS):
        return xgboost.read
    if derives_from(model, "catboost", cat.MODELS):
        return catboost.read
    return None


def _of_xgboost_wrapper(wrapper: Any) -> Ensemble | None:
    """As its predict does: up to the best round, where training stopped early."""
    booster = wrapper.get_booster()
    best = xgb.facts_of(booster).best_round
    return xgboost.read(booster, rounds=None if best is None else best + 1)


def _members(model: Any) -> Iterator[tuple[Any, Array | None]]:
    """The models a model is made of, with the columns each sees."""
    held: Sequence[Any] = ()
    for name in MEMBERS:
        found = getattr(model, "__dict__", {}).get(name)
        if found is not None:
            held = list(found.ravel()) if hasattr(found, "ravel") else list(found)
            break
    chosen = getattr(model, "estimators_features_", None)
    for index, member in enumerate(held):
        inner = member.estimator if type(member).__name__ == "_CalibratedClassifier" else member
        if isinstance(inner, str) or inner is None:
            continue
        yield inner, None if chosen is None else chosen[index]


def without_linear_leaves(native: Any) -> Any:
    """The same LightGBM model with the constants of its leaves only, in the composition it stands in; or None."""
    _, model = steps_before(native)
    plain: Any
    if derives_from(model, "lightgbm", open.WRAPPERS):
        plain = copy(model)
        plain._Booster = lightgbm.without_linear_leaves(model.booster_)
    elif derives_from(model, "lightgbm", open.BOOSTERS):
        plain = lightgbm.without_linear_leaves(model)
    else:
        return None
    return _exchanged(native, model, plain)


def _exchanged(whole: Any, old: Any, new: Any) -> Any:
    """A composition with its last model exchanged; wrappers that only hold it fall away."""
    if whole is old:
        return new
    steps = getattr(whole, "steps", None)
    if isinstance(steps, list) and steps:
        from sklearn.pipeline import Pipeline

        return Pipeline([*steps[:-1], (steps[-1][0], _exchanged(steps[-1][1], old, new))])
    held = next((name for name in HELD if name in getattr(whole, "__dict__", {})), None)
    return None if held is None else _exchanged(getattr(whole, held), old, new)


def cut_to(native: Any, trees: int) -> Any:
    """A copy of a booster, in the composition it stands in, that uses its first trees only; None if it cannot."""
    _, model = steps_before(native)
    cut: Any = None
    if derives_from(model, "xgboost", (*xgb.WRAPPERS, *xgb.BOOSTERS)):
        booster = model.get_booster() if hasattr(model, "get_booster") else model
        rounds, rest = divmod(trees * booster.num_boosted_rounds(), max(xgboost.count(booster), 1))
        cut = None if rest else booster[:rounds]
        if cut is not None:
            cut.set_attr(best_iteration=None, best_score=None)
        if cut is not None and model is not booster:
            cut, inner = copy(model), cut
            cut._Booster = inner
    elif derives_from(model, "lightgbm", (*open.WRAPPERS, *open.BOOSTERS)):
        booster = getattr(model, "booster_", model)
        rounds, rest = divmod(trees, booster.num_model_per_iteration())
        cut = None if rest else lightgbm.cut_to(booster, rounds)
        if cut is not None and model is not booster:
            cut, inner = copy(model), cut
            cut._Booster, cut._best_iteration = inner, -1
    elif derives_from(model, "catboost", cat.MODELS):
        cut = model.copy()
        cut.shrink(trees)
    return None if cut is None else _exchanged(native, model, cut)
