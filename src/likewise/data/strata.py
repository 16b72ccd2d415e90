"""What was measured on the rows of each value of a column: counts and largest differences, which merge exactly.

Rows by the value of a column, so that rare values are seen to be covered.

Of a limited number of rows every value gets an equal share, and what a rare value cannot fill goes to
the others. Which rows are taken depends on the data, the number and the seed alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property

from likewise.contracts.data import Array, Batch, Provenance, Source
from likewise.data.rows import rebatched, rows_at
from likewise.errors import UsageError, nearest

MOST_VALUES = 1_000
"""Values of a column that are told apart; a report does not grow with the rows."""


def require_few(values: Sized) -> None:
    """A usage error for a column with too many values."""
    if len(values) > MOST_VALUES:
        raise UsageError(
            f"the column to stratify by has more than {MOST_VALUES:,} values: too many to tell apart",
            remedy="Stratify by a column with few values, such as a category or a band",
        )


MISSING = "(missing)"
STRIDE = 1 << 14


@dataclass(frozen=True)
class Stratified:
    """A source whose rows say which value they hold; `samples` of them, spread over the values."""

    source: Source
    column: str
    samples: int | None = None
    sample: str = "first"
    seed: int = 0
    numbers: Array | None = field(default=None, repr=False)

    @property
    def location(self) -> str:
        return self.source.location

    @property
    def fingerprint(self) -> str:
        return self.source.fingerprint

    @property
    def provenance(self) -> Provenance:
        return self.source.provenance

    @property
    def rows(self) -> int | None:
        return self.source.rows if self.samples is None else len(self._chosen)

    @property
    def expected_rows(self) -> int | None:
        """How many rows were asked for; fewer may exist."""
        return self.source.rows if self.samples is None else self.samples

    def batches(self, size: int) -> Iterator[Batch]:
        if self.samples is None:
            yield from (self._told_apart(batch) for batch in self.source.batches(size))
        else:
            yield from rebatched(self._picked(max(size, STRIDE)), size)

    def shards(self, count: int) -> Sequence[Source]:
        numbers = None if self.samples is None else self._chosen
        return [replace(self, source=shard, numbers=numbers) for shard in self.source.shards(count)]

    def _picked(self, size: int) -> Iterator[Batch]:
        import numpy as np

        for batch in self.source.batches(size):
            places = np.flatnonzero(np.isin(batch.rows.numbers, self._chosen, assume_unique=True))
            if len(places):
                yield rows_at(self._told_apart(batch), places)

    def _told_apart(self, batch: Batch) -> Batch:
        if self.column not in batch.inputs or not batch.stacked:
            raise UsageError(
                f"there is no column {self.column!r} to stratify by{nearest(self.column, batch.inputs)}",
                remedy=f"{self.location} has: {', '.join(batch.inputs)}",
            )
        return Batch(replace(batch.rows, strata=as_text(batch.inputs[self.column])), batch.inputs)

    @cached_property
    def _chosen(self) -> Array:
        """The numbers of the rows taken, ascending."""
        import numpy as np

        if self.numbers is not None:
            return self.numbers
        assert self.samples is not None
        kept: dict[str, _Best] = {}
        for batch in self.source.batches(STRIDE):
            told = self._told_apart(batch).rows
            assert told.strata is not None
            values, places = np.unique(told.strata.astype(str), return_inverse=True)
            for index, value in enumerate(values.tolist()):
                mine = told.numbers[places == index]
                kept[value] = kept.get(value, _Best()).merge(mine, self._order(mine), self.samples)
            require_few(kept)
        shares = equal_shares({value: best.seen for value, best in kept.items()}, self.samples)
        taken = [kept[value].first(share) for value, share in shares.items()]
        return np.sort(np.concatenate(taken)) if taken else np.empty(0, dtype=np.int64)

    def _order(self, numbers: Array) -> Array:
        """What decides between the rows of a value: the earlier ones, or chance."""
        import numpy as np

        from likewise.data.rows import hashed

        seed = np.uint64(self.seed % 2**64)
        return numbers if self.sample == "first" else hashed(hashed(numbers) ^ seed)


@dataclass(frozen=True, slots=True)
class _Best:
    """The rows of one value that come first, as many as may be taken; `seen` counts them all."""

    seen: int = 0
    numbers: Array | None = None
    order: Array | None = None

    def first(self, count: int) -> Array:
        """The numbers of the rows that come first."""
        assert self.numbers is not None
        return self.numbers[:count]

    def merge(self, numbers: Array, order: Array, most: int) -> _Best:
        import numpy as np

        seen = self.seen + len(numbers)
        if self.numbers is not None and self.order is not None:
            numbers, order = np.concatenate([self.numbers, numbers]), np.concatenate([self.order, order])
        first = np.argsort(order, kind="stable")[:most]
        return _Best(seen, numbers[first], order[first])


def as_text(values: Array) -> Array:
    """The values of a column as they are told apart; a gap is a value too."""
    import numpy as np

    plain = [MISSING if value is None or value != value else str(value) for value in values.tolist()]
    return np.array(plain, dtype=object)


def equal_shares(sizes: Mapping[str, int], wanted: int) -> dict[str, int]:
    """As many of each as there are, up to the same number for all; what is left over goes to the first."""
    shares = dict.fromkeys(sorted(sizes), 0)
    left = min(wanted, sum(sizes.values()))
    while left:
        open_ones = [value for value in shares if shares[value] < sizes[value]]
        each = max(1, left // len(open_ones))
        for value in open_ones:
            more = min(each, sizes[value] - shares[value], left)
            shares[value] += more
            left -= more
    return shares
