"""Both models get the same rows: every column by its name, every loss on the way counted."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import data_only
import likewise
from likewise.errors import UsageError
from planting import BOOL, FLOAT, INT64, STRING, codes, expect, graph, identity, measures, said

COUNT = 60
NUMBERS = np.arange(COUNT)


def check(column, dtype, reference, **options):
    """A column `x` through an ONNX graph that gives it back, against what it should be."""
    data = pd.DataFrame({"x": column})
    answers = np.asarray(reference)
    row_of = {"number": np.arange(COUNT)}

    def answer(frame):
        return {"value": answers[frame["number"].to_numpy()]}

    return data_only.check(answer, identity(dtype), data.assign(**row_of), **options)


def the_cast(report, column="x"):
    return next(cast for cast in report.comparison.casts if cast.column == column)


def test_columns_in_the_file_in_another_order_than_the_model_was_fitted_with_pass(models):
    assert list(models.shuffled) != list(models.table)
    report = data_only.check(models.joblib.classifier, models.onnx.classifier, models.data)
    expect(report, "PASS", "in the reference's order: 'width', 'age', 'height'")


def test_a_graph_with_one_input_a_column_is_fed_by_name(models):
    expect(data_only.check(models.joblib.classifier, models.onnx.columns, models.data), "PASS")


def test_a_graph_whose_columns_were_swapped_at_export_fails(models):
    def swapped(frame):
        renamed = frame.rename(columns={"width": "height", "height": "width"})
        return {"probabilities": models.fitted.classifier.predict_proba(renamed[list(models.table.columns)])}

    expect(data_only.check(models.joblib.classifier, swapped, models.data), "FAIL", "probabilities.mismatch_rate")


@pytest.mark.parametrize("target", ["parquet", "csv", "jsonl", "arrow", "frame"])
def test_the_same_rows_pass_from_every_kind_of_table(models, tmp_path, target):
    path = tmp_path / f"data.{target}"
    if target == "frame":
        path = models.shuffled
    elif target == "parquet":
        models.shuffled.to_parquet(path)
    elif target == "csv":
        models.shuffled.to_csv(path, index=False)
    elif target == "jsonl":
        models.shuffled.to_json(path, orient="records", lines=True, double_precision=15)
    else:
        models.shuffled.to_feather(path)
    expect(data_only.check(models.joblib.classifier, models.onnx.classifier, path), "PASS", "300 rows agree")


def test_a_lone_array_is_taken_by_position_and_said_so(models):
    report = data_only.check(models.joblib.regressor, models.onnx.regressor, models.table.to_numpy())
    expect(report, "PASS", "taken by position as 'width', 'age', 'height'")


def test_a_missing_column_is_inconclusive_and_named(models):
    data = models.shuffled.drop(columns="age")
    report = data_only.check(models.joblib.classifier, models.onnx.classifier, data)
    expect(report, "INCONCLUSIVE", "the reference takes 'age', which the data does not have")


def test_a_renamed_column_is_inconclusive_and_the_new_name_is_offered(models):
    data = models.shuffled.rename(columns={"width": "Width"})
    report = data_only.check(models.joblib.classifier, models.onnx.classifier, data)
    expect(report, "INCONCLUSIVE", "'width'", "did you mean 'Width'?", "--feed width=COLUMN")


def test_a_renamed_column_can_be_fed_by_hand(models):
    data = models.shuffled.rename(columns={"width": "breadth"})
    reference = models.onnx.columns
    report = data_only.check(reference, reference, data, feed={"width": "breadth"})
    expect(report, "PASS")
    with pytest.raises(UsageError, match="no column 'bredth' to feed 'width' from; did you mean 'breadth'"):
        data_only.check(reference, reference, data, feed={"width": "bredth"})
    with pytest.raises(UsageError, match="no input 'widht' to feed from 'breadth'; did you mean 'width'"):
        data_only.check(reference, reference, data, feed={"widht": "breadth"})


def test_a_column_no_model_takes_is_ignored_and_said_so(models):
    data = models.shuffled.assign(target="blue")
    report = data_only.check(models.joblib.classifier, models.onnx.classifier, data)
    expect(report, "PASS", "columns that neither model takes were ignored: 'target'")


def test_a_dropped_column_is_gone_and_a_dropped_feature_is_missed(models):
    data = models.shuffled.assign(target="blue")
    report = data_only.check(models.joblib.classifier, models.onnx.classifier, data, drop=("target",))
    assert "target" not in said(expect(report, "PASS"))
    report = data_only.check(models.joblib.classifier, models.onnx.classifier, data, drop=("age",))
    expect(report, "INCONCLUSIVE", "'age'")


def test_dropping_a_column_that_does_not_exist_is_a_usage_error(models):
    with pytest.raises(likewise.LikewiseError, match="'targt'"):
        data_only.check(models.joblib.classifier, models.onnx.classifier, models.data, drop=("targt",))


def test_too_many_columns_for_a_stacked_input_are_inconclusive_and_listed():
    candidate = identity(FLOAT, name="features", shape=(None, 2))
    data = {"a": NUMBERS, "b": NUMBERS, "target": NUMBERS}
    report = data_only.check(lambda data: {"value": np.stack([data["a"], data["b"]], axis=1)}, candidate, data)
    expect(report, "INCONCLUSIVE", "'features'", "3 columns: 'a', 'b', 'target'", "--drop")


def test_nulls_for_an_integer_input_are_inconclusive():
    column = pd.array([None if number == 50 else number for number in NUMBERS], dtype="Int64")
    report = check(column, INT64, np.where(NUMBERS == 50, 0, NUMBERS))
    expect(report, "INCONCLUSIVE", "column 'x' cannot be fed to the candidate", "int64", "1 of its values are missing")


def test_text_for_a_float_input_is_inconclusive():
    report = check([f"n{number}" for number in NUMBERS], FLOAT, NUMBERS)
    expect(report, "INCONCLUSIVE", "column 'x' cannot be fed to the candidate", "float32", "text, such as 'n0'")


def test_numbers_written_as_text_are_not_read_as_numbers():
    report = check([str(number) for number in NUMBERS], FLOAT, NUMBERS)
    expect(report, "INCONCLUSIVE", "column 'x'", "text, such as '0'")


def test_fractions_for_an_integer_input_are_counted():
    column = NUMBERS + np.where(NUMBERS % 4 == 0, 0.5, 0.0)
    report = check(column, INT64, column)
    expect(report, "FAIL", "15 of 60 values of 'x' change", "from float64 to int64")
    assert the_cast(report).changed == 15


def test_whole_floats_for_an_integer_input_lose_nothing():
    report = expect(check(NUMBERS.astype(np.float64), INT64, NUMBERS), "PASS")
    assert the_cast(report).changed == 0


def test_integers_beyond_2_to_the_24_are_counted_for_each_column():
    data = pd.DataFrame({"low": 2**24 - NUMBERS, "high": 2**24 + NUMBERS})
    nodes = [("Add", ["low", "high"], ["value"], {})]
    shape = (FLOAT, [None, 1])
    candidate = graph(nodes, {"low": shape, "high": shape}, {"value": shape})
    report = data_only.check(lambda frame: {"value": (frame["low"] + frame["high"]).to_numpy()}, candidate, data)
    expect(report, "PASS")
    # float32 holds every even number up to 2**25: the odd ones do not survive.
    assert {cast.column: cast.changed for cast in report.comparison.casts} == {"low": 0, "high": 30}
    assert the_cast(report, "high").values == COUNT
    assert the_cast(report, "high").largest_relative_change == pytest.approx(2**-24, rel=1e-3)


def test_values_too_large_for_float32_are_counted_and_fail():
    report = check(np.where(NUMBERS == 7, 1e39, 1.0), FLOAT, np.where(NUMBERS == 7, 1e39, 1.0))
    expect(report, "FAIL", "1 of 60 values of 'x' change", "value.nonfinite_mismatch is 1")


def test_negative_numbers_for_an_unsigned_input_are_counted():
    from onnx import TensorProto

    report = check(NUMBERS - 5, TensorProto.UINT8, NUMBERS - 5)
    expect(report, "FAIL", "5 of 60 values of 'x' change", "from int64 to uint8")


def test_times_are_fed_as_numbers_and_said_so():
    times = pd.Series(pd.date_range("2020-01-01", periods=COUNT)).astype("datetime64[ns]")
    day = 86_400 * 10**9
    expected = 1_577_836_800 * 10**9 + NUMBERS * day
    expect(check(times, INT64, expected), "PASS", "'x', fed to the candidate: times fed as ns since 1970")
    lossy = check(times, FLOAT, expected)
    assert the_cast(lossy).changed == np.count_nonzero(expected.astype(np.float32).astype(np.int64) != expected)
    assert "times fed as ns since 1970" in said(lossy)


def test_a_missing_time_for_an_integer_input_is_inconclusive():
    times = pd.Series(pd.date_range("2020-01-01", periods=COUNT)).where(NUMBERS != 3)
    expect(check(times, INT64, NUMBERS), "INCONCLUSIVE", "column 'x'", "1 of its times are missing")


def test_categories_are_fed_as_their_text_never_as_their_codes():
    names = np.array(["a", "b", "c"], dtype=object)[NUMBERS % 3]
    expect(check(pd.Categorical(names), STRING, names), "PASS")
    expect(check(pd.Categorical(names), FLOAT, NUMBERS % 3), "INCONCLUSIVE", "column 'x'", "text, such as 'a'")


def test_categories_of_numbers_are_fed_as_the_numbers():
    column = pd.Categorical(NUMBERS % 3 * 10)
    expect(check(column, FLOAT, NUMBERS % 3 * 10), "PASS")


@pytest.mark.parametrize("dtype", [BOOL, FLOAT, INT64], ids=["bool", "float", "int64"])
def test_booleans_are_zero_and_one(dtype):
    report = expect(check(NUMBERS % 2 == 0, dtype, (NUMBERS % 2 == 0).astype(int)), "PASS")
    assert all(cast.changed == 0 for cast in report.comparison.casts)


def test_missing_text_is_fed_as_empty_text_and_counted():
    column = np.where(NUMBERS % 3 == 0, None, "a")
    report = check(column, STRING, np.where(NUMBERS % 3 == 0, "", "a").astype(object))
    expect(report, "PASS", "20 of 60 values of 'x' change", "missing values fed as empty text")
    assert "lossy-input" in codes(report, "warning")


def test_numbers_for_a_text_input_are_written_as_text_and_said_so():
    report = check(NUMBERS, STRING, NUMBERS.astype(str).astype(object))
    expect(report, "PASS", "'x', fed to the candidate: numbers written as text")


def test_a_reference_that_refuses_the_data_is_inconclusive(models):
    data = models.shuffled.assign(age="old")
    report = data_only.check(models.joblib.classifier, models.onnx.classifier, data)
    expect(report, "INCONCLUSIVE", "the reference", "could not convert string to float")


def test_a_missing_value_that_the_reference_refuses_is_inconclusive(models):
    data = models.shuffled.copy()
    data.loc[200, "age"] = np.nan
    report = data_only.check(models.joblib.classifier, models.onnx.classifier, data)
    expect(report, "INCONCLUSIVE", "the reference", "NaN")


def test_missing_values_that_only_the_candidate_swallows_fail():
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline

    frame = pd.DataFrame({"x": np.where(NUMBERS % 10 == 0, np.nan, NUMBERS)})
    model = make_pipeline(SimpleImputer(), LinearRegression()).fit(frame, 2.0 * NUMBERS)
    candidate = graph(
        [("Mul", ["x", "two"], ["value"], {})],
        {"x": (FLOAT, [None, 1])},
        {"value": (FLOAT, [None, 1])},
        two=np.float32(model[-1].coef_[0]),
    )
    report = data_only.check(model, candidate, frame)
    expect(report, "FAIL", "value.nonfinite_mismatch is 6")
    assert measures(report, "value")["nan_both"] == 0


def test_two_columns_of_one_name_are_inconclusive():
    frame = pd.DataFrame(np.zeros((5, 2)), columns=["x", "x"])
    report = data_only.check(lambda frame: frame, lambda frame: frame, frame)
    expect(report, "INCONCLUSIVE", "more than one column called 'x'")
