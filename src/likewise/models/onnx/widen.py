"""The same ONNX graph in wider numbers: floats as doubles, few bits as more.

Stored numbers keep their values; only the arithmetic changes. An operator that has no kernel for the wider type stays
as it is between two casts, and so does any node one wants to leave narrow: what that one node loses is then all that
is lost.

An exported model can be had in float64 throughout, where ONNX Runtime has the arithmetic and converters do not write
it. The operators of ai.onnx.ml keep their numbers in float32 and answer in it. Trees are written as TreeEnsemble
(ai.onnx.ml 5), which takes doubles; what has only zeros and ones to say is cast; the rest of the graph is widened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.values import dataclass
from likewise.errors import ModelError
from likewise.models.onnx import describe, edits, tree_edits, trees
from likewise.models.onnx.edits import ML, Writer
from likewise.models.onnx.open import plain_session

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto


STORED = "__stored"
"""How the names of narrow numbers in files end that are widened before they are used."""

HALF, SINGLE, DOUBLE, BRAIN = 10, 1, 11, 16
"""Numbers of ONNX for float16, float32, float64 and bfloat16."""

TREES_SINCE = 5
"""The version of ai.onnx.ml whose trees take doubles."""

SINGLE_OUTPUTS = frozenset({"OneHotEncoder", "TfIdfVectorizer", "DictVectorizer", "FeatureVectorizer"})
"""Answer in float32, which holds what they have to say: zeros, ones and counts."""

LOSSY = frozenset(
    {"Imputer", "Scaler", "Normalizer", "Binarizer", "LinearRegressor", "LinearClassifier", "SVMRegressor",
     "SVMClassifier"}
)  # fmt: skip
"""Compute in float32, with numbers rounded to it."""

SINGLE_ONLY = LOSSY | SINGLE_OUTPUTS | {
    "TreeEnsembleRegressor", "TreeEnsembleClassifier", "ZipMap", "LabelEncoder",
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear",
}  # fmt: skip
"""Operators whose outputs are float32 by their definition."""

TYPED = ("to", "dtype")
"""Attributes that name an element type."""

ATTEMPTS = 24
_REFUSED = (
    re.compile(r"Could not find an implementation for (\w+)\("),
    re.compile(r"of operator \((\w+)\) in node"),
    re.compile(r"of Optype \((\w+)\)"),
    re.compile(r"of node \(([^)]*)\) does not match"),
    re.compile(r"\(node_def\)? ?'?([\w/]+)'?"),
)


@dataclass(frozen=True, slots=True)
class Widening:
    """From which types to which, in a graph whose tensor types are known.

    `narrow_ops` and `narrow_nodes` stay as they are. `inputs`: the inputs of the model are widened too;
    otherwise they are given as before, with what the narrow type leaves of them.
    """

    types: Mapping[str, int]
    kinds: frozenset[int] = frozenset({SINGLE, HALF, BRAIN})
    to: int = DOUBLE
    narrow_ops: frozenset[str] = SINGLE_ONLY
    narrow_nodes: frozenset[str] = frozenset()
    inputs: bool = False

    def concerns(self, name: str) -> bool:
        return self.types.get(name) in self.kinds


def widened(proto: ModelProto, plan: Widening) -> ModelProto:
    """The graph in the wider type. `proto` has unique node names and no functions of its own."""
    copy = edits.copied(proto)
    graph = copy.graph
    del graph.value_info[:]
    stored = {tensor.name for tensor in graph.initializer}
    given = [value for value in graph.input if value.name not in stored and plan.concerns(value.name)]
    nodes = list(_widen_stored(graph, plan))
    renamed: dict[str, str] = {}
    for value in graph.input:
        if value.name in stored or plan.inputs:
            _retype(value, plan)
    if not plan.inputs:
        for value in given:
            renamed[value.name] = f"{value.name}__wide"
            nodes.append(edits.make_node("Cast", [value.name], [renamed[value.name]], to=plan.to))
        edits.replace_reads(graph, renamed)
    for node in graph.node:
        if node.op_type in plan.narrow_ops or node.name in plan.narrow_nodes:
            original = next(other for other in proto.graph.node if other.name == node.name)
            nodes.extend(_narrow(original, plan, renamed))
        else:
            _widen_node(node, plan)
            nodes.append(node)
    edits.replace_nodes(graph, nodes)
    for value in graph.output:
        _retype(value, plan)
    return copy


def runnable(proto: ModelProto, plan: Widening) -> tuple[ModelProto, Widening] | None:
    """The wider graph with as few operators left narrow as the runtime asks for; None if it takes none."""
    narrow = set(plan.narrow_ops)
    for _ in range(ATTEMPTS):
        tried = replace(plan, narrow_ops=frozenset(narrow))
        try:
            wide = widened(proto, tried)
            plain_session(wide)
        except Exception as error:  # noqa: BLE001 - the runtime raises many types, and says in words what it lacks
            more = set(_refused_operators(str(error), proto)) - narrow
            if not more:
                return None
            narrow |= more
            continue
        return wide, tried
    return None


def computing_nodes(proto: ModelProto, plan: Widening) -> list[NodeProto]:
    """The nodes that compute in one of the narrow types: moving and converting values aside."""
    moving = {
        "Cast", "CastLike", "Constant", "ConstantOfShape", "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze",
        "Flatten", "Concat", "Split", "Slice", "Gather", "GatherND", "GatherElements", "Expand", "Tile", "Shape",
        "ArrayFeatureExtractor", "ZipMap", "Pad", "Where", "Max", "Min", "Relu", "MaxPool", "ArgMax", "ArgMin",
    }  # fmt: skip
    return [
        node
        for node in proto.graph.node
        if node.op_type not in moving and any(plan.concerns(name) for name in node.output)
    ]


def _refused_operators(message: str, proto: ModelProto) -> Iterator[str]:
    types = {node.op_type for node in edits.all_nodes(proto.graph)}
    named = {node.name: node.op_type for node in edits.all_nodes(proto.graph)}
    for pattern in _REFUSED:
        for found in pattern.findall(message):
            if found in types:
                yield found
            elif found in named:
                yield named[found]


def _widen_stored(graph: GraphProto, plan: Widening) -> Iterator[NodeProto]:
    """Put stored numbers into the wider type; the nodes that do it for those that are left in files."""
    given = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if tensor.data_type not in plan.kinds:
            continue
        if describe.elsewhere(tensor) and tensor.name not in given:
            wide, tensor.name = tensor.name, f"{tensor.name}{STORED}"
            yield edits.make_node("Cast", [tensor.name], [wide], name=f"{wide}__widened", to=plan.to)
        else:
            tensor.CopyFrom(_wider(tensor, plan))


def _wider(tensor: TensorProto, plan: Widening) -> TensorProto:
    from onnx import helper

    array = describe.array(tensor).astype(helper.tensor_dtype_to_np_dtype(plan.to))
    return describe.tensor_of(array, tensor.name)


def stored(proto: ModelProto) -> list[tuple[str, Array, Any]]:
    """The stored numbers of a graph that may be a wider one: name, values as they are stored, type as they are used."""
    from onnx import helper

    found = edits.constants(proto.graph)
    cast = {node.input[0]: node for node in proto.graph.node if node.op_type == "Cast" and node.input[0] in found}
    return [
        (cast[name].output[0], array, helper.tensor_dtype_to_np_dtype(edits.attribute(cast[name], "to")))
        if name in cast and name.endswith(STORED)
        else (name, array, array.dtype)
        for name, array in found.items()
    ]


def _retype(value: Any, plan: Widening) -> None:
    if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type in plan.kinds:
        value.type.tensor_type.elem_type = plan.to
    if value.type.HasField("sequence_type"):
        element = value.type.sequence_type.elem_type
        if element.HasField("tensor_type") and element.tensor_type.elem_type in plan.kinds:
            element.tensor_type.elem_type = plan.to


def _widen_node(node: NodeProto, plan: Widening) -> None:
    from onnx import helper, numpy_helper

    dtype = helper.tensor_dtype_to_np_dtype(plan.to)
    for attribute in node.attribute:
        if attribute.name in TYPED and attribute.i in plan.kinds:
            attribute.i = plan.to
        if attribute.HasField("t") and attribute.t.data_type in plan.kinds:
            attribute.t.CopyFrom(_wider(attribute.t, plan))
    if SINGLE in plan.kinds:
        if node.op_type == "Constant":
            for name in ("value_float", "value_floats"):
                if (number := edits.attribute(node, name)) is not None:
                    edits.set_attribute(node, name, None)
                    edits.set_attribute(node, "value", numpy_helper.from_array(np.array(number, dtype=dtype)))
        if node.op_type == "ConstantOfShape" and not node.attribute:
            edits.set_attribute(node, "value", numpy_helper.from_array(np.zeros(1, dtype=dtype)))
        if node.op_type in ("RandomNormal", "RandomUniform") and edits.attribute(node, "dtype") is None:
            edits.set_attribute(node, "dtype", plan.to)
    for inner in edits.subgraphs(node):
        _widen_stored(inner, plan)
        del inner.value_info[:]
        for value in (*inner.input, *inner.output):
            _retype(value, plan)
        for each in inner.node:
            _widen_node(each, plan)


def _narrow(node: NodeProto, plan: Widening, renamed: Mapping[str, str]) -> Iterator[NodeProto]:
    """A node as it was, its inputs cast down to what they were and its outputs up again."""
    copy = type(node).FromString(node.SerializeToString())
    down: dict[str, str] = {}
    for name in dict.fromkeys(name for name in edits.reads(node) if plan.concerns(name)):
        down[name] = f"{name}__for__{node.name}"
        yield edits.make_node("Cast", [renamed.get(name, name)], [down[name]], to=plan.types[name])
    edits.rename_reads(copy, down)
    up = [(index, name) for index, name in enumerate(node.output) if name and plan.concerns(name)]
    for index, name in up:
        copy.output[index] = f"{name}__narrow"
    yield copy
    for _, name in up:
        yield edits.make_node("Cast", [f"{name}__narrow"], [name], to=plan.to)


Exact = Mapping[str, Mapping[str, Any]]
"""By the name of a node, attributes as the converter handed them over, before the file rounded them."""


def in_double(proto: ModelProto, exact: Exact, *, rounding: Collection[str] = ()) -> tuple[ModelProto, tuple[str, ...]]:
    """The graph in float64, and the operators that had to stay narrow. Trees named in `rounding` see float32."""
    named = edits.copied(proto)
    edits.name_nodes(named.graph)
    wide = widened(named, Widening({}, frozenset({SINGLE}), narrow_ops=frozenset(), inputs=True))
    nodes: list[NodeProto] = []
    narrow: dict[str, None] = {}
    for node in wide.graph.node:
        if node.op_type in ("TreeEnsembleClassifier", "TreeEnsembleRegressor"):
            writer = Writer(wide.graph, node, dtype=np.float64)
            nodes.extend(_trees(writer, node, exact.get(node.name, {}), rounded=node.name in rounding))
        elif node.op_type == "LabelEncoder":
            nodes.extend(_encoded(Writer(wide.graph, node, dtype=np.float64), node, exact.get(node.name, {})))
        elif node.op_type in SINGLE_OUTPUTS:
            nodes.extend(_narrowed(node))
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


def _encoded(write: Writer, node: NodeProto, exact: Mapping[str, Any]) -> list[NodeProto]:
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


def _narrowed(node: NodeProto, index: int = 0) -> Iterator[NodeProto]:
    """A node whose output of this number is float32, and a cast behind it."""
    yield node
    if name := node.output[index] if index < len(node.output) else "":
        node.output[index] = f"{name}__single"
        yield edits.make_node("Cast", [f"{name}__single"], [name], name=f"{name}__double", to=DOUBLE)


def _single_inputs(node: NodeProto) -> Iterator[NodeProto]:
    name = f"{node.input[0]}__for__{node.name}"
    yield edits.make_node("Cast", [node.input[0]], [name], name=name, to=SINGLE)
    node.input[0] = name
    yield node


def _between_casts(node: NodeProto) -> Iterator[NodeProto]:
    *before, node = _single_inputs(node)
    yield from before
    yield from _narrowed(node, 1 if node.op_type.endswith("Classifier") else 0)


def _trees(write: Writer, node: NodeProto, exact: Mapping[str, Any], *, rounded: bool) -> list[NodeProto]:
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


def _sums(write: Writer, told: Mapping[str, Any], source: str, prefix: str) -> str:
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


def _ensemble(write: Writer, table: tree_edits.Table, source: str, outputs: int) -> str:
    name = write("TreeEnsemble", source, domain=ML, n_targets=outputs, aggregate_function=1, post_transform=0)
    tree_edits.fill(write.nodes[-1], table)
    return name


def _logistic(write: Writer, x: str) -> str:
    """1 / (1 + exp(-x)): the runtime's Sigmoid has no digits left far below zero."""
    return write("Div", 1.0, write("Add", write("Exp", write("Neg", x)), 1.0))


def _transformed(write: Writer, scores: str, transform: str) -> str:
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


def _decided(write: Writer, told: Mapping[str, Any], sums: str, transform: str) -> tuple[str, str]:
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
    return write("Reshape", above, np.array([-1])), write("Concat", first, second, axis=1)
