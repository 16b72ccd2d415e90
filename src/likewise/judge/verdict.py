"""Comparison + policy → verdict. No arrays, no files: a finished run can be judged again.

Every test is written `not value <= limit`, so that NaN fails. Whatever was not measured is
inconclusive, never a pass. Below: what rows without a violation allow us to say about rows like them, and a gate held
against an accepted run, which is read, compared, and never ignored.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from likewise.contracts.comparison import POSITION, ROWS, Comparison, SuiteFacts
from likewise.contracts.report import Report
from likewise.contracts.verdict import (
    Confidence,
    Diff,
    Direction,
    Finding,
    Outcome,
    Policy,
    Severity,
    SuiteVerdict,
    Verdict,
    counted,
)
from likewise.errors import nearest
from likewise.judge.findings import (
    Judgement,
    checked,
    concerns,
    failure_in_words,
    generated_confidence,
    generated_findings,
    in_words,
    noise_findings,
    rows_beyond,
    wide_tolerance_findings,
)
from likewise.judge.inputs import judge_inputs
from likewise.judge.outputs import holds_numbers, judge_outputs, nan_share
from likewise.judge.policy import PRESETS
from likewise.judge.timeline import judge_timeline
from likewise.judge.variations import (
    judge_batches,
    judge_untried,
    policy_on,
    setting_findings,
    suite_findings,
    suite_verdict,
    verdict_on,
)

COUNTED = 10_000
"""Rows up to which a bound is worked out here: importing scipy for it takes longer than a small check."""

BASELINE = "baseline"
"""The code of what a gate finds when it is held against an accepted run."""

BASELINE_SHA256 = "baseline_sha256"

SAME_MODEL = "same-model"
"""The code of what is found where a model is compared with itself."""

ONLY_GROW = frozenset(
    {
        *("max_abs_diff", "max_rel_diff", "max_ulp_diff", "nonfinite_mismatch"),
        *("label_flips", "material_flips", "top1_flips", "top5_flips"),
    }
)
RATES = frozenset({"mismatch_rate", "flip_rate"})
"""Measures that further rows can only raise, and those that further rows can lower, but never to zero."""


def judge(comparison: Comparison, policy: Policy) -> Verdict:
    """What the facts mean under a policy."""
    case = Judgement(comparison, policy)
    for incident in comparison.incidents:
        case.doubt(incident.code, incident.message, remedy=incident.remedy)
    for mismatch in comparison.mismatches:
        case.fail(mismatch.code, mismatch.message, output=mismatch.output, remedy=_advice(mismatch.code))
    if not comparison.rows and not case.findings:
        case.doubt("no-rows", "no rows were compared", remedy="Give data to compare on")
    if comparison.rows:
        _judge_limits(case)
        _judge_stop(case)
        judge_outputs(case)
        _judge_pairing(case)
    judge_batches(case)
    judge_untried(case)
    judge_timeline(case)
    case.findings.extend(noise_findings(comparison, policy))
    case.findings.extend(wide_tolerance_findings(comparison, policy))
    judge_inputs(case)
    _judge_sameness(case)
    beyond = rows_beyond(case)
    state = generated_confidence if comparison.generated else confidence
    bound = None if beyond is None else state(beyond, comparison.rows, policy.confidence, comparison.unit)
    case.findings.extend(generated_findings(comparison, policy))
    _judge_reach(case, bound)
    suites = tuple(_suite(facts, policy) for facts in comparison.suites)
    case.findings.extend(setting_findings(suites))
    case.findings.extend(finding for finding, _ in suite_findings(suites))
    outcome = _outcome(case)
    if outcome is Outcome.FAIL and comparison.quantized_nodes and not _for_quantized(policy):
        case.note(
            "quantized-candidate",
            f"the candidate has {counted(comparison.quantized_nodes, 'quantised nodes')}, and the limits are for a "
            "faithful export",
            remedy="If INT8 is intended, say so: --preset quantized",
        )
    found = [_weighed(finding, outcome) for finding in case.findings]
    findings = tuple(sorted(found, key=lambda finding: list(Severity).index(finding.severity)))
    return Verdict(outcome, _headline(outcome, case), tuple(case.checks), findings, bound, suites)


def decided(comparison: Comparison, policy: Policy) -> bool:
    """Is a limit broken that no further rows can mend?"""
    case = Judgement(comparison, policy)
    _judge_limits(case)
    return any(
        check.outcome is Outcome.FAIL and (check.measure in ONLY_GROW or (check.measure in RATES and check.bound == 0))
        for check in case.checks
    )


def _suite(facts: SuiteFacts, policy: Policy) -> SuiteVerdict:
    """A suite under the limits that make sense for it."""
    if facts.not_covered:
        return suite_verdict(facts, Outcome.INCONCLUSIVE, facts.not_covered)
    asked = policy_on(facts, policy)
    # Values that were made up need not be such that the reference takes them as they are.
    casts = tuple(cast for cast in facts.comparison.casts if cast.side != "reference")
    return verdict_on(facts, judge(replace(facts.comparison, casts=casts), asked), asked)


def _judge_limits(case: Judgement) -> None:
    for limit in case.policy.limits:
        concerned = [output for output in case.comparison.outputs if concerns(limit, output)]
        checks = [check for output in concerned for check in checked(case, limit, output)]
        case.checks.extend(checks)
        if limit.of_numbers and concerned and not any(holds_numbers(output) for output in concerned):
            continue
        if limit.explicit and not checks:
            names = [output.name for output in case.comparison.outputs]
            unknown = (
                f"; there is no output {limit.output!r}{nearest(limit.output, names)}"
                if limit.output and not concerned
                else ""
            )
            measured = sorted({measure for output in concerned for measure in output.measures})
            case.doubt(
                "limit-unmeasured",
                f"nothing was measured against the limit on {limit.text}{unknown}",
                remedy=f"Outputs: {', '.join(names)}" if unknown else f"Measured: {', '.join(measured) or 'nothing'}",
            )
    for check in case.checks:
        if check.outcome is Outcome.FAIL:
            case.fail(check.measure, in_words(check), output=check.output)


def _judge_stop(case: Judgement) -> None:
    """Rows were left out because a limit was broken; under other limits they are missing."""
    if not case.comparison.stopped:
        return
    expected = case.comparison.expected_rows
    told = f"after {case.comparison.rows:,}" + (f" of {expected:,} rows" if expected else " rows")
    if any(finding.severity is Severity.FAILURE for finding in case.findings):
        case.note("stopped", f"stopped {told}: a limit could no longer hold (--fail-fast)")
    else:
        case.doubt(
            "stopped",
            f"the run was stopped {told}, and within these limits the others count",
            remedy="Run it again without --fail-fast",
        )


def _judge_pairing(case: Judgement) -> None:
    """Outputs that only their order says belong together."""
    pairs = [output.pair for output in case.comparison.outputs if output.pair.matched_by == POSITION]
    if pairs:
        told = ", ".join(f"{pair.candidate!r} with {pair.reference!r}" for pair in pairs[:6])
        case.warn(
            "paired-by-position",
            "outputs were paired by their order, because neither names nor shapes tell which belong together: "
            f"{told}{', …' * (len(pairs) > 6)}",
            remedy=f"If that is wrong, use --pair {shlex.quote(f'{pairs[0].candidate}=NAME')}",
        )


def _judge_sameness(case: Judgement) -> None:
    """A model agrees with itself: that tells nothing about a candidate, and is hardly what was meant."""
    if case.comparison.same_model and not case.policy.allow_same:
        case.doubt(
            SAME_MODEL,
            "the reference and the candidate are one and the same model, opened with the same options",
            remedy="Name the candidate; if this is intended, use --allow-same",
        )
    elif case.comparison.same_bytes and not case.policy.allow_same:
        case.warn(
            SAME_MODEL,
            "the files of the reference and of the candidate hold the same bytes",
            remedy="Check that the step which makes the candidate has run; if this is intended, use --allow-same",
        )


def _judge_reach(case: Judgement, bound: Confidence | None) -> None:
    rate = case.policy.max_failure_rate
    if rate is None or not case.comparison.rows or case.comparison.generated:
        return
    if bound is None:
        case.doubt(
            "undecided",
            "how many rows are beyond the new tolerance cannot be told from the stored facts",
            remedy="Run the check again with this tolerance",
        )
        return
    if bound.upper_bound <= rate:
        return
    unit = case.comparison.unit
    if bound.violations:
        are = "is" if bound.violations == 1 else "are"
        beyond = f"{bound.violations:,} of {bound.rows:,} {unit} {are} beyond tolerance"
        message = f"{beyond}, which does not rule out {percent(rate)}"
    else:
        message = f"{bound.rows:,} {unit} cannot show that fewer than {percent(rate)} are beyond tolerance"
    needed = rows_needed(rate, case.policy.confidence)
    case.doubt(
        "too-few-rows",
        message,
        remedy=f"It takes {needed:,} {unit}, none beyond tolerance, at {100 * case.policy.confidence:.4g}% confidence",
    )


def _outcome(case: Judgement) -> Outcome:
    severities = {finding.severity for finding in case.findings}
    if case.comparison.incidents:
        return Outcome.INCONCLUSIVE
    if Severity.FAILURE in severities:
        return Outcome.FAIL
    if Severity.INCONCLUSIVE in severities or not case.checks:
        return Outcome.INCONCLUSIVE
    return Outcome.PASS


def _weighed(finding: Finding, outcome: Outcome) -> Finding:
    """What was compared may break a limit; where not all could be compared, that is told and decides nothing."""
    if outcome is Outcome.INCONCLUSIVE and finding.severity is Severity.FAILURE:
        return replace(finding, severity=Severity.WARNING)
    return finding


def _headline(outcome: Outcome, case: Judgement) -> str:
    comparison = case.comparison
    if outcome is Outcome.INCONCLUSIVE:
        return _first(case.findings, Severity.INCONCLUSIVE) or "nothing was judged"
    if outcome is Outcome.FAIL:
        first = next(finding for finding in case.findings if finding.severity is Severity.FAILURE)
        failed = [check for check in case.checks if check.outcome is Outcome.FAIL]
        if any((check.output, check.measure) == (first.output, first.code) for check in failed):
            return failure_in_words(case, [check for check in failed if check.batch_size is None] or failed)
        count = rows_beyond(case)
        rows = f"generated {comparison.unit}" if comparison.generated else comparison.unit
        are = "is" if count == 1 else "are"
        beyond = f"; {count:,} of {comparison.rows:,} {rows} {are} beyond tolerance" if count else ""
        return first.message + beyond
    differences = [o.measures["max_abs_diff"] for o in comparison.outputs if "max_abs_diff" in o.measures]
    largest = f", largest difference {max(differences):.3g}" if differences else ""
    kind = f"{'generated ' if comparison.generated else ''}{comparison.unit}"
    agree = f"{kind} agree" if comparison.rows != 1 else f"{kind.removesuffix('s')} agrees"
    nan = [f"{share} is NaN on both sides" for output in comparison.outputs if (share := nan_share(output))]
    return "; ".join([f"{comparison.rows:,} {agree}{largest}", *nan])


def _first(findings: Iterable[Finding], severity: Severity) -> str | None:
    return next((finding.message for finding in findings if finding.severity is severity), None)


def _advice(code: str) -> str:
    return {
        "extra-output": "Use --pair candidate_output=reference_output, or leave it out with --ignore NAME",
        "row-count": "Every output needs one answer per row along its first axis; say --batch-axis OUTPUT:1 where its "
        "rows lie elsewhere, or --batch-axis none where every call is one sample",
        "classes": "Export the model that was trained on these classes",
        "unstable": "Look for dropout, random numbers and state that one call leaves to the next, before comparing",
    }.get(code, "")


def _for_quantized(policy: Policy) -> bool:
    return policy.tolerance.absolute >= PRESETS["quantized"].absolute


def upper_bound(violations: int, rows: int, level: float) -> float:
    """The Clopper–Pearson upper bound: the largest failure rate that the rows do not rule out."""
    if violations >= rows:
        return 1.0
    if not violations:
        return -math.expm1(math.log1p(-level) / rows)
    if rows > COUNTED:
        from scipy.special import betaincinv

        return float(betaincinv(violations + 1, rows - violations, level))
    ways = math.log(math.comb(rows, violations))
    low, high = violations / rows, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _at_most(violations, rows, middle, ways) > 1.0 - level else (low, middle)
    return high


def _at_most(violations: int, rows: int, rate: float, ways: float) -> float:
    """How likely so many violations or fewer are at a rate above theirs; `ways`: the logarithm of how they may lie."""
    term = math.exp(ways + violations * math.log(rate) + (rows - violations) * math.log1p(-rate))
    total = term
    for count in range(violations, 0, -1):
        term *= count * (1.0 - rate) / ((rows - count + 1) * rate)
        total += term
        if term < total * 1e-17:
            break
    return total


def rows_needed(rate: float, level: float, violations: int = 0) -> int:
    """How many rows with so many violations it takes to rule out a failure rate."""
    if not violations:
        return math.ceil(math.log(1.0 - level) / math.log1p(-rate))
    low, high = violations, violations + 1
    while upper_bound(violations, high, level) > rate:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if upper_bound(violations, middle, level) > rate else (low, middle)
    return high


def confidence(violations: int, rows: int, level: float, unit: str = ROWS) -> Confidence | None:
    """The bound and the sentence that states it; None where there are no rows to speak of."""
    if rows == 0:
        return None
    bound = upper_bound(violations, rows, level)
    like = f"at {100 * level:.4g}% confidence fewer than {percent(bound)} of {unit} like these are"
    statement = f"{violations:,} of {rows:,} {unit} beyond tolerance"
    if not violations:
        statement = f"{like} beyond tolerance"
    elif percent(bound) != "100%":
        statement += f": {like}"
    return Confidence(level, rows, violations, bound, statement)


def percent(share: float) -> str:
    """A share in percent, rounded up to two digits so that it stays an upper bound."""
    if share <= 0 or share >= 1:
        return f"{100 * share:.0f}%"
    digits = 1 - math.floor(math.log10(100 * share))
    scale = 10.0**digits
    rounded = f"{math.ceil(100 * share * scale - 1e-9) / scale:.{max(digits, 0)}f}"
    return f"{rounded.rstrip('0').rstrip('.') if '.' in rounded else rounded}%"


def with_baseline(report: Report, **stated: Any) -> Report:
    """The report with another baseline, or another `max_worse`, in its settings."""
    settings = {
        name: value
        for name, value in report.origin.settings.items()
        if name != BASELINE_SHA256 or "baseline" not in stated
    }
    return replace(report, origin=replace(report.origin, settings={**settings, **stated}))


def held_against(report: Report, accepted: Report, sha256: str) -> Report:
    """The report, also judged against the accepted run, whose file has this hash."""
    from likewise.judge.diff import ALLOW

    settings = report.origin.settings
    if settings.get(BASELINE_SHA256, sha256) != sha256:
        return baseline_undecided(
            report, f"{settings['baseline']} is not the file that this run was held against before"
        )
    max_worse = float(settings.get("max_worse", ALLOW))
    return against_baseline(
        accepted, with_baseline(report, **{BASELINE_SHA256: sha256, "max_worse": max_worse}), max_worse=max_worse
    )


def nothing_to_explain(report: Report) -> bool:
    """Does nothing that experiments could explain keep this report from passing?"""
    decisive = [f for f in report.verdict.findings if f.severity in (Severity.FAILURE, Severity.INCONCLUSIVE)]
    beyond_models = (BASELINE, SAME_MODEL, "ended-early", "too-few-rows", "limit-unmeasured")
    failed = any(check.outcome is Outcome.FAIL for check in report.verdict.checks) or report.comparison.mismatches
    return bool(decisive) and not failed and all(finding.code in beyond_models for finding in decisive)


def baseline_undecided(report: Report, told: str) -> Report:
    """The report where the accepted run that its settings name cannot be used."""
    remedy = "Give the JSON report of an accepted run: --baseline FILE"
    return _with_findings(report, [Finding(BASELINE, Severity.INCONCLUSIVE, f"baseline: {told}", remedy=remedy)])


def against_baseline(baseline: Report, report: Report, *, max_worse: float) -> Report:
    """A report that was also held against an accepted run: what is worse than there fails."""
    if report.outcome is Outcome.INCONCLUSIVE:
        return report
    from likewise.judge.diff import diff

    found = diff(baseline, report, allow=max_worse)
    return _with_findings(report, _findings_against(found, baseline))


def _with_findings(report: Report, findings: Sequence[Finding]) -> Report:
    """The report with more findings, and with the outcome they leave it."""
    verdict = report.verdict
    severities = [finding.severity for finding in findings]
    outcome = verdict.outcome
    if outcome is Outcome.PASS and Severity.FAILURE in severities:
        outcome = Outcome.FAIL
    elif outcome is Outcome.PASS and Severity.INCONCLUSIVE in severities:
        outcome = Outcome.INCONCLUSIVE
    decisive = Severity.FAILURE if outcome is Outcome.FAIL else Severity.INCONCLUSIVE
    headline = verdict.headline
    if outcome is not verdict.outcome:
        headline = next(finding.message for finding in findings if finding.severity is decisive)
    together = sorted((*verdict.findings, *findings), key=lambda finding: list(Severity).index(finding.severity))
    return replace(report, verdict=replace(verdict, outcome=outcome, headline=headline, findings=tuple(together)))


def _findings_against(found: Diff, baseline: Report) -> list[Finding]:
    remedy = "If that is intended, accept this run as the new baseline"
    if found.doubts:
        return [Finding(BASELINE, Severity.INCONCLUSIVE, f"baseline: {doubt}", remedy=remedy) for doubt in found.doubts]
    findings, name = [], "baseline"
    if baseline.outcome is Outcome.FAIL:
        name = "baseline, a FAIL itself"
        warning = "baseline: the accepted run is a FAIL itself"
        findings.append(Finding(BASELINE, Severity.WARNING, warning, remedy="Accept a run that passes"))
    severities = {Direction.WORSE: Severity.FAILURE, Direction.UNKNOWN: Severity.INCONCLUSIVE}
    for told in found.lines(*severities):
        change = told.change
        # The outcome and the findings of this run are in its own verdict already.
        if change.subject in ("outcome", "finding"):
            continue
        severity = severities[change.direction] if change.blocks else Severity.WARNING
        findings.append(Finding(BASELINE, severity, f"{name}: {told.message}", change.output, remedy))
        remedy, name = "", "baseline"
    return findings
