"""The right numbers in the wrong place: class columns in another order, outputs under each other's names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from likewise.compare.differences import is_numeric
from likewise.contracts.comparison import Pair, Tolerance
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.explain import answers, links, parts
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Effect

ALIKE = 0.98
"""An output is another one's if it agrees with it on this share of the rows."""

EXACT = 0.995
MOST_NAMED = 12
"""Columns that are named one by one."""


class ColumnOrder:
    """Put the candidate's columns, or its outputs, into the order that fits the reference best, and compare again."""

    causes = ("label-order", "output-mapping")
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return answers.complete(case)

    def test(self, case: Case) -> Sequence[Explained]:
        return [*self._columns(case), *self._outputs(case)]

    def _columns(self, case: Case) -> list[Explained]:
        orders: dict[int, tuple[int, ...]] = {}
        for position in answers.failing(case):
            pair = answers.pairs(case)[position]
            if is_numeric(pair.reference) and is_numeric(pair.candidate):
                order = answers.column_order(pair.reference, pair.candidate, pair.tolerance)
                if order is not None:
                    orders[position] = order
        changed = {position: answers.pairs(case)[position].candidate[:, order] for position, order in orders.items()}
        effect = answers.convincing(case, changed) if changed else None
        if effect is None:
            orders, effect = _before_base_score(case)
        if effect is None:
            return []
        # Probabilities tell the most; a row of labels has the same order.
        position = min(orders, key=lambda p: answers.pairs(case)[p].spec.kind is Kind.LABEL)
        pair, order = answers.pairs(case)[position], orders[position]
        of_classes = _of_classes(case, pair)
        names = [str(name) for name in pair.spec.classes or range(len(order))]
        renamed = pair.spec.columns is not None and [pair.spec.columns[i] for i in order] == list(range(len(order)))
        where = _named(pair.spec.columns, names) if renamed and pair.spec.columns else _where(order, names)
        concerned = [answers.pairs(case)[p] for p in orders]
        outputs = answers.names(concerned)
        return [
            Explained(
                "label-order" if of_classes else "output-mapping",
                answers.culprit(concerned, where),
                f"with the {'classes' if of_classes else 'columns'} of {outputs} put into the reference's order, "
                f"the candidate agrees on {answers.told(effect)}",
                _remedy(order, names, renamed=renamed, of_classes=of_classes),
                covered=effect.covered,
                # Numbers that are all there, each in another place, are no other numbers.
                simplicity=1 if effect.share >= EXACT else 2,
            )
        ]

    def _outputs(self, case: Case) -> list[Explained]:
        """Outputs that carry what belongs to another one."""
        pairs = answers.pairs(case)
        taken: dict[int, int] = {}
        for mine in answers.failing(case):
            for other in range(len(pairs)):
                if other != mine and _holds(pairs[mine], pairs[other]):
                    taken[mine] = other
                    break
        changed = {mine: _shaped(pairs[other].candidate, pairs[mine]) for mine, other in taken.items()}
        effect = answers.convincing(case, changed) if changed else None
        if effect is None:
            return []
        swapped = [mine for mine, other in taken.items() if taken.get(other) == mine]
        names = {position: pairs[position].spec.name for position in range(len(pairs))}
        if len(swapped) == len(taken):
            culprit = f"{', '.join(names[mine] for mine in taken)} (swapped)"
        else:
            held = "; ".join(
                f"{names[mine]} is given as {pairs[other].spec.candidate}" for mine, other in taken.items()
            )
            culprit = f"{', '.join(names[mine] for mine in taken)} ({held})"
        return [
            Explained(
                "output-mapping",
                culprit,
                "; ".join(
                    f"the candidate gives the reference's {names[mine]!r} as {pairs[other].spec.candidate!r}"
                    for mine, other in taken.items()
                )
                + f": read that way it agrees on {answers.told(effect)}",
                "Name the outputs of the export in the order the model gives them (output_names=[...])",
                covered=effect.covered,
                simplicity=2,
            )
        ]


def _before_base_score(case: Case) -> tuple[dict[int, tuple[int, ...]], Effect | None]:
    """Trees that add to the score of another class, while each class keeps the score it starts from."""
    for position in answers.failing_numbers(case):
        pair = answers.pairs(case)[position]
        width = pair.reference.shape[1] if pair.reference.ndim == 2 else 0
        if width < 3 or pair.spec.kind is not Kind.PROBABILITY:
            continue
        for _, term in parts.constant_terms(case):
            if len(term) != width or np.ptp(term) == 0:
                continue
            with np.errstate(all="ignore"):
                ours, theirs = (_centred(side) - (term - term.mean()) for side in (pair.reference, pair.candidate))
                order = answers.column_order(ours, theirs, Tolerance(1e-3, 1e-2))
                made = None if order is None else links.softmax(theirs[:, order] + term)
            effect = None if made is None else answers.convincing(case, {position: made})
            if effect is not None and order is not None:
                return {position: order}, effect
    return {}, None


def _centred(probabilities: Array) -> Array:
    """Scores from probabilities, as far as these tell them."""
    logs = np.log(probabilities.astype(np.float64))
    made: Array = logs - logs.mean(axis=1, keepdims=True)
    return made


def _of_classes(case: Case, pair: Pair) -> bool:
    """Are the columns classes, not targets of their own?"""
    if pair.spec.classes or pair.spec.kind in (Kind.PROBABILITY, Kind.SCORE, Kind.DISTANCE, Kind.LABEL):
        return True
    table = pair.reference.astype(np.float64)
    with np.errstate(all="ignore"):
        if np.nanmin(table) >= 0 and np.allclose(table.sum(axis=1), 1.0, atol=1e-3):
            return True
    labels = [other for other in answers.pairs(case) if other.spec.kind is Kind.LABEL and other.reference.ndim == 1]
    return any(
        answers.best_rule(label.reference, pair.reference, answers.classes_of(label, pair)) is not None
        for label in labels
    )


def _named(columns: tuple[int, ...], names: list[str]) -> str:
    """What the candidate calls its columns, which are in the right order."""
    given = [names[columns.index(column)] for column in range(len(columns))]
    return f"classes are named {', '.join(given[:MOST_NAMED])}" + (", …" if len(given) > MOST_NAMED else "")


def _where(order: tuple[int, ...], names: list[str]) -> str:
    """Which column holds what."""
    held = [names[order.index(column)] for column in range(len(order))]
    moved = [column for column in range(len(order)) if held[column] != names[column]]
    if len(order) <= MOST_NAMED:
        return f"columns hold {', '.join(held)}"
    shown = ", ".join(f"{names[column]} and {held[column]}" for column in moved[:1])
    return f"{shown} swapped" if len(moved) == 2 else f"{len(moved)} of {len(order)} columns in another place"


def _remedy(order: tuple[int, ...], names: list[str], *, renamed: bool, of_classes: bool) -> str:
    if renamed:
        return f"Give the export the classes in the model's own order: [{', '.join(names[:MOST_NAMED])}]"
    if len(order) <= MOST_NAMED:
        return f"Export again with the columns in the model's own order, or reorder them: output[:, {list(order)}]"
    kind = "classes_" if of_classes else "targets"
    return f"Export again with the columns in the order of the model's {kind}"


def _holds(wanted: Pair, other: Pair) -> bool:
    """Does the candidate's answer of another pair agree with what this one should be?"""
    if (wanted.spec.kind is Kind.LABEL) != (other.spec.kind is Kind.LABEL):
        return False
    if wanted.reference.size != other.candidate.size or answers.distinct(wanted.reference) < 2:
        return False
    if is_numeric(wanted.reference) != is_numeric(other.candidate):
        return False
    return bool(answers.agreeing(wanted, _shaped(other.candidate, wanted)).mean() >= ALIKE)


def _shaped(array: Array, like: Pair) -> Array:
    return array.reshape(like.candidate.shape)


EXTENSION = ColumnOrder()
