"""What is tried beside the data, while both models are open: settings, shapes, edge cases.

What can change the verdict comes first; what cannot is told about before it is tried, so that a model that
dies on it takes no verdict along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from likewise import matrixing, shaping, suites
from likewise.comparing import Prepared
from likewise.config import Settings
from likewise.contracts.measuring import Comparison, Plan, SuiteFacts
from likewise.sweeping import Head

EDGE, SHAPES = "edge suites", "shapes"
"""What may follow a verdict that is known."""


def run(
    settings: Settings,
    tell: Callable[[Comparison, str], None],
    plan: Plan,
    prepared: Prepared,
    head: Head | None,
    compared: Comparison,
) -> tuple[SuiteFacts, ...]:
    """Everything that was asked for, and what is tried anyway. `tell` is given what is known, and what follows."""
    found = matrixing.run(plan, prepared, settings.matrix)
    if plan.shapes:
        found += shaping.run(plan, prepared, head)
    if settings.edge == "fail":
        found += suites.run(plan, prepared, head, blocks=True, skipped=settings.skip_suites, seed=settings.seed)
    if shaping.applies(plan, prepared, head):
        tell(replace(compared, suites=found), SHAPES)
        found += shaping.run(plan, prepared, head)
    if settings.edge == "report":
        tell(replace(compared, suites=found), EDGE)
        found += suites.run(plan, prepared, head, blocks=False, skipped=settings.skip_suites, seed=settings.seed)
    return found


def lost(doing: str, message: str, compared: Comparison) -> SuiteFacts:
    """What was being tried when the models died, and could not change the verdict."""
    nothing = Comparison(tolerance=compared.tolerance)
    kind, title = ("shape", "Rows at other lengths") if doing == SHAPES else ("edge", "Inputs made to find trouble")
    return SuiteFacts(kind, doing, title, nothing, not_covered=f"cut short: {message}")
