"""The worst inputs a search found, and how it found them.

Why a row is told as a real row and a few changes: a person can judge whether that input can occur,
which nobody can of sixty numbers. Why the figures are those of the rows that are written: the file
is given to `check`, and both must say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from likewise.contracts.judging import Outcome
from likewise.contracts.measuring import Json


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
