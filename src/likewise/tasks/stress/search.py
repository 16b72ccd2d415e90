"""The search: what is known so far, which move comes next, and when to begin again.

Moves take turns. A turn proposes rows, many at a time, and the models answer them in one call. The moves
that make the worst difference larger get more turns; each keeps getting some. Where nothing has become
worse for a while, the search begins again around other real rows and keeps what it found.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from likewise.compare.observe import Prepared
from likewise.contracts.data import Array
from likewise.errors import LikewiseError
from likewise.explain.case import Case
from likewise.report.stress import MoveFacts
from likewise.tasks.stress import measure as measuring
from likewise.tasks.stress.measure import Measured, Meter
from likewise.tasks.stress.pools import Pool, batch_of
from likewise.tasks.stress.space import Rows, Space, together

ROWS_A_TURN = 256
BYTES_A_TURN = 1 << 24
"""Rows of a turn: so many, and of wide rows fewer."""

ELITES, ELITES_A_BASE = 48, 6
"""The worst rows that the next ones are made from, and how many of them may stem from one real row."""

KEPT = 64
"""The worst rows of all, kept over every new beginning."""

PATIENCE = 24
"""Turns without anything worse after which the search begins again elsewhere."""

FADING = 0.9
"""What a gain of one turn is worth in the next one of the same move."""

CURIOSITY = 0.35
"""How much a move that had few turns is preferred."""


class SpentError(LikewiseError):
    """The calls or the time of the search are used up."""

    code = "spent"


class Move(Protocol):
    """One way to change rows."""

    @property
    def name(self) -> str: ...

    def applies(self, search: Search) -> bool:
        """Is there anything here that it can change? Asked once."""
        ...

    def turn(self, search: Search) -> None:
        """Propose rows and have them measured: `search.measure`. Nothing if it has nothing left to try."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """Rows in order of severity, the worst first. All figures of a row are of one and the same call."""

    rows: Rows
    severity: Array
    beyond: Array
    apart: Array

    def __len__(self) -> int:
        return len(self.severity)

    @property
    def worst(self) -> float:
        return float(self.severity[0]) if len(self.severity) else 0.0

    def take(self, positions: Array) -> Ranked:
        """Some of the rows."""
        rows = self.rows.take(positions)
        return Ranked(rows, self.severity[positions], self.beyond[positions], self.apart[positions])


@dataclass(slots=True)
class Search:
    """Everything a move may look at.

    `start` ranks the real rows; `elites` are the worst rows of this beginning, `kept` those of all.
    `memory` is for what a move has to remember, by its name. `ended` tells whether the calls are spent.
    """

    case: Case
    prepared: Prepared
    pool: Pool
    space: Space
    start: Ranked
    random: np.random.Generator
    meter: Meter
    ended: Callable[[], bool]
    elites: Ranked
    kept: Ranked
    batch_size: int | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    one_sided: list[tuple[int, Rows]] = field(default_factory=list)
    rows_a_turn: int = ROWS_A_TURN
    tried: int = 0
    answered: int = 0

    @property
    def count(self) -> int:
        """Rows of one turn."""
        return max(8, min(self.rows_a_turn, BYTES_A_TURN // max(self.space.cells, 1)))

    def parents(self, count: int) -> Rows:
        """Rows to change: half of them the worst so far, some real rows with large differences, some just real."""
        kinds = self.random.random(count)
        worst = np.minimum(self.random.exponential(len(self.elites) / 4, count).astype(int), len(self.elites) - 1)
        rows = self.elites.rows.take(worst)
        reach = max(1, len(self.start) // 20)
        ranked = self.start.rows.base[np.minimum(self.random.integers(0, reach, count), len(self.start) - 1)]
        real = np.where(kinds < 0.75, ranked, self.random.integers(0, len(self.pool), count))
        fresh = self.space.real(real)
        chosen = kinds < 0.5
        cells = {name: np.where(chosen[:, None], cells, fresh.cells[name]) for name, cells in rows.cells.items()}
        return Rows(np.where(chosen, rows.base, fresh.base), cells)

    def measure(self, rows: Rows) -> Measured:
        """Ask both models about rows; whatever is worth remembering is remembered."""
        if self.ended():
            raise SpentError("the calls of the search are used up")
        batch = batch_of(self.pool, self.space, rows)
        found = measuring.measure(self.prepared, batch, self.meter, size=self.batch_size)
        self.tried += len(rows)
        self.answered += int((found.refused == measuring.ANSWERED).sum())
        self._note_refusals(rows, found)
        self.elites = _best(self.elites, rows, found, ELITES, a_base=ELITES_A_BASE)
        self.kept = _best(self.kept, rows, found, KEPT, a_base=ELITES_A_BASE)
        return found

    def begin_again(self) -> None:
        """Forget the worst rows for a while: other real rows have neighbourhoods too."""
        positions = self.random.permutation(len(self.pool))[:ELITES]
        place = np.full(len(self.pool), -1)
        place[self.start.rows.base] = np.arange(len(self.start))
        positions = positions[place[positions] >= 0]
        order = positions[np.argsort(place[positions], kind="stable")]
        if len(order):
            chosen = place[order]
            self.elites = self.start.take(chosen)

    def _note_refusals(self, rows: Rows, found: Measured) -> None:
        for kind in (1, 2, 3, 4):
            positions = np.flatnonzero(found.refused == kind)
            if not len(positions):
                continue
            self.refused[kind] = self.refused.get(kind, 0) + len(positions)
            if kind in (measuring.REFERENCE_ALONE, measuring.CANDIDATE_ALONE) and len(self.one_sided) < 10:
                self.one_sided.append((kind, rows.take(positions[:1])))


@dataclass(slots=True)
class _Arm:
    """A move and what it brought."""

    move: Move
    facts: MoveFacts
    value: float = 1.0
    idle: bool = False


def run(
    search: Search, moves: tuple[Move, ...], *, tell: Callable[[float], None] | None = None
) -> tuple[MoveFacts, ...]:
    """Let the moves take turns until the calls or the time are used up."""
    arms = [_Arm(move, MoveFacts(move.name)) for move in moves if move.applies(search)]
    quiet = 0
    try:
        while any(not arm.idle for arm in arms) and not math.isinf(search.kept.worst):
            arm = _next(arms)
            before, elite = search.kept.worst, search.elites.worst
            asked = search.tried
            try:
                arm.move.turn(search)
            finally:
                _credit(arm, search, before, elite, search.tried - asked)
            quiet = 0 if search.elites.worst > elite * 1.01 else quiet + 1
            if tell is not None:
                tell(search.kept.worst)
            if quiet >= PATIENCE:
                search.begin_again()
                quiet = 0
    except SpentError:
        pass
    return tuple(arm.facts for arm in arms)


def _next(arms: list[_Arm]) -> _Arm:
    """The move that promises most: what it brought of late, and how long ago it was asked."""
    active = [arm for arm in arms if not arm.idle]
    turns = sum(arm.facts.turns for arm in active) + 1

    def promise(arm: _Arm) -> float:
        return arm.value + CURIOSITY * math.sqrt(math.log(turns + 1) / (arm.facts.turns + 1))

    return max(active, key=promise)


def _credit(arm: _Arm, search: Search, before: float, elite: float, rows: int) -> None:
    gain = _gain(before, search.kept.worst)
    # What leads on from a new beginning counts too, but less than what is worse than all before.
    step = max(gain, 0.3 * _gain(elite, search.elites.worst))
    facts = arm.facts
    arm.facts = replace(
        facts,
        turns=facts.turns + 1,
        rows=facts.rows + rows,
        gains=facts.gains + (search.kept.worst > before),
        best=search.kept.worst if search.kept.worst > before else facts.best,
    )
    arm.value = FADING * (arm.value if facts.turns else 0.5) + (1 - FADING) * step
    arm.idle = rows == 0


def _gain(before: float, after: float) -> float:
    """How many times worse, on a scale from nothing to one."""
    if not after > before:
        return 0.0
    return 1.0 if math.isinf(after) else min(1.0, 0.05 + math.log10(after / max(before, 1e-12)))


def ranked(rows: Rows, found: Measured) -> Ranked:
    """All rows that were answered, the worst first; ties in the order of the data."""
    answered = np.flatnonzero(found.refused == measuring.ANSWERED)
    order = answered[np.argsort(-found.severity[answered], kind="stable")]
    return of_call(rows, found).take(order)


def of_call(rows: Rows, found: Measured) -> Ranked:
    """Rows and what was measured of them, as they are."""
    return Ranked(rows, found.severity, found.beyond, found.apart)


def gathered(parts: Sequence[Ranked], *, lead: bool = False) -> Ranked:
    """Several as one, the worst first; ties in the order given. With `lead` the very first stays so."""
    severity, beyond, apart = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("severity", "beyond", "apart")
    )
    whole = Ranked(together([part.rows for part in parts]), severity, beyond, apart)
    order = np.argsort(-np.where(lead & (np.arange(len(severity)) == 0), np.inf, severity), kind="stable")
    return whole.take(order)


def _best(held: Ranked, rows: Rows, found: Measured, limit: int, *, a_base: int) -> Ranked:
    """The worst of old and new rows, each once, no real row with too many."""
    floor = held.severity[-1] if len(held) >= limit else -1.0
    fresh = np.flatnonzero((found.severity > floor) & (found.refused == measuring.ANSWERED))
    if not len(fresh):
        return held
    fresh = fresh[np.argsort(-found.severity[fresh], kind="stable")][: 2 * limit]
    both = gathered([held, of_call(rows, found).take(fresh)])
    chosen: list[int] = []
    seen: set[bytes] = set()
    bases: dict[int, int] = {}
    for position in range(len(both)):
        base = int(both.rows.base[position])
        key = b"".join(cells[position].tobytes() for cells in both.rows.cells.values())
        if key in seen or bases.get(base, 0) >= a_base:
            continue
        seen.add(key)
        bases[base] = bases.get(base, 0) + 1
        chosen.append(position)
        if len(chosen) == limit:
            break
    return both.take(np.array(chosen, dtype=np.int64))


def deadline(seconds: float, calls: int | None, meter: Meter) -> Callable[[], bool]:
    """Whether the time or the calls are used up, whichever comes first."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end or (calls is not None and meter.most_calls >= calls)
