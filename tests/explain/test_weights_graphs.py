"""Weights are compared whoever wrote the graph: by hand, by an optimiser, or as ONNX against ONNX."""

from __future__ import annotations

import sys
from functools import cache

import joblib
import numpy as np
import onnx
import pandas as pd
import pytest
from faults.editing import constants_of, with_attributes, with_constants
from faults.quiet import quietly
from onnx import TensorProto, helper, numpy_helper
from skl2onnx import to_onnx
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from weighing import ask_about_weights, cleared, silent, times, top

import data_only
import likewise
from likewise.models.arrays import PREPROCESSING
from likewise.models.onnx.inside import constants, with_values
from likewise.models.sklearn.inside import parameters

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
def stage():
    frame = patients()
    return np.digitize(0.05 * frame.height - 0.04 * frame.weight + 1.5 * frame.dose, [7.5, 9.5])


@cache
def logistic(rows=160):
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(patients()[:rows], stage()[:rows])


def written(nodes, stored, outputs):
    """A graph as someone writes it who knows neither converter."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, [output], **options) for operator, inputs, output, options in nodes],
        "by hand",
        [value("X", TensorProto.FLOAT, [None, 4])],
        [value(name, kind, [None, *shape]) for name, kind, shape in outputs],
        [numpy_helper.from_array(np.asarray(values, dtype=np.float32), name) for name, values in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def by_hand(*, biased=True, **changes):
    scaler, model = logistic()
    stored = {"mean": scaler.mean_, "scale": scaler.scale_, "W": model.coef_.T, "b": model.intercept_, **changes}
    nodes = [
        ("Sub", ["X", "mean"], "centred", {}),
        ("Div", ["centred", "scale"], "scaled", {}),
        ("MatMul", ["scaled", "W"], "product", {}),
        *([("Add", ["product", "b"], "sum", {})] if biased else []),
        ("Softmax", ["sum" if biased else "product"], "probabilities", {"axis": 1}),
        ("ArgMax", ["probabilities"], "label", {"axis": 1, "keepdims": 0}),
    ]
    outputs = [("label", TensorProto.INT64, []), ("probabilities", TensorProto.FLOAT, [3])]
    return written(nodes, stored, outputs)


def test_a_graph_by_hand_that_is_right_passes():
    assert data_only.explain(logistic(), by_hand(), patients()).diagnoses == ()


@pytest.mark.parametrize(
    ("changes", "cause", "culprit"),
    [
        ({"mean": lambda: logistic()[0].mean_ * [1, 1, 1.2, 1]}, "preprocessing-differs", "standardscaler (age"),
        ({"mean": lambda: -logistic()[0].mean_}, "preprocessing-differs", "standardscaler (all 4 columns"),
        ({"scale": lambda: logistic()[0].var_}, "preprocessing-differs", "standardscaler (all 4 columns"),
        ({"scale": lambda: 1 / logistic()[0].scale_}, "preprocessing-differs", "standardscaler (all 4 columns"),
        ({"W": lambda: times(4, -1)(logistic()[1].coef_.T.copy())}, "weight-corruption", "logisticregression.coef_ ("),
        ({"W": lambda: logistic()[1].coef_.T[:, [1, 0, 2]]}, "weight-corruption", "logisticregression.coef_ ("),
        ({"b": lambda: np.zeros(3)}, "model-part-dropped", "intercept (logisticregression.intercept_"),
        ({"biased": lambda: False}, "model-part-dropped", "intercept (logisticregression.intercept_)"),
    ],
)
def test_a_graph_by_hand_is_compared_by_its_values(changes, cause, culprit):
    broken = by_hand(**{name: value() for name, value in changes.items()})
    found, told = top(logistic(), broken, patients())
    assert found == cause
    assert told.startswith(culprit)


def test_a_graph_by_hand_of_another_training_is_stale():
    assert top(logistic(80), by_hand(), patients()) == ("stale-weights", "model")


def layers_by_hand(model):
    nodes, stored, last = [], {}, "X"
    for number, (weights, bias) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
        stored |= {f"w{number}": weights, f"b{number}": bias}
        end = number == len(model.coefs_) - 1
        nodes.append(("Gemm", [last, f"w{number}", f"b{number}"], "variable" if end else f"sum{number}", {}))
        if not end:
            nodes.append(("Relu", [f"sum{number}"], f"layer{number}", {}))
            last = f"layer{number}"
    return written(nodes, stored, [("variable", TensorProto.FLOAT, [1])])


@cache
def regressing(seed=0):
    with quietly():
        network = MLPRegressor(hidden_layer_sizes=(6, 6), max_iter=60, random_state=seed)
        return network.fit((patients() - patients().mean()) / patients().std(), stage())


def scaled():
    return (patients() - patients().mean()) / patients().std()


def test_a_square_layer_by_hand_knows_which_way_round_it_is():
    proto = layers_by_hand(regressing())
    assert data_only.check(regressing(), proto, scaled()).passed
    broken = with_constants(proto, {"w1": lambda old: old.T})
    assert top(regressing(), broken, scaled()) == ("weight-corruption", "coefs_[1] (constant 'w1')")


def test_a_network_by_hand_of_another_training_is_stale():
    assert top(regressing(1), layers_by_hand(regressing()), scaled()) == ("stale-weights", "model")


@cache
def network(seed=0):
    with quietly():
        model = make_pipeline(StandardScaler(), MLPClassifier((6, 6), max_iter=60, random_state=seed))
        model.fit(patients()[seed:], stage()[seed:])
        return model, to_onnx(model, patients().to_numpy()[:1], options={"zipmap": False})


@pytest.mark.parametrize(
    ("broken", "cause", "culprit"),
    [
        (lambda proto: with_constants(proto, {"coefficient1": times(8, -4)}), "weight-corruption", "coefficient1"),
        (lambda proto: with_constants(proto, {"intercepts1": cleared}), "model-part-dropped", "intercept (intercepts1"),
        (lambda proto: with_attributes(proto, "Scaler", offset=times(2, 1.2)), "preprocessing-differs", "Scaler"),
        (lambda proto: network(7)[1], "stale-weights", "model"),
    ],
)
def test_two_graphs_are_compared_with_one_another(broken, cause, culprit):
    proto = network()[1]
    found, told = top(proto, broken(proto), patients())
    assert found == cause
    assert told.startswith(culprit)


def test_without_the_converter_arrays_are_found_by_their_values(monkeypatch):
    (model, proto), (other, _) = network(), network(7)
    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    cause, told = top(model, with_constants(proto, {"coefficient1": times(8, -4)}), patients())
    assert (cause, told.split(" ")[0]) == ("weight-corruption", "mlpclassifier.coefs_[1]")
    cause, told = top(model, with_attributes(proto, "Scaler", offset=times(2, 1.2)), patients())
    assert (cause, told.split(",")[0]) == ("preprocessing-differs", "standardscaler (age")
    assert top(other, proto, patients()) == ("stale-weights", "model")


def test_a_graph_that_a_runtime_has_rewritten_is_compared(tmp_path):
    import onnxruntime

    model, proto = network()
    settings = onnxruntime.SessionOptions()
    settings.optimized_model_filepath = str(tmp_path / "rewritten.onnx")
    settings.log_severity_level = 4
    onnxruntime.InferenceSession(proto.SerializeToString(), settings)
    rewritten = onnx.load(tmp_path / "rewritten.onnx")
    name = next(key for key, held in constants_of(rewritten).items() if held.shape == (6, 6))
    cause, told = top(model, with_constants(rewritten, {name: times(8, -4)}), patients())
    assert (cause, told.split(" ")[0]) == ("weight-corruption", "mlpclassifier.coefs_[1]")


def test_the_origin_written_into_a_file_is_evidence(tmp_path):
    frame, target = patients(), stage().astype(float)
    joblib.dump(Ridge().fit(frame, target), tmp_path / "model.joblib")
    with quietly():
        proto = to_onnx(Ridge().fit(frame[:60], target[:60]), frame.to_numpy()[:1])
    proto.metadata_props.add(key="likewise.reference_sha256", value="0" * 64)
    onnx.save(proto, tmp_path / "model.onnx")
    found = data_only.explain(tmp_path / "model.joblib", tmp_path / "model.onnx", frame).diagnoses
    assert (found[0].cause, found[0].culprit) == ("stale-weights", "model")
    assert "made from another model" in found[0].evidence


def test_a_file_made_from_a_model_of_another_kind_is_told_first(tmp_path):
    """Nothing can be put back where the two have no weight in common: an export of the reference is the experiment."""
    frame, target = patients(), stage().astype(float)
    joblib.dump(Ridge().fit(frame, target), tmp_path / "line.joblib")
    joblib.dump(RandomForestRegressor(3, random_state=0).fit(frame, target), tmp_path / "trees.joblib")
    likewise.export(tmp_path / "trees.joblib", frame, tmp_path / "trees.onnx", check=False)
    told = data_only.explain(tmp_path / "line.joblib", tmp_path / "trees.onnx", frame).diagnoses[0]
    assert (told.cause, told.explained_share, told.remedy_verified) == ("stale-weights", 1.0, True)
    assert "was made from another model" in told.evidence


def test_a_doubtful_origin_is_no_cause_where_all_weights_are_equal(tmp_path):
    frame, target = patients(), stage().astype(float)
    model = Ridge().fit(frame, target)
    joblib.dump(model, tmp_path / "model.joblib")
    with quietly():
        proto = to_onnx(model, frame.to_numpy()[:1])
    node = proto.graph.node[0]
    shifted = helper.make_node("Add", ["before", "shift"], [node.output[0]])
    node.output[0] = "before"
    proto.graph.node.append(shifted)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([3.0], dtype=np.float32), "shift"))
    proto.metadata_props.add(key="likewise.reference_sha256", value="0" * 64)
    onnx.save(proto, tmp_path / "model.onnx")
    assert silent(tmp_path / "model.joblib", tmp_path / "model.onnx", frame)


def test_answers_and_functions_have_no_weights_to_compare(tmp_path):
    model, proto = network()
    broken = with_constants(proto, {"coefficient1": times(8, -4)})
    assert silent(lambda height, weight, age, dose: model.predict_proba(patients()), broken, patients())


def test_columns_in_another_order_are_no_matter_of_weights():
    model, proto = network()
    turned = with_constants(proto, {})
    graph = turned.graph
    order = numpy_helper.from_array(np.array([3, 2, 1, 0]), "order")
    graph.initializer.append(order)
    first = next(node for node in graph.node if graph.input[0].name in node.input)
    first.input[0] = "turned"
    graph.node.insert(0, helper.make_node("Gather", [graph.input[0].name, "order"], ["turned"], axis=1))
    assert silent(model, turned, patients())


def test_constants_are_seen_as_their_nodes_see_them():
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    nodes = [
        helper.make_node("Identity", ["w"], ["same"]),
        helper.make_node("Transpose", ["same"], ["turned"], perm=[1, 0]),
        helper.make_node("DequantizeLinear", ["small", "step", "zero"], ["decoded"]),
        helper.make_node("MatMul", ["x", "turned"], ["y"]),
        helper.make_node("Add", ["y", "decoded"], ["z"]),
    ]
    stored = {
        "w": weights,
        "small": np.array([3, 5], dtype=np.int8),
        "step": np.array(0.5, dtype=np.float32),
        "zero": np.array(1, dtype=np.int8),
    }
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [None, 3])],
        [value("z", TensorProto.FLOAT, [None, 2])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    seen = {constant.operator: constant for constant in constants(proto)}
    assert np.array_equal(seen["MatMul"].values, weights.T)
    assert (seen["MatMul"].tensor, seen["MatMul"].place) == ("w", 1)
    assert np.array_equal(seen["Add"].values, [1.0, 2.0])
    assert seen["Add"].rounding == 0.25
    changed = with_values(proto, [(seen["MatMul"], 2 * seen["MatMul"].values)])
    session = __import__("onnxruntime").InferenceSession(changed.SerializeToString())
    assert np.allclose(session.run(None, {"x": np.ones((1, 3), np.float32)})[0], [[7.0, 26.0]])
    assert np.array_equal(constants_of(proto)["w"], weights)


def test_fitted_arrays_carry_their_step_and_columns():
    found = {parameter.path: parameter for parameter in parameters(logistic(), ())}
    assert found["standardscaler.mean_"].role == PREPROCESSING
    assert found["standardscaler.mean_"].columns == tuple(COLUMNS)
    assert found["logisticregression.coef_"].column((0, 3)) == "dose"
    assert found["logisticregression.intercept_"].is_intercept
    assert "standardscaler.var_" not in found
