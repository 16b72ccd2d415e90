"""Two tree models of frameworks' own: another number of trees, or another training."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.explain import tree_reading
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Change, Trial
from likewise.explain.tree_survey import Survey, survey
from likewise.models.trees import composed


class TreeModels:
    """Where the candidate is no graph: cut it to the trees that the reference uses, and ask it again."""

    causes = ("tree-count", "stale-weights")
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return "onnx" not in (case.framework("reference"), case.framework("candidate")) and all(
            tree_reading.has_trees(case, side) for side in ("reference", "candidate")
        )

    def test(self, case: Case) -> Sequence[Explained]:
        found = survey(case)
        if found is None:
            return []
        if found.retrained:
            return [_retrained(found)]
        return _counted(case, found)


def _counted(case: Case, found: Survey) -> list[Explained]:
    """Cut the side that uses more trees to as many as the other uses."""
    ours, theirs = found.reference.ensemble.trees, found.candidate.ensemble.trees
    if ours == theirs:
        return []
    longer, fewer, more = ("candidate", ours, theirs) if theirs > ours else ("reference", theirs, ours)
    cut = composed.cut_to(case.native(longer), fewer)
    effect = None if cut is None else Trial.whole(case).run(Change(longer, target=cut))
    if effect is None:
        return []
    if not effect.explains:
        return []
    return [
        Explained(
            "tree-count",
            f"{fewer} of {more} trees",
            f"the reference uses {ours} trees and the candidate {theirs}; with the {longer} cut to {fewer}, "
            f"{int(effect.covered.sum())} of {int(effect.failing.sum())} failing rows agree",
            "Save the model with the trees that predict uses: booster[:best_iteration + 1] (XGBoost), "
            "save_model(num_iteration=best_iteration) (LightGBM)",
            covered=effect.covered,
            simplicity=1,
        )
    ]


def _retrained(found: Survey) -> Explained:
    inner = int((found.split | found.torn).sum())
    other = int((found.column | found.moved | found.torn).sum())
    return Explained(
        "stale-weights",
        "model",
        f"the trees of both come from different trainings: {other} of {inner} splits that stand in the same place ask "
        "something else",
        "Compare the model with the file that was saved from it; record which training a file comes from",
        simplicity=1,
    )


EXTENSION = TreeModels()
