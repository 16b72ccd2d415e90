"""A column in another type than it needs: digits lost, fractions cut off, integers wrapped, numbers spelt as text."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from broken_inputs import ROWS, cast_to_float, explained, exported, loans, matrix, pipeline
from onnx import TensorProto
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import data_only


def measured(offset, *, whole=False):
    """Four columns of which one is large, and a target."""
    X = np.random.default_rng(0).normal(size=(ROWS, 4))
    y = 2 * X[:, 0] + X[:, 1] - X[:, 2]
    X[:, 0] = 50 * X[:, 0] + offset
    frame = pd.DataFrame(X, columns=["when", "load", "heat", "flow"])
    return (frame.round({"when": 0}).astype({"when": "int64"}) if whole else frame), y


@pytest.mark.parametrize("whole", [False, True], ids=["fractions", "integers beyond 2^24"])
@pytest.mark.parametrize("last", [Ridge(), GradientBoostingRegressor(n_estimators=15)], ids=["ridge", "boosting"])
def test_digits_lost_at_a_float_input_are_told_by_the_column(last, whole):
    frame, y = measured(1e9, whole=whole)
    model = make_pipeline(StandardScaler(), last).fit(frame, y)
    told = explained(model, exported(model, types=matrix(4)), frame, "float32-input-cast", "when")
    assert "rounded to float32" in told.evidence


def test_a_lone_array_has_its_column_named_by_position():
    frame, y = measured(1e9)
    model = make_pipeline(StandardScaler(), Ridge()).fit(frame.to_numpy(), y)
    explained(model, exported(model, types=matrix(4)), frame.to_numpy(), "float32-input-cast", "X[0]")


def test_the_same_with_a_double_input_passes():
    frame, y = measured(1e9)
    model = make_pipeline(StandardScaler(), Ridge()).fit(frame, y)
    report = data_only.explain(model, exported(model, types=matrix(4, double=True)), frame)
    assert report.passed
    assert report.diagnoses == ()


def test_an_input_in_half_precision_is_told_by_the_column():
    X = np.random.default_rng(0).normal(size=(ROWS, 3))
    frame = pd.DataFrame({"a": X[:, 0].astype(np.float16), "b": 3000 + 5 * X[:, 1], "c": X[:, 2].astype(np.float16)})
    frame = frame.astype("float64")
    model = Ridge(alpha=1e-6).fit(frame, X @ [1.0, 2.0, 3.0])
    candidate = cast_to_float(exported(model, types=matrix(3)), "X", TensorProto.FLOAT16)
    explained(model, candidate, frame, "float32-input-cast", "b")


def test_an_integer_input_that_cuts_fractions_off_is_told():
    frame, paid = loans()
    frame["age"] += 0.5
    model = pipeline().fit(frame, paid)
    types = [("income", FloatTensorType([None, 1])), ("age", Int64TensorType([None, 1]))]
    candidate = exported(model, types=[*types, ("city", StringTensorType([None, 1]))])
    told = explained(model, candidate, frame, "input-type", "age")
    assert "as int64" in told.evidence


def test_a_graph_that_casts_a_number_to_an_integer_before_it_looks_it_up_is_told():
    """The converter of OneHotEncoder makes integers of the values of a float column (skl2onnx 1.20)."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"code": rng.choice([1.0, 2.0, 3.0], ROWS), "x": rng.normal(size=ROWS)})
    steps = [("c", OneHotEncoder(handle_unknown="ignore"), ["code"]), ("n", StandardScaler(), ["x"])]
    model = Pipeline([("prep", ColumnTransformer(steps)), ("clf", LogisticRegression())])
    model.fit(frame, (frame["x"] + (frame["code"] == 2) > 0).astype(int))
    candidate = exported(model, frame)
    frame.loc[rng.random(ROWS) < 0.2, "code"] = 2.5
    told = explained(model, candidate, frame, "input-type", "code")
    assert "2.5 becomes 2" in told.evidence


def test_an_integer_that_wraps_in_a_narrower_input_is_told():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"count": rng.integers(0, 2**33, ROWS), "x": rng.integers(0, 9, ROWS)})
    model = make_pipeline(StandardScaler(), Ridge()).fit(frame, frame["count"] / 1e9 + frame["x"])
    candidate = cast_to_float(exported(model, types=matrix(2)), "X", TensorProto.INT32)
    explained(model, candidate, frame, "integer-overflow", "count")


def test_numbers_spelt_as_text_are_told():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"code": rng.choice([1.0, 2.0, 3.0], ROWS)})
    y = (frame["code"] + rng.normal(size=ROWS) > 2).astype(int)
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()).fit(frame, y)
    text = frame.astype(int).astype(str)
    other = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()).fit(text, y)

    def reference(rows):
        return {"label": model.predict(rows), "probabilities": model.predict_proba(rows)}

    told = explained(reference, exported(other, text), frame, "input-type", "code")
    assert "whole numbers without a point" in told.evidence
