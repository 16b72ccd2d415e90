"""Settings of estimators that a candidate was not told of, and numbers that several steps have learnt alike."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import piped
import pytest
from piped import top
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import StackingClassifier, VotingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.mixture import GaussianMixture
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

import likewise

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    return pd.DataFrame(rng.normal(5, 3, (160, 4)).astype(np.float32), columns=["a", "b", "c", "d"])


def exported(model, rows):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        likewise.export(model, rows, path, check=False)
        return onnx.load(path)


def scaled(model):
    return Pipeline([("scale", StandardScaler()), ("model", model)])


def test_weights_of_neighbours_that_a_converter_passes_over(rows):
    value = rows.a * 2 + np.sin(rows.b)
    table = rows.to_numpy(np.float64)
    model = KNeighborsRegressor(5, weights="distance").fit(table[:100], value[:100])
    best = top(model, piped.exported(model), {"X": table[100:]})
    assert (best.cause, best.culprit) == (
        "aggregation", "KNeighborsRegressor (weights='uniform' instead of weights='distance')",
    )  # fmt: skip


def test_an_isotonic_calibration_that_a_converter_reads_at_the_nearest_point(rows):
    flag = (rows.a + np.random.default_rng(1).normal(0, 2, len(rows)) > 5).astype(int)
    model = CalibratedClassifierCV(GaussianNB(), method="isotonic", cv=2).fit(rows.to_numpy(), flag)
    best = top(model, piped.exported(model), {"X": rows.to_numpy()})
    assert (best.cause, best.culprit.partition(" ")[0]) == ("operator-semantics", "IsotonicRegression")
    assert "calibrated_classifiers_[1]__calibrators[0]" in best.culprit


def test_neighbours_that_are_equally_near():
    """On a grid many are; scikit-learn takes whichever its tree comes to first, ONNX the first of the data."""
    rng = np.random.default_rng(0)
    table = rng.integers(0, 4, (200, 3)).astype(np.float32)
    model = KNeighborsRegressor(4).fit(table, rng.normal(size=200))
    best = top(model, piped.exported(model), {"X": table})
    assert (best.cause, best.culprit, best.explained_share) == ("tie-breaking", "KNeighborsRegressor", 1.0)
    other = copy.deepcopy(model)
    other._y = other._y + 1.0
    assert not piped.diagnoses(model, piped.exported(other), {"X": table}), "ties are not all of it"


def test_the_scale_of_a_target_that_is_not_put_back(rows):
    value = 300 * rows.a.to_numpy() + 4000
    model = GaussianProcessRegressor(RBF(3.0), alpha=0.5, normalize_y=True, optimizer=None).fit(rows, value)
    other = copy.deepcopy(model)
    other._y_train_mean, other._y_train_std = np.zeros(1), np.ones(1)
    best = top(model, exported(other, rows), rows)
    assert (best.cause, best.explained_share) == ("model-part-dropped", 1.0)
    assert "_y_train_std and _y_train_mean left out" in best.culprit


def test_a_count_in_a_member_is_named_with_its_path(rows):
    value = rows.a * 2 + np.sin(rows.b)
    model = VotingRegressor([("line", Ridge()), ("near", scaled(KNeighborsRegressor(4)))]).fit(rows, value)
    other = copy.deepcopy(model)
    other.estimators_[1]["model"].n_neighbors = 2
    best = top(model, exported(other, rows), rows)
    assert (best.cause, best.path) == ("operator-semantics", "near__model")
    assert "n_neighbors=2 instead of n_neighbors=4" in best.culprit


def test_of_two_steps_that_learnt_the_same_the_one_before_the_wrong_model_is_named(rows):
    flag = (rows.a > 5).astype(int)
    members = [("near", scaled(KNeighborsClassifier(5))), ("line", scaled(LogisticRegression()))]
    model = StackingClassifier(members, LogisticRegression(), cv=2).fit(rows, flag)
    for place, name in enumerate(("near", "line")):
        other = copy.deepcopy(model)
        other.estimators_[place]["scale"].mean_ += 2.0
        best = top(model, exported(other, rows), rows)
        assert (best.cause, best.path) == ("preprocessing-differs", f"{name}__scale")


def test_what_a_model_computes_from_its_arrays_is_not_told_of_the_step_before_it(rows):
    model = scaled(GaussianMixture(3, random_state=0)).fit(rows)
    other = copy.deepcopy(model)
    other["model"].means_[1, 0] += 0.8
    assert top(model, exported(other, rows), rows).cause == "weight-corruption"


def test_two_settings_at_once_are_found_where_neither_is_enough(rows):
    value, table = rows.a * 2 + np.sin(rows.b), rows.to_numpy(np.float64)
    model, other = (KNeighborsRegressor(count, weights="distance").fit(table[:100], value[:100]) for count in (12, 4))
    best = top(model, piped.exported(other), {"X": table[100:]})
    assert best.cause == "aggregation"
    assert "(n_neighbors=4, weights='uniform' instead of n_neighbors=12, weights='distance')" in best.culprit


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
@pytest.mark.parametrize("ensemble", [False, True])
def test_a_calibration_that_was_left_out(rows, method, ensemble):
    flag = (rows.a + np.random.default_rng(1).normal(0, 2, len(rows)) > 5).astype(int)
    table = rows.to_numpy()
    model = CalibratedClassifierCV(GaussianNB(), method=method, cv=2, ensemble=ensemble).fit(table, flag)
    best = top(model, piped.exported(model.calibrated_classifiers_[0].estimator), {"X": table})
    assert (best.cause, best.culprit) == ("model-part-dropped", "CalibratedClassifierCV")
    assert ("first member" in best.evidence) is ensemble


def test_two_steps_in_the_other_order(rows):
    flag = (rows.a > rows.b).astype(int)
    model = Pipeline([("length", Normalizer()), ("scale", StandardScaler()), ("model", LogisticRegression())])
    model.fit(rows.to_numpy(), flag)
    other = Pipeline([model.steps[1], model.steps[0], model.steps[2]])
    best = top(model, piped.exported(other), {"X": rows.to_numpy()})
    assert (best.cause, best.culprit) == ("preprocessing-differs", "Pipeline (length, scale)")
