"""`likewise judge`: judge a finished run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from likewise.cli import options
from likewise.cli.exits import CODES


@click.command(short_help="Judge a finished run again, without running the models.")
@click.argument("report", metavar="REPORT.json")
@options.policy_options
@options.baseline_options
@click.option("--fixed-batch", is_flag=True, default=None, help="One batch size only is intended.")
@click.option("--output", "-o", metavar="FILE", help="Write the newly judged report here; the old one is kept.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Print the verdict only.")
@options.debug_option
@click.pass_context
def judge(
    ctx: click.Context, /, *, report: str, output: str | None, as_json: bool, quiet: bool, debug: bool, **given: Any
) -> None:
    """Judge the facts of REPORT.json under other limits. What is not named stays as it was."""
    from likewise import verify
    from likewise.cli.gates import colour, drawn, show, width
    from likewise.config import require_baseline

    require_baseline(given["baseline"], max_worse=None, report=output)
    judged = verify.judge(verify.load(report), **options.given(**given))
    if output is not None:
        verify.save(judged, Path(output))
    look = {"width": width(), "colour": colour(), "quiet": quiet, "saved": output}
    show(drawn(judged, None if as_json else look), as_json=as_json)
    ctx.exit(CODES[judged.outcome])


EXTENSION = judge
