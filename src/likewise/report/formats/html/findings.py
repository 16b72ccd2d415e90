"""Which rows: the worst ones with their inputs, flipped labels, slices and strata; and which inputs were changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from likewise.contracts.comparison import OutputFacts, Tolerance
from likewise.contracts.report import Report, Unusual
from likewise.contracts.words import figure
from likewise.report.formats.html.cells import (
    SHORT_DIGITS,
    Cell,
    Column,
    Table,
    columns,
    count,
    left_out,
    number,
    rows,
    share,
    telling_digits,
    value_cell,
    words,
)

INPUTS_SHOWN = 40
CLASSES_SHOWN = 12
STRATA_SHOWN = 200
CASTS_SHOWN = 100
GENERATED_SHOWN = 200
UNUSUAL = "◆"


def worst_rows(output: OutputFacts, unusual: Sequence[Unusual], tolerance: Tolerance) -> Table | None:
    """The rows of one output where the models differ most, with their inputs and what is unusual about them."""
    found = output.worst_rows
    if not found:
        return None
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
    return Table(
        f"Worst rows of {output.name}, sorted {order}",
        (
            *(columns("#Row", "#Reference", "#Candidate") if measured else columns("#Row", "Reference", "Candidate")),
            *columns("#Difference" if measured else "#Margin of the reference"),
            *columns(*(["Element"] if placed else []), *(["#Times the tolerance"] if allowed else [])),
            *(Column(name, numeric=_numeric(found, name)) for name in kept),
        ),
        rows(
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
    if not found:
        return None
    return Table(
        "Unusual values in the worst rows",
        columns("#Row", "Column", "#Value", "What is unusual"),
        rows(
            (value_cell(entry.row), words(entry.column), value_cell(entry.value), words(entry.why)) for entry in found
        ),
        sortable=len(found) > 1,
        stacks=True,
    )


def element(row: Mapping[str, Any]) -> str:
    """Which element of the answer the row is listed for: its class where it has one, or its place."""
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
    return Table(
        f"Flipped labels of {output.name}: the reference's label down, the candidate's across",
        (Column("Reference"), *(Column(f"→ {label}", numeric=True) for label in kept)),
        rows((words(ours), *(at(ours, theirs) for theirs in kept)) for ours in kept),
        note=("The diagonal counts labels that stayed. " if complete else "")
        + (f"{left} more labels flip less often; they are in the JSON report." if left > 0 else ""),
    )


def slices(report: Report) -> Table | None:
    """Predicates on the inputs that tell failing rows from agreeing ones."""
    found = report.explanation.slices if report.explanation is not None else ()
    if not found:
        return None
    return Table(
        "Which rows fail: predicates that tell failing rows from agreeing ones",
        columns("Rows where", "#Failing", "#Agreeing", "#Of these fail", "#Of the failing rows"),
        rows(
            (
                words(entry.predicate),
                count(entry.failing),
                count(entry.agreeing),
                Cell(share(entry.precision), entry.precision),
                Cell(share(entry.recall), entry.recall),
            )
            for entry in found
        ),
        sortable=len(found) > 1,
    )


def strata(report: Report) -> Table | None:
    """Rows by the values of a column."""
    found = report.comparison.strata
    if not found:
        return None
    outputs = list(dict.fromkeys(name for entry in found for name in entry.worst))[:8]
    return Table(
        "Strata: rows by the values of a column",
        columns("Column", "Value", "#Rows", "#Beyond tolerance", "#Share", *(f"#Largest in {n}" for n in outputs)),
        rows(
            (
                words(entry.column),
                words(entry.value),
                count(entry.rows),
                Cell(figure(entry.rows_beyond), entry.rows_beyond, "bad", "✗", "beyond tolerance")
                if entry.rows_beyond
                else count(0),
                Cell(
                    share(entry.rows_beyond / entry.rows) if entry.rows else "–", entry.rows_beyond / (entry.rows or 1)
                ),
                *(count(entry.worst[name]) if name in entry.worst else Cell("–", tone="quiet") for name in outputs),
            )
            for entry in found[:STRATA_SHOWN]
        ),
        sortable=True,
        note=left_out(len(found) - STRATA_SHOWN),
    )


def generated(report: Report) -> Table | None:
    """Columns for which values were made up."""
    found = report.comparison.generated
    if not found:
        return None
    return Table(
        "Columns whose values were generated",
        columns("Column", "Values", "Why", "Does the model say so?"),
        rows(
            (words(entry.name), words(entry.values), words(entry.why), Cell("yes" if entry.known else "no"))
            for entry in found[:GENERATED_SHOWN]
        ),
        note=left_out(len(found) - GENERATED_SHOWN),
        stacks=True,
    )


def casts(report: Report) -> Table | None:
    """Inputs whose values were changed to fit a model."""
    found = [cast for cast in report.comparison.casts if cast.changed or cast.note]
    if not found:
        return None
    return Table(
        "Inputs that were changed to fit a model's types",
        columns("Column", "Side", "From", "To", "#Values", "#Changed", "#Largest relative change", "Note"),
        rows(
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
            for cast in found[:CASTS_SHOWN]
        ),
        sortable=len(found) > 1,
        note=left_out(len(found) - CASTS_SHOWN),
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
