"""One limit beside its measure, and a judgement under way: its checks and what it has found so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from likewise.compare.sums import flips_above, mismatch_bounds
from likewise.contracts.comparison import Comparison, OutputFacts, Tolerance
from likewise.contracts.verdict import AT_LEAST, Check, Finding, Limit, Outcome, Policy, Severity
from likewise.contracts.words import figure


@dataclass(slots=True)
class Judgement:
    """The facts, what is acceptable, and what has been made of them up to now."""

    comparison: Comparison
    policy: Policy
    checks: list[Check] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add(self, severity: Severity, code: str, message: str, *, output: str | None = None, remedy: str = "") -> None:
        self.findings.append(Finding(code, severity, message, output, remedy))


def checked(case: Judgement, limit: Limit, output: OutputFacts, batch_size: int | None = None) -> Iterator[Check]:
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


def _again(case: Judgement, limit: Limit, output: OutputFacts) -> tuple[Outcome, float | None]:
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


def rows_beyond(case: Judgement) -> int | None:
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


def in_words(check: Check) -> str:
    """A limit that does not hold, in words."""
    side = "below" if check.measure in AT_LEAST else "above"
    where = f" at batch size {check.batch_size}" if check.batch_size is not None else ""
    return f"{check.output}.{check.measure} is {figure(check.value)}{where}, {side} its limit of {figure(check.bound)}"
