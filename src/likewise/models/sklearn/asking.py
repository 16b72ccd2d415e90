"""What is the same whichever method of an estimator is called, done once: the steps before it, labels that follow.

Also part of the program that another Python gets (`models/environments`): it needs Python 3.8 and scikit-learn only.
"""

from __future__ import annotations

from typing import Any

BY_DEFINITION = frozenset(
    [
        "BaggingClassifier",
        "CalibratedClassifierCV",
        "DecisionTreeClassifier",
        "ExtraTreeClassifier",
        "ExtraTreesClassifier",
        "LabelPropagation",
        "LabelSpreading",
        "RandomForestClassifier",
        "VotingClassifier",
    ]
)
"""Their `predict` takes the class at the argmax of `predict_proba`; read in the source of each."""

UP_TO_ROUNDING = frozenset(
    [
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
    ]
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


def is_multilabel(model: Any, classes: Any) -> bool:
    """Does the classifier give several labels a row?"""
    if isinstance(classes, list) or getattr(model, "multilabel_", False) or getattr(model, "outputs_2d_", False):
        return True
    binarizer = getattr(model, "_label_binarizer", None)
    several = getattr(model, "n_outputs_", 1) > 1 and binarizer is None  # for a network these are units, not labels
    return several or str(getattr(binarizer, "y_type_", "")).startswith("multilabel")


def apply_steps(model: Any, data: Any) -> tuple[Any, Any]:
    """What the methods of a search and of a Pipeline do first, whichever is called: done once."""
    from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
    from sklearn.pipeline import Pipeline

    while True:
        if type(model) in (GridSearchCV, RandomizedSearchCV):
            model = model.best_estimator_
        elif type(model) is Pipeline and model.steps[-1][1] not in (None, "passthrough"):
            for _, step in model.steps[:-1]:
                if step is not None and step != "passthrough":
                    data = step.transform(data)
            model = model.steps[-1][1]
        else:
            return model, data


def labels_from(model: Any, probabilities: Any) -> Any:
    """What `predict` would say, where the probabilities already tell; None where it has to be asked."""
    import numpy as np

    if not isinstance(probabilities, np.ndarray) or probabilities.ndim != 2 or probabilities.shape[1] < 2:
        return None
    classes = getattr(model, "classes_", None)
    if not isinstance(classes, np.ndarray) or classes.shape != probabilities.shape[1:] or is_multilabel(model, classes):
        return None
    rule = rule_of(model)
    if rule is None or (rule is UP_TO_ROUNDING and _nearly_tied(probabilities)):
        return None
    return np.asarray(classes.take(np.argmax(probabilities, axis=1), axis=0))


def _nearly_tied(probabilities: Any) -> bool:
    """Is any row too close to call? NaN counts as a tie."""
    import numpy as np

    best = np.partition(probabilities, -2, axis=1)[:, -2:]
    tolerance = max(1e-9, 64 * float(np.finfo(probabilities.dtype).eps))
    return not bool(np.all(best[:, 1] - best[:, 0] > tolerance * best[:, 1]))
