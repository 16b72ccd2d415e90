"""A length of the example that was written into the graph, where every sample has lengths of its own.

A number of the candidate is replaced by the length that a sample has in one of its axes: what heals this sample with
its length, and the others with theirs, was the length of the example.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array, Batch, Tensors
from likewise.explain import experiment, trace
from likewise.explain.case import ELSEWHERE, Case, Explained, probe
from likewise.models.onnx import edits
from likewise.models.onnx.inside import Constant, constants

if TYPE_CHECKING:
    from onnx import ModelProto

Axis = tuple[str, int]

MOST_NUMBERS = 32
"""Different numbers of a graph that are tried."""

PATIENCE = 0.2
"""The part of the time left that this may take."""

REMEDY = (
    "Do not make Python numbers of shapes in forward (int(x.shape[0]), len(x)): compute with x.shape as a tensor, or "
    "use what needs no length (mean instead of a sum that is divided), and export again"
)


@probe(
    "shape-specialization",
    when=lambda case: case.graph() is not None and not case.required.batch.stacked and len(case.others) > 1,
)
def frozen_length(case: Case) -> Explained | None:
    """Write each sample's own length in the place of a number of the graph."""
    proto, case_lengths = case.editable(), _lengths(case, case.required.batch)
    others = [(other, _lengths(case, other.batch)) for other in case.others]
    free = [axis for axis, length in case_lengths.items() if any(found.get(axis) != length for _, found in others)]
    if proto is None or not free:
        return None
    numbers = _whole_numbers(proto)
    tried = ((value, axis) for value in list(numbers)[:MOST_NUMBERS] for axis in free)
    sample = case.required
    for value, axis in experiment.searching(case, list(tried), patience=PATIENCE):
        if case_lengths[axis] == value:
            continue
        used = numbers[value]
        if not _agrees(case, proto, used, case_lengths[axis], sample.batch, sample.reference):
            continue
        right = [_agrees(case, proto, used, found[axis], other.batch, other.reference) for other, found in others]
        if sum(right) < ELSEWHERE * len(right):
            continue
        place = trace.place_of(*{c.node: proto.graph.node[c.node] for c in used}.values())
        name, number = axis
        return Explained(
            "shape-specialization",
            place,
            f"{value:g} in {place} is the length that the example had: with the length of axis {number} of {name!r} in "
            f"its place, {sum(right) + 1} of {len(right) + 1} samples looked at agree, whatever their length",
            REMEDY,
            covered=sample.failing,
            simplicity=1,
        )
    return None


def _lengths(case: Case, batch: Batch) -> dict[Axis, int]:
    """How long the inputs of the candidate are for a sample."""
    fed = case.fed("candidate", batch)
    return {(name, axis): length for name, array in fed.items() for axis, length in enumerate(array.shape)}


def _whole_numbers(proto: ModelProto) -> dict[float, list[Constant]]:
    """Single whole numbers that nodes take, with their uses."""
    found: dict[float, list[Constant]] = {}
    for constant in constants(proto):
        values = constant.values
        if isinstance(constant.place, int) and values.size == 1 and values.dtype.kind in "iuf":
            value = float(values.item())
            if value > 1 and value == np.round(value):
                found.setdefault(value, []).append(constant)
    return found


def _agrees(case: Case, proto: ModelProto, used: list[Constant], length: int, batch: Batch, reference: Tensors) -> bool:
    """Does a sample agree with this length in the place of the number?"""
    target = edits.copied(proto)
    for tensor, values in _stored(used).items():
        edits.set_constant(target.graph, tensor, np.full_like(values, length))
    with case.opened("candidate", target=target) as side:
        given = None if side is None else case.ask(side, batch)
    return given is not None and bool(case.agreeing(batch, reference, given).all())


def _stored(used: list[Constant]) -> Mapping[str, Array]:
    return {constant.tensor: constant.values for constant in used}


EXTENSION = frozen_length
