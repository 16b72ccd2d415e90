"""What a reader is told of all changes: one line for what is one thing, and nothing twice.

Batch sizes become one line for each measure, suites one line for each way they went, and a finding is left out
where the measure, the limit or the suite behind it is told. What decides the outcome always keeps a line.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from likewise.contracts.diffing import Change, Direction
from likewise.contracts.judging import Outcome
from likewise.diffing.coverage import NOT_ASKED, without_figures
from likewise.diffing.measures import moved
from likewise.diffing.weighing import worst_of
from likewise.showing import at_sizes, runs

NAMES_SHOWN = 20
"""Suites named in one line; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Told:
    """One line: a change, or the worst of several that are one thing. `where` names the batch sizes it stands for."""

    change: Change
    message: str
    where: str = ""

    @property
    def headline(self) -> str:
        """The message without the names of the suites, or what they found."""
        return self.message.partition(": ")[0] if self.change.subject == "suite" else self.message


def told(changes: Sequence[Change], *directions: Direction) -> tuple[Told, ...]:
    """The changes that lead there, folded, in their order."""
    elsewhere = _Elsewhere(changes)
    groups: dict[Hashable, list[Change]] = {}
    for place, change in enumerate(changes):
        if change.direction in directions and not elsewhere.tells(change):
            groups.setdefault(_thing(change, place), []).append(change)
    tried = sorted({c.batch_size for c in changes if c.subject == "measure" and c.batch_size is not None})
    return tuple(_line(group, tried) for group in groups.values())


class _Elsewhere:
    """What other changes tell already."""

    def __init__(self, changes: Iterable[Change]) -> None:
        known = list(changes)
        self._over_all_rows = {_without_size(c) for c in known if c.batch_size is None}
        self._moved = {(c.subject, c.name, c.direction) for c in known if c.direction is not Direction.SAME}
        self._suites = {c.name: c for c in known if c.subject == "suite"}
        self._looser = ("policy", "tolerance", Direction.WORSE) in self._moved

    def tells(self, change: Change) -> bool:
        if change.subject == "finding":
            return self._tells_finding(change)
        # Nothing beyond a wider tolerance says nothing; that it is wider is told.
        if self._looser and change.direction is Direction.UNKNOWN and change.old == change.new == 0:
            return True
        return change.batch_size is not None and _without_size(change) in self._over_all_rows

    def _tells_finding(self, change: Change) -> bool:
        """What is worse is left out only where something is told as worse that it follows from."""
        kind, found, _ = change.name.rpartition("-suite")
        if found:
            name = change.message.partition(": ")[2].partition(": ")[0]
            suite = self._suites.get(f"{kind} {name}")
            worse = suite is not None and suite.direction is Direction.WORSE
            return worse if change.direction is Direction.WORSE else suite is not None
        measure = f"{change.output}.{change.name}"
        directions = [Direction.WORSE] if change.direction is Direction.WORSE else [*Direction]
        return any((subject, measure, d) in self._moved for subject in ("measure", "limit") for d in directions)


def _without_size(change: Change) -> Hashable:
    return change.subject, change.name, change.direction, change.new is None


def _thing(change: Change, place: int) -> Hashable:
    """What makes changes one thing to a reader; the place keeps all others apart."""
    if change.subject == "suite":
        old = change.old if change.new in set(Outcome) else None
        return _kind(change), change.direction, old, str(change.new), change.blocks
    if change.subject == "batch-size":
        return change.subject, change.direction, ", " in change.name
    if change.subject == "finding":
        return change.name, change.output, change.direction, without_figures(change.message)
    return _without_size(change) if change.batch_size is not None else place


def _line(group: Sequence[Change], tried: Sequence[int]) -> Told:
    first = group[0]
    if len(group) == 1:
        where = "" if first.batch_size is None else f"at batch size {first.batch_size}"
        return Told(first, first.message, where)
    if first.subject == "measure":
        where = at_sizes([c.batch_size for c in group if c.batch_size is not None], tried)
        worst = worst_of(group)
        return Told(worst, moved(worst, where, of_several=True), where)
    if first.subject == "suite":
        return Told(first, _suites(group))
    if first.subject == "batch-size":
        sizes = runs(sorted({c.batch_size for c in group if c.batch_size is not None}))
        now = "no longer tried" if first.new is None else "tried now too"
        moved_rows = f"rows in other places are {now}, in batches of {sizes}"
        return Told(first, moved_rows if ", " in first.name else f"batch sizes {sizes} are {now}")
    return Told(first, f"{first.message}; {len(group) - 1} more like it")


def _suites(group: Sequence[Change]) -> str:
    first = group[0]
    suites = f"{len(group)} {_kind(first)} suites"
    if first.new is None:
        told = f"{suites} are gone"
    elif str(first.new).startswith(NOT_ASKED):
        told = f"{suites} were {first.new}"
    elif first.new is False:
        told = f"{suites} no longer block"
    elif first.old is None:
        told = f"{suites} are new, and {first.new}"
    else:
        told = f"{suites} are {first.new}, they were {first.old}"
    names = [change.name.partition(" ")[2] for change in group]
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{told}: {', '.join(names[:NAMES_SHOWN])}{more}"


def _kind(change: Change) -> str:
    return change.name.partition(" ")[0]
