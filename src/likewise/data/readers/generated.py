"""Rows that nobody has seen: generated from what the models say about their inputs.

`generated` and `generated:500` name them. What the columns look like is known only once the models are open,
so a source that was merely named has no rows yet; `compare.variations.generated` gives it its columns.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from likewise.contracts.comparison import GeneratedColumn
from likewise.contracts.data import Array, Batch, Provenance, Source
from likewise.contracts.values import dataclass
from likewise.data.columns import ArrayColumns, FrameColumns
from likewise.data.readers import Span
from likewise.errors import UsageError

if TYPE_CHECKING:
    from likewise.data.random_values import Column

NAMED = re.compile(r"generated(?::(?P<rows>.*))?", re.DOTALL)

MOST_CELLS = 1 << 31
"""Values that are drawn at most, whatever is asked for."""

DEFAULT_ROWS = 1_000
DEFAULT_CELLS = 16_000_000
"""Values that are drawn unless a number of rows is asked for: fewer rows of images than of numbers."""


@dataclass(frozen=True)
class GeneratedSource(Span):
    """Some of the `total` rows that the seed gives. `table`: they are handed on as a DataFrame."""

    columns: tuple[Column, ...]
    seed: int
    total: int
    table: bool = False

    @property
    def location(self) -> str:
        return f"made-up values, seed {self.seed}"

    @property
    def provenance(self) -> Provenance:
        return Provenance.GENERATED

    @property
    def described(self) -> tuple[GeneratedColumn, ...]:
        """What every column is made of, and why."""
        return tuple(line for column in self.columns for line in column.described)

    @cached_property
    def fingerprint(self) -> str:
        """Of all rows, whatever part of them this is."""
        digest = hashlib.sha256()
        for column in self.columns:
            digest.update(repr((column.name, column.dtype, column.shape, self.total)).encode())
        for batch in replace(self, start=0, stop=self.total).batches(1_024):
            for array in batch.inputs.values():
                digest.update(repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes())
        return digest.hexdigest()

    def batches(self, size: int) -> Iterator[Batch]:
        held: dict[str, dict[int, Array]] = {column.name: {} for column in self.columns}
        for rows in self.numbered(size):
            start = int(rows.numbers[0])
            arrays = {c.name: c.rows(self.seed, start, start + len(rows), held=held[c.name]) for c in self.columns}
            drawn = ArrayColumns(arrays)
            yield Batch(rows, FrameColumns(drawn.frame()) if self.table else drawn)


@dataclass(frozen=True, slots=True)
class NamedOnly:
    """Generated rows that were asked for and have no columns yet: only two open models can tell them."""

    asked: int | None
    location: str = "generated"
    provenance: Provenance = Provenance.GENERATED
    rows: int | None = None

    @property
    def fingerprint(self) -> str:
        raise _without_models()

    def batches(self, size: int) -> Iterator[Batch]:
        raise _without_models()

    def shards(self, count: int) -> Sequence[Source]:
        raise _without_models()


def rows_wanted(columns: Sequence[Column], *, asked: int | None) -> int:
    """The rows asked for; else a thousand, or as many as a bounded number of values makes."""
    cells = sum(column.cells for column in columns)
    if max(asked or 1, 1) * cells > MOST_CELLS:
        raise UsageError(
            f"{asked or 1:,} rows of {cells:,} values each are too many to generate",
            remedy=f"At most {MOST_CELLS:,} values are generated: ask for fewer rows, or give data",
        )
    if asked is not None:
        return asked
    return max(1, min(DEFAULT_ROWS, DEFAULT_CELLS // max(cells, 1)))


class GeneratedReader:
    """Takes the name `generated`, with a number of rows if one is given; a file of that name is read instead."""

    name = "generated"

    def claims(self, target: object) -> bool:
        return isinstance(target, str) and NAMED.fullmatch(target) is not None and not os.path.exists(target)

    def open(self, target: object) -> Source:
        found = NAMED.fullmatch(str(target))
        assert found is not None
        asked = found["rows"]
        if asked is None:
            return NamedOnly(None)
        digits = re.sub(r"[_,]", "", asked)
        if not (digits.isascii() and digits.isdigit() and int(digits)):
            raise UsageError(f"--data is {target!r}", remedy="Ask for at least one row: --data generated:500")
        return NamedOnly(int(digits))


def _without_models() -> UsageError:
    return UsageError(
        "rows can be generated for a check of two models only",
        remedy="Run likewise check REFERENCE CANDIDATE --data generated, or give data",
    )


EXTENSION = GeneratedReader()
