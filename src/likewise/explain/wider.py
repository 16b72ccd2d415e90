"""A graph computed in a wider type than its own, and which of its nodes bring a difference back in the narrow one.

Or by the evaluator of the standard, which is slow and takes no short cuts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Tensors
from likewise.explain import experiment, rounding, trace
from likewise.explain.case import Case
from likewise.explain.experiment import Change, Effect, Trial
from likewise.models.onnx import widen

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

HALVES = frozenset({widen.HALF, widen.BRAIN})

MOST_NODES = 40
"""Nodes that are put back into the narrow type one at a time; a longer graph is searched in stretches."""

MOST_KEPT = 6
"""Nodes that are named as those to keep in the wide type."""

STRETCHES = 8
"""Parts that a longer graph is cut into at once."""

NOTHING = 1e-3
"""The part of a difference that counts as nothing."""

SLOWEST = 10.0
"""Seconds that the standard's own evaluator may take for its rows."""


@dataclass(frozen=True, slots=True)
class Cure:
    """A wider computation that agrees: against which answers of the reference, and how it is told.

    `weights`: it is the stored numbers, not the arithmetic. `rows` are those it was tried on, if not all.
    """

    effect: Effect
    told: str
    reference: Tensors | None = None
    weights: bool = False
    simplicity: int = 3
    narrowable: bool = True
    constant: str | None = None
    rows: Trial | None = None


class Wide:
    """The candidate's graph computed in a wider type, with what it answers then."""

    def __init__(self, case: Case, proto: ModelProto, wide: ModelProto, plan: widen.Widening) -> None:
        self.case, self.proto, self.wide, self.plan = case, proto, wide, plan
        self.trial = Trial.whole(case)
        self.answers = self.trial.ask(Change(target=wide))

    def gone(self, reference: Tensors | None = None) -> Effect | None:
        """The comparison with these answers, if they take the difference away.

        Under limits of a few units in the last place two orders of summation never agree; there, next to
        nothing of the difference may be left.
        """
        effect = self.trial.effect(reference=reference, candidate=self.answers)
        if effect.explains and self.trial.nearer(reference=reference, candidate=self.answers):
            return effect
        before, left = self.trial.gap(), self.trial.gap(reference=reference, candidate=self.answers)
        return Effect(np.ones_like(effect.failing), effect.failing) if before and left <= NOTHING * before else None

    def moved(self, names: Collection[str] | None = None, count: int = rounding.DRAWS) -> Effect | None:
        """The effect of moving stored numbers within what the narrow type rounds off: what lies in reach agrees."""
        steps = {
            name: step
            for name, step in rounding.half_steps(self.proto, self.case.largest_copy).items()
            if step.any() and self.plan.concerns(name) and (names is None or name in names)
        }
        # Attributes of ai.onnx.ml are moved along, and are never in half precision.
        if self.answers is None or (not steps and self.plan.kinds == HALVES):
            return None
        return rounding.within_draws(
            self.case, self.answers, (rounding.jittered(self.wide, steps, seed) for seed in range(count))
        )

    def culprit(
        self, cure: Cure, nodes: Sequence[NodeProto], *, enough: float, others: float
    ) -> tuple[NodeProto | None, int]:
        """The node that alone in the narrow type brings failures back, and how many of those looked at.

        `enough` of the rows have to fail again with it, and at most the share `others` with any other one.
        """
        trial = Trial.few(self.case, experiment.SOME)
        healed = int(cure.effect.covered[trial.positions].sum())
        while len(nodes) > MOST_NODES:
            step = -(-len(nodes) // STRETCHES)
            parts = [nodes[start : start + step] for start in range(0, len(nodes), step)]
            failing = [self._again(cure, part, trial)[0] for part in experiment.searching(self.case, parts)]
            if len(failing) < len(parts) or max(failing) == 0:
                return None, 0
            nodes = parts[failing.index(max(failing))]
        found = [(*self._again(cure, [node], trial), node) for node in experiment.searching(self.case, nodes)]
        if len(found) < len(nodes) or not found:
            return None, 0
        found.sort(key=lambda entry: entry[:2], reverse=True)
        (count, _, node), rest = found[0], found[1:]
        alone = count >= enough * healed and all(other[0] <= others * healed for other in rest)
        return (node, count) if alone else (None, 0)

    def blamed(self, cure: Cure, nodes: Sequence[NodeProto]) -> tuple[list[NodeProto], bool]:
        """The nodes that move the answers most, each alone in the narrow type; and whether the rows agree without them.

        As few as are enough to be kept wide; the first ones of all where too many would have to be.
        """
        trial = Trial.few(self.case)
        moved = [self._again(cure, [node], trial)[1] for node in experiment.searching(self.case, nodes)]
        if len(moved) < len(nodes) or not any(moved):
            return [], False
        ranked = [nodes[place] for place in np.argsort(-np.array(moved), kind="stable")]
        given = None if cure.reference is None else trial.of(cure.reference)
        for count in range(1, 1 + min(MOST_KEPT, len(nodes) // 2)):
            narrow = frozenset(node.name for node in ranked[count:])
            answers = trial.ask(Change(target=widen.widened(self.proto, replace(self.plan, narrow_nodes=narrow))))
            if answers is not None and trial.effect(reference=given, candidate=answers).share >= experiment.AS_MUCH:
                return ranked[:count], True
        return ranked[: trace.MOST_NAMED], False

    def _again(self, cure: Cure, nodes: Sequence[NodeProto], trial: Trial) -> tuple[int, float]:
        """How many rows fail again with these nodes in the narrow type, and how far the answers move."""
        narrow = widen.widened(self.proto, replace(self.plan, narrow_nodes=frozenset(node.name for node in nodes)))
        answers = trial.ask(Change(target=narrow))
        if answers is None:
            return 0, 0.0
        given = None if cure.reference is None else trial.of(cure.reference)
        effect = trial.effect(reference=given, candidate=answers)
        again = int((cure.effect.covered[trial.positions] & ~effect.agrees).sum())
        return again, trial.gap(reference=given, candidate=answers)


def by_the_standard(trial: Trial, target: Any = None) -> Tensors | None:
    """What onnx's own evaluator makes of the candidate's graph: slow, and right by definition.

    None if it does not run the graph, or would take too long for these rows by what one of them takes.
    """
    change, case = Change(target=target, options={"runtime": "reference"}), trial.case
    began = case.clock.now()
    one = Trial(case, trial.positions[:1]).ask(change)
    seconds = (case.clock.now() - began) * len(trial)
    return None if one is None or seconds > min(SLOWEST, case.seconds_left() / 3) else trial.ask(change)
