"""One change in an ONNX graph each, as a slip of a converter, an optimiser or a hand would make it.

A node is named by its operator and its position among those of the operator, counted from 0 or from the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from locate_faults.corpus import Edit

Change = Callable[[np.ndarray], np.ndarray]


def graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """A graph and all graphs inside its nodes."""
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += graphs(attribute.g)
    return found


def node_at(model: onnx.ModelProto, operator: str, position: int = 0) -> tuple[onnx.GraphProto, onnx.NodeProto]:
    """The graph that holds the node, and the node. `Op@part` asks for a node whose name holds `part`."""
    operator, _, part = operator.partition("@")
    found = [(g, n) for g in graphs(model.graph) for n in g.node if n.op_type == operator and part in n.name]
    if not -len(found) <= position < len(found):
        raise LookupError(
            f"{len(found)} {operator} in {sorted({n.op_type for g in graphs(model.graph) for n in g.node})}"
        )
    return found[position]


def attribute(operator: str, position: int, name: str, value: Any) -> Edit:
    """Another value of an attribute; None takes it away."""

    def edit(model: onnx.ModelProto) -> None:
        _, node = node_at(model, operator, position)
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)
        if value is not None:
            node.attribute.append(helper.make_attribute(name, value))

    return edit


def weight(operator: str, position: int, slot: int, change: Change) -> Edit:
    """Another value of a constant that a node takes; a shared constant is copied first."""

    def edit(model: onnx.ModelProto) -> None:
        graph, node = node_at(model, operator, position)
        name = node.input[slot]
        value, where = constant(model, name)
        new = np.asarray(change(value.copy()), dtype=value.dtype, order="C")
        users = sum(name in n.input for g in graphs(model.graph) for n in g.node)
        if users > 1:
            node.input[slot] = name + "_edited"
            graph.initializer.append(numpy_helper.from_array(new, name + "_edited"))
        elif isinstance(where, onnx.TensorProto):
            where.CopyFrom(numpy_helper.from_array(new, name))
        else:
            where.t.CopyFrom(numpy_helper.from_array(new, where.t.name))

    return edit


def constant(model: onnx.ModelProto, name: str) -> tuple[np.ndarray, Any]:
    """The value of a constant, and the proto that holds it."""
    for graph in graphs(model.graph):
        for tensor in graph.initializer:
            if tensor.name == name:
                return numpy_helper.to_array(tensor), tensor
        for node in graph.node:
            if node.op_type == "Constant" and node.output[0] == name:
                return numpy_helper.to_array(node.attribute[0].t), node.attribute[0]
    raise LookupError(f"{name} is no constant")


def rewire(operator: str, position: int, slot: int, source: tuple[str, int] | str, out: int = 0) -> Edit:
    """A node takes what another node makes, or a tensor by name."""

    def edit(model: onnx.ModelProto) -> None:
        _, node = node_at(model, operator, position)
        node.input[slot] = source if isinstance(source, str) else node_at(model, *source)[1].output[out]

    return edit


def swap_inputs(operator: str, position: int, first: int = 0, second: int = 1) -> Edit:
    """Two inputs of a node change places."""

    def edit(model: onnx.ModelProto) -> None:
        _, node = node_at(model, operator, position)
        node.input[first], node.input[second] = node.input[second], node.input[first]

    return edit


def leave_out(operator: str, position: int, slot: int = 0) -> Edit:
    """A node is gone, and what it took goes straight on."""

    def edit(model: onnx.ModelProto) -> None:
        graph, node = node_at(model, operator, position)
        taken, made = node.input[slot], node.output[0]
        graph.node.remove(node)
        if made in {o.name for o in graph.output}:
            maker = next(n for n in graph.node if taken in n.output)
            for n in graph.node:
                n.input[:] = [made if i == taken else i for i in n.input]
            maker.output[:] = [made if o == taken else o for o in maker.output]
            return
        for inner in graphs(graph):
            for n in inner.node:
                n.input[:] = [taken if i == made else i for i in n.input]

    return edit


def replace(operator: str, position: int, new: str, keep: int | None = None, **attributes: Any) -> Edit:
    """Another operator in place of a node."""

    def edit(model: onnx.ModelProto) -> None:
        _, node = node_at(model, operator, position)
        node.op_type = new
        node.domain = ""
        if keep is not None:
            del node.input[keep:]
        if attributes:
            del node.attribute[:]
            node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())

    return edit


def insert(operator: str, position: int, new: str, name: str, *extra: np.ndarray, **attributes: Any) -> Edit:
    """A node more, behind another: all that took its output take the new one."""

    def edit(model: onnx.ModelProto) -> None:
        graph, node = node_at(model, operator, position)
        made = node.output[0]
        names = [f"{name}_{i}" for i in range(len(extra))]
        graph.initializer.extend(numpy_helper.from_array(v, n) for v, n in zip(extra, names, strict=True))
        if made in {o.name for o in graph.output}:
            inner = f"{made}_before"
            node.output[0] = inner
            for n in graph.node:
                n.input[:] = [inner if i == made else i for i in n.input]
            fresh = helper.make_node(new, [inner, *names], [made], name=name, **attributes)
        else:
            for n in graph.node:
                n.input[:] = [f"{name}_out" if i == made else i for i in n.input]
            fresh = helper.make_node(new, [made, *names], [f"{name}_out"], name=name, **attributes)
        graph.node.insert(list(graph.node).index(node) + 1, fresh)

    return edit


def freeze(operator: str, position: int, value: np.ndarray) -> Edit:
    """What a node computed is now a constant, as a trace would leave it."""

    def edit(model: onnx.ModelProto) -> None:
        graph, node = node_at(model, operator, position)
        made = node.output[0]
        spot = list(graph.node).index(node)
        name = node.name
        graph.node.remove(node)
        graph.node.insert(
            spot, helper.make_node("Constant", [], [made], name=name, value=numpy_helper.from_array(value, made))
        )

    return edit


def swap_outputs(first: int = 0, second: int = 1) -> Edit:
    """Two outputs of the graph carry each other's name."""

    def edit(model: onnx.ModelProto) -> None:
        a, b = model.graph.output[first].name, model.graph.output[second].name
        other = {a: b, b: a}
        for node in model.graph.node:
            node.input[:] = [other.get(i, i) for i in node.input]
            node.output[:] = [other.get(o, o) for o in node.output]

    return edit


def both(*edits: Edit) -> Edit:
    """One fault that takes several edits."""

    def edit(model: onnx.ModelProto) -> None:
        for one in edits:
            one(model)

    return edit
