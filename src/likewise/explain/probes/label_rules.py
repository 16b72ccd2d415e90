"""Agreeing scores, other labels: another threshold, another rule, ties decided another way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from likewise.compare.differences import is_numeric, same_labels
from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.contracts.models import Kind, Label
from likewise.explain import answers
from likewise.explain.case import Case, Explained
from likewise.models.onnx import edits

TIED = 5e-7
"""Two scores this close, relative to the larger, are one to float32."""

FEWEST_FAILING = 2
"""Rows that a threshold needs; one row is nearest to the border by chance."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What labels may be picked from: `own` are the candidate's, which agree with the reference's."""

    name: str
    values: Array
    reference: Array
    kind: Kind | None
    own: bool


class LabelRules:
    """Pick the labels again from scores that agree, by the reference's rule, and compare."""

    causes = ("tie-breaking", "decision-threshold", "label-rule")
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return answers.complete(case) and bool(answers.failing_labels(case)) and not answers.failing_numbers(case)

    def test(self, case: Case) -> Sequence[Explained]:
        found: list[Explained] = list(_in_graph(case))
        for position in answers.failing_labels(case):
            label = answers.pairs(case)[position]
            sources = list(_sources(case, label))
            for test in (_ties, _threshold, _named_rule, _any_rule):
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
    return Explained(
        "tie-breaking",
        answers.culprit([label], f"ties of {scores.name}"),
        f"on {answers.told(effect)} the best two {scores.name} are equal, and the models pick different ones of them",
        "Break ties the same way on both sides (np.argmax takes the first), or accept flips within noise: "
        "--limit material_flips=0 instead of label_flips",
        covered=effect.covered,
        simplicity=2,
    )


def _threshold(case: Case, position: int, label: Pair, scores: Scores) -> Explained | None:
    """Are the candidate's labels the same scores cut at another place?"""
    classes = _classes(label, scores.values)
    if len(classes) != 2:
        return None
    own, ours = _positive(scores.values, label), _positive(scores.reference, label)
    if own is None or ours is None:
        return None
    theirs_yes = same_labels(label.candidate.ravel().astype(object), _repeated(classes[1], own.size))
    ours_yes = same_labels(label.reference.ravel().astype(object), _repeated(classes[1], own.size))
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
    return Explained(
        "decision-threshold",
        answers.culprit([label], f"threshold {place:g} instead of {place_right:g}{where}"),
        f"the candidate says {classes[1]!r} from {scores.name} of {place:g} on ({cut[0]:.6g} to {cut[1]:.6g}), "
        f"the reference from {place_right:g} on; cut there, the candidate's labels agree on {answers.told(effect)}",
        f"Set the threshold to {place_right:g} in the export, or decide by the probabilities: "
        f"{scores.name} > {place_right:g}",
        covered=effect.covered,
        simplicity=2 if scores.own else 3,
    )


def _named_rule(case: Case, position: int, label: Pair, scores: Scores) -> Explained | None:
    """Are the candidate's labels what another rule makes of the reference's scores?"""
    classes = _classes(label, scores.reference)
    for how, made in answers.rules(scores.reference, classes, label.reference.shape):
        if same_labels(made, label.candidate.astype(object)).mean() < 0.99:
            continue
        effect = answers.convincing(case, reference={position: made})
        if effect is not None:
            return Explained(
                "label-rule",
                answers.culprit([label], f"{how}, of {scores.name}"),
                f"picked from the reference's own {scores.name} by the rule that {how}, labels agree with the "
                f"candidate's on {answers.told(effect)}; the reference decides otherwise",
                "Decide in the export as the model's predict does, or take the label from the outputs that agree",
                covered=effect.covered,
                simplicity=2,
            )
    return None


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
            return Explained(
                "label-rule",
                answers.culprit([label], f"not by {scores.name}"),
                f"the candidate's {scores.name} agree; labels picked from them so that {how}, as the reference "
                f"does, agree on {answers.told(effect)}, its own do not",
                f"Take the label from the candidate's {scores.name}, or export the model's own rule",
                covered=effect.covered,
                simplicity=3,
            )
    return None


def _in_graph(case: Case) -> Iterator[Explained]:
    """A node that picks the label: try it the other way round."""
    proto = edits.editable(case.graph())
    if proto is None:
        return
    picking = [node.name for node in proto.graph.node if node.op_type in ("ArgMax", "ArgMin")]
    for name in picking[-3:]:
        for cause in ("label-rule", "tie-breaking"):
            copy = edits.copied(proto)
            node = next(node for node in copy.graph.node if node.name == name)
            was = node.op_type
            if cause == "label-rule":
                node.op_type = "ArgMin" if was == "ArgMax" else "ArgMax"
                what = f"{was} instead of {node.op_type}"
            else:
                last = edits.attribute(node, "select_last_index", 0)
                edits.set_attribute(node, "select_last_index", 1 - last)
                what = f"select_last_index={last}"
            effect = answers.tried(case, copy)
            if effect is not None:
                label = answers.pairs(case)[answers.failing_labels(case)[0]]
                yield Explained(
                    cause,
                    answers.culprit([label], f"{what}, node '{name}'"),
                    f"with node '{name}' changed ({what}) the candidate agrees on {answers.told(effect)}",
                    f"Export the label with {'the other operator' if cause == 'label-rule' else 'the first of equals'}",
                    covered=effect.covered,
                    simplicity=1,
                )
                return


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


def _repeated(value: Label, count: int) -> Array:
    array = np.empty(count, dtype=object)
    array[:] = [value] * count
    return array


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


EXTENSION = LabelRules()
