"""What an exporter really does: faithful exports pass in every form, and its real defects fail.

That an export is faithful or not is established with numpy first, so that the gate is not its own witness.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from fitted_pipelines import OPSETS, classes_of, export, table
from skl2onnx import to_onnx
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.datasets import make_multilabel_classification, make_regression
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.feature_selection import RFE
from sklearn.linear_model import LogisticRegression, Perceptron, SGDClassifier
from sklearn.model_selection import TunedThresholdClassifierCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

import data_only
from likewise.contracts.models import Kind


def run(candidate: bytes, frame: pd.DataFrame) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(candidate, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"X": frame.to_numpy(np.float32)}), strict=True))


def outcome(model: Any, candidate: bytes, data: Any, **options: Any) -> str:
    report = data_only.check(model, candidate, data, **options)
    return f"{report.outcome}: {report.verdict.headline}"


@pytest.fixture(scope="session")
def three_classes() -> tuple[pd.DataFrame, np.ndarray]:
    frame, y = classes_of(3)
    return frame.astype(np.float32), y


@pytest.fixture(scope="session")
def two_classes() -> tuple[pd.DataFrame, np.ndarray]:
    frame, y = classes_of(2)
    return frame.astype(np.float32), y


@pytest.mark.parametrize("zipmap", [True, False, "columns"])
@pytest.mark.parametrize(
    "labels", [["ant", "bee", "cat"], [7, 3, 11], [-1, 0, 1], [0.0, 1.0, 2.0], [False, True]], ids=str
)
def test_labels_of_every_type_and_probabilities_of_every_form_pair_up(labels, zipmap):
    frame, y = classes_of(len(labels))
    model = LogisticRegression(max_iter=500).fit(frame, np.array(labels)[y])
    report = data_only.check(model, export(model, frame, zipmap=zipmap), frame)
    assert report.passed, report.verdict.headline
    assert report.comparison.outputs[0].pair.kind is Kind.LABEL
    assert report.comparison.outputs[0].measures["label_flips"] == 0


def test_classes_that_are_floats_are_labels_and_their_ties_are_no_failures(three_classes):
    frame, y = three_classes
    model = LogisticRegression(max_iter=500).fit(frame, y.astype(float))
    earlier = LogisticRegression(max_iter=500).fit(frame[:-6], y[:-6].astype(float))
    report = data_only.check(model, export(earlier, frame, zipmap=False), frame, abs_tol=0.2)
    label = next(output for output in report.comparison.outputs if output.name == "label")
    assert label.measures["label_flips"] > 0
    assert label.measures["material_flips"] == 0
    assert report.passed, report.verdict.headline


@pytest.mark.parametrize("count", [2, 3])
def test_scores_given_as_an_output_for_each_class_pair_up(count):
    frame, y = classes_of(count)
    names = np.array(["ant", "bee", "cat"], dtype=object)[y]
    model = Perceptron().fit(frame, names)
    report = data_only.check(model, export(model, frame, zipmap="columns"), frame)
    assert report.passed, report.verdict.headline
    assert len(report.comparison.outputs) == 1 + count


def test_raw_scores_called_probabilities_fail_until_the_user_says_what_they_are(three_classes):
    frame, y = three_classes
    model = LogisticRegression(max_iter=500).fit(frame, y)
    candidate = export(model, frame, zipmap=False, raw_scores=True)
    assert np.allclose(run(candidate, frame)["probabilities"], model.decision_function(frame), atol=1e-4)
    report = data_only.check(model, candidate, frame)
    assert report.outcome == "FAIL"
    finding = next(found for found in report.verdict.findings if found.code == "not-probabilities")
    scores = model.decision_function(frame)
    assert f"from {scores.min():.4g} to {scores.max():.4g}: these are scores, not probabilities" in finding.message
    assert "--pair probabilities=scores" in finding.remedy
    again = data_only.check(model, candidate, frame, pair={"probabilities": "scores"})
    assert again.passed
    assert "not-probabilities" not in {found.code for found in again.verdict.findings}


def test_raw_scores_of_two_classes_are_told_from_probabilities(two_classes):
    frame, y = two_classes
    model = LogisticRegression(max_iter=500).fit(frame, y)
    report = data_only.check(model, export(model, frame, zipmap=False, raw_scores=True), frame)
    remedies = [found.remedy for found in report.verdict.findings if found.code == "not-probabilities"]
    assert len(remedies) == 1
    assert "--pair probabilities=scores" in remedies[0]
    assert data_only.check(
        model, export(model, frame, zipmap=False, raw_scores=True), frame, pair={"probabilities": "scores"}
    ).passed


@pytest.mark.parametrize("name", ["size (m²) {}", "größe {}", "a.b-c/{}", "{}. column"])
def test_columns_whose_names_the_exporter_respells_are_fed(three_classes, name):
    frame, y = three_classes
    frame = frame.set_axis([name.format(i) for i in range(frame.shape[1])], axis=1)
    columns = ColumnTransformer([("all", StandardScaler(), list(frame.columns))])
    model = make_pipeline(columns, LogisticRegression(max_iter=500)).fit(frame, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations that the converter meets
        proto = to_onnx(model, frame[:1], options={id(model): {"zipmap": False}}, target_opset=OPSETS)
    assert [value.name for value in proto.graph.input] != list(frame.columns)
    report = data_only.check(model, proto.SerializeToString(), frame)
    assert report.passed, report.verdict.headline
    assert len([note for note in report.comparison.notes if "is fed from column" in note]) == frame.shape[1]


def test_two_columns_that_the_exporter_would_spell_alike_are_not_guessed(three_classes):
    frame, y = three_classes
    frame = frame[["f0", "f1"]]
    columns = ColumnTransformer([("all", StandardScaler(), ["f0", "f1"])])
    model = make_pipeline(columns, LogisticRegression()).fit(frame, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        candidate = to_onnx(model, frame[:1], target_opset=OPSETS).SerializeToString()
    respelled = candidate.replace(b"f0", b"f_")
    data = frame.assign(**{"f ": frame["f0"], "f-": frame["f0"]})
    assert outcome(model, respelled, data).startswith("INCONCLUSIVE: the candidate takes 'f_'")
    assert outcome(model, respelled, data.drop(columns="f-")).startswith("PASS")


def test_an_array_feeds_a_model_that_was_fitted_on_one_named_column(three_classes):
    frame, y = three_classes
    model = LogisticRegression().fit(frame[["f0"]], y)
    candidate = export(model, frame[["f0"]], zipmap=False)
    assert outcome(model, candidate, frame[["f0"]].to_numpy()).startswith("PASS")


@pytest.mark.parametrize("opposite", [SVC(), SVC(kernel="linear")], ids=str)
def test_scores_under_the_wrong_class_fail(two_classes, opposite):
    """The default export of a binary SVC gives the score of the second class in the column of the first."""
    frame, y = two_classes
    model = opposite.fit(frame, y)
    candidate = export(model, frame, zipmap=False)
    assert np.allclose(run(candidate, frame)["probabilities"][:, 0], model.decision_function(frame), atol=1e-4)
    assert outcome(model, candidate, frame).startswith("FAIL")


@pytest.mark.parametrize(
    "model",
    [
        LinearDiscriminantAnalysis(),
        CalibratedClassifierCV(LogisticRegression(), method="isotonic", cv=3),
        KNeighborsClassifier(weights="distance"),
    ],
    ids=lambda model: type(model).__name__,
)
def test_probabilities_that_the_exporter_gets_wrong_fail(two_classes, model):
    frame, y = two_classes
    candidate = export(model.fit(frame, y), frame, zipmap=False)
    apart = np.abs(run(candidate, frame)["probabilities"] - model.predict_proba(frame)).max()
    assert apart > 0.01
    report = data_only.check(model, candidate, frame)
    assert str(report.outcome) == "FAIL"
    assert report.max_abs_diff == pytest.approx(apart)


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_a_link_function_that_the_exporter_drops_fails(loss):
    X, y = make_regression(200, 4, random_state=0)
    frame = table(X.astype(np.float32))
    model = HistGradientBoostingRegressor(loss=loss, max_iter=5, max_leaf_nodes=5).fit(frame, np.abs(y) / 50 + 0.1)
    candidate = export(model, frame)
    assert np.allclose(run(candidate, frame)["variable"].ravel(), np.log(model.predict(frame)), atol=1e-4)
    assert outcome(model, candidate, frame).startswith("FAIL")


def test_a_decision_threshold_that_the_exporter_ignores_fails(two_classes):
    frame, y = two_classes
    model = TunedThresholdClassifierCV(LogisticRegression(), cv=3).fit(frame, y)
    candidate = export(model, frame, zipmap=False)
    changed = int((run(candidate, frame)["label"] != model.predict(frame)).sum())
    assert changed
    report = data_only.check(model, candidate, frame)
    assert str(report.outcome) == "FAIL"
    assert report.comparison.outputs[0].measures["label_flips"] == changed


def test_labels_that_the_exporter_numbers_fail(three_classes):
    frame, y = three_classes
    model = OneVsOneClassifier(LogisticRegression()).fit(frame, np.array([7, 3, 11])[y])
    candidate = export(model, frame, zipmap=False)
    assert set(run(candidate, frame)["label"].ravel().tolist()) == {0, 1, 2}
    assert outcome(model, candidate, frame) == f"FAIL: {len(frame)} of {len(frame)} labels changed"


def test_several_labels_a_row_decided_at_another_threshold_fail():
    X, Y = make_multilabel_classification(200, 6, n_classes=3, random_state=0)
    frame = table(X.astype(np.float32))
    model = OneVsRestClassifier(LinearSVC()).fit(frame, Y)
    candidate = export(model, frame, zipmap=False)
    changed = int((run(candidate, frame)["label"] != model.predict(frame)).any(axis=1).sum())
    assert changed
    report = data_only.check(model, candidate, frame)
    assert str(report.outcome) == "FAIL"
    assert report.comparison.outputs[0].measures["label_flips"] == changed


def test_targets_that_the_exporter_stacks_below_each_other_fail():
    X, Y = make_regression(200, 4, n_targets=2, random_state=0)
    frame = table(X.astype(np.float32))
    model = MLPRegressor(hidden_layer_sizes=(8,), max_iter=5, tol=1e9, n_iter_no_change=1).fit(frame, Y)
    candidate = export(model, frame)
    assert run(candidate, frame)["variable"].shape == (400, 1)
    assert outcome(model, candidate, frame).startswith("FAIL: the candidate")


def test_labels_that_change_where_the_scores_are_far_apart_fail(three_classes):
    """Probabilities of modified Huber loss are clipped: two classes at 0.5 each, with scores of 21 and 6."""
    frame, y = three_classes
    model = SGDClassifier(loss="modified_huber", random_state=0).fit(frame, y)
    candidate = export(model, frame, zipmap=False)
    changed = run(candidate, frame)["label"] != model.predict(frame)
    best = np.sort(model.decision_function(frame)[changed], axis=1)
    assert (best[:, -1] - best[:, -2]).max() > 1
    assert outcome(model, candidate, frame).startswith("FAIL")


def test_an_output_that_is_ignored_may_be_of_any_length(three_classes):
    frame, y = three_classes
    model = LogisticRegression(max_iter=500).fit(frame, y)
    candidate = export(model, frame, zipmap=False, output_class_labels=True)
    assert len(run(candidate, frame)["class_labels"]) == 3
    assert outcome(model, candidate, frame, ignore=("class_labels",)).startswith("PASS")


def test_the_export_of_a_feature_selector_is_compared_with_what_it_selects(three_classes):
    frame, y = three_classes
    model = RFE(LogisticRegression(max_iter=500), n_features_to_select=2).fit(frame, y)
    candidate = export(model, frame)
    assert np.allclose(run(candidate, frame)["variable"], model.transform(frame))
    assert outcome(model, candidate, frame).startswith("PASS")
