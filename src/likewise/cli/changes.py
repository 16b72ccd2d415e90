"""Two runs side by side: for a terminal and for a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from likewise.consoles import drawn
from likewise.contracts.diffing import Change, Diff, Direction
from likewise.contracts.judging import Outcome
from likewise.diffing.measures import percent_text, value_text
from likewise.showing import sentence

if TYPE_CHECKING:
    from rich.console import RenderableType

TITLES = {Outcome.PASS: "NOT WORSE", Outcome.FAIL: "WORSE", Outcome.INCONCLUSIVE: "INCONCLUSIVE"}
COLOURS = {Outcome.PASS: "green", Outcome.FAIL: "red", Outcome.INCONCLUSIVE: "yellow"}
MARKS = {Outcome.PASS: "✅", Outcome.FAIL: "❌", Outcome.INCONCLUSIVE: "⚠️"}
SIGNS = {Direction.WORSE: "✗", Direction.BETTER: "✓", Direction.UNKNOWN: "?", Direction.OTHER: "·", Direction.SAME: "·"}
STYLES = {Direction.WORSE: "red", Direction.BETTER: "green", Direction.UNKNOWN: "yellow"}
SHOWN = 20
"""Measures in a table; the rest is counted, and is in the JSON."""

FACTS = ("max_abs_diff", "mean_abs_diff", "label_flips")
"""Shown also where they stay as they were."""


def terminal(diff: Diff, *, width: int, colour: bool) -> str:
    """The differences for a person; every name is text, never markup."""
    return drawn(_parts(diff), width=width, colour=colour)


def markdown(diff: Diff) -> str:
    """The differences for a pull request or a job summary."""
    from likewise.reports.markdown import text

    lines = [f"## {MARKS[diff.outcome]} {TITLES[diff.outcome]}: {text(diff.old)} → {text(diff.new)}", ""]
    lines.append(f"{text(sentence(diff.headline), limit=400)} {text(sentence(diff.remedy))}".rstrip())
    table = _measures(diff)
    if table:
        lines += ["", "| | measure | old | new | change |", "|---|---|---:|---:|---|"]
    lines += [f"| {SIGNS[c.direction]} | {' | '.join(text(cell) for cell in _cells(c))} |" for c in table]
    told = [f"- {SIGNS[c.direction]} {text(sentence(c.message), limit=400)}" for c in _others(diff)]
    told += [f"- ? {text(sentence(doubt), limit=400)}" for doubt in diff.doubts[1:]]
    return "\n".join([*lines, *([""] if told else []), *told, "", text(_count(diff))]) + "\n"


def as_json(diff: Diff) -> str:
    """The differences for a machine, every measure included."""
    import json
    from dataclasses import asdict

    from likewise.reports.json import strict

    return json.dumps(strict(asdict(diff)), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _parts(diff: Diff) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    title = (f" {TITLES[diff.outcome]} ", f"bold reverse {COLOURS[diff.outcome]}")
    yield Text.assemble(title, "  ", (diff.old, "bold"), " → ", (diff.new, "bold"))
    yield Text.assemble(sentence(diff.headline), (" " if diff.remedy else ""), (sentence(diff.remedy), "italic"))
    for doubt in diff.doubts[1:]:
        yield Text.assemble(("? ", "yellow"), sentence(doubt))
    measures = _measures(diff)
    if measures:
        yield ""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for heading in ("measure", "old", "new", "change"):
            table.add_column(heading, justify="right" if heading in ("old", "new") else "left", overflow="fold")
        table.add_column("")
        for change in measures:
            style = STYLES.get(change.direction, "")
            table.add_row(*map(Text, _cells(change)), Text(SIGNS[change.direction], style=style))
        yield table
    others = _others(diff)
    if others:
        yield ""
    for change in others:
        sign = (f"{SIGNS[change.direction]} ", STYLES.get(change.direction, "dim"))
        yield Text.assemble(sign, sentence(change.message))
    yield ""
    yield Text(_count(diff), style="dim")


def _measures(diff: Diff) -> list[Change]:
    """What got worse, what cannot be told, what got better, then the plain sizes of the differences."""
    order = (Direction.WORSE, Direction.UNKNOWN, Direction.BETTER)
    shown = [change for direction in order for change in diff.told(direction) if change.subject == "measure"]
    rest = [change for change in diff.told(Direction.SAME, Direction.OTHER) if change.subject == "measure"]
    plain = [change for change in rest if change.batch_size is None and change.name.rpartition(".")[2] in FACTS]
    return [*shown, *plain][:SHOWN]


def _others(diff: Diff) -> list[Change]:
    told = [c for c in diff.changes if c.subject != "measure" and c.direction is not Direction.SAME]
    order = (Direction.WORSE, Direction.UNKNOWN, Direction.BETTER, Direction.OTHER)
    return sorted(told, key=lambda change: order.index(change.direction))


def _cells(change: Change) -> tuple[str, str, str, str]:
    where = "" if change.batch_size is None else f" @ batch {change.batch_size}"
    old, new = ("–" if value is None else value_text(change.name, float(value)) for value in (change.old, change.new))
    if change.direction is Direction.SAME:
        moved = "as before"
    elif change.new is None:
        moved = "gone"
    elif change.direction is Direction.UNKNOWN:
        moved = "other tolerance"
    else:
        moved = percent_text(change.percent) if change.percent is not None else str(change.direction)
    return change.name + where, old, new, moved


def _count(diff: Diff) -> str:
    counts = {direction: len(diff.of(direction)) for direction in Direction}
    unknown = f", {counts[Direction.UNKNOWN]} cannot be told" if counts[Direction.UNKNOWN] else ""
    found = f"{counts[Direction.WORSE]} worse, {counts[Direction.BETTER]} better, {counts[Direction.SAME]} as before"
    return f"{found}{unknown}; worse is more than {diff.allow:g}%."
