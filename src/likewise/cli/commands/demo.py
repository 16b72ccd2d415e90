"""`likewise demo`: the embedded example, end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from likewise.cli import options
from likewise.errors import LikewiseError

STEPS = {
    "writing the data": "Data: 20,000 loan applications to train on, 350,000 to check on.",
    "training": "Training a network and a booster with scikit-learn.",
    "exporting": "Exporting both to ONNX with skl2onnx.",
    "quantising": "Quantising the network to INT8.",
}
CHECKS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("A faithful export: every row is compared.", "model model.onnx", {}, "PASS"),
    ("The INT8 file under the limits of a faithful export:", "model model.int8.onnx", {}, "FAIL"),
    ("And under the limits meant for it:", "model model.int8.onnx", {"preset": "quantized"}, "PASS"),
    ("The booster on the first 1,000 rows:", "booster booster.onnx", {"samples": 1000}, "PASS"),
    ("The booster on all rows:", "booster booster.onnx", {}, "FAIL"),
)
EXPLANATION = """\
The last failure is real, and nothing in the file is broken: scikit-learn scales
the income in float64, the exported graph in float32, and the two results lie on
either side of a threshold that many trees share. A thousand rows do not show it.
"""


@click.command(short_help="The embedded example, end to end.")
@click.argument("folder", default="likewise-demo")
@options.debug_option
def demo(*, folder: str, debug: bool) -> None:
    """Train, export, check, quantise, check and report, in an empty FOLDER (likewise-demo by default)."""
    from likewise.cli.gates import carry_out, show
    from likewise.tasks.isolation.supervisor import supervise
    from likewise.tasks.settings import settings_from

    place = Path(folder)
    if place.exists() and any(place.iterdir()):
        raise click.UsageError(f"{folder} is not empty; name another folder: likewise demo FOLDER")
    place.mkdir(parents=True, exist_ok=True)
    job = {"do": "demo", "arguments": {"folder": str(place)}}
    supervise(job, on_progress=lambda message: click.secho(STEPS[message["phase"]], bold=True), debug=debug)
    for number, (told, models, more, expected) in enumerate(CHECKS, 1):
        reference, candidate = models.replace(" ", ".joblib ").split()
        table: dict[str, Any] = {
            "reference": str(place / reference),
            "candidate": str(place / candidate),
            "data": str(place / "test.parquet"),
            "report": str(place / f"parity_report.{number}.json"),
            **more,
        }
        flags = "".join(f" --{name} {value}" for name, value in more.items())
        click.secho(f"\n{number}. {told}", bold=True)
        click.echo(f"$ likewise check {reference} {candidate} --data test.parquet{flags}\n")
        carried = carry_out(settings_from(table, where="the demo"), quiet=False, debug=debug)
        show(carried, as_json=False)
        if carried.outcome != expected:
            raise LikewiseError(f"check {number} of the demo was expected to be {expected}, not {carried.outcome}")
    click.echo("\n" + EXPLANATION, nl=False)


EXTENSION = demo
