"""`likewise diff`: what got worse since the last run."""

from __future__ import annotations

import click

from likewise.cli import CODES, options
from likewise.errors import UsageError


@click.command(short_help="What got worse since the last run?")
@click.argument("old", metavar="OLD.json")
@click.argument("new", metavar="NEW.json")
@click.option(
    "--allow",
    callback=options.percent,
    metavar="PERCENT",
    help="How much worse a measure may get, such as 10%.  [default: 10%]",
)
@click.option("--other-data", is_flag=True, help="The runs are on other rows, and that is intended.")
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
@click.option("--markdown", metavar="FILE", help="Write them as Markdown too; `-` prints it instead.")
@options.debug_option
@click.pass_context
def diff(
    ctx: click.Context,
    /,
    *,
    old: str,
    new: str,
    allow: float | None,
    other_data: bool,
    as_json: bool,
    markdown: str | None,
    debug: bool,
) -> None:
    """Compare two finished runs: what got worse, what got better, what is no longer there.

    A measure is worse when it grew by more than --allow percent and by more than noise: 1% of its
    limit (of the tolerance where it has none), one row in a thousand for labels without a limit,
    and the rounding of float64. An output, a measure, a batch size, a suite or a limit that is gone,
    a limit that was loosened and fewer rows are worse too.

    Exit code 0: nothing got worse. 1: something did. 3: the two cannot be compared, because one of
    them is INCONCLUSIVE, they share no output, or they are on other data.
    """
    from likewise.cli.gates import colour, width, write
    from likewise.judge import diff as diffing
    from likewise.report import diff as changes
    from likewise.report.files import load

    if as_json and markdown == "-":
        raise UsageError("standard output is for the JSON", remedy="Give --markdown a file")
    allowed = diffing.ALLOW if allow is None else allow
    found = diffing.diff(load(old), load(new), allow=allowed, other_data=other_data, names=(old, new))
    if markdown is not None:
        write({markdown: changes.markdown(found)})
    if as_json:
        click.echo(changes.as_json(found), nl=False)
    elif markdown != "-":
        click.echo(changes.terminal(found, width=width(), colour=colour()), nl=False)
    ctx.exit(CODES[found.outcome])


EXTENSION = diff
