"""What a graph does with the sum of its trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

PASSED = frozenset(
    {"Identity", "Cast", "Reshape", "Squeeze", "Flatten", "ArrayFeatureExtractor", "Gather", "Slice", "Concat", "Sum"}
)
"""Operators that pass a sum on."""

FARTHEST = 12


def divisors(proto: ModelProto, node: int) -> dict[str, float]:
    """Constants that the sum of a node's trees is divided by, with their values."""
    from onnx import numpy_helper

    constants = {entry.name: entry for entry in proto.graph.initializer}
    reached = set(proto.graph.node[node].output)
    found: dict[str, float] = {}
    for _ in range(FARTHEST):
        before = len(reached)
        for user in proto.graph.node:
            if not reached.intersection(user.input):
                continue
            if user.op_type == "Div" and user.input[0] in reached and user.input[1] in constants:
                value = numpy_helper.to_array(constants[user.input[1]])
                if value.size == 1 and float(value.reshape(-1)[0]) != 0:
                    found[user.input[1]] = float(value.reshape(-1)[0])
                    reached.update(user.output)
            elif user.op_type in PASSED:
                reached.update(user.output)
        if len(reached) == before:
            break
    return found


def with_constants(proto: ModelProto, values: dict[str, float]) -> ModelProto:
    """A copy of the graph with other numbers in some of its constants."""
    import numpy as np
    from onnx import ModelProto as Proto
    from onnx import numpy_helper

    copied = Proto()
    copied.CopyFrom(proto)
    for entry in copied.graph.initializer:
        if entry.name in values:
            held = numpy_helper.to_array(entry)
            entry.CopyFrom(numpy_helper.from_array(np.full_like(held, values[entry.name]), entry.name))
    return copied
