"""Numbers of the candidate are rounded to integers of eight bits or fewer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.explain import experiment, rounding, trace
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import HARMLESS, Change, Effect, Trial
from likewise.models.onnx import dequantize, edits, widen
from likewise.models.onnx.dequantize import Miscounted, Site, Weight

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


WHOLE = Place("model")
UNSATURATED = "Quantise with 7-bit weights (likewise quantize --reduce-range) or unsigned ones (--weights uint8)"

MOST_PLACES = 40
"""Activations and weights that are tried one at a time."""

DOMINATES = 0.8
"""A single place is the culprit if leaving it out does so much of what leaving out all does."""

ALONE = 0.5
"""... and if no other one does so much."""

A_STEP = 2.0
"""Half steps that an integer may be off: some quantisers cut off what others round."""


@dataclass(frozen=True, slots=True)
class _Left:
    """What is left after a change: the share of failing rows that agree, and the mean difference."""

    share: float
    gap: float


@dataclass(slots=True)
class _Quantized:
    """A graph in one form for all quantisers, the places where it rounds, and the weights it should have."""

    case: Case
    proto: ModelProto
    sites: list[Site]
    weights: dict[str, Weight]
    restored: dict[str, Array] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    biases: dict[str, Array] = field(default_factory=dict)
    bounded: str = "relu"
    optimised: bool = False

    @staticmethod
    def of(case: Case, proto: ModelProto) -> _Quantized:
        plain = widen.written_out(proto)
        found = {weight.node: weight for weight in (*dequantize.weights(plain), *dequantize.packed(proto))}
        graph = _Quantized(case, plain, dequantize.activations(plain), found)
        arrays = rounding.arrays_of(case)
        for node, weight in found.items():
            match = rounding.counterpart(weight.values, A_STEP * weight.half_step, arrays)
            if match is not None:
                graph.names[node], graph.restored[node] = match
        for name, values in edits.constants(plain.graph).items():
            bias = rounding.proportional(values.astype(np.float64), arrays) if name.endswith(widen.BIAS) else None
            if bias is not None:
                graph.biases[name] = bias[1].astype(values.dtype)
        return graph

    def floating(self, sites: Sequence[Site], weights: Sequence[str]) -> ModelProto:
        """The graph in floats at some of its places."""
        chosen = {name: self.restored[name] for name in weights if name in self.restored}
        changed = dequantize.with_weights(self.proto, chosen)
        for name in dequantize.biases(self.proto, sites, weights) & self.biases.keys():
            edits.set_constant(changed.graph, name, self.biases[name])
        return dequantize.without(changed, sites, bounded=self.bounded) if sites else changed

    def jittered(self, seed: int) -> ModelProto:
        """The graph in floats, its weights moved at random within what the integers round off."""
        generator = np.random.default_rng(seed)
        moved = {
            name: weight.values + generator.uniform(-1, 1, weight.values.shape) * weight.half_step
            for name, weight in self.weights.items()
        }
        return dequantize.without(dequantize.with_weights(self.proto, moved), self.sites)

    def left(self, sites: Sequence[Site], weights: Sequence[str]) -> _Left | None:
        """What is left of the difference with some places in floats; without fusions, which would quantise again."""
        trial = Trial.whole(self.case)
        options = {} if self.optimised else {"optimization": "disable"}
        answers = trial.ask(Change(target=self.floating(sites, weights), options=options))
        if answers is None:
            return None
        effect = trial.effect(candidate=answers)
        return _Left(effect.share if effect.damage <= HARMLESS else 0.0, trial.gap(candidate=answers))

    def places(self) -> Iterator[tuple[Place, list[Site], list[str]]]:
        """Where it rounds: activations, and the weights that can be put back."""
        for site in self.sites:
            yield _read_by(site.tensor, site.reader), [site], []
        for node in self.restored:
            tensor, owner = self.weights[node].tensor, self.names.get(node, "weight")
            yield Place(owner, (f"'{tensor}'",), path=owner, tensors=(tensor,)), [], [node]


class Quantization:
    """Compute in floats, with the reference's own weights; then let one place at a time be quantised or not."""

    causes = ("quantization",)
    needs_answers = True
    slow = False

    def plausible(self, case: Case) -> bool:
        return case.graph() is not None and case.comparison.quantized_nodes > 0

    def test(self, case: Case) -> Sequence[Explained]:
        proto = case.editable()
        if proto is None:
            return []
        trial = Trial.whole(case)
        unsigned = dequantize.unsigned(proto)
        saturating = None if unsigned is None else trial.ask(Change(target=unsigned))
        if saturating is not None and (effect := trial.effect(candidate=saturating)).explains:
            return [_saturated(effect)]
        wrong = dequantize.miscounted(proto)
        unfused = case.once(experiment.unoptimised)
        if unfused is not None and unfused.explains:
            # Scales that contradict each other are the file's fault; anything else is the optimiser's.
            return [_miscounted(wrong, unfused)] if wrong else []
        graph = _Quantized.of(case, proto)
        found = _in_floats(graph)
        if found is None:
            return []
        if saturating is not None and (gone := 1 - trial.gap(candidate=saturating) / trial.gap()) > ALONE:
            return [replace(found, evidence=found.evidence + _saturating(gone), remedy=UNSATURATED)]
        if found.culprit == WHOLE and len(wrong) == 1:
            place, counted = _read_by(wrong[0].tensor, wrong[0].node), wrong[0].factor
            told = f"; its scale is {counted:.4g} times the one that the bias of this node is counted in"
            return [replace(found, culprit=place, evidence=found.evidence + told, remedy=_remedy(place))]
        return [found]


def _saturated(effect: Effect) -> Explained:
    """The same weights, unsigned, are multiplied by other instructions, and that is all that changes."""
    return Explained(
        "quantization",
        Place("model", ("8-bit products saturate on this processor",)),
        "the same weights stored unsigned, which only changes the instructions, agree with the reference on "
        f"{effect.told}: sums of signed 8-bit products saturate on processors without VNNI",
        UNSATURATED,
        covered=effect.covered,
        simplicity=1,
    )


def _saturating(gone: float) -> str:
    return (
        f"; {100 * gone:.0f}% of the difference goes with the same weights stored unsigned: sums of signed 8-bit "
        "products saturate on this processor"
    )


def _miscounted(wrong: Sequence[Miscounted], effect: Effect) -> Explained:
    places = [_read_by(entry.tensor, entry.node) for entry in wrong]
    return Explained(
        "quantization",
        Place(
            ", ".join(map(str, places)),
            nodes=tuple(entry.node.name for entry in wrong),
            tensors=tuple(entry.tensor for entry in wrong),
        ),
        f"the scale of {places[0]} is {wrong[0].factor:.4g} times the one that the bias of this node is counted in, "
        "and fused kernels take them to be the same; unfused, the candidate agrees with the reference on "
        f"{effect.told}",
        "Quantise again from the float model, or set the scale right",
        covered=effect.covered,
        simplicity=1,
    )


def _in_floats(graph: _Quantized) -> Explained | None:
    """What is left of the difference without any quantisation, and where it comes from."""
    for bounded in ("relu", "none", "clip"):
        graph.bounded = bounded
        effect = Trial.whole(graph.case).run(Change(target=graph.floating(graph.sites, list(graph.weights))))
        if effect is not None and effect.explains:
            place, more, exact = _culprit(graph, effect)
            with_weights = " and with the weights of the reference" if graph.restored else ""
            told = f"computed in floats{with_weights}, the candidate agrees with the reference on {effect.told}{more}"
            simplicity = 1 if exact else 2
            return Explained("quantization", place, told, _remedy(place), covered=effect.covered, simplicity=simplicity)
    # Where the weights of the reference cannot be put back: does their rounding move the answers as much?
    graph.bounded = "relu"
    centre = graph.case.ask_changed("candidate", target=graph.floating(graph.sites, []))
    if centre is None or not graph.weights:
        return None
    effect = rounding.within_draws(graph.case, centre, (graph.jittered(seed) for seed in range(rounding.DRAWS)))
    if effect is None or not effect.explains:
        return None
    told = (
        "computed in floats with its weights moved within what the integers round off, the candidate's answers move "
        f"by as much as the difference on {effect.told}"
    )
    return Explained("quantization", WHOLE, told, _remedy(WHOLE), covered=effect.covered, simplicity=4)


def _culprit(graph: _Quantized, whole: Effect) -> tuple[Place, str, bool]:
    """The place that dominates, if one does; what else there is to say of it, and whether it is exactly known."""
    places = list(graph.places())
    if len(places) == 1:
        place, _, weights = places[0]
        scaled = _wrong_scale(graph, weights)
        return place, scaled, bool(scaled)
    before, actual = graph.left([], []), Trial.whole(graph.case).gap()
    if before is not None and before.gap < ALONE * actual:
        # The fused kernels do something else than the graph says; then it is these that have to be looked at.
        graph.optimised, before = True, _Left(0.0, actual)
    if before is None or not before.gap:
        return WHOLE, "", False
    tried = [
        (left.share, left.gap / before.gap, place, weights)
        for place, sites, weights in experiment.searching(graph.case, places[:MOST_PLACES])
        if (left := graph.left(sites, weights)) is not None
    ]
    by_share = sorted(tried, key=lambda entry: -entry[0])
    by_gap = sorted(tried, key=lambda entry: entry[1])
    told = ""
    if by_share and by_share[0][0] >= DOMINATES * whole.share and all(e[0] < ALONE for e in by_share[1:]):
        share, _, place, weights = by_share[0]
        told = f"; without the quantisation of {place} alone, {100 * share:.3g}% of the failing rows agree"
    elif by_gap and by_gap[0][1] <= 1 - DOMINATES and all(e[1] >= ALONE for e in by_gap[1:]):
        _, left_over, place, weights = by_gap[0]
        told = f"; without the quantisation of {place} alone the difference falls by {100 * (1 - left_over):.0f}%"
    if told:
        scaled = _wrong_scale(graph, weights)
        return place, told + scaled, bool(scaled)
    activations, stored = graph.left(graph.sites, []), graph.left([], list(graph.restored))
    if activations is None or stored is None:
        return WHOLE, "", False
    more = "activations" if activations.gap < stored.gap else "weights"
    return WHOLE, f"; the quantisation of the {more} does more than the rest", False


def _wrong_scale(graph: _Quantized, nodes: Sequence[str]) -> str:
    """By which factor a weight is not the reference's: its integers are right, and only what they count in is not."""
    for node in nodes:
        weight, values = graph.weights[node], graph.restored[node]
        if (np.abs(weight.values - values) > A_STEP * weight.half_step).any():
            factor = float((weight.values * values).sum() / (values * values).sum())
            return f"; its scale is {factor:.4g} times what the weight needs"
    return ""


def _read_by(tensor: str, reader: NodeProto | None) -> Place:
    if reader is None:
        return Place(f"'{tensor}'", tensors=(tensor,))
    place = trace.place_of(reader)
    return Place(f"'{tensor}', read by {place}", path=place.path, nodes=place.nodes, tensors=(tensor,))


def _remedy(place: Place) -> str:
    if place == WHOLE:
        return "If INT8 is intended, judge it as such: --preset quantized; else deploy the float model"
    node = place.nodes[0].removesuffix("_quant") if place.nodes else "NODE"
    return f"Leave this node out (likewise quantize --exclude {node}), or calibrate on rows like these"


EXTENSION = Quantization()
