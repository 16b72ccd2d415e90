"""A part of docs/atlas.md: no verdict contradicts an oracle that shares no code with the gate."""

from __future__ import annotations

import pytest

import data_only
import screens
from conformance import atlas_oracle, atlas_sklearn, atlas_torch
from likewise import Outcome

SKLEARN = (
    "LogisticRegression", "RandomForestClassifier", "GradientBoostingRegressor", "MultiOutputRegressor", "KMeans",
    "IsolationForest", "StandardScaler", "OneHotEncoder", "MultinomialNB", "Pipeline", "LinearSVC",
    "KNeighborsClassifier", "BernoulliNB",
)  # fmt: skip
TORCH = (
    "Linear", "Softmax over the batch", "Conv1d, free length", "MaxPool2d with places", "BatchNorm1d", "GRU",
    "GRUCell with state", "Masked mean of embeddings", "Two towers", "argmax", "Heads as a dict",
    "Heads as a dataclass", "CrossEntropyLoss",
)  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore")

WANTED = {True: Outcome.PASS, False: Outcome.FAIL}


@pytest.mark.parametrize("name", SKLEARN)
def test_estimators(name: str) -> None:
    verdict_is_the_oracles(atlas_sklearn.cases(), name)


@pytest.mark.parametrize("name", TORCH)
def test_modules(name: str) -> None:
    verdict_is_the_oracles(atlas_torch.cases(), name)


def verdict_is_the_oracles(cases: tuple[atlas_oracle.Case, ...], name: str) -> None:
    pair = next(case for case in cases if case.name == name).make()
    decided = atlas_oracle.decide(pair)
    report = data_only.check(pair.reference, pair.candidate, pair.data, **pair.options)
    screens.fits(report)
    assert decided.agrees is not None
    assert report.outcome is WANTED[decided.agrees], f"{decided}\n{report.verdict.headline}"
