"""The trees of any open model, wherever they stand in it; its thresholds in the data's terms; it with other trees."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.comparison import Fed
from likewise.contracts.data import Array
from likewise.contracts.values import dataclass
from likewise.models import catboost, lightgbm, xgboost
from likewise.models.onnx import trees as graphs
from likewise.models.onnx.guess import Graph, Trace
from likewise.models.sklearn import trees as sklearn
from likewise.models.sklearn.walk import Role, parts, steps_before, with_model
from likewise.models.trees.ensemble import Ensemble, joined

if TYPE_CHECKING:
    from onnx import ModelProto


DEEPEST = 64
"""Levels of a tree that are looked at."""


def _boosted(model: Any) -> ModuleType | None:
    """What reads the trees of a booster; None for any other model."""
    return next((home for home in (xgboost, lightgbm, catboost) if home.is_model(model)), None)


def trees_of(model: Any) -> Ensemble | None:
    """The trees of a model that sees its inputs as they are; None if there are none, or not in a known form."""
    found: Ensemble | None
    if (home := _boosted(model)) is not None:
        found = home.read_trees(model)
        return found
    if (found := sklearn.read(model)) is not None:
        return found
    members = []
    for part in parts(model):
        if part.role is not Role.MEMBER:
            continue
        before, inner = steps_before(part.estimator)
        held = trees_of(inner)
        if before and held is not None:
            return None  # what its trees are given is not known
        if held is not None:
            members.append((held, part.columns))
    return joined(members) if members else None


def without_linear_leaves(native: Any) -> Any:
    """The same LightGBM model with the constants of its leaves only, in the composition it stands in; or None."""
    _, model = steps_before(native)
    return with_model(native, lightgbm.without_linear_leaves) if lightgbm.is_model(model) else None


def cut_to(native: Any, trees: int) -> Any:
    """A copy of a booster, in the composition it stands in, that uses its first trees only; None if it cannot."""
    _, model = steps_before(native)
    home = _boosted(model)
    cut = None if home is None else home.cut_to(model, trees)
    return None if cut is None else with_model(native, lambda _: cut)


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
    found = _of_graph(native, fed) if _is_graph(native) else _of_model(native, fed)
    if found is None:
        return ()
    ensemble, traces = found
    nodes = np.flatnonzero((ensemble.feature >= 0) & (ensemble.group < 0) & np.isfinite(ensemble.threshold))
    order = np.lexsort((np.random.default_rng(seed).random(len(nodes)), _depths(ensemble)[nodes]))
    chosen: dict[tuple[str, int | None, float], Cut] = {}
    for node in nodes[order].tolist():
        feature = int(ensemble.feature[node])
        trace = traces[feature] if feature < len(traces) else None
        if trace is None or trace.column is None or not trace.factor or len(chosen) >= most:
            continue
        value = trace.back(float(ensemble.threshold[node]))
        column, index = fed[trace.input][trace.column]
        cut = Cut(column, index, value, ensemble.name(node), trace.direct)
        chosen.setdefault((cut.column, cut.index, cut.value), cut)
    return tuple(chosen.values())


def _is_graph(native: Any) -> bool:
    return type(native).__name__ == "ModelProto"


def _of_graph(proto: ModelProto, fed: Mapping[str, Fed]) -> tuple[Ensemble, list[Trace | None]] | None:
    """The trees of a graph, and where the columns that they see come from."""
    held = graphs.read(proto) if graphs.holds_trees(proto) else None
    if held is None:
        return None
    layouts = Graph(proto.graph, {name: len(features) for name, features in fed.items()}).layouts
    traces: list[Trace | None] = []
    for source in held.sources:
        known, width = list(layouts.get(source, ())), held.widths[source]
        traces += (known + [None] * width)[:width]
    return held.ensemble, traces


def _of_model(native: Any, fed: Mapping[str, Fed]) -> tuple[Ensemble, list[Trace | None]] | None:
    if native is None:
        return None
    before, model = steps_before(native)
    trees = None if before else trees_of(model)
    if trees is None or not trees.trees:
        return None
    return trees, [Trace(name, column) for name, features in fed.items() for column in range(len(features))]


def _depths(ensemble: Ensemble) -> Array:
    """How far each node is from its root."""
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
