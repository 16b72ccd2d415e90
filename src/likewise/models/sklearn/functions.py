"""Functions of numpy and scipy written as ONNX operators, and the inverses of fitted transformers.

Everything is computed in float64, also where the graph is in float32: `log(1 + x)` of a small number is gone in float32
before the logarithm is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from likewise.errors import ModelError

SINGLE, DOUBLE, WHOLE = 1, 11, 7
LARGEST = float(np.finfo(np.float64).max)


class Writing:
    """Writes operators into the container of a conversion: a call adds one and gives the name of what it makes.

    Numbers among the inputs are stored, floats in the type the graph has, or in float64 while `wide`.
    `step` is the fitted estimator that is converted, as the `operator` of skl2onnx.
    """

    def __init__(self, scope: Any, operator: Any, container: Any) -> None:
        from skl2onnx.common.data_types import DoubleTensorType

        self._scope, self._container = scope, container
        self.operator, self.step = operator, operator.raw_operator
        double = any(isinstance(variable.type, DoubleTensorType) for variable in operator.inputs)
        self.kind = DOUBLE if double else SINGLE
        """The element type of the numbers of this graph."""
        self.wide = double

    def __call__(self, operator: str, *given: Any, **attributes: Any) -> str:
        inputs = [name if isinstance(name, str) else self.number(name) for name in given]
        output = str(self._scope.get_unique_variable_name(operator.lower()))
        name = self._scope.get_unique_operator_name(operator)
        self._container.add_node(operator, inputs, [output], name=name, **attributes)
        return output

    def number(self, value: Any) -> str:
        """The name of a constant that holds this."""
        array = np.asarray(value)
        kinds = {"f": DOUBLE if self.wide else SINGLE, "i": WHOLE, "b": 9, "O": 8}
        kind = kinds["f" if isinstance(value, int | float) else array.dtype.kind]
        name = str(self._scope.get_unique_variable_name("stored"))
        content = [text.encode() for text in array.ravel()] if kind == 8 else array.ravel().tolist()
        self._container.add_initializer(name, kind, list(array.shape), content)
        return name

    def beside(self, tables: Sequence[str]) -> str:
        """Tables side by side."""
        return tables[0] if len(tables) == 1 else self("Concat", *tables, axis=1)

    def table(self) -> str:
        """The inputs side by side, as numbers of one type."""
        return self.beside([self("Cast", variable.full_name, to=self.kind) for variable in self.operator.inputs])

    def in_double(self, form: Form, table: str, *given: Any, **options: Any) -> str:
        """What a form makes of a table in float64, as the numbers of this graph."""
        was, self.wide = self.wide, True
        try:
            found = form(self, self("Cast", table, to=DOUBLE), *given, **options)
        finally:
            self.wide = was
        return self("Cast", found, to=self.kind)

    def into(self, place: int, name: str) -> None:
        """Give this as an output of the converted operator."""
        output = self.operator.outputs[place].full_name
        self._container.add_node("Identity", [name], [output], name=self._scope.get_unique_operator_name("Identity"))

    def label_at(self, place: str) -> None:
        """Give the class at this place as the first output: the label."""
        classes = self.step.classes_
        labels = classes.astype(object) if classes.dtype.kind in "OUS" else classes.astype(np.int64)
        self.into(0, self("Gather", labels, place))

    def variable(self, table: str, width: int) -> Any:
        """A table that was written here, to be the input of what this one holds."""
        kind = type(self.operator.inputs[0].type)
        found = self._scope.declare_local_variable("table", kind([None, width]))
        self._container.add_node("Identity", [table], [found.onnx_name])
        return found

    def inside(self, classifier: Any, given: Any = None, *, raw: bool = False) -> str:
        """The probabilities of a classifier that this one holds, or its scores as they are."""
        from skl2onnx._supported_operators import sklearn_operator_name_map

        operator = self._scope.declare_local_operator(sklearn_operator_name_map[type(classifier)], classifier)
        operator.inputs = self.operator.inputs if given is None else [given]
        last = classifier.steps[-1][1] if hasattr(classifier, "steps") else classifier
        if raw and self._container.has_options(last, "raw_scores"):
            for options in (self._container, self._scope):
                options.add_options(id(last), {"raw_scores": True})
        for like in self.operator.outputs:
            operator.outputs.append(self._scope.declare_local_variable("inner", like.type.__class__()))
        return str(operator.outputs[1].onnx_name)

    @property
    def raw(self) -> bool:
        """Does who holds this classifier ask for its scores as they are, not for probabilities?"""
        options = self._scope.get_options(self.step, {"raw_scores": False}, fail=False)
        return bool(options["raw_scores"])

    def both_ways(self, scores: str) -> str:
        """Scores of the second of two classes as scores of both."""
        return self.beside([self("Neg", scores), scores])

    def as_registered(self, alias: str) -> None:
        """Leave it to skl2onnx's own converter."""
        from skl2onnx.common._registration import get_converter

        get_converter(alias)(self._scope, self.operator, self._container)

    def made_by(self, convert: Any, place: int = 0) -> str:
        """What another converter makes of the step as one of its outputs, under another name than that."""
        between = str(self._scope.get_unique_variable_name("between"))
        names = {self.operator.outputs[place].full_name: between}
        convert(self._scope, self.operator, _Renaming(self._container, names))
        return between


class _Renaming:
    """A container of skl2onnx in which some outputs get other names."""

    def __init__(self, container: Any, names: Mapping[str, str]) -> None:
        self._container, self._names = container, names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    def add_node(self, op_type: str, inputs: Any, outputs: Any, **attributes: Any) -> Any:
        given = [outputs] if isinstance(outputs, str) else outputs
        outputs = [self._names.get(name, name) for name in given]
        return self._container.add_node(op_type, inputs, outputs, **attributes)


Form = Callable[..., str]
"""Writes what one function makes of a table: `form(write, table, …)`."""


def applied(write: Writing, x: str, func: Any, keywords: Mapping[str, Any] | None = None) -> str:
    """What a function of numpy makes of a table."""
    given = dict(keywords or {})
    while isinstance(func, partial) and not func.args:
        func, given = func.func, {**func.keywords, **given}
    if func is None:
        return x
    try:
        form = known().get(func)
    except TypeError:  # what cannot be hashed is none of them
        form = None
    if form is None:
        raise ModelError(f"it calls {_named(func)}, which has no form in ONNX")
    try:
        return write.in_double(form, x, **given)
    except TypeError as error:
        raise ModelError(f"it calls {_named(func)} with {', '.join(given)}, which has no form in ONNX") from error


def _named(func: Any) -> str:
    name = getattr(func, "__qualname__", None) or getattr(func, "__name__", type(func).__name__)
    module = "numpy" if isinstance(func, np.ufunc) else getattr(func, "__module__", None)
    return f"{module}.{name}" if module else str(name)


def _plain(operator: str) -> Form:
    return lambda write, x: write(operator, x)


def _scaled(operator: str, factor: float) -> Form:
    return lambda write, x: write("Mul", write(operator, x), factor) if operator else write("Mul", x, factor)


def _log1p(write: Writing, x: str) -> str:
    """log(1 + x), with what the sum lost given back: log(u) · x / (u − 1) for u = 1 + x as it was rounded."""
    u = write("Add", x, 1.0)
    rest = write("Sub", u, 1.0)
    log = write("Log", u)
    better = write("Mul", log, write("Div", x, rest))
    small = write("Equal", rest, 0.0)
    large = write("Greater", write("Abs", x), 1e15)
    return write("Where", small, x, write("Where", large, log, better))


def _expm1(write: Writing, x: str) -> str:
    """exp(x) − 1, in the same way."""
    u = write("Exp", x)
    less = write("Sub", u, 1.0)
    better = write("Mul", less, write("Div", x, write("Log", u)))
    small = write("Equal", less, 0.0)
    # Beyond it the difference holds all there is.
    large = write("Greater", write("Abs", x), 1.0)
    return write("Where", small, x, write("Where", large, less, better))


def _sign(write: Writing, x: str) -> str:
    return write("Where", write("IsNaN", x), x, write("Sign", x))


def _trunc(write: Writing, x: str) -> str:
    return write("Where", write("Less", x, 0.0), write("Ceil", x), write("Floor", x))


def _cbrt(write: Writing, x: str) -> str:
    root = write("Pow", write("Abs", x), 1 / 3)
    # One step of Newton's: a third is not a double.
    square = write("Mul", root, root)
    step = write("Div", write("Sub", root, write("Div", write("Abs", x), square)), 3.0)
    odd = write("Not", write("Greater", write("Abs", step), 0.0))
    return write("Mul", _sign(write, x), write("Where", odd, root, write("Sub", root, step)))


def _clip(write: Writing, x: str, a_min: Any = None, a_max: Any = None, **bounds: Any) -> str:
    low, high = bounds.pop("min", a_min), bounds.pop("max", a_max)
    if bounds:
        raise TypeError(bounds)
    if low is not None:
        x = write("Where", write("Less", x, _floats(low)), _floats(low), x)
    if high is not None:
        x = write("Where", write("Greater", x, _floats(high)), _floats(high), x)
    return x


def _floats(value: Any) -> Any:
    return np.asarray(value, dtype=np.float64)


def _round(write: Writing, x: str, decimals: int = 0) -> str:
    if decimals == 0:
        return write("Round", x)
    factor = 10.0 ** abs(decimals)
    away, back = ("Mul", "Div") if decimals > 0 else ("Div", "Mul")
    return write(back, write("Round", write(away, x, factor)), factor)


def _nan_to_num(
    write: Writing,
    x: str,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
    **_: Any,
) -> str:
    gap = write("IsNaN", x)
    high, low = (write("IsInf", x, detect_positive=sign, detect_negative=1 - sign) for sign in (1, 0))
    x = write("Where", gap, float(nan), x)
    x = write("Where", high, LARGEST if posinf is None else float(posinf), x)
    return write("Where", low, -LARGEST if neginf is None else float(neginf), x)


def _truth(form: Form) -> Form:
    return lambda write, x: write("Cast", form(write, x), to=DOUBLE)


def _isfinite(write: Writing, x: str) -> str:
    return write("Not", write("Or", write("IsNaN", x), write("IsInf", x)))


def _sinh(write: Writing, x: str) -> str:
    less = _expm1(write, write("Abs", x))
    half = write("Mul", write("Add", less, write("Div", less, write("Add", less, 1.0))), 0.5)
    large = write("Greater", write("Abs", x), 30.0)
    return write("Mul", _sign(write, x), write("Where", large, _half_exp(write, x), half))


def _half_exp(write: Writing, x: str) -> str:
    """exp(|x|) / 2, which may be a number where exp(|x|) is none."""
    root = write("Exp", write("Mul", write("Abs", x), 0.5))
    return write("Mul", write("Mul", root, 0.5), root)


def _cosh(write: Writing, x: str) -> str:
    half = _half_exp(write, x)
    return write("Add", half, write("Div", 0.25, half))


def _expit(write: Writing, x: str) -> str:
    """1 / (1 + exp(−x)): the runtime's Sigmoid has no digits left far below zero."""
    return write("Div", 1.0, write("Add", write("Exp", write("Neg", x)), 1.0))


@cache
def known() -> dict[Any, Form]:
    """The functions that are written, each by itself."""
    from scipy import special

    square: Form = lambda write, x: write("Mul", x, x)  # noqa: E731 - one of a table
    tan: Form = lambda write, x: write("Div", write("Sin", x), write("Cos", x))  # noqa: E731
    logit: Form = lambda write, x: write("Log", write("Div", x, write("Sub", 1.0, x)))  # noqa: E731
    by_name: dict[str, Form] = {
        "log": _plain("Log"), "log1p": _log1p, "log2": _scaled("Log", 1 / math.log(2)),
        "log10": _scaled("Log", 1 / math.log(10)),
        "exp": _plain("Exp"), "expm1": _expm1, "exp2": lambda write, x: write("Pow", 2.0, x),
        "sqrt": _plain("Sqrt"), "cbrt": _cbrt, "square": square, "absolute": _plain("Abs"), "fabs": _plain("Abs"),
        "reciprocal": lambda write, x: write("Div", 1.0, x), "negative": _plain("Neg"),
        "positive": _plain("Identity"), "sign": _sign,
        "sin": _plain("Sin"), "cos": _plain("Cos"), "tan": tan, "tanh": _plain("Tanh"), "sinh": _sinh, "cosh": _cosh,
        "deg2rad": _scaled("", math.pi / 180), "radians": _scaled("", math.pi / 180),
        "rad2deg": _scaled("", 180 / math.pi), "degrees": _scaled("", 180 / math.pi),
        "floor": _plain("Floor"), "ceil": _plain("Ceil"), "rint": _plain("Round"), "trunc": _trunc, "fix": _trunc,
        "round": _round, "around": _round, "clip": _clip, "nan_to_num": _nan_to_num,
        "isnan": _truth(_plain("IsNaN")), "isinf": _truth(_plain("IsInf")), "isfinite": _truth(_isfinite),
    }  # fmt: skip
    found = {getattr(np, name): form for name, form in by_name.items() if hasattr(np, name)}
    found |= {special.expit: _expit, special.logit: logit, special.log1p: _log1p, special.expm1: _expm1,
              special.exp2: by_name["exp2"], special.cbrt: _cbrt,
              special.exp10: lambda write, x: write("Pow", 10.0, x)}  # fmt: skip
    return found


def power(write: Writing, x: str, step: Any) -> str:
    """What a fitted PowerTransformer makes of a table."""

    def of_one(column: str, exponent: float) -> str:
        """A missing value stays one."""
        if step.method == "box-cox":
            return _boxcox(write, write("Log", column), exponent)
        up = _boxcox(write, _log1p(write, write("Abs", column)), exponent)
        down = write("Neg", _boxcox(write, _log1p(write, write("Abs", column)), 2 - exponent))
        return write("Where", write("Less", column, 0.0), down, up)

    found = _by_column(write, x, of_one, step.lambdas_)
    if step.standardize:
        found = write("Div", write("Sub", found, _floats(step._scaler.mean_)), _floats(step._scaler.scale_))
    return found


def _by_column(write: Writing, x: str, of_one: Callable[[str, float], str], exponents: Any) -> str:
    columns = (write("Gather", x, np.array([place]), axis=1) for place in range(len(exponents)))
    return write.beside([of_one(column, float(value)) for column, value in zip(columns, exponents, strict=True)])


def _boxcox(write: Writing, log: str, exponent: float) -> str:
    """(exp(λ·log) − 1) / λ."""
    if abs(exponent) < np.spacing(1.0):
        return log
    return write("Div", _expm1(write, write("Mul", log, exponent)), exponent)


def inverse(write: Writing, x: str, step: Any) -> str:
    """What a fitted transformer's `inverse_transform` makes of a table, in float64 on the way."""
    if step is None or step == "passthrough":
        return x
    kind = type(step).__name__
    if kind == "FunctionTransformer":
        return applied(write, x, step.inverse_func, step.inv_kw_args)
    if kind == "Pipeline":
        for _, inner in reversed(step.steps):
            x = inverse(write, x, inner)
        return x
    if kind not in _INVERSES:
        raise ModelError(f"its target is transformed by {kind}, whose inverse has no form in ONNX")
    return write.in_double(_INVERSES[kind], x, step)


def _unscaled(scale: str, centre: str) -> Form:
    """x · scale + centre, of what the scaler has."""

    def form(write: Writing, x: str, step: Any) -> str:
        for operator, name in (("Mul", scale), ("Add", centre)):
            if getattr(step, name, None) is not None:
                x = write(operator, x, _floats(getattr(step, name)))
        return x

    return form


def _inverse_range(write: Writing, x: str, step: Any) -> str:
    if step.clip:
        raise ModelError("its target is transformed by MinMaxScaler(clip=True), whose inverse has no form in ONNX")
    return write("Div", write("Sub", x, _floats(step.min_)), _floats(step.scale_))


def _inverse_power(write: Writing, x: str, step: Any) -> str:
    if step.standardize:
        x = _unscaled("scale_", "mean_")(write, x, step._scaler)

    def of_one(column: str, exponent: float) -> str:
        if step.method == "box-cox":
            return write("Exp", _inverse_boxcox(write, column, exponent))
        size = write("Abs", column)
        up = _expm1(write, _inverse_boxcox(write, size, exponent))
        down = write("Neg", _expm1(write, _inverse_boxcox(write, size, 2 - exponent)))
        return write("Where", write("Less", column, 0.0), down, up)

    return _by_column(write, x, of_one, step.lambdas_)


def _inverse_boxcox(write: Writing, x: str, exponent: float) -> str:
    """The logarithm of what had this transform."""
    if abs(exponent) < np.spacing(1.0):
        return x
    return write("Div", _log1p(write, write("Mul", x, exponent)), exponent)


_INVERSES: Mapping[str, Form] = {
    "StandardScaler": _unscaled("scale_", "mean_"),
    "RobustScaler": _unscaled("scale_", "center_"),
    "MaxAbsScaler": _unscaled("scale_", ""),
    "MinMaxScaler": _inverse_range,
    "PowerTransformer": _inverse_power,
}
