"""A value that stands for "missing" to one of the models only: zero, -999, empty text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.data.cells import MISSING, Edit, Field, names_of
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import ENOUGH, Change, Trial, association, smallest
from likewise.explain.fields import fields_of

NUMBERS = (0.0, -1.0, -9.0, -99.0, -999.0, -9999.0, -99999.0, 99.0, 999.0, 9999.0, 99999.0)
WORDS = ("", "nan", "NaN", "None", "NA", "N/A", "null", "?", "missing", "unknown")


class SentinelValues:
    """Feed one model nothing where the other may read nothing, and see whether they then agree."""

    causes = ("missing-value-handling",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return next(_present(case, Trial.whole(case)), None) is not None

    def test(self, case: Case) -> Sequence[Explained]:
        trial = Trial.some(case)
        for value, masks in _present(case, trial):
            for side in ("candidate", "reference"):
                effect = trial.run(Change(side, cells=[Edit(field, mask, MISSING) for field, mask in masks.items()]))
                if effect is not None and effect.explains:
                    found = _explained(case, trial, side, value, masks, effect.share)
                    if found is not None:
                        return [found]
        return []


def _present(case: Case, trial: Trial) -> Iterator[tuple[Any, dict[Field, Array]]]:
    """The values that may stand for missing, with where they are, if most failing rows have one somewhere."""
    values = {field: trial.values(field) for field in fields_of(case)}
    sentinels: list[Any] = [*_declared(case), *NUMBERS, *WORDS]
    for sentinel in dict.fromkeys(sentinels):
        number = isinstance(sentinel, float)
        masks = {
            field: np.asarray(array == sentinel, dtype=bool)
            for field, array in values.items()
            if array.dtype.kind in ("iuf" if number else "O")
        }
        masks = {field: mask for field, mask in masks.items() if mask.any()}
        if not masks:
            continue
        anywhere = np.logical_or.reduce(list(masks.values()))
        if (anywhere & trial.failing).sum() >= ENOUGH * trial.failing.sum():
            yield sentinel, masks


def _declared(case: Case) -> list[float]:
    """What the reference itself says it takes for missing."""
    model = case.native("reference")
    try:
        found = getattr(model, "missing", None)
        return [float(found)] if found is not None and found == found else []
    except (TypeError, ValueError):
        return []


def _explained(
    case: Case, trial: Trial, side: str, value: Any, masks: Mapping[Field, Array], share: float
) -> Explained | None:
    """The fewest columns it takes, confirmed on all rows."""

    def does(some: Sequence[Field]) -> bool:
        effect = trial.run(Change(side, cells=[Edit(field, masks[field], MISSING) for field in some]))
        return effect is not None and effect.share >= 0.95 * share

    suspects = sorted(masks, key=lambda field: -association(masks[field], trial.failing))
    few = smallest(suspects, does)
    whole = Trial.whole(case)
    marked = {field: np.asarray(whole.values(field) == value, dtype=bool) for field in few}
    effect = whole.run(Change(side, cells=[Edit(field, mask, MISSING) for field, mask in marked.items()]))
    if effect is None or not effect.explains:
        return None
    names = names_of(few)
    other = "reference" if side == "candidate" else "candidate"
    shown = f"{value:g}" if isinstance(value, float) else repr(value)
    rows = np.logical_or.reduce(list(marked.values()))
    return Explained(
        "missing-value-handling",
        names,
        f"{int((rows & whole.failing).sum()):,} of {int(whole.failing.sum()):,} failing rows have {shown} in {names}; "
        f"given a missing value there, the {side} agrees with the {other} on {int(effect.covered.sum()):,} of them: "
        f"the {other} takes {shown} for missing, the {side} does not",
        f"Store a missing {names} as missing, not as {shown}, fit again and export that"
        if side == "candidate"
        else f"Keep {shown} in {names} from being taken for missing when the model is exported",
        covered=effect.covered,
        simplicity=2,
    )


EXTENSION = SentinelValues()
