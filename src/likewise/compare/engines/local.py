"""This machine: reads ahead, runs both models at once where that helps, reduces as it goes.

The time belongs to the models: while they run on one chunk, the next is being read, and where it
helps the one before is being reduced. Memory is a few chunks, whatever the number of rows.
"""

from __future__ import annotations

import itertools
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field, replace
from typing import Protocol

import numpy as np

from likewise.compare.call import Side, incident, joined, timed
from likewise.compare.engines import FAILING_ROWS, FIRST_ROWS, HEAD_ROWS, Head, Kept, Run, Session
from likewise.compare.observe import (
    CANDIDATE,
    REFERENCE,
    Partial,
    Prepared,
    finish,
    observe_rows,
    prepare,
    without_ignored,
)
from likewise.compare.variations.lengths import require_known
from likewise.contracts.comparison import Cast, Comparison, Incident, Json, Mismatch, Plan, RunFacts
from likewise.contracts.data import Array, Batch, Source
from likewise.contracts.values import dataclass
from likewise.errors import LikewiseError, RowCountError, UsageError
from likewise.models.remote import Apart, ModelProcessEnded

CHUNK_ROWS = 16_384
CHUNK_BYTES = 64 * 2**20
"""Rows read at once, and what they or the answers to them may take. Columns of a table are asked about in calls of a
whole chunk."""

CALL_BYTES, IDS_BYTES = 2**20, 2**18
LEAST_ROWS = 8
"""Tensors are asked about in calls of so many bytes, but of so many rows at least. Fewer of whole numbers: of a token a
network makes hundreds of numbers."""

CALLS = 16
"""Calls of a chunk at most, unless they are small: what was done is told chunk by chunk."""

FIRST_CALL = 256
"""Rows of the very first call at most, so that something is seen of a slow model."""

AHEAD = 2
"""Chunks that a model in its own process is given before its first answer is awaited."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What came of some rows: the facts, and parts of them to be kept with their answers, marked where they differ.

    `ended` is what kept the rest of them from being compared.
    """

    partial: Partial
    kept: tuple[tuple[Head, Array], ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    ended: LikewiseError | None = None


Work = Batch | Source
"""A chunk, or a part of the data that whoever compares it reads for itself, but for the first chunk of all."""


class Crew(Protocol):
    """Others who take work off our hands, as many at a time as there are of them."""

    @property
    def size(self) -> int: ...

    def parts(self, source: Source, size: int) -> Sequence[Source]:
        """Parts of the rows to be read over there, in the batches of that size in which they are read here; or none."""
        ...

    def observe(self, work: Work, *, whole: bool) -> Observed | None:
        """What comes of it, all rows of a chunk kept or the failing ones; None from one that is gone."""
        ...

    def cancel(self) -> None:
        """Somebody interrupts: all of them end at once, and nobody waits for what they were at."""
        ...


class LocalEngine:
    """Carries out a plan in this process."""

    name = "local"

    def run(self, plan: Plan, session: Session) -> Run:
        return carried_out(plan, session)


def carried_out(
    plan: Plan,
    session: Session,
    gather: Callable[[Prepared, Mapping[str, int]], AbstractContextManager[Crew | None]] = lambda *_: nullcontext(),
) -> Run:
    """Open both models, see how they are fed and paired, and compare; what `gather` brings together helps with it."""
    try:
        reference, candidate = session.both()
        details = {REFERENCE: dict(reference.details), CANDIDATE: dict(candidate.details)}
        prepared = prepare(plan, reference, candidate)
        if isinstance(prepared, Prepared):
            require_known(plan, prepared)
    except UsageError:
        raise
    except LikewiseError as error:
        return Run(_nothing(plan, _ended(error)))
    if isinstance(prepared, Incident):
        return Run(_nothing(plan, Partial(incidents=(prepared,))), RunFacts(details=details))
    plan, prepared = without_ignored(plan, prepared)
    if not prepared.pairing.pairs:
        comparison = finish(prepared, Partial(), replace(plan, expected_rows=None))
        return Run(comparison, RunFacts(details=details), prepared)
    sizes = call_sizes(plan, prepared)
    with gather(prepared, sizes) as crew:
        runners = {REFERENCE: reference, CANDIDATE: candidate}
        apart = frozenset(side for side, runner in runners.items() if isinstance(runner, Apart))
        return LocalRun(plan, prepared, sizes, apart, crew).carry_out(details)


@dataclass(slots=True)
class LocalRun:
    """One run of a prepared plan. `apart`: the sides whose models have a process of their own."""

    plan: Plan
    prepared: Prepared
    sizes: Mapping[str, int]
    apart: frozenset[str] = frozenset()
    crew: Crew | None = None
    kept: Kept = field(init=False)
    seconds: dict[str, float] = field(default_factory=lambda: {REFERENCE: 0.0, CANDIDATE: 0.0})
    row_seconds: dict[str, float] = field(default_factory=dict)
    concurrent: bool = False
    partial: Partial = field(default_factory=Partial)
    head: Head | None = None
    decided: bool = False
    begun: int = 0
    done: int = 0
    here: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.kept = Kept(self.prepared.row_bytes)

    def carry_out(self, details: Mapping[str, Json]) -> Run:
        began = time.perf_counter()
        try:
            self._resume(details)
            self._compare()
        except UsageError:
            raise
        except LikewiseError as error:
            self.partial = self.partial.merge(_ended(error))
        comparison = finish(self.prepared, self.partial, self.plan, decided=self.decided)
        seconds = {**self.seconds, "total": time.perf_counter() - began}
        facts = RunFacts(dict(self.sizes), seconds, details)
        return Run(comparison, facts, self.prepared, self.head, self.kept, self.row_seconds)

    def _compare(self) -> None:
        with ThreadPoolExecutor(
            self.crew.size if self.crew else AHEAD * max(1, len(self.apart)), thread_name_prefix="likewise"
        ) as pool:
            pending: deque[_Answers | Future[Observed]] = deque()
            paces: list[float] = []
            resumed, complete = self.done, False
            try:
                for number, work in enumerate(self._work()):
                    began = time.perf_counter()
                    if number < resumed:
                        self.begun += len(work) if isinstance(work, Batch) else 0
                        continue
                    if isinstance(work, Batch):
                        pending.append(self._begin(pool, work) if number == 0 else self._start(pool, work))
                        self.begun += len(work)
                    else:
                        pending.append(self._hand_over(pool, work))
                    while len(pending) > self._ahead():
                        pending[0].result()
                        self._reduce(pending.popleft())
                        self._keep_reached()
                    if self._enough():
                        break
                    # Two chunks go one step after the other and two all at once; the faster way stays.
                    turn = number - resumed
                    if 1 <= turn <= 4 and not self.apart and isinstance(work, Batch) and not self.crew:
                        paces.append((time.perf_counter() - began) / len(work))
                        self.concurrent = turn in (2, 3) or (turn == 4 and _faster_at_once(paces))
                complete = True
            except (KeyboardInterrupt, SystemExit):
                pending.clear()
                pool.shutdown(wait=False, cancel_futures=True)
                if self.crew:
                    self.crew.cancel()
                raise
            finally:
                for answered in pending:
                    self._reduce(answered)
                    if complete:
                        self._keep_reached()

    def _resume(self, details: Mapping[str, Json]) -> None:
        """Go on from what an earlier run had reached: the work it had done, and what came of that."""
        if self.plan.checkpoint is None:
            return
        state = self.plan.checkpoint.load(details, lambda: self.plan.source.fingerprint)
        if state is not None:
            self.done, self.partial, self.kept, self.head, self.seconds, self.row_seconds = state

    def _keep_reached(self) -> None:
        """What is reduced is done, in its order: what was begun beside it is begun again after a kill."""
        self.done += 1
        if self.plan.checkpoint is not None:
            reached = self.done, self.partial, self.kept, self.head, self.seconds, self.row_seconds
            self.plan.checkpoint.save(reached)

    def _work(self) -> Iterator[Work]:
        """The chunks; or the first of them, and parts of the data that others read where each can."""
        size = self._chunk_rows()
        # What is left out as soon as a limit is broken is decided chunk by chunk.
        parts = self.crew.parts(self.plan.source, size) if self.crew and not self.plan.decided else ()
        if not parts:
            yield from _read_ahead(self.plan.source.batches, size)
            return
        yield from itertools.islice(self.plan.source.batches(size), 1)
        yield from parts

    def _ahead(self) -> int:
        """Chunks that are being answered while the one before them is reduced."""
        if self.crew:
            return AHEAD * self.crew.size
        return AHEAD if self.apart else int(self.concurrent)

    def _start(self, pool: ThreadPoolExecutor, chunk: Batch) -> _Answers | Future[Observed]:
        """Given to others, or answered by both models."""
        return self._hand_over(pool, chunk) if self.crew else self._answers(pool, chunk)

    def _answers(
        self,
        pool: ThreadPoolExecutor,
        chunk: Batch,
        how: Callable[[Callable[[Batch], _Answer], Batch], _Answer] = lambda ask, chunk: ask(chunk),
    ) -> _Answers:
        """Models in processes of their own are asked first and by threads, as both are where that was faster.

        Threads are no gain by themselves: models that hold Python's lock only get into each other's way.
        """
        asks = {REFERENCE: self._ask_reference, CANDIDATE: self._ask_candidate}
        away = asks.keys() if self.concurrent else self.apart
        found = {side: pool.submit(how, ask, chunk) for side, ask in asks.items() if side in away}
        found |= {side: _done(how(ask, chunk)) for side, ask in asks.items() if side not in away}
        return _Answers(chunk, found[REFERENCE], found[CANDIDATE])

    def _hand_over(self, pool: ThreadPoolExecutor, work: Work) -> Future[Observed]:
        assert self.crew is not None
        return pool.submit(self._handed_over, self.crew, work, whole=self.begun < FIRST_ROWS)

    def _handed_over(self, crew: Crew, work: Work, *, whole: bool) -> Observed:
        """What one of the others made of it. If it died over it, that is done here, and so told like any crash."""
        if (found := crew.observe(work, whole=whole)) is not None:
            return found
        with self.here:
            return self.observed(work, whole=whole)

    def observed(self, work: Work, *, whole: bool) -> Observed:
        """Ask both models about a chunk or a part of the data; of later rows those that differ are kept."""
        total, kept, differing = Partial(), list[tuple[Head, Array]](), 0
        first = int(self.prepared.first.rows.numbers[0])
        chunks = [work] if isinstance(work, Batch) else work.batches(self._chunk_rows())
        try:
            for chunk in chunks:
                # Of a part of the data the numbers of the rows say where they stand in all of it.
                place = int(chunk.rows.numbers[0]) - first if chunk is not work and len(chunk) else None
                if place == 0:
                    continue
                found = self._observed(
                    _Answers(chunk, _done(self._ask_reference(chunk)), _done(self._ask_candidate(chunk)))
                )
                total = total.merge(found.partial)
                ((answered, beyond),) = found.kept
                early = whole if place is None else place < FIRST_ROWS
                if chunk.stacked and not early:
                    places = np.flatnonzero(beyond)[: FAILING_ROWS - differing]
                    answered, beyond = answered.at(places), np.ones(len(places), dtype=bool)
                    differing += len(places)
                kept.append((answered, beyond))
        except LikewiseError as error:
            return Observed(total, tuple(kept), ended=error)
        return Observed(total, tuple(kept))

    # Two names for one thing, so that the stack of a crash tells which model it was.
    def _ask_reference(self, chunk: Batch) -> _Answer:
        return self._ask(self.prepared.reference, chunk)

    def _ask_candidate(self, chunk: Batch) -> _Answer:
        return self._ask(self.prepared.candidate, chunk)

    def _ask(self, side: Side, chunk: Batch) -> _Answer:
        self._tell(side.name, chunk)
        began = time.perf_counter()
        try:
            tensors, casts, least = timed(side, chunk, self.sizes[side.name])
        except ModelProcessEnded:
            # It is known which of the two it was: the other is not to be blamed.
            self._tell(CANDIDATE if side.name == REFERENCE else REFERENCE, chunk, finished=True)
            raise
        self.seconds[side.name] += time.perf_counter() - began
        if len(chunk):
            self.row_seconds[side.name] = min(self.row_seconds.get(side.name, math.inf), least / len(chunk))
        self._tell(side.name, chunk, finished=True)
        return _Answer(tensors, casts)

    def _begin(self, pool: ThreadPoolExecutor, chunk: Batch) -> _Answers:
        """Answer the first chunk, its first rows in a call of their own."""
        answered = self._answers(pool, chunk, self._ask_first)
        answered.result()
        return answered

    def _ask_first(self, ask: Callable[[Batch], _Answer], chunk: Batch) -> _Answer:
        side = self.prepared.reference if ask == self._ask_reference else self.prepared.candidate
        size = self.sizes[side.name]
        first = FIRST_CALL - FIRST_CALL % min(size, FIRST_CALL)
        if self.plan.batch_size or side.fixed_batch or not chunk.stacked or len(chunk) <= first:
            return ask(chunk)
        parts = [ask(chunk.slice(0, first)), ask(chunk.slice(first, len(chunk)))]
        tensors = joined(side, [part.tensors for part in parts])
        casts = tuple(cast for part in parts for cast in part.casts)
        return _Answer(tensors, casts)

    def _reduce(self, answered: _Answers | Future[Observed]) -> None:
        found = self._observed(answered) if isinstance(answered, _Answers) else answered.result()
        for part, beyond in found.kept:
            if self.head is None and part.batch.stacked:
                self.head = part.slice(HEAD_ROWS)
            self.kept.add(part, beyond)
        self.partial = self.partial.merge(found.partial)
        for side, seconds in found.seconds.items():
            self.seconds[side] += seconds
        if not isinstance(answered, _Answers):
            # Whoever follows the run hears of what others do when it is done.
            self.plan.tell("comparing", done=self.partial.rows, finished=True)
        if found.ended is not None:
            raise found.ended

    def _observed(self, answered: _Answers) -> Observed:
        ours, theirs = answered.result()
        observed, beyond = observe_rows(self.prepared, answered.chunk, ours.tensors, theirs.tensors)
        kept = Head(answered.chunk, ours.tensors, theirs.tensors)
        return Observed(replace(observed, casts=(*ours.casts, *theirs.casts)), ((kept, beyond),))

    def _enough(self) -> bool:
        if self.plan.decided is not None and self.partial.rows:
            self.decided = self.plan.decided(finish(self.prepared, self.partial, self.plan, decided=True))
        return self.decided

    def _chunk_rows(self) -> int:
        """Rows read at once: bounded in bytes, and full calls of the size that both models are asked with."""
        step = self.prepared.candidate.fixed_batch or min(self.sizes.values())
        rows = min(_bounded_rows(self.prepared), max(HEAD_ROWS + step, CALLS * step))
        return step * max(1, rows // step)

    def _tell(self, side: str, chunk: Batch, *, finished: bool = False) -> None:
        if len(chunk):
            self.plan.tell("comparing", side, chunk, done=self.partial.rows, finished=finished)


@dataclass(frozen=True, slots=True)
class _Answer:
    tensors: dict[str, Array]
    casts: tuple[Cast, ...]


@dataclass(frozen=True, slots=True)
class _Answers:
    chunk: Batch
    reference: Future[_Answer]
    candidate: Future[_Answer]

    def result(self) -> tuple[_Answer, _Answer]:
        """Both, when they are there; the reference's error is the one that counts."""
        return self.reference.result(), self.candidate.result()


def call_sizes(plan: Plan, prepared: Prepared) -> dict[str, int]:
    """Rows of a call, by rule: where answers depend on them, they are part of the question, and no clock may choose.

    Both models are asked in the same calls, unless one takes one size only and the other a table, whose rows
    stand for themselves.
    """
    first = prepared.first
    if not first.stacked:
        return dict.fromkeys((REFERENCE, CANDIDATE), len(first))
    rows = _bounded_rows(prepared)
    fixed = prepared.candidate.fixed_batch or prepared.reference.fixed_batch
    tensors = [array for array in first.inputs.values() if array.ndim > 1]
    if tensors:
        most = IDS_BYTES if any(array.dtype.kind in "iu" for array in tensors) else CALL_BYTES
        rows = fixed or min(rows, max(LEAST_ROWS, most // prepared.row_bytes))
    rows = plan.batch_size or rows
    return {side.name: side.fixed_batch or rows for side in (prepared.reference, prepared.candidate)}


def _bounded_rows(prepared: Prepared) -> int:
    return max(1, min(CHUNK_ROWS, CHUNK_BYTES // max(prepared.row_bytes, prepared.answer_bytes)))


def _faster_at_once(paces: list[float]) -> bool:
    """Given seconds a row: of two chunks in turn, then of two with both models at once, the first without reducing."""
    return paces[3] < min(paces[:2])


def _done(answer: _Answer) -> Future[_Answer]:
    future: Future[_Answer] = Future()
    future.set_result(answer)
    return future


def _read_ahead(batches: Callable[[int], Iterator[Batch]], size: int) -> Iterator[Batch]:
    """The batches, read by a thread of their own, two ahead."""
    ready: queue.Queue[Batch | BaseException | None] = queue.Queue(2)
    stopped = threading.Event()

    def put(entry: Batch | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return

    def read() -> None:
        try:
            for batch in batches(size):
                if stopped.is_set():
                    return
                put(batch)
            put(None)
        except BaseException as error:  # noqa: BLE001 - handed over to the thread that consumes the batches
            put(error)

    threading.Thread(target=read, name="likewise-reader", daemon=True).start()
    try:
        while (entry := ready.get()) is not None:
            if isinstance(entry, BaseException):
                raise entry
            yield entry
    finally:
        stopped.set()


def _ended(error: LikewiseError) -> Partial:
    """What is left of rows that could not be compared: a difference where the candidate gave another number of them."""
    if isinstance(error, RowCountError) and error.side == CANDIDATE:
        return Partial(mismatches=frozenset({Mismatch(error.code, error.message)}))
    return Partial(incidents=(incident(error),))


def _nothing(plan: Plan, ended: Partial) -> Comparison:
    known = replace(plan.nothing, expected_rows=plan.expected_rows)
    return replace(known, incidents=ended.incidents, mismatches=tuple(ended.mismatches))


EXTENSION = LocalEngine()
