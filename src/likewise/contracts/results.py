"""What the other tasks find: how fast two models are, how far one moves by itself, the input on which two differ most.

Why each reason of noise is measured apart: they call for different things. Answers that do not repeat are a fault,
answers that move with the number of threads are arithmetic, and what float32 inputs do is done to every
export that takes them.

Why a worst input is told as a real row and a few changes: a person can judge whether that input can occur,
which nobody can of sixty numbers. Why its figures are those of the rows that are written: the file
is given to `check`, and both must say the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import field

from likewise.contracts.comparison import Json
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Outcome


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of each model, in the order they were taken; nanoseconds of every call.

    Why samples are kept round by round: a noisy machine is slow for a while, not for one call. The two models take
    turns within a round, so what hits one hits the other, and the interval of the ratio comes from drawing whole
    rounds again.
    """

    order: tuple[str, str]
    reference: tuple[int, ...]
    candidate: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds a call, and rows a second over all timed calls. `p99` is None below 100 calls."""

    calls: int
    p50: float
    p90: float
    p99: float | None
    rows_per_second: float


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """Both models at one batch size.

    `ratio` is the reference's median over the candidate's: 2 means that the candidate is twice as
    fast. The interval is None where too few rounds fitted the budget.
    """

    batch_size: int
    reference: Latency
    candidate: Latency
    ratio: float
    interval: tuple[float, float] | None
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one model takes besides time.

    `first_load` is in seconds and includes importing its framework, `load` is the median of opening
    it again. Memory is the growth of its own process, in bytes: by opening it, and at the peak of
    the calls beyond that; None where it was not measured.
    """

    name: str
    framework: str
    file_bytes: int | None
    first_load: float
    load: float
    memory_loaded: int | None
    memory_peak: int | None
    details: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Latency, throughput, load time, memory and size of two models, and how they were measured."""

    reference: Footprint
    candidate: Footprint
    timings: tuple[BatchTiming, ...]
    data: str
    settings: Mapping[str, Json]
    machine: Mapping[str, Json]
    notes: tuple[str, ...]
    schema_version: int = 1


@dataclass(frozen=True, slots=True)
class OutputNoise:
    """How far one output moves for one reason.

    `changed` is the share of its values that are not the same, `nonfinite` how many become or cease to be
    finite. The figures in numbers are None where the output holds labels or text. `jumps`: a few values move far
    and the rest hardly at all, as when a threshold is crossed; that is no noise, and no tolerance is proposed
    for it.
    """

    output: str
    values: int
    changed: float
    max_abs: float | None = None
    p99_abs: float | None = None
    max_rel: float | None = None
    p99_rel: float | None = None
    nonfinite: int = 0
    jumps: bool = False


@dataclass(frozen=True, slots=True)
class NoiseSource:
    """One reason why answers move, and by how much; or why that could not be measured."""

    name: str
    title: str
    outputs: tuple[OutputNoise, ...] = ()
    not_measured: str = ""


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """What the noise of one output asks for on its own: a limit on its largest difference."""

    output: str
    largest_answer: float
    max_abs_diff: float


@dataclass(frozen=True, slots=True)
class NoiseResult:
    """The noise of one model on some rows, and the tolerances it asks for.

    |difference| <= abs_tol + rel_tol * |answer| holds for `margin` times every movement that was measured and
    is no jump; both are None where no output holds numbers, where the outputs are too unlike for one tolerance
    (`limits` has one for each), and where none can be proposed: `refused` says why, because a tolerance above such
    noise would let a wrong model pass. `dominated_by` is the source that takes most of it.
    """

    model: str
    framework: str
    data: str
    rows: int
    sources: tuple[NoiseSource, ...]
    margin: float
    abs_tol: float | None
    rel_tol: float | None
    dominated_by: str | None
    limits: tuple[OutputLimit, ...]
    notes: tuple[str, ...]
    refused: tuple[str, ...] = ()
    schema_version: int = 1

    @property
    def options(self) -> str:
        """What to say to `likewise check`; empty where nothing is proposed."""
        if self.abs_tol is None or self.rel_tol is None:
            return self.limit_options
        return f"--abs-tol {self.abs_tol:g} --rel-tol {self.rel_tol:g}"

    @property
    def limit_options(self) -> str:
        """The same for each output on its own."""
        return " ".join(
            # Names are the model's own, and this is meant to be put into a command.
            f"--limit {shlex.quote(f'{limit.output}.max_abs_diff={limit.max_abs_diff:g}')}"
            for limit in self.limits
        )


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs from the real row: `before` is the real one. An element of a tensor is `X[3]`."""

    column: str
    before: Json
    after: Json


@dataclass(frozen=True, slots=True)
class StressedRow:
    """One input found: a real row and what was changed in it.

    `position` is its place in the file, `base` what the real row is called. `severity` is the difference
    in units of the tolerance, so that 1 is just within. `changed` counts every changed value, of which
    `changes` lists the first. What ends in `_in_search` is the same among the rows of the call in which the
    search met it: other figures there tell that answers depend on what else is in the call.
    """

    position: int
    base: int | str
    severity: float
    beyond: bool
    changed: int
    changes: tuple[Change, ...] = ()
    output: str = ""
    abs_diff: float | None = None
    reference: Json = None
    candidate: Json = None
    severity_in_search: float = 0.0
    beyond_in_search: bool = False
    abs_diff_in_search: float | None = None


@dataclass(frozen=True, slots=True)
class MoveFacts:
    """What one kind of move cost and brought: `gains` counts the turns that made the worst difference larger."""

    name: str
    turns: int = 0
    rows: int = 0
    gains: int = 0
    best: float = 0.0


@dataclass(frozen=True, slots=True)
class Refusals:
    """Rows that were tried and not answered. One that only one model refuses is a difference, told apart."""

    both: int = 0
    reference_only: int = 0
    candidate_only: int = 0
    not_told: int = 0
    examples: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class StressResult:
    """What a search for the worst input found.

    `max_abs_diff` and `measures` are those of the rows in `file`, by output, as `check` measures them.
    `rows` begin with the worst as the search met it, which is never less bad than the worst real row, and is that
    row itself where no change made it worse by a tenth.
    `data_worst` and `found_worst` are severities: of the real rows, and of the worst input before it was
    brought down to the fewest changes; `data_abs_diff` is the absolute difference of that worst real row, and
    `data_max_abs_diff` the largest of any real row, each where it counts most against its tolerance. `calls` and
    `evaluated` count what each model was asked. `again` is the command that measures the file.
    """

    outcome: Outcome
    headline: str
    reference: str
    candidate: str
    data: str
    abs_tol: float
    rel_tol: float
    rows: tuple[StressedRow, ...] = ()
    measures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    max_abs_diff: float | None = None
    file: str | None = None
    again: str | None = None
    data_rows: int = 0
    data_beyond: int = 0
    data_worst: float = 0.0
    data_abs_diff: float | None = None
    data_max_abs_diff: float | None = None
    found_worst: float = 0.0
    calls: Mapping[str, int] = field(default_factory=dict)
    evaluated: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    seconds_in_models: float = 0.0
    moves: tuple[MoveFacts, ...] = ()
    refusals: Refusals = Refusals()
    settings: Mapping[str, Json] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.outcome is Outcome.PASS


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A package in two versions; None where one side does not have it."""

    name: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        return f"{self.name} {self.old or 'not there'} → {self.new or 'not there'}"


@dataclass(frozen=True, slots=True)
class Trial:
    """The model with some packages upgraded, against the model with none: FAIL where the answers differ."""

    upgraded: tuple[str, ...]
    outcome: Outcome
    told: str


@dataclass(frozen=True, slots=True)
class BisectResult:
    """Which upgrades change the answers. `outcome` is that of all of them together.

    `rest_alike`: with all others upgraded and these not, the answers are as before; None where that cannot be told.
    """

    model: str
    outcome: Outcome
    changed: tuple[Upgrade, ...]
    culprits: tuple[Upgrade, ...] = ()
    rest_alike: bool | None = None
    trials: tuple[Trial, ...] = ()
