"""The same trees, added up differently: averaged, scaled, to another output, without base score or linear parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from likewise.contracts.data import Array
from likewise.explain import tree_survey
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Change, Effect, Trial
from likewise.explain.tree_survey import Survey, plausible, survey
from likewise.models.onnx import tree_edits
from likewise.models.onnx.tree_edits import UnwritableError, with_attribute, written
from likewise.models.trees import composed

FEW = 0.5
"""Beyond this share of leaves with other values, their measure says nothing."""


class TreeSums:
    """Change one thing about the sum in a copy of the graph, and run it."""

    causes = ("aggregation", "label-order", "output-mapping", "model-part-dropped", "weight-corruption")
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return plausible(case)

    def test(self, case: Case) -> Sequence[Explained]:
        found = survey(case)
        if found is None or found.retrained:
            return []
        tried = (_outputs, _order, _measure, _base, _linear)
        return [entry for attempt in tried for entry in attempt(case, found)]


def _outputs(case: Case, found: Survey) -> Iterator[Explained]:
    """Trees that add to another output: another class, another target."""
    import numpy as np

    if not found.leafage.misplaced:
        return
    repaired = tree_survey.with_outputs(found)
    effect = tree_survey.effect_of(case, found, repaired)
    if effect is None or not effect.explains:
        return
    theirs = found.candidate.ensemble
    wrong = theirs.leaf_output != repaired.leaf_output
    trees = len(np.unique(theirs.tree[theirs.leaf_node[wrong]]))
    yield _aggregated(
        f"trees ({_site(found)})",
        f"{trees} of {theirs.trees} trees are added to another output than in the reference; with each added to its "
        f"own {_agree(effect)}",
        "Export one model an output, or without parallel trees: the converter gives trees to the wrong outputs",
        effect,
    )


def _order(case: Case, found: Survey) -> Iterator[Explained]:
    """The outputs of all leaves in another order: that of the base score or of the labels may be right."""
    order = found.leafage.order
    if not order:
        return
    effect = tree_survey.effect_of(case, found, tree_survey.reordered(found.candidate.ensemble, order))
    if effect is None or not effect.explains:
        return
    assert found.candidate.graph is not None
    classifies = found.candidate.graph.sites[0].operator == "TreeEnsembleClassifier"
    listed = ", ".join(map(str, order))
    outputs = ", ".join(dict.fromkeys(pair.spec.name for pair in case.failing_pairs()))
    yield Explained(
        "label-order" if classifies else "output-mapping",
        f"{outputs} ({'class_ids' if classifies else 'target_ids'} of {_site(found)} in the order {listed})",
        f"the leaves of the candidate add to its outputs what the reference adds to {listed}; in the reference's order "
        f"{_agree(effect)}",
        "Export again with the classes in the order of the model",
        covered=effect.covered,
        simplicity=2,
    )


def _measure(case: Case, found: Survey) -> Iterator[Explained]:
    """All leaves too large or too small by one factor, or their sum divided by the wrong number."""
    ours, leafage = found.reference.ensemble, found.leafage
    if not leafage.in_place or leafage.share > FEW:
        return
    for factor, constants, story in _ways(case, found):
        proto = _rescaled(case, found, factor, constants)
        effect = None if proto is None else tree_survey.effect_of_graph(case, proto)
        if effect is not None and effect.explains:
            yield _aggregated(
                f"trees ({_site(found)})",
                f"the reference has {ours.trees} trees, and in the candidate {story}; with that put right in the graph "
                f"{_agree(effect)}",
                "Export again; apply the learning rate, or one over the number of trees, once",
                effect,
            )
            return


def _ways(case: Case, found: Survey) -> Iterator[tuple[float, dict[str, float], str]]:
    """A factor for the leaves, constants to set, and what would then have been wrong."""
    assert found.candidate.graph is not None
    ours, scale = found.reference.ensemble, found.leafage.scale
    count = ours.trees
    if scale > 0 and abs(scale - 1) > 1e-4:
        known = {count: "they are added up instead of averaged", 1 / count: "they are averaged instead of added up"}
        story = next((told for value, told in known.items() if math.isclose(scale, value, rel_tol=1e-3)), "")
        yield 1 / scale, {}, story or f"every leaf holds {scale:.6g} times its value"
    if not ours.average or abs(scale - 1) > 1e-4:
        return
    yield 1 / count, {}, "they are added up instead of averaged"
    divided = tree_edits.divisors(case.graph("candidate"), found.candidate.graph.sites[0].node)
    if divided:
        by = ", ".join(f"{value:g}" for value in divided.values())
        yield 1.0, dict.fromkeys(divided, float(count)), f"their sum is divided by {by}"
        yield 1 / count, dict.fromkeys(divided, 1.0), f"they are added up, and divided by {by} after the link"


def _rescaled(case: Case, found: Survey, factor: float, constants: dict[str, float]) -> Any:
    """The graph with its leaves multiplied and some of its constants set; None if it cannot be written."""
    assert found.candidate.graph is not None
    graph = case.graph("candidate")
    try:
        proto = written(graph, found.candidate.graph, tree_survey.scaled(found.candidate.ensemble, factor))
    except UnwritableError:
        return None
    return tree_edits.with_constants(proto, constants) if constants else proto


def _base(case: Case, found: Survey) -> Iterator[Explained]:
    """What is added to the trees, missing or different."""
    import numpy as np

    ours, theirs, held = found.reference.ensemble, found.candidate.ensemble, found.candidate.graph
    assert held is not None
    if len(held.sites) != 1 or not len(ours.base) or not found.leafage.in_place or not np.isfinite(ours.base).all():
        return
    wanted = ours.base @ found.leafage.outputs * found.leafage.scale
    present = theirs.base if len(theirs.base) else np.zeros(len(wanted))
    if present.shape == wanted.shape and np.allclose(present, wanted, rtol=1e-5, atol=1e-6):
        return
    effect = _with_base(case, found, wanted)
    if effect is None or not effect.explains:
        return
    missing = not np.any(present)
    there = "nothing" if missing else ", ".join(f"{value:.6g}" for value in present[:6])
    yield Explained(
        "model-part-dropped" if missing else "weight-corruption",
        f"base score (base_values of {held.sites[0].name})",
        f"the reference adds {', '.join(f'{value:.6g}' for value in wanted[:6])} to its trees and the candidate "
        f"{there}; with the reference's in the graph {_agree(effect)}",
        "Export again with the base score (init, bias), or set base_values of the node",
        covered=effect.covered,
        simplicity=1,
    )


def _with_base(case: Case, found: Survey, base: Array) -> Effect | None:
    """The graph with this base score; where the operator has no such attribute, with it in the leaves of one tree."""
    import numpy as np

    held, theirs = found.candidate.graph, found.candidate.ensemble
    assert held is not None
    if held.sites[0].operator != "TreeEnsemble":
        proto = with_attribute(case.graph("candidate"), held.sites[0].node, "base_values", base)
        return tree_survey.effect_of_graph(case, proto)
    first = theirs.tree[theirs.leaf_node] == 0
    raised = np.where(first, theirs.leaf_value + base[theirs.leaf_output], theirs.leaf_value)
    return tree_survey.effect_of(case, found, replace(theirs, leaf_value=raised))


def _linear(case: Case, found: Survey) -> Iterator[Explained]:
    """Leaves that are linear models in the reference and constants in the candidate."""
    count = len(found.reference.ensemble.linear)
    if not count:
        return
    plain = composed.without_linear_leaves(case.native("reference"))
    effect = None if plain is None else Trial.whole(case).run(Change("reference", target=plain))
    if effect is None or not effect.explains:
        return
    yield Explained(
        "model-part-dropped",
        "linear leaves",
        f"{count} leaves of the reference are linear models, and the candidate's hold their constants only; without "
        f"the linear parts the reference agrees with it on {int(effect.covered.sum())} of "
        f"{int(effect.failing.sum())} failing rows",
        "Train without linear_tree, or serve the model with LightGBM",
        covered=effect.covered,
        simplicity=1,
    )


def _aggregated(culprit: str, evidence: str, remedy: str, effect: Effect) -> Explained:
    return Explained("aggregation", culprit, evidence, remedy, covered=effect.covered, simplicity=1)


def _site(found: Survey) -> str:
    assert found.candidate.graph is not None
    return found.candidate.graph.sites[0].name


def _agree(effect: Effect) -> str:
    return f"{int(effect.covered.sum())} of {int(effect.failing.sum())} failing rows agree"


EXTENSION = TreeSums()
