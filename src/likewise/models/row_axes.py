"""Where the rows lie in a model's tensors: along axis 0, unless the model was built another way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from likewise.contracts.data import Array
from likewise.contracts.models import BatchAxis, Model, Shape
from likewise.errors import UsageError

BATCH_NAME = re.compile(r"(?i:batch)|^[BN]$")
"""How exporters call the axis of the rows."""

TIME_NAME = re.compile(r"(?i:seq|time|step|len)|^[TLS]$")
"""How they call an axis that may come before it; after any other, N is as likely the number of points or features."""


@dataclass(frozen=True, slots=True)
class RowAxes:
    """What `batch_axis` says: one axis for every tensor that has it, or one for each name."""

    everywhere: int | None = None
    named: Mapping[str, int] = field(default_factory=dict)

    def of(self, name: str, rank: int) -> int | None:
        """The axis of the rows of a tensor; None where nothing was said."""
        if name in self.named:
            return self.named[name]
        return self.everywhere if self.everywhere is not None and rank > self.everywhere else None


def said_of(model: Model) -> RowAxes:
    """What a user says of this model; else what is said of all models of the call."""
    return parse(model.options.get("batch_axis", model.batch_axis))


def parse(option: BatchAxis | None) -> RowAxes:
    """`1`, `x:1,h0:1`, or the same as a number or a mapping."""
    named: Mapping[str, Any] | None = option if isinstance(option, Mapping) else None
    if isinstance(option, str) and ":" in option:
        named = dict(entry.strip().rpartition(":")[::2] for entry in option.split(","))
    try:
        if named is not None:
            return RowAxes(named={str(name): _axis(axis) for name, axis in named.items()})
        return RowAxes(None if option is None else _axis(option))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"batch_axis is {option!r}", remedy="Give the axis of the rows, such as 1, or one a tensor: x:1,lengths:0"
        ) from error


def declared(shape: Shape | None) -> int | None:
    """The only axis that a file calls the batch; None if it names none, or several."""
    names = {axis: dim for axis, dim in enumerate(shape or ()) if isinstance(dim, str)}
    found = [axis for axis, name in names.items() if BATCH_NAME.search(name)]
    if len(found) != 1 or (len(names[found[0]]) == 1 and found[0] and not TIME_NAME.search(names.get(0, ""))):
        return None
    return found[0]


def of_input(name: str, shape: Shape | None, said: RowAxes) -> int:
    """Axis 0, unless the user says otherwise or the file calls another axis the batch."""
    stated = said.of(name, len(shape or ()))
    return stated if stated is not None else declared(shape) or 0


def of_output(name: str, shape: Shape | None, said: RowAxes, *, fixed_batch: int | None) -> int:
    """Axis 0, unless the file declares another: by name, or as the only free one (one block a target)."""
    shape = shape or ()
    free = [axis for axis, dim in enumerate(shape) if not isinstance(dim, int)]
    if name in said.named:
        return said.named[name]
    if (called := declared(shape)) is not None:
        return called
    # Where the inputs fix the batch, a free axis is a length, not the rows.
    if shape and isinstance(shape[0], int) and len(free) == 1 and fixed_batch is None:
        return free[0]
    stated = said.of(name, len(shape))
    return stated if stated in free else 0


def rows_first(shape: Shape | None, axis: int) -> Shape | None:
    """A shape as it is once the rows have been moved to the front."""
    return shape if shape is None or not axis else (shape[axis], *shape[:axis], *shape[axis + 1 :])


def from_front(array: Array, axis: int) -> Array:
    """Rows moved from the front to where a model has them."""
    import numpy as np

    return np.moveaxis(array, 0, axis) if axis and array.ndim > axis else array


def to_front(array: Array, axis: int) -> Array:
    """Rows moved to the front from where a model has them."""
    import numpy as np

    return np.moveaxis(array, axis, 0) if axis and array.ndim > axis else array


def _axis(value: Any) -> int:
    axis = int(value)
    if axis < 0:
        raise ValueError(value)
    return axis
