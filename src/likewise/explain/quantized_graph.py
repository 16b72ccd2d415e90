"""A quantised graph taken apart: the places where it rounds, what each loses and why, and the graph without some.

What is wrong at a place is read off its numbers: values beyond the range of a scale, too few steps, integers that are
read otherwise than they were written, weights that are not roundings of the reference's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.data.cells import listed
from likewise.explain import rounding, splice, trace, twins
from likewise.explain.case import Case, Fix
from likewise.explain.experiment import Change, Effect, Trial
from likewise.models.onnx import dequantize, edits, quantized
from likewise.models.onnx.dequantize import Ends
from likewise.models.onnx.quantized import Site, Weight

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

NAMED = 4
"""Places kept in float that are named."""

ALONE = 0.5
"""The culprit gives back twice as much as any other place does, or more."""

A_STEP = 2.0
"""Half steps that an integer may be off: some quantisers cut off what others round."""

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
    gone: float = 0.0


@dataclass(slots=True)
class Quantized:
    """A graph in one form for all quantisers, the places where it rounds, and the weights it should have.

    `foreign` are weights that are not roundings of the reference's, `otherwise` what square ones would be that were
    transposed. `ranked` are the places as far as each was tried
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
    otherwise: dict[str, Array] = field(default_factory=dict)
    cut_off: dict[str, Ends | None] = field(default_factory=dict)
    bounded: str = "relu"
    optimised: bool = False
    parts: list[Part] = field(default_factory=list)
    ranked: list[tuple[float, Part]] = field(default_factory=list)

    @staticmethod
    def of(case: Case, proto: ModelProto) -> Quantized:
        plain = dequantize.written_out(proto)
        found = {weight.node: weight for weight in (*quantized.weights(plain), *quantized.packed(proto))}
        graph = Quantized(case, plain, quantized.activations(plain), found)
        graph.cut_off = dict.fromkeys(value.name for value in plain.graph.input)  # nothing stood before them
        if case.framework("reference") == "onnx":
            graph.cut_off |= dequantize.left_out(case.graph("reference"), plain, graph.sites)
        arrays = rounding.arrays_of(case)
        graph.restore(arrays)
        graph.otherwise = graph.turned(arrays)
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
            called = quantized.name_before(weight.tensor)
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

    def turned(self, arrays: Sequence[tuple[str, Array]]) -> dict[str, Array]:
        """The square weights that lie the other way round than most others, as these do; by rounding either fits."""
        held = dict(arrays)
        straight = {
            node: values.shape == held[self.names[node]].shape and bool(np.array_equal(values, held[self.names[node]]))
            for node, values in self.restored.items()
            if values.ndim == 2 and self.names.get(node) in held
        }
        most = 2 * sum(straight.values()) > len(straight)
        square = [node for node in straight if len(set(self.restored[node].shape)) == 1]
        return {node: self.restored[node].T for node in square if straight[node] is not most}

    def floating(self, sites: Sequence[Site], weights: Sequence[str]) -> ModelProto:
        """The graph in floats at some of its places."""
        chosen = {name: self.restored[name] for name in weights if name in self.restored}
        changed = dequantize.with_weights(self.proto, chosen)
        for name in quantized.biases(self.proto, sites, weights) & self.biases.keys():
            edits.set_constant(changed.graph, name, self.biases[name])
        return self.plain(changed, sites) if sites else changed

    def plain(self, proto: ModelProto, sites: Sequence[Site]) -> ModelProto:
        return dequantize.without(proto, sites, bounded=self.bounded, known=self.cut_off)

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
        return self.plain(dequantize.with_weights(self.proto, moved), self.sites)

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


def parts_of(graph: Quantized) -> Iterator[Part]:
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
        place = Place(owner, (f"'{tensor}'",), path=owner, tensors=(tensor, quantized.name_before(tensor)))
        yield Part(place, (), (node,), rounding.distance(weight.values, values), _of_weight(graph, node, values))


def _joined(one: Part, other: Part) -> Part:
    """Two activations of one scale, told by the one that loses more."""
    first = max(one, other, key=lambda part: part.lost)
    tensors = dict.fromkeys([*first.place.tensors, *one.place.tensors, *other.place.tensors])
    return replace(first, place=replace(first.place, tensors=tuple(tensors)), sites=(*one.sites, *other.sites))


def _activation(graph: Quantized, site: Site, values: Array | None) -> Part:
    """An activation, what its integers lose of it, and why."""
    writes, reads = quantized.grids(graph.proto, site)
    gone = 0.0, ""
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
    # Where no integer is negative, a Relu before them may have been left out.
    ends = graph.cut_off.get(site.tensor, (0.0, np.inf) if low == 0 else None)
    wide = wide if ends is None else np.clip(wide, *ends)
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
    elif (gone := _gone(values, step))[0]:
        told = f"of '{site.tensor}' {gone[1]}"
    elif used < STEPS:
        told = f"the values of '{site.tensor}' spread over {used:.0f} steps of its scale"
    return Part(place, (site,), (), lost, told, cut, gone[0])


def _gone(values: Array, step: float) -> tuple[float, str]:
    """The part of the channels that become zero for being small beside others of the same scale, and that in words."""
    if values.ndim < 2:
        return 0.0, ""
    largest = np.abs(np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)).max(axis=1, initial=0.0)
    lost = (largest > 0) & (largest < step / 2)
    if not lost.any() or lost.all():
        return 0.0, ""
    told = f"{lost.sum()} of {lost.size} channels become zero: they reach {float(largest[lost].max()):.3g}"
    return float(lost.mean()), f"{told}, a step of its scale is {step:.3g}"


def _of_weight(graph: Quantized, node: str, values: Array) -> str:
    """What is wrong with a weight in words."""
    weight = graph.weights[node]
    wrong = np.abs(weight.values - values) > A_STEP * weight.half_step
    name = f"'{weight.tensor}'"
    if not wrong.any():
        return f"{name} loses {100 * rounding.distance(weight.values, values):.1f}% by rounding"
    if values.shape == values.T.shape and (np.abs(weight.values.T - values) <= A_STEP * weight.half_step).all():
        return f"{name} is transposed"
    factor = float((weight.values * values).sum() / max(float((values * values).sum()), 1e-30))
    if rounding.distance(weight.values, factor * values) <= ALONE * rounding.distance(weight.values, values):
        return f"{name} is {factor:.3g} times the reference's: its scale is wrong"
    return f"{int(wrong.sum()):,} of {wrong.size:,} numbers in {name} are not roundings of the reference's"


def _read_by(proto: ModelProto, tensor: str, reader: NodeProto | None, odd: NodeProto | None) -> Place:
    if reader is None:
        made = (node.name for node in proto.graph.node if tensor in node.output)
        return Place(f"'{tensor}'", nodes=(*made,), tensors=(tensor,))
    place = trace.place_of(reader)  # who is wrong where writer and reader differ cannot be told: both are named
    maker = next((node for node in proto.graph.node if odd is not None and tensor in node.output), None)
    nodes = (*place.nodes, *(() if maker is None else (maker.name,)))
    also = () if odd is None else (odd.input[0], odd.output[0])
    return Place(f"'{tensor}', read by {place}", path=place.path, nodes=nodes, tensors=(tensor, *also))
