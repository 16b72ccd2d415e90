"""What other batches mean under a policy: other sizes, other places in the batch, and the reference in them."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.checking import Judgement, checked, in_words
from likewise.contracts.judging import Check, Outcome, Severity
from likewise.contracts.measuring import BatchSizeFacts, Tolerance
from likewise.showing import figure, runs

ELEMENTWISE = frozenset({"max_abs_diff", "mismatch_rate", "material_flips", "nonfinite_mismatch"})
"""Limits that hold for any subset of the rows, and so for the rows run at another batch size."""

REFERENCE_REMEDY = (
    "No candidate can be like it at every size, and the candidate is not to blame; look for training mode, BatchNorm "
    "or other statistics of the batch in the reference, and call eval() before it is used"
)


def judge_batches(case: Judgement) -> None:
    """The candidate at other sizes and in other places of a batch, and whether the reference holds still there."""
    comparison, policy = case.comparison, case.policy
    if comparison.fixed_batch is not None and not policy.fixed_batch:
        case.add(
            Severity.INCONCLUSIVE,
            "fixed-batch",
            f"the candidate takes batches of {comparison.fixed_batch} only, and was checked at that size alone",
            remedy="Say --fixed-batch if that is intended, or export it with a dynamic batch axis",
        )
    for facts in comparison.batch_sizes:
        _judge_structure(case, facts)
        for check in _checks(case, facts):
            case.checks.append(check)
            if check.outcome is Outcome.FAIL:
                case.add(Severity.FAILURE, check.measure, in_words(check), output=check.output)
    known = {(check.output, check.measure) for check in case.checks if check.outcome is Outcome.FAIL}
    for facts in comparison.batch_orders:
        _judge_structure(case, facts)
        # Not among the checks, where a size stands once for every measure; and no news where a size fails by itself.
        for check in _checks(case, facts):
            if check.outcome is Outcome.FAIL and (check.output, check.measure) not in known:
                message = f"{facts.order}: {in_words(check)}"
                case.add(Severity.FAILURE, "batch-position", message, output=check.output)
    _judge_reference(case)


def _judge_structure(case: Judgement, facts: BatchSizeFacts) -> None:
    where = f"at batch size {facts.size}" + (f", {facts.order}" if facts.order else "")
    for mismatch in facts.mismatches:
        case.add(Severity.FAILURE, mismatch.code, f"{where}: {mismatch.message}", output=mismatch.output)
    for incident in facts.incidents:
        case.add(Severity.INCONCLUSIVE, incident.code, incident.message, remedy=incident.remedy)


def _checks(case: Judgement, facts: BatchSizeFacts) -> Iterator[Check]:
    if _bit_equal(case):
        return
    for limit in case.policy.limits:
        if limit.measure in ELEMENTWISE:
            for output in facts.outputs:
                if limit.output in (None, output.name, output.pair.candidate):
                    yield from checked(case, limit, output, batch_size=facts.size)


def _bit_equal(case: Judgement) -> bool:
    """Bit equality is asked for at the main size only: another batch size is another order of summation."""
    return case.policy.tolerance == Tolerance(0.0, 0.0)


def _judge_reference(case: Judgement) -> None:
    """A reference that depends on the batch is no fault of the candidate, and no ground to trust a comparison."""
    everything = (*case.comparison.batch_sizes, *case.comparison.batch_orders)
    refused = [facts for facts in everything if facts.reference]
    if refused:
        others = f", and in {len(refused) - 1} other batches" if len(refused) > 1 else ""
        case.add(
            Severity.WARNING,
            "reference-batch",
            f"at batch size {refused[0].size} {refused[0].reference[0].message}{others}",
            remedy=REFERENCE_REMEDY,
        )
    if _bit_equal(case):
        return
    for output in case.comparison.outputs:
        moved = [(facts, found) for facts in everything for found in facts.outputs if found.name == output.name]
        moved = [entry for entry in moved if entry[1].details.get("reference_drift", {}).get("rows_beyond")]
        if not moved:
            continue
        facts, worst = max(moved, key=lambda entry: entry[1].measures["reference_drift"])
        sizes = sorted({entry[0].size for entry in moved})
        order = f" with its {facts.order}" if facts.order else ""
        case.add(
            Severity.WARNING,
            "reference-batch",
            f"the reference's own {output.name!r} depends on the batch: it moves by up to "
            f"{figure(worst.measures['reference_drift'])} in a batch of {facts.size}{order}, and beyond tolerance at "
            f"batch size{'s' * (len(sizes) > 1)} {runs(sizes)}",
            output=output.name,
            remedy=REFERENCE_REMEDY,
        )
