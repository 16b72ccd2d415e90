"""Copies of an ONNX graph with one thing changed, and what its nodes and tensors are called."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.models.onnx import external_data
from likewise.models.onnx.open import plain_session

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto


LARGEST_COPY = 512 * 2**20
"""Bytes of a graph beyond which no changed copies of it are made."""


def editable(proto: ModelProto | None) -> ModelProto | None:
    """A copy that may be changed, its own functions written out; None where there is none or it is too large."""
    from onnx import inliner

    if proto is None or proto.ByteSize() > LARGEST_COPY:
        return None
    copy = copied(proto)
    if copy.functions:
        copy = inliner.inline_local_functions(copy)
    name_nodes(copy.graph)
    return copy


def copied(proto: ModelProto) -> ModelProto:
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def require_version(proto: ModelProto, domain: str, version: int) -> None:
    """Have at least this version of a domain's operators."""
    for entry in proto.opset_import:
        if entry.domain == domain:
            entry.version = max(entry.version, version)
            return
    proto.opset_import.add(domain=domain, version=version)


def name_nodes(graph: GraphProto) -> None:
    """Give every node a name of its own; those that have one keep it."""
    taken: set[str] = set()
    for index, node in enumerate(graph.node):
        if not node.name or node.name in taken:
            name = node.name or node.output[0] or f"{node.op_type}_{index}"
            while name in taken:
                name += "_"
            node.name = name
        taken.add(node.name)


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node, also those inside of branches and loops."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def reads(node: NodeProto) -> Iterator[str]:
    """What a node reads, also inside of its branches and loops."""
    yield from (name for name in node.input if name)
    for inner in subgraphs(node):
        yield from _from_outside(inner)


def _from_outside(graph: GraphProto) -> Iterator[str]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    for node in graph.node:
        yield from (name for name in reads(node) if name not in own)
    yield from (value.name for value in graph.output if value.name not in own)


def make_node(
    operator: str, inputs: Iterable[str], outputs: Iterable[str], name: str = "", **attributes: Any
) -> NodeProto:
    """A node of the graph, not yet in it."""
    from onnx import helper

    return helper.make_node(operator, list(inputs), list(outputs), name=name, **attributes)


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute, or the default."""
    from onnx import helper

    found: AttributeProto | None = next((entry for entry in node.attribute if entry.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def set_attribute(node: NodeProto, name: str, value: Any) -> None:
    """Put an attribute in place; None takes it away."""
    from onnx import helper

    kept = [entry for entry in node.attribute if entry.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value is not None:
        node.attribute.append(helper.make_attribute(name, value))


def tensors(graph: GraphProto) -> dict[str, TensorProto]:
    """The tensors stored in the file, by name and as they are stored: initializers and Constant nodes, sparse aside."""
    from onnx import helper, numpy_helper

    found = {tensor.name: tensor for tensor in graph.initializer}
    kinds = {"value_float": np.float32, "value_int": np.int64, "value_string": object}
    for node in graph.node:
        for entry in node.attribute if node.op_type == "Constant" else ():
            if entry.name == "value":
                found[node.output[0]] = entry.t
            elif (dtype := kinds.get(entry.name.removesuffix("s"))) is not None:
                values = np.array(helper.get_attribute_value(entry), dtype=dtype)
                found[node.output[0]] = numpy_helper.from_array(values, node.output[0])
    return found


def constants(graph: GraphProto) -> dict[str, Array]:
    """The values of the tensors that are stored; those that are left in files are mapped."""
    return {name: external_data.array(tensor) for name, tensor in tensors(graph).items()}


def set_constant(graph: GraphProto, name: str, array: Array) -> None:
    """Put another array in the place of a stored one, also where it is cast before it is used, or store a new one."""
    tensor = external_data.tensor_of(array, name)
    for stored in graph.initializer:
        if stored.name == name:
            stored.CopyFrom(tensor)
            return
    for node in graph.node:
        if node.op_type == "Constant" and node.output[0] == name:
            external_data.take_in(tensor)
            set_attribute(node, "value", tensor)
            for other in ("value_float", "value_int", "value_floats", "value_ints"):
                set_attribute(node, other, None)
            return
        if node.op_type == "Cast" and node.output[0] == name:
            graph.node.remove(node)
            break
    graph.initializer.append(tensor)


def replace_reads(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Let every node that reads one tensor read another, also inside of branches and loops."""
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in names:
                node.input[index] = names[name]
        for inner in subgraphs(node):
            hidden = {value.name for value in inner.input} | {tensor.name for tensor in inner.initializer}
            replace_reads(inner, {old: new for old, new in names.items() if old not in hidden})
            for value in inner.output:
                value.name = names.get(value.name, value.name)


def replace_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    """These nodes instead of those that are there."""
    kept = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


class Writer:
    """Writes nodes in the place of another one: a call adds an operator and gives the name of what it makes.

    A number among the inputs becomes a constant: floats in the given type, float32 as networks have it.
    """

    def __init__(self, graph: GraphProto, node: NodeProto, dtype: Any = np.float32) -> None:
        self._graph, self._out, self._name = graph, node.output[0], node.name
        self._dtype = dtype
        self.nodes: list[NodeProto] = []

    def __call__(self, operator: str, *given: str | float | Array, **attributes: Any) -> str:
        inputs = [name if isinstance(name, str) else self.number(name) for name in given]
        name = f"{self._out}__{len(self.nodes)}"
        self.nodes.append(make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def number(self, value: Any) -> str:
        """The name of a constant that holds this."""
        name = f"{self._out}__stored{len(self._graph.initializer)}"
        array = np.asarray(value)
        whole = isinstance(value, np.ndarray) and array.dtype.kind != "f"
        set_constant(self._graph, name, array if whole else array.astype(self._dtype))
        return name

    def into(self, output: str, name: str) -> None:
        """Give what was written under the name of an output of the replaced node."""
        self.nodes.append(make_node("Identity", [name], [output], name=f"{output}__given"))

    def written(self) -> list[NodeProto]:
        """The nodes, of which the last gives what the replaced one gave, under its name."""
        self.nodes[-1].output[0], self.nodes[-1].name = self._out, self._name
        return self.nodes


def tensor_types(proto: ModelProto) -> dict[str, int]:
    """The element type of every tensor of the outer graph, as the runtime infers them.

    The runtime knows the operators that onnx's own inference does not; where it does not take the graph,
    what is declared has to do.
    """
    import onnx
    from onnx import TensorProto, helper

    found = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    for value in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            found[value.name] = value.type.tensor_type.elem_type
    inner = [name for node in proto.graph.node for name in node.output if name and name not in found]
    if not inner:
        return found
    kinds = TensorProto.DataType
    names = {f"tensor({kinds.Name(kind).lower()})": kind for kind in helper.get_all_tensor_dtypes()}
    try:
        probe = copied(proto)
        probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
        for value in plain_session(probe).get_outputs():
            if value.type in names:
                found.setdefault(value.name, names[value.type])
    except Exception:  # noqa: BLE001 - the runtime raises many types; the declared types remain
        inferred = onnx.shape_inference.infer_shapes(proto).graph.value_info
        found |= {value.name: value.type.tensor_type.elem_type for value in inferred}
    return {name: kind for name, kind in found.items() if kind != TensorProto.UNDEFINED}


def exposed(proto: ModelProto, names: Collection[str], types: Mapping[str, int] | None = None) -> ModelProto:
    """The graph with more of its tensors as outputs: those of known types; if none are given, the runtime finds out."""
    from onnx import ValueInfoProto, helper

    copy = copied(proto)
    there = {value.name for value in copy.graph.output}
    for name in names:
        if name not in there and types is None:
            copy.graph.output.append(ValueInfoProto(name=name))
        elif name not in there and types is not None and name in types:
            copy.graph.output.append(helper.make_tensor_value_info(name, types[name], None))
    return copy


def extracted(proto: ModelProto, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> ModelProto:
    """The part of a graph that makes some tensors of others, with inputs and outputs of the types of these values."""
    import onnx
    from onnx import TensorProto, helper

    def declared(name: str, value: Array) -> onnx.ValueInfoProto:
        kind = TensorProto.STRING if value.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(value.dtype)
        return helper.make_tensor_value_info(name, kind, [None] * value.ndim)

    makers = {name: index for index, node in enumerate(proto.graph.node) for name in node.output}
    waiting, needed, read = list(outputs), set[int](), set[str]()
    while waiting:
        name = waiting.pop()
        read.add(name)
        if name not in inputs and makers.get(name, -1) not in (-1, *needed):
            needed.add(makers[name])
            waiting.extend(reads(proto.graph.node[makers[name]]))
    copy = copied(proto)
    replace_nodes(copy.graph, [proto.graph.node[index] for index in sorted(needed)])
    kept = [tensor for tensor in proto.graph.initializer if tensor.name in read and tensor.name not in inputs]
    for field, values in (
        ("initializer", kept),
        ("input", [declared(*entry) for entry in inputs.items()]),
        ("output", [declared(*entry) for entry in outputs.items()]),
        ("value_info", []),
    ):
        copy.graph.ClearField(field)
        getattr(copy.graph, field).extend(values)
    return copy


def place(node: NodeProto) -> str:
    """A node as its owner would look for it: the module it comes from where the file says so, then its own name."""
    own = f"node '{node.name}'" if node.name else f"the node that gives '{node.output[0]}'"
    module = module_of(node)
    return f"{module} ({node.op_type}, {own})" if module else f"{node.op_type} ({own})"


def setting(node: NodeProto, attribute: str, value: str) -> str:
    """What to set where, in words that hold for the file itself, whose nodes need not have names of their own."""
    return f"Set {attribute}={value} in the {node.op_type} that gives '{node.output[0]}'"


def module_of(node: NodeProto) -> str | None:
    """The path of the PyTorch module a node was exported from."""
    scopes = next((e.value for e in node.metadata_props if e.key == "pkg.torch.onnx.name_scopes"), None)
    if scopes is not None:
        try:
            path = ast.literal_eval(scopes)
        except (ValueError, SyntaxError):
            return None
        modules = [str(entry) for entry in path[:-1] if entry]
        return modules[-1] if modules else None
    parts = node.name.strip("/").split("/")
    return ".".join(parts[:-1]) if node.name.startswith("/") and len(parts) > 1 else None


STACK = re.compile(r'File "([^"]+)", line (\d+), in')
"""A line of a stack trace that an exporter has written down."""


def source_of(node: NodeProto) -> str:
    """The file and line of the source that a node comes from, where the exporter has noted it."""
    trace = next((entry.value for entry in node.metadata_props if entry.key == "pkg.torch.onnx.stack_trace"), "")
    lines = [f"{path}:{line}" for path, line in STACK.findall(trace) if f"{os.sep}torch{os.sep}" not in path]
    return lines[-1] if lines else ""
