"""Among all hypotheses, a fault in a step is still the first answer."""

from __future__ import annotations

import numpy as np
import pytest
from piped import NUMBERS, changed, exported, fitted, people, step, strangers, top
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OrdinalEncoder, PowerTransformer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model():
    return fitted()


def test_a_scaler_that_is_left_out(model):
    other = changed(model, lambda copied: step(copied, "prep__num").steps.pop())
    best = top(model, exported(other, people()[0]), people()[0])
    assert (best.cause, best.culprit) == ("preprocessing-dropped", "scaler (step 'prep__num__scaler')")


def test_a_category_that_was_never_seen():
    model = fitted(words=OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1))
    other = changed(model, lambda copied: setattr(step(copied, "prep__cat"), "unknown_value", 7))
    best = top(model, exported(other, people()[0]), strangers())
    assert best.cause == "unknown-category"
    assert "city" in best.culprit


def test_gaps_that_a_converter_forgets():
    table = people()[0][NUMBERS].to_numpy(dtype=np.float64)
    steps = [("power", PowerTransformer()), ("imputer", SimpleImputer()), ("clf", LogisticRegression())]
    model = Pipeline(steps).fit(table, people()[1])
    best = top(model, exported(model), {"X": table})
    assert best.cause == "missing-value-handling"
    assert "power" in best.culprit
