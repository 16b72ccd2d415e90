"""Batch → two models → pairs → summaries.

`prepare` decides, from the first rows, how both models are fed and which outputs belong together.
`observe` reduces the answers to one batch to a `Partial`; partials merge in any order; `finish`
turns the last one into plain facts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from functools import reduce
from typing import Any

import numpy as np

from likewise.compare import feed
from likewise.compare import pair as pairing
from likewise.compare.align import align, margin_of, type_of
from likewise.compare.call import Side, answered, columns_used, merged_casts, refused_alone, settled, uncounted
from likewise.compare.differences import (
    Constancy,
    asked_of,
    is_numeric,
    row_distances,
)
from likewise.compare.sums import merged
from likewise.compare.timeline import Times
from likewise.contracts.comparison import (
    ROWS,
    SAMPLES,
    Cast,
    Comparison,
    Form,
    Incident,
    Metric,
    Mismatch,
    OutputFacts,
    Pair,
    PairSpec,
    Plan,
    Stratum,
    Summary,
    Tolerance,
)
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Kind, Runner
from likewise.contracts.values import dataclass
from likewise.data.cells import listed
from likewise.data.selection import only_columns, require_few
from likewise.errors import ModelError, RowCountError
from likewise.models.remote import cores
from likewise.registry import extensions

PROBE_ROWS, PROBE_TENSORS = 32, 8
"""Rows both models are shown before the comparison starts, to learn what they give. Of tensors and of tokens, of which
networks are asked that take long, fewer: the comparison asks about them again."""

PART = 2**18
"""Elements of an output that are observed at once: every core keeps the differences of so many."""

JUDGED = frozenset({"closeness", "agreement"})
"""The metrics whose limits hold for any rows; the others speak of rows as they come, and take longer."""

IGNORED_READ, IGNORED_NAMED = 16, 32
"""Columns that neither model takes: so many are read and shown with the worst rows, and so many are named."""

SHAPES_SHOWN = 6
"""Inputs of a sample whose shapes are told."""

REFERENCE, CANDIDATE = "reference", "candidate"


@dataclass(frozen=True, slots=True)
class Prepared:
    """Two models that can be compared, and how; `first` are the rows by which that was decided.

    `answered` has by side what it answered to them; `apart` is why they may not have been asked the same.
    """

    reference: Side
    candidate: Side
    pairing: pairing.Pairing
    tolerance: Tolerance
    first: Batch
    notes: tuple[str, ...]
    outputs: frozenset[str] = frozenset()
    nan_equal: bool = True
    answered: Mapping[str, Tensors] = field(default_factory=dict)
    apart: Incident | None = None

    @property
    def row_bytes(self) -> int:
        """What the inputs of one row take."""
        sizes = [getattr(value, "nbytes", 0) for value in self.first.inputs.values()]
        return max(1, sum(sizes) // len(self.first))

    @property
    def answer_bytes(self) -> int:
        """What the answers of both models to one row take: of a vocabulary or an image far more than what was asked."""
        sizes = [array.nbytes for answers in self.answered.values() for array in answers.values()]
        return sum(sizes) // len(self.first)


@dataclass(frozen=True, slots=True)
class Partial:
    """What was observed on some of the rows."""

    rows: int = 0
    rows_beyond: int = 0
    summaries: Mapping[str, Mapping[str, Summary]] = field(default_factory=dict)
    casts: tuple[Cast, ...] = ()
    mismatches: frozenset[Mismatch] = frozenset()
    incidents: tuple[Incident, ...] = ()
    strata: Mapping[str, Stratum] = field(default_factory=dict)
    inputs: Constancy = field(default_factory=Constancy)
    times: Times = Times()

    def merge(self, other: Partial) -> Partial:
        return merged(
            self,
            other,
            summaries=_merged(self.summaries, other.summaries),
            casts=merged_casts([*self.casts, *other.casts]),
            strata=_merged_strata(self.strata, other.strata),
        )


def prepare(plan: Plan, reference: Runner, candidate: Runner, rows: Batch | None = None) -> Prepared | Incident:
    """Decide how the data, or other rows, feed both models and which outputs belong together."""
    first = next(plan.source.batches(PROBE_ROWS), None) if rows is None else rows.slice(0, PROBE_ROWS)
    if first is not None and first.stacked and any(map(_for_networks, first.inputs.values())):
        first = first.slice(0, PROBE_TENSORS)
    if first is None or not len(first):
        return Incident("no-rows", f"{plan.source.location} holds no rows", "Give data to compare on")
    feed.require_inputs(plan.feed, reference.signature, candidate.signature)
    ours = feed.plan(first, reference.signature, side=REFERENCE, mapping=plan.feed)
    order = ours.columns if reference.signature.table else None
    theirs = feed.plan(first, candidate.signature, side=CANDIDATE, order=order, mapping=plan.feed)
    reference_side = Side(REFERENCE, plan.reference.name, reference, ours, ignored=frozenset(plan.ignore))
    candidate_side = Side(CANDIDATE, plan.candidate.name, candidate, theirs, ignored=frozenset(plan.ignore))
    apart = feed.rows_apart(ours, theirs) if first.stacked else None
    reference_side, reference_answers = _probe(reference_side, first, plan, apart)
    candidate_side, candidate_answers = _probe(candidate_side, first, plan, apart)
    paired = pairing.pair(
        pairing.observed(reference.signature, reference_answers),
        pairing.observed(candidate.signature, candidate_answers),
        overrides=plan.pair,
        ignore=plan.ignore,
    )
    paired = _per_call(paired, reference_side, candidate_side, len(first))
    ignored = columns_used([ours, theirs], first.inputs)
    notes = [*ours.notes, *theirs.notes]
    if not first.stacked:
        notes.append(f"no rows: every call is one sample, as {_shapes(first)}")
    if ignored:
        told = listed([*map(repr, ignored)], IGNORED_NAMED)
        notes.append(f"columns that neither model takes were ignored: {told}")
    if plan.ignore:
        notes.append(f"outputs left out on request: {', '.join(map(repr, plan.ignore))}")
    return Prepared(
        replace(reference_side, outputs=paired.reference_outputs),
        candidate_side,
        paired,
        plan.tolerance,
        first,
        tuple(notes),
        frozenset(candidate_answers),
        plan.nan_equal,
        {REFERENCE: reference_answers, CANDIDATE: candidate_answers},
        apart,
    )


def without_ignored(plan: Plan, prepared: Prepared) -> tuple[Plan, Prepared]:
    """The same without the columns that neither model takes, where there are many: they are read no further.

    A few are read on, because they help to recognise a row that is shown.
    """
    first = prepared.first
    ignored = columns_used((prepared.reference.feed, prepared.candidate.feed), first.inputs)
    if len(ignored) <= IGNORED_READ:
        return plan, prepared
    taken = [name for name in first.inputs if name not in frozenset(ignored)]
    source = only_columns(plan.source, taken)
    if source is plan.source:
        return plan, prepared
    note = f"{len(ignored):,} columns that neither model takes were read in the first rows only, and are not shown"
    return replace(plan, source=source), replace(prepared, notes=(*prepared.notes, note))


def observe(
    prepared: Prepared,
    batch: Batch,
    reference: Tensors,
    candidate: Tensors,
    *,
    metrics: frozenset[str] | None = None,
) -> Partial:
    """Reduce the answers of both models to one batch, by all metrics or by those that are named."""
    return observe_rows(prepared, batch, reference, candidate, metrics=metrics)[0]


def observe_rows(
    prepared: Prepared,
    batch: Batch,
    reference: Tensors,
    candidate: Tensors,
    *,
    metrics: frozenset[str] | None = None,
) -> tuple[Partial, Array]:
    """The same, and which of the rows are beyond."""
    largest = max([1, *(math.prod(array.shape[1:]) for array in reference.values())])
    step = max(1, PART // largest)
    if batch.stacked and len(batch) > step:
        # Differences are worked out once for all metrics, and kept of these rows meanwhile.
        def part(start: int) -> tuple[Partial, Array]:
            return observe_rows(
                prepared,
                batch.slice(start, start + step),
                {name: array[start : start + step] for name, array in reference.items()},
                {name: array[start : start + step] for name, array in candidate.items()},
                metrics=metrics,
            )

        # Answers that wide keep all cores busy; the models are done with these rows.
        with ThreadPoolExecutor(cores()) as pool:
            parts = list(pool.map(part, range(0, len(batch), step)))
        return reduce(Partial.merge, (part for part, _ in parts)), np.concatenate([rows for _, rows in parts])
    summaries: dict[str, dict[str, Summary]] = {}
    mismatches: set[Mismatch] = set()
    for name in sorted(candidate.keys() - prepared.outputs):
        message = f"output {name!r} of the candidate was not there on the first rows: it has no counterpart"
        mismatches.add(Mismatch("extra-output", message, name))
    beyond = np.zeros(len(batch), dtype=bool)
    distances: dict[str, Array] = {}
    for spec in prepared.pairing.pairs:
        pair = paired(spec, batch, reference, candidate, prepared.tolerance, nan_equal=prepared.nan_equal)
        if isinstance(pair, Mismatch):
            mismatches.add(pair)
            beyond[:] = True
            continue
        numeric = is_numeric(pair.reference) and is_numeric(pair.candidate)
        known: tuple[Metric, ...] = extensions("compare.metrics")
        named = [metric for metric in known if metrics is None or metric.name in metrics]
        applying = [metric for metric in named if metric.applies_to(spec, numeric=numeric)]
        summaries[spec.name] = {metric.name: metric.observe(pair) for metric in applying}
        beyond |= rows_beyond(pair)
        if batch.rows.strata is not None and numeric:
            distances[spec.name] = row_distances(pair)
    observed = Partial(
        rows=len(batch),
        rows_beyond=int(np.count_nonzero(beyond)),
        summaries=summaries,
        mismatches=frozenset(mismatches),
        strata={} if batch.rows.strata is None else _counted_by_stratum(batch.rows.strata, beyond, distances),
        inputs=_constancy(batch) if metrics is None else Constancy(),
        times=Times() if batch.rows.times is None else Times.of(batch.rows.times, beyond),
    )
    return observed, beyond


def finish(prepared: Prepared, partial: Partial, plan: Plan, *, decided: bool = False) -> Comparison:
    """Plain facts. `decided`: the rest of the rows was left out on request."""
    incidents = [*partial.incidents, *prepared.pairing.incidents]
    mismatches = {*prepared.pairing.mismatches, *partial.mismatches}
    if prepared.apart is not None and (partial.rows_beyond or mismatches):
        incidents.append(prepared.apart)
    stopped = (
        decided
        or bool(partial.incidents)
        or any(mismatch.code == RowCountError.code for mismatch in partial.mismatches)
    )
    if plan.expected_rows is not None and partial.rows < plan.expected_rows and not stopped:
        incidents.append(
            Incident(
                "ended-early",
                f"{plan.expected_rows:,} rows were expected and {partial.rows:,} were compared",
                "Give more data, or ask for fewer --samples",
            )
        )
    return Comparison(
        rows=partial.rows,
        expected_rows=plan.expected_rows,
        rows_beyond=partial.rows_beyond,
        varied=partial.inputs.varied,
        tolerance=plan.tolerance,
        nan_equal=plan.nan_equal,
        outputs=outputs(prepared, partial),
        not_compared=prepared.pairing.not_compared,
        casts=merged_casts(partial.casts),
        mismatches=tuple(sorted(mismatches, key=lambda m: (m.output or "", m.code, m.message))),
        incidents=tuple(incidents),
        notes=(*prepared.notes, *_filled_up(prepared, partial.rows)),
        warnings=tuple(
            f"the {side.name}: {text}"
            for side in (prepared.reference, prepared.candidate)
            for text in side.runner.details.get("warnings", ())
        ),
        strata=_listed_strata(partial.strata, plan.stratify),
        timeline=partial.times.facts(),
        # A test case is run whole, in the shapes it was recorded in: no other batch was asked for.
        fixed_batch=prepared.candidate.fixed_batch if prepared.first.stacked else None,
        quantized_nodes=int(prepared.candidate.runner.details.get("quantized_nodes", 0)),
        unit=ROWS if prepared.first.stacked else SAMPLES,
        stopped=decided,
    )


def _filled_up(prepared: Prepared, rows: int) -> Iterator[str]:
    """A note on every model whose last call had fewer rows than it takes."""
    for side in (prepared.reference, prepared.candidate):
        over = rows % side.fixed_batch if side.fixed_batch and prepared.first.stacked else 0
        if over:
            yield (
                f"{side.name}: it takes {side.fixed_batch} rows per call; the last call had {over} and was filled up "
                "with copies of its last row, whose answers are left out"
            )


def finish_beside(prepared: Prepared, partial: Partial, plan: Plan) -> Comparison:
    """Plain facts about rows beside the data: what is said of models and data as a whole is said once."""
    comparison = finish(replace(prepared, apart=None), partial, replace(plan, expected_rows=None))
    return replace(comparison, notes=(), warnings=(), not_compared=(), varied=False, timeline=None)


def outputs(prepared: Prepared, partial: Partial) -> tuple[OutputFacts, ...]:
    """Everything measured, one entry a pair; a pair on which nothing was measured has no measures."""
    return tuple(_facts(spec, partial.summaries.get(spec.name, {})) for spec in prepared.pairing.pairs)


def needed_to_judge_again(fact: OutputFacts) -> dict[str, Any]:
    """What is kept of an output that is measured beside the data, so that another tolerance can be decided later."""
    kept = {
        "closeness": ("rows", "values", "magnitudes", "integer_rounding"),
        "agreement": ("margins",),
        "top_class": ("margins", "rows", "classes"),
    }
    return {
        metric: {name: fact.details[metric][name] for name in names}
        for metric, names in kept.items()
        if metric in fact.details
    }


def rows_beyond(pair: Pair) -> Array:
    """Which rows the tolerance does not cover."""
    from likewise.compare.metrics import agreement, closeness

    inside = agreement if pair.spec.kind is Kind.LABEL else closeness
    mask: Array = inside.rows_beyond(pair)
    return mask


def paired(
    spec: PairSpec,
    batch: Batch,
    reference: Tensors,
    candidate: Tensors,
    tolerance: Tolerance,
    *,
    nan_equal: bool = True,
) -> Pair | Mismatch:
    """The answers of both sides to one output, put together; or why they cannot be."""
    if spec.candidate not in candidate or spec.reference not in reference:
        name = spec.candidate if spec.candidate not in candidate else spec.reference
        return Mismatch("missing-output", f"output {name!r} is no longer given", spec.name)
    aligned = align(spec, reference[spec.reference], candidate[spec.candidate], stacked=batch.stacked)
    if isinstance(aligned, Mismatch):
        return aligned
    margin, noise = margin_of(spec, aligned, reference, candidate, tolerance)
    given = (reference[spec.reference], candidate[spec.candidate])
    own = 0 if batch.stacked and not spec.per_call else 1
    ours, theirs = (
        Form(type_of(array), array.ndim - own, None if own else axis, rows=not own)
        for array, axis in zip(given, spec.row_axes, strict=True)
    )
    return Pair(spec, batch, *aligned, asked_of(tolerance, *aligned), margin, noise, nan_equal, (ours, theirs))


def _probe(side: Side, first: Batch, plan: Plan, apart: Incident | None) -> tuple[Side, dict[str, Array]]:
    """The model as it takes the data, and its answers to the first rows; or why it gives none."""
    plan.tell("first rows", side.name, first)
    side, found = settled(side, first, plan.batch_size)
    try:
        if found is None:
            side, found = answered(side, first, plan.batch_size)
    except (ModelError, RowCountError) as error:
        if apart is not None and apart.side == side.name:
            error.remedy = apart.remedy
        elif len(first) > 1 and first.stacked and "--batch-" not in error.remedy:
            refused = refused_alone(side, first)
            if refused is None:
                error.remedy = (
                    "It answers each of them alone; if it takes one row per call, use --batch-size 1 --fixed-batch"
                )
            elif refused:
                name = first.rows.name(refused)
                error.remedy = f"Row {name} is the first that it refuses by itself: mend or leave out such rows"
        raise
    plan.tell("first rows", side.name, first, finished=True)
    return side, found


def _per_call(paired: pairing.Pairing, ours: Side, theirs: Side, rows: int) -> pairing.Pairing:
    """Marks the pairs that are one number for a whole call, which has to be the same call in both models."""
    pairs = []
    for spec in paired.pairs:
        single = spec.reference in ours.rowless, spec.candidate in theirs.rowless
        if any(single) and not (all(single) and ours.fixed_batch == theirs.fixed_batch):
            side, output = (ours, spec.reference) if single[0] else (theirs, spec.candidate)
            raise uncounted(side, output, (), rows, RowCountError)
        pairs.append(replace(spec, per_call=True) if any(single) else spec)
    return replace(paired, pairs=tuple(pairs))


def _for_networks(array: Array) -> bool:
    """Images, sequences, clips; or tokens."""
    return array.ndim > 2 or (array.ndim == 2 and array.dtype.kind in "iu")


def _shapes(sample: Batch) -> str:
    listed = [f"{name} {tuple(getattr(value, 'shape', ()))}" for name, value in sample.inputs.items()]
    return ", ".join(listed[:SHAPES_SHOWN]) + (", …" if len(listed) > SHAPES_SHOWN else "") or "no inputs"


def _constancy(batch: Batch) -> Constancy:
    """Are all rows alike? Equal answers to equal rows tell nothing."""
    if not batch.stacked or not len(batch):
        return Constancy()
    digest = hashlib.sha256()
    for name in batch.inputs:
        found = Constancy.of(batch.inputs[name])
        if found.varied:
            return found
        digest.update(found.answer.encode())
    return Constancy(digest.hexdigest()[:32])


def _facts(spec: PairSpec, summaries: Mapping[str, Summary]) -> OutputFacts:
    measures: dict[str, float] = {}
    details: dict[str, Any] = {}
    for name, summary in sorted(summaries.items()):
        measures.update(summary.measurements())
        if found := summary.details():
            details[name] = dict(found)
    return OutputFacts(spec.name, spec, measures, details)


def _merged(
    one: Mapping[str, Mapping[str, Summary]], other: Mapping[str, Mapping[str, Summary]]
) -> dict[str, dict[str, Summary]]:
    together = {name: dict(summaries) for name, summaries in one.items()}
    for name, summaries in other.items():
        mine = together.setdefault(name, {})
        for metric, summary in summaries.items():
            mine[metric] = mine[metric].merge(summary) if metric in mine else summary
    return together


def _counted_by_stratum(values: Array, beyond: Array, distances: Mapping[str, Array]) -> dict[str, Stratum]:
    """The rows of one batch by the value they hold."""
    names, places = np.unique(values.astype(str), return_inverse=True)
    found = {}
    for index, name in enumerate(names.tolist()):
        mine = places == index
        worst = {output: float(distance[mine].max()) for output, distance in distances.items()}
        found[name] = Stratum("", name, int(mine.sum()), int(beyond[mine].sum()), worst)
    return found


def _merged_strata(one: Mapping[str, Stratum], other: Mapping[str, Stratum]) -> dict[str, Stratum]:
    """The rows of both."""
    together = dict(one)
    for value, stratum in other.items():
        together[value] = _merged_stratum(together[value], stratum) if value in together else stratum
    require_few(together)
    return together


def _listed_strata(strata: Mapping[str, Stratum], column: str | None) -> tuple[Stratum, ...]:
    """Every value of the column, in order."""
    return tuple(replace(strata[value], column=column or "") for value in sorted(strata))


def _merged_stratum(one: Stratum, other: Stratum) -> Stratum:
    worst = {
        name: max(one.worst.get(name, 0.0), other.worst.get(name, 0.0))
        for name in sorted(one.worst.keys() | other.worst.keys())
    }
    return merged(one, other, column=one.column, value=one.value, worst=worst)
