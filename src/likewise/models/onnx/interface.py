"""Copies of an ONNX graph with something put behind an output or in front of an input, or with these renamed.

What a reader of answers would do by a line of code, the graph does itself then. Nodes are written by a function that
is given a `Writer` and the name of a tensor, and gives the name of what it made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.models.onnx import edits
from likewise.models.onnx.edits import Writer

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto

Nodes = Callable[[Writer, str], str]
"""Writes nodes for a tensor and names what they give."""

ML = "ai.onnx.ml"
ENCODES_SINCE = 2
"""The version of ai.onnx.ml from which on a LabelEncoder maps any label to any other."""

MOST_AXES = 5
"""Axes whose orders are all tried."""


def behind(proto: ModelProto, output: str, nodes: Nodes, *, dtype: Any = None) -> ModelProto | None:
    """The graph with nodes behind one of its outputs, under the same name; None where nothing can stand there.

    Of one dictionary a row, what it is made from is changed. `dtype` is the new type of the elements, if it changes.
    """
    from onnx import helper

    copy = edits.copied(proto)
    graph = copy.graph
    declared = next((value for value in graph.output if value.name == output), None)
    source = _source(graph, output)
    if declared is None or source is None:
        return None
    place = next((index for index, node in enumerate(graph.node) if output in node.output), None)
    if place is None:
        return None
    listed = source != output
    stand_in = edits.make_node(
        "Identity", [source], [f"{output}__changed" if listed else output], name=f"{output}__put"
    )
    writer = Writer(graph, stand_in, _dtype(copy, source))
    if listed:
        made = nodes(writer, source)
        graph.node[place].input[0] = made
        edits.replace_nodes(graph, [*graph.node[:place], *writer.nodes, *graph.node[place:]])
    else:
        before = f"{output}__before"
        edits.replace_reads(graph, {output: before})
        producer = graph.node[place]
        producer.output[list(producer.output).index(output)] = before
        made = nodes(writer, before)
        writer.into(output, made)
        edits.replace_nodes(graph, [*graph.node, *writer.nodes])
        _loosen(declared, None if dtype is None else helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    del graph.value_info[:]
    _require_versions(copy)
    return copy


def in_front(proto: ModelProto, name: str, nodes: Nodes) -> ModelProto | None:
    """The graph with nodes between an input and all that read it."""
    copy = edits.copied(proto)
    if all(value.name != name for value in copy.graph.input):
        return None
    stand_in = edits.make_node("Identity", [name], [f"{name}__given"], name=f"{name}__put")
    writer = Writer(copy.graph, stand_in, _dtype(copy, name))
    inner = f"{name}__inner"
    edits.replace_reads(copy.graph, {name: inner})
    writer.into(inner, nodes(writer, name))
    edits.replace_nodes(copy.graph, [*writer.nodes, *copy.graph.node])
    del copy.graph.value_info[:]
    _require_versions(copy)
    return copy


def renamed(proto: ModelProto, names: Mapping[str, str]) -> ModelProto:
    """The graph with some of its tensors under other names, all at once: two may change theirs."""
    copy = edits.copied(proto)
    graph = copy.graph
    edits.replace_reads(graph, names)
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for index, name in enumerate(node.output):
            node.output[index] = names.get(name, name)
    return copy


def any_batch(proto: ModelProto, size: int) -> ModelProto:
    """The graph with its first axis left free where it declares a batch of this size, or brings one into shape."""
    copy = edits.copied(proto)
    graph = copy.graph
    for value in (*graph.input, *graph.output):
        first = next(iter(value.type.tensor_type.shape.dim), None)
        if first is not None and first.dim_value == size:
            first.dim_param = "batch"
    stored = edits.constants(graph)
    shapes = {node.input[1] for node in graph.node if node.op_type == "Reshape" and node.input[1] in stored}
    for name in shapes:
        shape = stored[name].copy()
        if shape.size and shape[0] == size and not (shape == -1).any():
            shape[0] = -1
            edits.set_constant(graph, name, shape)
    del graph.value_info[:]
    return copy


def picked(
    proto: ModelProto, label: str, scores: str, classes: Sequence[Any], above: float | None
) -> ModelProto | None:
    """The graph whose label is picked from its own scores: the highest, or the second class above a threshold."""
    source = _source(proto.graph, scores)
    known = np.array(classes, dtype=object if isinstance(classes[0], str) else np.int64)
    if source is None or isinstance(classes[0], float | bool):
        return None
    wide = _dtype(proto, source)

    def choose(write: Writer, _: str) -> str:
        if above is None:
            chosen = write("ArgMax", source, axis=1, keepdims=0)
        else:
            # A column of two, or the only one: the last in either case.
            last = write("Gather", write("Flatten", source, axis=1), np.array(-1, dtype=np.int64), axis=1)
            chosen = write("Cast", write("Greater", last, np.array(above, dtype=wide)), to=7)
        return write("Gather", np.array(known), chosen, axis=0)

    return behind(proto, label, choose, dtype=known.dtype)


def encoded(mapping: Mapping[Any, Any]) -> Nodes | None:
    """Labels translated one by one; None where the standard has no operator for such labels."""
    sides = {"keys": list(mapping), "values": list(mapping.values())}
    told = {}
    for side, values in sides.items():
        if all(isinstance(value, str) for value in values):
            told[f"{side}_strings"] = values
        elif all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            told[f"{side}_int64s"] = values
        else:
            return None
    return lambda write, x: write("LabelEncoder", x, domain=ML, **told)


def columns(order: Sequence[int]) -> Nodes:
    """Some columns, in this order."""
    return lambda write, x: write("Gather", x, np.array(order, dtype=np.int64), axis=1)


def rearranged(made: Callable[[Array], Array], shape: Sequence[int]) -> Nodes | None:
    """What a function does to rows of a shape, in nodes; None unless it only moves, scales and shifts their numbers.

    It is read from what the function makes of a few made-up rows, and held against others.
    """
    count = int(np.prod(shape))
    zeros, ones = (np.full((1, *shape), value) for value in (0.0, 1.0))
    drawn = np.random.default_rng(0).normal(size=(2, *shape))
    try:
        offset, ramp, shown = (
            made(zeros)[0],
            made(np.arange(count, dtype=np.float64).reshape(1, *shape))[0],
            made(drawn),
        )
        factor = made(ones)[0] - offset
        if not count or not np.isfinite(factor).all() or not factor.all():
            return None
        order = np.rint((ramp - offset) / factor).astype(np.int64)
        again = drawn.reshape(2, -1)[:, order.ravel()].reshape(shown.shape) * factor + offset
    except (ValueError, IndexError):
        return None
    if not np.allclose(again, shown, rtol=1e-9, atol=1e-9):
        return None
    return partial(_rearranged, shape=tuple(shape), order=order, factor=factor, offset=offset)


def _rearranged(write: Writer, x: str, *, shape: tuple[int, ...], order: Array, factor: Array, offset: Array) -> str:
    places, target = np.arange(order.size).reshape(shape) if order.size == np.prod(shape) else None, order.shape
    turn = None
    if places is not None and len(shape) <= MOST_AXES:
        turns = permutations(range(len(shape)))
        turn = next((axes for axes in turns if np.array_equal(places.transpose(axes).ravel(), order.ravel())), None)
    if turn is None:
        flat = write("Reshape", x, np.array([-1, int(np.prod(shape))], dtype=np.int64))
        x, shape = write("Gather", flat, order.ravel(), axis=1), (order.size,)
    elif turn != tuple(range(len(shape))):
        x = write("Transpose", x, perm=[0, *(axis + 1 for axis in turn)])
        shape = tuple(shape[axis] for axis in turn)
    if shape != target:
        x = write("Reshape", x, np.array([-1, *target], dtype=np.int64))
    if not (factor == 1).all():
        x = write("Mul", x, _least(factor))
    return x if not offset.any() else write("Add", x, _least(offset))


def _least(values: Array) -> Array:
    """The values with axes of length 1 along which they are all the same."""
    for axis in range(values.ndim):
        if (values == values.take([0], axis)).all():
            values = values.take([0], axis)
    return values.reshape(()) if values.size == 1 else values


def _sigmoid(write: Writer, x: str) -> str:
    return write("Sigmoid", x)


def _logit(write: Writer, x: str) -> str:
    return write("Log", write("Div", x, write("Sub", 1.0, x)))


def _normalised(write: Writer, x: str, power: int = 1) -> str:
    return write("LpNormalization", x, axis=-1, p=power)


LINKS: Mapping[str, Nodes] = {
    "exp": lambda write, x: write("Exp", x),
    "sigmoid": _sigmoid,
    "softmax": lambda write, x: write("Softmax", x, axis=-1),
    "log-softmax": lambda write, x: write("LogSoftmax", x, axis=-1),
    "exp(x) - 1": lambda write, x: write("Sub", write("Exp", x), 1.0),
    "square": lambda write, x: write("Mul", x, x),
    "signed square": lambda write, x: write("Mul", write("Abs", x), x),
    "reciprocal": lambda write, x: write("Reciprocal", x),
    "power of 10": lambda write, x: write("Pow", 10.0, x),
    "power of 2": lambda write, x: write("Pow", 2.0, x),
    "tanh": lambda write, x: write("Tanh", x),
    "softplus": lambda write, x: write("Softplus", x),
    "sigmoid, normalised": lambda write, x: _normalised(write, write("Sigmoid", x)),
    "normalised": _normalised,
    "unit length": partial(_normalised, power=2),
}
"""Links by the names that explanations give them (`explain/answers.py`)."""

INVERSES: Mapping[str, Nodes] = {
    "exp": lambda write, x: write("Log", x),
    "sigmoid": _logit,
    "exp(x) - 1": lambda write, x: write("Log", write("Add", x, 1.0)),
    "square": lambda write, x: write("Sqrt", x),
    "signed square": lambda write, x: write("Mul", write("Sign", x), write("Sqrt", write("Abs", x))),
    "reciprocal": lambda write, x: write("Reciprocal", x),
    "power of 10": lambda write, x: write("Div", write("Log", x), float(np.log(10.0))),
    "power of 2": lambda write, x: write("Div", write("Log", x), float(np.log(2.0))),
    "tanh": lambda write, x: write("Atanh", x),
}
"""What takes them back."""


def of_column(link: Nodes, column: int) -> Nodes:
    """Two classes of which one column is put through a link, and the other follows from it."""

    def nodes(write: Writer, x: str) -> str:
        one = link(write, write("Gather", x, np.array([column], dtype=np.int64), axis=1))
        other = write("Sub", 1.0, one)
        return write("Concat", *((other, one) if column else (one, other)), axis=1)

    return nodes


def with_odds(offset: float, *, column: int | None) -> Nodes:
    """Probabilities with something added to their log-odds; those of two classes by this column."""

    def nodes(write: Writer, x: str) -> str:
        return write("Sigmoid", write("Add", _logit(write, x), offset))

    return nodes if column is None else of_column(nodes, column)


def _source(graph: GraphProto, output: str) -> str | None:
    """The tensor that an output gives, or that its dictionaries are made from."""
    made = next((node for node in graph.node if output in node.output), None)
    if made is None:
        return None
    return str(made.input[0]) if made.op_type == "ZipMap" else output


def _dtype(proto: ModelProto, name: str) -> Any:
    """The type in which numbers stand beside a tensor: its own, where that is a float."""
    from onnx import helper

    kind = edits.tensor_types(proto).get(name)
    dtype = np.float32 if kind is None else helper.tensor_dtype_to_np_dtype(kind)
    return dtype if np.dtype(dtype).kind == "f" else np.float32


def _loosen(value: ValueInfoProto, kind: int | None) -> None:
    """Take back what a graph says about the shape of an output, and give its new type."""
    tensor = value.type.tensor_type
    tensor.ClearField("shape")
    if kind is not None:
        tensor.elem_type = kind


def _require_versions(proto: ModelProto) -> None:
    """Name the domains whose operators are used now."""
    domains = {node.domain for node in proto.graph.node}
    if not any(entry.domain in ("", "ai.onnx") for entry in proto.opset_import):
        proto.opset_import.add(domain="", version=17)
    if ML in domains and any(node.op_type == "LabelEncoder" for node in proto.graph.node):
        edits.require_version(proto, ML, ENCODES_SINCE)
