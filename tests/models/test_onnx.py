"""ONNX models are run as deployed: the settings asked for, or an error; never something else in silence."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

import data_only
from likewise.contracts.data import Batch, RowIds
from likewise.contracts.models import Kind, Model
from likewise.data.columns import ArrayColumns
from likewise.errors import ModelError, UntrustedModelError, UsageError
from likewise.models.onnx import standard
from likewise.registry import adapter


def graph(nodes, inputs, outputs, constants=()):
    """A model of one's own; values are given as (name, type, shape)."""
    values = [[helper.make_tensor_value_info(*value) for value in group] for group in (inputs, outputs)]
    made = helper.make_graph(nodes, "g", *values, [numpy_helper.from_array(array, name) for name, array in constants])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def doubling(shape=("n", 2)):
    node = helper.make_node("Add", ["x", "x"], ["twice"])
    return graph([node], [("x", TensorProto.FLOAT, shape)], [("twice", TensorProto.FLOAT, shape)])


def opened(target, **options):
    return adapter("onnx").open(Model("onnx", target, options))


def batch(**arrays):
    rows = len(next(iter(arrays.values())))
    return Batch(RowIds(np.arange(rows)), ArrayColumns(arrays))


def test_a_path_bytes_and_a_proto_answer_alike(tmp_path):
    proto, x = doubling(), np.float32([[1, 2], [3, 4]])
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    for target in (path, str(path), path.read_bytes(), proto):
        with opened(target) as runner:
            assert runner.run(batch(x=x))["twice"].tolist() == (x + x).tolist()
            assert runner.signature.inputs[0].shape == ("n", 2)
            assert runner.signature.batch is None


@pytest.mark.parametrize("name", ["CUDAExecutionProvider", "TensorRT", "NoSuch"])
def test_a_provider_that_is_not_there_is_an_error(name):
    with pytest.raises(ModelError, match=name), opened(doubling(), providers=f"{name},CPUExecutionProvider"):
        pass


def test_settings_reach_the_session():
    options = {"optimization": "disable", "threads": "1", "session.intra_op.allow_spinning": "0"}
    with opened(doubling(), **options) as runner:
        assert runner.details["optimization"] == "disable"
        assert runner.details["threads"] == 1
        assert runner.details["providers"] == ["CPUExecutionProvider"]


@pytest.mark.parametrize(("options", "message"), [({"optimization": "most"}, "extended"), ({"thread": 1}, "threads")])
def test_an_unknown_setting_is_a_usage_error_that_lists_the_known_ones(options, message):
    with pytest.raises(UsageError, match=message), opened(doubling(), **options):
        pass


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n" + bytes(range(200)), b"plain text, not a model"])
def test_a_file_of_another_kind_is_refused_by_name(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.onnx"), opened(path):
        pass


def node(operator, reads, makes, **attributes):
    return helper.make_node(operator, [reads] if reads else [], [makes], **attributes)


@pytest.mark.parametrize("runtime", ["onnxruntime", "reference"])
@pytest.mark.parametrize(
    ("nodes", "tensor"),
    [
        ([node("Cast", "y", "y", to=TensorProto.FLOAT)], "y"),
        ([node("Identity", "b", "y"), node("Identity", "y", "b")], "[by]"),
        ([node("Identity", "x", "y"), node("Identity", "y", "y")], "y"),  # made twice, the second time from the first
    ],
    ids=["itself", "two", "twice"],
)
def test_a_graph_that_feeds_itself_is_refused_not_followed_for_ever(nodes, tensor, runtime, tmp_path):
    proto = graph(nodes, [("x", TensorProto.FLOAT, ("n", 2))], [("y", TensorProto.FLOAT, ("n", 2))])
    path = tmp_path / "circle.onnx"
    path.write_bytes(proto.SerializeToString())
    for target in (proto, path):
        with pytest.raises(ModelError, match=f"'{tensor}' is made from itself"), opened(target, runtime=runtime):
            pass


def test_a_branch_that_feeds_itself_is_refused():
    declared = [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)]
    branch = helper.make_graph([node("Identity", "inner", "inner")], "branch", [], declared)
    chosen = node("If", "flag", "y", then_branch=branch, else_branch=branch)
    proto = graph([chosen], [("flag", TensorProto.BOOL, ())], [("y", TensorProto.FLOAT, ("n", 2))])
    with pytest.raises(ModelError, match="'inner' is made from itself"), opened(proto):
        pass


@pytest.mark.parametrize("reads", ["", "nobody"])
def test_a_node_without_anything_to_read_is_refused_by_the_runtime(reads):
    made = [node("Identity", reads, "y")]
    proto = graph(made, [("x", TensorProto.FLOAT, ("n", 2))], [("y", TensorProto.FLOAT, ("n", 2))])
    with pytest.raises(ModelError, match="ONNX Runtime cannot load") as refused, opened(proto):
        pass
    assert "ONNXRuntimeError" not in str(refused.value)  # its codes say nothing to a reader


def test_nodes_may_stand_before_what_they_read():
    made = [node("Neg", "minus", "y"), node("Neg", "x", "minus")]
    proto = graph(made, [("x", TensorProto.FLOAT, ("n", 2))], [("y", TensorProto.FLOAT, ("n", 2))])
    with opened(proto) as runner:
        assert runner.run(batch(x=np.float32([[1, 2]])))["y"].tolist() == [[1, 2]]


def test_half_a_file_is_refused(tmp_path):
    constant = ("w", np.ones((2, 50), np.float32))
    proto = graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", TensorProto.FLOAT, ("n", 2))],
        [("y", TensorProto.FLOAT, ("n", 50))],
        [constant],
    )
    path = tmp_path / "half.onnx"
    path.write_bytes(proto.SerializeToString()[:-150])
    with pytest.raises(ModelError, match=r"half\.onnx"), opened(path):
        pass


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "sub/../../secret.bin"])
def test_weights_outside_the_models_folder_are_refused(tmp_path, location):
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"0" * 64)
    proto = graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", TensorProto.FLOAT, ("n", 2))],
        [("y", TensorProto.FLOAT, ("n", 2))],
        [("w", np.ones((2, 2), np.float32))],
    )
    weights = proto.graph.initializer[0]
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="outside its own folder"), opened(folder / "m.onnx"):
        pass


@pytest.mark.parametrize("part", ["function", "branch of a function", "default of a function", "sparse", "training"])
def test_weights_outside_the_models_folder_are_refused_wherever_they_are_named(tmp_path, part):
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"0" * 64)
    proto = graph(
        [helper.make_node("Double", ["x"], ["y"], domain="own")],
        [("x", TensorProto.FLOAT, ("n", 2))],
        [("y", TensorProto.FLOAT, ("n", 2))],
    )
    weights = TensorProto(name="w", dims=[2], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value="../secret.bin")
    constant = helper.make_node("Constant", [], ["w"], value=weights)
    branch = helper.make_graph([constant], "b", [], [helper.make_tensor_value_info("w", TensorProto.FLOAT, [2])])
    inner = {"branch of a function": helper.make_node("If", ["x"], ["w"], then_branch=branch, else_branch=branch)}
    nodes = [inner.get(part, constant), helper.make_node("Mul", ["x", "w"], ["y"])] if "function" in part else []
    nodes = nodes or [helper.make_node("Identity", ["x"], ["y"])]
    opsets = [helper.make_opsetid("", 18)]
    function = helper.make_function("own", "Double", ["x"], ["y"], nodes, opsets)
    if part == "default of a function":
        named = {"name": "value", "ref_attr_name": "default", "type": onnx.AttributeProto.TENSOR}
        function.node[0].attribute[0].CopyFrom(onnx.AttributeProto(**named))
        function.attribute_proto.append(helper.make_attribute("default", weights))
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    if part == "sparse":
        proto.graph.sparse_initializer.add(values=weights, indices=TensorProto(dims=[1], data_type=7), dims=[4])
    if part == "training":
        proto.training_info.add().algorithm.initializer.append(weights)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=r"'w' in '\.\./secret\.bin', outside its own"), opened(folder / "m.onnx"):
        pass


def test_weights_beside_the_model_are_used(tmp_path):
    proto = graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", TensorProto.FLOAT, ("n", 2))],
        [("y", TensorProto.FLOAT, ("n", 400))],
        [("w", np.full((2, 400), 3, np.float32))],
    )
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    with opened(path) as runner:
        assert runner.run(batch(x=np.float32([[1, 1]])))["y"][0, 0] == 6
    (tmp_path / "m.bin").unlink()
    with pytest.raises(ModelError, match=r"m\.bin"), opened(path):
        pass


def test_a_fixed_batch_is_declared():
    with opened(doubling((4, 2))) as runner:
        assert runner.signature.batch == 4


def test_a_size_below_zero_is_one_that_is_left_open():
    with opened(doubling((-1, 2))) as runner:
        assert runner.signature.batch is None
        assert runner.signature.inputs[0].shape == (None, 2)
        assert runner.run(batch(x=np.float32([[1, 1], [2, 2], [3, 3]])))["twice"].shape == (3, 2)


def test_one_block_a_target_is_turned_so_that_rows_come_first():
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["block"]),
        helper.make_node("Neg", ["block"], ["other"]),
        helper.make_node("Concat", ["block", "other"], ["probabilities"], axis=0),
    ]
    inputs, outputs = [("x", TensorProto.FLOAT, ("n", 3))], [("probabilities", TensorProto.FLOAT, (2, "n", 3))]
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    with opened(graph(nodes, inputs, outputs, [("axes", np.array([0]))])) as runner:
        found = runner.run(batch(x=x))["probabilities"]
    assert found.shape == (5, 2, 3)
    assert found[4, 0].tolist() == x[4].tolist()
    assert found[4, 1].tolist() == (-x[4]).tolist()


def recurrent(shape):
    """A state of which the rows lie along axis 1, given out in a shape that may say so or not."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["seen"]),
        helper.make_node("Add", ["state", "seen"], ["next"]),
    ]
    inputs = [("x", TensorProto.FLOAT, ("rows", 3)), ("state", TensorProto.FLOAT, (2, "rows", 3))]
    return graph(nodes, inputs, [("next", TensorProto.FLOAT, shape)], [("axes", np.array([0]))])


@pytest.mark.parametrize("shape", [None, ("a", "b", "c"), (2, "b", 3)])
@pytest.mark.parametrize("rows", [5, 2, 1])
def test_where_the_rows_of_an_output_lie_is_found_out_if_the_file_does_not_say(shape, rows):
    x, state = np.ones((9, 3), np.float32), np.arange(54, dtype=np.float32).reshape(9, 2, 3)
    with adapter("onnx").open(Model("onnx", recurrent(shape), batch_axis="x:0,state:1")) as runner:
        assert runner.run(batch(x=x, state=state))["next"].tolist() == (state + x[:, None]).tolist()
        assert runner.signature.row_axes.get("next", 1) == 1
        found = runner.run(batch(x=x[:rows], state=state[:rows]))["next"]
    assert found.tolist() == (state + x[:, None])[:rows].tolist()


@pytest.mark.parametrize(
    ("operator", "name", "kind"),
    [
        ("Softmax", "out", Kind.PROBABILITY),
        ("Sigmoid", "out", Kind.PROBABILITY),
        ("Identity", "out", Kind.VALUE),
        ("Identity", "logits", Kind.SCORE),
        ("Identity", "output_probability", Kind.PROBABILITY),
        ("Identity", "embedding", Kind.EMBEDDING),
    ],
)
def test_what_an_output_means_is_read_from_its_operator_and_name(operator, name, kind):
    proto = graph(
        [helper.make_node(operator, ["x"], [name])],
        [("x", TensorProto.FLOAT, ("n", 3))],
        [(name, TensorProto.FLOAT, ("n", 3))],
    )
    with opened(proto) as runner:
        assert runner.signature.outputs[0].kind is kind


@pytest.mark.parametrize("labels", [[3, 1, 2], ["c", "a", "b"]])
@pytest.mark.parametrize("zipmap", [True, False])
def test_class_columns_carry_the_names_the_graph_gives_them(labels, zipmap):
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    x = np.random.default_rng(0).normal(size=(90, 2)).astype(np.float32)
    model = LogisticRegression().fit(x, np.array(labels)[np.arange(90) % 3])
    proto = to_onnx(model, x[:1], options={"zipmap": zipmap})
    with opened(proto) as runner:
        label, probabilities = runner.signature.outputs
        answers = runner.run(batch(X=x))
    assert label.kind is Kind.LABEL
    assert probabilities.kind is Kind.PROBABILITY
    assert probabilities.classes == tuple(sorted(labels))
    expected = model.predict_proba(x)
    np.testing.assert_allclose(answers[probabilities.name], expected, atol=1e-5)
    assert answers[label.name].tolist() == model.predict(x).tolist()


@pytest.mark.parametrize(
    "key",
    [
        "session.model_external_initializers_file_folder_path",
        "session.collect_node_memory_stats_to_file",
        "session.optimized_model_filepath",
        "session.load_model_format",
        "session.made_up_by_the_next_version",
    ],
)
def test_a_key_of_the_runtime_that_names_files_is_refused(tmp_path, monkeypatch, key):
    """The first had weights of another folder read, of which the report knew nothing; the second wrote a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    x = np.ones((4, 3), np.float32)
    proto = doubling(("n", 3))
    with pytest.raises(UsageError, match="say how it computes") as caught:
        data_only.check(proto, proto, {"x": x}, candidate_options={key: "there"})
    assert "leave it out" in caught.value.remedy
    assert list(tmp_path.iterdir()) == [tmp_path / "there"]
    assert not [*(tmp_path / "there").iterdir()]
    fine = {"session.disable_prepacking": "1", "session.set_denormal_as_zero": "1"}
    assert data_only.check(proto, proto, {"x": x}, candidate_options=fine).passed


def with_decoder(depth):
    """A graph that decodes an image nowhere but in a branch that is not taken, in functions of functions."""
    decode = helper.make_node("ImageDecoder", ["image"], ["pixels"], name="decode")
    lines = [decode, helper.make_node("Cast", ["pixels"], ["e"], to=TensorProto.FLOAT)]
    image = numpy_helper.from_array(np.frombuffer(b"%!PS-Adobe-3.0 EPSF-3.0\n", np.uint8), "image")
    functions, opsets = [], [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    for number in range(depth):
        functions.append(helper.make_function("own", f"f{number}", ["image"], ["e"], lines, opsets))
        lines = [helper.make_node(f"f{number}", ["image"], ["e"], domain="own")]
    made = [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)]
    taken = helper.make_graph([helper.make_node("Identity", ["x"], ["e"])], "taken", [], made)
    left = helper.make_graph(lines, "left", [], made, [image])
    nodes = [helper.make_node("If", ["yes"], ["y"], then_branch=taken, else_branch=left)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", 2)) for name in "xy")
    yes = numpy_helper.from_array(np.array(True), "yes")
    whole = helper.make_graph(nodes, "whole", [x], [y], [yes])
    return helper.make_model(whole, opset_imports=opsets, functions=functions, ir_version=9)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_evaluator_of_the_standard_is_given_no_graph_that_opens_images(depth, tmp_path):
    """Pillow has Ghostscript read an image of the kind EPS; where the condition is computed, it decides who runs it."""
    proto = with_decoder(depth)
    (tmp_path / "image.onnx").write_bytes(proto.SerializeToString())
    for target in (proto, proto.SerializeToString(), tmp_path / "image.onnx"):
        with pytest.raises(UntrustedModelError, match="ImageDecoder"), opened(target, runtime="reference"):
            pass
    with pytest.raises(UntrustedModelError, match="ImageDecoder"):
        standard.evaluator(proto)


def test_the_evaluator_of_the_standard_changes_no_language_of_the_process():
    """A locale is set for the whole process, and for good: numbers would be written with commas after that."""
    words = [helper.make_node("StringNormalizer", ["w"], ["lower"], case_change_action="LOWER", locale="C")]
    given, made = (helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in ("w", "lower"))
    proto = helper.make_model(helper.make_graph(words, "words", [given], [made]), ir_version=9)
    with pytest.raises(UntrustedModelError, match="language of the whole process"):
        standard.evaluator(proto)


def test_no_other_operator_of_the_evaluator_asks_another_library():
    """What a version of onnx to come hands on to others shows up here."""
    home = Path(onnx.reference.__file__).parent
    harmless = "__future__ abc collections dataclasses enum io itertools locale math ml_dtypes numbers numpy onnx re"
    known = {*harmless.split(), "textwrap", "typing", "unicodedata", "warnings"}
    for source in home.rglob("*.py"):
        told = [*ast.walk(ast.parse(source.read_text("utf-8")))]
        names = {alias.name for part in told if isinstance(part, ast.Import) for alias in part.names}
        names |= {part.module or "onnx" for part in told if isinstance(part, ast.ImportFrom)}
        strange = {name.partition(".")[0] for name in names} - known
        assert not strange or source.stem == "op_image_decoder", (source, strange)


def test_nobody_else_asks_the_evaluator():
    sources = Path(standard.__file__).parents[2].rglob("*.py")
    assert [path.name for path in sources if "ReferenceEvaluator" in path.read_text("utf-8")] == ["standard.py"]
