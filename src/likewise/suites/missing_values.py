"""Missing values: in each column alone, and in all of them at once."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.structure.fields import MISSING, Field
from likewise.suiting import FLOAT, IDS, INTEGER, OTHER, TENSOR, TEXT, Variant, features, kind, picked, varied


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


EXTENSION = MissingValues()
