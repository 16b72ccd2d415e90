"""Edge cases: rows made to find trouble, asked of both models and judged beside the data.

`values` puts other values into real rows (most suites are one row of its table), `thresholds` aims at the
trees of a model, `rows`, with which all begin, at the batch as a whole and between classes.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from likewise.compare.call import Side, answers
from likewise.compare.observe import CANDIDATE, REFERENCE, Prepared, paired, rows_beyond
from likewise.compare.session import Head
from likewise.compare.variations.edge.rows import COLUMNS, all_features
from likewise.compare.variations.refusals import only_recorded, try_rows
from likewise.contracts.comparison import Fed, Incident, Mismatch, Plan, Seen, Suite, SuiteFacts
from likewise.contracts.data import Array, Batch
from likewise.data.rows import rows_at
from likewise.errors import LikewiseError, UsageError, nearest, one_line
from likewise.registry import extensions

ROWS = 512
BYTES = 16 * 2**20
"""A suite tries at most so many rows, and rows of at most so many bytes."""

SECONDS = 20.0
"""All suites together begin no new one after this."""

FEW = 2
"""Rows of a suite that are always tried, however slow the models are."""

TIMED = 8
"""Rows by which the models are timed before the first suite."""

KIND = "edge"


@dataclass(slots=True)
class _Time:
    """What is left of it, and how much of it a row takes."""

    until: float
    a_row: float = 0.0

    def rows(self) -> int:
        """As many as take a quarter of what is left, so that slow models meet more than the first suites."""
        left = (self.until - time.monotonic()) / 4
        return ROWS if self.a_row * ROWS <= left else max(FEW, int(left / self.a_row))

    def took(self, seconds: float, rows: int) -> None:
        """Keep the pace of the last rows, and do not forget at once that others were slower."""
        if rows:
            self.a_row = max(self.a_row / 2, seconds / rows)


def run(
    plan: Plan,
    prepared: Prepared,
    head: Head | None,
    *,
    blocks: bool,
    skipped: Collection[str] = (),
    seed: int = 0,
) -> tuple[SuiteFacts, ...]:
    """Both models on every suite that makes sense for them, but for those to be skipped."""
    if head is None:
        return _nothing(plan, "the data is one test case, which has no rows to make others from", blocks=blocks)
    if reason := _impossible(plan):
        return _nothing(plan, reason, blocks=blocks)
    seen = _seen(prepared, head, seed)
    if not len(seen.batch):
        return _nothing(plan, "no row of the data agrees, so that none shows more", blocks=blocks)
    chosen = [suite for suite in suites() if suite.name not in skipped]
    clock = _Time(time.monotonic() + SECONDS)
    _time_models(prepared, seen, clock)
    # What models say about rows that nobody sent them is no news about the data.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [_facts(suite, plan, prepared, seen, blocks=blocks, clock=clock) for suite in chosen]
    applying = tuple(facts for facts in found if facts is not None)
    return applying or _nothing(plan, "no suite applies to this data", blocks=blocks)


def require_known(names: Iterable[str]) -> None:
    """A usage error for a suite that there is not."""
    known = [suite.name for suite in suites()]
    for name in names:
        if name not in known:
            remedy = f"Suites: {', '.join(known)}"
            raise UsageError(f"there is no edge suite {name!r} to skip{nearest(name, known)}", remedy=remedy)


def _time_models(prepared: Prepared, seen: Seen, clock: _Time) -> None:
    """How long both take for a few rows that they have answered before."""
    began = time.monotonic()
    few = seen.batch.slice(0, TIMED)
    with contextlib.suppress(LikewiseError):
        for side in (prepared.reference, prepared.candidate):
            answers(side, few)
    clock.took(time.monotonic() - began, len(few))


def suites() -> tuple[Suite, ...]:
    """Every edge suite, ours and those of others, by name."""
    return tuple(sorted(extensions("compare.variations.edge"), key=lambda suite: suite.name))


def _nothing(plan: Plan, reason: str, *, blocks: bool) -> tuple[SuiteFacts, ...]:
    return (SuiteFacts(KIND, "edge cases", "Inputs made to find trouble", plan.nothing, blocks, 0, reason),)


def _impossible(plan: Plan) -> str:
    side = only_recorded(plan)
    return side and f"of the {side} there are only recorded answers, and none to rows that were not recorded"


def _seen(prepared: Prepared, head: Head, seed: int) -> Seen:
    """The first rows on which both models agree: what is changed in others cannot be told from what was there."""
    agreeing = np.flatnonzero(~_beyond(prepared, head))
    batch = head.batch if len(agreeing) == len(head.batch) else rows_at(head.batch, agreeing)
    taken = [side.feed.columns for side in (prepared.reference, prepared.candidate)]
    known = [name for name in batch.inputs if any(names is None or name in names for names in taken)]
    return Seen(
        batch,
        {name: array[agreeing] for name, array in head.reference.items()},
        {name: array[agreeing] for name, array in head.candidate.items()},
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


def _facts(
    suite: Suite, plan: Plan, prepared: Prepared, seen: Seen, *, blocks: bool, clock: _Time
) -> SuiteFacts | None:
    """What a suite found; None where it does not apply."""
    nothing = plan.nothing
    facts = SuiteFacts(KIND, suite.name, suite.title, nothing, blocks)
    began = time.monotonic()
    if began > clock.until:
        return replace(facts, not_covered=f"there was no time left after {SECONDS:g} seconds")
    plan.tell(f"trying the edge suite {suite.name!r}")
    try:
        batches, made = _bounded(suite.batches(seen), clock.rows())
        tried = try_rows(plan, prepared, batches, apart=not suite.about_batches)
    except Exception as error:  # noqa: BLE001 - the data was compared: a suite that breaks takes only itself along
        incident = Incident(
            "suite", f"the suite {suite.name!r} broke: {one_line(error)}", "Tell us; --edge off skips it"
        )
        return replace(facts, comparison=replace(nothing, incidents=(incident,)))
    rows = sum(map(len, batches))
    clock.took(time.monotonic() - began, rows)
    if not rows:
        return None
    title = suite.title + _sample(suite, seen, rows, made)
    return replace(facts, title=title, comparison=tried.comparison, refused=tried.refused)


def _sample(suite: Suite, seen: Seen, rows: int, made: int) -> str:
    """Words for what was left out."""
    told = []
    count = len(all_features(seen))
    if suite.by_column and count > COLUMNS:
        told.append(f"{COLUMNS} of {count:,} columns")
    if rows < made:
        told.append(f"the first {rows:,} rows of them")
    return f" (a sample: {', '.join(told)})" if told else ""


def _bounded(batches: Iterable[Batch], rows: int) -> tuple[list[Batch], int]:
    """The first rows of a suite, as many as are allowed, and how many it made until then."""
    kept: list[Batch] = []
    left, room, made = rows, BYTES, 0
    for batch in batches:
        if not len(batch):
            continue
        made += len(batch)
        if left <= 0 or room <= 0:
            break
        width = max(1, sum(array.nbytes for array in batch.inputs.values()) // len(batch))
        count = min(len(batch), left, max(1, room // width))
        kept.append(batch if count == len(batch) else rows_at(batch, np.arange(count)))
        left, room = left - count, room - count * width
    return kept, made
