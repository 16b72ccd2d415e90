"""The trees of a LightGBM booster, as its predict uses them."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from likewise.models.boosters import unrolled
from likewise.models.lightgbm.open import booster_of, is_wrapper
from likewise.models.trees.ensemble import LEAF, Ensemble, Gap, Tree, ensemble_of


def read(model: Any) -> Ensemble:
    """The trees up to the best iteration, where training stopped early."""
    booster = booster_of(model)
    dumped = booster.dump_model()
    each = int(dumped["num_tree_per_iteration"])
    trees = [_tree(index, entry, index % each) for index, entry in enumerate(dumped["tree_info"])]
    return ensemble_of(
        trees,
        outputs=each,
        dtype="float64",
        whole=True,
        average=bool(dumped.get("average_output")),
        stored=booster.num_trees(),
    )


def _tree(number: int, entry: dict[str, Any], output: int) -> Tree:
    nodes, left, right = unrolled(entry["tree_structure"], "left_child", "right_child")
    splits = ["split_index" in node for node in nodes]
    grouped = [node.get("decision_type") == "==" for node in nodes]
    asked = np.array(splits) & ~np.array(grouped)
    leaf = np.flatnonzero(~np.array(splits))
    return Tree(
        number=number,
        feature=np.array([node.get("split_feature", LEAF) for node in nodes]),
        threshold=np.array([float(node["threshold"]) if asked[place] else 0.0 for place, node in enumerate(nodes)]),
        left=left,
        right=right,
        leaves=(leaf, np.full(len(leaf), output), np.array([float(nodes[place]["leaf_value"]) for place in leaf])),
        gap=np.array([_gap(node) if asked[place] else Gap.RIGHT for place, node in enumerate(nodes)]),
        zero_is_gap=np.array([node.get("missing_type") == "Zero" for node in nodes]),
        groups={
            place: np.array([float(entry) for entry in str(nodes[place]["threshold"]).split("||")])
            for place in np.flatnonzero(grouped).tolist()
        },
        node_numbers=np.array([node.get("split_index", node.get("leaf_index", 0)) for node in nodes]),
        linear=[place for place in leaf.tolist() if nodes[place].get("leaf_coeff")],
    )


def _gap(node: dict[str, Any]) -> Gap:
    if node["missing_type"] == "None":
        return Gap.LIKE_ZERO
    return Gap.LEFT if node["default_left"] else Gap.RIGHT


def without_linear_leaves(model: Any) -> Any:
    """A copy with the constants of its leaves only."""
    return _with_trees(model, booster_of(model).model_to_string().replace("\nis_linear=1\n", "\nis_linear=0\n"))


def cut_to(model: Any, trees: int) -> Any:
    """A copy that uses its first trees only; None if that is no whole number of rounds."""
    booster = booster_of(model)
    rounds, rest = divmod(trees, booster.num_model_per_iteration())
    if rest:
        return None
    cut = _with_trees(model, booster.model_to_string(num_iteration=rounds))
    if model is not booster:
        cut._best_iteration = -1
    return cut


def _with_trees(model: Any, written: str) -> Any:
    import lightgbm

    booster = lightgbm.Booster(model_str=written)
    if not is_wrapper(model):
        return booster
    wrapper = copy(model)
    wrapper._Booster = booster
    return wrapper
