"""The process that opens models. It speaks JSON lines on what was its standard output.

Whatever a model prints goes to standard error, so that it can never be mistaken for a result.
"""

from __future__ import annotations

import glob
import itertools
import json
import math
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, is_dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.contracts.comparison import Progress
from likewise.contracts.models import PLACES
from likewise.data import files, stores
from likewise.data.patterns import matching
from likewise.errors import LikewiseError, one_line
from likewise.models import confinement, remote
from likewise.models.remote import die_with_parent
from likewise.registry import opener
from likewise.tasks.isolation.messages import CHECKPOINT, EDGE, EXPLAINING, SHAPES

if TYPE_CHECKING:
    from likewise.contracts.report import Report
    from likewise.tasks.checkpoints import Checkpoint
    from likewise.tasks.settings import Settings

WITHOUT_POOLS = ("onnx", "openvino", "recorded", "torch")
"""Frameworks that share no locks between processes."""

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
    job = json.loads(line)
    channel.token = job["token"]
    stores.COPIES.update(job.get("copies", {}))
    remote.end_group_with_parent()
    if job["do"] != "bench":
        remote.wait_asleep()
    # First of all: a thread that runs already would stay outside.
    channel.send(type="confined", told=_confine(job))
    threading.Thread(target=_end_when_parent_ends, daemon=True).start()
    try:
        answer(job, channel)
    except remote.ModelProcessEnded as ended:
        _end_like(ended.code)
    # A framework's threads may refuse to end; the answer is out, and that is all a worker is for.
    sys.stderr.flush()
    os._exit(0)


def _confine(job: dict[str, Any]) -> str:
    """Raise the walls around this process and those that will work for it; what is in force then."""
    folders = job["own"]
    if not folders:
        confinement.tell("none: --no-sandbox")
        return confinement.in_force()
    if len(folders) > 1:
        files.kept_in = Path(folders[-1])
    table = job.get("settings") or job["arguments"]
    if isinstance(table.get("data"), str):
        # While it is known which folder that is.
        table["data"] = os.path.expanduser(table["data"])
    sides = [(table[name], _options(table, name)) for name in ("reference", "candidate", "model") if name in table]
    openers = [None if elsewhere(options) else opener(model) for model, options in sides]
    urls = [model for model, _ in sides if _served(model)]
    shared = "live" in job or any(found is not None and found.framework not in WITHOUT_POOLS for found in openers)
    needed, listed = [*_needed(table)], [*_listed(table)]
    needed += [job["checkpoint"]["place"]] if job.get("checkpoint") else []
    if "live" in job:
        # What live objects are made from: their file, the folder we are in, and the modules that the caller finds.
        homes = {os.getcwd(), *job["live"]["paths"]} - set(sys.path)
        needed += [job["live"]["file"], *(part for home in homes for part in confinement.beside(f"{home}/anything"))]
        listed += [home for home in homes if not confinement.holds_homes(home)]
    walls = confinement.Walls(tuple(folders), tuple(needed), tuple(listed), shared)
    if any(elsewhere(options) for _, options in sides):
        # Imported where used: most runs need no other Python.
        from likewise.models.environments import place

        place.start_ahead([options for _, options in sides], walls)
    if urls and sys.platform == "linux":
        from likewise.models.endpoints import transport

        transport.start_ahead(urls, folders[0])
    if table.get("engine") == "ray" and job["do"] == "check":
        errand = (table.get("address"), [model for model, _ in sides], [*needed, *job.get("copies", {}).values()])
        remote.COURIERS.append(remote.Copy(partial(_carry, *errand)))
    if sys.platform == "linux":
        confinement.enclose()
        first = openers[0] if openers else None
        free = first is not None and not first.holds_interpreter and not table.get("reference_options")
        spares = {"check": int(_apart(job) and not free), "bench": 2, "quantize": 1}.get(job["do"], 0)
        if (crew := table.get("workers", 1)) > 1:
            spares = crew
        remote.keep_spares(spares, lambda: confinement.confine(walls))
    return confinement.confine(walls)


def _carry(*errand: Any) -> None:
    """Speak with a Ray cluster for the run. Imported in the copy: threads of what it needs would stay outside walls."""
    from likewise.compare.engines import courier

    courier.carry(*errand)


def _apart(job: Mapping[str, Any]) -> bool:
    """May the reference have a process of its own? Not where other gates have the other cores."""
    return bool(job.get("apart", True)) and remote.worthwhile()


def _options(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The options of the reference, the candidate or the only model."""
    return table.get("options" if name == "model" else f"{name}_options") or {}


def elsewhere(options: Mapping[str, Any]) -> bool:
    """Does another Python open the model with these options?"""
    return any(options.get(name) for name in PLACES)


def _served(model: Any) -> bool:
    return isinstance(model, str) and model.lower().startswith(("http://", "https://"))


def _needed(table: Mapping[str, Any]) -> Iterator[str]:
    """What a run has to read: models with what is beside them, rows, the code that a user names with its folder."""
    named = [table.get(name) for name in ("reference", "candidate", "model")]
    said = [entry for name in table if name.endswith("options") for entry in table[name].items()]
    options = [value for name, value in said if name not in PLACES]
    for text in (value for value in (*named, *options) if isinstance(value, str) and not _served(value)):
        place, colon, _ = text.rpartition(":")
        if os.path.isdir(text):
            yield text
        elif os.path.exists(text):
            yield from confinement.beside(text)
        elif colon:
            # Code may read what is beside it and where it is run.
            yield from confinement.beside(os.path.join(os.getcwd(), "anything"))
            if place.endswith(".py"):
                yield from confinement.beside(place)
    named = [table.get(name) for name in ("data", "baseline", "report", "statement")]
    rows = [value for value in named if isinstance(value, str)]
    for path in map(os.path.expanduser, rows):
        yield path
        if glob.has_magic(path):
            yield from matching(path)


def _listed(table: Mapping[str, Any]) -> Iterator[str]:
    """Folders whose files are looked through by their names: those of patterns, and of names that may be misspelt."""
    named = (table.get(name) for name in ("reference", "candidate", "model", "data"))
    for path in (os.path.expanduser(value).rstrip(os.sep) for value in named if isinstance(value, str)):
        steps = os.path.join(os.path.dirname(path) or os.curdir, "*").split(os.sep)
        folder = os.sep.join(steps[: next(place for place, step in enumerate(steps) if glob.has_magic(step))]) or os.sep
        if not confinement.holds_homes(folder) or glob.has_magic(path):
            yield folder


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


def _settings(job: Mapping[str, Any]) -> Settings:
    from likewise.tasks.isolation import live
    from likewise.tasks.settings import settings_from

    remote.collect_from_here()
    own = live.taken_up(job["live"]) if "live" in job else {}
    return settings_from({**job["settings"], **own}, where="the command")


def _check(job: Mapping[str, Any], channel: Channel, noted: list[str]) -> dict[str, Any]:
    apart = _apart(job) and "reference" in job["settings"]
    if apart and not elsewhere(_options(job["settings"], "reference")):
        remote.prepare(job["settings"]["reference"])
    from likewise.explain.clock import BUSY
    from likewise.report import all_forms, render
    from likewise.tasks import check

    def complete(report: Report) -> Report:
        return replace(report, origin=replace(report.origin, warnings=tuple(sorted(set(noted)))[:20]))

    def judged(report: Report, before: str) -> None:
        spent = report.origin.run["seconds"].get("total", 0.0)
        within = {EXPLAINING: BUSY * settings.explain_budget, EDGE: HUNG + HUNG_TIMES * spent}.get(before)
        # Other lengths decide with the data: what is known before them is no verdict yet.
        outcome = "" if before == SHAPES else str(report.outcome)
        written = render(complete(report), "json")
        channel.send(type="judged", result=written, before=before, within=within, outcome=outcome)

    settings = _settings(job)
    checkpoint = _checkpoint(job, settings, channel)
    report, found = check.investigate(
        settings, progress=channel.progress, judged=judged, apart=apart, checkpoint=checkpoint
    )
    report = complete(report)
    said = "" if checkpoint is None else checkpoint.said
    return {**all_forms(report, job["look"], job["formats"]), "repro": _repro(job, report, found), "said": said}


def _checkpoint(job: Mapping[str, Any], settings: Settings, channel: Channel) -> Checkpoint | None:
    """Where the run keeps what it has reached: in a file of its own that the parent puts in its place."""
    if not job.get("checkpoint"):
        return None
    from likewise.tasks.checkpoints import Checkpoint

    place, every, resume = (job["checkpoint"][name] for name in ("place", "every", "resume"))
    own, numbers = job.get("own"), itertools.count()

    def write(content: bytes) -> None:
        if not own:
            files.atomically(Path(place), content)
            return
        number = next(numbers)
        (Path(own[0]) / f"{CHECKPOINT}{number}").write_bytes(content)
        channel.send(type="checkpoint", number=number)

    return Checkpoint(settings, write, every=math.inf if every is None else every, old=Path(place) if resume else None)


def _keep(job: Mapping[str, Any], channel: Channel, noted: list[str]) -> dict[str, Any]:
    """A stored report, drawn again, if a run of the gate would be made from the same; else what has changed."""
    from likewise.report import all_forms, load
    from likewise.tasks.verify import changed

    settings = _settings(job)
    assert settings.report is not None
    if why := changed(settings.report, settings):
        return {"changed": why}
    return all_forms(load(settings.report), job["look"], job["formats"])


def _repro(job: Mapping[str, Any], report: Report, found: Any) -> dict[str, str]:
    """The files of a folder that shows the difference, where one was asked for, as text that travels."""
    if not job.get("repro"):
        return {}
    from base64 import b64encode

    from likewise.tasks import repro

    try:
        return {name: b64encode(content).decode() for name, content in repro.files(report, found).items()}
    except Exception as error:  # noqa: BLE001 - the verdict took long to get: it is not lost with what only shows it
        sys.stderr.write(f"no piece that shows the difference: {one_line(error)}\n")
        return {}


def _fix(job: Mapping[str, Any], channel: Channel, noted: list[str]) -> dict[str, Any]:
    """The check that counts, as of a check, and what was done on the way to it."""
    from likewise.report import all_forms
    from likewise.tasks import fix

    fixed, found = fix.run(_settings(job), job["arguments"]["output"], progress=channel.progress)
    told = {
        name: asdict(fixed)[name] for name in ("output", "done", "tried", "settings", "bytes_before", "bytes_after")
    }
    before = {"outcome": fixed.before.outcome, "headline": fixed.before.headline}
    carried = all_forms(fixed.report, job["look"], job["formats"])
    return {**carried, "fixed": {"before": before, **told}, "repro": _repro(job, fixed.before, found)}


def _task(job: Mapping[str, Any], channel: Channel, noted: list[str]) -> Any:
    """The task of that name, called as from Python, and what it returns in plain values."""
    name = job["do"]
    told = {} if name in ("inspect", "verify") else {"progress": channel.progress}
    home = import_module(f"likewise.tasks.{'record' if name == 'inspect' else name}")
    remote.collect_from_here()
    found = getattr(home, name)(**_tuples(job["arguments"]), **told)
    return asdict(found) if is_dataclass(found) and not isinstance(found, type) else found


def _narrow(job: Mapping[str, Any], channel: Channel, noted: list[str]) -> None:
    from likewise.tasks.check import ask_again

    ask_again(_settings(job), **job["arguments"], progress=channel.progress)


def _quantize(job: Mapping[str, Any], channel: Channel, noted: list[str]) -> dict[str, Any]:
    from likewise.models.onnx.quantize import Recipe
    from likewise.tasks.quantize import write

    remote.collect_from_here()
    return asdict(write(recipe=Recipe(**_tuples(job["recipe"])), **_tuples(job["arguments"])))


def _tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they were before they travelled as JSON."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}


JOBS: Mapping[str, Callable[[Mapping[str, Any], Channel, list[str]], Any]] = {
    "check": _check,
    "fix": _fix,
    "keep": _keep,
    "narrow": _narrow,
    "quantize": _quantize,
    **dict.fromkeys(("bench", "demo", "export", "inspect", "noise", "record", "stress", "verify"), _task),
}


def _end_when_parent_ends() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
