"""The candidate's trees come from another training."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.explain import tree_survey
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Effect
from likewise.explain.tree_survey import Survey, plausible, survey
from likewise.models.onnx.tree_edits import UnwritableError, with_attribute, written


class TreeTraining:
    """Put all of the reference's trees into a copy of the candidate's graph, and run it."""

    causes = ("stale-weights",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return plausible(case)

    def test(self, case: Case) -> Sequence[Explained]:
        found = survey(case)
        if found is None or not found.leafage.in_place:
            return []
        leaves = found.leafage.share > 0.5 and not found.leafage.rounded
        if not (found.retrained or leaves) or _says_one_thing(case):
            return []
        effect = _replaced(case, found)
        if effect is None or not effect.explains:
            return []
        inner = int((found.split | found.torn).sum())
        other = int((found.column | found.moved | found.torn).sum())
        parts = [f"{other} of {inner} splits ask something else"] if found.retrained else []
        parts += [f"{int(found.leafage.differs.sum())} of {len(found.leafage.pairs)} leaves hold other values"]
        return [
            Explained(
                "stale-weights",
                "model",
                f"the candidate's trees are those of another training: {' and '.join(parts)}; with the reference's "
                f"trees in its graph {int(effect.covered.sum())} of {int(effect.failing.sum())} failing rows agree",
                "Export the model that is the reference now; record which training an export comes from",
                covered=effect.covered,
                simplicity=1,
            )
        ]


def _says_one_thing(case: Case) -> bool:
    """Does the candidate answer every row alike? No training gives that."""
    return all((pair.candidate == pair.candidate[:1]).all() for pair in case.failing_pairs())


def _replaced(case: Case, found: Survey) -> Effect | None:
    """The graph with the reference's trees and base score; in the measure that fits, or in the reference's own."""
    import numpy as np

    held = found.candidate.graph
    assert held is not None
    best: Effect | None = None
    for scale in dict.fromkeys((1.0, found.leafage.scale)):
        trees = tree_survey.with_trees(found, scale=scale)
        if trees is None:
            return None
        try:
            proto = written(case.graph("candidate"), held, trees)
        except UnwritableError:
            return None
        base = found.reference.ensemble.base
        if (
            len(held.sites) == 1
            and held.sites[0].operator != "TreeEnsemble"
            and np.any(base)
            and np.isfinite(base).all()
        ):
            proto = with_attribute(proto, held.sites[0].node, "base_values", base @ found.leafage.outputs * scale)
        effect = tree_survey.effect_of_graph(case, proto)
        if effect is not None and (best is None or effect.share > best.share):
            best = effect
        if best is not None and best.explains:
            return best
    return best


EXTENSION = TreeTraining()
