"""Models and what they promise.

A `Model` is a description that any worker can open; an `Adapter` holds all knowledge of one
framework; a `Runner` is an open model that answers batches. The `Signature` is what a model
declares about itself, so that inputs are fed and outputs are paired by meaning instead of by luck. An
`Exporter` knows one framework's way to an ONNX file.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from likewise.contracts.data import Batch, Tensors
from likewise.contracts.values import dataclass

if TYPE_CHECKING:
    from onnx import ModelProto


Label: TypeAlias = bool | int | float | str
Shape: TypeAlias = tuple[int | str | None, ...]
BatchAxis: TypeAlias = int | str | Mapping[str, int | None]
"""Where the rows lie: one axis for every tensor, or one a name; `1`, `x:1,rate:none`, `none`, or a mapping."""


NOTE, MADE_FROM = "likewise.note", "likewise.reference_sha256"
"""The metadata entries of an exported model that say what was decided for it, and which file it was made from."""

PARAMETERS = "parameters"
"""Where a runner's details say how many numbers a network has learnt, or what an estimator was made with."""

IN_TRAINING = "acts_as_in_training"
"""Where a runner's details say that parts of a model stay in training mode, so that answers depend on other rows."""


PLACES = ("python", "with", "command")
"""Options of any model that say where it is opened: by another Python, with other packages, by a command."""


class Kind(StrEnum):
    """What an output means. Outputs of different kinds are never compared by accident."""

    LABEL = "label"
    PROBABILITY = "probability"
    SCORE = "score"
    DISTANCE = "distance"
    VALUE = "value"
    EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One declared input. None means the model does not say.

    `optional`: it is left out where the data has no such column. `floating`: the type is meant for
    fractions; whole numbers and booleans are fed as they are. `guessed`: the model does not declare the
    type; it is for data whose own type the model refuses. `stackable`: columns of a table may be
    fed side by side, whatever their number. `coded`: its values are coded by the model's own list of
    categories where the data has none. `row_axis` is where the model has its rows; None where nothing says so of a
    tensor that may have them anywhere, which is given them first.
    """

    name: str
    dtype: str | None = None
    shape: Shape | None = None
    optional: bool = False
    floating: bool = False
    guessed: bool = False
    stackable: bool = False
    coded: bool = False
    row_axis: int | None = 0


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One declared output.

    `classes` names the columns of probabilities and scores. `view` marks one of several ways
    of asking the same model (`predict`, `predict_proba`): a candidate may offer fewer views.
    `decided_by` names the output that a label is picked from. `row_axis` is where the rows lie before
    they are moved to the front; None where that is not known. `unnamed`: the name was made up by an exporter.
    """

    name: str
    kind: Kind
    dtype: str | None = None
    shape: Shape | None = None
    classes: tuple[Label, ...] | None = None
    view: bool = False
    decided_by: str | None = None
    row_axis: int | None = None
    unnamed: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model declares.

    `inputs` None: it takes whatever the data holds. `outputs` None: known only once it has run.
    `table`: the inputs are columns of one table, fed together. `batch`: the only batch size it takes.
    `underscored`: the framework has written underscores for the blanks in the names of columns.
    `row_axes` tells where the rows of outputs lie that are not declared.
    """

    inputs: tuple[InputSpec, ...] | None
    outputs: tuple[OutputSpec, ...] | None
    table: bool = False
    batch: int | None = None
    underscored: bool = False
    row_axes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is not open yet. `target` is a path, `module:attribute` or a live object.

    `batch_axis` is said of all models of a call: an adapter of tensors obeys it unless its own option
    of that name says otherwise, an adapter of tables has no use for it.
    """

    framework: str
    target: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    batch_axis: BatchAxis | None = None

    @property
    def name(self) -> str:
        """What a person would call it."""
        if isinstance(self.target, bytes):
            return f"{self.framework} model of {len(self.target):,} bytes"
        if isinstance(self.target, str) or hasattr(self.target, "__fspath__"):
            return str(self.target)
        return str(getattr(self.target, "__name__", type(self.target).__name__))


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A model and the options that say where it is opened."""

    model: Any
    options: Mapping[str, Any]


class Runner(Protocol):
    """An open model."""

    @property
    def signature(self) -> Signature: ...

    @property
    def details(self) -> Mapping[str, Any]:
        """Facts for the record and for `inspect`: versions, operators, steps. Plain JSON values.

        `warnings` lists what a reader of the verdict should know about this model; it becomes findings.
        """
        ...

    @property
    def native(self) -> Any:
        """The framework's own open object, for those who know the framework; None if there is none."""
        ...

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        """Answer every row. `outputs` names what will be read; a runner may skip the rest."""
        ...


class Adapter(Protocol):
    """All knowledge of one framework. An adapter inherits from here what it does not say itself."""

    @property
    def framework(self) -> str: ...

    holds_interpreter: bool = True
    """Do its models keep Python's lock while they answer, so that two of them run better in two processes?"""

    elsewhere: bool = False
    """Is the model somewhere else, and asked over one line from here?"""

    answers_only: bool = False
    """There is no model, only its answers to rows of the past."""

    modules: tuple[str, ...] = ()
    """What is worth importing before a model is opened."""

    families: tuple[str, ...] = ()
    """What is worth importing before many models are opened: what one of them would name, the next need not."""

    as_written: Mapping[str, str] = MappingProxyType({})
    """Options by which a model is computed in the types of its file, where the framework may take narrower ones."""

    def claims(self, target: object) -> bool:
        """Is this ours? Answered without importing the framework."""
        ...

    def open(self, model: Model) -> AbstractContextManager[Runner]: ...

    def sharing(self, model: Model) -> Model:
        """The model told to leave the cores to others while it waits."""
        return model

    def rest(self, runner: Runner) -> None:
        """Let go of what is large in an open model until it is asked again, to make room for a changed copy of it."""
        return

    def require_options(self, model: Model) -> None:
        """Refuse options that `open` would refuse, without opening anything."""
        return


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What is to be exported and how. The honest types of a model's inputs stand in the data and nowhere else.

    `sample` holds rows as the model takes them (already fed), first in every array; `batch_axis` says
    where the model has them. `details` is what the open model says about itself. `double` asks for
    float64 inputs and arithmetic, `zipmap` for one dictionary per row, `dynamic` names the free axes of inputs.
    `recorded` asks for the exporter that records one run, where a framework has two, however much that run leaves out.
    """

    model: Any
    signature: Signature
    sample: Batch
    details: Mapping[str, Any] = field(default_factory=dict)
    batch_axis: BatchAxis | None = None
    opset: int | None = None
    double: bool = False
    zipmap: bool = False
    dynamic: Mapping[str, tuple[int, ...]] | None = None
    recorded: bool = False


class Exporter(Protocol):
    """All knowledge of one framework's way to ONNX."""

    @property
    def framework(self) -> str: ...

    def claims(self, model: object) -> bool:
        """Can this live model be exported here? Answered without importing the framework."""
        ...

    def export(self, request: ExportRequest) -> ModelProto:
        """The ONNX model, or a ModelError that names the step which cannot be converted.

        A sentence that a user should read goes into the metadata of the model under `NOTE`.
        """
        ...
