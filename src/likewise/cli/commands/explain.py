"""`likewise explain`: the gate, and on anything but a pass the full investigation."""

from __future__ import annotations

from typing import Any

import click

from likewise.cli import options


@click.command(short_help="Why does the candidate answer differently?")
@click.argument("reference")
@click.argument("candidate")
@options.gate_options
@click.option(
    "--budget",
    "--explain-budget",
    "explain_budget",
    callback=options.seconds,
    default="2m",
    metavar="TIME",
    help="Search for at most this long, such as 30s or 5m.  [default: 2m]",
)
@options.memory_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@options.debug_option
@click.pass_context
def explain(ctx: click.Context, /, *, reference: str, candidate: str, **given: Any) -> None:
    """Compare REFERENCE and CANDIDATE like `check`, and find out by experiment why they differ.

    Every probe changes one thing and measures what is left of the difference. The answer comes
    first: the cause, the culprit, the evidence, the remedy; then what did not help. The exit code is
    that of the check.

    \b
    likewise explain model.joblib model.onnx --data test.parquet
    """
    from likewise.cli.gates import carry_out, show

    as_json, debug, repro = (given.pop(name) for name in ("as_json", "debug", "repro"))
    options.required(given["data"], "--data", "Say which rows to compare on: --data FILE")
    settings = options.gate(reference, candidate, options.stated(**given))
    carried = carry_out(settings, as_json=as_json, quiet=False, debug=debug, full=True, repro=repro)
    show(carried, as_json=as_json)
    ctx.exit(carried.exit_code)


EXTENSION = explain
