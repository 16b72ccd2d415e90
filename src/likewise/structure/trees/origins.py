"""Which column of the data a column inside a graph comes from, past steps that only choose, fill, shift and scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from likewise.contracts.data import Array
from likewise.contracts.suites import Fed

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

DEEPEST = 40
"""Steps after which a graph is no longer followed."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A column of the data, or a position of one, and what was done to it: (value - offset) * scale."""

    column: str
    index: int | None
    offset: float = 0.0
    scale: float = 1.0

    @property
    def direct(self) -> bool:
        return self.offset == 0 and self.scale == 1

    def undone(self, value: float) -> float:
        """The value of the column that becomes this one."""
        return value if self.direct else value / self.scale + self.offset

    def shifted(self, by: float) -> Origin:
        return replace(self, offset=self.offset - by / self.scale)

    def scaled(self, by: float) -> Origin:
        return replace(self, scale=self.scale * by)


Origins: TypeAlias = tuple[Origin | None, ...]
"""One a column of a tensor, as far as its columns can be counted; None for what is made in another way."""


def origins(proto: ModelProto, tensor: str, fed: Mapping[str, Fed]) -> Origins:
    """Where the columns of a tensor come from."""
    makers = {name: node for node in proto.graph.node for name in node.output}
    return _Graph(makers, _constants(proto), fed).follow(tensor, 0)[0]


@dataclass(frozen=True, slots=True)
class _Graph:
    makers: Mapping[str, NodeProto]
    constants: Mapping[str, Array]
    fed: Mapping[str, Fed]

    def follow(self, tensor: str, depth: int) -> tuple[Origins, bool]:
        """The columns of a tensor, and whether these are all it has."""
        if tensor in self.fed:
            return tuple(Origin(*feature) for feature in self.fed[tensor]), True
        node = self.makers.get(tensor)
        if node is None or depth > DEEPEST:
            return (), False
        told = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type in ("Identity", "Cast", "Imputer", "Reshape"):
            found, whole = self.follow(node.input[0], depth + 1)
            return self._reshaped(node, found, whole=whole) if node.op_type == "Reshape" else (found, whole)
        if node.op_type in ("Concat", "FeatureVectorizer"):
            return self._side_by_side([self.follow(name, depth + 1) for name in node.input])
        if node.op_type == "OneHotEncoder":
            return (None,) * max(len(told[name].ints or told[name].strings) for name in told if "cats" in name), True
        if node.op_type == "Scaler":
            found, whole = self.follow(node.input[0], depth + 1)
            found = _each(found, [-value for value in told["offset"].floats], Origin.shifted)
            return _each(found, list(told["scale"].floats), Origin.scaled), whole
        if node.op_type in ("Gather", "ArrayFeatureExtractor") and node.input[1] in self.constants:
            found, whole = self.follow(node.input[0], depth + 1)
            chosen = [int(place) for place in self.constants[node.input[1]].reshape(-1)]
            known = whole or all(place < len(found) for place in chosen)
            return (tuple(found[place] for place in chosen), True) if known else ((), False)
        if node.op_type in ("Sub", "Add", "Mul", "Div") and node.input[1] in self.constants:
            found, whole = self.follow(node.input[0], depth + 1)
            return self._computed(node, found), whole
        return (), False

    def _reshaped(self, node: NodeProto, found: Origins, *, whole: bool) -> tuple[Origins, bool]:
        """A column that stays one; of what else is reshaped only the width may be known."""
        shape = self.constants.get(node.input[1])
        width = int(shape[-1]) if shape is not None and len(shape) == 2 else -1
        if whole and (width == len(found) or (width == -1 and len(found) == 1)):
            return found, True
        return ((None,) * width, True) if width > 0 else ((), False)

    def _side_by_side(self, parts: list[tuple[Origins, bool]]) -> tuple[Origins, bool]:
        found: Origins = ()
        for columns, whole in parts:
            found += columns
            if not whole:
                return found, False
        return found, True

    def _computed(self, node: NodeProto, found: Origins) -> Origins:
        values = [float(value) for value in self.constants[node.input[1]].reshape(-1)]
        if node.op_type in ("Sub", "Add"):
            return _each(found, [-v if node.op_type == "Sub" else v for v in values], Origin.shifted)
        return _each(found, [1 / v if node.op_type == "Div" and v else v for v in values], Origin.scaled)


def _each(found: Origins, values: list[float], change: Callable[[Origin, float], Origin]) -> Origins:
    """Every column changed by its own value, or all by the only one."""
    values = values * len(found) if len(values) == 1 else values
    if len(values) < len(found):
        return (None,) * len(found)
    changed = zip(found, values, strict=False)
    return tuple(None if o is None or (change is Origin.scaled and not v) else change(o, v) for o, v in changed)


def _constants(proto: ModelProto) -> dict[str, Any]:
    from onnx import TensorProto, numpy_helper

    held = {entry.name: entry for entry in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            held[node.output[0]] = node.attribute[0].t
    kept = {name: t for name, t in held.items() if t.data_type != TensorProto.STRING and not t.external_data}
    return {name: numpy_helper.to_array(tensor) for name, tensor in kept.items()}
