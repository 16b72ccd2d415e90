"""Trees that are more or fewer, hold other values, are added up another way, or come from another training.

Each is put right in a copy of the candidate's graph, all else as it was; what that heals is the proof.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.explain import trees
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import HEALED, Change, Claim, shown
from likewise.explain.trees import Survey, plausible, survey
from likewise.models.onnx.tree_edits import divisors, with_attribute, with_constants
from likewise.models.trees.differences import with_leaves, with_outputs, with_trees, without_trees
from likewise.models.trees.read import cut_to, without_linear_leaves

FEW_LEAVES = 0.5
"""Up to this share of the leaves, other values are damage; beyond it, another training."""

SAME_FACTOR = 1e-3
"""How close, relatively, a factor between the leaves of both has to be to the number of trees to be it."""

BOOSTERS = ("XGB", "LGBM", "Booster", "CatBoost")

AGAIN = "Export the model again; do not edit or patch the file"


class Trees:
    """Change one thing about the trees in a copy of the graph, and run it."""

    causes = (
        "tree-count",
        "weight-corruption",
        "precision-reduction",
        "aggregation",
        "label-order",
        "output-mapping",
        "model-part-dropped",
        "stale-weights",
    )
    needs_answers = True
    slow = False

    def plausible(self, case: Case) -> bool:
        return plausible(case)

    def test(self, case: Case) -> Iterator[Explained]:
        found = survey(case)
        if found is None:
            return
        looks = () if found.differ.retrained else (_count, _leaves, _outputs, _order, _measure, _base, _linear)
        for look in (*looks, _training):
            # Several ways to write one thing, of which the first that heals is told.
            yield from islice(shown(case, look(found)), 1)


def _count(found: Survey) -> Iterator[Claim]:
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
        remedy = "Export again with all trees: check the number of trees or the iteration limit given to the converter"
    else:
        name = f"{uses} of {has} trees"
        stopped = f": training stopped early, and predict takes the best {uses} of {stored}" if stored >= has else ""
        evidence = (
            f"the candidate has {has} trees and the reference uses {uses}{stopped}; with the last {has - uses} taken "
            f"out of its graph {HEALED} agree"
        )
        remedy = (
            "Cut the model to the trees that predict uses before the export: booster[:best_iteration + 1] (XGBoost), "
            "booster.model_to_string(num_iteration=booster.best_iteration) (LightGBM)"
        )
    place = Place(name, nodes=found.nodes())
    if not differ.missing_trees:
        cut = found.written(without_trees(differ, differ.extra_trees))
        yield Claim("tree-count", place, evidence, remedy, cut)
    # A forest divides by its own number of trees: the values of the leaves may have been adjusted, or not.
    for scale in dict.fromkeys((differ.leafage.scale, 1.0)):
        yield Claim("tree-count", place, evidence, remedy, found.written(with_trees(differ, scale=scale)))


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
            "Export the model again in float32",
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
        "Export one model an output, or without parallel trees: the converter gives trees to the wrong outputs",
        found.written(repaired),
    )


def _order(found: Survey) -> Iterator[Claim]:
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
        "Export again with the classes in the order of the model",
        found.written(replace(theirs, leaf_output=np.array(order)[theirs.leaf_output])),
        simplicity=2,
    )


def _measure(found: Survey) -> Iterator[Claim]:
    """All leaves too large or too small by one factor, or their sum divided by the wrong number."""
    leafage, theirs = found.differ.leafage, found.differ.theirs
    if not leafage.in_place or leafage.share > FEW_LEAVES:
        return
    for factor, constants, story in _ways(found):
        changes = found.written(replace(theirs, leaf_value=theirs.leaf_value * factor))
        if constants:
            changes = tuple(replace(change, target=with_constants(change.target, constants)) for change in changes)
        yield _aggregated(
            found,
            f"the reference has {found.differ.ours.trees} trees, and in the candidate {story}; with that put right in "
            f"the graph {HEALED} agree",
            "Export again; apply the learning rate, or one over the number of trees, once",
            changes,
        )


def _ways(found: Survey) -> Iterator[tuple[float, dict[str, float], str]]:
    """A factor for the leaves, constants to set, and what would then have been wrong."""
    ours, scale = found.differ.ours, found.differ.leafage.scale
    count = ours.trees
    if abs(scale - 1) > 1e-4:
        known = {count: "they are added up instead of averaged", 1 / count: "they are averaged instead of added up"}
        story = next((told for value, told in known.items() if math.isclose(scale, value, rel_tol=SAME_FACTOR)), "")
        if scale > 0:
            yield 1 / scale, {}, story or f"every leaf holds {scale:.6g} times its value"
        return
    if not ours.average:
        return
    yield 1 / count, {}, "they are added up instead of averaged"
    if divided := divisors(found.case.graph(), found.site().node):
        by = ", ".join(f"{value:g}" for value in divided.values())
        yield 1.0, dict.fromkeys(divided, float(count)), f"their sum is divided by {by}"
        yield 1 / count, dict.fromkeys(divided, 1.0), f"they are added up, and divided by {by} after the link"


def _base(found: Survey) -> Iterator[Claim]:
    """What is added to the trees, missing or different."""
    ours, theirs, leafage = found.differ.ours, found.differ.theirs, found.differ.leafage
    assert found.candidate.graph is not None
    single = len(found.candidate.graph.sites) == 1
    if not single or not len(ours.base) or not leafage.in_place or not np.isfinite(ours.base).all():
        return
    wanted = ours.base @ leafage.outputs * leafage.scale
    present = theirs.base if len(theirs.base) else np.zeros(len(wanted))
    if present.shape == wanted.shape and np.allclose(present, wanted, rtol=1e-5, atol=1e-6):
        return
    there = ", ".join(f"{value:.6g}" for value in present[:6]) if np.any(present) else "nothing"
    yield Claim(
        "weight-corruption" if np.any(present) else "model-part-dropped",
        Place("base score", (f"base_values of {found.site().name}",), nodes=found.nodes()),
        f"the reference adds {', '.join(f'{value:.6g}' for value in wanted[:6])} to its trees and the candidate "
        f"{there}; with the reference's in the graph {HEALED} agree",
        "Export again with the base score (init, bias), or set base_values of the node",
        _with_base(found, wanted),
    )


def _with_base(found: Survey, base: Array) -> tuple[Change, ...]:
    """The graph with this base score; where the operator has no such attribute, with it in the leaves of one tree."""
    site, theirs = found.site(), found.differ.theirs
    if site.operator != "TreeEnsemble":
        return (Change(target=with_attribute(found.case.graph(), site.node, "base_values", base)),)
    first = theirs.tree[theirs.leaf_node] == 0
    raised = np.where(first, theirs.leaf_value + base[theirs.leaf_output], theirs.leaf_value)
    return found.written(replace(theirs, leaf_value=raised))


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
    if not leafage.in_place or not (differ.retrained or leaves) or _says_one_thing(found.case):
        return
    parts = [_other_splits(found)] if differ.retrained else []
    parts += [f"{int(leafage.differs.sum())} of {len(leafage.pairs)} leaves hold other values"]
    for scale in dict.fromkeys((1.0, leafage.scale)):
        yield Claim(
            "stale-weights",
            Place("model", nodes=found.nodes()),
            f"the candidate's trees are those of another training: {' and '.join(parts)}; with the reference's trees "
            f"in its graph {HEALED} agree",
            "Export the model that is the reference now; record which training an export comes from",
            tuple(_based(found, change, scale) for change in found.written(with_trees(differ, scale=scale))),
        )


def _based(found: Survey, change: Change, scale: float) -> Change:
    """The same with the reference's base score, where it has one and the operator takes it."""
    base, site = found.differ.ours.base, found.site()
    assert found.candidate.graph is not None
    takes = len(found.candidate.graph.sites) == 1 and site.operator != "TreeEnsemble"
    if not takes or not np.any(base) or not np.isfinite(base).all():
        return change
    wanted = base @ found.differ.leafage.outputs * scale
    return replace(change, target=with_attribute(change.target, site.node, "base_values", wanted))


def _other_splits(found: Survey) -> str:
    differ = found.differ
    return f"{int((differ.column | differ.moved | differ.torn).sum())} of {differ.inner} splits ask something else"


def _says_one_thing(case: Case) -> bool:
    """Does the candidate answer every row alike? No training gives that."""
    return all((pair.candidate == pair.candidate[:1]).all() for pair in case.failing_pairs())


def _aggregated(found: Survey, evidence: str, remedy: str, changes: tuple[Change, ...]) -> Claim:
    return Claim("aggregation", Place("trees", (found.site().name,), nodes=found.nodes()), evidence, remedy, changes)


class TreeModels:
    """Where the candidate is no graph: cut the one that uses more trees to as many as the other uses."""

    causes = ("tree-count", "stale-weights")
    needs_answers = True
    slow = False

    def plausible(self, case: Case) -> bool:
        return "onnx" not in (case.framework("reference"), case.framework("candidate")) and all(
            trees.has_trees(case, side) for side in ("reference", "candidate")
        )

    def test(self, case: Case) -> Iterator[Explained]:
        found = survey(case)
        if found is None:
            return
        if found.differ.retrained:
            evidence = f"the trees of both come from different trainings: {_other_splits(found)}"
            remedy = "Compare the model with the file that was saved from it; record which training a file comes from"
            yield Explained("stale-weights", Place("model"), evidence, remedy, simplicity=1)
        else:
            yield from shown(case, _shorter(case, found))


def _shorter(case: Case, found: Survey) -> Iterator[Claim]:
    counts: Mapping[str, int] = {"reference": found.differ.ours.trees, "candidate": found.differ.theirs.trees}
    longer = max(counts, key=lambda side: counts[side])
    fewer, more = min(counts.values()), counts[longer]
    cut = cut_to(case.native(longer), fewer) if fewer < more else None
    if cut is None:
        return
    yield Claim(
        "tree-count",
        Place(f"{fewer} of {more} trees", side=longer),
        f"the reference uses {counts['reference']} trees and the candidate {counts['candidate']}; with the {longer} "
        f"cut to {fewer}, {HEALED} agree",
        "Save the model with the trees that predict uses: booster[:best_iteration + 1] (XGBoost), "
        "save_model(num_iteration=best_iteration) (LightGBM)",
        (Change(longer, target=cut),),
    )


class SparseZeros:
    """Hand a booster behind a sparse step its input dense: in a sparse matrix it takes zeros for missing values."""

    causes = ("missing-value-handling",)
    needs_answers = True
    slow = False

    def plausible(self, case: Case) -> bool:
        return _pipeline(case) is not None

    def test(self, case: Case) -> Iterator[Explained]:
        yield from shown(case, [_dense(_pipeline(case))])


def _pipeline(case: Case) -> Any:
    """The reference, if it is a pipeline that ends in a booster; None otherwise."""
    model = case.native("reference")
    model = getattr(model, "best_estimator_", model)
    if "sklearn" not in sys.modules or not hasattr(model, "steps") or len(model.steps) < 2:
        return None
    return model if any(word in type(model.steps[-1][1]).__name__ for word in BOOSTERS) else None


def _dense(pipeline: Any) -> Claim:
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer

    (before, _), (name, booster) = pipeline.steps[-2:]
    dense = FunctionTransformer(_as_dense, accept_sparse=True)
    return Claim(
        "missing-value-handling",
        Place(name, (f"after the sparse step {before!r}",), path=name),
        f"step {before!r} gives a sparse matrix, in which {type(booster).__name__} takes every zero for missing; given "
        f"the same matrix dense, the reference agrees with the candidate on {HEALED}",
        f"Make {before!r} dense (OneHotEncoder(sparse_output=False), ColumnTransformer(sparse_threshold=0)), fit again "
        "and export that",
        (Change("reference", target=Pipeline([*pipeline.steps[:-1], ("dense", dense), (name, booster)])),),
    )


def _as_dense(matrix: Any) -> Any:
    return matrix.toarray() if hasattr(matrix, "toarray") else matrix


EXTENSIONS = (Trees(), TreeModels(), SparseZeros())
