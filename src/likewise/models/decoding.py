"""Answers that are not arrays yet, and what a name says about them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from likewise.contracts.data import Array
from likewise.contracts.models import Kind, Label
from likewise.errors import ModelError

NAMED_KINDS = (
    (re.compile(r"prob", re.I), Kind.PROBABILITY),
    (re.compile(r"score|logit|margin|decision", re.I), Kind.SCORE),
    (re.compile(r"distance", re.I), Kind.DISTANCE),
    (re.compile(r"embed", re.I), Kind.EMBEDDING),
)
LABEL_NAME = re.compile(r"label|class|cluster|pred", re.I)


def kind_of(name: str, dtype: str | None) -> Kind | None:
    """What an output's name and type say about its meaning, or None if they say nothing."""
    if dtype in ("string", "object") or (dtype or "").startswith(("<U", "str")):
        return Kind.LABEL
    if (dtype or "").startswith(("int", "uint", "bool")):
        return Kind.LABEL if LABEL_NAME.search(name) else None
    return next((kind for pattern, kind in NAMED_KINDS if pattern.search(name)), None)


def array_of_dicts(
    rows: Sequence[Mapping[Any, float]], classes: Sequence[Label] | None
) -> tuple[Array, tuple[Label, ...]]:
    """One row a dictionary, one column a class.

    A class that a row leaves out becomes NaN, never 0.0: zero would be an answer, and the
    model gave none.
    """
    import numpy as np

    if classes is None:
        classes = sorted({key for row in rows for key in row}, key=lambda key: (str(type(key)), key))
    known = set(classes)
    for row in rows:
        if unknown := [key for key in row if key not in known]:
            raise ModelError(
                f"a row answers for class {unknown[0]!r}, which the model does not declare; "
                f"its classes are {list(classes)!r}"
            )
    nan = float("nan")
    table = [[row.get(label, nan) for label in classes] for row in rows]
    return np.array(table, dtype=np.float64).reshape(len(rows), len(classes)), tuple(classes)


def widened(array: Array) -> Array:
    """bfloat16 and its narrower kin as float32, which holds all their values and which numpy can reckon with."""
    import numpy as np

    exotic = array.dtype.kind == "V" and array.dtype.name.startswith(("bfloat", "float"))
    return array.astype(np.float32) if exotic else array


def arrays_of_list(name: str, tensors: Sequence[Any]) -> dict[str, Array]:
    """A list with one tensor a target: stacked behind the row axis where the shapes allow it."""
    import numpy as np

    arrays = [np.asarray(tensor) for tensor in tensors]
    if not arrays:
        raise ModelError(f"output {name!r} is an empty sequence")
    if all(array.ndim >= 1 and array.shape == arrays[0].shape for array in arrays):
        return {name: np.stack(arrays, axis=1)}
    return {f"{name}.{index}": array for index, array in enumerate(arrays)}
