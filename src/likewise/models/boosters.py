"""What XGBoost, LightGBM and CatBoost have in common: their files, their rows, their answers, their exports.

Boosters code a category by its place in the list of categories. A column that was categorical in training and
arrives as text or numbers gets the model's own list; the categories of a single batch would give other codes.
Nothing here imports a framework before it is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import ExportRequest, InputSpec, Kind, Label, Model, OutputSpec, Shape, Signature
from likewise.contracts.values import dataclass
from likewise.errors import LikewiseError, ModelError, one_line
from likewise.models import flags_as_integers, quietly

if TYPE_CHECKING:
    from onnx import ModelProto

_HEAD = 256


def begins(target: object, suffixes: tuple[str, ...], pattern: re.Pattern[bytes]) -> bool:
    """Is this a path with one of the suffixes to a file that begins so? One that is missing may be meant so."""
    if not isinstance(target, str | os.PathLike) or not str(target).lower().endswith(suffixes):
        return False
    if not os.path.exists(target):
        return True
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


def loaded(model: Model, load: Callable[[str | os.PathLike[str]], Any]) -> Any:
    """The framework's own object: as it was given, or read from its file."""
    return load(model.target) if isinstance(model.target, str | os.PathLike) else model.target


def content(path: str | os.PathLike[str]) -> bytes:
    """All of a model file, or an error that names it."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        raise ModelError(f"there is no file {os.fspath(path)}", remedy="Check the path of the model") from error
    except OSError as error:
        raise ModelError(f"{os.fspath(path)} cannot be read: {error.strerror}") from error


def unreadable(path: str | os.PathLike[str], framework: str, reason: str) -> ModelError:
    """The error for a file that is not what its name says."""
    return ModelError(
        f"{os.fspath(path)} cannot be loaded as a {framework} model: {reason}",
        remedy="Copy it again, or save the model again with save_model",
    )


class Answers:
    """What a model says to the same rows, each question asked once; `margin` is how it is asked for scores."""

    def __init__(self, model: Any, data: Any, **margin: bool) -> None:
        self._model, self._data, self._margin = model, data, margin

    @cached_property
    def value(self) -> Array:
        return self._model.predict(self._data)  # type: ignore[no-any-return]

    @cached_property
    def scores(self) -> Array:
        return self._model.predict(self._data, **self._margin)  # type: ignore[no-any-return]


def unfitted(name: str) -> ModelError:
    """The error for a model that cannot answer yet."""
    return ModelError(f"{name} is not fitted", remedy="Call fit, then save the model again")


class BoosterRunner:
    """A trained model and how it is asked.

    `ask` takes the rows and gives an object with one attribute an output; what two outputs share is
    computed there once. `reason` turns an error of the framework into a line a person can read.
    """

    def __init__(
        self,
        native: Any,
        signature: Signature,
        details: Mapping[str, Any],
        *,
        name: str,
        ask: Callable[[Batch], Any],
        reason: Callable[[Exception], str] = one_line,
    ) -> None:
        self.native = native
        self.signature = signature
        self.details = details
        self._name = name
        self._ask = ask
        self._reason = reason

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        wanted = [spec for spec in self.signature.outputs or () if outputs is None or spec.name in outputs]
        if not len(batch):
            return {spec.name: _nothing(spec) for spec in wanted}
        try:
            answers = self._ask(batch)
            return {spec.name: _array(getattr(answers, spec.name)) for spec in wanted}
        except LikewiseError:
            raise
        except Exception as error:
            raise ModelError(f"{self._name} did not answer: {self._reason(error)}") from error


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


def derives_from(target: object, package: str, names: Iterable[str]) -> bool:
    """Is this an instance of one of the package's classes, also through a subclass? Imports nothing."""
    if isinstance(target, type):
        return False
    wanted = set(names)
    return any(
        base.__module__.partition(".")[0] == package and base.__name__ in wanted for base in type(target).__mro__
    )


def _array(answer: Any) -> Array:
    import numpy as np

    array = np.asarray(answer)
    return array.astype(object) if array.dtype.kind in "US" else array


def _nothing(spec: OutputSpec) -> Array:
    """The answer to no rows: some of the frameworks refuse such calls, others print."""
    import numpy as np

    dtype = object if spec.dtype == "string" else spec.dtype
    return np.empty((0, *(size for size in (spec.shape or ())[1:] if isinstance(size, int))), dtype=dtype)


def inputs_of(
    names: Sequence[str] | None, count: int, *, coded: Iterable[str] = ()
) -> tuple[tuple[InputSpec, ...], bool]:
    """The declared inputs, and whether they are columns of a table: only a model that knows names has columns."""
    if names:
        return tuple(InputSpec(name, coded=name in set(coded)) for name in names), True
    return (InputSpec("X", None, (None, count)),), False


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


def require_codes(name: str, known: Sequence[Any]) -> None:
    """Refuse to export categories under names of their own: ONNX trees compare codes, and no encoder is written."""
    if list(known) != list(range(len(known))):
        shown = ", ".join(repr(value) for value in list(known)[:3])
        raise ModelError(
            f"feature {name} is categorical ({shown} …), and onnxmltools converts only its codes, not its categories",
            remedy="Encode it before the model, for example with OrdinalEncoder, and train on the codes",
        )


@dataclass(frozen=True, slots=True)
class BoosterExporter:
    """A booster's way to ONNX; `claims` tells its own models."""

    framework: str
    claims: Callable[[object], bool]
    export: Callable[[ExportRequest], ModelProto]


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
