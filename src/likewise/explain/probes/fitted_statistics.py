"""A preprocessing step of the candidate works with other fitted numbers than the reference's."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.explain.case import Case, Explained
from likewise.explain.repairs import agreeing, needed
from likewise.explain.weights import Difference, weights
from likewise.models.parameters import PREPROCESSING

SHOWN = 3


class FittedStatistics:
    """Compare means, scales, fill values, categories, edges and components; put the reference's back."""

    causes = ("preprocessing-differs",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return case.native("reference") is not None

    def test(self, case: Case) -> Sequence[Explained]:
        found = weights(case)
        if found is None or (found.stale and not found.predicts):
            return []
        differing = [entry for entry in found.differences if entry.role == PREPROCESSING]
        result = needed(case, differing) if differing else None
        if result is None:
            return []
        culprits, effect = result
        step = _step(culprits)
        what = "; ".join(_told(entry) for entry in culprits[:SHOWN])
        return [
            Explained(
                "preprocessing-differs",
                f"{step} ({', '.join(_details(culprits))})",
                f"{what}; with the reference's put back into the graph, {agreeing(effect)}",
                "Export again from this very pipeline, fitted once and exported whole",
                covered=effect.covered,
                simplicity=1 if all(entry.parameter is not None for entry in culprits) else 2,
            )
        ]


def _step(culprits: Sequence[Difference]) -> str:
    """The steps by the last name of their path."""
    named = [entry.parameter.part for entry in culprits if entry.parameter is not None and entry.parameter.part]
    return ", ".join(dict.fromkeys(named)) or culprits[0].constant.operator


def _details(culprits: Sequence[Difference]) -> list[str]:
    columns = list(dict.fromkeys(name for entry in culprits for name in entry.columns()))
    every = {name for entry in culprits if entry.parameter is not None for name in entry.parameter.columns}
    details = []
    if columns and len(columns) <= SHOWN:
        details.append(", ".join(columns))
    elif columns:
        few = f"{', '.join(columns[:SHOWN])} and {len(columns) - SHOWN} more"
        details.append(f"all {len(columns)} columns" if len(columns) == len(every) else few)
    paths = list(dict.fromkeys(entry.parameter.step for entry in culprits if entry.parameter is not None))
    details += [f"step '{path}'" for path in paths[:SHOWN] if path]
    return [*details, *dict.fromkeys(entry.place for entry in culprits[:SHOWN])]


def _told(entry: Difference) -> str:
    return f"{entry.name}: {entry.pattern.text}"


EXTENSION = FittedStatistics()
