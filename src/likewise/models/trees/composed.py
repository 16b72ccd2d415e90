"""The trees of a composed estimator, wherever they stand in it, and the estimator with other trees in their place."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from likewise.models.catboost import open as cat
from likewise.models.catboost import trees as catboost
from likewise.models.lightgbm import open as lgb
from likewise.models.lightgbm import trees as lightgbm
from likewise.models.sklearn import trees as sklearn
from likewise.models.sklearn.walk import Role, parts, steps_before, with_model
from likewise.models.trees.ensemble import Ensemble, joined
from likewise.models.xgboost import open as xgb
from likewise.models.xgboost import trees as xgboost


def _boosted(model: Any) -> ModuleType | None:
    """What reads the trees of a booster; None for any other model."""
    known = ((xgb, xgboost), (lgb, lightgbm), (cat, catboost))
    return next((trees for opened, trees in known if opened.is_model(model)), None)


def trees_of(model: Any) -> Ensemble | None:
    """The trees of a model that sees its inputs as they are; None if there are none, or not in a known form."""
    found: Ensemble | None
    if (home := _boosted(model)) is not None:
        found = home.read(model)
        return found
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


def without_linear_leaves(native: Any) -> Any:
    """The same LightGBM model with the constants of its leaves only, in the composition it stands in; or None."""
    _, model = steps_before(native)
    return with_model(native, lightgbm.without_linear_leaves) if lgb.is_model(model) else None


def cut_to(native: Any, trees: int) -> Any:
    """A copy of a booster, in the composition it stands in, that uses its first trees only; None if it cannot."""
    _, model = steps_before(native)
    home = _boosted(model)
    cut = None if home is None else home.cut_to(model, trees)
    return None if cut is None else with_model(native, lambda _: cut)
