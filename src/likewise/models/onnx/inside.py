"""An ONNX graph taken apart: which node reads what, the part of it that leads to a tensor, and parts run alone.

Graphs run with what is inside of them laid open: as they are written, or as the runtime makes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from likewise.contracts.models import Model
from likewise.errors import ModelError, one_line
from likewise.models.onnx import edits
from likewise.models.onnx.constants import used_by
from likewise.models.onnx.edits import replace_reads, subgraphs
from likewise.models.onnx.open import OPTIMIZATIONS

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto


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
    """A graph with its nodes by number. `computing` leaves out those that only hold or pass on constants."""

    proto: ModelProto
    types: Mapping[str, int]
    computing: tuple[int, ...]
    reads: tuple[tuple[str, ...], ...]
    makers: Mapping[str, int]
    inputs: frozenset[str]

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

    @property
    def tensors(self) -> list[str]:
        """What the computing nodes give, in their order."""
        return [name for index in self.computing for name in self.node(index).output if name]

    def edges(self) -> list[Edge]:
        """The tensors between computing nodes."""
        computing = set(self.computing)
        return [
            Edge(self.makers[name], index, name)
            for index in self.computing
            for name in self.reads[index]
            if self.makers.get(name) in computing
        ]

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


def rewritten(model: Model, proto: ModelProto) -> ModelProto:
    """What the runtime makes of a graph before it runs it."""
    import onnx
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    level = OPTIMIZATIONS[model.options.get("optimization", "all")]
    settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rewritten.onnx"
        settings.optimized_model_filepath = str(path)
        try:
            ort.InferenceSession(proto.SerializeToString(), settings, providers=["CPUExecutionProvider"])
            made = onnx.load(str(path))
        except Exception as error:  # the runtime raises many types; all mean that there is nothing to look into
            raise ModelError(f"ONNX Runtime does not save what it makes of the graph: {one_line(error)}") from error
    edits.name_nodes(made.graph)
    return made
