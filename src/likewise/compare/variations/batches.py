"""Both models in other batches: one that is right at 1 may be wrong at 128, or in the last place of a batch.

A bounded number of rows is given to the candidate again, at several batch sizes and in other places of a
batch, and compared twice: with the reference, and with the candidate's own answers in the main run
(`batch_drift`, `position_drift`). The reference is asked too, and compared with itself (`reference_drift`):
where it depends on the batch, the candidate is compared with its answers in the same batch.

All of it is tried where there is `room` for it. Of a model that takes long the most telling comes first, a few rows
each, and what there is no room for is listed: which it is depends on the number of rows alone.

Last, the same question again: a model that changes its answers from call to call is no model that differs. Dropout that
stays on, a random number, a counter, a state that the last call left behind. The main run asks about the first rows a
second time anyway. Only where its answers are not those given before, or something else is wrong, is the very same call
made once more: what depends on the batch answers it as before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field, replace
from functools import partial

import numpy as np

from likewise.compare.align import align
from likewise.compare.call import Side, answers, incident, recorded
from likewise.compare.differences import differences
from likewise.compare.engines import Head
from likewise.compare.observe import (
    CANDIDATE,
    JUDGED,
    REFERENCE,
    Partial,
    Prepared,
    needed_to_judge_again,
    observe,
    outputs,
    paired,
    rows_beyond,
)
from likewise.compare.sums import BLOCK
from likewise.contracts.comparison import (
    BatchSizeFacts,
    Comparison,
    Incident,
    Mismatch,
    OutputFacts,
    PairSpec,
    Plan,
    Tolerance,
    Untried,
)
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import IN_TRAINING, Kind
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import figure, runs
from likewise.errors import LikewiseError, RowCountError

DEFAULT_SIZES = (1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 127, 128)
"""Kernels and exporters change their ways at powers of two: these are some, and what is beside them."""

CALLS = 16
ENOUGH = 32
"""At each size full calls are made up to `ENOUGH` rows: at least one and at most `CALLS`."""

PLACES = 32
"""Rows of a batch in which rows change places, and after which one is left over for a last, short batch."""

REVERSED, LEFT_OVER = "rows reversed", "one row left over"

TELLING = (1, 3, 7, 2, 9, 33, 8, 31, 4, 32, 127, 128)
"""The sizes by how much they tell beside the others: alone, odd, an odd one with a full vector, two, and so on."""

ALWAYS, ALONE, FEW = (1, 3), 2, 4
"""Where a model takes long: sizes that are tried all the same, rows that are asked alone, and rows of a batch in which
they change places."""

KIND = "batch"

DRIFTS = ("batch_drift", "position_drift", "reference_drift")


UNSTABLE = "unstable"

REMEDY = (
    "Look for dropout, random numbers and state that one call leaves to the next; call eval(), or fix the seed before "
    "every call"
)


@dataclass(frozen=True, slots=True)
class Try:
    """Some of the first rows, by their places, in calls of one size; `order` says how they were moved, if they were."""

    size: int
    places: Array
    order: str = ""

    @property
    def name(self) -> str:
        return f"{self.order} in batches of {self.size}" if self.order else str(self.size)

    @property
    def of_first(self) -> bool:
        """Are they the first so many rows, in whatever order?"""
        return np.array_equal(np.sort(self.places), np.arange(len(self.places)))


@dataclass(frozen=True, slots=True)
class _Swept:
    """The candidate in other batches: the facts, the rows with their answers in the main run, and those it gave now."""

    facts: BatchSizeFacts
    part: Head
    again: Tensors = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class _FirstRows:
    """What is measured of the first so many rows, answered as in the main run.

    Most tries give the very same answers, to the bit, so that they share it: each row is measured once for all of them.
    """

    prepared: Prepared
    head: Head
    counts: tuple[int, ...]
    found: dict[int, Partial] = field(default_factory=dict)

    @staticmethod
    def of(prepared: Prepared, head: Head, tries: Sequence[Try]) -> _FirstRows:
        return _FirstRows(prepared, head, tuple(sorted({len(entry.places) for entry in tries if entry.of_first})))

    def observed(self, rows: int) -> Partial:
        before = 0
        for count in self.counts[: self.counts.index(rows) + 1]:
            if count not in self.found:
                part = self.head.at(np.arange(before, count))
                here = _observed(self.prepared, part, part.candidate)
                self.found[count] = self.found[before].merge(here) if before else here
            before = count
        return self.found[rows]


def run(
    plan: Plan,
    prepared: Prepared,
    head: Head,
    comparison: Comparison,
    *,
    room: int | None = None,
    covered: Collection[int] = (),
) -> Comparison:
    """The same rows in other batches: the candidate, then the reference unless its answers are recorded.

    `room` is how many rows either may be asked, None for no bound. What is always tried may be more. `covered` are the
    sizes of the calls of the main run.
    """
    if prepared.candidate.fixed_batch is not None:
        return replace(comparison, batch_sizes=_not_taken(plan, prepared.candidate.fixed_batch))
    prepared = replace(prepared, tolerance=plan.tolerance.in_other_batches)
    wanted = DEFAULT_SIZES if plan.batch_sizes is None else plan.batch_sizes
    tell = partial(plan.tell, "batch sizes", batch=head.batch, done=comparison.rows)
    tell(CANDIDATE)
    chosen, left = every(len(head.batch), wanted), tuple[Try, ...]()
    if room is not None:
        chosen, left = _most_telling(chosen, len(head.batch), room, covered)
    first = _FirstRows.of(prepared, head, chosen)
    swept = tuple(_at(prepared, head, entry, first) for entry in chosen)
    tell(CANDIDATE, finished=True)
    if not recorded(plan, REFERENCE) and prepared.reference.fixed_batch is None:
        tell(REFERENCE)
        swept = _with_reference(prepared, swept, sparing=room is not None)
        tell(REFERENCE, finished=True)
    facts = [found.facts for found in swept]
    return replace(
        comparison,
        batch_sizes=tuple(found for found in facts if not found.order),
        batch_orders=tuple(found for found in facts if found.order),
        outputs=_with_drift(comparison.outputs, facts),
        untried=(*comparison.untried, *([Untried(KIND, tuple(entry.name for entry in left))] if left else ())),
    )


def _not_taken(plan: Plan, fixed: int) -> tuple[BatchSizeFacts, ...]:
    """Sizes that were asked for of a candidate that takes another one only."""
    others = [size for size in plan.batch_sizes or () if size != fixed]
    told = f"batch sizes {runs(sorted(others))} were asked for, and the candidate takes batches of {fixed} only"
    stopped = Incident("batch-size", told, "Export it with a dynamic batch axis, or use --batch-sizes none", CANDIDATE)
    return (BatchSizeFacts(others[0], 0, incidents=(stopped,)),) if others else ()


def every(available: int, sizes: Sequence[int] = DEFAULT_SIZES) -> tuple[Try, ...]:
    """Every size, then rows in other places of a batch, among others, and alone in the last call.

    Of a size that the rows do not fill, all rows in one call are what is covered.
    """
    known = dict.fromkeys(min(size, available) for size in sizes)
    found = tuple(Try(size, np.arange(rows_swept(available, size))) for size in known)
    # The largest size asked for in which rows can change places without many of them.
    most = min(available, max((size for size in sizes if size <= PLACES), default=min(sizes)))
    return (*found, *_moved(available, most))


def _moved(available: int, size: int) -> tuple[Try, ...]:
    orders = _orders(available, size) if size > 1 else {}
    return tuple(Try(size, places, order) for order, places in orders.items())


def _most_telling(
    tries: Sequence[Try], available: int, room: int, covered: Collection[int]
) -> tuple[tuple[Try, ...], tuple[Try, ...]]:
    """What is always tried, then one call of each size and order as far as there is room; and what is left.

    Always: single rows, a size that is no power of two, rows in other places, and a row left over.
    """
    places = min(FEW, available - 1) if available > 2 else available
    sizes = [
        replace(entry, places=entry.places[: ALONE if entry.size == 1 else entry.size])
        for entry in sorted(tries, key=lambda entry: (*TELLING, entry.size).index(entry.size))
        if not entry.order and entry.size not in covered
    ]
    orders = [entry for entry in tries if entry.order and entry.size > places]
    chosen = [entry for entry in sizes if entry.size in ALWAYS]
    chosen += [entry for entry in _moved(available, places) if entry.order in (REVERSED, LEFT_OVER)]
    left: list[Try] = []
    for entry in (*(entry for entry in sizes if entry.size not in ALWAYS), *orders):
        fits = sum(len(one.places) for one in (*chosen, entry)) <= room
        (chosen if fits else left).append(entry)
    return tuple(chosen), tuple(left)


def _with_reference(prepared: Prepared, swept: Sequence[_Swept], *, sparing: bool) -> tuple[_Swept, ...]:
    """The same sizes and orders, with how far the reference's own answers move there: one call each, and single rows.

    Single rows are what a service is asked, and one of them is no sample: of a branch on the mean of a call, some go
    the way of the data and others do not. `sparing`: these and one more call tell whether it depends on the batch at
    all, and further ones are made only if it does, or where the candidate differs. The candidate of a reference that
    moves has to answer as that does in the same batch. Only if parts of the reference stay in training mode, it may
    also answer as that did in the main run: an export is not to be like that. Where the reference refuses such a
    batch, it cannot be told.
    """
    found = [
        entry
        if sparing and entry.facts.order != REVERSED and entry.facts.size != 1 and not differs(entry.facts)
        else replace(entry, facts=_beside(prepared, entry))
        for entry in swept
    ]
    if not any(moves(entry.facts) for entry in found):
        return tuple(found)
    training = prepared.reference.runner.details.get(IN_TRAINING, False)
    return tuple(
        _in_the_same_batch(prepared, entry) if differs(entry.facts) or not (training or _stays(entry.facts)) else entry
        for entry in found
    )


def _stays(facts: BatchSizeFacts) -> bool:
    """Was the reference asked, and are its answers there what they were?"""
    return all("reference_drift" in output.measures for output in facts.outputs) and not moves(facts)


def moves(facts: BatchSizeFacts) -> bool:
    """Are the reference's own answers others there?"""
    return any(output.details.get("reference_drift", {}).get("rows_beyond") for output in facts.outputs)


def differs(facts: BatchSizeFacts) -> bool:
    """Does the candidate not answer there what it was compared with?"""
    measures = ("mismatch_rate", "material_flips", "nonfinite_mismatch")
    return bool(facts.mismatches) or any(output.measures.get(name) for output in facts.outputs for name in measures)


def _in_the_same_batch(prepared: Prepared, entry: _Swept) -> _Swept:
    facts, part = entry.facts, entry.part
    if facts.reference:
        return replace(entry, facts=replace(facts, outputs=(), mismatches=()))
    if not entry.again:
        return entry
    try:
        own, _ = answers(prepared.reference, part.batch, facts.size)
    except LikewiseError as error:
        refused = (incident(error, "reference-batch"),)
        return replace(entry, facts=replace(facts, outputs=(), mismatches=(), reference=refused))
    part = replace(part, reference=own)
    asked = Try(facts.size, np.arange(len(part.batch)), facts.order)
    there = _compared(prepared, part, entry.again, _observed(prepared, part, entry.again), asked)
    before = {output.name: output for output in facts.outputs}
    kept = tuple(_with_drifts_of(before[output.name], output) for output in there.outputs)
    return replace(entry, facts=replace(there, outputs=kept, same_batch=True))


def _with_drifts_of(before: OutputFacts, output: OutputFacts) -> OutputFacts:
    """How far each model's own answers move is what it was."""
    drifts = {name: before.measures[name] for name in DRIFTS if name in before.measures}
    moved = before.details.get("reference_drift")
    details = {**output.details, **({"reference_drift": moved} if moved else {})}
    return replace(output, measures={**output.measures, **drifts}, details=details)


def rows_swept(available: int, size: int) -> int:
    """How many rows are run at a size, in full calls only."""
    return size * max(1, min(CALLS, ENOUGH // size, available // size))


def _orders(available: int, size: int) -> dict[str, Array]:
    """Which rows go where: from end to end, the middle to the front, among rows from far away, one too many."""
    first = np.arange(min(size, available))
    far = first * available // len(first)
    found = {
        REVERSED: first[::-1],
        "rows turned by half": np.roll(first, len(first) // 2),
        "rows mixed with others": np.concatenate([far[::2], far[1::2]]),
    }
    return {**found, LEFT_OVER: np.arange(size + 1)} if available > size else found


def _with_drift(facts: Sequence[OutputFacts], swept: Sequence[BatchSizeFacts]) -> tuple[OutputFacts, ...]:
    """The largest drift of each output over all batches, as a measure that a limit can be set on."""
    drifts: dict[str, dict[str, float]] = {}
    for found in swept:
        for output in found.outputs:
            largest = drifts.setdefault(output.name, {})
            for measure in DRIFTS:
                if measure in output.measures:
                    largest[measure] = max(largest.get(measure, 0.0), output.measures[measure])
    return tuple(replace(fact, measures={**fact.measures, **drifts.get(fact.name, {})}) for fact in facts)


def _at(prepared: Prepared, head: Head, asked: Try, first: _FirstRows) -> _Swept:
    size, order = asked.size, asked.order
    part = head.at(asked.places) if order else head.slice(len(asked.places))
    where = f"at batch size {size}" + (f", {order}," if order else "")
    try:
        now, _ = answers(prepared.candidate, part.batch, size)
    except RowCountError as error:
        mismatch = Mismatch(error.code, error.message)
        return _Swept(BatchSizeFacts(size, 0, mismatches=(mismatch,), order=order), part)
    except LikewiseError as error:
        told = replace(incident(error, "batch-size"), message=f"{where} {error.message}")
        return _Swept(BatchSizeFacts(size, 0, incidents=(told,), order=order), part)
    same = _same(part.candidate, now)
    # Those of the main run are kept anyway.
    again = part.candidate if same else now
    observed = first.observed(len(asked.places)) if same and asked.of_first else _observed(prepared, part, again)
    return _Swept(_compared(prepared, part, again, observed, asked), part, again)


def _same(before: Tensors, after: Tensors) -> bool:
    """Are these the same answers, to the bit?"""
    return before.keys() == after.keys() and all(_same_array(before[name], after[name]) for name in before)


def _same_array(before: Array, after: Array) -> bool:
    if before is after or before.dtype != after.dtype or before.shape != after.shape:
        return before is after
    if before.dtype.kind == "O":
        ours, theirs = before.ravel().tolist(), after.ravel().tolist()
        return ours == theirs and [*map(type, ours)] == [*map(type, theirs)]
    # A block at a time: to copy all of them would take longer than to compare them.
    step = max(1, BLOCK * len(before) // max(1, before.size))
    parts = (slice(start, start + step) for start in range(0, len(before), step))
    return all(before[part].tobytes() == after[part].tobytes() for part in parts)


def _observed(prepared: Prepared, part: Head, again: Tensors) -> Partial:
    return observe(prepared, part.batch, part.reference, again, metrics=JUDGED)


def _compared(prepared: Prepared, part: Head, again: Tensors, observed: Partial, asked: Try) -> BatchSizeFacts:
    """The candidate's answers now against the reference's, and against its own in the main run."""
    size, order = asked.size, asked.order
    measure = "position_drift" if order and order != LEFT_OVER else "batch_drift"
    facts = tuple(
        replace(
            fact,
            details=needed_to_judge_again(fact),
            measures={
                **fact.measures,
                measure: drift(own_output(fact.pair, CANDIDATE), part.candidate, again),
            },
        )
        for fact in outputs(prepared, observed)
    )
    mismatches = tuple(sorted(observed.mismatches, key=lambda m: m.message))
    return BatchSizeFacts(size, len(part.batch), facts, mismatches, order=order)


def _beside(prepared: Prepared, entry: _Swept) -> BatchSizeFacts:
    facts = entry.facts
    # Rows that are left over are asked for in a call of their own, which size 1 has covered.
    if not facts.outputs or facts.order == LEFT_OVER:
        return facts
    part = entry.part if facts.size == 1 else entry.part.slice(facts.size)
    try:
        again, _ = answers(prepared.reference, part.batch, facts.size)
    except LikewiseError as error:
        return replace(facts, reference=(incident(error, "reference-batch"),))
    return replace(facts, outputs=tuple(_with_reference_drift(prepared, fact, part, again) for fact in facts.outputs))


def _with_reference_drift(prepared: Prepared, fact: OutputFacts, part: Head, again: Tensors) -> OutputFacts:
    own = own_output(fact.pair, REFERENCE)
    beyond = rows_moved(own, part.batch, part.reference, again, prepared.tolerance)
    return replace(
        fact,
        measures={**fact.measures, "reference_drift": drift(own, part.reference, again)},
        details={**fact.details, "reference_drift": {"rows": len(part.batch), "rows_beyond": beyond}},
    )


def own_output(spec: PairSpec, side: str) -> PairSpec:
    """An output of one model, compared with itself."""
    output = spec.reference if side == REFERENCE else spec.candidate
    return replace(
        spec,
        reference=output,
        candidate=output,
        columns=None,
        reference_column=None,
        expand=None,
        margin_from=None,
        scores=(),
        other_follows=False,
    )


def rows_moved(own: PairSpec, batch: Batch, before: Tensors, after: Tensors, tolerance: Tolerance) -> int:
    """Rows in which a model's own answers are beyond tolerance of what they were."""
    if own.reference in before and own.candidate in after and _same_array(before[own.reference], after[own.candidate]):
        return 0
    pair = paired(own, batch, before, after, tolerance)
    return len(batch) if isinstance(pair, Mismatch) else int(rows_beyond(pair).sum())


def drift(own: PairSpec, before: Tensors, after: Tensors) -> float:
    """How far a model's own answers move: the largest difference, or the share of other labels."""
    if own.reference not in before or own.candidate not in after:
        return float("inf")
    aligned = align(own, before[own.reference], after[own.candidate])
    if isinstance(aligned, Mismatch):
        return float("inf")
    one, other = aligned
    if own.kind is Kind.LABEL or one.dtype.kind not in "biuf":
        return float(np.mean(one != other)) if one.size else 0.0
    if _same_array(one, other):
        return 0.0
    apart = [found.by_row(found.distances, broken=np.inf) for found in differences(one, other)]
    return float(max((distances.max(initial=0.0) for distances in apart), default=0.0))


def ask_again(plan: Plan, prepared: Prepared, head: Head, comparison: Comparison) -> Comparison:
    """The facts, and which of the models does not answer the same question alike."""
    doubtful = _anything_wrong(comparison)
    # Recorded answers do not change.
    asked = [side for side in (prepared.reference, prepared.candidate) if not recorded(plan, side.name)]
    moved = {side.name: _unstable(plan, prepared, side, head, doubtful=doubtful) for side in asked}
    if told := moved.get(REFERENCE):
        unstable = Incident(UNSTABLE, f"{told}: there is nothing to compare with", REMEDY, REFERENCE)
        return replace(comparison, incidents=(*comparison.incidents, unstable))
    if told := moved.get(CANDIDATE):
        return replace(comparison, mismatches=(Mismatch(UNSTABLE, told), *comparison.mismatches))
    return comparison


def _anything_wrong(comparison: Comparison) -> bool:
    swept = (*comparison.batch_sizes, *comparison.batch_orders)
    return bool(comparison.rows_beyond or comparison.mismatches) or any(differs(f) or moves(f) for f in swept)


def _unstable(plan: Plan, prepared: Prepared, side: Side, head: Head, *, doubtful: bool) -> str:
    """Words for how a model's answers to the first rows change; nothing where they stay."""
    first, before = prepared.first, prepared.answered[side.name]
    own = [own_output(spec, side.name) for spec in prepared.pairing.pairs]

    def moved(after: Tensors) -> list[PairSpec]:
        tolerance = prepared.tolerance.in_other_batches
        return [spec for spec in own if rows_moved(spec, first, before, after, tolerance)]

    main = head.slice(len(first))
    if not doubtful and not moved(main.reference if side.name == REFERENCE else main.candidate):
        return ""
    plan.tell("the first rows again", side.name, first)
    try:
        again, _ = answers(side, first, plan.batch_size)
    except LikewiseError as error:
        return f"{error.message}, which it answered before"
    finally:
        plan.tell("the first rows again", side.name, first, finished=True)
    for spec in moved(again):
        return (
            f"the {side.name} changes its answers from call to call: asked twice about the same "
            f"{len(first):,} rows, {spec.reference!r} moves by up to {figure(drift(spec, before, again))}"
        )
    return ""
