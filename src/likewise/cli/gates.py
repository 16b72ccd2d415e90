"""What an exit code means. Only zero deploys.

What GitHub Actions shows of a gate: a summary of the job, and a line where people look first.

Carrying out a gate from the command line: supervised, written down, shown.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli.supervisor import CrashError, watched
from likewise.contracts.verdict import Outcome
from likewise.errors import LikewiseError, UsageError

if TYPE_CHECKING:
    from likewise.contracts.report import Report
    from likewise.tasks.settings import Settings


PASS, FAIL, USAGE, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 130

CODES = {"PASS": PASS, "FAIL": FAIL, "INCONCLUSIVE": INCONCLUSIVE}
"""By outcome, in plain text: `--help` needs no more than this."""


SUMMARY = "GITHUB_STEP_SUMMARY"
"""Stands for the file of that variable: what is there already stays."""


def github_formats() -> Mapping[str, str]:
    """The forms of a report that the job asks for by its environment, by the file they go to."""
    return {"markdown": SUMMARY} if os.environ.get(SUMMARY) else {}


def add_to_summary(text: str) -> None:
    """Append to the summary of the job."""
    with Path(os.environ[SUMMARY]).open("a", encoding="utf-8") as summary:
        summary.write(text + "\n")


def annotate(outcome: Outcome, message: str) -> None:
    """Mark the job with what broke. On standard error: standard output may be read by a machine."""
    if os.environ.get("GITHUB_ACTIONS") == "true" and outcome is not Outcome.PASS:
        escaped = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        sys.stderr.write(f"::error title=likewise {outcome}::{escaped}\n")


@dataclass(frozen=True, slots=True)
class Carried:
    """A gate that was carried out: its outcome, its report as JSON, as text for this terminal, and as other files."""

    outcome: Outcome
    headline: str
    json: str
    shown: str
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def report(self) -> Report:
        """The report itself. Reading it takes longer than showing it: only for those who look inside."""
        from likewise.report.formats.json import loads

        return loads(self.json, name="the worker's report")


def carry_out(settings: Settings, *, as_json: bool = False, quiet: bool, debug: bool, full: bool = False) -> Carried:
    """One gate in a worker of its own, its report written where the settings say.

    Whatever happens to the worker, there is a report. The worker also draws it, so that this process stays light.
    """
    settings.policy()
    if as_json and "-" in settings.formats.values():
        raise UsageError("standard output is for the JSON", remedy="Give the other format a file")
    look = {"width": width(), "colour": colour(), "quiet": quiet, "full": full, "saved": settings.report}
    formats = [*settings.formats.items(), *github_formats().items()]
    job = {"do": "check", "settings": _plain(settings), "formats": formats, "look": None if as_json else look}
    try:
        found = watched(job, shown=not (quiet or as_json), timeout=settings.timeout, debug=debug)
        carried = Carried(Outcome(found["outcome"]), found["headline"], found["json"], found["shown"], found["files"])
    except UsageError:
        raise
    except LikewiseError as error:
        carried = drawn(_without_worker(settings, error), None if as_json else look, formats)
    write({**carried.files, **({} if settings.report is None else {settings.report: carried.json})})
    annotate(carried.outcome, carried.headline)
    return carried


def write(files: Mapping[str, str]) -> None:
    """Files by their path; `-` is standard output."""
    from likewise.data.files import atomically

    for path, text in files.items():
        if path == SUMMARY:
            add_to_summary(text)
        elif path == "-":
            click.echo(text, nl=not text.endswith("\n"))
        else:
            atomically(Path(path), text.encode())


def _without_worker(settings: Settings, error: LikewiseError) -> Report:
    """The report of a worker that died: inconclusive, or the verdict it had reached before it went further."""
    from likewise.report.formats.json import loads
    from likewise.tasks.check import could_not_run, cut_short

    if not isinstance(error, CrashError) or error.judged is None:
        return could_not_run(settings, _naming(error, settings))
    text, doing = error.judged
    return cut_short(loads(text, name="the worker's report"), doing, error.message)


def drawn(report: Report, look: Mapping[str, Any] | None, formats: Sequence[tuple[str, str]] = ()) -> Carried:
    """A report in every form asked for, by the file it goes to; `look` describes the terminal, if anybody looks."""
    from likewise.report.files import render

    shown = "" if look is None else render(report, "terminal", **look)
    files = {path: render(report, name) for name, path in formats}
    return Carried(report.outcome, report.verdict.headline, render(report, "json"), shown, files)


def show(carried: Carried, *, as_json: bool) -> None:
    """The report on standard output: for a person, or for a machine."""
    click.echo(carried.json if as_json else carried.shown, nl=False)


def width() -> int:
    """80 columns unless the terminal says otherwise."""
    return min(shutil.get_terminal_size((80, 24)).columns, 120)


def colour() -> bool:
    """Colour on a terminal, unless NO_COLOR asks for none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _naming(error: LikewiseError, settings: Settings) -> LikewiseError:
    """Name the model that was at work when the worker died."""
    for side in ("reference", "candidate"):
        error.message = error.message.replace(f"the {side} ran", f"the {side} ({getattr(settings, side)}) ran")
        error.message = error.message.replace(f"loading the {side}", f"loading the {side} ({getattr(settings, side)})")
    return error


def _plain(settings: Settings) -> dict[str, Any]:
    values = {entry.name: getattr(settings, entry.name) for entry in fields(settings)}
    return {name: value for name, value in values.items() if value is not None}
