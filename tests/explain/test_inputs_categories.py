"""Categories that a model was not fitted with, or that are spelt in another way."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from broken_inputs import ROWS, explained, exported, loans, pipeline, somewhere, with_attribute
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import data_only


def ordinal():
    return OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)


def as_the_first(attribute):
    """What the graph makes of an unknown category: the code of the first one."""
    attribute.i = 0


@pytest.fixture(scope="module")
def encoded():
    frame, paid = loans()
    model = pipeline(ordinal()).fit(frame, paid)
    return model, exported(model, frame)


def test_an_unknown_category_that_becomes_a_known_one_is_told(encoded):
    model, graph = encoded
    candidate = with_attribute(graph, "LabelEncoder", "default_int64", as_the_first)
    told = explained(model, candidate, somewhere(loans()[0], "city", "Paris"), "unknown-category", "city")
    assert told.explained_share == 1


def test_all_categories_known_pass(encoded):
    model, graph = encoded
    candidate = with_attribute(graph, "LabelEncoder", "default_int64", as_the_first)
    report = data_only.explain(model, candidate, loans(3)[0])
    assert report.passed
    assert report.diagnoses == ()


def test_an_unknown_whole_number_is_a_category_too():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"zone": rng.choice([1, 2, 3], ROWS), "x": rng.normal(size=ROWS)})
    steps = [("c", ordinal(), ["zone"]), ("n", StandardScaler(), ["x"])]
    model = Pipeline([("prep", ColumnTransformer(steps)), ("clf", LogisticRegression())])
    model.fit(frame, (frame["x"] + frame["zone"] > 2).astype(int))
    candidate = with_attribute(exported(model, frame), "LabelEncoder", "default_int64", as_the_first)
    explained(model, candidate, somewhere(frame, "zone", 7), "unknown-category", "zone")


@pytest.mark.parametrize(
    ("respell", "told"),
    [(str.upper, "upper and lower case"), (lambda city: f" {city} ", "blanks around it")],
    ids=["case", "blanks"],
)
def test_a_candidate_that_reads_other_spellings_as_well_is_told(respell, told):
    frame, paid = loans()
    model = pipeline().fit(frame, paid)

    def candidate(rows):
        rows = rows.assign(city=[city.strip().title() for city in rows["city"]])
        return {"label": model.predict(rows), "probabilities": model.predict_proba(rows)}

    spelt = frame["city"].where(np.arange(ROWS) % 5 > 0, frame["city"].map(respell))
    found = explained(model, candidate, frame.assign(city=spelt), "unknown-category", "city")
    assert told in found.evidence


def test_a_reference_that_reads_other_spellings_is_told_without_looking_inside():
    frame, paid = loans()
    model = pipeline().fit(frame, paid)

    def reference(rows):
        rows = rows.assign(city=[city.strip() for city in rows["city"]])
        return {"label": model.predict(rows), "probabilities": model.predict_proba(rows)}

    padded = frame["city"].where(np.arange(ROWS) % 5 > 0, frame["city"] + " ")
    found = explained(reference, exported(model, frame), frame.assign(city=padded), "unknown-category", "city")
    assert "the candidate's graph" in found.evidence


def test_a_graph_that_refuses_an_unknown_category_is_told_by_the_column():
    """handle_unknown='infrequent_if_exist' is exported as an error (skl2onnx 1.20)."""
    frame, paid = loans()
    encoder = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=0.05)
    model = pipeline(encoder).fit(frame, paid)
    data = somewhere(frame, "city", "Paris")
    told = explained(model, exported(model, frame), data, "unknown-category", "city")
    assert "refuses rows with 'Paris' in city" in told.evidence
