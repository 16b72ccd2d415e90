"""What a wrong step does wrong: in which columns of the data, for which values, and whether it is there at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from likewise.contracts.data import Array
from likewise.data.cells import Field, missing_in
from likewise.explain.counterparts import columns_behind, part_of_join
from likewise.explain.fields import fields_of
from likewise.explain.first_wrong_step import WrongStep, transformed
from likewise.explain.trace import differing, reference_steps, same_as_one
from likewise.models.sklearn.inside import Seen, Step

MOSTLY = 0.9
"""A property of the data goes with a fault if this share of the wrong rows has it."""

FILLING = {"Imputer", "Where"}
"""Operators that put values in the place of missing ones."""

Columns = Mapping[Field, Array]


def does_something(record: Seen) -> bool:
    """Does a step change what it is given, on these rows?"""
    given, gave = record.input, record.output
    return given is None or gave is None or given.shape != gave.shape or bool(differing(gave, given).any())


def fills_gaps(step: Step) -> bool:
    return "Imputer" in type(step.estimator).__name__


def left_out(wrong: WrongStep) -> list[Step]:
    """The steps that the graph does not have, if what it has is what an earlier step, or this one, was given."""
    case, records = wrong.watched.case, wrong.watched.records
    chain = [step for step in reference_steps(case) if step.path in (*wrong.step.upstream, wrong.step.path)]
    if wrong.lacking or wrong.step.joins:
        return []
    for index in reversed(range(len(chain))):
        given = records[chain[index].path].input if chain[index].path in records else None
        if given is None or not same_as_one(wrong.found, [given]):
            continue
        run = [step for step in chain[index:] if step.path in records and does_something(records[step.path])]
        # An imputer that is there and finds no gaps leaves all as it is, too.
        return [] if run == [wrong.step] and fills_gaps(wrong.step) and _has_filler(wrong, given) else run
    return []


def _has_filler(wrong: WrongStep, given: Array) -> bool:
    tensors = {name: array.reshape(len(array), -1) for name, array in wrong.watched.tensors.items()}
    made_by = wrong.watched.inside.made_by
    return any(made_by.get(name) in FILLING and same_as_one(table, [given]) for name, table in tensors.items())


def applied_twice(wrong: WrongStep) -> bool:
    """Does the graph have what the step gives when it is given its own output?"""
    again = None if wrong.step.joins else transformed(wrong.step, wrong.record.gave)
    return again is not None and not wrong.lacking and same_as_one(wrong.found, [again])


def same_words(wrong: WrongStep) -> bool:
    """Does the graph find the same words in each text, and only weighs them in another way?"""
    bad = wrong.wrong.any(axis=1)
    return bool(((wrong.found[bad] != 0) == (wrong.expected[bad] != 0)).all())


def branches_at_fault(wrong: WrongStep) -> list[str]:
    """The last steps of the branches whose columns are wrong in a join."""
    entries, records = wrong.wrong, wrong.watched.records
    parts = {path: part_of_join(wrong.step, path, records) for path in wrong.step.upstream}
    return [path for path, part in parts.items() if part is not None and entries[:, part.start : part.stop].any()]


def columns_at_fault(wrong: WrongStep) -> dict[Field, Array]:
    """The columns of the data behind the wrong entries, each with the columns of the output that it moves.

    None where the step mixes them: then it is wrong in all at once.
    """
    columns = columns_behind(wrong.watched.case, wrong.step, suspects=_suspects(wrong))
    entries = wrong.wrong[wrong.trial.failing]
    found = {field: moved for field, moved in columns.items() if entries[:, moved].any()}
    apart = all(not (one & other).any() for f, one in found.items() for g, other in found.items() if f is not g)
    return found if apart else {}


def with_missing(wrong: WrongStep, columns: Columns) -> list[Field]:
    """The columns that are wrong where they are missing, if that is most of what is wrong."""
    fields = [f for f in columns if fills_gaps(wrong.step) or _goes_with(wrong, columns[f], _missing(wrong, f))]
    return fields if _suffice(wrong, fields, columns) else []


def with_unseen(wrong: WrongStep, columns: Columns) -> list[Field]:
    """The columns that are wrong where the step was not fitted on their value, if that is most of what is wrong."""
    fields = [field for field in columns if _goes_with(wrong, columns[field], _unseen(wrong, field))]
    return fields if _suffice(wrong, fields, columns) else []


def _suspects(wrong: WrongStep) -> list[str]:
    """The columns at the positions that are wrong, where the step takes as many as it gives: where to look first."""
    entries = [bool(column.any()) for column in wrong.wrong.T]
    names = [str(label) for label in getattr(wrong.record.given, "columns", ())]
    if not names:
        names = [field.name for field in fields_of(wrong.watched.case)]
    return [name for name, bad in zip(names, entries, strict=True) if bad] if len(names) == len(entries) else []


def _goes_with(wrong: WrongStep, moved: Array, marked: Array | None) -> bool:
    """Are the rows in which a column goes wrong those that are marked?"""
    if marked is None:
        return False
    bad = wrong.trial.failing if wrong.lacking else wrong.wrong[:, moved].any(axis=1)
    spared = (marked & ~bad).sum()
    return bool(bad.any() and (bad & marked).sum() >= MOSTLY * bad.sum() and spared <= bad.sum())


def _suffice(wrong: WrongStep, fields: Sequence[Field], columns: Columns) -> bool:
    if wrong.lacking or not fields:
        return bool(fields)
    entries = wrong.wrong[wrong.trial.failing]
    behind = np.any([columns[field] for field in fields], axis=0)
    return bool(entries[:, behind].any(axis=1).sum() >= MOSTLY * entries.any(axis=1).sum())


def _missing(wrong: WrongStep, field: Field) -> Array:
    values = wrong.trial.values(field)
    blank = np.array([value == "" for value in values.tolist()]) if values.dtype.kind == "O" else False
    marked: Array = missing_in(values) | blank
    return marked


def _unseen(wrong: WrongStep, field: Field) -> Array | None:
    """Which rows have a category that the step was not fitted on."""
    known = getattr(wrong.step.estimator, "categories_", None)
    if known is None:
        return None
    names = [str(label) for label in getattr(wrong.record.given, "columns", ())]
    lists = [known[names.index(field.name)]] if field.name in names and len(names) == len(known) else list(known)
    categories = {value for entry in lists for value in np.asarray(entry).tolist()}
    return np.array([value not in categories for value in wrong.trial.values(field).tolist()], dtype=bool)
