"""This machine: reads ahead, runs both models at once where that helps, reduces as it goes.

The time belongs to the models: while they run on one chunk, the next is being read, and where it
helps the one before is being reduced. Memory is a few chunks, whatever the number of rows.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from likewise.compare.call import RowCountError, Side, answers, joined
from likewise.compare.observe import CANDIDATE, REFERENCE, Partial, Prepared, finish, observe_rows, prepare
from likewise.compare.session import HEAD_ROWS, Head, Kept, Run, Session
from likewise.compare.variations.lengths import require_known
from likewise.contracts.comparison import Cast, Comparison, Incident, Json, Mismatch, Plan, RunFacts
from likewise.contracts.data import Array, Batch
from likewise.errors import LikewiseError, UsageError
from likewise.models.remote import ModelProcessEnded, RemoteRunner

CHUNK_ROWS = 16_384
CHUNK_BYTES = 64 * 2**20
CALL_SIZES = (256, 2_048)
"""Sizes tried on the first chunk before a whole chunk a call."""

AHEAD = 2
"""Chunks that a model in its own process is given before its first answer is awaited."""

CALL_SECONDS = 2.0
"""A call should not take much longer than this, so that progress is seen and a hang is noticed."""


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
        return _Run(plan, prepared, isinstance(reference, RemoteRunner), Kept(prepared.row_bytes)).carry_out(details)


@dataclass(slots=True)
class _Run:
    """One run of a prepared plan."""

    plan: Plan
    prepared: Prepared
    apart: bool
    kept: Kept
    sizes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {REFERENCE: 0.0, CANDIDATE: 0.0})
    concurrent: bool = False
    partial: Partial = field(default_factory=Partial)
    head: Head | None = None

    def carry_out(self, details: Mapping[str, Json]) -> Run:
        began = time.perf_counter()
        try:
            self._compare()
        except UsageError:
            raise
        except LikewiseError as error:
            self.partial = self.partial.merge(_ended(error))
        comparison = finish(self.prepared, self.partial, self.plan)
        seconds = {**self.seconds, "total": time.perf_counter() - began}
        facts = RunFacts(self.sizes, self.concurrent or self.apart, seconds, details)
        return Run(comparison, facts, self.prepared, self.head, self.kept)

    def _compare(self) -> None:
        chunks = _read_ahead(self.plan.source.batches, self._chunk_rows())
        with ThreadPoolExecutor(2, thread_name_prefix="likewise") as pool:
            pending: deque[_Answers] = deque()
            paces: list[float] = []
            try:
                for number, chunk in enumerate(chunks):
                    began = time.perf_counter()
                    pending.append(self._sized(pool, chunk) if number == 0 else self._start(pool, chunk))
                    while len(pending) > self._ahead():
                        pending[0].wait()
                        self._reduce(pending.popleft())
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
            tensors, casts = answers(side, chunk, self.sizes[side.name])
        except ModelProcessEnded:
            # It is known which of the two it was: the other is not to be blamed.
            self._tell(_other(side.name), chunk, finished=True)
            raise
        ended = time.perf_counter()
        self.seconds[side.name] += ended - began
        self._tell(side.name, chunk, finished=True)
        return _Answer(tensors, casts, began, ended)

    def _sized(self, pool: ThreadPoolExecutor, chunk: Batch) -> _Answers:
        """Answer the first chunk while finding the call size that suits each model."""
        if self.apart:
            reference = pool.submit(self._measured, self.prepared.reference, chunk)
        else:
            reference = _done(self._measured(self.prepared.reference, chunk))
        answered = _Answers(chunk, reference, _done(self._measured(self.prepared.candidate, chunk)))
        answered.wait()
        return answered

    def _measured(self, side: Side, chunk: Batch) -> _Answer:
        ask = self._ask_reference if side is self.prepared.reference else self._ask_candidate
        fixed = side.fixed_batch or self.plan.batch_size
        if fixed is not None or not chunk.stacked:
            self.sizes[side.name] = fixed or len(chunk)
            return ask(chunk)
        parts: list[_Answer] = []
        paces: dict[int, float] = {}
        start = 0
        for size in (*CALL_SIZES, CHUNK_ROWS):
            part = chunk.slice(start, min(start + size, len(chunk)))
            if not len(part):
                break
            self.sizes[side.name] = size
            parts.append(ask(part))
            elapsed = parts[-1].ended - parts[-1].began
            paces[size] = elapsed / len(part)
            start += len(part)
            # The next size is eight times as large, and may take eight times as long.
            if elapsed > CALL_SECONDS / 2:
                break
        # A larger call is preferred unless a smaller one is clearly faster, so that runs repeat.
        self.sizes[side.name] = max(size for size, pace in paces.items() if pace <= 1.5 * min(paces.values()))
        if start < len(chunk):
            parts.append(ask(chunk.slice(start, len(chunk))))
        tensors = joined(side, [part.tensors for part in parts])
        casts = tuple(cast for part in parts for cast in part.casts)
        return _Answer(tensors, casts, parts[0].began, parts[-1].ended)

    def _reduce(self, answered: _Answers) -> None:
        ours, theirs = answered.reference.result(), answered.candidate.result()
        observed, beyond = observe_rows(self.prepared, answered.chunk, ours.tensors, theirs.tensors)
        together = Head(answered.chunk, ours.tensors, theirs.tensors)
        if self.head is None and answered.chunk.stacked:
            self.head = together.slice(HEAD_ROWS)
        self.kept.add(together, beyond)
        self.partial = self.partial.merge(replace(observed, casts=(*ours.casts, *theirs.casts)))

    def _chunk_rows(self) -> int:
        """Rows read at once: bounded in bytes, and a multiple of the batch size asked for."""
        rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES // self.prepared.row_bytes))
        step = self.prepared.candidate.fixed_batch or self.plan.batch_size
        return step * max(1, rows // step) if step else rows

    def _tell(self, side: str, chunk: Batch, *, finished: bool = False) -> None:
        if len(chunk):
            self.plan.tell("comparing", side, chunk, done=self.partial.rows, finished=finished)


@dataclass(frozen=True, slots=True)
class _Answer:
    tensors: dict[str, Array]
    casts: tuple[Cast, ...]
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class _Answers:
    chunk: Batch
    reference: Future[_Answer]
    candidate: Future[_Answer]

    def wait(self) -> None:
        """Until both are there; the reference's error is the one that counts."""
        self.reference.result()
        self.candidate.result()


def _faster_at_once(paces: list[float]) -> bool:
    """Given seconds a row: of two chunks in turn, then of two with both models at once, the first without reducing."""
    return paces[3] < min(paces[:2])


def _other(side: str) -> str:
    return CANDIDATE if side == REFERENCE else REFERENCE


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
    return Partial(incidents=(Incident(error.code, error.message, error.remedy, error.side),))


def _nothing(plan: Plan, ended: Partial) -> Comparison:
    return Comparison(
        expected_rows=plan.expected_rows,
        tolerance=plan.tolerance,
        nan_equal=plan.nan_equal,
        incidents=ended.incidents,
        mismatches=tuple(ended.mismatches),
    )


EXTENSION = LocalEngine()
