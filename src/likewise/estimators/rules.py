"""Which classifiers decide by their probabilities, and which by their scores."""

from __future__ import annotations

from typing import Any

BY_DEFINITION = frozenset(
    (
        "BaggingClassifier",
        "CalibratedClassifierCV",
        "DecisionTreeClassifier",
        "ExtraTreeClassifier",
        "ExtraTreesClassifier",
        "LabelPropagation",
        "LabelSpreading",
        "RandomForestClassifier",
        "VotingClassifier",
    )
)
"""Their `predict` takes the class at the argmax of `predict_proba`; read in the source of each."""

UP_TO_ROUNDING = frozenset(
    (
        "AdaBoostClassifier",
        "BernoulliNB",
        "CategoricalNB",
        "ComplementNB",
        "GaussianNB",
        "GradientBoostingClassifier",
        "HistGradientBoostingClassifier",
        "LinearDiscriminantAnalysis",
        "LogisticRegression",
        "LogisticRegressionCV",
        "MLPClassifier",
        "MultinomialNB",
        "QuadraticDiscriminantAnalysis",
    )
)
"""Their probabilities rise with the scores `predict` compares, so both choose the same class unless nearly tied."""


def rule_of(model: Any) -> frozenset[str] | None:
    """How its `predict` follows from its `predict_proba`; None if it does not."""
    kind = type(model)
    if not kind.__module__.startswith("sklearn."):
        return None
    if kind.__name__ == "StackingClassifier":
        return UP_TO_ROUNDING if rule_of(model.final_estimator_) is not None else None
    if kind.__name__ == "VotingClassifier" and model.voting != "soft":
        return None
    return next((rule for rule in (BY_DEFINITION, UP_TO_ROUNDING) if kind.__name__ in rule), None)
