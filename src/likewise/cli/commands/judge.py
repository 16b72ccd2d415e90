"""`likewise judge`: judge a finished run again."""

from __future__ import annotations

from typing import Any

import click

from likewise.cli import CODES, options


@click.command(short_help="Judge a finished run again, without running the models.")
@click.argument("report", metavar="REPORT.json")
@options.policy_options
@options.baseline_options
@click.option("--fixed-batch", is_flag=True, default=None, help="One batch size only is intended.")
@click.option("--allow-same", is_flag=True, default=None, help="One model on both sides is intended.")
@click.option("--gate", metavar="NAME", help="Only this gate, of a file that holds many.")
@click.option("--output", "-o", metavar="FILE", help="Write the newly judged report here; the old one is kept.")
@options.format_options
@options.force_option
@options.output_options(json="Print the report as JSON.", quiet="Print the verdict only.")
@click.pass_context
@options.of_stored_reports
def judge(
    ctx: click.Context,
    /,
    *,
    report: str,
    gate: str | None,
    output: str | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
    **given: Any,
) -> None:
    """Judge the facts of REPORT.json under other limits. What is not named stays as it was."""
    from likewise.cli.gates import Carried, colour, printed, show, width, write
    from likewise.data.files import require_writable
    from likewise.report import all_forms, load, save
    from likewise.tasks.judge import judge as judge_again
    from likewise.tasks.own_files import require_own_files
    from likewise.tasks.settings import require_baseline

    require_baseline(given["baseline"], max_worse=None)
    terms = options.stated(**given)
    formats = terms.pop("formats", {})
    for_machines = printed(formats, as_json=as_json)
    require_own_files({"report": report, "baseline": given["baseline"]}, [("json", output), *formats.items()])
    require_writable([output, *formats.values()])
    judged = judge_again(load(report, gate), **terms)
    if output is not None:
        save(judged, output, "json")
    look = {"width": width(), "colour": colour(), "quiet": quiet, "saved": output}
    carried = Carried(**all_forms(judged, None if for_machines else look, [*formats.items()]))
    write(carried.files)
    show(carried, as_json=as_json)
    ctx.exit(CODES[judged.outcome])


EXTENSION = judge
