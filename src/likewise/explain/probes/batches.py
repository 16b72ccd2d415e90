"""Answers that depend on how many rows are asked about at once, on the neighbours of a row, on its length or place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from likewise.compare.call import Side
from likewise.compare.call import answers as asked
from likewise.compare.differences import is_numeric, rows_of
from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Mismatch, Pair
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.report import Place
from likewise.contracts.verdict import Outcome, counted
from likewise.errors import LikewiseError
from likewise.explain import answers, experiment, trace
from likewise.explain.case import Case, Explained, Fix, made_once, probe, rows_agreeing
from likewise.explain.experiment import ENOUGH, Effect, Trial
from likewise.explain.features import fed_sides
from likewise.explain.sizes import LARGEST, numbers_in, sizes_told
from likewise.models.onnx import edits

ROWS = 192
"""Rows that are asked about again."""

FEWEST = 8
"""Rows that tell whether the size of a batch makes any difference."""

SIZES = (1, 2, 3, 4, 8, 32)
"""Batch sizes tried, beside all rows at once."""

NOISE = 1e-5
"""Sums of other lengths are made in another order: so much of the largest value may change."""

SHARE_OF_TIME = 1 / 8
"""Of the time left, so much may go to asking about rows one at a time."""

FEWEST_ORDERED = 12
"""Fewer rows fall into an order by chance."""

MOST_ORDERED = 1_024
"""Rows asked about at once to see their order."""

NEARLY_ALL = 0.95
"""The right order of rows puts so many of the failing ones right."""

LAST_DIGITS = 3e-5
"""Of the spread of the answers: what float32 leaves open. Answers of other rows are further apart."""

FREE_ORDER = 0.5
"""An order without a rule is believed only where at least this share of the answers are different ones."""

FREE = ("rows sorted by the answer", "rows shuffled without a rule")
"""Orders that are told from the answers alone."""

ALONG_ROWS = re.compile(r"^(Reduce\w+|ArgMax|ArgMin|Softmax|LogSoftmax|Hardmax|CumSum|TopK|LpNormalization)$")
"""Operators that couple the rows of a call where they go along axis 0."""

BY_RANGE = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM")
"""Operators that quantise by the range of all rows of a call."""

OTHERWISE = "it answers differently there"
DYNAMIC = "Export it with a dynamic batch axis (torch.onnx.export(..., dynamic_shapes=...))"
LOOK_FOR = "Look for an operation along the batch axis (a mean, a softmax), or a size written into the graph"


@probe(
    "batch-dependence",
    "fixed-batch",
    "shape-specialization",
    when=lambda case: "candidate" in case.runners and "reference" in case.runners,
    needs_answers=False,
    slow=True,
)
def batches(case: Case) -> Sequence[Explained]:
    """Ask again at other batch sizes, among other neighbours and in other places."""
    if case.sample is None or case.candidate is None:
        return list(_refused(case))
    if not case.required.batch.stacked:
        return []
    failing = bool(case.required.failing.any())
    if case.comparison.fixed_batch is not None:
        return [] if failing else list(_declared(case))
    return list(_neighbours(case) if failing else _other_sizes(case))


@probe(
    "batch-dependence",
    when=lambda case: any(finding.code == "batch-position" for finding in case.verdict.findings),
    needs_answers=False,
)
def positions(case: Case) -> Explained | None:
    """The sweep has put rows into other places of a batch; here is what that means."""
    told = next(finding.message for finding in case.verdict.findings if finding.code == "batch-position")
    return Explained(
        "batch-dependence",
        Place("the place of a row in its batch"),
        "the candidate answers like the reference at every batch size, as long as rows keep their order and "
        f"batches are full; not so with {told}",
        "Look for rows that are sorted or moved within a batch and not put back, and for counters along it",
        simplicity=2,
    )


def _declared(case: Case) -> Iterator[Explained]:
    """It says itself that it takes one size only, and was found right at that."""
    size = case.comparison.fixed_batch
    told = f"the file declares {size} as the size of its batch axis, and agrees with the reference at that size"
    remedy, fixes = f"{DYNAMIC}, or use --fixed-batch", _left_free(case, size)
    if any(finding.code == "fixed-batch" for finding in case.verdict.findings):
        yield Explained("fixed-batch", Place(f"batch size {size}"), told, remedy, simplicity=1, fixes=fixes)


def _left_free(case: Case, size: int | None) -> tuple[Fix, ...]:
    """The batch axis of the graph left free, where it stands for one size."""
    proto = case.graph()
    if proto is None or size is None:
        return ()
    return (Fix(f"the batch axis left free, which was {size}", lambda: edits.any_batch(proto, size)),)


def _refused(case: Case) -> Iterator[Explained]:
    """It does not answer the rows as they are given: does it at another size?"""
    first = next(case.plan.source.batches(LARGEST), None)
    sides = None if first is None or not first.stacked or len(first) < 3 else fed_sides(case, first)
    if first is None or sides is None:
        return
    sizes = sorted({size for size in (*range(1, 9), *numbers_in(case)) if size <= len(first)})
    tried = {size: _answered_like(case, *sides, first.slice(0, size)) for size in sizes}
    right = [size for size, told in tried.items() if told == ""]
    other = {size: told for size, told in tried.items() if told}
    # One size alone is what it was traced with; several that work mean that the rows are at fault.
    if len(right) == 1 and len(other) >= 2:
        said = next((told for told in other.values() if told != OTHERWISE), OTHERWISE)
        yield Explained(
            "fixed-batch",
            _place(f"batch size {right[0]}", _node_in(case, said)),
            f"the candidate answers batches of {right[0]} like the reference, and not {sizes_told([*other])}: {said}",
            f"{DYNAMIC}, or call it with {counted(right[0], 'rows')}: --batch-size {right[0]} --fixed-batch",
            simplicity=1,
            fixes=_left_free(case, right[0]),
        )


def _answered_like(case: Case, reference: Side, candidate: Side, part: Batch) -> str | None:
    """What is wrong with the candidate's answer; empty if nothing is, None if the reference refuses."""
    case.require_time()
    try:
        ours, _ = asked(reference, part)
    except LikewiseError:
        return None
    try:
        theirs, _ = asked(candidate, part)
    except LikewiseError as error:
        return _shortened(error.message)
    close = partial(np.allclose, rtol=1e-2, atol=case.tolerance.absolute + 1e-3, equal_nan=True)
    numbers = [[array.ravel() for array in side.values() if is_numeric(array)] for side in (ours, theirs)]
    # Which output belongs to which is not known yet.
    same = any(mine.size == given.size and close(given, mine) for mine in numbers[0] for given in numbers[1])
    return "" if same else OTHERWISE


def _other_sizes(case: Case) -> Iterator[Explained]:
    """Right as it was run, and wrong or refusing at other sizes."""
    facts = case.comparison.batch_sizes
    # A batch with another number of answers than rows is as good as a refusal.
    refusing = {entry.size: entry.mismatches[0].message for entry in facts if entry.mismatches}
    refusing |= {entry.size: entry.incidents[0].message for entry in facts if entry.incidents}
    failed = {check.batch_size for check in case.verdict.checks if check.outcome is Outcome.FAIL}
    wrong = sorted(size for size in failed if size is not None)
    right = [entry.size for entry in facts if entry.size not in (*refusing, *wrong)]
    told = sizes_told(right) or ("no size" if case.comparison.rows_beyond else "the size of the main run")
    if refusing:
        said = _shortened(next(iter(refusing.values())))
        lone = len(right) == 1
        yield Explained(
            "fixed-batch" if lone else "shape-specialization",
            _place(f"batch size {sizes_told(right if lone else list(refusing))}", _node_in(case, said)),
            f"the candidate agrees at {told} and not at {sizes_told(list(refusing))}: {said}",
            DYNAMIC,
            simplicity=1,
            fixes=_left_free(case, right[0]) if lone else (),
        )
    elif wrong and not experiment.answers_vary(case, "candidate"):
        evidence = f"the candidate answers like the reference at {told}, and the same rows differently at "
        yield _sized(case, "candidate", right, max(wrong), f"{evidence}{sizes_told(wrong)}")


def _neighbours(case: Case) -> Iterator[Explained]:
    """Wrong as it was run: is it right, or merely different, alone or among other rows?"""
    for side in ("candidate", "reference"):
        if case.framework(side) == "recorded" or case.side(side).fixed_batch is not None:
            continue
        if not _varies(case, side) or experiment.answers_vary(case, side):
            continue
        trial = Trial.few(case, _affordable(case))
        whole = case.ask(side, trial.batch)
        asked = {size: case.ask(side, trial.batch, size=size) for size in SIZES if size < len(trial)}
        alone = {size: given for size, given in asked.items() if given is not None}
        if whole is not None and trial.failing.any():
            yield from _dependent(trial, side, whole, alone)


def _dependent(trial: Trial, side: str, whole: Tensors, alone: Mapping[int, Tensors]) -> Iterator[Explained]:
    """A side whose answers move with the rows of a call: what is right at other sizes, or only different there."""
    case = trial.case
    apart = {
        size: Effect(experiment.rows_apart(case, side, whole, given, floor=NOISE), trial.failing)
        for size, given in alone.items()
    }
    moved = [size for size, effect in apart.items() if effect.share >= ENOUGH]
    both = {size: (None, given) if side == "candidate" else (given, None) for size, given in alone.items()}
    effects = {
        size: trial.effect(reference=ours, candidate=theirs)
        for size, (ours, theirs) in both.items()
        if trial.nearer(reference=ours, candidate=theirs)
    }
    cured = [size for size, effect in effects.items() if effect.explains]
    if moved and cured:
        effect = effects[cured[0]]
        rows, other = "row" if cured == [1] else "rows", "reference" if side == "candidate" else "candidate"
        told = f"asked {sizes_told(cured)} {rows} at a time, the {side} agrees with the {other} on {effect.told}"
        found = _sized(case, side, cured, len(trial), told)
        yield replace(found, covered=trial.mask(effect.covered), share=effect.share)
    elif moved and (side == "reference" or _ranged(case) is None):
        # Numbers that are quantised by the range of a call move a little with it; that is no cause by itself.
        effect = apart[moved[0]]
        yield Explained(
            "batch-dependence",
            _place("batch size", _coupled(case), side),
            f"the {side} answers {effect.told} differently when they are asked {sizes_told(moved)} at a time; an "
            "answer should depend on its own row alone",
            LOOK_FOR,
            covered=trial.mask(effect.covered),
            share=effect.share,
            # Nothing was healed: whatever is shown to heal them says more.
            simplicity=5,
        )


def _sized(case: Case, side: str, right: Sequence[int], wrong: int, evidence: str) -> Explained:
    """A side that is right at some sizes and not at another: at one that it was traced with, or by its neighbours."""
    ranged = _ranged(case) if side == "candidate" else None
    if ranged is not None:
        evidence += f" ({ranged}): the scale of the activations comes from all rows of a call"
    lone = side == "candidate" and len(right) == 1 and ranged is None and not _by_neighbours(case, wrong)
    return Explained(
        "shape-specialization" if lone else "batch-dependence",
        Place(f"batch size {sizes_told(right)}", ("the only one it is right at",))
        if lone
        else _place(f"batch size {wrong}", ranged or _coupled(case), side),
        evidence,
        LOOK_FOR if ranged is None else "Run it at the size it is deployed with (--batch-size N --fixed-batch)",
        simplicity=2 if ranged is None else 4,
    )


def _place(size: str, node: Place | None, side: str = "candidate") -> Place:
    """A batch size, and the node that makes it matter where one is known."""
    if side == "reference":
        return Place(f"{size} of the reference", side=side)
    return Place(size) if node is None else Place(size, (str(node),), nodes=node.nodes, tensors=node.tensors)


@made_once
def _varies(case: Case, side: str) -> bool:
    """Is anything of a few rows answered differently alone, together, and among all the others before?"""
    few = Trial.few(case, FEWEST)
    given = few.reference if side == "reference" else few.candidate
    asked = [case.ask(side, few.batch, size=size) for size in (1, None)]
    return any(
        other is not None and experiment.rows_apart(case, side, given, other, floor=NOISE).any() for other in asked
    )


@made_once
def _affordable(case: Case) -> int:
    """Rows that can be asked about one at a time without using up the budget."""
    began = case.clock.now()
    one = Trial.few(case, 1).batch
    for side in ("candidate", "reference"):
        case.ask(side, one)
    return max(16, min(ROWS, int(case.seconds_left() * SHARE_OF_TIME / max(case.clock.now() - began, 1e-4))))


def _by_neighbours(case: Case, size: int) -> bool:
    """Is a row answered differently at the same batch size, in another place or among other rows?"""
    positions = Trial.few(case, min(max(size, 2) * 2, ROWS)).positions
    size = min(max(size, 2), len(positions) // 2)
    first, second, even = positions[:size], positions[size : 2 * size], np.arange(size) % 2 == 0
    one = case.ask("candidate", case.rows(first)) if size > 1 else None
    turned = case.ask("candidate", case.rows(first[::-1])) if size > 1 else None
    if one is None or turned is None:
        return False
    back = {name: array[::-1] for name, array in turned.items()}
    told: list[tuple[Tensors, Array]] = [(back, np.ones(size, dtype=bool))]
    for kept in (even, ~even):
        other = case.ask("candidate", case.rows(np.where(kept, first, second)))
        told += [] if other is None else [(other, kept)]
    return any(experiment.rows_apart(case, "candidate", one, other, floor=NOISE)[kept].any() for other, kept in told)


def _ranged(case: Case) -> Place | None:
    """The operator that quantises by the range of all rows of a call."""
    proto = case.graph()
    nodes = [] if proto is None else [node for node in edits.all_nodes(proto.graph) if node.op_type in BY_RANGE]
    return replace(trace.place_of(nodes[0]), name=nodes[0].op_type, details=()) if nodes else None


def _coupled(case: Case) -> Place | None:
    """The operators that go along the rows, where there are any."""
    proto = case.graph()
    stored = {} if proto is None else edits.constants(proto.graph)
    found = []
    for node in () if proto is None else edits.all_nodes(proto.graph):
        if ALONG_ROWS.match(node.op_type):
            given = edits.attribute(node, "axes", edits.attribute(node, "axis"))
            if given is None and len(node.input) > 1 and node.input[1] in stored:
                given = stored[node.input[1]].reshape(-1).tolist()
            if given == 0 or (isinstance(given, list) and 0 in given):
                found.append(node)
    if not found:
        return None
    place = trace.place_of(*found)
    return Place(f"{place} along the rows", nodes=place.nodes, tensors=place.tensors)


def _node_in(case: Case, said: str) -> Place | None:
    """The node that a refusal of the runtime names."""
    proto = case.graph()
    nodes = [] if proto is None else [node for node in proto.graph.node if node.name and f"'{node.name}'" in said]
    return trace.place_of(nodes[0]) if nodes else None


def _shortened(said: str) -> str:
    """The beginning of what a runtime says."""
    return said if len(said) <= 300 else said[:299] + "…"


@probe(
    "row-order",
    when=lambda case: answers.complete(case) and case.required.batch.stacked and len(case.required) >= FEWEST_ORDERED,
)
def row_order(case: Case) -> Explained | None:
    """Put the candidate's answers into the order in which they fit the reference's, and compare."""
    batch = next(iter(case.plan.source.batches(MOST_ORDERED)))
    together = _side_by_side(case, batch)
    failing = ~rows_agreeing(together, len(batch))
    pairs = [pair for pair in together if isinstance(pair, Pair)]
    if not pairs or len(pairs) < len(together) or failing.sum() < FEWEST_ORDERED // 2:
        return None
    # An output that agrees as it is was not moved.
    moved = [pair for pair in pairs if rows_beyond(pair).any()]
    kept = [pair for pair in pairs if not rows_beyond(pair).any()]
    for rule, take in _orders(moved):
        put_back = [replace(pair, candidate=pair.candidate[take]) for pair in moved]
        effect = Effect(rows_agreeing([*kept, *put_back], len(batch)), failing)
        if effect.explains and effect.share >= NEARLY_ALL and _tells(put_back, effect, by_rule=rule not in FREE):
            return _reordered(case, batch, moved, rule, effect)
    return None


def _side_by_side(case: Case, batch: Batch, *, size: int | None = None) -> list[Pair | Mismatch]:
    """What both models answer to these rows, output by output; nothing where one refuses them."""
    ours, theirs = case.ask("reference", batch), case.ask("candidate", batch, size=size)
    if ours is None or theirs is None:
        return []
    return case.pairs(batch, ours, theirs, tolerance=answers.forgiving(case.tolerance))


def _reordered(case: Case, batch: Batch, pairs: Sequence[Pair], rule: str, effect: Effect) -> Explained:
    few = batch.slice(0, FEWEST)
    alone = _side_by_side(case, few, size=1)
    within = "; asked one row at a time it gives the right answers, so rows change places within a call"
    return Explained(
        "row-order",
        Place(answers.names(pairs), (rule,), outputs=tuple(pair.spec.candidate for pair in pairs)),
        f"the candidate's answers to the first {len(batch):,} rows are the reference's in another order ({rule}): put "
        f"back they agree on {effect.told}" + (within if alone and rows_agreeing(alone, len(few)).all() else ""),
        "Look for a sort, shuffle, reverse or roll along the first axis of the export",
        share=effect.share,
        # That answers depend on the batch is true as well, and says less.
        simplicity=1,
    )


def _orders(pairs: Sequence[Pair]) -> Iterator[tuple[str, Array]]:
    """What is called how, and the rows of the candidate in the order that may be right; those with a rule first."""
    everywhere = np.arange(len(pairs[0].reference))
    yield "rows reversed", everywhere[::-1]
    numbers = [pair for pair in pairs if answers.is_number(pair)]
    if not numbers:
        return
    ours = np.concatenate([rows_of(pair.reference) for pair in numbers], axis=1).astype(np.float64)
    theirs = np.concatenate([rows_of(pair.candidate) for pair in numbers], axis=1).astype(np.float64)
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return
    # Rows that are the same have the same place along any one direction.
    direction = np.random.default_rng(0).normal(size=ours.shape[1]) / np.maximum(ours.std(axis=0), 1e-12)
    take = np.empty(len(ours), dtype=int)
    take[np.argsort(ours @ direction, kind="stable")] = np.argsort(theirs @ direction, kind="stable")
    shift = int(np.bincount((take - everywhere) % len(take)).argmax())
    yield f"rows shifted by {shift if shift <= len(take) // 2 else shift - len(take):+d}", np.roll(everywhere, -shift)
    steps = np.diff(theirs[:, 0])
    yield FREE[0] if (steps >= 0).all() or (steps <= 0).all() else FREE[1], take


def _tells(put_back: Sequence[Pair], effect: Effect, *, by_rule: bool) -> bool:
    """Could so many rows fall into place by chance? Not by a rule, nor if most answers are different ones.

    Answers that are put together by their size have to agree to the last digits: within a wide tolerance any would.
    """
    count = len(effect.failing)
    different = max(answers.distinct(pair.reference, limit=count) for pair in put_back)
    if by_rule:
        return different >= 2
    for pair in filter(answers.is_number, put_back):
        ours, theirs = rows_of(pair.reference).astype(np.float64), rows_of(pair.candidate).astype(np.float64)
        spread = np.maximum(ours.std(axis=0), np.finfo(np.float64).tiny)
        if np.quantile(np.abs(theirs - ours) / spread, NEARLY_ALL) > LAST_DIGITS:
            return False
    return different >= FREE_ORDER * count and effect.share >= 0.99


EXTENSIONS = (batches, positions, row_order)
