"""What both runs cover: outcome, outputs, rows, batch sizes, suites, findings, and which models and data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from likewise.contracts.diffing import Change, Direction
from likewise.contracts.judging import Finding, Outcome, Severity
from likewise.contracts.reporting import Report

NOT_ASKED = "not asked for this time"
"""What became of a suite that the settings of the new run leave out."""

SELECTION = ("samples", "sample", "seed", "stratify")
"""Settings that choose rows from the data."""


def doubts(old: Report, new: Report, *, other_data: bool) -> Iterator[str]:
    """Why the two runs do not answer the same question."""
    for which, report in (("old", old), ("new", new)):
        if report.outcome is Outcome.INCONCLUSIVE:
            yield f"the {which} run is INCONCLUSIVE: {report.verdict.headline}"
    if not {o.name for o in old.comparison.outputs} & {o.name for o in new.comparison.outputs}:
        yield "the two runs have no output in common"
    if not other_data and (why := other_rows(old, new)):
        yield why


def outcome(old: Report, new: Report) -> Change:
    """PASS, FAIL or INCONCLUSIVE, then and now."""
    before, after = old.outcome, new.outcome
    direction = _towards(before, after)
    message = f"the outcome is {after}, " + ("as before" if before is after else f"it was {before}")
    return Change("outcome", "outcome", direction, message, str(before), str(after))


def outputs(old: Report, new: Report) -> Iterator[Change]:
    """Outputs that one of the runs compared and the other did not."""
    before = [output.name for output in old.comparison.outputs]
    after = [output.name for output in new.comparison.outputs]
    for name in (name for name in before if name not in after):
        yield Change("output", name, Direction.WORSE, f"output {name!r} is no longer compared", old=name, output=name)
    for name in (name for name in after if name not in before):
        yield Change("output", name, Direction.OTHER, f"output {name!r} is compared now too", new=name, output=name)


def rows(old: Report, new: Report, allow: float) -> Iterator[Change]:
    """How many rows were compared: fewer show less."""
    before, after = old.samples, new.samples
    percent = 100 * (before - after) / before if before else None
    if percent is not None and percent > allow:
        direction = Direction.WORSE
    else:
        direction = Direction.SAME if before == after else Direction.OTHER
    message = f"{after:,} rows were compared, " + ("as before" if before == after else f"it was {before:,}")
    yield Change("rows", "rows", direction, message, before, after, percent)


def batch_sizes(old: Report, new: Report) -> Iterator[Change]:
    """Batch sizes, and rows in other places of a batch, that one of the runs measured and the other did not."""
    before, after = _batches(old), _batches(new)
    for name, size in ((name, size) for name, size in before.items() if name not in after):
        message = f"{name} is no longer tried"
        yield Change("batch-size", name, Direction.WORSE, message, old=size, batch_size=size)
    for name, size in ((name, size) for name, size in after.items() if name not in before):
        message = f"{name} is tried now too"
        yield Change("batch-size", name, Direction.OTHER, message, new=size, batch_size=size)


def suites(old: Report, new: Report) -> Iterator[Change]:
    """Suites by their outcome; one that is gone, or no longer blocks, is worse."""
    before = {(suite.kind, suite.name): suite for suite in old.verdict.suites}
    after = {(suite.kind, suite.name): suite for suite in new.verdict.suites}
    for key, was in before.items():
        name = " ".join(key)
        if key not in after:
            why = _left_out(new, *key)
            message = f"the suite {name} was {why}" if why else f"the suite {name} is gone"
            told = (message, str(was.outcome), why or None)
            yield Change("suite", name, Direction.WORSE, *told, blocks=was.blocks)
            continue
        now = after[key]
        if was.blocks and not now.blocks:
            message = f"the suite {name} no longer blocks"
            yield Change("suite", name, Direction.WORSE, message, old=True, new=False)
        direction = _towards(was.outcome, now.outcome)
        message = f"the suite {name} is {now.outcome}, "
        message += "as before" if direction is Direction.SAME else f"it was {was.outcome}: {now.headline}"
        yield Change("suite", name, direction, message, str(was.outcome), str(now.outcome), blocks=was.blocks)
    for key in (key for key in after if key not in before):
        name, now = " ".join(key), after[key]
        message = f"the suite {name} is new: {now.outcome}, {now.headline}"
        yield Change("suite", name, Direction.OTHER, message, new=str(now.outcome), blocks=False)


def strata(old: Report, new: Report) -> Iterator[Change]:
    """Columns whose values are no longer told apart, and values that have rows beyond tolerance now."""
    before = {(stratum.column, stratum.value): stratum for stratum in old.comparison.strata}
    after = {(stratum.column, stratum.value): stratum for stratum in new.comparison.strata}
    columns = {column for column, _ in after}
    for column in dict.fromkeys(column for column, _ in before if column not in columns):
        yield Change("stratum", column, Direction.WORSE, f"the values of {column} are no longer told apart", old=column)
    for key in (key for key in before if key in after):
        was, now = before[key].rows_beyond, after[key].rows_beyond
        if not was and now:
            name = " = ".join(key)
            message = f"{now:,} rows with {name} are beyond tolerance now"
            yield Change("stratum", name, Direction.WORSE, message, was, now)


def findings(old: Report, new: Report) -> Iterator[Change]:
    """Findings that are new or gone, whatever their figures. Only a new failure is worse: the rest does not block."""
    before, after = Counter(map(_kind, old.verdict.findings)), Counter(map(_kind, new.verdict.findings))
    for finding in new.verdict.findings:
        if not before[_kind(finding)]:
            direction = Direction.WORSE if finding.severity is Severity.FAILURE else Direction.OTHER
            message = f"new {finding.severity}: {finding.message}"
            yield Change("finding", finding.code, direction, message, new=str(finding.severity), output=finding.output)
    for finding in old.verdict.findings:
        if not after[_kind(finding)]:
            direction = Direction.BETTER if finding.severity is Severity.FAILURE else Direction.OTHER
            message = f"no longer a {finding.severity}: {finding.message}"
            yield Change("finding", finding.code, direction, message, old=str(finding.severity), output=finding.output)


def artefacts(old: Report, new: Report) -> Iterator[Change]:
    """Are models and data the very same, by their SHA-256?"""
    for what in ("reference", "candidate", "data"):
        before, after = getattr(old.origin, what), getattr(new.origin, what)
        if before.sha256 is None or after.sha256 is None:
            direction, message = Direction.OTHER, f"whether the {what} is the same cannot be told: no SHA-256"
        elif before.sha256 == after.sha256:
            direction, message = Direction.SAME, f"the {what} is the same"
        else:
            direction, message = Direction.OTHER, f"the {what} is another: {after.name}, it was {before.name}"
        yield Change(what, what, direction, message, before.sha256, after.sha256)


def other_rows(old: Report, new: Report) -> str:
    """Why the rows of the two runs are not the same rows; nothing if they are."""
    before, after = old.origin.data, new.origin.data
    if before.sha256 is None or after.sha256 is None:
        return "whether both runs are on the same data cannot be told: it has no SHA-256"
    if before.sha256 != after.sha256:
        return f"the new run is on other data ({after.name}) than the old one ({before.name})"
    if _selected(old) != _selected(new):
        return f"the new run is on other rows of {after.name} than the old one"
    return ""


def _batches(report: Report) -> dict[str, int]:
    """Every batch size at which something was measured, by its name."""
    facts = report.comparison
    sizes = {f"batch size {found.size}": found.size for found in facts.batch_sizes if found.outputs}
    orders = {f"batch size {o.size}, {o.order}": o.size for o in facts.batch_orders if o.outputs}
    return {**sizes, **orders}


def _selected(report: Report) -> dict[str, object]:
    """How rows were chosen, where they were. The first rows are told by their number: more of them hold the fewer."""
    stated = {name: report.origin.settings.get(name) for name in SELECTION}
    if stated["samples"] is None or (stated["sample"] in (None, "first") and stated["stratify"] is None):
        return {"sample": "first"}
    return stated


def _towards(old: Outcome, new: Outcome) -> Direction:
    """From FAIL to INCONCLUSIVE and back, no way is better: either less is known, or that it fails."""
    if old is new:
        return Direction.SAME
    return Direction.BETTER if new is Outcome.PASS else Direction.WORSE


def _left_out(report: Report, kind: str, name: str) -> str:
    """Which setting of the run leaves a suite out; nothing if none does."""
    settings = report.origin.settings
    if kind == "edge" and settings.get("edge") == "off":
        return f"{NOT_ASKED} (--edge off)"
    if kind == "edge" and name in settings.get("skip_suites", ()):
        return f"{NOT_ASKED} (--skip-suite)"
    if kind == "setting" and not settings.get("matrix"):
        return f"{NOT_ASKED} (no --matrix)"
    return ""


def without_figures(text: str) -> str:
    """What two messages have in common that differ in their figures only."""
    return re.sub(r"[-+]?\d[\d,.]*(e[-+]?\d+)?", "#", text)


def _kind(finding: Finding) -> tuple[str, ...]:
    """What makes two findings the same: everything but their figures."""
    return (finding.code, str(finding.severity), finding.output or "", without_figures(finding.message))
