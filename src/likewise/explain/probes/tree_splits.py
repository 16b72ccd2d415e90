"""The candidate's trees ask something else than the reference's in some of their splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from likewise.contracts.data import Array
from likewise.explain import tree_survey
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Effect
from likewise.explain.tree_survey import Survey, plausible, survey


class TreeSplits:
    """Put one kind of difference right in a copy of the graph, all else as it was, and run it."""

    causes = (
        "categorical-split",
        "missing-value-handling",
        "operator-attribute",
        "feature-order",
        "weight-corruption",
    )
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return plausible(case)

    def test(self, case: Case) -> Sequence[Explained]:
        found = survey(case)
        if found is None or found.retrained:
            return []
        return [
            entry for tried in (_categories, _codes, _gaps, _modes, _order, _others) for entry in tried(case, found)
        ]


def _categories(case: Case, found: Survey) -> Iterator[Explained]:
    import numpy as np

    wrong = np.flatnonzero(found.kind | found.members)
    if not len(wrong):
        return
    # An exporter that does not know categories may number columns and route missing values wrongly with them.
    repaired = np.flatnonzero(found.kind | found.members | found.column | found.gap)
    effect = tree_survey.effect_of(case, found, tree_survey.with_splits(found, repaired))
    if effect is None or not effect.explains:
        return
    pair, rows = found.worst(case, wrong)
    node = int(found.alignment.reference[pair])
    groups = found.reference.ensemble
    asked = _members(groups.groups[groups.group[node]]) if groups.group[node] >= 0 else "a threshold"
    other = int(found.alignment.candidate[pair])
    theirs = found.candidate.ensemble
    instead = (
        _members(theirs.groups[theirs.group[other]])
        if theirs.group[other] >= 0
        else f"at most {theirs.threshold[other]:.6g}"
    )
    yield Explained(
        "categorical-split",
        found.name(pair),
        f"where the reference asks for {asked}, the candidate asks for {instead}; so do {_count(len(wrong), 'split')} "
        f"on categories{_rows(rows)}; with the reference's sets in the graph {_agree(effect)}",
        "Encode the categories before the model (OneHotEncoder, OrdinalEncoder) and train on the codes, or export "
        "with a converter that writes category splits",
        covered=effect.covered,
        simplicity=1,
    )


def _codes(case: Case, found: Survey) -> Iterator[Explained]:
    """The sets are the same, but a category reaches them as another number: its value for its code, a fraction."""
    import numpy as np

    ours, theirs = found.reference, found.candidate
    grouped = found.split & (ours.ensemble.group[found.alignment.reference] >= 0) & ~found.kind & ~found.members
    asked = np.flatnonzero(grouped & ~found.column)
    parted = found.failing_partings(case) if ours.direct and len(asked) else None
    if parted is None or ours.rows is None or theirs.rows is None or not grouped[parted[1]].any():
        return
    pair, rows = found.worst(case, asked)
    given = theirs.rows.copy()
    for node, other in zip(found.alignment.reference[asked], found.alignment.candidate[asked], strict=True):
        code = ours.rows[:, ours.ensemble.feature[node]]
        given[:, theirs.ensemble.feature[other]] = np.trunc(code) if ours.ensemble.whole else code
    effect = tree_survey.effect_of_input(case, found, given)
    if effect is None or not effect.explains:
        return
    row = int(parted[0][parted[1] == pair][0])
    node, other = int(found.alignment.reference[pair]), int(found.alignment.candidate[pair])
    name = ours.name(_columns(found, pair))
    yield Explained(
        "categorical-split",
        found.name(pair),
        f"in row {case.required.batch.rows.name(row)} the category of {name} is "
        f"{ours.rows[row, ours.ensemble.feature[node]]:g} to the reference's trees and "
        f"{theirs.rows[row, theirs.ensemble.feature[other]]:g} to the candidate's, which ask for the same numbers"
        f"{_rows(rows)}; given the reference's codes {_agree(effect)}",
        f"Encode {name} before the model and train on the codes: an exported tree knows no list of categories",
        covered=effect.covered,
        simplicity=1,
    )


def _gaps(case: Case, found: Survey) -> Iterator[Explained]:
    import numpy as np

    wrong = np.flatnonzero(found.gap & ~found.kind & ~found.members)
    if not found.concerns(case, wrong):
        return
    effect = tree_survey.effect_of(case, found, tree_survey.with_gaps(found, wrong))
    if effect is None or not effect.explains:
        return
    pair, rows = found.worst(case, wrong)
    yield Explained(
        "missing-value-handling",
        _named(case, found, wrong, pair),
        f"missing values of {found.reference.name(int(_columns(found, pair)))} go the other way than in the reference "
        f"at {found.candidate.ensemble.name(int(found.alignment.candidate[pair]))}{_rows(rows)}; so they do in "
        f"{_count(len(wrong), 'split')} of {int(found.split.sum())}; with these flags "
        f"(nodes_missing_value_tracks_true) put right in the graph {_agree(effect)}",
        "Fill missing values before the model (SimpleImputer in the pipeline), or set the flags in the exported graph "
        "from the model's own trees",
        covered=effect.covered,
        simplicity=1,
    )


def _modes(case: Case, found: Survey) -> Iterator[Explained]:
    import numpy as np

    wrong = np.flatnonzero(found.mode)
    if not found.concerns(case, wrong):
        return
    effect = tree_survey.effect_of(case, found, tree_survey.with_splits(found, wrong))
    if effect is None or not effect.explains:
        return
    pair, rows = found.worst(case, wrong)
    theirs = found.candidate
    assert theirs.graph is not None
    other = int(found.alignment.candidate[pair])
    site = theirs.graph.sites[int(theirs.ensemble.place[theirs.ensemble.tree[other]])]
    meant, has = ("<=", "<") if theirs.ensemble.strict[other] else ("<", "<=")
    yield Explained(
        "operator-attribute",
        f"{site.name} (nodes_modes at {found.name(pair)})",
        f"the reference asks whether {found.reference.name(int(_columns(found, pair)))} {meant} the threshold, the "
        f"candidate {has}, in {_count(len(wrong), 'split')} of {int(found.split.sum())}{_rows(rows)}; with the "
        f"comparison put right in the graph {_agree(effect)}",
        f"Set nodes_modes of {site.name} to the comparison of the model that was exported",
        covered=effect.covered,
        simplicity=1,
    )


def _order(case: Case, found: Survey) -> Iterator[Explained]:
    import numpy as np

    order = found.order
    if not order or (found.kind | found.members).any():
        return
    effect = tree_survey.effect_of(case, found, tree_survey.with_splits(found, np.flatnonzero(found.column)))
    if effect is None or not effect.explains:
        return
    name = found.reference.name
    moved = sorted(column for column, other in order.items() if column != other)
    yield Explained(
        "feature-order",
        ", ".join(name(column) for column in moved),
        "the candidate's trees ask for "
        + ", ".join(f"{name(order[column])} instead of {name(column)}" for column in moved[:6])
        + f"; with the reference's columns in the graph {_agree(effect)}",
        "Export again with the columns in the order of the training",
        covered=effect.covered,
        simplicity=1,
    )


def _others(case: Case, found: Survey) -> Iterator[Explained]:
    """Few splits with another threshold, another column or another shape: the graph was damaged, not retrained."""
    import numpy as np

    wrong = np.flatnonzero((found.moved | found.torn | found.column) & ~found.kind)
    if found.order or not (found.torn.any() or found.concerns(case, wrong)):
        return
    if found.torn.any():
        whole = tree_survey.with_trees(found)
        effect = None if whole is None else tree_survey.effect_of(case, found, whole)
    else:
        effect = tree_survey.effect_of(case, found, tree_survey.with_splits(found, wrong))
    if effect is None or not effect.explains:
        return
    pair, rows = found.worst(case, wrong)
    node, other = int(found.alignment.reference[pair]), int(found.alignment.candidate[pair])
    ours, theirs = found.reference.ensemble, found.candidate.ensemble
    if found.torn[pair]:
        what = "is a leaf in one of both and a split in the other"
    elif found.column[pair]:
        what = f"asks for {found.reference.name(int(theirs.column[other]))} in the candidate"
    else:
        what = f"compares with {theirs.threshold[other]:.9g} in the candidate and {ours.threshold[node]:.9g} in the "
        what += "reference"
    yield Explained(
        "weight-corruption",
        found.name(pair),
        f"{found.name(pair)} {what}{_rows(rows)}; {_count(len(wrong), 'split')} of "
        f"{int((found.split | found.torn).sum())} differ; with the reference's in the graph {_agree(effect)}",
        "Export the model again; do not edit or patch the file",
        covered=effect.covered,
        simplicity=1,
    )


def _columns(found: Survey, pair: int) -> int:
    return int(found.reference.ensemble.column[found.alignment.reference[pair]])


def _named(case: Case, found: Survey, pairs: Array, worst: int) -> str:
    """The column of the worst split and its place; with a few others at which failing rows part."""
    import numpy as np

    parted = found.failing_partings(case)
    met = pairs if parted is None else np.intersect1d(parted[1], pairs)
    columns = found.reference.ensemble.column[found.alignment.reference[met]]
    first = _columns(found, worst)
    others = [found.reference.name(int(column)) for column in np.unique(columns) if column != first]
    return found.name(worst) + (f", {', '.join(others[:5])}" if others else "")


def _members(values: Array) -> str:
    shown = ", ".join(f"{value:g}" for value in values[:6].tolist())
    return f"one of {{{shown}{', …' if len(values) > 6 else ''}}}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _rows(rows: int) -> str:
    return f", where {_count(rows, 'failing row')} go{'es' if rows == 1 else ''} the other way" if rows else ""


def _agree(effect: Effect) -> str:
    return f"{int(effect.covered.sum())} of {int(effect.failing.sum())} failing rows agree"


EXTENSION = TreeSplits()
