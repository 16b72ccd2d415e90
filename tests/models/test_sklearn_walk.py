"""One list of what is nested in an estimator, and every walk along it finds the same parts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    BaggingClassifier,
    GradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_selection import RFE
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from likewise.models.sklearn.inside import parameters
from likewise.models.sklearn.walk import (
    Role,
    followed,
    innermost,
    outermost,
    parts,
    steps_before,
    visit_steps,
    walk,
    with_changes,
    with_model,
)

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(60, 3)), np.arange(60) % 3


def piped(model=None):
    return Pipeline([("scaler", StandardScaler()), ("model", LogisticRegression() if model is None else model)])


HOLDERS = {
    "search": (GridSearchCV(piped(), {"model__C": [1.0, 2.0]}, cv=2), ["", "scaler", "model"]),
    "frozen": (FrozenEstimator(piped().fit(X, Y)), ["estimator", "estimator.scaler", "estimator.model"]),
    "union": (
        make_pipeline(FeatureUnion([("a", StandardScaler()), ("b", MinMaxScaler())]), LogisticRegression()),
        ["featureunion", "featureunion.a", "featureunion.b", "logisticregression"],
    ),
    "vote": (VotingClassifier([("one", piped()), ("two", piped())], voting="soft"), ["one", "one.scaler", "two"]),
    "stack": (
        StackingClassifier([("one", piped())], final_estimator=LogisticRegression(), cv=2),
        ["one", "one.scaler", "one.model", "final_estimator"],
    ),
    "bagging": (BaggingClassifier(piped(), n_estimators=2), ["estimators_[0].scaler", "estimators_[1].model"]),
    "calibrated": (
        CalibratedClassifierCV(piped(), cv=2, ensemble=True),
        ["calibrated_classifiers_[0].estimator.scaler", "calibrated_classifiers_[1].calibrators[2]"],
    ),
    "one against the rest": (OneVsRestClassifier(piped()), ["estimators_[2].scaler"]),
    "threshold": (FixedThresholdClassifier(piped()), ["estimator.scaler"]),
    "chosen columns": (RFE(LogisticRegression(), n_features_to_select=2), ["estimator"]),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_every_nested_estimator_is_found_by_its_path(kind):
    model, wanted = HOLDERS[kind]
    found = dict(walk(model.fit(X, Y % 2 if kind == "threshold" else Y)))
    assert set(wanted) <= set(found)


def test_several_targets_and_a_changed_target():
    several = np.stack([Y > 0, Y > 1], axis=1).astype(int)
    for model in (MultiOutputClassifier(piped()), ClassifierChain(piped())):
        assert "estimators_[1].scaler" in dict(walk(model.fit(X, several)))
    target = TransformedTargetRegressor(piped(LinearRegression()), transformer=StandardScaler()).fit(X, X[:, 0])
    assert {"regressor.scaler", "transformer"} <= set(dict(walk(target)))
    assert type(outermost(target)) is StandardScaler
    assert innermost(target) is target, "what the inner model says is not the answer yet"


def test_what_others_were_cloned_from_is_not_nested():
    forest = RandomForestClassifier(n_estimators=2).fit(X, Y)
    boosted = GradientBoostingClassifier(n_estimators=2).fit(X, Y)
    assert [part.name for part in parts(forest)] == ["estimators_[0]", "estimators_[1]"]
    assert len(list(parts(boosted))) == 6
    bagging = BaggingClassifier(DecisionTreeClassifier(), n_estimators=2, max_features=2).fit(X, Y)
    assert [part.columns.shape for part in parts(bagging)] == [(2,), (2,)]
    assert all(part.role is Role.MEMBER for part in parts(bagging))


def test_columns_are_followed_through_a_search_and_a_frozen_model():
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(city=np.where(Y > 0, "x", "y"))
    columns = ColumnTransformer([("numbers", StandardScaler(), ["a", "c"]), ("words", OneHotEncoder(), ["city"])])
    inner = Pipeline([("columns", columns), ("model", LogisticRegression())]).fit(frame, Y)
    for model, path in ((inner, ""), (FrozenEstimator(inner), "estimator__")):
        found = {where: names for where, _, names in followed(model, list(frame))}
        assert found == {f"{path}columns__numbers": ["a", "c"], f"{path}columns__words": ["city"]}
        named = {entry.path: entry.columns for entry in parameters(model, list(frame))}
        assert named[f"{path}columns__numbers.mean_"] == ("a", "c")


@pytest.mark.parametrize("kind", ["search", "frozen", "vote", "stack", "bagging", "calibrated", "threshold"])
def test_a_step_is_changed_wherever_it_stands_and_the_model_is_not(kind):
    model, _ = HOLDERS[kind]
    model.fit(X, Y % 2 if kind == "threshold" else Y)
    paths = []
    visit_steps(model, lambda step: paths.append(step.path))
    assert paths
    assert all(path.endswith("scaler") for path in paths)
    before = model.predict_proba(X)
    changed = with_changes(model, dict.fromkeys(paths, lambda given, gave: gave * 0))
    assert np.ptp(changed.predict_proba(X), axis=0).max() < 1e-12, "every row looks alike behind the step"
    assert np.array_equal(before, model.predict_proba(X))


def test_the_steps_inside_a_frozen_step_are_watched():
    before = FrozenEstimator(make_pipeline(StandardScaler(), MinMaxScaler()).fit(X))
    model = Pipeline(
        [("before", before), ("frozen", FrozenEstimator(MinMaxScaler().fit(X))), ("m", LogisticRegression())]
    )
    model.fit(X, Y)
    paths = []
    visit_steps(model, lambda step: paths.append(step.path))
    assert paths == ["before__estimator__standardscaler", "before__estimator__minmaxscaler", "frozen"]


def test_the_model_behind_all_steps_is_exchanged_in_what_holds_it():
    target = TransformedTargetRegressor(piped(LinearRegression()), transformer=StandardScaler()).fit(X, X[:, 0])
    before, model = steps_before(target)
    assert [name for name, _ in before] == ["scaler"]
    assert type(model) is LinearRegression
    other = LinearRegression().fit(X, -X[:, 0])
    exchanged = with_model(target, lambda _: other)
    assert steps_before(exchanged)[1] is other
    assert steps_before(target)[1] is model
    assert not np.allclose(exchanged.predict(X), target.predict(X))
