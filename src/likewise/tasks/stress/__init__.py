"""The worst input: a search around real rows for the largest difference between two models."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from likewise.contracts.comparison import Plan, Progress
from likewise.contracts.models import Model
from likewise.contracts.verdict import Outcome
from likewise.data import selection
from likewise.errors import LikewiseError, ModelError, UsageError, nearest
from likewise.registry import describe_model, extensions, open_source
from likewise.report.stress import StressResult
from likewise.tasks.settings import Settings, settings_from

__all__ = ["stress"]

BUDGET = 60.0
"""Seconds that a search may take."""

LAST = 2
"""Calls after all others: the worst rows as they are in the file, and again with the worst real row among them."""

POLICY = ("preset", "abs_tol", "rel_tol", "mean_tol", "limits", "nan_equal", "confidence", "max_failure_rate")
DATA = ("samples", "sample", "seed", "drop", "id", "feed")
MODELS = ("pair", "ignore", "batch_size", "batch_axis", "trusted", "reference_options", "candidate_options")
"""Settings of a gate that mean something to a search."""


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
    _sensible(budget, calls, widen)
    began = time.monotonic()
    from likewise.tasks.stress import result as repeating
    from likewise.tasks.stress import result as telling
    from likewise.tasks.stress import start

    told = {"budget": budget, "calls": calls, "seed": settings.seed, "widen": widen, "preset": policy.preset}
    empty = StressResult(
        Outcome.INCONCLUSIVE,
        "",
        _name(reference),
        _name(candidate),
        _name(data),
        policy.tolerance.absolute,
        policy.tolerance.relative,
        settings=told,
    )
    try:
        with ExitStack() as stack:
            plan = _plan(settings)
            named = replace(empty, reference=plan.reference.name, candidate=plan.candidate.name)
            empty = replace(named, data=plan.source.location)
            search = start.open_search(
                plan, settings, stack, budget=budget, calls=calls, widen=widen, output=output, progress=progress
            )
            facts = _searched(search, began, budget, calls, progress)
            result = telling.result(search, policy, empty, facts, output=output)
            if result.file is not None:
                result = replace(result, again=repeating.command(settings, result))
    except UsageError:
        raise
    except LikewiseError as error:
        return inconclusive(empty, error)
    return replace(result, seconds=round(time.monotonic() - began, 3))


def inconclusive(known: StressResult, error: LikewiseError) -> StressResult:
    """The result of a search that could not be made, with what is known."""
    remedy = (error.remedy,) if error.remedy else ()
    return replace(known, outcome=Outcome.INCONCLUSIVE, headline=error.message, notes=(*known.notes, *remedy))


def could_not_run(
    reference: str, candidate: str, data: str, error: LikewiseError, options: dict[str, Any]
) -> StressResult:
    """The result of a search whose worker died."""
    searching = ("budget", "calls", "widen")
    given = {name: value for name, value in options.items() if name not in searching}
    tolerance = _settings(reference, candidate, data, given).policy().tolerance
    return inconclusive(
        StressResult(Outcome.INCONCLUSIVE, "", reference, candidate, data, tolerance.absolute, tolerance.relative),
        error,
    )


def _searched(
    search: Any, began: float, budget: float, calls: int | None, progress: Callable[[Progress], None] | None
) -> Any:
    """Let the moves work, and leave time and calls for making the worst input small."""
    from likewise.tasks.stress import search as searching_

    def tell(worst: float) -> None:
        if progress is not None:
            known = f", worst {worst:.4g}× the tolerance" if math.isfinite(worst) else ""
            progress(Progress(f"searching{known}", done=search.tried))

    left = budget - (time.monotonic() - began)
    search.ended = searching_.deadline(0.85 * left, None if calls is None else calls - _reserve(calls), search.meter)
    facts = searching_.run(search, extensions("tasks.stress.moves"), tell=tell)
    left = budget - (time.monotonic() - began)
    most = None if calls is None else max(1, calls - LAST)
    search.ended = searching_.deadline(max(left, 0.1 * budget), most, search.meter)
    return facts


def _reserve(calls: int) -> int:
    """Calls for making the worst input small, and for measuring what is told."""
    return min(64, max(calls // 5, 12), calls // 3) + LAST


def _settings(reference: Any, candidate: Any, data: Any, options: dict[str, Any]) -> Settings:
    known = (*POLICY, *DATA, *MODELS)
    for name in options:
        if name not in known:
            raise UsageError(f"there is no option {name!r}{nearest(name, known)}")
    return settings_from({"reference": reference, "candidate": candidate, "data": data, **options}, where="the search")


def _sensible(budget: float, calls: int | None, widen: float) -> None:
    if not 0 < budget < math.inf:
        raise UsageError(f"--budget is {budget:g}", remedy="Give seconds above zero, such as 60s")
    if calls is not None and calls < 1:
        raise UsageError(f"--calls is {calls}", remedy="Give a number above zero, such as 200")
    if not 0 <= widen < math.inf:
        raise UsageError(f"--widen is {widen}", remedy="Give a share of the range, such as 10%")


def _plan(settings: Settings) -> Plan:
    policy = settings.policy()
    models = {}
    for side in ("reference", "candidate"):
        given = {**getattr(settings, f"{side}_options"), "trusted": settings.trusted}
        try:
            models[side] = describe_model(getattr(settings, side), given, batch_axis=settings.batch_axis)
        except LikewiseError as error:
            error.side = side
            raise
        _require_asking(models[side], side)
    source = selection.select(
        open_source(settings.data),
        samples=settings.samples,
        sample=settings.sample,
        seed=settings.seed,
        drop=settings.drop,
        row_id=settings.id,
    )
    return Plan(
        reference=models["reference"],
        candidate=models["candidate"],
        source=source,
        tolerance=policy.tolerance,
        nan_equal=policy.nan_equal,
        batch_size=settings.batch_size,
        pair=settings.pair,
        feed=settings.feed,
        ignore=settings.ignore,
    )


def _require_asking(model: Model, side: str) -> None:
    if model.framework == "recorded":
        raise ModelError(
            f"the {side} ({model.name}) holds recorded answers, which say nothing about other rows",
            remedy="Give the model itself",
            side=side,
        )


def _name(target: Any) -> str:
    return target if isinstance(target, str) else type(target).__name__
