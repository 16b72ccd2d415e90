"""`likewise verify`: does a report belong to these files, and is it as it was written?"""

from __future__ import annotations

import json
import textwrap
from typing import Any

import click

from likewise.cli import CODES, FAIL, INCONCLUSIVE, options

MARKS = {True: "✓", False: "✗", None: "?"}
WORDS = {True: "VERIFIED", False: "NOT VERIFIED", None: "UNDECIDED"}


@click.command(short_help="Does a report belong to these very files?")
@click.argument("report", metavar="REPORT.json")
@click.option("--reference", metavar="FILE", help="The reference that the report should be about.")
@click.option("--candidate", metavar="FILE", help="The candidate that the report should be about.")
@click.option("--data", metavar="FILE", help="The rows that the report should be about.")
@click.option("--statement", metavar="FILE", help="The in-toto statement that should be about the report.")
@click.option("--gate", metavar="NAME", help="Only this gate, of a file that holds many.")
@options.timeout_option
@options.output_options(quiet="Print the outcome only.")
@click.pass_context
def verify(
    ctx: click.Context,
    /,
    *,
    report: str,
    timeout: float | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
    **given: Any,
) -> None:
    """Check that REPORT.json is as it was written, and belongs to the files you name.

    Its verdict must follow from its figures, and the files must be those of the run, by their SHA-256. Exit code 0: all
    of this holds and the verdict is PASS. 1: something does not hold, or the verdict is FAIL. 3: it cannot be told.
    Somebody who changes a report can make a new digest: sign its statement (--statement).

    \b
    likewise verify parity_report.json --candidate model.onnx --reference model.joblib --data test.parquet
    """
    from likewise.cli.gates import width
    from likewise.report.console import printable, quoted
    from likewise.tasks.isolation.supervisor import supervise, taking_apart

    job = {"do": "verify", "arguments": {"report": report, **options.given(**given)}}
    found = supervise(job, timeout=timeout, debug=debug)
    with taking_apart():
        states = [point["holds"] for point in found["points"]]
        proven = False if False in states else None if None in states else True
        code = {True: CODES[found["outcome"]], False: FAIL, None: INCONCLUSIVE}[proven]
    if as_json:
        click.echo(quoted(json.dumps({"verified": proven, **found}, indent=2, ensure_ascii=False)))
        ctx.exit(code)
    lines = [f"{WORDS[proven]}: {report}, {found['outcome']}. {found['headline']}."]
    if not quiet:
        lines += [f"{MARKS[point['holds']]} {point['told']}" for point in found["points"]]
        left = [f"--{name}" for name in ("reference", "candidate", "data") if given[name] is None]
        lines += [f"· not looked at: {', '.join(left)}"] if left else []
    for line in lines:
        click.echo(textwrap.fill(printable(line), width(), subsequent_indent="  ", break_on_hyphens=False))
    ctx.exit(code)


EXTENSION = verify
