"""The worst inputs a search found, and how it found them.

Why a row is told as a real row and a few changes: a person can judge whether that input can occur,
which nobody can of sixty numbers. Why the figures are those of the rows that are written: the file
is given to `check`, and both must say the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.contracts.comparison import Json
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Outcome
from likewise.contracts.words import figure
from likewise.report.console import drawn, plain_table, printable
from likewise.report.words import cut, sentence

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


LISTED = 12
"""Changes of the worst row that are shown."""

COLOURS = {Outcome.PASS: "black on green", Outcome.FAIL: "white on red", Outcome.INCONCLUSIVE: "black on yellow"}


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


def table(result: StressResult, *, width: int = 80, colour: bool = False) -> str:
    """The worst input and how it was found; names are text, never markup."""
    text = drawn(_parts(result), width=width, colour=colour)
    # A command that is to be copied is one line, however long.
    return text if result.again is None else f"{text}  {printable(result.again)}\n"


def _parts(result: StressResult) -> Iterator[RenderableType]:
    from rich.text import Text

    names = f"{_short(result.reference)} → {_short(result.candidate)}"
    yield Text.assemble((f" {result.outcome} ", COLOURS[result.outcome]), "  ", (names, "bold"))
    yield Text(sentence(result.headline))
    if result.data_rows:
        yield ""
        yield _figures(result)
    if result.rows:
        yield ""
        yield from _worst(result.rows[0])
    if result.moves:
        yield ""
        yield Text(_effort(result))
    for kind, count in (("reference", result.refusals.reference_only), ("candidate", result.refusals.candidate_only)):
        if count:
            yield Text(f"{count:,} of the rows tried are refused by the {kind} and answered by the other model.")
    if result.refusals.both:
        yield Text(f"{result.refusals.both:,} of the rows tried are refused by both models.")
    for note in result.notes:
        yield Text(f"· {sentence(note)}", style="dim")
    if result.file is not None:
        rows = f"The {len(result.rows)} worst rows are" if len(result.rows) > 1 else "The row is"
        yield ""
        largest = "" if result.max_abs_diff is None else f" (max_abs_diff {figure(result.max_abs_diff)})"
        yield Text(f"{rows} in {result.file}{largest}; to measure it again:")


def _figures(result: StressResult) -> Table:
    table = plain_table("", "#abs diff", "#× tolerance")
    real = f"worst of {result.data_rows:,} real rows"
    table.add_row(real, _apart(result.data_abs_diff), _severity(result.data_worst))
    if result.rows:
        worst = result.rows[0]
        table.add_row("worst input found", _apart(worst.abs_diff_in_search), _severity(worst.severity_in_search))
        table.add_row("factor", "", _factor(worst.severity_in_search, result.data_worst))
        if _differs_in_file(worst):
            table.add_row("the same in the file", _apart(worst.abs_diff), _severity(worst.severity))
    return table


def _worst(row: StressedRow) -> Iterator[RenderableType]:
    from rich.text import Text

    if not row.changed:
        yield Text(f"The worst input is row {row.base} as it is: no change made it much worse.")
    else:
        what = "one value" if row.changed == 1 else f"{row.changed:,} values"
        yield Text(f"The worst input is row {row.base} with {what} changed:")
        table = plain_table("column", "real row", "", "worst input")
        for change in row.changes[:LISTED]:
            table.add_row(change.column, _cell(change.before), "→", _cell(change.after))
        yield table
        if row.changed > LISTED:
            yield Text(f"… and {row.changed - LISTED:,} more")
    if row.output:
        where = " in the file" if _differs_in_file(row) else ""
        yield Text(f"{row.output}{where}: {_cell(row.reference)} became {_cell(row.candidate)}")


def _effort(result: StressResult) -> str:
    rows, calls = result.evaluated.get("candidate", 0), result.calls.get("candidate", 0)
    paid = sorted((move for move in result.moves if move.gains), key=lambda move: (-move.best, move.name))
    told = ", ".join(f"{move.name} ({move.gains})" for move in paid) or "none"
    share = result.seconds_in_models / result.seconds if result.seconds else 0.0
    return (
        f"{rows:,} rows in {calls:,} calls of each model, {result.seconds:.1f} s, {share:.0%} of it in the models. "
        f"Moves that made it worse: {told}."
    )


def _differs_in_file(row: StressedRow) -> bool:
    return figure(row.severity) != figure(row.severity_in_search)


def _apart(value: float | None) -> str:
    return "" if value is None else figure(value)


def _severity(value: float) -> str:
    return figure(value) if math.isfinite(value) else "not finite on one side"


def _factor(found: float, before: float) -> str:
    if not math.isfinite(found) or before <= 0:
        return "∞" if found > before else "1×"
    return f"{figure(found / before)}×"


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "missing"
    if isinstance(value, float):
        return repr(value)
    text = "[" + ", ".join(figure(entry) for entry in value) + "]" if _numbers(value) else str(value)
    return cut(text, 60)


def _numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(entry, int | float) for entry in value)


def _short(name: str) -> str:
    return Path(name).name if "/" in name else name
