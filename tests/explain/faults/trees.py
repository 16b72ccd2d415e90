"""Forests and boosters: thresholds, gaps, categories, leaves, counts."""

from __future__ import annotations

import numpy as np
import pandas as pd

from faults import models
from faults.editing import tree_attributes, with_first_trees, with_trees
from faults.models import (
    converted,
    ill,
    light,
    light_converted,
    measurements,
    numbered,
    recovery,
    rng,
    standard,
    with_gaps,
    xgb_converted,
)
from faults.registry import fault

MLTOOLS = "https://github.com/onnx/onnxmltools/issues"
SKL = "https://github.com/onnx/sklearn-onnx/issues"
VALUES = ["value", "variable"]
PROBABILITIES = ["probabilities"]
NO_DIRECTION = "skl2onnx writes no direction for missing values of RandomForest, ExtraTrees and DecisionTree"
ENSEMBLE = ["trees", "ensemble", "forest"]


@fault("float32-threshold", culprit=["dose"], natural="https://github.com/microsoft/onnxruntime/issues/4130")
def scaled_forest():
    """Doses are round; scaled in float32 some fall on the other side of a threshold that lies between two."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    frame = _round_doses()
    model = make_pipeline(StandardScaler(), RandomForestRegressor(10, random_state=0))
    model.fit(frame, recovery(measurements()) + 2 * np.asarray(frame["dose"]))
    return model, converted(model, frame), frame


@fault("float32-threshold", culprit=["dose"], natural="https://github.com/microsoft/onnxruntime/issues/4130")
def scaled_classifier():
    """The same with a robust scaler and a classifier; probabilities jump."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import RobustScaler

    frame = _round_doses()
    model = make_pipeline(RobustScaler(), RandomForestClassifier(12, max_samples=0.4, random_state=1))
    model.fit(frame, (np.sin(np.asarray(frame["dose"]) * 3) + standard(frame)[:, 0] > 0).astype(int))
    return model, converted(model, frame), frame


@fault("float32-threshold", "float32-input-cast", culprit=["when"], natural=f"{SKL}/1192")
def histogram_thresholds():
    """Thresholds between times that are seconds apart cannot be told apart in float32."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    frame = _close_times()
    model = HistGradientBoostingRegressor(max_iter=10, random_state=0).fit(frame, _periodic(frame))
    return model, converted(model, frame), frame


@fault(
    "float32-threshold",
    "float32-input-cast",
    culprit=["when"],
    natural="LightGBM compares in float64, the export of onnxmltools in float32",
)
def lightgbm_thresholds():
    """The same with LightGBM."""
    frame = _close_times()
    model = light(frame, _periodic(frame), num_leaves=15)
    return model, light_converted(model, 2), frame


@fault(
    "float32-threshold",
    "preprocessing-differs",
    "float32-compute",
    culprit=["bins", "tilt", "range_column"],
    natural="skl2onnx's KBinsDiscretizer compares with edges in float32",
)
def bin_edges():
    """Values that lie on the edge of a bin go to the next one."""
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import KBinsDiscretizer

    frame = pd.DataFrame({"tilt": np.r_[-3.0, 2.5, rng(11).normal(size=298)].round(1).clip(-3.0, 2.5)})
    bins = KBinsDiscretizer(5, encode="onehot-dense", strategy="uniform")
    model = Pipeline([("bins", bins), ("line", Ridge(alpha=0.1))]).fit(frame, np.sin(np.asarray(frame["tilt"])) * 9)
    return model, converted(model, frame), frame


@fault("weight-corruption", culprit=["tree 3"])
def threshold_moved():
    """One threshold of one tree was changed."""
    place = _place(models.xgb_onnx("regression"), tree=3)

    def move(old):
        return [value + (15.0 if index == place else 0.0) for index, value in enumerate(old)]

    return (
        models.xgb("regression"),
        with_trees(models.xgb_onnx("regression"), nodes_values=move),
        numbered(measurements()),
    )


@fault("weight-corruption", culprit=["tree 5"])
def leaf_changed():
    """One leaf of one tree of a forest has another value."""
    attributes = tree_attributes(models.forest_onnx())
    leaves = [index for index, tree in enumerate(attributes["target_treeids"]) if tree == 5]

    def change(old):
        return [value + (3.0 if index == leaves[2] else 0.0) for index, value in enumerate(old)]

    return models.forest(), with_trees(models.forest_onnx(), target_weights=change), measurements()


@fault("weight-corruption", "aggregation", culprit=["tree 2"])
def tree_negated():
    """All leaves of one tree have the opposite sign."""
    trees = tree_attributes(models.light_plain_onnx())["target_treeids"]

    def negate(old):
        return [-value if tree == 2 else value for value, tree in zip(old, trees, strict=True)]

    return models.light_plain(), with_trees(models.light_plain_onnx(), target_weights=negate), measurements()


@fault("tree-count", culprit=[("8", "12")])
def booster_cut_short():
    """The last four trees of a booster are missing."""
    return models.boosted(), with_first_trees(models.boosted_onnx(), 8), measurements()


@fault("tree-count", culprit=[("5", "12")])
def lightgbm_cut_short():
    """A LightGBM model saved after five rounds."""
    return models.light_plain(), with_first_trees(models.light_plain_onnx(), 5), measurements()


@fault("tree-count", "aggregation", culprit=[("4", "8")])
def half_a_forest():
    """Half of a forest's trees, averaged over themselves."""
    half = with_first_trees(models.forest_onnx(), 4)
    return models.forest(), with_trees(half, target_weights=lambda old: [2 * value for value in old]), measurements()


@fault("tree-count", culprit=[("3", "23")], natural=f"{MLTOOLS}/517")
def early_stopping_ignored():
    """The booster was exported with all rounds; the model answers with those up to its best."""
    import xgboost

    frame = numbered(measurements())
    target, noisy = ill(measurements()), rng(4).integers(0, 2, 300)
    model = xgboost.XGBClassifier(n_estimators=80, max_depth=3, n_jobs=1, early_stopping_rounds=20, learning_rate=0.4)
    model.fit(frame, target, eval_set=[(frame, np.where(rng(5).random(300) < 0.42, noisy, target))], verbose=False)
    return model, xgb_converted(model.get_booster()), frame


@fault("missing-value-handling", culprit=["f1", "f3"])
def gaps_go_the_other_way():
    """Every node of a booster sends missing values to the other side."""
    other = with_trees(
        models.xgb_onnx("regression", True), nodes_missing_value_tracks_true=lambda old: [1 - way for way in old]
    )
    return models.xgb("regression", True), other, numbered(with_gaps(measurements(), "weight", "dose"))


@fault("missing-value-handling", culprit=["weight", "dose"])
def gaps_never_go_left():
    """The directions of missing values were left out of the export of a LightGBM model."""
    frame = with_gaps(measurements(), "weight", "dose")
    model = light(frame, recovery(measurements()) + 4 * np.asarray(frame["weight"].isna()))
    plain = with_trees(light_converted(model), nodes_missing_value_tracks_true=lambda old: [0] * len(old))
    return model, plain, frame


@fault("missing-value-handling", culprit=["weight"], natural=NO_DIRECTION)
def forest_with_gaps():
    """A forest that was trained with missing values sends them elsewhere."""
    from sklearn.ensemble import RandomForestRegressor

    frame = with_gaps(measurements(), "weight")
    target = recovery(measurements()) + 6 * np.asarray(frame["weight"].isna())
    model = RandomForestRegressor(8, max_depth=5, random_state=0).fit(frame, target)
    return model, converted(model, frame), frame


@fault("missing-value-handling", culprit=["age"], natural=NO_DIRECTION)
def tree_with_gaps():
    """A single tree of two classes, missing values in one column."""
    from sklearn.tree import DecisionTreeClassifier

    frame = with_gaps(measurements(), "age", share=0.3)
    target = ill(measurements()) ^ np.asarray(frame["age"].isna())
    model = DecisionTreeClassifier(max_depth=5, random_state=0).fit(frame, target)
    return model, converted(model, frame), frame


@fault("missing-value-handling", culprit=["visits"], natural="ONNX trees know no zero_as_missing of LightGBM")
def zero_as_missing():
    """The model takes zero for missing, the export for a number."""
    draw = rng(6)
    frame = measurements().assign(visits=np.where(draw.random(300) < 0.4, 0.0, draw.integers(-4, 6, 300)))
    target = recovery(measurements()) + 5 * np.asarray(frame["visits"] == 0)
    model = light(frame, target, zero_as_missing=True)
    return model, light_converted(model, 5), frame


@fault("missing-value-handling", culprit=["city", "visits", "onehot", "cat"], natural=f"{SKL}/1046")
def zeros_of_a_sparse_matrix():
    """XGBoost takes the zeros of a sparse one-hot matrix for missing; in the export they are numbers."""
    return _sparse_pipeline()


@fault("categorical-split", culprit=["region"], natural=f"{SKL}/1051")
def histogram_categories():
    """Splits by sets of categories become comparisons with a number."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    frame, target = _regions()
    model = HistGradientBoostingRegressor(max_iter=10, categorical_features=["region"], random_state=0)
    model.fit(frame, target)
    return model, converted(model, frame), frame


@fault("categorical-split", culprit=["region"])
def lightgbm_categories_as_numbers():
    """The equality splits of a LightGBM export were turned into comparisons."""
    frame, target = _regions()
    model = light(frame, target, fit={"categorical_feature": ["region"]})

    def numeric(modes):
        return [b"BRANCH_LEQ" if mode == b"BRANCH_EQ" else mode for mode in modes]

    return model, with_trees(light_converted(model, 3), nodes_modes=numeric), frame


@fault(
    "categorical-split",
    "unknown-category",
    "input-type",
    culprit=["region"],
    natural="LightGBM cuts the fraction off a category, the export of onnxmltools does not find it",
)
def categories_with_fractions():
    """Some category codes were averaged by mistake; LightGBM takes 3.5 for 3."""
    frame, target = _regions()
    model = light(frame, target, fit={"categorical_feature": ["region"]})
    data = frame.assign(region=frame["region"] + np.where(rng(7).random(300) < 0.2, 0.5, 0.0))
    return model, light_converted(model, 3), data


@fault(
    "model-part-dropped",
    culprit=["linear", "linear leaves", "leaves"],
    natural="onnxmltools keeps only the constant of a linear leaf",
)
def linear_leaves():
    """LightGBM's linear trees lose the linear part of their leaves."""
    frame = measurements()
    model = light(frame, recovery(frame), linear_tree=True)
    return model, light_converted(model), frame


@fault("model-part-dropped", culprit=["base score", "base_score", "base value", "base_values", "base values"])
def base_score_missing():
    """The base score of a booster is not in the file."""
    proto = with_trees(models.xgb_onnx("regression"), base_values=None)
    return models.xgb("regression"), proto, numbered(measurements())


@fault(
    "model-part-dropped", culprit=["base score", "base value", "base_values", "base values", "bias", "init", "baseline"]
)
def initial_value_missing():
    """A gradient boosting regressor without the mean it starts from."""
    proto = with_trees(models.boosted_onnx(), base_values=lambda old: [0.0])
    return models.boosted(), proto, measurements()


def _round_doses():
    """Doses of one decimal; the other columns do not come close to a threshold."""
    frame = measurements().copy()
    frame["dose"] = frame["dose"].round(1)
    return frame


def _close_times():
    """Pairs of times a few seconds apart, of which float32 makes one."""
    draw = rng(8)
    start = 1.7e9 + np.repeat(np.sort(draw.uniform(0, 3e5, 30)), 10)
    return pd.DataFrame(
        {"when": start + np.tile(np.arange(10) * 7.0, 30), "load": models.single(draw.normal(size=300))}
    )


def _periodic(frame):
    step = np.asarray(frame["when"] - frame["when"].min())
    return np.where(np.arange(len(step)) % 10 < 5, 5.0, -5.0) + step / 1e5 + np.asarray(frame["load"])


def _place(proto, *, tree):
    """Where the root of a tree stands among the nodes."""
    attributes = tree_attributes(proto)
    return next(
        index
        for index, (number, node) in enumerate(
            zip(attributes["nodes_treeids"], attributes["nodes_nodeids"], strict=True)
        )
        if number == tree and node == 0
    )


def _regions():
    draw = rng(9)
    frame = pd.DataFrame(
        {
            "region": draw.integers(0, 12, 300),
            "size": models.single(draw.normal(size=300)),
            "rooms": draw.integers(1, 8, 300),
        }
    )
    target = 4.0 * frame["region"].isin([1, 4, 7, 9]) + frame["size"] + 0.3 * frame["rooms"]
    return frame, np.asarray(target)


def _sparse_pipeline():
    from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder
    from xgboost import XGBClassifier

    shown = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
    update_registered_converter(
        XGBClassifier, "XGBClassifier", calculate_linear_classifier_output_shapes, convert_xgboost, options=shown
    )
    frame = models.loans()[["city", "income"]].assign(visits=rng(10).integers(0, 4, 400))
    target = (frame["city"].isin(["Lima", "Rome"]) ^ (frame["visits"] > 1)).astype(int)
    columns = ColumnTransformer(
        [("onehot", OneHotEncoder(), ["city"]), ("rest", "passthrough", ["income", "visits"])], sparse_threshold=1.0
    )
    model = Pipeline([("cat", columns), ("booster", XGBClassifier(n_estimators=10, max_depth=4, n_jobs=1))])
    model.fit(frame, np.asarray(target))
    return model, converted(model, frame, types=models.types_of(frame)), frame
