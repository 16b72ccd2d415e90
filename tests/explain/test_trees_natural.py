"""What converters of trees really get wrong, with the versions the tests run on."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pandas as pd
import pytest
import tree_making as making
from threadpoolctl import threadpool_limits

import data_only
import likewise


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Toy models: threads would only wait for each other."""
    with threadpool_limits(1):
        yield


def explained(model, candidate, rows):
    report = data_only.explain(model, candidate, rows, explain_budget=60, causes=making.CAUSES)
    assert report.outcome == "FAIL"
    assert report.diagnoses, report.explanation
    return report.diagnoses[0]


@pytest.fixture(scope="module")
def kinds():
    """A table with a categorical column in the last place, coded 0 to 8."""
    frame, target = making.table(300)
    frame["kind"] = np.random.default_rng(1).integers(0, 9, len(frame)).astype(float)
    return frame, target + np.isin(frame["kind"], [1, 4, 7]) * 3


def thresholds(trees, column):
    """The distinct thresholds on a column."""
    found = [tree.threshold[tree.feature == column] for tree in trees]
    return np.unique(np.concatenate(found))


def test_a_scaler_in_float32_before_trees():
    """The scaled value differs in its last digit, and lies on a threshold: skl2onnx and StandardScaler."""
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    frame, target = making.table(400)
    model = make_pipeline(StandardScaler(), GradientBoostingRegressor(n_estimators=20, random_state=0))
    model.fit(frame, target)
    scaler, boosted = model[0], model[1]
    on = thresholds([stage[0].tree_ for stage in boosted.estimators_], 1) * scaler.scale_[1] + scaler.mean_[1]
    frame.iloc[: len(on), 1] = on
    found = explained(model, making.export(model, 4), frame)
    assert found.cause == "float32-threshold"
    assert found.culprit.startswith("age (tree ")


def test_a_column_is_named_through_a_column_transformer():
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    frame, target = making.table(400)
    columns = ColumnTransformer(
        [("plain", "passthrough", ["rate", "debt"]), ("num", StandardScaler(), ["age", "income"])]
    )
    model = Pipeline([("prep", columns), ("trees", GradientBoostingRegressor(n_estimators=20, random_state=0))])
    model.fit(frame, target)
    scaler = model[0].named_transformers_["num"]
    on = thresholds([stage[0].tree_ for stage in model[1].estimators_], 3) * scaler.scale_[1] + scaler.mean_[1]
    frame.iloc[: len(on), 0] = on
    proto = to_onnx(model, initial_types=[(name, FloatTensorType([None, 1])) for name in frame])
    found = explained(model, proto, frame)
    assert found.cause == "float32-threshold"
    assert found.culprit.startswith("income (tree ")


def test_thresholds_of_lightgbm_are_float64():
    """onnxmltools rounds thresholds and inputs; values just above a threshold fall on it."""
    from lightgbm import LGBMRegressor

    frame, target = making.table(400)
    model = LGBMRegressor(n_estimators=8, verbose=-1, n_jobs=1).fit(frame, target)
    dumped = model.booster_.trees_to_dataframe()
    on = dumped.loc[dumped["split_feature"] == "income", "threshold"].unique()
    frame.iloc[: len(on), 0] = np.nextafter(on, np.inf)
    found = explained(model, making.export(model, 4), frame)
    assert found.cause == "float32-threshold"
    assert found.culprit.startswith("income (tree ")


def test_large_values_lose_their_digits():
    """No coincidence at a threshold: seconds since 1970 are rounded to within a minute."""
    from lightgbm import LGBMRegressor

    frame, _ = making.table(400)
    frame["income"] = 1.7e9 + np.arange(400) * 50.0
    target = np.sin(np.arange(400) / 7)
    model = LGBMRegressor(n_estimators=8, verbose=-1, n_jobs=1, min_child_samples=3).fit(frame, target)
    found = explained(model, making.export(model, 4), frame)
    assert (found.cause, found.culprit) == ("float32-input-cast", "income")


@pytest.mark.parametrize("kind", ["DecisionTreeClassifier", "RandomForestRegressor", "ExtraTreesClassifier"])
def test_scikit_learn_trees_and_missing_values(kind):
    """skl2onnx leaves out where missing values go (sklearn-onnx issue 1253)."""
    from sklearn import ensemble, tree

    frame, target = making.table(300, gaps=0.15)
    model = (getattr(tree, kind, None) or getattr(ensemble, kind))(max_depth=4, random_state=0)
    model.fit(frame, target if kind.endswith("Regressor") else (target > 0).astype(int))
    found = explained(model, making.export(model, 4), frame)
    assert found.cause == "missing-value-handling"
    assert found.culprit.startswith(tuple(making.COLUMNS))
    assert "(tree " in found.culprit


def test_missing_values_that_the_training_did_not_see():
    """A forest sends them to the larger child, the exported one to the right."""
    model, frame = making.fitted("forest"), making.table(240, gaps=0.2)[0]
    assert explained(model, making.exported("forest"), frame).cause == "missing-value-handling"


def test_histogram_boosting_and_categories(kinds):
    """skl2onnx writes category splits as thresholds, on columns in another order (sklearn-onnx issue 1051)."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    frame, target = kinds
    model = HistGradientBoostingRegressor(max_iter=5, categorical_features=["kind"]).fit(frame, target)
    found = explained(model, making.export(model, 5), frame)
    assert found.cause == "categorical-split"
    assert found.culprit.startswith("kind (tree ")


@pytest.mark.parametrize("framework", ["lightgbm", "xgboost"])
def test_categories_that_are_not_their_codes(kinds, framework):
    """onnxmltools compares with codes, and the graph is fed values."""
    from lightgbm import LGBMRegressor
    from xgboost import XGBRegressor

    frame, target = kinds
    frame = frame.assign(kind=frame["kind"].astype(int) * 10 + 100)
    coded = frame.astype({"kind": "category"})
    if framework == "lightgbm":
        model = LGBMRegressor(n_estimators=5, verbose=-1, n_jobs=1, min_child_samples=5).fit(coded, target)
    else:
        model = XGBRegressor(n_estimators=5, n_jobs=1, enable_categorical=True, max_cat_to_onehot=2).fit(coded, target)
    found = explained(model, making.export(model, 5), frame)
    assert found.cause == "categorical-split"
    assert found.culprit.startswith("kind (tree ")


def test_categories_of_lightgbm_that_are_codes_are_converted_right(kinds):
    from lightgbm import LGBMRegressor

    frame, target = kinds
    model = LGBMRegressor(n_estimators=5, verbose=-1, n_jobs=1, min_child_samples=5)
    model.fit(frame, target, categorical_feature=["kind"])
    assert data_only.check(model, making.export(model, 5), frame).passed


def test_linear_trees():
    """onnxmltools keeps the constants of the leaves."""
    from lightgbm import LGBMRegressor

    frame, target = making.table(300)
    model = LGBMRegressor(n_estimators=5, verbose=-1, n_jobs=1, linear_tree=True).fit(frame, target)
    found = explained(model, making.export(model, 4), frame)
    assert (found.cause, found.culprit) == ("model-part-dropped", "linear leaves")


@pytest.mark.parametrize("kind", ["LGBMRegressor", "LGBMClassifier"])
def test_random_forests_of_lightgbm(kind):
    """onnxmltools divides by 100, whatever the number of trees."""
    import lightgbm

    frame, target = making.table(300)
    options = {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.6, "n_estimators": 7, "verbose": -1}
    model = getattr(lightgbm, kind)(n_jobs=1, **options)
    model.fit(frame, target if kind.endswith("Regressor") else (target > 0).astype(int))
    assert explained(model, making.export(model, 4), frame).cause == "aggregation"


def test_several_targets_of_xgboost():
    """onnxmltools adds all trees to the first target."""
    from xgboost import XGBRegressor

    frame, target = making.table(300)
    model = XGBRegressor(n_estimators=5, n_jobs=1, base_score=0.0).fit(frame, np.stack([target, -target], axis=1))
    found = explained(model, making.export(model, 4), frame)
    assert found.cause == "aggregation"
    assert found.culprit.startswith("trees")


def test_parallel_trees_of_xgboost():
    """onnxmltools takes the number of rounds for the number of trees."""
    from xgboost import XGBRegressor

    frame, target = making.table(300)
    model = XGBRegressor(n_estimators=6, num_parallel_tree=3, subsample=0.7, early_stopping_rounds=6, n_jobs=1)
    model.fit(frame[:200], target[:200], eval_set=[(frame[200:], target[200:])], verbose=False)
    used = 3 * (model.best_iteration + 1)
    found = explained(model, making.export(model, 4), frame)
    assert (found.cause, found.culprit) == ("tree-count", f"{model.best_iteration + 1} of {used} trees")


def stopped_early():
    from xgboost import XGBClassifier

    frame, target = making.table(300)
    label = (target + np.random.default_rng(3).normal(size=300) * 2 > 0).astype(int)
    model = XGBClassifier(n_estimators=40, early_stopping_rounds=4, n_jobs=1, random_state=0)
    model.fit(frame[:150], label[:150], eval_set=[(frame[150:], label[150:])], verbose=False)
    return model, frame


def test_early_stopping_ignored_by_an_export():
    model, frame = stopped_early()
    whole = copy.deepcopy(model)
    whole.get_booster().set_attr(best_iteration=None, best_score=None)
    uses, has = model.best_iteration + 1, model.get_booster().num_boosted_rounds()
    found = explained(model, making.export(whole, 4), frame)
    assert (found.cause, found.culprit) == ("tree-count", f"{uses} of {has} trees")


def test_early_stopping_ignored_by_a_booster():
    """A saved booster answers with all its trees, the wrapper with the best."""
    model, frame = stopped_early()
    uses, has = model.best_iteration + 1, model.get_booster().num_boosted_rounds()
    found = explained(model, model.get_booster(), frame)
    assert (found.cause, found.culprit) == ("tree-count", f"{uses} of {has} trees")


def test_two_models_of_different_trainings():
    from lightgbm import LGBMRegressor

    frame, target = making.table(300)
    model = LGBMRegressor(n_estimators=5, verbose=-1, n_jobs=1).fit(frame, target)
    other = LGBMRegressor(n_estimators=5, verbose=-1, n_jobs=1).fit(frame[:200], target[:200])
    found = explained(model, other, frame)
    assert (found.cause, found.culprit) == ("stale-weights", "model")


@pytest.mark.parametrize("kind", ["voting", "bagging", "isolation"])
def test_trees_in_several_nodes(kind):
    """Each member has a node of its own, and sees columns of its own."""
    from onnx import helper
    from sklearn import ensemble, linear_model, tree

    frame, target = making.table(300)
    options = {}
    if kind == "voting":
        parts = [
            ("forest", ensemble.RandomForestRegressor(3, max_depth=3, random_state=0)),
            ("linear", linear_model.LinearRegression()),
            ("boosted", ensemble.GradientBoostingRegressor(n_estimators=3, random_state=0)),
        ]
        model, place, named = ensemble.VotingRegressor(parts).fit(frame, target), 1, "tree 3"
    elif kind == "bagging":
        base = tree.DecisionTreeRegressor(max_depth=4)
        model = ensemble.BaggingRegressor(base, n_estimators=4, max_features=0.5, random_state=0).fit(frame, target)
        place, named = 2, "tree 2"
    else:
        model = ensemble.IsolationForest(n_estimators=4, max_samples=100, random_state=0).fit(frame.to_numpy())
        frame, place, named = frame.to_numpy(), 2, "tree 2"
        options = {"target_opset": {"": 17, "ai.onnx.ml": 3}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        proto = making.export(model, 4, **options)
        assert data_only.check(model, proto, frame).passed
    node = making.tree_node(proto, place)
    values = next(entry for entry in node.attribute if entry.name == "nodes_values")
    old = helper.get_attribute_value(values)
    del values.floats[:]
    values.floats.extend([old[0] + 1 + 2 * abs(old[0]), *old[1:]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = explained(model, proto, frame)
    assert found.cause == "weight-corruption"
    assert found.culprit.endswith(f"({named}, node 0)")


def test_recorded_answers_have_no_trees(tmp_path):
    """Only the file of the candidate and answers: nothing to compare its trees with, and no error."""
    frame = making.rows_of("lgbm")[0]
    path = tmp_path / "golden.parquet"
    likewise.record(making.fitted("lgbm"), frame, path)
    broken = making.edited(making.exported("lgbm"), nodes_values=lambda old: [old[0] + 1, *old[1:]])
    report = data_only.explain(path, broken, pd.DataFrame(frame), explain_budget=60)
    assert report.outcome == "FAIL"
    assert not any("tree" in reason and "failed" in reason for reason in report.explanation.not_tested)
