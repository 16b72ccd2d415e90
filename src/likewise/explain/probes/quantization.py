"""Rounded to eight bits or fewer: computed in floats the candidate agrees, and which places that takes.

Each activation that becomes integers and each weight that is stored as such is put back into floats alone: what that
gives back of the difference is its blame, and from there the shortest list that brings the answers within their limits
is looked for.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from likewise.contracts.report import Place
from likewise.data.cells import listed
from likewise.explain import experiment, rounding, trace
from likewise.explain.case import Case, Explained, OutOfTimeError, probe
from likewise.explain.experiment import Change, Effect, Trial
from likewise.explain.quantized_graph import ALONE, CUT_OFF, NAMED, Part, Quantized, parts_of
from likewise.explain.remedies import quantised_again
from likewise.models.onnx import dequantize, edits, quantized

if TYPE_CHECKING:
    from onnx import ModelProto

WHOLE = Place("model")

UNSATURATED = "Quantise with 7-bit weights (likewise quantize --reduce-range) or unsigned ones (--weights uint8)"

CALIBRATED = "Quantise again, calibrated on rows like these (likewise quantize --mode static --calibrate FILE)"

FOREIGN = "Quantise again from this reference: the integers are not those of its weights"

FEW = 3
"""A culprit is so many places at most; where it takes more, it is the quantisation as a whole."""

MOST_PLACES = 40
"""Activations and weights that are tried alone, those first that lose most."""

MOST_SECOND = 8
"""Places that are tried beside those that give most back, and that are tried before one is clearly the culprit."""

WORTH_TELLING = 0.05
"""Of the difference, from which part on the place that does most of it is told, where it takes many."""


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
    turned = {**graph.restored, **graph.otherwise}
    ways = [*product([graph.restored], ("relu", "none", "clip")), *([(turned, "relu")] if graph.otherwise else [])]
    for graph.restored, graph.bounded in [*ways, ({}, "relu")]:  # weights may be taken for others
        effect = trial.run(Change(target=graph.floating(graph.sites, list(graph.weights))))
        if effect is not None and effect.explains:
            graph.foreign |= set(graph.otherwise if graph.restored is turned else ())
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
    graph.parts = sorted(parts_of(graph), key=lambda part: -part.lost)
    few, standing_out, healed = list[Part](), False, effect
    with suppress(OutOfTimeError):  # what is known is told
        few, standing_out, healed = _shortest(graph, effect)
    named = few if standing_out else _most(graph) if not few else []
    rounding.located(graph.case).extend(part.place for part in named)
    with_weights = " and with the weights of the reference" if graph.restored else ""
    told = f"computed in floats{with_weights}, the candidate agrees with the reference on {effect.told}"
    if few and len(few) < len(graph.parts):
        told += f"; with only {listed([str(part.place) for part in few], NAMED)} in floats, {healed.agreeing}"
    elif graph.ranked and (most_of_it := graph.ranked[0])[0] >= WORTH_TELLING:
        gain, most = most_of_it
        told += f"; the largest part, {100 * gain:.0f}% of the difference, goes with {most.place} in floats"
    narrow = [part for part in graph.parts if part.cut >= CUT_OFF and not named]
    tamer = len(narrow) > FEW
    told += f"; {len(narrow)} activations go beyond their range: calibrated on tamer rows" if tamer else ""
    gone = sorted((part for part in graph.parts if part.gone and not named), key=lambda part: -part.gone)
    told += "".join(f"; {part.told}" for part in named or [*narrow[:1], *gone[:1]] if part.told)
    foreign = named and all(set(part.weights) & graph.foreign for part in named)
    return effect.explained(
        "weight-corruption" if foreign else "quantization",
        _together(named) if named else _somewhere(narrow if tamer else [], gone),
        told,
        FOREIGN if foreign else CALIBRATED if tamer else _remedy(graph.case, few or named or gone[:1]),
        simplicity=2 if named else 4,
        fixes=(*quantised_again(graph.case), *graph.fixes(few)),  # what costs nothing in size comes first
    )


def _somewhere(narrow: Sequence[Part], gone: Sequence[Part]) -> Place:
    """The whole, with what stands out in it."""
    if narrow:
        return Place("model", (f"ranges of {len(narrow)} activations",))
    return replace(gone[0].place, name="model", details=(str(gone[0].place),)) if gone else WHOLE


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


def _together(parts: Sequence[Part]) -> Place:
    places = [part.place for part in parts]
    nodes = dict.fromkeys(node for place in places for node in place.nodes)
    tensors = dict.fromkeys(tensor for place in places for tensor in place.tensors)
    named = listed([str(place) for place in places], NAMED)
    return places[0] if len(places) == 1 else Place(named, path=places[0].path, nodes=(*nodes,), tensors=(*tensors,))


def _remedy(case: Case, few: Sequence[Part]) -> str:
    nodes = list(dict.fromkeys(quantized.name_before(node) for part in few for node in _reading(case, part)))
    if nodes:
        excluded = " ".join(f"--exclude {shlex.quote(node)}" for node in nodes)
        # By the range of every call, nothing is calibrated.
        operators = {node.op_type for node in edits.all_nodes(case.graph().graph)}
        dynamic = any(name.startswith("Dynamic") for name in operators)
        rows = ", or calibrate on rows like these" if any(part.sites for part in few) and not dynamic else ""
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
