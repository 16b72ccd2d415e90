"""The ways of asking one estimator: what each gives and what it means."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from likewise.columns import plain
from likewise.contracts.models import InputSpec, Kind, Label, OutputSpec, Shape
from likewise.errors import ModelError
from likewise.estimators.rules import rule_of


@dataclass(frozen=True, slots=True)
class View:
    """One way of asking: the method to call, and which part of a list of answers it is."""

    spec: OutputSpec
    method: str
    part: int | None = None

    @property
    def name(self) -> str:
        return self.spec.name


def innermost(model: Any) -> Any:
    """The estimator that gives the answer in the end: the last step, the best of a search."""
    while True:
        if hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        elif _is(model, "sklearn.frozen") and hasattr(model, "estimator"):
            model = model.estimator
        elif steps_of(model) and model.steps[-1][1] not in (None, "passthrough"):
            model = model.steps[-1][1]
        else:
            return model


def outermost(model: Any) -> Any:
    """The estimator that sees the data first."""
    while True:
        if hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        elif steps := [step for _, step in steps_of(model) if step not in (None, "passthrough")]:
            model = steps[0]
        else:
            return model


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
    labels = tuple(plain_classes(classes))
    count = len(labels)
    scored = None if _is_one_against_one(innermost(model)) and count > 2 else labels
    shape: Shape | None = (None,) if count == 2 else (None, count)
    decided_by_scores = hasattr(model, "decision_function") and scored and rule_of(innermost(model)) is None
    label = OutputSpec(
        "label",
        Kind.LABEL,
        shape=(None,),
        classes=labels,
        view=True,
        decided_by="scores" if decided_by_scores else "probabilities",
    )
    return (
        View(label, "predict"),
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
    apart = isinstance(classes, list) and not _is(innermost(model), "sklearn.multioutput", "ClassifierChain")
    if apart and len({len(options) for options in classes}) > 1:
        probabilities = tuple(
            View(
                OutputSpec(
                    f"probabilities.{part}",
                    Kind.PROBABILITY,
                    shape=(None, len(options)),
                    classes=tuple(plain_classes(options)),
                    view=True,
                ),
                "predict_proba",
                part,
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


def plain_classes(classes: Iterable[Any]) -> list[Label]:
    """Classes as plain Python values, as they stand in reports and pair with other runtimes."""
    values = (plain(value) for value in classes)
    return [value if isinstance(value, bool | int | float | str) else str(value) for value in values]


def _view(
    name: str, kind: Kind, method: str, *, shape: Shape | None = None, classes: tuple[Label, ...] | None = None
) -> View:
    return View(OutputSpec(name, kind, shape=shape, classes=classes, view=True), method)


def _if_it_has(model: Any, *views: View) -> tuple[View, ...]:
    return tuple(view for view in views if hasattr(model, view.method))


def is_multilabel(model: Any, classes: Any) -> bool:
    """Does the classifier give several labels a row?"""
    if isinstance(classes, list) or getattr(model, "multilabel_", False) or getattr(model, "outputs_2d_", False):
        return True
    binarizer = getattr(model, "_label_binarizer", None)
    several = getattr(model, "n_outputs_", 1) > 1 and binarizer is None  # for a network these are units, not labels
    return several or str(getattr(binarizer, "y_type_", "")).startswith("multilabel")


def _is_one_against_one(model: Any) -> bool:
    """Support vector machines may give a column for each pair of classes; with three classes only the name tells."""
    return getattr(model, "decision_function_shape", None) == "ovo"


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


def steps_of(model: Any) -> list[tuple[str, Any]]:
    """The steps of a Pipeline; nothing else has any."""
    from sklearn.pipeline import Pipeline

    return list(model.steps) if isinstance(model, Pipeline) else []


def _is(model: Any, module: str, name: str | None = None) -> bool:
    kind = type(model)
    return kind.__module__.startswith(module) and name in (None, kind.__name__)
