"""Weights or arithmetic of the candidate are in half precision: three digits, nothing beyond 65,504."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array, Tensors
from likewise.explain import experiment, rounding, trace
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Change, Effect, Trial
from likewise.models.onnx import edits, widen

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


HALVES = frozenset({widen.HALF, widen.BRAIN})
NAMES = {widen.HALF: "float16", widen.BRAIN: "bfloat16"}

CLIPPED = 1e4
"""Where the float16 converters cut off weights."""

MOST_NODES = 24

KEPT = "Keep it in float32 (likewise quantize --mode fp16 --exclude NODE)"
ACCEPTED = "Deploy the float32 model, or accept what half precision gives with --preset standard"


@dataclass(frozen=True, slots=True)
class Cure:
    """A computation in float32 that agrees, against which answers of the reference, and how it is told."""

    effect: Effect
    evidence: str
    reference: Tensors | None = None
    weights: bool = False
    simplicity: int = 2


class ReducedPrecision:
    """Compute in float32 what the candidate computes in half; then give the reference the same rounded weights."""

    causes = ("precision-reduction",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        proto = case.graph()
        return proto is not None and (_has_halves(proto) or bool(rounding.rounded_weights(proto)))

    def test(self, case: Case) -> Sequence[Explained]:
        proto = case.editable()
        if proto is None:
            return []
        plan = widen.Widening(case.tensor_types(), HALVES, widen.SINGLE, narrow_ops=frozenset(), inputs=True)
        found = widen.runnable(proto, plan) if any(kind in HALVES for kind in plan.types.values()) else None
        wide, plan = (proto, plan) if found is None else found
        answers = case.ask_changed("candidate", target=wide)
        if answers is None:
            return []
        cure = next(self._cures(case, proto, wide, answers, plan), None) if _has_halves(proto) else None
        if cure is not None and not cure.weights:
            return [self._explained(case, proto, plan, cure)]
        restored = self._restored(case, proto, wide)
        if restored is not None:
            return [restored]
        return [] if cure is None else [self._explained(case, proto, plan, cure)]

    def _restored(self, case: Case, proto: ModelProto, wide: ModelProto) -> Explained | None:
        """Put the reference's own weights in the place of those that half precision has left."""
        found = rounding.counterparts(case, rounding.rounded_weights(proto))
        effect = experiment.run(case, Change(target=rounding.with_arrays(wide, found))) if found else None
        if effect is None or not effect.explains:
            return None
        alone = []
        for name, weight in experiment.searching(case, found.items() if len(found) <= MOST_NODES else ()):
            one = experiment.run(case, Change(target=rounding.with_arrays(wide, {name: weight})))
            if one is not None and one.explains and one.share >= 0.9 * effect.share:
                alone.append(weight)
        decisive = alone[0] if len(alone) == 1 else next(iter(found.values())) if len(found) == 1 else None
        form = next(iter(found.values())).form
        return Explained(
            "precision-reduction",
            "model" if decisive is None else f"{decisive.owner} ('{decisive.tensor}')",
            f"{len(found)} stored arrays are rounded to {form}; with the reference's own in their place the candidate "
            f"agrees on {int(effect.covered.sum())} of {int(effect.failing.sum())} failing rows",
            KEPT if decisive is not None else ACCEPTED,
            covered=effect.covered,
            simplicity=1,
        )

    def _cures(
        self, case: Case, proto: ModelProto, wide: ModelProto, answers: Tensors, plan: widen.Widening
    ) -> Iterator[Cure]:
        alone = Trial.whole(case).effect(candidate=answers)
        dtype = _dtype(proto, plan)
        if alone.explains and Trial.whole(case).nearer(candidate=answers):
            yield Cure(alone, f"computed in float32 instead of {dtype}, the candidate agrees with the reference")
        for clip in (None, CLIPPED):
            twin = rounding.rounded(case, dtype, clip=clip)
            given = None if twin is None else case.ask_changed("reference", target=twin)
            if given is None:
                break
            weights = Trial.whole(case).effect(reference=given)
            both = Trial.whole(case).effect(reference=given, candidate=answers)
            bounded = "" if clip is None else f", bounded by {clip:g}"
            if weights.explains and weights.share >= both.share and Trial.whole(case).nearer(reference=given):
                told = f"with its weights rounded to {dtype}{bounded} the reference agrees with the candidate"
                yield Cure(weights, told, given, weights=True)
            if both.explains and Trial.whole(case).nearer(reference=given, candidate=answers):
                told = (
                    f"computed in float32 instead of {dtype}, the candidate agrees with the reference once the weights "
                    f"of that are rounded to {dtype}{bounded} as well"
                )
                yield Cure(both, told, given)
        steps = {name: step for name, step in rounding.half_steps(proto).items() if plan.types.get(name, 0) in HALVES}
        draws = [
            found
            for seed in range(rounding.DRAWS if steps else 0)
            if (found := case.ask_changed("candidate", target=rounding.jittered(wide, steps, seed))) is not None
        ]
        if draws:
            effect = Effect(rounding.rows_within(case, answers, draws), case.required.failing)
            if effect.explains:
                told = (
                    f"moved within what {dtype} rounds off, the weights move the answers by as much as the difference"
                )
                yield Cure(effect, told, weights=True, simplicity=4)

    def _explained(self, case: Case, proto: ModelProto, plan: widen.Widening, cure: Cure) -> Explained:
        count, total = int(cure.effect.covered.sum()), int(cure.effect.failing.sum())
        evidence = f"{cure.evidence} on {count} of {total} failing rows"
        overflow = self._overflow(case, proto, cure)
        culprit = overflow or self._culprit(case, proto, plan, cure)
        if overflow:
            evidence += f"; before, {overflow} overflows"
        return Explained(
            "precision-reduction",
            culprit,
            evidence,
            KEPT if culprit != "model" else ACCEPTED,
            covered=cure.effect.covered,
            simplicity=cure.simplicity,
        )

    def _overflow(self, case: Case, proto: ModelProto, cure: Cure) -> str | None:
        broken = np.zeros(len(case.required), dtype=bool)
        for pair in case.failing_pairs():
            if pair.candidate.dtype.kind == "f":
                finite = np.isfinite(pair.candidate.astype(np.float64))
                broken |= ~finite.reshape(len(finite), -1).all(axis=1)
        rows = np.flatnonzero(broken & cure.effect.covered)
        if not len(rows):
            return None
        origin = trace.origin(case, "candidate", proto, rows)
        return None if origin is None else edits.place(origin.node)

    def _culprit(self, case: Case, proto: ModelProto, plan: widen.Widening, cure: Cure) -> str:
        """The node that alone in half precision brings the failures back, where there is one; or the only tensor."""
        stored = [name for name in edits.constants(proto.graph) if plan.types.get(name) in HALVES]
        nodes = [
            node
            for node in widen.computing_nodes(proto, plan)
            if any(plan.concerns(name) for name in (*node.input, *node.output))
        ]
        if not nodes:
            return _listed(stored)
        if cure.weights or len(nodes) > MOST_NODES:
            return "model" if len(nodes) > 1 else edits.place(nodes[0])
        if len(nodes) == 1:
            return edits.place(nodes[0])
        positions = Trial.few(case, experiment.SOME).positions
        again = [
            (self._again(case, proto, plan, cure, node, positions), node) for node in experiment.searching(case, nodes)
        ]
        if len(again) < len(nodes):
            return "model"
        again.sort(key=lambda entry: -entry[0])
        covered = int(cure.effect.covered[positions].sum())
        decisive = again[0][0] >= 0.9 * covered and again[1][0] <= 0.3 * covered
        return edits.place(again[0][1]) if decisive else "model"

    def _again(
        self,
        case: Case,
        proto: ModelProto,
        plan: widen.Widening,
        cure: Cure,
        node: NodeProto,
        positions: Array,
    ) -> int:
        """How many rows fail again with only this node in half precision."""
        narrow = widen.widened(proto, replace(plan, narrow_nodes=frozenset({node.name})))
        answers = case.ask_changed("candidate", target=narrow, batch=case.rows(positions))
        if answers is None:
            return 0
        given = None if cure.reference is None else {name: array[positions] for name, array in cure.reference.items()}
        effect = Trial(case, positions).effect(reference=given, candidate=answers)
        return int((cure.effect.covered[positions] & ~effect.agrees).sum())


def _has_halves(proto: ModelProto) -> bool:
    """Does anything in the file speak of half precision?"""
    values = (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
    if any(tensor.data_type in HALVES for tensor in proto.graph.initializer):
        return True
    if any(value.type.tensor_type.elem_type in HALVES for value in values):
        return True
    return any(
        (attribute.name == "to" and attribute.i in HALVES)
        or (attribute.HasField("t") and attribute.t.data_type in HALVES)
        for node in edits.all_nodes(proto.graph)
        for attribute in node.attribute
    )


def _dtype(proto: ModelProto, plan: widen.Widening) -> str:
    kinds = [kind for kind in plan.types.values() if kind in HALVES]
    return NAMES[max(set(kinds), key=kinds.count)] if kinds else "float16"


def _listed(names: list[str]) -> str:
    if not names or len(names) > 3:
        return "model"
    return ", ".join(f"'{name}'" for name in names)


EXTENSION = ReducedPrecision()
