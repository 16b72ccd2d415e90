"""`likewise stress`: the input on which two models differ most."""

from __future__ import annotations

from typing import Any

import click

from likewise.cli import CODES, options
from likewise.report.console import quoted


def _share(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """`10%` or `0.1` as a share."""
    if value is None:
        return None
    try:
        return float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a share such as 10%", ctx, parameter) from error


@click.command(short_help="Search around real rows for the input on which the models differ most.")
@click.argument("reference")
@click.argument("candidate")
@options.data_options
@options.policy_options
@click.option("--budget", callback=options.seconds, metavar="TIME", help="How long to search.  [default: 60s]")
@click.option("--calls", type=int, metavar="N", help="End after N calls of each model; the same N finds the same.")
@click.option(
    "--widen", callback=_share, metavar="SHARE", help="How far to go beyond the observed ranges, such as 10%."
)
@click.option(
    "--output", "-o", metavar="FILE", help="Where the worst rows go.  [default: stress.parquet, for arrays stress.npz]"
)
@click.option("--report", metavar="FILE", help="Write everything that was found as JSON.")
@options.pairing_options
@click.option("--batch-size", type=int, metavar="N", help="At most this many rows per call.")
@options.adapter_option("--reference-option")
@options.adapter_option("--candidate-option")
@options.trust_option
@options.timeout_option
@options.force_option
@options.output_options()
@click.pass_context
def stress(
    ctx: click.Context,
    /,
    *,
    reference: str,
    candidate: str,
    output: str | None,
    report: str | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
    timeout: float | None,
    **given: Any,
) -> None:
    """Search the neighbourhood of real rows for the input on which REFERENCE and CANDIDATE differ most.

    Values stay within what the data could hold. The worst input is brought down to the fewest changed
    columns and written as a file of the data's own schema. Exit code 1: an input beyond the tolerance
    was found. 0: none was. 3: it could not be searched.

    \b
    likewise stress model.joblib model.onnx --data test.parquet --budget 60s
    likewise stress model.onnx model.int8.onnx --data test.npz --preset quantized --calls 500
    """
    from likewise.cli.gates import colour, width, write
    from likewise.contracts.results import StressResult
    from likewise.errors import LikewiseError, UsageError
    from likewise.report.formats.json import dumps, read
    from likewise.report.tables import stress_table
    from likewise.tasks.isolation.supervisor import taking_apart, watched
    from likewise.tasks.own_files import require_outputs

    data = options.required(given.pop("data"), "--data", "Say which rows to start from: --data FILE")
    stated = options.stated(**given)
    arguments = {**stated, "reference": reference, "candidate": candidate, "data": data}
    arguments["output"] = output or f"stress{'.npz' if data.lower().endswith(('.npz', '.npy')) else '.parquet'}"
    require_outputs({"reference": reference, "candidate": candidate, "data": data}, arguments["output"], report)
    job = {"do": "stress", "arguments": arguments}
    try:
        plain = watched(job, shown=not (quiet or as_json), timeout=timeout, debug=debug)
        with taking_apart():
            result = read(StressResult, plain)
    except UsageError:
        raise
    except LikewiseError as error:
        from likewise.tasks.stress import could_not_run

        result = could_not_run(reference, candidate, data, error, stated)
    if report is not None:
        write({report: dumps(result)})
    click.echo(quoted(dumps(result)) if as_json else stress_table(result, width=width(), colour=colour()), nl=False)
    ctx.exit(CODES[result.outcome])


EXTENSION = stress
