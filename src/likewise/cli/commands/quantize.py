"""`likewise quantize`: a smaller file, checked against the one it comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from likewise.cli import options
from likewise.report.console import printable, quoted

if TYPE_CHECKING:
    from likewise.cli.gates import Carried
    from likewise.contracts.report import Report
    from likewise.contracts.results import BatchTiming


CHOICES = {
    "mode": ("dynamic", "static", "fp16"),
    "calibration": ("minmax", "entropy", "percentile"),
    "format": ("qdq", "qoperator"),
    "weights": ("int8", "uint8"),
}
RECIPE = ("calibration_rows", "per_channel", "reduce_range", "exclude", "op_types", "force", "allow_noop", *CHOICES)


def _choice(name: str, told: str) -> Callable[[options.F], options.F]:
    return click.option(f"--{name}", type=click.Choice(CHOICES[name]), help=f"{told}  [default: {CHOICES[name][0]}]")


@click.command(short_help="Quantise an ONNX file, then check it.")
@click.argument("model", metavar="MODEL.onnx")
@click.option("--output", "-o", required=True, metavar="FILE", help="The file to write.")
@_choice("mode", "INT8 with ranges found at run time or by calibration, or half precision.")
@options.data_options
@click.option("--calibrate", metavar="FILE", help="Rows to calibrate a static quantisation on.  [default: of --data]")
@_choice("calibration", "How ranges are found from the calibration rows.")
@click.option("--calibration-rows", type=int, metavar="N", help="How many rows to calibrate on.  [default: 512]")
@click.option("--per-channel", is_flag=True, help="A scale for every channel of a weight.")
@_choice("format", "How a static quantisation is written.")
@_choice("weights", "Type of INT8 weights.")
@click.option(
    "--reduce-range/--no-reduce-range", default=None, help="Seven-bit weights, or eight.  [default: by this processor]"
)
@click.option("--exclude", multiple=True, metavar="NODE", help="Leave a node in float.")
@click.option("--op-type", "op_types", multiple=True, metavar="TYPE", help="Quantise nodes of this operator only.")
@click.option(
    "--force",
    is_flag=True,
    help="Accept a model that is already quantised, and replace files that likewise did not write.",
)
@click.option("--allow-noop", is_flag=True, help="Accept a model on which nothing would change.")
@options.batch_axis_option
@options.policy_options
@click.option(
    "--check/--no-check", "wanted", default=True, help="Compare the file with MODEL on --data.  [default: check]"
)
@click.option("--speed/--no-speed", "timed", default=True, help="Time both on --data.  [default: speed]")
@click.option("--report", metavar="FILE", help="Where the report goes.  [default: parity_report.json]")
@options.timeout_option
@options.output_options(
    json="Print what was done and the report as JSON.", quiet="Print the summary and the verdict only."
)
@click.pass_context
def quantize(
    ctx: click.Context,
    /,
    *,
    model: str,
    output: str,
    wanted: bool,
    timed: bool,
    as_json: bool,
    quiet: bool,
    debug: bool,
    **given: Any,
) -> None:
    """Write a quantised copy of MODEL.onnx and check it against the original.

    The limits are those of the preset `quantized` for INT8 and `standard` for fp16, unless others
    are given. The exit code is the verdict; without data the file is written and not checked.

    \b
    likewise quantize model.onnx -o model.int8.onnx --data test.parquet
    likewise quantize model.onnx -o model.int8.onnx --mode static --data test.npz --per-channel
    """
    import textwrap

    from likewise.cli.gates import carry_out, show, speed, width
    from likewise.data.files import REPLACE
    from likewise.tasks.bench import SELECTION
    from likewise.tasks.isolation.supervisor import supervise, taking_apart
    from likewise.tasks.own_files import require_outputs
    from likewise.tasks.quantize import Quantized, summary

    stated = {name: value for name, value in options.given(**given).items() if value is not False or name in RECIPE}
    timeout = stated.get("timeout")
    recipe = {name: stated.pop(name) for name in RECIPE if name in stated}
    data, rows = stated.get("data"), stated.pop("calibrate", stated.get("data"))
    mode = recipe.get("mode", "dynamic")
    shared = {name: stated[name] for name in SELECTION if name in stated}
    settings = None
    if data is not None and wanted:
        preset = "standard" if mode == "fp16" else "quantized"
        settings = options.gate(model, output, {"preset": preset, **stated})
        # What makes no sense is said before the file is written.
        settings.policy()
    REPLACE.set(bool(recipe.get("force")))
    require_outputs({"model": model, "data": data, "calibration": rows}, output)
    job = {"do": "quantize", "recipe": recipe, "arguments": {"model": model, "output": output, "data": rows, **shared}}
    written = supervise(job, timeout=timeout, debug=debug)
    with taking_apart():
        quantized = Quantized(**{**written, "choices": tuple(written["choices"])})
    carried: Carried | None = None
    report: Report | None = None
    timing: BatchTiming | None = None
    if settings is not None:
        carried = carry_out(settings, as_json=as_json, quiet=quiet, debug=debug)
        report = carried.report
        if timed:
            timing = speed(model, output, stated, timeout=timeout, debug=debug)
    if as_json:
        _print_json(quantized, report, timing)
    else:
        told = [f"{output}: {summary(quantized, report, timing)}"]
        told += [] if quiet else [f"· {choice[:1].upper()}{choice[1:]}." for choice in quantized.choices]
        for text in told:
            click.echo(textwrap.fill(printable(text), width(), subsequent_indent="  ", break_on_hyphens=False))
        if carried is None or report is None:
            click.echo("Not checked: " + ("as asked for." if data is not None else "give --data FILE to compare it."))
        else:
            click.echo(f"Checked under the limits of the preset {report.policy.preset}.\n")
            show(carried, as_json=False)
    ctx.exit(0 if carried is None else carried.exit_code)


def _print_json(quantized: Any, report: Report | None, timing: BatchTiming | None) -> None:
    import json
    from dataclasses import asdict

    from likewise.report.formats.json import JsonRenderer

    told = {
        "quantized": asdict(quantized),
        "timing": None if timing is None else asdict(timing),
        "report": None if report is None else json.loads(JsonRenderer().render(report)),
    }
    click.echo(quoted(json.dumps(told, indent=2, ensure_ascii=False)))


EXTENSION = quantize
