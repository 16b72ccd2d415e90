"""The candidate's weights are not the reference's: damaged, or those of another training."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Effect
from likewise.explain.repairs import agreeing, needed, put_back
from likewise.explain.weights import Difference, Weights, weights
from likewise.models.parameters import MODEL

SUSPECTED = 0.5
"""What a doubtful origin is worth beside what an experiment showed."""

MOST = 0.8
"""If this part of the weights is from another training, the model is."""

SHOWN = 3


class OtherWeights:
    """Lay all weights beside one another; put the reference's back, and see whether the rows agree."""

    causes = ("weight-corruption", "stale-weights")
    needs_answers = False

    def plausible(self, case: Case) -> bool:
        return bool(case.comparison.lineage) or case.native("reference") is not None

    def test(self, case: Case) -> Sequence[Explained]:
        failing = case.sample is not None and bool(case.sample.failing.any())
        found = weights(case) if failing else None
        if found is not None and found.differences:
            explained = self._stale(case, found) if found.stale else self._corrupted(case, found)
            if explained:
                return explained
        equal = found is not None and found.matches and not found.differences and not found.missing
        return [] if equal else self._of_doubtful_origin(case)

    def _stale(self, case: Case, found: Weights) -> list[Explained]:
        effect = put_back(case, found.differences)
        if effect is None or not effect.explains:
            return []
        learnt = [entry for entry in found.differences if not found.predicts or entry.role == MODEL]
        compared = max(found.compared(), len(found.differences))
        culprit = _concerned(found, learnt)
        origin = f"; {case.comparison.lineage[0]}" if case.comparison.lineage else ""
        evidence = (
            f"{len(found.differences)} of {compared} constants hold other values than the reference's "
            f"({_example(learnt)}); with the reference's put into the graph, {agreeing(effect)}{origin}"
        )
        return [_explained("stale-weights", culprit, evidence, "Export again from this reference", effect)]

    def _corrupted(self, case: Case, found: Weights) -> list[Explained]:
        damaged = [entry for entry in found.differences if entry.role == MODEL and not _dropped(entry)]
        result = needed(case, damaged) if damaged else None
        if result is None:
            return []
        culprits, effect = result
        told = _listed([_told(entry) for entry in culprits])
        what = "; ".join(f"{entry.name}: {entry.pattern.text}" for entry in culprits[:SHOWN])
        evidence = f"{what}; with the reference's put back into the graph, {agreeing(effect)}"
        remedy = "Export or copy the file again, and compare its SHA-256 on both ends"
        return [_explained("weight-corruption", told, evidence, remedy, effect)]

    def _of_doubtful_origin(self, case: Case) -> list[Explained]:
        if not case.comparison.lineage:
            return []
        return [
            Explained(
                "stale-weights",
                "model",
                case.comparison.lineage[0],
                "Export again from this reference",
                share=SUSPECTED,
                simplicity=5,
            )
        ]


def _explained(cause: str, culprit: str, evidence: str, remedy: str, effect: Effect) -> Explained:
    return Explained(cause, culprit, evidence, remedy, covered=effect.covered, simplicity=1)


def _concerned(found: Weights, learnt: Sequence[Difference]) -> str:
    """The model, or what of it comes from another training."""
    weighty = [entry for entry in learnt if not entry.is_intercept]
    if len(weighty) < MOST * found.compared(MODEL if found.predicts else None, biases=False):
        return f"model ({_listed([entry.name for entry in learnt])})"
    steps = {entry.parameter.step for entry in learnt if entry.parameter is not None}
    step = steps.pop() if len(steps) == 1 and len(learnt) == len(found.differences) else ""
    return f"model (step '{step}')" if step else "model"


def _dropped(entry: Difference) -> bool:
    """An intercept that is gone is a part that was dropped, not a damaged weight."""
    return entry.is_intercept and (entry.constant.absent or entry.pattern.text == "all zero")


def _told(entry: Difference) -> str:
    """The weight by its owner's name, then where exactly it differs."""
    columns, spot = entry.columns(), entry.spot()
    details = [] if entry.name == entry.constant.tensor else [entry.place]
    if spot:
        details.insert(0, spot)
    if 0 < len(columns) <= SHOWN:
        details.insert(0, _listed(columns))
    return f"{entry.name} ({', '.join(details)})" if details else entry.name


def _example(differences: Sequence[Difference]) -> str:
    """One weight of both sides, for the reader."""
    for entry in differences:
        if entry.pattern.entries and entry.constant.values.shape == entry.match.expected.shape:
            first = entry.pattern.entries[0]
            held, wanted = entry.constant.values.ravel()[first], entry.match.expected.ravel()[first]
            index = list(entry.match.index(first))
            return f"{entry.name}{index} is {held:.6g} instead of {wanted:.6g}"
    return ", ".join(f"{entry.name}: {entry.pattern.text}" for entry in differences[:1])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


EXTENSION = OtherWeights()
