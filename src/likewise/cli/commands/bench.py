"""`likewise bench`: how fast two models are, side by side."""

from __future__ import annotations

import json
from typing import Any

import click

from likewise.cli import options
from likewise.report.console import quoted


@click.command(short_help="Latency, throughput, load time, memory and size, side by side.")
@click.argument("reference")
@click.argument("candidate")
@options.data_options
@click.option(
    "--batch-sizes", callback=options.sizes, metavar="N,N", help="Rows per call.  [default: 1,16,256 as data allows]"
)
@click.option(
    "--budget", callback=options.seconds, metavar="S", help="Time to measure for, such as 20s.  [default: 20s]"
)
@options.adapter_option("--reference-option")
@options.adapter_option("--candidate-option", "An option for the adapter, such as threads=1.")
@options.batch_axis_option
@options.trust_option
@click.option("--svg", metavar="FILE", help="Write a plot of the ratios.")
@click.option("--output", "-o", metavar="FILE", help="Write every figure and sample as JSON.")
@options.timeout_option
@options.force_option
@options.output_options()
def bench(
    *,
    reference: str,
    candidate: str,
    svg: str | None,
    output: str | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
    timeout: float | None,
    **given: Any,
) -> None:
    """Time REFERENCE and CANDIDATE on the same rows, in turns.

    The timed part is one call of the model on rows already in its own form. Each model runs in a
    process of its own. Speed is not judged: the exit code is 0 when both could be measured.

    \b
    likewise bench model.joblib model.onnx --data test.parquet
    likewise bench model.onnx model.int8.onnx --data test.npz --budget 60s --svg speed.svg
    """
    from likewise.cli.gates import colour, width, write
    from likewise.tasks.isolation.supervisor import taking_apart, watched
    from likewise.tasks.own_files import require_outputs

    require_outputs({"reference": reference, "candidate": candidate, "data": given["data"]}, svg, output)
    arguments = options.arguments("Say which rows to run", reference=reference, candidate=candidate, **given)
    plain = watched({"do": "bench", "arguments": arguments}, shown=not (quiet or as_json), timeout=timeout, debug=debug)
    from likewise.contracts.results import BenchResult
    from likewise.report.formats.json import dumps, read
    from likewise.report.tables import bench_plot, bench_table

    with taking_apart():
        result = read(BenchResult, plain)
    if svg is not None:
        write({svg: bench_plot(result)})
    if output is not None:
        write({output: dumps(result)})
    if as_json:
        click.echo(quoted(json.dumps(plain, indent=2, ensure_ascii=False)))
    else:
        click.echo(bench_table(result, width=width(), colour=colour()), nl=False)


EXTENSION = bench
