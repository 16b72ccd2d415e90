"""Too few digits: float32 where the reference computes in double, half precision where it computes in float32.

The candidate's graph is computed in the next wider type. Where that takes the difference away, alone or with the same
rounded weights in the reference, single nodes are put back into the narrow type: one that brings the failures back
alone is the culprit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Batch, Tensors
from likewise.contracts.report import Place
from likewise.contracts.verdict import counted
from likewise.data.cells import listed, with_columns
from likewise.explain import experiment, infinities, rounding, trace
from likewise.explain.case import DOUBLE, Case, Explained, Fix, Remedy, probe
from likewise.explain.experiment import Change, Effect, Trial
from likewise.explain.first_wrong_step import step_of
from likewise.explain.wider import HALVES, MOST_NODES, Cure, Wide, by_the_standard
from likewise.models.onnx import edits, widen
from likewise.registry import adapter

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

NAMES = {widen.HALF: "float16", widen.BRAIN: "bfloat16"}

WHOLE = Place("model")

SIDES = ("candidate", "reference")

MATTERS = 0.05
"""Of the difference, so much has to move with the digits for these to be looked into."""

MOST = 0.8
"""What does so much of what everything does together is what does it."""

LEFT = 0.1
"""What rounding may leave of a difference whose cause is not seen: other edits of the weights come nearer by chance."""

CLIPPED = 1e4
"""Where the float16 converters cut off weights."""

NETWORKS = ("torch", "onnx")
"""Frameworks whose models are trained in float32: what they have learnt is stored as it is."""

KEPT = "Keep it in float32 (likewise quantize --mode fp16 --exclude NODE)"
ACCEPTED = "Deploy the float32 model, or set limits that fit half precision (--abs-tol)"


@probe(
    "float32-compute",
    when=lambda case: case.graph() is not None and not case.comparison.quantized_nodes,
    slow=True,
)
def precision(case: Case) -> Explained | None:
    """Compute the candidate's graph in double; then put one node at a time back into float32."""
    proto = case.editable()
    plan = widen.Widening(case.tensor_types(), frozenset({widen.SINGLE}))
    if proto is None or widen.SINGLE not in plan.types.values():
        return None
    found = widen.runnable(proto, plan)
    if found is None:
        cure = next(_by_the_standard(case, proto, plan), None)
        return None if cure is None else _too_few_digits(case, proto, None, cure)
    optimiser = experiment.unoptimised(case)
    # In double the runtime's fusions are not made either: where these are at fault, nothing is shown.
    if not _digits_matter(case, proto, found[0]) or (optimiser is not None and optimiser.explains):
        return None
    wide = Wide(case, proto, *found)
    cure = None if wide.answers is None else next(_in_double(wide, plan), None)
    return None if cure is None else _too_few_digits(case, proto, wide, cure)


@probe("precision-reduction", when=lambda case: any(_as_written(case, side) for side in SIDES))
def types_of_the_runtime(case: Case) -> Iterator[Explained]:
    """Have a runtime compute in the types of the file, where it is free to take narrower ones."""
    for side in SIDES:
        options = _as_written(case, side)
        change = Change(side, options=options)
        effect = experiment.run(case, change) if options else None
        if effect is not None and effect.explains:
            told = " ".join(f"--{side}-option {name}={value}" for name, value in options.items())
            yield effect.explained(
                "precision-reduction",
                replace(WHOLE, side=side),
                f"the runtime of the {side} computes in fewer digits than its file asks for; computed as it is written "
                f"({told}), the {side} agrees with the other on {effect.told}",
                Remedy(ACCEPTED, done=f"Run it like that where it is deployed, and check it with {told}"),
                simplicity=1,
                fixes=change.fixes("computed in the types of the file"),
            )


@probe("precision-reduction", when=lambda case: case.graph() is None and case.runners.get("candidate") is not None)
def rounded_elsewhere(case: Case) -> Explained | None:
    """Round the weights of the reference, where nothing can be seen of those of the candidate."""
    trial, found = Trial.whole(case), []
    for dtype in NAMES.values():
        given = _of_twin(trial, rounding.rounded(case, dtype))
        effect = None if given is None else trial.effect(reference=given)
        if effect is not None and effect.explains and trial.nearer(reference=given, left=LEFT):
            found.append((trial.gap(reference=given), dtype, effect))
    if not found:
        return None
    _, dtype, effect = min(found, key=lambda entry: entry[:2])
    return effect.explained(
        "precision-reduction",
        WHOLE,
        f"with its weights rounded to {dtype} the reference answers like the candidate on {effect.told}",
        f"Keep the candidate's weights in float32 where it is written. {ACCEPTED}",
    )


@probe(
    "precision-reduction",
    when=lambda case: case.graph() is not None and (_has_halves(case) or bool(rounding.rounded_weights(case.graph()))),
)
def reduced_precision(case: Case) -> Explained | None:
    """Compute in float32 what the candidate computes in half; then give the reference the same rounded weights."""
    proto = case.editable()
    if proto is None:
        return None
    plan = widen.Widening(case.tensor_types(), HALVES, widen.SINGLE, narrow_ops=frozenset(), inputs=True)
    found = widen.runnable(proto, plan) if _has_halves(case) else None
    wide = Wide(case, proto, *(found or (proto, plan)))
    if wide.answers is None:
        return None
    cure = next(_in_single(wide), None) if _has_halves(case) else None
    if (cure is None or cure.weights) and (restored := _with_own_weights(wide)) is not None:
        return restored
    return None if cure is None else _halved(wide, cure)


def _as_written(case: Case, side: str) -> dict[str, str]:
    """The options by which a side is computed in the types of its file, as far as it is not anyway."""
    model = case.model(side)
    written = adapter(model.framework).as_written
    return {name: value for name, value in written.items() if model.options.get(name) != value}


def _digits_matter(case: Case, proto: ModelProto, wide: ModelProto) -> bool:
    """Do the digits that float32 lacks move the answers by anything like the difference? Asked on few rows."""
    trial = Trial.few(case)
    double = trial.ask(Change(target=wide))
    if double is None:
        return False
    before = trial.gap()
    if not before or trial.moved(trial.candidate, double) >= MATTERS * before:
        return True
    if case.framework("reference") in NETWORKS:
        return False
    other = trial.ask(Change(target=rounding.jittered(wide, rounding.half_steps(proto, case.largest_copy), 0)))
    return other is None or rounding.LARGER * trial.moved(double, other) >= MATTERS * before


def _in_double(wide: Wide, plan: widen.Widening) -> Iterator[Cure]:
    """What a computation in double agrees with: the reference, the same with rounded weights, or in double too."""
    case = wide.case
    if (effect := wide.gone()) is not None:
        yield Cure(effect, "computed in double, the candidate's graph agrees with the reference")
    given = _of_twin(wide.trial, rounding.rounded(case, "float32"))
    if given is not None and (effect := wide.gone(given)) is not None:
        yield Cure(
            effect,
            "computed in double, the candidate's graph agrees with the reference once the weights of that are rounded "
            "to float32 as well",
            given,
            # The weights alone, under the candidate's own arithmetic: then it is not the arithmetic.
            weights=wide.trial.effect(reference=given).share >= MOST * effect.share,
        )
    twin = rounding.doubled(case)
    given = None if twin is None else case.ask_changed("reference", target=twin, batch=_as_single(case))
    if given is not None and (effect := wide.gone(given)) is not None:
        yield Cure(effect, "both models compute in float32; computed in double they agree", given)
    if any(node.op_type in wide.plan.narrow_ops for node in widen.computing_nodes(wide.proto, plan)):
        yield from _by_the_standard(case, wide.proto, plan)
    # Stored numbers that nothing in the reference corresponds to: sums of squares, folded products.
    if case.framework("reference") not in NETWORKS and (effect := wide.moved()) is not None and effect.explains:
        yield Cure(
            effect,
            "moved within what float32 rounds off, the stored numbers move the answers by as much as the difference",
            simplicity=4,
            narrowable=False,
            constant=_constant_at_fault(wide, effect),
        )


def _of_twin(trial: Trial, twin: Any) -> Tensors | None:
    """What the reference answers in another form; None where there is none."""
    return None if twin is None else trial.ask(Change("reference", target=twin))


def _constant_at_fault(wide: Wide, effect: Effect) -> str | None:
    """The only stored array whose rounding alone moves the answers as far."""
    names = [name for name, step in rounding.half_steps(wide.proto, wide.case.largest_copy).items() if step.any()]
    few = experiment.searching(wide.case, names if len(names) <= MOST_NODES else ())
    alone = {name: wide.moved([name], rounding.DRAWS // 2) for name in few}
    enough = [name for name, one in alone.items() if one is not None and one.share >= MOST * effect.share]
    return enough[0] if len(enough) == 1 else None


def _by_the_standard(case: Case, proto: ModelProto, plan: widen.Widening) -> Iterator[Cure]:
    """Operators that the runtime has in float32 only, computed by onnx's own evaluator, on few rows."""
    wide = widen.widened(proto, replace(plan, narrow_ops=frozenset({"ZipMap"})))
    trial = Trial.few(case)
    answers = by_the_standard(trial, wide)
    if answers is None:
        return
    told = "computed in double by onnx's evaluator, the candidate's graph agrees with the reference"
    if (effect := trial.effect(candidate=answers)).explains:
        yield Cure(effect, told, narrowable=False, rows=trial)
    given = _of_twin(trial, rounding.rounded(case, "float32"))
    if given is not None and (effect := trial.effect(reference=given, candidate=answers)).explains:
        told += " once the weights of that are rounded to float32 as well"
        yield Cure(effect, told, narrowable=False, rows=trial)


def _too_few_digits(case: Case, proto: ModelProto, wide: Wide | None, cure: Cure) -> Explained:
    again, node = 0, None
    if wide is not None and cure.narrowable and not cure.weights:
        node, again = wide.culprit(cure, widen.computing_nodes(proto, wide.plan), enough=0.5, others=1.0)
    elif not cure.weights:
        computing = widen.computing_nodes(proto, widen.Widening(case.tensor_types()))
        node = computing[0] if len(computing) == 1 else None
    evidence = f"{cure.told} on {cure.effect.told}"
    if again:
        evidence += f"; with only this node in float32, {again} of the rows tried fail again"
    return Explained(
        "float32-compute",
        _in_owners_words(case, proto, node, cure.constant),
        evidence,
        Remedy("Scale the inputs before the model, or allow for the noise of float32 with --abs-tol", again=DOUBLE),
        covered=cure.effect.covered if cure.rows is None else cure.rows.mask(cure.effect.covered),
        share=None if cure.rows is None else cure.effect.share,
        simplicity=cure.simplicity,
        fixes=() if wide is None or cure.reference is not None else _wide_fixes(wide, proven=cure.narrowable),
    )


def _wide_fixes(wide: Wide, *, proven: bool) -> tuple[Fix, ...]:
    """The graph in double: the experiment itself, or what may help where another one told of the digits."""
    told = "the graph computed in double"
    return Change(target=wide.wide).fixes(told) if proven else (Fix(told, lambda: wide.wide),)


def _as_single(case: Case) -> Batch:
    """The sample with what float32 leaves of its numbers: what both models were given."""
    batch = case.required.batch
    wide = {name: array for name, array in batch.inputs.items() if array.dtype == np.float64}
    narrow = {name: array.astype(np.float32).astype(np.float64) for name, array in wide.items()}
    return replace(batch, inputs=with_columns(batch.inputs, narrow))


def _in_owners_words(case: Case, proto: ModelProto, node: NodeProto | None, constant: str | None) -> Place:
    """The step or operator, the step first."""
    step = step_of(case, proto, node)
    if constant is not None:
        return Place(step or "model", (f"constant '{constant}'",), path=step or "", tensors=(constant,))
    if node is None:
        return Place(step or "model", path=step or "")
    if step is None:
        return trace.place_of(node)
    return Place(step, (node.op_type, f"node '{node.name}'"), path=step, nodes=(node.name,))


def _in_single(wide: Wide) -> Iterator[Cure]:
    """What a computation in float32 agrees with: the reference, or the same with weights as half precision has them."""
    dtype = _dtype(wide.plan)
    if (effect := wide.gone()) is not None:
        yield Cure(
            effect, f"computed in float32 instead of {dtype}, the candidate agrees with the reference", simplicity=2
        )
    for clip in (None, CLIPPED):
        given = _of_twin(wide.trial, rounding.rounded(wide.case, dtype, clip=clip))
        if given is None:
            break
        rounded = dtype if clip is None else f"{dtype}, bounded by {clip:g}"
        alone, both = wide.trial.effect(reference=given), wide.gone(given)
        if alone.explains and wide.trial.nearer(reference=given) and (both is None or alone.share >= both.share):
            told = f"with its weights rounded to {rounded} the reference agrees with the candidate"
            yield Cure(alone, told, given, weights=True, simplicity=2)
        if both is not None:
            told = (
                f"computed in float32 instead of {dtype}, the candidate agrees with the reference once the weights of "
                f"that are rounded to {rounded} as well"
            )
            yield Cure(both, told, given, simplicity=2)
    if (effect := wide.moved()) is not None and effect.explains:
        told = f"moved within what {dtype} rounds off, the weights move the answers by as much as the difference"
        yield Cure(effect, told, weights=True, simplicity=4)


def _with_own_weights(wide: Wide) -> Explained | None:
    """Put the reference's own weights in the place of those that half precision has left."""
    found = rounding.counterparts(wide.case, rounding.rounded_weights(wide.proto))

    def effect_of(names: Collection[str]) -> Effect | None:
        chosen = {name: found[name] for name in names}
        return experiment.run(wide.case, Change(target=rounding.with_arrays(wide.wide, chosen)))

    effect = effect_of(found) if found else None
    if effect is None or not effect.explains:
        return None
    few = _few_weights(wide, found, experiment.AS_MUCH * effect.share)
    cut_off = [found[name] for name in few if not np.isfinite(found[name].within).all()]
    weight = next(iter(found.values()))
    told = (
        f"{len(found)} stored arrays are rounded to {weight.form}; with the reference's own in their place the "
        f"candidate agrees on {effect.told}"
    )
    if few:
        lost = ", ".join(f"{found[name].owner} has lost {100 * found[name].lost:.2g}%" for name in few)
        told += (
            f"; {'that' if len(few) == 1 else 'those'} of {listed([found[n].owner for n in few])} are enough: {lost}"
        )
    if cut_off:
        told += f", with {counted(sum(int((~np.isfinite(w.within)).sum()) for w in cut_off), 'numbers')} cut off"
    return effect.explained(
        "precision-reduction",
        _weights_in_half([found[name] for name in few]) if few else WHOLE,
        told,
        KEPT if few else ACCEPTED,
        simplicity=1,
        fixes=tuple(_restored(wide, found, few)),
    )


def _few_weights(wide: Wide, found: Mapping[str, rounding.RoundedWeight], enough: float) -> list[str]:
    """The fewest weights that do it when they are put back, of those that have lost most; none where it takes many."""
    ranked = sorted(found, key=lambda name: -found[name].lost)
    trial = Trial.few(wide.case)

    def does(names: Sequence[str]) -> bool:
        target = rounding.with_arrays(wide.wide, {name: found[name] for name in names})
        effect = trial.run(Change(target=target))
        return effect is not None and effect.share >= enough

    for count in experiment.searching(wide.case, range(1, min(trace.MOST_NAMED + 1, len(ranked)))):
        if does(ranked[:count]):
            return list(experiment.smallest(ranked[:count], does))
    few = experiment.searching(wide.case, ranked[:MOST_NODES] if len(ranked) > 1 else ())
    return next(([name] for name in few if does([name])), ranked if len(ranked) == 1 else [])


def _weights_in_half(weights: Sequence[rounding.RoundedWeight]) -> Place:
    owners, tensors = [weight.owner for weight in weights], tuple(weight.tensor for weight in weights)
    return Place(listed(owners), (listed([f"'{name}'" for name in tensors]),), path=owners[0], tensors=tensors)


def _restored(wide: Wide, found: Mapping[str, rounding.RoundedWeight], few: Sequence[str]) -> Iterator[Fix]:
    """The reference's own weights in float32: those that decide, then all."""
    if few:
        told = f"the reference's own {listed([found[name].owner for name in few])} in float32"
        yield Fix(told, lambda: rounding.with_arrays(wide.wide, {name: found[name] for name in few}))
    yield Fix("the reference's own weights in float32", lambda: rounding.with_arrays(wide.wide, found))


def _halved(wide: Wide, cure: Cure) -> Explained:
    evidence = f"{cure.told} on {cure.effect.told}"
    place = overflow = _overflow(wide, cure)
    if overflow is not None:
        evidence += f"; before, {overflow} overflows"
    else:
        place = _node_in_half(wide, cure)
        if place is not None and place.nodes and cure.reference is not None and not _enough_wide(wide, cure, place):
            place = replace(place, name=WHOLE.name, details=(f"rounded weights, and {place}",))
        if place is not None and _dtype(wide.plan) == "float16":
            evidence += rounding.out_of_range(wide.case, wide.wide, place.nodes)
    return cure.effect.explained(
        "precision-reduction",
        place or WHOLE,
        evidence,
        KEPT if place is not None and place.name != WHOLE.name else ACCEPTED,
        simplicity=cure.simplicity,
        fixes=_kept_wide(wide, cure, place),
    )


def _enough_wide(wide: Wide, cure: Cure, place: Place) -> bool:
    """Does the candidate agree with the reference itself once these nodes are kept in float32, weights as they are?"""
    effect = wide.trial.run(Change(target=widen.widened(wide.proto, _narrow_beside(wide, place))))
    return effect is not None and effect.share >= experiment.AS_MUCH * cure.effect.share


def _narrow_beside(wide: Wide, place: Place) -> widen.Widening:
    """All nodes but those of a place in half precision."""
    others = frozenset(node.name for node in widen.computing_nodes(wide.proto, wide.plan)) - frozenset(place.nodes)
    return replace(wide.plan, narrow_nodes=others)


def _kept_wide(wide: Wide, cure: Cure, place: Place | None) -> tuple[Fix, ...]:
    """The node that decides kept in float32, then all, with the reference's own weights where these are found."""
    restored = rounding.counterparts(wide.case, rounding.rounded_weights(wide.proto)) if cure.reference else {}
    every = Fix("the graph kept in float32", lambda: rounding.with_arrays(wide.wide, restored))
    if place is None or place.name == WHOLE.name or not place.nodes:
        return (every,)
    kept = _narrow_beside(wide, place)
    return (
        (Fix(f"{place} kept in float32", lambda: widen.widened(wide.proto, kept)), every)
        if kept.narrow_nodes
        else (every,)
    )


def _overflow(wide: Wide, cure: Cure) -> Place | None:
    """The node that makes infinity of what half precision cannot hold."""
    broken = np.zeros(len(wide.trial), dtype=bool)
    for pair in wide.case.failing_pairs():
        if pair.candidate.dtype.kind == "f":
            finite = np.isfinite(pair.candidate.astype(np.float64))
            broken |= ~finite.reshape(len(finite), -1).all(axis=1)
    rows = np.flatnonzero(broken & cure.effect.covered)
    shown = len(rows) > 0
    origin = infinities.origin(
        wide.case, "candidate", wide.proto, rows if shown else np.flatnonzero(cure.effect.covered)
    )
    if origin is None:
        return None
    # An infinity may go under before the end, where something is divided by it; or it is there only if one looks.
    told = shown or _enough_wide(wide, cure, replace(WHOLE, nodes=origin.broken))
    return trace.place_of(origin.node) if told else None


def _node_in_half(wide: Wide, cure: Cure) -> Place | None:
    """The node that alone in half precision brings the failures back, where there is one; or the only tensors."""
    nodes = [
        node
        for node in widen.computing_nodes(wide.proto, wide.plan)
        if any(wide.plan.concerns(name) for name in (*node.input, *node.output))
    ]
    if not nodes:
        stored = [name for name in edits.constants(wide.proto.graph) if wide.plan.concerns(name)]
        quoted = listed([f"'{name}'" for name in stored])
        return Place(quoted, tensors=tuple(stored)) if 0 < len(stored) <= trace.MOST_NAMED else None
    if len(nodes) == 1:
        return trace.place_of(nodes[0])
    if cure.weights:
        return None
    node, _ = wide.culprit(cure, nodes, enough=0.9, others=0.3) if len(nodes) <= MOST_NODES else (None, 0)
    if node is not None:
        return trace.place_of(node)
    most, enough = wide.blamed(cure, nodes)
    if not most or enough:
        return trace.place_of(*most) if most else None
    place = trace.place_of(*most)
    return replace(place, name=WHOLE.name, details=(f"most of it by {place}",))


def _has_halves(case: Case) -> bool:
    """Is anything in the graph in half precision?"""
    return bool(HALVES.intersection(case.tensor_types().values()))


def _dtype(plan: widen.Widening) -> str:
    kinds = [kind for kind in plan.types.values() if kind in HALVES]
    return NAMES[max(set(kinds), key=kinds.count)] if kinds else "float16"


EXTENSIONS = (precision, types_of_the_runtime, rounded_elsewhere, reduced_precision)
