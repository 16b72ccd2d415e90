"""`likewise bisect`: which package's upgrade changes the answers of a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from likewise.cli import CODES, options

if TYPE_CHECKING:
    from likewise.contracts.results import BisectResult
    from likewise.contracts.verdict import Outcome


@click.command(short_help="Which package's upgrade changes the answers of a model?")
@click.argument("model")
@click.option(
    "--from", "old", required=True, metavar="FILE", help="Packages before: a lock file, pip freeze, a Python."
)
@click.option("--to", "new", required=True, metavar="FILE", help="Packages after.")
@click.option("--python", metavar="PATH", help="The Python that environments are made for.  [default: this one]")
@options.data_options
@options.policy_options
@options.trust_option
@options.gate_timeout_option
@options.output_options()
@click.pass_context
def bisect(
    ctx: click.Context,
    /,
    *,
    model: str,
    old: str,
    new: str,
    python: str | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
    **given: Any,
) -> None:
    """Open MODEL with the old packages and with the new ones, and name the smallest set that changes its answers.

    Packages are upgraded in halves, then one at a time. Environments are made by uv or pip and kept. The exit
    code is 0 if the answers are alike, 1 if they differ, 3 if that cannot be told.

    \b
    likewise bisect model.joblib --data test.parquet --from old.txt --to new.txt --trust
    """
    from likewise.cli.gates import carry_out
    from likewise.report.console import printable, quoted
    from likewise.tasks.bisect import QUICK
    from likewise.tasks.bisect import bisect as run

    options.required(given["data"], "--data", "Say which rows to ask about: --data FILE")
    stated = {**options.stated(**given), **QUICK, "report": None}
    place = {} if python is None else {"python": python}

    def compare(before: Sequence[str], after: Sequence[str]) -> tuple[Outcome, str]:
        sides = {"reference_options": {"with": [*before], **place}, "candidate_options": {"with": [*after], **place}}
        settings = options.gate(model, model, {**stated, **sides})
        carried = carry_out(settings, quiet=True, debug=debug, summary=False)
        return carried.outcome, carried.headline

    def tell(text: str) -> None:
        if not quiet:
            click.echo(printable(text), err=True)

    result = run(model, given["data"], old, new, python=python, compare=compare, tell=tell)
    if as_json:
        click.echo(quoted(json.dumps(asdict(result), indent=2, ensure_ascii=False)))
    else:
        click.echo(printable("\n".join(_lines(result))))
    ctx.exit(CODES[result.outcome])


def _lines(result: BisectResult) -> Iterator[str]:
    if result.culprits:
        yield f"{result.model} answers differently because of:"
        yield from (f"  {upgrade}" for upgrade in result.culprits)
        smallest = next(t for t in result.trials if set(t.upgraded) == {upgrade.name for upgrade in result.culprits})
        yield f"With that alone: {smallest.told}."
        others = len(result.changed) - len(result.culprits)
        if others:
            rest = {True: "answers as before", False: "differs too", None: "could not be compared"}[result.rest_alike]
            yield f"With the other {others} upgraded and without this, it {rest}."
    elif not result.changed:
        yield "No package differs."
    elif result.trials[0].outcome == "PASS":
        every = (
            f"All {len(result.changed)} upgrades together change" if len(result.changed) > 1 else "The upgrade changes"
        )
        yield f"{every} nothing: {result.trials[0].told}."
    else:
        yield f"It cannot be told: {result.trials[0].told}."
    skipped = [trial for trial in result.trials if trial.outcome == "INCONCLUSIVE"]
    for trial in skipped if result.culprits else ():
        yield f"Passed over ({', '.join(trial.upgraded)}): {trial.told}"


EXTENSION = bisect
