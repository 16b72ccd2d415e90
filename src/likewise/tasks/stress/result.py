"""From the end of a search to its result: the worst rows made small, written, read again and measured.

The command that measures the file again, with every option of the search that matters to it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from likewise.compare.call import answers
from likewise.compare.observe import observe, outputs
from likewise.contracts.comparison import OutputFacts
from likewise.contracts.data import Array, Batch
from likewise.contracts.models import Kind
from likewise.contracts.verdict import Outcome, Policy
from likewise.contracts.words import figure
from likewise.data.columns import plain
from likewise.data.rows import joined
from likewise.registry import open_source
from likewise.report.stress import Change, MoveFacts, Refusals, StressedRow, StressResult
from likewise.tasks.settings import Settings
from likewise.tasks.stress import measure, pools
from likewise.tasks.stress.minimise import STAYS, changes, minimised
from likewise.tasks.stress.pools import batch_of
from likewise.tasks.stress.search import Ranked, Search, gathered
from likewise.tasks.stress.space import Rows

WRITTEN = 5
"""Rows that are told and written, each from another real row and brought down to the fewest changes."""

ALONE = 0.75
"""A worst row that keeps less than this of its difference in the file owed it to the rows beside it."""

SHOWN = 20
"""Changes of a row that are listed."""

ROWWISE = ("max_abs_diff", "max_rel_diff", "max_ulp_diff", "label_flips", "material_flips", "nonfinite_mismatch")
"""Measures that one row decides. Means, shares and quantiles are not those of the worst rows."""


def result(
    search: Search,
    policy: Policy,
    known: StressResult,
    facts: tuple[MoveFacts, ...],
    *,
    output: str | None,
) -> StressResult:
    """All that was found, as plain facts."""
    found_worst = search.kept.worst
    worst = _worst(search)
    told: tuple[StressedRow, ...] = ()
    measured: tuple[OutputFacts, ...] = ()
    if worst is not None:
        told, measured = _written(search, worst, output)
        if max(row.severity for row in told) < search.start.worst and not _has_worst_real(search, worst):
            worst = gathered([worst, search.start.take(np.array([0]))])
            told, measured = _written(search, worst, output)
    measures = {facts.name: dict(facts.measures) for facts in measured}
    broken = _broken(policy, measures)
    refusals = _refusals(search)
    final = replace(
        known,
        rows=told,
        measures=measures,
        max_abs_diff=_largest(measures),
        file=output if worst is not None else None,
        data_rows=len(search.pool),
        data_beyond=int(search.start.beyond.sum()),
        data_worst=search.start.worst,
        data_abs_diff=_number(search.start.apart[0]),
        data_max_abs_diff=_number(np.fmax.reduce(search.start.apart)),
        found_worst=found_worst,
        calls=dict(search.meter.calls),
        evaluated=dict(search.meter.rows),
        seconds_in_models=round(search.meter.seconds, 3),
        moves=facts,
        refusals=refusals,
        notes=_notes(search, policy),
    )
    final = replace(final, notes=(*final.notes, *_doubts(final)))
    outcome, headline = _judged(final, search, broken)
    return replace(final, outcome=outcome, headline=headline)


def _doubts(found: StressResult) -> list[str]:
    """What a reader would otherwise take for a contradiction."""
    notes = []
    if found.rows:
        searched, alone = found.rows[0].severity_in_search, found.rows[0].severity
        if min(searched, alone) < ALONE * max(searched, alone):
            notes.append(
                f"answers depend on what else is in the call: the worst input differs by {_times(searched)} the "
                f"tolerance among the rows of the search, and by {_times(alone)} in the file"
            )
    largest, own = found.data_max_abs_diff, found.data_abs_diff
    if largest is not None and own is not None and figure(largest) != figure(own):
        notes.append(
            f"another real row has a larger difference, {figure(largest)}: the worst is the one that is furthest "
            "against what its tolerance allows"
        )
    return notes


def _worst(search: Search) -> Ranked | None:
    """The worst rows, each from another real row, the worst of them with the fewest changes."""
    kept = search.kept
    lead = _nothing_worse(search)
    seen = set() if lead is None else {int(lead.rows.base[0])}
    chosen = [] if lead is None else [lead]
    for place in range(len(kept)):
        if kept.severity[place] <= 0 or len(chosen) == WRITTEN:
            break
        if int(kept.rows.base[place]) in seen:
            continue
        one = np.array([place])
        row = minimised(search, kept.take(one))
        if chosen and search.ended():
            break
        seen |= {int(kept.rows.base[place]), int(row.rows.base[0])}
        chosen.append(row)
    return gathered(chosen, lead=lead is not None) if chosen else None


def _nothing_worse(search: Search) -> Ranked | None:
    """The worst real row as it is, if no change made it worse than putting values back is allowed to undo."""
    start, kept = search.start, search.kept
    as_bad = STAYS * kept.worst <= start.worst and bool(start.beyond[0] or not kept.beyond[0])
    return start.take(np.array([0])) if start.worst > 0 and as_bad else None


def _has_worst_real(search: Search, worst: Ranked) -> bool:
    """Is the worst real row among these, as it is?"""
    here = np.flatnonzero(worst.rows.base == search.start.rows.base[0])
    return any(not len(changes(search, worst.rows.take(np.array([place])))) for place in here.tolist())


def _written(
    search: Search, worst: Ranked, output: str | None
) -> tuple[tuple[StressedRow, ...], tuple[OutputFacts, ...]]:
    """The rows as they are in the file, read again; without a file as they would be there."""
    batch = batch_of(search.pool, search.space, worst.rows)
    if output is not None:
        pools.write(output, batch)
        batch = joined(list(open_source(output).batches(len(worst))))
    return _told(search, worst, batch)


def _told(search: Search, worst: Ranked, batch: Batch) -> tuple[tuple[StressedRow, ...], tuple[OutputFacts, ...]]:
    """The rows of the file, measured as the gate measures them."""
    rows = worst.rows
    prepared, size = search.prepared, search.batch_size
    reference, _ = answers(prepared.reference, batch, size)
    candidate, _ = answers(prepared.candidate, batch, size)
    for side in ("reference", "candidate"):
        search.meter.count(side, len(batch), 0.0)
    measured = outputs(prepared, observe(prepared, batch, reference, candidate))
    severity, beyond, _ = measure.compared(prepared, batch, reference, candidate)
    shown = _by_row(measured)
    told = []
    for position in range(len(rows)):
        own = changes(search, rows.take(np.array([position])))
        name, entry = shown.get(position, ("", {}))
        told.append(
            StressedRow(
                position,
                search.pool.rows.name(int(rows.base[position])),
                float(severity[position]),
                bool(beyond[position]),
                len(own),
                _changes(search, rows, batch, position, own),
                name,
                entry.get("abs_diff"),
                entry.get("reference"),
                entry.get("candidate"),
                float(worst.severity[position]),
                bool(worst.beyond[position]),
                _number(worst.apart[position]),
            )
        )
    return tuple(told), measured


def _by_row(measured: Sequence[OutputFacts]) -> dict[int, tuple[str, Mapping[str, Any]]]:
    """For each row the output in which it differs most, and both answers."""
    found: dict[int, tuple[str, Mapping[str, Any]]] = {}
    for facts in measured:
        for entry in facts.details.get("worst_rows", {}).get("rows", []):
            number = int(entry["number"])
            before = found.get(number)
            # A difference that is measured says more than a label that changed with it.
            if before is None or _weight(entry) > _weight(before[1]):
                found[number] = (facts.name, entry)
    return found


def _weight(entry: Mapping[str, Any]) -> tuple[bool, float]:
    return "abs_diff" in entry, float(entry["severity"])


def _changes(search: Search, rows: Rows, batch: Batch, position: int, variables: Array) -> tuple[Change, ...]:
    space, pool = search.space, search.pool
    told = []
    for variable in variables[:SHOWN].tolist():
        column = space.columns[int(space.owner[variable])]
        element = int(space.element[variable])
        before, after = pool.inputs[column.name][int(rows.base[position])], batch.inputs[column.name][position]
        if column.is_number and column.shape:
            before, after = np.asarray(before).reshape(-1)[element], np.asarray(after).reshape(-1)[element]
        told.append(Change(space.name(variable), plain(before), plain(after)))
    return tuple(told)


def _refusals(search: Search) -> Refusals:
    examples = []
    for kind, row in search.one_sided:
        batch = batch_of(search.pool, search.space, row)
        own = changes(search, row)
        examples.append(
            {
                "refused_by": "reference" if kind == measure.REFERENCE_ALONE else "candidate",
                "base": search.pool.rows.name(int(row.base[0])),
                "changes": [
                    {"column": change.column, "before": change.before, "after": change.after}
                    for change in _changes(search, row, batch, 0, own)
                ],
            }
        )
    counts = search.refused
    return Refusals(
        both=counts.get(measure.BOTH, 0),
        reference_only=counts.get(measure.REFERENCE_ALONE, 0),
        candidate_only=counts.get(measure.CANDIDATE_ALONE, 0),
        not_told=counts.get(measure.NOT_TOLD, 0),
        examples=tuple(examples),
    )


def _number(value: float) -> float | None:
    """A figure, or None where there was nothing to measure it on."""
    return None if math.isnan(value) else float(value)


def _largest(measures: Mapping[str, Mapping[str, float]]) -> float | None:
    values = [of["max_abs_diff"] for of in measures.values() if "max_abs_diff" in of]
    broken = [value for value in values if value != value]
    return broken[0] if broken else max(values, default=None)


def _broken(policy: Policy, measures: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The limits that the worst rows do not keep."""
    found = []
    for limit in policy.limits:
        for name, measured in measures.items():
            if limit.measure not in ROWWISE or limit.output not in (None, name) or limit.measure not in measured:
                continue
            value = measured[limit.measure]
            if not value <= limit.bound:
                found.append(f"{name}.{limit.measure} is {figure(value)}, above its limit of {figure(limit.bound)}")
    return found


def _judged(found: StressResult, search: Search, broken: Sequence[str]) -> tuple[Outcome, str]:
    alone = found.refusals.reference_only + found.refusals.candidate_only
    beyond = [row for row in found.rows if row.beyond or row.beyond_in_search]
    if any(row.changed for row in beyond) or (beyond and not found.data_beyond):
        times = _times(max(max(row.severity, row.severity_in_search) for row in beyond))
        return Outcome.FAIL, f"an input was found on which the models differ by {times} the tolerance"
    if found.data_beyond:
        return Outcome.FAIL, f"{found.data_beyond:,} of {found.data_rows:,} real rows are beyond tolerance"
    if broken:
        return Outcome.FAIL, broken[0]
    if alone:
        return Outcome.FAIL, f"{alone:,} of the rows tried are refused by one model and answered by the other"
    if not len(search.space.free()):
        return Outcome.INCONCLUSIVE, "no column takes more than one value, so that there was nothing to change"
    numbers = any(spec.kind is not Kind.LABEL for spec in search.prepared.pairing.pairs)
    if numbers and np.isnan(search.start.apart).all():
        return Outcome.INCONCLUSIVE, "no answer to a real row is a number on both sides: there was nothing to measure"
    if not search.tried or not search.answered:
        return Outcome.INCONCLUSIVE, "there was no time to search: not one changed row was compared"
    if found.refusals.not_told:
        return (
            Outcome.INCONCLUSIVE,
            f"{found.refusals.not_told:,} of the rows tried were refused in calls of many and not looked at singly",
        )
    return Outcome.PASS, f"{search.answered:,} changed rows were compared and none is beyond tolerance"


def _times(severity: float) -> str:
    return f"{figure(severity)}×" if math.isfinite(severity) else "more than any multiple of"


def _notes(search: Search, policy: Policy) -> tuple[str, ...]:
    notes = list(search.prepared.notes)
    if not search.pool.complete:
        notes.append(f"the search started from {len(search.pool):,} rows of the data, not from all of them")
    averages = sorted({limit.measure for limit in policy.limits} - {*ROWWISE, "mismatch_rate"})
    if averages:
        notes.append(f"limits on {', '.join(averages)} are not judged: the worst rows say nothing about averages")
    return tuple(notes)


PLAIN = ("preset", "abs_tol", "rel_tol", "mean_tol", "batch_size")
NAMED = {
    "limits": "limit",
    "feed": "feed",
    "pair": "pair",
    "reference_options": "reference-option",
    "candidate_options": "candidate-option",
}
LISTED = {"ignore": "ignore", "trusted": "trust"}
"""Options by how they are written. What selects rows and columns is done with: the file has what is left."""


def command(settings: Settings, result: StressResult) -> str:
    """What to type to see the rows of the file judged as they were."""
    words = ["likewise", "check", result.reference, result.candidate, "--data", str(result.file), *_options(settings)]
    return shlex.join(words)


def _options(settings: Settings) -> Iterator[str]:
    for name in PLAIN:
        if (value := getattr(settings, name)) is not None:
            yield from (f"--{name.replace('_', '-')}", str(value))
    if not settings.nan_equal:
        yield from ("--nan-equal", "false")
    for name, option in NAMED.items():
        for key, value in getattr(settings, name).items():
            yield from (f"--{option}", f"{key}={_text(value)}")
    for name, option in LISTED.items():
        for value in getattr(settings, name):
            yield from (f"--{option}", value)
    axis = settings.batch_axis
    if axis is not None:
        yield from ("--batch-axis", _axes(axis) if isinstance(axis, Mapping) else str(axis))


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _axes(axes: Mapping[str, int]) -> str:
    return ",".join(f"{name}:{axis}" for name, axis in axes.items())
