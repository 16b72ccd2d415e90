"""Labels that differ where scores agree: another threshold or rule, ties, other values for the same classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.compare.differences import is_numeric, same_labels
from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.contracts.models import Kind, Label
from likewise.contracts.report import Place
from likewise.data.cells import listed
from likewise.explain import answers
from likewise.explain.case import Case, Explained, Fix, Remedy, probe
from likewise.explain.experiment import ENOUGH, HEALED, SOME, Change, Claim, Effect, Trial, shown
from likewise.explain.trace import seen_inside
from likewise.models.onnx import edits, rewrites

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

TIED = 5e-7
"""Two scores this close, relative to the larger, are one to float32."""

MOST_PICKING = 3
"""Nodes that pick the largest of something, from the end of the graph, that are tried the other way round."""

FEWEST_FAILING = 2
"""Rows that a threshold needs; one row is nearest to the border by chance."""

CONSISTENT = 0.98
"""A mapping of labels holds on this share of the rows, or it is none."""

FEWEST_ROWS = 5
"""Fewer rows support any mapping."""

MOST_VALUES = 2_000
"""Pairs of labels beyond which they are no classes."""

MOST_SHOWN = 6
"""Labels whose translation is written out."""

RANKING = {"TopK": 1, "ArgMax": 0, "ArgMin": 0}
"""Operators that give places, and which of their outputs holds them."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What labels may be picked from: `own` are the candidate's, which agree with the reference's."""

    name: str
    values: Array
    reference: Array
    kind: Kind | None
    own: bool


@probe(
    "tie-breaking",
    "decision-threshold",
    "label-rule",
    when=lambda case: (
        answers.complete(case) and bool(answers.failing_labels(case)) and not answers.failing_numbers(case)
    ),
)
def label_rules(case: Case) -> Sequence[Explained]:
    """Pick the labels again from scores that agree, by the reference's rule, and compare."""
    found = list(islice(shown(case, _in_graph(case)), 1))
    for position in answers.failing_labels(case):
        label = answers.pairs(case)[position]
        sources = list(_sources(case, label))
        for test in (_ties, _threshold, _any_rule):
            told = next((entry for scores in sources if (entry := test(case, position, label, scores))), None)
            if told is not None:
                found.append(told)
                break
    return found


def _sources(case: Case, label: Pair) -> Iterator[Scores]:
    """Scores that a label can be picked from: the candidate's own where it gives them, then the reference's."""
    for pair in answers.pairs(case):
        if answers.is_number(pair) and _fits(label, pair.reference):
            yield Scores(pair.spec.name, pair.candidate, pair.reference, pair.spec.kind, own=True)
    kinds = {spec.name: spec.kind for spec in case.runners["reference"].signature.outputs or ()}
    compared = {pair.spec.reference for pair in answers.pairs(case)}
    for name, array in answers.views(case).items():
        if name not in compared and is_numeric(array) and array.dtype.kind == "f" and _fits(label, array):
            yield Scores(name, array, array, kinds.get(name), own=False)


def _fits(label: Pair, scores: Array) -> bool:
    """Can these labels be picked from such scores: as many columns as classes, one for two, or one a label?"""
    if scores.ndim > 2 or len(scores) != len(label.reference):
        return False
    if label.reference.size > len(label.reference):
        return bool(scores.shape == label.reference.shape)
    width = scores.size // max(len(scores), 1)
    count = width if label.spec.classes is None else len(label.spec.classes)
    return bool(width == count or (width, count) == (1, 2))


def _classes(label: Pair, scores: Array) -> tuple[Label, ...]:
    if label.spec.classes:
        return label.spec.classes
    several = label.reference.size > len(label.reference)
    width = 2 if several else max(scores.size // max(len(scores), 1), 2)
    return tuple(range(width))


def _ties(case: Case, position: int, label: Pair, scores: Scores) -> Explained | None:
    """Do labels differ only where the best two scores are equal?"""
    if label.reference.size > len(label.reference):
        return None
    columns = answers.as_columns(scores.values, scores.kind)
    columns = -columns if scores.kind is Kind.DISTANCE else columns
    best = np.partition(columns, -2, axis=1)[:, -2:]
    tied = best[:, 1] - best[:, 0] <= TIED * np.maximum(np.abs(best[:, 1]), 1e-3)
    classes = list(_classes(label, scores.values))
    index = {str(name): column for column, name in enumerate(classes)}
    chosen = np.array([index.get(str(value), -1) for value in label.candidate.ravel().tolist()])
    picked = np.where(chosen >= 0, columns[np.arange(len(columns)), chosen], -np.inf)
    tied &= best[:, 1] - picked <= TIED * np.maximum(np.abs(best[:, 1]), 1e-3)
    labels = np.where(tied, label.reference.ravel().astype(object), label.candidate.ravel().astype(object))
    effect = answers.measured(case, {position: labels.reshape(label.candidate.shape)})
    if not effect.explains:
        return None
    counted = case.counts_every_flip(label.spec)
    return effect.explained(
        "tie-breaking",
        answers.culprit([label], f"ties of {scores.name}"),
        f"on {effect.told} the best two {scores.name} are equal, and the models pick different ones of them",
        "Break ties the same way on both sides (np.argmax takes the first)"
        + (", or accept flips within noise: --limit material_flips=0 instead of label_flips" if counted else ""),
    )


def _threshold(case: Case, position: int, label: Pair, scores: Scores) -> Explained | None:
    """Are the candidate's labels the same scores cut at another place?"""
    classes = _classes(label, scores.values)
    if len(classes) != 2:
        return None
    own, ours = _positive(scores.values, label), _positive(scores.reference, label)
    if own is None or ours is None:
        return None
    theirs_yes = same_labels(label.candidate.ravel().astype(object), np.full(own.size, classes[1], dtype=object))
    ours_yes = same_labels(label.reference.ravel().astype(object), np.full(own.size, classes[1], dtype=object))
    cut, right = _cut(own, theirs_yes), _cut(ours, ours_yes)
    changed = theirs_yes != ours_yes
    if cut is None or right is None or changed.sum() < (FEWEST_FAILING if scores.own else FEWEST_FAILING + 1):
        return None
    place, place_right = _simplest(*cut), _simplest(*right)
    named = np.empty(2, dtype=object)
    named[:] = list(classes)
    relabelled = named[(own > place_right).astype(int)]
    effect = answers.convincing(case, {position: relabelled.reshape(label.candidate.shape)})
    if effect is None:
        return None
    stored = _stored(case, cut)
    where = f", {stored}" if stored else ""
    return effect.explained(
        "decision-threshold",
        answers.culprit([label], f"threshold {place:g} instead of {place_right:g}{where}"),
        f"the candidate says {classes[1]!r} from {scores.name} of {place:g} on ({cut[0]:.6g} to {cut[1]:.6g}), "
        f"the reference from {place_right:g} on; cut there, the candidate's labels agree on {effect.told}",
        f"Set the threshold to {place_right:g} in the export, or decide by the probabilities: "
        f"{scores.name} > {place_right:g}",
        simplicity=2 if scores.own else 3,
        fixes=_picked(case, label, scores, place_right),
    )


def _any_rule(case: Case, position: int, label: Pair, scores: Scores) -> Explained | None:
    """Do the candidate's labels not follow from its own scores, which agree, by the rule the reference's follow?"""
    if not scores.own or answers.distinct(label.candidate) < 2:
        return None
    classes = _classes(label, scores.values)
    ours = list(answers.rules(scores.reference, classes, label.reference.shape))
    theirs = list(answers.rules(scores.values, classes, label.reference.shape))
    for (how, expected), (_, relabelled) in zip(ours, theirs, strict=True):
        if same_labels(expected, label.reference.astype(object)).mean() < answers.FOLLOWING:
            continue
        effect = answers.convincing(case, {position: relabelled})
        if effect is not None:
            return effect.explained(
                "label-rule",
                answers.culprit([label], f"not by {scores.name}"),
                f"the candidate's {scores.name} agree; labels picked from them so that {how}, as the reference "
                f"does, agree on {effect.told}, its own do not",
                f"Take the label from the candidate's {scores.name}, or export the model's own rule",
                simplicity=3,
                fixes=_picked(case, label, scores, None) if how == answers.HIGHEST else (),
            )
    return None


def _picked(case: Case, label: Pair, scores: Scores, above: float | None) -> tuple[Fix, ...]:
    """The label picked in the graph from scores that the candidate gives itself."""
    proto = case.graph()
    own = next((pair.spec.candidate for pair in answers.pairs(case) if pair.spec.name == scores.name), None)
    if proto is None or not scores.own or own is None or label.candidate.size != len(label.candidate):
        return ()
    classes = _classes(label, scores.values)
    rule = "the highest wins" if above is None else f"{classes[1]!r} above {above:g}"
    told = f"the label {label.spec.candidate!r} picked from {own!r}: {rule}"
    return (Fix(told, lambda: rewrites.picked(proto, label.spec.candidate, own, classes, above)),)


def _in_graph(case: Case) -> Iterator[Claim]:
    """A node that picks the label: try it the other way round."""
    proto = case.editable()
    if proto is None:
        return
    label = answers.pairs(case)[answers.failing_labels(case)[0]]
    places = [at for at, node in enumerate(proto.graph.node) if node.op_type in ("ArgMax", "ArgMin")]
    for at in places[-MOST_PICKING:]:
        name, was = proto.graph.node[at].name, proto.graph.node[at].op_type
        turned, last = edits.copied(proto), edits.copied(proto)
        turned.graph.node[at].op_type = "ArgMin" if was == "ArgMax" else "ArgMax"
        index = edits.attribute(proto.graph.node[at], "select_last_index", 0)
        edits.set_attribute(last.graph.node[at], "select_last_index", 1 - index)
        for cause, what, graph, remedy in (
            ("label-rule", f"{was} instead of {turned.graph.node[at].op_type}", turned, "the other operator"),
            ("tie-breaking", f"select_last_index={index}", last, "the first of equals"),
        ):
            yield Claim(
                cause,
                answers.culprit([label], f"{what}, node '{name}'", nodes=(name,)),
                f"with node '{name}' changed ({what}) the candidate agrees on {HEALED}",
                f"Export the label with {remedy}",
                (Change(target=graph),),
            )


def _positive(scores: Array, label: Pair) -> Array | None:
    """The score of the second class, one a label."""
    if scores.size == label.reference.size:
        flat = scores.ravel()
    elif scores.ndim == 2 and scores.shape[1] == 2 and label.reference.size == len(scores):
        flat = scores[:, 1]
    else:
        return None
    flat = flat.astype(np.float64)
    return flat if np.isfinite(flat).all() else None


def _cut(scores: Array, yes: Array) -> tuple[float, float] | None:
    """Between which two scores labels change, if all below are no and all above are yes."""
    if yes.all() or not yes.any():
        return None
    below, above = float(scores[~yes].max()), float(scores[yes].min())
    return (below, above) if below <= above else None


def _simplest(below: float, above: float) -> float:
    """The number with the fewest digits between two others."""
    for digits in range(10):
        middle = round((below + above) / 2, digits)
        if below <= middle <= above:
            return middle
    return (below + above) / 2


def _stored(case: Case, cut: tuple[float, float]) -> str | None:
    """The constant of the candidate's graph that the cut comes from, if only one fits."""
    proto = case.graph()
    if proto is None:
        return None
    single = {name: array for name, array in edits.constants(proto.graph).items() if array.size == 1}
    fitting = [
        name
        for name, array in single.items()
        if array.dtype.kind == "f" and cut[0] <= float(array.ravel()[0]) <= cut[1] and cut[0] < cut[1]
    ]
    return f"constant '{fitting[0]}'" if len(fitting) == 1 else None


@probe("label-mapping", when=lambda case: answers.complete(case) and bool(answers.failing_labels(case)))
def label_values(case: Case) -> Explained | None:
    """Translate the candidate's labels by the one-to-one mapping the rows suggest, and compare again."""
    pairs = answers.pairs(case)
    found = {at: mapping for at in answers.failing_labels(case) if (mapping := _mapping(pairs[at])) is not None}
    changed = {at: _mapped(pairs[at].candidate, mapping) for at, mapping in found.items()}
    effect = answers.convincing(case, changed) if changed else None
    if effect is None:
        return None
    position, mapping = next(iter(found.items()))
    return effect.explained(
        "label-mapping",
        answers.culprit([pairs[at] for at in found], _how(mapping, pairs[position])),
        f"the candidate's labels are the reference's under other values ({_listed(mapping)}): translated back they "
        f"agree on {effect.told}",
        Remedy(
            again="Export with the model's own class values",
            done=f"Translate the labels: {dict(sorted(mapping.items(), key=repr))}[label]"
            if len(mapping) <= MOST_SHOWN
            else "",
        ),
        fixes=_translated(case, {pairs[at].spec.candidate: mapping for at, mapping in found.items()}),
    )


def _translated(case: Case, mappings: Mapping[str, Mapping[Any, Any]]) -> tuple[Fix, ...]:
    """The labels translated behind the outputs that give them."""
    texts = {isinstance(value, str) for mapping in mappings.values() for value in mapping.values()}
    if len(texts) > 1:
        return ()
    nodes = {output: rewrites.encoded(mapping) for output, mapping in mappings.items()}
    return answers.behind(case, nodes, "labels translated", dtype=object if True in texts else np.int64)


def _mapping(pair: Pair) -> Mapping[Any, Any] | None:
    """What each label of the candidate stands for, if that is the same on nearly all rows and something else."""
    theirs, ours = _plain(pair.candidate), _plain(pair.reference)
    together = Counter(zip(theirs, ours, strict=True))
    if len(theirs) < FEWEST_ROWS or len(together) > MOST_VALUES:
        return None
    best: dict[Any, tuple[Any, int]] = {}
    for (given, meant), count in together.items():
        if given not in best or count > best[given][1]:
            best[given] = (meant, count)
    consistent = sum(count for _, count in best.values())
    # One row supports any mapping of its label; two rows or more begin to tell.
    supported = sum(count for _, count in best.values() if count >= 2)
    mapping = {given: meant for given, (meant, _) in best.items()}
    several = len(mapping) >= 2 and len(set(mapping.values())) == len(mapping)
    if not several or consistent < CONSISTENT * len(theirs) or supported < 0.8 * len(theirs):
        return None
    return mapping if any(given != meant for given, meant in mapping.items()) else None


def _plain(array: Array) -> list[Any]:
    """Labels as plain values that can be counted; NaN is a label like any other."""
    return ["NaN" if value != value else value for value in array.ravel().tolist()]


def _mapped(array: Array, mapping: Mapping[Any, Any]) -> Array:
    translated = np.empty(array.size, dtype=object)
    translated[:] = [mapping[value] for value in _plain(array)]
    return translated.reshape(array.shape)


def _how(mapping: Mapping[Any, Any], pair: Pair) -> str:
    """The mapping in a few words."""
    classes = list(pair.spec.classes or ())
    numbers = all(isinstance(value, int) for entry in mapping.items() for value in entry)
    shifts = {given - meant for given, meant in mapping.items()} if numbers else set()
    if len(shifts) == 1:
        return f"shifted by {shifts.pop():+d}"
    if all(isinstance(given, int) and classes[given : given + 1] == [meant] for given, meant in mapping.items()):
        return "position instead of class"
    if all(_folded(given) == _folded(meant) for given, meant in mapping.items()):
        return "other spelling"
    return f"exchanged: {_listed(mapping)}" if set(mapping) == set(mapping.values()) else _listed(mapping)


def _folded(value: Any) -> str:
    """A label without regard to case and to the type of a number."""
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return (str(int(value)) if whole else str(value)).strip().casefold().removesuffix(".0")


def _listed(mapping: Mapping[Any, Any]) -> str:
    changed = sorted((entry for entry in mapping.items() if entry[0] != entry[1]), key=repr)
    return listed([f"{given!r} for {meant!r}" for given, meant in changed], MOST_SHOWN)


@probe(
    "tie-breaking",
    when=lambda case: case.graph() is not None and any(n.op_type in RANKING for n in case.graph().graph.node),
)
def ranked_ties(case: Case) -> Explained | None:
    """Look up both models' places in the values that were ranked: equal values are equally right."""
    proto, positions = case.editable(), Trial.few(case, SOME).positions
    failing = case.required.failing[positions]
    for node, ranked, places in () if proto is None else _seen(case, proto, positions):
        covered = failing.copy()
        for pair in case.failing_pairs():
            equal = _equally_right(pair, node, ranked, places, positions)
            covered &= np.zeros(len(positions), dtype=bool) if equal is None else equal
        if covered.sum() >= ENOUGH * failing.sum():
            output = case.failing_pairs()[0].spec.name
            return Explained(
                "tie-breaking",
                Place(output, (edits.place(node),), outputs=(output,), nodes=(node.name,)),
                f"on {Effect(covered, failing).told} both models point at equal values: {node.op_type} ranks "
                "them in another order than the reference",
                "Compare the values instead of their places, or break ties before (add a small multiple of the index)",
                covered=Trial(case, positions).mask(covered),
                share=float(covered.sum() / failing.sum()),
                simplicity=1,
            )
    return None


def _seen(case: Case, proto: ModelProto, positions: Array) -> Iterator[tuple[NodeProto, Array, Array]]:
    """Each ranking node with the values it ranks and the places it gives."""
    for node in proto.graph.node:
        if node.op_type in RANKING and len(node.output) > RANKING[node.op_type]:
            names = [node.input[0], node.output[RANKING[node.op_type]]]
            seen = seen_inside(case, "candidate", proto, names, positions)
            fed = case.fed("candidate", case.rows(positions))
            ranked = fed.get(names[0]) if seen is None or names[0] not in seen else seen[names[0]]
            if seen is not None and ranked is not None and names[1] in seen:
                yield node, ranked, seen[names[1]]


def _equally_right(pair: Pair, node: NodeProto, ranked: Array, places: Array, positions: Array) -> Array | None:
    """The rows on which the reference's places hold the same values; None where the output is no places."""
    theirs, ours = pair.candidate[positions], pair.reference[positions]
    axis = edits.attribute(node, "axis", -1 if node.op_type == "TopK" else 0) % ranked.ndim
    if not axis or theirs.size != places.size or theirs.dtype.kind not in "iuf":
        return None
    wide = ranked.shape[axis]
    mine = places if places.ndim == ranked.ndim else np.expand_dims(places, axis)
    yours = ours.reshape(mine.shape).astype(np.float64)
    same = np.array_equal(theirs.reshape(mine.shape).astype(np.float64), mine.astype(np.float64))
    if not same or not np.isin(yours, np.arange(wide)).all():
        return None
    held, meant = (np.take_along_axis(ranked, at.astype(np.int64), axis) for at in (mine, yours))
    rows: Array = (held == meant).reshape(len(positions), -1).all(axis=1)
    return rows


EXTENSIONS = (label_rules, label_values, ranked_ties)
