"""Which input of an ONNX graph the columns of a tensor come from, and what has become of them on the way.

Which column of the data a column inside a graph comes from, past steps that only choose, fill, shift and scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from likewise.contracts.comparison import Fed
from likewise.contracts.data import Array

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto


AS_IT_IS = frozenset({"Identity", "Cast", "Imputer", "Clip", "Dropout", "Where", "DequantizeLinear", "QuantizeLinear"})
RESHAPING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
MOST_CONSTANTS = 1 << 20
"""Values of a constant that are looked at; a larger one is a weight."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One column of a tensor, or all of it: `factor * value + shift` of an input.

    `column` is None where the trace stands for every value of the input. Factor and shift are numbers, or
    arrays that are broadcast against the tensor.
    """

    input: str
    column: int | None
    factor: Any = 1.0
    shift: Any = 0.0
    moved: bool = False
    scaled_first: bool = False

    def then(self, factor: Any, shift: Any) -> Trace:
        """The same behind one more step; `scaled_first` tells a stretch from a shift at the beginning."""
        import numpy as np

        first = self.scaled_first if self.moved else not np.any(shift)
        factor, shift = self.factor * factor, self.shift * factor + shift
        return replace(self, factor=factor, shift=shift, moved=True, scaled_first=first)


Layout = tuple[Trace | None, ...]
"""The columns of a tensor in order; a lone trace without a column stands for a whole tensor."""


class Graph:
    """A graph's constants, and the layout of every tensor that still shows its inputs."""

    def __init__(self, graph: GraphProto, inputs: Mapping[str, int | None]) -> None:
        """`inputs` has the width of every input that is a table of columns, and None for other tensors."""
        self.graph = graph
        self.dims: dict[str, tuple[int, ...]] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        self._held: dict[str, Any] = {tensor.name: tensor for tensor in graph.initializer}
        self.layouts: dict[str, Layout] = {}
        for name, width in inputs.items():
            columns = [None] if width is None else range(width)
            self.layouts[name] = tuple(Trace(name, column) for column in columns)
        for node in graph.node:
            if node.op_type == "Constant":
                self._keep(node)
            elif (found := self._of(node)) is not None:
                self.layouts[node.output[0]] = found

    def constant(self, name: str) -> Array | None:
        """The values of a small constant that lies in the file."""
        from onnx import TensorProto, numpy_helper

        tensor = self._held.get(name)
        size = 1
        for length in self.dims.get(name, ()):
            size *= length
        if tensor is None or size > MOST_CONSTANTS or tensor.data_location == TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor)

    def _keep(self, node: NodeProto) -> None:
        from onnx import numpy_helper

        for attribute in node.attribute:
            tensor: Any = None
            if attribute.name == "value":
                tensor = attribute.t
            elif attribute.name in ("value_float", "value_int", "value_floats", "value_ints"):
                import numpy as np

                told = {"value_float": attribute.f, "value_int": attribute.i}.get(attribute.name)
                values = told if told is not None else list(attribute.floats or attribute.ints)
                tensor = numpy_helper.from_array(np.asarray(values))
            if tensor is not None:
                self._held[node.output[0]], self.dims[node.output[0]] = tensor, tuple(tensor.dims)

    def _of(self, node: NodeProto) -> Layout | None:
        """The layout of what a node gives; None where its inputs can no longer be told in it."""
        kind = node.op_type
        if kind in ("Concat", "FeatureVectorizer"):
            return self._side_by_side(node)
        if kind in ("Sub", "Div", "Mul", "Add"):
            return self._moved(node)
        passed_on = node.input[1:3] if kind == "Where" else node.input[:1]
        given = next((self.layouts[name] for name in passed_on if name in self.layouts), None)
        if given is None:
            return None
        if kind in AS_IT_IS:
            return given
        if kind in RESHAPING or kind == "Transpose":
            plain = all(_is_number(trace) for trace in given if trace is not None)
            return given if plain and (kind != "Transpose" or _whole(given)) else None
        if kind in ("OneHotEncoder", "LabelEncoder"):
            # What comes out is no longer the column, but it takes up places beside others.
            listed = attribute(node, "cats_strings", []) or attribute(node, "cats_int64s", [])
            return (None,) * (len(given) * max(len(listed), 1))
        if kind == "Scaler":
            return _scaled(given, attribute(node, "offset", []), attribute(node, "scale", []))
        if kind in ("Gather", "ArrayFeatureExtractor"):
            return self._chosen(node, given)
        return None

    def _side_by_side(self, node: NodeProto) -> Layout | None:
        if node.op_type == "Concat" and attribute(node, "axis", 0) not in (1, -1):
            return None
        parts = [self.layouts.get(name) for name in node.input]
        if any(part is None or _whole(part) for part in parts):
            # Columns before the first unknown part still have their places.
            known = [part for part in parts[: next(i for i, p in enumerate(parts) if p is None or _whole(p))] if part]
            return tuple(trace for part in known for trace in part) or None
        return tuple(trace for part in parts if part is not None for trace in part)

    def _moved(self, node: NodeProto) -> Layout | None:
        """Arithmetic with a constant."""
        left, right = node.input[0], node.input[1]
        given, other = (self.layouts.get(left), self.constant(right))
        if given is None and node.op_type in ("Add", "Mul"):
            given, other = self.layouts.get(right), self.constant(left)
        if given is None or other is None or other.dtype.kind not in "fiu" or not other.size:
            return None
        import numpy as np

        value: Array = other.astype(np.float64)
        if node.op_type == "Div" and not value.all():
            return None
        factor, shift = {
            "Sub": (np.ones_like(value), -value),
            "Add": (np.ones_like(value), value),
            "Mul": (value, np.zeros_like(value)),
            "Div": (1 / np.where(value == 0, 1.0, value), np.zeros_like(value)),
        }[node.op_type]
        if _whole(given):
            trace = given[0]
            return None if trace is None else (trace.then(_plain(factor), _plain(shift)),)
        if factor.size not in (1, len(given)):
            return None
        factors, shifts = np.resize(factor, len(given)).tolist(), np.resize(shift, len(given)).tolist()
        return tuple(
            None if trace is None else trace.then(factors[index], shifts[index]) for index, trace in enumerate(given)
        )

    def _chosen(self, node: NodeProto, given: Layout) -> Layout | None:
        places = self.constant(node.input[1])
        axis = attribute(node, "axis", 0) if node.op_type == "Gather" else 1
        if places is None or axis not in (1, -1) or _whole(given):
            return None
        chosen = places.reshape(-1).tolist()
        return tuple(given[place] for place in chosen) if all(-len(given) <= p < len(given) for p in chosen) else None


def attribute(node: NodeProto, name: str, absent: Any = None) -> Any:
    """An attribute of a node as a plain value."""
    from onnx import helper

    return next((helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name), absent)


def _scaled(given: Layout, offset: Sequence[float], scale: Sequence[float]) -> Layout | None:
    if _whole(given):
        return None
    offset = list(offset or [0.0]) * (len(given) if len(offset or [0.0]) == 1 else 1)
    scale = list(scale or [1.0]) * (len(given) if len(scale or [1.0]) == 1 else 1)
    if len(offset) != len(given) or len(scale) != len(given):
        return None
    return tuple(
        None if trace is None else trace.then(scale[index], -offset[index] * scale[index])
        for index, trace in enumerate(given)
    )


def _whole(layout: Layout) -> bool:
    return len(layout) == 1 and layout[0] is not None and layout[0].column is None


def _is_number(trace: Trace) -> bool:
    return isinstance(trace.factor, float) and isinstance(trace.shift, float)


def _plain(values: Array) -> Any:
    return float(values.reshape(-1)[0]) if values.size == 1 else values


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
