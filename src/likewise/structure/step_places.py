"""Which step of a scikit-learn pipeline a node of the graph belongs to.

The output of every step is computed and looked for among the tensors of the graph: a node before such a
tensor, and not before the one of an earlier step, belongs to that step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from likewise.cases import Case
from likewise.contracts.data import Array, Tensors
from likewise.structure import trials

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

ALIKE = 1e-3
"""Tensors are the same step's output if they differ by at most this part of their largest value."""


def steps_of(case: Case) -> list[tuple[str, Any]]:
    """The named steps of the reference, in order; none where it is no pipeline."""
    native = case.native("reference")
    if case.framework("reference") != "sklearn" or not hasattr(native, "steps"):
        return []
    return [(name, step) for name, step in native.steps if step not in (None, "passthrough")]


def step_of(case: Case, proto: ModelProto, node: NodeProto | None) -> str | None:
    """The step a node belongs to, or the class of an estimator without steps; None where it cannot be told."""
    if case.framework("reference") != "sklearn":
        return None
    steps = steps_of(case)
    if not steps:
        return type(case.native("reference")).__name__
    if len(steps) == 1:
        return steps[0][0]
    if node is None:
        return None
    key = "step boundaries"
    if key not in case.memory:
        case.memory[key] = _boundaries(case, proto)
    boundaries: dict[str, str] = case.memory[key]
    for name, tensor in boundaries.items():
        if node.name in _ancestors(proto, tensor):
            return name
    # A node behind the last step found belongs to the last step only if no step in between is missing.
    return steps[-1][0] if len(boundaries) == len(steps) - 1 else None


def _boundaries(case: Case, proto: ModelProto) -> dict[str, str]:
    """For each step but the last, the tensor that holds its output."""
    import numpy as np

    positions = trials.few_rows(case)
    batch = trials.picked(case, positions)
    types = trials.types_of(case)
    floats = [name for node in proto.graph.node for name in node.output if types.get(name) in (1, 11)]
    seen = trials.seen_inside(case, "candidate", proto, floats, types, positions)
    if seen is None:
        return {}
    native, found = case.native("reference"), {}
    for count, (name, _) in enumerate(native.steps[:-1], start=1):
        told = trials.answered(case, "reference", target=native[:count], batch=batch)
        if told is None:
            continue
        for array in told.values():
            if array.dtype.kind == "f" and (tensor := _alike(np.asarray(array, np.float64), seen, floats)) is not None:
                found[name] = tensor
    return found


def _alike(array: Array, tensors: Tensors, names: list[str]) -> str | None:
    import numpy as np

    for name in names:
        other = tensors.get(name)
        if other is not None and other.shape == array.shape:
            gap = np.abs(other.astype(np.float64) - array)
            if np.nanmax(gap, initial=0.0) <= ALIKE * max(float(np.nanmax(np.abs(array), initial=0.0)), 1e-12):
                return name
    return None


def _ancestors(proto: ModelProto, tensor: str) -> set[str]:
    """The names of the nodes that a tensor is computed by."""
    makers: Mapping[str, NodeProto] = {name: node for node in proto.graph.node for name in node.output}
    queue, seen = [tensor], set[str]()
    while queue:
        node = makers.get(queue.pop())
        if node is not None and node.name not in seen:
            seen.add(node.name)
            queue.extend(node.input)
    return seen
