"""The command line: one file a command, exit codes only here."""

from __future__ import annotations

import sys
from typing import Any

import click

from likewise.errors import LikewiseError, one_line
from likewise.report.console import plain, printable

PASS, FAIL, USAGE, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 130
CODES = {"PASS": PASS, "FAIL": FAIL, "INCONCLUSIVE": INCONCLUSIVE}
"""Exit codes by outcome, in plain text: `--help` needs no more than this. Only zero deploys."""


class Commands(click.Group):
    """The commands are the files of a folder."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from likewise.registry import modules

        return [name.replace("_", "-") for name in modules("cli.commands")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from importlib import import_module

        name = cmd_name.replace("-", "_")
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(f"likewise.cli.commands.{name}").EXTENSION
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        from likewise.errors import nearest

        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"there is no command {args[0]!r}{nearest(args[0], self.list_commands(ctx))}")
        # `--json` prints as it is; who writes `--json -`, as with the other formats, means the same.
        kept = [word for place, word in enumerate(args) if word != "-" or args[place - 1] != "--json"]
        return super().resolve_command(ctx, kept)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="likewise", prog_name="likewise")
def likewise() -> None:
    """Does the model you are about to deploy give the same answers as the model you trained?

    Exit code 0: PASS. 1: FAIL. 2: a usage error. 3: INCONCLUSIVE, it could not be
    compared in full. Only 0 deploys.
    """


def main() -> None:
    """Run the command line; no traceback reaches a user unless they ask with --debug."""
    try:
        # In this mode click returns the exit code instead of leaving with it.
        sys.exit(likewise(standalone_mode=False, color=False if plain() else None))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("Interrupted.", err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:  # the last line of defence: whatever it is, it must not look like a pass
        if "--debug" in sys.argv:
            raise
        if isinstance(error, LikewiseError):
            click.echo(printable(f"Error: {error}"), err=True)
            sys.exit(USAGE if error.code == "usage" else INCONCLUSIVE)
        click.echo(printable(f"Error: {one_line(error)}. Run again with --debug to see where"), err=True)
        sys.exit(INCONCLUSIVE)
