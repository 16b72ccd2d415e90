"""Carrying out a gate from the command line: supervised, written down, shown."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli.progress import ProgressLine
from likewise.cli.supervisor import CrashError, supervise
from likewise.errors import LikewiseError, UsageError

if TYPE_CHECKING:
    from likewise.config import Settings
    from likewise.contracts.reporting import Report


def carry_out(settings: Settings, *, quiet: bool, debug: bool) -> Report:
    """One gate in a worker of its own. Whatever happens to the worker, there is a report."""
    line = ProgressLine(shown=not quiet)
    settings.policy()
    threading.Thread(target=_prepare_to_show, daemon=True).start()
    try:
        text = supervise(
            {"do": "check", "settings": _plain(settings)},
            timeout=settings.timeout,
            on_progress=line.update,
            on_tick=line.tick,
            debug=debug,
        )
    except UsageError:
        raise
    except LikewiseError as error:
        if isinstance(error, CrashError) and error.judged is not None:
            return _unexplained(error.judged, error)
        from likewise.verify import could_not_run

        return could_not_run(settings, _naming(error, settings))
    finally:
        line.clear()
    from likewise.reports.json import loads

    return loads(text, name="the worker's report")


def _unexplained(text: str, error: LikewiseError) -> Report:
    """A verdict whose explanation did not come to an end: the verdict stands."""
    from likewise.contracts.reporting import Explanation
    from likewise.reports.json import loads

    report = loads(text, name="the worker's report")
    return replace(report, explanation=Explanation(not_tested=(f"explaining was cut short: {error.message}",)))


def _prepare_to_show() -> None:
    """Import what the report needs while the worker is busy with the models."""
    from importlib import import_module

    from likewise.reports.json import adapter

    adapter()
    import_module("rich.table")


def show(report: Report, *, as_json: bool, quiet: bool, saved: str | None, full: bool = False) -> None:
    """The report on standard output: for a person, with all that was tried if it is to be `full`; or for a machine."""
    if as_json:
        from likewise.reports.json import JsonRenderer

        click.echo(JsonRenderer().render(report), nl=False)
        return
    from likewise.reports.terminal import TerminalRenderer

    look = {"width": width(), "colour": colour(), "quiet": quiet, "saved": saved, "full": full}
    click.echo(TerminalRenderer().render(report, **look), nl=False)


def write(report: Report, path: str | None) -> str | None:
    """Write the report; returns where it is."""
    if path is None:
        return None
    from likewise.verify import save

    save(report, Path(path))
    return path


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
