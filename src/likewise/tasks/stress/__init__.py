"""The worst input: a search around real rows for the largest difference between two models."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from likewise.compare.engines import Session
from likewise.compare.observe import Prepared, prepare
from likewise.contracts.comparison import Incident, Plan, Progress
from likewise.contracts.data import Batch, RowIds
from likewise.contracts.models import Model, Runner
from likewise.contracts.results import MoveFacts, StressResult
from likewise.contracts.verdict import Outcome
from likewise.errors import LikewiseError, ModelError, PairingError, UsageError
from likewise.registry import adapter, extensions, open_source
from likewise.tasks.check import model_of, selected
from likewise.tasks.settings import Settings, require_known, settings_from
from likewise.tasks.stress import result
from likewise.tasks.stress.moves import ANSWERED, KEPT, Found, Meter, Search, deadline, gathered, measure, run
from likewise.tasks.stress.space import Pool, Rows, read_pool, require_name, space_for

__all__ = ["stress"]

BUDGET = 60.0
"""Seconds that a search may take."""

LAST = 2
"""Calls after all others: the worst rows as they are in the file, and again with the worst real row among them."""

POLICY = ("preset", "abs_tol", "rel_tol", "mean_tol", "limits", "nan_equal", "confidence", "max_failure_rate")
DATA = ("samples", "sample", "seed", "drop", "id", "feed")
MODELS = ("pair", "ignore", "batch_size", "batch_axis", "trusted", "reference_options", "candidate_options")
"""Settings of a gate that mean something to a search."""

FIRST, GROWTH, CHUNK = 32, 4, 1_024
"""Real rows of one call: few at first, because a model may be slow."""

SHARE_OF_TURN, FEWEST, MOST = 0.01, 16, 1_024
"""Where only time bounds the search, a turn takes about this share of it, with so many rows."""

SHARE_FOR_DATA = 0.3
"""Of the time and of the calls, at most so much goes to the real rows."""

SHARE_FOR_MOVES = 0.85
"""Of the time that is left then, so much goes to the moves; the rest is for making the worst input small."""


def stress(
    reference: Any,
    candidate: Any,
    data: Any,
    *,
    budget: float = BUDGET,
    calls: int | None = None,
    widen: float = 0.0,
    output: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> StressResult:
    """Search the neighbourhood of real rows for the input on which the models differ most.

    Models and data are given as to `check`, and the options are those of `check`. The search ends after
    `budget` seconds or `calls` calls of each model, whichever comes first; with the same `seed` and
    `calls` it finds the same. Values stay within the ranges observed, which `widen` stretches (0.1 is
    a tenth of each range at both ends). The worst rows are written to `output`. The result is true when
    nothing beyond the tolerance was found; what could not be searched gives an INCONCLUSIVE one.
    """
    settings = _settings(reference, candidate, data, options)
    policy = settings.policy()
    _require_sense(budget, calls, widen)
    began = time.monotonic()
    told = {"budget": budget, "calls": calls, "seed": settings.seed, "widen": widen, "preset": policy.preset}
    known = replace(_nothing_known(settings), settings=told)
    try:
        plan = replace(_plan(settings), progress=progress)
        known = replace(known, reference=plan.reference.name, candidate=plan.candidate.name)
        known = replace(known, data=plan.source.location)
        with Session(plan.reference, plan.candidate, progress=progress) as session:
            search = _opened(plan, settings, session, budget=budget, calls=calls, widen=widen, output=output)
            facts = _searched(search, began, budget, calls)
            found = result.result(search, policy, known, facts, output=output)
            if found.file is not None:
                found = replace(found, again=result.command(settings, found))
    except UsageError:
        raise
    except LikewiseError as error:
        return _inconclusive(known, error)
    return replace(found, seconds=round(time.monotonic() - began, 3))


def could_not_run(
    reference: str, candidate: str, data: str, error: LikewiseError, options: Mapping[str, Any]
) -> StressResult:
    """The result of a search whose worker died."""
    given = {name: value for name, value in options.items() if name not in ("budget", "calls", "widen")}
    return _inconclusive(_nothing_known(_settings(reference, candidate, data, given)), error)


def _nothing_known(settings: Settings) -> StressResult:
    targets = (settings.reference, settings.candidate, settings.data)
    reference, candidate, data = (target if isinstance(target, str) else type(target).__name__ for target in targets)
    tolerance = settings.policy().tolerance
    return StressResult(Outcome.INCONCLUSIVE, "", reference, candidate, data, tolerance.absolute, tolerance.relative)


def _inconclusive(known: StressResult, error: LikewiseError) -> StressResult:
    return replace(known, headline=error.message, notes=(error.remedy,) if error.remedy else ())


def _settings(reference: Any, candidate: Any, data: Any, options: Mapping[str, Any]) -> Settings:
    require_known(options, (*POLICY, *DATA, *MODELS))
    return settings_from({"reference": reference, "candidate": candidate, "data": data, **options}, where="the search")


def _require_sense(budget: float, calls: int | None, widen: float) -> None:
    if not 0 < budget < math.inf:
        raise UsageError(f"--budget is {budget:g}", remedy="Give seconds above zero, such as 60s")
    if calls is not None and calls < 1:
        raise UsageError(f"--calls is {calls}", remedy="Give a number above zero, such as 200")
    if not 0 <= widen < math.inf:
        raise UsageError(f"--widen is {widen}", remedy="Give a share of the range, such as 10%")


def _plan(settings: Settings) -> Plan:
    policy = settings.policy()
    return Plan(
        reference=_model(settings, "reference"),
        candidate=_model(settings, "candidate"),
        source=selected(open_source(settings.data), settings),
        tolerance=policy.tolerance,
        nan_equal=policy.nan_equal,
        batch_size=settings.batch_size,
        pair=settings.pair,
        feed=settings.feed,
        ignore=settings.ignore,
    )


def _model(settings: Settings, side: str) -> Model:
    model = model_of(settings, side)
    if adapter(model.framework).answers_only:
        raise ModelError(
            f"the {side} ({model.name}) holds recorded answers, which say nothing about other rows",
            remedy="Give the model itself",
            side=side,
        )
    return model


def _opened(
    plan: Plan,
    settings: Settings,
    session: Session,
    *,
    budget: float,
    calls: int | None,
    widen: float,
    output: str | None,
) -> Search:
    """Both models open, fed and paired, and the real rows ranked by their difference."""
    until = time.monotonic() + SHARE_FOR_DATA * budget
    reference, candidate = session.both()
    pool = read_pool(plan.source)
    if output is not None:
        require_name(output, table=pool.is_table)
    plan = replace(plan, source=pool.source)
    prepared = _prepared(plan, reference, candidate)
    meter = Meter()
    most = None if calls is None else max(1, int(SHARE_FOR_DATA * calls))
    found = _measured(plan, prepared, pool, meter, until, most)
    if len(found) < len(pool):
        pool = replace(pool.take(np.arange(len(found))), complete=False)
    answered = np.flatnonzero(found.refused == ANSWERED)
    if not len(answered):
        raise ModelError(
            f"no row of {plan.source.location} was answered by both models", remedy="Run `likewise check` to see why"
        )
    kinds, counts = np.unique(found.refused[found.refused != ANSWERED], return_counts=True)
    pool = pool.take(answered)
    space = space_for(pool, _names(prepared, pool), widen=widen)
    start = replace(found.take(answered), rows=space.real(np.arange(len(pool)))).ranked()
    top = start.take(np.arange(min(KEPT, len(start))))
    search = Search(
        plan,
        prepared,
        pool,
        space,
        start,
        np.random.default_rng(settings.seed),
        meter,
        elites=top,
        kept=top,
        refused=dict(zip(kinds.tolist(), counts.tolist(), strict=True)),
    )
    if calls is None:
        pace = meter.seconds / max(sum(meter.rows.values()) / 2, 1)
        search.rows_a_turn = int(np.clip(SHARE_OF_TURN * budget / max(pace, 1e-9), FEWEST, MOST))
    return search


def _prepared(plan: Plan, reference: Runner, candidate: Runner) -> Prepared:
    prepared = prepare(plan, reference, candidate)
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


def _measured(plan: Plan, prepared: Prepared, pool: Pool, meter: Meter, until: float, most: int | None) -> Found:
    """The real rows, as many as time and calls allow; the first are always measured."""
    parts: list[Found] = []
    stop, length = 0, FIRST
    while stop < len(pool):
        if parts and (time.monotonic() > until or (most is not None and meter.most_calls >= most)):
            break
        start, stop = stop, min(stop + length, len(pool))
        length = min(GROWTH * length, CHUNK)
        if plan.progress is not None:
            plan.progress(Progress("comparing the data", first=start, last=stop - 1, done=start, total=len(pool)))
        at = np.arange(start, stop)
        batch = Batch(RowIds(at), pool.inputs.take(at))
        parts.append(measure(prepared, Rows(at, {}), batch, meter, size=plan.batch_size))
    return gathered(parts)


def _searched(search: Search, began: float, budget: float, calls: int | None) -> tuple[MoveFacts, ...]:
    """Let the moves work, and leave time and calls for making the worst input small."""

    def tell(worst: float) -> None:
        if search.plan.progress is not None:
            known = f", worst {worst:.4g}× the tolerance" if math.isfinite(worst) else ""
            search.plan.progress(Progress(f"searching{known}", done=search.tried))

    left = budget - (time.monotonic() - began)
    most = None if calls is None else calls - min(64, max(calls // 5, 12), calls // 3) - LAST
    search.ended = deadline(SHARE_FOR_MOVES * left, most, search.meter)
    facts = run(search, extensions("tasks.stress.moves"), tell)
    left = budget - (time.monotonic() - began)
    most = None if calls is None else max(1, calls - LAST)
    search.ended = deadline(max(left, 0.1 * budget), most, search.meter)
    return facts
