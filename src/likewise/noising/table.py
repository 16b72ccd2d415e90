"""The noise of a model for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from likewise.consoles import drawn
from likewise.contracts.noising import NoiseResult, OutputNoise
from likewise.showing import sentence

if TYPE_CHECKING:
    from rich.console import RenderableType

APART = 100.0
"""Outputs whose sizes differ by so much are better given a limit each."""

REMEDY = (
    "A wrong model would pass above such noise. Make the model repeatable first: fix its seed, compare and serve it "
    "with the same batch size (--batch-size 1), or quantise it statically."
)
"""What to do about answers that move too far."""


def render(result: NoiseResult, *, width: int = 80, colour: bool = False) -> str:
    """Tables of the sources and what to say to `check`; names of models are text, never markup."""
    return drawn(_parts(result), width=width, colour=colour)


def _parts(result: NoiseResult) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text.assemble((result.model, "bold"), f" ({result.framework}), {result.rows:,} rows of {result.data}")
    yield ""
    yield _figures(result)
    yield ""
    if result.refused:
        for why in result.refused:
            yield Text(f"No tolerance can be proposed: {why}.", style="bold")
        yield Text(REMEDY)
    elif result.abs_tol is not None:
        yield Text(_told(result))
        yield Text(f"  {result.options}", style="bold")
        sizes = [limit.largest_answer for limit in result.limits]
        if max(sizes) > APART * min(sizes):
            yield Text("The outputs are of very different sizes. A limit for each:")
            yield Text(f"  {result.limit_options}", style="bold")
    elif result.limits:
        yield Text("No one tolerance is small against the answers of every output. A limit for each:")
        yield Text(f"  {result.options}", style="bold")
    else:
        yield Text("No output holds numbers, so there is no tolerance to propose.")
    for source in result.sources:
        if source.not_measured:
            yield Text(f"· Not measured: {source.name}. {sentence(source.not_measured)}", style="dim")
    for note in result.notes:
        yield Text(f"! {sentence(note)}", style="yellow")


def _told(result: NoiseResult) -> str:
    times = f"{result.margin:g} times the noise, rounded up, and never below that of float32 itself"
    if result.dominated_by is None:
        jumped = any(output.jumps for source in result.sources for output in source.outputs)
        return f"{'Nothing else moves' if jumped else 'Nothing moves'}. Proposed, {times}:"
    return f"Most of it is {result.dominated_by}. Proposed, {times}:"


def _figures(result: NoiseResult) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("what moves them", overflow="fold")
    table.add_column("output", overflow="fold")
    for heading in ("max abs", "p99 abs", "max rel", "p99 rel", "changed"):
        table.add_column(heading, justify="right", overflow="fold")
    for source in result.sources:
        for place, output in enumerate(source.outputs):
            style = "yellow" if output.jumps or output.nonfinite else ""
            table.add_row("" if place else source.name, Text(output.output), *_cells(output), style=style)
    return table


def _cells(output: OutputNoise) -> Iterator[str]:
    for value in (output.max_abs, output.p99_abs, output.max_rel, output.p99_rel):
        yield "–" if value is None else f"{value:.2g}"
    yield f"{100 * output.changed:.3g}%"
