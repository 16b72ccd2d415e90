"""The same question again: a model that changes its answers from call to call is no model that differs.

Dropout that stays on, a random number, a counter, a state that the last call left behind. The main run asks about the
first rows a second time anyway. Only where its answers are not those given before, or something else is wrong, is
the very same call made once more: what depends on the batch answers it as before.
"""

from __future__ import annotations

from dataclasses import replace

from likewise.compare.call import Side, answers
from likewise.compare.observe import CANDIDATE, REFERENCE, Prepared, paired, rows_beyond
from likewise.compare.session import Head
from likewise.compare.variations.batches import differs, drift, moves, own_output
from likewise.contracts.comparison import Comparison, Incident, Mismatch, PairSpec, Plan
from likewise.contracts.data import Tensors
from likewise.contracts.words import figure
from likewise.errors import LikewiseError
from likewise.registry import adapter

UNSTABLE = "unstable"

REMEDY = (
    "Look for dropout, random numbers and state that one call leaves to the next; call eval(), or fix the seed before "
    "every call"
)


def run(plan: Plan, prepared: Prepared, head: Head, comparison: Comparison) -> Comparison:
    """The facts, and which of the models does not answer the same question alike."""
    doubtful = _anything_wrong(comparison)
    moved = {side.name: _unstable(plan, prepared, side, head, doubtful=doubtful) for side in _asked(plan, prepared)}
    if told := moved.get(REFERENCE):
        incident = Incident(UNSTABLE, f"{told}: there is nothing to compare with", REMEDY, REFERENCE)
        return replace(comparison, incidents=(*comparison.incidents, incident))
    if told := moved.get(CANDIDATE):
        return replace(comparison, mismatches=(Mismatch(UNSTABLE, told), *comparison.mismatches))
    return comparison


def _asked(plan: Plan, prepared: Prepared) -> list[Side]:
    """Recorded answers do not change."""
    models = {REFERENCE: plan.reference, CANDIDATE: plan.candidate}
    sides = (prepared.reference, prepared.candidate)
    return [side for side in sides if not adapter(models[side.name].framework).answers_only]


def _anything_wrong(comparison: Comparison) -> bool:
    swept = (*comparison.batch_sizes, *comparison.batch_orders)
    return bool(comparison.rows_beyond or comparison.mismatches) or any(differs(f) or moves(f) for f in swept)


def _unstable(plan: Plan, prepared: Prepared, side: Side, head: Head, *, doubtful: bool) -> str:
    """Words for how a model's answers to the first rows change; nothing where they stay."""
    before = prepared.answered[side.name]
    main = head.slice(len(prepared.first))
    now = main.reference if side.name == REFERENCE else main.candidate
    if not doubtful and not any(_moved(prepared, spec, before, now) for spec in _own(prepared, side)):
        return ""
    plan.tell("the first rows again", side.name, prepared.first)
    try:
        again, _ = answers(side, prepared.first, plan.batch_size)
    except LikewiseError as error:
        return f"{error.message}, which it answered before"
    finally:
        plan.tell("the first rows again", side.name, prepared.first, finished=True)
    for spec in _own(prepared, side):
        if _moved(prepared, spec, before, again):
            by = figure(drift(spec, before, again))
            return (
                f"the {side.name} changes its answers from call to call: asked twice about the same "
                f"{len(prepared.first):,} rows, {spec.reference!r} moves by up to {by}"
            )
    return ""


def _own(prepared: Prepared, side: Side) -> list[PairSpec]:
    pairs = prepared.pairing.pairs
    return [own_output(spec, spec.reference if side.name == REFERENCE else spec.candidate) for spec in pairs]


def _moved(prepared: Prepared, own: PairSpec, before: Tensors, after: Tensors) -> bool:
    pair = paired(own, prepared.first, before, after, prepared.tolerance.in_other_batches)
    return isinstance(pair, Mismatch) or bool(rows_beyond(pair).any())
