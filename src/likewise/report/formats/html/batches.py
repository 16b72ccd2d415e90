"""The candidate in other batches: one row for every size and order, a column for every measure that tells something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from likewise.contracts.comparison import BatchSizeFacts
from likewise.contracts.report import Report
from likewise.contracts.verdict import Outcome
from likewise.report.formats.html.cells import Cell, Column, Table, columns, count, outcome_cell
from likewise.report.formats.html.limits import measured
from likewise.report.words import sentence

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
TROUBLE = "Trouble"


@dataclass(frozen=True, slots=True)
class Place:
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
        f"{left} more measures are in the JSON report." if left else "",
        *dict.fromkeys(text for facts in swept for text in _troubles(facts)),
    )
    return Table(
        "The candidate at several batch sizes" + (" and orders" if report.comparison.batch_orders else ""),
        (
            *columns("Batch", "#Rows"),
            *(Column(_heading(key), numeric=True) for key in kept),
            *columns(*([TROUBLE] if troubles else [])),
        ),
        tuple(
            (
                place.name,
                count(place.rows),
                *(measured(place.measures.get(key), place.outcomes.get(key)) for key in kept),
                *([_trouble(place.facts)] if troubles else []),
            )
            for place in places
        ),
        sortable=True,
        note=" ".join(filter(None, notes)),
    )


def _everything(report: Report) -> Place:
    measures = {(o.name, name): value for o in report.comparison.outputs for name, value in o.measures.items()}
    return Place(Cell("all rows", 0), report.samples, measures, _outcomes(report, None))


def _place(report: Report, facts: BatchSizeFacts) -> Place:
    name = Cell(f"{facts.size:,}" + (f", {facts.order}" if facts.order else ""), facts.size)
    measures = {(output.name, name): value for output in facts.outputs for name, value in output.measures.items()}
    # Limits are judged at sizes; an order has the size of one of them, but not its rows.
    outcomes = {} if facts.order else _outcomes(report, facts.size)
    return Place(name, facts.rows, measures, outcomes, facts)


def _outcomes(report: Report, size: int | None) -> dict[tuple[str, str], Outcome]:
    return {(c.output, c.measure): c.outcome for c in report.verdict.checks if c.batch_size == size}


def _columns(report: Report, places: list[Place]) -> list[tuple[str, str]]:
    """Measures that are always worth a look, and others whose limit is not kept somewhere."""
    failed = {key for place in places for key in _failed(place)}
    found = {key for place in places[1:] for key in place.measures}
    names = (*MEASURES, *sorted({name for _, name in failed} - {*MEASURES}))
    keys = ((output.name, name) for output in report.comparison.outputs for name in names)
    return [key for key in keys if key in found and (key[1] in MEASURES or key in failed)]


def _failed(place: Place) -> set[tuple[str, str]]:
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
