"""The trees of a LightGBM booster, as its predict uses them."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from likewise.contracts.data import Array
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


class _Nodes:
    """Nodes of one tree, collected in the order of a walk from the root."""

    def __init__(self) -> None:
        self.feature: list[int] = []
        self.threshold: list[float] = []
        self.left: list[int] = []
        self.right: list[int] = []
        self.gap: list[int] = []
        self.zero_is_gap: list[bool] = []
        self.number: list[int] = []
        self.groups: dict[int, Array] = {}
        self.values: dict[int, float] = {}
        self.linear: list[int] = []

    def add(self, node: dict[str, Any]) -> int:
        place = len(self.feature)
        split = "split_index" in node
        self.feature.append(node["split_feature"] if split else LEAF)
        self.number.append(node["split_index"] if split else node.get("leaf_index", 0))
        self.left.append(0)
        self.right.append(0)
        self.zero_is_gap.append(split and node["missing_type"] == "Zero")
        if not split:
            self.values[place] = float(node["leaf_value"])
            if node.get("leaf_coeff"):
                self.linear.append(place)
            self.threshold.append(0.0)
            self.gap.append(Gap.RIGHT)
            return place
        if node["decision_type"] == "==":
            self.groups[place] = np.array([float(entry) for entry in str(node["threshold"]).split("||")])
            self.threshold.append(0.0)
            self.gap.append(Gap.RIGHT)
            return place
        self.threshold.append(float(node["threshold"]))
        default = Gap.LEFT if node["default_left"] else Gap.RIGHT
        self.gap.append(Gap.LIKE_ZERO if node["missing_type"] == "None" else default)
        return place


def _tree(number: int, entry: dict[str, Any], output: int) -> Tree:
    nodes = _Nodes()
    stack: list[tuple[dict[str, Any], int, str]] = [(entry["tree_structure"], -1, "")]
    while stack:
        node, parent, side = stack.pop()
        place = nodes.add(node)
        if parent >= 0:
            (nodes.left if side == "left" else nodes.right)[parent] = place
        if "split_index" in node:
            stack.append((node["right_child"], place, "right"))
            stack.append((node["left_child"], place, "left"))
    leaf = np.fromiter(nodes.values, dtype=np.int64)
    return Tree(
        number=number,
        feature=np.array(nodes.feature),
        threshold=np.array(nodes.threshold),
        left=np.array(nodes.left),
        right=np.array(nodes.right),
        leaves=(leaf, np.full(len(leaf), output), np.fromiter(nodes.values.values(), dtype=np.float64)),
        gap=np.array(nodes.gap),
        zero_is_gap=np.array(nodes.zero_is_gap),
        groups=nodes.groups,
        node_numbers=np.array(nodes.number),
        linear=nodes.linear,
    )


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
