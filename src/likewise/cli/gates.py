"""Carrying out a gate from the command line: supervised, written down, shown, and what CI sees of it."""

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


SUMMARY = "GITHUB_STEP_SUMMARY"
"""Stands for the file of that variable, the summary of a job of GitHub Actions: what is there already stays."""


def _annotate(outcome: Outcome, message: str) -> None:
    """Mark a job of GitHub Actions with what broke. On standard error: standard output may be read by a machine."""
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
    summary = {"markdown": SUMMARY} if os.environ.get(SUMMARY) else {}
    formats = [*settings.formats.items(), *summary.items()]
    job = {"do": "check", "settings": _plain(settings), "formats": formats, "look": None if as_json else look}
    try:
        found = watched(job, shown=not (quiet or as_json), timeout=settings.timeout, debug=debug)
        carried = Carried(Outcome(found["outcome"]), found["headline"], found["json"], found["shown"], found["files"])
    except UsageError:
        raise
    except LikewiseError as error:
        carried = drawn(_without_worker(settings, error), None if as_json else look, formats)
    write({**carried.files, **({} if settings.report is None else {settings.report: carried.json})})
    _annotate(carried.outcome, carried.headline)
    return carried


def write(files: Mapping[str, str]) -> None:
    """Files by their path; `-` is standard output."""
    from likewise.data.files import atomically

    for path, text in files.items():
        if path == SUMMARY:
            with Path(os.environ[SUMMARY]).open("a", encoding="utf-8") as summary:
                summary.write(text + "\n")
        elif path == "-":
            click.echo(text, nl=not text.endswith("\n"))
        else:
            atomically(Path(path), text.encode())


def _without_worker(settings: Settings, error: LikewiseError) -> Report:
    """The report of a worker that died: inconclusive, or the verdict it had reached before it went further."""
    from likewise.report.formats.json import loads
    from likewise.tasks.check import could_not_run, cut_short

    if not isinstance(error, CrashError) or error.judged is None:
        return could_not_run(settings, error)
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


def _plain(settings: Settings) -> dict[str, Any]:
    values = {entry.name: getattr(settings, entry.name) for entry in fields(settings)}
    return {name: value for name, value in values.items() if value is not None}
