"""What a scikit-learn estimator says about itself: its inputs, the ways of asking it, and what it is in a few words."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from likewise.contracts.models import InputSpec, Kind, Label, OutputSpec, Shape
from likewise.contracts.values import dataclass
from likewise.data.columns import plain
from likewise.errors import ModelError
from likewise.models.sklearn.walk import innermost, outermost, steps_of

_MOST_SHOWN = 50
_LONGEST_VALUE = 80

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


def one_line(model: Any) -> str:
    """The model and what it is made of: `Pipeline(StandardScaler → LogisticRegression)`."""
    name = type(model).__name__
    if hasattr(model, "best_estimator_"):
        return f"{name}({one_line(model.best_estimator_)})"
    if steps := steps_of(model):
        return f"{name}({' → '.join(one_line(step) for _, step in steps)})"
    return "passthrough" if model is None or isinstance(model, str) else name


def details(model: Any, fitted_with: str | None) -> dict[str, Any]:
    """Facts for the record, as plain JSON values."""
    import sklearn

    facts: dict[str, Any] = {"estimator": one_line(model), "sklearn": sklearn.__version__}
    if fitted_with:
        facts["fitted_with"] = fitted_with
    if steps := steps_of(getattr(model, "best_estimator_", model)):
        facts["steps"] = [{"name": str(name), "class": one_line(step)} for name, step in steps]
    classes = getattr(model, "classes_", None)
    if classes is not None and not isinstance(classes, list):
        facts["classes"] = _plain_classes(classes[:_MOST_SHOWN])
    inputs, table = inputs_of(model)
    if inputs is not None:
        width = inputs[0].shape[-1] if inputs and inputs[0].shape else None
        facts["features"] = len(inputs) if table else width
    facts["parameters"] = _parameters(innermost(model))
    return facts


def _parameters(model: Any) -> dict[str, Any]:
    """What was set differently from the default."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(type(model)).parameters.items()}
    changed = {
        name: value
        for name, value in model.get_params(deep=False).items()
        if name in defaults and repr(value) != repr(defaults[name])
    }
    return {name: _short(value) for name, value in list(changed.items())[:_MOST_SHOWN]}


def _short(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value if not isinstance(value, str) else value[:_LONGEST_VALUE]
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    text = " ".join(str(plain(value)).split())
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


@dataclass(frozen=True, slots=True)
class View:
    """One way of asking: the method to call, and which part of a list of answers it is."""

    spec: OutputSpec
    method: str
    part: int | None = None

    @property
    def name(self) -> str:
        return self.spec.name


def inputs_of(model: Any) -> tuple[tuple[InputSpec, ...] | None, bool]:
    """The declared inputs, and whether they are columns of a table."""
    first = outermost(model)
    names = getattr(model, "feature_names_in_", None)
    names = getattr(first, "feature_names_in_", None) if names is None else names
    if names is not None:
        return tuple(InputSpec(str(name)) for name in names), True
    if _takes_text(first):
        return (InputSpec("X", None, (None,)),), False
    count = getattr(model, "n_features_in_", None)
    count = getattr(first, "n_features_in_", None) if count is None else count
    return (None, False) if count is None else ((InputSpec("X", None, (None, int(count))),), False)


def views_of(model: Any, name: str) -> tuple[View, ...]:
    """Every way the model can be asked about new rows; an error if there is none."""
    views = _predicting_views(model, name)
    # A feature selector around a model can do both, and exporters take it for what it selects.
    selects = hasattr(model, "get_support") and hasattr(model, "transform") and views[0].method != "transform"
    return (*views, _view("selected", Kind.VALUE, "transform")) if selects else views


def _predicting_views(model: Any, name: str) -> tuple[View, ...]:
    kind = _type_of(model)
    if not hasattr(model, "predict"):
        if hasattr(model, "transform"):
            return (_view("value", Kind.VALUE, "transform"),)
        remedy = "Compare a model with predict or transform, such as a classifier trained on its labels"
        only = (
            "can only label the rows it was fitted on (fit_predict)"
            if hasattr(model, "fit_predict")
            else "has neither predict nor transform"
        )
        raise ModelError(
            f"{name}: {type(innermost(model)).__name__} {only}, so it cannot answer new rows", remedy=remedy
        )
    if kind == "regressor":
        return (_view("value", Kind.VALUE, "predict"),)
    if kind == "outlier_detector":
        label = _view("label", Kind.LABEL, "predict", shape=(None,), classes=(-1, 1))
        return (label, *_if_it_has(model, _view("scores", Kind.SCORE, "decision_function", shape=(None,))))
    if kind == "classifier" or hasattr(model, "classes_"):
        return _classifier_views(model)
    if hasattr(model, "predict_proba"):
        return _mixture_views(model)
    if kind == "clusterer":
        label = _view("label", Kind.LABEL, "predict", shape=(None,))
        return (label, *_if_it_has(model, _view("distances", Kind.DISTANCE, "transform")))
    return (_view("value", Kind.VALUE, "predict"),)


def _classifier_views(model: Any) -> tuple[View, ...]:
    classes = getattr(model, "classes_", None)
    if classes is None or is_multilabel(innermost(model), classes):
        return _multilabel_views(model, classes)
    labels = tuple(_plain_classes(classes))
    count = len(labels)
    # Support vector machines may give a column for each pair of classes; with three classes only the name tells.
    in_pairs = getattr(innermost(model), "decision_function_shape", None) == "ovo" and count > 2
    scored = None if in_pairs else labels
    shape: Shape | None = (None,) if count == 2 else (None, count)
    decided_by_scores = hasattr(model, "decision_function") and scored and rule_of(innermost(model)) is None
    decided_by = "scores" if decided_by_scores else "probabilities"
    return (
        _view("label", Kind.LABEL, "predict", shape=(None,), classes=labels, decided_by=decided_by),
        *_if_it_has(
            model,
            _view("probabilities", Kind.PROBABILITY, "predict_proba", shape=(None, count), classes=labels),
            _view("scores", Kind.SCORE, "decision_function", shape=shape if scored else None, classes=scored),
        ),
    )


def _multilabel_views(model: Any, classes: Any) -> tuple[View, ...]:
    """Several labels a row: probabilities come as one array, or as a list with an array a label."""
    label = _view("label", Kind.LABEL, "predict")
    scores = _view("scores", Kind.SCORE, "decision_function")
    probabilities: tuple[View, ...] = (_view("probabilities", Kind.PROBABILITY, "predict_proba"),)
    apart = isinstance(classes, list) and type(innermost(model)).__name__ != "ClassifierChain"
    if apart and len({len(options) for options in classes}) > 1:
        probabilities = tuple(
            _view(
                f"probabilities.{part}",
                Kind.PROBABILITY,
                "predict_proba",
                shape=(None, len(options)),
                classes=tuple(_plain_classes(options)),
                part=part,
            )
            for part, options in enumerate(classes)
        )
    return (label, *_if_it_has(model, *probabilities, scores))


def _mixture_views(model: Any) -> tuple[View, ...]:
    weights = getattr(innermost(model), "weights_", None)
    labels = None if weights is None else tuple(range(len(weights)))
    shape = None if labels is None else (None, len(labels))
    return (
        _view("label", Kind.LABEL, "predict", shape=(None,), classes=labels),
        _view("probabilities", Kind.PROBABILITY, "predict_proba", shape=shape, classes=labels),
    )


def _plain_classes(classes: Iterable[Any]) -> list[Label]:
    """Classes as plain Python values, as they stand in reports and pair with other runtimes."""
    values = (plain(value) for value in classes)
    return [value if isinstance(value, bool | int | float | str) else str(value) for value in values]


def _view(
    name: str,
    kind: Kind,
    method: str,
    *,
    shape: Shape | None = None,
    classes: tuple[Label, ...] | None = None,
    decided_by: str | None = None,
    part: int | None = None,
) -> View:
    return View(OutputSpec(name, kind, shape=shape, classes=classes, view=True, decided_by=decided_by), method, part)


def _if_it_has(model: Any, *views: View) -> tuple[View, ...]:
    return tuple(view for view in views if hasattr(model, view.method))


def is_multilabel(model: Any, classes: Any) -> bool:
    """Does the classifier give several labels a row?"""
    if isinstance(classes, list) or getattr(model, "multilabel_", False) or getattr(model, "outputs_2d_", False):
        return True
    binarizer = getattr(model, "_label_binarizer", None)
    several = getattr(model, "n_outputs_", 1) > 1 and binarizer is None  # for a network these are units, not labels
    return several or str(getattr(binarizer, "y_type_", "")).startswith("multilabel")


def _type_of(model: Any) -> str | None:
    """What the estimator says it is: `classifier`, `regressor`, `clusterer`, `outlier_detector` …"""
    try:
        from sklearn.utils import get_tags

        kind = get_tags(model).estimator_type
    except (ImportError, AttributeError):  # scikit-learn before 1.6, or a class that only looks like its own
        kind = getattr(model, "_estimator_type", None)
    return None if kind is None else str(kind)


def _takes_text(model: Any) -> bool:
    from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer

    return isinstance(model, CountVectorizer | HashingVectorizer)
