"""The candidate has more or fewer trees than the reference uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from likewise.contracts.data import Array
from likewise.explain import tree_survey
from likewise.explain.case import Case, Explained
from likewise.explain.tree_survey import Survey, plausible, survey
from likewise.models.trees.ensemble import Ensemble


class TreeCount:
    """Take the trees that are too many out of the candidate's graph, or put those that are missing in."""

    causes = ("tree-count",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return plausible(case)

    def test(self, case: Case) -> Sequence[Explained]:
        found = survey(case)
        if found is None or found.retrained or not (found.missing_trees or len(found.extra_trees)):
            return []
        for trees in _repairs(found):
            effect = tree_survey.effect_of(case, found, trees)
            if effect is not None and effect.explains:
                return [_explained(found, effect.covered, int(effect.failing.sum()))]
        return []


def _repairs(found: Survey) -> Iterator[Ensemble]:
    if not found.missing_trees:
        yield tree_survey.without_trees(found, found.extra_trees)
    # A forest divides by its own number of trees: the values of the leaves may have been adjusted, or not.
    for scale in dict.fromkeys((found.leafage.scale, 1.0)):
        if (whole := tree_survey.with_trees(found, scale=scale)) is not None:
            yield whole


def _explained(found: Survey, covered: Array, failing: int) -> Explained:
    uses, has = found.reference.ensemble.trees, found.candidate.ensemble.trees
    stored = found.reference.ensemble.stored
    agree = f"{int(covered.sum())} of {failing} failing rows agree"
    if has < uses:
        return Explained(
            "tree-count",
            f"{has} of {uses} trees",
            f"the candidate has {has} of the reference's {uses} trees; with the other {uses - has} put into its "
            f"graph {agree}",
            "Export again with all trees: check the number of trees or the iteration limit given to the converter",
            covered=covered,
            simplicity=1,
        )
    stopped = f": training stopped early, and predict takes the best {uses} of {stored}" if stored >= has else ""
    return Explained(
        "tree-count",
        f"{uses} of {has} trees",
        f"the candidate has {has} trees and the reference uses {uses}{stopped}; with the last {has - uses} taken out "
        f"of its graph {agree}",
        "Cut the model to the trees that predict uses before the export: booster[:best_iteration + 1] (XGBoost), "
        "booster.model_to_string(num_iteration=booster.best_iteration) (LightGBM)",
        covered=covered,
        simplicity=1,
    )


EXTENSION = TreeCount()
