"""The trees of an XGBoost booster."""

from __future__ import annotations

import json
from copy import copy
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.models.trees.ensemble import LEAF, Ensemble, Gap, Tree, ensemble_of
from likewise.models.xgboost.open import booster_of, facts_of

LOGARITHMIC = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft")


def read(model: Any) -> Ensemble | None:
    """The trees that predict uses: a wrapper's up to the best round, where training stopped early; None without any."""
    booster = booster_of(model)
    best = None if booster is model else facts_of(booster).best_round
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    grown = learner["gradient_booster"]
    dropped = grown.get("weight_drop")
    model = grown.get("gbtree", grown).get("model")
    if model is None or "trees" not in model:
        return None
    ends = model.get("iteration_indptr")
    stored = len(model["trees"])
    used = stored if best is None or not ends else int(ends[min(best + 1, len(ends) - 1)])
    shape = learner["learner_model_param"]
    outputs = max(int(shape["num_class"]), int(shape.get("num_target", 1)), 1)
    trees = [
        _tree(index, model["trees"][index], int(model["tree_info"][index]), 1.0 if dropped is None else dropped[index])
        for index in range(used)
    ]
    return ensemble_of(
        trees,
        outputs=outputs,
        dtype="float32",
        base=_base(shape, learner["objective"]["name"], outputs),
        whole=True,
        stored=stored,
    )


def _tree(number: int, entry: dict[str, Any], output: int, weight: float) -> Tree:
    left, right = np.array(entry["left_children"]), np.array(entry["right_children"])
    leaf = left < 0
    # Written with nine digits, read back as the float32 that was meant.
    condition = np.array(entry["split_conditions"], dtype=np.float32).astype(np.float64)
    gap = np.where(np.array(entry["default_left"], dtype=bool), Gap.LEFT, Gap.RIGHT)
    groups: dict[int, Array] = {}
    starts, sizes = entry.get("categories_segments", []), entry.get("categories_sizes", [])
    for node, start, size in zip(entry.get("categories_nodes", []), starts, sizes, strict=True):
        groups[node] = np.array(entry["categories"][start : start + size])
        # The categories that are listed go right.
        left[node], right[node] = right[node], left[node]
        gap[node] = Gap.RIGHT if gap[node] == Gap.LEFT else Gap.LEFT
    vector = int(entry["tree_param"].get("size_leaf_vector", "1"))
    nodes = np.flatnonzero(leaf)
    if vector > 1:
        weights = np.array(entry["base_weights"], dtype=np.float32).reshape(-1, vector)[nodes]
        leaves = (np.repeat(nodes, vector), np.tile(np.arange(vector), len(nodes)), weights.ravel() * weight)
    else:
        leaves = (nodes, np.full(len(nodes), output), condition[nodes] * weight)
    return Tree(
        number=number,
        feature=np.where(leaf, LEAF, np.array(entry["split_indices"])),
        threshold=np.where(leaf, 0.0, condition),
        left=left,
        right=right,
        leaves=leaves,
        gap=gap,
        strict=True,
        groups=groups,
    )


def _base(shape: dict[str, str], objective: str, outputs: int) -> Array:
    """The base score as what is added to the trees."""
    given = json.loads(shape["base_score"])
    base = np.broadcast_to(np.asarray(given, dtype=np.float64).reshape(-1), (outputs,)).copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        if objective in ("binary:logistic", "reg:logistic"):
            return np.asarray(np.log(base) - np.log1p(-base))
        return np.asarray(np.log(base)) if objective in LOGARITHMIC else base


def cut_to(model: Any, trees: int) -> Any:
    """A copy that uses its first trees only; None if that is no whole number of rounds."""
    booster = booster_of(model)
    grown = json.loads(booster.save_config())["learner"]["gradient_booster"]
    count = int(grown.get("gbtree", grown).get("gbtree_model_param", {}).get("num_trees", 0))
    rounds, rest = divmod(trees * booster.num_boosted_rounds(), max(count, 1))
    if rest:
        return None
    cut = booster[:rounds]
    cut.set_attr(best_iteration=None, best_score=None)
    if model is booster:
        return cut
    wrapper = copy(model)
    wrapper._Booster = cut
    return wrapper
