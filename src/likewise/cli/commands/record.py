"""`likewise record`: answers for machines that do not have the framework."""

from __future__ import annotations

from typing import Any

import click

from likewise.cli import options


@click.command(short_help="Store a model's answers as a reference.")
@click.argument("model")
@options.data_options
@click.option("--output", "-o", required=True, metavar="FILE", help="The Parquet file to write.")
@options.adapter_option("--option")
@options.batch_axis_option
@options.trust_option
@options.force_option
@options.timeout_option
@click.option("--quiet", "-q", is_flag=True, help="Print nothing.")
@options.debug_option
def record(*, model: str, output: str, quiet: bool, debug: bool, timeout: float | None, **given: Any) -> None:
    """Store the answers of MODEL, keyed by row, so that `likewise check golden.parquet …` can use them."""
    from likewise.contracts.verdict import counted
    from likewise.tasks.isolation.supervisor import ALONE, CrashError, watched
    from likewise.tasks.own_files import require_outputs

    require_outputs({"model": model, "data": given["data"]}, output)
    arguments = options.arguments("Say which rows to answer", model=model, output=output, **given)
    own = options.given(batch_axis=arguments.pop("batch_axis", None))
    arguments["options"] = {**own, **arguments.pop("options", {})}
    rows = watched({"do": "record", "arguments": arguments}, shown=not quiet, timeout=timeout, debug=debug)
    if not isinstance(rows, int) or rows < 0:
        raise CrashError("the worker's answer is not a number of rows", remedy=ALONE)
    if not quiet:
        click.echo(f"Recorded the answers to {counted(rows, 'rows')} in {output}")


EXTENSION = record
