"""A value and a threshold of a tree are rounded, and the value lands on the other side."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.contracts.data import Array
from likewise.explain import tree_survey
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Effect
from likewise.explain.tree_survey import Survey, nudged, plausible, survey

COINCIDENCE = 1e-4
"""Rounding that takes more than this part of a column's spread is no coincidence at a threshold: digits are lost."""


class TreeThresholds:
    """Follow the failing rows through both models' trees; give the candidate's trees values on the right side."""

    causes = ("float32-threshold", "float32-input-cast")
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return plausible(case)

    def test(self, case: Case) -> Sequence[Explained]:
        import numpy as np

        found = survey(case)
        parted = None if found is None or found.retrained else found.failing_partings(case)
        if found is None or parted is None:
            return []
        grouped = found.reference.ensemble.group[found.alignment.reference] >= 0
        alike = found.split & ~found.other_splits & ~found.mode & ~grouped
        rows, pairs = parted
        if not alike[pairs].any():
            return []
        changed = nudged(found, np.flatnonzero(alike))
        if changed is None or not changed.moved.any():
            return []
        given = found.candidate.ensemble.feature[found.alignment.candidate[pairs]]
        rounded = alike[pairs] & changed.moved[rows, given]
        if not rounded.any():
            return []
        effect = tree_survey.effect_of_input(case, found, changed.rows)
        if effect is None or not effect.explains:
            return []
        rows, pairs, given = rows[rounded], pairs[rounded], given[rounded]
        column = _most(given)
        here = given == column
        if _digits_lost(case, found, pairs[here], changed.lost.get(column, 0.0)):
            return [_lost(case, found, effect, rows[here], pairs[here])]
        return [_coincidence(case, found, effect, rows[here], pairs[here])]


def _coincidence(case: Case, found: Survey, effect: Effect, rows: Array, pairs: Array) -> Explained:
    import numpy as np

    ours, theirs = found.reference, found.candidate
    worst = _most(pairs)
    node, other = int(found.alignment.reference[worst]), int(found.alignment.candidate[worst])
    trees = len(np.unique(theirs.ensemble.tree[found.alignment.candidate[pairs]]))
    name = ours.name(int(ours.ensemble.column[node]))
    evidence = (
        f"{_reached(case, found, worst, int(rows[pairs == worst][0]))}, where the threshold is "
        f"{theirs.ensemble.threshold[other]:.17g} and {ours.ensemble.threshold[node]:.17g}; "
        f"{_rows(len(np.unique(rows)))} another side of a threshold of {name}"
        f"{f' in {trees} trees' if trees > 1 else ''}; moved by the last digit to the right side, {_agree(effect)}"
    )
    return Explained(
        "float32-threshold", found.name(worst), evidence, _remedy(case, name), covered=effect.covered, simplicity=1
    )


def _lost(case: Case, found: Survey, effect: Effect, rows: Array, pairs: Array) -> Explained:
    import numpy as np

    worst = _most(pairs)
    name = found.reference.name(int(found.reference.ensemble.column[found.alignment.reference[worst]]))
    return Explained(
        "float32-input-cast",
        name,
        f"{_reached(case, found, worst, int(rows[pairs == worst][0]))}: {found.candidate.ensemble.dtype} cannot hold "
        f"its digits; {_rows(len(np.unique(rows)))} another side of a threshold; on the right side of each, "
        f"{_agree(effect)}",
        f"Subtract a constant from {name} before the model is fitted, or export with double inputs "
        "(likewise export --double)",
        covered=effect.covered,
        simplicity=2,
    )


def _digits_lost(case: Case, found: Survey, pairs: Array, lost: float) -> bool:
    """Does the cast of the input lose so much that any threshold would be hit, or whole numbers?"""
    column = int(found.reference.ensemble.column[found.alignment.reference[pairs[0]]])
    name = found.reference.name(column)
    cast = any(entry.column == name and entry.changed for entry in case.comparison.casts if entry.side == "candidate")
    data = case.required.batch.inputs.get(name)
    whole = data is not None and data.dtype.kind in "iu"
    return cast and (whole or lost > COINCIDENCE)


def _reached(case: Case, found: Survey, pair: int, row: int) -> str:
    ours, theirs = found.reference, found.candidate
    assert ours.rows is not None
    assert theirs.rows is not None
    node, other = int(found.alignment.reference[pair]), int(found.alignment.candidate[pair])
    seen = float(ours.rows[row, ours.ensemble.feature[node]])
    given = float(theirs.rows[row, theirs.ensemble.feature[other]])
    name = ours.name(int(ours.ensemble.column[node]))
    return (
        f"in row {case.required.batch.rows.name(row)} {name} reaches {theirs.ensemble.name(other)} as {given:.17g} in "
        f"the candidate and as {seen:.17g} in the reference"
    )


def _most(values: Array) -> int:
    import numpy as np

    found, counts = np.unique(values, return_counts=True)
    return int(found[np.argmax(counts)])


def _rows(count: int) -> str:
    return "1 failing row takes" if count == 1 else f"{count} failing rows take"


def _remedy(case: Case, name: str) -> str:
    if case.framework("reference") == "sklearn":
        return "Export with double inputs: likewise export --double"
    return f"Round {name} to float32 before training and before serving: data[{name!r}].astype('float32')"


def _agree(effect: Effect) -> str:
    return f"{int(effect.covered.sum())} of {int(effect.failing.sum())} failing rows agree"


EXTENSION = TreeThresholds()
