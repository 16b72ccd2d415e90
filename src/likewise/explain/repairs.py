"""Weights put back into a copy of the candidate's graph, and what that does to the difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from likewise.contracts.data import Array
from likewise.explain.case import Case
from likewise.explain.experiment import Change, Effect, Trial
from likewise.explain.matching import Match
from likewise.explain.weights import Difference, weights
from likewise.models.onnx.inside import with_values

if TYPE_CHECKING:
    from onnx import ModelProto


MOST_EXPERIMENTS = 16
"""Of more differing constants the necessary ones are not told from the others."""

MOST_SINGLE = 6
"""Differing constants that are tried one by one where all together do not help."""


def put_back(case: Case, differences: Sequence[Difference]) -> Effect | None:
    """What is left of the difference once these constants hold what they should; None if it cannot be tried."""
    found = weights(case)
    assert found is not None
    changes = [(match.constant, _as_stored(match)) for entry in differences for match in entry.matches]
    graph = with_values(found.graph, changes)
    return None if graph is None else tried(case, graph)


def tried(case: Case, graph: ModelProto) -> Effect | None:
    """What the candidate's answers are worth with another graph."""
    return Trial.whole(case).run(Change(target=graph))


def agreeing(effect: Effect) -> str:
    """How many rows a change mends, in words."""
    covered, failing = int(effect.covered.sum()), int(effect.failing.sum())
    return f"{covered:,} of {failing:,} failing rows agree"


def needed(case: Case, differences: Sequence[Difference]) -> tuple[list[Difference], Effect] | None:
    """The few that have to be put back, with what that does; None if neither all nor any one of them helps."""
    whole = put_back(case, differences)
    if whole is None or not whole.explains:
        return _one_of(case, differences) if len(differences) > 1 else None
    kept, best = list(differences), whole
    if len(kept) == 1 or len(kept) > MOST_EXPERIMENTS:
        return kept, best
    for entry in sorted(differences, key=lambda one: float(one.match.different.mean())):
        fewer = [other for other in kept if other is not entry]
        effect = put_back(case, fewer) if fewer else None
        if effect is not None and effect.explains and effect.share >= best.share - 0.005:
            kept, best = fewer, effect
    return kept, best


def _one_of(case: Case, differences: Sequence[Difference]) -> tuple[list[Difference], Effect] | None:
    """The one that helps alone: others may have been taken for arrays that they are not."""
    likely = sorted(differences, key=lambda one: (not one.pattern.regular, float(one.match.different.mean())))
    for entry in likely[:MOST_SINGLE]:
        effect = put_back(case, [entry])
        if effect is not None and effect.explains:
            return [entry], effect
    return None


def _as_stored(match: Match) -> Array:
    """What should be there in the type that the node takes."""
    import numpy as np

    expected = match.expected
    if match.constant.absent:
        return expected.astype(np.float32) if expected.dtype == np.float64 else expected
    return expected
