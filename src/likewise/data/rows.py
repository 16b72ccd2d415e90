"""Batches cut and put together, with the ids of their rows.

Samples that depend on nothing but the rows that were seen: those whose numbers have the smallest hashes.

Rows into parts of about one size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from likewise.contracts.data import Array, Batch, RowIds, Source
from likewise.data.columns import concatenate, take
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


def hashed(numbers: Array) -> Array:
    """splitmix64: different numbers have different hashes, and neighbours have unrelated ones."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def smallest(hashes: Array, count: int) -> Array:
    """Positions of the `count` smallest hashes, smallest first; all positions where there are no more."""
    chosen = np.arange(len(hashes)) if len(hashes) <= count else _candidates(hashes, count)
    return np.asarray(chosen[np.argsort(hashes[chosen])][:count])


def _candidates(hashes: Array, count: int) -> Array:
    """Positions among which the smallest are: hashes are spread evenly, so a threshold leaves few too many."""
    share = min(1.0, 1.2 * count / len(hashes) + 8 / len(hashes))
    chosen = np.flatnonzero(hashes <= np.uint64(min(share * 2.0**64, 2.0**64 - 2048)))
    return chosen if len(chosen) >= count else np.argpartition(hashes, count)[:count]


def split(start: int, stop: int, count: int) -> list[tuple[int, int]]:
    """At most `count` ranges that together are `start` to `stop`; none is empty unless the whole is."""
    length = stop - start
    count = max(1, min(count, length))
    cuts = [start + length * index // count for index in range(count + 1)]
    return [(cuts[index], cuts[index + 1]) for index in range(count)]
