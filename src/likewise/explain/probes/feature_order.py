"""The candidate takes the columns in another order than it is given them, or under each other's names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, islice

import numpy as np

from likewise.data.cells import Edit, Field, listed, names_of
from likewise.explain.case import Case, Explained
from likewise.explain.exchanging import found_exchange
from likewise.explain.experiment import HARMLESS, Change, Effect, Trial, patience
from likewise.explain.fields import fields_of

MOST_PAIRS = 120
"""Pairs of columns that are exchanged one after the other where the reference cannot be asked."""

MOST_NAMED = 12
MOST_TOLD = 4
"""Columns of which it is told, one by one, what each is taken for."""

SURE = 0.9
"""An order is recovered if nearly all failing rows agree in it: a wrong order mostly breaks every row."""


class FeatureOrder:
    """Give the candidate the columns in other orders; the order it wants is read from how both models react."""

    causes = ("feature-order",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return any(len(fields) > 1 for fields in _of_one_kind(case))

    def test(self, case: Case) -> Sequence[Explained]:
        numbers, texts = _of_one_kind(case)
        for fields, orders in ((numbers, _orders(case, numbers)), (texts, _exchanges(texts))):
            found = _recovered(case, fields, orders)
            if found is not None:
                return [found]
        return []


def _recovered(case: Case, fields: Sequence[Field], orders: Iterator[tuple[str, list[Field]]]) -> Explained | None:
    """The first of the orders in which the candidate agrees."""
    trial = Trial.some(case)
    more = patience(case)
    for told, order in orders:
        if order == list(fields) or not more():
            continue
        effect = _effect(trial, fields, order)
        if effect is None or effect.share < SURE or effect.damage > HARMLESS:
            continue
        whole = _effect(Trial.whole(case), fields, order)
        if whole is not None and whole.explains and whole.share >= SURE:
            return _explained(case, fields, order, told, whole)
    return None


def _of_one_kind(case: Case) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """The features that could be mistaken for each other: those that are numbers, and those that are text."""
    inputs = case.required.batch.inputs
    kinds = {field: field.of(inputs).dtype.kind for field in fields_of(case)}
    return tuple(f for f, kind in kinds.items() if kind in "iuf"), tuple(
        f for f, kind in kinds.items() if kind in "OUT"
    )


def _orders(case: Case, fields: Sequence[Field]) -> Iterator[tuple[str, list[Field]]]:
    """Orders to try: those that have a name, the one that the models' reactions tell, and single exchanges."""
    if len(fields) < 2:
        return
    yield from _named_orders(case, fields)
    exchange = found_exchange(case, fields)
    if exchange is not None:
        yield "", exchange.order(fields)
    elif case.native("reference") is None:
        yield from _exchanges(fields)


def _exchanges(fields: Sequence[Field]) -> Iterator[tuple[str, list[Field]]]:
    """Two features exchanged, for one pair after the other."""
    for one, other in islice(combinations(range(len(fields)), 2), MOST_PAIRS):
        order = list(fields)
        order[one], order[other] = order[other], order[one]
        yield "", order


def _named_orders(case: Case, fields: Sequence[Field]) -> Iterator[tuple[str, list[Field]]]:
    """For a candidate that takes columns side by side: orders in which somebody may have put them."""
    slots = _slots(case, fields)
    if len(slots) != len(fields):
        return
    by_name = {field.name: field for field in fields}
    order_of_data = sorted(fields, key=lambda field: field.place)
    wanted = {
        "the order of the data": order_of_data,
        "alphabetical order": sorted(fields, key=lambda field: field.name),
        "alphabetical order without regard to case": sorted(fields, key=lambda field: field.name.casefold()),
        "the reverse order": list(reversed(slots)),
        "its own order turned by one": [*slots[1:], slots[0]],
        "its own order turned back by one": [slots[-1], *slots[:-1]],
    }
    names = case.side("reference").feed.columns or ()
    if len(names) == len(fields) and all(name in by_name for name in names):
        wanted = {"the order in which the reference takes them": [by_name[name] for name in names], **wanted}
    for told, order in wanted.items():
        given = dict(zip(slots, order, strict=True))
        yield told, [given[field] for field in fields]


def _slots(case: Case, fields: Sequence[Field]) -> list[Field]:
    """The features in the order in which they lie in the one input of the candidate; none if there are several."""
    routes = case.side("candidate").feed.routes
    if routes is None or len(routes) != 1:
        return []
    return [field for column in routes[0].columns for field in fields if field.column == column]


def _effect(trial: Trial, fields: Sequence[Field], order: Sequence[Field]) -> Effect | None:
    """The candidate given, in the place of each feature, the values of another."""
    everywhere = np.ones(len(trial), dtype=bool)
    moved = [(field, other) for field, other in zip(fields, order, strict=True) if field != other]
    return trial.run(
        Change("candidate", cells=[Edit(field, everywhere, trial.values(other)) for field, other in moved])
    )


def _explained(case: Case, fields: Sequence[Field], order: Sequence[Field], told: str, effect: Effect) -> Explained:
    moved = {field: other for field, other in zip(fields, order, strict=True) if field != other}
    names = names_of(list(moved))
    one_by_one = [f"{field.name} as {other.name}" for field, other in moved.items()]
    how = told or (f"taken {', '.join(one_by_one)}" if len(moved) <= MOST_TOLD else "in another order")
    how = "exchanged" if len(moved) == 2 else how
    slots = _slots(case, fields)
    slots = slots if len(slots) == len(fields) else []
    given = dict(zip(fields, order, strict=True))
    wants = f": it wants {listed([given[slot].name for slot in slots], MOST_NAMED)}" if slots else ""
    return Explained(
        "feature-order",
        f"{names} ({how})",
        f"given the columns in {told or 'another order'}{wants}, the candidate "
        f"agrees with the reference on {int(effect.covered.sum()):,} of {int(effect.failing.sum()):,} failing rows",
        "Export again with the columns in the order the reference was fitted with"
        if slots
        else "Feed each input from the column it means: "
        + " ".join(f"--feed {field.name}={other.name}" for field, other in list(moved.items())[:MOST_NAMED]),
        covered=effect.covered,
        simplicity=2,
    )


EXTENSION = FeatureOrder()
