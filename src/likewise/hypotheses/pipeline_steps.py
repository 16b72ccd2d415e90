"""A step of the reference's pipeline is missing in the candidate, or does something else there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from likewise.cases import Case, Effect, Explained
from likewise.contracts.data import Array
from likewise.structure.alike import differing, order_of
from likewise.structure.fields import Field, listed, missing_in
from likewise.structure.first_wrong_step import WrongStep, first_wrong_step, part_of_join, trial_for
from likewise.structure.innocence import transformed
from likewise.structure.interventions import Trial
from likewise.structure.step_columns import columns_behind
from likewise.structure.steps import Change, Seen, Step, ask_changed, in_form_of, passing, reference_steps, seen

MOSTLY = 0.9
"""A property of the data goes with a fault if this share of the wrong rows has it."""

COMMON = 0.05
"""An answer that is given to more than this share of the failing rows is no coincidence between two models."""

FEW_COLUMNS = 3
"""More columns than these are not named: the step is at fault, not what it does to a column."""

Columns = Mapping[Field, Array]


class PipelineSteps:
    """Leave a step out of the reference, or exchange its output with the tensor of the graph that stands for it."""

    causes = (
        "preprocessing-dropped",
        "preprocessing-differs",
        "missing-value-handling",
        "unknown-category",
        "feature-order",
    )
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return case.required.batch.stacked and bool(reference_steps(case))

    def test(self, case: Case) -> Sequence[Explained]:
        wrong = first_wrong_step(case)
        found = _left_out(case, wrong) or _twice(case, wrong)
        if found is None and wrong is not None:
            found = _differing(case, wrong)
        return [] if found is None else [found]


def _left_out(case: Case, wrong: WrongStep | None) -> Explained | None:
    """Leave out each step that gives as many columns as it takes, then several in a row."""
    steps, records, trial = _same_width(case)
    for run in _runs(steps):
        if wrong is not None and wrong.step in run and not wrong.left_out:
            continue
        effect = _effect(case, trial, {step.path: passing for step in run})
        if effect is None or not effect.explains or not (_is_at(wrong, run[-1]) or _telling(case, effect)):
            continue
        # A step that changes nothing on these rows cannot be missed.
        run = [step for step in run if _does_something(records[step.path])]
        if not run:
            continue
        names = ", ".join(step.name for step in run)
        paths = ", ".join(f"'{step.path}'" for step in run)
        several = len(run) > 1
        return Explained(
            "preprocessing-dropped",
            f"{names} (step{'s' if several else ''} {paths})",
            f"without {names} the reference answers like the candidate on {_counts(effect)} failing rows",
            "Export the whole fitted pipeline, not only its last step: likewise export MODEL --data DATA -o model.onnx",
            covered=effect.covered,
            simplicity=2,
        )
    return None


def _twice(case: Case, wrong: WrongStep | None) -> Explained | None:
    """Apply each step once more to what it gave."""
    steps, records, trial = _same_width(case)
    for step in steps:
        record = records[step.path]
        if record.output is None or not _does_something(record):
            continue
        effect = _effect(case, trial, {step.path: _again(step)})
        if effect is not None and effect.explains and (_is_at(wrong, step) or _telling(case, effect)):
            return Explained(
                "preprocessing-differs",
                _called(step),
                f"with {step.name} applied twice the reference answers like the candidate on {_counts(effect)} "
                "failing rows: the data or the caller applies it, and the exported model does so again",
                f"Feed the exported model raw columns, or export it without {step.name}",
                covered=effect.covered,
                simplicity=2,
            )
    return None


def _differing(case: Case, wrong: WrongStep) -> Explained | None:
    """What the graph has in the place of a step's output, in the words of the step."""
    step = wrong.step
    if step.reads_text and not _same_words(wrong):
        return None
    if step.joins and not wrong.lacking and (order := order_of(wrong.found, wrong.expected)) is not None:
        return _reordered(wrong, order)
    columns = columns_behind(case, step)
    dropped = wrong.left_out
    named = _at_fault(wrong, columns)
    fills = "Imputer" in type(step.estimator).__name__
    missing = [f for f in named if fills or _goes_with(wrong, columns[f], _missing(wrong.trial, f))]
    unseen = [field for field in named if _goes_with(wrong, columns[field], _unseen(wrong, field))]
    missing, unseen = _if_they_suffice(wrong, missing, columns), _if_they_suffice(wrong, unseen, columns)
    by = "step is left out" if dropped else "step differs"
    if missing and not dropped:
        cause, culprit = "missing-value-handling", f"{listed([f.name for f in missing])} (step '{step.path}')"
        by = "missing values are treated in another way"
    elif unseen and not dropped:
        cause, culprit = "unknown-category", f"{listed([f.name for f in unseen])} (step '{step.path}')"
        by = f"categories that {step.name} was not fitted on are treated in another way"
    else:
        cause = "preprocessing-dropped" if dropped else "preprocessing-differs"
        culprit = _called(step, [field.name for field in named], _branches(wrong))
    return Explained(
        cause,
        culprit,
        f"{_evidence(wrong, named)}; {_proof(wrong)}",
        _remedy(step, cause, by),
        covered=wrong.effect.covered,
        simplicity=2,
    )


def _reordered(wrong: WrongStep, order: Sequence[int]) -> Explained:
    moved = [column for column, found in enumerate(order) if column != found]
    names = _output_names(wrong.step, len(order))
    told = listed([names[column] for column in moved])
    return Explained(
        "feature-order",
        f"{told} (step '{wrong.step.path}', tensor '{wrong.place.tensor}')",
        f"tensor '{wrong.place.tensor}' holds the columns of {wrong.step.name} in another order: {told}; "
        f"{_proof(wrong)}",
        "Export the fitted pipeline again, with its columns in the order it was fitted with",
        covered=wrong.effect.covered,
        simplicity=2,
    )


def _same_width(case: Case) -> tuple[list[Step], Mapping[str, Seen], Trial]:
    """The steps that give as many columns of numbers as they take, in the order in which they run."""
    key = "steps of one width"
    if key not in case.memory:
        trial = trial_for(case) or Trial.whole(case)
        records = seen(case, trial.batch)
        steps = [step for step in reference_steps(case) if step.path in records]
        case.memory[key] = [s for s in steps if _keeps_width(records[s.path])], records, trial
    found: tuple[list[Step], Mapping[str, Seen], Trial] = case.memory[key]
    return found


def _keeps_width(record: Seen) -> bool:
    given, gave = getattr(record.given, "shape", ()), getattr(record.gave, "shape", ())
    return len(given) == 2 and tuple(given) == tuple(gave) and record.input is not None


def _runs(steps: Sequence[Step]) -> list[list[Step]]:
    """Each step alone, then those that follow each other, then all."""
    leaves = [step for step in steps if not step.joins]
    runs = [[step] for step in leaves]
    for first in range(len(leaves)):
        for last in range(first + 1, min(first + 4, len(leaves))):
            run = leaves[first : last + 1]
            if all(before.path in after.upstream for before, after in zip(run, run[1:], strict=False)):
                runs.append(run)
    if len(leaves) > 1 and list(leaves) not in runs:
        runs.append(list(leaves))
    return runs


def _effect(case: Case, trial: Trial, changes: Mapping[str, Change]) -> Effect | None:
    """What changing steps of the reference does; on the whole sample if it explains some rows of it."""
    answered = ask_changed(case, changes, trial.batch)
    if answered is None or not trial.effect(reference=answered).explains:
        return None
    answered = ask_changed(case, changes)
    return None if answered is None else case.effect(reference=answered)


def _is_at(wrong: WrongStep | None, step: Step) -> bool:
    """Was the difference traced to this step, or to where its output is joined with others?"""
    return wrong is not None and (wrong.step == step or (wrong.step.joins and step.path in wrong.step.upstream))


def _telling(case: Case, effect: Effect) -> bool:
    """Do rows agree whose answers say something? Where all are driven to the same few answers, many changes fit."""
    import numpy as np

    sample = case.required
    parts = [
        np.round(pair.candidate.astype(np.float64).reshape(len(sample), -1) / (10 * case.tolerance.absolute + 1e-6))
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


def _again(step: Step) -> Change:
    def change(_: Any, gave: Any) -> Any:
        values = transformed(step, gave)
        return gave if values is None else in_form_of(gave, values)

    return change


def _does_something(record: Seen) -> bool:
    given, gave = record.input, record.output
    return given is None or gave is None or given.shape != gave.shape or bool(differing(gave, given).any())


def _same_words(wrong: WrongStep) -> bool:
    """Does the graph find the same words in each text, and only weighs them in another way?"""
    bad = wrong.wrong.any(axis=1)
    return bool(((wrong.found[bad] != 0) == (wrong.expected[bad] != 0)).all())


def _at_fault(wrong: WrongStep, columns: Columns) -> list[Field]:
    """The columns of the data behind the wrong entries; none where that would be nearly all there are."""
    entries = wrong.wrong[wrong.trial.failing]
    found = [field for field, moved in columns.items() if entries[:, moved].any()]
    # A step that mixes columns is wrong in all of them at once.
    mixing = any(moved.sum() > 1 and moved[other].any() for moved, other in _pairs(columns, found))
    return [] if mixing and len(found) > 1 else found


def _pairs(columns: Columns, found: Sequence[Field]) -> list[tuple[Array, Array]]:
    return [(columns[one], columns[other]) for one in found for other in found if one is not other]


def _goes_with(wrong: WrongStep, moved: Array, marked: Array | None) -> bool:
    """Are the rows in which a column goes wrong those that are marked?"""
    if marked is None:
        return False
    bad = wrong.wrong[:, moved].any(axis=1)
    if wrong.lacking:
        bad = wrong.trial.failing
    return bool(bad.any() and (bad & marked).sum() >= MOSTLY * bad.sum() and not (marked & ~bad).sum() > bad.sum())


def _if_they_suffice(wrong: WrongStep, fields: list[Field], columns: Columns) -> list[Field]:
    """The columns, if what is wrong in them is most of what is wrong."""
    import numpy as np

    if wrong.lacking or not fields:
        return fields
    entries = wrong.wrong[wrong.trial.failing]
    behind = np.any([columns[field] for field in fields], axis=0)
    return fields if entries[:, behind].any(axis=1).sum() >= MOSTLY * entries.any(axis=1).sum() else []


def _missing(trial: Trial, field: Field) -> Array:
    import numpy as np

    values = trial.values(field)
    blank = np.array([value == "" for value in values.tolist()]) if values.dtype.kind == "O" else False
    marked: Array = missing_in(values) | blank
    return marked


def _unseen(wrong: WrongStep, field: Field) -> Array | None:
    """Which rows have a category that the step was not fitted on."""
    import numpy as np

    known = getattr(wrong.step.estimator, "categories_", None)
    if known is None:
        return None
    given = wrong.records[wrong.step.path].given
    names = [str(label) for label in getattr(given, "columns", ())]
    lists = [known[names.index(field.name)]] if field.name in names and len(names) == len(known) else list(known)
    categories = {value for entry in lists for value in np.asarray(entry).tolist()}
    return np.array([value not in categories for value in wrong.trial.values(field).tolist()], dtype=bool)


def _evidence(wrong: WrongStep, named: Sequence[Field]) -> str:
    step, tensor = wrong.step, wrong.place.tensor
    made = f", made by {wrong.operator}," if wrong.operator else ""
    kind = type(step.estimator).__name__
    if wrong.lacking:
        return (
            f"tensor '{tensor}'{made} has {wrong.found.shape[1]} of the {wrong.expected.shape[1]} columns that "
            f"{kind} '{step.path}' gives"
        )
    entries = wrong.wrong & wrong.trial.failing[:, None]
    row, column = (int(index) for index in _largest(wrong, entries))
    where = f" in {listed([field.name for field in named], FEW_COLUMNS)}" if named else ""
    rows = int(entries.any(axis=1).sum())
    label = wrong.trial.batch.rows.name(row)
    return (
        f"what {kind} '{step.path}' gives and tensor '{tensor}'{made} differ{where} on {rows} of "
        f"{int(wrong.trial.failing.sum())} failing rows looked at (row {label}: {wrong.found[row, column]:.6g} instead "
        f"of {wrong.expected[row, column]:.6g})"
    )


def _largest(wrong: WrongStep, entries: Array) -> tuple[Any, ...]:
    """Where the graph is furthest off."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        distance = np.nan_to_num(np.abs(wrong.found - wrong.expected), nan=np.inf)
    return np.unravel_index(int(np.argmax(np.where(entries, distance, -1.0))), entries.shape)


def _proof(wrong: WrongStep) -> str:
    if wrong.injected:
        return f"given the step's own values there, the graph agrees with the reference on {_counts(wrong.effect)} failing rows"
    return f"given the tensor's values there, the reference answers like the candidate on {_counts(wrong.effect)} failing rows"


def _remedy(step: Step, cause: str, by: str) -> str:
    kind = "the step" if step.joins else type(step.estimator).__name__
    again = "Export the fitted pipeline again: likewise export MODEL --data DATA -o model.onnx"
    if cause == "missing-value-handling":
        return f"{again}; if {by} still, fill missing values in the data before the model"
    if cause == "unknown-category":
        return f"{again}; if {by} still, map unknown categories to a known one before the model"
    return f"{again}; if the {by} still, the exporter gets {kind} wrong: apply it to the data before the model"


def _called(step: Step, columns: Sequence[str] = (), branches: Sequence[str] = ()) -> str:
    """A step in its owner's words, then where it is; of a join, the branches that are at fault."""
    column = f", column{'s' if len(columns) > 1 else ''} {listed(columns)}" if columns else ""
    paths = branches or [step.path]
    names = listed([path.rpartition("__")[2] for path in paths])
    told = listed([f"'{path}'" for path in paths])
    return f"{names} (step{'s' if len(paths) > 1 else ''} {told}{column})"


def _branches(wrong: WrongStep) -> list[str]:
    """The last steps of the branches whose columns are wrong in a join."""
    parts = {path: part_of_join(wrong.step, path, wrong.records) for path in wrong.step.upstream}
    entries = wrong.wrong
    return [p for p, part in parts.items() if part is not None and entries[:, part.start : part.stop].any()]


def _output_names(step: Step, width: int) -> list[str]:
    get: Callable[[], Any] | None = getattr(step.estimator, "get_feature_names_out", None)
    try:
        names = [] if get is None else [str(name).rpartition("__")[2] for name in get()]
    except Exception:  # noqa: BLE001 - names are a courtesy, and custom steps raise many types
        names = []
    return names if len(names) == width else [f"column {index}" for index in range(width)]


def _counts(effect: Effect) -> str:
    return f"{int(effect.covered.sum()):,} of {int(effect.failing.sum()):,}"


EXTENSION = PipelineSteps()
