"""The candidate's weights are not the reference's: damaged, exchanged, of another training or gone.

All weights are laid beside one another; the reference's are put back, and what that heals is the proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.data.cells import listed
from likewise.explain.case import Case, Explained, Fix, Remedy, probe
from likewise.explain.experiment import HEALED, Change, Claim, Effect, shown
from likewise.explain.remedies import exported
from likewise.explain.weight_arrays import unequal
from likewise.explain.weight_matching import before_the_model
from likewise.explain.weights import (
    Difference,
    Part,
    Weights,
    elsewhere,
    missing_parts,
    needed,
    put_back,
    unscaled_inputs,
    weights,
    word,
)
from likewise.models.arrays import MODEL, PREPROCESSING
from likewise.models.onnx import edits
from likewise.models.torch import inside

SUSPECTED = 0.5
"""What a doubtful origin is worth beside what an experiment showed."""

MOST = 0.8
"""If this part of the weights is from another training, the model is."""

SHOWN = 3
"""Weights, columns and steps that are named."""

MOST_DECIMALS = 4
"""With more decimals than this, numbers are written in full."""

SAME_FACTOR = 1e-4
"""How far weights may be from a multiple of others."""

COLOURS = "RGB"

DAMAGED = "Export or copy the file again, and compare its SHA-256 on both ends"
REARRANGED = (
    "Export again from this reference, and look at what writes or converts these weights: all of them are concerned"
)

FEWEST = 4
"""Numbers that lie on a line by more than chance."""

A_STEP = 1.1
"""Halves of a step that rounding may take, and a little for what was computed from it."""

QUANTISED_AGAIN = (
    "Quantise again from this reference: the integers are read with another scale than they were written with"
)
CALIBRATED = "Quantise again, calibrated on rows like these"

FROM_REFERENCE = Remedy(again="Export again from this reference")
UNCHANGED = Remedy(again="Export again from this reference, and check the export before it is changed")


@probe(
    "weight-corruption",
    "stale-weights",
    "operator-attribute",
    "input-layout",
    "wrong-wiring",
    "quantization",
    "precision-reduction",
    when=lambda case: bool(case.comparison.lineage) or case.native("reference") is not None,
    needs_answers=False,
)
def other_weights(case: Case) -> Iterator[Explained]:
    """Put back what was learnt: all of it after another training, the few that it takes after damage."""
    failing = case.sample is not None and bool(case.sample.failing.any())
    found = weights(case) if failing else None
    if found is not None and found.differences:
        known = (look(case, found) for look in (_other_epsilon, _other_channels, _exchanged, _rounded_off))
        told = list(shown(case, [claim for claim in known if claim is not None]))
        tables = inside.tables_of(case.native("reference"))
        trained = found.stale and not all(entry.name in tables for entry in found.differences)
        told = told or list(shown(case, [_stale(case, found)]) if trained else _corrupted(case, found))
        yield from told
        if told:
            return
    equal = found is not None and found.matches and not found.differences and not found.missing
    if case.comparison.lineage and not equal:
        origin = case.comparison.lineage[0]
        effect = exported(case) if failing else None
        if effect is not None and effect.explains:
            evidence = f"{origin}; made from this one, {effect.agreeing}"
            yield effect.explained("stale-weights", Place("model"), evidence, FROM_REFERENCE, simplicity=5)
        else:
            yield Explained("stale-weights", Place("model"), origin, FROM_REFERENCE, share=SUSPECTED, simplicity=5)


def _stale(case: Case, found: Weights) -> Claim:
    learnt = [entry for entry in found.differences if not found.predicts or entry.role == MODEL]
    compared = max(found.compared(), len(found.differences))
    origin = f"; {case.comparison.lineage[0]}" if case.comparison.lineage else ""
    return Claim(
        "stale-weights",
        _concerned(found, learnt),
        f"{len(found.differences)} of {compared} constants hold other values than the reference's "
        f"({_example(learnt)}); with the reference's put into the graph, {HEALED} agree{origin}",
        FROM_REFERENCE,
        put_back(case, found.differences),
    )


def _other_epsilon(case: Case, found: Weights) -> Claim | None:
    """Batch norms multiplied into the weights before with another epsilon than theirs: a factor for each output."""
    variances = {entry.step: entry.values for entry in found.known if entry.attribute == "running_var"}
    weighty = [entry for entry in found.differences if not entry.is_intercept]
    seen: list[tuple[Array, Array, float]] = []
    if not variances:
        return None
    epsilons = inside.epsilons_of(case.native("reference"))
    for entry in weighty:
        norm = "" if entry.parameter is None else entry.parameter.folded
        variance = variances.get(norm)
        factors = None if variance is None else _factors(entry)
        if variance is None or factors is None or norm not in epsilons or len(factors) != len(variance):
            return None
        seen.append((variance.astype(np.float64), factors, epsilons[norm]))
    if not seen:
        return None
    # The smallest variance tells most.
    variance, factors, meant = min(seen, key=lambda one: float(one[0].min()))
    least = int(variance.argmin())
    used = float(f"{(variance[least] + meant) / factors[least] ** 2 - variance[least]:.2g}")
    if used < 0 or not all(np.allclose(f**2 * (v + used), v + e, rtol=SAME_FACTOR) for v, f, e in seen):
        return None
    norms = list(dict.fromkeys(entry.parameter.folded for entry in weighty if entry.parameter is not None))
    return Claim(
        "operator-attribute",
        Place(f"epsilon of {listed(norms, SHOWN)}", path=norms[0], tensors=_tensors(weighty)),
        f"{listed(norms, SHOWN)} multiplied into the weights before with epsilon {used:g} instead of {meant:g}; with "
        f"the reference's put into the graph, {HEALED} agree",
        UNCHANGED,
        put_back(case, found.differences),
    )


def _other_channels(case: Case, found: Weights) -> Claim | None:
    """The first convolution of pictures written for channels in reverse, as some converters do."""
    weighty = [entry for entry in found.differences if not entry.dropped]
    entry = weighty[0] if len(weighty) == 1 else None
    if entry is None or entry.constant.operator != "Conv" or entry.constant.place != 1:
        return None
    held, wanted = entry.constant.values, entry.match.expected
    if held.ndim != 4 or held.shape != wanted.shape or held.shape[1] != len(COLOURS):
        return None
    nodes, given = found.graph.graph.node, {value.name for value in found.graph.graph.input}
    before = [nodes[index] for index in before_the_model(found.graph, {entry.constant.node})]
    given |= {name for node in before for name in node.output}
    if nodes[entry.constant.node].input[0] not in given or unequal(held, wanted[:, ::-1]).any():
        return None
    return Claim(
        "input-layout",
        Place("channels in reverse (BGR instead of RGB)", (entry.name,), path=entry.name, tensors=_tensors(weighty)),
        f"{entry.name} holds what the reference's has for the channels in reverse; with the reference's put back into "
        f"the graph, {HEALED} agree",
        Remedy(again="Export again without an option that reverses the channels of inputs"),
        put_back(case, weighty),
    )


def _exchanged(case: Case, found: Weights) -> Claim | None:
    """Weights in each other's places, such as those of two blocks of a network that come in another order."""
    others = [(entry, elsewhere(entry, found.differences)) for entry in found.differences]
    pairs = [(_home(found, entry), _home(found, other)) for entry, other in others if other is not None]
    if len(pairs) < max(2, MOST * len(others)):
        return None
    together: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for names in pairs:
        together.setdefault(_apart(*names), []).append(names)
    blocks = [
        (_shared(mine), _shared(yours)) for mine, yours in (zip(*some, strict=True) for some in together.values())
    ]
    layers = {name for name, _ in pairs}
    places = list(dict.fromkeys(mine for mine, _ in blocks))
    return Claim(
        # A block is more than a layer: nobody damages all of it by accident.
        "wrong-wiring" if len(layers) > len(places) else "weight-corruption",
        Place(f"order of {listed(places, SHOWN)}", path=places[0], tensors=_tensors([entry for entry, _ in others])),
        f"{listed([f'{mine} holds what is {yours} in the reference' for mine, yours in blocks], SHOWN)} "
        f"({len(pairs)} weights, the first {pairs[0][0]}); with each in its own place, {HEALED} agree",
        UNCHANGED,
        put_back(case, found.differences),
    )


def _rounded_off(case: Case, found: Weights) -> Claim | None:
    """Numbers written with fewer decimals than they have, as for a table or in a text file."""
    sides = [(entry.constant.values, entry.match.expected) for entry in found.differences]
    if any(held.shape != wanted.shape or held.dtype.kind != "f" for held, wanted in sides):
        return None
    for digits in range(MOST_DECIMALS + 1):
        rounded = ((held, np.round(wanted.astype(np.float64), digits)) for held, wanted in sides)
        if all(np.allclose(held, wanted, rtol=SAME_FACTOR / 10, atol=0) for held, wanted in rounded):
            names = listed([entry.name for entry in found.differences], SHOWN)
            return Claim(
                "precision-reduction",
                Place(names, path=_step(found.differences), tensors=_tensors(found.differences)),
                f"{names} hold the reference's numbers rounded to {digits} decimals; with the reference's put into the "
                f"graph, {HEALED} agree",
                Remedy(again="Export again from this reference, and write its numbers in full where they are copied"),
                put_back(case, found.differences),
            )
    return None


def _step(differences: Sequence[Difference]) -> str:
    """The step that all of them belong to; empty where there are several."""
    steps = {entry.parameter.step for entry in differences if entry.parameter is not None}
    return steps.pop() if len(steps) == 1 else ""


def _home(found: Weights, entry: Difference) -> str:
    """The layer that a weight stands in, as the file or the model's owner calls it."""
    module = edits.module_of(found.graph.graph.node[entry.constant.node])
    return module or (entry.name if entry.parameter is None else entry.parameter.step)


def _apart(one: str, other: str) -> tuple[str, str]:
    """Two paths up to the first name in which they differ."""
    shared = _shared([one, other]).count(".") + 1 if _shared([one, other]) else 0
    return ".".join(one.split(".")[: shared + 1]), ".".join(other.split(".")[: shared + 1])


def _shared(paths: Sequence[str]) -> str:
    """What paths have in common from their beginning, in whole names."""
    names = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(column[0] for column in takewhile(lambda column: len(set(column)) == 1, names))


def _factors(entry: Difference) -> Array | None:
    """What each output's weights are multiplied by, if that is all there is to a difference."""
    held, wanted = (side.astype(np.float64) for side in (entry.constant.values, entry.match.expected))
    if held.shape != wanted.shape or held.ndim < 2:
        return None
    for axis in (0, 1):
        mine, yours = (np.moveaxis(side, axis, 0).reshape(side.shape[axis], -1) for side in (held, wanted))
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = (mine * yours).sum(axis=1) / (yours * yours).sum(axis=1)
        if np.allclose(mine, factors[:, None] * yours, rtol=SAME_FACTOR, atol=SAME_FACTOR * float(np.abs(mine).max())):
            return np.asarray(factors)
    return None


def _concerned(found: Weights, learnt: Sequence[Difference]) -> Place:
    """The model, or what of it comes from another training."""
    weighty = [entry for entry in learnt if not entry.is_intercept]
    if len(weighty) < MOST * found.compared(MODEL if found.predicts else None, biases=False):
        return Place("model", (listed([entry.name for entry in learnt], SHOWN),), tensors=_tensors(learnt))
    steps = {entry.parameter.step for entry in learnt if entry.parameter is not None}
    step = steps.pop() if len(steps) == 1 and len(learnt) == len(found.differences) else ""
    return Place("model", (f"step '{step}'",) if step else (), path=step)


def _example(differences: Sequence[Difference]) -> str:
    """One weight of both sides, for the reader."""
    for entry in differences:
        if entry.pattern.entries and entry.constant.values.shape == entry.match.expected.shape:
            position = entry.pattern.entries[0]
            held, wanted = entry.constant.values.ravel()[position], entry.match.expected.ravel()[position]
            return f"{entry.name}{list(entry.match.index(position))} is {held:.6g} instead of {wanted:.6g}"
    return _told(differences[:1])


def _corrupted(case: Case, found: Weights) -> Iterator[Explained]:
    damaged = [entry for entry in found.differences if entry.role == MODEL and not entry.dropped]
    if (result := needed(case, damaged)) is None:
        return
    culprits, effect = result
    details = [_details(entry) for entry in culprits]
    named = [str(Place(entry.name, one)) for entry, one in zip(culprits, details, strict=True)]
    place = Place(culprits[0].name, details[0]) if len(culprits) == 1 else Place(listed(named, SHOWN))
    rearranged = all(entry.pattern.regular and not entry.pattern.few for entry in culprits)
    if all(_of_activations(found, entry) for entry in culprits):
        yield _put_back(case, "quantization", place, culprits, effect, Remedy(CALIBRATED))
    elif all(_of_its_scale(entry) for entry in culprits):
        yield _put_back(case, "quantization", place, culprits, effect, Remedy(QUANTISED_AGAIN))
    elif all(entry.constant.values.size != entry.match.expected.size for entry in culprits):
        # No accident takes rows away or adds some: another training had others.
        yield _put_back(case, "stale-weights", place, culprits, effect, FROM_REFERENCE)
    else:
        remedy = Remedy(again=REARRANGED if rearranged else DAMAGED)
        yield _put_back(case, "weight-corruption", place, culprits, effect, remedy)


def _of_activations(found: Weights, entry: Difference) -> bool:
    """Is it a scale or zero point by which what a layer gives is rounded? Calibration finds those, not training."""
    node = found.graph.graph.node[entry.constant.node]
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or entry.constant.place not in (1, 2):
        return False
    return any(node.input[0] in other.output for other in found.graph.graph.node if other.op_type != "Constant")


def _of_its_scale(entry: Difference) -> bool:
    """Are the integers of a weight right, and what they are multiplied by, or counted from, is not?"""
    held, wanted = (side.astype(np.float64).ravel() for side in (entry.constant.values, entry.match.expected))
    if not entry.constant.rounding or held.size != wanted.size or held.size < FEWEST:
        return False
    factor, addend = np.polyfit(wanted, held, 1)
    return bool((np.abs(factor * wanted + addend - held) <= A_STEP * abs(factor) * entry.constant.rounding).all())


def _details(entry: Difference) -> tuple[str, ...]:
    """Where exactly a weight differs: the columns, the entries, the constant of the graph."""
    columns = entry.columns()
    named = [listed(columns)] if 0 < len(columns) <= SHOWN else []
    place = [] if entry.name == entry.constant.tensor else [entry.constant.text]
    return (*named, *filter(None, [entry.spot()]), *place)


@probe("preprocessing-differs", when=lambda case: case.native("reference") is not None)
def fitted_statistics(case: Case) -> Iterator[Explained]:
    """Compare the means, scales, fill values, categories, edges and components of steps; put the reference's back."""
    found = weights(case)
    if found is None or (found.stale and not found.predicts):
        return
    result = needed(case, [entry for entry in found.differences if entry.role == PREPROCESSING])
    if result is not None:
        culprits, effect = result
        yield _put_back(
            case,
            "preprocessing-differs",
            _steps(culprits),
            culprits,
            effect,
            Remedy(again="Export again from this very pipeline, fitted once and exported whole"),
            simplicity=1 if all(entry.parameter is not None for entry in culprits) else 2,
        )


def _steps(culprits: Sequence[Difference]) -> Place:
    """The steps by the last name of their path, with the columns and the constants of the graph."""
    owned = [entry.parameter for entry in culprits if entry.parameter is not None]
    columns = list(dict.fromkeys(name for entry in culprits for name in entry.columns()))
    every = {name for parameter in owned for name in parameter.columns}
    details = []
    if len(columns) > SHOWN and len(columns) == len(every):
        details.append(f"all {len(columns)} columns")
    elif columns:
        details.append(listed(columns, SHOWN))
    paths = [path for path in dict.fromkeys(parameter.step for parameter in owned) if path]
    details += [f"step '{path}'" for path in paths[:SHOWN]]
    details += dict.fromkeys(entry.constant.text for entry in culprits[:SHOWN])
    name = ", ".join(dict.fromkeys(parameter.part for parameter in owned if parameter.part))
    return Place(name or culprits[0].constant.operator, tuple(details), path=paths[0] if paths else "")


@probe("model-part-dropped", "preprocessing-dropped", when=lambda case: case.native("reference") is not None)
def dropped_parts(case: Case) -> Iterator[Explained]:
    """Look for fitted arrays that the graph has as zeros or not at all; put them in, and see whether the rows agree."""
    found = weights(case)
    if found is None or found.stale:
        return
    looks = (
        _emptied(case, found),
        shown(case, _left_out("model-part-dropped", missing_parts(found))),
        shown(case, _left_out("preprocessing-dropped", unscaled_inputs(found))),
    )
    yield from islice((entry for look in looks for entry in look), 1)


def _emptied(case: Case, found: Weights) -> Iterator[Explained]:
    """Intercepts for which the graph has a place, with nothing in it."""
    result = needed(case, [entry for entry in found.differences if entry.dropped])
    if result is None:
        return
    parts, effect = result
    names = ", ".join(entry.name for entry in parts[:SHOWN])
    where = ", ".join(entry.constant.text for entry in parts[:SHOWN])
    state = "absent" if all(entry.constant.absent for entry in parts) else "all zero"
    yield effect.explained(
        "model-part-dropped",
        _at(Place(word(parts[0].parameter), (names, where)), parts),
        f"{names} {'is' if len(parts) == 1 else 'are'} {state} in the graph; with it put in, {effect.agreeing}",
        UNCHANGED,
        simplicity=1,
        fixes=_fixes(case, parts),
    )


def _left_out(cause: str, parts: Iterable[Part]) -> Iterator[Claim]:
    """Arrays for which the graph has no place: made one where the rest of their layer stands."""
    for place, graph in parts:
        evidence = f"{place} is nowhere in the graph; with it put in, {HEALED} agree"
        yield Claim(cause, place, evidence, UNCHANGED, (Change(target=graph),))


def _put_back(
    case: Case,
    cause: str,
    place: Place,
    culprits: Sequence[Difference],
    effect: Effect,
    remedy: Remedy,
    *,
    simplicity: int = 1,
) -> Explained:
    evidence = f"{_told(culprits)}; with the reference's put back into the graph, {effect.agreeing}"
    fixes = _fixes(case, culprits)
    return effect.explained(cause, _at(place, culprits), evidence, remedy, simplicity=simplicity, fixes=fixes)


def _fixes(case: Case, culprits: Sequence[Difference]) -> tuple[Fix, ...]:
    """The reference's numbers in the place of the candidate's, in the graph."""
    told = f"{listed([entry.name for entry in culprits], SHOWN)} put back from the reference"
    return tuple(fix for change in put_back(case, culprits) for fix in change.fixes(told))


def _at(place: Place, culprits: Sequence[Difference]) -> Place:
    """The same with where it stands in the graph."""
    return Place(
        place.name,
        place.details,
        path=place.path or (culprits[0].parameter.step if culprits[0].parameter is not None else ""),
        nodes=tuple(dict.fromkeys(entry.constant.node_name for entry in culprits if entry.constant.node_name)),
        tensors=_tensors(culprits),
        columns=tuple(dict.fromkeys(name for entry in culprits for name in entry.columns())),
    )


def _tensors(culprits: Sequence[Difference]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry.constant.tensor for entry in culprits if entry.constant.tensor))


def _told(culprits: Sequence[Difference]) -> str:
    return "; ".join(f"{entry.name}: {entry.pattern.text}" for entry in culprits[:SHOWN])


EXTENSIONS = (other_weights, fitted_statistics, dropped_parts)
