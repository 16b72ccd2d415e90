"""Comparison + policy → verdict. No arrays, no files: a finished run can be judged again.

Every test is written `not value <= limit`, so that NaN fails. Whatever was not measured is
inconclusive, never a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from likewise.confidence import confidence, percent, rows_needed
from likewise.contracts.judging import (
    Check,
    Confidence,
    Finding,
    Limit,
    Outcome,
    Policy,
    Severity,
    SuiteVerdict,
    Verdict,
)
from likewise.contracts.measuring import BatchSizeFacts, Cast, Comparison, OutputFacts, SuiteFacts, Tolerance
from likewise.contracts.models import Kind
from likewise.decoding import kind_of
from likewise.errors import nearest
from likewise.policies import AT_LEAST, PRESETS
from likewise.showing import figure
from likewise.summing import flips_above, mismatch_bounds

ELEMENTWISE = frozenset({"max_abs_diff", "mismatch_rate", "material_flips", "nonfinite_mismatch"})
"""Limits that hold for any subset of the rows, and so for the rows run at another batch size."""

NOTABLE_CHANGE = 1e-6
"""A relative change of an input above this is more than the rounding of float64 to float32."""

ROUNDING = 0.01
"""How far outside 0 and 1 rounding may carry a probability, also an INT8 one; what is further out is none."""


@dataclass(slots=True)
class _Judgement:
    comparison: Comparison
    policy: Policy
    checks: list[Check] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add(self, severity: Severity, code: str, message: str, *, output: str | None = None, remedy: str = "") -> None:
        self.findings.append(Finding(code, severity, message, output, remedy))


def judge(comparison: Comparison, policy: Policy) -> Verdict:
    """What the facts mean under a policy."""
    case = _Judgement(comparison, policy)
    for incident in comparison.incidents:
        case.add(Severity.INCONCLUSIVE, incident.code, incident.message, remedy=incident.remedy)
    for mismatch in comparison.mismatches:
        case.add(
            Severity.FAILURE, mismatch.code, mismatch.message, output=mismatch.output, remedy=_advice(mismatch.code)
        )
    if not comparison.rows and not case.findings:
        case.add(Severity.INCONCLUSIVE, "no-rows", "no rows were compared", remedy="Give data to compare on")
    if comparison.rows:
        _judge_limits(case)
        _judge_outputs(case)
    _judge_batch_sizes(case)
    _judge_inputs(case)
    beyond = _rows_beyond(case)
    bound = None if beyond is None else confidence(beyond, comparison.rows, policy.confidence)
    _judge_reach(case, bound)
    suites = tuple(_suite(facts, policy) for facts in comparison.suites)
    _judge_suites(case, suites)
    outcome = _outcome(case)
    if outcome is Outcome.FAIL and comparison.quantized_nodes and not _for_quantized(policy):
        case.add(
            Severity.NOTE,
            "quantized-candidate",
            f"the candidate has {comparison.quantized_nodes} quantised nodes, and the limits are for a faithful export",
            remedy="If INT8 is intended, say so: --preset quantized",
        )
    findings = tuple(sorted(case.findings, key=lambda finding: list(Severity).index(finding.severity)))
    return Verdict(outcome, _headline(outcome, case), tuple(case.checks), findings, bound, suites)


def _suite(facts: SuiteFacts, policy: Policy) -> SuiteVerdict:
    """A suite under the same limits as the data. Few rows claim nothing about a rate, so none is asked of them."""
    told = (facts.kind, facts.name, facts.title, facts.comparison.rows, facts.refused, facts.blocks)
    if facts.not_covered:
        return SuiteVerdict(*told, Outcome.INCONCLUSIVE, facts.not_covered)
    verdict = judge(facts.comparison, replace(policy, max_failure_rate=None, fixed_batch=True))
    if facts.refused and not facts.comparison.rows and not facts.comparison.mismatches:
        return SuiteVerdict(*told, Outcome.PASS, f"both models refuse all of {facts.refused:,} rows")
    kept = tuple(f for f in verdict.findings if f.severity in (Severity.FAILURE, Severity.INCONCLUSIVE))
    return SuiteVerdict(*told, verdict.outcome, verdict.headline, verdict.checks, kept)


def _judge_suites(case: _Judgement, suites: Sequence[SuiteVerdict]) -> None:
    for suite in suites:
        if suite.outcome is Outcome.PASS:
            continue
        failed = suite.outcome is Outcome.FAIL
        blocking = Severity.FAILURE if failed else Severity.INCONCLUSIVE
        severity = blocking if suite.blocks else Severity.WARNING if failed else Severity.NOTE
        case.add(severity, f"{suite.kind}-suite", f"{suite.name}: {suite.headline}")


def _judge_limits(case: _Judgement) -> None:
    for limit in case.policy.limits:
        concerned = [o for o in case.comparison.outputs if limit.output in (None, o.name, o.pair.candidate)]
        checks = [check for output in concerned for check in _check(case, limit, output)]
        case.checks.extend(checks)
        if limit.explicit and not checks:
            names = [output.name for output in case.comparison.outputs]
            unknown = (
                f"; there is no output {limit.output!r}{nearest(limit.output, names)}"
                if limit.output and not concerned
                else ""
            )
            measured = sorted({measure for output in concerned for measure in output.measures})
            case.add(
                Severity.INCONCLUSIVE,
                "limit-unmeasured",
                f"nothing was measured against the limit on {limit.text}{unknown}",
                remedy=f"Outputs: {', '.join(names)}" if unknown else f"Measured: {', '.join(measured) or 'nothing'}",
            )
    for check in case.checks:
        if check.outcome is Outcome.FAIL:
            case.add(Severity.FAILURE, check.measure, _beyond(check), output=check.output)


def _judge_outputs(case: _Judgement) -> None:
    judged = {check.output for check in case.checks if check.measure != "nonfinite_mismatch"}
    mismatched = {mismatch.output for mismatch in case.comparison.mismatches}
    for output in case.comparison.outputs:
        measures = output.measures
        hollow = "nonfinite_mismatch" in measures and "max_abs_diff" not in measures
        unjudged = output.name not in judged and output.name not in mismatched
        if hollow or (unjudged and (output.pair.kind is not Kind.LABEL or not judged)):
            case.add(
                Severity.INCONCLUSIVE,
                "not-judged",
                f"output {output.name!r} was not judged: "
                + ("none of its values is finite on both sides" if hollow else "no limit applies to it"),
                output=output.name,
                remedy="Set a limit that applies, such as --limit label_flips=0"
                if output.pair.kind is Kind.LABEL
                else "Look at the worst rows in the report, and at the models' answers to them",
            )
        elif not unjudged and measures.get("label_flips") and not measures["material_flips"]:
            flips = int(measures["label_flips"])
            case.add(Severity.NOTE, "label-flips", f"{flips:,} labels changed, all within noise", output=output.name)
        elif unjudged and measures.get("label_flips"):
            case.add(
                Severity.WARNING,
                "label-flips",
                f"{int(measures['label_flips']):,} of {case.comparison.rows:,} labels of {output.name!r} changed, "
                f"{int(measures['material_flips']):,} by more than noise, and no limit applies to them",
                output=output.name,
                remedy="Set one with --limit material_flips=0",
            )
        if measures.get("nan_both"):
            severity = Severity.NOTE if case.policy.nan_equal else Severity.FAILURE
            case.add(
                severity, "nan-both", f"{int(measures['nan_both']):,} values are NaN on both sides", output=output.name
            )
        _judge_constancy(case, output)
        _judge_meaning(case, output)
        if output.details.get("agreement", {}).get("types_differ"):
            case.add(
                Severity.WARNING,
                "label-types",
                f"labels of {output.name!r} are text on one side and numbers on the other: none can be equal",
                output=output.name,
                remedy="Export the labels themselves, not their positions",
            )
    for name in case.comparison.not_compared:
        case.add(
            Severity.NOTE, "not-compared", f"the candidate does not give {name!r}, which was therefore not compared"
        )


def _judge_constancy(case: _Judgement, output: OutputFacts) -> None:
    facts = output.details.get("closeness") or output.details.get("agreement") or {}
    constant = [side for side in ("reference", "candidate") if facts.get(f"constant_{side}")]
    if not constant or not case.comparison.varied or case.comparison.rows < 2:
        return
    who = "both models give" if len(constant) == 2 else f"the {constant[0]} gives"
    case.add(
        Severity.WARNING,
        "constant-output",
        f"{who} the same {output.name!r} for every one of {case.comparison.rows:,} rows of varied data",
        output=output.name,
        remedy="Check that the data reaches the model",
    )


def _judge_meaning(case: _Judgement, output: OutputFacts) -> None:
    """Raw scores go under the name of probabilities in some exports."""
    extremes = output.details.get("extremes", {})
    if not _leaves_unit(extremes.get("candidate")) or _leaves_unit(extremes.get("reference")):
        return
    low, high = extremes["candidate"]
    scores = [name for name in case.comparison.not_compared if kind_of(name, None) is Kind.SCORE]
    whole = output.name == output.pair.reference
    case.add(
        Severity.WARNING,
        "not-probabilities",
        f"{output.pair.candidate!r} of the candidate goes from {low:.4g} to {high:.4g}: "
        "these are scores, not probabilities",
        output=output.name,
        remedy=f"If scores are intended, compare them with scores: --pair {output.pair.candidate}={scores[0]}"
        if scores and whole
        else "Export probabilities, or pair them with the reference's scores: --pair candidate_output=scores",
    )


def _leaves_unit(bounds: Sequence[float] | None) -> bool:
    return bounds is not None and not (bounds[0] >= -ROUNDING and bounds[1] <= 1 + ROUNDING)


def _judge_batch_sizes(case: _Judgement) -> None:
    comparison, policy = case.comparison, case.policy
    if comparison.fixed_batch is not None and not policy.fixed_batch:
        case.add(
            Severity.INCONCLUSIVE,
            "fixed-batch",
            f"the candidate takes batches of {comparison.fixed_batch} only, and was checked at that size alone",
            remedy="Say --fixed-batch if that is intended, or export it with a dynamic batch axis",
        )
    for facts in comparison.batch_sizes:
        for mismatch in facts.mismatches:
            case.add(
                Severity.FAILURE,
                mismatch.code,
                f"at batch size {facts.size}: {mismatch.message}",
                output=mismatch.output,
            )
        for incident in facts.incidents:
            case.add(Severity.INCONCLUSIVE, incident.code, incident.message, remedy=incident.remedy)
        for check in _batch_size_checks(case, facts):
            case.checks.append(check)
            if check.outcome is Outcome.FAIL:
                case.add(Severity.FAILURE, check.measure, _beyond(check), output=check.output)


def _batch_size_checks(case: _Judgement, facts: BatchSizeFacts) -> Iterator[Check]:
    # Bit equality is asked for at the main size only: another batch size is another order of summation.
    if case.policy.tolerance == Tolerance(0.0, 0.0):
        return
    for limit in case.policy.limits:
        if limit.measure in ELEMENTWISE:
            for output in facts.outputs:
                if limit.output in (None, output.name, output.pair.candidate):
                    yield from _check(case, limit, output, batch_size=facts.size)


def _judge_inputs(case: _Judgement) -> None:
    for cast in case.comparison.casts:
        if cast.changed and (cast.largest_relative_change > NOTABLE_CHANGE or cast.note):
            case.add(Severity.WARNING, "lossy-input", _lost(cast))
        elif cast.note:
            case.add(Severity.NOTE, "converted-input", f"{cast.column!r}, fed to the {cast.side}: {cast.note}")
    for warning in case.comparison.warnings:
        case.add(Severity.WARNING, "runner-warning", warning)
    for doubt in case.comparison.lineage:
        case.add(Severity.WARNING, "stale-artefact", doubt, remedy="Export or quantise it again from this reference")
    for note in case.comparison.notes:
        case.add(Severity.NOTE, "note", note)


def _judge_reach(case: _Judgement, bound: Confidence | None) -> None:
    rate = case.policy.max_failure_rate
    if rate is None or not case.comparison.rows:
        return
    if bound is None:
        case.add(
            Severity.INCONCLUSIVE,
            "undecided",
            "how many rows are beyond the new tolerance cannot be told from the stored facts",
            remedy="Run the check again with this tolerance",
        )
        return
    if bound.upper_bound <= rate:
        return
    if bound.violations:
        message = (
            f"{bound.violations:,} of {bound.rows:,} rows are beyond tolerance, which does not rule out {percent(rate)}"
        )
    else:
        message = f"{bound.rows:,} rows cannot show that fewer than {percent(rate)} are beyond tolerance"
    needed = rows_needed(rate, case.policy.confidence)
    case.add(
        Severity.INCONCLUSIVE,
        "too-few-rows",
        message,
        remedy=f"It takes {needed:,} rows, none beyond tolerance, at {100 * case.policy.confidence:.4g}% confidence",
    )


def _check(case: _Judgement, limit: Limit, output: OutputFacts, batch_size: int | None = None) -> Iterator[Check]:
    """The limit beside its measure, if the output has it."""
    value = output.measures.get(limit.measure)
    if value is None:
        return
    within = value >= limit.bound if limit.measure in AT_LEAST else value <= limit.bound
    outcome = Outcome.PASS if within else Outcome.FAIL
    if case.policy.tolerance != case.comparison.tolerance and limit.measure in ("mismatch_rate", "material_flips"):
        outcome, value = _again(case, limit, output)
    if outcome is Outcome.INCONCLUSIVE:
        where = f" at batch size {batch_size}" if batch_size is not None else ""
        case.add(
            Severity.INCONCLUSIVE,
            "undecided",
            f"{output.name}.{limit.measure}{where} cannot be decided under the new tolerance from the stored facts",
            output=output.name,
            remedy="Run the check again with this tolerance",
        )
    yield Check(output.name, limit.measure, value, limit.bound, outcome, batch_size)


def _again(case: _Judgement, limit: Limit, output: OutputFacts) -> tuple[Outcome, float | None]:
    """A measure that depends on the tolerance, under another tolerance than the run's.

    The stored facts bound it from both sides: what is published is the bound that decides.
    """
    low, high = _bounds(output, limit.measure, case.policy.tolerance)
    if high <= limit.bound:
        return Outcome.PASS, high
    return (Outcome.INCONCLUSIVE, None) if low <= limit.bound else (Outcome.FAIL, low)


def _bounds(output: OutputFacts, measure: str, tolerance: Tolerance) -> tuple[float, float]:
    """The least and the most that `mismatch_rate` or `material_flips` can be under a tolerance."""
    if measure == "material_flips":
        low, high = map(float, flips_above(output.details["agreement"]["margins"], 2 * tolerance.absolute))
        return low if tolerance.relative == 0 else 0.0, high
    facts, broken = output.details["closeness"], output.measures["nonfinite_mismatch"]
    certain, possible = mismatch_bounds(facts["magnitudes"], tolerance.absolute, tolerance.relative)
    return max(broken, certain) / facts["values"], 1.0 if possible or broken else 0.0


def _rows_beyond(case: _Judgement) -> int | None:
    """How many rows the tolerance does not cover; None where the facts of a run under another one do not tell."""
    comparison, tolerance = case.comparison, case.policy.tolerance
    nan = any(output.measures.get("nan_both") for output in comparison.outputs)
    if tolerance == comparison.tolerance and (not nan or case.policy.nan_equal == comparison.nan_equal):
        return comparison.rows_beyond
    if nan and not case.policy.nan_equal:
        return None
    measures = ("mismatch_rate", "material_flips")
    most = [_bounds(o, m, tolerance)[1] for o in comparison.outputs for m in measures if m in o.measures]
    return 0 if most and not any(most) and not comparison.mismatches else None


def _outcome(case: _Judgement) -> Outcome:
    severities = {finding.severity for finding in case.findings}
    if case.comparison.incidents:
        return Outcome.INCONCLUSIVE
    if Severity.FAILURE in severities:
        return Outcome.FAIL
    if Severity.INCONCLUSIVE in severities or not case.checks:
        return Outcome.INCONCLUSIVE
    return Outcome.PASS


def _headline(outcome: Outcome, case: _Judgement) -> str:
    comparison = case.comparison
    if outcome is Outcome.INCONCLUSIVE:
        return _first(case.findings, Severity.INCONCLUSIVE) or "nothing was judged"
    if outcome is Outcome.FAIL:
        count = _rows_beyond(case)
        beyond = f"; {count:,} of {comparison.rows:,} rows are beyond tolerance" if count else ""
        return (_first(case.findings, Severity.FAILURE) or "") + beyond
    differences = [o.measures["max_abs_diff"] for o in comparison.outputs if "max_abs_diff" in o.measures]
    largest = f", largest difference {max(differences):.3g}" if differences else ""
    return f"{comparison.rows:,} rows agree{largest}"


def _first(findings: Iterable[Finding], severity: Severity) -> str | None:
    return next((finding.message for finding in findings if finding.severity is severity), None)


def _beyond(check: Check) -> str:
    side = "below" if check.measure in AT_LEAST else "above"
    where = f" at batch size {check.batch_size}" if check.batch_size is not None else ""
    return f"{check.output}.{check.measure} is {figure(check.value)}{where}, {side} its limit of {figure(check.bound)}"


def _lost(cast: Cast) -> str:
    note = f" ({cast.note})" if cast.note else ""
    change = f", by up to {100 * cast.largest_relative_change:.3g}%" if cast.largest_relative_change else ""
    return (
        f"{cast.changed:,} of {cast.values:,} values of {cast.column!r} change on their way to the {cast.side}, "
        f"from {cast.source_dtype} to {cast.target_dtype}{change}{note}"
    )


def _advice(code: str) -> str:
    return {
        "extra-output": "Say --pair candidate_output=reference_output, or leave it out with --ignore NAME",
        "row-count": "Every output needs one answer a row along its first axis",
        "classes": "Export the model that was trained on these classes",
    }.get(code, "")


def _for_quantized(policy: Policy) -> bool:
    return policy.tolerance.absolute >= PRESETS["quantized"].absolute
