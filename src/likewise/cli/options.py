"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from likewise.errors import DataError, LikewiseError, UsageError, one_line
from likewise.judge.policy import PRESETS

if TYPE_CHECKING:
    from likewise.tasks.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])
ELSEWHERE = ("python", "with", "command")
"""`--reference-…` and `--candidate-…` that say where a model is opened."""

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def assignments(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """`name=value` pairs."""
    found = {}
    for text in values:
        name, sign, value = text.partition("=")
        if not sign or not name or not value:
            raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE", ctx, parameter)
        found[name.strip()] = value.strip()
    return found


def numbers(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    """`name=number` pairs."""
    try:
        return {name: float(value) for name, value in assignments(ctx, parameter, values).items()}
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, parameter) from error


def sizes(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """`1,2,4` as numbers; `none` for no sweep."""
    if value is None:
        return None
    try:
        return () if value == "none" else tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a list of sizes such as 1,2,4,32,128", ctx, parameter) from error


def lengths(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, tuple[int, ...]] | None:
    """`seq=1,7,128` as numbers by name; `none` for no sweep, None where nothing is said."""
    if values == ("none",):
        return {}
    try:
        found = assignments(ctx, parameter, values)
        return {name: tuple(int(part) for part in text.split(",")) for name, text in found.items()} or None
    except ValueError as error:
        raise click.BadParameter(f"{' '.join(values)!r} is not of the form seq=1,7,128", ctx, parameter) from error


def axes(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """`name=value,value` words, several in one text or one text each."""
    if not values:
        return {}
    from likewise.compare.variations.settings import axes_from

    return axes_from(values)


def seconds(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """`20`, `20s`, `2m` or `1h` as seconds."""
    if value is None:
        return None
    try:
        return float(value.rstrip("smh")) * UNITS[value.lstrip("0123456789.")]
    except (ValueError, KeyError) as error:
        raise click.BadParameter(f"{value!r} is not a time such as 20s or 2m", ctx, parameter) from error


def patience(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """A time, or `none` for no end."""
    return 0.0 if value == "none" else seconds(ctx, parameter, value)


def interval(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """A time, or `none` for never."""
    return None if value == "none" else seconds(ctx, parameter, value)


def percent(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """`20%` or `20` as a number."""
    if value is None:
        return None
    try:
        found = float(value.strip().removesuffix("%"))
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise click.BadParameter(f"{value!r} is not a percentage such as 20%", ctx, parameter)
    return found


def _stacked(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


policy_options = _stacked(
    click.option(
        "--preset",
        type=click.Choice(list(PRESETS)),
        help="A named set of limits.  [default: float32, unless said above]",
    ),
    click.option("--abs-tol", type=float, metavar="X", help="Largest absolute difference of any value."),
    click.option("--rel-tol", type=float, metavar="X", help="Added to --abs-tol: X times the reference's value."),
    click.option("--mean-tol", type=float, metavar="X", help="Largest mean absolute difference."),
    click.option(
        "--limit",
        "limits",
        multiple=True,
        callback=numbers,
        metavar="[OUTPUT.]MEASURE=X",
        help="A limit on one measure, such as probabilities.max_abs_diff=0.02 or label_flips=0.",
    ),
    click.option("--confidence", type=float, metavar="P", help="Confidence of the stated bound.  [default: 0.95]"),
    click.option(
        "--max-failure-rate",
        type=float,
        metavar="P",
        help="Inconclusive unless the rows show that fewer than this share are beyond tolerance.",
    ),
    click.option("--nan-equal", type=bool, metavar="BOOL", help="NaN on both sides agrees.  [default: true]"),
)
baseline_options = _stacked(
    click.option("--baseline", metavar="OLD.json", help="Also fail if this run is worse than that accepted one."),
    click.option(
        "--max-worse",
        callback=percent,
        metavar="PERCENT",
        help="How much worse than in the baseline a measure may be, such as 20%.  [default: 10%]",
    ),
)
data_options = _stacked(
    click.option(
        "--data",
        metavar="FILE",
        help="Rows: .parquet .csv .arrow .jsonl .npz .npy, a glob, a folder, or generated[:N].",
    ),
    click.option("--samples", type=int, metavar="N", help="Use N rows."),
    click.option(
        "--sample", type=click.Choice(["first", "random"]), help="Which rows --samples takes.  [default: first]"
    ),
    click.option(
        "--seed", type=int, metavar="N", help="Seed for whatever is random, such as --sample random.  [default: 0]"
    ),
    click.option("--drop", multiple=True, metavar="COLUMN", help="Leave a column out."),
    click.option(
        "--stratify", metavar="COLUMN", help="Report every value of this column separately; --samples covers each."
    ),
    click.option("--id", "id", metavar="COLUMN", help="Name rows by this column."),
    click.option("--time", metavar="COLUMN", help="When each row was asked about: tells since when rows differ."),
    click.option(
        "--feed", multiple=True, callback=assignments, metavar="INPUT=COLUMN", help="Feed an input from a column."
    ),
)
batch_axis_option = click.option(
    "--batch-axis",
    metavar="N",
    help="Axis of a model's tensors that holds the rows, if not the first: 1, or x:1,rate:none; none: no rows.",
)


def adapter_option(name: str, told: str = "An option for the model's adapter.") -> Callable[[F], F]:
    """Options of a model's adapter: `--option`, `--reference-option`, `--candidate-option`."""
    held = f"{name}s".removeprefix("--").replace("-", "_")
    return click.option(name, held, multiple=True, callback=assignments, metavar="NAME=VALUE", help=told)


def place_options(side: str) -> Callable[[F], F]:
    """Where a model is opened, if not here: `--reference-python`, `--reference-with`, `--reference-command` …"""
    told = {
        "python": ("PATH", f"Another Python that opens the {side}; likewise need not be installed there."),
        "with": ("PACKAGES", f"Open the {side} with these packages, such as scikit-learn==1.2.2,numpy<2."),
        "command": ("COMMAND", f"Start the {side}'s Python by a command, such as 'docker run -i --rm image python'."),
    }
    return _stacked(*(click.option(f"--{side}-{name}", metavar=form, help=text) for name, (form, text) in told.items()))


pairing_options = _stacked(
    batch_axis_option,
    click.option(
        "--pair",
        multiple=True,
        callback=assignments,
        metavar="CANDIDATE=REFERENCE",
        help="Compare this output of the candidate with that of the reference.",
    ),
    click.option("--ignore", multiple=True, metavar="OUTPUT", help="Leave an output out of the comparison."),
)
batch_size_options = _stacked(
    click.option("--batch-size", type=int, metavar="N", help="Rows per call.  [default: by rule, see the report]"),
    click.option("--fixed-batch", is_flag=True, help="The candidate takes one batch size only, and that is intended."),
)
comparison_options = _stacked(
    pairing_options,
    batch_size_options,
    click.option(
        "--batch-sizes",
        callback=sizes,
        metavar="N,N",
        help="Other batch sizes to try, or `none`.  [default: 1 to 128, around powers of two]",
    ),
    click.option(
        "--shapes",
        multiple=True,
        callback=lengths,
        metavar="AXIS=N,N",
        help="Lengths to try along a free axis, such as seq=1,7,128 or x:2=32,64.  [default: a few; `none`: none]",
    ),
    click.option(
        "--edge",
        type=click.Choice(["strict", "fail", "report", "off"]),
        help="Rows made to find trouble: do they block? `fail`: not where only the reference refuses NaN, infinities "
        "or gaps; `strict`: there too.  [default: report]",
    ),
    click.option(
        "--matrix",
        multiple=True,
        callback=axes,
        metavar="NAME=V,V",
        help="Try the candidate under all combinations of settings, such as optimization=disable,all threads=1,2.",
    ),
    click.option(
        "--skip-suite", "skip_suites", multiple=True, metavar="NAME", help="Leave an edge suite out, such as nonfinite."
    ),
    click.option(
        "--beside-budget",
        metavar="TIME|Nx",
        help="What other batches, lengths and edge cases may take: a time such as 10s, or 2x what the data took. If "
        "they would take longer, fewer are tried.  [default: 2s or 1x, whichever is more]",
    ),
    click.option(
        "--thorough", is_flag=True, help="Try all other batches, lengths and edge cases, however long it takes."
    ),
    click.option("--fail-fast", is_flag=True, help="Stop as soon as a limit can no longer hold."),
    click.option(
        "--workers", type=int, metavar="N", help="Processes that compare at the same time, each with both models open."
    ),
    click.option(
        "--engine", metavar="NAME", help="Where workers run: `local`, or `ray` for the actors of a Ray cluster."
    ),
    click.option("--address", metavar="ADDRESS", help="The Ray cluster, such as `auto`; else one is started here."),
    click.option("--allow-same", is_flag=True, help="One model on both sides is intended."),
    click.option(
        "--request-template",
        metavar="FILE",
        help="How a served model is asked: a JSON body in Jinja2, and `{# answer: NAME = $.path[*].to #}`.",
    ),
    place_options("reference"),
    place_options("candidate"),
    adapter_option("--reference-option"),
    adapter_option(
        "--candidate-option", "An option for the adapter, such as optimization=disable, threads=1 or providers=CUDA."
    ),
)
trust_option = click.option(
    "--trust",
    "trusted",
    multiple=True,
    is_flag=False,
    flag_value="*",
    metavar="PATTERN",
    help="Let a pickle use code matching PATTERN, such as 'mypackage.*'. This runs the file's code.",
)


def _note_sandbox(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - as click calls it
    from likewise.tasks.isolation.rooms import NO_SANDBOX

    NO_SANDBOX.set(value)


sandbox_option = click.option(
    "--no-sandbox",
    is_flag=True,
    expose_value=False,
    callback=_note_sandbox,
    help="Let models use the network, other programs and all files; the report says so.",
)
timeout_option = _stacked(
    click.option("--timeout", callback=patience, metavar="TIME", help="Give up after this long, such as 90s or 2h."),
    sandbox_option,
)
gate_timeout_option = _stacked(
    click.option(
        "--timeout",
        callback=patience,
        metavar="TIME",
        help="Give up after this long: INCONCLUSIVE.  "
        "[default: when a model gives no answer for 10 minutes; `none`: never]",
    ),
    sandbox_option,
)
memory_option = click.option(
    "--memory",
    metavar="SIZE",
    help="What the search for causes may take beyond what the comparison took, such as 500MB.  [default: 2GB]",
)
explain_options = _stacked(
    click.option(
        "--explain-budget",
        callback=seconds,
        metavar="TIME",
        help="Look for the cause of a failure for at most this long, such as 30s or 2m.  [default: 30s]",
    ),
    memory_option,
    click.option("--no-explain", is_flag=True, help="Judge only."),
)


WRITTEN = {
    "html": "a page (HTML)",
    "junit": "JUnit XML",
    "markdown": "Markdown",
    "sarif": "SARIF",
    "statement": "an in-toto statement",
}
"""What people call the formats; others go by the name of their file."""


def format_options(command: F) -> F:
    """One option for every file in `reports` but those that are always there."""
    from likewise.registry import modules

    for name in sorted(set(modules("report.formats")) - {"json", "terminal"}, reverse=True):
        told = f"Write the report as {WRITTEN.get(name, name)} too; `-` prints it."
        command = click.option(f"--{name}", f"format_{name}", metavar="FILE", help=told)(command)
    return command


def _replace(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    from likewise.data.files import REPLACE

    before = REPLACE.set(value)
    ctx.call_on_close(lambda: REPLACE.reset(before))


force_option = click.option(
    "--force",
    is_flag=True,
    expose_value=False,
    callback=_replace,
    help="Replace files that likewise did not write; what this run reads is never replaced.",
)
report_options = _stacked(
    click.option("--report", metavar="FILE", help="Where the report goes.  [default: parity_report.json]"),
    format_options,
    force_option,
)
repro_option = click.option(
    "--repro",
    metavar="FOLDER",
    help="Write the smallest piece of an ONNX candidate that shows the difference: model, inputs, script, text.",
)
where_option = click.option(
    "--where", metavar="CONDITION", help="Only rows of a table for which this holds, such as \"country = 'NL'\"."
)
gate_options = _stacked(
    data_options,
    where_option,
    policy_options,
    comparison_options,
    trust_option,
    report_options,
    repro_option,
    gate_timeout_option,
)
trust_config_option = click.option(
    "--trust-config",
    is_flag=True,
    envvar="LIKEWISE_TRUST_CONFIG",
    help="Run the code that the configuration names, and write where it says.  [env: LIKEWISE_TRUST_CONFIG=1]",
)
debug_option = click.option("--debug", is_flag=True, help="Show tracebacks and what the models print.")


def output_options(*, json: str = "Print JSON.", quiet: str = "Show no progress.") -> Callable[[F], F]:
    """How a result is printed: for a machine, with less around it, with what went wrong."""
    return _stacked(
        click.option("--json", "as_json", is_flag=True, help=json),
        click.option("--quiet", "-q", is_flag=True, help=quiet),
        debug_option,
    )


def given(**options: Any) -> dict[str, Any]:
    """The options a user really gave."""
    return {name: value for name, value in options.items() if value is not None and value != () and value != {}}


def arguments(told: str, **options: Any) -> dict[str, Any]:
    """The options a user really gave, as a task takes them from Python; without data there is nothing to do."""
    required(options["data"], "--data", f"{told}: --data FILE")
    return given(**options)


def stated(**options: Any) -> dict[str, Any]:
    """The options a user really gave, under the names of a gate's settings."""
    found = {name: value for name, value in given(**options).items() if value is not False or name == "nan_equal"}
    if options.get("batch_sizes") == ():
        found["batch_sizes"] = ()
    if options.get("shapes") == {}:
        found["shapes"] = {}
    for side in ("reference", "candidate"):
        said = {name: found.pop(f"{side}_{name}") for name in ELSEWHERE if f"{side}_{name}" in found}
        if said:
            found[f"{side}_options"] = {**found.get(f"{side}_options", {}), **said}
    formats = {name.removeprefix("format_"): found.pop(name) for name in [*found] if name.startswith("format_")}
    if formats:
        found["formats"] = formats
    if found.pop("no_explain", False):
        found["explain"] = False
    return found


def gate(reference: str, candidate: str, stated: Mapping[str, Any]) -> Settings:
    """The gate that a command describes, with what it states beside the models."""
    from likewise.tasks.settings import REPORT, settings_from

    table = {"report": REPORT, **stated, "reference": reference, "candidate": candidate}
    if template := table.pop("request_template", None):
        served = [side for side in ("reference", "candidate") if str(table[side]).lower().startswith("http")]
        required(served or None, "a URL", "--request-template says how a served model is asked: http://…")
        table |= {f"{side}_options": {**table.get(f"{side}_options", {}), "template": template} for side in served}
    return settings_from(table, where="the command")


def required(value: Any, name: str, remedy: str) -> Any:
    """A value that must be there."""
    if value is None:
        raise UsageError(f"{name} is missing", remedy=remedy)
    return value


def of_stored_reports(command: Callable[..., None]) -> Callable[..., None]:
    """A command that works on finished reports: one that somebody changed is told, whatever stumbles over it."""

    @functools.wraps(command)
    def told(*given: Any, **named: Any) -> None:
        try:
            command(*given, **named)
        except LikewiseError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise DataError(
                f"a report holds what likewise did not write: {one_line(error)}",
                remedy="`likewise verify REPORT` says whether it is as it was written; else check again",
            ) from error

    return told
