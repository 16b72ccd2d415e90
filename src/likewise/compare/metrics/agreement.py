"""Whether labels are the same, and how sure the reference was where they are not."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from likewise.compare.differences import Constancy, is_numeric, row_any, rows_of, same_labels
from likewise.compare.sums import LogHistogram
from likewise.contracts.comparison import Json, Pair, PairSpec
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.contracts.values import dataclass

MOST_DISTINCT = 2_500
"""Distinct labels, or pairs of labels, that are counted one by one; with more, only totals are kept."""

MOST_SHOWN = 50
MOST_COLUMNS = 64
_LONGEST_TEXT = 120
_NUMBERS = (int, float, np.number, np.bool_)

Value = tuple[str, Any]
"""A label by its type and value: True, 1 and 1.0 are told apart when shown, and NaN equals itself."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How often each thing occurred; None once there were too many different ones to keep."""

    counts: tuple[tuple[tuple[Value, ...], int], ...] | None = ()

    @staticmethod
    def of(amounts: Iterable[tuple[tuple[Any, ...], int]]) -> Tally:
        """Tally tuples of plain labels."""
        totals: dict[tuple[Value, ...], int] = {}
        for labels, amount in amounts:
            key = tuple(_value(label) for label in labels)
            totals[key] = totals.get(key, 0) + amount
            if len(totals) > MOST_DISTINCT:
                return Tally(None)
        return Tally(tuple(sorted(totals.items(), key=_by_label)))

    def merge(self, other: Tally, /) -> Tally:
        if self.counts is None or other.counts is None:
            return Tally(None)
        totals = dict(self.counts)
        for key, amount in other.counts:
            totals[key] = totals.get(key, 0) + amount
        return Tally(tuple(sorted(totals.items(), key=_by_label)) if len(totals) <= MOST_DISTINCT else None)

    def shown(self, *names: str) -> list[dict[str, Json]] | None:
        """The most frequent entries, or None if they were not kept."""
        if self.counts is None:
            return None
        frequent = sorted(self.counts, key=lambda entry: -entry[1])[:MOST_SHOWN]
        return [{**dict(zip(names, map(_plain, labels), strict=True)), "count": amount} for labels, amount in frequent]


@dataclass(frozen=True, slots=True)
class Agreement:
    """What is known about the labels of one pair of outputs."""

    rows: int = 0
    flips: int = 0
    material: int = 0
    unknown_margins: int = 0
    margins: LogHistogram = field(default_factory=LogHistogram)
    by_column: tuple[int, ...] | None = ()
    confusion: Tally = field(default_factory=Tally)
    reference_labels: Tally = field(default_factory=Tally)
    candidate_labels: Tally = field(default_factory=Tally)
    reference_types: frozenset[str] = frozenset()
    candidate_types: frozenset[str] = frozenset()
    reference: Constancy = field(default_factory=Constancy)
    candidate: Constancy = field(default_factory=Constancy)

    def merge(self, other: Agreement, /) -> Agreement:
        return Agreement(
            rows=self.rows + other.rows,
            flips=self.flips + other.flips,
            material=self.material + other.material,
            unknown_margins=self.unknown_margins + other.unknown_margins,
            margins=self.margins.merge(other.margins),
            by_column=_merge_columns(self.by_column, other.by_column),
            confusion=self.confusion.merge(other.confusion),
            reference_labels=self.reference_labels.merge(other.reference_labels),
            candidate_labels=self.candidate_labels.merge(other.candidate_labels),
            reference_types=self.reference_types | other.reference_types,
            candidate_types=self.candidate_types | other.candidate_types,
            reference=self.reference.merge(other.reference),
            candidate=self.candidate.merge(other.candidate),
        )

    def measurements(self) -> Mapping[str, float]:
        if not self.rows:
            return {}
        return {
            "label_flips": float(self.flips),
            "flip_rate": self.flips / self.rows,
            "material_flips": float(self.material),
        }

    def details(self) -> Mapping[str, Json]:
        types = self.reference_types, self.candidate_types
        return {
            "rows": self.rows,
            "confusion": self.confusion.shown("reference", "candidate"),
            "margins": {"unknown": self.unknown_margins, "spans": self.margins.spans()},
            "flips_by_column": None if self.by_column is None else list(self.by_column),
            "reference_labels": self.reference_labels.shown("label"),
            "candidate_labels": self.candidate_labels.shown("label"),
            "reference_types": sorted(types[0]),
            "candidate_types": sorted(types[1]),
            "types_differ": bool(types[0] and types[1] and types[0] != types[1]),
            "constant_reference": self.reference.constant,
            "constant_candidate": self.candidate.constant,
        }


class AgreementMetric:
    """Labels compared exactly: True equals 1 and 1.0, text never equals a number."""

    name = "agreement"

    def applies_to(self, spec: PairSpec, *, numeric: bool) -> bool:
        # Text that is no label can only be compared the same way, and must not pass unmeasured.
        return spec.kind is Kind.LABEL or not numeric

    def empty(self) -> Agreement:
        return Agreement()

    def observe(self, pair: Pair) -> Agreement:
        if not len(pair.reference):
            return Agreement()
        differs = ~same_labels(pair.reference, pair.candidate)
        columns = rows_of(differs)
        flipped = row_any(columns)
        margins = np.full(len(flipped), np.nan) if pair.margin is None else pair.margin.reshape(len(flipped))
        margins = margins[flipped].astype(np.float64)
        known = ~np.isnan(margins)
        counted = columns.shape[1] > 1 and columns.shape[1] <= MOST_COLUMNS
        reference_labels, reference_types = _counted(pair.reference)
        candidate_labels, candidate_types = _counted(pair.candidate)
        return Agreement(
            rows=len(flipped),
            flips=len(margins),
            material=int(np.count_nonzero(rows_beyond(pair, flipped))),
            unknown_margins=len(margins) - int(np.count_nonzero(known)),
            margins=LogHistogram.of(margins[known]),
            by_column=tuple(columns.sum(axis=0).tolist()) if counted else None,
            confusion=_confused(pair.reference[differs].tolist(), pair.candidate[differs].tolist()),
            reference_labels=reference_labels,
            candidate_labels=candidate_labels,
            reference_types=reference_types,
            candidate_types=candidate_types,
            reference=Constancy.of(pair.reference),
            candidate=Constancy.of(pair.candidate),
        )


def rows_beyond(pair: Pair, flipped: Array | None = None) -> Array:
    """Which rows are material flips: changed labels that the tolerance does not excuse as noise."""
    if flipped is None:
        flipped = row_any(rows_of(~same_labels(pair.reference, pair.candidate)))
    if pair.margin is None or pair.noise is None:
        return flipped
    return np.asarray(flipped & ~(pair.margin <= pair.noise).reshape(flipped.shape))


def _merge_columns(some: tuple[int, ...] | None, others: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if some is None or others is None:
        return None
    if not some or not others:
        return some or others
    return tuple(one + other for one, other in zip(some, others, strict=True)) if len(some) == len(others) else None


def _confused(reference: list[Any], candidate: list[Any]) -> Tally:
    # Types go into the key because Python takes True, 1 and 1.0 for one key.
    pairs = Counter(zip(map(type, reference), reference, map(type, candidate), candidate, strict=True))
    return Tally.of(((ours, theirs), amount) for (_, ours, _, theirs), amount in pairs.items())


def _counted(labels: Array) -> tuple[Tally, frozenset[str]]:
    """How often each label occurs, and whether labels are numbers or text."""
    if is_numeric(labels):
        values, counts = np.unique(labels, return_counts=True)
        amounts = [((label,), count) for label, count in zip(values.tolist(), counts.tolist(), strict=True)]
        return Tally.of(amounts), frozenset({"number"})
    given = labels.ravel().tolist()
    kinds = set(map(type, given)) - {type(None)}
    types = frozenset("number" if issubclass(kind, _NUMBERS) else "text" for kind in kinds)
    if len(kinds) <= 1:
        return Tally.of(((label,), amount) for label, amount in Counter(given).items()), types
    found = Counter(zip(map(type, given), given, strict=True))
    return Tally.of(((label,), amount) for (_, label), amount in found.items()), types


def _value(label: Any) -> Value:
    label = label.item() if isinstance(label, np.generic) else label
    if label is None:
        return ("none", "")
    if isinstance(label, bool | int):
        return (type(label).__name__, label)
    if isinstance(label, float):
        return ("float", "nan" if math.isnan(label) else label + 0.0)
    text = str(label)
    if len(text) <= _LONGEST_TEXT:
        return ("text", text)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return ("text", f"{text[:_LONGEST_TEXT]}… ({len(text)} characters, {digest})")


def _plain(value: Value) -> Json:
    kind, label = value
    return None if kind == "none" else float(label) if kind == "float" else label


def _by_label(entry: tuple[tuple[Value, ...], int]) -> str:
    return repr(entry[0])


EXTENSION = AgreementMetric()
