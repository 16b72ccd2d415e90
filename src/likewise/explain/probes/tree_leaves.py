"""The leaves of the candidate's trees hold other values than the reference's."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.contracts.data import Array
from likewise.explain import tree_survey
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Effect
from likewise.explain.tree_survey import Survey, plausible, survey

FEW = 0.5
"""Up to this share of the leaves, other values are damage; beyond it, another training."""


class TreeLeaves:
    """Put the reference's values into the leaves of a copy of the graph, and run it."""

    causes = ("weight-corruption", "precision-reduction")
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return plausible(case)

    def test(self, case: Case) -> Sequence[Explained]:
        found = survey(case)
        if found is None or found.retrained:
            return []
        leafage = found.leafage
        wrong = leafage.pairs[leafage.differs]
        if not leafage.in_place or not len(wrong):
            return []
        if leafage.share > FEW and not leafage.rounded:
            return []
        effect = tree_survey.effect_of(case, found, tree_survey.with_leaves(found, wrong))
        if effect is None or not effect.explains:
            return []
        return [_rounded(found, effect) if leafage.rounded else _damaged(found, effect, wrong)]


def _damaged(found: Survey, effect: Effect, wrong: Array) -> Explained:
    import numpy as np

    theirs = found.candidate.ensemble
    held, meant = _both(found)
    change = np.abs(held - meant)[found.leafage.differs].max(axis=1)
    worst = int(np.argmax(np.where(np.isnan(change), np.inf, change)))
    place = theirs.name(int(found.alignment.candidate[wrong[worst]]))
    has, should = held[found.leafage.differs][worst], meant[found.leafage.differs][worst]
    output = int(np.argmax(np.nan_to_num(np.abs(has - should), nan=np.inf)))
    return Explained(
        "weight-corruption",
        place + (f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""),
        f"{place} holds {has[output]:.6g} where the reference has {should[output]:.6g}; {len(wrong)} of "
        f"{len(found.leafage.pairs)} leaves differ; with the reference's values in the graph {_agree(effect)}",
        "Export the model again; do not edit or patch the file",
        covered=effect.covered,
        simplicity=1,
    )


def _rounded(found: Survey, effect: Effect) -> Explained:
    assert found.candidate.graph is not None
    return Explained(
        "precision-reduction",
        f"leaf values ({found.candidate.graph.sites[0].name})",
        f"the leaves hold the reference's values rounded to {found.leafage.rounded}; with the unrounded ones in the "
        f"graph {_agree(effect)}",
        "Export the model again in float32",
        covered=effect.covered,
        simplicity=1,
    )


def _both(found: Survey) -> tuple[Array, Array]:
    """The values of all paired leaves: what the candidate holds, and what it should."""
    laid, leafage = found.alignment, found.leafage
    held = found.candidate.ensemble.values()[laid.candidate[leafage.pairs]]
    meant = found.reference.ensemble.values()[laid.reference[leafage.pairs]] @ leafage.outputs * leafage.scale
    return held, meant


def _agree(effect: Effect) -> str:
    return f"{int(effect.covered.sum())} of {int(effect.failing.sum())} failing rows agree"


EXTENSION = TreeLeaves()
