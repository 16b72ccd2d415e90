"""An exported model in float64 throughout, where ONNX Runtime has the arithmetic and converters do not write it.

The operators of ai.onnx.ml keep their numbers in float32 and answer in it. Trees are written as TreeEnsemble
(ai.onnx.ml 5), which takes doubles; what has only zeros and ones to say is cast; the rest of the graph is widened.
`exact` are the numbers that a converter handed over before the file rounded them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.errors import ModelError
from likewise.models.onnx import edits, tree_edits, trees
from likewise.models.onnx.widen import DOUBLE, SINGLE, Widening, widened

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

ML = "ai.onnx.ml"
TREES_SINCE = 5
"""The version of ai.onnx.ml whose trees take doubles."""

SINGLE_OUTPUTS = frozenset({"OneHotEncoder", "TfIdfVectorizer", "DictVectorizer", "FeatureVectorizer"})
"""Answer in float32, which holds what they have to say: zeros, ones and counts."""

LOSSY = frozenset(
    {"Imputer", "Scaler", "Normalizer", "Binarizer", "LinearRegressor", "LinearClassifier", "SVMRegressor",
     "SVMClassifier"}
)  # fmt: skip
"""Compute in float32, with numbers rounded to it."""

Exact = Mapping[str, Mapping[str, Any]]
"""By the name of a node, attributes as the converter gave them."""


def in_double(proto: ModelProto, exact: Exact, *, rounding: Collection[str] = ()) -> tuple[ModelProto, tuple[str, ...]]:
    """The graph in float64, and the operators that had to stay narrow. Trees named in `rounding` see float32."""
    named = edits.copied(proto)
    edits.name_nodes(named.graph)
    wide = widened(named, Widening({}, frozenset({SINGLE}), narrow_ops=frozenset(), inputs=True))
    nodes: list[NodeProto] = []
    narrow: dict[str, None] = {}
    for node in wide.graph.node:
        if node.op_type in ("TreeEnsembleClassifier", "TreeEnsembleRegressor"):
            writer = edits.Writer(wide.graph, node, dtype=np.float64)
            nodes.extend(_trees(writer, node, exact.get(node.name, {}), rounded=node.name in rounding))
        elif node.op_type == "LabelEncoder":
            nodes.extend(_encoded(edits.Writer(wide.graph, node, dtype=np.float64), node, exact.get(node.name, {})))
        elif node.op_type in SINGLE_OUTPUTS:
            nodes.extend(_narrowed(node, (0,)))
        elif node.op_type in LOSSY:
            narrow[node.op_type] = None
            nodes.extend(_between_casts(node))
        elif node.op_type == "ZipMap":
            nodes.extend(_single_inputs(node))
        else:
            nodes.append(node)
    edits.replace_nodes(wide.graph, nodes)
    if any(node.op_type == "TreeEnsemble" for node in nodes):
        edits.require_version(wide, ML, TREES_SINCE)
    return wide, tuple(narrow)


def _encoded(write: edits.Writer, node: NodeProto, exact: Mapping[str, Any]) -> list[NodeProto]:
    """Floats for codes: looked up by the place of the code, as the operator itself has float32 only."""
    values = exact.get("values_floats", edits.attribute(node, "values_floats"))
    if values is None:
        return [node]
    default = exact.get("default_float", edits.attribute(node, "default_float", 0.0))
    table = write.number(np.append(np.asarray(values, dtype=np.float64), default))
    for name, value in (("values_floats", None), ("default_float", None), ("default_int64", len(values))):
        edits.set_attribute(node, name, value)
    edits.set_attribute(node, "values_int64s", list(range(len(values))))
    found, node.output[0] = node.output[0], f"{node.output[0]}__place"
    write.nodes.append(node)
    write.into(found, write("Gather", table, node.output[0]))
    return write.nodes


def _narrowed(node: NodeProto, outputs: tuple[int, ...]) -> Iterator[NodeProto]:
    casts = []
    for index in outputs:
        name = node.output[index] if index < len(node.output) else ""
        if name:
            node.output[index] = f"{name}__single"
            casts.append(edits.make_node("Cast", [f"{name}__single"], [name], name=f"{name}__double", to=DOUBLE))
    yield node
    yield from casts


def _single_inputs(node: NodeProto) -> Iterator[NodeProto]:
    name = f"{node.input[0]}__for__{node.name}"
    yield edits.make_node("Cast", [node.input[0]], [name], name=name, to=SINGLE)
    node.input[0] = name
    yield node


def _between_casts(node: NodeProto) -> Iterator[NodeProto]:
    *before, node = _single_inputs(node)
    yield from before
    yield from _narrowed(node, (1,) if node.op_type.endswith("Classifier") else (0,))


def _trees(write: edits.Writer, node: NodeProto, exact: Mapping[str, Any], *, rounded: bool) -> list[NodeProto]:
    """A TreeEnsembleClassifier or -Regressor as TreeEnsemble in doubles, and what it does with the sum."""
    told = trees.attributes(node)
    told |= {
        name: np.asarray(value, dtype=np.float64) for name, value in exact.items() if _same_size(told, name, value)
    }
    classifies = node.op_type == "TreeEnsembleClassifier"
    source = node.input[0]
    if rounded:
        source = write("Cast", write("Cast", source, to=SINGLE), to=DOUBLE)
    sums = _sums(write, told, source, "class" if classifies else "target")
    if edits.attribute(node, "aggregate_function", b"SUM") == b"AVERAGE":
        sums = write("Div", sums, float(len(np.unique(told["nodes_treeids"]))))
    if "base_values" in told:
        base = np.asarray(told["base_values"], dtype=np.float64).reshape(1, -1)
        sums = write("Add", sums, base[:, -1:] if classifies and _one_of_two(told) else base)
    transform = told.get("post_transform", "NONE")
    if not classifies:
        write.into(node.output[0], _transformed(write, sums, transform))
        return write.nodes
    labels = _labels(told)
    place, scores = _decided(write, told, sums, transform)
    if node.output[0]:
        named = write.number(np.array(labels, dtype=object if isinstance(labels[0], str) else np.int64))
        write.into(node.output[0], write("Gather", named, place))
    if len(node.output) > 1 and node.output[1]:
        write.into(node.output[1], scores)
    return write.nodes


def _labels(told: Mapping[str, Any]) -> list[Any]:
    return list(told["classlabels_strings"] if "classlabels_strings" in told else told["classlabels_int64s"])


def _one_of_two(told: Mapping[str, Any]) -> bool:
    """Do the leaves speak of one of two classes only?"""
    labels = _labels(told)
    return len(labels) == 2 and len(np.unique(told["class_ids"])) == 1


def _same_size(told: Mapping[str, Any], name: str, value: Any) -> bool:
    held = told.get(name)
    return isinstance(held, np.ndarray) and held.dtype.kind == "f" and np.size(value) == held.size


def _sums(write: edits.Writer, told: Mapping[str, Any], source: str, prefix: str) -> str:
    """What the leaves add up to, one column an output."""
    outputs = trees.outputs_of(told)
    table = _table(told, prefix)
    if prefix == "class" and _one_of_two(told):
        outputs, table["leaf_output"] = 1, np.zeros_like(table["leaf_output"])
    span = int(table["number"].max()) + 1
    leaf = table["leaf_tree"] * span + table["leaf_number"]
    found, place = np.unique(leaf, return_inverse=True)
    if len(found) == len(leaf):
        return _ensemble(write, table, source, outputs)
    # A leaf of this operator says one number. Of several, say which leaf it was, tree by tree, and look them up.
    values = np.zeros((len(found), outputs))
    np.add.at(values, (place, table["leaf_output"]), table["leaf_value"])
    number, tree = np.unique(found // span, return_inverse=True)
    table |= {"leaf_tree": found // span, "leaf_number": found % span, "leaf_output": tree}
    table["leaf_value"] = np.arange(len(found), dtype=np.float64)
    leaves = write("Cast", _ensemble(write, table, source, len(number)), to=7)
    return write("ReduceSum", write("Gather", write.number(values), leaves), np.array([1]), keepdims=0)


def _table(told: Mapping[str, Any], prefix: str) -> tree_edits.Table:
    """The nodes as the operator of version 5 takes them: no tree is a single leaf, and every leaf says something."""
    table = {
        "tree": told["nodes_treeids"],
        "number": told["nodes_nodeids"],
        "mode": told["nodes_modes"],
        "feature": told["nodes_featureids"],
        "threshold": told["nodes_values"].astype(np.float64),
        "true": told["nodes_truenodeids"],
        "false": told["nodes_falsenodeids"],
        "gap_true": told.get("nodes_missing_value_tracks_true", np.zeros(len(told["nodes_modes"]), dtype=np.int64)),
    }
    leaves = {
        "leaf_tree": told[f"{prefix}_treeids"],
        "leaf_number": told[f"{prefix}_nodeids"],
        "leaf_output": told[f"{prefix}_ids"],
        "leaf_value": told[f"{prefix}_weights"].astype(np.float64),
    }
    span = int(table["number"].max()) + 2
    own = table["tree"] * span + table["number"]
    silent = (table["mode"] == trees.NO_SPLIT) & ~np.isin(own, leaves["leaf_tree"] * span + leaves["leaf_number"])
    for name, values in (("leaf_tree", table["tree"][silent]), ("leaf_number", table["number"][silent])):
        leaves[name] = np.concatenate([leaves[name], values])
    for name in ("leaf_output", "leaf_value"):
        leaves[name] = np.concatenate([leaves[name], np.zeros(int(silent.sum()), dtype=leaves[name].dtype)])
    first = np.concatenate([[True], table["tree"][1:] != table["tree"][:-1]])
    alone = np.flatnonzero(first & (table["mode"] == trees.NO_SPLIT))
    if len(alone):
        # A question whose two answers lead to the leaf, which gets the next number.
        added = {name: values[alone].copy() for name, values in table.items()}
        added["number"] = np.full(len(alone), span - 1)
        for name, value in (
            ("mode", trees.AT_MOST),
            ("feature", 0),
            ("threshold", 0),
            ("true", span - 1),
            ("false", span - 1),
        ):
            table[name] = table[name].copy()
            table[name][alone] = value
        table = {name: np.concatenate([values, added[name]]) for name, values in table.items()}
        order = np.argsort(table["tree"], kind="stable")
        table = {name: values[order] for name, values in table.items()}
        moved = np.isin(leaves["leaf_tree"], added["tree"])
        leaves["leaf_number"] = np.where(moved, span - 1, leaves["leaf_number"])
    return {**table, **leaves, "sets": ()}


def _ensemble(write: edits.Writer, table: tree_edits.Table, source: str, outputs: int) -> str:
    name = write("TreeEnsemble", source, domain=ML, n_targets=outputs, aggregate_function=1, post_transform=0)
    tree_edits.fill(write.nodes[-1], table)
    return name


def _logistic(write: edits.Writer, x: str) -> str:
    """1 / (1 + exp(-x)): the runtime's Sigmoid has no digits left far below zero."""
    return write("Div", 1.0, write("Add", write("Exp", write("Neg", x)), 1.0))


def _transformed(write: edits.Writer, scores: str, transform: str) -> str:
    if transform == "NONE":
        return scores
    operators: Mapping[str, Callable[[], str]] = {
        "LOGISTIC": lambda: _logistic(write, scores),
        "SOFTMAX": lambda: write("Softmax", scores, axis=1),
    }
    if transform not in operators:
        raise ModelError(
            f"the trees end in {transform}, for which there is no way in float64", remedy="Leave out --double"
        )
    return operators[transform]()


def _decided(write: edits.Writer, told: Mapping[str, Any], sums: str, transform: str) -> tuple[str, str]:
    """The place of the label in the list of labels, and the scores of all classes."""
    if not _one_of_two(told):
        return write("ArgMax", sums, axis=1, keepdims=0), _transformed(write, sums, transform)
    if transform == "LOGISTIC":
        second, border = _logistic(write, sums), 0.0
        first = _logistic(write, write("Neg", sums))
    elif bool((told["class_weights"] >= 0).all()):
        second, border = sums, 0.5
        first = write("Sub", 1.0, sums)
    else:
        second, border = sums, 0.0
        first = write("Neg", sums)
    above = write("Cast", write("Greater", sums, border), to=7)
    return write("Squeeze", above, np.array([1])), write("Concat", first, second, axis=1)
