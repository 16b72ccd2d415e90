"""The candidate wants its input in another form: layout, channel order, scale, mean and deviation; or another unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from likewise.compare.feed import Feed
from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Mismatch
from likewise.contracts.data import Array, Batch
from likewise.data.cells import Edit, Field, edited
from likewise.data.columns import ArrayColumns
from likewise.explain import layouts
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import ENOUGH, HARMLESS, MOST_ALONE, Change, Effect, Trial, patience
from likewise.explain.fields import fields_of

FEW, FEWEST = 24, 4
"""Failing rows, and others, that a form is tried on: a wrong form breaks all of them."""

ENOUGH_NUMBERS = 1_000_000
"""Of large pictures fewer are tried, so that there are not many more numbers than this."""

AT_ZERO = 8
"""Failing rows in which one column after the other is set to zero."""

FLAT = 16
"""Columns from which on a flat input may be a picture; with fewer, columns are looked at one by one."""

SURE = 0.9
"""The right form makes nearly every row agree."""

FACTORS = (100.0, 1000.0, 10.0, 1e6, 60.0, 3600.0, 24.0, 12.0, 255.0, 2.54, 3.28084, 1.609344, 2.2046226)
"""By which people mistake one unit for another: cents, grams, minutes, inches, feet, miles, pounds."""


class ImageLayout:
    """Hand the candidate its input in other forms, and see whether it then agrees."""

    causes = ("input-layout",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return case.required.batch.stacked

    def test(self, case: Case) -> Sequence[Explained]:
        found = next((found for name in _inputs(case) if (found := _form(case, name)) is not None), None)
        if found is None:
            found = _unit(case)
        return [] if found is None else [found]


def _inputs(case: Case) -> list[str]:
    """The inputs of the candidate that may hold pictures or signals, also laid out flat."""
    numbers = {name: array for name, array in case.fed("candidate").items() if array.dtype.kind in "iuf"}
    return [name for name, array in numbers.items() if array.ndim > 2 or (array.ndim == 2 and array.shape[1] >= FLAT)]


def _form(case: Case, name: str) -> Explained | None:
    """The form of one input in which the candidate agrees."""
    shape = case.fed("candidate", case.required.batch.slice(0, 1))[name].shape
    rows = int(np.clip(ENOUGH_NUMBERS // max(int(np.prod(shape)), 1), FEWEST, FEW))
    trial = Trial.some(case, rows, rows)
    more = patience(case)
    for told, change in _forms(case, name, shape):
        effect = _effect(trial, name, change) if more() else None
        if effect is None or effect.share < SURE or effect.damage > HARMLESS:
            continue
        whole = _effect(Trial.whole(case), name, change)
        if whole is None or not whole.explains or whole.share < SURE:
            continue
        return Explained(
            "input-layout",
            f"{name} ({told})",
            f"given {name} in another form ({told}), the candidate agrees with the reference on "
            f"{int(whole.covered.sum()):,} of {int(whole.failing.sum()):,} failing rows",
            f"Hand {name} to the candidate in that form, or put the step into the model before it is exported",
            covered=whole.covered,
            simplicity=3,
        )
    return None


def _forms(case: Case, name: str, shape: Sequence[int]) -> Iterator[tuple[str, layouts.Change]]:
    """One change after the other, then orders together with the others."""
    orders, values = list(layouts.orders(shape)), list(layouts.scales())
    if len(shape) > 2:
        graph = case.graph()
        found = layouts.statistics_of_module(case.native("reference"))
        found += [] if graph is None else layouts.statistics_of_graph(graph, name)
        values += layouts.statistics(shape, found)
    yield from orders
    yield from values
    for told, order in orders[:4]:
        for also, change in values:
            yield f"{told}, and {also}", partial(_both, first=order, then=change)
            yield f"{also}, and then {told}", partial(_both, first=change, then=order)


def _both(array: Array, *, first: layouts.Change, then: layouts.Change) -> Array:
    return then(first(array))


def _effect(trial: Trial, name: str, change: layouts.Change) -> Effect | None:
    """The candidate given one input in another form."""
    side = trial.case.side("candidate")
    fed, _ = side.feed(trial.batch)
    inputs = {key: _changed(array, change) if key == name else array for key, array in fed.inputs.items()}
    batch = Batch(trial.batch.rows, ArrayColumns(inputs))
    answered = trial.case.ask(replace(side, feed=Feed("candidate", None)), batch)
    return None if answered is None else trial.effect(candidate=answered)


def _changed(array: Array, change: layouts.Change) -> Array:
    """The change made in float64, in the type that the input has."""
    with np.errstate(all="ignore"):
        changed = change(array.astype(np.float64))
        changed = changed if array.dtype.kind == "f" else np.round(changed)
        return np.ascontiguousarray(changed.astype(array.dtype))


def _unit(case: Case) -> Explained | None:
    """The one column that the candidate takes in another unit: with zero in it the models agree, and scaled as well."""
    if case.required.failing.mean() < ENOUGH:
        return None
    inputs = case.required.batch.inputs
    numbers = [field for field in fields_of(case) if field.of(inputs).dtype.kind == "f"]
    alone = _agreeing_at_zero(case, numbers[:MOST_ALONE])
    trial, more = Trial.some(case, FEW, FEW), patience(case)
    for field, factor in product(alone[:1], [*FACTORS, *(1 / factor for factor in FACTORS)]):
        effect = _scaled(trial, field, factor) if more() else None
        if effect is None or effect.share < SURE or effect.damage > HARMLESS:
            continue
        whole = _scaled(Trial.whole(case), field, factor)
        if whole is not None and whole.explains and whole.share >= SURE:
            return Explained(
                "input-layout",
                f"{field.name} (times {factor:g})",
                f"given {field.name} times {factor:g}, the candidate agrees with the reference on "
                f"{int(whole.covered.sum()):,} of {int(whole.failing.sum()):,} failing rows: it takes the column "
                "in another unit",
                f"Hand {field.name} to the candidate in the unit the reference was fitted with",
                covered=whole.covered,
                simplicity=4,
            )
    return None


def _agreeing_at_zero(case: Case, fields: Sequence[Field]) -> list[Field]:
    """The columns with which set to zero the models agree, one at a time: whatever the unit, zero is zero."""
    rows = np.flatnonzero(case.required.failing)[:AT_ZERO]
    if not fields:
        return []
    batch = case.rows(np.tile(rows, len(fields)))
    blocks = np.repeat(np.arange(len(fields)), len(rows))
    batch = edited(batch, [Edit(field, blocks == index, 0.0) for index, field in enumerate(fields)])
    ours = case.ask("reference", batch)
    theirs = None if ours is None else case.ask("candidate", batch)
    if ours is None or theirs is None:
        return []
    agrees = np.ones(len(batch), dtype=bool)
    for pair in case.pairs(batch, ours, theirs):
        agrees &= False if isinstance(pair, Mismatch) else ~rows_beyond(pair)
    return [field for index, field in enumerate(fields) if agrees[blocks == index].mean() >= SURE]


def _scaled(trial: Trial, field: Field, factor: float) -> Effect | None:
    return trial.run(
        Change("candidate", cells=[Edit(field, np.ones(len(trial), dtype=bool), trial.values(field) * factor)])
    )


EXTENSION = ImageLayout()
