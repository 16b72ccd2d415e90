"""The search, with one kind of move a file: what is known so far, which move comes next, and when to begin again.

Moves take turns. A turn proposes rows, many at a time, and the models answer them in one call. The moves
that make the worst difference larger get more turns; each keeps getting some. Where nothing has become
worse for a while, the search begins again around other real rows and keeps what it found.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import TypeAlias

import numpy as np

from likewise.compare.call import Side, answers, joined
from likewise.compare.differences import is_numeric, row_any, rows_of, same_labels
from likewise.compare.metrics.worst_rows import at_worst, severities
from likewise.compare.observe import Prepared, paired, rows_beyond
from likewise.contracts.comparison import Mismatch, Pair, Plan
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Kind
from likewise.contracts.results import MoveFacts
from likewise.contracts.values import dataclass
from likewise.errors import LikewiseError
from likewise.tasks.stress.space import Pool, Rows, Space, batch_of, together

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


@dataclass(slots=True)
class Search:
    """Everything a move may look at.

    `start` ranks the real rows; `elites` are the worst rows of this beginning, `kept` those of all.
    `refused` counts rows by who refused them, `one_sided` are examples. `ended`: the calls are spent.
    """

    plan: Plan
    prepared: Prepared
    pool: Pool
    space: Space
    start: Found
    random: np.random.Generator
    meter: Meter
    elites: Found
    kept: Found
    refused: dict[int, int]
    ended: Callable[[], bool] = lambda: False
    one_sided: list[tuple[int, Rows]] = field(default_factory=list)
    rows_a_turn: int = ROWS_A_TURN
    tried: int = 0
    answered: int = 0

    @property
    def count(self) -> int:
        """Rows of one turn."""
        return max(8, min(self.rows_a_turn, BYTES_A_TURN // max(self.space.row_bytes, 1)))

    def batch(self, rows: Rows) -> Batch:
        """Rows as the models are given them."""
        return batch_of(self.pool, self.space, rows)

    def parents(self, count: int) -> Rows:
        """Rows to change: half of them the worst so far, some real rows with large differences, some just real."""
        kinds = self.random.random(count)
        worst = np.minimum(self.random.exponential(len(self.elites) / 4, count).astype(int), len(self.elites) - 1)
        reach = max(1, len(self.start) // 20)
        ranked = self.start.rows.base[np.minimum(self.random.integers(0, reach, count), len(self.start) - 1)]
        real = np.where(kinds < 0.75, ranked, self.random.integers(0, len(self.pool), count))
        return self.elites.rows.take(worst).or_else(self.space.real(real), kinds < 0.5)

    def measure(self, rows: Rows) -> Found:
        """Ask both models about rows; whatever is worth remembering is remembered."""
        if self.ended():
            raise SpentError("the calls of the search are used up")
        found = measure(self.prepared, rows, self.batch(rows), self.meter, size=self.plan.batch_size)
        self.tried += len(rows)
        self.answered += int((found.refused == ANSWERED).sum())
        self._note_refusals(found)
        self.elites = _best(self.elites, found, ELITES)
        self.kept = _best(self.kept, found, KEPT)
        return found

    def begin_again(self) -> None:
        """Forget the worst rows for a while: other real rows have neighbourhoods too."""
        positions = self.random.permutation(len(self.pool))[:ELITES]
        self.elites = self.start.take(np.sort(np.argsort(self.start.rows.base)[positions]))

    def _note_refusals(self, found: Found) -> None:
        for kind in range(ANSWERED + 1, NOT_TOLD + 1):
            positions = np.flatnonzero(found.refused == kind)
            if not len(positions):
                continue
            self.refused[kind] = self.refused.get(kind, 0) + len(positions)
            if kind in (REFERENCE_ALONE, CANDIDATE_ALONE) and len(self.one_sided) < 10:
                self.one_sided.append((kind, found.rows.take(positions[:1])))


Turn: TypeAlias = Callable[[], None]
"""Proposes rows and has them measured: `search.measure`. Nothing if it has nothing left to try."""


@dataclass(frozen=True, slots=True)
class Move:
    """One way to change rows. `begin` looks at a search once: None if there is nothing here that it can change."""

    name: str
    begin: Callable[[Search], Turn | None]


@dataclass(slots=True)
class _Arm:
    """A move that takes turns, and what it brought."""

    turn: Turn
    facts: MoveFacts
    value: float = 1.0
    idle: bool = False


def run(search: Search, moves: Sequence[Move], tell: Callable[[float], None]) -> tuple[MoveFacts, ...]:
    """Let the moves take turns until the calls or the time are used up."""
    begun = [(move.name, move.begin(search)) for move in moves]
    arms = [_Arm(turn, MoveFacts(name)) for name, turn in begun if turn is not None]
    quiet = 0
    try:
        while any(not arm.idle for arm in arms) and not math.isinf(search.kept.worst):
            arm = _next(arms)
            before, elite = search.kept.worst, search.elites.worst
            asked = search.tried
            try:
                arm.turn()
            finally:
                _credit(arm, search, before, elite, search.tried - asked)
            quiet = 0 if search.elites.worst > elite * 1.01 else quiet + 1
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


def _best(held: Found, found: Found, limit: int) -> Found:
    """The worst of old and new rows, each once, no real row with too many."""
    floor = held.severity[-1] if len(held) >= limit else -1.0
    fresh = np.flatnonzero((found.severity > floor) & (found.refused == ANSWERED))
    if not len(fresh):
        return held
    fresh = fresh[np.argsort(-found.severity[fresh], kind="stable")][: 2 * limit]
    both = gathered([held, found.take(fresh)]).ranked()
    chosen: list[int] = []
    seen: set[bytes] = set()
    bases: Counter[int] = Counter()
    for position, base in enumerate(both.rows.base.tolist()):
        key = b"".join(cells[position].tobytes() for cells in both.rows.cells.values())
        if key in seen or bases[base] >= ELITES_A_BASE:
            continue
        seen.add(key)
        bases[base] += 1
        chosen.append(position)
        if len(chosen) == limit:
            break
    return both.take(chosen)


def deadline(seconds: float, calls: int | None, meter: Meter) -> Callable[[], bool]:
    """Whether the time or the calls are used up, whichever comes first."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end or (calls is not None and meter.most_calls >= calls)


CALLS_TO_ISOLATE = 64
"""Calls of one model spent on finding the rows of one batch that it refuses."""

BARELY = 1.0 + sys.float_info.epsilon
"""The severity of a changed label where nothing tells how sure the reference was: just beyond."""

ANSWERED, REFERENCE_ALONE, CANDIDATE_ALONE, BOTH, NOT_TOLD = range(5)
"""Who refused a row. The last: finding out would have taken too many calls."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Rows and what each showed, all figures of a row from one and the same call.

    Severity is the difference in units of the tolerance, zero where a row was not answered by both. `apart` is the
    absolute difference that the severity is of, NaN where no output holds numbers.
    """

    rows: Rows
    severity: Array
    beyond: Array
    apart: Array
    refused: Array

    def __len__(self) -> int:
        return len(self.severity)

    @property
    def worst(self) -> float:
        """The severity of the first row."""
        return float(self.severity[0]) if len(self.severity) else 0.0

    def take(self, positions: Array | list[int]) -> Found:
        """Some of the rows."""
        at = np.asarray(positions, dtype=np.int64)
        return Found(self.rows.take(at), self.severity[at], self.beyond[at], self.apart[at], self.refused[at])

    def ranked(self) -> Found:
        """All rows that were answered, the worst first; ties as they are."""
        answered = np.flatnonzero(self.refused == ANSWERED)
        return self.take(answered[np.argsort(-self.severity[answered], kind="stable")])


def gathered(parts: Sequence[Found]) -> Found:
    """Several after each other."""
    names = ("severity", "beyond", "apart", "refused")
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in names]
    return Found(together([part.rows for part in parts]), *columns)


@dataclass(slots=True)
class Meter:
    """What the models were asked so far."""

    calls: dict[str, int] = field(default_factory=lambda: {"reference": 0, "candidate": 0})
    rows: dict[str, int] = field(default_factory=lambda: {"reference": 0, "candidate": 0})
    seconds: float = 0.0

    @property
    def most_calls(self) -> int:
        return max(self.calls.values())

    def count(self, side: str, rows: int, seconds: float) -> None:
        self.calls[side] += 1
        self.rows[side] += rows
        self.seconds += seconds


def measure(prepared: Prepared, rows: Rows, batch: Batch, meter: Meter, *, size: int | None = None) -> Found:
    """Ask both models about rows, which `batch` holds in their form, and compare."""
    ours, theirs = (_answered(side, batch, meter, size) for side in (prepared.reference, prepared.candidate))
    refused = np.select(
        [ours.answered & theirs.answered, ~(ours.told & theirs.told), theirs.answered, ours.answered],
        [ANSWERED, NOT_TOLD, REFERENCE_ALONE, CANDIDATE_ALONE],
        default=BOTH,
    )
    severity, beyond, apart = np.zeros(len(batch)), np.zeros(len(batch), dtype=bool), np.full(len(batch), np.nan)
    good = np.flatnonzero(refused == ANSWERED)
    if len(good):
        asked = batch if len(good) == len(batch) else batch.at(good)
        severity[good], beyond[good], apart[good] = compared(prepared, asked, ours.at(good), theirs.at(good))
    return Found(rows, severity, beyond, apart, refused)


def compared(prepared: Prepared, batch: Batch, reference: Tensors, candidate: Tensors) -> tuple[Array, Array, Array]:
    """The severity of each row, whether it is beyond the tolerance, and how far its numbers are apart there."""
    severity, beyond = np.zeros(len(batch)), np.zeros(len(batch), dtype=bool)
    apart, decided = np.full(len(batch), np.nan), np.full(len(batch), -1.0)
    for spec in prepared.pairing.pairs:
        pair = paired(spec, batch, reference, candidate, prepared.tolerance, nan_equal=prepared.nan_equal)
        if isinstance(pair, Mismatch):
            # One row of another shape makes all of a call so: the whole call is what differs.
            everywhere = np.full(len(batch), np.inf)
            return everywhere, np.ones(len(batch), dtype=bool), everywhere
        own = _severity(pair)
        severity = np.maximum(severity, own)
        beyond |= rows_beyond(pair)
        if _holds_numbers(pair):
            # Rows that are NaN through and through on both sides agree, and nothing was measured on them.
            nothing = (rows_of(np.isnan(pair.reference)) & rows_of(np.isnan(pair.candidate))).all(axis=1)
            worse = np.flatnonzero((own > decided) & ~nothing)
            apart[worse], decided[worse] = at_worst(pair, worse)[1], own[worse]
    return severity, beyond, apart


def _severity(pair: Pair) -> Array:
    """How far each row is apart in units of what is tolerated, so that labels and numbers can be ranked together."""
    if not pair.reference.size:
        return np.zeros(len(pair.reference))
    if _holds_numbers(pair):
        return severities(pair)
    differs = row_any(rows_of(~same_labels(pair.reference, pair.candidate)))
    if pair.margin is None or pair.noise is None:
        return np.where(differs, BARELY, 0.0)
    margin = np.asarray(pair.margin, dtype=np.float64).reshape(len(differs))
    with np.errstate(over="ignore"):
        sure = np.minimum(margin / np.maximum(pair.noise, sys.float_info.min), sys.float_info.max)
    return np.where(differs, np.where(np.isnan(sure), BARELY, sure), 0.0)


def _holds_numbers(pair: Pair) -> bool:
    numeric = is_numeric(pair.reference) and is_numeric(pair.candidate)
    return numeric and pair.spec.kind is not Kind.LABEL and bool(pair.reference.size)


@dataclass(frozen=True, slots=True, eq=False)
class _Answers:
    """The answers to the rows that a model does not refuse. `told`: it is known whether it refuses a row."""

    tensors: Tensors
    answered: Array
    told: Array

    def at(self, positions: Array) -> Tensors:
        """The answers to some rows, all of them answered."""
        if len(positions) == len(self.answered):
            return self.tensors
        places = (np.cumsum(self.answered) - 1)[positions]
        return {name: array[places] for name, array in self.tensors.items()}


def _answered(side: Side, batch: Batch, meter: Meter, size: int | None) -> _Answers:
    parts: list[Tensors] = []
    answered, told = np.zeros(len(batch), dtype=bool), np.ones(len(batch), dtype=bool)
    waiting, calls = [(0, len(batch))], 0
    while waiting:
        start, stop = waiting.pop(0)
        if calls >= CALLS_TO_ISOLATE:
            told[start:stop] = False
            continue
        part = batch if stop - start == len(batch) else batch.slice(start, stop)
        began = time.perf_counter()
        try:
            parts.append(answers(side, part, size)[0])
            answered[start:stop] = True
        except LikewiseError:
            if stop - start > 1:
                middle = (start + stop) // 2
                # In the order of the rows: answers are joined as they come.
                waiting[:0] = [(start, middle), (middle, stop)]
        calls += 1
        meter.count(side.name, len(part), time.perf_counter() - began)
    return _Answers(joined(side, parts) if parts else {}, answered, told)
