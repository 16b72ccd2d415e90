"""Masks that hide everything, and masks that hide nothing."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.structure.fields import Field
from likewise.suiting import Variant, picked, varied


class Masks:
    """A row of padding only: an attention over nothing divides by nothing."""

    name = "masks"
    title = "Masks all on and all off"

    def batches(self, seen: Seen) -> Iterator[Batch]:
        import numpy as np

        base = picked(seen)
        variants = []
        for place, name in enumerate(seen.columns):
            array = base.inputs[name]
            if "mask" not in name.lower() or array.dtype.kind not in "biuf" or array.ndim < 2:
                continue
            field = Field(name, None, name, place)
            for what, value in (("all on", 1), ("all off", 0)):
                variants.append(Variant(f"{name} {what}", {field: np.full_like(array, value)}))
        yield from varied(base, variants)


EXTENSION = Masks()
