"""Do the gate and a page of plain Python say the same of any two answers? `make oracle`.

Random answers of two models (numbers of every type, NaN, infinities, subnormal and huge ones, -0.0, text, labels with
and without scores) are judged under random policies by `likewise.check`, again under others by `likewise.judge`, and by
the oracle below, which was written from docs/measures.md and the README alone and shares no code with the gate.

One call compares many outputs, and one comparison is judged under many policies: a million judgements take minutes.
What the two disagree on is made small (one output, few rows) and printed as a program; the exit code is 1 if there is
any.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

import likewise

PAIRS = 20_000
OUTPUTS, POLICIES = 24, 16
"""Outputs that one call compares, and policies that one comparison is judged under."""

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"

SHOWN = 12
"""Disagreements that are printed in full."""

DATA_ONLY: dict[str, Any] = {"explain": False, "edge": "off", "shapes": {}, "allow_same": True, "batch_sizes": ()}

Asked = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Pair:
    """One output of both models; of labels also the scores that they were made of, a column for each of `classes`."""

    reference: np.ndarray
    candidate: np.ndarray
    labels: bool = False
    scores: tuple[np.ndarray, np.ndarray] | None = None
    classes: tuple[Any, ...] = ()

    @property
    def sides(self) -> tuple[np.ndarray, np.ndarray]:
        return self.reference, self.candidate

    @property
    def whole(self) -> int:
        """How many sides are whole numbers."""
        return sum(side.dtype.kind in "iub" for side in self.sides) if not self.labels else 0

    @property
    def wide(self) -> bool:
        """May these be scores, one for each class?"""
        return self.reference.ndim == 2 and self.reference.shape[1] > 1 and self.whole < 2

    def rows(self, kept: list[int]) -> Pair:
        scores = (self.scores[0][kept], self.scores[1][kept]) if self.scores else None
        return replace(self, reference=self.reference[kept], candidate=self.candidate[kept], scores=scores)


# The oracle.

PRESETS: dict[str, dict[str, float]] = {
    "float32": {"mismatch_rate": 0, "material_flips": 0},
    "strict": {"max_abs_diff": 0.01, "mean_abs_diff": 0.005, "material_flips": 0},
    "standard": {"max_abs_diff": 0.04, "mean_abs_diff": 0.01, "material_flips": 0},
    "quantized": {"max_abs_diff": 0.06, "mean_abs_diff": 0.02, "material_flips": 0},
    "exact": {"max_abs_diff": 0, "max_ulp_diff": 0, "dtype_mismatch": 0, "rank_mismatch": 0, "label_flips": 0},
}
QUANTILES = {"p50_abs_diff": 0.5, "p90_abs_diff": 0.9, "p95_abs_diff": 0.95, "p99_abs_diff": 0.99}
TOP = {"label_flips": "top1_flips", "flip_rate": "top1_flip_rate"}
"""What flips are called of scores without labels."""

LARGEST = sys.float_info.max

ENOUGH, FOLLOWS = 10, 0.25
"""Rows from which a preset is doubted that would pass any constant, and how far apart, of the reference's range, the
answers of a candidate are that does not follow it."""

ABOVE, SUBNORMAL = 1.0079, 2.0**-1029
"""How far a quantile may be above the true one: a part of it, or of what is too small for that a fixed step."""


def plain(value: Any) -> int | float:
    """A number as Python's own: whole ones without rounding, all others as float64."""
    return int(value) if isinstance(value, np.integer | np.bool_) else float(value)


def apart(one: int | float, other: int | float) -> float | Fraction:
    """The difference in float64, rounded once; one that is too large for float64 as it is."""
    if isinstance(one, float) and isinstance(other, float) and abs(one - other) < math.inf:
        return abs(one - other)
    exact = abs(Fraction(one) - Fraction(other))
    return exact if exact > LARGEST else float(exact)


def place(value: Any) -> int:
    """Where a number stands among all of its type, -0.0 one below 0.0."""
    bits, top = int(value.view(f"u{value.itemsize}")), 1 << (8 * value.itemsize - 1)
    return bits if bits < top else top - bits - 1


class Numbers:
    """The measures of two arrays of numbers; each is what docs/measures.md says in a line."""

    def __init__(self, pair: Pair) -> None:
        reference, candidate = pair.reference.ravel(), pair.candidate.ravel()
        pairs = [(plain(r), plain(c)) for r, c in zip(reference, candidate, strict=True)]
        self.finite = [(r, c) for r, c in pairs if math.isfinite(r) and math.isfinite(c)]
        self.differences = [apart(c, r) for r, c in self.finite]
        self.count, self.nan = len(pairs), sum(r != r and c != c for r, c in pairs)
        self.odd = sum(r != c and not (r != r and c != c) for r, c in pairs) - sum(r != c for r, c in self.finite)
        self.measures: dict[str, float] = {
            "nonfinite_mismatch": self.odd,
            "dtype_mismatch": float(reference.dtype != candidate.dtype),
            "rank_mismatch": float(pair.reference.ndim != pair.candidate.ndim),
        }
        if self.count:
            self.measures["nan_share"] = self.nan / self.count
        if self.finite:
            sizes = [max(abs(float(r)), 1e-6) for r, _ in self.finite]
            self.measures |= {
                "max_abs_diff": float(min(max(self.differences), LARGEST)),
                "mean_abs_diff": mean(self.differences),
                "max_rel_diff": max(share(d, size) for d, size in zip(self.differences, sizes, strict=True)),
            }
            if reference.dtype.kind == "f" == candidate.dtype.kind:
                coarser = min(reference.dtype, candidate.dtype, key=lambda dtype: dtype.itemsize)
                both = np.isfinite(reference) & np.isfinite(candidate)  # in their own types
                with np.errstate(all="ignore"):
                    reference, candidate = reference.astype(coarser), candidate.astype(coarser)
                steps = [abs(place(c) - place(r)) for r, c in zip(reference[both], candidate[both], strict=True)]
                self.measures["max_ulp_diff"] = float(max(steps, default=0))
            else:
                mixed = "f" in (reference.dtype.kind, candidate.dtype.kind)  # then in units of the float
                apart_at_all = any(float(r) != float(c) if mixed else r != c for r, c in self.finite)
                self.measures["max_ulp_diff"] = float(apart_at_all)
        if pair.wide and self.count:
            moved = sum(best(r) != best(c) for r, c in zip(*map(np.ndarray.tolist, pair.sides), strict=True))
            self.measures |= {"label_flips": moved, "flip_rate": moved / len(pair.reference)}

    def mismatch_rate(self, absolute: float, relative: float) -> float:
        far = sum(
            not d <= (absolute + relative * abs(r) if isinstance(d, float) else exactly(absolute, relative, r))
            for (r, _), d in zip(self.finite, self.differences, strict=True)
        )
        return (far + self.odd) / self.count if self.count else 0.0


def best(row: list[float]) -> int:
    """The place of the largest number; NaN is never it."""
    return max(range(len(row)), key=lambda place: -math.inf if row[place] != row[place] else row[place])


def exactly(absolute: float, relative: float, reference: float) -> Fraction:
    return Fraction(absolute) + Fraction(relative) * abs(Fraction(reference))


def share(difference: float | Fraction, size: float) -> float:
    return difference / size if isinstance(difference, float) else float(difference / Fraction(size))


def mean(values: list[float | Fraction]) -> float:
    """Rounded once: a sum that is rounded before it is divided may end on the other side of a limit."""
    exact = sum(map(Fraction, values), Fraction()) / len(values)
    return math.inf if exact > LARGEST else float(exact)


def flips(pair: Pair, absolute: float, relative: float) -> dict[str, float]:
    """Changed labels, and those of them that the scores of both models do not show to be noise."""
    changed = [
        row
        for row, (r, c) in enumerate(zip(pair.reference.tolist(), pair.candidate.tolist(), strict=True))
        if isinstance(r, str) != isinstance(c, str) or r != c
    ]
    noise = 0
    told_apart = len(pair.classes) == 2 or pair.classes == tuple(range(len(pair.classes)))  # nobody names the columns
    for row in changed if pair.scores and told_apart else ():
        ours, theirs = (side[row].astype(np.float64) for side in pair.scores or ())
        first, second = np.sort(ours)[:-3:-1]
        was, became = (pair.classes.index(side[row]) for side in (pair.reference, pair.candidate))
        near = first - second <= 2 * absolute + relative * (abs(first) + abs(second))
        noise += bool(near and theirs.argmax() != was and theirs[became] == theirs.max())
    return {
        "label_flips": len(changed),
        "flip_rate": len(changed) / len(pair.reference),
        "material_flips": len(changed) - noise,
        "dtype_mismatch": float(pair.reference.dtype.kind != pair.candidate.dtype.kind),
        "rank_mismatch": float(pair.reference.ndim != pair.candidate.ndim),
    }


def policy(pair: Pair, asked: Asked) -> tuple[dict[str, float], float, float]:
    """The limits that hold for a pair under a preset and options, and the tolerance of what is close."""
    preset, limits = asked["preset"], dict(PRESETS[asked["preset"]])
    absolute, relative = (1e-4, 1e-3) if preset == "float32" else (limits["max_abs_diff"], 0.0)
    mine = asked.get("limits", {})
    if "abs_tol" in asked or "rel_tol" in asked:
        absolute, relative = asked.get("abs_tol", absolute), asked.get("rel_tol", 0.0)
        for name in ("max_abs_diff", "mismatch_rate"):
            limits.pop(name, None)
        limits |= {"mismatch_rate": 0} if "rel_tol" in asked else {"max_abs_diff": absolute}
    elif pair.whole and preset != "exact":
        absolute = relative = 0.0
        of_numbers = ("mismatch_rate", "max_abs_diff", "mean_abs_diff")
        limits = {name: bound for name, bound in limits.items() if name not in of_numbers}
        if not mine.keys() & {"max_abs_diff", "max_rel_diff"}:  # nobody says how far they may be apart
            limits["mismatch_rate"] = 0
    if "mean_tol" in asked:
        limits["mean_abs_diff"] = asked["mean_tol"]
    if preset in ("standard", "quantized") and mine.keys() & {"label_flips", "flip_rate"}:
        del limits["material_flips"]
    return {**limits, "nonfinite_mismatch": 0, **mine}, absolute, relative


def expected(pair: Pair, asked: Asked, *, labels: bool) -> set[str]:
    """The outcome, or those that the documents leave open. `labels`: some output of the models is one."""
    if not same_shape(pair):
        return {FAIL}
    limits, absolute, relative = policy(pair, asked)
    if pair.labels:
        found = flips(pair, absolute, relative)
        return {FAIL} if any(found[name] > bound for name, bound in limits.items() if name in found) else {PASS}
    numbers = measured(pair)
    found = {**numbers.measures, "mismatch_rate": numbers.mismatch_rate(absolute, relative)}
    if labels:
        found = {name: value for name, value in found.items() if name not in ("label_flips", "flip_rate")}
    outcomes = {PASS}
    for name, bound in limits.items():
        if name in QUANTILES and numbers.differences:
            low, high = quantile(numbers.differences, QUANTILES[name])
            outcomes = {FAIL} if low > bound else outcomes | {FAIL} if high > bound else outcomes
    if any(not found[name] <= bound for name, bound in limits.items() if name in found) or PASS not in outcomes:
        return {FAIL}
    if numbers.nan and not asked.get("nan_equal", True):
        return {FAIL}
    if numbers.count and not numbers.finite:
        return {INCONCLUSIVE}
    chosen = asked.keys() & {"abs_tol", "rel_tol", "mean_tol"} or mine_of_numbers(asked)
    doubtful = not chosen and len(pair.reference) >= ENOUGH and varies_little(pair, absolute, relative)
    return outcomes | {INCONCLUSIVE} if doubtful else outcomes


def mine_of_numbers(asked: Asked) -> set[str]:
    """Limits of one's own on numbers."""
    return asked.get("limits", {}).keys() - {"label_flips", "flip_rate"}


def has(pair: Pair, name: str, *, labels: bool) -> bool:
    """Is there anything of this pair that a limit on a measure can hold for?"""
    if name in ("label_flips", "flip_rate"):
        return same_shape(pair) and (pair.labels or (pair.wide and not labels))
    if name == "dtype_mismatch":
        return same_shape(pair)
    return (
        same_shape(pair)
        and not pair.labels
        and bool(measured(pair).count if name in ("nan_share", "mismatch_rate") else measured(pair).finite)
    )


def quantile(values: list[float | Fraction], share: float) -> tuple[float, float]:
    """The least and the most that a quantile may be told to be, whatever is done between two values."""
    ordered, at = sorted(float(min(value, LARGEST)) for value in values), share * (len(values) - 1)
    return ordered[math.floor(at)], ordered[min(math.ceil(at) + 1, len(values) - 1)] * ABOVE + SUBNORMAL


def varies_little(pair: Pair, absolute: float, relative: float) -> bool:
    """Would a model that always answers the same pass, in some column which the candidate does not follow?"""
    columns = (side.reshape(len(side), -1).astype(np.float64).T for side in pair.sides)
    for ours, theirs in zip(*columns, strict=True):
        both = np.isfinite(ours) & np.isfinite(theirs)
        known, furthest = ours[both].tolist(), max(abs(ours[both] - theirs[both]).tolist(), default=0.0)
        spread = max(known, default=0.0) - min(known, default=0.0)
        ends = abs(min(known, default=0.0)) + abs(max(known, default=0.0))
        if known and spread <= 2 * absolute + relative * ends and furthest > FOLLOWS * spread:
            return True
    return False


def same_shape(pair: Pair) -> bool:
    ours, theirs = ((*side.shape, 1) if side.ndim == 1 else side.shape for side in (pair.reference, pair.candidate))
    return ours == theirs


@functools.lru_cache(maxsize=4 * OUTPUTS)
def measured(pair: Pair) -> Numbers:
    return Numbers(pair)


# What is drawn.

TYPES = (np.float16, np.float32, np.float64, np.float64, np.int8, np.uint8, np.int32, np.int64, np.uint64, np.bool_)
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, 5e-324, -2.2e-308, 1e-40, 6e-8, 65504.0, 1e30, 1.7e308, -1.7e308)
TOLERANCES = (0.0, 1e-12, 1e-6, 1e-4, 1e-3, 0.01, 0.04, 0.25, 1.0, 1e6)
BOUNDS = (0.0, 1e-9, 1e-4, 0.01, 0.1, 0.5, 1.0, 3.0, 1e9)


def drawn_numbers(random: np.random.Generator, rows: int) -> Pair:
    shape = (rows, *[(), (), (1,), (2,), (4,), (2, 3), (0,)][random.integers(7)])
    dtype = np.dtype(TYPES[random.integers(len(TYPES))])
    with np.errstate(all="ignore"):
        if dtype.kind == "f":
            reference = (random.normal(size=shape) * 10.0 ** random.integers(-7, 5)).astype(dtype)
            if random.random() < 0.1:
                reference = np.full(shape, SPECIAL[random.integers(len(SPECIAL))]).astype(dtype)
            elif random.random() < 0.3:
                planted(random, reference)
        elif dtype.kind == "b":
            reference = random.random(shape) < 0.5
        else:
            low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if random.random() < 0.3 else (0, 20)
            reference = random.integers(low, high, size=shape, dtype=dtype, endpoint=True)
        return Pair(reference, changed(random, reference))


def changed(random: np.random.Generator, reference: np.ndarray) -> np.ndarray:
    """Another model's answers: the same, or off in one of the ways in which models are."""
    candidate = reference.copy()
    if reference.dtype.kind == "f":
        way = random.integers(8)
        noise = random.choice(np.array(TOLERANCES)) * random.choice([0.3, 0.999, 1.0, 1.001])
        if way == 0:
            candidate = np.nextafter(candidate, candidate.dtype.type(1))
        elif way == 1:
            candidate = (candidate + noise).astype(candidate.dtype)
        elif way == 2:
            candidate = (candidate * (1 + noise * random.uniform(-1, 1, size=candidate.shape))).astype(candidate.dtype)
        elif way == 3 and candidate.size:
            at = np.unravel_index(random.integers(candidate.size), candidate.shape)
            candidate[at] += candidate.dtype.type(noise)
        elif way == 4:
            planted(random, candidate)
        elif way == 5:
            candidate = -candidate
    elif candidate.size and random.random() < 0.5:
        at = np.unravel_index(random.integers(candidate.size), candidate.shape)
        candidate[at] = not candidate[at] if candidate.dtype.kind == "b" else candidate[at] ^ candidate.dtype.type(1)
    if random.random() < 0.15:
        candidate = candidate.astype(TYPES[random.integers(3)])
    if random.random() < 0.05:
        candidate = candidate[:, None] if candidate.ndim == 1 else candidate[..., :-1]
    return candidate


def planted(random: np.random.Generator, values: np.ndarray) -> None:
    for _ in range(random.integers(1, 4) if values.size else 0):
        at = np.unravel_index(random.integers(values.size), values.shape)
        values[at] = values.dtype.type(SPECIAL[random.integers(len(SPECIAL))])


def drawn_labels(random: np.random.Generator, rows: int) -> Pair:
    """Labels as classifiers give them, with or without scores, and a candidate whose scores moved."""
    classes = (("no", "yes"), ("a", "b", "c"), (0, 1), (0, 1, 2), (3, 5, 9), (False, True))[random.integers(6)]
    scores = random.dirichlet(np.ones(len(classes)), size=rows)
    if random.random() < 0.5:
        scores[:, :2] = scores[:, :2].mean(axis=1, keepdims=True) + random.uniform(-1e-3, 1e-3, size=(rows, 1)) * [
            1,
            -1,
        ]
    moved = scores + random.normal(size=scores.shape) * random.choice([0, 1e-5, 1e-3, 0.1])
    ours, theirs = (np.array(classes)[side.argmax(axis=1)] for side in (scores, moved))
    if random.random() < 0.2:  # a label that its own scores do not give
        theirs = np.array(classes)[random.integers(len(classes), size=rows)]
    if random.random() < 0.1 and not isinstance(classes[0], str):  # True is 1
        theirs = theirs.astype(np.int64)
    if isinstance(classes[0], str):
        ours, theirs = ours.astype(object), theirs.astype(object)
    return Pair(ours, theirs, labels=True, scores=(scores, moved) if random.random() < 0.7 else None, classes=classes)


def drawn_text(random: np.random.Generator, rows: int) -> Pair:
    words = np.array(["", "a", "A", "b", "1", "1.0", "nan", "é", "e\u0301"], dtype=object)
    reference = words[random.integers(len(words), size=rows)]
    other = words[random.integers(len(words), size=rows)]
    return Pair(reference, np.where(random.random(rows) < 0.8, reference, other), labels=True)


def drawn_policy(random: np.random.Generator) -> Asked:
    asked: Asked = {"preset": str(random.choice(list(PRESETS)))}
    if asked["preset"] != "exact":
        if random.random() < 0.3:
            asked["abs_tol"] = float(random.choice(TOLERANCES))
        if random.random() < 0.3:
            asked["rel_tol"] = float(random.choice(TOLERANCES[:8]))
        if random.random() < 0.2:
            asked["mean_tol"] = float(random.choice(TOLERANCES))
    if random.random() < 0.3:
        names = (
            "max_abs_diff",
            "mean_abs_diff",
            "max_rel_diff",
            "nan_share",
            "dtype_mismatch",
            "label_flips",
            "flip_rate",
        )
        chosen = random.choice([*names, *QUANTILES], size=random.integers(1, 3), replace=False)
        asked["limits"] = {str(name): float(random.choice(BOUNDS)) for name in chosen}
    if random.random() < 0.2:
        asked["nan_equal"] = False
    return asked


# Both are asked.


def model(answers: Mapping[str, np.ndarray]) -> Any:
    return lambda X: {name: array[X.astype(int)] for name, array in answers.items()}


def sides(pairs: Mapping[str, Pair]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    ours: dict[str, np.ndarray] = {}
    theirs: dict[str, np.ndarray] = {}
    for name, pair in pairs.items():
        ours[name], theirs[name] = pair.reference, pair.candidate
        if pair.scores:
            ours["probabilities"], theirs["probabilities"] = pair.scores
    return ours, theirs


def compared(pairs: Mapping[str, Pair], asked: Asked) -> likewise.Report:
    ours, theirs = sides(pairs)
    rows = len(next(iter(ours.values())))
    return likewise.check(model(ours), model(theirs), {"X": np.arange(rows, dtype=np.float64)}, **DATA_ONLY, **asked)


def outcomes(report: likewise.Report, names: Iterable[str]) -> list[str]:
    """What a report says of each of these outputs."""
    severities = {(finding.output, finding.severity) for finding in report.verdict.findings}
    return [
        FAIL if (name, "failure") in severities else INCONCLUSIVE if (name, "inconclusive") in severities else PASS
        for name in names
    ]


def disagreements(report: likewise.Report, pairs: Mapping[str, Pair], asked: Asked) -> dict[str, str]:
    """The outputs of which the gate and the oracle do not say the same, with what they say; "" is all of them."""
    found: dict[str, str] = {}
    judged = dict(pairs)
    for pair in pairs.values():
        if pair.scores:
            judged["probabilities"] = Pair(*pair.scores)
    labels = any(pair.labels for pair in pairs.values())
    codes: dict[tuple[str | None, str], set[str]] = {}
    for finding in report.verdict.findings:
        codes.setdefault((finding.output, str(finding.severity)), set()).add(finding.code)
    told = set()
    for name, pair in judged.items():
        failed, unknown = codes.get((name, "failure"), set()), codes.get((name, "inconclusive"), set())
        gate = FAIL if failed else INCONCLUSIVE if unknown else PASS
        told.add(gate)
        wanted = expected(pair, asked, labels=labels)
        if gate not in wanted and not (gate == INCONCLUSIVE and "undecided" in unknown):
            found[name] = f"the oracle says {' or '.join(sorted(wanted))}, the gate {gate} {sorted(failed | unknown)}"
    wanted_measures = [*asked.get("limits", {})]
    if any(not pair.labels and (not same_shape(pair) or pair.reference.size) for pair in judged.values()):
        rule = {"rel_tol": "mismatch_rate"} if "rel_tol" in asked else {"abs_tol": "max_abs_diff"}
        options = {"mean_tol": "mean_abs_diff", **rule}
        wanted_measures += [measure for option, measure in options.items() if option in asked]
    unmeasured = [
        name for name in wanted_measures if not any(has(pair, name, labels=labels) for pair in judged.values())
    ]
    if bool(unmeasured) != ((None, "inconclusive") in codes):
        found[""] = f"nothing was measured against {unmeasured}, and the gate says {codes.get((None, 'inconclusive'))}"
    if unmeasured:
        told.add(INCONCLUSIVE)
    whole = FAIL if FAIL in told else INCONCLUSIVE if INCONCLUSIVE in told else PASS
    if str(report.outcome) != whole:
        found[""] = f"{whole} by its outputs, {report.outcome} as a whole: {report.verdict.headline}"
    return found


def wrong_measures(report: likewise.Report, pairs: Mapping[str, Pair]) -> dict[str, str]:
    """Outputs of which a measure is not what docs/measures.md says, by name."""
    found: dict[str, str] = {}
    for output in report.comparison.outputs:
        pair = pairs.get(output.name)
        if pair is None or pair.labels or not same_shape(pair) or output.name not in pairs:
            continue
        numbers = measured(pair)
        for name, value in numbers.measures.items():
            gate = output.measures.get(TOP.get(name, name))
            exact_steps = name != "max_ulp_diff" or pair.reference.dtype.kind == "f" == pair.candidate.dtype.kind
            if gate is None or name == "rank_mismatch" or not exact_steps or value == math.inf:
                continue
            if not (gate == value or math.isclose(gate, value, rel_tol=1e-12, abs_tol=0.0)):
                found[output.name] = f"{name} is {value!r} by the oracle, {gate!r} by the gate"
        for name, share in QUANTILES.items():
            low, high = quantile(numbers.differences, share) if numbers.differences else (0.0, math.inf)
            if not low <= output.measures.get(name, low) <= high:
                found[output.name] = f"{name} is {output.measures[name]!r} by the gate, not from {low!r} to {high!r}"
    return found


def small(pairs: Mapping[str, Pair], first: Asked, again: Asked | None, name: str) -> str:
    """The same disagreement with one output and as few rows as show it, as a program."""

    def differs(tried: Mapping[str, Pair]) -> str | None:
        report = compared(tried, first)
        wrong = wrong_measures(report, tried)
        report = likewise.judge(report, **again) if again else report
        return {**wrong, **disagreements(report, tried, again or first)}.get(name)

    kept = dict(pairs)
    for key in pairs:
        fewer_outputs = {other: pair for other, pair in kept.items() if other != key}
        if fewer_outputs and key != name and differs(fewer_outputs):
            kept = fewer_outputs
    rows = list(range(len(next(iter(kept.values())).reference)))
    for row in list(rows):
        fewer = [other for other in rows if other != row]
        if fewer and differs({key: pair.rows(fewer) for key, pair in kept.items()}):
            rows = fewer
    kept = {key: pair.rows(rows) for key, pair in kept.items()}
    return f"# {name or 'all outputs'}: {differs(kept)}\n{program(kept, first, again)}"


def program(pairs: Mapping[str, Pair], first: Asked, again: Asked | None) -> str:
    """What asks the gate about these answers."""
    lines = ["import likewise, numpy as np", "from numpy import array, inf, nan"]
    for side, answers in zip(("reference", "candidate"), sides(pairs), strict=True):
        told = (
            f"{name!r}: array({values.tolist()!r}, {values.dtype.name!r}).reshape{values.shape}"
            for name, values in answers.items()
        )
        lines.append(f"{side} = {{{', '.join(told)}}}")
    rows = len(next(iter(pairs.values())).reference)
    lines += [
        "ask = lambda answers: lambda X: {name: values[X.astype(int)] for name, values in answers.items()}",
        f"options = {{**{DATA_ONLY!r}, **{first!r}}}",
        f"report = likewise.check(ask(reference), ask(candidate), {{'X': np.arange({rows}.0)}}, **options)",
        *([f"report = likewise.judge(report, **{again!r})"] if again else []),
        "print(report.outcome, report.verdict.findings)",
    ]
    return "\n".join(lines)


def drawn(random: np.random.Generator) -> dict[str, Pair]:
    """The outputs of two models."""
    rows = int(random.integers(1, 13))
    if random.random() < 0.4:
        named = {f"text{place}": drawn_text(random, rows) for place in range(random.integers(2))}
        numbers = {f"value{place}": drawn_numbers(random, rows) for place in range(random.integers(3))}
        return {"label": drawn_labels(random, rows)} if random.random() < 0.9 or not named else {**named, **numbers}
    return {f"value{place}": drawn_numbers(random, rows) for place in range(OUTPUTS)}


def campaign(pairs: int, seed: int, *, shown: int = SHOWN) -> tuple[Counter[str], list[str]]:
    """So many judgements of a pair under a policy: how they went, and programs that show the disagreements."""
    counted: Counter[str] = Counter()
    programs: list[str] = []
    number = 0
    while counted["judgements"] < pairs:
        random = np.random.default_rng([seed, number])
        number += 1
        outputs, first = drawn(random), {"preset": str(random.choice(list(PRESETS)))}
        policies: list[Asked | None] = [None, *(drawn_policy(random) for _ in range(POLICIES))]
        if random.random() < 0.3:  # a policy that the run itself had
            first, policies = drawn_policy(random), [None]
        try:
            report = compared(outputs, first)
        except Exception as error:  # noqa: BLE001 - no answers of two models may raise
            counted["disagreements"] += 1
            programs.append(f"# {type(error).__name__}: {error}\n{program(outputs, first, None)}")
            continue
        counted["pairs"] += len(outputs)
        for name in wrong_measures(report, outputs):
            tell(counted, programs, shown, outputs, first, None, name)
        for again in policies:
            judged = likewise.judge(report, **again) if again else report
            counted["judgements"] += len(outputs)
            counted.update(outcomes(judged, outputs))
            for name in disagreements(judged, outputs, again or first):
                tell(counted, programs, shown, outputs, first, again, name)
    return counted, programs


def tell(counted: Counter[str], programs: list[str], shown: int, *case: Any) -> None:
    counted["disagreements"] += 1
    if len(programs) < shown:
        programs.append(small(*case))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="judgements of a pair of outputs under a policy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shown", type=int, default=SHOWN, help="disagreements that are printed in full")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")  # numpy's, of casts that overflow on purpose
    began = time.perf_counter()
    counted, programs = campaign(chosen.pairs, chosen.seed, shown=chosen.shown)
    for text in programs:
        print(text, end="\n\n")
    outcomes = ", ".join(f"{counted[outcome]:,} {outcome}" for outcome in (PASS, FAIL, INCONCLUSIVE))
    print(f"{counted['judgements']:,} judgements of {counted['pairs']:,} pairs: {outcomes}")
    print(f"{counted['disagreements']:,} disagreements, {time.perf_counter() - began:.0f} s, seed {chosen.seed}")
    sys.exit(1 if counted["disagreements"] else 0)


if __name__ == "__main__":
    main()
