"""The right answers to other rows: the candidate gives them back in another order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from likewise.compare.differences import is_numeric, rows_of
from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Mismatch, Pair, Tolerance
from likewise.contracts.data import Array, Batch
from likewise.contracts.models import Kind
from likewise.explain import answers
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Effect

FEWEST_ROWS = 12
MOST_ROWS = 1_024
"""Rows asked about at once to see their order."""

NEARLY_ALL = 0.95
LAST_DIGITS = 3e-5
"""Of the spread of the answers: what float32 leaves open. Answers of other rows are further apart."""

FREE_ORDER = 0.5
"""An order without a rule is believed only where at least this share of the answers are different ones."""

NEAR = 0.02
"""Rows with the same answers are at most so far apart, in standard deviations."""

ONE_BY_ONE = 16
WIDEST = 64
"""Columns that rows are told apart by."""


@dataclass(frozen=True, slots=True)
class Order:
    """`take` puts the candidate's rows right; `rule` says how they were put wrong."""

    rule: str
    take: Array
    free: bool = False


class RowOrder:
    """Put the candidate's answers into the order in which they fit the reference's, and compare."""

    causes = ("row-order",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        batch = case.required.batch
        return answers.complete(case) and batch.stacked and len(batch) >= FEWEST_ROWS

    def test(self, case: Case) -> Sequence[Explained]:
        batch = next(iter(case.plan.source.batches(MOST_ROWS)))
        if len(batch) < FEWEST_ROWS:
            return []
        ours, theirs = case.ask("reference", batch), case.ask("candidate", batch)
        if ours is None or theirs is None:
            return []
        pairs = [
            pair
            for pair in case.pairs(batch, ours, theirs, tolerance=_forgiving(case.tolerance))
            if not isinstance(pair, Mismatch)
        ]
        failing = _beyond(pairs)
        if len(pairs) != len(case.specs) or failing.sum() < FEWEST_ROWS // 2:
            return []
        # An output that agrees as it is was not moved.
        moved = [pair for pair in pairs if rows_beyond(pair).any()]
        kept = [pair for pair in pairs if not rows_beyond(pair).any()]
        for order in _orders([_narrowed(pair) for pair in moved]):
            effect = Effect(~_beyond([*kept, *(_reordered(pair, order.take) for pair in moved)]), failing)
            if effect.share >= NEARLY_ALL and effect.explains and _tells(moved, order, effect):
                return [self._explained(case, batch, moved, order, effect)]
        return []

    def _explained(self, case: Case, batch: Batch, pairs: list[Pair], order: Order, effect: Effect) -> Explained:
        count = min(ONE_BY_ONE, len(batch))
        few = batch.slice(0, count)
        ours, theirs = case.ask("reference", few), case.ask("candidate", few, size=1)
        alone = ""
        if ours is not None and theirs is not None:
            pieces = case.pairs(few, ours, theirs, tolerance=_forgiving(case.tolerance))
            if not any(isinstance(pair, Mismatch) or rows_beyond(pair).any() for pair in pieces):
                alone = "; asked one row at a time it gives the right answers, so rows change places within a call"
        return Explained(
            "row-order",
            f"{answers.names(pairs)} ({order.rule})",
            f"the candidate's answers to the first {len(batch):,} rows are the reference's in another order "
            f"({order.rule}): put back they agree on {answers.told(effect)}{alone}",
            "Look for a sort, shuffle, reverse or roll along the first axis of the export",
            share=effect.share,
            # That answers depend on the batch is true as well, and says less.
            simplicity=1,
        )


def _forgiving(tolerance: Tolerance) -> Tolerance:
    rounding = answers.ROUNDING
    return Tolerance(max(tolerance.absolute, rounding.absolute), max(tolerance.relative, rounding.relative))


def _beyond(pairs: Sequence[Pair]) -> Array:
    beyond: Array = rows_beyond(pairs[0])
    for pair in pairs[1:]:
        beyond = beyond | rows_beyond(pair)
    return beyond


def _reordered(pair: Pair, take: Array) -> Pair:
    return replace(pair, candidate=pair.candidate[take])


def _narrowed(pair: Pair) -> Pair:
    """Some columns of a wide output: enough to tell its rows apart."""
    width = rows_of(pair.reference).shape[1]
    if width <= WIDEST:
        return pair
    columns = np.unique(np.linspace(0, width - 1, WIDEST).astype(int))
    ours, theirs = rows_of(pair.reference)[:, columns], rows_of(pair.candidate)[:, columns]
    return replace(pair, reference=ours, candidate=theirs)


def _orders(pairs: Sequence[Pair]) -> Iterator[Order]:
    """Orders worth a trial, those with a rule first."""
    count = len(pairs[0].reference)
    everywhere = np.arange(count)
    yield Order("rows reversed", everywhere[::-1])
    for shift in _shifts(pairs):
        yield Order(
            f"rows shifted by {shift if shift <= count // 2 else shift - count:+d}", np.roll(everywhere, -shift)
        )
    for size in (2, 4, 8, 16, 32, 64, 128, 256, 512):
        if size * 2 <= count:
            blocks = everywhere[: count // size * size].reshape(-1, size)
            rest = everywhere[count // size * size :]
            yield Order(f"rows reversed in blocks of {size}", np.concatenate([blocks[:, ::-1].ravel(), rest[::-1]]))
    free = _matched(pairs)
    if free is not None:
        column = _column(pairs)
        ordered = np.diff(column) if column is not None else np.array([np.nan])
        told = (
            "rows sorted by the answer"
            if (ordered >= 0).all() or (ordered <= 0).all()
            else "rows shuffled without a rule"
        )
        yield Order(told, free, free=True)


def _shifts(pairs: Sequence[Pair]) -> list[int]:
    """By how many rows the answers may be shifted: where the first of them are found."""
    pair = max(pairs, key=lambda one: answers.distinct(one.reference))
    count = len(pair.reference)
    votes = np.zeros(count, dtype=int)
    probes = np.unique(np.linspace(0, count - 1, 12).astype(int))
    for row in probes:
        wanted = np.broadcast_to(pair.reference[row], pair.candidate.shape)
        same = answers.agreeing(_only(pair, wanted), pair.candidate)
        votes[(np.flatnonzero(same) - row) % count] += 1
    likely = [int(shift) for shift in np.argsort(-votes, kind="stable")[:8] if votes[shift] >= len(probes) - 2]
    return [shift for shift in likely if shift]


def _only(pair: Pair, reference: Array) -> Pair:
    return replace(pair, reference=reference, margin=None, noise=None)


def _matched(pairs: Sequence[Pair]) -> Array | None:
    """For each row of the reference the candidate's row with the same answers, each used once."""
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial import cKDTree

    numbers = [pair for pair in pairs if is_numeric(pair.reference) and is_numeric(pair.candidate)]
    numbers = [pair for pair in numbers if pair.spec.kind is not Kind.LABEL]
    if not numbers:
        return None
    ours = np.concatenate([rows_of(pair.reference) for pair in numbers], axis=1).astype(np.float64)
    theirs = np.concatenate([rows_of(pair.candidate) for pair in numbers], axis=1).astype(np.float64)
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return None
    spread = np.maximum(ours.std(axis=0), 1e-12)
    if ours.shape[1] == 1:
        take = np.empty(len(ours), dtype=int)
        take[np.argsort(ours[:, 0], kind="stable")] = np.argsort(theirs[:, 0], kind="stable")
        return take
    apart, nearest = cKDTree(theirs / spread).query(ours / spread)
    if len(np.unique(nearest)) == len(nearest):
        return np.asarray(nearest)
    if len(ours) > MOST_ROWS or np.quantile(apart, NEARLY_ALL) > NEAR:
        return None
    apart = np.abs((ours / spread)[:, None, 0] - (theirs / spread)[None, :, 0])
    for column in range(1, min(ours.shape[1], 16)):
        apart += np.abs((ours / spread)[:, None, column] - (theirs / spread)[None, :, column])
    _, take = linear_sum_assignment(apart)
    return np.asarray(take)


def _tells(pairs: Sequence[Pair], order: Order, effect: Effect) -> bool:
    """Could so many rows fall into place by chance? Not by a rule, nor if most answers are different ones."""
    count = len(pairs[0].reference)
    if (order.take == np.arange(count)).all():
        return False
    different = max(answers.distinct(pair.reference, limit=count) for pair in pairs)
    if not order.free:
        return different >= 2 and effect.failing.sum() >= FEWEST_ROWS // 2
    return different >= FREE_ORDER * count and effect.share >= 0.99 and _exact(pairs, order)


def _exact(pairs: Sequence[Pair], order: Order) -> bool:
    """Do answers put together by their size agree to the last digits? Within a wide tolerance any answers would."""
    for pair in pairs:
        if pair.spec.kind is not Kind.LABEL and is_numeric(pair.reference) and is_numeric(pair.candidate):
            ours, theirs = rows_of(pair.reference).astype(np.float64), rows_of(pair.candidate).astype(np.float64)
            spread = np.maximum(ours.std(axis=0), np.finfo(np.float64).tiny)
            if np.quantile(np.abs(theirs[order.take] - ours) / spread, NEARLY_ALL) > LAST_DIGITS:
                return False
    return True


def _column(pairs: Sequence[Pair]) -> Array | None:
    """The candidate's first column of numbers that are no labels."""
    for pair in pairs:
        if pair.spec.kind is not Kind.LABEL and is_numeric(pair.candidate):
            return rows_of(pair.candidate)[:, 0].astype(np.float64)
    return None


EXTENSION = RowOrder()
