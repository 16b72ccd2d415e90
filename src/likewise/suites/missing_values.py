"""Missing values: in each column alone, and in all of them at once."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Batch
from likewise.contracts.suites import Seen
from likewise.suiting import changed, columns_shown, missing_in, picked


class MissingValues:
    """Every column goes missing once; a column that cannot hold a gap is widened as a table would be."""

    name = "missing-values"
    title = "A value is missing, in each column alone and in all at once"

    def batches(self, seen: Seen) -> Iterator[Batch]:
        base = picked(seen, 4)
        names = columns_shown(seen)
        for name in names:
            yield changed(base, {name: missing_in(base, name)}, f"{name} missing")
        if len(names) > 1:
            yield changed(base, {name: missing_in(base, name) for name in names}, "all missing")


EXTENSION = MissingValues()
