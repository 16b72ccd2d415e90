"""The trees of a composed estimator, wherever they stand in it, and the estimator with other trees in their place."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from likewise.models.boosters import derives_from
from likewise.models.catboost import open as cat
from likewise.models.catboost import trees as catboost
from likewise.models.lightgbm import open
from likewise.models.lightgbm import trees as lightgbm
from likewise.models.sklearn import trees as sklearn
from likewise.models.sklearn.walk import Role, parts, steps_before, with_model
from likewise.models.trees.ensemble import Ensemble, joined
from likewise.models.xgboost import open as xgb
from likewise.models.xgboost import trees as xgboost


def trees_of(model: Any) -> Ensemble | None:
    """The trees of a model that sees its inputs as they are; None if there are none, or not in a known form."""
    if (read := _reader(model)) is not None:
        return read(model)
    if (found := sklearn.read(model)) is not None:
        return found
    members = []
    for part in parts(model):
        if part.role is not Role.MEMBER:
            continue
        before, inner = steps_before(part.estimator)
        held = trees_of(inner)
        if before and held is not None:
            return None  # what its trees are given is not known
        if held is not None:
            members.append((held, part.columns))
    return joined(members) if members else None


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
    return with_model(native, lambda _: plain)


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
    return None if cut is None else with_model(native, lambda _: cut)
