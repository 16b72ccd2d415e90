"""Two runs side by side: for a terminal and for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from likewise.contracts.verdict import Diff, Direction, Outcome, Told, change_text, value_text
from likewise.report.console import drawn, plain_table
from likewise.report.words import COLOURS, cut, sentence, worst

if TYPE_CHECKING:
    from rich.console import RenderableType


TITLES = {Outcome.PASS: "NOT WORSE", Outcome.FAIL: "WORSE", Outcome.INCONCLUSIVE: "INCONCLUSIVE"}
SIGNS = {Direction.WORSE: "✗", Direction.BETTER: "✓", Direction.UNKNOWN: "?", Direction.OTHER: "·", Direction.SAME: "·"}
STYLES = {Direction.WORSE: "red", Direction.BETTER: "green", Direction.UNKNOWN: "yellow"}
SHOWN = 18
"""Lines, of measures and of what else changed; the rest is counted, and is in the JSON."""

MEASURES_SHOWN = 11
"""Of these, measures where there is more to tell than that."""

LONGEST = 280
"""Characters of one line; suites can be wordy."""

FACTS = ("max_abs_diff", "mean_abs_diff", "label_flips")
"""Shown also where they stay as they were."""


def terminal(diff: Diff, *, width: int, colour: bool, quiet: bool = False) -> str:
    """The differences for a person, `quiet` in a sentence alone; every name is text, never markup."""
    return drawn(islice(_parts(diff), 2 if quiet else None), width=width, colour=colour)


def markdown(diff: Diff) -> str:
    """The differences for a pull request or a job summary."""
    from likewise.report.formats.markdown import MARKS, text

    lines = [f"## {MARKS[diff.outcome]} {TITLES[diff.outcome]}: {text(diff.old)} → {text(diff.new)}", ""]
    lines.append(f"{text(sentence(diff.headline), limit=400)} {text(sentence(diff.remedy))}".rstrip())
    table, others, hidden = _shown(diff)
    if table:
        lines += ["", "| | measure | old | new | change |", "|---|---|---:|---:|---|"]
    lines += [f"| {_sign(line)} | {' | '.join(text(cell) for cell in _cells(line))} |" for line in table]
    items = [f"- {_sign(line)} {text(sentence(line.message), limit=LONGEST)}" for line in others]
    items += [f"- ? {text(sentence(doubt), limit=400)}" for doubt in diff.doubts[1:]]
    items += [f"- {text(_rest(hidden))}"] if hidden else []
    return "\n".join([*lines, *([""] if items else []), *items, "", text(_count(diff))]) + "\n"


def as_json(diffs: Mapping[str, Diff]) -> str:
    """The differences for a machine, every measure included; those of many gates under their names."""
    from likewise.report.formats.json import dumps

    found = {gate: _plain(diff) for gate, diff in diffs.items()}
    if list(found) == [""]:
        return dumps(found[""])
    return dumps({"outcome": worst(diff.outcome for diff in diffs.values()), "gates": found})


def _plain(diff: Diff) -> dict[str, Any]:
    told = {name: value for name, value in asdict(diff).items() if name != "told"}
    for change in told["changes"]:
        del change["summary"]
    return told


def _parts(diff: Diff) -> Iterator[RenderableType]:
    from rich.text import Text

    title = (f" {TITLES[diff.outcome]} ", f"bold reverse {COLOURS[diff.outcome]}")
    yield Text.assemble(title, "  ", (diff.old, "bold"), " → ", (diff.new, "bold"))
    yield Text.assemble(sentence(diff.headline), (" " if diff.remedy else ""), (sentence(diff.remedy), "italic"))
    for doubt in diff.doubts[1:]:
        yield Text.assemble(("? ", "yellow"), sentence(doubt))
    measures, others, hidden = _shown(diff)
    if measures:
        yield ""
        table = plain_table("measure", "#old", "#new", "change", "")
        for line in measures:
            style = STYLES.get(line.change.direction, "")
            table.add_row(*map(Text, _cells(line)), Text(_sign(line), style=style))
        yield table
    if others or hidden:
        yield ""
    for line in others:
        sign = (f"{_sign(line)} ", STYLES.get(line.change.direction, "dim"))
        yield Text.assemble(sign, cut(sentence(line.message), LONGEST))
    if hidden:
        yield Text(_rest(hidden), style="dim")
    yield ""
    yield Text(_count(diff), style="dim")


def _shown(diff: Diff) -> tuple[list[Told], list[Told], int]:
    """Measures, what else changed, and how many lines there is no room for."""
    measures, others = _measures(diff), _others(diff)
    table = measures[: max(MEASURES_SHOWN, SHOWN - len(others))]
    rest = others[: SHOWN - len(table)]
    return table, rest, len(measures) + len(others) - len(table) - len(rest)


def _measures(diff: Diff) -> list[Told]:
    """What got worse, what cannot be told, what got better, then the plain sizes of the differences."""
    order = (Direction.WORSE, Direction.UNKNOWN, Direction.BETTER)
    moved = [line for line in diff.lines(*order) if line.change.subject == "measure"]
    rest = [c for c in diff.of(Direction.SAME, Direction.OTHER) if c.subject == "measure" and c.batch_size is None]
    return [*moved, *(Told(c, c.message) for c in rest if c.name.rpartition(".")[2] in FACTS)]


def _others(diff: Diff) -> list[Told]:
    order = (Direction.WORSE, Direction.UNKNOWN, Direction.BETTER, Direction.OTHER)
    return [line for line in diff.lines(*order) if line.change.subject != "measure"]


def _sign(line: Told) -> str:
    return SIGNS[line.change.direction]


def _cells(line: Told) -> tuple[str, str, str, str]:
    change = line.change
    old, new = ("–" if value is None else value_text(change.name, float(value)) for value in (change.old, change.new))
    if change.direction is Direction.SAME:
        moved = "as before" if old == new else "about as before"
    elif change.new is None:
        moved = "gone"
    elif change.direction is Direction.UNKNOWN:
        moved = "other tolerance"
    else:
        moved = change_text(change) or str(change.direction)
    return f"{change.name} {line.where}".rstrip(), old, new, moved


def _rest(hidden: int) -> str:
    return f"… and {hidden} more (--json has all)"


def _count(diff: Diff) -> str:
    counts = {direction: len(diff.of(direction)) for direction in Direction}
    unknown = f", {counts[Direction.UNKNOWN]} cannot be told" if counts[Direction.UNKNOWN] else ""
    found = f"{counts[Direction.WORSE]} worse, {counts[Direction.BETTER]} better, {counts[Direction.SAME]} as before"
    worse = f"Worse means by more than {diff.allow:g}% and by more than noise."
    return f"At all batch sizes together: {found}{unknown}. {worse}"
