"""Runs a job in a worker process, so that a model that crashes, hangs or is killed takes only the worker along.

The parent stays light: it imports no framework, reads messages, and knows at every moment which
model was given which rows. Where somebody is watching, a line on standard error says how far a run is.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import IO, Any, NoReturn

from likewise.errors import LikewiseError, UsageError
from likewise.report.console import Pace, plain

WORKER = "likewise.cli.worker"

GRACE = 15.0
"""Seconds beyond its budget after which what follows a verdict is given up: a model call may be under way."""

DEAD, FINISHED = 5.0, 30.0
"""Seconds after the worker's end in which what it wrote last is waited for: it died, or says that it was done."""

HUNG = 600.0
"""Seconds without a sign of life after which a model hangs, where nobody said how long a run may take."""

PATIENCE, BESIDE = 10.0, 2.0
"""A slow model is no model that hangs: a call may take so many times what its rows took before, and what is tried
beside the data, which is not told call by call, so many times what the run took until then."""

LAST_WORDS = 16_000
"""Characters of the worker's own output that are kept to explain its death."""


class CrashError(LikewiseError):
    """The worker died or was stopped before it had an answer."""

    code = "crash"
    judged: tuple[str, str] | None = None
    """The report as it stood, and what the worker was at when it died: nothing that could change the verdict."""


class WorkerError(LikewiseError):
    """The worker met an error that nobody foresaw."""

    code = "internal"


def supervise(
    job: Mapping[str, Any],
    *,
    timeout: float | None = None,
    on_progress: Callable[[Mapping[str, Any]], None] | None = None,
    on_tick: Callable[[], None] | None = None,
    on_judged: Callable[[str], None] | None = None,
    debug: bool = False,
) -> Any:
    """The result of a job, or an error that says what happened to it. A `timeout` of 0 never ends a job.

    Without one, a gate ends when a model gives no sign of life; what other jobs take is for their users to say.
    """
    silence = _Silence() if timeout is None and job["do"] == "check" else None
    timeout = timeout or None
    worker = _Copy() if _light() else _started()
    previous = _on_termination(lambda: _kill(worker))
    known: list[tuple[str, str]] = []
    try:
        waiting = timeout, silence
        return _follow(
            worker, job, known, waiting, on_progress=on_progress, on_tick=on_tick, on_judged=on_judged, debug=debug
        )
    except CrashError as error:
        error.judged = known[-1] if known else None
        raise
    finally:
        _kill(worker)
        for pipe in (worker.stdin, worker.stdout, worker.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        start_new_session=os.name == "posix",
    )


def _light() -> bool:
    """May this process be copied? No thread of a library is lost, and no framework has begun to work in it."""
    return sys.platform == "linux" and threading.active_count() == 1 and "numpy" not in sys.modules


class _Copy:
    """A worker that is a copy of this process, as `subprocess.Popen` is a new one: what is imported, it has."""

    def __init__(self) -> None:
        (theirs_in, ours_in), (ours_out, theirs_out), (ours_error, theirs_error) = os.pipe(), os.pipe(), os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            for ours in (ours_in, ours_out, ours_error):
                os.close(ours)
            _work(theirs_in, theirs_out, theirs_error)
        # On both sides, so that neither has to wait for the other.
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)
        for theirs in (theirs_in, theirs_out, theirs_error):
            os.close(theirs)
        self.stdin: IO[bytes] = os.fdopen(ours_in, "wb")
        self.stdout: IO[bytes] = os.fdopen(ours_out, "rb")
        self.stderr: IO[bytes] = os.fdopen(ours_error, "rb")

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _work(*pipes: int) -> NoReturn:
    """What the copy does, and all it does: it never returns to what this process was at."""
    try:
        os.setpgid(0, 0)
        for number, pipe in enumerate(pipes):
            os.dup2(pipe, number)
            os.close(pipe)
        sys.stdin, sys.stdout = os.fdopen(0, encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8")
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ["PYTHONFAULTHANDLER"] = "1"  # for the processes that it starts
        faulthandler.enable()
        import_module(WORKER).main()
    except BaseException:  # noqa: BLE001 - the last words of a process that has nobody to raise to
        traceback.print_exc()
    finally:
        os._exit(1)


def _follow(
    worker: subprocess.Popen[bytes] | _Copy,
    job: Mapping[str, Any],
    known: list[tuple[str, str]],
    waiting: tuple[float | None, _Silence | None],
    *,
    on_progress: Callable[[Mapping[str, Any]], None] | None,
    on_tick: Callable[[], None] | None,
    on_judged: Callable[[str], None] | None,
    debug: bool,
) -> Any:
    timeout, silence = waiting
    assert worker.stdin is not None
    assert worker.stdout is not None
    assert worker.stderr is not None
    messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
    words = _Tail(worker.stderr, echo=debug)
    token = secrets.token_hex(8)
    threading.Thread(target=_read, args=(worker.stdout, messages, token), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        # The pipe stays open: the worker ends itself when it closes, so that no orphan outlives us.
        worker.stdin.write(json.dumps({**job, "token": token}).encode() + b"\n")
        worker.stdin.flush()
    names = job.get("settings", {})
    asked = deadline = None if timeout is None else time.monotonic() + timeout
    doing: dict[str, dict[str, Any]] = {}
    died: float | None = None
    while True:
        wait = 0.1 if deadline is None else max(0.0, min(0.1, deadline - time.monotonic()))
        try:
            message = messages.get(timeout=wait)
        except queue.Empty:
            if on_tick is not None:
                on_tick()
            if worker.poll() is not None and messages.empty():
                # Its last message may still be in the pipe, and the thread that reads it waits for a core. A child that
                # it forked may hold the pipe open: then its death does not show there.
                died = died or time.monotonic()
                given_up = died + (FINISHED if worker.returncode == 0 else DEAD)
                if time.monotonic() > min(given_up, given_up if deadline is None else deadline):
                    raise _death(worker.wait(), doing, names, words) from None
            if deadline is not None and time.monotonic() >= deadline:
                limit = f"within {timeout:g} seconds" if timeout is not None else "in time"
                raise CrashError(
                    f"no answer {limit}: stopped {_where(doing, names)}",
                    remedy="Give it more time with --timeout, or fewer rows with --samples",
                    side=_side(doing),
                ) from None
            if silence is not None and (quiet := silence.broken(doing)):
                raise CrashError(
                    f"no answer for {quiet / 60:.0f} minutes: stopped {_where(doing, names)}",
                    remedy="If it is slow and does not hang, say how long it may take: --timeout 2h (none: no end)",
                    side=_side(doing),
                ) from None
            continue
        if silence is not None and message is not None:
            silence.end(doing, message)
        if message is None:
            raise _death(worker.wait(), doing, names, words)
        if message["type"] == "progress":
            _keep_track(doing, message)
            if on_progress is not None:
                on_progress(message)
        elif message["type"] == "judged":
            known.append((message["result"], message["before"]))
            doing.clear()
            if on_judged is not None:
                on_judged(message["outcome"])
            until = None if message["within"] is None else time.monotonic() + message["within"] + GRACE
            deadline = min((end for end in (asked, until) if end is not None), default=None)
            # What has a time of its own may be silent for all of it.
            silence = silence if until is None else None
        elif message["type"] == "result":
            return message["result"]
        else:
            raise _error(message, debug=debug)


class _Silence:
    """How long nothing was heard of a gate, and whether that is longer than it should be."""

    def __init__(self) -> None:
        self._began = self._heard = time.monotonic()
        self._asked: dict[str, float] = {}
        self._pace = 0.0

    def end(self, doing: Mapping[str, Mapping[str, Any]], message: Mapping[str, Any]) -> None:
        """Something was heard: `doing` is what was going on until then."""
        self._heard = time.monotonic()
        side = message.get("side") or ""
        if message.get("finished") and side in doing and side in self._asked:
            self._pace = max(self._pace, (self._heard - self._asked[side]) / _rows(doing[side]))
        self._asked[side] = self._heard

    def broken(self, doing: Mapping[str, Mapping[str, Any]]) -> float | None:
        """The seconds of a silence that is too long."""
        quiet = time.monotonic() - self._heard
        rows = sum(_rows(entry) for side, entry in doing.items() if side)
        most = max(HUNG, PATIENCE * self._pace * rows, BESIDE * (self._heard - self._began))
        return quiet if quiet > most else None


def _rows(entry: Mapping[str, Any]) -> int:
    return max(1, int(entry["last"]) - int(entry["first"]) + 1)


def _keep_track(doing: dict[str, dict[str, Any]], message: dict[str, Any]) -> None:
    """Remember which model is at work on which rows."""
    side = message["side"] or ""
    if message["finished"]:
        doing.pop(side, None)
        return
    if any(entry["phase"] != message["phase"] for entry in doing.values()):
        doing.clear()
    doing[side] = message


def _read(pipe: IO[bytes], messages: queue.Queue[dict[str, Any] | None], token: str) -> None:
    with contextlib.suppress(ValueError, OSError):
        for line in pipe:
            with contextlib.suppress(json.JSONDecodeError):
                message = json.loads(line)
                # Whatever a model writes here is not a message of ours.
                if isinstance(message, dict) and message.get("token") == token:
                    messages.put(message)
    messages.put(None)


class _Tail:
    """The end of what the worker writes on its own account: models print, runtimes warn."""

    def __init__(self, pipe: IO[bytes], *, echo: bool) -> None:
        self._pipe, self._echo, self._text = pipe, echo, ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            for line in self._pipe:
                text = line.decode(errors="replace")
                self._text = (self._text + text)[-LAST_WORDS:]
                if self._echo:
                    sys.stderr.write(text)

    def text(self) -> str:
        self._thread.join(timeout=1)
        return self._text


def _death(code: int, doing: Mapping[str, Mapping[str, Any]], names: Mapping[str, Any], words: _Tail) -> CrashError:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        how = f"the worker was killed by {name}"
        if name == "SIGKILL":
            how += ", as when memory runs out"
    else:
        how = f"the worker exited with code {code}"
    side = _blamed(words.text()) or _side(doing)
    last = words.text().strip().splitlines()
    said = next((line for line in last if line.startswith("Fatal Python error")), last[-1] if last else "")
    return CrashError(
        f"{how} {_where(doing, names, side)}" + (f"; its last output: {said.strip()[:200]}" if said else ""),
        remedy="Run the model alone on these rows to see it crash",
        side=side,
    )


def _blamed(words: str) -> str | None:
    """The side whose thread crashed, where Python's fault handler could still tell."""
    _, _, stack = words.partition("Current thread")
    stack = stack.split("Thread 0x")[0]
    return next((side for side in ("reference", "candidate") if f"_ask_{side}" in stack), None)


def _side(doing: Mapping[str, Mapping[str, Any]]) -> str | None:
    sides = [side for side in doing if side]
    return sides[0] if len(sides) == 1 else None


def _where(doing: Mapping[str, Mapping[str, Any]], names: Mapping[str, Any], blamed: str | None = None) -> str:
    """What was going on, in words; `names` has what the models are called, where that is known."""
    if not doing:
        return "before it had begun" if blamed is None else f"in the {blamed}"
    told = [message for side, message in doing.items() if blamed is None or side == blamed] or list(doing.values())
    parts = []
    for message in told:
        side = message["side"]
        name = f" ({names[side]})" if side in names else ""
        # A model that is being opened has no rows yet.
        if not side or message["phase"].startswith("loading"):
            parts.append(f"while {message['phase']}{name}")
        else:
            parts.append(f"while the {side}{name} ran rows {message['first']} to {message['last']}")
    return " and ".join(parts)


def _error(message: Mapping[str, Any], *, debug: bool) -> LikewiseError:
    if debug and message.get("traceback"):
        sys.stderr.write(message["traceback"])
    kind = UsageError if message["code"] == "usage" else WorkerError
    error = kind(message["message"], remedy=message.get("remedy", ""), side=message.get("side"))
    error.code = message["code"]
    return error


def _kill(worker: subprocess.Popen[bytes] | _Copy) -> None:
    """End the worker and whatever it started."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
    elif worker.poll() is None:
        worker.kill()
    worker.wait()


def _on_termination(clean_up: Callable[[], None]) -> Any:
    """Take the worker along when somebody ends us politely."""

    def stop(number: int, frame: object) -> None:
        clean_up()
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, stop)


class _ProgressLine:
    """Redraws itself in place; leaves nothing behind."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown and sys.stderr.isatty() and not plain()
        self._pace = Pace()
        self._drawn = 0.0
        self._verdict = ""

    def judged(self, outcome: str) -> None:
        """The verdict is known, and stands in front of what follows it."""
        self._verdict = f"{outcome} · " if outcome else ""
        self._drawn = 0.0

    def update(self, message: Mapping[str, Any]) -> None:
        self._pace.update(message)
        self.tick()

    def tick(self) -> None:
        now = time.monotonic()
        if self._shown and now - self._drawn > 0.1 and (text := self._pace.text(now)):
            self._drawn = now
            sys.stderr.write("\r\x1b[2K" + (self._verdict + text)[:79])
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def watched(job: Mapping[str, Any], *, shown: bool, debug: bool, timeout: float | None = None) -> Any:
    """The result of a job, or an error that says what happened to it; the line is gone when it ends."""
    line = _ProgressLine(shown=shown)
    try:
        return supervise(
            job, timeout=timeout, on_progress=line.update, on_tick=line.tick, on_judged=line.judged, debug=debug
        )
    finally:
        line.clear()
