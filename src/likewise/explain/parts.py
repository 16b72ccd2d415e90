"""What a part of a graph is for, by where it stands and what it does: at an input, at an output, over the rows.

That two graphs differ in some nodes says where; a cause of the list says what that is to somebody who has never seen
the graph: a layout, a label, a length that was frozen, a layer in training mode.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from likewise.contracts.models import Kind
from likewise.explain.case import Case
from likewise.explain.splice import Beside, Culprit
from likewise.models.onnx import edits
from likewise.models.onnx.inside import Opened
from likewise.models.onnx.walk import RANDOM

LAYOUT = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "Split", "Concat", "Identity"}
"""Operators that move numbers and change none."""

SHAPES = {"Shape", "Size", "Constant", "ConstantOfShape", "Cast"}
"""Operators that go along with others."""

ARITHMETIC = {"Add", "Sub", "Mul", "Div", "Neg"}
"""Operators that scale and move numbers."""

BOUNDING = {"Clip", "Min", "Max"}

MASKING = {"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Where", "Floor", "Bernoulli", "Dropout"}
"""What makes of thrown dice whether something is kept: a dropout, where noise is added as it is."""

QUANTISED = re.compile("Quantize|Integer|QLinear|QGemm")

NORMALISING = {"BatchNormalization", "InstanceNormalization"}

PICTURES = 4
"""Axes of an input from which on it is a picture, or many."""

MOST_NODES = 40
"""A part of more nodes is not for one thing."""


def purpose(case: Case, culprit: Culprit) -> str | None:
    """The cause by which people know what the part does; None where it is known by its nodes only."""
    graft, both = culprit.graft, culprit.beside
    if graft.how in ("inserted", "appended"):
        # What is missing stands at the end only where it was put behind the last node.
        found = _at_the_rim(case, both.twin, graft.others, graft.tensor if graft.how == "appended" else "")
        return {"preprocessing-differs": "preprocessing-dropped", "output-kind": None}.get(found or "", found)
    ours = _part(both.candidate, graft.nodes, graft.tensor, both.equal)
    wanted = both.twin.node(graft.others[-1]).output[0] if graft.others else ""
    theirs = _part(both.twin, graft.others, wanted, both.given) if wanted else ()
    operators = [
        {graph.node(index).op_type for index in part} for graph, part in ((both.candidate, ours), (both.twin, theirs))
    ]
    mine, yours = operators
    if mine & RANDOM and not yours & RANDOM:
        return "training-mode" if mine & MASKING else "nondeterminism"
    if _across_rows(case, both.candidate, ours) and not _across_rows(case, both.twin, theirs):
        return "training-mode" if yours & NORMALISING else "batch-dependence"
    if _of_fixed_length(both.candidate, ours) and "ReduceMean" in yours:
        return "shape-specialization"
    if graft.how == "bypassed":
        return _at_the_rim(case, both.candidate, ours, graft.tensor)
    return "wrong-wiring" if _read_otherwise(both, ours, theirs) else None


def as_missing(culprit: Culprit) -> Culprit:
    """The same told as a part that is missing, where all the difference is that a node reads what comes before it."""
    wired = [entry for entry in culprit.differing if entry.kind == "wiring" and entry.value]
    if not wired or len(wired) < len(culprit.differing):
        return culprit
    both, graft = culprit.beside, culprit.graft
    between: dict[int, None] = {}
    for entry in wired:
        if both.given.get(entry.value) in both.candidate.readers:  # it is there, and others read it
            return culprit
        same = set(both.equal.get(entry.name, ()))
        cone = both.twin.cone(str(entry.value), same) if entry.value in both.twin.makers and same else None
        if cone is None or cone.inputs or not cone.sources:
            return culprit
        between |= dict.fromkeys(both.twin.computing_in(cone))
    return Culprit(replace(graft, how="inserted", others=tuple(between)), both) if between else culprit


def is_about_integers(culprit: Culprit) -> bool:
    """Is any node of the candidate's part one that a quantiser writes? What is missing is missing in floats too."""
    graft, graph = culprit.graft, culprit.beside.candidate
    nodes = [graph.node(index) for index in graft.nodes]
    return graft.how not in ("inserted", "appended") and any(QUANTISED.search(node.op_type) for node in nodes)


def only_moves(culprit: Culprit) -> bool:
    """Is it about how numbers lie, as another exporter writes it, and about none of them?"""
    sides = (culprit.beside.candidate, culprit.graft.nodes), (culprit.beside.twin, culprit.graft.others)
    missing = culprit.graft.how in ("inserted", "appended")
    looked_at = sides[1:] if missing else sides
    return all(graph.node(index).op_type in LAYOUT | SHAPES for graph, nodes in looked_at for index in nodes)


def frozen(graph: Opened, tensor: str) -> str:
    """The cause where a constant stands for what the reference computes: from values, from lengths, or from neither."""
    queue, seen, cause = [tensor], set[str](), "operator-attribute"
    while queue:
        name = queue.pop()
        if name in graph.inputs:
            return "traced-branch"
        if name in seen or name not in graph.makers:
            continue
        seen.add(name)
        index = graph.makers[name]
        if graph.node(index).op_type in ("Shape", "Size"):
            cause = "shape-specialization"
        else:
            queue += graph.reads[index]
    return cause


def _part(graph: Opened, nodes: Sequence[int], tensor: str, known: Collection[str]) -> tuple[int, ...]:
    """These nodes with all that stands between them and what both graphs have."""
    given = {name for name in known if name != tensor and name in graph.makers}
    cone = graph.computing_in(graph.cone(tensor, given)) if tensor in graph.makers else ()
    return cone if len(nodes) <= len(cone) <= MOST_NODES else tuple(nodes)


def _read_otherwise(both: Beside, ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Does each of two parts read something that both graphs have and the other one does not?"""
    mine = {name for index in ours for name in both.candidate.reads[index]}
    yours = {name for index in theirs for name in both.twin.reads[index]}
    known = {other: name for name, others in both.equal.items() for other in others}
    shared = set(known.values())
    held, wanted = mine & shared, {known[name] for name in yours if name in known}
    return bool(held - wanted) and bool(wanted - held)


def _across_rows(case: Case, graph: Opened, part: Sequence[int]) -> bool:
    """Does a node take means or sums over the rows that are asked together?"""
    if not case.required.batch.stacked:
        return False
    return any(0 in _axes(graph, index) for index in part if graph.node(index).op_type.startswith("Reduce"))


def _axes(graph: Opened, index: int) -> tuple[int, ...]:
    node, held = graph.node(index), graph.constants_of(index).get(1)
    if held is not None:
        return tuple(int(axis) for axis in held.values.ravel())
    found: Any = edits.attribute(node, "axes", ())
    # Without axes all are meant, unless they are computed.
    return tuple(found) if found else (0,) if len(node.input) < 2 else ()


def _of_fixed_length(graph: Opened, part: Sequence[int]) -> bool:
    """Is a sum divided by a number that is written down, as by the length of an example?"""
    operators = {graph.node(index).op_type for index in part}
    divided = [graph.constants_of(i) for i in part if graph.node(i).op_type == "Div"]
    numbers = [held[1].values for held in divided if 1 in held and held[1].values.size == 1]
    return "ReduceSum" in operators and any(float(value.item()) == np.round(value.item()) for value in numbers)


def _at_the_rim(case: Case, graph: Opened, part: Sequence[int], tensor: str) -> str | None:
    """The cause where the reference has nothing, by what stands directly at an input or at an output."""
    operators = {graph.node(index).op_type for index in part} - SHAPES
    kinds = {spec.candidate: spec.kind for spec in case.specs}
    if kinds.get(tensor) is Kind.LABEL:
        return "label-mapping"
    if tensor in kinds:
        return "output-layout" if operators <= LAYOUT else "output-kind" if operators <= BOUNDING else None
    read = {name for index in part for name in graph.reads[index]} & graph.inputs
    if not read or not operators <= LAYOUT | ARITHMETIC | BOUNDING:
        return None
    ranks = _ranks(graph)
    if any(ranks.get(name, 0) >= PICTURES for name in read):
        return "input-layout"
    if operators <= LAYOUT:
        return "feature-order" if all(ranks.get(name) == 2 for name in read) else "input-layout"
    return "preprocessing-differs" if not operators & LAYOUT else None


def _ranks(graph: Opened) -> Mapping[str, int]:
    return {value.name: len(value.type.tensor_type.shape.dim) for value in graph.proto.graph.input}
