"""`likewise noise`: how far a model's own answers move, and the tolerances that this asks for."""

from __future__ import annotations

import json
from typing import Any

import click

from likewise.cli import INCONCLUSIVE, PASS, options
from likewise.report.console import printable, quoted


@click.command(short_help="How far a model's own answers move, and the tolerances above that.")
@click.argument("model")
@options.data_options
@click.option("--margin", type=float, metavar="X", help="Propose this many times the noise.  [default: 10]")
@options.adapter_option("--option", "An option for the model's adapter.")
@options.batch_axis_option
@options.trust_option
@options.timeout_option
@options.output_options(quiet="Print the proposed options only.")
@click.pass_context
def noise(
    ctx: click.Context, /, *, model: str, as_json: bool, quiet: bool, debug: bool, timeout: float | None, **given: Any
) -> None:
    """Measure how far the answers of MODEL move by themselves, and propose tolerances above that.

    The same rows are asked again: as they are, in other batches, with other numbers of threads, at
    other levels of optimisation, in the other precision and rounded to float32. Nothing is judged: the
    exit code is 0 when it could be measured, 3 when not, or when the answers move too far for any
    tolerance.

    \b
    likewise noise model.joblib --data test.parquet
    likewise noise model.onnx --data test.npz --margin 5
    """
    from likewise.cli.gates import colour, width
    from likewise.tasks.isolation.supervisor import taking_apart, watched

    arguments = options.arguments("Say which rows to ask about", model=model, **given)
    plain = watched({"do": "noise", "arguments": arguments}, shown=not (quiet or as_json), timeout=timeout, debug=debug)
    from likewise.contracts.results import NoiseResult
    from likewise.report.formats.json import read
    from likewise.report.tables import noise_table

    with taking_apart():
        result = read(NoiseResult, plain)
    if as_json:
        click.echo(quoted(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False)))
    elif not quiet:
        click.echo(noise_table(result, width=width(), colour=colour()), nl=False)
    elif not result.refused:
        click.echo(printable(result.options))
    ctx.exit(INCONCLUSIVE if result.refused else PASS)


EXTENSION = noise
