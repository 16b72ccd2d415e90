"""What `likewise export` makes of scikit-learn models, against scikit-learn itself: in float64, and of functions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from scipy import special
from sklearn import (
    calibration,
    compose,
    discriminant_analysis,
    ensemble,
    feature_selection,
    frozen,
    impute,
    linear_model,
    model_selection,
    multiclass,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)
from sklearn.base import clone
from sklearn.feature_extraction import text

import likewise
from likewise.errors import LikewiseError

pytestmark = pytest.mark.filterwarnings("ignore")

ROUNDING = 1e-11
"""Relative, of answers in float64 that were added up in another order."""


@pytest.fixture(scope="module")
def rows() -> Any:
    """Values on both sides of what float32 holds, so that an answer in float32 shows."""
    made = np.random.default_rng(3).normal(size=(160, 4)) * [1.0, 0.1, 30.0, 1000.0] + [0.0, 1.0, 5.0, 20000.0]
    made[:40, 3] = np.round(made[:40, 3])
    return made


def target(rows: Any, classes: int = 0) -> Any:
    score = rows[:, 0] - rows[:, 1] + rows[:, 2] / 20 + np.sin(rows[:, 3] / 300)
    return score if not classes else np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))


def asked(path: Path, data: Any) -> list[Any]:
    """The file's own answers, by ONNX Runtime alone."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options)
    kinds = {"tensor(double)": np.float64, "tensor(float)": np.float32, "tensor(int64)": np.int64,
             "tensor(string)": object, "tensor(bool)": bool}  # fmt: skip
    fed = {
        entry.name: (data[[entry.name]].to_numpy() if isinstance(data, pd.DataFrame) else data).astype(
            kinds[entry.type]
        )
        for entry in session.get_inputs()
    }
    return session.run(None, fed)


def answered(model: Any, data: Any) -> list[Any]:
    """scikit-learn's own answers in the order of skl2onnx: the label and then scores, or one table."""
    if not hasattr(model, "predict"):
        found = model.transform(data)
        return [found.toarray() if hasattr(found, "toarray") else found]
    scores = next(
        (getattr(model, name) for name in ("predict_proba", "decision_function") if hasattr(model, name)), None
    )
    return [model.predict(data), *([] if scores is None else [scores(data)])]


def agree(model: Any, data: Any, path: Path, rounding: float = ROUNDING) -> None:
    given, wanted = asked(path, data), answered(model, data)
    assert len(given) == len(wanted)
    for found, right in zip(given, wanted, strict=True):
        right = np.asarray(right)
        if right.ndim == 1 and found.shape == (len(right), 2):
            np.testing.assert_array_equal(found[:, 0], -found[:, 1])  # scores of both classes
            found = found[:, 1]
        assert found.size == right.size
        if right.dtype.kind == "f":
            assert found.dtype == np.float64
            np.testing.assert_allclose(found.reshape(right.shape), right, rtol=rounding, atol=rounding)
        else:
            np.testing.assert_array_equal(found.reshape(right.shape), right)


FEW = {"n_estimators": 5, "random_state": 0}


def shallow(depth: int = 3) -> Any:
    return tree.DecisionTreeClassifier(max_depth=depth, random_state=0)


TREES: dict[str, tuple[Any, int]] = {
    "tree of 2 classes": (tree.DecisionTreeClassifier(random_state=0), 2),
    "tree of 3 classes": (tree.ExtraTreeClassifier(random_state=0), 3),
    "tree of values": (tree.DecisionTreeRegressor(random_state=0), 0),
    "a stump": (tree.DecisionTreeClassifier(max_depth=1, random_state=0), 3),
    "a tree of one leaf": (tree.DecisionTreeRegressor(min_samples_leaf=150, random_state=0), 0),
    "random forest of classes": (ensemble.RandomForestClassifier(**FEW), 3),
    "random forest of values": (ensemble.RandomForestRegressor(**FEW), 0),
    "extra trees of classes": (ensemble.ExtraTreesClassifier(**FEW), 2),
    "extra trees of values": (ensemble.ExtraTreesRegressor(**FEW), 0),
    "boosting of 2 classes": (ensemble.GradientBoostingClassifier(**FEW), 2),
    "boosting of 3 classes": (ensemble.GradientBoostingClassifier(**FEW), 3),
    "boosting of values": (ensemble.GradientBoostingRegressor(**FEW), 0),
    "histograms of 2 classes": (ensemble.HistGradientBoostingClassifier(max_iter=5), 2),
    "histograms of 3 classes": (ensemble.HistGradientBoostingClassifier(max_iter=5), 3),
    "histograms of values": (ensemble.HistGradientBoostingRegressor(max_iter=5), 0),
    "bagging of trees": (ensemble.BaggingClassifier(shallow(), n_estimators=3, random_state=0), 3),
    "bagging of values": (ensemble.BaggingRegressor(n_estimators=3, random_state=0), 0),
    "adaptive boosting of classes": (ensemble.AdaBoostClassifier(shallow(1), n_estimators=4, random_state=0), 3),
    "adaptive boosting of values": (ensemble.AdaBoostRegressor(n_estimators=4, random_state=0), 0),
    "a vote": (ensemble.VotingClassifier([("a", shallow()), ("b", shallow(2))], voting="soft"), 3),
    "a mean": (ensemble.VotingRegressor([("a", tree.DecisionTreeRegressor(random_state=0))]), 0),
    "a stack": (ensemble.StackingRegressor([("a", tree.DecisionTreeRegressor(max_depth=3, random_state=0))], cv=2), 0),
    "an isolation forest": (ensemble.IsolationForest(**FEW), -1),
    "an isolation forest of some columns": (ensemble.IsolationForest(max_features=0.5, **FEW), -1),
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_trees_in_float64(name: str, rows: Any, tmp_path: Path) -> None:
    model, classes = TREES[name]
    model.fit(rows, None if classes < 0 else target(rows, classes))
    likewise.export(model, rows, tmp_path / "model.onnx", double=True, check=False)
    agree(model, rows, tmp_path / "model.onnx")


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_the_exponent_of_boosted_counts(loss: str, rows: Any, tmp_path: Path) -> None:
    """skl2onnx leaves it out, also where the model is part of another."""
    plain = ensemble.HistGradientBoostingRegressor(max_iter=5, loss=loss)
    for model in (plain, ensemble.VotingRegressor([("counts", plain)])):
        model.fit(rows, np.exp(target(rows) / 4))
        likewise.export(model, rows, tmp_path / "model.onnx", double=True, check=False)
        agree(model, rows, tmp_path / "model.onnx")
    narrow = rows.astype(np.float32)
    likewise.export(plain.fit(narrow, np.exp(target(rows) / 4)), narrow, tmp_path / "narrow.onnx", check=False)
    np.testing.assert_allclose(asked(tmp_path / "narrow.onnx", narrow)[0][:, 0], plain.predict(narrow), rtol=1e-6)


def test_the_exponent_of_a_network_of_counts(rows: Any, tmp_path: Path) -> None:
    """skl2onnx knows no such last layer."""
    for loss in ("poisson", "squared_error"):
        model = neural_network.MLPRegressor(hidden_layer_sizes=(4,), loss=loss, max_iter=20, random_state=0)
        model.fit(rows / 1000, np.exp(target(rows) / 4))
        likewise.export(model, rows / 1000, tmp_path / "model.onnx", double=True, check=False)
        agree(model, rows / 1000, tmp_path / "model.onnx")


def test_what_is_frozen_is_exported_as_what_it_holds(rows: Any, tmp_path: Path) -> None:
    scaler = frozen.FrozenEstimator(preprocessing.StandardScaler().fit(rows))
    inner = frozen.FrozenEstimator(linear_model.LogisticRegression().fit(rows, target(rows, 2)))
    behind = pipeline.make_pipeline(scaler, linear_model.LogisticRegression())
    for model in (inner, behind, calibration.CalibratedClassifierCV(inner)):
        model.fit(rows, target(rows, 2))
        likewise.export(model, rows, tmp_path / "model.onnx", double=True, check=False)
        agree(model, rows, tmp_path / "model.onnx")


def of(member: Any) -> Any:
    return pipeline.make_pipeline(preprocessing.StandardScaler(), member)


HELD = {
    "support vectors": of(svm.SVC()),
    "support vectors, nu": of(svm.NuSVC()),
    "a discriminant": discriminant_analysis.LinearDiscriminantAnalysis(),
    "calibrated lines": calibration.CalibratedClassifierCV(of(svm.LinearSVC()), cv=2),
    "calibrated support vectors": calibration.CalibratedClassifierCV(svm.SVC(), cv=2),
    "a calibrated discriminant": calibration.CalibratedClassifierCV(
        discriminant_analysis.LinearDiscriminantAnalysis(), cv=2
    ),
    "a calibrated pipeline": calibration.CalibratedClassifierCV(of(linear_model.LogisticRegression()), cv=2),
    "calibrated without a curve": calibration.CalibratedClassifierCV(
        of(linear_model.LogisticRegression()), method="isotonic", cv=2
    ),
    "a calibrated forest": calibration.CalibratedClassifierCV(
        ensemble.RandomForestClassifier(**FEW), method="isotonic", cv=2
    ),
    "one against the rest": multiclass.OneVsRestClassifier(of(svm.LinearSVC())),
    "one against the rest, support vectors": multiclass.OneVsRestClassifier(of(svm.SVC())),
    "one against one": multiclass.OneVsOneClassifier(of(linear_model.LogisticRegression())),
    "one against one, trees": multiclass.OneVsOneClassifier(shallow()),
    "a stack of scores": ensemble.StackingClassifier([("a", of(svm.LinearSVC())), ("b", shallow())], cv=2),
    "a stack and its columns": ensemble.StackingClassifier([("a", of(svm.SVC()))], cv=2, passthrough=True),
}


@pytest.mark.parametrize("names", [None, ["no", "yes"], [-1, 1], [False, True], ["a", "b", "c"]], ids=str)
@pytest.mark.parametrize("name", HELD)
def test_classifiers_of_scores_in_both_precisions(name: str, names: Any, rows: Any, tmp_path: Path) -> None:
    """Most people have two classes; skl2onnx gives other scores, labels or no file for these."""
    places = target(rows, len(names or "ab"))
    model = clone(HELD[name]).fit(rows, places if names is None else np.array(names)[places])
    likewise.export(model, rows, tmp_path / "model.onnx", double=True, check=False)
    agree(model, rows, tmp_path / "model.onnx")
    likewise.export(model, rows, tmp_path / "narrow.onnx", check=False)
    label = asked(tmp_path / "narrow.onnx", rows)[0]
    assert np.mean(label == model.predict(rows)) > 0.98


def test_trees_decide_in_float64_at_their_thresholds(rows: Any, tmp_path: Path) -> None:
    """On the thresholds, and the doubles right beside them, which float32 does not tell apart."""
    for model in (ensemble.HistGradientBoostingRegressor(max_iter=5), tree.DecisionTreeRegressor(random_state=0)):
        model.fit(rows, target(rows))
        trees = [each[0].nodes for each in model._predictors] if hasattr(model, "_predictors") else [model.tree_]
        found = [
            (int(column), float(value))
            for each in trees
            for column, value in (
                zip(each["feature_idx"], each["num_threshold"], strict=True)
                if hasattr(each, "dtype")
                else zip(each.feature, each.threshold, strict=True)
            )
            if column >= 0
        ]
        data = np.repeat(rows[:1], 3 * len(found), axis=0)
        for place, (column, value) in enumerate(found):
            near = np.float32(value)
            data[3 * place : 3 * place + 3, column] = [value, np.nextafter(value, np.inf), (value + float(near)) / 2]
        likewise.export(model, data, tmp_path / "model.onnx", double=True, check=False)
        agree(model, data, tmp_path / "model.onnx")


def numbers_first(*steps: Any) -> Any:
    return pipeline.make_pipeline(*steps, linear_model.LogisticRegression())


def scaled(*steps: Any) -> Any:
    return pipeline.make_pipeline(preprocessing.StandardScaler(), *steps)


def filled(*steps: Any, **how: Any) -> Any:
    return pipeline.make_pipeline(impute.SimpleImputer(**how), *steps)


PIPELINES: dict[str, Any] = {
    "scaled": numbers_first(preprocessing.StandardScaler()),
    "ranged": numbers_first(preprocessing.MinMaxScaler()),
    "robust": numbers_first(preprocessing.RobustScaler()),
    "largest": numbers_first(preprocessing.MaxAbsScaler()),
    "normalised": numbers_first(preprocessing.Normalizer()),
    "binned": numbers_first(preprocessing.KBinsDiscretizer(4, encode="ordinal", strategy="uniform")),
    "binned, one hot": numbers_first(preprocessing.KBinsDiscretizer(4, strategy="uniform")),
    "polynomial": scaled(preprocessing.PolynomialFeatures(2), linear_model.Ridge()),
    "powers": scaled(preprocessing.PowerTransformer(), linear_model.Ridge()),
    "quantiles": pipeline.make_pipeline(preprocessing.QuantileTransformer(n_quantiles=5), linear_model.Ridge()),
    "filled": filled(preprocessing.StandardScaler(), linear_model.Ridge()),
    "filled by the middle": filled(tree.DecisionTreeRegressor(), strategy="median"),
    "filled and told": filled(linear_model.Ridge(), add_indicator=True),
    "histograms with gaps": pipeline.make_pipeline(ensemble.HistGradientBoostingRegressor(max_iter=5)),
    "support vectors": scaled(svm.SVC()),
    "support vectors, cubic": scaled(svm.SVC(kernel="poly")),
    "support vectors, straight": scaled(svm.LinearSVC()),
    "support vectors of values": scaled(svm.SVR()),
    "neighbours": scaled(neighbors.KNeighborsClassifier(3)),
    "neighbours of values": scaled(neighbors.KNeighborsRegressor(3)),
    "layers": scaled(neural_network.MLPRegressor(hidden_layer_sizes=(5,), max_iter=50, random_state=0)),
    "ridge of classes": scaled(linear_model.RidgeClassifier()),
}  # fmt: skip


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_in_float64(name: str, classes: int, rows: Any, tmp_path: Path) -> None:
    from sklearn.base import is_classifier

    model, data = PIPELINES[name], rows.copy()
    if not is_classifier(model) and classes > 2:
        pytest.skip("values have no classes")
    if "filled" in name or "gaps" in name:
        data[::7, 0] = data[3::11, 2] = np.nan
    model.fit(data, target(rows, classes if is_classifier(model) else 0))
    likewise.export(model, data, tmp_path / "model.onnx", double=True, check=False)
    agree(model, data, tmp_path / "model.onnx")


def test_columns_of_all_kinds_in_float64(rows: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame(rows, columns=["age", "rate", "sum", "place"])
    frame["sum"] = frame["sum"].mask(np.arange(len(frame)) % 5 == 0)
    frame["colour"] = np.array(["red", "green", "blue"])[np.arange(len(frame)) % 3]
    frame["size"] = np.array(["s", "m", "l"])[(np.arange(len(frame)) // 3) % 3]
    frame["code"] = np.arange(len(frame)) % 4
    columns = compose.ColumnTransformer(
        [
            ("filled", filled(preprocessing.StandardScaler(), add_indicator=True), ["age", "sum"]),
            ("logs", preprocessing.FunctionTransformer(np.log1p), ["place"]),
            ("hot", preprocessing.OneHotEncoder(handle_unknown="ignore"), ["colour", "code"]),
            ("order", preprocessing.OrdinalEncoder(), ["size"]),
        ],
        remainder="passthrough",
    )
    model = pipeline.make_pipeline(columns, ensemble.GradientBoostingClassifier(**FEW))
    model.fit(frame, target(rows, 2))
    likewise.export(model, frame, tmp_path / "model.onnx", double=True, check=False)
    agree(model, frame, tmp_path / "model.onnx")


ORDERS: dict[str, dict[str, Any]] = {
    "a gap is NaN": {},
    "a gap is a code": {"encoded_missing_value": -5},
    "unknown is a code": {"handle_unknown": "use_encoded_value", "unknown_value": 99},
    "unknown is NaN": {"handle_unknown": "use_encoded_value", "unknown_value": np.nan, "encoded_missing_value": -2},
    "rare ones together": {"max_categories": 3, "encoded_missing_value": -1, "dtype": np.int64},
}


@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("rule", ORDERS)
def test_an_ordinal_encoder_gives_its_own_codes(rule: str, double: bool, tmp_path: Path) -> None:
    """Gaps of text and of numbers, unknown and rare categories (skl2onnx 1.20 writes other codes for most of them)."""
    random = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "shop": random.choice(["north", "south", "west", "east", None], 90, p=[0.4, 0.3, 0.1, 0.1, 0.1]),
            "rate": random.choice([0.5, 1.25, 7.0, np.nan], 90),
            "floor": random.integers(0, 5, 90),
        }
    )
    asked = frame.copy()
    if "unknown_value" in ORDERS[rule]:
        asked.loc[:9, ["shop", "rate"]] = ["abroad", 99.0]
        asked.loc[5:14, "floor"] = 77
    encoder = preprocessing.OrdinalEncoder(**ORDERS[rule])
    model = compose.ColumnTransformer([("order", encoder, list(frame))]).fit(frame)
    likewise.export(model, asked, tmp_path / "model.onnx", double=double, check=False)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    kinds = {"tensor(string)": object, "tensor(int64)": np.int64, "tensor(float)": np.float32, "tensor(double)": float}
    fed = {
        given.name: asked[[given.name]].where(asked[[given.name]].notna(), "" if "string" in given.type else np.nan)
        .to_numpy().astype(kinds[given.type])
        for given in session.get_inputs()
    }  # fmt: skip
    np.testing.assert_array_equal(session.run(None, fed)[0], model.transform(asked))


EDGES = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-12, -1e-12, 1e-6, 0.3, 3.7, -3.7, 30.0, -30.0, 700.0, 1e8,
     -1e8, np.nan, np.inf, -np.inf]
)[:, None]  # fmt: skip

FUNCTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    **{
        name: (getattr(np, name), {})
        for name in (
            "log", "log1p", "log2", "log10", "exp", "expm1", "exp2", "sqrt", "cbrt", "square", "abs", "fabs",
            "reciprocal", "negative", "positive", "sign", "sin", "cos", "tan", "tanh", "sinh", "cosh", "deg2rad",
            "rad2deg", "floor", "ceil", "rint", "trunc", "round", "nan_to_num", "isnan", "isinf", "isfinite",
        )
    },
    "expit": (special.expit, {}),
    "logit": (special.logit, {}),
    "clip": (np.clip, {"a_min": -2, "a_max": 2.5}),
    "clip at one end": (np.clip, {"a_min": 0, "a_max": None}),
    "round to hundredths": (np.round, {"decimals": 2}),
    "nan to a number": (np.nan_to_num, {"nan": -1.0, "posinf": 9.0, "neginf": -9.0}),
    "partial": (partial(np.clip, a_min=0.0, a_max=1.0), {}),
    "nothing": (None, {}),
}  # fmt: skip


@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
def test_functions_of_numpy(double: bool, tmp_path: Path) -> None:
    """All in one table, a column each: to the rounding of the type that the file answers in."""
    kind, rounding = (np.float64, 4e-15) if double else (np.float32, 1.3e-7)
    data = EDGES.astype(kind).astype(np.float64)
    table = np.repeat(data, len(FUNCTIONS), axis=1)
    model = compose.ColumnTransformer(
        [
            (name, preprocessing.FunctionTransformer(func, kw_args=given or None), [place])
            for place, (name, (func, given)) in enumerate(FUNCTIONS.items())
        ]
    ).fit(table)
    likewise.export(model, table, tmp_path / "model.onnx", double=double, check=False)
    (given,) = asked(tmp_path / "model.onnx", table)
    with np.errstate(all="ignore"):
        wanted = model.transform(table).astype(kind)
    for place, name in enumerate(FUNCTIONS):
        with np.errstate(all="ignore"):
            near = np.isclose(given[:, place], wanted[:, place], rtol=rounding, atol=0, equal_nan=True)
        # Of a large argument of a sine or a tangent the last digits are those of the argument.
        odd = [
            (value, got, right)
            for value, got, right, ok in zip(data[:, 0], given[:, place], wanted[:, place], near, strict=True)
            if not ok
        ]
        assert not odd, name


def test_a_function_of_ones_own_is_named(rows: Any, tmp_path: Path) -> None:
    model = pipeline.make_pipeline(preprocessing.FunctionTransformer(own), linear_model.Ridge()).fit(rows, target(rows))
    with pytest.raises(LikewiseError) as caught:
        likewise.export(model, rows, tmp_path / "model.onnx")
    assert "step 'functiontransformer' (FunctionTransformer)" in str(caught.value)
    assert "test_sklearn_export.own" in str(caught.value)
    assert "to the data before the model" in caught.value.remedy


def own(values: Any) -> Any:
    return values * 2


TARGETS: dict[str, dict[str, Any]] = {
    "logarithm": {"func": np.log1p, "inverse_func": np.expm1},
    "root": {"func": np.sqrt, "inverse_func": np.square},
    "scaled": {"transformer": preprocessing.StandardScaler()},
    "ranged": {"transformer": preprocessing.MinMaxScaler()},
    "robust": {"transformer": preprocessing.RobustScaler()},
    "powers": {"transformer": preprocessing.PowerTransformer()},
    "positive powers": {"transformer": preprocessing.PowerTransformer(method="box-cox")},
    "steps": {
        "transformer": pipeline.make_pipeline(
            preprocessing.FunctionTransformer(np.log, np.exp), preprocessing.StandardScaler()
        )
    },
    "as it is": {},
}  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_transformed_targets(name: str, rows: Any, tmp_path: Path) -> None:
    inner = scaled(linear_model.Ridge())
    model = compose.TransformedTargetRegressor(inner, check_inverse=False, **TARGETS[name])
    model.fit(rows, np.exp(target(rows) / 3))
    likewise.export(model, rows, tmp_path / "model.onnx", double=True, check=False)
    agree(model, rows, tmp_path / "model.onnx")
    likewise.export(model, rows, tmp_path / "single.onnx", check=False)
    (given,) = asked(tmp_path / "single.onnx", rows)
    np.testing.assert_allclose(given[:, 0], model.predict(rows), rtol=1e-4)


def test_a_target_transformed_behind_steps(rows: Any, tmp_path: Path) -> None:
    last = compose.TransformedTargetRegressor(tree.DecisionTreeRegressor(), func=np.log1p, inverse_func=np.expm1)
    model = scaled(last).fit(rows, np.exp(target(rows) / 3))
    assert likewise.export(model, rows, tmp_path / "model.onnx", double=True, explain=False)
    agree(model, rows, tmp_path / "model.onnx")


@pytest.mark.parametrize("double", [False, True])
def test_a_selector_that_keeps_the_first_column_alone(rows, tmp_path, double):
    """skl2onnx takes the index 0 for nothing selected."""
    chosen = feature_selection.SelectKBest(k=1)
    for model in (chosen, pipeline.make_pipeline(chosen, linear_model.LogisticRegression())):
        model.fit(rows, rows[:, 0] > 0)
        assert chosen.get_support(indices=True).tolist() == [0]
        done = likewise.export(model, rows, tmp_path / "chosen.onnx", double=double)
        assert done.report is not None
        assert done.report.passed
        if double:
            agree(model, rows, tmp_path / "chosen.onnx")


def test_a_majority_has_no_probabilities(rows, tmp_path):
    voters = [("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier(max_depth=3))]
    model = ensemble.VotingClassifier(voters).fit(rows, target(rows, 3))
    done = likewise.export(model, rows, tmp_path / "votes.onnx")
    agree(model, rows, tmp_path / "votes.onnx")
    assert done.report is not None
    assert done.report.passed


@pytest.fixture(scope="module")
def table_with_columns_to_spare() -> Any:
    made = np.random.default_rng(5).normal(size=(60, 2))
    times = pd.date_range("2024-01-01", periods=60, freq="h")
    return pd.DataFrame({"when": times, "a": made[:, 0], "b": made[:, 1], "note": [object()] * 60})


@pytest.mark.parametrize("columns", [["a", "b"], [1, 2], slice("a", "b"), [False, True, True, False]])
def test_columns_that_a_pipeline_drops_are_neither_needed_nor_exported(
    columns: Any, table_with_columns_to_spare: Any, tmp_path: Path
) -> None:
    table = table_with_columns_to_spare
    chosen = compose.ColumnTransformer([("numbers", preprocessing.StandardScaler(), columns)])
    model = pipeline.make_pipeline(chosen, linear_model.Ridge()).fit(table, table["a"] - table["b"])
    path = tmp_path / "model.onnx"
    made = likewise.export(model, table, path)
    assert made.report is not None
    assert made.report.passed
    assert {entry.name for entry in onnxruntime.InferenceSession(path).get_inputs()} == {"a", "b"}
    report = likewise.check(model, path, table[["a", "b"]])
    assert report.passed, report.headline
    assert report.samples == 60


def test_a_model_that_checks_the_names_of_its_table_needs_them_all(table_with_columns_to_spare: Any) -> None:
    table = table_with_columns_to_spare[["a", "b"]]
    chosen = compose.ColumnTransformer([("numbers", "passthrough", [0])])
    inner = pipeline.make_pipeline(chosen, linear_model.Ridge())
    votes = ensemble.BaggingRegressor(inner, n_estimators=2, random_state=0).fit(table, table["a"])
    report = likewise.check(votes, lambda frame: np.asarray(frame["a"]), table[["a"]])
    assert report.outcome == "INCONCLUSIVE"
    assert "'b'" in report.headline


THRESHOLDS = {
    "fixed": lambda inner: model_selection.FixedThresholdClassifier(inner, threshold=0.31, pos_label="no"),
    "tuned": lambda inner: model_selection.TunedThresholdClassifierCV(inner, cv=2, scoring="recall_macro"),
    "of a pipeline": lambda inner: pipeline.make_pipeline(
        preprocessing.StandardScaler(), model_selection.FixedThresholdClassifier(inner, threshold=0.8)
    ),
}


@pytest.mark.parametrize("name", THRESHOLDS)
def test_labels_are_picked_by_the_threshold(rows, tmp_path, name):
    inner = pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression())
    names = np.array(["no", "yes"], dtype=object)
    model = THRESHOLDS[name](inner).fit(rows, names[target(rows, 2)])
    usual = names[model.predict_proba(rows).argmax(axis=1)]
    assert (model.predict(rows) != usual).any(), "the threshold makes a difference here"
    assert likewise.export(model, rows, tmp_path / "model.onnx", double=True, edge="off", explain=False)
    label, probabilities = asked(tmp_path / "model.onnx", rows)
    assert label.tolist() == model.predict(rows).tolist()
    np.testing.assert_allclose(probabilities, model.predict_proba(rows), rtol=ROUNDING)


def test_a_threshold_on_scores_is_refused_with_what_to_change(rows, tmp_path):
    model = model_selection.FixedThresholdClassifier(svm.LinearSVC(), threshold=0.2).fit(rows, target(rows, 2))
    with pytest.raises(LikewiseError, match="threshold is on decision scores") as told:
        likewise.export(model, rows, tmp_path / "model.onnx")
    assert "predict_proba" in str(told.value.remedy)


@pytest.mark.parametrize("options", [{"sublinear_tf": True}, {"sublinear_tf": True, "norm": "l1", "use_idf": False}])
@pytest.mark.parametrize("double", [False, True])
def test_words_that_are_counted_by_their_logarithm_are_weighed_as_scikit_learn_does(tmp_path, options, double):
    words, rng = ["Alpha", "beta", "gamma", "delta"], np.random.default_rng(0)
    texts = pd.DataFrame({"text": [" ".join(rng.choice(words, 9)) for _ in range(80)]})
    step = compose.make_column_transformer((text.TfidfVectorizer(**options), "text"))
    model = pipeline.make_pipeline(step, linear_model.LogisticRegression()).fit(texts, rng.integers(0, 2, 80))
    likewise.export(model, texts, tmp_path / "m.onnx", double=double, check=False)
    label, probabilities = asked(tmp_path / "m.onnx", texts)
    np.testing.assert_array_equal(label, model.predict(texts))
    np.testing.assert_allclose(probabilities, model.predict_proba(texts), rtol=ROUNDING if double else 1e-5)
