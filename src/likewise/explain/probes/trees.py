"""Trees whose splits or values differ, that are more or fewer, added up another way, or from another training.

Each is put right in a copy of the candidate's graph, all else as it was; what that heals is the proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.contracts.verdict import told_apart
from likewise.data.cells import listed
from likewise.explain import twins
from likewise.explain.case import DOUBLE, Case, Explained, Remedy, probe
from likewise.explain.experiment import HEALED, Change, Claim, shown
from likewise.explain.trees import (
    Survey,
    counted,
    going_astray,
    has_trees,
    members,
    most,
    nudged,
    read,
    survey,
)
from likewise.models.onnx.tree_edits import divisors, with_attribute, with_constants
from likewise.models.trees import differences
from likewise.models.trees.ensemble import Ensemble
from likewise.models.trees.read import cut_to, without_linear_leaves

COINCIDENCE = 1e-4
"""Rounding that takes more than this part of a column's spread is no coincidence at a threshold: digits are lost."""

SHOWN = 6

FEW_LEAVES = 0.5
"""Up to this share of the leaves, other values are damage; beyond it, another training."""

AGAIN = Remedy(again="Export the model again; do not edit or patch the file")
ONCE = Remedy("Apply the learning rate, or one over the number of trees, once", again="Export again")
SAVED = "Compare the model with the file that was saved from it; record which training a file comes from"


@probe(
    *("categorical-split", "missing-value-handling", "operator-attribute", "feature-order", "weight-corruption"),
    *("float32-threshold", "float32-input-cast", "tree-count", "precision-reduction", "aggregation", "label-order"),
    *("output-mapping", "model-part-dropped", "stale-weights"),
    when=lambda case: all(has_trees(case, side) for side in ("reference", "candidate")),
)
def trees(case: Case) -> Iterator[Explained]:
    """Put one kind of difference right in a copy of the candidate's graph, all else as it was, and run it.

    Where the candidate is no graph, in its export, if that answers alike.
    """
    if case.graph() is not None:
        yield from _in_graph(case)
        return
    if read(case, "reference") is None or read(case, "candidate") is None:
        return
    with twins.with_graph(case) as graphed:
        for found in _cut(case) if graphed is None else _in_graph(graphed):
            # Nodes of a graph that nobody has are no place to look at, and nothing to put right.
            remedy = found.remedy if isinstance(found.remedy, str) else found.remedy.suggestion or SAVED
            yield replace(found, culprit=replace(found.culprit, nodes=()), remedy=remedy, fixes=())


def _in_graph(case: Case) -> Iterator[Explained]:
    found = survey(case)
    if found is None:
        return
    if not found.differ.retrained:
        for look in (_categories, _codes, _gaps, _modes, _column_order, _others, _rounded):
            yield from shown(case, map(_proven, look(found)))
    looks = () if found.differ.retrained else (_tree_count, _leaves, _outputs, _output_order, _measure, _base, _linear)
    for look in (*looks, _training):
        # Several ways to write one thing, of which the first that heals is told.
        yield from islice(shown(case, map(_proven, look(found))), 1)


def _proven(claim: Claim) -> Claim:
    """A claim with what is common to most of them, unless it says so itself."""
    told = f"{claim.evidence}; with that put right, {HEALED} agree"
    return claim if HEALED in claim.evidence else replace(claim, evidence=told)


def _at_trees(found: Survey, name: str, *details: str) -> Place:
    """A place that is not one split."""
    return Place(name, details, nodes=found.nodes())


def _categories(found: Survey) -> Iterator[Claim]:
    differ = found.differ
    wrong = np.flatnonzero(differ.categories)
    if not len(wrong):
        return
    # An exporter that does not know categories may number columns and route missing values wrongly with them.
    repaired = np.flatnonzero(differ.categories | differ.column | differ.gap)
    pair, rows = found.worst(wrong)
    node, other = found.node(pair)
    asked = members(differ.ours, node) or "a threshold"
    instead = members(differ.theirs, other) or f"at most {differ.theirs.threshold[other]:.6g}"
    yield Claim(
        "categorical-split",
        found.place(pair),
        f"where the reference asks for {asked}, the candidate asks for {instead}; so do {counted(len(wrong), 'split')} "
        f"on categories{going_astray(rows)}",
        "Encode the categories before the model (OneHotEncoder, OrdinalEncoder) and train on the codes, or export "
        "with a converter that writes category splits",
        found.written(differences.with_splits(differ, repaired)),
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
    # What boosters cut off of a number before they look it up.
    codes = np.trunc(ours.rows) if differ.ours.whole else ours.rows
    given = theirs.rows.copy()
    for node, other in map(found.node, asked.tolist()):
        given[:, differ.theirs.feature[other]] = codes[:, differ.ours.feature[node]]
    row, name = int(found.rows[found.pairs == pair][0]), found.column(pair)
    code, instead = codes[row, differ.ours.feature[found.node(pair)[0]]], found.met(pair, row)[1]
    yield Claim(
        "categorical-split",
        found.place(pair),
        f"in row {found.case.required.batch.rows.name(row)} the category of {name} is {code:g} to the reference's "
        f"trees and {instead:g} to the candidate's, which ask for the same numbers{going_astray(rows)}; given the "
        f"reference's codes {HEALED} agree",
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
        f"{going_astray(rows)}; so they do in {counted(len(wrong), 'split')} of {int(differ.split.sum())} "
        "(nodes_missing_value_tracks_true)",
        "Fill missing values before the model (SimpleImputer in the pipeline), or set the flags in the exported graph "
        "from the model's own trees",
        found.written(differences.with_gaps(differ, wrong)),
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
        f"{counted(len(wrong), 'split')} of {int(differ.split.sum())}{going_astray(rows)}",
        f"Set nodes_modes of {site} to the comparison of the model that was exported",
        found.written(differences.with_splits(differ, wrong)),
    )


def _column_order(found: Survey) -> Iterator[Claim]:
    differ, order = found.differ, found.differ.order
    if not order or differ.categories.any():
        return
    name = found.reference.name
    moved = sorted(column for column, other in order.items() if column != other)
    columns = tuple(name(column) for column in moved)
    wrong = np.flatnonzero(differ.column)
    concerned = np.unique(differ.theirs.tree[differ.alignment.candidate[wrong]]).tolist()
    some = (f"tree{'s' * (len(concerned) > 1)} {listed([str(tree) for tree in concerned], SHOWN)}",)
    whole = not found.followed or 2 * len(concerned) > differ.theirs.trees
    nodes = tuple(dict.fromkeys(name for pair in wrong.tolist() for name in found.nodes(pair)))
    yield Claim(
        "feature-order",
        Place(", ".join(columns), () if whole else some, columns=columns, nodes=nodes),
        "the candidate's trees ask for "
        + ", ".join(f"{name(order[column])} instead of {name(column)}" for column in moved[:SHOWN]),
        Remedy(again="Export again with the columns in the order of the training"),
        found.written(differences.with_splits(differ, wrong)),
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
        what = "is a leaf in one and a split in the other"
    elif differ.column[pair]:
        what = f"asks for {found.reference.name(int(differ.theirs.column[other]))} in the candidate"
    else:
        mine, yours = differ.ours.threshold[node], differ.theirs.threshold[other]
        what = f"compares with {yours:.9g} in the candidate and {mine:.9g} in the reference"
    place = found.place(pair)
    yield Claim(
        "weight-corruption",
        place,
        f"{place} {what}{going_astray(rows)}; {counted(len(wrong), 'split')} of {differ.inner} differ",
        AGAIN,
        found.written(differences.with_trees(differ) if differ.torn.any() else differences.with_splits(differ, wrong)),
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
    name, row, count = found.column(pair), int(rows[pairs == pair][0]), len(np.unique(rows))
    node, there = found.node(pair)
    ours, theirs = float(differ.ours.threshold[node]), float(differ.theirs.threshold[there])
    seen, instead, threshold, rounded = told_apart(*found.met(pair, row), ours, theirs)
    both = f" in the candidate and as {seen} in the reference" if seen != instead else ""
    other_threshold = f", {rounded} in the candidate" if rounded != threshold else ""
    casts = [entry for entry in found.case.comparison.casts if entry.side == "candidate" and entry.column == name]
    data = found.case.required.batch.inputs.get(name)
    whole = data is not None and data.dtype.kind in "iu"
    # Digits of the column are lost, or a value happens to lie at a threshold.
    lost = any(entry.changed for entry in casts) and (whole or changed.lost.get(column, 0.0) > COINCIDENCE)
    in_double = lost or found.case.framework("reference") == "sklearn"
    yield Claim(
        "float32-input-cast" if lost else "float32-threshold",
        Place(name, columns=(name,)) if lost else found.place(pair),
        f"in row {found.case.required.batch.rows.name(row)} {name} reaches {found.tree(pair)} as {instead}{both}, "
        f"where the threshold is {threshold}{other_threshold}; so {counted(count, 'failing row')} "
        f"take{'s' if count == 1 else ''} the other side of a threshold of {name}; on the right side, {HEALED} agree",
        Remedy(
            f"Subtract a constant from {name} before the model is fitted"
            if lost
            else f"Round {name} to float32 before training and before serving: data[{name!r}].astype('float32')",
            again=DOUBLE if in_double else "",
        ),
        found.given(changed.rows),
        simplicity=2 if lost else 1,
        lasting=found.thresholds(np.flatnonzero(alike)),
    )


def _tree_count(found: Survey) -> Iterator[Claim]:
    """Take the trees that are too many out of the graph, or put those that are missing in."""
    differ = found.differ
    if not (differ.missing_trees or len(differ.extra_trees)):
        return
    uses, has, stored = differ.ours.trees, differ.theirs.trees, differ.ours.stored
    early = f": training stopped early, and predict takes the best {uses} of {stored}" if uses < has <= stored else ""
    remedy = Remedy(
        "Check the number of trees given to the converter; after early stopping, cut the model to those that predict "
        "uses: booster[:best_iteration + 1] (XGBoost), booster.model_to_string(num_iteration=booster.best_iteration) "
        "(LightGBM)",
        again="Export again with all trees" if has < uses else "",
    )
    ways: list[Ensemble | None] = (
        [] if differ.missing_trees else [differences.without_trees(differ, differ.extra_trees)]
    )
    # A forest divides by its own number of trees: the values of the leaves may have been adjusted, or not.
    ways += [differences.with_trees(differ, scale=scale) for scale in dict.fromkeys((differ.leafage.scale, 1.0))]
    place = _at_trees(found, f"{min(uses, has)} of {max(uses, has)} trees")
    evidence = f"the candidate has {has} trees and the reference uses {uses}{early}"
    for way in ways:
        yield Claim("tree-count", place, evidence, remedy, found.written(way))


def _leaves(found: Survey) -> Iterator[Claim]:
    """Put the reference's values into the leaves."""
    differ, leafage = found.differ, found.differ.leafage
    wrong = leafage.pairs[leafage.differs]
    if not leafage.in_place or not len(wrong) or (leafage.share > FEW_LEAVES and not leafage.rounded):
        return
    repaired = differences.with_leaves(differ, wrong)
    if leafage.rounded:
        place = _at_trees(found, "leaf values", found.site().name)
        told = f"the leaves hold the reference's values rounded to {leafage.rounded}"
        remedy = Remedy(again="Export the model again in float32")
        yield Claim("precision-reduction", place, told, remedy, found.written(repaired))
        return
    held, meant = (values[leafage.differs] for values in differ.leaf_values())
    apart = np.nan_to_num(np.abs(held - meant), nan=np.inf)
    worst, output = map(int, np.unravel_index(np.argmax(apart), apart.shape))
    name = found.tree(int(wrong[worst]))
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    yield Claim(
        "weight-corruption",
        Place(f"{name}{more}", nodes=found.nodes(int(wrong[worst]))),
        f"{name} holds {held[worst, output]:.6g} where the reference has {meant[worst, output]:.6g}; {len(wrong)} of "
        f"{len(leafage.pairs)} leaves differ",
        AGAIN,
        found.written(repaired),
    )


def _outputs(found: Survey) -> Iterator[Claim]:
    """Trees that add to another output: another class, another target."""
    if not found.differ.leafage.misplaced:
        return
    repaired, theirs = differences.with_outputs(found.differ), found.differ.theirs
    wrong = theirs.leaf_output != repaired.leaf_output
    count = len(np.unique(theirs.tree[theirs.leaf_node[wrong]]))
    yield Claim(
        "aggregation",
        _at_trees(found, "trees", found.site().name),
        f"{count} of {theirs.trees} trees are added to another output than in the reference",
        "Export one model per output, or without parallel trees: the converter gives trees to the wrong outputs",
        found.written(repaired),
    )


def _output_order(found: Survey) -> Iterator[Claim]:
    """The outputs of all leaves in another order: that of the base score or of the labels may be right."""
    order, theirs = found.differ.leafage.order, found.differ.theirs
    if not order:
        return
    classifies = found.site().operator == "TreeEnsembleClassifier"
    in_order = ", ".join(map(str, order))
    outputs = tuple(dict.fromkeys(pair.spec.name for pair in found.case.failing_pairs()))
    detail = f"{'class_ids' if classifies else 'target_ids'} of {found.site().name} in the order {in_order}"
    yield Claim(
        "label-order" if classifies else "output-mapping",
        Place(", ".join(outputs), (detail,), outputs=outputs, nodes=found.nodes()),
        f"the leaves of the candidate add to its outputs what the reference adds to {in_order}",
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
    ways: list[tuple[float, dict[str, float], str]] = []
    if abs(scale - 1) > 1e-4:
        # Boosting may add a constant to its first tree, to which no factor belongs.
        own = differences.with_leaves(replace(found.differ, leafage=replace(leafage, scale=1.0)), leafage.pairs)
        told = f"{int((~leafage.differs).sum())} of {len(leafage.pairs)} leaves hold {scale:.6g} times their value"
        yield Claim("aggregation", _at_trees(found, "trees", found.site().name), told, ONCE, found.written(own))
    elif ours.average:
        ways = [(1 / count, {}, "they are added up instead of averaged")]
        if divided := divisors(found.case.graph(), found.site().node):
            by = ", ".join(f"{value:g}" for value in divided.values())
            ways.append((1.0, dict.fromkeys(divided, float(count)), f"their sum is divided by {by}"))
            told = f"they are added up, and divided by {by} after the link"
            ways.append((1 / count, dict.fromkeys(divided, 1.0), told))
    for factor, constants, story in ways:
        changes = found.written(replace(theirs, leaf_value=theirs.leaf_value * factor))
        yield Claim(
            "aggregation",
            _at_trees(found, "trees", found.site().name),
            f"the reference has {count} trees, and in the candidate {story}",
            ONCE,
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
    added, meant = (listed([f"{value:.6g}" for value in values]) for values in (present, wanted))
    yield Claim(
        "weight-corruption" if np.any(present) else "model-part-dropped",
        _at_trees(found, "base score", f"base_values of {found.site().name}"),
        f"the reference adds {meant} to its trees and the candidate {added}; with the reference's in the graph "
        f"{HEALED} agree",
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
        _at_trees(found, "linear leaves"),
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
        changes, base = found.written(differences.with_trees(differ, scale=scale)), _base_score(found, scale)
        if base is not None and base.any():
            site = found.site().node
            changes = tuple(Change(target=with_attribute(c.target, site, "base_values", base)) for c in changes)
        yield Claim(
            "stale-weights",
            _at_trees(found, "model"),
            f"the candidate's trees are those of another training: {' and '.join(parts)}",
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


def _cut(case: Case) -> Iterator[Explained]:
    """What is known without a graph: another training, or more trees on one side, which is cut to as many."""
    found = survey(case)
    if found is None:
        return
    if found.differ.retrained:
        evidence = f"the trees of both come from different trainings: {found.other_splits}"
        yield Explained("stale-weights", Place("model"), evidence, SAVED, simplicity=1)
        return
    ours, theirs = found.differ.ours.trees, found.differ.theirs.trees
    longer, fewer = "reference" if ours > theirs else "candidate", min(ours, theirs)
    cut = cut_to(case.native(longer), fewer) if ours != theirs else None
    if cut is not None:
        claim = Claim(
            "tree-count",
            Place(f"{fewer} of {max(ours, theirs)} trees", side=longer),
            f"the reference uses {ours} trees and the candidate {theirs}; with the {longer} cut to {fewer}, {HEALED} "
            "agree",
            "Save the model with the trees that predict uses: booster[:best_iteration + 1] (XGBoost), "
            "save_model(num_iteration=best_iteration) (LightGBM)",
            (Change(longer, target=cut),),
        )
        yield from shown(case, [claim])


EXTENSION = trees
