"""Trees whose splits or values differ, that are more or fewer, added up another way, or from another training.

Each is put right in a copy of the candidate's graph, all else as it was; what that heals is the proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.contracts.words import told_apart
from likewise.explain.case import DOUBLE, Case, Explained, Remedy, probe
from likewise.explain.experiment import HEALED, Change, Claim, shown
from likewise.explain.trees import Survey, most, nudged, plausible, survey
from likewise.models.onnx.tree_edits import divisors, with_attribute, with_constants
from likewise.models.trees.differences import (
    with_gaps,
    with_leaves,
    with_outputs,
    with_splits,
    with_trees,
    without_trees,
)
from likewise.models.trees.ensemble import Ensemble
from likewise.models.trees.read import without_linear_leaves

COINCIDENCE = 1e-4
"""Rounding that takes more than this part of a column's spread is no coincidence at a threshold: digits are lost."""

SHOWN = 6

FEW_LEAVES = 0.5
"""Up to this share of the leaves, other values are damage; beyond it, another training."""

SAME_FACTOR = 1e-3
"""How close, relatively, a factor between the leaves of both has to be to the number of trees to be it."""

AGAIN = Remedy(again="Export the model again; do not edit or patch the file")


@probe(
    "categorical-split",
    "missing-value-handling",
    "operator-attribute",
    "feature-order",
    "weight-corruption",
    "float32-threshold",
    "float32-input-cast",
    when=plausible,
)
def tree_splits(case: Case) -> Iterator[Explained]:
    """Put one kind of difference right in a copy of the graph, all else as it was, and run it."""
    found = survey(case)
    if found is not None and not found.differ.retrained:
        for look in (_categories, _codes, _gaps, _modes, _column_order, _others, _rounded):
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
        codes = ours.rows[:, differ.ours.feature[node]]
        given[:, differ.theirs.feature[other]] = np.trunc(codes) if differ.ours.whole else codes
    row = int(found.rows[found.pairs == pair][0])
    name, (code, instead) = found.column(pair), found.met(pair, row)
    code = np.trunc(code) if differ.ours.whole else code
    yield Claim(
        "categorical-split",
        found.place(pair),
        f"in row {found.case.required.batch.rows.name(row)} the category of {name} is {code:g} to the reference's "
        f"trees and {instead:g} to the candidate's, which ask for the same numbers{_rows(rows)}; given the reference's "
        f"codes {HEALED} agree",
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


def _column_order(found: Survey) -> Iterator[Claim]:
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
        Remedy(again="Export again with the columns in the order of the training"),
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
        AGAIN,
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
    if not (met := alike[found.pairs] & changed.moved[found.rows, given]).any():
        return
    column, _ = most(given[met])
    met &= given == column
    rows, pairs = found.rows[met], found.pairs[met]
    pair, _ = most(pairs)
    name, row = found.column(pair), int(rows[pairs == pair][0])
    node, there = found.node(pair)
    ours, theirs = float(differ.ours.threshold[node]), float(differ.theirs.threshold[there])
    seen, instead, threshold, rounded = told_apart(*found.met(pair, row), ours, theirs)
    both = f" in the candidate and as {seen} in the reference" if seen != instead else ""
    reached = f"in row {found.case.required.batch.rows.name(row)} {name} reaches {found.tree(pair)} as {instead}{both}"
    count = len(np.unique(rows))
    takes = "1 failing row takes" if count == 1 else f"{count} failing rows take"
    casts = [entry for entry in found.case.comparison.casts if entry.side == "candidate" and entry.column == name]
    data = found.case.required.batch.inputs.get(name)
    whole = data is not None and data.dtype.kind in "iu"
    if any(entry.changed for entry in casts) and (whole or changed.lost.get(column, 0.0) > COINCIDENCE):
        yield Claim(
            "float32-input-cast",
            Place(name, columns=(name,)),
            f"{reached}: {differ.theirs.dtype} cannot hold its digits; {takes} another side of a threshold; on the "
            f"right side of each, {HEALED} agree",
            Remedy(f"Subtract a constant from {name} before the model is fitted", again=DOUBLE),
            found.given(changed.rows),
            simplicity=2,
            lasting=found.thresholds(np.flatnonzero(alike)),
        )
        return
    other_threshold = f", {rounded} in the candidate" if rounded != threshold else ""
    trees = len(np.unique(differ.theirs.tree[differ.alignment.candidate[pairs]]))
    yield Claim(
        "float32-threshold",
        found.place(pair),
        f"{reached}, where the threshold is {threshold}{other_threshold}; {takes} another side of a threshold of {name}"
        f"{f' in {trees} trees' if trees > 1 else ''}; moved by the last digit to the right side, {HEALED} agree",
        Remedy(
            f"Round {name} to float32 before training and before serving: data[{name!r}].astype('float32')",
            again=DOUBLE if found.case.framework("reference") == "sklearn" else "",
        ),
        found.given(changed.rows),
        lasting=found.thresholds(np.flatnonzero(alike)),
    )


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


@probe(
    "tree-count",
    "weight-corruption",
    "precision-reduction",
    "aggregation",
    "label-order",
    "output-mapping",
    "model-part-dropped",
    "stale-weights",
    when=plausible,
)
def tree_values(case: Case) -> Iterator[Explained]:
    """Change one thing about the trees in a copy of the graph, and run it."""
    found = survey(case)
    if found is None:
        return
    looks = () if found.differ.retrained else (_tree_count, _leaves, _outputs, _output_order, _measure, _base, _linear)
    for look in (*looks, _training):
        # Several ways to write one thing, of which the first that heals is told.
        yield from islice(shown(case, look(found)), 1)


def _tree_count(found: Survey) -> Iterator[Claim]:
    """Take the trees that are too many out of the graph, or put those that are missing in."""
    differ = found.differ
    if not (differ.missing_trees or len(differ.extra_trees)):
        return
    uses, has, stored = differ.ours.trees, differ.theirs.trees, differ.ours.stored
    if has < uses:
        name = f"{has} of {uses} trees"
        evidence = (
            f"the candidate has {has} of the reference's {uses} trees; with the other {uses - has} put into its graph "
            f"{HEALED} agree"
        )
        remedy = Remedy("Check the number of trees given to the converter", again="Export again with all trees")
    else:
        name = f"{uses} of {has} trees"
        stopped = f": training stopped early, and predict takes the best {uses} of {stored}" if stored >= has else ""
        evidence = (
            f"the candidate has {has} trees and the reference uses {uses}{stopped}; with the last {has - uses} taken "
            f"out of its graph {HEALED} agree"
        )
        remedy = Remedy(
            "Cut the model to the trees that predict uses before the export: booster[:best_iteration + 1] (XGBoost), "
            "booster.model_to_string(num_iteration=booster.best_iteration) (LightGBM)"
        )
    ways: list[Ensemble | None] = [] if differ.missing_trees else [without_trees(differ, differ.extra_trees)]
    # A forest divides by its own number of trees: the values of the leaves may have been adjusted, or not.
    ways += [with_trees(differ, scale=scale) for scale in dict.fromkeys((differ.leafage.scale, 1.0))]
    for way in ways:
        yield Claim("tree-count", Place(name, nodes=found.nodes()), evidence, remedy, found.written(way))


def _leaves(found: Survey) -> Iterator[Claim]:
    """Put the reference's values into the leaves."""
    differ, leafage = found.differ, found.differ.leafage
    wrong = leafage.pairs[leafage.differs]
    if not leafage.in_place or not len(wrong) or (leafage.share > FEW_LEAVES and not leafage.rounded):
        return
    changes = found.written(with_leaves(differ, wrong))
    if leafage.rounded:
        yield Claim(
            "precision-reduction",
            Place("leaf values", (found.site().name,), nodes=found.nodes()),
            f"the leaves hold the reference's values rounded to {leafage.rounded}; with the unrounded ones in the "
            f"graph {HEALED} agree",
            Remedy(again="Export the model again in float32"),
            changes,
        )
        return
    held, meant = (values[leafage.differs] for values in differ.leaf_values())
    apart = np.nan_to_num(np.abs(held - meant), nan=np.inf)
    worst = int(np.argmax(apart.max(axis=1)))
    output = int(np.argmax(apart[worst]))
    name = found.tree(int(wrong[worst]))
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    yield Claim(
        "weight-corruption",
        Place(f"{name}{more}", nodes=found.nodes(int(wrong[worst]))),
        f"{name} holds {held[worst, output]:.6g} where the reference has {meant[worst, output]:.6g}; {len(wrong)} of "
        f"{len(leafage.pairs)} leaves differ; with the reference's values in the graph {HEALED} agree",
        AGAIN,
        changes,
    )


def _outputs(found: Survey) -> Iterator[Claim]:
    """Trees that add to another output: another class, another target."""
    if not found.differ.leafage.misplaced:
        return
    repaired, theirs = with_outputs(found.differ), found.differ.theirs
    wrong = theirs.leaf_output != repaired.leaf_output
    count = len(np.unique(theirs.tree[theirs.leaf_node[wrong]]))
    yield _aggregated(
        found,
        f"{count} of {theirs.trees} trees are added to another output than in the reference; with each added to its "
        f"own {HEALED} agree",
        "Export one model per output, or without parallel trees: the converter gives trees to the wrong outputs",
        found.written(repaired),
    )


def _output_order(found: Survey) -> Iterator[Claim]:
    """The outputs of all leaves in another order: that of the base score or of the labels may be right."""
    order, theirs = found.differ.leafage.order, found.differ.theirs
    if not order:
        return
    classifies = found.site().operator == "TreeEnsembleClassifier"
    listed = ", ".join(map(str, order))
    outputs = tuple(dict.fromkeys(pair.spec.name for pair in found.case.failing_pairs()))
    detail = f"{'class_ids' if classifies else 'target_ids'} of {found.site().name} in the order {listed}"
    yield Claim(
        "label-order" if classifies else "output-mapping",
        Place(", ".join(outputs), (detail,), outputs=outputs, nodes=found.nodes()),
        f"the leaves of the candidate add to its outputs what the reference adds to {listed}; in the reference's order "
        f"{HEALED} agree",
        Remedy(again="Export again with the classes in the order of the model"),
        found.written(replace(theirs, leaf_output=np.array(order)[theirs.leaf_output])),
        simplicity=2,
    )


def _measure(found: Survey) -> Iterator[Claim]:
    """All leaves too large or too small by one factor, or their sum divided by the wrong number."""
    ours, leafage, theirs = found.differ.ours, found.differ.leafage, found.differ.theirs
    if not leafage.in_place or leafage.share > FEW_LEAVES:
        return
    count, scale = ours.trees, leafage.scale
    added, averaged = "they are added up instead of averaged", "they are averaged instead of added up"
    ways: list[tuple[float, dict[str, float], str]] = []
    if abs(scale - 1) > 1e-4:
        known = {count: added, 1 / count: averaged}
        story = next((told for value, told in known.items() if math.isclose(scale, value, rel_tol=SAME_FACTOR)), "")
        ways = [(1 / scale, {}, story or f"every leaf holds {scale:.6g} times its value")] if scale > 0 else []
    elif ours.average:
        ways = [(1 / count, {}, added)]
        if divided := divisors(found.case.graph(), found.site().node):
            by = ", ".join(f"{value:g}" for value in divided.values())
            ways.append((1.0, dict.fromkeys(divided, float(count)), f"their sum is divided by {by}"))
            told = f"they are added up, and divided by {by} after the link"
            ways.append((1 / count, dict.fromkeys(divided, 1.0), told))
    for factor, constants, story in ways:
        changes = found.written(replace(theirs, leaf_value=theirs.leaf_value * factor))
        yield _aggregated(
            found,
            f"the reference has {count} trees, and in the candidate {story}; with that put right in the graph "
            f"{HEALED} agree",
            Remedy("Apply the learning rate, or one over the number of trees, once", again="Export again"),
            tuple(replace(change, target=with_constants(change.target, constants)) for change in changes),
        )


def _base(found: Survey) -> Iterator[Claim]:
    """What is added to the trees, missing or different."""
    theirs, leafage = found.differ.theirs, found.differ.leafage
    wanted = _base_score(found, leafage.scale) if leafage.in_place else None
    if wanted is None:
        return
    present = theirs.base if len(theirs.base) else np.zeros(len(wanted))
    if present.shape == wanted.shape and np.allclose(present, wanted, rtol=1e-5, atol=1e-6):
        return
    there = ", ".join(f"{value:.6g}" for value in present[:6]) if np.any(present) else "nothing"
    yield Claim(
        "weight-corruption" if np.any(present) else "model-part-dropped",
        Place("base score", (f"base_values of {found.site().name}",), nodes=found.nodes()),
        f"the reference adds {', '.join(f'{value:.6g}' for value in wanted[:6])} to its trees and the candidate "
        f"{there}; with the reference's in the graph {HEALED} agree",
        Remedy("Set base_values of the node", again="Export again with the base score (init, bias)"),
        (Change(target=with_attribute(found.case.graph(), found.site().node, "base_values", wanted)),),
    )


def _linear(found: Survey) -> Iterator[Claim]:
    """Leaves that are linear models in the reference and constants in the candidate."""
    count = len(found.differ.ours.linear)
    plain = without_linear_leaves(found.case.native("reference")) if count else None
    if plain is None:
        return
    yield Claim(
        "model-part-dropped",
        Place("linear leaves", nodes=found.nodes()),
        f"{count} leaves of the reference are linear models, and the candidate's hold their constants only; without "
        f"the linear parts the reference agrees with it on {HEALED}",
        "Train without linear_tree, or serve the model with LightGBM",
        (Change("reference", target=plain),),
    )


def _training(found: Survey) -> Iterator[Claim]:
    """All of the reference's trees and its base score; in the reference's own measure, or in the one that fits."""
    differ, leafage = found.differ, found.differ.leafage
    leaves = leafage.share > FEW_LEAVES and not leafage.rounded
    # No training gives the same answer to every row.
    constant = all((pair.candidate == pair.candidate[:1]).all() for pair in found.case.failing_pairs())
    if not leafage.in_place or not (differ.retrained or leaves) or constant:
        return
    parts = [found.other_splits] if differ.retrained else []
    parts += [f"{int(leafage.differs.sum())} of {len(leafage.pairs)} leaves hold other values"]
    for scale in dict.fromkeys((1.0, leafage.scale)):
        changes, base = found.written(with_trees(differ, scale=scale)), _base_score(found, scale)
        if base is not None and base.any():
            site = found.site().node
            changes = tuple(Change(target=with_attribute(c.target, site, "base_values", base)) for c in changes)
        yield Claim(
            "stale-weights",
            Place("model", nodes=found.nodes()),
            f"the candidate's trees are those of another training: {' and '.join(parts)}; with the reference's trees "
            f"in its graph {HEALED} agree",
            Remedy(again="Export the model that is the reference now; record which training an export comes from"),
            changes,
        )


def _base_score(found: Survey, scale: float) -> Array | None:
    """The reference's base score in the candidate's measure; None where it has none or the operator takes none."""
    base = found.differ.ours.base
    assert found.candidate.graph is not None
    takes = len(found.candidate.graph.sites) == 1 and found.site().operator != "TreeEnsemble"
    known = takes and len(base) and bool(np.isfinite(base).all())
    return base @ found.differ.leafage.outputs * scale if known else None


def _aggregated(found: Survey, evidence: str, remedy: Remedy | str, changes: tuple[Change, ...]) -> Claim:
    return Claim("aggregation", Place("trees", (found.site().name,), nodes=found.nodes()), evidence, remedy, changes)


EXTENSIONS = (tree_splits, tree_values)
