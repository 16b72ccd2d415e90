"""The candidate under several runtime settings: opened again with each, and compared with the same answers.

The reference is asked once, about a bounded number of the first rows. A setting that this machine does not
have is listed as not covered; it keeps a verdict from passing only where no setting at all could be tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from likewise.compare import feed as feeding
from likewise.compare.call import answers, incident
from likewise.compare.observe import CANDIDATE, Partial, Prepared, finish_beside, needed_to_judge_again, observe
from likewise.contracts.comparison import Comparison, Mismatch, Plan, SuiteFacts
from likewise.contracts.data import Batch, Tensors
from likewise.contracts.models import Model, Runner
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Outcome, Severity, Verdict
from likewise.errors import LikewiseError, RowCountError, UnavailableError, UsageError
from likewise.registry import adapter, open_model

KIND = "setting"
DIVERGES = "setting-diverges"
MOST = 64
"""Settings that are tried in one run: each opens the candidate once more."""

_FORM = "Give options of the candidate's adapter with their values, such as optimization=disable,all threads=1,2"

ROWS = 4_096
CHUNK = 1_024
BYTES = 64 * 2**20
"""Every setting is tried on at most so many rows, of at most so many bytes with their answers."""


def axes_from(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The options and their values that `optimization=disable,all threads=1,2` names, in one text or several."""
    axes: dict[str, tuple[str, ...]] = {}
    for word in " ".join(texts).split():
        name, sign, values = word.partition("=")
        found = tuple(value for value in values.split(",") if value)
        if not sign or not name or not found:
            raise UsageError(f"--matrix: {word!r} is not of the form NAME=VALUE,VALUE", remedy=_FORM)
        axes[name] = (*axes.get(name, ()), *found)
    if texts and not axes:
        raise UsageError("--matrix names no setting", remedy=_FORM)
    return axes


def settings_of(matrix: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Every combination of the values, the last option changing fastest."""
    axes = {str(name): _values(name, values) for name, values in matrix.items()}
    count = prod(len(values) for values in axes.values())
    if count > MOST:
        raise UsageError(f"--matrix asks for {count:,} settings, and at most {MOST} are tried", remedy="Name fewer")
    if not axes:
        return ()
    return tuple(dict(zip(axes, chosen, strict=True)) for chosen in product(*axes.values()))


def name_of(setting: Mapping[str, Any]) -> str:
    """What a setting is called: `optimization=basic, threads=2`."""
    return ", ".join(f"{name}={value}" for name, value in setting.items())


def assigned_in(name: str) -> dict[str, str]:
    """The options of a setting with their values, from what it is called."""
    found = {}
    for part in name.split(", "):
        option, _, value = part.partition("=")
        found[option] = value
    return found


def _values(name: object, given: Any) -> tuple[Any, ...]:
    """The values of one option, each once, in the order given."""
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    plain = all(isinstance(value, str | int | float) for value in values)
    if not values or not plain or not str(name) or any(", " in str(value) for value in values):
        raise UsageError(f"matrix: {name} has the values {given!r}", remedy=_FORM)
    return tuple(dict.fromkeys(values))


@dataclass(frozen=True, slots=True)
class _Asked:
    """Rows and what the reference answers to them."""

    batch: Batch
    reference: Tensors


def require_possible(candidate: Model, matrix: Mapping[str, Any]) -> None:
    """Refuse a matrix that makes no sense before anything is run: what only an open model can tell comes later."""
    settings = settings_of(matrix)
    if not settings:
        return
    found = adapter(candidate.framework)
    if found.answers_only:
        raise UsageError(
            f"{candidate.name} holds recorded answers, which have no runtime settings",
            remedy="Leave out --matrix, or give the model",
        )
    for setting in settings:
        found.require_options(_set(candidate, setting))


def run(plan: Plan, prepared: Prepared, matrix: Mapping[str, Any]) -> tuple[SuiteFacts, ...]:
    """The candidate under every combination of the settings, against the reference's answers."""
    settings = settings_of(matrix)
    if not settings:
        return ()
    try:
        asked: Sequence[_Asked] | LikewiseError = _ask_reference(plan, prepared)
    except LikewiseError as error:
        asked = error
    facts = tuple(_facts(plan, prepared, setting, asked) for setting in settings)
    if all(fact.not_covered for fact in facts):
        return tuple(replace(fact, blocks=True) for fact in facts)
    return facts


def to_explain(plan: Plan, comparison: Comparison, verdict: Verdict) -> tuple[Plan, Comparison]:
    """What an investigation is to look at: where nothing but settings differ, the first of them that does."""
    decisive = [f for f in verdict.findings if f.severity in (Severity.FAILURE, Severity.INCONCLUSIVE)]
    failed = [
        facts
        for facts, told in zip(comparison.suites, verdict.suites, strict=True)
        if told.kind == KIND and told.outcome is Outcome.FAIL
    ]
    if not failed or any(finding.code != DIVERGES for finding in decisive):
        return plan, comparison
    return replace(plan, candidate=_set(plan.candidate, assigned_in(failed[0].name))), failed[0].comparison


def _set(model: Model, setting: Mapping[str, Any]) -> Model:
    return replace(model, options={**model.options, **setting})


def _ask_reference(plan: Plan, prepared: Prepared) -> list[_Asked]:
    width = prepared.row_bytes
    step = prepared.candidate.fixed_batch or plan.batch_size or 1
    size = step * max(1, min(CHUNK, BYTES // (8 * width)) // step)
    found: list[_Asked] = []
    rows = held = 0
    for batch in plan.source.batches(size):
        part = batch.slice(0, min(len(batch), ROWS - rows)) if batch.stacked else batch
        reference, _ = answers(prepared.reference, part, plan.batch_size)
        found.append(_Asked(part, reference))
        rows += len(part)
        held += len(part) * width + sum(array.nbytes for array in reference.values())
        if rows >= ROWS or held >= BYTES:
            break
    return found


def _facts(
    plan: Plan, prepared: Prepared, setting: Mapping[str, Any], asked: Sequence[_Asked] | LikewiseError
) -> SuiteFacts:
    name = name_of(setting)
    title = "The candidate opened with these settings, on the first rows of the data"
    if isinstance(asked, LikewiseError):
        return SuiteFacts(KIND, name, title, replace(plan.nothing, incidents=(incident(asked),)), blocks=True)
    model = _set(plan.candidate, setting)
    try:
        with open_model(model) as runner:
            comparison = _compared(plan, prepared, runner, asked, name)
    except UsageError:
        raise
    except UnavailableError as error:
        return SuiteFacts(KIND, name, title, plan.nothing, not_covered=error.message)
    except RowCountError as error:
        comparison = replace(plan.nothing, mismatches=(Mismatch(error.code, error.message),))
    except LikewiseError as error:
        comparison = replace(plan.nothing, incidents=(incident(error),))
    return SuiteFacts(KIND, name, title, comparison, blocks=True)


def _compared(plan: Plan, prepared: Prepared, runner: Runner, asked: Sequence[_Asked], name: str) -> Comparison:
    order = prepared.reference.feed.columns if prepared.reference.runner.signature.table else None
    feed = feeding.plan(asked[0].batch, runner.signature, side=CANDIDATE, order=order, mapping=plan.feed)
    feed = replace(feed, as_it_is=prepared.candidate.feed.as_it_is)
    there = replace(prepared, candidate=replace(prepared.candidate, runner=runner, feed=feed))
    partial = Partial()
    for part in asked:
        plan.tell(f"trying {name}", CANDIDATE, part.batch)
        candidate, _ = answers(there.candidate, part.batch, plan.batch_size)
        partial = partial.merge(observe(there, part.batch, part.reference, candidate))
    comparison = finish_beside(there, partial, plan)
    outputs = tuple(replace(fact, details=needed_to_judge_again(fact)) for fact in comparison.outputs)
    return replace(comparison, outputs=outputs, strata=())
