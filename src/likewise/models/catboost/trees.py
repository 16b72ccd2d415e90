"""The trees of a CatBoost model of numeric features."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from likewise.models.boosters import unrolled
from likewise.models.trees.ensemble import LEAF, Ensemble, Gap, Tree, ensemble_of


def read(model: Any) -> Ensemble | None:
    """All trees; None for a model that splits on categories, text or embeddings, which no graph can hold."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        saved = json.loads(path.read_text())
    floats = saved["features_info"].get("float_features", [])
    columns = {entry["feature_index"]: entry["flat_feature_index"] for entry in floats}
    gaps_left = {entry["feature_index"]: entry.get("nan_value_treatment") != "AsTrue" for entry in floats}
    scale, bias = saved["scale_and_bias"]
    bias = np.asarray(bias, dtype=np.float64).reshape(-1)
    trees = []
    for number, entry in enumerate(saved.get("oblivious_trees") or saved.get("trees") or []):
        tree = _symmetric(number, entry, len(bias)) if "splits" in entry else _other(number, entry, len(bias))
        if tree is None:
            return None
        gap = [Gap.LEFT if gaps_left.get(int(feature), True) else Gap.RIGHT for feature in tree.feature]
        feature = [LEAF if feature < 0 else columns[int(feature)] for feature in tree.feature]
        node, output, value = tree.leaves
        leaves = (node, output, value * scale)
        trees.append(replace(tree, feature=np.array(feature), leaves=leaves, gap=np.array(gap)))
    return ensemble_of(trees, outputs=max(len(bias), 1), dtype="float32", base=bias)


def _symmetric(number: int, entry: dict[str, Any], outputs: int) -> Tree | None:
    """A tree with the same question on every level; the last question stands at the root."""
    splits = entry["splits"] or []
    if any(split["split_type"] != "FloatFeature" for split in splits):
        return None
    depth = len(splits)
    inner = (1 << depth) - 1
    feature, threshold = np.full(2 * inner + 1, LEAF), np.zeros(2 * inner + 1)
    for level in range(depth):
        split = splits[depth - 1 - level]
        here = slice((1 << level) - 1, (1 << (level + 1)) - 1)
        feature[here], threshold[here] = split["float_feature_index"], split["border"]
    nodes = np.arange(2 * inner + 1)
    values = np.asarray(entry["leaf_values"], dtype=np.float64).reshape(-1)
    leaf = np.repeat(inner + np.arange(1 << depth), outputs)
    return Tree(
        number,
        feature,
        threshold,
        np.where(feature >= 0, 2 * nodes + 1, 0),
        np.where(feature >= 0, 2 * nodes + 2, 0),
        (leaf, np.tile(np.arange(outputs), 1 << depth), values),
    )


def _other(number: int, entry: dict[str, Any], outputs: int) -> Tree | None:
    """A tree that asks another question in every node."""
    nodes, left, right = unrolled(entry, "left", "right")
    splits = [node.get("split") for node in nodes]
    if any(split is not None and split["split_type"] != "FloatFeature" for split in splits):
        return None
    leaf = [place for place, split in enumerate(splits) if split is None]
    values = np.stack([np.asarray(nodes[place]["value"], dtype=np.float64).reshape(-1)[:outputs] for place in leaf])
    return Tree(
        number,
        np.array([LEAF if split is None else split["float_feature_index"] for split in splits]),
        np.array([0.0 if split is None else split["border"] for split in splits]),
        left,
        right,
        (np.repeat(leaf, values.shape[1]), np.tile(np.arange(values.shape[1]), len(leaf)), values.ravel()),
    )


def cut_to(model: Any, trees: int) -> Any:
    """A copy that uses its first trees only."""
    cut = model.copy()
    cut.shrink(trees)
    return cut
