"""A tolerance that is smaller than what a model's own answers move by: a failure under it may be no more than that."""

from __future__ import annotations

import math
from collections.abc import Iterator

from likewise.contracts.judging import Finding, Policy, Severity
from likewise.contracts.measuring import Comparison, OutputFacts

DRIFTS = {"batch_drift": "candidate", "reference_drift": "reference"}
"""How far a model's answers move between batch sizes, and whose."""

NOISE = 1e-3
"""Answers that move by more than this part of the largest are no noise: that is judged as a difference."""


def findings(comparison: Comparison, policy: Policy) -> Iterator[Finding]:
    """What is asked of each output, beside how far the models themselves move."""
    for output in comparison.outputs:
        largest = _largest_answer(output)
        bound = allowed(output, policy, largest)
        if bound is None:
            continue
        for measure, side in DRIFTS.items():
            moves = output.measures.get(measure)
            if moves is not None and bound < moves <= NOISE * largest:
                yield Finding(
                    "below-noise-floor",
                    Severity.WARNING,
                    f"the tolerance of {output.name!r}, {bound:.3g}, is below what the {side}'s own answers move "
                    f"between batch sizes, {moves:.3g}: a failure of that size may be noise",
                    output.name,
                    f"Measure it: likewise noise {side.upper()} --data FILE, and choose a tolerance above it",
                )


def _largest_answer(output: OutputFacts) -> float:
    """A bound on the reference's answers; zero where they are no numbers."""
    known = [entry["exponent"] for entry in output.details.get("closeness", {}).get("magnitudes", ())]
    exponents = [exponent for exponent in known if exponent is not None]
    return math.ldexp(1.0, min(max(exponents), 1023)) if exponents else 0.0


def allowed(output: OutputFacts, policy: Policy, largest: float) -> float | None:
    """The most that any answer may differ by; None where no limit bounds single answers."""
    tolerance, bounds = policy.tolerance, []
    for limit in policy.limits:
        if limit.output in (None, output.name, output.pair.candidate):
            if limit.measure == "max_abs_diff":
                bounds.append(limit.bound)
            elif limit.measure == "mismatch_rate" and limit.bound == 0:
                bounds.append(tolerance.absolute + tolerance.relative * largest)
    return min(bounds, default=None)
