"""`likewise plan`: how many rows a claim takes, before anything is run."""

from __future__ import annotations

import json

import click

from likewise.errors import UsageError

VIOLATIONS = (0, 1, 2, 5, 10)


@click.command(short_help="How many rows does a claim take?")
@click.option("--max-failure-rate", type=float, metavar="P", help="The share of rows beyond tolerance to rule out.")
@click.option("--rows", type=int, metavar="N", help="Say what N rows let you claim instead.")
@click.option("--confidence", type=float, default=0.95, metavar="P", show_default=True, help="Confidence of the claim.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(*, max_failure_rate: float | None, rows: int | None, confidence: float, as_json: bool) -> None:
    """Say how many rows it takes to show that fewer than a share of them are beyond tolerance, or what N rows show.

    The bound is that of Clopper and Pearson. It speaks of rows like those checked: draw them as production sends them.

    \b
    likewise plan --max-failure-rate 0.001 --confidence 0.95
    likewise plan --rows 20000
    """
    from likewise.contracts.verdict import counted
    from likewise.judge.verdict import percent, rows_needed, upper_bound

    if (max_failure_rate is None) == (rows is None):
        raise UsageError("a plan answers one question at a time", remedy="Give --max-failure-rate or --rows")
    if not 0 < confidence < 1:
        raise UsageError(f"--confidence is {confidence}", remedy="Give a share between 0 and 1, such as 0.95")
    if rows is not None:
        if rows < 1:
            raise UsageError(f"--rows is {rows}", remedy="Give a number above zero")
        bounds = {count: upper_bound(count, rows, confidence) for count in VIOLATIONS if count < rows}
        if as_json:
            found = [{"violations": count, "upper_bound": bound} for count, bound in bounds.items()]
            click.echo(json.dumps({"rows": rows, "confidence": confidence, "claims": found}))
            return
        click.echo(f"{counted(rows, 'rows')}, at {100 * confidence:.4g}% confidence:")
        for count, bound in bounds.items():
            click.echo(f"  {count:>3} beyond tolerance: fewer than {percent(bound)} of rows like these are")
        return
    assert max_failure_rate is not None
    if not 0 < max_failure_rate < 1:
        raise UsageError(f"--max-failure-rate is {max_failure_rate}", remedy="Give a share such as 0.001")
    needed = {count: rows_needed(max_failure_rate, confidence, count) for count in VIOLATIONS}
    if as_json:
        found = [{"violations": count, "rows": number} for count, number in needed.items()]
        click.echo(json.dumps({"max_failure_rate": max_failure_rate, "confidence": confidence, "needed": found}))
        return
    share = percent(max_failure_rate)
    click.echo(f"To show at {100 * confidence:.4g}% confidence that fewer than {share} of rows are beyond tolerance:")
    for count, number in needed.items():
        click.echo(f"  {number:>12,} rows if {count or 'none'} of them {'is' if count == 1 else 'are'}")


EXTENSION = plan
