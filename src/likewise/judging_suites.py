"""What is asked of rows that were made to find trouble, and the one line that says what they showed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from likewise.contracts.judging import Finding, Outcome, Policy, Severity, SuiteVerdict, Verdict
from likewise.contracts.measuring import Cast, OutputFacts, SuiteFacts
from likewise.showing import figure

MADE = ("edge", "shape")
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


def policy_on(facts: SuiteFacts, policy: Policy) -> Policy:
    """What is asked of a suite. Few rows claim nothing about a rate, and no suite is swept over batch sizes."""
    limits = tuple(limit for limit in policy.limits if not limit.measure.endswith("_drift"))
    if facts.kind in MADE:
        limits = tuple(replace(limit, explicit=False) for limit in limits if limit.measure in ANY_ROWS)
    return replace(policy, limits=limits, max_failure_rate=None, fixed_batch=True)


def verdict_on(facts: SuiteFacts, verdict: Verdict, policy: Policy) -> SuiteVerdict:
    """The verdict on a suite from the judgement of its rows."""
    told = (facts.kind, facts.name, facts.title, facts.comparison.rows, facts.refused, facts.blocks)
    measured = facts.comparison
    if facts.refused and not (measured.rows or measured.mismatches or measured.incidents):
        return SuiteVerdict(*told, Outcome.PASS, f"both models refuse all of {facts.refused:,} rows")
    kept = tuple(f for f in verdict.findings if f.severity in (Severity.FAILURE, Severity.INCONCLUSIVE))
    if facts.kind not in MADE:
        return SuiteVerdict(*told, verdict.outcome, verdict.headline, verdict.checks, kept)
    kept = tuple(finding for finding in kept if not _nothing_finite(facts, finding))
    outcome = verdict.outcome
    if outcome is Outcome.INCONCLUSIVE and not kept and verdict.checks:
        outcome = Outcome.PASS
    return SuiteVerdict(*told, outcome, _headline(facts, outcome, verdict, policy), verdict.checks, kept)


def _nothing_finite(facts: SuiteFacts, finding: Finding) -> bool:
    """Both answer NaN to NaN: of made rows that agrees, as it was asked for."""
    output = next((entry for entry in facts.comparison.outputs if entry.name == finding.output), None)
    if finding.code != "not-judged" or output is None:
        return False
    return "max_abs_diff" not in output.measures and output.measures.get("nonfinite_mismatch") == 0


def _headline(facts: SuiteFacts, outcome: Outcome, verdict: Verdict, policy: Policy) -> str:
    comparison = facts.comparison
    beyond = comparison.rows_beyond if policy.tolerance == comparison.tolerance else 0
    refused = f", {facts.refused:,} are refused by both" if facts.refused else ""
    if outcome is Outcome.PASS:
        return f"{comparison.rows:,} rows agree{refused}"
    if outcome is not Outcome.FAIL:
        return verdict.headline
    if comparison.mismatches:
        more = f"; {beyond:,} of those that both answer differ" if beyond else ""
        return _short(comparison.mismatches[0].message) + more
    worst = _worst(comparison.outputs)
    if not worst:
        return verdict.headline
    count = f"{beyond:,} of {comparison.rows:,} rows differ" if beyond else "rows differ"
    return f"{count}; {worst}{_narrowed(comparison.casts)}"


def _worst(outputs: tuple[OutputFacts, ...]) -> str:
    """The worst row in words."""
    rows = [row for output in outputs for row in output.details.get("worst_rows", {}).get("rows", [])[:1]]
    row = max(rows, key=lambda entry: float(entry["severity"]), default=None)
    return "" if row is None else f"{row['row']}: {_answer(row['reference'])} became {_answer(row['candidate'])}"


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
