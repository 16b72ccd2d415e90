"""The process that opens models. It speaks JSON lines on what was its standard output.

Whatever a model prints goes to standard error, so that it can never be mistaken for a result.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from likewise.contracts.comparison import Progress
from likewise.errors import LikewiseError, one_line
from likewise.models import remote
from likewise.models.remote import die_with_parent

if TYPE_CHECKING:
    from likewise.contracts.report import Report

HUNG, HUNG_TIMES = 60.0, 20.0
"""What follows a verdict hangs if it takes more seconds than this, and this many times what the data took."""


class Channel:
    """Messages to the parent."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._lock = threading.Lock()
        self.token = ""

    def send(self, **message: Any) -> None:
        with self._lock:
            self._file.write(json.dumps({**message, "token": self.token}) + "\n")
            self._file.flush()

    def progress(self, progress: Progress) -> None:
        self.send(type="progress", **asdict(progress))


def main() -> None:
    """Carry out one job and answer."""
    channel = Channel()
    die_with_parent()
    line = sys.stdin.readline()
    if not line:
        return
    threading.Thread(target=_end_when_parent_ends, daemon=True).start()
    job = json.loads(line)
    channel.token = job["token"]
    try:
        answer(job, channel)
    except remote.ModelProcessEnded as ended:
        _end_like(ended.code)
    # A framework's threads may refuse to end; the answer is out, and that is all a worker is for.
    sys.stderr.flush()
    os._exit(0)


def answer(job: Mapping[str, Any], channel: Channel) -> None:
    """Carry out a job and send its result, or what went wrong."""
    noted: list[str] = []
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: noted.append(" ".join(str(message).split()))
        try:
            channel.send(type="result", result=JOBS[job["do"]](job, channel, noted))
        except LikewiseError as error:
            channel.send(
                type="error",
                code=error.code,
                message=error.message,
                remedy=error.remedy,
                side=error.side,
                traceback=traceback.format_exc(),
            )
        except MemoryError as error:
            channel.send(type="error", code="memory", message=f"memory ran out: {one_line(error)}")
        except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback reaches a user
            channel.send(
                type="error",
                code="internal",
                message=f"unforeseen: {one_line(error)}",
                remedy="Run again with --debug to see where, and please report it",
                traceback=traceback.format_exc(),
            )


def _end_like(code: int) -> None:
    """The model's process ended; so does the one it worked for, and in the same way."""
    sys.stderr.flush()
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def _check(job: Mapping[str, Any], channel: Channel, noted: list[str]) -> dict[str, Any]:
    apart = remote.worthwhile()
    if apart:
        remote.prepare(job["settings"]["reference"])
    from likewise.report.files import render
    from likewise.tasks import check
    from likewise.tasks.settings import settings_from

    def complete(report: Report) -> Report:
        return replace(report, origin=replace(report.origin, warnings=tuple(sorted(set(noted)))[:20]))

    def judged(report: Report, before: str) -> None:
        spent = report.origin.run["seconds"].get("total", 0.0)
        within = {check.EXPLAINING: settings.explain_budget, check.EDGE: HUNG + HUNG_TIMES * spent}.get(before)
        # Other lengths decide with the data: what is known before them is no verdict yet.
        outcome = "" if before == check.SHAPES else str(report.outcome)
        written = render(complete(report), "json")
        channel.send(type="judged", result=written, before=before, within=within, outcome=outcome)

    look = job["look"]
    if look is not None:
        # What draws the report is imported while the models are being opened.
        threading.Thread(target=import_module, args=("rich.table",), daemon=True).start()

    settings = settings_from(job["settings"], where="the command")
    report = complete(check.run(settings, progress=channel.progress, judged=judged, apart=apart))
    from likewise.cli.gates import drawn

    return asdict(drawn(report, look, job["formats"]))


def _task(job: Mapping[str, Any], channel: Channel, noted: list[str]) -> Any:
    """The task of that name, called as from Python, and what it returns in plain values."""
    name = job["do"]
    told = {} if name == "inspect" else {"progress": channel.progress}
    found = getattr(import_module(f"likewise.tasks.{name}"), name)(**_tuples(job["arguments"]), **told)
    return asdict(found) if is_dataclass(found) and not isinstance(found, type) else found


def _quantize(job: Mapping[str, Any], channel: Channel, noted: list[str]) -> dict[str, Any]:
    from likewise.models.onnx.quantize import Recipe
    from likewise.tasks.quantize import write

    return asdict(write(recipe=Recipe(**_tuples(job["recipe"])), **_tuples(job["arguments"])))


def _tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they were before they travelled as JSON."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}


JOBS: Mapping[str, Callable[[Mapping[str, Any], Channel, list[str]], Any]] = {
    "check": _check,
    "quantize": _quantize,
    **dict.fromkeys(("bench", "demo", "export", "inspect", "noise", "record", "stress"), _task),
}


def _end_when_parent_ends() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
