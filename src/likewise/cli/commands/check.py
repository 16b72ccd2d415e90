"""`likewise check`: the gate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from likewise.cli import CODES, options
from likewise.errors import UsageError, nearest

FOR_EVERY_GATE = {"timeout", "trusted", "explain", "explain_budget"}
"""Options that make sense beside a file that names the gates."""

SUFFIXES = {"markdown": "md", "junit": "junit.xml"}
"""How files of a format end, where that is not its name."""


@click.command(short_help="Does the candidate answer like the reference?")
@click.argument("reference", required=False)
@click.argument("candidate", required=False)
@options.data_options
@options.policy_options
@options.baseline_options
@options.comparison_options
@options.trust_option
@options.report_options
@click.option("--config", metavar="FILE", help="Gates to run.  [default: likewise.toml or pyproject.toml]")
@click.option("--reports", metavar="FOLDER", help="Write every gate's report there too, in every format.")
@click.option("--gate", "gates", multiple=True, metavar="NAME", help="Run only this gate of the configuration.")
@options.explain_options
@options.timeout_option
@options.output_options(json="Print the report as JSON.", quiet="Print the verdict only.")
@click.pass_context
def check(ctx: click.Context, /, *, reference: str | None, candidate: str | None, **given: Any) -> None:
    """Run REFERENCE and CANDIDATE on the same rows and judge the differences.

    A model is a path (model.joblib, model.onnx, golden.parquet) or module:attribute. Without
    arguments, every gate named in likewise.toml or [tool.likewise] is run.

    \b
    likewise check model.joblib model.onnx --data test.parquet
    likewise check model.onnx model.int8.onnx --data test.npz --preset quantized
    """
    from dataclasses import replace

    from likewise.cli.gates import carry_out, show
    from likewise.tasks.settings import settings_from

    shown = {name: given.pop(name) for name in ("as_json", "quiet")}
    debug, path, chosen, folder = (given.pop(name) for name in ("debug", "config", "gates", "reports"))
    stated = options.stated(**given)
    if reference is None:
        if stated.keys() - FOR_EVERY_GATE:
            raise UsageError("options without models", remedy="Give REFERENCE, CANDIDATE and --data, or none of them")
        settings = {name: replace(gate, **stated) for name, gate in _gates(path, chosen).items()}
    else:
        if candidate is None:
            raise UsageError("the candidate is missing", remedy="likewise check REFERENCE CANDIDATE --data FILE")
        if path is not None or chosen:
            raise UsageError("models beside --config or --gate", remedy="Name the models, or the gates of a file")
        options.required(given["data"], "--data", "Say which rows to compare on: --data FILE, or --data generated")
        table = {"report": "parity_report.json", **stated, "reference": reference, "candidate": candidate}
        settings = {"": settings_from(table, where="the command")}
    if folder is not None:
        files = {name: _every_format(folder, name or "parity_report") for name in settings}
        if len({*(tuple(found.values()) for found in files.values())}) < len(files):
            raise UsageError("two gates would write the same files", remedy="Give them names that differ in letters")
        settings = {n: replace(gate, formats={**files[n], **gate.formats}) for n, gate in settings.items()}
    worst = 0
    for name, gate in settings.items():
        if name and not shown["as_json"]:
            click.echo(f"{name}:")
        carried = carry_out(gate, debug=debug, **shown)
        show(carried, as_json=shown["as_json"])
        if len(settings) > 1 and not shown["as_json"]:
            click.echo()
        worst = max(worst, CODES[carried.outcome])
    ctx.exit(worst)


def _every_format(folder: str, gate: str) -> dict[str, str]:
    """A file in the folder for every format of a report, named after the gate."""
    from likewise.registry import modules

    stem = re.sub(r"[^\w.-]", "_", gate)
    names = [name for name in modules("report.formats") if name != "terminal"]
    return {name: str(Path(folder) / f"{stem}.{SUFFIXES.get(name, name)}") for name in names}


def _gates(path: str | None, chosen: tuple[str, ...]) -> dict[str, Any]:
    from likewise.tasks.settings import find, load_gates

    file = Path(path) if path is not None else find(Path())
    if file is None:
        raise UsageError(
            "there are no models to check: neither arguments nor a likewise.toml",
            remedy="likewise check REFERENCE CANDIDATE --data FILE, or `likewise init` to write a likewise.toml",
        )
    gates = load_gates(file)
    for name in chosen:
        if name not in gates:
            raise UsageError(f"{file} has no gate {name!r}{nearest(name, gates)}", remedy=f"Gates: {', '.join(gates)}")
    return {name: gate for name, gate in gates.items() if not chosen or name in chosen}


EXTENSION = check
