"""What is acceptable, what a comparison means under it, and what changed between two runs; how its figures are written.

Whatever tells a figure or a list of sizes, in findings and in every format, writes it by the functions at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from likewise.contracts.comparison import Json, Tolerance
from likewise.contracts.values import dataclass


class Outcome(StrEnum):
    """Only PASS deploys."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


class Severity(StrEnum):
    """What a finding does to the verdict."""

    FAILURE = "failure"
    INCONCLUSIVE = "inconclusive"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Limit:
    """One bound on one measure, for one output or for all of them.

    `explicit` limits were asked for by the user: if nothing is measured against them, the verdict
    is inconclusive. Limits that come with a preset apply where the outputs have that measure.
    `of_numbers`: a tolerance, which asks nothing of labels, text and outputs without values.
    """

    measure: str
    bound: float
    output: str | None = None
    explicit: bool = False
    of_numbers: bool = False

    @property
    def text(self) -> str:
        return f"{self.output}.{self.measure}" if self.output else self.measure


@dataclass(frozen=True, slots=True)
class Policy:
    """What is acceptable."""

    preset: str
    tolerance: Tolerance
    limits: tuple[Limit, ...]
    nan_equal: bool = True
    confidence: float = 0.95
    max_failure_rate: float | None = None
    fixed_batch: bool = False
    allow_same: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """One limit beside its measure. `value` is None when nothing was measured."""

    output: str
    measure: str
    value: float | None
    bound: float
    outcome: Outcome
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a reader should know, with what to do about it."""

    code: str
    severity: Severity
    message: str
    output: str | None = None
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Confidence:
    """What the rows allow us to say about rows like them."""

    level: float
    rows: int
    violations: int
    upper_bound: float
    statement: str


@dataclass(frozen=True, slots=True)
class SuiteVerdict:
    """The judgement of one suite, which stands beside that of the data. `blocks`: a PASS needs it to pass.

    `usual`: all that differs is that the reference refuses values which are no ordinary numbers. Every export of such a
    model answers them, and that blocks only where it was asked for.
    """

    kind: str
    name: str
    title: str
    rows: int
    refused: int
    blocks: bool
    outcome: Outcome
    headline: str
    checks: tuple[Check, ...] = ()
    findings: tuple[Finding, ...] = ()
    usual: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement."""

    outcome: Outcome
    headline: str
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]
    confidence: Confidence | None
    suites: tuple[SuiteVerdict, ...] = ()


AT_LEAST = frozenset({"cosine", "sqnr_db", "rank_agreement"})
"""Measures of which more is better; a limit on them is the least that is accepted."""


AT_MOST = frozenset(
    {
        "max_abs_diff",
        "mean_abs_diff",
        "max_rel_diff",
        "p50_abs_diff",
        "p90_abs_diff",
        "p95_abs_diff",
        "p99_abs_diff",
        "p99_9_abs_diff",
        "mismatch_rate",
        "max_ulp_diff",
        "label_flips",
        "material_flips",
        "flip_rate",
        "top1_flips",
        "top5_flips",
        "nonfinite_mismatch",
        "nan_share",
        "dtype_mismatch",
        "rank_mismatch",
        "layout_mismatch",
        "batch_drift",
        "position_drift",
        "reference_drift",
    }
)


class Direction(StrEnum):
    """Where a change leads. `OTHER` is told and weighs nothing, `UNKNOWN` cannot be told and does not pass."""

    WORSE = "worse"
    BETTER = "better"
    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing in both runs, or in one of them only.

    `subject` is what kind of thing: outcome, output, measure, limit, policy, rows, batch-size, suite, suite-measure,
    stratum, finding, reference, candidate or data. `percent` is by how much a measure got worse (below zero: better),
    None where there is nothing to divide by. `blocks`: a gate that is held against the old run depends on it.
    `place` is where beside all rows it was found: how the rows of a batch were moved, or else the kind and name of
    a suite. `summary` is the message without what it lists, where it does.
    """

    subject: str
    name: str
    direction: Direction
    message: str
    old: Json = None
    new: Json = None
    percent: float | None = None
    output: str | None = None
    batch_size: int | None = None
    blocks: bool = True
    place: str = ""
    summary: str = ""

    @property
    def suite(self) -> str:
        """Kind and name of the suite it was found in; nothing if it was found on the data."""
        return self.place if self.batch_size is None else ""


@dataclass(frozen=True, slots=True)
class Told:
    """One line: a change, or the worst of several that are one thing. `where` names the places it stands for.

    `summary` is the message without the names of the suites, or what they found, where it has them.
    """

    change: Change
    message: str
    where: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Diff:
    """Two runs side by side. PASS: nothing got worse. INCONCLUSIVE: `doubts` say why they cannot be compared.

    `told` has the same changes folded: one line for what is one thing.
    """

    outcome: Outcome
    headline: str
    old: str
    new: str
    allow: float
    changes: tuple[Change, ...]
    doubts: tuple[str, ...] = ()
    remedy: str = ""
    told: tuple[Told, ...] = ()

    def of(self, *directions: Direction) -> tuple[Change, ...]:
        """The changes that lead there, in the order they are told."""
        return tuple(change for change in self.changes if change.direction in directions)

    def lines(self, *directions: Direction) -> list[Told]:
        """The folded lines that lead there, in the order of the directions."""
        return [line for direction in directions for line in self.told if line.change.direction is direction]


MANY_TIMES = 900.0
"""Percent from which a factor reads better."""


def runs(numbers: Sequence[int]) -> str:
    """Ascending numbers, three or more in a row as a range: 1–4, 7–9, 32."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in found)


def at_sizes(sizes: Sequence[int], tried: Sequence[int]) -> str:
    """Ascending batch sizes; all that were tried by the smallest and the largest, and others one by one."""
    if len(sizes) == 1:
        return f"at batch size {sizes[0]}"
    every = len(sizes) > 2 and set(sizes) == set(tried)
    return f"at batch sizes {sizes[0]}–{sizes[-1]}" if every else f"at batch sizes {runs(sizes)}"


def lowered(text: str) -> str:
    """Words that go on in the middle of a sentence: a verb at their beginning loses its capital."""
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def counted(count: int, what: str) -> str:
    """`1 row`, `2 rows`: so many of what is named in the plural."""
    return f"{count:,} {what if count != 1 else what.removesuffix('s')}"


def figure(value: float | str | None) -> str:
    """A figure as a person reads it."""
    if value is None:
        return "not measured"
    if isinstance(value, str):
        return value
    whole = float(value).is_integer() and abs(value) < 1e15
    return f"{int(value):,}" if whole else f"{value:.4g}"


def told_apart(*values: float) -> tuple[str, ...]:
    """Numbers with as many digits as it takes to tell those apart that differ; at least six."""
    for digits in range(6, 18):
        shown = tuple(f"{value:.{digits}g}" for value in values)
        if len(set(shown)) == len(set(values)):
            break
    return shown


def change_text(change: Change) -> str:
    """How much worse or better, as a person reads it; nothing where both figures say it best."""
    measure = change.name.rpartition(".")[2]
    if measure in AT_LEAST:
        lacking = [1 - float(value) for value in (change.new, change.old)]
        told = measure != "sqnr_db" and all(map(math.isfinite, lacking))
        return f"lacks {figure(lacking[0])}, lacked {figure(lacking[1])}" if told else ""
    if change.percent is None:
        return ""
    if change.percent >= MANY_TIMES:
        return f"{change.percent / 100 + 1:,.0f} times as much"
    size = abs(change.percent)
    shown = f"{size:.0f}" if size >= 10 else f"{size:.2g}"
    return f"{shown}% {'worse' if change.percent > 0 else 'better'}"


def value_text(name: str, value: float) -> str:
    """A figure, also where what matters is how little it lacks to 1."""
    shown = figure(value)
    near_one = name.rpartition(".")[2] in AT_LEAST and shown == "1" and value != 1
    return f"1 − {1 - value:.2g}" if near_one else shown
