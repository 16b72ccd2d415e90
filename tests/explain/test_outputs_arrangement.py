"""Outputs in the wrong place: rows, columns, axes, names, and tensors that are no outputs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper
from rewriting import REVERSED_ROWS, behind, columns_taken, copied, instead, set_aside, without_shape
from skl2onnx import to_onnx
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import data_only


@pytest.fixture(scope="module")
def data():
    rows, classes = make_classification(160, 6, n_informative=4, n_redundant=0, n_classes=3, random_state=0)
    rows = rows.astype(np.float32)
    return rows, classes, 3 * rows[:, 0] + classes + 5 + rows[:, 1] ** 2


@pytest.fixture(scope="module")
def line(data):
    model = LinearRegression().fit(data[0], data[2])
    return model, to_onnx(model, data[0][:1])


@pytest.fixture(scope="module")
def classifier(data):
    model = make_pipeline(StandardScaler(), PCA(4), LogisticRegression()).fit(*data[:2])
    return model, to_onnx(model, data[0][:1], options={"zipmap": False})


@pytest.fixture(scope="module")
def targets(data):
    """Three targets at once."""
    model = LinearRegression().fit(data[0], np.stack([data[2], data[2] ** 2, data[0][:, 2] - data[1]], axis=1))
    return model, to_onnx(model, data[0][:1])


@pytest.fixture(scope="module")
def heads(line, targets):
    """A graph with two outputs of one shape and one of another, as a network with several heads has."""
    proto = copied(line[1])
    other = copied(targets[1])
    for node in other.graph.node:
        node.input[:] = [name if name == "X" else f"other_{name}" for name in node.input]
        node.output[:] = [f"other_{name}" for name in node.output]
        node.name = f"other_{node.name}"
    for tensor in other.graph.initializer:
        tensor.name = f"other_{tensor.name}"
    proto.graph.node.extend(other.graph.node)
    proto.graph.initializer.extend(other.graph.initializer)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([2]), "third"))
    proto.graph.node.append(helper.make_node("Gather", ["other_variable", "third"], ["risk"], axis=1, name="pick"))
    names = {"variable": "price", "other_variable": "targets", "risk": "risk"}
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    del proto.graph.output[:]
    for name, width in (("price", 1), ("risk", 1), ("targets", 3)):
        proto.graph.output.append(helper.make_tensor_value_info(name, 1, [None, width]))
    return proto


def first(model, candidate, rows, **options):
    report = data_only.explain(model, candidate, rows, explain_budget=60, **options)
    assert not report.passed
    return report.diagnoses[0]


def test_sound_exports_have_no_diagnosis(line, classifier, targets, heads, data):
    for model, proto in (line, classifier, targets, (heads, heads)):
        assert not data_only.explain(model, proto, data[0]).diagnoses


def test_rows_reversed_in_every_output(classifier, data):
    model, proto = classifier
    backwards = behind(behind(proto, "label", REVERSED_ROWS), "probabilities", REVERSED_ROWS)
    found = first(model, backwards, data[0])
    assert (found.cause, found.culprit) == ("row-order", "label, probabilities (rows reversed)")
    assert "one row at a time" in found.evidence


def test_rows_shifted(line, data):
    model, proto = line
    rolled = copied(proto)
    before = set_aside(rolled, "variable")
    for name, value in {"zero": 0, "three": 3, "end": 2**40}.items():
        rolled.graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    rolled.graph.node.extend(
        [
            helper.make_node("Slice", [before, "zero", "three", "zero"], ["head"], name="head"),
            helper.make_node("Slice", [before, "three", "end", "zero"], ["tail"], name="tail"),
            helper.make_node("Concat", ["tail", "head"], ["variable"], axis=0, name="roll"),
        ]
    )
    found = first(model, rolled, data[0])
    assert (found.cause, found.culprit) == ("row-order", "value (rows shifted by -3)")


def test_rows_sorted_by_their_answer(line, data):
    model, _ = line
    found = first(model, lambda batch: {"value": np.sort(model.predict(batch))}, {"batch": data[0]})
    assert (found.cause, found.culprit) == ("row-order", "value (rows sorted by the answer)")


def test_another_model_is_no_order_of_rows(line, data):
    other = LinearRegression().fit(data[0][:80], data[2][:80])
    report = data_only.explain(line[0], to_onnx(other, data[0][:1]), data[0])
    assert not report.passed
    assert "row-order" not in [found.cause for found in report.diagnoses]


def test_targets_in_another_order(targets, data):
    model, proto = targets
    found = first(model, behind(proto, "variable", columns_taken([1, 0, 2])), data[0])
    assert (found.cause, found.culprit) == ("output-mapping", "value (output 'variable': columns hold 1, 0, 2)")


def test_two_outputs_swapped(heads, data):
    swapped = copied(heads)
    names = {"price": "risk", "risk": "price"}
    for node in swapped.graph.node:
        node.output[:] = [names.get(name, name) for name in node.output]
    found = first(heads, swapped, data[0])
    assert (found.cause, found.culprit) == ("output-mapping", "price, risk (swapped)")


def test_outputs_under_other_names(heads, data):
    """Two of one shape: nothing but their numbers says which is which."""
    renamed = copied(heads)
    for place, name in enumerate(("price", "risk")):
        renamed.graph.output[place].name = set_aside(renamed, name)
    found = first(heads, renamed, data[0])
    assert found.cause == "output-mapping"
    assert found.culprit == "price, risk ('price' is given as 'price_before', 'risk' is given as 'risk_before')"


def test_an_output_that_is_missing(heads, data):
    fewer = copied(heads)
    del fewer.graph.output[1]
    found = first(heads, fewer, data[0])
    assert (found.cause, found.culprit) == ("model-part-dropped", "risk (output missing)")


def test_an_output_too_many(line, data):
    model, proto = line
    more = copied(proto)
    more.graph.node.append(helper.make_node("Abs", ["X"], ["debug"], name="debug"))
    more.graph.output.append(helper.make_tensor_value_info("debug", 1, [None, 6]))
    found = first(model, more, data[0])
    assert found.cause == "output-mapping"
    assert found.culprit.startswith("debug (")


def test_rows_and_columns_exchanged(targets, data):
    model, proto = targets
    found = first(
        model, without_shape(behind(proto, "variable", ("Transpose", [], {"perm": [1, 0]})), "variable"), data[0]
    )
    assert (found.cause, found.culprit) == ("output-layout", "value (output 'variable': transposed)")


def test_a_reshape_in_the_place_of_a_transpose(targets, data):
    model, proto = targets
    mixed = behind(proto, "variable", ("Transpose", [], {"perm": [1, 0]}), ("Reshape", [np.array([-1, 3])], {}))
    found = first(model, mixed, data[0])
    assert found.cause == "output-layout"
    assert "transposed" in found.culprit


def test_a_row_of_tables_transposed(data):
    """Square tables: nothing but the numbers shows it."""

    def model(batch):
        return {"table": batch[:, :, None] * batch[:, None, ::-1]}

    found = first(model, lambda batch: {"table": model(batch)["table"].transpose(0, 2, 1)}, {"batch": data[0]})
    assert found.cause == "output-layout"


def test_a_column_left_out(targets, data):
    model, proto = targets
    found = first(model, without_shape(behind(proto, "variable", columns_taken([0, 2])), "variable"), data[0])
    assert (found.cause, found.culprit) == ("model-part-dropped", "value (output 'variable': without 1)")


def test_all_steps_in_the_place_of_their_mean(data):
    def steps(batch):
        return np.stack([batch, batch**2, 3 - batch], axis=1)

    found = first(
        lambda batch: {"value": steps(batch).mean(axis=1)}, lambda batch: {"value": steps(batch)}, {"batch": data[0]}
    )
    assert found.cause == "wrong-intermediate"
    assert "mean over axis 1" in found.culprit


def test_another_tensor_of_the_graph(classifier, data):
    model, proto = classifier
    projected = next(node.output[0] for node in proto.graph.node if node.op_type in ("MatMul", "Gemm"))
    found = first(model, instead(proto, "probabilities", projected), data[0])
    assert found.cause == "wrong-intermediate"
    assert "instead of tensor 'probabilities_before'" in found.culprit


def test_a_step_of_the_reference(classifier, data):
    """Nothing of the graph is left behind what it gives."""
    model, _ = classifier
    found = first(model, lambda batch: {"probabilities": model[:-1].transform(batch)[:, :4]}, {"batch": data[0]})
    assert found.cause == "wrong-intermediate"
    assert "what step 'pca' gives" in found.culprit


def test_every_row_alike(classifier, data):
    model, proto = classifier
    still = behind(proto, "probabilities", ("Mul", [np.zeros(3, "f4")], {}), ("Add", [np.full(3, 1 / 3, "f4")], {}))
    still = behind(still, "label", ("Mul", [np.array([0])], {}))
    found = first(model, still, data[0])
    assert found.cause == "constant-output"
    assert found.culprit == "label, probabilities (the same for every row)"


def test_an_output_that_has_no_rows_in_either_model_is_no_other_layout(data):
    found = lambda X: {"boxes": X[X[:, 0] > 0]}  # noqa: E731 - as many as a detector finds
    report = data_only.check(found, lambda X: found(X), data[0], explain=True)
    assert report.outcome == "INCONCLUSIVE"
    assert not report.diagnoses
