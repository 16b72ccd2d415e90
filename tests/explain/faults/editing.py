"""Changes to ONNX graphs: each takes a model and returns a changed copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Step:
    """A node to be put into a chain: what it computes from the tensor before it and some constants."""

    def __init__(self, operator: str, *constants: Any, constants_first: bool = False, domain: str = "", **attributes):
        self.operator, self.constants, self.attributes = operator, constants, attributes
        self.constants_first, self.domain = constants_first, domain


def copied(proto):
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def node_of(proto, operator, place=0):
    return [node for node in proto.graph.node if node.op_type == operator][place]


def attributes_of(node) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def with_attributes(proto, operator, place=0, **changes):
    """Other attributes of one node: a value, a function of the old value, or None to take it away."""
    proto = copied(proto)
    node = node_of(proto, operator, place)
    for name, change in changes.items():
        old = attributes_of(node).get(name)
        value = change(old) if callable(change) else change
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)
        if value is not None:
            node.attribute.append(helper.make_attribute(name, value))
    return proto


def constants_of(proto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def with_constants(proto, changes: Mapping[str, Callable[[np.ndarray], np.ndarray]]):
    """Other values of some initializers."""
    proto = copied(proto)
    for tensor in proto.graph.initializer:
        if tensor.name in changes:
            old = numpy_helper.to_array(tensor)
            new = np.asarray(changes[tensor.name](old.copy()))
            tensor.CopyFrom(numpy_helper.from_array(new.astype(old.dtype), tensor.name))
    missing = set(changes) - set(constants_of(proto))
    assert not missing, f"{missing} not in {list(constants_of(proto))}"
    return proto


def constant_like(proto, values) -> str:
    """The name of the initializer that holds these values."""
    values = np.asarray(values)
    found = [
        name
        for name, array in constants_of(proto).items()
        if array.size == values.size and array.dtype.kind == "f" and np.allclose(array.ravel(), values.ravel(), 1e-4)
    ]
    assert len(found) == 1, f"{found} of {list(constants_of(proto))}"
    return found[0]


def followed(proto, output, *steps, kind=None, shape=None):
    """A chain of nodes between a tensor and the graph's output of that name."""
    proto = copied(proto)
    graph = proto.graph
    before = _fresh(graph)
    for node in graph.node:
        node.output[:] = [before if name == output else name for name in node.output]
        node.input[:] = [before if name == output else name for name in node.input]
    graph.node.extend(_chain(graph, before, output, steps))
    _allow_text_operators(proto, steps)
    value = next(value for value in graph.output if value.name == output)
    if kind is not None or shape is not None:
        value.CopyFrom(helper.make_tensor_value_info(output, kind or value.type.tensor_type.elem_type, shape))
    return proto


def preceded(proto, name, *steps):
    """A chain of nodes between an input and those that take it."""
    proto = copied(proto)
    graph = proto.graph
    after = _fresh(graph)
    for node in graph.node:
        node.input[:] = [after if entry == name else entry for entry in node.input]
    nodes = [*_chain(graph, name, after, steps), *graph.node]
    _allow_text_operators(proto, steps)
    del graph.node[:]
    graph.node.extend(nodes)
    return proto


def followed_inside(proto, tensor, *steps):
    """A chain of nodes between a tensor inside the graph and those that take it."""
    proto = copied(proto)
    graph = proto.graph
    place = next(index for index, node in enumerate(graph.node) if tensor in node.output) + 1
    after = _fresh(graph)
    for node in graph.node[place:]:
        node.input[:] = [after if name == tensor else name for name in node.input]
    for number, node in enumerate(_chain(graph, tensor, after, steps)):
        graph.node.insert(place + number, node)
    return proto


def _allow_text_operators(proto, steps):
    """The converter asks for the oldest version of a domain that will do; lookups came later."""
    for opset in proto.opset_import:
        if opset.domain == "ai.onnx.ml" and any(step.domain == "ai.onnx.ml" for step in steps):
            opset.version = max(opset.version, 3)


def _fresh(graph) -> str:
    """A name that gives nothing away: a culprit must not be found in the names of what was planted."""
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    return next(name for number in range(1000) if (name := f"t{number}") not in taken)


def _chain(graph, source, target, steps):
    nodes = []
    stem = f"{_fresh(graph)}_{len(graph.initializer)}"
    for number, step in enumerate(steps):
        names = []
        for constant in step.constants:
            array = np.asarray(constant)
            names.append(f"{stem}_c{len(graph.initializer)}")
            graph.initializer.append(numpy_helper.from_array(array, names[-1]))
        result = target if number == len(steps) - 1 else f"{stem}_{number}"
        inputs = [*names, source] if step.constants_first else [source, *names]
        nodes.append(
            helper.make_node(
                step.operator, inputs, [result], domain=step.domain, name=f"{stem}_{number}", **step.attributes
            )
        )
        source = result
    return nodes


def with_values_replaced(proto, name, value, by):
    """One value of an input taken for another."""
    proto = preceded(proto, name, Step("Identity"))
    after = proto.graph.node[0].output[0]
    constants = {"c0": np.float32(value), "c1": np.float32(by)}
    proto.graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in constants.items())
    proto.graph.node[0].CopyFrom(helper.make_node("Where", ["c2", "c1", name], [after]))
    proto.graph.node.insert(0, helper.make_node("Equal", [name, "c0"], ["c2"]))
    return proto


def without(proto, operator, place=0):
    """A node taken out: those behind it take what it took."""
    proto = copied(proto)
    node = node_of(proto, operator, place)
    source, target = node.input[0], node.output[0]
    proto.graph.node.remove(node)
    if target in {value.name for value in proto.graph.output}:
        for other in proto.graph.node:
            other.output[:] = [target if name == source else name for name in other.output]
            other.input[:] = [target if name == source else name for name in other.input]
        return proto
    for other in proto.graph.node:
        other.input[:] = [source if name == target else name for name in other.input]
    return proto


def with_input_type(proto, name, kind, *then):
    """An input declared as another type, cast to what the graph computes with."""
    proto = preceded(proto, name, Step("Cast", to=TensorProto.FLOAT), *then)
    value = next(value for value in proto.graph.input if value.name == name)
    value.type.tensor_type.elem_type = kind
    return proto


def renamed(proto, mapping):
    """Inputs, outputs and tensors of other names."""
    proto = copied(proto)
    graph = proto.graph
    for value in (*graph.input, *graph.output):
        value.name = mapping.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [mapping.get(name, name) for name in node.input]
        node.output[:] = [mapping.get(name, name) for name in node.output]
    return proto


def only_outputs(proto, *names):
    """The graph with some of its outputs."""
    proto = copied(proto)
    kept = [value for value in proto.graph.output if value.name in names]
    del proto.graph.output[:]
    proto.graph.output.extend(kept)
    return proto


def tree_attributes(proto) -> dict[str, Any]:
    return attributes_of(next(node for node in proto.graph.node if node.op_type.startswith("TreeEnsemble")))


def with_trees(proto, **changes):
    operator = next(node.op_type for node in proto.graph.node if node.op_type.startswith("TreeEnsemble"))
    return with_attributes(proto, operator, **changes)


def with_first_trees(proto, count):
    """The first trees of an ensemble, the others taken out."""
    found = tree_attributes(proto)
    changes: dict[str, Any] = {}
    for prefix in ("nodes_", "target_", "class_"):
        ids = found.get(f"{prefix}treeids")
        if ids is None:
            continue
        kept = [place for place, tree in enumerate(ids) if tree < count]
        for name, values in found.items():
            if name.startswith(prefix) and isinstance(values, list) and len(values) == len(ids):
                changes[name] = [values[place] for place in kept]
    return with_trees(proto, **changes)


def labelled_above(proto, bound, *, column=1, yes=1):
    """Labels `yes` where one column of the probabilities is above a bound, else 0 or (if `yes` is not 1) as before."""
    proto = followed(proto, "label", Step("Identity"))
    graph = proto.graph
    before = graph.node.pop().input[0]
    otherwise = "c3" if yes == 1 else before
    constants = {"c0": np.float32(bound), "c1": np.array(column), "c2": np.array([yes]), "c3": np.array([0])}
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    graph.node.extend(
        [
            helper.make_node("Gather", ["probabilities", "c1"], ["c4"], axis=1),
            helper.make_node("Greater", ["c4", "c0"], ["c5"]),
            helper.make_node("Where", ["c5", "c2", otherwise], ["label"]),
        ]
    )
    return proto
