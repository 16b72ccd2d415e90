"""What can be said about failing rows without an experiment: which they are, and what the difference looks like.

A slice is a predicate on the inputs that tells failing rows from agreeing ones: one statement about one feature, or
two of them joined by `and` or `or`. It is worth telling if it catches most failing rows and few others; two
statements only if clearly better than one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.contracts.report import Slice, Unusual
from likewise.contracts.verdict import counted, runs
from likewise.data.cells import Field, missing_in
from likewise.data.columns import plain
from likewise.explain.case import Case
from likewise.explain.features import declared_types, fields_of, known_categories

VALUES = 12
"""Single values of a feature that are looked at: those that failing rows have most often."""


@dataclass(frozen=True, slots=True)
class _Statement:
    """What is said of one feature, or of two; `holds` marks the rows of the sample where it is true."""

    columns: tuple[str, ...]
    says: str
    holds: Array
    text: str

    @staticmethod
    def of(field: Field, says: str, holds: Array) -> _Statement:
        return _Statement((field.name,), says, holds, f"{field.name} {says}")


def _atoms(case: Case) -> Iterator[_Statement]:
    """Everything simple that is true of some rows and not of others."""
    sample = case.required
    fields = fields_of(case)
    types = declared_types(case, "candidate", fields)
    for field in fields:
        values = field.of(sample.batch.inputs)
        missing = missing_in(values)
        for atom in _about(case, field, values, missing, types.get(field)):
            if 0 < int(atom.holds.sum()) < len(sample):
                yield atom


def _about(case: Case, field: Field, values: Array, missing: Array, dtype: str | None) -> Iterator[_Statement]:
    yield _Statement.of(field, "is missing", missing)
    failing = case.required.failing
    if values.dtype.kind in "iuf":
        if dtype is not None:
            yield _Statement.of(field, f"changes when cast to {dtype}", _changed_by_cast(values, dtype) & ~missing)
        for value in _frequent(values[failing & ~missing]):
            yield _Statement.of(field, f"is {value:g}", values == value)
        yield from _thresholds(field, values, missing, failing)
        return
    known = known_categories(case, field)
    if known is not None:
        unseen = [value not in known.values for value in values.tolist()]
        yield _Statement.of(field, "was not seen when the encoder was fitted", _mask(unseen) & ~missing)
    frequent = _frequent(values[failing & ~missing])
    for value in frequent:
        yield _Statement.of(field, f"is {value!r}", _mask([entry == value for entry in values.tolist()]))
    yield from _sets(field, values, failing, missing)
    texts = [value if isinstance(value, str) else "" for value in values.tolist()]
    yield _Statement.of(field, "has blanks around it", _mask([text != text.strip() for text in texts]))
    yield _Statement.of(field, "is not plain ASCII", _mask([not text.isascii() for text in texts]))
    yield _Statement.of(field, "is empty text", _mask([value == "" for value in values.tolist()]))


def _changed_by_cast(values: Array, dtype: str) -> Array:
    """Which numbers a narrower type cannot hold."""
    if not dtype.startswith(("float", "int", "uint")):
        return np.zeros(len(values), dtype=bool)
    with np.errstate(all="ignore"):
        finite = np.isfinite(values)
        there = np.where(finite, values, 0).astype(dtype)
        changed: Array = finite & (there.astype(np.float64) != values.astype(np.float64))
    return changed


def _thresholds(field: Field, values: Array, missing: Array, failing: Array) -> Iterator[_Statement]:
    """The cut, from above and from below, that best tells failing rows from the others."""
    present = np.flatnonzero(~missing)
    if len(present) < 2 or not failing[present].any():
        return
    order = present[np.argsort(values[present], kind="stable")]
    ordered, marks = values[order], failing[order]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], False))
    if not len(ends):
        return
    below = np.cumsum(marks)[ends]
    total = int(failing.sum())
    for says, hits, size, side in (
        ("is at most", below, ends + 1, np.less_equal),
        ("is above", int(marks.sum()) - below, len(order) - ends - 1, np.greater),
    ):
        count = len(values)
        spread = np.sqrt(size * (count - size) * float(total) * (count - total))
        score = np.divide(hits * float(count) - size * float(total), spread, out=np.zeros(len(ends)), where=spread > 0)
        best = int(np.argmax(score))
        cut = ordered[ends[best]]
        yield _Statement.of(field, f"{says} {cut:.6g}", side(values, cut) & ~missing)


def _sets(field: Field, values: Array, failing: Array, missing: Array) -> Iterator[_Statement]:
    """The categories that fail more often than rows do on the whole, together."""
    texts = values[~missing].astype(str)
    names, inverse = np.unique(texts, return_inverse=True)
    if not 2 < len(names) <= 200:
        return
    counts = np.bincount(inverse, minlength=len(names))
    broken = np.bincount(inverse, weights=failing[~missing].astype(float), minlength=len(names))
    chosen = names[broken > counts * failing.mean()]
    if 1 < len(chosen) < len(names):
        listed = ", ".join(repr(str(name)) for name in chosen[:4]) + (" …" if len(chosen) > 4 else "")
        yield _Statement.of(field, f"is one of {listed}", np.isin(values.astype(str), chosen) & ~missing)


def _frequent(values: Array) -> list[Any]:
    """The values that occur most often, if any occurs more than once or there are few."""
    if not len(values):
        return []
    if values.dtype.kind in "OUS":
        return [value for value, _ in Counter(values.tolist()).most_common(VALUES)]
    names, counts = np.unique(values, return_counts=True)
    often = np.argsort(-counts, kind="stable")[:VALUES]
    return [names[place].item() for place in often if counts[place] > 1 or len(values) == 1]


def _mask(flags: list[bool]) -> Array:
    return np.array(flags, dtype=bool)


WORTH_TELLING = 0.5
"""The smallest correlation of a predicate with failing, 1 being the same thing, at which it is told."""

CLEARLY_BETTER = 0.05
JOINED = 24
"""Statements that are tried in pairs: the best ones alone, by precision and by recall."""

TOLD = 3


def slices(case: Case) -> tuple[Slice, ...]:
    """The best slices, best first."""
    failing = case.required.failing
    # Any value tells a single row from the others.
    if failing.sum() < 2 or failing.all():
        return ()
    single = list(_atoms(case))
    found = [(_association(one.holds, failing), one) for one in (*single, *_joined(single, failing))]
    found.sort(
        key=lambda entry: (CLEARLY_BETTER * len(entry[1].columns) - entry[0], len(entry[1].columns), entry[1].text)
    )
    told: list[_Statement] = []
    for merit, one in found:
        # Another statement about the same feature is no news.
        if merit >= WORTH_TELLING and not any(set(one.columns) & set(other.columns) for other in told):
            told.append(one)
    return tuple(_slice(one, failing) for one in told[:TOLD])


def _joined(single: Sequence[_Statement], failing: Array) -> Iterator[_Statement]:
    # For `or` each part must be precise, for `and` each must catch nearly all.
    merits = {id(atom): _association(atom.holds, failing) for atom in single}
    precise = sorted(single, key=lambda atom: -merits[id(atom)] - _precision(atom.holds, failing))[:JOINED]
    catching = sorted(single, key=lambda atom: -merits[id(atom)] - _recall(atom.holds, failing))[:JOINED]
    for one, other in combinations(precise, 2):
        if one.columns != other.columns:
            columns = (*one.columns, *other.columns)
            same = one.says == other.says
            text = f"{' or '.join(columns)} {one.says}" if same else f"{one.text} or {other.text}"
            yield _Statement(columns, "", one.holds | other.holds, text)
    for one, other in combinations(catching, 2):
        both = one.holds & other.holds
        if one.columns != other.columns and np.any(both):
            yield _Statement((*one.columns, *other.columns), "", both, f"{one.text} and {other.text}")


def _slice(one: _Statement, failing: Array) -> Slice:
    caught, total = int((one.holds & failing).sum()), int(failing.sum())
    others = int((one.holds & ~failing).sum())
    agree = "row with it agrees" if others == 1 else "rows with it agree"
    rest = f"; {others:,} {agree}" if others else ", and no other row"
    return Slice(
        f"{caught:,} of {total:,} failing rows: {one.text}{rest}",
        caught,
        others,
        round(_precision(one.holds, failing), 4),
        round(_recall(one.holds, failing), 4),
    )


def _association(holds: Array, failing: Array) -> float:
    """The correlation of two marks (Matthews): unlike precision and recall it is low where most rows fail anyway."""
    both, one, other = float((holds & failing).sum()), float(holds.sum()), float(failing.sum())
    count = len(holds)
    spread = (one * (count - one) * other * (count - other)) ** 0.5
    return (both * count - one * other) / spread if spread else 0.0


def _precision(holds: Array, failing: Array) -> float:
    return float((holds & failing).sum() / max(int(holds.sum()), 1))


def _recall(holds: Array, failing: Array) -> float:
    return float((holds & failing).sum() / max(int(failing.sum()), 1))


ROWS, VALUES_A_ROW = 5, 4
FELT = 1e-3
"""A rounding error is felt from this share of a column's spread on."""

RARE = 0.01
"""A number beyond this share of the data, or a category with no larger share, is unusual."""


def unusual(case: Case) -> tuple[Unusual, ...]:
    """Of each of the worst rows, the few values that stand out: the most telling first."""
    sample = case.required
    worst = _worst_rows(case)
    found: dict[int, list[tuple[int, Unusual]]] = {row: [] for row in worst}
    fields = fields_of(case)
    types = declared_types(case, "candidate", fields)
    for field in fields:
        column = field.of(sample.batch.inputs)
        missing = missing_in(column)
        for row in worst:
            reason = next(_reasons(case, field, column, missing, row, types.get(field)), None)
            if reason is not None:
                cell = plain(column[row]) if not missing[row] else None
                found[row].append((reason[0], Unusual(sample.batch.rows.name(row), field.name, cell, reason[1])))
    ranked = (sorted(found[row], key=lambda entry: entry[0])[:VALUES_A_ROW] for row in worst)
    return tuple(entry for entries in ranked for _, entry in entries)


def _worst_rows(case: Case) -> list[int]:
    """Positions in the sample of the rows where the models differ most."""
    sample = case.required
    numbers = [int(row["number"]) for output in case.comparison.outputs for row in output.worst_rows]
    place = {int(number): position for position, number in enumerate(sample.batch.rows.numbers)}
    positions = [place[number] for number in dict.fromkeys(numbers) if number in place]
    failing = [position for position in positions if sample.failing[position]]
    return (failing or [int(position) for position in np.flatnonzero(sample.failing)])[:ROWS]


def _reasons(
    case: Case, field: Field, column: Array, missing: Array, row: int, dtype: str | None
) -> Iterator[tuple[int, str]]:
    """What is unusual about a value, and how telling that is, 0 most."""
    if missing[row]:
        yield 0, f"missing, as in {100 * float(missing.mean()):.3g}% of the rows"
        return
    value = column[row]
    if column.dtype.kind in "iuf":
        present = column[~missing]
        if dtype is not None and _changed_by_cast(column[row : row + 1], dtype)[0]:
            there = float(np.array(value).astype(dtype))
            # Nearly every fraction is rounded: it matters if it loses what tells rows apart. A whole number is a name.
            felt = abs(there - float(value)) > FELT * float(present.astype(np.float64).std())
            if felt or not np.isfinite(there) or column.dtype.kind in "iu":
                yield 2, f"{dtype} cannot hold it: the cast makes it {there:.17g}"
        below = float((present < value).mean()), float((present > value).mean())
        if len(present) >= 20 and min(below) == 0.0 and float((present == value).mean()) < RARE:
            yield 3, f"outside the rest: the {'smallest' if below[0] == 0.0 else 'largest'} value of {len(present):,}"
        elif len(present) >= 100 and min(below) < RARE:
            side, share = ("smaller", below[1]) if below[0] < below[1] else ("larger", below[0])
            yield 4, f"{side} than {100 * share:.3g}% of the rows"
        return
    known = known_categories(case, field)
    if known is not None and value not in known.values:
        yield 1, "not seen when the encoder was fitted"
    count = sum(1 for entry in column.tolist() if entry == value)
    kinds = len({str(entry) for entry in column.tolist()})
    if len(column) >= 100 and count <= RARE * len(column) and kinds < len(column) / 2:
        yield 4, f"rare: {count:,} of {len(column):,} rows have it"


NEARLY = 1e-3
"""Spread, relative to its size, at which an offset or a factor counts as constant."""


def shape(case: Case) -> tuple[str, ...]:
    """How the candidate's answers relate to the reference's, output by output."""
    told: list[str] = []
    for pair in case.failing_pairs():
        beyond = rows_beyond(pair)
        if pair.spec.kind is Kind.LABEL or pair.reference.dtype.kind not in "biuf":
            told.extend(_labels(pair))
        else:
            told.extend(_numbers(pair, beyond))
    drifting = [
        facts.size
        for facts in case.comparison.batch_sizes
        if any(output.measures.get("batch_drift", 0.0) > case.comparison.tolerance.absolute for output in facts.outputs)
    ]
    if drifting:
        told.append(f"the candidate's answers depend on the batch size: they move at {runs(sorted(drifting))}")
    return tuple(told)


def _labels(pair: Pair) -> Iterator[str]:
    reference, candidate = pair.reference.ravel().tolist(), pair.candidate.ravel().tolist()
    changes = Counter((str(one), str(other)) for one, other in zip(reference, candidate, strict=True) if one != other)
    if not changes:
        return
    (before, after), count = changes.most_common(1)[0]
    total = sum(changes.values())
    if len(set(map(str, candidate))) == 1 and len(set(map(str, reference))) > 1:
        yield f"{pair.spec.name}: the candidate says {after!r} for every row"
    elif len(changes) == 1:
        changed = f"all {total:,} changed labels" if total > 1 else "the one changed label"
        yield f"{pair.spec.name}: {changed} went from {before!r} to {after!r}"
    else:
        share = count / total
        often = f"; most often {before!r} became {after!r} ({100 * share:.0f}%)" if share > 0.3 else ""
        yield f"{pair.spec.name}: {total:,} labels changed in {len(changes)} ways{often}"
    if sorted(map(str, reference)) == sorted(map(str, candidate)) and np.size(pair.reference) > 10:
        yield f"{pair.spec.name}: the labels are the same, in another order"


MOST_NUMBERS = 2_000_000
"""Numbers of an output that are widened at once. How two outputs that have more are related is not looked into."""


@dataclass(frozen=True, slots=True)
class _Apart:
    """How far some rows are apart at most, which are finite on one side only, and how often each column is beyond."""

    size: Array
    ours_broken: Array
    theirs_broken: Array
    columns: Array


def _apart(pair: Pair) -> Iterator[_Apart]:
    """The rows of an output, some at a time."""
    count = len(pair.reference)
    step = max(MOST_NUMBERS // max(pair.reference.size // max(count, 1), 1), 1)
    for start in range(0, count, step):
        ours, theirs = (
            side[start : start + step].astype(np.float64).reshape(len(side[start : start + step]), -1)
            for side in (pair.reference, pair.candidate)
        )
        fine, there = np.isfinite(ours), np.isfinite(theirs)
        with np.errstate(invalid="ignore"):
            size = np.where(fine & there, np.abs(theirs - ours), 0.0)
            allowed = pair.tolerance.absolute + pair.tolerance.relative * np.abs(ours)
            beyond = (size > allowed).sum(axis=0)
        broken, broken_there = (np.asarray(marked.any(axis=1)) for marked in (~fine & there, fine & ~there))
        yield _Apart(size.max(axis=1, initial=0.0), broken, broken_there, beyond)


def _numbers(pair: Pair, beyond: Array) -> Iterator[str]:
    name, parts = pair.spec.name, list(_apart(pair))
    ours, theirs = (
        np.concatenate(found) for found in zip(*((p.ours_broken, p.theirs_broken) for p in parts), strict=True)
    )
    if ours.any() or theirs.any():
        side = "candidate" if theirs.any() else "reference"
        yield f"{name}: the {side} alone gives NaN or infinity, in {counted(int((ours | theirs).sum()), 'rows')}"
    size = np.concatenate([part.size for part in parts])
    share = float(beyond.mean())
    if share >= 0.9:
        yield f"{name}: a systematic shift, {100 * share:.3g}% of the rows differ"
    elif beyond.any() and (~beyond).any():
        usual = float(np.median(size[~beyond]))
        jump = float(np.median(size[beyond]))
        if jump > 100 * max(usual, 1e-300):
            jumps = f"{counted(int(beyond.sum()), 'rows')} {'jumps' if beyond.sum() == 1 else 'jump'}"
            yield f"{name}: {jumps} by {jump:.3g}, the others differ by {usual:.3g}"
    if pair.reference.size <= MOST_NUMBERS:
        yield from _related(pair)
    if pair.reference.size > len(beyond):
        yield from _columns(pair, np.sum([part.columns for part in parts], axis=0))


def _related(pair: Pair) -> Iterator[str]:
    rows = len(pair.reference)
    reference, candidate = (side.astype(np.float64).reshape(rows, -1) for side in (pair.reference, pair.candidate))
    if np.isfinite(reference).all() and np.isfinite(candidate).all() and np.ptp(reference) > 0:
        yield from _relation(pair.spec.name, reference, candidate, candidate - reference)


def _relation(name: str, reference: Array, candidate: Array, difference: Array) -> Iterator[str]:
    one, other = reference.ravel(), candidate.ravel()
    if np.ptp(other) == 0:
        yield f"{name}: the candidate gives {other[0]:.6g} for every row"
        return
    moved = np.abs(difference).max()
    if moved == 0:
        return
    if np.ptp(difference) <= NEARLY * moved:
        yield f"{name}: a constant offset of {difference.mean():.6g}"
        return
    telling = np.abs(one) > 1e-6 * np.abs(one).max()
    factors = other[telling] / one[telling]
    if len(factors) > 1 and np.ptp(factors) <= NEARLY * abs(factors.mean()):
        yield f"{name}: a constant factor of {factors.mean():.6g}"
        return
    by_size = np.argsort(one, kind="stable")
    steps = np.diff(other[by_size])
    if len(steps) > 10 and reference.shape[1] == 1 and ((steps >= 0).all() or (steps <= 0).all()):
        yield f"{name}: a monotone {'' if steps.max() > 0 else 'falling '}function of the reference's answer"
    elif np.array_equal(np.sort(one), np.sort(other)):
        yield f"{name}: the same numbers in another order"
    elif len(one) > 10 and np.ptp(np.abs(one)) > 0:
        together = float(np.corrcoef(np.abs(one), np.abs(difference).ravel())[0, 1])
        if together > 0.9:
            yield f"{name}: the difference grows with the answer"


def _columns(pair: Pair, broken: Array) -> Iterator[str]:
    """The columns that differ, if they are few; `broken` is how often each does."""
    hit = np.flatnonzero(broken)
    if 0 < len(hit) < len(broken) and len(hit) <= 3:
        classes = pair.spec.classes
        named = [repr(classes[place]) if classes and len(classes) == len(broken) else str(place) for place in hit]
        yield f"{pair.spec.name}: only column {', '.join(named)} of {len(broken)} differs"
