"""The trees of an ONNX graph: TreeEnsembleClassifier and -Regressor (ai.onnx.ml 1 to 3), TreeEnsemble (5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.values import dataclass
from likewise.models.onnx import edits
from likewise.models.trees.ensemble import LEAF, Ensemble, Gap, Tree, ensemble_of, folded

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


OPERATORS = ("TreeEnsembleClassifier", "TreeEnsembleRegressor", "TreeEnsemble")
CHOOSING = ("Identity", "Gather", "ArrayFeatureExtractor")
"""Operators that pass columns on as they are."""

MOST_NODES = 3_000_000
"""Trees of more nodes are not looked into: every experiment with them would take a minute."""

MODES = (
    "BRANCH_LEQ",
    "BRANCH_LT",
    "BRANCH_GTE",
    "BRANCH_GT",
    "BRANCH_EQ",
    "BRANCH_NEQ",
    "BRANCH_MEMBER",
    "LEAF",
)
AT_MOST, BELOW, AT_LEAST, ABOVE, EQUAL, NOT_EQUAL, MEMBER, NO_SPLIT = range(8)
OPPOSITE = (AT_LEAST, ABOVE, NOT_EQUAL)
"""Read as the opposite question with the children exchanged."""

_CODES = {name.encode(): code for code, name in enumerate(MODES)}


def attributes(node: NodeProto) -> dict[str, Any]:
    """Attributes as arrays, text or numbers: modes as positions in `MODES`, tensors under the name of the list."""
    from onnx import AttributeProto, helper, numpy_helper

    found: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.name == "nodes_modes" and attribute.strings:
            found[attribute.name] = np.fromiter(map(_CODES.__getitem__, attribute.strings), dtype=np.int64)
        elif attribute.type == AttributeProto.TENSOR:
            found[attribute.name.removesuffix("_as_tensor")] = numpy_helper.to_array(attribute.t)
        elif attribute.type == AttributeProto.INTS:
            found[attribute.name] = np.fromiter(attribute.ints, dtype=np.int64)
        elif attribute.type == AttributeProto.FLOATS:
            found[attribute.name] = np.fromiter(attribute.floats, dtype=np.float32)
        elif attribute.type == AttributeProto.STRINGS:
            found[attribute.name] = [entry.decode() for entry in attribute.strings]
        else:
            value = helper.get_attribute_value(attribute)
            found[attribute.name] = value.decode() if isinstance(value, bytes) else value
    return found


def outputs_of(told: Mapping[str, Any]) -> int:
    """How many outputs a node has. A classifier of two classes may keep a single number a leaf."""
    labels = len(told.get("classlabels_int64s", ())) or len(told.get("classlabels_strings", ()))
    named = next((told[name] for name in ("class_ids", "target_ids", "leaf_targetids") if name in told), None)
    held = 1 if named is None else int(named.max(initial=0)) + 1
    return max(held, int(told["n_targets"]) if "n_targets" in told else labels if labels != 2 else 1)


def trees_of(told: Mapping[str, Any], *, place: int = 0) -> list[Tree]:
    """The trees of one node, in its own numbering of features."""
    return _of_version_5(told, place) if "tree_roots" in told else _of_older(told, place)


def _of_older(told: Mapping[str, Any], place: int) -> list[Tree]:
    """Nodes and leaves are told apart by their mode, and named by tree and number."""
    prefix = "class" if "class_ids" in told else "target"
    tree_of, leaf_tree_of = told["nodes_treeids"], told[f"{prefix}_treeids"]
    modes = told["nodes_modes"]
    tracks = _flags(told, len(tree_of))
    order, leaf_order = np.argsort(tree_of, kind="stable"), np.argsort(leaf_tree_of, kind="stable")
    trees = []
    for number in np.unique(tree_of):
        start, stop = np.searchsorted(tree_of[order], [number, number + 1])
        nodes = order[start:stop]
        start, stop = np.searchsorted(leaf_tree_of[leaf_order], [number, number + 1])
        own = leaf_order[start:stop]
        numbers = told["nodes_nodeids"][nodes]
        branch = modes[nodes] != NO_SPLIT
        children = [
            np.where(branch, _positions(np.where(branch, told[ids][nodes], numbers[0]), numbers), 0)
            for ids in ("nodes_truenodeids", "nodes_falsenodeids")
        ]
        leaves = (
            _positions(told[f"{prefix}_nodeids"][own], numbers),
            told[f"{prefix}_ids"][own],
            told[f"{prefix}_weights"][own].astype(np.float64),
        )
        thresholds = told["nodes_values"][nodes].astype(np.float64)
        asked = _Asked(told["nodes_featureids"][nodes], thresholds, modes[nodes], children, tracks[nodes])
        trees.append(asked.tree(int(number), leaves, numbers, place))
    return trees


def _positions(wanted: Array, numbers: Array) -> Array:
    """Where nodes of these numbers stand."""
    order = np.argsort(numbers, kind="stable")
    found = np.minimum(np.searchsorted(numbers[order], wanted), len(numbers) - 1)
    if len(wanted) and not (numbers[order][found] == wanted).all():
        raise KeyError("a node that is not there")
    return np.asarray(order[found], dtype=np.int64)


def _of_version_5(told: Mapping[str, Any], place: int) -> list[Tree]:
    """Splits and leaves stand in lists of their own; a tree is what can be reached from its root."""
    modes = told["nodes_modes"].astype(np.int64)
    splits = len(modes)
    thresholds = told["nodes_splits"].astype(np.float64)
    tracks = _flags(told, splits)
    true = told["nodes_truenodeids"] + np.where(told["nodes_trueleafs"] != 0, splits, 0)
    false = told["nodes_falsenodeids"] + np.where(told["nodes_falseleafs"] != 0, splits, 0)
    sets = _sets(told, modes)
    trees = []
    for number, root in enumerate(told["tree_roots"].tolist()):
        nodes, seen, stack = [], set(), [int(root)]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            nodes.append(node)
            if node < splits:
                stack += [int(false[node]), int(true[node])]
        position = {node: index for index, node in enumerate(nodes)}
        branch = np.array([node < splits for node in nodes])
        at = np.where(branch, nodes, 0)
        children = [
            np.array([position[int(ids[node])] if node < splits else 0 for node in nodes]) for ids in (true, false)
        ]
        leaf = np.flatnonzero(~branch)
        told_leaf = np.array(nodes)[leaf] - splits
        leaves = (leaf, told["leaf_targetids"][told_leaf], told["leaf_weights"][told_leaf].astype(np.float64))
        asked = _Asked(
            told["nodes_featureids"][at],
            thresholds[at],
            np.where(branch, modes[at], NO_SPLIT),
            children,
            tracks[at],
            {position[node]: members for node, members in sets.items() if node in position},
        )
        numbers = np.where(branch, nodes, np.array(nodes) - splits)
        trees.append(asked.tree(number, leaves, numbers, place))
    return trees


@dataclass(frozen=True, slots=True)
class _Asked:
    """The questions of one tree as the graph asks them: the first child is for yes."""

    feature: Array
    threshold: Array
    modes: Array
    children: list[Array]
    tracks: Array
    sets: Mapping[int, Array] | None = None

    def tree(self, number: int, leaves: tuple[Array, Array, Array], numbers: Array, place: int) -> Tree:
        leaf = self.modes == NO_SPLIT
        opposite = np.isin(self.modes, OPPOSITE)
        true, false = self.children
        # A comparison with NaN is false, but for "not equal"; the flag makes it true.
        gap_true = self.tracks | (self.modes == NOT_EQUAL)
        groups = {int(i): self.threshold[i : i + 1] for i in np.flatnonzero(np.isin(self.modes, (EQUAL, NOT_EQUAL)))}
        groups |= dict(self.sets or {})
        first = np.ones(len(leaf), dtype=bool)
        first[np.concatenate([true[~leaf], false[~leaf]])] = False
        return Tree(
            number=number,
            feature=np.where(leaf, LEAF, self.feature),
            threshold=self.threshold,
            left=np.where(opposite, false, true),
            right=np.where(opposite, true, false),
            leaves=leaves,
            gap=np.where(gap_true != opposite, Gap.LEFT, Gap.RIGHT),
            strict=np.isin(self.modes, (BELOW, AT_LEAST)),
            groups=groups,
            node_numbers=numbers,
            place=place,
            root=int(np.argmax(first)),
        )


def _flags(told: Mapping[str, Any], size: int) -> Array:
    flags = told.get("nodes_missing_value_tracks_true")
    return np.zeros(size, dtype=bool) if flags is None or not len(flags) else np.asarray(flags, dtype=bool)


def _sets(told: Mapping[str, Any], modes: Array) -> dict[int, Array]:
    """The members of each set, in the order of the nodes that ask for them; NaN stands between two sets."""
    asking = np.flatnonzero(modes == MEMBER)
    if not len(asking):
        return {}
    listed = told["membership_values"].astype(np.float64)
    parts = np.split(listed, np.flatnonzero(np.isnan(listed)) + 1)
    parts = [part[~np.isnan(part)] for part in parts]
    return {int(node): parts[index] for index, node in enumerate(asking)}


@dataclass(frozen=True, slots=True)
class Site:
    """A node of the graph that holds trees.

    `node` is its position in the graph, `source` the tensor whose columns it sees, `columns` which of
    them where it does not see all, `told` its attributes.
    """

    node: int
    operator: str
    name: str
    source: str
    columns: Array | None
    told: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GraphTrees:
    """All trees of a graph as one ensemble, and where each of them stands."""

    ensemble: Ensemble
    sites: tuple[Site, ...]
    sources: tuple[str, ...]
    widths: Mapping[str, int]

    def laid_out(self, widths: Mapping[str, int]) -> GraphTrees:
        """The same with so many columns of each source, side by side."""
        starts = np.cumsum([0, *(widths[source] for source in self.sources)]).tolist()
        offsets = dict(zip(self.sources, starts, strict=False))
        shift = np.array([offsets[site.source] for site in self.sites])[self.ensemble.place[self.ensemble.tree]]
        feature = np.where(self.ensemble.column >= 0, self.ensemble.column + shift, LEAF)
        return replace(self, ensemble=replace(self.ensemble, feature=feature), widths=widths)


def holds_trees(proto: ModelProto) -> bool:
    return any(node.op_type in OPERATORS for node in proto.graph.node)


def read(proto: ModelProto) -> GraphTrees | None:
    """The trees; None where there are none, or where a node says something that cannot be followed."""
    if _size(proto) > MOST_NODES:
        return None
    makers = {name: node for node in proto.graph.node for name in node.output if node.op_type in CHOOSING}
    constants = edits.constants(proto.graph)
    found: list[tuple[Site, list[Tree]]] = []
    try:
        for index, node in enumerate(proto.graph.node):
            if node.op_type in OPERATORS:
                source, columns = _source(node.input[0], makers, constants)
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
    sites = tuple(site for site, _ in found)
    trees = [tree for _, part in found for tree in part]
    if len(sites) > 1:  # every node counts its trees from zero
        trees = [replace(tree, number=number) for number, tree in enumerate(trees)]
    base: Any = sites[0].told.get("base_values", ()) if len(sites) == 1 else ()
    outputs = max(outputs_of(site.told) for site in sites)
    read_ = ensemble_of(trees, outputs=outputs, dtype=types.pop(), base=base)
    column = read_.feature.copy()
    for place, site in enumerate(sites):
        if site.columns is not None:
            here = (read_.place[read_.tree] == place) & (column >= 0)
            column[here] = site.columns[column[here]]
    held = GraphTrees(replace(read_, column=column), sites, sources, widths).laid_out(widths)
    return replace(held, ensemble=folded(held.ensemble))


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


def _source(tensor: str, makers: Mapping[str, NodeProto], constants: Mapping[str, Array]) -> tuple[str, Array | None]:
    """The tensor whose columns a node sees in the end, and which of them, past nodes that only choose columns."""
    columns: Array | None = None
    while (node := makers.get(tensor)) is not None:
        if node.op_type == "Identity":
            tensor = node.input[0]
            continue
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        gathers = node.op_type == "ArrayFeatureExtractor" or (node.op_type == "Gather" and axis in (1, -1))
        if not gathers or node.input[1] not in constants:
            break
        chosen = constants[node.input[1]].reshape(-1).astype(np.int64)
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
