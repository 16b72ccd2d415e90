"""Operators written into a graph: what its nodes could have been meant to do, and what a reader does with answers.

Frameworks do not agree about some operators. Every alternative is a change to one node of a graph. Which of them a
reference means cannot be seen in the graph; but with the right one in place, the candidate answers like the reference.
What a reader of answers would do by a line of code, the graph does itself with nodes behind an output or in front of
an input (`edits.behind`, `edits.in_front`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.values import dataclass
from likewise.models.onnx import edits
from likewise.models.onnx.edits import ML, Nodes, Writer

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto


APPROXIMATION, SEMANTICS, ATTRIBUTE = "approximation", "operator-semantics", "operator-attribute"
ROOT_HALF, ROOT_TWO_BY_PI, CUBIC, QUICK = 0.7071067811865476, 0.7978845608028654, 0.044715, 1.702

FLOATS = (1, 10, 11, 16)
"""Tensors of floats, by the number of their type."""

MOST_AXES = 5
"""Axes whose orders are all tried."""

Rewrite = Callable[["GraphProto", "NodeProto"], "list[NodeProto]"]

Found = tuple[str, str, Rewrite]


@dataclass(frozen=True, slots=True)
class Alternative:
    """Something else that a node could do. `kind` is the same for nodes that are changed in the same way."""

    node: str
    kind: str
    cause: str
    told: str
    rewrite: Rewrite
    attribute: str = ""
    value: Any = None


def alternatives(proto: ModelProto, types: Mapping[str, int]) -> Iterator[Alternative]:
    """Everything that the nodes of a graph could have been meant to do; `types` are those of its tensors."""
    stored = edits.constants(proto.graph)
    makers = {name: node for node in proto.graph.node for name in node.output}
    for node in proto.graph.node:
        for cause, told, rewrite in (*_activations(node, stored, makers), *_roundings(node, stored, types)):
            yield Alternative(node.name, f"{node.op_type}: {told}", cause, told, rewrite)
        for cause, name, values in CHOICES.get(node.op_type, ()):
            yield from _others(node, cause, name, values)


def changed(proto: ModelProto, chosen: Mapping[str, Alternative]) -> ModelProto:
    """The graph with some nodes doing something else."""
    copy = edits.copied(proto)
    nodes: list[NodeProto] = []
    for node in copy.graph.node:
        alternative = chosen.get(node.name)
        nodes.extend([node] if alternative is None else alternative.rewrite(copy.graph, node))
    edits.replace_nodes(copy.graph, nodes)
    return copy


def _activations(node: NodeProto, stored: Mapping[str, Array], makers: Mapping[str, NodeProto]) -> Iterator[Found]:
    """Gelu and its approximations, whole or written out; the straight-lined sigmoid."""
    if node.op_type == "Gelu" and node.domain in ("", "ai.onnx"):
        now = edits.attribute(node, "approximate", b"none")
        other = b"none" if now == b"tanh" else b"tanh"
        yield APPROXIMATION, f"approximate={other.decode()} instead of {now.decode()}", _set("approximate", other)
    elif node.op_type in ("FastGelu", "QuickGelu", "Gelu"):
        told = "Gelu by tanh" if node.op_type == "Gelu" else "the exact Gelu"
        yield APPROXIMATION, f"{told} instead of {node.op_type}", _gelu(_tanh if node.op_type == "Gelu" else _erf)
    elif node.op_type == "Tanh" and (source := _cubed(node, stored, makers)) is not None:
        yield APPROXIMATION, "Gelu by erf instead of its approximation by tanh", _of(_erf, source)
    elif node.op_type == "Erf" and (source := _scaled(node, stored, makers, ROOT_HALF)) is not None:
        yield APPROXIMATION, "Gelu by its approximation with tanh instead of erf", _of(_tanh, source)
    elif node.op_type == "Sigmoid":
        if (source := _scaled(node, stored, makers, QUICK)) is not None:
            yield APPROXIMATION, "Gelu by erf instead of sigmoid(1.702 x)", _of(_half_erf, source)
        yield APPROXIMATION, "the straight-lined sigmoid (x/6 + 1/2) instead of Sigmoid", _hard_sigmoid
    elif node.op_type == "HardSigmoid":
        yield APPROXIMATION, "Sigmoid instead of HardSigmoid", _renamed("Sigmoid")
        for slope in (1 / 6, 0.2):
            yield ATTRIBUTE, f"alpha={slope:.4g}", _set("alpha", slope)
    elif node.op_type == "HardSwish":
        yield APPROXIMATION, "x * sigmoid(x) instead of HardSwish", _swish


def _roundings(node: NodeProto, stored: Mapping[str, Array], types: Mapping[str, int]) -> Iterator[Found]:
    if node.op_type == "Round":
        yield SEMANTICS, "halves rounded away from zero instead of to even", _half_away
        yield SEMANTICS, "halves rounded up instead of to even", _half_up
    elif node.op_type == "Floor":
        yield SEMANTICS, "rounded towards zero instead of down", _towards_zero
        yield SEMANTICS, "rounded to the nearest instead of down", _renamed("Round")
    elif node.op_type == "Ceil":
        yield SEMANTICS, "rounded down instead of up", _renamed("Floor")
    elif node.op_type == "Cast" and edits.attribute(node, "to") in (2, 3, 4, 5, 6, 7, 12, 13):
        yield SEMANTICS, "rounded to the nearest instead of cut off when cast to an integer", _before("Round")
        yield SEMANTICS, "rounded down instead of cut off when cast to an integer", _before("Floor")
    elif node.op_type == "Mod":
        yield SEMANTICS, "the remainder with the sign of the divisor instead of the dividend", _floor_mod
        if not edits.attribute(node, "fmod", 0):
            yield SEMANTICS, "the remainder with the sign of the dividend instead of the divisor", _set("fmod", 1)
    elif node.op_type == "Div" and types.get(node.output[0]) not in FLOATS:
        # Of floats it would also take away what was only rounded, wherever both sides end at the same whole number.
        yield SEMANTICS, "a quotient rounded down", _floor_div
        if any(stored[name].dtype.kind == "i" for name in node.input if name in stored):
            yield SEMANTICS, "a quotient with its fraction", _true_div


CHOICES: Mapping[str, tuple[tuple[str, str, tuple[Any, ...]], ...]] = {
    "Resize": (
        (
            ATTRIBUTE,
            "coordinate_transformation_mode",
            ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"),
        ),
        (ATTRIBUTE, "nearest_mode", ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
        (ATTRIBUTE, "mode", ("nearest", "linear", "cubic")),
        (ATTRIBUTE, "cubic_coeff_a", (-0.75, -0.5)),
    ),
    "GridSample": (
        (ATTRIBUTE, "align_corners", (0, 1)),
        (ATTRIBUTE, "padding_mode", ("zeros", "border", "reflection")),
    ),
    "AveragePool": ((ATTRIBUTE, "count_include_pad", (0, 1)),),
    "Pad": ((ATTRIBUTE, "mode", ("constant", "reflect", "edge", "wrap")),),
    "GRU": ((ATTRIBUTE, "linear_before_reset", (0, 1)),),
    **dict.fromkeys(("Softmax", "LogSoftmax"), ((ATTRIBUTE, "axis", (-1, 1, 2, 0)),)),
    **dict.fromkeys(
        ("LayerNormalization", "BatchNormalization", "InstanceNormalization", "GroupNormalization"),
        ((ATTRIBUTE, "epsilon", (1e-5, 1e-3, 1e-6, 1e-12, 1e-7, 1e-8, 1e-2)),),
    ),
}
"""What the attributes of an operator may be; the first is what one that is left out means."""


def _others(node: NodeProto, cause: str, name: str, values: tuple[Any, ...]) -> Iterator[Alternative]:
    now = edits.attribute(node, name, values[0])
    now = now.decode() if isinstance(now, bytes) else now
    for value in values:
        same = value == now if isinstance(value, str | int) else abs(value - now) <= 1e-3 * abs(value)
        if not same:
            shown = f"{now:.4g}" if isinstance(now, float) else now
            told = f"{name}={value} instead of {shown}"
            yield Alternative(node.name, f"{node.op_type}: {told}", cause, told, _set(name, value), name, value)


def _set(name: str, value: Any) -> Rewrite:
    def rewrite(_: GraphProto, node: NodeProto) -> list[NodeProto]:
        edits.set_attribute(node, name, value)
        return [node]

    return rewrite


def _renamed(operator: str) -> Rewrite:
    def rewrite(_: GraphProto, node: NodeProto) -> list[NodeProto]:
        node.op_type = operator
        del node.attribute[:]
        return [node]

    return rewrite


def _before(operator: str) -> Rewrite:
    """Another operator in front of the node's first input."""

    def rewrite(_: GraphProto, node: NodeProto) -> list[NodeProto]:
        name = f"{node.output[0]}__before"
        made = edits.make_node(operator, [node.input[0]], [name], name=name)
        node.input[0] = name
        return [made, node]

    return rewrite


def _as(expression: Callable[[Writer, NodeProto], str]) -> Rewrite:
    """Operators written in the place of a node."""

    def rewrite(graph: GraphProto, node: NodeProto) -> list[NodeProto]:
        write = Writer(graph, node)
        expression(write, node)
        return write.written()

    return rewrite


def _maker(name: str, makers: Mapping[str, NodeProto], operators: tuple[str, ...]) -> NodeProto | None:
    node = makers.get(name)
    return node if node is not None and node.op_type in operators else None


def _scaled(node: NodeProto, stored: Mapping[str, Array], makers: Mapping[str, NodeProto], factor: float) -> str | None:
    """The tensor of which a node is given this multiple."""
    made = _maker(node.input[0], makers, ("Mul", "Div"))
    if made is None:
        return None
    for mine, other in ((0, 1), (1, 0)):
        constant = stored.get(made.input[other])
        if constant is not None and constant.size == 1 and (made.op_type == "Mul" or other == 1):
            value = float(constant.reshape(-1)[0])
            if value and abs((value if made.op_type == "Mul" else 1 / value) - factor) < 1e-3:
                return str(made.input[mine])
    return None


def _cubed(node: NodeProto, stored: Mapping[str, Array], makers: Mapping[str, NodeProto]) -> str | None:
    """The tensor x of a tanh(c (x + 0.044715 x³)), also written c x (1 + 0.044715 x²)."""
    name = node.input[0]
    for _ in range(6):
        made = _maker(name, makers, ("Mul", "Add"))
        if made is None:
            return None
        free = [given for given in made.input if given not in stored]
        if len(free) == 2:
            cubic = [_has_cubic(given, stored, makers, 6) for given in free]
            return free[cubic.index(False)] if sum(cubic) == 1 else None
        if len(free) != 1:
            return None
        name = free[0]
    return None


def _has_cubic(name: str, stored: Mapping[str, Array], makers: Mapping[str, NodeProto], depth: int) -> bool:
    """Is the constant of the approximation of Gelu in what makes a tensor?"""
    if name in stored:
        return bool(stored[name].size == 1 and abs(float(stored[name].reshape(-1)[0]) - CUBIC) < 1e-4)
    made = _maker(name, makers, ("Mul", "Add", "Pow")) if depth else None
    return made is not None and any(_has_cubic(given, stored, makers, depth - 1) for given in made.input)


def _erf(write: Writer, x: str) -> str:
    """erf(x / √2)."""
    return write("Erf", write("Mul", x, ROOT_HALF))


def _tanh(write: Writer, x: str) -> str:
    """The approximation of the same by tanh."""
    cube = write("Mul", write("Mul", x, x), x)
    return write("Tanh", write("Mul", write("Add", x, write("Mul", cube, CUBIC)), ROOT_TWO_BY_PI))


def _half_erf(write: Writer, x: str) -> str:
    """(1 + erf(x / √2)) / 2."""
    return write("Add", write("Mul", _erf(write, x), 0.5), 0.5)


def _of(form: Callable[[Writer, str], str], x: str) -> Rewrite:
    return _as(lambda write, _: form(write, x))


def _gelu(form: Callable[[Writer, str], str]) -> Rewrite:
    """x/2 (1 + erf(x / √2)), or by tanh, in the place of one of the runtime's own forms of Gelu."""

    def expression(write: Writer, node: NodeProto) -> str:
        x = node.input[0]
        if node.op_type == "FastGelu" and len(node.input) > 1 and node.input[1]:
            x = write("Add", x, node.input[1])
        return write("Mul", write("Mul", x, 0.5), write("Add", form(write, x), 1.0))

    return _as(expression)


_hard_sigmoid = _as(lambda write, node: write("HardSigmoid", node.input[0], alpha=1 / 6, beta=0.5))
_swish = _as(lambda write, node: write("Mul", node.input[0], write("Sigmoid", node.input[0])))
_half_up = _as(lambda write, node: write("Floor", write("Add", node.input[0], 0.5)))
_half_away = _as(
    lambda write, node: write(
        "Mul", write("Floor", write("Add", write("Abs", node.input[0]), 0.5)), write("Sign", node.input[0])
    )
)
_towards_zero = _as(
    lambda write, node: write("Mul", write("Floor", write("Abs", node.input[0])), write("Sign", node.input[0]))
)


def _floor_quotient(write: Writer, node: NodeProto) -> tuple[str, str, str]:
    """Both operands in float64, and their quotient rounded down: exact for integers up to 2⁵³."""
    x, y = (write("Cast", name, to=11) for name in node.input)
    return x, y, write("Floor", write("Div", x, y))


def _floor_mod_of(write: Writer, node: NodeProto) -> str:
    x, y, quotient = _floor_quotient(write, node)
    return write("CastLike", write("Sub", x, write("Mul", quotient, y)), node.input[0])


_floor_div = _as(lambda write, node: write("CastLike", _floor_quotient(write, node)[2], node.input[0]))
_floor_mod = _as(_floor_mod_of)
_true_div = _as(lambda write, node: write("Div", *(write("Cast", name, to=1) for name in node.input)))


def picked(
    proto: ModelProto, label: str, scores: str, classes: Sequence[Any], above: float | None
) -> ModelProto | None:
    """The graph whose label is picked from its own scores: the highest, or the second class above a threshold."""
    source = edits.source_of_output(proto.graph, scores)
    known = np.array(classes, dtype=object if isinstance(classes[0], str) else np.int64)
    if source is None or isinstance(classes[0], float | bool):
        return None
    wide = edits.float_type(proto, source)

    def choose(write: Writer, _: str) -> str:
        if above is None:
            chosen = write("ArgMax", source, axis=1, keepdims=0)
        else:
            # A column of two, or the only one: the last in either case.
            last = write("Gather", write("Flatten", source, axis=1), np.array(-1, dtype=np.int64), axis=1)
            chosen = write("Cast", write("Greater", last, np.array(above, dtype=wide)), to=7)
        return write("Gather", np.array(known), chosen, axis=0)

    return edits.behind(proto, label, choose, dtype=known.dtype)


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


def _normalised(write: Writer, x: str) -> str:
    return write("LpNormalization", x, axis=-1, p=1)


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
