"""The composition root: the only module that knows every layer."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from likewise.compare.variations.batches import DEFAULT_SIZES
from likewise.contracts.comparison import Comparison, Engine, Incident, Plan, Progress, RunFacts
from likewise.contracts.data import Source
from likewise.contracts.models import Model
from likewise.contracts.report import Explanation, Renderer, Report
from likewise.contracts.verdict import Policy
from likewise.data import selection as selecting
from likewise.data.readers.generated import GeneratedSource, NamedOnly
from likewise.data.selection import Stratified
from likewise.errors import DataError, LikewiseError, UsageError, nearest
from likewise.judge import baseline
from likewise.judge import verdict as judging
from likewise.judge.policy import make_policy
from likewise.registry import adapter, describe_model, extensions, open_source
from likewise.report import provenance
from likewise.report.formats import json as json_report
from likewise.tasks import beside
from likewise.tasks.settings import Settings, require_baseline, stated

MADE_FROM, QUANTIZED_FROM = "likewise.reference_sha256", "likewise.quantized_from"
"""Where an ONNX file says, by SHA-256, which file it was made from."""


EDGE, EXPLAINING = beside.EDGE, "explaining"
"""What may follow a verdict that is known, beside `beside.SHAPES`."""

FULL_BUDGET = 120.0
"""Seconds that an investigation may take when it is asked for."""


def check(reference: Any, candidate: Any, data: Any, **options: Any) -> Report:
    """Run both models on the same rows and judge the differences.

    `reference` and `candidate` are paths, `module:attribute`, or live objects; `data` is a path, a
    glob, a folder, a DataFrame, an array or a dict of arrays. Options are those of the command line
    with underscores: `preset`, `abs_tol`, `rel_tol`, `mean_tol`, `limits`, `samples`, `drop`, `id`,
    `pair`, `batch_size`, `batch_axis`, `trusted` and so on. The report is true when the verdict is PASS.
    What could not be compared gives an INCONCLUSIVE report; only a question that makes no sense raises.
    """
    chosen = settings_of(reference, candidate, data, **options)
    from likewise.report import notebook

    with notebook.following() as progress:
        report = run(chosen, progress=progress)
    if chosen.report:
        save(report, Path(chosen.report))
    return report


def settings_of(reference: Any, candidate: Any, data: Any, **options: Any) -> Settings:
    """One gate from the options of a call; a usage error for a name that is no option."""
    known = [entry.name for entry in fields(Settings)]
    for name in options:
        if name not in known:
            raise UsageError(f"there is no option {name!r}{nearest(name, known)}")
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    return Settings(reference=reference, candidate=candidate, data=data, **options)


def explain(reference: Any, candidate: Any, data: Any, **options: Any) -> Report:
    """`check`, and on anything but a PASS a full investigation: `report.diagnoses` has the causes, the best first.

    Options are those of `check`; `explain_budget` is in seconds.
    """
    return check(reference, candidate, data, **{"explain_budget": FULL_BUDGET, **options, "explain": True})


def run(
    settings: Settings,
    *,
    progress: Callable[[Progress], None] | None = None,
    judged: Callable[[Report, str], None] | None = None,
    apart: bool = False,
) -> Report:
    """Carry out one gate.

    `judged` is told the verdict, and what follows, before anything that cannot change it is tried: edge
    suites that do not block, and the search for causes. `apart` allows a process of its own for the reference.
    """
    policy = settings.policy()
    plan: Plan | None = None
    source: selecting.Selection | None = None
    models: dict[str, Model] = {}
    try:
        models["reference"] = _model(settings.reference, settings.reference_options, settings, "reference")
        models["candidate"] = _model(settings.candidate, settings.candidate_options, settings, "candidate")
        beside.require_possible(settings, models["candidate"])
        source = _source(settings, models, progress)
        plan = _plan(settings, policy, models, source, progress)
        hashing = threading.Thread(target=provenance.fingerprint_of, args=(source,), daemon=True)
        hashing.start()

        def tell(comparison: Comparison, following: str) -> None:
            if judged is not None:
                hashing.join()
                judged(_report(settings, policy, comparison, RunFacts(), models, source), following)

        plan = replace(plan, apart=apart, beside=partial(beside.run, settings, tell))
        comparison, facts = _engine("local").run(plan)
        hashing.join()
        comparison = _with_lineage(comparison, source, facts)
        comparison = replace(comparison, lineage=_stale(settings.reference, models["reference"], facts))
    except UsageError:
        raise
    except LikewiseError as error:
        incident = Incident(error.code, error.message, error.remedy, error.side)
        comparison, facts = Comparison(tolerance=policy.tolerance, incidents=(incident,)), RunFacts()
    report = _report(settings, policy, comparison, facts, models, source)
    if plan is None or report.passed or not settings.explain or baseline.alone(report):
        return report
    if judged is not None:
        judged(report, EXPLAINING)
    from likewise.explain import driver

    began = time.perf_counter()
    from likewise.compare.variations import settings as matrixing

    looked_at, measured = matrixing.to_explain(plan, comparison, report.verdict)
    verdict = report.verdict if measured is comparison else judging.judge(measured, policy)
    diagnoses, explanation = driver.explain(looked_at, measured, policy, verdict, budget=settings.explain_budget)
    seconds = {**report.origin.run["seconds"], "explaining": round(time.perf_counter() - began, 3)}
    origin = replace(report.origin, run={**report.origin.run, "seconds": seconds})
    return replace(report, diagnoses=diagnoses, explanation=explanation, origin=origin)


def could_not_run(settings: Settings, error: LikewiseError) -> Report:
    """The report of a gate whose worker died: inconclusive, with what is known."""
    policy = settings.policy()
    incident = Incident(error.code, error.message, error.remedy, error.side)
    comparison = Comparison(tolerance=policy.tolerance, incidents=(incident,))
    return _report(settings, policy, comparison, RunFacts(), {}, None)


def cut_short(report: Report, doing: str, message: str) -> Report:
    """A verdict whose worker died at something that could not change it."""
    if doing == EXPLAINING:
        return replace(report, explanation=Explanation(not_tested=(f"explaining was cut short: {message}",)))
    lost = beside.lost(doing, message, report.comparison)
    comparison = replace(report.comparison, suites=(*report.comparison.suites, lost))
    return _held(replace(report, comparison=comparison, verdict=judging.judge(comparison, report.policy)))


def judge(report: Report, **options: Any) -> Report:
    """Judge a finished run again, without running the models: only what is named changes."""
    before = report.policy
    asked = {name: value for name, value in options.items() if value is not None}
    held = {name: asked.pop(name) for name in ("baseline", "max_worse") if name in asked}
    report = baseline.named(report, **held)
    if held:
        stated = report.origin.settings
        require_baseline(stated.get("baseline"), max_worse=stated.get("max_worse"))
    limits = asked.pop("limits", {})
    if asked.keys() & {"preset", "abs_tol", "rel_tol", "mean_tol"}:
        policy = make_policy(**{**_kept(report, asked), **asked}, limits={**_own_limits(before), **limits})
    else:
        added = make_policy(preset=before.preset, limits=limits, **asked)
        fresh = [limit for limit in added.limits if limit.explicit]
        replaced = {(limit.output, limit.measure) for limit in fresh}
        kept = [limit for limit in before.limits if (limit.output, limit.measure) not in replaced]
        changes = {name: getattr(added, name) for name in asked}
        policy = replace(before, limits=(*kept, *fresh), **changes)
    if policy != before and report.explanation is not None:
        # What explains a failure under some limits need not explain one under others.
        note = "the run was judged again under other limits: `likewise explain` looks for causes under these"
        report = replace(report, diagnoses=(), explanation=Explanation(not_tested=(note,)))
    return _held(replace(report, policy=policy, verdict=judging.judge(report.comparison, policy)))


def _own_limits(policy: Policy) -> dict[str, float]:
    """The limits a user named beside the tolerances."""
    tolerances = {"max_abs_diff", "mismatch_rate", "mean_abs_diff"}
    return {
        limit.text: limit.bound
        for limit in policy.limits
        if limit.explicit and (limit.output is not None or limit.measure not in tolerances)
    }


def _kept(report: Report, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What stays of the policy when a tolerance or the preset changes."""
    before = report.policy
    names = ("preset", "nan_equal", "confidence", "max_failure_rate", "fixed_batch")
    kept: dict[str, Any] = {name: getattr(before, name) for name in names}
    if "preset" in asked:
        return kept
    kept["mean_tol"] = report.mean_tol
    if "abs_tol" not in asked:
        kept["abs_tol"] = before.tolerance.absolute
        kept["rel_tol"] = before.tolerance.relative
    return kept


def record(
    model: Any,
    data: Any,
    output: str | PathLike[str],
    *,
    options: Mapping[str, Any] | None = None,
    trusted: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    **selection: Any,
) -> int:
    """Store a model's answers, for machines that do not have its framework. Returns the number of rows."""
    from likewise.compare.call import Side, answers
    from likewise.compare.feed import plan as plan_feed
    from likewise.compare.pair import observed
    from likewise.models.recorded.store import Writer

    described = describe_model(model, {**(options or {}), "trusted": tuple(trusted)})
    feed = selection.pop("feed", {})
    row_id = selection.get("row_id")
    source = selecting.select(open_source(data), **selection)
    with adapter(described.framework).open(described) as runner:
        first = next(source.batches(1), None)
        if first is None or not first.stacked:
            raise DataError(f"{source.location} holds no rows", remedy="Give a table or arrays to record answers for")
        fed = plan_feed(first, runner.signature, side="reference", mapping=feed)
        side = Side("reference", described.name, runner, fed)
        artefact = provenance.model_artefact(described.target, described, {})
        with Writer(
            Path(output),
            model=artefact.name,
            sha256=artefact.sha256,
            fingerprint=source.fingerprint,
            inputs=fed.columns if fed.columns is not None and runner.signature.table else (),
            keyed_by_name=row_id is not None,
        ) as writer:
            for batch in source.batches(16_384):
                if progress is not None:
                    first_row, last_row = int(batch.rows.numbers[0]), int(batch.rows.numbers[-1])
                    progress(Progress("recording", "reference", first_row, last_row, writer.rows, source.rows))
                tensors, _ = answers(side, batch)
                writer.write(batch.rows, tensors, observed(runner.signature, tensors))
            return writer.rows


def inspect(model: Any, *, trusted: Sequence[str] = (), options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a model says about itself: inputs, outputs, kinds, dtypes, classes, operators, size."""
    described = describe_model(model, {**(options or {}), "trusted": tuple(trusted)})
    with adapter(described.framework).open(described) as runner:
        artefact = provenance.model_artefact(described.target, described, {})
        signature = asdict(runner.signature)
        return {
            "name": artefact.name,
            "framework": described.framework,
            "bytes": artefact.bytes,
            "sha256": artefact.sha256,
            **signature,
            "details": dict(runner.details),
        }


def load(path: str | PathLike[str]) -> Report:
    """A report from its file."""
    try:
        return json_report.loads(Path(path).read_bytes(), name=str(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def render(report: Report, format: str, **options: Any) -> str:
    """The report as text: `json`, `terminal`, or any other file of the folder `reports`."""
    renderers: tuple[Renderer, ...] = extensions("report.formats")
    for renderer in renderers:
        if renderer.format == format:
            return _encodable(renderer.render(report, **options))
    known = [renderer.format for renderer in renderers]
    raise UsageError(f"there is no report format {format!r}{nearest(format, known)}")


def save(report: Report, path: Path) -> None:
    """Write a report so that a crash leaves either the old file or the new one."""
    from likewise.models.recorded.store import atomically

    atomically(path, render(report, "json").encode())


def _encodable(text: str) -> str:
    """Half a character, as in the name of a file that is not UTF-8, would keep the whole text from being written."""
    return text.encode("utf-8", "replace").decode()


def _plan(
    settings: Settings,
    policy: Policy,
    models: Mapping[str, Model],
    source: selecting.Selection,
    progress: Callable[[Progress], None] | None,
) -> Plan:
    sizes = DEFAULT_SIZES if settings.batch_sizes is None else settings.batch_sizes
    return Plan(
        reference=models["reference"],
        candidate=models["candidate"],
        source=source,
        tolerance=policy.tolerance,
        nan_equal=policy.nan_equal,
        batch_size=settings.batch_size,
        batch_sizes=() if settings.fixed_batch else sizes,
        shapes=settings.shapes,
        pair=settings.pair,
        feed=settings.feed,
        ignore=settings.ignore,
        stratify=settings.stratify,
        expected_rows=source.expected_rows,
        progress=progress,
    )


def _model(target: Any, options: Mapping[str, Any], settings: Settings, side: str) -> Model:
    try:
        return describe_model(target, {**options, "trusted": settings.trusted}, batch_axis=settings.batch_axis)
    except LikewiseError as error:
        error.side = side
        raise


def _source(
    settings: Settings, models: Mapping[str, Model], progress: Callable[[Progress], None] | None
) -> selecting.Selection:
    found = open_source(settings.data)
    if isinstance(found, NamedOnly):
        from likewise.compare.variations import generated

        planned = generated.planned_for(models, feed=settings.feed, progress=progress)
        found = planned.source(asked=found.asked or settings.samples, seed=settings.seed)
    return selecting.select(
        found,
        samples=settings.samples,
        sample=settings.sample,
        seed=settings.seed,
        drop=settings.drop,
        row_id=settings.id,
        stratify=settings.stratify,
    )


def _engine(name: str) -> Engine:
    engines: tuple[Engine, ...] = extensions("compare.engines")
    return next(engine for engine in engines if engine.name == name)


def _with_lineage(comparison: Comparison, source: Source, facts: RunFacts) -> Comparison:
    """Answers recorded by row number belong to the very data they were recorded for."""
    for side, details in facts.details.items():
        recorded = details.get("data_fingerprint")
        if recorded is not None and recorded != source.fingerprint:
            incident = Incident(
                "other-data",
                f"the answers of the {side} were recorded for other data than {source.location}",
                "Record them again for this data, or name rows by a column: --id COLUMN",
                side,
            )
            return replace(comparison, incidents=(incident, *comparison.incidents))
    return comparison


def _stale(target: Any, reference: Model, facts: RunFacts) -> tuple[str, ...]:
    """Was the candidate made from another reference than the one it is compared with? Only files can tell."""
    ours, theirs = facts.details.get("reference", {}), facts.details.get("candidate", {}).get("metadata", {})
    quantized = reference.framework == "onnx" and QUANTIZED_FROM in theirs
    made_from = theirs.get(QUANTIZED_FROM if quantized else MADE_FROM)
    if made_from is None:
        return ()
    # Recorded answers stand for the model that gave them, and two exports of one model for each other.
    others = [] if quantized else [ours.get("recorded_sha256"), ours.get("metadata", {}).get(MADE_FROM)]
    known = [sha256 for sha256 in (*others, provenance.sha256_of(target)) if sha256 is not None]
    if not known or made_from in known:
        return ()
    found = f"its file names SHA-256 {made_from[:12]}…, this is {known[0][:12]}…"
    return (f"the candidate was made from another model than {reference.name}: {found}",)


def _report(
    settings: Settings,
    policy: Policy,
    comparison: Comparison,
    facts: RunFacts,
    models: Mapping[str, Model],
    source: Source | None,
) -> Report:
    inner: Any = source
    while isinstance(inner, selecting.Selection | Stratified):
        inner = inner.source
    if isinstance(inner, GeneratedSource):
        comparison = replace(comparison, generated=inner.described)
    verdict = judging.judge(comparison, policy)
    targets = {"reference": settings.reference, "candidate": settings.candidate, "data": settings.data}
    origin = provenance.origin(targets, stated(settings), facts, models, source)
    return _held(Report(comparison, policy, verdict, origin))


def _held(report: Report) -> Report:
    """The report, also judged against the accepted run that its settings name, if they name one."""
    path = report.origin.settings.get("baseline")
    if path is None:
        return report
    try:
        content = Path(path).read_bytes()
        accepted = json_report.loads(content, name=str(path))
    except (OSError, DataError) as error:
        told = error.message if isinstance(error, DataError) else f"{path} cannot be read: {error.strerror}"
        return baseline.undecided(report, told)
    return baseline.held(report, accepted, hashlib.sha256(content).hexdigest())
