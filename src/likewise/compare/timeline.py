"""Since when rows differ: counts over time that merge in any order, and a test whether the change is more than chance.

Rows of one moment are often those of one request, and differ together. So whole periods change places in the test,
never rows: that a large request failed is one event.
"""

from __future__ import annotations

import numpy as np

from likewise.compare.sums import unpacked
from likewise.contracts.data import Array
from likewise.contracts.timeline import Period, Spell, Timeline
from likewise.contracts.values import dataclass
from likewise.data.times import UNTIMED, told

MOST_PERIODS = 256
"""Periods that are kept. They all have the same length, a power of two in microseconds: the shortest one by which there
are no more than these, so that all orders of merging end in the same."""

SHOWN = 48
"""Periods in a report."""

CHANCE = 0.001
"""A spell is told if chance alone would make one of a thousand logs look so, or fewer."""

ORDERS = 4_999
"""Orders that are tried for that."""

AT_ONCE = 500

NEVER, ALWAYS = np.iinfo(np.int64).max, np.iinfo(np.int64).min
"""The first and the last moment of no row."""

KEY, AGREEING, BEYOND, FIRST, LAST, FIRST_BEYOND, LAST_BEYOND = range(7)
"""What is kept of a period: its number, how many rows agree and how many do not, when either began and ended."""

FOLDS = (np.maximum, np.add, np.add, np.minimum, np.maximum, np.minimum, np.maximum)


@dataclass(frozen=True, slots=True)
class Times:
    """Rows that have times, by periods of 2**level microseconds; `untimed` counts those whose time cannot be read."""

    level: int = 0
    table: bytes = b""
    untimed: int = 0

    @staticmethod
    def of(times: Array, beyond: Array) -> Times:
        """The rows of one batch, and which of them are beyond tolerance."""
        known = times != UNTIMED
        times, beyond = times[known], beyond[known]
        nothing = np.full(len(times), NEVER), np.full(len(times), ALWAYS)
        found = np.stack(
            [
                times,
                ~beyond,
                beyond,
                *(np.where(beyond, none, times) for none in nothing),
                *(np.where(beyond, times, none) for none in nothing),
            ]
        ).astype(np.int64)
        return _coarsened(0, found, int(np.count_nonzero(~known)))

    def merge(self, other: Times, /) -> Times:
        if not self.table and not other.table:
            return Times(untimed=self.untimed + other.untimed)
        level = max(self.level, other.level)
        parts = [part.periods() for part in (self, other)]
        for part, mine in zip(parts, (self.level, other.level), strict=True):
            part[KEY] >>= level - mine
        return _coarsened(level, np.concatenate(parts, axis=1), self.untimed + other.untimed)

    def periods(self) -> Array:
        """A column for every period, in their order."""
        (found,) = unpacked("q", self.table)
        return found.reshape(len(FOLDS), -1).copy()

    def facts(self) -> Timeline | None:
        """What a report says of it; None for rows that have no times."""
        found = self.periods()
        rows = int(found[AGREEING].sum() + found[BEYOND].sum())
        if not rows:
            return Timeline(0, self.untimed, None, None) if self.untimed else None
        shown = found
        while shown.shape[1] > SHOWN:
            shown[KEY] >>= 1
            shown = _folded(shown)
        listed = tuple(
            Period(told(_first(period)), int(period[AGREEING] + period[BEYOND]), int(period[BEYOND]))
            for period in shown.T
        )
        first, last = _first(shown[:, 0]), _last(shown[:, -1])
        return Timeline(rows, self.untimed, told(first), told(last), listed, spell_of(self.periods()))


def _first(period: Array) -> int:
    return int(min(period[FIRST], period[FIRST_BEYOND]))


def _last(period: Array) -> int:
    return int(max(period[LAST], period[LAST_BEYOND]))


def _coarsened(level: int, found: Array, untimed: int) -> Times:
    """In as many periods as are kept."""
    found = found[:, np.argsort(found[KEY], kind="stable")]
    while found.shape[1] and 1 + np.count_nonzero(np.diff(found[KEY])) > MOST_PERIODS:
        found[KEY] >>= 1
        level += 1
    return Times(level, _folded(found).tobytes(), untimed)


def _folded(found: Array) -> Array:
    """Columns of the same period as one; they stand next to each other."""
    if not found.shape[1]:
        return found
    starts = np.flatnonzero(np.concatenate([[True], np.diff(found[KEY]) != 0]))
    return np.stack([fold.reduceat(row, starts) for fold, row in zip(FOLDS, found, strict=True)])


def spell_of(periods: Array) -> Spell | None:
    """The part of the time in which more rows differ than in the rest; None where that may be chance.

    It begins or ends where two parts differ most; and within the part with more such rows there may be another such
    moment, after which, or before which, it is as in the rest.
    """
    chance = _chance(periods)
    if chance is None:
        return None
    parts = _parts(periods)
    at = _most_telling(parts)
    start, stop = (at, parts.shape[1]) if _share(parts[:, at:]) > _share(parts[:, :at]) else (0, at)
    inside = parts[:, start:stop]
    again = _chance(_folded(inside))
    if again is not None:
        at = start + _most_telling(inside)
        falls = _share(parts[:, start:at]) > _share(parts[:, at:stop])
        if start and falls:
            stop, chance = at, max(chance, again)
        elif not start and not falls:
            start, chance = at, max(chance, again)
    inside, beyond, all_beyond = parts[:, start:stop], parts[BEYOND, start:stop].sum(), parts[BEYOND].sum()
    rows, all_rows = (part[[AGREEING, BEYOND]].sum() for part in (inside, parts))
    ends = stop < parts.shape[1]
    return Spell(
        since=told(_first(parts[:, start])) if start else None,
        until=told(_last(parts[:, stop - 1])) if ends else None,
        before=told(_last(parts[:, start - 1])) if start else None,
        after=told(_first(parts[:, stop])) if ends else None,
        rows=int(rows),
        rows_beyond=int(beyond),
        rows_outside=int(all_rows - rows),
        beyond_outside=int(all_beyond - beyond),
        chance=chance,
    )


def _parts(periods: Array) -> Array:
    """The periods; one in which all rows that agree come before or after all that do not, as two."""
    found = []
    for period in periods.T:
        if (first := period[LAST] < period[FIRST_BEYOND]) or period[LAST_BEYOND] < period[FIRST]:
            agreeing, beyond = period.copy(), period.copy()
            agreeing[[BEYOND, FIRST_BEYOND, LAST_BEYOND]] = 0, NEVER, ALWAYS
            beyond[[AGREEING, FIRST, LAST]] = 0, NEVER, ALWAYS
            both = [agreeing, beyond] if first else [beyond, agreeing]
            found += [part for part in both if part[[AGREEING, BEYOND]].any()]
        else:
            found.append(period)
    return np.stack(found, axis=1)


def _share(parts: Array) -> float:
    return float(parts[BEYOND].sum() / parts[[AGREEING, BEYOND]].sum())


def _most_telling(parts: Array) -> int:
    """Where two parts differ most: the place of the first period of the second part."""
    return 1 + int(np.argmax(_gains(parts[AGREEING] + parts[BEYOND], parts[BEYOND])))


def _chance(periods: Array) -> float | None:
    """How often the same periods in another order are as uneven; None where that is too often, or nothing is uneven."""
    rows, beyond = periods[AGREEING] + periods[BEYOND], periods[BEYOND]
    if len(rows) < 2 or not 0 < beyond.sum() < rows.sum():
        return None
    ours = _gains(rows, beyond).max()
    random, as_uneven = np.random.default_rng(0), 1
    for start in range(0, ORDERS, AT_ONCE):
        count = min(AT_ONCE, ORDERS - start)
        order = random.permuted(np.tile(np.arange(len(rows)), (count, 1)), axis=1)
        as_uneven += int(np.count_nonzero(_gains(rows[order], beyond[order]).max(axis=-1) >= ours * (1 - 1e-9)))
        if as_uneven > CHANCE * (ORDERS + 1):
            return None
    return as_uneven / (ORDERS + 1)


def _gains(rows: Array, beyond: Array) -> Array:
    """By how much two shares fit better than one, in logarithms of likelihood, for every place to cut at."""
    all_rows, all_beyond = (part.sum(axis=-1, keepdims=True) for part in (rows, beyond))
    early_rows, early_beyond = (np.cumsum(part, axis=-1)[..., :-1] for part in (rows, beyond))
    late_rows, late_beyond = all_rows - early_rows, all_beyond - early_beyond
    gains: Array = _fit(early_beyond, early_rows) + _fit(late_beyond, late_rows) - _fit(all_beyond, all_rows)
    return gains


def _fit(beyond: Array, rows: Array) -> Array:
    yes, no = (part * np.log(np.maximum(part, 1) / rows) for part in (beyond, rows - beyond))
    fit: Array = yes + no
    return fit
