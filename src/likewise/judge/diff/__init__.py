"""Two runs of a gate → what got worse and what got better. No files, no models.

`measures` compares what was agreed and measured; here is what was looked at, and how both become lines for a reader.
Less is worse too: an output, a measure, a batch size, a suite or a value of a column that is no longer there,
fewer rows anywhere, a limit that was loosened. Two runs that do not answer the same question are not compared.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from likewise.contracts.comparison import BatchSizeFacts
from likewise.contracts.report import Report
from likewise.contracts.verdict import Change, Diff, Direction, Finding, Outcome, Severity, Told, at_sizes, runs
from likewise.data.cells import listed
from likewise.judge.diff import measures
from likewise.judge.diff.measures import moved, output_gone, where, worst_of
from likewise.judge.variations import suite_findings

ALLOW = 10.0
"""Percent by which a measure may get worse, unless somebody says otherwise."""

ELSEWHERE = "with rows in other places"
"""Where measures were worse if that is no batch size but how the rows of one were moved."""

NOT_ASKED, NO_TIME = "not asked for this time", "not tried for lack of time"
"""What became of a suite that the settings of the new run leave out, or that would have taken too long."""

COMPARED, TRIED = "rows compared", "rows tried"
"""Rows of a batch size or a suite: answered by both models, and those with what both refuse."""

NAMES_SHOWN = 20
"""Suites or values named in one line; the rest is counted."""

SELECTION = ("samples", "sample", "seed", "stratify")
"""Settings that choose rows from the data."""


def diff(
    old: Report, new: Report, *, allow: float = ALLOW, other_data: bool = False, names: Sequence[str] = ("old", "new")
) -> Diff:
    """What changed from one run to the next. `allow` is in percent; `other_data`: other rows are intended."""
    changes = tuple(_changes(old, new, allow, other_data=other_data))
    doubts = tuple(_doubts(old, new, other_data=other_data))
    lines = tuple(line for direction in Direction for line in told(changes, direction))
    worse = [line for line in lines if line.change.direction is Direction.WORSE]
    unknown = [line for line in lines if line.change.direction is Direction.UNKNOWN]
    if doubts:
        outcome, headline = Outcome.INCONCLUSIVE, doubts[0]
    elif worse:
        more = f"; {len(worse) - 1} more got worse" if len(worse) > 1 else ""
        outcome, headline = Outcome.FAIL, (worse[0].summary or worse[0].message) + more
    elif unknown:
        outcome, headline = Outcome.INCONCLUSIVE, unknown[0].message
    else:
        outcome, headline = Outcome.PASS, "nothing got worse"
    elsewhere = not other_data and _other_rows(old, new)
    remedy = "Use --other-data if other rows are intended" if elsewhere else ""
    return Diff(outcome, headline, names[0], names[1], allow, changes, doubts, remedy, lines)


def diff_gates(
    old: Mapping[str, Report],
    new: Mapping[str, Report],
    *,
    allow: float = ALLOW,
    other_data: bool = False,
    names: Sequence[str] = ("old", "new"),
) -> dict[str, Diff]:
    """What changed from gate to gate of the same name; one that is gone is worse, a new one is held to nothing."""
    found = {}
    for gate in dict.fromkeys((*old, *new)):
        if gate in old and gate in new:
            found[gate] = diff(old[gate], new[gate], allow=allow, other_data=other_data, names=names)
        else:
            outcome, told = (Outcome.FAIL, "gone") if gate in old else (Outcome.PASS, "new")
            found[gate] = Diff(outcome, f"the gate {gate!r} is {told}", names[0], names[1], allow, ())
    return found


def _changes(old: Report, new: Report, allow: float, *, other_data: bool) -> Iterator[Change]:
    yield _outcome(old, new)
    yield from _outputs(old, new)
    # What was agreed comes before what was measured: figures mean little under other terms.
    yield from measures.limits(old, new)
    yield from measures.policy(old, new)
    yield from _rows(old, new, allow)
    yield from measures.changes(old, new, allow)
    yield from _batch_sizes(old, new, allow)
    yield from _suite_outcomes(old, new, allow)
    yield from _strata(old, new, allow, other_data=other_data)
    yield from _findings(old, new)
    yield from _artefacts(old, new)


def told(changes: Sequence[Change], *directions: Direction) -> tuple[Told, ...]:
    """The changes that lead there, folded, in their order."""
    elsewhere = _Elsewhere(changes)
    groups: dict[Hashable, list[Change]] = {}
    for place, change in enumerate(changes):
        if change.direction in directions and not elsewhere.tells(change):
            groups.setdefault(_thing(change, place), []).append(change)
    sizes = {c.batch_size for c in changes if c.subject == "measure" and not c.place}
    tried = sorted(size for size in sizes if size is not None)
    return tuple(_line(group, tried) for group in groups.values())


class _Elsewhere:
    """What other changes tell already: a line is left out where the thing behind it has one."""

    def __init__(self, changes: Iterable[Change]) -> None:
        known = list(changes)
        on_data = [c for c in known if not c.place]
        self._over_all_rows = {_without_place(c) for c in on_data if c.batch_size is None}
        self._moved = {(c.subject, c.name, c.direction) for c in on_data if c.direction is not Direction.SAME}
        self._fewer = max((c.percent or 0.0 for c in on_data if (c.subject, c.name) == ("rows", "rows")), default=0.0)
        self._suites = {c.name: c for c in known if c.subject == "suite"}
        self._looser = ("policy", "tolerance", Direction.WORSE) in self._moved

    def tells(self, change: Change) -> bool:
        if change.subject == "finding":
            return self._tells_finding(change)
        # Nothing beyond a wider tolerance says nothing; that it is wider is told.
        if self._looser and change.direction is Direction.UNKNOWN and change.old == change.new == 0:
            return True
        if change.suite and self._tells_in_suite(change):
            return True
        if change.subject == "rows" and change.name != "rows":
            return (change.percent or 0.0) <= self._fewer
        placed = change.batch_size is not None or bool(change.place)
        return placed and _without_place(change) in self._over_all_rows

    def _tells_in_suite(self, change: Change) -> bool:
        """A suite that went the same way tells of its figures; those that weigh nothing are not told."""
        suite = self._suites.get(change.suite)
        return change.direction is Direction.OTHER or (suite is not None and suite.direction is change.direction)

    def _tells_finding(self, change: Change) -> bool:
        """What is worse is left out only where something is told as worse that it follows from."""
        if change.suite:
            suite = self._suites.get(change.suite)
            worse = suite is not None and suite.direction is Direction.WORSE
            return worse if change.direction is Direction.WORSE else suite is not None
        measure = f"{change.output}.{change.name}"
        directions = [Direction.WORSE] if change.direction is Direction.WORSE else [*Direction]
        return any((subject, measure, d) in self._moved for subject in ("measure", "limit") for d in directions)


def _without_place(change: Change) -> Hashable:
    subject = "measure" if change.subject == "suite-measure" else change.subject
    return subject, change.name, change.direction, change.new is None


def _thing(change: Change, place: int) -> Hashable:
    """What makes changes one thing to a reader; the place keeps all others apart."""
    if change.subject == "suite":
        old = change.old if change.new in set(Outcome) else None
        return _kind(change.name), change.direction, old, str(change.new), change.blocks
    if change.subject == "batch-size":
        return change.subject, change.direction, bool(change.place)
    if change.subject == "finding":
        return change.name, change.output, change.direction, _without_figures(change.message)
    if change.suite:
        what = change.output if change.subject == "suite-measure" else change.name
        return change.subject, what, change.direction, change.new is None, _kind(change.suite), change.blocks
    return _without_place(change) if change.batch_size is not None else place


def _line(group: Sequence[Change], tried: Sequence[int]) -> Told:
    first = group[0]
    if len(group) == 1:
        return Told(first, first.message, where(first), first.summary)
    if first.subject in ("measure", "suite-measure", "rows", "output"):
        return _placed(group, tried)
    if first.subject == "suite":
        told, names = _suites(group)
        return Told(first, f"{told}: {names}", summary=told)
    if first.subject == "batch-size":
        sizes = runs(sorted({c.batch_size for c in group if c.batch_size is not None}))
        now = "no longer tried" if first.new is None else "tried now too"
        moved_rows = f"rows in other places are {now}, in batches of {sizes}"
        return Told(first, moved_rows if first.place else f"batch sizes {sizes} are {now}")
    return Told(first, f"{first.message}; {len(group) - 1} more like it")


def _placed(group: Sequence[Change], tried: Sequence[int]) -> Told:
    """One thing in several batches or suites, by the place where it is worst."""
    first, names = group[0], ""
    suites = list(dict.fromkeys(change.suite for change in group if change.suite))
    if len(suites) == 1:
        places = where(first)
    elif suites:
        places = f"in {len(suites)} {_kind(first.suite)} suites"
        names = f": {listed([suite.partition(' ')[2] for suite in suites], NAMES_SHOWN)}"
    else:
        places = _batches(group, tried)
    if first.subject == "output":
        told = output_gone(first, places)
        return Told(first, told + names, places, told)
    if first.subject == "rows":
        worst = max(group, key=lambda change: change.percent or 0.0)
        told = _fewer_rows(worst, places, of_several=True)
        return Told(worst, told + names, places, told)
    same = [change for change in group if change.name == first.name]
    worst, others = worst_of(same), len({change.name for change in group}) - 1
    more = f"; {others} more of its measures too" if others else ""
    told = moved(worst, places, of_several=len(same) > 1) + more
    return Told(worst, told + names, places, told)


def _batches(group: Sequence[Change], tried: Sequence[int]) -> str:
    """Batch sizes, and whether rows were moved within one."""
    sizes = sorted({c.batch_size for c in group if c.batch_size is not None and not c.place})
    if len(sizes) == len(group):
        return at_sizes(sizes, tried)
    return f"{at_sizes(sizes, tried)} and {ELSEWHERE}" if sizes else ELSEWHERE


def _suites(group: Sequence[Change]) -> tuple[str, str]:
    """What became of several suites, and which they are."""
    first = group[0]
    suites = f"{len(group)} {_kind(first.name)} suites"
    if first.new is None:
        told = f"{suites} are gone"
    elif first.new is False:
        told = f"{suites} no longer block"
    elif first.new not in set(Outcome):
        told = f"{suites} were {first.new}"
    elif first.old is None:
        told = f"{suites} are new, and {first.new}"
    else:
        told = f"{suites} are {first.new}, they were {first.old}"
    return told, listed([change.name.partition(" ")[2] for change in group], NAMES_SHOWN)


def _kind(suite: str) -> str:
    return suite.partition(" ")[0]


def _doubts(old: Report, new: Report, *, other_data: bool) -> Iterator[str]:
    """Why the two runs do not answer the same question."""
    for which, report in (("old", old), ("new", new)):
        if report.outcome is Outcome.INCONCLUSIVE:
            yield f"the {which} run is INCONCLUSIVE: {report.verdict.headline}"
    if not {o.name for o in old.comparison.outputs} & {o.name for o in new.comparison.outputs}:
        yield "the two runs have no output in common"
    if not other_data and (why := _other_rows(old, new)):
        yield why


def _outcome(old: Report, new: Report) -> Change:
    """PASS, FAIL or INCONCLUSIVE, then and now."""
    before, after = old.outcome, new.outcome
    direction = _towards(before, after)
    message = f"the outcome is {after}, " + ("as before" if before is after else f"it was {before}")
    return Change("outcome", "outcome", direction, message, str(before), str(after))


def _outputs(old: Report, new: Report) -> Iterator[Change]:
    """Outputs that one of the runs compared and the other did not."""
    before = [output.name for output in old.comparison.outputs]
    after = [output.name for output in new.comparison.outputs]
    for name in (name for name in before if name not in after):
        yield Change("output", name, Direction.WORSE, f"output {name!r} is no longer compared", old=name, output=name)
    for name in (name for name in after if name not in before):
        yield Change("output", name, Direction.OTHER, f"output {name!r} is compared now too", new=name, output=name)


def _rows(old: Report, new: Report, allow: float) -> Iterator[Change]:
    """How many rows were compared: fewer show less."""
    before, after = old.samples, new.samples
    percent = _percent_fewer(before, after)
    fewer = percent is not None and percent > allow
    direction = Direction.WORSE if fewer else Direction.SAME if before == after else Direction.OTHER
    compared = f"{after:,} row{'s' * (after != 1)} compared, "
    message = compared + ("as before" if before == after else f"{before:,} before")
    yield Change("rows", "rows", direction, message, before, after, percent)


def _batch_sizes(old: Report, new: Report, allow: float) -> Iterator[Change]:
    """Batch sizes, and rows in other places of a batch, that are gone, new, or measured on fewer rows."""
    before, after, less = _batches_tried(old), _batches_tried(new), measures.less_is(new)
    for name, was in before.items():
        if name not in after:
            message = f"{name} is no longer tried"
            yield Change("batch-size", name, less, message, was.size, batch_size=was.size, place=was.order)
            continue
        told = Change("rows", COMPARED, less, "", batch_size=was.size, place=was.order)
        yield from _fewer(told, was.rows, after[name].rows, allow)
    for name, now in ((name, facts) for name, facts in after.items() if name not in before):
        message, size = f"{name} is tried now too", now.size
        yield Change("batch-size", name, Direction.OTHER, message, new=size, batch_size=size, place=now.order)


def _suite_outcomes(old: Report, new: Report, allow: float) -> Iterator[Change]:
    """Suites by their outcome and their rows; one that is gone, or no longer blocks, is worse."""
    yield from _suite_rows(old, new, allow)
    before = {(suite.kind, suite.name): suite for suite in old.verdict.suites}
    after = {(suite.kind, suite.name): suite for suite in new.verdict.suites}
    for key, was in before.items():
        name = " ".join(key)
        if key not in after:
            why = _left_out(new, *key)
            message = f"the suite {name} was {why}" if why else f"the suite {name} is gone"
            gone = Direction.OTHER if why == NO_TIME else Direction.WORSE
            yield Change("suite", name, gone, message, str(was.outcome), why or None, blocks=was.blocks)
            continue
        now = after[key]
        if was.blocks and not now.blocks:
            message = f"the suite {name} no longer blocks"
            yield Change("suite", name, Direction.WORSE, message, old=True, new=False)
        direction = _towards(was.outcome, now.outcome)
        same = direction is Direction.SAME
        summary = f"the suite {name} is {now.outcome}, " + ("as before" if same else f"it was {was.outcome}")
        message = summary if same else f"{summary}: {now.headline}"
        outcomes = (str(was.outcome), str(now.outcome))
        yield Change("suite", name, direction, message, *outcomes, blocks=was.blocks, summary=summary)
    for key in (key for key in after if key not in before):
        name, now = " ".join(key), after[key]
        message = f"the suite {name} is new: {now.outcome}, {now.headline}"
        yield Change("suite", name, Direction.OTHER, message, new=str(now.outcome), blocks=False)


def _strata(old: Report, new: Report, allow: float, *, other_data: bool) -> Iterator[Change]:
    """Columns whose values are no longer told apart, and values that are gone, rarer or beyond tolerance now."""
    before = {(stratum.column, stratum.value): stratum for stratum in old.comparison.strata}
    after = {(stratum.column, stratum.value): stratum for stratum in new.comparison.strata}
    columns = {column for column, _ in after}
    for column in dict.fromkeys(column for column, _ in before if column not in columns):
        yield Change("stratum", column, Direction.WORSE, f"the values of {column} are no longer told apart", old=column)
    for column in sorted(columns):
        was_rows = {value: stratum.rows for (known, value), stratum in before.items() if known == column}
        now_rows = {value: stratum.rows for (known, value), stratum in after.items() if known == column}
        yield from _values(column, was_rows, now_rows, allow, other_data=other_data)
    for key in (key for key in before if key in after):
        was, now = before[key].rows_beyond, after[key].rows_beyond
        if not was and now:
            name = " = ".join(key)
            message = f"{now:,} row{'s' * (now != 1)} with {name} {'is' if now == 1 else 'are'} beyond tolerance now"
            yield Change("stratum", name, Direction.WORSE, message, was, now)


def _findings(old: Report, new: Report) -> Iterator[Change]:
    """Findings that are new or gone, whatever their figures. Only a new failure is worse: the rest does not block."""
    for is_new, report, other in ((True, new, old), (False, old, new)):
        known = set(map(_without_its_figures, other.verdict.findings))
        # Older reports tell of every length by itself.
        tried = report.verdict.suites
        told = [*suite_findings(tried), *(entry for suite in tried for entry in suite_findings([suite]))]
        suites = {finding: f"{suite.kind} {suite.name}" for finding, suite in told}
        for finding in report.verdict.findings:
            if _without_its_figures(finding) in known:
                continue
            direction = Direction.WORSE if is_new else Direction.BETTER
            severity = str(finding.severity)
            yield Change(
                "finding",
                finding.code,
                direction if finding.severity is Severity.FAILURE else Direction.OTHER,
                f"new {severity}: {finding.message}" if is_new else f"no longer a {severity}: {finding.message}",
                old=None if is_new else severity,
                new=severity if is_new else None,
                output=finding.output,
                place=suites.get(finding, ""),
            )


def _artefacts(old: Report, new: Report) -> Iterator[Change]:
    """Are models and data the very same, by their SHA-256?"""
    for what in ("reference", "candidate", "data"):
        before, after = getattr(old.origin, what), getattr(new.origin, what)
        if before.sha256 is None or after.sha256 is None:
            direction, message = Direction.OTHER, f"whether the {what} is the same cannot be told: no SHA-256"
        elif before.sha256 == after.sha256:
            direction, message = Direction.SAME, f"the {what} is the same"
        else:
            direction, message = Direction.OTHER, f"the {what} has changed: {after.name}, it was {before.name}"
        yield Change(what, what, direction, message, before.sha256, after.sha256)


def _other_rows(old: Report, new: Report) -> str:
    """Why the rows of the two runs are not the same rows; nothing if they are."""
    before, after = old.origin.data, new.origin.data
    if before.sha256 is None or after.sha256 is None:
        return "whether both runs are on the same data cannot be told: it has no SHA-256"
    if before.sha256 != after.sha256:
        return f"the new run is on other data ({after.name}) than the old one ({before.name})"
    if _selected(old) != _selected(new):
        return f"the new run is on other rows of {after.name} than the old one"
    return ""


def _fewer_rows(change: Change, where: str, *, of_several: bool = False) -> str:
    """That there are fewer rows somewhere, as the start of a sentence."""
    worst = "at worst " if of_several else ""
    return f"{change.name} {where} went {worst}from {change.old:,} to {change.new:,}"


def _fewer(told: Change, was: int, now: int, allow: float) -> Iterator[Change]:
    """The change if there are clearly fewer rows; more or nearly as many are no news beside those of all data."""
    percent = _percent_fewer(was, now)
    if percent is not None and percent > allow:
        change = replace(told, old=was, new=now, percent=percent)
        yield replace(change, message=_fewer_rows(change, where(change)))


def _percent_fewer(was: int, now: int) -> float | None:
    return 100 * (was - now) / was if was else None


def _suite_rows(old: Report, new: Report, allow: float) -> Iterator[Change]:
    """Suites of both runs with fewer rows. What both models refuse was tried, and shows less than an answer."""
    before, after = _rows_of_suites(old), _rows_of_suites(new)
    blocking = {f"{suite.kind} {suite.name}" for suite in old.verdict.suites if suite.blocks}
    for name in (name for name in before if name in after):
        told = Change("rows", COMPARED, measures.less_is(new), "", blocks=name in blocking, place=name)
        (compared, tried), (compared_now, tried_now) = before[name], after[name]
        found = tuple(_fewer(told, compared, compared_now, allow))
        yield from found or _fewer(replace(told, name=TRIED), tried, tried_now, allow)


def _rows_of_suites(report: Report) -> dict[str, tuple[int, int]]:
    """Rows compared and rows tried, by kind and name. Where facts and verdict do not agree, the fewer."""
    found = {}
    for facts, verdict in zip(report.comparison.suites, report.verdict.suites, strict=True):
        compared = min(facts.comparison.rows, verdict.rows)
        found[f"{facts.kind} {facts.name}"] = compared, compared + min(facts.refused, verdict.refused)
    return found


def _values(
    column: str, was: Mapping[str, int], now: Mapping[str, int], allow: float, *, other_data: bool
) -> Iterator[Change]:
    """Values of a column that are gone, or that have fewer rows. How many of each there are is up to the data."""
    gone = [value for value in was if not now.get(value) and was[value]]
    if gone:
        values = f"the value {gone[0]} of {column} has" if len(gone) == 1 else f"{len(gone)} values of {column} have"
        told = f"{values} no rows any more{', which counts on other data too' if other_data else ''}"
        message = f"{told}: {listed(gone, NAMES_SHOWN)}" if len(gone) > 1 else told
        yield Change("stratum", column, Direction.WORSE, message, old=gone, summary=told)
    fewer = {value: _percent_fewer(was[value], now[value]) or 0.0 for value in was if now.get(value)}
    rarer = [value for value, percent in fewer.items() if percent > allow]
    if rarer and not other_data:
        worst = max(rarer, key=lambda value: fewer[value])
        more = f"; {len(rarer) - 1} more of its values have fewer" if len(rarer) > 1 else ""
        message = f"rows with {column} = {worst} went from {was[worst]:,} to {now[worst]:,}{more}"
        yield Change("stratum", column, Direction.WORSE, message, was[worst], now[worst], fewer[worst])


def _batches_tried(report: Report) -> dict[str, BatchSizeFacts]:
    """Every batch size at which something was measured, by its name."""
    facts = report.comparison
    sizes = {f"batch size {found.size}": found for found in facts.batch_sizes if found.outputs}
    orders = {f"batch size {o.size}, {o.order}": o for o in facts.batch_orders if o.outputs}
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
    if any(name in left.names for left in report.comparison.untried if left.kind == kind):
        return NO_TIME
    if kind == "edge" and settings.get("edge") == "off":
        return f"{NOT_ASKED} (--edge off)"
    if kind == "edge" and name in settings.get("skip_suites", ()):
        return f"{NOT_ASKED} (--skip-suite)"
    if kind == "setting" and not settings.get("matrix"):
        return f"{NOT_ASKED} (no --matrix)"
    return ""


def _without_figures(text: str) -> str:
    """What two messages have in common that differ in their figures only."""
    return re.sub(r"[-+]?\d[\d,.]*(e[-+]?\d+)?", "#", text)


def _without_its_figures(finding: Finding) -> tuple[str, ...]:
    """What makes two findings the same: everything but their figures."""
    return (finding.code, str(finding.severity), finding.output or "", _without_figures(finding.message))
