"""A report in a notebook: a compact view, tables to work with, pictures, and progress while it is made."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from likewise.contracts.comparison import OutputFacts, Progress
from likewise.contracts.report import Report
from likewise.contracts.verdict import Outcome, figure
from likewise.errors import UsageError, extra, nearest
from likewise.report.console import Pace, printable
from likewise.report.words import (
    answer_text,
    bound_text,
    cut,
    most_telling,
    remedy_of,
    remedy_told,
    rows_told,
    sentence,
    worst_beyond,
)

if TYPE_CHECKING:
    import pandas as pd


COLOURS = {Outcome.PASS: "#1a7f37", Outcome.FAIL: "#cf222e", Outcome.INCONCLUSIVE: "#9a6700"}
CHECKS_SHOWN = 8
ROWS_SHOWN = 3
INPUTS_SHOWN = 6
CELL = "padding:2px 10px 2px 0;text-align:left;vertical-align:top;background:none"


def compact(report: Report) -> str:
    """The verdict, the limits, the cause and the worst rows, for a cell of a notebook. Names are text, never markup."""
    return f'<div style="font-family:system-ui,sans-serif;line-height:1.4">{"".join(_blocks(report))}</div>'


def _blocks(report: Report) -> Iterator[str]:
    origin, verdict = report.origin, report.verdict
    badge = f"background:{COLOURS[report.outcome]};color:#fff;padding:1px 8px;border-radius:4px;font-weight:600"
    names = f"{_text(origin.reference.name)} → {_text(origin.candidate.name)}"
    yield f'<p><span style="{badge}">{report.outcome}</span> <b>{names}</b><br>{_text(sentence(verdict.headline))}</p>'
    if (remedy := remedy_of(report)) and not report.diagnoses:
        yield f"<p>→ {_text(sentence(remedy))}</p>"
    if report.explanation is not None and not report.passed:
        for diagnosis in report.diagnoses[:1]:
            told = f"<b>Why: {_text(diagnosis.cause)}, {_text(diagnosis.culprit)}</b><br>"
            remedy = f"<br>→ {_text(sentence(remedy_told(diagnosis)))}" if diagnosis.remedy else ""
            yield f"<p>{told}{_text(sentence(diagnosis.evidence))}{remedy}</p>"
    checks = most_telling(verdict.checks, CHECKS_SHOWN)
    if checks:
        lines = [(c.output, c.measure, figure(c.value), bound_text(c), c.outcome) for c in checks]
        yield _table(("output", "measure", "value", "limit", "verdict"), lines)
    if not report.passed:
        for output in report.comparison.outputs:
            rows = worst_beyond(output)[:ROWS_SHOWN]
            if rows:
                yield f"<p>Worst rows of {_text(output.name)}</p>"
                shown = [
                    (r["row"], *(answer_text(r[side]) for side in ("reference", "candidate")), _inputs(r["inputs"]))
                    for r in rows
                ]
                yield _table(("row", "reference", "candidate", "inputs"), shown)
    failing = [suite for suite in verdict.suites if suite.outcome is Outcome.FAIL and not suite.usual]
    if failing:
        yield _table(("suite", "found"), [(suite.name, suite.headline) for suite in failing])
    reach = f"{rows_told(report)}."
    bound = f" {sentence(verdict.confidence.statement)}" if verdict.confidence is not None else ""
    yield f'<p style="opacity:.75">{_text(reach + bound)}</p>'


def _table(headings: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    head = "".join(f'<th scope="col" style="{CELL}">{_text(name)}</th>' for name in headings)
    body = "".join(
        "<tr>" + "".join(f'<td style="{CELL}">{_text(cell)}</td>' for cell in line) + "</tr>" for line in lines
    )
    return f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _text(value: object, limit: int = 400) -> str:
    plain = f"{value:.6g}" if isinstance(value, float) else str(value)
    return escape(printable(cut(plain, limit)))


def _inputs(inputs: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name}={value}" for name, value in list(inputs.items())[:INPUTS_SHOWN])
    return shown if len(inputs) <= INPUTS_SHOWN else f"{shown}, …"


def frame(report: Report, what: str = "checks") -> pd.DataFrame:
    """One part of a report as a DataFrame; `PARTS` names them."""
    import pandas as pd

    if what not in PARTS:
        raise UsageError(f"a report has no part {what!r}{nearest(what, PARTS)}", remedy=f"Parts: {', '.join(PARTS)}")
    return pd.DataFrame([{_whole(name): _whole(value) for name, value in line.items()} for line in PARTS[what](report)])


def _whole(value: Any) -> Any:
    """Text without halves of characters, which no table can hold; anything else as it is."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value


def _checks(report: Report) -> list[dict[str, Any]]:
    return [{**asdict(check), "outcome": str(check.outcome)} for check in report.verdict.checks]


def _measures(report: Report) -> list[dict[str, Any]]:
    return [
        {"output": output.name, "measure": name, "value": value}
        for output in report.comparison.outputs
        for name, value in output.measures.items()
    ]


def _worst_rows(report: Report) -> list[dict[str, Any]]:
    found = []
    for output in report.comparison.outputs:
        for row in output.worst_rows:
            told = {name: row.get(name) for name in ("row", "reference", "candidate", "abs_diff", "severity")}
            found.append({"output": output.name, **told, **{f"input.{name}": v for name, v in row["inputs"].items()}})
    return found


def _batch_sizes(report: Report) -> list[dict[str, Any]]:
    return [
        {"batch_size": facts.size, "rows": facts.rows, "output": output.name, "measure": name, "value": value}
        for facts in report.comparison.batch_sizes
        for output in facts.outputs
        for name, value in output.measures.items()
    ]


def _suites(report: Report) -> list[dict[str, Any]]:
    names = ("kind", "name", "rows", "refused", "blocks", "headline")
    return [{**{n: getattr(s, n) for n in names}, "outcome": str(s.outcome)} for s in report.verdict.suites]


def _strata(report: Report) -> list[dict[str, Any]]:
    counted = [{s.column: s.value, "rows": s.rows, "rows_beyond": s.rows_beyond} for s in report.comparison.strata]
    worst = [{f"worst.{name}": value for name, value in s.worst.items()} for s in report.comparison.strata]
    return [{**counts, **found} for counts, found in zip(counted, worst, strict=True)]


def _timeline(report: Report) -> list[dict[str, Any]]:
    found = report.comparison.timeline
    return [asdict(period) for period in (found.periods if found is not None else ())]


PARTS: dict[str, Callable[[Report], list[dict[str, Any]]]] = {
    "checks": _checks,
    "measures": _measures,
    "worst_rows": _worst_rows,
    "batch_sizes": _batch_sizes,
    "suites": _suites,
    "strata": _strata,
    "timeline": _timeline,
    "findings": lambda report: [{**asdict(f), "severity": str(f.severity)} for f in report.verdict.findings],
    "diagnoses": lambda report: [asdict(diagnosis) for diagnosis in report.diagnoses],
}


def plot(report: Report, output: str | None = None, *, ax: Any = None) -> Any:
    """Candidate against reference with the tolerance band, as Matplotlib axes: a sample of the rows, and the worst."""
    import numpy as np

    with extra("notebook", needed_for="plotting a report"):
        from matplotlib import pyplot
    facts = _to_draw(report, output)
    points = facts.details["scatter"]
    worst = [pair for row in facts.worst_rows if (pair := _worst_values(row))]
    axes = pyplot.subplots()[1] if ax is None else ax
    tolerance = report.policy.tolerance
    sampled = np.array([points["reference"], points["candidate"]], dtype=float)
    extremes = np.array(worst, dtype=float).reshape(-1, 2).T
    shown = np.concatenate([sampled[0], extremes[0]])
    shown = shown[np.isfinite(shown)]
    line = np.linspace(shown.min(), shown.max(), 200) if len(shown) else np.zeros(1)
    allowed = tolerance.absolute + tolerance.relative * np.abs(line)
    axes.fill_between(line, line - allowed, line + allowed, alpha=0.25, label="within tolerance")
    axes.plot(*sampled, ".", markersize=3, label=f"{sampled.shape[1]:,} of {points['rows_seen']:,} rows")
    axes.plot(*extremes, "o", fillstyle="none", color="tab:red", label="worst rows")
    axes.set(xlabel=f"{facts.name}, reference", ylabel="candidate", title=f"{report.outcome}: {facts.name}")
    axes.legend()
    return axes


def _to_draw(report: Report, output: str | None) -> OutputFacts:
    drawable = {facts.name: facts for facts in report.comparison.outputs if facts.details.get("scatter", {}).get("row")}
    if output is None and drawable:
        return max(drawable.values(), key=lambda facts: facts.measures.get("max_abs_diff", 0.0))
    if output not in drawable:
        named = f"no numbers of {output!r}{nearest(output, drawable)}" if output else "no numbers"
        raise UsageError(f"this report has {named} to draw", remedy=f"It has: {', '.join(drawable) or 'none'}")
    return drawable[output]


def _worst_values(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """The two numbers that differ most in a worst row; None where a large answer was not kept."""
    import numpy as np

    found = []
    for side in ("reference", "candidate"):
        answer: Any = row[side]
        if isinstance(answer, Mapping):
            answer = answer.get("worst")
        else:
            for place in row["index"]:
                answer = answer[place]
        found.append(answer)
    return (float(found[0]), float(found[1])) if all(np.isscalar(value) for value in found) else None


@contextmanager
def following() -> Iterator[Callable[[Progress], None] | None]:
    """A line below the cell that says how far the run is, and goes when it ends; None outside of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or not hasattr(shell, "kernel"):
        yield None
        return
    from IPython.display import display

    show: Any = display
    pace, handle = Pace(), show({"text/plain": "…"}, raw=True, display_id=True)
    drawn, phase = 0.0, ""

    def update(progress: Progress) -> None:
        nonlocal drawn, phase
        pace.update({"phase": progress.phase, "done": progress.done, "total": progress.total})
        now = time.monotonic()
        if now - drawn > 0.1 or progress.phase != phase:
            drawn, phase = now, progress.phase
            handle.update({"text/plain": pace.text(now)}, raw=True)

    try:
        yield update
    finally:
        handle.update({"text/plain": "", "text/html": ""}, raw=True)
