"""One gate from end to end: open both models, run the data, try the variations, judge, explain."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import field, fields, replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.compare import variations
from likewise.compare.call import Side, SingleAnswerError, answers, open_side
from likewise.compare.engines import Engine, Run, Session
from likewise.compare.variations import batches, lengths
from likewise.contracts.comparison import (
    Checkpoint,
    Comparison,
    Incident,
    Plan,
    Progress,
    RunFacts,
    SuiteFacts,
    Untried,
)
from likewise.contracts.data import Source
from likewise.contracts.models import Model
from likewise.contracts.report import Explanation, Report
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Policy
from likewise.data import selection
from likewise.data.files import require_writable
from likewise.data.readers import rebatched
from likewise.data.readers.arrays import ArraySource, laid_along
from likewise.data.readers.generated import GeneratedSource, NamedOnly
from likewise.data.selection import Stratified
from likewise.errors import DataError, LikewiseError, UsageError, one_line
from likewise.judge import verdict as judging
from likewise.models.arrays import RowAxes
from likewise.models.confinement import in_force, tell
from likewise.registry import describe_model, each, open_source
from likewise.report import provenance, save
from likewise.report.formats.json import loads
from likewise.tasks.amounts import bytes_of, seconds_or_times
from likewise.tasks.checkpoints import Kept, going_on
from likewise.tasks.isolation import live
from likewise.tasks.isolation.messages import EDGE, EXPLAINING, SHAPES
from likewise.tasks.isolation.supervisor import CrashError, job_of, narrowed, supervise, told_in
from likewise.tasks.judge import held_to_baseline
from likewise.tasks.lineage import of_other_data, stale, versions, written_meanwhile
from likewise.tasks.settings import KNOWN, Settings, plain_values, require_known, stated, with_formats, with_places

if TYPE_CHECKING:
    from likewise.explain.driver import Investigation

WHOLE_ROWS = 65_536
"""Rows that are asked in one call where a model gives no answer a row."""

FULL_BUDGET = 120.0
"""Seconds that an investigation may take when it is asked for."""

NARROWING = 30.0
"""Seconds in which the rows that a model crashes on are looked for."""

Follower = Callable[[Progress], None]


def check(
    reference: Any, candidate: Any, data: Any, *, isolate: bool = False, resume: bool = False, **options: Any
) -> Report:
    """Run both models on the same rows and judge the differences.

    `reference` and `candidate` are paths, `module:attribute`, or live objects; `data` is a path, a glob, a folder, a
    DataFrame, an array or a dict of arrays. Options are those of the command line with underscores: `preset`,
    `abs_tol`, `rel_tol`, `mean_tol`, `limits`, `samples`, `drop`, `id`, `pair`, `trusted` and so on; `report`, `html`,
    `junit`, `markdown`, `sarif` name files to write. A report is true if it is a PASS.
    With `isolate` the models run as on the command line, in a process of their own behind walls: one that crashes,
    hangs (`timeout` in seconds) or runs out of memory is INCONCLUSIVE. With `resume` a run keeps what it has reached
    beside its `report`, and goes on from what one that was killed had. Only a question that makes no sense raises.
    """
    chosen = settings_of(reference, candidate, data, **options)
    if chosen.timeout and not isolate:
        raise UsageError(
            "a timeout cannot be enforced here: nothing can end a call of a model in your own process",
            remedy="Say isolate=True: then there is a process for the models, as in `likewise check`",
        )
    require_writable((chosen.report, *chosen.formats.values()))
    from likewise.report import notebook

    with notebook.following() as progress, going_on(chosen) if resume else nullcontext() as kept:
        report = (
            _isolated(chosen, progress, kept) if isolate else investigate(chosen, progress=progress, checkpoint=kept)[0]
        )
    for format, path in (("json", chosen.report), *chosen.formats.items()):
        if path:
            try:
                save(report, path, format)
            except (DataError, OSError) as error:
                # The verdict took long to get: it is not lost with its file.
                warnings.warn(f"the report was not written to {path}: {one_line(error)}", stacklevel=2)
    return report


def settings_of(reference: Any, candidate: Any, data: Any, **options: Any) -> Settings:
    """One gate from the options of a call; a usage error for a name that is no option."""
    given = with_places({**with_formats(options), "reference": reference, "candidate": candidate, "data": data})
    require_known(given, KNOWN)
    return Settings(**plain_values(given))


def explain(reference: Any, candidate: Any, data: Any, **options: Any) -> Report:
    """`check`, and on anything but a PASS a full investigation: `report.diagnoses` has the causes, the best first.

    Options are those of `check`; `explain_budget` is in seconds, `causes` names the only ones to look for.
    """
    return check(reference, candidate, data, **{"explain_budget": FULL_BUDGET, **options, "explain": True})


def investigate(
    settings: Settings,
    *,
    progress: Follower | None = None,
    judged: Callable[[Report, str], None] | None = None,
    apart: bool = False,
    checkpoint: Checkpoint | None = None,
) -> tuple[Report, Investigation | None]:
    """Carry out one gate; also what was found where a cause was looked for: models are closed, rows and answers kept.

    `judged` is told the verdict, and what follows, before anything that cannot change it is tried: edge
    suites that do not block, and the search for causes. `apart` allows a process of its own for the reference.
    """
    gate = _Gate(settings, settings.policy(), judged, checkpoint)
    opened: tuple[Plan, Session] | None = None
    with ExitStack() as stack:
        try:
            reference, candidate = gate.describe_models()
            alone = apart and settings.workers == 1 and settings.engine == "local"
            session = stack.enter_context(Session(reference, candidate, apart=alone, progress=progress))
            plan = gate.plan(session, progress)
            opened = plan, session
            engine = _engine("processes" if settings.workers > 1 and settings.engine == "local" else settings.engine)
            ran = engine.run(plan, session)
            if gate.answers_no_rows(ran):
                plan = gate.plan(session, progress, rowless=True)
                opened = plan, session
                ran = engine.run(plan, session)
            ran = gate.vary(plan, ran)
        except UsageError:
            raise
        except LikewiseError as error:
            ran = Run(_nothing_compared(gate.policy, error))
        report = gate.report(ran.comparison, ran.facts)
        if opened is None or report.passed or not settings.explain or judging.nothing_to_explain(report):
            return report, None
        try:
            return gate.explain(report, *opened, ran)
        except Exception as error:  # noqa: BLE001 - what breaks an explanation changes no verdict
            return cut_short(report, EXPLAINING, f"the explanation broke, {one_line(error)}"), None


def ask_again(
    settings: Settings, side: str, first: int, last: int, size: int, *, progress: Callable[[Progress], None]
) -> None:
    """Ask one model alone about the rows from `first` to `last`, `size` at a time: some of them took a worker along."""
    gate = _Gate(settings, settings.policy())
    reference, candidate = gate.describe_models()
    with Session(reference, candidate) as session, ExitStack() as stack:
        opened: Side | None = None
        for batch in _source(settings, session, rowless=False).batches(WHOLE_ROWS):
            numbers = batch.rows.numbers
            for part in rebatched([batch.at(np.flatnonzero((numbers >= first) & (numbers <= last)))], size):
                told = part.rows.numbers
                progress(Progress("asking again", side, int(told[0]), int(told[-1])))
                if opened is None:
                    # These rows are asked about as it is opened, to see what it takes.
                    opened = stack.enter_context(open_side(side, session.models[side], part, settings.feed))
                answers(opened, part)
            if len(numbers) and numbers[-1] >= last:
                return


def _isolated(settings: Settings, progress: Follower | None, kept: Kept | None) -> Report:
    """One gate in a worker; whatever happens to it, there is a report."""
    settings.policy()
    names = [entry.name for entry in fields(Progress)]
    followed = None if progress is None else lambda told: progress(Progress(**{name: told[name] for name in names}))
    before = in_force()
    try:
        with live.sent({**job_of(settings), **(kept.told() if kept else {})}) as job:
            try:
                found = supervise(job, timeout=settings.timeout, on_progress=followed)
                if kept:
                    kept.said = told_in(found, "said")
                return loads(told_in(found, "json"), name="the worker's report")
            except UsageError:
                raise
            except LikewiseError as error:
                return without_worker(settings, error, job)
    finally:
        tell(before)


def without_worker(
    settings: Settings, error: LikewiseError, job: Mapping[str, Any], supervised: Callable[..., Any] = supervise
) -> Report:
    """The report of a gate whose worker died: inconclusive, or the verdict it had reached before it went further."""
    if not isinstance(error, CrashError) or error.judged is None:
        if isinstance(error, CrashError) and error.rows is not None and settings.explain:
            seconds = min(settings.explain_budget, NARROWING)
            error.message += narrowed(
                job, error.side or "candidate", *error.rows, seconds=seconds, supervised=supervised
            )
        return could_not_run(settings, error)
    with suppress(DataError):
        return cut_short(loads(error.judged[0], name="the worker's report"), error.judged[1], error.message)
    return could_not_run(settings, error)


def could_not_run(settings: Settings, error: LikewiseError) -> Report:
    """The report of a gate whose worker died: inconclusive, with what is known."""
    gate = _Gate(settings, settings.policy())
    return gate.report(_nothing_compared(gate.policy, error), RunFacts())


def cut_short(report: Report, doing: str, message: str) -> Report:
    """A report whose worker died at what comes after the data: other lengths decide with it, the rest does not."""
    if doing == EXPLAINING:
        return replace(report, explanation=Explanation(not_tested=(f"explaining was cut short: {message}",)))
    kind, title = ("shape", "Rows at other lengths") if doing == SHAPES else ("edge", "Inputs made to find trouble")
    nothing = Comparison(tolerance=report.comparison.tolerance)
    lost = SuiteFacts(kind, doing, title, nothing, doing == SHAPES, not_covered=f"cut short: {message}")
    comparison = replace(report.comparison, suites=(*report.comparison.suites, lost))
    return held_to_baseline(replace(report, comparison=comparison, verdict=judging.judge(comparison, report.policy)))


@dataclass(slots=True)
class _Gate:
    """What is known of one gate as it is carried out, and its report at any moment."""

    settings: Settings
    policy: Policy
    judged: Callable[[Report, str], None] | None = None
    checkpoint: Checkpoint | None = None
    models: dict[str, Model] = field(default_factory=dict)
    source: selection.Selection | None = None
    hashing: threading.Thread | None = None
    versions: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def describe_models(self) -> tuple[Model, Model]:
        """Both models, not open yet; a usage error for settings and suites that there are not."""
        settings = self.settings
        self.versions |= versions(settings)
        self.models |= {side: model_of(settings, side) for side in ("reference", "candidate")}
        # Variations are imported where used: most gates have no matrix, and a gate starts no faster than its imports.
        if settings.matrix:
            from likewise.compare.variations import settings as runtime_settings

            runtime_settings.require_possible(self.models["candidate"], settings.matrix)
        if settings.skip_suites:
            from likewise.compare.variations import edge

            edge.require_known(settings.skip_suites)
        return self.models["reference"], self.models["candidate"]

    def answers_no_rows(self, ran: Run) -> bool:
        """Does the reference give one number for all rows of arrays that nobody asked us to cut, as a loss is?"""
        settings = self.settings
        refused = any(incident.code == SingleAnswerError.code for incident in ran.comparison.incidents)
        whole = settings.batch_axis is None and settings.batch_size is None and settings.samples is None
        inner = self.source.source if self.source is not None else None
        return refused and whole and not settings.id and isinstance(inner, ArraySource) and inner.stop <= WHOLE_ROWS

    def plan(self, session: Session, progress: Follower | None, *, rowless: bool = False) -> Plan:
        """What an engine is to do; the files are hashed meanwhile. `rowless`: all of it is asked in one call."""
        settings = self.settings
        self.source = _source(settings, session, rowless=rowless)
        self.hashing = threading.Thread(
            target=provenance.hash_ahead, args=(self.source, settings.reference, settings.candidate), daemon=True
        )
        self.hashing.start()
        return Plan(
            reference=self.models["reference"],
            candidate=self.models["candidate"],
            source=self.source,
            tolerance=self.policy.tolerance,
            nan_equal=self.policy.nan_equal,
            batch_size=settings.batch_size,
            batch_sizes=() if settings.fixed_batch else settings.batch_sizes,
            shapes=settings.shapes,
            pair=settings.pair,
            feed=settings.feed,
            ignore=settings.ignore,
            stratify=settings.stratify,
            expected_rows=self.source.expected_rows,
            progress=progress,
            decided=partial(judging.decided, policy=self.policy) if settings.fail_fast else None,
            workers=settings.workers,
            address=settings.address,
            checkpoint=self.checkpoint,
        )

    def vary(self, plan: Plan, ran: Run) -> Run:
        """What is tried beside the data: first all that can change the verdict, then the rest."""
        began = time.perf_counter()
        compared = ran.comparison
        room = None
        wanted = ran.prepared is not None and not compared.stopped
        if wanted and ran.prepared is not None and ran.head is not None and not compared.incidents:
            if not self.settings.thorough:
                least, times = seconds_or_times(self.settings.beside_budget)
                told = self.settings.edge == "report"
                room = variations.room(plan, ran, seconds=least, multiple=times, edge=told)
            if plan.batch_sizes != ():
                part = None if plan.batch_sizes else variations.left(room, variations.BATCHES, plan, compared)
                once = variations.covered(ran)
                compared = batches.run(plan, ran.prepared, ran.head, compared, room=part, covered=once)
            compared = batches.ask_again(plan, ran.prepared, ran.head, compared)
        if wanted and not compared.incidents:
            compared = self._with_suites(plan, ran, compared, room)
        seconds = dict(ran.facts.seconds)
        if "total" in seconds:
            seconds["total"] += time.perf_counter() - began
        return replace(
            ran, comparison=self._with_lineage(compared, ran.facts), facts=replace(ran.facts, seconds=seconds)
        )

    def _with_suites(self, plan: Plan, ran: Run, compared: Comparison, room: int | None) -> Comparison:
        settings, prepared, head = self.settings, ran.prepared, ran.head
        assert prepared is not None
        if settings.matrix:
            from likewise.compare.variations import settings as runtime_settings

            compared = _joined(compared, runtime_settings.run(plan, prepared, settings.matrix))
        if plan.shapes:
            compared = _joined(compared, *lengths.run(plan, prepared, head))
        if settings.edge in ("fail", "strict"):
            compared = _joined(compared, *self._edge(plan, ran, blocks=True))
        if lengths.applies(plan, prepared, head):
            self._tell(compared, ran.facts, SHAPES)
            part = variations.left(room, variations.LENGTHS, plan, compared)
            compared = _joined(compared, *lengths.run(plan, prepared, head, room=part))
        if settings.edge == "report":
            self._tell(compared, ran.facts, EDGE)
            part = variations.left(room, variations.EDGE, plan, compared)
            compared = _joined(compared, *self._edge(plan, ran, blocks=False, room=part))
        return compared

    def _edge(
        self, plan: Plan, ran: Run, *, blocks: bool, room: int | None = None
    ) -> tuple[tuple[SuiteFacts, ...], tuple[Untried, ...]]:
        from likewise.compare.variations import edge

        assert ran.prepared is not None
        skipped, seed, strict = self.settings.skip_suites, self.settings.seed, self.settings.edge == "strict"
        rows, tried = ran.comparison.rows, (plan, ran.prepared, ran.head)
        return edge.run(*tried, blocks=blocks, strict=strict, rows=rows, skipped=skipped, seed=seed, room=room)

    def _tell(self, compared: Comparison, facts: RunFacts, following: str) -> None:
        if self.judged is not None:
            self.judged(self.report(self._with_lineage(compared, facts), facts), following)

    def report(self, comparison: Comparison, facts: RunFacts) -> Report:
        """The facts judged, with where they come from."""
        inner: Any = self.source
        while isinstance(inner, selection.Selection | Stratified):
            inner = inner.source
        if isinstance(inner, GeneratedSource):
            comparison = replace(comparison, generated=inner.described)
        if comparison.rows:
            comparison = _with_sameness(comparison, self.settings, facts)
        verdict = judging.judge(comparison, self.policy)
        settings = self.settings
        targets = {"reference": settings.reference, "candidate": settings.candidate, "data": settings.data}
        origin = provenance.origin(targets, stated(settings), facts, self.models, self.source)
        return held_to_baseline(Report(comparison, self.policy, verdict, origin))

    def explain(self, report: Report, plan: Plan, session: Session, ran: Run) -> tuple[Report, Investigation]:
        """The report with the causes of what it found, by experiments with the models that are open."""
        if self.judged is not None:
            self.judged(report, EXPLAINING)
        from likewise.compare.variations import settings as runtime_settings
        from likewise.explain import driver

        began = time.perf_counter()
        verdict, rows = report.verdict, ran
        with ExitStack() as stack:
            plan, compared = runtime_settings.to_explain(plan, report.comparison, verdict)
            if compared is not report.comparison:
                session = stack.enter_context(session.beside(plan.candidate))
                verdict, rows = judging.judge(compared, self.policy), Run(compared)
            settings = self.settings
            asked = (plan, session, rows, compared, self.policy, verdict)
            stack.enter_context(warnings.catch_warnings())
            # What models say about changes that only experiments make is no news to anybody, and no reason to stop.
            warnings.simplefilter("ignore")
            found = driver.explain(*asked, settings.explain_budget, bytes_of(settings.memory), causes=settings.causes)
        seconds = {**report.origin.run["seconds"], "explaining": round(time.perf_counter() - began, 3)}
        origin = replace(report.origin, run={**report.origin.run, "seconds": seconds})
        return replace(report, diagnoses=found.diagnoses, explanation=found.explanation, origin=origin), found

    def _with_lineage(self, comparison: Comparison, facts: RunFacts) -> Comparison:
        """Doubts that the candidate was made from the reference, or that answers were recorded for this data."""
        assert self.hashing is not None
        assert self.source is not None
        self.hashing.join()
        lineage = stale(self.settings.reference, self.models["reference"], facts)
        doubts = (written_meanwhile(self.versions, self.settings), of_other_data(self.source, facts))
        incidents = (*(doubt for doubt in doubts if doubt is not None), *comparison.incidents)
        return replace(comparison, lineage=lineage, incidents=incidents)


def _with_sameness(comparison: Comparison, settings: Settings, facts: RunFacts) -> Comparison:
    """Is one model compared with itself? Under other options or settings that is a question like any other."""
    reference, candidate = settings.reference, settings.candidate
    if settings.matrix or dict(settings.reference_options) != dict(settings.candidate_options):
        return comparison
    named = isinstance(reference, str | PathLike) and isinstance(candidate, str | PathLike)
    same = reference is candidate or (named and os.path.realpath(reference) == os.path.realpath(candidate))
    hashes = {provenance.sha256_of(target) for target in (reference, candidate)}
    attributes = named and (":" in str(reference) or ":" in str(candidate))
    bytes_alike = len(hashes) == 1 and None not in hashes and not attributes
    sides = ((reference, "reference"), (candidate, "candidate"))
    weights = [[*provenance.weights_beside(target, facts.details.get(side)).values()] for target, side in sides]
    bytes_alike = bytes_alike and weights[0] == weights[1]
    return replace(comparison, same_model=same, same_bytes=bytes_alike and not same)


def _joined(compared: Comparison, suites: tuple[SuiteFacts, ...], untried: tuple[Untried, ...] = ()) -> Comparison:
    """The facts with those of suites, and with what was left out of them."""
    return replace(compared, suites=(*compared.suites, *suites), untried=(*compared.untried, *untried))


def _nothing_compared(policy: Policy, error: LikewiseError) -> Comparison:
    incident = Incident(error.code, error.message, error.remedy, error.side)
    return Comparison(tolerance=policy.tolerance, incidents=(incident,))


def model_of(settings: Settings, side: str) -> Model:
    """The model of one side of a gate, not open yet."""
    options = {**getattr(settings, f"{side}_options"), "trusted": settings.trusted}
    return describe_model(getattr(settings, side), options, batch_axis=settings.batch_axis, side=side)


def _source(settings: Settings, session: Session, *, rowless: bool) -> selection.Selection:
    said = RowAxes.parse(settings.batch_axis)
    found = open_source(settings.data)
    if settings.where is not None:
        from likewise.data.readers.tables import filtered  # most rows are no table, or all of it

        found = filtered(found, settings.where)
    found = laid_along(found, said.named, rowless=rowless or said.rowless)
    if isinstance(found, NamedOnly) and all(session.here(side).signature.inputs == () for side in session.models):
        found = open_source({})
    elif isinstance(found, NamedOnly):
        from likewise.compare.variations import generated

        planned = generated.planned_for(session.models, feed=settings.feed, opened=session.here)
        found = planned.source(asked=found.asked or settings.samples, seed=settings.seed)
    return selected(found, settings)


def selected(source: Source, settings: Settings) -> selection.Selection:
    """The rows and columns of a source that a gate asks for."""
    names = ("samples", "sample", "seed", "drop", "id", "stratify", "time")
    return selection.select(source, **{name: getattr(settings, name) for name in names})


def _engine(name: str) -> Engine:
    engines: Iterator[Engine] = each("compare.engines", first=name)
    return next(engine for engine in engines if engine.name == name)
