"""Arrays as models take, give and hold them: where the rows lie, what a name says of them, what was fitted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields, is_dataclass, replace
from typing import Any

from likewise.contracts.data import Array, Batch
from likewise.contracts.models import BatchAxis, InputSpec, Kind, Label, Model, OutputSpec, Shape, Signature
from likewise.contracts.values import dataclass
from likewise.data.columns import plain
from likewise.errors import ModelError, UsageError

BATCH_NAME = re.compile(r"(?i:batch)|^[BN]$")
"""How exporters call the axis of the rows."""

TIME_NAME = re.compile(r"(?i:seq|time|step|len)|^[TLS]$")
"""How they call an axis that may come before it; after any other, N is as likely the number of points or features."""

NAMED_KINDS = (
    (re.compile(r"prob", re.I), Kind.PROBABILITY),
    (re.compile(r"score|logit|margin|decision", re.I), Kind.SCORE),
    (re.compile(r"distance", re.I), Kind.DISTANCE),
    (re.compile(r"embed", re.I), Kind.EMBEDDING),
)
LABEL_NAME = re.compile(r"label|class|cluster|pred", re.I)


LARGEST_DENSE = 1 << 30
"""Bytes beyond which no sparse answer is made an array."""

NO_ROWS = "none"
"""What a user says of a tensor that has no axis of rows: a sample rate, a loss, the nodes of a graph."""


@dataclass(frozen=True, slots=True)
class RowAxes:
    """What `batch_axis` says: one axis for every tensor that has it, or one for each name; None where there is none.

    `rowless`: nothing has rows, every call is one sample.
    """

    everywhere: int | None = None
    named: Mapping[str, int | None] = field(default_factory=dict)
    rowless: bool = False

    @staticmethod
    def said_of(model: Model) -> RowAxes:
        """What a user says of this model; else what is said of all models of the call."""
        return RowAxes.parse(model.options.get("batch_axis", model.batch_axis))

    @staticmethod
    def parse(option: BatchAxis | None) -> RowAxes:
        """`1`, `x:1,sr:none`, `none`, or the same as a number or a mapping."""
        named: Mapping[str, Any] | None = option if isinstance(option, Mapping) else None
        if isinstance(option, str) and ":" in option:
            named = dict(entry.strip().rpartition(":")[::2] for entry in option.split(","))
        try:
            if named is not None:
                return RowAxes(named={str(name): _axis(axis) for name, axis in named.items()})
            if option is None:
                return RowAxes()
            everywhere = _axis(option)
            return RowAxes(everywhere, rowless=everywhere is None)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"batch_axis is {option!r}",
                remedy="Give the axis of the rows, such as 1, or one a tensor: x:1,lengths:0,rate:none; "
                "none alone says that every call is one sample",
            ) from error

    def has_rows(self, name: str) -> bool:
        """Does the tensor lie along the rows, or is it one value for a whole call?"""
        return not self.rowless and self.named.get(name, 0) is not None

    def of(self, name: str, rank: int) -> int | None:
        """The axis of the rows of a tensor; None where nothing was said."""
        if name in self.named:
            return self.named[name]
        return self.everywhere if self.everywhere is not None and rank > self.everywhere else None

    def of_input(self, name: str, shape: Shape | None) -> int | None:
        """As the user says, or where the file calls an axis the batch; else None."""
        stated = self.of(name, len(shape or ()))
        return stated if stated is not None else _declared(shape)

    def of_output(self, name: str, shape: Shape | None, *, fixed_batch: int | None) -> int | None:
        """As the user says or the file declares: by name, or as the only free one (one block a target); else None."""
        shape = shape or ()
        free = [axis for axis, dim in enumerate(shape) if not isinstance(dim, int)]
        if (said := self.named.get(name)) is not None:
            return said
        if (called := _declared(shape)) is not None:
            return called
        # Where the inputs fix the batch, a free axis is a length, not the rows.
        if shape and isinstance(shape[0], int) and len(free) == 1 and fixed_batch is None:
            return free[0]
        stated = self.of(name, len(shape))
        return stated if stated in free else None

    def rows_first(self, name: str, shape: Shape | None, axis: int) -> Shape | None:
        """A declared shape as the data has it, rows at the front."""
        if shape is None:
            return None
        if not self.has_rows(name):
            return (None, *shape)
        return (shape[axis], *shape[:axis], *shape[axis + 1 :]) if axis and len(shape) > axis else shape

    def placed(self, name: str, array: Array, axis: int) -> Array:
        """Rows of an input where the model has them; of one that has none, the value that all rows share."""
        if self.has_rows(name):
            return moved(array, 0, axis)
        import numpy as np

        if not len(array):
            return np.zeros(array.shape[1:], array.dtype)
        if not np.array_equal(array, np.broadcast_to(array[:1], array.shape), equal_nan=array.dtype.kind == "f"):
            raise ModelError(
                f"input {name!r} is said to have no rows, and is not the same for all of them",
                remedy=f"Leave {name}:{NO_ROWS} out of --batch-axis, or give one value for the whole call",
            )
        return np.asarray(array[0])

    def answered(self, name: str, array: Array, axis: int, rows: int) -> Array:
        """Answers with their rows at the front; of an output that has none, the same for every row of the call."""
        import numpy as np

        if self.has_rows(name):
            return moved(array, axis, 0)
        return np.broadcast_to(array, (rows, *array.shape))


class RowLayout:
    """Where the rows lie in every tensor of a graph, and what it declares once they are moved to the front.

    `called` has the shapes in which axes have names, where the specs do not. Rows of an output of which nothing is
    known are taken to come first, until an answer says otherwise.
    """

    def __init__(
        self,
        model: Model,
        inputs: Sequence[InputSpec],
        outputs: Sequence[OutputSpec],
        *,
        called: Mapping[str, Shape | None] | None = None,
    ) -> None:
        said, shapes = RowAxes.said_of(model), called or {}
        self._said = said
        told = {s.name: said.of_input(s.name, shapes.get(s.name, s.shape)) for s in inputs}
        self._fed_along = {name: axis or 0 for name, axis in told.items()}
        fed = tuple(
            replace(s, shape=said.rows_first(s.name, s.shape, self._fed_along[s.name]), row_axis=told[s.name])
            for s in inputs
        )
        fixed = only_batch([spec for spec in fed if said.has_rows(spec.name)])
        known = {s.name: said.of_output(s.name, shapes.get(s.name, s.shape), fixed_batch=fixed) for s in outputs}
        self._row_axis = {name: axis or 0 for name, axis in known.items()}
        self._open = {name for name, axis in known.items() if axis is None and said.has_rows(name) and fixed is None}
        given = tuple(
            replace(s, shape=said.rows_first(s.name, s.shape, self._row_axis[s.name]), row_axis=self._row_axis[s.name])
            for s in outputs
        )
        self.signature = Signature(fed, given, batch=fixed)

    def feed(self, batch: Batch) -> dict[str, Array]:
        """The inputs of a batch, rows where the graph has them."""
        inputs = dict(batch.inputs)
        if not batch.stacked:
            return inputs
        return {name: self._said.placed(name, array, self._fed_along.get(name, 0)) for name, array in inputs.items()}

    def learn(self, batch: Batch, answers: Mapping[str, Any], ask: Callable[[Batch], Mapping[str, Any]]) -> bool:
        """Find by experiment where the rows lie of outputs that do not have them in front; True where that was found.

        A file may declare nothing about an output, and a hidden state has its rows where the state that it takes has
        them. Only there: rows that lie elsewhere than in all inputs are an output that was turned.
        """
        import numpy as np

        rows, along = len(batch), {axis for axis in self._fed_along.values() if axis}
        doubtful = {
            name: answers[name].shape
            for name in sorted(self._open & answers.keys())
            if rows in getattr(answers[name], "shape", ())[1:] and answers[name].shape[0] != rows
        }
        if not along or not batch.stacked or not rows or not doubtful:
            return False
        others = rows - 1 if rows > 1 else 2
        try:
            again = ask(batch.at(np.arange(others) % rows))
        except ModelError:  # that is told where other batch sizes are tried
            return False
        finally:
            self._open -= doubtful.keys()
        axes = ((name, row_axis_of(was, again[name].shape, rows=rows, others=others)) for name, was in doubtful.items())
        found = {name: axis for name, axis in axes if axis in along}
        self._row_axis |= found
        self.signature = replace(self.signature, row_axes={**self.signature.row_axes, **found})
        return bool(found)

    def rows_of(self, name: str, array: Array, batch: Batch) -> Array:
        """An answer with its rows at the front."""
        return self._said.answered(name, array, self._row_axis[name], len(batch)) if batch.stacked else array


def row_axis_of(shape: Shape, again: Shape, *, rows: int, others: int) -> int:
    """The axis that follows when other rows than before are asked for; the first, if none does."""
    extents = enumerate(zip(shape, again, strict=False))
    return next((axis for axis, pair in extents if pair == (rows, others)), 0)


def only_batch(inputs: Sequence[InputSpec] | None) -> int | None:
    """The only batch size that inputs allow, rows first; None where they leave it free or contradict each other."""
    sizes = {spec.shape[0] if spec.shape else None for spec in inputs or ()}
    first = sizes.pop() if len(sizes) == 1 else None
    return first if isinstance(first, int) else None


def moved(array: Array, origin: int, target: int) -> Array:
    """Rows moved from the front to where a model has them, or back; an array without that axis stays as it is."""
    import numpy as np

    return np.moveaxis(array, origin, target) if origin != target and array.ndim > max(origin, target) else array


def _declared(shape: Shape | None) -> int | None:
    """The only axis that a file calls the batch; None if it names none, or several."""
    names = {axis: dim for axis, dim in enumerate(shape or ()) if isinstance(dim, str)}
    found = [axis for axis, name in names.items() if BATCH_NAME.search(name)]
    if len(found) != 1 or (len(names[found[0]]) == 1 and found[0] and not TIME_NAME.search(names.get(0, ""))):
        return None
    return found[0]


def _axis(value: Any) -> int | None:
    if value is None or value == NO_ROWS:
        return None
    axis = int(value)
    if axis < 0:
        raise ValueError(value)
    return axis


def kind_of(name: str, dtype: str | None) -> Kind | None:
    """What an output's name and type say about its meaning, or None if they say nothing."""
    if dtype in ("string", "object") or (dtype or "").startswith(("<U", "str")):
        return Kind.LABEL
    if (dtype or "").startswith(("int", "uint", "bool")):
        return Kind.LABEL if LABEL_NAME.search(name) else None
    return next((kind for pattern, kind in NAMED_KINDS if pattern.search(name)), None)


def plain_labels(classes: Iterable[Any]) -> tuple[Label, ...]:
    """Classes as plain Python values, as they stand in reports and pair with other runtimes."""
    values = map(plain, classes)
    return tuple(value if isinstance(value, bool | int | float | str) else str(value) for value in values)


def array_of_dicts(
    rows: Sequence[Mapping[Any, float]], classes: Sequence[Label] | None
) -> tuple[Array, tuple[Label, ...]]:
    """One row a dictionary, one column a class.

    A class that a row leaves out becomes NaN, never 0.0: zero would be an answer, and the
    model gave none.
    """
    import numpy as np

    if classes is None:
        classes = sorted({key for row in rows for key in row}, key=lambda key: (str(type(key)), key))
    known = set(classes)
    for row in rows:
        if unknown := [key for key in row if key not in known]:
            raise ModelError(
                f"a row answers for class {unknown[0]!r}, which the model does not declare; "
                f"its classes are {list(classes)!r}"
            )
    nan = float("nan")
    table = [[row.get(label, nan) for label in classes] for row in rows]
    return np.array(table, dtype=np.float64).reshape(len(rows), len(classes)), tuple(classes)


def widened(array: Array) -> Array:
    """bfloat16, int4 and their kin as float32 or int8, which hold all their values and which numpy can reckon with."""
    import numpy as np

    if array.dtype.type.__module__ != "ml_dtypes":
        return array
    return array.astype(np.int8 if "int" in array.dtype.name else np.float32)


def arrays_of_sequence(name: str, values: Sequence[Any] | None) -> dict[str, Array]:
    """A sequence as its values end to end and, whole numbers to be compared as such, the shapes of its tensors.

    An optional value that is not there is empty.
    """
    import numpy as np

    if values is None:
        return {name: np.empty(0, dtype=object)}
    arrays = [widened(np.asarray(value)) for value in values]
    shapes = [extent for array in arrays for extent in (array.ndim, *array.shape)]
    flat = np.concatenate([array.ravel() for array in arrays]) if arrays else np.empty(0)
    return {name: flat, f"{name}.shapes": np.array(shapes, dtype=np.int64)}


def put_together(found: dict[str, Array], more: Mapping[str, Array]) -> None:
    """Add answers to others; an error where part of a sequence has the name of another output, which hides it."""
    if twice := next((name for name in more if name in found), None):
        raise ModelError(f"it answers {twice!r} twice", remedy="Give each answer a name of its own")
    found.update(more)


def dense(name: str, answer: Any) -> Array:
    """A sparse answer as an array, unless that would take more memory than an answer should."""
    import numpy as np

    size = answer.shape[0] * answer.shape[1] * answer.dtype.itemsize
    if size > LARGEST_DENSE:
        raise ModelError(
            f"the sparse output {name!r} of {answer.shape[0]:,} rows and {answer.shape[1]:,} columns would need "
            f"{size / 2**30:.1f} GiB as an array",
            remedy="Use a smaller --batch-size",
        )
    return np.asarray(answer.toarray())


def unboxed(array: Array) -> Array:
    """Numbers that travelled as objects as numbers, None among floats as NaN; all stay objects if one would change."""
    import numpy as np

    if array.dtype.kind != "O":
        return array
    values = [_unboxed(value) for value in array.ravel().tolist()]
    kinds = set(map(type, values))
    # Whole numbers may be names, which as floats would be close to their neighbours.
    gaps = {type(None)} if float in kinds else set()
    if not kinds or not all(issubclass(kind, bool | int | float) for kind in kinds - gaps):
        return of_objects(values).reshape(array.shape)
    numbers = np.array([float("nan") if value is None else value for value in values])
    if numbers.dtype.kind == "f" and any(isinstance(value, int) and int(float(value)) != value for value in values):
        return of_objects(values).reshape(array.shape)
    return numbers.reshape(array.shape)


def of_objects(values: Sequence[Any]) -> Array:
    """Values as they are, one a cell."""
    import numpy as np

    cells = np.empty(len(values), dtype=object)
    cells[:] = values
    return cells


def _unboxed(value: Any) -> Any:
    """A number of numpy as Python's; what pandas calls missing is None."""
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") and not value.shape else value


def entries_of(answer: Any) -> list[tuple[str, Any]] | None:
    """The parts of an answer with their names, of a tuple or list their places; None where it is one thing."""
    if isinstance(answer, Mapping):
        return [(str(key), entry) for key, entry in answer.items()]
    if is_dataclass(answer) and not isinstance(answer, type):
        return [(field.name, getattr(answer, field.name)) for field in fields(answer)]
    if isinstance(answer, tuple) and hasattr(answer, "_fields"):
        return list(zip(answer._fields, answer, strict=True))
    if isinstance(answer, tuple | list):
        return [(str(index), entry) for index, entry in enumerate(answer)]
    return None


def arrays_of_list(name: str, tensors: Sequence[Any]) -> dict[str, Array]:
    """A list with one tensor a target: stacked behind the row axis where the shapes allow it."""
    import numpy as np

    arrays = [np.asarray(tensor) for tensor in tensors]
    if not arrays:
        raise ModelError(f"output {name!r} is an empty sequence")
    if all(array.ndim >= 1 and array.shape == arrays[0].shape for array in arrays):
        return {name: np.stack(arrays, axis=1)}
    return {f"{name}.{index}": array for index, array in enumerate(arrays)}


PREPROCESSING, MODEL = "preprocessing", "model"


NETWORK, BUFFER, GRAPH = "network", "buffer", "graph"
"""Kinds of arrays without an estimator: learnt by a module, kept by it, stored in a graph."""

FOLDED, PACKED = "with a normalisation folded in", "gates in ONNX's order"
"""Kinds of arrays as exporters write them: a layer with the normalisation behind it, a recurrent layer."""


INTERCEPTS = ("intercept_", "intercepts_", "_intercept_", "bias", "offset_", "_y_train_mean")


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """A fitted array.

    `step` is the path to its owner (`prep__num__scaler`; the module in a network), empty where the model
    has no steps; `attribute` what the owner calls it. `columns` names the entries along `axis`.
    `folded` is the path of a normalisation that has been multiplied into it, `rounding` how much of its size
    that may cost. `outputs_first` says of a matrix which way round it multiplies, None where that is not known.
    """

    step: str
    attribute: str
    values: Array
    role: str = MODEL
    kind: str = ""
    columns: tuple[str, ...] = ()
    axis: int = 0
    folded: str = ""
    rounding: float = 0.0
    outputs_first: bool | None = None

    @property
    def path(self) -> str:
        return f"{self.step}.{self.attribute}" if self.step else self.attribute

    @property
    def is_intercept(self) -> bool:
        return self.attribute.startswith(INTERCEPTS)

    @property
    def part(self) -> str:
        """The last name of the path to its owner, or what the owner is; empty where nobody owns it."""
        return self.step.split("__")[-1] if self.step else "" if self.kind in (NETWORK, BUFFER, GRAPH) else self.kind

    def column(self, index: Sequence[int]) -> str | None:
        """The column that an entry speaks of."""
        if not self.columns or self.axis >= len(index):
            return None
        return self.columns[index[self.axis]]
