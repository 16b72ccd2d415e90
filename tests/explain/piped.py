"""Fitted pipelines over a small mixed table, their exports, and copies of them with one step changed."""

from __future__ import annotations

import warnings
from copy import deepcopy
from functools import cache

import numpy as np
import pandas as pd
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.base import is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import data_only
from likewise.explain import driver
from likewise.models.sklearn.walk import walk

NUMBERS, WORDS = ["age", "income", "balance"], ["city", "kind"]
OPSETS = {"": 18, "ai.onnx.ml": 3}


@cache
def people() -> tuple[pd.DataFrame, np.ndarray]:
    """Numbers, two of them with gaps, and categories; a label that depends on all."""
    random = np.random.default_rng(0)
    count = 240
    frame = pd.DataFrame(
        {
            "age": random.integers(18, 90, count).astype(float),
            "income": np.round(random.lognormal(3, 0.5, count), 2),
            "balance": random.normal(100, 50, count),
            "city": random.choice(["Berlin", "Paris", "Rome", "Oslo"], count, p=[0.4, 0.3, 0.2, 0.1]).astype(object),
            "kind": random.choice(["a", "b", "c"], count).astype(object),
        }
    )
    score = (frame["city"] == "Berlin") + (frame["kind"] == "b") + (frame["age"] - 50) / 20 + frame["income"] / 20 - 1
    label = (score + (frame["balance"] - 100) / 50 + random.normal(0, 0.5, count) > 0.5).to_numpy().astype(int)
    for name in ("income", "balance"):
        frame.loc[random.random(count) < 0.12, name] = np.nan
    return frame, label


@cache
def strangers() -> pd.DataFrame:
    """The same people, some of them from a city that no encoder has seen."""
    frame, _ = people()
    frame = frame.copy()
    frame.loc[frame.index[::15], "city"] = "Tokyo"
    return frame


def fitted(model=None, *, numbers=None, words=None):
    """A pipeline over the table: branches for numbers and categories, then a model."""
    if numbers is None:
        numbers = Pipeline([("imputer", SimpleImputer()), ("scaler", StandardScaler())])
    words = OneHotEncoder(handle_unknown="ignore") if words is None else words
    model = LogisticRegression(max_iter=500) if model is None else model
    steps = [("prep", ColumnTransformer([("num", numbers, NUMBERS), ("cat", words, WORDS)])), ("clf", model)]
    frame, label = people()
    return deepcopy(Pipeline(steps)).fit(frame, label)


def step(model, path):
    """A fitted step by its path."""
    for name in path.split("__"):
        model = (model.named_transformers_ if hasattr(model, "transformers_") else model.named_steps)[name]
    return model


def changed(model, change):
    """A copy of a fitted model after a change."""
    copied = deepcopy(model)
    change(copied)
    return copied


def exported(model, frame=None):
    """What skl2onnx makes of it, one input a column; of a model without columns, one input."""
    if frame is None:
        types = [("X", FloatTensorType([None, model.n_features_in_]))]
    else:
        types = [
            (name, (StringTensorType if name in (*WORDS, "text") else FloatTensorType)([None, 1])) for name in frame
        ]
    options = {id(model): {"zipmap": False}} if is_classifier(model) else {}
    options |= {id(part): {"locale": "C.UTF-8"} for _, part in walk(model) if isinstance(part, CountVectorizer)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return to_onnx(model, initial_types=types, options=options, target_opset=OPSETS)


def ask_only(monkeypatch, *names):
    """Ask these probes alone, by their module or a cause: quicker, and what they find is not hidden by others."""
    every = driver.extensions

    def chosen(kind):
        return tuple(e for e in every(kind) if {e.look.__module__.rpartition(".")[2], *e.causes} & set(names))

    monkeypatch.setattr(driver, "extensions", chosen)


def diagnoses(reference, candidate, data):
    """The causes of a failure, the best first."""
    report = data_only.explain(reference, candidate, data, explain_budget=60)
    assert not report.passed
    return report.diagnoses


def top(reference, candidate, data):
    """The best explanation."""
    found = diagnoses(reference, candidate, data)
    assert found, "not explained"
    return found[0]
