"""The reference gets the data in its own types; what has to be cast to be taken at all is counted and told."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import data_only
from planting import FLOAT, INT64, STRING, codes, expect, graph, identity, said

ROWS = 200


class Since(nn.Module):
    """Seconds since an epoch: the difference is taken before the weights' type is reached."""

    def __init__(self):
        super().__init__()
        self.register_buffer("start", torch.tensor(1_700_000_000.0, dtype=torch.float64))
        self.layer = nn.Linear(1, 1)
        nn.init.constant_(self.layer.weight, 0.5)
        nn.init.constant_(self.layer.bias, 0.0)

    def forward(self, x):
        return self.layer((x - self.start).to(self.layer.weight.dtype))


class SinceTooEarly(Since):
    def forward(self, x):
        return self.layer(x.to(self.layer.weight.dtype) - self.start.to(self.layer.weight.dtype))


def times(dtype):
    rng = np.random.default_rng(0)
    return (1_700_000_000 + rng.uniform(0, 1000, (ROWS, 1))).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_a_candidate_that_casts_too_early_fails(dtype):
    data = {"x": times(dtype)}
    expect(data_only.check(Since(), lambda x: 0.5 * (x.astype(np.float64) - 1_700_000_000), data), "PASS")
    expect(data_only.check(Since(), SinceTooEarly(), data), "FAIL")
    expect(data_only.check(SinceTooEarly(), Since(), data), "FAIL")
    report = expect(data_only.check(Since(), Since(), data), "PASS")
    assert not report.comparison.casts


def test_rows_that_a_model_refuses_end_in_its_own_words_and_a_way_out():
    from sklearn.linear_model import LinearRegression

    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0]})
    model = LinearRegression().fit(frame, [1.0, 2.0, 4.0])
    report = data_only.check(model, lambda x: x, frame.assign(x=["1", "2", "three"]))
    expect(report, "INCONCLUSIVE", "(LinearRegression) failed on rows 0 to 2: ValueError: could not convert")
    expect(report, "INCONCLUSIVE", "Row 2 is the first that it refuses by itself")
    report = data_only.check(model, lambda x: x, frame.assign(x=["one", "two", "three"]))
    expect(report, "INCONCLUSIVE", "mend or leave out those it refuses")


@pytest.mark.parametrize("holder", ["frame", "parquet", "array"])
def test_the_columns_of_a_table_are_given_as_they_are_too(tmp_path, holder):
    frame = pd.DataFrame({"t": times(np.float64)[:, 0]})
    data = {"frame": frame, "array": frame.to_numpy()}.get(holder)
    if data is None:
        data = tmp_path / "rows.parquet"
        frame.to_parquet(data)
    expect(data_only.check(Since(), SinceTooEarly(), data), "FAIL")
    expect(data_only.check(Since(), Since(), data), "PASS")


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.uint8, bool])
def test_what_a_module_refuses_is_cast_to_the_type_of_its_weights_and_told(dtype):
    module = Plain().eval()
    data = np.random.default_rng(0).normal(0, 30, (ROWS, 4)).astype(dtype)
    layer = module.layer
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    report = data_only.check(module, lambda x: x.astype(np.float32) @ weight.T + bias, data)
    expect(report, "PASS", f"cast from {np.dtype(dtype)} to float32 for the reference")
    assert codes(report) == {"cast-input", "note"}, said(report)
    assert [found.severity for found in report.verdict.findings if found.code == "cast-input"] == ["note"]
    (cast,) = report.comparison.casts
    assert (cast.side, cast.column, cast.values) == ("reference", "X", ROWS * 4)
    assert cast.changed == (0 if dtype is not np.float64 else ROWS * 4)


def test_many_columns_are_told_in_one_line():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(ROWS, 4)), columns=list("abcd"))
    module = Plain().eval()
    report = expect(data_only.check(module, module, frame), "PASS")
    told = [found.message for found in report.verdict.findings if found.code == "cast-input"]
    assert len(told) == 2
    assert "'a', 'b', 'c', 'd'" in told[0]
    assert f"{4 * ROWS} of {4 * ROWS} values changed" in told[0]


class Two(nn.Module):
    """One input that the weights meet at once, one whose type the module changes itself."""

    def __init__(self):
        super().__init__()
        self.since, self.layer = Since(), nn.Linear(3, 1)

    def forward(self, t, x):
        return self.since(t) + self.layer(x)


class TwoTooEarly(Two):
    def forward(self, t, x):
        return self.since(t.float().double()) + self.layer(x)


def test_only_the_input_that_is_refused_is_cast():
    module = Two()
    other = TwoTooEarly()
    other.load_state_dict(module.state_dict())
    data = {"t": times(np.float64), "x": np.random.default_rng(1).normal(size=(ROWS, 3))}
    report = expect(data_only.check(module, module, data), "PASS")
    assert {(cast.side, cast.column) for cast in report.comparison.casts} == {("reference", "x"), ("candidate", "x")}
    expect(data_only.check(module, other, data), "FAIL")


def test_an_explicit_type_is_obeyed():
    data = {"x": times(np.float64)}
    options = {"reference_options": {"dtype": "float32"}, "candidate_options": {"dtype": "float32"}}
    report = data_only.check(Since(), SinceTooEarly(), data, **options)
    expect(report, "PASS", "cast from float64 to float32 for the reference")


def test_scripted_modules_are_asked_alike(tmp_path):
    path = tmp_path / "since.pt"
    with pytest.warns(DeprecationWarning, match="jit"):
        torch.jit.save(torch.jit.script(Since().eval()), path)
    data = {"x": times(np.float64)}
    expect(data_only.check(path, SinceTooEarly(), data), "FAIL")
    expect(data_only.check(path, Since(), data), "PASS")


def test_a_program_captured_in_another_type_is_cast_for_and_told():
    module = Plain().eval()
    program = torch.export.export(module, (torch.zeros(4, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    data = np.random.default_rng(0).normal(size=(ROWS, 4))
    expect(data_only.check(program, module, data), "PASS", "cast from float64 to float32 for the reference")


def test_an_export_takes_the_types_that_the_module_takes(tmp_path):
    data = {"x": times(np.float64)}
    exported = data_only.export(Since().eval(), data, tmp_path / "since.onnx")
    assert exported.report.passed, said(exported.report)
    assert [entry["dtype"] for entry in exported.features] == ["float64"]
    plain = data_only.export(
        Plain().eval(), {"x": np.random.default_rng(0).normal(size=(ROWS, 4))}, tmp_path / "p.onnx"
    )
    assert plain.report.passed, said(plain.report)
    assert [entry["dtype"] for entry in plain.features] == ["float32"]


def test_recorded_answers_are_those_of_the_data_as_it_is(tmp_path):
    import likewise

    np.savez(tmp_path / "rows.npz", x=times(np.float64))
    likewise.record(Since(), tmp_path / "rows.npz", tmp_path / "golden.parquet")
    expect(data_only.check(tmp_path / "golden.parquet", SinceTooEarly(), tmp_path / "rows.npz"), "FAIL")
    expect(data_only.check(tmp_path / "golden.parquet", Since(), tmp_path / "rows.npz"), "PASS")


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.int32, bool])
def test_a_function_gets_the_type_of_the_data(dtype):
    seen = []

    def look(x):
        seen.append(x.dtype)
        return x

    data_only.check(look, look, {"x": np.ones((50, 3), dtype)})
    assert set(seen) == {np.dtype(dtype)}


def test_what_a_declared_type_costs_the_candidate_is_told_once_and_quietly():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(ROWS, 3)), columns=list("abc"))
    report = data_only.check(lambda rows: rows.to_numpy(), identity(FLOAT, name="x", shape=(None, 3)), frame)
    expect(report, "PASS", "'a', 'b', 'c' were cast from float64 to float32 for the candidate")
    assert codes(report, "warning") == set()


def test_whole_numbers_that_change_are_a_warning():
    data = {"x": 2**24 + np.arange(ROWS)}
    report = data_only.check(lambda x: x.astype(float), identity(FLOAT), data)
    expect(report, "PASS", "values of 'x' change on their way to the candidate, from int64 to float32")
    assert "lossy-input" in codes(report, "warning")


def test_nothing_is_told_where_nothing_changes():
    data = {"x": np.arange(ROWS)}
    report = expect(data_only.check(lambda x: x, identity(FLOAT), data), "PASS")
    assert not codes(report) & {"cast-input", "lossy-input"}


def test_another_rank_is_told():
    frame = pd.DataFrame({"a": np.arange(60.0), "b": np.arange(60.0)})
    shape = (INT64, [None, 1])
    candidate = graph([("Add", ["a", "b"], ["value"], {})], {"a": shape, "b": shape}, {"value": shape})
    report = data_only.check(lambda rows: (rows["a"] + rows["b"]).to_numpy().astype(int), candidate, frame)
    expect(report, "PASS", "candidate: 'a', 'b' are fed as (n, 1), as the inputs declare")


def test_numbers_held_as_objects_are_told():
    column = np.array([1.5, None, 3.0] * 20, dtype=object)
    report = data_only.check(lambda x: x.astype(float), identity(FLOAT), {"x": column})
    expect(report, "PASS", "'x', fed to the candidate: objects read as numbers, missing ones as NaN")


# What a table holds that an array cannot.


def prices():
    return pd.DataFrame({"x": pd.Series([Decimal(f"0.{n:03d}") for n in range(60)], dtype=object), "n": range(60)})


@pytest.mark.parametrize("holder", ["frame", "parquet"])
def test_decimals_are_told(tmp_path, holder):
    data = prices()
    if holder == "parquet":
        data.to_parquet(tmp_path / "rows.parquet")
        data = tmp_path / "rows.parquet"
    report = data_only.check(lambda rows: rows["x"].astype(float).to_numpy(), identity(FLOAT), data)
    expect(report, "PASS", "candidate: 'x' is read as arrays: decimals as float64")
    report = data_only.check(lambda rows: rows["x"].map(lambda x: float(x * 3)).to_numpy(), identity(FLOAT), data)
    expect(report, "FAIL")


def test_whole_numbers_with_gaps_and_times_with_a_zone_are_told():
    frame = pd.DataFrame({"x": pd.array([None, *range(59)], dtype="Int64")})
    report = data_only.check(lambda rows: rows["x"].astype(float).to_numpy(), identity(FLOAT), frame)
    expect(report, "PASS", "candidate: 'x' is read as arrays: whole numbers with gaps as float64, gaps as NaN")
    when = pd.date_range("2020-01-01", periods=60, tz="Europe/Berlin", unit="s")
    report = data_only.check(
        lambda rows: rows["x"].astype("int64").to_numpy(), identity(INT64), pd.DataFrame({"x": when})
    )
    expect(report, "PASS", "times with a zone as UTC", "times fed as s since 1970")


def test_categories_are_told():
    frame = pd.DataFrame({"x": pd.Categorical(["b", "a", "c"] * 20, categories=["c", "b", "a"])})
    values = data_only.check(lambda rows: rows["x"].astype(object).to_numpy(), identity(STRING), frame)
    expect(values, "PASS", "candidate: 'x' is read as arrays: categories as the values they stand for")
    assert data_only.check(lambda rows: rows["x"].cat.codes.to_numpy(), identity(STRING), frame).outcome != "PASS"


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_text_that_a_booster_codes_by_its_own_list_is_told(library):
    rng = np.random.default_rng(0)
    words = np.array(["red", "green", "blue"])[rng.integers(0, 3, 300)]
    frame = pd.DataFrame({"colour": pd.Categorical(words), "size": rng.normal(size=300)})
    target = np.where(words == "red", 1.0, np.where(words == "blue", -2.0, 0.5)) + frame["size"]
    if library == "xgboost":
        from xgboost import XGBRegressor

        model = XGBRegressor(n_estimators=20, enable_categorical=True).fit(frame, target)
    else:
        from lightgbm import LGBMRegressor

        model = LGBMRegressor(n_estimators=20, min_child_samples=5, verbose=-1).fit(frame, target)

    def right(rows):
        known = frame["colour"].cat.categories
        return model.predict(rows.assign(colour=pd.Categorical(rows["colour"], categories=known)))

    def codes_of_the_batch(rows):
        names = pd.unique(rows["colour"])[::-1]
        codes = pd.Categorical(rows["colour"], categories=names).codes
        return model.predict(rows.assign(colour=pd.Categorical.from_codes(codes, frame["colour"].cat.categories)))

    text = frame.assign(colour=words)
    told = "reference: values of 'colour' are coded by the model's own list of categories"
    expect(data_only.check(model, right, text), "PASS", told)
    expect(data_only.check(model, codes_of_the_batch, text), "FAIL", told)
    assert told not in said(expect(data_only.check(model, right, frame), "PASS"))


def test_another_order_of_the_columns_is_told():
    from sklearn.linear_model import LinearRegression

    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(ROWS, 3)), columns=list("abc"))
    model = LinearRegression().fit(frame, frame.to_numpy() @ [1.0, 2.0, 3.0])
    told = "reference: columns are taken by name, in the model's order and not in the data's"
    by_position = lambda rows: rows.to_numpy() @ model.coef_ + model.intercept_  # noqa: E731
    expect(data_only.check(model, by_position, frame[["c", "a", "b"]]), "FAIL", told)
    by_name = lambda rows: rows[list("abc")].to_numpy() @ model.coef_ + model.intercept_  # noqa: E731
    expect(data_only.check(model, by_name, frame[["c", "a", "b"]]), "PASS", told)
    assert told not in said(expect(data_only.check(model, by_name, frame), "PASS"))


@pytest.mark.parametrize("shape", [(60,), (30, 2)])
def test_missing_values_among_objects_stay_what_they_are(shape):
    cells = np.array(["a", np.nan, None] * 20, dtype=object).reshape(shape)

    def gaps(x, kinds):
        return np.array([sum(isinstance(cell, kinds) for cell in np.ravel(row)) for row in x], dtype=float)

    expect(data_only.check(lambda x: gaps(x, float), lambda x: gaps(x, float), {"x": cells}), "PASS")
    expect(data_only.check(lambda x: gaps(x, float), lambda x: 0 * gaps(x, float), {"x": cells}), "FAIL")


@pytest.mark.parametrize(("rows", "over"), [(60, 4), (64, 0)])
def test_copies_that_fill_up_the_last_call_of_a_fixed_batch_are_told(rows, over):
    shape = (FLOAT, [8, 3])
    candidate = graph([("Identity", ["x"], ["value"], {})], {"x": shape}, {"value": shape})
    data = {"x": np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)}
    report = expect(data_only.check(lambda x: x, candidate, data, fixed_batch=True), "PASS")
    assert ("the last call had 4 and was filled up" in said(report)) == bool(over)
