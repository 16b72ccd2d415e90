"""The tables of a page: limits over all rows, batches, settings and suites; and which rows, of what inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from likewise.contracts.comparison import BatchSizeFacts, OutputFacts, SuiteFacts, Tolerance
from likewise.contracts.report import Report, Unusual
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Check, Outcome, SuiteVerdict, figure
from likewise.report.formats.html.cells import (
    SHORT_DIGITS,
    Cell,
    Column,
    Table,
    at_worst,
    beyond,
    count,
    element,
    left_out,
    number,
    outcome_cell,
    share,
    table,
    telling_digits,
    value_cell,
    words,
)
from likewise.report.words import bound_text, most_telling, sentence

MEASURES = (
    "max_abs_diff",
    "mismatch_rate",
    "label_flips",
    "material_flips",
    "batch_drift",
    "position_drift",
    "reference_drift",
)
COLUMNS_SHOWN = 24
CHECKS_SHOWN = 400
SUITES_SHOWN = 200
MATRIX_MEASURES = ("max_abs_diff", "mismatch_rate", "label_flips", "material_flips", "batch_drift")
SETTING = "setting"


def limits(report: Report) -> Table | None:
    """Every limit with what was measured against it, what failed first."""
    checks = most_telling(report.verdict.checks, CHECKS_SHOWN)
    told = [c for c in report.verdict.checks if c.batch_size is None or c.outcome is not Outcome.PASS]
    return table(
        "Limits and what was measured",
        ("Output", "Measure", "#Measured", "Limit", "Verdict"),
        map(_limit, checks),
        sortable=True,
        note=left_out(len(told) - len(checks)) if len(checks) == CHECKS_SHOWN else "",
        id="limits-table",
        stacks=True,
    )


def _limit(check: Check) -> tuple[Cell, ...]:
    where = f" at batch size {check.batch_size}" if check.batch_size is not None else ""
    return (
        words(check.output),
        words(check.measure + where),
        count(check.value),
        Cell(bound_text(check), check.bound),
        outcome_cell(check.outcome),
    )


def measures(output: OutputFacts) -> Table | None:
    """Everything that was measured on one output, limited or not."""
    lines = ((words(name), count(value)) for name, value in output.measures.items())
    return table(f"All measures of {output.name}", ("Measure", "#Value"), lines)


@dataclass(frozen=True, slots=True)
class _Place:
    """What was measured in one kind of batch, or on all rows, and what became of the limits there."""

    name: Cell
    rows: int
    measures: Mapping[tuple[str, str], float]
    outcomes: Mapping[tuple[str, str], Outcome]
    facts: BatchSizeFacts | None = None


def batches(report: Report) -> Table | None:
    """Every batch size of the sweep, and rows in other places of a batch; a column of zeros is only named."""
    swept = (*report.comparison.batch_sizes, *report.comparison.batch_orders)
    if not swept:
        return None
    places = [_everything(report), *(_place(report, facts) for facts in swept)]
    known = _columns(report, places)
    telling = [key for key in known if any(place.measures.get(key) or key in _failed(place) for place in places)]
    kept = telling[:COLUMNS_SHOWN]
    zero = [_heading(key) for key in known if key not in telling]
    left = len(telling) - len(kept)
    troubles = any(_troubles(facts) for facts in swept)
    notes = (
        f"0 everywhere: {', '.join(zero)}." if zero else "",
        left_out(left, " measures"),
        *dict.fromkeys(text for facts in swept for text in _troubles(facts)),
    )
    return table(
        "The candidate at several batch sizes" + (" and orders" if report.comparison.batch_orders else ""),
        (
            *("Batch", "#Rows"),
            *(Column(_heading(key), numeric=True) for key in kept),
            *(["Trouble"] if troubles else []),
        ),
        (
            (
                place.name,
                count(place.rows),
                *(_measured(place.measures.get(key), place.outcomes.get(key)) for key in kept),
                *([_trouble(place.facts)] if troubles else []),
            )
            for place in places
        ),
        sortable=True,
        note=" ".join(filter(None, notes)),
    )


def _everything(report: Report) -> _Place:
    measures = {(o.name, name): value for o in report.comparison.outputs for name, value in o.measures.items()}
    return _Place(Cell("all rows", 0), report.samples, measures, _outcomes(report, None))


def _place(report: Report, facts: BatchSizeFacts) -> _Place:
    name = Cell(f"{facts.size:,}" + (f", {facts.order}" if facts.order else ""), facts.size)
    measures = {(output.name, name): value for output in facts.outputs for name, value in output.measures.items()}
    # Limits are judged at sizes; an order has the size of one of them, but not its rows.
    outcomes = {} if facts.order else _outcomes(report, facts.size)
    return _Place(name, facts.rows, measures, outcomes, facts)


def _outcomes(report: Report, size: int | None) -> dict[tuple[str, str], Outcome]:
    return {(c.output, c.measure): c.outcome for c in report.verdict.checks if c.batch_size == size}


def _columns(report: Report, places: list[_Place]) -> list[tuple[str, str]]:
    """Measures that are always worth a look, and others whose limit is not kept somewhere."""
    failed = {key for place in places for key in _failed(place)}
    found = {key for place in places[1:] for key in place.measures}
    names = (*MEASURES, *sorted({name for _, name in failed} - {*MEASURES}))
    keys = ((output.name, name) for output in report.comparison.outputs for name in names)
    return [key for key in keys if key in found and (key[1] in MEASURES or key in failed)]


def _failed(place: _Place) -> set[tuple[str, str]]:
    return {key for key, outcome in place.outcomes.items() if outcome is not Outcome.PASS}


def _heading(key: tuple[str, str]) -> str:
    return ": ".join(key)


def _trouble(facts: BatchSizeFacts | None) -> Cell:
    if facts is None:
        return Cell("–", tone="quiet")
    if facts.mismatches or facts.incidents:
        return outcome_cell(Outcome.FAIL if facts.mismatches else Outcome.INCONCLUSIVE, "candidate: see below")
    return Cell("reference: see below", tone="unsure", mark="!") if facts.reference else Cell("none")


def _troubles(facts: BatchSizeFacts) -> list[str]:
    """What went wrong in words; that the reference refuses a batch is no fault of the candidate."""
    where = f"batch {facts.size:,}" + (f", {facts.order}" if facts.order else "")
    return [
        *(sentence(f"the candidate at {where}: {found.message}") for found in facts.mismatches),
        *(sentence(f"the candidate {found.message}") for found in facts.incidents),
        *(sentence(f"the reference at {where}: {found.message}") for found in facts.reference),
    ]


def settings(report: Report) -> Table | None:
    """The candidate under other runtime settings, one column each."""
    found = [both for both in _suites(report) if both[0].kind == SETTING][:24]
    if not found:
        return None
    body: list[tuple[Cell, ...]] = [
        (Cell("verdict"), *(_verdict(facts, verdict) for facts, verdict in found)),
        (Cell("blocks"), *(Cell("yes" if facts.blocks else "no") for facts, _ in found)),
        (Cell("rows compared"), *(count(verdict.rows) for _, verdict in found)),
    ]
    for name in dict.fromkeys(output.name for facts, _ in found for output in facts.comparison.outputs):
        at = [{o.name: o.measures for o in facts.comparison.outputs}.get(name, {}) for facts, _ in found]
        judged = [{(c.output, c.measure): c.outcome for c in verdict.checks} for _, verdict in found]
        limited = {measure for verdicts in judged for place, measure in verdicts if place == name}
        body += [
            (
                Cell(f"{name}: {measure}"),
                *(
                    _measured(here.get(measure), verdicts.get((name, measure)))
                    for here, verdicts in zip(at, judged, strict=True)
                ),
            )
            for measure in _telling(at, limited)
        ]
    return table(
        "The candidate under several runtime settings",
        ("Measure", *(Column(facts.title or facts.name, numeric=True) for facts, _ in found)),
        body,
        note=" ".join(f"{facts.title}: {facts.not_covered}." for facts, _ in found if facts.not_covered),
    )


def suites(report: Report) -> Table | None:
    """Inputs made to find trouble and other shapes: each with its own verdict."""
    return table(
        "Suites: the same two models on other inputs",
        ("Suite", "Kind", "Verdict", "Blocks", "#Rows", "#Refused by both", "What it shows"),
        (
            (
                words(facts.title or facts.name),
                words(facts.kind),
                _verdict(facts, verdict),
                Cell("yes" if facts.blocks else "no"),
                count(verdict.rows),
                count(verdict.refused),
                words(facts.not_covered or verdict.headline),
            )
            for facts, verdict in _suites(report)
            if facts.kind != SETTING
        ),
        sortable=True,
        most=SUITES_SHOWN,
        stacks=True,
    )


def _suites(report: Report) -> list[tuple[SuiteFacts, SuiteVerdict]]:
    return list(zip(report.comparison.suites, report.verdict.suites, strict=True))


def _verdict(facts: SuiteFacts, verdict: SuiteVerdict) -> Cell:
    return Cell("not covered", tone="quiet", mark="–") if facts.not_covered else outcome_cell(verdict.outcome)


def _measured(value: float | None, outcome: Outcome | None = None) -> Cell:
    """A figure with the mark of its verdict, if it has one."""
    if value is None:
        return Cell("–", tone="quiet")
    return count(value) if outcome is None else outcome_cell(outcome, figure(value))


def _telling(at: list[Mapping[str, float]], limited: set[str]) -> list[str]:
    """Measures with a limit, and those that are always worth a look where they were measured."""
    known = {name for here in at for name in here}
    return [name for name in (*MATRIX_MEASURES, *sorted(limited - {*MATRIX_MEASURES})) if name in known]


INPUTS_SHOWN = 40
CLASSES_SHOWN = 12
STRATA_SHOWN = 200
CASTS_SHOWN = 100
GENERATED_SHOWN = 200
UNUSUAL = "◆"


def worst_rows(output: OutputFacts, unusual: Sequence[Unusual], tolerance: Tolerance) -> Table | None:
    """The rows of one output where the models differ most, with their inputs and what is unusual about them."""
    found = output.worst_rows
    names = list(dict.fromkeys(name for row in found for name in row["inputs"]))
    told = {(str(entry.row), entry.column): entry.why for entry in unusual}
    # A column with something unusual in it must not be among those left out.
    names.sort(key=lambda name: not any((str(row["row"]), name) in told for row in found))
    kept = names[:INPUTS_SHOWN]
    measured = any("abs_diff" in row for row in found)
    # Under a tolerance of zero the severity is the difference itself.
    allowed = measured and bool(tolerance.absolute or tolerance.relative)
    placed = any(row["index"] for row in found)
    order = "by difference" if measured else "by the margin of the reference"
    order = "by how many times the allowed difference they are apart, not by the difference" if allowed else order
    return table(
        f"Worst rows of {output.name}, sorted {order}",
        (
            *(("#Row", "#Reference", "#Candidate") if measured else ("#Row", "Reference", "Candidate")),
            "#Difference" if measured else "#Margin of the reference",
            *(["Element"] if placed else []),
            *(["#Times the tolerance"] if allowed else []),
            *(Column(name, numeric=_numeric(found, name)) for name in kept),
        ),
        (
            (
                value_cell(row["row"]),
                *_answers(row),
                count(row.get("abs_diff") if measured else row["severity"]),
                *([words(element(row))] if placed else []),
                *([count(row["severity"])] if allowed else []),
                *(_input(row, name, told) for name in kept),
            )
            for row in found
        ),
        sortable=True,
        note=left_out(len(names) - len(kept), " inputs"),
    )


def _answers(row: Mapping[str, Any]) -> tuple[Cell, Cell]:
    reference, candidate = at_worst(row, "reference"), at_worst(row, "candidate")
    digits = telling_digits(reference, candidate)
    return value_cell(reference, digits=digits), value_cell(candidate, digits=digits)


def unusual_values(report: Report) -> Table | None:
    """What is unusual about single values of failing rows."""
    found = report.explanation.unusual if report.explanation is not None else ()
    return table(
        "Unusual values in the worst rows",
        ("#Row", "Column", "#Value", "What is unusual"),
        ((value_cell(entry.row), words(entry.column), value_cell(entry.value), words(entry.why)) for entry in found),
        sortable=True,
        stacks=True,
    )


def flips(output: OutputFacts) -> Table | None:
    """Which labels became which: the classes with most flips, reference down and candidate across."""
    details = output.details.get("agreement", {})
    confusion: list[Mapping[str, Any]] | None = details.get("confusion")
    if not confusion:
        return None
    flipped: dict[tuple[str, str], int] = {}
    for entry in confusion:
        both = _key(entry["reference"]), _key(entry["candidate"])
        flipped[both] = flipped.get(both, 0) + int(entry["count"])
    totals: dict[str, int] = {}
    for (ours, theirs), amount in flipped.items():
        totals[ours] = totals.get(ours, 0) + amount
        totals[theirs] = totals.get(theirs, 0) + amount
    kept = sorted(sorted(totals, key=lambda label: (-totals[label], label))[:CLASSES_SHOWN])
    seen = {_key(e["label"]): int(e["count"]) for e in details.get("reference_labels") or ()}
    complete = len(confusion) < 50 and len(seen) < 50
    most = max(flipped.values())

    def at(ours: str, theirs: str) -> Cell:
        if ours != theirs:
            amount = flipped.get((ours, theirs), 0)
            return Cell(figure(amount) if amount else "·", amount, f"heat-{_heat(amount, most)}" if amount else "quiet")
        if not complete or ours not in seen:
            return Cell("same", tone="quiet")
        return Cell(figure(seen[ours] - sum(n for (o, _), n in flipped.items() if o == ours)), tone="quiet")

    left = len(totals) - len(kept)
    return table(
        f"Flipped labels of {output.name}: the reference's label down, the candidate's across",
        ("Reference", *(f"#→ {label}" for label in kept)),
        ((words(ours), *(at(ours, theirs) for theirs in kept)) for ours in kept),
        note=("The diagonal counts labels that stayed. " if complete else "")
        + (f"{left} more labels flip less often; they are in the JSON report." if left > 0 else ""),
    )


def slices(report: Report) -> Table | None:
    """Predicates on the inputs that tell failing rows from agreeing ones."""
    found = report.explanation.slices if report.explanation is not None else ()
    return table(
        "Which rows fail: predicates that tell failing rows from agreeing ones",
        ("Rows where", "#Failing", "#Agreeing", "#Of these fail", "#Of the failing rows"),
        (
            (
                words(entry.predicate),
                count(entry.failing),
                count(entry.agreeing),
                Cell(share(entry.precision), entry.precision),
                Cell(share(entry.recall), entry.recall),
            )
            for entry in found
        ),
        sortable=True,
    )


def strata(report: Report) -> Table | None:
    """Rows by the values of a column."""
    found = report.comparison.strata
    outputs = list(dict.fromkeys(name for entry in found for name in entry.worst))[:8]
    return table(
        "Strata: rows by the values of a column",
        ("Column", "Value", "#Rows", "#Beyond tolerance", "#Share", *(f"#Largest in {n}" for n in outputs)),
        (
            (
                words(entry.column),
                words(entry.value),
                count(entry.rows),
                beyond(entry.rows_beyond),
                Cell(
                    share(entry.rows_beyond / entry.rows) if entry.rows else "–", entry.rows_beyond / (entry.rows or 1)
                ),
                *(_measured(entry.worst.get(name)) for name in outputs),
            )
            for entry in found
        ),
        sortable=True,
        most=STRATA_SHOWN,
    )


def timeline(report: Report) -> Table | None:
    """Rows by the time at which they were asked about."""
    found = report.comparison.timeline
    return table(
        "Rows over time, in UTC",
        ("From", "#Rows", "#Beyond tolerance", "#Share"),
        (
            (
                words(period.start),
                count(period.rows),
                beyond(period.rows_beyond),
                Cell(share(period.rows_beyond / (period.rows or 1)), period.rows_beyond / (period.rows or 1)),
            )
            for period in (found.periods if found is not None else ())
        ),
    )


def generated(report: Report) -> Table | None:
    """Columns for which values were made up."""
    return table(
        "Columns whose values were generated",
        ("Column", "Values", "Why", "Does the model say so?"),
        (
            (words(entry.name), words(entry.values), words(entry.why), Cell("yes" if entry.known else "no"))
            for entry in report.comparison.generated
        ),
        most=GENERATED_SHOWN,
        stacks=True,
    )


def casts(report: Report) -> Table | None:
    """Inputs whose values were changed to fit a model."""
    return table(
        "Inputs that were changed to fit a model's types",
        ("Column", "Side", "From", "To", "#Values", "#Changed", "#Largest relative change", "Note"),
        (
            (
                words(cast.column),
                words(cast.side),
                words(cast.source_dtype),
                words(cast.target_dtype),
                count(cast.values),
                count(cast.changed),
                count(cast.largest_relative_change),
                Cell(cast.note or "–"),
            )
            for cast in report.comparison.casts
            if cast.changed or cast.note
        ),
        sortable=True,
        most=CASTS_SHOWN,
        stacks=True,
    )


def _input(row: Mapping[str, Any], name: str, told: Mapping[tuple[str, str], str]) -> Cell:
    if name not in row["inputs"]:
        return Cell("–", tone="quiet")
    cell = value_cell(row["inputs"][name], digits=SHORT_DIGITS)
    why = told.get((str(row["row"]), name))
    return cell if why is None else Cell(cell.text, cell.order, "unusual", UNUSUAL, f"Unusual: {why}", cell.title)


def _numeric(found: Sequence[Mapping[str, Any]], name: str) -> bool:
    values = [row["inputs"].get(name) for row in found]
    return all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values)


def _key(label: object) -> str:
    """A label as text; text that reads like a number is quoted, because "1" is not 1."""
    if isinstance(label, str):
        return f'"{label}"' if number(label) is not None else words(label).text
    return "missing" if label is None else f"{label:g}" if isinstance(label, float) else str(label)


def _heat(amount: int, most: int) -> int:
    """One of five shades."""
    return min(5, 1 + 5 * amount // (most + 1))
