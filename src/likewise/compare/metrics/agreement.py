"""Whether labels are the same, and how sure the reference was where they are not; the best class; the form of answers.

Scores of classes may all be within tolerance while another of them is the largest. The columns of other numbers may be
compared so too, which does no harm: it counts only where a limit asks, and else it is told. Values decide whether two
models agree; whoever reads the answers depends on their form too: type, number of axes, and where the rows lie.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from likewise.compare.align import margins
from likewise.compare.differences import Constancy, PairMetric, is_numeric, row_any, rows_of, same_labels
from likewise.compare.sums import LogHistogram, merged
from likewise.contracts.comparison import Form, Json, Pair, PairSpec
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
    told: int = 0
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
        return merged(self, other, by_column=_merge_columns(self.by_column, other.by_column))

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
            "told": self.told,
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
            told=int(np.count_nonzero(row_any(rows_of(~(_missing(pair.reference) & _missing(pair.candidate)))))),
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


def _missing(labels: Array) -> Array:
    """Which labels are none: None, NaN, no time."""
    if labels.dtype.kind in "fc":
        return np.asarray(np.isnan(labels))
    if labels.dtype.kind in "mM":
        return np.asarray(np.isnat(labels))
    if labels.dtype.kind != "O":
        return np.zeros(labels.shape, dtype=bool)
    return np.asarray(np.frompyfunc(_is_none, 1, 1)(labels), dtype=bool).reshape(labels.shape)


def _is_none(label: Any) -> bool:
    if isinstance(label, str):
        return False
    return label is None or (isinstance(label, float) and label != label) or str(label) in ("NaT", "<NA>")


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
        classes = max(self.classes, other.classes)
        return merged(self, other, classes=classes, best=sum(known) if known else None)

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


def _top_class(pair: Pair) -> TopClass:
    """Fractions in at least two columns; of more axes only what is known to be scores."""
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


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms that the answers of either side came in: one each, unless a model changes its mind."""

    reference: frozenset[Form] = frozenset()
    candidate: frozenset[Form] = frozenset()
    column_for_vector: bool = False

    def merge(self, other: Forms, /) -> Forms:
        return merged(self, other, column_for_vector=self.column_for_vector or other.column_for_vector)

    def measurements(self) -> Mapping[str, float]:
        if not self.reference or not self.candidate:
            return {}
        ranks = self._differ("rank") and not self.column_for_vector
        return {
            "dtype_mismatch": float(self._differ("dtype")),
            "rank_mismatch": float(ranks),
            "layout_mismatch": float(self._differ("row_axis")),
        }

    def details(self) -> Mapping[str, Json]:
        return {
            "reference": sorted(form.text for form in self.reference),
            "candidate": sorted(form.text for form in self.candidate),
            "column_for_vector": self.column_for_vector,
        }

    def _differ(self, what: str) -> bool:
        ours, theirs = ({getattr(form, what) for form in side} for side in (self.reference, self.candidate))
        # Where a model does not tell where its rows lie, nothing is known to differ.
        return None not in ours | theirs and ours != theirs


def _forms(pair: Pair) -> Forms:
    if pair.forms is None or not len(pair.reference):
        return Forms()
    reference, candidate = pair.forms
    return Forms(frozenset({reference}), frozenset({candidate}), pair.spec.column_for_vector)


AGREEMENT = AgreementMetric()
TOP_CLASS = PairMetric("top_class", TopClass, _top_class, SCORED | {Kind.VALUE})
FORM = PairMetric("form", Forms, _forms, frozenset(Kind), numbers=False)
EXTENSIONS = (AGREEMENT, TOP_CLASS, FORM)
