"""Several processes of this machine, each with both models open; rows are read here and handed out chunk by chunk.

The chunks, and the calls within them, are those of the local engine: every row is asked in the same company wherever
that happens, and the report is the same to the bit. A process that dies takes nothing along: its chunk is done here.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any

import numpy as np

from likewise.compare.engines import FAILING_ROWS, Run, Session
from likewise.compare.engines.local import Crew, LocalRun, Observed, carried_out
from likewise.compare.observe import Prepared, prepare
from likewise.contracts.comparison import Plan
from likewise.contracts.data import Batch
from likewise.data.readers.arrays import ArraySource
from likewise.errors import DataError, UsageError
from likewise.models.remote import Line, ModelProcessEnded, open_line


class ProcessEngine:
    """Carries out a plan in `plan.workers` processes beside this one, which reads and adds up."""

    name = "processes"

    def run(self, plan: Plan, session: Session) -> Run:
        for model in session.models.values():
            if not isinstance(model.target, str | PathLike):
                raise UsageError(
                    f"{model.name} is an object of this process, and `workers` are processes of their own",
                    remedy="Save it and give its path, or leave `workers` out",
                )

        @contextmanager
        def gathered(prepared: Prepared, sizes: Mapping[str, int]) -> Iterator[Crew]:
            # What only this process can read or call stays here.
            rows = ArraySource(plan.source.location, {}, stop=0)
            told = replace(plan, source=rows, progress=None, decided=None)
            with ExitStack() as stack:
                lines = [stack.enter_context(closing(open_line())) for _ in range(plan.workers)]
                yield _Processes(lines, told, prepared.first, sizes)

        return carried_out(plan, session, gathered)


class _Processes:
    """Processes that are given a chunk when they are free; one that is gone stays gone."""

    def __init__(self, lines: Sequence[Line], *told: Any) -> None:
        self.size = len(lines)
        self._free: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        for line in lines:
            self._free.put(_Process(line, line.post("call", partial(begin, *told))))

    def observe(self, chunk: Batch, *, whole: bool) -> Observed | None:
        process = self._free.get()
        try:
            return None if process is None else process.observe(chunk, whole=whole)
        except ModelProcessEnded:
            process = None
            return None
        finally:
            self._free.put(process)


class _Process:
    """One of them, which opens the models while the first chunk is compared here."""

    def __init__(self, line: Line, opening: int) -> None:
        self._line = line
        self._opening: int | None = opening

    def observe(self, chunk: Batch, *, whole: bool) -> Observed:
        if self._opening is not None:
            self._line.collect(self._opening)
            self._opening = None
        found: Observed = self._line.collect(self._line.post("call", partial(observe, chunk, whole=whole)))
        return found


_RUN: list[LocalRun] = []
"""What a process of the crew was told to do."""


def begin(plan: Plan, first: Batch, sizes: Mapping[str, int]) -> None:
    """Over there: open both models, which stay open as long as the process lives, and settle what the first rows do."""
    prepared = prepare(plan, *Session(plan.reference, plan.candidate).both(), first)
    if not isinstance(prepared, Prepared):
        raise DataError(prepared.message, remedy=prepared.remedy)
    _RUN.append(LocalRun(plan, prepared, sizes))


def observe(chunk: Batch, *, whole: bool) -> Observed:
    """Over there: what comes of a chunk. Unless it is wanted whole, only rows that differ travel back."""
    (run,) = _RUN
    run.seconds = dict.fromkeys(run.seconds, 0.0)
    found = replace(run.observed(chunk), seconds=run.seconds)
    if whole or not chunk.stacked:
        return found
    differing = np.flatnonzero(found.beyond)[:FAILING_ROWS]
    return replace(found, kept=found.kept.at(differing), beyond=np.ones(len(differing), dtype=bool))


EXTENSION = ProcessEngine()
