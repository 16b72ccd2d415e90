"""`likewise report`: a finished run in another form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli import options
from likewise.errors import UsageError

if TYPE_CHECKING:
    from likewise.contracts.report import Report
    from likewise.contracts.results import BenchResult


@click.command(short_help="Show a finished run again, or write it in another format.")
@click.argument("report", metavar="REPORT.json")
@click.option("--bench", metavar="BENCH.json", help="Put in what `likewise bench -o BENCH.json` measured.")
@options.format_options
@options.force_option
@click.option("--gate", metavar="NAME", help="Only this gate, of a file that holds many.")
@click.option("--quiet", "-q", is_flag=True, help="Print the verdict only, and exit with its code.")
@options.debug_option
@click.pass_context
@options.of_stored_reports
def report(
    ctx: click.Context,
    /,
    *,
    report: str,
    bench: str | None,
    gate: str | None,
    quiet: bool,
    debug: bool,
    **given: Any,
) -> None:
    """Show REPORT.json again, on the terminal or as files. Nothing is judged anew.

    The exit code is 0 when that could be done; with --quiet it is that of the verdict.
    """
    from likewise.cli.gates import Carried, colour, printed, show, show_gates, width, write
    from likewise.report import all_forms, load_gates, render_gates
    from likewise.tasks.own_files import require_outputs

    reports = load_gates(report, gate)
    formats = options.stated(**given).get("formats", {})
    for_machines = printed(formats, as_json=False)
    require_outputs({"report": report, "bench": bench}, *formats.values())
    if bench is not None:
        reports = {name: replace(found, bench=_bench_of(found, bench)) for name, found in reports.items()}
    look = None if formats else {"width": width(), "colour": colour(), "quiet": quiet, "full": True}
    all_carried = {name: Carried(**all_forms(found, look)) for name, found in reports.items()}
    if len(reports) > 1:
        write({path: render_gates(reports, name) for name, path in formats.items()})
        if not formats:
            show_gates(all_carried, quiet=quiet)
    else:
        (found,) = reports.values()
        write(all_forms(found, None, [*formats.items()])["files"])
        show(*all_carried.values(), as_json=False)
    if formats and not (quiet or for_machines):
        click.echo(f"Wrote {', '.join(formats.values())}")
    ctx.exit(max(carried.exit_code for carried in all_carried.values()) if quiet else 0)


def _bench_of(report: Report, path: str) -> BenchResult:
    """The measured speed of the very models that were compared."""
    from likewise.report import load_bench

    found = load_bench(path)
    for side in ("reference", "candidate"):
        timed, compared = getattr(found, side).name, getattr(report.origin, side).name
        if Path(timed).name != Path(compared).name:
            raise UsageError(
                f"{path} is about other models: its {side} is {timed!r}, that of the report is {compared!r}",
                remedy="Run `likewise bench` with the models of the report",
            )
    return found


EXTENSION = report
