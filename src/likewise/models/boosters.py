"""What XGBoost, LightGBM and CatBoost have in common: their files, their rows, their answers, their exports.

Boosters code a category by its place in the list of categories. A column that was categorical in training and
arrives as text or numbers gets the model's own list; the categories of a single batch would give other codes.
Nothing here imports a framework before it is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import (
    Adapter,
    ExportRequest,
    InputSpec,
    Kind,
    Label,
    Model,
    OutputSpec,
    Runner,
    Shape,
    Signature,
)
from likewise.contracts.values import dataclass
from likewise.errors import LikewiseError, ModelError, extra, one_line
from likewise.models import flags_as_integers, quietly, require_known

if TYPE_CHECKING:
    from onnx import ModelProto

_HEAD = 256


def begins(target: object, suffixes: tuple[str, ...], pattern: re.Pattern[bytes], *, there: bool = False) -> bool:
    """Is this a path with one of the suffixes to a file that begins so? One that is missing may be meant so.

    `there`: only if the file exists, as the suffixes may mean something else.
    """
    if not named(target, suffixes):
        return False
    assert isinstance(target, str | os.PathLike)
    if not os.path.exists(target):
        return not there
    if not os.path.isfile(target):
        return False
    try:
        with open(target, "rb") as file:
            return pattern.match(file.read(_HEAD)) is not None
    except OSError:
        return False


def named(target: object, suffixes: tuple[str, ...]) -> bool:
    """Is this a path with a suffix that only one framework uses?"""
    return isinstance(target, str | os.PathLike) and str(target).lower().endswith(suffixes)


def instances_of(package: str, *names: str) -> Callable[[object], bool]:
    """What tells whether an object is of one of a package's classes, also through a subclass. Imports nothing."""

    def found(target: object) -> bool:
        bases = type(target).__mro__
        return any(base.__module__.partition(".")[0] == package and base.__name__ in names for base in bases)

    return found


class BoosterAdapter(Adapter):
    """What opens the models of one framework, `title` for people: live ones, and the files of save_model."""

    framework: str
    title: str
    options: tuple[str, ...] = ()

    @contextmanager
    def open(self, model: Model) -> Iterator[Runner]:
        require_known(model, self.options)
        path = isinstance(model.target, str | os.PathLike)
        yield self.runner(self._loaded(model.target) if path else model.target, model)

    def runner(self, target: Any, model: Model) -> Runner:
        """The framework's own object, ready to be asked."""
        raise NotImplementedError

    def damage(self, content: bytes) -> str:
        """What is wrong with a file that the framework would stumble over; empty if nothing is."""
        raise NotImplementedError

    def load(self, path: str, content: bytes) -> Any:
        """The framework's own object from a file that is whole."""
        raise NotImplementedError

    def reason(self, error: Exception) -> str:
        """What the framework said, in a line that a person can read."""
        return one_line(error)

    def _loaded(self, target: Any) -> Any:
        path = os.fspath(target)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError as error:
            raise ModelError(f"there is no file {path}", remedy="Check the path of the model") from error
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error
        with extra("boost", needed_for=f"reading {path}"):
            import_module(self.framework)
        if damage := self.damage(content):
            raise self._unreadable(path, damage)
        try:
            return self.load(path, content)
        except ModelError:
            raise
        except Exception as error:
            raise self._unreadable(path, self.reason(error)) from error

    def _unreadable(self, path: str, why: str) -> ModelError:
        return ModelError(
            f"{path} cannot be loaded as a {self.title} model: {why}",
            remedy="Copy it again, or save the model again with save_model",
        )


class Answers:
    """What a model says to the same rows, each question asked once.

    `facts` is what is known of the model, `margin` how it is asked for scores.
    """

    def __init__(self, model: Any, data: Any, facts: Any, **margin: bool) -> None:
        self._model, self._data, self._facts, self._margin = model, data, facts, margin

    @cached_property
    def value(self) -> Array:
        return self._model.predict(self._data)  # type: ignore[no-any-return]

    @cached_property
    def scores(self) -> Array:
        return self._model.predict(self._data, **self._margin)  # type: ignore[no-any-return]


def fitted(booster: Callable[[], Any], name: str) -> Any:
    """The booster in a scikit-learn wrapper; an error where it cannot answer yet."""
    from sklearn.exceptions import NotFittedError

    try:
        return booster()
    except NotFittedError as error:
        raise unfitted(name) from error


def unfitted(name: str) -> ModelError:
    """The error for a model that cannot answer yet."""
    return ModelError(f"{name} is not fitted", remedy="Call fit, then save the model again")


def rewrapped(model: Any, booster: Any, *, wrapper: bool) -> Any:
    """Another booster in a copy of the scikit-learn wrapper, where there is one."""
    if not wrapper:
        return booster
    made = copy(model)
    made._Booster = booster
    return made


@dataclass(eq=False)
class BoosterRunner:
    """A trained model and how it is asked.

    `ask` takes the rows and gives an object with one attribute an output; what two outputs share is
    computed there once. `reason` turns an error of the framework into a line a person can read.
    """

    native: Any
    signature: Signature
    details: Mapping[str, Any]
    name: str
    ask: Callable[[Batch], Any]
    reason: Callable[[Exception], str] = one_line

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        wanted = [spec for spec in self.signature.outputs or () if outputs is None or spec.name in outputs]
        if not len(batch):
            return {spec.name: _nothing(spec) for spec in wanted}
        try:
            answers = self.ask(batch)
            return {spec.name: _array(getattr(answers, spec.name)) for spec in wanted}
        except LikewiseError:
            raise
        except Exception as error:
            raise ModelError(f"{self.name} did not answer: {self.reason(error)}") from error


def output(
    name: str,
    kind: Kind,
    columns: int | None = None,
    *,
    dtype: str,
    classes: Iterable[Label] | None = None,
    decided_by: str | None = None,
) -> OutputSpec:
    """One way of asking a booster, with a number or `columns` numbers a row."""
    shape: Shape = (None,) if columns is None else (None, columns)
    named = None if classes is None else tuple(classes)
    return OutputSpec(name, kind, dtype, shape, named, view=True, decided_by=decided_by)


def classifier_outputs(
    classes: Iterable[Label] | None,
    *,
    label: str = "int64",
    labels: int | None = None,
    probabilities: int | None,
    scores: int | None,
    dtype: str,
) -> tuple[OutputSpec, OutputSpec, OutputSpec]:
    """Label, probabilities and scores, each with so many numbers a row; several labels a row have no classes."""
    named = None if classes is None else tuple(classes)
    decided_by = None if named is None else "probabilities"
    return (
        output("label", Kind.LABEL, labels, dtype=label, classes=named, decided_by=decided_by),
        output("probabilities", Kind.PROBABILITY, probabilities, dtype=dtype, classes=named),
        output("scores", Kind.SCORE, scores, dtype=dtype, classes=named),
    )


def dtype_of(classes: Array) -> str:
    """The type of a label that is one of these."""
    return "string" if classes.dtype.kind in "OUS" else str(classes.dtype)


def _array(answer: Any) -> Array:
    import numpy as np

    array = np.asarray(answer)
    return array.astype(object) if array.dtype.kind in "US" else array


def _nothing(spec: OutputSpec) -> Array:
    """The answer to no rows: some of the frameworks refuse such calls, others print."""
    import numpy as np

    dtype = object if spec.dtype == "string" else spec.dtype
    return np.empty((0, *(size for size in (spec.shape or ())[1:] if isinstance(size, int))), dtype=dtype)


def signature_of(
    names: Sequence[str] | None,
    count: int,
    outputs: tuple[OutputSpec, ...],
    *,
    coded: Iterable[str] = (),
    underscored: bool = False,
) -> Signature:
    """What a model takes and gives: columns of a table only where it knows names, else one array."""
    marked = set(coded)
    columns = tuple(InputSpec(name, coded=name in marked) for name in names or ())
    array = (InputSpec("X", None, (None, count)),)
    return Signature(columns or array, outputs, table=bool(names), underscored=underscored)


def data_of(batch: Batch, signature: Signature) -> Any:
    """The rows as pandas under the model's names, or as the array of a model without names."""
    if not signature.table:
        return batch.inputs["X"]
    assert signature.inputs is not None
    frame = batch.inputs.frame()
    if hasattr(frame, "to_pandas"):
        frame = frame.to_pandas()
    names = [spec.name for spec in signature.inputs]
    if list(frame.columns) == names:
        return frame
    frame = frame.copy(deep=False)
    frame.columns = names
    return frame


def with_categories(frame: Any, categories: Mapping[str, Sequence[Any]], *, refuse_unseen: bool) -> Any:
    """The frame with these columns categorical; those that are already stay as they are."""
    import pandas as pd

    changed = {
        name: _coded(frame[name], known, name, refuse_unseen=refuse_unseen)
        for name, known in categories.items()
        if not isinstance(frame[name].dtype, pd.CategoricalDtype)
    }
    return frame.assign(**changed) if changed else frame


def _coded(column: Any, known: Sequence[Any], name: str, *, refuse_unseen: bool) -> Any:
    import pandas as pd

    present = column[column.notna()]
    text = any(isinstance(value, str) for value in known)
    odd = next((value for value in present.unique() if isinstance(value, str) is not text), None)
    if odd is not None:
        was, now = ("text", "a number") if text else ("numbers", "text")
        raise ModelError(
            f"column {name!r} is categorical in the model, whose categories are {was} such as {known[0]!r}; "
            f"the data has {now}: {odd!r}",
            remedy="Give the column in the type it was trained in",
        )
    categories: Any = pd.Index(list(known))
    codes = categories.get_indexer(column)
    unseen = column[(codes < 0) & column.notna()]
    if refuse_unseen and len(unseen):
        raise ModelError(
            f"column {name!r} holds {unseen.iloc[0]!r}, a category the model was not trained on",
            remedy=f"It knows: {', '.join(repr(value) for value in list(known)[:12])}"
            + (" …" if len(known) > 12 else ""),
        )
    return pd.Series(pd.Categorical.from_codes(codes, categories), index=column.index)


Refusals = Iterator[tuple[str, str]]
"""What a way to ONNX is known to get wrong, or to give up on without a reason, and what to do instead."""


def named_categories(name: str, known: Sequence[Any]) -> Refusals:
    """Categories under names of their own: ONNX trees compare codes, and no encoder is written."""
    if list(known) != list(range(len(known))):
        shown = ", ".join(repr(value) for value in list(known)[:3])
        yield (
            f"feature {name} is categorical ({shown} …), and onnxmltools converts only its codes, not its categories",
            "Encode it before the model, for example with OrdinalEncoder, and train on the codes",
        )


@dataclass(frozen=True, slots=True)
class BoosterExporter:
    """A booster's way to ONNX; `claims` tells its own models, `refusals` those that it must not be given."""

    framework: str
    title: str
    claims: Callable[[object], bool]
    refusals: Callable[[ExportRequest], Refusals]
    convert: Callable[[ExportRequest], ModelProto]
    packages: tuple[str, ...] = ("onnxmltools",)

    def export(self, request: ExportRequest) -> ModelProto:
        with extra("boost", needed_for=f"the export of {self.title} models"):
            for package in (self.framework, *self.packages):
                import_module(package)
        for message, remedy in self.refusals(request):
            raise ModelError(message, remedy=remedy)
        return self.convert(request)


def to_onnx(
    framework: str,
    model: Callable[[], Any],
    features: int,
    request: ExportRequest,
    *,
    reason: Callable[[Exception], str] = one_line,
    **options: Any,
) -> ModelProto:
    """What onnxmltools makes of a booster over one array of columns."""
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    types = [("X", FloatTensorType([None, features]))]
    convert = getattr(onnxmltools, f"convert_{framework}")
    try:
        with quietly(), flags_as_integers():
            proto: ModelProto = convert(
                model(), name=framework, initial_types=types, target_opset=request.opset, **options
            )
    except Exception as error:
        raise ModelError(f"onnxmltools cannot convert the model: {reason(error)}") from error
    proto.opset_import.sort(key=lambda opset: opset.domain)  # the converter's order changes from run to run
    return proto


def unrolled(root: Mapping[str, Any], left: str, right: str) -> tuple[list[Any], Array, Array]:
    """The nodes of a nested tree, walked from the root, and where the children of each are; 0 for none."""
    import numpy as np

    nodes: list[Any] = []
    children: list[list[int]] = []
    stack: list[tuple[Any, int, int]] = [(root, 0, 0)]
    while stack:
        node, parent, side = stack.pop()
        place = len(nodes)
        nodes.append(node)
        children.append([0, 0])
        children[parent][side] = place
        if left in node:
            stack += [(node[right], place, 1), (node[left], place, 0)]
    return nodes, *np.array(children).T
