"""Sizes for the axes that a model leaves open: one for each symbol, the same in all inputs."""

from __future__ import annotations

from dataclasses import dataclass, field

from likewise.contracts.models import Shape
from likewise.guessing.graphs import is_image
from likewise.guessing.modules import IMAGE, SEQUENCE

ALTERNATIVES = (32, 8, 64, 128, 224)
"""Sizes that are tried one after the other where a model refuses the first."""


@dataclass(slots=True)
class Sizes:
    """The sizes of open axes. `everywhere` is one size for all of them."""

    everywhere: int | None = None
    free: dict[str, int] = field(default_factory=dict)

    def of_row(self, shape: Shape) -> tuple[int, ...]:
        """The shape of one row of an input; its first axis is that of the rows."""
        image = is_image(shape)
        return tuple(
            dim if isinstance(dim, int) else self._of(dim, axis, len(shape), image=image)
            for axis, dim in enumerate(shape)
            if axis
        )

    def _of(self, symbol: str | None, axis: int, rank: int, *, image: bool) -> int:
        # An axis without a name is the same as that of other inputs with as many axes.
        key = symbol or f"axis {axis} of {rank}"
        return self.free.setdefault(key, self.everywhere or (IMAGE if image else SEQUENCE))
