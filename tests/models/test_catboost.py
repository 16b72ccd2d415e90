"""CatBoost models answer through likewise as they answer by themselves, and so do their exports, or they fail."""

from __future__ import annotations

import json
import pickle
import sys

import joblib
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
from catboost import CatBoost, CatBoostClassifier, CatBoostRanker, CatBoostRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from likewise.errors import ModelError
from likewise.registry import describe_model

SMALL = {"iterations": 6, "depth": 3, "thread_count": 1, "verbose": 0, "allow_writing_files": False}
TABLE = pd.DataFrame(X, columns=NAMES).assign(rooms=np.arange(ROWS) % 50)
LATE, EARLY = slice(150, None), slice(0, 150)


def stopped_early():
    model = CatBoostRegressor(**{**SMALL, "iterations": 80, "learning_rate": 0.9})
    return model.fit(X[EARLY], TARGET[EARLY], eval_set=(X[LATE], TARGET[LATE]), early_stopping_rounds=3)


MODELS = {
    "two classes": (lambda: CatBoostClassifier(**SMALL).fit(X, TWO), X),
    "yes and no": (lambda: CatBoostClassifier(**SMALL).fit(X, np.array(["no", "yes"])[TWO]), X),
    "three classes": (lambda: CatBoostClassifier(**SMALL).fit(X, THREE), X),
    "text classes": (lambda: CatBoostClassifier(**SMALL).fit(X, COLOURS), X),
    "ordered classes": (lambda: CatBoostClassifier(class_names=[2, 0, 1], **SMALL).fit(X, THREE), X),
    "regression": (lambda: CatBoostRegressor(**SMALL).fit(X, TARGET), X),
    "absolute": (lambda: CatBoostRegressor(loss_function="MAE", **SMALL).fit(X, TARGET), X),
    "named columns": (lambda: CatBoostRegressor(**SMALL).fit(TABLE, TARGET + TABLE["rooms"]), TABLE),
    "stopped early": (stopped_early, X),
    "ranking": (lambda: CatBoostRanker(loss_function="YetiRank", **SMALL).fit(X, THREE, group_id=GROUPS), X),
    "base class": (lambda: CatBoost({**SMALL, "loss_function": "Logloss"}).fit(X, TWO), X),
    "base class, counts": (lambda: CatBoost({**SMALL, "loss_function": "Poisson"}).fit(X, COUNTS), X),
}


@pytest.fixture(scope="module")
def models():
    return {name: make() for name, (make, _) in MODELS.items()}


def by_hand(model, data):
    """What a user calls: output → answer."""
    raw = CatBoost.predict(model, data, prediction_type="RawFormulaVal")
    if len(model.classes_):
        label = CatBoost.predict(model, data, prediction_type="Class")
        label = label[:, 0] if label.ndim == 2 and label.shape[1] == 1 else label
        probabilities = CatBoost.predict(model, data, prediction_type="Probability")
        if isinstance(model, CatBoostClassifier):
            assert np.array_equal(probabilities, model.predict_proba(data))
        return {"label": label, "probabilities": probabilities, "scores": raw}
    return {"scores" if isinstance(model, CatBoostRanker) else "value": model.predict(data)}


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


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        ("MultiRMSE", np.c_[TARGET, -TARGET]),
        ("MultiQuantile:alpha=0.1,0.5,0.9", TARGET),
        ("RMSEWithUncertainty", TARGET),
        ("Poisson", COUNTS),
        ("Cox", COUNTS),
    ],
)
def test_other_regressions(loss, target, tmp_path):
    model = CatBoostRegressor(loss_function=loss, **SMALL).fit(X, target)
    assert np.array_equal(answers(model, X)["value"], model.predict(X))
    model.save_model(str(tmp_path / "m.cbm"))
    assert np.array_equal(answers(tmp_path / "m.cbm", X)["value"], model.predict(X))


def test_other_classifiers():
    several = CatBoostClassifier(loss_function="MultiLogloss", **SMALL).fit(
        X, np.c_[TWO, 1 - TWO, THREE == 1].astype(int)
    )
    assert np.array_equal(answers(several, X)["label"], several.predict(X))
    booleans = CatBoostClassifier(**SMALL).fit(X, TWO == 1)
    assert np.array_equal(answers(booleans, X)["label"], booleans.predict(X))
    moved = CatBoostClassifier(**SMALL).fit(X, TWO)
    moved.set_probability_threshold(0.2)
    assert np.array_equal(answers(moved, X)["label"], moved.predict(X))
    with opened(moved) as runner:
        assert runner.details["probability_threshold"] == 0.2


@pytest.mark.parametrize("name", ["two classes", "text classes", "named columns", "ranking", "stopped early"])
@pytest.mark.parametrize("suffix", ["cbm", "json", "joblib", "pkl"])
def test_a_file_answers_like_the_live_model(name, suffix, models, tmp_path):
    model, data = models[name], MODELS[name][1]
    path = tmp_path / f"model.{suffix}"
    if suffix == "joblib":
        joblib.dump(model, path)
    elif suffix == "pkl":
        path.write_bytes(pickle.dumps(model))
    else:
        model.save_model(str(path), format=suffix)
    report = checked(model, path, data)
    assert report.passed, said(report)
    assert report.max_abs_diff < 1e-12  # JSON writes decimal numbers
    with opened(path) as runner:
        assert type(runner.native) is type(model)


# Tables, categories, text


def test_categories_and_text_are_handed_over_as_they_are(tmp_path):
    texts = np.array(["red apple pie", "blue sky", "green tea"])[THREE]
    table = pd.DataFrame({"age": X[:, 0], "city": CITIES, "note": texts, "kind": np.arange(ROWS) % 3})
    model = CatBoostClassifier(cat_features=["city", "kind"], text_features=["note"], **SMALL).fit(
        table, CITIES == "Oslo"
    )
    expected = model.predict_proba(table)
    model.save_model(str(tmp_path / "m.cbm"))
    table.to_parquet(tmp_path / "t.parquet")
    for data in (table, table.assign(city=pd.Categorical(CITIES))):
        assert np.array_equal(answers(model, data)["probabilities"], expected)
    for data in (table[["note", "kind", "city", "age"]], tmp_path / "t.parquet", pl.from_pandas(table)):
        report = checked(model, tmp_path / "m.cbm", data, preset="exact")
        assert report.passed, said(report)
    with opened(model) as runner:
        assert runner.details["categorical_features"] == ["city", "kind"]
        assert runner.details["text_features"] == ["note"]
    with pytest.raises(ModelError, match="NaN values should be converted to string"):
        answers(model, table.assign(city=pd.Series(CITIES).where(CITIES != "Oslo")))
    with pytest.raises(ModelError, match="it takes 'city', 'kind', 'note'"):
        exported(model, table)
    mixed = table[["age", "city"]].to_numpy(dtype=object)
    unnamed = CatBoostClassifier(cat_features=[1], **SMALL).fit(mixed, TWO)
    assert np.array_equal(answers(unnamed, mixed)["probabilities"], unnamed.predict_proba(mixed))


def test_a_column_that_is_not_there_is_named(models):
    report = checked(models["named columns"], models["named columns"], TABLE.drop(columns="rooms"))
    assert report.outcome == "INCONCLUSIVE"
    assert "'rooms'" in said(report)
    report = checked(models["named columns"], models["named columns"], TABLE.assign(rooms="many"))
    assert report.outcome == "INCONCLUSIVE"
    assert "many" in said(report)


# What is claimed


def test_each_finds_its_own_adapter(models):
    assert describe_model(models["two classes"]).framework == "catboost"
    assert describe_model(models["base class"]).framework == "catboost"
    pipeline = make_pipeline(StandardScaler(), CatBoostRegressor(**SMALL)).fit(FILLED, TARGET)
    assert describe_model(pipeline).framework == "sklearn"


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("suffix", ["cbm", "json"])
def test_a_file_that_was_cut_is_refused(share, suffix, models, tmp_path):
    path = tmp_path / f"half.{suffix}"
    models["regression"].save_model(str(path), format=suffix)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(ModelError, match=rf"half\.{suffix}"), opened(path):
        pass


@pytest.mark.parametrize("content", [None, b"\x89PNG\r\n\x1a\n" + bytes(300), b""])
def test_what_is_no_model_is_refused_by_name(content, tmp_path):
    path = tmp_path / "m.cbm"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.cbm"), opened(path):
        pass


def test_a_model_that_was_not_fitted_is_refused():
    with pytest.raises(ModelError, match="not fitted"), opened(CatBoostClassifier()):
        pass


def test_without_catboost_one_line_says_what_to_install(models, tmp_path, monkeypatch):
    models["regression"].save_model(str(tmp_path / "m.cbm"))
    monkeypatch.setitem(sys.modules, "catboost", None)
    report = checked(tmp_path / "m.cbm", tmp_path / "m.cbm", X)
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
        elif output != "scores" or "label" not in found:
            agrees(report, output, answer, found.get(output, found.get("predictions")))


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("margin instead of probability", "two classes"),
        ("a threshold is edited", "three classes"),
        ("features in another order", "two classes"),
        ("class columns swapped", "three classes"),
        ("base score dropped", "regression"),
        ("missing goes the other way", "regression"),
    ],
)
def test_a_planted_fault_is_caught(fault, name, models):
    model = models[name]
    proto = changed(exported(model, X), **FAULTS[fault])
    report = checked(model, proto, X)
    assert report.outcome == "FAIL", said(report)
    output = "value" if name == "regression" else "probabilities"
    found = onnx_answers(proto, X)
    agrees(report, output, by_hand(model, X)[output], found.get(output, found.get("predictions")))


def test_fewer_trees_and_exchanged_labels_are_caught(models):
    model = models["text classes"]
    short = model.copy()
    short.shrink(ntree_end=4)
    assert checked(model, exported(short, X), X).outcome == "FAIL"
    exchanged = changed(exported(model, X), classlabels_strings=lambda old: [old[1], old[0], old[2]])
    assert checked(model, exchanged, X).outcome == "FAIL"


def threshold():
    model = CatBoostClassifier(**SMALL).fit(X, TWO)
    model.set_probability_threshold(0.2)
    return model


REFUSED = {
    "threshold": (threshold, "probability threshold of 0.2"),
    "integers": (lambda: CatBoostClassifier(**SMALL).fit(X, TWO * 5 - 2), r"\[-2, 3\] answers 0 and 1"),
    "booleans": (lambda: CatBoostClassifier(**SMALL).fit(X, TWO == 1), "Unexpected label type"),
    "one against all": (
        lambda: CatBoostClassifier(loss_function="MultiClassOneVsAll", **SMALL).fit(X, THREE),
        "softmax",
    ),
    "labels": (
        lambda: CatBoostClassifier(loss_function="MultiLogloss", **SMALL).fit(X, np.c_[TWO, 1 - TWO]),
        "MultiLogloss",
    ),
    "exponent": (lambda: CatBoostRegressor(loss_function="Poisson", **SMALL).fit(X, COUNTS), "leaves out the exponent"),
    "targets": (
        lambda: CatBoostRegressor(loss_function="MultiRMSE", **SMALL).fit(X, np.c_[TARGET, -TARGET]),
        "2 values per row",
    ),
    "lossguide": (lambda: CatBoostRegressor(grow_policy="Lossguide", **SMALL).fit(X, TARGET), "non symmetric trees"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_export_gets_wrong_is_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        exported(make(), X)


def test_dictionaries_of_probabilities_on_request(models):
    proto = exported(models["text classes"], X, zipmap=True)
    assert "ZipMap" in {node.op_type for node in proto.graph.node}
    assert checked(models["text classes"], proto, X).passed
    for option in ({"double": True}, {"opset": 15}):
        with pytest.raises(ModelError, match="CatBoost exports"):
            exported(models["text classes"], X, **option)
