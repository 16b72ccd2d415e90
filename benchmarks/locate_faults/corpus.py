"""What a planted fault is, and how one is built: reference, candidate, data and the truth about them, in a folder."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

WORDS: Mapping[str, tuple[str, ...]] = {
    "attribute changed": ("operator-attribute", "operator-semantics"),
    "operator replaced": ("operator-semantics", "operator-attribute", "approximation"),
    "approximated": ("approximation", "operator-semantics", "operator-attribute"),
    "weight edited": ("weight-corruption",),
    "weights stale": ("stale-weights", "weight-corruption"),
    "wiring": ("wrong-wiring",),
    "part left out": ("model-part-dropped",),
    "activation left out": ("model-part-dropped", "link-function"),
    "link left out": ("link-function", "model-part-dropped"),
    "frozen by trace": ("traced-branch", "shape-specialization", "weight-corruption", "model-part-dropped"),
    "constant edited": ("weight-corruption", "operator-attribute"),
    "half precision": ("precision-reduction",),
    "half overflow": ("precision-reduction", "nonfinite"),
    "quantisation": ("quantization",),
    "training mode": ("training-mode",),
    "outputs swapped": ("output-mapping",),
    "optimiser": ("runtime-optimization", "operator-semantics", "wrong-wiring", "model-part-dropped"),
    "step differs": ("preprocessing-differs", "weight-corruption"),
    "step left out": ("preprocessing-dropped", "model-part-dropped"),
    "threshold shifted": ("weight-corruption",),
    "class order": ("label-order", "output-mapping", "weight-corruption"),
    "label mapping": ("label-mapping",),
    "aggregation": ("aggregation",),
    "nonfinite": ("nonfinite",),
}
"""What went wrong in plain words, and the causes a fair reader would accept for it."""


@dataclass
class Truth:
    """Where a fault is: names in the candidate's graph, and in the reference (a module, a step, a removed node)."""

    nodes: set[str] = field(default_factory=set)
    tensors: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Built:
    """One pair, ready to be checked. Without `causes` nothing is wrong with it."""

    name: str
    family: str
    reference: str
    candidate: str
    data: str
    word: str = ""
    causes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""

    def save(self, folder: Path) -> None:
        (folder / "case.json").write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, folder: Path) -> Built:
        return cls(**json.loads((folder / "case.json").read_text()))


Edit = Callable[[onnx.ModelProto], None]


@dataclass(frozen=True)
class Fault:
    """One fault to plant in a network: an edit of its file, or of the module before it is exported.

    `base` is an architecture and how it was exported (`unet/dynamo`); `against` is what the candidate is compared
    with: the torch module, the sound file, or another file of the same architecture.
    """

    name: str
    base: str
    word: str
    edit: Edit | None = None
    module: Callable[[Any], None] | None = None
    training: bool = False
    against: str = "torch"
    paths: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    rows: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def truth_of(sound: onnx.ModelProto, faulty: onnx.ModelProto) -> Truth:
    """What differs between two files of one export: nodes, their outputs and the constants they take."""
    truth = Truth()
    _differ(sound.graph, faulty.graph, truth)
    truth.paths |= {path for node in _walk(faulty.graph) if node.name in truth.nodes for path in scopes(node)}
    return truth


def _differ(
    sound: onnx.GraphProto, faulty: onnx.GraphProto, truth: Truth, around: frozenset[str] = frozenset()
) -> None:
    before = {node.output[0]: node for node in sound.node if node.output}
    after = {node.output[0]: node for node in faulty.node if node.output}
    held = {t.name: t.SerializeToString() for t in sound.initializer}
    holds = {t.name: t.SerializeToString() for t in faulty.initializer}
    edited = {name for name in {**held, **holds} if held.get(name) != holds.get(name)}
    truth.tensors |= edited
    edited |= around
    makers = {out: node for node in faulty.node for out in node.output}
    for name, node in after.items():
        old = before.get(name)
        if old is not None and _inner(old, node):
            for a, b in zip(_graphs(old), _graphs(node), strict=True):
                _differ(a, b, truth, frozenset(edited))
        if old is not None and _plain(old) == _plain(node) and not edited & set(node.input):
            continue
        truth.nodes.add(node.name)
        truth.tensors |= set(node.output)
        truth.paths |= set(scopes(old)) if old is not None else set()
    kept = {node.name for node in faulty.node}
    for node in sound.node:
        if node.name in kept:
            continue  # left out: the place is its name, and where its value now comes from
        truth.nodes.add(node.name)
        truth.tensors |= set(node.output)
        truth.paths |= set(scopes(node))
        truth.nodes |= {makers[i].name for i in node.input if i in makers}
        truth.tensors |= {i for i in node.input if i in makers}
    constants = {o for n in faulty.node if n.op_type == "Constant" and n.name in truth.nodes for o in n.output}
    for node in faulty.node:
        if constants & set(node.input):  # a constant of its own node: the place is who takes it
            truth.nodes.add(node.name)
            truth.tensors |= set(node.output)
    ends = [(a.name, b.name) for a, b in zip(sound.output, faulty.output, strict=True) if a.name != b.name]
    truth.tensors |= {name for pair in ends for name in pair}


def _inner(old: onnx.NodeProto, new: onnx.NodeProto) -> bool:
    """Two nodes that hold graphs and differ in nothing else."""
    return bool(_graphs(old)) and len(_graphs(old)) == len(_graphs(new))


def _graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def _plain(node: onnx.NodeProto) -> bytes:
    twin = copy.deepcopy(node)
    del twin.metadata_props[:]
    flat = [a for a in twin.attribute if a.type != onnx.AttributeProto.GRAPH]
    del twin.attribute[:]
    twin.attribute.extend(flat)
    return twin.SerializeToString(deterministic=True)


def _walk(graph: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for inner in _graphs(node):
            yield from _walk(inner)


def scopes(node: onnx.NodeProto) -> list[str]:
    """The module that a node was exported from, and the line of source, where the exporter wrote them."""
    found = []
    props = {p.key: p.value for p in node.metadata_props}
    if "pkg.torch.onnx.name_scopes" in props:
        names = re.findall(r"'([^']*)'", props["pkg.torch.onnx.name_scopes"])
        found += [names[-1]] + ([names[-2]] if len(names) > 1 and names[-2] else [])
        lines = re.findall(r'File "[^"]*?(nets\.py)", line (\d+)', props.get("pkg.torch.onnx.stack_trace", ""))
        found += [f"{file}:{line}" for file, line in lines[-1:]]
    elif node.name.startswith("/"):
        path = ".".join(part for part in node.name.split("/")[1:-1])
        found += [re.sub(r"^(\w+)\.\1\.", r"\1.", path)] if path else []
    return found


def nodes_of(model: onnx.ModelProto, path: str) -> Truth:
    """Everything that was exported from one module."""
    truth = Truth(paths={path})
    for node in _walk(model.graph):
        here = scopes(node)
        if any(p == path or p.startswith(path + ".") for p in here):
            truth.nodes.add(node.name)
            truth.tensors |= set(node.output) | {i for i in node.input if i in _held(model)}
    return truth


def _held(model: onnx.ModelProto) -> set[str]:
    return {t.name for t in model.graph.initializer}


def run(path: str | Path, data: Mapping[str, np.ndarray], batch: int = 0) -> list[np.ndarray]:
    """The answers of a file, by plain onnxruntime."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds = {i.name: data[i.name] for i in session.get_inputs()}
    answers: list[np.ndarray] = session.run(None, feeds)
    return answers


def beyond(
    reference: Sequence[np.ndarray], candidate: Sequence[np.ndarray], absolute: float = 1e-4, relative: float = 1e-3
) -> int:
    """How many rows differ by more than the tolerance; text and whole numbers where they are not equal."""
    rows = len(reference[0])
    wrong = np.zeros(rows, bool)
    for a, b in zip(reference, candidate, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype.kind in "OUSib":
            wrong |= (a.astype(str).reshape(rows, -1) != b.astype(str).reshape(rows, -1)).any(1)
            continue
        a, b = a.astype(np.float64).reshape(rows, -1), b.astype(np.float64).reshape(rows, -1)
        wrong |= ~(np.abs(a - b) <= absolute + relative * np.abs(a)).all(1)
    return int(wrong.sum())
