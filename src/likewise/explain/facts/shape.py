"""What the difference looks like, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.explain.case import Case

NEARLY = 1e-3
"""Spread, relative to its size, at which an offset or a factor counts as constant."""


def describe(case: Case) -> tuple[str, ...]:
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
        if any(output.measures.get("batch_drift", 0.0) > 0.0 for output in facts.outputs)
    ]
    if drifting:
        told.append(f"the candidate's answers depend on the batch size: they move at {', '.join(map(str, drifting))}")
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
        yield f"{pair.spec.name}: all {total:,} changed labels went from {before!r} to {after!r}"
    else:
        share = count / total
        often = f"; most often {before!r} became {after!r} ({100 * share:.0f}%)" if share > 0.3 else ""
        yield f"{pair.spec.name}: {total:,} labels changed in {len(changes)} ways{often}"
    if sorted(map(str, reference)) == sorted(map(str, candidate)) and np.size(pair.reference) > 10:
        yield f"{pair.spec.name}: the labels are the same, in another order"


def _numbers(pair: Pair, beyond: Array) -> Iterator[str]:
    name = pair.spec.name
    reference = pair.reference.astype(np.float64).reshape(len(beyond), -1)
    candidate = pair.candidate.astype(np.float64).reshape(len(beyond), -1)
    broken = np.isfinite(reference) != np.isfinite(candidate)
    if broken.any():
        side = "candidate" if (~np.isfinite(candidate) & np.isfinite(reference)).any() else "reference"
        yield f"{name}: the {side} alone gives NaN or infinity, in {int(broken.any(axis=1).sum()):,} rows"
    finite = np.isfinite(reference) & np.isfinite(candidate)
    difference = np.where(finite, candidate - reference, 0.0)
    size = np.abs(difference).max(axis=1, initial=0.0)
    share = float(beyond.mean())
    if share >= 0.9:
        yield f"{name}: a systematic shift, {100 * share:.3g}% of the rows differ"
    elif beyond.any() and (~beyond).any():
        usual = float(np.median(size[~beyond]))
        jump = float(np.median(size[beyond]))
        if jump > 100 * max(usual, 1e-300):
            yield f"{name}: {int(beyond.sum()):,} rows jump by {jump:.3g}, the others differ by {usual:.3g}"
    if finite.all() and np.ptp(reference) > 0:
        yield from _relation(name, reference, candidate, difference)
    if reference.shape[1] > 1:
        yield from _columns(pair, np.abs(difference))


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


def _columns(pair: Pair, size: Array) -> Iterator[str]:
    allowed = pair.tolerance.absolute + pair.tolerance.relative * np.abs(pair.reference.astype(np.float64))
    broken = (size > allowed.reshape(size.shape)).sum(axis=0)
    hit = np.flatnonzero(broken)
    if 0 < len(hit) < len(broken) and len(hit) <= 3:
        classes = pair.spec.classes
        named = [repr(classes[place]) if classes and len(classes) == len(broken) else str(place) for place in hit]
        yield f"{pair.spec.name}: only column {', '.join(named)} of {len(broken)} differs"
