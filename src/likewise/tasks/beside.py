"""What is tried beside the data, while both models are open: settings, shapes, edge cases.

What can change the verdict comes first; what cannot is told about before it is tried, so that a model that
dies on it takes no verdict along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from likewise.compare.observe import Prepared
from likewise.compare.variations import lengths
from likewise.compare.variations.batches import Head
from likewise.contracts.comparison import Comparison, Plan, SuiteFacts
from likewise.contracts.models import Model
from likewise.tasks.settings import Settings

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
    # Imported where used: most gates have no matrix, and a gate starts no faster than its imports.
    found: tuple[SuiteFacts, ...] = ()
    if settings.matrix:
        from likewise.compare.variations import settings as matrixing

        found = matrixing.run(plan, prepared, settings.matrix)
    if plan.shapes:
        found += lengths.run(plan, prepared, head)
    if settings.edge == "fail":
        from likewise.compare.variations import edge

        found += edge.run(plan, prepared, head, blocks=True, skipped=settings.skip_suites, seed=settings.seed)
    if lengths.applies(plan, prepared, head):
        tell(replace(compared, suites=found), SHAPES)
        found += lengths.run(plan, prepared, head)
    if settings.edge == "report":
        from likewise.compare.variations import edge

        tell(replace(compared, suites=found), EDGE)
        found += edge.run(plan, prepared, head, blocks=False, skipped=settings.skip_suites, seed=settings.seed)
    return found


def require_possible(settings: Settings, candidate: Model) -> None:
    """A usage error for settings and suites that there are not, before anything is run."""
    if settings.matrix:
        from likewise.compare.variations import settings as matrixing

        matrixing.require_possible(candidate, settings.matrix)
    if settings.skip_suites:
        from likewise.compare.variations import edge

        edge.require_known(settings.skip_suites)


def lost(doing: str, message: str, compared: Comparison) -> SuiteFacts:
    """What was being tried when the models died, and could not change the verdict."""
    nothing = Comparison(tolerance=compared.tolerance)
    kind, title = ("shape", "Rows at other lengths") if doing == SHAPES else ("edge", "Inputs made to find trouble")
    return SuiteFacts(kind, doing, title, nothing, not_covered=f"cut short: {message}")
