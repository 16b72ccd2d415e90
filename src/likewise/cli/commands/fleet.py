"""`likewise fleet`: hundreds of gates in one run."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from likewise.cli import options
from likewise.errors import DataError, UsageError, require_file


@click.command(short_help="Hundreds of gates in one run.")
@click.argument("gates", metavar="FOLDER|TOML")
@click.option("--reference", metavar="NAME", help="Names of references below FOLDER.  [default: *.joblib, …]")
@click.option("--candidate", metavar="NAME", help="Names of candidates below FOLDER.  [default: *.onnx]")
@options.data_options
@options.where_option
@options.policy_options
@options.comparison_options
@options.trust_option
@options.force_option
@options.gate_timeout_option
@options.trust_config_option
@click.option(
    "--reports", metavar="FOLDER", default="likewise-fleet", show_default=True, help="Where all reports are written."
)
@click.option("--jobs", type=int, metavar="N", help="Run at most N gates at a time.  [default: one per core]")
@click.option("--resume", is_flag=True, help="Keep what is in --reports already, of files that have not changed.")
@click.option(
    "--changed-since",
    metavar="FLEET.json",
    help="Run only gates whose models, data, settings or versions are not those of that report, by their hashes, and "
    "those that were inconclusive.",
)
@options.explain_options
@options.output_options(json="Print all reports as JSON.", quiet="Print the table only.")
@click.pass_context
def fleet(ctx: click.Context, /, *, gates: str, **given: Any) -> None:
    """Run the gates of a TOML file, or of all models below a FOLDER, several at a time.

    In a folder, a candidate lies beside its reference, and rows beside both or in a folder above; the
    gate is named after its folder. Every gate runs confined in a process of its own, so that none can
    affect another. The reports folder gets index.html, fleet.json, fleet.junit.xml, and the report and
    the page of every gate. Options apply to all gates.

    \b
    likewise fleet models --data test.parquet --jobs 4
    likewise fleet gates.toml --changed-since yesterday/fleet.json
    """
    from likewise.cli.fleet import Fleet
    from likewise.models.remote import cores
    from likewise.tasks.fleet import require_stems, stem
    from likewise.tasks.settings import overridden, require_own_reports

    names = ("reference", "candidate", "reports", "jobs", "resume", "changed_since", "trust_config")
    reference, candidate, reports, jobs, resume, since, trusting = (given.pop(name) for name in names)
    as_json, quiet, debug = (given.pop(name) for name in ("as_json", "quiet", "debug"))
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs is {jobs}", remedy="Give a number above zero")
    folder = Path(os.path.abspath(reports))
    before = None if since is None else os.path.abspath(since)
    stated = options.stated(**given)
    if stated.pop("request_template", None):
        told = "--request-template cannot be used with many gates"
        raise UsageError(told, remedy='Write it into the list: candidate = {model = "http://…", template = "FILE"}')
    found = _found(gates, stated, reference=reference, candidate=candidate, trusting=trusting)
    found = {name: overridden(gate, stated) for name, gate in found.items()}
    require_stems(found)
    require_own_reports(found, {})
    folder = Path(os.path.relpath(folder))
    with _stored(before, found) as old:
        kept: dict[str, Path] = {}
        if resume:
            there = {name: folder / f"{stem(name)}.json" for name in found}
            kept |= {name: path for name, path in there.items() if path.is_file()}
            if not kept and not quiet:
                click.echo(f"There is nothing to resume in {folder}: all gates are run.", err=True)
        ran = Fleet(found, folder, {**old, **kept}, retried=old.keys() - kept.keys(), jobs=jobs or cores())
        try:
            ran.carry_out(quiet=quiet or as_json, debug=debug, tell=lambda text: click.echo(text, err=True))
        except (KeyboardInterrupt, SystemExit):
            click.echo(f"{len(ran.ended)} of {len(found)} gates have ended; --resume goes on from there.", err=True)
            raise
        ctx.exit(ran.conclude(as_json=as_json))


def _found(
    gates: str, stated: dict[str, Any], *, reference: str | None, candidate: str | None, trusting: bool
) -> dict[str, Any]:
    """The gates of a file, in whose folder we are from now on, or those below a folder."""
    from likewise.tasks.fleet import find
    from likewise.tasks.harmless import require_harmless
    from likewise.tasks.settings import load_gates

    if os.path.isdir(gates):
        data = stated.pop("data", None)
        return find(Path(gates), reference=reference, candidate=candidate, data=data, trusting=trusting)
    if reference is not None or candidate is not None or "data" in stated:
        raise UsageError(
            "--reference and --candidate cannot be used with a list of gates",
            remedy="Write them into the list, or give a folder",
        )
    path = Path(gates)
    if not path.exists():
        raise UsageError(f"there is neither a folder nor a file {gates}", remedy="Check the path")
    found = load_gates(path)
    os.chdir(path.parent)
    if not trusting:
        require_harmless(found, trusted="trusted" in stated)
    return found


@contextmanager
def _stored(path: str | None, gates: Iterable[str]) -> Iterator[dict[str, Path]]:
    """The reports of an earlier fleet, each in a file of its own, by the gates that there still are."""
    if path is None:
        yield {}
        return
    from likewise.data.files import named_once
    from likewise.tasks.fleet import stem

    require_file(path, UsageError)
    try:
        stored = json.loads(Path(path).read_bytes(), object_pairs_hook=named_once)
        found = {name: stored["gates"][name] for name in gates if name in stored["gates"]}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", remedy="Name the fleet.json of a run") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is not the report of a fleet", remedy="Name the fleet.json of a run") from error
    with tempfile.TemporaryDirectory(prefix="likewise-fleet.") as folder:
        places = {name: Path(folder) / f"{stem(name)}.json" for name in found}
        for name, place in places.items():
            place.write_text(json.dumps(found[name]), encoding="utf-8")
        yield places


EXTENSION = fleet
