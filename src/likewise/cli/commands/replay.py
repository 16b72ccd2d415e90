"""`likewise replay`: a finished run once more, with the same files and settings."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import click

from likewise.cli import CODES, FAIL, options

TOLD = 5
"""Figures that are named where more have changed."""


@click.command(short_help="Run a finished check again: do verdict and figures hold?")
@click.argument("report", metavar="REPORT.json")
@click.option("--reference", metavar="FILE", help="Where the reference lies now.")
@click.option("--candidate", metavar="FILE", help="Where the candidate lies now.")
@click.option("--data", metavar="FILE", help="Where the rows lie now.")
@click.option("--gate", metavar="NAME", help="Only this gate, of a file that holds many.")
@options.trust_option
@click.option("--trust-report", is_flag=True, help="Run the code that the report names.")
@options.gate_timeout_option
@options.output_options(json="Print what was found as JSON.", quiet="Print the outcome only.")
@click.pass_context
def replay(
    ctx: click.Context,
    /,
    *,
    report: str,
    gate: str | None,
    trusted: tuple[str, ...],
    trust_report: bool,
    timeout: float | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
    **given: Any,
) -> None:
    """Run the check of REPORT.json again, from here, and say whether its verdict and its figures hold.

    The models and the data must be the very same files, by their SHA-256. Nothing is written, and no cause is looked
    for. Exit code 0: the verdict is PASS again and every figure is the same. 1: the verdict is FAIL, or something does
    not hold. 3: it could not be run again. Another processor or runtime may change the last digits of a figure.

    \b
    likewise replay parity_report.json
    """
    from likewise.cli.gates import carry_out, width
    from likewise.report import load
    from likewise.report.console import printable, quoted
    from likewise.tasks.harmless import require_harmless
    from likewise.tasks.settings import overridden
    from likewise.tasks.verify import differences, require_same_files, settings_again

    stored = load(report, gate)
    settings = settings_again(stored, **given)
    if not trust_report:
        require_harmless({"": settings}, trusted=bool(trusted), whose="the report", flag="--trust-report")
    settings = overridden(settings, options.given(trusted=trusted, timeout=timeout))
    again = carry_out(settings, as_json=as_json, quiet=quiet, debug=debug, summary=False).report
    require_same_files(stored, again)
    holds, changed = again.outcome == stored.outcome, differences(stored, again)
    found = {"holds": holds and not changed, "outcome": again.outcome, "was": stored.outcome, "changed": changed}
    code = CODES[again.outcome] or (FAIL if changed or not holds else 0)
    if as_json:
        click.echo(quoted(json.dumps({**found, "headline": again.headline}, indent=2, ensure_ascii=False)))
        ctx.exit(code)
    was = "again" if holds else f"it was {stored.outcome}"
    lines = [f"{'HOLDS' if found['holds'] else 'DOES NOT HOLD'}: {again.outcome}, {was}. {again.headline}."]
    if not quiet:
        lines += [f"✗ {told}" for told in changed[:TOLD]]
        lines += [f"✗ and {len(changed) - TOLD:,} more"] if len(changed) > TOLD else []
    for line in lines:
        click.echo(textwrap.fill(printable(line), width(), subsequent_indent="  ", break_on_hyphens=False))
    ctx.exit(code)


EXTENSION = replay
