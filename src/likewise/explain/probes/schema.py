"""The data does not fit what a model takes: a column is renamed, missing, or one too many."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from likewise.contracts.data import Batch
from likewise.data.cells import listed
from likewise.data.columns import ArrayColumns
from likewise.explain.case import Case, Explained
from likewise.explain.unfed import agreement, columns_taken, first_rows, unfed_sides, with_added, without

ALIKE = 0.6
"""How similar two names must be for one to be the other renamed."""

PROVEN = 0.9
"""A change of the data is what was meant if both models agree on so many rows then."""

NO_FEATURE = re.compile(r"(row_?|record_?|customer_?|user_?)?id|index|unnamed.*|target|label|y|class|split|fold", re.I)
"""Names that columns of a table have which are no features."""

MOST_DROPPED = 64


class Schema:
    """Rename or leave out a column, and see whether both models then answer, and agree."""

    causes = ("schema-mismatch",)
    needs_answers = False

    def plausible(self, case: Case) -> bool:
        return (
            case.sample is None
            and len(case.runners) == 2
            and any(incident.code == "feeding" for incident in case.comparison.incidents)
        )

    def test(self, case: Case) -> Sequence[Explained]:
        batch = first_rows(case)
        if batch is None:
            return []
        for side in unfed_sides(case, batch):
            for look in (_absent, _too_wide):
                found = look(case, batch, side)
                if found is not None:
                    return [found]
        return []


def _absent(case: Case, batch: Batch, side: str) -> Explained | None:
    """Columns that a model takes by name and the data does not have, or has under another name."""
    signature = case.runners[side].signature
    specs = [spec for spec in signature.inputs or () if not spec.optional]
    if not specs or (len(specs) == 1 and not signature.table) or len(batch.inputs) == 1 < len(specs):
        return None
    wanted = [case.plan.feed.get(spec.name, spec.name) for spec in specs]
    absent = [name for name in wanted if name not in batch.inputs]
    if not absent:
        return None
    free = [name for name in batch.inputs if name not in wanted]
    renamed = _matched(absent, free)
    if len(absent) == len(free) == 1:
        renamed = {absent[0]: free[0]}
    share = agreement(case, with_added(batch, renamed)) if len(renamed) == len(absent) else None
    names, table = listed(absent), signature.table
    if share is None or share < PROVEN:
        return Explained(
            "schema-mismatch",
            names,
            f"the {side} takes {names}, which the data does not have; it has, beside what the {side} takes, "
            f"{listed(free) or 'nothing'}",
            f"Add {names} to the data" + ("" if table else f", or name its column: --feed {absent[0]}=COLUMN"),
            simplicity=1,
        )
    feeds = " ".join(f"--feed '{name}={column}'" for name, column in renamed.items())
    rename = ", ".join(f"{column!r}: {name!r}" for name, column in renamed.items())
    return Explained(
        "schema-mismatch",
        f"{names} ({listed(list(renamed.values()))} in the data)",
        f"the {side} takes {names}, which the data does not have; with {listed(list(renamed.values()))} in its place "
        f"both models answer, and agree on {share:.0%} of {len(batch):,} rows",
        f"Rename the columns: data.rename(columns={{{rename}}})" if table else f"Say so: {feeds}",
        simplicity=1,
    )


def _matched(absent: Sequence[str], free: Sequence[str]) -> dict[str, str]:
    """For each absent name the most similar one, each used once, the most similar pair first."""
    scored = sorted(((_alike(name, other), name, other) for name in absent for other in free), reverse=True)
    found: dict[str, str] = {}
    for score, name, other in scored:
        if score >= ALIKE and name not in found and other not in found.values():
            found[name] = other
    return found


def _alike(one: str, other: str) -> float:
    from difflib import SequenceMatcher

    one, other = (re.sub(r"[\W_]+", "", name).casefold() for name in (one, other))
    if one and other and (one in other or other in one):
        return 1.0 - 0.3 * abs(len(one) - len(other)) / max(len(one), len(other))
    return SequenceMatcher(None, one, other).ratio()


def _too_wide(case: Case, batch: Batch, side: str) -> Explained | None:
    """One input of a fixed width, and more or fewer columns than that."""
    specs = case.runners[side].signature.inputs or ()
    if len(specs) != 1 or specs[0].shape is None or len(specs[0].shape) != 2 or not isinstance(specs[0].shape[1], int):
        return None
    spec, width = specs[0], int(specs[0].shape[1])
    taken = columns_taken(case, batch, "reference") if side == "candidate" else None
    columns = taken or list(batch.inputs)
    if any(batch.inputs[name].ndim != 1 for name in columns) or len(columns) == width:
        return None
    whose = "the reference takes" if taken else "the data has"
    said = f"input {spec.name} of the {side} takes {width} columns, {whose} {len(columns)}: {listed(columns, 12)}"
    if len(columns) < width:
        return Explained(
            "schema-mismatch",
            f"{spec.name} ({width} columns instead of {len(columns)})",
            said,
            "Export again from the model that is compared with, with the columns it was fitted with",
            simplicity=1,
        )
    if taken and len(columns) == width + 1 and (lacking := _lacking(case, batch, columns)) is not None:
        return lacking
    spare = [name for name in columns if NO_FEATURE.fullmatch(name)]
    spare += [name for name in columns if name not in spare and batch.inputs[name].dtype.kind not in "biuf"]
    if len(columns) - len(spare) == width:
        share = agreement(case, without(batch, spare))
        proof = (
            ""
            if share is None
            else f"; without {listed(spare)} both models answer, and agree on {share:.0%} of the rows"
        )
        drop = " ".join(f"--drop {name}" for name in spare)
        return Explained("schema-mismatch", listed(spare), f"{said}{proof}", f"Leave out: {drop}", simplicity=1)
    return Explained(
        "schema-mismatch",
        f"{spec.name} ({width} columns instead of {len(columns)})",
        said,
        "Leave out columns that are not features: --drop COLUMN",
        simplicity=1,
    )


def _lacking(case: Case, batch: Batch, columns: Sequence[str]) -> Explained | None:
    """The column that the reference takes and the candidate does not know: without it, they agree."""
    name = next(spec.name for spec in case.runners["candidate"].signature.inputs or ())
    if any(batch.inputs[column].dtype.kind not in "biuf" for column in columns):
        return None
    shares = {}
    for column in columns[:MOST_DROPPED]:
        kept = [batch.inputs[other].astype(np.float64) for other in columns if other != column]
        arrays = {**{other: batch.inputs[other] for other in columns}, name: np.stack(kept, axis=1)}
        share = agreement(case, Batch(batch.rows, ArrayColumns(arrays)))
        shares[column] = 0.0 if share is None else share
    best = max(shares, key=lambda column: shares[column])
    if shares[best] < PROVEN:
        return None
    return Explained(
        "schema-mismatch",
        best,
        f"the reference takes {len(columns)} columns and the candidate {len(columns) - 1}; without {best} it answers, "
        f"and agrees with the reference on {shares[best]:.0%} of {len(batch):,} rows",
        f"Export again from the model that is compared with: the candidate was made without {best}",
        simplicity=1,
    )


EXTENSION = Schema()
