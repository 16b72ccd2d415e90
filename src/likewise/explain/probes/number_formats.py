"""Numbers that a type does not hold: rounded to eight bits or fewer, NaN and Inf on one side, integers that wrap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.data.cells import listed
from likewise.explain import experiment, rounding, trace
from likewise.explain.case import DOUBLE, Case, Explained, Fix, Remedy, probe
from likewise.explain.experiment import Change, Effect, Trial
from likewise.explain.remedies import quantised_again
from likewise.models.onnx import dequantize, edits, widen
from likewise.models.onnx.dequantize import Site, Weight

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


UINT8, INT8, UINT16, INT16, INT32, INT64, UINT32 = 2, 3, 4, 5, 6, 7, 12
"""Numbers of ONNX for types of integers."""

NARROW = frozenset({UINT8, INT8, UINT16, INT16, INT32, UINT32})
WIDER = (
    (widen.SINGLE, frozenset({widen.HALF, widen.BRAIN})),
    (widen.DOUBLE, frozenset({widen.SINGLE})),
)
"""Types of floats, and those that each is the next wider one of."""

ROWS_SEEN = 256
"""Rows whose integers are looked at inside the graph."""

WHOLE = Place("model")

UNSATURATED = "Quantise with 7-bit weights (likewise quantize --reduce-range) or unsigned ones (--weights uint8)"

NAMED = 4
"""Places kept in float that are named."""

MOST_PLACES = 40
"""Activations and weights that are tried one at a time."""

DOMINATES = 0.8
"""A single place is the culprit if this part of the difference goes with its quantisation."""

ALONE = 0.5
"""... and no more than this with that of any other."""

A_STEP = 2.0
"""Half steps that an integer may be off: some quantisers cut off what others round."""


@probe(
    "nonfinite",
    "weight-corruption",
    when=lambda case: any(
        _broken_rows(pair, side).any() for pair in case.failing_pairs() for side in ("candidate", "reference")
    ),
)
def nonfinite(case: Case) -> Sequence[Explained]:
    """Follow the first NaN or Inf to the node that makes it of finite numbers."""
    found = []
    for side in ("candidate", "reference"):
        usable = ~_unusable(case, side)
        rows = {pair.spec.name: _broken_rows(pair, side) & usable for pair in case.failing_pairs()}
        if any(mask.any() for mask in rows.values()) and (explained := _not_finite(case, side, rows)) is not None:
            found.append(explained)
    return found


@probe("integer-overflow", when=lambda case: case.graph() is not None and not case.comparison.quantized_nodes)
def integer_overflow(case: Case) -> Explained | None:
    """Compute the same graph with 64-bit integers, and look for the values that did not fit before."""
    proto, types = case.editable(), case.tensor_types()
    made = {name for node in (() if proto is None else proto.graph.node) for name in node.output}
    narrow = [name for name, kind in types.items() if kind in NARROW and name in made]
    if proto is None or not narrow:
        return None
    found = widen.runnable(proto, widen.Widening(types, NARROW, INT64, narrow_ops=frozenset()))
    effect = None if found is None else experiment.run(case, Change(target=found[0]))
    if found is None or effect is None or not effect.explains:
        return None
    wrapping = _wrapping(case, proto, found[0], narrow, effect.covered)
    if wrapping is None:
        return None
    node, largest, kind = wrapping
    return effect.explained(
        "integer-overflow",
        trace.place_of(node),
        f"its results reach {largest:,}, beyond {kind}, and wrap; with 64-bit integers the candidate agrees "
        f"with the reference on {effect.told}",
        "Convert to int64 (or a float) before this node, and export again",
        simplicity=1,
        fixes=Change(target=found[0]).fixes("integers computed in 64 bits"),
    )


def _not_finite(case: Case, side: str, rows: dict[str, Array]) -> Explained | None:
    """Where the NaN or Inf of a side comes from, from its rows by output."""
    anywhere = np.logical_or.reduce(list(rows.values())) & case.required.failing
    output = max(rows, key=lambda name: int(rows[name].sum()))
    other = "reference" if side == "candidate" else "candidate"
    healed = Effect(anywhere, case.required.failing)
    told = f"the {side} answers NaN or Inf in '{output}' on {healed.told}, the {other} a number"
    proto = case.editable(side)
    origin = None if proto is None else trace.origin(case, side, proto, np.flatnonzero(anywhere))
    if proto is None or origin is None:
        place = Place(output if side == "candidate" else f"{output} of the reference", side=side, outputs=(output,))
        remedy = f"Look at what the {side} does with these rows before it is compared"
        return healed.explained("nonfinite", place, told, remedy, simplicity=4)
    if origin.constant is not None:
        index = f"index {', '.join(map(str, origin.index))}"
        place = Place(f"'{origin.constant}'", (index,), side, tensors=(origin.constant,))
        told += f"; it comes from the number stored at {place}, which is not finite"
        return healed.explained(
            "weight-corruption", place, told, Remedy(again="Export it again from the trained model")
        )
    wider, target = _finite_in(case, proto) if side == "candidate" else (None, None)
    if wider == widen.SINGLE:
        # Half precision overflows at 65,504: that is the reduction of the precision, told as such elsewhere.
        return None
    node = trace.place_of(origin.node, side=side)
    told += f"; {node} is the first to make it of finite numbers: {origin.how}"
    return healed.explained(
        "nonfinite",
        Place(output, (f"{origin.how}: {node}",), side, nodes=node.nodes, tensors=node.tensors, outputs=(output,)),
        told if target is None else f"{told}; computed in double it does not happen",
        Remedy("Bound the value before this node as the reference does (torch.clamp)", again=DOUBLE if target else ""),
        fixes=() if target is None else (Fix("computed in double", lambda: target),),
    )


def _finite_in(case: Case, proto: ModelProto) -> tuple[int | None, ModelProto | None]:
    """The type of floats in which the candidate answers numbers where it does not now, and the graph in that type."""
    types = case.tensor_types()
    for wider, narrow in WIDER:
        found = widen.runnable(proto, widen.Widening(types, narrow, wider)) if narrow & set(types.values()) else None
        answers = None if found is None else case.ask_changed("candidate", target=found[0])
        if found is None or answers is None:
            continue
        broken = [(answers[pair.spec.candidate], _broken_rows(pair, "candidate")) for pair in case.failing_pairs()]
        if all(_finite(given[rows]).all() for given, rows in broken):
            return wider, found[0]
    return None, None


def _broken_rows(pair: Pair, side: str) -> Array:
    """The rows where this side has NaN or Inf and the other a number."""
    mine, theirs = (pair.candidate, pair.reference) if side == "candidate" else (pair.reference, pair.candidate)
    if mine.dtype.kind != "f":
        return np.zeros(len(mine), dtype=bool)
    broken = ~_finite(mine).reshape(len(mine), -1)
    if theirs.dtype.kind == "f":
        broken &= _finite(theirs).reshape(len(theirs), -1)
    return np.asarray(broken.any(axis=1))


def _finite(array: Array) -> Array:
    finite: Array = np.isfinite(array.astype(np.float64)) if array.dtype.kind == "f" else np.ones(array.shape, bool)
    return finite


def _unusable(case: Case, side: str) -> Array:
    """The rows that are given NaN or Inf: what a model does with those is another matter."""
    mask = np.zeros(len(case.required), dtype=bool)
    if not case.required.batch.stacked:
        return mask
    for array in case.fed(side).values():
        if array.dtype.kind == "f":
            mask |= ~_finite(array).reshape(len(array), -1).all(axis=1)
        elif array.dtype.kind == "O" and array.ndim == 1:
            mask |= np.array([value is None or value != value for value in array], dtype=bool)
    return mask


def _wrapping(
    case: Case, proto: ModelProto, wide: ModelProto, narrow: Sequence[str], rows: Array
) -> tuple[NodeProto, int, str] | None:
    """The first node whose result does not fit, the result furthest from zero, and the type."""
    from onnx import helper

    types = case.tensor_types()
    widened = {**types, **dict.fromkeys(narrow, INT64)}
    seen = trace.seen_inside(case, "candidate", wide, narrow, np.flatnonzero(rows)[:ROWS_SEEN], types=widened)
    for node in proto.graph.node:
        for name in node.output:
            values = None if seen is None else seen.get(name)
            if values is None or not values.size:
                continue
            dtype = helper.tensor_dtype_to_np_dtype(types[name])
            limits = np.iinfo(dtype)
            if values.min() < limits.min or values.max() > limits.max:
                largest = values.max() if values.max() > limits.max else values.min()
                return node, int(largest), str(dtype)
    return None


@dataclass(slots=True)
class _Quantized:
    """A graph in one form for all quantisers, the places where it rounds, and the weights it should have.

    `ranked` are these places as far as each was tried alone, those first that do most of the difference.
    """

    case: Case
    proto: ModelProto
    sites: list[Site]
    weights: dict[str, Weight]
    restored: dict[str, Array] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    biases: dict[str, Array] = field(default_factory=dict)
    bounded: str = "relu"
    optimised: bool = False
    ranked: list[tuple[Place, list[Site], list[str]]] = field(default_factory=list)

    @staticmethod
    def of(case: Case, proto: ModelProto) -> _Quantized:
        plain = dequantize.written_out(proto)
        found = {weight.node: weight for weight in (*dequantize.weights(plain), *dequantize.packed(proto))}
        graph = _Quantized(case, plain, dequantize.activations(plain), found)
        arrays = rounding.arrays_of(case)
        for node, weight in found.items():
            match = rounding.counterpart(weight.values, A_STEP * weight.half_step, arrays)
            if match is not None:
                graph.names[node], graph.restored[node] = match
        for name, values in edits.constants(plain.graph).items():
            bias = rounding.proportional(values.astype(np.float64), arrays) if name.endswith(dequantize.BIAS) else None
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

    def left(self, sites: Sequence[Site], weights: Sequence[str]) -> float | None:
        """The mean difference that is left with some places in floats. Without fusions, which would quantise again."""
        trial = Trial.whole(self.case)
        options = {} if self.optimised else {"optimization": "disable"}
        answers = trial.ask(Change(target=self.floating(sites, weights), options=options))
        return None if answers is None else trial.gap(candidate=answers)

    def fixes(self) -> Iterator[Fix]:
        """The places that do most kept in float, more and more of them, and at last all."""
        count, every = 1, len(list(self.places()))
        while self.ranked and count < every:
            kept = self.ranked[:count]
            sites = [site for _, some, _ in kept for site in some]
            weights = [weight for _, _, some in kept for weight in some]
            named = listed([str(place) for place, _, _ in kept], NAMED)
            told = f"{count} of {every} quantised places kept in float: {named}"
            yield Fix(told, partial(self.floating, sites, weights))
            count += max(1, count // 2)
        yield Fix(
            "all quantised places kept in float: nothing of the quantisation is left",
            partial(self.floating, self.sites, list(self.weights)),
        )

    def places(self) -> Iterator[tuple[Place, list[Site], list[str]]]:
        """Where it rounds: activations, and the weights that can be put back."""
        for site in self.sites:
            yield _read_by(site.tensor, site.reader), [site], []
        for node in self.restored:
            tensor, owner = self.weights[node].tensor, self.names.get(node, "weight")
            yield Place(owner, (f"'{tensor}'",), path=owner, tensors=(tensor,)), [], [node]


@probe("quantization", when=lambda case: case.graph() is not None and case.comparison.quantized_nodes > 0)
def quantization(case: Case) -> Explained | None:
    """Compute in floats, with the reference's own weights; then let one place at a time be quantised or not."""
    proto = case.editable()
    if proto is None:
        return None
    trial = Trial.whole(case)
    unsigned = dequantize.unsigned(proto)
    saturating = None if unsigned is None else trial.ask(Change(target=unsigned))
    if saturating is not None and (effect := trial.effect(candidate=saturating)).explains:
        return _saturated(effect, Change(target=unsigned))
    unfused = experiment.unoptimised(case)
    if unfused is not None and unfused.explains:
        return None
    found = _in_floats(_Quantized.of(case, proto))
    if found is None or saturating is None:
        return found
    gone = 1 - trial.gap(candidate=saturating) / trial.gap()
    told = (
        f"; {100 * gone:.0f}% of the difference goes with the same weights stored unsigned: sums of signed 8-bit "
        "products saturate on this processor"
    )
    return replace(found, evidence=found.evidence + told, remedy=UNSATURATED) if gone > ALONE else found


def _saturated(effect: Effect, change: Change) -> Explained:
    """The same weights, unsigned, are multiplied by other instructions, and that is all that changes."""
    return effect.explained(
        "quantization",
        Place("model", ("8-bit products saturate on this processor",)),
        "the same weights stored unsigned, which only changes the instructions, agree with the reference on "
        f"{effect.told}: sums of signed 8-bit products saturate on processors without VNNI",
        UNSATURATED,
        simplicity=1,
        fixes=change.fixes("8-bit weights stored unsigned, which the kernels of this processor do not saturate"),
    )


def _in_floats(graph: _Quantized) -> Explained | None:
    """What is left of the difference without any quantisation, and where it comes from."""
    for bounded in ("relu", "none", "clip"):
        graph.bounded = bounded
        effect = Trial.whole(graph.case).run(Change(target=graph.floating(graph.sites, list(graph.weights))))
        if effect is not None and effect.explains:
            place, more = _culprit(graph)
            with_weights = " and with the weights of the reference" if graph.restored else ""
            told = f"computed in floats{with_weights}, the candidate agrees with the reference on {effect.told}{more}"
            # What costs nothing in size comes first.
            remedy, fixes = _remedy(graph.case, place), (*quantised_again(graph.case), *graph.fixes())
            simplicity = 4 if place is WHOLE else 2
            return effect.explained("quantization", place, told, remedy, simplicity=simplicity, fixes=fixes)
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
    remedy, fixes = _remedy(graph.case, WHOLE), tuple(quantised_again(graph.case))
    return effect.explained("quantization", WHOLE, told, remedy, simplicity=4, fixes=fixes)


def _culprit(graph: _Quantized) -> tuple[Place, str]:
    """The place that dominates, if one does, and what else there is to say of it."""
    places = list(graph.places())
    if len(places) == 1:
        return places[0][0], ""
    before, actual = graph.left([], []), Trial.whole(graph.case).gap()
    if before is not None and before < ALONE * actual:
        # The fused kernels do something else than the graph says; then it is these that have to be looked at.
        graph.optimised, before = True, actual
    if not before:
        return WHOLE, ""
    measured = [
        (left / before, entry)
        for entry in experiment.searching(graph.case, places[:MOST_PLACES])
        if (left := graph.left(*entry[1:])) is not None
    ]
    measured.sort(key=lambda one: one[0])
    graph.ranked = [entry for _, entry in measured]
    if measured and measured[0][0] <= 1 - DOMINATES and all(rest >= ALONE for rest, _ in measured[1:]):
        rest, (place, _, _) = measured[0]
        return place, f"; without the quantisation of {place} alone the difference falls by {100 * (1 - rest):.0f}%"
    activations, stored = graph.left(graph.sites, []), graph.left([], list(graph.restored))
    if activations is None or stored is None:
        return WHOLE, ""
    more = "activations" if activations < stored else "weights"
    return WHOLE, f"; the quantisation of the {more} does more than the rest"


def _read_by(tensor: str, reader: NodeProto | None) -> Place:
    if reader is None:
        return Place(f"'{tensor}'", tensors=(tensor,))
    place = trace.place_of(reader)
    return Place(f"'{tensor}', read by {place}", path=place.path, nodes=place.nodes, tensors=(tensor,))


def _remedy(case: Case, place: Place) -> str:
    if place == WHOLE:
        # The verdict says whether its limits are those of a quantised model already.
        if any(finding.code == "quantized-candidate" for finding in case.verdict.findings):
            return "If INT8 is intended, judge it as such: --preset quantized; else deploy the float model"
        return "Deploy the float model, or quantise fewer nodes (likewise quantize --exclude NODE)"
    node = place.nodes[0].removesuffix("_quant") if place.nodes else "NODE"
    return f"Leave this node out (likewise quantize --exclude {node}), or calibrate on rows like these"


EXTENSIONS = (nonfinite, integer_overflow, quantization)
