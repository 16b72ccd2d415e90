"""Which rows and columns of a source are checked, and what its rows are called.

Whatever is selected, rows keep the numbers they have in the source, and the same rows are selected
at every batch size and in any number of shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from likewise.contracts.data import Array, Batch, Provenance, Source
from likewise.data.rows import rebatched, rows_at
from likewise.data.strata import Stratified
from likewise.errors import DataError, UsageError, nearest

STRIDE = 1 << 16
"""Rows among which a random sample is drawn at a time, so that drawing needs no memory for all rows."""

LARGEST_POPULATION = 10**9
"""numpy draws hypergeometric numbers up to here."""

REMEMBERED_IDS = 1 << 18
"""Ids that are remembered to find duplicates in later batches; within a batch they are always found."""


@dataclass(frozen=True)
class Selection:
    """A source of the selected rows and columns of another.

    An id column names the rows and is no longer an input. Ids must be unique: that is checked within
    every batch and among the first 262,144 ids that one pass over a source or shard meets, since
    memory must not grow with the rows.
    """

    source: Source
    samples: int | None = None
    sample: str = "first"
    seed: int = 0
    drop: tuple[str, ...] = ()
    row_id: str | None = None
    total: int | None = field(default=None, repr=False)
    is_shard: bool = field(default=False, repr=False)

    @property
    def location(self) -> str:
        return self.source.location

    @property
    def fingerprint(self) -> str:
        """Of all the data; what was selected from it is in the settings."""
        return self.source.fingerprint

    @property
    def provenance(self) -> Provenance:
        return self.source.provenance

    @property
    def rows(self) -> int | None:
        if self.samples is None:
            return self.source.rows
        if self.is_shard or self.source.rows is None:
            return None
        return min(self.samples, self.source.rows)

    @property
    def expected_rows(self) -> int | None:
        """How many rows were asked for; fewer may exist."""
        if self.samples is not None:
            return self.samples
        return self.source.expected_rows if isinstance(self.source, Stratified) else self.source.rows

    def batches(self, size: int) -> Iterator[Batch]:
        seen: set[object] = set()
        for batch in self._chosen(size):
            yield self._named(batch, seen)

    def shards(self, count: int) -> Sequence[Source]:
        total = self._population if self.samples is not None and self.sample == "random" else None
        return [replace(self, source=shard, total=total, is_shard=True) for shard in self.source.shards(count)]

    def _chosen(self, size: int) -> Iterator[Batch]:
        if self.samples is None:
            yield from self.source.batches(size)
        elif self.sample == "first":
            yield from _first(self.source.batches(size), self.samples)
        elif self.samples >= self._population:
            yield from self.source.batches(size)
        else:
            yield from rebatched(_drawn(self.source.batches(max(size, STRIDE // 4)), self._draws()), size)

    @cached_property
    def _population(self) -> int:
        """How many rows there are to draw from; counted where the source does not know."""
        if self.total is not None:
            return self.total
        if self.source.rows is not None:
            return self.source.rows
        return sum(len(batch) for batch in self.source.batches(STRIDE // 4))

    def _draws(self) -> Iterator[Array]:
        """For each stride of the source, the numbers of the rows drawn from it, ascending."""
        import numpy as np

        random = np.random.default_rng(self.seed)
        left, wanted = self._population, self.samples or 0
        if left > LARGEST_POPULATION:
            raise UsageError(
                f"a random sample can be drawn from {LARGEST_POPULATION:,} rows, not from {left:,}",
                remedy="Take the first rows, or some of the files",
            )
        start = 0
        while left:
            length = min(STRIDE, left)
            drawn = int(random.hypergeometric(wanted, left - wanted, length))
            positions = random.choice(length, size=drawn, replace=False, shuffle=False)
            yield start + np.sort(positions)
            start, left, wanted = start + length, left - length, wanted - drawn

    def _named(self, batch: Batch, seen: set[object]) -> Batch:
        available = list(batch.inputs)
        for name in self.drop:
            if name not in available:
                raise UsageError(
                    f"there is no column {name!r} to drop{nearest(name, available)}",
                    remedy=f"{self.location} has: {', '.join(available)}",
                )
        rows, left_out = batch.rows, set(self.drop)
        if self.row_id is not None:
            rows = replace(rows, names=self._ids(batch, self.row_id, seen))
            left_out.add(self.row_id)
        if not left_out:
            return batch
        return Batch(rows, batch.inputs.select([name for name in available if name not in left_out]), batch.stacked)

    def _ids(self, batch: Batch, name: str, seen: set[object]) -> Array:
        if name not in batch.inputs:
            raise DataError(
                f"{self.location} has no column {name!r} to name its rows by{nearest(name, batch.inputs)}",
                remedy=f"It has: {', '.join(batch.inputs)}",
            )
        ids = batch.inputs[name]
        if ids.ndim != 1 or not batch.stacked:
            raise DataError(f"column {name!r} of {self.location} cannot name rows", remedy="Ids are numbers or text")
        if ids.dtype.kind in "mM":
            ids = ids.astype(str).astype(object)
        here: set[object] = set()
        for number, value in zip(batch.rows.numbers.tolist(), ids.tolist(), strict=True):
            if value is None or value != value or value == "NaT":
                raise DataError(
                    f"row {number:,} of {self.location} has no id in column {name!r}", remedy="Give every row an id"
                )
            if value in here or value in seen:
                raise DataError(
                    f"id {value!r} in column {name!r} of {self.location} stands for more than one row, "
                    f"the later one is row {number:,}",
                    remedy="Choose a column whose values are unique",
                )
            here.add(value)
        if len(seen) < REMEMBERED_IDS:
            seen |= here
        return ids


def select(
    source: Source,
    *,
    samples: int | None = None,
    sample: str = "first",
    seed: int = 0,
    drop: Sequence[str] = (),
    row_id: str | None = None,
    stratify: str | None = None,
) -> Selection:
    """Some rows of a source (the `first` or `random` ones), without some columns, named by an id column.

    `stratify` names a column whose values are told apart, each with as equal a share of the rows as there are.
    """
    if samples is not None and samples < 1:
        raise UsageError(f"cannot take {samples} samples", remedy="Take at least one, or leave the number out")
    if sample not in ("first", "random"):
        raise UsageError(f"samples cannot be taken {sample!r}", remedy="Take the `first` or `random` ones")
    if row_id is not None and row_id in drop:
        raise UsageError(f"column {row_id!r} cannot be both dropped and the row id", remedy="An id is no input anyway")
    if stratify is not None:
        source, samples = Stratified(source, stratify, samples, sample, seed), None
    return Selection(source, samples, sample, seed, tuple(drop), row_id)


def _first(batches: Iterable[Batch], limit: int) -> Iterator[Batch]:
    """Rows with a number below the limit; sources give rows in ascending order."""
    for batch in batches:
        inside = int((batch.rows.numbers < limit).sum())
        if inside == len(batch):
            yield batch
            continue
        if inside:
            yield batch.slice(0, inside)
        return


def _drawn(batches: Iterable[Batch], draws: Iterator[Array]) -> Iterator[Batch]:
    """Of each batch the rows whose numbers were drawn."""
    import numpy as np

    numbers: Array = np.empty(0, dtype=np.int64)
    reached = 0
    for batch in batches:
        if not len(batch):
            continue
        low, high = int(batch.rows.numbers[0]), int(batch.rows.numbers[-1]) + 1
        numbers = numbers[np.searchsorted(numbers, low) :]
        while reached < high:
            more = next(draws, None)
            if more is None:
                break
            reached += STRIDE
            numbers = np.concatenate([numbers, more[np.searchsorted(more, low) :]])
        chosen = np.flatnonzero(np.isin(batch.rows.numbers, numbers[: np.searchsorted(numbers, high)]))
        if len(chosen) == len(batch):
            yield batch
        elif len(chosen):
            yield rows_at(batch, chosen)
