"""The thresholds of trees as values of the data's own columns: where a row turns the other way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from likewise.contracts.comparison import Fed
from likewise.contracts.data import Array
from likewise.models.onnx import trees as onnx
from likewise.models.onnx.lineage import Graph, Trace
from likewise.models.sklearn.walk import steps_before
from likewise.models.trees import composed
from likewise.models.trees.ensemble import Ensemble

if TYPE_CHECKING:
    from onnx import ModelProto


DEEPEST = 64
"""Levels of a tree that are looked at."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A threshold at which a column decides. `direct`: the trees are given the column as it is, not scaled."""

    column: str
    index: int | None
    value: float
    where: str
    direct: bool


def cuts(native: Any, fed: Mapping[str, Fed], *, most: int, seed: int) -> tuple[Cut, ...]:
    """Thresholds of an open model in the data's terms, those next to the roots first; none where that is not known.

    `fed` tells what each input of the model is made of. A threshold behind a step that cannot be undone
    (an encoder, a projection) is left out.
    """
    import numpy as np

    found = _of_graph(native, fed) if _is_graph(native) else _of_model(native, fed)
    if found is None:
        return ()
    ensemble, known = found
    nodes = np.flatnonzero((ensemble.feature >= 0) & (ensemble.group < 0) & np.isfinite(ensemble.threshold))
    order = np.lexsort((np.random.default_rng(seed).random(len(nodes)), _depths(ensemble)[nodes]))
    chosen: dict[tuple[str, int | None, float], Cut] = {}
    for node in nodes[order].tolist():
        trace = known(node)
        if trace is None or trace.column is None or not trace.factor or len(chosen) >= most:
            continue
        value = trace.back(float(ensemble.threshold[node]))
        column, index = fed[trace.input][trace.column]
        cut = Cut(column, index, value, ensemble.name(node), trace.direct)
        chosen.setdefault((cut.column, cut.index, cut.value), cut)
    return tuple(chosen.values())


def _is_graph(native: Any) -> bool:
    return type(native).__name__ == "ModelProto"


def _of_graph(proto: ModelProto, fed: Mapping[str, Fed]) -> tuple[Ensemble, Any] | None:
    held = onnx.read(proto) if onnx.holds_trees(proto) else None
    if held is None:
        return None
    graph = Graph(proto.graph, {name: len(features) for name, features in fed.items()})
    trees = held.ensemble

    def known(node: int) -> Trace | None:
        site = held.sites[int(trees.place[trees.tree[node]])]
        column, columns = int(trees.column[node]), graph.layouts.get(site.source, ())
        return columns[column] if column < len(columns) else None

    return trees, known


def _of_model(native: Any, fed: Mapping[str, Fed]) -> tuple[Ensemble, Any] | None:
    if native is None:
        return None
    before, model = steps_before(native)
    trees = None if before else composed.trees_of(model)
    if trees is None or not trees.trees:
        return None
    columns = [Trace(name, column) for name, features in fed.items() for column in range(len(features))]

    def known(node: int) -> Trace | None:
        column = int(trees.feature[node])
        return columns[column] if column < len(columns) else None

    return trees, known


def _depths(ensemble: Ensemble) -> Array:
    """How far each node is from its root."""
    import numpy as np

    depths = np.full(len(ensemble.feature), DEEPEST)
    level = ensemble.roots
    for depth in range(DEEPEST):
        depths[level] = depth
        inner = level[ensemble.feature[level] >= 0]
        if not len(inner):
            break
        level = np.concatenate([ensemble.left[inner], ensemble.right[inner]])
        level = level[depths[level] == DEEPEST]
    return depths
