"""What a report should say, worked out with plain numpy: no metric, no summary, no sum of likewise is used here."""

from __future__ import annotations

import copy
import math
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import scipy.stats
from fitted_pipelines import Answers, Exported, Paired

RELATIVE_FLOOR = 1e-6
QUANTILE_ERROR = 2.0**-7
SIZES = (1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 127, 128)
AT_EVERY_BATCH_SIZE = ("max_abs_diff", "mismatch_rate", "material_flips", "nonfinite_mismatch")


LABELS = {"material_flips": 0}

FORM = ("dtype_mismatch", "rank_mismatch", "layout_mismatch")
"""What is told of the form of answers, which arrays that were laid side by side no longer show."""


@dataclass(frozen=True)
class Gate:
    """A preset as the design states it."""

    absolute: float
    relative: float
    limits: dict[str, float]
    mean: float | None = None


GATES = {
    "float32": Gate(1e-4, 1e-3, {"mismatch_rate": 0, "material_flips": 0, "nonfinite_mismatch": 0}),
    "strict": Gate(
        0.01, 0.0, {"max_abs_diff": 0.01, "mean_abs_diff": 0.005, "material_flips": 0, "nonfinite_mismatch": 0}, 0.005
    ),
    "standard": Gate(0.04, 0.0, {"max_abs_diff": 0.04, "mean_abs_diff": 0.01, **LABELS, "nonfinite_mismatch": 0}, 0.01),
    "quantized": Gate(
        0.06, 0.0, {"max_abs_diff": 0.06, "mean_abs_diff": 0.02, **LABELS, "nonfinite_mismatch": 0}, 0.02
    ),
    "exact": Gate(0.0, 0.0, {"max_abs_diff": 0, "label_flips": 0, "max_ulp_diff": 0, "nonfinite_mismatch": 0}),
}


class Rederived:
    """One pipeline, asked and compared by hand."""

    def __init__(self, case: Exported) -> None:
        self.case = case
        self.gate = GATES[case.preset]
        self.rows = len(case.frame)
        self.reference = case.ask_reference(case.frame)
        self.candidate = case.ask_candidate(case.frame, self.rows)
        self.at_size = {size: self._swept(size) for size in SIZES}
        self.reference_at_size = {size: case.ask_reference(case.frame.iloc[:size]) for size in SIZES}
        self.places = self._places()
        # Another batch is another order of summation: there bit equality is asked of nobody, and float32's rule of all.
        self.elsewhere = self
        if case.preset == "exact":
            self.elsewhere = copy.copy(self)
            self.elsewhere.gate = GATES["float32"]

    def _swept(self, size: int) -> Answers:
        return self.case.ask_candidate(self.case.frame.iloc[: self.swept_rows(size)], size)

    def swept_rows(self, size: int) -> int:
        """A sweep makes full calls up to 32 rows, at most 16 of them and at least one."""
        return size * max(1, min(16, 32 // size))

    def _places(self) -> list[tuple[list[int], Answers, Answers]]:
        """Three batches of 32 in another order: which rows, and what both answer."""
        spread = [place * min(self.rows, 256) // 32 for place in range(32)]
        orders = [list(range(31, -1, -1)), [*range(16, 32), *range(16)], [*spread[::2], *spread[1::2]]]
        frames = [self.case.frame.iloc[order] for order in orders]
        asked = [(self.case.ask_reference(frame), self.case.ask_candidate(frame, 32)) for frame in frames]
        return [(order, *answers) for order, answers in zip(orders, asked, strict=True)]

    def answers(self, paired: Paired) -> tuple[np.ndarray, np.ndarray]:
        return self.reference[paired.name], self.candidate[paired.name]

    def beyond(self, paired: Paired) -> np.ndarray:
        """Which rows the tolerance does not cover."""
        ours, theirs = self.answers(paired)
        if paired.kind == "label":
            return self.material(paired, ours, theirs)
        return np.array([any(not self._close(r, c) for r, c in row) for row in rows_of_pairs(ours, theirs)])

    def rows_beyond(self) -> int:
        return int(np.logical_or.reduce([self.beyond(paired) for paired in self.case.pairs]).sum())

    @cache  # noqa: B019 - lives as long as the session, which is as long as the pipeline does
    def measures(self, paired: Paired) -> dict[str, float]:
        """Every figure of one output."""
        measures = self._measures(paired, *self.answers(paired))
        left_over = self.case.ask_candidate(self.case.frame.iloc[:33], 32)[paired.name]
        in_place = [(self.candidate[paired.name][order], theirs[paired.name]) for order, _, theirs in self.places]
        own = [(self.reference[paired.name][order], ours[paired.name]) for order, ours, _ in self.places]
        measures["batch_drift"] = max(
            moved(paired, self.candidate[paired.name][:33], left_over), *(self.drift(paired, size) for size in SIZES)
        )
        measures["position_drift"] = max(moved(paired, *both) for both in in_place)
        measures["reference_drift"] = max(
            *(moved(paired, *both) for both in own), *(self.reference_drift(paired, size) for size in SIZES)
        )
        return measures

    @cache  # noqa: B019 - as above
    def measures_at(self, paired: Paired, size: int) -> dict[str, float]:
        """Every figure of one output with the candidate called at a batch size."""
        rows = self.swept_rows(size)
        both = self.reference[paired.name][:rows], self.at_size[size][paired.name]
        measures = self.elsewhere._measures(paired, *both)
        measures = {name: value for name, value in measures.items() if not name.startswith(("p", "rank_", "top"))}
        measures["batch_drift"] = self.drift(paired, size)
        measures["reference_drift"] = self.reference_drift(paired, size)
        return measures

    def drift(self, paired: Paired, size: int) -> float:
        return moved(paired, self.candidate[paired.name][: self.swept_rows(size)], self.at_size[size][paired.name])

    def reference_drift(self, paired: Paired, size: int) -> float:
        return moved(paired, self.reference[paired.name][:size], self.reference_at_size[size][paired.name])

    def checks(self) -> set[tuple[str, str, float, float, str, int | None]]:
        """Every limit beside its measure, at the main batch size and at the others."""
        return {check for size in (None, *SIZES) for check in self._checks(size)}

    def _checks(self, size: int | None) -> Iterator[tuple[str, str, float, float, str, int | None]]:
        for paired in self.case.pairs:
            measures = self.measures(paired) if size is None else self.measures_at(paired, size)
            gate = self.gate if size is None else self.elsewhere.gate
            for measure, bound in gate.limits.items():
                if measure in measures and (size is None or measure in AT_EVERY_BATCH_SIZE):
                    outcome = "PASS" if measures[measure] <= bound else "FAIL"
                    yield paired.name, measure, measures[measure], float(bound), outcome, size

    def verdict(self) -> str:
        return "FAIL" if any(check[4] == "FAIL" for check in self.checks()) else "PASS"

    @cache  # noqa: B019 - as above
    def margin(self, paired: Paired) -> tuple[np.ndarray, np.ndarray] | None:
        """How far the best class is ahead of the next, and how much of that is noise: 2 abs + rel (|p1| + |p2|)."""
        if paired.margin is None:
            return None
        margins, noises = [], []
        for row in np.asarray(self.reference[paired.margin], dtype=np.float64).reshape(self.rows, -1):
            given = [-d for d in row] if paired.margin_kind == "distance" else list(row)
            if len(given) == 1:
                given = [-given[0], given[0]] if paired.margin_kind == "score" else [1 - given[0], given[0]]
            best, second = sorted(given, reverse=True)[:2]
            margins.append(best - second)
            noises.append(2 * self.gate.absolute + self.gate.relative * (abs(best) + abs(second)))
        return np.array(margins), np.array(noises)

    def material(self, paired: Paired, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        flipped = flips(ours, theirs)
        known = self.margin(paired)
        if known is None:
            return flipped
        margin, noise = (values[: len(flipped)] for values in known)
        return flipped & (margin > noise)

    def worst_rows(self, paired: Paired) -> list[tuple[float, int]]:
        """Severity and row number of the ten worst rows, worst first."""
        ours, theirs = self.answers(paired)
        ranked = []
        if paired.kind == "label":
            known = self.margin(paired)
            for row in np.flatnonzero(flips(ours, theirs)).tolist():
                severity = math.inf if known is None else float(known[0][row])
                ranked.append((-severity, 0.0, row))
        else:
            for row, pairs in enumerate(rows_of_pairs(ours, theirs)):
                elements = [(self._severity(r, c), abs(c - r)) for r, c in pairs]
                severity = max(severity for severity, _ in elements)
                distance = next(distance for found, distance in elements if found == severity)
                if severity > 0:
                    ranked.append((-severity, -distance, row))
        return [(-severity, row) for severity, _, row in sorted(ranked)[:10]]

    def upper_bound(self, level: float) -> float:
        violations = self.rows_beyond()
        if violations == self.rows:
            return 1.0
        return float(scipy.stats.beta.ppf(level, violations + 1, self.rows - violations))

    def _close(self, r: float, c: float) -> bool:
        return abs(c - r) <= self.gate.absolute + self.gate.relative * abs(r)

    def _severity(self, r: float, c: float) -> float:
        allowed = self.gate.absolute + self.gate.relative * abs(r)
        return abs(c - r) / allowed if allowed else abs(c - r)

    def _measures(self, paired: Paired, ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
        if paired.kind == "label":
            flipped = flips(ours, theirs)
            return {
                "label_flips": float(flipped.sum()),
                "flip_rate": flipped.sum() / len(flipped),
                "material_flips": float(self.material(paired, ours, theirs).sum()),
            }
        return {
            **self._differences(ours, theirs),
            **quantiles(ours, theirs),
            **rank_agreement(ours, theirs),
            **self._best_classes(paired, ours, theirs),
        }

    def _best_classes(self, paired: Paired, ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
        """In how many rows another class is the best, or among the best five; the last axis holds the classes."""
        ranks = {"probability": (2, 3), "score": (2, 3), "value": (2,)}.get(paired.kind, ())
        if ours.ndim not in ranks or ours.shape[-1] < 2:
            return {}
        flipped, material, others = (np.zeros(ours.shape[:-1], dtype=bool) for _ in range(3))
        for place in np.ndindex(ours.shape[:-1]):
            one, other = (side[place].astype(np.float64).tolist() for side in (ours, theirs))
            first, second = sorted(one, reverse=True)[:2]
            noise = 2 * self.gate.absolute + self.gate.relative * (abs(first) + abs(second))
            flipped[place] = one.index(max(one)) != other.index(max(other))
            material[place] = flipped[place] and first - second > noise
            least = sorted(one, reverse=True)[:5][-1]
            best = sorted(range(len(other)), key=lambda index, other=other: -other[index])[:5]
            others[place] = any(one[index] < least for index in best)
        rows = [int(marks.reshape(len(ours), -1).any(axis=1).sum()) for marks in (flipped, material, others)]
        found = {"top1_flips": rows[0], "top1_flip_rate": rows[0] / len(ours), "top1_material_flips": rows[1]}
        return found if ours.shape[-1] <= 5 else {**found, "top5_flips": rows[2]}

    def _differences(self, ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
        r, c = ours.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
        assert np.isfinite(r).all()
        assert np.isfinite(c).all()
        d = c - r
        outside = [not self._close(one, other) for one, other in zip(r.tolist(), c.tolist(), strict=True)]
        rows = np.array(outside).reshape(len(ours), -1).any(axis=1)
        signal, noise = math.fsum(r * r), math.fsum(d * d)
        return {
            "max_abs_diff": float(np.abs(d).max()),
            "mean_abs_diff": mean(np.abs(d)),
            "mean_diff": mean(d),
            "max_rel_diff": max(
                abs(x) / max(abs(y), RELATIVE_FLOOR) for x, y in zip(d.tolist(), r.tolist(), strict=True)
            ),
            "max_ulp_diff": float(largest_ulp(ours, theirs)),
            "sqnr_db": 10 * math.log10(signal / noise) if noise else math.inf,
            "cosine": math.fsum(r * c) / math.sqrt(signal * math.fsum(c * c)),
            "mismatch_rate": sum(outside) / len(outside),
            "mismatches": float(sum(outside)),
            "rows_beyond": float(rows.sum()),
            "nonfinite_mismatch": 0.0,
            "nan_both": 0.0,
            "nan_share": 0.0,
        }


def moved(paired: Paired, before: np.ndarray, after: np.ndarray) -> float:
    """How far a model's own answers are from what they were."""
    if paired.kind == "label":
        return float(np.mean(before != after))
    return float(np.max(np.abs(after.astype(np.float64) - before.astype(np.float64))))


def flips(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Which rows have another label, in any of their columns."""
    return np.array(
        [
            any(one != other for one, other in zip(np.ravel(mine).tolist(), np.ravel(other).tolist(), strict=True))
            for mine, other in zip(ours, theirs, strict=True)
        ]
    )


def rows_of_pairs(ours: np.ndarray, theirs: np.ndarray) -> Iterator[list[tuple[float, float]]]:
    for mine, other in zip(ours.reshape(len(ours), -1), theirs.reshape(len(theirs), -1), strict=True):
        yield [(float(r), float(c)) for r, c in zip(mine, other, strict=True)]


def mean(values: np.ndarray) -> float:
    """The exact mean, rounded once; `math.fsum` is within an ulp of it."""
    exact = float(sum(map(Fraction, values.tolist())) / len(values))
    assert math.isclose(exact, math.fsum(values) / len(values), rel_tol=1e-15)
    return exact


def largest_ulp(ours: np.ndarray, theirs: np.ndarray) -> int:
    """The most representable numbers between two answers, in the coarser type of the two."""
    single = np.float32 in (ours.dtype, theirs.dtype)
    pairs = zip(ours.ravel().tolist(), theirs.ravel().tolist(), strict=True)
    return max(abs(_place(r, single=single) - _place(c, single=single)) for r, c in pairs)


def _place(value: float, *, single: bool) -> int:
    """The position of a number among all floats: from its bits, negative numbers counted down from -1."""
    bits = (
        struct.unpack(">I", struct.pack(">f", value))[0] if single else struct.unpack(">Q", struct.pack(">d", value))[0]
    )
    sign = 1 << (31 if single else 63)
    return bits if bits < sign else -(bits - sign) - 1


def quantiles(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    """The smallest difference that a share of all differences does not exceed, exactly."""
    distances = sorted(np.abs(theirs.astype(np.float64) - ours.astype(np.float64)).ravel().tolist())
    shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
    return {
        f"{name}_abs_diff": distances[max(1, math.ceil(share * len(distances))) - 1] for name, share in shares.items()
    }


def rank_agreement(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    """Of all pairs of rows that the reference puts in an order, the share the candidate puts in the same; ties half."""
    shares = []
    for mine, other in zip(ours.reshape(len(ours), -1).T, theirs.reshape(len(theirs), -1).T, strict=True):
        right, asked = Fraction(0), 0
        mine, other = mine.astype(np.float64), other.astype(np.float64)
        for row in range(len(mine)):
            above = mine > mine[row]
            asked += int(above.sum())
            right += int((other[above] > other[row]).sum()) + Fraction(int((other[above] == other[row]).sum()), 2)
        if asked:
            shares.append(float(right / asked))
    return {"rank_agreement": min(shares)} if shares else {}


def confusion(ours: np.ndarray, theirs: np.ndarray) -> Counter[tuple[Any, Any]]:
    """Which label became which, and how often."""
    pairs = zip(ours.ravel().tolist(), theirs.ravel().tolist(), strict=True)
    return Counter(pair for pair in pairs if pair[0] != pair[1])


def magnitudes(ours: np.ndarray, theirs: np.ndarray) -> dict[int | None, tuple[int, float]]:
    """The count and the largest difference of the answers of each power of two of the reference."""
    found: dict[int | None, tuple[int, float]] = {}
    for row in rows_of_pairs(ours, theirs):
        for r, c in row:
            key = math.frexp(r)[1] if r else None
            count, largest = found.get(key, (0, 0.0))
            found[key] = (count + 1, max(largest, abs(c - r)))
    return found


def within_histogram_error(stated: float, exact: float) -> bool:
    """A quantile is at most 1/128 too large, and never too small."""
    return exact <= stated <= exact * (1 + QUANTILE_ERROR)
