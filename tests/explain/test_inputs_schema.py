"""Data that does not reach a model: columns renamed, missing, too many, or of a type that cannot be fed."""

from __future__ import annotations

import shlex

import numpy as np
import pandas as pd
import pytest
from broken_inputs import ROWS, explained, exported, loans, matrix, pipeline, renamed
from sklearn.linear_model import Ridge


@pytest.fixture(scope="module")
def fitted():
    frame, paid = loans()
    model = pipeline().fit(frame, paid)
    return model, exported(model, frame), frame


@pytest.mark.parametrize("name", ["Income_USD", "earnings"], ids=["similar", "only one left"])
def test_a_renamed_column_is_found_and_proven(fitted, name):
    model, candidate, frame = fitted
    told = explained(model, candidate, frame.rename(columns={"income": name}), "schema-mismatch", "income")
    assert name in told.culprit
    assert "agree on 100%" in told.evidence
    assert f"rename(columns={{'{name}': 'income'}})" in told.remedy


def test_an_input_under_another_name_is_found_with_the_command_that_cures_it(fitted):
    model, candidate, frame = fitted
    told = explained(model, renamed(candidate, {"income": "salary"}), frame, "schema-mismatch", "salary")
    assert "--feed salary=income" in told.remedy


def test_names_in_a_command_are_names_whatever_they_say(fitted):
    model, candidate, frame = fitted
    name = "income $(touch ran)"
    told = explained(model, renamed(candidate, {"income": name}), frame, "schema-mismatch", name)
    assert shlex.split(told.remedy.partition(": ")[2])[:2] == ["--feed", f"{name}=income"]


def test_a_missing_column_is_named(fitted):
    model, candidate, frame = fitted
    explained(model, candidate, frame.drop(columns="age"), "schema-mismatch", "age")


def test_a_column_that_is_no_feature_is_named():
    X = np.random.default_rng(0).normal(size=(ROWS, 4))
    model = Ridge().fit(X, X.sum(axis=1))
    frame = pd.DataFrame(X, columns=list("abcd")).assign(id=np.arange(ROWS))
    told = explained(model, exported(model, types=matrix(4)), frame, "schema-mismatch", "id")
    assert told.remedy == "Leave out: --drop id"


def test_a_column_that_the_candidate_was_made_without_is_found():
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(ROWS, 4)), columns=list("abcd"))
    y = X["a"] + 2 * X["b"] + 3 * X["d"]
    model, other = Ridge(alpha=1e-9).fit(X, y), Ridge(alpha=1e-9).fit(X[["a", "b", "d"]], y)
    explained(model, exported(other, types=matrix(3)), X, "schema-mismatch", "c")


def test_text_that_spells_numbers_is_told(fitted):
    model, candidate, frame = fitted
    told = explained(model, candidate, frame.assign(age=frame["age"].astype(str)), "input-type", "age")
    assert "read as numbers, both models answer" in told.evidence
