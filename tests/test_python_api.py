"""The gate from Python: live objects in, a report with a truth value out."""

from __future__ import annotations

import joblib
import numpy as np
import onnx
import pandas as pd
import polars as pl
import pytest

import data_only
import likewise
from likewise.errors import UsageError


@pytest.fixture(scope="module")
def model(example_folder):
    return joblib.load(example_folder / "model.joblib")


@pytest.fixture(scope="module")
def frame(example_folder):
    return pd.read_parquet(example_folder / "test.parquet")


@pytest.fixture(scope="module")
def expected(model, frame, example_folder):
    """The largest difference, by a plain script."""
    import onnxruntime as ort

    session = ort.InferenceSession(example_folder / "model.onnx")
    feed = {}
    for value in session.get_inputs():
        column = frame[value.name]
        dtype = object if value.type == "tensor(string)" else np.float32
        feed[value.name] = column.to_numpy(dtype).reshape(-1, 1)
    answers = session.run(["probabilities"], feed)[0]
    return np.abs(answers.astype(np.float64) - model.predict_proba(frame)).max()


@pytest.mark.parametrize("form", ["path", "str", "bytes", "ModelProto"])
def test_a_candidate_may_be_a_path_bytes_or_a_proto(example_folder, model, frame, expected, form):
    path = example_folder / "model.onnx"
    candidate = {"path": path, "str": str(path), "bytes": path.read_bytes(), "ModelProto": onnx.load(path)}[form]
    report = data_only.check(model, candidate, frame)
    assert report
    assert report.samples == len(frame)
    assert report.max_abs_diff == pytest.approx(expected, abs=1e-8)
    report.raise_for_verdict()


@pytest.mark.parametrize("form", ["pandas", "polars", "dict", "parquet", "arrow"])
def test_data_may_be_any_table(example_folder, model, frame, expected, form):
    data = {
        "pandas": lambda: frame,
        "polars": lambda: pl.read_parquet(example_folder / "test.parquet"),
        "dict": lambda: {name: frame[name].to_numpy() for name in frame},
        "parquet": lambda: example_folder / "test.parquet",
        "arrow": lambda: pl.read_parquet(example_folder / "test.parquet").to_arrow(),
    }[form]()
    report = data_only.check(model, example_folder / "model.onnx", data)
    assert report.passed, report.verdict
    assert report.max_abs_diff == pytest.approx(expected, abs=1e-8)


def test_an_array_feeds_a_model_that_was_fitted_on_arrays():
    from skl2onnx import to_onnx
    from sklearn.linear_model import LinearRegression

    rows = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    model = LinearRegression().fit(rows, rows @ [1.0, 2.0, 3.0])
    report = data_only.check(model, to_onnx(model, rows[:1]), rows)
    assert report.passed, report.verdict


def test_a_report_that_does_not_pass_is_false_and_raises(example_folder, model, frame):
    report = data_only.check(model, example_folder / "model.int8.onnx", frame)
    assert not report
    with pytest.raises(
        likewise.ParityError, match=r"FAIL: .* rows differ by more than .* in .probabilities."
    ) as caught:
        report.raise_for_verdict()
    assert caught.value.report is report


def test_what_cannot_be_compared_is_a_report_not_an_exception(example_folder, model):
    report = data_only.check(model, example_folder / "model.onnx", pd.DataFrame({"income": [1.0]}))
    assert report.outcome is likewise.Outcome.INCONCLUSIVE
    assert "'amount'" in report.verdict.headline
    with pytest.raises(likewise.ParityError, match=r"which the data does not have\. It takes: .* Rename the column"):
        report.raise_for_verdict()


def test_a_question_that_makes_no_sense_raises(example_folder, model, frame):
    with pytest.raises(UsageError, match="did you mean 'abs_tol'"):
        data_only.check(model, example_folder / "model.onnx", frame, abs_tolerance=1)
    with pytest.raises(UsageError, match="did you mean 'strict'"):
        data_only.check(model, example_folder / "model.onnx", frame, preset="strickt")


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("nan_equal", "false", "neither true nor false"),
        ("allow_same", 1, "neither true nor false"),
        ("shapes", "seq=3", "not a mapping"),
        ("limits", ["max_abs_diff=1"], "not a mapping"),
        ("pair", ["a=b"], "not a mapping"),
        ("feed", "x=y", "not a mapping"),
        ("matrix", "threads=1", "not a mapping"),
        ("candidate_options", "threads=1", "not a mapping"),
        ("batch_sizes", "1,2", "not a number"),
        ("shapes", {"seq": "a"}, "no lengths above zero"),
        ("report", 3, "not a path"),
    ],
)
def test_an_option_of_another_kind_is_refused(example_folder, model, frame, option, value, told):
    with pytest.raises(UsageError, match=told):
        likewise.check(model, example_folder / "model.onnx", frame, **{option: value})


def test_a_lone_name_or_number_is_a_list_of_one(example_folder, model, frame):
    one = data_only.check(model, example_folder / "model.onnx", frame, ignore="probabilities", batch_sizes=5)
    assert [output.name for output in one.comparison.outputs] == ["label"]
    assert [facts.size for facts in one.comparison.batch_sizes] == [5]


def test_a_live_model_of_the_same_kind_on_both_sides(model, frame):
    assert data_only.check(model, model, frame, preset="exact").passed


def test_a_report_can_be_saved_loaded_and_judged_again(example_folder, model, frame, tmp_path):
    path = tmp_path / "deep" / "report.json"
    # Dynamic INT8 answers differently at other batch sizes, so the sweep would have a maximum of its own.
    report = data_only.check(model, example_folder / "model.int8.onnx", frame, report=str(path), batch_sizes=())
    again = likewise.load(path)
    assert again.verdict == report.verdict
    assert again.max_abs_diff == report.max_abs_diff
    assert likewise.judge(again, preset="quantized").passed
    assert not likewise.judge(again, abs_tol=report.max_abs_diff * 0.999).passed
    assert likewise.judge(again, abs_tol=report.max_abs_diff).passed


def test_recorded_answers_stand_in_for_the_model(example_folder, tmp_path):
    data, golden = example_folder / "test.parquet", tmp_path / "golden.parquet"
    rows = likewise.record(example_folder / "model.joblib", data, golden)
    assert rows == 3_000
    live = data_only.check(example_folder / "model.joblib", example_folder / "model.onnx", data)
    recorded = data_only.check(golden, example_folder / "model.onnx", data)
    assert recorded.passed
    assert recorded.max_abs_diff == live.max_abs_diff
    ours, theirs = (
        [{name: value for name, value in output.measures.items() if name != "reference_drift"} for output in found]
        for found in (recorded.comparison.outputs, live.comparison.outputs)
    )
    assert ours == theirs, "only how a model moves by itself is not recorded"
    assert [o.details for o in recorded.comparison.outputs] == [o.details for o in live.comparison.outputs]


@pytest.mark.parametrize("name", ["id", "row_id"])
def test_recorded_answers_are_found_by_id_whatever_the_order(example_folder, frame, tmp_path, name):
    named = frame.assign(customer=[f"c{number}" for number in range(len(frame))])
    named.to_parquet(tmp_path / "named.parquet")
    golden = tmp_path / "golden.parquet"
    likewise.record(example_folder / "model.joblib", tmp_path / "named.parquet", golden, **{name: "customer"})
    shuffled = named.sample(frac=1, random_state=0)
    report = data_only.check(golden, example_folder / "model.onnx", shuffled, id="customer")
    assert report.passed, report.verdict
    assert data_only.check(golden, example_folder / "model.onnx", shuffled.drop(columns="customer")).outcome != "PASS"


def test_recorded_answers_belong_to_their_data(example_folder, frame, tmp_path):
    golden = tmp_path / "golden.parquet"
    likewise.record(example_folder / "model.joblib", example_folder / "test.parquet", golden)
    frame.iloc[::-1].to_parquet(tmp_path / "other.parquet")
    report = data_only.check(golden, example_folder / "model.onnx", tmp_path / "other.parquet")
    assert report.outcome is likewise.Outcome.INCONCLUSIVE
    assert "recorded for other data" in report.verdict.headline


def test_inspect_tells_what_a_model_declares(example_folder):
    found = likewise.inspect(example_folder / "model.int8.onnx")
    assert [entry["name"] for entry in found["inputs"]][:2] == ["income", "amount"]
    assert found["outputs"][1]["classes"] == ("approved", "declined")
    assert found["details"]["quantized_nodes"] == 4
    assert likewise.inspect(example_folder / "model.joblib")["outputs"][0]["kind"] == "label"
