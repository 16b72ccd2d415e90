"""What a verdict on generated rows may say, and what it may not."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.judging import Confidence, Finding, Policy, Severity
from likewise.contracts.measuring import Comparison

NAMED = 6
"""Columns of one kind that are named in the warning."""


def findings(comparison: Comparison, policy: Policy) -> Iterator[Finding]:
    """A warning on every verdict that stands on generated rows; a rate among real rows cannot be shown by them."""
    columns = comparison.generated
    if not columns:
        return
    rounded = [column.name for column in columns if column.fractions_untried]
    blind = [column.name for column in columns if not column.known and not column.fractions_untried]
    guessed = f"; nothing is known about {len(blind):,} of {len(columns):,} columns: {_named(blind)}" if blind else ""
    if rounded:
        guessed += f"; only whole numbers were tried, because the candidate takes no others, in {_named(rounded)}"
    yield Finding(
        "generated-data",
        Severity.WARNING,
        f"the rows are generated from what the models say about their inputs, none of them is real{guessed}",
        remedy="Check on real rows before you deploy: --data FILE",
    )
    if policy.max_failure_rate is not None:
        yield Finding(
            "generated-rate",
            Severity.INCONCLUSIVE,
            "generated rows cannot show how many real ones are beyond tolerance",
            remedy="Give real rows, or leave --max-failure-rate out",
        )


def _named(columns: list[str]) -> str:
    return ", ".join(columns[:NAMED]) + (f" and {len(columns) - NAMED} more" if len(columns) > NAMED else "")


def confidence(violations: int, rows: int, level: float) -> Confidence | None:
    """The count without a claim: generated rows are like no others, so no rate is ruled out."""
    if rows == 0:
        return None
    statement = f"{violations:,} of {rows:,} generated rows beyond tolerance: nothing is claimed about real ones"
    return Confidence(level, rows, violations, 1.0, statement)
