"""`likewise export`: a trained model as an ONNX file, then the gate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from likewise.cli import options
from likewise.report.console import printable, quoted


@click.command(short_help="Write a trained model as ONNX, then check it.")
@click.argument("model")
@options.data_options
@click.option("--output", "-o", required=True, metavar="FILE.onnx", help="The file to write.")
@click.option("--opset", type=int, metavar="N", help="ONNX operator set to write for.  [default: the converter's]")
@click.option("--double", is_flag=True, help="Take and compute float64: scikit-learn and torch.")
@click.option("--zipmap", is_flag=True, help="Give probabilities as one dictionary per row, not as an array.")
@click.option(
    "--dynamic",
    multiple=True,
    callback=options.assignments,
    metavar="INPUT=AXIS,AXIS",
    help="Axes of an input whose length is free, such as tokens=0,1.",
)
@options.adapter_option(
    "--option", "An option for the model's adapter, such as factory=net.py:Net for a file of weights."
)
@click.option("--check/--no-check", default=True, help="Compare the file with the model.  [default: check]")
@options.policy_options
@options.batch_axis_option
@options.batch_size_options
@options.trust_option
@options.report_options
@options.timeout_option
@options.output_options(
    json="Print the report as JSON; with --no-check, what was written.", quiet="Print the verdict only."
)
@click.pass_context
def export(
    ctx: click.Context, /, *, model: str, output: str, check: bool, as_json: bool, quiet: bool, **given: Any
) -> None:
    """Write MODEL as an ONNX file, with inputs of the types that the data has, and check it on that data.

    model.features.json (what to feed) and model.metadata.json (where it came from) are written beside
    model.onnx. The exit code is that of the check.

    \b
    likewise export model.joblib --data test.parquet -o model.onnx
    """
    from likewise.cli.gates import carry_out, printed, show
    from likewise.tasks.isolation.supervisor import supervise, taking_apart
    from likewise.tasks.own_files import require_outputs

    options.required(given["data"], "--data", "Say which rows show the inputs: --data FILE")
    debug = given.pop("debug")
    how = {name: given.pop(name) for name in ("opset", "double", "zipmap", "dynamic")}
    how["dynamic"] = {name: _axes(axes) for name, axes in how["dynamic"].items()} or None
    stated = options.stated(reference_options=given.pop("options"), **given)
    settings = options.gate(model, output, stated)
    settings.policy()
    beside = [str(Path(output).with_suffix(f".{name}.json")) for name in ("features", "metadata")]
    require_outputs({"model": model, "data": given["data"]}, output, *beside)
    settings.require_own_files(*beside)
    told = {name: value for name, value in stated.items() if name not in ("report", "formats", "timeout")}
    job = {"do": "export", "arguments": {"model": model, "output": output, "check": False, **told, **how}}
    written = supervise(job, timeout=settings.timeout, debug=debug)
    with taking_apart():
        shown = printable(_told(written))
    if not check and as_json:
        click.echo(quoted(json.dumps(written, indent=2, ensure_ascii=False)))
    elif not quiet and not printed(settings.formats, as_json=as_json):
        click.echo(shown)
    if check:
        carried = carry_out(settings, as_json=as_json, quiet=quiet, debug=debug)
        show(carried, as_json=as_json)
        ctx.exit(carried.exit_code)


def _axes(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a list of axes such as 0,1") from error


def _told(written: Mapping[str, Any]) -> str:
    inputs = len(written["features"])
    lines = [f"Wrote {written['output']}: {written['bytes']:,} bytes, {inputs} input{'s' if inputs > 1 else ''}"]
    return "\n".join([*lines, *(f"· {note[:1].upper()}{note[1:]}." for note in written["notes"])])


EXTENSION = export
