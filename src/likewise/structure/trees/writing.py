"""Trees put into a copy of a graph, in the place of those it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array
from likewise.structure.trees.ensemble import LEAF, Ensemble, Gap
from likewise.structure.trees.onnx import MODES, GraphTrees, Site

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


class UnwritableError(ValueError):
    """What the trees say cannot be said in this graph."""


def written(proto: ModelProto, held: GraphTrees, ensemble: Ensemble) -> ModelProto:
    """A copy of the graph with these trees; `place` of a tree says which node takes it."""
    from onnx import ModelProto as Proto

    copied = Proto()
    copied.CopyFrom(proto)
    for place, site in enumerate(held.sites):
        node = copied.graph.node[site.node]
        rows = list(_lines(ensemble, place, site))
        (_write_version_5 if site.operator == "TreeEnsemble" else _write_older)(node, rows)
    return copied


def with_attribute(proto: ModelProto, node: int, name: str, value: Any) -> ModelProto:
    """A copy of the graph with one attribute of one node set; None takes it away."""
    from onnx import ModelProto as Proto

    copied = Proto()
    copied.CopyFrom(proto)
    _set(copied.graph.node[node], name, value)
    return copied


def with_input(proto: ModelProto, held: GraphTrees, values: Array) -> ModelProto:
    """A copy of the graph whose trees see these values, whatever the graph is fed."""
    import numpy as np
    from onnx import ModelProto as Proto
    from onnx import helper, numpy_helper

    from likewise.structure.trees.onnx import element_type

    copied = Proto()
    copied.CopyFrom(proto)
    start = 0
    for index, source in enumerate(held.sources):
        stop = start + held.widths[source]
        name = f"seen_by_trees_{index}"
        dtype = helper.tensor_dtype_to_np_dtype(element_type(proto, source))
        part = np.ascontiguousarray(values[:, start:stop].astype(dtype))
        copied.graph.initializer.append(numpy_helper.from_array(part, name))
        for node in copied.graph.node:
            for place, given in enumerate(node.input):
                if given == source:
                    node.input[place] = name
        start = stop
    return copied


class _Line:
    """One node as the graph tells it."""

    __slots__ = ("children", "feature", "gap_true", "mode", "number", "threshold", "tree", "values")

    def __init__(self, tree: int, number: int) -> None:
        self.tree, self.number = tree, number
        self.mode, self.feature, self.threshold = "LEAF", 0, 0.0
        self.children, self.gap_true = (0, 0), False
        self.values: list[tuple[int, float]] = []


def _lines(ensemble: Ensemble, place: int, site: Site) -> Iterator[_Line]:
    """The nodes of the trees of one place: a set of categories as a chain of equalities."""
    import numpy as np

    own = _by_node(ensemble)
    inverse = None if site.columns is None else {int(column): i for i, column in enumerate(site.columns)}
    for number, tree in enumerate(np.flatnonzero(ensemble.place == place).tolist()):
        order = _reached(ensemble, int(ensemble.roots[tree]))
        numbers = _numbers(ensemble, order)
        spare = max(numbers.values(), default=0) + 1
        for node in order:
            if ensemble.feature[node] == LEAF:
                line = _Line(number, numbers[node])
                line.values = own.get(node, [])
                yield line
                continue
            column = int(ensemble.column[node])
            if inverse is not None and column not in inverse:
                raise UnwritableError(f"column {column} does not reach this node")
            feature = column if inverse is None else inverse[column]
            true, false = numbers[int(ensemble.left[node])], numbers[int(ensemble.right[node])]
            if ensemble.zero_is_gap[node]:
                raise UnwritableError("zero as a missing value")
            gap = Gap(int(ensemble.gap[node]))
            group = int(ensemble.group[node])
            if group < 0:
                line = _Line(number, numbers[node])
                line.mode = "BRANCH_LT" if ensemble.strict[node] else "BRANCH_LEQ"
                line.threshold, line.feature = float(ensemble.threshold[node]), feature
                line.children = (true, false)
                at_zero = line.threshold > 0.0 or (line.threshold == 0.0 and not ensemble.strict[node])
                line.gap_true = at_zero if gap is Gap.LIKE_ZERO else gap is Gap.LEFT
                yield line
                continue
            members = ensemble.groups[group].tolist() or [float("inf")]
            here = numbers[node]
            for index, member in enumerate(members):
                line = _Line(number, here)
                last = index == len(members) - 1
                line.mode, line.threshold, line.feature = "BRANCH_EQ", member, feature
                line.children = (true, false if last else spare)
                line.gap_true = 0.0 in members if gap is Gap.LIKE_ZERO else gap is Gap.LEFT
                here, spare = spare, spare + (0 if last else 1)
                yield line


def _by_node(ensemble: Ensemble) -> dict[int, list[tuple[int, float]]]:
    found: dict[int, list[tuple[int, float]]] = {}
    outputs, values = ensemble.leaf_output.tolist(), ensemble.leaf_value.tolist()
    for node, output, value in zip(ensemble.leaf_node.tolist(), outputs, values, strict=True):
        found.setdefault(node, []).append((output, value))
    return found


def _reached(ensemble: Ensemble, root: int) -> list[int]:
    """The nodes of a tree from its root, each once."""
    order: list[int] = []
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        order.append(node)
        if ensemble.feature[node] != LEAF:
            stack += [int(ensemble.right[node]), int(ensemble.left[node])]
    return order


def _numbers(ensemble: Ensemble, order: list[int]) -> dict[int, int]:
    """The nodes' own numbers, where no two have the same."""
    own = {node: int(ensemble.node_numbers[node]) for node in order}
    return own if len(set(own.values())) == len(own) else {node: index for index, node in enumerate(order)}


def _write_older(node: NodeProto, lines: list[_Line]) -> None:
    import numpy as np

    prefix = "class" if node.op_type == "TreeEnsembleClassifier" else "target"
    entries = [(line.tree, line.number, output, value) for line in lines for output, value in line.values]
    tree, number, output, value = zip(*entries, strict=True) if entries else ((), (), (), ())
    told: Mapping[str, Any] = {
        "nodes_treeids": [line.tree for line in lines],
        "nodes_nodeids": [line.number for line in lines],
        "nodes_featureids": [line.feature for line in lines],
        "nodes_modes": [line.mode for line in lines],
        "nodes_values": np.array([line.threshold for line in lines]),
        "nodes_truenodeids": [line.children[0] for line in lines],
        "nodes_falsenodeids": [line.children[1] for line in lines],
        "nodes_missing_value_tracks_true": [int(line.gap_true) for line in lines],
        "nodes_hitrates": None,
        f"{prefix}_treeids": list(tree),
        f"{prefix}_nodeids": list(number),
        f"{prefix}_ids": list(output),
        f"{prefix}_weights": np.array(value),
    }
    for name, content in told.items():
        _set(node, name, content)


def _write_version_5(node: NodeProto, lines: list[_Line]) -> None:
    import numpy as np

    splits = [line for line in lines if line.mode != "LEAF"]
    leaves = [line for line in lines if line.mode == "LEAF"]
    place = {(line.tree, line.number): index for index, line in enumerate(splits)}
    leaf_place = {(line.tree, line.number): index for index, line in enumerate(leaves)}
    first: dict[int, tuple[int, int]] = {}
    for line in lines:
        first.setdefault(line.tree, (line.tree, line.number))
    if any(root not in place for root in first.values()) or any(len(line.values) != 1 for line in leaves):
        raise UnwritableError("a tree of one leaf, or a leaf of several values")
    children = [[(line.tree, line.children[side]) for line in splits] for side in (0, 1)]
    told: dict[str, Any] = {
        "tree_roots": [place[root] for root in first.values()],
        "nodes_featureids": [line.feature for line in splits],
        "nodes_modes": np.array([MODES.index(line.mode) for line in splits], dtype=np.uint8),
        "nodes_splits": np.array([line.threshold for line in splits]),
        "nodes_missing_value_tracks_true": [int(line.gap_true) for line in splits],
        "nodes_hitrates": None,
        "membership_values": None,
        "leaf_targetids": [line.values[0][0] for line in leaves],
        "leaf_weights": np.array([line.values[0][1] for line in leaves]),
    }
    for side, named in zip(children, ("true", "false"), strict=True):
        told[f"nodes_{named}leafs"] = [int(child in leaf_place) for child in side]
        told[f"nodes_{named}nodeids"] = [leaf_place.get(child, place.get(child, 0)) for child in side]
    for name, content in told.items():
        _set(node, name, content)


def _set(node: NodeProto, name: str, value: Any) -> None:
    """Set an attribute in the form it had: numbers in a list, or in a tensor of the same type."""
    import numpy as np
    from onnx import helper, numpy_helper

    for held in [entry for entry in node.attribute if entry.name in (name, f"{name}_as_tensor")]:
        if isinstance(value, np.ndarray) and held.HasField("t"):
            dtype = value.dtype if value.dtype == np.uint8 else helper.tensor_dtype_to_np_dtype(held.t.data_type)
            held.t.CopyFrom(numpy_helper.from_array(value.astype(dtype), held.t.name))
            return
        node.attribute.remove(held)
    if value is None or (hasattr(value, "__len__") and not len(value)):
        return
    if isinstance(value, np.ndarray):
        with np.errstate(over="ignore"):
            value = [float(entry) for entry in value.astype(np.float32)]
    node.attribute.append(helper.make_attribute(name, value))
