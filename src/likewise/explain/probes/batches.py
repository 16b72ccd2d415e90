"""Answers that depend on how many rows are asked about at once, or on the neighbours of a row among them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from likewise.compare import feed
from likewise.compare.call import Side, answers
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.verdict import Outcome
from likewise.errors import LikewiseError
from likewise.explain import experiment
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import ENOUGH, HARMLESS, Trial
from likewise.models.onnx import edits

ROWS = 192
"""Rows that are asked about again."""

FEWEST = 8
"""Rows that tell whether the size of a batch makes any difference."""

SIZES = (1, 2, 3, 4, 8, 32)
"""Batch sizes tried, beside all rows at once."""

DYNAMIC = "Export it with a dynamic batch axis (torch.onnx.export(..., dynamic_shapes=...))"

NOISE = 1e-5
"""Sums of other lengths are made in another order: so much of the largest value may change."""

LARGEST = 512
"""The largest batch size that is tried where the graph itself names it."""

ALONG_ROWS = re.compile(r"^(Reduce\w+|ArgMax|ArgMin|Softmax|LogSoftmax|Hardmax|CumSum|TopK|LpNormalization)$")
"""Operators that couple the rows of a call where they go along axis 0."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The candidate at several batch sizes: where it answers like the reference, where not, where not at all."""

    right: tuple[int, ...]
    wrong: tuple[int, ...]
    refused: tuple[int, ...]
    said: str = ""


class Batches:
    """Ask again at other batch sizes, among other neighbours and in other places."""

    causes = ("batch-dependence", "fixed-batch", "shape-specialization")
    needs_answers = False
    slow = True

    def plausible(self, case: Case) -> bool:
        return "candidate" in case.runners and "reference" in case.runners

    def test(self, case: Case) -> Sequence[Explained]:
        if case.sample is None or case.candidate is None:
            return list(self._refused(case))
        if not case.required.batch.stacked:
            return []
        failing = bool(case.required.failing.any())
        if case.comparison.fixed_batch is not None:
            return [] if failing else list(self._declared(case))
        if failing:
            return list(self._neighbours(case))
        return list(self._other_sizes(case))

    def _declared(self, case: Case) -> Iterator[Explained]:
        """It says itself that it takes one size only, and was found right at that."""
        size = case.comparison.fixed_batch
        if any(finding.code == "fixed-batch" for finding in case.verdict.findings):
            yield Explained(
                "fixed-batch",
                f"batch size {size}",
                f"the file declares {size} as the size of its batch axis, and agrees with the reference at that size",
                f"{DYNAMIC}, or say --fixed-batch",
                share=1.0,
                simplicity=1,
            )

    def _refused(self, case: Case) -> Iterator[Explained]:
        """It does not answer the rows as they are given: does it at another size?"""
        first = next(case.plan.source.batches(LARGEST), None)
        if first is None or not first.stacked or len(first) < 3:
            return
        sides = _sides(case, first)
        if sides is None:
            return
        sizes = sorted({size for size in (*range(1, 9), *_numbers_in(case)) if size <= len(first)})
        tried = self._tried(case, *sides, first, sizes)
        if not tried.right or (not tried.refused and not tried.wrong):
            return
        # One size alone is what it was traced with; several that work mean that the rows are at fault.
        if len(tried.right) == 1 and len(tried.refused) + len(tried.wrong) >= 2:
            size = tried.right[0]
            yield Explained(
                "fixed-batch",
                f"batch size {size}{_node_in(case, tried.said)}",
                f"the candidate answers batches of {size} like the reference, and refuses {_sizes(tried.refused)}: "
                f"{tried.said}"
                if tried.refused
                else f"the candidate answers batches of {size} like the reference, and not {_sizes(tried.wrong)}",
                f"{DYNAMIC}, or call it with {size} row(s): --batch-size {size} --fixed-batch",
                share=1.0,
                simplicity=1,
            )

    def _other_sizes(self, case: Case) -> Iterator[Explained]:
        """Right as it was run, and wrong or refusing at other sizes."""
        facts = case.comparison.batch_sizes
        refused = tuple(entry.size for entry in facts if entry.incidents)
        counted = tuple(entry.size for entry in facts if entry.mismatches)
        wrong = {check.batch_size for check in case.verdict.checks if check.outcome is Outcome.FAIL} - {None}
        wrong_sizes = tuple(sorted({size for size in wrong if size is not None} | set(counted)))
        right = tuple(entry.size for entry in facts if entry.size not in (*refused, *wrong_sizes))
        if refused or counted:
            said = next((e.incidents[0].message for e in facts if e.incidents), "") or next(
                (e.mismatches[0].message for e in facts if e.mismatches), ""
            )
            said = _shortened(said)
            lone = right if len(right) == 1 else ()
            yield Explained(
                "fixed-batch" if lone else "shape-specialization",
                f"batch size {lone[0] if lone else _sizes((*refused, *counted))}{_node_in(case, said)}",
                f"the candidate agrees at {_sizes(right) or 'the size of the main run'} and not at "
                f"{_sizes((*refused, *counted))}: {said}",
                DYNAMIC,
                share=1.0,
                simplicity=1,
            )
        elif wrong_sizes:
            yield from self._dependent(case, right, wrong_sizes)

    def _dependent(self, case: Case, right: Sequence[int], wrong: Sequence[int]) -> Iterator[Explained]:
        if self._random(case, "candidate"):
            return
        neighbours = self._by_neighbours(case, max(wrong)) if max(wrong) > 1 else False
        lone = len(right) == 1 and not neighbours
        told = self._dynamic(case)
        yield Explained(
            "shape-specialization" if lone else "batch-dependence",
            f"batch size {_sizes(right)} (the only one it is right at)"
            if lone
            else f"batch size {_sizes(wrong)}{told or _coupled(case)}",
            f"the candidate answers like the reference at {_sizes(right) or 'the size of the main run'}, and the same "
            f"rows differently at {_sizes(wrong)}"
            + ("; at the same size, among other rows, a row is answered differently" if neighbours else "")
            + (f"{told}: the scale of the activations comes from all rows of a call" if told else ""),
            "Run it at the size it is deployed with (--batch-size N --fixed-batch)"
            if told
            else "Look for an operation along the batch axis, or a size written into the graph when it was traced",
            share=1.0,
            simplicity=2,
        )

    def _neighbours(self, case: Case) -> Iterator[Explained]:
        """Wrong as it was run: is it right, or merely different, alone or among other rows?"""
        if not any(self._varies(case, side) for side in ("candidate", "reference")):
            return
        positions = Trial.few(case, self._affordable(case)).positions
        failing = case.required.failing[positions]
        batch = case.rows(positions)
        for side in ("candidate", "reference"):
            if case.framework(side) == "recorded" or case.side(side).fixed_batch is not None:
                continue
            if not self._varies(case, side) or self._random(case, side):
                continue
            whole = case.ask(side, batch)
            if whole is None:
                continue
            alone = {size: case.ask(side, batch, size=size) for size in SIZES if size < len(positions)}
            cured = [
                size for size, given in alone.items() if given is not None and self._cures(case, side, positions, given)
            ]
            moved = [
                size
                for size, given in alone.items()
                if given is not None
                and experiment.rows_apart(case, side, whole, given, floor=NOISE)[failing].mean() >= ENOUGH
            ]
            if not moved or not failing.any():
                continue
            told = self._dynamic(case) if side == "candidate" else ""
            whose = _coupled(case) if side == "candidate" else " of the reference"
            if cured:
                given = alone[cured[0]]
                assert given is not None
                effect = Trial(case, positions).effect(**{side: given})
                neighbours = side == "candidate" and self._by_neighbours(case, len(positions))
                lone = side == "candidate" and len(cured) == 1 and not neighbours and not told
                yield Explained(
                    "shape-specialization" if lone else "batch-dependence",
                    f"batch size {_sizes(cured)}{whose} (the only one it is right at)"
                    if lone
                    else f"batch size {len(positions)}{whose}{told}",
                    f"asked {_sizes(cured)} rows at a time, the {side} agrees with the other on "
                    f"{int(effect.covered.sum())} of {int(effect.failing.sum())} failing rows"
                    + (f"{told}: the scale of the activations comes from all rows of a call" if told else ""),
                    "Look for an operation along the batch axis, or a size written into the graph when it was traced",
                    covered=Trial(case, positions).mask(effect.covered),
                    share=effect.share,
                    simplicity=4 if told else 2,
                )
                continue
            if told:
                # Numbers that are quantised by the range of a call move a little with it; that is no cause by itself.
                continue
            given = alone[moved[0]]
            assert given is not None
            rows = experiment.rows_apart(case, side, whole, given, floor=NOISE)
            covered = rows & failing
            yield Explained(
                "batch-dependence",
                f"batch size{whose}",
                f"the {side} answers {int(covered.sum())} of {int(failing.sum())} failing rows differently when "
                f"they are asked {_sizes(moved)} at a time; an answer should depend on its own row alone",
                "Look for an operation along the batch axis (a mean, a softmax or a normalisation over axis 0)",
                covered=Trial(case, positions).mask(covered),
                share=float(covered.sum() / max(int(failing.sum()), 1)),
                simplicity=3,
            )

    def _cures(self, case: Case, side: str, positions: Array, given: Tensors) -> bool:
        effect = Trial(case, positions).effect(**{side: given})
        before = Trial(case, positions).gap()
        near = not before or Trial(case, positions).gap(**{side: given}) <= experiment.NEARER * before
        return near and effect.share >= ENOUGH and effect.damage <= HARMLESS

    def _varies(self, case: Case, side: str) -> bool:
        """Is anything of a few rows answered differently alone, together, and among all the others before?"""
        return case.once(_varies, side)

    def _affordable(self, case: Case) -> int:
        """Rows that can be asked about one at a time without using up the budget."""
        began = time.monotonic()
        one = case.rows(Trial.few(case, 1).positions)
        for side in ("candidate", "reference"):
            case.ask(side, one)
        return max(16, min(ROWS, int(case.seconds_left() / 8 / max(time.monotonic() - began, 1e-4))))

    def _by_neighbours(self, case: Case, size: int) -> bool:
        """Is a row answered differently at the same batch size, among other rows or in another place?"""
        positions = Trial.few(case, min(max(size, 2) * 2, ROWS)).positions
        size = min(max(size, 2), len(positions) // 2)
        if size < 2:
            return False
        first, second = positions[:size], positions[size : 2 * size]
        one, turned = (case.ask("candidate", case.rows(rows)) for rows in (first, first[::-1]))
        if one is None or turned is None:
            return False
        back = {name: array[::-1] for name, array in turned.items()}
        if experiment.rows_apart(case, "candidate", one, back, floor=NOISE).any():
            return True
        for kept in (0, 1):
            mixed = np.where(np.arange(size) % 2 == kept, first, second)
            other = case.ask("candidate", case.rows(mixed))
            if other is None:
                return False
            if experiment.rows_apart(case, "candidate", one, other, floor=NOISE)[kept::2].any():
                return True
        return False

    def _random(self, case: Case, side: str) -> bool:
        """Does it answer differently every time? Then sizes have nothing to do with it."""
        batch = case.rows(Trial.few(case).positions)
        one, other = case.ask(side, batch), case.ask(side, batch)
        return one is None or other is None or bool(experiment.rows_apart(case, side, one, other).any())

    def _dynamic(self, case: Case) -> str:
        """The operator that quantises by the range of all rows of a call."""
        proto = case.graph()
        dynamic = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM")
        nodes = [] if proto is None else [n for n in edits.all_nodes(proto.graph) if n.op_type in dynamic]
        return f" ({nodes[0].op_type})" if nodes else ""

    def _tried(self, case: Case, reference: Side, candidate: Side, first: Batch, sizes: Sequence[int]) -> Tried:
        """Which sizes it answers like the reference."""
        right: list[int] = []
        wrong: list[int] = []
        refused: list[int] = []
        said = ""
        for size in sizes:
            case.require_time()
            part = first.slice(0, size)
            try:
                ours, _ = answers(reference, part)
            except LikewiseError:
                continue
            try:
                theirs, _ = answers(candidate, part)
            except LikewiseError as error:
                refused.append(size)
                said = said or _shortened(error.message)
                continue
            (right if _alike(ours, theirs, case.tolerance.absolute + 1e-3) else wrong).append(size)
        return Tried(tuple(right), tuple(wrong), tuple(refused), said)


def _sides(case: Case, first: Batch) -> tuple[Side, Side] | None:
    """Both models ready to be fed, where the comparison itself did not come so far."""
    reference, candidate = case.runners["reference"], case.runners["candidate"]
    try:
        ours = feed.plan(first, reference.signature, side="reference", mapping=case.plan.feed)
        order = ours.columns if reference.signature.table else None
        theirs = feed.plan(first, candidate.signature, side="candidate", order=order, mapping=case.plan.feed)
    except LikewiseError:
        return None
    return (
        Side("reference", case.plan.reference.name, reference, ours),
        Side("candidate", case.plan.candidate.name, candidate, theirs),
    )


def _alike(ours: Tensors, theirs: Tensors, tolerance: float) -> bool:
    """Is each of the candidate's outputs among the reference's? Which belongs to which is not known yet."""
    for given in theirs.values():
        same = False
        for wanted in ours.values():
            if wanted.size != given.size:
                continue
            if wanted.dtype.kind in "biuf" and given.dtype.kind in "biuf":
                flat, other = given.reshape(-1).astype(np.float64), wanted.reshape(-1).astype(np.float64)
                same |= bool(np.allclose(flat, other, rtol=1e-2, atol=tolerance, equal_nan=True))
            else:
                same |= bool((given.reshape(-1).astype(str) == wanted.reshape(-1).astype(str)).all())
        if same:
            return True
    return False


def _numbers_in(case: Case) -> list[int]:
    """Sizes that are written into the graph: of shapes that it makes, and of constants that it adds."""
    proto = case.graph()
    if proto is None:
        return []
    found: set[int] = set()
    for array in edits.constants(proto.graph).values():
        if array.dtype.kind == "i" and 0 < array.size <= 8:
            found.update(int(value) for value in array.reshape(-1) if 1 < value <= LARGEST)
        elif array.ndim > 1 and 1 < array.shape[0] <= LARGEST:
            found.add(array.shape[0])
    return sorted(found)[:12]


def _coupled(case: Case) -> str:
    """The only operator that goes along the rows, where there is one."""
    proto = case.graph()
    if proto is None:
        return ""
    stored = edits.constants(proto.graph)
    found = []
    for node in edits.all_nodes(proto.graph):
        if ALONG_ROWS.match(node.op_type):
            given = edits.attribute(node, "axes", edits.attribute(node, "axis"))
            if given is None and len(node.input) > 1 and node.input[1] in stored:
                given = stored[node.input[1]].reshape(-1).tolist()
            if given == 0 or (isinstance(given, list) and 0 in given):
                found.append(edits.place(node))
    return f" ({found[0]} along the rows)" if len(found) == 1 else ""


def _node_in(case: Case, said: str) -> str:
    """The node that a refusal names."""
    proto = case.graph()
    nodes = [] if proto is None else [node for node in proto.graph.node if node.name and f"'{node.name}'" in said]
    return f" ({edits.place(nodes[0])})" if nodes else ""


def _shortened(said: str) -> str:
    """What a runtime says, without the line of its source that says it."""
    said = re.sub(r"Status Message: .*?(?:was false\.|\) )\s*", "", said)
    return said if len(said) <= 300 else said[:299] + "…"


def _sizes(sizes: Sequence[int]) -> str:
    return ", ".join(str(size) for size in sorted(set(sizes)))


def _varies(case: Case, side: str) -> bool:
    few = Trial.few(case, FEWEST)
    given = few.reference if side == "reference" else few.candidate
    asked = [case.ask(side, few.batch, size=size) for size in (1, None)]
    return any(
        other is not None and experiment.rows_apart(case, side, given, other, floor=NOISE).any() for other in asked
    )


EXTENSION = Batches()
