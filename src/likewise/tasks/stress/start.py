"""Both models open, fed and paired, the real rows measured: where a search begins."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from likewise.compare.observe import Prepared, prepare
from likewise.contracts.comparison import Comparison, Incident, Pair, Plan, Progress
from likewise.contracts.data import Array, Batch
from likewise.contracts.models import Runner
from likewise.contracts.verdict import Outcome, Verdict
from likewise.errors import LikewiseError, ModelError, PairingError
from likewise.explain.case import Case, Sample
from likewise.registry import adapter
from likewise.tasks.settings import Settings
from likewise.tasks.stress import measure, pools
from likewise.tasks.stress.measure import Measured, Meter
from likewise.tasks.stress.pools import Pool
from likewise.tasks.stress.search import KEPT, Search, ranked
from likewise.tasks.stress.space import Space

FIRST, GROWTH, CHUNK = 32, 4, 1_024
"""Real rows of one call: few at first, because a model may be slow."""

SHARE_OF_TURN, FEWEST, MOST = 0.01, 16, 1_024
"""Where only time bounds the search, a turn takes about this share of it, with so many rows."""

SHARE_FOR_DATA = 0.3
"""Of the time and of the calls, at most so much goes to the real rows."""

SAMPLE = 1_024
"""Real rows whose way through trees is followed."""


def open_search(
    plan: Plan,
    settings: Settings,
    stack: ExitStack,
    *,
    budget: float,
    calls: int | None,
    widen: float,
    output: str | None,
    progress: Callable[[Progress], None] | None,
) -> Search:
    """Everything a search needs, with the real rows ranked by their difference."""
    until = time.monotonic() + SHARE_FOR_DATA * budget
    runners = {side: _opened(plan, side, stack, progress) for side in ("reference", "candidate")}
    pool = pools.read(plan.source)
    if output is not None:
        pools.require_name(output, table=pool.is_table)
    plan = replace(plan, source=pool.source, progress=progress)
    prepared = _prepared(plan, runners)
    meter = Meter()
    most = None if calls is None else max(1, int(SHARE_FOR_DATA * calls))
    names = _names(prepared, pool)
    space = pools.space_for(pool, names, widen=0.0)
    found = _measured(prepared, pool, space, meter, settings.batch_size, until, most, progress)
    if len(found.severity) < len(pool):
        pool = pools.without(pool, np.arange(len(found.severity), len(pool)))
        pool = replace(pool, complete=False)
    answered = found.refused == measure.ANSWERED
    if not answered.any():
        raise ModelError(
            f"no row of {plan.source.location} was answered by both models", remedy="Run `likewise check` to see why"
        )
    refused = {kind: int((found.refused == kind).sum()) for kind in (1, 2, 3, 4) if (found.refused == kind).any()}
    if not answered.all():
        pool = pools.without(pool, np.flatnonzero(~answered))
        found = found.take(answered)
    space = pools.space_for(pool, names, widen=widen)
    start = ranked(space.real(np.arange(len(pool))), found)
    top = start.take(np.arange(min(KEPT, len(start))))
    search = Search(
        _case(plan, prepared, pool, space, runners, stack),
        prepared,
        pool,
        space,
        start,
        np.random.default_rng(settings.seed),
        meter,
        lambda: False,
        top,
        top,
        settings.batch_size,
    )
    search.refused = refused
    if calls is None:
        pace = meter.seconds / max(sum(meter.rows.values()) / 2, 1)
        search.rows_a_turn = int(np.clip(SHARE_OF_TURN * budget / max(pace, 1e-9), FEWEST, MOST))
    return search


def _opened(plan: Plan, side: str, stack: ExitStack, progress: Callable[[Progress], None] | None) -> Runner:
    model = getattr(plan, side)
    if progress is not None:
        progress(Progress(f"loading the {side}", side))
    try:
        return stack.enter_context(adapter(model.framework).open(model))
    except LikewiseError as error:
        error.side = side
        raise


def _prepared(plan: Plan, runners: dict[str, Runner]) -> Prepared:
    prepared = prepare(plan, runners["reference"], runners["candidate"])
    if isinstance(prepared, Incident):
        raise ModelError(prepared.message, remedy=prepared.remedy, side=prepared.side)
    pairing = prepared.pairing
    doubts = [entry.message for entry in pairing.incidents] + [entry.message for entry in pairing.mismatches]
    if doubts or not pairing.pairs:
        message = doubts[0] if doubts else "no output of one model can be compared with one of the other"
        raise PairingError(message, remedy="Run `likewise check` first; name outputs with --pair or --ignore")
    return prepared


def _names(prepared: Prepared, pool: Pool) -> list[str]:
    """The columns that either model takes, in the order of the data."""
    used: set[str] = set()
    for side in (prepared.reference, prepared.candidate):
        used.update(pool.inputs if side.feed.columns is None else side.feed.columns)
    return [name for name in pool.inputs if name in used]


def _measured(
    prepared: Prepared,
    pool: Pool,
    space: Space,
    meter: Meter,
    size: int | None,
    until: float,
    most: int | None,
    progress: Callable[[Progress], None] | None,
) -> Measured:
    """The real rows, as many as time and calls allow; the first are always measured."""
    parts: list[Measured] = []
    start, stop, length = 0, 0, FIRST
    while stop < len(pool):
        if parts and (time.monotonic() > until or (most is not None and meter.most_calls >= most)):
            break
        start, stop = stop, min(stop + length, len(pool))
        length = min(GROWTH * length, CHUNK)
        positions = np.arange(start, stop)
        if progress is not None:
            progress(Progress("comparing the data", first=start, last=int(positions[-1]), done=start, total=len(pool)))
        batch = pools.batch_of(pool, space, space.real(positions))
        parts.append(measure.measure(prepared, batch, meter, size=size))
    joined: list[Array] = [
        np.concatenate([getattr(part, name) for part in parts]) for name in ("severity", "beyond", "refused", "apart")
    ]
    return Measured(*joined)


def _case(
    plan: Plan, prepared: Prepared, pool: Pool, space: Space, runners: dict[str, Runner], stack: ExitStack
) -> Case:
    """The models opened up for those who look inside: trees are read from a case."""
    batch = pools.batch_of(pool, space, space.real(np.arange(min(len(pool), SAMPLE))))
    return Case(
        replace(plan, progress=None),
        Comparison(),
        Verdict(Outcome.INCONCLUSIVE, "", (), (), None),
        float("inf"),
        plan.tolerance,
        runners,
        prepared.reference,
        prepared.candidate,
        prepared.pairing.pairs,
        _sample(batch),
    )


def _sample(batch: Batch) -> Sample:
    """Rows without answers: what is read inside a model needs its inputs only."""
    empty: tuple[Pair, ...] = ()
    return Sample(batch, {}, {}, empty, np.zeros(len(batch), dtype=bool), complete=False)
