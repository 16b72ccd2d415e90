"""The ways of asking an XGBoost model: which there are, what each means, and the answers."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from likewise.boosters.running import derives_from, output
from likewise.boosters.xgb import Facts
from likewise.contracts.data import Array
from likewise.contracts.models import Kind, OutputSpec


class OfWrapper:
    """What a scikit-learn wrapper says to the same rows, each question asked once."""

    def __init__(self, model: Any, data: Any, facts: Facts) -> None:
        self._model, self._data, self._facts = model, data, facts

    @cached_property
    def value(self) -> Array:
        return self._model.predict(self._data)  # type: ignore[no-any-return]

    @cached_property
    def scores(self) -> Array:
        return self._model.predict(self._data, output_margin=True)  # type: ignore[no-any-return]

    @cached_property
    def probabilities(self) -> Array:
        return self._model.predict_proba(self._data)  # type: ignore[no-any-return]

    @cached_property
    def label(self) -> Array:
        import numpy as np

        # How the wrapper's own predict decides, without a second pass over the trees.
        plain = type(self._model).__module__.startswith("xgboost.") and not self._facts.multilabel
        if plain and self._facts.objective == "binary:logistic":
            return np.asarray(self.probabilities[:, 1] > 0.5, dtype=np.int64)
        if plain and self._facts.objective == "multi:softprob" and self._facts.classes > 2:
            return np.asarray(np.argmax(self.probabilities, axis=1))
        return self.value


class OfBooster:
    """What a booster says to one DMatrix, each question asked once."""

    def __init__(self, booster: Any, matrix: Any, facts: Facts) -> None:
        self._booster, self._matrix, self._facts = booster, matrix, facts

    @cached_property
    def value(self) -> Array:
        return self._booster.predict(self._matrix)  # type: ignore[no-any-return]

    @cached_property
    def scores(self) -> Array:
        return self._booster.predict(self._matrix, output_margin=True)  # type: ignore[no-any-return]

    @cached_property
    def probabilities(self) -> Array:
        if self._facts.objective != "multi:softmax":
            return self.value
        from scipy.special import softmax

        return softmax(self.scores, axis=1)  # type: ignore[no-any-return]

    @cached_property
    def label(self) -> Array:
        import numpy as np

        if self._facts.objective in ("multi:softmax", "binary:hinge"):
            return self.value.astype(np.int64)
        if self.value.ndim == 1 or self._facts.multilabel:
            return np.asarray(self.value > 0.5, dtype=np.int64)
        return np.asarray(np.argmax(self.value, axis=1))


def outputs_of_wrapper(model: Any, facts: Facts) -> tuple[OutputSpec, ...]:
    if derives_from(model, "xgboost", ("XGBRankerMixIn", "XGBRanker")):
        return (output("scores", Kind.SCORE, dtype="float32"),)
    if not hasattr(model, "predict_proba"):
        return (_value(facts),)
    if callable(model.objective):  # the wrapper knows no classes then, and gives what the trees add up to
        return (output("scores", Kind.SCORE, facts.classes or None, dtype="float32"),)
    label, probabilities, scores = _classifier_outputs(facts, columns=facts.classes)
    # Its predict_proba of such a model gives margins.
    return (label, scores) if facts.objective == "binary:logitraw" else (label, probabilities, scores)


def outputs_of_booster(facts: Facts) -> tuple[OutputSpec, ...]:
    if facts.objective.startswith("rank:") or facts.objective == "binary:logitraw":
        return (output("scores", Kind.SCORE, facts.targets if facts.targets > 1 else None, dtype="float32"),)
    if not facts.classes:
        return (_value(facts),)
    # Of two classes a booster gives the second only.
    return _classifier_outputs(facts, columns=facts.classes if facts.objective.startswith("multi:") else None)


def _classifier_outputs(facts: Facts, *, columns: int | None) -> tuple[OutputSpec, OutputSpec, OutputSpec]:
    """Label, probabilities and margins; several labels a row have no classes to name their columns by."""
    if facts.multilabel:
        several = facts.targets
        return (
            output("label", Kind.LABEL, several, dtype="int64"),
            output("probabilities", Kind.PROBABILITY, several, dtype="float32"),
            output("scores", Kind.SCORE, several, dtype="float32"),
        )
    classes = range(facts.classes)
    margins = facts.classes if facts.objective.startswith("multi:") else None
    return (
        output("label", Kind.LABEL, dtype="int64", classes=classes, decided_by="probabilities"),
        output("probabilities", Kind.PROBABILITY, columns, dtype="float32", classes=classes),
        output("scores", Kind.SCORE, margins, dtype="float32", classes=classes),
    )


def _value(facts: Facts) -> OutputSpec:
    return output("value", Kind.VALUE, facts.targets if facts.targets > 1 else None, dtype="float32")
