"""`likewise report`: a finished run in another form."""

from __future__ import annotations

from typing import Any

import click

from likewise.cli import options


@click.command(short_help="Show a finished run again, or write it in another format.")
@click.argument("report", metavar="REPORT.json")
@options.format_options
@options.debug_option
def report(*, report: str, debug: bool, **given: Any) -> None:
    """Render REPORT.json again: as files, or without any on the terminal. Nothing is judged anew."""
    from likewise import verify
    from likewise.cli.gates import colour, drawn, show, width, write

    found = verify.load(report)
    formats = options.stated(**given).get("formats", {})
    look = None if formats else {"width": width(), "colour": colour(), "full": True}
    carried = drawn(found, look, [*formats.items()])
    write(carried.files)
    show(carried, as_json=False)


EXTENSION = report
