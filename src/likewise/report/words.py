"""What the formats that people read have in common: marks, sentences, what to show of limits and findings, speed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from likewise.contracts.comparison import Comparison, GeneratedColumn, OutputFacts, Stratum
from likewise.contracts.report import Diagnosis, Explanation, Origin, Report
from likewise.contracts.results import BatchTiming, BenchResult
from likewise.contracts.verdict import (
    AT_LEAST,
    Check,
    Finding,
    Outcome,
    SuiteVerdict,
    Verdict,
    counted,
    figure,
    lowered,
    runs,
)

MARKS = {Outcome.PASS: "✓", Outcome.FAIL: "✗", Outcome.INCONCLUSIVE: "?"}
COLOURS = {Outcome.PASS: "green", Outcome.FAIL: "red", Outcome.INCONCLUSIVE: "yellow"}
"""How an outcome looks in plain text and on a terminal."""

FEW_CAUSES = 4
"""So many causes that did not help are named on a screen."""

AS_INTENDED = frozenset({"quantization", "precision-reduction", "runtime-optimization"})
"""Causes that somebody chose: whether to keep them is not for a command to say."""

REPEATED = ("preset", "abs_tol", "rel_tol", "mean_tol", "samples")
"""Settings that a command takes over from a check as they are."""

NOT_REPEATED = frozenset(
    {
        "gate",
        "limits",
        "feed",
        "pair",
        "drop",
        "ignore",
        "trusted",
        "batch_axis",
        "reference_options",
        "candidate_options",
    }
)
"""Settings without which a command would judge something else, and which are too much for a line."""

NAME = 48
"""Characters of the name of a model or of data."""


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """What many gates come to: only if all pass do they."""
    return max(outcomes, key=list(Outcome).index)


def gates_told(outcomes: Mapping[str, Outcome]) -> str:
    """What many gates come to, in words."""
    others = [f"{name} is {outcome}" for name, outcome in outcomes.items() if outcome is not Outcome.PASS]
    if not others:
        return f"all {len(outcomes)} gates pass" if len(outcomes) > 1 else "the gate passes"
    passing = len(outcomes) - len(others)
    return f"{passing} of {len(outcomes)} gates {'passes' if passing == 1 else 'pass'}: {', '.join(others)}"


def gates_counted(outcomes: Mapping[str, Outcome]) -> str:
    """What very many gates come to: how many of each."""
    found = list(outcomes.values())
    if all(outcome is Outcome.PASS for outcome in found):
        return gates_told(outcomes)
    counts = [(found.count(outcome), outcome) for outcome in Outcome]
    return f"{counted(len(found), 'gates')}: " + ", ".join(f"{count} {outcome}" for count, outcome in counts if count)


def titled(report: Report, gate: str | None = None) -> str:
    """Both models, behind the name of the gate where it has one."""
    name = gate or report.origin.settings.get("gate") or ""
    models = f"{report.origin.reference.name} → {report.origin.candidate.name}"
    return f"{name}: {models}" if name else models


def remedy_of(report: Report) -> str:
    """What to do about what the headline says: by its cause, where that is known, or else by the finding itself."""
    told = [finding for finding in report.verdict.findings if finding.message == report.headline]
    remedies = [*map(remedy_told, report.diagnoses), *(finding.remedy for finding in told)]
    return next(filter(None, remedies), "")


def told_by_cause(report: Report) -> bool:
    """Does a cause say what to do? Then that stands with it."""
    return any(diagnosis.remedy for diagnosis in report.diagnoses)


def remedy_told(diagnosis: Diagnosis) -> str:
    """What to do about a cause, and whether that was done and helped; nothing is told as if it had been."""
    if not diagnosis.remedy or not diagnosis.remedy_verified:
        return f"Suggestion: {lowered(diagnosis.remedy)}" if diagnosis.remedy else ""
    told = sentence(f"Verified: {lowered(diagnosis.remedy)}")
    return f"{told} Suggestion: {lowered(diagnosis.suggestion)}" if diagnosis.suggestion else told


def most_telling(checks: tuple[Check, ...], limit: int) -> list[Check]:
    """What failed, then the limits on all rows; a batch size is named where it fails and all rows together do not."""
    known = {(c.output, c.measure) for c in checks if c.outcome is not Outcome.PASS and c.batch_size is None}
    failed = [
        check
        for check in checks
        if check.outcome is not Outcome.PASS
        and (check.batch_size is None or (check.output, check.measure) not in known)
    ]
    held = [check for check in checks if check.outcome is Outcome.PASS and check.batch_size is None]
    return [*failed, *held][:limit]


def bound_text(check: Check) -> str:
    """A limit as a person reads it: `≤ 0.01`."""
    return f"{sign(check)} {figure(check.bound)}"


def sign(check: Check) -> str:
    """Which side of its limit a measure has to be on."""
    return "≥" if check.measure in AT_LEAST else "≤"


def beside_the_limits(verdict: Verdict) -> list[Finding]:
    """Findings that repeat neither a limit of the table nor the headline."""
    failed = {(check.output, check.measure) for check in verdict.checks if check.outcome is Outcome.FAIL}
    told = [finding for finding in verdict.findings if (finding.output, finding.code) not in failed]
    return [finding for finding in told if finding.message != verdict.headline]


def share_told(diagnosis: Diagnosis, report: Report) -> str:
    """How much of the failure a cause covers; nothing of one that is about no rows."""
    if report.explanation is None or not report.explanation.failing_rows:
        return ""
    return f": explains {100 * diagnosis.explained_share:.3g}% of {rows_explained(report)}"


def unexplained_told(found: Explanation) -> str:
    """Why there is no cause: nothing that was tried helps, or not everything was tried."""
    if found.not_tested:
        room = any("--memory" in entry for entry in found.not_tested)
        more = "--memory gives it more room" if room else "--explain-budget gives it more time"
        return f"not found, and not everything was tested; {more}."
    return "none of the experiments explains it."


def rows_explained(report: Report) -> str:
    """The rows that an explanation is about: what was shown of some is not told as if it were shown of all."""
    looked_at = report.explanation.failing_rows if report.explanation is not None else 0
    return (
        f"the {looked_at:,} failing rows looked at" if looked_at < report.comparison.rows_beyond else "the failing rows"
    )


def tried_told(explanation: Explanation) -> str:
    """What was tried and did not help: by name, or where that would be a page of names, how much it was."""
    tried = explanation.excluded
    return ", ".join(tried) if len(tried) <= FEW_CAUSES else f"{len(tried)} other causes, which the report lists"


def repair_told(report: Report) -> str:
    """The command that has a verified remedy carried out in a copy; empty where there is none to name.

    A file whose precision was given up on purpose is not put right by a command, nor is a session's setting.
    """
    best, given = next(iter(report.diagnoses), None), report.origin.settings
    files = [given.get(name) for name in ("reference", "candidate", "data")]
    if best is None or not best.remedy_verified or best.cause in AS_INTENDED or report.origin.candidate.kind != "onnx":
        return ""
    # Live objects have names too, but none that a command could open.
    if report.origin.reference.sha256 is None or not all("." in str(name) for name in files):
        return ""
    if any(given.get(name) for name in NOT_REPEATED) or given.get("sample", "first") != "first":
        return ""
    reference, candidate, data = (shlex.quote(str(name)) for name in files)
    stated = [
        f" --{name.replace('_', '-')} {shlex.quote(str(given[name]))}"
        for name in REPEATED
        if given.get(name) is not None
    ]
    return f"likewise fix {reference} {candidate} --data {data}{''.join(stated)} -o fixed.onnx"


def worst_beyond(output: OutputFacts) -> list[dict[str, Any]]:
    """The worst rows that the tolerance does not cover; every changed label that is kept."""
    if "label_flips" in output.measures:
        return output.worst_rows if output.measures.get("material_flips") else []
    # They stand in the order of what each is allowed: those within tolerance come after all that are not.
    return output.worst_rows[: int(output.measures.get("rows_beyond", 0))]


def says_more(diagnosis: Diagnosis, headline: str) -> bool:
    """Does the evidence of a cause tell anything that the headline does not?"""
    told = diagnosis.evidence.rstrip("…").rpartition(": ")[2]  # a long one was cut
    return told.replace("'", "") not in headline.replace("'", "")


def places_of_causes(diagnoses: Sequence[Diagnosis]) -> list[tuple[Diagnosis, list[str]]]:
    """Every cause once, by its best diagnosis, and the other places where it was shown."""
    found: dict[str, list[Diagnosis]] = {}
    for diagnosis in diagnoses:
        found.setdefault(diagnosis.cause, []).append(diagnosis)
    return [
        (first, [o.culprit for o in others if o.culprit.partition(" (")[0] != first.culprit.partition(" (")[0]])
        for first, *others in found.values()
    ]


def joined(names: Sequence[str], *, most: int = 4) -> str:
    """`a, b and c`; of very many the first, and how many more there are."""
    shown = list(names[:most]) if len(names) > most else list(names)
    last = f"{len(names) - most} more" if len(names) > most else shown.pop() if shown else ""
    return f"{', '.join(shown)} and {last}" if shown else last


def origin_told(origin: Origin) -> Iterator[str]:
    """What else a reader should know of a run: models that nothing confined, the run that it was held against."""
    confined, settings = str(origin.run.get("confinement", "")), origin.settings
    if "--no-sandbox" in confined or "open: " in confined:
        yield f"Confinement of the models: {confined}"
    if "baseline_sha256" in settings:
        allowed = f"{float(settings['max_worse']):g}% worse is allowed"
        yield f"compared with {settings['baseline']}, SHA-256 {settings['baseline_sha256'][:12]}…: {allowed}"


def suites_told(suites: tuple[SuiteVerdict, ...]) -> list[str]:
    """A line for every kind of suite: how many agree. Those that do not are findings of their own."""
    lines = []
    for kind in dict.fromkeys(suite.kind for suite in suites):
        of_kind = [suite for suite in suites if suite.kind == kind]
        agreeing = sum(suite.outcome is Outcome.PASS for suite in of_kind)
        rows = sum(suite.rows + suite.refused for suite in of_kind)
        one = "suite" if len(of_kind) == 1 else "suites"
        told = f"{agreeing or 'none'} of {len(of_kind)} {kind} {one} {'agree' if agreeing > 1 else 'agrees'}"
        lines.append(told + (f" ({counted(rows, 'rows')})" if rows else ""))
    return lines


def strata_told(strata: tuple[Stratum, ...]) -> list[str]:
    """A line for every column whose values were told apart: where most rows are beyond tolerance."""
    lines = []
    for column in dict.fromkeys(stratum.column for stratum in strata):
        of_column = [stratum for stratum in strata if stratum.column == column]
        beyond = [stratum for stratum in of_column if stratum.rows_beyond]
        told = f"By {column}: {len(of_column):,} values, none with rows beyond tolerance"
        if beyond:
            worst = max(beyond, key=lambda stratum: stratum.rows_beyond / max(stratum.rows, 1))
            share = f"{worst.rows_beyond:,} of {worst.rows:,} rows"
            told = f"By {column}: {len(beyond):,} of {len(of_column):,} values have rows beyond tolerance"
            told += f", {worst.value!r} most: {share}"
        rarest = min(of_column, key=lambda stratum: (stratum.rows, stratum.value))
        plural = "" if rarest.rows == 1 else "s"
        lines.append(f"{told}; the rarest, {rarest.value!r}, has {rarest.rows:,} row{plural}")
    return lines


def generated_told(columns: tuple[GeneratedColumn, ...], limit: int) -> list[str]:
    """A line for every generated column: what was drawn and why. Those that nothing is known about come first."""
    ordered = sorted(columns, key=lambda column: column.known)
    lines = [f"Generated {column.name}: {column.values} ({column.why})" for column in ordered[:limit]]
    rest = len(columns) - len(lines)
    return [*lines, f"Generated {rest:,} more columns: see the JSON report"] if rest else lines


def rows_told(report: Report) -> str:
    """How many rows of which data: `1,000 rows of test.parquet`."""
    facts = report.comparison
    unit = facts.unit if facts.rows != 1 else facts.unit.removesuffix("s")
    return f"{facts.rows:,} {unit} of {end_of(report.origin.data.name, NAME)}"


def batches_told(facts: Comparison, *, short: bool = False) -> str:
    """Which other batches were tried beside the rows, as the end of a sentence; empty if none."""
    sizes = sorted({found.size for found in facts.batch_sizes if not found.incidents})
    places = any(not found.incidents for found in facts.batch_orders)
    if not sizes:
        return ""
    if short and len(sizes) > 2:
        orders = " and other orders" if places else ""
        return f"; {len(sizes)} batch sizes ({sizes[0]}–{sizes[-1]}){orders} too"
    return f"; batch sizes {runs(sizes)} too" + (", and rows in other places" if places else "")


def answer_text(answer: Any, *, most: int = 4) -> str:
    """A model's answer, or a value it was given, with six digits; of a list at most so many entries."""
    if isinstance(answer, list):
        shown = ", ".join(answer_text(entry, most=most) for entry in answer[:most])
        return f"[{shown}{', …' if len(answer) > most else ''}]"
    if isinstance(answer, Mapping):
        return answer_text(answer.get("worst", answer.get("head")), most=most)
    if isinstance(answer, float):
        return f"{answer:.6g}"
    # What a report holds of numbers that JSON has none for.
    return answer if answer in ("NaN", "Infinity", "-Infinity") else repr(answer)


def cut(text: str, limit: int) -> str:
    """The beginning of a text that is too long."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def end_of(name: str, limit: int) -> str:
    """The end of a name that is too long: that of a path tells most."""
    return name if len(name) <= limit else "…" + name[-limit + 1 :]


def sentence(text: str) -> str:
    """Words that begin with a capital, unless they begin with a name, and end with a stop."""
    # A first word with a sign or a digit in it is a name: income_log, seq=7, huge-numbers:
    plain = text[:1].islower() and text.split(" ")[0].rstrip(",:").isalpha()
    text = text[:1].upper() + text[1:] if plain else text
    return text if not text or text.endswith((".", "?", "!")) else text + "."


def duration(seconds: float) -> str:
    """Seconds in the unit a person would use."""
    for unit, factor in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 1e3 else f"{seconds * factor:,.0f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def size(count: int | None) -> str:
    """Bytes in the unit a person would use."""
    if count is None:
        return "not measured"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"


def footprints(result: BenchResult) -> Iterator[tuple[str, str, str]]:
    """What the models take besides time: what it is, then that of the reference and of the candidate."""
    reference, candidate = result.reference, result.candidate
    yield "file", size(reference.file_bytes), size(candidate.file_bytes)
    yield "first load, with imports", duration(reference.first_load), duration(candidate.first_load)
    yield "load again", duration(reference.load), duration(candidate.load)
    yield "memory, loaded", size(reference.memory_loaded), size(candidate.memory_loaded)
    yield "memory, at peak", size(reference.memory_peak), size(candidate.memory_peak)


def faster(timing: BatchTiming) -> str:
    """How the candidate compares with the reference, in words; equal where the interval holds 1."""
    if timing.interval is not None and timing.interval[0] <= 1 <= timing.interval[1]:
        return "as fast"
    return f"{_times(timing.ratio)}× faster" if timing.ratio >= 1 else f"{_times(1 / timing.ratio)}× slower"


def between(timing: BatchTiming) -> str:
    """The interval of what `faster` says, in the same direction."""
    if timing.interval is None:
        return ""
    low, high = timing.interval
    if timing.ratio < 1 and not low <= 1 <= high:
        low, high = 1 / high, 1 / low
    return f" ({_times(low)}–{_times(high)})"


def _times(value: float) -> str:
    """Two digits after the point below ten; as many as are worth telling above."""
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"
