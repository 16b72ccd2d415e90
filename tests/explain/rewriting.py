"""Edits of exported graphs: what somebody might have done to an output."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper


def copied(proto):
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def set_aside(proto, output):
    """Give a tensor another name, so that something else can take its place as an output."""
    aside = f"{output}_before"
    for node in proto.graph.node:
        node.input[:] = [aside if name == output else name for name in node.input]
        node.output[:] = [aside if name == output else name for name in node.output]
    return aside


def behind(proto, output, *operations):
    """Operators after an output, each a name, its constants and its attributes."""
    changed = copied(proto)
    current = set_aside(changed, output)
    for place, (operator, constants, attributes) in enumerate(operations):
        names = [f"{output}_constant_{place}_{index}" for index in range(len(constants))]
        tensors = [numpy_helper.from_array(np.asarray(value), n) for n, value in zip(names, constants, strict=True)]
        changed.graph.initializer.extend(tensors)
        result = output if place == len(operations) - 1 else f"{output}_{place}"
        node = helper.make_node(operator, [current, *names], [result], name=f"{output}_edit_{place}", **attributes)
        changed.graph.node.append(node)
        current = result
    return changed


def instead(proto, output, tensor):
    """Another tensor of the graph under the name of an output."""
    changed = copied(proto)
    set_aside(changed, output)
    changed.graph.node.append(helper.make_node("Identity", [tensor], [output], name="instead"))
    return without_shape(changed, output)


def without_shape(proto, output):
    for value in proto.graph.output:
        if value.name == output:
            value.type.tensor_type.ClearField("shape")
    return proto


def with_attribute(proto, operator, name, change):
    """Another value of an attribute of every node of a kind."""
    changed = copied(proto)
    for node in changed.graph.node:
        for attribute in [entry for entry in node.attribute if entry.name == name and node.op_type == operator]:
            value = change(helper.get_attribute_value(attribute))
            node.attribute.remove(attribute)
            node.attribute.append(helper.make_attribute(name, value))
    return changed


def with_operator(proto, old, new):
    changed = copied(proto)
    for node in changed.graph.node:
        if node.op_type == old:
            node.op_type = new
    return changed


def columns_taken(order):
    return ("Gather", [np.array(order)], {"axis": 1})


REVERSED_ROWS = ("Slice", [np.array([-1]), np.array([-(2**40)]), np.array([0]), np.array([-1])], {})
