"""Two runs of a gate → what got worse and what got better. No files, no models.

`measures` compares what was agreed and measured, `coverage` what was looked at; here both become lines for a reader.
Less is worse too: an output, a measure, a batch size, a suite or a value of a column that is no longer there,
fewer rows anywhere, a limit that was loosened. Two runs that do not answer the same question are not compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

from likewise.contracts.diff import Change, Diff, Direction, Told
from likewise.contracts.report import Report
from likewise.contracts.verdict import Outcome
from likewise.contracts.words import at_sizes, runs
from likewise.judge.diff import coverage, measures
from likewise.judge.diff.coverage import fewer_rows, listed, without_figures
from likewise.judge.diff.measures import moved, output_gone, where, worst_of

ALLOW = 10.0
"""Percent by which a measure may get worse, unless somebody says otherwise."""

ELSEWHERE = "with rows in other places"
"""Where measures were worse if that is no batch size but how the rows of one were moved."""


def diff(
    old: Report, new: Report, *, allow: float = ALLOW, other_data: bool = False, names: Sequence[str] = ("old", "new")
) -> Diff:
    """What changed from one run to the next. `allow` is in percent; `other_data`: other rows are intended."""
    changes = tuple(_changes(old, new, allow, other_data=other_data))
    doubts = tuple(coverage.doubts(old, new, other_data=other_data))
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
    elsewhere = not other_data and coverage.other_rows(old, new)
    remedy = "Say --other-data if other rows are intended" if elsewhere else ""
    return Diff(outcome, headline, names[0], names[1], allow, changes, doubts, remedy, lines)


def _changes(old: Report, new: Report, allow: float, *, other_data: bool) -> Iterator[Change]:
    yield coverage.outcome(old, new)
    yield from coverage.outputs(old, new)
    # What was agreed comes before what was measured: figures mean little under other terms.
    yield from measures.limits(old, new)
    yield from measures.policy(old, new)
    yield from coverage.rows(old, new, allow)
    yield from measures.changes(old, new, allow)
    yield from coverage.batch_sizes(old, new, allow)
    yield from coverage.suites(old, new, allow)
    yield from coverage.strata(old, new, allow, other_data=other_data)
    yield from coverage.findings(old, new)
    yield from coverage.artefacts(old, new)


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
        return change.name, change.output, change.direction, without_figures(change.message)
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
        names = f": {listed([suite.partition(' ')[2] for suite in suites])}"
    else:
        places = _batches(group, tried)
    if first.subject == "output":
        told = output_gone(first, places)
        return Told(first, told + names, places, told)
    if first.subject == "rows":
        worst = max(group, key=lambda change: change.percent or 0.0)
        told = fewer_rows(worst, places, of_several=True)
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
    return told, listed([change.name.partition(" ")[2] for change in group])


def _kind(suite: str) -> str:
    return suite.partition(" ")[0]
