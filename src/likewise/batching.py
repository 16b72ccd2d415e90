"""Batches cut and put together, with the ids of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from likewise.columns import concatenate, take
from likewise.contracts.data import Array, Batch, RowIds, Source
from likewise.errors import DataError


def rows_at(batch: Batch, positions: Array) -> Batch:
    """Some rows of a batch, in the order of the positions."""
    return Batch(batch.rows.at(positions), take(batch.inputs, positions))


def joined(parts: Sequence[Batch]) -> Batch:
    """The rows of several batches after each other."""
    if len(parts) == 1:
        return parts[0]
    rows = [part.rows for part in parts]
    names, strata = (_all([getattr(ids, name) for ids in rows]) for name in ("names", "strata"))
    numbers = _all([ids.numbers for ids in rows])
    assert numbers is not None
    return Batch(RowIds(numbers, names, strata), concatenate([part.inputs for part in parts]))


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
