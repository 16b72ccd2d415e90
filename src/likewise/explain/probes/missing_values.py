"""Missing values are encoded, imputed or routed differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.data.cells import Edit, Field, missing_in, names_of
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Change, Effect, Trial, association, patience, separates, smallest
from likewise.explain.fields import fields_of

MORE_OFTEN = 2.0
"""Rows with a missing value must fail so many times as often as others, or it is not the missing value."""

REPRODUCES = 0.95
"""A stand-in is what a model makes of missing values if so much of what they break agrees with it."""

HUGE = 1e30
"""Above every threshold of a tree and still a float32."""


class MissingValues:
    """Put ordinary values in the place of missing ones; then find the value that one model takes them for."""

    causes = ("missing-value-handling",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        failing = case.required.failing
        return any((mask & failing).any() for mask in _missing(Trial.whole(case), fields_of(case)).values())

    def test(self, case: Case) -> Sequence[Explained]:
        trial, whole = Trial.some(case), Trial.whole(case)
        fields = fields_of(case)
        masks = {f: mask for f, mask in _missing(trial, fields).items() if (mask & trial.failing).any()}
        if not masks:
            return []
        suspects = sorted(masks, key=lambda field: -association(masks[field], trial.failing))
        few = _columns(trial, masks, suspects)
        on_record = case.native("reference") is None
        if few is None and on_record:
            few = _columns_by_stand_in(trial, masks, suspects)
        if few is None:
            return [found] if on_record and (found := _by_their_company(whole, suspects)) is not None else []
        told = _stand_in(trial, {field: masks[field] for field in few})
        here = _missing(whole, few)
        effect, evidence = _confirmed(whole, here, told)
        if effect is None or not effect.explains:
            return []
        rows = np.logical_or.reduce(list(here.values()))
        if told is None and association(rows, whole.failing) < MORE_OFTEN:
            return []
        names = names_of(few)
        return [
            Explained(
                "missing-value-handling",
                names,
                f"{int((rows & whole.failing).sum()):,} of {int(whole.failing.sum()):,} failing rows have "
                f"{names} missing, and {int((rows & ~whole.failing).sum()):,} that agree; {evidence}",
                _remedy(names, told),
                covered=effect.covered,
                simplicity=3,
            )
        ]


def _by_their_company(whole: Trial, suspects: Sequence[Field]) -> Explained | None:
    """The one column that is missing in the failing rows and hardly in others, where the reference cannot be asked."""
    for field in suspects:
        gone = missing_in(whole.values(field))
        if separates(gone, whole.failing):
            both = gone & whole.failing
            return Explained(
                "missing-value-handling",
                field.name,
                f"{int(both.sum()):,} of {int(whole.failing.sum()):,} failing rows have {field.name} missing, and "
                f"{int((gone & ~whole.failing).sum()):,} that agree; the reference's answers are only on record, so "
                "that it could not be asked with another value",
                _remedy(field.name, None),
                covered=both,
                simplicity=5,
            )
    return None


def _missing(trial: Trial, fields: Sequence[Field]) -> dict[Field, Array]:
    masks = {field: missing_in(trial.values(field)) for field in fields}
    return {field: mask for field, mask in masks.items() if mask.any()}


def _columns(trial: Trial, masks: Mapping[Field, Array], suspects: Sequence[Field]) -> tuple[Field, ...] | None:
    """The fewest columns whose missing values carry the failure; None if they do not."""

    def share(some: Sequence[Field]) -> float:
        effect = trial.ordinary({field: masks[field] for field in some})
        return 0.0 if effect is None or not effect.explains else effect.share

    fillable = [field for field in suspects if trial.donors(field, masks[field]) is not None]
    together = share(fillable) if fillable else 0.0
    if together:
        return smallest(fillable, lambda some: share(some) >= REPRODUCES * together)
    # A column without a single value has no ordinary one to put in; what a model takes it for may still be found.
    empty = [field for field in suspects if field not in fillable]
    return tuple(empty) or None


def _columns_by_stand_in(
    trial: Trial, masks: Mapping[Field, Array], suspects: Sequence[Field]
) -> tuple[Field, ...] | None:
    """The same where the reference's answers are only on record: the candidate alone is given other values."""
    more = patience(trial.case)
    for _, values in _encodings(trial, masks):
        if more() and _filled(trial, masks, values, suspects):
            return smallest(suspects, partial(_filled, trial, masks, values))
    return None


def _filled(trial: Trial, masks: Mapping[Field, Array], values: Mapping[Field, Any], some: Sequence[Field]) -> bool:
    """Does the candidate agree with these values in the place of missing ones?"""
    effect = trial.run(Change("candidate", cells=[Edit(field, masks[field], values[field]) for field in some]))
    return effect is not None and effect.explains and effect.share >= REPRODUCES


def _stand_in(trial: Trial, masks: Mapping[Field, Array]) -> tuple[str, str, dict[Field, Any]] | None:
    """The side that takes missing values for something, what, and the value for each column."""
    concerned = np.logical_or.reduce(list(masks.values()))
    more = patience(trial.case)
    for told, values in _encodings(trial, masks):
        changes = [Edit(field, mask, values[field]) for field, mask in masks.items()]
        for side in ("reference", "candidate"):
            effect = trial.run(Change(side, cells=changes)) if more() else None
            if effect is not None and _reproduces(effect, concerned):
                return side, told, values
    return None


def _reproduces(effect: Effect, concerned: Array) -> bool:
    """Do the rows with missing values agree now, those included that agreed before?"""
    return bool(effect.share > 0 and float(effect.agrees[concerned].mean()) >= REPRODUCES)


def _encodings(trial: Trial, masks: Mapping[Field, Array]) -> Iterator[tuple[str, dict[Field, Any]]]:
    """What missing values are commonly taken for, the likely first."""
    text = [field for field in masks if trial.values(field).dtype.kind not in "biufmM"]
    if any(trial.values(field).dtype.kind in "mM" for field in masks):
        return
    if not text:
        inputs = trial.case.required.batch.inputs
        known = {field: field.of(inputs).astype(np.float64) for field in masks}
        known = {field: values[np.isfinite(values)] for field, values in known.items()}
        yield "0", dict.fromkeys(masks, 0.0)
        yield from _fitted(trial, masks)
        yield "larger than every other value", dict.fromkeys(masks, HUGE)
        yield "smaller than every other value", dict.fromkeys(masks, -HUGE)
        for sentinel in (-1.0, -999.0, -9999.0, 999.0, 1.0):
            yield f"{sentinel:g}", dict.fromkeys(masks, sentinel)
        if all(len(values) for values in known.values()):
            for told, statistic in (("mean", np.mean), ("median", np.median), ("smallest value", np.min)):
                yield f"the {told} of the column", {field: float(statistic(values)) for field, values in known.items()}
    elif len(text) == len(masks):
        for word in ("", "nan", "None", "missing", "NaN", "Missing", "unknown", "NA"):
            yield f"the text '{word}'" if word else "empty text", dict.fromkeys(masks, word)
        yield "a category that was never seen", dict.fromkeys(masks, "\x7fnever seen")
        if len(masks) == 1:
            (field,) = masks
            for word in _most_frequent(trial.values(field)[~masks[field]]):
                yield f"the text '{word}'", {field: word}


def _most_frequent(values: Array, limit: int = 12) -> list[str]:
    words, counts = np.unique(values.astype(str), return_counts=True)
    return [str(word) for word in words[np.argsort(-counts, kind="stable")][:limit]]


def _fitted(trial: Trial, masks: Mapping[Field, Array]) -> Iterator[tuple[str, dict[Field, Any]]]:
    """What an imputer inside the reference was fitted to put in."""
    from likewise.explain.fitted import imputed

    found = {field: imputed(trial.case, field) for field in masks}
    values = {field: value for field, value in found.items() if isinstance(value, float)}
    if len(values) == len(masks):
        shown = ", ".join(f"{value:g}" for value in list(values.values())[:3])
        yield f"what the imputer was fitted to put in ({shown})", values


def _confirmed(
    whole: Trial, masks: Mapping[Field, Array], told: tuple[str, str, dict[Field, Any]] | None
) -> tuple[Effect | None, str]:
    """The experiment on all rows, and what it showed."""
    if told is not None:
        side, what, values = told
        effect = whole.run(Change(side, cells=[Edit(field, mask, values[field]) for field, mask in masks.items()]))
        if effect is not None and effect.explains:
            other = "candidate" if side == "reference" else "reference"
            return effect, (
                f"given {what} instead, the {side} agrees with the {other} on {int(effect.covered.sum()):,} of them: "
                f"the {other} takes a missing value for {what}"
            )
    effect = whole.ordinary(masks)
    if effect is None:
        return None, ""
    return effect, f"with an ordinary value in its place, for both models, {int(effect.covered.sum()):,} agree"


def _remedy(names: str, told: tuple[str, str, dict[Field, Any]] | None) -> str:
    if told is not None and told[0] == "candidate":
        return f"Fill missing {names} before the candidate is called, as the reference does: with {told[1]}"
    return f"Impute {names} in a step of the pipeline before it is fitted, and export that, or before both models"


EXTENSION = MissingValues()
