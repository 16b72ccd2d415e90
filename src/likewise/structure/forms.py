"""A fitted array as exporters write it: transposed, flattened, negated, inverted, for both classes, in parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from likewise.contracts.data import Array
from likewise.structure.closeness import is_float, is_text
from likewise.structure.constants import Constant
from likewise.structure.parameters import BUFFER, GRAPH, NETWORK, Parameter

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
        import numpy as np

        if self.origin is not None:
            return int(self.origin[entry])
        if self.way == "turned":
            row, column = np.unravel_index(entry, self.array.shape)
            return int(column * self.array.shape[0] + row)
        return int(entry % self.parameter.values.size)


def forms(parameter: Parameter) -> Iterator[Form]:
    """The ways in which an exporter writes an array."""
    import numpy as np

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
    import numpy as np

    if is_text(parameter.values) or parameter.kind in (NETWORK, BUFFER, GRAPH) or parameter.rounding:
        return
    flat = parameter.values.ravel().astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for changed in (-2 * flat, flat**2, np.sqrt(flat), 1 / np.sqrt(flat), np.log(flat)):
            if np.isfinite(changed).all():
                yield Form(parameter, changed)


def parts(parameter: Parameter) -> Iterator[Form]:
    """The pieces of an array that some converters write apart: one a column or row, or without the outer edges."""
    import numpy as np

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
