"""A tolerance so wide that a model which always answers the same would pass: such a check cannot fail."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.judging import Finding, Policy, Severity
from likewise.contracts.measuring import Comparison
from likewise.noise_floor import allowed

ENOUGH = 10
"""Fewer rows may lie close together by chance."""

ALIKE = 0.25
"""A candidate that stays within this part of the reference's spread follows it, whatever the tolerance."""


def findings(comparison: Comparison, policy: Policy) -> Iterator[Finding]:
    """Where the tolerance covers everything the reference says.

    That is inconclusive where the candidate does not follow the reference either and the user did not choose the
    tolerance; else it is a warning.
    """
    if not comparison.varied:
        return
    for output in comparison.outputs:
        bounds = output.details.get("extremes", {}).get("widest")
        if bounds is None or bounds[0] == bounds[1]:
            continue
        low, high = bounds
        bound = allowed(output, policy, max(abs(low), abs(high)))
        if bound is None or high - low > bound:
            continue
        chosen = any(
            limit.explicit and limit.output in (None, output.name, output.pair.candidate) for limit in policy.limits
        )
        # Written so that NaN does not follow.
        follows = output.measures.get("max_abs_diff", 0.0) <= ALIKE * (high - low)
        yield Finding(
            "wide-tolerance",
            Severity.WARNING if chosen or follows or comparison.rows < ENOUGH else Severity.INCONCLUSIVE,
            f"the reference's {output.name!r} goes from {low:.4g} to {high:.4g} and may differ by {bound:.3g}: "
            "a model that always answers the same would be within tolerance",
            output.name,
            f"Choose one below the differences that matter, such as --abs-tol {(high - low) / 1000:.0e} --rel-tol 0",
        )
