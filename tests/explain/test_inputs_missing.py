"""Missing values that the models encode, impute or route differently, and values that only one takes for missing."""

from __future__ import annotations

import numpy as np
import onnx
import pandas as pd
import pytest
from broken_inputs import ROWS, cast_to_float, explained, exported, loans, pipeline, somewhere, with_attribute
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx.common.data_types import FloatTensorType as SklearnFloat
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder

import data_only
from likewise.tasks.record import record

FOREST = RandomForestClassifier(15, max_depth=5, random_state=0)


def causes(report):
    return {found.cause for found in report.diagnoses}


@pytest.fixture(scope="module")
def forest():
    """A forest that learnt where missing incomes go; the converter drops that (skl2onnx 1.20)."""
    frame, paid = loans()
    frame = somewhere(frame, "income", np.nan)
    model = pipeline(numbers="passthrough", last=FOREST).fit(frame, paid)
    return model, exported(model, frame), frame


def test_missing_values_routed_another_way_are_told_by_the_column(forest):
    told = explained(*forest, "missing-value-handling", "income")
    assert told.explained_share == 1


def test_one_failing_row_is_enough(forest):
    model, candidate, frame = forest
    gone = frame["income"].isna()
    rows = pd.concat([frame[~gone], frame[gone].head(1)])
    explained(model, candidate, rows, "missing-value-handling", "income")


def test_only_the_columns_that_matter_are_named():
    frame, paid = loans()
    frame = somewhere(somewhere(frame, "income", np.nan), "city", np.nan, seed=2)
    encoder = make_pipeline(OneHotEncoder(handle_unknown="ignore"))
    model = pipeline(encoder, numbers="passthrough", last=FOREST).fit(somewhere(*loans()[:1], "income", np.nan), paid)
    explained(model, exported(model, frame), frame, "missing-value-handling", "income")


@pytest.mark.parametrize(
    "encoder", [OneHotEncoder(handle_unknown="ignore"), OrdinalEncoder(encoded_missing_value=-5), TargetEncoder()]
)
def test_missing_text_that_becomes_empty_text_is_told(encoder):
    """ONNX has no missing text, and the converters of the encoders look for 'nan' (skl2onnx 1.20)."""
    frame, paid = loans()
    frame = somewhere(frame, "city", np.nan)
    model = pipeline(encoder).fit(frame, paid)
    explained(model, exported(model, frame), frame, "missing-value-handling", "city")


def test_what_missing_values_are_taken_for_is_told_also_of_answers_on_record(tmp_path):
    frame, paid = loans()
    frame = somewhere(frame, "income", np.nan)
    model = pipeline(numbers=make_pipeline(SimpleImputer(strategy="median"), StandardScaler())).fit(frame, paid)

    def forget(attribute):
        attribute.floats[0] = 0.0

    candidate = with_attribute(exported(model, frame), "Imputer", "imputed_value_floats", forget)
    record(model, frame, tmp_path / "golden.parquet")
    told = explained(tmp_path / "golden.parquet", candidate, frame, "missing-value-handling", "income")
    assert "the median of the column" in told.evidence


def test_a_column_missing_in_all_failing_rows_is_suspected_where_the_reference_cannot_be_asked(forest, tmp_path):
    model, candidate, frame = forest
    record(model, frame, tmp_path / "golden.parquet")
    told = explained(tmp_path / "golden.parquet", candidate, frame, "missing-value-handling", "income")
    assert "only on record" in told.evidence


def test_zeros_that_only_the_reference_takes_for_missing_are_told():
    """The converter of LightGBM drops zero_as_missing (onnxmltools 1.16)."""
    import lightgbm
    import onnxmltools

    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 3))
    y = 2 * X[:, 0] + X[:, 1]
    X[rng.random(ROWS) < 0.3, 1] = 0
    X[rng.random(ROWS) < 0.3, 2] = np.nan
    model = lightgbm.LGBMRegressor(n_estimators=15, verbose=-1, zero_as_missing=True).fit(X, y)
    candidate = onnxmltools.convert_lightgbm(model, initial_types=[("X", FloatTensorType([None, 3]))], target_opset=15)
    told = explained(model, candidate, X, "missing-value-handling", "X[1]")
    assert "the reference takes 0 for missing" in told.evidence


def test_zeros_of_a_sparse_step_before_a_booster_are_told():
    """https://github.com/onnx/sklearn-onnx/issues/1046: XGBoost takes what a sparse matrix leaves out for missing."""
    import xgboost
    from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes

    update_registered_converter(
        xgboost.XGBClassifier,
        "XGBoostXGBClassifier",
        calculate_linear_classifier_output_shapes,
        convert_xgboost,
        options={"nocl": [True, False], "zipmap": [True, False, "columns"]},
    )
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"city": rng.choice([1.0, 2.0, 3.0, 4.0], ROWS), "size": rng.choice([5.0, 6.0, 7.0], ROWS)})
    y = ((frame["city"] == 2) | (frame["size"] == 7)).astype(int)
    steps = [("encode", OneHotEncoder()), ("boost", xgboost.XGBClassifier(n_estimators=8, max_depth=3))]
    model = Pipeline(steps).fit(frame, y)
    types = [("X", SklearnFloat([None, 2]))]
    candidate = exported(model, types=types, opsets={"": 15, "ai.onnx.ml": 3})
    explained(model, candidate, frame, "missing-value-handling", "boost")


def test_a_model_that_refuses_missing_values_is_told_by_the_column():
    frame, paid = loans()
    model = pipeline().fit(frame, paid)
    told = explained(model, exported(model, frame), somewhere(frame, "age", np.nan), "missing-value-handling", "age")
    assert "refuses rows in which age is missing" in told.evidence


def test_an_integer_input_that_has_no_word_for_missing_is_told():
    frame, paid = loans()
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    model = pipeline(numbers=numbers).fit(frame, paid)
    candidate = cast_to_float(exported(model, frame), "age", onnx.TensorProto.INT64)
    told = explained(model, candidate, somewhere(frame, "age", np.nan), "missing-value-handling", "age")
    assert "takes it as int64" in told.evidence


def test_missing_values_that_both_models_know_pass():
    frame, paid = loans()
    frame = somewhere(frame, "income", np.nan)
    encoder = OneHotEncoder(sparse_output=False)
    model = pipeline(encoder, numbers="passthrough", last=HistGradientBoostingClassifier(max_iter=8)).fit(frame, paid)
    report = data_only.explain(model, exported(model, frame), frame)
    assert report.passed
    assert report.diagnoses == ()


def test_missing_values_are_not_blamed_for_another_fault():
    frame, paid = loans()
    frame = somewhere(frame, "income", np.nan)
    model = pipeline(numbers=make_pipeline(SimpleImputer(), StandardScaler())).fit(frame, paid)

    def corrupt(attribute):
        attribute.floats[1] += 0.5

    candidate = with_attribute(exported(model, frame), "LinearClassifier", "coefficients", corrupt)
    report = data_only.explain(model, candidate, frame, explain_budget=30)
    assert report.outcome == "FAIL"
    assert "missing-value-handling" not in causes(report)
