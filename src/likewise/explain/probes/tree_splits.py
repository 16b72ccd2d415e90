"""Splits of the candidate's trees that ask something else than the reference's, or the same of a rounded value."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import HEALED, Claim, shown
from likewise.explain.trees import Survey, most, nudged, plausible, survey
from likewise.models.trees.differences import with_gaps, with_splits, with_trees
from likewise.models.trees.ensemble import Ensemble

COINCIDENCE = 1e-4
"""Rounding that takes more than this part of a column's spread is no coincidence at a threshold: digits are lost."""

SHOWN = 6


class TreeSplits:
    """Put one kind of difference right in a copy of the graph, all else as it was, and run it."""

    causes = (
        "categorical-split",
        "missing-value-handling",
        "operator-attribute",
        "feature-order",
        "weight-corruption",
        "float32-threshold",
        "float32-input-cast",
    )
    needs_answers = True
    slow = False

    def plausible(self, case: Case) -> bool:
        return plausible(case)

    def test(self, case: Case) -> Iterator[Explained]:
        found = survey(case)
        if found is not None and not found.differ.retrained:
            for look in (_categories, _codes, _gaps, _modes, _order, _others, _rounded):
                yield from shown(case, look(found))


def _categories(found: Survey) -> Iterator[Claim]:
    differ = found.differ
    wrong = np.flatnonzero(differ.categories)
    if not len(wrong):
        return
    # An exporter that does not know categories may number columns and route missing values wrongly with them.
    repaired = np.flatnonzero(differ.categories | differ.column | differ.gap)
    pair, rows = found.worst(wrong)
    node, other = found.node(pair)
    asked = _members(differ.ours, node) or "a threshold"
    instead = _members(differ.theirs, other) or f"at most {differ.theirs.threshold[other]:.6g}"
    yield Claim(
        "categorical-split",
        found.place(pair),
        f"where the reference asks for {asked}, the candidate asks for {instead}; so do {_count(len(wrong), 'split')} "
        f"on categories{_rows(rows)}; with the reference's sets in the graph {HEALED} agree",
        "Encode the categories before the model (OneHotEncoder, OrdinalEncoder) and train on the codes, or export "
        "with a converter that writes category splits",
        found.written(with_splits(differ, repaired)),
    )


def _codes(found: Survey) -> Iterator[Claim]:
    """The sets are the same, but a category reaches them as another number: its value for its code, a fraction."""
    ours, theirs, differ = found.reference, found.candidate, found.differ
    grouped = differ.split & (differ.ours.group[differ.alignment.reference] >= 0) & ~differ.categories
    asked = np.flatnonzero(grouped & ~differ.column)
    if not ours.direct or not len(asked) or not grouped[found.pairs].any():
        return
    assert ours.rows is not None
    assert theirs.rows is not None
    pair, rows = found.worst(asked)
    if not rows:
        return
    given = theirs.rows.copy()
    for node, other in map(found.node, asked.tolist()):
        code = ours.rows[:, differ.ours.feature[node]]
        given[:, differ.theirs.feature[other]] = np.trunc(code) if differ.ours.whole else code
    row = int(found.rows[found.pairs == pair][0])
    node, other = found.node(pair)
    name = found.column(pair)
    yield Claim(
        "categorical-split",
        found.place(pair),
        f"in row {found.case.required.batch.rows.name(row)} the category of {name} is "
        f"{ours.rows[row, differ.ours.feature[node]]:g} to the reference's trees and "
        f"{theirs.rows[row, differ.theirs.feature[other]]:g} to the candidate's, which ask for the same numbers"
        f"{_rows(rows)}; given the reference's codes {HEALED} agree",
        f"Encode {name} before the model and train on the codes: an exported tree knows no list of categories",
        found.given(given),
    )


def _gaps(found: Survey) -> Iterator[Claim]:
    differ = found.differ
    wrong = np.flatnonzero(differ.gap & ~differ.categories)
    if not found.concerns(wrong):
        return
    pair, rows = found.worst(wrong)
    met = np.intersect1d(found.pairs, wrong) if found.followed else wrong
    columns = np.unique(differ.ours.column[differ.alignment.reference[met]])
    others = [name for name in map(found.reference.name, columns.tolist()) if name != found.column(pair)]
    also = (f"also {', '.join(others[: SHOWN - 1])}",) if others else ()
    yield Claim(
        "missing-value-handling",
        found.place(pair, *also),
        f"missing values of {found.column(pair)} go the other way than in the reference at {found.tree(pair)}"
        f"{_rows(rows)}; so they do in {_count(len(wrong), 'split')} of {int(differ.split.sum())}; with these flags "
        f"(nodes_missing_value_tracks_true) put right in the graph {HEALED} agree",
        "Fill missing values before the model (SimpleImputer in the pipeline), or set the flags in the exported graph "
        "from the model's own trees",
        found.written(with_gaps(differ, wrong)),
    )


def _modes(found: Survey) -> Iterator[Claim]:
    differ = found.differ
    wrong = np.flatnonzero(differ.mode)
    if not found.concerns(wrong):
        return
    pair, rows = found.worst(wrong)
    name, site = found.column(pair), found.site(pair).name
    meant, has = ("<=", "<") if differ.theirs.strict[found.node(pair)[1]] else ("<", "<=")
    yield Claim(
        "operator-attribute",
        Place(site, (f"nodes_modes at {found.place(pair)}",), nodes=found.nodes(pair), columns=(name,)),
        f"the reference asks whether {name} {meant} the threshold, the candidate {has}, in "
        f"{_count(len(wrong), 'split')} of {int(differ.split.sum())}{_rows(rows)}; with the comparison put right in "
        f"the graph {HEALED} agree",
        f"Set nodes_modes of {site} to the comparison of the model that was exported",
        found.written(with_splits(differ, wrong)),
    )


def _order(found: Survey) -> Iterator[Claim]:
    differ, order = found.differ, found.differ.order
    if not order or differ.categories.any():
        return
    name = found.reference.name
    moved = sorted(column for column, other in order.items() if column != other)
    columns = tuple(name(column) for column in moved)
    yield Claim(
        "feature-order",
        Place(", ".join(columns), columns=columns, nodes=found.nodes()),
        "the candidate's trees ask for "
        + ", ".join(f"{name(order[column])} instead of {name(column)}" for column in moved[:SHOWN])
        + f"; with the reference's columns in the graph {HEALED} agree",
        "Export again with the columns in the order of the training",
        found.written(with_splits(differ, np.flatnonzero(differ.column))),
    )


def _others(found: Survey) -> Iterator[Claim]:
    """Few splits with another threshold, another column or another shape: the graph was damaged, not retrained."""
    differ = found.differ
    wrong = np.flatnonzero((differ.moved | differ.torn | differ.column) & ~differ.kind)
    if differ.order or not (differ.torn.any() or found.concerns(wrong)):
        return
    pair, rows = found.worst(wrong)
    node, other = found.node(pair)
    if differ.torn[pair]:
        what = "is a leaf in one of both and a split in the other"
    elif differ.column[pair]:
        what = f"asks for {found.reference.name(int(differ.theirs.column[other]))} in the candidate"
    else:
        mine, yours = differ.ours.threshold[node], differ.theirs.threshold[other]
        what = f"compares with {yours:.9g} in the candidate and {mine:.9g} in the reference"
    place = found.place(pair)
    yield Claim(
        "weight-corruption",
        place,
        f"{place} {what}{_rows(rows)}; {_count(len(wrong), 'split')} of {differ.inner} differ; with the reference's in "
        f"the graph {HEALED} agree",
        "Export the model again; do not edit or patch the file",
        found.written(with_trees(differ) if differ.torn.any() else with_splits(differ, wrong)),
    )


def _rounded(found: Survey) -> Iterator[Claim]:
    """Values that pass a threshold by rounding alone, moved to the side on which the reference has them."""
    differ = found.differ
    grouped = differ.ours.group[differ.alignment.reference] >= 0
    other = differ.column | differ.categories | differ.moved | differ.torn | differ.mode | grouped
    alike = differ.split & ~other
    changed = nudged(found, np.flatnonzero(alike)) if alike[found.pairs].any() else None
    if changed is None:
        return
    given = differ.theirs.feature[differ.alignment.candidate[found.pairs]]
    met = alike[found.pairs] & changed.moved[found.rows, given]
    if not met.any():
        return
    column, _ = most(given[met])
    met &= given == column
    rows, pairs = found.rows[met], found.pairs[met]
    pair, _ = most(pairs)
    name, reached = found.column(pair), _reached(found, pair, int(rows[pairs == pair][0]))
    count = len(np.unique(rows))
    takes = "1 failing row takes" if count == 1 else f"{count} failing rows take"
    if _digits_lost(found.case, name, changed.lost.get(column, 0.0)):
        yield Claim(
            "float32-input-cast",
            Place(name, columns=(name,)),
            f"{reached}: {differ.theirs.dtype} cannot hold its digits; {takes} another side of a threshold; on the "
            f"right side of each, {HEALED} agree",
            f"Subtract a constant from {name} before the model is fitted, or export with double inputs "
            "(likewise export --double)",
            found.given(changed.rows),
            simplicity=2,
        )
        return
    node, there = found.node(pair)
    trees = len(np.unique(differ.theirs.tree[differ.alignment.candidate[pairs]]))
    yield Claim(
        "float32-threshold",
        found.place(pair),
        f"{reached}, where the threshold is {differ.theirs.threshold[there]:.17g} and "
        f"{differ.ours.threshold[node]:.17g}; {takes} another side of a threshold of {name}"
        f"{f' in {trees} trees' if trees > 1 else ''}; moved by the last digit to the right side, {HEALED} agree",
        "Export with double inputs: likewise export --double"
        if found.case.framework("reference") == "sklearn"
        else f"Round {name} to float32 before training and before serving: data[{name!r}].astype('float32')",
        found.given(changed.rows),
    )


def _reached(found: Survey, pair: int, row: int) -> str:
    ours, theirs = found.reference, found.candidate
    assert ours.rows is not None
    assert theirs.rows is not None
    node, other = found.node(pair)
    seen = float(ours.rows[row, ours.ensemble.feature[node]])
    given = float(theirs.rows[row, theirs.ensemble.feature[other]])
    return (
        f"in row {found.case.required.batch.rows.name(row)} {found.column(pair)} reaches {found.tree(pair)} as "
        f"{given:.17g} in the candidate and as {seen:.17g} in the reference"
    )


def _digits_lost(case: Case, name: str, lost: float) -> bool:
    """Does the cast of the input lose so much that any threshold would be hit, or whole numbers?"""
    cast = any(entry.column == name and entry.changed for entry in case.comparison.casts if entry.side == "candidate")
    data = case.required.batch.inputs.get(name)
    whole = data is not None and data.dtype.kind in "iu"
    return cast and (whole or lost > COINCIDENCE)


def _members(trees: Ensemble, node: int) -> str:
    """The categories that a split asks for; empty where it asks for none."""
    if trees.group[node] < 0:
        return ""
    values: Array = trees.groups[trees.group[node]]
    shown_first = ", ".join(f"{value:g}" for value in values[:SHOWN].tolist())
    return f"one of {{{shown_first}{', …' if len(values) > SHOWN else ''}}}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _rows(rows: int) -> str:
    return f", where {_count(rows, 'failing row')} go{'es' if rows == 1 else ''} the other way" if rows else ""


EXTENSION = TreeSplits()
