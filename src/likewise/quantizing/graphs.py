"""Which nodes of a graph are worth smaller numbers, and what they are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

WEIGHTED = frozenset(
    {
        "Attention",
        "Conv",
        "ConvTranspose",
        "EmbedLayerNormalization",
        "GRU",
        "Gather",
        "Gemm",
        "LSTM",
        "MatMul",
        "QAttention",
        "RNN",
    }
)
"""Operators that multiply with stored weights or look them up; these fill the file and take the time."""


def name_nodes(graph: GraphProto) -> None:
    """Give every node a name of its own: the quantiser excludes nodes by name."""
    taken = Counter(node.name for node in graph.node)
    for index, node in enumerate(graph.node):
        if not node.name or taken[node.name] > 1:
            name = f"{node.op_type}_{index}"
            while name in taken:
                name += "_"
            taken[node.name] -= 1
            taken[name] += 1
            node.name = name


def operators(model: ModelProto) -> dict[str, int]:
    """How many nodes of each operator, most frequent first."""
    counts = Counter(node.op_type for node in model.graph.node)
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def heart(graph: GraphProto) -> set[str]:
    """The names of the nodes with weights and of those that lie between them.

    What comes before the first weights prepares columns of very different scales; what comes after
    the last turns scores into answers. Neither has weights to shrink and both lose by it: eight bits
    for incomes and interest rates in one tensor leave nothing of the rates.
    """
    weighted = weighted_nodes(graph)
    after = _reachable(weighted, _consumers(graph))
    before = _reachable(weighted, _producers(graph))
    return {node.name for node in weighted} | (after & before)


def weighted_nodes(graph: GraphProto) -> list[NodeProto]:
    """The nodes that multiply with, or look up, floating-point numbers stored in the file."""
    stored = _stored(graph)
    return [node for node in graph.node if node.op_type in WEIGHTED and stored.intersection(node.input)]


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
    copies = [type(node).FromString(node.SerializeToString()) for node in order]
    del graph.node[:]
    graph.node.extend(copies)


def _stored(graph: GraphProto) -> set[str]:
    from onnx import TensorProto

    floats = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    names = {tensor.name for tensor in graph.initializer if tensor.data_type in floats}
    constants = [node for node in graph.node if node.op_type == "Constant"]
    return names | {
        node.output[0]
        for node in constants
        if any(a.name == "value" and a.t.data_type in floats for a in node.attribute)
    }


def reads(node: NodeProto) -> Iterator[str]:
    """The names a node reads, also from inside its subgraphs."""
    yield from node.input
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                yield from reads(inner)
            yield from (value.name for value in attribute.g.output)


def _consumers(graph: GraphProto) -> dict[str, list[NodeProto]]:
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in reads(node):
            readers.setdefault(name, []).append(node)
    return {node.name: [reader for name in node.output for reader in readers.get(name, ())] for node in graph.node}


def _producers(graph: GraphProto) -> dict[str, list[NodeProto]]:
    makers = {name: node for node in graph.node for name in node.output}
    return {node.name: [makers[name] for name in reads(node) if name in makers] for node in graph.node}


def _reachable(start: Iterable[NodeProto], neighbours: Mapping[str, list[NodeProto]]) -> set[str]:
    queue = [other for node in start for other in neighbours[node.name]]
    seen: set[str] = set()
    while queue:
        node = queue.pop()
        if node.name not in seen:
            seen.add(node.name)
            queue.extend(neighbours[node.name])
    return seen
