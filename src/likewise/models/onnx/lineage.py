"""Which column of which input a column inside an ONNX graph comes from, and what has become of it on the way.

Followed past steps that only choose, join, fill, shift and scale; behind anything else nothing is known any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.models.onnx.edits import attribute

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


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

    @property
    def place(self) -> tuple[str, int | None]:
        """The input, and which of its columns."""
        return self.input, self.column

    @property
    def direct(self) -> bool:
        """Is it the input's own value?"""
        return not np.any(self.shift) and bool(np.all(np.asarray(self.factor) == 1))

    def then(self, factor: Any, shift: Any) -> Trace:
        """The same behind one more step; `scaled_first` tells a stretch from a shift at the beginning."""
        first = self.scaled_first if self.moved else not np.any(shift)
        factor, shift = self.factor * factor, self.shift * factor + shift
        return replace(self, factor=factor, shift=shift, moved=True, scaled_first=first)

    def back(self, value: Any) -> Any:
        """The value of the input that becomes this one."""
        return value if self.direct else (value - self.shift) / self.factor


Layout = tuple[Trace | None, ...]
"""The columns of a tensor in order; a lone trace without a column stands for a whole tensor."""


class Graph:
    """A graph's constants, and the layout of every tensor that still shows its inputs.

    `partial` has the tensors of which only the first columns are known.
    """

    def __init__(self, graph: GraphProto, inputs: Mapping[str, int | None]) -> None:
        """`inputs` has the width of every input that is a table of columns, and None for other tensors."""
        self.graph = graph
        self._held: dict[str, Any] = {tensor.name: tensor for tensor in graph.initializer}
        self.layouts: dict[str, Layout] = {}
        self.partial: set[str] = set()
        for name, width in inputs.items():
            columns = [None] if width is None else range(width)
            self.layouts[name] = tuple(Trace(name, column) for column in columns)
        for node in graph.node:
            if node.op_type == "Constant":
                self._keep(node)
                continue
            given = next((name for name in self._passed_on(node) if name in self.layouts), "")
            if given in self.partial:
                self.partial.add(node.output[0])
            if (found := self._of(node, self.layouts.get(given))) is not None:
                self.layouts[node.output[0]] = found

    def traces(self, name: str, *, unmoved: bool = False) -> Iterator[tuple[int, Trace]]:
        """The known columns of a tensor by their number; `unmoved`: those that are still what the input holds."""
        for index, trace in enumerate(self.layouts.get(name, ())):
            if trace is not None and not (unmoved and trace.moved):
                yield index, trace

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a constant; nothing for another tensor."""
        return tuple(self._held[name].dims) if name in self._held else ()

    def constant(self, name: str) -> Array | None:
        """The values of a small constant that lies in the file."""
        from onnx import TensorProto, numpy_helper

        tensor = self._held.get(name)
        if tensor is None or prod(tensor.dims) > MOST_CONSTANTS or tensor.data_location == TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor)

    def _keep(self, node: NodeProto) -> None:
        from onnx import numpy_helper

        tensor = attribute(node, "value")
        for name in ("value_float", "value_int", "value_floats", "value_ints"):
            if tensor is None and (number := attribute(node, name)) is not None:
                tensor = numpy_helper.from_array(np.asarray(number))
        if tensor is not None:
            self._held[node.output[0]] = tensor

    def _passed_on(self, node: NodeProto) -> Sequence[str]:
        if node.op_type in ("Concat", "FeatureVectorizer"):
            return ()
        if node.op_type in ("Add", "Mul"):
            return tuple(node.input[:2])
        return tuple(node.input[1:3] if node.op_type == "Where" else node.input[:1])

    def _of(self, node: NodeProto, given: Layout | None) -> Layout | None:
        """The layout of what a node gives; None where its inputs can no longer be told in it."""
        kind = node.op_type
        if kind in ("Concat", "FeatureVectorizer"):
            return self._side_by_side(node)
        if kind in ("OneHotEncoder", "LabelEncoder"):
            # What comes out is no longer the column, but it takes up places beside others.
            listed = attribute(node, "cats_strings", []) or attribute(node, "cats_int64s", [])
            width = 1 if given is None else len(given)
            return (None,) * (width * max(len(listed), 1)) if given is not None or listed else None
        if given is None:
            return None
        if kind in AS_IT_IS:
            return given
        if kind in RESHAPING or kind == "Transpose":
            return self._reshaped(node, given)
        if kind == "Scaler":
            scale = np.asarray(attribute(node, "scale", []) or [1.0], dtype=np.float64)
            offset = np.asarray(attribute(node, "offset", []) or [0.0], dtype=np.float64)
            return None if _is_whole(given) else self._moved(node, given, scale, -offset * scale)
        if kind in ("Sub", "Div", "Mul", "Add"):
            return self._computed(node, given)
        if kind in ("Gather", "ArrayFeatureExtractor"):
            return self._chosen(node, given)
        return None

    def _side_by_side(self, node: NodeProto) -> Layout | None:
        if node.op_type == "Concat" and attribute(node, "axis", 0) not in (1, -1):
            return None
        found: Layout = ()
        for name in node.input:
            part = self.layouts.get(name)
            if part is None or _is_whole(part):
                self.partial.add(node.output[0])
                break
            found += part
            if name in self.partial:
                self.partial.add(node.output[0])
                break
        return found or None

    def _reshaped(self, node: NodeProto, given: Layout) -> Layout | None:
        """A column that stays one; of what else is reshaped only the width may be known."""
        if not all(isinstance(trace.factor, float) and isinstance(trace.shift, float) for trace in given if trace):
            return None
        if _is_whole(given):
            return given
        shape = self.constant(node.input[1]) if node.op_type == "Reshape" else None
        width = int(shape[-1]) if shape is not None and shape.size == 2 else -1
        if width > 0 and (width != len(given) or node.output[0] in self.partial):
            self.partial.discard(node.output[0])
            return (None,) * width
        return given if node.op_type != "Transpose" else None

    def _computed(self, node: NodeProto, given: Layout) -> Layout | None:
        """Arithmetic with a constant."""
        other = self.constant(node.input[1] if node.input[0] in self.layouts else node.input[0])
        if other is None or other.dtype.kind not in "fiu" or not other.size:
            return None
        value: Array = other.astype(np.float64)
        if node.op_type in ("Add", "Sub"):
            return self._moved(node, given, np.ones_like(value), value if node.op_type == "Add" else -value)
        if node.op_type == "Div":
            if not value.all():
                return None
            value = 1 / value
        return self._moved(node, given, value, np.zeros_like(value))

    def _moved(self, node: NodeProto, given: Layout, factor: Array, shift: Array) -> Layout | None:
        if _is_whole(given):
            trace = given[0]
            return None if trace is None else (trace.then(_plain(factor), _plain(shift)),)
        factor, shift = np.broadcast_arrays(factor, shift)
        size = len(given)
        if factor.size not in (1, size) and not (node.output[0] in self.partial and factor.size > size):
            return None
        factors, shifts = (np.resize(part, size).tolist() for part in (factor, shift))
        return tuple(
            None if trace is None else trace.then(factors[index], shifts[index]) for index, trace in enumerate(given)
        )

    def _chosen(self, node: NodeProto, given: Layout) -> Layout | None:
        places = self.constant(node.input[1])
        axis = attribute(node, "axis", 0) if node.op_type == "Gather" else 1
        if places is None or axis not in (1, -1) or _is_whole(given):
            return None
        chosen = places.reshape(-1).tolist()
        least = 0 if node.output[0] in self.partial else -len(given)
        self.partial.discard(node.output[0])
        return tuple(given[place] for place in chosen) if all(least <= p < len(given) for p in chosen) else None


def _is_whole(layout: Layout) -> bool:
    return len(layout) == 1 and layout[0] is not None and layout[0].column is None


def _plain(values: Array) -> Any:
    return float(values.reshape(-1)[0]) if values.size == 1 else values
