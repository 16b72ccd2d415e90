"""Every constant of an ONNX graph, as the node that uses it sees it, and graphs with other constants in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto


PASSING = {"Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast", "DequantizeLinear"}
"""Operators through which a constant stays one: the node behind them is the one that uses it."""

COMMUTATIVE = {"Add", "Mul", "Sum", "Max", "Min"}

COUNTS = ("n_supports", "n_targets")
"""Single numbers that have to fit the arrays beside them."""

LARGEST = 1 << 30
"""A graph of more bytes is not copied for an experiment."""


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A constant at one of its uses: an input of a node, or an attribute that holds numbers or words.

    `values` are what the node sees: decoded, transposed and dequantised where the graph does that to it
    before. `tensor` is what it is stored as; constants stored once and used twice have it in common.
    `rounding` is half the distance of the values that its storage can hold, 0 where that is a float type.
    `turned`: the node itself transposes it before it multiplies.
    A constant that is not there (an attribute left out, an input not given) has no values.
    """

    tensor: str
    operator: str
    node: int
    place: int | str
    values: Array
    storage: str
    node_name: str = ""
    rounding: float = 0.0
    turned: bool = False

    @property
    def key(self) -> tuple[int, int | str]:
        return self.node, self.place

    @property
    def text(self) -> str:
        """Where it stands, as a person would look for it."""
        if isinstance(self.place, str):
            named = self.operator
            if self.node_name not in ("", self.operator):
                named += f" {self.node_name!r}"
            return f"attribute '{self.place}' of {named}"
        return f"constant {self.tensor!r}" if self.tensor else f"input {self.place} of {self.operator}"

    @property
    def absent(self) -> bool:
        return self.storage == ""


def constants(proto: ModelProto) -> tuple[Constant, ...]:
    """All constants at all their uses, in the order of the nodes."""
    known = _Known(proto.graph)
    found: list[Constant] = []
    for index, node in enumerate(proto.graph.node):
        if node.op_type == "Constant" or known.passes_on(node):
            continue
        for slot, name in enumerate(node.input):
            if name in known.tensors:
                found.append(
                    replace(
                        known.tensors[name],
                        operator=node.op_type,
                        node=index,
                        place=slot,
                        node_name=node.name,
                        turned=slot == 1 and any(a.name == "transB" and a.i for a in node.attribute),
                    )
                )
        for attribute in node.attribute:
            values = _attribute_values(attribute)
            if values is not None:
                place = f"{node.name or node.op_type}.{attribute.name}"
                found.append(Constant(place, node.op_type, index, attribute.name, values, _storage(values), node.name))
    return tuple(found)


def absent(proto: ModelProto, node: int, place: int | str) -> Constant:
    """An input or attribute that a node could have and has not."""
    import numpy as np

    held = proto.graph.node[node]
    return Constant("", held.op_type, node, place, np.zeros(0), "", held.name)


def used_by(proto: ModelProto) -> list[int]:
    """The nodes that compute something: those that only hold or pass on constants are left out."""
    known = _Known(proto.graph)
    nodes = enumerate(proto.graph.node)
    return [index for index, node in nodes if node.op_type != "Constant" and not known.passes_on(node)]


def with_values(proto: ModelProto, changes: Sequence[tuple[Constant, Array]]) -> ModelProto | None:
    """A copy of the graph in which some constants have other values; None if it is too large to copy."""
    import onnx

    if proto.ByteSize() > LARGEST:
        return None
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for number, (constant, values) in enumerate(changes):
        node = copy.graph.node[constant.node]
        if isinstance(constant.place, str):
            _set_attribute(node, constant.place, values)
        else:
            _set_input(copy.graph, node, constant, values, f"likewise_put_back_{number}")
    return copy


def with_added(proto: ModelProto, node: int, values: Array) -> ModelProto | None:
    """A copy of the graph in which a constant is added to what a node gives."""
    import onnx
    from onnx import helper, numpy_helper

    if proto.ByteSize() > LARGEST:
        return None
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    producer = copy.graph.node[node]
    given, before = producer.output[0], "likewise_before_the_bias"
    producer.output[0] = before
    copy.graph.initializer.append(numpy_helper.from_array(values, "likewise_bias"))
    copy.graph.node.insert(node + 1, helper.make_node("Add", [before, "likewise_bias"], [given], "likewise_add"))
    return copy


class _Known:
    """The names of a graph that stand for constants, with what they hold."""

    def __init__(self, graph: GraphProto) -> None:
        from onnx import TensorProto, numpy_helper

        self.tensors: dict[str, Constant] = {}
        for tensor in graph.initializer:
            if tensor.data_location != TensorProto.EXTERNAL:
                self._hold(tensor.name, tensor.name, numpy_helper.to_array(tensor))
        for node in graph.node:
            if node.op_type == "Constant":
                values = next((v for a in node.attribute if (v := _constant_value(a)) is not None), None)
                if values is not None:
                    self._hold(node.output[0], node.output[0], values)
            elif self.passes_on(node):
                self._pass_on(node)

    def passes_on(self, node: NodeProto) -> bool:
        return node.op_type in PASSING and all(name in self.tensors for name in node.input if name)

    def _hold(self, name: str, tensor: str, values: Array) -> None:
        self.tensors[name] = Constant(tensor, "", -1, 0, _text(values), _storage(values))

    def _pass_on(self, node: NodeProto) -> None:
        first = self.tensors[node.input[0]]
        others = [self.tensors[name].values for name in node.input[1:] if name]
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "DequantizeLinear":
            values, rounding = _dequantised(first.values, others, attributes)
            self.tensors[node.output[0]] = replace(first, values=values, rounding=rounding)
            return
        self.tensors[node.output[0]] = replace(first, values=_passed(node.op_type, first.values, others, attributes))


def _passed(operator: str, values: Array, others: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    import numpy as np
    from onnx import helper

    if operator == "Transpose":
        return np.transpose(values, list(attributes["perm"].ints) if "perm" in attributes else None)
    if operator == "Reshape":
        shape = [values.shape[axis] if size == 0 else int(size) for axis, size in enumerate(others[0].tolist())]
        return values.reshape(shape)
    if operator in ("Squeeze", "Unsqueeze"):
        listed = list(attributes["axes"].ints) if "axes" in attributes else None
        axes = tuple(others[0].tolist()) if others else None if listed is None else tuple(listed)
        if operator == "Squeeze":
            return np.squeeze(values, axes)
        return np.expand_dims(values, axes or ())
    if operator == "Flatten":
        axis = attributes["axis"].i if "axis" in attributes else 1
        return values.reshape(int(np.prod(values.shape[:axis], dtype=np.int64)), -1)
    if operator == "Cast" and values.dtype.kind in "biuf":
        try:
            return values.astype(helper.tensor_dtype_to_np_dtype(attributes["to"].i))
        except (KeyError, TypeError, ValueError):
            return values
    return values


def _dequantised(values: Array, others: Sequence[Array], attributes: Mapping[str, Any]) -> tuple[Array, float]:
    """The numbers that whole numbers stand for, and half the distance between two of them."""
    import numpy as np

    axis = attributes["axis"].i if "axis" in attributes else 1
    scale = others[0].astype(np.float64)
    zero = others[1].astype(np.float64) if len(others) > 1 else np.zeros_like(scale)
    if scale.ndim == 1 and scale.size > 1 and scale.size == values.shape[axis]:
        shape = [-1 if number == axis % values.ndim else 1 for number in range(values.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    elif scale.size > 1:
        return values, 0.0
    decoded = ((values.astype(np.float64) - zero) * scale).astype(others[0].dtype)
    return decoded, float(np.abs(scale).max()) / 2


def _constant_value(attribute: AttributeProto) -> Array | None:
    import numpy as np
    from onnx import numpy_helper

    if attribute.name == "value":
        return numpy_helper.to_array(attribute.t)
    single = {"value_float": attribute.f, "value_int": attribute.i}.get(attribute.name)
    if single is not None:
        return np.asarray(single)
    return _attribute_values(attribute) if attribute.name.startswith("value_") else None


def _attribute_values(attribute: AttributeProto) -> Array | None:
    import numpy as np
    from onnx import AttributeProto, numpy_helper

    if attribute.type == AttributeProto.FLOATS:
        return np.array(attribute.floats, dtype=np.float32)
    if attribute.type == AttributeProto.INT and attribute.name in COUNTS:
        return np.array([attribute.i], dtype=np.int64)
    if attribute.type == AttributeProto.INTS:
        return np.array(attribute.ints, dtype=np.int64)
    if attribute.type == AttributeProto.STRINGS:
        return _text(np.array([bytes(entry) for entry in attribute.strings], dtype=object))
    if attribute.type == AttributeProto.TENSOR:
        return _text(numpy_helper.to_array(attribute.t))
    return None


def _text(values: Array) -> Array:
    """Words as text, whatever the file stores them as."""
    import numpy as np

    if values.dtype.kind not in "OSU":
        return values
    words = [entry.decode("utf-8", "replace") if isinstance(entry, bytes) else str(entry) for entry in values.flat]
    return np.array(words, dtype=object).reshape(values.shape)


def _storage(values: Array) -> str:
    return "text" if values.dtype.kind in "OSU" else str(values.dtype)


def _set_attribute(node: NodeProto, name: str, values: Array) -> None:
    from onnx import AttributeProto, helper, numpy_helper

    before = next((attribute for attribute in node.attribute if attribute.name == name), None)
    if before is not None and before.type == AttributeProto.TENSOR:
        before.t.CopyFrom(numpy_helper.from_array(values, before.t.name))
        return
    if before is not None:
        node.attribute.remove(before)
    flat = values.ravel()
    if flat.dtype.kind in "OSU":
        node.attribute.append(helper.make_attribute(name, [str(entry) for entry in flat]))
    elif name in COUNTS:
        node.attribute.append(helper.make_attribute(name, int(flat[0])))
    elif flat.dtype.kind in "iu":
        node.attribute.append(helper.make_attribute(name, [int(entry) for entry in flat]))
    else:
        node.attribute.append(helper.make_attribute(name, [float(entry) for entry in flat]))


def _set_input(graph: GraphProto, node: NodeProto, constant: Constant, values: Array, name: str) -> None:
    """A tensor of its own for this use: the stored one may serve others, or come through other nodes."""
    from onnx import numpy_helper

    assert isinstance(constant.place, int)
    while len(node.input) <= constant.place:
        node.input.append("")
    node.input[constant.place] = name
    graph.initializer.append(numpy_helper.from_array(values, name))
