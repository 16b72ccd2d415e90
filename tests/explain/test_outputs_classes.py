"""Labels and class columns: named wrongly, picked wrongly, in another order."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from rewriting import behind, columns_taken, copied, set_aside, with_attribute, with_operator
from skl2onnx import to_onnx
from sklearn.cluster import KMeans
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier

import data_only

PLAIN = {"zipmap": False}


@pytest.fixture(scope="module")
def data():
    rows, classes = make_classification(160, 5, n_informative=4, n_redundant=0, n_classes=3, random_state=0)
    return rows.astype(np.float32), classes


@pytest.fixture(scope="module")
def three(data):
    model = LogisticRegression().fit(*data)
    return model, to_onnx(model, data[0][:1], options=PLAIN)


@pytest.fixture(scope="module")
def words(data):
    rows, classes = data
    model = LogisticRegression().fit(rows, np.array(["ant", "bee", "cow"])[classes])
    return model, to_onnx(model, rows[:1], options=PLAIN)


@pytest.fixture(scope="module")
def two(data):
    rows, classes = data
    model = LogisticRegression().fit(rows, (classes > 0).astype(int))
    return model, to_onnx(model, rows[:1], options=PLAIN)


def first(model, candidate, rows, **options):
    report = data_only.explain(model, candidate, rows, explain_budget=60, **options)
    assert not report.passed
    return report.diagnoses[0]


def test_a_sound_export_has_no_diagnosis(three, two, words, data):
    for model, proto in (three, two, words):
        assert not data_only.explain(model, proto, data[0]).diagnoses


def test_class_columns_in_another_order(three, data):
    model, proto = three
    found = first(model, behind(proto, "probabilities", columns_taken([2, 0, 1])), data[0])
    assert (found.cause, found.explained_share) == ("label-order", 1.0)
    assert found.culprit == "probabilities (columns hold 2, 0, 1)"
    assert found.remedy.startswith("Export the reference again with likewise export")


def test_two_columns_inverted_are_seen_in_a_single_row(two, data):
    model, proto = two
    found = first(model, behind(proto, "probabilities", columns_taken([1, 0])), data[0][:1])
    assert (found.cause, found.culprit) == ("label-order", "probabilities (columns hold 1, 0)")


def test_classes_named_in_another_order_are_one_cause_for_labels_and_probabilities(words, data):
    model, proto = words
    renamed = with_attribute(proto, "LinearClassifier", "classlabels_strings", lambda names: names[1:] + names[:1])
    found = first(model, renamed, data[0])
    assert (found.cause, found.explained_share) == ("label-order", 1.0)
    assert found.culprit == "probabilities (classes are named bee, cow, ant)"


def test_classes_numbered_by_another_encoder(words, three, data):
    rows, classes = data
    other = LogisticRegression().fit(rows, np.array([1, 2, 0])[classes])
    found = first(words[0], to_onnx(other, rows[:1], options=PLAIN), rows)
    assert (found.cause, found.explained_share) == ("label-order", 1.0)
    assert "columns hold cow, ant, bee" in found.culprit


def test_labels_shifted_by_one(three, data):
    model, proto = three
    shifted = with_attribute(proto, "LinearClassifier", "classlabels_ints", lambda labels: [n + 1 for n in labels])
    found = first(model, shifted, data[0])
    assert (found.cause, found.culprit) == ("label-mapping", "label (shifted by +1)")


def test_positions_instead_of_classes(words, three, data):
    found = first(words[0], three[1], data[0])
    assert (found.cause, found.culprit) == ("label-mapping", "label (position instead of class)")


def test_another_spelling(words, data):
    model, proto = words
    loud = with_attribute(proto, "LinearClassifier", "classlabels_strings", lambda names: [n.upper() for n in names])
    found = first(model, loud, data[0])
    assert (found.cause, found.culprit) == ("label-mapping", "label (other spelling)")


def test_labels_exchanged_while_probabilities_agree(three, data):
    model, proto = three
    found = first(model, behind(proto, "label", ("Sub", [np.array([2])], {}), ("Neg", [], {})), data[0])
    assert (found.cause, found.culprit) == ("label-mapping", "label (exchanged: 0 for 2, 2 for 0)")


def test_a_few_flipped_labels_are_no_mapping(three, data):
    """Labels of one rare class that changed would fit a mapping; two rows do not make one."""
    model, _ = three
    rare = data[0][:2]

    def answer(batch):
        told = model.predict(batch)
        changed = (batch[:, None] == rare).all(axis=2).any(axis=1)
        return {"label": np.where(changed, (told + 1) % 3, told)}

    report = data_only.explain(model, answer, {"batch": data[0]}, explain_budget=20)
    assert not report.passed
    assert "label-mapping" not in [found.cause for found in report.diagnoses]


def test_another_threshold_is_found_with_its_constant(two, data):
    model, proto = two
    strict = copied(proto)
    set_aside(strict, "label")
    strict.graph.node.extend(
        [
            helper.make_node("Gather", ["probabilities", "second"], ["positive"], axis=1),
            helper.make_node("Greater", ["positive", "cut"], ["yes"]),
            helper.make_node("Cast", ["yes"], ["label"], to=onnx.TensorProto.INT64),
        ]
    )
    strict.graph.initializer.extend(
        [numpy_helper.from_array(np.array(1), "second"), numpy_helper.from_array(np.array(0.8, "f4"), "cut")]
    )
    found = first(model, strict, data[0])
    assert (found.cause, found.explained_share) == ("decision-threshold", 1.0)
    assert found.culprit == "label (threshold 0.8 instead of 0.5, constant 'cut')"


def test_a_tuned_threshold_that_the_export_leaves_out(two, data):
    rows, classes = data
    model = FixedThresholdClassifier(LogisticRegression(), threshold=0.2).fit(rows, (classes > 0).astype(int))
    found = first(model, to_onnx(model.estimator_, rows[:1], options=PLAIN), rows)
    assert found.cause == "decision-threshold"
    assert found.culprit.startswith("label (threshold 0.5 instead of 0.2")


def test_the_lowest_score_wins(data):
    rows, classes = data
    model = MLPClassifier((6,), max_iter=30, random_state=0)
    with pytest.warns(match="converge"):
        model.fit(rows, classes)
    proto = with_operator(to_onnx(model, rows[:1], options=PLAIN), "ArgMax", "ArgMin")
    found = first(model, proto, rows)
    assert found.cause == "label-rule"
    assert "ArgMin instead of ArgMax" in found.culprit


def test_clusters_by_the_greatest_distance(data):
    rows, _ = data
    model = KMeans(3, n_init=1, random_state=0).fit(rows)
    found = first(model, with_operator(to_onnx(model, rows[:1]), "ArgMin", "ArgMax"), rows)
    assert found.cause == "label-rule"


def test_labels_that_differ_only_where_scores_tie(data):
    rows, classes = data
    model = KNeighborsClassifier(4).fit(rows, (classes > 0).astype(int))
    proto = copied(to_onnx(model, rows[:1], options=PLAIN))
    for node in proto.graph.node:
        if node.op_type == "ArgMax":
            node.attribute.append(helper.make_attribute("select_last_index", 1))
    found = first(model, proto, rows, limits={"label_flips": 0})
    assert (found.cause, found.explained_share) == ("tie-breaking", 1.0)
    assert "select_last_index" in found.culprit


def test_labels_that_do_not_follow_from_agreeing_probabilities(three, data):
    """A rule of its own: the third class wherever it has a third of the probability."""
    model, _ = three

    def answer(batch):
        probabilities = model.predict_proba(batch)
        return {
            "label": np.where(probabilities[:, 2] > 1 / 3, 2, probabilities.argmax(axis=1)),
            "probabilities": probabilities,
        }

    found = first(model, answer, {"batch": data[0]})
    assert (found.cause, found.explained_share) == ("label-rule", 1.0)
