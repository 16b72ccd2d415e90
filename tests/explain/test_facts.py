"""Which rows fail and what the difference looks like, told without an experiment and checked by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import data_only


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(0)
    count = 2_000
    data = pd.DataFrame(
        {
            "income": random.normal(50, 10, count),
            "balance": random.normal(5, 1, count),
            "city": random.choice(["Oslo", "Rome", "Lima", "Bonn"], count),
            "age": random.integers(18, 80, count),
        }
    )
    data.loc[random.random(count) < 0.03, "income"] = np.nan
    data.loc[random.random(count) < 0.02, "balance"] = np.nan
    return data


@pytest.fixture(scope="module")
def model(table):
    """A fitted pipeline: numbers imputed, cities one-hot."""
    steps = make_column_transformer(
        (SimpleImputer(), ["income", "balance", "age"]), (OneHotEncoder(handle_unknown="ignore"), ["city"])
    )
    target = table["income"].fillna(50) + 3 * table["balance"].fillna(5) + table["age"] / 10
    return make_pipeline(steps, LinearRegression()).fit(table, target)


def explained(reference, candidate, data):
    report = data_only.explain(reference, candidate, data, causes=["tokenizer"])  # facts need no experiments
    assert report.outcome == "FAIL"
    assert report.explanation is not None
    return report.explanation


def test_missing_in_one_of_two_columns_is_the_slice(table, model):
    found = explained(model, lambda rows: model.predict(rows.fillna({"income": 0, "balance": 0})), table)
    missing = int((table["income"].isna() | table["balance"].isna()).sum())
    first = found.slices[0]
    assert (first.failing, first.agreeing, first.precision, first.recall) == (missing, 0, 1.0, 1.0)
    assert first.predicate == f"{missing} of {missing} failing rows: income or balance is missing, and no other row"
    assert found.failing_rows == missing
    assert found.complete
    told = {entry.column: entry.why for entry in found.unusual}
    share = 100 * table["income"].isna().mean()
    assert told["income"] == f"missing, as in {share:.3g}% of the rows"


def test_one_row_is_not_told_from_the_others_by_just_any_value(table, model):
    def wrong(rows):
        return model.predict(rows) + np.where(rows["income"].to_numpy() == table["income"].max(), 1.0, 0.0)

    found = explained(model, wrong, table)
    assert found.failing_rows == 1
    assert not found.slices


def test_one_changed_label_is_one(table):
    def right(rows):
        return {"label": np.where(rows["age"] < 30, "low", "high").astype(object)}

    def wrong(rows):
        said = right(rows)["label"]
        said[rows["income"].to_numpy() == table["income"].max()] = "odd"
        return {"label": said}

    assert any(
        text.startswith("label: the one changed label went from ") for text in explained(right, wrong, table).shape
    )


def test_two_columns_together_make_the_slice(table, model):
    def wrong(rows):
        return model.predict(rows) + 3.0 * (rows["city"].isin(["Oslo", "Rome"]) & (rows["age"] > 60))

    found = explained(model, wrong, table)
    first = found.slices[0]
    assert (first.precision, first.recall) == (1.0, 1.0)
    assert "age is above 60" in first.predicate
    assert "city is one of 'Oslo', 'Rome'" in first.predicate
    assert len(found.slices) == 1, "other predicates on the same columns are no news"


def test_rows_that_carry_the_predicate_and_agree_are_counted(table, model):
    def wrong(rows):
        return model.predict(rows) + 3.0 * (rows["income"].isna() & (rows.index % 4 != 0))

    first = explained(model, wrong, table).slices[0]
    missing = table["income"].isna()
    failing = int((missing & (table.index % 4 != 0)).sum())
    assert (first.failing, first.agreeing) == (failing, int(missing.sum()) - failing)
    assert f"; {first.agreeing} rows with it agree" in first.predicate


def test_a_category_that_the_encoder_never_saw_is_named(table, model):
    strange = table.copy()
    strange.loc[::50, "city"] = "Kyiv"

    def wrong(rows):
        return model.predict(rows) + 9.0 * (rows["city"] == "Kyiv")

    found = explained(model, wrong, strange)
    assert "city" in found.slices[0].predicate
    assert (found.slices[0].precision, found.slices[0].recall) == (1.0, 1.0)
    assert "not seen when the encoder was fitted" in {entry.why for entry in found.unusual if entry.column == "city"}


def test_no_slice_where_every_row_fails_or_chance_decides(table, model):
    random = np.random.default_rng(1)
    chance = pd.Series(random.random(len(table)) < 0.3)
    assert explained(model, lambda rows: model.predict(rows) + 1, table).slices == ()
    assert explained(model, lambda rows: model.predict(rows) + 1.0 * chance[rows.index], table).slices == ()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda answer: answer + 2, "a constant offset of 2"),
        (lambda answer: answer * 1.5, "a constant factor of 1.5"),
        (lambda answer: np.full(len(answer), 7.0), "the candidate gives 7 for every row"),
        (lambda answer: answer**3, "a monotone function of the reference's answer"),
        (lambda answer: np.where(answer > 75, np.nan, answer), "the candidate alone gives NaN or infinity"),
    ],
    ids=["offset", "factor", "constant", "monotone", "NaN"],
)
def test_the_shape_of_the_difference(table, model, change, told):
    # Whole tables in one call: some of these depend on the rows they come with.
    found = explained(model, lambda rows: change(model.predict(rows)), table)
    assert any(told in sentence for sentence in found.shape), found.shape


def test_an_integer_that_no_float32_holds_is_unusual():
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    numbers = np.arange(200, dtype=np.int64)
    data = pd.DataFrame({"key": np.where(numbers % 20 == 7, 2**24 + numbers, numbers), "x": numbers / 7})
    model = LinearRegression().fit(data, data["key"])
    candidate = to_onnx(model, initial_types=[("X", FloatTensorType([None, 2]))])
    report = data_only.explain(model, candidate, data, abs_tol=0.5, rel_tol=0.0)
    assert report.explanation is not None
    odd = [number for number in numbers[7::20] if (2**24 + number) % 2]
    told = {entry.row: entry.why for entry in report.explanation.unusual if entry.column == "key"}
    assert set(told) <= set(odd)
    assert told
    assert all(why.startswith("float32 cannot hold it: the cast makes it 16777") for why in told.values())


@pytest.mark.parametrize(("most", "related"), [(40, True), (39, False), (9, False)])
def test_a_wide_output_is_looked_at_some_rows_at_a_time(monkeypatch, most, related):
    from likewise.explain import facts

    monkeypatch.setattr(facts, "MOST_NUMBERS", most)
    rows = np.arange(1.0, 41.0).reshape(10, 4)

    def shifted(x):
        return np.where(np.arange(4) == 2, x + 1, x)

    found = explained(lambda x: x, shifted, {"x": rows})
    assert "output: a systematic shift, 100% of the rows differ" in found.shape
    assert "output: only column 2 of 4 differs" in found.shape
    doubled = explained(lambda x: x, lambda x: 2 * x, {"x": rows})
    assert ("output: a constant factor of 2" in doubled.shape) is related
    broken = explained(lambda x: x, lambda x: np.where(x > 30, np.nan, x), {"x": rows})
    assert "output: the candidate alone gives NaN or infinity, in 3 rows" in broken.shape
