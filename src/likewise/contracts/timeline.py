"""When rows were asked about, and whether they differ more in one part of that time than in the rest."""

from __future__ import annotations

from likewise.contracts.values import dataclass


@dataclass(frozen=True, slots=True)
class Period:
    """Rows of a stretch of time, by the first of them."""

    start: str
    rows: int
    rows_beyond: int


@dataclass(frozen=True, slots=True)
class Spell:
    """A part of the time in which more rows differ than in the rest of it.

    `since` is its first row and `until` its last; None where it begins with the data, or lasts until their end.
    `before` and `after` are the rows next to it. `chance`: how often rows that differ at any time alike, in an order
    that chance makes, would look as uneven.
    """

    since: str | None
    until: str | None
    before: str | None
    after: str | None
    rows: int
    rows_beyond: int
    rows_outside: int
    beyond_outside: int
    chance: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Rows over time, in UTC; `untimed` rows have no time that can be read."""

    rows: int
    untimed: int
    first: str | None
    last: str | None
    periods: tuple[Period, ...] = ()
    spell: Spell | None = None
