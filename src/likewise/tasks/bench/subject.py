"""One open model under measurement, in a process of its own or, if it cannot be sent to one, in this.

`Subject` opens the model, takes rows, calls and times. A station is where it lives: `station.ask(Subject.turn, …)`
calls it there. What a model prints in its own process goes to standard error, never among the answers.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from likewise.contracts.data import Batch, Tensors
from likewise.contracts.models import Model, Runner, Signature
from likewise.contracts.values import dataclass
from likewise.data.columns import ArrayColumns, FrameColumns
from likewise.errors import LikewiseError, ModelError, one_line
from likewise.models.remote import start
from likewise.registry import open_model

SETTLE_NS = 5_000_000
"""Untimed calls at the start of a turn: caches fill again, and the other model's idle threads stop spinning."""

WARM_UP_NS = 50_000_000
REOPENED = 3
"""How often a model is opened again to see how long that takes without importing its framework."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Opened:
    """What opening a model showed."""

    signature: Signature
    details: Mapping[str, Any]
    nanoseconds: int
    memory: int | None


class Subject:
    """An open model that can be timed."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._pieces: dict[int, list[Batch]] = {}
        self._outputs: frozenset[str] | None = None

    def open(self, model: Model) -> Opened:
        """Open the model for the first time in this process."""
        self._model = model
        before = _resident()
        began = time.perf_counter_ns()
        self._runner: Runner = self._stack.enter_context(open_model(model))
        taken = time.perf_counter_ns() - began
        return Opened(self._runner.signature, dict(self._runner.details), taken, _growth(_resident(), before))

    def take(self, batch: Batch, sizes: Sequence[int]) -> None:
        """Cut the rows, already fed, to the batch sizes; each size goes through different rows."""
        for size in sizes:
            starts = range(0, len(batch) - size + 1, size) if batch.stacked else range(1)
            cut = (batch.slice(start, start + size) if batch.stacked else batch for start in starts)
            self._pieces[size] = [self._ready(piece) for piece in cut]

    def answer(self) -> tuple[Signature, Tensors]:
        """The answers to the first rows, with what the model declares once it has answered."""
        return self._runner.signature, self._runner.run(self._pieces[max(self._pieces)][0])

    def ask_for(self, outputs: frozenset[str] | None) -> None:
        """From now on compute these outputs only."""
        self._outputs = outputs

    def warm_up(self, size: int) -> int:
        """Nanoseconds a call once the first calls are over."""
        times: list[int] = []
        while len(times) < 2 or sum(times) < WARM_UP_NS:
            times += self._timed(size, 1)
        return sorted(times[1:])[(len(times) - 1) // 2]

    def turn(self, size: int, calls: int) -> list[int]:
        """Nanoseconds of each of some calls after untimed ones, with the garbage collector off."""
        deadline = time.perf_counter_ns() + SETTLE_NS
        self._timed(size, 1)
        while time.perf_counter_ns() < deadline:
            self._timed(size, 1)
        return self._timed(size, calls)

    def watch_memory(self) -> None:
        """Start to measure the peak of the calls."""
        gc.collect()
        self._before_calls = _resident()
        # Linux lets the peak start anew.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def peak_memory(self) -> int | None:
        """How far the calls since then raised the memory of the process."""
        return _growth(_memory("VmHWM"), self._before_calls)

    def reopen(self) -> list[int]:
        """Nanoseconds of opening the model again, several times."""
        times = []
        for _ in range(REOPENED):
            began = time.perf_counter_ns()
            with open_model(self._model):
                times.append(time.perf_counter_ns() - began)
        return times

    def close(self) -> None:
        self._stack.close()

    def _timed(self, size: int, calls: int) -> list[int]:
        run, outputs, clock = self._runner.run, self._outputs, time.perf_counter_ns
        pieces = self._pieces[size]
        chosen = [pieces[index % len(pieces)] for index in range(calls)]
        times = []
        collecting = gc.isenabled()
        gc.disable()
        try:
            for piece in chosen:
                began = clock()
                run(piece, outputs=outputs)
                times.append(clock() - began)
        finally:
            if collecting:
                gc.enable()
        return times

    def _ready(self, piece: Batch) -> Batch:
        """A batch from which the model's own argument is one lookup away: building it is not timed."""
        inputs = piece.inputs
        if self._runner.signature.table or not isinstance(inputs, ArrayColumns):
            return Batch(piece.rows, FrameColumns(inputs.frame()), piece.stacked)
        return Batch(piece.rows, ArrayColumns(dict(inputs)), piece.stacked) if piece.stacked else piece


def _resident() -> int | None:
    return _memory("VmRSS")


def _memory(field: str) -> int | None:
    """Bytes of this process as Linux counts them; elsewhere the largest ever, or None where nothing is known."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        text = ""
    if found := re.search(rf"^{field}:\s+(\d+) kB", text, re.M):
        return int(found[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _growth(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else max(0, now - before)


class Station(Protocol):
    """Where a model under measurement lives. `alone`: in a process of its own, whose memory is the model's."""

    @property
    def alone(self) -> bool: ...

    def ask(self, what: Callable[Concatenate[Subject, P], T], *given: P.args, **named: P.kwargs) -> T: ...

    def close(self) -> None: ...


class _Here:
    """A model in this process."""

    alone = False

    def __init__(self, side: str, name: str) -> None:
        self._subject, self._side, self._name = Subject(), side, name

    def ask(self, what: Callable[Concatenate[Subject, P], T], *given: P.args, **named: P.kwargs) -> T:
        try:
            return what(self._subject, *given, **named)
        except LikewiseError as error:
            _name_side(error, self._side, self._name)
            raise

    def close(self) -> None:
        self._subject.close()


class _UnpicklableError(Exception):
    """A live model cannot travel to another process."""


class _Process:
    """A model in a process of its own: its memory is its own, and so are its threads."""

    alone = True

    def __init__(self, side: str, name: str) -> None:
        self._side, self._name = side, name
        self._process = start("from likewise.tasks.bench.subject import serve; serve()")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._calls, self._answers = self._process.stdin, self._process.stdout
        # A process that is gone already is noticed where its answer is awaited.
        with contextlib.suppress(OSError):
            self._send(sys.path)

    def ask(self, what: Callable[Concatenate[Subject, P], T], *given: P.args, **named: P.kwargs) -> T:
        try:
            content = pickle.dumps((what, given, named))
        except Exception as error:
            raise _UnpicklableError from error
        try:
            self._send(content)
            answer, failed = pickle.load(self._answers)
        except (EOFError, OSError, pickle.UnpicklingError) as lost:
            raise self._death(what.__name__) from lost
        if failed is not None:
            if isinstance(failed, LikewiseError):
                _name_side(failed, self._side, self._name)
            raise failed
        found: T = answer
        return found

    def close(self) -> None:
        for pipe in (self._calls, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, message: Any) -> None:
        pickle.dump(message, self._calls)
        self._calls.flush()

    def _death(self, doing: str) -> ModelError:
        code = self._process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 and os.name == "posix" else f"ended with {code}"
        return ModelError(
            f"the process of the {self._side} ({self._name}) {how} during {doing.replace('_', ' ')!r}",
            remedy="Run the model alone on these rows to see it crash",
            side=self._side,
        )


def open_station(side: str, model: Model) -> tuple[Station, Opened]:
    """An open model, in a process of its own if it can travel."""
    for kind in (_Process, _Here):
        station: Station = kind(side, model.name)
        try:
            return station, station.ask(Subject.open, model)
        except _UnpicklableError:
            station.close()
        except BaseException:
            station.close()
            raise
    raise AssertionError("a model in this process does not travel")


def serve() -> None:
    """The other end: call the subject as asked until the parent closes the pipe."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    calls = os.fdopen(os.dup(0), "rb")
    sys.path[:] = pickle.load(calls)
    subject = Subject()
    with contextlib.suppress(EOFError):
        while True:
            pickle.dump(_answer(subject, pickle.load(calls)), answers)
            answers.flush()
    # A framework's threads may refuse to end; everything was answered.
    os._exit(0)


def _answer(subject: Subject, content: bytes) -> tuple[Any, Exception | None]:
    try:
        what, given, named = pickle.loads(content)
    except Exception:  # noqa: BLE001 - a live object may fail to arrive in any way
        return None, _UnpicklableError()
    try:
        return what(subject, *given, **named), None
    except LikewiseError as error:
        failed: LikewiseError = error
        failed.__cause__ = failed.__context__ = None
    except MemoryError as error:
        failed = ModelError(f"memory ran out: {one_line(error)}")
        failed.code = "memory"
    except Exception as error:  # noqa: BLE001 - no traceback reaches a user
        failed = ModelError(f"unforeseen: {one_line(error)}")
        failed.code = "internal"
    return None, failed


def _name_side(error: LikewiseError, side: str, name: str) -> None:
    error.message = f"the {side} ({name}): {error.message}"
    error.side = side
