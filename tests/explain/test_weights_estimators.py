"""Fitted numbers of scikit-learn estimators that stand otherwise in the graph are named with step and column."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import numpy as np
import onnx
import pandas as pd
import pytest
from faults.editing import with_attributes, with_constants
from faults.quiet import quietly
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.base import is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC
from weighing import ask_about_weights, cleared, exchanged, times, top

import data_only
import likewise

COLUMNS = ["height", "weight", "age", "dose"]


@pytest.fixture(autouse=True)
def _only_weights_are_suspected(monkeypatch):
    ask_about_weights(monkeypatch)


@cache
def patients():
    random = np.random.default_rng(0)
    values = random.normal([170, 70, 50, 2], [9, 12, 14, 0.7], (160, 4)).astype(np.float32)
    return pd.DataFrame(values, columns=COLUMNS)


@cache
def outcome():
    frame = patients()
    return (0.05 * frame.height - 0.04 * frame.weight + 0.03 * frame.age + 1.5 * frame.dose).to_numpy()


@cache
def stage():
    return np.digitize(outcome(), np.quantile(outcome(), [0.4, 0.7]))


def fitted(model, rows=slice(None)):
    wanted = outcome() if is_regressor(model) else stage()
    with quietly():
        return model.fit(patients()[rows], wanted[rows])


def exported(model, frame=None):
    sample = (patients() if frame is None else frame).to_numpy()[:1].astype(np.float32)
    with quietly():
        return to_onnx(
            model, sample, options={id(model): {"zipmap": False}} if hasattr(model, "predict_proba") else None
        )


@cache
def made(name):
    """A fitted model and its export."""
    model = fitted(deepcopy(MODELS[name]))
    return model, exported(model)


MODELS = {
    "logistic": make_pipeline(StandardScaler(), LogisticRegression()),
    "ridge": Ridge(),
    "linear svm": LinearSVC(C=0.01),
    "network": make_pipeline(StandardScaler(), MLPClassifier((6, 6), max_iter=80, random_state=0)),
    "regressing network": make_pipeline(
        StandardScaler(), MLPRegressor(hidden_layer_sizes=(6,), max_iter=80, random_state=0)
    ),
    "svm": make_pipeline(StandardScaler(), SVC()),
    "svr": make_pipeline(StandardScaler(), SVR()),
    "components": make_pipeline(StandardScaler(), PCA(3), LogisticRegression()),
    "clusters": KMeans(3, n_init=1, random_state=0),
    "bayes": GaussianNB(),
    "neighbours": KNeighborsClassifier(),
    "forest": make_pipeline(StandardScaler(), RandomForestClassifier(5, random_state=0)),
    "calibrated": CalibratedClassifierCV(LinearSVC(C=0.01), cv=2),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_faithful_export_passes_without_a_word(name):
    model, proto = made(name)
    report = data_only.explain(model, proto, patients())
    assert report.passed
    assert report.diagnoses == ()


@pytest.mark.parametrize("name", MODELS)
def test_an_export_of_another_training_is_stale(name):
    _, proto = made(name)
    other = fitted(deepcopy(MODELS[name]), slice(None, None, 2))
    cause, told = top(other, proto, patients())
    assert cause == "stale-weights"
    assert told.startswith("model")


@pytest.mark.parametrize(
    ("name", "operator", "attribute", "place", "culprit"),
    [
        ("logistic", "LinearClassifier", "coefficients", 2, ("logisticregression.coef_", "age")),
        ("ridge", "LinearRegressor", "coefficients", 3, ("coef_", "dose")),
        ("linear svm", "LinearClassifier", "coefficients", 1, ("coef_", "weight")),
        ("svm", "SVMClassifier", "support_vectors", 4, ("support_vectors_", "height")),
        ("svr", "SVMRegressor", "coefficients", 0, ("dual_coef_",)),
        ("calibrated", "LinearClassifier", "coefficients", 3, ("calibrated_classifiers_[0]", "coef_", "dose")),
    ],
)
def test_one_coefficient_is_found_with_its_column(name, operator, attribute, place, culprit):
    model, proto = made(name)
    broken = with_attributes(proto, operator, **{attribute: times(place, -3.0)})
    cause, told = top(model, broken, patients())
    assert cause == "weight-corruption"
    assert all(part in told for part in culprit), told


@pytest.mark.parametrize(
    ("change", "evidence"),
    [
        (times(8, -1), "sign flipped"),
        (times(8, 0), "zeroed"),
        (times(5, np.nan), "not a finite number"),
        (times(5, 2.0**8), "instead of"),
        (lambda old: 2 * old, "times 2"),
        (lambda old: -old, "sign flipped"),
        (lambda old: old.T, "transposed"),
        (lambda old: old[[1, 0, 2, 3, 4, 5]], "rows 0 and 1 swapped"),
        (cleared, "all zero"),
        (lambda old: old + np.random.default_rng(0).normal(size=old.shape), "other values throughout"),
    ],
)
def test_damage_to_a_layer_is_described(change, evidence):
    model, proto = made("network")
    broken = with_constants(proto, {"coefficient1": change})
    found = data_only.explain(model, broken, patients()).diagnoses
    assert found[0].cause == "weight-corruption"
    assert "mlpclassifier.coefs_[1]" in found[0].culprit
    assert evidence in found[0].evidence


@pytest.mark.parametrize(
    ("name", "operator", "attribute"),
    [
        ("logistic", "LinearClassifier", "intercepts"),
        ("ridge", "LinearRegressor", "intercepts"),
        ("svm", "SVMClassifier", "rho"),
        ("svr", "SVMRegressor", "rho"),
    ],
)
def test_an_intercept_of_zeros_is_a_part_dropped(name, operator, attribute):
    model, proto = made(name)
    cause, told = top(model, with_attributes(proto, operator, **{attribute: cleared}), patients())
    assert cause == "model-part-dropped"
    assert "intercept" in told


def test_a_missing_intercept_is_a_part_dropped():
    model, proto = made("ridge")
    assert top(model, with_attributes(proto, "LinearRegressor", intercepts=None), patients())[0] == "model-part-dropped"


def test_the_bias_of_a_layer_is_named():
    model, proto = made("regressing network")
    cause, told = top(model, with_constants(proto, {"intercepts": cleared}), patients())
    assert (cause, "mlpregressor.intercepts_[0]" in told) == ("model-part-dropped", True)


def test_another_value_of_an_intercept_is_damage():
    model, proto = made("ridge")
    broken = with_attributes(proto, "LinearRegressor", intercepts=lambda old: [old[0] + 5])
    assert top(model, broken, patients())[0] == "weight-corruption"


@pytest.mark.parametrize("name", ["logistic", "network", "forest", "svr"])
@pytest.mark.parametrize(("attribute", "factor"), [("offset", 1.2), ("scale", 3.0)])
def test_a_scaler_is_named_with_its_column(name, attribute, factor):
    model, proto = made(name)
    cause, told = top(model, with_attributes(proto, "Scaler", **{attribute: times(2, factor)}), patients())
    assert cause == "preprocessing-differs"
    assert told.startswith("standardscaler (age")


@pytest.mark.parametrize(
    "step",
    [
        MinMaxScaler(),
        RobustScaler(),
        MaxAbsScaler(),
        PowerTransformer(),
        KBinsDiscretizer(encode="ordinal", quantile_method="averaged_inverted_cdf"),
        PCA(3),
    ],
    ids=lambda step: type(step).__name__,
)
def test_a_step_fitted_again_is_named(step):
    model = fitted(make_pipeline(deepcopy(step), LinearRegression()))
    proto = exported(model)
    assert data_only.check(model, proto, patients()).passed
    with quietly():
        model.steps[0][1].fit(patients()[:90])
    cause, told = top(model, proto, patients())
    assert cause == "preprocessing-differs"
    assert told.startswith(type(step).__name__.lower())


def test_components_of_a_projection_are_named():
    model, proto = made("components")
    cause, told = top(model, with_constants(proto, {"transform_matrix": lambda old: -old}), patients())
    assert (cause, told.split()[0]) == ("preprocessing-differs", "pca")


def test_a_scaler_alone_that_was_fitted_again_is_stale():
    scaler = StandardScaler().fit(patients())
    again = StandardScaler().fit(patients()[:50])
    assert top(again, exported(scaler), patients()) == ("stale-weights", "model")


def test_a_centre_and_a_mean_are_named():
    model, proto = made("clusters")
    cause, told = top(model, with_constants(proto, {"Ge_Gemmcst": times(2, 1.4)}), patients())
    assert (cause, "cluster_centers_" in told) == ("weight-corruption", True)
    model, proto = made("bayes")
    cause, told = top(model, with_constants(proto, {"theta": times(2, 1.1)}), patients())
    assert (cause, "theta_" in told) == ("weight-corruption", True)


def test_a_member_of_a_vote_is_named():
    members = [("linear", LogisticRegression(max_iter=900)), ("bayes", GaussianNB())]
    model = fitted(VotingClassifier(members, voting="soft", flatten_transform=False))
    broken = with_attributes(exported(model), "LinearClassifier", coefficients=times(0, -9))
    cause, told = top(model, broken, patients())
    assert cause == "weight-corruption"
    assert told.startswith("linear.coef_ (height")


@cache
def people():
    random = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "income": random.normal(5e4, 1e4, 200).astype(np.float32),
            "age": random.integers(18, 80, 200).astype(np.float32),
            "city": random.choice(["Rome", "Oslo", "Bern"], 200),
            "job": random.choice(["a", "b", "c", "d"], 200),
        }
    )
    frame.loc[::9, "age"] = np.nan
    return frame, ((frame.income > 5e4) | (frame.city == "Rome")).astype(int)


def pipeline(encoder, classifier):
    numbers = Pipeline([("imputer", SimpleImputer()), ("scaler", StandardScaler())])
    columns = ColumnTransformer([("num", numbers, ["income", "age"]), ("cat", encoder, ["city", "job"])])
    return Pipeline([("prep", columns), ("clf", classifier)]).fit(*people())


def converted(model):
    types = [
        (name, (StringTensorType if name in ("city", "job") else FloatTensorType)([None, 1])) for name in people()[0]
    ]
    with quietly():
        return to_onnx(model, initial_types=types, options={"zipmap": False})


@cache
def mixed():
    model = pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    return model, converted(model)


@pytest.mark.parametrize(
    ("operator", "place", "changes", "cause", "culprit"),
    [
        ("Scaler", 0, {"scale": times(0, 3)}, "preprocessing-differs", "scaler (income, step 'prep__num__scaler'"),
        ("Imputer", 0, {"imputed_value_floats": times(1, 1.5)}, "preprocessing-differs", "imputer (age, step 'prep__"),
        ("OneHotEncoder", 0, {"cats_strings": exchanged}, "preprocessing-differs", "cat (city, step 'prep__cat'"),
        ("OneHotEncoder", 1, {"cats_strings": exchanged}, "preprocessing-differs", "cat (job, step 'prep__cat'"),
        ("LinearClassifier", 0, {"coefficients": times(-8, -5)}, "weight-corruption", "clf.coef_ (num__age"),
    ],
)
def test_the_path_to_a_step_and_its_column_are_named(operator, place, changes, cause, culprit):
    model, proto = mixed()
    found, told = top(model, with_attributes(proto, operator, place, **changes), people()[0])
    assert found == cause
    assert told.startswith(culprit)


def test_ranks_in_another_order_are_named_before_trees():
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    model = pipeline(encoder, RandomForestClassifier(5, random_state=0))
    broken = with_attributes(converted(model), "LabelEncoder", keys_strings=lambda old: [old[0], old[2], old[1]])
    cause, told = top(model, broken, people()[0])
    assert (cause, told.split(",")[0]) == ("preprocessing-differs", "cat (city")


def test_the_best_of_a_search_is_looked_into():
    model, proto = mixed()
    search = GridSearchCV(model, {"clf__C": [1.0]}, cv=2).fit(*people())
    cause, told = top(search, with_attributes(proto, "LinearClassifier", coefficients=times(-9, 5)), people()[0])
    assert cause == "weight-corruption"
    assert told.startswith("clf.coef_ (num__income")


def test_the_steps_before_a_model_without_a_converter_are_compared():
    class Own(LogisticRegression):
        """Has no converter of its own name."""

    model = pipeline(OneHotEncoder(), LogisticRegression())
    proto = with_attributes(converted(model), "Scaler", offset=times(0, 1.5))
    model.steps[-1][1].__class__ = Own
    cause, told = top(model, proto, people()[0])
    assert (cause, told.split(",")[0]) == ("preprocessing-differs", "scaler (income")


@pytest.mark.parametrize(
    ("model", "constant", "place"),
    [(LogisticRegression(), "coef", "coef_"), (SVC(), "stored2", "stored2")],
    ids=["both classes beside one another", "computed from what was learnt"],
)
def test_what_our_own_export_in_double_writes_is_known_too(tmp_path, model, constant, place):
    fitted = model.fit(patients(), outcome() > np.median(outcome()))
    target = tmp_path / "model.onnx"
    with quietly():
        likewise.export(fitted, patients(), target, double=True, check=False)
    bad = with_constants(onnx.load(target), {constant: times(2, 3)})
    cause, culprit = top(fitted, bad, patients())
    assert (cause, place in culprit) == ("weight-corruption", True)
