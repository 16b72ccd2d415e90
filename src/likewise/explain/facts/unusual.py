"""What is special about the values of the worst rows."""

from __future__ import annotations

from collections.abc import Iterator

from likewise.contracts.data import Array
from likewise.contracts.report import Unusual
from likewise.data.cells import Field, missing_in
from likewise.data.columns import plain
from likewise.explain.case import Case
from likewise.explain.facts.slices import changed_by_cast
from likewise.explain.fields import declared_types, fields_of
from likewise.explain.fitted import known_categories

ROWS, VALUES_A_ROW = 5, 4
FELT = 1e-3
"""A rounding error is felt from this share of a column's spread on."""

RARE = 0.01
"""A number beyond this share of the data, or a category with no larger share, is unusual."""


def values(case: Case) -> tuple[Unusual, ...]:
    """Of each of the worst rows, the few values that stand out: the most telling first."""
    sample = case.required
    worst = _worst_rows(case)
    found: dict[int, list[Unusual]] = {row: [] for row in worst}
    fields = fields_of(case)
    types = declared_types(case, "candidate", fields)
    for field in fields:
        column = field.of(sample.batch.inputs)
        missing = missing_in(column)
        for row in worst:
            for why in _reasons(case, field, column, missing, row, types.get(field)):
                cell = plain(column[row]) if not missing[row] else None
                found[row].append(Unusual(sample.batch.rows.name(row), field.name, cell, why))
                break
    return tuple(entry for row in worst for entry in sorted(found[row], key=_rank)[:VALUES_A_ROW])


def _rank(entry: Unusual) -> int:
    telling = ("missing", "not seen", "cast", "outside")
    return next((place for place, word in enumerate(telling) if word in entry.why), len(telling))


def _worst_rows(case: Case) -> list[int]:
    """Positions in the sample of the rows where the models differ most."""
    import numpy as np

    sample = case.required
    numbers = [
        int(row["number"])
        for output in case.comparison.outputs
        for row in output.details.get("worst_rows", {}).get("rows", [])
    ]
    place = {int(number): position for position, number in enumerate(sample.batch.rows.numbers)}
    positions = [place[number] for number in dict.fromkeys(numbers) if number in place]
    failing = [position for position in positions if sample.failing[position]]
    return (failing or [int(position) for position in np.flatnonzero(sample.failing)])[:ROWS]


def _reasons(case: Case, field: Field, column: Array, missing: Array, row: int, dtype: str | None) -> Iterator[str]:
    import numpy as np

    if missing[row]:
        yield f"missing, as in {100 * float(missing.mean()):.3g}% of the rows"
        return
    value = column[row]
    if column.dtype.kind in "iuf":
        present = column[~missing]
        if dtype is not None and changed_by_cast(column[row : row + 1], dtype)[0]:
            there = float(np.array(value).astype(dtype))
            # Nearly every fraction is rounded: it matters if it loses what tells rows apart. A whole number is a name.
            felt = abs(there - float(value)) > FELT * float(present.astype(np.float64).std())
            if felt or not np.isfinite(there) or column.dtype.kind in "iu":
                yield f"no {dtype} holds it: the cast makes it {there:.17g}"
        below = float((present < value).mean()), float((present > value).mean())
        if len(present) >= 20 and min(below) == 0.0 and float((present == value).mean()) < RARE:
            yield f"outside the rest: the {'smallest' if below[0] == 0.0 else 'largest'} value of {len(present):,}"
        elif len(present) >= 100 and min(below) < RARE:
            yield f"at the {100 * below[0]:.3g}th percentile"
        return
    known = known_categories(case, field)
    if known is not None and value not in known.values:
        yield "not seen when the encoder was fitted"
    count = sum(1 for entry in column.tolist() if entry == value)
    kinds = len({str(entry) for entry in column.tolist()})
    if len(column) >= 100 and count <= RARE * len(column) and kinds < len(column) / 2:
        yield f"rare: {count:,} of {len(column):,} rows have it"
