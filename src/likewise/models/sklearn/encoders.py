"""Categories and counts as ONNX: the codes of an OrdinalEncoder as the encoder itself gives them, the weights of words.

skl2onnx writes the place of a missing value where the encoder gives NaN, and looks for missing text as 'nan'.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

import numpy as np

from likewise.models.sklearn.functions import WHOLE, Writing

REFUSED = -1
"""The code of a category that the encoder refuses."""


def ordinal(write: Writing) -> None:
    """One LabelEncoder a column, side by side."""
    step = write.step
    found = [
        _encoded(write, column, text, categories, codes)
        for (column, text), categories, codes in zip(_columns(write), step.categories_, _codes(step), strict=True)
    ]
    kind = write.kind if np.issubdtype(step.dtype, np.floating) else WHOLE
    write.into(0, write("Cast", write.beside(found), to=kind))


def has_gap(categories: Any) -> bool:
    """Are these texts and one missing value, which ONNX can only be told as the empty text?"""
    if categories.dtype.kind != "O":
        return False
    values = categories.tolist()
    text = [value for value in values if isinstance(value, str)]
    return len(text) == len(values) - 1 and "" not in text


def _columns(write: Writing) -> Iterator[tuple[str, str]]:
    """The columns of the inputs one by one, each with the kind of its keys."""
    from skl2onnx.common.data_types import Int64TensorType, StringTensorType

    for variable in write.operator.inputs:
        name, kind = variable.full_name, "floats"
        if isinstance(variable.type, StringTensorType):
            kind = "strings"
        elif isinstance(variable.type, Int64TensorType):
            kind = "int64s"
        else:
            name = write("Cast", name, to=write.kind)
        width = variable.type.shape[1]
        for place in range(width):
            yield (name if width == 1 else write("Gather", name, np.array([place]), axis=1)), kind


def _codes(step: Any) -> list[list[float]]:
    """What the encoder makes of each of its categories: missing and infrequent ones have rules of their own."""
    import pandas as pd

    rows = max(map(len, step.categories_))
    padded = [np.concatenate([one, np.repeat(one[:1], rows - len(one))]) for one in step.categories_]
    names = getattr(step, "feature_names_in_", range(len(padded)))
    asked = pd.DataFrame(
        {name: pd.Series(column, dtype=column.dtype) for name, column in zip(names, padded, strict=True)}
    )
    given = np.asarray(step.transform(asked), dtype=np.float64)
    return [given[: len(one), place].tolist() for place, one in enumerate(step.categories_)]


def _encoded(write: Writing, column: str, kind: str, categories: Any, codes: list[float]) -> str:
    step = write.step
    gap = next((code for value, code in zip(categories, codes, strict=True) if _is_missing(value)), None)
    known = [(value, code) for value, code in zip(categories, codes, strict=True) if not _is_missing(value)]
    unknown = REFUSED if step.handle_unknown == "error" else step.unknown_value
    if kind == "strings":
        keys: list[Any] = [str(value).encode() for value, _ in known]
        if has_gap(categories) and gap is not None:
            keys, known = [*keys, b""], [*known, ("", gap)]
    elif kind == "int64s":
        known = [(value, code) for value, code in known if value == int(value)]
        keys = [int(value) for value, _ in known]
    else:
        keys = [float(value) for value, _ in known]
        if write.wide:
            return _looked_up(write, column, keys, [code for _, code in known], gap, float(unknown))
    values = {"values_floats": [float(code) for _, code in known], "default_float": float(unknown)}
    encoded = write("LabelEncoder", column, op_domain="ai.onnx.ml", op_version=2, **{f"keys_{kind}": keys}, **values)
    if kind == "floats" and gap is not None:
        encoded = write("Where", write("IsNaN", column), gap, encoded)
    return write("Reshape", encoded, np.array([-1, 1]))


def _looked_up(
    write: Writing, column: str, keys: list[float], codes: list[float], gap: float | None, unknown: float
) -> str:
    """By comparing with every key: a LabelEncoder has keys of float32 only."""
    same = write("Equal", column, np.array([keys]))
    code = write("ReduceSum", write("Where", same, np.array([codes]), 0.0), np.array([1]), keepdims=1)
    known = write("ReduceMax", write("Cast", same, to=WHOLE), np.array([1]), keepdims=1)
    found = write("Where", write("Cast", known, to=9), code, unknown)
    return found if gap is None else write("Where", write("IsNaN", column), gap, found)


def _is_missing(value: Any) -> bool:
    return value is None or bool(value != value)


def terms(write: Writing) -> None:
    """Counts of words as scikit-learn weighs them: skl2onnx adds one before their logarithm is taken, not to it."""
    step = write.step
    # A vectorizer is taken apart into a counter and this.
    if step.sublinear_tf and write.operator.type == "SklearnTfidfTransformer":
        counts = write.table()
        there = write("Greater", counts, 0.0)
        damped = write("Add", write("Log", write("Where", there, counts, 1.0)), 1.0)
        width = write.operator.inputs[0].type.shape[1]
        write.operator.inputs = [write.variable(write("Where", there, damped, 0.0), width)]
        write.operator.raw_operator = plain = copy(step)
        plain.sublinear_tf = False
    write.as_registered(write.operator.type)
