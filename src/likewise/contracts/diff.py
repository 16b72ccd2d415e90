"""What changed between two runs of a gate, and whether that is for the worse."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from likewise.contracts.comparison import Json
from likewise.contracts.verdict import Outcome


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
