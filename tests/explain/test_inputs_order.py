"""Columns that the candidate takes in another order, or under each other's names."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from broken_inputs import ROWS, before, explained, exported, loans, matrix, pipeline, renamed
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import data_only
from likewise.tasks.record import record

SCALES = np.array([1, 50_000, 40, 0.3, 10, 1_000])


def measured(width=6, scales=1.0):
    X = np.random.default_rng(0).normal(size=(ROWS, width))
    y = X @ (np.linspace(1, 3, width) * (-1.0) ** np.arange(width)) + 0.5 * X[:, 0] * X[:, 1]
    return pd.DataFrame(X * scales + np.abs(scales), columns=[f"c{i}" for i in range(width)]), y


def reordered(model, order):
    """The export, wanting its columns in this order."""
    graph = exported(model, types=matrix(len(order)))
    return before(graph, "X", ("Gather", ["order"], {"axis": 1}), order=np.argsort(order))


@pytest.mark.parametrize("as_array", [False, True], ids=["table", "array"])
def test_two_exchanged_columns_are_named(as_array):
    frame, y = measured()
    data = frame.to_numpy() if as_array else frame
    model = Ridge().fit(data, y)
    names = "X[1], X[4]" if as_array else "c1, c4"
    explained(model, reordered(model, [0, 4, 2, 3, 1, 5]), data, "feature-order", names)


@pytest.mark.parametrize("last", [LogisticRegression(), GradientBoostingClassifier(n_estimators=15)])
def test_an_order_is_recovered_although_the_columns_are_of_very_different_sizes(last):
    frame, y = measured(scales=SCALES)
    model = make_pipeline(StandardScaler(), last).fit(frame, (y > 0).astype(int))
    order = [3, 2, 0, 4, 5, 1]
    told = explained(model, reordered(model, order), frame, "feature-order", "c0, c1, c2, c3, c4, c5")
    assert told.explained_share == 1


def test_an_order_of_many_columns_is_recovered():
    frame, y = measured(20)
    model = RandomForestRegressor(10, max_depth=6, random_state=0).fit(frame.to_numpy(), y)
    order = np.random.default_rng(3).permutation(20)
    report = data_only.explain(model, reordered(model, order), frame.to_numpy(), explain_budget=30)
    assert report.diagnoses[0].cause == "feature-order"
    assert report.diagnoses[0].explained_share == 1


def test_an_order_that_has_a_name_is_told_by_it():
    frame, y = measured()
    frame.columns = list("fedcba")
    model = make_pipeline(StandardScaler(), Ridge()).fit(frame, y)
    report = data_only.explain(model, reordered(model, [5, 4, 3, 2, 1, 0]), frame, explain_budget=30)
    assert report.diagnoses[0].cause == "feature-order"
    assert any("alphabetical order" in found.evidence for found in report.diagnoses)


def test_inputs_under_each_others_names_are_told_with_what_to_send():
    frame, paid = loans()
    model = pipeline().fit(frame, paid)
    candidate = renamed(exported(model, frame), {"income": "age", "age": "income"})
    pair = {"probabilities": "probabilities"}  # what is said about this file keeps another export from being tried
    told = explained(model, candidate, frame, "feature-order", "income, age", pair=pair)
    assert "or send each input the column that it means: age as income, income as age" in told.remedy


def test_text_inputs_under_each_others_names_are_told():
    frame, paid = loans()
    frame["town"] = np.random.default_rng(5).choice(np.array(["a", "b", "Rome"], dtype=object), ROWS)
    columns = ColumnTransformer(
        [("n", StandardScaler(), ["income", "age"]), ("c", OneHotEncoder(handle_unknown="ignore"), ["city", "town"])]
    )
    model = Pipeline([("prep", columns), ("clf", LogisticRegression())]).fit(frame, paid)
    candidate = renamed(exported(model, frame), {"city": "town", "town": "city"})
    explained(model, candidate, frame, "feature-order", "city, town")


def test_an_order_is_found_for_answers_on_record(tmp_path):
    frame, y = measured()
    model = Ridge().fit(frame, y)
    record(model, frame, tmp_path / "golden.parquet")
    explained(tmp_path / "golden.parquet", reordered(model, [0, 2, 1, 3, 4, 5]), frame, "feature-order", "c1, c2")


def test_no_order_is_blamed_for_another_model():
    frame, y = measured()
    model = Ridge().fit(frame, y)
    other = Ridge().fit(frame, np.roll(y, 7))
    report = data_only.explain(model, exported(other, types=matrix(6)), frame, explain_budget=30)
    assert report.outcome == "FAIL"
    assert "feature-order" not in {found.cause for found in report.diagnoses}
