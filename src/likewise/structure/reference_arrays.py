"""The arrays a reference holds, and the one that a stored weight stands for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from likewise.cases import Case
from likewise.contracts.data import Array
from likewise.structure import graph_edits, modules, parameters

RELATED = 0.98
"""Correlation from which on two arrays of the same shape are one weight, however it is scaled."""

FEWEST = 12
"""Values that it takes to speak of a correlation."""


def arrays_of(case: Case) -> list[tuple[str, Array]]:
    """Every array that the reference holds, by the name it has there."""
    native, framework = case.native("reference"), case.framework("reference")
    if native is None:
        return []
    if framework == "onnx":
        found = list(graph_edits.constants(case.graph("reference").graph).items())
    elif framework == "torch":
        found = [(entry.path, entry.values) for entry in modules.parameters_of(native)]
    elif framework == "sklearn":
        found = [(entry.path, entry.values) for entry in parameters.parameters(native, ())]
    else:
        return []
    return [(name, array) for name, array in found if array.ndim and array.dtype.kind == "f"]


def counterpart(
    values: Array, within: Array, arrays: Sequence[tuple[str, Array]], *, alike: bool = True
) -> tuple[str, Array] | None:
    """The array that a stored weight stands for, laid out like it; None where none does.

    The nearest that lies `within` the rounding; failing that, if `alike`, the one that it is a scaled copy of.
    """
    import numpy as np

    close: tuple[float, str, Array] | None = None
    similar: tuple[float, str, Array] | None = None
    centred = values - values.mean()
    size = float(np.linalg.norm(centred))
    for name, array in arrays:
        for form in _laid_out(array, values.shape):
            gap = np.abs(form - values)
            if (gap <= within).all() and (close is None or float(gap.mean()) < close[0]):
                close = (float(gap.mean()), name, form)
            other = form - form.mean()
            norm = size * float(np.linalg.norm(other))
            related = float((centred * other).sum() / norm) if norm and values.size >= FEWEST else 0.0
            if related >= RELATED and (similar is None or related > similar[0]):
                similar = (related, name, form)
    best = close or (similar if alike else None)
    return None if best is None else (best[1], best[2])


def proportional(values: Array, arrays: Sequence[tuple[str, Array]]) -> tuple[str, Array] | None:
    """The array of the same length that a stored one is a multiple of, up to two hundredths."""
    import numpy as np

    best: tuple[float, str, Array] | None = None
    size = float(np.linalg.norm(values))
    for name, array in arrays:
        wide = np.asarray(array, dtype=np.float64)
        power = float((wide * wide).sum())
        if wide.shape == values.shape and power and size:
            left = float(np.linalg.norm(values - (values * wide).sum() / power * wide)) / size
            if left <= 0.02 and (best is None or left < best[0]):
                best = (left, name, wide)
    return None if best is None else (best[1], best[2])


def _laid_out(array: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    import numpy as np

    wide = np.asarray(array, dtype=np.float64)
    if wide.shape == shape:
        yield wide
    if wide.ndim == 2 and wide.T.shape == shape and wide.shape[0] > 1:
        yield wide.T
    if wide.size == int(np.prod(shape)) and wide.shape != shape and wide.T.shape != shape:
        yield wide.reshape(shape)
