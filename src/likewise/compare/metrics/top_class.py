"""Whether the best class is the same, where a model gives a score for each class and no label.

A network's logits may all be within tolerance while another of them is the largest. The columns of other numbers may
be compared too, which does no harm: it counts only where a limit asks, and else it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from likewise.compare.margins import margins
from likewise.compare.sums import LogHistogram
from likewise.contracts.comparison import Json, Pair, PairSpec
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.contracts.values import dataclass

BEST = 5
"""The best classes that are compared as a set, beside the very best."""

SCORED = frozenset({Kind.PROBABILITY, Kind.SCORE})
"""Kinds whose last axis holds classes, also where a row has one answer a step."""


@dataclass(frozen=True, slots=True)
class TopClass:
    """In how many rows another class is the best, or among the best."""

    rows: int = 0
    classes: int = 0
    flips: int = 0
    material: int = 0
    best: int | None = None
    margins: LogHistogram = field(default_factory=LogHistogram)

    def merge(self, other: TopClass, /) -> TopClass:
        known = [found for found in (self.best, other.best) if found is not None]
        return TopClass(
            self.rows + other.rows,
            max(self.classes, other.classes),
            self.flips + other.flips,
            self.material + other.material,
            sum(known) if known else None,
            self.margins.merge(other.margins),
        )

    def measurements(self) -> Mapping[str, float]:
        if not self.rows:
            return {}
        found = {
            "top1_flips": float(self.flips),
            "top1_flip_rate": self.flips / self.rows,
            "top1_material_flips": float(self.material),
        }
        return found if self.best is None else {**found, f"top{BEST}_flips": float(self.best)}

    def details(self) -> Mapping[str, Json]:
        if not self.rows:
            return {}
        spans = self.margins.spans()
        return {"rows": self.rows, "classes": self.classes, "margins": {"unknown": 0, "spans": spans}}


class TopClassMetric:
    """Fractions in at least two columns; of more axes only what is known to be scores."""

    name = "top_class"

    def applies_to(self, spec: PairSpec, *, numeric: bool) -> bool:
        return numeric and (spec.kind in SCORED or spec.kind is Kind.VALUE)

    def empty(self) -> TopClass:
        return TopClass()

    def observe(self, pair: Pair) -> TopClass:
        ours, theirs = pair.reference, pair.candidate
        deep = ours.ndim == 2 or (ours.ndim == 3 and pair.spec.kind in SCORED)
        if not deep or not ours.size or ours.shape[-1] < 2 or "f" not in (ours.dtype.kind, theirs.dtype.kind):
            return TopClass()
        rows, classes = len(ours), ours.shape[-1]
        ours, theirs = (_comparable(side).reshape(-1, classes) for side in (ours, theirs))
        differs = ours.argmax(axis=1) != theirs.argmax(axis=1)
        margin, noise = margins(ours[differs], Kind.VALUE, pair.tolerance)
        material = np.zeros(len(differs), dtype=bool)
        # Written so that NaN is material.
        material[differs] = ~(margin <= noise)
        flipped, wrong = (marks.reshape(rows, -1).any(axis=1) for marks in (differs, material))
        best = None if classes <= BEST else int(_other_best(ours, theirs).reshape(rows, -1).any(axis=1).sum())
        largest = _largest_of_row(margin, differs, rows)
        return TopClass(rows, classes, int(flipped.sum()), int(wrong.sum()), best, LogHistogram.of(largest))


def _comparable(scores: Array) -> Array:
    """NaN is never the best."""
    if scores.dtype.kind != "f":
        return scores
    missing = np.isnan(scores)
    return np.where(missing, -np.inf, scores) if missing.any() else scores


def _other_best(ours: Array, theirs: Array) -> Array:
    """Where other classes are among the best; a tie for the last place is no difference."""
    least = np.partition(ours, -BEST, axis=1)[:, -BEST]
    chosen = np.argpartition(theirs, -BEST, axis=1)[:, -BEST:]
    return np.asarray((np.take_along_axis(ours, chosen, axis=1) < least[:, None]).any(axis=1))


def _largest_of_row(margin: Array, differs: Array, rows: int) -> Array:
    """Of every row with a flip the margin that decides whether it is noise."""
    spread = np.full(len(differs), -1.0)
    with np.errstate(invalid="ignore"):
        spread[differs] = np.nan_to_num(margin, nan=np.finfo(np.float64).max, posinf=np.finfo(np.float64).max)
    largest = spread.reshape(rows, -1).max(axis=1)
    return np.asarray(largest[largest >= 0])


EXTENSION = TopClassMetric()
