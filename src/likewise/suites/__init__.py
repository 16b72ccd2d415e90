"""Edge suites: one file a kind of trouble, judged beside the data."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from likewise.batching import rows_at
from likewise.comparing import CANDIDATE, REFERENCE, Prepared
from likewise.contracts.data import Batch
from likewise.contracts.measuring import Comparison, Incident, Plan, SuiteFacts
from likewise.contracts.suites import Seen, Suite
from likewise.discovery import adapter, extensions
from likewise.errors import one_line
from likewise.sweeping import Head
from likewise.trying import try_rows

ROWS = 512
BYTES = 16 * 2**20
"""A suite tries at most so many rows, and rows of at most so many bytes."""

SECONDS = 20.0
"""All suites together begin no new one after this."""

KIND = "edge"


def run(plan: Plan, prepared: Prepared, head: Head | None, *, blocks: bool, seed: int = 0) -> tuple[SuiteFacts, ...]:
    """Both models on every suite that makes sense for them."""
    if head is None:
        return _nothing(plan, "the data is one test case, which has no rows to make others from", blocks=blocks)
    if reason := _impossible(plan):
        return _nothing(plan, reason, blocks=blocks)
    seen = _seen(prepared, head, seed)
    until = time.monotonic() + SECONDS
    found = [_facts(suite, plan, prepared, seen, blocks=blocks, until=until) for suite in suites()]
    applying = tuple(facts for facts in found if facts is not None)
    return applying or _nothing(plan, "no suite applies to this data", blocks=blocks)


def suites() -> tuple[Suite, ...]:
    """Every edge suite, ours and those of others."""
    return extensions("suites")


def _nothing(plan: Plan, reason: str, *, blocks: bool) -> tuple[SuiteFacts, ...]:
    empty = Comparison(tolerance=plan.tolerance)
    return (SuiteFacts(KIND, "edge cases", "Inputs made to find trouble", empty, blocks, 0, reason),)


def _impossible(plan: Plan) -> str:
    for side, model in ((REFERENCE, plan.reference), (CANDIDATE, plan.candidate)):
        if getattr(adapter(model.framework), "answers_only", False):
            return f"of the {side} there are only recorded answers, and none to rows that were not recorded"
    return ""


def _seen(prepared: Prepared, head: Head, seed: int) -> Seen:
    taken = [side.feed.columns for side in (prepared.reference, prepared.candidate)]
    known = [name for name in head.batch.inputs if any(names is None or name in names for names in taken)]
    runners = {REFERENCE: prepared.reference.runner, CANDIDATE: prepared.candidate.runner}
    return Seen(head.batch, head.reference, head.candidate, prepared.pairing.pairs, runners, tuple(known), seed)


def _facts(
    suite: Suite, plan: Plan, prepared: Prepared, seen: Seen, *, blocks: bool, until: float
) -> SuiteFacts | None:
    """What a suite found; None where it does not apply."""
    told = (KIND, suite.name, suite.title)
    nothing = Comparison(tolerance=plan.tolerance, nan_equal=plan.nan_equal)
    if time.monotonic() > until:
        return SuiteFacts(*told, nothing, blocks, 0, f"there was no time left after {SECONDS:g} seconds")
    try:
        tried = try_rows(plan, prepared, _bounded(suite.batches(seen)))
    except Exception as error:  # noqa: BLE001 - the data was compared: a suite that breaks takes only itself along
        incident = Incident(
            "suite", f"the suite {suite.name!r} broke: {one_line(error)}", "Tell us; --edge off skips it"
        )
        return SuiteFacts(*told, Comparison(tolerance=plan.tolerance, incidents=(incident,)), blocks)
    if not tried.comparison.rows and not tried.refused and not tried.comparison.mismatches:
        return None
    return SuiteFacts(*told, tried.comparison, blocks, tried.refused)


def _bounded(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The first rows of a suite, as many as are allowed."""
    import numpy as np

    left, room = ROWS, BYTES
    for batch in batches:
        if not len(batch):
            continue
        width = max(1, sum(array.nbytes for array in batch.inputs.values()) // len(batch))
        rows = min(len(batch), left, max(1, room // width))
        yield batch if rows == len(batch) else rows_at(batch, np.arange(rows))
        left, room = left - rows, room - rows * width
        if left <= 0 or room <= 0:
            return
