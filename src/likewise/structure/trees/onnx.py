"""The trees of an ONNX graph: TreeEnsembleClassifier and -Regressor (ai.onnx.ml 1 to 3), TreeEnsemble (5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array
from likewise.structure.trees.chains import folded
from likewise.structure.trees.ensemble import LEAF, Ensemble, Gap, Tree, ensemble_of

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

OPERATORS = ("TreeEnsembleClassifier", "TreeEnsembleRegressor", "TreeEnsemble")
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
OPPOSITE = ("BRANCH_GTE", "BRANCH_GT", "BRANCH_NEQ")
"""Read as the opposite question with the children exchanged."""


@dataclass(frozen=True, slots=True)
class Site:
    """A node of the graph that holds trees.

    `node` is its position in the graph, `source` the tensor whose columns it sees, `columns` which of
    them where it does not see all, `offset` where they begin among the columns of all sources.
    """

    node: int
    operator: str
    name: str
    source: str
    columns: Array | None
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

    found: list[tuple[Site, list[Tree]]] = []
    try:
        for index, node in enumerate(proto.graph.node):
            if node.op_type in OPERATORS:
                source, columns = _source(proto, node.input[0])
                site = Site(index, node.op_type, node.name or node.output[0], source, columns)
                found.append((site, trees_of(node, place=len(found))))
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
    outputs = max((int(tree.leaves[1].max()) + 1 for tree in trees if len(tree.leaves[1])), default=1)
    outputs = max(outputs, *(_declared_outputs(proto.graph.node[site.node]) for site in sites))
    base: Any = base_of(proto.graph.node[sites[0].node]) if len(sites) == 1 else []
    read_ = ensemble_of(trees, outputs=outputs, dtype=types.pop(), base=base)
    seen = np.array([site.offset for site in sites])[read_.place[read_.tree]]
    column = read_.feature.copy()
    for place, site in enumerate(sites):
        if site.columns is not None:
            here = (read_.place[read_.tree] == place) & (column >= 0)
            column[here] = site.columns[column[here]]
    feature = np.where(read_.feature >= 0, column + seen, LEAF)
    return GraphTrees(folded(replace(read_, column=column, feature=feature)), sites, sources, widths)


def _width(source: str, found: list[tuple[Site, list[Tree]]]) -> int:
    """At least how many columns a source has."""
    widest = 0
    for site, trees in found:
        for tree in trees if site.source == source else ():
            seen = tree.feature if site.columns is None else site.columns
            widest = max(widest, int(seen.max(initial=-1)) + 1)
    return widest


def attributes(node: NodeProto) -> dict[str, Any]:
    """Attributes as numpy arrays, text or numbers; `*_as_tensor` under the name without it."""
    import numpy as np
    from onnx import AttributeProto, helper, numpy_helper

    found: dict[str, Any] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if attribute.type == AttributeProto.TENSOR:
            found[attribute.name.removesuffix("_as_tensor")] = numpy_helper.to_array(value)
        elif attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS):
            kind = np.int64 if attribute.type == AttributeProto.INTS else np.float32
            found[attribute.name] = np.asarray(list(value), dtype=kind)
        elif attribute.type == AttributeProto.STRINGS:
            found[attribute.name] = [entry.decode() for entry in value]
        else:
            found[attribute.name] = value.decode() if isinstance(value, bytes) else value
    return found


def base_of(node: NodeProto) -> Array:
    import numpy as np

    return np.asarray(attributes(node).get("base_values", []), dtype=np.float64).reshape(-1)


def _declared_outputs(node: NodeProto) -> int:
    """How many outputs a node says it has. A classifier of two classes may keep a single number a leaf."""
    told = attributes(node)
    labels = len(told.get("classlabels_int64s", ())) or len(told.get("classlabels_strings", ()))
    declared = int(told.get("n_targets", labels))
    leaves = int(told["class_ids"].max(initial=0)) + 1 if "class_ids" in told else declared
    # A graph may give a class to every leaf of a tree, to look up its number.
    return declared if declared != 2 or "n_targets" in told else leaves


def trees_of(node: NodeProto, *, place: int = 0) -> list[Tree]:
    """The trees of one node, in its own numbering of features."""
    told = attributes(node)
    return _of_version_5(told, place) if node.op_type == "TreeEnsemble" else _of_older(told, place)


def _of_older(told: Mapping[str, Any], place: int) -> list[Tree]:
    """Nodes and leaves are told apart by their mode, and named by tree and number."""
    import numpy as np

    prefix = "class" if "class_ids" in told else "target"
    tree_of, leaf_tree_of = told["nodes_treeids"], told[f"{prefix}_treeids"]
    modes = np.array(told["nodes_modes"], dtype=object)
    tracks = _flags(told, len(tree_of))
    order, leaf_order = np.argsort(tree_of, kind="stable"), np.argsort(leaf_tree_of, kind="stable")
    trees = []
    for number in np.unique(tree_of):
        start, stop = np.searchsorted(tree_of[order], [number, number + 1])
        nodes = order[start:stop]
        start, stop = np.searchsorted(leaf_tree_of[leaf_order], [number, number + 1])
        own = leaf_order[start:stop]
        numbers = told["nodes_nodeids"][nodes]
        positions = {int(entry): position for position, entry in enumerate(numbers.tolist())}
        branch = modes[nodes] != "LEAF"
        children = [
            np.array([positions[entry] if split else 0 for entry, split in zip(ids.tolist(), branch, strict=True)])
            for ids in (told["nodes_truenodeids"][nodes], told["nodes_falsenodeids"][nodes])
        ]
        leaves = (
            np.array([positions[entry] for entry in told[f"{prefix}_nodeids"][own].tolist()], dtype=np.int64),
            told[f"{prefix}_ids"][own],
            told[f"{prefix}_weights"][own].astype(np.float64),
        )
        thresholds = told["nodes_values"][nodes].astype(np.float64)
        asked = _Asked(told["nodes_featureids"][nodes], thresholds, modes[nodes], children, tracks[nodes])
        trees.append(asked.tree(int(number), leaves, numbers, place))
    return trees


def _of_version_5(told: Mapping[str, Any], place: int) -> list[Tree]:
    """Splits and leaves stand in lists of their own; a tree is what can be reached from its root."""
    import numpy as np

    modes = np.array(MODES, dtype=object)[told["nodes_modes"].astype(np.int64)]
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
            np.where(branch, modes[at], "LEAF").astype(object),
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
        import numpy as np

        leaf = self.modes == "LEAF"
        known = (*MODES, "LEAF")
        if not np.isin(self.modes, known).all():
            raise ValueError("a mode that ONNX does not have")
        opposite = np.isin(self.modes, OPPOSITE)
        true, false = self.children
        # A comparison with NaN is false, but for "not equal"; the flag makes it true.
        gap_true = self.tracks | (self.modes == "BRANCH_NEQ")
        groups = {int(i): self.threshold[i : i + 1] for i in np.flatnonzero(np.isin(self.modes, MODES[4:6]))}
        groups |= dict(self.sets or {})
        split = np.flatnonzero(~leaf)
        children = set(true[split].tolist()) | set(false[split].tolist())
        roots = [node for node in range(len(leaf)) if node not in children]
        return Tree(
            number=number,
            feature=np.where(leaf, LEAF, self.feature),
            threshold=self.threshold,
            left=np.where(opposite, false, true),
            right=np.where(opposite, true, false),
            leaves=leaves,
            gap=np.where(gap_true != opposite, Gap.LEFT, Gap.RIGHT),
            strict=np.isin(self.modes, ("BRANCH_LT", "BRANCH_GTE")),
            groups=groups,
            node_numbers=numbers,
            place=place,
            root=roots[0] if roots else 0,
        )


def _flags(told: Mapping[str, Any], size: int) -> Array:
    import numpy as np

    flags = told.get("nodes_missing_value_tracks_true")
    return np.zeros(size, dtype=bool) if flags is None or not len(flags) else np.asarray(flags, dtype=bool)


def _sets(told: Mapping[str, Any], modes: Array) -> dict[int, Array]:
    """The members of each set, in the order of the nodes that ask for them; NaN stands between two sets."""
    import numpy as np

    asking = np.flatnonzero(modes == "BRANCH_MEMBER")
    if not len(asking):
        return {}
    listed = told["membership_values"].astype(np.float64)
    parts = np.split(listed, np.flatnonzero(np.isnan(listed)) + 1)
    parts = [part[~np.isnan(part)] for part in parts]
    return {int(node): parts[index] for index, node in enumerate(asking)}


def _source(proto: ModelProto, tensor: str) -> tuple[str, Array | None]:
    """The tensor whose columns a node sees in the end, and which of them, past nodes that only choose columns."""
    import numpy as np
    from onnx import numpy_helper

    makers = {name: node for node in proto.graph.node for name in node.output}
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
