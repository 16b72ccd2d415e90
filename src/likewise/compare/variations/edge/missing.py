"""Missing values: in each column alone, and in all of them at once.

Masks that hide everything, and masks that hide nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from likewise.compare.variations.made_rows import (
    FLOAT,
    IDS,
    INTEGER,
    OTHER,
    TENSOR,
    TEXT,
    Variant,
    features,
    kind,
    picked,
    varied,
)
from likewise.contracts.comparison import Seen
from likewise.contracts.data import Batch
from likewise.data.cells import MISSING, Field


class MissingValues:
    """Every column goes missing once; a column that cannot hold a gap is widened as a table would be."""

    name = "missing-values"
    title = "A value is missing, in each column alone and in all at once"
    by_column = True

    def batches(self, seen: Seen) -> Iterator[Batch]:
        fields = [
            field for field in features(seen, FLOAT, INTEGER, TEXT, TENSOR, OTHER) if _may_be_missing(seen, field)
        ]
        variants = [Variant(f"{field.name} missing", {field: MISSING}) for field in fields]
        if len(fields) > 1 and not features(seen, IDS):
            variants.append(Variant("all missing", dict.fromkeys(fields, MISSING)))
        yield from varied(picked(seen), variants)


def _may_be_missing(seen: Seen, field: Field) -> bool:
    """Masks and other tensors of booleans have no gaps."""
    return kind(seen, field) != OTHER or seen.batch.inputs[field.column].ndim == 1


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


EXTENSIONS = (
    MissingValues(),
    Masks(),
)
