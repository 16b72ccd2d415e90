"""`likewise diff`: what got worse since the last run."""

from __future__ import annotations

import click

from likewise.cli import CODES, options
from likewise.report.console import printable, quoted


@click.command(short_help="What got worse since the last run?")
@click.argument("old", metavar="OLD.json")
@click.argument("new", metavar="NEW.json")
@click.option(
    "--allow",
    callback=options.percent,
    metavar="PERCENT",
    help="How much worse a measure may get, such as 10%.  [default: 10%]",
)
@click.option("--other-data", is_flag=True, help="The runs used different rows, and that is intended.")
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
@click.option("--markdown", metavar="FILE", help="Write them as Markdown too; `-` prints it instead.")
@click.option("--gate", metavar="NAME", help="Only this gate, of files that hold many.")
@click.option("--quiet", "-q", is_flag=True, help="Print one sentence only.")
@options.force_option
@options.debug_option
@click.pass_context
@options.of_stored_reports
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
    gate: str | None,
    quiet: bool,
    debug: bool,
) -> None:
    """Compare two finished runs: what got worse, what got better, what is no longer there.

    A measure is worse when it grew by more than --allow percent and by more than noise: 1% of its
    limit (of the tolerance where it has none), one row in a thousand for labels without a limit,
    and the rounding of float64. An output, a measure, a batch size, a suite or a limit that is gone,
    a limit that was loosened and fewer rows are worse too.

    max_ulp_diff, max_rel_diff, cosine and sqnr_db count only where they have a limit; new outputs, new
    warnings and other models do not count.

    In files that hold many gates, each is compared with its namesake; one that is gone counts as worse.

    Exit code 0: nothing got worse. 1: something did. 3: the two cannot be compared, because one of
    them is INCONCLUSIVE, they share no output, or their data differ.
    """
    from likewise.cli.gates import colour, printed, width, write
    from likewise.judge import diff as diffing
    from likewise.report import diff as changes
    from likewise.report import load_gates
    from likewise.report.words import worst
    from likewise.tasks.own_files import require_outputs

    for_machines = printed({} if markdown is None else {"markdown": markdown}, as_json=as_json)
    require_outputs({"old report": old, "new report": new}, markdown)
    allowed = diffing.ALLOW if allow is None else allow
    before, after = load_gates(old, gate), load_gates(new, gate)
    if len(before) == len(after) == 1:
        before, after = ({"": report} for found in (before, after) for report in found.values())
    found = diffing.diff_gates(before, after, allow=allowed, other_data=other_data, names=(old, new))
    if markdown is not None:
        write({markdown: "\n".join(changes.markdown(part) for part in found.values())})
    if as_json:
        click.echo(quoted(changes.as_json(found)), nl=False)
    elif not for_machines:
        for name, part in found.items():
            if name:
                click.echo(printable(f"{name}:"))
            click.echo(changes.terminal(part, width=width(), colour=colour(), quiet=quiet), nl=bool(name and not quiet))
    ctx.exit(CODES[worst(part.outcome for part in found.values())])


EXTENSION = diff
