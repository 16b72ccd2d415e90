"""An estimator in a few plain words, for reports and `inspect`."""

from __future__ import annotations

import inspect
from typing import Any

from likewise.columns import plain
from likewise.estimators.views import innermost, inputs_of, plain_classes, steps_of

_MOST_SHOWN = 50
_LONGEST_VALUE = 80


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
        facts["classes"] = plain_classes(classes[:_MOST_SHOWN])
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
