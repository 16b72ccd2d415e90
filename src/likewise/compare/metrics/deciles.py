"""Where the differences are: by the size of the reference's value, a tenth of the values at a time.

Deciles can be told only at the end, so a fixed histogram of the reference is kept; every bucket has
a count, a count beyond tolerance and the largest difference, which merge exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from likewise.compare.differences import Differences, blocks_of
from likewise.compare.sums import BUCKET_ERROR, buckets_of, upper_edge
from likewise.contracts.comparison import Json, Pair, PairSpec
from likewise.contracts.data import Array
from likewise.contracts.models import Kind

GROUPS = 10


@dataclass(frozen=True, slots=True)
class Deciles:
    """Buckets of the reference in ascending order of their keys, as bytes: immutable, and can be compared.

    A key is twice the bucket of |reference|, plus one where the reference is negative (int64). Beside it stand
    the values in it, those beyond tolerance (int64) and the largest absolute difference (float64).
    """

    keys: bytes = b""
    counts: bytes = b""
    beyond: bytes = b""
    largest: bytes = b""
    lowest: float = 0.0
    highest: float = 0.0

    def merge(self, other: Deciles, /) -> Deciles:
        return _combined([self, other])

    def measurements(self) -> Mapping[str, float]:
        return {}

    def details(self) -> Mapping[str, Json]:
        return {"groups": self._groups(), "edge_error": BUCKET_ERROR}

    def _groups(self) -> list[dict[str, Json]]:
        """Up to ten ranges with about as many values each; fewer where many values are equal or nearly so."""
        if not self.keys:
            return []
        keys, counts, beyond, largest = self._arrays()
        order = np.argsort(np.where(keys & 1, -(keys >> 1), keys >> 1))
        counts, before = counts[order], np.cumsum(counts[order]) - counts[order]
        # A bucket is not cut: it belongs where its middle value does.
        groups = (2 * before + counts) * GROUPS // (2 * int(counts.sum()))
        firsts = np.flatnonzero(np.diff(groups, prepend=-1))
        lasts = np.append(firsts[1:], len(groups)) - 1
        totals = zip(
            keys[order][firsts].tolist(),
            keys[order][lasts].tolist(),
            np.add.reduceat(counts, firsts).tolist(),
            np.add.reduceat(beyond[order], firsts).tolist(),
            np.maximum.reduceat(largest[order], firsts).tolist(),
            strict=True,
        )
        return [
            {
                "from": max(_edges(first)[0], self.lowest),
                "to": min(_edges(last)[1], self.highest),
                "values": values,
                "beyond": outside,
                "max_abs_diff": apart,
            }
            for first, last, values, outside, apart in totals
        ]

    def _arrays(self) -> tuple[Array, Array, Array, Array]:
        return (
            np.frombuffer(self.keys, dtype=np.int64),
            np.frombuffer(self.counts, dtype=np.int64),
            np.frombuffer(self.beyond, dtype=np.int64),
            np.frombuffer(self.largest, dtype=np.float64),
        )


class DecilesMetric:
    """Differences of finite values by the reference's own value."""

    name = "deciles"

    def applies_to(self, spec: PairSpec, *, numeric: bool) -> bool:
        return numeric and spec.kind is not Kind.LABEL

    def empty(self) -> Deciles:
        return Deciles()

    def observe(self, pair: Pair) -> Deciles:
        return _combined([_of_block(found) for found in blocks_of(pair) if found.difference.size])


def _of_block(found: Differences) -> Deciles:
    distances, beyond = found.distances, found.beyond
    # Minus zero and zero are one reference, so the sign is asked of the number and not of its bits.
    negative = found.reference < 0
    keys = (buckets_of(found.sizes) << 1) | negative
    bounds = float(found.reference.min()) + 0.0, float(found.reference.max()) + 0.0
    zero = keys == 0
    if not zero.any():
        return _counted(keys, distances, beyond, bounds)
    # Zeros are far from every other bucket; counting them apart keeps the window small.
    parts = [_counted(keys[some], distances[some], beyond[some], bounds) for some in (zero, ~zero) if some.any()]
    return _combined(parts)


def _counted(keys: Array, distances: Array, outside: Array, bounds: tuple[float, float]) -> Deciles:
    first = int(keys.min())
    places = keys - first
    counts = np.bincount(places)
    largest = np.zeros(len(counts))
    np.maximum.at(largest, places, distances)
    beyond = np.bincount(places[outside], minlength=len(counts))
    used = np.flatnonzero(counts)
    return Deciles(
        (used + first).astype(np.int64).tobytes(),
        counts[used].astype(np.int64).tobytes(),
        beyond[used].astype(np.int64).tobytes(),
        largest[used].tobytes(),
        *bounds,
    )


def _combined(parts: Sequence[Deciles]) -> Deciles:
    filled = [part for part in parts if part.keys]
    if len(filled) <= 1:
        return filled[0] if filled else Deciles()
    columns = zip(*(part._arrays() for part in filled), strict=True)
    keys, counts, beyond, largest = (np.concatenate(column) for column in columns)
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    return Deciles(
        keys[order][starts].tobytes(),
        np.add.reduceat(counts[order], starts).tobytes(),
        np.add.reduceat(beyond[order], starts).tobytes(),
        np.maximum.reduceat(largest[order], starts).tobytes(),
        min(part.lowest for part in filled),
        max(part.highest for part in filled),
    )


def _edges(key: int) -> tuple[float, float]:
    """The smallest and the largest reference that a bucket may hold."""
    bucket = key >> 1
    near, far = upper_edge(max(bucket - 1, 0)), upper_edge(bucket)
    return (-far, -near) if key & 1 else (near, far)


EXTENSION = DecilesMetric()
