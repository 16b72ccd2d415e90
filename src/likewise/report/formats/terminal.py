"""A summary that a person understands in five seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from likewise.contracts.report import Report
from likewise.contracts.verdict import Outcome, Severity
from likewise.contracts.words import figure
from likewise.report.console import drawn, plain_table
from likewise.report.words import (
    COLOURS,
    MARKS,
    answer_text,
    baseline_told,
    batches_told,
    beside_the_limits,
    cut,
    end_of,
    gates_told,
    generated_told,
    most_telling,
    remedy_of,
    sentence,
    share_told,
    sign,
    strata_told,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


SEVERITIES = {
    Severity.FAILURE: ("✗", "red"),
    Severity.INCONCLUSIVE: ("?", "yellow"),
    Severity.WARNING: ("!", "yellow"),
    Severity.NOTE: ("·", "dim"),
}
ROWS_SHOWN = 3
CHECKS_SHOWN = 12
DIAGNOSES_SHOWN = 2
NAME = 48
"""Characters of a model's name."""

SUITES = {"shape": "Shapes", "edge": "Edge suites"}
"""Kinds of suites that have a block of their own."""


class TerminalRenderer:
    """The report for a terminal; every name from a model or the data is text, never markup."""

    format = "terminal"

    def render(self, report: Report, **options: Any) -> str:
        """`width` and `colour` describe the terminal; `quiet` asks for the verdict alone, `full` for everything.

        `saved` is the file the report is in.
        """
        quiet, full = bool(options.get("quiet")), bool(options.get("full"))
        parts = _parts(report, quiet=quiet, full=full, saved=options.get("saved"))
        return drawn(parts, width=options.get("width", 80), colour=bool(options.get("colour")))


def _parts(report: Report, *, quiet: bool, full: bool, saved: str | None) -> Iterator[RenderableType]:
    from rich.text import Text

    origin = report.origin
    yield Text.assemble(
        (f" {report.outcome} ", f"bold reverse {COLOURS[report.outcome]}"),
        "  ",
        (end_of(origin.reference.name, NAME), "bold"),
        " → ",
        (end_of(origin.candidate.name, NAME), "bold"),
    )
    yield Text(sentence(report.verdict.headline))
    # What is not told by limits says at once what to do; where there is a cause, its own remedy stands below.
    short = quiet and report.outcome is Outcome.INCONCLUSIVE
    if (remedy := remedy_of(report)) and (short or not (quiet or report.diagnoses)):
        yield Text(f"→ {sentence(remedy)}", style="italic")
    if quiet:
        return
    yield from _why(report, full=full)
    if report.verdict.checks:
        yield ""
        yield _checks(report)
        yield ""
        yield from _differences(report)
    yield from _settings(report)
    yield from _worst(report)
    yield from _suites(report)
    yield from _findings(report)
    yield ""
    yield from _reach(report)
    if saved:
        yield Text(f"Report: {saved}", style="dim")


def _why(report: Report, *, full: bool) -> Iterator[RenderableType]:
    """The answer in one sentence, then the evidence, then the remedy; at length if asked for."""
    from rich.padding import Padding
    from rich.text import Text

    found = report.explanation
    if found is None or report.passed:
        return
    yield ""
    for place, diagnosis in enumerate(report.diagnoses[: None if full else DIAGNOSES_SHOWN]):
        heading = "Why: " if place == 0 else "Also: "
        named = (f"{diagnosis.cause}, {diagnosis.culprit}", "bold" if place == 0 else "")
        yield Text.assemble((heading, "bold"), named, (f" ({share_told(diagnosis, found)})", "dim"))
        yield Padding(Text(sentence(diagnosis.evidence)), (0, 0, 0, 5))
        if diagnosis.remedy:
            yield Padding(Text(f"→ {sentence(diagnosis.remedy)}", style="italic"), (0, 0, 0, 5))
    if not report.diagnoses:
        yield Text.assemble(("Why: ", "bold"), "none of the experiments explains it.")
    for entry in found.slices[: None if full else 1]:
        yield Text(f"Where: {entry.predicate}", style="dim")
    if not full and report.diagnoses:
        return
    yield from (Text(f"Shape: {sentence(text)}", style="dim") for text in found.shape)
    if full:
        for value in found.unusual:
            yield Text(f"Row {value.row}: {value.column} = {answer_text(value.value)}: {value.why}", style="dim")
    if found.excluded:
        yield Text(f"Excluded by experiment: {', '.join(found.excluded)}.", style="dim")
    yield from (Text(f"Not tested: {sentence(text)}", style="dim") for text in found.not_tested)


def _checks(report: Report) -> RenderableType:
    from rich.text import Text

    table = plain_table("output", "measure", "#value", "", "limit", "")
    for check in most_telling(report.verdict.checks, CHECKS_SHOWN):
        style = COLOURS[check.outcome]
        where = f" @ batch {check.batch_size}" if check.batch_size is not None else ""
        table.add_row(
            Text(check.output),
            Text(check.measure + where),
            Text(figure(check.value), style=style),
            sign(check),
            figure(check.bound),
            Text(MARKS[check.outcome], style=style),
        )
    return table


def _differences(report: Report) -> Iterator[RenderableType]:
    """The size of the differences in plain words, beside the limits they are judged by."""
    from rich.text import Text

    tolerance = report.policy.tolerance
    allowed = f"{tolerance.absolute:g}" + (f" + {tolerance.relative:g}·|reference|" if tolerance.relative else "")
    for output in report.comparison.outputs:
        found = output.measures
        if "max_abs_diff" in found:
            largest, mean = figure(found["max_abs_diff"]), figure(found["mean_abs_diff"])
            text = f"{output.name}: largest difference {largest}, mean {mean}"
            yield Text(f"{text}; allowed {allowed}", style="dim")
        elif "label_flips" in found:
            flips = f"{figure(found['label_flips'])} of {report.samples:,} labels changed"
            yield Text(f"{output.name}: {flips}, {figure(found['material_flips'])} by more than noise", style="dim")


def _settings(report: Report) -> Iterator[RenderableType]:
    """The candidate under other settings, one line each: rows, the worst difference of every output, the verdict."""
    from rich.text import Text

    suites = zip(report.comparison.suites, report.verdict.suites, strict=True)
    tried = [(facts, told) for facts, told in suites if told.kind == "setting"]
    if not tried:
        return
    names = list(dict.fromkeys(output.name for facts, _ in tried for output in facts.comparison.outputs))
    table = plain_table("setting", "#rows", *(f"#{name}" for name in names), "")
    for facts, told in tried:
        measured = {output.name: output.measures for output in facts.comparison.outputs}
        worst = [measured.get(name, {}) for name in names]
        cells = [figure(found["max_abs_diff"]) if "max_abs_diff" in found else _flips(found) for found in worst]
        mark = "" if facts.not_covered else MARKS[told.outcome]
        shown = "not covered" if facts.not_covered else f"{told.rows:,}"
        table.add_row(Text(told.name), shown, *cells, Text(mark, style=COLOURS[told.outcome]))
    yield ""
    yield table


def _flips(measures: Mapping[str, float]) -> str:
    return f"{figure(measures['label_flips'])} flips" if "label_flips" in measures else "–"


def _worst(report: Report) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    if report.passed:
        return
    for output in report.comparison.outputs:
        if not output.worst_rows:
            continue
        yield ""
        yield Text(f"Worst {report.comparison.unit} of {output.name}, the furthest beyond tolerance first", style="dim")
        for row in output.worst_rows[:ROWS_SHOWN]:
            difference = row.get("abs_diff")
            apart = f", {figure(difference)} apart" if difference is not None else ""
            changed = f": {answer_text(row['reference'])} became {answer_text(row['candidate'])}{apart}"
            yield Padding(
                Text.assemble(
                    (f"{report.comparison.unit.removesuffix('s')} ", "dim"), (str(row["row"]), "bold"), changed
                ),
                (0, 0, 0, 2),
            )
            yield Padding(Text(_inputs(row["inputs"]), style="dim"), (0, 0, 0, 4))


def _suites(report: Report) -> Iterator[RenderableType]:
    """Rows made to find trouble: how many suites agree, and a line for each that does not."""
    from rich.padding import Padding
    from rich.text import Text

    for kind, heading in SUITES.items():
        suites = [suite for suite in report.verdict.suites if suite.kind == kind]
        if not suites:
            continue
        counts = {outcome: sum(suite.outcome is outcome for suite in suites) for outcome in Outcome}
        told = {Outcome.PASS: "agree", Outcome.FAIL: "differ", Outcome.INCONCLUSIVE: "not covered"}
        shown = ", ".join(f"{counts[outcome]} {word}" for outcome, word in told.items() if counts[outcome])
        others = [suite for suite in suites if suite.outcome is not Outcome.PASS]
        free = " (not blocking)" if others and not any(suite.blocks for suite in others) else ""
        yield ""
        yield Text.assemble((f"{heading}: ", "bold"), shown, (free, "dim"))
        for suite in others:
            mark = (f"{MARKS[suite.outcome]} ", COLOURS[suite.outcome] if suite.blocks else "yellow")
            yield Padding(Text.assemble(mark, f"{suite.name}: {sentence(suite.headline)}"), (0, 0, 0, 2))


def _findings(report: Report) -> Iterator[RenderableType]:
    from rich.text import Text

    shown = [
        finding
        for finding in beside_the_limits(report.verdict)
        if finding.code not in {f"{kind}-suite" for kind in SUITES}
    ]
    if shown:
        yield ""
    for finding in shown:
        body = Text.assemble(sentence(finding.message), " ", (sentence(finding.remedy), "italic"))
        mark, style = SEVERITIES[finding.severity]
        yield Text.assemble((f"{mark} ", style), body)


def _reach(report: Report) -> Iterator[RenderableType]:
    from rich.text import Text

    origin, facts = report.origin, report.comparison
    swept = batches_told(facts)
    yield Text(
        f"{facts.rows:,} {facts.unit} of {end_of(origin.data.name, NAME)} ({origin.data.kind}){swept}", style="dim"
    )
    if report.verdict.confidence is not None:
        yield Text(sentence(report.verdict.confidence.statement), style="dim")
    made = generated_told(facts.generated, CHECKS_SHOWN)
    for line in (*baseline_told(origin.settings), *made, *strata_told(facts.strata)):
        yield Text(sentence(line), style="dim")


def _inputs(inputs: Mapping[str, Any]) -> str:
    shown = [f"{name}={answer_text(value)}" for name, value in list(inputs.items())[:8]]
    return ", ".join(shown) + (f" and {len(inputs) - 8} more" if len(inputs) > 8 else "")


def summary(
    gates: Iterable[tuple[str, Outcome, str]], *, width: int, colour: bool, saved: str = "", whole: bool = False
) -> str:
    """Many gates in one table, a line each unless `whole`: name, outcome, what it says; then what they come to."""
    from rich.text import Text

    found = list(gates)
    table = plain_table("gate", "", "verdict", "")
    # A name, a mark, an outcome and two blanks between them come before what is told.
    names, outcomes = ("gate", *(name for name, _, _ in found)), ("verdict", *(outcome for _, outcome, _ in found))
    room = width - max(map(len, names)) - max(map(len, outcomes)) - 7
    for name, outcome, headline in found:
        marked = Text(MARKS[outcome], COLOURS[outcome]), Text(str(outcome), COLOURS[outcome])
        shown = sentence(headline) if whole else cut(sentence(headline), max(room, 20))
        table.add_row(Text(name, "bold"), *marked, Text(shown))
    told = gates_told({name: outcome for name, outcome, _ in found})
    where = [Text(f"Report: {saved}", "dim")] if saved else []
    return drawn([table, "", Text(sentence(told), "bold"), *where], width=width, colour=colour)


EXTENSION = TerminalRenderer()
