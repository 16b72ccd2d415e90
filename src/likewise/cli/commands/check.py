"""`likewise check`: the gate."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from likewise.cli import options
from likewise.errors import UsageError, nearest
from likewise.report.console import printable

FILES = ("data", "baseline", "report", "formats")
"""Options that name files."""


@click.command(short_help="Does the candidate answer like the reference?")
@click.argument("reference", required=False)
@click.argument("candidate", required=False)
@options.gate_options
@options.baseline_options
@click.option(
    "--config", metavar="FILE", help="Gates to run.  [default: likewise.toml or pyproject.toml, here or above]"
)
@options.trust_config_option
@click.option("--reports", metavar="FOLDER", help="Write every gate's report there too, in every format.")
@click.option(
    "--checkpoint",
    callback=options.interval,
    metavar="TIME",
    default="60s",
    help="How often a long run saves its progress beside the report; `none`: never.  [default: 60s]",
)
@click.option("--resume", is_flag=True, help="Continue a run that was killed from where it was.")
@click.option("--gate", "gates", multiple=True, metavar="NAME", help="Run only this gate of the configuration.")
@options.explain_options
@options.output_options(json="Print the report as JSON.", quiet="Print the verdict only.")
@click.pass_context
def check(ctx: click.Context, /, *, reference: str | None, candidate: str | None, **given: Any) -> None:
    """Run REFERENCE and CANDIDATE on the same rows and judge the differences.

    A model is a path (model.joblib, model.onnx, golden.parquet) or module:attribute. Without
    arguments, every gate named in likewise.toml or [tool.likewise] is run, here or in a folder above;
    options apply to all of them, and --json, --report, --junit and the like give one document for all.

    \b
    likewise check model.joblib model.onnx --data test.parquet
    likewise check model.onnx model.int8.onnx --data test.npz --preset quantized
    """
    from likewise.cli.gates import carry_out, carry_out_all, show
    from likewise.tasks.harmless import require_harmless
    from likewise.tasks.settings import overridden, require_own_reports

    shown = {name: given.pop(name) for name in ("as_json", "quiet", "debug")}
    names = ("config", "gates", "reports", "trust_config", "repro")
    path, chosen, folder, trusting, repro = (given.pop(name) for name in names)
    every, resume = (given.pop(name) for name in ("checkpoint", "resume"))
    checkpoint = {"every": every, "resume": resume} if resume or every is not None else None
    stated = options.stated(**given)
    together: dict[str, str] = {}
    started = os.getcwd()
    if reference is None:
        if stated.pop("request_template", None):
            told = "--request-template cannot be used with a configuration"
            raise UsageError(told, remedy='Write it there: candidate = {model = "http://…", template = "FILE"}')
        settings = _gates(path, chosen, quiet=shown["quiet"])
        if not trusting:
            require_harmless(settings, trusted="trusted" in stated)
        if os.getcwd() != started:
            stated = {name: _from(started, value) if name in FILES else value for name, value in stated.items()}
            folder, repro = _from(started, folder), _from(started, repro)
        if len(settings) > 1:
            together = {**({"json": stated.pop("report")} if "report" in stated else {}), **stated.pop("formats", {})}
            stated |= {"report": None} if "json" in together else {}
        settings = {name: overridden(gate, stated) for name, gate in settings.items()}
    else:
        if candidate is None:
            one = "" if os.path.exists(reference) else f", or for one gate of a likewise.toml: --gate {reference}"
            raise UsageError("the candidate is missing", remedy=f"likewise check REFERENCE CANDIDATE --data FILE{one}")
        if path is not None or chosen:
            raise UsageError(
                "models cannot be named together with --config or --gate",
                remedy="Name the models, or the gates of a file",
            )
        from likewise.data.captured import is_captured

        if given["data"] is None and (held := next(filter(is_captured, (candidate, reference)), None)):
            # Recorded traffic holds its own rows.
            given["data"] = stated["data"] = held
        elif given["data"] is None and candidate.endswith((".jsonl", ".ndjson")) and not os.path.exists(candidate):
            raise UsageError(f"there is no file {candidate}", remedy="Name recorded traffic, or a model and its --data")
        options.required(given["data"], "--data", "Say which rows to compare on: --data FILE, or --data generated")
        settings = {"": options.gate(reference, candidate, stated)}
    if folder is not None:
        files = {name: _every_format(folder, name or "parity_report") for name in settings}
        settings = {n: replace(gate, formats={**files[n], **gate.formats}) for n, gate in settings.items()}
    require_own_reports(settings, together)
    if len(settings) > 1 and repro is not None:
        raise UsageError("--repro shows one difference, and there are several gates", remedy="Choose one: --gate NAME")
    if len(settings) > 1 and resume:
        raise UsageError(
            "--resume continues one gate, and there are several",
            remedy="Choose one: --gate NAME, or `likewise fleet --resume`",
        )
    if len(settings) > 1:
        ctx.exit(carry_out_all(settings, together, seen_from=started, **shown))
    (gate,) = settings.values()
    carried = carry_out(gate, seen_from=started, repro=repro, checkpoint=checkpoint, **shown)
    if gate.gate is not None and carried.shown:
        click.echo(f"{gate.gate}:")
    show(carried, as_json=shown["as_json"])
    ctx.exit(carried.exit_code)


def _every_format(folder: str, gate: str) -> dict[str, str]:
    """A file in the folder for every format of a report, named after the gate."""
    from likewise.registry import modules
    from likewise.report import file_name

    stem = re.sub(r"[^\w.-]", "_", gate)
    return {name: str(Path(folder) / file_name(stem, name)) for name in modules("report.formats") if name != "terminal"}


def _from(folder: str, value: Any) -> Any:
    """What a command says of files, for somebody in another folder."""
    if isinstance(value, dict):
        return {name: _from(folder, path) for name, path in value.items()}
    return value if value in (None, "-") or value.partition(":")[0] == "generated" else os.path.join(folder, value)


def _gates(path: str | None, chosen: tuple[str, ...], *, quiet: bool) -> dict[str, Any]:
    """The gates of a configuration, in whose folder we are from now on."""
    from likewise.tasks.settings import find, load_gates

    file = Path(path) if path is not None else find(Path())
    if file is None:
        raise UsageError(
            "there are no models to check: neither arguments nor a likewise.toml here or above",
            remedy="likewise check REFERENCE CANDIDATE --data FILE, or `likewise init` to write a likewise.toml",
        )
    gates = load_gates(file)
    for name in chosen:
        if name not in gates:
            raise UsageError(f"{file} has no gate {name!r}{nearest(name, gates)}", remedy=f"Gates: {', '.join(gates)}")
    if path is None and file.parent != Path() and not quiet:
        click.echo(printable(f"Gates of {file}; they run in its folder."), err=True)
    os.chdir(file.parent)
    return {name: gate for name, gate in gates.items() if not chosen or name in chosen}


EXTENSION = check
