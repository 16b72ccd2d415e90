"""Numbers of the candidate are rounded to integers of eight bits or fewer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array, Tensors
from likewise.explain import experiment, rounding
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import HARMLESS, Effect, Trial
from likewise.models.onnx import dequantize, edits, integers
from likewise.models.onnx.dequantize import Site, Weight

if TYPE_CHECKING:
    from onnx import ModelProto


WHOLE = "model"
UNSATURATED = "Quantise with 7-bit weights (likewise quantize --reduce-range) or unsigned ones (--weights uint8)"

MOST_PLACES = 40
"""Activations and weights that are tried one at a time."""

DOMINATES = 0.8
"""A single place is the culprit if leaving it out does so much of what leaving out all does."""


@dataclass(frozen=True, slots=True)
class _Left:
    """What is left after a change: the share of failing rows that agree, and the mean difference."""

    share: float
    gap: float


@dataclass(slots=True)
class Quantized:
    """A graph in one form for all quantisers, the places where it rounds, and the weights it should have."""

    proto: ModelProto
    sites: list[Site]
    weights: dict[str, Weight]
    restored: dict[str, Array] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    biases: dict[str, Array] = field(default_factory=dict)
    bounded: str = "relu"
    optimised: bool = False

    def floating(self, sites: Sequence[Site], weights: Sequence[str]) -> ModelProto:
        """The graph in floats at some of its places."""
        chosen = {name: self.restored[name] for name in weights if name in self.restored}
        changed = dequantize.with_weights(self.proto, chosen)
        for name in dequantize.biases(self.proto, sites, weights) & self.biases.keys():
            edits.set_constant(changed.graph, name, self.biases[name])
        return dequantize.without(changed, sites, bounded=self.bounded) if sites else changed


class Quantization:
    """Compute in floats, with the reference's own weights; then let one place at a time be quantised or not."""

    causes = ("quantization",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return case.graph() is not None and case.comparison.quantized_nodes > 0

    def test(self, case: Case) -> Sequence[Explained]:
        proto = case.editable()
        if proto is None:
            return []
        unsigned = dequantize.unsigned(proto)
        saturating = None if unsigned is None else case.ask_changed("candidate", target=unsigned)
        if saturating is not None and (effect := Trial.whole(case).effect(candidate=saturating)).explains:
            return [self._saturated(effect)]
        if (unfused := self._unfused(case)) is not None:
            # What the graph says is right, and the fused kernels do something else.
            return self._miscounted(proto, unfused)
        graph = self._read(case, proto)
        found = self._whole(case, graph)
        if found is None:
            return []
        effect, told, simplicity = found
        culprit, more = self._culprit(case, graph, effect) if simplicity < 4 else (WHOLE, "")
        if culprit == WHOLE and len(wrong := dequantize.miscounted(proto)) == 1:
            culprit = f"'{wrong[0].tensor}', read by {edits.place(wrong[0].node)}"
            more += f"; its scale is {wrong[0].factor:.4g} times the one that the bias of this node is counted in"
        if (scaled := self._wrong_scale(graph, culprit)) is not None:
            # Exact knowledge: the integers are those of the weight, and only what they count in is wrong.
            more, simplicity = f"{more}; its scale is {scaled:.4g} times what the weight needs", 1
        remedy = _remedy(culprit)
        if (
            saturating is not None
            and (gone := 1 - Trial.whole(case).gap(candidate=saturating) / Trial.whole(case).gap()) > 0.5
        ):
            more += (
                f"; {100 * gone:.0f}% of the difference goes with the same weights stored unsigned: sums of signed "
                "8-bit products saturate on this processor"
            )
            remedy = UNSATURATED
        count, total = int(effect.covered.sum()), int(effect.failing.sum())
        return [
            Explained(
                "quantization",
                culprit,
                f"{told} on {count} of {total} failing rows{more}",
                remedy,
                covered=effect.covered,
                simplicity=simplicity,
            )
        ]

    def _saturated(self, effect: Effect) -> Explained:
        """The same weights, unsigned, are multiplied by other instructions, and that is all that changes."""
        return Explained(
            "quantization",
            "model (8-bit products saturate on this processor)",
            "the same weights stored unsigned, which only changes the instructions, agree with the reference on "
            f"{int(effect.covered.sum())} of {int(effect.failing.sum())} failing rows: sums of signed 8-bit products "
            "saturate on processors without VNNI",
            UNSATURATED,
            covered=effect.covered,
            simplicity=1,
        )

    def _unfused(self, case: Case) -> Effect | None:
        """The comparison without graph optimisation, if that is all it takes."""
        effect = case.once(experiment.unoptimised)
        return effect if effect is not None and effect.explains else None

    def _miscounted(self, proto: ModelProto, effect: Effect) -> list[Explained]:
        """Scales that contradict each other are the file's fault; anything else is the optimiser's."""
        found = dequantize.miscounted(proto)
        if not found:
            return []
        named = [f"'{entry.tensor}', read by {edits.place(entry.node)}" for entry in found]
        return [
            Explained(
                "quantization",
                named[0] if len(named) == 1 else ", ".join(named),
                f"the scale of {named[0]} is {found[0].factor:.4g} times the one that the bias of this node is counted "
                "in, and fused kernels take them to be the same; unfused, the candidate agrees with the reference on "
                f"{int(effect.covered.sum())} of {int(effect.failing.sum())} failing rows",
                "Quantise again from the float model, or set the scale right",
                covered=effect.covered,
                simplicity=1,
            )
        ]

    def _read(self, case: Case, proto: ModelProto) -> Quantized:
        plain = integers.written_out(proto)
        found = {weight.node: weight for weight in (*dequantize.weights(plain), *dequantize.packed(proto))}
        graph = Quantized(plain, dequantize.activations(plain), found)
        arrays = rounding.arrays_of(case)
        for node, weight in found.items():
            match = rounding.counterpart(weight.values, 2.02 * weight.half_step, arrays)
            if match is not None:
                graph.names[node], graph.restored[node] = match
        for name, values in edits.constants(plain.graph).items():
            if name.endswith(integers.BIAS):
                bias = rounding.proportional(values.astype("float64"), arrays)
                if bias is not None:
                    graph.biases[name] = bias[1].astype(values.dtype)
        return graph

    def _whole(self, case: Case, graph: Quantized) -> tuple[Effect, str, int] | None:
        """What is left of the difference without any quantisation, and how that is told."""
        answers: Tensors | None = None
        for bounded in ("relu", "none", "clip"):
            graph.bounded = bounded
            answers = case.ask_changed("candidate", target=graph.floating(graph.sites, list(graph.weights)))
            effect = None if answers is None else Trial.whole(case).effect(candidate=answers)
            if effect is not None and effect.explains:
                with_weights = " and with the weights of the reference" if graph.restored else ""
                return effect, f"computed in floats{with_weights}, the candidate agrees with the reference", 2
        graph.bounded = "relu"
        return self._within_rounding(case, graph)

    def _within_rounding(self, case: Case, graph: Quantized) -> tuple[Effect, str, int] | None:
        """Where the weights of the reference cannot be put back: does their rounding move the answers as much?"""
        free = graph.floating(graph.sites, [])
        centre = case.ask_changed("candidate", target=free)
        if centre is None or not graph.weights:
            return None
        draws = []
        for seed in range(rounding.DRAWS):
            generator = np.random.default_rng(seed)
            moved = {
                name: weight.values + generator.uniform(-1, 1, weight.values.shape) * weight.half_step
                for name, weight in graph.weights.items()
            }
            jittered = dequantize.without(dequantize.with_weights(graph.proto, moved), graph.sites)
            if (found := case.ask_changed("candidate", target=jittered)) is not None:
                draws.append(found)
        if not draws:
            return None
        effect = Effect(rounding.rows_within(case, centre, draws), case.required.failing)
        told = (
            "computed in floats with its weights moved within what the integers round off, the candidate's answers "
            "move by as much as the difference"
        )
        return (effect, told, 4) if effect.explains else None

    def _culprit(self, case: Case, graph: Quantized, whole: Effect) -> tuple[str, str]:
        """The place that dominates, if one does; and what else there is to say of it."""
        places: list[tuple[str, list[Site], list[str]]] = [
            *((_named(site), [site], []) for site in graph.sites),
            *((self._weight_named(graph, name), [], [name]) for name in graph.restored),
        ]
        if len(places) == 1:
            return places[0][0], ""
        before = self._left(case, graph, [], [])
        actual = Trial.whole(case).gap()
        if before is not None and before.gap < 0.5 * actual:
            # The fused kernels do something else than the graph says; then it is these that have to be looked at.
            graph.optimised, before = True, _Left(0.0, actual)
        if before is None or not before.gap:
            return WHOLE, ""
        tried = [
            (left.share, left.gap / before.gap, told)
            for told, sites, weights in experiment.searching(case, places[:MOST_PLACES])
            if (left := self._left(case, graph, sites, weights)) is not None
        ]
        by_share = sorted(tried, key=lambda entry: -entry[0])
        if by_share and by_share[0][0] >= DOMINATES * whole.share and all(e[0] < 0.5 for e in by_share[1:]):
            share, _, told = by_share[0]
            return told, f"; without the quantisation of {told} alone, {100 * share:.3g}% of the failing rows agree"
        by_gap = sorted(tried, key=lambda entry: entry[1])
        if by_gap and by_gap[0][1] <= 1 - DOMINATES and all(e[1] >= 0.75 for e in by_gap[1:]):
            _, left_over, told = by_gap[0]
            return (
                told,
                f"; without the quantisation of {told} alone the difference falls by {100 * (1 - left_over):.0f}%",
            )
        activations, weights = (
            self._left(case, graph, graph.sites, []),
            self._left(case, graph, [], list(graph.restored)),
        )
        if activations is None or weights is None:
            return WHOLE, ""
        more = "activations" if activations.gap < weights.gap else "weights"
        return WHOLE, f"; the quantisation of the {more} does more than the rest"

    def _left(self, case: Case, graph: Quantized, sites: Sequence[Site], weights: Sequence[str]) -> _Left | None:
        """What is left of the difference with some places in floats; without fusions, which would quantise again."""
        options = {} if graph.optimised else {"optimization": "disable"}
        answers = case.ask_changed("candidate", target=graph.floating(sites, weights), options=options)
        if answers is None:
            return None
        effect = Trial.whole(case).effect(candidate=answers)
        return _Left(effect.share if effect.damage <= HARMLESS else 0.0, Trial.whole(case).gap(candidate=answers))

    def _wrong_scale(self, graph: Quantized, culprit: str) -> float | None:
        """By which factor the culprit, if it is a weight, is not the reference's."""
        for node, values in graph.restored.items():
            weight = graph.weights[node]
            if (
                self._weight_named(graph, node) == culprit
                and (np.abs(weight.values - values) > 2.02 * weight.half_step).any()
            ):
                return float((weight.values * values).sum() / (values * values).sum())
        return None

    def _weight_named(self, graph: Quantized, node: str) -> str:
        weight = graph.weights[node]
        return f"{graph.names.get(node, 'weight')} ('{weight.tensor}')"


def _named(site: Site) -> str:
    reader = "" if site.reader is None else f", read by {edits.place(site.reader)}"
    return f"'{site.tensor}'{reader}"


def _remedy(culprit: str) -> str:
    if culprit == WHOLE:
        return "If INT8 is intended, judge it as such: --preset quantized; else deploy the float model"
    named = re.match(r"node '(.+?)(?:_quant)?'", culprit)
    node = named.group(1) if named else "NODE"
    return f"Leave this node out (likewise quantize --exclude {node}), or calibrate on rows like these"


EXTENSION = Quantization()
