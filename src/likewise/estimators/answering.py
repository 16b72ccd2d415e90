"""Asks an estimator several questions about the same rows without doing the common work twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from likewise.contracts.data import Array
from likewise.errors import ModelError
from likewise.estimators.rules import UP_TO_ROUNDING, rule_of
from likewise.estimators.views import View, is_multilabel

_LARGEST_DENSE = 1 << 30


def ask(model: Any, data: Any, views: Sequence[View]) -> dict[str, Array]:
    """The answers of the views to the rows, as arrays with a row each."""
    methods = dict.fromkeys(view.method for view in views)
    model, data = _apply_steps(model, data)
    answers = {method: getattr(model, method)(data) for method in methods if method != "predict"}
    if "predict" in methods:
        labels = _labels_from(model, answers.get("predict_proba"))
        answers["predict"] = model.predict(data) if labels is None else labels
    return {view.name: _array(answers[view.method], view) for view in views}


def _apply_steps(model: Any, data: Any) -> tuple[Any, Any]:
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


def _labels_from(model: Any, probabilities: Any) -> Array | None:
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


def _nearly_tied(probabilities: Array) -> bool:
    """Is any row too close to call? NaN counts as a tie."""
    import numpy as np

    best = np.partition(probabilities, -2, axis=1)[:, -2:]
    tolerance = max(1e-9, 64 * float(np.finfo(probabilities.dtype).eps))
    return not bool(np.all(best[:, 1] - best[:, 0] > tolerance * best[:, 1]))


def _array(answer: Any, view: View) -> Array:
    import numpy as np

    if isinstance(answer, list | tuple):
        answer = answer[view.part] if view.part is not None else np.stack(answer, axis=1)
    if hasattr(answer, "toarray"):
        answer = _dense(answer, view.name)
    array = answer.to_numpy() if hasattr(answer, "to_numpy") else np.asarray(answer)
    return as_labels(array) if array.dtype.kind in "OUS" else np.asarray(array)


def _dense(answer: Any, name: str) -> Any:
    size = answer.shape[0] * answer.shape[1] * answer.dtype.itemsize
    if size > _LARGEST_DENSE:
        raise ModelError(
            f"the sparse output {name!r} of {answer.shape[0]:,} rows and {answer.shape[1]:,} columns would need "
            f"{size / 2**30:.1f} GiB as an array",
            remedy="Use a smaller --batch-size",
        )
    return answer.toarray()


def as_labels(array: Array) -> Array:
    """Text as objects of `str`; numbers that travelled as objects as numbers."""
    import numpy as np

    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.kind == "S":
        return np.char.decode(array).astype(object)
    values = array.ravel().tolist()
    kinds = set(map(type, values))
    if kinds == {str}:
        return array
    if kinds and all(issubclass(kind, bool | int | float | np.number | np.bool_) for kind in kinds):
        return np.array(values).reshape(array.shape)
    texts = np.empty(len(values), dtype=object)
    texts[:] = [None if value is None else str(value) for value in values]
    return texts.reshape(array.shape)


def empty(view: View, classes: Any, seen: Mapping[str, Array]) -> Array:
    """The answer to no rows: scikit-learn refuses such calls, but its shape may be known."""
    import numpy as np

    if view.name in seen:
        return seen[view.name][:0]
    tail = None if view.spec.shape is None else view.spec.shape[1:]
    if tail is None or not all(isinstance(size, int) for size in tail):
        raise ModelError(
            f"the shape of the output {view.name!r} is not known before the model has answered a row",
            remedy="Give data with at least one row",
        )
    labels = view.method == "predict" and isinstance(classes, np.ndarray)
    blank = np.empty((0, *(size for size in tail if isinstance(size, int))), dtype=classes.dtype if labels else float)
    return blank.astype(object) if blank.dtype.kind in "US" else blank
