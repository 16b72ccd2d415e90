"""A length of the example that was written into the graph, which other lengths have come to since.

Rows are given other lengths, until both models agree at one of them. Where every sample has lengths of its own, a
number of the candidate is replaced by the length that a sample has in one of its axes: what heals this sample with its
length, and the others with theirs, was the length of the example.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from likewise.compare.variations.axes import Axis, at_length, axes_of
from likewise.contracts.data import Batch, Tensors
from likewise.contracts.report import Place
from likewise.contracts.verdict import Outcome
from likewise.data.columns import ArrayColumns
from likewise.explain import experiment, trace
from likewise.explain.case import ELSEWHERE, Case, Explained, probe
from likewise.explain.experiment import Change, Trial
from likewise.explain.sizes import MOST, numbers_in, sizes_told
from likewise.models.onnx import edits
from likewise.models.onnx.inside import Constant, constants

if TYPE_CHECKING:
    from onnx import ModelProto

ROWS = 32
"""Rows that are given other lengths."""

MOST_NUMBERS = 32
"""Different numbers of a graph that are tried."""

PATIENCE = 0.2
"""The part of the time left that this may take."""

REMEDY = (
    "Do not make Python numbers of shapes in forward (int(x.shape[0]), len(x)): compute with x.shape as a tensor, or "
    "use what needs no length (mean instead of a sum that is divided), and export again"
)


def _plausible(case: Case) -> bool:
    if case.sample is None or case.candidate is None or not isinstance(case.sample.batch.inputs, ArrayColumns):
        return False
    suites = case.verdict.suites
    elsewhere = any(s.kind == "shape" and s.blocks and s.outcome is Outcome.FAIL for s in suites)
    return bool((case.sample.failing.any() or elsewhere) and _axes(case))


@probe("shape-specialization", when=_plausible, needs_answers=False)
def other_lengths(case: Case) -> Explained | None:
    """Give both models inputs of other lengths, and see where they agree; of one step order and sums tell nothing."""
    batch = Trial.few(case, ROWS).batch
    for axis in _axes(case):
        near = sorted(range(2, 2 * axis.length), key=lambda size: abs(size - axis.length))[:MOST]
        sizes = dict.fromkeys((*near[:3], axis.length // 2, *numbers_in(case, lengths=True), *near))
        tried = experiment.searching(case, [size for size in sizes if size > 1], patience=PATIENCE)
        agreed = {size: _agree(case, at_length(batch, axis, size, from_others=True)) for size in tried}
        right = [size for size, agrees in agreed.items() if agrees is True]
        wrong = [size for size, agrees in agreed.items() if agrees is False]
        # What only longer inputs have, such as padding, shorter ones do without: that is no length of an example.
        if len(right) != 1 or len(wrong) < 2 or min(wrong) > right[0]:
            continue
        name, number = axis.places[0]
        nodes, told = _written(case, right[0], axis.length)
        return Explained(
            "shape-specialization",
            Place(name, (f"axis {number}", f"right only at length {right[0]}", *told), columns=(name,), nodes=nodes),
            f"with inputs of length {right[0]} both models agree; at lengths {sizes_told(wrong)} they do not (this "
            f"data has {axis.length})",
            f"{REMEDY}, or deploy it for length {right[0]} only",
            simplicity=1,
        )
    return None


def _axes(case: Case) -> tuple[Axis, ...]:
    return axes_of(case.side("candidate").feed, case.required.batch)


def _agree(case: Case, batch: Batch) -> bool | None:
    """Do both models agree on these rows? A candidate that refuses them does not; None if the reference does."""
    ours, theirs = case.ask("reference", batch), case.ask("candidate", batch)
    if ours is None:
        return None
    return theirs is not None and bool(case.agreeing(batch, ours, theirs).all())


def _written(case: Case, length: int, instead: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The nodes that take the length, or the place of the last step, as a number; and that in words."""
    proto = case.editable()
    numbers = {} if proto is None else _whole_numbers(proto)
    for value in (length, length - 1):
        used = numbers.get(float(value), [])
        if proto is None or not used:
            continue
        target = _with_number(proto, used, value - length + instead)
        effect = experiment.run(case, Change(target=target))
        if effect is not None and effect.explains:
            place = trace.place_of(*{entry.node: proto.graph.node[entry.node] for entry in used}.values())
            return place.nodes, (f"{value} in {place}",)
    return (), ()


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


def _lengths(case: Case, batch: Batch) -> dict[tuple[str, int], int]:
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
    with case.opened("candidate", target=_with_number(proto, used, length)) as side:
        given = None if side is None else case.ask(side, batch)
    return given is not None and bool(case.agreeing(batch, reference, given).all())


def _with_number(proto: ModelProto, used: list[Constant], number: int) -> ModelProto:
    target = edits.copied(proto)
    for constant in used:
        edits.set_constant(target.graph, constant.tensor, np.full_like(constant.values, number))
    return target


EXTENSIONS = (other_lengths, frozen_length)
