"""The data cannot be given to a model: columns renamed, missing, too many, or in a type or shape it does not take.

A reason is proven where the data, changed accordingly, feeds both models and they agree on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import permutations

import numpy as np

from likewise.contracts.data import Array, Batch
from likewise.contracts.models import InputSpec, Shape
from likewise.contracts.report import Place
from likewise.data.cells import listed, missing_in
from likewise.data.columns import ArrayColumns, with_columns
from likewise.data.rows import rows_at
from likewise.explain.case import Case, Explained, Remedy, probe
from likewise.explain.features import ROWS, agreement, columns_taken, first_rows, unfed_sides, with_added

ALIKE = 0.6
"""How similar two names must be for one to be the other renamed."""

PROVEN = 0.9
"""A change of the data is what was meant if both models agree on so many rows then."""

NO_FEATURE = re.compile(r"(row_?|record_?|customer_?|user_?)?id|index|unnamed.*|target|label|y|class|split|fold", re.I)
"""Names that columns of a table have which are no features."""

MOST_DROPPED = 64
"""Columns that are left out one after the other."""

MOST_ROWS = 65_536
"""A single missing value far down in the data is enough to be refused."""


@probe(
    "schema-mismatch",
    "missing-value-handling",
    "input-type",
    "input-layout",
    when=lambda case: (
        case.sample is None
        and len(case.runners) == 2
        and any(incident.code == "feeding" for incident in case.comparison.incidents)
    ),
    needs_answers=False,
)
def schema(case: Case) -> Explained | None:
    """Rename, leave out, read otherwise or turn round what does not fit: do both models then answer, and agree?"""
    batch = first_rows(case, MOST_ROWS)
    sides = [] if batch is None else unfed_sides(case, batch)
    # A column that is not there says more than one of another type.
    for look in (_absent, _too_wide, _typed, _shaped):
        for side in sides:
            found = None if batch is None else next(look(case, batch, side), None)
            if found is not None:
                return found
    return None


def _agrees(share: float | None, told: str) -> str:
    """What a change of the data showed, where both models could be asked."""
    return "" if share is None else f"; {told}, and agree on {share:.0%} of the rows"


def _explained(
    name: str, detail: str, evidence: str, remedy: Remedy | str, cause: str = "schema-mismatch"
) -> Explained:
    return Explained(cause, Place(name, (detail,) if detail else ()), evidence, remedy, simplicity=1)


def _absent(case: Case, batch: Batch, side: str) -> Iterator[Explained]:
    """Columns that a model takes by name and the data does not have, or has under another name."""
    batch = batch.slice(0, ROWS)
    signature = case.runners[side].signature
    specs = [spec for spec in signature.inputs or () if not spec.optional]
    if not specs or (len(specs) == 1 and not signature.table) or len(batch.inputs) == 1 < len(specs):
        return
    wanted = [case.plan.feed.get(spec.name, spec.name) for spec in specs]
    absent = [name for name in wanted if name not in batch.inputs]
    if not absent:
        return
    free = [name for name in batch.inputs if name not in wanted]
    renamed = {absent[0]: free[0]} if len(absent) == len(free) == 1 else _matched(absent, free)
    share = agreement(case, with_added(batch, renamed)) if len(renamed) == len(absent) else None
    names, instead = listed(absent), listed(list(renamed.values()))
    lacks = f"the {side} takes {names}, which the data does not have"
    if share is None or share < PROVEN:
        evidence = f"{lacks}; what the {side} does not take: {listed(free)}" if free else lacks
        feed = "" if signature.table else f", or name its column: --feed {absent[0]}=COLUMN"
        yield _explained(names, "", evidence, f"Add {names} to the data{feed}")
        return
    feeds = " ".join(f"--feed '{name}={column}'" for name, column in renamed.items())
    rename = ", ".join(f"{column!r}: {name!r}" for name, column in renamed.items())
    yield _explained(
        names,
        f"{instead} in the data",
        f"{lacks}; with {instead} in its place both models answer, and agree on {share:.0%} of {len(batch):,} rows",
        f"Rename the columns: data.rename(columns={{{rename}}})"
        if signature.table
        else Remedy(done=f"Say so: {feeds}" if share == 1 else "", suggestion="" if share == 1 else f"Say so: {feeds}"),
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
    one, other = (re.sub(r"[\W_]+", "", name).casefold() for name in (one, other))
    if one and other and (one in other or other in one):
        return 1.0 - 0.3 * abs(len(one) - len(other)) / max(len(one), len(other))
    return SequenceMatcher(None, one, other).ratio()


def _too_wide(case: Case, batch: Batch, side: str) -> Iterator[Explained]:
    """One input of a fixed width, and more or fewer columns than that."""
    batch = batch.slice(0, ROWS)
    specs = case.runners[side].signature.inputs or ()
    if len(specs) != 1 or specs[0].shape is None or len(specs[0].shape) != 2 or not isinstance(specs[0].shape[1], int):
        return
    spec, width = specs[0], int(specs[0].shape[1])
    taken = columns_taken(case, batch, "reference") if side == "candidate" else None
    columns = taken or list(batch.inputs)
    if any(batch.inputs[name].ndim != 1 for name in columns) or len(columns) == width:
        return
    whose = "the reference takes" if taken else "the data has"
    said = f"input {spec.name} of the {side} takes {width} columns, {whose} {len(columns)}: {listed(columns, 12)}"
    many = f"{width} columns instead of {len(columns)}"
    if len(columns) < width:
        again = "Export again from the model that is compared with, with the columns it was fitted with"
        yield _explained(spec.name, many, said, again)
        return
    if taken and len(columns) == width + 1:
        yield from _lacking(case, batch, columns)
    spare = [name for name in columns if NO_FEATURE.fullmatch(name)]
    spare += [name for name in columns if name not in spare and batch.inputs[name].dtype.kind not in "biuf"]
    if len(columns) - len(spare) == width:
        kept = batch.inputs.select([name for name in batch.inputs if name not in spare])
        proof = _agrees(agreement(case, replace(batch, inputs=kept)), f"without {listed(spare)} both models answer")
        drop = " ".join(f"--drop {name}" for name in spare)
        yield _explained(listed(spare), "", f"{said}{proof}", f"Leave out: {drop}")
    else:
        yield _explained(spec.name, many, said, "Leave out columns that are not features: --drop COLUMN")


def _lacking(case: Case, batch: Batch, columns: Sequence[str]) -> Iterator[Explained]:
    """The column that the reference takes and the candidate does not know: without it, they agree."""
    name = next(spec.name for spec in case.runners["candidate"].signature.inputs or ())
    if any(batch.inputs[column].dtype.kind not in "biuf" for column in columns):
        return
    shares = {}
    for column in columns[:MOST_DROPPED]:
        kept = [batch.inputs[other].astype(np.float64) for other in columns if other != column]
        arrays = {**{other: batch.inputs[other] for other in columns}, name: np.stack(kept, axis=1)}
        shares[column] = agreement(case, Batch(batch.rows, ArrayColumns(arrays))) or 0.0
    best = max(shares, key=lambda column: shares[column])
    if shares[best] >= PROVEN:
        yield _explained(
            best,
            "",
            f"the reference takes {len(columns)} columns and the candidate {len(columns) - 1}; without {best} it "
            f"answers, and agrees with the reference on {shares[best]:.0%} of {len(batch):,} rows",
            f"Export again from the model that is compared with: the candidate was made without {best}",
        )


def _typed(case: Case, batch: Batch, side: str) -> Iterator[Explained]:
    """A column that cannot be cast to the type a model declares: text, or missing values for an integer."""
    for spec, column in _routes(case, batch, side):
        array = batch.inputs[column]
        if spec.dtype is None or array.ndim != 1:
            continue
        if spec.dtype.startswith(("int", "uint", "bool")) and array.dtype.kind in "fO":
            yield from _missing_as_integer(case, batch, side, spec, column)
        if spec.dtype not in ("string", "object") and array.dtype.kind == "O":
            texts = [value for value in array.tolist() if isinstance(value, str)]
            if texts:
                yield _text_as_number(case, batch, side, spec, column, texts[0])


def _routes(case: Case, batch: Batch, side: str) -> list[tuple[InputSpec, str]]:
    """Which column becomes which input, as far as it can be told from names."""
    signature = case.runners[side].signature
    specs = signature.inputs or ()
    if len(specs) == 1 and specs[0].name not in batch.inputs and not signature.table:
        order = columns_taken(case, batch, "reference") or list(batch.inputs)
        return [(specs[0], column) for column in order]
    named = [(spec, case.plan.feed.get(spec.name, spec.name)) for spec in specs]
    return [(spec, column) for spec, column in named if column in batch.inputs]


def _missing_as_integer(case: Case, batch: Batch, side: str, spec: InputSpec, column: str) -> Iterator[Explained]:
    array = batch.inputs[column]
    gone = missing_in(array) | (~np.isfinite(array) if array.dtype.kind == "f" else False)
    if not gone.any() or any(isinstance(value, str) for value in array[~gone].tolist()[:1000]):
        return
    kept = np.flatnonzero(~gone)[:ROWS]
    share = agreement(case, rows_at(batch, kept)) if len(kept) else None
    also = "" if share is None else f"; without these rows both models answer, and agree on {share:.0%} of the rest"
    yield _explained(
        column,
        "",
        f"{column} is missing in {int(gone.sum()):,} of {len(array):,} rows, and the {side} takes it as {spec.dtype}, "
        f"which has no missing values{also}",
        f"Export with {column} as a float input, or impute it before both models",
        "missing-value-handling",
    )


def _text_as_number(case: Case, batch: Batch, side: str, spec: InputSpec, column: str, example: str) -> Explained:
    parsed = _parsed(batch.inputs[column])
    share = None
    if parsed is not None:
        numbers = Batch(batch.rows, with_columns(batch.inputs, {column: parsed}))
        share = agreement(case, numbers.slice(0, ROWS))
    return _explained(
        column,
        "",
        f"{column} holds text in the data, such as {example!r}, and the {side} takes it as {spec.dtype}"
        + _agrees(share, "read as numbers, both models answer"),
        f"Store {column} as numbers"
        if parsed is not None
        else f"Export with {column} as a text input, encoder included",
        "input-type",
    )


def _parsed(array: Array) -> Array | None:
    """Text that spells numbers, as numbers; None if any does not."""
    try:
        return np.array([np.nan if value is None else float(value) for value in array.tolist()])
    except (TypeError, ValueError):
        return None


def _shaped(case: Case, batch: Batch, side: str) -> Iterator[Explained]:
    """A tensor whose axes are in another order than the input declares."""
    for spec in case.runners[side].signature.inputs or ():
        column = case.plan.feed.get(spec.name, spec.name)
        column = column if column in batch.inputs else next(iter(batch.inputs)) if len(batch.inputs) == 1 else ""
        if not column or spec.shape is None or batch.inputs[column].ndim != len(spec.shape) or len(spec.shape) < 3:
            continue
        array = batch.inputs[column]
        orders = [(0, *axes) for axes in permutations(range(1, array.ndim))]
        fitting = [order for order in orders[1:] if _fits([array.shape[axis] for axis in order], spec.shape)]
        if not fitting or _fits(array.shape, spec.shape):
            continue
        shares = {order: _agreement_turned(case, batch, side, spec, order) for order in fitting}
        best = max(fitting, key=lambda order: shares[order] or 0.0)
        share, turned = shares[best], ", ".join(map(str, best))
        proof = "" if share is None else f"; turned round, both models agree on {share:.0%} of the rows"
        yield _explained(
            spec.name,
            f"its axes are {turned} of the data",
            f"the {side} takes {spec.name} as {_shape(spec.shape)}, the data has {_shape((None, *array.shape[1:]))}, "
            f"the same axes in another order{proof}",
            f"Turn the data round before it is fed: array.transpose({turned})",
            "input-layout",
        )


def _agreement_turned(case: Case, batch: Batch, side: str, spec: InputSpec, order: tuple[int, ...]) -> float | None:
    """Do both models agree if this one gets the tensor turned round? Told where each has one input, of its own name."""
    others = case.runners["reference" if side == "candidate" else "candidate"].signature.inputs or ()
    if len(batch.inputs) != 1 or len(others) != 1 or others[0].name == spec.name:
        return None
    (array,) = batch.inputs.values()
    arrays = {others[0].name: array, spec.name: np.ascontiguousarray(array.transpose(order))}
    return agreement(case, Batch(batch.rows, ArrayColumns(arrays)).slice(0, ROWS))


def _fits(sizes: Sequence[int], shape: Shape) -> bool:
    pairs = zip(sizes[1:], shape[1:], strict=True)
    return all(not isinstance(want, int) or want == have for have, want in pairs)


def _shape(shape: Shape) -> str:
    return "(" + ", ".join("n" if dim is None else str(dim) for dim in shape) + ")"


EXTENSION = schema
