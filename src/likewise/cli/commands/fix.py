"""`likewise fix`: a copy of the candidate that answers like the reference, where a remedy can be carried out."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import click

from likewise.cli import options
from likewise.report.console import printable, quoted


@click.command(short_help="Write a copy of the candidate that passes.")
@click.argument("reference")
@click.argument("candidate", metavar="CANDIDATE.onnx")
@click.option("--output", "-o", required=True, metavar="FILE.onnx", help="The file to write, if it passes.")
@options.gate_options
@options.baseline_options
@click.option(
    "--explain-budget",
    callback=options.seconds,
    default="2m",
    metavar="TIME",
    help="Look for causes for at most this long, such as 30s or 5m.  [default: 2m]",
)
@options.memory_option
@click.option("--speed/--no-speed", "timed", default=True, help="Time both files on --data.  [default: speed]")
@options.output_options(json="Print what was done and the report as JSON.", quiet="Print the outcome only.")
@click.pass_context
def fix(ctx: click.Context, /, *, reference: str, candidate: str, output: str, timed: bool, **given: Any) -> None:
    """Check CANDIDATE.onnx against REFERENCE and, where it does not pass, carry out what its diagnoses call for.

    Every remedy is carried out on a copy, and the copy is checked like any candidate, under the same limits. The first
    that passes is written; no file that is read is ever changed. Exit code 0: the candidate passes, as it is or
    repaired. 1: nothing gets it within its limits, and nothing is written. 3: it could not be compared in full.

    \b
    likewise fix model.joblib model.onnx --data test.parquet -o fixed.onnx
    """
    from likewise.cli.gates import carry_out, speed, width
    from likewise.tasks.own_files import require_outputs

    as_json, quiet, debug, repro = (given.pop(name) for name in ("as_json", "quiet", "debug", "repro"))
    options.required(given["data"], "--data", "Say which rows to compare on: --data FILE")
    stated = options.stated(**given)
    settings = options.gate(reference, candidate, stated)
    require_outputs({"reference": reference, "candidate": candidate, "data": given["data"]}, output)
    settings.require_own_files(output)
    carried = carry_out(settings, as_json=as_json, quiet=quiet, debug=debug, fixed=output, repro=repro)
    found, timing = carried.fixed, None
    if found.get("output") and timed and not quiet:
        timing = speed(candidate, output, stated, timeout=settings.timeout, debug=debug)
    if as_json:
        from dataclasses import asdict

        told = {**found, "timing": None if timing is None else asdict(timing), "report": json.loads(carried.json)}
        click.echo(quoted(json.dumps(told, indent=2, ensure_ascii=False)))
    else:
        lines = list(_told(candidate, carried.outcome, carried.headline, found, timing))
        for text in lines[:1] if quiet else lines:
            click.echo(textwrap.fill(printable(text), width(), subsequent_indent="  ", break_on_hyphens=False))
    ctx.exit(carried.exit_code)


def _told(candidate: str, outcome: str, headline: str, found: Mapping[str, Any], timing: Any) -> Iterator[str]:
    """What became of the candidate, line by line, the outcome first."""
    from likewise.tasks.fix import cost

    before, settings = found.get("before"), found.get("settings")
    if found.get("output"):
        yield f"FIXED: {found['output']} passes. {headline}."
        yield f"· Before: {before['outcome']}, {before['headline']}." if before else ""
        for step in found["done"]:
            why = f" ({step['cause']}: {step['culprit']})" if step["cause"] else ""
            yield f"· Done: {step['told']}{why}."
        yield f"· Cost: {cost(found['bytes_before'], found['bytes_after'], timing)}."
    elif outcome == "PASS":
        yield f"PASS: {candidate} passes as it is, nothing was written. {headline}."
    elif settings:
        yield f"NOT FIXED: {candidate} passes only under other settings of the session, which no file can carry."
        said = ", ".join(f"{name}={value}" for name, value in settings.items())
        yield f"· Deploy it with these settings: {said}; and check it that way: --candidate-option {said}"
        table = ", ".join(f'{name} = "{value}"' for name, value in settings.items())
        yield f"· In likewise.toml: candidate_options = {{ {table} }}"
    else:
        yield f"NOT FIXED: nothing was written. {outcome}: {headline}."
    yield from [""] if found.get("tried") else []
    for step in found.get("tried", ()):
        yield f"· Not enough: {step['told']}: {step['headline'].partition(';')[0]}."
    if not found.get("tried") and not found.get("output") and outcome != "PASS":
        yield "· No remedy was found that can be carried out; `likewise explain` says what was found."


EXTENSION = fix
