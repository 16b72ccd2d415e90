"""Edge cases: rows made to find trouble, asked of both models and judged beside the data.

`values` puts other values into real rows (most suites are one row of its table, others aim at the trees of a model),
`rows` puts rows together in other ways. Here, what all of them begin with, and how they are asked.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from likewise.compare.call import Side
from likewise.compare.engines import Head
from likewise.compare.observe import CANDIDATE, REFERENCE, Prepared, paired, rows_beyond
from likewise.compare.variations.refusals import only_recorded, try_rows
from likewise.contracts.comparison import Fed, Incident, Mismatch, Plan, Seen, Suite, SuiteFacts, Untried
from likewise.contracts.data import Array, Batch
from likewise.data.cells import WIDEST, Field
from likewise.errors import UsageError, nearest, one_line
from likewise.registry import extensions

ROWS = 512
BYTES = 16 * 2**20
"""A suite that does not block tries at most so many rows, of at most so many bytes, or with answers of as many; one
that blocks is tried in full, so many bytes at a time."""

LEAST = 16
"""Rows of a suite that are tried however few rows the data has; of more data half as many."""

TELLING = (
    *("missing-values", "tree-thresholds", "tied-scores", "masks", "unseen-categories", "zeros", "beyond-range"),
    *("large-integers", "empty-text", "nonfinite", "rounded-thresholds", "constant-columns", "huge-numbers"),
    *("letter-case", "blanks", "accents"),
)
FEW = 2
"""Of models that take long: the suites that come first, and rows that each of them tries; more where data are many."""

APPLYING = 12
"""Suites that make sense for usual data."""

KIND = "edge"

COLUMNS = 64
"""Features that a suite goes through one by one; of more it takes a sample."""

BASE = 2
"""Real rows that every change is made to."""

HEAVY = 2**18
"""Bytes of a row above which changes are made to one row only."""

FLOAT, INTEGER, TEXT, TENSOR, IDS, OTHER = "float", "integer", "text", "tensor", "ids", "other"
"""What a feature holds: numbers, whole numbers, text; tensors of numbers; tensors of whole numbers."""


def run(
    plan: Plan,
    prepared: Prepared,
    head: Head | None,
    *,
    blocks: bool,
    strict: bool = False,
    rows: int,
    skipped: Collection[str] = (),
    seed: int = 0,
    room: int | None = None,
) -> tuple[tuple[SuiteFacts, ...], tuple[Untried, ...]]:
    """Both models on every suite that makes sense for them, but for those to be skipped.

    What blocks is tried in full. The rest costs about as much as the data, of which there are so many `rows`: how
    much is tried is a rule, and no matter of how fast the models are, so that two runs give one report. With `room` for
    so many rows only, the most telling suites are tried on a few rows each; the second result names the others.
    `strict`: what the reference alone refuses blocks too, whatever it is.
    """
    if head is None:
        return _nothing(plan, "samples have no rows to make others from", blocks=blocks), ()
    if reason := _impossible(plan):
        return _nothing(plan, reason, blocks=blocks), ()
    seen = _seen(prepared, head, seed)
    if not len(seen.batch):
        return _nothing(plan, "there is no row on which the models agree, to make others from", blocks=blocks), ()
    chosen = [suite for suite in suites() if suite.name not in skipped]
    most = None if blocks else min(rows_of_a_suite(rows), max(LEAST, BYTES // max(1, prepared.answer_bytes)))
    if room is not None:
        chosen.sort(key=lambda suite: TELLING.index(suite.name) if suite.name in TELLING else len(TELLING))
        most = max(FEW, rows // len(TELLING))
    found: list[SuiteFacts] = []
    left: list[str] = []
    # What models say about rows that nobody sent them is no news about the data.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for suite in chosen:
            made = _made(suite, plan, seen, most, prepared.row_bytes)
            if isinstance(made, SuiteFacts):
                found.append(replace(made, blocks=blocks))
            elif room is not None and (asked := sum(map(len, made[1]))) > room:
                left.append(suite.name)
            elif made[1]:
                found.append(_facts(suite, plan, prepared, *made, blocks=blocks, strict=strict))
                room = None if room is None else room - asked
    nothing = () if left else _nothing(plan, "no suite applies to this data", blocks=blocks)
    return tuple(found) or nothing, (Untried(KIND, tuple(left)),) if left else ()


def rows_of_a_suite(rows: int) -> int:
    """How many rows a suite tries that does not block, beside so many rows of data."""
    return min(ROWS, max(LEAST, rows // 2))


def every(batch: Batch, rows: int) -> int:
    """About how many rows all suites make that do not block: a few for each value and feature."""
    wide = (int(array.shape[1]) for array in batch.inputs.values() if array.ndim == 2 and array.dtype.kind == "f")
    features = min(COLUMNS, len(batch.inputs) + sum(wide))
    return APPLYING * min(rows_of_a_suite(rows), 8 * features)


def require_known(names: Iterable[str]) -> None:
    """A usage error for a suite that there is not."""
    known = [suite.name for suite in suites()]
    for name in names:
        if name not in known:
            remedy = f"Suites: {', '.join(known)}"
            raise UsageError(f"there is no edge suite {name!r} to skip{nearest(name, known)}", remedy=remedy)


def suites() -> tuple[Suite, ...]:
    """Every edge suite, ours and those of others, by name."""
    return tuple(sorted(extensions("compare.variations.edge"), key=lambda suite: suite.name))


def _nothing(plan: Plan, reason: str, *, blocks: bool) -> tuple[SuiteFacts, ...]:
    return (SuiteFacts(KIND, "edge cases", "Inputs made to find trouble", plan.nothing, blocks, 0, reason),)


def _impossible(plan: Plan) -> str:
    side = only_recorded(plan)
    return side and f"the {side} has only recorded answers, and none for rows that were not recorded"


def _seen(prepared: Prepared, head: Head, seed: int) -> Seen:
    """The first rows on which both models agree: what is changed in others cannot be told from what was there."""
    agreeing = np.flatnonzero(~_beyond(prepared, head))
    head = head if len(agreeing) == len(head.batch) else head.at(agreeing)
    batch = head.batch
    taken = [side.feed.columns for side in (prepared.reference, prepared.candidate)]
    known = [name for name in batch.inputs if any(names is None or name in names for names in taken)]
    return Seen(
        batch,
        head.reference,
        head.candidate,
        prepared.pairing.pairs,
        {REFERENCE: prepared.reference.runner, CANDIDATE: prepared.candidate.runner},
        tuple(known),
        seed,
        {side.name: _fed(side, batch) for side in (prepared.reference, prepared.candidate)},
    )


def _beyond(prepared: Prepared, head: Head) -> Array:
    """Which of the first rows the tolerance does not cover."""
    beyond = np.zeros(len(head.batch), dtype=bool)
    for spec in prepared.pairing.pairs:
        pair = paired(
            spec, head.batch, head.reference, head.candidate, prepared.tolerance, nan_equal=prepared.nan_equal
        )
        beyond |= True if isinstance(pair, Mismatch) else rows_beyond(pair)
    return beyond


def _fed(side: Side, batch: Batch) -> dict[str, Fed]:
    """What each input of a model is made of."""
    if side.feed.routes is None:
        return {"": tuple(feature for name in batch.inputs for feature in _features(batch, name))}
    found: dict[str, Fed] = {}
    for route in side.feed.routes:
        if route.split is not None:
            found[route.input.name] = ((route.columns[0], route.split),)
        else:
            found[route.input.name] = tuple(feature for name in route.columns for feature in _features(batch, name))
    return found


def _features(batch: Batch, name: str) -> Fed:
    array = batch.inputs[name]
    return tuple((name, index) for index in range(array.shape[1])) if array.ndim == 2 else ((name, None),)


def _made(
    suite: Suite, plan: Plan, seen: Seen, most: int | None, row_bytes: int
) -> tuple[str, Sequence[Batch]] | SuiteFacts:
    """The rows of a suite, none where it does not apply, under a title that says how many were left out.

    Or that it broke.
    """
    try:
        made = [batch for batch in suite.batches(seen) if len(batch)]
        if most is not None:
            most = min(most, max(1, BYTES // row_bytes))
        batches = made if most is None else _sampled(suite, made, most, seen.seed)
        return suite.title + _left_out(suite, seen, sum(map(len, batches)), sum(map(len, made))), batches
    except Exception as error:  # noqa: BLE001 - the data was compared: a suite that breaks takes only itself along
        return _broken(suite, plan, error)


def _facts(
    suite: Suite, plan: Plan, prepared: Prepared, title: str, made: Sequence[Batch], *, blocks: bool, strict: bool
) -> SuiteFacts:
    """What a suite found."""
    plan.tell(f"trying the edge suite {suite.name!r}")
    try:
        parts = (_parts(batch, max(prepared.row_bytes, prepared.answer_bytes)) for batch in made)
        asked = made if suite.about_batches else [part for of_batch in parts for part in of_batch]
        outside = suite.outside and not strict
        apart = not suite.about_batches
        tried = try_rows(plan, prepared, asked, apart=apart, outside=outside, decides=blocks)
    except Exception as error:  # noqa: BLE001 - as above
        return replace(_broken(suite, plan, error), blocks=blocks)
    return SuiteFacts(KIND, suite.name, title, tried.comparison, blocks, tried.refused)


def _broken(suite: Suite, plan: Plan, error: Exception) -> SuiteFacts:
    told = f"the suite {suite.name!r} broke: {one_line(error)}"
    incident = Incident("suite", told, "Please report it; --edge off skips it")
    return SuiteFacts(KIND, suite.name, suite.title, replace(plan.nothing, incidents=(incident,)))


def _left_out(suite: Suite, seen: Seen, rows: int, made: int) -> str:
    """Words for what was left out."""
    told = []
    count = len(all_features(seen))
    if suite.by_column and count > COLUMNS:
        told.append(f"{COLUMNS} of {count:,} columns")
    if rows < made:
        told.append(f"{rows:,} of {made:,} rows")
    return f" (a sample: {', '.join(told)})" if told else ""


def _sampled(suite: Suite, batches: Sequence[Batch], most: int, seed: int) -> list[Batch]:
    """Rows from all over a suite, as many as are allowed; of a suite about batches the first batches, whole."""
    made = sum(map(len, batches))
    if made <= most:
        return list(batches)
    ends = np.cumsum([len(batch) for batch in batches])
    if suite.about_batches:
        return list(batches[: max(1, int(np.searchsorted(ends, most, side="right")))])
    chosen = np.sort(np.random.default_rng(seed).choice(made, size=most, replace=False))
    parts = [
        chosen[(chosen >= end - len(batch)) & (chosen < end)] - (end - len(batch))
        for batch, end in zip(batches, ends, strict=True)
    ]
    return [batch.at(part) for batch, part in zip(batches, parts, strict=True) if len(part)]


def _parts(batch: Batch, row_bytes: int) -> list[Batch]:
    """The rows in calls that are not too large, nor are the answers to them."""
    step = max(1, BYTES // row_bytes)
    return [batch.slice(start, start + step) for start in range(0, len(batch), step)] if step < len(batch) else [batch]


def picked(seen: Seen, rows: int = BASE) -> Batch:
    """Some of the first rows, the same ones for the same seed; fewer where rows are large."""
    count = min(rows, len(seen.batch))
    width = sum(seen.batch.inputs[name].nbytes for name in seen.columns) // max(len(seen.batch), 1)
    if width > HEAVY:
        count = min(count, 1)
    chosen = np.random.default_rng(seen.seed).choice(len(seen.batch), size=count, replace=False)
    return seen.batch.at(np.sort(chosen))


def features(seen: Seen, *kinds: str) -> list[Field]:
    """The features of these kinds that a suite goes through: all, or a sample in their own order."""
    found = all_features(seen)
    if len(found) > COLUMNS:
        chosen = np.random.default_rng(seen.seed).choice(len(found), size=COLUMNS, replace=False)
        found = [found[place] for place in sorted(chosen.tolist())]
    return [field for field in found if kind(seen, field) in kinds]


def all_features(seen: Seen) -> list[Field]:
    """Every feature: a column, each position of a narrow array, or a tensor as a whole, if it holds anything."""
    found: list[Field] = []
    for name in seen.columns:
        array = seen.batch.inputs[name]
        if array.ndim == 2 and array.dtype.kind == "f" and array.shape[1] <= WIDEST:
            found += [Field(name, index, f"{name}[{index}]", len(found) + index) for index in range(array.shape[1])]
        elif array.size:
            found.append(Field(name, None, name, len(found)))
    return found


def kind(seen: Seen, field: Field) -> str:
    """What a feature holds."""
    array = seen.batch.inputs[field.column]
    if array.ndim > 1 and field.index is None:
        return {"f": TENSOR, "i": IDS, "u": IDS}.get(array.dtype.kind, OTHER)
    if array.dtype.kind in "OUST":
        values = array.tolist()
        others = [value for value in values if value is not None and not isinstance(value, str)]
        text = any(isinstance(value, str) for value in values) and all(value != value for value in others)
        return TEXT if text else OTHER
    return {"f": FLOAT, "i": INTEGER, "u": INTEGER}.get(array.dtype.kind, OTHER)


def values_of(seen: Seen, field: Field) -> Array:
    """What was observed of a feature, without gaps."""
    values = field.of(seen.batch.inputs)
    if values.dtype.kind == "f":
        return values[np.isfinite(values)]
    if values.dtype.kind == "O":
        return np.array([value for value in values.tolist() if isinstance(value, str)], dtype=object)
    return values
