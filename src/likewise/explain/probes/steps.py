"""A step of the reference's pipeline is missing in the candidate, does something else there, or is sparse."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.data.cells import Field, listed, missing_in, with_columns
from likewise.explain import experiment
from likewise.explain.case import WHOLE_PIPELINE, Case, Explained, Remedy, probe
from likewise.explain.experiment import Effect, Trial
from likewise.explain.features import fields_of
from likewise.explain.first_wrong_step import WrongStep, first_wrong_step, part_of_join, transformed, watched_steps
from likewise.explain.trace import columns_behind, differing, order_of, reference_steps, same_as_one, seen, with_steps
from likewise.models.sklearn.walk import Change, Seen, Step, in_form_of, passing

BOOSTERS = ("XGB", "LGBM", "Booster", "CatBoost")
"""What the names of boosters have in them."""

MOSTLY = 0.9
"""What holds for this share of the rows is the reason: a change of a whole step, a property of the wrong rows."""

COMMON = 0.05
"""An answer that is given to more than this share of the failing rows is no coincidence between two models."""

FEW_COLUMNS, LONGEST_RUN = 3, 4
"""Columns that an evidence lists, and steps in a row that are left out together."""

FILLING = {"Imputer", "Where"}
"""Operators that put values in the place of missing ones."""


@probe(
    "preprocessing-dropped",
    "preprocessing-differs",
    "missing-value-handling",
    "unknown-category",
    "feature-order",
    when=lambda case: case.required.batch.stacked and bool(reference_steps(case)),
)
def pipeline_steps(case: Case) -> Explained | None:
    """Leave a step out of the reference, or exchange its output with the tensor of the graph that stands for it."""
    wrong = first_wrong_step(case)
    found = None
    if wrong is None or wrong.step.joins:
        found = _without_steps(case, wrong) or _with_a_step_twice(case, wrong)
    if found is None and wrong is not None:
        found = _located(wrong)
    return found


def _located(wrong: WrongStep) -> Explained | None:
    """What the graph has in the place of a step's output, in the words of the step."""
    step = wrong.step
    if step.reads_text and not wrong.same_words:
        return None
    if dropped := _left_out(wrong):
        evidence = f"tensor '{wrong.place.tensor}' holds what {dropped[0].name} is given, not what {step.name} gives"
        return _explained(wrong, "preprocessing-dropped", _called([s.path for s in dropped]), evidence)
    if _applied_twice(wrong):
        evidence = f"tensor '{wrong.place.tensor}' holds what {step.name} gives for its own output"
        return _explained(wrong, "preprocessing-differs", _called([step.path]), evidence)
    if step.joins and not wrong.lacking and (order := order_of(wrong.found, wrong.expected)) is not None:
        names = _output_names(step, len(order))
        told = listed([names[column] for column, other in enumerate(order) if column != other])
        evidence = f"tensor '{wrong.place.tensor}' holds the columns of {step.name} in another order: {told}"
        place = Place(told, (f"step '{step.path}'", f"tensor '{wrong.place.tensor}'"), path=step.path)
        return _explained(wrong, "feature-order", place, evidence)
    columns = _columns_at_fault(wrong)
    evidence = _evidence(wrong, list(columns))
    for cause, marks in (("missing-value-handling", _missing), ("unknown-category", _unseen)):
        always = cause == "missing-value-handling" and _fills_gaps(step)
        fields = [f for f in columns if always or _goes_with(wrong, columns[f], marks(wrong, f))]
        if _suffice(wrong, fields, columns):
            marked = tuple(field.name for field in fields)
            place = Place(listed(marked), (f"step '{step.path}'",), path=step.path, columns=marked)
            return _explained(wrong, cause, place, evidence)
    paths = _branches_at_fault(wrong) if step.joins else []
    culprit = _called(paths or [step.path], [field.name for field in columns])
    return _explained(wrong, "preprocessing-differs", culprit, evidence)


def _explained(wrong: WrongStep, cause: str, place: Place, evidence: str) -> Explained:
    step = wrong.step
    kind = step.name if step.joins else type(step.estimator).__name__
    suggestions = {
        "missing-value-handling": "Fill missing values before the model",
        "unknown-category": "Map unknown categories to a known one before the model",
    }
    suggested = suggestions.get(cause, f"Apply {kind} to the data before the model")
    proof = (
        "given the step's own values there, the graph agrees with the reference"
        if wrong.injected
        else "given the tensor's values there, the reference answers like the candidate"
    )
    return Explained(
        cause,
        replace(place, tensors=(wrong.place.tensor,)),
        f"{evidence}; {proof} on {wrong.effect.told}",
        Remedy(suggested, again=WHOLE_PIPELINE),
        covered=wrong.covered,
        share=wrong.share,
        simplicity=2,
    )


def _without_steps(case: Case, wrong: WrongStep | None) -> Explained | None:
    """Leave out each step that gives as many columns as it takes, then several in a row."""
    steps, records = _of_one_width(case)
    for run in _runs(steps):
        # A step that changes nothing on these rows cannot be missed.
        run = [step for step in run if _does_something(records[step.path])]
        effect = _effect(case, {step.path: passing for step in run}) if run else None
        if effect is None or not (_leads_to(wrong, run[-1]) or _telling(case, effect) or _missed(case, run)):
            continue
        names = ", ".join(step.name for step in run)
        return effect.explained(
            "preprocessing-dropped",
            _called([step.path for step in run]),
            f"without {names} the reference answers like the candidate on {effect.told}",
            Remedy(again=WHOLE_PIPELINE),
        )
    return None


def _with_a_step_twice(case: Case, wrong: WrongStep | None) -> Explained | None:
    """Apply each step once more to what it gave."""
    steps, records = _of_one_width(case)
    for step in steps:
        effect = _effect(case, {step.path: _again(step)}) if _does_something(records[step.path]) else None
        if effect is not None and (_leads_to(wrong, step) or _telling(case, effect)):
            return effect.explained(
                "preprocessing-differs",
                _called([step.path]),
                f"with {step.name} applied twice the reference answers like the candidate on {effect.told}: "
                "the data or the caller applies it, and the exported model does so again",
                f"Feed the exported model raw columns, or export it without {step.name}",
            )
    return None


def _of_one_width(case: Case) -> tuple[list[Step], Mapping[str, Seen]]:
    """The steps that give as many columns of numbers as they take, in the order in which they run."""
    _, records = watched_steps(case)
    return [step for step in reference_steps(case) if _keeps_width(records.get(step.path))], records


def _keeps_width(record: Seen | None) -> bool:
    if record is None:
        return False
    given, gave = (tuple(getattr(table, "shape", ())) for table in (record.given, record.gave))
    return len(given) == 2 and given == gave and record.input is not None


def _runs(steps: Sequence[Step]) -> list[list[Step]]:
    """Each step alone, then those that follow each other, then all, then whole joins."""
    leaves = [step for step in steps if not step.joins]
    runs = [[step] for step in leaves]
    for first in range(len(leaves)):
        for last in range(first + 1, min(first + LONGEST_RUN, len(leaves))):
            run = leaves[first : last + 1]
            if all(before.path in after.upstream for before, after in pairwise(run)):
                runs.append(run)
    if len(leaves) > 1 and leaves not in runs:
        runs.append(leaves)
    return [*runs, *([step] for step in steps if step.joins)]


def _effect(case: Case, changes: Mapping[str, Change]) -> Effect | None:
    """What changing steps of the reference does to the whole sample, if it explains the failure."""
    trial, _ = watched_steps(case)
    change = with_steps(case, changes)
    found = experiment.first(case, [change], lambda rows, changed: rows.run(changed), trial=trial)
    return None if found is None else found[1]


def _leads_to(wrong: WrongStep | None, step: Step) -> bool:
    """Was the difference traced to where the output of this step is joined with others?"""
    return wrong is not None and step.path in (*wrong.step.upstream, wrong.step.path)


def _telling(case: Case, effect: Effect) -> bool:
    """Do rows agree whose answers say something? Where all are driven to the same few answers, many changes fit."""
    sample, step = case.required, 10 * case.tolerance.absolute + 1e-6
    parts: list[Array] = [
        np.round(pair.candidate.astype(np.float64).reshape(len(sample), -1) / step)
        for pair in sample.pairs
        if pair.candidate.dtype.kind == "f"
    ]
    if not parts:
        return effect.share >= MOSTLY
    answers = np.nan_to_num(np.concatenate(parts, axis=1)[effect.failing], nan=-1.0)
    _, groups, counts = np.unique(answers, axis=0, return_inverse=True, return_counts=True)
    rare = counts[groups.reshape(-1)] <= max(1, COMMON * len(answers))
    agrees = effect.agrees[effect.failing]
    if rare.sum() >= max(3, COMMON * len(answers)):
        return bool(agrees[rare].mean() >= MOSTLY)
    return bool(agrees.mean() >= MOSTLY and len(counts) > 2)


def _missed(case: Case, run: Sequence[Step]) -> bool:
    """Does the candidate agree once it is given what the steps give, in the place of the columns they take?"""
    inputs = case.required.batch.inputs
    records = seen(case, case.required.batch)
    first, last = records.get(run[0].path), records.get(run[-1].path)
    values = None if last is None else last.output
    if first is None or values is None:
        return False
    names = [str(label) for label in getattr(first.given, "columns", ())]
    if names and set(names) <= set(inputs) and len(names) == values.shape[1]:
        columns = {name: values[:, index] for index, name in enumerate(names)}
    elif len(inputs) == 1 and inputs[next(iter(inputs))].shape == values.shape:
        columns = {next(iter(inputs)): values}
    else:
        return False
    answered = case.ask("candidate", replace(case.required.batch, inputs=with_columns(inputs, columns)))
    return answered is not None and Trial.whole(case).effect(candidate=answered).explains


def _again(step: Step) -> Change:
    def change(_: Any, gave: Any) -> Any:
        values = transformed(step, gave)
        return gave if values is None else in_form_of(gave, values)

    return change


def _evidence(wrong: WrongStep, named: Sequence[Field]) -> str:
    made = f", made by {wrong.operator}," if wrong.operator else ""
    gives = f"{type(wrong.step.estimator).__name__} '{wrong.step.path}' gives"
    if wrong.lacking:
        columns = f"{wrong.found.shape[1]} of the {wrong.expected.shape[1]} columns"
        return f"tensor '{wrong.place.tensor}'{made} has {columns} that {gives}"
    entries = wrong.wrong & wrong.trial.failing[:, None]
    with np.errstate(invalid="ignore"):
        distance = np.nan_to_num(np.abs(wrong.found - wrong.expected), nan=np.inf)
    row, column = map(int, np.unravel_index(np.argmax(np.where(entries, distance, -1.0)), entries.shape))
    where = f" in {listed([field.name for field in named], FEW_COLUMNS)}" if named else ""
    return (
        f"what {gives} and tensor '{wrong.place.tensor}'{made} differ{where} on {int(entries.any(axis=1).sum())} of "
        f"{int(wrong.trial.failing.sum())} failing rows looked at (row {wrong.trial.batch.rows.name(row)}: "
        f"{wrong.found[row, column]:.6g} instead of {wrong.expected[row, column]:.6g})"
    )


def _called(paths: Sequence[str], columns: Sequence[str] = ()) -> Place:
    """Steps in their owner's words, then where they are."""
    names = listed([path.rpartition("__")[2] for path in paths])
    where = f"step{'s' if len(paths) > 1 else ''} " + listed([f"'{path}'" for path in paths])
    behind = (f"column{'s' if len(columns) > 1 else ''} {listed(columns)}",) if columns else ()
    return Place(names, (where, *behind), path=paths[-1], columns=tuple(columns))


def _output_names(step: Step, width: int) -> list[str]:
    get: Callable[[], Any] | None = getattr(step.estimator, "get_feature_names_out", None)
    try:
        names = [] if get is None else [str(name).rpartition("__")[2] for name in get()]
    except Exception:  # noqa: BLE001 - names are a courtesy, and custom steps raise many types
        names = []
    return names if len(names) == width else [f"column {index}" for index in range(width)]


def _does_something(record: Seen) -> bool:
    """Does a step change what it is given, on these rows?"""
    given, gave = record.input, record.output
    return given is None or gave is None or given.shape != gave.shape or bool(differing(gave, given).any())


def _fills_gaps(step: Step) -> bool:
    return "Imputer" in type(step.estimator).__name__


def _left_out(wrong: WrongStep) -> list[Step]:
    """The steps that the graph does not have, if what it has is what an earlier step, or this one, was given."""
    case, records = wrong.watched.case, wrong.watched.records
    chain = [step for step in reference_steps(case) if step.path in (*wrong.step.upstream, wrong.step.path)]
    if wrong.lacking or wrong.step.joins:
        return []
    for index in reversed(range(len(chain))):
        given = records[chain[index].path].input if chain[index].path in records else None
        if given is None or not same_as_one(wrong.found, [given]):
            continue
        run = [step for step in chain[index:] if step.path in records and _does_something(records[step.path])]
        # An imputer that is there and finds no gaps leaves all as it is, too.
        return [] if run == [wrong.step] and _fills_gaps(wrong.step) and _has_filler(wrong, given) else run
    return []


def _has_filler(wrong: WrongStep, given: Array) -> bool:
    tensors = {name: array.reshape(len(array), -1) for name, array in wrong.watched.tensors.items()}
    made_by = wrong.watched.inside.made_by
    return any(made_by.get(name) in FILLING and same_as_one(table, [given]) for name, table in tensors.items())


def _applied_twice(wrong: WrongStep) -> bool:
    """Does the graph have what the step gives when it is given its own output?"""
    again = None if wrong.step.joins else transformed(wrong.step, wrong.record.gave)
    return again is not None and not wrong.lacking and same_as_one(wrong.found, [again])


def _branches_at_fault(wrong: WrongStep) -> list[str]:
    """The last steps of the branches whose columns are wrong in a join."""
    entries, records = wrong.wrong, wrong.watched.records
    parts = {path: part_of_join(wrong.step, path, records) for path in wrong.step.upstream}
    return [path for path, part in parts.items() if part is not None and entries[:, part.start : part.stop].any()]


def _columns_at_fault(wrong: WrongStep) -> dict[Field, Array]:
    """The columns of the data behind the wrong entries, each with the columns of the output that it moves.

    None where the step mixes them: then it is wrong in all at once.
    """
    columns = columns_behind(wrong.watched.case, wrong.step, suspects=_suspects(wrong))
    entries = wrong.wrong[wrong.trial.failing]
    found = {field: moved for field, moved in columns.items() if entries[:, moved].any()}
    apart = all(not (one & other).any() for f, one in found.items() for g, other in found.items() if f is not g)
    return found if apart else {}


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


def _suffice(wrong: WrongStep, fields: Sequence[Field], columns: Mapping[Field, Array]) -> bool:
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


@probe("missing-value-handling", when=lambda case: _pipeline(case) is not None)
def sparse_zeros(case: Case) -> Iterator[Explained]:
    """Hand a booster behind a sparse step its input dense: in a sparse matrix it takes zeros for missing values."""
    yield from experiment.shown(case, [_dense(_pipeline(case))])


def _pipeline(case: Case) -> Any:
    """The reference, if it is a pipeline that ends in a booster; None otherwise."""
    model = case.native("reference")
    model = getattr(model, "best_estimator_", model)
    if "sklearn" not in sys.modules or not hasattr(model, "steps") or len(model.steps) < 2:
        return None
    return model if any(word in type(model.steps[-1][1]).__name__ for word in BOOSTERS) else None


def _dense(pipeline: Any) -> experiment.Claim:
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer

    (before, _), (name, booster) = pipeline.steps[-2:]
    dense = FunctionTransformer(_as_dense, accept_sparse=True)
    return experiment.Claim(
        "missing-value-handling",
        Place(name, (f"after the sparse step {before!r}",), path=name),
        f"step {before!r} gives a sparse matrix, in which {type(booster).__name__} takes every zero for missing; given "
        f"the same matrix dense, the reference agrees with the candidate on {experiment.HEALED}",
        f"Make {before!r} dense (OneHotEncoder(sparse_output=False), ColumnTransformer(sparse_threshold=0)), fit again "
        "and export that",
        (experiment.Change("reference", target=Pipeline([*pipeline.steps[:-1], ("dense", dense), (name, booster)])),),
    )


def _as_dense(matrix: Any) -> Any:
    return matrix.toarray() if hasattr(matrix, "toarray") else matrix


EXTENSIONS = (pipeline_steps, sparse_zeros)
