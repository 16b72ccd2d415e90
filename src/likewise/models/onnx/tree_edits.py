"""Trees put into a copy of a graph in the place of those it has, and what the graph does with their sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.models.onnx import edits
from likewise.models.onnx.trees import AT_MOST, BELOW, EQUAL, MEMBER, MODES, NO_SPLIT, GraphTrees, Site, element_type
from likewise.models.trees.ensemble import DEEPEST, LEAF, Ensemble, Gap

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


PASSED = frozenset(
    {"Identity", "Cast", "Reshape", "Squeeze", "Flatten", "ArrayFeatureExtractor", "Gather", "Slice", "Concat", "Sum"}
)
"""Operators that pass a sum on."""

FARTHEST = 12
"""Nodes behind trees within which their sum is divided."""


class UnwritableError(ValueError):
    """What the trees say cannot be said in this graph."""


def written(proto: ModelProto, held: GraphTrees, ensemble: Ensemble) -> ModelProto:
    """A copy of the graph with these trees; `place` of a tree says which node takes it."""
    changed = edits.copied(proto)
    for place, site in enumerate(held.sites):
        node = changed.graph.node[site.node]
        table = _table(ensemble, place, site)
        five = site.operator == "TreeEnsemble"
        for name, content in (_of_version_5(site.name, table) if five else _of_older(site, table)).items():
            # Most of it is as it was, and to write millions of numbers takes seconds.
            if not _same(site.told.get(name), content):
                _set(node, name, content)
    return changed


def exact(held: GraphTrees, ensemble: Ensemble, place: int) -> dict[str, Any]:
    """The numbers of a node's trees as they are, in the order and under the names in which `written` has them."""
    site = held.sites[place]
    return {} if site.operator == "TreeEnsemble" else _of_older(site, _table(ensemble, place, site))


def with_attribute(proto: ModelProto, node: int, name: str, value: Any) -> ModelProto:
    """A copy of the graph with one attribute of one node set; None takes it away."""
    changed = edits.copied(proto)
    _set(changed.graph.node[node], name, value)
    return changed


def with_input(proto: ModelProto, held: GraphTrees, values: Array) -> ModelProto:
    """A copy of the graph whose trees see these values, whatever the graph is fed."""
    from onnx import helper, numpy_helper

    changed = edits.copied(proto)
    start = 0
    for index, source in enumerate(held.sources):
        stop = start + held.widths[source]
        name = f"seen_by_trees_{index}"
        dtype = helper.tensor_dtype_to_np_dtype(element_type(proto, source))
        part = np.ascontiguousarray(values[:, start:stop].astype(dtype))
        changed.graph.initializer.append(numpy_helper.from_array(part, name))
        edits.replace_reads(changed.graph, {source: name})
        start = stop
    return changed


Table = dict[str, Any]
"""Nodes as a graph tells them, tree after tree with the root first, then the leaves' values and sets of categories."""


def _table(ensemble: Ensemble, place: int, site: Site) -> Table:
    """The trees of one place; the older operators have a chain of equalities for a set of categories."""
    nodes, tree = _reached(ensemble, np.flatnonzero(ensemble.place == place))
    number = _numbers(ensemble, nodes, tree)
    split = ensemble.feature[nodes] != LEAF
    if ensemble.zero_is_gap[nodes[split]].any():
        raise UnwritableError("zero as a missing value")
    column = np.where(split, ensemble.column[nodes], 0)
    if site.columns is not None:
        place_of = {int(entry): index for index, entry in enumerate(site.columns)}
        if not set(column[split].tolist()) <= place_of.keys():
            raise UnwritableError("a column that does not reach this node")
        column = np.array(
            [place_of[entry] if inner else 0 for entry, inner in zip(column.tolist(), split, strict=True)]
        )
    threshold, strict, gap = ensemble.threshold[nodes], ensemble.strict[nodes], ensemble.gap[nodes]
    zero_left = (threshold > 0) | ((threshold == 0) & ~strict)
    of_node = np.zeros(len(ensemble.feature), dtype=np.int64)
    of_node[nodes] = number
    where = {
        "tree": tree,
        "number": number,
        "mode": np.where(split, np.where(strict, BELOW, AT_MOST), NO_SPLIT),
        "feature": column,
        "threshold": np.where(split, threshold, 0.0),
        "true": np.where(split, of_node[ensemble.left[nodes]], 0),
        "false": np.where(split, of_node[ensemble.right[nodes]], 0),
        "gap_true": split & np.where(gap == Gap.LIKE_ZERO, zero_left, gap == Gap.LEFT),
    }
    group = ensemble.group[nodes]
    sets: tuple[Array, ...] = ()
    if site.operator == "TreeEnsemble":
        where["mode"] = np.where(group >= 0, MEMBER, where["mode"])
        sets = tuple(ensemble.groups[entry] for entry in group[group >= 0].tolist())
        where["gap_true"] = np.where(group >= 0, gap == Gap.LEFT, where["gap_true"])
    else:
        where = _with_chains(ensemble, where, group, gap)
    tree_of = np.full(len(ensemble.feature), -1)
    tree_of[nodes] = tree
    own = np.flatnonzero(tree_of[ensemble.leaf_node] >= 0)
    leaf = ensemble.leaf_node[own]
    return {
        **where,
        "leaf_tree": tree_of[leaf],
        "leaf_number": of_node[leaf],
        "leaf_output": ensemble.leaf_output[own],
        "leaf_value": ensemble.leaf_value[own],
        "sets": sets,
    }


def _reached(ensemble: Ensemble, trees: Array) -> tuple[Array, Array]:
    """The nodes of these trees and the position of the tree of each, in the order of the trees, roots first."""
    level, tree = ensemble.roots[trees], np.arange(len(trees))
    found, owners = [level], [tree]
    seen = np.zeros(len(ensemble.feature), dtype=bool)
    seen[level] = True
    for _ in range(DEEPEST):
        split = ensemble.feature[level] != LEAF
        below = np.concatenate([ensemble.left[level[split]], ensemble.right[level[split]]])
        owner = np.concatenate([tree[split], tree[split]])
        below, first = np.unique(below, return_index=True)
        new = ~seen[below]
        level, tree = below[new], owner[first][new]
        if not len(level):
            break
        seen[level] = True
        found.append(level)
        owners.append(tree)
    nodes, owner = np.concatenate(found), np.concatenate(owners)
    roots_first = ensemble.node_numbers[ensemble.roots[trees]] == 0
    # In the order of their numbers, which is mostly how they were written; else from the root down.
    order = np.lexsort((ensemble.node_numbers[nodes], owner)) if roots_first.all() else np.argsort(owner, kind="stable")
    return nodes[order], owner[order]


def _numbers(ensemble: Ensemble, nodes: Array, tree: Array) -> Array:
    """The nodes' own numbers where a runtime takes them, else numbers in order."""
    own = ensemble.node_numbers[nodes]
    # ONNX Runtime refuses a number that is not below the number of nodes.
    if own.max(initial=0) < len(nodes):
        ordered = bool(((tree[1:] > tree[:-1]) | (own[1:] > own[:-1])).all())
        if ordered or len(np.unique(tree * len(nodes) + own)) == len(nodes):
            return own
    starts = np.searchsorted(tree, tree)
    return np.asarray(np.arange(len(nodes)) - starts)


def _with_chains(ensemble: Ensemble, where: dict[str, Array], group: Array, gap: Array) -> dict[str, Array]:
    grouped = np.flatnonzero(group >= 0)
    if not len(grouped):
        return where
    added: dict[str, list[Any]] = {name: [] for name in where}
    spare = int(where["number"].max()) + 1
    for row in grouped.tolist():
        members = ensemble.groups[group[row]].tolist() or [float("inf")]
        where["mode"][row], where["threshold"][row] = EQUAL, members[0]
        to_true = 0.0 in members if gap[row] == Gap.LIKE_ZERO else gap[row] == Gap.LEFT
        where["gap_true"][row] = to_true
        last = where["false"][row]
        if len(members) > 1:
            where["false"][row] = spare
        for index, member in enumerate(members[1:], start=1):
            told = {name: where[name][row] for name in where}
            told |= {"number": spare, "threshold": member}
            spare += 1
            told["false"] = spare if index < len(members) - 1 else last
            for name, value in told.items():
                added[name].append(value)
    joined = {name: np.concatenate([array, np.array(added[name], dtype=array.dtype)]) for name, array in where.items()}
    order = np.argsort(joined["tree"], kind="stable")
    return {name: array[order] for name, array in joined.items()}


def _of_older(site: Site, table: Table) -> dict[str, Any]:
    prefix = "class" if site.operator == "TreeEnsembleClassifier" else "target"
    return {
        "nodes_treeids": table["tree"],
        "nodes_nodeids": table["number"],
        "nodes_featureids": table["feature"],
        "nodes_modes": table["mode"],
        "nodes_values": table["threshold"],
        "nodes_truenodeids": table["true"],
        "nodes_falsenodeids": table["false"],
        "nodes_missing_value_tracks_true": table["gap_true"].astype(int),
        "nodes_hitrates": None,
        f"{prefix}_treeids": table["leaf_tree"],
        f"{prefix}_nodeids": table["leaf_number"],
        f"{prefix}_ids": table["leaf_output"],
        f"{prefix}_weights": table["leaf_value"],
    }


def fill(node: NodeProto, table: Table) -> None:
    """Put trees into an empty TreeEnsemble (5)."""
    for name, content in _of_version_5(node.name, table).items():
        _set(node, name, content)


def _of_version_5(name: str, table: Table) -> dict[str, Any]:
    split = table["mode"] != NO_SPLIT
    span = int(table["number"].max(initial=0)) + 1
    key, leaf_key = table["tree"] * span + table["number"], table["leaf_tree"] * span + table["leaf_number"]
    first = np.concatenate([[True], table["tree"][1:] != table["tree"][:-1]])
    several = len(np.unique(leaf_key)) != len(leaf_key) or len(leaf_key) != int((~split).sum())
    if not split[first].all() or several:
        raise UnwritableError(f"{name}: a tree of one leaf, or a leaf of several values")
    place = {int(entry): index for index, entry in enumerate(key[split])}
    leaf_place = {int(entry): index for index, entry in enumerate(leaf_key)}
    # The members of all sets, with NaN after each.
    listed = [np.append(members, np.nan) for members in table["sets"]]
    membership = np.concatenate(listed).astype(np.float32) if listed else None
    told: dict[str, Any] = {
        "tree_roots": np.array([place[int(entry)] for entry in key[first]]),
        "nodes_featureids": table["feature"][split],
        "nodes_modes": table["mode"][split].astype(np.uint8),
        "nodes_splits": table["threshold"][split],
        "nodes_missing_value_tracks_true": table["gap_true"][split].astype(int),
        "nodes_hitrates": None,
        "membership_values": membership,
        "leaf_targetids": table["leaf_output"],
        "leaf_weights": table["leaf_value"],
    }
    for named, child in (("true", table["true"]), ("false", table["false"])):
        keys = (table["tree"] * span + child)[split].tolist()
        told[f"nodes_{named}leafs"] = np.array([int(entry in leaf_place) for entry in keys])
        told[f"nodes_{named}nodeids"] = np.array([leaf_place.get(entry, place.get(entry, 0)) for entry in keys])
    return told


def _same(held: Any, content: Any) -> bool:
    if held is None or content is None:
        return held is content
    with np.errstate(over="ignore"):
        given = content.astype(held.dtype)
    return bool(np.array_equal(held, given, equal_nan=held.dtype.kind == "f"))


def _set(node: NodeProto, name: str, value: Any) -> None:
    """Set an attribute in the form it had: numbers in a list, or in a tensor of the same type."""
    from onnx import AttributeProto, helper, numpy_helper

    for held in [entry for entry in node.attribute if entry.name in (name, f"{name}_as_tensor")]:
        if isinstance(value, np.ndarray) and held.HasField("t"):
            dtype = helper.tensor_dtype_to_np_dtype(held.t.data_type)
            held.t.CopyFrom(numpy_helper.from_array(value.astype(dtype), held.t.name))
            return
        node.attribute.remove(held)
    if value is None or (hasattr(value, "__len__") and not len(value)):
        return
    if name == "nodes_modes" and value.dtype != np.uint8:
        value = [MODES[code] for code in value.tolist()]
    if not isinstance(value, np.ndarray):
        node.attribute.append(helper.make_attribute(name, value))
        return
    if name in ("membership_values", "nodes_splits", "leaf_weights") or value.dtype == np.uint8:
        node.attribute.append(helper.make_attribute(name, numpy_helper.from_array(value, name)))
        return
    # Filled here, as the helper looks at every number of a list of millions.
    attribute = node.attribute.add(name=name)
    if value.dtype.kind == "f":
        attribute.type = AttributeProto.FLOATS
        with np.errstate(over="ignore"):
            attribute.floats.extend(value.astype(np.float32).tolist())
    else:
        attribute.type = AttributeProto.INTS
        attribute.ints.extend(value.astype(np.int64).tolist())


def divisors(proto: ModelProto, node: int) -> dict[str, float]:
    """Constants that the sum of a node's trees is divided by, with their values."""
    constants = edits.constants(proto.graph)
    reached = set(proto.graph.node[node].output)
    found: dict[str, float] = {}
    for _ in range(FARTHEST):
        before = len(reached)
        for user in proto.graph.node:
            if not reached.intersection(user.input):
                continue
            if user.op_type == "Div" and user.input[0] in reached and user.input[1] in constants:
                value = constants[user.input[1]]
                if value.size == 1 and float(value.reshape(-1)[0]) != 0:
                    found[user.input[1]] = float(value.reshape(-1)[0])
                    reached.update(user.output)
            elif user.op_type in PASSED:
                reached.update(user.output)
        if len(reached) == before:
            break
    return found


def with_constants(proto: ModelProto, values: dict[str, float]) -> ModelProto:
    """A copy of the graph with other numbers in some of its constants."""
    copy = edits.copied(proto)
    held = edits.constants(copy.graph)
    for name, value in values.items():
        edits.set_constant(copy.graph, name, np.full_like(held[name], value))
    return copy
