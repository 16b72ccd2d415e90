"""Copies of an ONNX graph with one thing changed, and what its nodes and tensors are called."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.models.onnx import describe
from likewise.models.onnx.describe import copied as copied
from likewise.models.onnx.open import plain_session
from likewise.models.onnx.walk import all_nodes as all_nodes
from likewise.models.onnx.walk import leading_to as leading_to
from likewise.models.onnx.walk import reads as reads
from likewise.models.onnx.walk import subgraphs as subgraphs

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto


ML = "ai.onnx.ml"
ENCODES_SINCE = 2
"""The version of ai.onnx.ml from which on a LabelEncoder maps any label to any other."""

LARGEST_COPY = 512 * 2**20
"""Bytes of a graph beyond which no changed copies of it are made."""


def editable(proto: ModelProto | None, most: int = LARGEST_COPY) -> ModelProto | None:
    """A copy that may be changed, its own functions written out; None where there is none or it is too large."""
    from onnx import inliner

    if proto is None or proto.ByteSize() > most:
        return None
    copy = copied(proto)
    if copy.functions:
        copy = inliner.inline_local_functions(copy)
    name_nodes(copy.graph)
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


def inputs_at(node: NodeProto, *places: int) -> list[str]:
    """The inputs at some places; those that are not there have no name."""
    return [node.input[place] if place < len(node.input) else "" for place in places]


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
    return {name: describe.array(tensor) for name, tensor in tensors(graph).items()}


def set_constant(graph: GraphProto, name: str, array: Array) -> None:
    """Put another array in the place of a stored one, also where it is cast before it is used, or store a new one."""
    tensor = describe.tensor_of(array, name)
    for stored in graph.initializer:
        if stored.name == name:
            stored.CopyFrom(tensor)
            return
    for node in graph.node:
        if node.op_type == "Constant" and node.output[0] == name:
            describe.take_in(tensor)
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
        rename_reads(node, names)


def rename_reads(node: NodeProto, names: Mapping[str, str]) -> None:
    """Let a node read other tensors, also inside of its branches and loops."""
    for index, name in enumerate(node.input):
        if name in names:
            node.input[index] = names[name]
    for inner in subgraphs(node):
        hidden = {value.name for value in inner.input} | {tensor.name for tensor in inner.initializer}
        outer = {old: new for old, new in names.items() if old not in hidden}
        replace_reads(inner, outer)
        for value in inner.output:
            value.name = outer.get(value.name, value.name)


def sort_nodes(graph: GraphProto) -> None:
    """Put every node after those it depends on, otherwise keeping the order."""
    made = {name for node in graph.node for name in node.output}
    waiting, ready, order = list(graph.node), set[str](), []
    while waiting:
        later = []
        for node in waiting:
            if all(name in ready or name not in made for name in reads(node)):
                order.append(node)
                ready.update(node.output)
            else:
                later.append(node)
        if len(later) == len(waiting):
            raise ValueError("the graph has a cycle")
        waiting = later
    replace_nodes(graph, order)


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
        self.store(name, array if whole else array.astype(self._dtype))
        return name

    def store(self, name: str, array: Array) -> None:
        """Keep a constant under a name of its own."""
        set_constant(self._graph, name, array)

    def into(self, output: str, name: str) -> None:
        """Give what was written under the name of an output of the replaced node."""
        self.nodes.append(make_node("Identity", [name], [output], name=f"{output}__given"))

    def written(self) -> list[NodeProto]:
        """The nodes, of which the last gives what the replaced one gave, under its name."""
        self.nodes[-1].output[0], self.nodes[-1].name = self._out, self._name
        return self.nodes


Nodes = Callable[[Writer, str], str]
"""Writes nodes for a tensor and names what they give."""


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

    needed, read = leading_to(proto.graph, outputs, inputs)
    copy = copied(proto)
    replace_nodes(copy.graph, [proto.graph.node[index] for index in needed])
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


def behind(proto: ModelProto, output: str, nodes: Nodes, *, dtype: Any = None) -> ModelProto | None:
    """The graph with nodes behind one of its outputs, under the same name; None where nothing can stand there.

    Of one dictionary a row, what it is made from is changed. `dtype` is the new type of the elements, if it changes.
    """
    from onnx import helper

    copy = copied(proto)
    graph = copy.graph
    declared = next((value for value in graph.output if value.name == output), None)
    source = source_of_output(graph, output)
    if declared is None or source is None:
        return None
    place = next((index for index, node in enumerate(graph.node) if output in node.output), None)
    if place is None:
        return None
    listed = source != output
    stand_in = make_node("Identity", [source], [f"{output}__changed" if listed else output], name=f"{output}__put")
    writer = Writer(graph, stand_in, float_type(copy, source))
    if listed:
        made = nodes(writer, source)
        graph.node[place].input[0] = made
        replace_nodes(graph, [*graph.node[:place], *writer.nodes, *graph.node[place:]])
    else:
        before = f"{output}__before"
        replace_reads(graph, {output: before})
        producer = graph.node[place]
        producer.output[list(producer.output).index(output)] = before
        made = nodes(writer, before)
        writer.into(output, made)
        replace_nodes(graph, [*graph.node, *writer.nodes])
        _loosen(declared, None if dtype is None else helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    del graph.value_info[:]
    _require_versions(copy)
    return copy


def in_front(proto: ModelProto, name: str, nodes: Nodes) -> ModelProto | None:
    """The graph with nodes between an input and all that read it."""
    copy = copied(proto)
    if all(value.name != name for value in copy.graph.input):
        return None
    stand_in = make_node("Identity", [name], [f"{name}__given"], name=f"{name}__put")
    writer = Writer(copy.graph, stand_in, float_type(copy, name))
    inner = f"{name}__inner"
    replace_reads(copy.graph, {name: inner})
    writer.into(inner, nodes(writer, name))
    replace_nodes(copy.graph, [*writer.nodes, *copy.graph.node])
    del copy.graph.value_info[:]
    _require_versions(copy)
    return copy


def renamed(proto: ModelProto, names: Mapping[str, str]) -> ModelProto:
    """The graph with some of its tensors under other names, all at once: two may change theirs."""
    copy = copied(proto)
    graph = copy.graph
    replace_reads(graph, names)
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for index, name in enumerate(node.output):
            node.output[index] = names.get(name, name)
    return copy


def name_outputs(graph: GraphProto, names: list[str]) -> None:
    """Give the outputs these names; a value inside that has one of them steps aside, or the file would not load."""
    if len(graph.output) != len(names) or len(set(names)) != len(names):
        return
    fixed = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    inside = {name for node in graph.node for name in node.output}
    wanted = {value.name: name for value, name in zip(graph.output, names, strict=True)}
    if len(wanted) != len(names) or fixed & {*wanted, *names}:
        return
    aside = {name: f"{name}_inside" for name in set(names) & inside if name not in wanted}
    renamed = {**aside, **wanted}
    replace_reads(graph, renamed)
    for value in graph.output:
        value.name = renamed[value.name]
    for node in graph.node:
        node.output[:] = [renamed.get(name, name) for name in node.output]


def any_batch(proto: ModelProto, size: int) -> ModelProto:
    """The graph with its first axis left free where it declares a batch of this size, or brings one into shape."""
    copy = copied(proto)
    graph = copy.graph
    for value in (*graph.input, *graph.output):
        first = next(iter(value.type.tensor_type.shape.dim), None)
        if first is not None and first.dim_value == size:
            first.dim_param = "batch"
    stored = constants(graph)
    shapes = {node.input[1] for node in graph.node if node.op_type == "Reshape" and node.input[1] in stored}
    for name in shapes:
        shape = stored[name].copy()
        if shape.size and shape[0] == size and not (shape == -1).any():
            shape[0] = -1
            set_constant(graph, name, shape)
    del graph.value_info[:]
    return copy


def source_of_output(graph: GraphProto, output: str) -> str | None:
    """The tensor that an output gives, or that its dictionaries are made from."""
    made = next((node for node in graph.node if output in node.output), None)
    if made is None:
        return None
    return str(made.input[0]) if made.op_type == "ZipMap" else output


def float_type(proto: ModelProto, name: str) -> Any:
    """The type in which numbers stand beside a tensor: its own, where that is a float."""
    from onnx import helper

    kind = tensor_types(proto).get(name)
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
        require_version(proto, ML, ENCODES_SINCE)


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
    parts = node.name.strip("/").split("/")[:-1] if node.name.startswith("/") else []
    names: list[str] = []
    for part in parts:
        # A part of an nn.Sequential carries the name of the whole once more: /stem/stem.1/Conv.
        if names and part.startswith(f"{names[-1]}."):
            names.pop()
        names.append(part)
    return ".".join(names) or None


STACK = re.compile(r'File "([^"]+)", line (\d+), in')
"""A line of a stack trace that an exporter has written down."""


def source_of(node: NodeProto) -> str:
    """The file and line of the source that a node comes from, where the exporter has noted it."""
    trace = next((entry.value for entry in node.metadata_props if entry.key == "pkg.torch.onnx.stack_trace"), "")
    lines = [f"{path}:{line}" for path, line in STACK.findall(trace) if f"{os.sep}torch{os.sep}" not in path]
    return lines[-1] if lines else ""
