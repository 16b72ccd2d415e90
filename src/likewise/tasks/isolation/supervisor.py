"""Runs a job in a worker process, so that a model that crashes, hangs or is killed takes only the worker along.

The parent stays light: it imports no framework, reads messages, and knows at every moment which
model was given which rows. Where somebody is watching, a line on standard error says how far a run is.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.data.stores import is_stored
from likewise.errors import LikewiseError, UsageError
from likewise.models.confinement import tell
from likewise.models.remote import Process, resident
from likewise.report.console import Pace, plain
from likewise.tasks.amounts import bytes_of
from likewise.tasks.isolation import starting
from likewise.tasks.isolation.messages import AHEAD, CHECKPOINT, EXPLAINING, Message, Tail, read
from likewise.tasks.isolation.rooms import put_checkpoint, rooms

if TYPE_CHECKING:
    from likewise.tasks.settings import Settings

COPY = "rows"
"""The folder of a worker that holds what was copied for the run."""

GRACE = 15.0
"""Seconds beyond its budget after which what follows a verdict is given up: a model call may be under way."""

BEYOND = 2
"""How many times what it may hold a search is let have: it looks at that between its experiments only."""

DEAD, FINISHED = 5.0, 30.0
"""Seconds after the worker's end in which what it wrote last is waited for: it died, or says that it was done."""

ALONE = "Run the model alone on these rows to see it crash"

HUNG = 600.0
"""Seconds without a sign of life after which a model hangs, where nobody said how long a run may take."""

PATIENCE, BESIDE = 10.0, 2.0
"""A slow model is no model that hangs: a call may take so many times what its rows took before, and what is tried
beside the data, which is not told call by call, so many times what the run took until then."""


PIECES = (16, 4, 2, 1)
"""Into how many calls rows on which a model crashed are cut, to find those that are enough: fewer, if none does."""


class CrashError(LikewiseError):
    """The worker died or was stopped before it had an answer."""

    code = "crash"
    judged: tuple[str, str] | None = None
    """The report as it stood, and what the worker was at when it died: nothing that could change the verdict."""
    rows: tuple[int, int] | None = None
    """The first and the last row that a model was given when it took the worker along."""


def told_in(found: Any, name: str) -> str:
    """A text in what a worker answered, which may be anything; nothing where it is left out."""
    text = found.get(name, "") if isinstance(found, Mapping) else None
    if not isinstance(text, str):
        raise CrashError("the worker's answer is not a report", remedy=ALONE)
    return text


@contextmanager
def taking_apart() -> Iterator[None]:
    """What a worker answered is looked into: what is missing there or of another kind is the worker's fault."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CrashError("the worker's answer is not what was asked for", remedy=ALONE) from error


class WorkerError(LikewiseError):
    """The worker met an error that nobody foresaw."""

    code = "internal"


def job_of(
    settings: Settings, *, formats: Sequence[tuple[str, str]] = (), look: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """One gate for a worker to carry out; `look` describes the terminal, if somebody looks."""
    values = {entry.name: getattr(settings, entry.name) for entry in fields(settings)}
    plain = {name: value for name, value in values.items() if value is not None}
    return {"do": "check", "settings": plain, "formats": [*formats], "look": look}


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
    silence = _Silence() if timeout is None and job["do"] in ("check", "fix", "keep") else None
    timeout = timeout or None
    known: list[tuple[str, str]] = []
    _install(job)
    try:
        with rooms(job) as own, _worker() as worker:
            job, waiting = {**job, "own": own, **_copied(job, own)}, (timeout, silence)
            return _follow(
                worker, job, known, waiting, on_progress=on_progress, on_tick=on_tick, on_judged=on_judged, debug=debug
            )
    except CrashError as error:
        error.judged = known[-1] if known else None
        raise


def _install(job: Mapping[str, Any]) -> None:
    """Make the environments that the models of a job ask for: behind its walls, the worker can install nothing."""
    table = job.get("settings") or job.get("arguments") or {}
    for name in ("reference_options", "candidate_options", "options"):
        if (table.get(name) or {}).get("with"):
            from likewise.models.environments.place import Place

            place = Place.of(table[name])
            assert place is not None
            place.interpreter(tell=_say)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _copied(job: Mapping[str, Any], own: Sequence[str]) -> dict[str, Any]:
    """Rows from an object store, copied into the folder of a worker: behind its walls there is no network."""
    address = str((job.get("settings") or job.get("arguments") or {}).get("data"))
    if not own or not is_stored(address):
        return {}
    folder = os.path.join(own[0], COPY)
    os.mkdir(folder)
    starting.copy_rows(address, folder)
    return {"copies": {address: folder}}


@contextmanager
def _worker() -> Iterator[Process]:
    """A process for a job; whatever happens, it is gone afterwards with all that it started."""
    worker = starting.begin()
    previous = _on_termination(lambda: _kill(worker))
    try:
        yield worker
    finally:
        _kill(worker)
        for pipe in (worker.stdin, worker.stdout, worker.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _follow(
    worker: Process,
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
    messages: queue.Queue[Message | ValueError | None] = queue.Queue(AHEAD)
    words = Tail(worker.stderr, echo=debug)
    token = secrets.token_hex(8)
    threading.Thread(target=read, args=(worker.stdout, messages, token), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        # The pipe stays open: the worker ends itself when it closes, so that no orphan outlives us.
        worker.stdin.write(json.dumps({**job, "token": token}).encode() + b"\n")
        worker.stdin.flush()
    names = job.get("settings", {})
    asked = deadline = None if timeout is None else time.monotonic() + timeout
    doing: dict[str, dict[str, Any]] = {}
    died: float | None = None
    confined = False
    most: int | None = None
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
            if silence is not None and (quiet := silence.broken(doing)):
                raise CrashError(
                    f"no answer for {quiet / 60:.0f} minutes: stopped {_where(doing, names)}",
                    remedy="If it is only slow, say how long it may take: --timeout 2h (none: without limit)",
                    side=_side(doing),
                ) from None
        else:
            if message is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    raise _death(worker.wait(DEAD), doing, names, words)
                message = ValueError("nothing more and did not end")
            if isinstance(message, ValueError):
                raise CrashError(f"the worker said {message} {_where(doing, names)}", remedy=ALONE, side=_side(doing))
            if silence is not None:
                silence.end(doing, message)
            if message["type"] == "progress":
                _keep_track(doing, message)
                if on_progress is not None:
                    on_progress(message)
            elif message["type"] == "confined":
                # Said before it opens anything; what it says of its walls later on may be a model's word.
                if not confined:
                    tell(message["told"])
                confined = True
            elif message["type"] == "checkpoint" and job.get("checkpoint") and job["own"]:
                put_checkpoint(Path(job["own"][0]) / f"{CHECKPOINT}{message['number']}", job["checkpoint"]["place"])
            elif message["type"] == "judged":
                known[:] = [(message["result"], message["before"])]
                doing.clear()
                if on_judged is not None:
                    on_judged(message["outcome"])
                until = None if message["within"] is None else time.monotonic() + message["within"] + GRACE
                deadline = min((end for end in (asked, until) if end is not None), default=None)
                # What has a time of its own may be silent for all of it.
                silence = silence if until is None else None
                most = _most_memory(worker, names) if message["before"] == EXPLAINING else None
            elif message["type"] == "result":
                return message["result"]
            else:
                raise _error(message, debug=debug)
        if most is not None and (resident(worker.pid) or 0) > most:
            raise CrashError(f"its memory (--memory) is used up: stopped {_where(doing, names)}")
        # Also of one that talks all the time.
        if deadline is not None and time.monotonic() >= deadline:
            limit = f"within {timeout:g} seconds" if timeout is not None else "in time"
            raise CrashError(
                f"no answer {limit}: stopped {_where(doing, names)}",
                remedy="Give it more time with --timeout, or fewer rows with --samples",
                side=_side(doing),
            )


def _most_memory(worker: Process, names: Mapping[str, Any]) -> int | None:
    """Bytes at which a search for causes is given up, where it has not seen by itself that it holds too much."""
    return None if "memory" not in names else (resident(worker.pid) or 0) + BEYOND * bytes_of(names["memory"])


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


def _death(code: int, doing: Mapping[str, Mapping[str, Any]], names: Mapping[str, Any], words: Tail) -> CrashError:
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
    error = CrashError(
        f"{how} {_where(doing, names, side)}" + (f"; its last output: {said.strip()[:200]}" if said else ""),
        remedy=ALONE,
        side=side,
    )
    asked = doing.get(side or "")
    if asked is not None and not asked["phase"].startswith("loading"):
        error.rows = (asked["first"], asked["last"])
    return error


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
    error = kind(message["message"], remedy=str(message.get("remedy") or ""), side=message.get("side"))
    error.code = message["code"]
    return error


def _kill(worker: Process) -> None:
    """End the worker and whatever it started."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
    elif worker.poll() is None:
        worker.kill()
    worker.wait()
    if os.name == "posix":
        # What it started may have become ours: of many gates, nobody else would take note of their ends.
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-worker.pid, 0)


def _on_termination(clean_up: Callable[[], None]) -> Any:
    """Take the worker along when somebody ends us politely."""

    def stop(number: int, frame: object) -> None:
        clean_up()
        sys.exit(128 + number)

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return None  # somebody else ends this process, and the worker ends with it
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


def narrowed(
    job: Mapping[str, Any],
    side: str,
    first: int,
    last: int,
    *,
    seconds: float,
    supervised: Callable[..., Any] = supervise,
) -> str:
    """Which of the rows that a model crashed on are enough for it, as far as that is found in time; in words."""
    until, found, pieces = time.monotonic() + seconds, False, list(PIECES)
    while last > first and pieces and time.monotonic() < until:
        size = max(1, -((first - last - 1) // pieces[0]))
        asked = {"do": "narrow", "arguments": {"side": side, "first": first, "last": last, "size": size}}
        try:
            supervised({**job, **asked}, timeout=max(1.0, until - time.monotonic()))
            pieces.pop(0)
        except CrashError as again:
            if again.rows is None:
                break
            pieces, found = list(PIECES) if again.rows != (first, last) else pieces[1:], True
            first, last = again.rows
        except LikewiseError:
            break
    if not found:
        return ""
    return f"; row {first} alone is enough" if first == last else f"; rows {first} to {last} are enough"
