"""Why a comparison failed: hypotheses tested by experiment, within a budget, and ranked.

Explaining reads a verdict and never changes it. What could not be tested in time, or at all, is said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from likewise.compare.call import answers
from likewise.compare.engines import Head, Run, Session
from likewise.compare.observe import Prepared, prepare
from likewise.compare.variations.batches import DRIFTS
from likewise.contracts.comparison import Comparison, Incident, Pair, Plan, Progress, Tolerance
from likewise.contracts.data import Batch
from likewise.contracts.report import CAUSES, Diagnosis, Explanation
from likewise.contracts.verdict import AT_LEAST, Outcome, Policy, Verdict
from likewise.data.readers import joined, rebatched
from likewise.errors import LikewiseError, one_line
from likewise.explain import facts, locate, remedies
from likewise.explain.case import (
    MEMORY,
    OUT_OF_TIME,
    UNNAMED,
    Case,
    Explained,
    OutOfTimeError,
    Probe,
    Sample,
    rows_agreeing,
)
from likewise.models.onnx import edits, widen
from likewise.registry import extensions

CHUNK_ROWS = 4_096
FAILING_ROWS, AGREEING_ROWS, FEWEST = 2_048, 6_144, 2
"""At most so many rows are looked at, of each, and fewer of wide answers: experiments copy them many times over."""

OTHERS = 8
"""Further samples without rows that an explanation is held against: failing ones, and as many that agree."""

INPUTS_COUNT = 1 / 8
"""What a row is asked with is not copied so often."""

ASKED, ASKED_ROWS = 1 / 60, 8
"""Of the budget, so much goes to asking both models about all of these rows once, which experiments do many times; but
of that many rows in any case."""

SHARE_FOR_SAMPLE = 0.4
"""Of the budget, at most so much goes to finding rows."""

SHARE_FOR_ONE = 0.4
"""Of the time that is left, at most so much goes to one hypothesis."""

SHARE_FOR_GRAPHS = 0.7
"""The same of what the files point to, where models are slow to ask."""

GRAPH = "wrong-wiring"
"""A cause that only what looks at two graphs finds."""

COSTLY = 0.1
"""Seconds for asking both models about the rows that are looked at, from which on they are slow to ask."""

SHARE_FOR_GRAPH = 0.1
"""Of the budget, so much is kept for what surrounds the culprit, and no more than that is spent on it."""

SETTLED = 0.95
"""If an exactly known culprit explains this share of the failing rows, little is gained by going on for long."""

TIME_AFTER = 5.0
"""Seconds that the other hypotheses have then; or as long as it took to get there."""

ALL = 0.98
"""From this share on an explanation covers everything: a row or two at the limit do not decide which is best."""

SHOWN = 5
"""Diagnoses that are told."""


@dataclass(frozen=True, slots=True)
class Investigation:
    """What was found, as a report tells it, and the case itself with its best explanations, to go on from."""

    diagnoses: tuple[Diagnosis, ...]
    explanation: Explanation
    case: Case
    best: tuple[Explained, ...]


def explain(
    plan: Plan,
    session: Session,
    ran: Run,
    comparison: Comparison,
    policy: Policy,
    verdict: Verdict,
    budget: float,
    memory: int = MEMORY,
    *,
    causes: Collection[str] = (),
) -> Investigation:
    """The causes of a failure, the best explanation first, and what was looked at; all causes, or only those named.

    The models are those of the session, and the rows those that the run has kept, where they are enough.
    """
    case = Case(plan, comparison, verdict, budget, _tolerance(comparison, policy, verdict), memory=memory)
    case.call_rows = None if plan.batch_size else max(ran.facts.batch_size.values(), default=None)
    notes = list(_open(case, session, ran, SHARE_FOR_SAMPLE * budget))
    case.deadline -= SHARE_FOR_GRAPH * budget
    explained, excluded, not_tested = _investigate(case, ran, causes)
    best = _ranked(case, explained)
    case.deadline = min(budget, case.clock.now() + SHARE_FOR_GRAPH * budget)
    # What was seen before the time ran out is worth telling; facts are a matter of milliseconds.
    found = Explanation(
        rows=len(case.sample) if case.sample is not None else 0,
        failing_rows=int(case.sample.failing.sum()) if case.sample is not None else 0,
        complete=case.sample is not None and case.sample.complete,
        excluded=tuple(dict.fromkeys(excluded)),
        not_tested=(*notes, *not_tested),
    )
    if case.sample is not None and case.sample.failing.any():
        found = replace(found, shape=facts.shape(case), slices=facts.slices(case), unusual=facts.unusual(case))
        view, not_shown = locate.around_culprit(case, best[0] if best else None)
        found = replace(found, graph=view, not_tested=(*found.not_tested, *not_shown))
    case.deadline = budget
    told = tuple(remedies.diagnoses(case, [(entry, _share(case, entry)) for entry in _worth_telling(case, best)]))
    return Investigation(told, found, case, tuple(best))


def _tolerance(comparison: Comparison, policy: Policy, verdict: Verdict) -> Tolerance:
    """What makes a row a failing one: the tolerance, or what was broken where no single row is beyond it."""
    if comparison.rows_beyond:
        return comparison.tolerance
    failed = [check for check in verdict.checks if check.outcome is Outcome.FAIL and check.batch_size is None]
    bounds = [check.bound for check in failed if check.measure.endswith("abs_diff")]
    if bounds:
        return Tolerance(min(bounds), 0.0)
    outputs = {check.output for check in failed if check.measure in AT_LEAST or check.measure.endswith("_diff")}
    largest = [
        o.measures["max_abs_diff"] for o in comparison.outputs if o.name in outputs and "max_abs_diff" in o.measures
    ]
    return Tolerance(max(largest) / 2, 0.0) if largest else comparison.tolerance


def _open(case: Case, session: Session, ran: Run, until: float) -> Iterator[str]:
    """Take both models as they are open, and rows with their answers; what could not be done is said."""
    for side in ("reference", "candidate"):
        if side not in session.refused:
            with suppress(LikewiseError):
                case.runners[side] = session.here(side)
        if side in session.refused:
            yield f"nothing that needs the {side}: it cannot be opened{_unless_told(case, session.refused[side])}"
    case.clock.elsewhere = any(runner.native is None for runner in case.runners.values())
    if len(case.runners) < 2:
        return
    try:
        prepared = _prepared(case, ran.prepared)
    except LikewiseError as error:
        yield f"nothing that needs answers{_unless_told(case, error.message)}"
        return
    if isinstance(prepared, Incident):
        yield f"nothing that needs answers{_unless_told(case, prepared.message)}"
        return
    for side in ("reference", "candidate"):
        if case.native(side) is None:
            yield f"nothing that needs the {side}'s own trees, weights or steps: there are only its answers"
    case.reference, case.candidate = prepared.reference, prepared.candidate
    case.specs = tuple(case.as_judged(spec) for spec in prepared.pairing.pairs)
    try:
        case.sample = _collect(case, _at_hand(case, ran, prepared), _most_rows(case, prepared, ran), until)
    except LikewiseError as error:
        yield f"nothing that needs answers{_unless_told(case, error.message)}"


def _unless_told(case: Case, why: str) -> str:
    """The reason at the end of a sentence, unless it is what the report is about."""
    return "" if any(why in incident.message for incident in case.comparison.incidents) else f": {why}"


def _prepared(case: Case, known: Prepared | None) -> Prepared | Incident:
    """How both are fed and paired; outputs that the reference does not name are paired by their order, to look further.

    The verdict stays what it is: only a user can say that the order means something.
    """
    plan, runners = case.plan, case.runners
    if known is None:
        prepared = prepare(plan, runners["reference"], runners["candidate"])
    else:
        # The run may have asked a reference that lives in another process.
        prepared = replace(known, reference=replace(known.reference, runner=runners["reference"]))
    if isinstance(prepared, Incident) or plan.pair or not (prepared.pairing.incidents or prepared.pairing.mismatches):
        return prepared
    first = prepared.first.slice(0, 1)
    ours = list(answers(replace(prepared.reference, outputs=None), first)[0])
    theirs = list(answers(prepared.candidate, first)[0])
    if len(ours) != len(theirs) or not all(UNNAMED.fullmatch(name) for name in ours):
        return prepared
    plan = replace(plan, pair=dict(zip(theirs, ours, strict=True)))
    return prepare(plan, runners["reference"], runners["candidate"])


def _at_hand(case: Case, ran: Run, prepared: Prepared) -> list[Head] | None:
    """The rows that the run has kept, if nothing is gained by reading the data again; else None.

    They are all there are; or the first ones and later ones that fail, as far as failing means what it meant then.
    """
    kept, known = ran.kept, ran.prepared
    if kept is None or known is None or not kept.parts or case.comparison.incidents:
        return None
    if prepared.pairing is not known.pairing:
        return None
    as_measured = case.specs == known.pairing.pairs and case.tolerance == case.comparison.tolerance
    return kept.parts if kept.rows == case.comparison.rows or (kept.full and as_measured) else None


def _batch_tells(comparison: Comparison) -> bool:
    """May answers depend on the rows that are asked together? Experiments ask about the whole sample at once."""
    swept = (*comparison.batch_sizes, *comparison.batch_orders)
    moves = (fact.measures.get(name, 0.0) for facts in swept for fact in facts.outputs for name in DRIFTS)
    return not swept or any(not facts.outputs or facts.reference for facts in swept) or any(moves)


def _most_rows(case: Case, prepared: Prepared, ran: Run) -> tuple[int, int]:
    """How many failing and agreeing rows are looked at."""
    a_row = max(prepared.answer_bytes, int(INPUTS_COUNT * prepared.row_bytes), 1)
    seconds = sum(ran.row_seconds.values())
    in_time = max(ASKED_ROWS, int(ASKED * case.deadline / seconds)) if seconds else FAILING_ROWS + AGREEING_ROWS
    half = max(FEWEST, min(case.held // a_row, in_time) // 2)
    return min(FAILING_ROWS, half), min(AGREEING_ROWS, half)


def _chunks(case: Case, at_hand: list[Head] | None, size: int) -> Iterator[Head]:
    """Rows with the answers of both models; nobody is asked about what is known."""
    if at_hand is not None and not _batch_tells(case.comparison):
        yield from at_hand
        return
    kept = None if at_hand is None else rebatched((head.batch for head in at_hand), size)
    for chunk in kept or case.plan.source.batches(size):
        yield _answered(case, chunk)


def _answered(case: Case, chunk: Batch) -> Head:
    case.require_time()
    ours, _ = answers(case.side("reference"), chunk, case.call_rows)
    case.require_time()
    theirs, _ = answers(case.side("candidate"), chunk, case.call_rows)
    return Head(chunk, ours, theirs)


def _collect(case: Case, at_hand: list[Head] | None, most: tuple[int, int], until: float) -> Sample | None:
    """Failing rows and agreeing ones, both bounded, and the worst rows of the run wherever they are."""
    most_failing, most_agreeing = most
    # In calls of as many rows as in the run: answers may depend on that.
    size = min(CHUNK_ROWS, max(sum(most), case.call_rows or 1))
    parts: list[Head] = []
    failing = agreeing = held = 0
    complete = at_hand is None or sum(len(head.batch) for head in at_hand) == case.comparison.rows
    worst = {int(row["number"]) for output in case.comparison.outputs for row in output.worst_rows}
    # Where so few rows fail that the run has named them all, nothing is gained by looking for more.
    all_named = case.comparison.rows_beyond <= len(worst)
    for chunk in _chunks(case, at_hand, size):
        beyond = ~case.agreeing(chunk.batch, chunk.reference, chunk.candidate)
        if not chunk.batch.stacked:
            fails, complete = bool(beyond.any()), case.comparison.rows == 1
            if fails and not parts:
                parts.append(chunk)
            elif fails or agreeing < OTHERS:
                case.others.append(chunk)
            failing, agreeing = failing + fails, agreeing + (not fails)
            held += sum(map(_bytes, (*chunk.batch.inputs.values(), *chunk.candidate.values())))
            if parts and (failing > OTHERS or held > case.held or case.clock.now() > until):
                break
            continue
        keep = np.flatnonzero(beyond)[: most_failing - failing]
        others = np.flatnonzero(~beyond)[: most_agreeing - agreeing]
        failing, agreeing = failing + len(keep), agreeing + len(others)
        complete = complete and len(keep) + len(others) == len(chunk.batch)
        parts.append(chunk.at(np.sort(np.concatenate([keep, others]))))
        enough = at_hand is None and all_named and agreeing >= most_agreeing
        if failing >= most_failing or case.clock.now() > until or enough:
            complete = False
            break
    if not parts:
        return None
    if parts[0].batch.stacked and (at_hand is None or failing < case.comparison.rows_beyond):
        there = {int(number) for part in parts for number in part.batch.rows.numbers}
        missing = sorted(worst - there)[: sum(most)]
        parts.extend(_rows_by_number(case, missing, [*parts[0].batch.inputs], size, until))
    batch = joined([part.batch for part in parts])
    reference, candidate = (
        {name: np.concatenate([answer[name] for answer in side]) for name in side[0]}
        for side in ([part.reference for part in parts], [part.candidate for part in parts])
    )
    pairs = case.pairs(batch, reference, candidate)
    complete = complete and case.plan.source.rows in (None, len(batch))
    known = tuple(pair for pair in pairs if isinstance(pair, Pair))
    return Sample(batch, reference, candidate, known, ~rows_agreeing(pairs, len(batch)), complete)


def _bytes(value: Any) -> int:
    """What an array takes, or a sequence of them; a value may be missing."""
    return sum(map(_bytes, value)) if isinstance(value, list | tuple) else int(getattr(value, "nbytes", 0))


def _rows_by_number(
    case: Case, numbers: Sequence[int], columns: Sequence[str], size: int, until: float
) -> Iterator[Head]:
    """Single rows from further on in the data, with these columns: read there, and both models asked about them alone.

    The run may have left out columns that neither model takes.
    """
    wanted = np.array(numbers, dtype=np.int64)
    if not len(wanted):
        return
    for chunk in case.plan.source.batches(16 * size):
        positions = np.flatnonzero(np.isin(chunk.rows.numbers, wanted))
        if len(positions):
            found = chunk.at(positions)
            yield _answered(case, replace(found, inputs=found.inputs.select(columns)))
        if not len(chunk) or chunk.rows.numbers[-1] >= wanted[-1] or case.clock.now() > until:
            return


def _investigate(case: Case, ran: Run, causes: Collection[str]) -> tuple[list[Explained], list[str], list[str]]:
    """Test every hypothesis that is worth it."""
    explained: list[Explained] = []
    excluded: list[str] = []
    late: dict[str, list[str]] = {}
    not_tested: list[str] = [f"anything but {', '.join(causes)}: it was not asked for"] if causes else []
    # What takes long comes last: it may be that there is no time for it, and that it is not needed.
    likely, costly = _suspected(case), _is_costly(case, ran)
    hypotheses: list[Probe] = sorted(
        extensions("explain.probes"),
        key=lambda found: _order(found, likely, costly=costly),
    )
    began, end = case.clock.now(), case.deadline
    for hypothesis in hypotheses:
        _tell(case, hypothesis, explained)
        if causes and not set(causes) & set(hypothesis.causes):
            continue
        told = ", ".join(hypothesis.causes)
        if hypothesis.needs_answers and (case.sample is None or not case.sample.failing.any()):
            continue
        # No experiment may take the time of all that come after it.
        share = SHARE_FOR_GRAPHS if costly and not likely.isdisjoint(hypothesis.causes) else SHARE_FOR_ONE
        case.deadline = min(end, case.clock.now() + share * max(end - case.clock.now(), 0.0))
        found: list[Explained] = []
        case.cut_short = False
        try:
            case.require_time()
            if not hypothesis.plausible(case):
                continue
            found.extend(hypothesis.test(case))
        except OutOfTimeError as error:
            late.setdefault(error.message, []).extend(hypothesis.causes)
        except Exception as error:  # noqa: BLE001 - an experiment that fails must not take the verdict along
            not_tested.append(f"{told}: the experiment itself failed: {one_line(error)}")
        else:
            if not found:
                (late.setdefault(OUT_OF_TIME, []) if case.cut_short else excluded).extend(hypothesis.causes)
        if unknown := [entry.cause for entry in found if entry.cause not in CAUSES]:
            not_tested.append(f"{told}: it named a cause that is not on the list: {', '.join(unknown)}")
        explained.extend(entry for entry in found if entry.cause in CAUSES)
        if any(_settles(case, entry) for entry in found):
            end = min(end, case.clock.now() + max(TIME_AFTER, case.clock.now() - began))
    case.deadline = end
    not_tested += [f"{', '.join(dict.fromkeys(left))}: {why}" for why, left in late.items()]
    # A cause is out of the question when everything that looks for it has looked.
    open_still = {entry.cause for entry in explained}.union(*late.values())
    return explained, [cause for cause in excluded if cause not in open_still], not_tested


def _tell(case: Case, hypothesis: Probe, explained: Sequence[Explained]) -> None:
    """The best explanation so far, or what is looked for: an explanation may go on for long after its first finding."""
    if case.plan.progress is not None:
        best = next(iter(_ranked(case, explained)), None)
        told = f"{hypothesis.causes[0]}?" if best is None else f"{best.cause}, {best.culprit}"
        case.plan.progress(Progress(f"explaining: {told}"))


def _order(hypothesis: Probe, likely: set[str], *, costly: bool) -> tuple[bool, bool, bool]:
    """What takes long comes last, unless models are slow to ask and it is what the files point to."""
    suspected = not likely.isdisjoint(hypothesis.causes)
    return hypothesis.slow and not (costly and suspected), not suspected, hypothesis.slow


def _suspected(case: Case) -> set[str]:
    """The causes that are looked for first: what the files say costs little, however large the models are."""
    suspected = {"weight-corruption", "stale-weights"} if case.framework("candidate") == "onnx" else set()
    suspected |= {GRAPH} if case.framework("reference") in ("onnx", "torch") else set()
    graph = case.graph() if case.runners.get("candidate") is not None else None
    if graph is not None:
        half = any(tensor.data_type in (widen.HALF, widen.BRAIN) for tensor in graph.graph.initializer)
        trains = any(edits.attribute(node, "training_mode", 0) == 1 for node in graph.graph.node)
        suspected |= {"precision-reduction"} if half else set()
        suspected |= {"training-mode"} if trains else set()
    return suspected | ({"quantization"} if case.comparison.quantized_nodes else set())


def _is_costly(case: Case, ran: Run) -> bool:
    """Is it a network that is slow to ask? Then the graphs tell more in the time than many experiments with answers."""
    rows = len(case.sample) if case.sample is not None else 0
    return rows * sum(ran.row_seconds.values()) > COSTLY


def _settles(case: Case, entry: Explained) -> bool:
    """Is the culprit known exactly, and are nearly all failing rows explained by it?"""
    return entry.simplicity == 1 and entry.covered is not None and _share(case, entry) >= SETTLED


def _ranked(case: Case, explained: Sequence[Explained]) -> list[Explained]:
    """The best explanation first, each cause of a culprit once."""
    best = sorted(
        explained,
        key=lambda entry: (-min(round(_share(case, entry), 2), ALL), entry.simplicity, entry.cause),
    )
    once = {_told_of(entry): entry for entry in reversed(best)}
    return [entry for entry in best if once[_told_of(entry)] is entry]


def _told_of(entry: Explained) -> tuple[object, ...]:
    """A cause and where it is, by which it is known once however many probes came upon it."""
    return entry.cause, entry.culprit.nodes or str(entry.culprit)


def _worth_telling(case: Case, best: Sequence[Explained]) -> list[Explained]:
    """Those that explain rows which the better ones leave open: a second cause of the same rows is the first again."""
    told: list[Explained] = []
    for entry in best:
        if not any(_says_it(before, entry) for before in told) and _adds(case, told, entry):
            told.append(entry)
    return told[:SHOWN]


def _says_it(before: Explained, entry: Explained) -> bool:
    """Does a better explanation name the same cause for all of its rows?"""
    if before.cause != entry.cause or before.covered is None or entry.covered is None:
        return False
    return not (entry.covered & ~before.covered).any()


def _adds(case: Case, told: Sequence[Explained], entry: Explained) -> bool:
    """Are there failing rows that this explains and nothing told so far does, more than a few at the limit?"""
    if case.sample is None or not told:
        return True
    left = case.sample.failing.copy()
    for before in told:
        if before.covered is not None:
            left &= ~before.covered
        elif _share(case, before) >= ALL:
            left[:] = False
    new = left if entry.covered is None else left & entry.covered
    return int(new.sum()) > (1 - ALL) * int(case.sample.failing.sum())


def _share(case: Case, entry: Explained) -> float:
    if entry.share is not None:
        return entry.share
    if entry.covered is None or case.sample is None:
        return 1.0
    return float((entry.covered & case.sample.failing).sum() / max(int(case.sample.failing.sum()), 1))
