"""The candidate computes in float32 what the reference computes in float64, and that is too little."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array, Batch, Tensors
from likewise.data.columns import with_columns
from likewise.explain import experiment, rounding
from likewise.explain.case import Case, Explained
from likewise.explain.counterparts import step_of
from likewise.explain.experiment import Change, Effect, Trial
from likewise.models.onnx import edits, widen

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


MOST_NODES = 40
"""Nodes that are put back into float32 one at a time; a longer graph is searched in stretches."""

MATTERS = 0.05
"""Of the difference, so much has to move with the digits for these to be looked into."""

NOTHING = 1e-3
"""The part of a difference that counts as nothing."""

SLOWEST = 10.0
"""Seconds that the standard's own evaluator may take for its rows."""

TREES = ("TreeEnsemble", "TreeEnsembleRegressor", "TreeEnsembleClassifier")


@dataclass(frozen=True, slots=True)
class Cure:
    """A wider computation that agrees: which, with what of the reference, and how it is told."""

    effect: Effect
    evidence: str
    proto: ModelProto | None = None
    plan: widen.Widening | None = None
    reference: Tensors | None = None
    weights: bool = False
    simplicity: int = 3
    positions: Array | None = None
    constant: str | None = None


class Precision:
    """Compute the candidate's graph in double; then put one node at a time back into float32."""

    causes = ("float32-compute", "float32-threshold")
    needs_answers = True
    slow = True

    def plausible(self, case: Case) -> bool:
        return case.graph() is not None and not case.comparison.quantized_nodes

    def test(self, case: Case) -> Sequence[Explained]:
        proto = case.editable()
        if proto is None:
            return []
        plan = widen.Widening(case.tensor_types(), frozenset({widen.SINGLE}))
        if not any(kind == widen.SINGLE for kind in plan.types.values()):
            return []
        cure = next(self._cures(case, proto, plan), None)
        return [] if cure is None else [self._explained(case, proto, cure)]

    def _matters(self, case: Case, proto: ModelProto, wide: ModelProto) -> bool:
        """Do the digits that float32 lacks move the answers by anything like the difference? Asked on few rows."""
        positions = Trial.few(case).positions
        batch = case.rows(positions)
        double = case.ask_changed("candidate", target=wide, batch=batch)
        if double is None:
            return False
        before = Trial(case, positions).gap()
        now = {name: array[positions] for name, array in case.required.candidate.items()}
        if not before or Trial(case, positions).moved(now, double) >= MATTERS * before:
            return True
        if case.framework("reference") in ("torch", "onnx"):
            # Networks are trained in float32: their weights are stored as they are.
            return False
        moved = rounding.jittered(wide, rounding.half_steps(proto), 0)
        other = case.ask_changed("candidate", target=moved, batch=batch)
        return other is None or rounding.LARGER * Trial(case, positions).moved(double, other) >= MATTERS * before

    def _optimiser(self, case: Case) -> bool:
        """Is it the runtime's optimiser? In double its fusions are not made either."""
        effect = case.once(experiment.unoptimised)
        return effect is not None and effect.explains

    def _cures(self, case: Case, proto: ModelProto, plan: widen.Widening) -> Iterator[Cure]:
        found = widen.runnable(proto, plan)
        if found is None:
            yield from self._by_the_standard(case, proto, plan)
            return
        wide, tried = found
        if not self._matters(case, proto, wide) or self._optimiser(case):
            return
        answers = case.ask_changed("candidate", target=wide)
        if answers is None:
            return
        if (alone := _gone(case, candidate=answers)) is not None:
            yield Cure(alone, "computed in double, the candidate's graph agrees with the reference", wide, tried)
        yield from self._with_rounded_weights(case, answers, wide, tried)
        yield from self._both_in_double(case, answers, wide, tried)
        if any(node.op_type in tried.narrow_ops for node in widen.computing_nodes(proto, plan)):
            yield from self._by_the_standard(case, proto, plan)
        yield from self._within_rounding(case, proto, wide, answers)

    def _with_rounded_weights(
        self, case: Case, answers: Tensors, wide: ModelProto, plan: widen.Widening
    ) -> Iterator[Cure]:
        twin = rounding.rounded(case, "float32")
        given = None if twin is None else case.ask_changed("reference", target=twin)
        if given is None:
            return
        both = _gone(case, reference=given, candidate=answers)
        # The weights alone, under the candidate's own arithmetic: then it is not the arithmetic.
        weights = Trial.whole(case).effect(reference=given)
        if both is not None:
            yield Cure(
                both,
                "computed in double, the candidate's graph agrees with the reference once the weights of that are "
                "rounded to float32 as well",
                wide,
                plan,
                given,
                weights=weights.share >= 0.8 * both.share,
            )

    def _both_in_double(self, case: Case, answers: Tensors, wide: ModelProto, plan: widen.Widening) -> Iterator[Cure]:
        twin = rounding.doubled(case)
        given = None if twin is None else case.ask_changed("reference", target=twin, batch=_as_single(case))
        if given is None:
            return
        if (both := _gone(case, reference=given, candidate=answers)) is not None:
            yield Cure(both, "both models compute in float32; computed in double they agree", wide, plan, given)

    def _by_the_standard(self, case: Case, proto: ModelProto, plan: widen.Widening) -> Iterator[Cure]:
        """Operators that the runtime has in float32 only, computed by onnx's own evaluator, on few rows."""
        wide = widen.widened(proto, replace(plan, narrow_ops=frozenset({"ZipMap"})))
        options = {"runtime": "reference"}
        seconds = experiment.seconds_for(case, experiment.FEW, Change(target=wide, options=options))
        if seconds is None or seconds > min(SLOWEST, case.seconds_left() / 3):
            return
        positions = Trial.few(case).positions
        batch = case.rows(positions)
        answers = case.ask_changed("candidate", target=wide, options=options, batch=batch)
        if answers is None:
            return
        told = "computed in double by onnx's evaluator, the candidate's graph agrees with the reference"
        for dtype in (None, "float32"):
            given = None
            if dtype is not None:
                twin = rounding.rounded(case, dtype)
                given = None if twin is None else case.ask_changed("reference", target=twin, batch=batch)
                if given is None:
                    return
                told += " once the weights of that are rounded to float32 as well"
            effect = Trial(case, positions).effect(reference=given, candidate=answers)
            if effect.explains:
                yield Cure(effect, told, positions=positions)

    def _within_rounding(self, case: Case, proto: ModelProto, wide: ModelProto, answers: Tensors) -> Iterator[Cure]:
        """Stored numbers that nothing in the reference corresponds to: sums of squares, folded products."""
        steps = {name: step for name, step in rounding.half_steps(proto).items() if step.any()}

        def effect_of_moving(names: Collection[str], count: int) -> Effect | None:
            chosen = {name: steps[name] for name in names}
            draws = [
                found
                for seed in range(count)
                if (found := case.ask_changed("candidate", target=rounding.jittered(wide, chosen, seed))) is not None
            ]
            return Effect(rounding.rows_within(case, answers, draws), case.required.failing) if draws else None

        effect = effect_of_moving(steps, rounding.DRAWS)
        if effect is not None:
            told = (
                "moved within what float32 rounds off, the stored numbers move the answers by as much as the difference"
            )
            if effect.explains:
                few = list(experiment.searching(case, steps)) if len(steps) <= MOST_NODES else []
                alone = {name: effect_of_moving([name], 4) for name in few}
                enough = [n for n, e in alone.items() if e is not None and e.share >= 0.8 * effect.share]
                yield Cure(effect, told, simplicity=4, constant=enough[0] if len(enough) == 1 else None)

    def _explained(self, case: Case, proto: ModelProto, cure: Cure) -> Explained:
        node, again = self._culprit(case, proto, cure)
        culprit = _told(case, proto, node, cure)
        count, total = int(cure.effect.covered.sum()), int(cure.effect.failing.sum())
        evidence = f"{cure.evidence} on {count} of {total} failing rows"
        if node is not None and again:
            evidence += f"; with only this node in float32, {again} of the rows tried fail again"
        covered = cure.effect.covered
        if cure.positions is not None:
            covered = Trial(case, cure.positions).mask(covered)
        jumps = node is not None and _feeds_a_tree(proto, node)
        return Explained(
            "float32-threshold" if jumps else "float32-compute",
            culprit,
            evidence,
            _remedy(case),
            covered=covered,
            share=cure.effect.share if cure.positions is not None else None,
            simplicity=4 if jumps else cure.simplicity,
        )

    def _culprit(self, case: Case, proto: ModelProto, cure: Cure) -> tuple[NodeProto | None, int]:
        """The node that alone in float32 brings most of the failures back, and how many of those looked at."""
        if cure.proto is None or cure.plan is None or cure.weights:
            computing = [] if cure.weights else widen.computing_nodes(proto, widen.Widening(case.tensor_types()))
            return (computing[0], 0) if len(computing) == 1 else (None, 0)
        nodes = widen.computing_nodes(proto, cure.plan)
        positions = Trial.few(case, experiment.SOME).positions
        while len(nodes) > MOST_NODES:
            step = -(-len(nodes) // 8)
            parts = [nodes[start : start + step] for start in range(0, len(nodes), step)]
            failing = [self._again(case, proto, cure, part, positions)[0] for part in experiment.searching(case, parts)]
            if len(failing) < len(parts) or max(failing) == 0:
                return None, 0
            nodes = parts[failing.index(max(failing))]
        found = [
            (*self._again(case, proto, cure, [node], positions), node) for node in experiment.searching(case, nodes)
        ]
        if len(found) < len(nodes) or not found:
            return None, 0
        most = max(found, key=lambda entry: (entry[0], entry[1]))
        return (most[2], most[0]) if most[0] >= 0.5 * cure.effect.covered[positions].sum() else (None, 0)

    def _again(
        self, case: Case, proto: ModelProto, cure: Cure, nodes: Sequence[NodeProto], positions: Array
    ) -> tuple[int, float]:
        """How many rows fail again with these nodes in float32, and how far the answers move."""
        assert cure.plan is not None
        narrow = widen.widened(proto, replace(cure.plan, narrow_nodes=frozenset(node.name for node in nodes)))
        answers = case.ask_changed("candidate", target=narrow, batch=case.rows(positions))
        if answers is None:
            return 0, 0.0
        given = None if cure.reference is None else {name: array[positions] for name, array in cure.reference.items()}
        effect = Trial(case, positions).effect(reference=given, candidate=answers)
        return int((cure.effect.covered[positions] & ~effect.agrees).sum()), Trial(case, positions).gap(
            reference=given, candidate=answers
        )


def _gone(case: Case, *, reference: Tensors | None = None, candidate: Tensors | None = None) -> Effect | None:
    """The comparison with other answers, if they take the difference away.

    Under limits of a few units in the last place two orders of summation never agree; there, next to
    nothing of the difference may be left.
    """
    effect = Trial.whole(case).effect(reference=reference, candidate=candidate)
    if effect.explains and Trial.whole(case).nearer(reference=reference, candidate=candidate):
        return effect
    before = Trial.whole(case).gap()
    if before and Trial.whole(case).gap(reference=reference, candidate=candidate) <= NOTHING * before:
        return Effect(np.ones_like(effect.failing), effect.failing)
    return None


def _as_single(case: Case) -> Batch:
    """The sample with what float32 leaves of its numbers: what both models were given."""
    batch = case.required.batch
    wide = {name: array for name, array in batch.inputs.items() if array.dtype == np.float64}
    narrow = {name: array.astype(np.float32).astype(np.float64) for name, array in wide.items()}
    return replace(batch, inputs=with_columns(batch.inputs, narrow))


def _feeds_a_tree(proto: ModelProto, node: NodeProto) -> bool:
    """Does a tree compare what this node gives? Then a rounded number takes another branch."""
    reached = set(node.output)
    for other in proto.graph.node:
        if reached.intersection(other.input):
            if other.op_type in TREES:
                return True
            reached.update(other.output)
    return False


def _told(case: Case, proto: ModelProto, node: NodeProto | None, cure: Cure) -> str:
    """The step or operator, in the owner's words first."""
    step = step_of(case, proto, node)
    if cure.constant is not None:
        return f"{step or 'model'} (constant '{cure.constant}')"
    if node is None:
        return step or "model"
    return f"{step} ({node.op_type}, node '{node.name}')" if step else edits.place(node)


def _remedy(case: Case) -> str:
    if case.framework("reference") == "torch":
        return "Export the module in double (model.double()), or allow for the noise of float32 with --abs-tol"
    return "Export it in double (likewise export --double), or scale the inputs before the model"


EXTENSION = Precision()
