"""Answers that depend on how many rows are asked about at once, on the neighbours of a row, or on its length."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from likewise.compare.call import Side, answers
from likewise.compare.variations.axes import Axis, at_length, axes_of
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.report import Place
from likewise.contracts.verdict import Outcome
from likewise.data.columns import ArrayColumns
from likewise.errors import LikewiseError
from likewise.explain import experiment, trace
from likewise.explain.case import Case, Explained, Fix, made_once, probe
from likewise.explain.experiment import ENOUGH, Effect, Trial
from likewise.explain.features import fed_sides
from likewise.models.onnx import edits, interface

ROWS = 192
"""Rows that are asked about again."""

FEWEST = 8
"""Rows that tell whether the size of a batch makes any difference."""

SIZES = (1, 2, 3, 4, 8, 32)
"""Batch sizes tried, beside all rows at once."""

LARGEST, MOST_SIZES = 512, 12
"""The largest batch size or length that is tried where the graph itself names it, and how many of those."""

ROWS_OF_A_LENGTH = 32
"""Rows that are given other lengths."""

NOISE = 1e-5
"""Sums of other lengths are made in another order: so much of the largest value may change."""

SHARE_OF_TIME = 1 / 8
"""Of the time left, so much may go to asking about rows one at a time."""

ALONG_ROWS = re.compile(r"^(Reduce\w+|ArgMax|ArgMin|Softmax|LogSoftmax|Hardmax|CumSum|TopK|LpNormalization)$")
"""Operators that couple the rows of a call where they go along axis 0."""

BY_RANGE = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM")
"""Operators that quantise by the range of all rows of a call."""

DYNAMIC = "Export it with a dynamic batch axis (torch.onnx.export(..., dynamic_shapes=...))"
LOOK_FOR = "Look for an operation along the batch axis, or a size written into the graph when it was traced"
RANGE_OF_A_CALL = "the scale of the activations comes from all rows of a call"


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


def _lengths_plausible(case: Case) -> bool:
    if case.sample is None or case.candidate is None or not isinstance(case.sample.batch.inputs, ArrayColumns):
        return False
    suites = case.verdict.suites
    elsewhere = any(s.kind == "shape" and s.blocks and s.outcome is Outcome.FAIL for s in suites)
    return bool((case.sample.failing.any() or elsewhere) and _axes(case))


@probe("shape-specialization", when=_lengths_plausible, needs_answers=False)
def lengths(case: Case) -> Explained | None:
    """Give both models inputs of other lengths, and see at which they agree."""
    batch = Trial.few(case, ROWS_OF_A_LENGTH).batch
    for axis in _axes(case):
        agreed = {length: _agree(case, at_length(batch, axis, length)) for length in _lengths(case, axis)}
        right = [length for length, agrees in agreed.items() if agrees is True]
        wrong = [length for length, agrees in agreed.items() if agrees is False]
        if len(right) == 1 and len(wrong) >= 2:
            return _right_at_one_length(axis, right[0], wrong)
    return None


def _declared(case: Case) -> Iterator[Explained]:
    """It says itself that it takes one size only, and was found right at that."""
    size = case.comparison.fixed_batch
    if any(finding.code == "fixed-batch" for finding in case.verdict.findings):
        yield Explained(
            "fixed-batch",
            Place(f"batch size {size}"),
            f"the file declares {size} as the size of its batch axis, and agrees with the reference at that size",
            f"{DYNAMIC}, or use --fixed-batch",
            simplicity=1,
            fixes=_left_free(case, size),
        )


def _left_free(case: Case, size: int | None) -> tuple[Fix, ...]:
    """The batch axis of the graph left free, where it stands for one size."""
    proto = case.graph()
    if proto is None or size is None:
        return ()
    return (Fix(f"the batch axis left free, which was {size}", lambda: interface.any_batch(proto, size)),)


def _refused(case: Case) -> Iterator[Explained]:
    """It does not answer the rows as they are given: does it at another size?"""
    first = next(case.plan.source.batches(LARGEST), None)
    sides = None if first is None or not first.stacked or len(first) < 3 else fed_sides(case, first)
    if first is None or sides is None:
        return
    sizes = sorted({size for size in (*range(1, 9), *_numbers_in(case)[:MOST_SIZES]) if size <= len(first)})
    tried = {size: _answered_like(case, *sides, first.slice(0, size)) for size in sizes}
    right = [size for size, told in tried.items() if told is True]
    refused = {size: told for size, told in tried.items() if isinstance(told, str)}
    wrong = [size for size, told in tried.items() if told is False]
    # One size alone is what it was traced with; several that work mean that the rows are at fault.
    if len(right) == 1 and len(refused) + len(wrong) >= 2:
        said = next(iter(refused.values()), "")
        not_so = f"refuses {_sizes(list(refused))}: {said}" if refused else f"not {_sizes(wrong)}"
        yield Explained(
            "fixed-batch",
            _place(f"batch size {right[0]}", _node_in(case, said)),
            f"the candidate answers batches of {right[0]} like the reference, and {not_so}",
            f"{DYNAMIC}, or call it with {right[0]} row(s): --batch-size {right[0]} --fixed-batch",
            simplicity=1,
            fixes=_left_free(case, right[0]),
        )


def _answered_like(case: Case, reference: Side, candidate: Side, part: Batch) -> bool | str | None:
    """Does the candidate answer like the reference, or what does it say? None if the reference refuses."""
    case.require_time()
    try:
        ours, _ = answers(reference, part)
    except LikewiseError:
        return None
    try:
        theirs, _ = answers(candidate, part)
    except LikewiseError as error:
        return _shortened(error.message)
    return _alike(ours, theirs, case.tolerance.absolute + 1e-3)


def _other_sizes(case: Case) -> Iterator[Explained]:
    """Right as it was run, and wrong or refusing at other sizes."""
    facts = case.comparison.batch_sizes
    # A batch with another number of answers than rows is as good as a refusal.
    refusing = {entry.size: entry.mismatches[0].message for entry in facts if entry.mismatches}
    refusing |= {entry.size: entry.incidents[0].message for entry in facts if entry.incidents}
    failed = {check.batch_size for check in case.verdict.checks if check.outcome is Outcome.FAIL}
    wrong = tuple(sorted(size for size in failed if size is not None))
    right = tuple(entry.size for entry in facts if entry.size not in (*refusing, *wrong))
    told = _sizes(right) or "the size of the main run"
    if refusing:
        said = _shortened(next(iter(refusing.values())))
        lone = len(right) == 1
        yield Explained(
            "fixed-batch" if lone else "shape-specialization",
            _place(f"batch size {_sizes(right if lone else tuple(refusing))}", _node_in(case, said)),
            f"the candidate agrees at {told} and not at {_sizes(tuple(refusing))}: {said}",
            DYNAMIC,
            simplicity=1,
            fixes=_left_free(case, right[0]) if lone else (),
        )
    elif wrong and not experiment.answers_vary(case, "candidate"):
        neighbours = _by_neighbours(case, max(wrong)) if max(wrong) > 1 else False
        lone = len(right) == 1 and not neighbours
        ranged = _ranged(case)
        yield Explained(
            "shape-specialization" if lone else "batch-dependence",
            Place(f"batch size {_sizes(right)}", ("the only one it is right at",))
            if lone
            else _place(f"batch size {_sizes(wrong)}", ranged or _coupled(case)),
            f"the candidate answers like the reference at {told}, and the same rows differently at {_sizes(wrong)}"
            + ("; at the same size, among other rows, a row is answered differently" if neighbours else "")
            + (f" ({ranged}): {RANGE_OF_A_CALL}" if ranged else ""),
            "Run it at the size it is deployed with (--batch-size N --fixed-batch)" if ranged else LOOK_FOR,
            simplicity=2,
        )


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
        if whole is None or not trial.failing.any():
            continue
        apart = {
            size: Effect(experiment.rows_apart(case, side, whole, given, floor=NOISE), trial.failing)
            for size, given in alone.items()
        }
        moved = [size for size, effect in apart.items() if effect.share >= ENOUGH]
        if moved:
            yield from _dependent(trial, side, alone, moved, apart[moved[0]])


def _dependent(
    trial: Trial, side: str, alone: dict[int, Tensors], moved: Sequence[int], apart: Effect
) -> Iterator[Explained]:
    """A side whose answers move with the rows of a call: what is right at other sizes, or only different there."""
    case, ours = trial.case, side == "candidate"
    answered = {size: (None, given) if ours else (given, None) for size, given in alone.items()}
    effects = {
        size: trial.effect(reference=reference, candidate=candidate)
        for size, (reference, candidate) in answered.items()
        if trial.nearer(reference=reference, candidate=candidate)
    }
    cured = [size for size, effect in effects.items() if effect.explains]
    ranged = _ranged(case) if ours else None
    whose = _coupled(case) if ours else None
    if cured:
        effect = effects[cured[0]]
        lone = ours and len(cured) == 1 and ranged is None and not _by_neighbours(case, len(trial))
        yield Explained(
            "shape-specialization" if lone else "batch-dependence",
            Place(f"batch size {_sizes(cured)}", ("the only one it is right at",))
            if lone
            else _place(f"batch size {len(trial)}", ranged or whose, side),
            f"asked {_sizes(cured)} rows at a time, the {side} agrees with the other on {effect.told}"
            + (f" ({ranged}): {RANGE_OF_A_CALL}" if ranged else ""),
            LOOK_FOR,
            covered=trial.mask(effect.covered),
            share=effect.share,
            simplicity=4 if ranged else 2,
        )
    elif ranged is None:
        # Numbers that are quantised by the range of a call move a little with it; that is no cause by itself.
        yield Explained(
            "batch-dependence",
            _place("batch size", whose, side),
            f"the {side} answers {apart.told} differently when they are asked {_sizes(moved)} at a time; an answer "
            "should depend on its own row alone",
            "Look for an operation along the batch axis (a mean, a softmax or a normalisation over axis 0)",
            covered=trial.mask(apart.covered),
            share=apart.share,
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
    began = time.monotonic()
    one = Trial.few(case, 1).batch
    for side in ("candidate", "reference"):
        case.ask(side, one)
    return max(16, min(ROWS, int(case.seconds_left() * SHARE_OF_TIME / max(time.monotonic() - began, 1e-4))))


def _by_neighbours(case: Case, size: int) -> bool:
    """Is a row answered differently at the same batch size, among other rows or in another place?"""
    positions = Trial.few(case, min(max(size, 2) * 2, ROWS)).positions
    size = min(max(size, 2), len(positions) // 2)
    if size < 2:
        return False
    first, second = positions[:size], positions[size : 2 * size]
    even = np.arange(size) % 2 == 0
    one = case.ask("candidate", case.rows(first))
    turned = case.ask("candidate", case.rows(first[::-1]))
    if one is None or turned is None:
        return False
    back = {name: array[::-1] for name, array in turned.items()}
    if experiment.rows_apart(case, "candidate", one, back, floor=NOISE).any():
        return True
    for kept in (even, ~even):
        other = case.ask("candidate", case.rows(np.where(kept, first, second)))
        if other is None:
            return False
        if experiment.rows_apart(case, "candidate", one, other, floor=NOISE)[kept].any():
            return True
    return False


def _ranged(case: Case) -> Place | None:
    """The operator that quantises by the range of all rows of a call."""
    proto = case.graph()
    nodes = [] if proto is None else [node for node in edits.all_nodes(proto.graph) if node.op_type in BY_RANGE]
    return replace(trace.place_of(nodes[0]), name=nodes[0].op_type, details=()) if nodes else None


def _coupled(case: Case) -> Place | None:
    """The only operator that goes along the rows, where there is one."""
    proto = case.graph()
    stored = {} if proto is None else edits.constants(proto.graph)
    found = []
    for node in () if proto is None else edits.all_nodes(proto.graph):
        if ALONG_ROWS.match(node.op_type):
            given = edits.attribute(node, "axes", edits.attribute(node, "axis"))
            if given is None and len(node.input) > 1 and node.input[1] in stored:
                given = stored[node.input[1]].reshape(-1).tolist()
            if given == 0 or (isinstance(given, list) and 0 in given):
                found.append(trace.place_of(node))
    if len(found) != 1:
        return None
    return Place(f"{found[0]} along the rows", nodes=found[0].nodes, tensors=found[0].tensors)


def _node_in(case: Case, said: str) -> Place | None:
    """The node that a refusal of the runtime names."""
    proto = case.graph()
    nodes = [] if proto is None else [node for node in proto.graph.node if node.name and f"'{node.name}'" in said]
    return trace.place_of(nodes[0]) if nodes else None


def _alike(ours: Tensors, theirs: Tensors, tolerance: float) -> bool:
    """Is one of the candidate's outputs among the reference's? Which belongs to which is not known yet."""
    return any(
        wanted.size == given.size and _close(given.reshape(-1), wanted.reshape(-1), tolerance)
        for given in theirs.values()
        for wanted in ours.values()
    )


def _close(given: Array, wanted: Array, tolerance: float) -> bool:
    if wanted.dtype.kind in "biuf" and given.dtype.kind in "biuf":
        wide, other = given.astype(np.float64), wanted.astype(np.float64)
        return bool(np.allclose(wide, other, rtol=1e-2, atol=tolerance, equal_nan=True))
    return bool((given.astype(str) == wanted.astype(str)).all())


def _numbers_in(case: Case, *, lengths: bool = False) -> list[int]:
    """Sizes that are written into the graph: of shapes that it makes, and of constants that it adds.

    A length may be any number of a constant or of its shape; a batch size is a whole one, or that of a first axis.
    """
    proto = case.graph()
    found: set[int] = set()
    for array in () if proto is None else edits.constants(proto.graph).values():
        if array.dtype.kind in ("if" if lengths else "i") and 0 < array.size <= 8:
            found.update(int(v) for v in array.reshape(-1) if 1 < v <= LARGEST and float(v).is_integer())
        axes = array.shape if lengths else array.shape[:1] if array.ndim > 1 else ()
        found.update(size for size in axes if 1 < size <= LARGEST)
    return sorted(found)


def _shortened(said: str) -> str:
    """What a runtime says, without the line of its source that says it."""
    said = re.sub(r"Status Message: .*?(?:was false\.|\) )\s*", "", said)
    return said if len(said) <= 300 else said[:299] + "…"


def _sizes(sizes: Sequence[int]) -> str:
    return ", ".join(str(size) for size in sorted(set(sizes)))


def _axes(case: Case) -> tuple[Axis, ...]:
    return axes_of(case.side("candidate").feed, case.required.batch)


def _lengths(case: Case, axis: Axis) -> list[int]:
    """The length of the data, some beside it, and numbers that stand in the graph."""
    beside = [axis.length, axis.length - 1, axis.length + 1, axis.length // 2]
    return list(dict.fromkeys(size for size in (*beside, *_numbers_in(case, lengths=True)) if size > 0))[:MOST_SIZES]


def _agree(case: Case, batch: Batch) -> bool | None:
    """Do both models agree on these rows? A candidate that refuses them does not; None if the reference does."""
    ours, theirs = case.ask("reference", batch), case.ask("candidate", batch)
    if ours is None:
        return None
    return theirs is not None and bool(case.agreeing(batch, ours, theirs).all())


def _right_at_one_length(axis: Axis, right: int, wrong: Sequence[int]) -> Explained:
    name, number = axis.places[0]
    return Explained(
        "shape-specialization",
        Place(name, (f"axis {number}", f"right only at length {right}"), columns=(name,)),
        f"with inputs of length {right} both models agree; at lengths {_sizes(wrong)} they do not"
        + (f", among them the {axis.length} of this data" if axis.length in wrong else ""),
        "Do not make Python numbers of shapes in forward (int(x.shape[1]), len(x)); export again, or deploy it for "
        f"length {right} only",
        simplicity=1,
    )


EXTENSIONS = (batches, positions, lengths)
