"""From the end of a search to its result: the worst rows made small, written, read again, measured and judged.

A row is made small by putting values back as long as the difference stays: groups of them first, where many
changed. All attempts of a round are one call.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from likewise.compare.call import answers
from likewise.compare.observe import observe, outputs
from likewise.contracts.comparison import OutputFacts
from likewise.contracts.data import Array, Batch
from likewise.contracts.models import Kind
from likewise.contracts.results import Change, MoveFacts, Refusals, StressedRow, StressResult
from likewise.contracts.verdict import Outcome, Policy, counted, figure
from likewise.data.columns import plain
from likewise.data.readers import joined
from likewise.registry import open_source
from likewise.tasks.settings import Settings
from likewise.tasks.stress.moves import (
    BOTH,
    CANDIDATE_ALONE,
    NOT_TOLD,
    REFERENCE_ALONE,
    Found,
    Search,
    SpentError,
    compared,
    gathered,
)
from likewise.tasks.stress.space import Rows, write

STAYS = 0.9
"""The part of the difference that must be left when values are put back."""

GROUPS, MOST_GROUPS = 48, 256
"""Groups of values that are put back in one call, first and where none of them can be."""

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
    if len(worst):
        told, measured = _written(search, worst, output)
        if max(row.severity for row in told) < search.start.worst and not _has_worst_real(search, worst):
            worst = gathered([worst, search.start.take([0])]).ranked()
            told, measured = _written(search, worst, output)
    measures = {facts.name: dict(facts.measures) for facts in measured}
    final = replace(
        known,
        rows=told,
        measures=measures,
        max_abs_diff=_largest(measures),
        file=output if len(worst) else None,
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
        refusals=_refusals(search),
        notes=_notes(search, policy),
    )
    final = replace(final, notes=(*final.notes, *_doubts(final)))
    outcome, headline = _judged(final, search, _broken(policy, measures))
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


def _worst(search: Search) -> Found:
    """The worst rows, each from another real row, the worst of them with the fewest changes."""
    start, kept = search.start, search.kept
    # The worst real row leads, if no change made it worse than putting values back is allowed to undo.
    leads = start.worst > 0 and STAYS * kept.worst <= start.worst and bool(start.beyond[0] or not kept.beyond[0])
    chosen = [start.take([0])] if leads else []
    seen = {int(row.rows.base[0]) for row in chosen}
    for place, base in enumerate(kept.rows.base.tolist()):
        if kept.severity[place] <= 0 or len(chosen) == WRITTEN:
            break
        if base in seen:
            continue
        row = _minimised(search, kept.take([place]))
        if chosen and search.ended():
            break
        seen |= {base, int(row.rows.base[0])}
        chosen.append(row)
    if not chosen:
        return kept.take([])
    return gathered([chosen[0], gathered(chosen[1:]).ranked()]) if leads and chosen[1:] else gathered(chosen).ranked()


def _minimised(search: Search, row: Found) -> Found:
    """The row nearest to a real one that is still nearly as bad, and no less bad than every real one if it was."""
    severity, best = row.worst, row
    # The same row, told as a change of the real row that it shares most values with.
    unlike = search.space.differs(row.rows, search.space.real(np.arange(len(search.pool)))).sum(axis=1)
    if unlike.min() < unlike[int(row.rows.base[0])]:
        best = replace(row, rows=Rows(np.array([int(np.argmin(unlike))]), row.rows.cells))
    needed = severity if math.isinf(severity) else max(STAYS * severity, min(severity, search.start.worst))
    groups = GROUPS
    try:
        while len(changed := _changed(search, best.rows)):
            parts = np.array_split(changed, min(groups, len(changed)))
            found = _put_back(search, best, parts, needed)
            if found is not None:
                best = found
            elif len(parts) == len(changed) or groups >= MOST_GROUPS:
                break
            else:
                groups = min(4 * groups, MOST_GROUPS)
    except SpentError:
        pass
    return best


def _changed(search: Search, row: Rows) -> Array:
    """The variables in which a row differs from the real row it began as."""
    return np.flatnonzero(search.space.differs(row, search.space.real(row.base))[0])


def _put_back(search: Search, best: Found, parts: list[Array], needed: float) -> Found | None:
    """The best attempt of a round: each group alone, then as many together as go; None if none goes."""
    found, good = _attempts(search, best, parts, needed)
    order = good[np.argsort(-found.severity[good], kind="stable")]
    if len(order) < 2:
        return found.take(order) if len(order) else None
    prefixes = [np.concatenate([parts[place] for place in order[:length]]) for length in range(1, len(order) + 1)]
    more, held = _attempts(search, best, prefixes, needed)
    return more.take(held[-1:]) if len(held) else found.take(order[:1])


def _attempts(search: Search, best: Found, parts: list[Array], needed: float) -> tuple[Found, Array]:
    """One row an attempt, with one group of values put back, and which of them are still bad enough."""
    rows = best.rows.take(np.zeros(len(parts), dtype=np.int64))
    at = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    found = search.measure(search.space.copied(rows, at, np.concatenate(parts), rows.base[at]))
    # A row that was beyond the tolerance has to stay beyond it.
    return found, np.flatnonzero((found.severity >= needed) & (found.beyond | ~best.beyond[0]))


def _has_worst_real(search: Search, worst: Found) -> bool:
    """Is the worst real row among these, as it is?"""
    here = np.flatnonzero(worst.rows.base == search.start.rows.base[0])
    return any(not len(_changed(search, worst.rows.take([place]))) for place in here.tolist())


def _written(
    search: Search, worst: Found, output: str | None
) -> tuple[tuple[StressedRow, ...], tuple[OutputFacts, ...]]:
    """The rows as they are in the file, read again and measured as the gate does; without a file as they would be."""
    rows, prepared = worst.rows, search.prepared
    batch = search.batch(rows)
    if output is not None:
        batch = joined(list(open_source(write(output, batch)).batches(len(worst))))
    reference, candidate = (
        answers(side, batch, search.plan.batch_size)[0] for side in (prepared.reference, prepared.candidate)
    )
    for side in ("reference", "candidate"):
        search.meter.count(side, len(batch), 0.0)
    measured = outputs(prepared, observe(prepared, batch, reference, candidate))
    severity, beyond, _ = compared(prepared, batch, reference, candidate)
    shown = _by_row(measured)
    told = []
    for position in range(len(rows)):
        own = _changed(search, rows.take([position]))
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
            before = found.get(int(entry["number"]))
            if before is None or _weight(entry) > _weight(before[1]):
                found[int(entry["number"])] = (facts.name, entry)
    return found


def _weight(entry: Mapping[str, Any]) -> tuple[bool, float]:
    """A difference that is measured says more than a label that changed with it."""
    return "abs_diff" in entry, float(entry["severity"])


def _changes(search: Search, rows: Rows, batch: Batch, position: int, variables: Array) -> tuple[Change, ...]:
    told = []
    for variable in variables[:SHOWN].tolist():
        column, element = search.space.column(variable)
        before = search.pool.inputs[column.name][int(rows.base[position])]
        after = batch.inputs[column.name][position]
        if column.is_number and column.shape:
            before, after = np.asarray(before).reshape(-1)[element], np.asarray(after).reshape(-1)[element]
        told.append(Change(search.space.name(variable), plain(before), plain(after)))
    return tuple(told)


def _refusals(search: Search) -> Refusals:
    examples = []
    for kind, row in search.one_sided:
        batch = search.batch(row)
        changes = _changes(search, row, batch, 0, _changed(search, row))
        examples.append(
            {
                "refused_by": "reference" if kind == REFERENCE_ALONE else "candidate",
                "base": search.pool.rows.name(int(row.base[0])),
                "changes": [asdict(change) for change in changes],
            }
        )
    counts = search.refused
    return Refusals(
        both=counts.get(BOTH, 0),
        reference_only=counts.get(REFERENCE_ALONE, 0),
        candidate_only=counts.get(CANDIDATE_ALONE, 0),
        not_told=counts.get(NOT_TOLD, 0),
        examples=tuple(examples),
    )


def _number(value: float) -> float | None:
    """A figure, or None where there was nothing to measure it on."""
    return None if math.isnan(value) else float(value)


def _largest(measures: Mapping[str, Mapping[str, float]]) -> float | None:
    values = [of["max_abs_diff"] for of in measures.values() if "max_abs_diff" in of]
    return next((value for value in values if value != value), max(values, default=None))


def _broken(policy: Policy, measures: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The limits that the worst rows do not keep."""
    return [
        f"{name}.{limit.measure} is {figure(measured[limit.measure])}, above its limit of {figure(limit.bound)}"
        for limit in policy.limits
        for name, measured in measures.items()
        if limit.measure in ROWWISE and limit.output in (None, name) and limit.measure in measured
        if not measured[limit.measure] <= limit.bound
    ]


def _judged(found: StressResult, search: Search, broken: Sequence[str]) -> tuple[Outcome, str]:
    refused = found.refusals
    alone = refused.reference_only + refused.candidate_only
    beyond = [row for row in found.rows if row.beyond or row.beyond_in_search]
    if any(row.changed for row in beyond) or (beyond and not found.data_beyond):
        times = _times(max(max(row.severity, row.severity_in_search) for row in beyond))
        return Outcome.FAIL, f"an input was found on which the models differ by {times} the tolerance"
    if found.data_beyond:
        are = "is" if found.data_beyond == 1 else "are"
        return Outcome.FAIL, f"{found.data_beyond:,} of {counted(found.data_rows, 'real rows')} {are} beyond tolerance"
    if broken:
        return Outcome.FAIL, broken[0]
    if alone:
        return Outcome.FAIL, f"one model refuses {alone:,} of the rows tried, and the other answers"
    numbers = any(spec.kind is not Kind.LABEL for spec in search.prepared.pairing.pairs)
    why = None
    if not len(search.space.free()):
        why = "no column takes more than one value, so there was nothing to change"
    elif numbers and np.isnan(search.start.apart).all():
        why = "no answer to a real row is a number on both sides: there was nothing to measure"
    elif not search.answered:
        why = "there was no time to search: not one changed row was compared"
    elif refused.not_told:
        why = f"{counted(refused.not_told, 'rows')} tried in calls of many met a refusal and had no call of their own"
    if why is not None:
        return Outcome.INCONCLUSIVE, why
    return Outcome.PASS, f"no row is beyond tolerance, of {counted(search.answered, 'changed rows')} compared"


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
    """What to type to see the rows of the file judged as they were, with every option that matters to it."""
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
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            yield from (f"--{option}", f"{key}={text}")
    for name, option in LISTED.items():
        for value in getattr(settings, name):
            yield from (f"--{option}", value)
    axis = settings.batch_axis
    if axis is not None:
        axes = ",".join(f"{name}:{along}" for name, along in axis.items()) if isinstance(axis, Mapping) else str(axis)
        yield from ("--batch-axis", axes)
