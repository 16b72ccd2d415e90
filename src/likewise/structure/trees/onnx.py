"""The trees of an ONNX graph: TreeEnsembleClassifier and -Regressor (ai.onnx.ml 1 to 3), TreeEnsemble (5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array
from likewise.structure.trees.chains import folded
from likewise.structure.trees.ensemble import LEAF, Ensemble, Tree, ensemble_of
from likewise.structure.trees.onnx_nodes import attributes, base_of, outputs_of, trees_of

if TYPE_CHECKING:
    from onnx import ModelProto

OPERATORS = ("TreeEnsembleClassifier", "TreeEnsembleRegressor", "TreeEnsemble")
CHOOSING = ("Identity", "Gather", "ArrayFeatureExtractor")
"""Operators that pass columns on as they are."""

MOST_NODES = 3_000_000
"""Trees of more nodes are not looked into: every experiment with them would take a minute."""


@dataclass(frozen=True, slots=True)
class Site:
    """A node of the graph that holds trees.

    `node` is its position in the graph, `source` the tensor whose columns it sees, `columns` which of
    them where it does not see all, `told` its attributes, `offset` where its columns begin among those of
    all sources.
    """

    node: int
    operator: str
    name: str
    source: str
    columns: Array | None
    told: Mapping[str, Any]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class GraphTrees:
    """All trees of a graph as one ensemble, and where each of them stands."""

    ensemble: Ensemble
    sites: tuple[Site, ...]
    sources: tuple[str, ...]
    widths: Mapping[str, int]


def holds_trees(proto: ModelProto) -> bool:
    return any(node.op_type in OPERATORS for node in proto.graph.node)


def read(proto: ModelProto) -> GraphTrees | None:
    """The trees; None where there are none, or where a node says something that cannot be followed."""
    import numpy as np

    if _size(proto) > MOST_NODES:
        return None
    found: list[tuple[Site, list[Tree]]] = []
    try:
        for index, node in enumerate(proto.graph.node):
            if node.op_type in OPERATORS:
                source, columns = _source(proto, node.input[0])
                told = attributes(node)
                site = Site(index, node.op_type, node.name or node.op_type, source, columns, told)
                found.append((site, trees_of(told, place=len(found))))
    except (KeyError, IndexError, ValueError, TypeError):
        return None
    if not found or not any(trees for _, trees in found):
        return None
    sources = tuple(dict.fromkeys(site.source for site, _ in found))
    types = {_compared_in(proto, source) for source in sources}
    if len(types) > 1:
        return None
    widths = {source: _width(source, found) for source in sources}
    offsets = dict(zip(sources, np.cumsum([0, *widths.values()]).tolist(), strict=False))
    sites = tuple(replace(site, offset=offsets[site.source]) for site, _ in found)
    trees = [tree for _, part in found for tree in part]
    if len(sites) > 1:  # every node counts its trees from zero
        trees = [replace(tree, number=number) for number, tree in enumerate(trees)]
    base: Any = base_of(sites[0].told) if len(sites) == 1 else []
    outputs = max(outputs_of(site.told) for site in sites)
    read_ = ensemble_of(trees, outputs=outputs, dtype=types.pop(), base=base)
    seen = np.array([site.offset for site in sites])[read_.place[read_.tree]]
    column = read_.feature.copy()
    for place, site in enumerate(sites):
        if site.columns is not None:
            here = (read_.place[read_.tree] == place) & (column >= 0)
            column[here] = site.columns[column[here]]
    feature = np.where(read_.feature >= 0, column + seen, LEAF)
    return GraphTrees(folded(replace(read_, column=column, feature=feature)), sites, sources, widths)


def _size(proto: ModelProto) -> int:
    """How many nodes all trees have."""
    lists = [a.ints for node in proto.graph.node if node.op_type in OPERATORS for a in node.attribute]
    return max(map(len, lists), default=0)


def _width(source: str, found: list[tuple[Site, list[Tree]]]) -> int:
    """At least how many columns a source has."""
    widest = 0
    for site, trees in found:
        for tree in trees if site.source == source else ():
            seen = tree.feature if site.columns is None else site.columns
            widest = max(widest, int(seen.max(initial=-1)) + 1)
    return widest


def _source(proto: ModelProto, tensor: str) -> tuple[str, Array | None]:
    """The tensor whose columns a node sees in the end, and which of them, past nodes that only choose columns."""
    import numpy as np
    from onnx import numpy_helper

    makers = {name: node for node in proto.graph.node for name in node.output if node.op_type in CHOOSING}
    constants = {entry.name: entry for entry in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            constants[node.output[0]] = node.attribute[0].t
    columns: Array | None = None
    while (node := makers.get(tensor)) is not None:
        if node.op_type == "Identity":
            tensor = node.input[0]
            continue
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        gathers = node.op_type == "ArrayFeatureExtractor" or (node.op_type == "Gather" and axis in (1, -1))
        if not gathers or node.input[1] not in constants:
            break
        chosen = numpy_helper.to_array(constants[node.input[1]]).reshape(-1).astype(np.int64)
        columns = chosen if columns is None else chosen[columns]
        tensor = node.input[0]
    return tensor, columns


def element_type(proto: ModelProto, tensor: str) -> int:
    """The type of a tensor; of one the graph does not tell, float32, which is what exporters write."""
    from onnx import TensorProto, shape_inference

    def told(values: Any) -> int | None:
        return next((value.type.tensor_type.elem_type for value in values if value.name == tensor), None)

    known = told(proto.graph.input) or told(proto.graph.value_info)
    if known is None:
        try:
            known = told(shape_inference.infer_shapes(proto).graph.value_info)
        except Exception:  # noqa: BLE001 - a graph that cannot be inferred may still run
            known = None
    return int(known or TensorProto.FLOAT)


def _compared_in(proto: ModelProto, tensor: str) -> str:
    from onnx import TensorProto

    return "float64" if element_type(proto, tensor) == TensorProto.DOUBLE else "float32"
