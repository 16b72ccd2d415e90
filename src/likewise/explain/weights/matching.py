"""Which constant of a graph is which fitted array: by what they hold first, by name and order for the rest.

Exporters rename, transpose, flatten, negate, invert and fold. Names therefore decide only between
arrays of which no value tells anything, and what is put back into a graph is always tried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from likewise.contracts.data import Array
from likewise.explain.weights.arrays import is_float, is_text, pattern, unequal
from likewise.models.onnx.inside import Constant
from likewise.models.parameters import BUFFER, GRAPH, NETWORK, PACKED, Parameter

SCALED = {
    **{(name, "Sub"): "as it is" for name in ("mean_", "center_")},
    **{(name, "Add"): "negated" for name in ("mean_", "center_")},
    ("scale_", "Div"): "as it is",
    ("scale_", "Mul"): "inverse",
    **{(name, "Scaler.offset"): "as it is" for name in ("mean_", "center_")},
    ("scale_", "Scaler.scale"): "inverse",
}
"""How scalers' arrays have to stand before which operator."""

MOST_PARTS = 2_000
"""Rows or columns of an array that is looked at piece by piece."""

PROBED = 512
"""Entries of large arrays that are looked at before all of them are."""

ALIKE = 0.5
"""An array is taken for a damaged copy of another if this part of it is equal."""

RECURRENT = {"LSTM", "GRU", "RNN"}

EXPORTED = (
    *("mean_", "center_", "scale_", "min_", "statistics_", "components_", "coef_", "intercept_", "coefs_"),
    *("intercepts_", "cluster_centers_", "theta_", "var_", "idf_", "lambdas_", "dual_coef_", "support_vectors_"),
)
"""What estimators compute their answers from, among all they keep: only these are looked for by order."""


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A parameter as an exporter may write it: its entries in order, in whatever shape.

    `way` says what was done to it, `origin` which of its entries are here where the way does not tell.
    """

    parameter: Parameter
    array: Array
    way: str = "derived"
    origin: Array | None = None

    @property
    def plain(self) -> bool:
        return self.way in ("as it is", "turned")

    def suits(self, constant: Constant) -> bool:
        """Is it the way round, the sign or the inverse that the node takes? Unknown operators take anything."""
        parameter, shape, mine = self.parameter, self.parameter.values.shape, constant.values.shape
        square = len(shape) == 2 and shape[0] == shape[1]
        if parameter.outputs_first is not None and square and constant.operator in ("MatMul", "Gemm"):
            return (self.way == "turned") == (parameter.outputs_first != constant.turned)
        if len(shape) == 2 and min(shape) > 1 and not square and mine in (shape, shape[::-1]):
            return (self.way == "turned") is bool(mine != shape)
        operator = f"{constant.operator}.{constant.place}" if isinstance(constant.place, str) else constant.operator
        wanted = SCALED.get((parameter.attribute, operator))
        return wanted is None or parameter.kind == "MinMaxScaler" or self.way == wanted

    def fitted_to(self, constant: Constant) -> Array:
        """The values in the shape and the type in which the node takes them."""
        values = self.array.ravel().reshape(constant.values.shape)
        return values.astype(constant.values.dtype) if is_float(constant.values) else values

    def place(self, entry: int) -> int:
        """Which entry of the parameter stands here."""
        if self.origin is not None:
            return int(self.origin[entry])
        if self.way == "turned":
            row, column = np.unravel_index(entry, self.array.shape)
            return int(column * self.array.shape[0] + row)
        return int(entry % self.parameter.values.size)


def forms(parameter: Parameter) -> Iterator[Form]:
    """The ways in which an exporter writes an array."""
    values = parameter.values
    yield Form(parameter, values, "as it is")
    if is_text(values):
        return
    if values.ndim == 2 and min(values.shape) > 1:
        yield Form(parameter, values.T, "turned")
    if parameter.kind in (NETWORK, BUFFER, GRAPH) or parameter.rounding:
        return
    flat = values.ravel().astype(np.float64)
    if len(values) == 1 or values.ndim == 1:
        yield Form(parameter, np.concatenate([-flat, flat]), "for both classes")
    yield Form(parameter, -flat, "negated")
    if flat.all():
        yield Form(parameter, 1 / flat, "inverse")


def derived(parameter: Parameter) -> Iterator[Form]:
    """What converters compute from an array: only for a name, as too much can be computed from too many arrays."""
    if is_text(parameter.values) or parameter.kind in (NETWORK, BUFFER, GRAPH) or parameter.rounding:
        return
    flat = parameter.values.ravel().astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for changed in (-2 * flat, flat**2, np.sqrt(flat), 1 / np.sqrt(flat), np.log(flat)):
            if np.isfinite(changed).all():
                yield Form(parameter, changed)


def parts(parameter: Parameter) -> Iterator[Form]:
    """The pieces of an array that some converters write apart: one a column or row, or without the outer edges."""
    values = parameter.values
    places = np.arange(values.size).reshape(values.shape)
    if values.ndim == 2 and max(values.shape) <= MOST_PARTS:
        for lines, index in ((values, places), (values.T, places.T)):
            for number in range(len(lines)):
                line, place = lines[number, :], index[number, :]
                yield Form(parameter, line, origin=place)
                if not is_text(values):
                    yield Form(parameter, -line[::-1], origin=place[::-1])
    elif values.ndim == 1 and values.size > 3:
        for cut in (slice(1, -1), slice(1, None), slice(None, -1)):
            yield Form(parameter, values[cut], origin=places[cut])


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A constant and what it should hold.

    `form` tells what was done to the parameter, `storage` what the type that all constants of the graph went
    through leaves of a number.
    """

    constant: Constant
    expected: Array
    parameter: Parameter | None = None
    form: Form | None = None
    storage: tuple[float, float] | None = None

    @property
    def different(self) -> Array:
        rounding = 0.0 if self.parameter is None else self.parameter.rounding
        return unequal(
            self.constant.values,
            self.expected,
            rounding=self.constant.rounding,
            folded=rounding,
            storage=self.storage,
        )

    def index(self, entry: int) -> tuple[int, ...]:
        """Where an entry of the constant stands in the parameter, or in the constant itself."""
        if self.parameter is None or self.form is None:
            return tuple(int(part) for part in np.unravel_index(entry, self.expected.shape or (1,)))
        shape = self.parameter.values.shape
        return tuple(int(part) for part in np.unravel_index(self.form.place(entry), shape))


def _match(form: Form, constant: Constant) -> Match:
    return Match(constant, form.fitted_to(constant), form.parameter, form)


def identified(
    constants: Sequence[Constant],
    parameters: Sequence[Parameter],
    *,
    freely: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> dict[tuple[int, int | str], Match]:
    """The constants that hold exactly a fitted array, by their place.

    `freely`: they are known to be right and want a name only, so parts and whatever is computed will do.
    `tick` is called for every constant: in a large graph each has many arrays to be compared with.
    """
    by_size = _by_size(sorted(parameters, key=_kept_beside), freely=freely)
    found: dict[tuple[int, int | str], Match] = {}
    used: set[str] = set()
    for constant in constants:
        tick()
        if not _telling(constant):
            continue
        equal = [form for form in by_size[constant.values.size] if _share(constant, form, freely=freely) == 1.0]
        if equal:
            # Two steps may have learnt the same numbers: then they come in their own order.
            best = next((form for form in equal if form.parameter.path not in used), equal[0])
            used.add(best.parameter.path)
            found[constant.key] = _match(best, constant)
    return found


def matched(
    constants: Sequence[Constant], parameters: Sequence[Parameter], *, tick: Callable[[], None] = lambda: None
) -> list[Match]:
    """Constants and fitted arrays put together: equal ones, damaged ones, then those left over by name and order."""
    exact = identified(constants, parameters, tick=tick)
    taken = {match.parameter.path for match in exact.values() if match.parameter is not None}
    rest = [constant for constant in constants if constant.key not in exact and _telling(constant)]
    left = [parameter for parameter in parameters if parameter.path not in taken]
    found = list(exact.values())
    normalised = any(constant.operator == "BatchNormalization" for constant in constants)
    for stage in (partial(_damaged, tick=tick), partial(_in_order, normalised=normalised)):
        for match in stage(rest, left):
            assert match.parameter is not None
            found.append(match)
            taken.add(match.parameter.path)
        keys = {match.constant.key for match in found}
        rest = [constant for constant in rest if constant.key not in keys]
        left = [parameter for parameter in left if parameter.path not in taken]
    return found


def _damaged(rest: Sequence[Constant], left: Sequence[Parameter], *, tick: Callable[[], None]) -> Iterator[Match]:
    """Constants of which enough entries are equal, or that stand in a simple relation to an array."""
    by_size = _by_size(left)
    scored = []
    for constant in rest:
        tick()
        for form in by_size[constant.values.size]:
            share = _share(constant, form)
            if share < ALIKE and form.plain and form.suits(constant) and constant.values.size > 2:
                share = ALIKE if _related(constant, form) else share
            if share >= ALIKE:
                scored.append((share, constant, form))
    scored.sort(key=lambda entry: -entry[0])
    done: set[tuple[int, int | str]] = set()
    stored: dict[str, str] = {}
    for _share_equal, constant, form in scored:
        tied = stored.get(form.parameter.path) in (None, constant.tensor)
        if constant.key not in done and tied:
            done.add(constant.key)
            stored[form.parameter.path] = constant.tensor
            yield _match(form, constant)


def _in_order(rest: Sequence[Constant], left: Sequence[Parameter], *, normalised: bool) -> Iterator[Match]:
    """What no value tells apart: by name where both have it, else one after the other within a shape."""
    folded = set() if normalised else {p.folded for p in left if p.folded}
    likely = [p for p in left if p.step not in folded]
    waiting = _one_each([p for p in likely if _wanted(p, rest, normalised=normalised)])
    for constant in rest:
        fitting = [parameter for parameter in waiting if _fits(parameter, constant)]
        named = [parameter for parameter in fitting if parameter.path == constant.tensor]
        alike = [parameter for parameter in fitting if parameter.is_intercept == _added(constant)]
        chosen = next(iter(named or alike or fitting), None)
        lone = constant.values.size == 1 and constant.operator not in ("Add", "Gemm", "LinearRegressor")
        if chosen is not None and not is_text(constant.values) and not lone:
            waiting.remove(chosen)
            yield _oriented(constant, chosen)


def _fits(parameter: Parameter, constant: Constant) -> bool:
    """Has an array the shape of a constant? Attributes are flat and tell the number of entries only."""
    if is_text(parameter.values) or not any(_suiting(parameter, constant)):
        return False
    return isinstance(constant.place, str) or _shape_of(parameter.values) == _shape_of(constant.values)


def _suiting(parameter: Parameter, constant: Constant) -> Iterator[Form]:
    size = constant.values.size
    return (form for form in forms(parameter) if form.array.size == size and form.suits(constant))


def _wanted(parameter: Parameter, rest: Sequence[Constant], *, normalised: bool) -> bool:
    """Is an array in this form likely in this graph: packed for a recurrent node, folded without batch norms?"""
    packed = parameter.kind == PACKED
    learnt_by_order = parameter.kind in (NETWORK, BUFFER, GRAPH) or bool(parameter.rounding) or packed
    if not learnt_by_order and _kept_beside(parameter):
        return False
    if packed or any(parameter.attribute.startswith(stem) for stem in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")):
        return packed and any(constant.operator in RECURRENT for constant in rest)
    return not (parameter.rounding and normalised)


def _kept_beside(parameter: Parameter) -> bool:
    """What an estimator keeps beside the arrays it computes with."""
    return not parameter.attribute.startswith(EXPORTED)


def _one_each(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Of the forms of one array one, in the place of the first: folded goes before plain."""
    found: dict[str, Parameter] = {}
    for parameter in parameters:
        if parameter.path not in found or not found[parameter.path].rounding:
            found[parameter.path] = parameter
    return list(found.values())


def _added(constant: Constant) -> bool:
    """Does a node add the constant to what it computes?"""
    third = constant.place == 2 and constant.operator.endswith(("Gemm", "Conv", "ConvTranspose", "Normalization"))
    return third or constant.operator == "Add" or (constant.place == 3 and constant.operator in RECURRENT)


def _oriented(constant: Constant, parameter: Parameter) -> Match:
    """An array the way round that the node takes it."""
    return _match(next(_suiting(parameter, constant)), constant)


def _shape_of(values: Array) -> tuple[int, ...]:
    """A shape without its ones, and the same for a matrix and its transpose."""
    shape = [size for size in values.shape if size != 1]
    return tuple(sorted(shape)) if len(shape) == 2 else tuple(shape)


def _by_size(parameters: Sequence[Parameter], *, freely: bool = False) -> dict[int, list[Form]]:
    found: dict[int, list[Form]] = defaultdict(list)
    for look in (forms, parts, derived) if freely else (forms,):
        for parameter in parameters:
            for form in look(parameter):
                found[form.array.size].append(form)
    return found


def _telling(constant: Constant) -> bool:
    """Does a constant hold something that was learnt, rather than a shape or an axis?"""
    values = constant.values
    return values.size > 0 and (is_float(values) or is_text(values))


def _share(constant: Constant, form: Form, *, freely: bool = False) -> float:
    """The part of a constant that is as it should be, of those entries that are not zero in both."""
    values = constant.values.ravel()
    if is_text(values) != is_text(form.array) or not (freely or form.suits(constant)):
        return 0.0
    if values.size > PROBED:
        probe = np.random.default_rng(0).integers(values.size, size=PROBED)
        if (part := _equal_part(values[probe], form.array.flat[probe], constant, form)) < ALIKE / 2:
            return part
    return _equal_part(values, form.array.ravel(), constant, form)


def _equal_part(values: Array, expected: Array, constant: Constant, form: Form) -> float:
    different = unequal(values, expected, rounding=constant.rounding, folded=form.parameter.rounding)
    if is_text(values):
        return float(1 - different.mean())
    told = (values.astype(np.float64) != 0) | (expected != 0)
    if not told.any():
        return float(form.parameter.is_intercept) if not different.any() else 0.0
    return 1.0 - float(different[told].mean())


def _related(constant: Constant, form: Form) -> bool:
    """Is a constant a multiple of an array, the array in another order, or what is left of it?"""
    values = constant.values.ravel()
    if is_text(values) or is_text(form.array):
        return False
    if values.size > PROBED:
        probe = np.random.default_rng(0).integers(values.size, size=PROBED)
        mine, yours = values[probe], form.array.flat[probe]
        if not pattern(mine, yours, unequal(mine, yours)).regular and not _of_one_sum(values, form.array):
            return False
    match = _match(form, constant)
    found = pattern(constant.values, match.expected, match.different)
    return found.regular and not found.zero and len(found.entries) > 0


def _of_one_sum(values: Array, expected: Array) -> bool:
    """Could one array be the other in another order, or with entries lost? Cheaper than sorting both."""
    mine, yours = float(np.abs(values).sum()), float(np.abs(expected).sum())
    return not np.isfinite(mine) or abs(mine - yours) <= 1e-5 * yours
