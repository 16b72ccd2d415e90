"""Missing text as a runtime without missing text has it: the empty string.

ONNX strings cannot be missing, so a missing value is fed as the empty string. A pipeline that was taught
to fill or to encode missing text has to look for that instead.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from likewise.estimators.steps import walk


def with_empty_text(model: Any) -> tuple[Any, tuple[str, ...]]:
    """The model, copied if a step treats missing text, and the paths of the steps that were told otherwise."""
    if not any(_fills(step) or _encodes(step) for _, step in walk(model)):
        return model, ()
    copied = deepcopy(model)
    changed = []
    for path, step in walk(copied):
        if _fills(step):
            step.missing_values = ""
        elif _encodes(step):
            step.categories_ = [_filled(categories) for categories in step.categories_]
        else:
            continue
        changed.append(path)
    return copied, tuple(changed)


def _fills(step: Any) -> bool:
    """An imputer of text."""
    from sklearn.impute import SimpleImputer

    of_text = isinstance(step, SimpleImputer) and getattr(step, "_fit_dtype", None) is not None
    return of_text and step._fit_dtype.kind == "O" and not isinstance(step.missing_values, str)


def _encodes(step: Any) -> bool:
    """An encoder for which a missing text is a category like any other; an OrdinalEncoder has its own rule for it."""
    from sklearn.preprocessing import OneHotEncoder, TargetEncoder

    return isinstance(step, OneHotEncoder | TargetEncoder) and any(map(_has_gap, step.categories_))


def _has_gap(categories: Any) -> bool:
    if categories.dtype.kind != "O":
        return False
    values = categories.tolist()
    text = [value for value in values if isinstance(value, str)]
    return len(text) == len(values) - 1 and "" not in text


def _filled(categories: Any) -> Any:
    filled = categories.copy()
    if _has_gap(categories):
        filled[[index for index, value in enumerate(categories) if not isinstance(value, str)]] = ""
    return filled
