"""What an ONNX graph says about the values of its inputs: tables of embeddings, categories, scalings, thresholds.

A column inside of a graph is followed back to the input it comes from, past steps that only choose, join, fill, shift
and scale; behind anything else nothing is known any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.models import Shape, Signature
from likewise.contracts.values import dataclass
from likewise.data.random_values import About, Between, Clues, nodes_by_feature
from likewise.models.onnx import trees as graph_trees
from likewise.models.onnx.edits import attribute, tensors
from likewise.models.trees.ensemble import LEAF

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
        self._held = tensors(graph)
        self.layouts: dict[str, Layout] = {}
        self.partial: set[str] = set()
        for name, width in inputs.items():
            columns = [None] if width is None else range(width)
            self.layouts[name] = tuple(Trace(name, column) for column in columns)
        for node in graph.node:
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


CHANNELS = (1, 3, 4)
EIGHT_BITS = 255.0
NOTABLE_WIDTH = 10.0
"""Division by less than this is as likely a step of the network as a scaling of its input."""

LARGEST = 1e30
MOST_STEPS = 40
"""Nodes that are followed back from a vocabulary to the text it is for."""


def clues_of(native: Any, signature: Signature) -> Clues | None:
    """The clues of an ONNX graph, by input; None for anything else."""
    if not hasattr(native, "graph") or not hasattr(native, "opset_import"):
        return None
    shapes = {spec.name: spec.shape or () for spec in signature.inputs or ()}
    widths = {name: _width(shape) for name, shape in shapes.items()}
    clues = Clues(lone=frozenset(name for name, width in widths.items() if width == 1))
    graph = Graph(native.graph, widths)
    for node in native.graph.node:
        _note(node, graph, shapes, clues)
    _note_trees(native, graph, clues)
    return clues


def is_image(shape: Shape) -> bool:
    """Four axes, of which the second or the last is that of colours."""
    return len(shape) == 4 and (shape[1] in CHANNELS or shape[3] in CHANNELS)


def _width(shape: Shape) -> int | None:
    """How many columns an input of a table has; None for any other tensor."""
    if len(shape) == 1:
        return 1
    width = shape[1] if len(shape) == 2 else None
    return width if isinstance(width, int) else None


def _note(node: NodeProto, graph: Graph, shapes: Mapping[str, Shape], clues: Clues) -> None:
    reader = _READERS.get(node.op_type)
    if reader is not None:
        reader(node, graph, clues)
    # Arithmetic right after an input: the last step of the chain tells the whole of it.
    for name in node.input:
        layout = graph.layouts.get(name, ())
        followed_on = graph.layouts.get(node.output[0]) is not None if node.output else False
        if not followed_on and any(trace is not None and trace.moved for trace in layout):
            _note_scaling(layout, shapes, clues)


def _note_scaling(layout: Layout, shapes: Mapping[str, Shape], clues: Clues) -> None:
    """What is subtracted is the mean, what is divided by the deviation."""
    for trace in layout:
        if trace is None or not trace.moved or not np.all(trace.factor):
            continue
        place = trace.place
        deviation = 1 / np.abs(np.asarray(trace.factor, dtype=np.float64))
        mean = -np.asarray(trace.shift, dtype=np.float64) / np.asarray(trace.factor, dtype=np.float64)
        if trace.column is None and is_image(shapes.get(trace.input, ())):
            eight = float(deviation.max()) > 2 or float(np.abs(mean).max()) > 2
            most = EIGHT_BITS if eight else 1.0
            clues.add(place, About.RANGE, (0.0, most), "an image, by the constants that normalise it")
        elif trace.scaled_first:
            # Stretched, then moved: to between 0 and 1. What is standardised is moved first.
            low, width = float(mean.mean()), float(deviation.max())
            moved = bool(np.any(mean))
            if moved or width >= NOTABLE_WIDTH:
                why = f"what the graph maps to between {0 if moved else -1} and 1"
                clues.add(place, About.RANGE, (low if moved else -width, low + width), why)
        else:
            told = (float(mean.mean()), float(deviation.max()))
            clues.add(place, About.SCALE, told, "the constants that the graph scales it with")


def _note_gather(node: NodeProto, graph: Graph, clues: Clues) -> None:
    """A table that rows are looked up in: an embedding."""
    rows = graph.shape(node.input[0])
    if len(rows) >= 2 and attribute(node, "axis", 0) == 0:
        for _, trace in graph.traces(node.input[1], unmoved=True):
            told = f"looked up in {node.input[0]!r}, a table of {rows[0]:,} rows"
            clues.add(trace.place, About.IDS, (int(rows[0]),), told)


def _note_one_hot(node: NodeProto, graph: Graph, clues: Clues) -> None:
    if (depth := graph.constant(node.input[1])) is not None:
        count = int(depth.reshape(-1)[0])
        for _, trace in graph.traces(node.input[0], unmoved=True):
            clues.add(trace.place, About.IDS, (count,), f"one-hot of width {count}")


def _note_categories(node: NodeProto, graph: Graph, clues: Clues) -> None:
    """An encoder that lists what it knows."""
    listed: list[Any] = []
    for name in ("cats_strings", "cats_int64s", "keys_strings", "keys_int64s", "keys_floats", "keys_tensor"):
        listed = listed or _plain_list(attribute(node, name, []))
    known = [None if value != value else value for value in listed]
    for _, trace in graph.traces(node.input[0], unmoved=True) if known else ():
        clues.add(trace.place, About.CATEGORIES, known, f"the categories of {_name(node)}")


def _note_imputer(node: NodeProto, graph: Graph, clues: Clues) -> None:
    replaced = attribute(node, "replaced_value_float")
    fills = list(attribute(node, "imputed_value_floats", []) or attribute(node, "imputed_value_int64s", []))
    each = len(fills) == len(graph.layouts.get(node.input[0], ()))
    for index, trace in graph.traces(node.input[0], unmoved=True):
        if replaced is not None and replaced != replaced:
            clues.add(trace.place, About.GAPS, (), f"{_name(node)} fills what is missing")
        if fills:
            clues.add(trace.place, About.FILL, (float(fills[index if each else 0]),), f"what {_name(node)} fills in")


def _note_missing(node: NodeProto, graph: Graph, clues: Clues) -> None:
    for _, trace in graph.traces(node.input[0]):
        clues.add(trace.place, About.GAPS, (), "the graph asks for missing values")


def _note_clip(node: NodeProto, graph: Graph, clues: Clues) -> None:
    """Bounds, as seen from the input; values beyond both are drawn too, by a tenth."""
    ends = [attribute(node, "min"), attribute(node, "max")]
    for position, name in enumerate(node.input[1:3]):
        if name and (held := graph.constant(name)) is not None:
            ends[position] = float(held.reshape(-1)[0])
    # One that is clipped on one side only has the largest number there is on the other.
    told = [end for end in ends if end is not None and abs(end) < LARGEST]
    for _, trace in graph.traces(node.input[0]) if len(told) == 2 else ():
        if not isinstance(trace.factor, float) or not trace.factor:
            continue
        low, high = sorted(map(trace.back, told))
        margin = 0.1 * (high - low)
        clues.add(trace.place, About.RANGE, (low - margin, high + margin), "the bounds it is clipped to")


def _note_batch_norm(node: NodeProto, graph: Graph, clues: Clues) -> None:
    mean, variance = (graph.constant(name) for name in node.input[3:5])
    if mean is None or variance is None:
        return
    each = len(mean) == len(graph.layouts.get(node.input[0], ()))
    for _, trace in graph.traces(node.input[0], unmoved=True):
        chosen = slice(trace.column, trace.column + 1) if each and trace.column is not None else slice(None)
        told = (float(mean[chosen].mean()), float(variance[chosen].max()) ** 0.5)
        clues.add(trace.place, About.SCALE, told, "the statistics of the batch normalisation after it")


def _note_words(node: NodeProto, graph: Graph, clues: Clues) -> None:
    """A vocabulary behind text operators."""
    words = [
        word for word in _plain_list(attribute(node, "pool_strings", [])) if isinstance(word, str) and word.strip()
    ]
    makers = {name: made for made in graph.graph.node for name in made.output}
    tensor, steps = node.input[0], 0
    while tensor not in graph.layouts and tensor in makers and makers[tensor].input and steps < MOST_STEPS:
        tensor, steps = makers[tensor].input[0], steps + 1
    for _, trace in graph.traces(tensor) if words else ():
        clues.add(trace.place, About.WORDS, sorted(set(words)), f"the vocabulary of {_name(node)}")


def _note_trees(native: ModelProto, graph: Graph, clues: Clues) -> None:
    """The thresholds of every column that reaches trees, as seen from the input."""
    held = graph_trees.read(native) if graph_trees.holds_trees(native) else None
    if held is None:
        return
    trees = held.ensemble
    place_of = trees.place[trees.tree]
    for place, site in enumerate(held.sites):
        nodes = nodes_by_feature(np.where((place_of == place) & (trees.group < 0), trees.column, LEAF))
        for column, trace in graph.traces(site.source):
            cuts: Array = np.unique(trees.threshold[nodes.get(column, [])])
            if not len(cuts) or not isinstance(trace.factor, float) or not trace.factor:
                continue
            told = trace.back(cuts).tolist()
            clues.add(trace.place, About.THRESHOLDS, told, f"thresholds of {site.name}")


def _plain_list(values: Any) -> list[Any]:
    from onnx import TensorProto, numpy_helper

    if isinstance(values, TensorProto):
        values = numpy_helper.to_array(values).reshape(-1).tolist()
    return [value.decode() if isinstance(value, bytes) else value for value in values]


def _name(node: NodeProto) -> str:
    return f"{node.op_type} {node.name!r}" if node.name and node.name != node.op_type else str(node.op_type)


_READERS: Mapping[str, Callable[[Any, Graph, Clues], None]] = {
    "Gather": _note_gather,
    "OneHot": _note_one_hot,
    "OneHotEncoder": _note_categories,
    "LabelEncoder": _note_categories,
    "CategoryMapper": _note_categories,
    "Imputer": _note_imputer,
    "IsNaN": _note_missing,
    "Clip": _note_clip,
    "BatchNormalization": _note_batch_norm,
    "TfIdfVectorizer": _note_words,
}


def pixels(shape: Shape, dtype: str) -> Between | None:
    """What an image holds where nothing normalises it; None where the shape is that of no image."""
    if not is_image(shape):
        return None
    return Between(0, EIGHT_BITS, whole=True) if dtype == "uint8" else Between(0.0, 1.0)
