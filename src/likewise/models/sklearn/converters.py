"""Converters of ours for what skl2onnx has none for, or none in float64; handed over for one conversion only.

What it rounds to float32 on the way into a graph is kept here as it was, so that a graph in float64 can be made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import field
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.values import dataclass
from likewise.errors import ModelError
from likewise.models.sklearn import encoders, ensembles, functions, svm
from likewise.models.sklearn.functions import Writing

if TYPE_CHECKING:
    from onnx import ModelProto

Converter = Callable[[Any, Any, Any], None]


@dataclass(slots=True)
class Conversion:
    """One run of skl2onnx, and the numbers it was given on the way, in full."""

    double: bool
    exact: dict[str, dict[str, Any]] = field(default_factory=dict)
    rounding: set[str] = field(default_factory=set)
    """Trees that see float32, as scikit-learn's own do."""

    def run(self, model: Any, types: list[tuple[str, Any]], options: dict[int, Any], opset: Any) -> ModelProto:
        """As `skl2onnx.to_onnx`, with our converters."""
        from skl2onnx import convert_sklearn
        from skl2onnx._supported_operators import sklearn_operator_name_map
        from sklearn.compose import TransformedTargetRegressor

        unknown = [kind for kind in _thresholded() if kind not in sklearn_operator_name_map]
        self.exact.clear()
        proto: ModelProto = convert_sklearn(
            model,
            name=f"ONNX({type(model).__name__})",
            initial_types=types,
            target_opset=opset,
            options=options,
            custom_conversion_functions=self._converters(),
            custom_shape_calculators=self._shapes(),
            custom_parsers={TransformedTargetRegressor: _parse_target, **dict.fromkeys(unknown, _parse_label)},
        )
        version = opset.get("") if isinstance(opset, dict) else opset
        for entry in proto.opset_import:
            if entry.domain == "" and version is not None:
                entry.version = version
        return proto

    def _converters(self) -> dict[type, Converter]:
        from skl2onnx._supported_operators import sklearn_operator_name_map
        from skl2onnx.common._registration import get_converter

        ours = _ours(double=self.double)
        if not self.double:
            return ours

        def registered(scope: Any, operator: Any, container: Any) -> None:
            # By what it is converted as: an estimator may be taken apart into several operators.
            _in_full(get_converter(operator.type))(scope, operator, container)

        return {kind: self._watching(ours.get(kind, registered)) for kind in (*sklearn_operator_name_map, *ours)}

    def _shapes(self) -> dict[type, Callable[[Any], None]]:
        from skl2onnx._supported_operators import sklearn_operator_name_map

        ours = _shapes()
        return dict.fromkeys(sklearn_operator_name_map, _shape_in_double) | ours if self.double else ours

    def _watching(self, convert: Converter) -> Converter:
        def watched(scope: Any, operator: Any, container: Any) -> None:
            convert(scope, operator, _Watched(container, self, operator.raw_operator))

        return watched


def _shape_in_double(operator: Any) -> None:
    """Some steps say that they give float32 whatever they get, and the next one then believes them."""
    from skl2onnx.common._registration import get_shape_calculator
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType

    get_shape_calculator(operator.type)(operator)
    for variable in operator.outputs:
        if type(variable.type) is FloatTensorType:
            variable.type = DoubleTensorType(variable.type.shape)


def _in_full(convert: Any) -> Converter:
    """Converters of trees round their numbers for the operators before version 3."""
    known = signature(convert._fct).parameters
    of_trees = "op_version" in known and str(known["op_type"].default).startswith("TreeEnsemble")
    return partial(convert._fct, op_version=3) if of_trees else convert


class _Watched:
    """A container of skl2onnx that keeps numbers in full: what is stored is stored as doubles, attributes are noted."""

    def __init__(self, container: Any, conversion: Conversion, step: Any) -> None:
        self._container, self._conversion, self._step = container, conversion, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    def add_initializer(self, name: str, onnx_type: int, shape: Any, content: Any) -> Any:
        from onnx import TensorProto

        wide = TensorProto.DOUBLE if onnx_type == TensorProto.FLOAT else onnx_type
        return self._container.add_initializer(name, wide, shape, content)

    def add_node(self, op_type: str, inputs: Any, outputs: Any, **attributes: Any) -> Any:
        made = self._container.add_node(op_type, inputs, outputs, **attributes)
        node = self._container.nodes[-1]
        numbers = {name: value for name, value in attributes.items() if _is_float(value)}
        if numbers:
            self._conversion.exact[node.name] = numbers
        if op_type.startswith("TreeEnsemble") and _rounds(self._step):
            self._conversion.rounding.add(node.name)
        return made


def _is_float(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and isinstance(value[0], float | np.floating)
    return isinstance(value, float | np.floating) or (isinstance(value, np.ndarray) and value.dtype.kind == "f")


def _rounds(step: Any) -> bool:
    """scikit-learn's trees look at float32; those over histograms at float64."""
    return type(step).__module__.startswith("sklearn.") and not hasattr(step, "_predictors")


def _ours(*, double: bool) -> dict[type, Converter]:
    """The classes that we convert ourselves."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import HistGradientBoostingRegressor, IsolationForest, StackingClassifier
    from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer
    from sklearn.impute import MissingIndicator, SimpleImputer
    from sklearn.linear_model import RidgeClassifier, RidgeClassifierCV
    from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
    from sklearn.neural_network import MLPRegressor
    from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder, PowerTransformer
    from sklearn.svm import SVC, SVR, LinearSVC, NuSVC, NuSVR, OneClassSVM

    always: dict[type, Callable[[Writing], None]] = {
        FunctionTransformer: _function,
        _Inverse: _inverse,
        SimpleImputer: partial(_imputer, always=double),
        MissingIndicator: _indicator,
        OrdinalEncoder: encoders.ordinal,
        **dict.fromkeys((TfidfTransformer, TfidfVectorizer), encoders.terms),
        **dict.fromkeys(_thresholded(), _threshold),
        HistGradientBoostingRegressor: partial(_boosted_regressor, double=double),
        MLPRegressor: _network,
        LinearDiscriminantAnalysis: _discriminant,
        OneVsRestClassifier: ensembles.one_against_rest,
        OneVsOneClassifier: ensembles.one_against_one,
        StackingClassifier: ensembles.stack,
        CalibratedClassifierCV: ensembles.calibrated,
        **dict.fromkeys((SVC, NuSVC), svm.classifier if double else svm.as_scikit_learn_shows_it),
    }
    in_double: dict[type, Callable[[Writing], None]] = {
        **dict.fromkeys((LinearSVC, RidgeClassifier, RidgeClassifierCV), _linear_classifier),
        **dict.fromkeys((SVR, NuSVR, OneClassSVM), svm.regressor),
        IsolationForest: _isolation_forest,
        PowerTransformer: _power,
    }
    selectors: dict[type, Callable[[Writing], None]] = dict.fromkeys(_selectors(), _selector)
    return {kind: _writing(convert) for kind, convert in (selectors | always | (in_double if double else {})).items()}


def _thresholded() -> list[type]:
    """Classifiers that pick the positive class from a threshold on; scikit-learn has them since 1.5."""
    from sklearn import model_selection

    names = ("FixedThresholdClassifier", "TunedThresholdClassifierCV")
    return [kind for name in names if (kind := getattr(model_selection, name, None)) is not None]


def _threshold(write: Writing) -> None:
    """The classifier inside, whose label is picked by the threshold: skl2onnx leaves that out, or has no converter."""
    step = write.step
    inner = getattr(step, "estimator_", step.estimator)
    if step.response_method == "decision_function" or not hasattr(inner, "predict_proba"):
        raise ModelError(
            "its threshold is on decision scores, for which there is no converter",
            remedy='Put it on probabilities: response_method="predict_proba"',
        )
    tuned = hasattr(step, "best_threshold_")
    threshold = step.best_threshold_ if tuned else 0.5 if step.threshold == "auto" else step.threshold
    label = step._curve_scorer._get_pos_label() if tuned else step.pos_label
    positive = 1 if label is None else step.classes_.tolist().index(label)
    probabilities = write.inside(inner)
    column = write("Gather", probabilities, np.array(positive), axis=1)
    reached = write("Not", write("Less", column, float(threshold)))
    write.label_at(write("Where", reached, np.array(positive), np.array(1 - positive)))
    write.into(1, probabilities)


def _selectors() -> list[type]:
    from skl2onnx._supported_operators import sklearn_operator_name_map
    from sklearn.feature_selection import SelectorMixin

    return [kind for kind in sklearn_operator_name_map if issubclass(kind, SelectorMixin)]


def _selector(write: Writing) -> None:
    """skl2onnx takes a selection of the first column alone for none, and writes what no runtime loads."""
    chosen = write.step.get_support(indices=True)
    if chosen.tolist() != [0]:
        write.as_registered(write.operator.type)
        return
    table = write.operator.inputs[0].full_name
    write.into(0, write("ArrayFeatureExtractor", table, chosen.astype(np.int64), op_domain="ai.onnx.ml"))


def _writing(convert: Callable[[Writing], None]) -> Converter:
    """One of ours as skl2onnx calls it."""

    def converter(scope: Any, operator: Any, container: Any) -> None:
        convert(Writing(scope, operator, container))

    return converter


def _shapes() -> dict[type, Callable[[Any], None]]:
    from sklearn.impute import MissingIndicator, SimpleImputer
    from sklearn.preprocessing import FunctionTransformer

    return {
        **dict.fromkeys(_thresholded(), _shape_of_label),
        FunctionTransformer: _shape_of_function,
        _Inverse: _shape_of_numbers,
        SimpleImputer: _shape_of_imputer,
        MissingIndicator: _shape_of_gaps,
    }


def _is_text(variable: Any) -> bool:
    from skl2onnx.common.data_types import StringTensorType

    return isinstance(variable.type, StringTensorType)


def _number(operator: Any) -> Any:
    """The type of a table of numbers made of the inputs."""
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType

    double = any(isinstance(variable.type, DoubleTensorType) for variable in operator.inputs)
    return DoubleTensorType if double else FloatTensorType


def _width(operator: Any) -> int | None:
    widths = [variable.type.shape[1] if len(variable.type.shape) > 1 else None for variable in operator.inputs]
    return None if None in widths else sum(width or 0 for width in widths)


def _shape_of_numbers(operator: Any) -> None:
    operator.outputs[0].type = _number(operator)([None, _width(operator)])


def _passes_text(operator: Any) -> bool:
    return operator.raw_operator.func is None and all(map(_is_text, operator.inputs))


def _shape_of_function(operator: Any) -> None:
    _shape_of_numbers(operator)
    if _passes_text(operator):
        operator.outputs[0].type = type(operator.inputs[0].type)([None, _width(operator)])


def _function(write: Writing) -> None:
    if _passes_text(write.operator):
        write.into(0, write.beside([variable.full_name for variable in write.operator.inputs]))
    else:
        write.into(0, functions.applied(write, write.table(), write.step.func, write.step.kw_args))


def _parse_target(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:
    """The regressor, and behind it what turns its answer back."""
    from skl2onnx._parse import _parse_sklearn
    from skl2onnx.common.data_types import guess_tensor_type

    (answer, *_) = _parse_sklearn(scope, model.regressor_, inputs, custom_parsers=custom_parsers)
    operator = scope.declare_local_operator("SklearnFunctionTransformer", _Inverse(model.transformer_))
    operator.inputs.append(answer)
    operator.outputs.append(scope.declare_local_variable("variable", guess_tensor_type(inputs[0].type)))
    return operator.outputs


def _parse_label(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:
    """A classifier that skl2onnx does not know: one operator that gives a label and probabilities."""
    from skl2onnx.common.data_types import guess_tensor_type

    operator = scope.declare_local_operator("SklearnLinearClassifier", model)
    operator.inputs = list(inputs)
    for name in ("label", "probabilities"):
        operator.outputs.append(scope.declare_local_variable(name, guess_tensor_type(inputs[0].type)))
    return operator.outputs


def _shape_of_label(operator: Any) -> None:
    from skl2onnx.common.data_types import Int64TensorType, StringTensorType

    classes = operator.raw_operator.classes_
    operator.outputs[0].type = (StringTensorType if classes.dtype.kind in "OUS" else Int64TensorType)([None])
    operator.outputs[1].type = _number(operator)([None, len(classes)])


@dataclass(frozen=True, slots=True)
class _Inverse:
    """Takes back what a transformer did to the target, as an operator of skl2onnx."""

    transformer: Any


def _inverse(write: Writing) -> None:
    write.into(0, functions.inverse(write, write.table(), write.step.transformer))


def _kept(step: Any) -> Any:
    """The columns that an imputer passes on: one without any value in training goes."""
    if step.keep_empty_features:
        return np.arange(len(step.statistics_))
    return np.flatnonzero([value == value for value in step.statistics_])


def _shape_of_imputer(operator: Any) -> None:
    step = operator.raw_operator
    width = len(_kept(step)) + (len(step.indicator_.features_) if step.add_indicator else 0)
    kind = type(operator.inputs[0].type)
    if not _is_text(operator.inputs[0]) and _by_ours(step, operator, always=False):
        kind = _number(operator)
    operator.outputs[0].type = kind([None, width])


def _by_ours(step: Any, operator: Any, *, always: bool) -> bool:
    if any(map(_is_text, operator.inputs)):
        return False
    plain = isinstance(step.missing_values, float) and not step.add_indicator
    return always or not plain or len(_kept(step)) != len(step.statistics_)


def _imputer(write: Writing, *, always: bool) -> None:
    step = write.step
    if not _by_ours(step, write.operator, always=always):
        write.as_registered("SklearnSimpleImputer")
        return
    table = write.table()
    missing = _missing(write, table, step.missing_values)
    filled = write("Where", missing, step.statistics_.astype(np.float64), table)
    kept = _kept(step)
    if len(kept) != len(step.statistics_):
        filled = write("Gather", filled, kept.astype(np.int64), axis=1)
    if step.add_indicator:
        gaps = write("Gather", missing, step.indicator_.features_.astype(np.int64), axis=1)
        filled = write.beside([filled, write("Cast", gaps, to=write.kind)])
    write.into(0, filled)


def _missing(write: Writing, table: str, value: Any) -> str:
    if value is None or value != value:
        return write("IsNaN", table)
    return write("Equal", table, float(value))


def _shape_of_gaps(operator: Any) -> None:
    operator.outputs[0].type = _number(operator)([None, len(operator.raw_operator.features_)])


def _indicator(write: Writing) -> None:
    gaps = _missing(write, write.table(), write.step.missing_values)
    chosen = write("Gather", gaps, write.step.features_.astype(np.int64), axis=1)
    write.into(0, write("Cast", chosen, to=write.kind))


def _power(write: Writing) -> None:
    write.into(0, functions.power(write, write.table(), write.step))


def _linear_classifier(write: Writing) -> None:
    step = write.step
    coefficients = np.atleast_2d(step.coef_).astype(np.float64)
    intercept = np.broadcast_to(np.asarray(step.intercept_, dtype=np.float64), (len(coefficients),))
    scores = write("Add", write("MatMul", write.table(), coefficients.T.copy()), intercept.copy())
    binarizer = getattr(step, "_label_binarizer", None)
    if binarizer is not None and binarizer.y_type_.startswith("multilabel"):
        write.into(0, write("Cast", write("Greater", scores, 0.0), to=7))
    elif len(coefficients) == 1:
        above = write("Cast", write("Greater", scores, 0.0), to=7)
        write.label_at(write("Reshape", above, np.array([-1])))
        # Who holds a LinearSVC takes its one column, unless it asked for raw scores.
        single = type(step).__name__ == "LinearSVC" and not write.raw
        scores = scores if single else write.both_ways(scores)
    else:
        write.label_at(write("ArgMax", scores, axis=1, keepdims=0))
    write.into(1, scores)


def _discriminant(write: Writing) -> None:
    """Of two classes the probability is that of one score; skl2onnx takes it of a score and its negative."""
    if len(write.step.classes_) == 2 and not write.raw:
        write.operator.raw_operator = half = copy(write.step)
        half.coef_, half.intercept_ = half.coef_ / 2, half.intercept_ / 2
    write.as_registered(write.operator.type)


def _boosted_regressor(write: Writing, *, double: bool) -> None:
    """The trees of `poisson` and `gamma` give a logarithm, and skl2onnx leaves it at that."""
    from skl2onnx.common._registration import get_converter

    registered = get_converter(write.operator.type)
    answer = write.made_by(_in_full(registered) if double else registered)
    write.into(0, write("Exp", answer) if write.step._loss.link.inverse(0.0) == 1.0 else answer)


def _network(write: Writing) -> None:
    """The last layer of `poisson` gives a logarithm, for which skl2onnx has no activation."""
    if write.step.out_activation_ != "exp":
        write.as_registered(write.operator.type)
        return
    from skl2onnx.common._registration import get_converter

    write.operator.raw_operator = before = copy(write.step)
    before.out_activation_ = "identity"
    write.into(0, write("Exp", write.made_by(get_converter(write.operator.type))))


def _isolation_forest(write: Writing) -> None:
    """Every leaf says how deep it is; the sum over the trees is all there is to know."""
    from skl2onnx.common.tree_ensemble import (
        add_tree_to_attribute_pairs,
        get_default_tree_regressor_attribute_pairs,
    )
    from sklearn.ensemble._iforest import _average_path_length

    step = write.step
    attributes = get_default_tree_regressor_attribute_pairs()
    attributes["n_targets"] = 1
    no_classes, as_values = (False,), (False, True)  # no counts, and thresholds for float32
    starts = [0]
    for number, (member, columns) in enumerate(zip(step.estimators_, step.estimators_features_, strict=True)):
        add_tree_to_attribute_pairs(attributes, *no_classes, member.tree_, number, 1.0, 0, *as_values, dtype=np.float64)
        start, stop = starts[-1], len(attributes["nodes_featureids"])
        starts.append(stop)
        attributes["nodes_featureids"][start:stop] = columns[attributes["nodes_featureids"][start:stop]].tolist()
    depths_of = [
        member.tree_.compute_node_depths() - 1.0 + _average_path_length(member.tree_.n_node_samples)
        for member in step.estimators_
    ]
    at = zip(attributes["target_treeids"], attributes["target_nodeids"], strict=True)
    leaves = [float(depths_of[number][node]) for number, node in at]
    attributes["target_weights"] = leaves
    attributes["target_ids"] = [0] * len(leaves)
    depths = write("TreeEnsembleRegressor", write.table(), op_domain="ai.onnx.ml", **attributes)
    most = len(step.estimators_) * float(_average_path_length([step._max_samples])[0])
    score = write("Neg", write("Pow", 2.0, write("Div", depths, -most)))
    decision = write("Sub", score, float(step.offset_))
    write.into(1, decision)
    less = write("Less", decision, 0.0)
    write.into(0, write("Where", less, np.array([[-1]]), np.array([[1]])))
    if len(write.operator.outputs) > 2:
        write.into(2, score)
