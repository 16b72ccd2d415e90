"""`likewise report`: a finished run in another form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli import options
from likewise.errors import DataError, UsageError

if TYPE_CHECKING:
    from likewise.contracts.report import BenchResult, Report


@click.command(short_help="Show a finished run again, or write it in another format.")
@click.argument("report", metavar="REPORT.json")
@click.option("--bench", metavar="BENCH.json", help="Put in what `likewise bench -o BENCH.json` measured.")
@options.format_options
@click.option("--quiet", "-q", is_flag=True, help="Print the verdict only.")
@options.debug_option
def report(*, report: str, bench: str | None, quiet: bool, debug: bool, **given: Any) -> None:
    """Render REPORT.json again: as files, or without any on the terminal. Nothing is judged anew."""
    from likewise.cli.gates import colour, drawn, show, width, write
    from likewise.report.files import load

    found = load(report)
    if bench is not None:
        found = replace(found, bench=_bench_of(found, bench))
    formats = options.stated(**given).get("formats", {})
    look = None if formats else {"width": width(), "colour": colour(), "quiet": quiet, "full": True}
    carried = drawn(found, look, [*formats.items()])
    write(carried.files)
    show(carried, as_json=False)


def _bench_of(report: Report, path: str) -> BenchResult:
    """The measured speed of the very models that were compared."""
    from likewise.report import bench as stored

    try:
        found = stored.loads(Path(path).read_bytes(), name=path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    for side in ("reference", "candidate"):
        timed, compared = getattr(found, side).name, getattr(report.origin, side).name
        if Path(timed).name != Path(compared).name:
            raise UsageError(
                f"{path} is about other models: its {side} is {timed!r}, that of the report is {compared!r}",
                remedy="Run `likewise bench` with the models of the report",
            )
    return found


EXTENSION = report
