"""What the attributes of an ONNX node say about its trees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array
from likewise.structure.trees.ensemble import LEAF, Gap, Tree

if TYPE_CHECKING:
    from onnx import NodeProto

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
    import numpy as np
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


def base_of(told: Mapping[str, Any]) -> Array:
    """What is added to the trees; nothing where the node does not say."""
    import numpy as np

    return np.asarray(told.get("base_values", []), dtype=np.float64).reshape(-1)


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
    import numpy as np

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
    import numpy as np

    order = np.argsort(numbers, kind="stable")
    found = np.minimum(np.searchsorted(numbers[order], wanted), len(numbers) - 1)
    if len(wanted) and not (numbers[order][found] == wanted).all():
        raise KeyError("a node that is not there")
    return np.asarray(order[found], dtype=np.int64)


def _of_version_5(told: Mapping[str, Any], place: int) -> list[Tree]:
    """Splits and leaves stand in lists of their own; a tree is what can be reached from its root."""
    import numpy as np

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
        import numpy as np

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
    import numpy as np

    flags = told.get("nodes_missing_value_tracks_true")
    return np.zeros(size, dtype=bool) if flags is None or not len(flags) else np.asarray(flags, dtype=bool)


def _sets(told: Mapping[str, Any], modes: Array) -> dict[int, Array]:
    """The members of each set, in the order of the nodes that ask for them; NaN stands between two sets."""
    import numpy as np

    asking = np.flatnonzero(modes == MEMBER)
    if not len(asking):
        return {}
    listed = told["membership_values"].astype(np.float64)
    parts = np.split(listed, np.flatnonzero(np.isnan(listed)) + 1)
    parts = [part[~np.isnan(part)] for part in parts]
    return {int(node): parts[index] for index, node in enumerate(asking)}
