"""What a page is made of: tables of cells. A cell is text; only the template writes markup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Outcome, figure
from likewise.report.words import MARKS

LONGEST = 160
"""Characters of a value that a cell shows; the whole of it, up to `LONGEST_TITLE`, is in its title."""

LONGEST_TITLE = 600
LONGEST_WORD = 34
DIGITS = 9
SHORT_DIGITS = 6
TONES = {Outcome.PASS: "good", Outcome.FAIL: "bad", Outcome.INCONCLUSIVE: "unsure"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One value: what is shown, what sorting goes by, a mark in front of it, and why it has one.

    `tone` names how it looks; it never says what the mark or the text does not. `link` is a file beside the page.
    """

    text: str
    order: float | str | None = None
    tone: str = ""
    mark: str = ""
    why: str = ""
    title: str = ""
    link: str = ""

    @property
    def long(self) -> bool:
        """Whether it holds a word that must be broken to fit."""
        return any(len(word) > LONGEST_WORD for word in self.text.split())


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; `numeric` columns are set to the right."""

    name: str
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose first cell of every row names the row; on a phone one that `stacks` is a card for each row."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sortable: bool
    note: str
    id: str
    stacks: bool


def table(
    caption: str,
    headings: Iterable[str | Column],
    lines: Iterable[Iterable[Cell]],
    *,
    most: int | None = None,
    note: str = "",
    sortable: bool = False,
    id: str = "",
    stacks: bool = False,
) -> Table | None:
    """A table, if it has rows; of more than `most` it tells how many there are. A # begins a heading of numbers."""
    rows = [tuple(line) for line in lines]
    if not rows:
        return None
    columns = (
        Column(name.removeprefix("#"), name.startswith("#")) if isinstance(name, str) else name for name in headings
    )
    kept = rows[:most]
    note = note or left_out(len(rows) - len(kept))
    return Table(caption, tuple(columns), tuple(kept), sortable and len(rows) > 1, note, id, stacks)


def outcome_cell(outcome: Outcome, text: str | None = None) -> Cell:
    """A verdict, or a figure with the mark of its verdict."""
    return Cell(str(outcome) if text is None else text, str(outcome), TONES[outcome], MARKS[outcome], str(outcome))


def words(value: object) -> Cell:
    """Any value as text, cut where it is long."""
    text = shown(value)
    if len(text) <= LONGEST:
        return Cell(text, text.casefold(), title=_exactly(value))
    return Cell(text[: LONGEST - 1] + "…", text[:LONGEST].casefold(), title=text[:LONGEST_TITLE])


def count(value: float | str | None) -> Cell:
    """A figure as a person reads it."""
    return Cell(figure(value), number(value))


def value_cell(value: object, *, digits: int = DIGITS) -> Cell:
    """A value of a model or of the data: a number is sorted as one, and its title has the digits that are left out."""
    if isinstance(value, float) and math.isfinite(value):
        text = f"{value:.{digits}g}"
        return Cell(text, value, title="" if float(text) == value else repr(value))
    parsed = number(value) if isinstance(value, float | int) and not isinstance(value, bool) else None
    cell = words(value)
    return cell if parsed is None else Cell(cell.text, parsed, title=cell.title)


def telling_digits(one: object, other: object) -> int:
    """Digits that show two answers apart: few, unless the answers agree in all of these."""
    if not (isinstance(one, float) and isinstance(other, float)) or one == other:
        return SHORT_DIGITS
    told = (digits for digits in range(SHORT_DIGITS, 17) if f"{one:.{digits}g}" != f"{other:.{digits}g}")
    return next(told, 17)


def shown(value: object) -> str:
    """A value of a model or of the data on one line."""
    if value is None:
        return "missing"
    if isinstance(value, float):
        # As a stored report spells it, so that a page says the same from either.
        return f"{value:.{DIGITS}g}".replace("inf", "Infinity").replace("nan", "NaN")
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {shown(entry)}" for key, entry in value.items()) or "none"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value[:16])) + (", …]" if len(value) > 16 else "]")
    return " ".join(str(value).split()) or "empty text"


def number(value: Any) -> float | None:
    """A figure as a float, also where a stored report holds it as text; None where there is none."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(found) else found


def share(part: float) -> str:
    """A share in per cent, never rounded to nothing or to everything."""
    text = f"{100 * part:.3g}%"
    return "> 99.9%" if text == "100%" and part < 1 else text


def left_out(count: int, what: str = "") -> str:
    """A note on what a table has no room for; nothing where it has all."""
    return f"{count:,} more{what} are in the JSON report." if count > 0 else ""


def beyond(amount: int) -> Cell:
    """How many values or rows are beyond tolerance."""
    return Cell(figure(amount), amount, "bad", "✗", "beyond tolerance") if amount else count(0)


def element(row: Mapping[str, Any]) -> str:
    """Which element of the answer a worst row is listed for: its class where it has one, or its place."""
    if row.get("label") is not None:
        return str(row["label"])
    return "[" + ", ".join(map(str, row["index"])) + "]" if row["index"] else ""


def at_worst(row: Mapping[str, Any], side: str) -> Any:
    """The answer of one side at the element that differs most; the whole answer where that cannot be told."""
    answer = row[side]
    if isinstance(answer, Mapping):
        return answer.get("worst", answer.get("head"))
    for place in row["index"]:
        if not isinstance(answer, list) or place >= len(answer):
            return row[side]
        answer = answer[place]
    return answer


def _exactly(value: object) -> str:
    return repr(value) if isinstance(value, float) and f"{value:.{DIGITS}g}" != repr(value) else ""
