"""XGBoost models answer through likewise as they answer by themselves, and so do their exports, or they fail."""

from __future__ import annotations

import json
import pickle
import sys

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import xgboost
from boosted import (
    CITIES,
    COUNTS,
    FAULTS,
    FILLED,
    GROUPS,
    NAMES,
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
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from xgboost import XGBClassifier, XGBRanker, XGBRegressor, XGBRFClassifier

from likewise.contracts.models import Kind
from likewise.errors import ModelError, UsageError
from likewise.registry import describe_model

SMALL = {"n_estimators": 6, "max_depth": 3, "n_jobs": 1}
TABLE = pd.DataFrame(X, columns=NAMES).assign(flag=FILLED[:, 1] > 0, rooms=np.arange(ROWS) % 50)
LATE, EARLY = slice(150, None), slice(0, 150)


def train(objective, target, rounds=6, **parameters):
    extra = {"qid": GROUPS} if objective.startswith("rank") else {}
    settings = {"objective": objective, "nthread": 1, "max_depth": 3, **parameters}
    return xgboost.train(settings, xgboost.DMatrix(X, target, **extra), rounds)


def stopped_early():
    model = XGBClassifier(early_stopping_rounds=2, n_estimators=50, learning_rate=0.9, n_jobs=1)
    return model.fit(X[EARLY], THREE[EARLY], eval_set=[(X[LATE], THREE[LATE])], verbose=0)


def booster_stopped_early():
    seen, held = (xgboost.DMatrix(X[part], TARGET[part]) for part in (EARLY, LATE))
    settings = {"nthread": 1, "learning_rate": 0.9}
    return xgboost.train(settings, seen, 60, evals=[(held, "e")], early_stopping_rounds=2, verbose_eval=False)


def with_cities(kind="category"):
    return pd.DataFrame({"age": X[:, 0], "city": pd.Series(CITIES).astype(kind)})


MODELS = {
    "two classes": (lambda: XGBClassifier(**SMALL).fit(X, TWO), X),
    "three classes": (lambda: XGBClassifier(**SMALL).fit(X, THREE), X),
    "softmax": (lambda: XGBClassifier(objective="multi:softmax", **SMALL).fit(X, THREE), X),
    "hinge": (lambda: XGBClassifier(objective="binary:hinge", **SMALL).fit(X, TWO), X),
    "base score": (lambda: XGBClassifier(base_score=0.2, **SMALL).fit(X, TWO), X),
    "stopped early": (stopped_early, X),
    "forest": (lambda: XGBRFClassifier(**SMALL).fit(X, TWO), X),
    "regression": (lambda: XGBRegressor(**SMALL).fit(X, TARGET), X),
    "named columns": (lambda: XGBRegressor(**SMALL).fit(TABLE, TARGET + TABLE["rooms"]), TABLE),
    "counts": (lambda: XGBRegressor(objective="count:poisson", **SMALL).fit(X, COUNTS), X),
    "quantile": (lambda: XGBRegressor(objective="reg:quantileerror", quantile_alpha=0.9, **SMALL).fit(X, TARGET), X),
    "ranking": (lambda: XGBRanker(**SMALL).fit(X, THREE, qid=GROUPS), X),
    "booster, two classes": (lambda: train("binary:logistic", TWO), X),
    "booster, raw": (lambda: train("binary:logitraw", TWO), X),
    "booster, three classes": (lambda: train("multi:softprob", THREE, num_class=3), X),
    "booster, softmax": (lambda: train("multi:softmax", THREE, num_class=3), X),
    "booster, ranking": (lambda: train("rank:ndcg", THREE), X),
    "booster, stopped early": (booster_stopped_early, X),
}


@pytest.fixture(scope="module")
def models():
    return {name: make() for name, (make, _) in MODELS.items()}


def by_hand(model, data):
    """What a user calls: output → answer."""
    if isinstance(model, xgboost.Booster):
        matrix = xgboost.DMatrix(data)
        margin, value = model.predict(matrix, output_margin=True), model.predict(matrix)
        objective = json.loads(model.save_config())["learner"]["objective"]["name"]
        if objective == "binary:logistic":
            return {"label": (value > 0.5) * 1, "probabilities": value, "scores": margin}
        if objective == "multi:softprob":
            return {"label": value.argmax(axis=1), "probabilities": value, "scores": margin}
        if objective == "multi:softmax":
            odds = np.exp(margin - margin.max(axis=1, keepdims=True))
            return {"label": value, "probabilities": odds / odds.sum(axis=1, keepdims=True), "scores": margin}
        return {"scores": value} if objective.startswith(("rank", "binary:logitraw")) else {"value": value}
    if isinstance(model, XGBClassifier):
        margin = model.predict(data, output_margin=True)
        return {"label": model.predict(data), "probabilities": model.predict_proba(data), "scores": margin}
    return {"scores" if isinstance(model, XGBRanker) else "value": model.predict(data)}


# What a model answers


@pytest.mark.parametrize("name", MODELS)
def test_the_answers_are_the_models_own(name, models):
    model, data = models[name], MODELS[name][1]
    expected, found = by_hand(model, data), answers(model, data)
    assert found.keys() == expected.keys()
    for output, answer in expected.items():
        np.testing.assert_allclose(found[output], answer, rtol=1e-6 if "softmax" in name else 0)
    with opened(model) as runner:
        assert runner.native is model
        assert json.loads(json.dumps(runner.details)) == runner.details
        assert all(spec.view for spec in runner.signature.outputs)
        for spec in runner.signature.outputs:
            assert found[spec.name].shape[1:] == spec.shape[1:]
            assert runner.run(batch_of(data[:0]))[spec.name].shape == (0, *spec.shape[1:])
        for start in (0, 7):
            one = runner.run(batch_of(data[start : start + 1]))
            assert all(np.array_equal(one[key], found[key][start : start + 1]) for key in one)
        again = runner.run(batch_of(data))
        assert all(np.array_equal(again[key], found[key]) for key in again)


def test_other_kinds_of_model():
    several = answers(XGBRegressor(**SMALL).fit(X, np.c_[TARGET, -TARGET]), X)["value"]
    assert several.shape == (ROWS, 2)
    labels = XGBClassifier(**SMALL).fit(X, np.c_[TWO, 1 - TWO, THREE == 1].astype(int))
    found = answers(labels, X)
    assert np.array_equal(found["label"], labels.predict(X))
    assert np.array_equal(found["probabilities"], labels.predict_proba(X))
    for booster in ("dart", "gblinear"):
        model = XGBRegressor(booster=booster, n_estimators=4, n_jobs=1).fit(FILLED, TARGET)
        assert np.array_equal(answers(model, FILLED)["value"], model.predict(FILLED))
    cox = XGBRegressor(objective="survival:cox", **SMALL).fit(X, COUNTS)
    assert np.array_equal(answers(cox, X)["value"], cox.predict(X))
    raw = XGBClassifier(objective="binary:logitraw", **SMALL).fit(X, TWO)
    assert answers(raw, X).keys() == {"label", "scores"}


@pytest.mark.parametrize("name", ["two classes", "three classes", "stopped early", "named columns", "ranking"])
@pytest.mark.parametrize("suffix", ["json", "ubj", "xgb", "joblib", "pkl"])
def test_a_file_answers_like_the_live_model(name, suffix, models, tmp_path):
    model, data = models[name], MODELS[name][1]
    path = tmp_path / f"model.{suffix}"
    if suffix == "joblib":
        joblib.dump(model, path)
    elif suffix == "pkl":
        path.write_bytes(pickle.dumps(model))
    elif suffix == "xgb":  # a name people use, which save_model itself does not take
        model.save_model(tmp_path / "model.ubj")
        (tmp_path / "model.ubj").rename(path)
    else:
        model.save_model(path)
    report = checked(model, path, data, preset="exact")
    assert report.passed, said(report)
    with opened(path) as runner:
        assert type(runner.native) is type(model)
    assert report.origin.candidate.kind == ("sklearn" if suffix in ("joblib", "pkl") else "xgboost")


def test_a_wrapper_and_its_booster_agree(models, tmp_path):
    model = models["two classes"]
    model.get_booster().save_model(tmp_path / "b.json")
    joblib.dump(model.get_booster(), tmp_path / "b.joblib")
    for other in (model.get_booster(), tmp_path / "b.json", tmp_path / "b.joblib"):
        report = checked(model, other, X, abs_tol=0, limits={"max_ulp_diff": 0})
        assert report.passed, said(report)
        assert {output.name for output in report.comparison.outputs} >= {"label", "scores"}


@pytest.mark.parametrize("form", ["wrapper", "booster", "file"])
def test_threads_are_as_many_as_asked_for(tmp_path, form):
    wrapper = XGBClassifier(**{**SMALL, "n_jobs": 2}).fit(X, TWO)
    wrapper.save_model(tmp_path / "model.ubj")
    booster = wrapper.get_booster()
    target = {"wrapper": wrapper, "booster": booster, "file": tmp_path / "model.ubj"}[form]
    with opened(target, threads="1") as runner:
        used = runner.native if form == "booster" else runner.native.get_booster()
        assert json.loads(used.save_config())["learner"]["generic_param"]["nthread"] == "1"
        assert runner.details["threads"] == 1
    found, plain = answers(target, X, threads=1), answers(target, X)
    assert all(np.array_equal(found[name], plain[name]) for name in plain)
    with opened(target) as runner:  # a user's own model stays as it is
        assert runner.details["threads"] == (0 if form == "file" else 2)
    assert wrapper.n_jobs == 2
    with pytest.raises(UsageError, match="threads is 'two'"), opened(target, threads="two"):
        pass


def test_a_booster_says_that_it_ignores_early_stopping(models):
    booster = models["booster, stopped early"]
    best, rounds = booster.best_iteration, booster.num_boosted_rounds()
    assert best + 1 < rounds
    with opened(booster) as runner:
        assert runner.details["rounds_used"] == rounds
        assert "best_iteration=true" in runner.details["warnings"][0]
    expected = booster.predict(xgboost.DMatrix(X), iteration_range=(0, best + 1))
    assert np.array_equal(answers(booster, X, best_iteration="true")["value"], expected)
    with pytest.raises(ModelError, match="did not stop early"), opened(train("reg:gamma", COUNTS), best_iteration=True):
        pass
    with opened(models["stopped early"]) as runner:
        assert runner.details["rounds_used"] == models["stopped early"].best_iteration + 1
        assert "warnings" not in runner.details


def test_missing_is_what_the_wrapper_says(tmp_path):
    data = np.nan_to_num(X, nan=-1)
    model = XGBClassifier(missing=-1, **SMALL).fit(data, TWO)
    assert np.array_equal(answers(model, data)["probabilities"], model.predict_proba(data))
    model.save_model(tmp_path / "m.ubj")  # which does not keep it
    assert not np.array_equal(answers(tmp_path / "m.ubj", data)["scores"], answers(model, data)["scores"])
    assert np.array_equal(answers(tmp_path / "m.ubj", data, missing="-1")["scores"], answers(model, data)["scores"])
    with pytest.raises(UsageError, match="did you mean 'missing'"), opened(tmp_path / "m.ubj", mising=-1):
        pass


# Tables and categories


@pytest.mark.parametrize("booster", [False, True])
def test_categories_arrive_however_they_are_written(booster, tmp_path):
    table = with_cities()
    model = XGBClassifier(enable_categorical=True, **SMALL).fit(table, (CITIES == "Oslo") | (FILLED[:, 0] > 1))
    expected = model.predict(table, output_margin=True)
    table.to_parquet(tmp_path / "t.parquet")
    shuffled = table.assign(city=table["city"].cat.reorder_categories(["Rome", "Oslo", "Lima"]))
    asked = model.get_booster() if booster else model
    for data in (table, shuffled, with_cities(str), with_cities(object), table[::-1][["city", "age"]][::-1]):
        with opened(asked) as runner:
            columns = batch_of(data).inputs.select(["age", "city"])
            found = runner.run(type(batch_of(data))(batch_of(data).rows, columns))["scores"]
        assert np.array_equal(found, expected)
    for data in (tmp_path / "t.parquet", pl.from_pandas(with_cities(str)), with_cities(str)[:1]):
        report = checked(asked, asked, data, preset="exact")
        assert report.passed, said(report)
    with pytest.raises(ModelError, match="'city' holds 'Bern', a category the model was not trained on"):
        answers(asked, with_cities(str).assign(city="Bern"))
    with pytest.raises(ModelError, match="categories are text such as 'Lima'; the data has a number"):
        answers(asked, with_cities(str).assign(city=3))


def test_categories_that_are_numbers():
    codes = np.arange(ROWS) % 5 + 3
    table = pd.DataFrame({"age": X[:, 0], "kind": pd.Categorical(codes)})
    model = XGBRegressor(enable_categorical=True, **SMALL).fit(table, codes**2)
    for column in (codes, codes.astype(float)):
        assert np.array_equal(answers(model, table.assign(kind=column))["value"], model.predict(table))
    array = np.c_[X[:, 0], codes].astype(np.float32)
    coded = XGBRegressor(enable_categorical=True, feature_types=["q", "c"], **SMALL).fit(array, codes**2)
    assert np.array_equal(answers(coded.get_booster(), array)["value"], coded.predict(array))


def test_a_column_that_is_not_there_is_named(models):
    report = checked(models["named columns"], models["named columns"], TABLE.drop(columns="rooms"))
    assert report.outcome == "INCONCLUSIVE"
    assert "'rooms'" in said(report)
    report = checked(models["named columns"], models["named columns"], TABLE.assign(rooms="many"))
    assert report.outcome == "INCONCLUSIVE"
    assert "rooms" in said(report)


# What is claimed


def test_each_finds_its_own_adapter(models, tmp_path):
    assert describe_model(models["two classes"]).framework == "xgboost"
    assert describe_model(models["booster, ranking"]).framework == "xgboost"
    pipeline = make_pipeline(StandardScaler(), XGBClassifier(**SMALL)).fit(X, TWO)
    assert describe_model(pipeline).framework == "sklearn"
    assert np.array_equal(answers(pipeline, X)["probabilities"], pipeline.predict_proba(X))


@pytest.mark.parametrize("content", ['{"outcome": "PASS"}', '{"tree_info": []}', "[]", "", '{"learner_of": 1}'])
def test_other_json_is_not_taken_for_a_model(content, tmp_path):
    path = tmp_path / "parity_report.json"
    path.write_text(content)
    with pytest.raises(ModelError, match="no framework recognises"):
        describe_model(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.ubj", b"\x89PNG\r\n\x1a\n" + bytes(300)),
        ("m.ubj", b""),
        ("m.ubj", None),
        ("m.json", None),
        ("m.ubj", "half"),
        ("m.json", "half"),
    ],
)
def test_what_is_no_model_is_refused_by_name(name, content, models, tmp_path):
    path = tmp_path / name
    if content == "half":
        models["three classes"].save_model(path)
        content = path.read_bytes()[: path.stat().st_size // 2]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=name.replace(".", r"\.")), opened(path):
        pass


def test_a_model_that_was_not_fitted_is_refused():
    with pytest.raises(ModelError, match="not fitted"), opened(XGBClassifier()):
        pass


def test_without_xgboost_one_line_says_what_to_install(models, tmp_path, monkeypatch):
    models["regression"].save_model(tmp_path / "m.ubj")
    monkeypatch.setitem(sys.modules, "xgboost", None)
    report = checked(tmp_path / "m.ubj", tmp_path / "m.ubj", X)
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
            agrees(report, output, np.c_[1 - answer.astype(float), answer], found["probabilities"])
        elif output != "scores" or "label" not in found:
            agrees(report, output, answer, found.get(output, found.get("variable")))


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("margin instead of probability", "two classes"),
        ("missing goes the other way", "regression"),
        ("a threshold is edited", "three classes"),
        ("features in another order", "two classes"),
        ("base score dropped", "regression"),
        ("class columns swapped", "three classes"),
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
    assert checked(booster, exported(booster[:4], X), X).outcome == "FAIL"
    early = models["stopped early"]
    assert checked(early, exported(early.get_booster(), X), X).outcome == "FAIL"


REFUSED = {
    "dart": (lambda: XGBClassifier(booster="dart", **SMALL).fit(X, TWO), "'dart'"),
    "linear": (lambda: XGBRegressor(booster="gblinear", n_estimators=3, n_jobs=1).fit(FILLED, TARGET), "'gblinear'"),
    "parallel": (lambda: XGBRFClassifier(**SMALL).fit(X, THREE), "6 parallel trees"),
    "two softmax classes": (lambda: train("multi:softprob", TWO, num_class=2), "two classes"),
    "targets": (lambda: XGBRegressor(**SMALL).fit(X, np.c_[TARGET, -TARGET]), "2 targets"),
    "logistic": (lambda: XGBRegressor(objective="reg:logistic", **SMALL).fit(X, TWO), "leaves out the sigmoid"),
    "cox": (lambda: XGBRegressor(objective="survival:cox", **SMALL).fit(X, COUNTS), "leaves out the exponent"),
    "missing": (lambda: XGBClassifier(missing=-1, **SMALL).fit(X, TWO), "takes -1 for a missing value"),
    "margins": (lambda: XGBClassifier(objective="binary:logitraw", **SMALL).fit(X, TWO), "gives margins"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_converter_gets_wrong_is_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        exported(make(), X)


def test_categories_are_refused_by_name_and_codes_are_not():
    table = with_cities()
    with pytest.raises(ModelError, match="feature 'city' is categorical"):
        exported(XGBClassifier(enable_categorical=True, **SMALL).fit(table, TWO), table)
    coded = table.assign(city=pd.Categorical(np.arange(ROWS) % 6))
    model = XGBRegressor(enable_categorical=True, **SMALL).fit(
        coded, np.array([3, -2, 1, 0, 5, -4])[np.arange(ROWS) % 6]
    )
    report = checked(model, exported(model, coded), coded)
    assert report.passed, said(report)


def test_kinds_keep_margins_and_probabilities_apart(models):
    with opened(models["two classes"]) as runner:
        kinds = {spec.name: spec.kind for spec in runner.signature.outputs}
    assert kinds == {"label": Kind.LABEL, "probabilities": Kind.PROBABILITY, "scores": Kind.SCORE}
