"""A bounded sample of answers to draw: the candidate's against the reference's.

The rows are those whose numbers have the smallest hashes, so the sample is the same however the rows
were cut. Of a wide row one element is kept, which the hash picks too. The rows that differ most are
not looked for here: `worst_rows` has them all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from likewise.contracts.comparison import Json, Pair, PairSpec
from likewise.contracts.data import Array, RowIds
from likewise.contracts.models import Kind
from likewise.data.selection import hashed, smallest

SAMPLE = 1_000
_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class Scatter:
    """Some rows in the order of the hashes of their numbers; of each one element with both answers.

    The arrays (int64 row numbers and places in a row, float64 answers) are kept as bytes, which are
    immutable and can be compared even where an answer is NaN. `names` is empty unless rows have names.
    """

    seen: int = 0
    numbers: bytes = b""
    places: bytes = b""
    reference: bytes = b""
    candidate: bytes = b""
    names: tuple[int | str, ...] = ()

    def merge(self, other: Scatter, /) -> Scatter:
        if not self.seen or not other.seen:
            return self if self.seen else other
        columns = [np.concatenate(both) for both in zip(self._arrays(), other._arrays(), strict=True)]
        chosen = smallest(hashed(columns[0]), SAMPLE)
        numbers, places, reference, candidate = (column[chosen].tobytes() for column in columns)
        names: tuple[int | str, ...] = ()
        if self.names or other.names:
            both = (*self._named(), *other._named())
            names = tuple(both[position] for position in chosen.tolist())
        return Scatter(self.seen + other.seen, numbers, places, reference, candidate, names)

    def measurements(self) -> Mapping[str, float]:
        return {}

    def details(self) -> Mapping[str, Json]:
        _, places, reference, candidate = self._arrays()
        return {
            "rows_seen": self.seen,
            "row": list(self._named()),
            "element": places.tolist() if places.any() else [],
            "reference": reference.tolist(),
            "candidate": candidate.tolist(),
        }

    def _named(self) -> tuple[int | str, ...]:
        return self.names or tuple(np.frombuffer(self.numbers, dtype=np.int64).tolist())

    def _arrays(self) -> tuple[Array, Array, Array, Array]:
        return (
            np.frombuffer(self.numbers, dtype=np.int64),
            np.frombuffer(self.places, dtype=np.int64),
            np.frombuffer(self.reference, dtype=np.float64),
            np.frombuffer(self.candidate, dtype=np.float64),
        )


class ScatterMetric:
    """Points of a scatter plot. `element` in the details is empty where it is always the first."""

    name = "scatter"

    def applies_to(self, spec: PairSpec, *, numeric: bool) -> bool:
        return numeric and spec.kind is not Kind.LABEL

    def empty(self) -> Scatter:
        return Scatter()

    def observe(self, pair: Pair) -> Scatter:
        count, width = len(pair.reference), math.prod(pair.reference.shape[1:])
        if not count or not width:
            return Scatter()
        numbers = np.asarray(pair.batch.rows.numbers).astype(np.int64)
        hashes = hashed(numbers)
        chosen = smallest(hashes, SAMPLE)
        # The upper bits decide which rows are kept, so the lower ones are still free to pick the element.
        places = (hashes[chosen] % np.uint64(width)).astype(np.int64)
        at = (chosen, places)
        return Scatter(
            count,
            numbers[chosen].tobytes(),
            places.tobytes(),
            pair.reference.reshape(count, width)[at].astype(np.float64).tobytes(),
            pair.candidate.reshape(count, width)[at].astype(np.float64).tobytes(),
            _names(pair.batch.rows, chosen),
        )


def _names(rows: RowIds, chosen: Array) -> tuple[int | str, ...]:
    if rows.names is None:
        return ()
    named = (rows.name(position) for position in chosen.tolist())
    return tuple(name[:_LONGEST_NAME] if isinstance(name, str) else name for name in named)


EXTENSION = ScatterMetric()
