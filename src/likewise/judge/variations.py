"""What is made of the variations: other batches, rows made to find trouble, other lengths, other settings.

A suite is judged under the limits that make sense for it, and one line says what it showed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from likewise.compare.variations import settings
from likewise.compare.variations.refusals import OUTSIDE
from likewise.contracts.comparison import BatchSizeFacts, Cast, Incident, OutputFacts, SuiteFacts
from likewise.contracts.verdict import (
    Check,
    Finding,
    Limit,
    Outcome,
    Policy,
    Severity,
    SuiteVerdict,
    Verdict,
    at_sizes,
    figure,
    runs,
)
from likewise.data.cells import listed
from likewise.judge.findings import Judgement, checked, concerns, in_words

ELEMENTWISE = frozenset({"max_abs_diff", "mismatch_rate", "material_flips", "nonfinite_mismatch"})
"""Limits that hold for any subset of the rows, and so for the rows run at another batch size."""

SHAPE = "shape"
MADE = ("edge", SHAPE)
"""Kinds of suites whose rows nobody sent."""

ANY_ROWS = frozenset(
    {
        "max_abs_diff",
        "max_rel_diff",
        "max_ulp_diff",
        "mismatch_rate",
        "material_flips",
        "label_flips",
        "nonfinite_mismatch",
    }
)
"""Limits that hold for any rows. Means, quantiles and rates speak of rows as they come, and these rows do not come."""

LONGEST = 240
"""Characters of what a mismatch says that are repeated; models can be wordy."""

REFERENCE_REMEDY = (
    "The candidate is not to blame; look for training mode, BatchNorm or other statistics of the batch in the "
    "reference, and call eval() before it is used"
)

USUAL = "only the reference refuses such values, as usual"
"""What is said of values that are no ordinary numbers; `--edge strict` blocks on it."""

SHAPE_REMEDY = (
    "The file leaves this axis open: export it so that it holds at every length, or with a fixed one; if only "
    "the length of the data occurs, use --shapes none"
)

SETTING_REMEDY = (
    "Deploy it with a setting that agrees, or look into the one that does not: likewise explain --candidate-option"
)


def judge_batches(case: Judgement) -> None:
    """The candidate at other sizes and in other places of a batch, and whether the reference holds still there."""
    comparison, policy = case.comparison, case.policy
    if comparison.fixed_batch is not None and not policy.fixed_batch:
        _judge_fixed(case, comparison.fixed_batch)
    _judge_structure(case)
    failed: dict[tuple[str, str], list[Check]] = {}
    for facts in comparison.batch_sizes:
        for check in _checks(case, facts):
            case.checks.append(check)
            if check.outcome is Outcome.FAIL:
                failed.setdefault((check.output, check.measure), []).append(check)
    for first, *others in failed.values():
        sizes = sorted(check.batch_size for check in others if check.batch_size is not None)
        also = f"; {at_sizes(sizes, ())} too" if sizes else ""
        case.fail(first.measure, in_words(first) + also, output=first.output)
    known = {(check.output, check.measure) for check in case.checks if check.outcome is Outcome.FAIL}
    for facts in comparison.batch_orders:
        # Not among the checks, where a size stands once for every measure; and no news where a size fails by itself.
        for check in _checks(case, facts):
            if check.outcome is Outcome.FAIL and (check.output, check.measure) not in known:
                message = f"{facts.order}: {in_words(check)}"
                case.fail("batch-position", message, output=check.output)
    _judge_reference(case)


def _judge_fixed(case: Judgement, size: int) -> None:
    """A candidate that takes one size only is decided on data of that size, and on no other."""
    tell, reach = case.doubt, ", and was checked at that size alone"
    if case.comparison.rows in (0, size):
        tell, reach = case.warn, ", the size of the data; no other size could be tried"
    remedy = "Use --fixed-batch if that is intended, or export it with a dynamic batch axis"
    tell("fixed-batch", f"the candidate only takes batches of {size}{reach}", remedy=remedy)


def _judge_structure(case: Judgement) -> None:
    """What is wrong in other batches, whatever the values are: once for all sizes at which it is."""
    broken: dict[tuple[str, str | None], list[tuple[BatchSizeFacts, str]]] = {}
    stopped: dict[tuple[str, str], Incident] = {}
    for facts in (*case.comparison.batch_sizes, *case.comparison.batch_orders):
        for mismatch in facts.mismatches:
            broken.setdefault((mismatch.code, mismatch.output), []).append((facts, mismatch.message))
        for incident in facts.incidents:
            stopped.setdefault((incident.code, incident.remedy), incident)
    for incident in stopped.values():
        case.doubt(incident.code, incident.message, remedy=incident.remedy)
    for (code, output), found in broken.items():
        facts, message = found[0]
        order = f", {facts.order}" if facts.order else ""
        sizes = sorted({other.size for other, _ in found} - {facts.size})
        also = f"; {at_sizes(sizes, ())} too" if sizes else ""
        case.fail(code, f"at batch size {facts.size}{order}: {message}{also}", output=output)


def _checks(case: Judgement, facts: BatchSizeFacts) -> Iterator[Check]:
    there = _in_other_batches(case)
    for limit in there.policy.limits:
        for output in facts.outputs if limit.measure in ELEMENTWISE else ():
            if concerns(limit, output):
                yield from checked(there, limit, output, batch_size=facts.size)
    case.findings.extend(there.findings)


def _in_other_batches(case: Judgement) -> Judgement:
    """The same facts under what is asked of other batches: never bit equality, and never nothing."""
    comparison, policy = case.comparison, case.policy
    tolerance, limits = policy.tolerance.in_other_batches, policy.limits
    if tolerance != policy.tolerance:
        given = (limit for limit in limits if limit.bound > 0)
        limits = (
            *(Limit(measure, 0.0) for measure in ("mismatch_rate", "material_flips", "nonfinite_mismatch")),
            *given,
        )
    measured = replace(comparison, tolerance=comparison.tolerance.in_other_batches)
    return Judgement(measured, replace(policy, tolerance=tolerance, limits=limits))


UNTRIED = "untried"
KINDS = {"batch": "batch sizes", SHAPE: "lengths", "edge": "edge suites"}
"""What was not tried, by kind."""


def judge_untried(case: Judgement) -> None:
    """What would have taken longer than it may: a verdict does not hide what it does not cover."""
    left = []
    for found in case.comparison.untried:
        sizes = sorted(int(name) for name in found.names if name.isdecimal())
        others = [name for name in found.names if not name.isdecimal()]
        if found.kind == "batch":
            more = "more" if case.comparison.batch_orders else "other"
            others = [f"{more} orders"] if others else []
        left.append(f"{KINDS.get(found.kind, found.kind)} {', '.join([*([runs(sizes)] if sizes else []), *others])}")
    if left:
        case.note(UNTRIED, f"not tried for lack of time (--thorough tries it): {'; '.join(left)}")


def _judge_reference(case: Judgement) -> None:
    """A reference that depends on the batch is no fault of the candidate, and no ground to trust a comparison."""
    everything = (*case.comparison.batch_sizes, *case.comparison.batch_orders)
    refused = [facts for facts in everything if facts.reference]
    if refused:
        others = f", and in {len(refused) - 1} other batches" if len(refused) > 1 else ""
        case.warn(
            "reference-batch",
            f"at batch size {refused[0].size} {refused[0].reference[0].message}{others}",
            remedy=REFERENCE_REMEDY,
        )
    for output in case.comparison.outputs:
        moved = [(facts, found) for facts in everything for found in facts.outputs if found.name == output.name]
        moved = [entry for entry in moved if entry[1].details.get("reference_drift", {}).get("rows_beyond")]
        if not moved or output.pair.per_call:
            continue
        facts, worst = max(moved, key=lambda entry: entry[1].measures["reference_drift"])
        sizes = sorted({entry[0].size for entry in moved})
        order = f" with its {facts.order}" if facts.order else ""
        same = any(entry[0].same_batch for entry in moved)
        told = "; the candidate was compared with its answers in the same batch" if same else ""
        case.warn(
            "reference-batch",
            f"the reference's own {output.name!r} depends on the batch: it moves by up to "
            f"{figure(worst.measures['reference_drift'])} in a batch of {facts.size}{order}, and beyond tolerance at "
            f"batch size{'s' * (len(sizes) > 1)} {runs(sizes)}{told}",
            output=output.name,
            remedy=REFERENCE_REMEDY,
        )


def policy_on(facts: SuiteFacts, policy: Policy) -> Policy:
    """What is asked of a suite. Few rows claim nothing about a rate, and no suite is swept over batch sizes."""
    limits = tuple(limit for limit in policy.limits if not limit.measure.endswith("_drift"))
    if facts.kind in MADE:
        limits = tuple(replace(limit, explicit=False) for limit in limits if limit.measure in ANY_ROWS)
    return replace(policy, limits=limits, max_failure_rate=None, fixed_batch=True)


def suite_verdict(
    facts: SuiteFacts,
    outcome: Outcome,
    headline: str,
    checks: tuple[Check, ...] = (),
    findings: tuple[Finding, ...] = (),
) -> SuiteVerdict:
    """The verdict on a suite, under its name."""
    rows, refused = facts.comparison.rows, facts.refused
    return SuiteVerdict(
        facts.kind, facts.name, facts.title, rows, refused, facts.blocks, outcome, headline, checks, findings
    )


def suite_findings(suites: Sequence[SuiteVerdict]) -> Iterator[tuple[Finding, SuiteVerdict]]:
    """What suites that did not pass add to the findings, beside the first that it is about.

    Lengths that fail alike, and what is usual, are told once; settings are told elsewhere.
    """
    alike: dict[tuple[object, ...], list[SuiteVerdict]] = {}
    for suite in suites:
        if suite.outcome is not Outcome.PASS and suite.kind != settings.KIND and not suite.usual:
            codes = tuple(dict.fromkeys(finding.code for finding in suite.findings))
            what = (codes or suite.headline) if suite.kind == SHAPE else suite.name
            alike.setdefault((suite.kind, suite.outcome, suite.blocks, what), []).append(suite)
    for group in alike.values():
        suite, named = group[0], listed([suite.name for suite in group])
        failed = suite.outcome is Outcome.FAIL
        blocking = Severity.FAILURE if failed else Severity.INCONCLUSIVE
        severity = blocking if suite.blocks else Severity.WARNING if failed else Severity.NOTE
        remedy = SHAPE_REMEDY if suite.kind == SHAPE and suite.blocks else ""
        yield Finding(f"{suite.kind}-suite", severity, f"{named}: {suite.headline}", None, remedy), suite
    if usual := [suite for suite in suites if suite.usual]:
        names = [suite.name for suite in usual]
        yield Finding("usual-refusals", Severity.NOTE, f"{', '.join(names)}: {USUAL}"), usual[0]


def verdict_on(facts: SuiteFacts, verdict: Verdict, policy: Policy) -> SuiteVerdict:
    """The verdict on a suite from the judgement of its rows."""
    measured = facts.comparison
    if facts.refused and not (measured.rows or measured.mismatches or measured.incidents):
        return suite_verdict(facts, Outcome.PASS, f"both models refuse all {facts.refused:,} rows")
    kept = tuple(f for f in verdict.findings if f.severity in (Severity.FAILURE, Severity.INCONCLUSIVE))
    if facts.kind not in MADE:
        return suite_verdict(facts, verdict.outcome, verdict.headline, verdict.checks, kept)
    kept = tuple(finding for finding in kept if not _nothing_finite(facts, finding))
    outcome = verdict.outcome
    if outcome is Outcome.INCONCLUSIVE and not kept and verdict.checks:
        outcome = Outcome.PASS
    found = suite_verdict(facts, outcome, _headline(facts, outcome, verdict, policy), verdict.checks, kept)
    usual = outcome is Outcome.FAIL and {finding.code for finding in kept} == {OUTSIDE}
    return replace(found, usual=True, blocks=False) if usual else found


def _nothing_finite(facts: SuiteFacts, finding: Finding) -> bool:
    """Both answer NaN to NaN: of made rows that agrees, as it was asked for."""
    output = next((entry for entry in facts.comparison.outputs if entry.name == finding.output), None)
    if finding.code != "not-judged" or output is None:
        return False
    return "max_abs_diff" not in output.measures and output.measures.get("nonfinite_mismatch") == 0


def _headline(facts: SuiteFacts, outcome: Outcome, verdict: Verdict, policy: Policy) -> str:
    comparison = facts.comparison
    beyond = comparison.rows_beyond if policy.tolerance == comparison.tolerance else 0
    are = "is" if facts.refused == 1 else "are"
    refused = f", {facts.refused:,} {are} refused by both" if facts.refused else ""
    if outcome is Outcome.PASS:
        agree = "row agrees" if comparison.rows == 1 else "rows agree"
        return f"{comparison.rows:,} {agree}{refused}"
    if outcome is not Outcome.FAIL:
        return verdict.headline
    if comparison.mismatches:
        differ = "differs" if beyond == 1 else "differ"
        more = f"; {beyond:,} of those that both answer {differ}" if beyond else ""
        return _short(comparison.mismatches[0].message) + more
    worst = _worst(comparison.outputs)
    # Of NaN on both sides, where that fails, no row is the worst: they do not differ.
    if not worst or any(f.code == "nan-both" and f.severity is Severity.FAILURE for f in verdict.findings):
        return verdict.headline
    differ = "differs" if beyond == 1 else "differ"
    count = f"{beyond:,} of {comparison.rows:,} rows {differ}" if beyond else "rows differ"
    return f"{count}; {worst}{_narrowed(comparison.casts)}"


def _worst(outputs: tuple[OutputFacts, ...]) -> str:
    """The worst row in words."""
    rows = [row for output in outputs for row in output.worst_rows[:1]]
    row = max(rows, key=lambda entry: float(entry["severity"]), default=None)
    if row is None:
        return ""
    before, after = row["reference"], row["candidate"]
    # Texts that look alike are told by their signs.
    shown = [*map(ascii if _look_alike(before, after) else _answer, (before, after))]
    # Numbers that look alike are told by how far they are apart.
    alike = shown[0].replace(",", "") == shown[1].replace(",", "")
    apart = f", {figure(row['abs_diff'])} apart" if alike and "abs_diff" in row else ""
    return f"{row['row']}: {' became '.join(shown)}{apart}"


def _look_alike(one: Any, other: Any) -> bool:
    """Are these texts that differ in accents written as one sign or two, in blanks, or in what is not printed?"""
    if not (isinstance(one, str) and isinstance(other, str)):
        return False
    seen = ["".join(filter(str.isprintable, unicodedata.normalize("NFKC", text))).strip() for text in (one, other)]
    return seen[0] == seen[1]


def _narrowed(casts: tuple[Cast, ...]) -> str:
    """Columns that hold what the candidate's type does not."""
    lost = [cast for cast in casts if cast.side == "candidate" and cast.largest_relative_change == float("inf")]
    if not lost:
        return ""
    names = ", ".join(dict.fromkeys(cast.column for cast in lost[:3])) + (" and others" if len(lost) > 3 else "")
    return f"; {lost[0].target_dtype}, which the candidate takes, cannot hold such values of {names}"


def _answer(answer: Any) -> str:
    if isinstance(answer, list):
        return "[" + ", ".join(_answer(entry) for entry in answer[:3]) + (", …" if len(answer) > 3 else "") + "]"
    if isinstance(answer, dict):
        return _answer(answer.get("worst", answer.get("head")))
    return figure(answer) if isinstance(answer, float) and answer == answer else str(answer)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def setting_findings(suites: Sequence[SuiteVerdict]) -> Iterator[Finding]:
    """Where the candidate begins to differ along each option, and which settings could not be tried."""
    tried = [suite for suite in suites if suite.kind == settings.KIND]
    left: dict[tuple[str, bool], list[str]] = {}
    for suite in tried:
        if suite.outcome is Outcome.INCONCLUSIVE:
            left.setdefault((suite.headline, suite.blocks), []).append(suite.name)
    for (reason, blocks), names in left.items():
        severity = Severity.INCONCLUSIVE if blocks else Severity.NOTE
        remedy = "Run the same check on a machine that has it" if not blocks else ""
        yield Finding("setting-not-covered", severity, f"not covered: {'; '.join(names)}: {reason}", None, remedy)
    covered = [suite for suite in tried if suite.outcome is not Outcome.INCONCLUSIVE]
    failed = [suite for suite in covered if suite.outcome is Outcome.FAIL]
    if not failed:
        return
    if len(failed) == len(covered):
        every = "under every setting tried" if len(covered) > 1 else f"under {failed[0].name}"
        remedy = "No setting tried makes it agree: look at the answers themselves" if len(covered) > 1 else ""
        yield _failure(f"the candidate differs {every}: {failed[0].headline}", remedy)
        return
    along = list(_along_each_option(covered))
    yield from along
    if not along:
        places = "; ".join(suite.name for suite in failed)
        yield _failure(f"the candidate differs at {places}: {failed[0].headline}")


def _along_each_option(covered: Sequence[SuiteVerdict]) -> Iterator[Finding]:
    """An option tells something when some of its values never differ, whatever the others are."""
    assigned = {suite.name: settings.assigned_in(suite.name) for suite in covered}
    for option in assigned[covered[0].name]:
        values = list(dict.fromkeys(assigned[suite.name].get(option, "") for suite in covered))
        first = {
            value: next(
                (s for s in covered if s.outcome is Outcome.FAIL and assigned[s.name].get(option, "") == value), None
            )
            for value in values
        }
        differing = [value for value in values if first[value] is not None]
        agreeing = [value for value in values if first[value] is None]
        if not differing or not agreeing:
            continue
        begins = values.index(differing[0])
        onward = len(differing) > 1 and differing == values[begins:]
        where = (
            f"from {option}={differing[0]} on" if onward else f"at {' and '.join(f'{option}={v}' for v in differing)}"
        )
        agree = "agrees" if len(agreeing) == 1 else "agree"
        seen = first[differing[0]]
        assert seen is not None
        yield _failure(
            f"the candidate differs {where}; {', '.join(f'{option}={value}' for value in agreeing)} {agree} "
            f"({seen.name}: {seen.headline})"
        )


def _failure(message: str, remedy: str = SETTING_REMEDY) -> Finding:
    return Finding(settings.DIVERGES, Severity.FAILURE, message, None, remedy)
