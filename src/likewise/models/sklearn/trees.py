"""The trees of scikit-learn's own estimators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.models.trees.ensemble import LEAF, Ensemble, Gap, Tree, ensemble_of

MODULES = ("sklearn.tree", "sklearn.ensemble")


def read(model: Any) -> Ensemble | None:
    """The trees of one estimator as its predict adds them up; None for one that is not made of trees alone."""
    if not type(model).__module__.startswith(MODULES) and not _derived(model):
        return None
    if hasattr(model, "tree_"):
        tree = _tree(model, 0)
        return ensemble_of([tree], outputs=int(tree.leaves[1].max()) + 1, dtype="float32")
    if hasattr(model, "_predictors"):
        return _histogram(model)
    kind = type(model).__name__
    members = getattr(model, "estimators_", None)
    if members is None:
        return None
    if kind.startswith("GradientBoosting"):
        return _boosted(model)
    if kind == "IsolationForest":
        chosen = model.estimators_features_
        trees = [_tree(member, index, columns=chosen[index]) for index, member in enumerate(members)]
        nothing = np.zeros(0, dtype=np.int64)
        bare = [replace(tree, leaves=(nothing, nothing, nothing)) for tree in trees]
        return ensemble_of(bare, outputs=1, dtype="float32")
    if kind.startswith(("RandomForest", "ExtraTrees", "RandomTrees")):
        trees = [_tree(member, index, weight=1 / len(members)) for index, member in enumerate(members)]
        outputs = max(int(tree.leaves[1].max()) + 1 for tree in trees)
        return ensemble_of(trees, outputs=outputs, dtype="float32")
    return None


def _derived(model: Any) -> bool:
    return any(base.__module__.startswith(MODULES) and base.__name__ != "object" for base in type(model).__mro__)


def _tree(
    member: Any, number: int, *, weight: float = 1.0, output: int | None = None, columns: Array | None = None
) -> Tree:
    """`output` is where the value of a regression tree goes; without it every value has an output of its own."""
    grown = member.tree_
    leaf = grown.children_left < 0
    nodes = np.flatnonzero(leaf)
    values = grown.value[nodes]
    if hasattr(member, "classes_") and output is None:
        total = values.sum(axis=2, keepdims=True)
        values = values / np.where(total == 0, 1.0, total)
    values = values.reshape(len(nodes), -1) * weight
    each = np.full(values.size, output) if output is not None else np.tile(np.arange(values.shape[1]), len(nodes))
    feature = grown.feature if columns is None else np.asarray(columns)[np.maximum(grown.feature, 0)]
    goes_left = getattr(grown, "missing_go_to_left", None)
    return Tree(
        number=number,
        feature=np.where(leaf, LEAF, feature),
        threshold=grown.threshold,
        left=grown.children_left,
        right=grown.children_right,
        leaves=(np.repeat(nodes, values.shape[1]), each, values.ravel()),
        gap=None if goes_left is None else np.where(np.asarray(goes_left, dtype=bool), Gap.LEFT, Gap.RIGHT),
    )


def _boosted(model: Any) -> Ensemble:
    grid = model.estimators_
    each = grid.shape[1]
    trees = [
        _tree(grid[round_, output], round_ * each + output, weight=model.learning_rate, output=output)
        for round_ in range(grid.shape[0])
        for output in range(each)
    ]
    base: Array = np.zeros(0)
    constant = isinstance(model.init_, str) or type(model.init_).__module__.startswith("sklearn.dummy")
    if constant:
        width = int(model.n_features_in_)
        base = np.asarray(model._raw_predict_init(np.zeros((1, width), dtype=np.float32))).reshape(-1)
    return ensemble_of(trees, outputs=each, dtype="float32", base=base)


def _histogram(model: Any) -> Ensemble:
    columns, categories = _histogram_inputs(model)
    each = len(model._predictors[0]) if model._predictors else 1
    trees = [
        _histogram_tree(predictor, round_ * each + output, output, columns, categories)
        for round_, predictors in enumerate(model._predictors)
        for output, predictor in enumerate(predictors)
    ]
    base = np.asarray(model._baseline_prediction, dtype=np.float64).reshape(-1)
    return ensemble_of(trees, outputs=each, dtype="float64", base=base)


def _histogram_inputs(model: Any) -> tuple[Array, dict[int, Array]]:
    """Which column of the data each internal feature is, and the numbers its categories stand for.

    With categories the estimator moves them to the front and codes them; the trees are told here in
    terms of the data. Categories that are text keep their codes.
    """
    marked = getattr(model, "is_categorical_", None)
    width = int(model.n_features_in_)
    if marked is None or getattr(model, "_preprocessor", None) is None:
        return np.arange(width), {}
    columns = np.concatenate([np.flatnonzero(marked), np.flatnonzero(~marked)])
    encoder = model._preprocessor.named_transformers_["encoder"]
    known: dict[int, Array] = {}
    for place, values in enumerate(encoder.categories_):
        if values.dtype.kind in "biuf":
            known[place] = values.astype(np.float64)
    return columns, known


def _histogram_tree(predictor: Any, number: int, output: int, columns: Array, categories: dict[int, Array]) -> Tree:
    grown = predictor.nodes
    leaf = grown["is_leaf"].astype(bool)
    nodes = np.flatnonzero(leaf)
    groups: dict[int, Array] = {}
    for node in np.flatnonzero(grown["is_categorical"].astype(bool) & ~leaf):
        words = predictor.raw_left_cat_bitsets[int(grown["bitset_idx"][node])]
        bits = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        known = categories.get(int(grown["feature_idx"][node]))
        groups[int(node)] = bits.astype(np.float64) if known is None else known[bits[bits < len(known)]]
    return Tree(
        number=number,
        feature=np.where(leaf, LEAF, columns[np.where(leaf, 0, grown["feature_idx"]).astype(np.int64)]),
        threshold=np.where(leaf, 0.0, grown["num_threshold"]),
        left=grown["left"].astype(np.int64),
        right=grown["right"].astype(np.int64),
        leaves=(nodes, np.full(len(nodes), output), grown["value"][nodes].astype(np.float64)),
        gap=np.where(grown["missing_go_to_left"].astype(bool), Gap.LEFT, Gap.RIGHT),
        groups=groups,
    )
