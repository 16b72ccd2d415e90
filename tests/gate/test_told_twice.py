"""The eighth attempt: files of models and answers that say a thing twice, hide a part, or answer for rows they do not
know. Each passed before it was refused, or took the process with it."""

from __future__ import annotations

import json
import re
import struct

import catboost
import lightgbm
import numpy as np
import onnx
import openvino as ov
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xgboost
from onnx import TensorProto, helper, numpy_helper

import likewise
from likewise.contracts.data import RowIds
from likewise.errors import ModelError
from likewise.models.onnx import describe
from likewise.models.onnx.walk import throwing_dice
from likewise.models.recorded import KEY, RecordedRunner, _answers
from likewise.registry import describe_model, open_model

ONE, ZERO = (numpy_helper.from_array(np.full(1, value, np.float32), "k") for value in (1, 0))
BOTH = numpy_helper.from_array(np.ones(1, np.float32), "k")
BOTH.float_data.append(0)
X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = X[:, 0] * 2


def opened(path):
    with open_model(describe_model(str(path))) as runner:
        return runner


def refused(path, content, told):
    path.write_bytes(content)
    with pytest.raises(ModelError, match=told):
        opened(path)


def trees(target, form):
    return bytes(xgboost.train({"max_depth": 2}, xgboost.DMatrix(X, target), 2).save_raw(form))


def binary_name(text):
    return b"L" + struct.pack(">q", len(text)) + text


@pytest.fixture(scope="module")
def ubj():
    return trees(Y, "ubj")


def test_what_xgboost_writes_is_read(tmp_path, ubj):
    (tmp_path / "m.ubj").write_bytes(ubj)
    opened(tmp_path / "m.ubj")


UBJSON = {
    "two models": (lambda ubj: ubj[:-1] + trees(-Y, "ubj")[1:], "names 'learner' twice"),
    "a model behind the model": (lambda ubj: ubj + trees(-Y, "ubj"), "bytes stand behind its end"),
    "lists in lists": (lambda _: b"{" + binary_name(b"learner") + b"[" * 100_000 + b"}", "within each other"),
    "half of it": (lambda ubj: ubj[: len(ubj) // 2], "ends early"),
    "a length below zero": (
        lambda ubj: ubj.replace(binary_name(b"version"), b"L" + struct.pack(">q", -7) + b"version"),
        "in the place of a length",
    ),
    "a list of nothing without end": (
        lambda _: b"{" + binary_name(b"learner") + b"[$Z#L" + struct.pack(">q", 2**62) + b"}",
        "what nobody reads",
    ),
    "a letter that means nothing": (lambda _: b"{" + binary_name(b"learner") + b"?}", "in the place of a value"),
    "more values than bytes": (
        lambda _: b"{" + binary_name(b"learner") + b"[$d#L" + struct.pack(">q", 2**40) + b"}",
        "ends early",
    ),
}


@pytest.mark.parametrize("name", UBJSON)
def test_ubjson_that_is_not_one_model(tmp_path, ubj, name):
    change, told = UBJSON[name]
    refused(tmp_path / "m.ubj", change(ubj), told)


@pytest.fixture(scope="module")
def lgb():
    data = lightgbm.Dataset(X, Y)
    return lightgbm.train({"verbosity": -1, "min_data_in_leaf": 2, "num_leaves": 4}, data, 2).model_to_string()


def test_a_tree_that_lightgbm_does_not_look_at(tmp_path, lgb):
    """It goes by the sizes in the header; whoever reads from line to line has one tree more."""
    before, end = lgb.split("end of trees")
    last = before[before.index("Tree=1") :].replace("Tree=1", "Tree=2")
    refused(tmp_path / "m.lgb", f"{before}{last}end of trees{end}".encode(), "not where it says")
    refused(tmp_path / "m.lgb", f"{lgb}\npandas_categorical:[[1]]\n".encode(), "'pandas_categorical' twice")
    for whole in (lgb, re.sub("\ntree_sizes=.*", "", lgb)):
        (tmp_path / "m.lgb").write_text(whole)
        opened(tmp_path / "m.lgb")


LIGHTGBM = {
    "a name twice, behind a lone carriage return": ("objective=", "objective=poisson\robjective=", "'objective' twice"),
    "a name twice in the header, behind an empty line": (
        "num_class=1",
        "num_class=1\n\nnum_class=2",
        "'num_class' twice",
    ),
    "a NUL, at which a text ends and a file does not": ("\nTree=1", "\n\0\nTree=1", "NUL"),
    "a line at which LightGBM ends": (
        "\nTree=1",
        "\n end of trees\nTree=1",
        "holds 2 trees, of which LightGBM reads 1",
    ),
    "lines behind the categories": (
        "end of parameters\n",
        "end of parameters\n\npandas_categorical:[[1]]\n\n\n",
        "behind",
    ),
}


@pytest.mark.parametrize("name", LIGHTGBM)
def test_text_of_lightgbm_that_two_readers_read_as_two_models(tmp_path, lgb, name):
    before, after, told = LIGHTGBM[name]
    whole = re.sub("\ntree_sizes=.*|\npandas_categorical:.*\n", "", lgb)
    assert before in whole
    refused(tmp_path / "m.lgb", whole.replace(before, after, 1).encode(), told)


def test_line_ends_of_windows_are_line_ends(tmp_path, lgb):
    (tmp_path / "m.lgb").write_bytes(re.sub("\ntree_sizes=.*", "", lgb).replace("\n", "\r\n").encode())
    opened(tmp_path / "m.lgb")


def test_bytes_behind_a_model_of_catboost(tmp_path):
    quiet = {"iterations": 3, "depth": 2, "verbose": 0, "allow_writing_files": False}
    path = tmp_path / "m.cbm"
    words = np.array([["u", "v", "w"][row % 3] for row in range(60)], dtype=object)[:, None]
    with_parts = catboost.CatBoostRegressor(**quiet, cat_features=[0], one_hot_max_size=1).fit(words, Y)
    with_parts.save_model(str(path))
    opened(path)
    plain = catboost.CatBoostRegressor(**quiet).fit(X, Y)
    plain.save_model(str(path))
    opened(path)
    refused(path, path.read_bytes() * 2, "bytes stand behind its end")
    plain.save_model(str(tmp_path / "m.json"), format="json")
    written = (tmp_path / "m.json").read_bytes()
    opened(tmp_path / "m.json")
    twice = written.rstrip()[:-1] + b',"scale_and_bias":[2,[1]]}'
    refused(tmp_path / "m.json", twice, "names something twice")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    shapes = (TensorProto.FLOAT, ["N", 3])
    inputs, outputs = ([helper.make_tensor_value_info(name, *shapes)] for name in "xy")
    weights = numpy_helper.from_array(np.arange(3, dtype=np.float32), "w")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "g", inputs, outputs, [weights])
    folder = tmp_path_factory.mktemp("compiled")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "m.onnx")
    ov.save_model(ov.convert_model(str(folder / "m.onnx")), str(folder / "m.xml"), compress_to_fp16=False)
    return folder / "m.xml"


def part(text, name):
    return re.search(rf"<{name}\b.*?</{name}>", text, re.DOTALL)[0]


def called(text, number):
    """The weights of a graph once more, before they come, with the same number in other figures."""
    layer = re.search(r'<layer id="1".*?</layer>', text, re.DOTALL)[0]
    return text.replace(layer, layer.replace('id="1"', f'id="{number}"') + layer)


TWICE = {
    "a layer called 01": lambda text: called(text, "01"),
    "a layer called  1": lambda text: called(text, " 1"),
    "a layer called +1": lambda text: called(text, "+1"),
    "layers": lambda text: text.replace("</layers>", "</layers>" + part(text, "layers")),
    "edges": lambda text: text.replace("</edges>", "</edges>" + part(text, "edges")),
    "what a layer says of itself": lambda text: re.sub(r"(<data [^>]*offset[^>]*/>)", r"\1\1", text),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_graph_of_openvino_that_says_a_thing_twice(tmp_path, compiled, name):
    text = compiled.read_text()
    assert TWICE[name](text) != text
    (tmp_path / "m.bin").write_bytes(compiled.with_suffix(".bin").read_bytes())
    refused(tmp_path / "m.xml", TWICE[name](text).encode(), "no graph that everybody would read alike")
    opened(compiled)


def recording(path, columns, **about):
    said = {"model": "m", "sha256": None, "keyed_by_name": True, "inputs": [], "data_fingerprint": ""}
    output = {"name": "y", "kind": "value", "dtype": "float64", "shape": [], "classes": None}
    said |= {"outputs": [{**output, "view": False, "decided_by": None}], **about}
    table = pa.table(columns).replace_schema_metadata({KEY: json.dumps(said).encode()})
    pq.write_table(table, path)
    return path


def test_one_recorded_answer_is_not_that_of_every_unknown_row(tmp_path):
    """Where a name had no answer, the answer of row -1 was looked for."""
    columns = {"row": [-1], "name": ["known"], "output.y": [0.0]}
    runner = RecordedRunner(recording(tmp_path / "g.parquet", columns))
    ids = RowIds(np.arange(2), np.array(["known", "unknown"], dtype=object))
    with pytest.raises(ModelError, match="no answer is recorded for row unknown"):
        runner._answers(ids)
    assert runner._answers(RowIds(np.arange(1), np.array(["known"], dtype=object)))["output.y"].tolist() == [0.0]


@pytest.mark.parametrize(
    ("more", "about", "told"),
    [
        ({"output.z": [1.0]}, {}, "answers 'output.z' that it does not describe"),
        ({"inputs": [1.5]}, {"fingerprinted": ["x"]}, "holds no fingerprints"),
    ],
)
def test_recorded_answers_say_all_that_they_hold(tmp_path, more, about, told):
    columns = {"row": [0], "name": ["a"], "output.y": [0.0], **more}
    with pytest.raises(ModelError, match=told):
        RecordedRunner(recording(tmp_path / "g.parquet", columns, **about))


def test_an_event_is_not_the_answer_to_a_line(tmp_path):
    """Its id is any text: `line 3` too, which is how requests without an id were called."""
    path = tmp_path / "traffic.jsonl"
    lines = [
        {"request": {"instances": [[1.0]]}, "response": {"predictions": [1.0]}},
        {"type": "org.kubeflow.serving.inference.response", "id": "line 3", "data": {"predictions": [2.0]}},
        {"request": {"instances": [[2.0]]}, "response": {"predictions": [999.0]}, "status": 500},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    report = likewise.check(str(path), lambda rows: np.ravel(rows), str(path), explain=False, edge="off")
    assert report.comparison.rows == 1


DICE = {
    "RandomUniform": (helper.make_node("RandomUniform", [], ["u"], shape=[1]), True),
    "Dropout": (helper.make_node("Dropout", ["x", "", "on"], ["u"]), True),
    "Dropout that is off": (helper.make_node("Dropout", ["x", "", "off"], ["u"]), False),
    "Dropout of a trained model": (helper.make_node("Dropout", ["x"], ["u"]), False),
    "Identity": (helper.make_node("Identity", ["x"], ["u"]), False),
}


@pytest.mark.parametrize("name", DICE)
def test_a_graph_that_throws_dice_is_told(tmp_path, name):
    """Its seed can be chosen such that it answers well for as many calls as a check takes."""
    node, throws = DICE[name]
    shapes = (TensorProto.FLOAT, ["N", 1])
    inputs, outputs = ([helper.make_tensor_value_info(name, *shapes)] for name in "xy")
    flags = [numpy_helper.from_array(np.array(value), name) for name, value in (("on", True), ("off", False))]
    small = numpy_helper.from_array(np.float32(1e-30), "small")
    nodes = [node, helper.make_node("Mul", ["u", "small"], ["s"]), helper.make_node("Add", ["x", "s"], ["y"])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [*flags, small])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    assert (throwing_dice(proto) is not None) == throws
    onnx.save(proto, tmp_path / "m.onnx")
    told = opened(tmp_path / "m.onnx").details.get("warnings", [])
    assert [text.startswith(f"it throws dice ({node.op_type}") for text in told] == [True] * throws


def test_a_function_of_the_model_that_throws_dice_is_told():
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    inside = helper.make_node("RandomNormalLike", ["x"], ["y"])
    function = helper.make_function("own", "F", ["x"], ["y"], [inside], opsets[:1])
    inputs, outputs = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"])] for name in "xy")
    graph = helper.make_graph([helper.make_node("F", ["x"], ["y"], domain="own")], "g", inputs, outputs)
    assert throwing_dice(helper.make_model(graph, opset_imports=opsets, functions=[function])) is not None


def times(nodes, *, opsets=(("", 17), ("own", 1)), functions=()):
    """A graph that multiplies its rows with what the nodes call `k`."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 3]) for name in ("X", "Y")]
    made = helper.make_graph([*nodes, helper.make_node("Mul", ["X", "k"], ["Y"])], "g", values[:1], values[1:])
    imported = [helper.make_opsetid(*opset) for opset in opsets]
    return helper.make_model(made, opset_imports=imported, functions=list(functions), ir_version=10)


def constant(*values, of="k", **attributes):
    """A constant with as many values as it is given."""
    parts = [helper.make_attribute(name, value) for name, value in (*values, *attributes.items())]
    node = helper.make_node("Constant", [], [of])
    node.attribute.extend(parts)
    return node


def function(value, *, overload="", default=None, twice=False):
    """A function of the graph's own that gives a number."""
    own = helper.make_function("own", "F", [], ["k"], [constant(value=value)], [helper.make_opsetid("", 17)])
    own.overload = overload
    if default is not None:
        own.attribute_proto.append(helper.make_attribute("w", default))
        own.attribute.extend(["w"] * twice)
    return own


def sparse(values):
    places = numpy_helper.from_array(np.zeros(1, np.int64), "places")
    return helper.make_sparse_tensor(values, places, [1])


def with_sparse_weight(values):
    made = times([])
    made.graph.sparse_initializer.append(sparse(values))
    return made


def in_two_places():
    made = times([constant(value=ONE)])
    stored = made.graph.initializer.add(name="W", dims=[1], data_type=1, data_location=1)
    for place in ("a.bin", "b.bin"):
        stored.external_data.add(key="location", value=place)
    return made


def in_a_branch(node):
    inner = helper.make_graph([node], "inner", [], [helper.make_tensor_value_info("k", TensorProto.FLOAT, [1])])
    return times([helper.make_node("If", ["c"], ["k"], then_branch=inner, else_branch=inner)])


def with_weights(outer, inner, node="If"):
    """A branch, or a loop in a branch, with a weight that is called as that of the graph is."""
    value = helper.make_tensor_value_info("k", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["W"], ["k"])], "inner", [], [value])
    graph.initializer.add().CopyFrom(inner)
    graph.initializer[0].name = "W"
    if node == "Loop":
        around = helper.make_node("Loop", ["", "c"], ["k"], body=graph)
        graph = helper.make_graph([around], "around", [], [value])
    made = times([helper.make_node("If", ["c"], ["k"], then_branch=graph, else_branch=graph)])
    made.graph.initializer.add().CopyFrom(outer)
    made.graph.initializer[0].name = "W"
    return made


CALL = helper.make_node("F", [], ["k"], domain="own")
TWO_READINGS = {
    "an opset twice": lambda: times([constant(value=ONE)], opsets=[("", 17), ("", 12)]),
    "an opset by another name": lambda: times([constant(value=ONE)], opsets=[("ai.onnx", 17), ("", 12)]),
    "an opset of its own twice": lambda: times([constant(value=ONE)], opsets=[("", 17), ("own", 1), ("own", 2)]),
    "a constant of two kinds": lambda: times([constant(value=ONE, value_float=0.0)]),
    "a constant of two kinds, in turn": lambda: times([constant(value_floats=[0.0], value=ONE)]),
    "a constant with a sparse one": lambda: times([constant(value=ONE, sparse_value=sparse(ZERO))]),
    "a constant in a branch": lambda: in_a_branch(constant(value=ONE, value_float=0.0)),
    "an attribute twice": lambda: times([constant(("value", ONE), ("value", ZERO))]),
    "a function twice": lambda: times([CALL], functions=[function(ONE), function(ZERO)]),
    "a function by its overload": lambda: times([CALL], functions=[function(ONE), function(ZERO, overload="z")]),
    "a constant of a function": lambda: times([CALL], functions=[function(BOTH)]),
    "a default of a function": lambda: times([CALL], functions=[function(ONE, default=BOTH)]),
    "a default and none": lambda: times([CALL], functions=[function(ONE, default=ONE, twice=True)]),
    "a sparse weight": lambda: with_sparse_weight(BOTH),
    "a sparse constant": lambda: times([constant(sparse_value=sparse(BOTH))]),
    "weights in two places": in_two_places,
    "a weight of a branch": lambda: with_weights(ONE, ZERO),
    "a weight of a loop in a branch": lambda: with_weights(ONE, ZERO, "Loop"),
}


@pytest.mark.parametrize("name", TWO_READINGS)
def test_a_graph_of_which_two_runtimes_compute_two_things(name):
    """ONNX Runtime took one, OpenVINO or onnx's own evaluator the other, and the check passed."""
    with pytest.raises(ModelError, match="runtimes do not agree"):
        describe.read(TWO_READINGS[name]())


def test_a_graph_that_says_a_thing_twice_alike_is_read():
    assert describe.read(times([constant(value=ONE)], opsets=[("", 17), ("ai.onnx", 17)]))
    assert describe.read(times([CALL], functions=[function(ONE, default=ONE)]))
    assert describe.read(with_sparse_weight(ONE))
    assert describe.read(with_weights(ONE, ONE))


def _last(tree):
    return tree["splits"][-1]


CATBOOST = {
    "another feature beside the number of a split": lambda trees: _last(trees[0]).update(float_feature_index=1),
    "another border beside the number of a split": lambda trees: _last(trees[0]).update(border=1e9),
    "another number of a split": lambda trees: _last(trees[0]).update(split_index=0),
    "a leaf too few": lambda trees: trees[0]["leaf_values"].pop(),
    "leaves too many": lambda trees: trees[0]["leaf_values"].extend([1.0] * 4),
}


@pytest.mark.parametrize("name", [*CATBOOST, "trees of two kinds"])
def test_json_of_catboost_that_two_readers_read_as_two_models(tmp_path, name):
    path, quiet = tmp_path / "m.json", {"iterations": 3, "depth": 2, "verbose": 0, "allow_writing_files": False}
    catboost.CatBoostRegressor(**quiet).fit(X, Y).save_model(str(path), format="json")
    found = json.loads(path.read_text())
    if name in CATBOOST:
        CATBOOST[name](found["oblivious_trees"])
    else:
        found["trees"] = found["oblivious_trees"][:1]
    refused(path, json.dumps(found).encode(), "says two things: CatBoost does not read its (oblivious_)?trees")


def parts(factor):
    """A sequence of `x` times a factor and a slice of it, and outputs that are called as its parts are."""
    float_tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y.0", "y.1")]
    outputs.insert(0, helper.make_value_info("y", helper.make_sequence_type_proto(float_tensor)))
    numbers = {"zero": [0], "two": [2], "one": [1]}
    stored = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in numbers.items()]
    nodes = [
        helper.make_node("Mul", ["x", "k"], ["a"]),
        helper.make_node("Slice", ["x", "zero", "two", "one"], ["b"]),
        helper.make_node("SequenceConstruct", ["a", "b"], ["y"]),
        helper.make_node("Identity", ["x"], ["y.0"]),
        helper.make_node("Identity", ["b"], ["y.1"]),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])]
    stored.append(numpy_helper.from_array(np.full(1, factor, np.float32), "k"))
    graph = helper.make_graph(nodes, "g", given, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_an_output_that_is_called_as_a_part_of_another_hides_nothing():
    report = likewise.check(parts(1.0), parts(7.0), X, edge="off", batch_sizes=())
    assert report.outcome == "INCONCLUSIVE"
    assert "it answers 'y.0' twice" in report.headline
    with pytest.raises(ModelError, match=r"'y\.shapes' twice"):
        _answers({"y": [np.ones(2)], "y.shapes": np.array([1, 2])})
