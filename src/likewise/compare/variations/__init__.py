"""What is asked beside the data: other batches, lengths and settings, rows made to find trouble, generated rows.

Here, how much of it: all where that costs little, else about as many rows as the data had. Small models that are asked
about short rows cost little. Of others it is decided once, after the data, from what a row of the data and a
call for a single row cost each model; from then on no clock is looked at. What is tried of models that take long is a
rule over rows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from likewise.compare.call import Side, recorded, timed
from likewise.compare.engines import Head, Run
from likewise.compare.observe import REFERENCE, Prepared
from likewise.compare.variations import batches, lengths
from likewise.contracts.comparison import Comparison, Plan
from likewise.contracts.models import PARAMETERS
from likewise.errors import LikewiseError
from likewise.models.onnx.describe import EXTERNAL_DATA

BATCHES, LENGTHS, EDGE = 0.5, 0.75, 1.0
"""Up to which part of the room other batches, then other lengths, then edge suites may go."""

SMALL = 1 << 28
"""Bytes of a model times the numbers of a row, below which no row costs much."""

TIMES, BRIEF = 3, 0.1
"""How often a single row is asked at most to see what a call costs at least, as others may keep the machine busy; and
the seconds from which on once will do."""

FAR_TOO_MUCH = 16.0
"""Small models that take so many times what is allowed do something else than their size tells, such as loops."""


def room(plan: Plan, ran: Run, *, seconds: float, multiple: float, edge: bool) -> int | None:
    """Rows that may be asked of each model beside the data; None for all that there is to try.

    All is tried that takes no more than so many seconds, or so many times what the data took. What a user names is
    tried in full and is not counted. `edge`: there are suites that do not block.
    """
    prepared, head = ran.prepared, ran.head
    if prepared is None or head is None:
        return None
    rows, row_seconds = ran.comparison.rows, ran.row_seconds
    sides = [side for side in (prepared.reference, prepared.candidate) if side.name in row_seconds]
    asked = {side.name: _everything(plan, prepared, head, rows, side.name, edge=edge) for side in sides}
    if not any(count for count, _ in asked.values()):
        return None
    row = sum(row_seconds.values())
    enough = max(seconds, multiple * rows * row)
    if _small(plan, prepared.reference, head) and _small(plan, prepared.candidate, head):
        # A busy machine must not make other rows of the same command.
        enough *= FAR_TOO_MUCH
    took = sum(count * row_seconds[name] for name, (count, _) in asked.items())
    calls = {name: count for name, (_, count) in asked.items()}
    # Of rows that take too long already it does not matter what calls take.
    if took <= enough and _fit(calls, enough - took, partial(_call_seconds, plan, prepared, head, row_seconds)):
        return None
    if multiple:
        return round(multiple * rows)
    # In coarse steps, so that two runs come to the same.
    return int(seconds / 2.0 ** math.ceil(math.log2(row)))


def left(room: int | None, share: float, plan: Plan, comparison: Comparison) -> int | None:
    """What is left of a part of the room after what was tried."""
    if room is None:
        return None
    asked = 0
    if plan.batch_sizes is None:
        asked += sum(facts.rows for facts in (*comparison.batch_sizes, *comparison.batch_orders))
    if plan.shapes is None:
        asked += sum(suite.comparison.rows + suite.refused for suite in comparison.suites if suite.kind == lengths.KIND)
    return max(0, int(share * room) - asked)


def covered(ran: Run) -> Collection[int]:
    """The sizes of the calls in which the candidate was asked about the data."""
    size, rows = ran.facts.batch_size.get("candidate", 1), ran.comparison.rows
    return {min(size, rows), rows % size}


def _fit(calls: Mapping[str, int], enough: float, seconds: Callable[[str], float]) -> bool:
    """Do so many calls of each model take no longer than is enough? If so at first sight, no second is needed."""
    least = dict.fromkeys(calls, 0.0)
    for turn in range(TIMES):
        for name in [name for name in calls if not turn or least[name] < BRIEF]:
            least[name] = min(seconds(name), least[name] if turn else math.inf)
        if sum(count * least[name] for name, count in calls.items()) <= enough:
            return True
    return False


def _call_seconds(plan: Plan, prepared: Prepared, head: Head, rows: Mapping[str, float], name: str) -> float:
    """What a call costs whatever its rows: what a single row costs more than one of many."""
    if recorded(plan, name):
        return 0.0
    try:
        side = prepared.reference if name == REFERENCE else prepared.candidate
        return max(0.0, timed(side, head.batch.slice(0, 1))[2] - rows[name])
    except LikewiseError:
        # That is told where single rows are tried.
        return 0.0


def _small(plan: Plan, side: Side, head: Head) -> bool:
    """Is a model so small, and a row so short, that no row can cost much?"""
    if recorded(plan, side.name):
        return True
    size = _bytes(plan, side)
    values = sum(array.size for array in head.batch.slice(0, 1).inputs.values())
    return size is not None and size * max(values, 1) <= SMALL


def _bytes(plan: Plan, side: Side) -> int | None:
    """Of its file, or of what it has learnt; None where neither tells what a model does."""
    target, details = (plan.reference if side.name == REFERENCE else plan.candidate).target, side.runner.details
    if isinstance(target, str | Path) and os.path.isfile(target):
        weights = (os.path.join(os.path.dirname(target), name) for name in details.get(EXTERNAL_DATA, ()))
        return sum(map(os.path.getsize, (target, *weights)))
    learnt = details.get(PARAMETERS)
    # Of an estimator they are what it was made with, not how many it has learnt.
    return 4 * learnt if isinstance(learnt, int) and learnt else None


def _everything(plan: Plan, prepared: Prepared, head: Head, compared: int, side: str, *, edge: bool) -> tuple[int, int]:
    """About how many rows and calls of a model it takes to try all that was not asked for by name."""
    rows = calls = 0
    if plan.batch_sizes is None and prepared.candidate.fixed_batch is None:
        tries: Sequence[batches.Try] = batches.every(len(head.batch))
        asked = [one.places if side != REFERENCE or one.size == 1 else one.places[: one.size] for one in tries]
        rows += sum(map(len, asked))
        calls += sum(-(-len(places) // one.size) for places, one in zip(asked, tries, strict=True))
    if lengths.applies(plan, prepared, head):
        rows += lengths.every(prepared, head.batch)
    if edge:
        from likewise.compare.variations import edge as suites

        rows += suites.every(head.batch, compared)
        calls += 2 * suites.APPLYING
    return rows, calls
