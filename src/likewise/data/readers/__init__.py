"""All knowledge of one kind of data a file: how its rows are read in batches, with ids.

Here, what they share: batches cut to a size and put together, and sources that are a span of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Self

from likewise.contracts.data import Array, Batch, Columns, Provenance, RowIds, Source
from likewise.contracts.values import dataclass
from likewise.data.columns import ArrayColumns, ArrowColumns, FrameColumns
from likewise.errors import DataError


def are_records(target: Sequence[object]) -> bool:
    """Are these rows, each a dict of single values? Dicts of arrays are samples."""
    return bool(target) and all(isinstance(row, Mapping) and all(map(_single, row.values())) for row in target)


def _single(value: object) -> bool:
    return isinstance(value, str | bytes) or not hasattr(value, "__len__")


def joined(parts: Sequence[Batch]) -> Batch:
    """The rows of several batches after each other."""
    if len(parts) == 1:
        return parts[0]
    rows = [part.rows for part in parts]
    beside = [_all([getattr(ids, name) for ids in rows]) for name in ("names", "strata", "times")]
    numbers = _all([ids.numbers for ids in rows])
    assert numbers is not None
    return Batch(RowIds(numbers, *beside), concatenate([part.inputs for part in parts]))


def concatenate(parts: Sequence[Columns]) -> Columns:
    """The rows of several batches after each other, in the form they came in."""
    import numpy as np

    first = parts[0]
    if isinstance(first, ArrowColumns):
        import pyarrow as pa

        tables = [part.table for part in parts if isinstance(part, ArrowColumns)]
        return ArrowColumns(pa.concat_tables(tables), names=tuple(first))
    if isinstance(first, FrameColumns):
        import narwhals as nw

        return FrameColumns(nw.concat([nw.from_native(part.frame(), eager_only=True) for part in parts]))
    return ArrayColumns({name: np.concatenate([part[name] for part in parts]) for name in first})


def rebatched(batches: Iterable[Batch], size: int) -> Iterator[Batch]:
    """The same rows, `size` at a time; a test case can only be run whole and stays as it is."""
    held: list[Batch] = []
    room = size
    for batch in batches:
        if not batch.stacked:
            yield batch
            continue
        start = 0
        while start < len(batch):
            length = min(room, len(batch) - start)
            held.append(batch.slice(start, start + length))
            start, room = start + length, room - length
            if not room:
                yield joined(held)
                held, room = [], size
    if held:
        yield joined(held)


def _all(arrays: Sequence[Array | None]) -> Array | None:
    """The arrays after each other, if there are any."""
    import numpy as np

    there = [array for array in arrays if array is not None]
    return np.concatenate(there) if there else None


def first_rows(source: Source, count: int) -> Batch:
    """At most `count` rows from the beginning; of a source without a row axis, its first test case."""
    parts: list[Batch] = []
    for batch in source.batches(count):
        parts.append(batch)
        if not batch.stacked or sum(map(len, parts)) >= count:
            break
    if not parts or not sum(map(len, parts)):
        raise DataError(f"{source.location} holds no rows", remedy="Give data to run the models on")
    together = joined(parts)
    return together.slice(0, min(count, len(together))) if together.stacked else together


def split(start: int, stop: int, count: int) -> list[tuple[int, int]]:
    """At most `count` ranges that together are `start` to `stop`; none is empty unless the whole is."""
    length = stop - start
    count = max(1, min(count, length))
    cuts = [start + length * index // count for index in range(count + 1)]
    return [(cuts[index], cuts[index + 1]) for index in range(count)]


@dataclass(frozen=True, kw_only=True)
class Span:
    """The rows from `start` to `stop` of something that can be cut anywhere."""

    start: int = 0
    stop: int

    @property
    def provenance(self) -> Provenance:
        return Provenance.REAL

    @property
    def rows(self) -> int | None:
        return self.stop - self.start

    def shards(self, count: int) -> Sequence[Self]:
        return [replace(self, start=start, stop=stop) for start, stop in split(self.start, self.stop, count)]

    def numbered(self, size: int) -> Iterator[RowIds]:
        """The numbers of the rows, `size` at a time."""
        import numpy as np

        for start in range(self.start, self.stop, size):
            yield RowIds(np.arange(start, min(start + size, self.stop), dtype=np.int64))

    def cut(self, columns: Columns, size: int) -> Iterator[Batch]:
        """The rows of columns that hold all of them, `size` at a time."""
        for rows in self.numbered(size):
            first = int(rows.numbers[0])
            yield Batch(rows, columns.slice(first, first + len(rows)))
