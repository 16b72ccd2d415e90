"""scikit-learn models and pipelines to ONNX, through skl2onnx.

The converter takes the types of the inputs from its caller and believes them. They are decided here from
the data and from the step that sees a column first: a category must arrive as it is, an integer that
float32 cannot hold stays an integer, missing text is the empty string.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.models import NOTE, ExportRequest
from likewise.errors import ModelError, extra, one_line
from likewise.models import flags_as_integers, quietly
from likewise.models.onnx.widen import in_double
from likewise.models.sklearn.converters import Conversion
from likewise.models.sklearn.encoders import has_gap
from likewise.models.sklearn.walk import (
    Part,
    first_to_see,
    innermost,
    passed_over,
    takes_columns_apart,
    walk,
    with_columns_named,
    with_parts,
)

if TYPE_CHECKING:
    from onnx import ModelProto


EXACT = {False: 2**24, True: 2**53}
"""The largest integer up to which float32 holds every one; with `double`, float64."""

WORDS = r"[\p{L}\p{N}_]{2,}"
"""scikit-learn's own token pattern in the syntax of ONNX Runtime; skl2onnx knows ASCII letters only."""

LOCALE = "C.UTF-8"
"""Exists in slim images too; the converter's en_US.UTF-8 often does not, and then the file does not load."""

DENSE = {("VotingClassifier", "flatten_transform"): False, ("RandomTreesEmbedding", "sparse_output"): False}
"""Parameters that change the form of what a step hands on, and without which the converter does not take it."""

ELSEWHERE = ("xgboost", "lightgbm", "catboost")
"""Packages whose models look like scikit-learn's and have exporters of their own."""


class SklearnExporter:
    """All knowledge of skl2onnx."""

    framework = "sklearn"

    def claims(self, model: object) -> bool:
        if "sklearn" not in sys.modules or isinstance(model, type):
            return False
        from sklearn.base import BaseEstimator

        return isinstance(model, BaseEstimator) and type(model).__module__.split(".")[0] not in ELSEWHERE

    def export(self, request: ExportRequest) -> ModelProto:
        with extra("sklearn", needed_for="the export of scikit-learn models"):
            import skl2onnx  # noqa: F401
        model = getattr(request.model, "best_estimator_", request.model)
        model, filled = _as_the_converter_takes_it(with_columns_named(model))
        types = _types(model, request)
        numbers = all(not isinstance(kind, _tensors().StringTensorType) for _, kind in types)
        if request.signature.table and numbers and not takes_columns_apart(model):
            model = _with_columns_joined(model, request)
        proto, notes = _converted(model, types, request)
        if _only_votes(model):
            del proto.graph.output[1:]
        if filled:
            notes.append(f"missing text is the empty string to {', '.join(map(repr, filled))}")
        # The converter lists them in the order of a set: the same model would get another checksum in every process.
        proto.opset_import.sort(key=lambda opset: opset.domain)
        if notes:
            proto.metadata_props.add(key=NOTE, value="; ".join(notes))
        return proto


def _as_the_converter_takes_it(model: Any, path: str = "") -> tuple[Any, tuple[str, ...]]:
    """The model, copied along the way to a step that has to be told otherwise, and the paths of steps of text.

    ONNX strings cannot be missing, so a missing value is fed as the empty string. A pipeline that was taught
    to fill or to encode missing text has to look for that instead. ONNX has no sparse tables: what a step would
    give as one, it gives in full. What is frozen answers as what it holds.
    """
    if type(model).__name__ == "FrozenEstimator":
        return _as_the_converter_takes_it(model.estimator, path)
    of_text: list[str] = []

    def inside(part: Part) -> Any:
        made, found = _as_the_converter_takes_it(part.estimator, ".".join(filter(None, (path, part.name))))
        of_text.extend(found)
        return made

    made = with_parts(model, inside)
    changes: dict[str, Any] = {}
    if _fills(model):
        changes = {"missing_values": ""}
    elif _encodes(model) and type(model).__name__ == "OrdinalEncoder":
        of_text.append(path)  # our converter of it knows
    elif _encodes(model):
        changes = {"categories_": [_filled(categories) for categories in model.categories_]}
    of_text += [path] if changes else []
    changes |= {name: value for (kind, name), value in DENSE.items() if type(model).__name__ == kind}
    changes = {name: value for name, value in changes.items() if getattr(model, name, value) is not value}
    if type(model).__name__ == "AdaBoostClassifier" and model.classes_.dtype.kind == "b":
        changes["classes_"] = model.classes_.astype(np.int64)
    if type(model).__name__ == "KBinsDiscretizer" and model.encode == "onehot":
        changes["encode"] = "onehot-dense"
    if changes:
        made = copy(model) if made is model else made
        vars(made).update(changes)
    return made, tuple(of_text)


def _only_votes(model: Any) -> bool:
    """A majority has no probabilities: what the converter gives as such has no counterpart."""
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    return type(last).__name__ == "VotingClassifier" and last.voting == "hard"


def _fills(step: Any) -> bool:
    """An imputer of text."""
    from sklearn.impute import SimpleImputer

    of_text = isinstance(step, SimpleImputer) and getattr(step, "_fit_dtype", None) is not None
    return of_text and step._fit_dtype.kind == "O" and not isinstance(step.missing_values, str)


def _encodes(step: Any) -> bool:
    """An encoder that was taught what to make of a missing text."""
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, TargetEncoder

    return isinstance(step, OneHotEncoder | OrdinalEncoder | TargetEncoder) and any(map(has_gap, step.categories_))


def _filled(categories: Any) -> Any:
    filled = categories.copy()
    if has_gap(categories):
        filled[[index for index, value in enumerate(categories) if not isinstance(value, str)]] = ""
    return filled


def _tensors() -> Any:
    from skl2onnx.common import data_types

    return data_types


def _types(model: Any, request: ExportRequest) -> list[tuple[str, Any]]:
    """The inputs of the exported model: one a column of a table, or one array."""
    inputs = request.sample.inputs
    if request.signature.table or request.signature.inputs is None:
        from sklearn.preprocessing import LabelBinarizer, LabelEncoder, OneHotEncoder, OrdinalEncoder, TargetEncoder

        encoders = (OneHotEncoder, OrdinalEncoder, TargetEncoder, LabelEncoder, LabelBinarizer)
        first = first_to_see(model, list(inputs))
        encoded = {name for name, steps in first.items() if any(isinstance(step, encoders) for step in steps)}
        dropped = passed_over(model, list(inputs))
        return [
            (
                name,
                _type(name, array, encoded=name in encoded, double=request.double)([None, *(array.shape[1:] or (1,))]),
            )
            for name, array in inputs.items()
            if name not in dropped
        ]
    (name, array), *_ = inputs.items()
    kind = _type(name, array, encoded=False, double=request.double)
    if isinstance(kind(), _tensors().BooleanTensorType):
        kind = _tensors().FloatTensorType
    return [(name, kind([None, *array.shape[1:]]))]


def _type(name: str, array: Array, *, encoded: bool, double: bool) -> Any:
    """The tensor type of a column: the smallest that the model can tell its values apart by."""
    tensors = _tensors()
    number = tensors.DoubleTensorType if double else tensors.FloatTensorType
    if array.dtype.kind == "f":
        return number
    if array.dtype.kind == "b":
        # The converter's encoders take no booleans.
        return tensors.Int64TensorType if encoded else tensors.BooleanTensorType
    if array.dtype.kind in "iu":
        lost = bool(array.size) and int(np.abs(array).max()) > EXACT[double]
        return tensors.Int64TensorType if encoded or lost else number
    values = {type(value) for value in array.flat if value is not None and value == value}
    if values <= {str}:
        return tensors.StringTensorType
    if all(issubclass(value, bool | int | float | np.number) for value in values):
        return number
    held = "times" if array.dtype.kind in "mM" else f"objects of {', '.join(sorted(kind.__name__ for kind in values))}"
    raise ModelError(
        f"column {name!r} holds {held}, for which skl2onnx has no input type",
        remedy="Turn it into numbers or text before the pipeline, in the data",
    )


def _with_columns_joined(model: Any, request: ExportRequest) -> Any:
    """A step that puts the columns side by side: the converter's other steps take one input."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline

    columns = ColumnTransformer([("columns", "passthrough", list(request.sample.inputs))])
    columns.fit(request.sample.inputs.frame())
    return Pipeline([("columns", columns), ("model", model)])


def _converted(model: Any, types: list[tuple[str, Any]], request: ExportRequest) -> tuple[ModelProto, list[str]]:
    from skl2onnx import get_latest_tested_opset_version

    options = _options(model, zipmap=request.zipmap)
    conversion = Conversion(double=request.double)
    trees_of_3 = {"": request.opset or get_latest_tested_opset_version(), "ai.onnx.ml": 3}
    notes = []
    try:
        with quietly(), flags_as_integers(), _option_where_it_is_known():
            try:
                proto = conversion.run(model, types, options, request.opset)
            except RuntimeError as error:
                if "target_opset={'ai.onnx.ml': 3}" not in str(error):
                    raise
                proto = conversion.run(model, types, options, trees_of_3)
                notes = ["written for ai.onnx.ml 3, because the converter knows this model in no later version"]
    except Exception as error:
        refusal = _refusal(error, request.model, model)
        if request.double and not isinstance(error, ModelError) and _converts_in_single(model, request):
            refusal.remedy = "In float32 it converts: leave out --double"
        raise refusal from error
    if request.double:
        proto, narrow = in_double(proto, conversion.exact, rounding=conversion.rounding)
        notes += [f"{name} computes in float32: ONNX has it in no other type" for name in narrow]
    return proto, notes


@contextmanager
def _option_where_it_is_known() -> Iterator[None]:
    """A Pipeline inside another model hands `zipmap` to every classifier, also to those whose converter refuses it."""
    from skl2onnx.operator_converters import pipelines

    before = pipelines.is_classifier
    pipelines.is_classifier = lambda step: before(step) and _takes(step, "zipmap")
    try:
        yield
    finally:
        pipelines.is_classifier = before


def _converts_in_single(model: Any, request: ExportRequest) -> bool:
    """Was it only the wide type that the converter did not take?"""
    single = replace(request, double=False)
    try:
        _converted(model, _types(model, single), single)
    except ModelError:
        return False
    return True


def _options(model: Any, *, zipmap: bool) -> dict[int, dict[str, Any]]:
    """By the identity of the step, as the converter takes no other key for one step among others of its class."""
    from sklearn.base import is_classifier
    from sklearn.feature_extraction.text import CountVectorizer

    options: dict[int, dict[str, Any]] = {}
    if is_classifier(model) and _takes(innermost(model), "zipmap"):
        options[id(model)] = {"zipmap": zipmap}
    for _, step in walk(model):
        if hasattr(step, "get_params") and is_classifier(step) and not _takes(step, "zipmap"):
            # Else a Pipeline hands the option on to a step that does not know it.
            options.setdefault(id(step), {})
        if isinstance(step, CountVectorizer):
            options[id(step)] = {"locale": LOCALE}
            if step.token_pattern == r"(?u)\b\w\w+\b" and step.tokenizer is None and step.analyzer == "word":
                options[id(step)]["tokenexp"] = WORDS
    return options


def _takes(step: Any, option: str) -> bool:
    """Does the converter of this class know an option?"""
    from skl2onnx._supported_operators import sklearn_operator_name_map
    from skl2onnx.common._registration import get_converter

    alias = sklearn_operator_name_map.get(type(step))
    return alias is not None and option in (get_converter(alias).get_allowed_options() or ())


def _refusal(error: Exception, asked: Any, exported: Any) -> ModelError:
    """What the converter said, about the step it was at."""
    paths = {id(step): path for model in (exported, asked) for path, step in walk(model)}
    steps = [step for step in _steps_at_work(error.__traceback__) if id(step) in paths]
    kind = type(error).__name__
    unknown = kind in ("MissingShapeCalculator", "MissingConverter")
    said = error.message if isinstance(error, ModelError) else _said(error)
    reason = "it has no converter for this class" if unknown else said
    if not steps:
        return ModelError(
            f"skl2onnx cannot convert {type(asked).__name__}: {reason}",
            remedy="Try another --opset",
        )
    step, path = steps[-1], paths[id(steps[-1])]
    named = f"step {path!r} ({type(step).__name__})" if path else type(step).__name__
    remedy = "Use a step it supports, or apply this one to the data before the model"
    if isinstance(error, ModelError):
        remedy = error.remedy or "Apply it to the data before the model, or use functions such as numpy.log1p"
    elif type(step).__name__ == "DictVectorizer":
        remedy = "It takes dictionaries, and the file takes columns: encode them with a ColumnTransformer"
    elif kind == "InvalidInputLengthException":
        remedy = "Let one ColumnTransformer see the columns first: make_pipeline(columns, model)"
    elif step is innermost(asked):
        remedy = "Train a model it supports"
    return ModelError(
        f"skl2onnx cannot convert {named}: {reason}",
        remedy=f"{remedy}, or teach it: skl2onnx.update_registered_converter" if unknown else remedy,
    )


def _said(error: Exception) -> str:
    """The sentence that matters, in our words for types."""
    told = re.split(r"\.?\s+You may raise an is", one_line(error))[0].rstrip(".")
    pattern = r"with a wrong type .*?(\w+)TensorType.*?Only \[(.*?)\] are allowed"
    found = re.search(pattern, str(error), re.DOTALL)
    if found is None:
        return told
    taken = ", ".join(_NUMBERS.get(name, name.lower()) for name in re.findall(r"(\w+)TensorType", found[2]))
    return f"it takes {taken} only, not {_NUMBERS.get(found[1], found[1].lower())}"


_NUMBERS = {"Float": "float32", "Double": "float64"}


def _steps_at_work(trace: TracebackType | None) -> Iterator[Any]:
    """The estimators the converter was busy with when it gave up, outermost first."""
    while trace is not None:
        known: Mapping[str, Any] = dict(trace.tb_frame.f_locals)
        for name in ("operator", "self", "op"):
            if (step := getattr(known.get(name), "raw_operator", None)) is not None:
                yield step
        trace = trace.tb_next


EXTENSION = SklearnExporter()
