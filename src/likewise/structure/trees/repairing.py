"""The candidate's trees with something of the reference's put in, and what its graph then answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from likewise.cases import Case, Effect
from likewise.contracts.data import Array
from likewise.structure.trees.ensemble import Ensemble, Gap
from likewise.structure.trees.survey import Survey, expressed
from likewise.structure.trees.writing import UnwritableError, with_input, written


def effect_of(case: Case, survey: Survey, ensemble: Ensemble) -> Effect | None:
    """What is left of the difference with these trees in the candidate's graph; None if it does not run."""
    assert survey.candidate.graph is not None
    try:
        proto = written(case.graph("candidate"), survey.candidate.graph, ensemble)
    except UnwritableError:
        return None
    return effect_of_graph(case, proto)


def effect_of_input(case: Case, survey: Survey, rows: Array) -> Effect | None:
    """What is left of the difference when the candidate's trees are given these values."""
    assert survey.candidate.graph is not None
    return effect_of_graph(case, with_input(case.graph("candidate"), survey.candidate.graph, rows))


def effect_of_graph(case: Case, proto: Any) -> Effect | None:
    opened = case.reopened("candidate", target=proto)
    answered = None if opened is None else case.ask(opened)
    return None if answered is None else case.effect(candidate=answered)


def with_splits(survey: Survey, pairs: Array) -> Ensemble:
    """The candidate's trees, asking what the reference asks in these pairs."""
    import numpy as np

    ours, theirs = survey.reference.ensemble, survey.candidate.ensemble
    node, other = survey.alignment.reference[pairs], survey.alignment.candidate[pairs]
    column, threshold, strict = theirs.column.copy(), theirs.threshold.copy(), theirs.strict.copy()
    gap, group = theirs.gap.copy(), theirs.group.copy()
    column[other] = ours.column[node]
    threshold[other], strict[other] = expressed(ours, node, theirs.dtype)
    gap[other] = np.where(ours.gap[node] == Gap.LIKE_ZERO, Gap.LIKE_ZERO, ours.gap[node])
    group[other] = np.where(ours.group[node] >= 0, ours.group[node] + len(theirs.groups), -1)
    return replace(
        theirs,
        column=column,
        threshold=threshold,
        strict=strict,
        gap=gap,
        group=group,
        groups=(*theirs.groups, *ours.groups),
    )


def with_gaps(survey: Survey, pairs: Array) -> Ensemble:
    """The candidate's trees, sending missing values where the reference does in these pairs."""
    theirs = survey.candidate.ensemble
    gap = theirs.gap.copy()
    gap[survey.alignment.candidate[pairs]] = survey.reference.ensemble.gap[survey.alignment.reference[pairs]]
    return replace(theirs, gap=gap)


def with_leaves(survey: Survey, pairs: Array, *, scale: float | None = None) -> Ensemble:
    """The candidate's trees with the reference's values in these leaves."""
    import numpy as np

    theirs, leafage = survey.candidate.ensemble, survey.leafage
    factor = leafage.scale if scale is None else scale
    nodes = survey.alignment.candidate[pairs]
    wanted = np.zeros((len(theirs.feature), theirs.outputs))
    values = survey.reference.ensemble.values()[survey.alignment.reference[pairs]] @ leafage.outputs * factor
    wanted[nodes] = values
    kept = ~np.isin(theirs.leaf_node, nodes)
    output = np.flatnonzero(_outputs_used(theirs))
    node = np.repeat(np.unique(nodes), len(output))
    column = np.tile(output, len(np.unique(nodes)))
    given = wanted[node, column]
    # A class that a leaf had nothing for stays without an entry: its presence alone can change the meaning.
    stays = (given != 0) | _had_entry(theirs, node, column)
    return replace(
        theirs,
        leaf_node=np.concatenate([theirs.leaf_node[kept], node[stays]]),
        leaf_output=np.concatenate([theirs.leaf_output[kept], column[stays]]),
        leaf_value=np.concatenate([theirs.leaf_value[kept], given[stays]]),
    )


def with_outputs(survey: Survey) -> Ensemble:
    """The candidate's trees, each adding to the output that the reference's does."""
    import numpy as np

    ours, theirs, pairs = survey.reference.ensemble, survey.candidate.ensemble, survey.leafage.pairs
    meant = np.full(len(theirs.feature), -1)
    meant[survey.alignment.candidate[pairs]] = np.abs(ours.values()[survey.alignment.reference[pairs]]).argmax(axis=1)
    wanted = meant[theirs.leaf_node]
    return replace(theirs, leaf_output=np.where(wanted >= 0, wanted, theirs.leaf_output))


def reordered(ensemble: Ensemble, order: tuple[int, ...]) -> Ensemble:
    """The trees with the values of output k added to output `order[k]`."""
    import numpy as np

    return replace(ensemble, leaf_output=np.array(order)[ensemble.leaf_output])


def scaled(ensemble: Ensemble, factor: float) -> Ensemble:
    return replace(ensemble, leaf_value=ensemble.leaf_value * factor)


def with_trees(survey: Survey, *, scale: float | None = None) -> Ensemble | None:
    """The reference's trees as the candidate would hold them; None where its leaves are of another kind."""
    import numpy as np

    ours, theirs, leafage = survey.reference.ensemble, survey.candidate.ensemble, survey.leafage
    if not leafage.told:
        return None
    factor = leafage.scale if scale is None else scale
    matched = survey.alignment.matched
    place = np.where(matched >= 0, theirs.place[np.maximum(matched, 0)], theirs.place[-1])
    weights = leafage.outputs * factor
    node, output = np.nonzero(np.abs(weights[ours.leaf_output]) > 0)
    threshold, strict = expressed(ours, np.arange(len(ours.feature)), theirs.dtype)
    return replace(
        ours,
        threshold=threshold,
        strict=strict,
        node_numbers=np.full(len(ours.feature), len(ours.feature)),
        place=place,
        leaf_node=ours.leaf_node[node],
        leaf_output=output,
        leaf_value=ours.leaf_value[node] * weights[ours.leaf_output[node], output],
        outputs=theirs.outputs,
        dtype=theirs.dtype,
    )


def without_trees(survey: Survey, trees: Array) -> Ensemble:
    """The candidate's trees but for some of them."""
    import numpy as np

    theirs = survey.candidate.ensemble
    kept = np.setdiff1d(np.arange(theirs.trees), trees)
    return replace(theirs, roots=theirs.roots[kept], tree_numbers=theirs.tree_numbers[kept], place=theirs.place[kept])


def _outputs_used(ensemble: Ensemble) -> Array:
    import numpy as np

    return np.bincount(ensemble.leaf_output, minlength=ensemble.outputs) > 0


def _had_entry(ensemble: Ensemble, node: Array, output: Array) -> Array:
    import numpy as np

    width = ensemble.outputs
    return np.isin(node * width + output, ensemble.leaf_node * width + ensemble.leaf_output)
