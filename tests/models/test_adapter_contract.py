"""One contract for every adapter: the same promises, kept by each framework that is found."""

from __future__ import annotations

import gc
import json
import warnings
import weakref

import numpy as np
import pandas as pd
import pytest

import data_only
import likewise
from likewise.compare.call import Side, answers
from likewise.compare.feed import plan
from likewise.contracts.data import Batch, RowIds
from likewise.data.columns import FrameColumns
from likewise.registry import adapter, adapters, describe_model

NAMES = ["a", "b", "c"]
TABLE = pd.DataFrame(np.random.default_rng(3).normal(size=(40, 3)).astype(np.float32), columns=NAMES)
TARGET = (TABLE["a"] - TABLE["b"] > 0).astype(int)


def build_sklearn(folder):
    import joblib
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression().fit(TABLE, TARGET)
    joblib.dump(model, folder / "model.joblib")
    return model, folder / "model.joblib"


def build_onnx(folder):
    from skl2onnx import to_onnx
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    columns = ColumnTransformer([("all", "passthrough", NAMES)])
    proto = to_onnx(
        make_pipeline(columns, LogisticRegression()).fit(TABLE, TARGET), TABLE[:1], options={"zipmap": False}
    )
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return proto, folder / "model.onnx"


def build_xgboost(folder):
    import xgboost

    model = xgboost.XGBClassifier(n_estimators=5, n_jobs=1).fit(TABLE, TARGET)
    model.save_model(folder / "model.ubj")
    return model, folder / "model.ubj"


def build_lightgbm(folder):
    import lightgbm

    model = lightgbm.train({"objective": "binary", "verbose": -1, "num_threads": 1}, lightgbm.Dataset(TABLE, TARGET), 5)
    model.save_model(folder / "model.txt")
    return model, folder / "model.txt"


def build_catboost(folder):
    import catboost

    model = catboost.CatBoostClassifier(iterations=5, thread_count=1, verbose=False, allow_writing_files=False)
    model.fit(TABLE, TARGET)
    model.save_model(str(folder / "model.cbm"))
    return model, folder / "model.cbm"


def build_torch(folder):
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).eval()
    rows = torch.export.Dim("rows", min=1, max=4096)
    program = torch.export.export(model, (torch.zeros(8, 3),), dynamic_shapes=({0: rows},))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its own pickling
        torch.export.save(program, folder / "model.pt2")
    return model, folder / "model.pt2"


def build_openvino(folder):
    import openvino

    converted = openvino.convert_model(onnx_network(folder))
    openvino.save_model(converted, folder / "model.xml", compress_to_fp16=False)
    return None, folder / "model.xml"


def onnx_network(folder):
    from onnx import TensorProto, helper, numpy_helper, save

    weights = numpy_helper.from_array(np.float32([[1, 2], [3, 4], [5, 6]]), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 3))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", 2))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    save(proto, folder / "network.onnx")
    return folder / "network.onnx"


def sum_of_rows(frame):
    return {"value": frame.to_numpy().sum(axis=1)}


def build_python(folder):
    (folder / "served.py").write_text("def model(frame):\n    return {'value': frame.to_numpy().sum(axis=1)}\n")
    return sum_of_rows, f"{folder / 'served.py'}:model"


def build_recorded(folder):
    TABLE.to_parquet(folder / "rows.parquet")
    likewise.record(build_sklearn(folder)[0], folder / "rows.parquet", folder / "golden.parquet")
    return None, folder / "golden.parquet"


def build_captured(folder):
    rows = {"dataframe_split": {"columns": NAMES, "data": TABLE.astype(float).to_numpy().tolist()}}
    line = {"request": rows, "response": {"predictions": TARGET.tolist()}, "time": "2026-01-01T10:00:00Z"}
    (folder / "traffic.jsonl").write_text(json.dumps(line) + "\n")
    return None, folder / "traffic.jsonl"


BUILDERS = {name.removeprefix("build_"): made for name, made in globals().items() if name.startswith("build_")}


@pytest.fixture(scope="module", params=sorted(found.framework for found in adapters() if not found.elsewhere))
def built(request, tmp_path_factory):
    """Framework, live model or None, file; a framework without a builder here fails, so that none is forgotten.

    Models that are elsewhere have no file here: what they promise is in test_endpoints.py and test_environments.py.
    """
    return request.param, *BUILDERS[request.param](tmp_path_factory.mktemp(request.param))


def batch(rows=TABLE):
    return Batch(RowIds(np.arange(len(rows))), FrameColumns(rows))


def ask(runner, rows=TABLE, size=None):
    feed = plan(batch(TABLE), runner.signature, side="candidate")
    return answers(Side("candidate", "model", runner, feed), batch(rows), size)[0]


def opened(target):
    described = describe_model(target)
    return adapter(described.framework).open(described)


def equal(one, other):
    assert list(one) == list(other)
    for name, array in one.items():
        assert array.tolist() == other[name].tolist(), name


def test_the_adapter_claims_its_files_and_live_models(built):
    framework, live, file = built
    assert describe_model(file).framework == framework
    assert live is None or describe_model(live).framework == framework


def test_the_signature_is_truthful(built):
    _, _, file = built
    with opened(file) as runner:
        found = ask(runner)
        declared = {spec.name: spec for spec in runner.signature.outputs or ()}
    assert runner.signature.outputs is None or declared.keys() == found.keys()
    for name, spec in declared.items():
        assert len(found[name]) == len(TABLE)
        if spec.classes is not None and str(spec.kind) == "label":
            assert set(found[name].tolist()) <= set(spec.classes)
        if spec.shape is not None:
            fixed = [(want, have) for want, have in zip(spec.shape[1:], found[name].shape[1:], strict=True) if want]
            assert all(not isinstance(want, int) or want == have for want, have in fixed), (spec, found[name].shape)


def test_details_are_plain_json(built):
    with opened(built[2]) as runner:
        assert json.loads(json.dumps(dict(runner.details)))


def test_asked_twice_it_answers_the_same(built):
    with opened(built[2]) as runner:
        equal(ask(runner), ask(runner))


def test_one_row_at_a_time_and_many_at_once_agree(built):
    with opened(built[2]) as runner:
        many, single = ask(runner), ask(runner, size=1)
    for name, array in many.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(single[name], array, rtol=1e-5, atol=1e-6)
        else:
            assert single[name].tolist() == array.tolist()


def test_no_rows_give_no_answers(built):
    with opened(built[2]) as runner:
        full, empty = ask(runner), ask(runner, TABLE[:0])
    assert {name: array.shape[1:] for name, array in empty.items()} == {n: a.shape[1:] for n, a in full.items()}
    assert all(len(array) == 0 for array in empty.values())


def test_live_object_and_file_agree(built):
    _, live, file = built
    if live is None:
        return
    with opened(file) as runner:
        stored = ask(runner)
    with opened(live) as runner:
        equal(stored, ask(runner))


def test_a_missing_column_is_inconclusive_and_named(built):
    framework, _, file = built
    if framework in ("python",):
        return  # a callable declares nothing: it gets whatever the data holds
    report = data_only.check(file, file, TABLE.rename(columns={"b": "bb"}))
    positional = framework in ("torch", "openvino")  # these take columns side by side, whatever their names
    assert report.outcome == ("PASS" if positional else "INCONCLUSIVE"), report.verdict
    assert positional or adapter(framework).answers_only or "'b'" in str(report.verdict.findings)


def test_text_where_numbers_are_taken_is_inconclusive(built):
    _, _, file = built
    report = data_only.check(file, file, TABLE.assign(b="text"))
    assert report.outcome == "INCONCLUSIVE", report.verdict


def test_a_missing_file_is_inconclusive_and_named(built, tmp_path):
    framework, _, file = built
    name = "nowhere" + (".py:model" if framework == "python" else file.suffix)
    report = data_only.check(str(tmp_path / name), sum_of_rows, TABLE)
    assert report.outcome == "INCONCLUSIVE"
    assert "nowhere" in report.verdict.headline


def test_a_picture_under_the_files_name_is_inconclusive_and_named(built, tmp_path):
    framework, _, file = built
    if framework == "python":
        return  # a source file that is a picture does not import: see test_python.py
    picture = tmp_path / f"picture{file.suffix}"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8)
    report = data_only.check(str(picture), sum_of_rows, TABLE)
    assert report.outcome == "INCONCLUSIVE"
    assert "picture" in report.verdict.headline


def test_a_closed_model_is_let_go(built):
    with opened(built[2]) as runner:
        ask(runner)
        held = weakref.ref(runner)
    del runner
    gc.collect()
    assert held() is None
