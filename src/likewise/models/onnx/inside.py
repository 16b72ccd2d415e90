"""What is inside an ONNX graph: its constants as the nodes that use them see them, and its nodes taken apart.

Copies with other constants, parts that run alone, and what the runtime makes of a graph before it runs it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.models import Model
from likewise.contracts.values import dataclass
from likewise.errors import ModelError, one_line
from likewise.models.onnx import describe, edits
from likewise.models.onnx.edits import reads, replace_reads
from likewise.models.onnx.open import plain_session

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto


PASSING = {"Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast", "DequantizeLinear"}
"""Operators through which a constant stays one: the node behind them is the one that uses it."""

COMMUTATIVE = {"Add", "Mul", "Sum", "Max", "Min"}

COUNTS = ("n_supports", "n_targets")
"""Single numbers that have to fit the arrays beside them."""

LARGEST = 1 << 30
"""A graph of more bytes is not copied for an experiment."""

BLOCK = 2**20
"""Values that are compared at a time: weights may be larger than what is free of the memory."""

GIVEN = "__given"
"""Behind the name of a tensor that is given from outside: what the graph itself comes to keeps its name."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor on its way from one node to another, both by their number."""

    source: int
    target: int
    tensor: str


@dataclass(frozen=True, slots=True)
class Cone:
    """What computes a tensor from the nearest tensors that can be given instead.

    `nodes` are in the order in which they run, those that only hold or pass on constants among them; `sources` are
    the tensors it starts from, `inputs` the inputs of the graph.
    """

    tensor: str
    nodes: tuple[int, ...]
    sources: tuple[str, ...]
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A graph with its nodes by number. `computing` leaves out those that only hold or pass on constants.

    `stored` keeps the constants of the nodes once they were asked for.
    """

    proto: ModelProto
    types: Mapping[str, int]
    computing: tuple[int, ...]
    reads: tuple[tuple[str, ...], ...]
    makers: Mapping[str, int]
    inputs: frozenset[str]
    stored: dict[int, dict[int, Constant]] = field(default_factory=dict)

    @staticmethod
    def of(proto: ModelProto, types: Mapping[str, int]) -> Opened:
        nodes = proto.graph.node
        stored = {tensor.name for tensor in proto.graph.initializer}
        return Opened(
            proto,
            types,
            tuple(used_by(proto)),
            tuple(tuple(dict.fromkeys(reads(node))) for node in nodes),
            {name: index for index, node in enumerate(nodes) for name in node.output if name},
            frozenset(value.name for value in proto.graph.input) - stored,
        )

    def node(self, index: int) -> NodeProto:
        found: NodeProto = self.proto.graph.node[index]
        return found

    def constants_of(self, index: int) -> Mapping[int, Constant]:
        """The constants that a node takes as inputs, by their place."""
        if not self.stored:
            self.stored[-1] = {}
            for constant in constants(self.proto):
                if isinstance(constant.place, int):
                    self.stored.setdefault(constant.node, {})[constant.place] = constant
        return self.stored.get(index, {})

    def made_by(self, tensor: str) -> str | None:
        """The operator that gives a tensor; None if it is given from outside."""
        return self.node(self.makers[tensor]).op_type if tensor in self.makers else None

    @property
    def tensors(self) -> list[str]:
        """What the computing nodes give, in their order."""
        return [name for index in self.computing for name in self.node(index).output if name]

    @property
    def readers(self) -> dict[str, list[int]]:
        """The nodes that read each tensor, in their order."""
        found: dict[str, list[int]] = {}
        for index, names in enumerate(self.reads):
            for name in names:
                found.setdefault(name, []).append(index)
        return found

    def edges(self) -> list[Edge]:
        """The tensors between computing nodes."""
        computing = set(self.computing)
        return [
            Edge(self.makers[name], index, name)
            for index in self.computing
            for name in self.reads[index]
            if self.makers.get(name) in computing
        ]

    def links(self) -> list[tuple[int, int]]:
        """Which computing node leads to which."""
        return [(edge.source, edge.target) for edge in self.edges()]

    def cone(self, tensor: str, given: Collection[str]) -> Cone:
        """The nodes between a tensor and the nearest ones before it that can be given."""
        queue, nodes = [self.makers[tensor]], set[int]()
        sources: dict[str, None] = {}
        read: dict[str, None] = {}
        while queue:
            index = queue.pop()
            if index in nodes:
                continue
            nodes.add(index)
            for name in self.reads[index]:
                if name in given:
                    sources[name] = None
                elif name in self.inputs:
                    read[name] = None
                elif name in self.makers:
                    queue.append(self.makers[name])
        return Cone(tensor, tuple(sorted(nodes)), tuple(sources), tuple(read))

    def computing_in(self, cone: Cone) -> tuple[int, ...]:
        """The nodes of a part that do not only hold or pass on constants."""
        computing = set(self.computing)
        return tuple(index for index in cone.nodes if index in computing)

    def alone(self, cones: Iterable[Cone]) -> ModelProto:
        """A graph of these parts, side by side: each starts from its sources, which are given from outside."""
        import onnx
        from onnx import helper

        parts = list(cones)
        nodes = sorted({index for cone in parts for index in cone.nodes})
        sources = list(dict.fromkeys(name for cone in parts for name in cone.sources))
        read = {name for cone in parts for name in cone.inputs}
        needed = {name for index in nodes for name in self.reads[index]}
        graph = self.proto.graph
        made = onnx.ModelProto()
        made.ir_version = self.proto.ir_version
        made.opset_import.extend(self.proto.opset_import)
        made.graph.name = graph.name or "part"
        made.graph.node.extend(graph.node[index] for index in nodes)
        made.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in needed)
        made.graph.input.extend(value for value in graph.input if value.name in read)
        made.graph.input.extend(helper.make_tensor_value_info(n + GIVEN, self.types[n], None) for n in sources)
        targets = dict.fromkeys(cone.tensor for cone in parts)
        made.graph.output.extend(helper.make_tensor_value_info(n, self.types[n], None) for n in targets)
        replace_reads(made.graph, {name: name + GIVEN for name in sources})
        return made


def rewritten(model: Model, proto: ModelProto) -> ModelProto:
    """What the runtime makes of a graph before it runs it."""
    import onnx

    with TemporaryDirectory() as folder:
        path = Path(folder) / "rewritten.onnx"
        try:
            plain_session(proto, optimization=model.options.get("optimization", "all"), saved=str(path))
            made = onnx.load(path, load_external_data=False)
            # What the runtime has not changed is still named as it was given to it.
            describe.settle(made, made.graph.initializer, Path(describe.serialised(proto)[1]))
        except Exception as error:  # the runtime raises many types; all mean that there is nothing to look into
            raise ModelError(f"ONNX Runtime does not save what it makes of the graph: {one_line(error)}") from error
    edits.name_nodes(made.graph)
    return made


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A constant at one of its uses: an input of a node, or an attribute that holds numbers or words.

    `values` are what the node sees: decoded, transposed and dequantised where the graph does that to it
    before. `tensor` is what it is stored as; constants stored once and used twice have it in common.
    `rounding` is half the distance of the values that its storage can hold, 0 where that is a float type.
    `turned`: the node itself transposes it before it multiplies.
    A constant that is not there (an attribute left out, an input not given) has no values.
    """

    tensor: str
    operator: str
    node: int
    place: int | str
    values: Array
    storage: str
    node_name: str = ""
    rounding: float = 0.0
    turned: bool = False

    @property
    def key(self) -> tuple[int, int | str]:
        return self.node, self.place

    @property
    def text(self) -> str:
        """Where it stands, as a person would look for it."""
        if isinstance(self.place, str):
            named = self.operator
            if self.node_name not in ("", self.operator):
                named += f" {self.node_name!r}"
            return f"attribute '{self.place}' of {named}"
        return f"constant {self.tensor!r}" if self.tensor else f"input {self.place} of {self.operator}"

    @property
    def absent(self) -> bool:
        return self.storage == ""


def constants(proto: ModelProto) -> tuple[Constant, ...]:
    """All constants at all their uses, in the order of the nodes."""
    known = _Known(proto.graph)
    found: list[Constant] = []
    for index, node in enumerate(proto.graph.node):
        if node.op_type == "Constant" or known.passes_on(node):
            continue
        for slot, name in enumerate(node.input):
            if name in known.tensors:
                found.append(
                    replace(
                        known.tensors[name],
                        operator=node.op_type,
                        node=index,
                        place=slot,
                        node_name=node.name,
                        turned=slot == 1 and any(a.name == "transB" and a.i for a in node.attribute),
                    )
                )
        for attribute in node.attribute:
            values = _attribute_values(attribute)
            if values is not None:
                place = f"{node.name or node.op_type}.{attribute.name}"
                found.append(Constant(place, node.op_type, index, attribute.name, values, _storage(values), node.name))
    return tuple(found)


def blocks(*arrays: Array) -> Iterator[slice]:
    """Parts of flat arrays of one size, one after the other; what is left in files is given back behind them."""
    for start in range(0, arrays[0].size, BLOCK):
        yield slice(start, start + BLOCK)
        for array in arrays if arrays[0].size > BLOCK else ():
            describe.release(array)


def equal(one: Array, other: Array) -> bool:
    """Are the entries of two arrays of one shape the same?"""
    held, wanted = one.reshape(-1), other.reshape(-1)
    return one.shape == other.shape and all(np.array_equal(held[part], wanted[part]) for part in blocks(held, wanted))


def absent(proto: ModelProto, node: int, place: int | str) -> Constant:
    """An input or attribute that a node could have and has not."""

    held = proto.graph.node[node]
    return Constant("", held.op_type, node, place, np.zeros(0), "", held.name)


def used_by(proto: ModelProto) -> list[int]:
    """The nodes that compute something: those that only hold or pass on constants are left out."""
    known = _Known(proto.graph)
    nodes = enumerate(proto.graph.node)
    return [index for index, node in nodes if node.op_type != "Constant" and not known.passes_on(node)]


def with_values(proto: ModelProto, changes: Sequence[tuple[Constant, Array]]) -> ModelProto | None:
    """A copy of the graph in which some constants have other values; None if it is too large to copy."""
    if proto.ByteSize() > LARGEST:
        return None
    copy = edits.copied(proto)
    for number, (constant, values) in enumerate(changes):
        node = copy.graph.node[constant.node]
        if isinstance(constant.place, str):
            _set_values(node, constant.place, values)
        else:
            _set_input(copy.graph, node, constant, values, f"likewise_put_back_{number}")
    return copy


def with_added(proto: ModelProto, node: int, values: Array) -> ModelProto | None:
    """A copy of the graph in which a constant is added to what a node gives."""
    from onnx import numpy_helper

    if proto.ByteSize() > LARGEST:
        return None
    copy = edits.copied(proto)
    producer = copy.graph.node[node]
    given, before = producer.output[0], "likewise_before_the_bias"
    producer.output[0] = before
    copy.graph.initializer.append(numpy_helper.from_array(values, "likewise_bias"))
    copy.graph.node.insert(node + 1, edits.make_node("Add", [before, "likewise_bias"], [given], "likewise_add"))
    return copy


class _Known:
    """The names of a graph that stand for constants, with what they hold."""

    def __init__(self, graph: GraphProto) -> None:
        held = edits.constants(graph).items()
        self.tensors = {name: Constant(name, "", -1, 0, _text(values), _storage(values)) for name, values in held}
        for node in graph.node:
            if self.passes_on(node):
                self._pass_on(node)

    def passes_on(self, node: NodeProto) -> bool:
        return node.op_type in PASSING and all(name in self.tensors for name in node.input if name)

    def _pass_on(self, node: NodeProto) -> None:
        first = self.tensors[node.input[0]]
        others = [self.tensors[name].values for name in node.input[1:] if name]
        if node.op_type == "DequantizeLinear":
            values, rounding = _dequantised(node, first.values, others)
        else:
            values, rounding = _passed(node, first.values, others), first.rounding
        self.tensors[node.output[0]] = replace(first, values=values, rounding=rounding)


def _passed(node: NodeProto, values: Array, others: Sequence[Array]) -> Array:
    from onnx import helper

    operator = node.op_type
    if operator == "Transpose":
        return np.transpose(values, edits.attribute(node, "perm"))
    if operator == "Reshape":
        shape = [values.shape[axis] if size == 0 else int(size) for axis, size in enumerate(others[0].tolist())]
        return values.reshape(shape)
    if operator in ("Squeeze", "Unsqueeze"):
        axes = others[0].tolist() if others else edits.attribute(node, "axes")
        if operator == "Squeeze":
            return np.squeeze(values, None if axes is None else tuple(axes))
        return np.expand_dims(values, tuple(axes or ()))
    if operator == "Flatten":
        return values.reshape(int(np.prod(values.shape[: edits.attribute(node, "axis", 1)], dtype=np.int64)), -1)
    if operator == "Cast" and values.dtype.kind in "biuf":
        try:
            return values.astype(helper.tensor_dtype_to_np_dtype(edits.attribute(node, "to")))
        except (KeyError, TypeError, ValueError):
            return values
    return values


def _dequantised(node: NodeProto, values: Array, others: Sequence[Array]) -> tuple[Array, float]:
    """The numbers that whole numbers stand for, and half the distance between two of them."""
    axis = edits.attribute(node, "axis", 1)
    scale = others[0].astype(np.float64)
    zero = others[1].astype(np.float64) if len(others) > 1 else np.zeros_like(scale)
    if scale.ndim == 1 and scale.size > 1 and scale.size == values.shape[axis]:
        shape = [-1 if number == axis % values.ndim else 1 for number in range(values.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    elif scale.size > 1:
        return values, 0.0
    decoded = ((values.astype(np.float64) - zero) * scale).astype(others[0].dtype)
    return decoded, float(np.abs(scale).max()) / 2


def _attribute_values(attribute: AttributeProto) -> Array | None:
    from onnx import AttributeProto, numpy_helper

    if attribute.type == AttributeProto.FLOATS:
        return np.array(attribute.floats, dtype=np.float32)
    if attribute.type == AttributeProto.INT and attribute.name in COUNTS:
        return np.array([attribute.i], dtype=np.int64)
    if attribute.type == AttributeProto.INTS:
        return np.array(attribute.ints, dtype=np.int64)
    if attribute.type == AttributeProto.STRINGS:
        return _text(np.array([bytes(entry) for entry in attribute.strings], dtype=object))
    if attribute.type == AttributeProto.TENSOR:
        return _text(numpy_helper.to_array(attribute.t))
    return None


def _text(values: Array) -> Array:
    """Words as text, whatever the file stores them as."""

    if values.dtype.kind not in "OSU":
        return values
    words = [entry.decode("utf-8", "replace") if isinstance(entry, bytes) else str(entry) for entry in values.flat]
    return np.array(words, dtype=object).reshape(values.shape)


def _storage(values: Array) -> str:
    return "text" if values.dtype.kind in "OSU" else str(values.dtype)


def _set_values(node: NodeProto, name: str, values: Array) -> None:
    """Other values in an attribute, in the form it has or would have."""
    from onnx import TensorProto, numpy_helper

    before = edits.attribute(node, name)
    if isinstance(before, TensorProto):
        edits.set_attribute(node, name, numpy_helper.from_array(values, before.name))
        return
    flat = values.ravel().tolist()
    kind = str if values.dtype.kind in "OSU" else int if values.dtype.kind in "iu" or name in COUNTS else float
    edits.set_attribute(node, name, kind(flat[0]) if name in COUNTS else [kind(entry) for entry in flat])


def _set_input(graph: GraphProto, node: NodeProto, constant: Constant, values: Array, name: str) -> None:
    """A tensor of its own for this use: the stored one may serve others, or come through other nodes."""
    assert isinstance(constant.place, int)
    while len(node.input) <= constant.place:
        node.input.append("")
    node.input[constant.place] = name
    graph.initializer.append(describe.tensor_of(values, name))
