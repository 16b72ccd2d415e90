"""A summary that a person understands in five seconds: a PASS in 12 lines of 80 columns, anything else in 40.

What does not fit is counted, and the last line says where it is.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from likewise.contracts.comparison import OutputFacts
from likewise.contracts.report import Report
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Check, Finding, Outcome, Severity, SuiteVerdict, figure
from likewise.report.console import Line, Part, drawn, plain_table
from likewise.report.words import (
    COLOURS,
    MARKS,
    NAME,
    answer_text,
    batches_told,
    beside_the_limits,
    cut,
    end_of,
    gates_told,
    generated_told,
    joined,
    most_telling,
    origin_told,
    places_of_causes,
    remedy_of,
    remedy_told,
    repair_told,
    rows_told,
    says_more,
    sentence,
    share_told,
    sign,
    strata_told,
    told_by_cause,
    tried_told,
    unexplained_told,
    worst_beyond,
)

SEVERITIES = {
    Severity.FAILURE: ("✗", "red"),
    Severity.INCONCLUSIVE: ("?", "yellow"),
    Severity.WARNING: ("!", "yellow"),
    Severity.NOTE: ("·", "dim"),
}
LINES = {Outcome.PASS: 12, Outcome.FAIL: 40, Outcome.INCONCLUSIVE: 40}
"""Lines of a screen that does not show everything."""

NEVER = 99
"""The rank of what a short screen only counts."""

ROWS_SHOWN = 3
CHECKS_SHOWN, LIMITS_SHOWN = 12, 5
"""Limits in the full table, and failed ones in the short one."""

SUITES = {"shape": ("Other lengths", "length"), "edge": ("Edge cases", "suite")}
"""Kinds of suites that have a block of their own, and what one of them is."""


@dataclass(slots=True)
class _Block:
    """Lines that belong together. Of several blocks those of the lowest `rank` get room first.

    `head` stands above its parts, and only with one of them; `gap`: an empty line goes before it.
    """

    rank: int
    parts: list[Part] = field(default_factory=list)
    head: Part | None = None
    gap: bool = False


class TerminalRenderer:
    """The report for a terminal; every name from a model or the data is text, never markup."""

    format = "terminal"

    def render(self, report: Report, **options: Any) -> str:
        """`width` and `colour` describe the terminal; `quiet` asks for the verdict alone, `full` for everything.

        `saved` is the file the report is in, `written` names the other files that were made of it.
        """
        quiet, full, width = bool(options.get("quiet")), bool(options.get("full")), options.get("width", 80)
        screen = _Screen(report, width=width, full=full)
        blocks = [_Block(0, list(screen.top(quiet=quiet)))]
        if not quiet:
            blocks += screen.body()
            blocks.append(_Block(0, list(screen.reach()), gap=not report.passed or full))
            files = options.get("saved") or "", options.get("written") or ""
            kept = drawn(screen.more((), *files), width=width).count("\n")
            blocks, left = _fitted(blocks, None if full else LINES[report.outcome] - kept, width)
            blocks.append(_Block(0, list(screen.more(left, *files))))
        parts: list[Part] = []
        for block in blocks:
            parts += ["", *block.parts] if block.gap else block.parts
        return drawn(parts, width=width, colour=bool(options.get("colour")))


def _fitted(blocks: Sequence[_Block], room: int | None, width: int) -> tuple[list[_Block], list[Part]]:
    """The blocks with the parts that there is room for, and the parts that there is none for."""
    kept: dict[int, list[Part]] = {place: [] for place in range(len(blocks))}
    left: list[Part] = []
    for place, block in sorted(enumerate(blocks), key=lambda entry: entry[1].rank):
        full = False
        for part in block.parts:
            first = not kept[place]
            taken = [*([""] if block.gap and first else []), *([block.head] if block.head and first else []), part]
            lines = drawn(taken, width=width).count("\n") if room is not None else 0
            # What comes later in a block says less: it is not told where something before it is not.
            full = full or (room is not None and bool(block.rank) and (lines > room or block.rank == NEVER))
            if full:
                left.append(part)
                continue
            room = None if room is None else room - lines
            kept[place] += taken[1:] if block.gap and first else taken
    shown = [_Block(b.rank, kept[place], None, b.gap) for place, b in enumerate(blocks) if kept[place]]
    return shown, left


class _Screen:
    """One report, told in blocks from above to below."""

    def __init__(self, report: Report, *, width: int, full: bool) -> None:
        self.report, self.width, self.full = report, width, full
        self.findings: dict[int, Finding] = {}

    def clipped(self, text: str, lines: int, *, indent: int = 0) -> str:
        """The beginning of a text that takes more lines than it may."""
        if self.full:
            return text
        width = max(self.width - indent, 20)
        found = textwrap.wrap(text, width, break_on_hyphens=False)
        if len(found) <= lines:
            return text
        last = found[lines - 1]
        if len(last) > width - 2:
            last = last[: width - 2].rpartition(" ")[0] or last[: width - 2]
        shown = " ".join([*found[: lines - 1], last.rstrip(" ,;:=")])
        if text[len(shown) :].lstrip().startswith("="):  # a name whose value is cut off says nothing
            shown = shown.rpartition(", ")[0] or shown
        return f"{shown} …"

    def top(self, *, quiet: bool) -> Iterator[Part]:
        """The verdict, in one sentence; and what to do, where nothing could be decided."""
        report, origin = self.report, self.report.origin
        yield Line(
            (f" {report.outcome} ", f"bold reverse {COLOURS[report.outcome]}"),
            "  ",
            (end_of(origin.reference.name, NAME), "bold"),
            " → ",
            (end_of(origin.candidate.name, NAME), "bold"),
        )
        yield Line(self.clipped(sentence(report.verdict.headline), 6))
        # What is not told by limits says at once what to do; where there is a cause, its own remedy stands below.
        short = quiet and report.outcome is Outcome.INCONCLUSIVE
        if (remedy := remedy_of(report)) and (short or not (quiet or told_by_cause(report))):
            yield Line(self.clipped(f"→ {sentence(remedy)}", 4), style="italic")

    def body(self) -> Iterator[_Block]:
        """Everything between the verdict and what it stands on."""
        report = self.report
        findings = [finding for finding in beside_the_limits(report.verdict) if self._is_shown(finding)]
        failed = any(check.outcome is not Outcome.PASS for check in report.verdict.checks)
        if not report.passed:
            yield from self.why()
        if failed or (self.full and report.verdict.checks):
            yield _Block(3, [self.checks()], gap=True)
        if not failed or self.full:
            yield _Block(4, list(self.outputs()), gap=True)
        yield from self.settings()
        yield from self.worst()
        yield from self.suites()
        for rank, severities in ((2, (Severity.FAILURE, Severity.INCONCLUSIVE)), (6, (Severity.WARNING,))):
            of_rank = [finding for finding in findings if finding.severity in severities]
            yield _Block(2 if report.passed else rank, list(map(self.finding, of_rank)), gap=not report.passed)
        notes = [self.finding(finding) for finding in findings if finding.severity is Severity.NOTE]
        # Notes say what was done on the way: of a PASS their number is enough.
        yield _Block(NEVER if report.passed and not self.full else 9, list(notes), gap=True)

    def _is_shown(self, finding: Finding) -> bool:
        return finding.code not in {"usual-refusals", "untried", *(f"{kind}-suite" for kind in SUITES)} and (
            finding.message != self.report.verdict.headline
        )

    def finding(self, finding: Finding) -> Line:
        mark, style = SEVERITIES[finding.severity]
        message, remedy = sentence(finding.message), sentence(finding.remedy)
        lines = 3 if finding.severity is Severity.WARNING else 4
        # Of a long one what to do is worth more than the end of what happened.
        message = self.clipped(message, max(1, lines - (len(remedy) + self.width - 3) // self.width), indent=2)
        shown = Line((f"{mark} ", style), message, " " if remedy else "", (remedy, "italic"))
        self.findings[id(shown)] = finding
        return shown

    def why(self) -> Iterator[_Block]:
        """The answer in one sentence, then the evidence, then the remedy; at length if asked for."""
        report, found = self.report, self.report.explanation
        cut_short = found is not None and report.outcome is Outcome.FAIL and bool(found.not_tested)
        if found is None or not (self.full or report.diagnoses or found.failing_rows or cut_short):
            return
        for place, (diagnosis, others) in enumerate(places_of_causes(report.diagnoses)):
            heading = "Why: " if place == 0 else "Also: "
            named = (f"{diagnosis.cause}, {diagnosis.culprit}", "bold" if place == 0 else "")
            parts: list[Part] = [Line((heading, "bold"), named, (share_told(diagnosis, report), "dim"))]
            if self.full or says_more(diagnosis, report.headline):
                evidence = self.clipped(sentence(diagnosis.evidence), 3 if place else 6, indent=5)
                parts.append(Line(evidence, indent=5))
            if others:
                parts.append(Line(self.clipped(f"Also at {joined(others)}.", 2, indent=5), indent=5))
            if diagnosis.remedy:
                remedy = self.clipped(f"→ {sentence(remedy_told(diagnosis))}", 4, indent=5)
                parts.append(Line(remedy, style="italic", indent=5))
            if place == 0 and (command := repair_told(report)):
                parts.append(Line(command, style="italic", indent=5))
            yield _Block(7 if place else 1, parts, gap=not place)
        if not report.diagnoses:
            told: list[Part] = [Line(("Why: ", "bold"), unexplained_told(found))]
            yield _Block(1, told, gap=True)
        facts = [f"Where: {sentence(entry.predicate)}" for entry in found.slices[: None if self.full else 1]]
        if self.full or not report.diagnoses:
            facts += [f"Shape: {sentence(text)}" for text in found.shape]
        if self.full:
            facts += [f"Row {v.row}: {v.column} = {answer_text(v.value)}: {v.why}" for v in found.unusual]
        if found.excluded and (self.full or not report.diagnoses):
            facts.append(f"Tried, did not help: {tried_told(found)}.")
        if self.full or not report.diagnoses:
            facts += [f"Not tested: {sentence(text)}" for text in found.not_tested]
        yield _Block(4, [Line(self.clipped(fact, 2), style="dim") for fact in facts])

    def checks(self) -> Part:
        """The limits; on a short screen those that do not hold."""
        from rich.text import Text

        checks = self.report.verdict.checks
        table = plain_table("output", "measure", "#value", "", "limit", "")
        chosen = most_telling(checks, CHECKS_SHOWN)
        failed = [check for check in chosen if check.outcome is not Outcome.PASS]
        shown = chosen if self.full or not failed else failed[:LIMITS_SHOWN]
        for check in shown:
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

    def outputs(self) -> Iterator[Part]:
        """The size of the differences in plain words, and what is allowed."""
        report = self.report
        measured = False
        for output in sorted(report.comparison.outputs, key=lambda output: "max_abs_diff" not in output.measures):
            told = _largest(output) or (_labels(output, report.samples) if self.full or _flipped(output) else "")
            measured = measured or "max_abs_diff" in output.measures
            if told:
                yield Line(self.clipped(f"{output.name}: {told}", 1), style="dim")
        if measured:
            yield Line(self.clipped(_allowed(report), 2), style="dim")

    def settings(self) -> Iterator[_Block]:
        """The candidate under other settings, a line each: rows, the worst difference of every output, the verdict."""
        suites = zip(self.report.comparison.suites, self.report.verdict.suites, strict=True)
        tried = [(facts, told) for facts, told in suites if told.kind == "setting"]
        if not tried:
            return
        from rich.text import Text

        names = list(dict.fromkeys(output.name for facts, _ in tried for output in facts.comparison.outputs))
        table = plain_table("setting", "#rows", *(f"#{name}" for name in names), "")
        for facts, told in tried:
            measured = {output.name: output.measures for output in facts.comparison.outputs}
            worst = [measured.get(name, {}) for name in names]
            cells = [figure(found["max_abs_diff"]) if "max_abs_diff" in found else _flips(found) for found in worst]
            mark = "" if facts.not_covered else MARKS[told.outcome]
            shown = "not covered" if facts.not_covered else f"{told.rows:,}"
            table.add_row(Text(told.name), shown, *cells, Text(mark, style=COLOURS[told.outcome]))
        # Whoever asks for settings wants to see them all.
        yield _Block(0, [table], gap=True)

    def worst(self) -> Iterator[_Block]:
        """Rows beyond tolerance; of several outputs those of the first that fails in numbers, unless all are shown."""
        report = self.report
        if report.passed:
            return
        found = [output for output in report.comparison.outputs if worst_beyond(output)]
        found.sort(key=lambda output: "label_flips" in output.measures)
        for output in found if self.full else found[:1]:
            yield self._worst_of(output)

    def _worst_of(self, output: OutputFacts) -> _Block:
        unit = self.report.comparison.unit
        rows: list[Part] = []
        for row in worst_beyond(output)[:ROWS_SHOWN]:
            difference = row.get("abs_diff")
            measured = isinstance(difference, int | float) and math.isfinite(difference)
            apart = f", {figure(difference)} apart" if measured else ""
            answers = [answer_text(row[side], most=4 if self.full else 3) for side in ("reference", "candidate")]
            changed = self.clipped(f"{unit.removesuffix('s')} {row['row']}: {answers[0]} became {answers[1]}{apart}", 2)
            inputs = self.clipped(_inputs(row["inputs"]), 1, indent=4)
            rows.append((Line(changed, indent=2), Line(inputs, style="dim", indent=4)))
        # They are in the order of what each is allowed, where the headline has the largest difference of all.
        judged_so = self.report.policy.tolerance == self.report.comparison.tolerance
        heading = f"Worst {unit} of {output.name}"
        if judged_so and "rows_beyond" in output.measures:
            heading = f"{unit.capitalize()} of {output.name} furthest beyond tolerance"
        return _Block(4, rows, Line(heading, style="dim"), gap=True)

    def suites(self) -> Iterator[_Block]:
        """Rows made to find trouble: how many suites agree, which do not, and what they found as far as it fits."""
        for kind, (heading, one) in SUITES.items():
            suites = [suite for suite in self.report.verdict.suites if suite.kind == kind]
            if not suites:
                continue
            differing = [suite for suite in suites if suite.outcome is Outcome.FAIL and not suite.usual]
            usual = [suite.name for suite in suites if suite.usual]
            parts: list[Part] = [
                Line((f"{heading}: ", "bold"), self.clipped(_counts(suites, differing, one), 2, indent=12))
            ]
            if usual:
                told = f"· {', '.join(usual)}: only the reference refuses such values, as usual"
                parts.append(Line(self.clipped(told, 2, indent=2), style="dim", indent=2))
            # Where the data differ, so do rows made from them, by the same cause.
            told_already = not self.full and any(map(worst_beyond, self.report.comparison.outputs))
            blocking = any(suite.blocks for suite in differing)
            yield _Block(2 if blocking else 3 if self.report.passed else 5, parts, gap=not self.report.passed)
            details: list[Part] = []
            # One length stands for all.
            examples = differing[:1] if kind == "shape" and not self.full else differing
            in_headline = f": {self.report.verdict.headline}"
            for suite in () if told_already and not blocking else examples:
                if in_headline.endswith(f": {suite.headline}") and not self.full:
                    continue
                mark = (f"{MARKS[suite.outcome]} ", COLOURS[suite.outcome] if suite.blocks else "yellow")
                text = self.clipped(
                    f"{suite.name}: {sentence(suite.headline)}", 1 if self.report.passed else 2, indent=4
                )
                details.append(Line(mark, text, indent=2))
            yield _Block(2 if blocking else 5, details)

    def reach(self) -> Iterator[Part]:
        """What the verdict stands on."""
        report, origin, facts = self.report, self.report.origin, self.report.comparison
        confidence = report.verdict.confidence
        if facts.rows:
            yield Line(f"{rows_told(report)}{batches_told(facts, short=not self.full)}.", style="dim")
        # Of a failure the headline has counted the rows; the bound is for those who asked about rows like these.
        asked = report.policy.max_failure_rate is not None
        if confidence is not None and (self.full or asked or report.passed):
            yield Line(sentence(confidence.statement), style="dim")
        made = generated_told(facts.generated, CHECKS_SHOWN if self.full else 1)
        left = [found.message for found in report.verdict.findings if found.code == "untried"]
        for line in (
            *left,
            *origin_told(origin),
            *made,
            *strata_told(facts.strata),
        ):
            yield Line(self.clipped(sentence(line), 2), style="dim")

    def more(self, left: Iterable[Part], saved: str, written: str) -> Iterator[Part]:
        """Where the rest is, and how much of what a reader should know is there."""
        kinds = [self.findings[id(part)].severity for part in left if id(part) in self.findings]
        counts = [
            f"{count} more {severity}{'s' * (count > 1)}" if severity is not Severity.NOTE else _notes(count)
            for severity in (Severity.FAILURE, Severity.WARNING, Severity.NOTE)
            if (count := kinds.count(severity))
        ]
        told = f" ({joined(counts)})" if counts else ""
        again = f"likewise report {saved}" if saved else ""
        if not self.full:
            shown = ", or ".join(filter(None, (written, again)))
            if not written:
                shown = f"{again} [--html FILE]" if again else "--html FILE"
            yield Line(f"Details{told}: {shown}", style="dim")
        elif saved or written:
            yield Line(f"Report: {', '.join(filter(None, (saved, written)))}", style="dim")


def _notes(count: int) -> str:
    return "1 note" if count == 1 else f"{count} notes"


def _largest(output: OutputFacts) -> str:
    found = output.measures
    if "max_abs_diff" not in found:
        return ""
    return f"largest difference {figure(found['max_abs_diff'])}, mean {figure(found['mean_abs_diff'])}"


def _flipped(output: OutputFacts) -> bool:
    return bool(output.measures.get("label_flips"))


def _labels(output: OutputFacts, rows: int) -> str:
    found = output.measures
    if "label_flips" not in found:
        return ""
    flips, material = int(found["label_flips"]), int(found["material_flips"])
    if not flips:
        return "no label changed"
    noise = ", all within noise" if not material else f", {material:,} by more than noise" * (material < flips)
    return f"{flips:,} of {rows:,} labels changed{noise}"


def _allowed(report: Report) -> str:
    """The tolerance, and limits beside it that are not zero."""
    found = {check.measure: check for check in report.verdict.checks if check.bound and check.batch_size is None}
    others = [check for check in found.values() if _adds(check, report.policy.tolerance.absolute)]
    return ", ".join(
        [f"Allowed: {report.policy.tolerance.text}", *(f"{c.measure} {sign(c)} {figure(c.bound)}" for c in others)]
    )


def _adds(check: Check, absolute: float) -> bool:
    return not (check.measure == "max_abs_diff" and check.bound == absolute)


def _flips(measures: Mapping[str, float]) -> str:
    return f"{figure(measures['label_flips'])} flips" if "label_flips" in measures else "–"


def _counts(suites: Sequence[SuiteVerdict], differing: Sequence[SuiteVerdict], one: str) -> str:
    """How many suites agree, and which do not."""
    covered = [suite for suite in suites if suite.outcome is not Outcome.INCONCLUSIVE]
    agreeing = sum(suite.outcome is Outcome.PASS for suite in suites)
    left = [suite for suite in suites if suite.outcome is Outcome.INCONCLUSIVE]
    told = []
    if covered:
        agree = f"{agreeing} of {len(suites)} {one}s {'agrees' if agreeing == 1 else 'agree'}"
        if 1 < agreeing == len(suites):
            agree = f"all {agreeing} {one}s agree"
        elif not agreeing and len(suites) > 1:
            agree = f"none of {len(suites)} {one}s agrees"
        told.append(agree)
    if differing:
        free = "" if any(suite.blocks for suite in differing) else " (not blocking)"
        names = joined([suite.name for suite in differing], most=5)
        told.append(f"{names} {'differs' if len(differing) == 1 else 'differ'}{free}")
    for suite in left[:1]:
        others = f" and {len(left) - 1} more" if len(left) > 1 else ""
        named = f"{suite.name}{others} not covered" if covered or len(left) > 1 else "not tried"
        told.append(f"{named}: {suite.headline}")
    return "; ".join(told) + "."


def _inputs(inputs: Mapping[str, Any]) -> str:
    shown = [f"{name}={answer_text(value)}" for name, value in list(inputs.items())[:8]]
    return ", ".join(shown) + (f" and {len(inputs) - 8} more" if len(inputs) > 8 else "")


def summary(
    gates: Iterable[tuple[str, Outcome, str]],
    *,
    width: int,
    colour: bool,
    saved: str = "",
    whole: bool = False,
    told: str = "",
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
    told = told or gates_told({name: outcome for name, outcome, _ in found})
    where = [Line(f"Report: {saved}", style="dim")] if saved else []
    parts: list[Part] = [Line(sentence(told), style="bold"), *where]
    return drawn([table, "", *parts] if found else parts, width=width, colour=colour)


EXTENSION = TerminalRenderer()
