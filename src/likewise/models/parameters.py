"""A fitted array of a model of any framework, with the step it is part of and the columns it speaks of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from likewise.contracts.data import Array

PREPROCESSING, MODEL = "preprocessing", "model"


NETWORK, BUFFER, GRAPH = "network", "buffer", "graph"
"""Kinds of arrays without an estimator: learnt by a module, kept by it, stored in a graph."""

FOLDED, PACKED = "with a normalisation folded in", "gates in ONNX's order"
"""Kinds of arrays as exporters write them: a layer with the normalisation behind it, a recurrent layer."""


INTERCEPTS = ("intercept_", "intercepts_", "_intercept_", "bias")


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """A fitted array.

    `step` is the path to its owner (`prep__num__scaler`; the module in a network), empty where the model
    has no steps; `attribute` what the owner calls it. `columns` names the entries along `axis`.
    `folded` is the path of a normalisation that has been multiplied into it, `rounding` how much of its size
    that may cost. `outputs_first` says of a matrix which way round it multiplies, None where that is not known.
    """

    step: str
    attribute: str
    values: Array
    role: str = MODEL
    kind: str = ""
    columns: tuple[str, ...] = ()
    axis: int = 0
    folded: str = ""
    rounding: float = 0.0
    outputs_first: bool | None = None

    @property
    def path(self) -> str:
        return f"{self.step}.{self.attribute}" if self.step else self.attribute

    @property
    def is_intercept(self) -> bool:
        return self.attribute.startswith(INTERCEPTS)

    @property
    def part(self) -> str:
        """The last name of the path to its owner, or what the owner is; empty where nobody owns it."""
        return self.step.split("__")[-1] if self.step else "" if self.kind in (NETWORK, BUFFER, GRAPH) else self.kind

    def column(self, index: Sequence[int]) -> str | None:
        """The column that an entry speaks of."""
        if not self.columns or self.axis >= len(index):
            return None
        return self.columns[index[self.axis]]
