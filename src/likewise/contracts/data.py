"""Rows on their way to a model.

Why row ids travel with every batch: batches are cut, shuffled and spread over workers,
and a difference is worth reporting only if it can be traced back to the row it came from.
Why inputs are `Columns` and not a dict: a table may stay in the form it was read in
(Arrow, a live DataFrame) until a model asks for one particular column.
"""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from likewise.contracts.values import dataclass

if TYPE_CHECKING:
    import numpy as np


Array: TypeAlias = "np.ndarray[Any, Any]"
"""A numpy array; text is an object array of `str`, with None where a value is missing (a live array keeps its NaN)."""

Tensors: TypeAlias = Mapping[str, Array]


class Provenance(StrEnum):
    """Where rows come from; a verdict on generated rows must never look like one on real rows."""

    REAL = "real"
    RECORDED = "recorded"
    GENERATED = "generated"


@dataclass(frozen=True, slots=True)
class RowIds:
    """Which rows of the source these are: unique numbers, and names where the user has an id column.

    `strata` has the value, as text, of the column whose values are told apart in the report. `times` are the moments
    at which a service was asked, in microseconds since 1970.
    """

    numbers: Array
    names: Array | None = None
    strata: Array | None = None
    times: Array | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, position: int) -> int | str:
        """What a person calls the row."""
        if self.names is None:
            return int(self.numbers[position])
        value = self.names[position]
        value = value.item() if hasattr(value, "item") else value
        return value if isinstance(value, int) and not isinstance(value, bool) else str(value)

    def slice(self, start: int, stop: int) -> RowIds:
        return self.at(builtins.slice(start, stop))

    def at(self, positions: Array | builtins.slice) -> RowIds:
        """Some of the rows, in the order of the positions."""
        beside = (self.names, self.strata, self.times)
        return RowIds(self.numbers[positions], *(None if part is None else part[positions] for part in beside))


class Columns(Mapping[str, Array]):
    """Named inputs of equal length. Slicing and selecting are views, not copies."""

    @abstractmethod
    def slice(self, start: int, stop: int) -> Columns: ...

    @abstractmethod
    def select(self, names: Sequence[str]) -> Columns:
        """These columns in this order."""

    @abstractmethod
    def take(self, positions: Array) -> Columns:
        """The rows at these positions, in the form they came in."""

    @abstractmethod
    def copy(self) -> Columns:
        """The same rows in memory of their own: what is written into them is seen nowhere else."""

    @abstractmethod
    def frame(self) -> Any:
        """The same rows as a DataFrame, as a user of the framework would have read them."""

    @abstractmethod
    def row(self, position: int) -> dict[str, Any]:
        """One row as plain Python values; large tensors are described, not copied."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows for one or more model calls.

    `stacked` says that axis 0 of every input is the row axis. A batch that is not stacked is
    one test case whose tensors have no common row axis; it can only be run whole.
    """

    rows: RowIds
    inputs: Columns
    stacked: bool = True

    def __len__(self) -> int:
        return len(self.rows)

    def slice(self, start: int, stop: int) -> Batch:
        """Some rows that follow one another; the first of a test case is all of it."""
        if not self.stacked and start == 0 < stop:
            return self
        return Batch(self.rows.slice(start, stop), self.inputs.slice(start, stop), self.stacked)

    def at(self, positions: Array) -> Batch:
        """Some of the rows, in the order of the positions."""
        return Batch(self.rows.at(positions), self.inputs.take(positions))


class Source(Protocol):
    """Rows that can be read again and again, always with the same ids."""

    @property
    def location(self) -> str:
        """What a person would call it: a path, or `DataFrame`."""
        ...

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content."""
        ...

    @property
    def provenance(self) -> Provenance: ...

    @property
    def rows(self) -> int | None:
        """How many rows there are, where that is known without reading them."""
        ...

    def batches(self, size: int) -> Iterator[Batch]:
        """All rows, in ascending order of their numbers, `size` at a time."""
        ...

    def shards(self, count: int) -> Sequence[Source]:
        """At most `count` sources that together hold every row once, under the same ids."""
        ...


class Reader(Protocol):
    """All knowledge of one kind of data."""

    @property
    def name(self) -> str: ...

    def claims(self, target: object) -> bool:
        """Is this ours? Answered without importing a framework or reading more than a few bytes."""
        ...

    def open(self, target: object) -> Source: ...
