"""This machine: reads ahead, runs both models at once where that helps, reduces as it goes.

The time belongs to the models: while they run on one chunk, the next is being read, and where it
helps the one before is being reduced. Memory is a few chunks, whatever the number of rows.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field, replace

from likewise.compare.call import Side, incident, joined, timed
from likewise.compare.engines import HEAD_ROWS, Head, Kept, Run, Session
from likewise.compare.observe import CANDIDATE, REFERENCE, Partial, Prepared, finish, observe_rows, prepare
from likewise.compare.variations.lengths import require_known
from likewise.contracts.comparison import Cast, Comparison, Incident, Json, Mismatch, Plan, RunFacts
from likewise.contracts.data import Array, Batch
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


class LocalEngine:
    """Carries out a plan in this process."""

    name = "local"

    def run(self, plan: Plan, session: Session) -> Run:
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
        if not prepared.pairing.pairs:
            comparison = finish(prepared, Partial(), replace(plan, expected_rows=None))
            return Run(comparison, RunFacts(details=details), prepared)
        apart, kept = isinstance(reference, Apart), Kept(prepared.row_bytes)
        return _Run(plan, prepared, apart, kept, call_sizes(plan, prepared)).carry_out(details)


@dataclass(slots=True)
class _Run:
    """One run of a prepared plan."""

    plan: Plan
    prepared: Prepared
    apart: bool
    kept: Kept
    sizes: dict[str, int]
    seconds: dict[str, float] = field(default_factory=lambda: {REFERENCE: 0.0, CANDIDATE: 0.0})
    row_seconds: dict[str, float] = field(default_factory=dict)
    concurrent: bool = False
    partial: Partial = field(default_factory=Partial)
    head: Head | None = None
    decided: bool = False

    def carry_out(self, details: Mapping[str, Json]) -> Run:
        began = time.perf_counter()
        try:
            self._compare()
        except UsageError:
            raise
        except LikewiseError as error:
            self.partial = self.partial.merge(_ended(error))
        comparison = finish(self.prepared, self.partial, self.plan, decided=self.decided)
        seconds = {**self.seconds, "total": time.perf_counter() - began}
        facts = RunFacts(self.sizes, seconds, details)
        return Run(comparison, facts, self.prepared, self.head, self.kept, self.row_seconds)

    def _compare(self) -> None:
        chunks = _read_ahead(self.plan.source.batches, self._chunk_rows())
        with ThreadPoolExecutor(2, thread_name_prefix="likewise") as pool:
            pending: deque[_Answers] = deque()
            paces: list[float] = []
            try:
                for number, chunk in enumerate(chunks):
                    began = time.perf_counter()
                    pending.append(self._begin(pool, chunk) if number == 0 else self._start(pool, chunk))
                    while len(pending) > self._ahead():
                        pending[0].wait()
                        self._reduce(pending.popleft())
                    if self._enough():
                        break
                    # Two chunks go one step after the other and two all at once; the faster way stays.
                    if 1 <= number <= 4 and not self.apart:
                        paces.append((time.perf_counter() - began) / len(chunk))
                        self.concurrent = number in (2, 3) or (number == 4 and _faster_at_once(paces))
            finally:
                for answered in pending:
                    self._reduce(answered)

    def _ahead(self) -> int:
        """Chunks that are being answered while the one before them is reduced."""
        return AHEAD if self.apart else int(self.concurrent)

    def _start(self, pool: ThreadPoolExecutor, chunk: Batch) -> _Answers:
        """The reference in its own process, both models at once in threads, or one after the other in this one.

        Threads are no gain by themselves: models that hold Python's lock only get into each other's way.
        """
        if self.apart:
            reference = pool.submit(self._ask_reference, chunk)
            return _Answers(chunk, reference, _done(self._ask_candidate(chunk)))
        if self.concurrent:
            return _Answers(chunk, pool.submit(self._ask_reference, chunk), pool.submit(self._ask_candidate, chunk))
        return _Answers(chunk, _done(self._ask_reference(chunk)), _done(self._ask_candidate(chunk)))

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
        if self.apart:
            reference = pool.submit(self._ask_first, self._ask_reference, chunk)
        else:
            reference = _done(self._ask_first(self._ask_reference, chunk))
        answered = _Answers(chunk, reference, _done(self._ask_first(self._ask_candidate, chunk)))
        answered.wait()
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

    def _reduce(self, answered: _Answers) -> None:
        ours, theirs = answered.reference.result(), answered.candidate.result()
        observed, beyond = observe_rows(self.prepared, answered.chunk, ours.tensors, theirs.tensors)
        together = Head(answered.chunk, ours.tensors, theirs.tensors)
        if self.head is None and answered.chunk.stacked:
            self.head = together.slice(HEAD_ROWS)
        self.kept.add(together, beyond)
        self.partial = self.partial.merge(replace(observed, casts=(*ours.casts, *theirs.casts)))

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

    def wait(self) -> None:
        """Until both are there; the reference's error is the one that counts."""
        self.reference.result()
        self.candidate.result()


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
