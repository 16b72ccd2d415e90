"""Which rows and columns of a source are checked, and what its rows are called.

Whatever is selected, rows keep the numbers they have in the source, and the same rows are selected
at every batch size and in any number of shards. A column to stratify by spreads them over its values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import field, replace
from functools import cached_property

import numpy as np

from likewise.contracts.data import Array, Batch, Columns, Provenance, Source
from likewise.contracts.values import dataclass
from likewise.data.readers import rebatched
from likewise.data.times import moments
from likewise.errors import DataError, UsageError, foreign, nearest

STRIDE = 1 << 16
"""Rows among which a random sample is drawn at a time, so that drawing needs no memory for all rows."""

LARGEST_POPULATION = 10**9
"""numpy draws hypergeometric numbers up to here."""

UNREADABLE = "Write the data again: it is damaged, or something else than its name says"

MOST_VALUES = 1_000
"""Values of a column that are told apart; a report does not grow with the rows."""

MISSING = "(missing)"
"""What a gap is called among the values of a column."""

REMEMBERED_IDS = 1 << 18
"""Ids that are remembered to find duplicates in later batches; within a batch they are always found."""


@dataclass(frozen=True)
class _Narrowed:
    """A source that gives some of the rows of another."""

    source: Source

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


@dataclass(frozen=True)
class Selection(_Narrowed):
    """A source of the selected rows and columns of another.

    An id column names the rows and is no longer an input. Ids must be unique: that is checked within
    every batch and among the first 262,144 ids that one pass over a source or shard meets, since
    memory must not grow with the rows.
    """

    samples: int | None = None
    sample: str = "first"
    seed: int = 0
    drop: tuple[str, ...] = ()
    row_id: str | None = None
    time: str | None = None
    total: int | None = field(default=None, repr=False)
    is_shard: bool = field(default=False, repr=False)

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
        chosen = self._chosen(size)
        while True:
            with foreign(DataError, f"{self.location} cannot be read", remedy=UNREADABLE):
                batch = next(chosen, None)
                if batch is None:
                    return
                batch = self._named(batch, seen)
            yield batch

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
            require_column(name, available, "to drop", self.location)
        rows, left_out = batch.rows, set(self.drop)
        if self.row_id is not None:
            rows = replace(rows, names=self._ids(batch, self.row_id, seen))
            left_out.add(self.row_id)
        if self.time is not None:
            require_column(self.time, available if batch.stacked else (), "that tells times", self.location)
            rows = replace(rows, times=moments(batch.inputs[self.time]))
        if not left_out:
            return replace(batch, rows=rows)
        return Batch(rows, batch.inputs.select([name for name in available if name not in left_out]), batch.stacked)

    def _ids(self, batch: Batch, name: str, seen: set[object]) -> Array:
        require_column(name, batch.inputs, "to name rows by", self.location)
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


def require_column(name: str, available: Columns | Sequence[str], purpose: str, location: str) -> None:
    """A usage error for a column that was asked for and is not there, the same whatever it was asked for."""
    # An index that pandas wrote is there, and is not listed.
    if name not in available:
        raise UsageError(
            f"there is no column {name!r} {purpose}{nearest(name, available)}",
            remedy=f"{location} has: {', '.join(available) or 'no columns'}",
        )


def require_few(values: Sized) -> None:
    """A usage error for a column with too many values."""
    if len(values) > MOST_VALUES:
        raise UsageError(
            f"the column to stratify by has more than {MOST_VALUES:,} values: too many to tell apart",
            remedy="Stratify by a column with few values, such as a category or a band",
        )


@dataclass(frozen=True)
class Stratified(_Narrowed):
    """A source whose rows say which value they hold; `samples` of them, spread over the values.

    Of a limited number of rows every value gets an equal share, and what a rare value cannot fill goes to
    the others. Which rows are taken depends on the data, the number and the seed alone.
    """

    column: str
    samples: int | None = None
    sample: str = "first"
    seed: int = 0
    numbers: Array | None = field(default=None, repr=False)

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
            yield from rebatched(self._picked(max(size, STRIDE // 4)), size)

    def shards(self, count: int) -> Sequence[Source]:
        numbers = None if self.samples is None else self._chosen
        return [replace(self, source=shard, numbers=numbers) for shard in self.source.shards(count)]

    def _picked(self, size: int) -> Iterator[Batch]:
        for batch in self.source.batches(size):
            places = np.flatnonzero(np.isin(batch.rows.numbers, self._chosen, assume_unique=True))
            if len(places):
                yield self._told_apart(batch).at(places)

    def _told_apart(self, batch: Batch) -> Batch:
        require_column(self.column, batch.inputs if batch.stacked else (), "to stratify by", self.location)
        return Batch(replace(batch.rows, strata=as_text(batch.inputs[self.column])), batch.inputs)

    @cached_property
    def _chosen(self) -> Array:
        """The numbers of the rows taken, ascending."""
        if self.numbers is not None:
            return self.numbers
        assert self.samples is not None
        kept: dict[str, _Best] = {}
        for batch in self.source.batches(STRIDE // 4):
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
        seen = self.seen + len(numbers)
        if self.numbers is not None and self.order is not None:
            numbers, order = np.concatenate([self.numbers, numbers]), np.concatenate([self.order, order])
        first = np.argsort(order, kind="stable")[:most]
        return _Best(seen, numbers[first], order[first])


def as_text(values: Array) -> Array:
    """The values of a column as they are told apart; a gap is a value too."""
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


def select(
    source: Source,
    *,
    samples: int | None = None,
    sample: str = "first",
    seed: int = 0,
    drop: Sequence[str] = (),
    id: str | None = None,
    stratify: str | None = None,
    time: str | None = None,
    row_id: str | None = None,
) -> Selection:
    """Some rows of a source (the `first` or `random` ones), without some columns, named by the column `id`.

    `stratify` names a column whose values are told apart, each with as equal a share of the rows as there are, and
    `time` one that tells when a row was asked about. `row_id` is an older name of `id`.
    """
    id = row_id if id is None else id
    if samples is not None and samples < 1:
        raise UsageError(f"cannot take {samples} samples", remedy="Take at least one, or leave the number out")
    if sample not in ("first", "random"):
        raise UsageError(f"samples cannot be taken {sample!r}", remedy="Take the `first` or `random` ones")
    if id is not None and id in drop:
        raise UsageError(f"column {id!r} cannot be both dropped and the row id", remedy="An id is never an input")
    if stratify is not None:
        source, samples = Stratified(source, stratify, samples, sample, seed), None
    return Selection(source, samples, sample, seed, tuple(drop), id, time)


def only_columns(source: Source, names: Collection[str]) -> Source:
    """The same rows without the columns that nobody asked for, where that saves reading them; else the same source.

    What is dropped was there when the first rows were looked at; ids, times and what is stratified by are still read.
    """
    from likewise.data.readers.tables import TableSource  # most rows are no table

    if isinstance(source, Selection):
        more = {*names, *(name for name in (source.row_id, source.time) if name is not None)}
        inner = only_columns(source.source, more)
        return source if inner is source.source else replace(source, source=inner, drop=())
    if isinstance(source, Stratified):
        inner = only_columns(source.source, {*names, source.column})
        return source if inner is source.source else replace(source, source=inner)
    return source.only(names) if isinstance(source, TableSource) else source


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
            yield batch.at(chosen)


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
