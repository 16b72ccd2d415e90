"""A reference whose stored numbers have gone through a narrower type, or that computes in a wider one.

A graph holds what the exporter's type leaves of each weight. Given the same weights, a reference that
then answers like the candidate shows that the rounding of the weights was the difference.
"""

from __future__ import annotations

import copy
from typing import Any

from likewise.cases import Case
from likewise.contracts.data import Array

LARGEST_COPY = 512 * 2**20
DEEPEST = 12


def rounded(case: Case, dtype: str, *, clip: float | None = None, only: Any = None) -> Any:
    """The reference as a live object with weights rounded to a type; None where it cannot be copied.

    `clip` bounds the weights first, as some converters do. `only` is a part of the reference: the rest
    keeps its weights.
    """
    native, framework = case.native("reference"), case.framework("reference")
    if native is None:
        return None
    if framework == "torch":
        return _rounded_module(native, dtype, clip)
    if framework == "onnx":
        return _rounded_graph(case, dtype, clip)
    if framework == "sklearn":
        return _rounded_estimator(native, dtype, clip, only)
    return None


def doubled(case: Case) -> Any:
    """The reference as a live object that computes in float64; None where it cannot be made to."""
    native = case.native("reference")
    if native is None:
        return None
    if case.framework("reference") == "torch":
        twin = copied_module(native)
        return None if twin is None else twin.double()
    if case.framework("reference") == "onnx":
        from likewise.structure import graph_edits, widening

        proto = graph_edits.editable(case.graph("reference"))
        if proto is None:
            return None
        found = widening.runnable(proto, widening.Widening(graph_edits.tensor_types(proto)))
        return None if found is None else found[0]
    return None


def copied_module(module: Any) -> Any:
    """A module of its own with the same weights; None where it is too large, or refuses to be copied."""
    size = sum(tensor.nbytes for tensor in module.state_dict().values() if hasattr(tensor, "nbytes"))
    if size > LARGEST_COPY:
        return None
    try:
        return copy.deepcopy(module)
    except Exception:  # noqa: BLE001 - modules of users raise anything; without a copy there is no experiment
        return None


def _rounded_module(module: Any, dtype: str, clip: float | None) -> Any:
    import torch

    twin = copied_module(module)
    if twin is None:
        return None
    kind = getattr(torch, dtype)
    with torch.no_grad():
        for tensor in twin.state_dict().values():
            if hasattr(tensor, "is_floating_point") and tensor.is_floating_point():
                bounded = tensor if clip is None else tensor.clamp(-clip, clip)
                tensor.copy_(bounded.to(kind).to(tensor.dtype))
    return twin


def _rounded_graph(case: Case, dtype: str, clip: float | None) -> Any:
    import numpy as np
    from onnx import numpy_helper

    from likewise.structure import graph_edits

    proto = graph_edits.editable(case.graph("reference"))
    if proto is None:
        return None
    for name, array in graph_edits.constants(proto.graph).items():
        if array.dtype in (np.float32, np.float64):
            graph_edits.set_constant(proto.graph, name, _rounded_array(array, dtype, clip))
    for node in graph_edits.all_nodes(proto.graph):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                for tensor in attribute.g.initializer:
                    array = numpy_helper.to_array(tensor)
                    if array.dtype in (np.float32, np.float64):
                        rounded_tensor = numpy_helper.from_array(_rounded_array(array, dtype, clip), tensor.name)
                        tensor.CopyFrom(rounded_tensor)
    return proto


def _rounded_estimator(estimator: Any, dtype: str, clip: float | None, only: Any) -> Any:
    try:
        # A part that is copied together with the whole can be told apart in the copy.
        twin, part = copy.deepcopy((estimator, only))
    except Exception:  # noqa: BLE001 - as above
        return None
    _round_inside(twin if only is None else part, dtype, clip, set(), 0)
    return twin


def _round_inside(owner: Any, dtype: str, clip: float | None, seen: set[int], depth: int) -> None:
    """Round every number that an object holds, directly or in what it holds."""
    if id(owner) in seen or depth > DEEPEST or not hasattr(owner, "__dict__"):
        return
    seen.add(id(owner))
    held = vars(owner)
    for name, value in list(held.items()):
        held[name] = _round_value(value, dtype, clip, seen, depth)
    if "_fit_method" in held and "_fit_X" in held:
        # The search tree of a neighbours model holds its own copy of the points.
        held["_fit_method"], held["_tree"] = "brute", None


def _round_value(value: Any, dtype: str, clip: float | None, seen: set[int], depth: int) -> Any:
    import numpy as np

    if isinstance(value, np.ndarray):
        if value.dtype == object and value.size <= 10_000:
            for index, entry in np.ndenumerate(value):
                value[index] = _round_value(entry, dtype, clip, seen, depth + 1)
            return value
        return _rounded_array(value, dtype, clip) if value.dtype.kind == "f" else value
    if isinstance(value, float) and not isinstance(value, bool):
        return float(_rounded_array(np.array(value), dtype, clip))
    if isinstance(value, list):
        return [_round_value(entry, dtype, clip, seen, depth + 1) for entry in value]
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_round_value(entry, dtype, clip, seen, depth + 1) for entry in value)
    if type(value) is dict:
        return {key: _round_value(entry, dtype, clip, seen, depth + 1) for key, entry in value.items()}
    if hasattr(value, "data") and hasattr(value, "tocsr"):
        value.data = _rounded_array(value.data, dtype, clip) if value.data.dtype.kind == "f" else value.data
        return value
    # Kernels of Gaussian processes and some estimators can be called; functions and classes hold no numbers.
    if not isinstance(value, type) and (not callable(value) or hasattr(value, "get_params")):
        _round_inside(value, dtype, clip, seen, depth + 1)
    return value


def _rounded_array(array: Array, dtype: str, clip: float | None) -> Array:
    import numpy as np

    from likewise.casting import numpy_dtype

    bounded = array if clip is None else np.clip(array, -clip, clip)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = bounded.astype(numpy_dtype(dtype)).astype(array.dtype)
    # What the type cannot hold at all is left alone: limits and sentinels are no weights.
    return np.where(np.isfinite(narrow), narrow, bounded)
