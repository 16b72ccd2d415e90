"""Links, kinds and scales of answers: a softmax too few, a mean for a sum, percent."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from rewriting import behind, copied, instead, with_attribute, with_operator
from skl2onnx import to_onnx
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import make_classification
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    VotingClassifier,
)
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import data_only

PLAIN = {"zipmap": False}


@pytest.fixture(scope="module")
def data():
    rows, classes = make_classification(160, 5, n_informative=4, n_redundant=0, n_classes=3, random_state=0)
    rows = rows.astype(np.float32)
    target = 3 * rows[:, 0] + classes + 5 + rows[:, 1] ** 2
    return rows, classes, target


@pytest.fixture(scope="module")
def three(data):
    model = LogisticRegression().fit(*data[:2])
    return model, to_onnx(model, data[0][:1], options=PLAIN)


@pytest.fixture(scope="module")
def two(data):
    model = LogisticRegression().fit(data[0], (data[1] > 0).astype(int))
    return model, to_onnx(model, data[0][:1], options=PLAIN)


@pytest.fixture(scope="module")
def line(data):
    model = Ridge().fit(data[0], data[2])
    return model, to_onnx(model, data[0][:1])


def first(model, candidate, rows, **options):
    report = data_only.explain(model, candidate, rows, explain_budget=60, **options)
    assert not report.passed
    return report.diagnoses[0]


@pytest.mark.parametrize("preset", ["float32", "exact", "quantized"])
def test_a_softmax_too_many(three, data, preset):
    model, proto = three
    found = first(model, behind(proto, "probabilities", ("Softmax", [], {"axis": 1})), data[0], preset=preset)
    assert (found.cause, found.explained_share) == ("link-function", 1.0)
    assert found.culprit == "probabilities (softmax applied twice)"


def test_the_attribute_that_says_which_link(three, data):
    model, proto = three
    raw = with_attribute(proto, "LinearClassifier", "post_transform", lambda _: "NONE")
    found = first(model, instead(raw, "probabilities", "probability_tensor"), data[0])
    assert found.cause == "link-function"
    assert "post_transform NONE instead of SOFTMAX, LinearClassifier" in found.culprit


def test_log_probabilities(three, data):
    model, proto = three
    found = first(model, behind(proto, "probabilities", ("Log", [], {})), data[0])
    assert (found.cause, found.culprit) == ("link-function", "probabilities (exp missing)")


def test_margins_of_two_classes_and_the_labels_cut_from_them(two, data):
    """Raw margins cut at 0.5: labels fail too, and from the same cause."""
    model, _ = two

    def answer(batch):
        margin = model.decision_function(batch)
        return {"label": (margin > 0.5).astype(int), "probabilities": np.stack([-margin, margin], axis=1)}

    found = first(model, answer, {"batch": data[0]})
    assert (found.cause, found.explained_share) == ("link-function", 1.0)
    assert found.culprit == "probabilities (sigmoid missing)"


def test_the_exponent_of_a_count_is_missing(data):
    model = PoissonRegressor(alpha=0.01).fit(data[0], np.abs(data[2]))
    found = first(model, with_operator(to_onnx(model, data[0][:1]), "Exp", "Identity"), data[0])
    assert (found.cause, found.culprit) == ("link-function", "value (output 'variable': exp missing)")


def test_a_sigmoid_that_saturates(line, data):
    model, proto = line
    found = first(model, behind(proto, "variable", ("Sigmoid", [], {})), data[0])
    assert found.cause == "link-function"
    assert "sigmoid applied" in found.culprit


def test_the_transformed_target_is_not_taken_back(data):
    model = TransformedTargetRegressor(Ridge(), transformer=StandardScaler()).fit(data[0], data[2])
    found = first(model, to_onnx(model.regressor_, data[0][:1]), data[0])
    assert (found.cause, found.explained_share) == ("link-function", 1.0)
    assert "StandardScaler" in found.culprit


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        (np.expm1, np.exp, "exp instead of exp(x) - 1"),
        (np.exp2, np.exp, "exp instead of power of 2"),
        (np.tanh, lambda x: 1 / (1 + np.exp(-x)), "sigmoid instead of tanh"),
    ],
)
def test_another_link_of_the_same_scores(line, data, right, wrong, told):
    model, _ = line
    scores = model.predict(data[0]) / 8
    found = first(lambda x: right(model.predict(x) / 8), lambda x: wrong(model.predict(x) / 8), {"x": data[0]})
    assert (found.cause, found.explained_share) == ("link-function", 1.0)
    assert told in found.culprit
    assert np.ptp(scores) > 1


@pytest.mark.parametrize(
    ("way", "cause", "told"),
    [
        (lambda value: value * 3.28084, "output-kind", "* 0.3048"),
        (lambda value: value - 7, "model-part-dropped", "output + 7"),
        (lambda value: (value - 5) / 2.5, "model-part-dropped", "output * 2.5 + 5"),
    ],
)
def test_a_scale_that_no_model_holds_is_told_by_its_numbers(line, data, way, cause, told):
    model, _ = line
    found = first(model, lambda x: {"value": way(model.predict(x))}, {"x": data[0]})
    assert (found.cause, found.explained_share) == (cause, 1.0)
    assert told in found.culprit


def test_answers_that_only_resemble_a_line_are_not_told_as_one(line, data):
    model, _ = line

    def bent(x):
        value = model.predict(x)
        return {"value": 2 * value + 0.3 * np.sin(9 * value)}

    report = data_only.explain(model, bent, {"x": data[0]}, explain_budget=60)
    assert report.diagnoses == ()


def test_scores_that_no_link_makes_probabilities(data):
    """A tree has no scores: the candidate gives votes of leaves, not probabilities."""
    model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(*data[:2])
    hard = behind(to_onnx(model, data[0][:1], options=PLAIN), "probabilities", ("Hardmax", [], {"axis": 1}))
    (place,) = data_only.explain(model, hard, data[0], explain_budget=60).diagnoses
    assert (place.nodes, place.explained_share) == (("probabilities_edit_0",), 1.0)


def test_percent(two, data):
    model, proto = two
    found = first(model, behind(proto, "probabilities", ("Mul", [np.float32(100)], {})), data[0])
    assert (found.cause, found.culprit) == ("output-kind", "probabilities (in percent)")


def test_the_sign(line, data):
    model, proto = line
    assert "negated" in first(model, behind(proto, "variable", ("Neg", [], {})), data[0]).culprit


def test_an_unknown_factor_is_no_diagnosis_of_ours(line, data):
    model, proto = line
    report = data_only.explain(model, behind(proto, "variable", ("Mul", [np.float32(6.7)], {})), data[0])
    assert not {"aggregation", "link-function", "output-kind"} & {found.cause for found in report.diagnoses}


def test_a_forest_summed(data):
    model = RandomForestClassifier(7, max_depth=4, random_state=0).fit(*data[:2])
    proto = to_onnx(model, data[0][:1], options=PLAIN)
    summed = with_attribute(proto, "TreeEnsembleClassifier", "class_weights", lambda leaves: [7 * n for n in leaves])
    found = first(model, summed, data[0])
    assert (found.cause, found.explained_share) == ("aggregation", 1.0)


def test_a_forest_that_takes_the_largest(data):
    model = RandomForestRegressor(5, max_depth=4, random_state=0).fit(data[0], data[2])
    proto = copied(to_onnx(model, data[0][:1]))
    proto.graph.node[0].attribute.append(helper.make_attribute("aggregate_function", "MAX"))
    found = first(model, proto, data[0])
    assert found.cause == "aggregation"
    assert "MAX instead of SUM" in found.culprit


def test_boosted_trees_averaged(data):
    model = GradientBoostingRegressor(n_estimators=6, random_state=0).fit(data[0], data[2])
    proto = copied(to_onnx(model, data[0][:1]))
    proto.graph.node[0].attribute.append(helper.make_attribute("aggregate_function", "AVERAGE"))
    assert first(model, proto, data[0]).cause == "aggregation"


def test_the_base_score_is_missing(data):
    model = GradientBoostingClassifier(n_estimators=6, random_state=0).fit(data[0], (data[1] > 0).astype(int))
    proto = to_onnx(model, data[0][:1], options=PLAIN)
    bare = with_attribute(proto, "TreeEnsembleClassifier", "base_values", lambda values: [0.0 for _ in values])
    found = first(model, bare, data[0])
    assert (found.cause, found.explained_share) == ("model-part-dropped", 1.0)
    assert found.culprit.startswith("base score")


def test_voters_without_their_weights(data):
    voters = [("line", LogisticRegression()), ("bayes", GaussianNB()), ("tree", DecisionTreeClassifier(max_depth=3))]
    made = {"voting": "soft", "flatten_transform": False}
    model = VotingClassifier(voters, weights=np.array([5, 1, 1]), **made).fit(*data[:2])
    plain = VotingClassifier(voters, **made).fit(*data[:2])
    plain.estimators_ = model.estimators_
    found = first(model, to_onnx(plain, data[0][:1], options=PLAIN), data[0])
    assert (found.cause, found.explained_share) == ("aggregation", 1.0)
    assert "members not weighted" in found.culprit


def test_voters_that_vote_instead_of_giving_their_probabilities(data):
    voters = [("line", LogisticRegression()), ("bayes", GaussianNB()), ("tree", DecisionTreeClassifier(max_depth=3))]
    soft = VotingClassifier(voters, voting="soft", flatten_transform=False).fit(*data[:2])
    hard = VotingClassifier(voters, voting="hard", flatten_transform=False).fit(*data[:2])
    hard.estimators_ = soft.estimators_
    found = first(soft, to_onnx(hard, data[0][:1], options=PLAIN), data[0])
    assert (found.cause, found.culprit) == ("aggregation", "label, probabilities (members vote, in VotingClassifier)")
