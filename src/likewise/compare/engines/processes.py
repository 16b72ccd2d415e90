"""Several processes of this machine, each with both models open.

Rows of files are read by them, a part each; others are read here and handed out chunk by chunk. The chunks, and the
calls within them, are those of the local engine: every row is asked in the same company wherever that happens, and the
report is the same to the bit. A process that dies takes nothing along: what it was at is done here.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Protocol

from likewise.compare.engines import Run, Session
from likewise.compare.engines.local import Crew, LocalRun, Observed, Work, carried_out
from likewise.compare.observe import Prepared, prepare
from likewise.contracts.comparison import Plan
from likewise.contracts.data import Batch, Source
from likewise.contracts.models import Model
from likewise.data.readers.arrays import ArraySource
from likewise.data.readers.tables import TableSource
from likewise.data.selection import Selection, Stratified
from likewise.errors import DataError, UsageError
from likewise.models.remote import Line, ModelProcessEnded, open_line
from likewise.registry import adapter

PARTS, CHUNKS = 4, 16
"""Parts of the data for each process, so that none waits long for the last one; and chunks of a part at most."""


class ProcessEngine:
    """Carries out a plan in `plan.workers` processes beside this one, which reads and adds up."""

    name = "processes"

    def run(self, plan: Plan, session: Session) -> Run:
        require_stored(session.models.values())

        @contextmanager
        def gathered(prepared: Prepared, sizes: Mapping[str, int]) -> Iterator[Crew]:
            opening = partial(begin, told_to_others(plan), prepared.first, sizes)
            with ExitStack() as stack:
                lines = [stack.enter_context(closing(open_line())) for _ in range(plan.workers)]
                yield Hands([_Process(line, line.post("call", opening)) for line in lines], stack.close)

        return carried_out(plan, session, gathered)


def require_stored(models: Iterable[Model]) -> None:
    """A usage error for a model that no other process can open."""
    for model in models:
        if not isinstance(model.target, str | PathLike):
            raise UsageError(
                f"{model.name} is an object of this process, and `workers` are processes of their own",
                remedy="Save it and give its path, or leave `workers` out",
            )
        if adapter(model.framework).elsewhere:
            raise UsageError(
                f"{model.name} answers over one connection, which several `workers` cannot share",
                remedy="Leave `workers` out; what serves it may work on several requests at a time",
            )


def told_to_others(plan: Plan) -> Plan:
    """The plan without what only this process can read or call."""
    return replace(
        plan, source=ArraySource(plan.source.location, {}, stop=0), progress=None, decided=None, checkpoint=None
    )


def parts_of(source: Source, workers: int, size: int) -> Sequence[Source]:
    """Parts of the rows for others to read, whole batches of that size.

    None where the rows are in this process only, where they are counted out or known by their ids, and where there
    would be hardly one for each.
    """
    if isinstance(source, Stratified | Selection):
        chosen = source.samples is not None or (isinstance(source, Selection) and source.row_id is not None)
        return () if chosen else [replace(source, source=part) for part in parts_of(source.source, workers, size)]
    stored = isinstance(source, TableSource) or (isinstance(source, ArraySource) and source.stored)
    rows = source.rows
    if not isinstance(source, TableSource | ArraySource) or not stored or rows is None or rows < 2 * workers * size:
        return ()
    step = size * min(CHUNKS, -(-rows // (PARTS * workers * size)))
    end = source.start + rows
    return [replace(source, start=start, stop=min(start + step, end)) for start in range(source.start, end, step)]


class Hand(Protocol):
    """One of those who share the work, with both models open."""

    def observe(self, work: Work, *, whole: bool) -> Observed:
        """What comes of it; `ModelProcessEnded` if it dies over it, `GoneError` if there is nobody to ask any more."""
        ...


class GoneError(Exception):
    """There is no room for this one any more; others may go on."""


class Hands:
    """A crew: each is given work when it is free, and one that is gone stays gone. `end` ends them all at once."""

    def __init__(self, hands: Sequence[Hand], end: Callable[[], None]) -> None:
        self.size = self._left = len(hands)
        self._end, self._cancelled, self._counting = end, False, threading.Lock()
        self._free: queue.SimpleQueue[Hand | None] = queue.SimpleQueue()
        for hand in hands:
            self._free.put(hand)

    def parts(self, source: Source, size: int) -> Sequence[Source]:
        return parts_of(source, self.size, size)

    def observe(self, work: Work, *, whole: bool) -> Observed | None:
        while (hand := self._free.get()) is not None:
            try:
                found = hand.observe(work, whole=whole)
            except ModelProcessEnded:
                break
            except GoneError:
                # The others take its work, as long as there are others.
                with self._counting:
                    self._left -= 1
                    if not self._left:
                        break
            except BaseException:
                self._free.put(hand)
                raise
            else:
                self._free.put(hand)
                return found
        self._free.put(None)
        if self._cancelled:
            raise KeyboardInterrupt
        return None

    def cancel(self) -> None:
        self._cancelled = True
        self._end()


class _Process:
    """A process, which opens the models while the first chunk is compared here."""

    def __init__(self, line: Line, opening: int) -> None:
        self._line = line
        self._opening: int | None = opening

    def observe(self, work: Work, *, whole: bool) -> Observed:
        if self._opening is not None:
            self._line.collect(self._opening)
            self._opening = None
        found: Observed = self._line.collect(self._line.post("call", partial(observe, work, whole=whole)))
        return found


_RUN: list[LocalRun] = []
"""What a process of the crew was told to do."""


def begin(plan: Plan, first: Batch, sizes: Mapping[str, int], session: Session | None = None) -> None:
    """Over there: open both models, which stay open as long as the process lives, and settle what the first rows do."""
    session = session or Session(plan.reference, plan.candidate)
    prepared = prepare(plan, *session.both(), first)
    if not isinstance(prepared, Prepared):
        raise DataError(prepared.message, remedy=prepared.remedy)
    _RUN.append(LocalRun(plan, prepared, sizes))


def observe(work: Work, *, whole: bool) -> Observed:
    """Over there: what comes of it."""
    (run,) = _RUN
    run.seconds = dict.fromkeys(run.seconds, 0.0)
    return replace(run.observed(work, whole=whole), seconds=run.seconds)


EXTENSION = ProcessEngine()
