"""Carrying out gates from the command line: supervised, written down, shown, and what CI sees of them."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli import CODES, INCONCLUSIVE, USAGE
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Outcome
from likewise.errors import LikewiseError, UsageError
from likewise.report import all_forms
from likewise.report.console import plain, printable, quoted, styled
from likewise.tasks.isolation.supervisor import ALONE, CrashError, job_of, supervise, taking_apart, watched

if TYPE_CHECKING:
    from likewise.contracts.report import Report
    from likewise.contracts.results import BatchTiming
    from likewise.tasks.settings import Settings


SUMMARY = "GITHUB_STEP_SUMMARY"
"""Stands for the file of that variable, the summary of a job of GitHub Actions: what is there already stays."""

REPRO = ("model.onnx", "inputs.npz", "repro.py", "issue.md")
"""What is in a folder that shows a difference (`tasks/repro.py`)."""

FILES_TOLD = 3
"""Files in one folder that are told by their names."""


def _annotate(outcome: Outcome, message: str) -> None:
    """Mark a job of GitHub Actions with what broke. On standard error: standard output may be read by a machine."""
    if os.environ.get("GITHUB_ACTIONS") == "true" and outcome is not Outcome.PASS:
        escaped = printable(message).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        sys.stderr.write(f"::error title=likewise {outcome}::{escaped}\n")


@dataclass(frozen=True, slots=True)
class Carried:
    """A gate that was carried out: its outcome, its report as JSON, as text for this terminal, and as other files.

    `fixed` says what was done to the candidate, where it was to be repaired.
    """

    outcome: Outcome
    headline: str
    json: str
    shown: str
    remedy: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    code: int | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def report(self) -> Report:
        """The report itself. Reading it takes longer than showing it: only for those who look inside."""
        from likewise.report.formats.json import loads

        return loads(self.json, name="the worker's report")

    @property
    def exit_code(self) -> int:
        """By the outcome, unless something else went wrong."""
        return CODES[self.outcome] if self.code is None else self.code


def printed(formats: Mapping[str, str], *, as_json: bool) -> bool:
    """Is standard output for a machine? Then nothing but that is printed there; a usage error for two of them."""
    wanted = [*(["json"] if as_json else []), *(name for name, path in formats.items() if path == "-")]
    if len(wanted) > 1:
        raise UsageError(f"standard output is for the {wanted[0]}", remedy=f"Give --{wanted[1]} a file")
    return bool(wanted)


def carry_out(
    settings: Settings,
    *,
    as_json: bool = False,
    quiet: bool,
    debug: bool,
    full: bool = False,
    seen_from: str = ".",
    summary: bool = True,
    fixed: str | None = None,
    repro: str | None = None,
    watch: Callable[..., Any] = watched,
    checkpoint: Mapping[str, Any] | None = None,
) -> Carried:
    """One gate in a worker of its own, its report written where the settings say.

    Whatever happens to the worker, there is a report. The worker also draws it, so that this process stays light.
    `seen_from` is the folder that paths are shown from; without `summary`, that of a job is somebody else's to write.
    `fixed` is where a repaired copy of the candidate goes, and the report is then that of this file; `repro` the folder
    for a piece of the candidate that shows the difference. `watch` follows a job, as `watched` does.
    `checkpoint` says how often what was reached is kept beside the report, and whether to go on from there.
    """
    settings.policy()
    settings = _writable(settings)
    for_machines = printed({"report": settings.report or "", **settings.formats}, as_json=as_json)
    files = {"saved": _seen([settings.report], seen_from), "written": _seen(settings.formats.values(), seen_from)}
    look = {"width": width(), "colour": colour(), "quiet": quiet, "full": full, **files}
    for_job = [("markdown", SUMMARY)] if summary and os.environ.get(SUMMARY) else []
    formats = [*settings.formats.items(), *for_job]
    job = job_of(settings, formats=formats, look=None if for_machines else look)
    job |= {} if fixed is None else {"do": "fix", "arguments": {"output": fixed}}
    job |= {"repro": repro is not None}
    if checkpoint is not None and settings.report not in (None, "-"):
        job |= {"checkpoint": {**checkpoint, "place": f"{settings.report}.checkpoint"}}
    pieces: dict[str, bytes] = {}
    if repro is not None:
        from likewise.tasks.own_files import require_outputs

        read = {name: getattr(settings, name) for name in ("reference", "candidate", "data", "baseline")}
        require_outputs(read, *(os.path.join(repro, name) for name in REPRO))
    try:
        found = watch(job, shown=not (quiet or for_machines), timeout=settings.timeout, debug=debug)
        carried, pieces = answered(found, formats)
        _end_checkpoint(job, found)
    except UsageError:
        raise
    except LikewiseError as error:
        from likewise.tasks.check import without_worker

        quietly = partial(watch, shown=False, debug=False)
        carried = Carried(**all_forms(without_worker(settings, error, job, supervised=quietly), job["look"], formats))
    if repro is not None:
        _put_pieces(Path(repro), pieces, passed=carried.outcome == Outcome.PASS and not carried.fixed)
    _keep_anothers(settings, carried.json)
    own = {} if settings.report is None else {settings.report: carried.json}
    if not _written({**carried.files, **own}):
        carried = replace(carried, code=carried.exit_code or INCONCLUSIVE)
    _annotate(carried.outcome, carried.headline if settings.gate is None else f"{settings.gate}: {carried.headline}")
    return carried


def _end_checkpoint(job: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """What was reached is all that there was: say what became of an old checkpoint, and remove it."""
    if "checkpoint" in job:
        from likewise.data.files import is_checkpoint

        if found.get("said"):
            click.echo(printable(str(found["said"])), err=True)
        if is_checkpoint(place := Path(job["checkpoint"]["place"])):
            place.unlink()


def answered(found: Any, formats: Sequence[tuple[str, str]]) -> tuple[Carried, dict[str, bytes]]:
    """What a worker answered, and the folder that shows a difference. Only what was asked for, whatever it says."""
    from likewise.data.files import named_once

    try:
        text = {**{name: found[name] for name in ("headline", "json", "shown")}, "remedy": found.get("remedy", "")}
        made, pieces = {path: found["files"][path] for _, path in formats}, {**found.get("repro", {})}
        if not all(isinstance(entry, str) for entry in (*text.values(), *made.values(), *pieces.values())):
            raise TypeError("no text")
        # What can be written, and says at first sight what was said beside it.
        for entry in (text["json"], *made.values()):
            entry.encode()
        if json.loads(text["json"], object_pairs_hook=named_once)["outcome"] != found["outcome"]:
            raise ValueError("another verdict")
        carried = Carried(outcome=Outcome(found["outcome"]), files=made, fixed={**found.get("fixed", {})}, **text)
        return carried, {name: b64decode(pieces[name], validate=True) for name in REPRO if pieces}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CrashError("the worker's answer is not a report", remedy=ALONE) from error


def _put_pieces(folder: Path, pieces: Mapping[str, bytes], *, passed: bool) -> None:
    """Write the folder that shows a difference, and say where it is, or why there is none."""
    from likewise.data.files import atomically

    try:
        for name in REPRO if pieces else ():
            atomically(folder / name, pieces[name])
    except (LikewiseError, OSError) as error:
        # The verdict is told and kept all the same.
        why = error.strerror if isinstance(error, OSError) else error.message
        click.echo(printable(f"Error: {folder} is not written: {why}"), err=True)
        return
    why = (
        "the candidate passes" if passed else "the candidate is not an ONNX model, is too large, or no row of it fails"
    )
    told = f"{folder} shows the difference: python {folder / REPRO[2]}; it holds values of your rows"
    click.echo(printable(told if pieces else f"{folder} is not written: {why}"), err=True)


def _writable(settings: Settings) -> Settings:
    """The settings, if what is asked for can be written; a report that nobody asked for is left out, and said so."""
    from likewise.data.files import REPLACE, another, require_writable, unwritable
    from likewise.tasks.settings import REPORT, default_report

    require_writable(settings.formats.values())
    unasked = (REPORT, default_report(str(settings.gate)))
    if settings.report not in unasked:
        require_writable([settings.report])
    elif why := unwritable(Path(settings.report)) or (
        None if REPLACE.get() or _tells_a_verdict(Path(settings.report)) else another(Path(settings.report))
    ):
        told = f"{settings.report} cannot be written ({why}): the verdict is shown and not kept; --report FILE keeps it"
        click.echo(printable(told), err=True)
        return replace(settings, report=None)
    return settings


def _written(files: Mapping[str, str]) -> bool:
    """Write what there is to write; what cannot be is told, and takes neither the verdict nor the others along."""
    done = True
    for path, text in files.items():
        try:
            write({path: text})
        except (LikewiseError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error.message
            click.echo(printable(f"Error: {path} is not written: {why}"), err=True)
            done = False
    return done


def _keep_anothers(settings: Settings, text: str) -> None:
    """Move the report of other models or data out of the way of one that is written where nobody said it should be."""
    from likewise.data.files import REPLACE, another
    from likewise.tasks.settings import REPORT

    if settings.report is None or not (place := Path(settings.report)).is_file():
        return
    if not REPLACE.get() and another(place) is not None and _tells_a_verdict(place):
        kept = _moved(place, "parity_report.before", settings)
        click.echo(printable(f"{place} was not written by likewise and is kept as {kept}"), err=True)
        return
    if settings.report != REPORT:
        return
    try:
        before, now = (json.loads(content)["provenance"] for content in (place.read_bytes(), text))
        old, new = ([found[part]["name"] for part in ("reference", "candidate", "data")] for found in (before, now))
        if old != new:
            name = re.sub(r"[^\w.-]", "_", f"parity_report.{Path(old[1]).name}")
            kept = _moved(place, name, settings)
            click.echo(printable(f"The report of {old[0]} → {old[1]} is kept as {kept}"), err=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return


def _tells_a_verdict(path: Path) -> bool:
    """Is this taken for a verdict by who reads `passed` in it, whoever wrote it? It must not outlive the next one."""
    from likewise.data.files import strangers_file

    try:
        with strangers_file(path) as file:
            found = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("passed"), bool)


def _moved(place: Path, name: str, settings: Settings) -> Path:
    kept = next(path for path in _names(name) if _spare(path, settings))
    # Taken first, so that nobody else's comes there in between.
    os.close(os.open(kept, os.O_CREAT | os.O_WRONLY | (0 if kept.exists() else os.O_EXCL), 0o666))
    os.replace(place, kept)
    return kept


def _names(name: str) -> Iterator[Path]:
    yield Path(f"{name}.json")
    yield from (Path(f"{name}.{number}.json") for number in itertools.count(2))


def _spare(path: Path, settings: Settings) -> bool:
    """Is this name free, or that of an old report which the run neither reads nor writes?"""
    from likewise.data.files import another

    try:
        settings.require_own_files(str(path))
    except UsageError:
        return False
    return not os.path.lexists(path) or (path.is_file() and another(path) is None)


def carry_out_all(
    gates: Mapping[str, Settings],
    together: Mapping[str, str],
    *,
    as_json: bool,
    quiet: bool,
    debug: bool,
    seen_from: str,
) -> int:
    """Every gate to its end, then one table, one document and one file of each format asked for; the worst exit code.

    `together` has the files that hold all gates, by format.
    """
    from likewise.data.files import require_writable
    from likewise.report import render_gates, require_of_gates

    for_machines = printed(together, as_json=as_json)
    for name in together:
        require_of_gates(name)
    require_writable(together.values())
    for name, gate in gates.items():
        gate.policy()
        if "-" in (gate.report, *gate.formats.values()):
            raise UsageError(
                f"gate {name!r} would print among the others", remedy="Give it a file in the configuration"
            )
    gates = {name: _writable(gate) for name, gate in gates.items()}
    found: dict[str, Carried] = {}
    for name, gate in gates.items():
        try:
            carried = carry_out(
                gate, as_json=for_machines, quiet=quiet, debug=debug, seen_from=seen_from, summary=False
            )
        except UsageError as error:
            # The others are carried out all the same: what makes no sense is told as one of the verdicts.
            carried = could_not_carry_out(gate, error, {"width": width(), "colour": colour(), "quiet": quiet})
        found[name] = carried
        if not (for_machines or quiet):
            click.echo(f"{printable(name)}:\n{styled(carried.shown)}")
    wanted = [*together.items(), *([("json", "-")] if as_json else [])]
    wanted += [("markdown", SUMMARY)] if os.environ.get(SUMMARY) else []
    reports: dict[str, Report] = {}
    for name, carried in found.items() if wanted else ():
        found[name], reports[name] = read_back(carried, gates[name])
    code = max(carried.exit_code for carried in found.values())
    if wanted:
        files = {path: render_gates(reports, name) for name, path in wanted}
        code = code if _written(files) else code or INCONCLUSIVE
    if not for_machines:
        _show_table(found, quiet=quiet, saved=_seen(together.values(), seen_from))
    return code


def read_back(carried: Carried, gate: Settings) -> tuple[Carried, Report]:
    """What a worker answered, and its report; if that cannot be read, one that says so takes the place of both.

    One gate of many must not end the others.
    """
    try:
        return carried, carried.report
    except LikewiseError as error:
        from likewise.tasks.check import could_not_run

        report = could_not_run(gate, CrashError(f"the worker's answer is not a report: {error.message}", remedy=ALONE))
    instead = Carried(**all_forms(report, None, list(gate.formats.items())), code=INCONCLUSIVE)
    _written({**instead.files, **({} if gate.report is None else {gate.report: instead.json})})
    return instead, report


def could_not_carry_out(gate: Settings, error: LikewiseError, look: Mapping[str, Any] | None = None) -> Carried:
    """A gate of several that never got as far as a worker: what it asks for may make no sense."""
    from likewise.tasks.check import could_not_run

    code = USAGE if isinstance(error, UsageError) else INCONCLUSIVE
    return Carried(**all_forms(could_not_run(gate, error), look), code=code)


def _seen(paths: Iterable[str | None], folder: str) -> str:
    """Files as they are called in a folder; of many in one other folder only that is named."""
    told = [path for path in paths if path is not None and path != "-"]
    told = [path if os.path.isabs(path) else os.path.relpath(path, folder) for path in told]
    folders = [os.path.join(os.path.dirname(path), "") for path in told]
    short = [f if folders.count(f) > FILES_TOLD else path for f, path in zip(folders, told, strict=True)]
    return ", ".join(dict.fromkeys(short))


def show_gates(found: Mapping[str, Carried], *, quiet: bool) -> None:
    """Finished gates, one after the other, and a table of them all."""
    if not quiet:
        for name, carried in found.items():
            click.echo(f"{printable(name)}:\n{styled(carried.shown)}")
    _show_table(found, quiet=quiet)


def _show_table(found: Mapping[str, Carried], *, quiet: bool, saved: str = "") -> None:
    """All gates in a table; who sees nothing else also gets to know what to do."""
    from likewise.report.formats.terminal import summary

    told = [f"{c.headline}. {c.remedy}" if quiet and c.remedy else c.headline for c in found.values()]
    outcomes = [carried.outcome for carried in found.values()]
    lines = zip(found, outcomes, told, strict=True)
    click.echo(summary(lines, width=width(), colour=colour(), saved=saved, whole=quiet), nl=False)


def write(files: Mapping[str, str]) -> None:
    """Files by their path; `-` is standard output."""
    from likewise.data.files import atomically

    for path, text in files.items():
        if path == SUMMARY and SUMMARY in os.environ:
            with Path(os.environ[SUMMARY]).open("a", encoding="utf-8") as summary:
                summary.write(text + "\n")
        elif path == "-":
            click.echo(styled(text), nl=not text.endswith("\n"))
        else:
            atomically(Path(path), text.encode())


def show(carried: Carried, *, as_json: bool) -> None:
    """The report on standard output: for a person, or for a machine."""
    click.echo(quoted(carried.json) if as_json else styled(carried.shown), nl=False)


def speed(
    before: str, after: str, stated: Mapping[str, Any], *, timeout: float | None, debug: bool
) -> BatchTiming | None:
    """How much faster one file is than another; None where a model cannot be run, of which the report tells."""
    from likewise.tasks.bench import QUICK, SELECTION

    shared = {name: stated[name] for name in ("data", *SELECTION) if name in stated}
    job = {"do": "bench", "arguments": {"reference": before, "candidate": after, **QUICK, **shared}}
    try:
        plain = supervise(job, timeout=timeout, debug=debug)
        from likewise.contracts.results import BenchResult
        from likewise.report.formats.json import read

        with taking_apart():
            return read(BenchResult, plain).timings[0]
    except LikewiseError:
        return None


def width() -> int:
    """80 columns unless the terminal says otherwise."""
    return min(shutil.get_terminal_size((80, 24)).columns, 120)


def colour() -> bool:
    """Colour on a terminal, unless it is a plain one, or NO_COLOR asks for none."""
    return sys.stdout.isatty() and not plain()
