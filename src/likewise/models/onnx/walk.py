"""Ways through an ONNX graph: its nodes, what they read, where a tensor comes from.

Whoever goes from a tensor to what it is made from comes to an end: `describe.read` lets in no graph that leads in a
circle, which the runtime would refuse as well, but only later.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from likewise.errors import ModelError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

STANDARD = ("", "ai.onnx", "ai.onnx.ml")
"""Whose operators every runtime knows."""

VALUES = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
"""Where a tensor may keep its values beside its raw bytes and a file: in one of these places."""


RANDOM = frozenset(
    [
        *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"),
        *("Bernoulli", "Multinomial", "Dropout"),
    ]
)
"""Operators that throw dice; a Dropout only in training mode."""

RUNTIMES_OWN = b"ORTM"
"""What ONNX Runtime knows its own format by, after four bytes, whatever else may be made of the others."""


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node, also those inside of branches and loops."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)


def throwing_dice(proto: ModelProto) -> NodeProto | None:
    """A node whose answers another call may not give again, also in a function of the model's own."""
    nodes: list[NodeProto] = [node for function in proto.functions for node in function.node]
    inside = [inner for node in nodes for inner in subgraphs(node)]
    nodes += [node for graph in (proto.graph, *inside) for node in all_nodes(graph)]
    off = {tensor.name for tensor in proto.graph.initializer if tensor.raw_data == b"\0" or [*tensor.int32_data] == [0]}
    for node in nodes:
        trains = node.op_type != "Dropout" or (len(node.input) > 2 and node.input[2] not in ("", *off))
        if node.op_type in RANDOM and node.domain in STANDARD and trains:
            return node
    return None


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The branches or the body of a node."""
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


def upstream(name: str, producers: Mapping[str, NodeProto], *, limit: int) -> Iterator[NodeProto]:
    """The nodes an output comes from, nearest first."""
    queue = deque([name])
    seen: set[int] = set()
    while queue and len(seen) < limit:
        node = producers.get(queue.popleft())
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        queue.extend(node.input)


def leading_to(graph: GraphProto, names: Iterable[str], given: Collection[str] = ()) -> tuple[list[int], set[str]]:
    """The nodes that make some tensors of what is given, in their order, and the names of all that is read there."""
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    waiting, needed, read = list(names), set[int](), set[str]()
    while waiting:
        name = waiting.pop()
        read.add(name)
        index = None if name in given else makers.get(name)
        if index is not None and index not in needed:
            needed.add(index)
            waiting.extend(reads(graph.node[index]))
    return sorted(needed), read


def name_of_one_format(target: object) -> str:
    """What a file or the bytes of a model are called; refused if ONNX Runtime takes them for its own format."""
    name, start = ("the bytes", target[:8]) if isinstance(target, bytes) else (str(target), b"")
    if not start and os.path.isfile(name):
        with open(name, "rb") as file:
            start = file.read(8)
    if start[4:8] == RUNTIMES_OWN:
        raise _of_the_runtime(name)
    return name


def _of_the_runtime(name: str) -> ModelError:
    return ModelError(
        f"ONNX Runtime reads {name} in a format of its own (.ort), whatever ONNX others find in it",
        remedy="Compare the ONNX file that it was made from",
    )


def require_one_meaning(proto: ModelProto, name: str) -> None:
    """Refuse a graph that nobody can compute, and one of which two runtimes may compute two things."""
    if proto.producer_name.encode().startswith(RUNTIMES_OWN):
        raise _of_the_runtime(name)  # as bytes it begins like that format
    if (tensor := _made_from_itself(proto.graph)) is not None:
        # Whoever looks for what an output means would not come to an end.
        raise ModelError(f"{name} cannot be computed: {tensor!r} is made from itself", remedy="Export it again")
    if own := next((function.name for function in proto.functions if function.domain in STANDARD), None):
        # The standard leaves it to each runtime which one counts, the operator or the model's own function.
        raise ModelError(
            f"{name} defines the operator {own!r} itself, and runtimes do not agree on whether that counts",
            remedy="Give its functions a domain of their own",
        )
    if (weight := _told_twice(proto) or _hidden(proto)) is not None:
        raise ModelError(
            f"{name} gives the weight {weight!r} two values, and runtimes do not agree on which one counts",
            remedy="Export it again",
        )
    if (what := _other_meaning(proto)) is not None:
        raise ModelError(
            f"{name} gives {what}, and runtimes do not agree on which one counts", remedy="Export it again"
        )


def _told_twice(proto: ModelProto) -> str | None:
    """A weight that is there twice: under one name, in two fields of one tensor, or in two places of its file."""
    for part in _parts(proto):
        if part.DESCRIPTOR.name == "GraphProto":
            known = [tensor.name for tensor in part.initializer]
            known += [tensor.values.name for tensor in part.sparse_initializer]
            if (name := _repeated(known)) is not None:
                return name
        elif part.DESCRIPTOR.name == "TensorProto":
            told = [*(len(getattr(part, field)) > 0 for field in VALUES), part.HasField("raw_data")]
            outside = part.data_location == part.EXTERNAL
            if sum(told) + outside > 1 or _repeated(entry.key for entry in part.external_data) is not None:
                return str(part.name)
    return None


def _hidden(proto: ModelProto) -> str | None:
    """A weight of a branch or a loop that is called as another one around it: which of them is read there?"""
    waiting: list[tuple[Iterable[NodeProto], dict[str, Any]]] = [
        (proto.graph.node, _weights(proto.graph)),
        *((function.node, {}) for function in proto.functions),
    ]
    while waiting:
        nodes, around = waiting.pop()
        for inner in (graph for node in nodes for graph in subgraphs(node)):
            own = _weights(inner)
            for name in own.keys() & around.keys():
                if own[name].SerializeToString() != around[name].SerializeToString():
                    return name
            waiting.append((inner.node, {**around, **own}))
    return None


def _weights(graph: GraphProto) -> dict[str, Any]:
    """The weights of a graph by name."""
    found: dict[str, Any] = {tensor.name: tensor for tensor in graph.initializer}
    return found | {tensor.values.name: tensor for tensor in graph.sparse_initializer}


def _other_meaning(proto: ModelProto) -> str | None:
    """Something beside the weights that is there twice, and what it is."""
    for imported in (proto.opset_import, *(function.opset_import for function in proto.functions)):
        versions = {
            (STANDARD[0] if entry.domain in STANDARD[:2] else entry.domain, entry.version) for entry in imported
        }
        if (domain := _repeated(domain for domain, _ in versions)) is not None:
            return f"two versions of the operators of {domain or STANDARD[1]!r}"
    if (own := _repeated(f"{function.domain}.{function.name}" for function in proto.functions)) is not None:
        return f"the function {own!r} twice"
    for function in proto.functions:
        given = (*function.attribute, *(attribute.name for attribute in function.attribute_proto))
        if (name := _repeated(given)) is not None:
            return f"the attribute {name!r} of the function {function.name!r} twice"
    for node in every_node(proto):
        names = [attribute.name for attribute in node.attribute]
        if (name := _repeated(names)) is not None:
            return f"the attribute {name!r} of a {node.op_type} twice"
        values = sum(name.startswith(("value", "sparse_value")) for name in names)
        if node.op_type == "Constant" and node.domain in STANDARD and values > 1:
            return f"the constant {next(iter(node.output), '')!r} two values"
    return None


def _repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _parts(proto: ModelProto) -> Iterator[Any]:
    """Every graph, node and tensor, in whatever part of a model: functions of its own and training among them."""
    graphs = [proto.graph, *(graph for info in proto.training_info for graph in (info.initialization, info.algorithm))]
    attributes = [attribute for function in proto.functions for attribute in function.attribute_proto]
    nodes = [node for function in proto.functions for node in function.node]
    while graphs or attributes or nodes:
        yield from graphs
        sparse = [tensor for graph in graphs for tensor in graph.sparse_initializer]
        yield from (tensor for graph in graphs for tensor in graph.initializer)
        nodes += [node for graph in graphs for node in graph.node]
        yield from nodes
        attributes += [attribute for node in nodes for attribute in node.attribute]
        for attribute in attributes:
            yield from (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors)
            sparse += [attribute.sparse_tensor, *attribute.sparse_tensors]
        yield from (part for tensor in sparse for part in (tensor.values, tensor.indices))
        graphs = [attribute.g for attribute in attributes if attribute.HasField("g")]
        graphs += [graph for attribute in attributes for graph in attribute.graphs]
        attributes, nodes = [], []


def every_tensor(proto: ModelProto) -> Iterator[TensorProto]:
    """All that may hold values or name a file."""
    return (part for part in _parts(proto) if part.DESCRIPTOR.name == "TensorProto")


def every_node(proto: ModelProto) -> Iterator[NodeProto]:
    """All that may be computed, whatever calls it and whether or not it is reached."""
    return (part for part in _parts(proto) if part.DESCRIPTOR.name == "NodeProto")


def _made_from_itself(graph: GraphProto) -> str | None:
    """A tensor that cannot be computed because it would have to be there before, also inside of branches and loops."""
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    before = [{makers[name] for name in reads(node) if name in makers} for node in graph.node]
    # Nodes stand in the order in which they can be computed, in nearly every file.
    if any(max(needed, default=-1) >= index for index, needed in enumerate(before)):
        try:
            TopologicalSorter(dict(enumerate(before))).prepare()
        except CycleError as error:
            first = graph.node[error.args[1][0]]
            return str(next(name for name in first.output if name))
    inner = (_made_from_itself(part) for node in graph.node for part in subgraphs(node))
    return next((found for found in inner if found is not None), None)
