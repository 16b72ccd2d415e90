"""Rounded to eight bits or fewer: computed in floats the candidate agrees, and which places that takes.

Each activation that becomes integers and each weight that is stored as such is put back into floats alone: what that
gives back of the difference is its blame, and from there the shortest list that brings the answers within their limits
is looked for. What is wrong at a place is read off its numbers: values beyond the range of a scale, too few steps,
integers that are read otherwise than they were written, weights that are not roundings of the reference's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.data.cells import listed
from likewise.explain import experiment, rounding, splice, trace, twins
from likewise.explain.case import Case, Explained, Fix, OutOfTimeError, probe
from likewise.explain.experiment import Change, Effect, Trial
from likewise.explain.remedies import quantised_again
from likewise.models.onnx import dequantize, edits, quantized
from likewise.models.onnx.quantized import Site, Weight

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

WHOLE = Place("model")

UNSATURATED = "Quantise with 7-bit weights (likewise quantize --reduce-range) or unsigned ones (--weights uint8)"

NAMED = 4
"""Places kept in float that are named."""

FEW = 3
"""A culprit is so many places at most; where it takes more, it is the quantisation as a whole."""

MOST_PLACES = 40
"""Activations and weights that are tried alone, those first that lose most."""

MOST_SECOND = 8
"""Places that are tried beside those that give most back, and that are tried before one is clearly the culprit."""

ALONE = 0.5
"""The culprit gives back twice as much as any other place does, or more."""

A_STEP = 2.0
"""Half steps that an integer may be off: some quantisers cut off what others round."""

SUFFIXES = ("_quantized", "_DequantizeLinear_Output", "_quant")
"""What quantisers hang behind the names of weights and nodes."""

CUT_OFF = 0.005
"""Of the values, from which part on beyond the range it is told that they are cut off."""

STEPS = 64
"""Steps that values spread over at least where a scale fits them."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A place where numbers are rounded, the part of them that is lost or cut off there, and what that is in words."""

    place: Place
    sites: tuple[Site, ...] = ()
    weights: tuple[str, ...] = ()
    lost: float = 0.0
    told: str = ""
    cut: float = 0.0


@dataclass(slots=True)
class Quantized:
    """A graph in one form for all quantisers, the places where it rounds, and the weights it should have.

    `foreign` are weights that are not roundings of the reference's. `ranked` are the places as far as each was tried
    alone, with the part of the difference that goes with it, the largest first.
    """

    case: Case
    proto: ModelProto
    sites: list[Site]
    weights: dict[str, Weight]
    restored: dict[str, Array] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    biases: dict[str, Array] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    bounded: str = "relu"
    optimised: bool = False
    parts: list[Part] = field(default_factory=list)
    ranked: list[tuple[float, Part]] = field(default_factory=list)

    @staticmethod
    def of(case: Case, proto: ModelProto) -> Quantized:
        plain = dequantize.written_out(proto)
        found = {weight.node: weight for weight in (*quantized.weights(plain), *quantized.packed(proto))}
        graph = Quantized(case, plain, quantized.activations(plain), found)
        arrays = rounding.arrays_of(case)
        graph.restore(arrays)
        if len(graph.restored) < len(found) and case.framework("reference") == "torch":
            # Exporters fold and transpose: what the reference gives as a graph today holds them as the candidate does.
            twin = twins.twin(case)
            arrays = [] if twin is None else list(edits.constants(twin.graph.proto.graph).items())
            graph.restore([(name, array) for name, array in arrays if array.ndim and array.dtype.kind == "f"])
        for name, values in edits.constants(plain.graph).items():
            bias = rounding.proportional(values.astype(np.float64), arrays) if name.endswith(dequantize.BIAS) else None
            if bias is not None:
                graph.biases[name] = bias[1].astype(values.dtype)
        return graph

    def restore(self, arrays: Sequence[tuple[str, Array]]) -> None:
        """Find the reference's weights: by what they hold, by name, then those that alone are left of their shape."""
        for node, weight in self.weights.items():
            match = rounding.counterpart(weight.values, A_STEP * weight.half_step, arrays)
            if node not in self.restored and match is not None:
                self.names[node], self.restored[node] = match
        taken = set(self.names.values())
        missing = [node for node in self.weights if node not in self.restored]
        for node in missing:
            weight = self.weights[node]
            called = _without(weight.tensor)
            fitting = [
                (name, form)
                for name, array in arrays
                if name == called or name not in taken
                for form in rounding.laid_out(array, weight.values.shape)
            ]
            named = [entry for entry in fitting if entry[0] == called]
            alike = [other for other in missing if self.weights[other].values.shape == weight.values.shape]
            chosen = named or (fitting if len(fitting) == len(alike) == 1 else [])
            if chosen:
                self.names[node], self.restored[node] = chosen[0]
                self.foreign.add(node)

    def floating(self, sites: Sequence[Site], weights: Sequence[str]) -> ModelProto:
        """The graph in floats at some of its places."""
        chosen = {name: self.restored[name] for name in weights if name in self.restored}
        changed = dequantize.with_weights(self.proto, chosen)
        for name in quantized.biases(self.proto, sites, weights) & self.biases.keys():
            edits.set_constant(changed.graph, name, self.biases[name])
        return dequantize.without(changed, sites, bounded=self.bounded) if sites else changed

    def without(self, parts: Sequence[Part]) -> ModelProto:
        """The graph with some of its places in floats."""
        return self.floating([s for part in parts for s in part.sites], [w for part in parts for w in part.weights])

    def jittered(self, seed: int) -> ModelProto:
        """The graph in floats, its weights moved at random within what the integers round off."""
        generator = np.random.default_rng(seed)
        moved = {
            name: weight.values + generator.uniform(-1, 1, weight.values.shape) * weight.half_step
            for name, weight in self.weights.items()
        }
        return dequantize.without(dequantize.with_weights(self.proto, moved), self.sites)

    def tried(self, trial: Trial, parts: Sequence[Part]) -> tuple[float, Effect] | None:
        """The difference that is left with some places in floats, and what agrees. Fusions would quantise again."""
        options = {} if self.optimised else {"optimization": "disable"}
        answers = trial.ask(Change(target=self.without(parts), options=options))
        return None if answers is None else (trial.gap(candidate=answers), trial.effect(candidate=answers))

    def fixes(self, few: Sequence[Part]) -> Iterator[Fix]:
        """The places that are enough kept in float, then those that do most, more and more of them, and at last all."""
        ranked, every = [part for _, part in self.ranked], len(self.parts)
        counts = [count for count in (1, 2, 3, 4, 6, 9, 13, 19, 28, 40) if count < every and count <= len(ranked)]
        for kept in [*([list(few)] if few else []), *(ranked[:count] for count in counts)]:
            named = listed([str(part.place) for part in kept], NAMED)
            yield Fix(f"{len(kept)} of {every} quantised places kept in float: {named}", partial(self.without, kept))
        yield Fix(
            "all quantised places kept in float: nothing of the quantisation is left",
            partial(self.floating, self.sites, list(self.weights)),
        )


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
        return _miscounted(proto, unfused)
    found = _in_floats(Quantized.of(case, proto))
    if found is None or saturating is None:
        return found
    gone = 1 - trial.gap(candidate=saturating) / trial.gap() if trial.gap() else 0.0
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


def _miscounted(proto: ModelProto, unfused: Effect) -> Explained | None:
    """A bias in other steps than the kernels on integers take it to be in: what is fused is not what the file says."""
    nodes = quantized.miscounted(proto)
    if not 0 < len(nodes) <= FEW:
        return None
    return unfused.explained(
        "quantization",
        trace.place_of(*nodes),
        "the bias counts in other steps than the product of the scales of activation and weight, which kernels on "
        f"integers take for granted; without fusions {unfused.agreeing}",
        "Quantise again (likewise quantize): one of the three scales was changed or comes from another file",
        simplicity=1,
    )


def _in_floats(graph: Quantized) -> Explained | None:
    """What is left of the difference without any quantisation, and where it comes from."""
    trial = Trial.whole(graph.case)
    ways = [*product([graph.restored], ("relu", "none", "clip")), ({}, "relu")]  # weights may be taken for others
    for graph.restored, graph.bounded in ways:
        effect = trial.run(Change(target=graph.floating(graph.sites, list(graph.weights))))
        if effect is not None and effect.explains:
            return _blamed(graph, effect)
    # Where the weights of the reference cannot be put back: does their rounding move the answers as much?
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
    again = tuple(quantised_again(graph.case))
    return effect.explained("quantization", WHOLE, told, _remedy(graph.case, ()), simplicity=4, fixes=again)


def _blamed(graph: Quantized, effect: Effect) -> Explained:
    """The places that are enough, if they are few and stand out; else the whole."""
    graph.parts = sorted(_parts(graph), key=lambda part: -part.lost)
    few, standing_out, healed = list[Part](), False, effect
    with suppress(OutOfTimeError):  # what is known is told
        few, standing_out, healed = _shortest(graph, effect)
    named = few if standing_out else _most(graph) if not few else []
    rounding.located(graph.case).extend(part.place for part in named)
    with_weights = " and with the weights of the reference" if graph.restored else ""
    told = f"computed in floats{with_weights}, the candidate agrees with the reference on {effect.told}"
    if few and len(few) < len(graph.parts):
        told += f"; with only {listed([str(part.place) for part in few], NAMED)} in floats, {healed.agreeing}"
    elif graph.ranked:
        gain, most = graph.ranked[0]
        told += f"; the largest part, {100 * gain:.0f}% of the difference, goes with {most.place} in floats"
    narrow = [part for part in graph.parts if part.cut >= CUT_OFF and not named]
    told += f"; {len(narrow)} activations go beyond their range: calibrated on tamer rows" if len(narrow) > FEW else ""
    told += "".join(f"; {part.told}" for part in named or narrow[:1] if part.told)
    foreign = named and all(set(part.weights) & graph.foreign for part in named)
    return effect.explained(
        "weight-corruption" if foreign else "quantization",
        _together(named) if named else WHOLE,
        told,
        _remedy(graph.case, few or named),
        simplicity=2 if named else 4,
        fixes=(*quantised_again(graph.case), *graph.fixes(few)),  # what costs nothing in size comes first
    )


def _most(graph: Quantized) -> list[Part]:
    """The place that does most of it, if one does, though it is not enough alone."""
    (gain, part), *rest = graph.ranked or [(0.0, Part(WHOLE))]
    return [part] if gain > ALONE and all(other <= ALONE * gain for other, _ in rest) else []


def _shortest(graph: Quantized, effect: Effect) -> tuple[list[Part], bool, Effect]:
    """The fewest places found that do as much as all, whether they stand out, and what they heal; none, if many."""
    if len(graph.parts) <= 1:
        return graph.parts, True, effect
    trial = Trial.few(graph.case)
    whole = graph.tried(trial, [])
    actual = trial.gap()
    if whole is not None and whole[0] < ALONE * actual:
        # The fused kernels do something else than the graph says, and have to be looked at.
        graph.optimised, whole = True, (actual, whole[1])
    if whole is None or not whole[0]:
        return [], False, effect
    before, enough = whole[0], experiment.AS_MUCH * effect.share
    tried: dict[int, tuple[float, Effect]] = {}
    for number, part in enumerate(experiment.searching(graph.case, graph.parts[:MOST_PLACES])):
        if (found := graph.tried(trial, [part])) is not None:
            tried[number] = found
        if number >= MOST_SECOND and _clear(list(tried.values()), before, enough):
            break
    order = sorted(tried, key=lambda number: (-round(tried[number][1].share, 1), tried[number][0]))
    graph.ranked = sorted(
        ((1 - tried[number][0] / before, graph.parts[number]) for number in order), key=lambda entry: -entry[0]
    )
    few: list[Part] = []
    best: tuple[float, Effect] | None = None
    beside = list(dict.fromkeys([*order[:MOST_SECOND], *list(tried)[:MOST_SECOND]]))
    for _ in range(min(FEW, len(graph.parts) - 1)):
        more = [
            (given, graph.parts[number])
            for number in beside
            if graph.parts[number] not in few
            if (given := graph.tried(trial, [*few, graph.parts[number]]) if few else tried[number]) is not None
        ]
        if not more:
            break
        best, part = min(more, key=lambda entry: (-round(entry[0][1].share, 1), entry[0][0]))
        few.append(part)
        if best[1].share >= enough:
            break
    if best is None or best[1].share < enough:
        # What loses most may do nothing alone: the next place loses the same again.
        for few in (graph.parts[:count] for count in range(1, 1 + min(FEW, len(graph.parts) - 1))):
            if (best := graph.tried(trial, few)) is not None and best[1].share >= enough:
                break
        else:
            few, best = _first_ones(graph, trial, enough)
    if not few or best is None:
        return [], False, effect
    final = graph.tried(Trial.whole(graph.case), few)
    if final is None or final[1].share < enough:
        return [], False, effect
    gains = {id(part): gain for gain, part in graph.ranked}
    others = max((gain for gain, part in graph.ranked if part not in few), default=0.0)
    together = 1 - best[0] / before
    out = len(few) <= FEW and others <= ALONE * max(together / len(few), max(gains[id(part)] for part in few))
    return few, out, final[1]


def _clear(tried: Sequence[tuple[float, Effect]], before: float, enough: float) -> bool:
    """Is one place enough alone, and does no other give back half as much?"""
    best, *others = sorted(tried, key=lambda given: given[0])
    gain = before - best[0]
    return best[1].share >= enough and all(before - left <= ALONE * gain for left, _ in others)


def _first_ones(graph: Quantized, trial: Trial, enough: float) -> tuple[list[Part], tuple[float, Effect] | None]:
    """As many of the places that do most as it takes; none where it takes more than half of all."""
    ranked = [part for _, part in graph.ranked]
    low, high = FEW, min(len(ranked), len(graph.parts) // 2)
    found: tuple[list[Part], tuple[float, Effect] | None] = [], None
    while low < high:
        middle = (low + 1 + high) // 2
        given = graph.tried(trial, ranked[:middle])
        if given is not None and given[1].share >= enough:
            found, high = (ranked[:middle], given), middle - 1
        else:
            low = middle
    return found


def _parts(graph: Quantized) -> Iterator[Part]:
    """Where it rounds: activations, and the weights that can be put back; what each loses on a few rows."""
    floats = graph.floating(graph.sites, list(graph.weights))
    names = [site.tensor for site in graph.sites]
    positions = trace.failing_positions(graph.case, splice.ROWS)
    types = edits.tensor_types(floats)
    seen = trace.seen_inside(graph.case, "candidate", floats, names, positions, types=types) or {}
    given = trace.fed(graph.case, "candidate", graph.case.rows(positions))
    together: dict[str, Part] = {}
    for site in graph.sites:
        part = _activation(graph, site, seen.get(site.tensor, given.get(site.tensor)))
        scale = quantized.scale_of(graph.proto, site) or site.tensor
        before = together.get(scale)
        # A scale that several share is one number: one of them alone in floats leaves it in force.
        together[scale] = part if before is None else _joined(before, part)
    yield from together.values()
    for node, values in graph.restored.items():
        weight = graph.weights[node]
        tensor, owner = weight.tensor, graph.names.get(node, "weight")
        place = Place(owner, (f"'{tensor}'",), path=owner, tensors=(tensor, _without(tensor)))
        yield Part(place, (), (node,), rounding.distance(weight.values, values), _of_weight(graph, node, values))


def _joined(one: Part, other: Part) -> Part:
    """Two activations of one scale, told by the one that loses more."""
    first = max(one, other, key=lambda part: part.lost)
    tensors = dict.fromkeys([*first.place.tensors, *one.place.tensors, *other.place.tensors])
    return replace(first, place=replace(first.place, tensors=tuple(tensors)), sites=(*one.sites, *other.sites))


def _activation(graph: Quantized, site: Site, values: Array | None) -> Part:
    """An activation, what its integers lose of it, and why."""
    writes, reads = quantized.grids(graph.proto, site)
    odd = next((read for read in reads if not read.same(writes[0])), None) if writes else None
    reader = site.reader if odd is None else quantized.reader_of(graph.proto, odd.node)
    place = _read_by(graph.proto, site.tensor, reader, None if odd is None else odd.node)
    if values is None or values.dtype.kind != "f" or not values.size:
        return Part(place, (site,))
    wide = (flat := values.astype(np.float64).ravel())[np.isfinite(flat)]
    if not writes:
        low, high = min(float(wide.min(initial=0.0)), 0.0), max(float(wide.max(initial=0.0)), 0.0)
        step = (high - low) / 255 or 1.0
        return Part(place, (site,), lost=rounding.distance(np.round(wide / step) * step, wide))
    write = writes[0]
    (low, high), step = write.ends, float(write.scale.ravel()[0])
    # Where no integer is negative, a Relu before them was left out.
    wide = np.maximum(wide, 0.0) if low == 0 else wide
    numbers = np.round(np.clip(wide, low, high) / step)
    read = odd or write
    shift = float(write.zero.ravel()[0]) - float(read.zero.ravel()[0])
    lost = rounding.distance((numbers + shift) * float(read.scale.ravel()[0]), wide)
    cut = float(((wide < low - step / 2) | (wide > high + step / 2)).mean())
    used = float(np.ptp(wide)) / step if wide.size else 0.0
    told = f"'{site.tensor}' loses {100 * lost:.1f}% by rounding"
    if odd is not None:
        told = f"'{site.tensor}' is written with {write.told} and read with {read.told}"
    elif cut >= CUT_OFF:
        told = (
            f"{100 * cut:.1f}% of the values of '{site.tensor}' are cut off ({len(values)} rows looked at): they reach "
            f"{float(np.abs(wide).max()):.4g}, and its scale {max(abs(low), abs(high)):.4g}"
        )
    elif used < STEPS:
        told = f"the values of '{site.tensor}' spread over {used:.0f} steps of its scale"
    return Part(place, (site,), (), lost, told, cut)


def _of_weight(graph: Quantized, node: str, values: Array) -> str:
    """What is wrong with a weight in words."""
    weight = graph.weights[node]
    wrong = np.abs(weight.values - values) > A_STEP * weight.half_step
    name = f"'{weight.tensor}'"
    if not wrong.any():
        return f"{name} loses {100 * rounding.distance(weight.values, values):.1f}% by rounding"
    factor = float((weight.values * values).sum() / max(float((values * values).sum()), 1e-30))
    if rounding.distance(weight.values, factor * values) <= ALONE * rounding.distance(weight.values, values):
        return f"{name} is {factor:.3g} times the reference's: its scale is wrong"
    return f"{int(wrong.sum()):,} of {wrong.size:,} numbers in {name} are not roundings of the reference's"


def _without(name: str) -> str:
    """What a tensor was called before it was quantised."""
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _read_by(proto: ModelProto, tensor: str, reader: NodeProto | None, odd: NodeProto | None) -> Place:
    if reader is None:
        return Place(f"'{tensor}'", tensors=(tensor,))
    place = trace.place_of(reader)  # who is wrong where writer and reader differ cannot be told: both are named
    maker = next((node for node in proto.graph.node if odd is not None and tensor in node.output), None)
    nodes = (*place.nodes, *(() if maker is None else (maker.name,)))
    also = () if odd is None else (odd.input[0], odd.output[0])
    return Place(f"'{tensor}', read by {place}", path=place.path, nodes=nodes, tensors=(tensor, *also))


def _together(parts: Sequence[Part]) -> Place:
    places = [part.place for part in parts]
    nodes = dict.fromkeys(node for place in places for node in place.nodes)
    tensors = dict.fromkeys(tensor for place in places for tensor in place.tensors)
    named = listed([str(place) for place in places], NAMED)
    return places[0] if len(places) == 1 else Place(named, path=places[0].path, nodes=(*nodes,), tensors=(*tensors,))


def _remedy(case: Case, few: Sequence[Part]) -> str:
    nodes = list(dict.fromkeys(_without(node) for part in few for node in _reading(case, part)))
    if nodes:
        excluded = " ".join(f"--exclude {node}" for node in nodes)
        rows = ", or calibrate on rows like these" if any(part.sites for part in few) else ""
        return f"Leave {'this node' if len(nodes) == 1 else 'these nodes'} out (likewise quantize {excluded}){rows}"
    # The verdict says whether its limits are those of a quantised model already.
    if any(finding.code == "quantized-candidate" for finding in case.verdict.findings):
        return "If INT8 is intended, judge it as such: --preset quantized; else deploy the float model"
    return "Deploy the float model, or quantise fewer nodes (likewise quantize --exclude NODE)"


def _reading(case: Case, part: Part) -> Iterator[str]:
    """The nodes to leave out so that a place is not quantised."""
    yield from part.place.nodes
    proto = case.editable()
    if proto is None or not part.weights:
        return
    for node in proto.graph.node:
        if set(part.place.tensors).intersection(node.input):
            behind = quantized.reader_of(proto, node) if node.op_type == "DequantizeLinear" else node
            if behind is not None:
                yield behind.name


EXTENSIONS = (quantization,)
