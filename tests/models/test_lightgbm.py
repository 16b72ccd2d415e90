"""LightGBM models answer through likewise as they answer by themselves, and so do their exports, or they fail."""

from __future__ import annotations

import ctypes
import json
import pickle
import re
import sys
from copy import copy

import joblib
import lightgbm
import numpy as np
import pandas as pd
import polars as pl
import pytest
from boosted import (
    CITIES,
    COLOURS,
    COUNTS,
    FAULTS,
    FILLED,
    GROUPS,
    ROWS,
    TARGET,
    THREE,
    TWO,
    X,
    agrees,
    answers,
    batch_of,
    changed,
    checked,
    exported,
    one_thread,  # noqa: F401
    onnx_answers,
    opened,
    said,
)
from lightgbm import LGBMClassifier, LGBMRanker, LGBMRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import data_only
import likewise
from likewise.errors import ModelError
from likewise.registry import describe_model
from planting import here

SMALL = {"n_estimators": 6, "num_leaves": 7, "min_child_samples": 5, "n_jobs": 1, "verbose": -1}
TABLE = pd.DataFrame(X, columns=["age", "f", "f_2x", "Ertrag"]).assign(
    flag=FILLED[:, 1] > 0, rooms=np.arange(ROWS) % 50
)
LATE, EARLY = slice(150, None), slice(0, 150)


def train(objective, target, **parameters):
    extra = {"group": np.bincount(GROUPS)} if "rank" in objective else {}
    settings = {"objective": objective, "verbose": -1, "num_threads": 1, "min_data_in_leaf": 5, **parameters}
    return lightgbm.train(settings, lightgbm.Dataset(X, target, **extra), 6)


def stopped_early():
    """A booster that keeps the trees after its best one."""
    settings = {"objective": "regression", "verbose": -1, "num_threads": 1, "learning_rate": 0.5, "num_leaves": 7}
    seen, held = (lightgbm.Dataset(X[part], TARGET[part]) for part in (EARLY, LATE))
    stop = lightgbm.early_stopping(3, verbose=False)
    return lightgbm.train(settings, seen, 80, valid_sets=[held], callbacks=[stop], keep_training_booster=True)


def with_cities(kind="category"):
    return pd.DataFrame({"age": X[:, 0], "city": pd.Series(CITIES).astype(kind)})


MODELS = {
    "two classes": (lambda: LGBMClassifier(**SMALL).fit(X, TWO), X),
    "other integers": (lambda: LGBMClassifier(**SMALL).fit(X, TWO * 5 - 2), X),
    "three classes": (lambda: LGBMClassifier(**SMALL).fit(X, THREE), X),
    "text classes": (lambda: LGBMClassifier(**SMALL).fit(X, COLOURS), X),
    "dart": (lambda: LGBMClassifier(boosting_type="dart", drop_rate=0.5, **SMALL).fit(X, TWO), X),
    "regression": (lambda: LGBMRegressor(**SMALL).fit(X, TARGET), X),
    "named columns": (lambda: LGBMRegressor(**SMALL).fit(TABLE, TARGET + TABLE["rooms"]), TABLE),
    "counts": (lambda: LGBMRegressor(objective="poisson", **SMALL).fit(X, COUNTS), X),
    "quantile": (lambda: LGBMRegressor(objective="quantile", alpha=0.9, **SMALL).fit(X, TARGET), X),
    "ranking": (lambda: LGBMRanker(**SMALL).fit(X, THREE, group=np.bincount(GROUPS)), X),
    "booster, two classes": (lambda: train("binary", TWO), X),
    "booster, three classes": (lambda: train("multiclass", THREE, num_class=3), X),
    "booster, l1": (lambda: train("l1", TARGET), X),
    "booster, ranking": (lambda: train("lambdarank", THREE), X),
    "booster, stopped early": (stopped_early, X),
}


@pytest.fixture(scope="module")
def models():
    return {name: make() for name, (make, _) in MODELS.items()}


def by_hand(model, data):
    """What a user calls: output → answer."""
    if isinstance(model, LGBMClassifier):
        raw = model.predict(data, raw_score=True)
        return {"label": model.predict(data), "probabilities": model.predict_proba(data), "scores": raw}
    value = model.predict(data)
    if isinstance(model, lightgbm.Booster):
        objective = model.params["objective"]
        if objective in ("binary", "multiclass"):
            label = (value > 0.5) * 1 if value.ndim == 1 else value.argmax(axis=1)
            return {"label": label, "probabilities": value, "scores": model.predict(data, raw_score=True)}
        return {"scores" if "rank" in objective else "value": value}
    return {"scores" if isinstance(model, LGBMRanker) else "value": value}


# What a model answers


@pytest.mark.parametrize("name", MODELS)
def test_the_answers_are_the_models_own(name, models):
    model, data = models[name], MODELS[name][1]
    expected, found = by_hand(model, data), answers(model, data)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[output], answer) for output, answer in expected.items())
    with opened(model) as runner:
        assert runner.native is model
        assert json.loads(json.dumps(runner.details)) == runner.details
        for spec in runner.signature.outputs:
            assert spec.view
            assert found[spec.name].shape[1:] == spec.shape[1:]
            assert runner.run(batch_of(data[:0]))[spec.name].shape == (0, *spec.shape[1:])
        for start in (0, 7):
            one = runner.run(batch_of(data[start : start + 1]))
            assert all(np.array_equal(one[key], found[key][start : start + 1]) for key in one)
        again = runner.run(batch_of(data))
        assert all(np.array_equal(again[key], found[key]) for key in again)


def test_other_kinds_of_model():
    linear = LGBMRegressor(linear_tree=True, **SMALL).fit(FILLED, TARGET)
    assert np.array_equal(answers(linear, FILLED)["value"], linear.predict(FILLED))
    zeros = LGBMClassifier(zero_as_missing=True, **SMALL).fit(X, TWO)
    assert np.array_equal(answers(zeros, X)["probabilities"], zeros.predict_proba(X))
    forest = LGBMRegressor(boosting_type="rf", bagging_freq=1, bagging_fraction=0.6, **SMALL).fit(X, TARGET)
    assert np.array_equal(answers(forest, X)["value"], forest.predict(X))
    booleans = LGBMClassifier(**SMALL).fit(X, TWO == 1)
    assert np.array_equal(answers(booleans, X)["label"], booleans.predict(X))
    own = LGBMRegressor(objective=lambda y, p: (p - y, np.ones_like(y)), **SMALL).fit(X, TARGET)
    assert np.array_equal(answers(own, X)["value"], own.predict(X))


@pytest.mark.parametrize("name", ["two classes", "text classes", "named columns", "ranking"])
@pytest.mark.parametrize("suffix", ["joblib", "pkl"])
def test_a_pickle_answers_like_the_live_model(name, suffix, models, tmp_path):
    model, data = models[name], MODELS[name][1]
    path = tmp_path / f"model.{suffix}"
    joblib.dump(model, path) if suffix == "joblib" else path.write_bytes(pickle.dumps(model))
    report = checked(model, path, data, preset="exact")
    assert report.passed, said(report)


@pytest.mark.parametrize("name", ["two classes", "three classes", "named columns", "ranking", "booster, stopped early"])
@pytest.mark.parametrize("suffix", ["txt", "lgb", "model", "joblib"])
def test_a_file_answers_like_the_wrapper_and_its_booster(name, suffix, models, tmp_path):
    model, data = models[name], MODELS[name][1]
    booster = getattr(model, "booster_", model)
    path = tmp_path / f"model.{suffix}"
    joblib.dump(booster, path) if suffix == "joblib" else booster.save_model(path)
    for reference, candidate in ((booster, path), (path, booster), (model, path)):
        report = checked(reference, candidate, data)
        assert report.passed, said(report)
        assert report.max_abs_diff < 1e-12


def test_early_stopping_is_obeyed_and_said(models):
    with opened(models["booster, stopped early"]) as runner:
        best = runner.native.best_iteration
        assert runner.details["rounds_used"] == runner.details["best_iteration"] == best
        assert runner.details["rounds"] > best


# Tables and categories


@pytest.mark.parametrize("booster", [False, True])
def test_categories_arrive_however_they_are_written(booster, tmp_path):
    table = with_cities()
    model = LGBMClassifier(**SMALL).fit(table, (CITIES == "Oslo") | (FILLED[:, 0] > 1))
    expected = model.predict(table, raw_score=True)
    asked = model.booster_ if booster else model
    shuffled = table.assign(city=table["city"].cat.reorder_categories(["Rome", "Oslo", "Lima"]))
    for data in (table, shuffled, with_cities(str), with_cities(object)):
        assert np.array_equal(answers(asked, data)["scores"], expected)
    table.to_parquet(tmp_path / "t.parquet")
    model.booster_.save_model(tmp_path / "m.txt")
    for data in (tmp_path / "t.parquet", pl.from_pandas(with_cities(str)), with_cities(str)[:1]):
        report = checked(asked, tmp_path / "m.txt", data)
        assert report.passed, said(report)
    unseen = table.assign(city=pd.Categorical(["Bern"] * ROWS))
    assert np.array_equal(
        answers(asked, with_cities(str).assign(city="Bern"))["scores"], model.predict(unseen, raw_score=True)
    )
    with pytest.raises(ModelError, match="categories are text such as 'Lima'; the data has a number"):
        answers(asked, with_cities(str).assign(city=3))


def test_a_column_that_is_not_there_is_named(models):
    report = checked(models["named columns"], models["named columns"], TABLE.drop(columns="rooms"))
    assert report.outcome == "INCONCLUSIVE"
    assert "'rooms'" in said(report)
    report = checked(models["named columns"], models["named columns"], TABLE.assign(rooms="many"))
    assert report.outcome == "INCONCLUSIVE"
    assert "rooms" in said(report)


# What is claimed


def test_each_finds_its_own_adapter(models, tmp_path):
    assert describe_model(models["two classes"]).framework == "lightgbm"
    assert describe_model(models["booster, l1"]).framework == "lightgbm"
    pipeline = make_pipeline(StandardScaler(), LGBMClassifier(**SMALL)).fit(X, TWO)
    assert describe_model(pipeline).framework == "sklearn"
    (tmp_path / "notes.txt").write_text("tree of life\n")
    with pytest.raises(ModelError, match="no framework recognises"):
        describe_model(tmp_path / "notes.txt")


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9, 0.98])
def test_a_file_that_was_cut_is_refused_and_takes_nobody_with_it(share, models, tmp_path):
    path = tmp_path / "half.txt"
    models["two classes"].booster_.save_model(path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(ModelError, match=r"half\.txt .*ends early"), opened(path):
        pass


@pytest.mark.parametrize("line", ["[learning_ra", "[learning_rate:", "learning_rate", "[learning_rate"])
def test_a_parameter_without_a_value_is_refused_before_lightgbm_looks_for_it(line, models, tmp_path):
    """It would read memory that is not its own: the same file passed, ran out of memory or crashed."""
    path = tmp_path / "odd.txt"
    models["two classes"].booster_.save_model(path)
    whole = path.read_text()
    assert "\n[learning_rate: 0." in whole
    path.write_text(re.sub(r"\n\[learning_rate: .*\]\n", f"\n{line}\n", whole))
    with pytest.raises(ModelError, match=r"odd\.txt .*parameters is '\[?learning_ra"), opened(path):
        pass


@pytest.mark.parametrize("content", [None, b"\x89PNG\r\n\x1a\n" + bytes(300), b""])
def test_what_is_no_model_is_refused_by_name(content, tmp_path):
    path = tmp_path / "m.lgb"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.lgb"), opened(path):
        pass


def test_a_model_that_was_not_fitted_is_refused():
    with pytest.raises(ModelError, match="not fitted"), opened(LGBMClassifier()):
        pass


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("handle", [None, ctypes.c_void_p(), 4242])
def test_a_booster_without_trees_is_damaged_and_not_asked(handle, wrapped, models):
    model = copy(models["two classes"])
    damaged = lightgbm.Booster.__new__(lightgbm.Booster)
    damaged.__dict__ = {**model.booster_.__dict__, "_handle": handle}
    model._Booster = damaged
    try:
        with pytest.raises(ModelError, match="damaged: its booster holds no trees"):
            opened(model if wrapped else damaged).__enter__()
    finally:
        # Its own end would give the address back.
        damaged._handle = None


def test_without_lightgbm_one_line_says_what_to_install(models, tmp_path, monkeypatch):
    models["booster, l1"].save_model(tmp_path / "m.txt")
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    report = checked(tmp_path / "m.txt", tmp_path / "m.txt", X)
    assert report.outcome == "INCONCLUSIVE"
    assert "pip install 'likewise[boost]'" in said(report)


# Exports


@pytest.mark.parametrize("name", MODELS)
def test_an_export_agrees_and_the_figures_are_those_of_a_plain_script(name, models):
    model, data = models[name], MODELS[name][1]
    proto = exported(model, data)
    report = checked(model, proto, data)
    assert report.passed, said(report)
    found = onnx_answers(proto, data)
    for output, answer in by_hand(model, data).items():
        if output == "label":
            assert np.array_equal(found["label"], answer)
        elif output == "probabilities" and answer.ndim == 1:
            agrees(report, output, np.c_[1 - answer, answer], found["probabilities"])
        elif output != "scores" or "label" not in found:
            agrees(report, output, answer, found.get(output, found.get("variable")))


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("margin instead of probability", "two classes"),
        ("missing goes the other way", "regression"),
        ("a threshold is edited", "three classes"),
        ("features in another order", "two classes"),
        ("class columns swapped", "text classes"),
    ],
)
def test_a_planted_fault_is_caught(fault, name, models):
    model = models[name]
    proto = changed(exported(model, X), **FAULTS[fault])
    report = checked(model, proto, X)
    assert report.outcome == "FAIL", said(report)
    output = "value" if name == "regression" else "probabilities"
    found = onnx_answers(proto, X)
    agrees(report, output, by_hand(model, X)[output], found.get(output, found.get("variable")))


def test_fewer_trees_are_caught(models):
    booster = models["booster, three classes"]
    short = lightgbm.Booster(model_str=booster.model_to_string(num_iteration=4))
    assert checked(booster, exported(short, X), X).outcome == "FAIL"
    early = models["booster, stopped early"]
    everything = lightgbm.Booster(model_str=early.model_to_string(num_iteration=-1))
    assert checked(early, exported(everything, X), X).outcome == "FAIL"


REFUSED = {
    "linear trees": (lambda: LGBMRegressor(linear_tree=True, **SMALL).fit(FILLED, TARGET), "linear trees"),
    "forest": (
        lambda: LGBMRegressor(boosting_type="rf", bagging_freq=1, bagging_fraction=0.6, **SMALL).fit(X, TARGET),
        "random forests",
    ),
    "one against all": (lambda: LGBMClassifier(objective="multiclassova", **SMALL).fit(X, THREE), "multiclassova"),
    "steep sigmoid": (lambda: LGBMClassifier(sigmoid=2.0, **SMALL).fit(X, TWO), "sigmoid's factor"),
    "square root": (lambda: LGBMRegressor(reg_sqrt=True, **SMALL).fit(X, COUNTS), "leaves out the square"),
    "zeros": (lambda: LGBMClassifier(zero_as_missing=True, **SMALL).fit(X, TWO), "takes zero for a missing value"),
    "fair": (lambda: LGBMRegressor(objective="fair", **SMALL).fit(X, TARGET), "'fair'"),
    "own objective": (
        lambda: LGBMRegressor(objective=lambda y, p: (p - y, np.ones_like(y)), **SMALL).fit(X, TARGET),
        "that is a function",
    ),
    "booleans": (lambda: LGBMClassifier(**SMALL).fit(X, TWO == 1), "boolean classes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_converter_gets_wrong_is_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        exported(make(), X)


def test_categories_are_refused_by_name_and_codes_are_not():
    table = with_cities()
    with pytest.raises(ModelError, match="feature 'city' is categorical"):
        exported(LGBMRegressor(**SMALL).fit(table, TARGET), table)
    codes = np.arange(ROWS) % 6
    coded = table.assign(city=pd.Categorical(codes))
    model = LGBMRegressor(**SMALL).fit(coded, np.array([3, -2, 1, 0, 5, -4])[codes])
    report = checked(model, exported(model, coded), coded)
    assert report.passed, said(report)


def test_dictionaries_of_probabilities_on_request(models):
    proto = exported(models["text classes"], X, zipmap=True)
    assert "ZipMap" in {node.op_type for node in proto.graph.node}
    assert checked(models["text classes"], proto, X).passed


def test_the_command_line_exports_and_checks(models, tmp_path):
    TABLE.to_parquet(tmp_path / "t.parquet")
    models["named columns"].booster_.save_model(tmp_path / "m.txt")
    here("export", "m.txt", "--data", "t.parquet", "-o", "m.onnx", folder=tmp_path).expect(0, "PASS")


@pytest.mark.parametrize("form", ["wrapper", "booster", "file"])
def test_columns_whose_blanks_lightgbm_has_replaced_are_fed(tmp_path, form):
    table = TABLE.rename(columns={"f_2x": "f 2x", "rooms": "rooms in use"})
    wrapper = LGBMClassifier(**SMALL).fit(table, TWO)
    assert "f_2x" in wrapper.booster_.feature_name()
    wrapper.booster_.save_model(tmp_path / "model.txt")
    target = {"wrapper": wrapper, "booster": wrapper.booster_, "file": tmp_path / "model.txt"}[form]
    done = data_only.export(target, table, tmp_path / "model.onnx", abs_tol=1e-4)
    assert done.report.passed, said(done.report)
    notes = [note for note in done.report.comparison.notes if "is fed from column" in note]
    assert notes == [
        "reference: input 'f_2x' is fed from column 'f 2x'",
        "reference: input 'rooms_in_use' is fed from column 'rooms in use'",
    ]
    shuffled = table[sorted(table.columns)]
    expected = wrapper.predict_proba(table)[:, 1]
    likewise.record(target, shuffled, tmp_path / "golden.parquet")
    assert data_only.check(tmp_path / "golden.parquet", target, shuffled).passed
    np.testing.assert_array_equal(recorded(tmp_path / "golden.parquet"), expected)


@pytest.mark.parametrize("names", [{"f_2x": "f-2x"}, {"f_2x": "F 2x"}])
def test_no_other_spelling_is_guessed(names):
    model = LGBMClassifier(**SMALL).fit(TABLE, TWO)
    report = data_only.check(model, model, TABLE.rename(columns=names))
    assert report.outcome == "INCONCLUSIVE"
    assert "which the data does not have" in said(report)


def recorded(path):
    """The probability of the second class."""
    answered = pd.read_parquet(path)["output.probabilities"]
    return np.array([np.ravel(row)[-1] for row in answered])
