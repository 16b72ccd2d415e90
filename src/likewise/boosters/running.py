"""An open booster that answers batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Kind, Label, OutputSpec, Shape, Signature
from likewise.errors import LikewiseError, ModelError, one_line


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
