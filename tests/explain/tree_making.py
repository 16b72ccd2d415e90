"""Small tree models of every framework, their real exports, and edits of the trees in them."""

from __future__ import annotations

import copy
import warnings
from functools import cache

import numpy as np
import onnx
import pandas as pd
from onnx import helper, numpy_helper

COLUMNS = ["income", "age", "rate", "debt"]

CAUSES = (
    "aggregation",
    "categorical-split",
    "feature-order",
    "float32-input-cast",
    "float32-threshold",
    "missing-value-handling",
    "model-part-dropped",
    "operator-attribute",
    "precision-reduction",
    "stale-weights",
    "tree-count",
    "weight-corruption",
)
"""What is looked for where trees are the subject: the faults of all families are scored together elsewhere."""


def table(rows=240, gaps=0.0, seed=0):
    """Numbers that float32 holds exactly, so that only what a test plants is wrong."""
    rng = np.random.default_rng(seed)
    data = (rng.normal(size=(rows, 4)) * [1, 10, 0.1, 1000]).astype(np.float32).astype(np.float64)
    target = data[:, 0] + data[:, 1] / 10 * (data[:, 2] > 0) + rng.normal(size=rows) * 0.2
    data[rng.random(data.shape) < gaps] = np.nan
    return pd.DataFrame(data, columns=COLUMNS), target


GAPS = ("hist", "lgbm", "lgbm_classes", "xgb", "xgb_binary", "xgb_classes", "cat", "cat_binary")


def rows_of(name):
    return table(gaps=0.15 if name in GAPS else 0.0)


@cache
def fitted(name):
    from catboost import CatBoostClassifier, CatBoostRegressor
    from lightgbm import LGBMClassifier, LGBMRegressor
    from sklearn import ensemble, tree
    from xgboost import XGBClassifier, XGBRegressor

    frame, target = rows_of(name)
    binary, classes = (target > 0).astype(int), np.digitize(target, [-1, 1])
    few = {"n_estimators": 6, "random_state": 0}
    quiet = {"verbose": 0, "allow_writing_files": False, "iterations": 6, "depth": 4}
    models = {
        "tree": lambda: tree.DecisionTreeRegressor(max_depth=4, random_state=0).fit(frame, target),
        "forest": lambda: ensemble.RandomForestRegressor(max_depth=4, **few).fit(frame, target),
        "forest_binary": lambda: ensemble.RandomForestClassifier(max_depth=4, **few).fit(frame, binary),
        "forest_classes": lambda: ensemble.ExtraTreesClassifier(max_depth=4, **few).fit(frame, classes),
        "boosting": lambda: ensemble.GradientBoostingRegressor(**few).fit(frame, target),
        "boosting_classes": lambda: ensemble.GradientBoostingClassifier(**few).fit(frame, classes),
        "hist": lambda: ensemble.HistGradientBoostingClassifier(max_iter=6, random_state=0).fit(frame, binary),
        "lgbm": lambda: LGBMRegressor(verbose=-1, n_jobs=1, **few).fit(frame, target),
        "lgbm_classes": lambda: LGBMClassifier(verbose=-1, n_jobs=1, **few).fit(frame, classes),
        "xgb": lambda: XGBRegressor(max_depth=4, n_jobs=1, **few).fit(frame, target),
        "xgb_binary": lambda: XGBClassifier(max_depth=4, n_jobs=1, **few).fit(frame, binary),
        "xgb_classes": lambda: XGBClassifier(max_depth=4, n_jobs=1, **few).fit(frame, classes),
        "cat": lambda: CatBoostRegressor(**quiet).fit(frame, target),
        "cat_binary": lambda: CatBoostClassifier(**quiet).fit(frame, binary),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return models[name]()


NAMES = (
    "tree",
    "forest",
    "forest_binary",
    "forest_classes",
    "boosting",
    "boosting_classes",
    "hist",
    "lgbm",
    "lgbm_classes",
    "xgb",
    "xgb_binary",
    "xgb_classes",
    "cat",
    "cat_binary",
)


@cache
def exported(name):
    return export(fitted(name), 4)


def export(model, width, **options):
    """What the converter for this kind of model writes."""
    import tempfile

    import onnxmltools
    import skl2onnx
    from onnxmltools.convert.common.data_types import FloatTensorType
    from skl2onnx.common.data_types import FloatTensorType as SklearnFloat
    from sklearn.base import is_classifier

    package = type(model).__module__.partition(".")[0]
    inputs = [("X", FloatTensorType([None, width]))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if package == "lightgbm":
            return onnxmltools.convert_lightgbm(model, initial_types=inputs, zipmap=False, **options)
        if package == "xgboost":
            model = copy.deepcopy(model)
            model.get_booster().feature_names = None
            return onnxmltools.convert_xgboost(model, initial_types=inputs, **options)
        if package == "catboost":
            with tempfile.TemporaryDirectory() as folder:
                model.save_model(f"{folder}/model.onnx", format="onnx")
                return onnx.load(f"{folder}/model.onnx")
        if is_classifier(model):
            options["options"] = {id(model): {"zipmap": False}}
        return skl2onnx.to_onnx(model, initial_types=[("X", SklearnFloat([None, width]))], **options)


def edited(proto, **changes):
    """A copy with other attributes of its tree node: a function of the old list, or None to take it away."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    node = tree_node(changed)
    for name, change in changes.items():
        held = next((entry for entry in node.attribute if entry.name == name), None)
        old = None if held is None else helper.get_attribute_value(held)
        if held is not None:
            node.attribute.remove(held)
        if change is not None:
            node.attribute.append(helper.make_attribute(name, change(old)))
    return changed


def tree_node(proto, place=0):
    return [node for node in proto.graph.node if node.op_type.startswith("TreeEnsemble")][place]


def told(proto, name):
    return helper.get_attribute_value(next(entry for entry in tree_node(proto).attribute if entry.name == name))


def leaf_attribute(proto, name):
    """`weights` is `class_weights` in a classifier, `target_weights` in a regressor."""
    return f"{'class' if tree_node(proto).op_type == 'TreeEnsembleClassifier' else 'target'}_{name}"


def without_trees(proto, trees):
    """A copy without some of its trees."""
    prefix = leaf_attribute(proto, "").rstrip("_")
    kept = [number not in trees for number in told(proto, "nodes_treeids")]
    kept_leaves = [number not in trees for number in told(proto, f"{prefix}_treeids")]
    present = [entry.name for entry in tree_node(proto).attribute]
    lists = {name: kept for name in present if name.startswith("nodes_")}
    lists |= {name: kept_leaves for name in present if name.startswith(f"{prefix}_")}

    def only(mask):
        return lambda old: [entry for entry, keep in zip(old, mask, strict=True) if keep]

    return edited(proto, **{name: only(mask) for name, mask in lists.items()})


def of_version_5(booster, columns):
    """A LightGBM regressor as a graph of the newer TreeEnsemble operator, its category splits as sets."""
    nodes, leaves, roots, members = [], [], [], []

    def add(node):
        if "leaf_value" in node:
            leaves.append(node["leaf_value"])
            return len(leaves) - 1, 1
        place = len(nodes)
        nodes.append(None)
        true, true_leaf = add(node["left_child"])
        false, false_leaf = add(node["right_child"])
        equal = node["decision_type"] == "=="
        split = 0.0 if equal else node["threshold"]
        sets = [float(entry) for entry in str(node["threshold"]).split("||")] if equal else None
        gap = int(not equal and (split >= 0 if node["missing_type"] == "None" else node["default_left"]))
        nodes[place] = (node["split_feature"], split, 6 if equal else 0, true, true_leaf, false, false_leaf, gap, sets)
        return place, 0

    for entry in booster.dump_model()["tree_info"]:
        roots.append(add(entry["tree_structure"])[0])
    for node in nodes:
        if node[8] is not None:
            members += [*node[8], float("nan")]
    node = helper.make_node(
        "TreeEnsemble",
        ["X"],
        ["variable"],
        domain="ai.onnx.ml",
        name="trees",
        n_targets=1,
        tree_roots=roots,
        nodes_featureids=[node[0] for node in nodes],
        nodes_splits=numpy_helper.from_array(np.array([node[1] for node in nodes], dtype=np.float32), "splits"),
        nodes_modes=numpy_helper.from_array(np.array([node[2] for node in nodes], dtype=np.uint8), "modes"),
        nodes_truenodeids=[node[3] for node in nodes],
        nodes_trueleafs=[node[4] for node in nodes],
        nodes_falsenodeids=[node[5] for node in nodes],
        nodes_falseleafs=[node[6] for node in nodes],
        nodes_missing_value_tracks_true=[node[7] for node in nodes],
        leaf_weights=numpy_helper.from_array(np.array(leaves, dtype=np.float32), "weights"),
        leaf_targetids=[0] * len(leaves),
        membership_values=numpy_helper.from_array(np.array(members or [np.nan], dtype=np.float32), "members"),
    )
    floats = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "trees",
        [helper.make_tensor_value_info("X", floats, [None, columns])],
        [helper.make_tensor_value_info("variable", floats, [None, 1])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 5)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
