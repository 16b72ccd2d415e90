"""A model in a process of its own, so that two models that hold Python's lock run at the same time.

Pickled messages over a pipe, framed as those to another Python are; arrays travel beside the pickle, without
being copied into it. Both ends are ours: what a model prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

from likewise.contracts.data import Batch, Tensors
from likewise.contracts.models import Model, Runner, Signature
from likewise.errors import LikewiseError
from likewise.models.environments import wire
from likewise.registry import open_model, opener

PIPE_BYTES = 2**20
"""Room in the pipe, where the system lets us ask for it: the usual 64 KiB make many small turns."""

FIRST_DESCRIPTOR = 200
"""Descriptors of our pipes begin here; those of files and of what models open begin at 3."""


class Copy:
    """A process that is a copy of this one, as `subprocess.Popen` is a new one: what is imported, it has.

    `work` is what it does, and all it does. `apart`: with a standard error of its own, and in a group of its own.
    `fork` makes it in another way: given the ends of its pipes, the number of a child that does that work.
    """

    def __init__(
        self, work: Callable[[], None], *, apart: bool = False, fork: Callable[[Sequence[int]], int] | None = None
    ) -> None:
        (theirs_in, ours_in), (ours_out, theirs_out), (ours_error, theirs_error) = (os.pipe() for _ in range(3))
        self.returncode: int | None = None
        pipes = (theirs_in, theirs_out, *([theirs_error] if apart else []))
        try:
            self.pid = os.fork() if fork is None else fork(pipes)
            if not self.pid:
                become(work, pipes, apart=apart)
        except OSError:
            for ours in (ours_in, ours_out, ours_error):
                os.close(ours)
            raise
        finally:
            for theirs in (theirs_in, theirs_out, theirs_error):
                os.close(theirs)
        if apart:
            # On both sides, so that neither has to wait for the other.
            with contextlib.suppress(OSError):
                os.setpgid(self.pid, self.pid)
        self.stdin: IO[bytes] | None = os.fdopen(ours_in, "wb")
        self.stdout: IO[bytes] | None = os.fdopen(ours_out, "rb")
        self.stderr: IO[bytes] | None = os.fdopen(ours_error, "rb")

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while until is not None and self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("a copy of this process", timeout or 0.0)
            time.sleep(0.01)
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def become(work: Callable[[], None], pipes: Sequence[int], *, apart: bool, kept: Sequence[int] = ()) -> NoReturn:
    """What a copy does: it never returns to what this process was at, and keeps nothing that was open here."""
    try:
        if apart:
            os.setpgid(0, 0)
        for number, pipe in enumerate(pipes):
            os.dup2(pipe, number)
        for open_here in os.listdir("/proc/self/fd"):
            if int(open_here) > 2 and int(open_here) not in kept:
                with contextlib.suppress(OSError):
                    os.close(int(open_here))
        # Not closed with the object: a copy of a copy has others in their place.
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ["PYTHONFAULTHANDLER"] = "1"  # for the processes that it starts
        faulthandler.enable()
        work()
        sys.stdout.flush()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the last words of a process that has nobody to raise to
        traceback.print_exc()
    finally:
        os._exit(1)


Process = subprocess.Popen[bytes] | Copy

_WAITING: list[Process] = []
"""Processes of models that were started before anybody needed them."""

_SPARE: list[Copy] = []
"""Copies of this process as it was before it opened anything: where no program may be started, they do the work."""


COURIERS: list[Copy] = []
"""Copies that speak with others over the network for this process, which will have none; made for one run."""


def python(*words: str) -> list[str]:
    """A command that runs Python without the folder where we are on the path of its modules; see `surroundings`."""
    return [sys.executable, "-P", *words]


def surroundings() -> dict[str, str]:
    """The environment of such a command: an empty or relative entry of PYTHONPATH would be that folder again."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(os.path.isabs, path)), "PYTHONFAULTHANDLER": "1"}


ASLEEP = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}
"""How OpenMP and OpenBLAS are told that threads sleep while they wait; the second by the power of two of the cycles
that they turn round before, of which this is the least."""


def wait_asleep() -> None:
    """Have threads sleep while they wait for each other, before libraries read how they are to; a user's word counts.

    The cores belong to both models, and others may keep them busy: a thread that turns round and round on one takes it
    from the very thread it waits for. Answers do not depend on it.
    """
    for name, value in ASLEEP.items():
        os.environ.setdefault(name, value)


def start(code: str) -> Process:
    """A process that runs some code, with pipes to its standard input and from its standard output."""
    if _SPARE:
        spare = _SPARE.pop()
        assert spare.stdin is not None
        spare.stdin.write(json.dumps(code).encode() + b"\n")
        spare.stdin.flush()
        return spare
    return subprocess.Popen(python("-c", code), env=surroundings(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def keep_spares(count: int, ready: Callable[[], object]) -> None:
    """Make copies of this process, which is still small and opened nothing, for `start`; each gets `ready` first."""

    def work() -> None:
        die_with_parent()
        ready()
        code = bytearray()
        while (byte := os.read(0, 1)) not in (b"\n", b""):
            code += byte
        if code:
            exec(json.loads(code), {"__name__": "__main__"})

    _SPARE.extend(Copy(work) for _ in range(count))


def die_with_parent() -> None:
    """Ask the system to end us with our parent, for the moment when no thread of ours can run."""
    if sys.platform == "linux":
        import ctypes

        set_death_signal = 1
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def collect_from_here() -> None:
    """Look for garbage from now on, and only in what is not there yet: what was imported stays."""
    gc.freeze()
    gc.enable()


def end_group_with_parent() -> None:
    """Leave a process in our group that ends all of it with our parent: what a model forked would outlive us.

    Made before the walls are raised, it is outside of them, where no model can end it or close its eyes.
    """
    if sys.platform != "linux" or os.getpgrp() != os.getpid():
        return
    try:
        parent = os.pidfd_open(os.getppid())
    except OSError:
        return  # an older system: most of what we start ends with us all the same
    if not os.fork():
        try:
            for open_here in os.listdir("/proc/self/fd"):
                if int(open_here) not in (0, parent):
                    with contextlib.suppress(OSError):
                        os.close(int(open_here))
            ends = select.poll()
            ends.register(parent, select.POLLIN)
            # A parent that ended before we looked: nobody writes to our standard input any more.
            ends.register(0, 0)
            ends.poll()
            os.kill(0, signal.SIGKILL)
        finally:
            os._exit(0)
    os.close(parent)


class ModelProcessEnded(BaseException):
    """The process of a model ended without an answer; `code` is how."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the model's process ended with {code}")
        self.code = code


class Apart:
    """A runner whose model works in a process of its own: while it answers, this one is free for something else."""


class RemoteRunner(Apart):
    """A model in another process, which is being opened there until `arrive` returns."""

    native = None
    signature: Signature
    details: Mapping[str, Any]

    def __init__(self, line: Line, model: Model, side: str) -> None:
        self._line = line
        self._opening = line.post("open", (model, side))

    def arrive(self) -> None:
        """Wait until the model is open; raises what went wrong."""
        self.signature, self.details = self._line.collect(self._opening)

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        tensors: Tensors = self._line.collect(self._line.post("run", (batch, outputs)))
        return tensors

    def look(self, what: Callable[[Any], Any]) -> Any:
        """What a function that any process knows says of the model's own object, over there."""
        return self._line.collect(self._line.post("look", what))


def look(runner: Runner, what: Callable[[Any], Any]) -> Any:
    """What a function says of the framework's own open object, wherever that is."""
    return runner.look(what) if isinstance(runner, RemoteRunner) else what(runner.native)


@contextmanager
def open_elsewhere(model: Model, side: str) -> Iterator[RemoteRunner]:
    """Begin to open a model in a process of its own; `arrive` is when it is open."""
    line = Line(_start())
    try:
        yield RemoteRunner(line, model, side)
    finally:
        line.close()


def open_line() -> Line:
    """A line to a process that does what it is asked to; it ends with the line."""
    return Line(_start())


def prepare(target: str) -> None:
    """Start the process of a model ahead of its opening, and let it import what the framework needs."""
    if (found := opener(target)) is not None and found.holds_interpreter:
        process = _start()
        assert process.stdin is not None
        _send(process.stdin, ("import", (type(found).__module__, *found.modules)))
        _WAITING.append(process)


def worthwhile() -> bool:
    """Is there a second core for a second process?"""
    return cores() > 1


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resident(process: int | str = "self") -> int | None:
    """Bytes of memory that a process holds now; None where the system does not tell."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _start() -> Process:
    if _WAITING:
        return _WAITING.pop()
    process = start("from likewise.models.remote import serve; serve()")
    process.stdin, process.stdout = roomy(process.stdin), roomy(process.stdout)
    return process


class Line:
    """Questions to the other process and its answers, in the same order.

    The next question may be put before the last is answered, by another thread: so the model never
    waits for us to be ready.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._sending = threading.Lock()
        self._turn = threading.Condition()
        self._posted = self._collected = 0

    def post(self, what: str, question: Any) -> int:
        """Put a question; returns the number of its answer."""
        assert self._process.stdin is not None
        with self._sending:
            # A process that is gone is noticed where its answer is awaited.
            with contextlib.suppress(BrokenPipeError):
                self.write(self._process.stdin, what, question)
            self._posted += 1
            return self._posted

    def collect(self, number: int) -> Any:
        """The answer of that number; raises what the model raised."""
        assert self._process.stdout is not None
        with self._turn:
            self._turn.wait_for(lambda: self._collected == number - 1)
            try:
                answer, error, noted = self.read(self._process.stdout)
            except EOFError:
                raise self.ended() from None
            finally:
                self._collected = number
                self._turn.notify_all()
        for text in noted:
            warnings.warn(text, stacklevel=2)
        if error is not None:
            raise error
        return answer

    def write(self, pipe: IO[bytes], what: str, question: Any) -> None:
        """Put a question into the pipe."""
        _send(pipe, (what, question))

    def read(self, pipe: IO[bytes]) -> tuple[Any, BaseException | None, Sequence[str]]:
        """The next answer, what was raised in its place, and what was noted on the way."""
        answer, error, noted = _receive(pipe)
        return answer, error, noted

    def ended(self) -> BaseException:
        """What is raised when the process is gone."""
        return ModelProcessEnded(self._process.wait())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def serve() -> None:
    """The other end: open one model and answer batches until nobody asks any more."""
    questions = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    die_with_parent()
    # Nothing that is imported is garbage, and nothing of a model that is being opened.
    gc.disable()
    noted: list[str] = []
    warnings.showwarning = lambda message, *_, **__: noted.append(" ".join(str(message).split()))
    with ExitStack() as stack, contextlib.suppress(EOFError, BrokenPipeError):
        runner: Runner
        ask, begun = _ask_reference, False
        while True:
            what, question = _receive(questions)
            if what == "import":
                for name in question:
                    with contextlib.suppress(ImportError):
                        import_module(name)
                continue
            answer: Any = None
            error: BaseException | None = None
            try:
                if what == "open":
                    model, side = question
                    runner = stack.enter_context(open_model(model))
                    ask = _ask_reference if side == "reference" else _ask_candidate
                    answer = runner.signature, dict(runner.details)
                elif what == "look":
                    answer = question(runner.native)
                elif what == "call":
                    answer = question()
                else:
                    answer = dict(ask(runner, *question))
            except BaseException as raised:  # noqa: BLE001 - the other side is where it is handled
                error = _portable(raised)
            if not begun:
                collect_from_here()
                begun = True
            _send(answers, (answer, error, noted[:]))
            noted.clear()
    os._exit(0)


# Two names for one thing, so that the stack of a crash tells which model it was.
def _ask_reference(runner: Runner, batch: Batch, outputs: frozenset[str] | None) -> Tensors:
    return runner.run(batch, outputs=outputs)


def _ask_candidate(runner: Runner, batch: Batch, outputs: frozenset[str] | None) -> Tensors:
    return runner.run(batch, outputs=outputs)


def _portable(error: BaseException) -> BaseException:
    """An error that any process can read: our own as they are, others by their words."""
    if isinstance(error, LikewiseError | SystemExit | MemoryError):
        error.__cause__ = error.__context__ = None
        return error
    sys.stderr.write("".join(traceback.format_exception(error)))
    return RuntimeError(f"{type(error).__name__}: {error}")


def packed(message: Any) -> list[Any]:
    """A message as it travels: its pickle, and the arrays beside it."""
    beside: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, protocol=5, buffer_callback=beside.append)
    return [body, *(part.raw() for part in beside)]


def unpacked(parts: Sequence[Any]) -> Any:
    """A message that travelled; only of a process that is as much ours as this one."""
    body, *beside = parts
    return pickle.loads(body, buffers=beside)


def _send(pipe: IO[bytes], message: Any) -> None:
    wire.send(pipe, None, packed(message))


def _receive(pipe: IO[bytes]) -> Any:
    return unpacked(wire.receive(pipe)[1])


def roomy(pipe: IO[bytes] | None) -> IO[bytes] | None:
    """The pipe with more room and a high number: a model may write to low descriptors that it did not open."""
    if sys.platform == "win32" or pipe is None:
        return pipe
    import fcntl

    number = fcntl.fcntl(pipe.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR)
    mode = "wb" if pipe.writable() else "rb"
    pipe.close()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(number, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return os.fdopen(number, mode)
